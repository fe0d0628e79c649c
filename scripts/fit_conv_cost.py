#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits what src/conv/cuda/choice.cc estimates the time of a run with. Needs numpy and scipy (tests/requirements.txt).

It reads the times and terms in bench/results/h100/conv_kernels.csv, which bench/conv_kernels.py measures, and writes
src/conv/cuda/cost.inc. The time of a kernel is a sum of terms, each times a constant that is not negative: least
squares of the relative error, where a time counts less the further it is from the fastest one of its run.
"""
import csv

import fit_cost

TIMES = fit_cost.ROOT / "bench/results/h100/conv_kernels.csv"
COSTS = fit_cost.ROOT / "src/conv/cuda/cost.inc"
KERNELS = ("tile_128x128", "tile_128x64", "tile_64x64", "tile_64x32", "depthwise", "product", "direct")  # of choice.h
FIRST_SIZE, FIRST_TERM = "images", "term_1"


def read_times():
    """(sizes of the run, kernel, microseconds, terms)."""
    with open(TIMES, newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    sizes, kernel, terms = head.index(FIRST_SIZE), head.index("kernel"), head.index(FIRST_TERM)
    return [(tuple(row[sizes:kernel]), row[kernel], float(row[kernel + 1]), [float(term) for term in row[terms:]])
            for row in rows]


def render(times):
    fastest = {}
    for run, _, microseconds, _ in times:
        fastest[run] = min(fastest.get(run, microseconds), microseconds)
    points = {kernel: [] for kernel in KERNELS}
    for run, kernel, microseconds, terms in times:
        points[kernel].append(([term / microseconds for term in terms], fastest[run] / microseconds))
    costs = ["    {%s}" % ", ".join("%.3g" % value for value in fit_cost.fit(points[kernel])) for kernel in KERNELS]
    return "\n".join([
        "// SPDX-License-Identifier: Apache-2.0",
        "// Made by scripts/fit_conv_cost.py of bench/results/h100/conv_kernels.csv: microseconds a term of choice.cc.",
        "constexpr double kConvCost[%d][%d] = {" % (len(KERNELS), costs[0].count(",") + 1), ",\n".join(costs) + "};", ""])


def main():
    COSTS.write_text(render(read_times()), encoding="utf-8")


if __name__ == "__main__":
    main()
