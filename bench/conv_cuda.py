#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Convolutions on a CUDA device beside cuDNN; scripts/bench.sh --cuda conv starts it.

Runs the benchmark program given as the first argument on every shape of bench/shapes/conv.txt, one image and 32, then
PyTorch's conv2d of float16 in NHWC (where torch is importable), which takes cuDNN's fastest algorithm. Images are in no
cache; launches are captured in a graph and replayed. Of cuDNN's int8 convolutions PyTorch has none. Prints Markdown.
"""
import argparse
import json
import os
import subprocess

import report
from torch_timer import microseconds_in_turn

try:
    import torch
except ImportError:
    torch = None

KEYS = ("H", "W", "C", "O", "R", "stride", "pad", "groups")
BATCHES = (1, 32)
CACHES = 3  # times the second-level cache, that copies are larger than together


def option(shape):
    if shape["pad"] != shape["R"] // 2:
        raise SystemExit("error: bench/shapes/conv.txt: %s: pad must be R // 2" % shape)
    return "{H}x{W}x{C}:{O}:{R}:{stride}:{groups}".format(**shape)


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="two shapes")
    options = parser.parse_args()
    shapes = [dict(zip(KEYS, row)) for row in report.read_shapes(
        os.path.join(os.path.dirname(os.path.abspath(__file__)), "shapes", "conv.txt"))]
    shapes = shapes[:2] if options.quick else shapes
    command = [options.program, "--batch", ",".join(map(str, BATCHES))]
    for shape in shapes:
        command += ["--conv", option(shape)]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    ours = iter(map(json.loads, lines))
    cases = [{**shape, **next(ours)} for shape in shapes for _ in BATCHES]
    device = cases[0]["device"]
    if torch is not None:
        torch.backends.cudnn.benchmark = True
        for case in cases:
            case["cudnn_f16_us"] = cudnn_us(case, case["images"])
    print("| N | H x W | C -> O | kernel | stride | groups | isobit, µs | kernel | cuDNN float16, µs | limit, µs | "
          "times as fast |\n|" + "---|" * 11)
    for case in cases:
        rival = case.get("cudnn_f16_us")
        print("| %d | %d x %d | %d -> %d | %d x %d | %d | %d | %.3g | %s | %s | %.3g | %s |" % (
            case["images"], case["H"], case["W"], case["C"], case["O"], case["R"], case["R"], case["stride"],
            case["groups"], case["us"], case["kernel"], "%.3g" % rival if rival else "–",
            max(case["operations_us"], case["memory_us"]), "%.2f" % (rival / case["us"]) if rival else "–"))
    versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()} if torch else {}
    print("\n%s, %s" % (device, versions or "PyTorch: not importable, not timed"))
    if options.json:
        report.write_json(options.json, {"benchmark": "conv_cuda", "device": device, "machine": report.machine(),
                                         "commit": report.commit(), "versions": versions, "cases": cases})


if __name__ == "__main__":
    main()
