// SPDX-License-Identifier: Apache-2.0
#include "isobit/grid.h"

#include <cmath>
#include <limits>

#include "core/codes.h"
#include "core/fixed.h"
#include "core/float_mode.h"
#include "core/magic.h"

namespace isobit {
namespace {

int64_t quantize_scaled(const Grid& grid, float inverse, float x) {
  // Clamped before it becomes an integer: a conversion out of range is undefined.
  constexpr float kLimit = 8589934592.0f;  // 2^33
  float rounded = std::rint(x * inverse);
  rounded = rounded < -kLimit ? -kLimit : rounded > kLimit ? kLimit : rounded;
  return clamp_s64(static_cast<int64_t>(rounded) + grid.zero_point, grid.min(), grid.max());
}

}  // namespace

std::string_view to_string(ScaleKind kind) { return kind == ScaleKind::kPow2 ? "pow2" : "real"; }

std::optional<ScaleKind> scale_kind_from_string(std::string_view text) {
  if (text == "pow2") return ScaleKind::kPow2;
  if (text == "real") return ScaleKind::kReal;
  return std::nullopt;
}

float Grid::scale() const { return kind == ScaleKind::kPow2 ? std::ldexp(1.0f, -shift) : real_scale; }

float Grid::inverse_scale() const {
  return in_default_float_mode([&] { return kind == ScaleKind::kPow2 ? std::ldexp(1.0f, shift) : 1.0f / real_scale; });
}

Status check_grid(const Grid& grid, std::string_view name) {
  const auto refuse = [&](const std::string& what, const std::string& value, const std::string& limit) {
    return Status(StatusCode::kInvalidArgument,
                  "grid of " + std::string(name) + ": " + what + " is " + value + ", must be " + limit);
  };
  if (grid.bits < 1 || grid.bits > 32) return refuse("bits", std::to_string(grid.bits), "1..32");
  if (grid.kind != ScaleKind::kPow2 && grid.kind != ScaleKind::kReal)
    return refuse("kind", std::to_string(static_cast<int>(grid.kind)), "0 (pow2) or 1 (real)");
  if (grid.kind == ScaleKind::kPow2 && (grid.shift < -32 || grid.shift > 62))
    return refuse("shift", std::to_string(grid.shift), "-32..62");
  if (grid.kind == ScaleKind::kReal && !(std::isnormal(grid.real_scale) && grid.real_scale > 0))
    return refuse("scale", std::to_string(grid.real_scale), "a positive normal float32");
  if (grid.zero_point < grid.min() || grid.zero_point > grid.max())
    return refuse("zero point", std::to_string(grid.zero_point),
                  std::to_string(grid.min()) + ".." + std::to_string(grid.max()));
  return {};
}

int64_t quantize_value(const Grid& grid, float x) {
  return in_default_float_mode([&] { return quantize_scaled(grid, grid.inverse_scale(), x); });
}

float dequantize_value(const Grid& grid, int64_t code) {
  return in_default_float_mode([&] { return static_cast<float>(code - grid.zero_point) * grid.scale(); });
}

Status quantize(const Grid& grid, std::span<const float> x, void* codes, std::string_view name) {
  const DefaultFloatMode mode;
  unsigned any_nan = 0;
  for (const float value : x) any_nan |= value != value ? 1u : 0u;
  for (size_t i = 0; any_nan != 0 && i < x.size(); ++i)
    if (std::isnan(x[i]))
      return {StatusCode::kInvalidArgument, std::string(name) + "[" + std::to_string(i) + "] is NaN, must be a number"};
  const float inverse = grid.inverse_scale();
  const auto low = static_cast<float>(grid.min() - grid.zero_point);
  const auto high = static_cast<float>(grid.max() - grid.zero_point);
  with_code_type(grid.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* out = static_cast<T*>(codes);
    if constexpr (sizeof(T) < sizeof(int32_t)) {
      // The limits are integers, so that it makes no difference which is first, the clamp or rounding: by adding
      // kMagic, which loops of every instruction set have.
      const auto zero_point = static_cast<int32_t>(grid.zero_point);
      for (size_t i = 0; i < x.size(); ++i) {
        const float scaled = x[i] * inverse, above = scaled < low ? low : scaled, code = above > high ? high : above;
        out[i] = static_cast<T>(static_cast<int32_t>((code + kMagic<float>)-kMagic<float>) + zero_point);
      }
      return;
    }
    for (size_t i = 0; i < x.size(); ++i) out[i] = static_cast<T>(quantize_scaled(grid, inverse, x[i]));
  });
  return {};
}

int64_t count_clipped(const Grid& grid, std::span<const float> x) {
  const DefaultFloatMode mode;
  const double scale = static_cast<double>(grid.scale());
  const double low = (static_cast<double>(grid.min() - grid.zero_point) - 0.5) * scale;
  const double high = (static_cast<double>(grid.max() - grid.zero_point) + 0.5) * scale;
  int64_t count = 0;
  for (const float value : x) {
    const auto v = static_cast<double>(value);
    count += v < low || v > high ? 1 : 0;
  }
  return count;
}

void dequantize(const Grid& grid, const void* codes, std::span<float> x) {
  const DefaultFloatMode mode;
  const float scale = grid.scale();
  with_code_type(grid.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* in = static_cast<const T*>(codes);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>(static_cast<int64_t>(in[i]) - grid.zero_point) * scale;
  });
}

}  // namespace isobit
