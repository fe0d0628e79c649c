#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times every kernel of convolutions of static codes on a CUDA device: what scripts/fit_conv_cost.py fits costs to.

usage: conv_kernels.py PROGRAM CSV

PROGRAM is cuda_conv_bench. Shapes: bench/shapes/conv.txt and conv_steps.txt, of 1, 4 and 32 images.
"""
import csv
import os
import sys

import conv_cuda
import conv_steps
import report
from json_lines import run

BATCHES = (1, 4, 32)
SIZES = ("images", "H", "W", "C", "O", "R", "stride", "dilation", "groups")


def shapes():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shapes", "conv.txt")
    found = [{"dilation": 1, **dict(zip(conv_cuda.KEYS, row))} for row in report.read_shapes(path)]
    return found + [shape for shape in conv_steps.shapes() if shape not in found]


def main():
    program, path = sys.argv[1:]
    rows = []
    for shape in shapes():
        for images in BATCHES:
            lines, problem = run(program, ["--all-kernels", "--batch", str(images), "--conv", conv_cuda.option(shape)])
            if problem:
                sys.exit("error: %s: %s" % (shape, problem))
            for line in lines:
                sizes = [{**shape, "images": images}[key] for key in SIZES]
                rows.append([report.commit(), line["device"], *sizes, line["kernel"], "%.4g" % line["us"],
                             *("%.6g" % term for term in line["terms"])])
        print("%(H)d x %(W)d, %(C)d -> %(O)d, %(R)d x %(R)d" % shape, file=sys.stderr)
    terms = ["term_%d" % (i + 1) for i in range(len(rows[0]) - len(SIZES) - 4)]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["commit", "device", *SIZES, "kernel", "microseconds", *terms])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
