# SPDX-License-Identifier: Apache-2.0
"""The search from Python: the model of the command line, and metrics that are callables."""
import sys

import numpy as np
import pytest
from conftest import C, make_checkpoint

import isobit


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    make_checkpoint(folder / "float.npz")
    random = np.random.default_rng(8)
    x, other = (random.normal(0, 1, (25, 2, C)).astype("f4") for _ in range(2))
    np.save(folder / "data.npy", x)
    np.save(folder / "other.npy", other)
    return folder, isobit.load_gru(folder / "float.npz"), x, other


def test_the_model_is_the_commands(case, command, tmp_path):
    folder, weights, x, other = case
    command("tune", folder / "float.npz", "--calibrate", folder / "data.npy", "--validate", folder / "other.npy",
            "--target", 30, "-o", tmp_path / "command.safetensors")
    seen = []
    found = isobit.tune(weights, x, other, target=30, progress=lambda *now: seen.append(now))
    assert found.reached and not found.interrupted and not found.failure
    found.model.save(tmp_path / "python.safetensors")
    assert (tmp_path / "python.safetensors").read_bytes() == (tmp_path / "command.safetensors").read_bytes()
    assert found.chosen["quality"] >= 30 and found.chosen["bits"] in [point["bits"] for point in found.front]
    assert len(seen) > 3 and seen[-1][1] > 3 and found.data


def test_metrics(case):
    _, weights, x, other = case
    calls = []

    def metric(gru):
        calls.append(gru.size_bytes)
        assert gru(other, pool=pool).shape[:2] == other.shape[:2]
        return -float(gru.size_bytes)

    pool = isobit.ThreadPool(2)
    found = isobit.tune(weights, x, other, target=-1e9, metric=metric, pool=pool)
    assert found.reached and calls
    with pytest.raises(isobit.InvalidArgumentError, match="metric is given without target"):
        isobit.tune(weights, x, other, metric=metric)

    def broken(gru):
        raise KeyError("my own")

    with pytest.raises(KeyError, match="my own"):
        isobit.tune(weights, x, other, target=1, metric=broken)


def test_ends_early_and_goals_that_nothing_reaches(case):
    _, weights, x, other = case
    assert isobit.tune(weights, x, other, progress=lambda share, tried, best: tried < 2).interrupted
    found = isobit.tune(weights, x, other, target=300)
    assert not found.reached and "300" in found.failure

    def raises(*now):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        isobit.tune(weights, x, other, progress=raises)


def test_a_bar_of_tqdm(case, capfd, monkeypatch):
    _, weights, x, other = case
    for name in ("tqdm", "tqdm.auto"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(isobit.FailedPreconditionError, match="pip install tqdm"):
        isobit.tune(weights, x, other, target=30, progress=True)
    monkeypatch.undo()
    pytest.importorskip("tqdm")
    isobit.tune(weights, x, other, target=30, progress=True)
    shown = capfd.readouterr().err
    assert "tune: 100%" in shown and "models, best" in shown
