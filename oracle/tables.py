# SPDX-License-Identifier: Apache-2.0
"""Section 6: activation tables. Function values come from decimal arithmetic."""
import struct
from decimal import Decimal, localcontext
from fractions import Fraction

from .rounding import MODES, floor_fraction, rint, round_shift

BOUNDS = {"sigmoid": (0, 1), "tanh": (-1, 1)}


def function_value(function, x, digits=160):
    """f(x) for a Fraction x, as a Fraction computed with so many decimal digits (at 160, more
    than 90 of them are good). Beyond |x| = 300 the distance to the asymptote is replaced by
    10^-100, which rounds the same."""
    if x == 0:
        return Fraction(1, 2) if function == "sigmoid" else Fraction(0)
    tiny = Fraction(1, 10 ** 100)
    if function == "tanh":
        if abs(x) > 300:
            return (1 - tiny) * (1 if x > 0 else -1)
    elif abs(x) > 300:
        return 1 - tiny if x > 0 else tiny
    with localcontext() as ctx:
        ctx.prec = digits
        d = Decimal(x.numerator) / Decimal(x.denominator)
        if function == "sigmoid":
            return Fraction(1 / (1 + (-d).exp()))
        e = (-2 * d).exp()
        return Fraction((1 - e) / (1 + e))


def output_bounds(function, out):
    """The codes z and z +- rint(1/S) of f's bounds, cut to the grid; S is exact."""
    lo, hi = BOUNDS[function]
    return (max(out.z + rint(lo / out.S), out.qmin), min(out.z + rint(hi / out.S), out.qmax))


def direct_entry(function, gin, gout, q, bounds=None):
    x = (q - gin.z) * gin.S
    v = function_value(function, x, 60) / gout.S
    if gout.S < Fraction(1, 1 << 64) or \
            abs(v - floor_fraction(v) - Fraction(1, 2)) < Fraction(1, 10 ** 20):  # near a tie
        v = function_value(function, x) / gout.S
    lo, hi = bounds or output_bounds(function, gout)
    return min(max(rint(v) + gout.z, lo), hi)


def direct_outputs(function, gin, gout):
    """The entries of a direct table by halving: f, rint and the clamp are monotone, so between
    two equal entries all are equal."""
    bounds, out = output_bounds(function, gout), {}

    def fill(a, b):
        if out[a] == out[b]:
            out.update({q: out[a] for q in range(a + 1, b)})
        elif b - a > 1:
            mid = (a + b) // 2
            out[mid] = direct_entry(function, gin, gout, mid, bounds)
            fill(a, mid)
            fill(mid, b)

    for q in (gin.qmin, gin.qmax):
        out[q] = direct_entry(function, gin, gout, q, bounds)
    fill(gin.qmin, gin.qmax)
    return [out[q] for q in range(gin.qmin, gin.qmax + 1)]


def fnv1a64(data):
    """FNV-1a, 64 bits, of bytes, as 16 hexadecimal digits."""
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
    return "%016x" % h


def digest(codes):
    """fnv1a64 of the codes as little-endian int64."""
    return fnv1a64(struct.pack("<%dq" % len(codes), *codes))


class Table:
    modes_matter = True

    def __init__(self, function, gin, gout):
        self.function, self.gin, self.gout = function, gin, gout
        self.lo, self.hi = output_bounds(function, gout)

    def __call__(self, q, mode):
        return min(max(self.value(q, mode), self.lo), self.hi)

    def digests(self):
        """Digest of the outputs for all input codes: one, or mode -> one."""
        if not self.modes_matter:
            return digest(self.entries)
        return {m: digest([self(q, m) for q in range(self.gin.qmin, self.gin.qmax + 1)])
                for m in MODES}

    def json(self, grids=False):
        out = {"kind": self.kind, "function": self.function, "lo": self.lo, "hi": self.hi}
        if grids:
            out["in"], out["out"] = self.gin.json(), self.gout.json()
        out.update(self.parameters())
        return out


class Direct(Table):
    kind, modes_matter = "direct", False

    def __init__(self, function, gin, gout):
        super().__init__(function, gin, gout)
        b = (self.lo, self.hi)
        self.entries = [direct_entry(function, gin, gout, q, b)
                        for q in range(gin.qmin, gin.qmax + 1)]

    def value(self, q, mode):
        return self.entries[self.gin.clamp(q) - self.gin.qmin]

    def parameters(self):
        return {"entries": self.entries}


class Interpolated(Table):
    kind = "interpolated"

    def __init__(self, function, gin, gout, q0, k, F, G, anchors):
        super().__init__(function, gin, gout)
        assert len(anchors) == (1 << k) + 1
        self.q0, self.k, self.F, self.G, self.anchors = q0, k, F, G, anchors

    @classmethod
    def chords(cls, function, gin, gout, k, G=4):
        """Plain anchors on the function: not a best fit, only something to evaluate."""
        F = gin.bits - k
        anchors = []
        for i in range((1 << k) + 1):
            q = gin.qmin + (i << F)
            v = function_value(function, (q - gin.z) * gin.S) / gout.S + gout.z
            anchors.append(rint(v * (1 << G)))
        return cls(function, gin, gout, gin.qmin, k, F, G, anchors)

    def value(self, q, mode):
        q = self.gin.clamp(q)
        t = min(max(q, self.q0), self.q0 + (1 << (self.k + self.F)) - 1) - self.q0
        i, frac = t >> self.F, t & ((1 << self.F) - 1)
        a, b = self.anchors[i], self.anchors[i + 1]
        return round_shift((a << self.F) + (b - a) * frac, self.F + self.G, mode)

    def parameters(self):
        return {"q0": self.q0, "k": self.k, "F": self.F, "G": self.G, "anchors": self.anchors}


class Segments(Table):
    kind = "segments"

    def __init__(self, function, gin, gout, t, b, c, shift):
        super().__init__(function, gin, gout)
        assert len(b) == len(c) == len(t) + 1 and t == sorted(t)
        self.t, self.b, self.c, self.shift = t, b, c, shift

    @classmethod
    def chords(cls, function, gin, gout, n, shift):
        """n chords over equal parts of the input range: again only something to evaluate."""
        edges = [gin.qmin + ((gin.qmax - gin.qmin) * i) // n for i in range(n + 1)]
        at = [function_value(function, (q - gin.z) * gin.S) / gout.S for q in edges]
        b, c = [], []
        for i in range(n):
            slope = (at[i + 1] - at[i]) / (edges[i + 1] - edges[i])
            b.append(rint(slope * (1 << shift)))
            c.append(rint((at[i] + gout.z) * (1 << shift)) - b[i] * (edges[i] - gin.z))
        return cls(function, gin, gout, edges[1:-1], b, c, shift)

    def value(self, q, mode):
        q = self.gin.clamp(q)
        i = sum(1 for t in self.t if t <= q)
        return round_shift(self.b[i] * (q - self.gin.z) + self.c[i], self.shift, mode)

    def parameters(self):
        return {"t": self.t, "b": self.b, "c": self.c, "shift": self.shift}
