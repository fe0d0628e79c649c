# SPDX-License-Identifier: Apache-2.0
"""examples/g2p/finetune.py on random weights. ISOBIT_REQUIRE=torch: a failure without its packages."""
import itertools
import json
import os
import pathlib
import subprocess
import sys

import isobit
import numpy as np
import pytest

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "g2p"
if "torch" not in os.environ.get("ISOBIT_REQUIRE", "").split(","):
    for name in ("torch", "tqdm", "matplotlib"):
        pytest.importorskip(name)

SAID = {"a": "AA1", "b": "B", "k": "K", "l": "L", "o": "OW0", "s": "S"}
CALIBRATION = 512
QUICK = ("--train", 200, "--validation", 10, "--test", 20, "--epochs", 1)


def run(*arguments):
    return subprocess.run([sys.executable, EXAMPLE / "finetune.py", *map(str, arguments)], capture_output=True,
                          text=True, check=False)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Weights of g2p_en's shapes; words that are written as they are said."""
    folder, random = tmp_path_factory.mktemp("g2p"), np.random.default_rng(1)
    shapes = {"enc_emb": (29, 256), "dec_emb": (74, 256), "fc_w": (74, 256), "fc_b": (74,)}
    for gru, (end, shape) in itertools.product(("enc", "dec"), (("w_ih", (768, 256)), ("w_hh", (768, 256)),
                                                                ("b_ih", (768,)), ("b_hh", (768,)))):
        shapes[f"{gru}_{end}"] = shape
    arrays = {name: random.uniform(-0.2, 0.2, shape).astype("float32") for name, shape in shapes.items()}
    np.savez(folder / "weights.npz", **arrays)
    del arrays["fc_b"]
    np.savez(folder / "cut.npz", **arrays)
    words = ["".join(letters) for length in (3, 4) for letters in itertools.product(SAID, repeat=length)]
    # Comments, further pronunciations and other characters are no words.
    lines = [";;; comment", "a.m. EY1 EH1 M", "aaa(2) B", *(f"{word} {' '.join(SAID[letter] for letter in word)} # x"
                                                           for word in words)]
    (folder / "words.dict").write_text("\n".join(lines), encoding="utf-8")
    (folder / "wrong.dict").write_text("ab AA1 B\nba B XX\n", encoding="utf-8")
    return folder


def test_the_whole_example(inputs, tmp_path):
    arguments = inputs / "weights.npz", inputs / "words.dict", tmp_path, *QUICK
    done = run(*arguments, "--models", "w4", "float", "--seeds", 1)
    assert done.returncode == 0, done.stderr
    first = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("w4_*")}
    done = run(*arguments, "--models", "w3", "w4", "--seeds", 1, 3)
    assert done.returncode == 0, done.stderr
    assert "differ in 0 bytes" in done.stdout
    # What was there was not made again.
    assert first == {name: (tmp_path / name).stat().st_mtime_ns for name in first}
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert result["words"] == {"calibration": CALIBRATION, "test": 20, "validation": 10, "training": 200}
    assert [(row["model"], row["seeds"]) for row in result["table"]] == [("w4", 2), ("w3", 2), ("float", 1)]
    assert [run["seed"] for run in result["models"]["w3"]["runs"]] == [1, 3]
    for name in ("w4", "w3"):
        model = result["models"][name]
        assert all(run["different_bytes"] == 0 for run in model["runs"])
        for part in ("encoder", "decoder"):
            gru = isobit.load(tmp_path / f"{name}_seed1_{part}.safetensors")
            assert gru.bits == f"16,weights={name[1]},x=8" == model["bits"]
        ways = {(way["method"], way["scale"]): way["validation"] for way in model["calibrations"]}
        (row,) = (row for row in result["table"] if row["model"] == name)
        assert ways[tuple(row["calibration"].values())] == max(ways.values())
        assert row["trained"]["least"] <= row["trained"]["mean"] <= row["trained"]["most"]
    sizes = {row["model"]: row["bytes"] for row in result["table"] if "bytes" in row}
    assert sizes["w3"] <= sizes["w4"] < result["float_bytes"] / 4
    assert "words right" in (tmp_path / "g2p_finetune.svg").read_text(encoding="utf-8")
    done = run(*arguments, "--models", "w4", "--seeds", 1, "--epochs", 2)
    assert done.returncode == 1 and "epochs = 1, this run has 2; give the same, or another OUT" in done.stderr


def test_parts_have_no_word_in_common(inputs):
    code = ("import pathlib, sys; sys.path.insert(0, sys.argv[1]); import dictionary\n"
            "words = dictionary.load(pathlib.Path(sys.argv[2])); parts = dictionary.split(words, 20, 10)\n"
            "every = sum(parts.values(), [])\n"
            "assert len(every) == len(words) == 6**3 + 6**4 and sorted(every) == sorted(words)\n"
            "counts = {part: len(chosen) for part, chosen in parts.items()}\n"
            "assert counts == {'calibration': 512, 'test': 20, 'validation': 10, 'training': len(words) - 542}\n")
    done = subprocess.run([sys.executable, "-c", code, EXAMPLE, inputs / "words.dict"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr


def test_what_it_refuses(inputs, tmp_path):
    weights, words = inputs / "weights.npz", inputs / "words.dict"
    for arguments, said in (
            ((inputs / "cut.npz", words, tmp_path), 'array "fc_b" is missing, must have the shape (74,)'),
            ((words, words, tmp_path), "words.dict: not an npz file; it must be checkpoint20.npz of g2p_en"),
            ((weights, inputs / "wrong.dict", tmp_path), 'wrong.dict: line 2: "XX" is not a phoneme of the model'),
            ((weights, tmp_path / "none", tmp_path), "No such file"),
            ((weights, words, tmp_path), "--test 4000 and --validation 2000: the dictionary has 1512 usable words"),
            ((weights, words, tmp_path, "--epochs", 0), "--epochs: 0 is too small, must be at least 1"),
            ((weights, words, tmp_path, "--rate", 2), "--rate: 2 is out of range, must be above 0, at most 1"),
            ((weights, words, tmp_path, "--models", "w5"), "invalid choice: 'w5'"),
            ((weights, words, tmp_path, *QUICK[2:], "--train", 2000),
             "--train 2000: there are 970 words to train with; give at most that many")):
        done = run(*arguments)
        assert done.returncode != 0 and said in done.stderr, (said, done.stderr)
