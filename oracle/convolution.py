# SPDX-License-Identifier: Apache-2.0
"""Convolutions of sections 10 to 12: which pixel meets which weight, and nothing else. x is [B][C][H][W];
results are [B][O][P][Q]."""
import math

from .floats import F32, bits_of, to_format
from .low_bit import Group, Weights, exact_linear, finish, promote, quantise_activations, quantise_group, terms_of


class Geometry:
    """Each field a pair: of rows, of columns."""

    def __init__(self, kernel, stride=(1, 1), pad=(0, 0), dilation=(1, 1)):
        self.kernel, self.stride, self.pad, self.dilation = kernel, stride, pad, dilation

    def size(self, image):
        return [(image[i] + 2 * self.pad[i] - self.dilation[i] * (self.kernel[i] - 1) - 1) // self.stride[i] + 1
                for i in (0, 1)]

    def pixels(self, image, p, q):
        """For each (r, s), the pixel under it, or None outside."""
        out = []
        for r in range(self.kernel[0]):
            for s in range(self.kernel[1]):
                at = [o * self.stride[i] + k * self.dilation[i] - self.pad[i]
                      for i, o, k in ((0, p, r), (1, q, s))]
                out.append(tuple(at) if all(0 <= a < n for a, n in zip(at, image)) else None)
        return out


def each_output(x, geometry, results):
    """results(b, pixels) -> [O]; arranged as [B][O][P][Q]."""
    image = len(x[0][0]), len(x[0][0][0])
    P, Q = geometry.size(image)
    out = []
    for b in range(len(x)):
        table = [[results(b, geometry.pixels(image, p, q)) for q in range(Q)] for p in range(P)]
        out.append([[[cell[o] for cell in row] for row in table] for o in range(len(table[0][0]))])
    return out


def gather(x, b, pixels, outside):
    """The row (r, s, c) of one output pixel."""
    return [outside if at is None else channel[at[0]][at[1]] for at in pixels for channel in x[b]]


def static_convolution(layer, x, geometry):
    """layer: a StaticLinear whose k runs over (r, s, c)."""
    return each_output(x, geometry, lambda b, pixels: layer(gather(x, b, pixels, layer.x.z)))


def exact_convolution(weights, x, geometry, bias=None):
    """weights: one Weights of K = C for each (r, s), in order."""
    def results(b, pixels):
        rows = [exact_linear(w, gather(x, b, [at], 0.0)) for w, at in zip(weights, pixels)]
        return [sum(column) + (bias[o] if bias else 0) for o, column in enumerate(zip(*rows))]

    return each_output(x, geometry, results)


def on_the_fly_convolution(weights, x, geometry, asymmetric, bias=None, act=None, y_kind="f32"):
    """Bit patterns; weights as in exact_convolution."""
    first, outside = weights[0], []
    for g in range(first.G):
        outside.append(Group([0] * len(first.group_of(g)), 0.0, 0.0))
    known = {}  # every pixel is quantised once

    def groups(b, at):
        if at is None:
            return outside
        if (b, at) not in known:
            row = [to_format(v, F32) for v in gather(x, b, [at], 0.0)]
            known[b, at] = [quantise_activations([row[c] for c in first.group_of(g)], asymmetric)
                            for g in range(first.G)]
        return known[b, at]

    def results(b, pixels):
        blocks = [groups(b, at) for at in pixels]
        if any(None in block for block in blocks):
            return [bits_of(math.nan, y_kind)] * first.N
        out = []
        for o in range(first.N):
            terms = [t for w, block in zip(weights, blocks) for t in terms_of(w, o, block)]
            out.append(bits_of(finish(promote(terms, asymmetric), bias[o] if bias else 0.0, act, y_kind), y_kind))
        return out

    return each_output(x, geometry, results)


def quantise_shared(kernels, bits, group, kind, store, mse=False):
    """kernels [O][R * S][C] -> one Weights for each (r, s); all (r, s) share the parameters of a block of c."""
    O, taps, C = len(kernels), len(kernels[0]), len(kernels[0][0])
    codes = [[[0] * C for _ in range(O)] for _ in range(taps)]
    S, z, offsets = ([[0.0] * -(-C // group) for _ in range(O)] for _ in range(3))
    for o in range(O):
        for g in range(-(-C // group)):
            block = range(g * group, min((g + 1) * group, C))
            found, S[o][g], z[o][g], offsets[o][g] = quantise_group(
                [kernels[o][tap][c] for tap in range(taps) for c in block], bits, kind, store, mse)
            for i, (tap, c) in enumerate((tap, c) for tap in range(taps) for c in block):
                codes[tap][o][c] = found[i]
    return [Weights(bits, group, kind, store, codes[tap], S, {"symmetric": None, "zero_point": z, "offset": 0}[kind],
                    offsets if kind == "offset" else None) for tap in range(taps)]
