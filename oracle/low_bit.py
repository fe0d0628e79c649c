# SPDX-License-Identifier: Apache-2.0
"""Sections 9 to 11: weights of 1, 2, 4 and 8 bits, and linear layers with float activations. float64
is Python's float; every other operation is one of floats.py. No list of weights is empty."""
import math
from fractions import Fraction

from .floats import F32, FORMATS, add, bits_of, divide, fma, multiply, subtract, to_format
from .rounding import Refused, rint

KINDS = ("symmetric", "zero_point", "offset")
NORMAL16 = 2.0 ** -14         # the smallest normal float16 number
SMALLEST = 2.0 ** -118        # amax and D below this count as 0
CHUNK = 16                    # groups of one partial sum
NONE, RELU, RELU6 = None, (0.0, math.inf), (0.0, 6.0)


# ---------------------------------------------------------------- section 9

def check_shape(bits, K, group):
    if bits not in (1, 2, 4, 8):
        raise Refused("bits %d: 1, 2, 4 or 8" % bits)
    if K < 1 or group != K and (group < 8 or group > K or group % 8):
        raise Refused("group %d: K = %d, or a multiple of 8 below it" % (group, K))


def pack(codes, bits):
    """One row: low bits first, zeros up to a multiple of 4 bytes."""
    value = sum(c << (k * bits) for k, c in enumerate(codes))
    return value.to_bytes(-(-len(codes) * bits // 32) * 4, "little")


def unpack(row, K, bits):
    value = int.from_bytes(row, "little")
    return [value >> (k * bits) & (1 << bits) - 1 for k in range(K)]


class Weights:
    """codes [N][K], S [N][G], z (symmetric: None; zero_point: [N][G]; offset: one integer),
    O [N][G] (offset only); S and O are numbers of the format `store`."""

    def __init__(self, bits, group, kind, store, codes, S, z=None, O=None):
        K = len(codes[0])
        check_shape(bits, K, group)
        half, top = 1 << (bits - 1), 1 << bits
        if kind == "symmetric":
            z, allowed = half, (half,)
        elif kind == "zero_point":
            allowed = range(top + 1)
        else:
            allowed = (0, half)
        G = -(-K // group)
        self.z = z if isinstance(z, list) else [[z] * G for _ in codes]
        self.O = O
        if (O is None) != (kind != "offset") or any(one not in allowed for row in self.z for one in row):
            raise Refused("the zero points or offsets are not those of the kind " + kind)
        for v in [v for row in S + (O or []) for v in row]:
            assert v == to_format(v, FORMATS[store])
            if not math.isfinite(v):
                raise Refused("a scale or an offset is not finite")
        assert all(0 <= w < top for row in codes for w in row)
        self.bits, self.group, self.kind, self.store, self.codes, self.S = bits, group, kind, store, codes, S
        self.N, self.K, self.G = len(codes), K, G
        for n in range(self.N):
            for g in range(G):
                self.check_group(n, g)

    def check_group(self, n, g):
        first = g * self.group
        if any(not math.isfinite(self.decode_code(w, n, first)) for w in (0, (1 << self.bits) - 1)):
            raise Refused("a code stands for a weight that is not finite in float32")
        if self.S[n][g] == 0 and any(self.codes[n][k] != self.z[n][g] for k in self.group_of(g)):
            raise Refused("a scale of 0 loses codes")

    def group_of(self, g):
        return range(g * self.group, min((g + 1) * self.group, self.K))

    def value_of(self, w, n, k):
        return 2 * w - 1 if self.bits == 1 and self.kind == "symmetric" else w - self.z[n][k // self.group]

    def value(self, n, k):
        """v: the integer that S multiplies."""
        return self.value_of(self.codes[n][k], n, k)

    def exact(self, n, k):
        g = k // self.group
        return Fraction(self.S[n][g]) * self.value(n, k) + (Fraction(self.O[n][g]) if self.O else 0)

    def decode_code(self, w, n, k):
        """The weight of code w in the group of k: float32, the product rounded, then the sum."""
        g = k // self.group
        product = multiply(self.S[n][g], float(self.value_of(w, n, k)), F32)
        return add(product, self.O[n][g], F32) if self.O else product

    def decode(self, n, k):
        return self.decode_code(self.codes[n][k], n, k)

    def json(self):
        def texts(rows):
            return [[bits_of(v, self.store) for v in row] for row in rows]

        out = {"bits": self.bits, "group": self.group, "kind": self.kind, "store": self.store,
               "K": self.K, "w": [pack(row, self.bits).hex() for row in self.codes], "S": texts(self.S)}
        if self.kind == "zero_point":
            out["z"] = self.z
        if self.kind == "offset":
            out["z"], out["O"] = self.z[0][0], texts(self.O)
        return out


def stored(v, store):
    """A float64 parameter as it is saved; zeros are +0."""
    out = to_format(v, FORMATS[store]) + 0.0
    if math.isinf(out):
        raise Refused("a parameter is infinite as " + store)
    return out


def stored_scale(raw, store):
    S = stored(raw, store)
    if store == "f16" and raw != 0 and S < NORMAL16:
        raise Refused("a scale below 2^-14 is not kept in float16; use bfloat16")
    return S


def code(w, S, z, O, top):
    """clamp(rint((W - O) / S) + z) in float64; S is not 0."""
    return min(max(rint((w - O) / S) + z, 0), top)


def encode_group(values, bits, kind, store, lo, hi):
    """codes, S, z, O for the range [lo, hi] (float64) of a group that is not 1-bit symmetric."""
    top, half = (1 << bits) - 1, 1 << (bits - 1)
    z, O = 0, 0.0
    if kind == "symmetric":
        S, z = stored_scale(max(hi / (half - 1), -lo / half), store), half
    else:
        S = stored_scale((hi - lo) / top, store)
        if kind == "offset":
            O = stored(lo, store)
        elif S != 0:
            z = min(max(rint(-lo / S), 0), top)
    codes = [z if S == 0 else code(w, S, z, O, top) for w in values]
    return codes, S, z, O


def squared_error(values, codes, S, z, O):
    """float64, every operation rounded, ascending k."""
    error = 0.0
    for w, c in zip(values, codes):
        d = w - (S * (c - z) + O)
        error += d * d
    return error


def quantise_group(values, bits, kind, store, mse=False):
    if bits == 1 and kind == "symmetric":
        total = 0.0
        for w in values:
            total += abs(w)
        S = stored_scale(total / len(values), store)
        return [1 if S == 0 or w >= 0 else 0 for w in values], S, 1, 0.0
    lo, hi = min(values), max(values)
    if kind == "zero_point":
        lo, hi = min(lo, 0.0), max(hi, 0.0)
    best = encode_group(values, bits, kind, store, lo, hi)
    if mse:
        least = squared_error(values, *best)
        for i in range(1, 32):
            factor = 1 - i / 64
            try:
                candidate = encode_group(values, bits, kind, store, lo * factor, hi * factor)
            except Refused:
                continue
            error = squared_error(values, *candidate)
            if error < least:
                best, least = candidate, error
    return best


def quantise(rows, bits, group, kind, store, mse=False):
    """rows [N][K] of float32 numbers -> Weights. symmetric is absmax, the others minmax; mse searches
    the factor of the range."""
    if any(not math.isfinite(w) for row in rows for w in row):
        raise Refused("a weight is not finite")
    check_shape(bits, len(rows[0]), group)
    codes, parts = [], []
    for row in rows:
        groups = [quantise_group(row[k:k + group], bits, kind, store, mse)
                  for k in range(0, len(row), group)]
        codes.append([c for one in groups for c in one[0]])
        parts.append(groups)
    S, z, O = [[[g[i] for g in groups] for groups in parts] for i in (1, 2, 3)]
    return Weights(bits, group, kind, store, codes, S,
                   {"symmetric": None, "zero_point": z, "offset": 0}[kind], O if kind == "offset" else None)


# ---------------------------------------------------------------- section 10

def activate(y, act):
    """y < lo ? lo : y > hi ? hi : y; NaN stays, and so does -0 where lo is 0."""
    if act is None:
        return y
    lo, hi = act
    return lo if y < lo else hi if y > hi else y


def exact_linear(weights, x, bias=None):
    """The real result [N] of one row x, before the activation function."""
    return [sum((weights.exact(n, k) * Fraction(v) for k, v in enumerate(x)), Fraction(0)) +
            (Fraction(bias[n]) if bias else 0) for n in range(weights.N)]


def bound_squared(kind, K):
    """Square of the largest relative error of a row, exactly."""
    return {"f32": Fraction(K, 10 ** 12), "f16": Fraction(2, 1000) ** 2, "bf16": Fraction(1, 100) ** 2}[kind]


def within_bound(y, reference, kind, K):
    """Norms over one row of results; y finite."""
    error = sum((Fraction(a) - b) ** 2 for a, b in zip(y, reference))
    norm = sum(b * b for b in reference)
    return error < bound_squared(kind, K) * norm or error == norm == 0


# ---------------------------------------------------------------- section 11

class Group:
    """One group of a row of activations: codes a, Sa, Oa."""

    def __init__(self, a, Sa, Oa):
        self.a, self.Sa, self.Oa = a, Sa, Oa
        self.t = sum(a)


def quantise_activations(x, asymmetric):
    """float32 numbers of one group -> Group, or None where they count as not finite."""
    if any(not math.isfinite(v) for v in x):
        return None
    if not asymmetric:
        amax = max(abs(v) for v in x)
        if amax < SMALLEST:
            return Group([0] * len(x), 0.0, 0.0)
        inv = divide(127.0, amax, F32)
        return Group([min(max(rint(multiply(v, inv, F32)), -127), 127) for v in x], divide(amax, 127.0, F32), 0.0)
    top = max(x)
    D = subtract(top, min(x), F32)
    if math.isinf(D):
        return None
    if D < SMALLEST:
        return Group([0] * len(x), 0.0, top)
    Sa, inv = divide(D, 255.0, F32), divide(255.0, D, F32)
    Oa = fma(-127.0, Sa, top)
    a = [min(max(rint(multiply(subtract(v, Oa, F32), inv, F32)), -128), 127) for v in x]
    return Group(a, Sa, Oa)


def promote(terms, asymmetric):
    """T of one result. terms: one (d, t, V, L, Sa, Oa, S, O) a group, O None but in the offset kind."""
    def real(i):
        return to_format(float(i), F32)  # |i| is far below 2^53

    T = 0.0
    for start in range(0, len(terms), CHUNK):
        acc = 0.0
        for d, t, V, L, Sa, Oa, S, O in terms[start:start + CHUNK]:
            acc = fma(real(d), multiply(S, Sa, F32), acc)
            if asymmetric:
                acc = fma(real(V), multiply(S, Oa, F32), acc)
            if O is not None:
                X = multiply(Sa, real(t), F32)
                if asymmetric:
                    X = fma(Oa, real(L), X)
                acc = fma(O, X, acc)
        T = add(T, acc, F32)
    return T


def finish(T, bias, act, y_kind):
    return to_format(activate(add(T, bias, F32), act), FORMATS[y_kind])


def terms_of(weights, n, groups):
    """What promote() needs of row n of the weights and the groups of a row of activations."""
    out = []
    for g, one in enumerate(groups):
        v = [weights.value(n, k) for k in weights.group_of(g)]
        out.append((sum(p * q for p, q in zip(one.a, v)), one.t, sum(v), len(v), one.Sa, one.Oa,
                    weights.S[n][g], weights.O[n][g] if weights.O else None))
    return out


def groups_of(weights, x, asymmetric):
    """The groups of one row; x holds numbers of any format, float64 is rounded to float32 first."""
    x = [to_format(v, F32) for v in x]
    return [quantise_activations([x[k] for k in weights.group_of(g)], asymmetric) for g in range(weights.G)]


def on_the_fly(weights, x, asymmetric, bias=None, act=None, y_kind="f32"):
    """Bit patterns [N] of one row, as an unchecked kernel gives them."""
    groups = groups_of(weights, x, asymmetric)
    if None in groups:
        return [bits_of(math.nan, y_kind)] * weights.N
    return [bits_of(finish(promote(terms_of(weights, n, groups), asymmetric), bias[n] if bias else 0.0, act,
                           y_kind), y_kind) for n in range(weights.N)]
