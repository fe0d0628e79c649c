// SPDX-License-Identifier: Apache-2.0
// Intrinsics of x86-64, without what g++ 12 says about its own: it takes the undefined operand of unmasked ones for a
// mistake (GCC bug 105593).
#ifndef ISOBIT_CORE_X86_INTRINSICS_H_
#define ISOBIT_CORE_X86_INTRINSICS_H_

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#endif  // ISOBIT_CORE_X86_INTRINSICS_H_
