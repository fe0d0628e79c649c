# SPDX-License-Identifier: Apache-2.0
"""Programs on emulated Cortex-M boards: arm-none-eabi-gcc compiles them, qemu-system-arm runs them."""
import subprocess

# Flash and RAM of microcontrollers, in KiB, as their makers give them.
MICROCONTROLLERS = {"STM32F407VG (Cortex-M4)": (1024, 192), "nRF52840 (Cortex-M4)": (1024, 256),
                    "STM32L4R5ZI (Cortex-M4)": (2048, 640), "STM32H743ZI (Cortex-M7)": (2048, 1024),
                    "STM32U5A5ZJ (Cortex-M33)": (4096, 2514)}


def run(machine, target, folder, sources):
    """What the program of these sources prints, on the board of `target`. machine: the folder src/export/cortex_m."""
    lines = [[field.split() for field in line.split("|")]
             for line in (machine / "boards.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    (name, compiler, timer, memories), = [fields[1:] for fields in lines if fields[0] == [target]]
    program = folder / "program.elf"
    subprocess.run(["arm-none-eabi-gcc", "-std=c99", "-Os", "-ffreestanding", "-fbuiltin", "-Wall", "-Wextra", *compiler,
                    *timer, "-I", machine, "-I", folder, "-nostdlib", "-nostartfiles", "-ffunction-sections",
                    "-fdata-sections", "-Wl,--gc-sections", *("-Wl,--defsym=" + memory for memory in memories), "-T",
                    machine / "machine.ld", "-o", program, machine / "machine.c", *sources, "-lgcc"], check=True)
    done = subprocess.run(["qemu-system-arm", "-M", name[0], "-icount", "shift=6", "-semihosting-config",
                           "enable=on,target=native", "-display", "none", "-monitor", "none", "-serial", "none",
                           "-kernel", program], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit("error: the program on the board ended with %d\n%s" % (done.returncode, done.stderr))
    return done.stderr


def table(facts):
    """Of what export_c returned: the memory of a model, and which microcontrollers have as much."""
    flash, ram, step = facts["flash"], facts["ram"], facts["step"]
    need_flash = sum(value for value in flash.values() if isinstance(value, int))
    need_ram = sum(ram.values())
    lines = ["%s, for %s" % (facts["model"], facts["target"]),
             "  flash  %9d bytes, of which weights %d" % (need_flash, flash["weights_bytes"]),
             "  RAM    %9d bytes, of which state %d" % (need_ram, ram["state_bytes"]),
             "  a step %9d multiply-adds, %d instructions" % (step["multiply_adds"], step["instructions"])]
    for name, (flash_kib, ram_kib) in MICROCONTROLLERS.items():
        fits = need_flash <= 1024 * flash_kib and need_ram <= 1024 * ram_kib
        lines.append("  %-26s %5d KiB flash, %5d KiB RAM: %s" % (name, flash_kib, ram_kib, "fits" if fits else "too small"))
    return "\n".join(lines)


def c_array(kind, name, codes):
    """`codes`, an array of integers, row after row, as const data of C."""
    numbers = [str(int(code)) for code in codes.reshape(-1)]
    rows = [", ".join(numbers[i:i + 20]) for i in range(0, len(numbers), 20)]
    return "static const %s %s[%d] = {\n%s\n};\n" % (kind, name, codes.size, ",\n".join(rows))
