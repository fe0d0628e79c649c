# SPDX-License-Identifier: Apache-2.0
"""Convolutions where others went wrong, on every instruction set of this processor, beside section 12 of
docs/numerics.md. A comment names a public issue of the fault.

Not here:
* more than 2^31 codes (pytorch#80020): x and y would take 4 GB.
* the time of grouped and depthwise layers (TensorRT#4529, litert-torch#1211): scripts/bench.sh times it. Their bytes
  are here.
* pointers that a device's copies do not take (cutlass#1911, #978): tests of src/conv/cuda/. What Python takes of
  strides and alignment is here.
"""
import fractions
import itertools
import math

import numpy as np
import pytest
from conv_definition import PATHS, accumulators, dtype_of, expected, f32, limits, zero

import isobit

X = {"bits": 8, "scale": 0.037, "zero_point": -128}
Y = {"bits": 8, "scale": 0.9, "zero_point": 11}
BYTES = {"bits": 8, "signed": False, "scale": 0.02, "zero_point": 200}


def codes(random, grid, *shape):
    low, high = limits(grid)
    return random.integers(low, high + 1, shape).astype(dtype_of(grid))


def s8(random, *shape):
    return random.integers(-128, 128, shape).astype(np.int8)


def ones(weights):
    return np.ones(len(weights), np.float32)


def sums(x, weights, bias=0, grid=X, **arguments):
    """The accumulators, the same of every path and as defined."""
    bias = np.broadcast_to(np.int32(bias), len(weights))
    wanted = accumulators(x, weights, bias, grid, **arguments)
    for path in PATHS:
        layer = isobit.StaticConv.from_codes(weights, ones(weights), input_grid=grid, bias=bias, path=path, **arguments)
        acc = layer.run_codes(x)
        assert acc.shape == wanted.shape and layer.output_shape(x.shape[1:3]) == wanted.shape[1:3]
        assert np.array_equal(acc, wanted), path
    return wanted


def outputs(x, weights, scales, *, bias=0, grid=X, y_grid=Y, clamp=None, rounding="nearest_even", added=None,
            residual_grid=None, **arguments):
    """The codes, the same of every path and as defined."""
    bias = np.broadcast_to(np.int32(bias), len(weights))
    scales = np.broadcast_to(np.float32(scales), len(weights))
    wanted = expected(accumulators(x, weights, bias, grid, **arguments), weights, scales, bias, grid, y_grid, clamp,
                      rounding, added, residual_grid)
    for path in PATHS:
        layer = isobit.StaticConv.from_codes(weights, scales, input_grid=grid, output_grid=y_grid, bias=bias,
                                             clamp=clamp, rounding=rounding, residual_grid=residual_grid, path=path,
                                             **arguments)
        assert np.array_equal(layer.run_codes(x, added), wanted), path
    return wanted


# oneDNN#5080: rows copied for padding without the shift of 128.
@pytest.mark.parametrize("channels, groups", [(3, 1), (16, 1), (64, 1), (66, 3), (32, 32)])
@pytest.mark.parametrize("kernel, pad", [(3, 1), (5, 2), (2, 1)])
def test_border_columns_at_the_lowest_zero_point(channels, groups, kernel, pad):
    random = np.random.default_rng(1)
    weights = s8(random, 2 * channels if groups == channels else 33 * groups, kernel, kernel, channels // groups)
    scales = random.uniform(0.001, 0.01, len(weights))
    for columns in (1, 2, 7, 18):
        x = codes(random, X, 1, 3, columns, channels)
        sums(x, weights, 77, padding=pad, groups=groups)
        outputs(x, weights, scales, padding=pad, groups=groups)


# TVM#4807: pads of 0.
@pytest.mark.parametrize("grid", [X, X | {"zero_point": 127}, BYTES, BYTES | {"zero_point": 0},
                                  {"bits": 16, "scale": 0.001, "zero_point": -32768},
                                  {"bits": 12, "signed": False, "scale": 0.1, "zero_point": 4095}])
@pytest.mark.parametrize("groups", [1, 5])
def test_pads_are_pixels_of_the_zero_point(grid, groups):
    random = np.random.default_rng(2)
    weights, x = s8(random, 10, 3, 2, 5 // groups), codes(random, grid, 2, 4, 5, 5)
    pads = ((4, 1), (0, 5))  # more than the kernel covers: some outputs see no pixel
    padded = np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=zero(grid))
    acc = sums(x, weights, 5, grid, padding=pads, groups=groups)
    assert np.array_equal(acc, sums(padded, weights, 5, grid, groups=groups))
    assert (acc[:, :2] == 5).all() and (acc[:, :, 5:] == 5).all() and (acc[:, 3:4, :3] != 5).any()


# TVM#13364: the zero point is folded into the bias as if every tap were inside.
@pytest.mark.parametrize("groups", [1, 8])
def test_the_folded_zero_point_counts_the_taps_inside_only(groups):
    random = np.random.default_rng(3)
    weights, bias = s8(random, 8, 3, 3, 8 // groups), random.integers(-999, 999, 8).astype(np.int32)
    x = np.full((1, 4, 6, 8), zero(X) + 3, np.int8)
    acc = sums(x, weights, bias, padding=1, groups=groups)
    for p, q in itertools.product(range(4), range(6)):
        rows = slice(1 if p == 0 else 0, 2 if p == 3 else 3)
        columns = slice(1 if q == 0 else 0, 2 if q == 5 else 3)
        assert np.array_equal(acc[0, p, q], 3 * weights[:, rows, columns].sum(axis=(1, 2, 3), dtype=int) + bias)


# MNN#155.
@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("dilation", [(1, 3), (3, 1), (2, 5)])
def test_dilations_of_rows_and_of_columns_differ(groups, dilation):
    random = np.random.default_rng(4)
    weights, x = s8(random, 12, 3, 3, 6 // groups), codes(random, X, 1, 13, 13, 6)
    y = sums(x, weights, dilation=dilation, padding=dilation, groups=groups)
    turned = sums(x.swapaxes(1, 2).copy(), weights.swapaxes(1, 2).copy(), dilation=dilation[::-1],
                  padding=dilation[::-1], groups=groups)
    assert np.array_equal(y, turned.swapaxes(1, 2))
    assert not np.array_equal(y, sums(x, weights, dilation=dilation[::-1], padding=dilation[::-1], groups=groups))


# ncnn#315.
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_layers_are_dense_ones_of_zeros(dilation, stride):
    random = np.random.default_rng(5)
    weights, x = s8(random, 20, 3, 3, 1), codes(random, X, 1, 9, 10, 20)
    dense = np.zeros((20, 3, 3, 20), np.int8)
    dense[np.arange(20), :, :, np.arange(20)] = weights[..., 0]
    arguments = {"dilation": dilation, "stride": stride, "padding": dilation}
    assert np.array_equal(sums(x, weights, groups=20, **arguments), sums(x, dense, **arguments))


# ncnn#1283: of 3 x 3 at stride 2 the wrong pixel.
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("size", [7, 8])
def test_an_output_of_same_at_stride_2_reads_these_pixels(groups, size):
    before = (math.ceil(size / 2) * 2 + 1 - size) // 2
    after = math.ceil(size / 2) * 2 + 1 - size - before
    weights = np.broadcast_to(np.arange(1, 10, dtype=np.int8).reshape(1, 3, 3, 1), (4, 3, 3, 4 // groups)).copy()
    for i, j in itertools.product(range(size), range(size)):
        x = np.full((1, size, size, 4), zero(X), np.int8)
        x[0, i, j] += 1
        wanted = np.zeros((math.ceil(size / 2),) * 2, int)
        for p, q in itertools.product(range(len(wanted)), repeat=2):
            r, s = i + before - 2 * p, j + before - 2 * q
            if 0 <= r < 3 and 0 <= s < 3:
                wanted[p, q] = (3 * r + s + 1) * (4 // groups)
        acc = sums(x, weights, stride=2, padding=((before, after), (before, after)), groups=groups)
        assert np.array_equal(acc[0], np.repeat(wanted[..., None], 4, axis=2))


# executorch#20558, #18783: even kernels, and pads of rows for those of columns.
@pytest.mark.parametrize("kernel", [2, 4, 8])
@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("groups", [1, 6])
def test_even_kernels_of_one_dimension_keep_the_length(kernel, dilation, groups):
    random = np.random.default_rng(6)
    weights, x = s8(random, 6, 1, kernel, 6 // groups), codes(random, X, 2, 1, 17, 6)
    more = dilation * (kernel - 1)
    for left in (more // 2, more - more // 2):
        arguments = {"dilation": (1, dilation), "padding": ((0, 0), (left, more - left)), "groups": groups}
        acc = sums(x, weights, **arguments)
        assert acc.shape == (2, 1, 17, 6)
        layer = isobit.StaticConv.from_codes(weights, ones(weights), input_grid=X, **arguments)
        assert np.array_equal(layer.run_codes(x[:, 0]), acc[:, 0])
        rows = sums(x.swapaxes(1, 2).copy(), weights.swapaxes(1, 2).copy(), dilation=(dilation, 1),
                    padding=((left, more - left), (0, 0)), groups=groups)
        assert np.array_equal(rows.swapaxes(1, 2), acc)


# executorch#18462, ORT#10649: ReLU at the code 0, or left out where z > 0. TF#53859: a bound outside the grid.
@pytest.mark.parametrize("y_grid", [Y, Y | {"zero_point": -128}, Y | {"zero_point": 127},
                                    {"bits": 8, "signed": False, "scale": 0.9, "zero_point": 60}])
def test_relu_is_the_zero_point_and_a_clamp_may_lie_outside_the_grid(y_grid):
    random = np.random.default_rng(7)
    grid = X | {"zero_point": 5}
    weights, x = s8(random, 5, 3, 3, 4), codes(random, grid, 2, 5, 5, 4)
    low, high = limits(y_grid)
    z, inf = zero(y_grid), math.inf
    free = outputs(x, weights, 0.01, grid=grid, y_grid=y_grid)
    assert len(np.unique(free)) > 20
    for clamp, ends in [((0, inf), (z, high)), ((0, 6), (z, min(z + 7, high))), ((-inf, 0), (low, z)),
                        ((-1e6, 1e6), (low, high)), ((-inf, inf), (low, high)), ((1e6, 2e6), (high, high)),
                        ((-2e6, -1e6), (low, low)), ((-3.6, 1e9), (max(z - 4, low), high))]:
        y = outputs(x, weights, 0.01, grid=grid, y_grid=y_grid, clamp=clamp)
        assert np.array_equal(y, np.clip(free, *ends)), clamp


# pytorch#126521, oneDNN#1354, ncnn#783: sums of two products in 16 bits.
@pytest.mark.parametrize("grid", [X, X | {"zero_point": 127}, X | {"zero_point": 0}, BYTES | {"zero_point": 0},
                                  BYTES | {"zero_point": 255}, {"bits": 16, "scale": 1.0},
                                  {"bits": 16, "signed": False, "scale": 1.0, "zero_point": 65535}])
@pytest.mark.parametrize("kernel, channels, groups", [(1, 64, 1), (3, 33, 1), (3, 32, 32), (5, 17, 17), (2, 40, 2)])
def test_extreme_codes_do_not_saturate(grid, kernel, channels, groups):
    outputs_of_group = 2 if groups == channels else 16
    low, high = limits(grid)
    shape = (groups * outputs_of_group, kernel, kernel, channels // groups)
    bound = kernel * kernel * (channels // groups) * 128 * max(zero(grid) - low, high - zero(grid))
    for x_code, (v, w) in itertools.product((low, high), ((-128, -128), (-128, 127), (127, 127))):
        weights = np.full(shape, v, np.int8)
        weights.reshape(-1)[1::2] = w  # pairs of alike and of unlike sign
        x = np.full((1, kernel + 1, kernel + 2, channels), x_code, dtype_of(grid))
        arguments = {"padding": kernel // 2, "groups": groups}
        if bound < 2**31:
            acc = sums(x, weights, grid=grid, **arguments)
            assert v != w or x_code == zero(grid) or np.abs(acc).max() >= bound * 126 // 128 // 2
        else:
            with pytest.raises(isobit.OverflowError, match="the accumulator can reach .*, must stay within 2147483647"):
                isobit.StaticConv.from_codes(np.full(shape, -128, np.int8), ones(weights), input_grid=grid, **arguments)
        y_grid = {"bits": 16, "scale": f32(grid) * bound / 2**15}
        y = outputs(x, weights, 1, grid=grid, y_grid=y_grid, **arguments)
        assert v != w or x_code == zero(grid) or np.abs(y).max() >= 2**13


# TF#99072, LiteRT#7441, CMSIS-NN#214: results that differ by 1, of one rounding and of two.
@pytest.mark.parametrize("rounding", ["nearest_even", "nearest_up", "nearest_away", "floor"])
@pytest.mark.parametrize("groups", [1, 16])
def test_every_path_rounds_once(rounding, groups):
    random = np.random.default_rng(8)
    exact = {"nearest_even": round, "nearest_up": lambda v: math.floor(v + fractions.Fraction(1, 2)),
             "nearest_away": lambda v: int(math.copysign(math.floor(abs(v) + fractions.Fraction(1, 2)), v)),
             "floor": math.floor}[rounding]
    grid = {"bits": 8, "scale": 1.0, "zero_point": -3}
    weights, x = s8(random, 32, 3, 3, 16 // groups), codes(random, grid, 1, 12, 12, 16)
    acc = sums(x, weights, grid=grid, padding=1, groups=groups)
    ties = 0
    for shift in (1, 2, 5, 9):
        y_grid = {"bits": 16, "scale": 2.0**shift, "zero_point": 1}
        wanted = [exact(fractions.Fraction(int(a), 2**shift)) + 1 for a in acc.ravel()]
        ties += np.count_nonzero(acc % 2**shift == 2**(shift - 1))
        y = outputs(x, weights, 1, grid=grid, y_grid=y_grid, rounding=rounding, padding=1, groups=groups)
        assert np.array_equal(y.ravel(), np.clip(wanted, -32768, 32767))
    assert ties > 1000


# TF#9870, Theano#6045: images from 65,536 on stay 0.
@pytest.mark.parametrize("groups", [1, 3])
def test_more_images_than_65535(groups):
    random = np.random.default_rng(9)
    weights, x = s8(random, 3, 1, 2, 3 // groups), codes(random, X, 65536 + 300, 1, 3, 3)
    y = outputs(x, weights, 0.02, padding=((0, 0), (1, 0)), groups=groups)
    assert len(np.unique(y[65536:])) > 20
    layer = isobit.StaticConv.from_codes(weights, 0.02 * ones(weights), input_grid=X, output_grid=Y,
                                         bias=np.zeros(3, np.int32), padding=((0, 0), (1, 0)), groups=groups)
    assert np.array_equal(layer.run_codes(x, pool=isobit.ThreadPool(3)), y)
    pool = isobit.StaticPool("max", (1, 2), stride=1, input_grid=X)
    assert np.array_equal(pool.run_codes(x), np.maximum(x[:, :, :-1], x[:, :, 1:]))


# CMSIS-NN#230, TensorRT#1694, pytorch#104207: outputs out of range, the wrong axis of scales, output_padding lost.
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride, dilation, pads, more", [
    ((2, 2), (1, 1), ((1, 0), (0, 1)), (1, 1)), ((3, 2), (1, 1), ((1, 1), (2, 1)), (2, 1)),
    ((4, 3), (1, 2), ((3, 2), (1, 4)), (3, 2)), ((1, 1), (2, 3), ((2, 1), (0, 5)), (1, 2)),
    ((5, 4), (1, 1), ((0, 0), (0, 0)), (4, 3))])
def test_transposed_pixels_are_added_where_they_fall(groups, stride, dilation, pads, more):
    """Pixel by pixel into a canvas without pads, which is cut to the outputs then."""
    random = np.random.default_rng(10)
    weights, x = s8(random, 6, 3, 4, 4 // groups), codes(random, X, 2, 4, 5, 4)
    reached = [dilation[0] * 2 + 1, dilation[1] * 3 + 1]
    canvas = np.zeros((2, 3 * stride[0] + reached[0] + more[0], 4 * stride[1] + reached[1] + more[1], 6), int)
    for i, j, r, s, o in itertools.product(range(4), range(5), range(3), range(4), range(6)):
        first = o // (6 // groups) * (4 // groups)
        pixel = x[:, i, j, first:first + 4 // groups].astype(int) - zero(X)
        canvas[:, i * stride[0] + r * dilation[0], j * stride[1] + s * dilation[1], o] += pixel @ weights[o, r, s]
    wanted = canvas[:, pads[0][0]:canvas.shape[1] - pads[0][1], pads[1][0]:canvas.shape[2] - pads[1][1]]
    arguments = {"stride": stride, "dilation": dilation, "padding": pads, "output_padding": more, "groups": groups,
                 "transposed": True}
    assert np.array_equal(sums(x, weights, **arguments), wanted)
    scales = 0.001 * 2.0**np.arange(6)
    y = outputs(x, weights, scales, **arguments)
    numbers = wanted * (f32(X) * np.float32(scales).astype(float) / f32(Y)) + zero(Y)
    assert np.abs(y - np.clip(numbers, -128, 127)).max() <= 0.51


# CMSIS-NN#19, nnom#84: paths for 1 x 1 and 1 x N kernels that take strides or pads which they do not follow, and
# scratch memory of another size than the path needs.
@pytest.mark.parametrize("kernel, stride, padding", [
    ((1, 1), 2, 0), ((1, 1), (1, 3), 0), ((1, 1), 1, ((1, 0), (0, 2))), ((1, 1), (3, 2), 2), ((1, 5), (1, 2), (0, 2)),
    ((1, 5), (2, 1), (0, 1)), ((1, 5), (2, 3), ((1, 0), (4, 0))), ((5, 1), (2, 1), (2, 0)), ((5, 1), (1, 2), 0)])
@pytest.mark.parametrize("channels, groups", [(1, 1), (16, 1), (18, 2), (24, 24)])
def test_kernels_of_one_pixel_and_one_row(kernel, stride, padding, channels, groups):
    random = np.random.default_rng(11)
    weights = s8(random, 2 * channels, *kernel, channels // groups)
    arguments = {"stride": stride, "padding": padding, "groups": groups}
    layer = isobit.StaticConv.from_codes(weights, ones(weights), input_grid=X, **arguments)
    for image in ((5, 5), (23, 9), (6, 31), (5, 6), (40, 5)):  # of one layer, larger ones and smaller ones in turn
        x = codes(random, X, 2, *image, channels)
        acc = sums(x, weights, **arguments)
        for threads in (1, 3):
            assert np.array_equal(layer.run_codes(x, pool=isobit.ThreadPool(threads)), acc)


# TensorRT#4529, litert-torch#1211: groups that have more than one output.
@pytest.mark.parametrize("channels, groups, multiplier", [(6, 3, 2), (6, 2, 3), (4, 4, 2), (5, 5, 3), (20, 20, 2),
                                                          (33, 33, 4), (32, 8, 2), (48, 3, 1)])
@pytest.mark.parametrize("stride", [1, 2])
def test_groups_with_more_outputs_than_channels(channels, groups, multiplier, stride):
    random = np.random.default_rng(12)
    weights = s8(random, channels * multiplier, 3, 3, channels // groups)
    x, bias = codes(random, X, 1, 6, 7, channels), random.integers(-999, 999, len(weights)).astype(np.int32)
    acc = sums(x, weights, bias, padding=1, stride=stride, groups=groups)
    apart = [sums(part, rows, b, padding=1, stride=stride) for part, rows, b in
             zip(np.split(x, groups, axis=3), np.split(weights, groups), np.split(bias, groups))]
    assert np.array_equal(acc, np.concatenate(apart, axis=3))
    outputs(x, weights, random.uniform(0.001, 0.01, len(weights)), bias=bias, padding=1, stride=stride, groups=groups)


# tflite-micro#3694, #3682: a ring of 0 columns.
@pytest.mark.parametrize("kernel, stride, left", [(1, 1, 0), (1, 3, 0), (2, 2, 0), (4, 4, 0), (2, 3, 0), (4, 4, 1)])
@pytest.mark.parametrize("groups", [1, 5])
def test_streams_whose_state_has_no_columns(kernel, stride, left, groups):
    random = np.random.default_rng(13)
    weights, x = s8(random, 5, 1, kernel, 5 // groups), codes(random, X, 2, 12 * stride, 5)
    arguments = {"stride": (1, stride), "padding": ((0, 0), (left, 0)), "groups": groups}
    whole = sums(x[:, None], weights, **arguments)[:, 0]
    for path in PATHS:
        stream = isobit.StaticConvStream(isobit.StaticConv.from_codes(weights, ones(weights), input_grid=X, path=path,
                                                                      **arguments))
        state, at, parts = stream.state(2, 6 * stride), 0, []
        for count in (0, 1, 5, 0, 6):
            parts.append(stream.run_codes(x[:, at * stride:(at + count) * stride], state))
            at += count
        assert np.array_equal(np.concatenate(parts, axis=1), whole), path


# tflite-micro#3627: the zero point added to a code after the clamp wraps round.
@pytest.mark.parametrize("z", [-128, -100, 127])
def test_sums_beyond_the_grid_stop_at_its_ends(z):
    random = np.random.default_rng(14)
    y_grid, added_grid = Y | {"zero_point": z}, {"bits": 8, "scale": 30.0, "zero_point": -z - 1}
    weights, x = s8(random, 4, 1, 3, 4), codes(random, X, 2, 1, 40, 4)
    weights[1], weights[2] = 127, -128
    added = codes(random, added_grid, 2, 1, 40, 4)
    arguments = {"padding": ((0, 0), (2, 0))}
    y = outputs(x, weights, 0.5, y_grid=y_grid, added=added, residual_grid=added_grid, **arguments)
    assert (y == -128).any() and (y == 127).any()
    narrow = outputs(x, weights, 0.5, y_grid=y_grid, clamp=(-9, 9), added=added, residual_grid=added_grid, **arguments)
    assert np.array_equal(narrow, np.clip(y, max(z - 10, -128), min(z + 10, 127)))  # the sum, not one part, is clamped
    for path in PATHS:
        layer = isobit.StaticConv.from_codes(weights, 0.5 * ones(weights), input_grid=X, output_grid=y_grid,
                                             residual_grid=added_grid, path=path, **arguments)
        stream = isobit.StaticConvStream(layer)
        state = stream.state(2, 40)
        parts = [stream.run_codes(x[:, 0, at:at + 8], state, added[:, 0, at:at + 8]) for at in range(0, 40, 8)]
        assert np.array_equal(np.concatenate(parts, axis=1), y[:, 0]), path


# cutlass#1911, #1323, #978: alignments that stop a run, strides that are not followed.
@pytest.mark.parametrize("channels", [1, 3, 8, 17, 32])
@pytest.mark.parametrize("groups", ["one", "depthwise"])
def test_addresses_and_strides_of_arrays_are_followed_or_refused(channels, groups):
    random = np.random.default_rng(15)
    groups = channels if groups == "depthwise" else 1
    weights, x = s8(random, channels, 3, 3, channels // groups), codes(random, X, 1, 7, 9, channels)
    wanted = outputs(x, weights, 0.01, padding=1, groups=groups)
    wide = np.zeros((1, 14, 9, 2 * channels), np.int8)
    wide[:, ::2, ::-1, ::2] = x
    for path, offset in itertools.product(PATHS, (0, 1, 3, 15)):
        layer = isobit.StaticConv.from_codes(weights, 0.01 * ones(weights), input_grid=X, output_grid=Y,
                                             padding=1, groups=groups, path=path)
        moved = np.ndarray(x.shape, np.int8, bytearray(x.size + offset), offset)
        out = np.ndarray(wanted.shape, np.int8, bytearray(wanted.size + offset), offset)
        moved[:] = x
        assert layer.run_codes(moved, out=out) is out and np.array_equal(out, wanted), (path, offset)
        assert np.array_equal(layer.run_codes(wide[:, ::2, ::-1, ::2]), wanted)
    with pytest.raises(isobit.InvalidArgumentError, match="out is not contiguous"):
        layer.run_codes(x, out=np.empty((1, 7, 9, 2 * channels), np.int8)[..., ::2])
    sixteen = isobit.StaticConv.from_codes(weights, ones(weights), input_grid=X | {"bits": 16}, groups=groups)
    with pytest.raises(isobit.InvalidArgumentError, match="x is at address .*, must be a multiple of 2 for s16"):
        sixteen.run_codes(np.ndarray(x.shape, np.int16, bytearray(2 * x.size + 1), 1))


# ORT#28447, #8890, TVM#8620: zero points of weights. There are none here: the weights of u8 codes are w - z, for each
# channel its own z, where they fit.
def test_zero_points_of_weights_are_refused():
    random = np.random.default_rng(16)
    w, z = random.integers(60, 180, (5, 3, 3, 4)), np.array([60, 100, 128, 150, 179]).reshape(5, 1, 1, 1)
    x = codes(random, X, 1, 6, 6, 4)
    acc = sums(x, (w - z).astype(np.int8), padding=1)
    raw = accumulators(x, w, 0, X, padding=1) - z.ravel() * accumulators(x, np.ones_like(w), 0, X, padding=1)
    assert np.array_equal(acc, raw)
    make = isobit.StaticConv.from_codes
    for wrong, name in ((w.astype(np.uint8), "u8"), ((w - 255).astype(np.int16), "s16")):
        with pytest.raises(TypeError, match=f"weights is {name}, must be s8"):
            make(wrong, ones(w), input_grid=X)
    with pytest.raises(TypeError, match="weight_zero_points"):
        make((w - z).astype(np.int8), ones(w), input_grid=X, weight_zero_points=z.ravel())
