# SPDX-License-Identifier: Apache-2.0
"""The committed figures of real models say the same as results.json, of which bench/real_models/render.py makes them.

usage: real_models_report_test.py SOURCE_FOLDER
"""
import json
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(SOURCE / "bench" / "real_models"))
sys.dont_write_bytecode = True
import render  # noqa: E402

RESULTS = SOURCE / "bench" / "results" / "real_models"
AGAIN = "python3 bench/real_models/render.py bench/results/real_models --tutorial docs/tutorial.md writes it anew"


def read(path):
    return path.read_text(encoding="utf-8")


class RealModelsReport(unittest.TestCase):
    def setUp(self):
        self.document = json.loads(read(RESULTS / "results.json"))
        self.tutorial = read(SOURCE / "docs" / "tutorial.md")

    def test_results(self):
        self.assertEqual(read(RESULTS / "results.md"), render.markdown(self.document), AGAIN)

    def test_tutorial(self):
        self.assertEqual(self.tutorial, render.tutorial(self.document, self.tutorial), AGAIN)

    def test_another_figure_is_seen(self):
        row = self.document["ablations"][render.TUTORIAL_MODEL]["rows"][0]
        row["sqnr_db"][-1] += 1
        self.assertNotEqual(read(RESULTS / "results.md"), render.markdown(self.document))
        self.assertNotEqual(self.tutorial, render.tutorial(self.document, self.tutorial))

    def test_markers(self):
        once = render.BEGIN + render.END
        for text in ("", render.BEGIN, render.END + render.BEGIN, once + once):
            self.refused("must have these two lines once each", text)

    def test_missing_set(self):
        self.document["ablations"][render.TUTORIAL_MODEL]["rows"] = []
        self.refused("the results have no set " + render.TUTORIAL_SETS[0], self.tutorial)

    def refused(self, words, text):
        with self.assertRaises(SystemExit) as raised:
            render.tutorial(self.document, text)
        self.assertIn(words, str(raised.exception))


if __name__ == "__main__":
    unittest.main()
