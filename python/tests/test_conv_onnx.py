# SPDX-License-Identifier: Apache-2.0
"""Convolutions of the package onnx: its node tests, and those that come from PyTorch. ISOBIT_REQUIRE=onnx: a failure
where it cannot be imported.

* ConvInteger and all cases of whole numbers: ONNX's numbers exactly, as accumulators.
* QLinearConv: ONNX's codes exactly, as it rounds to nearest even, too. The weights of the one case there is do not fit
  int8 once their zero point is taken away.
* Cases of floats: integers as numerics.md, section 12, defines them, exactly; ONNX's numbers within the error that
  quantising x and W can make.

isobit has no zero points of weights: a channel's own is taken from its weights before. Convolutions of three dimensions
are left out by name."""
import dataclasses
import itertools
import os
import warnings

import numpy as np
import pytest
from conv_definition import PATHS, accumulators, dtype_of, expected, f32, limits

import isobit

if "onnx" in os.environ.get("ISOBIT_REQUIRE", "").split(","):
    import onnx
else:
    onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402
from onnx.backend.test.loader import load_model_tests  # noqa: E402

OF_THREE_DIMENSIONS = {"test_convtranspose_3d", "test_Conv3d", "test_Conv3d_dilated", "test_Conv3d_dilated_strided",
                       "test_Conv3d_groups", "test_Conv3d_no_bias", "test_Conv3d_stride", "test_Conv3d_stride_padding"}
# A family and how many cases of it there are at least.
LEAST = {"convinteger": 2, "qlinearconv": 1, "basic_conv": 2, "conv": 4, "convtranspose": 10, "Conv1d": 8, "Conv2d": 11,
         "ConvTranspose2d": 2, "operator_conv": 1, "operator_convtranspose": 1, "causal_conv_with_state": 11}


@dataclasses.dataclass
class Case:
    name: str
    kind: str  # of its operator
    attributes: dict
    inputs: dict  # by the operator's own names
    outputs: list


def case_of(name, model, inputs, results):
    """None: a test of another operator."""
    nodes = model.graph.node
    if len(nodes) != 1 or nodes[0].op_type not in ("Conv", "ConvInteger", "QLinearConv", "ConvTranspose",
                                                   "CausalConvWithState"):
        return None
    node = nodes[0]
    initialisers = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    given = iter(inputs)
    arrays = {part: initialisers[part] if part in initialisers else next(given) for part in node.input if part}
    names = [formal.name for formal in onnx.defs.get_schema(node.op_type).inputs]
    return Case(name, node.op_type, {a.name: helper.get_attribute_value(a) for a in node.attribute},
                {formal: arrays[part] for formal, part in zip(names, node.input) if part}, results)


def read_tensors(folder, kind):
    count = sum(name.startswith(kind) for name in os.listdir(folder))
    return [numpy_helper.to_array(onnx.load_tensor(os.path.join(folder, f"{kind}_{i}.pb"))) for i in range(count)]


def all_cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other operators' tests divide by 0
        np.random.seed(17)  # node tests make their numbers
        for test in load_model_tests(kind="node"):
            yield case_of(test.name, test.model, *test.data_sets[0])
    for kind in ("pytorch-converted", "pytorch-operator"):
        for test in sorted(load_model_tests(kind=kind), key=lambda test: test.name):
            model, folder = onnx.load(os.path.join(test.model_dir, "model.onnx")), test.model_dir + "/test_data_set_0"
            yield case_of(test.name, model, read_tensors(folder, "input"), read_tensors(folder, "output"))


CASES = [case for case in all_cases() if case]


def family_of(case):
    return next(family for family in sorted(LEAST, key=len, reverse=True)
                if case.name == f"test_{family}" or case.name.startswith(f"test_{family}_"))


def cases_of(*kinds):
    return pytest.mark.parametrize("case", [case for case in CASES
                                            if case.kind in kinds and case.name not in OF_THREE_DIMENSIONS],
                                   ids=lambda case: case.name)


def test_every_family_is_there():
    left_out = {case.name for case in CASES if next(iter(case.inputs.values())).ndim > 4}
    assert left_out == OF_THREE_DIMENSIONS
    count = dict.fromkeys(LEAST, 0)
    for case in CASES:
        if case.name not in OF_THREE_DIMENSIONS:
            count[family_of(case)] += 1
    assert all(count[family] >= least for family, least in LEAST.items()), count


def channels_last(x):
    """[B, H, W, C] of [B, C, H, W] or [B, C, W]."""
    x = x[:, :, None] if x.ndim == 3 else x
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def weights_of(case):
    """[O, R, S, C / groups]."""
    w = case.inputs["w" if "w" in case.inputs else "weight" if "weight" in case.inputs else "W"]
    if case.kind == "ConvTranspose":  # [C, O / groups, R, S]
        groups = case.attributes.get("group", 1)
        w = w.reshape(groups, -1, *w.shape[1:]).swapaxes(1, 2)
        w = w.reshape(-1, *w.shape[2:])
    return channels_last(w)


def arguments_of(case, image):
    """Those of StaticConv for images (H, W)."""
    given, dimensions = case.attributes, next(iter(case.inputs.values())).ndim - 2
    assert set(given) <= {"strides", "dilations", "pads", "group", "auto_pad", "output_padding", "output_shape",
                          "kernel_shape", "activation"}, given

    def axes(name, default):
        """Of rows and columns; one dimension has columns only."""
        return (default,) * (2 - dimensions) + tuple(given.get(name, [default] * dimensions))

    weights, transposed = weights_of(case), case.kind == "ConvTranspose"
    assert tuple(given.get("kernel_shape", weights.shape[3 - dimensions:3])) == weights.shape[3 - dimensions:3]
    strides, dilations, more = axes("strides", 1), axes("dilations", 1), axes("output_padding", 0)
    reached = [d * (k - 1) + 1 for d, k in zip(dilations, weights.shape[1:3])]
    same, pads = given.get("auto_pad", b"NOTSET").decode(), given.get("pads", [0] * (2 * dimensions))
    ends = [(pads[a], pads[dimensions + a]) for a in range(dimensions)]
    ends, more = [(0, 0)] * (2 - dimensions) + ends, list(more)
    if same.startswith("SAME") or "output_shape" in given:
        for axis, size in enumerate(image):
            if transposed:
                wanted = given["output_shape"][axis] if "output_shape" in given else size * strides[axis]
                total = (size - 1) * strides[axis] + more[axis] + reached[axis] - wanted
                more[axis] += max(0, -total)  # ONNX has pads below 0 there
            else:
                total = (-(-size // strides[axis]) - 1) * strides[axis] + reached[axis] - size
            total = max(0, total)
            less = (total // 2, total - total // 2)  # where there is no half, SAME_UPPER has more at the end
            ends[axis] = less if same == "SAME_UPPER" else less[::-1]
    if case.kind == "CausalConvWithState":
        ends[1] = (weights.shape[2] - 1, 0)
    groups = len(weights) if case.kind == "CausalConvWithState" else given.get("group", 1)
    return {"stride": strides, "dilation": dilations, "padding": tuple(ends), "groups": groups,
            "output_padding": tuple(more), "transposed": transposed}


def layers(weights, scales, bias, **arguments):
    for path in PATHS:
        yield isobit.StaticConv.from_codes(weights, scales, bias=bias, path=path, **arguments)


def grid_of(zero_point, scale=1.0, bits=8):
    return {"bits": bits, "signed": zero_point.dtype.kind == "i", "scale": float(scale), "zero_point": int(zero_point)}


@cases_of("ConvInteger")
def test_integers_are_those_of_onnx(case):
    x, z = case.inputs["x"], case.inputs.get("x_zero_point", np.uint8(0))
    zeros = np.reshape(case.inputs.get("w_zero_point", 0), (-1, 1, 1, 1)).astype(int)
    weights = weights_of(case).astype(int) - zeros
    assert np.array_equal(weights, weights.astype(np.int8))
    images = channels_last(x)
    for layer in layers(weights.astype(np.int8), np.ones(len(weights), np.float32), None, input_grid=grid_of(z),
                        **arguments_of(case, images.shape[1:3])):
        assert np.array_equal(layer.run_codes(images), channels_last(case.outputs[0])), layer.path
    if zeros.any():
        with pytest.raises(TypeError, match="weights is u8, must be s8"):
            isobit.StaticConv.from_codes(weights_of(case), np.ones(len(weights), np.float32), input_grid=grid_of(z))


@cases_of("QLinearConv")
def test_codes_are_those_of_onnx(case):
    """Weights down to -255 are halves of two channels that see the same x: -128 and the rest."""
    given = case.inputs
    x_grid, y_grid = (grid_of(given[f"{part}_zero_point"], given[f"{part}_scale"]) for part in "xy")
    weights = weights_of(case).astype(int) - given["w_zero_point"].reshape(-1, 1, 1, 1)
    scales = np.broadcast_to(given["w_scale"], len(weights)).astype(np.float32)
    images, bias = channels_last(given["x"]), given.get("B")
    arguments = {"input_grid": x_grid, "output_grid": y_grid, **arguments_of(case, images.shape[1:3])}
    if not np.array_equal(weights, weights.astype(np.int8)):
        with pytest.raises(TypeError, match="weights is s16, must be s8"):
            isobit.StaticConv.from_codes(weights.astype(np.int16), scales, bias=bias, **arguments)
        assert arguments["groups"] == 1
        part = np.clip(weights, -128, 127)
        weights, images = np.concatenate([part, weights - part], axis=3), np.concatenate([images, images], axis=3)
        assert np.array_equal(weights, weights.astype(np.int8))
    for layer in layers(weights.astype(np.int8), scales, bias, **arguments):
        assert np.array_equal(layer.run_codes(images), channels_last(case.outputs[0])), layer.path


def quantised(w):
    """Codes and scales, one an output."""
    scales = (np.abs(w).max(axis=(1, 2, 3)) / 127).astype(np.float32)
    return np.rint(w / scales.reshape(-1, 1, 1, 1)).astype(np.int8), scales


def grid_around(values, bits, signed=True):
    """From the least to the largest, with a code for 0."""
    least, largest = min(0, values.min()), max(0, values.max())
    grid = {"bits": bits, "signed": signed, "scale": float(np.float32((largest - least) / (2**bits - 1)))}
    return grid | {"zero_point": limits(grid)[0] + round(-least / grid["scale"])}


def codes_of(values, grid):
    return np.clip(np.rint(values / f32(grid)) + grid["zero_point"], *limits(grid)).astype(dtype_of(grid))


def whole(*arrays):
    return all(np.array_equal(a, np.rint(a)) and np.abs(a).max() <= 127 for a in arrays)


def test_cases_of_whole_numbers_are_there():
    assert sum(whole(*case.inputs.values()) for case in CASES if case.kind == "Conv") >= 6
    assert sum(whole(*case.inputs.values()) for case in CASES if case.kind == "ConvTranspose") >= 10


@cases_of("Conv", "ConvTranspose")
def test_shapes_are_those_of_onnx(case):
    x, w, y = channels_last(case.inputs["X"]), weights_of(case), channels_last(case.outputs[0])
    bias = case.inputs.get("B", np.zeros(len(w), np.float32))
    arguments = arguments_of(case, x.shape[1:3])
    ones = np.ones(len(w), np.float32)
    if whole(*case.inputs.values()):
        for z, signed in itertools.product((0, -128, 100, 255), (True, False)):
            grid = {"bits": 8, "signed": signed, "scale": 1.0, "zero_point": z}
            low, high = limits(grid)
            if not low <= z <= high or x.min() + z < low or x.max() + z > high:
                continue
            for layer in layers(w.astype(np.int8), ones, bias.astype(np.int32), input_grid=grid, **arguments):
                assert np.array_equal(layer.run_codes(codes_of(x, grid)), y), (layer.path, z)

    grid, (weights, scales) = grid_around(x, 8), quantised(w)
    codes = codes_of(x, grid)
    whole_bias = np.rint(bias / (f32(grid) * scales.astype(float))).astype(np.int32)
    acc = accumulators(codes, weights, whole_bias, grid, **arguments)
    assert acc.shape == y.shape
    y_grid = grid_around(y, 16)
    wanted = expected(acc, weights, scales, whole_bias, grid, y_grid, None, "nearest_even")
    for layer in layers(weights, scales, whole_bias, input_grid=grid, **arguments):
        assert np.array_equal(layer.run_codes(codes), acc), layer.path
    for layer in layers(weights, scales, whole_bias, input_grid=grid, output_grid=y_grid, **arguments):
        assert np.array_equal(layer.run_codes(codes), wanted), layer.path
    ours = isobit.StaticConv.quantize(w, input_grid=grid, output_grid=y_grid, bias=bias, **arguments)(x)
    assert ours.shape == y.shape and (np.abs(ours - y) <= error_of(x, w, grid, y_grid, arguments)).all()


def error_of(x, w, grid, y_grid, arguments):
    """|x' w' - x w| <= |x| |w' - w| + |x' - x| (|w| + |w' - w|), either apart from its code by half a step at most.
    Then half a step of the bias, a step of y, and what float32 loses."""
    def real(x, w):
        return accumulators(np.ceil(x * 2**20).astype(np.int64), np.ceil(w * 2**20).astype(np.int64), 0, {"bits": 8},
                            **arguments) / 2**40

    half = np.broadcast_to(np.abs(w).max(axis=(1, 2, 3), keepdims=True) / 127 / 2, w.shape)
    by_weights, by_x = real(np.abs(x), half), real(np.full_like(x, f32(grid) / 2), np.abs(w) + half)
    return 1.0001 * (by_weights + by_x) + f32(grid) * half[:, 0, 0, 0] + f32(y_grid)


@cases_of("CausalConvWithState")
def test_streams_are_those_of_onnx(case):
    """The state that a case begins with is a chunk before x. isobit has no SiLU in a layer: it follows in floats."""
    x, w = channels_last(case.inputs["input"].astype(np.float32)), weights_of(case).astype(np.float32)
    y, kernel = channels_last(case.outputs[0].astype(np.float32)), w.shape[2]
    bias = case.inputs.get("bias", np.zeros(len(w))).astype(np.float32)
    before = np.zeros((len(x), 1, kernel - 1, x.shape[3]), np.float32)
    if "past_state" in case.inputs:
        before = channels_last(case.inputs["past_state"].astype(np.float32))
    seen = np.concatenate([before, x], axis=2)
    assert np.array_equal(seen[:, :, seen.shape[2] - (kernel - 1):], channels_last(case.outputs[1]))

    arguments, grid, (weights, scales) = arguments_of(case, x.shape[1:3]), grid_around(seen, 8), quantised(w)
    codes, no_pads = codes_of(seen, grid), arguments | {"padding": 0}
    whole_bias = np.rint(bias / (f32(grid) * scales.astype(float))).astype(np.int32)
    acc = accumulators(codes, weights, whole_bias, grid, **no_pads)
    y_grid = grid_around(acc * (f32(grid) * scales.astype(float)), 16)
    wanted = expected(acc, weights, scales, whole_bias, grid, y_grid, None, "nearest_even")
    for layer in layers(weights, scales, whole_bias, input_grid=grid, output_grid=y_grid, **arguments):
        stream = isobit.StaticConvStream(layer)
        state = stream.state(len(x), seen.shape[2])
        stream.run_codes(codes[:, 0, :kernel - 1], state)
        parts = [stream.run_codes(codes[:, 0, at:at + 1], state) for at in range(kernel - 1, seen.shape[2])]
        assert np.array_equal(np.concatenate(parts, axis=1), wanted[:, 0]), layer.path

    ours, limit = (wanted - y_grid["zero_point"]) * f32(y_grid), error_of(seen, w, grid, y_grid, no_pads)
    activation = case.attributes.get("activation", b"none").decode()
    assert activation in ("none", "silu", "swish")
    if activation != "none":  # whose slope is below 1.1
        ours, limit = ours / (1 + np.exp(-ours)), 1.1 * limit
    if case.outputs[0].dtype == np.float16:
        limit = limit + np.abs(y) / 1000
    assert ours.shape == y.shape and (np.abs(ours - y) <= limit).all()
