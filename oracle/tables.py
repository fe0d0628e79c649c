# SPDX-License-Identifier: Apache-2.0
"""Section 6: activation tables. Function values come from decimal arithmetic."""
from decimal import Decimal, localcontext
from fractions import Fraction

from .rounding import rint, round_shift

BOUNDS = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0)}


def function_value(function, x):
    """f(x) for a Fraction x, as a Fraction good to more than 90 digits. Beyond |x| = 300
    the distance to the asymptote is replaced by 10^-100, which rounds the same."""
    if x == 0:
        return Fraction(1, 2) if function == "sigmoid" else Fraction(0)
    tiny = Fraction(1, 10 ** 100)
    if function == "tanh":
        if abs(x) > 300:
            return (1 - tiny) * (1 if x > 0 else -1)
    elif abs(x) > 300:
        return 1 - tiny if x > 0 else tiny
    with localcontext() as ctx:
        ctx.prec = 160
        d = Decimal(x.numerator) / Decimal(x.denominator)
        if function == "sigmoid":
            return Fraction(1 / (1 + (-d).exp()))
        e = (-2 * d).exp()
        return Fraction((1 - e) / (1 + e))


def output_bounds(function, out):
    lo, hi = BOUNDS[function]
    return max(out.quantize(lo), out.qmin), min(out.quantize(hi), out.qmax)


def direct_entry(function, gin, gout, q, bounds=None):
    v = function_value(function, (q - gin.z) * gin.S) / gout.S
    lo, hi = bounds or output_bounds(function, gout)
    return min(max(rint(v) + gout.z, lo), hi)


class Table:
    def __init__(self, function, gin, gout):
        self.function, self.gin, self.gout = function, gin, gout
        self.lo, self.hi = output_bounds(function, gout)

    def __call__(self, q, mode):
        return min(max(self.value(q, mode), self.lo), self.hi)

    def json(self, grids=False):
        out = {"kind": self.kind, "function": self.function, "lo": self.lo, "hi": self.hi}
        if grids:
            out["in"], out["out"] = self.gin.json(), self.gout.json()
        out.update(self.parameters())
        return out


class Direct(Table):
    kind = "direct"

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
