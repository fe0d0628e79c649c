#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times convolutions of static codes of isobit and of ONNX Runtime in one run, one thread each; scripts/bench.sh conv
starts it.

Shape by shape, for one image and 32, rounds time isobit, QLinearConv and the float Conv of ONNX Runtime one after the
other, so that noise and clock changes hit all alike; the figures are medians over the rounds of medians over the runs of a round. Of ONNX Runtime
it is the time of the operator in its own profile: the graph around it turns NCHW into NHWC and back, which a network
does once, and starts a session. Its codes are compared with float64 in some outputs. Then isobit alone, as it is and
with strides and dilations (bench/conv_steps.py), one after the other, too.
"""
import argparse
import collections
import json
import os
import statistics
import sys
import tempfile

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

import conv_steps  # noqa: E402
import report  # noqa: E402
from line_program import LineProgram  # noqa: E402

KEYS = ("H", "W", "C", "O", "R", "stride", "pad", "groups")
ZERO = 128
CHECKED = 64  # outputs
BATCHES = (1, 32)
Case = collections.namedtuple("Case", KEYS)


class Rival:
    """One operator of ONNX Runtime: QLinearConv, or Conv of float32."""

    def __init__(self, case, images, op_type):
        self.case, self.op_type = case, op_type
        self.random = np.random.default_rng(case.C * 1000 + case.O)
        self.w = self.random.integers(-127, 128, (case.O, case.C // case.groups, case.R, case.R)).astype(np.int8)
        self.x = self.random.integers(0, 256, (images, case.C, case.H, case.W)).astype(np.uint8)
        self.y_scale = np.float32(1.5 * self.w[0].size**0.5)  # the result's deviation is some tens of codes
        self.runs = []  # of each round
        quantised = op_type == "QLinearConv"
        if quantised:
            scales = np.full(case.O, 2**-7, np.float32)
            arrays = {"xs": np.array(2**-7, np.float32), "z": np.array(ZERO, np.uint8), "w": self.w, "ws": scales,
                      "wz": np.zeros(case.O, np.int8), "ys": self.y_scale * np.float32(1)}
            inputs = ["x", "xs", "z", "w", "ws", "wz", "ys", "z"]
        else:
            self.x = self.x.astype(np.float32)
            arrays, inputs = {"w": self.w.astype(np.float32)}, ["x", "w"]
        kind = TensorProto.UINT8 if quantised else TensorProto.FLOAT
        node = helper.make_node(op_type, inputs, ["y"], kernel_shape=[case.R] * 2, strides=[case.stride] * 2,
                                pads=[case.pad] * 4, group=case.groups)
        graph = helper.make_graph([node], "conv", [helper.make_tensor_value_info("x", kind, self.x.shape)],
                                  [helper.make_tensor_value_info("y", kind, None)],
                                  [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_profiling = True
        self.folder = tempfile.TemporaryDirectory()
        options.profile_file_prefix = os.path.join(self.folder.name, "profile")
        self.session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(self, count):
        for _ in range(count):
            y = self.session.run(None, {"x": self.x})[0]
        self.runs.append(count)
        return y

    def check(self):
        """Of a few outputs: within one code, as ONNX Runtime rescales in float32."""
        case, y = self.case, self.run(1)
        if self.op_type != "QLinearConv":
            return
        padded = np.pad(self.x[0].astype(np.int64) - ZERO, ((0, 0), (case.pad,) * 2, (case.pad,) * 2))
        for _ in range(CHECKED):
            o, p, q = (int(self.random.integers(0, size)) for size in y.shape[1:])  # of the first image
            first = o // (case.O // case.groups) * (case.C // case.groups)
            i, j = p * case.stride, q * case.stride
            window = padded[first:first + case.C // case.groups, i:i + case.R, j:j + case.R]
            expected = np.clip((window * self.w[o]).sum() * 2.0**-14 / float(self.y_scale) + ZERO, 0, 255)
            if abs(expected - float(y[0, o, p, q])) > 1:
                sys.exit("error: %s of %s: output %d, %d, %d is %d, must be %.1f" %
                         (self.op_type, self.case, o, p, q, y[0, o, p, q], expected))

    def medians(self):
        """Microseconds of each round."""
        with open(self.session.end_profiling(), encoding="utf-8") as file:
            events = json.load(file)
        times = [event["dur"] for event in events
                 if event.get("cat") == "Node" and event.get("args", {}).get("op_name") in (self.op_type, "FusedConv")
                 and event["name"].endswith("kernel_time")]
        if len(times) != sum(self.runs):
            sys.exit("error: %s of %s: %d times of %d runs in the profile" %
                     (self.op_type, self.case, len(times), sum(self.runs)))
        rounds, at = [], 0
        for count in self.runs:
            rounds.append(statistics.median(times[at:at + count]))
            at += count
        return rounds


def ours(args, shape, images):
    """conv_bench: packs once, measures for each line that it gets."""
    return LineProgram(args.program, image=[shape["H"], shape["W"]], channels=shape["C"], outputs=shape["O"],
                       kernel=shape["R"], stride=shape["stride"], dilation=shape.get("dilation", 1), pad=shape["pad"],
                       groups=shape["groups"], images=images, min_time=args.min_time)


def measure_steps(args, images):
    """Cases as conv_steps has them."""
    shapes = conv_steps.shapes()
    cases, programs = [], [ours(args, shape, images) for shape in shapes]
    samples = [[program.measure() for program in programs] for _ in range(args.rounds + 1)][1:]
    for shape, program, *times in zip(shapes, programs, *samples):
        program.end()
        cases.append({**shape, "images": images, "us": statistics.median(time["us"] for time in times)})
    return cases


def measure(args, case, images):
    program = ours(args, case._asdict(), images)
    rivals = [Rival(case, images, "QLinearConv"), Rival(case, images, "Conv")]
    for rival in rivals:
        rival.check()
    program.measure()
    samples = []
    for _ in range(args.rounds):
        samples.append(program.measure())
        for rival in rivals:
            rival.run(max(5, min(200, int(args.min_time * 1e6 / samples[-1]["us"]))))
    program.end()
    result = {**case._asdict(), "images": images, "path": samples[0]["path"], "operations": samples[0]["operations"],
              "us": statistics.median(sample["us"] for sample in samples)}
    if "peak" in samples[0]:
        result["peak"] = samples[0]["peak"]
        result["peak_operations_per_second"] = statistics.median(
            sample["peak_operations_per_second"] for sample in samples)
    for rival, key in zip(rivals, ("qlinearconv_us", "conv_us")):
        result[key] = statistics.median(rival.medians()[1:])  # not that of the check
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/release/bench/conv_bench")
    parser.add_argument("--shapes", default=os.path.join(os.path.dirname(__file__), "shapes", "conv.txt"))
    parser.add_argument("--json", help="file for the report")
    parser.add_argument("--quick", action="store_true", help="one round, of two shapes")
    args = parser.parse_args()
    args.rounds, args.min_time = (1, 0.02) if args.quick else (7, 0.05)
    cases = [Case(*row) for row in report.read_shapes(args.shapes)]
    document = {"benchmark": "conv", "machine": report.machine(), "commit": report.commit(),
                "versions": {"onnxruntime": ort.__version__}, "cases": [], "steps": []}
    print("| N | H x W | C -> O | kernel | stride | groups | isobit, µs | QLinearConv, µs | float Conv, µs | of the peak | "
          "times as fast |\n|" + "---|" * 11)
    cases = cases[:2] if args.quick else cases
    for case, images in [(case, images) for case in cases for images in BATCHES]:
        one = measure(args, case, images)
        document["cases"].append(one)
        share = one["operations"] / one["us"] * 1e6 / one.get("peak_operations_per_second", float("inf"))
        print("| %d | %d x %d | %d -> %d | %d x %d | %d | %d | %.1f | %.1f | %.1f | %.2f | %.2f |" % (
            images, case.H, case.W, case.C, case.O, case.R, case.R, case.stride, case.groups, one["us"], one["qlinearconv_us"],
            one["conv_us"], share, min(one["qlinearconv_us"], one["conv_us"]) / one["us"]), flush=True)
    for images in () if args.quick else BATCHES:
        document["steps"] += measure_steps(args, images)
    if document["steps"]:
        print("\n" + conv_steps.table(document["steps"]) + "\n" + conv_steps.target_table(document["steps"]))
    print("\n" + report.source(document))
    if args.json:
        report.write_json(args.json, document)


if __name__ == "__main__":
    main()
