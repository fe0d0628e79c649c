#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times two builds of cuda_gru_bench in turn on one device: has a change of kernels made the GRU slower?

Prints a table of microseconds a step and writes what bench/results/h100/gru_points.json is. Exit status 1: a case is
slower than its limit.
"""
import argparse
import json
import sys

import json_lines

STATES_16 = "8,h=16,gate_in=12"
# The arguments of one run, and how often both programs run them.
RUNS = (
    (["--bits", "8", "--hidden", "128,256,512,1024,2048", "--batch", "1,16,64,256", "--repeats", "11"], 3),
    (["--bits", STATES_16, "--hidden", "256,512,1024", "--batch", "1,16,64,256", "--repeats", "7"], 1),
)
COMMON = ["--steps", "256", "--sequences-only"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="BEFORE", help="COMMIT=PROGRAM, a cuda_gru_bench of that commit")
    parser.add_argument("after", metavar="AFTER", help="COMMIT=PROGRAM, another")
    parser.add_argument("--json", metavar="FILE", help="write the times of both programs")
    parser.add_argument("--limit", type=float, default=1.08, help="of after / before, for 8 bits; default %(default)s")
    options = parser.parse_args()
    programs = dict(value.split("=", 1) for value in (options.before, options.after))
    if len(programs) != 2:
        parser.error("BEFORE and AFTER name the same commit")

    least = {commit: {} for commit in programs}
    for arguments, rounds in RUNS:
        for _ in range(rounds):
            for commit, program in programs.items():
                lines, problem = json_lines.run(program, [*arguments, *COMMON])
                if problem:
                    sys.exit(f"{program}: {problem}")
                for line in lines:
                    case = (line["bits"], line["H"], line["N"])
                    known = least[commit].get(case)
                    if known is None or line["us_per_step"] < known["us_per_step"]:
                        least[commit][case] = line

    before, after = programs
    slower = 0
    print(f"| bits | H | N | {before} | {after} | ratio |\n|---|--:|--:|--:|--:|--:|")
    for case, line in least[before].items():
        ratio = least[after][case]["us_per_step"] / line["us_per_step"]
        slower += case[0] == "8" and ratio > options.limit
        print(f"| {' | '.join(map(str, case))} | {line['us_per_step']:.3f} | "
              f"{least[after][case]['us_per_step']:.3f} | {ratio:.3f} |")
    if options.json:
        what = ("microseconds a step of sequences of 256 steps, C = H; both programs in turn in one call, "
                "the least time of " + ", ".join(f"{rounds} at bits {run[1]}" for run, rounds in RUNS) + " counts")
        device = next(iter(least[before].values()))["device"]
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"what": what, "device": device,
                       "programs": {commit: list(cases.values()) for commit, cases in least.items()}}, file, indent=1)
            file.write("\n")
    print(f"{slower} cases of 8 bits are slower than {options.limit} times")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
