# SPDX-License-Identifier: Apache-2.0
"""isobit pack, and isobit inspect of what it writes: GPTQ and AWQ checkpoints that the oracle writes against the
weights that they stand for, bit for bit; floats, shards, messages, files left behind. GGUF is in gguf_test.py.

usage: pack_test.py ISOBIT [unittest arguments]
"""
import json
import math
import os
import random
import struct
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import cli_test  # noqa: E402
from cli_test import ToolTest, npy, npz, parse_npy, read, write  # noqa: E402
from oracle.checkpoints import awq, flat, gptq, safetensors, tensor, weights  # noqa: E402


def f16(value):
    return struct.unpack("<e", struct.pack("<e", value))[0]


class Matrix:
    """Random codes, zero points and scales of a checkpoint."""

    def __init__(self, seed, bits, K, N, group, zero=None, act_order=False, zeros=None):
        rng = random.Random(seed)
        G = -(-K // group)
        self.bits, self.K, self.N, self.group = bits, K, N, group
        self.codes = [[rng.randrange(1 << bits) for _ in range(N)] for _ in range(K)]
        low, high = zeros or (1, (1 << bits))
        self.zeros = [[zero if zero is not None else rng.randint(low, high) for _ in range(N)] for _ in range(G)]
        self.scales = [[f16(rng.uniform(0.25, 1) * 2.0 ** rng.randint(-14, 3)) for _ in range(N)] for _ in range(G)]
        self.group_of = [k // group for k in range(K)]
        if act_order:
            rng.shuffle(self.group_of)

    def gptq(self, name, v2=False):
        return gptq(name, self.bits, self.codes, self.zeros, self.scales, self.group_of, v2)

    def awq(self, name):
        return awq(name, self.codes, self.zeros, self.scales)

    def weights(self):
        return weights(self.codes, self.zeros, self.scales, self.group_of)


class PackTest(ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = 0

    def checkpoint(self, tensors, metadata=None, **files):
        """A folder of its own with model.safetensors and JSON files."""
        PackTest.models += 1
        folder = self.path("model%d" % self.models)
        os.mkdir(folder)
        for name, content in files.items():
            write(os.path.join(folder, name + ".json"), json.dumps(content).encode())
        return write(os.path.join(folder, "model.safetensors"), safetensors(tensors, metadata))

    def values(self, packed, name):
        """Shape and bytes of a tensor as float32."""
        output = self.path("values.npy")
        self.ok("inspect", packed, "--tensor", name, "-o", output)
        descr, shape, content = parse_npy(read(output))
        self.assertEqual(descr, "<f4")
        return shape, content

    def check_import(self, model, name, matrix, *options, kind="zero_point", permuted=False):
        packed = self.path("packed.safetensors")
        report = self.json("pack", model, "-o", packed, *options)
        (entry,) = [entry for entry in report["tensors"] if entry["name"] == name]
        self.assertEqual((entry["action"], entry["kind"], entry["bits"], entry["group"], entry["permuted"]),
                         ("import", kind, matrix.bits, min(matrix.group, matrix.K), permuted))
        self.assertEqual(entry["shape"], [matrix.N, matrix.K])
        shape, content = self.values(packed, name)
        self.assertEqual(shape, (matrix.N, matrix.K))
        self.assertEqual(content, matrix.weights())
        (listed,) = [e for e in self.json("inspect", packed)["matrices"] if e["name"] == name]
        self.assertEqual((listed["bits"], listed["kind"], listed["permuted"]), (matrix.bits, kind, permuted))
        return report

    def test_gptq(self):
        for bits in (2, 4, 8):
            for v2 in (False, True):
                for act_order in (False, True):
                    with self.subTest(bits=bits, v2=v2, act_order=act_order):
                        zeros = (0, (1 << bits) - 1) if v2 else (1, 1 << bits)
                        matrix = Matrix(bits, bits, 96, 32, 32, zeros=zeros, act_order=act_order)
                        config = {"bits": bits, "group_size": 32, "desc_act": act_order, "sym": False,
                                  "quant_method": "gptq", "checkpoint_format": "gptq_v2" if v2 else "gptq"}
                        bias = tensor("F16", (32,), [0.5] * 32)
                        model = self.checkpoint({**matrix.gptq("a.b", v2), "a.b.bias": bias}, quantize_config=config)
                        report = self.check_import(model, "a.b.weight", matrix, permuted=act_order)
                        self.assertFalse(report["checkpoint"]["format_assumed"])
                        self.assertEqual(report["checkpoint"]["source"],
                                         os.path.join(os.path.dirname(model), "quantize_config.json"))
                        shape, content = self.values(self.path("packed.safetensors"), "a.b.bias")
                        self.assertEqual(content, struct.pack("<32f", *[0.5] * 32))
                        listed = self.json("inspect", model)
                        self.assertEqual(listed["kind"], "checkpoint")
                        self.assertEqual([(m["name"], m["bits"], m["permuted"]) for m in listed["matrices"]],
                                         [("a.b", bits, act_order)])

    def test_permutation(self):
        matrix = Matrix(7, 4, 64, 8, 16, act_order=True)
        model = self.checkpoint(matrix.gptq("m"), config={"quantization_config": {
            "bits": 4, "group_size": 16, "quant_method": "gptq"}})
        packed = self.path("permuted.safetensors")
        self.assertIn("gptq (assumed)", self.ok("pack", model, "-o", packed))
        _, content = self.values(packed, "m.weight.permutation")
        permutation = [int(v) for v in struct.unpack("<64f", content)]
        self.assertEqual(permutation, sorted(range(64), key=lambda k: (matrix.group_of[k], k)))

    def test_symmetric(self):
        matrix = Matrix(3, 4, 64, 16, 128, zero=8)
        config = {"bits": 4, "group_size": -1, "sym": True, "quant_method": "gptq", "checkpoint_format": "gptq"}
        matrix.group = 64
        self.check_import(self.checkpoint(matrix.gptq("m"), quantize_config=config), "m.weight", matrix,
                          kind="symmetric")
        # A file that stores zero points as gptq_v2 does and says gptq: every weight would be wrong by a scale.
        model = self.checkpoint(matrix.gptq("m", v2=True), quantize_config=config)
        self.fails(["'m.qzeros'", "row 0, group 0 is 9, must be 8", "gptq_v2"], "pack", model, "--dry-run")
        self.check_import(model, "m.weight", matrix, "--checkpoint-format", "gptq_v2", kind="symmetric")

    def test_one_off_where_nobody_says_symmetric(self):
        """The zero points show the wrong name of the format, too, where `sym` is missing: its default is true."""
        matrix = Matrix(3, 4, 64, 16, 32, zero=8)
        base = {"bits": 4, "group_size": 32, "quant_method": "gptq"}
        for files, metadata in [({"quantize_config": {**base, "checkpoint_format": "gptq"}}, None),
                                ({"quantize_config": base}, None),
                                ({"config": {"quantization_config": {**base, "meta": {"quantizer": ["q:1"]}}}}, None),
                                ({}, {"gptq_bits": "4", "gptq_group_size": "32"})]:
            with self.subTest(files=files):
                model = self.checkpoint(matrix.gptq("m", v2=True), metadata, **files)
                self.fails(["'m.qzeros'", "row 0, group 0 is 9, must be 8", "gptq_v2?", "--checkpoint-format"],
                           "pack", model, "--dry-run")
                self.check_import(model, "m.weight", matrix, "--checkpoint-format", "gptq_v2", kind="symmetric")
                # An explicit word is not doubted, but the report names the other format.
                report = self.json("pack", model, "--dry-run", "--checkpoint-format", "gptq")
                self.assertEqual([e["suspected_format"] for e in report["tensors"]], ["gptq_v2"])
                self.assertIn("is its format gptq_v2?",
                              self.ok("pack", model, "--dry-run", "--checkpoint-format", "gptq"))
        # Said the other way round, and every spelling of it.
        for spelling in ({"checkpoint_format": "gptq_v2"}, {"checkpoint_format": "GPTQ-v2"}, {"format": "gptq_v2"},
                         {"quant_method": "gptq_v2"}, {"quant_method": "gptq_v2", "checkpoint_format": "gptq_v2"}):
            with self.subTest(spelling=spelling):
                right = self.checkpoint(matrix.gptq("m", v2=True), quantize_config={**base, **spelling})
                report = self.check_import(right, "m.weight", matrix, kind="symmetric")
                self.assertEqual((report["checkpoint"]["format"], report["checkpoint"]["format_assumed"]),
                                 ("gptq_v2", False))
                wrong = self.checkpoint(matrix.gptq("m"), quantize_config={**base, **spelling})
                self.fails(["row 0, group 0 is 7, must be 8", "is its format gptq?"], "pack", wrong, "--dry-run")
        # No zero point tells anything where some differ, and where the file says that it is not symmetric.
        mixed = Matrix(4, 4, 64, 16, 32, zeros=(7, 9))
        self.check_import(self.checkpoint(mixed.gptq("m"), quantize_config=base), "m.weight", mixed)
        nine = Matrix(3, 4, 64, 16, 32, zero=9)
        model = self.checkpoint(nine.gptq("m"), quantize_config={**base, "sym": False})
        report = self.check_import(model, "m.weight", nine)
        self.assertEqual([e["suspected_format"] for e in report["tensors"]], ["gptq_v2"])

    def test_option_overrules_the_file(self):
        matrix = Matrix(6, 4, 64, 16, 32)
        good = {"bits": 4, "group_size": 32, "quant_method": "gptq", "checkpoint_format": "gptq", "sym": False}
        for change, said in [({"quant_method": "auto-round"}, "quant_method 'auto-round'"),
                             ({"quant_method": "AWQ", "checkpoint_format": None}, "AWQ"),
                             ({"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
                             ({"checkpoint_format": "gptq_v2"}, "checkpoint_format 'gptq_v2'"),
                             ({"quant_method": "gptq_v2"},
                              "quant_method 'gptq_v2' and checkpoint_format 'gptq'"),
                             ({"is_marlin_format": True}, "is_marlin_format"), ({"sym": True}, None)]:
            with self.subTest(change=change):
                model = self.checkpoint(matrix.gptq("m"), quantize_config={**good, **change})
                report = self.check_import(model, "m.weight", matrix, "--checkpoint-format", "gptq")
                self.assertEqual(report["checkpoint"]["overruled"], [said] if said else [])
                if said:
                    text = self.ok("pack", model, "--dry-run", "--checkpoint-format", "gptq")
                    self.assertIn("quantize_config.json says otherwise: " + said, text)
                    # Without the option the file is listed, with what it says.
                    if said not in ("AWQ", "checkpoint_format 'gptq_v2'"):
                        self.assertIn(said, self.json("inspect", model)["refusal"])
                        self.assertIn(said, self.ok("inspect", model))
                if said and said != "checkpoint_format 'gptq_v2'":
                    self.fails([] if said == "AWQ" else ["--checkpoint-format"], "pack", model, "--dry-run")
        # Widths and groups, too, which without --checkpoint-format are those of --requantize.
        for change, said in [({"bits": 8}, ["bits '8'"]), ({"bits": None}, []),
                             ({"group_size": 64}, ["group_size '64'"]),
                             ({"bits": "4", "group_size": "32"}, ["bits '\"4\"'", "group_size '\"32\"'"])]:
            with self.subTest(change=change):
                model = self.checkpoint(matrix.gptq("m"), quantize_config={**good, **change})
                self.fails([], "pack", model, "--dry-run")
                report = self.check_import(model, "m.weight", matrix, "--checkpoint-format", "gptq", "--bits", "4",
                                           "--group", "32")
                self.assertEqual(report["checkpoint"]["overruled"], said)
        again = self.json("pack", self.checkpoint(matrix.gptq("m"), quantize_config=good), "--dry-run",
                          "--checkpoint-format", "gptq", "--requantize", "--bits", "2", "--group", "16")
        self.assertEqual([(e["action"], e["bits"], e["group"]) for e in again["tensors"]], [("quantize", 2, 16)])
        self.assertEqual((again["checkpoint"]["bits"], again["checkpoint"]["group"]), (4, 32))

    def test_dynamic(self):
        """Patterns that leave modules out change no width; patterns that give fields of their own do."""
        matrix = Matrix(6, 4, 64, 16, 32)
        good = {"bits": 4, "group_size": 32, "quant_method": "gptq", "checkpoint_format": "gptq", "sym": False}
        head = tensor("F32", (4, 64), self.floats(3, 4, 64))
        for dynamic in ({"-:lm_head": {}}, {"-:lm_head": {"bits": 8}}, {"+:m": {"bits": 4, "group_size": 32}},
                        {"m": {"damp_percent": 0.1, "sym": False}}, {}, None):
            with self.subTest(dynamic=dynamic):
                model = self.checkpoint({**matrix.gptq("m"), "lm_head.weight": head},
                                        quantize_config={**good, "dynamic": dynamic})
                report = self.check_import(model, "m.weight", matrix)
                self.assertEqual({e["name"]: e["action"] for e in report["tensors"]},
                                 {"m.weight": "import", "lm_head.weight": "keep"})
        for dynamic, words in [({"-:lm_head": {}, "+:.*up": {"bits": 8}}, ["'bits'", "'+:.*up'", "'8'"]),
                               ({".*up": {"group_size": 64}}, ["'group_size'", "'.*up'"]),
                               ({".*up": {"checkpoint_format": "gptq_v2"}}, ["'checkpoint_format'"]),
                               ({"up": 8}, ["'up'"]), (["up"], ["widths"])]:
            with self.subTest(dynamic=dynamic):
                model = self.checkpoint(matrix.gptq("m"), quantize_config={**good, "dynamic": dynamic})
                self.fails(["'dynamic'", *words, "--checkpoint-format", "with --bits and --group"], "pack", model,
                           "--dry-run")
                self.fails(["'dynamic'", *words], "pack", model, "--dry-run", "--checkpoint-format", "gptq")
                self.check_said_by_options(model, matrix, ["'dynamic'", *words])

    def check_said_by_options(self, model, matrix, words):
        """Where options say all of it, the file beside the model refuses nothing; what it says is told."""
        options = ["--checkpoint-format", "gptq", "--bits", str(matrix.bits), "--group", str(matrix.group)]
        (said,) = self.check_import(model, "m.weight", matrix, *options)["checkpoint"]["overruled"]
        text = self.ok("pack", model, "--dry-run", *options)
        for word in words:
            self.assertIn(word, said)
            self.assertIn(word, text)

    def test_awq(self):
        matrix = Matrix(5, 4, 64, 24, 32, zeros=(0, 15))
        for file, config in [("config", {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32,
                                                                 "zero_point": True, "version": "gemm"}}),
                             ("quant_config", {"w_bit": 4, "q_group_size": 32, "zero_point": True,
                                               "version": "GEMM"})]:
            with self.subTest(file=file):
                model = self.checkpoint(matrix.awq("m"), **{file: config})
                self.check_import(model, "m.weight", matrix)
                listed = self.json("inspect", model)
                self.assertEqual([(m["name"], m["bits"], m["permuted"]) for m in listed["matrices"]], [("m", 4, False)])

    def test_nothing_is_ignored(self):
        """Options that would have no effect, and a tensor that another one would hide."""
        matrix = Matrix(6, 4, 64, 16, 32)
        config = {"bits": 4, "group_size": 32, "quant_method": "gptq", "checkpoint_format": "gptq"}
        model = self.checkpoint(matrix.gptq("m"), quantize_config=config)
        ways = (["--kind", "symmetric"], ["--method", "absmax"], ["--scales", "f32"])
        for option in (["--bits", "8"], ["--group", "64"], *ways):
            self.fails([" ".join(option), "are quantised already", "--requantize"], "pack", model, "--dry-run", *option)
        stored = ["--checkpoint-format", "gptq", "--bits", "4", "--group", "32"]  # what no file says
        for option in ways:
            self.fails([" ".join(option), "are quantised already"], "pack", self.checkpoint(matrix.gptq("m")),
                       "--dry-run", *stored, *option)
        self.json("pack", model, "--dry-run", "--bits", "8", "--requantize")
        weights = tensor("F32", (16, 64), [0.5] * (16 * 64))
        twice = self.checkpoint({**matrix.gptq("m"), "m.weight": weights}, quantize_config=config)
        self.fails(["two tensors of the result would be named m.weight"], "pack", twice, "--dry-run", "--requantize")

    def test_how_it_is_stored(self):
        matrix = Matrix(6, 4, 64, 16, 32)
        bare = self.checkpoint(matrix.gptq("m"))
        self.fails(["--checkpoint-format, --bits and --group"], "pack", bare, "--dry-run")
        self.fails(["--checkpoint-format"], "pack", bare, "--dry-run", "--checkpoint-format", "gptq", "--bits", "4")
        self.assertIsNone(self.json("inspect", bare)["checkpoint"])
        self.check_import(bare, "m.weight", matrix, "--checkpoint-format", "gptq", "--bits", "4", "--group", "32")
        said = self.checkpoint(matrix.gptq("m"), {"gptq_bits": "4", "gptq_group_size": "32"})
        report = self.check_import(said, "m.weight", matrix)
        self.assertEqual((report["checkpoint"]["source"], report["checkpoint"]["format_assumed"]), (said, True))
        self.fails(["expected gptq, gptq_v2 or awq"], "pack", bare, "--dry-run", "--checkpoint-format", "marlin")
        self.fails(["holds no tensors of GPTQ"], "pack", self.model, "--dry-run", "--checkpoint-format", "gptq")

    def test_descriptions_refused(self):
        good = {"bits": 4, "group_size": 32, "quant_method": "gptq", "checkpoint_format": "gptq"}
        matrix = Matrix(6, 4, 64, 16, 32)
        for change, words in [({"bits": 3}, ["gptq of 3 bits; imported are 2, 4 and 8"]),
                              ({"bits": "4"}, ["'bits'", "must be an integer"]),
                              ({"bits": None}, ["'bits' is missing"]),
                              ({"group_size": 1 << 40}, ["'group_size'", "2147483647"]),
                              ({"group_size": 0}, ["group is 0"]),
                              ({"quant_method": "hqq"}, ["quant_method 'hqq'; imported are gptq and awq"]),
                              ({"checkpoint_format": "marlin"}, ["'marlin'; imported are gptq and gptq_v2"]),
                              ({"dynamic": {"+:.*up": {"bits": 8}}}, ["'dynamic'"]),
                              ({"pack_dtype": "int64"}, ["pack_dtype", "int32"]),
                              ({"is_marlin_format": True}, ["Marlin"]),
                              ({"quant_method": "awq", "checkpoint_format": "gemv"}, ["'gemv'; imported is 'gemm'"]),
                              ({"quant_method": "awq", "checkpoint_format": None, "zero_point": False},
                               ["without zero points"]),
                              ({"group_size": 2**64 - 1}, ["'group_size' is '18446744073709551615'", "-1.."]),
                              ({"group_size": 16}, ["'m.scales'", "(2, 16)", "4 rows for K = 64"]),
                              ({"bits": 8}, ["'m.scales'", "1 rows for K = 32"])]:
            with self.subTest(change=change):
                model = self.checkpoint(matrix.gptq("m"), quantize_config={**good, **change})
                self.fails(words, "pack", model, "--dry-run")
                self.check_listed(model, words)
        model = self.checkpoint(matrix.gptq("m"))
        write(os.path.join(os.path.dirname(model), "quantize_config.json"), b"{\"bits\": 4,")
        self.fails(["quantize_config.json", "not a JSON object"], "pack", model, "--dry-run")
        self.check_listed(model, ["quantize_config.json", "not a JSON object"])
        self.check_said_by_options(model, matrix, ["quantize_config.json", "not a JSON object"])
        self.fails(["is a folder", model], "inspect", os.path.dirname(model))
        deep = b"{\"bits\": " + b"[" * 200000 + b"]" * 200000 + b"}"
        write(os.path.join(os.path.dirname(model), "quantize_config.json"), deep)
        self.fails(["quantize_config.json", "'bits' is an array"], "pack", model, "--dry-run")

    def check_listed(self, model, words):
        """isobit inspect lists the tensors, and says what is wrong."""
        result = self.call("inspect", model)
        self.assertEqual(result.returncode, 0, result.stderr)
        for word in ["m.qweight", "m.qzeros", "m.scales", *words]:
            self.assertIn(word, result.stdout + result.stderr)
        report = json.loads(self.call("inspect", model, "--json").stdout)
        self.assertLessEqual({"m.qweight", "m.qzeros", "m.scales"}, {entry["name"] for entry in report["arrays"]})

    def refuses_parts_of(self, good, config):
        """A function: these tensors of `m` with changes, None for a missing one, are refused with these words."""
        def refused(words, **changes):
            tensors = {**good, **{"m." + name: value for name, value in changes.items()}}
            model = self.checkpoint({k: v for k, v in tensors.items() if v}, quantize_config=config)
            output = self.path("refused.safetensors")
            self.fails(["model.safetensors", *words], "pack", model, "-o", output)
            self.assertFalse(os.path.exists(output))
        return refused

    def test_gptq_refused(self):
        config = {"bits": 4, "group_size": 32, "quant_method": "gptq", "checkpoint_format": "gptq"}
        refused = self.refuses_parts_of(Matrix(6, 4, 64, 16, 32).gptq("m"), config)
        for part in ("qweight", "qzeros", "scales"):
            refused(["'m.%s' is missing" % part], **{part: None})
        refused(["'m.qweight'", "2 dimensions"], qweight=tensor("I32", (8,), [0] * 8))
        refused(["'m.qweight' is s64, must be s32"], qweight=tensor("I64", (8, 16), [0] * 128))
        refused(["'m.qweight'", "(8, 15), must be (8, 16) (gptq, 4 bits, group 32)"],
                qweight=tensor("I32", (8, 15), [0] * 120))
        refused(["'m.qweight'", "beyond"], qweight=tensor("I32", (1 << 40, 0), []))
        refused(["'m.qzeros'", "(2, 3), must be (2, 2)"], qzeros=tensor("I32", (2, 3), [0] * 6))
        refused(["'m.scales' is s32, must be f32, f16 or bf16"], scales=tensor("I32", (2, 16), [1] * 32))
        refused(["'m.scales'", "multiple of 8"], scales=tensor("F16", (2, 15), [1] * 30))
        refused(["'m.g_idx'", "(63,), must be (64,)"], g_idx=tensor("I32", (63,), [0] * 63))
        refused(["'m.g_idx': element 3 is 2, must be 0..1"], g_idx=tensor("I32", (64,), [0, 0, 0, 2] + [1] * 60))
        refused(["'m.g_idx': element 0 is -1"], g_idx=tensor("I32", (64,), [-1] * 64))
        refused(["'m.g_idx' names group 0 64 times, must be 32"], g_idx=tensor("I32", (64,), [0] * 64))
        refused(["'m'", "scales[0, 0] is inf, must be finite"], scales=tensor("F16", (2, 16), [math.inf] * 32))

    def test_awq_refused(self):
        matrix = Matrix(6, 4, 64, 16, 32)
        config = {"bits": 4, "group_size": 32, "quant_method": "awq", "version": "gemm"}
        refused = self.refuses_parts_of(matrix.awq("m"), config)
        for part in ("qweight", "qzeros", "scales"):
            refused(["'m.%s' is missing" % part], **{part: None})
        refused(["'m.qweight' is s64, must be s32"], qweight=tensor("I64", (64, 2), [0] * 128))
        refused(["'m.qweight'", "(64, 3), must be (64, 2) (awq, 4 bits, group 32)"],
                qweight=tensor("I32", (64, 3), [0] * 192))
        refused(["'m.scales'", "(2, 16), must have 3 rows for K = 72"], qweight=tensor("I32", (72, 2), [0] * 144))
        refused(["'m.qzeros'", "(1, 2), must be (2, 2)"], qzeros=tensor("I32", (1, 2), [0] * 2))
        refused(["'m.qzeros'", "(2, 16), must be (2, 2)"], qzeros=tensor("I32", (2, 16), [0] * 32))
        refused(["'m.scales' is s32, must be f32, f16 or bf16"], scales=tensor("I32", (2, 16), [1] * 32))
        refused(["'m.scales'", "multiple of 8"], scales=tensor("F16", (2, 15), [1] * 30))
        refused(["'m'", "scales[0, 0] is inf, must be finite"], scales=tensor("F16", (2, 16), [math.inf] * 32))
        refused(["'m.g_idx' is there, must not be"], g_idx=tensor("I32", (64,), matrix.group_of))

    def test_scale_of_zero(self):
        matrix = Matrix(8, 4, 64, 16, 32)
        matrix.scales[1][3] = 0.0
        matrix.codes[40][3] = 9
        config = {"bits": 4, "group_size": 32, "quant_method": "gptq"}
        packed = self.path("zero.safetensors")
        report = self.json("pack", self.checkpoint(matrix.gptq("m"), quantize_config=config), "-o", packed)
        self.assertEqual(report["tensors"][0]["cleared_groups"], 1)
        _, content = self.values(packed, "m.weight")
        self.assertEqual(struct.unpack("<1024f", content), struct.unpack("<1024f", matrix.weights()))

    # ---------------------------------------------------------------------------------------------------------------

    def floats(self, seed, N, K):
        rng = random.Random(seed)
        return [rng.gauss(0, 1) for _ in range(N * K)]

    def test_quantises_floats(self):
        values = self.floats(1, 6, 48)
        model = self.at("floats.npz", npz({"fc.weight": npy((6, 48), values), "fc.bias": npy((6,), values[:6]),
                                           "emb.weight": npy((2, 48), values[:96])}))
        packed = self.path("floats.safetensors")
        for bits, floor in [(8, 40), (4, 15), (2, 4), (1, 3)]:
            with self.subTest(bits=bits):
                options = ["--bits", str(bits), "--group", "16", "--exclude", "emb*"]
                report = self.json("pack", model, "-o", packed, *options)
                entries = {entry["name"]: entry for entry in report["tensors"]}
                self.assertEqual({name: entry["action"] for name, entry in entries.items()},
                                 {"fc.weight": "quantize", "fc.bias": "keep", "emb.weight": "keep"})
                entry = entries["fc.weight"]
                self.assertEqual(entry["bits_per_weight"], entry["packed_bytes"] * 8 / (6 * 48))
                # Codes of a row in words of 4 bytes, and three float32 scales.
                self.assertEqual(entry["packed_bytes"], 6 * (-(-48 * bits // 32) * 4 + 3 * 4))
                _, content = self.values(packed, "fc.weight")
                read_back = struct.unpack("<288f", content)
                source = struct.unpack("<288f", struct.pack("<288f", *values))
                noise = sum((a - b) ** 2 for a, b in zip(source, read_back))
                decibels = 10 * math.log10(sum(a * a for a in source) / noise)
                self.assertAlmostEqual(entry["sqnr_db"], decibels, places=6)
                self.assertGreater(decibels, floor)
                self.assertEqual(self.values(packed, "emb.weight")[1], struct.pack("<96f", *values[:96]))
                dry = self.json("pack", model, "--dry-run", *options)
                self.assertEqual((dry["output"], dry["tensors"], dry["total"]),
                                 (None, report["tensors"], report["total"]))
        text = self.ok("pack", model, "-o", packed, "--include", "fc.*", "--kind", "offset", "--method", "mse",
                       "--scales", "f16", "--threads", "2")
        for word in ["4 bits offset, group 48, f16", "4.667", "as it is", "SQNR", "saved " + packed]:
            self.assertIn(word, text)
        self.assertEqual(self.ok("pack", model, "-o", packed, "--quiet"), "")

    def test_every_kind_and_width(self):
        values = self.floats(2, 4, 64)
        model = self.at("kinds.npz", npz({"w": npy((4, 64), values)}))
        packed = self.path("kinds.safetensors")
        for kind in ("symmetric", "zero_point", "offset"):
            errors = []
            for bits in (1, 2, 4, 8):
                report = self.json("pack", model, "-o", packed, "--bits", str(bits), "--kind", kind, "--group", "0",
                                   "--method", "mse")
                (entry,) = report["tensors"]
                self.assertEqual((entry["bits"], entry["kind"], entry["group"]), (bits, kind, 64))
                errors.append(entry["sqnr_db"])
            self.assertEqual(errors, sorted(errors))

    # What each tool writes for a matrix "fc" of 8 rows and 64 columns: names (after "fc"), types and shapes. The floats
    # among them have two dimensions where a tool may have that, so that they look like matrices.
    FOREIGN = {
        "MLX": {".weight": ("U32", (8, 8)), ".scales": ("BF16", (8, 1)), ".biases": ("BF16", (8, 1))},
        "bitsandbytes (4 bits)": {
            ".weight": ("U8", (256, 1)), ".weight.absmax": ("F32", (8, 1)), ".weight.quant_map": ("F32", (16,)),
            ".weight.quant_state.bitsandbytes__nf4": ("U8", (80,))},
        "bitsandbytes (LLM.int8)": {".weight": ("I8", (8, 64)), ".SCB": ("F32", (8, 1)), ".weight_format": ("U8", ())},
        "compressed-tensors": {".weight_packed": ("I32", (8, 8)), ".weight_scale": ("BF16", (8, 2)),
                               ".weight_shape": ("I64", (2,))},
        "FP8": {".weight": ("F8_E4M3", (8, 64)), ".weight_scale_inv": ("F32", (1, 1))},
        "NVFP4": {".weight": ("U8", (8, 32)), ".weight_scale": ("F8_E4M3", (8, 4)), ".weight_scale_2": ("F32", ())},
        "MXFP4": {"_blocks": ("U8", (8, 2, 16)), "_scales": ("U8", (8, 2))},
        "HQQ": {".W_q": ("U8", (8, 32)), ".scale": ("F16", (8, 1)), ".zero": ("F16", (8, 1))},
        "AQLM": {".codes": ("I16", (8, 8, 1)), ".codebooks": ("F16", (1, 256, 1, 8)), ".scales": ("F16", (8, 1))},
        "EETQ": {".weight": ("I8", (64, 8)), ".weight_scales": ("F16", (8, 1))},
        "quanto": {".weight._data": ("U8", (8, 32)), ".weight._scale": ("F16", (8, 1)), ".input_scale": ("F32", ())},
        "torchao": {"._weight_qdata": ("I8", (8, 64)), "._weight_scale": ("F32", (8, 1))},
        "VPTQ": {".indices": ("I32", (1, 8, 8)), ".centroids.weight": ("F16", (1, 512)),
                 ".weight_scale": ("F16", (8,))},
        "SqueezeLLM": {".qweight": ("I32", (8, 8)), ".lookup_table": ("F16", (8, 16))},
        "EXL2": {".q_weight": ("I32", (8, 8)), ".q_scale": ("I32", (1, 1)), ".q_scale_max": ("F16", (1, 1))},
        "Marlin": {".B": ("I32", (4, 16)), ".s": ("F16", (1, 8))},
        "ONNX": {"_quantized": ("I8", (8, 64)), "_scale": ("F32", (8, 1)), "_zero_point": ("I8", (8, 1))},
        "another tool": {".weight": ("I8", (8, 64)), ".weight_scale": ("F32", (8, 1))},
        "another tool (codes and scales)": {".weight": ("U64", (8, 4)), ".scales": ("F32", (8, 1))}}

    def foreign(self, parts, prefix="fc", **files):
        """With a float head and a float norm."""
        sizes = {"U8": 1, "I8": 1, "F8_E4M3": 1, "U64": 8, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "I64": 8}
        tensors = {prefix + suffix: (dtype, list(shape), bytes(sizes[dtype] * math.prod(shape)))
                   for suffix, (dtype, shape) in parts.items()}
        head = {"lm_head.weight": tensor("F32", (4, 64), self.floats(3, 4, 64)),
                "norm.weight": tensor("F32", (4,), [1] * 4)}
        return self.checkpoint({**tensors, **head}, **files), set(tensors)

    def test_foreign(self):
        """What other tools quantised is refused by the name of the format; its scales never become weights."""
        for name, parts in self.FOREIGN.items():
            with self.subTest(name=name):
                model, names = self.foreign(parts)
                output = self.path("foreign.safetensors")
                first = next(iter(parts))
                self.fails(["quantised by " + name, "'fc%s' is " % first, "--include"], "pack", model, "-o", output)
                self.assertFalse(os.path.exists(output))
                dry = self.call("pack", model, "--dry-run", "--json")
                actions = {e["name"]: e["action"] for e in json.loads(dry.stdout)["tensors"]}
                protected = {name for name, action in actions.items() if action == "refuse"}
                self.assertEqual(dry.returncode, 2)
                self.assertLessEqual(protected, names)
                self.assertLessEqual({"fc" + suffix for suffix, (_, shape) in parts.items() if len(shape) == 2},
                                     protected)
                report = self.json("inspect", model)
                self.assertEqual((report["kind"], [f["matrices"] for f in report["formats"]]), ("foreign", [1]))
                self.assertTrue(report["formats"][0]["name"].startswith(name))
                self.assertIn("weights quantised by " + name, self.ok("inspect", model))
                unread = {"fc" + suffix for suffix, (dtype, _) in parts.items() if dtype in ("F8_E4M3", "U64")}
                self.assertEqual({e["name"] for e in report["not_read"]}, unread)
                # The true floats may be taken; everything else stays as it is, where isobit reads it.
                for options in (["--include", "lm_head.weight"], ["--exclude", "fc*"]):
                    entries = self.json("pack", model, "-o", output, *options)["tensors"]
                    self.assertEqual({e["name"] for e in entries if e["action"] == "quantize"}, {"lm_head.weight"})
                    self.assertEqual({e["name"] for e in entries if e["action"] == "leave_out"}, unread)
                    self.assertEqual({e["action"] for e in entries} - {"quantize", "leave_out"}, {"keep"})
                    self.assertEqual({e["name"] for e in entries}, names | {"lm_head.weight", "norm.weight"})
                    os.remove(output)
                self.fails(["quantised by " + name], "pack", model, "-o", output, "--include", "*")

    def test_foreign_description(self):
        """config.json says it, though the tensors beside it show nothing."""
        plain = {".magic": ("F16", (8, 2)), ".weight": ("U8", (8, 32))}
        for files, words in [
                ({"config": {"quantization": {"group_size": 64, "bits": 4}}}, ["config.json", "'quantization'", "MLX"]),
                ({"config": {"quantization_config": {"quant_method": "fp8"}}}, ["config.json", "quant_method 'fp8'"]),
                ({"config": {"quantization_config": {"load_in_4bit": True}}}, ["load_in_4bit", "bitsandbytes"]),
                ({"quantize_config": {"quant_method": "hqq"}}, ["quantize_config.json", "'hqq'"]),
                ({"hf_quant_config": {"quantization": {"quant_algo": "NVFP4"}}}, ["hf_quant_config.json", "'NVFP4'"])]:
            with self.subTest(files=files):
                model, _ = self.foreign(plain, **files)
                self.fails([*words, "--include"], "pack", model, "--dry-run")
                report = self.json("inspect", model)
                self.assertEqual((report["kind"], report["formats"]), ("foreign", []))
                for word in words:
                    self.assertIn(word, report["description"])
                report = self.json("pack", model, "--dry-run", "--include", "lm_head.*")
                self.assertEqual([e["name"] for e in report["tensors"] if e["action"] == "quantize"],
                                 ["lm_head.weight"])
        # Where tensors show it, too, both are named.
        model, _ = self.foreign(self.FOREIGN["another tool"],
                                config={"quantization_config": {"quant_method": "compressed-tensors"}})
        self.fails(["another tool", "'fc.weight' is s8", "quant_method 'compressed-tensors'"], "pack", model, "-o",
                   self.path("never.safetensors"))
        for harmless in ({"model_type": "llama", "quantization_config": None}, {"quantization_config": {
                "quant_method": "gptq", "bits": 4}}, [], {"quantization": "none"}):
            model, _ = self.foreign(plain, config=harmless)
            self.json("pack", model, "--dry-run", "--group", "0")

    def test_json_of_a_users_own(self):
        """What lies beside floats says nothing of how they are stored."""
        texts = [json.dumps(text).encode() for text in (
            {"quantization": {"bits": 8}}, {"quant_method": "mine"}, {"load_in_8bit": True}, {"bits": "many"}, [1], 3)]
        for name in ("params", "config", "quantize_config", "quant_config", "hf_quant_config"):
            for text in [*texts, b"{not JSON", b""]:
                with self.subTest(name=name, text=text):
                    matrix, ids = tensor("F32", (4, 64), self.floats(3, 4, 64)), tensor("I64", (1, 8), [0] * 8)
                    model = self.checkpoint({"fc.weight": matrix, "position_ids": ids})
                    folder = os.path.dirname(model)
                    write(os.path.join(folder, name + ".json"), text)
                    report = self.json("pack", model, "--dry-run")
                    self.assertEqual({e["name"]: e["action"] for e in report["tensors"]},
                                     {"fc.weight": "quantize", "position_ids": "keep"})
                    report = self.json("inspect", model, warnings=["no GRU found"])
                    self.assertEqual([e["name"] for e in report["arrays"]], ["fc.weight", "position_ids"])
                    gru = write(os.path.join(folder, "gru.npz"), read(self.model))
                    self.assertEqual(self.json("inspect", gru)["kind"], "float")
                    self.json("quantize", gru, "--calibrate", self.single, "--dry-run")

    def test_not_foreign(self):
        """Floats with names such as those, and integers without scales, are what they were."""
        matrix = tensor("F32", (4, 64), self.floats(3, 4, 64))
        scale, ids = tensor("F32", (4, 8), [1.0] * 32), tensor("I64", (1, 8), [0] * 8)
        model = self.checkpoint({"fc.weight": matrix, "fc.scales": scale, "fc.scale": scale, "fc.weight_scale": scale,
                                 "vq.codebooks": scale, "att.W_q": matrix, "att.scale": scale, "position_ids": ids})
        report = self.json("pack", model, "--dry-run", "--group", "8")
        self.assertEqual({e["action"] for e in report["tensors"] if e["name"] != "position_ids"}, {"quantize"})

    def test_default_method(self):
        """At 1 and 2 bits the least squared error, which no other method beats; the report says which one it was."""
        values = self.floats(20, 8, 256)
        model = self.at("method.npz", npz({"w": npy((8, 256), values)}))

        def entry(*options):
            (entry,) = self.json("pack", model, "--dry-run", *options)["tensors"]
            return entry["method"], entry["sqnr_db"]

        for kind, own in (("symmetric", "absmax"), ("zero_point", "minmax"), ("offset", "minmax")):
            for bits in (1, 2, 4, 8):
                with self.subTest(kind=kind, bits=bits):
                    options = ["--kind", kind, "--bits", str(bits)]
                    method, decibels = entry(*options)
                    self.assertEqual(method, "mse" if bits <= 2 else own)
                    self.assertEqual(entry(*options, "--method", method), (method, decibels))
                    self.assertGreaterEqual(decibels, entry(*options, "--method", own)[1])
                    self.assertIn("quantised by %s, the default at %d bit" % (method, bits),
                                  self.ok("pack", model, "--dry-run", *options))
        self.assertGreater(entry("--bits", "2")[1], entry("--bits", "2", "--method", "absmax")[1] + 2)
        self.assertGreater(entry("--bits", "2")[1], entry("--bits", "1")[1])

    def test_requantize(self):
        matrix = Matrix(9, 8, 64, 16, 32, act_order=True)
        config = {"bits": 8, "group_size": 32, "quant_method": "gptq"}
        head = tensor("F32", (4, 64), self.floats(3, 4, 64))
        model = self.checkpoint({**matrix.gptq("m"), "head": head}, quantize_config=config)
        packed = self.path("again.safetensors")

        def actions(*options):
            report = self.json("pack", model, "-o", packed, *options)
            return {entry["name"]: (entry["action"], entry.get("bits")) for entry in report["tensors"]}

        self.assertEqual(actions(), {"m.weight": ("import", 8), "head": ("keep", None)})
        self.assertEqual(actions("--include", "head"), {"m.weight": ("import", 8), "head": ("quantize", 4)})
        self.assertEqual(actions("--requantize", "--bits", "2"), {"m.weight": ("quantize", 2), "head": ("keep", None)})
        # Neither imported nor quantised: its tensors stay as they are.
        parts = {"m." + part: ("keep", None) for part in ("qweight", "qzeros", "scales", "g_idx")}
        for again in ([], ["--requantize"]):
            self.assertEqual(actions("--include", "head", "--exclude", "m.*", *again),
                             {**parts, "head": ("quantize", 4)})
            shape, content = self.values(packed, "m.scales")
            self.assertEqual(shape, (2, 16))
            self.assertEqual(content, struct.pack("<32f", *flat(matrix.scales)))
        self.assertEqual(actions("--requantize", "--kind", "zero_point", "--bits", "8", "--group", "8"),
                         {"m.weight": ("quantize", 8), "head": ("keep", None)})
        shape, content = self.values(packed, "m.weight")
        exact = struct.unpack("<1024f", matrix.weights())
        for a, b in zip(struct.unpack("<1024f", content), exact):
            self.assertLess(abs(a - b), 0.01 * max(map(abs, exact)))
        self.assertNotIn("m.weight.permutation", {e["name"] for e in self.json("inspect", packed)["arrays"]})

    def test_shards(self):
        first = {"a.weight": tensor("F32", (2, 8), self.floats(4, 2, 8))}
        second = {"b.weight": tensor("F32", (3, 8), self.floats(5, 3, 8)), "b.bias": tensor("F32", (3,), [1, 2, 3])}
        folder = self.path("shards")
        os.mkdir(folder)
        write(os.path.join(folder, "model-1.safetensors"), safetensors(first))
        write(os.path.join(folder, "model-2.safetensors"), safetensors(second))
        index = os.path.join(folder, "model.safetensors.index.json")

        def weight_map(**files):
            write(index, json.dumps({"weight_map": {k.replace("_", "."): v for k, v in files.items()}}).encode())

        good = {"a_weight": "model-1.safetensors", "b_weight": "model-2.safetensors", "b_bias": "model-2.safetensors"}
        weight_map(**good)
        report = self.json("pack", index, "--dry-run", "--group", "8")
        self.assertEqual([(e["name"], e["action"]) for e in report["tensors"]],
                         [("a.weight", "quantize"), ("b.bias", "keep"), ("b.weight", "quantize")])
        weight_map(**{**good, "c_weight": "model-1.safetensors"})
        self.fails(["'c.weight' is missing in 'model-1.safetensors'"], "pack", index, "--dry-run")
        weight_map(a_weight="model-1.safetensors", b_weight="model-2.safetensors")
        self.fails(["does not name tensor 'b.bias'"], "pack", index, "--dry-run")
        weight_map(a_weight="../model-1.safetensors")
        self.fails(["a.weight", "in the same folder"], "pack", index, "--dry-run")
        write(index, b"{\"weight_map\": {\"a.weight\": " + b"[" * 200000 + b"]" * 200000 + b"}}")
        self.fails(["a.weight", "'array'", "in the same folder"], "pack", index, "--dry-run")
        weight_map(a_weight="model-3.safetensors")
        self.fails(["model-3.safetensors"], "pack", index, "--dry-run")
        write(index, b"[]")
        self.fails(["weight_map"], "pack", index, "--dry-run")

    # ---------------------------------------------------------------------------------------------------------------

    def product(self, packed, name, x, bias, rows):
        """x W^T + bias in float64 of the decoded weights."""
        (N, K), content = self.values(packed, name)
        w = struct.unpack("<%df" % (N * K), content)
        return [[math.fsum(x[m * K + k] * w[n * K + k] for k in range(K)) + bias[n] for n in range(N)]
                for m in range(rows)]

    def matmul(self, weights_name, x, *options, descr="<f4", code="f"):
        y = self.path("y.npy")
        report = self.json("matmul", weights_name, x, "-o", y, *options)
        found, shape, content = parse_npy(read(y))
        self.assertEqual(found, descr)
        self.assertEqual(list(shape), report["output_shape"])
        return report, struct.unpack("<%d%s" % (math.prod(shape), code), content)

    def test_matmul(self):
        N, K, rows = 6, 64, 5
        w, bias, x = self.floats(10, N, K), self.floats(11, 1, N), self.floats(12, rows, K)
        model = self.at("layer.npz", npz({"fc.weight": npy((N, K), w), "fc.bias": npy((N,), bias)}))
        packed = self.path("layer.safetensors")
        self.ok("pack", model, "-o", packed, "--bits", "8", "--group", "0")
        data = self.at("x.npy", npy((rows, K), x))
        x = struct.unpack("<%df" % len(x), struct.pack("<%df" % len(x), *x))
        expected = flat(self.product(packed, "fc.weight", x, bias, rows))
        largest = max(map(abs, expected))

        def close(y, wanted, tolerance):
            for a, b in zip(y, wanted, strict=True):
                self.assertLess(abs(a - b), tolerance * largest)

        options = ["--bias", "fc.bias"]
        report, y = self.matmul(packed + ":fc.weight", data, *options)
        self.assertEqual((report["activations"], report["matrix"]), ("float", "fc.weight"))
        close(y, expected, 1e-5)
        _, y = self.matmul(packed, data, *options, "--clamp", "relu", "--threads", "2")
        close(y, [max(v, 0) for v in expected], 1e-5)
        self.assertEqual(min(y), 0)
        _, y = self.matmul(packed, data, *options, "--clamp=-1:2")
        close(y, [min(max(v, -1), 2) for v in expected], 1e-5)
        for kind in ("int8", "int8_asymmetric"):
            _, y = self.matmul(packed, data, *options, "--activations", kind)
            close(y, expected, 0.02)
            for kernel in ("reference", "int8_reference", "int8_scalar"):
                report, same = self.matmul(packed, data, *options, "--activations", kind, "--kernel", kernel)
                self.assertEqual(y, same)
                self.assertEqual(report["kernel"], kernel if "_" in kernel else "int8_" + kernel)
        out = self.path("never.npy")
        for words, kernel in [(["--kernel float_scalar", "linear_int8", "int8_scalar"], "float_scalar"),
                              (["--kernel quick", "int8_scalar"], "quick")]:
            self.fails(words, "matmul", packed, data, "-o", out, "--activations", "int8", "--kernel", kernel)
        report, y = self.matmul(packed, data, *options, "--activations", "static")
        close(y, expected, 0.02)
        self.assertEqual((report["input_grid"]["bits"], report["output_grid"]["bits"]), (8, 8))
        self.assertEqual(report["clipped"], 0)
        _, codes = self.matmul(packed, data, *options, "--activations", "static", "--codes", descr="|i1", code="b")
        grid = report["output_grid"]
        close([(c - grid["zero_point"]) * grid["scale"] for c in codes], y, 1e-6)
        _, clipped = self.matmul(packed, data, *options, "--activations", "static", "--output-range=-1:1")
        self.assertLess(max(map(abs, clipped)), 1.02)
        # Any number of dimensions before K; float64 becomes float32.
        wide = self.at("wide.npy", npy((1, rows, K), x, "<f8", "d"))
        report, y = self.matmul(packed, wide, *options)
        self.assertEqual(report["output_shape"], [1, rows, N])
        close(y, expected, 1e-5)
        # Values of x beyond a range that was given are counted, and warned of.
        result = self.call("matmul", packed, data, "-o", self.path("y.npy"), "--activations", "static",
                           "--input-range=-0.01:0.01", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(json.loads(result.stdout)["clipped_percent"], 1)
        self.assertIn("warning: ", result.stderr)
        self.assertIn("--input-range", result.stderr)
        text = self.ok("matmul", packed, data, "-o", self.path("y.npy"), "--activations", "static")
        for word in ["fc.weight: [6, 64], 8 bits symmetric, group 64, f32", "activations static", "x:  8 bits signed"]:
            self.assertIn(word, text)

    def test_matmul_permuted(self):
        matrix = Matrix(13, 4, 64, 16, 16, act_order=True)
        config = {"bits": 4, "group_size": 16, "quant_method": "gptq", "checkpoint_format": "gptq"}
        packed = self.path("order.safetensors")
        self.ok("pack", self.checkpoint(matrix.gptq("m"), quantize_config=config), "-o", packed)
        x = [float(v) for v in struct.unpack("<128f", struct.pack("<128f", *self.floats(14, 2, 64)))]
        expected = flat(self.product(packed, "m.weight", x, [0] * 16, 2))
        data = self.at("order.npy", npy((2, 64), x))
        for activations, tolerance in [("float", 1e-5), ("int8", 0.02), ("int8_asymmetric", 0.02)]:
            _, y = self.matmul(packed, data, "--activations", activations)
            for a, b in zip(y, expected, strict=True):
                self.assertLess(abs(a - b), tolerance * max(map(abs, expected)), activations)

    def test_matmul_refused(self):
        model = self.at("two.npz", npz({"a": npy((2, 16), self.floats(6, 2, 16)), "b": npy((3, 16), [1.0] * 48),
                                        "c": npy((3,), [1, 2, 3])}))
        packed, y = self.path("two.safetensors"), self.path("none.npy")
        self.ok("pack", model, "-o", packed)
        x = self.at("sixteen.npy", npy((2, 16), [0.5] * 32))
        groups = self.path("groups.safetensors")
        self.ok("pack", model, "-o", groups, "--group", "8")
        for words, weights_name, data, options in [
                (["holds 2 matrices"], packed, x, []),
                (["no matrix is called 'd'"], packed + ":d", x, []),
                (["--bias d", "no such array"], packed + ":a", x, ["--bias", "d"]),
                (["bias", "3", "2"], packed + ":a", x, ["--bias", "c"]),
                (["--activations odd", "int8_asymmetric"], packed + ":a", x, ["--activations", "odd"]),
                (["--clamp 2", "relu6"], packed + ":a", x, ["--clamp", "2"]),
                (["--kernel odd", "reference"], packed + ":a", x, ["--kernel", "odd"]),
                (["a: ", "group is 8, must be K, 16"], groups + ":a", x, ["--activations", "static"]),
                (["--codes", "static"], packed + ":a", x, ["--codes"]),
                (["[1, 2]", "K = 16"], packed + ":a", self.at("s.npy", npy((1, 2), [1, 2])), []),
                (["s32", "expected floats"], packed + ":a", self.at("i.npy", npy((1, 16), [1] * 16, "<i4", "i")), []),
                (["holds 2 arrays"], packed + ":a", self.at(
                    "both.npz", npz({"x": npy((1, 16), [1.0] * 16), "z": npy((1,), [1.0])})), []),
                (["x", "bf16", "npy", "f32 or f16"], packed + ":a", self.at("bf16.safetensors", safetensors(
                    {"x": ("BF16", (1, 16), b"\0" * 32)})), []),
                (["must end in .npy"], packed + ":a", x, ["-o", self.path("y.npz")])]:
            with self.subTest(options=options, words=words):
                options = options if "-o" in options else ["-o", y, *options]
                self.fails(words, "matmul", weights_name, data, *options)
                self.assertFalse(os.path.exists(y))
        for bad, word in [(math.nan, "nan"), (-math.inf, "inf")]:
            path = self.at("n.npy", npy((2, 2, 16), [0.0] * 33 + [bad] + [0.0] * 30))
            for kind in ["int8", "int8_asymmetric"]:
                self.fails(["n.npy", "value " + word, "row 2, column 1", kind], "matmul", packed + ":a", path, "-o", y,
                           "--activations", kind)

    def test_bad_usage(self):
        usage = self.at("usage.npz", npz({"w": npy((2, 16), self.floats(6, 2, 16)), "b": npy((2,), [1, 2])}))
        output = self.path("usage.safetensors")
        for words, options in [(["--kind", "symmetric"], ["--kind", "odd"]), (["--method", "mse"], ["--method", "odd"]),
                               (["--scales", "bf16"], ["--scales", "s8"]),
                               (["bits is 3", "1, 2, 4 or 8"], ["--bits", "3"]),
                               (["group is 12", "16"], ["--group", "12"]), (["--group -8"], ["--group=-8"]),
                               (["--include x*", "no matrix"], ["--include", "x*"]),
                               (["--exclude b", "no matrix"], ["--exclude", "b"]),
                               (["no matrix to quantise"], ["--exclude", "w"]),
                               (["symmetric"], ["--method", "minmax"]), (["--threads"], ["--threads", "-1"])]:
            with self.subTest(options=options):
                self.fails(words, "pack", usage, "-o", output, *options)
                self.assertFalse(os.path.exists(output))
        self.fails(["-o OUT is missing"], "pack", usage)
        for bad, words, options in [(math.nan, '"w"[1, 1] is nan, must be finite', []),
                                    (math.inf, '"w"[1, 1] is inf, must be finite', []),
                                    (1e30, '"w": row 1, group 0: the scale is above', ["--scales", "f16"])]:
            model = self.at("bad.npz", npz({"w": npy((2, 16), [0.0] * 17 + [bad] + [0.0] * 14)}))
            for where in (["-o", output], ["--dry-run"]):
                self.fails(["bad.npz", words], "pack", model, *where, *options)
                self.assertFalse(os.path.exists(output))
        for shape in ((4, 0), (0, 4)):
            empty = self.at("empty.npz", npz({"w": npy((2, 16), [1.0] * 32), "none": npy(shape, [])}))
            words = ["empty.npz", "none", "has the shape [%d, %d], must have elements" % shape, "--exclude 'none'"]
            self.fails(words, "pack", empty, "-o", output)
            self.assertFalse(os.path.exists(output))
            dry = self.call("pack", empty, "--dry-run", "--bits", "8")
            self.assertEqual((dry.returncode, "refused" in dry.stdout), (2, True))
            only = self.at("only.npz", npz({"none": npy(shape, [])}))
            self.fails(words[1:], "pack", only, "-o", output, "--bits", "8")
            report = self.json("pack", empty, "-o", output, "--exclude", "none")
            self.assertEqual([(e["name"], e["action"], e["shape"]) for e in report["tensors"]],
                             [("none", "keep", list(shape)), ("w", "quantize", [2, 16])])
            os.remove(output)
        self.ok("pack", usage, "-o", output)
        self.fails(["of isobit already"], "pack", output, "-o", self.path("twice.safetensors"))
        self.fails(["no tensor is called 'x'"], "inspect", output, "--tensor", "x", "-o", self.path("x.npy"))
        content = read(output)
        for size in (8, 100, len(content) - 1):
            cut = self.at("cut.safetensors", content[:size])
            self.fails(["cut.safetensors"], "inspect", cut)

    def test_inspect_static_linear(self):
        """A file as docs/formats.md has it, written by hand."""
        text = {"format_version": 1, "static_linears": [
            {"name": "fc", "rows": 2, "columns": 3, "weight_bits": 4, "rounding": "floor",
             "input": {"bits": 16, "signed": True, "kind": "pow2", "shift": 12, "zero_point": -7},
             "output": {"bits": 12, "signed": False, "kind": "real", "scale": "0x1.8p-5", "zero_point": 99},
             "lo": 99, "hi": 2099, "accumulator": {"bits": 32, "bound": "491616"}},
            {"name": "", "rows": 1, "columns": 2, "weight_bits": 8, "rounding": "nearest_even",
             "input": {"bits": 8, "signed": False, "kind": "pow2", "shift": 3, "zero_point": 0},
             "accumulator": {"bits": 32, "bound": "1275"}}]}
        tensors = {  # weights of 4 bits: v + 8, low bits first; 2, -1, 3 and -8, 7, 0
            "fc.weights": ("U8", (2, 2), bytes([0x7a, 0x0b, 0xf0, 0x08])),
            "fc.scales": tensor("F32", (2,), [0.5, 0.25]), "fc.bias": tensor("I32", (2,), [5, -6]),
            "fc.multiplier": tensor("I32", (2,), [1 << 30] * 2), "fc.shift": tensor("I32", (2,), [40, 41]),
            "weights": ("I8", (1, 2), struct.pack("<2b", -2, 3)), "scales": tensor("F32", (1,), [1.0]),
            "bias": tensor("I32", (1,), [0])}
        good = self.at("static.safetensors", safetensors(tensors, {"isobit": json.dumps(text)}))
        report = self.json("inspect", good)
        self.assertEqual(report["kind"], "static_linear")
        fc, last = report["layers"]
        self.assertEqual((fc["name"], fc["rows"], fc["columns"], fc["weight_bits"], fc["lo"], fc["hi"]),
                         ("fc", 2, 3, 4, 99, 2099))
        # The largest |q - z| of x is 32767 + 7.
        self.assertEqual((fc["accumulator_bits"], fc["accumulator_bound"]), (32, (8 + 7) * 32774 + 6))
        self.assertEqual((fc["input_grid"]["bits"], fc["output_grid"]["zero_point"]), (16, 99))
        self.assertEqual((last["output_grid"], last["accumulator_bound"]), (None, 5 * 255))
        shown = self.ok("inspect", good)
        for words in ('"fc": 3 -> 2, weights 4 bits, floor', "32 bits, at most 491616", "clamped to 99..2099"):
            self.assertIn(words, shown)
        text["static_linears"][0]["accumulator"]["bound"] = "491615"
        wrong = self.at("wrong.safetensors", safetensors(tensors, {"isobit": json.dumps(text)}))
        self.fails(["wrong.safetensors", "'fc'", "491615", "491616"], "inspect", wrong)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    cli_test.ISOBIT = os.path.abspath(sys.argv.pop(1))
    unittest.main()
