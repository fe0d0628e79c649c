// SPDX-License-Identifier: Apache-2.0
// An emulated Cortex-M board for a C99 program without a C library. The program supplies main().
#ifndef MACHINE_H
#define MACHINE_H

#include <stdint.h>

// Entry of the program; what it returns becomes the emulator's exit status.
int main(void);

// Writes text, or a number in decimal, to the emulator's standard error.
void machine_write(const char *text);
void machine_write_number(uint32_t value);

// Ends the emulator with this exit status (0..255; 125 is the one of faults). Does not return.
void machine_exit(int32_t status);

// Counts the instructions executed from one call to the other; the pair itself counts 0.
// Exact under `qemu -icount shift=6`, up to 2.6 thousand million; beyond, it ends with status 125.
void machine_start_count(void);
uint32_t machine_stop_count(void);

// Paints the unused stack, and tells how many bytes below the caller were written since then.
// Call both from the same function; words are told apart, and those never written do not count.
void machine_paint_stack(void);
uint32_t machine_stack_used(void);

#endif
