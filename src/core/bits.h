// SPDX-License-Identifier: Apache-2.0
// Canonical packing of sub-byte codes (numerics.md, section 9): element k of a row lies in bits (k*b) mod 8 of
// byte floor(k*b/8), low bits first.
#ifndef ISOBIT_CORE_BITS_H_
#define ISOBIT_CORE_BITS_H_

#include <cstdint>

#include "core/hd.h"

namespace isobit {

/// Bytes of one row of `count` codes of `bits` bits (1, 2, 4 or 8), without row padding.
ISOBIT_HD constexpr int64_t packed_bytes(int64_t count, int bits) { return (count * bits + 7) / 8; }

/// Code k of a packed row; bits is 1, 2, 4 or 8.
ISOBIT_HD constexpr uint32_t unpack_code(const uint8_t* row, int64_t k, int bits) {
  const int64_t position = k * bits;
  return (static_cast<uint32_t>(row[position / 8]) >> (position % 8)) & ((1U << bits) - 1U);
}

/// Stores `code` in [0, 2^bits) as element k; the row was zero-filled.
ISOBIT_HD constexpr void pack_code(uint8_t* row, int64_t k, int bits, uint32_t code) {
  const int64_t position = k * bits;
  row[position / 8] = static_cast<uint8_t>(row[position / 8] | (code << (position % 8)));
}

}  // namespace isobit

#endif  // ISOBIT_CORE_BITS_H_
