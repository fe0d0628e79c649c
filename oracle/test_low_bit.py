# SPDX-License-Identifier: Apache-2.0
"""Checks of the oracle of sections 9 to 12 against values worked by hand, exact sums and the machine."""
import ctypes
import ctypes.util
import itertools
import math
import struct
import unittest
from fractions import Fraction

from .convolution import (Geometry, StaticStream, Transposed, average_pool, exact_convolution, gather, max_pool,
                          on_the_fly_convolution, per_image_convolution, quantise_shared, static_convolution)
from .floats import (BF16, F16, F32, FORMATS, READERS, add, bits32, bits_of, divide, fma, from_bits32, multiply,
                     subtract, to_format)
from .grid import Grid
from .low_bit import (KINDS, RELU, RELU6, Weights, activate, bound_squared, exact_linear, finish, groups_of,
                      on_the_fly, pack, promote, quantise, quantise_activations, terms_of, unpack, within_bound)
from .low_bit_vectors import make_low_bit, random_rows
from .rounding import MODES, Refused, rint
from .static_linear import StaticLinear, channel_weights
from .vectors import Rng

LIMIT = 2.0 ** -118
BELOW = from_bits32("047fffff")  # the float32 number below 2^-118


def value(text, kind="f32"):
    return READERS[kind](text)


class Floats(unittest.TestCase):
    def test_against_the_machine(self):
        libm = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
        libm.fmaf.restype = ctypes.c_float
        libm.fmaf.argtypes = [ctypes.c_float] * 3

        def f32(v):
            try:
                return struct.unpack("<f", struct.pack("<f", v))[0]
            except OverflowError:
                return math.copysign(math.inf, v)

        rng = Rng(11)
        special = [0.0, -0.0, math.inf, -math.inf, math.nan, 2.0 ** -149, -(2.0 ** -126), 3.4e38, -1.0]
        for _ in range(4000):
            a, b, c = (f32(rng.pick(special)) if rng.int(0, 5) == 0 else
                       f32(math.ldexp(rng.bits(24), rng.int(-90, 60))) for _ in range(3))
            # float64 has more than twice the digits: its results, rounded again, are those of float32
            for got, expected in ((add(a, b, F32), f32(a + b)), (subtract(a, b, F32), f32(a - b)),
                                  (multiply(a, b, F32), f32(a * b)), (fma(a, b, c), libm.fmaf(a, b, c))):
                self.assertEqual(bits_of(got, "f32"), bits_of(expected, "f32"))

    def test_bits(self):
        for kind, v, text in (("f16", 1.0, "3c00"), ("f16", -0.0, "8000"), ("bf16", -2.0, "c000"),
                              ("f16", math.inf, "7c00"), ("bf16", -math.inf, "ff80"), ("f32", 1.5, "3fc00000"),
                              ("f32", math.nan, "7fc00000"), ("f16", math.nan, "7e00"), ("bf16", math.nan, "7fc0")):
            self.assertEqual(bits_of(v, kind), text)


class Canonical(unittest.TestCase):
    def test_pack(self):
        for codes, bits, text in (([1, 2, 3], 4, "21030000"), ([1, 0, 1, 1], 1, "0d000000"),
                                  ([3, 0, 1, 2, 1], 2, "93010000"), ([255, 0, 7], 8, "ff000700"),
                                  ([0] * 8 + [15], 4, "000000000f000000"), ([1] * 32, 1, "ffffffff")):
            self.assertEqual(pack(codes, bits).hex(), text)
            self.assertEqual(unpack(bytes.fromhex(text), len(codes), bits), codes)

    def test_values(self):
        one = Weights(1, 8, "symmetric", "f32", [[0, 1] * 4], [[0.5]])
        self.assertEqual([one.value(0, k) for k in (0, 1)], [-1, 1])
        self.assertEqual([one.decode(0, k) for k in (0, 1)], [-0.5, 0.5])
        two = Weights(2, 8, "symmetric", "bf16", [[0, 1, 2, 3] * 2], [[2.0]])
        self.assertEqual([two.decode(0, k) for k in range(4)], [-4.0, -2.0, 0.0, 2.0])
        z = Weights(4, 8, "zero_point", "f16", [[0, 15] * 8], [[1.0, 2.0]], [[16, 0]])
        self.assertEqual([z.decode(0, k) for k in (0, 1, 8, 9)], [-16.0, -1.0, 0.0, 30.0])
        offset = Weights(4, 8, "offset", "f32", [[0, 15] * 5], [[1.0, 0.5]], 8, [[0.25, -3.0]])
        self.assertEqual([offset.decode(0, k) for k in (0, 1, 8, 9)], [-7.75, 7.25, -7.0, 0.5])
        # two roundings: 3 S goes from 3 + 3 * 2^-23 to 3 + 2^-21, the even one of its neighbours
        fine = Weights(4, 8, "offset", "f32", [[3] * 8], [[1 + 2.0 ** -23]], 0, [[-3.0]])
        self.assertEqual(fine.decode(0, 0), 2.0 ** -21)
        # no offset, no sum: -0 stays
        negative = Weights(4, 8, "symmetric", "f32", [[8] * 8], [[-1.0]])
        self.assertEqual(bits32(negative.decode(0, 0)), "80000000")

    def test_refused(self):
        row = [[0] * 20]
        for arguments in ((3, 8, "symmetric", "f32", row, [[1.0] * 3]), (4, 12, "symmetric", "f32", row, [[1.0] * 2]),
                          (4, 8, "zero_point", "f32", row, [[1.0] * 3], [[17, 0, 0]]),
                          (4, 8, "offset", "f32", row, [[1.0] * 3], 3, [[0.0] * 3]),
                          (4, 8, "offset", "f32", row, [[1.0] * 3], 8),
                          (4, 8, "symmetric", "f32", row, [[1.0, math.inf, 1.0]]),
                          (4, 24, "symmetric", "f32", row, [[1.0]]),
                          (4, 8, "symmetric", "f32", row, [[1.0, 0.0, 1.0]]),
                          (4, 8, "symmetric", "f32", row, [[1.0, 1.0, -(2.0 ** 125)]]),
                          (4, 8, "offset", "f32", row, [[2.0 ** 124] * 3], 0, [[0.0, 0.0, 2.0 ** 127]])):
            self.assertRaises(Refused, Weights, *arguments)
        Weights(4, 20, "symmetric", "f32", row, [[1.0]])  # K, though no multiple of 8
        Weights(4, 8, "zero_point", "f32", row, [[1.0, 0.0, -0.0]], [[16, 0, 0]])
        Weights(4, 8, "symmetric", "f32", row, [[2.0 ** 124] * 3])  # code 0 is -2^127


class Quantisers(unittest.TestCase):
    def one(self, values, bits, kind, store="f32", mse=False):
        w = quantise([values], bits, len(values), kind, store, mse)
        return w.codes[0], w.S[0][0], w.z[0][0], w.O[0][0] if w.O else None

    def test_absmax(self):
        self.assertEqual(self.one([float(i) for i in range(-8, 8)], 4, "symmetric")[:2], (list(range(16)), 1.0))
        self.assertEqual(self.one([-2.0, 1.0, 0.5, -0.5, 1.5 / 2], 2, "symmetric")[:2], ([0, 3, 2, 2, 3], 1.0))
        self.assertEqual(self.one([127.0, -1.5, -0.5, 2.5, -64.0], 8, "symmetric")[:2], ([255, 126, 128, 130, 64], 1.0))
        self.assertEqual(self.one([-128.0, 126.5], 8, "symmetric")[:2], ([0, 254], 1.0))
        self.assertEqual(self.one([-7.0, -3.5], 4, "symmetric")[:2], ([0, 4], 0.875))  # no positive side
        self.assertEqual(self.one([0.5, -1.5, -0.0, 2.0], 1, "symmetric")[:2], ([1, 0, 1, 1], 1.0))

    def test_minmax(self):
        self.assertEqual(self.one([-1.0, 2.0, 0.0, 1.0], 2, "zero_point"), ([0, 3, 1, 2], 1.0, 1, None))
        self.assertEqual(self.one([-3.0, -1.0], 2, "zero_point"), ([0, 2], 1.0, 3, None))
        self.assertEqual(self.one([5.0, 15.0], 4, "zero_point"), ([5, 15], 1.0, 0, None))
        self.assertEqual(self.one([10.0, 11.0, 12.5, 13.0], 2, "offset"), ([0, 1, 2, 3], 1.0, 0, 10.0))
        self.assertEqual(self.one([-3.0, 1.0], 1, "offset"), ([0, 1], 4.0, 0, -3.0))
        # S rounds down to 1 in bfloat16; zero keeps a code
        low = -255.99609375
        self.assertEqual(self.one([low, 0.0], 8, "zero_point", "bf16"), ([0, 255], 1.0, 255, None))

    def test_stored_parameters(self):
        third = to_format(1 / 3, F32)
        for kind in KINDS:
            for store in FORMATS:
                codes, S, z, _ = self.one([0.0, third, 1.0, to_format(0.7, F32)], 4, kind, store)
                self.assertEqual(S, to_format(1 / 7 if kind == "symmetric" else 1 / 15, FORMATS[store]))
                self.assertEqual(codes[1], min(rint(third / S) + z, 15))
        # straight to float16: 1 + 2^-11 + 2^-42 would first become a tie in float32
        self.assertEqual(self.one([4.0, 2.0 ** -9, 2.0 ** -40, 0.0], 1, "symmetric", "f16")[1], 1 + 2.0 ** -10)
        self.assertEqual(self.one([4.0, 2.0 ** -9, 0.0, 0.0], 1, "symmetric", "f16")[1], 1.0)

    def test_nothing_to_represent(self):
        for bits in (1, 2, 4, 8):
            zeros = [0.0, -0.0] * 4
            codes, S, z, _ = self.one(zeros, bits, "symmetric", "f16")
            self.assertEqual((codes, bits32(S)), ([1 if bits == 1 else z] * 8, "00000000"))
            self.assertEqual(self.one(zeros, bits, "zero_point"), ([0] * 8, 0.0, 0, None))
            self.assertEqual(self.one([3.25] * 8, bits, "offset", "bf16"), ([0] * 8, 0.0, 0, 3.25))
            w = quantise([[to_format(0.1, F32)] * 8], bits, 8, "offset", "f32", True)
            self.assertEqual(w.decode(0, 3), to_format(0.1, F32))

    def test_refused(self):
        tiny = [2.0 ** -14 * 7, 0.0]
        self.assertEqual(self.one(tiny, 4, "symmetric", "f16")[1], 2.0 ** -14)
        # stored as 2^-14 after rounding: kept
        self.assertEqual(self.one([tiny[0] * (1 - 2.0 ** -13), 0.0], 4, "symmetric", "f16")[1], 2.0 ** -14)
        for values in ([tiny[0] * 0.99, 0.0], [1e-9, 0.0], [2.0 ** -149, 0.0]):
            values = [to_format(v, F32) for v in values]
            for kind in KINDS:
                self.assertRaises(Refused, self.one, values, 4, kind, "f16")
                self.one(values, 4, kind, "bf16")
        self.assertRaises(Refused, self.one, [7e5], 4, "symmetric", "f16")
        self.assertRaises(Refused, self.one, [-3e38, 3e38], 1, "offset", "f32")
        for bad in (math.nan, math.inf):
            self.assertRaises(Refused, self.one, [1.0, bad], 4, "symmetric")

    def test_mse(self):
        rng = Rng(3)
        found = set()
        for trial in range(24):
            values = [float(rng.int(-32, 32)) / 8 for _ in range(16)] + [rng.pick([-9.0, 9.0, 0.0])]
            bits, kind = (2, 4, 8)[trial % 3], KINDS[trial % 3 if trial < 12 else (trial // 2) % 3]
            w = quantise([values], bits, 17, kind, "f32", True)
            lo, hi = min(values), max(values)
            if kind == "zero_point":
                lo, hi = min(lo, 0.0), max(hi, 0.0)
            errors = []
            for i in range(32):
                a, b, top, half = lo * (64 - i) / 64, hi * (64 - i) / 64, 2 ** bits - 1, 2 ** (bits - 1)
                S = to_format(max(b / (half - 1), -a / half) if kind == "symmetric" else (b - a) / top, F32)
                z = {"symmetric": half, "zero_point": min(max(rint(-a / S), 0), top), "offset": 0}[kind]
                O = to_format(a, F32) if kind == "offset" else 0.0
                decoded = [S * (min(max(rint((v - O) / S) + z, 0), top) - z) + O for v in values]
                errors.append((sum((Fraction(v) - Fraction(d)) ** 2 for v, d in zip(values, decoded)), i, S))
            ranked = sorted(errors)
            if ranked[1][0] - ranked[0][0] > Fraction(1, 10 ** 9):
                self.assertEqual(w.S[0][0], ranked[0][2])
                found.add(ranked[0][1])
        self.assertGreater(len(found), 4)
        # equal errors: the smaller i, so a range that needs no factor keeps it
        self.assertEqual(self.one([-8.0, 7.0, 1.0], 4, "symmetric", "f32", True)[1], 1.0)
        self.assertEqual(self.one([0.5, -1.5, 0.25], 1, "symmetric", "f32", True),
                         self.one([0.5, -1.5, 0.25], 1, "symmetric"))

    def test_error_is_half_a_step(self):
        rng = Rng(4)
        for bits in (2, 4, 8):
            for kind in KINDS:
                row = random_rows(rng, 1, 40, 1.0)[0]
                w = quantise([row], bits, 16, kind, "f32")
                self.assertEqual([len(w.group_of(g)) for g in range(w.G)], [16, 16, 8])
                for k, v in enumerate(row):
                    # the zero point is rounded too: the end of the range may lie half a step beyond the last code
                    steps = Fraction(1) if kind == "zero_point" else Fraction(1, 2)
                    limit = Fraction(w.S[0][k // 16]) * steps * Fraction(10001, 10000)
                    self.assertLessEqual(abs(Fraction(v) - w.exact(0, k)), limit)


class FloatActivations(unittest.TestCase):
    def test_by_hand(self):
        w = Weights(4, 8, "offset", "f32", [[9] * 8 + [7] * 2], [[0.5, 2.0]], 8, [[1.0, -1.0]])
        # 8 weights of 1.5, two of -3
        self.assertEqual(exact_linear(w, [1.0] * 8 + [0.25, 0.5], [0.75]), [Fraction(12 * 4 - 9 + 3, 4)])

    def test_activation(self):
        for act, pairs in ((None, [(-1.0, -1.0)]), (RELU, [(-1.0, 0.0), (3e38, 3e38), (math.inf, math.inf)]),
                           (RELU6, [(6.5, 6.0), (5.5, 5.5)]), ((-2.0, -1.0), [(0.0, -1.0), (-3.0, -2.0)])):
            for y, expected in pairs:
                self.assertEqual(activate(y, act), expected)
            self.assertTrue(math.isnan(activate(math.nan, act)))
        self.assertEqual(bits32(activate(-0.0, RELU)), "80000000")

    def test_bound(self):
        rng = Rng(5)
        K = 256
        w = quantise(random_rows(rng, 8, K, 0.1), 4, 32, "zero_point", "f16")
        x = random_rows(rng, 1, K, 1.0)[0]
        reference = exact_linear(w, x)
        sums = []
        for n in range(8):  # plain float32 sums, products rounded to float32
            acc = 0.0
            for k in range(K):
                acc = fma(x[k], w.decode(n, k), acc)
            sums.append(acc)
        self.assertTrue(within_bound(sums, reference, "f32", K))
        self.assertTrue(within_bound([to_format(v, F16) for v in sums], reference, "f16", K))
        self.assertFalse(within_bound([to_format(v, F16) for v in sums], reference, "f32", K))
        self.assertTrue(within_bound([to_format(v, BF16) for v in sums], reference, "bf16", K))
        for kind, part in (("f32", "0.000016"), ("f16", "0.002"), ("bf16", "0.01")):  # at the bound and below
            self.assertEqual([within_bound([v], [Fraction(1000)], kind, K) for v in
                              (1000 * (1 + Fraction(part)), 1000 * (1 + Fraction(part) * Fraction(999, 1000)))],
                             [False, True])
        self.assertFalse(within_bound([sums[1], sums[0]] + sums[2:], reference, "bf16", K))
        self.assertTrue(within_bound([0.0], [Fraction(0)], "f32", K))
        self.assertFalse(within_bound([1e-30], [Fraction(0)], "f32", K))
        self.assertEqual(bound_squared("f32", 4), Fraction(2, 10 ** 6) ** 2)


class OnTheFly(unittest.TestCase):
    def codes(self, x, asymmetric=False):
        one = quantise_activations(x, asymmetric)
        return one.a, one.Sa, one.Oa

    def test_symmetric_activations(self):
        self.assertEqual(self.codes([127.0, -127.0, 63.5, 0.5, 1.5, -2.5, 0.0]),
                         ([127, -127, 64, 0, 2, -2, 0], 1.0, 0.0))
        self.assertEqual(self.codes([-254.0, 1.0, 3.0]), ([-127, 0, 2], 2.0, 0.0))  # ties at 0.5 and 1.5
        self.assertEqual(self.codes([LIMIT, 0.0]), ([127, 0], divide(LIMIT, 127.0, F32), 0.0))
        self.assertEqual(self.codes([BELOW, -BELOW]), ([0, 0], 0.0, 0.0))
        biggest = from_bits32("7f7fffff")
        self.assertEqual(self.codes([biggest, -biggest])[0], [127, -127])

    def test_symmetric_order_of_operations(self):
        # the quotient is rounded before the product: dividing x by Sa gives other codes somewhere
        rng, differ = Rng(6), 0
        for _ in range(3000):
            amax = rng.real(1, 2)
            inv, Sa = divide(127.0, amax, F32), divide(amax, 127.0, F32)
            x = to_format((rng.int(0, 126) + 0.5) * Sa, F32)
            got = quantise_activations([amax, x], False).a[1]
            self.assertEqual(got, rint(to_format(inv * x, F32)))  # the float64 product is exact
            differ += got != rint(divide(x, Sa, F32))
        self.assertGreater(differ, 100)

    def test_asymmetric_activations(self):
        self.assertEqual(self.codes([0.0, 255.0, 128.0, 0.5, 1.5, 254.0], True),
                         ([-128, 127, 0, -128, -126, 126], 1.0, 128.0))
        self.assertEqual(self.codes([10.0, 265.0, 20.0], True), ([-128, 127, -118], 1.0, 138.0))  # not widened
        self.assertEqual(self.codes([5.0, 5.0], True), ([0, 0], 0.0, 5.0))
        self.assertEqual(self.codes([-3.0], True), ([0], 0.0, -3.0))
        self.assertEqual(self.codes([0.0, BELOW], True), ([0, 0], 0.0, BELOW))
        self.assertEqual(self.codes([0.0, LIMIT], True)[0], [-128, 127])
        for bad in ([3e38, -3e38], [math.inf], [math.nan, 0.0], [-math.inf, 1.0]):
            self.assertIsNone(quantise_activations([to_format(v, F32) for v in bad], True))
        self.assertIsNotNone(quantise_activations([to_format(v, F32) for v in (3e38, -3e38)], False))

    def test_by_hand(self):
        # one group: a = x, Sa = 1; v = 1, 2, -3 and zeros; S = 0.5: 0.5 (127 - 4 + 9) + 0.25
        w = Weights(4, 8, "symmetric", "f32", [[9, 10, 5] + [8] * 5], [[0.5]])
        x = [127.0, -2.0, -3.0, 0.0, 9.0, 9.0, 9.0, 9.0]
        self.assertEqual(value(on_the_fly(w, x, False, [0.25])[0]), 66.25)
        # offset: + 1.5 sum x = 1.5 (127 - 5 + 36)
        w = Weights(4, 8, "offset", "f32", w.codes, w.S, 8, [[1.5]])
        self.assertEqual(value(on_the_fly(w, x, False)[0]), 66.0 + 237.0)
        # asymmetric: x = 128 + a exactly
        x = [0.0, 255.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
        self.assertEqual(value(on_the_fly(w, x, True)[0]), 0.5 * (510 - 9) + 1.5 * 288)
        self.assertEqual(on_the_fly(w, [-v for v in x], True, None, RELU, "bf16"), ["0000"])

    def test_rounded_once_at_the_end(self):
        w = Weights(8, 8, "symmetric", "f32", [[129] + [128] * 7], [[1.0]])
        x = [127.0] + [0.0] * 7
        # T + bias = 128 + 2^-4, a tie in float16 but for the float32 rounding of the sum
        self.assertEqual(value(on_the_fly(w, x, False, [1.0625], None, "f16")[0], "f16"), 128.0)
        self.assertEqual(value(on_the_fly(w, x, False, [1.1875], None, "f16")[0], "f16"), 128.25)
        self.assertEqual(on_the_fly(w, x, False, [65504.0], None, "f16"), ["7c00"])
        self.assertEqual(on_the_fly(w, x, False, [65504.0], (0.0, 8.0), "f16"), ["4800"])

    def test_not_finite(self):
        w = Weights(8, 8, "symmetric", "f32", [[129] * 16] * 3, [[1.0, 1.0]] * 3)
        for kind, text in (("f32", "7fc00000"), ("f16", "7e00"), ("bf16", "7fc0")):
            for bad in (math.inf, math.nan):
                self.assertEqual(on_the_fly(w, [bad] + [0.0] * 15, False, None, RELU, kind), [text] * 3)

    def test_against_exact_sums(self):
        rng = Rng(7)
        for trial in range(36):
            bits, kind, asymmetric = (1, 2, 4, 8)[trial % 4], KINDS[trial % 3], trial % 2 == 1
            K = rng.int(1, 300)
            group = min(K, rng.pick([8, 16, 32, 40]))
            w = quantise(random_rows(rng, 3, K, 0.5), bits, group, kind, rng.pick(sorted(FORMATS)))
            x = random_rows(rng, 1, K, 1.0)[0]
            groups = groups_of(w, x, asymmetric)
            for n in range(3):
                exact = size = Fraction(0)
                for g, one in enumerate(groups):
                    for k, a in zip(w.group_of(g), one.a):
                        part = w.exact(n, k) * (Fraction(one.Sa) * a + Fraction(one.Oa))
                        exact += part
                        size += abs(part) + abs(Fraction(w.S[n][g]) * w.value(n, k) * Fraction(one.Oa))
                        if w.O:
                            size += abs(Fraction(w.O[n][g])) * (abs(Fraction(one.Sa) * a) + abs(Fraction(one.Oa)))
                got = promote(terms_of(w, n, groups), asymmetric)
                self.assertLess(abs(Fraction(got) - exact), size * Fraction(1, 1 << 18))
            for one, k in ((groups[k // group], k) for k in range(K)):  # codes stand for x
                step = abs(Fraction(one.Sa) * one.a[k % group] + Fraction(one.Oa) - Fraction(x[k]))
                self.assertLessEqual(step, Fraction(one.Sa) * Fraction(501, 1000))

    def test_chunks(self):
        # 2^24 in the first group loses ones within its own chunk only
        S = [2.0 ** 24 / 127] + [1.0 / 127] * 47
        S = [to_format(v, F32) for v in S]
        terms = [(127, 0, 0, 8, 1.0, 0.0, s, None) for s in S]
        first = promote(terms[:16], False)
        second, third = promote(terms[16:32], False), promote(terms[32:], False)
        self.assertEqual(promote(terms, False), add(add(first, second, F32), third, F32))
        plain = 0.0
        for d, _, _, _, Sa, _, s, _ in terms:
            plain = fma(float(d), multiply(s, Sa, F32), plain)
        self.assertNotEqual(promote(terms, False), plain)

    def test_subnormals(self):
        tiny = 2.0 ** -140
        w = Weights(4, 8, "symmetric", "f32", [[9] + [8] * 7], [[tiny]])
        x = [127.0] + [0.0] * 7
        self.assertEqual(value(on_the_fly(w, x, False)[0]), 127 * tiny)

    def test_rows_and_channels_are_alone(self):
        rng = Rng(8)
        w = quantise(random_rows(rng, 5, 70, 0.5), 4, 16, "offset", "f16")
        x = random_rows(rng, 1, 70, 1.0)[0]
        for asymmetric in (False, True):
            every = on_the_fly(w, x, asymmetric)
            for n in range(5):
                row = Weights(4, 16, "offset", "f16", [w.codes[n]], [w.S[n]], 0, [w.O[n]])
                self.assertEqual(on_the_fly(row, x, asymmetric), [every[n]])


class Static(unittest.TestCase):
    def weights(self, rows, S):
        return Weights(8, len(rows[0]), "symmetric", "f32", [[v + 128 for v in row] for row in rows], [[s] for s in S])

    def test_by_hand(self):
        x, y = Grid(8, True, 3, scale=0.5), Grid(8, True, -4, scale=0.5)
        w = self.weights([[2, -1, 5], [-128, 127, 1], [0, 0, 0]], [0.25, 0.5, 1.0])
        layer = StaticLinear(w, x, None, [1.0, -0.5, 7.25])
        self.assertEqual(layer.bias, [8, -2, 14])                        # 14.5 to even
        a = [5, 3, 2]                                                   # less z: 2, 0, -1
        self.assertEqual(layer(a), [4 - 5 + 8, -256 - 1 - 2, 14])
        self.assertEqual(layer.bounds, [8 * 131 + 8, 256 * 131 + 2, 14])
        layer = StaticLinear(w, x, y, [1.0, -0.5, 7.25])                # ratios 1/4, 1/2, 1
        self.assertEqual(layer(a), [2 - 4, -128, 10])                   # 7/4; -259/2 - 4 clamped; 14 - 4
        self.assertEqual(StaticLinear(w, x, y, [1.0, -0.5, 7.25], RELU)(a), [-2, -4, 10])
        self.assertEqual(StaticLinear(w, x, y, [1.0, -0.5, 7.25], RELU6)(a), [-2, -4, 8])
        self.assertEqual(StaticLinear(w, x, y, None, (-2.0, 0.5))(a), [-4, -8, -4])

    def test_modes(self):
        x, y = Grid(8, True, 0, scale=0.5), Grid(8, True, 0, scale=1.0)
        w = self.weights([[1], [-1], [3]], [1.0] * 3)                   # v a / 2
        expected = {"nearest_even": [0, 0, 2], "nearest_up": [1, 0, 2], "nearest_away": [1, -1, 2],
                    "floor": [0, -1, 1]}
        for mode in MODES:
            self.assertEqual(StaticLinear(w, x, y, None, None, mode)([1]), expected[mode])

    def test_clamps(self):
        x = Grid(8, False, 0, scale=1.0)
        w = self.weights([[127], [-128]], [1.0, 1.0])
        for y, act, expected in ((Grid(8, False, 255, scale=1.0), RELU, [255, 255]),
                                 (Grid(8, True, 127, scale=1.0), None, [127, -128]),
                                 (Grid(8, True, -128, scale=0.125), RELU6, [-80, -128]),
                                 (Grid(8, False, 10, scale=0.0078125), RELU6, [255, 10])):
            self.assertEqual(StaticLinear(w, x, y, None, act)([200]), expected)

    def test_bias_is_clamped(self):
        x, y = Grid(8, True, 0, scale=1.0), Grid(8, True, 0, scale=1.0)
        layer = StaticLinear(self.weights([[1], [1]], [1.0, 1.0]), x, y, [to_format(3e38, F32), -1e10])
        self.assertEqual(layer.bias, [(1 << 31) - 1, -(1 << 31)])
        self.assertEqual(layer([-5]), [127, -128])
        self.assertRaises(Refused, StaticLinear, layer.weights, x, None, [to_format(3e38, F32), 0.0])

    def test_refused(self):
        x = Grid(8, True, 0, scale=1.0)
        w = self.weights([[1]], [1.0])
        self.assertRaises(Refused, StaticLinear, w, Grid(17, True, 0, scale=1.0), x)
        self.assertRaises(Refused, StaticLinear, w, x, Grid(1, False, 0, scale=1.0))
        self.assertRaises(Refused, StaticLinear, w, x, None, None, RELU)
        self.assertRaises(Refused, StaticLinear, w, x, x, [math.inf])
        self.assertRaises(Refused, StaticLinear, self.weights([[0]], [0.0]), x, x)

    def test_channels(self):
        w = channel_weights([[0.0, -0.0], [127.0, 1.0], [-64.0, 1.0]])
        self.assertEqual(w.S, [[0.5], [1.0], [0.5]])
        self.assertEqual(w.codes, [[128, 128], [255, 129], [0, 130]])
        self.assertEqual(channel_weights([[0.0]]).S, [[1.0]])

    def test_against_exact_values(self):
        rng = Rng(9)
        for trial in range(20):
            K = rng.int(1, 60)
            w = channel_weights(random_rows(rng, 4, K, 0.3), trial % 2 == 0)
            signed = bool(trial % 3)
            x = Grid(8, signed, rng.int(0, 100), scale=rng.real(0.01, 0.1))
            y = Grid(8, True, rng.int(-50, 50), scale=rng.real(0.05, 0.3))
            bias = [rng.real(-1, 1) for _ in range(4)]
            layer = StaticLinear(w, x, y, bias)
            a = [rng.int(x.qmin, x.qmax) for _ in range(K)]
            for n, q in enumerate(layer(a)):
                real = sum(w.exact(n, k) * (c - x.z) * Fraction(x.scale) for k, c in enumerate(a)) + Fraction(bias[n])
                code = min(max(real / Fraction(y.scale) + y.z, y.qmin), y.qmax)
                # half a step, and what rounding the bias to the accumulator's scale costs
                slack = Fraction(x.scale) * Fraction(w.S[n][0]) / Fraction(y.scale) / 2
                self.assertLessEqual(abs(q - code), Fraction(1, 2) + slack + Fraction(1, 10 ** 6))


def images(rng, B, image, C, magnitude):
    """[B][H][W][C]"""
    return [[random_rows(rng, image[1], C, magnitude) for _ in range(image[0])] for _ in range(B)]


class Convolution(unittest.TestCase):
    def layer(self, kernels, x, y, **more):
        """kernels: [O][K] integers, a scale of 1."""
        return StaticLinear(Weights(8, len(kernels[0]), "symmetric", "f32", [[v + 128 for v in row] for row in kernels],
                                    [[1.0]] * len(kernels)), x, y, **more)

    def plane(self, rows):
        return [[[[v] for v in row] for row in rows]]

    def test_by_hand(self):
        # one channel, 2 x 2 kernel 1 2 / 3 4, codes less z: 1 2 3 / 4 5 6
        layer = self.layer([[1, 2, 3, 4]], Grid(8, True, 2, scale=1.0), Grid(8, True, 0, scale=1.0))
        image = self.plane([[3, 4, 5], [6, 7, 8]])
        for geometry, y in (
                (Geometry((2, 2)), [[37, 47]]),
                # borders are zeros
                (Geometry((2, 2), (2, 2), ((1, 1), (1, 1))), [[4, 3 * 2 + 4 * 3], [2 * 4, 5 + 2 * 6]]),
                (Geometry((2, 2), (2, 2), ((0, 1), (0, 1))), [[37, 3 + 3 * 6]]),
                (Geometry((2, 2), (1, 1), ((0, 0), (0, 0)), (1, 2)), [[1 + 2 * 3 + 3 * 4 + 4 * 6]]),
                (Geometry((2, 2), (1, 2), ((1, 1), (0, 0)), (2, 1)), [[3 * 4 + 4 * 5], [1 + 2 * 2]])):
            self.assertEqual(static_convolution(layer, image, geometry), self.plane(y))
        for wrong in (lambda: Geometry((2, 0)), lambda: Geometry((1, 1), (0, 1)),
                      lambda: Geometry((1, 1), pad=((-1, 0), (0, 0))),
                      lambda: static_convolution(layer, image, Geometry((2, 2), dilation=(2, 1))),
                      lambda: static_convolution(layer, image, Geometry((2, 2), groups=2))):
            self.assertRaises(Refused, wrong)

    def test_groups_are_layers_of_their_own(self):
        rng, x, y = Rng(17), Grid(8, True, -5, scale=1.0), Grid(16, True, 3, scale=7.0)
        for groups, C, O in ((2, 4, 6), (3, 3, 6), (3, 6, 3)):
            kernels = [[rng.int(-128, 127) for _ in range(6 * C // groups)] for _ in range(O)]
            codes = [[[[rng.int(-128, 127) for _ in range(C)] for _ in range(4)] for _ in range(3)]]
            geometry = Geometry((2, 3), (1, 2), ((1, 0), (0, 2)), groups=groups)
            got = static_convolution(self.layer(kernels, x, y), codes, geometry)
            geometry.groups = 1
            for group in range(groups):
                its = [[[pixel[group * C // groups:(group + 1) * C // groups] for pixel in row] for row in codes[0]]]
                of_group = slice(group * O // groups, (group + 1) * O // groups)
                alone = static_convolution(self.layer(kernels[of_group], x, y), its, geometry)
                self.assertEqual([[pixel[of_group] for pixel in row] for row in got[0]], alone[0])

    def test_transposed_scatters(self):
        rng, x, y = Rng(18), Grid(8, True, 4, scale=1.0), Grid(16, True, 0, scale=1.0)
        for kernel, stride, pad, dilation, more in (
                ((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1), (0, 0)), ((3, 2), (2, 1), ((1, 0), (1, 1)), (1, 2), (1, 1)),
                ((2, 3), (1, 3), ((0, 1), (2, 0)), (2, 1), (0, 2))):
            geometry = Transposed(kernel, stride, pad, dilation, 1, more)
            w = [[rng.int(-9, 9) for _ in range(kernel[0] * kernel[1])]]
            codes = [[rng.int(-9, 9) for _ in range(3)] for _ in range(4)]
            P, Q = geometry.size((4, 3))
            sums = [[0] * Q for _ in range(P)]
            for i, j, r, s in itertools.product(range(4), range(3), range(kernel[0]), range(kernel[1])):
                p, q = i * stride[0] + r * dilation[0] - pad[0][0], j * stride[1] + s * dilation[1] - pad[1][0]
                if 0 <= p < P and 0 <= q < Q:
                    sums[p][q] += (codes[i][j] - 4) * w[0][r * kernel[1] + s]
            self.assertEqual(static_convolution(self.layer(w, x, y), self.plane(codes), geometry), self.plane(sums))
        self.assertRaises(Refused, lambda: Transposed((2, 2), (2, 2), more=(2, 0)))

    def test_a_stream_is_the_whole(self):
        rng, x, y = Rng(19), Grid(8, True, 7, scale=1.0), Grid(16, True, 0, scale=3.0)
        for taps, stride, dilation, left in ((3, 1, 1, 2), (3, 1, 2, 4), (3, 2, 1, 1), (3, 2, 1, 2), (1, 2, 1, 0),
                                             (2, 3, 1, 0)):
            geometry = Geometry((1, taps), (1, stride), ((0, 0), (left, 0)), (1, dilation))
            layer = self.layer([[rng.int(-9, 9) for _ in range(2 * taps)] for _ in range(3)], x, y)
            codes = [[[[rng.int(-9, 9) for _ in range(2)] for _ in range(12 * stride)]] for _ in range(2)]
            stream, at, parts = StaticStream(layer, geometry), 0, [[], []]
            for columns in (stride, 4 * stride, 7 * stride):
                y_part = stream([[image[0][at:at + columns]] for image in codes])
                at += columns
                for b in range(2):
                    self.assertEqual(len(y_part[b][0]), columns // stride)
                    parts[b] += y_part[b][0]
            self.assertEqual([[part] for part in parts], static_convolution(layer, codes, geometry))
            if stride > 1:
                self.assertRaises(Refused, lambda: stream([[image[0][:1]] for image in codes]))
            for wrong in (left + 1 + stride, -1):
                self.assertRaises(Refused, lambda: StaticStream(layer, Geometry(
                    (1, taps), (1, stride), ((0, 0), (wrong, 0)), (1, dilation))))

    def test_residual_by_hand(self):
        x, y = Grid(8, True, 0, scale=1.0), Grid(8, True, -3, scale=2.0)
        layer = self.layer([[2]], x, y, residual=Grid(8, False, 10, scale=4.0), act=RELU)
        # (2 * 5) / 2 + (12 - 10) * 4 / 2 - 3
        self.assertEqual(layer([5], [12]), [6])
        self.assertEqual(layer([-5], [12]), [-3])
        self.assertEqual(static_convolution(layer, self.plane([[5, 1]]), Geometry((1, 1)), self.plane([[12, 9]])),
                         self.plane([[6, -3]]))
        self.assertRaises(Refused, lambda: layer([5], [256]))
        self.assertRaises(Refused, lambda: self.layer([[2]], x, None, residual=x))

    def test_pools_by_hand(self):
        x, y = Grid(8, True, -1, scale=1.0), Grid(8, True, 5, scale=0.5)
        image, geometry = self.plane([[1, 2, 3], [4, 5, -8]]), Geometry((2, 2), (1, 2), ((1, 0), (0, 1)))
        self.assertEqual(max_pool(image, geometry), self.plane([[2, 3], [5, 3]]))
        for counts_outside, sums in ((False, [[2.5, 4], [4, -1.5]]), (True, [[1.25, 1], [4, -0.75]])):
            self.assertEqual(average_pool(image, geometry, x, y, "nearest_even", counts_outside),
                             self.plane([[rint(2 * v) + 5 for v in row] for row in sums]))
        self.assertRaises(Refused, lambda: max_pool(image, Geometry((2, 2), pad=((2, 0), (0, 0)))))

    def test_one_scale_for_an_image(self):
        rng = Rng(20)
        kernels = random_rows(rng, 4, 12, 0.5)
        w = quantise(kernels, 8, 12, "symmetric", "f32")
        image, geometry = images(rng, 2, (3, 3), 6, 1.0), Geometry((2, 2), pad=((0, 0), (1, 0)), groups=2)
        got = per_image_convolution(w, image, geometry)
        for b, p, q, o in itertools.product(range(2), range(2), range(3), range(4)):
            pixels = geometry.pixels((3, 3), p, q)
            row = gather(image, b, pixels, range(o // 2 * 3, o // 2 * 3 + 3), 0.0)
            self.assertAlmostEqual(value(got[b][p][q][o]), sum(a * k for a, k in zip(row, kernels[o])), delta=0.1)
        # an image of one pixel, K of one group: a row of section 11
        row = random_rows(rng, 1, 12, 1.0)[0]
        self.assertEqual(per_image_convolution(w, [[[row]]], Geometry((1, 1)), None, RELU, "f16"),
                         [[[on_the_fly(w, row, False, None, RELU, "f16")]]])
        # a NaN spoils its image
        image[1][2][2][5] = math.nan
        spoilt = per_image_convolution(w, image, geometry)
        self.assertEqual(spoilt[0], got[0])
        self.assertEqual({v for row in spoilt[1] for pixel in row for v in pixel}, {"7fc00000"})

    def test_one_pixel_is_the_linear_layer(self):
        rng = Rng(10)
        w = quantise(random_rows(rng, 3, 20, 0.5), 4, 8, "offset", "f16")
        row = random_rows(rng, 1, 20, 1.0)[0]
        for asymmetric in (False, True):
            self.assertEqual(on_the_fly_convolution([w], [[[row]]], Geometry((1, 1)), asymmetric, None, RELU, "bf16"),
                             [[[on_the_fly(w, row, asymmetric, None, RELU, "bf16")]]])
        self.assertEqual(exact_convolution([w], [[[row]]], Geometry((1, 1))), [[[exact_linear(w, row)]]])

    def test_near_the_exact_one(self):
        rng = Rng(13)
        kernels = [random_rows(rng, 6, 11, 0.3) for _ in range(2)]
        image = images(rng, 1, (4, 5), 22, 1.0)
        geometry = Geometry((2, 3), (1, 2), ((1, 0), (1, 1)), (2, 1), groups=2)
        for kind in KINDS:
            weights = quantise_shared(kernels, 8, 8, kind, "f32")
            self.assertEqual([w.S for w in weights], [weights[0].S] * 6)
            exact = exact_convolution(weights, image, geometry, [1.0, -1.0])
            for o, (k, b) in enumerate(zip(kernels, (1.0, -1.0))):
                plain = b + sum(k[tap][c] * image[0][at[0]][at[1]][11 * o + c]
                                for tap, at in enumerate(geometry.pixels((4, 5), 1, 1)) if at for c in range(11))
                self.assertAlmostEqual(float(exact[0][1][1][o]), plain, delta=0.05)
            for asymmetric in (False, True):
                got = on_the_fly_convolution(weights, image, geometry, asymmetric, [1.0, -1.0])
                for row, expected in zip(got[0], exact[0]):
                    for a, b in zip(row, expected):
                        for o in range(2):
                            self.assertAlmostEqual(value(a[o]), float(b[o]), delta=0.05)

    def test_outside_is_a_block_of_zeros(self):
        # a pixel outside x, and an offset kind of weights: nothing but the bias
        w = Weights(4, 8, "offset", "f32", [[9] * 8], [[0.5]], 8, [[3.0]])
        got = on_the_fly_convolution([w], [[[[5.0] * 8]]], Geometry((1, 1), (1, 1), ((1, 1), (1, 1))), True, [0.25])
        self.assertEqual([[value(v[0]) for v in row] for row in got[0]],
                         [[0.25] * 3, [0.25, 8 * 5 * 3.5 + 0.25, 0.25], [0.25] * 3])
        # a NaN spoils the outputs that read its pixel, and no others
        got = on_the_fly_convolution([w], [[[[math.nan] + [5.0] * 7, [5.0] * 8]]], Geometry((1, 1)), True, [0.25])
        self.assertEqual(got, [[[["7fc00000"], [bits32(140.25)]]]])


class Vectors(unittest.TestCase):
    """The file can tell what it is there to tell."""

    @classmethod
    def setUpClass(cls):
        cls.cases = make_low_bit()["cases"]

    def test_codes_of_activations(self):
        differ = {(a, name): 0 for a in (False, True) for name in ("quotient", "fused", "widened")}
        for case in self.cases:
            if case["op"] != "on_the_fly":
                continue
            group, K = case["weights"]["group"], case["weights"]["K"]
            for row, groups in zip(case["x"], case["groups"]):
                for g, one in enumerate(groups):
                    if one is None or value(one["Sa"]) == 0:
                        continue
                    x = [to_format(value(v, case["x_type"]), F32) for v in row[g * group:min((g + 1) * group, K)]]
                    Sa, Oa = value(one["Sa"]), value(one["Oa"])
                    span = subtract(max(x), min(x), F32) if case["asymmetric"] else max(map(abs, x))
                    inv = divide(255.0 if case["asymmetric"] else 127.0, span, F32)
                    wide = quantise_activations(x + [0.0], case["asymmetric"]).a[:-1]
                    for v, a, w in zip(x, one["a"], wide):
                        quotient = rint(divide(subtract(v, Oa, F32), Sa, F32)) if v != Oa else 0
                        fused = rint(fma(v, inv, -multiply(Oa, inv, F32)))
                        differ[case["asymmetric"], "quotient"] += quotient != a
                        differ[case["asymmetric"], "fused"] += fused != a
                        differ[case["asymmetric"], "widened"] += w != a
        self.assertGreater(differ[False, "quotient"], 3)
        for name in ("quotient", "fused", "widened"):
            self.assertGreater(differ[True, name], 3, name)

    def test_codes_of_weights(self):
        differ = {"float32": 0, "reciprocal": 0, "unrounded scale": 0}
        for case in self.cases:
            if case["op"] != "quantize" or "refused" in case or case["weights"]["bits"] == 1:
                continue
            w = case["weights"]
            if w["kind"] != "symmetric" or case["method"] == "mse":
                continue
            half = 1 << (w["bits"] - 1)
            for row, packed, scales in zip(case["rows"], w["w"], w["S"]):
                codes, x = unpack(bytes.fromhex(packed), w["K"], w["bits"]), [value(v) for v in row]
                for k, v in enumerate(x):
                    S = value(scales[k // w["group"]], w["store"])
                    if S == 0:
                        continue
                    block = x[k - k % w["group"]:k - k % w["group"] + w["group"]]
                    raw = max(max(block) / (half - 1), -min(block) / half)
                    for name, steps in (("float32", to_format(v / S, F32)), ("unrounded scale", v / raw),
                                        ("reciprocal", to_format(v * to_format(1 / S, F32), F32))):
                        differ[name] += min(max(rint(steps) + half, 0), 2 * half - 1) != codes[k]
        for name, count in differ.items():
            self.assertGreater(count, 3, name)

    def test_orders(self):
        cases = [c for c in self.cases if c["op"] == "on_the_fly"]
        found = {"chunks": 0, "products": 0, "fused": 0}
        for case in cases:
            w = case["weights"]
            z = w.get("z")
            weights = Weights(w["bits"], w["group"], w["kind"], w["store"],
                              [unpack(bytes.fromhex(row), w["K"], w["bits"]) for row in w["w"]],
                              [[value(v, w["store"]) for v in row] for row in w["S"]], z,
                              [[value(v, w["store"]) for v in row] for row in w["O"]] if "O" in w else None)
            bias = [value(v) for v in case["bias"]] if case["bias"] else [0.0] * weights.N
            act = [value(v) for v in case["act"]] if case["act"] else None
            for x, expected in zip(case["x"], case["y"]):
                groups = groups_of(weights, [value(v, case["x_type"]) for v in x], case["asymmetric"])
                if None in groups:
                    continue
                for n in range(weights.N):
                    terms = terms_of(weights, n, groups)
                    for name in found:
                        T = other_order(terms, case["asymmetric"], name)
                        found[name] += bits_of(finish(T, bias[n], act, case["y_type"]), case["y_type"]) != expected[n]
        for name, count in found.items():
            self.assertGreater(count, 5, name)


def other_order(terms, asymmetric, name):
    """Wrong on purpose: one chunk; S d first, then Sa; products and sums rounded apart."""
    T = acc = 0.0

    def step(a, b, c):
        return add(multiply(a, b, F32), c, F32) if name == "fused" else fma(a, b, c)

    for g, (d, t, V, L, Sa, Oa, S, O) in enumerate(terms):
        if g % 16 == 0 and name != "chunks":
            T, acc = add(T, acc, F32), 0.0
        acc = step(multiply(float(d), S, F32), Sa, acc) if name == "products" else \
            step(float(d), multiply(S, Sa, F32), acc)
        if asymmetric:
            acc = step(float(V), multiply(S, Oa, F32), acc)
        if O is not None:
            X = multiply(Sa, float(t), F32)
            X = step(Oa, float(L), X) if asymmetric else X
            acc = step(O, X, acc)
    return add(T, acc, F32)


if __name__ == "__main__":
    unittest.main()
