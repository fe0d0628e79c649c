# SPDX-License-Identifier: Apache-2.0
"""The encoder of arabic-name-romanizer: a bidirectional GRU of two layers that reads names, and names that it reads."""

import json
import pathlib
import sqlite3
import sys

import numpy as np

import onnx_gru

COUNTS = {"calibration": 512, "validation": 256, "test": 256}
EOS = 2


def main(package: pathlib.Path, out: pathlib.Path) -> None:
    tokens = {t: i for i, t in enumerate(json.loads((package / "vocab.json").read_text("utf-8"))["tokens"])}
    with sqlite3.connect(f"file:{package / 'names.sqlite3'}?mode=ro", uri=True) as database:
        rows = database.execute("SELECT arabic_key, min(country), min(role) FROM units "
                                "GROUP BY arabic_key ORDER BY arabic_key").fetchall()
    usable = [row for row in rows if all(letter in tokens for letter in row[0])]
    # Evenly spaced over the sorted names; then one of four in turn is for validation, one for the test.
    chosen = [usable[i * len(usable) // sum(COUNTS.values())] for i in range(sum(COUNTS.values()))]
    recorder = onnx_gru.Recorder(onnx_gru.Network(package / "encoder.onnx"), out / "names")
    for i, (name, country, role) in enumerate(chosen):
        codes = [tokens.get(f"<{country}>", tokens["<UNK_COUNTRY>"]), tokens[f"<ROLE_{role.upper()}>"],
                 *(tokens[letter] for letter in name), EOS]
        part = ("calibration", "validation", "calibration", "test")[i % 4]
        src = np.array([codes], dtype=np.int64)
        recorder.add(part, recorder.network.run({"src": src, "src_mask": np.zeros(src.shape, dtype=bool)})[1])
    recorder.write()


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
