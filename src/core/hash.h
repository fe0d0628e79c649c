// SPDX-License-Identifier: Apache-2.0
// FNV-1a, 64 bits: fingerprints of outputs.
#ifndef ISOBIT_CORE_HASH_H_
#define ISOBIT_CORE_HASH_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace isobit {

inline constexpr uint64_t kHashStart = 0xcbf29ce484222325U;

inline void hash_bytes(uint64_t& hash, const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3U;
}

/// 16 hexadecimal digits.
inline std::string hash_text(uint64_t hash) {
  std::string text;
  for (int digit = 15; digit >= 0; --digit) text += "0123456789abcdef"[(hash >> (4 * digit)) & 15];
  return text;
}

}  // namespace isobit

#endif  // ISOBIT_CORE_HASH_H_
