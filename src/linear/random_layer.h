// SPDX-License-Identifier: Apache-2.0
// Linear layers of floating-point rows at random, for tests and for verify: weights, biases, clamps and rows. The
// fingerprint depends on every line.
#ifndef ISOBIT_LINEAR_RANDOM_LAYER_H_
#define ISOBIT_LINEAR_RANDOM_LAYER_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/bits.h"
#include "core/codes.h"
#include "core/random.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "low_bit/parts.h"

namespace isobit {

inline constexpr Dtype kRandomStores[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};
inline constexpr Dtype kRandomRows[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kF64};
inline constexpr int32_t kRandomBits[] = {1, 2, 4, 8};

template <typename T, size_t N>
T random_of(Random& random, const T (&values)[N]) {
  return values[random.between(0, static_cast<int64_t>(N) - 1)];
}

/// In [-1, 1], a multiple of 2^-23.
inline float random_unit(Random& random) { return static_cast<float>(random.between(-(1 << 23), 1 << 23)) * 0x1p-23f; }

struct RandomMatrix {
  int64_t rows = 1, columns = 1, group = 1;
  bool ordinary = true;              // weights of about 1
  std::optional<int32_t> bits{};     // else any
  std::optional<LowBitKind> kind{};  // else any
  bool zero_is_a_code = false;       // no zero point of 2^bits
};

/// Any codes, S of either sign, any zero points.
inline Result<LowBitMatrix> random_matrix(Random& random, const RandomMatrix& form) {
  LowBitParameters p;
  p.rows = form.rows;
  p.columns = form.columns;
  p.group = form.group;
  p.bits = random_of(random, kRandomBits);
  p.kind = static_cast<LowBitKind>(random.between(0, 2));
  if (form.bits) p.bits = *form.bits;
  if (form.kind) p.kind = *form.kind;
  const int64_t groups = low_bit_groups(p.columns, p.group);
  const int64_t row_bytes = low_bit_row_bytes(p.columns, p.bits);
  p.codes = Array::zeros(Dtype::kU8, {p.rows, row_bytes});
  auto* codes = p.codes.data<uint8_t>();
  for (int64_t n = 0; n < p.rows; ++n) {
    // Every eighth row holds the two ends only.
    const bool ends = n % 8 == 7;
    for (int64_t k = 0; k < p.columns; ++k) {
      const uint32_t top = (1U << p.bits) - 1;
      const auto code = static_cast<uint32_t>(random.next() & top);
      pack_code(codes + n * row_bytes, k, p.bits, !ends ? code : code > top / 2 ? top : 0);
    }
  }
  const Dtype type = random_of(random, kRandomStores);
  const auto numbers = [&](float width) {
    Array array = Array::zeros(type, {p.rows, groups});
    for (int64_t i = 0; i < array.size(); ++i) {
      // Away from 0: a scale of 0 loses codes.
      const float magnitude = (0.25f + 0.75f * std::abs(random_unit(random))) * width;
      const float wild = form.ordinary ? 1.0f : std::ldexp(1.0f, static_cast<int>(random.between(-6, 6)));
      store_float(array.bytes.data(), type, i, (random.one_in(2) ? magnitude : -magnitude) * wild);
    }
    return array;
  };
  p.scales = numbers(std::ldexp(2.0f, -p.bits));
  if (p.kind == LowBitKind::kOffset) {
    p.offsets = numbers(0.5f);
    p.zero_point = random.one_in(2) ? 1 << (p.bits - 1) : 0;
  }
  if (p.kind == LowBitKind::kZeroPoint) {
    p.zero_points = Array::zeros(low_bit_zero_point_dtype(p.bits), p.scales.shape);
    const int64_t most = form.zero_is_a_code ? (1 << p.bits) - 1 : 1 << p.bits;
    for (int64_t i = 0; i < p.zero_points.size(); ++i)
      store_code(p.zero_points.bytes.data(), p.zero_points.dtype, i, random.between(0, most));
  }
  return LowBitMatrix::create(std::move(p), "random");
}

/// Rounds to a type of floats. float64 gets bits that float32 has not.
inline void store_random(Random& random, std::byte* out, Dtype dtype, int64_t i, float value) {
  if (dtype != Dtype::kF64) return store_float(out, dtype, i, value);
  reinterpret_cast<double*>(out)[i] =
      static_cast<double>(value) * (1.0 + static_cast<double>(random.between(-8, 8)) * 0x1p-27);
}

/// k numbers of about 2^scale; `special`: among them zeros, the smallest and the largest, and now and then one that is
/// not finite.
inline void random_row(Random& random, std::byte* row, int64_t k, Dtype dtype, int scale, bool special) {
  constexpr float kSpecial[] = {0.0f, -0.0f, 0x1p-118f, 0x1p-149f, 3.4e38f, -3.4e38f};
  for (int64_t j = 0; j < k; ++j) {
    float value = std::ldexp(random_unit(random), scale);
    if (special && random.one_in(3)) value = random_of(random, kSpecial);
    if (special && random.one_in(200))
      value = random.one_in(2) ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    store_random(random, row, dtype, j, value);
  }
}

inline LinearClamp random_clamp(Random& random) {
  constexpr LinearClamp kClamps[] = {
      LinearClamp::none(), LinearClamp::none(), LinearClamp::relu(), LinearClamp::relu6(), {-0.5f, 0.75f}};
  return random_of(random, kClamps);
}

inline std::vector<float> random_bias(Random& random, int64_t n) {
  std::vector<float> bias(random.one_in(2) ? static_cast<size_t>(n) : 0);
  for (float& b : bias) b = random_unit(random);
  return bias;
}

}  // namespace isobit

#endif  // ISOBIT_LINEAR_RANDOM_LAYER_H_
