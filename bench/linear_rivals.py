#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the linear layers of isobit and of ONNX Runtime in one run, one thread each; scripts/bench.sh linear starts it.

Shape by shape, rounds time every operator of ONNX Runtime and its counterpart of isobit one after the other, so that
noise and clock changes hit all alike; the figures are medians over the rounds. On both sides copies of the weights
take turns that total as many bytes: eight times the last-level cache, so that they come from memory, or --footprint.
Each operator's output is checked once against float64. bench/linear_report.py prints the tables, also of several runs
that are parts of one.
"""
import argparse
import collections
import json
import os
import re
import statistics
import subprocess
import sys
import time

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

import linear_report  # noqa: E402
import report  # noqa: E402
from linear_report import CACHE_MULTIPLE, MEBIBYTE  # noqa: E402

GROUP = 64
WIDTHS = {"2": 2, "4": 4, "8": 8, "row": None, "1": 1}
SESSION_BYTES = 16 * MEBIBYTE  # weights of one session, in nodes side by side
SESSION_NODES = 256
SLOW = 4  # times the minimum time


class Operator:
    """One node of ONNX Runtime: name(x, weights...) -> y. `error`: of its result, in parts of the largest one."""

    x_type, y_type, error = np.float32, np.float32, 0.02

    def __init__(self, K, N):
        self.K, self.N = K, N
        self.random = np.random.default_rng(K * 1000 + N)

    def rows(self, m):
        if self.x_type == np.uint8:
            return self.random.integers(0, 256, (m, self.K), dtype=np.uint8)
        return self.random.uniform(-1, 1, (m, self.K)).astype(np.float32)

    def bytes(self):
        return sum(weights.nbytes for weights in self.weights.values())


class MatMulNBits(Operator):
    """Float in and out; activations in float32 (accuracy level 1) or quantised to 8 bits inside (4)."""

    def __init__(self, K, N, bits, level):
        super().__init__(K, N)
        self.bits, self.error = bits, 1e-4 if level == 1 else 0.02
        self.node = {"op_type": "MatMulNBits", "domain": "com.microsoft", "K": K, "N": N, "bits": bits,
                     "block_size": GROUP, "accuracy_level": level}
        codes = self.random.integers(0, 256, (N, K // GROUP, GROUP * bits // 8), dtype=np.uint8)
        scales = self.random.uniform(0.5, 1, (N, K // GROUP)).astype(np.float32)
        self.weights, self.inputs = {"B": codes, "S": scales}, ["x", "B", "S"]

    def expected(self, x):
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        codes = (self.weights["B"][..., None] >> shifts) & (2**self.bits - 1)
        values = codes.reshape(self.N, self.K // GROUP, GROUP) - float(2**(self.bits - 1))
        return x.astype(np.float64) @ (values * self.weights["S"][..., None]).reshape(self.N, self.K).T


class EightBit(Operator):
    """Weights of 8 bits, a scale for each output."""

    def __init__(self, K, N):
        super().__init__(K, N)
        self.weights = {"B": self.random.integers(-128, 128, (K, N), dtype=np.int8),
                        "S": self.random.uniform(0.5, 1, N).astype(np.float32)}

    def product(self, x, zero):
        return (x.astype(np.float64) - zero) @ self.weights["B"].astype(np.float64)


class DynamicQuantizeMatMul(EightBit):
    """Float in and out, rows quantised inside with one scale and zero point: what dynamic quantisation is fused to."""

    node, inputs = {"op_type": "DynamicQuantizeMatMul", "domain": "com.microsoft"}, ["x", "B", "S"]

    def expected(self, x):
        return self.product(x, 0) * self.weights["S"]


class MatMulInteger(EightBit):
    """Codes in, int32 accumulators out."""

    node, inputs, x_type, y_type, error = {"op_type": "MatMulInteger"}, ["x", "B", "z"], np.uint8, np.int32, 0

    def __init__(self, K, N):
        super().__init__(K, N)
        self.weights = {"B": self.weights["B"], "z": np.array(128, np.uint8)}

    def expected(self, x):
        return self.product(x, 128)


class QLinearMatMul(EightBit):
    """Codes in, codes out."""

    node, x_type, y_type, error = {"op_type": "QLinearMatMul"}, np.uint8, np.uint8, 0.005
    inputs = ["x", "xs", "z", "B", "S", "Bz", "ys", "z"]

    def __init__(self, K, N):
        super().__init__(K, N)
        self.y_scale = np.float32(K**0.5)  # the result's deviation is 32 codes
        self.weights.update(xs=np.array(2**-7, np.float32), z=np.array(128, np.uint8), Bz=np.zeros(N, np.int8),
                            ys=np.array(self.y_scale, np.float32))

    def expected(self, x):
        return np.clip(self.product(x, 128) * 2**-7 * self.weights["S"] / self.y_scale + 128, 0, 255)


class Rival:
    """An operator with `footprint` bytes of weights: copies are nodes side by side, in as many sessions as it takes."""

    def __init__(self, operator, footprint):
        self.operator = operator
        copies = max(1, -(-footprint // operator.bytes()))
        self.nodes = max(1, min(copies, SESSION_NODES, SESSION_BYTES // operator.bytes()))
        model = self.model()
        self.sessions = [self.session(model) for _ in range(-(-copies // self.nodes))]
        self.turn = 0

    def model(self):
        op = self.operator
        kinds = {np.float32: TensorProto.FLOAT, np.uint8: TensorProto.UINT8, np.int32: TensorProto.INT32}
        node = dict(op.node)
        kind, nodes, weights = node.pop("op_type"), [], []
        for i in range(self.nodes):
            names = [name if name == "x" else "%s%d" % (name, i) for name in op.inputs]
            nodes.append(helper.make_node(kind, names, ["y%d" % i], **node))
            # Other codes in each node: a session keeps equal weights once.
            arrays = {**op.weights, "B": np.roll(op.weights["B"], i)}
            weights += [onnx.numpy_helper.from_array(a, "%s%d" % (name, i)) for name, a in arrays.items()]
        graph = helper.make_graph(
            nodes, "linear", [helper.make_tensor_value_info("x", kinds[op.x_type], ["M", op.K])],
            [helper.make_tensor_value_info("y%d" % i, kinds[op.y_type], ["M", op.N]) for i in range(self.nodes)],
            weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()

    @staticmethod
    def session(model):
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def prepare(self, m):
        """Binds m rows, the same to every session, and one y to every node: it stays in the cache, as ours does."""
        op = self.operator
        self.x = ort.OrtValue.ortvalue_from_numpy(op.rows(m))
        self.y = ort.OrtValue.ortvalue_from_numpy(np.zeros((m, op.N), op.y_type))
        self.bindings = []
        for session in self.sessions:
            binding = session.io_binding()
            binding.bind_ortvalue_input("x", self.x)
            for i in range(self.nodes):
                binding.bind_output("y%d" % i, "cpu", 0, op.y_type, [m, op.N], self.y.data_ptr())
            self.bindings.append(binding)

    def check(self):
        """Of one node."""
        self.prepare(2)
        self.step()
        expected, got = self.operator.expected(self.x.numpy()), self.y.numpy()
        worst, limit = np.abs(got - expected).max(), self.operator.error * np.abs(expected).max()
        if not worst <= limit:
            sys.exit("error: %s at K=%d N=%d is off by %g (limit %g)" %
                     (self.operator.node["op_type"], self.operator.K, self.operator.N, worst, limit))

    def step(self):
        self.turn = (self.turn + 1) % len(self.sessions)
        self.sessions[self.turn].run_with_iobinding(self.bindings[self.turn])

    def us(self, m, min_time):
        """Median time of a node over min_time seconds and three runs at least, fewer where a run takes much longer."""
        self.prepare(m)
        times, begin = [], time.perf_counter()
        start = begin
        while len(times) < 4 and start < begin + SLOW * min_time or start < begin + min_time:
            start = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - start)
        return statistics.median(times[1:] or times) * 1e6 / self.nodes


def pairs_of(K, N, bits):
    """What compares with what: (column, our activations, our group, operator or None)."""
    if bits == 1:  # MatMulNBits has none
        return [("float 1", "float", GROUP, None), ("int8 1", "int8", GROUP, None)]
    if bits:
        return [("float %d" % bits, "float", GROUP, lambda: MatMulNBits(K, N, bits, 1)),
                ("int8 %d" % bits, "int8", GROUP, lambda: MatMulNBits(K, N, bits, 4))]
    return [("dynamic", "int8_asymmetric", 0, lambda: DynamicQuantizeMatMul(K, N)),
            ("accumulators", "accumulators", 0, lambda: MatMulInteger(K, N)),
            ("codes", "static", 0, lambda: QLinearMatMul(K, N))]


class Ours:
    """isobit bench linear --repeat: packs its weights once and measures whenever it is asked to."""

    def __init__(self, args, K, N, bits, activations, group):
        command = [args.isobit, "bench", "linear", "--shape", "%dx%d" % (K, N), "--bits", bits or 8, "--activations",
                   activations, "--group", group, "--m", ",".join(map(str, args.rows)), "--min-time",
                   "%.3f" % args.min_time, "--footprint", args.footprint, "--json", "--repeat"]
        self.command = [str(word) for word in command]
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ready(self):
        """Waits for the report that comes unasked; it was timed while rivals were made."""
        self.read()

    def cases(self):
        """Our cases by number of rows."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return {case["M"]: case for case in self.read()["cases"]}

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("error: exit code %d from: %s" % (self.process.wait(), " ".join(self.command)))
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def measure_shape(args, K, N, bits):
    """A list of cases. One pair after the other: all at once take more memory than machines with large caches may
    have."""
    return [case for pair in pairs_of(K, N, bits) for case in measure_pair(args, K, N, bits, pair)]


def measure_pair(args, K, N, bits, pair):
    """Rounds over the two of a pair; a list of cases, one for each number of rows."""
    _, activations, group, make = pair
    ours = None if args.rivals_only else Ours(args, K, N, bits, activations, group)
    rival = None
    if make:
        operator = make()
        Rival(operator, operator.bytes()).check()
        rival = Rival(operator, args.footprint * MEBIBYTE)
    if ours:
        ours.ready()
    theirs, samples = ({m: [] for m in args.rows} for _ in range(2))
    for _ in range(args.rounds):
        for m in args.rows if rival else ():
            theirs[m].append(rival.us(m, args.min_time))
        for m, case in ours.cases().items() if ours else ():
            samples[m].append(case)
    if ours:
        ours.close()
    return [case_of(K, N, m, bits, pair, rival, theirs[m], samples[m]) for m in args.rows]


def case_of(K, N, m, bits, pair, rival, theirs, samples):
    """Medians over the rounds."""
    column, activations, group, _ = pair
    case = {"K": K, "N": N, "M": m, "bits": bits or 8, "group": group or K, "column": column,
            "activations": activations}
    if rival:
        case.update(rival=rival.operator.node["op_type"], rival_us=statistics.median(theirs),
                    rival_weight_bytes=rival.operator.bytes())
    if samples:
        case.update({key: samples[0][key] for key in ("kernel", "weight_bytes", "peak", "vector_peak")
                     if key in samples[0]})
        for key in ("us", "read_bytes_per_second", "peak_operations_per_second", "vector_peak_operations_per_second"):
            values = [sample.get(key) for sample in samples]
            case[key] = None if None in values else statistics.median(values)
    if rival and samples:
        case["ratio"] = case["rival_us"] / case["us"]
    return case


def models_of(args):
    """Of each model the matrices that are multiplied with, as isobit reads them, and how many there are of a shape. A
    shape that is not in the file of shapes is an error: that file is what runs without the models go by."""
    listed, models = set(report.read_shapes(args.shapes)), {}
    for word in args.model:
        name, _, path = word.partition("=")
        command = [args.isobit, "pack", path, "--dry-run", "--quiet", "--json"]
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)["tensors"]
        # Embeddings are looked up. SmolLM2's token_embd is a layer, too: its vocabulary.
        shapes = [tuple(tensor["shape"][::-1]) for tensor in found
                  if tensor["action"] in ("quantize", "import") and "embeddings" not in tensor["name"]]
        missing = ["%d %d" % shape for shape in dict.fromkeys(shapes) if shape not in listed]
        if missing or not shapes:
            sys.exit("error: %s lacks shapes (K N) of %s: %s" % (args.shapes, name, ", ".join(missing)) if missing
                     else "error: no matrices in %s" % path)
        models[name] = {"%dx%d" % shape: count for shape, count in sorted(collections.Counter(shapes).items())}
    return models or None


def cache_bytes():
    """Of the last level; None: this system does not say."""
    for level in (4, 3, 2):
        result = subprocess.run(["getconf", "LEVEL%d_CACHE_SIZE" % level], capture_output=True, text=True, check=False)
        if result.stdout.strip().isdigit() and int(result.stdout) > 0:
            return int(result.stdout)
    return None


def integers_of(parser, option, text, least):
    try:
        values = [int(word) for word in text.split(",")]
    except ValueError:
        values = [0]
    if min(values) < least or len(set(values)) < len(values):
        parser.error("--%s %s: expected different integers, each %d or more" % (option, text, least))
    return values


def shapes_of(parser, args):
    """Those of the file, those of --quick, or those of --shape."""
    shapes = report.read_shapes(args.shapes)
    if args.quick:
        shapes = [shape for shape in shapes if shape in ((576, 1536), (4096, 4096))]
    if args.shape:
        shapes = []
        for word in args.shape.split(","):
            sizes = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", word)
            if not sizes:
                parser.error("--shape %s: expected KxN, such as 4096x14336" % word)
            shapes.append(tuple(map(int, sizes.groups())))
    for K, N in shapes:
        if K % GROUP:
            parser.error("--shape %dx%d: K is no multiple of %d, the group" % (K, N, GROUP))
    return list(dict.fromkeys(shapes))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isobit", default="build/release/isobit", help="the isobit program (default %(default)s)")
    parser.add_argument("--shapes", default=os.path.join(os.path.dirname(__file__), "shapes", "linear.txt"))
    parser.add_argument("--json", metavar="FILE", help="write the report here as well")
    parser.add_argument("--model", metavar="NAME=FILE", action="append", default=[],
                        help="the file of shapes has to have those of this model; once for each")
    parser.add_argument("--footprint", type=int, metavar="MIB", help="weights that take turns; default: eight times "
                        "the last-level cache, with --quick 256 MiB")
    parser.add_argument("--shape", metavar="LIST", help="only these, of the file or not: 4096x4096,4096x14336")
    parser.add_argument("--m", default="1,8,64,256", metavar="LIST", help="only these rows; default %(default)s")
    parser.add_argument("--bits", metavar="LIST",
                        help="of these weights only: 2, 4, 8 bits in groups of %d, row: 8 bits, a whole row a group, "
                        "1: 1 bit, for which ONNX Runtime has nothing; default all, with --quick not 1" % GROUP)
    parser.add_argument("--quick", action="store_true", help="two shapes, fewer rounds, within two minutes")
    parser.add_argument("--rivals-only", action="store_true", help="do not run isobit")
    args = parser.parse_args()
    if not args.rivals_only and not os.access(args.isobit, os.X_OK):
        parser.error("no program %s: build it, name it with --isobit, or give --rivals-only" % args.isobit)
    if args.rivals_only and args.model:
        parser.error("--model: isobit reads the models; not with --rivals-only")
    shapes = shapes_of(parser, args)
    args.rows = integers_of(parser, "m", args.m, 1)
    quick_widths = [width for width in WIDTHS if width != "1" or not args.quick]
    widths = list(dict.fromkeys(args.bits.split(","))) if args.bits else quick_widths
    if not set(widths) <= set(WIDTHS):
        parser.error("--bits %s: expected some of %s" % (args.bits, ",".join(WIDTHS)))
    if args.rivals_only:
        widths = [width for width in widths if width != "1"] or parser.error("ONNX Runtime has nothing for --bits 1")
    args.rounds, args.min_time = (3, 0.03) if args.quick else (5, 0.1)
    cache = cache_bytes()
    if args.footprint is None:
        if not cache and not args.quick:
            parser.error("this system does not say how large its caches are; name a --footprint")
        args.footprint = 256 if args.quick else CACHE_MULTIPLE * cache // MEBIBYTE
    if args.footprint < 1:
        parser.error("--footprint %d: expected 1 MiB or more" % args.footprint)

    versions = {"python": sys.version.split()[0], "numpy": np.__version__, "onnxruntime": ort.__version__}
    document = {"machine": report.machine(), "commit": report.commit(), "versions": versions, "cache_bytes": cache,
                "footprint_mib": args.footprint, "rounds": args.rounds, "min_time": args.min_time,
                "models": models_of(args), "parts": [], "cases": []}
    for K, N in shapes:
        for width in widths:
            start = time.perf_counter()
            document["cases"] += measure_shape(args, K, N, WIDTHS[width])
            part = {"K": K, "N": N, "bits": width, "seconds": round(time.perf_counter() - start, 1)}
            document["parts"].append(part)
            print("K %(K)d, N %(N)d, bits %(bits)s: %(seconds).0f s" % part, file=sys.stderr)
            if args.json:  # what there is, should the rest be cut off: bench/linear_report.py prints it
                report.write_json(args.json, document)
    linear_report.tables(document)


if __name__ == "__main__":
    main()
