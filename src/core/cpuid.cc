// SPDX-License-Identifier: Apache-2.0
#include "core/cpuid.h"

#if defined(__x86_64__)
#include <cpuid.h>

namespace isobit {
namespace {

CpuidRegisters ask(unsigned leaf, unsigned subleaf) {
  CpuidRegisters r;
  return __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) != 0 ? r : CpuidRegisters{};
}

}  // namespace

const CpuidRegisters& cpuid_leaf(unsigned leaf, unsigned subleaf) {
  static const CpuidRegisters leaf1 = ask(1, 0), leaf7 = ask(7, 0), leaf7_1 = ask(7, 1);
  return leaf == 1 ? leaf1 : subleaf == 0 ? leaf7 : leaf7_1;
}

}  // namespace isobit

#endif
