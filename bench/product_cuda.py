#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The product W x on a CUDA device beside cuBLASLt's int8 product; scripts/bench.sh --cuda product starts it.

Runs isobit's program, and on the same shapes that of cuBLASLt (every algorithm that it proposes; the fastest is taken)
and torch._int_mm, where torch is importable. All are replayed from CUDA graphs on the same device. Prints Markdown.
"""
import argparse
import json
import sys

import report
from json_lines import run
from torch_timer import REPEATS, median_microseconds

try:
    import torch
except ImportError:
    torch = None


def shape_of(case):
    return case["M"], case["N"], case["K"]


def total(case):
    """Microseconds of isobit's product, which reads x where it is."""
    return case["us"]


def torch_cases(shapes):
    for m, n, k in shapes:
        x, w = (torch.randint(-128, 128, (rows, k), device="cuda", dtype=torch.int8) for rows in (m, n))
        yield {"M": m, "N": n, "K": k, "us": median_microseconds(torch, lambda: torch._int_mm(x, w.t()))}
        del x, w
        torch.cuda.empty_cache()


def print_table(ours, rivals):
    names = ["M", "N", "K", "rescaled by", "isobit, us", "kernel", *(f"{name}, us" for name in rivals),
             *(f"{name} / isobit" for name in rivals)]
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for case in ours:
        others = [times.get(shape_of(case)) for times in rivals.values()]
        row = [*shape_of(case), case["ratios"], f"{total(case):.1f}", case["kernel"],
               *("–" if us is None else f"{us:.1f}" for us in others),
               *("–" if us is None else f"{us / total(case):.2f}" for us in others)]
        print("| " + " | ".join(map(str, row)) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="cuda_product_bench")
    parser.add_argument("--cublaslt", help="product_cublaslt; without it cuBLASLt is not timed by itself")
    parser.add_argument("--json", help="write everything measured to this file as well")
    options = parser.parse_args()
    cases, problem = run(options.program, [])
    problems = [f"isobit: {problem}"] if problem else []
    chosen = [case for case in cases if case["chosen"]]
    shapes = list(dict.fromkeys(map(shape_of, cases)))
    cublaslt, from_torch = [], []
    if options.cublaslt and shapes:
        arguments = [text for shape in shapes for text in ("--shape", *map(str, shape))]
        cublaslt, problem = run(options.cublaslt, arguments)
        problems += [f"cuBLASLt: {problem}"] if problem else []
    if torch is not None:
        from_torch = list(torch_cases(shapes))

    device = next((case["device"] for case in cases), "no device")
    version = next((case["cublaslt"] for case in cublaslt), None)
    named = [f"cuBLASLt {version}" if version else "cuBLASLt not timed",
             f"PyTorch {torch.__version__}" if torch else "no PyTorch"]
    print(f"{device}, {', '.join(named)}; medians of {REPEATS} graph replays\n")
    rivals = {"cuBLASLt's best": cublaslt, "torch._int_mm": from_torch}
    print_table(chosen, {name: {shape_of(case): case["us"] for case in found}
                                   for name, found in rivals.items() if found})
    print("\nisobit: results are rescaled twice and written as 16-bit codes. cuBLASLt and "
          "PyTorch write sums of 32 bits only: their users rescale in another pass.")
    for problem in problems:
        print(f"\nNot finished: {problem}")
    if options.json:
        versions = {"cublaslt": version, "torch": torch.__version__ if torch else None}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"device": device, "machine": report.machine(), "commit": report.commit(), "versions": versions,
                       "problems": problems, "isobit": cases, "cublaslt": cublaslt, "torch": from_torch}, file, indent=1)
    if any(problem.startswith("isobit") for problem in problems):
        sys.exit("isobit's program failed")


if __name__ == "__main__":
    main()
