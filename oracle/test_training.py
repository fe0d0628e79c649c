# SPDX-License-Identifier: Apache-2.0
"""Section 14 against values worked by hand, float64 and finite differences."""
import math
import unittest
from unittest import mock

from . import training
from .floats import bits32, f32, fma
from .training import Direction, E, chain, sigmoid, tanh, total
from .training_vectors import Layer, flat, texts
from .vectors import Rng

TINY, HUGE = 2.0 ** -149, 2.0 ** 24


def plain_sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def plain_loss(a):
    """sum(y * dy) + sum(h_last * dh_last) of section 7's float formula, in float64."""
    H, N, T = len(a["dy"][0][0]), len(a["x"][0]), len(a["x"])
    loss = 0.0
    for b in range(N):
        h, length = a["h0"][b], T if a["lengths"] is None else a["lengths"][b]
        for step in range(length):
            t = length - 1 - step if a["reverse"] else step
            ih, hh = ([sum(w * v for w, v in zip(row, values)) + bias for row, bias in zip(a[m], a[n])]
                      for m, n, values in (("W", "bw", a["x"][t][b]), ("R", "br", h)))
            new = []
            for i in range(H):
                u, r = plain_sigmoid(ih[i] + hh[i]), plain_sigmoid(ih[H + i] + hh[H + i])
                n = math.tanh(ih[2 * H + i] + r * hh[2 * H + i])
                kept = a["mask"] is not None and not a["mask"][t][b][i]
                new.append(h[i] if kept else u * h[i] + (1 - u) * n)
            h = new
            loss += sum(v * d for v, d in zip(h, a["dy"][t][b]))
        loss += sum(v * d for v, d in zip(h, a["dh_last"][b]))
    return loss


def places(value):
    """The lists that hold numbers."""
    if isinstance(value[0], list):
        return [p for part in value for p in places(part)]
    return [value]


def differences(a, name, step=2.0 ** -16, plain_loss=plain_loss):
    """Central differences of the loss by every number of one tensor, flat."""
    out = []
    for row in places(a[name]):
        for i, v in enumerate(row):
            row[i] = v + step
            up = plain_loss(a)
            row[i] = v - step
            out.append((up - plain_loss(a)) / (2 * step))
            row[i] = v
    return out


def ulp(v):
    """The step of float32 numbers at v."""
    return math.ldexp(1.0, max(math.frexp(v)[1] - 1, -126) - 23)


class Functions(unittest.TestCase):
    def test_sums(self):
        self.assertEqual(chain([], []), 0.0)
        self.assertEqual(chain([2.0, 3.0, -1.0], [4.0, 0.5, 1.0]), 8.5)
        # the product is not rounded: (1 + 2^-23)^2 - (1 + 2^-22) = 2^-46
        self.assertEqual(chain([-1 - 2.0 ** -22, 1 + 2.0 ** -23], [1.0, 1 + 2.0 ** -23]), 2.0 ** -46)
        # 256 times 2^-25 are lost one by one, but not as a chunk of their own
        self.assertEqual(total([1.0] + [2.0 ** -25] * 255), 1.0)
        self.assertEqual(total([1.0] + [2.0 ** -25] * 511), 1 + 2.0 ** -17)
        self.assertEqual(total([1.0] + [2.0 ** -25] * 767), 1 + 2.0 ** -16)
        # the chunk is -0, the sum is not
        self.assertEqual(bits32(fma(-(2.0 ** -100), 2.0 ** -100, 0.0)), "80000000")
        self.assertEqual(bits32(chain([-(2.0 ** -100)], [2.0 ** -100])), "00000000")
        self.assertEqual(chain([3e38, 3e38], [1.0, 1.0]), math.inf)

    def test_values(self):
        self.assertEqual([E(0.0), E(-0.0), E(-TINY)], [1.0] * 3)
        # n = -1, r = -ln 2 + ln 2 as far as the constants hold it
        self.assertEqual(E(-f32(math.log(2))), 0.5)
        self.assertEqual([E(-88.0), E(-1e30), E(-math.inf)], [E(-87.0)] * 3)
        self.assertGreater(E(-87.0), 2.0 ** -126)
        self.assertEqual([sigmoid(x) for x in (0.0, -0.0, 88.0, math.inf)], [0.5, 0.5, 1.0, 1.0])
        self.assertEqual([sigmoid(x) for x in (-87.0, -88.0, -math.inf)], [E(-87.0)] * 3)
        self.assertEqual([tanh(x) for x in (10.0, 1e30, math.inf, -10.0, -math.inf)], [1.0, 1.0, 1.0, -1.0, -1.0])
        self.assertEqual([bits32(tanh(x)) for x in (0.0, -0.0)], ["00000000"] * 2)
        for x in (TINY, -TINY, 2.0 ** -126, f32(1e-30), -(2.0 ** -13)):
            self.assertEqual(tanh(x), x)
        for f in (E, sigmoid, tanh):
            self.assertTrue(math.isnan(f(math.nan)))

    def test_errors(self):
        rng = Rng(71)
        xs = [rng.real(0, 87) for _ in range(1500)] + [abs(rng.bell(2.0)) for _ in range(1000)]
        xs += [f32(math.ldexp(rng.real(1, 2), rng.int(-149, 6))) for _ in range(1000)]
        # the last is where sigmoid is farthest off
        xs += [0.625, 0.625 - 2.0 ** -24, 0.625 + 2.0 ** -23, 87.0, -float.fromhex("-0x1.0a111ap+2")]
        for x in (min(v, 87.0) for v in xs):
            for f, v, true, most in ((E, -x, math.exp(-x), 2.0), (sigmoid, -x, plain_sigmoid(-x), 2.5),
                                     (sigmoid, x, plain_sigmoid(x), 2.0), (tanh, x, math.tanh(x), 2.0)):
                self.assertLess(abs(f(v) - true), most * ulp(true), (f, v))
            self.assertEqual(tanh(-x), -tanh(x))


class ByHand(unittest.TestCase):
    def test_one_step(self):
        layer = Direction([[0.0]] * 3, [[0.0]] * 3, [0.0] * 3, [0.0, 0.0, 2.0])
        run = layer.forward([[[3.0]]], [[4.0]])
        # q = 2, r = 1/2: n = tanh(1)
        n = tanh(1.0)
        self.assertEqual([run.u[0][0], run.r[0][0], run.n[0][0], run.q[0][0]], [[0.5], [0.5], [n], [2.0]])
        self.assertEqual(run.y, [[[fma(0.5, f32(4 - n), n)]]])
        # a bias that makes n 0: all is exact
        layer = Direction([[0.0]] * 3, [[0.0]] * 3, [0.0, 0.0, -1.0], [0.0, 0.0, 2.0])
        run = layer.forward([[[3.0]]], [[4.0]])
        self.assertEqual((run.n, run.y, run.h_last), ([[[0.0]]], [[[2.0]]], [[2.0]]))
        # d = 8 + 2; da = 1 * (1/2 * 10); dq = 1/2 * 5; dr = 1/4 * (2 * 5); du = 1/4 * (4 * 10)
        g = layer.backward(run, [[[8.0]]], [[2.0]])
        self.assertEqual((g["dbw"], g["dbr"]), ([10.0, 2.5, 5.0], [10.0, 2.5, 2.5]))
        self.assertEqual((g["dW"], g["dR"]), ([[30.0], [7.5], [15.0]], [[40.0], [10.0], [10.0]]))
        self.assertEqual((g["dx"], g["dh0"]), ([[[0.0]]], [[5.0]]))
        # kept by the mask
        run = layer.forward([[[3.0]]], [[4.0]], None, [[[0]]])
        g = layer.backward(run, [[[8.0]]], [[2.0]])
        self.assertEqual((run.y, g["dbw"], g["dbr"], g["dh0"]), ([[[4.0]]], [0.0] * 3, [0.0] * 3, [[10.0]]))

    def test_rows_and_columns(self):
        # h = [1, -1] and rows of equal numbers: hh is 0, but 2 in the last row, whose bias makes n 0
        W = [[1.0], [2.0], [4.0], [8.0], [16.0], [32.0]]
        R = [[v, v] for v in (1.0, 2.0, 4.0, 8.0, 16.0)] + [[3.0, 1.0]]
        layer = Direction(W, R, [0.0] * 5 + [-1.0], [0.0] * 6)
        run = layer.forward([[[0.0]]], [[1.0, -1.0]])
        self.assertEqual((run.q, run.y), ([[[0.0, 2.0]]], [[[0.5, -0.5]]]))
        # da = [1/2, 1]; dq = [1/4, 1/2]; dr = [0, 1/2]; du = [1/4, -1/2]
        g = layer.backward(run, [[[1.0, 2.0]]])
        self.assertEqual(g["dbw"], [0.25, -0.5, 0.0, 0.5, 0.5, 1.0])
        self.assertEqual(g["dbr"], [0.25, -0.5, 0.0, 0.5, 0.25, 0.5])
        self.assertEqual(g["dx"], [[[0.25 - 1 + 4 + 8 + 32]]])
        # 1/2 * [1, 2], and 1/4 - 1 + 4 + 4 + 1/2 * [3, 1]
        self.assertEqual(g["dh0"], [[0.5 + 7.25 + 1.5, 1 + 7.25 + 0.5]])
        self.assertEqual(g["dR"], [[v, -v] for v in g["dbr"]])

    def test_order_of_steps(self):
        # u is next to nothing: da = dy. 1 + 2^24 is 2^24; less 2^24, plus 1: 1. Any other order gives 0 or 2
        dy = [[[1.0], [HUGE]], [[-HUGE], [1.0]]]
        x = [[[1.0], [1.0]], [[1.0], [1.0]]]
        for reverse in (False, True):
            layer = Direction([[0.0]] * 3, [[0.0]] * 3, [-100.0, 0.0, 0.0], [0.0] * 3, reverse)
            run = layer.forward(x)
            g = layer.backward(run, dy)
            self.assertEqual((g["dbw"][2], g["dW"][2], g["dbr"][2]), (1.0, [1.0], 0.5))

    def test_states_before(self):
        # n = 0 and u = 1/2: the state is halved; q is 0
        for reverse in (False, True):
            layer = Direction([[0.0]] * 3, [[0.0]] * 3, [0.0] * 3, [0.0] * 3, reverse)
            run = layer.forward([[[0.0]]] * 3, [[8.0]], [2])
            self.assertEqual(run.y, [[[2.0]], [[4.0]], [[0.0]]] if reverse else [[[4.0]], [[2.0]], [[0.0]]])
            self.assertEqual((run.h_last, run.u[2]), ([[2.0]], [None]))
            g = layer.backward(run, [[[4.0]], [[4.0]], [[math.nan]]])
            # d of the last step 4, of the one before 4 + 2; du = d h / 4: 4 of the last, 12; dq = d / 4
            self.assertEqual((g["dbw"], g["dh0"]), ([16.0, 0.0, 5.0], [[3.0]]))
            self.assertEqual(g["dR"], [[4 * 4.0 + 12 * 8.0], [0.0], [4.0 + 1.5 * 8]])

    def test_saturated(self):
        # u is 1, so h' = fma(1, h - n, n), and h - n is rounded
        layer = Direction([[0.0]] * 3, [[0.0]] * 3, [100.0, 0.0, -100.0], [0.0] * 3)
        run = layer.forward([[[0.0]]], [[2.0 ** -30]])
        self.assertEqual((run.u, run.n, run.y), ([[[1.0]]], [[[-1.0]]], [[[0.0]]]))
        g = layer.backward(run, [[[3.0]]])
        self.assertEqual((g["dbw"], g["dbr"], g["dh0"]), ([0.0] * 3, [0.0] * 3, [[3.0]]))


def small(seed, **given):
    return Layer(Rng(seed), "", 3, 4, 4, 3, **given)


class Gradients(unittest.TestCase):
    def check(self, layer):
        layer.compute()
        names = ("W", "R", "bw", "br", "x", "h0", "lengths", "mask", "reverse", "dy", "dh_last")
        a = {k: getattr(layer, k) for k in names}
        for key in ("h0", "dh_last"):
            a[key] = a[key] or [[0.0] * layer.H for _ in range(layer.N)]
        loss = sum(v * d for v, d in zip(flat(layer.run.y), flat(layer.dy)))
        loss += sum(v * d for v, d in zip(flat(layer.run.h_last), flat(a["dh_last"])))
        self.assertAlmostEqual(loss, plain_loss(a), delta=1e-5 * (1 + abs(loss)))
        for name in ("x", "W", "R", "bw", "br", "h0"):
            found, expected = flat(layer.gradients["d" + name]), differences(a, name)
            self.assertEqual(len(found), len(expected))
            error = math.dist(found, expected)
            self.assertLess(error, 1e-5 * math.hypot(*expected), (name, layer.lengths, layer.reverse))

    def test_plain(self):
        self.check(small(81))
        self.check(small(82, h0=True, dh_last=True))

    def test_lengths(self):
        self.check(small(83, lengths=[2, 0, 4], h0=True, dh_last=True))
        self.check(small(84, lengths=[1, 3, 2], reverse=True, dh_last=True))

    def test_mask(self):
        self.check(small(85, mask=True, dh_last=True))
        self.check(small(86, mask=True, reverse=True, h0=True))

    def test_all(self):
        for reverse in (False, True):
            self.check(small(87, lengths=[4, 1, 3], mask=True, reverse=reverse, h0=True, dh_last=True, weights=1.0))


class Properties(unittest.TestCase):
    def same(self, a, b):
        self.assertEqual(texts(a), texts(b))

    def test_mask_of_zeros(self):
        layer = small(91, lengths=[4, 0, 3], h0=True, dh_last=True, mask=True)
        layer.mask = [[[0] * 4] * 3] * 4
        layer.compute()
        for b, length in enumerate(layer.lengths):
            for t in range(4):
                self.same(layer.run.y[t][b], layer.h0[b] if t < length else [0.0] * 4)
            g = layer.dh_last[b]
            for t in range(length)[::-1]:
                g = [training.plus(d, v) for d, v in zip(layer.dy[t][b], g)]
            self.same(layer.gradients["dh0"][b], g)
        self.same(layer.run.h_last, layer.h0)
        self.assertEqual({v for k in ("dx", "dW", "dR", "dbw", "dbr") for v in flat(layer.gradients[k])}, {0.0})

    def test_mask_of_ones(self):
        layer = small(92, h0=True).compute()
        other = small(92, h0=True)
        other.mask = [[[1] * 4] * 3] * 4
        self.same(layer.results(), other.compute().results())

    def test_past_a_length(self):
        given = {"lengths": [2, 0, 3], "h0": True, "dh_last": True, "mask": True}
        for reverse in (False, True):
            layer = small(93, reverse=reverse, **given).compute()
            other = small(93, reverse=reverse, **given)
            for t in range(4):
                for b in range(3):
                    if t >= other.lengths[b]:
                        other.x[t][b], other.dy[t][b], other.mask[t][b] = [math.nan] * 3, [math.inf] * 4, [0] * 4
            self.same(layer.results(), other.compute().results())
            self.same([layer.run.y[2][0], layer.run.y[0][1]], [[0.0] * 4] * 2)
            self.same(layer.gradients["dx"][3][2], [0.0] * 3)
            self.same([layer.run.h_last[1], layer.gradients["dh0"][1]], [layer.h0[1], layer.dh_last[1]])

    def test_one_sequence_cut(self):
        for reverse in (False, True):
            layer = Layer(Rng(94), "", 2, 3, 5, 1, [3], reverse, True, True, True).compute()
            cut = Layer(Rng(94), "", 2, 3, 5, 1, [3], reverse, True, True, True)
            cut.x, cut.dy, cut.mask, cut.lengths = cut.x[:3], cut.dy[:3], cut.mask[:3], None
            cut.compute()
            self.same(layer.run.y[:3], cut.run.y)
            self.same(layer.gradients["dx"][:3], cut.gradients["dx"])
            for key in ("dW", "dR", "dbw", "dbr", "dh0"):
                self.same(layer.gradients[key], cut.gradients[key])

    def test_reverse(self):
        # the forward direction on mirrored tensors, but for the order of sums over steps
        one = small(95, h0=True, dh_last=True, mask=True, reverse=True).compute()
        two = small(95, h0=True, dh_last=True, mask=True)
        two.x, two.dy, two.mask = two.x[::-1], two.dy[::-1], two.mask[::-1]
        two.compute()
        self.same([one.run.y[::-1], one.run.h_last], [two.run.y, two.run.h_last])
        self.same([one.gradients["dx"][::-1], one.gradients["dh0"]], [two.gradients["dx"], two.gradients["dh0"]])
        for key in ("dW", "dR", "dbw", "dbr"):
            a, b = flat(one.gradients[key]), flat(two.gradients[key])
            self.assertLess(math.dist(a, b), 1e-5 * math.hypot(*a))
        self.assertNotEqual(one.gradients["dW"], two.gradients["dW"])

    def test_halves_of_a_sequence(self):
        # handing on the state, and the gradient back, gives the same bytes
        whole = Layer(Rng(96), "", 2, 3, 5, 2, h0=True, dh_last=True).compute()
        direction = Direction(whole.W, whole.R, whole.bw, whole.br)
        first = direction.forward(whole.x[:2], whole.h0)
        second = direction.forward(whole.x[2:], first.h_last)
        self.same([first.y + second.y, second.h_last], [whole.run.y, whole.run.h_last])
        g = direction.backward(second, whole.dy[2:], whole.dh_last)
        f = direction.backward(first, whole.dy[:2], g["dh0"])
        self.same([f["dx"] + g["dx"], f["dh0"]], [whole.gradients["dx"], whole.gradients["dh0"]])

    def test_chunks(self):
        # the left-out steps are not counted, and the border of the chunks shows
        steps = Layer(Rng(97), "", 1, 1, 100, 3, [100, 75, 98]).compute()
        valid = steps.run.valid()
        self.assertEqual(len(valid), 273)
        xs = [steps.run.x[t][b][0] for t, b in valid]
        with mock.patch.object(training, "CHUNK", 1 << 20):
            other = Layer(Rng(97), "", 1, 1, 100, 3, [100, 75, 98]).compute()
        self.same(steps.run.y, other.run.y)
        self.same(steps.gradients["dx"], other.gradients["dx"])
        self.assertNotEqual(steps.gradients["dW"], other.gradients["dW"])
        # u is next to nothing and n is 0: da = dy
        layer = Direction([[0.0]] * 3, [[0.0]] * 3, [-100.0, 0.0, 0.0], [0.0] * 3)
        run = layer.forward(steps.x, None, steps.lengths)
        g = layer.backward(run, steps.dy)
        terms = [steps.dy[t][b][0] for t, b in valid]
        self.assertEqual(g["dW"][2][0], f32(chain(terms[:256], xs[:256]) + chain(terms[256:], xs[256:])))


if __name__ == "__main__":
    unittest.main()
