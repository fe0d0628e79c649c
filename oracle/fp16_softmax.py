# SPDX-License-Identifier: Apache-2.0
"""Section 13: softmax of a row of float16 codes. Exact integers n * 2^e between the roundings that the
page names; e^d far below zero is kept as it is, not cut."""
import math

from .floats import F16, F32, round_scaled, scaled, subtract, to_format
from .fp16_functions import NAN16, code16, constants, value16
from .fp16_tables import reduce_by
from .rounding import Refused, round_ratio


def shift_rint(n, e):
    """n * 2^e to an integer, ties to even."""
    return n << e if e >= 0 else round_ratio(n, 1 << min(-e, n.bit_length() + 2), "nearest_even")


class Softmax:
    def __init__(self, exp, reciprocal):
        if (exp.reduction, reciprocal.reduction) != ("exp", "reciprocal"):
            raise Refused("reductions")
        self.exp, self.reciprocal = exp.pieces[0], reciprocal.pieces[0]
        if self.exp.model != self.reciprocal.model:
            raise Refused("two models")
        for table, low in ((self.exp, 0.5), (self.reciprocal, 0.25)):
            if not all(low <= v <= 2 for v in table.values):
                raise Refused("a value out of range")

    def power(self, d):
        """e^d for a float32 d: n, e of the number n * 2^e"""
        if math.isinf(d):
            return 0, 0
        k, r = reduce_by(d, constants()["log2_e"], constants()["ln2"])
        n, e = scaled(self.exp(r))
        return n, e + k

    def __call__(self, codes):
        x = [value16(c) for c in codes]
        largest = max((v for v in x if not math.isnan(v)), default=math.nan)
        if any(map(math.isnan, x)) or math.isinf(largest):
            return [NAN16] * len(codes)
        powers = [self.power(subtract(v, largest, F32) if math.isfinite(v) else v) for v in x]
        fixed = [shift_rint(n, e + 30) for n, e in powers]
        assert all(0 <= v < 1 << 32 for v in fixed) and 0 < sum(fixed) < 1 << 63
        m, k = math.frexp(round_scaled(sum(fixed), 0, F32))
        m, k = 2 * m, k - 1
        assert 1 <= m < 2 and k <= 62
        q, qe = scaled(self.reciprocal(m))
        out = []
        for n, e in powers:
            v = round_scaled(n * q, e + qe + 30 - k, F32) if n else 0.0
            out.append(code16(to_format(v, F16)))
        return out
