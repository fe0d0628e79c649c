# SPDX-License-Identifier: Apache-2.0
"""What the reports of the benchmarks have in common."""
import json
import os
import subprocess
import sys

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


class Different(Exception):
    """Why documents are not parts of one run."""


def merged(documents, same):
    """One document of the parts of a run, which agree in the keys of `same`; what they timed are `cases`."""
    first = documents[0]
    for document in documents[1:]:
        for key in same:
            if document[key] != first[key]:
                raise Different("%s differs: %s and %s" % (key, json.dumps(first[key]), json.dumps(document[key])))
    whole = {**first, "parts": [], "cases": [], "problems": []}
    seen = set()
    for document in documents:
        whole["problems"] += document.get("problems", [])
        for case in document["cases"]:
            name = (case["K"], case["N"], case["M"], case["column"])
            if name in seen:
                raise Different("K %d, N %d, M %d, %s is there twice" % name)
            seen.add(name)
        whole["parts"] += document["parts"]
        whole["cases"] += document["cases"]
    return whole


def merged_files(names, same):
    """The same of the files with these names; ends the program where they are not of one run."""
    documents = []
    for name in names:
        with open(name, encoding="utf-8") as file:
            documents.append(json.load(file))
    try:
        return merged(documents, same)
    except Different as problem:
        sys.exit("error: %s" % problem)


def write_json(path, document):
    """The file appears whole or not at all."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    temporary = path + ".part"
    with open(temporary, "w", encoding="utf-8") as f:
        json.dump(document, f, indent=1)
        f.write("\n")
    os.replace(temporary, path)
