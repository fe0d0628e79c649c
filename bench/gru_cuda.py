#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Integer GRUs on a CUDA device beside cuDNN's float16 GRU; scripts/bench.sh --cuda gru starts it.

One layer, C = H: sequences of 256 steps in one call, and calls of one step. For every H it runs isobit's program, that
of cuDNN (every algorithm; the fastest is taken), and torch.nn.GRU in float16 as called, where torch is importable; for
sequences also what persistent kernels exchange in a step, and nothing else (every way; the fastest is taken). All are
replayed from CUDA graphs on the same device. Prints Markdown.

A run may be cut into parts by --hidden, --batch and kinds of calls: --join prints the tables of their JSON files
together, of one device and the same versions.
"""
import argparse
import json
import sys
import time

import report
from json_lines import run
from torch_timer import median_microseconds

try:
    import torch
except ImportError:
    torch = None

STEPS = 256
REPEATS = 11
HIDDEN = "64,128,256,512,768,1024,1536,2048"
BATCH = "1,4,16,64,256"
NARROW, WIDE = "8", "8,h=16,gate_in=12"  # a state of 16 bits, with gate inputs fine enough to show it
MODES = {
    (False, "same"): f"Sequences: T = {STEPS}, one call",
    (True, "same"): f"Calls of one step: {STEPS} of them, weights stay in the second-level cache",
    (True, "rotating"): f"Calls of one step: {STEPS} or more, of copies in turn, so that weights come from memory",
}


def torch_cases(hidden, batches, modes):
    for batch in batches:
        gru = torch.nn.GRU(hidden, hidden).cuda().half().eval()
        x = torch.randn(STEPS, batch, hidden, device="cuda", dtype=torch.float16)

        def one_step_calls():
            state = None
            for t in range(STEPS):
                _, state = gru(x[t:t + 1], state)

        for one_step, call in ((False, lambda: gru(x)), (True, one_step_calls)):
            if (one_step, "same") not in modes:
                continue
            us = median_microseconds(torch, call, REPEATS)
            yield {"H": hidden, "N": batch, "T": 1 if one_step else STEPS, "calls": STEPS if one_step else 1,
                   "weights": "same", "us_per_step": us / STEPS}
    torch.cuda.empty_cache()  # the programs run on the same device


def figure(case):
    """Microseconds, starred where fewer steps were timed."""
    if case is None:
        return "–"
    return f"{case['us_per_step']:.3f}" + ("*" if case["T"] * case["calls"] < STEPS else "")


def ratio(slower, faster):
    return "–" if slower is None or faster is None else f"{slower['us_per_step'] / faster['us_per_step']:.2f}"


def kernel(case):
    return "–" if case is None else case["kernel"]


def way(case):
    if case is None:
        return "–"
    return case["algorithm"] + ("" if case["layout"] == "packed" else f", {case['layout']}")


def print_table(cases, one_step, weights, shapes):
    def best(source, shape, bits=None):
        found = [case for case in cases
                 if case["source"] == source and (case["H"], case["N"]) == shape and case.get("weights") == weights
                 and (case["T"] == 1) == one_step and case.get("bits") == bits and "us_per_step" in case]
        return min(found, key=lambda case: case["us_per_step"], default=None)

    names = ["H", "N", "isobit, 8 bits", "kernel", "isobit, 16-bit state", "kernel", "cuDNN float16", "algorithm",
             "PyTorch float16", "cuDNN / 8 bits", "cuDNN / 16-bit state", "PyTorch / 8 bits",
             "exchange alone", "8 bits / exchange"]
    rows = []
    for shape in shapes:
        narrow, wide = (best("isobit", shape, bits) for bits in (NARROW, WIDE))
        cudnn, pytorch, exchange = (best(source, shape) for source in ("cudnn", "torch", "exchange"))
        rows.append([str(shape[0]), str(shape[1]), figure(narrow), kernel(narrow), figure(wide), kernel(wide),
                     figure(cudnn), way(cudnn), figure(pytorch),
                     ratio(cudnn, narrow), ratio(cudnn, wide), ratio(pytorch, narrow),
                     figure(exchange), ratio(narrow, exchange)])
    kept = [column for column in range(len(names)) if any(row[column] != "–" for row in rows)]
    print(f"\n{MODES[one_step, weights]}, us a step.\n")
    for row in [names, ["---"] * len(names), *rows]:
        print("|" + "|".join(row[column] if row[column] == "---" else f" {row[column]} " for column in kept) + "|")
    if any("*" in cell for row in rows for cell in row):
        print("\n\\* 16 steps and 5 replays: the generic kernel takes milliseconds a step from H = 512 on.")


def print_refusals(cases, shapes):
    """What cuDNN would not do, by reason."""
    refused = {}
    for case in cases:
        if "refused" in case and "weights" in case:
            steps = f"T = {case['T']}" + (", rotating" if case["weights"] == "rotating" else "")
            key = (way(case), steps, case["refused"])
            refused.setdefault(key, []).append((case["H"], case["N"]))
    if refused:
        print("\nRefused by cuDNN:\n")
    for (algorithm, steps, reason), found in refused.items():
        by_size = {}
        for size, batch in found:
            by_size.setdefault(size, []).append(str(batch))
        where = "; ".join(f"H = {size}: N = {', '.join(batches)}" for size, batches in by_size.items())
        print(f"* {algorithm}, {steps}: {'every shape' if len(found) == len(shapes) else where} ({reason})")


def print_report(device, versions, cases, problems):
    named = [f"cuDNN {versions['cudnn']}" if versions["cudnn"] else "cuDNN not timed",
             f"PyTorch {versions['torch']} (cuDNN {versions['torch_cudnn']})" if versions["torch"] else "no PyTorch"]
    print(f"{device}, {', '.join(named)}; C = H, one layer, medians of {REPEATS} graph replays")
    checks = [case["difference_from_float"] for case in cases if "difference_from_float" in case]
    if checks:
        print(f"Largest difference of cuDNN's results from a float GRU, H = 64: {max(checks):.1e}")
    for mode in MODES:
        shapes = sorted({(case["H"], case["N"]) for case in cases if case["source"] == "isobit"
                         and (case["T"] == 1, case["weights"]) == mode})
        if shapes:
            print_table(cases, *mode, shapes)
    print_refusals(cases, {(case["H"], case["N"]) for case in cases if "H" in case})
    for problem in problems:
        print(f"\nNot finished: {problem}")


def join(names):
    parts = []
    for name in names:
        with open(name, encoding="utf-8") as file:
            parts.append(json.load(file))
    for key in ("device", "machine", "commit", "versions"):
        if any(part[key] != parts[0][key] for part in parts):
            sys.exit(f"{' and '.join(names)}: not of one run, they differ in {key}")
    print_report(parts[0]["device"], parts[0]["versions"], [case for part in parts for case in part["cases"]],
                 [problem for part in parts for problem in part["problems"]])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", nargs="?", help="cuda_gru_bench")
    parser.add_argument("--join", nargs="+", metavar="FILE", help="print what --json has written; nothing is timed")
    parser.add_argument("--cudnn", help="gru_cudnn; without it cuDNN is not timed by itself")
    parser.add_argument("--floor", help="exchange_floor; without it the exchange is not timed by itself")
    parser.add_argument("--hidden", default=HIDDEN, help="default: %(default)s")
    parser.add_argument("--batch", default=BATCH, help="default: %(default)s")
    parser.add_argument("--algorithm", help="only these of cuDNN's, e.g. STANDARD,PERSIST_STATIC")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--sequences-only", action="store_true", help="no calls of one step")
    part.add_argument("--calls-only", action="store_true", help="only calls of one step")
    parser.add_argument("--same-weights", action="store_true",
                        help="no calls of one step of copies of a model in turn; of small layers there are thousands")
    parser.add_argument("--json", help="write everything measured to this file as well")
    options = parser.parse_args()
    if options.join:
        join(options.join)
        return
    if options.program is None:
        parser.error("which program? Or --join")
    sizes, batches = ([int(value) for value in text.split(",")] for text in (options.hidden, options.batch))
    modes = [mode for mode in MODES if not (options.sequences_only if mode[0] else options.calls_only)
             and not (options.same_weights and mode[1] == "rotating")]
    cases, problems = [], []

    def add(source, size, lines, problem=None):
        cases.extend({"source": source, **line} for line in lines)
        if problem:
            problems.append(f"{source}, H = {size}: {problem}")

    for size in sizes:
        shape = ["--hidden", str(size), "--batch", options.batch, "--steps", str(STEPS), "--repeats", str(REPEATS)]
        common = shape + [flag for flag, given in (("--sequences-only", options.sequences_only),
                                                   ("--calls-only", options.calls_only),
                                                   ("--same-weights", options.same_weights)) if given]
        times = [time.monotonic()]
        add("isobit", size, *run(options.program, [*common, "--bits", NARROW, WIDE]))
        times.append(time.monotonic())
        if options.cudnn:
            algorithm = ["--algorithm", options.algorithm] if options.algorithm else []
            add("cudnn", size, *run(options.cudnn, [*common, *algorithm]))
        times.append(time.monotonic())
        if options.floor and not options.calls_only:
            lines, problem = run(options.floor, shape)
            # One call of T steps, as the sequences beside it.
            add("exchange", size, [{**line, "calls": 1, "weights": "same"} for line in lines], problem)
        times.append(time.monotonic())
        if torch is not None:
            add("torch", size, torch_cases(size, batches, modes))
        times.append(time.monotonic())
        seconds = [f"{name} {end - begin:.0f} s"
                   for name, begin, end in zip(("isobit", "cuDNN", "exchange", "PyTorch"), times, times[1:])]
        print(f"H = {size}: {', '.join(seconds)}", file=sys.stderr)

    device = next((case["device"] for case in cases if "device" in case), "no device")
    cudnn = next((case["cudnn"] for case in cases if "cudnn" in case), None)
    versions = {"cudnn": cudnn, "torch": torch.__version__ if torch else None,
                "torch_cudnn": torch.backends.cudnn.version() if torch else None}
    print_report(device, versions, cases, problems)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"device": device, "machine": report.machine(), "commit": report.commit(), "versions": versions,
                       "problems": problems, "cases": cases}, file, indent=1)
    if any(problem.startswith("isobit") for problem in problems):
        sys.exit("isobit's program failed")


if __name__ == "__main__":
    main()
