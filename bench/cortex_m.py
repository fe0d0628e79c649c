#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what exported GRUs need on emulated Cortex-M cores: instructions of a step, code, RAM, stack.

usage: cortex_m.py ISOBIT [--json FILE] [--check FILE]

The GRUs are random ones, the same every time. Each is exported for the core and as generic C, compiled with
arm-none-eabi-gcc at -Os and run on the core, which qemu-system-arm emulates: `isobit export c --json` counts. Prints
Markdown. --check compares with the counts of a file: where compiler and emulator are the same versions, instructions may
differ by 1 % (the statistics behind a model may differ in last bits), else nothing is compared and a line says so.
"""
import argparse
import io
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import zipfile

import report

CASES = [(256, 256, "8"), (256, 256, "8,weights=4"), (256, 256, "8,weights=2"), (256, 256, "8,h=16,gate_in=12"),
         (40, 48, "8"), (40, 48, "8,weights=4"), (40, 48, "8,weights=2")]
CORES = ["cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55"]
MOST_DIFFERENCE = 0.01


def npy(shape, values):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': %r, }" % (tuple(shape),)
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack("<%df" % len(values),
                                                                                              *values)


def write_gru(folder, inputs, hidden):
    """A float GRU and data; their paths."""
    rng = random.Random(inputs * 1000 + hidden)
    model, data = os.path.join(folder, "gru.npz"), os.path.join(folder, "data.npy")
    limit = hidden ** -0.5
    shapes = {"weight_ih_l0": (3 * hidden, inputs), "weight_hh_l0": (3 * hidden, hidden), "bias_ih_l0": (3 * hidden,),
              "bias_hh_l0": (3 * hidden,)}
    with zipfile.ZipFile(model, "w") as archive:
        for name, shape in shapes.items():
            count = shape[0] * (shape[1] if len(shape) == 2 else 1)
            archive.writestr("gru.%s.npy" % name, npy(shape, [rng.uniform(-limit, limit) for _ in range(count)]))
    with open(data, "wb") as file:
        file.write(npy((50, 4, inputs), [rng.gauss(0, 1) for _ in range(50 * 4 * inputs)]))
    return model, data


def run(*words):
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit("%s: exit status %d\n%s" % (" ".join(map(str, words)), result.returncode, result.stderr))
    return result.stdout


def count(isobit, model, core, target, folder):
    facts = json.loads(run(isobit, "export", "c", model, "-o", os.path.join(folder, target + "-" + core), "--name", "gru",
                           "--target", target, "--core", core, "--json"))
    if facts["measured"] is None:
        sys.exit(facts["why_not_measured"])
    return facts


def measured(isobit):
    cases, versions = [], {}
    for inputs, hidden, bits in CASES:
        with tempfile.TemporaryDirectory(prefix="isobit-cortex-m-") as folder:
            floats, data = write_gru(folder, inputs, hidden)
            model = os.path.join(folder, "gru.safetensors")
            run(isobit, "quantize", floats, "--calibrate", data, "--bits", bits, "-o", model, "--quiet")
            for core in CORES:
                own = count(isobit, model, core, core, folder)
                generic = own if core == "cortex-m3" else count(isobit, model, core, "generic", folder)
                versions = {key: own["measured"][key] for key in ("compiler", "emulator", "optimisation")}
                cases.append({"C": inputs, "H": hidden, "bits": bits, "core": core,
                              "instructions": own["step"]["instructions"],
                              "generic_instructions": generic["step"]["instructions"],
                              "multiply_adds": own["step"]["multiply_adds"],
                              "weights_bytes": own["flash"]["weights_bytes"],
                              "tables_bytes": own["flash"]["tables_bytes"],
                              "constants_bytes": own["flash"]["constants_bytes"],
                              "code_bytes": own["flash"]["code_bytes"], **own["ram"]})
    return {"cases": cases, "versions": versions}


def key(case):
    return tuple(case[name] for name in ("C", "H", "bits", "core"))


def differences(found, expected):
    """What is wrong beside the counts of a file; None: nothing can be compared."""
    if found["versions"] != expected["versions"]:
        return None
    old = {key(case): case for case in expected["cases"]}
    wrong = ["%s: no such case in the file" % (key(case),) for case in found["cases"] if key(case) not in old]
    for case in found["cases"]:
        for name in ("instructions", "generic_instructions"):
            before = old.get(key(case), case)[name]
            if abs(case[name] - before) > MOST_DIFFERENCE * before:
                wrong.append("%s: %s %d, recorded %d" % (key(case), name, case[name], before))
    return wrong


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("isobit")
    parser.add_argument("--json")
    parser.add_argument("--check")
    options = parser.parse_args()
    found = measured(options.isobit)
    print("| C | H | bits | core | instructions | generic | code |\n|---|---|---|---|---|---|---|")
    for case in found["cases"]:
        print("| %(C)d | %(H)d | `%(bits)s` | %(core)s | %(instructions)d | %(generic_instructions)d | %(code_bytes)d |" %
              case)
    if options.json:
        report.write_json(options.json, {"machine": report.machine(), "commit": report.commit(), **found})
    if options.check:
        with open(options.check, encoding="utf-8") as file:
            wrong = differences(found, json.load(file))
        if wrong is None:
            print("not compared: the file is of another compiler or emulator")
        elif wrong:
            sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
