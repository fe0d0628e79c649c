# SPDX-License-Identifier: Apache-2.0
"""Sections 3 and 4: grids, float to code and back, range to parameters."""
import math
from fractions import Fraction

from .floats import div32, f32, bits32, is_normal32, mul32
from .rounding import Refused, rint


def code_range(bits, signed):
    if signed:
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return 0, (1 << bits) - 1


class Grid:
    """bits, signed, zero point, and either shift (S = 2^-shift) or scale (a float32)."""

    def __init__(self, bits, signed, zero_point=0, shift=None, scale=None):
        assert (shift is None) != (scale is None)
        self.bits, self.signed, self.z = bits, signed, zero_point
        self.shift, self.scale = shift, scale
        self.qmin, self.qmax = code_range(bits, signed)
        assert self.qmin <= zero_point <= self.qmax

    @property
    def S(self):
        """The scale, exactly."""
        return Fraction(2) ** -self.shift if self.scale is None else Fraction(self.scale)

    @property
    def reach(self):
        """Largest |q - z|."""
        return max(self.qmax - self.z, self.z - self.qmin)

    def clamp(self, q):
        return min(max(q, self.qmin), self.qmax)

    def quantize(self, x):
        """Section 3; x is a float32 (or wider, then rounded first). NaN -> z."""
        x = f32(x)
        if math.isnan(x):
            return self.z
        if self.scale is None:
            v = mul32(x, 2.0 ** self.shift)
        else:
            v = mul32(x, div32(1.0, self.scale))
        limit = 1 << 33
        if math.isinf(v):
            i = limit if v > 0 else -limit
        else:
            i = min(max(rint(v), -limit), limit)
        return self.clamp(i + self.z)

    def dequantize(self, q):
        return mul32(f32(q - self.z), float(self.S))

    def json(self):
        out = {"bits": self.bits, "signed": self.signed, "zero_point": self.z}
        if self.scale is None:
            out["shift"] = self.shift
        else:
            out["scale"] = bits32(self.scale)
        return out


def default_steps(bits, kind, power_of_two=True):
    """kind 'activation' (calibrated), and 'gate' (u, r) with general scales: 2^b - 1; 'weight',
    'bias', 'output' (n), and 'gate' with powers of two: 2^b."""
    fewer = kind == "activation" or (kind == "gate" and not power_of_two)
    return (1 << bits) - 1 if fewer else 1 << bits


def raw_scale(lo, hi, signed, symmetric, steps):
    """float64, every operation rounded once. lo and hi are widened to include zero."""
    lo, hi = min(lo, 0.0), max(hi, 0.0)
    if not symmetric:
        return (hi - lo) / float(steps)
    if not signed:
        return hi / float(steps)
    if steps // 2 == 0:
        raise Refused("symmetric signed grid with one step")
    return max(hi / float(steps // 2), -lo / float((steps + 1) // 2))


def shift_of_raw(raw, bits):
    """floor(log2(1/raw)), capped; refused below -32."""
    f, e = math.frexp(raw)
    s = min(1 - e if f == 0.5 else -e, min(62, bits + 30))
    if s < -32:
        raise Refused("shift below -32")
    return s


def scale_of_raw(raw):
    scale = f32(raw)
    if not is_normal32(scale):
        raise Refused("scale is not a normal float32")
    return scale


def zero_point(lo, bits, signed, S):
    """clamp(qmin - rint(min/S)), the division in float64."""
    qmin, qmax = code_range(bits, signed)
    return min(max(qmin - rint(min(lo, 0.0) / float(S)), qmin), qmax)


def range_to_grid(lo, hi, bits, signed, symmetric, power_of_two, steps):
    raw = raw_scale(lo, hi, signed, symmetric, steps)
    if raw == 0.0:
        return Grid(bits, signed, 0, **({"shift": 0} if power_of_two else {"scale": 1.0}))
    if power_of_two:
        s = shift_of_raw(raw, bits)
        z = 0 if symmetric else zero_point(lo, bits, signed, Fraction(2) ** -s)
        return Grid(bits, signed, z, shift=s)
    scale = scale_of_raw(raw)
    z = 0 if symmetric else zero_point(lo, bits, signed, scale)
    return Grid(bits, signed, z, scale=scale)


def rows_to_grids(rows, bits, signed, power_of_two, steps=None, all_zero_rule=True):
    """One symmetric grid per row (weights; a bias is a row of one number, without the
    all-zero rule). A raw too small for a normal general scale counts as 0."""
    steps = default_steps(bits, "weight") if steps is None else steps
    grids, zero = [], []
    for row in rows:
        raw = raw_scale(min(row), max(row), signed, True, steps)
        zero.append(raw == 0.0 or (not power_of_two and f32(raw) < 2.0 ** -126))
        lo, hi = (0.0, 0.0) if zero[-1] else (min(row), max(row))
        grids.append(range_to_grid(lo, hi, bits, signed, True, power_of_two, steps))
    others = [g for g, is_zero in zip(grids, zero) if not is_zero]
    if all_zero_rule and others:
        if power_of_two:
            fill = Grid(bits, signed, 0, shift=max(g.shift for g in others))
        else:
            fill = Grid(bits, signed, 0, scale=min(g.scale for g in others))
        grids = [fill if is_zero else g for g, is_zero in zip(grids, zero)]
    return grids
