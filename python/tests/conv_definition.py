# SPDX-License-Identifier: Apache-2.0
"""Sections 2, 3 and 12 of docs/numerics.md in numpy, for convolutions of codes."""
import itertools
import math

import numpy as np

import isobit

PATHS = [kernel["name"] for kernel in isobit.supported().data["kernels"] if kernel["usable"]]


def limits(grid):
    signed = grid.get("signed", True)
    return (-2**(grid["bits"] - 1), 2**(grid["bits"] - 1) - 1) if signed else (0, 2**grid["bits"] - 1)


def dtype_of(grid):
    return np.dtype(("i" if grid.get("signed", True) else "u") + ("1" if grid["bits"] <= 8 else "2"))


def zero(grid):
    return grid.get("zero_point", 0)


def reach(grid):
    """D: the largest |q - z| of the grid."""
    return max(abs(end - zero(grid)) for end in limits(grid))


def rescaled(x, ratio, bound, mode):
    """rs(x) of sections 1 and 2: the ratio encoded for operands of this bound, and one rounding."""
    bits = next((b for b in range(31, 0, -1) if bound * 2**b < 2**63), None) if bound else 31
    fraction, exponent = math.frexp(ratio)
    m, n = round(math.ldexp(fraction, bits)), bits - exponent
    if m == 2**bits:
        m, n = m // 2, n - 1
    assert 0 < n < 63
    product = x.astype(np.int64) * m
    whole, rest, half = product >> n, product & (2**n - 1), 2**(n - 1)
    up = {"nearest_even": (rest > half) | ((rest == half) & (whole % 2 == 1)), "nearest_up": rest >= half,
          "nearest_away": (rest > half) | ((rest == half) & (product >= 0)), "floor": rest < 0}[mode]
    return whole + up


def f32(grid):
    return float(np.float32(grid["scale"]))


def code_of(value, grid):
    """Section 3."""
    inverse = np.float32(1) / np.float32(grid["scale"])
    scaled = np.clip(np.rint(np.float32(value) * inverse), -2.0**33, 2.0**33)
    return int(np.clip(int(scaled) + zero(grid), *limits(grid)))


def two(value):
    return (value, value) if isinstance(value, int) else value


def both_pads(padding):
    rows, columns = two(padding)
    return (rows, columns) if isinstance(rows, tuple) else ((rows, rows), (columns, columns))


def accumulators(x, weights, bias, grid, *, stride=1, dilation=1, padding=0, groups=1, transposed=False,
                 output_padding=0):
    """acc [B, P, Q, O]: each pixel inside x times each kernel element, where the formulas put it. Arguments as of
    StaticConv.from_codes."""
    strides, dilations, pads, more = two(stride), two(dilation), both_pads(padding), two(output_padding)
    outputs, kernel_rows, kernel_columns, group_channels = weights.shape
    sizes = []
    for axis, kernel in enumerate((kernel_rows, kernel_columns)):
        size, reached = x.shape[1 + axis], dilations[axis] * (kernel - 1) + 1
        sizes.append((size - 1) * strides[axis] + reached - sum(pads[axis]) + more[axis] if transposed else
                     (size + sum(pads[axis]) - reached) // strides[axis] + 1)
    acc = np.zeros((len(x), *sizes, outputs), np.int64) + bias
    # [groups, R, S, C / groups, O / groups]: output o is of the group floor(o / (O / groups)).
    taps = np.moveaxis(weights.astype(np.int64).reshape(groups, -1, *weights.shape[1:]), 1, -1)
    difference = x.astype(np.int64) - zero(grid)  # 0 outside x, as a pixel there is the zero point
    for p, q, r, s in itertools.product(*map(range, (*sizes, kernel_rows, kernel_columns))):
        place = []
        for axis, (output, tap) in enumerate(((p, r), (q, s))):
            if transposed:
                pixel, rest = divmod(output + pads[axis][0] - tap * dilations[axis], strides[axis])
            else:
                pixel, rest = output * strides[axis] + tap * dilations[axis] - pads[axis][0], 0
            place.append(pixel if rest == 0 and 0 <= pixel < x.shape[1 + axis] else None)
        if None in place:
            continue
        channels = difference[:, place[0], place[1]].reshape(len(x), groups, 1, group_channels)
        acc[:, p, q] += (channels @ taps[:, r, s]).reshape(len(x), outputs)
    return acc


def expected(acc, weights, scales, bias, x_grid, y_grid, clamp, mode, residual=None, residual_grid=None):
    """y of acc."""
    y = np.empty_like(acc)
    for o in range(len(weights)):
        bound = int(np.abs(weights[o].astype(np.int64)).sum()) * reach(x_grid) + abs(int(bias[o]))
        y[..., o] = rescaled(acc[..., o], f32(x_grid) * float(scales[o]) / f32(y_grid), bound, mode)
    if residual is not None:
        y += rescaled(residual.astype(np.int64) - zero(residual_grid), f32(residual_grid) / f32(y_grid),
                      reach(residual_grid), mode)
    low, high = (code_of(end, y_grid) for end in clamp) if clamp else limits(y_grid)
    return np.clip(y + zero(y_grid), low, high)
