#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits what src/gru/cuda/choice.cu estimates the time of a run with. Needs numpy and scipy (tests/requirements.txt).

usage: fit_cost.py [--add COMMIT FILE...]

It reads the times in bench/results/h100/gru_kernels.csv and writes src/gru/cuda/cost.inc. --add first appends to the
times what the programs of a commit measured by
    isobit bench gru --device cuda --all-kernels --bits 8 --mode sequence,two-states,streaming --json FILE
For states of 16 bits that is --bits 8,h=16,gate_in=12.

The time of a kernel is a sum of terms, each times a constant that is not negative. The terms are written twice, here
and in choice.cu, in the same order: choice_test.cc fails where they differ. Least squares of the relative error; a time
counts less the further it is from the fastest one of its case.
"""
import argparse
import csv
import json
import pathlib
from typing import NamedTuple

import numpy
import scipy.optimize

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMES = ROOT / "bench/results/h100/gru_kernels.csv"
COSTS = ROOT / "src/gru/cuda/cost.inc"
ROWS = ("Step", "StepMany", "Products", "ClusterSmall", "Cluster", "ClusterMany", "GridFew", "GridMany", "Portable")
WIDTHS = (8, 16)
PROCESSORS = 132
# Clusters of so many blocks that an H100 has room for; of more blocks 7.
CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15, 9: 9}


class Case(NamedTuple):
    """A run; width: bits of h; copies: a call of one step that writes over the state that it reads."""
    inputs: int
    hidden: int
    batch: int
    steps: int
    width: int
    copies: int


class Time(NamedTuple):
    case: Case
    kernel: str
    microseconds: float


def pieces(count, piece):
    return -(-count // piece)


def step_terms(c):
    row_bytes = c.inputs + c.hidden * c.width // 8
    several = c.steps > 1
    few_inputs = c.width == 8 and 4 * c.inputs <= 3 * c.hidden
    groups = pieces(c.hidden, 8)
    if c.batch <= (8 if few_inputs else 16) or groups * pieces(c.batch, 8) <= PROCESSORS * (1 if few_inputs else 2):
        sequences = 8 if c.batch <= 8 or groups * pieces(c.batch, 8) <= 2 * PROCESSORS else 16
        blocks = groups * pieces(c.batch, sequences)
        return "Step", [several, c.copies] + [c.steps * term for term in (
            1, c.hidden * (c.inputs + c.hidden), c.batch * row_bytes, blocks * row_bytes, (sequences - 8) * row_bytes)]
    for units, sequences in ((16, 32), (16, 64), (32, 64), (32, 128))[:4 if c.width == 8 else 3]:
        blocks = pieces(c.hidden, units) * pieces(c.batch, sequences)
        if blocks <= PROCESSORS:
            break
    rounds, area = pieces(blocks, PROCESSORS), units * sequences // 512
    return "StepMany", [several, c.copies] + [c.steps * term for term in (
        1, rounds * row_bytes, rounds * area, rounds * area * row_bytes)]


def products_terms(c):
    row_bytes = c.inputs + c.hidden * c.width // 8
    row_blocks = pieces(c.batch, 64)
    if row_blocks > 1:
        row_blocks = pieces(row_blocks, 2) * 2

    def tiles(columns):
        return row_blocks * pieces(pieces(c.hidden, 16) * 48, columns)

    def rounds_of(columns):
        return pieces(tiles(columns), PROCESSORS)

    columns = min((192, 144, 96, 48), key=lambda columns: rounds_of(columns) * (columns + 48))
    rounds = rounds_of(columns)
    return "Products", [c.steps > 1, c.copies] + [c.steps * term for term in (
        rounds, rounds * columns, rounds * columns * row_bytes, min(c.batch, 64) * columns, tiles(columns) * row_bytes)]


def persistent_terms(row, c, teams, most, tile=8):
    """Of so many teams at once, with at most so many sequences each, in tiles."""
    waves = pieces(c.batch, teams * most)
    each = pieces(c.batch, teams * waves)
    tiles = pieces(each, tile)
    rows = c.steps * c.batch
    turns = c.steps * waves
    doublings = (pieces(each, tiles) - 1).bit_length()
    return row, [c.steps > 1, c.hidden, waves, rows * c.hidden * c.inputs, rows * c.hidden, c.inputs, min(rows, 512),
                 turns, turns * each, turns * each * c.hidden, turns * doublings * c.hidden, turns * (tiles - 1)]


def cluster_terms(c):
    blocks = 1 if c.hidden <= 128 else 2 if c.hidden <= 256 else pieces(c.hidden, 128) if c.hidden <= 512 else 16
    return persistent_terms("ClusterSmall" if c.hidden <= 256 else "Cluster", c, CLUSTERS.get(blocks, 7), c.batch)


def cluster_many_terms(c):
    tiles = 7 if c.width == 8 or c.hidden <= 512 else 5 if c.hidden <= 768 else 2
    return persistent_terms("ClusterMany", c, CLUSTERS.get(pieces(c.hidden, 64), 7), 8 * tiles)


def grid_terms(c):
    return persistent_terms("GridFew" if c.batch <= 8 else "GridMany", c, 1, 256, 256)


def portable_terms(c):
    units = 128 if c.hidden <= 128 else 64 if c.hidden <= 256 else 32 if c.hidden <= 512 else 16
    return persistent_terms("Portable", c, PROCESSORS // pieces(c.hidden, units), 8)


TERMS = {"step": step_terms, "products": products_terms, "cluster": cluster_terms, "cluster_many": cluster_many_terms,
         "grid": grid_terms, "portable": portable_terms}


def read_times():
    with open(TIMES, newline="", encoding="utf-8") as file:
        return [Time(Case(*(int(row[name]) for name in ("C", "H", "batch", "steps", "width", "copies"))), row["kernel"],
                     float(row["microseconds"])) for row in csv.DictReader(file)]


def fit(points):
    """The constants, none of them negative, with the least squares of weight * (terms . constants - 1)."""
    terms = numpy.array([terms for terms, _ in points], dtype=float)
    weights = numpy.array([weight for _, weight in points])
    rows = weights[:, None] * terms
    scale = numpy.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0  # no case has this term
    # Of some kernels two terms are the same: the smallest constants, then, are the only solution.
    smallest = 1e-3 * numpy.identity(len(scale))
    constants, _ = scipy.optimize.nnls(numpy.vstack([rows / scale, smallest]),
                                       numpy.concatenate([weights, numpy.zeros(len(scale))]))
    return (constants / scale).tolist()


def render(times):
    fastest = {}
    for time in times:
        if time.kernel != "portable":  # which other devices take
            fastest[time.case] = min(fastest.get(time.case, time.microseconds), time.microseconds)
    points = {}
    for time in times:
        row, terms = TERMS[time.kernel](time.case)
        weight = fastest[time.case] / time.microseconds if time.kernel != "portable" else 1.0
        points.setdefault((row, time.case.width), []).append(([term / time.microseconds for term in terms], weight))
    lines = ["// SPDX-License-Identifier: Apache-2.0",
             "// Made by scripts/fit_cost.py of bench/results/h100/gru_kernels.csv: microseconds a term of choice.cu."]
    for row in ROWS:
        costs = [", ".join("%.3g" % value for value in fit(points[row, width])) for width in WIDTHS]
        lines += ["constexpr double k%sCost[2][%d] = {" % (row, costs[0].count(",") + 1), "    {%s}," % costs[0],
                  "    {%s}};" % costs[1]]
    return "\n".join(lines) + "\n"


def add(commit, paths):
    with open(TIMES, "a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for path in paths:
            report = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
            for case in report["cases"]:
                if case["kernel"] not in TERMS:
                    continue
                one_step = case["mode"] != "sequence"
                writer.writerow([commit, report["device"]["name"], case["H"], case["C"], case["N"],
                                 1 if one_step else case["T"], 16 if "h=16" in case["bits"] else 8,
                                 int(case["mode"] == "streaming"), case["kernel"],
                                 "%.4g" % (case["us_per_step"] * (1 if one_step else case["T"]))])


def main():
    parser = argparse.ArgumentParser(description="Writes src/gru/cuda/cost.inc; the first lines of this file say more.")
    parser.add_argument("--add", nargs="+", metavar=("COMMIT", "FILE"), help="append measured times first")
    options = parser.parse_args()
    if options.add:
        add(options.add[0], options.add[1:])
    COSTS.write_text(render(read_times()), encoding="utf-8")


if __name__ == "__main__":
    main()
