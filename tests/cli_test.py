# SPDX-License-Identifier: Apache-2.0
"""The isobit command from outside: every verb on tiny models, exit status, messages, JSON, files left behind.

usage: cli_test.py ISOBIT [unittest arguments]
"""
import ctypes
import glob
import io
import itertools
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree
import zipfile

ISOBIT = ""
INPUTS, HIDDEN = 3, 5
KERNELS = ["reference", "scalar", "avx2", "avxvnni", "avx512vnni", "amx"]


def npy(shape, values, descr="<f4", code="f"):
    header = "{'descr': '%s', 'fortran_order': False, 'shape': %r, }" % (descr, tuple(shape))
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
            + struct.pack("<%d%s" % (len(values), code), *values))


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)
    return path


def read(path):
    with open(path, "rb") as file:
        return file.read()


def npz(arrays):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in arrays.items():
            archive.writestr(name + ".npy", content)
    return buffer.getvalue()


def floats(rng, shape, limit=1.0):
    size = 1
    for n in shape:
        size *= n
    return npy(shape, [rng.uniform(-limit, limit) for _ in range(size)])


def gru_arrays(rng, prefix, layers=1, directions=1):
    arrays = {}
    for layer in range(layers):
        inputs = INPUTS if layer == 0 else HIDDEN * directions
        for suffix in ["", "_reverse"][:directions]:
            for name, shape in [("weight_ih", (3 * HIDDEN, inputs)), ("weight_hh", (3 * HIDDEN, HIDDEN)),
                                ("bias_ih", (3 * HIDDEN,)), ("bias_hh", (3 * HIDDEN,))]:
                arrays["%s%s_l%d%s" % (prefix, name, layer, suffix)] = floats(rng, shape, 0.8)
    return arrays


def give_up_permission():
    """In the child: root is allowed no more than the owner of a file is (CAP_DAC_OVERRIDE leaves the bounding set)."""
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).prctl(24, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot give up CAP_DAC_OVERRIDE")


def parse_npy(content):
    length = struct.unpack("<H", content[8:10])[0]
    header = eval(content[10:10 + length].decode(), {"__builtins__": {}})  # written by the tool under test
    return header["descr"], header["shape"], content[10 + length:]


def protobuf(*fields):
    """Numbers of fields, and integers or bytes."""
    def varint(value):
        return bytes([value & 127]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)
    return b"".join(varint(8 * number) + varint(value) if isinstance(value, int) else
                    varint(8 * number + 2) + varint(len(value)) + value for number, value in fields)


def onnx_model(nodes, tensors):
    """nodes: messages; tensors: names, shapes, and elements as bytes or (file, offset)."""
    def tensor(name, shape, content):
        data = [(9, content)] if isinstance(content, bytes) else [
            (13, protobuf((1, b"location"), (2, content[0]))), (13, protobuf((1, b"offset"), (2, content[1]))), (14, 1)]
        return protobuf(*[(1, size) for size in shape], (2, 1), (8, name), *data)
    graph = protobuf(*[(1, node) for node in nodes], *[(5, tensor(*one)) for one in tensors])
    return protobuf((1, 8), (2, b"test"), (7, graph))


def onnx_node(op, inputs, outputs, name=b"", **integers):
    return protobuf(*[(1, text) for text in inputs], *[(2, text) for text in outputs], (3, name), (4, op),
                    *[(5, protobuf((1, key.encode()), (3, value))) for key, value in integers.items()])


class ToolTest(unittest.TestCase):
    """Tiny models and data, and ways to call the tool on them; cuda_cli_test.py uses it too."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="isobit-cli-test-")
        cls.folder = cls.temporary.name
        rng = random.Random(20)
        cls.model = cls.at("model.npz", npz(gru_arrays(rng, "gru.")))
        cls.deep = cls.at("deep.npz", npz(gru_arrays(rng, "gru.", layers=2, directions=2)))
        cls.two = cls.at("two.npz", npz({**gru_arrays(rng, "enc."), **gru_arrays(rng, "dec.")}))
        cls.batch = cls.at("batch.npy", floats(rng, (11, 4, INPUTS)))
        cls.single = cls.at("single.npy", floats(rng, (13, INPUTS)))
        cls.data = os.path.join(cls.folder, "data")
        os.mkdir(cls.data)
        for i in range(3):
            sequences = {"s%d" % n: floats(rng, (2 + 3 * n + i, INPUTS)) for n in range(4)}
            write(os.path.join(cls.data, "part%d.npz" % i), npz(sequences))
        cls.fixed = os.path.join(cls.folder, "fixed.safetensors")
        cls.fixed_deep = os.path.join(cls.folder, "fixed_deep.safetensors")
        for source, target in [(cls.model, cls.fixed), (cls.deep, cls.fixed_deep)]:
            result = cls.call("quantize", source, "--calibrate", cls.data, "-o", target, "--bits", "8,linear=16")
            if result.returncode != 0:
                raise RuntimeError("quantize failed: " + result.stderr)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def at(cls, name, content):
        return write(os.path.join(cls.folder, name), content)

    @classmethod
    def call(cls, *arguments, env=None, **options):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ISOBIT_")}
        environment.update(env or {})
        options.setdefault("stdout", subprocess.PIPE)
        return subprocess.run([ISOBIT, *arguments], stderr=subprocess.PIPE, text=True, env=environment, timeout=300,
                              **options)

    def path(self, name):
        return os.path.join(self.folder, name)

    def ok(self, *arguments, warnings=(), **options):
        """stdout; on stderr warnings with every one of these words, or nothing."""
        result = self.call(*arguments, **options)
        self.assertEqual(result.returncode, 0, "%s\n%s" % (arguments, result.stderr))
        if not warnings:
            self.assertEqual(result.stderr, "")
        for line in result.stderr.splitlines():
            self.assertIn("warning: ", line)
        for word in warnings:
            self.assertIn(word, result.stderr)
        return result.stdout

    def json(self, *arguments, **options):
        return json.loads(self.ok(*arguments, "--json", **options))

    def fails(self, words, *arguments, status=2, **options):
        """Exit status, nothing on stdout, and a message that holds every one of `words`."""
        result = self.call(*arguments, **options)
        self.assertEqual(result.returncode, status, "%s\n%s%s" % (arguments, result.stdout, result.stderr))
        for word in words:
            self.assertIn(word, result.stderr)
        if status == 2:
            self.assertEqual(result.stdout or "", "")
        return result.stderr

    def page(self, path):
        """The text of a page, which must be well-formed, small and complete in itself."""
        content = read(path)
        self.assertLess(len(content), 1000000)
        for absent in [b"<script", b"http", b"url(", b"<link", b"<img"]:
            self.assertNotIn(absent, content)
        root = xml.etree.ElementTree.fromstring(content)
        self.assertEqual((root.tag, root.find("head/meta").get("charset")), ("html", "utf-8"))
        return "".join(root.find("body").itertext())


class CliTest(ToolTest):
    def test_usage(self):
        self.assertIn("quantize", self.ok("--help"))
        self.assertIn("--calibrate", self.ok("quantize", "--help"))
        self.assertRegex(self.ok("--version"), r"^isobit \d+\.\d+\.\d+\n$")
        self.fails(["--help"])
        self.fails(["--help"], "no-such-verb")
        self.fails(["--no-such-option"], "supported", "--no-such-option")
        self.fails(["FILE"], "inspect")
        self.fails(["--threads"], "run", self.fixed, self.single, "-o", self.path("y.npy"), "--threads", "many")
        self.fails(["--threads", "-3", "1024"], "run", self.fixed, self.single, "-o", self.path("y.npy"),
                   "--threads=-3")

    def test_mistyped_words(self):
        """The wrong word and the nearest right one: verbs, options, values of lists, names."""
        out = self.path("refused.npy")
        model = self.path("refused.safetensors")
        quantize = ["quantize", self.model, "--calibrate", self.data, "-o", model]
        run = ["run", self.fixed, self.single, "-o", out]
        for wrong, right, command in [
                ("quantise", "quantize", ["quantise", self.model, "--calibrate", self.data]),
                ("quantise", "quantize", ["help", "quantise"]), ("fitt", "fit", ["table", "fitt", "silu"]),
                ("expotr", "export", ["help", "table", "expotr"]), ("fit", "table fit", ["fit", "silu"]),
                ("--chunks", "--chunk", ["run", "--chunks", "3"]), ("--chunks", "--chunk", [*run, "--chunks=3"]),
                ("--bit", "--bits", [*quantize, "--bit", "8"]), ("--gat", "--gate", ["table", "show", "silu", "--gat"]),
                ("--versoin", "--version", ["--versoin"]), ("sillu", "silu", ["table", "fit", "sillu", "-o", model]),
                ("sillu", "silu", ["table", "show", "sillu"]), ("sillu", "silu", ["table", "run", "sillu", self.single,
                                                                                  "-o", out]),
                ("nearest_evn", "nearest_even", [*quantize, "--rounding", "nearest_evn"]),
                ("pow3", "pow2", [*quantize, "--scale", "pow3"]), ("onx", "onnx", [*quantize, "--gate-order", "onx"]),
                ("befor", "before", [*quantize, "--reset", "befor"]), ("min_max", "minmax", [*quantize, "--method",
                                                                                              "min_max"]),
                ("percentle", "percentile", [*quantize, "--method", "percentle:99"]),
                ("segmens:8", "segments", [*quantize, "--table", "segmens:8"]),
                ("liner", "linear", [*quantize, "--bits", "8,liner=16"]),
                ("simmetric", "symmetric", [*quantize, "--bits", "8,h=8:simmetric"]),
                ("avx3", "avx2", [*run, "--kernel", "avx3"]), ("grus", "gru", ["bench", "grus"]),
                ("steaming", "streaming", ["bench", "gru", "--mode", "steaming"]),
                ("linaer", "linear", ["verify", "--operation", "linaer"]),
                ("nli_gpus", "nli_gpu", ["table", "show", "silu", "--model", "nli_gpus"]),
                ("max_ulps", "max_ulp", ["table", "fit", "silu", "-o", model, "--goal", "max_ulps"]),
                ("l0.nn", "l0.n", ["table", "show", self.fixed, "--gate", "l0.nn"]),
                ("encc", "enc", ["quantize", self.two, "--layer", "encc", "--calibrate", self.data, "-o", model]),
                ("fisch", "fish", ["completion", "fisch"])]:
            with self.subTest(command=command):
                message = self.fails([wrong], *command)
                self.assertRegex(message, "nearest: '?%s" % re.escape(right))
        # The wrong word explains more than an argument that is missing beside it.
        for wrong, right, command in [
                ("sillu", "silu", ["table", "fit", "sillu"]), ("sillu", "silu", ["table", "run", "sillu"]),
                ("sillu", "silu", ["table", "compare", "sillu"]), ("sillu", "silu", ["table", "export", "sillu"]),
                ("softmx", "softmax", ["table", "run", "softmx"]),
                ("nli_gpus", "nli_gpu", ["table", "run", "silu", "--model", "nli_gpus"]),
                ("f33", "f32", ["table", "fit", "silu", "--values", "f33"]),
                ("pow3", "pow2", ["quantize", "--scale", "pow3"]), ("flor", "floor", ["tune", "--rounding", "flor"]),
                ("liner", "linear", ["quantize", self.model, "--bits", "8,liner=16"]),
                ("ballanced", "balanced", ["tune", self.model, "--like", "ballanced"]),
                ("min_max", "minmax", ["quantize", self.model, "--method", "min_max"]),
                ("segmens:8", "segments", ["tune", self.model, "--table", "segmens:8"]),
                ("onx", "onnx", ["inspect", "--gate-order", "onx"]), ("row", "rows", ["compare", "--layout", "row"]),
                ("befor", "before", ["quantize", "--reset", "befor"]),
                ("simetric", "symmetric", ["pack", self.model, "--kind", "simetric"])]:
            with self.subTest(command=command):
                message = self.fails([wrong], *command)
                self.assertRegex(message, "nearest: '?%s" % re.escape(right))
        self.fails(["INPUT is required"], "table", "run", "silu")
        self.fails(["no verb frobnicate", "inspect", "quantize"], "frobnicate")
        # With --help, too.
        for right, command in [("quantize", ["quantise", "--help"]), ("quantize", ["--help", "quantise"]),
                               ("fit", ["table", "fitt", "--help"]), ("fit", ["table", "-h", "fitt"])]:
            self.assertRegex(self.fails([], *command), "no verb .*nearest: %s" % right)
        self.fails(["no verb emit", "inspect", "quantize"], "emit", "--help")
        # No word at all.
        self.fails(["isobit: a verb is missing", "inspect", "quantize", "table"])
        self.fails(["isobit table: a verb is missing", "fit", "check", "show", "compare", "export", "run"], "table")
        for option in ["-v", "-V"]:
            self.assertEqual(self.ok(option), self.ok("--version"))
        # Names of functions.
        for command in [["fit", "nosuch", "-o", model], ["show", "nosuch"], ["run", "nosuch", self.single, "-o", out],
                        ["compare", "silu", "nosuch"]]:
            message = self.fails(["nosuch", "silu", "gelu_tanh", "softplus"], "table", *command)
            self.assertNotIn("()", message)

    def test_numbers(self):
        """What is no number, or none of its kind, is named with its option and what is expected, whatever the verb."""
        whole, finite = "expected a whole number", "expected a finite number"
        out = ["-o", self.path("refused.safetensors")]
        run = ["run", self.fixed, self.single, "-o", self.path("refused.npy")]
        quantize = ["quantize", self.model, "--calibrate", self.data, *out]
        tune = ["tune", self.model, "--calibrate", self.data, "--validate", self.batch, *out]
        compare = ["compare", self.model, self.fixed, "--data", self.single]
        matmul = ["matmul", self.fixed, self.single, "-o", self.path("refused.npy")]
        silu = ["table", "fit", "silu", *out]
        options = [(quantize, "--threads", whole), (quantize, "--zoneout", finite), (tune, "--target", finite),
                   (tune, "--max-bytes", whole), (tune, "--threads", whole), (tune, "--zoneout", finite),
                   (["pack", self.model], "--bits", whole), (["pack", self.model], "--group", whole),
                   (["pack", self.model], "--threads", whole), (matmul, "--threads", whole), (run, "--threads", whole),
                   (run, "--chunk", whole), (compare, "--part", finite), (compare, "--zoneout", finite),
                   (compare, "--threads", whole), (["verify"], "--outputs", whole), (["verify"], "--seed", whole),
                   *((["bench", "gru"], "--" + name, whole) for name in ("hidden", "input", "batch", "steps")),
                   (["bench", "gru"], "--min-time", finite), (["bench", "table"], "--elements", whole),
                   *((["bench", "linear"], "--" + name, whole) for name in ("group", "m", "footprint")),
                   (silu, "--beta", finite), (silu, "--cut-points", finite),
                   (["table", "run", "silu", self.single, "-o", self.path("refused.npy")], "--threads", whole)]
        for command, option, expected in options:
            values = ["abc", "", "1x"] + (["1.5", "1e3", "9" * 30] if expected == whole else ["nan", "inf"])
            for value in values:
                with self.subTest(command=command[:2], option=option, value=value):
                    message = self.fails([expected], *command, option + "=" + value if value else option, *([] if value
                                                                                                           else [""]))
                    self.assertIn("%s %s: %s" % (option, value, expected), message)
        self.fails(["--outputs -5: expected a whole number, 0 or more"], "verify", "--outputs=-5")
        self.fails(["--threads 3000000000: expected a whole number, at most 2147483647"], *run, "--threads", "3000000000")
        self.fails(["--hidden x: expected a whole number"], "bench", "gru", "--hidden", "8,x")
        self.fails(["--cut-points b: expected a finite number"], *silu, "--cut-points", "1,b")

    def test_help(self):
        """Verbs in groups; each has an example and a document, in lines that are not too long."""
        text = self.ok("--help")
        for group in ["GRUs:", "Low-bit weights:", "Activation tables:", "Checks and measurements:"]:
            self.assertIn(group, text)
        self.assertEqual(self.ok("help"), text)
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        for verb in self.verbs():
            text = self.ok(*verb, "--help")
            self.assertEqual(self.ok("help", *verb), text)
            self.assertIn("Example:\n  ", text, verb)
            example = text.split("Example:\n  ")[1].splitlines()[0]
            if verb != ["completion"]:
                self.assertTrue(example.startswith("isobit " + " ".join(verb)), example)
            document = re.search(r"^More: (\S+)", text, re.MULTILINE).group(1)
            self.assertTrue(os.path.exists(os.path.join(root, document)), document)
            for option in re.findall(r" (--[a-z][\w-]*)", example):
                self.assertIn(option, text.split("Example:")[0], verb)
            for line in text.split("Example:")[0].splitlines():
                self.assertLessEqual(len(line), 100, verb)
        self.assertNotIn("\033", text)

    def test_export_c(self):
        """Four files that compile and give the bytes of isobit run, or nothing."""
        out = self.path("exported")
        json = self.json("export", "c", self.fixed, "-o", out, "--name", "enc", "--check", self.batch)
        self.assertEqual(json["check"], {"codes": 11 * 4 * HIDDEN, "first_difference": ""})
        self.assertEqual(sorted(os.listdir(out)), ["enc.c", "enc.cmake", "enc.h", "enc_data.c"])
        self.assertEqual([os.path.basename(path) for path in json["files"]],
                         ["enc.h", "enc.c", "enc_data.c", "enc.cmake"])
        self.assertEqual(json["step"]["multiply_adds"], 3 * HIDDEN * (INPUTS + HIDDEN))
        self.assertIn("give --target or --core", json["why_not_measured"])
        before = {name: read(os.path.join(out, name)) for name in os.listdir(out)}
        self.fails(["exported: is not empty", "--force"], "export", "c", self.fixed, "-o", out)
        self.ok("export", "c", self.fixed, "-o", out, "--name", "enc", "--force")
        self.assertEqual(before, {name: read(os.path.join(out, name)) for name in os.listdir(out)})
        text = self.ok("export", "c", self.fixed_deep, "-o", self.path("deep"), "--check", self.single, "--target",
                       "cortex-m55")
        for words in ("bidirectional", "state", "multiply-adds", "equal those of isobit run"):
            self.assertIn(words, text)
        other = self.path("other")
        for words, arguments in ((["2fast", "no C identifier"], ["--name", "2fast"]),
                                 (["--target z80", "cortex-m4"], ["--target", "z80"]),
                                 (["--core z80", "cortex-m4"], ["--core", "z80"]),
                                 (["selftest_steps is 0, must be 1 to 1000"], ["--selftest-steps", "0"]),
                                 (["--check", "shape is [2, 7], must be [T, 3] or [T, N, 3]"],
                                  ["--check", self.at("wide.npy", npy((2, 7), [0.0] * 14))]),
                                 (["no-such-compiler cannot be run"], ["--check", self.single])):
            self.fails(words, "export", "c", self.fixed, "-o", other, *arguments, env={"CC": "no-such-compiler"})
            self.assertFalse(os.path.exists(other))
        self.fails(["model.npz", "isobit quantize"], "export", "c", self.model, "-o", other)
        wide = self.path("wide.safetensors")
        self.ok("quantize", self.model, "--calibrate", self.data, "-o", wide, "--bits", "8,x=17", "--quiet")
        self.fails(["l0: x has 17 bits", "at most 16"], "export", "c", wide, "-o", other)
        tables = self.path("tables")
        self.assertIn("table of tanh", self.ok("export", "c", self.fixed_deep, "-o", tables, "--gate", "l0.n"))
        self.assertEqual(sorted(os.listdir(tables))[0], "tanh_table.c")
        self.fails(["--gate l9.u", "l0.u"], "export", "c", self.fixed, "-o", other, "--gate", "l9.u")
        self.fails(["--check", "self-test"], "export", "c", self.fixed, "-o", other, "--gate", "l0.u", "--check",
                   self.single)
        silu = self.path("silu.safetensors")
        self.ok("table", "fit", "relu6", "-o", silu, "--quiet")
        self.assertIn("FP16 table of relu6", self.ok("export", "c", silu, "-o", self.path("fp16")))
        self.assertIn("isobit_relu6_test.c", os.listdir(self.path("fp16")))
        self.fails(["--gate l0.u", "is no GRU"], "export", "c", silu, "-o", other, "--gate", "l0.u")
        self.fails(["--check", "which has no data"], "export", "c", self.fixed, "-o", other, "--check",
                   self.at("empty.npy", npy((0, INPUTS), [])))
        self.assertFalse(os.path.exists(other))
        # A compiler that computes another thing is found out.
        liar = self.at("liar.sh", b"#!/bin/sh\nfor last; do :; done\nfor word; do case $word in *_check) out=$word;; esac;"
                                  b" done\nprintf '#!/bin/sh\\nhead -c %d /dev/zero\\n' " +
                       str(13 * HIDDEN).encode() + b" >$out\nchmod +x $out\n")
        os.chmod(liar, 0o755)
        message = self.fails(["y[", "isobit gives"], "export", "c", self.fixed, "-o", other, "--check", self.single,
                             status=1, env={"CC": liar})
        self.assertIn("--check", message)
        self.assertFalse(os.path.exists(other))

    def on_terminal(self, *arguments, env=None):
        """What a command writes to a terminal on standard error."""
        first, second = os.openpty()
        process = subprocess.Popen([ISOBIT, *arguments], stdout=subprocess.DEVNULL, stderr=second,
                                   env={**os.environ, "TERM": "xterm", **(env or {})})
        os.close(second)
        text = b""
        while True:
            try:
                part = os.read(first, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            text += part
        os.close(first)
        process.wait()
        return text.decode()

    def test_colour(self):
        environment = {"NO_COLOR": ""}
        self.assertIn("\033[1;31m", self.on_terminal("inspect", self.path("missing"), env=environment))
        for plain in [{"NO_COLOR": "1"}, {"TERM": "dumb"}]:
            self.assertNotIn("\033[1", self.on_terminal("inspect", self.path("missing"), env={**environment, **plain}))
        self.assertNotIn("\033", self.fails(["missing"], "inspect", self.path("missing")))

    def test_completion(self):
        """Every verb and option of every verb is in each script; bash is asked."""
        words = {"": [verb[0] for verb in self.verbs()]}
        for verb in self.verbs():
            words[" ".join(verb)] = re.findall(r"^  (?:-\w,)?(--[\w-]+)", self.ok(*verb, "--help"), re.MULTILINE)
        for shell in ["bash", "zsh", "fish"]:
            script = self.ok("completion", shell)
            for verb, options in words.items():
                for option in options:
                    self.assertIn("-l " + option[2:] if shell == "fish" and option.startswith("--") else option, script)
            if shutil.which(shell):
                subprocess.run([shell, "-n"], input=script, text=True, check=True)
        script = self.ok("completion", "bash")
        for line, expected in [("isobit q", ["quantize"]), ("isobit table ex", ["export"]),
                               ("isobit run m.st --save", ["--save-state"]), ("isobit table run --sa", []),
                               ("isobit compare --f", []), ("isobit table fit silu --go", ["--goal"])]:
            program = script + """
COMP_WORDS=(%s)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_isobit
printf '%%s\\n' "${COMPREPLY[@]}"
""" % line
            found = subprocess.run(["bash", "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
            self.assertEqual(found, expected, line)

    def test_endings(self):
        """No output gets the name of another kind of file."""
        self.ok("pack", self.at("endings.npz", npz({"w": npy((8, 64), [0.5] * 512)})), "-o", self.path("p.st"))
        packed, rows = self.path("p.st"), self.at("endings.npy", npy((2, 64), [0.5] * 128))
        quantize = ["quantize", self.model, "--calibrate", self.data, "-o"]
        other = ["m.onnx", "m.gguf", "m.npz", "m.npy", "m.json", "m.pt", "m.tflite", "m.svg", "m.H5", "m.wav"]
        for i, (command, refused, taken) in enumerate([
                (quantize, other, ["m.safetensors", "m.st", "m", "m.int8", "m.v1.2"]),
                (["pack", self.path("endings.npz"), "-o"], other, ["m.safetensors", "m.st", "m", "m.q4"]),
                (["table", "fit", "relu", "--steps", "1,8x4,1", "-o"], other, ["t.safetensors", "t"]),
                (["run", self.fixed, self.single, "-o"], ["y.safetensors", "y.onnx", "y", "y.1"], ["y.npy", "y.npz"]),
                (["run", self.fixed, self.single, "-o", self.path("y.npy"), "--save-state"],
                 ["s.npy", "s.safetensors", "s.json"], ["s.npz", "s"]),
                (["matmul", packed, rows, "-o"], ["y.npz", "y.txt", "y"], ["y.npy"]),
                (["inspect", packed, "--tensor", "w", "-o"], ["w.npz", "w.safetensors", "w.gguf"], ["w.npy", "w"]),
                (["table", "show", "relu", "--svg"], ["s.png", "s.html", "s.picture", "s.npy"], []),
                (["compare", self.model, self.fixed, "--data", self.single, "--html"],
                 ["p.svg", "p.pdf", "p.json", "p.report"], ["p.html", "p.htm", "p"]),
                (["table", "export", "relu", "--hex"], ["t.npy", "t.c", "t.bin"], ["t.hex", "t.mem", "t"]),
                (["table", "run", "relu", self.single, "-o"], ["y.npz", "y"], ["y.npy"])]):
            for name in refused:
                name = self.path("ending%d_%s" % (i, name))
                self.fails([name, "the name must end in ."], *command, name)
                self.assertFalse(os.path.exists(name))
            for name in taken:
                name = self.path("ending%d_%s" % (i, name))
                self.ok(*command, name)
                self.assertTrue(os.path.exists(name))

    def test_clipped_inputs(self):
        """Inputs that the input grid does not reach are counted, and warned of above 1 %."""
        out = self.path("clipped.npy")
        self.assertLess(self.json("run", self.fixed, self.single, "-o", out)["clipped_percent"], 1)
        grid = self.json("inspect", self.fixed)["grus"][0]["layers"][0]["grids"]["x"]
        top = (127 - grid["zero_point"]) * grid["scale"]
        for values, clipped in [([0.0] * 297 + [1e30] * 3, 3), ([0.0] * 296 + [-1e30] * 4, 4),
                                ([top + 0.49 * grid["scale"]] * 300, 0), ([top + 0.51 * grid["scale"]] * 300, 300),
                                ([float("inf")] * 300, 300)]:
            x = self.at("far.npy", npy((100, 3), values))
            result = self.call("run", self.fixed, x, "-o", out, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            report = json.loads(result.stdout)
            self.assertEqual((report["clipped"], report["clipped_percent"]), (clipped, 100 * clipped / 300))
            if clipped > 3:
                for word in ["warning", "far.npy", "%", "clipped", "calibration"]:
                    self.assertIn(word, result.stderr)
            else:
                self.assertEqual(result.stderr, "")
            self.assertIn("clipped %.3g %%" % (clipped / 3), self.call("run", self.fixed, x, "-o", out).stdout)
            self.assertEqual(self.call("run", self.fixed, x, "-o", out, "--quiet").stderr, "")
        # int16 samples and codes without --integer.
        x = self.at("samples.npy", npy((100, 3), [100 * (i % 300) for i in range(300)], "<i2", "h"))
        result = self.call("run", self.fixed, x, "-o", out)
        self.assertEqual(result.returncode, 0)
        self.assertIn("--integer", result.stderr)
        # Padding does not count.
        x = self.at("padded.npy", npy((10, 2, 3), [0.0] * 30 + [1e9] * 30))
        lengths = self.at("five.npy", npy((2,), [5, 4], "<i8", "q"))
        self.assertEqual(self.call("run", self.fixed, x, "-o", out, "--lengths", lengths).stderr, "")
        self.ok("quantize", self.model, "--calibrate", self.data, "--validate", x, "--validate-lengths", lengths,
                "--dry-run")
        compare = ["compare", self.model, self.fixed, "--data", x]
        tune = ["tune", self.model, "--calibrate", self.data, "--validate", x, "--target", "90", "--dry-run"]
        self.ok(*compare, "--lengths", lengths)
        self.assertNotIn("outside the range", self.call(*tune, "--validate-lengths", lengths).stderr)
        # What is measured on such inputs says little about the model.
        for name, command in [("--data", compare), ("--validate", tune)]:
            result = self.call(*command)
            self.assertIn("warning: 50 % of the inputs of " + name + " lie outside the range", result.stderr)
            self.assertEqual(self.call(*command, "--quiet").stderr.count("warning"), 0)

    def test_batch_first(self):
        """[N, T, C] with --batch-first is [T, N, C] without; a warning where it may have been forgotten."""
        rng = random.Random(8)
        steps, batch = 5, 40
        values = [[[rng.uniform(-1, 1) for _ in range(INPUTS)] for _ in range(batch)] for _ in range(steps)]
        time = self.at("time.npy", npy((steps, batch, INPUTS), [v for t in values for n in t for v in n]))
        first = self.at("first.npy", npy((batch, steps, INPUTS),
                                         [v for n in range(batch) for t in range(steps) for v in values[t][n]]))
        y, z, m, k = [self.path("layout_" + name) for name in ["y.npy", "z.npy", "m.st", "k.st"]]

        def hinted(*command):
            result = self.call(*command)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(self.call(*command, "--quiet").stderr, "")
            return "warning: " in result.stderr and "--batch-first" in result.stderr and "hint" not in result.stderr

        for model in [self.fixed, self.fixed_deep]:
            self.assertTrue(hinted("run", model, time, "-o", y))
            self.ok("run", model, first, "-o", z, "--batch-first")
            (_, shape, body), (_, other, swapped) = parse_npy(read(y)), parse_npy(read(z))
            self.assertEqual((shape[0], shape[1], shape[2]), (other[1], other[0], other[2]))
            row = 4 * shape[2]
            self.assertEqual([body[(t * batch + n) * row:][:row] for n in range(batch) for t in range(steps)],
                             [swapped[i * row:][:row] for i in range(batch * steps)])
        self.assertFalse(hinted("run", self.fixed, self.batch, "-o", y))
        self.ok("run", self.fixed, self.single, "-o", y, "--batch-first")  # [T, C] is what it is
        self.assertTrue(hinted("quantize", self.model, "--calibrate", time, "-o", m))
        self.ok("quantize", self.model, "--calibrate", first, "-o", k, "--batch-first")
        self.assertEqual(read(m), read(k))
        bad = [0.5] * (4 * 2 * INPUTS)
        bad[2 * 2 * INPUTS + 1 * INPUTS + 2] = float("nan")
        self.fails(["[2, 1, 2]"], "quantize", self.model, "--calibrate", self.at("bad.npy", npy((4, 2, INPUTS), bad)),
                   "-o", m, "--batch-first")
        # Masks and lengths go with the layout of the input.
        mask = [rng.randint(0, 1) for _ in range(steps * batch * HIDDEN)]
        row = lambda t, n: mask[(t * batch + n) * HIDDEN:][:HIDDEN]
        mask_first = [v for n in range(batch) for t in range(steps) for v in row(t, n)]
        self.call("run", self.fixed, time, "-o", y, "--zoneout-mask",
                  self.at("mask.npy", npy((steps, batch, HIDDEN), mask, "|u1", "B")))
        self.ok("run", self.fixed, first, "-o", z, "--batch-first", "--zoneout-mask",
                self.at("mask_first.npy", npy((batch, steps, HIDDEN), mask_first, "|b1", "B")))
        body, swapped = parse_npy(read(y))[2], parse_npy(read(z))[2]
        row = 4 * HIDDEN
        self.assertEqual([body[(t * batch + n) * row:][:row] for n in range(batch) for t in range(steps)],
                         [swapped[i * row:][:row] for i in range(batch * steps)])

    def test_lengths_masks_and_first_states(self):
        out, alone = self.path("lengths.npy"), self.path("alone.npy")
        steps, batch = 11, 4
        values = struct.unpack("<%df" % (steps * batch * INPUTS), parse_npy(read(self.batch))[2])
        lengths = [11, 0, 3, 7]
        file = self.at("lengths_of.npy", npy((batch,), lengths, "<i4", "i"))
        for model, width in [(self.fixed, HIDDEN), (self.fixed_deep, 2 * HIDDEN)]:
            for extra in [[], ["--threads", "3"], ["--kernel", "reference"]] + ([["--chunk", "2"]] * (width == HIDDEN)):
                self.ok("run", model, self.batch, "-o", out, "--lengths", file, *extra)
                body = parse_npy(read(out))[2]
                for n, length in enumerate(lengths):
                    got = b"".join(body[(t * batch + n) * 4 * width:][:4 * width] for t in range(steps))
                    x = [v for t in range(length) for v in values[(t * batch + n) * INPUTS:][:INPUTS]]
                    self.ok("run", model, self.at("one.npy", npy((length, INPUTS), x)), "-o", alone)
                    expected = parse_npy(read(alone))[2]
                    self.assertEqual(got, expected + b"\0" * (4 * width * (steps - length)), (model, n, extra))
        # A mask of ones changes nothing, one of zeros keeps the first state, and each takes its own way in pieces.
        self.ok("run", self.fixed, self.batch, "-o", alone)
        size = steps * batch * HIDDEN
        ones = self.at("ones.npy", npy((steps, batch, HIDDEN), [1] * size, "|u1", "B"))
        self.ok("run", self.fixed, self.batch, "-o", out, "--zoneout-mask", ones)
        self.assertEqual(read(out), read(alone))
        zeros = self.at("zeros.npy", npy((steps, batch, HIDDEN), [0] * size, "|b1", "B"))
        self.ok("run", self.fixed, self.batch, "-o", out, "--zoneout-mask", zeros)
        self.assertEqual(set(struct.unpack("<%df" % size, parse_npy(read(out))[2])), {0.0})
        rng = random.Random(9)
        mask = self.at("some.npy", npy((steps, batch, HIDDEN), [rng.randint(0, 1) for _ in range(size)], "|u1", "B"))
        self.ok("run", self.fixed, self.batch, "-o", alone, "--zoneout-mask", mask)
        self.ok("run", self.fixed, self.batch, "-o", out, "--zoneout-mask", mask, "--chunk", "3")
        self.assertEqual(read(out), read(alone))
        # Calibration: padding beyond the lengths does not count, and h0 does.
        model, other = self.path("of_lengths.st"), self.path("without.st")
        padded = list(values)
        for n, length in enumerate(lengths):
            for t in range(length, steps):
                padded[(t * batch + n) * INPUTS:][:INPUTS] = [1e9] * INPUTS
                for c in range(INPUTS):
                    padded[(t * batch + n) * INPUTS + c] = 1e9
        padded = self.at("padded.npz", npz({"x": npy((steps, batch, INPUTS), padded)}))
        sequences = {"s%d" % n: npy((length, INPUTS), [v for t in range(length) for v in
                                                       values[(t * batch + n) * INPUTS:][:INPUTS]])
                     for n, length in enumerate(lengths)}
        by_name = self.at("by_name.npz", npz({"x": read(file)}))
        for given in [file, by_name]:
            report = self.json("quantize", self.model, "--calibrate", padded, "--lengths", given, "-o", model)
            self.assertEqual(report["calibration"], {"files": 1, "sequences": 4, "steps": sum(lengths)})
            self.ok("quantize", self.model, "--calibrate", self.at("cut_sequences.npz", npz(sequences)), "-o", other)
            self.assertEqual(read(model), read(other))
        h0 = self.at("h0_of.npy", npy((1, batch, HIDDEN), [3.0] * (batch * HIDDEN)))
        report = self.json("quantize", self.model, "--calibrate", self.batch, "--state", h0, "-o", model)
        observed = {grid["tensor"]: grid.get("observed_max") for grid in report["grids"]}
        self.assertEqual(observed["h"], 3.0)

        run = ["run", self.fixed, self.batch, "-o", out]
        quantize = ["quantize", self.model, "-o", model, "--calibrate"]
        long = self.at("long_lengths.npy", npy((batch,), [12, 0, 3, 7], "<i4", "i"))
        negative = self.at("negative.npy", npy((batch,), [1, -1, 3, 7], "<i4", "i"))
        for words, command in [(["--lengths", "12", "sequence 0", "11"], [*run, "--lengths", long]),
                               (["--lengths", "-1", "sequence 1"], [*run, "--lengths", negative]),
                               (["--lengths", "[11, 4, 3]", "[4]"], [*run, "--lengths", self.batch]),
                               (["--lengths", "12"], [*quantize, self.batch, "--lengths", long]),
                               (["--lengths", "one file"], [*quantize, self.data, "--lengths", file]),
                               (["--state", "one file"], [*quantize, self.data, "--state", h0]),
                               (["--state", "[1, 4, 5]", "[4]"], [*quantize, self.batch, "--state", file]),
                               (["--lengths", 'no array "x"'], [*quantize, padded, "--lengths", self.at(
                                   "y.npz", npz({"y": read(file), "z": read(file)}))]),
                               (["--zoneout-mask", "[11, 4, 5]", "[11, 4, 3]"], [*run, "--zoneout-mask", self.batch]),
                               (["--zoneout-mask", "value 2"], [*run, "--zoneout-mask", self.at(
                                   "twos.npy", npy((steps, batch, HIDDEN), [2] * size, "|u1", "B"))]),
                               (["one layer"], ["run", self.fixed_deep, self.batch, "-o", out, "--zoneout-mask", self.at(
                                   "wide_mask.npy", npy((steps, batch, 2 * HIDDEN), [1] * (2 * size), "|u1", "B"))]),
                               (["missing.npy"], [*run, "--lengths", self.path("missing.npy")])]:
            with self.subTest(command=command):
                self.fails(words, *command)

    def test_threads_and_bars(self):
        """One array of many sequences: threads share it, and the bar counts sequences, not files."""
        steps, batch = 1500, 240
        row = struct.pack("<%df" % (batch * INPUTS), *[(i * 37 % 200 - 100) / 100 for i in range(batch * INPUTS)])
        content = npy((steps, batch, INPUTS), [])
        data = self.at("many.npy", content + row * steps)
        model = self.path("many.st")
        bar = self.on_terminal("quantize", self.model, "--calibrate", data, "-o", model, "--threads", "1")
        shares = {int(share) for share in re.findall(r"(\d+) %", bar)}
        self.assertTrue(any(0 < share < 100 for share in shares), bar)
        bar = self.on_terminal("compare", self.model, model, "--data", data)
        self.assertTrue(any(0 < int(share) < 100 for share in re.findall(r"(\d+) %", bar)), bar)
        wanted = read(model)
        for threads in ["3", "0"]:
            self.ok("quantize", self.model, "--calibrate", data, "-o", model, "--threads", threads)
            self.assertEqual(read(model), wanted)

    def test_inspect(self):
        text = self.ok("inspect", self.two)
        for word in ["enc", "dec", "pytorch", "assumed", "[15, 3]"]:
            self.assertIn(word, text)
        self.assertEqual([gru["name"] for gru in self.json("inspect", self.two, "--layer", "enc")["grus"]], ["enc"])
        text = self.ok("inspect", self.fixed)
        for word in ["overflow proof", "tables", "nearest_even", "sizes: weights", "--full"]:
            self.assertIn(word, text)
        self.assertLessEqual(len(text.splitlines()), 40)
        self.assertEqual(self.json("inspect", self.fixed), self.json("inspect", self.fixed, "--full"))
        text = self.ok("inspect", self.fixed, "--full")
        for word in ["overflow proof\n", "tables", "rescales, ", "nearest_even"]:
            self.assertIn(word, text)
        sizes = self.json("inspect", self.fixed)["grus"][0]["sizes"]
        self.assertEqual(sizes["total_bytes"], os.path.getsize(self.fixed))
        self.assertEqual(sizes["total_bytes"],
                         sum(sizes[part + "_bytes"] for part in ["weights", "tables", "other", "header"]))
        self.assertEqual(sizes["weights_bytes"], 3 * HIDDEN * (INPUTS + HIDDEN + 2))
        self.assertEqual(sizes["tables_bytes"], 3 * 256)
        self.assertGreater(sizes["workspace_bytes"], 0)
        gru = self.json("inspect", self.fixed)["grus"][0]
        self.assertEqual((gru["input_size"], gru["hidden_size"]), (INPUTS, HIDDEN))
        layer = gru["layers"][0]
        self.assertEqual(layer["grids"]["ih"]["bits"], 16)
        self.assertEqual(len(layer["grids"]["W"]["shift"]), 3 * HIDDEN)
        self.assertEqual([table["max_error_lsb"] for table in layer["tables"]], [0, 0, 0])
        self.assertTrue(layer["overflow_proof"])
        self.assertEqual(len(self.json("inspect", self.fixed_deep)["grus"][0]["layers"]), 4)
        self.fails(["missing.npz"], "inspect", self.path("missing.npz"))
        content = read(self.fixed)
        for length in [0, 7, 100, len(content) // 2, len(content) - 1]:
            self.fails(["cut.safetensors"], "inspect", self.at("cut.safetensors", content[:length]))

    def test_quantize(self):
        out = self.path("q.safetensors")
        text = self.ok("quantize", self.model, "--calibrate", self.data, "-o", out, "--bits", "8,linear=16")
        for word in ["gate order: pytorch", "reset: after", "assumed", "3 files, 12 sequences", out]:
            self.assertIn(word, text)
        self.assertEqual(read(out), read(self.fixed))
        # Neither order, nor threads, nor how the files are named matters.
        parts = sorted(glob.glob(os.path.join(self.data, "*")), reverse=True)
        for data in [parts, [os.path.join(self.data, "part?.npz")], [self.data]]:
            os.remove(out)
            self.ok("quantize", self.model, "--calibrate", *data, "-o", out, "--bits", "8,linear=16", "--threads", "3")
            self.assertEqual(read(out), read(self.fixed))
        report = self.json("quantize", self.model, "--calibrate", self.batch, self.single, "-o", out, "--method",
                           "percentile:99.9", "--scale", "real", "--rounding", "nearest_up", "--table", "segments:8",
                           "--gate-order", "urn", "--reset", "after")
        self.assertEqual(report["calibration"], {"files": 2, "sequences": 5, "steps": 57})
        self.assertEqual((report["gate_order"], report["gate_order_assumed"], report["reset_assumed"]),
                         ("urn", False, False))
        self.assertEqual((report["method"], report["scale"], report["rounding"], report["table"]),
                         ("percentile:99.9", "real", "nearest_up", "segments:8"))
        self.assertEqual(report["bytes"], os.path.getsize(out))
        self.assertEqual(report["sizes"]["total_bytes"], os.path.getsize(out))
        dry = self.path("dry.safetensors")
        self.assertIn("nothing written", self.ok("quantize", self.model, "--calibrate", self.data, "--dry-run", "-o", dry))
        self.assertFalse(os.path.exists(dry))
        self.assertEqual(self.ok("quantize", self.model, "--calibrate", self.data, "-o", out, "--quiet"), "")

    def test_names_of_their_own(self):
        """--layer NAME=W,R,BW,BR: arrays under any names give what PyTorch's names give."""
        rng = random.Random(20)
        usual = gru_arrays(rng, "gru.")
        deep = gru_arrays(rng, "gru.", layers=2, directions=2)  # as in setUpClass
        tensors = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]

        def quantized(model, *layers):
            out = self.path("named.safetensors")
            self.ok("quantize", model, "--calibrate", self.data, "-o", out, "--bits", "8,linear=16",
                    *[word for layer in layers for word in ("--layer", layer)])
            result = self.path("named.npy")
            self.ok("run", out, self.batch, "-o", result)
            return self.json("inspect", out)["grus"][0]["name"], read(result)

        def expected(model):
            result = self.path("usual.npy")
            self.ok("run", model, self.batch, "-o", result)
            return read(result)

        named = self.at("named.npz", npz({"cell/%d:0" % i: usual["gru.%s_l0" % t] for i, t in enumerate(tensors)}))
        self.assertEqual(quantized(named, "gru=cell/0:0,cell/1:0,cell/2:0,cell/3:0"), ("gru", expected(self.fixed)))
        arrays, layers = {}, []
        for place in ["_l1_reverse", "_l0", "_l1", "_l0_reverse"]:
            arrays.update({t + "@" + place: deep["gru." + t + place] for t in tensors})
            layers.append("gru%s=%s" % (place, ",".join(t + "@" + place for t in tensors)))
        self.assertEqual(quantized(self.at("named.npz", npz(arrays)), *layers), ("gru", expected(self.fixed_deep)))

        def refuse(words, *layers):
            self.fails(words, "inspect", named, *[word for layer in layers for word in ("--layer", layer)])

        named = self.at("named.npz", npz({"a": usual["gru.weight_ih_l0"], "b": usual["gru.weight_hh_l0"]}))
        self.assertEqual(self.json("inspect", named, "--layer", "x=a,b")["grus"][0]["name"], "x")  # biases are zero
        refuse(["named.npz", "no array 'c'", "x.weight_hh_l0"], "x=a,c")
        refuse(["--layer x=a", "NAME=W,R"], "x=a")
        refuse(["--layer x=a,b,", "NAME=W,R"], "x=a,b,")
        refuse(["--layer =a,b", "NAME=W,R"], "=a,b")
        refuse(["--layer x=b,a", "l0 is given twice"], "x=a,b", "x=b,a")
        refuse(["--layer y_l1=a,b", "another one names x"], "x=a,b", "y_l1=a,b")
        refuse(["weight_ih_l0"], "x_l1=a,b")
        refuse(["array 'a'", "(15, 3)", "(3 * H, H)"], "x=a,a")

    def test_quantize_twice(self):
        """The same command gives the same file, byte for byte, in another process with other threads."""
        configurations = [["--bits", "4,biases=8"], ["--bits", "16", "--scale", "real"],
                          ["--method", "sqnr", "--table", "segments:8"],
                          ["--method", "percentile:99.9", "--rounding", "floor"],
                          ["--method", "ema:0.5", "--table", "interpolated", "--bits", "8,gate_in=12"]]
        contents = set()
        for model in [self.model, self.deep]:
            for configuration in configurations:
                outputs = [self.path("once.safetensors"), self.path("twice.safetensors")]
                for out, threads in zip(outputs, ["1", "3"]):
                    self.ok("quantize", model, "--calibrate", self.data, self.batch, "-o", out, "--threads", threads,
                            *configuration)
                first, second = [read(out) for out in outputs]
                self.assertEqual(first, second, (model, configuration))
                contents.add(first)
        self.assertEqual(len(contents), 2 * len(configurations))

    def test_quantize_refuses(self):
        out = self.path("refused.safetensors")

        def refuse(words, *arguments, model=self.model, data=self.data):
            self.fails(words, "quantize", model, "--calibrate", data, "-o", out, *arguments)
            self.assertFalse(os.path.exists(out))

        self.fails(["-o", "--dry-run"], "quantize", self.model, "--calibrate", self.data)
        refuse(["enc", "dec"], model=self.two)
        refuse(["before"], "--reset", "before")
        refuse(["--reset", "sometimes"], "--reset", "sometimes")
        refuse(["--gate-order", "zrn"], "--gate-order", "zrn")
        refuse(["33"], "--bits", "33")
        refuse(["nosuch"], "--bits", "8,nosuch=4")
        refuse(["median"], "--method", "median")
        refuse(["--scale", "pow3"], "--scale", "pow3")
        refuse(["--rounding", "up"], "--rounding", "up")
        refuse(["segments:1"], "--table", "segments:1")
        refuse(["nowhere.npy"], data=self.path("nowhere.npy"))
        refuse(["no-match-*.npy"], data=self.path("no-match-*.npy"))
        rng = random.Random(1)
        refuse(["wide.npy", "[6, 4]", "[T, 3]"], data=self.at("wide.npy", floats(rng, (6, 4))))
        refuse(["flat.npy", "[6]"], data=self.at("flat.npy", floats(rng, (6,))))
        bad = [0.5] * (4 * 2 * INPUTS)
        bad[2 * 2 * INPUTS + 1 * INPUTS + 2] = float("nan")
        refuse(["bad.npy", "nan", "[2, 1, 2]"], data=self.at("bad.npy", npy((4, 2, INPUTS), bad)))
        bad[2 * 2 * INPUTS + 1 * INPUTS + 2] = float("-inf")
        refuse(["bad.npy", "inf", "[2, 1, 2]", "finite"], data=self.at("bad.npy", npy((4, 2, INPUTS), bad)))
        for value in [float("nan"), float("inf")]:
            arrays = gru_arrays(rng, "gru.")
            values = [0.0] * 12 + [value] + [0.0] * (3 * HIDDEN * HIDDEN - 13)
            arrays["gru.weight_hh_l0"] = npy((3 * HIDDEN, HIDDEN), values)
            refuse(["bad.npz", "gru.weight_hh_l0[2, 2]", str(value), "finite"], model=self.at("bad.npz", npz(arrays)))
        arrays = gru_arrays(rng, "gru.")
        arrays["gru.weight_hh_l0"] = floats(rng, (3 * HIDDEN, HIDDEN + 1))
        refuse(["shape.npz", "weight_hh_l0", "(15, 6)"], model=self.at("shape.npz", npz(arrays)))
        content = read(self.model)
        for length in [0, 3, 50, len(content) // 2, len(content) - 1]:
            refuse(["cut.npz"], model=self.at("cut.npz", content[:length]))
            refuse(["cut.npz"], data=self.at("cut.npz", content[:length]))
        refuse(["cut.npy"], data=self.at("cut.npy", read(self.batch)[:-1]))
        refuse(["lying.npy"], data=self.at("lying.npy", npy((1 << 40, INPUTS), [0.0] * INPUTS)))
        # What could overflow is refused, with the intermediate, its bound and the limit.
        refuse(["layer 0", " row ", "(gate", "can reach", "9223372036854775807"], "--bits",
               "32,gate_in=16,gate_out=16")
        refuse(["gate_in=17", "16"], "--bits", "8,gate_in=17")
        refuse(["0 bits", "1 to 32"], "--bits", "0")
        empty = self.path("empty")
        os.makedirs(empty, exist_ok=True)
        refuse(["empty"], data=empty)
        refuse(["none.npy"], data=self.at("none.npy", npy((0, INPUTS), [])))

    def test_run_is_the_same_every_way(self):
        out = self.path("y.npy")
        for model, width in [(self.fixed, HIDDEN), (self.fixed_deep, 2 * HIDDEN)]:
            self.ok("run", model, self.batch, "-o", out, "--kernel", "reference")
            wanted = read(out)
            self.assertEqual(parse_npy(wanted)[:2], ("<f4", (11, 4, width)))
            ways = [["--threads", "3"], ["--threads", "0"], []]
            usable = [k["name"] for k in self.json("supported")["kernels"] if k["usable"]]
            ways += [["--kernel", kernel] for kernel in usable]
            if width == HIDDEN:
                ways += [["--chunk", "1"], ["--chunk", "4", "--threads", "2"], ["--chunk", "100"]]
            for way in ways:
                os.remove(out)
                self.ok("run", model, self.batch, "-o", out, *way)
                self.assertEqual(read(out), wanted, way)
        self.fails(["--chunk", "bidirectional"], "run", self.fixed_deep, self.batch, "-o", out, "--chunk", "2")
        self.fails(["--kernel", "sse9", "scalar"], "run", self.fixed, self.batch, "-o", out, "--kernel", "sse9")
        self.fails(["ISOBIT_CPU", "sse9"], "run", self.fixed, self.batch, "-o", out, env={"ISOBIT_CPU": "sse9"})

    def test_run_state(self):
        whole, state = self.path("whole.npy"), self.path("state.npz")
        self.ok("run", self.fixed, self.single, "-o", whole)
        _, shape, body = parse_npy(read(whole))
        self.assertEqual(shape, (13, HIDDEN))
        x = parse_npy(read(self.single))[2]
        cut = 6 * INPUTS * 4
        halves = []
        for name, part, extra in [("a.npy", x[:cut], ["--save-state", state]), ("b.npy", x[cut:], ["--state", state])]:
            values = struct.unpack("<%df" % (len(part) // 4), part)
            source = self.at(name, npy((len(values) // INPUTS, INPUTS), values))
            self.ok("run", self.fixed, source, "-o", self.path("half.npy"), *extra)
            halves.append(parse_npy(read(self.path("half.npy")))[2])
        self.assertEqual(b"".join(halves), body)
        zeros = self.at("h0.npy", npy((1, 1, HIDDEN), [0.0] * HIDDEN))
        self.ok("run", self.fixed, self.single, "-o", self.path("half.npy"), "--state", zeros)
        self.assertEqual(read(self.path("half.npy")), read(whole))
        self.fails(["--state", "[1, 1, 5]", "[1, 4, 5]"], "run", self.fixed, self.batch, "-o", whole, "--state", zeros)
        self.fails(["--state", "h0"], "run", self.fixed, self.batch, "-o", whole, "--state", state)
        out = self.path("many.npz")
        part = os.path.join(self.data, "part0.npz")
        report = self.json("run", self.fixed, part, "-o", out)
        self.assertEqual(report["sequences"], 4)
        with zipfile.ZipFile(out) as archive:
            self.assertEqual(sorted(archive.namelist()), ["s%d.npy" % n for n in range(4)])
        self.fails(["part0.npz", ".npz"], "run", self.fixed, part, "-o", whole)
        self.fails(["--state"], "run", self.fixed, part, "-o", out, "--save-state", state)

    def test_run_integer(self):
        grid = self.json("inspect", self.fixed)["grus"][0]["layers"][0]["grids"]["x"]
        self.assertEqual((grid["bits"], grid["signed"], grid["kind"]), (8, True, "pow2"))
        _, shape, body = parse_npy(read(self.single))
        values = struct.unpack("<%df" % (len(body) // 4), body)
        codes = [max(-128, min(127, round(v * 2 ** grid["shift"]) + grid["zero_point"])) for v in values]
        source = self.at("codes.npy", npy(shape, codes, "|i1", "b"))
        out_codes, out_floats = self.path("yc.npy"), self.path("yf.npy")
        self.ok("run", self.fixed, source, "-o", out_codes, "--integer")
        self.ok("run", self.fixed, self.single, "-o", out_floats)
        h = self.json("inspect", self.fixed)["grus"][0]["layers"][0]["grids"]["h"]
        descr, _, body = parse_npy(read(out_codes))
        self.assertEqual(descr, "|i1")
        back = [(code - h["zero_point"]) * h["scale"] for code in struct.unpack("<%db" % len(body), body)]
        body = parse_npy(read(out_floats))[2]
        self.assertEqual(back, list(struct.unpack("<%df" % (len(body) // 4), body)))
        self.fails(["single.npy", "f32", "s8"], "run", self.fixed, self.single, "-o", out_codes, "--integer")

    def test_device_refuses(self):
        out, packed = self.path("refused.npy"), self.path("refused_packed.safetensors")
        rng = random.Random(2)
        self.ok("pack", self.at("refused.npz", npz({"w": floats(rng, (8, 64))})), "-o", packed)
        rows = self.at("refused_rows.npy", floats(rng, (2, 64)))
        verbs = [["run", self.fixed, self.single, "-o", out], ["compare", self.model, self.fixed, "--data", self.data],
                 ["verify"], ["verify", self.fixed], ["fingerprint"], ["supported"], ["bench", "gru"],
                 ["bench", "linear"], ["bench", "conv"], ["bench", "table"],
                 ["table", "run", "silu", self.single, "-o", out],
                 ["matmul", packed, rows, "-o", out]]
        for verb in verbs:
            for device in ["gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA"]:
                self.fails(["--device " + device, "cpu, cuda or cuda:N"], *verb, "--device", device)
        # Where there is a device, CUDA_VISIBLE_DEVICES hides it.
        built = self.json("supported")["cuda_built"]
        words = ["0 CUDA devices"] if built else ["built without CUDA", "-DISOBIT_CUDA=ON"]
        for verb in verbs:
            for device in ["cuda", "cuda:1"]:
                self.fails(["--device " + device] + words, *verb, "--device", device, env={"CUDA_VISIBLE_DEVICES": ""})
        self.assertFalse(os.path.exists(out))

    def test_run_warns_of_states(self):
        first, rest = self.path("first.npz"), self.path("rest.npy")
        self.ok("run", self.fixed_deep, self.single, "-o", rest, "--save-state", first,
                warnings=["is bidirectional: a sequence that is run in pieces"])
        self.ok("run", self.fixed, self.single, "-o", rest, "--save-state", first)
        big = self.at("big_states.npy", npy((1, 1, HIDDEN), [50.0] * HIDDEN))
        self.ok("run", self.fixed, self.single, "-o", rest, "--state", big, warnings=["100 % of the values of --state " + big])
        nan = self.at("nan_states.npy", npy((1, 1, HIDDEN), [float("nan")] * HIDDEN))
        self.fails(["--state " + nan, "NaN"], "run", self.fixed, self.single, "-o", rest, "--state", nan)
        far = self.at("far.npy", npy((2, INPUTS), [1e30] * 2 * INPUTS))
        self.ok("quantize", self.model, "--calibrate", self.data, "--validate", far, "--dry-run",
                warnings=["100 % of the inputs of --validate lie outside"])

    def test_run_refuses(self):
        out = self.path("refused.npy")
        self.fails(["model.npz", "quantize"], "run", self.model, self.single, "-o", self.path("o.npy"))
        self.fails(["--output"], "run", self.fixed, self.single)
        self.fails([".npy", ".npz"], "run", self.fixed, self.single, "-o", self.path("o.txt"))
        self.fails(["o.npy", "no folder"], "run", self.fixed, self.single, "-o", self.path("nowhere/o.npy"))
        self.fails(["is a folder"], "run", self.fixed, self.single, "-o", self.data)
        self.fails(["--chunk"], "run", self.fixed, self.single, "-o", out, "--chunk=-1")

        bad = self.at("nan.npy", npy((2, INPUTS), [0.5, 0.5, 0.5, 0.5, float("nan"), 0.5]))
        self.fails(["nan.npy", "nan at [1, 1]"], "run", self.fixed, bad, "-o", out)
        wide = self.at("wide.npy", npy((6, 4), [0.5] * 24))
        self.fails(["wide.npy", "[6, 4]", "[T, 3]"], "run", self.fixed, wide, "-o", out)
        self.fails(["absent.npz"], "run", self.fixed, self.single, "-o", out, "--state", self.path("absent.npz"))
        self.assertFalse(os.path.exists(out))

    def test_kernels_that_cannot_run(self):
        """Only where the machine lacks one; src/gru/cpu/path_test.cc lets processors lack them everywhere."""
        out = self.path("refused.npy")
        for kernel in self.json("supported")["kernels"]:
            if not kernel["usable"]:
                words = [kernel["name"], kernel["reason"]]
                self.fails(words, "run", self.fixed, self.single, "-o", out, "--kernel", kernel["name"])
                self.fails(words, "fingerprint", "--kernel", kernel["name"])
                self.fails(["ISOBIT_CPU"] + words, "run", self.fixed, self.single, "-o", out,
                           env={"ISOBIT_CPU": kernel["name"]})

    def test_saved_models_that_lie(self):
        content = read(self.fixed)
        length = struct.unpack("<Q", content[:8])[0]
        header = content[8:8 + length]

        def refuse(words, old, new):
            self.assertIn(old, header)
            changed = header.replace(old, new)
            source = self.at("lies.safetensors", struct.pack("<Q", len(changed)) + changed + content[8 + length:])
            for command in [["inspect", source], ["run", source, self.single, "-o", self.path("refused.npy")],
                            ["verify", source]]:
                self.fails(["lies.safetensors"] + words, *command)

        version = b'\\"format_version\\":'
        refuse(["format version 2", "reads format version 1"], version + b"1", version + b"2")
        refuse(["format_version", "missing"], version, b'\\"format_versiom\\":')
        refuse(["hidden_size"], b'\\"hidden_size\\":5', b'\\"hidden_size\\":0')
        refuse(["shape"], b'\\"hidden_size\\":5', b'\\"hidden_size\\":16777216')
        refuse([], b'"data_offsets":[', b'"data_offsets":[1')

    def verbs(self):
        """Every verb of --help, ["table", "fit"] for those of a group."""
        def below(*names):
            found = [[*names, name] for name in re.findall(r"^  ([a-z]+)  ", self.ok(*names, "--help"), re.MULTILINE)]
            return [verb for name in found for verb in (below(*name) or [name])]
        return below()

    def test_no_output_replaces_an_input(self):
        """Every verb with an output, every pair of (input, output) and (output, output), under every name of the file:
        refused before anything is computed, and all files stay as they were. {} is where a path goes."""
        rng = random.Random(5)
        matrix = self.at("claims_matrix.npz", npz({"w": floats(rng, (64, 64))}))
        packed = self.path("claims_packed.safetensors")
        self.ok("pack", matrix, "-o", packed)
        state = self.path("claims_state.npz")
        self.ok("run", self.fixed, self.single, "-o", self.path("claims.npy"), "--save-state", state)
        rows = self.at("claims_rows.npy", floats(rng, (2, 64)))
        kernels = self.at("claims_kernels.npy", floats(rng, (2, 3, 3, 4)))
        images = self.at("claims_images.npy", floats(rng, (1, 3, 3, 4)))
        own = self.at("claims_own.npy", npy((65536,), [0.0] * 65536, "<f8", "d"))
        lengths = self.at("claims_lengths.npy", npy((1,), [13], "<i4", "i"))
        mask = self.at("claims_mask.npy", npy((13, HIDDEN), [1] * (13 * HIDDEN), "|u1", "B"))
        h0 = self.at("claims_h0.npy", npy((1, 1, HIDDEN), [0.0] * HIDDEN))
        table = self.published()
        shard = os.path.basename(self.at("claims_shard.safetensors", read(self.fixed)))
        index = self.at("claims.safetensors.index.json",
                        json.dumps({"weight_map": {"a": shard, "b": os.path.basename(self.single)}}).encode())
        config = self.at("config.json", b"{}")
        self.addCleanup(os.remove, config)
        # verb: arguments, files read (which arguments may name or not), options that name outputs
        commands = {
            "inspect": (["inspect", packed, "--tensor", "w"], [packed, config], ["-o"]),
            "quantize": (["quantize", self.model, "--calibrate", self.single, "--lengths", lengths, "--state", h0,
                          "--validate", self.batch], [self.model, self.single, lengths, h0, self.batch], ["-o"]),
            "tune": (["tune", self.model, "--calibrate", self.single, "--validate", self.batch, "--lengths", lengths,
                      "--state", h0, "--validate-state", state],
                     [self.model, self.single, self.batch, lengths, h0, state], ["-o", "--svg", "--html"]),
            "compare": (["compare", self.model, self.fixed, "--data", self.single, "--lengths", lengths, "--state", h0],
                        [self.model, self.fixed, self.single, lengths, h0], ["--html"]),
            "pack": (["pack", matrix], [matrix, config], ["-o"]),
            "matmul": (["matmul", packed + ":w", rows], [packed, rows], ["-o"]),
            "conv": (["conv", kernels, images, "--weight-layout", "ohwi"], [kernels, images], ["-o"]),
            "run": (["run", self.fixed, self.single, "--state", state, "--lengths", lengths, "--zoneout-mask", mask],
                    [self.fixed, self.single, state, lengths, mask], ["-o", "--save-state"]),
            "export c": (["export", "c", self.fixed, "--name", "t", "--check", self.single], [self.fixed, self.single],
                         ["-o"]),
            "table fit": (["table", "fit", own, "--steps", "1,8x4,1"], [own], ["-o"]),
            "table show": (["table", "show", table, "--exact", own], [table, own], ["--svg"]),
            "table export": (["table", "export", table, "--name", "t"], [table], ["--c", "--hex"]),
            "table run": (["table", "run", table, self.single], [table, self.single], ["-o"]),
        }
        short = {"--output": "-o"}
        for verb in self.verbs():
            help_text = self.ok(*verb, "--help")
            marked = re.findall(r"^ +(?:-\w,)?(--[\w-]+) OUT", help_text, re.MULTILINE)
            expected = commands.get(" ".join(verb), ((), (), ()))[2]
            self.assertEqual(sorted(short.get(option, option) for option in marked), sorted(expected), verb)
            # An option that is not marked OUT writes nothing.
            for option in re.findall(r"^ +(?:-\w,)?(--[\w-]+) (?!OUT)", help_text, re.MULTILINE):
                self.assertNotRegex(option, "output$|save|svg|html", verb)

        names = self.path("claims_names")
        os.makedirs(names)
        os.symlink(".", os.path.join(names, "here"))

        def other_names(path):
            """Other names of a file: relative, through a folder that is a link, a link, a hard link."""
            folder, name = os.path.split(path)
            yield path
            yield os.path.relpath(path, self.folder)
            yield os.path.join(folder, ".", name)
            yield os.path.join(names, "here", "..", os.path.relpath(path, self.folder))
            for make, extension in [(os.symlink, ".link"), (os.link, ".hard"), (os.symlink, ".link.npy"),
                                    (os.symlink, ".link.svg"), (os.symlink, ".link.html")]:  # each output takes one of these endings
                alias = os.path.join(names, name + extension)
                if not os.path.lexists(alias):
                    make(path, alias)
                yield alias

        def everything():
            found = {}
            for name in glob.glob(self.folder + "/**", recursive=True):
                status = os.lstat(name)
                if not os.path.isdir(name):
                    found[name] = (status.st_ino, status.st_size, status.st_mtime_ns)
            return found

        def written(verb, option, path):
            """Lets a command write to this path: below --c, and -o of export c, names are given."""
            if option != "--c" and verb != "export c":
                return [option, path]
            folder = os.path.join(names, "c")
            os.makedirs(folder, exist_ok=True)
            for name in ["t.c", "t.h", "t_test.c"]:
                alias = os.path.join(folder, name)
                if os.path.lexists(alias):
                    os.remove(alias)
            os.symlink(os.path.join(self.folder, path), os.path.join(folder, "t.h"))
            return [option, folder]

        def refuse(words, *command):
            # Some names are refused for what they end in; which of the two says so does not matter here.
            result = self.call(*command, cwd=self.folder)
            self.assertEqual((result.returncode, result.stdout), (2, ""), command)
            if "name must end in" not in result.stderr:
                self.assertIn("is the same file as", result.stderr, command)
                for word in words:
                    self.assertIn(word, result.stderr, command)
            return result.stderr

        said = set()
        before = None
        for verb, (command, inputs, outputs) in commands.items():
            for option in outputs:
                if option not in ["-o", "--c"]:
                    first = ["-o", self.path("claims_y.npy")] if "-o" in outputs else []
                    self.fails([option + " must not be empty"], *command, *first, option, "")
                for path in inputs:
                    for name in other_names(path):
                        arguments = [*command, *written(verb, option, name)]
                        if option in ["--save-state", "--svg", "--html"] and "-o" in outputs:
                            arguments += ["-o", self.path("claims_y.npy" if verb == "run" else "claims_y.st")]
                        before = everything()
                        if "is the same file as" in refuse([option + " ", "read"], *arguments):
                            said.add((verb, option))
                        self.assertEqual(everything(), before, arguments)
            for first, second in itertools.combinations(outputs, 2):
                rest = [] if "-o" in (first, second) else ["-o", self.path("claims_y.st")]
                for old in [None, b"old"]:
                    new = os.path.join(self.folder, "claims_new.npz")
                    if old is not None:
                        write(new, old)
                    link = os.path.join(names, "%s-%s-%s-%s.npz" % (verb, first, second, old))
                    os.symlink(new, link)  # of a file that does not exist yet, or does
                    for name in [new, os.path.relpath(new, self.folder), os.path.join(names, "..", "claims_new.npz"),
                                 link]:
                        refuse([first + " ", second + " ", "another output"], *command, *written(verb, first, new),
                               *written(verb, second, name), *(rest if "-o" in outputs else []))
                        self.assertEqual(os.path.exists(new) and read(new), old or False)
                if os.path.exists(new):
                    os.remove(new)
        self.assertEqual(said, {(verb, option) for verb, (_, _, outputs) in commands.items() for option in outputs})
        # Files that a folder or a pattern stands for are read, too, and those that an index lists.
        part = os.path.join(names, "part")
        os.symlink(os.path.join(self.data, "part1.npz"), part)
        for data in [self.data, os.path.join(self.data, "part?.npz")]:
            refuse(["--calibrate"], "quantize", self.model, "--calibrate", data, "-o", part)
        for path in [index, self.path(shard), self.single]:
            refuse(["MODEL"], "pack", index, "-o", path)
        # The state cannot be replaced by the next one; devices may be written to, and read, by all.
        refuse(["--save-state", "--state"], "run", self.fixed, self.single, "-o", self.path("claims.npy"), "--state",
               state, "--save-state", state)
        self.ok("table", "export", "silu", "--hex", "/dev/null", "--c", names)

    def test_no_half_files(self):
        """A file limit stands for a full disk: an old output stays as it was and nothing else is left."""
        folder = self.path("full")
        os.mkdir(folder)
        long = self.at("long.npy", npy((4000, INPUTS), [0.25] * (4000 * INPUTS)))
        square = npy((64, 64), [0.25] * (64 * 64))
        matrix, rows = self.at("matrix.npz", npz({"w": square})), self.at("rows.npy", square)
        packed = self.path("packed.safetensors")
        self.ok("pack", matrix, "-o", packed)

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

        commands = [(["run", self.fixed, long], "y.npy"), (["run", self.fixed, long], "y.npz"),
                    (["quantize", self.model, "--calibrate", self.data], "q.safetensors"),
                    (["pack", matrix], "p.safetensors"), (["matmul", packed, rows], "y.npy"),
                    (["inspect", packed, "--tensor", "w"], "w.npy")]
        for command, name in commands:
            out = os.path.join(folder, name)
            for old in [None, b"old"]:
                if old is not None:
                    write(out, old)
                self.fails([name], *command, "-o", out, preexec_fn=limit)
                self.assertEqual(os.listdir(folder), [] if old is None else [name])
                if old is not None:
                    self.assertEqual(read(out), old)
                    os.remove(out)
        for command, name in commands:
            out = write(os.path.join(folder, name), b"old")
            os.chmod(folder, 0o500)
            self.fails([name, "not writable"], *command, "-o", out, preexec_fn=give_up_permission)
            os.chmod(folder, 0o700)
            self.assertEqual((os.listdir(folder), read(out)), ([name], b"old"))
            os.remove(out)
            # Below a file there can be no folder; /proc says yes to root's question, but takes no file.
            below = os.path.join(self.at("file", b"old"), name)
            self.fails([name, "no folder"], *command, "-o", below)
            self.assertEqual(read(self.path("file")), b"old")
            if os.path.isdir("/proc/self"):
                self.fails(["/proc/" + name], *command, "-o", "/proc/" + name)
        if os.path.exists("/dev/full"):
            with open("/dev/full", "w") as full:
                self.fails(["standard output"], "supported", stdout=full)

    def test_compare(self):
        report = self.json("compare", self.model, self.fixed, "--data", self.data, self.batch)
        self.assertEqual((report["sequences"], report["same_source"]), (16, True))
        names = [entry["tensor"] for entry in report["tensors"]]
        self.assertEqual(names, ["x", "W", "bw", "ih", "R", "br", "hh", "u_in", "r_in", "n_in", "u", "r", "n", "h"])
        for entry in report["tensors"]:
            self.assertGreater(entry["sqnr_db"], 15, entry)
            self.assertGreater(entry["own_sqnr_db"], 15, entry)
            self.assertLessEqual(entry["own_worst_channel"]["sqnr_db"], entry["own_sqnr_db"] + 1e-9)
            self.assertGreaterEqual(entry["worst_channel"]["channel"], 0)
            self.assertGreater(entry["cosine"], 0.99)
            self.assertGreaterEqual(entry["clipped_percent"], 0)
            self.assertEqual("row" in entry["largest_error_at"], entry["tensor"] in ("W", "R", "bw", "br"))
            if entry["first_part"]:
                self.assertGreaterEqual(entry["first_part"]["step"], 0)
        text = self.ok("compare", self.model, self.fixed, "--data", self.batch, "--part", "0.5")
        for word in ["SQNR", "####", "assumed", "0.5 codes"]:
            self.assertIn(word, text)
        layers = {entry["layer"] for entry in self.json("compare", self.deep, self.fixed_deep, "--data", self.batch)["tensors"]}
        self.assertEqual(layers, {"l0", "l0_reverse", "l1", "l1_reverse"})
        self.fails(["float model first"], "compare", self.fixed, self.model, "--data", self.batch)
        self.fails(["differ in shape"], "compare", self.deep, self.fixed, "--data", self.batch)
        self.fails(["--part"], "compare", self.model, self.fixed, "--data", self.batch, "--part", "0")
        for entry in self.json("compare", self.model, self.fixed, "--data", self.data)["tensors"]:
            self.assertEqual(entry["clipped_percent"], 0, entry)  # what it was calibrated on

    def test_compare_sequences(self):
        rng = random.Random(31)
        steps, batch = 9, 4
        x = [[[rng.uniform(-1, 1) for _ in range(INPUTS)] for _ in range(batch)] for _ in range(steps)]
        lengths = [9, 0, 3, 5]
        h0 = [[rng.uniform(-0.9, 0.9) for _ in range(HIDDEN)] for _ in range(batch)]

        def flat(rows):
            return [value for row in rows for value in (flat(row) if isinstance(row, list) else [row])]

        def compare(name, shape, values, *options):
            data = self.at(name, npy(shape, flat(values)))
            report = self.json("compare", self.model, self.fixed, "--data", data, *options)
            return [{**row, "largest_error_at": 0, "first_part": 0} for row in report["tensors"]]

        time_first = compare("time_first.npy", (steps, batch, INPUTS), x)
        batched = [[x[t][n] for t in range(steps)] for n in range(batch)]
        for threads in ["1", "3"]:
            self.assertEqual(time_first, compare("batch_first.npy", (batch, steps, INPUTS), batched, "--batch-first",
                                                 "--threads", threads))
        # Lengths and states: the same as sequences one by one.
        npy_lengths = self.at("lengths.npy", npy((batch,), lengths, "<i8", "q"))
        state = self.at("h0.npy", npy((1, batch, HIDDEN), flat(h0)))
        together = compare("time_first.npy", (steps, batch, INPUTS), x, "--lengths", npy_lengths, "--state", state)
        parts, states = {}, {}
        for n in range(batch):
            parts["s%d" % n] = npy((lengths[n], INPUTS), flat([x[t][n] for t in range(lengths[n])]))
            states["s%d" % n] = npy((1, 1, HIDDEN), h0[n])
        parts, states = self.at("parts.npz", npz(parts)), self.at("states.npz", npz(states))
        report = self.json("compare", self.model, self.fixed, "--data", parts, "--state", states)
        self.assertEqual((report["sequences"], report["steps"]), (4, 17))
        self.assertEqual(together, [{**row, "largest_error_at": 0, "first_part": 0} for row in report["tensors"]])
        held = compare("time_first.npy", (steps, batch, INPUTS), x, "--zoneout", "0.5")
        self.assertLess(held[-1]["sqnr_db"], time_first[-1]["sqnr_db"] - 5)  # zoneout is the float side's

        arguments = ["compare", self.model, self.fixed, "--data", self.path("time_first.npy")]
        self.fails(["--zoneout 2", "0 to 1"], *arguments, "--zoneout", "2")
        self.fails(["--threads -1"], *arguments, "--threads", "-1")
        self.fails(["--lengths", "[5]", "[N] = [4]"], *arguments, "--lengths",
                   self.at("five.npy", npy((5,), [1, 2, 3, 4, 5], "<i4", "i")))
        self.fails(["long.npy", "length 10 of sequence 2", "0 to T = 9"], *arguments, "--lengths",
                   self.at("long.npy", npy((4,), [1, 2, 10, 4], "<i4", "i")))
        self.fails(["--state", "s8", "not codes"], *arguments, "--state",
                   self.at("codes_h0.npy", npy((1, 4, HIDDEN), [0] * 4 * HIDDEN, "|i1", "b")))
        self.fails(["--state", "f32 [1, 1, 5]", "[1, 4, 5]"], *arguments, "--state", self.at("few.npy", npy((1, 1, HIDDEN), h0[0])))
        self.fails(["states.npz", "no array \"\""], *arguments, "--state", states)
        # Many more sequences than steps are a hint that the axes are exchanged.
        many = self.at("many.npy", floats(rng, (2, 16, INPUTS)))
        result = self.call("compare", self.model, self.fixed, "--data", many)
        self.assertEqual(result.returncode, 0)
        self.assertIn("--batch-first", result.stderr)
        self.assertIsNone(self.json("compare", self.model, self.fixed, "--data", many, "--batch-first")["hint"])

    def test_compare_html(self):
        names = 'n<a>&"me\'%d.npy'
        model, fixed = self.at('m<&"\'>.npz', read(self.deep)), self.path('f<&"\'>.st')
        write(fixed, read(self.fixed_deep))
        data = [self.at(names % i, floats(random.Random(i), (30 + i, INPUTS))) for i in range(9)]
        out = self.path("page.html")
        arguments = ["compare", model, fixed, "--data", *data, "--html", out]
        report = self.json(*arguments, "--ablate")
        text, content = self.page(out), read(out)
        self.assertIn("%.1f dB" % report["output_sqnr_db"], text)
        for tensor in report["tensors"]:
            shown = "exact" if tensor["sqnr_db"] is None else "%.1f" % tensor["sqnr_db"]
            self.assertIn(shown, text, tensor["tensor"])
            if tensor["tensor"] not in ["bw", "br"]:
                self.assertEqual(sum(tensor["histogram"]["counts"]), tensor["values"])
        self.assertIn(report["ablation"]["sentence"], text)
        for one in report["ablation"]["alone"]:
            self.assertIn("%.1f" % one["sqnr_db"], text)
        self.assertIn(model + " and " + fixed, text)
        self.assertIn(os.path.basename(report["worst_sequence"]["sequence"]), text)
        for title in ["Tensors, in the order", "What wider tensors give", "Error over time", "Values on their grids",
                      "Activation tables"]:
            self.assertIn(title, text)
        # The same bytes on any number of threads; the ordinary text and JSON do not change.
        self.ok(*arguments, "--ablate", "--threads", "1")
        self.assertEqual(read(out), content)
        self.ok(*arguments)
        self.assertNotIn("blame", self.page(out))
        plain = self.json(*arguments[:-2])
        self.assertNotIn("histogram", plain["tensors"][0])
        self.assertEqual([row["sqnr_db"] for row in plain["tensors"]], [row["sqnr_db"] for row in report["tensors"]])
        # Refused before the work, and so before the data is looked at.
        for name, words in [(self.folder, ["folder"]), (self.path("no/page.html"), ["no folder"]), ("", ["empty"])]:
            self.fails(["--html", *words], *arguments[:-1], name)

    def test_compare_ablate(self):
        # One channel sixty times as loud as the others: they have no bits left.
        rng = random.Random(32)
        hidden, inputs = 8, 6
        arrays = {}
        for name, shape in [("weight_ih", (3 * hidden, inputs)), ("weight_hh", (3 * hidden, hidden)),
                            ("bias_ih", (3 * hidden,)), ("bias_hh", (3 * hidden,))]:
            arrays["gru." + name + "_l0"] = floats(rng, shape, 0.9)
        model = self.at("loud.npz", npz(arrays))

        def data(name):
            values = [rng.uniform(-1, 1) * (60 if i % inputs == 4 else 1) for i in range(40 * 5 * inputs)]
            return self.at(name, npy((40, 5, inputs), values))

        seen, unseen, fixed = data("seen.npy"), data("unseen.npy"), self.path("loud.st")
        bits = "8,linear=16,gate_in=12"
        self.ok("quantize", model, "--calibrate", seen, "--bits", bits, "-o", fixed)
        arguments = ["compare", model, fixed, "--data", seen, "--ablate"]
        ablation = self.json(*arguments)["ablation"]
        self.assertEqual(ablation["bits"], bits)
        self.assertEqual(ablation["sqnr_db"], ablation["layer_sqnr_db"][-1])
        gains = [row["gain_db"] for row in ablation["rows"]]
        self.assertEqual(gains, sorted(gains, reverse=True))
        sets = {row["set"]: row for row in ablation["rows"]}
        for name in ["x=16", "h=16", "W=16", "weights=16", "biases=16", "h=16,u=16", "h=16,gate_out=16", "all=16"]:
            self.assertIn(name, sets)
        self.assertEqual(sets["weights=16"]["weight_bytes"], 3 * hidden * (inputs + hidden))
        self.assertEqual(sets["x=16"]["weight_bytes"], 0)
        self.assertIn("x=16", ablation["advice"]["set"])
        self.assertEqual(ablation["advice"]["bits"], bits + "," + ablation["advice"]["set"])
        text = self.ok(*arguments, "--threads", "1")
        self.assertEqual(text.splitlines()[-1], ablation["sentence"])  # on any number of threads
        self.assertIn("--bits " + ablation["advice"]["bits"], ablation["sentence"])
        # The SPEC that it prints does what it says, on other data too.
        self.ok("quantize", model, "--calibrate", seen, "--bits", ablation["advice"]["bits"], "-o", fixed)
        after = self.json("compare", model, fixed, "--data", unseen)["tensors"][-1]
        self.assertEqual(after["tensor"], "h")
        self.assertGreaterEqual(after["sqnr_db"], 35)
        # Layers by themselves.
        deep = self.json("compare", self.deep, self.fixed_deep, "--data", self.batch, "--ablate")["ablation"]
        self.assertEqual(len(deep["layer_sqnr_db"]), 2)
        self.assertIn("l1.all=16", [row["set"] for row in deep["rows"]])

    def test_verify(self):
        report = self.json("verify", "--outputs", "20000")
        self.assertEqual(report["different"], 0)
        self.assertGreaterEqual(report["outputs_compared"], 20000)
        self.assertEqual(report["outputs_compared"], sum(k["outputs_compared"] for k in report["kernels"]))
        for kernel in report["kernels"]:
            self.assertEqual(set(kernel), {"name", "outputs_compared", "bytes_compared", "different"})
            self.assertGreaterEqual(kernel["bytes_compared"], kernel["outputs_compared"])
        self.assertEqual(report["expected_by"], {"reference": report["outputs_compared"]})
        self.assertEqual(self.ok("verify", "--outputs", "1000", "--quiet"), "")
        self.assertIn("0 different", self.ok("verify", self.fixed, "--outputs", "5000"))
        self.assertIn("0 different", self.ok("verify", self.fixed_deep, "--outputs", "5000"))
        names = {kernel["name"] for kernel in report["kernels"]}
        self.assertTrue({"gru_scalar", "fp16_table_direct_scalar", "linear_int8_scalar", "linear_float_scalar",
                         "linear_static_scalar", "conv_static_scalar", "conv_int8_scalar",
                         "conv_int8_per_image_scalar", "conv_float_scalar"} <= names, names)
        only = self.json("verify", "--outputs", "1000", "--operation", "fp16_table")["kernels"]
        self.assertFalse([kernel["name"] for kernel in only if kernel["name"].startswith("gru")])
        only = self.json("verify", "--outputs", "1000", "--operation", "linear")["kernels"]
        self.assertTrue(all(kernel["name"].startswith("linear_") for kernel in only), only)
        only = self.json("verify", "--outputs", "1000", "--operation", "conv")["kernels"]
        self.assertTrue(all(kernel["name"].startswith("conv_") for kernel in only), only)
        self.fails(["--operation", "lstm"], "verify", "--operation", "lstm")
        self.ok("verify", "--outputs", "1000", env={"ISOBIT_REQUIRE": "scalar"})
        self.fails(["ISOBIT_REQUIRE", "cuda"], "verify", "--outputs", "1000", env={"ISOBIT_REQUIRE": "scalar,cuda"},
                   status=1)
        self.fails(["model.npz"], "verify", self.model)

    def test_fingerprint(self):
        text = self.ok("fingerprint", "--device", "cpu")
        for line in text.splitlines():
            self.assertRegex(line, r"^[a-z0-9_]+ [0-9a-f]+$")
        expected = dict(line.split() for line in text.splitlines())
        for kernel in self.json("supported")["kernels"]:
            if kernel["usable"]:
                self.assertEqual(self.json("fingerprint", "--kernel", kernel["name"]), {"fingerprints": expected})

    def test_supported(self):
        report = self.json("supported")
        self.assertEqual([kernel["name"] for kernel in report["kernels"]], KERNELS)
        for kernel in report["kernels"]:
            self.assertEqual(kernel["usable"], kernel["reason"] is None)
        self.assertEqual(sum(kernel["default"] for kernel in report["kernels"]), 1)
        self.assertIn("gru", report["operations"])
        for lists, prefix in [("linear_kernels", ""), ("conv_kernels", "conv_static_")]:
            for kernel in report[lists]:
                self.assertTrue(kernel["name"].startswith(prefix), kernel)
                self.assertEqual(kernel["usable"], {k["name"]: k["usable"] for k in report["kernels"]}[kernel["path"]])
        self.assertIn("usable", self.ok("supported"))
        forced = self.json("supported", env={"ISOBIT_CPU": "scalar"})
        self.assertEqual([k["name"] for k in forced["kernels"] if k["default"]], ["scalar"])

    PUBLISHED = ("-20.359375,-17.109375,-8.3671875,-1.9755859375,-0.255615234375,-0.007244110107421875,"
                 "0.0072174072265625,0.228515625,1.58203125,10.46875,65504.0")

    def published(self, model="nli_gpu"):
        """A saved table of SiLU with published cut points; quick, as nothing is searched for."""
        path = self.path("published_%s.safetensors" % model)
        if not os.path.exists(path):
            self.ok("table", "fit", "silu", "--cut-points=" + self.PUBLISHED, "--model", model, "-o", path)
        return path

    def test_table_fit(self):
        out = self.path("relu.safetensors")
        report = self.json("table", "fit", "relu", "-o", out, "--steps", "1,8x4,1")
        self.assertEqual(report["table"]["pieces"][0]["entries"], 35)
        self.assertEqual(report["table"]["certificate"]["max_ulp"], 0)
        self.assertIn("relu", self.ok("inspect", out))
        # A function of one's own: f(x) = min(|x|, 1) at every code.
        values = []
        for code in range(65536):
            x = struct.unpack("<e", struct.pack("<H", code))[0]
            values.append(min(abs(x), 1.0) if x == x else 0.0)
        own = self.at("own.npy", npy((65536,), values, "<f8", "d"))
        out = self.path("own.safetensors")
        self.assertEqual(self.json("table", "fit", own, "-o", out, "--steps", "1,8x4,1")["table"]["function"], "custom")
        self.assertIn("ok", self.ok("table", "check", out, "--exact", own))
        self.fails(["--exact"], "table", "check", out)
        for words, arguments in [(["sloth"], ["sloth"]),
                                 (["--model", "fast"], ["silu", "--model", "fast"]),
                                 (["--values", "f64"], ["silu", "--values", "f64"]),
                                 (["--goal", "least"], ["silu", "--goal", "least"]),
                                 (["--steps", "0"], ["silu", "--steps", "0"]),
                                 (["--steps", "300x2"], ["silu", "--steps", "300x2"]),
                                 (["--range", "1"], ["exp", "--range", "1"]),
                                 (["--cut-points inf", "inf"], ["silu", "--cut-points=-1,0,inf", "--steps", "4,4"]),
                                 (["cut_points[2]", "at least"], ["silu", "--cut-points=-1,1,0", "--steps", "4,4"]),
                                 (["cut points"], ["silu", "--cut-points=1,1,1", "--steps", "4,4"]),
                                 (["cut points"], ["silu", "--cut-points=-1,0,1"]),
                                 (["missing.npy"], [self.path("missing.npy")]),
                                 (["65536"], [self.batch])]:
            with self.subTest(arguments=arguments):
                bad = self.path("bad.safetensors")
                self.fails(words, "table", "fit", *arguments, "-o", bad)
                self.assertFalse(os.path.exists(bad))
        self.fails(["-o"], "table", "fit", "relu", "-o", "/nowhere/at/all")

    def test_table_check(self):
        path = self.published()
        report = self.json("table", "check", path, self.fixed)
        self.assertEqual(report["failed"], 0)
        self.assertEqual(len(report["tables"]), 4)  # one FP16 table, three gates
        gates = [table["name"] for table in report["tables"][1:]]
        self.assertEqual(gates, ["l0.u", "l0.r", "l0.n"])
        self.fails(["nothing to check"], "table", "check")
        self.fails(["--exact"], "table", "check", path, "--exact", self.batch)
        # A certificate that lies: caught, exit status 1.
        content = read(path)
        length = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:8 + length])
        saved = json.loads(header["__metadata__"]["isobit"])
        saved["fp16_table"]["certificate"]["max_ulp"] = "0x1p+20"
        header["__metadata__"]["isobit"] = json.dumps(saved)
        text = json.dumps(header).encode()
        lying = self.at("lying.safetensors", struct.pack("<Q", len(text)) + text + content[8 + length:])
        self.fails(["certificate"], "table", "check", lying, status=1)
        for length in [0, 8, 100, len(content) - 1]:
            self.fails(["cut.safetensors"], "table", "check", self.at("cut.safetensors", content[:length]))

    def test_table_check_all(self):
        report = self.json("table", "check", "--all")
        self.assertEqual(report["failed"], 0)
        self.assertGreaterEqual(len(report["tables"]), 26)
        best = {table["function"]: table["certificate"]["max_ulp"] for table in report["tables"]}
        for function in ["silu", "gelu", "sigmoid", "tanh", "exp", "mish", "softplus", "hardswish", "elu", "sin", "cos",
                         "log", "reciprocal", "rsqrt", "sqrt", "erf"]:
            self.assertLessEqual(best[function], 1, function)
        self.fails(["--model", "fast"], "table", "check", "--all", "--model", "f32,fast")

    def test_table_compare(self):
        """The published table of SiLU: GPU and CPU arithmetic disagree at 38 % of all inputs."""
        report = self.json("table", "compare", self.published("nli_gpu"), self.published("nli_cpu"))
        self.assertEqual((report["inputs"], report["different"]), (63488, 24124))
        self.assertIn("38.00 %", self.ok("table", "compare", self.published("nli_gpu"), self.published("nli_cpu")))
        self.assertEqual(self.json("table", "compare", "silu", "silu")["different"], 0)
        self.fails(["sloth"], "table", "compare", "silu", "sloth")

    def test_table_show(self):
        text = self.ok("table", "show", "silu")
        for word in ["silu", "f32", "259", "ULP"]:
            self.assertIn(word, text)
        self.assertIn("nli_gpu", self.ok("table", "show", self.published()))
        self.assertIn("LSB", self.ok("table", "show", self.fixed, "--gate", "l0.n"))
        self.fails(["l0.u", "l0.r", "l0.n"], "table", "show", self.fixed)
        self.fails(["l7.u"], "table", "show", self.fixed, "--gate", "l7.u")
        svg = self.path("silu.svg")
        self.ok("table", "show", "silu", "--svg", svg)
        self.assertIn(b"<svg", read(svg))
        svg = self.path("gate.svg")
        self.ok("table", "show", self.fixed, "--gate", "l0.n", "--svg", svg)
        self.assertIn(b"<svg", read(svg))
        svg = self.path("none.svg")
        self.fails(["gnuplot"], "table", "show", "silu", "--svg", svg, env={"PATH": "/nowhere"})
        self.assertFalse(os.path.exists(svg))

    def test_table_export(self):
        folder, hexadecimal = self.path("c"), self.path("silu.hex")
        report = self.json("table", "export", "silu", "--c", folder, "--hex", hexadecimal)
        self.assertEqual(sorted(os.listdir(folder)), ["isobit_silu.c", "isobit_silu.h", "isobit_silu_test.c"])
        self.assertEqual(len(report["files"]), 4)
        program = self.path("silu_test")
        subprocess.run(["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O2", "-o", program,
                        os.path.join(folder, "isobit_silu.c"), os.path.join(folder, "isobit_silu_test.c")], check=True)
        subprocess.run([program], check=True)
        self.assertTrue(read(hexadecimal))
        self.fails(["--c", "--hex"], "table", "export", "silu")
        self.fails(["--name", "2x"], "table", "export", "silu", "--c", folder, "--name", "2x")
        self.fails(["missing"], "table", "export", self.path("missing"), "--c", folder)

    def test_table_run(self):
        rng = random.Random(3)
        values = [rng.uniform(-9, 9) for _ in range(1000)] + [float("inf"), float("-inf"), float("nan"), -0.0, 1e-7]
        x32 = self.at("x32.npy", npy((5, 201), values))
        x16 = self.at("x16.npy", npy((1005,), values, "<f2", "e"))
        outputs = {}
        kernels = [k["name"] for k in self.json("supported")["fp16_kernels"]
                   if k["usable"] and k["operation"] == "fp16_table"]
        self.assertIn("reference", kernels)
        for kernel in [None, *kernels]:
            for x in [x32, x16]:
                y = self.path("y.npy")
                self.ok("table", "run", "gelu", x, "-o", y, *(["--kernel", kernel] if kernel else []))
                outputs.setdefault(x, set()).add(read(y))
        self.assertEqual([len(contents) for contents in outputs.values()], [1, 1])
        descr, shape, _ = parse_npy(next(iter(outputs[x16])))
        self.assertEqual((descr, shape), ("<f2", (1005,)))
        y = self.path("y.npy")
        self.assertEqual(self.json("table", "run", self.published(), x16, "-o", y, "--dtype", "f32")["dtype"], "f32")
        self.ok("table", "run", "softmax", x32, "-o", y, "--threads", "2")
        self.assertEqual(parse_npy(read(y))[1], (5, 201))
        for words, arguments in [(["kernel", "quick"], ["gelu", x32, "--kernel", "quick"]),
                                 (["--dtype", "bf16"], ["gelu", x32, "--dtype", "bf16"]),
                                 (["f64"], ["gelu", self.at("f64.npy", npy((2,), [1, 2], "<f8", "d"))]),
                                 (["holds 4"], ["gelu", self.data + "/part0.npz"]),
                                 (["sloth"], ["sloth", x32])]:
            with self.subTest(arguments=arguments):
                self.fails(words, "table", "run", *arguments, "-o", self.path("refused.npy"))
                self.assertFalse(os.path.exists(self.path("refused.npy")))

    def test_table_bench(self):
        report = self.json("bench", "table", "--all-kernels", "--elements", "1000", "--min-time", "0", "--dtype",
                           "f16,f32:bf16", "--function", "tanh")
        names = [case["kernel"] for case in report["cases"]]
        self.assertIn("reference", names)
        for case in report["cases"]:
            self.assertGreater(case["ns_per_element"], 0)
            self.assertGreater(case["memcpy_ns_per_element"], 0)
        self.fails(["--dtype", "s8"], "bench", "table", "--dtype", "s8")
        self.fails(["--elements", "0"], "bench", "table", "--elements", "0")

    def test_linear_bench(self):
        base = ["bench", "linear", "--min-time", "0", "--footprint", "1"]
        kinds = {"float": "linear_float", "int8": "linear_int8", "int8_asymmetric": "linear_int8"}
        shapes = [(264, 257), (520, 72)]  # few copies fill the footprint
        report = self.json(*base, "--m", "1,3", "--shape", "264x257,520x72", "--bits", "2,4", "--group", "16",
                           "--activations", ",".join(kinds))
        self.assertEqual(report["footprint_bytes"], 1 << 20)
        self.assertEqual([(c["K"], c["N"], c["bits"], c["activations"], c["M"]) for c in report["cases"]],
                         [(k, n, bits, kind, m) for k, n in shapes for bits in (2, 4) for kind in kinds
                          for m in (1, 3)])
        for case in report["cases"]:
            self.assertEqual(case["group"], 16)
            self.assertTrue(case["chosen"])
            for key in ["us", "weight_bytes_per_second", "read_bytes_per_second", "operations_per_second"]:
                self.assertGreater(case[key], 0)
            self.assertGreaterEqual(case["copies"] * case["weight_bytes"], 1 << 20)
            self.assertGreaterEqual(case["weight_bytes"], case["K"] * case["N"] * case["bits"] // 8)
        # Beside tiles the peak without them.
        (case,) = self.json(*base, "--shape", "264x257", "--m", "16", "--activations", "static")["cases"]
        self.assertEqual("vector_peak" in case, case.get("peak") == "amx")
        self.assertEqual("vector_peak" in case, case.get("vector_peak_operations_per_second", 0) > 0)
        base += ["--shape", "264x257", "--group", "0", "--m", "2"]
        repeated = self.ok(*base, "--repeat", "--json", input="\n\n").splitlines()
        names = [[case["name"] for case in json.loads(line)["cases"]] for line in repeated]
        self.assertEqual(len(names[0]), 1)
        self.assertEqual(names, names[:1] * 3)
        # Codes have 8 bits and one group a row.
        for kind, y_dtype in [("static", "u8"), ("accumulators", "s32")]:
            (case,) = self.json(*base, "--activations", kind)["cases"]
            self.assertEqual([case[key] for key in ("activations", "y_dtype", "bits", "group")],
                             [kind, y_dtype, 8, 264])
        kernels = [k for k in self.json("supported")["linear_kernels"] if k["usable"] and k["path"] != "reference"]
        for kind, operation in {**kinds, "static": "linear_static", "accumulators": "linear_static"}.items():
            arguments = [*base, "--activations", kind]
            # At this size the choice need not be the fastest.
            result = self.call(*arguments, "--all-kernels", "--json")
            self.assertIn(result.returncode, (0, 1), result.stderr)
            self.assertEqual(result.returncode, 1 if "times as long as" in result.stderr else 0)
            cases = json.loads(result.stdout)["cases"]
            names = [k["name"] for k in kernels if k["operation"] == operation]
            self.assertEqual([c["kernel"] for c in cases], names)
            self.assertEqual(sum(c["chosen"] for c in cases), 1)
        report = self.json(*arguments, "--kernel", ",".join(names[:2]))
        self.assertEqual([c["kernel"] for c in report["cases"]], names[:2])
        report = self.json(*arguments, "--kernel", "scalar")
        self.assertEqual([c["kernel"] for c in report["cases"]], [n for n in names if n.endswith("_scalar")])
        for words, arguments in [(["--shape", "40", "KxN"], ["--shape", "40"]), (["K", "0x3"], ["--shape", "0x3"]),
                                 (["N", "3x3.5"], ["--shape", "3x3.5"]), (["--m 0"], ["--m", "0"]),
                                 (["--bits", "9"], ["--bits", "9"]), (["bits is 3"], ["--bits", "3"]),
                                 (["--group -1"], ["--group", "-1"]), (["group"], ["--group", "12"]),
                                 (["--activations u8"], ["--activations", "u8"]),
                                 (["--bits 4", "static"], ["--activations", "static", "--bits", "4"]),
                                 (["--bits 4", "static"], ["--activations", "accumulators", "--bits", "4"]),
                                 (["int8_reference", "linear_float"],
                                  ["--kernel", "int8_reference", "--activations", "float"]),
                                 (["--footprint -1"], ["--footprint", "-1"]),
                                 (["--all-kernels", "--kernel"], ["--all-kernels", "--kernel", "int8_scalar"])]:
            with self.subTest(arguments=arguments):
                small = [] if "--footprint" in arguments else ["--footprint", "1"]
                self.fails(words, "bench", "linear", *small, *arguments)

    def test_conv_bench(self):
        base = ["bench", "conv", "--min-time", "0"]
        report = self.json(*base, "--conv", "9x7x6:4:3,5x5x8:8:2:2:8", "--batch", "1,3")
        keys = ("H", "W", "C", "O", "R", "stride", "groups", "B")
        self.assertEqual([tuple(case[key] for key in keys) for case in report["cases"]],
                         [(9, 7, 6, 4, 3, 1, 1, 1), (9, 7, 6, 4, 3, 1, 1, 3),
                          (5, 5, 8, 8, 2, 2, 8, 1), (5, 5, 8, 8, 2, 2, 8, 3)])
        for case in report["cases"]:
            self.assertGreater(case["us"], 0)
            self.assertGreater(case["operations_per_second"], 0)
            self.assertEqual("peak" in case, case["peak_operations_per_second"] is not None)
            self.assertTrue(case["name"].startswith("conv/") and case["name"].endswith("/" + case["kernel"]))
        kernels = [k["name"] for k in self.json("supported")["conv_kernels"] if k["usable"]]
        base += ["--conv", "5x5x8:8:3"]
        cases = self.json(*base, "--all-kernels")["cases"]
        self.assertEqual([case["kernel"] for case in cases], kernels[1:])  # not the reference
        cases = self.json(*base, "--kernel", "reference,scalar")["cases"]
        self.assertEqual([case["kernel"] for case in cases], kernels[:2])
        self.assertIn(kernels[1], self.ok(*base, "--kernel", "scalar"))
        for words, arguments in [(["--conv 5x5", "expected HxWxC:O:R"], ["--conv", "5x5"]),
                                 (["--conv 5x5x0:1:1: 0: expected 1 to 65536"], ["--conv", "5x5x0:1:1"]),
                                 (["--conv 5x5x1:1:65537: 65537: expected 1 to"], ["--conv", "5x5x1:1:65537"]),
                                 (["--conv 5x5x4:4:3:1:3", "groups is 3"], ["--conv", "5x5x4:4:3:1:3"]),
                                 (["2 images: x has", "at most 1073741824"],
                                  ["--conv", "32768x32768x1:1:1", "--batch", "2"]),
                                 (["--batch 0"], ["--batch", "0"]), (["--kernel avx3"], ["--kernel", "avx3"]),
                                 (["--all-kernels", "--kernel"], ["--all-kernels", "--kernel", "scalar"])]:
            with self.subTest(arguments=arguments):
                self.fails(words, *base, *arguments)

    def test_bench(self):
        report = self.json("bench", "gru", "--hidden", "8,16", "--batch", "3", "--steps", "4", "--min-time", "0",
                           "--mode", "sequence,streaming", "--kernel", "scalar")
        self.assertEqual(len(report["cases"]), 4)
        for case in report["cases"]:
            self.assertTrue({"name", "H", "N", "mode", "kernel", "bits", "us_per_step"} <= set(case))
            self.assertGreater(case["us_per_step"], 0)
        self.fails(["lstm"], "bench", "lstm")
        self.fails(["--hidden", "0"], "bench", "gru", "--hidden", "0")
        self.fails(["--mode", "fast"], "bench", "gru", "--mode", "fast")
        self.fails(["--mode two-states", "--device cuda"], "bench", "gru", "--mode", "two-states")
        usable = [kernel["name"] for kernel in self.json("supported")["kernels"] if kernel["usable"]]
        report = self.json("bench", "gru", "--hidden", "8", "--steps", "4", "--min-time", "0", "--all-kernels")
        self.assertEqual([case["kernel"] for case in report["cases"]], usable)
        self.fails(["--all-kernels", "--kernel"], "bench", "gru", "--all-kernels", "--kernel", "scalar")

    def test_quantize_settings_are_kept(self):
        out = self.path("noted.safetensors")
        base = ["quantize", self.model, "--calibrate", self.data, "-o", out]
        text = self.ok(*base, "--bits", "16", "--reason", "speech, 16 kHz")
        self.assertIn("biases have 16 bits", text)
        self.assertIn("--bits 16,biases=8 keeps 8", text)
        notes = {"bits": "16", "method": "minmax", "scale": "pow2", "rounding": "nearest_even", "table": "default",
                 "reason": "speech, 16 kHz"}
        (gru,) = self.json("inspect", out)["grus"]
        self.assertEqual(gru["notes"], notes)
        for key, value in notes.items():
            self.assertIn("note %s: %s\n" % (key, value), self.ok("inspect", out))
        for bits in ["8", "16,biases=8", "16,biases=12", "8,linear=16"]:
            self.assertNotIn("biases have", self.ok(*base, "--bits", bits))
        report = self.json(*base, "--table", "segments:8", "--method", "minmax,h=ema:0.9", "--scale", "real")
        self.assertIsNone(report["reason"])
        (gru,) = self.json("inspect", out)["grus"]
        self.assertEqual(gru["notes"], {"bits": "8", "method": "minmax,h=ema:0.9", "scale": "real",
                                        "rounding": "nearest_even", "table": "segments:8"})
        # Spaces around the commas of a list mean nothing.
        lists = [["--bits", "8,linear=16,h=16:signed"], ["--method", "minmax,x=percentile:99.9"],
                 ["--table", "direct,l0=segments:8"]]
        for option, text in lists:
            for spaced in [text.replace(",", ", "), " " + text.replace(",", "  , ") + " "]:
                written = []
                for value in [text, spaced]:
                    self.ok(*base, option, value)
                    written.append(self.json("inspect", out)["grus"][0]["layers"])
                self.assertEqual(*written)
        self.fails(['calibration ""'], *base, "--method", "minmax, ,x=ema:0.9")
        tuned = ["tune", self.model, "--calibrate", self.data, "--validate", self.batch, "--dry-run"]
        self.assertEqual(*(self.json(*tuned, "--like", like)["chosen"]["bytes"] for like in ["8,h=16", "8, h=16"]))
        self.fails(["note reason has 65537 bytes", "65536"], *base, "--reason", "a" * 65537)
        self.fails(["UTF-8"], *base, "--reason", b"\xe4")

    def test_quantize_nearly_dead_rows(self):
        out = self.path("dead.safetensors")
        rng = random.Random(30)
        arrays = gru_arrays(rng, "gru.")
        values = [rng.uniform(-0.8, 0.8) for _ in range(3 * HIDDEN * INPUTS)]
        row = HIDDEN + 2  # PyTorch's z is the gate u

        def with_row(factor):
            scaled = [v * (factor if i // INPUTS == row else 1) for i, v in enumerate(values)]
            arrays["gru.weight_ih_l0"] = npy((3 * HIDDEN, INPUTS), scaled)
            return self.at("dead.npz", npz(arrays))

        for scale in ["pow2", "real"]:
            for bits in ["8", "16", "8,linear=16"]:
                arguments = ["--calibrate", self.data, "-o", out, "--scale", scale, "--bits", bits]
                model = with_row(1e-18)
                self.ok("quantize", model, *arguments)
                tensors = self.json("compare", model, out, "--data", self.batch, "--quiet")["tensors"]
                (h,) = [tensor for tensor in tensors if tensor["tensor"] == "h"]
                self.assertGreater(h["sqnr_db"], 25)
        for factor in [1e-37, 1e-40]:  # no normal float32 is so small a scale: the row counts as zeros
            self.ok("quantize", with_row(factor), "--calibrate", self.data, "--dry-run", "--scale", "real")


class TuneTest(ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.search = ["tune", cls.model, "--calibrate", cls.data, "--validate", cls.batch, "--method", "minmax",
                      "--scale", "pow2", "--table", "direct"]

    def quantized(self, command, name):
        """What a printed command makes."""
        words = shlex.split(command)
        self.assertEqual(words[:2], ["isobit", "quantize"])
        words[words.index("-o") + 1] = self.path(name)
        self.ok(*words[1:])
        return read(self.path(name))

    def test_target(self):
        out, svg, html = self.path("tuned.safetensors"), self.path("front.svg"), self.path("front.html")
        report = self.json(*self.search, "--target", "38", "-o", out, "--svg", svg, "--html", html)
        chosen = report["chosen"]
        self.assertTrue(report["reached"])
        self.assertGreaterEqual(chosen["quality"], 38)
        self.assertEqual(chosen["quality"], min(chosen["layer_sqnr_db"]))
        self.assertEqual(os.path.getsize(out), chosen["bytes"])
        self.assertIn("</svg>", read(svg).decode())
        text = self.page(html)
        for point in report["front"]:
            self.assertIn("%.2f" % point["quality"], text)
            self.assertIn("{:,}".format(point["bytes"]), text)
        self.assertIn("Chosen by the search", text)
        # The command gives the bytes, and those of the front theirs.
        self.assertEqual(self.quantized(chosen["command"], "again.safetensors"), read(out))
        for point in [report["front"][0], report["front"][-1]]:
            self.assertEqual(len(self.quantized(point["command"], "point.safetensors")), point["bytes"])
        (gru,) = self.json("inspect", out)["grus"]
        self.assertIn("the fewest bytes that reach 38 dB", gru["notes"]["reason"])
        h = [t for t in self.json("compare", self.model, out, "--data", self.batch)["tensors"] if t["tensor"] == "h"]
        self.assertAlmostEqual(h[-1]["sqnr_db"], chosen["quality"], places=6)
        text = self.ok(*self.search, "--target", "38", "-o", out)
        self.assertEqual(self.quantized(chosen["command"], "again.safetensors"), read(out), "a search can be repeated")
        self.assertIn("\n-> ", text)
        self.assertIn("chosen: ", text)

    def test_other_goals(self):
        out = self.path("tuned.safetensors")
        fixed = os.path.getsize(self.fixed)
        report = self.json(*self.search, "--max-bytes", str(fixed + 2000), "-o", out)
        self.assertLessEqual(os.path.getsize(out), fixed + 2000)
        self.assertTrue(report["reached"])
        report = self.json(*self.search, "--like", "8,linear=16", "-o", out)
        like = self.json("quantize", self.model, "--calibrate", self.data, "--validate", self.batch, "--dry-run", "--bits",
                         "8,linear=16", "--table", "direct")["validation"]
        self.assertGreaterEqual(report["chosen"]["quality"], like["output_sqnr_db"])

    def test_first_states_and_lengths(self):
        rng = random.Random(31)
        h0 = self.at("tune_h0.npy", floats(rng, (1, 1, HIDDEN)))
        lengths = self.at("tune_lengths.npy", npy((4,), [11, 3, 5, 1], "<i4", "i"))
        states = self.at("tune_states.npy", floats(rng, (1, 4, HIDDEN)))
        search = list(self.search)
        search[search.index("--calibrate") + 1] = self.single
        search += ["--state", h0, "--validate-state", states, "--validate-lengths", lengths, "--target", "15"]
        out = self.path("states.safetensors")
        chosen = self.json(*search, "-o", out)["chosen"]
        self.assertEqual(self.quantized(chosen["command"], "states_again.safetensors"), read(out))
        compared = self.json("compare", self.model, out, "--data", self.batch, "--lengths", lengths, "--state", states,
                             warnings=["10 % of the inputs of --data"])  # one short sequence calibrated it
        h = [t for t in compared["tensors"] if t["tensor"] == "h"]
        self.assertAlmostEqual(h[-1]["sqnr_db"], chosen["quality"], places=6)
        search[search.index("--target") + 1] = "10"  # an integer model without masks knows no zoneout
        zoned = self.json(*search, "--zoneout", "0.25", "-o", out)["chosen"]
        self.assertIn(" --zoneout 0.25 ", zoned["command"])
        self.assertNotEqual(zoned["quality"], chosen["quality"])
        self.assertEqual(self.quantized(zoned["command"], "states_again.safetensors"), read(out))
        self.fails(["--zoneout 2", "0 to 1"], *search, "--dry-run", "--zoneout", "2")
        self.fails(["--validate-state " + h0, "[1, 4, 5]"], *self.search, "--dry-run", "--validate-state", h0)
        self.fails(["--validate-lengths " + h0], *self.search, "--dry-run", "--validate-lengths", h0)

    def test_goals_that_nothing_reaches(self):
        out = self.path("never.safetensors")
        for words, goal in [(["no model that was tried reaches 300", "dB"], ["--target", "300"]),
                            (["no model that was tried has at most 10 bytes"], ["--max-bytes", "10"])]:
            result = self.call(*self.search, *goal, "-o", out)
            self.assertEqual(result.returncode, 1)
            for word in words:
                self.assertIn(word, result.stderr)
            self.assertIn("isobit quantize", result.stdout, "the best is printed all the same")
            self.assertFalse(os.path.exists(out))

    def test_metric(self):
        judge = self.at("judge.py", b"""import os, sys, zipfile
for path in sys.argv[1:3]:
    assert zipfile.ZipFile(path).testzip() is None
    assert zipfile.ZipFile(path).namelist() == ["batch.npy"], zipfile.ZipFile(path).namelist()
print("a word before it")
print(os.path.getsize(sys.argv[3]) / 1000)
""")
        out = self.path("judged.safetensors")
        command = "%s %s" % (shlex.quote(sys.executable), shlex.quote(judge))
        report = self.json(*self.search, "--metric", command, "--target", "1", "-o", out)
        self.assertTrue(report["reached"])
        self.assertEqual(report["chosen"]["quality"], min(p["quality"] for p in report["front"]), "the cheapest will do")
        self.assertEqual(self.call(*self.search, "--metric", command, "--target", "1e9", "-o", out).returncode, 1)
        at = self.search.index("--validate") + 1
        several = [*self.search[:at], self.data, self.single, *self.search[at + 1:]]
        listed = self.at("list.py", b"import sys, zipfile\nprint(','.join(zipfile.ZipFile(sys.argv[1]).namelist()))")
        result = self.call(*several, "--metric", "%s %s" % (shlex.quote(sys.executable), shlex.quote(listed)), "--target",
                           "1", "--dry-run")
        keys = ["s%d%s" % (n, suffix) for n in range(4) for suffix in ["", "_2", "_3"]] + ["single"]
        self.assertIn("'" + ",".join(key + ".npy" for key in keys)[:80], result.stderr)
        for script, words in [("exit 3", ["it failed", "exit status 3"]), ("true", ["''", "a finite number"]),
                              ("echo nan", ["'nan'", "a finite number"]), ("echo 3 dB", ["'dB'", "a finite number"]),
                              ("no_such_command_here", ["it failed"])]:
            result = self.call(*self.search, "--metric", script + " #", "--target", "1", "-o", self.path("no.st"))
            self.assertEqual(result.returncode, 2, script)
            for word in ["--metric", *words]:
                self.assertIn(word, result.stderr)
            self.assertFalse(os.path.exists(self.path("no.st")))
        self.fails(["--metric", "--target"], *self.search, "--metric", "true", "--dry-run")

    def test_refuses(self):
        out = ["-o", self.path("no.st")]
        self.fails(["-o OUT is missing", "--dry-run"], *self.search)
        self.fails(["--target", "--max-bytes"], *self.search, *out, "--target", "3", "--max-bytes", "3000")
        self.fails(["unknown tensor 'q'"], *self.search, *out, "--like", "8,q=4")
        self.fails(["max_bytes is 0"], *self.search, *out, "--max-bytes", "0")
        self.fails(["--metric", "must not be empty"], *self.search, *out, "--metric", "", "--target", "0")
        self.fails(["is an integer model already"], "tune", self.fixed, *self.search[2:], *out)
        self.fails(["is an integer model already"], "quantize", self.fixed, "--calibrate", self.data, "--dry-run")
        self.fails(["'ballanced'", "balanced"], "quantize", self.model, "--calibrate", self.data, "--dry-run", "--bits",
                   "ballanced")
        self.fails(["--scale reel", "real"], *self.search[:-4], *out, "--scale", "reel")
        self.assertFalse(os.path.exists(out[1]))

    def test_the_same_data_twice(self):
        search = list(self.search)
        search[search.index("--validate") + 1] = self.data
        result = self.call(*search, "--target", "20", "--dry-run")
        self.assertEqual(result.returncode, 0)
        self.assertIn("12 sequences of --validate are in --calibrate, too", result.stderr)
        result = self.call("quantize", self.model, "--calibrate", self.data, "--validate", self.data, "--dry-run")
        self.assertIn("12 sequences of --validate are in --calibrate, too", result.stderr)

    def test_interrupted(self):
        out = self.path("interrupted.safetensors")
        # As a terminal does it, to all processes, the command too; and to the tool alone, $PPID of the command.
        for judge in ["trap - INT; kill -INT 0; sleep 5; echo 0 #", "kill -INT $PPID; sleep 0.2; echo 0 #"]:
            result = self.call(*self.search, "--metric", judge, "--target", "1", "-o", out, start_new_session=True)
            self.assertEqual(result.returncode, 1)
            self.assertIn("interrupted; nothing was written", result.stderr)
            self.assertIn("best so far: ", result.stdout)
            self.assertFalse(os.path.exists(out))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ISOBIT_")}
        with subprocess.Popen([ISOBIT, *self.search, "--target", "30", "-o", out], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, env=environment) as search:
            time.sleep(0.3)  # whatever it is doing: it ends as asked, or has not begun to search
            search.send_signal(signal.SIGINT)
            text, errors = search.communicate(timeout=60)
        self.assertIn(search.returncode, (0, 1, -signal.SIGINT), errors)
        if search.returncode == 1:
            self.assertIn("best so far: ", text)
            self.assertFalse(os.path.exists(out))

    def test_svg_without_gnuplot(self):
        result = self.call(*self.search, "--target", "20", "-o", self.path("no.st"), "--svg", self.path("no.svg"),
                           env={"PATH": self.folder})
        self.assertEqual((result.returncode, result.stdout), (2, ""), "said before the search")
        self.assertIn("gnuplot", result.stderr)

    def test_quantize_measures(self):
        out = self.path("measured.safetensors")
        base = ["quantize", self.model, "--calibrate", self.data, "-o", out]
        report = self.json(*base)["validation"]
        self.assertEqual((report["unseen"], report["sequences"]), (False, 2), "of 12 sequences the last tenth, rounded up")
        report = self.json(*base, "--validate", self.batch)["validation"]
        self.assertEqual((report["unseen"], report["sequences"], report["steps"]), (True, 4, 44))
        h = [t for t in self.json("compare", self.model, out, "--data", self.batch)["tensors"] if t["tensor"] == "h"]
        self.assertAlmostEqual(h[-1]["sqnr_db"], report["output_sqnr_db"], places=6)
        self.assertNotIn("isobit tune", self.ok(*base, "--bits", "precise"))
        text = self.ok(*base, "--bits", "4")
        self.assertIn("below 30 dB: isobit tune", text)
        self.fails(["no_such"], *base, "--validate", self.path("no_such.npz"))


def safetensors(tensors, metadata=None):
    """tensors: name, (dtype as the format has it, shape, bytes)."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def as_tensors(arrays):
    """npy contents of float32 as tensors of safetensors."""
    return {name: ("F32",) + parse_npy(content)[1:] for name, content in arrays.items()}


class ReadingTest(ToolTest):
    """Files as other programs write them: what is beside the GRU, names, layouts, containers, mistakes."""

    def arrays(self, prefix="gru.", **options):
        return gru_arrays(random.Random(20), prefix, **options)

    def quantized(self, model, *arguments, **options):
        out = self.path("reading.safetensors")
        self.ok("quantize", model, "--calibrate", self.data, "-o", out, "--bits", "8,linear=16", *arguments, **options)
        return out

    def outputs(self, model, *arguments, **options):
        """What the integer model of a float model gives."""
        result = self.path("reading.npy")
        self.ok("run", self.quantized(model, *arguments, **options), self.batch, "-o", result)
        return read(result)

    def expected(self, fixed=None):
        result = self.path("expected.npy")
        self.ok("run", fixed or self.fixed, self.batch, "-o", result)
        return read(result)

    def test_foreign_tensors(self):
        """A tensor of a type that is not read spoils no other one."""
        expected = self.expected()
        for dtype, shape, size in [("F8_E4M3", [5], 5), ("F8_E5M2", [2, 2], 4), ("F4", [4], 2), ("C64", [2], 16),
                                   ("U64", [1], 8)]:
            model = self.at("foreign.safetensors", safetensors({"gru.table": (dtype, shape, b"x" * size),
                                                                **as_tensors(self.arrays())}))
            text = self.ok("inspect", model, warnings=["gru.table"])
            for word in ['GRU "gru"', "not read", "gru.table", dtype]:
                self.assertIn(word, text)
            report = self.json("inspect", model, warnings=["gru.table"])
            self.assertEqual(report["not_read"], [{"name": "gru.table", "type": dtype, "shape": shape, "bytes": size}])
            self.assertEqual(report["grus"][0]["unused"], ["gru.table"])
            self.assertEqual(self.outputs(model, warnings=["gru.table"]), expected)
            self.ok("compare", model, self.fixed, "--data", self.single, warnings=["gru.table", "not used"])
            self.fails(["foreign.safetensors", "gru.table", dtype], "inspect", model, "--layer",
                       "x=gru.weight_ih_l0,gru.weight_hh_l0,gru.table,gru.bias_hh_l0")
            self.fails(["gru.table", dtype, "--exclude 'gru.table'"], "pack", model, "--group", "0", "--bits", "8",
                       "-o", self.path("packed.safetensors"))
            self.assertFalse(os.path.exists(self.path("packed.safetensors")))
            packed = self.json("pack", model, "--group", "0", "--bits", "8", "--exclude", "gru.table", "--include",
                               "gru.weight_*", "--dry-run")
            actions = {tensor["name"]: tensor["action"] for tensor in packed["tensors"]}
            self.assertEqual(actions["gru.table"], "leave_out")
            self.assertEqual(actions["gru.bias_ih_l0"], "keep")
            # As data every array counts.
            self.fails(["table", dtype], "run", self.fixed, self.at("data.safetensors", safetensors(
                {"table": (dtype, shape, b"x" * size)})), "-o", self.path("y.npz"))
        others = {"names": npy((14,), [0] * 14, "<U1", "I"), "objects": npy((3,), list(b"pickle"), "|O", "B"),
                  "complex": npy((2,), [0] * 4, "<c8", "f"), "uint64": npy((2,), [1, 2], "<u8", "Q"),
                  "bfloat16": npy((2,), [1, 2], "<V2", "H")}
        model = self.at("foreign.npz", npz({**others, **self.arrays()}))
        self.assertEqual({entry["name"] for entry in self.json("inspect", model)["not_read"]}, set(others))
        self.assertEqual(self.outputs(model), expected)
        arguments = [word for name in others for word in ("--exclude", name)]
        self.ok("pack", model, "--bits", "8", "--group", "0", "--dry-run", "--include", "gru.weight_*", *arguments)
        self.fails(["'<V2'", "bfloat16", "float32"], "run", self.fixed, self.at("b.npy", others["bfloat16"]), "-o",
                   self.path("y.npy"))

    def test_foreign_arrays_in_data(self):
        """What is no data is named and left out, wherever data is read; asked for by name it is refused."""
        rng = random.Random(7)
        names = npy((3,), [0] * 12, "<U4", "I")
        sequences = {"s%d" % n: floats(rng, (6 + n, INPUTS)) for n in range(3)}
        plain, mixed = self.at("plain_data.npz", npz(sequences)), self.at("mixed.npz", npz({"names": names, **sequences}))
        tensors = self.at("mixed.safetensors", safetensors({"names": ("F8_E4M3", [3], b"abc"), **as_tensors(sequences)}))
        warned = ["names", "left out"]

        def written(data, *arguments):
            out = self.path("out" + (".npz" if arguments[0] == "run" else ".safetensors"))
            result = self.call(*(data if word == "DATA" else word for word in arguments), "-o", out)
            self.assertEqual(result.returncode, 0, result.stderr)
            for word in warned:
                self.assertEqual(word in result.stderr, data != plain, result.stderr)
            return read(out)

        for data in [mixed, tensors]:
            for command in [["run", self.fixed, "DATA"], ["quantize", self.model, "--calibrate", "DATA"],
                            ["quantize", self.model, "--calibrate", self.single, "--validate", "DATA"],
                            ["tune", self.model, "--calibrate", "DATA", "--validate", self.batch, "--target", "10"],
                            ["tune", self.model, "--calibrate", self.single, "--validate", "DATA", "--target", "10"]]:
                self.assertEqual(written(data, *command), written(plain, *command), command)
            rows = [self.json("compare", self.model, self.fixed, "--data", path, "--ablate", warnings=warnings)["tensors"]
                    for path, warnings in [(plain, ()), (data, warned)]]
            self.assertEqual(*([row["sqnr_db"] for row in tensors] for tensors in rows))
            message = self.call("compare", self.model, self.fixed, "--data", data, data).stderr
            self.assertEqual(message.count("names"), 1, "once for each file")
        lengths = {name: npy((1,), [4], "<i4", "i") for name in sequences}
        for other in ["note", "s1"]:
            beside = self.at("lengths.npz", npz({**lengths, other: names}))
            command = ["compare", self.model, self.fixed, "--data", plain, "--lengths", beside]
            if other == "note":
                self.assertIn("SQNR", self.ok(*command))
            else:
                self.fails(["lengths.npz", "s1", "<U4"], *command)
        self.ok("table", "run", "silu", self.at("x.npz", npz({"x": floats(rng, (4,)), "names": names})), "-o",
                self.path("y.npy"), warnings=warned)
        self.fails(["names.npz", "names", "<U4"], "run", self.fixed, self.at("names.npz", npz({"names": names})), "-o",
                   self.path("y.npz"))

    def test_networks_of_another_kind(self):
        rng = random.Random(1)
        others = {"proj.weight_ih_l0": floats(rng, (20, 3)), "proj.weight_hh_l0": floats(rng, (20, 2)),
                  "proj.weight_hr_l0": floats(rng, (2, 5)), "lstm.weight_ih_l0": floats(rng, (20, 3)),
                  "lstm.weight_hh_l0": floats(rng, (20, 5)), "rnn.weight_ih_l0": floats(rng, (5, 3)),
                  "rnn.weight_hh_l0": floats(rng, (5, 5)), "half.weight_ih_l0": floats(rng, (15, 3)),
                  "flat.weight_ih_l0": floats(rng, (15,)), "flat.weight_hh_l0": floats(rng, (15,)),
                  "nan.weight_ih_l0": npy((3, 1), [0, float("nan"), 0]), "nan.weight_hh_l0": npy((3, 1), [0] * 3)}
        model = self.at("kinds.npz", npz({**others, **self.arrays()}))
        report = self.json("inspect", model)
        self.assertEqual([gru["name"] for gru in report["grus"]], ["gru"])
        problems = {other["name"]: other["problem"] for other in report["others"]}
        text = self.ok("inspect", model)
        for name, word in [("proj", "LSTM with proj_size"), ("lstm", "an LSTM"), ("rnn", "a plain RNN"),
                           ("half", "no array weight_hh_l0"), ("flat", "(15,)"), ("nan", "weight_ih_l0[1, 0] is nan")]:
            self.assertIn(word, problems[name])
            self.assertIn(word, text)
            self.fails(["kinds.npz", word], "inspect", model, "--layer", name)
        self.assertEqual(set(problems), {"proj", "lstm", "rnn", "half", "flat", "nan"})
        del others["nan.weight_ih_l0"], others["nan.weight_hh_l0"]
        self.assertEqual(self.outputs(self.at("kinds.npz", npz({**others, **self.arrays()}))), self.expected())
        # Without a GRU the arrays are listed all the same.
        others["text"] = npy((3,), [0] * 12, "<U4", "I")
        none = self.at("none.npz", npz(others))
        text = self.ok("inspect", none, warnings=["no GRU found", "weight_ih_l0", "--layer"])
        for word in ["LSTM", "plain RNN", "proj.weight_ih_l0", "[20, 3]", "f32", "text", "<U4"]:
            self.assertIn(word, text)
        report = self.json("inspect", none, warnings=["no GRU found"])
        self.assertEqual((report["kind"], report["grus"]), ("arrays", []))
        self.assertIn({"name": "flat.weight_ih_l0", "shape": [15], "dtype": "f32", "bytes": 60}, report["arrays"])
        self.assertEqual([entry["name"] for entry in report["arrays"] + report["not_read"]], sorted(others))
        self.fails(["none.npz", "nosuch"], "inspect", none, "--layer", "nosuch")
        self.assertIn("[13, 3]", self.ok("inspect", self.single, warnings=["no GRU found"]))

    def test_onnx(self):
        """A GRU node with PyTorch's weights gives the bytes of the npz; two nodes are two layers."""
        def blocks(prefix, place):  # r z n as z r h
            out = []
            for tensor in ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]:
                content = parse_npy(self.arrays(prefix="", layers=2)["%s_l%d" % (tensor, place)])[2]
                block = len(content) // 3
                out.append(content[block:2 * block] + content[:block] + content[2 * block:])
            w, r = ((1, 3 * HIDDEN, len(part) // 12 // HIDDEN) for part in out[:2])
            return [(prefix + b"W", w, out[0]), (prefix + b"R", r, out[1]),
                    (prefix + b"B", (1, 6 * HIDDEN), out[2] + out[3])]

        def gru(name, x, **attributes):
            return onnx_node(b"GRU", [x, name + b"W", name + b"R", name + b"B"], [name + b"y"], name,
                             hidden_size=HIDDEN, **{"linear_before_reset": 1, **attributes})

        tensors = blocks(b"a", 0) + blocks(b"b", 1)
        nodes = [gru(b"a", b"x"), onnx_node(b"Squeeze", [b"ay"], [b"s"]), gru(b"b", b"s")]
        one = self.at("one.npz", npz({name: array for name, array in self.arrays(layers=2).items() if "_l0" in name}))
        both = self.at("both.npz", npz(self.arrays(layers=2)))
        model = self.at("m.onnx", onnx_model(nodes, tensors))
        self.assertEqual(self.outputs(model), self.outputs(both))
        self.assertEqual(self.outputs(model, "--layer", "a,b"), self.outputs(both))
        self.assertEqual(self.outputs(model, "--layer", "a"), self.outputs(one))
        self.assertIn("2 layers, 3 -> 5", self.ok("inspect", model))
        integer = self.quantized(model, "--layer", "a")
        self.json("compare", model, integer, "--data", self.single, "--layer", "a")
        tuned = self.json("tune", model, "--calibrate", self.data, "--validate", self.batch, "--target", "1",
                          "--dry-run", "--layer", "a")
        self.assertIn("--layer a", tuned["chosen"]["command"])
        out = ["--calibrate", self.data, "-o", self.path("never.safetensors")]
        self.fails(["'b,a'", "'a' does not read the output Y of 'b'"], "quantize", model, *out, "--layer", "b,a")
        self.fails(["no GRU 'c'", "'a,b', 'a', 'b'"], "inspect", model, "--layer", "c")
        self.fails(["m.onnx", "is an ONNX model"], "quantize", one, "--calibrate", model, "-o", out[-1])

        before = self.at("before.onnx", onnx_model([gru(b"a", b"x", linear_before_reset=0)], tensors))
        self.fails(["linear_before_reset = '0'", "--reset after", "onnxscript issue 2852"], "quantize", before, *out)
        self.assertEqual(self.outputs(before, "--reset", "after"), self.outputs(one))
        self.ok("inspect", before, warnings=["the GRU \"a\" cannot be read", "linear_before_reset"])
        self.fails(["LSTM", "without a GRU node"], "inspect", self.at("lstm.onnx", onnx_model(
            [onnx_node(b"LSTM", [b"x"], [b"y"])], [])))

        # External data is read from the model's folder, and no output replaces it.
        write(self.path("data.bin"), b"".join(content for _, _, content in tensors[:3]))
        offsets = [0, len(tensors[0][2]), len(tensors[0][2]) + len(tensors[1][2])]
        files = [(name, shape, (b"data.bin", str(offset).encode()))
                 for (name, shape, _), offset in zip(tensors, offsets)]
        external = self.at("external.onnx", onnx_model(nodes[:1], files))
        self.assertEqual(self.outputs(external), self.outputs(one))
        link = self.path("link_to_data.safetensors")
        os.symlink("data.bin", link)
        self.fails(["would be lost"], "quantize", external, "--calibrate", self.data, "-o", link)
        self.assertEqual(self.outputs(external), self.outputs(one))

    def test_arrays_that_are_not_used(self):
        rng = random.Random(1)
        arrays = {"gru.layernorm.weight": floats(rng, (5,)), "gru.ln_ih.bias": floats(rng, (15,)),
                  "fc.weight": floats(rng, (2, 5)), **self.arrays()}
        model = self.at("norm.npz", npz(arrays))
        out = self.path("reading.safetensors")
        for command in [["inspect", model], ["compare", model, self.fixed, "--data", self.single],
                        ["quantize", model, "--calibrate", self.data, "-o", out]]:
            unused = ["norm.npz", "gru.layernorm.weight", "gru.ln_ih.bias", "not used"]
            text = self.ok(*command, warnings=unused)
            for word in ["gate order: pytorch", "reset: after", "activations: sigmoid (u), sigmoid (r), tanh (n)",
                         "layout: rows"]:
                self.assertIn(word, text)
            self.assertNotIn("not used", text)
            self.assertNotIn("fc.weight", self.call(*command).stderr)
            self.assertEqual(self.call(*command, "--quiet").stderr, "")
        self.assertEqual(self.json("quantize", model, "--calibrate", self.data, "-o", out, warnings=unused)["unused"],
                         unused[1:3])
        stale = self.at("drop.npz", npz({**self.arrays(), "gru.weight_hh_l0_raw": floats(rng, (15, 5))}))
        choice = "gru=gru.weight_ih_l0,gru.weight_hh_l0_raw,gru.bias_ih_l0,gru.bias_hh_l0"
        self.fails(["gru.weight_hh_l0_raw", "stale copy", "--layer " + choice], "quantize", stale, "--calibrate",
                   self.data, "-o", out)
        unused = self.json("inspect", stale, "--layer", choice, warnings=["gru.weight_hh_l0"])["grus"][0]["unused"]
        self.assertIn("gru.weight_hh_l0", unused)
        self.assertNotEqual(self.outputs(stale, "--layer", choice, warnings=["gru.weight_hh_l0"]), self.expected())
        hard = self.at("hard.safetensors", safetensors(as_tensors(self.arrays()),
                                                       {"gru.recurrent_activation": "hard_sigmoid"}))
        self.fails(["gru.recurrent_activation", "hard_sigmoid"], "quantize", hard, "--calibrate", self.data, "-o", out)
        # What the file says of the reset gate is overruled by the option.
        before = self.at("before.safetensors", safetensors(as_tensors(self.arrays()), {"gru.reset_after": "False"}))
        self.fails(["gru.reset_after", "--reset after overrules"], "quantize", before, "--calibrate", self.data, "-o",
                   out)
        self.assertIn("which --reset after overrules", self.ok("inspect", before, "--reset", "after"))
        self.assertEqual(self.outputs(before, "--reset", "after"), self.expected())

    def test_names_and_layouts(self):
        """GRUCell, ONNX, Keras, Haste, and the layout that the shapes show: the same outputs."""
        usual = self.arrays()
        tensors = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
        expected = self.expected()
        cell = {"rnn." + tensor: usual["gru.%s_l0" % tensor] for tensor in tensors}
        self.assertEqual(self.outputs(self.at("cell.npz", npz(cell))), expected)

        values = {}
        for tensor in tensors:  # PyTorch's r z n as z r n, in rows
            _, shape, content = parse_npy(usual["gru.%s_l0" % tensor])
            flat = struct.unpack("<%df" % (len(content) // 4), content)
            block = len(flat) // 3
            values[tensor] = list(flat[block:2 * block] + flat[:block] + flat[2 * block:])
        columns = {tensor: [values[tensor][row * n + column] for column in range(n) for row in range(3 * HIDDEN)]
                   for tensor, n in [("weight_ih", INPUTS), ("weight_hh", HIDDEN)]}
        biases = values["bias_ih"] + values["bias_hh"]
        rows = 3 * HIDDEN
        onnx = {"net.W": npy((1, rows, INPUTS), values["weight_ih"]), "net.R": npy((1, rows, HIDDEN), values["weight_hh"]),
                "net.B": npy((1, 2 * rows), biases)}
        keras = {"gru/kernel": npy((INPUTS, rows), columns["weight_ih"]), "gru/bias": npy((2, rows), biases),
                 "gru/recurrent_kernel": npy((HIDDEN, rows), columns["weight_hh"])}
        haste = {**keras, "gru/bias": npy((rows,), values["bias_ih"]),
                 "gru/recurrent_bias": npy((rows,), values["bias_hh"])}
        text = self.ok("inspect", self.at("named.npz", npz(onnx)))
        for word in ["gate order: onnx", "'net.W' (1, 15, 3)", "leading 1", "layout: rows"]:
            self.assertIn(word, text)
        for model in [onnx, keras, haste]:
            self.assertEqual(self.outputs(self.at("named.npz", npz(model))), expected)
        text = self.ok("inspect", self.at("named.npz", npz(keras)))
        for word in ["gate order: onnx", "layout: columns", "Keras"]:
            self.assertIn(word, text)
        own = {"1": onnx["net.W"], "2": onnx["net.R"], "3": onnx["net.B"]}
        self.assertEqual(self.outputs(self.at("named.npz", npz(own)), "--layer", "gru=1,2,3"), expected)
        self.assertEqual(self.outputs(self.at("named.npz", npz({
            "gru.weight_ih_l0": keras["gru/kernel"], "gru.weight_hh_l0": keras["gru/recurrent_kernel"],
            "gru.bias_ih_l0": haste["gru/bias"], "gru.bias_hh_l0": haste["gru/recurrent_bias"]})),
            "--gate-order", "urn", warnings=["layout columns"]), expected)
        shapes = ["named.npz", "layout columns", "(3, 15)", "as the shapes", "--layout"]
        self.assertIn("layout: columns", self.ok("inspect", self.path("named.npz"), warnings=shapes))
        notes = self.json("inspect", self.path("named.npz"), warnings=shapes)["grus"][0]["notes"]
        self.assertTrue(any(note.startswith("layout columns") for note in notes), notes)
        self.assertIn("layout: columns, W [C, 3H] and R [H, 3H], as given",
                      self.ok("inspect", self.path("named.npz"), "--layout", "columns"))
        self.fails(["(5, 15)", "--layout"], "inspect", self.path("named.npz"), "--layout", "rows")
        tuned = self.json("tune", self.path("named.npz"), "--calibrate", self.data, "--validate", self.batch, "--target",
                          "1", "--dry-run", "--layout", "columns", "--gate-order", "urn")
        self.assertIn(" --gate-order urn --layout columns ", tuned["chosen"]["command"])
        self.fails(["--layout diagonal", "rows or columns"], "inspect", self.path("named.npz"), "--layout", "diagonal")

    def test_values_are_named_as_in_the_file(self):
        arrays = self.arrays(prefix="", layers=2)
        _, shape, content = parse_npy(arrays["weight_ih_l1"])
        values = list(struct.unpack("<%df" % (len(content) // 4), content))
        values[3 * shape[1] + 3] = float("nan")
        arrays["weight_ih_l1"] = npy(shape, values)
        out = self.path("reading.safetensors")
        model = self.at("nan.npz", npz(arrays))
        self.fails(["nan.npz", "weight_ih_l1[3, 3] is nan"], "quantize", model, "--calibrate", self.data, "-o", out)

    def test_inspect_lists_what_cannot_be_read(self):
        """A GRU that is refused hides no array: all are listed, with the reason, as where another GRU is readable."""
        rng = random.Random(3)
        nan = npy((3, 1), [0, float("nan"), 0])
        files = {
            "stale.npz": (npz({**self.arrays(), "gru.weight_hh_l0_raw": floats(rng, (15, 5)),
                               "names": npy((1,), [65], "<U1", "I")}), ["gru.weight_hh_l0_raw", "stale copy"]),
            "nan.npz": (npz({"gru.weight_ih_l0": nan, "gru.weight_hh_l0": npy((3, 1), [0] * 3)}),
                        ["gru.weight_ih_l0[1, 0] is nan"]),
            "hard.safetensors": (safetensors(as_tensors(self.arrays()), {"gru.recurrent_activation": "hard_sigmoid"}),
                                 ["hard_sigmoid"]),
            "narrow.npz": (npz({**self.arrays(), "gru.bias_hh_l0": floats(rng, (14,))}), ["gru.bias_hh_l0", "(14,)"]),
            "codes.safetensors": (safetensors({
                "gru.weight_ih_l0": ("I8", [15, 3], bytes(45)), "gru.weight_hh_l0": ("I8", [15, 5], bytes(75)),
                "gru.weight_ih_l0_scale": ("F32", [15], bytes(60)),
                "gru.weight_hh_l0_scale": ("F32", [15], bytes(60))}),
                ["'gru.weight_ih_l0' is s8", "codes of quantised weights"]),
            "f8.safetensors": (safetensors({**as_tensors(self.arrays()),
                                            "gru.bias_hh_l0": ("F8_E4M3", [15], b"x" * 15)}),
                               ["gru.bias_hh_l0", "F8_E4M3"])}
        for name, (content, words) in files.items():
            with self.subTest(name=name):
                model = self.at(name, content)
                text = self.ok("inspect", model, warnings=[name, '"gru"', "cannot be read", *words])
                self.assertIn("no GRU that can be read", text)
                report = self.json("inspect", model, warnings=words)
                self.assertEqual((report["kind"], report["grus"]), ("arrays", []))
                (other,) = report["others"]
                self.assertEqual(other["name"], "gru")
                for word in words:
                    self.assertIn(word, text)
                    self.assertIn(word, other["problem"])
                listed = [entry["name"] for entry in report["arrays"] + report["not_read"]]
                self.assertIn("gru.weight_hh_l0", listed)
                for array in listed:
                    self.assertIn(array, text)
                self.assertEqual(self.call("inspect", model, "--quiet").stderr, "")
                # Who asks for the GRU gets the refusal.
                self.fails([name, *words], "inspect", model, "--layer", "gru")
                self.fails([name, *words], "inspect", model, "--gate-order", "pytorch")
                self.fails([name, *words], "quantize", model, "--calibrate", self.data, "--dry-run")
        # Beside a readable GRU it is one of the others; a wrong word is wrong however many there are.
        both = self.at("both.npz", npz({**self.arrays(), "nan.weight_ih_l0": nan,
                                        "nan.weight_hh_l0": npy((3, 1), [0] * 3)}))
        report = self.json("inspect", both)
        self.assertEqual(([gru["name"] for gru in report["grus"]], [other["name"] for other in report["others"]]),
                         (["gru"], ["nan"]))
        for model in [self.model, self.two, both]:
            self.fails(["--gate-order onx", "onnx"], "inspect", model, "--gate-order", "onx")
            self.fails(["reset_after"], "inspect", model, "--reset", "before")

    def test_pipes(self):
        """A pipe is read once, whatever it holds."""
        expected = self.expected()

        def piped(path, *arguments):
            with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as cat:
                return self.ok(*arguments, stdin=cat.stdout)

        for path, word in [(self.model, 'GRU "gru"'), (self.fixed, "overflow proof")]:
            self.assertIn(word, piped(path, "inspect", "/dev/stdin"))
        out, y = self.path("piped.safetensors"), self.path("piped.npy")
        piped(self.model, "quantize", "/dev/stdin", "--calibrate", self.data, "-o", out, "--bits", "8,linear=16")
        self.assertEqual(read(out), read(self.fixed))
        whole = self.path("part.npz")
        write(whole, read(os.path.join(self.data, "part0.npz")))
        self.ok("quantize", self.model, "--calibrate", whole, "-o", out)
        content = read(out)
        piped(whole, "quantize", self.model, "--calibrate", "/dev/stdin", "-o", out)
        self.assertEqual(read(out), content)
        piped(self.fixed, "run", "/dev/stdin", self.batch, "-o", y)
        self.assertEqual(read(y), expected)
        piped(self.batch, "run", self.fixed, "/dev/stdin", "-o", y)
        self.assertEqual(read(y), expected)
        for arguments in [["/dev/stdin", self.fixed, "--data", self.single],
                          [self.model, self.fixed, "--data", "/dev/stdin"]]:
            source = self.model if arguments[0] == "/dev/stdin" else self.single
            self.assertIn("SQNR", piped(source, "compare", *arguments))
        self.fails(["/dev/stdin", "empty", "0 bytes"], "inspect", "/dev/stdin", stdin=subprocess.DEVNULL)

    def test_containers(self):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("folder/", b"")
            for name, content in self.arrays("folder/gru.").items():
                archive.writestr(name + ".npy", content)
        self.assertEqual(self.outputs(self.at("folder.npz", buffer.getvalue())), self.expected())
        index = self.at("m.safetensors.index.json", json.dumps({"weight_map": {
            "a": "m-00001-of-00002.safetensors", "b": "m-00002-of-00002.safetensors"}}).encode())
        self.at("m-00001-of-00002.safetensors", safetensors({"a": ("F32", [1], b"1234")}))
        self.fails(["m-00002-of-00002.safetensors", "m.safetensors.index.json", "No such file"], "inspect", index)
        torch = io.BytesIO()
        with zipfile.ZipFile(torch, "w") as archive:
            archive.writestr("archive/data.pkl", b"x")
        out = self.path("reading.safetensors")
        for name, content, words in [
                ("lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:4\nsize 1\n", ["git lfs pull"]),
                ("model.pt", torch.getvalue(), ["PyTorch", "torch.load"]), ("old.pt", b"\x80\x02\x8a", ["pickle"]),
                ("model.h5", b"\x89HDF\r\n\x1a\n", ["HDF5"]), ("page.npz", b"<!doctype html>", ["HTML"]),
                ("empty.npz", b"", ["empty"]), ("m.npz.gz", b"\x1f\x8b\x08", ["gzip"]),
                ("m.onnx", b"\x08\x07\x12\x07pytorch\x3a\0", ["ONNX", "GRU node"]), ("m.tar", b"x" * 257 + b"ustar", ["tar archive"])]:
            path = self.at(name, content)
            self.fails([name, *words], "inspect", path)
            self.fails([name, *words], "quantize", path, "--calibrate", self.data, "-o", out)
            self.fails([name, *words], "quantize", self.model, "--calibrate", path, "-o", out)
            self.fails([name, *words], "run", path, self.batch, "-o", self.path("y.npy"))
            self.fails([name, *words], "pack", path, "-o", self.path("packed.safetensors"))

    def test_cut_short(self):
        """A download that ended early: how many bytes there are, and how many there should be."""
        rng = random.Random(3)
        array, values = floats(rng, (8, 3)), struct.pack("<24f", *range(24))
        name = b"x.weight"
        gguf = (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", len(name)) + name
                + struct.pack("<IQQIQ", 2, 3, 8, 0, 0))
        gguf += bytes(-len(gguf) % 32) + values
        tensors = safetensors({"a": ("F32", [8, 3], values), "b": ("F32", [8, 3], values)})
        out = self.path("packed.safetensors")
        for kind, content, data in [("npy", array, 96), ("npz", npz({"a": array, "b": array}), None),
                                    ("safetensors", tensors, 192), ("gguf", gguf, 96)]:
            cuts = [1, 5] if data is None else [1, data // 2, data]
            for cut in cuts:
                with self.subTest(kind=kind, cut=cut):
                    path = self.at("cut." + kind, content[:-cut])
                    words = ["cut." + kind, "cut short", str(len(content) - cut)]
                    words += [] if data is None else [str(len(content))]
                    self.fails(words, "inspect", path)
                    self.fails(words, "pack", path, "-o", out)
                    self.fails(words, "quantize", self.model, "--calibrate", path, "-o", out)
            self.assertEqual(self.call("inspect", self.at("whole." + kind, content)).returncode, 0)
        for kind, content, length in [("npy", array, 60), ("safetensors", tensors, 40), ("gguf", gguf, 40)]:
            self.fails(["cut." + kind, "cut short"], "inspect", self.at("cut." + kind, content[:length]))
        # What is too long or wrong is not called cut short.
        for kind, content in [("npy", array), ("safetensors", tensors), ("npz", npz({"a": array}))]:
            result = self.call("inspect", self.at("long." + kind, content + b"more"))
            self.assertNotIn("cut short", result.stderr)

    def test_split_gguf(self):
        def text(content):
            return struct.pack("<Q", len(content)) + content

        values = [(b"split.no", 0), (b"split.count", 3)]
        content = b"GGUF" + struct.pack("<IQQ", 3, 0, len(values))
        for key, value in values:
            content += text(key) + struct.pack("<IH", 2, value)  # u16
        path = self.at("m-00001-of-00003.gguf", content)
        self.assertIn("part 1 of 3", self.ok("inspect", path))
        self.fails(["holds no matrix", "part 1 of 3"], "pack", path, "-o", self.path("packed.safetensors"))
        self.fails(["'x'", "part 1 of 3"], "inspect", path, "--tensor", "x", "-o", self.path("x.npy"))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    ISOBIT = os.path.abspath(sys.argv.pop(1))
    unittest.main()
