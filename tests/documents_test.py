# SPDX-License-Identifier: Apache-2.0
"""The Markdown files of the project: relative links and their anchors exist, the text of the README and the pages in
docs is at most 120 columns wide, the README and docs/performance.md stay short, and tables of measurements are what
bench/results gives.

usage: documents_test.py SOURCE_FOLDER
"""
import os
import re
import subprocess
import sys
import unittest

SOURCE = os.path.abspath(sys.argv.pop(1))
WIDTH = 120
MOST_LINES = {"README.md": 80, "docs/performance.md": 150, "docs/gru_cuda.md": 200}
NOT_OURS = {"build", "target", ".git"}
LINK = re.compile(r"\]\(([^()\s]+)\)")


def documents():
    for folder, folders, files in os.walk(SOURCE):
        folders[:] = sorted(name for name in folders if name not in NOT_OURS)
        for name in sorted(files):
            if name.endswith(".md"):
                yield os.path.relpath(os.path.join(folder, name), SOURCE)


def lines_of(name):
    with open(os.path.join(SOURCE, name), encoding="utf-8") as file:
        return file.read().splitlines()


def text_lines(name):
    """(number, line) outside blocks of code."""
    code = False
    for number, line in enumerate(lines_of(name), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            yield number, line


def anchors(name):
    """As GitHub makes them of headings."""
    headings = (line.lstrip("#").strip().lower() for _, line in text_lines(name) if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


class Documents(unittest.TestCase):
    def test_links(self):
        links, wrong = 0, []
        for name in documents():
            for number, line in text_lines(name):
                for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                    if re.match(r"[a-z]+:", target):
                        continue
                    links += 1
                    path, _, anchor = target.partition("#")
                    there = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
                    if not os.path.exists(os.path.join(SOURCE, there)):
                        wrong.append("%s:%d: %s: no such file" % (name, number, target))
                    elif anchor and anchor not in anchors(there):
                        wrong.append("%s:%d: %s: no such heading" % (name, number, target))
        self.assertEqual(wrong, [])
        self.assertGreater(links, 20, "the search for links finds none")

    def test_width(self):
        wide = ["%s:%d: %d columns" % (name, number, len(line)) for name in documents()
                if (name == "README.md" or name.startswith("docs/"))
                for number, line in text_lines(name) if len(line) > WIDTH and not line.lstrip().startswith("|")]
        self.assertEqual(wide, [])

    def test_length(self):
        for name, most in MOST_LINES.items():
            self.assertLessEqual(len(lines_of(name)), most, name)

    def test_measurements(self):
        command = [sys.executable, os.path.join(SOURCE, "bench", "render.py"), "--check"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
