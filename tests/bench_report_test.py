# SPDX-License-Identifier: Apache-2.0
"""bench/linear_report.py on made-up measurements, and what scripts/bench.sh --built refuses.

usage: bench_report_test.py SOURCE_FOLDER
"""
import contextlib
import copy
import io
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.abspath(sys.argv.pop(1))
sys.path.insert(0, os.path.join(SOURCE, "bench"))
sys.dont_write_bytecode = True
import linear_report  # noqa: E402

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
        whole = linear_report.merged([one, two])
        self.assertEqual(whole["cases"], one["cases"] + two["cases"])
        self.assertEqual(len(whole["parts"]), 2)
        self.assertIn("int8 8 is there twice", linear_report.merged([one, copy.deepcopy(one)]))
        for key in linear_report.SAME:
            self.assertIn(key + " differs", linear_report.merged([one, {**two, key: "another"}]))


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
            self.refused(folder, "cannot import these of bench/requirements.txt: numpy onnx onnxruntime", path)
            self.refused(folder, "--rivals-only", path, "--rivals-only")

    def refused(self, folder, words, path=None, *options):
        done = subprocess.run(["bash", os.path.join(folder, "scripts", "bench.sh"), "--built", "linear", *options],
                              env={**os.environ, "PATH": path or os.environ["PATH"]}, capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
