# SPDX-License-Identifier: Apache-2.0
"""Section 14, learned grids: what the rounding of x did, the sums of each tensor and the gradients of its step. One
direction of one layer, so x is that of layer 0. The rests, sides and gradients of the other clamps are qat.py's."""
from fractions import Fraction

from .floats import div32, f32, from_bits32, mul32
from .qat import HH, IH, IN, STATE
from .rounding import rint
from .training import chain, minus, plus, times, total

# the tensors whose grids can be learned; but for x, the bits of their columns' clamps in ascending order of the column
BITS = {"h": [STATE], "ih": [IH, IH + 1, IH + 2], "hh": [HH, HH + 1, HH + 2], "u_in": [IN], "r_in": [IN + 1],
        "n_in": [IN + 2]}
TENSORS = ("x", *BITS)
LN2 = from_bits32("3f317218")  # the float32 number next to ln 2


def quantize(grid, x):
    """Section 3 of a float -> code, side, rest"""
    v = mul32(f32(x), 2.0 ** grid.shift if grid.scale is None else div32(1.0, grid.scale))
    if abs(v) > 2.0 ** 33:  # infinite, perhaps
        side = 1 if v > 0 else -1
        return (grid.qmax if v > 0 else grid.qmin), side, 0.0
    i = rint(Fraction(v))
    side = (i + grid.z > grid.qmax) - (i + grid.z < grid.qmin)
    # i is a float32 number: a product of 2^23 and more is an integer already
    return grid.clamp(i + grid.z), side, 0.0 if side else minus(float(i), v)


class Input:
    """Floats [..., C] as codes, sides and rests, in lists of the same shape."""

    def __init__(self, grid, values):
        def part(values, k):
            return [part(v, k) if isinstance(v, list) else quantize(grid, v)[k] for v in values]

        self.codes, self.sides, self.rests = (part(values, k) for k in range(3))

    def stopped(self, gradient):
        """The gradient of the floats, +0 where they were outside the grid."""
        def stop(gradient, sides):
            if isinstance(gradient, list):
                return [stop(*pair) for pair in zip(gradient, sides)]
            return 0.0 if sides else gradient

        return stop(gradient, self.sides)


def column(G, sides, rests):
    """A column's inside, below, above."""
    below, above = ([float(side == which) for side in sides] for which in (-1, 1))
    return chain(G, rests), chain(G, below), chain(G, above)


def columns(run, x, dx):
    """After a backward with this dx, not stopped, of a run of the codes of an Input: tensor -> its columns, each
    [G], [side], [rest] of the steps within their lengths."""
    steps, H, C = run.valid(), len(run.h0[0]), len(run.x[0][0])
    out = {"x": [[[v[t][b][k] for t, b in steps] for v in (dx, x.sides, x.rests)] for k in range(C)]}
    for name, bits in BITS.items():
        out[name] = [[[v[t][b][i][bit] for t, b in steps] for v in (run.G, run.sides, run.rests)]
                     for bit in bits for i in range(H)]
    return out


def sums(run, x, dx):
    """tensor -> its inside, below, above"""
    return {name: tuple(total(list(part)) for part in zip(*(column(*c) for c in tensor)))
            for name, tensor in columns(run, x, dx).items()}


def step_gradient(grid, inside, below, above):
    """Of S."""
    low, high = (f32(q - grid.z) for q in (grid.qmin, grid.qmax))
    return plus(plus(inside, times(low, below)), times(high, above))


def log2_step_gradient(grid, of_step):
    """Of log2(S)."""
    return times(times(float(grid.S), LN2), of_step)
