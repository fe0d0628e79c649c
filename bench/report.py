# SPDX-License-Identifier: Apache-2.0
"""What the reports of the benchmarks on a processor have in common."""
import json
import os
import subprocess

FLAGS = ("avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "amx_int8")


def machine():
    model, flags = "unknown", set()
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            elif key.strip() == "flags":
                flags = set(value.split())
    return {"cpu": model, "cores": os.cpu_count(), "flags": [f for f in FLAGS if f in flags]}


def commit():
    """Of this checkout; where programs were built elsewhere, ISOBIT_COMMIT says of which."""
    if os.environ.get("ISOBIT_COMMIT"):
        return os.environ["ISOBIT_COMMIT"]

    def git(*words):
        result = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
        return result.stdout.strip() if result.returncode == 0 else ""
    name = git("rev-parse", "--short=12", "HEAD")
    return (name + ("-dirty" if git("status", "--porcelain") else "")) if name else "unknown"


def source(document):
    """The line below a table: where it comes from."""
    return "%s, %d cores, %s; commit %s; %s" % (
        document["machine"]["cpu"], document["machine"]["cores"], " ".join(document["machine"]["flags"]),
        document["commit"], ", ".join("%s %s" % item for item in document["versions"].items()))


def read_shapes(path):
    """Rows of integers; '#' begins a comment."""
    with open(path, encoding="ascii") as lines:
        rows = [line.partition("#")[0].split() for line in lines]
    return [tuple(map(int, row)) for row in rows if row]


def write_json(path, document):
    """The file appears whole or not at all."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    temporary = path + ".part"
    with open(temporary, "w", encoding="utf-8") as f:
        json.dump(document, f, indent=1)
        f.write("\n")
    os.replace(temporary, path)
