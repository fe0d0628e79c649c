# SPDX-License-Identifier: Apache-2.0
"""Section 12: linear layers of static 8-bit codes."""
import math

from .low_bit import Weights, quantise
from .rounding import Refused, encode_ratio, rint

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1


def channel_weights(rows, mse=False):
    """8-bit symmetric weights, one float32 scale a row; a row of zeros has the smallest other one."""
    w = quantise(rows, 8, len(rows[0]), "symmetric", "f32", mse)
    fill = min([row[0] for row in w.S if row[0] > 0], default=1.0)
    return Weights(8, w.group, "symmetric", "f32", w.codes, [[row[0] or fill] for row in w.S])


class StaticLinear:
    """weights: 8-bit symmetric, one group a row; x and y: grids of 8 bits with float32 scales (y None:
    int32 accumulators out); bias [N] float32 numbers, or None."""

    def __init__(self, weights, x, y, bias=None, act=None, mode="nearest_even"):
        assert weights.bits == 8 and weights.kind == "symmetric" and weights.G == 1
        if x.bits != 8 or (y is not None and y.bits != 8):
            raise Refused("codes of x and y have 8 bits")
        if y is None and act is not None:
            raise Refused("int32 accumulators have no activation function")
        self.weights, self.x, self.y, self.mode = weights, x, y, mode
        self.v = [[weights.value(n, k) for k in range(weights.K)] for n in range(weights.N)]
        self.bias, self.bounds, self.rescales = [], [], []
        for n, row in enumerate(self.v):
            S = weights.S[n][0]
            if not S > 0:
                raise Refused("a scale of a channel is not positive")
            product = x.scale * S  # exact in float64
            b = bias[n] if bias else 0.0
            if not math.isfinite(b):
                raise Refused("a bias is not finite")
            self.bias.append(min(max(rint(b / product), INT32_MIN), INT32_MAX))
            self.bounds.append(sum(map(abs, row)) * x.reach + abs(self.bias[n]))
            if y is None:
                if self.bounds[n] > INT32_MAX:
                    raise Refused("the accumulator does not fit int32")
            else:
                self.rescales.append(encode_ratio(product / y.scale, self.bounds[n]))
        if y is not None:
            self.lo, self.hi = (y.qmin, y.qmax) if act is None else [y.quantize(v) for v in act]

    def __call__(self, a):
        """One row of codes -> [N] codes, or int32 accumulators."""
        out = []
        for n, row in enumerate(self.v):
            acc = sum(p * q for p, q in zip(a, row)) - self.x.z * sum(row) + self.bias[n]
            assert abs(acc) <= self.bounds[n]
            if self.y is None:
                out.append(acc)
            else:
                out.append(min(max(self.rescales[n](acc, self.mode) + self.y.z, self.lo), self.hi))
        return out
