#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Integer GRUs on a CUDA device beside PyTorch's float16 GRU (cuDNN); scripts/bench.sh --cuda gru starts it.

Runs the benchmark program given as the first argument, then torch.nn.GRU in float16 (where torch is importable) on the
same device with the same shapes, both replayed from CUDA graphs. Prints Markdown.
"""
import argparse
import json
import subprocess

from torch_timer import REPEATS, median_microseconds

try:
    import torch
except ImportError:
    torch = None

STEPS = 256
HIDDEN = (64, 128, 256, 512, 640, 768, 1024)
BATCH = (1, 4, 16, 64, 256)
GENERIC_BATCH = (1, 16)  # the generic kernel is slow: its figures are for orientation


def torch_us_per_step(hidden, batch):
    gru = torch.nn.GRU(hidden, hidden).cuda().half().eval()
    x = torch.randn(STEPS, batch, hidden, device="cuda", dtype=torch.float16)
    return median_microseconds(torch, lambda: gru(x)) / STEPS


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--json")
    options = parser.parse_args()
    cases = []
    for hidden in HIDDEN:
        batches = BATCH if hidden <= 768 else GENERIC_BATCH
        command = [options.program, str(STEPS), str(hidden), ",".join(map(str, batches))]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        for case in map(json.loads, lines):
            if torch is not None:
                case["torch_us_per_step"] = torch_us_per_step(hidden, case["N"])
            cases.append(case)
    version = f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}" if torch else "no PyTorch"
    print(f"{cases[0]['device']}, {version}; C = H, T = {STEPS}, us a step, medians of {REPEATS} replays\n")
    print("| H | N | kernel | isobit, 8 bits | PyTorch float16 | PyTorch / isobit |\n|---|---|---|---|---|---|")
    for case in cases:
        rival = case.get("torch_us_per_step")
        ratio = "–" if rival is None else f"{rival / case['us_per_step']:.2f}"
        print(f"| {case['H']} | {case['N']} | {case['kernel']} | {case['us_per_step']:.3f} | "
              f"{'–' if rival is None else f'{rival:.2f}'} | {ratio} |")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"torch": version, "cases": cases}, file, indent=1)


if __name__ == "__main__":
    main()
