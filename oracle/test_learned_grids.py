# SPDX-License-Identifier: Apache-2.0
"""Section 14, learned grids, against values worked by hand, the trace of section 7 and finite differences."""
import math
import unittest
from fractions import Fraction
from unittest import mock

from . import learned_grids, training
from .floats import add, bits32, f32, from_bits32
from .grid import Grid
from .gru import Unit
from .learned_grids import (BITS, LN2, TENSORS, Input, column, columns, log2_step_gradient, quantize, step_gradient,
                            sums)
from .learned_grids_vectors import ENDS, Case, make_cases
from .qat import IntegerDirection, passes, rest
from .rounding import MODES, Rescale
from .tables import Direct
from .test_qat import BOTTOM_0, TOP_0, Plain, unit_by_hand
from .test_training import differences, plain_sigmoid
from .training import total
from .training_vectors import flat, texts
from .vectors import Rng, random_unit

NOTHING = (0.0, 0.0, 0.0)


class ByHand(unittest.TestCase):
    def test_rests_of_rescales(self):
        # in the order of MODES
        for v, found in ((5, [-0.25] * 4), (6, [0.5, 0.5, 0.5, -0.5]), (10, [-0.5, 0.5, 0.5, -0.5]),
                         (-6, [-0.5, 0.5, -0.5, -0.5]), (-10, [0.5, 0.5, -0.5, -0.5]), (-5, [0.25] * 3 + [-0.75]),
                         (7, [0.25] * 3 + [-0.75]), (8, [0.0] * 4), (0, [0.0] * 4)):
            self.assertEqual([rest(Rescale(1, 2), v, mode) for mode in MODES], found, v)
        self.assertEqual(rest(Rescale(3, 3), 3, "floor"), -0.125)  # 9/8
        for r in (Rescale(1, 0), Rescale(5, -3)):
            self.assertEqual([bits32(rest(r, v, "floor")) for v in (7, -7)], ["00000000"] * 2)
        # -1 + 2^-30 and 1/2 - 2^-31 are no float32 numbers; 2^-30 and 2^-127 are
        self.assertEqual(rest(Rescale(1, 30), -1, "floor"), -1.0)
        self.assertEqual(rest(Rescale((1 << 30) + 1, 31), 1, "nearest_even"), 0.5)
        self.assertEqual([rest(Rescale(1, n), 1, "floor") for n in (30, 127)], [-(2.0 ** -30), -(2.0 ** -127)])

    def test_floats(self):
        # steps of 1/16: codes -128..127 are -9..6.9375
        g = Grid(8, True, 16, shift=4)
        for x, found in ((3.03125, (64, 0, -0.5)), (3.09375, (66, 0, 0.5)), (-3.03125, (-32, 0, 0.5)),
                         (0.0, (16, 0, 0.0)), (3.015625, (64, 0, -0.25)), (-9.03125, (-128, 0, 0.5)),
                         (-9.046875, (-128, -1, 0.0)),
                         (6.953125, (127, 0, -0.25)), (6.96875, (127, 1, 0.0)), (math.inf, (127, 1, 0.0)),
                         (-math.inf, (-128, -1, 0.0)), (3e38, (127, 1, 0.0))):
            self.assertEqual(quantize(g, x), found, x)
        # 1/S is rounded, and so is the product: 0.1 and 10
        g = Grid(8, True, 0, scale=f32(0.1))
        self.assertEqual((1 / f32(0.1) == 10.0, f32(1 / f32(0.1))), (False, 10.0))
        self.assertEqual(quantize(g, f32(0.33)), (3, 0, f32(3 - f32(f32(0.33) * 10.0))))
        # what a float may be for codes of 32 bits
        g = Grid(32, True, 1 - (1 << 31), shift=0)
        for x, found in ((2.0 ** 32, ((1 << 31) - 1, 1, 0.0)), (2.0 ** 32 - 256, ((1 << 31) - 255, 0, 0.0)),
                         (2.0 ** 33, ((1 << 31) - 1, 1, 0.0)), (-1.0, (-(1 << 31), 0, 0.0)),
                         (-2.0, (-(1 << 31), -1, 0.0))):
            self.assertEqual(quantize(g, x), found, x)
        given = Input(Grid(8, True, 127, shift=4), [[0.03125, 1.0], [-math.inf, 0.046875]])
        self.assertEqual((given.codes, given.sides, given.rests),
                         ([[127, 127], [-128, 127]], [[0, 1], [-1, 1]], [[-0.5, 0.0], [0.0, 0.0]]))
        self.assertEqual(given.stopped([[1.0, 2.0], [3.0, 4.0]]), [[1.0, 0.0], [0.0, 0.0]])

    def test_a_column(self):
        self.assertEqual(column([1.0, 2.0, 4.0, 8.0], [0, -1, 0, 1], [0.5, 0.0, -0.25, 0.0]), (-0.5, 2.0, 8.0))
        self.assertEqual(column([], [], []), NOTHING)
        # in chunks of 256 terms, and what the sums do not have counts as a term
        tiny = 2.0 ** -25
        self.assertEqual(column([1.0] + [tiny] * 511, [-1] * 512, [0.0] * 512), (0.0, 1 + 2.0 ** -17, 0.0))
        self.assertEqual(column([1.0] + [tiny] * 511, [0, 0] + [1] * 510, [1.0] + [0.0] * 511),
                         (1.0, 0.0, 510 * tiny))

    def test_the_gradient_of_a_step(self):
        g = Grid(8, True, 16, shift=4)
        self.assertEqual(step_gradient(g, 0.5, 2.0, -3.0), 0.5 - 144 * 2 - 111 * 3)
        # 2^-4 ln 2 is rounded, then the product
        self.assertEqual(log2_step_gradient(g, -620.5), f32(from_bits32("3d317218") * -620.5))
        self.assertEqual(abs(LN2 - math.log(2)) < 2.0 ** -26, True)
        g = Grid(8, False, 0, scale=f32(0.3))
        self.assertEqual(step_gradient(g, 1.0, 5.0, 2.0), 511.0)
        self.assertEqual(log2_step_gradient(g, 511.0), f32(f32(f32(0.3) * LN2) * 511.0))
        # code less zero point is rounded first: 2^32 - 1; then each product, then the sums from the left
        g = Grid(32, False, 0, shift=20)
        self.assertEqual(step_gradient(g, 1.0, 5.0, 1.0), 2.0 ** 32)
        g = Grid(16, True, 0, shift=0)
        below, above = f32(1.1), f32(1.3)
        self.assertEqual(step_gradient(g, 0.25, below, above),
                         f32(f32(0.25 - f32(32768 * below)) + f32(32767 * above)))
        self.assertNotEqual(f32(32767 * above), 32767 * above)

    def run_of(self, unit, x, h, mask=None):
        """One step, dy = 8 and dh_T = 2 -> the run, all sums, dx before and after it is stopped"""
        given = Input(unit.grids["x"], [[[x]]])
        direction = IntegerDirection(unit)
        run = direction.forward(given.codes, [[unit.grids["h"].quantize(h)]], None, mask)
        dx = direction.backward(run, [[[8.0]]], [[2.0]])["dx"]
        return run, sums(run, given, dx), dx[0][0][0], given.stopped(dx)[0][0][0]

    def test_rests(self):
        fine, coarse = Grid(8, True, 0, shift=4), Grid(8, True, 0, shift=3)
        g = {**{k: fine for k in ("x", "h", "ih", "hh")}, **{k: coarse for k in ("u_in", "r_in", "n_in")},
             "u": Grid(8, False, 0, shift=8), "r": Grid(8, False, 0, shift=8), "n": Grid(8, True, 0, shift=7)}
        rows = {k: [Grid(12, True, 0, shift=4)] * 3 for k in ("W", "R")}
        rows |= {k: [Grid(16, True, 0, shift=8)] * 3 for k in ("bw", "br")}  # the scale of the accumulators
        tables = {k: Direct("tanh" if k == "n" else "sigmoid", g[k + "_in"], g[k]) for k in ("u", "r", "n")}
        # x is 48 1/2, h 33. Accumulators, of 16 a step: 19, -11, -247 and 14, 8, 534
        bw, br = [19 - 16 * 48, -11 - 32 * 48, -247 - 64 * 48], [14 - 128 * 33, 8 - 256 * 33, 534 - 512 * 33]
        unit = Unit(g, rows, [[16], [32], [64]], [[128], [256], [512]], bw, br, tables, "nearest_even")
        run, found, dx, _ = self.run_of(unit, 3.03125, 2.0625)
        self.assertEqual((run.codes["u"], run.codes["r"], run.codes["n"]), ([[[128]]], [[[128]]], [[[0]]]))
        self.assertEqual((run.codes["hh_n"], run.codes["y"], run.sides), ([[[33]]], [[[16]]], [[[[0] * 10]]]))
        self.assertEqual(run.rests[0][0][0], [
            -3 / 16, -5 / 16, 7 / 16,  # ih is 1, -1, -15
            2 / 16, -8 / 16, -6 / 16,  # hh is 1, 0, 33
            -0.5 - 0.5,                # u_in: 1/2 and 1/2 both become 0
            0.5 + 0.0,                 # r_in: -1/2 becomes 0
            -0.5 - 0.25,               # n_in: -7 1/2 becomes -8, 128 * 33 / 512 = 8 1/4 becomes 8
            -0.5])                     # h': 128 * 33 / 256 = 16 1/2 becomes 16
        # d = 10; da = 1/2 * 10; dq = 1/2 * 5; dr = 1/4 * (33/16 * 5); du = 1/4 * (33/16 * 10)
        d, da, dq, dr, du = 10.0, 5.0, 2.5, 2.578125, 5.15625
        self.assertEqual(run.G[0][0][0], [du, dr, da, du, dr, dq, du, dr, da, d])
        self.assertEqual(dx, du + 2 * dr + 4 * da)
        inside = {"x": -0.5 * dx, "h": -0.5 * d, "ih": (-3 * du - 5 * dr + 7 * da) / 16,
                  "hh": (2 * du - 8 * dr - 6 * dq) / 16, "u_in": -du, "r_in": 0.5 * dr, "n_in": -0.75 * da}
        self.assertEqual(found, {name: (v, 0.0, 0.0) for name, v in inside.items()})

    def test_sides(self):
        """The unit of test_qat.OneClamp, whose clamps change nothing: x = 3 and h = 2."""
        def expect(bits, expected, change=None, grids=None, x=3.0):
            bw, br = [-3.0, -6.0, -13.0], [-16.0, -32.0, -62.0]
            for biases, i, by in (change,) if change else ():
                {"bw": bw, "br": br}[biases][i] += by
            unit = unit_by_hand([1.0, 2.0, 4.0], [8.0, 16.0, 32.0], bw, br, **(grids or {}))
            run, found, dx, stopped = self.run_of(unit, x, 2.0)
            self.assertEqual(flat([run.u, run.r, run.n, run.q, run.y]), [0.5, 0.5, 0.0, 2.0, 1.0])
            self.assertEqual({k: side for k, side in enumerate(run.sides[0][0][0]) if side}, bits)
            # all is exact
            self.assertEqual(found, {name: (0.0, *expected.get(name, (0.0, 0.0))) for name in TENSORS})
            return found, dx, stopped

        # du = 5, dr = 2.5, da = 5, dq = 2.5, d = 10
        expect({}, {})
        expect({0: 1}, {"ih": (0.0, 5.0)}, ("bw", 0, 1.0), {"ih": TOP_0})
        expect({1: 1}, {"ih": (0.0, 2.5)}, ("bw", 1, 1.0), {"ih": TOP_0})
        expect({2: -1}, {"ih": (5.0, 0.0)}, ("bw", 2, -2.0), {"ih": Grid(8, True, -112, shift=4)})
        expect({3: -1}, {"hh": (5.0, 0.0)}, ("br", 0, -1.0), {"hh": BOTTOM_0})
        expect({4: -1}, {"hh": (2.5, 0.0)}, ("br", 1, -1.0), {"hh": BOTTOM_0})
        expect({5: 1}, {"hh": (0.0, 2.5)}, ("br", 2, 2.0), {"hh": Grid(8, True, 95, shift=4)})
        # before pass of their own
        expect({6: 1}, {"u_in": (0.0, 5.0)}, ("bw", 0, 1.0), {"u_in": TOP_0})
        expect({7: -1}, {"r_in": (2.5, 0.0)}, ("bw", 1, -1.0), {"r_in": BOTTOM_0})
        expect({8: 1}, {"n_in": (0.0, 5.0)}, ("bw", 2, 2.0), {"n_in": TOP_0})
        # x of 100 is the 3 where its grid ends: dx = 5 + 2 * 2.5 + 4 * 5 before it is stopped
        top_3 = Grid(8, True, 79, shift=4)
        for x, bits in ((3.0, NOTHING), (100.0, (0.0, 0.0, 30.0))):
            found, dx, stopped = expect({}, {"x": bits[1:]}, None, {"x": top_3}, x)
            self.assertEqual((dx, stopped), (30.0, 0.0 if bits[2] else 30.0))
        self.assertEqual(step_gradient(top_3, *found["x"]), 48 * 30.0)

    def test_nothing_behind_what_did_not_pass(self):
        # n_in does not pass, and r_in neither: da is stopped before it gets to r_in
        unit = unit_by_hand([1.0, 2.0, 4.0], [8.0, 16.0, 32.0], [-3.0, -5.0, -11.0], [-16.0, -32.0, -62.0],
                            n_in=TOP_0, r_in=TOP_0)
        run, found, _, _ = self.run_of(unit, 3.0, 2.0)
        self.assertEqual(run.sides, [[[[0] * 7 + [1, 1, 0]]]])
        self.assertEqual((found["n_in"], found["r_in"]), ((0.0, 0.0, 5.0), NOTHING))

    def test_state(self):
        # h = 1/2, n = -1 and u = 1/2: h' = -1/4, on a grid that ends at 0
        unit = unit_by_hand([0.0] * 3, [8.0, 0.0, 0.0], [-4.0, 0.0, -8.0], [0.0, 0.0, 2.0],
                            h=Grid(8, True, -128, shift=4), n_in=Grid(8, True, 0, shift=3))
        run, found, _, _ = self.run_of(unit, 3.0, 0.5)
        self.assertEqual((run.codes["y"], run.sides), ([[[-128]]], [[[[0] * 9 + [-1]]]]))
        self.assertEqual(found, {name: (0.0, 10.0 if name == "h" else 0.0, 0.0) for name in TENSORS})
        # where the state is kept there is nothing
        run, found, _, _ = self.run_of(unit, 3.0, 0.5, [[[0]]])
        self.assertEqual((run.codes["y"], run.sides), ([[[-120]]], [[[[0] * 9 + [-1]]]]))
        self.assertEqual(set(found.values()), {NOTHING})


def plain_total(a):
    out = 0.0
    for v in a:
        out = add(out, v, training.F32)
    return out


class Properties(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cases = make_cases()

    def case(self, name):
        return next(c for c in self.cases if c.name == name)

    def again(self, case):
        return sums(case.run, case.input, case.gradients["dx"])

    def test_passes(self):
        for case in self.cases:
            for grid, given, values in (("x", case.input, case.x), ("h", case.state, case.h0)):
                if values is not None:
                    self.assertEqual([int(side == 0) for side in flat(given.sides)],
                                     passes(case.unit.grids[grid], flat(values)))
                    self.assertEqual(flat(given.codes), [case.unit.grids[grid].quantize(x) for x in flat(values)])
            for t, b in case.run.valid():
                for bits, sides in zip(case.run.passes[t][b], case.run.sides[t][b]):
                    self.assertEqual([bits >> k & 1 for k in range(10)], [int(side == 0) for side in sides])

    def test_ranges(self):
        for case in self.cases:
            self.assertLessEqual(max(map(abs, flat(case.input.rests))), 0.5)
            low, high = (-1.0, 0.0) if case.unit.mode == "floor" else (-0.5, 0.5)
            for t, b in case.run.valid():
                for sides, rests in zip(case.run.sides[t][b], case.run.rests[t][b]):
                    for k, (side, v) in enumerate(zip(sides, rests)):
                        parts = 2 if 6 <= k < 9 else 1
                        self.assertTrue(parts * low <= v <= parts * high and (v == 0 or not side), (case.name, k, v))

    def test_trace_of_section_7(self):
        """Rests from the codes of the trace: what passed is the rounded number itself."""
        rounded = lambda v: f32(v) if v else 0.0
        for case in self.cases:
            unit, g, rs = case.unit, case.unit.grids, case.unit.rs
            H, lengths = unit.H, case.run.lengths
            h0 = case.run.codes["h0"]
            trace = unit.run(case.input.codes, lengths, h0, case.mask, case.reverse)[2]
            exact = lambda r, v: Fraction(v * r.m) / Fraction(2) ** r.n
            part = lambda r, v: rounded(Fraction(r(v, unit.mode)) - exact(r, v))
            for t, b in case.run.valid()[:40]:
                o, first = trace[t][b], case.direction.order(lengths[b])[0]
                h = h0[b] if t == first else trace[t + 1 if case.reverse else t - 1][b]["h"]
                z = {k: grid.z for k, grid in g.items()}
                for i in range(min(H, 12)):
                    real = []  # before rounding and the zero point, of ih, hh and h'
                    for name, M, bias, v, to, down in (
                            ("x", unit.W, unit.bw, case.input.codes[t][b], "bw_to_acc", "acc_to_ih"),
                            ("h", unit.R, unit.br, h, "br_to_acc", "acc_to_hh")):
                        for c in (i, H + i, 2 * H + i):
                            acc = sum(w * (q - z[name]) for w, q in zip(M[c], v)) + rs[to][c](bias[c], unit.mode)
                            real.append(exact(rs[down][c], acc))
                    n = rs["n_to_h"](o["n"][i] - z["n"], unit.mode)
                    u = o["u"][i]
                    real.append(exact(rs["u_to_1"], (u - z["u"]) * (h[i] - z["h"]) + (unit.one - u) * n))
                    codes = [o[name][k * H + i] - z[name] for name in ("ih", "hh") for k in range(3)]
                    codes.append(o["h"][i] - z["h"])
                    for bit, code, v in zip((0, 1, 2, 3, 4, 5, 9), codes, real):
                        side = case.run.sides[t][b][i][bit]
                        if bit == 9 and case.run.keeps(t, b, i):
                            continue
                        found = case.run.rests[t][b][i][bit]
                        self.assertEqual(found, 0.0 if side else rounded(code - v), (case.name, t, b, i, bit))
                        if side:
                            name = ("ih", "hh", "", "h")[bit // 3]
                            self.assertEqual(code + z[name], g[name].qmax if side > 0 else g[name].qmin)
                            self.assertLess(0, (v - code) * side)
                    for k, gate in enumerate("urn"):
                        second = codes[3 + k] * (o["r"][i] - z["r"] if gate == "n" else 1)
                        parts = [part(rs["ih_to_" + gate], codes[k]),
                                 part(rs["rhh_to_n" if gate == "n" else "hh_to_" + gate], second)]
                        side, found = (v[t][b][i][6 + k] for v in (case.run.sides, case.run.rests))
                        self.assertEqual(found, 0.0 if side else f32(Fraction(parts[0]) + Fraction(parts[1])))

    def test_exact_sums(self):
        for case in self.cases:
            for name, tensor in columns(case.run, case.input, case.gradients["dx"]).items():
                self.assertEqual(len(tensor), {"x": case.unit.C}.get(name, len(BITS.get(name, "")) * case.unit.H))
                pairs = [(Fraction(G), side, Fraction(v)) for c in tensor for G, side, v in zip(*c)]
                self.assertEqual(len(pairs), len(tensor) * sum(case.run.lengths))
                for found, terms in zip(case.sums[name], ([G * v for G, _, v in pairs],
                                                          [G for G, side, _ in pairs if side < 0],
                                                          [G for G, side, _ in pairs if side > 0])):
                    room = 2.0 ** -21 * float(sum(map(abs, terms))) + 2.0 ** -149 * (2 * len(tensor) + len(pairs))
                    self.assertLessEqual(abs(found - float(sum(terms))), room, (case.name, name))

    def test_other_gradients(self):
        # what passed is what dbw and dbr are made of
        for case in self.cases:
            every = columns(case.run, case.input, case.gradients["dx"])
            for name, key in (("ih", "dbw"), ("hh", "dbr")):
                passed = [total([0.0 if side else v for v, side in zip(G, sides)]) for G, sides, _ in every[name]]
                self.assertEqual(texts(passed), texts(case.gradients[key]))
            G, sides, _ = zip(*every["x"])
            stopped = case.input.stopped(case.gradients["dx"])
            for k in range(case.unit.C):
                self.assertEqual([0.0 if side else v for v, side in zip(G[k], sides[k])],
                                 [stopped[t][b][k] for t, b in case.run.valid()])

    def test_kept_units(self):
        for case in self.cases:
            for t, b in case.run.valid():
                for i, G in enumerate(case.run.G[t][b]):
                    if case.run.keeps(t, b, i):
                        self.assertEqual((set(G), bits32(G[9])), ({0.0}, "00000000"))

    def test_past_a_length(self):
        for case in self.cases:
            if case.lengths is None or min(case.lengths) == case.T:
                continue
            x, dy = ([[list(v) for v in step] for step in values] for values in (case.x, case.dy))
            for t in range(case.T):
                for b in range(case.N):
                    if t >= case.lengths[b]:
                        x[t][b], dy[t][b] = [-1e30] * case.unit.C, [math.nan] * case.unit.H
            given = Input(case.unit.grids["x"], x)
            run = case.direction.forward(given.codes, case.state and case.state.codes, case.lengths, case.mask)
            g = case.direction.backward(run, dy, case.dh_last)
            self.assertEqual(sums(run, given, g["dx"]), case.sums, case.name)

    def test_chunks(self):
        # vectors tell sums in chunks from those in one go: of terms, and of columns
        found = self.case("more than 256 steps")
        with mock.patch.object(training, "CHUNK", 1 << 30):
            other = self.again(found)
        self.assertGreater(sum(other[name] != found.sums[name] for name in TENSORS), 2)
        for name, tensors in (("more than 256 columns of x, reverse", ["x"]),
                              ("more than 256 columns of ih and hh", ["ih", "hh"]),
                              ("more than 256 units", [k for k in TENSORS if k != "x"])):
            case = self.case(name)
            with mock.patch.object(learned_grids, "total", plain_total):
                other = self.again(case)
            for tensor in TENSORS:
                if tensor in tensors:
                    self.assertNotEqual(other[tensor], case.sums[tensor], (name, tensor))
                elif name != "more than 256 units":
                    self.assertEqual(other[tensor], case.sums[tensor], (name, tensor))


def twin_loss(a):
    """sum(y * dy) + sum(h_last * dh_last) in float64: section 7 with its clamps. Instead of rounding, what each clamp
    gets is moved by `step` times the rest, which is held."""
    N, T, loss = len(a["x"][0]), len(a["x"]), 0.0

    def clamp(name, v, rest):
        return min(max(v + a["step"][name][0] * rest, a["ends"][name][0]), a["ends"][name][1])

    for b in range(N):
        h, length = a["h0"][b], T if a["lengths"] is None else a["lengths"][b]
        for step in range(length):
            t = length - 1 - step if a["reverse"] else step
            rests, H = a["rests"][t][b], len(h)
            x = [clamp("x", v, r) for v, r in zip(a["x"][t][b], a["x_rests"][t][b])]
            ih, hh = ([clamp(to, sum(w * v for w, v in zip(row, values)) + bias, rests[c % H][bit + c // H])
                       for c, (row, bias) in enumerate(zip(a[m], a[n]))]
                      for to, m, n, values, bit in (("ih", "W", "bw", x, 0), ("hh", "R", "br", h, 3)))
            new = []
            for i in range(H):
                u = plain_sigmoid(clamp("u_in", ih[i] + hh[i], rests[i][6]))
                r = plain_sigmoid(clamp("r_in", ih[H + i] + hh[H + i], rests[i][7]))
                n = math.tanh(clamp("n_in", ih[2 * H + i] + r * hh[2 * H + i], rests[i][8]))
                kept = a["mask"] is not None and not a["mask"][t][b][i]
                new.append(h[i] if kept else clamp("h", u * h[i] + (1 - u) * n, rests[i][9]))
            h = new
            loss += sum(v * d for v, d in zip(h, a["dy"][t][b]))
        loss += sum(v * d for v, d in zip(h, a["dh_last"][b]))
    return loss


class Differences(unittest.TestCase):
    """Each sum is the derivative of the loss by an end of a grid's range (below, above), or by what rests are
    multiplied with (inside)."""

    def check(self, seed, power, mode="nearest_even", masks=None, lengths=None, reverse=False):
        rng = Rng(seed)
        names = ("*", "x", "h", "ih", "hh", "u_in", "r_in", "n_in", "u", "r", "n")
        unit = random_unit(rng, mode, power, 3, 4, bits={k: 16 for k in names}, exponent=ENDS)
        for gate in ("u", "r", "n"):
            unit.tables[gate] = Plain(math.tanh if gate == "n" else plain_sigmoid, unit.grids[gate + "_in"],
                                      unit.grids[gate])
        case = Case(rng, "", unit, 5, 3, lengths, reverse, h0=True, dh_last=True, masks=masks, beyond=1 / 4).compute()
        self.assertEqual(case.both_sides(), set(TENSORS))
        d, run, learned = case.direction, case.run, {k: unit.grids[k] for k in TENSORS}
        a = {"W": d.W, "R": d.R, "bw": d.bw, "br": d.br, "x": case.x, "h0": run.h0, "lengths": lengths,
             "mask": case.mask, "reverse": reverse, "dy": case.dy, "dh_last": case.dh_last, "rests": run.rests,
             "x_rests": case.input.rests,
             "ends": {k: [float((q - g.z) * g.S) for q in (g.qmin, g.qmax)] for k, g in learned.items()}}
        loss = sum(v * w for v, w in zip(flat(run.y), flat(case.dy)))
        loss += sum(v * w for v, w in zip(flat(run.h_last), flat(case.dh_last)))
        close = lambda found, expected: self.assertLess(math.dist(found, expected), 1e-3 * math.hypot(*expected), seed)
        for rounding in (True, False):
            a["step"] = {k: [float(g.S) if rounding else 0.0] for k, g in learned.items()}
            self.assertAlmostEqual(loss, twin_loss(a), delta=(2e-3 if rounding else 1e-2) * (1 + abs(loss)))
            ends, inside = [], []
            for name in TENSORS:
                of = {key: a[key][name] for key in ("ends", "step")}
                ends.append(self.by(a, "ends", name))
                inside += self.by(a, "step", name)
                self.assertEqual(of, {key: a[key][name] for key in of})
            close(flat([list(case.sums[name][1:]) for name in TENSORS]), flat(ends))
            close([case.sums[name][0] for name in TENSORS], inside)
        # the step itself: an end moves by its code less the zero point
        for name, (below, above) in zip(TENSORS, ends):
            g = learned[name]
            whole = case.sums[name][0] + float(g.qmin - g.z) * below + float(g.qmax - g.z) * above
            room = 2e-3 * (abs((g.qmin - g.z) * below) + abs((g.qmax - g.z) * above))
            self.assertAlmostEqual(case.steps[name], whole, delta=room)

    def by(self, a, key, name):
        """By the numbers of one of the lists of a."""
        return differences({**a, key + name: a[key][name]}, key + name, plain_loss=twin_loss)

    def test_differences(self):
        self.check(82, True)
        self.check(83, False, "floor", masks=70)
        self.check(85, True, "nearest_up", lengths=[5, 3, 4])
        self.check(84, False, "nearest_away", masks=80, lengths=[4, 5, 5], reverse=True)


if __name__ == "__main__":
    unittest.main()
