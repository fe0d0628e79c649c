# SPDX-License-Identifier: Apache-2.0
"""Convolutions of sections 10 to 12: which pixel meets which weight, and nothing else; and pooling of codes.

x is [B][H][W][C], results are [B][P][Q][O]."""
import math

from .floats import F32, bits_of, fma, multiply, to_format
from .low_bit import Group, Weights, exact_linear, finish, promote, quantise_activations, quantise_group, terms_of
from .rounding import Refused, encode_ratio


class Geometry:
    """Each field a pair: of rows, of columns. pad: a pair of pairs, before and behind."""

    def __init__(self, kernel, stride=(1, 1), pad=((0, 0), (0, 0)), dilation=(1, 1), groups=1):
        self.kernel, self.stride, self.pad, self.dilation, self.groups = kernel, stride, pad, dilation, groups
        if min(*kernel, *stride, *dilation, groups) < 1 or min(v for pair in pad for v in pair) < 0:
            raise Refused("a size is too small")

    def extent(self, i):
        return self.dilation[i] * (self.kernel[i] - 1) + 1

    def size(self, image):
        out = [(image[i] + sum(self.pad[i]) - self.extent(i)) // self.stride[i] + 1 for i in (0, 1)]
        if min(out) < 1:
            raise Refused("no output")
        return out

    def place(self, i, image, output, tap):
        """Of one dimension: the pixel that this tap of the kernel has for an output, or None outside x."""
        at = output * self.stride[i] + tap * self.dilation[i] - self.pad[i][0]
        return at if 0 <= at < image[i] else None

    def pixels(self, image, p, q):
        """For each (r, s), the pixel under it, or None."""
        rows, columns = ([self.place(i, image, output, tap) for tap in range(self.kernel[i])]
                         for i, output in ((0, p), (1, q)))
        return [None if r is None or s is None else (r, s) for r in rows for s in columns]


class Transposed(Geometry):
    """A transposed convolution. more: rows and columns of y beyond the last."""

    def __init__(self, kernel, stride=(1, 1), pad=((0, 0), (0, 0)), dilation=(1, 1), groups=1, more=(0, 0)):
        super().__init__(kernel, stride, pad, dilation, groups)
        self.more = more
        if any(not 0 <= more[i] < max(stride[i], dilation[i]) for i in (0, 1)):
            raise Refused("more rows or columns than there may be")

    def size(self, image):
        out = [(image[i] - 1) * self.stride[i] + self.extent(i) - sum(self.pad[i]) + self.more[i] for i in (0, 1)]
        if min(out) < 1:
            raise Refused("no output")
        return out

    def place(self, i, image, output, tap):
        at, rest = divmod(output + self.pad[i][0] - tap * self.dilation[i], self.stride[i])
        return at if rest == 0 and 0 <= at < image[i] else None


def each_output(x, geometry, results):
    """results(b, pixels) -> [O]; arranged as [B][P][Q][O]."""
    image = len(x[0]), len(x[0][0])
    P, Q = geometry.size(image)
    return [[[results(b, geometry.pixels(image, p, q)) for q in range(Q)] for p in range(P)] for b in range(len(x))]


def channels_of(x, geometry, group):
    C = len(x[0][0][0]) // geometry.groups
    return range(group * C, (group + 1) * C)


def gather(x, b, pixels, channels, outside):
    """The row (r, s, c) of one output pixel."""
    return [outside if at is None else x[b][at[0]][at[1]][c] for at in pixels for c in channels]


def for_groups(x, geometry, O, results):
    """results(b, pixels, channels) -> [O] with the channels of one group of outputs; the outputs of their groups."""
    if len(x[0][0][0]) % geometry.groups or O % geometry.groups:
        raise Refused("groups do not divide the channels")

    def of_all(b, pixels):
        out = []
        for group in range(geometry.groups):
            of_group = range(group * O // geometry.groups, (group + 1) * O // geometry.groups)
            every = results(b, pixels, channels_of(x, geometry, group))
            out += [every[o] for o in of_group]
        return out

    return each_output(x, geometry, of_all)


def static_convolution(layer, x, geometry, residual=None):
    """layer: a StaticLinear whose k runs over (r, s, c); residual: codes [B][P][Q][O]."""
    y = for_groups(x, geometry, len(layer.v), lambda b, pixels, channels: layer.sums(
        gather(x, b, pixels, channels, layer.x.z)))
    return [[[layer.codes(acc, residual[b][p][q] if residual else None) for q, acc in enumerate(row)]
             for p, row in enumerate(image)] for b, image in enumerate(y)]


def exact_convolution(weights, x, geometry, bias=None):
    """weights: one Weights of K = C / groups for each (r, s), in order."""
    def results(b, pixels, channels):
        rows = [exact_linear(w, gather(x, b, [at], channels, 0.0)) for w, at in zip(weights, pixels)]
        return [sum(column) + (bias[o] if bias else 0) for o, column in enumerate(zip(*rows))]

    return for_groups(x, geometry, weights[0].N, results)


def on_the_fly_convolution(weights, x, geometry, asymmetric, bias=None, act=None, y_kind="f32"):
    """Bit patterns; weights as in exact_convolution."""
    first, outside = weights[0], []
    for g in range(first.G):
        outside.append(Group([0] * len(first.group_of(g)), 0.0, 0.0))
    known = {}  # every pixel is quantised once

    def groups(b, at, channels):
        if at is None:
            return outside
        key = b, at, channels.start
        if key not in known:
            row = [to_format(v, F32) for v in gather(x, b, [at], channels, 0.0)]
            known[key] = [quantise_activations([row[c] for c in first.group_of(g)], asymmetric)
                          for g in range(first.G)]
        return known[key]

    def results(b, pixels, channels):
        blocks = [groups(b, at, channels) for at in pixels]
        if any(None in block for block in blocks):
            return [bits_of(math.nan, y_kind)] * first.N
        out = []
        for o in range(first.N):
            terms = [t for w, block in zip(weights, blocks) for t in terms_of(w, o, block)]
            out.append(bits_of(finish(promote(terms, asymmetric), bias[o] if bias else 0.0, act, y_kind), y_kind))
        return out

    return for_groups(x, geometry, first.N, results)


def per_image_convolution(weights, x, geometry, bias=None, act=None, y_kind="f32"):
    """Bit patterns, with one scale for each image. weights: symmetric, K over (r, s, c), one group a row."""
    assert weights.kind == "symmetric" and weights.G == 1
    if weights.K >= 65536:
        raise Refused("65536 elements of a sum")
    codes, scales = [], []
    for image in x:
        values = [to_format(v, F32) for row in image for pixel in row for v in pixel]
        found = quantise_activations(values, False)
        scales.append(found and found.Sa)
        taken = iter(found.a if found else [0] * len(values))
        codes.append([[[next(taken) for _ in pixel] for pixel in row] for row in image])

    def results(b, pixels, channels):
        if scales[b] is None:
            return [bits_of(math.nan, y_kind)] * weights.N
        a = gather(codes, b, pixels, channels, 0)
        out = []
        for o in range(weights.N):
            d = sum(p * weights.value(o, k) for k, p in enumerate(a))
            T = fma(to_format(float(d), F32), multiply(weights.S[o][0], scales[b], F32), 0.0)
            out.append(bits_of(finish(T, bias[o] if bias else 0.0, act, y_kind), y_kind))
        return out

    return for_groups(x, geometry, weights.N, results)


class StaticStream:
    """A static convolution of one dimension whose x, [B][1][columns][C], comes in chunks."""

    def __init__(self, layer, geometry):
        (left, right), reach, stride = geometry.pad[1], geometry.extent(1) - 1, geometry.stride[1]
        if geometry.kernel[0] != 1 or geometry.pad[0] != (0, 0) or right != 0:
            raise Refused("more than one dimension, or a pad behind")
        if not max(0, reach + 1 - stride) <= left <= reach:
            raise Refused("no stream has this shape")
        self.layer, self.left, self.state = layer, left, None
        self.geometry = Geometry(geometry.kernel, geometry.stride, ((0, 0), (0, 0)), geometry.dilation, geometry.groups)

    def __call__(self, chunk):
        if len(chunk[0][0]) % self.geometry.stride[1]:
            raise Refused("a chunk is no multiple of the stride")
        if self.state is None:
            outside = [self.layer.x.z] * len(chunk[0][0][0])
            self.state = [[outside] * self.left for _ in chunk]
        columns = [before + image[0] for before, image in zip(self.state, chunk)]
        self.state = [image[len(image) - self.left:] for image in columns]
        return static_convolution(self.layer, [[image] for image in columns], self.geometry)


def check_window(geometry):
    if any(pad >= geometry.kernel[i] for i in (0, 1) for pad in geometry.pad[i]):
        raise Refused("a pad is as large as the window")


def inside_of(pixels):
    inside = [at for at in pixels if at]
    if not inside:
        raise Refused("a window without a pixel of x")
    return inside


def max_pool(x, geometry):
    check_window(geometry)
    return each_output(x, geometry, lambda b, pixels: [
        max(x[b][at[0]][at[1]][c] for at in inside_of(pixels)) for c in range(len(x[b][0][0]))])


def average_pool(x, geometry, x_grid, y_grid, mode, counts_outside):
    """counts_outside: n is the window's size, not the number of elements inside x."""
    check_window(geometry)

    def results(b, pixels):
        inside = inside_of(pixels)
        n = len(pixels) if counts_outside else len(inside)
        rescale = encode_ratio(float(x_grid.S) / float(n * y_grid.S), n * x_grid.reach)
        sums = [sum(x[b][at[0]][at[1]][c] - x_grid.z for at in inside) for c in range(len(x[b][0][0]))]
        return [y_grid.clamp(rescale(acc, mode) + y_grid.z) for acc in sums]

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
