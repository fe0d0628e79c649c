# SPDX-License-Identifier: Apache-2.0
"""Convolutions, streams and pools of codes, beside section 12 of docs/numerics.md in numpy."""
import itertools

import numpy as np
import pytest
from conv_definition import accumulators, both_pads, dtype_of, expected, f32, limits, reach, rescaled, two, zero

import isobit

RANDOM = np.random.default_rng(7)
TYPES = {"s8": np.int8, "u8": np.uint8, "s16": np.int16, "u16": np.uint16}
X = {"bits": 8, "signed": True, "scale": 0.037, "zero_point": -5}
Y = {"bits": 8, "signed": True, "scale": 0.9, "zero_point": 11}
ADDED = {"bits": 8, "signed": True, "scale": 0.31, "zero_point": -128}
ROUNDINGS = ("nearest_even", "nearest_up", "nearest_away", "floor")


def codes(grid, *shape):
    low, high = limits(grid)
    return RANDOM.integers(low, high + 1, shape).astype(dtype_of(grid))


def numbers_of(outputs, kernel, group_channels):
    weights = RANDOM.integers(-128, 128, (outputs, *kernel, group_channels)).astype(np.int8)
    return (weights, RANDOM.uniform(0.002, 0.02, outputs).astype(np.float32),
            RANDOM.integers(-3000, 3000, outputs).astype(np.int32))


#   channels, outputs, kernel, image, arguments
SHAPES = {
    "one pixel": (3, 4, (1, 1), (4, 5), {}),
    "same, stride 2, as TFLite": (3, 5, (3, 3), (8, 8), {"stride": 2, "padding": ((0, 1), (0, 1))}),
    "four pads": (4, 6, (3, 2), (5, 6), {"padding": ((2, 0), (1, 3)), "stride": (1, 2)}),
    "dilation": (2, 3, (3, 3), (9, 10), {"dilation": (2, 3), "padding": (1, 2)}),
    "groups": (6, 9, (3, 3), (5, 5), {"groups": 3, "padding": 1}),
    "depthwise": (20, 20, (3, 3), (6, 7), {"groups": 20, "padding": 1, "stride": 2}),
    "depthwise, multiplier": (4, 12, (2, 3), (5, 5), {"groups": 4, "padding": (0, 1)}),
    "transposed": (3, 4, (3, 2), (4, 3), {"transposed": True, "stride": (2, 3), "padding": ((1, 0), (0, 1)),
                                          "output_padding": (1, 2)}),
    "transposed, groups": (4, 4, (2, 2), (3, 3), {"transposed": True, "stride": 2, "groups": 2, "dilation": 2}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_the_definition(name):
    channels, outputs, kernel, image, arguments = SHAPES[name]
    groups = arguments.get("groups", 1)
    weights, scales, bias = numbers_of(outputs, kernel, channels // groups)
    x = codes(X, 2, *image, channels)
    acc = accumulators(x, weights, bias, X, **arguments)
    sums = isobit.StaticConv.from_codes(weights, scales, input_grid=X, bias=bias, **arguments)
    assert sums.output_shape(image) == acc.shape[1:3] and sums.output_grid is None
    y = sums.run_codes(x)
    assert y.dtype == np.int32 and np.array_equal(y, acc)
    for mode, clamp in zip(ROUNDINGS, (None, (0, 6), (-3, float("inf")), (0, 40))):
        wanted = expected(acc, weights, scales, bias, X, Y, clamp, mode)
        assert len(np.unique(wanted)) > 4
        layer = isobit.StaticConv.from_codes(weights, scales, input_grid=X, output_grid=Y, bias=bias, clamp=clamp,
                                             rounding=mode, **arguments)
        assert np.array_equal(layer.run_codes(x), wanted)
    reference = isobit.StaticConv.from_codes(weights, scales, input_grid=X, output_grid=Y, bias=bias, clamp=(0, 40),
                                             rounding="floor", path="reference", **arguments)
    assert reference.path == "reference" and np.array_equal(reference.run_codes(x), wanted)
    out = np.empty(wanted.shape, np.int8)
    assert layer.run_codes(x, out=out, pool=isobit.ThreadPool(2)) is out and np.array_equal(out, wanted)


@pytest.mark.parametrize("x_grid, y_grid", [
    ({"bits": 8, "signed": False, "scale": 0.25, "zero_point": 200}, {"bits": 16, "scale": 0.01}),
    ({"bits": 12, "scale": 0.03, "zero_point": -77}, {"bits": 5, "signed": False, "scale": 40.0, "zero_point": 9}),
    ({"bits": 16, "signed": False, "scale": 2.0**-9}, {"bits": 8, "scale": 3.5, "zero_point": 127}),
])
def test_grids_are_the_definition(x_grid, y_grid):
    weights, scales, bias = numbers_of(5, (3, 3), 4)
    x = codes(x_grid, 2, 5, 6, 4)
    layer = isobit.StaticConv.from_codes(weights, scales, input_grid=x_grid, output_grid=y_grid, bias=bias, padding=1)
    acc = accumulators(x, weights, bias, x_grid, padding=1)
    y = layer.run_codes(x)
    assert y.dtype == dtype_of(y_grid)
    assert np.array_equal(y, expected(acc, weights, scales, bias, x_grid, y_grid, None, "nearest_even"))
    assert layer.output_grid["zero_point"] == zero(y_grid) and TYPES[layer.input_grid["dtype"]] == dtype_of(x_grid)
    again = isobit.StaticConv.from_codes(weights, scales, input_grid=layer.input_grid, output_grid=layer.output_grid,
                                         bias=bias, padding=1)
    assert again.input_grid == layer.input_grid and again.output_grid == layer.output_grid


@pytest.mark.parametrize("mode", ROUNDINGS)
def test_a_residual_is_added_before_the_clamp(mode):
    weights, scales, bias = numbers_of(6, (3, 3), 5)
    x, added = codes(X, 2, 4, 6, 5), codes(ADDED, 2, 4, 6, 6)
    layer = isobit.StaticConv.from_codes(weights, scales, input_grid=X, output_grid=Y, bias=bias, padding=1,
                                         clamp=(0, 50), residual_grid=ADDED, rounding=mode)
    acc = accumulators(x, weights, bias, X, padding=1)
    wanted = expected(acc, weights, scales, bias, X, Y, (0, 50), mode, added, ADDED)
    assert np.array_equal(layer.run_codes(x, added), wanted)
    assert np.array_equal(layer.run_codes(x, residual=added), wanted) and layer.residual_grid["zero_point"] == -128


def test_one_row_is_three_dimensions():
    weights, scales, bias = numbers_of(6, (1, 3), 4)
    layer = isobit.StaticConv.from_codes(weights, scales, input_grid=X, output_grid=Y, bias=bias, padding=(0, 1))
    x = codes(X, 2, 1, 9, 4)
    assert np.array_equal(layer.run_codes(x[:, 0]), layer.run_codes(x)[:, 0])
    pool = isobit.StaticPool("max", (1, 3), input_grid=X)
    assert np.array_equal(pool.run_codes(x[:, 0]), pool.run_codes(x)[:, 0])


def numbers(q, grid):
    return (q.astype(np.float32) - np.float32(zero(grid))) * np.float32(grid["scale"])


@pytest.mark.parametrize("bits, error", [(8, 0.02), (4, 0.25), (1, 1.0)])
def test_floats_become_a_layer(bits, error):
    weights = RANDOM.normal(0, 0.3, (7, 3, 3, 4)).astype(np.float32)
    bias = RANDOM.normal(0, 1, 7).astype(np.float32)
    y_grid = {"bits": 16, "scale": 0.001}
    made = isobit.StaticConv.quantize(weights, input_grid=X, output_grid=y_grid, bias=bias, padding=1, clamp=(-4, 5),
                                      weight_bits=bits, method="mse" if bits > 1 else "absmax")
    x = numbers(codes(X, 2, 6, 6, 4), X)
    exact = np.zeros((2, 6, 6, 7)) + bias
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    for r, s in itertools.product(range(3), range(3)):
        exact += padded[:, r:r + 6, s:s + 6] @ weights[:, r, s].T.astype(np.float64)
    y = made(x)
    assert y.dtype == np.float32 and y.max() <= 5 and y.min() >= -4
    difference = np.abs(y - np.clip(exact, -4, 5))
    assert np.sqrt(np.mean(difference**2)) < error * exact.std()
    inside = made.run_codes(np.rint(x / np.float32(X["scale"]) + zero(X)).astype(np.int8))
    assert np.array_equal(numbers(inside, y_grid), y)


def test_floats_with_a_residual():
    weights = RANDOM.normal(0, 0.3, (3, 1, 1, 3)).astype(np.float32)
    layer = isobit.StaticConv.quantize(weights, input_grid=X, output_grid=Y, residual_grid=ADDED)
    x, added = codes(X, 1, 4, 4, 3), codes(ADDED, 1, 4, 4, 3)
    y = layer(numbers(x, X), numbers(added, ADDED))
    assert np.array_equal(y, numbers(layer.run_codes(x, added), Y))


@pytest.mark.parametrize("kernel, stride, dilation, left, groups", [
    (5, 1, 1, 4, 1), (3, 1, 4, 8, 1), (5, 3, 1, 2, 1), (9, 1, 1, 8, 6), (4, 2, 2, 5, 1), (1, 1, 1, 0, 1)])
def test_chunks_are_the_whole(kernel, stride, dilation, left, groups):
    weights, scales, bias = numbers_of(6, (1, kernel), 6 // groups)
    layer = isobit.StaticConv.from_codes(weights, scales, input_grid=X, output_grid=Y, bias=bias, stride=(1, stride),
                                         dilation=(1, dilation), padding=((0, 0), (left, 0)), groups=groups,
                                         residual_grid=ADDED)
    x = codes(X, 2, 24 * stride, 6)
    added = codes(ADDED, 2, 24, 6)
    whole = layer.run_codes(x, added)
    acc = accumulators(x[:, None], weights, bias, X, stride=(1, stride), dilation=(1, dilation),
                       padding=((0, 0), (left, 0)), groups=groups)
    assert np.array_equal(whole, expected(acc, weights, scales, bias, X, Y, None, "nearest_even", added[:, None],
                                          ADDED)[:, 0])
    stream = isobit.StaticConvStream(layer)
    state = stream.state(2, 10 * stride)
    assert state.batch == 2 and state.columns == 10 * stride
    parts, at, before = [], 0, None
    for columns in (1, 7, 0, 10, 6):
        before = state.copy()
        chunk = slice(at * stride, (at + columns) * stride)
        parts.append(stream.run_codes(x[:, chunk], state, added[:, at:at + columns], pool=isobit.ThreadPool(2)))
        at += columns
    assert at == 24 and np.array_equal(np.concatenate(parts, axis=1), whole)
    again = stream.run_codes(x[:, -6 * stride:], before, added[:, -6:])  # the copy holds what was seen when it was made
    assert np.array_equal(again, parts[-1])


@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("window, stride, padding, counts_outside", [
    (2, None, 0, False), ((3, 2), (2, 1), ((1, 0), (0, 1)), False), (3, 2, 1, True), ((5, 4), 1, 0, False)])
def test_pools_are_the_definition(kind, window, stride, padding, counts_outside):
    x = codes(X, 2, 5, 6, 3)
    y_grid = X if kind == "max" else {"bits": 8, "scale": 0.021, "zero_point": 3}
    pool = isobit.StaticPool(kind, window, stride=stride, padding=padding, input_grid=X, output_grid=y_grid,
                             counts_outside=counts_outside)
    sides, pads = two(window), both_pads(padding)
    steps = sides if stride is None else two(stride)
    shape = pool.output_shape((5, 6))
    assert shape == tuple((x.shape[1 + a] + sum(pads[a]) - sides[a]) // steps[a] + 1 for a in (0, 1))
    wanted = np.empty((2, *shape, 3), np.int64)
    for p, q in itertools.product(*map(range, shape)):
        rows, columns = ([i for i in range(o * steps[a] - pads[a][0], o * steps[a] - pads[a][0] + sides[a])
                          if 0 <= i < x.shape[1 + a]] for a, o in enumerate((p, q)))
        inside = x[:, rows][:, :, columns].astype(np.int64).reshape(2, -1, 3)
        if kind == "max":
            wanted[:, p, q] = inside.max(axis=1)
            continue
        n = sides[0] * sides[1] if counts_outside else inside.shape[1]
        mean = rescaled((inside - zero(X)).sum(axis=1), f32(X) / (n * f32(y_grid)), n * reach(X), "nearest_even")
        wanted[:, p, q] = np.clip(mean + zero(y_grid), *limits(y_grid))
    y = pool.run_codes(x)
    assert y.dtype == np.int8 and np.array_equal(y, wanted)
    out = np.empty_like(y)
    assert pool.run_codes(x, out=out, pool=isobit.ThreadPool(2)) is out and np.array_equal(out, wanted)


def test_layers_are_saved(tmp_path):
    layers = []
    for name, options in [("b", {"padding": ((0, 1), (2, 3)), "residual_grid": ADDED}),
                          ("a", {"groups": 2, "stride": 2}),
                          ("c", {"transposed": True, "stride": 2, "output_padding": 1, "rounding": "nearest_up"})]:
        weights, scales, bias = numbers_of(6, (3, 3), 4 // options.get("groups", 1))
        layers.append(isobit.StaticConv.from_codes(weights, scales, input_grid=X, output_grid=Y, bias=bias, name=name,
                                                   **options))
    isobit.StaticConv.save_all(tmp_path / "all.safetensors", layers)
    layers[1].save(tmp_path / "one.safetensors")
    loaded = isobit.StaticConv.load_all(tmp_path / "all.safetensors")
    assert [layer.name for layer in loaded] == ["b", "a", "c"] == [layer.name for layer in layers]
    x = codes(X, 1, 7, 7, 4)
    for layer, again in zip(layers, loaded):
        added = codes(ADDED, 1, *layer.output_shape((7, 7)), 6) if layer.residual_grid else None
        y = layer.run_codes(x, added)
        assert np.array_equal(again.run_codes(x, added), y) and again.residual_grid == layer.residual_grid
    for again in (isobit.StaticConv.load(tmp_path / "one.safetensors"),
                  isobit.StaticConv.load(tmp_path / "all.safetensors", "a")):
        assert np.array_equal(again.run_codes(x), layers[1].run_codes(x))
    with pytest.raises(isobit.InvalidArgumentError, match="'b'"):
        isobit.StaticConv.save_all(tmp_path / "twice.safetensors", [layers[0], layers[0]])


def test_refusals():
    weights, scales, bias = numbers_of(4, (1, 3), 2)
    given = {"input_grid": X, "output_grid": Y}
    make, stream, pool = isobit.StaticConv.from_codes, isobit.StaticConvStream, isobit.StaticPool
    layer = make(weights, scales, padding=((0, 0), (2, 0)), **given)
    with_residual = make(weights, scales, residual_grid=ADDED, **given)
    x = codes(X, 1, 2, 5, 2)
    narrow = make(weights, scales, input_grid={"bits": 5, "scale": 1.0}, output_grid=Y)
    state = stream(layer).state(1, 4)
    for call, error, message in [
        (lambda: make(weights[0], scales, **given), ValueError, r"weights has shape \[1, 3, 2\], must be \[O, R, S, C"),
        (lambda: make(weights.astype("i2"), scales, **given), TypeError, "weights is s16, must be s8"),
        (lambda: make(weights, scales[1:], **given), ValueError, r"scales has the shape \(3,\), must have \(4,\)"),
        (lambda: make(weights, -scales, **given), ValueError, r"layer: scales\[0\] is -.*, must be positive"),
        (lambda: make(weights, scales, bias=bias.astype("f4"), **given), TypeError, "bias is f32, must be s32"),
        (lambda: make(weights, scales, clamp=(6, 0), **given), ValueError, "clamp.lo is 6, must be at most"),
        (lambda: make(weights, scales, clamp=(0, 6), input_grid=X), ValueError, "must be none without an output grid"),
        (lambda: make(weights, scales, groups=3, **given), ValueError, "layer: .*groups is 3"),
        (lambda: make(weights, scales, groups=2**62, **given), ValueError, "groups is 4611686018427387904, must be"),
        (lambda: make(weights, scales, stride=0, **given), ValueError, "stride is 0"),
        (lambda: make(weights, scales, padding=-1, **given), ValueError, "pad_before is -1"),
        (lambda: make(weights, scales, output_padding=1, **given), ValueError, "more is 1"),
        (lambda: make(weights, scales, rounding="up", **given), ValueError, "rounding is 'up', must be one of"),
        (lambda: make(weights, scales, path="mmx", **given), ValueError, "path is 'mmx', must be one of"),
        (lambda: make(weights, scales, input_grid={"bits": 8}), ValueError, "input_grid has no 'scale'"),
        (lambda: make(weights, scales, input_grid=X | {"zero": 1}), ValueError, "input_grid has 'zero', must have"),
        (lambda: make(weights, scales, input_grid=X | {"bits": "8"}), TypeError, r"input_grid\['bits'\] is str"),
        (lambda: make(weights, scales, input_grid=X | {"dtype": "u8"}), ValueError, "is 'u8', must be 's8'"),
        (lambda: make(weights, scales, input_grid=X | {"zero_point": 128}), ValueError, "input_grid: zero point is"),
        (lambda: make(weights, scales, input_grid=X | {"bits": 17}), ValueError, "bits is 17, must be 2..16"),
        (lambda: make(weights, scales, input_grid=X, residual_grid=ADDED), ValueError, "None without an output_grid"),
        (lambda: isobit.StaticConv.quantize(weights, **given), TypeError, "weights is s8, must be f32"),
        (lambda: isobit.StaticConv.quantize(weights.astype("f4"), weight_bits=3, **given), ValueError, "bits is 3"),
        (lambda: layer.run_codes(x[..., :1]), ValueError, r"x has shape \[1, 2, 5, 1\], must be \[B, H, W, 2\]"),
        (lambda: layer.run_codes(x.view("u1")), TypeError, "x is u8, must be s8"),
        (lambda: layer.run_codes(x, x), ValueError, "residual is given, must be None"),
        (lambda: with_residual.run_codes(x), ValueError, "residual is None, must be given"),
        (lambda: with_residual.run_codes(x, x), ValueError, r"residual has shape .*, must be \[1, 2, 3, 4\], as y"),
        (lambda: layer.run_codes(x, out=np.empty((1, 2, 5, 4), "i2")), TypeError, "out is s16, must be s8"),
        (lambda: narrow.run_codes(x * 0 + 16), ValueError, r"x\[0, 0\] is 16, must be -16..15"),
        (lambda: make(weights, scales, padding=(1, 0), **given).run_codes(x[:, 0]), ValueError, "y would have 3"),
        (lambda: make(weights, scales, input_grid=X)(numbers(x, X)), ValueError, "no output grid"),
        (lambda: stream(with_residual), ValueError, "columns.pad_before is 0, must be 2..2"),
        (lambda: stream(layer).run_codes(x[:, 0, :4], state), ValueError, "state was made by another stream"),
        (lambda: stream(layer).state(0, 4), ValueError, "images is 0"),
        (lambda: pool("least", 2, input_grid=X), ValueError, "kind is 'least', must be one of max, average"),
        (lambda: pool("max", 2, input_grid=X, output_grid=Y), ValueError, "another grid"),
        (lambda: pool("max", 2, padding=2, input_grid=X), ValueError, "pad of 2, must be smaller"),
        (lambda: pool("max", 9, input_grid=X).run_codes(x), ValueError, "9"),
    ]:
        with pytest.raises(error, match=message):
            call()
    same = stream(layer)
    state = same.state(1, 4)
    with pytest.raises(ValueError, match="columns is 5, must be 0 to 4"):
        same.run_codes(x[:, 0], state)


def taps(x, kernel, stride, pad):
    """Rows [B, P, Q, R * S * C] of x [B, H, W, C]."""
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    P, Q = ((size + 2 * pad - kernel) // stride + 1 for size in x.shape[1:3])
    return np.concatenate([padded[:, r:r + stride * (P - 1) + 1:stride, s:s + stride * (Q - 1) + 1:stride]
                           for r in range(kernel) for s in range(kernel)], axis=-1)


@pytest.mark.parametrize("activations", ["int8", "int8_asymmetric", "float"])
@pytest.mark.parametrize("bits, kind", [(8, "symmetric"), (4, "zero_point"), (2, "offset")])
def test_floats_are_linear_layers_on_pixels(activations, bits, kind):
    """Groups of 8 channels: rows of pixels behind each other are rows of a linear layer."""
    w = RANDOM.normal(0, 0.2, (5, 3, 3, 16)).astype("f4")
    x = RANDOM.normal(0, 1, (2, 6, 7, 16)).astype("f4")
    bias = RANDOM.normal(0, 1, 5).astype("f4")
    conv = isobit.Conv.quantize(w, bits=bits, group=8, kind=kind, activations=activations, bias=bias, clamp=(-1, 3),
                                stride=2, padding=1)
    rows = isobit.LowBit.quantize(w.reshape(5, -1), bits=bits, group=8, kind=kind)
    linear = isobit.Linear(rows, activations=activations, bias=bias, clamp=(-1, 3))
    y = conv(x)
    assert conv.output_shape((6, 7)) == y.shape[1:3] == (3, 4)
    np.testing.assert_array_equal(y, linear(taps(x, 3, 2, 1)))
    assert conv(x.astype("f2")).dtype == np.float16
    np.testing.assert_array_equal(conv(x, pool=isobit.ThreadPool(2)), y)


def test_floats_with_one_scale_an_image():
    w = RANDOM.integers(-3, 4, (4, 3, 3, 3)).astype("f4")
    w[:, 0, 0, 0] = 127  # so that 8 bits hold the weights
    x = RANDOM.normal(0, 1, (2, 5, 5, 3)).astype("f4")
    conv = isobit.Conv.quantize(w, activations="int8_per_image", padding=1)
    expected = []
    for image in x:
        largest = np.abs(image).max()
        scale, inverse = np.float32(largest / np.float32(127)), np.float32(127) / largest
        a = np.clip(np.rint(image * inverse), -127, 127).astype(np.int64)
        d = taps(a[None], 3, 1, 1) @ w.reshape(4, -1).T.astype(np.int64)
        expected.append(d[0].astype(np.float32) * scale)
    np.testing.assert_array_equal(conv(x), np.stack(expected))


@pytest.mark.parametrize("group, kind", [(None, "symmetric"), (8, "offset")])
def test_floats_are_the_commands(command, tmp_path, group, kind):
    w = RANDOM.normal(0, 0.2, (6, 3, 2, 8)).astype("f4")
    x, bias = RANDOM.normal(0, 1, (2, 6, 7, 16)).astype("f4"), RANDOM.normal(0, 1, 6).astype("f4")
    np.savez(tmp_path / "model.npz", w=w.transpose(0, 3, 1, 2), b=bias)  # as PyTorch has it
    np.save(tmp_path / "x.npy", x.transpose(0, 3, 1, 2))
    form = {"bits": 4, "group": group or 0, "kind": kind, "weight_layout": "oihw"}
    isobit.pack(tmp_path / "model.npz", tmp_path / "python.safetensors", **form)
    command("pack", tmp_path / "model.npz", "-o", tmp_path / "w.safetensors", "--bits", 4, "--group", group or 0,
            "--kind", kind, "--weight-layout", "oihw")
    assert (tmp_path / "python.safetensors").read_bytes() == (tmp_path / "w.safetensors").read_bytes()
    for activations in ("float", "int8", "int8_asymmetric"):
        layer = isobit.Conv.quantize(w, bits=4, group=group, kind=kind, activations=activations, bias=bias,
                                     clamp=(0, 6), stride=(2, 1), padding=((1, 0), (0, 2)), dilation=(1, 2), groups=2)
        command("conv", tmp_path / "w.safetensors", tmp_path / "x.npy", "-o", tmp_path / "y.npy", "--activations",
                activations, "--bias", "b", "--clamp", "relu6", "--stride", "2,1", "--padding", "1,0,0,2", "--dilation",
                "1,2", "--groups", 2, "--layout", "nchw")
        assert np.load(tmp_path / "y.npy").tobytes() == layer(x).transpose(0, 3, 1, 2).tobytes()


def test_floats_refusals():
    w = np.ones((2, 3, 3, 4), "f4")
    conv = isobit.Conv.quantize(w)
    x = np.ones((1, 4, 4, 4), "f4")
    x[0, 1, 2, 3] = np.nan
    with pytest.raises(isobit.InvalidArgumentError, match=r"x\[0, 1, 2\] has a NaN"):
        conv(x)
    assert np.isnan(isobit.Conv.quantize(w, activations="float")(x)).any()
    with pytest.raises(isobit.InvalidArgumentError, match="must be one of float, int8, int8_asymmetric, int8_per"):
        isobit.Conv.quantize(w, activations="static")
    with pytest.raises(isobit.InvalidArgumentError, match="kind is offset, must be symmetric for int8_per_image"):
        isobit.Conv.quantize(w, kind="offset", activations="int8_per_image")
    with pytest.raises(isobit.InvalidArgumentError, match=r"weights has shape \[2, 36\], must be \[O, R, S, C"):
        isobit.Conv.quantize(w.reshape(2, 36))
    with pytest.raises(isobit.InvalidArgumentError, match="group is 0, must be at least 1, or None"):
        isobit.Conv.quantize(w, group=0)
    with pytest.raises(isobit.InvalidArgumentError, match="groups is 3, must be 1 to 2, the output channels"):
        isobit.Conv.quantize(w, groups=3)
    with pytest.raises(isobit.InvalidArgumentError, match=r"x has shape \[4, 4\]"):
        conv(np.ones((4, 4), "f4"))
