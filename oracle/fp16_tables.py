# SPDX-License-Identifier: Apache-2.0
"""Section 13: FP16 tables. A number of a format is a Python float that holds it; every operation is
exact in integers and rounded once, to nearest even. Signs of zeros are those of IEEE 754."""
import math
from fractions import Fraction

from .floats import BF16, F16, F32, divide, fma, multiply, round_scaled, scaled, subtract, to_format
from .fp16_functions import INF16, NAN16, code16, constants, rounded, value16
from .rounding import Refused, rint

MODELS = ("f32", "nli_gpu", "nli_cpu")
REDUCTIONS = ("sin", "cos", "exp", "log", "reciprocal", "rsqrt", "sqrt")
STEPS_259 = [1] + [32] * 8 + [1]


def scale_of(steps, c0, c1, model):
    """The stored scale of an interval; an interval without width has scale 0."""
    if c0 == c1:
        return 0.0
    width = subtract(c1, c0, F32)
    if model == "f32":
        scale = divide(float(steps), width, F32) if math.isfinite(width) else 0.0
    else:
        width = to_format(width, F16)
        if width == 0 or math.isinf(width):
            raise Refused("the width of an interval is not a number of float16")
        scale = to_format(divide(float(steps), width, F32), F16)
    if scale == 0 or math.isinf(scale):
        raise Refused("the scale of an interval is not finite or zero")
    return scale


class Pieces:
    """One piecewise linear function of a float16 or float32 number that is not NaN."""

    def __init__(self, steps, cut_points, values, model):
        if len(cut_points) != len(steps) + 1 or len(values) != sum(steps) + 1:
            raise Refused("entry counts")
        if not all(math.isfinite(v) for v in cut_points + values):
            raise Refused("not finite")
        if any(a > b for a, b in zip(cut_points, cut_points[1:])):
            raise Refused("cut points out of order")
        self.steps, self.cut_points, self.values, self.model = steps, cut_points, values, model
        self.base = [sum(steps[:i]) for i in range(len(steps))]
        self.scales = [scale_of(n, a, b, model)
                       for n, a, b in zip(steps, cut_points, cut_points[1:])]
        self.rises = [subtract(b, a, F32) for a, b in zip(values, values[1:])] + [0.0]
        if not all(math.isfinite(v) for v in self.rises):
            raise Refused("neighbouring values too far apart")

    def __call__(self, x):
        """float32, not yet rounded to float16"""
        cuts, values = self.cut_points, self.values
        if x >= cuts[-1]:
            return values[-1]
        if x <= cuts[0]:
            return values[0]
        i = sum(1 for c in cuts if c <= x) - 1
        p = subtract(x, cuts[i], F32)
        if self.model == "nli_cpu":
            p = to_format(p, F16)
        p = multiply(p, self.scales[i], F32)
        if self.model == "nli_cpu":
            p = to_format(p, F16)
        if math.isinf(p):
            raise Refused("an infinite position")
        whole = math.floor(p)
        part = p - whole if p else 0.0      # exact; never -0
        j, last = min(whole, self.steps[i]), self.steps[i]
        at = self.base[i] + j
        rise = self.rises[at] if j < last else 0.0
        if self.model == "nli_cpu":
            # two roundings: the sum is that of an fma with 1
            return fma(1.0, multiply(part, rise, F32), values[at])
        return fma(part, rise, values[at])


def times_power(v, k):
    """v * 2^k rounded to float16, once"""
    if v == 0:
        return v
    n, e = scaled(v)
    return round_scaled(n, e + k, F16)


def reduce_by(x, inverse, parts):
    """k and x - k * (the constant in parts)"""
    k = rint(multiply(x, inverse, F32))
    for part in parts:
        x = fma(float(-k), part, x)
    return k, x


class Table:
    """float16 code -> float16 code"""

    def __init__(self, pieces, reduction=None):
        self.pieces, self.reduction = pieces, reduction
        assert reduction is None or reduction in REDUCTIONS
        assert len(pieces) == (2 if reduction in ("sin", "cos") else 1)
        if reduction is None and any(to_format(c, F16) != c for c in pieces[0].cut_points):
            raise Refused("a cut point is not a float16 number")

    def __call__(self, code):
        x = value16(code)
        if math.isnan(x):
            return NAN16
        if self.reduction is None:
            return code16(to_format(self.pieces[0](x), F16))
        if self.reduction in ("sin", "cos"):
            return self.circular(x)
        return self.exp(x) if self.reduction == "exp" else self.power(x)

    def circular(self, x):
        if math.isinf(x):
            return NAN16
        if x == 0 and self.reduction == "sin":
            return code16(x)
        k, r = reduce_by(x, constants()["two_over_pi"], constants()["half_pi"])
        quarter = (k + (self.reduction == "cos")) % 4    # cos x = sin(x + pi/2)
        y = self.pieces[quarter % 2](r)
        return code16(to_format(-y if quarter >= 2 else y, F16))

    def exp(self, x):
        if math.isinf(x):
            return INF16 if x > 0 else 0
        k, r = reduce_by(x, constants()["log2_e"], constants()["ln2"])
        return code16(times_power(self.pieces[0](r), k))

    def power(self, x):
        """log, reciprocal, rsqrt, sqrt: x = 2^k m"""
        name, table, negative = self.reduction, self.pieces[0], math.copysign(1, x) < 0
        if x == 0:
            return code16({"log": -math.inf, "sqrt": x}.get(name, math.copysign(math.inf, x)))
        if negative and name != "reciprocal":
            return NAN16
        if math.isinf(x):
            return code16(math.inf if name in ("log", "sqrt") else math.copysign(0.0, x))
        m, k = math.frexp(abs(x))
        m, k = 2 * m, k - 1                              # 1 <= m < 2
        if name == "log":
            if m * m > 2:                                # exact: m has 11 bits
                m, k = m / 2, k + 1
            return code16(to_format(fma(float(k), constants()["ln2"][0], table(m)), F16))
        if name == "reciprocal":
            y = times_power(table(m), -k)
            return code16(-y if negative else y)
        if k % 2:
            m, k = 2 * m, k - 1
        return code16(times_power(table(m), k // 2 if name == "sqrt" else -k // 2))


def sampled_values(function, steps, cut_points, half, at_zero):
    """The function at every step, as source 004 samples it: at c_i + j (c_{i+1} - c_i) / steps."""
    values, fmt = [], F16 if half else F32
    points = []
    for n, a, b in zip(steps, map(Fraction, cut_points), map(Fraction, cut_points[1:])):
        points += [a + (b - a) * j / n for j in range(n)]
    for x in points + [Fraction(cut_points[-1])]:
        values.append(at_zero if x == 0 else rounded(function, x, fmt))
    return values


# Other types: 32-bit and 16-bit patterns as integers

def float32_bits(v):
    """float32 number (not NaN) -> bits"""
    sign = 1 << 31 if math.copysign(1, v) < 0 else 0
    v = abs(v)
    if v == 0:
        return sign
    if v == math.inf:
        return sign | 0x7F800000
    f, e = math.frexp(v)
    if e <= -126:
        return sign | int(math.ldexp(v, 149))
    return sign | (e + 126) << 23 | int(math.ldexp(f, 24)) - (1 << 23)


def float32_value(bits):
    e, m = bits >> 23 & 255, bits & (1 << 23) - 1
    if e == 255:
        v = math.nan if m else math.inf
    else:
        v = math.ldexp(m + ((1 << 23) if e else 0), max(e, 1) - 150)
    return -v if bits >> 31 else v


def float32_to_float16(bits):
    return code16(to_format(float32_value(bits), F16))


def bfloat16_to_float16(bits):
    return float32_to_float16(bits << 16)


def float16_to_float32(code):
    v = value16(code)
    return 0x7FC00000 if math.isnan(v) else float32_bits(v)


def float16_to_bfloat16(code):
    v = value16(code)
    return 0x7FC0 if math.isnan(v) else float32_bits(to_format(v, BF16)) >> 16
