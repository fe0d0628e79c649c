#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the measured tables and the picture of the documents; scripts/bench.sh --report starts it.

The figures come from bench/results/MACHINE/*.json, as scripts/bench.sh OP --json FILE writes them. In a document a
table stands between the lines <!-- bench:NAME --> and <!-- /bench -->; NAME is a key of SECTIONS. --check changes nothing,
names what differs from the results, and exits with 1 if anything does.
"""
import argparse
import dataclasses
import glob
import html
import json
import math
import os
import re
import subprocess
import sys
import textwrap

import conv_cuda_report
import conv_steps
import linear_cuda_report
import linear_report

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOCUMENTS = ("README.md", "docs/conv.md", "docs/linear_cuda.md", "docs/microcontrollers.md",
             "docs/performance.md", "docs/python.md", "docs/training.md", "docs/tables.md",
             "docs/notes/linear_cuda.md", "docs/notes/product_gpu.md", "examples/denoiser/README.md",
             "examples/g2p/README.md", "examples/spoken_digits/README.md")
PICTURE = "docs/speed.svg"
CPU, SHARED_CPU, GPU, TRAINING_GPU = "xeon-emerald-rapids", "epyc", "h100", "h200"  # folders of bench/results
MOST_ROWS = 12
MOST_NAMED = 4  # cases of a kind that are slower
WIDTH = 120  # columns of text
MARKED = re.compile(r"(<!-- bench:([\w-]+) -->\n).*?(<!-- /bench -->\n)", re.DOTALL)
NARROW, WIDE = "8", "8,h=16,gate_in=12"
RIVALS = {"ort_f32": "ONNX Runtime", "ort_f32_streaming": "ONNX Runtime", "torch_int8": "PyTorch int8",
          "cudnn": "cuDNN float16", "torch": "PyTorch float16"}


class Unusable(Exception):
    """Why the results cannot be shown."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing that was timed: `key` are its cells in a table, times are microseconds."""
    key: tuple
    us: float
    rivals: dict
    limit_us: float | None = None

    @property
    def ratio(self):
        """How many times as fast as the best rival."""
        return min(self.rivals.values()) / self.us


def load(results, machine, pattern):
    """The documents of one machine that match, of one commit and the same versions."""
    names = sorted(glob.glob(os.path.join(results, machine, pattern)))
    if not names:
        raise Unusable("bench/results/%s/%s: no such file; scripts/bench.sh OP --json FILE writes it" %
                       (machine, pattern))
    found = []
    for name in names:
        with open(name, encoding="utf-8") as file:
            found.append(json.load(file))
        if found[-1].get("problems"):
            raise Unusable("%s: not finished: %s" % (name, "; ".join(found[-1]["problems"])))
        for key in ("machine", "commit", "versions"):
            if found[-1].get(key) != found[0].get(key):
                raise Unusable("%s and %s: not of one run, they differ in %s" % (names[0], name, key))
    return found


def chosen(cases, keys):
    """The cases of these keys, in their order."""
    found = {case.key: case for case in cases}
    missing = [key for key in keys if key not in found]
    if missing:
        raise Unusable("not in the results: %s" % missing)
    return [found[key] for key in keys]


def figure(us):
    return "%.0f" % us if us >= 1000 else "%.3g" % us


def times(ratio):
    return "%.0f" % ratio if ratio >= 99.5 else "%.2f" % ratio if ratio < 9.95 else "%.1f" % ratio


def table(heads, cases, source, beside=()):
    """Markdown: the cells of each key (not those whose head is None), isobit, its best rival, those rivals that have a
    column of their own (a dash where they were not timed), the limit where one is known, the ratio."""
    if not 0 < len(cases) <= MOST_ROWS:
        raise Unusable("a table of %d rows (%s); 1 to %d are shown" % (len(cases), ", ".join(filter(None, heads)),
                                                                       MOST_ROWS))
    shown = [i for i, head in enumerate(heads) if head]
    limited = any(case.limit_us for case in cases)
    heads = [*(heads[i] for i in shown), "isobit, µs", "best rival, µs", *("%s, µs" % rival for rival in beside),
             *(["limit, µs"] if limited else []), "times as fast"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for case in cases:
        rival = min(case.rivals, key=case.rivals.get)
        limit = [figure(case.limit_us) if case.limit_us else "–"] if limited else []
        row = [*(str(case.key[i]) for i in shown), figure(case.us), "%s (%s)" % (figure(case.rivals[rival]), rival),
               *(figure(case.rivals[rival]) if rival in case.rivals else "–" for rival in beside),
               *limit, times(case.ratio)]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n\n" + source + "\n"


def named(rivals):
    """Rivals by the names of a reader; of two with one name the faster."""
    best = {}
    for key, us in rivals.items():
        if isinstance(us, float):
            best[RIVALS[key]] = min(us, best.get(RIVALS[key], math.inf))
    return best


def cpu_source(document):
    versions = ", ".join("%s %s" % item for item in document["versions"].items() if item[0] not in ("python", "numpy"))
    return "%s: %s, commit %s, %s." % (CPU, document["machine"]["cpu"], document["commit"], versions)


def gpu_source(document):
    versions = ", ".join("%s %s" % (name, version) for name, version in document["versions"].items()
                         if version and name != "torch_cudnn")
    return "%s: %s, commit %s, %s." % (GPU, document["device"], document["commit"], versions)


def gru_cpu(results, mode):
    """Microseconds a step. A rival's time is the least that a step takes, in one call for all steps or for one: its
    calls of one step are made from Python, which takes longer than a small step."""
    (document,) = load(results, CPU, "gru.json")
    cases = []
    for case in document["cases"]:
        if case["mode"] == mode:
            bits = "8" if case["bits"] == "8" else "8, state 16"
            cases.append(Case((case["H"], case["N"], bits), case["us_per_step"], named(case["rivals"]),
                              case.get("limit_us")))
    return cases, cpu_source(document)


def gru_cpu_sequences(results):
    """A GRU on a CPU, whole sequences."""
    cases, source = gru_cpu(results, "sequence")
    shapes = ((48, 1), (128, 1), (256, 1), (512, 1), (1024, 1), (256, 8), (1024, 8))
    return table(("H", "N", None), chosen(cases, [(*shape, "8") for shape in shapes]), source)


def gru_cpu_calls(results):
    """A GRU on a CPU, one step a call."""
    cases, source = gru_cpu(results, "streaming")
    return table(("H", None, None), chosen(cases, [(size, 1, "8") for size in (48, 128, 256, 512, 1024)]), source)


# Columns of bench/linear_rivals.py: bits of the weights, their group, what becomes of x.
LAYERS = {"float 4": ("4", "64", "float"), "int8 2": ("2", "64", "int8"), "int8 4": ("4", "64", "int8"),
          "int8 8": ("8", "64", "int8"), "dynamic": ("8", "row", "int8"), "codes": ("8", "row", "static")}


def linear_cpu_cases(results):
    (document,) = load(results, CPU, "linear.json")
    cases = [Case((case["M"], *LAYERS[case["column"]], "%dx%d" % (case["K"], case["N"])), case["us"],
                  {"ONNX Runtime": case["rival_us"]}, linear_report.share_of_limit(case) * case["us"])
             for case in document["cases"] if case["column"] in LAYERS]
    return cases, cpu_source(document)[:-1] + ", %d MiB of weights." % document["footprint_mib"]


def linear_cpu(results):
    """Linear layers on a CPU."""
    cases, source = linear_cpu_cases(results)
    keys = [(m, *layer, "4096x4096") for m in (1, 256) for layer in LAYERS.values()]
    return table(("M", "bits", "group", "x", None), chosen(cases, keys), source)


def training_cpu_cases(results):
    (document,) = load(results, CPU, "training.json")
    return [Case((case["T"], case["N"], case["C"], case["H"]), case["us"], {"PyTorch": case["torch_us"]},
                 1e6 * case["operations"] / case["peak_operations_per_second"])
            for case in document["cases"]], cpu_source(document)


def training_cpu(results):
    """Forward and backward of a GRU on a CPU, in floats and of integers."""
    (document,) = load(results, CPU, "training.json")
    lines = ["| T | N | C | H | floats, µs | integers, µs | PyTorch float32, µs | limit, µs | "
             "times as fast: floats | integers |", "|" + "---|" * 10]
    for case in document["cases"]:
        ours, rival = [case["us"], case["integers_us"]], case["torch_us"]
        limit = 1e6 * case["operations"] / case["peak_operations_per_second"]
        lines.append("| " + " | ".join([*(str(case[key]) for key in ("T", "N", "C", "H")),
                                        *map(figure, [*ours, rival, limit]), *(times(rival / of) for of in ours)]) + " |")
    return "\n".join(lines) + "\n\n" + cpu_source(document) + "\n"


def training_gpu_cases(results):
    (document,) = load(results, TRAINING_GPU, "training_cuda.json")
    return [Case((case["T"], case["N"], case["C"], case["H"]), case["us"],
                 {"cuDNN float32": case["cudnn_float32_us"]}) for case in document["cases"]], document


def training_gpu(results):
    """Forward and backward of a GRU on a GPU, in floats and of integers, beside cuDNN's types."""
    _, document = training_gpu_cases(results)
    lines = ["| T | N | C | H | floats, µs | integers, µs | cuDNN float32, µs | with TF32, µs | float16, µs | "
             "times as fast as float32: floats | integers |", "|" + "---|" * 11]
    for case in document["cases"]:
        ours, rivals = [case["us"], case["integers_us"]], [case["cudnn_%s_us" % kind]
                                                           for kind in ("float32", "tf32", "float16")]
        lines.append("| " + " | ".join([*(str(case[key]) for key in ("T", "N", "C", "H")), *map(figure, ours + rivals),
                                        *(times(rivals[0] / of) for of in ours)]) + " |")
    return "\n".join(lines) + "\n\n" + gpu_source(document).replace(GPU, TRAINING_GPU, 1) + (
        " gru-qat: %s.\n" % document["gru_qat"])


def conv_cpu_cases(results):
    (document,) = load(results, SHARED_CPU, "conv.json")
    cases = []
    for case in document["cases"]:
        key = conv_key(case)
        limit = 1e6 * case["operations"] / case["peak_operations_per_second"]
        cases.append(Case(key, case["us"], {"QLinearConv": case["qlinearconv_us"], "Conv": case["conv_us"]}, limit))
    return cases, cpu_source(document).replace(CPU, SHARED_CPU, 1)


def conv_cpu(results):
    """Convolutions of static codes on a CPU."""
    cases, source = conv_cpu_cases(results)
    keys = [("224 x 224", "3 -> 64", "7 x 7", 2, 1), ("56 x 56", "64 -> 64", "1 x 1", 1, 1),
            ("14 x 14", "1024 -> 256", "1 x 1", 1, 1), ("56 x 56", "64 -> 64", "3 x 3", 1, 1),
            ("14 x 14", "256 -> 256", "3 x 3", 1, 1), ("14 x 14", "512 -> 512", "3 x 3", 1, 512)]
    keys = [(images, *key) for key in keys for images in (1, 32)]
    return table(("N", "H x W", "C -> O", "kernel", "stride", "groups"), chosen(cases, keys), source)


def conv_cpu_steps(results):
    """Strides and dilations on a CPU."""
    (document,) = load(results, SHARED_CPU, "conv.json")
    return "\n".join([conv_steps.table(document["steps"]), conv_steps.target_table(document["steps"]),
                      cpu_source(document).replace(CPU, SHARED_CPU, 1)]) + "\n"


def conv_gpu_steps(results):
    """Strides and dilations on a GPU."""
    (document,) = load(results, GPU, "conv_cuda.json")
    free = conv_cuda_report.FREE_US
    return "\n".join([conv_steps.table(document["steps"], free), conv_steps.target_table(document["steps"], free),
                      gpu_source(document)]) + "\n"


def conv_key(case):
    return (case["images"], "%d x %d" % (case["H"], case["W"]), "%d -> %d" % (case["C"], case["O"]),
            "%d x %d" % (case["R"], case["R"]), case["stride"], case["groups"])


def conv_gpu_cases(results):
    (document,) = load(results, GPU, "conv_cuda.json")
    cases = [Case(conv_key(case), case["us"], conv_cuda_report.rivals(case), conv_cuda_report.limit_us(case))
             for case in document["cases"]]
    return cases, gpu_source(document)


def conv_gpu(results):
    """Convolutions of static codes on a GPU; and, where cuDNN's int8 was timed, why it was not in some cases."""
    cases, source = conv_gpu_cases(results)
    (document,) = load(results, GPU, "conv_cuda.json")
    keys = [("224 x 224", "3 -> 64", "7 x 7", 2, 1), ("56 x 56", "256 -> 64", "1 x 1", 1, 1),
            ("56 x 56", "64 -> 64", "3 x 3", 1, 1), ("14 x 14", "256 -> 256", "3 x 3", 1, 1),
            ("56 x 56", "128 -> 128", "3 x 3", 2, 1), ("14 x 14", "512 -> 512", "3 x 3", 1, 512)]
    keys = [(images, *key) for key in keys for images in (1, 32)]
    beside = [conv_cuda_report.INT8] if any("cudnn_int8" in case for case in document["cases"]) else []
    shown = [case for case in document["cases"] if conv_key(case) in keys]
    return table(("N", "H x W", "C -> O", "kernel", "stride", "groups"), chosen(cases, keys), source, beside) + "".join(
        "\n" + textwrap.fill("– " + line, WIDTH) + "\n" for line in conv_cuda_report.refusals(shown))


def conv_gpu_targets(results):
    """What convolutions on a GPU should reach, and how many of all that were timed do."""
    (document,) = load(results, GPU, "conv_cuda.json")
    return conv_cuda_report.target_table(document["cases"], document["float_cases"]) + "\n" + gpu_source(document) + "\n"


def conv_gpu_float(results):
    """Convolutions of floats in and out on low-bit weights on a GPU."""
    (document,) = load(results, GPU, "conv_cuda.json")
    return conv_cuda_report.float_table(document["float_cases"]) + "\n" + gpu_source(document) + "\n"


def gru_gpu(results, one_step, bits=NARROW):
    """Microseconds a step. The limit of sequences is what the blocks of a persistent kernel must exchange."""
    documents = load(results, GPU, "gru_cuda*.json")
    found = {}
    for case in (case for document in documents for case in document["cases"]):
        if "us_per_step" not in case or (case["T"] == 1) != one_step or case["weights"] != "same":
            continue
        if case["source"] == "isobit" and case["bits"] != bits:
            continue
        best = found.setdefault((case["H"], case["N"]), {})
        best[case["source"]] = min(case["us_per_step"], best.get(case["source"], math.inf))
    cases = [Case(shape, best["isobit"], named({key: best[key] for key in ("cudnn", "torch") if key in best}),
                  best.get("exchange")) for shape, best in sorted(found.items()) if "isobit" in best]
    return cases, gpu_source(documents[0])


def gru_gpu_sequences(results):
    """A GRU on a GPU, whole sequences."""
    cases, source = gru_gpu(results, one_step=False)
    shapes = ((128, 1), (256, 1), (256, 64), (512, 1), (512, 256), (1024, 1), (1024, 64), (2048, 64))
    return table(("H", "N"), chosen(cases, shapes), source)


def gru_gpu_calls(results):
    """A GRU on a GPU, one step a call."""
    cases, source = gru_gpu(results, one_step=True)
    return table(("H", "N"), chosen(cases, ((128, 1), (512, 1), (512, 64), (1024, 1), (2048, 64))), source)


def product_gpu_cases(results):
    """The product with its two rescales by `ratios`; rivals write sums of 32 bits and rescale nothing."""
    (document,) = load(results, GPU, "product_cuda.json")
    found = {}
    for name, key in (("isobit", "isobit"), ("cuBLASLt", "cublaslt"), ("PyTorch", "torch")):
        for case in document[key]:
            if case.get("chosen", True):
                found.setdefault((case["M"], case["N"], case["K"]), {})[case.get("ratios", name)] = case["us"]
    cases = []
    for shape, best in found.items():
        rivals = {name: best[name] for name in ("cuBLASLt", "PyTorch") if name in best}
        cases += [Case((*shape, ratios), best[ratios], rivals) for ratios in ("float", "fixed", "double")
                  if ratios in best]
    return cases, gpu_source(document)


def product_gpu(results):
    """The product W x of a GRU on a GPU."""
    cases, source = product_gpu_cases(results)
    shapes = ((64, 384, 128), (256, 1536, 512), (256, 3072, 1024), (4096, 6144, 2048), (65536, 1536, 512),
              (65536, 6144, 2048))
    return table(("rows", "outputs", "inputs", None), chosen(cases, [(*shape, "float") for shape in shapes]), source)


def linear_gpu_rows(results):
    """All low-bit linear layers on a GPU, by their key: K, N, M and the name of the layer."""
    (document,) = load(results, GPU, "linear.json")
    found = linear_cuda_report.rows(document)
    return {(row.case["K"], row.case["N"], row.case["M"], row.case["column"]): row for row in found}, document


def linear_gpu_cases(results):
    """Those that have a rival."""
    return [Case((row.case["M"], row.case["column"], "%dx%d" % (row.case["K"], row.case["N"])), row.case["us"],
                 row.rivals, linear_cuda_report.limit_us(row.case))
            for row in linear_gpu_rows(results)[0].values() if row.rivals]


def linear_gpu(results):
    """Low-bit linear layers on a GPU, the most usual."""
    rows, document = linear_gpu_rows(results)
    layers = [(1, "float16", 8), (1, "float16", 4), (1, "float16", 2), (1, "float16", 1), (1, "int8", 4),
              (16, "int8", 4), (64, "float16", 4), (64, "int8", 4), (256, "float16", 4), (4096, "float16", 4),
              (4096, "int8", 8), (4096, "int8", 4)]
    cells = []
    for m, x, bits in layers:
        key = (4096, 14336, m, "%s %d" % (x, bits))
        if key not in rows:
            raise Unusable("not in the results: %s" % (key,))
        row = rows[key]
        limit, target = linear_cuda_report.limit_us(row.case), row.targets[0] if row.targets else None
        rival = "–" if row.best is None else "%s (%s)" % (figure(row.rivals[row.best]), row.best)
        ratio = "–" if row.best is None else times(row.rivals[row.best] / row.case["us"])
        cells.append([str(m), x, str(bits), figure(row.case["us"]), rival, figure(limit), ratio,
                      times(row.case["us"] / limit), target.aim() + ": " + target.verdict if target else "–"])
    return linear_cuda_report.markdown(["M", "x", "bits", "isobit, µs", "best rival, µs", "limit, µs", "times as fast",
                                        "isobit / limit", "target"], cells) + "\n" + gpu_source(document) + "\n"


def linear_gpu_cell(row):
    case = row.case
    ratio = "–" if row.best is None else times(row.rivals[row.best] / case["us"])
    return "%s (%s, %s)" % (figure(case["us"]), times(case["us"] / linear_cuda_report.limit_us(case)), ratio)


def linear_gpu_of(K, N):
    """All layers of one shape."""
    def section(results):
        rows, _ = linear_gpu_rows(results)
        cells = {(row.case["column"], "M = %d" % row.case["M"]): row for key, row in rows.items() if key[:2] == (K, N)}
        if not cells:
            raise Unusable("not in the results: K = %d, N = %d" % (K, N))
        return grid("µs (of the limit, rival / isobit)", cells, linear_gpu_cell)
    return section


def linear_gpu_models(results):
    """Layers of the shapes of two real models, as one of them has its weights: 4 bits, offsets, groups of 32."""
    name = linear_cuda_report.column("int8", 4, "offset", 32)
    cells = {("%d x %d" % (row.case["K"], row.case["N"]), "M = %d" % row.case["M"]): row
             for row in linear_gpu_rows(results)[0].values()
             if row.case["column"] == name and linear_cuda_report.shape(row.case) not in linear_cuda_report.LARGE}
    if not cells:
        raise Unusable("not in the results: %s of small shapes" % name)
    return grid("µs (of the limit, rival / isobit)", cells, linear_gpu_cell)


def linear_gpu_rivals(results):
    """Every rival by itself, where layers are large; and what it refused anywhere."""
    _, document = linear_gpu_rows(results)
    return linear_cuda_report.rival_table(document, linear_cuda_report.LARGE) + "".join(
        "\n" + textwrap.fill("– " + line, WIDTH) + "\n" for line in linear_cuda_report.refusals(document))


def linear_gpu_targets(results):
    """How many layers are as fast as they should be."""
    _, document = linear_gpu_rows(results)
    return linear_cuda_report.target_table(document) + "\n" + gpu_source(document) + "\n"


def table_gpu_cases(results):
    """The limit is a copy of as many bytes."""
    (document,) = load(results, GPU, "table_cuda.json")
    timed = {(case["name"], case["x"]): case for case in document["cases"] if case["x"] == case["y"]}
    cases = []
    for name, us in document["torch"].items():
        function, dtype = name.split()
        ours = timed[function + " f32", dtype]
        cases.append(Case((function, dtype), ours["us"], {"PyTorch": us}, ours["copy_us"]))
    return cases, gpu_source(document)[:-1] + ", %d elements." % document["cases"][0]["elements"]


def table_gpu(results):
    """FP16 activation functions on a GPU."""
    cases, source = table_gpu_cases(results)
    names = (("silu", "f16"), ("gelu", "f16"), ("tanh", "f16"), ("silu", "f32"))
    return table(("function", "x and y"), chosen(cases, names), source)


def python_call(results):
    """What a call from Python adds to a small step."""
    (document,) = load(results, SHARED_CPU, "python_call.json")
    text = ("One step of one sequence, H = %d, costs %.2f µs from numpy with `out=` and a state that are there "
            "already, %.2f µs from C++: %.2f µs more. (%s: %s, commit %s, Python %s, numpy %s.)" % (
                document["H"], document["python_us"], document["cpp_us"], document["difference_us"], SHARED_CPU,
                document["machine"]["cpu"], document["commit"], document["versions"]["python"],
                document["versions"]["numpy"]))
    return textwrap.fill(text, WIDTH, break_on_hyphens=False) + "\n"


def denoiser(results):
    """examples/denoiser: the speech of integers beside that of floats."""
    (document,) = load(results, "real_models", "denoiser.json")
    versions = document["versions"]
    return "\n".join([
        "| file | SI-SDR, dB |", "|---|---|",
        *("| `%s` | %.1f |" % (row["file"], row["si_sdr_db"]) for row in document["sentences"]), "",
        "`tune` chose `bits=\"%(bits)s\"`, `method=\"%(method)s\"`, `scale=\"%(scale)s\"`, `table=\"%(table)s\"`: "
        "%(quality).1f dB\non the worst validation file, %(bytes)d bytes." % document["tune"],
        "The float network differed from ONNX Runtime by at most %.1e." % document["difference_to_onnxruntime"],
        "(Commit %s, onnxruntime %s, numpy %s.)" % (document["commit"], versions["onnxruntime"], versions["numpy"]),
        ""])


def cortex_m(results):
    """Exported GRUs on emulated microcontrollers."""
    (document,) = load(results, "cortex_m", "cortex_m.json")
    lines = ["| C | H | bits | core | weights, bytes | code, bytes | RAM, bytes | stack, bytes | instructions a step | "
             "generic / target |", "|" + "---|" * 10]
    for case in document["cases"]:
        if case["core"] in ("cortex-m7", "cortex-m33"):  # as cortex-m4, for which the same code is compiled
            continue
        lines.append("| %d | %d | `%s` | %s | %s | %s |" % (
            case["C"], case["H"], case["bits"], case["core"],
            " | ".join("%d" % number for number in (
                case["weights_bytes"], case["code_bytes"], case["state_bytes"] + case["scratch_bytes"],
                case["stack_bytes"], case["instructions"])),
            times(case["generic_instructions"] / case["instructions"])))
    source = "(%(compiler)s, %(optimisation)s; %(emulator)s;" % document["versions"]
    source += " commit %s; `bench/cortex_m.py`)" % document["commit"]
    return "\n".join(lines) + "\n\n" + textwrap.fill(source, WIDTH, break_on_hyphens=False) + "\n"


def spoken_digits(results):
    """examples/spoken_digits: words that are known in floats, calibrated and trained for integers."""
    (document,) = load(results, "spoken_digits", "spoken_digits.json")
    kinds = {"float": "float", "minmax": "min/max", "calibrated": "best calibration",
             "pow2": "trained, powers of two", "real": "trained, real scales"}
    lines = ["| weights | all else | %s | bytes |" % " | ".join(kinds.values()), "|---" * (3 + len(kinds)) + "|"]
    for row in document["table"]:
        cells = ["%(mean).2f ± %(deviation).2f" % row[kind] for kind in kinds]
        lines.append("| %s | %s | %s | %d |" % (row["weights"], row["others"], " | ".join(cells), row["bytes"]))
    different = [count for seed in document["seeds"] for setting in seed["settings"]
                 for count in setting["different_bytes"].values()]
    source = ("%d seeds; %d words to hear, %d to ask. The weights of the float GRU have %d bytes. %d integer models "
              "were saved and loaded again: their results differ from those of the training forward in %d bytes. "
              "%d seconds, threads: %d. (%s, commit %s, torch %s.)" % (
                  len(document["seeds"]), document["train"]["words"], document["test"]["words"],
                  document["float_bytes"], len(different), sum(different), document["seconds"], document["threads"],
                  document["machine"]["cpu"], document["commit"], document["versions"]["torch"]))
    return "\n".join(lines) + "\n\n" + textwrap.fill(source, WIDTH, break_on_hyphens=False) + "\n"


def g2p_finetune(results):
    """examples/g2p/finetune.py: words that are right in floats, calibrated and trained for integers."""
    (document,) = load(results, "g2p_finetune", "g2p_finetune.json")
    heads = ("model", "float", "min/max", "best calibration", "trained, mean", "least", "most", "seeds", "bytes")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in document["table"]:
        calibrated = ["%.2f" % row[key] if key in row else "–" for key in ("minmax", "calibrated")]
        trained = ["%.2f" % row["trained"][key] for key in ("mean", "least", "most")]
        lines.append("| " + " | ".join(["`%s`" % row["model"], "%.2f" % document["float"]["test"], *calibrated, *trained,
                                        str(row["seeds"]), str(row.get("bytes", document["float_bytes"]))]) + " |")
    chosen = ["`%s`: `%s`, %s" % (row["model"], row["calibration"]["method"],
                                  {"pow2": "powers of two", "real": "real scales"}[row["calibration"]["scale"]])
              for row in document["table"] if "calibration" in row]
    times = ["`%s`: %d to %d, of the processor %d to %d" % (
        row["model"], *(row[key][end] for key in ("seconds", "cpu_seconds") for end in ("least", "most")))
             for row in document["table"]]
    different = [run["different_bytes"] for model in document["models"].values() for run in model["runs"]
                 if "different_bytes" in run]
    options, words = document["options"], document["words"]
    epochs = "%d epoch%s" % (options["epochs"], "" if options["epochs"] == 1 else "s")
    source = ("%d words of the test; %s of %d other words. Best calibration, of those that were tried: %s. "
              "Seconds of a training, threads: %d: %s. %d pairs of integer GRUs were saved and loaded again: on the words "
              "of the test their states differ from those of the training forward in %d bytes. (%s, commit %s, torch "
              "%s.)" % (words["test"], epochs, words["training"], "; ".join(chosen), options["threads"],
                        "; ".join(times), len(different), sum(different), document["machine"]["cpu"],
                        document["commit"], document["versions"]["torch"]))
    return "\n".join(lines) + "\n\n" + textwrap.fill(source, WIDTH, break_on_hyphens=False) + "\n"


def conv_networks(results):
    """examples/tiny_networks: layers and classes, or words, of isobit beside those of LiteRT."""
    (document,) = load(results, "real_models", "tiny_networks.json")
    versions, runners = document["versions"], ("xnnpack", "own kernels")

    def differing(layers):
        codes, most = sum(row["codes"] for row in layers), max(row["most"] for row in layers)
        share = 1e6 * sum(row["different"] for row in layers) / codes
        return ("%.0f, by %d" if share >= 10 else "%.1f, by %d") % (share, most) if most else "0"

    def heads(*cells):
        return ["| " + " | ".join(cells) + " |", "|---" * len(cells) + "|"]

    lines = heads("network", "layers", "codes unlike XNNPACK's", "unlike own kernels'", "same class as XNNPACK",
                  "as own kernels", "XNNPACK as own kernels")
    residuals = []
    for row in document["pictures"]["networks"]:
        found = [row["runners"][name] for name in runners]
        lines.append("| `%s` | %d | %s | %d | %d | %d |" % (
            row["model"], len(found[0]["layers"]), " | ".join(differing(one["layers"]) for one in found),
            found[0]["same_class"], found[1]["same_class"], row["runners_same_class"]))
        if "residuals" in row:
            residuals.append("With ADD as the residual of the convolution before it, `%s` has the same class as "
                             "XNNPACK for %d inputs. " % (row["model"], row["residuals"]["same_class"]["xnnpack"]))
    lines += ["", *heads("wake word", "layers", "codes unlike XNNPACK's", "unlike own kernels'",
                         "logits differ from XNNPACK's", "from own kernels'",
                         "sounds with the word: isobit, XNNPACK, own kernels")]
    for row in document["wake_words"]["networks"]:
        sounds = row["sounds"]
        found = [sum(sound["found"] > 0 for sound in sounds),
                 *(sum(sound["runners"][name]["found"] > 0 for sound in sounds) for name in runners)]
        lines.append("| `%s` | %d | %s | %s | %s |" % (
            row["model"], len(row["layers"]["xnnpack"]), " | ".join(differing(row["layers"][name]) for name in runners),
            " | ".join("by %d" % max(sound["runners"][name]["most_logit_difference"] for sound in sounds)
                       for name in runners), ", ".join(map(str, found))))
    source = "%sCommit %s, ai-edge-litert %s, numpy %s." % (
        "".join(residuals), document["commit"], versions["ai-edge-litert"], versions["numpy"])
    return "\n".join([*lines, "", textwrap.fill(source, WIDTH, break_on_hyphens=False), ""])


def limits(results, what):
    """The cases of one measurement of bench/linear_limits_main.cc, and whose they are."""
    (document,) = load(results, GPU, "linear_limits.json")
    wrong = [case for case in document["cases"] if not case.get("right", True)]
    if wrong:
        raise Unusable("bench/results/%s/linear_limits.json: wrong results: %s" % (GPU, wrong))
    return [case for case in document["cases"] if case["what"] == what], gpu_source(document)


def grid(heads, cells, text):
    """Markdown: rows and columns in the order in which cells have them. cells: (row, column) and its case."""
    rows, columns = dict.fromkeys(row for row, _ in cells), dict.fromkeys(column for _, column in cells)
    lines = ["| " + " | ".join([heads, *columns]) + " |", "|---|" + "---|" * len(columns)]
    for row in rows:
        shown = [text(cells[row, column]) if (row, column) in cells else "–" for column in columns]
        lines.append("| " + " | ".join([row, *shown]) + " |")
    return "\n".join(lines) + "\n"


def width(case):
    return "%d bit%s" % (case["bits"], "s" if case["bits"] > 1 else "")


def limits_equal(results):
    """Whether float results depend on the instruction."""
    cases, source = limits(results, "equal")
    different = sorted({form for case in cases for form in case["different"]})
    return textwrap.fill("%d million results in each of %d forms beside mma.sync, %s: %s. (%s)" % (
        sum(case["results"] for case in cases) // 10**6, cases[0]["forms"],
        " and ".join(dict.fromkeys(case["type"] for case in cases)),
        "different in " + ", ".join(different) if different else "none differs in any bit", source), WIDTH) + "\n"


def limits_promote(results):
    """The main loop for many rows."""
    def row(case):
        if not case["promote"]:
            return "products, weights decoded" if case["decode"] else "products alone"
        if not case["multiply"]:
            return "promotion alone"
        return "all, group %d" % case["group"] + "".join(text for text, holds in (
            (", in halves", case["parts"] > 1), (", conversion by adding", case["by_adding"]),
            (", asymmetric", case["asymmetric"])) if holds)
    cells = {(row(case), "%d warpgroups" % case["warpgroups"]): case for case in limits(results, "promote")[0]}
    return grid("clocks of 128 elements of k (TOP/s)", cells,
                lambda case: "%.0f (%.0f)" % (case["clocks_of_stage"], case["TOP/s"]))


def limits_few_rows(results):
    """How often matrix instructions can be issued, and the main loop for few rows."""
    issue = {(" ".join([case["instruction"], case.get("activations", "")]).strip(), "%d columns" % case["n"]): case
             for case in limits(results, "issue")[0]}
    decode = {("%(instruction)s, %(activations)s, n = %(n)d" % case, width(case)): case
              for case in limits(results, "decode")[0]}
    return (grid("clocks of 64 rows", issue, lambda case: "%.1f" % case["clocks_of_64_rows"]) + "\n" +
            grid("packed bytes a clock", decode, lambda case: "%.1f" % case["bytes_per_clock"]))


def limits_twin(results):
    """Nothing but reading a layer's bytes."""
    nothing, *layers = limits(results, "twin")[0]
    cells = {("%(K)d x %(N)d" % case, width(case)): case for case in layers}
    text = ("\nA launch that reads next to nothing: %.1f, %.1f. Memory gives at most %.1f bytes for each clock of a "
            "processor.\n" % (nothing["us"], nothing["programmatic_us"],
                           max(case["bytes_per_clock"] for case in layers)))
    return grid("µs, with programmatic launch", cells,
                lambda case: "%.1f, %.1f" % (case["us"], case["programmatic_us"])) + text


def everything(results):
    """(what, its cases) of everything that was timed beside a rival, in tables or not."""
    return [("GRU on a CPU, whole sequences (H, N, bits)", gru_cpu(results, "sequence")[0]),
            ("GRU on a CPU, one step a call (H, N, bits)", gru_cpu(results, "streaming")[0]),
            ("Linear layers on a CPU (M, bits, group, x, K x N)", linear_cpu_cases(results)[0]),
            ("Training of a GRU in floats on a CPU (T, N, C, H)", training_cpu_cases(results)[0]),
            ("Training of a GRU in floats on a GPU (T, N, C, H)", training_gpu_cases(results)[0]),
            ("Convolutions on a CPU (N, H x W, C -> O, kernel, stride, groups)", conv_cpu_cases(results)[0]),
            ("Convolutions on a GPU (N, H x W, C -> O, kernel, stride, groups)", conv_gpu_cases(results)[0]),
            ("GRU on a GPU, whole sequences (H, N)", gru_gpu(results, False)[0]),
            ("GRU on a GPU, whole sequences, 16-bit state (H, N)", gru_gpu(results, False, WIDE)[0]),
            ("GRU on a GPU, one step a call (H, N)", gru_gpu(results, True)[0]),
            ("GRU on a GPU, one step a call, 16-bit state (H, N)", gru_gpu(results, True, WIDE)[0]),
            ("Product W x on a GPU (rows, outputs, inputs, rescale)", product_gpu_cases(results)[0]),
            ("Low-bit linear layers on a GPU (M, layer, K x N)", linear_gpu_cases(results)),
            ("FP16 functions on a GPU", table_gpu_cases(results)[0])]


def slower(results):
    """How many cases are slower than their best rival, and the worst of them."""
    lines = []
    for what, cases in everything(results):
        behind = sorted((case for case in cases if round(case.ratio, 2) < 1), key=lambda case: case.ratio)
        if behind:
            worst = "; ".join("%s: %.2f" % (", ".join(map(str, case.key)), case.ratio) for case in behind[:MOST_NAMED])
            more = ", the least" if len(behind) > MOST_NAMED else ""
            lines += textwrap.wrap("* %s, %d of %d%s: %s" % (what, len(behind), len(cases), more, worst), WIDTH,
                                   subsequent_indent="  ")
    return "\n".join(lines or ["Nothing that was timed."]) + "\n"


def span(cases):
    ratios = [case.ratio for case in cases]
    return "%s to %s times" % (times(min(ratios)), times(max(ratios)))


def headline(results):
    cpu = [case for case in gru_cpu(results, "sequence")[0] if case.key[2] == "8"]
    return ("**An 8-bit GRU runs %s as fast as ONNX Runtime or PyTorch on a CPU core,\n"
            "and %s as fast as cuDNN's float16 GRU on a GPU** ([measurements](docs/performance.md)).\n" %
            (span(cpu), span(gru_gpu(results, one_step=False)[0])))


SECTIONS = {"gru-cpu-sequences": gru_cpu_sequences, "gru-cpu-calls": gru_cpu_calls,
            "linear-cpu": linear_cpu, "training-cpu": training_cpu, "training-gpu": training_gpu, "conv-cpu": conv_cpu,
            "conv-cpu-steps": conv_cpu_steps,
            "conv-gpu-steps": conv_gpu_steps, "conv-gpu": conv_gpu,
            "conv-gpu-targets": conv_gpu_targets, "conv-gpu-float": conv_gpu_float,
            "conv-networks": conv_networks,
            "gru-gpu-sequences": gru_gpu_sequences, "gru-gpu-calls": gru_gpu_calls,
            "linear-gpu": linear_gpu, "linear-gpu-models": linear_gpu_models, "linear-gpu-rivals": linear_gpu_rivals,
            "linear-gpu-targets": linear_gpu_targets,
            **{"linear-gpu-%dx%d" % shape: linear_gpu_of(*shape) for shape in linear_cuda_report.LARGE},
            "product-gpu": product_gpu, "table-gpu": table_gpu, "python-call": python_call, "denoiser": denoiser,
            "cortex-m": cortex_m, "spoken-digits": spoken_digits, "g2p-finetune": g2p_finetune,
            "limits-equal": limits_equal, "limits-promote": limits_promote, "limits-few-rows": limits_few_rows,
            "limits-twin": limits_twin, "slower": slower, "headline": headline}


def bars(results):
    """(label, ratio) of the picture, from the top."""
    def one(cases, *key):
        return chosen(cases, [key])[0].ratio

    cpu, calls = (gru_cpu(results, mode)[0] for mode in ("sequence", "streaming"))
    gpu, gpu_calls = (gru_gpu(results, one_step)[0] for one_step in (False, True))
    linear = linear_cpu_cases(results)[0]
    return [("GRU 256, CPU, sequence", one(cpu, 256, 1, "8")), ("GRU 1024, CPU, sequence", one(cpu, 1024, 1, "8")),
            ("GRU 256, CPU, one step", one(calls, 256, 1, "8")),
            ("4-bit linear, CPU, 1 row", one(linear, 1, *LAYERS["int8 4"], "4096x4096")),
            ("4-bit linear, CPU, 256 rows", one(linear, 256, *LAYERS["int8 4"], "4096x4096")),
            ("GRU 256, GPU, 64 sequences", one(gpu, 256, 64)), ("GRU 1024, GPU, 64 sequences", one(gpu, 1024, 64)),
            ("GRU 512, GPU, one step", one(gpu_calls, 512, 1)),
            ("W x, GPU, 4096 rows", one(product_gpu_cases(results)[0], 4096, 6144, 2048, "float")),
            ("silu f16, GPU", one(table_gpu_cases(results)[0], "silu", "f16"))]


def picture_data(results):
    """The data of the picture as an SVG comment; what --check compares, as versions of gnuplot draw differently."""
    rows = ["%s %s" % (times(ratio), label) for label, ratio in bars(results)]
    return "<!-- times as fast as the best rival\n%s\n-->" % html.escape("\n".join(rows))


def draw(results):
    """The SVG, drawn by gnuplot."""
    rows = bars(results)
    data = "\n".join('%d %g "%s" "%s"' % (-i, ratio, label, times(ratio)) for i, (label, ratio) in enumerate(rows))
    script = """set terminal svg size 760,%d font "sans-serif,14" background rgb "white"
set title "Times as fast as the best rival"
set style fill solid 0.9 noborder
set border 1
set xtics nomirror out
set ytics scale 0
set xrange [0:%g]
set yrange [%g:0.6]
set arrow from 1,graph 0 to 1,graph 1 nohead dashtype 2 lc rgb "#444444" front
$data << END
%s
END
plot $data using ($2/2):1:($2/2):(0.36):ytic(3) with boxxyerror lc rgb "#3465a4" notitle, \\
  $data using 2:1:4 with labels left offset 0.6,0 notitle
""" % (70 + 27 * len(rows), 1.12 * max(ratio for _, ratio in rows), 0.4 - len(rows), data)
    try:
        done = subprocess.run(["gnuplot", "-d"], input=script, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Unusable("gnuplot, which draws %s, cannot be run: %s" % (PICTURE, error)) from error
    if done.returncode != 0:
        raise Unusable("gnuplot: " + done.stderr.strip())
    svg = re.sub(r"(<svg[^>]*>)", lambda found: found[1] + "\n" + picture_data(results), done.stdout, count=1)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def rendered(text, results, where):
    """The document with all of its tables anew."""
    def section(found):
        if found[2] not in SECTIONS:
            raise Unusable("%s: <!-- bench:%s -->: no such table; there are %s" %
                           (where, found[2], ", ".join(SECTIONS)))
        return found[1] + SECTIONS[found[2]](results) + found[3]
    if len(re.findall("<!-- bench:", text)) != len(MARKED.findall(text)):
        raise Unusable("%s: a <!-- bench:NAME --> without its <!-- /bench -->" % where)
    return MARKED.sub(section, text)


def differences(root, change):
    """Names of files that are not what the results give; with `change` they are written, all of them or none."""
    results, texts = os.path.join(root, "bench", "results"), {}
    for name in DOCUMENTS:
        with open(os.path.join(root, name), encoding="utf-8") as file:
            old = file.read()
        new = rendered(old, results, name)
        if new != old:
            texts[name] = new
    old = ""
    if os.path.exists(os.path.join(root, PICTURE)):
        with open(os.path.join(root, PICTURE), encoding="utf-8") as file:
            old = file.read()
    if picture_data(results) not in old:
        texts[PICTURE] = draw(results) if change else ""
    for name, text in texts.items() if change else ():
        with open(os.path.join(root, name), "w", encoding="utf-8") as file:
            file.write(text)
    return list(texts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if something differs")
    parser.add_argument("--root", default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        found = differences(args.root, not args.check)
    except Unusable as problem:
        sys.exit("error: %s" % problem)
    for name in found:
        print(name + (": not what bench/results gives; run scripts/bench.sh --report" if args.check else ": written"))
    sys.exit(1 if args.check and found else 0)


if __name__ == "__main__":
    main()
