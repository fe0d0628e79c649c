# SPDX-License-Identifier: Apache-2.0
"""PyTorch in, integers out. ISOBIT_REQUIRE=torch: a failure where torch cannot be imported."""
import copy
import os
import pathlib
import pickle
import re

import numpy as np
import pytest

import isobit

REQUIRED = os.environ.get("ISOBIT_REQUIRE", "").split(",")
if "torch" in REQUIRED:
    import torch
else:
    torch = pytest.importorskip("torch")
import isobit.torch as it  # noqa: E402

C, H, T, N = 6, 10, 20, 4
TUTORIAL = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


@pytest.fixture(scope="module", params=[(1, False, False), (2, True, True)], ids=["one", "two, both, batch first"])
def case(request):
    layers, bidirectional, batch_first = request.param
    torch.manual_seed(3)
    gru = torch.nn.GRU(C, H, layers, bidirectional=bidirectional, batch_first=batch_first).eval()
    x = torch.randn((N, T, C) if batch_first else (T, N, C))
    return gru, x


@pytest.fixture()
def frozen(case):
    gru, x = case
    quant = it.QuantGRU.from_float(gru)
    with it.calibrating(quant):
        y, last = quant(x)
    expected, expected_last = gru(x)
    for got, wanted in ((y, expected), (last, expected_last)):  # the float forward while it calibrates
        assert (got - wanted).abs().max() < 1e-6 and not got.requires_grad
    quant.freeze(bits="8,linear=16,gate_in=12,h=16")
    return quant


def test_results(case, frozen):
    gru, x = case
    y, last = frozen(x)
    expected, expected_last = gru(x)
    assert isinstance(y, torch.Tensor) and y.shape == expected.shape and last.shape == expected_last.shape
    assert (y - expected).abs().max() < 0.06 and (last - expected_last).abs().max() < 0.06
    integer = it.from_torch(gru, [x], bits="8,linear=16,gate_in=12,h=16")
    assert torch.equal(integer(x, batch_first=gru.batch_first), y)
    assert torch.equal(frozen.to_integer()(x, batch_first=gru.batch_first), y)
    numpy = integer(x.numpy(), batch_first=gru.batch_first)
    assert isinstance(numpy, np.ndarray) and np.array_equal(numpy, y.numpy())


def test_first_states_and_single_sequences(case, frozen):
    gru, x = case
    h0 = torch.rand(gru.num_layers * (1 + gru.bidirectional), N, H) - 0.5
    for first in (None, h0):
        y, last = frozen(x, first)
        expected, expected_last = gru(x, first)
        assert (y - expected).abs().max() < 0.06 and (last - expected_last).abs().max() < 0.06
        one = x[1] if gru.batch_first else x[:, 1]
        alone, alone_last = frozen(one, None if first is None else first[:, 1])
        assert torch.equal(alone, y[1] if gru.batch_first else y[:, 1]) and torch.equal(alone_last, last[:, 1])


@pytest.mark.parametrize("counts", [[20, 13, 7, 1], [3, 20, 1, 8]])
def test_packed_sequences(case, frozen, counts):
    gru, x = case
    is_sorted = counts == sorted(counts, reverse=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, counts, batch_first=gru.batch_first, enforce_sorted=is_sorted)
    y, last = frozen(packed)
    expected, expected_last = gru(packed)
    assert torch.equal(y.batch_sizes, expected.batch_sizes) and y.data.shape == expected.data.shape
    assert (y.data - expected.data).abs().max() < 0.06 and (last - expected_last).abs().max() < 0.06
    if is_sorted:
        assert y.sorted_indices is None
    else:
        assert torch.equal(y.sorted_indices, expected.sorted_indices)


def test_state_dicts_copies_and_files(case, frozen, tmp_path):
    gru, x = case
    other = torch.nn.GRU(C, H, gru.num_layers, bidirectional=gru.bidirectional, batch_first=gru.batch_first).eval()
    other.load_state_dict(frozen.state_dict())
    assert torch.equal(other(x)[0], gru(x)[0])
    y = frozen(x)[0]
    for copied in (copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):
        assert torch.equal(copied(x)[0], y)
        copied.load_state_dict(other.state_dict())
        assert copied.phase == "float" and (copied(x)[0] - gru(x)[0]).abs().max() < 1e-6
        with pytest.raises(isobit.FailedPreconditionError, match="there is no integer model yet"):
            copied.to_integer()
    torch.save({"enc." + name: value for name, value in gru.state_dict().items()}, tmp_path / "model.pt")
    weights = it.load_gru(tmp_path / "model.pt")
    assert weights.name == "enc"
    made = isobit.quantize(weights, x, bits="8,linear=16,gate_in=12,h=16", batch_first=gru.batch_first)
    assert torch.equal(made(x, batch_first=gru.batch_first), y)
    with pytest.raises(isobit.InvalidArgumentError, match="prefix is 'dec', must be that of a GRU: 'enc'"):
        it.load_gru(tmp_path / "model.pt", "dec")


def test_linear_layers():
    torch.manual_seed(5)
    linear, x = torch.nn.Linear(C, 3), torch.randn(50, C)
    layer = it.from_torch(linear, [x], x_bits=12, y_bits=12)
    assert (layer(x) - linear(x).detach()).abs().max() < 0.05


def test_refusals(case, frozen):
    gru, x = case
    for call, error, message in [
        (lambda: frozen(x, zoneout=[None] * gru.num_layers), isobit.NotSupportedError, "zoneout is given to a frozen"),
        (lambda: frozen(x.double()), TypeError, "x is f64, must be f32"),
        (lambda: frozen(x.clone().requires_grad_()), TypeError, "x requires gradients"),
        (lambda: it.QuantGRU(C, H).quantize(), isobit.FailedPreconditionError, r"before calibrate\(\)"),
        (lambda: it.QuantGRU(C, H).freeze(), isobit.FailedPreconditionError, r"before calibrate\(\)"),
        (lambda: it.from_torch(torch.nn.LSTM(C, H), [x]), isobit.NotSupportedError, "module is a LSTM"),
        (lambda: it.calibrating(gru).__enter__(), isobit.InvalidArgumentError, "model has no QuantGRU"),
    ]:
        with pytest.raises(error, match=message):
            call()


def test_lines_of_the_tutorial_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = torch.nn.GRU(C, H)
    torch.save(model.state_dict(), "model.pt")
    blocks = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    names = {"sequences": [np.zeros((T, C), "f4")] * N}
    for block in blocks:
        if "safetensors" in block and "torch" not in REQUIRED:
            pytest.importorskip("safetensors")
        exec(compile(block, TUTORIAL, "exec"), names)  # pylint: disable=exec-used
    first, second = (isobit.load_gru(f"model.{kind}") for kind in ("npz", "safetensors"))
    x = np.load("calibration.npz")["s0001"]
    isobit.quantize(first, x).save("first.safetensors")
    isobit.quantize(second, x).save("second.safetensors")
    assert (tmp_path / "first.safetensors").read_bytes() == (tmp_path / "second.safetensors").read_bytes()
