// SPDX-License-Identifier: Apache-2.0
// Start, faults, console, exit and measurements of an emulated Cortex-M board (see boards.txt).
#include "machine.h"

#include <stddef.h>

#define REGISTER(address) (*(volatile uint32_t *)(address))

// Provided by machine.ld.
extern uint32_t machine_stack_bottom[], machine_stack_top[];
extern uint32_t machine_data_start[], machine_data_end[], machine_bss_end[];
extern const uint32_t machine_data_image[];
extern const char machine_code_first[], machine_code_last[]; // First and last byte of a memory.
extern const char machine_data_first[], machine_data_last[];

void machine_reset(void);
void machine_fault(void);
void machine_report_fault(const uint32_t *frame);
void *memcpy(void *restrict to, const void *restrict from, size_t size);
void *memmove(void *to, const void *from, size_t size);
void *memset(void *to, int value, size_t size);
int memcmp(const void *left, const void *right, size_t size);

// ---- Semihosting ----

enum { SYS_WRITE0 = 0x04, SYS_EXIT_EXTENDED = 0x20 };

static void semihost(uint32_t operation, const void *argument)
{
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

void machine_write(const char *text)
{
    semihost(SYS_WRITE0, text);
}

void machine_write_number(uint32_t value)
{
    char text[11];
    char *at = &text[10];
    *at = '\0';
    do {
        *--at = (char)('0' + value % 10u);
        value /= 10u;
    } while (value != 0u);
    machine_write(at);
}

static void write_hexadecimal(uint32_t value)
{
    char text[9];
    for (int digit = 0; digit < 8; ++digit) {
        text[digit] = "0123456789abcdef"[(value >> (28 - 4 * digit)) & 15u];
    }
    text[8] = '\0';
    machine_write(text);
}

void machine_exit(int32_t status)
{
    const uint32_t reason_and_status[2] = {0x20026u /* application exit */, (uint32_t)status};
    semihost(SYS_EXIT_EXTENDED, reason_and_status);
    for (;;) {
    }
}

// ---- Counting ----

// The timer restarts from a whole tick, so its ticks, rounded up to an instruction, are exact:
// an instruction takes 64 ns under `-icount shift=6`, and a tick is shorter than that.
// Quarters of a nanosecond are the unit in which every board's tick is a whole number.
#define QUARTERS_PER_INSTRUCTION (4u * 64u)

static uint32_t count_overhead;

#ifdef MACHINE_TIMER_IS_SSE // The 64-bit system counter of the SSE-300, control frame.
#define COUNTER_CONTROL REGISTER(MACHINE_TIMER + 0x00u)
#define COUNTER_LOW REGISTER(MACHINE_TIMER + 0x08u)
#define COUNTER_HIGH REGISTER(MACHINE_TIMER + 0x0cu)

static void start_ticks(void)
{
    COUNTER_CONTROL = 0u;
    COUNTER_LOW = 0u;
    COUNTER_HIGH = 0u;
    COUNTER_CONTROL = 1u;
}

static uint64_t stop_ticks(void)
{
    COUNTER_CONTROL = 0u; // Stopped at once: the two halves belong together.
    return ((uint64_t)COUNTER_HIGH << 32) | COUNTER_LOW;
}
#else // A 32-bit CMSDK timer, counting down.
#define TIMER_CONTROL REGISTER(MACHINE_TIMER + 0x0u)
#define TIMER_VALUE REGISTER(MACHINE_TIMER + 0x4u)
#define TIMER_RELOAD REGISTER(MACHINE_TIMER + 0x8u)
#define TIMER_WRAPPED REGISTER(MACHINE_TIMER + 0xcu) // Writing 1 clears it.

static void start_ticks(void)
{
    TIMER_CONTROL = 0u;
    TIMER_RELOAD = UINT32_MAX;
    TIMER_VALUE = UINT32_MAX;
    TIMER_WRAPPED = 1u;
    TIMER_CONTROL = 9u; // Run, and remember a wrap (the NVIC stays closed to it).
}

static uint64_t stop_ticks(void)
{
    const uint32_t ticks = UINT32_MAX - TIMER_VALUE;
    return TIMER_WRAPPED != 0u ? UINT64_MAX >> 16 : ticks; // A wrap becomes an overflow.
}
#endif

__attribute__((noinline)) void machine_start_count(void)
{
    start_ticks();
}

__attribute__((noinline)) uint32_t machine_stop_count(void)
{
    const uint64_t quarters = stop_ticks() * MACHINE_QUARTER_NS_PER_TICK;
    const uint64_t instructions = (quarters + QUARTERS_PER_INSTRUCTION - 1u) / QUARTERS_PER_INSTRUCTION;
    if (instructions > UINT32_MAX) {
        machine_write("machine: too many instructions to count\n");
        machine_exit(125);
    }
    return (uint32_t)instructions - count_overhead;
}

// ---- Stack ----

// The stack pointer of the caller of machine_paint_stack().
__attribute__((used)) uint32_t machine_painted_to;

// Both are naked, as a frame of their own would be painted over or be taken for use.
__attribute__((naked)) void machine_paint_stack(void)
{
    __asm__("   movw r0, #:lower16:machine_stack_bottom\n"
            "   movt r0, #:upper16:machine_stack_bottom\n"
            "   movw r1, #0x5eed\n"
            "   movt r1, #0xa11c\n"
            "   mov  r2, sp\n"
            "1: str  r1, [r0], #4\n"
            "   cmp  r0, r2\n"
            "   blo  1b\n"
            "   movw r0, #:lower16:machine_painted_to\n"
            "   movt r0, #:upper16:machine_painted_to\n"
            "   str  r2, [r0]\n"
            "   bx   lr\n");
}

__attribute__((naked)) uint32_t machine_stack_used(void)
{
    __asm__("   movw r0, #:lower16:machine_stack_bottom\n"
            "   movt r0, #:upper16:machine_stack_bottom\n"
            "   movw r1, #0x5eed\n"
            "   movt r1, #0xa11c\n"
            "   movw r2, #:lower16:machine_painted_to\n"
            "   movt r2, #:upper16:machine_painted_to\n"
            "   ldr  r2, [r2]\n"
            "1: cmp  r0, r2\n"
            "   beq  2f\n"
            "   ldr  r3, [r0]\n"
            "   cmp  r3, r1\n"
            "   bne  2f\n"
            "   adds r0, #4\n"
            "   b    1b\n"
            "2: subs r0, r2, r0\n"
            "   bx   lr\n");
}

// ---- Faults ----

__attribute__((used)) uint64_t machine_fault_stack[64];

// Every exception ends here, on a stack of its own, as an overflow of the other may be the reason.
__attribute__((naked)) void machine_fault(void)
{
    __asm__("mov  r0, sp\n"
            "movw r1, #:lower16:machine_fault_stack + 512\n"
            "movt r1, #:upper16:machine_fault_stack + 512\n"
            "mov  sp, r1\n"
            "b    machine_report_fault\n");
}

__attribute__((used)) void machine_report_fault(const uint32_t *frame)
{
    uint32_t exception;
    __asm__ volatile("mrs %0, ipsr" : "=r"(exception));
    machine_write("machine: fault of exception ");
    machine_write_number(exception);
    const uint32_t cause = REGISTER(0xe000ed28u); // CFSR
    machine_write(", CFSR ");
    write_hexadecimal(cause);
    if ((cause & 0x80u) != 0u) {
        machine_write(", address ");
        write_hexadecimal(REGISTER(0xe000ed34u)); // MMFAR
    } else if ((cause & 0x8000u) != 0u) {
        machine_write(", address ");
        write_hexadecimal(REGISTER(0xe000ed38u)); // BFAR
    }
    if (frame >= machine_stack_bottom && frame + 8 <= machine_stack_top) {
        machine_write(", pc ");
        write_hexadecimal(frame[6]);
    } else {
        machine_write(", stack overflow");
    }
    machine_write("\n");
    machine_exit(125);
}

// ---- Start ----

static void initialise_memory(void)
{
    const uint32_t *from = machine_data_image;
    uint32_t *to = machine_data_start;
    while (to < machine_data_end) {
        *to++ = *from++;
    }
    while (to < machine_bss_end) {
        *to++ = 0u;
    }
}

enum access { EXECUTE = 0, MODIFY, DEVICE };

// Gives the MPU one more region. On Armv7-M it is the smallest power of two that holds both ends.
static void allow(uint32_t region, uint32_t first, uint32_t last, enum access access)
{
    REGISTER(0xe000ed98u) = region; // RNR
#if __ARM_ARCH >= 8
    static const uint32_t rights[] = {2u << 1, 1u, 1u}; // Read only; or no execution.
    REGISTER(0xe000ed9cu) = (first & ~31u) | rights[access]; // RBAR
    REGISTER(0xe000eda0u) = (last & ~31u) | (access == DEVICE ? 1u << 1 : 0u) | 1u; // RLAR
#else
    static const uint32_t rights[] = {(5u << 24) | (1u << 19), (1u << 28) | (1u << 24) | (1u << 19),
                                      (1u << 28) | (1u << 24) | (1u << 16)};
    const uint32_t size = 31u - (uint32_t)__builtin_clz(first ^ last);
    REGISTER(0xe000ed9cu) = first & ~((2u << size) - 1u); // RBAR
    REGISTER(0xe000eda0u) = rights[access] | (size << 1) | 1u; // RASR
#endif
}

// Without this, most boards ignore null pointers, stack overflows and writes to constants.
static void protect_memory(void)
{
#if __ARM_ARCH >= 8
    REGISTER(0xe000edc0u) = 0x0044u; // MAIR0: 0 is plain memory, 1 a device.
#endif
    allow(0u, (uint32_t)machine_code_first, (uint32_t)machine_code_last, EXECUTE);
    allow(1u, (uint32_t)machine_data_first, (uint32_t)machine_data_last, MODIFY);
    allow(2u, MACHINE_TIMER, MACHINE_TIMER + 0xfffu, DEVICE);
    REGISTER(0xe000ed94u) = 1u; // CTRL: nothing but these and the system registers.
    __asm__ volatile("dsb\n isb" : : : "memory");
}

// Apart from machine_reset(), which must enable the vector unit before any code may use it.
__attribute__((noinline)) static void start(void)
{
    initialise_memory();
    protect_memory();
    machine_start_count();
    count_overhead = machine_stop_count(); // What an empty pair counts.
    machine_exit(main());
}

void machine_reset(void)
{
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
    REGISTER(0xe000ed88u) |= 0xfu << 20; // CPACR: CP10 and CP11, the FPU and MVE.
    __asm__ volatile("dsb\n isb" : : : "memory");
#endif
    // SHCSR: memory, bus and usage faults of their own, so that one while stacking is no lockup.
    REGISTER(0xe000ed24u) |= 7u << 16;
    // CCR: a division by zero faults, too.
    REGISTER(0xe000ed14u) |= 1u << 4;
#ifdef MACHINE_TRAP_UNALIGNED // CCR: as does every unaligned access; needs -mno-unaligned-access.
    REGISTER(0xe000ed14u) |= 1u << 3;
#endif
    start();
}

// The processor reads the initial stack pointer and the reset handler here.
__attribute__((section(".vectors"), used)) static const struct {
    uint32_t *stack;
    void (*handlers[15])(void);
} vectors = {
    machine_stack_top,
    {machine_reset, machine_fault, machine_fault, machine_fault, machine_fault, machine_fault,
     machine_fault, machine_fault, machine_fault, machine_fault, machine_fault, machine_fault,
     machine_fault, machine_fault, machine_fault},
};

// ---- Memory functions that compilers call; a program's own ones take precedence ----

// Keeps a compiler from turning a loop into a call to the very function that it is in.
#define KEEP_LOOP() __asm__ volatile("")

__attribute__((weak)) void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    for (size_t i = 0; i < size; ++i) {
        out[i] = in[i];
        KEEP_LOOP();
    }
    return to;
}

__attribute__((weak)) void *memmove(void *to, const void *from, size_t size)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    const int upwards = (uintptr_t)out <= (uintptr_t)in;
    for (size_t i = 0; i < size; ++i) {
        const size_t at = upwards ? i : size - 1u - i;
        out[at] = in[at];
        KEEP_LOOP();
    }
    return to;
}

__attribute__((weak)) void *memset(void *to, int value, size_t size)
{
    unsigned char *out = to;
    for (size_t i = 0; i < size; ++i) {
        out[i] = (unsigned char)value;
        KEEP_LOOP();
    }
    return to;
}

__attribute__((weak)) int memcmp(const void *left, const void *right, size_t size)
{
    const unsigned char *a = left;
    const unsigned char *b = right;
    for (size_t i = 0; i < size; ++i) {
        if (a[i] != b[i]) {
            return a[i] < b[i] ? -1 : 1;
        }
    }
    return 0;
}
