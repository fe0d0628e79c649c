#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What calling a small GRU from Python costs beside C++, in one run; scripts/bench.sh python starts it.

One step of one sequence a call, floats in and out: numpy arrays, `out=` and a state that are there already. Both sides
time every call by itself, reading the clock included. Rounds take turns, so that noise hits both.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import isobit
import numpy as np

import report

HIDDEN, BITS = 48, "8"  # as many inputs
ROUNDS, CALLS, WARM_UP = 20, 5000, 1000  # calls of a round from Python; C++ makes more
CPP_SECONDS = 0.02  # a round
MOST_US = 2  # that Python may take longer


def random_gru():
    """As `isobit bench gru` makes it: uniform weights, calibrated on uniform data."""
    random = np.random.default_rng(HIDDEN)
    layer = [random.uniform(-HIDDEN**-0.5, HIDDEN**-0.5, shape).astype("float32")
             for shape in ((3 * HIDDEN, HIDDEN), (3 * HIDDEN, HIDDEN), (3 * HIDDEN,), (3 * HIDDEN,))]
    data = random.uniform(-2, 2, (32, 8, HIDDEN)).astype("float32")
    return isobit.quantize(isobit.gru_weights([layer]), data, bits=BITS), data[:1, :1].copy()


def python_times(gru, x, calls):
    """Microseconds of each call."""
    state, y, times = gru.initial_state(batch=1), np.empty_like(x), []
    clock = time.perf_counter_ns
    for _ in range(calls):
        start = clock()
        gru(x, state, out=y)
        times.append(clock() - start)
    return [ns / 1000 for ns in times]


def cpp_case(program):
    """The same shape in C++: its kernel and the median of its calls."""
    command = [program, "bench", "gru", "--hidden", str(HIDDEN), "--batch", "1", "--steps", "1", "--mode", "streaming",
               "--bits", BITS, "--min-time", str(CPP_SECONDS), "--json", "--quiet"]
    (case,) = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["cases"]
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isobit", default="build/release/isobit", help="the isobit program (default %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the report here as well")
    args = parser.parse_args()
    if not os.access(args.isobit, os.X_OK):
        parser.error("no program %s: build it, or name it with --isobit" % args.isobit)
    gru, x = random_gru()
    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(cpp_case(args.isobit))
        python_times(gru, x, WARM_UP)
        ours += python_times(gru, x, CALLS)
    python_us, cpp_us = statistics.median(ours), statistics.median(case["us_per_step"] for case in theirs)
    document = {
        "machine": report.machine(), "commit": report.commit(),
        "versions": {"python": sys.version.split()[0], "numpy": np.__version__}, "H": HIDDEN, "C": HIDDEN, "N": 1,
        "bits": BITS, "kernel": theirs[0]["kernel"], "calls": len(ours), "python_us": python_us, "cpp_us": cpp_us,
        "difference_us": python_us - cpp_us}
    print("One step of H = %d from numpy: %.3f µs; from C++: %.3f µs; difference %.3f µs, at most %g.\n%s" % (
        HIDDEN, python_us, cpp_us, python_us - cpp_us, MOST_US, report.source(document)))
    if args.json:
        report.write_json(args.json, document)
    sys.exit(0 if document["difference_us"] <= MOST_US else 1)


if __name__ == "__main__":
    main()
