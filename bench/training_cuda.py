#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the forward and backward of a GRU of isobit, in float32 and of integers of 8 bits (quantisation-aware), and of
cuDNN on a CUDA device in one run; scripts/bench.sh --cuda training starts it.

cuDNN is what torch.nn.GRU runs, in float32 without and with TF32, and in float16. All are captured in CUDA graphs and
give the gradients of x, weights and biases; a step of integers quantises the weights first. Shape by shape, rounds time
all one after the other; the figures are medians over the rounds. Gradients are not compared here: that is a test's work.
Prints Markdown.
"""
import argparse
import importlib.util
import os
import statistics

import report
from line_program import LineProgram

try:
    import torch
except ImportError:
    torch = None

KEYS = ("T", "N", "C", "H")
BITS = "8"  # with scales that are powers of two
RIVALS = {"float32": ("float32", False), "tf32": ("float32", True), "float16": ("float16", False)}


class CuDNN:
    """One way of torch.nn.GRU, captured once."""

    def __init__(self, shape, dtype, tf32):
        self.tf32 = tf32
        kind = getattr(torch, dtype)
        gru = torch.nn.GRU(shape["C"], shape["H"]).cuda().to(kind)
        x = torch.randn(shape["T"], shape["N"], shape["C"], device="cuda", dtype=kind, requires_grad=True)
        dy = torch.randn(shape["T"], shape["N"], shape["H"], device="cuda", dtype=kind)
        leaves = [x, *gru.parameters()]

        def step():
            y, _ = gru(x)
            return torch.autograd.grad(y, leaves, dy)

        self.stream = torch.cuda.Stream()
        self.set_mode()
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                step()
            self.stream.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.kept = step(), gru, leaves, dy  # a replay reads and writes them

    def set_mode(self):
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = self.tf32

    def measure(self, repeats):
        samples = []
        with torch.cuda.stream(self.stream):
            for repeat in range(-2, repeats):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record(self.stream)
                self.graph.replay()
                end.record(self.stream)
                end.synchronize()
                if repeat >= 0:
                    samples.append(1000 * begin.elapsed_time(end))
        return statistics.median(samples)


def gru_qat():
    """Why gru-qat's quantised GRU is not timed here."""
    if importlib.util.find_spec("gru_qat") is None:
        return "not importable, not timed"
    return "importable, but without a kernel that this script times"


def measure(args, shape):
    options = {"steps": shape["T"], "batch": shape["N"], "inputs": shape["C"], "hidden": shape["H"],
               "repeats": args.repeats}
    ours, integers = LineProgram(args.program, **options), LineProgram(args.program, **options, bits=BITS)
    rivals = {name: CuDNN(shape, *way) for name, way in RIVALS.items()} if torch else {}
    ours.measure()
    integers.measure()
    samples, of_integers, times = [], [], {name: [] for name in rivals}
    for _ in range(args.rounds):
        samples.append(ours.measure())
        of_integers.append(integers.measure())
        for name, rival in rivals.items():
            times[name].append(rival.measure(args.repeats))
    ours.end()
    integers.end()
    return {**shape, "kernel": samples[0]["kernel"], "integers_kernel": of_integers[0]["kernel"],
            **{start + key: statistics.median(sample[key] for sample in of)
               for start, of in (("", samples), ("integers_", of_integers)) for key in ("us", "forward_us")},
            **{f"cudnn_{name}_us": statistics.median(values) for name, values in times.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--json", help="file for the report")
    parser.add_argument("--quick", action="store_true", help="one round, of the smallest shape")
    args = parser.parse_args()
    args.rounds, args.repeats = (1, 5) if args.quick else (5, 21)
    shapes = [dict(zip(KEYS, row)) for row in report.read_shapes(
        os.path.join(os.path.dirname(os.path.abspath(__file__)), "shapes", "training.txt"))]
    document = {"benchmark": "training_cuda", "machine": report.machine(),
                "device": torch.cuda.get_device_name() if torch else "unknown", "commit": report.commit(),
                "versions": {"torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version())} if torch else {},
                "gru_qat": gru_qat(), "bits": BITS, "cases": []}
    print("| T | N | C | H | isobit, µs | of it forward | of integers, µs | of it forward | " +
          " | ".join(f"cuDNN {name}, µs" for name in RIVALS) + " | isobit / cuDNN float32 | of integers |\n|" +
          "---|" * 13)
    for shape in shapes[-1:] if args.quick else shapes:
        case = measure(args, shape)
        document["cases"].append(case)
        times = [case.get(f"cudnn_{name}_us") for name in RIVALS]
        ours = [case[key] for key in ("us", "forward_us", "integers_us", "integers_forward_us")]
        ratios = [None if times[0] is None else case[key] / times[0] for key in ("us", "integers_us")]
        print("| %d | %d | %d | %d | %s | %s |" % (
            *(shape[key] for key in KEYS), " | ".join("–" if time is None else "%.4g" % time for time in ours + times),
            " | ".join("–" if ratio is None else "%.2f" % ratio for ratio in ratios)), flush=True)
    print("\n" + report.source(document) + ("" if torch else "; PyTorch: not importable, cuDNN not timed") +
          f"; gru-qat: {document['gru_qat']}")
    if args.json:
        report.write_json(args.json, document)


if __name__ == "__main__":
    main()
