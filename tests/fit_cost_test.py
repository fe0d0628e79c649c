# SPDX-License-Identifier: Apache-2.0
"""The costs of kernels on a device are what scripts/fit_cost.py, of the GRU, and fit_conv_cost.py make of the times.

usage: fit_cost_test.py SOURCE_FOLDER
"""
import json
import pathlib
import re
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(SOURCE / "scripts"))
sys.dont_write_bytecode = True
import fit_conv_cost  # noqa: E402
import fit_cost  # noqa: E402


class FitCost(unittest.TestCase):
    def check_committed(self, script):
        number = re.compile(r"\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b")
        committed = script.COSTS.read_text(encoding="utf-8")
        made = script.render(script.read_times())
        message = "scripts/%s.py writes %s anew" % (script.__name__, script.COSTS.relative_to(SOURCE))
        self.assertEqual(number.split(committed), number.split(made), message)
        for before, now in zip(number.findall(committed), number.findall(made)):
            self.assertLessEqual(abs(float(now) - float(before)), 0.02 * float(before), message)  # libraries round apart

    def test_committed(self):
        self.check_committed(fit_cost)
        self.check_committed(fit_conv_cost)

    def test_constants_are_found_again(self):
        constants = [3.0, 0.0, 0.25, 1e-6]
        points = []
        for size in range(1, 40):
            terms = [1, size % 7, size * size, 1e5 * (size % 5)]
            time = sum(constant * term for constant, term in zip(constants, terms))
            points.append(([term / time for term in terms], 1 / (1 + size % 3)))
        for found, constant in zip(fit_cost.fit(points), constants):
            self.assertAlmostEqual(found, constant, delta=1e-3 * constant or 1e-4)

    def test_no_constant_is_negative(self):
        points = [([1 / time, size / time], 1.0) for size, time in ((1, 9.0), (2, 8.0), (3, 7.0))]
        found = fit_cost.fit(points)
        self.assertEqual(found[1], 0.0)
        self.assertGreater(found[0], 7.0)

    def test_times_of_bench_are_added(self):
        case = {"C": 64, "H": 512, "N": 4, "T": 16, "kernel": "step", "bits": "8,h=16,gate_in=12", "us_per_step": 2.5}
        report = {"device": {"name": "a GPU"}, "cases": [dict(case, mode=mode) for mode in
                                                         ("sequence", "two-states", "streaming")]}
        report["cases"].append(dict(case, mode="sequence", kernel="generic"))  # which nothing is estimated of
        with tempfile.TemporaryDirectory() as folder:
            times, measured = pathlib.Path(folder, "times.csv"), pathlib.Path(folder, "measured.json")
            header = fit_cost.TIMES.read_text(encoding="utf-8").splitlines()[0] + "\n"
            times.write_text(header, encoding="utf-8")
            measured.write_text(json.dumps(report), encoding="utf-8")
            committed, fit_cost.TIMES = fit_cost.TIMES, times
            try:
                fit_cost.add("1234567", [measured])
                added = fit_cost.read_times()
            finally:
                fit_cost.TIMES = committed
        of = fit_cost.Case(inputs=64, hidden=512, batch=4, steps=16, width=16, copies=0)
        self.assertEqual(added, [fit_cost.Time(of, "step", 40.0),
                                 fit_cost.Time(of._replace(steps=1), "step", 2.5),
                                 fit_cost.Time(of._replace(steps=1, copies=1), "step", 2.5)])


if __name__ == "__main__":
    unittest.main()
