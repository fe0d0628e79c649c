# SPDX-License-Identifier: Apache-2.0
"""The network of g2p_en: an encoder GRU reads letters, a decoder GRU writes phonemes from the encoder's last state."""
import math
import zipfile

import isobit.torch
import numpy as np
import torch

import dictionary

UNITS = 256  # of embeddings and both GRUs
LETTERS = 29
MOST_PHONEMES = 20  # g2p_en gives up after so many
AT_ONCE = 250  # words; results do not depend on it
SHAPES = {"enc_emb": (LETTERS, UNITS), "dec_emb": (len(dictionary.PHONEMES), UNITS),
          "fc_w": (len(dictionary.PHONEMES), UNITS), "fc_b": (len(dictionary.PHONEMES),),
          **{gru + name: (3 * UNITS, UNITS) for gru in ("enc_", "dec_") for name in ("w_ih", "w_hh")},
          **{gru + name: (3 * UNITS,) for gru in ("enc_", "dec_") for name in ("b_ih", "b_hh")}}


def load(path):
    """The arrays of checkpoint20.npz, or of what Speller.save wrote."""
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except (AttributeError, EOFError, TypeError, ValueError, zipfile.BadZipFile) as problem:
        raise ValueError("%s: not an npz file; it must be checkpoint20.npz of g2p_en" % path) from problem
    for name, shape in SHAPES.items():
        found = arrays[name].shape if name in arrays else None
        if found != shape:
            raise ValueError("%s: array \"%s\" %s, must have the shape %s as in checkpoint20.npz of g2p_en" % (
                path, name, "is missing" if found is None else "has the shape %s" % (found,), shape))
    return {name: torch.tensor(arrays[name]) for name in SHAPES}


def gru_bytes():
    """Of the float weights of both GRUs."""
    return sum(4 * math.prod(shape) for name, shape in SHAPES.items() if "_w_" in name or "_b_" in name)


class Speller(torch.nn.Module):
    """Embeddings and the output layer stay in floats."""

    def __init__(self, arrays):
        super().__init__()
        self.letters = torch.nn.Embedding(LETTERS, UNITS)
        self.phonemes = torch.nn.Embedding(len(dictionary.PHONEMES), UNITS)
        self.encoder = isobit.torch.QuantGRU(UNITS, UNITS, batch_first=True)
        self.decoder = isobit.torch.QuantGRU(UNITS, UNITS, batch_first=True)
        self.output = torch.nn.Linear(UNITS, len(dictionary.PHONEMES))
        with torch.no_grad():
            for name, parameter in self.arrays().items():
                parameter.copy_(arrays[name])

    def arrays(self):
        """Parameters by their names in checkpoint20.npz."""
        return {"enc_emb": self.letters.weight, "dec_emb": self.phonemes.weight, "fc_w": self.output.weight,
                "fc_b": self.output.bias,
                **{"%s_%s" % (name, end): getattr(gru, weight) for name, gru in zip(("enc", "dec"), self.grus())
                   for end, weight in (("w_ih", "weight_ih_l0"), ("w_hh", "weight_hh_l0"), ("b_ih", "bias_ih_l0"),
                                       ("b_hh", "bias_hh_l0"))}}

    def save(self, path):
        """An npz file with the arrays of checkpoint20.npz: all parameters, those of the GRUs as floats."""
        np.savez(path, **{name: parameter.detach().numpy() for name, parameter in self.arrays().items()})

    def grus(self):
        return self.encoder, self.decoder

    def states(self, batch):
        """All states of the encoder and of the decoder, which is told the right phonemes, and the last of each."""
        read, last = self.encoder(self.letters(batch.letters), lengths=batch.letter_counts)
        first = isobit.torch.hand_over(last, self.encoder, self.decoder)
        return read, last, *self.decoder(self.phonemes(batch.inputs), first, lengths=batch.counts)

    def forward(self, batch):
        """The loss of a phoneme."""
        logits = self.output(self.states(batch)[2])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(),
                                                 ignore_index=dictionary.PAD)

    def begin(self, x, lengths):
        return isobit.torch.hand_over(self.encoder(x, lengths=lengths)[1], self.encoder, self.decoder)

    def step(self, x, state):
        return self.decoder(x, state)


class Integers:
    """Two isobit.Gru in place of the GRUs of a Speller."""

    def __init__(self, encoder, decoder):
        self.encoder, self.decoder = encoder, decoder

    def begin(self, x, lengths):
        state = self.encoder.initial_state(len(x), like=x)
        self.encoder(x, state, lengths=lengths.tolist(), batch_first=True, whole_sequence=True)
        return self.decoder.state_from(self.encoder, state)

    def step(self, x, state):
        return self.decoder(x, state, batch_first=True), state

    def states(self, speller, batch):
        """Those of Speller.states."""
        x = speller.letters(batch.letters).detach()
        state = self.encoder.initial_state(len(x), like=x)
        read = self.encoder(x, state, lengths=batch.letter_counts.tolist(), batch_first=True, whole_sequence=True)
        last, state = state.values(x), self.decoder.state_from(self.encoder, state)
        x = speller.phonemes(batch.inputs).detach()
        return read, last, self.decoder(x, state, lengths=batch.counts.tolist(), batch_first=True), state.values(x)


@torch.no_grad()
def pronounce(speller, words, grus=None):
    """The phonemes of each word, most likely one by one, without </s>. grus: Integers, for those of the speller."""
    grus, said = grus or speller, []
    for begin in range(0, len(words), AT_ONCE):
        batch = dictionary.Batch(words[begin:begin + AT_ONCE])
        state = grus.begin(speller.letters(batch.letters), batch.letter_counts)
        last = torch.full((len(batch.letters),), dictionary.START)
        steps = []
        while len(steps) < MOST_PHONEMES and (last != dictionary.END).any():
            y, state = grus.step(speller.phonemes(last)[:, None], state)
            ended = last == dictionary.END  # such a word runs on with its batch, unread
            last = torch.where(ended, dictionary.END, speller.output(y[:, 0]).argmax(1))
            steps.append(last)
        said += [[code for code in row if code != dictionary.END] for row in torch.stack(steps, 1).tolist()]
    return said


def words_right(speller, words, grus=None):
    """In percent: those whose phonemes, stress included, are the dictionary's."""
    return 100 * sum(one == word[1] for one, word in zip(pronounce(speller, words, grus), words)) / len(words)
