# SPDX-License-Identifier: Apache-2.0
"""GGUF files that the gguf package writes: what isobit inspect says of them, and every dequantised value bit for bit,
read (inspect) and imported (pack).

usage: gguf_test.py ISOBIT [unittest arguments]
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

ISOBIT = ""
READABLE = [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.Q2_K, Type.Q3_K,
            Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_NL, Type.TQ2_0]
# Where a block has its float16 scales; all other bytes may be any.
SCALES = {Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0], Type.Q2_K: [80, 82],
          Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.IQ4_NL: [0], Type.TQ2_0: [64]}
# The package counts the sums of Q8_1 in float32, the format in float16; no file holds this type.
NOT_STORED = {Type.Q8_1}


def random_blocks(rng, dtype, rows, row_elements):
    """Random codes and random finite scales, among them 0, -0, subnormals and the largest."""
    elements, size = gguf.GGML_QUANT_SIZES[dtype]
    blocks = rng.integers(0, 256, (rows * row_elements // elements, size), dtype=np.uint8)
    for at in SCALES[dtype]:
        scales = rng.integers(0, 1 << 16, len(blocks), dtype=np.uint16)
        scales[:6] = [0, 0x8000, 1, 0x83FF, 0x7BFF, 0xFBFF][:len(scales)]
        scales[scales & 0x7C00 == 0x7C00] ^= 0x4000
        blocks[:, at:at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def random_floats(rng, shape):
    return (rng.standard_normal(shape) * np.exp(rng.uniform(-8, 8, (*shape[:-1], 1)))).astype(np.float32)


class GgufTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="isobit-gguf-test-")
        cls.folder = cls.temporary.name

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def path(self, name):
        return os.path.join(self.folder, name)

    def call(self, *arguments):
        return subprocess.run([ISOBIT, *arguments], capture_output=True, text=True, timeout=300)

    def ok(self, *arguments):
        result = self.call(*arguments)
        self.assertEqual(result.returncode, 0, "%s\n%s" % (arguments, result.stderr))
        self.assertEqual(result.stderr, "")
        return result.stdout

    def fails(self, words, *arguments):
        result = self.call(*arguments)
        self.assertEqual(result.returncode, 2, "%s\n%s" % (arguments, result.stdout + result.stderr))
        self.assertEqual(result.stdout, "")
        for word in words:
            self.assertIn(word, result.stderr)

    def write(self, name, tensors, metadata=lambda writer: None):
        """tensors: {name: (type, array as it is stored)}."""
        path = self.path(name)
        writer = gguf.GGUFWriter(path, "llama")
        metadata(writer)
        for tensor, (dtype, stored) in tensors.items():
            writer.add_tensor(tensor, stored, raw_dtype=dtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def check_values(self, path, tensors):
        """The tool's float32 against the package's, from what the package itself reads back."""
        read_back = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        self.assertEqual(set(read_back), set(tensors))
        for name, tensor in read_back.items():
            with self.subTest(tensor=name):
                expected = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
                output = self.path("tensor.npy")
                self.ok("inspect", path, "--tensor", name, "-o", output)
                values = np.load(output)
                self.assertEqual(values.dtype, np.float32)
                self.assertEqual(values.shape, expected.shape)
                different = np.flatnonzero(values.view(np.uint32) != expected.view(np.uint32))
                self.assertEqual(different.size, 0, "first at %s" % different[:1])

    def check_import(self, path, forms):
        """Packed, every tensor has the package's values; forms: {type: (kind, bits, group, scales)} of matrices."""
        packed = self.path("packed.safetensors")
        report = json.loads(self.ok("pack", path, "-o", packed, "--json"))
        entries = {entry["name"]: entry for entry in report["tensors"]}
        tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        self.assertEqual(set(entries), set(tensors))
        for name, tensor in tensors.items():
            with self.subTest(tensor=name):
                entry = entries[name]
                quantised = tensor.tensor_type in SCALES
                matrix = quantised and len(tensor.shape) == 2
                self.assertEqual(entry["action"], "import" if matrix else "dequantize" if quantised else "keep")
                if matrix:
                    self.assertEqual((entry["kind"], entry["bits"], entry["group"], entry["scales"]),
                                     forms[tensor.tensor_type])
                self.ok("inspect", packed, "--tensor", name, "-o", self.path("tensor.npy"))
                values = np.load(self.path("tensor.npy"))
                expected = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
                self.assertEqual(values.shape, expected.shape)
                # Zeros of a group whose scale is 0 may lose their sign: all its codes become that of 0.
                equal = values.view(np.uint32) == expected.view(np.uint32)
                if entry["cleared_groups"] > 0:
                    groups = np.logical_or.reduceat((values != 0) | (expected != 0),
                                                    np.arange(0, values.shape[1], entry["group"]), axis=1)
                    equal |= ~np.repeat(groups, entry["group"], axis=1)[:, :values.shape[1]]
                self.assertTrue(equal.all(), "first at %s" % np.argwhere(~equal)[:1])

    def test_imported(self):
        rng = np.random.default_rng(4)
        forms = {Type.Q4_0: ("symmetric", 4, 32, "f16"), Type.Q4_1: ("offset", 4, 32, "f16"),
                 Type.Q5_0: ("symmetric", 8, 32, "f16"), Type.Q5_1: ("offset", 8, 32, "f16"),
                 Type.Q8_0: ("symmetric", 8, 32, "f16"), Type.Q2_K: ("offset", 2, 16, "f32"),
                 Type.Q3_K: ("symmetric", 4, 16, "f32"), Type.Q4_K: ("offset", 4, 32, "f32"),
                 Type.Q5_K: ("offset", 8, 32, "f32"), Type.Q6_K: ("symmetric", 8, 16, "f32"),
                 Type.IQ4_NL: ("symmetric", 8, 32, "f16"), Type.TQ2_0: ("zero_point", 2, 256, "f16")}
        tensors = {dtype.name: (dtype, random_blocks(rng, dtype, 64, 1024)) for dtype in SCALES}
        for dtype in (Type.F32, Type.F16, Type.BF16):
            tensors[dtype.name] = (dtype, gguf.quantize(random_floats(rng, (4, 256)), dtype))
        path = self.write("imported.gguf", tensors)
        self.check_import(path, forms)
        # As quantisers write them: ternary weights have no code for +2, and fit the symmetric kind.
        forms[Type.TQ2_0] = ("symmetric", 2, 256, "f16")
        tensors = {}
        for dtype in (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.TQ2_0):
            for shape in [(512,), (7, 256), (7, 768), (3, 2, 512)]:
                tensors["%s.%s" % (dtype.name, shape)] = (dtype, gguf.quantize(random_floats(rng, shape), dtype))
        self.check_import(self.write("quantized_import.gguf", tensors), forms)

    def test_import_refused(self):
        rng = np.random.default_rng(5)
        size = gguf.GGML_QUANT_SIZES[Type.IQ3_S][1]
        path = self.write("q3.gguf", {"w": (Type.Q8_0, random_blocks(rng, Type.Q8_0, 2, 64)),
                                      "up": (Type.IQ3_S, rng.integers(0, 256, (3, size), dtype=np.uint8))})
        output = self.path("refused.safetensors")
        self.fails(["'up'", "IQ3_S", "Q4_K", "--exclude 'up' leaves it out"], "pack", path, "-o", output)
        infinite = self.write("inf.gguf", {"t": (Type.Q8_0, np.array([[0] * 34, [0, 0x7C] + [0] * 32], np.uint8))})
        self.fails(["inf.gguf", "'t' (Q8_0)", "scales[1, 0] is inf"], "pack", infinite, "-o", output)
        self.fails(["holds no tensors of GPTQ"], "pack", path, "-o", output, "--checkpoint-format", "awq")
        self.assertFalse(os.path.exists(output))

    def test_exclude(self):
        """What is excluded is neither imported nor quantised; a type that is not read is refused unless it is."""
        rng = np.random.default_rng(6)
        size = gguf.GGML_QUANT_SIZES[Type.IQ3_S][1]
        values = random_floats(rng, (4, 64))
        path = self.write("mixed.gguf", {"a": (Type.Q8_0, random_blocks(rng, Type.Q8_0, 2, 64)),
                                         "b": (Type.Q4_0, random_blocks(rng, Type.Q4_0, 2, 64)),
                                         "row": (Type.Q8_0, random_blocks(rng, Type.Q8_0, 1, 64).reshape(-1)),
                                         "f": (None, values),
                                         "odd.1": (Type.IQ3_S, rng.integers(0, 256, (3, size), dtype=np.uint8)),
                                         "odd.2": (None, np.arange(6, dtype=np.int32))})
        packed = self.path("mixed.safetensors")

        def actions(*options):
            report = json.loads(self.ok("pack", path, "-o", packed, "--json", *options))
            for entry in report["tensors"]:
                self.assertIsNone(entry["refusal"])
                self.assertEqual(entry["packed_bytes"] == 0, entry["action"] == "leave_out")
            listed = json.loads(self.ok("inspect", packed, "--json"))
            held = {entry["name"] for entry in listed["matrices"] + listed["arrays"]}
            left_out = {entry["name"] for entry in report["tensors"] if entry["action"] == "leave_out"}
            self.assertEqual(held, {entry["name"] for entry in report["tensors"]} - left_out)
            os.remove(packed)
            return {entry["name"]: entry["action"] for entry in report["tensors"]}

        kept = {"a": "import", "b": "import", "row": "dequantize", "f": "keep", "odd.1": "leave_out",
                "odd.2": "leave_out"}
        self.assertEqual(actions("--exclude", "odd.*"), kept)
        self.assertEqual(actions("--exclude", "odd.*", "--exclude", "a", "--exclude", "row"),
                         {**kept, "a": "leave_out", "row": "leave_out"})
        self.assertEqual(actions("--exclude", "odd.*", "--include", "f"), {**kept, "f": "quantize"})
        self.assertEqual(actions("--exclude", "odd.*", "--exclude", "f"), kept)
        self.assertEqual(actions("--exclude", "odd.*", "--exclude", "a", "--requantize"),
                         {**kept, "a": "leave_out", "b": "quantize"})
        self.assertIn("left out", self.ok("pack", path, "--dry-run", "--exclude", "odd.*"))

        # One of two excluded: the real run says which is left, and a dry run lists it, goes on, and fails alike.
        options = ["--exclude", "odd.1"]
        words = ["mixed.gguf: tensor 'odd.2' is of type I32; read are F32", "--exclude 'odd.2' leaves it out"]
        self.fails(words, "pack", path, "-o", packed, *options)
        self.assertFalse(os.path.exists(packed))
        for json_option in ([], ["--json"]):
            result = self.call("pack", path, "--dry-run", *options, *json_option)
            self.assertEqual(result.returncode, 2)
            for word in words:
                self.assertIn(word, result.stderr)
                self.assertIn(word, result.stdout)
        entries = {entry["name"]: entry for entry in json.loads(result.stdout)["tensors"]}
        self.assertEqual({name: entry["action"] for name, entry in entries.items()}, {**kept, "odd.2": "refuse"})
        self.assertIn("is of type I32", entries["odd.2"]["refusal"])
        self.assertEqual(entries["b"]["kind"], "symmetric")
        both = self.call("pack", path, "--dry-run")
        self.assertEqual((both.returncode, both.stdout.count("refused")), (2, 2))
        # All of them at once, with what to do.
        self.fails(["tensor 'odd.1' is of type IQ3_S; read are F32", "--exclude 'odd.1' leaves it out",
                    "--exclude 'odd.2' leaves out the next one, of type I32"], "pack", path, "-o", packed)
        self.fails(["--exclude odd.3", "no matrix of floats or quantised tensor"], "pack", path, "--dry-run",
                   "--exclude", "odd.3")
        self.fails(["no matrix to quantise or import"], "pack", path, "--dry-run", "--exclude", "*")

    def test_quantized_by_the_package(self):
        rng = np.random.default_rng(1)
        tensors = {}
        for dtype in [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.TQ2_0]:
            for shape in [(512,), (7, 256), (3, 2, 512), (2, 1, 3, 256)]:
                values = random_floats(rng, shape)
                tensors["%s.%dd" % (dtype.name, len(shape))] = (dtype, gguf.quantize(values, dtype))
        self.check_values(self.write("quantized.gguf", tensors), tensors)

    def test_random_blocks(self):
        rng = np.random.default_rng(2)
        tensors = {dtype.name: (dtype, random_blocks(rng, dtype, 64, 1024)) for dtype in SCALES}
        self.assertEqual(set(SCALES), set(READABLE) - {Type.F32, Type.F16, Type.BF16})
        self.check_values(self.write("random.gguf", tensors), tensors)

    def test_every_16_bit_float(self):
        # The package's float16 keeps or quietens a signalling NaN as the processor likes: here they are quiet.
        f16 = np.arange(1 << 16, dtype=np.uint16)
        f16[(f16 & 0x7C00 == 0x7C00) & (f16 & 0x3FF != 0)] |= 0x200
        bf16 = np.arange(1 << 16, dtype=np.uint16)
        tensors = {"f16": (Type.F16, f16.view(np.float16).reshape(256, 256)),
                   "bf16": (Type.BF16, bf16.view(np.uint8).reshape(256, 512))}
        self.check_values(self.write("halves.gguf", tensors), tensors)

    def test_every_type_is_listed(self):
        rng = np.random.default_rng(3)
        tensors = {}
        for dtype in Type:
            elements, size = gguf.GGML_QUANT_SIZES[dtype]
            if dtype in NOT_STORED:
                continue
            if dtype in (Type.F32, Type.F16, Type.F64, Type.I8, Type.I16, Type.I32, Type.I64):
                tensors[dtype.name] = (None, np.zeros((3, 256), dtype.name.replace("F", "float").replace("I", "int")))
            elif dtype in SCALES:
                tensors[dtype.name] = (dtype, random_blocks(rng, dtype, 3, 256))
            else:
                tensors[dtype.name] = (dtype, rng.integers(0, 256, (3, 256 // elements * size), dtype=np.uint8))
        path = self.write("every.gguf", tensors)
        report = json.loads(self.ok("inspect", path, "--json"))
        text = self.ok("inspect", path)
        expected = gguf.GGUFReader(path).tensors
        self.assertEqual([tensor["name"] for tensor in report["tensors"]], [tensor.name for tensor in expected])
        for tensor, reference in zip(report["tensors"], expected):
            self.assertEqual(tensor["type"], reference.tensor_type.name)
            self.assertEqual(tensor["shape"], [int(n) for n in reversed(reference.shape)])
            self.assertEqual(tensor["bytes"], int(reference.n_bytes))
            self.assertEqual(tensor["offset"], int(reference.data_offset))
            self.assertEqual(tensor["readable"], reference.tensor_type in READABLE)
            self.assertIn(tensor["type"], text)
            if not tensor["readable"]:
                output = self.path("refused.npy")
                self.fails(["'%s'" % tensor["name"], tensor["type"], "Q4_K"], "inspect", path, "--tensor",
                           tensor["name"], "-o", output)
                self.assertFalse(os.path.exists(output))
        self.assertEqual(report["total"], {"tensors": len(expected), "elements": 768 * len(expected),
                                           "bytes": sum(int(tensor.n_bytes) for tensor in expected)})

    def test_mixed_rows(self):
        """Rows of 640 are no whole blocks of 256: such files fall back to types with blocks of 32, and are packed."""
        rng = np.random.default_rng(9)
        tensors = {"attn_q": (Type.Q5_0, gguf.quantize(random_floats(rng, (8, 640)), Type.Q5_0)),
                   "attn_v": (Type.Q8_0, gguf.quantize(random_floats(rng, (8, 640)), Type.Q8_0)),
                   "attn_k": (Type.Q5_1, gguf.quantize(random_floats(rng, (8, 640)), Type.Q5_1)),
                   "ffn_gate": (Type.IQ4_NL, random_blocks(rng, Type.IQ4_NL, 8, 640)),
                   "ffn_down": (Type.Q4_K, random_blocks(rng, Type.Q4_K, 8, 2048)),
                   "ffn_up": (Type.Q5_K, random_blocks(rng, Type.Q5_K, 8, 2048)),
                   "output": (Type.Q6_K, random_blocks(rng, Type.Q6_K, 8, 2048)),
                   "norm": (None, np.ones(640, np.float32))}
        path = self.write("mixed_rows.gguf", tensors)
        self.check_values(path, tensors)
        text = self.ok("pack", path, "-o", self.path("mixed_rows.safetensors"))
        for words in (["attn_q", "Q5_0", "8 bits symmetric, group 32, f16"], ["attn_k", "Q5_1", "8 bits offset"],
                      ["ffn_up", "Q5_K", "8 bits offset, group 32, f32"], ["ffn_gate", "IQ4_NL", "8 bits symmetric"]):
            (row,) = [line for line in text.splitlines() if line.startswith(words[0])]
            for word in words:
                self.assertIn(word, row)

    def test_unknown_type(self):
        """A type of a later version has a number only: it is listed, and what else the file holds is packed."""
        path = self.write("later.gguf", {"known": (Type.Q8_0, gguf.quantize(np.ones((2, 64), np.float32), Type.Q8_0)),
                                         "later": (Type.I8, np.ones((3, 64), np.int8))})
        with open(path, "rb") as file:
            content = file.read()
        at = content.index(b"later") + len("later") + 4 + 2 * 8
        self.assertEqual(content[at:at + 4], int(Type.I8).to_bytes(4, "little"))
        with open(path, "wb") as file:
            file.write(content[:at] + (99).to_bytes(4, "little") + content[at + 4:])
        report = json.loads(self.ok("inspect", path, "--json"))
        self.assertEqual([(t["name"], t["type"], t["readable"], t["bytes"]) for t in report["tensors"]],
                         [("known", "Q8_0", True, 136), ("later", "99", False, 192)])
        self.assertIn("99", self.ok("inspect", path))
        output = self.path("later.npy")
        self.fails(["'later' is of type 99; read are F32"], "inspect", path, "--tensor", "later", "-o", output)
        self.ok("inspect", path, "--tensor", "known", "-o", output)
        packed = self.path("later.safetensors")
        self.fails(["'later' is of type 99", "--exclude 'later' leaves it out"], "pack", path, "-o", packed)
        self.ok("pack", path, "-o", packed, "--exclude", "later")

    def test_metadata(self):
        def add(writer):
            writer.add_uint8("test.u8", 255)
            writer.add_int8("test.s8", -128)
            writer.add_uint16("test.u16", 65535)
            writer.add_int16("test.s16", -32768)
            writer.add_uint32("test.u32", 4294967295)
            writer.add_int32("test.s32", -2147483648)
            writer.add_uint64("test.u64", (1 << 64) - 1)
            writer.add_int64("test.s64", -(1 << 63))
            writer.add_float32("test.f32", 0.1)
            writer.add_float64("test.f64", 0.1)
            writer.add_bool("test.bool", True)
            writer.add_string("test.string", "über\n\x1b[1m" + "long " * 20)
            writer.add_array("test.long", list(range(1000)))
            writer.add_array("test.texts", ["a", "b"])
            writer.add_custom_alignment(64)

        path = self.write("metadata.gguf", {"t": (None, np.ones((2, 3), np.float32))}, add)
        report = json.loads(self.ok("inspect", path, "--json"))
        self.assertEqual((report["kind"], report["version"], report["architecture"], report["alignment"],
                          report["bytes"]), ("gguf", 3, "llama", 64, os.path.getsize(path)))
        metadata = report["metadata"]
        values = {"u8": 255, "s8": -128, "u16": 65535, "s16": -32768, "u32": 4294967295, "s32": -2147483648,
                  "u64": (1 << 64) - 1, "s64": -(1 << 63), "f32": float(np.float32(0.1)), "f64": 0.1, "bool": True,
                  "string": "über\n\x1b[1m" + "long " * 20}
        for name, value in values.items():
            self.assertEqual(metadata["test." + name], {"type": name, "value": value})
        self.assertEqual(metadata["test.long"], {"type": "array", "element_type": "s32", "length": 1000,
                                                 "value": [0, 1, 2, 3, 4, 5]})
        self.assertEqual(metadata["test.texts"]["value"], ["a", "b"])
        text = self.ok("inspect", path)
        for word in ["architecture llama", "s32[1000]", "[0, 1, 2, 3, 4, 5, ...]", "18446744073709551615", "\\u001b",
                     '["a", "b"]', "long ...\"", "[2, 3]"]:
            self.assertIn(word, text)
        self.assertNotIn("\x1b", text)

    def test_metadata_is_kept(self):
        """Every value is in the packed file, as inspect shows it of the GGUF file; what JSON cannot hold is named."""
        tokens = ["<s>", "</s>", "\u2581the", "\x00", "\"\\"] + ["token %d" % i for i in range(50000)]

        def add(writer):
            writer.add_uint64("test.u64", (1 << 64) - 1)
            writer.add_float32("test.f32", 0.1)
            writer.add_float64("test.inf", float("inf"))
            writer.add_bool("test.bool", False)
            writer.add_token_list(tokens)
            writer.add_token_scores([-0.5 * i for i in range(len(tokens))])
            writer.add_array("test.nested", [[1, 2], [3]])
            writer.add_key_value("test.bytes", b"\xff\xfe", gguf.GGUFValueType.STRING)

        rng = np.random.default_rng(7)
        path = self.write("kept.gguf", {"w": (Type.Q8_0, random_blocks(rng, Type.Q8_0, 2, 64))}, add)
        packed = self.path("kept.safetensors")
        report = json.loads(self.ok("pack", path, "-o", packed, "--json"))
        left_out = [{"key": "test.bytes", "reason": "its text is not UTF-8"}]
        shown = json.loads(self.ok("inspect", path, "--json"))["metadata"]
        self.assertEqual(report["metadata"], {"kept": len(shown) - 1, "left_out": left_out})
        for options in (["-o", packed], ["--dry-run"]):
            text = self.ok("pack", path, *options)
            self.assertIn("metadata: %d of %d values kept" % (len(shown) - 1, len(shown)), text)
            self.assertIn("left out: test.bytes, its text is not UTF-8", text)
        del shown["test.bytes"]
        self.assertEqual(json.loads(self.ok("inspect", packed, "--json"))["gguf_metadata"], shown)
        text = self.ok("inspect", packed)
        for word in ["metadata of the GGUF file", "tokenizer.ggml.tokens", "string[50005]", "f32[50005]",
                     "18446744073709551615", ", ...]"]:
            self.assertIn(word, text)
        with open(packed, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        values = {entry["key"]: entry for entry in json.loads(header["__metadata__"]["gguf"])}
        self.assertEqual(list(values), list(shown))
        self.assertEqual(values["tokenizer.ggml.tokens"]["value"], tokens)
        self.assertEqual([float.fromhex(v) for v in values["tokenizer.ggml.scores"]["value"]],
                         [-0.5 * i for i in range(len(tokens))])
        self.assertEqual((values["general.architecture"]["value"], values["test.inf"]["value"],
                          float.fromhex(values["test.f32"]["value"]), values["test.bool"]["value"]),
                         ("llama", "inf", float(np.float32(0.1)), False))
        self.assertEqual(values["test.nested"]["value"], [{"element_type": "s32", "value": [1, 2]},
                                                          {"element_type": "s32", "value": [3]}])
        # A text under that key that is none of ours hinders inspect only.
        changed = json.dumps({**header, "__metadata__": {**header["__metadata__"], "gguf": "{}"}}).encode()
        changed += b" " * (-len(changed) % 8)
        with open(packed, "rb") as file:
            data = file.read()
        size = int.from_bytes(data[:8], "little")
        with open(packed, "wb") as file:
            file.write(len(changed).to_bytes(8, "little") + changed + data[8 + size:])
        self.fails(["metadata 'gguf' is an object, must be a list"], "inspect", packed)
        self.ok("inspect", packed, "--tensor", "w", "-o", self.path("kept.npy"))

    def test_refused(self):
        path = self.write("small.gguf", {"t": (None, np.ones((2, 3), np.float32))})
        with open(path, "rb") as file:
            content = file.read()
        data = content.rindex(np.ones(6, np.float32).tobytes())
        for size in [4, 23, 40, data, data + 23]:
            cut = self.path("cut.gguf")
            with open(cut, "wb") as file:
                file.write(content[:size])
            self.fails(["cut.gguf: "], "inspect", cut)
        output = self.path("none.npy")
        self.fails(["--output"], "inspect", path, "--tensor", "t")
        self.fails(["--tensor"], "inspect", path, "-o", output)
        self.fails(["no tensor is called 'T'"], "inspect", path, "--tensor", "T", "-o", output)
        self.fails(["GGUF", "--layer"], "inspect", path, "--layer", "enc")
        self.fails(["infinite or NaN", "'t'", "block 1 of 2"], "inspect", self.write("infinite.gguf", {
            "t": (Type.Q8_0, np.array([[0] * 34, [0, 0x7C] + [0] * 32], np.uint8))}), "--tensor", "t", "-o", output)
        numbers = self.path("numbers.npy")
        np.save(numbers, np.ones(3, np.float32))
        self.fails(["neither a GGUF file nor low-bit weights"], "inspect", numbers, "--tensor", "t", "-o", output)
        self.assertFalse(os.path.exists(output))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    ISOBIT = os.path.abspath(sys.argv.pop(1))
    unittest.main()
