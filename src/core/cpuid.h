// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_CORE_CPUID_H_
#define ISOBIT_CORE_CPUID_H_

#if defined(__x86_64__)

namespace isobit {

struct CpuidRegisters {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};
/// What the processor says of leaf 1 or 7; zeros where it has none. It is asked once: on a virtual machine the question
/// goes to the host, which takes as long as a step of a small network.
const CpuidRegisters& cpuid_leaf(unsigned leaf, unsigned subleaf);

}  // namespace isobit

#endif
#endif  // ISOBIT_CORE_CPUID_H_
