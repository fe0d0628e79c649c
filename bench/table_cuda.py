#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FP16 functions on a CUDA device beside a copy of the same bytes and PyTorch; scripts/bench.sh --cuda table starts it.

Runs the benchmark program given as the first argument, then PyTorch's silu, gelu and tanh (where torch is importable)
on the same device with the same number of elements, each captured in a graph and replayed. Prints Markdown.
"""
import argparse
import json
import statistics
import subprocess

import report
from torch_timer import REPEATS, median_microseconds

try:
    import torch
except ImportError:
    torch = None


def torch_times(elements):
    """Median microseconds of PyTorch's functions, by (function, dtype)."""
    times = {}
    functions = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "tanh": torch.tanh}
    for dtype, name in ((torch.float16, "f16"), (torch.float32, "f32")):
        x = torch.randn(elements, device="cuda", dtype=dtype)
        for function, call in functions.items():
            times[function, name] = median_microseconds(torch, lambda: call(x))
        del x
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--json")
    options = parser.parse_args()
    lines = subprocess.run([options.program], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    cases = [json.loads(line) for line in lines]
    pairs, functions = cases[:9], cases[9:]
    elements = cases[0]["elements"]
    print(f"{cases[0]['device']}, {elements} elements, medians of {REPEATS} replays\n")
    print("| x -> y | us | copy of the same bytes, us | share of the copy's speed |\n|---|---|---|---|")
    for case in pairs:
        print(f"| {case['x']} -> {case['y']} | {case['us']:.0f} | {case['copy_us']:.0f} | {case['share_of_copy']:.3f} |")
    for dtype in ("f16", "f32"):
        shares = [(case["share_of_copy"], case["name"]) for case in functions if case["x"] == dtype]
        print(f"\n{len(shares)} functions and models, {dtype}: share of the copy's speed {min(shares)[0]:.3f} "
              f"({min(shares)[1]}) to {max(shares)[0]:.3f}, median {statistics.median(s for s, _ in shares):.3f}")
    document = {"device": cases[0]["device"], "machine": report.machine(), "commit": report.commit(),
                "versions": {"torch": torch.__version__ if torch else None}, "cases": cases}
    if torch is None:
        print("\nPyTorch: not importable, not timed")
    else:
        ours = {(case["name"], case["x"]): case["us"] for case in functions}
        times = torch_times(elements)
        document["torch"] = {f"{function} {dtype}": us for (function, dtype), us in times.items()}
        print(f"\n| function | PyTorch {torch.__version__}, us | isobit, us | PyTorch / isobit |\n|---|---|---|---|")
        for (function, dtype), us in times.items():
            mine = ours[f"{function} f32", dtype]
            print(f"| {function} {dtype} | {us:.0f} | {mine:.0f} | {us / mine:.2f} |")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)


if __name__ == "__main__":
    main()
