# SPDX-License-Identifier: Apache-2.0
"""isobit conv, and isobit pack of its weights, beside the oracle: layouts, attributes, kinds of activations and of
weights, packed files and floats, messages.

usage: conv_cli_test.py ISOBIT [unittest arguments]
"""
import itertools
import json
import math
import os
import random
import struct
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import cli_test  # noqa: E402
from cli_test import ToolTest, npy, npz, parse_npy, read  # noqa: E402
from oracle.checkpoints import safetensors, tensor  # noqa: E402
from oracle.convolution import (Geometry, Transposed, exact_convolution, on_the_fly_convolution,  # noqa: E402
                                per_image_convolution, quantise_shared)
from oracle.low_bit import quantise, within_bound  # noqa: E402


def rounded(values):
    return list(struct.unpack("<%df" % len(values), struct.pack("<%df" % len(values), *values)))


def nested(values, shape):
    if len(shape) == 1:
        return list(values)
    step = len(values) // shape[0]
    return [nested(values[i * step:(i + 1) * step], shape[1:]) for i in range(shape[0])]


def flat(value):
    return [one for part in value for one in flat(part)] if isinstance(value, list) else [value]


def reordered(values, shape, order):
    """The values, and the shape, of another order of the dimensions."""
    strides = [math.prod(shape[i + 1:]) for i in range(len(shape))]
    sizes = [shape[i] for i in order]
    return [values[sum(at * strides[i] for at, i in zip(place, order))]
            for place in itertools.product(*map(range, sizes))], sizes


class Layer:
    """Weights [O, R, S, C / groups] and images, of seeds."""

    def __init__(self, outputs=4, kernel=(3, 2), channels=16, groups=1, image=(4, 5), images=2, **attributes):
        rng = random.Random(str((outputs, kernel, channels, groups)))
        self.shape = [outputs, *kernel, channels // groups]
        self.x_shape = [images, *image, channels]
        self.weights = rounded([rng.uniform(-1, 1) for _ in range(math.prod(self.shape))])
        self.bias = rounded([rng.uniform(-1, 1) for _ in range(outputs)])
        self.x = rounded([rng.uniform(-2, 2) for _ in range(math.prod(self.x_shape))])
        self.groups, self.attributes = groups, attributes
        self.transposed = "more" in attributes
        self.geometry = (Transposed if self.transposed else Geometry)(kernel, groups=groups, **attributes)

    def options(self):
        """The attributes as options."""
        pairs = [(name, ",".join(map(str, flat(list(map(list, value)) if name == "pad" else list(value)))))
                 for name, value in self.attributes.items()]
        names = {"stride": "--stride", "dilation": "--dilation", "pad": "--padding", "more": "--output-padding"}
        out = [word for name, text in pairs for word in (names[name], text)]
        return out + ["--groups", str(self.groups)] * (self.groups > 1) + ["--transposed"] * self.transposed

    def kernels(self):
        """[O][R * S][C / groups]"""
        O, R, S, C = self.shape
        return nested(self.weights, [O, R * S, C])

    def oracle(self, activations, bits, group, kind, act=None):
        """Bit patterns, or of float exact numbers, [B][P][Q][O]."""
        kernels, mse, channels = self.kernels(), bits <= 2, self.shape[3]
        x = nested(self.x, self.x_shape)
        if activations == "int8_per_image":
            rows = [flat(kernel) for kernel in kernels]
            weights = quantise(rows, bits, len(rows[0]), kind, "f32", mse)
            return per_image_convolution(weights, x, self.geometry, self.bias, act)
        if group == 0:
            weights = quantise_shared(kernels, bits, channels, kind, "f32", mse)
        else:
            weights = [quantise([kernel[tap] for kernel in kernels], bits, min(group, channels), kind, "f32", mse)
                       for tap in range(len(kernels[0]))]
        if activations == "float":
            return exact_convolution(weights, x, self.geometry, self.bias)
        return on_the_fly_convolution(weights, x, self.geometry, activations == "int8_asymmetric", self.bias, act)


class ConvTest(ToolTest):
    def save(self, name, layer, layout="ohwi"):
        """Weights w and bias b; layer.x in NHWC and NCHW."""
        O, R, S, C = layer.shape
        values, shape = layer.weights, layer.shape
        if layout == "oihw":
            values, shape = reordered(values, shape, (0, 3, 1, 2))
        elif layout == "iohw":
            g = layer.groups
            values, _ = reordered(values, [g, O // g, R, S, C], (0, 4, 1, 2, 3))
            shape = [g * C, O // g, R, S]
        model = self.at(name + ".npz", npz({"w": npy(tuple(shape), values), "b": npy((O,), layer.bias)}))
        x = self.at(name + "_x.npy", npy(tuple(layer.x_shape), layer.x))
        values, shape = reordered(layer.x, layer.x_shape, (0, 3, 1, 2))
        return model, x, self.at(name + "_nchw.npy", npy(tuple(shape), values))

    def conv(self, weights, x, *options, descr="<f4"):
        y = self.path("y.npy")
        report = self.json("conv", weights, x, "-o", y, *options)
        found, shape, content = parse_npy(read(y))
        self.assertEqual((found, list(shape)), (descr, report["output_shape"]))
        return report, list(shape), content

    def patterns(self, content):
        return ["%08x" % word for word in struct.unpack("<%dI" % (len(content) // 4), content)]

    def check(self, layer, layout, activations, bits, group, kind):
        """Floats and packed file, NHWC and NCHW: the oracle's bytes."""
        model, x, nchw = self.save("layer", layer, layout)
        packed = self.path("layer.safetensors")
        form = ["--bits", str(bits), "--group", str(group), "--kind", kind, "--weight-layout", layout]
        groups = ["--groups", str(layer.groups)] if layout == "iohw" else []
        self.ok("pack", model, "-o", packed, *form, *groups)
        options = [*layer.options(), "--activations", activations, "--bias", "b"]
        clamp = [] if activations == "float" else ["--clamp", "relu6"]
        report, shape, y = self.conv(packed, x, *options, *clamp)
        expected = layer.oracle(activations, bits, group, kind, (0.0, 6.0) if clamp else None)
        self.assertEqual(shape, [len(expected), len(expected[0]), len(expected[0][0]), layer.shape[0]])
        self.assertEqual((report["kernel_size"], report["groups"], report["transposed"]),
                         (layer.shape[1:3], layer.groups, layer.transposed))
        if activations == "float":
            values = nested(struct.unpack("<%df" % (len(y) // 4), y), shape)
            for got, wanted in zip(values, expected, strict=True):
                rows = zip(flat([row for row in got]), flat([row for row in wanted]), strict=True)
                a, b = zip(*rows)
                self.assertTrue(within_bound(a, b, "f32", math.prod(layer.shape[1:])))
        else:
            self.assertEqual(self.patterns(y), flat(expected))
            self.assertGreater(len(set(flat(expected))), 4)
        self.assertEqual(self.conv(model + ":w", x, *options, *clamp, *form)[2], y)
        _, turned, content = self.conv(packed + ":w", nchw, *options, *clamp, "--layout", "nchw", "--threads", "2")
        size = len(content) // 4
        back, back_shape = reordered(struct.unpack("<%dI" % size, content), turned, (0, 2, 3, 1))
        self.assertEqual((back_shape, struct.pack("<%dI" % size, *back)), (shape, y))
        if activations != "float":
            for kernel in ("reference", "scalar"):
                report, _, same = self.conv(packed, x, *options, *clamp, "--kernel", kernel)
                self.assertEqual((report["kernel"], same), (kernel, y))

    def test_activations_and_kinds(self):
        layer = Layer(stride=(2, 1), pad=((1, 0), (0, 2)), dilation=(1, 2))
        for activations, bits, group, kind in [
                ("int8", 4, 8, "symmetric"), ("int8", 2, 64, "zero_point"), ("int8", 8, 0, "offset"),
                ("int8", 1, 8, "symmetric"), ("int8_asymmetric", 4, 8, "offset"),
                ("int8_asymmetric", 8, 16, "symmetric"),
                ("int8_asymmetric", 4, 0, "zero_point"), ("int8_per_image", 8, 0, "symmetric"),
                ("int8_per_image", 2, 0, "symmetric"), ("float", 4, 8, "zero_point"), ("float", 8, 0, "symmetric")]:
            with self.subTest(activations=activations, bits=bits, group=group, kind=kind):
                self.check(layer, "oihw", activations, bits, group, kind)

    def test_shapes_and_layouts(self):
        for layer, layout in [
                (Layer(kernel=(1, 1)), "ohwi"), (Layer(channels=3, pad=((1, 1), (1, 1))), "oihw"),
                (Layer(outputs=6, channels=6, groups=6, pad=((2, 0), (0, 1))), "oihw"),
                (Layer(outputs=4, channels=16, groups=2, stride=(2, 2)), "ohwi"),
                (Layer(stride=(2, 3), pad=((1, 0), (0, 1)), more=(1, 2)), "iohw"),
                (Layer(groups=2, stride=(2, 2), dilation=(1, 2), more=(0, 1)), "iohw"),
                (Layer(stride=(1, 2), more=(0, 0)), "ohwi")]:
            with self.subTest(layer=layer.options(), layout=layout):
                self.check(layer, layout, "int8", 4, 8 if layer.shape[3] > 8 else 0, "symmetric")

    def test_numbers_stand_for_several(self):
        model, x, _ = self.save("numbers", Layer(kernel=(2, 2)))
        floats = [model + ":w", x, "--weight-layout", "ohwi", "--activations", "int8"]
        for short, long in [(["--stride", "2"], ["--stride", "2,2"]), (["--padding", "1"], ["--padding", "1,1,1,1"]),
                            (["--padding", "1,2"], ["--padding", "1,1,2,2"]),
                            (["--dilation", "2"], ["--dilation", "2,2"]),
                            ([], ["--stride", "1", "--padding", "0", "--dilation", "1", "--groups", "1"])]:
            with self.subTest(short=short):
                self.assertEqual(self.conv(*floats, *short)[1:], self.conv(*floats, *long)[1:])
        self.assertEqual(self.conv(*floats, "--padding", "0,1,0,0")[1], [2, 4, 4, 4])
        self.assertEqual(self.conv(*floats, "--padding", "0,0,0,2")[1], [2, 3, 6, 4])

    def test_files_remember(self):
        layer = Layer(groups=2, stride=(2, 2), more=(0, 0))
        model, x, _ = self.save("remembers", layer, "iohw")
        packed = self.path("remembers.safetensors")
        report = self.json("pack", model, "-o", packed, "--weight-layout", "iohw", "--groups", "2", "--group", "8")
        (entry,) = [entry for entry in report["tensors"] if entry["name"] == "w"]
        self.assertEqual((entry["action"], entry["shape"], entry["group"]), ("quantize", [16, 2, 3, 2], 8))
        (listed,) = self.json("inspect", packed)["matrices"]
        self.assertEqual((listed["shape"], listed["convolution"]), ([24, 8], {
            "outputs": 4, "kernel": [3, 2], "channels": 8, "transposed_groups": 2}))
        self.assertIn("convolution 3 x 2, 8 -> 4", self.ok("inspect", packed))
        self.ok("inspect", packed, "--tensor", "w", "-o", self.path("w.npy"))
        self.assertEqual(parse_npy(read(self.path("w.npy")))[1], tuple(layer.shape))
        whole = self.conv(packed, x, "--stride", "2")
        self.assertEqual(whole[0]["groups"], 2)
        self.assertTrue(whole[0]["transposed"])
        self.assertEqual(self.conv(packed, x, *layer.options())[1:], whole[1:])
        text = self.ok("conv", packed, x, "-o", self.path("y.npy"), "--stride", "2", "--activations", "int8")
        for words in ("w: 3 x 2, 8 -> 4, 4 bits symmetric, group 8, f32; activations int8, kernel ",
                      "y.npy: [2, 9, 10, 4], f32"):
            self.assertIn(words, text)

    def test_other_matrices_are_as_before(self):
        """A file without weights of convolutions has the version that it always had."""
        layer = Layer()
        arrays = {"fc": npy((4, 16), layer.weights[:64]), "w": npy(tuple(layer.shape), layer.weights)}
        model, packed = self.at("mixed.npz", npz(arrays)), self.path("mixed.safetensors")

        def header():
            content = read(packed)
            return json.loads(json.loads(content[8:8 + struct.unpack("<Q", content[:8])[0]])["__metadata__"]["isobit"])
        actions = {entry["name"]: entry["action"] for entry in self.json("pack", model, "-o", packed)["tensors"]}
        self.assertEqual(actions, {"fc": "quantize", "w": "keep"})
        self.assertEqual((header()["format_version"], header()["arrays"]), (1, ["w"]))
        self.assertNotIn("convolution", header()["matrices"][0])
        self.ok("pack", model, "-o", packed, "--weight-layout", "ohwi")
        self.assertEqual((header()["format_version"], header()["arrays"]), (2, []))
        self.assertEqual([matrix["name"] for matrix in header()["matrices"] if "convolution" in matrix], ["w"])

    def test_types(self):
        layer = Layer()
        model, x, _ = self.save("types", layer)
        options = ["--weight-layout", "ohwi", "--activations", "int8"]
        half = self.at("half.npy", npy(tuple(layer.x_shape), layer.x, "<f2", "e"))
        self.conv(model + ":w", half, *options, descr="<f2")
        double = self.at("double.npy", npy(tuple(layer.x_shape), layer.x, "<f8", "d"))
        for activations in ("int8", "int8_asymmetric", "int8_per_image", "float"):
            kind = ["--weight-layout", "ohwi", "--group", "0", "--activations", activations]
            self.assertEqual(self.conv(model + ":w", double, *kind)[1:], self.conv(model + ":w", x, *kind)[1:])
        alone = self.at("alone.npy", npy(tuple(layer.shape), layer.weights))
        saved = self.at("weights.safetensors", safetensors({"w": tensor("F32", tuple(layer.shape), layer.weights)}))
        wanted = self.conv(model + ":w", x, *options)
        for weights in (alone, saved, saved + ":w"):
            self.assertEqual(self.conv(weights, x, *options)[1:], wanted[1:])
        wide = self.at("wide.npy", npy(tuple(layer.shape), layer.weights, "<f8", "d"))
        self.assertEqual(self.conv(wide, x, *options)[1:], wanted[1:])

    def test_refused(self):
        layer = Layer(outputs=6)
        model, x, nchw = self.save("refused", layer)
        w, y = model + ":w", self.path("none.npy")
        packed, matrix = self.path("refused.safetensors"), self.path("matrix.safetensors")
        self.ok("pack", model, "-o", packed, "--weight-layout", "ohwi", "--group", "8", "--kind", "zero_point")
        self.ok("pack", self.at("plain.npz", npz({"fc": npy((4, 16), layer.weights[:64])})), "-o", matrix)
        iohw = self.path("iohw.safetensors")
        self.ok("pack", model, "-o", iohw, "--weight-layout", "iohw", "--groups", "2")
        flat_x = self.at("flat_x.npy", npy((2, 20, 16), layer.x))
        integers = self.at("integers.npy", npy((2, 4, 5, 16), [1] * 640, "<i4", "i"))
        most, huge = str(2**31 - 1), str(2**63)
        for words, weights, data, options in [
                # "float" stands for the layout of weights that are floats.
                (["holds no low-bit weights", "--weight-layout must say oihw"], w, x, []),
                (["holds 2 arrays; name one"], model, x, ["float"]),
                (["--weight-layout hwio", "oihw, ohwi or iohw"], w, x, ["--weight-layout", "hwio"]),
                (["array \"b\"", "[6]", "must be [O, R, S, C / groups]"], model + ":b", x, ["float"]),
                (["'fc' is no weights of a convolution", "isobit pack --weight-layout"], matrix, x, []),
                (["no matrix is called 'v'"], packed + ":v", x, []),
                (["holds low-bit weights", "--bits"], packed, x, ["--bits", "4"]),
                (["holds low-bit weights", "--weight-layout"], packed, x, ["float"]),
                (["[2, 20, 16]", "[B, H, W, C] with C = 16"], packed, flat_x, []),
                (["[2, 16, 4, 5]", "[B, H, W, C] with C = 16"], packed, nchw, []),
                (["[2, 4, 5, 16]", "[B, C, H, W] with C = 16"], packed, x, ["--layout", "nchw"]),
                (["[2, 4, 5, 16]", "C = 32, in 2 groups"], packed, x, ["--groups", "2"]),
                (["s32", "expected floats"], packed, integers, []),
                (["weights are s32, must be"], integers, x, ["float"]),
                (["--layout hwc", "nhwc or nchw"], packed, x, ["--layout", "hwc"]),
                (["--activations static", "int8_per_image"], packed, x, ["--activations", "static"]),
                (["kind is zero_point, must be symmetric for int8_per_image"], packed, x,
                 ["--activations", "int8_per_image"]),
                (["--kernel odd", "reference"], packed, x, ["--kernel", "odd"]),
                (["--clamp 2", "relu6"], packed, x, ["--clamp", "2"]),
                (["--bias c", "no such array"], packed, x, ["--bias", "c"]),
                (["--bias c"], w, x, ["float", "--bias", "c"]),
                (["--stride 0: expected 1 to " + most], packed, x, ["--stride", "0"]),
                (["--stride -1: expected 1 to " + most], packed, x, ["--stride", "1,-1"]),
                (["--stride [1, 1, 1]: expected 1, 2 numbers"], packed, x, ["--stride", "1,1,1"]),
                (["--dilation 0: expected 1 to " + most], packed, x, ["--dilation", "0"]),
                (["--padding -1: expected 0 to " + most], packed, x, ["--padding=-1"]),
                (["--padding [1, 1, 1]: expected 1, 2 or 4 numbers"], packed, x, ["--padding", "1,1,1"]),
                (["--padding " + huge, "whole number, at most"], packed, x, ["--padding", huge]),
                (["--padding 2147483648: expected 0 to " + most], packed, x, ["--padding", "2147483648"]),
                (["w: rows of y is 4294967296, must be 1 to " + most], packed, x, ["--padding", most]),
                (["w: rows: dilation * (kernel - 1) + 1 is 4294967295, must be 1 to " + most], packed, x,
                 ["--dilation", most]),
                (["w: rows: dilation * (kernel - 1) + 1 is 5, must be at most the padded image, 4"], packed, x,
                 ["--dilation", "2"]),
                (["w: groups is 4, must be a divisor of 64 channels and 6 outputs"], packed, x, ["--groups", "4"]),
                (["w: groups is 7, must be 1 to 6"], packed, x, ["--groups", "7"]),
                (["w: groups is 0, must be 1 to 6"], packed, x, ["--groups", "0"]),
                (["w: groups is 9223372036854775807, must be 1 to 6"], packed, x, ["--groups", str(2**63 - 1)]),
                (["--groups 1: expected 2, which the weights were packed with"], iohw, x, ["--groups", "1"]),
                (["groups is 4, must be 1 to 6 and divide 6 channels"], w, x,
                 ["--weight-layout", "iohw", "--groups", "4"]),
                (["w: rows.more is 1, must be 0 where the convolution is not transposed"], packed, x,
                 ["--output-padding", "1"]),
                (["w: columns.more is 2, must be 0 to 1"], packed, x,
                 ["--transposed", "--stride", "2", "--output-padding", "0,2"]),
                (["bits is 3", "1, 2, 4 or 8"], w, x, ["float", "--bits", "3"]),
                (["group is 12", "multiple of 8"], w, x, ["float", "--group", "12"]),
                (["--threads -1"], packed, x, ["--threads", "-1"]),
                (["must end in .npy"], packed, x, ["-o", self.path("y.npz")])]:
            with self.subTest(options=options, words=words):
                floats = ["--weight-layout", "ohwi"]
                options = [word for option in options for word in (floats if option == "float" else [option])]
                self.fails(words, "conv", weights, data, *(options if "-o" in options else ["-o", y, *options]))
                self.assertFalse(os.path.exists(y))
        for bad in (math.nan, math.inf):
            values = layer.x[:]
            values[16 * 7 + 3] = bad  # image 0, row 1, column 2
            data = self.at("bad.npy", npy(tuple(layer.x_shape), values))
            self.fails(["bad.npy: x[0, 1, 2] has a NaN"], "conv", packed, data, "-o", y, "--activations", "int8")
            whole = ["--activations", "int8_per_image", "--weight-layout", "ohwi", "--group", "0"]
            self.fails(["bad.npy: x[0] has a NaN"], "conv", w, data, "-o", y, *whole)
            self.conv(packed, data)

    def test_pack_refuses(self):
        layer = Layer()
        model, _, _ = self.save("pack", layer)
        output = self.path("never.safetensors")
        plain = self.at("matrices.npz", npz({"fc": npy((4, 16), layer.weights[:64])}))
        for words, source, options in [
                (["no matrix to quantise", "--weight-layout oihw, ohwi or iohw"], model, []),
                (["--weight-layout nhwc", "oihw"], model, ["--weight-layout", "nhwc"]),
                (["--weight-layout oihw: ", "holds no floats of 4 dimensions"], plain, ["--weight-layout", "oihw"]),
                (["--groups 2: is for --weight-layout iohw"], model, ["--weight-layout", "oihw", "--groups", "2"]),
                (["--groups 2: is for --weight-layout iohw"], plain, ["--groups", "2"]),
                (["\"w\": groups is 3, must be 1 to 4 and divide 4 channels"], model,
                 ["--weight-layout", "iohw", "--groups", "3"]),
                (["group is 12", "16"], model, ["--weight-layout", "ohwi", "--group", "12"])]:
            with self.subTest(options=options):
                self.fails(words, "pack", source, "-o", output, *options)
                self.assertFalse(os.path.exists(output))
        empty = self.at("empty.npz", npz({"w": npy((4, 0, 3, 3), [])}))
        self.fails(["[4, 0, 3, 3], must have elements"], "pack", empty, "-o", output, "--weight-layout", "oihw")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    cli_test.ISOBIT = os.path.abspath(sys.argv.pop(1))
    unittest.main()
