# SPDX-License-Identifier: Apache-2.0
"""The encoder of g2p_en, which reads the letters of a word, on an emulated Cortex-M4.

usage: python g2p.py CHECKPOINT.npz MACHINE OUT [WORD...]

CHECKPOINT.npz is checkpoint20.npz of g2p_en. MACHINE is src/export/cortex_m. OUT gets the exported C and the program.
The embedding of the 29 letters becomes codes of the encoder's x, so that nothing on the board is a float. Exit status 1
where the board's codes are not those of isobit.
"""
import pathlib
import re
import sys

import isobit
import numpy as np

import board

TARGET = "cortex-m4"
LETTER_END, LETTER_A = 2, 3  # <pad> <unk> </s> a..z
WORDS = ["hello", "integer", "arithmetic", "everywhere"]
# The letters that calibrate; others come as near.
SPELLED = ("about above after again because before between business company country different during example family "
           "government important interest large little machine number opinion people question quickly reason school "
           "thought through together understand university value weather without yesterday zebra").split()


def letters_of(word):
    if not re.fullmatch("[a-z]{1,40}", word):
        sys.exit("error: word '%s': must have 1 to 40 letters a-z" % word)
    return [LETTER_A + ord(letter) - ord("a") for letter in word] + [LETTER_END]


if len(sys.argv) < 4:
    sys.exit(__doc__)
checkpoint, machine, out = map(pathlib.Path, sys.argv[1:4])
words = sys.argv[4:] or WORDS
spelled = [letters_of(word) for word in words]
embedding = np.load(checkpoint)["enc_emb"]  # [29, 256]

encoder = isobit.quantize(isobit.load_gru(checkpoint, prefix="enc"),
                          [embedding[letters_of(word)] for word in SPELLED], bits="8")
facts = encoder.export_c(out, name="encoder", target=TARGET, measure=True, force=True)
print(board.table(facts))

# The embedding as codes: numerics.md, section 3.
grid = encoder.input_grid
codes = np.clip(np.rint(embedding * np.float32(1 / grid["scale"])) + grid["zero_point"], -128, 127).astype(np.int8)
expected = []
for letters in spelled:
    state = encoder.initial_state()
    expected.append(encoder.run_codes(codes[letters][:, None], state)[-1, 0])
(out / "words.h").write_text(
    board.c_array("encoder_input", "embedding", codes)
    + board.c_array("uint8_t", "letters", np.array([letter for word in spelled for letter in word]))
    + board.c_array("uint8_t", "lengths", np.array([len(word) for word in spelled]))
    + board.c_array("encoder_output", "expected", np.array(expected))
    + "static const char *const words[] = {%s};\n" % ", ".join('"%s"' % word for word in words), encoding="utf-8")
here = pathlib.Path(__file__).parent
print(board.run(machine, TARGET, out, [here / "g2p.c", out / "encoder.c", out / "encoder_data.c"]), end="")
