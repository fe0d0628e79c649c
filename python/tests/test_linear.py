# SPDX-License-Identifier: Apache-2.0
"""Low-bit weights and linear layers from Python: the bytes of the command line, and what is refused."""
import numpy as np
import pytest

import isobit

N, K = 24, 64


@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("linear")
    random = np.random.default_rng(4)
    weights = random.normal(0, 1, (N, K)).astype("f4")
    bias = random.normal(0, 1, N).astype("f4")
    x = random.normal(0, 1, (5, K)).astype("f4")
    np.savez(folder / "model.npz", **{"fc.weight": weights, "fc.bias": bias})
    np.save(folder / "x.npy", x)
    return folder, weights, bias, x


@pytest.mark.parametrize("bits, group, kind", [(4, 32, "symmetric"), (8, None, "zero_point"), (2, 16, "offset")])
def test_products_are_the_commands(layer, command, tmp_path, bits, group, kind):
    folder, weights, bias, x = layer
    command("pack", folder / "model.npz", "-o", tmp_path / "packed.safetensors", "--bits", bits, "--group", group or 0,
            "--kind", kind)
    loaded = isobit.LowBit.load(tmp_path / "packed.safetensors", "fc.weight")
    made = isobit.LowBit.quantize(weights, bits=bits, group=group, kind=kind)
    assert made.dequantize(x).tobytes() == loaded.dequantize(x).tobytes()
    assert made.shape == (N, K) and made.bits == bits
    for activations in ("float", "int8", "int8_asymmetric"):
        command("matmul", f"{tmp_path}/packed.safetensors:fc.weight", folder / "x.npy", "-o", tmp_path / "y.npy",
                "--activations", activations, "--bias", "fc.bias", "--clamp", "relu6")
        for matrix in (made, loaded):
            product = isobit.Linear(matrix, activations=activations, bias=bias, clamp=(0, 6))
            y = product(x)
            assert y.tobytes() == np.load(tmp_path / "y.npy").tobytes()
            assert product(x, pool=isobit.ThreadPool(2)).tobytes() == y.tobytes()
            assert product(x.reshape(5, 1, K)).shape == (5, 1, N) and product(x[0]).tobytes() == y[0].tobytes()


def test_pack_is_the_commands(layer, command, tmp_path):
    folder, *_ = layer
    command("pack", folder / "model.npz", "-o", tmp_path / "command.safetensors", "--bits", 2, "--group", 32)
    done = []
    report = isobit.pack(folder / "model.npz", tmp_path / "python.safetensors", bits=2, group=32, progress=done.append)
    assert (tmp_path / "python.safetensors").read_bytes() == (tmp_path / "command.safetensors").read_bytes()
    assert done[-1] == pytest.approx(1) and "fc.weight" in str(report) and report.data["tensors"]
    with pytest.raises(isobit.InvalidArgumentError, match="model.npz"):
        isobit.pack(folder / "model.npz", folder / "model.npz")


def test_matrices_are_saved(layer, tmp_path):
    _, weights, _, x = layer
    matrix = isobit.LowBit.quantize(weights)
    matrix.save(tmp_path / "m.safetensors", "w")
    assert isobit.LowBit.load(tmp_path / "m.safetensors").dequantize(x).tobytes() == matrix.dequantize(x).tobytes()
    with pytest.raises(isobit.InvalidArgumentError, match="no matrix is called 'v'"):
        isobit.LowBit.load(tmp_path / "m.safetensors", "v")


@pytest.mark.parametrize("x_bits, y_bits", [(8, 8), (16, 12)])
def test_static_layers(layer, tmp_path, x_bits, y_bits):
    _, weights, bias, x = layer
    static = isobit.quantize_static(weights, x, bias=bias, x_bits=x_bits, y_bits=y_bits)
    assert static.input_grid["bits"] == x_bits and static.output_grid["bits"] == y_bits
    y = static(x)
    assert np.abs(y - (x @ weights.T + bias)).max() < 0.05 * np.abs(y).max()
    codes = np.clip(np.rint(x / static.input_grid["scale"]) + static.input_grid["zero_point"], -2**(x_bits - 1),
                    2**(x_bits - 1) - 1).astype("i1" if x_bits == 8 else "i2")
    grid = static.output_grid
    assert np.array_equal((static.run_codes(codes) - grid["zero_point"]).astype("f4") * np.float32(grid["scale"]), y)
    static.save(tmp_path / "s.safetensors")
    again = isobit.StaticLinear.load(tmp_path / "s.safetensors")
    assert again.run_codes(codes).tobytes() == static.run_codes(codes).tobytes() and again.name == "layer"


def test_a_static_layer_takes_what_a_gru_gives(files):
    folder, _, x, *_ = files
    gru = isobit.quantize(isobit.load_gru(folder / "float.npz"), x, bits="8,h=16,gate_in=12")
    y = gru(x)
    weights = np.random.default_rng(5).normal(0, 1, (3, y.shape[-1])).astype("f4")
    static = isobit.quantize_static(weights, y, after=gru, y_bits=16)
    assert static.input_grid == gru.output_grid
    codes = gru.run_codes(np.zeros(x.shape, gru.input_grid["dtype"].replace("s8", "i1")))
    assert codes.dtype == np.int16 and static.run_codes(codes).shape == (*y.shape[:-1], 3)


def test_refusals(layer):
    _, weights, bias, x = layer
    matrix = isobit.LowBit.quantize(weights)
    for call, error, message in [
        (lambda: isobit.LowBit.quantize(weights, bits=3), ValueError, "bits"),
        (lambda: isobit.LowBit.quantize(weights, kind="odd"), ValueError, "kind is 'odd', must be one of"),
        (lambda: isobit.LowBit.quantize(weights, scales="f64"), ValueError, "scales is 'f64', must be one of"),
        (lambda: isobit.LowBit.quantize(weights.astype("f8")), TypeError, "weights is f64, must be one of"),
        (lambda: isobit.Linear(matrix, bias=bias[1:]), ValueError, "bias"),
        (lambda: isobit.Linear(matrix, clamp=(1, 0)), ValueError, "clamp"),
        (lambda: isobit.Linear(matrix)(x[:, 1:]), ValueError, r"x has shape \[5, 63\], must be \[..., 64\]"),
        (lambda: isobit.Linear(matrix)(np.where(x == x[2, 3], np.float32("inf"), x)), ValueError, "x"),
        (lambda: isobit.quantize_static(weights, x, weight_bits=3), ValueError, "bits"),
        (lambda: isobit.quantize_static(weights, []), isobit.FailedPreconditionError, "layer"),
    ]:
        with pytest.raises(error, match=message):
            call()
