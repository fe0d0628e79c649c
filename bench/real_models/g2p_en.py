# SPDX-License-Identifier: Apache-2.0
"""g2p_en's encoder and decoder GRU, and what they see: letters of a word, and phonemes that the float model chose.

The decoder begins with the encoder's last state: PART_h0.npz hold it for `isobit quantize --state`. examples/g2p runs the
two together.
"""

import pathlib
import sys

import numpy as np

import onnx_gru

COUNTS = {"calibration": 512, "validation": 256, "test": 256}
LETTER_A, WORD_END = 3, 2  # <pad> <unk> </s> a..z
START, STOP, MOST = 2, 3, 20  # phonemes


def words(dictionary: pathlib.Path) -> list[str]:
    """Spellings of 2 to 18 letters a-z, sorted, as examples/g2p takes them."""
    found = set()
    for line in dictionary.read_text("utf-8").splitlines():
        word = line.split("#")[0].split()[0] if line.split("#")[0].split() else ""
        if 2 <= len(word) <= 18 and word.isascii() and word.isalpha() and word.islower():
            found.add(word)
    return sorted(found)


def main(checkpoint: pathlib.Path, dictionary: pathlib.Path, out: pathlib.Path) -> None:
    values = np.load(checkpoint)
    layers = {}
    for gru in ("enc", "dec"):
        w, r, bw, br = (values[f"{gru}_{name}"] for name in ("w_ih", "w_hh", "b_ih", "b_hh"))
        # To the order of gates that onnx_gru has: PyTorch's is reset, update, new.
        swapped = [np.concatenate([a[256:512], a[:256], a[512:]]) for a in (w, r, bw, br)]
        layers[gru] = [swapped[0][None], swapped[1][None], np.concatenate(swapped[2:])[None]]
    names = words(dictionary)
    chosen = [names[i * len(names) // sum(COUNTS.values())] for i in range(sum(COUNTS.values()))]
    encoder: dict[str, list[np.ndarray]] = {part: [] for part in COUNTS}
    decoder: dict[str, list[np.ndarray]] = {part: [] for part in COUNTS}
    states: dict[str, list[np.ndarray]] = {part: [] for part in COUNTS}
    for i, word in enumerate(chosen):
        part = ("calibration", "validation", "calibration", "test")[i % 4]
        x = values["enc_emb"][[LETTER_A + ord(letter) - ord("a") for letter in word] + [WORD_END]]
        h = onnx_gru.forward(layers["enc"], x)[-1]
        encoder[part].append(x)
        states[part].append(h)
        inputs = [START]
        while len(inputs) < MOST:
            h = onnx_gru.forward(layers["dec"], values["dec_emb"][inputs[-1:]], h)[-1]
            best = int(np.argmax(values["fc_w"] @ h + values["fc_b"]))
            if best == STOP:
                break
            inputs.append(best)
        decoder[part].append(values["dec_emb"][inputs])
    for gru, name, sequences in (("enc", "g2p_encoder", encoder), ("dec", "g2p_decoder", decoder)):
        arrays = {f"gru.{ours}_l0": values[f"{gru}_{theirs}"]
                  for ours, theirs in (("weight_ih", "w_ih"), ("weight_hh", "w_hh"), ("bias_ih", "b_ih"),
                                       ("bias_hh", "b_hh"))}
        onnx_gru.save(out / name, arrays, sequences)
    for part, rows in states.items():
        np.savez(out / "g2p_decoder" / f"{part}_h0.npz", **{f"s{i:04}": h[None, None] for i, h in enumerate(rows)})


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
