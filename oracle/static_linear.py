# SPDX-License-Identifier: Apache-2.0
"""Section 12: linear layers of static codes, and their calibration."""
import math
from fractions import Fraction

from . import calibrate
from .floats import bits32, f32, from_bits32
from .grid import default_steps, range_to_grid
from .low_bit import Weights, activate, code, quantise
from .rounding import INT64_MAX, Refused, encode_ratio, rint

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1


def channel_weights(rows, mse=False, bits=8):
    """Symmetric weights, one float32 scale a row; a row of zeros has the smallest other one."""
    w = quantise(rows, bits, len(rows[0]), "symmetric", "f32", mse)
    if bits == 1 and any(row[0] == 0 for row in w.S):
        raise Refused("weights of 1 bit have no zero")
    fill = min([row[0] for row in w.S if row[0] > 0], default=1.0)
    return Weights(bits, w.group, "symmetric", "f32", w.codes, [[row[0] or fill] for row in w.S])


def bias_code(bias, x, S):
    """Before the clamp. x: the grid; S: the row's scale."""
    if not math.isfinite(bias):
        raise Refused("a bias is not finite")
    product = float(x.S) * S  # exact in float64
    assert Fraction(product) == x.S * Fraction(S)
    return rint(bias / product)


def largest(rescale, bound):
    """What abs(rescale(x)) is at most, abs(x) <= bound."""
    return bound * rescale.m << -rescale.n if rescale.n <= 0 else (bound * rescale.m >> rescale.n) + 1


class StaticLinear:
    """weights: symmetric of 1, 2, 4 or 8 bits, one group a row; x and y: grids of 2 to 16 bits (y None:
    int32 accumulators out); bias [N] float32 numbers, or None; residual: the grid of codes to add, or None."""

    def __init__(self, weights, x, y, bias=None, act=None, mode="nearest_even", residual=None):
        assert weights.kind == "symmetric" and weights.G == 1
        if any(not 2 <= g.bits <= 16 for g in (x, y) if g is not None):
            raise Refused("codes of x and y have 2 to 16 bits")
        if residual is not None and not 2 <= residual.bits <= 16:
            raise Refused("codes of a residual have 2 to 16 bits")
        if y is None and act is not None:
            raise Refused("int32 accumulators have no activation function")
        if y is None and residual is not None:
            raise Refused("nothing is added to int32 accumulators")
        self.weights, self.x, self.y, self.mode, self.residual = weights, x, y, mode, residual
        added = 0
        if residual is not None:
            self.added = encode_ratio(float(residual.S) / float(y.S), residual.reach)
            added = largest(self.added, residual.reach)
        self.v = [[weights.value(n, k) for k in range(weights.K)] for n in range(weights.N)]
        self.bias, self.bounds, self.rescales = [], [], []
        for n, row in enumerate(self.v):
            S = weights.S[n][0]
            if not S > 0:
                raise Refused("a scale of a channel is not positive")
            self.bias.append(min(max(bias_code(bias[n] if bias else 0.0, x, S), INT32_MIN), INT32_MAX))
            X = sum(map(abs, row)) * x.reach + abs(self.bias[n])
            self.bounds.append(X)
            if y is None:
                if X > INT32_MAX:
                    raise Refused("the accumulator does not fit int32")
                continue
            r = encode_ratio(float(x.S) * S / float(y.S), X)
            if max(X * r.m, largest(r, X) + added + abs(y.z)) > INT64_MAX:
                raise Refused("an intermediate does not fit int64")
            self.rescales.append(r)
        if y is not None:
            self.lo, self.hi = (y.qmin, y.qmax) if act is None else [y.quantize(v) for v in act]

    def sums(self, a):
        """acc [N] of one row of codes."""
        if any(not self.x.qmin <= q <= self.x.qmax for q in a):
            raise Refused("a code outside the grid of x")
        out = []
        for n, row in enumerate(self.v):
            out.append(sum(p * q for p, q in zip(a, row)) - self.x.z * sum(row) + self.bias[n])
            assert abs(out[n]) <= self.bounds[n]
        return out

    def codes(self, sums, residual=None):
        """y [N] of these sums, and of codes [N] to add."""
        if self.y is None:
            return sums
        y = [rescale(acc, self.mode) for rescale, acc in zip(self.rescales, sums)]
        if self.residual is not None:
            if any(not self.residual.qmin <= q <= self.residual.qmax for q in residual):
                raise Refused("a code outside the grid of the residual")
            y = [v + self.added(q - self.residual.z, self.mode) for v, q in zip(y, residual)]
        return [min(max(v + self.y.z, self.lo), self.hi) for v in y]

    def __call__(self, a, residual=None):
        """One row of codes -> [N] codes, or int32 accumulators."""
        return self.codes(self.sums(a), residual)


# ---------------------------------------------------------------- calibration

def float_row(rows, bias, act, x):
    """y [N] of one row x of float32 numbers."""
    out = []
    for n, row in enumerate(rows):
        s = 0.0
        for p, q in zip(x, row):
            s += p * q  # the product of two float32 numbers is exact in float64
        s = f32(s + bias[n] if bias else s)
        if not math.isfinite(s):
            raise Refused("y is not finite")
        out.append(activate(s, act))
    return out


def choose(sequences, method, bits, signed, symmetric, power_of_two, steps=None):
    """The grid of a tensor from sequences[s][t] = its values. method: minmax, sqnr, ema (of 0.9), or the
    decimal text of a percentile."""
    st = calibrate.Statistics()
    for seq in sequences:
        for step in seq:
            for v in step:
                st.add(v)
    steps = default_steps(bits, "activation") if steps is None else steps
    config = bits, signed, symmetric, power_of_two, steps
    if method == "sqnr":
        return calibrate.sqnr(st, *config)[0]
    if method == "minmax":
        return range_to_grid(*calibrate.minmax(st), *config)
    if method == "ema":
        return range_to_grid(*calibrate.ema(sequences), *config)
    return calibrate.percentile_grid(st, method, *config)


def is_dead(row, S, x, bias, accumulators):
    """row: the integers v of a row."""
    b = bias_code(bias, x, S)
    if not INT32_MIN <= b <= INT32_MAX:
        return True
    products = sum(map(abs, row)) * x.reach
    return accumulators and products + abs(b) > INT32_MAX >= products


def revived(S, x, bias, bits):
    """The least float32 not below S that a bias of at most 2^30 has."""
    def fits(pattern):
        return abs(bias_code(bias, x, from_bits32("%08x" % pattern))) <= 1 << 30

    low, high = int(bits32(S), 16), 0x7F7FFFFF
    if not fits(high):
        raise Refused("no scale keeps the bias of a dead row")
    while low < high:
        mid = (low + high) // 2
        low, high = (low, mid) if fits(mid) else (mid + 1, high)
    return from_bits32("%08x" % low)


def calibrated(rows, bias, act, sequences, x, y, power_of_two, method, bits=8, mse=False, mode="nearest_even"):
    """rows [N][K], bias [N] or None: float32 numbers; sequences[s][t] = rows of x; x and y: dicts of bits,
    signed, symmetric (y None: accumulators out), or x a Grid. -> (StaticLinear, dead rows)."""
    outputs = [[float_row(rows, bias, act, step) for step in seq] for seq in sequences]

    def grid(tensor, values):
        return choose(values, method, tensor["bits"], tensor["signed"], tensor["symmetric"], power_of_two)

    gx = grid(x, sequences) if isinstance(x, dict) else x
    gy = None if y is None else grid(y, outputs)
    w = channel_weights(rows, mse, bits)
    codes, S, dead = [list(row) for row in w.codes], [list(row) for row in w.S], []
    for n in range(w.N):
        v = [w.value(n, k) for k in range(w.K)]
        if bias and is_dead(v, w.S[n][0], gx, bias[n], y is None):
            if bits == 1:
                raise Refused("weights of 1 bit have no zero")
            S[n] = [revived(w.S[n][0], gx, bias[n], bits)]
            codes[n] = [code(value, S[n][0], 1 << (bits - 1), 0.0, (1 << bits) - 1) for value in rows[n]]
            dead.append(n)
    w = Weights(bits, w.group, "symmetric", "f32", codes, S)
    return StaticLinear(w, gx, gy, bias, act, mode), dead
