#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the GRU of isobit and of its rivals in one run, one thread each; scripts/bench.sh gru starts it.

Every round times, shape by shape, ONNX Runtime, PyTorch and isobit one after the other, so that noise and clock
changes hit all alike; the figures are medians over the rounds. Each rival's output is checked once against a float
GRU in numpy.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

import report  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

MODES = ("sequence", "streaming")
BITS = ("8", "8,h=16,linear=16")
RIVALS = {"ort_f32": "ORT f32", "ort_f32_streaming": "ORT f32 streaming", "torch_int8": "torch int8"}


class Gru:
    """Random float weights in the gate order u, r, n and an input of T steps."""

    def __init__(self, steps, batch, inputs, hidden):
        self.T, self.N, self.C, self.H = steps, batch, inputs, hidden
        random = np.random.default_rng(hidden * 1000 + batch)
        bound = hidden**-0.5
        self.W, self.R, self.bw, self.br = (
            random.uniform(-bound, bound, shape).astype(np.float32)
            for shape in ((3 * hidden, inputs), (3 * hidden, hidden), (3 * hidden,), (3 * hidden,)))
        self.x = random.standard_normal((steps, batch, inputs)).astype(np.float32)

    def expected(self, steps):
        """The first `steps` states, float64; reset applied after the matrix product."""
        weights = (self.W, self.R, self.bw, self.br)
        W, R, bw, br = (a.astype(np.float64) for a in weights)
        h = np.zeros((self.N, self.H))
        y = np.empty((steps, self.N, self.H))
        for t in range(steps):
            iu, ir, i_n = np.split(self.x[t] @ W.T + bw, 3, axis=1)
            hu, hr, hn = np.split(h @ R.T + br, 3, axis=1)
            u, r = 1 / (1 + np.exp(-(iu + hu))), 1 / (1 + np.exp(-(ir + hr)))
            h = y[t] = u * h + (1 - u) * np.tanh(i_n + r * hn)
        return y


def ort_session(gru, steps):
    """ONNX's gate order is z r h, which is our u r n."""
    H, N, C = gru.H, gru.N, gru.C
    node = helper.make_node("GRU", ["X", "W", "R", "B", "", "H0"], ["Y", "Yh"], hidden_size=H, linear_before_reset=1)
    bias = np.concatenate([gru.bw, gru.br])
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "gru",
        [value("X", TensorProto.FLOAT, [steps, N, C]), value("H0", TensorProto.FLOAT, [1, N, H])],
        [value("Y", TensorProto.FLOAT, [steps, 1, N, H]), value("Yh", TensorProto.FLOAT, [1, N, H])],
        [onnx.numpy_helper.from_array(a[None], name) for name, a in (("W", gru.W), ("R", gru.R), ("B", bias))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class OrtSequence:
    """ONNX Runtime, float, all steps in one call."""

    def __init__(self, gru):
        self.session, self.steps = ort_session(gru, gru.T), gru.T
        self.feed = {"X": gru.x, "H0": np.zeros((1, gru.N, gru.H), np.float32)}

    def output(self, steps):
        return self.session.run(["Y"], self.feed)[0][:steps, 0]

    def __call__(self):
        self.session.run(["Y"], self.feed)


class OrtStreaming:
    """ONNX Runtime, float, one step a call: initial_h in, Y_h out, the two state buffers take turns."""

    def __init__(self, gru):
        self.session, self.steps, self.gru = ort_session(gru, 1), min(gru.T, 64), gru
        states = [ort.OrtValue.ortvalue_from_numpy(np.zeros((1, gru.N, gru.H), np.float32)) for _ in range(2)]
        self.x = ort.OrtValue.ortvalue_from_numpy(gru.x[:1].copy())
        self.turns = []
        for before, after in (states, states[::-1]):
            binding = self.session.io_binding()
            binding.bind_ortvalue_input("X", self.x)
            binding.bind_ortvalue_input("H0", before)
            binding.bind_ortvalue_output("Yh", after)
            self.turns.append((binding, after))

    def output(self, steps):
        y = np.empty((steps, self.gru.N, self.gru.H), np.float32)
        for t in range(steps):
            binding, after = self.turns[t % 2]
            self.x.update_inplace(self.gru.x[t:t + 1].copy())
            self.session.run_with_iobinding(binding)
            y[t] = after.numpy()[0]
        return y

    def __call__(self):
        run = self.session.run_with_iobinding
        first, second = self.turns[0][0], self.turns[1][0]
        for _ in range(self.steps // 2):
            run(first)
            run(second)


class TorchInt8:
    """PyTorch dynamic int8, all steps in one call; its gate order is r z n."""

    def __init__(self, gru):
        torch.set_num_threads(1)
        self.steps = gru.T
        module = torch.nn.GRU(gru.C, gru.H)

        def reordered(a):
            u, r, n = np.split(a, 3)
            return torch.from_numpy(np.concatenate([r, u, n]))

        with torch.no_grad():
            module.weight_ih_l0.copy_(reordered(gru.W))
            module.weight_hh_l0.copy_(reordered(gru.R))
            module.bias_ih_l0.copy_(reordered(gru.bw))
            module.bias_hh_l0.copy_(reordered(gru.br))
        # quantize_dynamic replaces the children of a module, so the GRU is given a parent.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parent = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(module).eval(), {torch.nn.GRU},
                                                            dtype=torch.qint8)
        self.module = parent[0]
        if not isinstance(self.module, torch.ao.nn.quantized.dynamic.GRU):
            sys.exit("error: quantize_dynamic of PyTorch %s left the GRU in float" % torch.__version__)
        self.x = torch.from_numpy(gru.x)

    def output(self, steps):
        with torch.inference_mode():
            return self.module(self.x)[0][:steps].numpy()

    def __call__(self):
        with torch.inference_mode():
            self.module(self.x)


def us_per_step(run, min_time):
    """Median time of a call over at least min_time seconds and three calls, divided by its steps."""
    run()
    times, end = [], time.perf_counter() + min_time
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6 / run.steps


def check(gru, name, rival, steps):
    """Float must agree to rounding; int8 (8-bit weights and activations) roughly."""
    limit = 1e-4 if name.startswith("ort") else 0.1
    worst = float(np.abs(rival.output(steps) - gru.expected(steps)).max())
    if not worst < limit:
        sys.exit("error: %s at H=%d N=%d is off by %g (limit %g)" % (name, gru.H, gru.N, worst, limit))


def ours(args, gru, mode, bits):
    command = [args.isobit, "bench", "gru", "--hidden", gru.H, "--input", gru.C, "--batch", gru.N, "--steps", gru.T,
               "--mode", mode, "--bits", bits, "--min-time", "%.3f" % args.min_time, "--json"]
    if args.kernel:
        command += ["--kernel", args.kernel]
    command = [str(word) for word in command]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        sys.exit("error: exit code %d from: %s" % (result.returncode, " ".join(command)))
    return json.loads(result.stdout)


def ceilings(args):
    """What bench/ceilings.cc measured: read bandwidth by footprint, int8 operations a second."""
    if not args.ceilings:
        return None
    return json.loads(subprocess.run([args.ceilings], stdout=subprocess.PIPE, text=True, check=True).stdout)


def limit_us(found, case):
    """The least time of a step with 8-bit weights. Every weight comes from the cache that holds all of them, W once for
    many steps in whole sequences; every product is computed at the processor's peak. What overlaps is counted once."""
    W, R = 3 * case["H"] * case["C"], 3 * case["H"] * case["H"]
    sequence = case["mode"] == "sequence"
    read = R if sequence else W + R
    footprints = sorted((int(name.split()[0]) * 1024, value) for name, value in found["read_bytes_per_second"].items())
    bandwidth = next((value for size, value in footprints if size >= read), footprints[-1][1])
    peak = found["int8_operations_per_second"]
    products = 2 * case["N"] * R / peak
    return 1e6 * (max(read / bandwidth, products) + (2 * case["N"] * W / peak if sequence else 0))


def read_shapes(path, steps):
    return [(min(t, steps) if steps else t, n, c, h) for t, n, c, h in report.read_shapes(path)]


def make_rivals(gru, checked_steps):
    kinds = {"ort_f32": OrtSequence}
    if gru.N == 1:
        kinds["ort_f32_streaming"] = OrtStreaming
    if torch is not None:
        kinds["torch_int8"] = TorchInt8
    rivals = {name: kind(gru) for name, kind in kinds.items()}
    for name, rival in rivals.items():
        check(gru, name, rival, min(gru.T, checked_steps))
    return rivals


def measure(args):
    """Rounds over all shapes until the time is used up; samples are keyed by shape and by what was timed."""
    setup = []
    for shape in read_shapes(args.shapes, args.steps):
        gru = Gru(*shape)
        setup.append((gru, make_rivals(gru, 16 if args.quick else 256)))
    rivals, rows = {}, {}
    longest = 0.0
    for number in range(args.rounds):
        start = time.perf_counter()
        if number > 0 and start + longest > args.deadline:
            break
        for gru, runs in setup:
            shape = (gru.N, gru.C, gru.H)
            for name, run in runs.items():
                rivals.setdefault((shape, name), []).append(us_per_step(run, args.min_time))
            if args.rivals_only:
                continue
            for mode, bits in [(m, b) for m in MODES for b in BITS] if gru.N == 1 else [("sequence", BITS[0])]:
                for case in ours(args, gru, mode, bits)["cases"]:
                    row = (shape, mode, case["bits"], case["kernel"], case["name"])
                    rows.setdefault(row, []).append(case["us_per_step"])
        longest = max(longest, time.perf_counter() - start)
        print("round %d of at most %d: %.0f s" % (number + 1, args.rounds, time.perf_counter() - start),
              file=sys.stderr)
    return {k: statistics.median(v) for k, v in rivals.items()}, {k: statistics.median(v) for k, v in rows.items()}


def cases_of(rivals, rows, rivals_only):
    if rivals_only:
        rows = {(shape, "sequence", "", "", "rivals"): None for shape, name in rivals if name == "ort_f32"}
    cases = []
    for (shape, mode, bits, kernel, name), time_us in rows.items():
        others = {key: rivals.get((shape, key)) for key in RIVALS}
        if torch is None:
            others["torch_int8"] = "torch: not installed"
        cases.append({
            "name": name, "N": shape[0], "C": shape[1], "H": shape[2], "mode": mode, "kernel": kernel, "bits": bits,
            "us_per_step": time_us, "rivals": {k: v for k, v in others.items() if v is not None},
            "ratio": others["ort_f32"] / time_us if time_us else None})
    return cases


def table(document):
    def cell(value):
        return "%.3g" % value if isinstance(value, float) and value < 100 else (
            "%.0f" % value if isinstance(value, float) else str(value or "–"))
    heads = ["H", "N", "mode", "bits", "kernel", "isobit", "limit"] + list(RIVALS.values()) + ["ratio"]
    print("Time a step in µs, one thread; ratio = ONNX Runtime's whole-sequence time / ours; limit: see docs/performance.md.\n")
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads))
    for case in document["cases"]:
        fields = [case["H"], case["N"], case["mode"], case["bits"], case["kernel"], case["us_per_step"]]
        fields += [case.get("limit_us")] + [case["rivals"].get(name) for name in RIVALS] + [case["ratio"]]
        print("| " + " | ".join(cell(f) for f in fields) + " |")
    print("\n" + report.source(document))
    found = document.get("ceilings")
    if found:
        print("\nRead bandwidth: %s; int8 peak (%s): %.0f GOP/s" % (
            ", ".join("%s %.0f GB/s" % (name, value / 1e9) for name, value in found["read_bytes_per_second"].items()),
            found["product"], found["int8_operations_per_second"] / 1e9))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isobit", default="build/release/isobit", help="the isobit program (default %(default)s)")
    parser.add_argument("--shapes", default=os.path.join(os.path.dirname(__file__), "shapes", "gru.txt"))
    parser.add_argument("--json", metavar="FILE", help="write the report here as well")
    parser.add_argument("--ceilings", metavar="PROGRAM", help="bench/ceilings.cc, built: adds the limits")
    parser.add_argument("--kernel", help="time this kernel instead of the one that isobit chooses")
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds, within 45 seconds")
    parser.add_argument("--seconds", type=float, default=600,
                        help="no round begins that would pass this time (default %(default)g)")
    parser.add_argument("--rivals-only", action="store_true", help="do not run isobit")
    args = parser.parse_args()
    if not args.rivals_only and not os.access(args.isobit, os.X_OK):
        parser.error("no program %s: build it, name it with --isobit, or give --rivals-only" % args.isobit)
    begin = time.perf_counter()
    args.steps = 64 if args.quick else None
    # Many short rounds: a shared machine changes its pace within seconds, and every round meets all of its paces.
    args.rounds, args.min_time = (3, 0.04) if args.quick else (21, 0.08)
    args.deadline = begin + (min(args.seconds, 35) if args.quick else args.seconds)

    versions = {"python": sys.version.split()[0], "numpy": np.__version__, "onnxruntime": ort.__version__,
                "torch": torch.__version__ if torch is not None else "not installed"}
    document = {"machine": report.machine(), "commit": report.commit(), "versions": versions}
    rivals, rows = measure(args)
    document["cases"] = cases_of(rivals, rows, args.rivals_only)
    found = None if args.rivals_only else ceilings(args)
    if found:
        document["ceilings"] = found
        for case in document["cases"]:
            case["limit_us"] = limit_us(found, case)
    table(document)
    if args.json:
        report.write_json(args.json, document)


if __name__ == "__main__":
    main()
