// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_DTYPE_H_
#define ISOBIT_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace isobit {

/// Element types. The tokens (to_string) are the same everywhere: files, kernel names, command line, Python.
enum class Dtype : int32_t { kS8, kU8, kS16, kU16, kS32, kU32, kS64, kF16, kBF16, kF32, kF64 };

/// "s8", "u8", "s16", "u16", "s32", "u32", "s64", "f16", "bf16", "f32", "f64".
std::string_view to_string(Dtype dtype);

constexpr size_t size_in_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kS8:
    case Dtype::kU8: return 1;
    case Dtype::kS16:
    case Dtype::kU16:
    case Dtype::kF16:
    case Dtype::kBF16: return 2;
    case Dtype::kS32:
    case Dtype::kU32:
    case Dtype::kF32: return 4;
    case Dtype::kS64:
    case Dtype::kF64: return 8;
  }
  return 0;
}

constexpr bool is_float(Dtype dtype) { return dtype >= Dtype::kF16; }

/// The Dtype of a C++ arithmetic type, e.g. dtype_of<int8_t>() == Dtype::kS8.
template <typename T>
constexpr Dtype dtype_of();
template <> constexpr Dtype dtype_of<int8_t>() { return Dtype::kS8; }
template <> constexpr Dtype dtype_of<uint8_t>() { return Dtype::kU8; }
template <> constexpr Dtype dtype_of<int16_t>() { return Dtype::kS16; }
template <> constexpr Dtype dtype_of<uint16_t>() { return Dtype::kU16; }
template <> constexpr Dtype dtype_of<int32_t>() { return Dtype::kS32; }
template <> constexpr Dtype dtype_of<uint32_t>() { return Dtype::kU32; }
template <> constexpr Dtype dtype_of<int64_t>() { return Dtype::kS64; }
template <> constexpr Dtype dtype_of<float>() { return Dtype::kF32; }
template <> constexpr Dtype dtype_of<double>() { return Dtype::kF64; }

}  // namespace isobit

#endif  // ISOBIT_DTYPE_H_
