# SPDX-License-Identifier: Apache-2.0
"""isobit and g2p on a CUDA device: every verb with --device cuda gives what it gives on the CPU.

usage: cuda_cli_test.py FOLDER [unittest arguments]

FOLDER holds both programs. Without a device the tests are skipped, or fail where ISOBIT_REQUIRE names cuda.
"""
import json
import os
import re
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(HERE, "..", "examples", "g2p")]

import cli_test  # noqa: E402
import g2p_test  # noqa: E402
from cli_test import HIDDEN, floats, npy, npz, parse_npy, read  # noqa: E402

G2P = ""
VERIFIED_OUTPUTS = 20_000_000  # fewer have no layer of over 1024 units


class CudaCliTest(cli_test.ToolTest):
    @classmethod
    def setUpClass(cls):
        found = cls.call("supported", "--device", "cuda", "--json")
        if found.returncode != 0:
            if "cuda" in os.environ.get("ISOBIT_REQUIRE", "").split(","):
                raise RuntimeError("ISOBIT_REQUIRE names cuda: " + found.stderr)
            print("no CUDA device: " + found.stderr)  # CTest looks for these words
            raise unittest.SkipTest("no CUDA device")
        super().setUpClass()
        cls.device = json.loads(found.stdout)
        cls.kernels = [kernel["name"] for kernel in cls.device["kernels"] if kernel["operation"] == "gru"]

    def same(self, *arguments, on_device=(), suffix=".npy", warnings=()):
        """A verb that writes -o gives the same file on the device; its report there."""
        out = self.path("y" + suffix)
        self.ok(*arguments, "-o", out, warnings=warnings)
        wanted = read(out)
        os.remove(out)
        report = self.json(*arguments, "-o", out, "--device", "cuda", *on_device, warnings=warnings)
        self.assertEqual(read(out), wanted, arguments)
        self.assertEqual(report["device"], "cuda")
        return report

    def packed(self, name, shape, *options):
        matrix = self.at(name + ".npz", npz({"w": floats(cli_test.random.Random(6), shape)}))
        path = self.path(name + ".safetensors")
        self.ok("pack", matrix, "-o", path, *options)
        return path

    def test_supported(self):
        self.assertRegex(self.device["compute_capability"], r"^\d+\.\d+$")
        self.assertIn("generic", self.kernels)
        for kernel in self.device["kernels"]:
            self.assertTrue(kernel["what"])
        text = self.ok("supported", "--device", "cuda:0")
        for word in self.kernels + [self.device["name"], "fp16_table", "fp16_softmax", "linear_int8", "linear_float",
                                                             "linear_static", "conv_static", "tile", "depthwise", "product", "direct"]:
            self.assertIn(word, text)
        self.fails(["cuda:4096", "CUDA device"], "supported", "--device", "cuda:4096")

    def test_another_device(self):
        if self.call("supported", "--device", "cuda:1").returncode != 0:
            self.skipTest("one CUDA device")
        out = self.path("y1.npy")
        self.ok("run", self.fixed, self.batch, "-o", out)
        wanted = read(out)
        self.ok("run", self.fixed, self.batch, "-o", out, "--device", "cuda:1")
        self.assertEqual(read(out), wanted)

    def test_verify(self):
        report = self.json("verify", "--device", "cuda", "--operation", "gru", "--outputs", str(VERIFIED_OUTPUTS),
                           env={"ISOBIT_REQUIRE": "cuda,avx512vnni"})
        print(json.dumps(report), file=sys.stderr)
        self.assertEqual(report["different"], 0)
        compared = {kernel["name"]: kernel["outputs_compared"] for kernel in report["kernels"]}
        self.assertEqual(set(compared), {"gru_cuda_" + kernel for kernel in self.kernels})
        self.assertGreaterEqual(compared["gru_cuda_generic"], VERIFIED_OUTPUTS)
        self.assertEqual(sum(report["expected_by"].values()), report["outputs_compared"])
        self.assertGreater(report["expected_by"]["reference"], 0)
        if self.device["compute_capability"].startswith("9."):
            for name, outputs in compared.items():
                self.assertGreater(outputs, 0, name)

    def test_verify_tables(self):
        report = self.json("verify", "--device", "cuda", "--operation", "fp16_table", "--outputs", "2000000")
        self.assertEqual(report["different"], 0)
        compared = {kernel["name"]: kernel["outputs_compared"] for kernel in report["kernels"]}
        self.assertGreaterEqual(compared["fp16_table_cuda_direct"], 2000000)
        self.assertGreater(compared["fp16_softmax_cuda"], 0)

    def test_verify_linear(self):
        report = self.json("verify", "--device", "cuda", "--operation", "linear", "--outputs", "20000000",
                           env={"ISOBIT_REQUIRE": "cuda"})
        print(json.dumps(report), file=sys.stderr)
        self.assertEqual(report["different"], 0, report)
        compared = {kernel["name"]: kernel["outputs_compared"] for kernel in report["kernels"]}
        wanted = {kernel["operation"] + "_cuda_" + kernel["name"] for kernel in self.device["kernels"]
                  if kernel["operation"].startswith("linear_")}
        self.assertEqual(set(compared), wanted)
        for operation in ["linear_int8", "linear_float", "linear_static"]:  # its kernels share the outputs
            of_kernels = [outputs for name, outputs in compared.items() if name.startswith(operation)]
            self.assertGreaterEqual(sum(of_kernels), 20000000, operation)
            self.assertGreaterEqual(min(of_kernels), 20000, operation)
        self.assertEqual(sum(report["expected_by"].values()), report["outputs_compared"])
        self.assertGreater(report["expected_by"]["reference"], 0)

    def test_verify_convolutions(self):
        report = self.json("verify", "--device", "cuda", "--operation", "conv", "--outputs", "2000000",
                           env={"ISOBIT_REQUIRE": "cuda"})
        print(json.dumps(report), file=sys.stderr)
        self.assertEqual(report["different"], 0, report)
        compared = {kernel["name"]: kernel["outputs_compared"] for kernel in report["kernels"]}
        wanted = {kernel["operation"] + "_cuda_" + kernel["name"] for kernel in self.device["kernels"]
                  if kernel["operation"].startswith("conv_")}
        self.assertEqual(set(compared), wanted)
        others = ["depthwise", "product", "direct"]
        tiles = ["tile_128x128", "tile_128x64", "tile_64x64", "tile_64x32"]
        self.assertEqual(wanted, {"conv_int8_per_image_cuda_sums"} | {"conv_static_cuda_" + name for name in tiles} | {
            "conv_%s_cuda_%s" % (kind, name) for kind in ("static", "int8", "float") for name in others} | {
            "conv_%s_cuda_tile" % kind for kind in ("int8", "float")})
        self.assertGreaterEqual(min(compared.values()), 2000000)
        self.assertEqual(sum(report["expected_by"].values()), sum(compared.values()))
        self.assertGreater(report["expected_by"]["reference"], 0)

    def test_verify_saved_model(self):
        for model in [self.fixed, self.fixed_deep]:
            report = self.json("verify", model, "--device", "cuda", "--outputs", "5000")
            self.assertEqual(report["different"], 0)
            compared = {kernel["name"]: kernel["outputs_compared"] for kernel in report["kernels"]}
            self.assertGreaterEqual(compared["cuda_generic"], 5000)

    def test_fingerprint(self):
        text = self.ok("fingerprint")
        for extra in [[]] + [["--kernel", kernel] for kernel in self.kernels]:
            self.assertEqual(self.ok("fingerprint", "--device", "cuda", *extra), text, extra)
        self.fails(["avx2", "generic"], "fingerprint", "--device", "cuda", "--kernel", "avx2")

    def test_run(self):
        for model in [self.fixed, self.fixed_deep]:
            self.assertIn(self.same("run", model, self.batch)["kernel"], self.kernels)
            for kernel in self.kernels:
                result = self.call("run", model, self.batch, "-o", self.path("k.npy"), "--device", "cuda", "--kernel",
                                   kernel)
                if result.returncode == 0:
                    self.same("run", model, self.batch, on_device=["--kernel", kernel])
                else:  # this device or this model is not for it
                    self.assertIn("kernel '" + kernel + "'", result.stderr)
        self.same("run", self.fixed, os.path.join(self.data, "part0.npz"), suffix=".npz")
        for chunk in ["1", "4", "100"]:
            self.same("run", self.fixed, self.batch, on_device=["--chunk", chunk])
        empty = self.at("empty.npy", npy((0, 4, cli_test.INPUTS), []))
        self.same("run", self.fixed, empty)

    def test_run_codes(self):
        codes, out = self.path("codes.npy"), self.path("x.npy")
        values = [code % 256 - 128 for code in range(11 * 4 * cli_test.INPUTS)]
        self.at("codes.npy", npy((11, 4, cli_test.INPUTS), values, "|i1", "b"))
        self.same("run", self.fixed, codes, "--integer")
        self.same("run", self.fixed_deep, codes, "--integer")
        self.fails(["single.npy", "f32", "s8"], "run", self.fixed, self.single, "-o", out, "--integer", "--device",
                   "cuda")

    def test_run_state(self):
        states = {}
        for device in ["cpu", "cuda"]:
            for model in [self.fixed, self.fixed_deep]:
                state = self.path("state_%s.npz" % device)
                warnings = ["is bidirectional"] if model == self.fixed_deep else []
                self.ok("run", model, self.batch, "-o", self.path("y.npy"), "--save-state", state, "--device", device,
                        warnings=warnings)
                name = os.path.basename(model)
                # The archives hold times; the codes do not.
                arrays = self.json("inspect", model)["grus"][0]["layers"]
                states.setdefault(name, []).append([self.state_array(state, i) for i in range(len(arrays))])
                self.same("run", model, self.batch, "--state", state, warnings=warnings)
        for name, (cpu, cuda) in states.items():
            self.assertEqual(cuda, cpu, name)
        zeros = self.at("h0.npy", npy((1, 4, HIDDEN), [0.25] * (4 * HIDDEN)))
        self.same("run", self.fixed, self.batch, "--state", zeros)

    @staticmethod
    def state_array(path, index):
        with cli_test.zipfile.ZipFile(path) as archive:
            return parse_npy(archive.read("h%d.npy" % index))

    def test_run_refuses(self):
        out = self.path("refused.npy")
        run = ["run", self.fixed, self.single, "-o", out, "--device", "cuda"]
        self.fails(["--threads 2", "--device cuda"], *run, "--threads", "2")
        self.fails(["avx2", "generic"], *run, "--kernel", "avx2")
        bad = self.at("nan.npy", npy((2, cli_test.INPUTS), [0.5, 0.5, 0.5, 0.5, float("nan"), 0.5]))
        self.fails(["nan.npy", "nan at [1, 1]"], "run", self.fixed, bad, "-o", out, "--device", "cuda")
        self.fails(["--chunk", "bidirectional"], "run", self.fixed_deep, self.batch, "-o", out, "--chunk", "2",
                   "--device", "cuda")
        self.assertFalse(os.path.exists(out))

    def test_compare(self):
        for model, fixed in [(self.model, self.fixed), (self.deep, self.fixed_deep)]:
            arguments = ["compare", model, fixed, "--data", self.data, self.batch]
            seen = ("x", "W", "bw", "R", "br", "h")  # weights do not depend on the device
            wanted = [row for row in self.json(*arguments)["tensors"] if row["tensor"] in seen]
            report = self.json(*arguments, "--device", "cuda")
            self.assertEqual(report["tensors"], wanted)
            self.assertEqual(report["device"], "cuda")

    def test_table_run(self):
        rng = cli_test.random.Random(4)
        x = self.at("table_x.npy", floats(rng, (50, 37), 8.0))
        for table in ["silu", "softmax"]:
            self.same("table", "run", table, x)
            self.same("table", "run", table, x, "--dtype", "f16")
        self.fails(["--kernel"], "table", "run", "silu", x, "-o", self.path("t.npy"), "--device", "cuda", "--kernel",
                   "reference")

    def test_matmul(self):
        rng = cli_test.random.Random(4)
        for bits, kind, group in [("1", "symmetric", "64"), ("4", "zero_point", "64"), ("2", "offset", "64"),
                                  ("8", "symmetric", "0")]:
            packed = self.packed("matmul" + bits, (70, 200), "--bits", bits, "--kind", kind, "--group", group)
            for rows, kernel in [((3, 5, 200), "few"), ((200,), "few"), ((1, 200), "few"), ((2, 40, 200), "many")]:
                x = self.at("matmul_x.npy", floats(rng, rows))
                for activations in ["int8", "int8_asymmetric"] + ["static"] * (bits == "8"):
                    report = self.same("matmul", packed, x, "--activations", activations, "--clamp=-1:2")
                    hopper = self.device["compute_capability"].startswith("9.")
                    self.assertEqual(report["kernel"], kernel if hopper else "few")
            x, y = self.at("matmul_x.npy", floats(rng, (33, 200))), self.path("y.npy")
            results = []
            for device in ["cpu", "cuda"]:
                self.ok("matmul", packed, x, "-o", y, "--device", device)
                body = parse_npy(read(y))[2]
                results.append(cli_test.struct.unpack("<%df" % (len(body) // 4), body))
            for i in range(0, len(results[0]), 70):  # numerics.md, section 10: 1e-6 * sqrt(K), of either
                expected, got = results[0][i:i + 70], results[1][i:i + 70]
                error = sum((a - b) ** 2 for a, b in zip(expected, got))
                self.assertLess(error, (2e-6 ** 2) * 200 * sum(a ** 2 for a in expected))
        matmul = ["matmul", packed, x, "-o", self.path("refused.npy"), "--device", "cuda"]
        self.fails(["--threads 2"], *matmul, "--threads", "2")
        self.fails(["--kernel avx2"], *matmul, "--kernel", "avx2")
        codes, wanted = [*matmul[1:3], "--activations", "static", "--codes"], self.path("codes.npy")
        self.ok("matmul", *codes, "-o", wanted)
        self.ok("matmul", *codes, "-o", y, "--device", "cuda")
        self.assertEqual(read(y), read(wanted))
        infinite = self.at("matmul_inf.npy", npy((2, 200), [0.5] * 399 + [float("inf")]))
        self.fails(["matmul_inf.npy", "row 1, column 199"], "matmul", packed, infinite, "-o", y, "--activations", "int8",
                   "--device", "cuda")

    def test_bench_linear(self):
        cases = self.json("bench", "linear", "--device", "cuda", "--shape", "512x300,4096x1024", "--bits", "2,8",
                          "--activations", "float,int8,int8_asymmetric", "--m", "1,40", "--min-time", "0",
                          "--footprint", "8")["cases"]
        self.assertEqual(len(cases), 2 * 2 * 3 * 2)
        for case in cases:
            self.assertGreater(case["us"], 0)
            self.assertTrue(case["chosen"])
        self.assertGreater(cases[0]["copies"], 1)
        cases = self.json("bench", "linear", "--device", "cuda", "--shape", "512x300", "--bits", "8", "--m", "1,40",
                          "--activations", "static,accumulators", "--min-time", "0", "--footprint", "8")["cases"]
        self.assertEqual([case["y_dtype"] for case in cases], ["u8", "u8", "s32", "s32"])
        self.fails(["--kernel avx2"], "bench", "linear", "--device", "cuda", "--kernel", "avx2")

    def test_bench(self):
        arguments = ["bench", "gru", "--device", "cuda", "--hidden", "16,33", "--batch", "1,5", "--steps", "8",
                     "--mode", "sequence,streaming,two-states", "--min-time", "0", "--json"]
        cases = json.loads(self.ok(*arguments))["cases"]
        self.assertEqual([case["chosen"] for case in cases], [True] * 12)
        result = self.call(*arguments, "--all-kernels")
        self.assertIn(result.returncode, [0, 1], result.stderr)
        cases = json.loads(result.stdout)["cases"]
        self.assertEqual(sum(case["chosen"] for case in cases), 12)
        slow = [case for case in cases if case["chosen"] and case["of_fastest"] > 1.05]
        self.assertEqual(result.returncode == 1, bool(slow), result.stderr)
        for case in cases:
            self.assertGreater(case["us_per_step"], 0)
            self.assertGreaterEqual(case["of_fastest"], 1)
        kernels = self.kernels[-2:]  # step, generic: of every model here
        cases = json.loads(self.ok(*arguments, "--kernel", ",".join(kernels)))["cases"]
        self.assertEqual({case["kernel"] for case in cases}, set(kernels))
        self.assertEqual(len(cases), 24)
        self.fails(["bench table"], "bench", "table", "--device", "cuda")

    def test_g2p(self):
        spellings = ["".join(letters) for letters in g2p_test.itertools.product("abcdefghij", repeat=3)]
        words = spellings[:g2p_test.CALIBRATION_WORDS + g2p_test.WORDS]
        dictionary = self.at("words.dict", "\n".join("%s %s" % (word, g2p_test.SAID) for word in words).encode())
        rng = cli_test.random.Random(9)  # an output layer that does not say the same whatever the state
        weights = npy((g2p_test.PHONEMES, g2p_test.UNITS),
                      [rng.uniform(-1, 1) for _ in range(g2p_test.PHONEMES * g2p_test.UNITS)])
        checkpoint = self.at("checkpoint.npz", g2p_test.checkpoint(fc_w=weights))
        texts = []
        for device in ["cpu", "cuda", "cuda:0"]:
            report = self.path("g2p.json")
            result = subprocess.run([G2P, "--checkpoint", checkpoint, "--dictionary", dictionary, "--words",
                                     str(g2p_test.WORDS), "--json", report, "--device", device, "hello", "abc"],
                                    capture_output=True, text=True, timeout=300, check=False)
            self.assertEqual(result.returncode, 0, result.stderr)
            times = re.compile(r" +\d+\.\d\n")  # the last column
            rows = json.loads(read(report))["configurations"]
            texts.append((times.sub("\n", result.stdout), [{**row, "us_per_word": 0} for row in rows]))
        self.assertEqual(texts[1], texts[0])
        self.assertEqual(texts[2], texts[0])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    FOLDER = os.path.abspath(sys.argv.pop(1))
    cli_test.ISOBIT = os.path.join(FOLDER, "isobit")
    G2P = os.path.join(FOLDER, "g2p")
    unittest.main()
