# SPDX-License-Identifier: Apache-2.0
"""Words of the CMU pronouncing dictionary as numbers, and which of them train, calibrate, validate and test."""
import re

import torch

LETTER_END, LETTER_A = 2, 3  # <pad> <unk> </s> a..z
PAD, START, END = 0, 2, 3
PHONEMES = ("<pad> <unk> <s> </s> AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D "
            "DH EH0 EH1 EH2 ER0 ER1 ER2 EY0 EY1 EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 "
            "OY1 OY2 P R S SH T TH UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH").split()
CALIBRATION = 512
SORTED = 50  # batches among which words are sorted by length


class Batch:
    """Words side by side: letters [N, T], inputs and targets [N, U]; PAD past a length; letter_counts, counts [N]."""

    def __init__(self, words):
        def padded(rows):
            return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True,
                                                   padding_value=PAD)
        self.letters = padded([letters for letters, _ in words])
        self.inputs = padded([[START, *phonemes] for _, phonemes in words])
        self.targets = padded([[*phonemes, END] for _, phonemes in words])
        self.letter_counts = torch.tensor([len(letters) for letters, _ in words])
        self.counts = torch.tensor([len(phonemes) + 1 for _, phonemes in words])


def load(path):
    """(letters and </s>, phonemes) of each word of 2 to 18 letters a-z, in the first pronunciation, sorted."""
    codes, found = {name: code for code, name in enumerate(PHONEMES) if code > END}, {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        spelling, *phonemes = line.split("#")[0].split() or [""]
        # Further pronunciations are written word(2).
        if not re.fullmatch("[a-z]{2,18}", spelling) or not phonemes:
            continue
        unknown = [name for name in phonemes if name not in codes]
        if unknown:
            raise ValueError("%s: line %d: \"%s\" is not a phoneme of the model" % (path, number, unknown[0]))
        found.setdefault(spelling, [codes[name] for name in phonemes])
    return [([*(LETTER_A + ord(letter) - ord("a") for letter in word), LETTER_END], found[word])
            for word in sorted(found)]


def spread(words, count):
    """`count` of them, evenly spaced; and all others."""
    chosen = {i * len(words) // count for i in range(count)}
    return [words[i] for i in sorted(chosen)], [word for i, word in enumerate(words) if i not in chosen]


def split(words, test, validation):
    """The test and calibration words are those of g2p.cc; of all others some validate, and the rest trains."""
    if test + CALIBRATION + validation >= len(words):
        raise ValueError("--test %d and --validation %d: the dictionary has %d usable words, of which %d calibrate and "
                         "at least 1 trains; give fewer" % (test, validation, len(words), CALIBRATION))
    count = test + CALIBRATION
    taken, rest = spread(words, count)
    calibrates = [(i + 1) * CALIBRATION // count > i * CALIBRATION // count for i in range(count)]
    parts = {"calibration": [word for word, one in zip(taken, calibrates) if one],
             "test": [word for word, one in zip(taken, calibrates) if not one]}
    parts["validation"], parts["training"] = spread(rest, validation)
    return parts


def batches(words, size, random):
    """All words in a new order. Those of a batch are about as long as each other, so that few steps are padding."""
    order = random.permutation(len(words))
    made = []
    for begin in range(0, len(order), SORTED * size):
        part = sorted(order[begin:begin + SORTED * size], key=lambda i: (len(words[i][0]), len(words[i][1])))
        made += [part[at:at + size] for at in range(0, len(part), size)]
    for at in random.permutation(len(made)):
        yield Batch([words[i] for i in made[at]])


