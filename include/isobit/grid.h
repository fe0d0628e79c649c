// SPDX-License-Identifier: Apache-2.0
// Grids: which real numbers the integer codes of a tensor stand for. numerics.md, sections 3 and 4.
#ifndef ISOBIT_GRID_H_
#define ISOBIT_GRID_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "isobit/dtype.h"
#include "isobit/status.h"

namespace isobit {

enum class ScaleKind : int32_t {
  kPow2 = 0,  // scale = 2^-shift
  kReal = 1,  // any normal float32 scale
};
/// "pow2" or "real".
std::string_view to_string(ScaleKind kind);
std::optional<ScaleKind> scale_kind_from_string(std::string_view text);

/// Smallest code of a width: 0, or -2^(bits-1).
constexpr int64_t code_min(int bits, bool is_signed) { return is_signed ? -(int64_t{1} << (bits - 1)) : 0; }
/// Largest code of a width: 2^bits - 1, or 2^(bits-1) - 1.
constexpr int64_t code_max(int bits, bool is_signed) {
  return is_signed ? (int64_t{1} << (bits - 1)) - 1 : (int64_t{1} << bits) - 1;
}
/// The narrowest type that holds codes of a width: s8 u8 s16 u16 s32 u32.
constexpr Dtype code_dtype(int bits, bool is_signed) {
  if (bits <= 8) return is_signed ? Dtype::kS8 : Dtype::kU8;
  if (bits <= 16) return is_signed ? Dtype::kS16 : Dtype::kU16;
  return is_signed ? Dtype::kS32 : Dtype::kU32;
}

/// One grid: real value = (code - zero_point) * scale(), code in [min(), max()].
struct Grid {
  int32_t bits = 8;         // 1..32
  bool is_signed = true;
  ScaleKind kind = ScaleKind::kPow2;
  int32_t shift = 0;        // kPow2 only: scale = 2^-shift, -32..62
  float real_scale = 1.0f;  // kReal only: a positive normal float32
  int64_t zero_point = 0;   // min()..max()

  [[nodiscard]] constexpr int64_t min() const { return code_min(bits, is_signed); }
  [[nodiscard]] constexpr int64_t max() const { return code_max(bits, is_signed); }
  [[nodiscard]] constexpr Dtype dtype() const { return code_dtype(bits, is_signed); }
  /// The scale as float32; exact for both kinds.
  [[nodiscard]] float scale() const;
  /// The factor of quantisation in float32: 2^shift exactly, or 1 / real_scale rounded once.
  [[nodiscard]] float inverse_scale() const;
  bool operator==(const Grid&) const = default;
};

/// Checks every field against its limits; `name` is the tensor in the message.
Status check_grid(const Grid& grid, std::string_view name);

/// code = clamp(rint(x * 2^shift or x * (1/scale)) + zero_point), section 3. x must not be NaN.
int64_t quantize_value(const Grid& grid, float x);
/// (code - zero_point) * scale in float32, section 3.
float dequantize_value(const Grid& grid, int64_t code);

/// Whole tensors; `codes` has grid.dtype() elements. A NaN is refused with its index; `name` names the tensor.
Status quantize(const Grid& grid, std::span<const float> x, void* codes, std::string_view name);
void dequantize(const Grid& grid, const void* codes, std::span<float> x);
/// How many values lie beyond the grid's range by more than half a step, so that their codes are the nearest end. NaN
/// does not count.
int64_t count_clipped(const Grid& grid, std::span<const float> x);

/// What is wanted of one tensor before its range is known.
struct GridOptions {
  int32_t bits = 8;                // 1..32
  bool is_signed = true;
  bool symmetric = false;          // zero point 0
  std::optional<int64_t> steps{};  // N of section 4; default 2^bits - 1 for calibrated activations, else 2^bits
  bool operator==(const GridOptions&) const = default;
};

/// Section 4: a range [min, max] (widened to contain 0) to parameters. `default_steps` is N unless
/// options.steps is set. Refuses shifts below -32, and b = 1 symmetric signed with 2^b - 1 steps.
Result<Grid> derive_grid(float min, float max, const GridOptions& options, ScaleKind kind, int64_t default_steps,
                         std::string_view name);

}  // namespace isobit

#endif  // ISOBIT_GRID_H_
