#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Convolutions on a CUDA device beside cuDNN; scripts/bench.sh --cuda conv starts it.

Runs the benchmark program given as the first argument on every shape of bench/shapes/conv.txt, one image and 32, that
of cuDNN's int8 convolutions (of which the fastest is taken), and PyTorch's conv2d of float16 in NHWC (where torch is
importable), which takes cuDNN's fastest algorithm. The program times layers of static codes, beside both, and of floats
in and out on low-bit weights, beside float16; and some as they are and with strides and dilations
(bench/conv_steps.py). Images are in no cache; launches are captured in a graph and replayed. Prints Markdown.
"""
import argparse
import json
import os
import subprocess

import conv_cuda_report
import conv_steps
import report
from json_lines import run
from torch_timer import microseconds_in_turn

try:
    import torch
except ImportError:
    torch = None

KEYS = ("H", "W", "C", "O", "R", "stride", "pad", "groups")
BATCHES = (1, 32)
LAST_LAYOUT = list(conv_cuda_report.LAYOUTS)[-1]  # of conv_cudnn's lines of a shape
CACHES = 3  # times the second-level cache, that copies are larger than together


def option(shape):
    dilation = shape.get("dilation", 1)
    if shape["pad"] != dilation * (shape["R"] // 2):
        raise SystemExit("error: bench/shapes/conv.txt: %s: pad must be R // 2" % shape)
    return "{H}x{W}x{C}:{O}:{R}:{stride}:{groups}:{}".format(dilation, **shape)


def time_steps(program):
    """Cases as conv_steps has them, of many images."""
    shapes, layers = conv_steps.shapes(), conv_cuda_report.STEP_LAYERS
    command = [program, "--batch", str(BATCHES[-1]), "--layers", ",".join(layers)]
    for shape in shapes:
        command += ["--conv", option(shape)]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    found = iter(map(json.loads, lines))
    cases = [(shape, next(found)) for shape in shapes for _ in layers]
    return [{**shape, **{key: line[key] for key in ("images", "layer", "us", "kernel")}} for shape, line in cases]


def cudnn_us(shape, images):
    """Microseconds of float16 in NHWC."""
    def tensor(*sizes):
        return torch.randn(*sizes, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)

    weights = tensor(shape["O"], shape["C"] // shape["groups"], shape["R"], shape["R"])
    size = 2 * images * shape["H"] * shape["W"] * (shape["C"] + shape["O"] // shape["stride"] ** 2)
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    copies = [(tensor(images, shape["C"], shape["H"], shape["W"]),) for _ in range(max(2, CACHES * cache // size + 1))]
    return microseconds_in_turn(torch, copies, lambda x: torch.nn.functional.conv2d(
        x, weights, stride=shape["stride"], padding=shape["pad"], groups=shape["groups"]))


def int8_lines(program, shape):
    """What conv_cudnn says of a shape, by images, and why that is not all."""
    lines, problem = run(program, ["--batch", ",".join(map(str, BATCHES)), "--conv", option(shape)])
    found = {images: [line for line in lines if line["images"] == images] for images in BATCHES}
    for images, those in found.items():
        if problem and LAST_LAYOUT not in [line["layout"] for line in those]:
            those.append({"layout": "every layout", "refused": "its program ended: " + problem, "images": images})
    return found, problem, next((line["cudnn"] for line in lines), None)


def add_int8(program, cases):
    """Adds cudnn_int8 to the cases. Returns the version of cuDNN, and why the program did not run at all."""
    versions, problems, shapes = [], [], {option(case): case for case in cases}
    for text, shape in shapes.items():
        found, problem, version = int8_lines(program, shape)
        problems += [problem] if problem else []
        versions += [version] if version else []
        for case in cases:
            if option(case) == text:
                # The device and the version are those of the document.
                case["cudnn_int8"] = [{key: value for key, value in line.items()
                                       if key not in ("device", "cudnn", "conv", "images")}
                                      for line in found[case["images"]]]
    return (versions[0], []) if versions else (None, problems[:1])


def cell(us):
    return "–" if us is None else "%.3g" % us


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--cudnn", help="conv_cudnn; without it cuDNN's int8 convolutions are not timed")
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="two shapes")
    options = parser.parse_args()
    shapes = [dict(zip(KEYS, row)) for row in report.read_shapes(
        os.path.join(os.path.dirname(os.path.abspath(__file__)), "shapes", "conv.txt"))]
    shapes = shapes[:2] if options.quick else shapes
    command = [options.program, "--batch", ",".join(map(str, BATCHES)),
               "--layers", ",".join(["static", *conv_cuda_report.FLOAT_LAYERS])]
    for shape in shapes:
        command += ["--conv", option(shape)]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    ours = iter(map(json.loads, lines))
    everything = [{**shape, **next(ours)} for shape in shapes for _ in BATCHES
                  for _ in ("static", *conv_cuda_report.FLOAT_LAYERS)]
    cases = [case for case in everything if case["layer"] == "static"]
    float_cases = [case for case in everything if case["layer"] != "static"]
    device = cases[0]["device"]
    int8_version, problems = add_int8(options.cudnn, cases) if options.cudnn else (None, [])
    if torch is not None:
        torch.backends.cudnn.benchmark = True
        for case in cases:
            case["cudnn_f16_us"] = cudnn_us(case, case["images"])
            for beside in float_cases:
                if conv_cuda_report.name(beside) == conv_cuda_report.name(case):
                    beside["cudnn_f16_us"] = case["cudnn_f16_us"]
    names = [*conv_cuda_report.LAYOUTS] if options.cudnn else []
    print("| N | H x W | C -> O | kernel | stride | groups | isobit, µs | kernel | cuDNN float16, µs | " +
          "".join("cuDNN int8, %s, µs | " % conv_cuda_report.LAYOUTS[layout] for layout in names) +
          "limit, µs | times as fast |\n|" + "---|" * (11 + len(names)))
    for case in cases:
        rivals, int8 = conv_cuda_report.rivals(case), conv_cuda_report.int8_times(case)
        cells = [case["images"], "%(H)d x %(W)d" % case, "%(C)d -> %(O)d" % case, "%(R)d x %(R)d" % case,
                 case["stride"], case["groups"], cell(case["us"]), case["kernel"], cell(case.get("cudnn_f16_us")),
                 *(cell(int8.get(layout)) for layout in names), cell(conv_cuda_report.limit_us(case)),
                 "%.2f" % (min(rivals.values()) / case["us"]) if rivals else "–"]
        print("| " + " | ".join(map(str, cells)) + " |")
    for line in conv_cuda_report.refusals(cases):
        print("\n– " + line)
    print("\n" + conv_cuda_report.float_table(float_cases))
    print(conv_cuda_report.target_table(cases, float_cases), end="")
    steps = [] if options.quick else time_steps(options.program)
    if steps:
        print("\n" + conv_steps.table(steps, conv_cuda_report.FREE_US) + "\n" +
              conv_steps.target_table(steps, conv_cuda_report.FREE_US))
    versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()} if torch else {}
    if int8_version and int8_version != versions.setdefault("cudnn", int8_version):
        versions["cudnn_int8"] = int8_version
    print("\n%s, %s" % (device, versions or "PyTorch: not importable, not timed"))
    for problem in problems:
        print("\nNot finished: cuDNN int8: %s" % problem)
    if options.json:
        report.write_json(options.json, {"benchmark": "conv_cuda", "device": device, "machine": report.machine(),
                                         "commit": report.commit(), "versions": versions, "problems": problems,
                                         "cases": cases, "float_cases": float_cases, "steps": steps})


if __name__ == "__main__":
    main()
