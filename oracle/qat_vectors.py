# SPDX-License-Identifier: Apache-2.0
"""qat.json: section 14, quantisation-aware training. README.md has the format."""
import math

from .floats import bits32, f32
from .qat import IntegerDirection
from .training_vectors import GRADIENTS, LEAST, NORMAL, flat, texts
from .vectors import Rng, random_unit

EVERY_BIT = (1 << 10) - 1


class Case:
    """A unit and what goes in. h0, dh_last: whether they are given; masks: of 100, how many units are not kept, or
    None; extreme: x and h0 are at the ends of their grids."""

    def __init__(self, rng, name, unit, T, N, lengths=None, reverse=False, h0=False, dh_last=False, masks=None,
                 extreme=False):
        def code(g):
            return rng.pick([g.qmin, g.qmax]) if extreme else rng.int(g.qmin, g.qmax)

        def make(what, *shape):
            return [make(what, *shape[1:]) for _ in range(shape[0])] if shape else what()

        g, H = unit.grids, unit.H
        self.name, self.unit, self.T, self.N, self.lengths, self.reverse = name, unit, T, N, lengths, reverse
        self.x = make(lambda: code(g["x"]), T, N, unit.C)
        self.h0 = make(lambda: code(g["h"]), N, H) if h0 else None
        self.mask = make(lambda: int(rng.int(1, 100) <= masks), T, N, H) if masks is not None else None
        self.dy = make(lambda: rng.bell(1.0), T, N, H)
        self.dh_last = make(lambda: rng.bell(1.0), N, H) if dh_last else None

    def compute(self):
        self.direction = IntegerDirection(self.unit, self.reverse)
        self.run = self.direction.forward(self.x, self.h0, self.lengths, self.mask)
        self.gradients = self.direction.backward(self.run, self.dy, self.dh_last)
        return self

    def counts(self):
        """For each of the ten bits how often it is 0 and 1; of h' only where the mask has 1."""
        out = [[0, 0] for _ in range(10)]
        for t, b in self.run.valid():
            for i, bits in enumerate(self.run.passes[t][b]):
                for k in range(10):
                    if k < 9 or not self.run.keeps(t, b, i):
                        out[k][bits >> k & 1] += 1
        return out

    def json(self):
        unit, codes = self.unit, self.run.codes
        case = {"name": self.name, "mode": unit.mode, "power_of_two": unit.power, "T": self.T, "N": self.N,
                "C": unit.C, "H": unit.H, "directions": 1, "reverse": self.reverse, "layers": [[unit.json()]],
                "x": self.x, "h0": self.h0, "lengths": self.lengths, "mask": self.mask,
                "dy": texts(self.dy), "dh_last": texts(self.dh_last)}
        case |= {key: codes[key] for key in ("u", "r", "n", "hh_n", "y", "h_last")}
        case["passes"] = self.run.passes
        case |= {key: texts(self.gradients[key]) for key in GRADIENTS}
        assert not any(math.isnan(v) for key in GRADIENTS for v in flat(self.gradients[key]))
        return case


def shrink(value, k):
    return [shrink(v, k) for v in value] if isinstance(value, list) else f32(math.ldexp(value, k))


# grids too fine for some of what arrives
FINE = {"ih": 0, "hh": -2, "u_in": -1, "r_in": -1, "n_in": -1, "h": -1}


def make_cases():
    cases = []

    def add(seed, name, mode, power, C, H, T, N, run=None, **kw):
        rng = Rng(seed)
        case = Case(rng, name, random_unit(rng, mode, power, C, H, **kw), T, N, **(run or {}))
        cases.append(case)
        return case.compute()

    add(100, "one unit", "nearest_even", True, 1, 1, 4, 2, signed={"u": False, "r": False, "*": True})
    add(101, "8 bits, general scales", "nearest_up", False, 5, 3, 4, 2, {"h0": True, "dh_last": True},
        signed={"*": True})
    every = [add(102, "every clamp", "nearest_even", True, 5, 3, 6, 3, {"h0": True, "dh_last": True},
                 exponent=FINE),
             add(103, "every clamp, general scales, everything, reverse", "floor", False, 2, 3, 7, 3,
                 {"lengths": [7, 3, 5], "reverse": True, "h0": True, "dh_last": True, "masks": 70},
                 exponent={**FINE, "hh": -1})]
    for case in every:
        assert min(min(pair) for pair in case.counts()) > 0, case.counts()
    few = add(104, "few saturations", "nearest_even", False, 5, 17, 3, 2, {"h0": True, "dh_last": True, "masks": 80},
              exponent={"ih": 3, "hh": 3, "u_in": 3, "r_in": 3, "n_in": 3, "W": -1, "R": -2, "h": 0})
    kept = every[1].run
    assert any(kept.keeps(t, b, i) and not bits >> 9 for t, b in kept.valid()
               for i, bits in enumerate(kept.passes[t][b]))  # h' does not fit, but is not taken
    zeros, ones = (sum(pair[k] for pair in few.counts()) for k in (0, 1))
    assert 0 < zeros < ones / 50, (zeros, ones)
    add(105, "4 bits, zoneout", "nearest_away", True, 2, 3, 5, 2, {"h0": True, "masks": 60}, bits={"*": 4})
    add(106, "mixed widths, interpolated tables", "floor", False, 2, 3, 4, 2, {"h0": True, "dh_last": True},
        bits={"x": 12, "h": 16, "ih": 16, "hh": 16, "u_in": 16, "r_in": 12, "n_in": 16, "u": 16, "r": 8, "n": 12,
              "W": 4, "R": 16, "bw": 16}, steps=None)

    held = Case(Rng(107), "lengths of 0, 1 and 3, reverse", random_unit(
        Rng(207), "nearest_even", True, 1, 3, signed={"*": True}, table="segments", exponent={"h": -1}), 5, 4,
        [3, 0, 5, 1], True, h0=True, dh_last=True, masks=75)
    for t in range(held.T):  # neither is read
        for b in range(held.N):
            if t >= held.lengths[b]:
                held.dy[t][b] = [math.nan] * 3
    held.dh_last[1] = [-0.0, 0.5, 0.0]
    cases.append(held.compute())
    assert bits32(held.gradients["dh0"][1][0]) == "80000000"

    long = add(108, "more than 256 steps", "nearest_even", False, 2, 1, 90, 3, {"lengths": [90, 85, 88], "h0": True},
               steps=None)
    assert 256 < sum(long.lengths) < 270

    # codes that are no float32 numbers
    wide = add(109, "32 bits", "nearest_even", False, 2, 3, 3, 2, {"h0": True, "dh_last": True},
               bits={"x": 32, "h": 32, "ih": 32, "hh": 32, "bw": 32})
    for grid, codes in (("x", wide.x), ("hh", wide.run.codes["hh_n"]), ("h", wide.h0)):
        g = wide.unit.grids[grid]
        assert any(g.dequantize(q) != f32((q - g.z) * g.S) for q in flat(codes)), grid

    # n of 249 steps reaches -125 * 2/249, below -1: 1 - n^2 is below 0
    below = add(110, "n below -1, subnormal gradients", "nearest_up", False, 2, 3, 4, 3, {"h0": True, "masks": 90},
                signed={"n": True}, steps=7, exponent={"W": 2, "bw": 2, "n_in": 4, "ih": 4, "hh": 3, "h": 1})
    below.dy = [shrink(step, (-128, -144, -131, 0)[t]) for t, step in enumerate(below.dy)]
    below.dy[0][1] = [LEAST, -LEAST, 0.0]
    below.lengths = [4, 3, 3]
    below.compute()
    assert any(n < -1 and bits == EVERY_BIT and not below.run.keeps(t, b, i) for t, b in below.run.valid()
               for i, (n, bits) in enumerate(zip(below.run.n[t][b], below.run.passes[t][b])))
    assert sum(0 < abs(v) < NORMAL for v in flat(below.gradients["dx"])) > 5
    return cases


def make_qat():
    cases = make_cases()
    assert {c.unit.mode for c in cases} == {"nearest_even", "nearest_up", "nearest_away", "floor"}
    return {"description": "quantisation-aware training of a GRU (section 14)", "cases": [c.json() for c in cases]}
