# SPDX-License-Identifier: Apache-2.0
"""float32, float16 and bfloat16 arithmetic, modelled exactly. A number of a format is a Python float
(which holds every one of them exactly); each operation is done in rationals or integers and rounded
once, to nearest even. Python's own float is float64."""
import math
import struct
from fractions import Fraction

from .rounding import rint

F16, F32, BF16 = (11, -14, 15), (24, -126, 127), (8, -126, 127)  # digits, lowest, highest exponent


def round_binary(v, digits, min_exp, max_exp):
    """Fraction -> nearest-even value with `digits` significant bits, as Fraction, or
    +-inf. min_exp and max_exp are exponents of the smallest normal and of the top binade."""
    if v == 0:
        return Fraction(0)
    a = abs(v)
    e = a.numerator.bit_length() - a.denominator.bit_length()
    if Fraction(2) ** e > a:  # now 2^e <= a < 2^(e + 1)
        e -= 1
    quantum = Fraction(2) ** (max(e, min_exp) - (digits - 1))
    r = rint(a / quantum) * quantum
    if r >= Fraction(2) ** (max_exp + 1):
        return math.inf if v > 0 else -math.inf
    return r if v > 0 else -r


def f32(v):
    """Nearest float32 of an int, float or Fraction (subnormals kept, overflow to inf)."""
    if isinstance(v, float) and not math.isfinite(v):
        return v
    return float(round_binary(Fraction(v), 24, -126, 127))


def mul32(a, b):
    """One float32 multiply. Used only where the second factor is finite and not zero."""
    if math.isnan(a) or math.isinf(a):
        return a if b > 0 else -a
    return f32(Fraction(a) * Fraction(b))


def div32(a, b):
    return f32(Fraction(a) / Fraction(b))


# Operations of every format; signs of zeros, infinities and NaN are those of IEEE 754.

def round_scaled(n, e, fmt):
    """n * 2^e -> nearest number of a format, ties to even, as a Python float. n is not 0; a result
    of zero has its sign."""
    digits, low, high = fmt
    a = abs(n)
    top = a.bit_length() - 1 + e
    if top > high:
        return math.copysign(math.inf, n)
    q = max(top, low) - digits + 1  # exponent of the last place
    if q > e:
        shift = q - e
        if shift > a.bit_length() + 1:
            a = 0
        else:
            rest, a = a & ((1 << shift) - 1), a >> shift
            half = 1 << (shift - 1)
            a += rest > half or (rest == half and a & 1)
        e = q
    if a.bit_length() - 1 + e > high:
        return math.copysign(math.inf, n)
    return math.copysign(math.ldexp(a, e), n)  # exact: every format is within float64


def round_fraction(v, fmt):
    """Any Fraction, correctly rounded; 0 gives +0."""
    n, d = v.numerator, v.denominator
    if n == 0:
        return 0.0
    if d & (d - 1) == 0:
        return round_scaled(n, 1 - d.bit_length(), fmt)
    shift = max(0, d.bit_length() - abs(n).bit_length() + 200)  # 200 bits and a sticky one
    q = (abs(n) << shift) // d * 2 + 1
    return round_scaled(q if n > 0 else -q, -shift - 1, fmt)


def scaled(v):
    """v = n * 2^e"""
    n, d = v.as_integer_ratio()
    return n, 1 - d.bit_length()


def to_format(v, fmt):
    if v == 0 or not math.isfinite(v):
        return v
    return round_scaled(*scaled(v), fmt)


def subtract(a, b, fmt):
    if not (math.isfinite(a) and math.isfinite(b)):
        return a - b
    (n, e), (m, f) = scaled(a), scaled(b)
    g = min(e, f)
    n = (n << e - g) - (m << f - g)
    return round_scaled(n, g, fmt) if n else a - b


def multiply(a, b, fmt):
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b
    (n, e), (m, f) = scaled(a), scaled(b)
    return round_scaled(n * m, e + f, fmt) if n and m else a * b


def add(a, b, fmt):
    return subtract(a, -b, fmt)


def divide(a, b, fmt):
    return round_fraction(Fraction(a) / Fraction(b), fmt)


def fma(a, b, c, fmt=F32):
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c  # an infinity or NaN, whatever the rounding of the product
    (n, e), (m, f), (l, h) = scaled(a), scaled(b), scaled(c)
    if n == 0 or m == 0:
        return to_format(a * b + c, fmt)  # of a zero, or of c itself
    e += f
    g = min(e, h)
    n = (n * m << e - g) + (l << h - g)
    return round_scaled(n, g, fmt) if n else 0.0


def is_normal32(v):
    return math.isfinite(v) and abs(v) >= 2.0 ** -126


def bits32(v):
    """Value of a float32 -> 8 hexadecimal digits (the float must hold a float32)."""
    out = struct.pack(">f", v)
    assert math.isnan(v) or struct.unpack(">f", out)[0] == v
    return out.hex()


def from_bits32(text):
    return struct.unpack(">f", bytes.fromhex(text))[0]


def bits64(v):
    return struct.pack(">d", v).hex()


def from_bits64(text):
    return struct.unpack(">d", bytes.fromhex(text))[0]


def from_bits16(text):
    return struct.unpack(">e", bytes.fromhex(text))[0]


def from_bits_bf16(text):
    return from_bits32(text + "0000")


def bits_of(v, kind):
    """The bit pattern of a number of format `kind` (NaN: the quiet one without payload)."""
    if math.isnan(v):
        return {"f32": "7fc00000", "f16": "7e00", "bf16": "7fc0", "f64": "7ff8000000000000"}[kind]
    if kind == "f16":
        out = struct.pack(">e", v)
        assert struct.unpack(">e", out)[0] == v
        return out.hex()
    if kind == "bf16":
        assert bits32(v)[4:] == "0000"
        return bits32(v)[:4]
    return bits64(v) if kind == "f64" else bits32(v)


FORMATS = {"f32": F32, "f16": F16, "bf16": BF16}
READERS = {"f32": from_bits32, "f64": from_bits64, "f16": from_bits16, "bf16": from_bits_bf16}
