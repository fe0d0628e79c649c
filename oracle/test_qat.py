# SPDX-License-Identifier: Apache-2.0
"""Section 14, quantisation-aware training, against values worked by hand, section 7 and finite differences."""
import math
import unittest
from fractions import Fraction

from .floats import bits32, from_bits32
from .grid import Grid
from .gru import Unit
from .qat import IntegerDirection, passes
from .qat_vectors import EVERY_BIT, FINE, Case, make_cases
from .rounding import rint
from .tables import Direct
from .test_training import differences, plain_sigmoid
from .training import Direction
from .training_vectors import flat, texts
from .vectors import Rng, random_unit

CLAMPS = ("ih_u", "ih_r", "ih_n", "hh_u", "hh_r", "hh_n", "u_in", "r_in", "n_in", "h'")


def unit_by_hand(W, R, bw, br, **grids):
    """One unit of one input, powers of two. Numbers, not codes; grids of 8 bits and steps of 1/16 if not given."""
    g = {k: Grid(8, True, 0, shift=4) for k in ("x", "h", "ih", "hh", "u_in", "r_in", "n_in")}
    g |= {"u": Grid(8, False, 0, shift=8), "r": Grid(8, False, 0, shift=8), "n": Grid(8, True, 0, shift=7), **grids}
    rows = {k: [Grid(12, True, 0, shift=4)] * 3 for k in ("W", "R", "bw", "br")}
    code = lambda v: rows["W"][0].quantize(v)
    tables = {k: Direct("tanh" if k == "n" else "sigmoid", g[k + "_in"], g[k]) for k in ("u", "r", "n")}
    return Unit(g, rows, [[code(v)] for v in W], [[code(v)] for v in R], [code(v) for v in bw], [code(v) for v in br],
                tables, "nearest_even")


def run_by_hand(unit, h):
    """One step, x = 3, dy = 8 and dh_T = 2 -> direction, run, gradients"""
    direction = IntegerDirection(unit)
    run = direction.forward([[[unit.grids["x"].quantize(3.0)]]], [[unit.grids["h"].quantize(h)]])
    return direction, run, direction.backward(run, [[[8.0]]], [[2.0]])


TOP_0, BOTTOM_0 = Grid(8, True, 127, shift=4), Grid(8, True, -128, shift=4)


class OneClamp(unittest.TestCase):
    """One unit, one step, x = 3 and h = 2, W = [1, 2, 4], R = [8, 16, 32]. The biases make ih = [0, 0, -1] and
    hh = [0, 0, 2], but for the clamp that is looked at; with the clamp all is the same again: u = r = 1/2, n = 0."""

    def step(self, change=None, grids=None):
        bw, br = [-3.0, -6.0, -13.0], [-16.0, -32.0, -62.0]
        for biases, i, by in (change,) if change else ():
            {"bw": bw, "br": br}[biases][i] += by
        unit = unit_by_hand([1.0, 2.0, 4.0], [8.0, 16.0, 32.0], bw, br, **(grids or {}))
        _, run, g = run_by_hand(unit, 2.0)
        self.assertEqual((run.u, run.r, run.n, run.q, run.y), ([[[0.5]]], [[[0.5]]], [[[0.0]]], [[[2.0]]], [[[1.0]]]))
        self.assertEqual((run.codes["u"], run.codes["r"], run.codes["n"]), ([[[128]]], [[[128]]], [[[0]]]))
        return run.passes[0][0][0], g

    def expect(self, failing, Gx, Gh, change=None, grids=None):
        bits, g = self.step(change, grids)
        self.assertEqual(bits, EVERY_BIT - sum(1 << CLAMPS.index(name) for name in failing))
        same = lambda a, b: self.assertEqual(texts(a), texts(b), failing)
        same([g["dbw"], g["dbr"]], [Gx, Gh])
        same([g["dW"], g["dR"]], [[[3 * v] for v in Gx], [[2 * v] for v in Gh]])
        same([g["dx"], g["dh0"]], [[[[Gx[0] + 2 * Gx[1] + 4 * Gx[2]]]], [[5.0 + 8 * Gh[0] + 16 * Gh[1] + 32 * Gh[2]]]])

    def test_none(self):
        # d = 8 + 2; da = 1 * (1/2 * 10); dq = 1/2 * 5; dr = 1/4 * (2 * 5); du = 1/4 * (2 * 10)
        self.expect([], [5.0, 2.5, 5.0], [5.0, 2.5, 2.5])

    def test_ih(self):
        # 1 becomes 0
        top = {"ih": TOP_0}
        self.expect(["ih_u"], [0.0, 2.5, 5.0], [5.0, 2.5, 2.5], ("bw", 0, 1.0), top)
        self.expect(["ih_r"], [5.0, 0.0, 5.0], [5.0, 2.5, 2.5], ("bw", 1, 1.0), top)
        # -3 becomes -1
        self.expect(["ih_n"], [5.0, 2.5, 0.0], [5.0, 2.5, 2.5], ("bw", 2, -2.0), {"ih": Grid(8, True, -112, shift=4)})

    def test_hh(self):
        # -1 becomes 0
        bottom = {"hh": BOTTOM_0}
        self.expect(["hh_u"], [5.0, 2.5, 5.0], [0.0, 2.5, 2.5], ("br", 0, -1.0), bottom)
        self.expect(["hh_r"], [5.0, 2.5, 5.0], [5.0, 0.0, 2.5], ("br", 1, -1.0), bottom)
        # 4 becomes 2; da and dr are as they were
        self.expect(["hh_n"], [5.0, 2.5, 5.0], [5.0, 2.5, 0.0], ("br", 2, 2.0), {"hh": Grid(8, True, 95, shift=4)})

    def test_gate_inputs(self):
        # 1 becomes 0
        self.expect(["u_in"], [0.0, 2.5, 5.0], [0.0, 2.5, 2.5], ("bw", 0, 1.0), {"u_in": TOP_0})
        self.expect(["r_in"], [5.0, 0.0, 5.0], [5.0, 0.0, 2.5], ("bw", 1, 1.0), {"r_in": TOP_0})
        # 1 becomes 0; dr and dq are made of da
        self.expect(["n_in"], [5.0, 0.0, 0.0], [5.0, 0.0, 0.0], ("bw", 2, 2.0), {"n_in": TOP_0})

    def test_the_end_of_a_grid_passes(self):
        self.expect([], [5.0, 2.5, 5.0], [5.0, 2.5, 2.5], None, {"ih": TOP_0, "hh": Grid(8, True, 95, shift=4),
                                                                 "u_in": TOP_0, "r_in": BOTTOM_0, "n_in": TOP_0})
        # 1/32 is rounded to 0 before the clamp, 3/32 is not: 1/16
        fine = Grid(8, True, 0, shift=5)
        for by, failing in ((1.0, []), (3.0, ["u_in"])):
            self.expect(failing, [0.0 if failing else 5.0, 2.5, 5.0], [0.0 if failing else 5.0, 2.5, 2.5],
                        ("bw", 0, by / 16), {"u_in": Grid(8, True, 127, shift=3), "ih": fine})

    def test_state(self):
        # h = 1/2, n = -1 and u = 1/2: h' = -1/4, on a grid that ends at 0
        for z, code, bits, grads in ((-128, -128, EVERY_BIT - 512, False), (0, -4, EVERY_BIT, True)):
            unit = unit_by_hand([0.0] * 3, [8.0, 0.0, 0.0], [-4.0, 0.0, -8.0], [0.0, 0.0, 2.0],
                                h=Grid(8, True, z, shift=4), n_in=Grid(8, True, 0, shift=3))
            _, run, g = run_by_hand(unit, 0.5)
            self.assertEqual((run.u, run.r, run.n, run.q), ([[[0.5]]], [[[0.5]]], [[[-1.0]]], [[[2.0]]]))
            self.assertEqual((run.codes["y"], run.passes), ([[[code]]], [[[bits]]]))
            # du = 1/4 * (3/2 * 10); da = 0; b = 1/2 * 10
            self.assertEqual(texts([g["dbw"], g["dbr"]]), texts([[3.75 if grads else 0.0, 0.0, 0.0]] * 2))
            self.assertEqual(texts(g["dh0"]), texts([[5.0 + 8 * 3.75 if grads else 0.0]]))


class Plain:
    """A table of one function that is rounded once."""

    def __init__(self, function, gin, gout):
        self.f, self.gin, self.gout = function, gin, gout

    def __call__(self, q, mode):
        return self.gout.clamp(rint(Fraction(self.f(float((q - self.gin.z) * self.gin.S))) / self.gout.S) + self.gout.z)


def twin_loss(a):
    """sum(y * dy) + sum(h_last * dh_last) in float64: section 7 without rounding, with its clamps."""
    H, N, T, loss = len(a["dy"][0][0]), len(a["x"][0]), len(a["x"]), 0.0
    clamp = lambda name, v: min(max(v, a["ends"][name][0]), a["ends"][name][1])
    for b in range(N):
        h, length = a["h0"][b], T if a["lengths"] is None else a["lengths"][b]
        for step in range(length):
            t = length - 1 - step if a["reverse"] else step
            ih, hh = ([clamp(to, sum(w * v for w, v in zip(row, values)) + bias) for row, bias in zip(a[m], a[n])]
                      for to, m, n, values in (("ih", "W", "bw", a["x"][t][b]), ("hh", "R", "br", h)))
            new = []
            for i in range(H):
                u = plain_sigmoid(clamp("u_in", ih[i] + hh[i]))
                r = plain_sigmoid(clamp("r_in", ih[H + i] + hh[H + i]))
                n = math.tanh(clamp("n_in", ih[2 * H + i] + r * hh[2 * H + i]))
                kept = a["mask"] is not None and not a["mask"][t][b][i]
                new.append(h[i] if kept else clamp("h", u * h[i] + (1 - u) * n))
            h = new
            loss += sum(v * d for v, d in zip(h, a["dy"][t][b]))
        loss += sum(v * d for v, d in zip(h, a["dh_last"][b]))
    return loss


class Gradients(unittest.TestCase):
    def check(self, seed, power, saturated=False, exponent=None, **given):
        rng = Rng(seed)
        wide = {k: 16 for k in ("*", "x", "h", "ih", "hh", "u_in", "r_in", "n_in", "u", "r", "n")}
        unit = random_unit(rng, "nearest_even", power, 3, 4, bits=wide, exponent=exponent)
        for gate in ("u", "r", "n"):
            unit.tables[gate] = Plain(math.tanh if gate == "n" else plain_sigmoid, unit.grids[gate + "_in"],
                                      unit.grids[gate])
        case = Case(rng, "", unit, 4, 3, h0=True, dh_last=True, **given).compute()
        counts = case.counts()
        if saturated:
            self.assertGreater(min(min(pair) for pair in counts), 0, counts)
        else:
            self.assertEqual({pair[0] for pair in counts}, {0}, counts)
        d, run = case.direction, case.run
        a = {"W": d.W, "R": d.R, "bw": d.bw, "br": d.br, "x": run.x, "h0": run.h0, "lengths": case.lengths,
             "mask": case.mask, "reverse": case.reverse, "dy": case.dy, "dh_last": case.dh_last}
        a["ends"] = {k: (g.dequantize(g.qmin), g.dequantize(g.qmax)) for k, g in unit.grids.items()}
        loss = sum(v * w for v, w in zip(flat(run.y), flat(case.dy)))
        loss += sum(v * w for v, w in zip(flat(run.h_last), flat(case.dh_last)))
        self.assertAlmostEqual(loss, twin_loss(a), delta=1e-2 * (1 + abs(loss)))
        for name in ("x", "W", "R", "bw", "br", "h0"):
            found, expected = flat(case.gradients["d" + name]), differences(a, name, plain_loss=twin_loss)
            self.assertEqual(len(found), len(expected))
            self.assertLess(math.dist(found, expected), 1e-3 * math.hypot(*expected), (name, seed))

    def test_no_saturation(self):
        room = {"ih": 4, "hh": 4, "u_in": 4, "r_in": 4, "n_in": 4, "h": 1, "R": -1}
        self.check(71, True, exponent=room)
        self.check(72, False, exponent=room, lengths=[4, 0, 2], masks=60)

    def test_saturation(self):
        fine = {**FINE, "h": -2}
        self.check(73, True, True, exponent=fine)
        self.check(74, False, True, exponent=fine, lengths=[4, 1, 3], masks=70)
        self.check(75, True, True, exponent=fine, lengths=[3, 4, 2], masks=70, reverse=True)


class Properties(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cases = make_cases()

    def test_forward_of_section_7(self):
        for case in self.cases:
            unit, codes = case.unit, case.run.codes
            lengths = case.lengths or [case.T] * case.N
            h0 = case.h0 or [[unit.grids["h"].z] * unit.H] * case.N
            y, last, trace = unit.run(case.x, lengths, h0, case.mask, case.reverse)
            self.assertEqual((codes["y"], codes["h_last"]), (y, last), case.name)
            for t in range(case.T):
                for b in range(case.N):
                    o = trace[t][b]
                    for key in ("u", "r", "n"):
                        self.assertEqual(codes[key][t][b], o and o[key])
                    self.assertEqual(codes["hh_n"][t][b], o and o["hh"][2 * unit.H:])
                    self.assertEqual(case.run.passes[t][b] is None, t >= lengths[b])
                    for i, bits in enumerate(case.run.passes[t][b] or []):
                        # what is clamped lies at an end
                        names = [("ih", k) for k in range(3)] + [("hh", k) for k in range(3)]
                        values = [(name, o[name][k * unit.H + i]) for name, k in names]
                        values += [(name, o[name][i]) for name in ("u_in", "r_in", "n_in")]
                        for bit, (name, q) in enumerate(values):
                            if not bits >> bit & 1:
                                self.assertIn(q, (unit.grids[name].qmin, unit.grids[name].qmax))

    def test_all_passed(self):
        # the backward of floats on the same numbers
        for case in self.cases:
            d = case.direction
            case.run.passes, kept = [[[EVERY_BIT] * d.H] * case.N] * case.T, case.run.passes
            plain = Direction(d.W, d.R, d.bw, d.br, d.reverse)
            self.assertEqual(texts(list(d.backward(case.run, case.dy, case.dh_last).values())),
                             texts(list(plain.backward(case.run, case.dy, case.dh_last).values())), case.name)
            case.run.passes = kept

    def test_nothing_passed(self):
        case = Case(Rng(91), "", random_unit(Rng(92), "floor", True, 2, 3), 3, 2, h0=True, dh_last=True).compute()
        case.run.passes = [[[0] * 3] * 2] * 3
        g = case.direction.backward(case.run, case.dy, case.dh_last)
        self.assertEqual(set(flat(texts(list(g.values())))), {"00000000"})

    def test_kept_units(self):
        # the pass of h' is not asked where the state is kept
        case = next(c for c in self.cases if c.mask and "every clamp" in c.name)
        kept, run = case.run.passes, case.run
        run.passes = [[None if p is None else [bits ^ (512 if run.keeps(t, b, i) else 0) for i, bits in enumerate(p)]
                       for b, p in enumerate(step)] for t, step in enumerate(kept)]
        self.assertNotEqual(run.passes, kept)
        self.assertEqual(texts(list(case.direction.backward(run, case.dy, case.dh_last).values())),
                         texts(list(case.gradients.values())))
        run.passes = kept

    def test_past_a_length(self):
        for case in self.cases:
            if case.lengths is None:
                continue
            x, dy = ([[list(v) for v in step] for step in values] for values in (case.x, case.dy))
            for t in range(case.T):
                for b in range(case.N):
                    if t >= case.lengths[b]:
                        x[t][b], dy[t][b] = [1 << 40] * case.unit.C, [math.nan] * case.unit.H
            run = case.direction.forward(x, case.h0, case.lengths, case.mask)
            self.assertEqual(run.codes["y"], case.run.codes["y"])
            g = case.direction.backward(run, dy, case.dh_last)
            self.assertEqual(texts(list(g.values())), texts(list(case.gradients.values())))

    def test_passes(self):
        # steps of 1/16: codes -128..127 are -9..6.9375
        g = Grid(8, True, 16, shift=4)
        inside = [-9.0, -9.03125, 6.9375, 0.0, -0.0]  # -9.03125 is -128.5, which is rounded to even
        outside = [-9.046875, 6.96875, 7.0, 1e30, -1e30, math.inf, -math.inf]  # 127.5 becomes 128
        self.assertEqual(passes(g, inside + outside), [1] * 5 + [0] * 7)
        # a general scale: the largest weight of a symmetric row is 128 steps, one more than there are codes
        g = Grid(8, True, 0, scale=from_bits32("3c23d70a"))
        self.assertEqual(bits32(g.scale), "3c23d70a")
        self.assertEqual(passes(g, [1.27, 1.274, 1.28, -1.28, -1.29]), [1, 1, 0, 1, 0])
        self.assertEqual(passes(Grid(32, False, 0, shift=0), [2.0 ** 32, 2.0 ** 32 - 256, -0.5, -1.0]), [0, 1, 1, 0])


if __name__ == "__main__":
    unittest.main()
