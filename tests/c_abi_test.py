#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The binary interface of libisobit.so: what the library exports is what isobit.h declares, and functions, constants
and the layout of structures are those that tests/c_abi.txt keeps. A difference there breaks programs that are already
compiled: it needs a new minor version (before 1.0) and a line in the changelog; --write makes the file anew.

usage: c_abi_test.py [--write] CC NM HEADER LIBRARY TABLE
"""
import os
import re
import subprocess
import sys
import tempfile


def declarations(text):
    """Without comments and lines of the preprocessor."""
    return re.sub(r"//[^\n]*|^#[^\n]*", "", text, flags=re.MULTILINE)


def functions(header):
    """name -> prototype, one space between words."""
    found = {}
    for prototype in re.findall(r"ISOBIT_API\s+([^;]+);", header):
        prototype = " ".join(prototype.split())
        found[re.search(r"(\w+)\(", prototype).group(1)] = prototype
    return found


def structures(header):
    """name -> [(type, field, array length or "")]."""
    found = {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\}", header, re.DOTALL):
        fields = []
        for declaration in filter(None, (" ".join(part.split()) for part in body.split(";"))):
            kind, field, length = re.fullmatch(r"(.+?) ?(\w+)(\[\d+\])?", declaration).groups()
            fields.append((kind, field, length or ""))
        found[name] = fields
    return found


def constants(header):
    return [name for body in re.findall(r"enum \{(.*?)\}", header, re.DOTALL) for name in re.findall(r"(\w+) =", body)]


def table(cc, header_path):
    """What a C program finds that is compiled with the header."""
    with open(header_path, encoding="utf-8") as file:
        header = declarations(file.read())
    lines = ["function " + prototype for prototype in functions(header).values()]
    program = ["#include <stddef.h>", "#include <stdio.h>", '#include "isobit/isobit.h"', "int main(void) {"]
    for name in constants(header):
        program.append('  printf("constant %s %%d\\n", (int)%s);' % (name, name))
    for name, fields in structures(header).items():
        program.append('  printf("struct %s size %%zu\\n", sizeof(%s));' % (name, name))
        for kind, field, length in fields:
            program.append('  printf("field %s.%s %s offset %%zu size %%zu\\n",' % (name, field, kind + length))
            program.append('         offsetof(%s, %s), sizeof(((%s*)0)->%s));' % (name, field, name, field))
    program += ["  return 0;", "}", ""]
    with tempfile.TemporaryDirectory(prefix="isobit-c-abi-") as folder:
        source, binary = os.path.join(folder, "abi.c"), os.path.join(folder, "abi")
        with open(source, "w", encoding="utf-8") as file:
            file.write("\n".join(program))
        include = os.path.dirname(os.path.dirname(os.path.abspath(header_path)))
        flags = ["-std=c99", "-Wall", "-Werror", "-pedantic", "-I", include]
        subprocess.run([cc, *flags, source, "-o", binary], check=True)
        lines += subprocess.run([binary], check=True, capture_output=True, text=True).stdout.splitlines()
    return lines, set(functions(header))


def exported(nm, library):
    output = subprocess.run([nm, "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in output.splitlines()}


def main(arguments):
    write = arguments[:1] == ["--write"]
    if len(arguments) - write != 5:
        sys.exit(__doc__)
    cc, nm, header, library, kept_path = arguments[write:]
    lines, declared = table(cc, header)
    symbols = exported(nm, library)
    failures = ["exported, but not declared in isobit.h: " + name for name in sorted(symbols - declared)]
    failures += ["declared in isobit.h, but not exported: " + name for name in sorted(declared - symbols)]
    if not declared:
        failures.append("no function is declared in " + header)
    if write:
        with open(kept_path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    with open(kept_path, encoding="utf-8") as file:
        kept = file.read().splitlines()
    failures += ["in %s only: %s" % (os.path.basename(kept_path), line) for line in kept if line not in lines]
    failures += ["in isobit.h only: " + line for line in lines if line not in kept]
    if kept != lines and not failures:
        failures.append("the order of isobit.h is another one than that of " + kept_path)
    for failure in failures:
        print(failure)
    print("%d functions, %d lines: %s" % (len(declared), len(lines), "FAILED" if failures else "ok"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
