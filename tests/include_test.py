# SPDX-License-Identifier: Apache-2.0
"""Includes of src/ point one way. usage: include_test.py ROOT

ALLOWED says for each folder of src/ what its files may include besides themselves, the public headers and the standard
library; ARCHITECTURE.md has the reasons. A sub-folder counts as its parent. Tests, benchmarks and fuzz targets may
include src/testing too.
"""

import pathlib
import re
import sys
import unittest

OPERATIONS = {"core", "io", "calibrate", "table", "product", "low_bit", "linear", "conv", "gru"}
ALLOWED = {
    "core": set(),
    "io": {"core"},
    "calibrate": {"core"},
    "table": {"core", "io"},
    "product": {"core"},
    "low_bit": {"core", "io"},
    "linear": {"core", "io", "product", "low_bit"},
    "conv": {"core", "io", "product", "low_bit", "linear"},
    "gru": {"core", "io", "calibrate", "table", "product"},
    "verify": OPERATIONS,
    "report": OPERATIONS | {"verify"},
    "export": OPERATIONS,
    "c": {"core", "cuda"},
    "cuda": {"core"},
    "testing": {"core"},
}
# A program that checks or times, not the library.
PROGRAM = re.compile(r"(_test|_bench|^fuzz_.*)\.(cc|cu|h)$|_tool\.cc$")
PROGRAMS_TOO = {"testing", "bench"}
TESTS_TOO = {"c": {"gru", "io"}, "cuda": {"conv", "gru"}}  # models and files to call the interface with
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
ROOT = pathlib.Path(".")


def forbidden(folder, name, text, allowed):
    """Includes of a file of src/FOLDER that the table does not allow."""
    may = allowed[folder] | {folder}
    if PROGRAM.search(name):
        may |= PROGRAMS_TOO | TESTS_TOO.get(folder, set())
    found = []
    for include in INCLUDE.findall(text):
        other = include.split("/")[0]
        if other == "isobit" or "/" not in include:  # public; made by the build, or text of generated code
            continue
        if other not in may:
            found.append(include)
    return found


class Includes(unittest.TestCase):
    def test_every_file_of_the_library(self):
        files = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".cc", ".h", ".inc", ".cu", ".cuh")]
        self.assertGreater(len(files), 100)
        wrong = []
        for path in files:
            folder = path.relative_to(ROOT / "src").parts[0]
            self.assertIn(folder, ALLOWED, "a folder of src/ that the table of this test does not have")
            for include in forbidden(folder, path.name, path.read_text(encoding="utf-8"), ALLOWED):
                wrong.append("%s includes %s" % (path.relative_to(ROOT), include))
        self.assertEqual([], wrong)

    def test_folders_are_small(self):
        """Programs that check or time, and lists of CMake, do not count."""
        for folder in [path for path in (ROOT / "src").rglob("*") if path.is_dir()]:
            files = [path.name for path in folder.iterdir()
                     if path.is_file() and path.name != "CMakeLists.txt" and not PROGRAM.search(path.name)]
            with self.subTest(folder=str(folder.relative_to(ROOT))):
                self.assertLessEqual(len(files), 30)

    def test_the_tools_know_public_headers_only(self):
        for folder in ("tools/isobit", "examples"):
            for path in (ROOT / folder).rglob("*"):
                if path.suffix not in (".cc", ".h"):
                    continue
                for include in INCLUDE.findall(path.read_text(encoding="utf-8")):
                    with self.subTest(file=str(path.relative_to(ROOT)), include=include):
                        self.assertTrue("/" not in include or include.split("/")[0] in ("isobit", "bench"))

    def test_a_forbidden_include_is_found(self):
        text = '#include <vector>\n#include "isobit/gru.h"\n  #  include "linear/layer_parts.h"\n#include "testing/oracle.h"\n'
        self.assertEqual(["linear/layer_parts.h", "testing/oracle.h"], forbidden("gru", "model.cc", text, ALLOWED))
        self.assertEqual(["linear/layer_parts.h"], forbidden("gru", "model_test.cc", text, ALLOWED))
        self.assertEqual(["testing/oracle.h"], forbidden("linear", "layer.cc", text, ALLOWED))


if __name__ == "__main__":
    ROOT = pathlib.Path(sys.argv.pop(1))
    unittest.main()
