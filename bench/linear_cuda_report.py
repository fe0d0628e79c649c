#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of bench/linear_cuda.py, from one or more of its JSON files: parts of one run, cut by --shape and --m.
Parts of other devices, machines, commits or versions are refused, as are cases that two files hold.
"""
import argparse
import dataclasses
import typing

import report

# What all parts of a run have in common.
SAME = ("device", "machine", "commit", "versions")
HALF, CODES, SUMS = "cuBLASLt float16", "cuBLASLt int8 to int8", "cuBLASLt int8 to int32"
INT_MM, TINYGEMM = "torch._int_mm", "tinygemm"
LARGE = ((4096, 4096), (4096, 14336), (8192, 28672))  # K, N
FEW_ROWS = 16
SHARED = 256  # outputs of the processors of a cluster, which share their copies of x


def column(activations, bits, kind, group):
    """The name of one of isobit's layers. Static codes have one kind and a scale a row."""
    if activations == "static":
        return "static %d" % bits
    return "%s %d" % (activations, bits) + (" " + kind if kind != "symmetric" else "") + (
        " g%d" % group if group != 128 else "")


def shape(case):
    return case["K"], case["N"]


def is_ours(case):
    return "activations" in case


def limit_us(case):
    """The least time: reading the weights, or the operations at the peak of the tensor cores."""
    return max(case["floor_us"], case["operations_us"])


def cache_bytes(case):
    """What few rows of x take from the second-level cache: the weights once, and x once for each SHARED outputs."""
    x = case["M"] * case["K"] * (2 if case["activations"] == "float16" else 1)
    return case["weight_bytes"] + -(-case["N"] // SHARED) * x


class Times:
    """What a document says of a shape and M, by column."""

    def __init__(self, document):
        self.found = {(*shape(case), case["M"], case["column"]): case for case in document["cases"]}

    def us(self, case, name):
        """Of another column, or None."""
        return self.found.get((*shape(case), case["M"], name), {}).get("us")

    def rivals(self, case):
        """Times of those that could be used instead, by name: where isobit's rows stay floats, theirs do, too."""
        names = [HALF]
        if case["activations"] != "float16":
            names += [CODES, SUMS, INT_MM]
        if case["bits"] == 4:
            names.append(TINYGEMM)
        times = {name: self.us(case, name) for name in names}
        return {name: us for name, us in times.items() if us is not None}


@dataclasses.dataclass(frozen=True)
class Target:
    """A figure of a case, and what it should be: at most that, or at least. None: another case was not timed, which
    it is compared with."""
    what: str
    wanted: float
    figure: float | None
    at_most: bool = True

    @property
    def met(self):
        if self.figure is None:
            return None
        return self.figure <= self.wanted if self.at_most else self.figure >= self.wanted

    @property
    def verdict(self):
        return {None: "not known", True: "met", False: "missed"}[self.met]

    def aim(self):
        return "%s %s %g" % (self.what, "≤" if self.at_most else "≥", self.wanted)


def floor_target(case):
    """The most that a layer with few rows may take, in times of reading its weights."""
    if case["M"] > FEW_ROWS or shape(case) not in LARGE or case["activations"] not in ("float16", "int8"):
        return None
    if case["kind"] == "offset" and case["group"] == 32:
        return 1.35
    if case["kind"] != "symmetric" or case["group"] != 128:
        return None
    if shape(case) == (4096, 4096):
        return None if case["bits"] == 1 else 1.5 if case["M"] == FEW_ROWS else 1.35
    return {8: 1.15, 4: 1.15, 2: 1.25, 1: 1.7 if case["activations"] == "float16" else 1.5}[case["bits"]]


def targets(case, times):
    """Those of one of isobit's layers."""
    def against(name, what, wanted):
        us = times.us(case, name)
        return Target(what, wanted, us and us / case["us"], at_most=False)

    def beside(name, what, wanted):
        us = times.us(case, name)
        return Target(what, wanted, us and case["us"] / us)

    activations, bits, M = case["activations"], case["bits"], case["M"]
    wanted = floor_target(case)
    if wanted:
        yield Target("time / floor", wanted, case["us"] / case["floor_us"])
    if case["kind"] == "zero_point" and M <= FEW_ROWS:
        yield beside(column(activations, bits, "symmetric", case["group"]), "time / symmetric", 1.1)
    if activations == "static" and bits == 8:
        yield against(CODES, CODES + " / time", 0.97)
    if activations == "static" or case["kind"] != "symmetric" or case["group"] != 128:
        return
    if M == 64:
        yield Target("(time - 1.5 µs) / limit", 1.25, (case["us"] - 1.5) / max(limit_us(case), case["cache_us"]))
    if activations == "float16" and M in (256, 4096):
        yield against(HALF, HALF + " / time", 0.95 if M == 256 else 0.97)
    if activations == "int8" and M == 4096 and shape(case) in LARGE:
        yield against(HALF, HALF + " / time", 1.2 if shape(case) == (4096, 4096) else 1.3)
        speed = 2e-6 * case["K"] * case["N"] * M / case["product_us"]
        yield Target("TOP/s of the product", 1050, speed, at_most=False)
    if bits == 4 and M == 1:
        yield against(TINYGEMM, TINYGEMM + " / time", 1.35)
    if bits < 8:
        strict = M == 1 and shape(case) in LARGE
        yield beside(column(activations, 2 * bits, "symmetric", 128), "time / that of %d bits" % (2 * bits),
                     1 if strict else 1.05)


class Row(typing.NamedTuple):
    """A line of a table: one of isobit's layers beside what bounds it and what competes with it."""
    case: dict
    rivals: dict
    targets: list

    @property
    def best(self):
        return min(self.rivals, key=self.rivals.get, default=None)

    def cells(self):
        case = self.case
        rival = "–" if self.best is None else "%.3g (%s)" % (self.rivals[self.best], self.best)
        ratio = "–" if self.best is None else "%.2f" % (self.rivals[self.best] / case["us"])
        aims = "; ".join("%s: %s%s" % (target.aim(), "" if target.figure is None else "%.2f, " % target.figure,
                                      target.verdict) for target in self.targets) or "–"
        return ["%d" % case["M"], case["column"], "%.3g" % case["us"], "%.3g" % case["floor_us"],
                "%.3g" % case["operations_us"], rival, ratio, "%.2f" % (case["us"] / limit_us(case)), aims]


HEADS = ["M", "layer", "isobit, µs", "reading, µs", "operations, µs", "best rival, µs", "rival / isobit",
         "isobit / limit", "target"]


def rows(document):
    """One for each of isobit's layers, in the order in which they were timed."""
    times = Times(document)
    return [Row(case, times.rivals(case), list(targets(case, times))) for case in document["cases"] if is_ours(case)]


def markdown(heads, cells):
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(line) + " |" for line in cells]) + "\n"


def rival_table(document, shapes=None):
    """For each shape (or only for these) and M the time of every rival; a dash where it refused."""
    names = [HALF, CODES, SUMS, INT_MM, TINYGEMM]
    times, cells = Times(document), []
    for K, N, M in dict.fromkeys((*shape(case), case["M"]) for case in document["cases"]):
        if shapes and (K, N) not in shapes:
            continue
        found = [times.us({"K": K, "N": N, "M": M}, name) for name in names]
        cells.append(["%d x %d" % (K, N), "%d" % M, *("–" if us is None else "%.3g" % us for us in found)])
    return markdown(["K x N", "M", *(name + ", µs" for name in names)], cells)


def refusals(document):
    """Why a rival was not timed, and where."""
    all_shapes, found = set(map(shape, document["cases"])), {}
    for case in document["cases"]:
        if "refused" in case:
            rows = found.setdefault((case["column"], case["refused"]), {})
            rows.setdefault(case["M"], []).append(shape(case))
    lines = []
    for (name, reason), rows in found.items():
        by_shapes = {}
        for M, shapes in rows.items():
            by_shapes.setdefault(tuple(shapes), []).append(str(M))
        where = ["%s: M = %s" % ("every shape" if set(shapes) == all_shapes else
                                 ", ".join("%d x %d" % pair for pair in shapes), ", ".join(numbers))
                 for shapes, numbers in by_shapes.items()]
        lines.append("%s: %s (%s)" % (name, reason, "; ".join(where)))
    return lines


def reached(found, what, where):
    """A line for each target of `found`, pairs of a target and where it holds: how many reach it, and the furthest."""
    groups, cells = {}, []
    for target, at in found:
        groups.setdefault((target.what, target.wanted, target.at_most), []).append((target, at))
    for (name, wanted, at_most), all_of_it in groups.items():
        known = [(target, at) for target, at in all_of_it if target.figure is not None]
        worst, at = (max if at_most else min)(known, key=lambda pair: pair[0].figure, default=(None, "–"))
        cells.append([Target(name, wanted, None, at_most).aim(),
                      "%d of %d" % (sum(target.met for target, _ in known), len(all_of_it)),
                      "%d" % (len(all_of_it) - len(known)), "–" if worst is None else "%.2f" % worst.figure, at])
    return markdown(["target", what + " that reach it", "not known", "furthest", "at (%s)" % where], cells)


def target_table(document):
    """For each target, how many layers reach it, and the one that is furthest from it."""
    return reached([(target, "%d x %d, %d, %s" % (*shape(row.case), row.case["M"], row.case["column"]))
                    for row in rows(document) for target in row.targets], "layers", "K x N, M, layer")


def tables(document):
    versions = ", ".join("%s %s" % item for item in document["versions"].items() if item[1])
    print("%s, %s; commit %s; %.0f s in all. Medians of graph replays; weights of more than three times the second-level"
          " cache take turns." % (document["device"], versions, document["commit"],
                                  sum(part["seconds"] for part in document["parts"])))
    found = rows(document)
    for K, N in dict.fromkeys(shape(row.case) for row in found):
        print("\nK = %d, N = %d\n" % (K, N))
        here = sorted((row for row in found if shape(row.case) == (K, N)), key=lambda row: row.case["M"])
        print(markdown(HEADS, [row.cells() for row in here]), end="")
    print("\nRivals\n")
    print(rival_table(document), end="")
    for line in refusals(document):
        print("\n– " + line)
    print("\nTargets\n")
    print(target_table(document), end="")
    print("\nfloor, reading: bulk copies of the packed weights, nothing else. operations: at the highest clock. limit: "
          "the larger of both.")
    for problem in document["problems"]:
        print("\nNot finished: " + problem)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON that bench/linear_cuda.py wrote")
    parser.add_argument("--json", metavar="FILE", help="write the whole as one document here")
    options = parser.parse_args()
    document = report.merged_files(options.files, SAME)
    tables(document)
    if options.json:
        report.write_json(options.json, document)


if __name__ == "__main__":
    main()
