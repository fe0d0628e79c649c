#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of bench/linear_rivals.py, from one or more of its JSON files: parts of one run, cut by --shape, --m and
--bits. Parts of other machines, commits, versions or settings are refused, as are cases that two files hold.
"""
import argparse
import statistics

import report

CACHE_MULTIPLE = 8  # of weights that take turns, in last-level caches
MEBIBYTE = 1 << 20
# What all parts of a run have in common.
SAME = ("machine", "commit", "versions", "cache_bytes", "footprint_mib", "rounds", "min_time", "models")


def share_of_reading(case):
    """The time of reading the weights once, in parts of ours."""
    return case["weight_bytes"] / case["read_bytes_per_second"] * 1e6 / case["us"]


def share_of_peak(case, peak):
    """The time of multiplying at a peak, in parts of ours; no peak that is known: None."""
    return 2 * case["K"] * case["N"] * case["M"] / peak * 1e6 / case["us"] if peak else None


def share_of_used_peak(case):
    return share_of_peak(case, case["peak_operations_per_second"])


def share_of_vector_peak(case):
    """Of the peak without tiles (VNNI), also where the kernel multiplies with tiles."""
    return share_of_peak(case, case.get("vector_peak_operations_per_second") or case["peak_operations_per_second"])


def share_of_limit(case):
    """The least time, by reading the weights or by multiplying, in parts of ours."""
    return max(share_of_reading(case), share_of_used_peak(case) or 0)


def share_of_one_bit_limit(case):
    """One row of symmetric 1-bit codes: 64 bytes of them take 4 shifts, 8 ands and 8 products (run_tile in
    src/linear/int8/x86_body.h) at the rate of the product that was measured, 128 operations each. Reading may take
    longer. Of other instruction sets nobody has counted."""
    if case.get("peak") != "avx512vnni":
        return None
    instructions = (4 + 8 + 8) * case["K"] * case["N"] / 8 / 64
    return max(share_of_reading(case), instructions / (case["peak_operations_per_second"] / 128) * 1e6 / case["us"])


def ratio(case):
    return case.get("ratio")


def is_decode(case):
    return case["M"] == 1 and (case["K"], case["N"]) == (4096, 14336)


def is_prefill(case):
    return case["M"] == 256


# The targets of the issue that asked for this benchmark ("Speed, one thread, same run"): what, of which cases, columns,
# figure, the least that it should be in every case. For 1 bit that issue says "at its stated instruction bound" and
# names no share: the one of the other widths. Of 1 bit ONNX Runtime has no operator to be compared with.
TARGETS = (
    ("4096x14336, M = 1: share of the read bandwidth", is_decode, ("int8 8", "int8 4", "int8 2"), share_of_reading,
     0.9),
    ("4096x14336, M = 1: share of the larger of reading and instructions", is_decode, ("int8 1",),
     share_of_one_bit_limit, 0.9),
    ("ONNX Runtime / isobit", lambda case: True,
     ("int8 8", "int8 4", "int8 2", "dynamic", "accumulators", "codes"), ratio, 1),
    ("M = 256: share of the VNNI peak", is_prefill, ("codes",), share_of_vector_peak, 0.75),
    ("M = 256: share of the VNNI peak", is_prefill, ("int8 8", "int8 4", "int8 2", "int8 1"), share_of_vector_peak,
     0.65),
    ("M = 1: ONNX Runtime / isobit", lambda case: case["M"] == 1, ("float 8", "float 4", "float 2"), ratio, 1.5),
    ("M >= 8: ONNX Runtime / isobit", lambda case: case["M"] >= 8, ("float 8", "float 4", "float 2"), ratio, 1),
    ("M >= 8: share of the FMA peak", lambda case: case["M"] >= 8, ("float 8", "float 4", "float 2", "float 1"),
     share_of_used_peak, 0.85),
)


def judged(document):
    """Whether as many weights take turns as the targets ask for."""
    cache = document["cache_bytes"]
    return bool(cache) and document["footprint_mib"] >= CACHE_MULTIPLE * cache // MEBIBYTE


def targets(document):
    """A row for each target and column: its least figure and that one's case, the median, how many cases reach it."""
    rows = []
    for what, wanted, columns, figure, least in TARGETS:
        for column in columns:
            found = [(figure(case), case) for case in document["cases"] if case["column"] == column and wanted(case)]
            row = {"column": column, "what": what, "wanted": least, "cases": len(found), "met": 0}
            rows.append(row)
            if not found or any(value is None for value, _ in found):
                row["verdict"] = "not known" if found else "not measured"
                continue
            row["least"], row["at"] = min(found, key=lambda item: item[0])
            row["median"] = statistics.median(value for value, _ in found)
            row["met"] = sum(value >= least for value, _ in found)
            verdict = "met" if row["met"] == len(found) else "missed"
            row["verdict"] = verdict if judged(document) else "not judged"
    return rows


def print_targets(document):
    print("\nTargets, each for every case that was measured; `at`: K x N, M of the least.%s\n" %
          ("" if judged(document) else " Not judged: they are for weights of eight times the last-level cache."))
    print("| column | what | wanted | least | at | median | cases that reach it | |")
    print("|---|---|---|---|---|---|---|---|")
    for row in targets(document):
        figures = "– | – | –"
        if "least" in row:
            figures = "%.2f | %dx%d, %d | %.2f" % (row["least"], row["at"]["K"], row["at"]["N"], row["at"]["M"],
                                                  row["median"])
        print("| %(column)s | %(what)s | %(wanted)g | " % row + figures +
              " | %(met)d of %(cases)d | %(verdict)s |" % row)


def pivot(cases, title, cell):
    columns = list(dict.fromkeys(case["column"] for case in cases))
    rows = dict.fromkeys((case["K"], case["N"], case["M"]) for case in cases)
    found = {(case["K"], case["N"], case["M"], case["column"]): case for case in cases}
    print("\n%s\n" % title)
    print("| K | N | M | " + " | ".join(columns) + " |")
    print("|" + "---|" * (3 + len(columns)))
    for row in rows:
        texts = [cell(found[row + (column,)]) if row + (column,) in found else "–" for column in columns]
        print("| %d | %d | %d | " % row + " | ".join(texts) + " |")


def spread(values):
    """Median and range, in 10^9."""
    return "%.1f (%.1f to %.1f)" % tuple(v / 1e9 for v in (statistics.median(values), min(values), max(values)))


def print_limits(cases):
    """What was measured in turn with the cases of each column."""
    print("\nMeasured in turn with them, over the same footprint; median (least to most) over a column's cases:\n")
    print("| column | read bandwidth, GB/s | peaks, 10^9 operations/s |")
    print("|---|---|---|")
    for column in dict.fromkeys(case["column"] for case in cases):
        peaks, mine = {}, [case for case in cases if case["column"] == column]
        for case in mine:
            for key in ("peak", "vector_peak"):
                if case.get(key):
                    peaks.setdefault(case[key], []).append(case[key + "_operations_per_second"])
        print("| %s | %s | %s |" % (column, spread([case["read_bytes_per_second"] for case in mine]), ", ".join(
            "%s %s" % (name, spread(values)) for name, values in peaks.items()) or "not known"))


def print_models(document):
    if document["models"] is None:
        print("\nShapes: not compared with the models in this run.")
        return
    print("\nShapes of the models, as this run read them: " + "; ".join(
        "%s: %s" % (name, ", ".join("%d of %s" % (count, shape) for shape, count in shapes.items()))
        for name, shapes in document["models"].items()) + ".")


def tables(document):
    cases = document["cases"]
    cache = document["cache_bytes"]
    print("One thread; weights of %d MiB take turns, %s; %d rounds, each %g s or more a case; %.0f s in all." % (
        document["footprint_mib"],
        "%.2f times the last-level cache" % (document["footprint_mib"] * MEBIBYTE / cache) if cache
        else "of a last-level cache of unknown size",
        document["rounds"], document["min_time"], sum(part["seconds"] for part in document["parts"])))
    ours = [case for case in cases if "us" in case]
    compared = [case for case in cases if "rival_us" in case]
    if not ours:
        pivot(cases, "ONNX Runtime, µs a layer", lambda case: "%.4g" % case["rival_us"])
    else:
        if compared:
            pivot(compared, "Time of ONNX Runtime / time of isobit", lambda case: "%.2f" % case["ratio"])
        pivot(ours, "isobit, µs a layer", lambda case: "%.4g" % case["us"])
        pivot(ours, "Least possible time / time of isobit: reading the weights once, or multiplying at the peak",
              lambda case: "%.2f" % share_of_limit(case))
        print_limits(ours)
        print_targets(document)
        kernels = {(case["activations"], case["kernel"]) for case in ours}
        print("\nKernels: " + ", ".join("%s %s" % pair for pair in sorted(kernels)))
    print_models(document)
    print("\n" + report.source(document))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON that bench/linear_rivals.py wrote")
    parser.add_argument("--json", metavar="FILE", help="write the whole as one document here")
    args = parser.parse_args()
    document = report.merged_files(args.files, SAME)
    tables(document)
    if args.json:
        report.write_json(args.json, document)


if __name__ == "__main__":
    main()
