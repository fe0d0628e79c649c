# SPDX-License-Identifier: Apache-2.0
"""Runs a program that prints JSON objects, one a line."""
import json
import subprocess


def run(program, arguments):
    """The program's objects, and what went wrong, if something did."""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        return [], str(error)
    problem = None
    if done.returncode != 0:
        message = done.stderr.strip().splitlines()
        problem = f"exit status {done.returncode}" + (f": {message[-1]}" if message else "")
    return [json.loads(line) for line in done.stdout.splitlines()], problem
