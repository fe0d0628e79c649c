# SPDX-License-Identifier: Apache-2.0
"""Section 12 beyond 8 bits, and its calibration, against values worked by hand."""
import unittest

from .floats import bits32, f32
from .grid import Grid
from .low_bit import RELU, Weights
from .rounding import Refused
from .static_linear import StaticLinear, calibrated, channel_weights, float_row, is_dead, revived


def weights(rows, S, bits=8):
    half = 1 << (bits - 1)
    return Weights(bits, len(rows[0]), "symmetric", "f32", [[v + half for v in row] for row in rows], [[s] for s in S])


class Wide(unittest.TestCase):
    def test_by_hand(self):
        x, y = Grid(16, False, 40000, shift=15), Grid(16, True, -100, shift=12)
        layer = StaticLinear(weights([[2, -1], [127, -128]], [0.5, 0.25]), x, y, [1.0, 0.0])
        self.assertEqual(layer.bias, [65536, 0])
        self.assertEqual(layer.bounds, [3 * 40000 + 65536, 255 * 40000])
        # x less z: 25535, -40000; acc 2 * 25535 + 40000 + 65536 = 156606, ratio 2^-4: 9787.875 - 100
        # acc 127 * 25535 + 128 * 40000 = 8362945, ratio 2^-5: 261342.03, clamped
        self.assertEqual(layer([65535, 0]), [9688, 32767])
        self.assertRaises(Refused, layer, [65536, 0])

    def test_few_bits(self):
        x, y = Grid(2, True, -1, shift=0), Grid(2, False, 1, shift=-1)
        layer = StaticLinear(weights([[1, -2]], [1.0], 2), x, y)
        self.assertEqual(layer.bounds, [3 * 2])
        # less z: 2, -1; acc 4; ratio 1/2: 2 + 1
        self.assertEqual(layer([1, -2]), [3])
        self.assertEqual(layer([-2, 1]), [0])  # acc -5; -2.5 to even, -2; clamped
        self.assertRaises(Refused, layer, [2, 0])

    def test_one_bit(self):
        x, y = Grid(8, True, 10, shift=0), Grid(8, True, 1, shift=-1)
        layer = StaticLinear(Weights(1, 3, "symmetric", "f32", [[1, 0, 1]], [[0.5]]), x, y, [2.0])
        self.assertEqual((layer.v, layer.bias, layer.bounds), ([[1, -1, 1]], [4], [3 * 138 + 4]))
        # less z: -9, 20, 110; acc -9 - 20 + 110 + 4 = 85; ratio 1/4: 21.25 + 1
        self.assertEqual(layer([1, 30, 120]), [22])
        self.assertRaises(Refused, channel_weights, [[0.0, 0.0], [1.0, -1.0]], False, 1)

    def test_int64(self):
        x = Grid(16, False, 0, shift=0)
        self.assertRaises(Refused, StaticLinear, weights([[127] * 259], [1.0]), x, None)
        layer = StaticLinear(weights([[127] * 259], [1.0]), x, Grid(16, True, 0, shift=-17))
        # 127 * 259 * 65535 / 2^17 = 16446.2
        self.assertEqual(layer([65535] * 259), [16446])
        self.assertEqual(StaticLinear(weights([[127] * 258], [1.0]), x, None)([65535] * 258), [127 * 258 * 65535])


class Calibration(unittest.TestCase):
    def test_float_row(self):
        self.assertEqual(float_row([[1.0, 2.0], [-3.0, 0.5]], [0.5, 0.25], None, [4.0, -1.0]), [2.5, -12.25])
        self.assertEqual(float_row([[1.0, 2.0], [-3.0, 0.5]], None, RELU, [4.0, -1.0]), [2.0, 0.0])
        # one rounding to float32, after the bias
        self.assertEqual(float_row([[1.0, 1.0]], [-1.0], None, [1.0, 2.0 ** -40]), [2.0 ** -40])
        self.assertRaises(Refused, float_row, [[f32(3e38)]], None, None, [2.0])

    def test_grids(self):
        # x in [-1, 2]: raw 3 / 65535, S = 2^-14, z = -32768 + 2^14; y in [-2, 4] with weights of 2
        tensor = {"bits": 16, "signed": True, "symmetric": False}
        layer, dead = calibrated([[2.0]], None, None, [[[-1.0], [2.0]], [[0.5]]], tensor, tensor, True, "minmax")
        self.assertEqual((layer.x.shift, layer.x.z), (14, -16384))
        self.assertEqual((layer.y.shift, layer.y.z), (13, -16384))
        self.assertEqual(dead, [])
        self.assertEqual(layer.v, [[127]])
        self.assertEqual(layer([layer.x.quantize(2.0)]), [16384])
        given = Grid(8, True, 0, shift=3)
        self.assertIs(calibrated([[2.0]], None, None, [[[1.0]]], given, None, True, "minmax")[0].x, given)

    def test_dead_rows(self):
        x = Grid(8, True, 0, shift=0)
        self.assertFalse(is_dead([1], 1.0, x, 2147483520.0, False))
        self.assertTrue(is_dead([1], 1.0, x, 2147483648.0, False))
        self.assertFalse(is_dead([1], 1.0, x, -2147483648.0, False))
        self.assertTrue(is_dead([1], 1.0, x, 2147483520.0, True))       # 128 + 2147483520 is 2^31
        self.assertFalse(is_dead([0], 1.0, x, 2147483520.0, True))
        self.assertEqual(revived(1.0, x, 2.0 ** 32, 8), 4.0)            # 2^30 exactly
        # rint(b / S) <= 2^30 for a b one step above 2^32: S one step above 4
        self.assertEqual(revived(1.0, x, f32(2.0 ** 32 + 512), 8), f32(4 + 2.0 ** -21))
        self.assertRaises(Refused, revived, 1.0, Grid(8, True, 0, shift=62), f32(3e38), 8)
        tensor = {"bits": 8, "signed": True, "symmetric": False}
        layer, dead = calibrated([[1.0, -1.0], [2.0 ** -40, 0.0], [0.0, 0.0]], [0.0, 4.0, 0.0], None, [[[1.0, 0.5]]],
                                 tensor, tensor, True, "minmax")
        self.assertEqual(dead, [1])
        self.assertRaises(Refused, calibrated, [[1.0, -1.0], [2.0 ** -40, 2.0 ** -40]], [0.0, 4.0], None,
                          [[[1.0, 0.5]]], tensor, tensor, True, "minmax", 1)
        S = layer.weights.S[1][0]
        self.assertEqual(layer.bias[1], 1 << 30)
        self.assertEqual(bits32(S), bits32(4.0 * 2.0 ** 7 / 2 ** 30))
        self.assertEqual(layer.v[1], [0, 0])
        self.assertEqual(layer.weights.S[2][0], f32(2.0 ** -40 / 127))   # the smallest before the change
