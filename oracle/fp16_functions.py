# SPDX-License-Identifier: Apache-2.0
"""The correctly rounded float16 result of a function at every float16 code.

Every value is enclosed between two integers in units of 2^-bits, each step rounded outwards. Where
both ends round to the same float16 number, so does the value; where they do not, `bits` is doubled.
Results that may lie on a rounding boundary are computed as fractions instead: they are the rational
functions of RATIONAL. No other result can: a boundary is rational, and at a rational x that is not 0
e^x, log x (x not 1), sin x, cos x and rational functions of e^x are irrational (Lindemann), sqrt x
and 1/sqrt x are rational only where they have at most 11 bits themselves. That the loop ends for
erf and gelu, of which this is not known, is seen from its ending."""
import math
from fractions import Fraction
from functools import lru_cache

from .floats import F16, F32, round_fraction, round_scaled

NAN16, INF16, MINUS = 0x7E00, 0x7C00, 0x8000


def value16(code):
    """float16 code -> Python float."""
    e, m = code >> 10 & 31, code & 1023
    if e == 31:
        v = math.nan if m else math.inf
    else:
        v = math.ldexp(m + (1024 if e else 0), max(e, 1) - 25)
    return -v if code & MINUS else v


def code16(v):
    """Python float that holds a float16 number (or NaN) -> code."""
    if math.isnan(v):
        return NAN16
    sign = MINUS if math.copysign(1, v) < 0 else 0
    v = abs(v)
    if v == math.inf:
        return sign | INF16
    if v < 2.0 ** -14:
        m = v * 2.0 ** 24
        assert m == int(m)
        return sign | int(m)
    f, e = math.frexp(v)
    m = f * 2048
    assert m == int(m) and -13 <= e <= 16
    return sign | (e + 14) << 10 | int(m) - 1024


class Enclosure:
    """Arithmetic of intervals (lo, hi), integers in units of 2^-bits."""

    def __init__(self, bits):
        self.bits, self.one = bits, 1 << bits
        n = bits + 64

        def series(inverse, alternate):  # units 2^-n: sum of +-(1/inverse)^(2i+1) / (2i+1)
            power, total, i = (1 << n) // inverse, 0, 0
            while power:
                total += power // (2 * i + 1) * (-1 if alternate and i & 1 else 1)
                power //= inverse * inverse
                i += 1
            return total

        # Machin; each of some n terms is less than 2 units off, so 64 more bits are plenty
        pi = 4 * (4 * series(5, True) - series(239, True))
        ln2 = 2 * series(3, False)
        self.pi, self.ln2 = [((v - (1 << 32) >> 64), (v + (1 << 32) >> 64) + 1) for v in (pi, ln2)]
        self.half_pi = (self.pi[0] // 2, self.pi[1] // 2 + 1)
        self.root_2_pi = self.sqrt(self.div((2 * self.one, 2 * self.one), self.pi))      # sqrt(2/pi)
        self.two_root_pi = self.mul(self.root_2_pi, self.sqrt((2 * self.one, 2 * self.one)))  # 2/sqrt(pi)

    def number(self, v):
        n, d = v.numerator << self.bits, v.denominator
        return n // d, -(-n // d)

    def add(self, a, b):
        return a[0] + b[0], a[1] + b[1]

    def sub(self, a, b):
        return a[0] - b[1], a[1] - b[0]

    def mul(self, a, b):
        p = (a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1])
        return min(p) >> self.bits, -(-max(p) >> self.bits)

    def div(self, a, b):
        assert b[0] > 0
        lo, hi = a[0] << self.bits, a[1] << self.bits
        return lo // b[1 if lo >= 0 else 0], -(-hi // b[0 if hi >= 0 else 1])

    def sqrt(self, a):
        return math.isqrt(a[0] << self.bits), math.isqrt(a[1] << self.bits) + 1

    def exp(self, a):
        """e^a = 2^k (e^(r/256))^256 with r = a - k ln 2 >= 0; the series has positive terms."""
        t, (l0, l1) = a[0], self.ln2
        k = t // (l1 if t >= 0 else l0)
        assert k < 256, "the caller keeps away from large results"
        if a[1] < -(self.bits + 2) * l1:
            return 0, 1
        lo = max(t - k * (l1 if k > 0 else l0), 0) >> 8
        hi = (a[1] - k * (l0 if k > 0 else l1) >> 8) + 1
        total = term = self.one
        n = 0
        while term:
            n += 1
            term = (term * lo >> self.bits) // n
            total += term
        low, high = total, total + 2 * n + 4    # a term is less than 2 units off, so is the tail
        high += (high * 2 * (hi - lo) >> self.bits) + 1   # e^d <= 1 + 2 d for 0 <= d <= 1
        for _ in range(8):
            low, high = low * low >> self.bits, (high * high >> self.bits) + 1
        return (low << k, high << k) if k >= 0 else (low >> -k, (high >> -k) + 1)

    def log(self, a):
        """j ln 2 + 2 atanh(z), z = (m - 1)/(m + 1), a[0] = m 2^j."""
        t = a[0]
        assert t > 0
        j = t.bit_length()
        if t * t * 2 < 1 << 2 * j:   # m below sqrt(1/2)
            j -= 1
        unit = 1 << j
        z = (abs(t - unit) << self.bits) // (t + unit)
        z2 = z * z >> self.bits
        power, total, i = z, 0, 0
        while power:
            total += power // (2 * i + 1)
            power = power * z2 >> self.bits
            i += 1
        near = 2 * (3 * i + 5)       # z is 1 unit off, z2 2, a power 2, a term 3, the tail 3
        low, high = 2 * total, 2 * total + near
        if t < unit:
            low, high = -high, -low
        k = j - self.bits
        low += k * self.ln2[0 if k >= 0 else 1]
        high += k * self.ln2[1 if k >= 0 else 0]
        return low, high + -(-((a[1] - t) << self.bits) // t)   # log(b) - log(a) <= (b - a)/a

    def sin_cos(self, x):
        """(sin, cos) of a Fraction."""
        t, exact = self.number(x)
        assert t == exact
        p = self.half_pi[0]
        k = (2 * t + p) // (2 * p)
        r, off = t - k * p, 2 * abs(k)          # half_pi is at most 2 units wide
        r2 = r * r >> self.bits
        out = []
        for term, n in ((abs(r), 1), (self.one, 0)):
            total, sign, count = 0, 1, 0
            while term:
                total += sign * term
                term = (term * r2 >> self.bits) // ((n + 1) * (n + 2))
                n, sign, count = n + 2, -sign, count + 1
            if len(out) == 0 and r < 0:
                total = -total
            near = 2 * count + 4 + off           # a term is less than 2 units off, so is the tail
            out.append((total - near, total + near))
        s, c = out
        for _ in range(k % 4):                   # a quarter turn
            s, c = c, (-s[1], -s[0])
        return s, c

    def erf(self, x, over_root_2):
        """erf(x) or erf(x / sqrt 2) for a Fraction x >= 0, by a series of positive terms:
        sqrt(2/pi) e^(-y^2/2) (y + y^3/3 + y^5/15 + ...), y = x or sqrt(2) x."""
        y2 = x * x if over_root_2 else 2 * x * x
        factor = self.exp(self.number(-y2 / 2))
        if y2 > 64:
            return self.one - factor[1], self.one      # 1 - erf(x) <= e^(-x^2)
        num, den = y2.numerator, y2.denominator
        term, exact = self.number(x)
        assert term == exact
        err, total, total_err, n = 1, 0, 0, 1
        while True:
            total, total_err = total + term, total_err + err
            n += 2
            term, err = term * num // (den * n), err * num // (den * n) + 2
            if term < 4 and 2 * num < den * n:
                break
        s = (total, total + total_err + 2 * (term + err) + 8)
        return self.mul(self.mul(s, factor), self.root_2_pi if over_root_2 else self.two_root_pi)


context = lru_cache(None)(Enclosure)


def logistic(c, t):
    """1 / (1 + e^-t) for an interval t; for t < 0 as e^t / (1 + e^t)."""
    if t[0] >= 0:
        return c.div((c.one, c.one), c.add((c.one, c.one), c.exp((-t[1], -t[0]))))
    e = c.exp(t)
    return c.div(e, c.add((c.one, c.one), e))


def swish(c, x, beta):
    return c.mul(c.number(x), logistic(c, c.number(beta * x)))


def gelu(c, x):
    e = c.erf(abs(x), True)
    return c.mul(c.number(x / 2), c.add((c.one, c.one), e if x > 0 else (-e[1], -e[0])))


def gelu_tanh(c, x):
    """x/2 (1 + tanh u) = x / (1 + e^(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3)"""
    u = c.mul(c.root_2_pi, c.number(2 * (x + Fraction("0.044715") * x ** 3)))
    return c.mul(c.number(x), logistic(c, u))


def tanh(c, x):
    e = c.exp(c.number(-2 * abs(x)))
    v = c.div(c.sub((c.one, c.one), e), c.add((c.one, c.one), e))
    return v if x > 0 else (-v[1], -v[0])


def exp(c, x):
    return c.exp(c.number(min(x, Fraction(100))))  # above 100 every format here overflows


def mish(c, x):
    """x tanh(log(1 + e^x)) = x (w^2 - 1)/(w^2 + 1), w = 1 + e^x"""
    e = c.exp(c.number(-abs(x)))
    one, two, e2 = (c.one, c.one), (2 * c.one, 2 * c.one), c.mul(e, e)
    if x > 0:
        top = c.add(one, c.mul(two, e))
        bottom = c.add(top, c.mul(two, e2))
    else:
        top = c.add(e2, c.mul(two, e))
        bottom = c.add(top, two)
    return c.mul(c.number(x), c.div(top, bottom))


def softplus(c, x):
    """max(x, 0) + log(1 + e^-|x|)"""
    return c.add(c.number(max(x, Fraction(0))),
                 c.log(c.add((c.one, c.one), c.exp(c.number(-abs(x))))))


def elu(c, x):
    return c.number(x) if x > 0 else c.sub(c.exp(c.number(x)), (c.one, c.one))


# the decimals of the paper, as far as they are customarily printed
SELU_ALPHA = Fraction("1.6732632423543772848170429916717")
SELU_SCALE = Fraction("1.0507009873554804934193349852946")


def selu(c, x):
    if x > 0:
        return c.number(SELU_SCALE * x)
    return c.mul(c.number(SELU_SCALE * SELU_ALPHA), elu(c, x))


def erf(c, x):
    e = c.erf(abs(x), False)
    return e if x > 0 else (-e[1], -e[0])


def log(c, x):
    return c.log(c.number(x))


def inverse_sigmoid(c, x):
    return c.sub(c.log(c.number(x)), c.log(c.number(1 - x)))


def clamp(v, lo, hi):
    return min(max(v, Fraction(lo)), Fraction(hi))


RATIONAL = {
    "hardswish": lambda x: x * clamp(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: clamp(x + 3, 0, 6) / 6,
    "relu": lambda x: max(x, Fraction(0)),
    "leaky_relu": lambda x: x if x > 0 else x / 100,
    "relu6": lambda x: clamp(x, 0, 6),
    "reciprocal": lambda x: 1 / x,
    "square": lambda x: x * x,
}
IRRATIONAL = {
    "silu": lambda c, x: swish(c, x, 1),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "sigmoid": lambda c, x: logistic(c, c.number(x)),
    "tanh": tanh,
    "exp": exp,
    "log": log,
    "sin": lambda c, x: c.sin_cos(x)[0],
    "cos": lambda c, x: c.sin_cos(x)[1],
    "mish": mish,
    "softplus": softplus,
    "elu": elu,
    "selu": selu,
    "quick_gelu": lambda c, x: swish(c, x, Fraction("1.702")),
    "erf": erf,
    "sqrt": lambda c, x: c.sqrt(c.number(x)),
    "rsqrt": lambda c, x: c.sqrt(c.div((c.one, c.one), c.number(x))),
    "inverse_sigmoid": inverse_sigmoid,
}
# f(0) = 0 here with the sign of x, and so has every result that is rounded to zero
SIGN_OF_X = {"silu", "gelu", "gelu_tanh", "tanh", "sin", "mish", "elu", "selu", "hardswish", "swish",
             "quick_gelu", "leaky_relu", "erf", "sqrt", "reciprocal"}
NAN, INF, ZERO, ONE = math.nan, math.inf, 0.0, 1.0
AT_INFINITY = {  # f(-inf), f(inf): the limits; a float stands for itself, rounded
    "silu": (-ZERO, INF), "gelu": (-ZERO, INF), "gelu_tanh": (-ZERO, INF), "sigmoid": (ZERO, ONE),
    "tanh": (-ONE, ONE), "exp": (ZERO, INF), "log": (NAN, INF), "sin": (NAN, NAN),
    "cos": (NAN, NAN), "mish": (-ZERO, INF), "softplus": (ZERO, INF), "elu": (-ONE, INF),
    "selu": (round_fraction(-SELU_SCALE * SELU_ALPHA, F16), INF), "hardswish": (-ZERO, INF),
    "hardsigmoid": (ZERO, ONE), "quick_gelu": (-ZERO, INF), "relu": (ZERO, INF),
    "leaky_relu": (-INF, INF), "relu6": (ZERO, 6.0), "erf": (-ONE, ONE), "sqrt": (NAN, INF),
    "rsqrt": (NAN, ZERO), "reciprocal": (-ZERO, ZERO), "square": (INF, INF),
    "inverse_sigmoid": (NAN, NAN),
}
AT_ZERO = {"log": -INF, "inverse_sigmoid": -INF}
FUNCTIONS = ("silu", "gelu", "gelu_tanh", "sigmoid", "tanh", "exp", "log", "sin", "cos", "mish",
             "softplus", "elu", "selu", "hardswish", "hardsigmoid", "swish", "quick_gelu", "relu",
             "leaky_relu", "relu6", "erf", "sqrt", "rsqrt", "reciprocal", "square",
             "inverse_sigmoid")
DOMAIN = {"log": lambda x: x >= 0, "sqrt": lambda x: x >= 0, "rsqrt": lambda x: x >= 0,
          "inverse_sigmoid": lambda x: 0 <= x <= 1}


def swish_at_infinity(beta):
    if beta == 0:
        return -INF, INF
    return (-ZERO, INF) if beta > 0 else (-INF, ZERO)


def rounded(function, x, fmt=F16, beta=1.0):
    """f(x) for a Fraction x != 0 inside the domain, correctly rounded to a format."""
    v = None
    if function in RATIONAL:
        v = round_fraction(RATIONAL[function](x), fmt)
    elif function == "swish" and beta == 0:
        v = round_fraction(x / 2, fmt)
    else:
        bits = 128
        while v is None:
            assert bits < 1 << 14, "no decision: is this result on a boundary?"
            c = context(bits)
            if function == "swish":
                lo, hi = swish(c, x, Fraction(beta))
            else:
                lo, hi = IRRATIONAL[function](c, x)
            assert lo <= hi
            low = round_scaled(lo, -bits, fmt) if lo else 0.0
            if low == (round_scaled(hi, -bits, fmt) if hi else 0.0):
                v = low
            bits *= 2
    if v == 0:
        return -ZERO if function in SIGN_OF_X and x < 0 else ZERO
    return v


def exact16(function, code, beta=1.0):
    """The result at one float16 code, a code."""
    x = value16(code)
    if math.isnan(x):
        return NAN16
    if math.isinf(x):
        at = swish_at_infinity(beta) if function == "swish" else AT_INFINITY[function]
        return code16(at[x > 0])
    if not DOMAIN.get(function, lambda x: True)(x):
        return NAN16
    if x == 0:
        if function in ("reciprocal", "rsqrt"):
            return code16(math.copysign(math.inf, x))
        if function in AT_ZERO:
            return code16(AT_ZERO[function])
        if function in SIGN_OF_X:
            return code16(x)
        if function in ("relu", "relu6", "square"):
            return 0
        # sigmoid, exp, cos, softplus, hardsigmoid
    if function == "inverse_sigmoid" and x == 1:
        return INF16
    return code16(rounded(function, Fraction(x), F16, beta))


def split(v, parts):
    """Real constant (interval in a context of 256 bits) -> float32 parts, each nearest to the rest."""
    rest, out = Fraction(v[0] + v[1], 1 << 257), []
    for _ in range(parts):
        out.append(round_fraction(rest, F32))
        rest -= Fraction(out[-1])
    return out


@lru_cache(None)
def constants():
    """float32 constants of the range reductions."""
    c = context(256)
    one = (c.one, c.one)
    return {"two_over_pi": split(c.div(one, c.half_pi), 1)[0], "half_pi": split(c.half_pi, 3),
            "log2_e": split(c.div(one, c.ln2), 1)[0], "ln2": split(c.ln2, 3)}
