# SPDX-License-Identifier: Apache-2.0
"""Checks of the oracle itself against values worked by hand."""
import math
import struct
import unittest
from fractions import Fraction

from . import calibrate
from .build import bias_bound, build_unit, is_dead, output_grid, overflows, revived
from .floats import bits32, div32, f32, from_bits32, mul32
from .grid import Grid, range_to_grid, raw_scale, rows_to_grids
from .gru import Unit, run_model
from .rounding import (MODES, Refused, Rescale, encode_ratio, power_rescale, rint, round_shift)
from .tables import Direct, Interpolated, Segments, digest, direct_outputs, fnv1a64
from .vectors import Rng


def all_modes(x, n):
    return [round_shift(x, n, m) for m in MODES]  # even, up, away, floor


class Rounding(unittest.TestCase):
    def test_ties(self):
        self.assertEqual(all_modes(1, 1), [0, 1, 1, 0])        # 0.5
        self.assertEqual(all_modes(3, 1), [2, 2, 2, 1])        # 1.5
        self.assertEqual(all_modes(5, 1), [2, 3, 3, 2])        # 2.5
        self.assertEqual(all_modes(-1, 1), [0, 0, -1, -1])     # -0.5
        self.assertEqual(all_modes(-3, 1), [-2, -1, -2, -2])   # -1.5
        self.assertEqual(all_modes(-5, 1), [-2, -2, -3, -3])   # -2.5

    def test_beside_ties(self):
        self.assertEqual(all_modes(7, 2), [2, 2, 2, 1])        # 1.75
        self.assertEqual(all_modes(-7, 2), [-2, -2, -2, -2])
        self.assertEqual(all_modes(-5, 2), [-1, -1, -1, -2])   # -1.25

    def test_ends(self):
        big = (1 << 63) - 1
        self.assertEqual(all_modes(big, 63), [1, 1, 1, 0])
        self.assertEqual(all_modes(-big - 1, 63), [-1, -1, -1, -1])
        self.assertEqual(all_modes(-big - 1, 64), [0, 0, -1, -1])  # -0.5
        self.assertEqual(all_modes(-1, 127), [0, 0, 0, -1])
        self.assertEqual(all_modes(1, -62), [1 << 62] * 4)

    def test_encode(self):
        self.assertEqual(vars(encode_ratio(1.0, 1)), {"m": 1 << 30, "n": 30})
        self.assertEqual(vars(encode_ratio(0.75, 1)), {"m": 3 << 29, "n": 31})
        below_one = math.nextafter(1.0, 0)               # m would be 2^31
        self.assertEqual(vars(encode_ratio(below_one, 1)), {"m": 1 << 30, "n": 30})
        self.assertEqual(encode_ratio(0.75, 1 << 32).m, 3 << 28)      # B = 30
        self.assertEqual(encode_ratio(0.75, (1 << 32) - 1).m, 3 << 29)  # B = 31
        self.assertRaises(Refused, encode_ratio, 1.0, 1 << 62)
        self.assertRaises(Refused, power_rescale, -63, 1)
        self.assertEqual(power_rescale(-63, 0).n, 0)
        self.assertEqual(power_rescale(128, 1).n, 127)
        self.assertEqual(Rescale(3, 1)(1, "nearest_even"), 2)


class Floats(unittest.TestCase):
    def test_against_the_machine(self):
        rng = Rng(99)
        for _ in range(2000):
            v = struct.unpack(">d", struct.pack(">Q", rng.u64()))[0]
            if math.isnan(v):
                continue
            v = math.ldexp(math.frexp(v)[0], rng.int(-155, 129))
            try:
                expected = struct.unpack(">f", struct.pack(">f", v))[0]
            except OverflowError:
                expected = math.copysign(math.inf, v)
            self.assertEqual(f32(v), expected)

    def test_edges(self):
        self.assertEqual(f32(Fraction(1, 1 << 150)), 0.0)               # tie to even zero
        self.assertEqual(bits32(f32(Fraction(3, 1 << 150))), "00000002")  # 1.5 units: to 2
        self.assertEqual(f32(Fraction((1 << 129) - (1 << 104) >> 1)), math.inf)
        self.assertEqual(f32((1 << 24) + 1), 16777216.0)
        self.assertEqual(f32((1 << 24) + 3), 16777220.0)
        self.assertEqual(bits32(div32(1.0, 3.0)), "3eaaaaab")
        self.assertEqual(mul32(from_bits32("7f7fffff"), 2.0), math.inf)


class Grids(unittest.TestCase):
    def test_fixed_outputs(self):
        g = output_grid("sigmoid", 8, False, False, True)
        self.assertEqual((g.shift, g.z), (8, 0))
        g = output_grid("sigmoid", 8, True, False, True)
        self.assertEqual((g.shift, g.z), (8, -128))
        g = output_grid("tanh", 8, True, False, True)
        self.assertEqual((g.shift, g.z), (7, 0))
        g = output_grid("tanh", 8, False, False, True)
        self.assertEqual((g.shift, g.z), (7, 128))
        # general scales: u and r in 255 steps, so that 1 has a code, n in 256
        g = output_grid("sigmoid", 8, False, False, False)
        self.assertEqual((g.scale, g.z, rint(1 / g.S)), (f32(1 / 255), 0, 255))
        g = output_grid("sigmoid", 8, True, True, False)
        self.assertEqual((g.scale, g.z), (f32(1 / 127), 0))
        self.assertEqual(output_grid("tanh", 8, True, False, False).scale, 2.0 ** -7)

    def test_activation_keeps_its_largest_value(self):
        # [-1, 1] in 255 steps: raw = 2/255 > 1/128, so shift 6
        g = range_to_grid(-1.0, 1.0, 8, True, False, True, 255)
        self.assertEqual((g.shift, g.z), (6, -64))
        # symmetric: max(1/127, 1/128) > 1/128
        self.assertEqual(range_to_grid(-1.0, 1.0, 8, True, True, True, 255).shift, 6)
        self.assertEqual(range_to_grid(-1.0, 1.0, 8, True, True, True, 256).shift, 7)
        self.assertEqual(range_to_grid(-128.0, 127.0, 8, True, True, True, 255).shift, 0)

    def test_limits(self):
        self.assertEqual(range_to_grid(-1e-30, 1e-30, 8, True, True, True, 255).shift, 38)
        self.assertEqual(range_to_grid(0.0, 1e-30, 32, False, False, True, 1 << 32).shift, 62)
        self.assertRaises(Refused, range_to_grid, 0.0, 2.0 ** 41, 8, False, False, True, 255)
        self.assertEqual(range_to_grid(0.0, 2.0 ** 40, 8, False, False, True, 256).shift, -32)
        self.assertRaises(Refused, raw_scale, -1.0, 1.0, True, True, 1)
        self.assertEqual(vars(range_to_grid(0.0, 0.0, 8, False, False, False, 255))["scale"], 1.0)

    def test_zero_point_starts_at_qmin(self):
        g = range_to_grid(-1.0, 3.0, 8, True, False, True, 256)  # raw = 1/64
        self.assertEqual((g.shift, g.z), (6, -64))
        g = range_to_grid(-1.0, 3.0, 8, False, False, True, 256)
        self.assertEqual((g.shift, g.z), (6, 64))

    def test_all_zero_row(self):
        rows = [[0.0, 0.0], [1.0, -1.0], [0.25, 0.0]]
        self.assertEqual([g.shift for g in rows_to_grids(rows, 8, True, True)], [9, 7, 9])
        self.assertEqual([g.scale for g in rows_to_grids(rows, 8, True, False)],
                         [2.0 ** -9, 2.0 ** -7, 2.0 ** -9])
        self.assertEqual([g.shift for g in rows_to_grids(rows[:1], 8, True, True)], [0])
        self.assertEqual([g.shift for g in rows_to_grids([[0.0], [1.0]], 8, True, True,
                                                         all_zero_rule=False)], [0, 7])

    def test_rows_too_small(self):
        def scales(rows, **kw):
            return [g.scale for g in rows_to_grids(rows, kw.pop("bits", 8), True, False, **kw)]

        for bits in (8, 16):
            S = 2.0 ** (1 - bits)
            self.assertEqual(scales([[1.0, 0.0], [f32(1e-38), 0.0], [0.5, -0.25], [2.0 ** -149, -0.0]],
                                    bits=bits), [S, S / 2, S / 2, S / 2])
            for few in ([[f32(1e-38)], [2.0 ** -149], [0.0]], [[f32(-1e-40)]]):
                self.assertEqual(scales(few, bits=bits), [1.0] * len(few))
            self.assertEqual(scales([[f32(1e-40)], [1.0], [f32(-1e-38)]], bits=bits, all_zero_rule=False),
                             [1.0, S, 1.0])
        # 2^-126 - 2^-150 is a tie and goes up to 2^-126; 2^-126 - 2^-149 is a float32, not normal
        least, up, under = 2.0 ** -119, 2.0 ** -119 - 2.0 ** -143, 2.0 ** -119 - 2.0 ** -142
        for sign in (1, -1):
            self.assertEqual(scales([[sign * v] for v in (least, up, under)], all_zero_rule=False),
                             [2.0 ** -126, 2.0 ** -126, 1.0])
        rows = [[up, 0.0], [under, -under], [1.0, 0.0], [2.0 ** -127, f32(1.5 * 2.0 ** -126)]]
        grids = rows_to_grids(rows, 8, True, False)
        self.assertEqual([g.scale for g in grids], [2.0 ** -126, 2.0 ** -126, 2.0 ** -7, 2.0 ** -126])
        self.assertEqual([[g.quantize(v) for v in row] for row, g in zip(rows, grids)],
                         [[127, 0], [127, -128], [127, 0], [0, 2]])
        # 3 steps: the positive side has one of them, the negative side two
        self.assertEqual(scales([[2.0 ** -126], [-(2.0 ** -126)]], steps=3, all_zero_rule=False),
                         [2.0 ** -126, 1.0])
        # powers of two have a cap, other tensors are refused
        self.assertEqual([g.shift for g in rows_to_grids([[f32(1e-40)], [1.0]], 8, True, True)], [38, 7])
        for symmetric in (True, False):
            self.assertRaises(Refused, range_to_grid, 0.0, f32(1e-38), 8, True, symmetric, False, 255)

    def test_codes(self):
        g = Grid(8, True, 3, shift=1)
        self.assertEqual([g.quantize(v) for v in (0.25, 0.75, -0.25, 1e9, -math.inf, math.nan)],
                         [3, 5, 3, 127, -128, 3])
        self.assertEqual(g.dequantize(5), 1.0)


class Calibration(unittest.TestCase):
    def stats(self, values):
        st = calibrate.Statistics()
        for v in values:
            st.add(v)
        return st

    def test_histogram(self):
        st = self.stats([0.75])
        self.assertEqual((st.E, st.bins), (0, {1536: 1}))
        st.add(-1.0)  # max|x| < 2^E is strict: E = 1
        self.assertEqual((st.E, st.bins), (1, {768: 1, -1024: 1}))

    def test_order_does_not_matter(self):
        values = [Rng(7).bell(2.0 ** -k) for k in range(8)] + [0.0, -1e-9, 3.0, -17.0]
        values = [f32(v) for v in values]
        a, b, c = self.stats(values), self.stats(values[::-1]), self.stats(values[:5])
        c.merge(self.stats(values[5:]))
        for other in (b, c):
            self.assertEqual(vars(a), vars(other))

    def test_percentile(self):
        # bins of 2^-7 of a power of two; 99 is in [99, 99.5), 2 in [2, 2.015625)
        st = self.stats([float(v) for v in range(1, 101)])
        self.assertEqual(calibrate.percentile(st, "100"), (1 + 2.0 ** -7 - 2.0 ** -23, 100.0))
        # m = floor(100 * 2 / 200) = 1: one sample may lie outside on each side
        self.assertEqual(calibrate.percentile(st, "98"),
                         (2 + 2.0 ** -6 - 2.0 ** -22, 99.5 - 2.0 ** -17))
        self.assertEqual(calibrate.percentile(st, "98.01")[1], 100.0)
        st = self.stats([-1.0] * 3 + [-2.0 ** 60] + [1.5] * 3 + [2.0 ** 90])
        self.assertEqual(calibrate.percentile(st, "75"),
                         (-(1 + 2.0 ** -7 - 2.0 ** -23), 1.5 + 2.0 ** -7 - 2.0 ** -23))

    def test_high_bits(self):
        tiny = 2.0 ** -149
        st = self.stats([0.0, -0.0, tiny, -tiny, 1.0, -1.0, from_bits32("3f80ffff"), 2.0 ** -126])
        self.assertEqual([(b, st.bins16[b]) for b in calibrate.in_order(st.bins16)],
                         [(0xBF80, 1), (0x8000, 1), (0, 3), (0x80, 1), (0x3F80, 2)])
        self.assertEqual(calibrate.percentile(self.stats([0.0, -0.0]), "90"), (0.0, 0.0))

    def test_percentile_at_zero(self):
        config = 8, True, False, True, 255
        for values in ([-1.0] + [0.0] * 9 + [1.0], [-1.0] + [0.0] * 9, [2.0 ** -149]):
            st = self.stats(values)
            self.assertEqual(calibrate.percentile(st, "60"), (0.0, 0.0))
            self.assertRaises(Refused, calibrate.percentile_grid, st, "60", *config)
        zeros = self.stats([0.0, -0.0])
        self.assertEqual(calibrate.percentile_grid(zeros, "60", *config).shift, 0)
        # m = 2 of 11: an end in the bin of +0 is 0, whatever subnormal numbers it has
        st = self.stats([-1.0] * 5 + [0.0] * 5 + [1.0])
        self.assertEqual(calibrate.percentile(st, "60"), (-1.0, 0.0))
        self.assertEqual(calibrate.percentile_grid(st, "60", *config).shift, 7)
        st = self.stats([2.0 ** -149] * 6 + [1.0] * 5)
        self.assertEqual(calibrate.percentile(st, "60"), (0.0, 1.0))
        # the bin of negative subnormal numbers is another
        st = self.stats([-2.0 ** -149] * 6 + [1.0] * 5)
        self.assertEqual(calibrate.percentile(st, "60"), (-2.0 ** -149, 1.0))
        # nothing is refused where only the real step is 0
        st = self.stats([-1.0] * 3)
        self.assertEqual(calibrate.percentile_grid(st, "60", 8, False, True, True, 255).shift, 0)

    def test_ema(self):
        self.assertEqual(calibrate.ema([[[1.0], [2.0]]]), (0.9 + 0.2, 0.9 + 0.2))
        self.assertEqual(calibrate.ema([[[1.0], [2.0]]], True)[0], 0.9 * 2.0 + 0.1)

    def test_sqnr_multiplies(self):
        # float32(1/3) = 11184811 / 2^25, and 3 times that is 1 + 2^-25: the centre 3 * 2^30 is
        # taken to step 2^30 + 32 of the scale 3, an error of 96
        points, g = [(3.0 * 2 ** 30, 5.0)], Grid(32, True, 0, scale=3.0)
        self.assertEqual(calibrate.sqnr_error(points, g), 96.0 ** 2 * 5)
        self.assertEqual(calibrate.sqnr_error(points, g, "quotient"), 0.0)
        points = [((2 ** 24 + 1) * 3.0, 1.0)]  # becomes 2^24 + 1.5 + 2^-25 steps
        self.assertEqual(calibrate.sqnr_error(points, g), 9.0)
        points = [((2 ** 24 + 1) * 2.0, 1.0)]  # a power of two, exact: as float32 2^24
        g = Grid(32, True, 0, scale=2.0)
        self.assertEqual([calibrate.sqnr_error(points, g, s) for s in ("product", "product32")],
                         [0.0, 4.0])

    def test_sqnr_ends_at_normal_scales(self):
        st = self.stats([3.75 * 2.0 ** -126])
        for power in (True, False):
            found = list(calibrate.sqnr_candidates(st, 2, False, False, power, 3))
            # the shift is at its cap of 32
            self.assertEqual({j for j, _, _ in found}, set(range(1 if power else 2)))

    def test_sqnr_reaches_down_to_percentile_99(self):
        def tried(st, *config):
            return max(j for j, _, _ in calibrate.sqnr_candidates(st, *config))

        bulk = [1.0] * 300
        self.assertEqual(tried(self.stats(bulk), 8, True, True, True, 255), 3)
        self.assertEqual(tried(self.stats(bulk), 8, True, True, False, 255), 12)
        # 2^20 against 2 - 2^-8 or so, the end of the bin of 1.99
        st = self.stats([f32(1.99)] * 300 + [2.0 ** 20])
        self.assertEqual(tried(st, 8, True, True, True, 256), 19)
        self.assertEqual(tried(st, 8, True, True, False, 256), 77)  # 2^(76/4) leaves a scale of 2
        for outlier in (-1.0, 1.0):  # percentile:99 is [0, 0] and refused
            st = self.stats([0.0] * 300 + [outlier])
            self.assertEqual(tried(st, 8, True, True, False, 256), 12)
            self.assertEqual(tried(st, 8, True, True, True, 256), 3)
        st = self.stats([-1.0] * 300 + [2.0 ** 20])  # an unsigned symmetric grid: its real step is 0
        self.assertEqual(tried(st, 8, False, True, False, 255), 12)
        self.assertEqual(tried(st, 8, False, True, True, 255), 3)
        # the least shift of the bin of +-2^-126, beyond which nothing is tried: the cap of 38
        st = self.stats([2.0 ** -126] * 300 + [1.0])
        self.assertEqual(tried(st, 8, True, True, True, 256), 38 - 7)


class Tables(unittest.TestCase):
    def test_direct(self):
        t = Direct("sigmoid", Grid(8, True, 0, shift=4), output_grid("sigmoid", 8, False, False, True))
        self.assertEqual(t.entries[128], 128)                 # sigmoid(0) = 1/2
        self.assertEqual((t.entries[0], t.entries[255]), (0, 255))
        self.assertEqual(t.entries[128 + 16], 187)            # 256 * 0.731058 = 187.15
        t = Direct("tanh", Grid(8, True, 0, shift=4), output_grid("tanh", 8, True, False, True))
        self.assertEqual(t.entries[128 + 8], 59)              # 128 * 0.462117 = 59.15
        self.assertEqual(t.entries[128 - 8], -59)
        self.assertEqual((t.entries[0], t.entries[255]), (-128, 127))

    def test_bounds(self):
        out = Grid(8, False, 0, shift=7)                       # 1 has the code 128
        t = Segments("sigmoid", Grid(8, True, 0, shift=4), out, [], [1], [500], 0)
        self.assertEqual((t.lo, t.hi, t(0, "floor")), (0, 128, 128))

    def test_bounds_use_the_exact_scale(self):
        out = output_grid("tanh", 8, True, False, False, 233)
        # S is below 2/233, 1/S just above 116.5, and float32(1/S) is 116.5
        self.assertEqual((out.z, out.S < Fraction(2, 233), div32(1.0, out.scale)), (-11, True, 116.5))
        t = Direct("tanh", Grid(4, True, 0, shift=-1), out)
        self.assertEqual((t.lo, t.hi, t.entries[0], t.entries[-1]), (-128, 106, -128, 106))
        out = output_grid("tanh", 8, True, False, False, 251)
        self.assertEqual((out.S > Fraction(2, 251), div32(1.0, out.scale)), (True, 125.5))
        t = Direct("tanh", Grid(4, True, 0, shift=-1), out)
        self.assertEqual((out.z, t.lo, t.hi), (-3, -128, 122))

    def test_interpolated_clamps_to_the_grid_first(self):
        gin, out = Grid(4, True, 0, shift=1), Grid(8, True, 0, shift=7)
        # a span of -10..21 around the grid -8..7: nothing beyond the grid is looked up
        t = Interpolated("tanh", gin, out, -10, 1, 4, 0, [0, 16, 48])
        self.assertEqual([t(q, "floor") for q in (-100, -10, -9, -8, 6, 7, 8, 100)],
                         [2, 2, 2, 2, 16, 18, 18, 18])
        t = Interpolated("tanh", gin, out, -4, 1, 2, 0, [0, 16, 48])  # a span inside it, -4..3
        self.assertEqual([t(q, "floor") for q in (-8, -4, 3, 7)], [0, 0, 40, 40])

    def test_digests(self):
        self.assertEqual([fnv1a64(b) for b in (b"", b"a", b"foobar")],
                         ["cbf29ce484222325", "af63dc4c8601ec8c", "85944171f73967e8"])
        self.assertEqual(digest([1, -2]), fnv1a64(b"\1" + bytes(7) + b"\xfe" + b"\xff" * 7))
        gin, out = Grid(9, True, 5, shift=5), output_grid("tanh", 8, True, False, True)
        t = Direct("tanh", gin, out)
        self.assertEqual(direct_outputs("tanh", gin, out), t.entries)
        self.assertEqual(t.digests(), digest(t.entries))
        t = Segments("tanh", Grid(1, True, 0, shift=0), out, [], [1], [1], 1)  # 0 and 1/2
        self.assertEqual(t.digests(), {m: digest([0, y]) for m, y in zip(MODES, (0, 1, 1, 0))})

    def test_interpolated(self):
        gin, out = Grid(4, True, 0, shift=1), Grid(8, True, 0, shift=7)
        t = Interpolated("tanh", gin, out, -8, 1, 3, 1, [-20, 0, 21])
        # q = -3: t = 5, (-20*8 + 20*5) / 16 = -3.75; q = 4: 21*4/16 = 5.25; q = 7: 9.1875
        self.assertEqual([t(q, "nearest_even") for q in (-100, -8, -3, 0, 4, 7, 100)],
                         [-10, -10, -4, 0, 5, 9, 9])
        self.assertEqual(t(-3, "floor"), -4)
        self.assertEqual(t(4, "floor"), 5)

    def test_segments(self):
        gin, out = Grid(4, True, 1, shift=1), Grid(8, True, 0, shift=7)
        t = Segments("tanh", gin, out, [0, 4], [2, 3, -1], [1, 2, 9], 1)
        # q = -1: i = 0, (2*-2 + 1)/2 = -1.5; q = 0: i = 1, (-3 + 2)/2; q = 4: i = 2, (-3 + 9)/2
        self.assertEqual([t(q, "nearest_even") for q in (-1, 0, 4)], [-2, 0, 3])
        self.assertEqual([t(q, "nearest_up") for q in (-1, 0, 4)], [-1, 0, 3])


class Gru(unittest.TestCase):
    def unit(self, bw):
        """C = H = 1, all weights zero but W_n = 1 (code 64 at shift 6); u_in = r_in = bw."""
        act = Grid(8, True, 0, shift=5)
        grids = {k: act for k in ("x", "ih", "hh", "u_in", "r_in", "n_in")}
        grids["h"] = Grid(8, True, 0, shift=6)
        grids["u"] = grids["r"] = output_grid("sigmoid", 8, False, False, True)
        grids["n"] = output_grid("tanh", 8, True, False, True)
        w = Grid(8, True, 0, shift=6)
        rows = {k: [w] * 3 for k in ("W", "R", "bw", "br")}
        tables = {k: Direct("tanh" if k == "n" else "sigmoid", act, grids[k]) for k in "urn"}
        return Unit(grids, rows, [[0], [0], [64]], [[0], [0], [0]], bw, [0, 0, 0], tables,
                    "nearest_even")

    def test_operand_bounds(self):
        grid = lambda bits, z, e: Grid(bits, True, z, scale=2.0 ** -e)
        grids = {k: grid(8, 0, 5) for k in ("x", "ih", "hh", "u_in", "r_in", "n_in")}
        grids.update(h=grid(24, 0, 23), n=grid(8, 0, 7))
        grids["u"] = grids["r"] = Grid(8, False, 0, scale=2.0 ** -8)
        # a bias of 32 bits and 4 times the scale of the accumulator
        rows = {k: [grid(8, 0, 6)] * 3 for k in ("W", "R", "br")}
        rows["bw"] = [grid(32, 0, 9)] * 3
        tables = {k: Direct("tanh" if k == "n" else "sigmoid", grids[k + "_in"], grids[k])
                  for k in "urn"}
        rs = Unit(grids, rows, [[1], [1], [1]], [[0], [0], [0]], [0, 1, -7], [0, 0, 0], tables,
                  "nearest_even").rs
        # X of the accumulator: 128, and 128 + 2^33 + 1 whatever the code of the bias is
        self.assertEqual([vars(r) for r in rs["acc_to_ih"]],
                         [{"m": 1 << 30, "n": 36}] + [{"m": 1 << 28, "n": 34}] * 2)
        # n' is at most 128 * 2^16 + 1; X = 255 * 2^23 + (255 + 256) * (2^23 + 1) is above 2^32,
        # while max |one - u| = 256 would leave it below
        self.assertEqual(vars(rs["u_to_1"]), {"m": 1 << 29, "n": 37})

    def test_one_step(self):
        u = self.unit([0, 0, 0])
        self.assertEqual(u.one, 256)
        # x = 16 is 0.5; u = 128/256; n = 128 tanh(1/2) = 59; n' = rint(59/2) = 30 (29.5);
        # h' = rint((128*0 + 128*30) / 256) = 15
        y, last, tr = run_model([[u]], [[[16]]])
        o = tr[0][0][0]
        self.assertEqual((o["ih"], o["u"], o["n"], o["h"]), ([0, 0, 16], [128], [59], [15]))
        # from h = 64: rint((128*64 + 128*30)/256) = 47
        self.assertEqual(run_model([[u]], [[[16]]], h0=[[[64]]])[0], [[[47]]])

    def test_held_state(self):
        u = self.unit([127, 0, 0])   # u_in = 127/64 -> code 64 (63.5 to even): sigmoid(2) = 0.880797
        o = run_model([[u]], [[[0]]], h0=[[[-64]]])[2][0][0][0]
        self.assertEqual((o["u_in"], o["u"]), ([64], [225]))
        self.assertEqual(o["h"], [-56])  # -64 * 225 / 256 = -56.25

    def test_lengths_reverse_masks(self):
        u = self.unit([0, 0, 0])
        x = [[[16]], [[-16]], [[100]]]
        y, last, _ = run_model([[u, u]], x, lengths=[2])
        # forward 15 then (7.5 - 15): rint((128*15 - 128*30)/256) = rint(-7.5) = -8
        self.assertEqual([v[0] for v in y], [[15, 8], [-8, -15], [0, 0]])
        self.assertEqual(last, [[[-8]], [[8]]])
        y, last, _ = run_model([[u]], x[:2], masks=[[[[0]], [[1]]]])
        self.assertEqual((y, last), ([[[0]], [[-15]]], [[[-15]]]))


class DeadRows(unittest.TestCase):
    def grids(self, weight, **kw):
        """weight, bias and x of 2^-s, as shifts or as scales."""
        shift = lambda bits, s: Grid(bits, True, 0, **({"shift": s} if self.power
                                                       else {"scale": 2.0 ** -s}))
        return (shift(16, weight), shift(kw.get("bias_bits", 8), kw.get("bias", 0)),
                shift(16, kw.get("x", 14)), shift(8, 5))

    def test_powers_of_two(self):
        self.power = True
        w, b, x, ih = self.grids(46)
        # the bias 128 * 2^60 on the accumulator; 128 * 2^23 = 2^30 is the most that may be left
        self.assertEqual(bias_bound(w, b, 64, x), 1 << 67)
        self.assertTrue(is_dead([1, -2], w, b, 64, x, ih))
        self.assertEqual(revived(w, b, 64, x).shift, 9)
        self.assertFalse(is_dead([1, -2], w, b, 0, x, ih))  # a bias of zero
        # 2^62 is none that is too large, 2^63 is
        self.assertFalse(is_dead([1, -2], self.grids(41)[0], b, 64, x, ih))
        self.assertTrue(is_dead([1, -2], self.grids(42)[0], b, 64, x, ih))
        # 2^48 * 2^15 is too large without the bias
        self.assertTrue(overflows([1 << 48], w, b, 64, x, ih))
        self.assertFalse(is_dead([1 << 48], w, b, 64, x, ih))
        self.assertTrue(is_dead([(1 << 48) - 1], w, b, 64, x, ih))
        # acc -> ih is refused for weights, and for a bias beside zeros
        coarse = Grid(8, True, 0, shift=-32), b, 64, x, Grid(8, True, 0, shift=45)
        self.assertFalse(is_dead([1], *coarse))
        self.assertTrue(is_dead([0], *coarse))
        # a shift below -62
        w, b, x, ih = self.grids(46, x=20)
        self.assertEqual(bias_bound(w, b, 64, x), None)
        self.assertTrue(is_dead([1, -2], w, b, 64, x, ih))
        self.assertEqual(revived(w, b, 64, x).shift, 3)
        # no shift of -32 and above
        w, b, x, ih = self.grids(46, bias=-32, x=24)
        self.assertRaises(Refused, revived, w, b, 64, x)
        w, b, x, ih = self.grids(46, bias=-31, x=24)
        self.assertEqual(revived(w, b, 64, x).shift, -32)

    def test_general_scales(self):
        self.power = False
        w, b, x, ih = self.grids(60, bias=7, x=6)
        self.assertEqual(bias_bound(w, b, 64, x), 1 << 66)
        self.assertTrue(is_dead([0], w, b, 64, x, ih))
        # at 2^-24 the bound is floor(2^30) + 1
        self.assertEqual(bias_bound(self.grids(24, bias=7, x=6)[0], b, 64, x), (1 << 30) + 1)
        self.assertEqual(revived(w, b, 64, x).scale, 2.0 ** -24 * (1 + 2.0 ** -23))
        # section 2 refuses an accumulator of 2^62
        self.assertTrue(is_dead([0], self.grids(56)[0], b, 64, x, ih))
        self.assertFalse(is_dead([0], self.grids(55)[0], b, 64, x, ih))
        # 2^31 * 2^31 is refused without the bias: that row is not dead, whatever its bias
        w1, wide = Grid(32, True, 0, scale=1.0), Grid(32, True, 0, scale=1.0)
        self.assertTrue(overflows([1 << 31], w1, b, 64, wide, ih))
        self.assertFalse(is_dead([1 << 31], w1, b, 64, wide, ih))
        self.assertFalse(is_dead([1 << 31], w1, self.grids(0, bias=-60)[1], 64, wide, ih))
        # (2^31 - 1) * (2^31 + 1) is one below: the bias is at fault, but it is below 2^30 already
        wide = Grid(32, True, -2, scale=1.0)
        self.assertTrue(is_dead([(1 << 31) - 1], w1, b, 64, wide, ih))
        self.assertEqual(revived(w1, b, 64, wide).scale, 1.0)
        self.assertRaises(Refused, revived, w, self.grids(0, bias=-127)[1], 64,
                          self.grids(0, x=100)[2])

    def test_model(self):
        act = {"bits": 8, "signed": True, "symmetric": False, "steps": None, "min": -1.0, "max": 1.0}
        tensors = {k: dict(act) for k in ("x", "h", "ih", "hh", "u_in", "r_in", "n_in")}
        for k in "urn":
            tensors[k] = {"bits": 8, "signed": k == "n", "symmetric": False, "steps": None}
        rows = {k: {"bits": 8, "signed": True, "steps": None} for k in ("W", "R", "bw", "br")}
        args = ([[1.0], [f32(1e-20)], [0.0]], [[0.0], [0.0], [1.0]], [0.5, 0.25, 0.5], [0.0] * 3,
                tensors, rows, False, "nearest_even")
        self.assertRaises(Refused, build_unit, *args, dead=None)
        unit = build_unit(*args)
        # the row of zeros took the scale of row 1, and twice the bias needs twice the scale
        self.assertEqual(unit.dead, {"W": [1, 2], "R": []})
        S = [g.scale for g in unit.row_grids["W"]]
        self.assertEqual((S[0], S[2], unit.W), (2.0 ** -7, 2 * S[1], [[127], [0], [0]]))
        # 127/128 of 0.25 and of 0.5 arrive: 31.6 and 63.3 steps of 2/255
        o = run_model([[unit]], [[[0]]])[2][0][0][0]
        z = unit.grids["ih"].z
        self.assertEqual([q - z for q in o["ih"][1:]], [32, 63])


class Small(unittest.TestCase):
    def test_rint(self):
        self.assertEqual([rint(v) for v in (0.5, 1.5, -0.5, -1.5, 2.5)], [0, 2, 0, -2, 2])


if __name__ == "__main__":
    unittest.main()
