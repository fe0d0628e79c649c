# SPDX-License-Identifier: Apache-2.0
"""training.json: section 14, its functions and its gradients. README.md has the format."""
import math
from fractions import Fraction

from .floats import bits_of, f32, from_bits32
from .training import LOG2E, Direction, E, sigmoid, tanh, times
from .vectors import Rng

NORMAL, LEAST, LARGEST = 2.0 ** -126, 2.0 ** -149, from_bits32("7f7fffff")
GRADIENTS = ("dx", "dW", "dR", "dbw", "dbr", "dh0")


def texts(value):
    """Bit patterns of nested lists."""
    if value is None:
        return None
    return [texts(v) for v in value] if isinstance(value, list) else bits_of(value, "f32")


def flat(value):
    if isinstance(value, list):
        return [v for part in value for v in flat(part)]
    return [] if value is None else [value]


def digest(values):
    """FNV-1a of 64 bits over float32 bit patterns, 4 bytes each, least significant byte first."""
    h = 0xcbf29ce484222325
    for v in values:
        for byte in bytes.fromhex(bits_of(v, "f32"))[::-1]:
            h = (h ^ byte) * 0x100000001b3 & (1 << 64) - 1
    return "%016x" % h


def neighbours(x):
    """x of nonzero magnitude, and the float32 numbers before and after it."""
    code = int(bits_of(x, "f32"), 16)
    return [from_bits32("%08x" % (code + d)) for d in (-1, 0, 1)]


def half_steps():
    """Arguments of E whose product with log2 e is rounded to a tie of rint, and their neighbours: some of even and
    some of odd k."""
    found = {0: [], 1: []}
    for k in range(126):
        near = neighbours(-f32(Fraction(2 * k + 1, 2) / Fraction(LOG2E)))
        if any(times(x, LOG2E) == -(k + 0.5) for x in near) and len(found[k % 2]) < 12:
            found[k % 2] += near
    return found[0] + found[1]


def function_arguments(rng):
    some = [math.nan]
    for x in (0.0, LEAST, NORMAL - LEAST, NORMAL, 1e-40, 1e-30, 1.0, 88.0, 200.0, 1e30, LARGEST, math.inf):
        some += [f32(x), -f32(x)]
    for x in (0.625, 87.0, 43.5, 9.0, 17.0):
        some += neighbours(x) + neighbours(-x)
    some += half_steps()
    some += [rng.real(-87, 0) for _ in range(60)] + [rng.bell(3.0) for _ in range(70)]
    some += [rng.bell(0.4) for _ in range(50)]
    while len(some) < 300:
        some.append(f32(math.ldexp(rng.bits(24), rng.int(-70, -17))))
    return some


def function_case(rng):
    x = function_arguments(rng)
    return {"op": "functions", "x": texts(x), "E": [bits_of(E(v), "f32") if v <= 0 else None for v in x],
            "sigmoid": texts([sigmoid(v) for v in x]), "tanh": texts([tanh(v) for v in x])}


class Layer:
    """One case: sizes, then tensors that a case may replace before it is computed. h0, dh_last, mask: whether they
    are given. period: R has no more numbers than these, repeated."""

    def __init__(self, rng, name, C, H, T, N, lengths=None, reverse=False, h0=False, dh_last=False, mask=False,
                 weights=0.5, period=None):
        def numbers(width, *shape):
            if not shape:
                return rng.bell(width)
            return [numbers(width, *shape[1:]) for _ in range(shape[0])]

        self.name, self.reverse, self.lengths, self.period = name, reverse, lengths, period
        self.C, self.H, self.T, self.N = C, H, T, N
        self.W = numbers(weights, 3 * H, C)
        if period:
            self.repeated = numbers(weights, period)
            self.R = [[self.repeated[(c * H + k) % period] for k in range(H)] for c in range(3 * H)]
        else:
            self.R = numbers(weights, 3 * H, H)
        self.bw, self.br = numbers(0.5, 3 * H), numbers(0.5, 3 * H)
        self.x, self.dy = numbers(1.0, T, N, C), numbers(1.0, T, N, H)
        self.h0 = numbers(0.5, N, H) if h0 else None
        self.dh_last = numbers(1.0, N, H) if dh_last else None
        self.mask = [[[int(rng.int(0, 2) > 0) for _ in range(H)] for _ in range(N)] for _ in range(T)] if mask else None

    def compute(self):
        direction = Direction(self.W, self.R, self.bw, self.br, self.reverse)
        self.run = direction.forward(self.x, self.h0, self.lengths, self.mask)
        self.gradients = direction.backward(self.run, self.dy, self.dh_last)
        return self

    def results(self):
        return [v for value in [self.run.y, self.run.h_last, *self.gradients.values()] for v in flat(value)]

    def json(self):
        case = {"op": "layer", "name": self.name, "T": self.T, "N": self.N, "C": self.C, "H": self.H,
                "reverse": self.reverse, "W": texts(self.W)}
        case["R_repeated" if self.period else "R"] = texts(self.repeated if self.period else self.R)
        case |= {"bw": texts(self.bw), "br": texts(self.br), "x": texts(self.x), "h0": texts(self.h0),
                 "lengths": self.lengths, "mask": self.mask, "dy": texts(self.dy), "dh_last": texts(self.dh_last)}
        case |= {key: texts(getattr(self.run, key)) for key in ("u", "r", "n", "q", "y", "h_last")}
        for key in GRADIENTS:
            if key == "dR" and self.period:
                case["dR_fnv1a64"] = digest(flat(self.gradients[key]))
            else:
                case[key] = texts(self.gradients[key])
        return case


def small_layers(rng):
    layers = [Layer(rng, "one step of one unit", 1, 1, 1, 1),
              Layer(rng, "lengths of 0, 1 and 2", 1, 2, 2, 3, [0, 1, 2], h0=True, dh_last=True),
              Layer(rng, "reverse with zoneout", 2, 1, 6, 1, reverse=True, mask=True),
              Layer(rng, "everything, reverse", 5, 2, 4, 2, [4, 2], True, True, True, True),
              Layer(rng, "NaN past the lengths, reverse", 2, 5, 5, 3, [3, 0, 5], True, dh_last=True),
              Layer(rng, "NaN past the lengths, zoneout", 1, 2, 4, 2, [1, 3], h0=True, mask=True),
              Layer(rng, "zoneout", 17, 5, 3, 2, dh_last=True, mask=True),
              Layer(rng, "everything", 5, 17, 3, 2, [3, 1], False, True, True, True),
              Layer(rng, "17 by 2, reverse", 17, 2, 2, 1, reverse=True, h0=True),
              Layer(rng, "no steps", 2, 2, 2, 2, [0, 0], h0=True, dh_last=True)]
    for layer in layers:
        if "NaN" in layer.name:
            for t in range(layer.T):
                for b in range(layer.N):
                    if t >= layer.lengths[b]:
                        layer.x[t][b], layer.dy[t][b] = [math.nan] * layer.C, [math.nan] * layer.H
        layer.compute()
        assert not any(math.isnan(v) for v in layer.results())
    layers[-1].h0[0] = layers[-1].dh_last[1] = [-0.0, 0.5]
    layers[-1].compute()
    return layers


def chunk_layers(rng):
    """Sums of more than 256 terms: over k of x, over the steps, over k of h and over rows."""
    layers = [Layer(rng, "chunks over the inputs", 260, 1, 1, 2, weights=0.05),
              Layer(rng, "chunks over the steps, reverse", 1, 1, 100, 3, [100, 75, 98], reverse=True),
              Layer(rng, "chunks over the states and rows", 1, 257, 1, 1, h0=True, weights=0.1, period=101)]
    assert sum(layers[1].lengths) > 256
    return [layer.compute() for layer in layers]


def extreme_layers(rng):
    saturated = Layer(rng, "saturated gates", 2, 5, 4, 2, [4, 3], h0=True, dh_last=True, mask=True, weights=1.0)
    saturated.x = [[[rng.real(-200, 200) for _ in range(2)] for _ in range(2)] for _ in range(4)]
    saturated.x[0][0], saturated.x[1][0], saturated.x[2][1] = [200.0, -200.0], [-200.0, -200.0], [200.0, 200.0]
    saturated.compute()
    gates = flat(saturated.run.u + saturated.run.r)
    assert 1.0 in gates and min(gates) < 2.0 ** -125 and {1.0, -1.0} <= set(flat(saturated.run.n))

    # sums of products that are not normal, some of which are -0 before the first chunk is added; biases are 0
    small = Layer(rng, "subnormal numbers", 5, 2, 3, 2, [3, 2], reverse=True, h0=True, dh_last=True)
    shrink = lambda value, k: [shrink(v, k) for v in value] if isinstance(value, list) else f32(math.ldexp(value, k))
    small.W, small.x, small.h0 = shrink(small.W, -70), shrink(small.x, -66), shrink(small.h0, -140)
    small.bw, small.br = [0.0] * 6, [-0.0] * 6
    small.dy, small.dh_last = shrink(small.dy, -75), shrink(small.dh_last, -140)
    small.x[0][1] = [v * 2.0 ** -70 for v in [1.0, -1.0, 0.5, -0.25, 1.0]]
    small.dy[2][0] = [LEAST, -LEAST]
    small.compute()
    subnormal = [v for v in small.results() if 0 < abs(v) < NORMAL]
    assert len(subnormal) > 40 and 0.0 in flat(small.gradients["dW"])

    # saturated update gates make gradients that are not normal, of weights and inputs that are
    held = Layer(rng, "subnormal gradients", 2, 2, 5, 1, h0=True, mask=True)
    held.bw = [-60.0, 70.0, -86.0, 0.25, 0.5, 45.0]
    held.dy = shrink(held.dy, -18)
    held.compute()
    assert any(0 < abs(v) < NORMAL for v in flat(held.gradients["dW"]))

    over = Layer(rng, "sums that overflow", 2, 2, 3, 3, [3, 3, 2], h0=True)
    over.x[1][0], over.x[0][1], over.h0[2] = [LARGEST, LARGEST], [LARGEST, -LARGEST], [-LARGEST, 1.0]
    over.dy[1][2] = [LARGEST, LARGEST]
    for row in over.W:
        row[:] = [f32(math.copysign(abs(v) + 1.5, v)) for v in row]
    over.compute()
    assert {math.isnan(v) for v in over.results()} == {True, False} and math.inf in map(abs, over.results())

    # infinity less infinity in the first unit's u; n of the second is that of an infinite q
    mixed = Layer(rng, "sums that overflow, with NaN in y", 2, 2, 2, 2, h0=True, mask=True)
    mixed.W[0], mixed.R[0], mixed.R[5] = [2.0, 0.5], [0.25, -4.0], [1.0, 8.0]
    mixed.x[0][1], mixed.h0[1], mixed.mask[0] = [LARGEST, 0.0], [0.5, LARGEST], [[1, 0], [1, 1]]
    mixed.mask[1] = [[0, 1], [1, 0]]
    mixed.compute()
    assert math.isnan(mixed.run.u[0][1][0]) and math.isnan(mixed.run.y[0][1][0])
    assert math.isinf(mixed.run.q[0][1][1]) and not any(math.isnan(step[0][0]) for step in mixed.run.y)
    return [saturated, small, held, over, mixed]


def make_training():
    layers = small_layers(Rng(61)) + chunk_layers(Rng(62)) + extreme_layers(Rng(63))
    return {"description": "training a GRU in floats (section 14)",
            "cases": [function_case(Rng(60))] + [layer.json() for layer in layers]}
