#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the forward and backward of a GRU of isobit, in float32 and of integers of 8 bits (quantisation-aware), and of
PyTorch, in float32, in one run, one thread each; scripts/bench.sh training starts it.

Shape by shape, rounds time all one after the other, so that noise and clock changes hit both alike; the figures are
medians over the rounds of medians over the runs of a round. All give the gradients of x, weights and biases; a step of
integers quantises the weights first.
"""
import argparse
import os
import statistics
import sys
import time

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import report  # noqa: E402
from line_program import LineProgram  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

KEYS = ("T", "N", "C", "H")
BITS = "8"


class PyTorch:
    def __init__(self, args, shape):
        torch.set_num_threads(1)
        self.min_time = args.min_time
        self.gru = torch.nn.GRU(shape["C"], shape["H"])
        self.x = torch.randn(shape["T"], shape["N"], shape["C"], requires_grad=True)
        self.dy = torch.randn(shape["T"], shape["N"], shape["H"])
        self.leaves = [self.x, *self.gru.parameters()]
        self.run()

    def run(self):
        y, _ = self.gru(self.x)
        torch.autograd.grad(y, self.leaves, self.dy)

    def measure(self):
        seconds, start = [], time.perf_counter()
        while not seconds or time.perf_counter() - start < self.min_time:
            before = time.perf_counter()
            self.run()
            seconds.append(time.perf_counter() - before)
        return 1e6 * statistics.median(seconds)


def measure(args, shape):
    options = {"steps": shape["T"], "batch": shape["N"], "inputs": shape["C"], "hidden": shape["H"],
               "min_time": args.min_time}
    ours, integers = LineProgram(args.program, **options), LineProgram(args.program, **options, bits=BITS)
    rival = PyTorch(args, shape) if torch else None
    ours.measure()
    integers.measure()
    samples, of_integers, rivals = [], [], []
    for _ in range(args.rounds):
        samples.append(ours.measure())
        of_integers.append(integers.measure())
        if rival:
            rivals.append(rival.measure())
    ours.end()
    integers.end()
    result = {**shape, "path": samples[0]["path"], "operations": samples[0]["operations"],
              "us": statistics.median(sample["us"] for sample in samples),
              "integers_us": statistics.median(sample["us"] for sample in of_integers)}
    if "peak" in samples[0]:
        result["peak"] = samples[0]["peak"]
        result["peak_operations_per_second"] = statistics.median(
            sample["peak_operations_per_second"] for sample in samples)
    if rivals:
        result["torch_us"] = statistics.median(rivals)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/release/bench/training_bench")
    parser.add_argument("--json", help="file for the report")
    parser.add_argument("--quick", action="store_true", help="one round, of the smallest shape")
    args = parser.parse_args()
    args.rounds, args.min_time = (1, 0.05) if args.quick else (7, 0.3)
    shapes = [dict(zip(KEYS, row)) for row in report.read_shapes(
        os.path.join(os.path.dirname(os.path.abspath(__file__)), "shapes", "training.txt"))]
    document = {"benchmark": "training", "machine": report.machine(), "commit": report.commit(),
                "versions": {"torch": torch.__version__} if torch else {}, "bits": BITS, "cases": []}
    print("| T | N | C | H | isobit, ms | of integers, ms | PyTorch, ms | limit, ms | times as fast |\n|" + "---|" * 9)
    for shape in shapes[-1:] if args.quick else shapes:
        case = measure(args, shape)
        document["cases"].append(case)
        limit = case["operations"] / case.get("peak_operations_per_second", float("nan"))
        rival = case.get("torch_us")
        print("| %d | %d | %d | %d | %.3g | %.3g | %s | %.3g | %s |" % (
            *(shape[key] for key in KEYS), case["us"] / 1e3, case["integers_us"] / 1e3,
            "%.3g" % (rival / 1e3) if rival else "–", limit * 1e3, "%.2f" % (rival / case["us"]) if rival else "–"), flush=True)
    print("\n" + report.source(document) + ("" if torch else "; PyTorch: not importable, not timed"))
    if args.json:
        report.write_json(args.json, document)


if __name__ == "__main__":
    main()
