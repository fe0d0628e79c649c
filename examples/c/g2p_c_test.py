# SPDX-License-Identifier: Apache-2.0
"""A program that pronounces words with integer GRUs and a 4-bit output layer (g2p_c, or the one in Rust), on made-up
checkpoints: one whose every word is known, and one whose words depend on every part of the model.

usage: g2p_c_test.py PROGRAM ISOBIT [SAME-AS] [unittest arguments]; SAME-AS is a program that must print the same
"""
import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "g2p"))
import g2p_test as g2p  # noqa: E402

PROGRAM = ISOBIT = SAME_AS = ""
WORDS = ["hello", "abc", "z"]


def run(command, status=0):
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if result.returncode != status:
        raise AssertionError("%s exits with %d\n%s%s" % (command, result.returncode, result.stdout, result.stderr))
    return result.stdout if status == 0 else result.stderr


class G2pCTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="isobit-g2p-c-test-")
        cls.known = cls.models("known", g2p.checkpoint())
        rng = random.Random(4)
        count = g2p.PHONEMES * g2p.UNITS
        cls.mixed = cls.models("mixed", g2p.checkpoint(
            fc_w=g2p.npy((g2p.PHONEMES, g2p.UNITS), [rng.uniform(-1, 1) for _ in range(count)])))

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def at(cls, name, content):
        path = os.path.join(cls.temporary.name, name)
        with open(path, "wb") as file:
            file.write(content)
        return path

    @classmethod
    def models(cls, name, content):
        """[checkpoint, encoder, decoder]"""
        paths = [cls.at(name + ".npz", content)]
        rng = random.Random(5)
        shape = (6, 8, g2p.UNITS)
        values = [rng.uniform(-0.1, 0.1) for _ in range(shape[0] * shape[1] * shape[2])]
        data = cls.at("data.npy", g2p.npy(shape, values))
        for gru in ["enc", "dec"]:
            paths.append(os.path.join(cls.temporary.name, name + "." + gru + ".safetensors"))
            run([ISOBIT, "quantize", paths[0], "--layer", gru, "--calibrate", data, "--bits", "8,linear=16,gate_in=12",
                 "-o", paths[-1]])
        return paths

    def test_known_words(self):
        self.assertEqual(run([PROGRAM, *self.known, *WORDS]), "".join("%s: %s\n" % (word, g2p.SAID) for word in WORDS))

    def test_every_part_counts(self):
        text = run([PROGRAM, *self.mixed, *WORDS])
        said = dict(line.split(":") for line in text.splitlines())
        self.assertEqual(sorted(said), sorted(WORDS))
        self.assertEqual(len(set(said.values())), len(WORDS), said)
        # A word does not depend on those before it.
        self.assertEqual(run([PROGRAM, *self.mixed, WORDS[1]]), text.splitlines(keepends=True)[1])
        if SAME_AS:
            self.assertEqual(run([SAME_AS, *self.mixed, *WORDS]), text)

    def test_refusals(self):
        for words, arguments in [
                (["usage"], []),
                (["none.npz"], ["none.npz", *self.known[1:], "a"]),
                (["enc_emb"], [self.known[1], *self.known[1:], "a"]),
                ([os.path.basename(self.known[0])], [self.known[0], self.known[0], self.known[2], "a"]),
                (["Hello", "letters a-z"], [*self.known, "Hello"])]:
            message = run([PROGRAM, *arguments], status=2)
            for word in words:
                self.assertIn(word, message)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    PROGRAM, ISOBIT = os.path.abspath(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
    if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
        SAME_AS = os.path.abspath(sys.argv.pop(1))
    unittest.main()
