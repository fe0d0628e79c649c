# SPDX-License-Identifier: Apache-2.0
"""Exported C of random models, compiled and run: its self-tests hold what the library's reference gives.

usage: export_test.py RANDOM_EXPORTS host|all|cores|aarch64|misra

host     50 models at -O2, gcc and clang, with the undefined-behaviour sanitizer, on this machine
all      2,000 models on this machine
cores    200 models on each emulated Cortex-M at -Os, 20 at other levels and flags; needs arm-none-eabi-gcc and
         qemu-system-arm
aarch64  50 models at -O2, needs aarch64-linux-gnu-gcc and qemu-aarch64
misra    the rules of MISRA C:2012 that cppcheck finds broken are those of export_misra.txt
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MACHINE = ROOT / "src" / "export" / "cortex_m"
STRICT = "-std=c99 -Wall -Wextra -Wconversion -Wshadow -pedantic -Werror".split()
SANITIZED = "-fsanitize=undefined -fno-sanitize-recover=all".split()
STEPS = 7
MAIN = """#include "batches.h"
#include <stdio.h>
void differs(const char *what, int32_t index) { printf("%s: index %ld\\n", what, (long)index); }
int main(void) { int32_t failures = run_batches(); return failures > 100 ? 100 : (int)failures; }
"""
MACHINE_MAIN = """#include "batches.h"
#include "machine.h"
void differs(const char *what, int32_t index)
{
  machine_write(what);
  machine_write(": index ");
  machine_write_number((uint32_t)index);
  machine_write("\\n");
}
int main(void)
{
  const int32_t failures = run_batches();
  return failures > 100 ? 100 : (int)failures;
}
"""


def run(words, **options):
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)
    if result.returncode != 0:
        sys.exit("%s\nexit status %d\n%s%s" % (" ".join(map(str, words)), result.returncode, result.stdout[-3000:],
                                               result.stderr[-3000:]))
    return result


def boards():
    """Target -> qemu machine, compiler flags, timer flags, memories: boards.txt."""
    table = {}
    for line in (MACHINE / "boards.txt").read_text(encoding="utf-8").splitlines():
        fields = [field.split() for field in line.split("|")]
        if not line.startswith("#") and len(fields) == 5:
            table[fields[0][0]] = fields[1:]
    return {name: (machine[0], flags, timer, memories) for name, (machine, flags, timer, memories) in table.items()}


class Exports:
    """Random exports in a folder of their own."""

    def __init__(self, program, count, target, folder, seed=1):
        self.folder, self.target, self.count = pathlib.Path(folder), target, count
        run([program, count, seed, target, STEPS, folder])
        self.sources = sorted(self.folder.glob("batch_*.c")) + [self.folder / "batches.c"]

    def portable(self):
        """Defines that let every export compile for any processor."""
        names = sorted({path.stem.upper() for path in self.folder.glob("m*.h") if re.fullmatch(r"m\d+", path.stem)})
        header = self.folder / "portable.h"
        header.write_text("".join("#define %s_PORTABLE\n" % name for name in names), encoding="utf-8")
        return ["-include", header]

    def on_host(self, compiler, flags, emulator=()):
        main, program = self.folder / "main.c", self.folder / "program"
        main.write_text(MAIN, encoding="utf-8")
        run([*compiler, *STRICT, *flags, *self.portable(), "-I", self.folder, "-o", program, main, *self.sources])
        run([*emulator, program])
        print("%-10s %5d models  %s %s" % (self.target, self.count, " ".join(compiler), " ".join(map(str, flags))),
              flush=True)

    def on_core(self, core, flags):
        machine, compiler, timer, memories = boards()[core]
        main, program = self.folder / "main.c", self.folder / "program.elf"
        main.write_text(MACHINE_MAIN, encoding="utf-8")
        # The exports of a target use its instructions; generic ones need none.
        run(["arm-none-eabi-gcc", *STRICT, "-ffreestanding", "-fbuiltin", *compiler, *timer, *flags, "-I", MACHINE, "-I",
             self.folder, "-nostdlib", "-nostartfiles", *("-Wl,--defsym=" + memory for memory in memories), "-T",
             MACHINE / "machine.ld", "-o", program, MACHINE / "machine.c", main, *self.sources, "-lgcc"])
        run(["qemu-system-arm", "-M", machine, "-semihosting-config", "enable=on,target=native", "-display", "none",
             "-monitor", "none", "-serial", "none", "-kernel", program], stdin=subprocess.DEVNULL, timeout=1800)
        print("%-10s %5d models  on %s %s" % (self.target, self.count, core, " ".join(flags)), flush=True)


def check_misra(made):
    listed = {line.split()[0] for line in (ROOT / "tests" / "export_misra.txt").read_text(encoding="utf-8").splitlines()
              if line and not line.startswith("#")}
    found = set()
    for export in made:
        defines = ["-D%s_PORTABLE" % path.stem.upper() for path in export.folder.glob("m*.h")]
        files = [path for path in export.folder.glob("m*.c") if re.fullmatch(r"m\d+.c", path.name)]
        done = run(["cppcheck", "--std=c99", "--addon=misra", "--quiet", "--enable=style", "--template={id}", *defines,
                    "-I", export.folder, *files])
        found |= set(re.findall(r"misra-c2012-([\d.]+)", done.stderr))
    if found != listed:
        sys.exit("broken and not listed: %s; listed and not broken: %s" % (sorted(found - listed), sorted(listed - found)))
    print("%d rules, as listed" % len(found))


def main():
    program, what = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]

    def exports(count, target, seed=1):
        folder = tempfile.TemporaryDirectory(prefix="isobit-exports-")
        made = Exports(program, count, target, folder.name, seed)
        made.keep = folder
        return made

    if what == "host":
        for count, target, compiler in ((20, "generic", "gcc"), (15, "cortex-m4", "clang"), (15, "cortex-m55", "gcc")):
            exports(count, target).on_host([compiler], ["-O2", *SANITIZED])
    elif what == "all":
        for batch in range(20):
            exports(100, ("generic", "cortex-m4", "cortex-m55")[batch % 3], 100 + batch).on_host(["gcc"], ["-O1"])
        for target in ("generic", "cortex-m4", "cortex-m55"):
            few = exports(20, target, 7)
            for flags in (["-O0"], ["-Os"], ["-O3"], ["-O2", "-fshort-enums"], ["-O2", "-funsigned-char"],
                          ["-O2", *SANITIZED]):
                for compiler in (["gcc"], ["clang"]):
                    few.on_host(compiler, flags)
    elif what == "cores":
        for core in boards():
            exports(200, core, 11).on_core(core, ["-Os"])
            few = exports(20, core, 13)
            for flags in (["-O0"], ["-O2"], ["-O3"], ["-Os", "-fshort-enums"], ["-Os", "-fsigned-char"]):
                few.on_core(core, flags)
    elif what == "aarch64":
        exports(50, "generic", 17).on_host(["aarch64-linux-gnu-gcc", "-static"], ["-O2"], ["qemu-aarch64"])
    elif what == "misra":
        check_misra([exports(10, target, 19) for target in ("generic", "cortex-m4", "cortex-m55")])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
