# SPDX-License-Identifier: Apache-2.0
"""python3 -m oracle generate --out DIR [--built] | check --dir DIR [--full]"""
import argparse
import json
import os
import sys

from .fp16_vectors import make_fp16
from .learned_grids_vectors import make_learned_grids
from .low_bit_vectors import make_low_bit
from .qat_vectors import make_qat
from .static_linear_vectors import make_static_linear
from .training_vectors import make_training
from .vectors import FILES, render

FILES = {**FILES, "fp16.json": make_fp16, "static_linear.json": make_static_linear, "training.json": make_training,
         "qat.json": make_qat, "learned_grids.json": make_learned_grids}
BUILT = {"low_bit.json": make_low_bit}  # too large for testdata/


def first_difference(a, b, path=""):
    """a: file, b: oracle. Returns 'path: a is not b' or None."""
    if type(a) is not type(b):
        return "%s: %r in the file, %r computed" % (path, a, b)
    if isinstance(a, dict):
        for k in list(b) + [k for k in a if k not in b]:
            if k not in a or k not in b:
                return "%s.%s: only in %s" % (path, k, "the file" if k in a else "the oracle")
            d = first_difference(a[k], b[k], path + "." + k)
            if d:
                return d
        return None
    if isinstance(a, list):
        for i, (p, q) in enumerate(zip(a, b)):
            d = first_difference(p, q, "%s[%d]" % (path, i))
            if d:
                return d
        if len(a) != len(b):
            return "%s: %d elements in the file, %d computed" % (path, len(a), len(b))
        return None
    return None if a == b else "%s: %r in the file, %r computed" % (path, a, b)


def cases_of(path):
    """The cases of a file; none where it cannot be read."""
    try:
        with open(path, encoding="ascii") as f:
            cases = json.load(f)["cases"]
        return cases if isinstance(cases, list) and all(isinstance(c, dict) for c in cases) else []
    except (OSError, ValueError, LookupError, TypeError):
        return []


def main():
    parser = argparse.ArgumentParser(prog="python3 -m oracle")
    sub = parser.add_subparsers(dest="command", required=True)
    generate = sub.add_parser("generate")
    generate.add_argument("--out", required=True)
    generate.add_argument("--built", action="store_true",
                          help="the files that are not in testdata/ but made where they are used")
    check = sub.add_parser("check")
    check.add_argument("--dir", required=True)
    check.add_argument("--full", action="store_true",
                       help="fp16.json: every digest; else only those over a sixteenth of the codes")
    args = parser.parse_args()
    bad, total = 0, 0
    for name, make in (BUILT if args.command == "generate" and args.built else FILES).items():
        if args.command == "check" and make is make_fp16 and not args.full:
            make = lambda: make_fp16(cases_of(os.path.join(args.dir, "fp16.json")))
        text = render(make())
        cases = len(json.loads(text)["cases"])
        if args.command == "generate":
            os.makedirs(args.out, exist_ok=True)
            with open(os.path.join(args.out, name), "w", encoding="ascii", newline="\n") as f:
                f.write(text)
            print("%-20s %5d cases %8d bytes" % (name, cases, len(text)))
            total += len(text)
            continue
        try:
            with open(os.path.join(args.dir, name), encoding="ascii", newline="") as f:
                found = f.read()
        except OSError as error:
            print("%s: %s" % (name, error))
            bad += 1
            continue
        if found == text:
            print("%s: same, %d cases" % (name, cases))
            continue
        bad += 1
        try:
            where = first_difference(json.loads(found), json.loads(text)) or "layout of the text"
        except ValueError as error:
            where = str(error)
        print("%s: DIFFERS at %s" % (name, where))
    if args.command == "generate":
        print("%-20s %20d bytes" % ("total", total))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
