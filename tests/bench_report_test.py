# SPDX-License-Identifier: Apache-2.0
"""bench/linear_report.py, linear_cuda_report.py, conv_cuda_report.py and render.py on made-up measurements, and what
scripts/bench.sh --built refuses.

usage: bench_report_test.py SOURCE_FOLDER
"""
import contextlib
import copy
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.abspath(sys.argv.pop(1))
sys.path.insert(0, os.path.join(SOURCE, "bench"))
sys.dont_write_bytecode = True
import conv_cuda  # noqa: E402
import conv_cuda_report  # noqa: E402
import linear_cuda_report  # noqa: E402
import linear_report  # noqa: E402
import render  # noqa: E402
import report  # noqa: E402

GIGA = 1e9


def case(column, K=4096, N=14336, M=1, **values):
    """100 MB in 10 ms at 10 GB/s; M rows in as long at a peak of as many operations."""
    return {"K": K, "N": N, "M": M, "column": column, "activations": "int8", "kernel": "some", "us": 10e3,
            "weight_bytes": 100e6, "read_bytes_per_second": 10 * GIGA, "peak": "avx512vnni",
            "peak_operations_per_second": 2 * K * N * M / 10e-3, "rival_us": 20e3, "ratio": 2.0, **values}


def document(*cases, footprint_mib=800):
    return {"machine": {"cpu": "some", "cores": 1, "flags": []}, "commit": "0", "versions": {"numpy": "2"},
            "cache_bytes": 100 << 20, "footprint_mib": footprint_mib, "rounds": 5, "min_time": 0.1,
            "models": {"model": {"4096x14336": 2}}, "parts": [{"K": 4096, "N": 14336, "bits": "8", "seconds": 1.0}],
            "cases": list(cases)}


def row(doc, column, what):
    (found,) = [r for r in linear_report.targets(doc) if r["column"] == column and what in r["what"]]
    return found


class Targets(unittest.TestCase):
    def test_reading(self):
        slow = case("int8 4", us=10e3 / 0.89)
        doc = document(case("int8 8", us=10e3 / 0.91), slow, case("int8 4", M=8, us=1e9))
        met, missed = (row(doc, column, "read bandwidth") for column in ("int8 8", "int8 4"))
        self.assertEqual((met["verdict"], met["met"], met["cases"]), ("met", 1, 1))
        self.assertAlmostEqual(met["least"], 0.91)
        self.assertEqual((missed["verdict"], missed["met"], missed["cases"]), ("missed", 0, 1))
        self.assertIs(missed["at"], slow)
        self.assertEqual(row(doc, "int8 2", "read bandwidth")["verdict"], "not measured")
        # Another shape is no decoding of that layer.
        self.assertEqual(row(document(case("int8 8", K=64)), "int8 8", "read bandwidth")["verdict"], "not measured")

    def test_small_footprint(self):
        self.assertEqual(row(document(case("int8 8"), footprint_mib=799), "int8 8", "read bandwidth")["verdict"],
                         "not judged")

    def test_vector_peak(self):
        tiles = case("codes", M=256, peak="amx", vector_peak="avx512vnni")
        tiles["vector_peak_operations_per_second"] = tiles["peak_operations_per_second"] / 8
        self.assertAlmostEqual(row(document(tiles), "codes", "VNNI")["least"], 8)
        self.assertAlmostEqual(linear_report.share_of_limit(tiles), 1)
        vectors = case("codes", M=256, us=20e3)
        self.assertAlmostEqual(row(document(tiles, vectors), "codes", "VNNI")["least"], 0.5)

    def test_one_bit(self):
        one = case("int8 1", weight_bytes=1e6)
        one["peak_operations_per_second"] = 128 * 20 * one["K"] * one["N"] / 512 / 5e-3
        self.assertAlmostEqual(row(document(one), "int8 1", "instructions")["least"], 0.5)
        self.assertAlmostEqual(row(document({**one, "weight_bytes": 80e6}), "int8 1", "instructions")["least"], 0.8)
        self.assertEqual(row(document({**one, "peak": "avxvnni"}), "int8 1", "instructions")["verdict"], "not known")

    def test_tables(self):
        alone = case("int8 1")
        for key in ("rival_us", "ratio"):
            del alone[key]
        text = self.text(document(case("int8 8"), alone))
        for words in ["8.00 times the last-level cache", "| int8 8 | 10.0 (10.0 to 10.0) | avx512vnni ", "| met |",
                      "model: 2 of 4096x14336", "commit 0"]:
            self.assertIn(words, text)
        rivals = case("int8 8")
        for key in ("us", "ratio"):
            del rivals[key]
        self.assertNotIn("Targets", self.text({**document(rivals), "models": None, "cache_bytes": None}))

    def text(self, doc):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            linear_report.tables(doc)
        return out.getvalue()

    def test_parts(self):
        one, two = document(case("int8 8")), document(case("int8 4"), case("int8 8", M=8))
        whole = report.merged([one, two], linear_report.SAME)
        self.assertEqual(whole["cases"], one["cases"] + two["cases"])
        self.assertEqual(len(whole["parts"]), 2)
        with self.assertRaisesRegex(report.Different, "int8 8 is there twice"):
            report.merged([one, copy.deepcopy(one)], linear_report.SAME)
        for key in linear_report.SAME:
            with self.assertRaisesRegex(report.Different, key + " differs"):
                report.merged([one, {**two, key: "another"}], linear_report.SAME)


def layer(us, activations="float16", bits=4, M=1, K=4096, N=14336, kind="symmetric", group=128, floor_us=10.0,
          cache_us=0.0):
    """Of isobit, on a device. Its operations take no time but for many rows, its quantiser takes 1 µs."""
    return {"K": K, "N": N, "M": M, "activations": activations, "bits": bits, "kind": kind, "group": group, "us": us,
            "column": linear_cuda_report.column(activations, bits, kind, group), "weight_bytes": 1, "copies": 2,
            "floor_us": floor_us, "operations_us": 0.01 * M, "cache_us": cache_us, "product_us": us - 1.0}


def rival(name, us=None, M=1, K=4096, N=14336, **values):
    return {"K": K, "N": N, "M": M, "column": name, **({} if us is None else {"us": us}), **values}


def device_document(*cases):
    return {"device": "card", "machine": MACHINE, "commit": "abc", "versions": {"cublaslt": "13", "torch": None},
            "problems": [], "parts": [{"K": 4096, "N": 14336, "M": [1], "seconds": 1.0}], "cases": list(cases)}


class DeviceTargets(unittest.TestCase):
    def verdicts(self, *cases):
        """Of the first case, beside the others: what, its figure, verdict."""
        row = linear_cuda_report.rows(device_document(*cases))[0]
        return [(target.aim(), target.figure and round(target.figure, 3), target.verdict) for target in row.targets]

    def test_few_rows(self):
        self.assertEqual(self.verdicts(layer(11.4), rival(linear_cuda_report.TINYGEMM, 15.0), layer(20.0, bits=8)),
                         [("time / floor ≤ 1.15", 1.14, "met"), ("tinygemm / time ≥ 1.35", 1.316, "missed"),
                          ("time / that of 8 bits ≤ 1", 0.57, "met")])
        self.assertEqual(self.verdicts(layer(11.4)),
                         [("time / floor ≤ 1.15", 1.14, "met"), ("tinygemm / time ≥ 1.35", None, "not known"),
                          ("time / that of 8 bits ≤ 1", None, "not known")])
        small = dict(K=4096, N=4096, bits=8)
        self.assertEqual(self.verdicts(layer(14.0, **small)), [("time / floor ≤ 1.35", 1.4, "missed")])
        self.assertEqual(self.verdicts(layer(14.0, M=16, **small)), [("time / floor ≤ 1.5", 1.4, "met")])
        for activations, most in (("float16", 1.7), ("int8", 1.5)):
            self.assertIn(("time / floor ≤ %g" % most, 1.6, "met" if most > 1.6 else "missed"),
                          self.verdicts(layer(16.0, activations, bits=1)))

    def test_kinds(self):
        zero = dict(kind="zero_point")
        self.assertEqual(self.verdicts(layer(12.0, **zero), layer(10.0)), [("time / symmetric ≤ 1.1", 1.2, "missed")])
        self.assertEqual(self.verdicts(layer(12.0, M=64, **zero), layer(10.0, M=64)), [])
        self.assertEqual(self.verdicts(layer(13.0, kind="offset", group=32)), [("time / floor ≤ 1.35", 1.3, "met")])

    def test_many_rows(self):
        half = linear_cuda_report.HALF
        self.assertEqual(self.verdicts(layer(14.0, bits=8, M=64)), [("(time - 1.5 µs) / limit ≤ 1.25", 1.25, "met")])
        self.assertEqual(self.verdicts(layer(31.5, bits=8, M=64, cache_us=20.0)),
                         [("(time - 1.5 µs) / limit ≤ 1.25", 1.5, "missed")])
        self.assertEqual(self.verdicts(layer(100.0, bits=8, M=256), rival(half, 94.0, M=256)),
                         [(half + " / time ≥ 0.95", 0.94, "missed")])
        self.assertEqual(self.verdicts(layer(401.0, "int8", 8, M=4096), rival(half, 601.5, M=4096)),
                         [(half + " / time ≥ 1.3", 1.5, "met"), ("TOP/s of the product ≥ 1050", 1202.591, "met")])
        self.assertEqual(self.verdicts(layer(501.0, "int8", 8, M=4096))[1],
                         ("TOP/s of the product ≥ 1050", 962.073, "missed"))
        self.assertEqual(self.verdicts(layer(10.0, "static", 8, M=64), rival(linear_cuda_report.CODES, 9.0, M=64)),
                         [("cuBLASLt int8 to int8 / time ≥ 0.97", 0.9, "missed")])

    def test_rivals(self):
        codes = rival(linear_cuda_report.CODES, 5.0)
        found = [layer(10.0), layer(10.0, "int8"), layer(10.0, bits=8), rival(linear_cuda_report.HALF, 30.0),
                 rival(linear_cuda_report.TINYGEMM, 20.0), codes, rival(linear_cuda_report.INT_MM, refused="too small")]
        best = [row.best for row in linear_cuda_report.rows(device_document(*found))]
        self.assertEqual(best, [linear_cuda_report.TINYGEMM, linear_cuda_report.CODES, linear_cuda_report.HALF])
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            linear_cuda_report.tables({**device_document(*found), "problems": ["floor: failed"]})
        for words in ("| 4096 x 14336 | 1 | 30 | 5 | – | – | 20 |", "torch._int_mm: too small (every shape: M = 1)",
                      "| time / floor ≤ 1.15 | 3 of 3 | 0 | 1.00 |", "Not finished: floor: failed"):
            self.assertIn(words, out.getvalue())

    def test_parts(self):
        one, two = device_document(layer(10.0)), {**device_document(layer(10.0, M=8)), "problems": ["a"]}
        whole = report.merged([one, two], linear_cuda_report.SAME)
        self.assertEqual((len(whole["cases"]), whole["problems"]), (2, ["a"]))
        with self.assertRaisesRegex(report.Different, "device differs"):
            report.merged([one, {**two, "device": "other"}], linear_cuda_report.SAME)


class DeviceRun(unittest.TestCase):
    """bench/linear_cuda.py with programs that time nothing."""

    ISOBIT = """static = options["--activations"] == "static"
for m in options["--m"].split(","):
    say(K=4096, N=64, M=int(m), activations="static" if static else "int8", bits=8 if static else 4, kind="symmetric",
        group=4096 if static else 128, us=9.0, weight_bytes=160)"""
    FLOOR = """say(bytes=160, us=2.0, cache_bytes_per_us=100.0, peak_operations_per_second={"float16": 1e12, "int8": 2e12})"""
    CUBLASLT = """say(cublaslt="13", types="float16", M=8, N=64, K=4096, us=18.0, copies=2)
say(cublaslt="13", types="int8", M=8, N=64, K=4096, refused="no algorithm")"""

    def program(self, folder, name, text):
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!%s\nimport json, sys\noptions = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
                       "def say(**line):\n    print(json.dumps({'device': 'card', **line}))\n%s\n" %
                       (sys.executable, text))
        os.chmod(path, 0o755)
        return path

    def run_with(self, isobit, cublaslt):
        """Exit status and document."""
        with tempfile.TemporaryDirectory() as folder:
            result = os.path.join(folder, "linear.json")
            done = subprocess.run(
                [sys.executable, os.path.join(SOURCE, "bench", "linear_cuda.py"), self.program(folder, "a", isobit),
                 "--floor", self.program(folder, "b", self.FLOOR), "--cublaslt", self.program(folder, "c", cublaslt),
                 "--shape", "4096x64", "--m", "8", "--json", result], capture_output=True, text=True, check=False)
            with open(result, encoding="utf-8") as file:
                return done.returncode, json.load(file)

    def test_run(self):
        status, doc = self.run_with(self.ISOBIT, self.CUBLASLT)
        self.assertEqual((status, doc["device"], doc["problems"], doc["versions"]["cublaslt"]), (0, "card", [], "13"))
        row, static = linear_cuda_report.rows(doc)
        self.assertEqual((row.case["column"], row.case["floor_us"], row.best), ("int8 4", 2.0, "cuBLASLt float16"))
        self.assertEqual(static.case["column"], "static 8")
        self.assertAlmostEqual(row.case["operations_us"], 2 * 4096 * 64 * 8 / 2e12 * 1e6)
        self.assertAlmostEqual(row.case["cache_us"], (160 + 4096 * 8) / 100)
        refused = {case["column"]: case["refused"] for case in doc["cases"] if "refused" in case}
        self.assertEqual(refused["cuBLASLt int8 to int8"], "no algorithm")
        self.assertLessEqual({"torch._int_mm", "tinygemm"}, {case["column"] for case in doc["cases"]})

    def test_failures(self):
        status, doc = self.run_with(self.ISOBIT, "sys.exit('no library')")
        self.assertEqual((status, doc["problems"]), (0, []))
        self.assertIn("cuBLASLt float16: exit status 1: no library (every shape: M = 8)",
                      linear_cuda_report.refusals(doc))
        status, doc = self.run_with(self.ISOBIT + "\nsys.exit('wrong')", self.CUBLASLT + "\nsys.exit('wrong, too')")
        self.assertEqual((status, doc["problems"]),
                         (1, ["isobit, 4096 x 64: exit status 1: wrong"] * 2 + [
                             "cuBLASLt, 4096 x 64: exit status 1: wrong, too"]))


MACHINE = {"cpu": "some", "cores": 1, "flags": []}


class Render(unittest.TestCase):
    """bench/render.py on a folder that has one document with one table of bench/results."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.results = os.path.join(self.folder.name, "bench", "results")
        self.write([self.timed("silu", "f16", 250.0), self.timed("gelu", "f16", 250.0),
                    self.timed("tanh", "f16", 250.0), self.timed("silu", "f32", 500.0)],
                   {"silu f16": 300.0, "gelu f16": 300.0, "tanh f16": 300.0, "silu f32": 450.0})

    @staticmethod
    def timed(function, dtype, us):
        return {"name": function + " f32", "x": dtype, "y": dtype, "us": us, "copy_us": 200.0, "elements": 8}

    def write(self, cases, torch, name="table_cuda.json", commit="abc"):
        folder = os.path.join(self.results, render.GPU)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump({"device": "card", "machine": MACHINE, "commit": commit, "versions": {"torch": "2"},
                       "cases": cases, "torch": torch}, file)

    def test_table(self):
        text = render.table_gpu(self.results)
        self.assertIn("| silu | f16 | 250 | 300 (PyTorch) | 200 | 1.20 |", text)
        self.assertIn("| silu | f32 | 500 | 450 (PyTorch) | 200 | 0.90 |", text)
        self.assertIn("h100: card, commit abc, torch 2, 8 elements.", text)

    def test_linear_gpu(self):
        cases = [layer(12.0, x, bits, m) for m in (1, 16, 64, 256, 4096) for x in ("float16", "int8")
                 for bits in (8, 4, 2, 1)]
        small = layer(3.0, "int8", 4, 8, 576, 192, "offset", 32, floor_us=1.5)
        rivals = [rival(linear_cuda_report.HALF, 36.0), rival(linear_cuda_report.INT_MM, refused="too small")]
        path = os.path.join(self.results, render.GPU, "linear.json")

        def write(**values):
            with open(path, "w", encoding="utf-8") as file:
                json.dump({**device_document(*cases, small, *rivals), **values}, file)
        write()
        text = render.linear_gpu(self.results)
        self.assertIn("| 1 | float16 | 4 | 12 | 36 (cuBLASLt float16) | 10 | 3.00 | 1.20 | time / floor ≤ 1.15: missed |",
                      text)
        self.assertIn("| 4096 | int8 | 8 | 12 | – | 41 | – | 0.29 | cuBLASLt float16 / time ≥ 1.3: not known |", text)
        self.assertLessEqual(len(text.splitlines()) - 4, render.MOST_ROWS)
        self.assertIn("h100: card, commit abc, cublaslt 13.", text)
        self.assertIn("| float16 4 | 12 (1.20, 3.00) | 12 (1.20, –) |",
                      render.SECTIONS["linear-gpu-4096x14336"](self.results))
        self.assertIn("| 576 x 192 | 3 (2.00, –) |", render.linear_gpu_models(self.results))
        text = render.linear_gpu_rivals(self.results)
        self.assertIn("| 4096 x 14336 | 1 | 36 | – | – | – | – |", text)
        self.assertIn("torch._int_mm: too small (4096 x 14336: M = 1)", text)
        self.assertNotIn("576 x 192", text)
        self.assertIn("| time / floor ≤ 1.15 | 0 of 8 |", render.linear_gpu_targets(self.results))
        self.assertEqual({case.key for case in render.linear_gpu_cases(self.results)},
                         {(1, "%s %d" % (x, bits), "4096x14336") for x in ("float16", "int8") for bits in (8, 4, 2, 1)})
        for values, words in (({"cases": [small]}, "not in the results"), ({"problems": ["b"]}, "not finished: b")):
            write(**values)
            with self.assertRaisesRegex(render.Unusable, words):
                render.linear_gpu(self.results)
        os.remove(path)
        with self.assertRaisesRegex(render.Unusable, "linear.json: no such file"):
            render.linear_gpu(self.results)

    def test_document(self):
        old = "before\n<!-- bench:table-gpu -->\nold\n<!-- /bench -->\nafter\n"
        new = render.rendered(old, self.results, "x.md")
        self.assertEqual(new, old.replace("old\n", render.table_gpu(self.results)))
        self.assertEqual(render.rendered(new, self.results, "x.md"), new)
        for text, words in (("<!-- bench:other -->\n<!-- /bench -->\n", "no such table"),
                            ("<!-- bench:table-gpu -->\n", "without its <!-- /bench -->")):
            with self.assertRaisesRegex(render.Unusable, words):
                render.rendered(text, self.results, "x.md")

    def test_results(self):
        case = render.Case(("a",), 2.0, {"one": 3.0, "other": 1.0})
        self.assertEqual((case.ratio, render.table(("name",), [case], "source").splitlines()[2]),
                         (0.5, "| a | 2 | 1 (other) | 0.50 |"))
        with self.assertRaisesRegex(render.Unusable, "13 rows"):
            render.table(("name",), [case] * 13, "source")
        with self.assertRaisesRegex(render.Unusable, "no such file"):
            render.load(self.results, render.CPU, "gru.json")
        self.write([], {}, "table_cuda_2.json", commit="def")
        with self.assertRaisesRegex(render.Unusable, "differ in commit"):
            render.load(self.results, render.GPU, "table_cuda*.json")


def convolution(images, us, half_us=8.0, int8=None, **values):
    """3 x 3, beside cuDNN: int8 by layout, microseconds or why not."""
    lines = [{"layout": layout, "refused" if isinstance(value, str) else "us": value}
             for layout, value in (int8 or {}).items()]
    return {"images": images, "H": 14, "W": 14, "C": 64, "O": 64, "R": 3, "stride": 1, "pad": 1, "groups": 1, "us": us,
            "operations_us": 1.0, "memory_us": 2.0, "cudnn_f16_us": half_us,
            **({} if int8 is None else {"cudnn_int8": lines}), **values}


class Convolutions(unittest.TestCase):
    def test_targets(self):
        def figures(case):
            return [(target.aim(), target.figure, target.verdict) for target in conv_cuda_report.targets(case)]
        self.assertEqual(figures(convolution(1, 4.0)), [("cuDNN float16 / time, N = 1 ≥ 1", 2.0, "met"),
                                                        ("cuDNN int8 / time ≥ 1", None, "not known")])
        self.assertEqual(figures(convolution(32, 8.0, int8={"nhwc": 7.0, "nhwc_16": "no", "c32": 6.0})),
                         [("cuDNN float16 / time, N = 32 ≥ 1.5", 1.0, "missed"),
                          ("cuDNN int8 / time ≥ 1", 0.75, "missed")])
        floats = convolution(1, 10.0, layer="float16:4")
        table = conv_cuda_report.target_table([convolution(1, 4.0, int8={"nhwc": 4.0}), convolution(1, 2.0)], [floats])
        self.assertIn("| cuDNN float16 / time, float16 4, larger kernels ≥ 1 | 0 of 1 | 0 | 0.80 |", table)
        self.assertEqual(list(conv_cuda_report.float_targets({**floats, "C": 32})), [])
        self.assertIn("| cuDNN int8 / time ≥ 1 | 1 of 2 | 1 | 1.00 | 1, 14 x 14, 64 -> 64, 3 x 3, 1, 1 |", table)

    def test_floats(self):
        cases = [convolution(1, us, layer=layer) for layer, us in zip(conv_cuda_report.FLOAT_LAYERS, (4.0, 8.0, 10.0, 16.0))]
        self.assertIn("| 1, 14 x 14, 64 -> 64, 3 x 3, 1, 1 | 8 | 4 (2.00, 2.00) | 8 (4.00, 1.00) | 10 (5.00, 0.80) |",
                      conv_cuda_report.float_table(cases))

    def test_refusals(self):
        taken = convolution(1, 4.0, int8={"nhwc": "no engine", "c32": 6.0})
        refused = convolution(32, 4.0, int8={"nhwc": "no engine", "c32": "long " * 200})
        lines = conv_cuda_report.refusals([taken, refused, convolution(1, 4.0)])
        self.assertEqual(lines[0], "cuDNN int8, NHWC: no engine (32, 14 x 14, 64 -> 64, 3 x 3, 1, 1)")
        self.assertEqual((len(lines), "long ... (32" in lines[1]), (2, True))

    def test_table(self):
        shapes = [dict(H=224, W=224, C=3, O=64, R=7, stride=2), dict(H=56, W=56, C=256, O=64, R=1),
                  dict(H=56, W=56), dict(C=256, O=256), dict(H=56, W=56, C=128, O=128, stride=2),
                  dict(C=512, O=512, groups=512)]
        with tempfile.TemporaryDirectory() as results:
            for int8, words in ((None, "| 10 | 8 (cuDNN float16) | 2 | 0.80 |"),
                                ({"nhwc": 5.0}, "| 10 | 5 (cuDNN int8) | 5 | 2 | 0.50 |"),
                                ({"nhwc": "no engine"}, "| 10 | 8 (cuDNN float16) | – | 2 | 0.80 |")):
                report.write_json(os.path.join(results, render.GPU, "conv_cuda.json"), {
                    "device": "card", "machine": MACHINE, "commit": "abc", "versions": {"torch": "2"},
                    "cases": [convolution(images, 10.0, int8=int8, **shape) for shape in shapes for images in (1, 32)]})
                text = render.conv_gpu(results)
                self.assertIn(words, text)
                self.assertEqual("no engine" in text, int8 == {"nhwc": "no engine"})

    def test_program(self):
        """A program that ends early, and one that is not there."""
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "conv_cudnn")
            with open(program, "w", encoding="ascii") as file:
                file.write("""#!/bin/sh
for layout in nhwc c32; do
  echo '{"device": "card", "cudnn": 91900, "conv": "", "images": 1, "layout": "'$layout'", "us": 3.0}'
done
echo 'illegal address' >&2
exit 1
""")
            os.chmod(program, 0o755)
            cases = [convolution(1, 4.0), convolution(32, 4.0)]
            self.assertEqual(conv_cuda.add_int8(program, cases), (91900, []))
            self.assertEqual(cases[0]["cudnn_int8"], [{"layout": "nhwc", "us": 3.0}, {"layout": "c32", "us": 3.0}])
            self.assertIn("illegal address", cases[1]["cudnn_int8"][0]["refused"])
            version, problems = conv_cuda.add_int8(os.path.join(folder, "none"), cases)
            self.assertIsNone(version)
            self.assertIn("No such file", problems[0])


class Built(unittest.TestCase):
    def test_refuses(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("scripts", "bench"):
                shutil.copytree(os.path.join(SOURCE, name), os.path.join(folder, name))
            self.refused(folder, "build/release/isobit is missing")
            program = os.path.join(folder, "build", "release", "isobit")
            os.makedirs(os.path.dirname(program))
            with open(program, "w", encoding="ascii") as file:
                file.write("#!/bin/sh\nexit 1\n")
            os.chmod(program, 0o755)
            # A python3 that has nothing but its own library.
            shims = os.path.join(folder, "shims")
            os.mkdir(shims)
            with open(os.path.join(shims, "python3"), "w", encoding="ascii") as file:
                file.write('#!/bin/sh\nexec "%s" -I -S "$@"\n' % sys.executable)
            os.chmod(os.path.join(shims, "python3"), 0o755)
            path = shims + os.pathsep + os.environ["PATH"]
            self.refused(folder, "cannot import: numpy onnx onnxruntime", path)
            self.refused(folder, "--rivals-only", path, "--rivals-only")

    def refused(self, folder, words, path=None, *options):
        done = subprocess.run(["bash", os.path.join(folder, "scripts", "bench.sh"), "--built", "linear", *options],
                              env={**os.environ, "PATH": path or os.environ["PATH"]}, capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
