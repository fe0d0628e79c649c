# SPDX-License-Identifier: Apache-2.0
"""learned_grids.json: section 14, learned grids. README.md has the format."""
import math

from .floats import f32
from .gru import Unit
from .learned_grids import TENSORS, Input, log2_step_gradient, step_gradient, sums
from .qat import IntegerDirection
from .qat_vectors import FINE, shrink
from .training_vectors import LEAST, NORMAL, flat, texts
from .vectors import Rng, random_unit

WHOLE = {"ih": 4, "hh": 4, "u_in": 4, "r_in": 4, "n_in": 4, "h": 1, "R": -1}  # grids wide enough for all that arrives
# ih and hh are cut often, and their sum is not always
ENDS = {"W": 1, "R": 2, "br": 1, "ih": 0, "hh": 0, "u_in": 0, "r_in": 0, "n_in": 0, "h": -1}


class Case:
    """A unit and what goes in. beyond: by how much of its grid's range floats of x and h0 leave it; halves: they are
    half or whole steps; large: rests and sides are not printed. The rest as in qat_vectors.Case."""

    def __init__(self, rng, name, unit, T, N, lengths=None, reverse=False, h0=False, dh_last=False, masks=None,
                 beyond=1 / 16, halves=False, large=False):
        def make(what, *shape):
            return [make(what, *shape[1:]) for _ in range(shape[0])] if shape else what()

        def real(g):
            low, high = (float((q - g.z) * g.S) for q in (g.qmin, g.qmax))
            x = rng.real(low - beyond * (high - low), high + beyond * (high - low))
            return f32(math.floor(x / float(g.S) * 2) / 2 * float(g.S)) if halves else x

        g, H = unit.grids, unit.H
        self.name, self.unit, self.T, self.N, self.lengths, self.reverse = name, unit, T, N, lengths, reverse
        self.large, self.repeated = large, None
        self.x = make(lambda: real(g["x"]), T, N, unit.C)
        self.h0 = make(lambda: real(g["h"]), N, H) if h0 else None
        self.mask = make(lambda: int(rng.int(1, 100) <= masks), T, N, H) if masks is not None else None
        self.dy = make(lambda: rng.bell(1.0), T, N, H)
        self.dh_last = make(lambda: rng.bell(1.0), N, H) if dh_last else None

    def compute(self):
        grids = self.unit.grids
        self.input = Input(grids["x"], self.x)
        self.state = None if self.h0 is None else Input(grids["h"], self.h0)
        self.direction = IntegerDirection(self.unit, self.reverse)
        self.run = self.direction.forward(self.input.codes, self.state and self.state.codes, self.lengths, self.mask)
        self.gradients = self.direction.backward(self.run, self.dy, self.dh_last)
        self.sums = sums(self.run, self.input, self.gradients["dx"])
        self.steps = {name: step_gradient(grids[name], *self.sums[name]) for name in TENSORS}
        return self

    def both_sides(self):
        """The tensors with gradients below and above."""
        return {name for name in TENSORS if self.sums[name][1] and self.sums[name][2]}

    def within(self, value):
        """[T][N], null past a length."""
        return [[v if t < self.run.lengths[b] else None for b, v in enumerate(step)] for t, step in enumerate(value)]

    def json(self):
        unit, run = self.unit, self.run
        layer = unit.json()
        if self.repeated:
            layer = {("R_repeated" if key == "R" else key): self.repeated if key == "R" else value
                     for key, value in layer.items()}
        case = {"name": self.name, "mode": unit.mode, "power_of_two": unit.power, "T": self.T, "N": self.N,
                "C": unit.C, "H": unit.H, "directions": 1, "reverse": self.reverse, "layers": [[layer]],
                "x": texts(self.x), "h0": texts(self.h0), "lengths": self.lengths, "mask": self.mask,
                "dy": texts(self.dy), "dh_last": texts(self.dh_last),
                "x_codes": self.input.codes, "h0_codes": self.state and self.state.codes,
                "y": run.codes["y"], "h_last": run.codes["h_last"]}
        shown = {"x_sides": self.within(self.input.sides), "x_rests": self.within(texts(self.input.rests)),
                 "sides": run.sides, "rests": [[texts(v) for v in step] for step in run.rests]}
        case |= {key: None if self.large else value for key, value in shown.items()}
        case["dx"] = texts(self.input.stopped(self.gradients["dx"]))
        dh0 = self.gradients["dh0"]
        case["dh0"] = texts(dh0 if self.state is None else self.state.stopped(dh0))
        case["sums"] = {}
        for name in TENSORS:
            step = self.steps[name]
            numbers = [*self.sums[name], step, log2_step_gradient(unit.grids[name], step)]
            assert all(map(math.isfinite, numbers)), (self.name, name)
            case["sums"][name] = dict(zip(("inside", "below", "above", "step", "log2_step"), texts(numbers)))
        return case


def repeat_R(unit, period):
    """-> the unit with R of `period` numbers, repeated; those numbers"""
    few = flat(unit.R)[:period]
    R = [[few[(c * unit.H + k) % period] for k in range(unit.H)] for c in range(3 * unit.H)]
    return Unit(unit.grids, unit.row_grids, unit.W, R, unit.bw, unit.br, unit.tables, unit.mode, margin=4), few


def make_cases():
    cases = []

    def add(seed, name, mode, power, C, H, T, N, run=None, **kw):
        rng = Rng(seed)
        case = Case(rng, name, random_unit(rng, mode, power, C, H, **kw), T, N, **(run or {}))
        cases.append(case)
        return case.compute()

    add(300, "one unit", "nearest_even", True, 1, 1, 4, 2, {"halves": True}, signed={"u": False, "r": False, "*": True})
    add(301, "8 bits, general scales", "nearest_up", False, 5, 3, 4, 2, {"h0": True, "dh_last": True},
        signed={"*": True})

    # every tensor has gradients below and above
    ends = add(302, "both sides", "nearest_away", True, 5, 3, 6, 3, {"h0": True, "dh_last": True, "beyond": 1 / 4,
                                                                    "halves": True}, exponent=ENDS)
    ends.x[1][0][:4], ends.x[2][1][:4] = [math.inf, -math.inf, 3e38, -3e38], [f32(1e-40), -0.0, 0.0, -LEAST]
    ends.x = [[[f32(v) for v in row] for row in step] for step in ends.x]
    every = [ends.compute(),
             add(333, "both sides, general scales, everything, reverse", "floor", False, 3, 4, 7, 3,
                 {"lengths": [7, 3, 5], "reverse": True, "h0": True, "dh_last": True, "masks": 70, "beyond": 1 / 4},
                 exponent=ENDS),
             add(336, "both sides, zoneout", "nearest_even", False, 2, 5, 5, 3,
                 {"h0": True, "dh_last": True, "masks": 50, "beyond": 1 / 4}, exponent=ENDS),
             add(335, "both sides, halves, reverse", "nearest_up", True, 3, 4, 5, 3,
                 {"lengths": [4, 5, 5], "reverse": True, "dh_last": True, "masks": 80, "beyond": 1 / 4,
                  "halves": True}, exponent=ENDS)]
    for case in every:
        assert case.both_sides() == set(TENSORS), (case.name, case.both_sides())
    # a kept unit's h' is outside its grid, or inside with a rest, and no sum has it
    run = every[2].run
    kept = [(run.sides[t][b][i][9], run.rests[t][b][i][9]) for t, b in run.valid() for i in range(5)
            if run.keeps(t, b, i)]
    assert {side for side, _ in kept} == {-1, 0, 1} and any(rest for _, rest in kept)

    whole = add(306, "no saturation", "floor", True, 3, 4, 4, 2, {"h0": True, "dh_last": True, "beyond": -1 / 8},
                exponent=WHOLE)
    assert all(whole.sums[name][1:] == (0.0, 0.0) for name in TENSORS)
    few = add(307, "some saturations", "nearest_even", False, 5, 17, 3, 2,
              {"h0": True, "dh_last": True, "masks": 80, "beyond": 1 / 16, "large": True},
              exponent={"ih": 1, "hh": 0, "u_in": 1, "r_in": 1, "n_in": 1, "R": -1})
    assert sum(any(few.sums[name][1:]) for name in TENSORS) > 3

    add(308, "mixed widths, interpolated tables", "floor", False, 2, 3, 4, 2, {"h0": True, "dh_last": True},
        bits={"x": 12, "h": 16, "ih": 16, "hh": 16, "u_in": 16, "r_in": 12, "n_in": 16, "u": 16, "r": 8, "n": 12,
              "W": 4, "R": 16, "bw": 16}, steps=None)
    left = add(309, "rescales to the left", "nearest_away", True, 2, 3, 4, 2, {"h0": True, "masks": 75},
               bits={"x": 4, "W": 3, "bw": 4, "h": 4, "R": 4, "br": 6, "ih": 16, "hh": 9, "u_in": 16, "r_in": 12})
    assert {r.n > 0 for r in left.unit.rs["acc_to_ih"]} == {False} and left.unit.rs["hh_to_u"].n < 0

    # what is left of -1 and a little more in float32
    tiny = add(310, "rests of -1", "floor", True, 3, 2, 4, 2, {"h0": True, "dh_last": True, "masks": 80},
               exponent={"W": -40, "bw": -40, "x": -6, "ih": 5})
    rests = [rest for t, b in tiny.run.valid() for each in tiny.run.rests[t][b] for rest in each[:3]]
    assert rests.count(-1.0) > 5 and all(rest == -1.0 or -2.0 ** -28 < rest <= 0 for rest in rests)
    assert sum(-1 < rest < 0 for rest in rests) > 5

    held = Case(Rng(311), "lengths of 0, 1 and 3, reverse", random_unit(
        Rng(411), "nearest_even", True, 1, 3, signed={"*": True}, table="segments", exponent={"h": -1}), 5, 4,
        [3, 0, 5, 1], True, h0=True, dh_last=True, masks=75)
    for t in range(held.T):  # neither counts
        for b in range(held.N):
            if t >= held.lengths[b]:
                held.dy[t][b], held.x[t][b] = [math.nan] * 3, [f32(1e30)]
    cases.append(held.compute())

    # codes less zero points that are no float32 numbers
    wide = add(312, "32 bits", "nearest_up", False, 2, 3, 4, 2, {"h0": True, "dh_last": True, "beyond": 1 / 4},
               bits={"x": 32, "h": 32, "ih": 32, "hh": 32, "bw": 32}, exponent={"ih": 0, "hh": -1, "h": -1})
    for name in ("x", "h", "ih", "hh"):
        g = wide.unit.grids[name]
        assert any(wide.sums[name][k] and f32(q - g.z) != q - g.z for k, q in ((1, g.qmin), (2, g.qmax))), name

    small = add(313, "subnormal gradients", "nearest_even", False, 2, 3, 4, 3, {"h0": True, "masks": 90,
                                                                              "beyond": 1 / 4}, exponent=FINE)
    small.dy = [shrink(step, (-128, -144, -131, -127)[t]) for t, step in enumerate(small.dy)]
    small.compute()
    assert sum(0 < abs(v) < NORMAL for name in TENSORS for v in small.sums[name]) > 15

    long = add(315, "more than 256 steps", "nearest_even", False, 2, 1, 90, 3,
               {"lengths": [90, 85, 88], "h0": True, "beyond": 1 / 8, "large": True}, steps=None,
               exponent={**ENDS, "br": -1, "bw": -1})
    assert 256 < sum(long.lengths) < 270 and long.both_sides() == set(TENSORS)
    add(316, "more than 256 columns of x, reverse", "floor", True, 300, 1, 2, 2,
        {"reverse": True, "beyond": 1 / 16, "large": True}, bits={"W": 4}, exponent={"W": -2})
    add(327, "more than 256 columns of ih and hh", "nearest_away", False, 2, 90, 2, 2,
        {"lengths": [2, 1], "h0": True, "masks": 90, "large": True}, bits={"R": 2, "W": 4, "bw": 4, "br": 4})

    rng = Rng(320)
    unit, few = repeat_R(random_unit(rng, "nearest_up", True, 1, 270, bits={"R": 4, "W": 4, "bw": 4, "br": 4},
                                     exponent={"R": -2}), 61)
    units = Case(rng, "more than 256 units", unit, 2, 1, h0=True, large=True)
    units.repeated = few
    cases.append(units.compute())
    return cases


def make_learned_grids():
    cases = make_cases()
    for power in (False, True):
        modes = {c.unit.mode for c in cases if c.unit.power == power}
        assert modes == {"nearest_even", "nearest_up", "nearest_away", "floor"}, (power, modes)
    return {"description": "learned grids of a GRU (section 14)", "cases": [c.json() for c in cases]}
