# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import subprocess

import numpy as np
import pytest

C, H = 7, 12


@pytest.fixture(scope="session")
def command():
    """Runs the command-line tool, whose bytes are those of Python; ISOBIT_COMMAND names it."""
    program = os.environ["ISOBIT_COMMAND"]

    def run(*arguments):
        done = subprocess.run([program, *map(str, arguments), "--quiet"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    return run


def make_checkpoint(path, layers=1, directions=1, seed=1, hidden=H):
    random = np.random.default_rng(seed)
    arrays = {}
    for layer in range(layers):
        for direction in range(directions):
            end = f"_l{layer}" + ("_reverse" if direction else "")
            width = C if layer == 0 else hidden * directions
            arrays["enc.weight_ih" + end] = random.normal(0, 0.4, (3 * hidden, width)).astype("f4")
            arrays["enc.weight_hh" + end] = random.normal(0, 0.3, (3 * hidden, hidden)).astype("f4")
            arrays["enc.bias_ih" + end] = random.normal(0, 0.1, 3 * hidden).astype("f4")
            arrays["enc.bias_hh" + end] = random.normal(0, 0.1, 3 * hidden).astype("f4")
    np.savez(path, **arrays)
    return arrays


@pytest.fixture(scope="session", params=[(1, 1), (2, 2)], ids=["one", "two layers, both directions"])
def files(request, tmp_path_factory):
    folder = pathlib.Path(tmp_path_factory.mktemp("gru"))
    layers, directions = request.param
    arrays = make_checkpoint(folder / "float.npz", layers, directions)
    x = np.random.default_rng(2).normal(0, 1, (40, 3, C)).astype("f4")
    np.save(folder / "data.npy", x)
    return folder, arrays, x, layers, directions
