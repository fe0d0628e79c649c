# SPDX-License-Identifier: Apache-2.0
"""Section 5: order-free statistics and the choice of a range or of a grid."""
import math
import struct
from decimal import Decimal, getcontext
from fractions import Fraction

from .floats import div32, f32, from_bits32, is_normal32, mul32
from .grid import Grid, code_range, range_to_grid, raw_scale
from .rounding import Refused, floor_fraction, rint

getcontext().prec = 120


def high_bits(x):
    """The 16 high bits of a float32; those of +0 for -0."""
    return struct.unpack(">I", struct.pack(">f", x))[0] >> 16 if x else 0


def in_order(bins16):
    """The bins in the order of their numbers: negative ones by descending magnitude, then
    positive ones. (8000 holds negative subnormal numbers and comes before 0000.)"""
    return sorted(bins16, key=lambda b: 0x7FFF - b if b & 0x8000 else b)


class Statistics:
    """Exact minimum and maximum, the histogram of 4096 bins, and the one of 16 high bits."""

    def __init__(self):
        self.lo, self.hi, self.E, self.bins, self.count = math.inf, -math.inf, None, {}, 0
        self.bins16 = {}

    def grow(self, E):
        if self.E is None:  # only zeros so far: bin 0 whatever E is
            self.E = E
        while self.E < E:
            merged = {}
            for i, n in self.bins.items():
                merged[i // 2] = merged.get(i // 2, 0) + n
            self.bins, self.E = merged, self.E + 1

    def add(self, x):
        self.lo, self.hi = min(self.lo, x), max(self.hi, x)
        self.count += 1
        if x == 0:
            i = 0
        else:
            self.grow(math.frexp(abs(x))[1])
            i = floor_fraction(Fraction(x) * Fraction(2) ** (11 - self.E))
        assert -2048 <= i <= 2047
        self.bins[i] = self.bins.get(i, 0) + 1
        b = high_bits(x)
        self.bins16[b] = self.bins16.get(b, 0) + 1

    def merge(self, other):
        if other.E is not None:
            self.grow(other.E)
        for i, n in other.bins.items():
            k = i
            if i != 0 and other.E < self.E:
                k = i >> (self.E - other.E)
            self.bins[k] = self.bins.get(k, 0) + n
        for b, n in other.bins16.items():
            self.bins16[b] = self.bins16.get(b, 0) + n
        self.lo, self.hi = min(self.lo, other.lo), max(self.hi, other.hi)
        self.count += other.count


def minmax(st):
    return st.lo, st.hi


def percentile(st, p):
    """p is a decimal string, 0 < p <= 100. The range may be one that percentile_grid refuses."""
    m = floor_fraction(st.count * (100 - Fraction(p)) / 200)
    if st.E is None:
        return st.lo, st.hi

    def made(order):  # from the bin in which the running count first exceeds m
        total = 0
        for b in order:
            total += st.bins16[b]
            if total > m:
                return min(max(from_bits32("%04xffff" % b), st.lo), st.hi) if b else 0.0

    order = in_order(st.bins16)
    return made(order), made(reversed(order))


def percentile_grid(st, p, *config):
    """config: as of range_to_grid."""
    lo, hi = percentile(st, p)
    if lo == hi == 0 and st.E is not None:
        raise Refused("a percentile range of [0, 0] though not all samples are 0")
    return range_to_grid(lo, hi, *config)


def finest_needed(st, bits, signed, symmetric, power_of_two, steps):
    """The grid of percentile:99, to which the sqnr search reaches down; None where it does not."""
    if raw_scale(*percentile(st, "99"), signed, symmetric, steps) == 0.0:
        return None
    try:
        return percentile_grid(st, "99", bits, signed, symmetric, power_of_two, steps)
    except Refused:
        return None


def sqnr_scales(st, bits, signed, symmetric, power_of_two, steps, normal_only=True, beyond=0):
    """(j, scale as keywords of Grid, S); `beyond` scales more than section 5 has."""
    config = bits, signed, symmetric, power_of_two, steps
    cover, fine = range_to_grid(st.lo, st.hi, *config), finest_needed(st, *config)
    if power_of_two:
        last = 3 if fine is None else max(3, fine.shift - cover.shift)
        for j in range(last + beyond + 1):
            if cover.shift + j > min(62, bits + 30):
                return
            yield j, {"shift": cover.shift + j}, 2.0 ** -(cover.shift + j)
        return
    j, last = 0, None
    while last is None or j <= last + beyond:
        S = f32(cover.scale / float(Decimal(2) ** (Decimal(j) / 4)))
        if normal_only and not is_normal32(S):
            return
        yield j, {"scale": S}, S
        if last is None and j >= 12 and (fine is None or S <= fine.scale):
            last = j
        j += 1


def sqnr_candidates(st, bits, signed, symmetric, power_of_two, steps, clamp_ends=True,
                    normal_only=True, beyond=0):
    """(j, i, grid) in order of preference. Misreadings, to make vectors that tell: without
    clamp_ends not z_a and z_b are clamped but only each z_i; without normal_only the search
    does not end at a scale that is not normal; with beyond it takes so many scales more."""
    qmin, qmax = code_range(bits, signed)
    lo, hi = min(st.lo, 0.0), max(st.hi, 0.0)
    for j, par, S in sqnr_scales(st, bits, signed, symmetric, power_of_two, steps, normal_only,
                                 beyond):
        if symmetric:
            yield j, 0, Grid(bits, signed, 0, **par)
            continue
        za, zb = qmin - rint(lo / S), qmax - rint(hi / S)
        if clamp_ends:
            za, zb = min(max(za, qmin), qmax), min(max(zb, qmin), qmax)
        for i in range(17):
            z = za + rint(Fraction((zb - za) * i, 16))
            yield j, i, Grid(bits, signed, min(max(z, qmin), qmax), **par)


def centres(st):
    """[(centre, count)], bins ascending; every centre is exact in float64."""
    half = 2.0 ** (st.E - 12)
    return [((2 * i + 1) * half, float(st.bins[i])) for i in sorted(st.bins)]


def sqnr_error(points, grid, steps_of="product"):
    """Squared error of the histogram on the grid, float64, bins ascending. steps_of: how a
    centre c becomes a number of steps. "product" is section 5's: c times 1/S, for general
    scales the float32 1/S, the product in float64. Two misreadings, to make vectors that
    tell: "quotient" c/S in float64, "product32" the float32 product of section 3."""
    S, total = float(grid.S), 0.0
    inv = 1.0 / S if grid.scale is None else div32(1.0, S)
    low, high = grid.qmin - grid.z, grid.qmax - grid.z
    convert = {"product": lambda c: c * inv, "quotient": lambda c: c / S,
               "product32": lambda c: mul32(c, inv)}[steps_of]
    for c, n in points:
        d = min(max(round(convert(c)), low), high) * S - c
        total += d * d * n
    return total


def sqnr(st, bits, signed, symmetric, power_of_two, steps, steps_of="product", **misread):
    """Returns (grid, j, i, margin): margin = relative distance to the best other grid."""
    if raw_scale(st.lo, st.hi, signed, symmetric, steps) == 0.0:
        return range_to_grid(st.lo, st.hi, bits, signed, symmetric, power_of_two, steps), 0, 0, 1.0
    scored, seen, points = [], set(), centres(st)
    for j, i, g in sqnr_candidates(st, bits, signed, symmetric, power_of_two, steps, **misread):
        if (g.S, g.z) not in seen:
            seen.add((g.S, g.z))
            scored.append((sqnr_error(points, g, steps_of), j, i, g))
    scored.sort(key=lambda c: c[:3])
    best = scored[0]
    margin = 1.0 if len(scored) == 1 or best[0] == 0.0 else (scored[1][0] - best[0]) / max(best[0], 1e-300)
    return best[3], best[1], best[2], margin


def ema(sequences, reverse=False):
    """sequences[s][t] = list of float32 values of one time step."""
    lo, hi = math.inf, -math.inf
    for seq in sequences:
        steps = list(reversed(seq)) if reverse else seq
        a, b = min(steps[0]), max(steps[0])
        for step in steps[1:]:
            a = 0.9 * a + 0.1 * min(step)
            b = 0.9 * b + 0.1 * max(step)
        lo, hi = min(lo, a), max(hi, b)
    return lo, hi
