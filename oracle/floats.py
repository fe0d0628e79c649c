# SPDX-License-Identifier: Apache-2.0
"""float32 arithmetic, modelled exactly. A float32 value is a Python float (which holds
every float32 exactly); each operation is done in rationals and rounded once."""
import math
import struct
from fractions import Fraction

from .rounding import rint


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


READERS = {"f32": from_bits32, "f64": from_bits64, "f16": from_bits16, "bf16": from_bits_bf16}
