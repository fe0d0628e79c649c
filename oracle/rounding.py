# SPDX-License-Identifier: Apache-2.0
"""Sections 1 and 2: rounding modes, round_shift, Rescale and its encoder."""
import math
from fractions import Fraction

MODES = ("nearest_even", "nearest_up", "nearest_away", "floor")
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


class Refused(Exception):
    """The specification refuses this configuration."""


def floor_fraction(v):
    return v.numerator // v.denominator


def round_ratio(a, b, mode):
    """The real (rational) number a / b, b > 0, rounded to an integer."""
    low, rest = divmod(a, b)
    if mode == "floor":
        return low
    if mode == "nearest_up":
        return (2 * a + b) // (2 * b)
    if 2 * rest != b:
        return low + (1 if 2 * rest > b else 0)
    if mode == "nearest_even":
        return low + (low & 1)
    if mode == "nearest_away":
        return low + (1 if a > 0 else 0)
    raise ValueError(mode)


def rint(v):
    """To nearest, ties to even; accepts int, float (finite) or Fraction."""
    v = Fraction(v)
    return round_ratio(v.numerator, v.denominator, "nearest_even")


def round_shift(x, n, mode):
    """x / 2^n rounded to an integer; exact product for n < 0."""
    assert INT64_MIN <= x <= INT64_MAX, "operand is not an int64"
    assert -62 <= n <= 127, "shift out of its range"
    if n < 0:
        y = x << -n
        assert INT64_MIN <= y <= INT64_MAX, "left shift does not fit"
        return y
    return round_ratio(x, 1 << n, mode)


class Rescale:
    """x -> round_shift(x * m, n)."""

    def __init__(self, m, n):
        self.m, self.n = m, n

    def __call__(self, x, mode):
        return round_shift(x * self.m, self.n, mode)

    def json(self):
        return {"m": self.m, "n": self.n}


def store_shift(n, bound):
    """The stored n of a derived n, for an operand of magnitude at most `bound`."""
    if n > 127:
        return 127
    if n < -62:
        if bound == 0:
            return 0
        raise Refused("shift below -62")
    return n


def power_rescale(n, bound):
    return Rescale(1, store_shift(n, bound))


def encode_ratio(rho, bound):
    """General ratio rho > 0 (float64) -> Rescale, for an operand |x| <= bound."""
    assert rho > 0 and math.isfinite(rho)
    width = 31
    while width > 0 and bound * (1 << width) >= 1 << 63:
        width -= 1
    if width == 0:
        raise Refused("no multiplier fits the operand")
    f, e = math.frexp(rho)
    m = rint(Fraction(f) * (1 << width))
    n = width - e
    if m == 1 << width:
        m, n = 1 << (width - 1), n - 1
    assert (1 << (width - 1)) <= m < (1 << width)
    return Rescale(m, store_shift(n, bound))
