# SPDX-License-Identifier: Apache-2.0
"""A program that prints a JSON object for each line that it gets, so that what is timed can take turns with it."""
import json
import subprocess
import sys


class LineProgram:
    def __init__(self, program, **options):
        """options: of the command line, with underscores for dashes; a value may be a list."""
        words = [program]
        for name, value in options.items():
            words += ["--" + name.replace("_", "-"), *(value if isinstance(value, list) else [value])]
        self.process = subprocess.Popen([str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def measure(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("error: exit code %d from %s" % (self.process.wait(), self.process.args[0]))
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait()
