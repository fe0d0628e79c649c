// SPDX-License-Identifier: Apache-2.0
// What checking, quantising and saving low-bit matrices share.
#ifndef ISOBIT_LOW_BIT_PARTS_H_
#define ISOBIT_LOW_BIT_PARTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/bits.h"
#include "core/codes.h"
#include "isobit/low_bit.h"

namespace isobit {

inline constexpr int64_t kMaxLowBitSize = INT32_MAX;  // of N and K: every size in bytes fits int64

constexpr int64_t low_bit_groups(int64_t columns, int64_t group) { return (columns + group - 1) / group; }
constexpr int64_t low_bit_row_bytes(int64_t columns, int bits) { return (packed_bytes(columns, bits) + 3) / 4 * 4; }
/// 8-bit codes have zero points up to 256.
constexpr Dtype low_bit_zero_point_dtype(int bits) { return bits == 8 ? Dtype::kU16 : Dtype::kU8; }
constexpr bool is_low_bit_scale(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16;
}

/// Element i of f32, f16 or bf16 values, widened exactly.
inline float float_at(const Array& array, int64_t i) { return load_float(array.bytes.data(), array.dtype, i); }
inline void set_float_at(Array& array, int64_t i, float value) {
  store_float(array.bytes.data(), array.dtype, i, value);
}

/// v of code w.
constexpr int32_t low_bit_value(LowBitKind kind, int bits, int32_t zero_point, int32_t code) {
  return kind == LowBitKind::kSymmetric && bits == 1 ? 2 * code - 1 : code - zero_point;
}
/// The same and back, of the symmetric kind.
constexpr int32_t symmetric_value(int bits, int32_t code) {
  return low_bit_value(LowBitKind::kSymmetric, bits, 1 << (bits - 1), code);
}
constexpr uint32_t symmetric_code(int bits, int32_t v) {
  return static_cast<uint32_t>(bits == 1 ? (v + 1) / 2 : v + (1 << (bits - 1)));
}

/// Widths, sizes, group and the zero point of the matrix.
Status check_low_bit_form(int64_t rows, int64_t columns, int32_t bits, int64_t group, LowBitKind kind,
                          const std::string& name);

/// body(begin, end), a Status, for ranges of rows; returns the Status of the first rows that were refused, whatever the
/// number of threads.
template <typename Body>
Status for_rows(ThreadPool* pool, int64_t rows, Body&& body) {
  if (pool == nullptr) return body(int64_t{0}, rows);
  std::vector<Status> parts(static_cast<size_t>(pool->threads()));
  pool->for_ranges(rows,
                   [&](int part, int64_t begin, int64_t end) { parts[static_cast<size_t>(part)] = body(begin, end); });
  for (const Status& part : parts) ISOBIT_RETURN_IF_ERROR(part);
  return {};
}

/// Why `permutation` is none of `columns` columns; empty: it is one.
std::string permutation_error(std::span<const int32_t> permutation, int64_t columns);

/// "name: what[row, column]".
inline std::string low_bit_element(std::string_view what, int64_t row, int64_t column) {
  return std::string(what) + "[" + std::to_string(row) + ", " + std::to_string(column) + "]";
}

}  // namespace isobit

#endif  // ISOBIT_LOW_BIT_PARTS_H_
