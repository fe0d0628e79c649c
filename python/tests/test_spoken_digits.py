# SPDX-License-Identifier: Apache-2.0
"""examples/spoken_digits on a few made-up recordings. ISOBIT_REQUIRE=torch: a failure without its packages."""
import json
import os
import pathlib
import subprocess
import sys
import wave

import isobit
import numpy as np
import pytest

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "spoken_digits"
if "torch" not in os.environ.get("ISOBIT_REQUIRE", "").split(","):
    for name in ("torch", "tqdm", "matplotlib"):
        pytest.importorskip(name)


def write_tone(path, hertz, length, random, rate=8000):
    samples = 8000 * np.sin(2 * np.pi * hertz * np.arange(length) / rate) + random.normal(0, 300, length)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(np.rint(samples).astype("<i2").tobytes())


def run(*arguments):
    return subprocess.run([sys.executable, EXAMPLE / "spoken_digits.py", *map(str, arguments)], capture_output=True,
                          text=True, check=False)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Each word is a tone."""
    folder, random = tmp_path_factory.mktemp("recordings"), np.random.default_rng(1)
    for digit in range(10):
        for speaker in ("george", "lucas"):
            for take in (0, 10, 11):
                path = folder / f"{digit}_{speaker}_{take}.wav"
                write_tone(path, 200 + 300 * digit, random.integers(700, 2500), random)
    return folder


def test_the_whole_example(recordings, tmp_path):
    done = run(recordings, tmp_path, "--seeds", 2, "--float-epochs", 1, "--epochs", 1)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert (result["train"]["words"], result["test"]["words"], len(result["seeds"])) == (40, 20, 2)
    rows = [(row["weights"], row["others"]) for row in result["table"]]
    assert rows == [(8, 8), (4, 8), (2, 8), (4, 4)]
    for seed in result["seeds"]:
        for setting in seed["settings"]:
            # Of the training forward and the model that was saved and loaded.
            assert setting["different_bytes"] == {"pow2": 0, "real": 0}
            heard = {(one["method"], one["scale"]): one["heard"] for one in setting["calibrations"]}
            assert heard[tuple(setting["calibration"].values())] == max(heard.values())
    for weights, others in rows:
        assert f"| {weights} | {others} | " in done.stdout
        for scale in ("pow2", "real"):
            gru = isobit.load(tmp_path / f"seed1_weights{weights}_rest{others}_{scale}.safetensors")
            assert gru.bits == ("4,biases=4" if others == 4 else "8" if weights == 8 else f"8,weights={weights}")
    sizes = {row["weights"]: row["bytes"] for row in result["table"] if row["others"] == 8}
    assert sizes[2] < sizes[4] < sizes[8] < result["float_bytes"]
    assert "differ in 0 bytes" in done.stdout
    assert "words known" in (tmp_path / "spoken_digits.svg").read_text(encoding="utf-8")


def test_what_it_refuses(recordings, tmp_path):
    for arguments, said in (((recordings, tmp_path, "--test", "9-10"), "have takes in common"),
                            ((tmp_path, tmp_path), "has no DIGIT_SPEAKER_TAKE.wav"),
                            ((recordings, tmp_path, "--test", "1-9"), "with a take of 1 to 9")):
        done = run(*arguments)
        assert done.returncode != 0 and said in done.stderr, done.stderr
    write_tone(tmp_path / "1_george_10.wav", 300, 1000, np.random.default_rng(1), rate=16000)
    assert "1_george_10.wav must have 8000 samples a second" in run(tmp_path, tmp_path).stderr
