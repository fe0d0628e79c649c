# SPDX-License-Identifier: Apache-2.0
"""The g2p example without its two files: on a model that says the same phoneme twenty times, whatever the word, so that
every figure of its table is known; and its refusals.

usage: g2p_test.py G2P [unittest arguments]
"""
import io
import itertools
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

G2P = ""
UNITS, GRAPHEMES, PHONEMES = 256, 29, 74
CALIBRATION_WORDS, WORDS = 512, 8
SAID = " ".join(["AA0"] * 20)
SAID_CODE = 4  # <pad> <unk> <s> </s> AA0


def npy(shape, values):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': %r, }" % (shape,)
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
            + struct.pack("<%df" % len(values), *values))


def checkpoint(**changes):
    rng = random.Random(3)
    shapes = {"enc_emb": (GRAPHEMES, UNITS), "dec_emb": (PHONEMES, UNITS)}
    for gru in ["enc", "dec"]:
        for name in ["_w_ih", "_w_hh"]:
            shapes[gru + name] = (3 * UNITS, UNITS)
        for name in ["_b_ih", "_b_hh"]:
            shapes[gru + name] = (3 * UNITS,)
    arrays = {}
    for name, shape in shapes.items():
        size = shape[0] * (shape[1] if len(shape) > 1 else 1)
        arrays[name] = npy(shape, [rng.uniform(-0.1, 0.1) for _ in range(size)])
    arrays["fc_w"] = npy((PHONEMES, UNITS), [0.0] * (PHONEMES * UNITS))
    arrays["fc_b"] = npy((PHONEMES,), [float(code == SAID_CODE) for code in range(PHONEMES)])
    arrays.update(changes)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in arrays.items():
            if content is not None:
                archive.writestr(name + ".npy", content)
    return buffer.getvalue()


class G2pTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="isobit-g2p-test-")
        cls.folder = cls.temporary.name
        cls.checkpoint = cls.at("checkpoint.npz", checkpoint())
        # Comments, further pronunciations and other characters do not count as words.
        spellings = ["".join(letters) for letters in itertools.product("abcdefghij", repeat=3)]
        lines = [";;; comment", "a.m. EY1 EH1 M", "aaa(2) B"]
        lines += ["%s %s # comment" % (spelling, SAID) for spelling in spellings[:CALIBRATION_WORDS + WORDS]]
        cls.dictionary = cls.at("words.dict", "\n".join(lines).encode())
        wrong = [line.replace(SAID, SAID[4:]) for line in lines]  # one phoneme of nineteen too many
        cls.wrong = cls.at("wrong.dict", "\n".join(wrong).encode())

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def at(cls, name, content):
        path = os.path.join(cls.folder, name)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def call(self, *arguments, status=0):
        result = subprocess.run([G2P, *arguments], capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, status, "%s\n%s%s" % (arguments, result.stdout, result.stderr))
        return result.stdout if status == 0 else result.stderr

    def refused(self, words, checkpoint, dictionary, *more):
        message = self.call("--checkpoint", checkpoint, "--dictionary", dictionary, *more, status=2)
        for word in words:
            self.assertIn(word, message)

    def test_table_and_words(self):
        for dictionary, right, error in [(self.dictionary, 100, 0), (self.wrong, 0, 100 / 19)]:
            report = os.path.join(self.folder, "report.json")
            text = self.call("--checkpoint", self.checkpoint, "--dictionary", dictionary, "--words", str(WORDS),
                             "--json", report, "Hello", "abc")
            with open(report, encoding="ascii") as file:
                rows = json.load(file)["configurations"]
            self.assertEqual([row["name"] for row in rows], ["float", "small", "balanced", "precise", "w4"])
            for row in rows:
                self.assertIn(row["name"] + " ", text)
                self.assertEqual((row["words_right"], row["same_as_float"]), (right, 100), row)
                self.assertAlmostEqual(row["phoneme_error"], error, places=3)
                self.assertGreater(row["us_per_word"], 0)
            self.assertEqual(rows[0]["model_bytes"], 2 * 4 * (2 * 3 * UNITS * UNITS + 2 * 3 * UNITS))
            self.assertLess(rows[1]["model_bytes"], rows[0]["model_bytes"] / 3)
            self.assertLess(rows[4]["model_bytes"], rows[1]["model_bytes"])
            for word in ["hello", "abc"]:
                said = text.split("\n" + word + "\n")[1].splitlines()[:3]
                self.assertEqual([line.split(maxsplit=1) for line in said],
                                 [["float", SAID], ["balanced", SAID], ["small", SAID]])

    def test_bits(self):
        report = os.path.join(self.folder, "bits.json")
        text = self.call("--checkpoint", self.checkpoint, "--dictionary", self.dictionary, "--words", str(WORDS),
                         "--bits", "8", "--bits", "8,h=16", "--json", report, "abc")
        with open(report, encoding="ascii") as file:
            rows = json.load(file)["configurations"]
        self.assertEqual([(row["name"], row["bits"]) for row in rows],
                         [("float", "float32"), ("bits1", "8"), ("bits2", "8,h=16")])
        self.assertLess(rows[1]["model_bytes"], rows[2]["model_bytes"])
        said = text.split("\nabc\n")[1].splitlines()
        self.assertEqual([line.split()[0] for line in said], ["float", "bits1", "bits2"])
        self.refused(["hh2=8"], self.checkpoint, self.dictionary, "--bits", "8,hh2=8")

    def test_usage(self):
        self.assertIn("--checkpoint", self.call("--help"))
        self.assertIn("--checkpoint is missing", self.call(status=2))
        self.assertIn("--dictionary is missing", self.call("--checkpoint", "x", status=2))
        self.assertIn("a value must follow", self.call("--words", status=2))
        self.assertIn("no such option", self.call("--nothing", status=2))
        self.refused(["--words many"], self.checkpoint, self.dictionary, "--words", "many")
        self.refused(["--device gpu", "cpu, cuda or cuda:N"], self.checkpoint, self.dictionary, "--device", "gpu")
        self.refused(["--rounding up"], self.checkpoint, self.dictionary, "--rounding", "up")
        self.refused(['"l8"', "letters a-z"], self.checkpoint, self.dictionary, "l8")

    def test_no_output_replaces_an_input(self):
        for option, path in [("--checkpoint", self.checkpoint), ("--dictionary", self.dictionary)]:
            with open(path, "rb") as file:
                before = file.read()
            self.refused(["--json", option, "is the same file"], self.checkpoint, self.dictionary, "--json", path)
            with open(path, "rb") as file:
                self.assertEqual(file.read(), before)

    def test_bad_files(self):
        self.refused(["none.npz"], os.path.join(self.folder, "none.npz"), self.dictionary)
        self.refused(["words.dict"], self.dictionary, self.dictionary)
        self.refused(["none.dict"], self.checkpoint, os.path.join(self.folder, "none.dict"))
        self.refused(["--words 9", "520 usable words", "at most 8"], self.checkpoint, self.dictionary, "--words", "9")
        other = self.at("other.dict", b"hello HH AH0 L OW1\nworld W ER1 L X\n")
        self.refused(["other.dict: line 2", '"X"'], self.checkpoint, other)
        short = self.at("short.npz", checkpoint(fc_b=npy((3,), [0.0] * 3)))
        self.refused(["short.npz", "fc_b", "[74]"], short, self.dictionary)
        self.refused(["no.npz", "fc_w"], self.at("no.npz", checkpoint(fc_w=None)), self.dictionary)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    G2P = os.path.abspath(sys.argv.pop(1))
    unittest.main()
