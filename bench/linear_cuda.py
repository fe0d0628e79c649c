#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Low-bit linear layers on a CUDA device beside their rivals and limits; scripts/bench.sh --cuda linear starts it.

Shape by shape it runs isobit's program, the reading of as many bytes as its layers have, cuBLASLt's float16 and int8
products (the fastest of the algorithms that it proposes), and, where torch is importable, torch._int_mm and tinygemm,
its 4-bit layer. All are replayed from CUDA graphs on the same device, with copies of the weights in turn that are
together more than three times the second-level cache. bench/linear_cuda_report.py prints the tables, also of several
runs that are parts of one.
"""
import argparse
import os
import sys
import time

import linear_cuda_report
import report
from json_lines import run
from linear_cuda_report import CODES, HALF, INT_MM, SUMS, TINYGEMM
from torch_timer import microseconds_in_turn

try:
    import torch
except ImportError:
    torch = None

SHAPES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shapes", "linear.txt")
LARGEST = (8192, 28672)  # K, N; too large for one core, and so not in that file
M = "1,8,16,64,256,4096"
# Weights, activations. Static layers have one scale a row.
LAYERS = [("8,4,2,1,4:zero_point,4:offset:32", "float16,int8"), ("8:symmetric:0,4:symmetric:0", "static")]
CUBLASLT = {"float16": HALF, "int8": CODES, "int8_int32": SUMS}
ALGORITHMS = 8
GROUP = 128  # of tinygemm


def torch_copies(weights):
    """Copies of some tensors, more than three times the second-level cache together."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights)
    count = max(2, 3 * torch.cuda.get_device_properties(0).L2_cache_size // size + 1)
    return [weights, *([tensor.clone() for tensor in weights] for _ in range(count - 1))]


def int_mm(K, N, m):
    weights = torch.randint(-128, 128, (N, K), device="cuda", dtype=torch.int8)
    x = torch.randint(-128, 128, (m, K), device="cuda", dtype=torch.int8)
    return [weights], lambda w: torch._int_mm(x, w.t())


def tinygemm(K, N, m):
    if K % GROUP:
        raise RuntimeError("K is not a multiple of its group of %d" % GROUP)
    codes = torch.randint(0, 256, (N, K // 2), device="cuda", dtype=torch.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack(codes, 8)
    scales = torch.full((K // GROUP, N, 2), 0.01, device="cuda", dtype=torch.bfloat16)
    x = torch.rand((m, K), device="cuda").mul_(2).sub_(1).bfloat16()
    return [packed, scales], lambda w, s: torch.ops.aten._weight_int4pack_mm(x, w, GROUP, s)


def torch_cases(K, N, rows):
    """Of PyTorch's layers; what one of them refuses is said in its words."""
    for m in rows:
        for name, make in ((INT_MM, int_mm), (TINYGEMM, tinygemm)):
            case = {"K": K, "N": N, "M": m, "column": name}
            try:
                weights, call = make(K, N, m)
                call(*weights)
            except (RuntimeError, AttributeError) as error:
                yield {**case, "refused": str(error).splitlines()[0]}
                continue
            copies = torch_copies(weights)
            yield {**case, "us": microseconds_in_turn(torch, copies, call), "copies": len(copies)}
            del weights, call, copies
    torch.cuda.empty_cache()  # the programs run on the same device


def refused(K, N, rows, names, reason):
    return [{"K": K, "N": N, "M": m, "column": name, "refused": reason} for m in rows for name in names]


class Bench:
    """Collects the cases of one run."""

    def __init__(self, options):
        self.options = options
        self.device, self.cublaslt = None, None
        self.cases, self.problems, self.parts = [], [], []

    def run(self, name, program, arguments, K, N):
        """The program's lines."""
        lines, problem = run(program, arguments)
        if problem:
            self.problems.append("%s, %d x %d: %s" % (name, K, N, problem))
        self.check_device(lines)
        return lines

    def check_device(self, lines):
        for line in lines:
            self.device = self.device or line["device"]
            if line["device"] != self.device:
                sys.exit("error: two devices: %s, %s" % (self.device, line["device"]))

    def time_isobit(self, K, N, rows):
        lines = [line for weights, activations in LAYERS for line in self.run(
            "isobit", self.options.program, ["--shape", "%dx%d" % (K, N), "--m", ",".join(map(str, rows)),
                                             "--weights", weights, "--activations", activations], K, N)]
        if not lines:
            return
        sizes = sorted({line["weight_bytes"] for line in lines})
        read = {line["bytes"]: line for line in self.run("floor", self.options.floor,
                                                         ["--bytes", ",".join(map(str, sizes))], K, N)}
        for line in lines:
            limit = read.get(line["weight_bytes"])
            if limit is None:
                continue  # a problem says so
            peak = limit["peak_operations_per_second"]["float16" if line["activations"] == "float16" else "int8"]
            self.cases.append({
                **{key: value for key, value in line.items() if key != "device"},
                "column": linear_cuda_report.column(*(line[key] for key in ("activations", "bits", "kind", "group"))),
                "floor_us": limit["us"], "operations_us": 2e6 * K * N * line["M"] / peak,
                "cache_us": linear_cuda_report.cache_bytes(line) / limit["cache_bytes_per_us"]})

    def time_cublaslt(self, K, N, rows):
        if not self.options.cublaslt:
            self.cases += refused(K, N, rows, CUBLASLT.values(), "its program, product_cublaslt, is not there")
            return
        products = [text for m in rows for text in ("--shape", str(m), str(N), str(K))]
        lines, problem = run(self.options.cublaslt, [*products, "--types", ",".join(CUBLASLT), "--algorithms",
                                                     str(ALGORITHMS), "--cold"])
        self.check_device(lines)
        if not lines:  # its library is not there, say
            self.cases += refused(K, N, rows, CUBLASLT.values(), problem)
        elif problem:
            self.problems.append("cuBLASLt, %d x %d: %s" % (K, N, problem))
        for line in lines:
            self.cublaslt = line["cublaslt"]
            self.cases.append({"column": CUBLASLT[line["types"]], **{
                key: line[key] for key in ("K", "N", "M", "us", "copies", "refused") if key in line}})

    def time_torch(self, K, N, rows):
        if torch is None:
            self.cases += refused(K, N, rows, (INT_MM, TINYGEMM), "python3 cannot import torch")
        else:
            self.cases.extend(torch_cases(K, N, rows))

    def shape(self, K, N, rows):
        begin = time.monotonic()
        for name, work in (("isobit and its limits", self.time_isobit), ("cuBLASLt", self.time_cublaslt),
                           ("PyTorch", self.time_torch)):
            before = time.monotonic()
            work(K, N, rows)
            print("K %d, N %d: %s %.1f s" % (K, N, name, time.monotonic() - before), file=sys.stderr, flush=True)
        self.parts.append({"K": K, "N": N, "M": rows, "seconds": time.monotonic() - begin})

    def document(self):
        return {"device": self.device, "machine": report.machine(), "commit": report.commit(),
                "versions": {"cublaslt": self.cublaslt, "torch": torch.__version__ if torch else None},
                "problems": self.problems, "parts": self.parts, "cases": self.cases}


def numbers(text):
    return [int(number) for number in text.split(",")]


def shapes(text):
    pairs = [tuple(map(int, shape.split("x"))) for shape in text.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(text)
    return pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="cuda_linear_bench")
    parser.add_argument("--floor", required=True, help="linear_floor")
    parser.add_argument("--cublaslt", help="product_cublaslt; without it cuBLASLt is not timed")
    parser.add_argument("--shape", type=shapes, metavar="LIST",
                        help="KxN; default: those of bench/shapes/linear.txt, and 8192x28672")
    parser.add_argument("--m", type=numbers, default=M, metavar="LIST", help="rows of x; default: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to this file as well, after every shape")
    options = parser.parse_args()
    bench = Bench(options)
    for K, N in options.shape or [*report.read_shapes(SHAPES), LARGEST]:
        bench.shape(K, N, options.m)
        if options.json:  # what is done is kept, should the run be stopped
            report.write_json(options.json, bench.document())
    linear_cuda_report.tables(bench.document())
    if any(not problem.startswith("cuBLASLt") for problem in bench.problems):
        sys.exit("error: isobit's programs failed")


if __name__ == "__main__":
    main()
