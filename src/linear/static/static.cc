// SPDX-License-Identifier: Apache-2.0
#include "linear/static/static.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "core/fixed.h"

namespace isobit {
namespace {

/// Code: uint8_t or uint16_t.
template <typename Code, typename T>
void rescale_scalar(const StaticRescaleArgs& args) {
  for (int64_t m = 0; m < args.rows; ++m) {
    const auto* acc = static_cast<const T*>(args.acc) + m * args.acc_stride;
    Code* const y = static_cast<Code*>(args.y) + m * args.y_stride;
    for (int64_t n = 0; n < args.count; ++n) {
      const int64_t code = Rescale{args.multiplier[n], args.shift[n]}.apply(acc[n], args.rounding);
      y[n] = static_cast<Code>(clamp_s64(code + args.zero_point, args.lo, args.hi));
    }
  }
}

template <typename T>
void rescale_scalar(const StaticRescaleArgs& args) {
  if (args.y_bytes == 2) return rescale_scalar<uint16_t, T>(args);
  rescale_scalar<uint8_t, T>(args);
}

/// Lanes of float64 hold every accumulator, and give int32 results.
constexpr int64_t kLargestAccumulator = int64_t{1} << 53;
constexpr double kLargestResult = 0x1p30;

/// Whether the proof of product/codes.h holds: sums that are not lo or hi for certain are exact in float32, and ratios
/// are normal numbers. And few sums are left to exact lanes: those of one in 2^kLeastFraction, or fewer.
bool has_float_ratio(const RescaleParameters& r, double ratio, int64_t acc_bound) {
  constexpr int kLeastFraction = 11;
  constexpr int64_t kLargestSum = int64_t{1} << 24;
  return ratio >= 0x1p-40 && (acc_bound <= kLargestSum || ratio >= 0x1p-15) &&
         r.shift - std::countr_zero(static_cast<uint32_t>(r.multiplier)) >= kLeastFraction;
}

}  // namespace

void static_rescale_scalar(const StaticRescaleArgs& args) {
  if (args.wide) {
    rescale_scalar<int64_t>(args);
  } else {
    rescale_scalar<int32_t>(args);
  }
}

StaticOutput::StaticOutput(const std::vector<RescaleParameters>& rescales, const std::vector<int64_t>& acc_bounds,
                           Rounding rounding, int32_t zero_point, int32_t lo, int32_t hi, int32_t y_bytes)
    : rounding_(rounding), zero_point_(zero_point), lo_(lo), hi_(hi), y_bytes_(y_bytes) {
  bool exact = true, in_floats = y_bytes == 1 && rounding != Rounding::kFloor;
  for (size_t n = 0; n < rescales.size(); ++n) {
    multipliers_.push_back(rescales[n].multiplier);
    shifts_.push_back(rescales[n].shift);
    ratios_.push_back(std::ldexp(static_cast<double>(rescales[n].multiplier), -rescales[n].shift));
    exact = exact && acc_bounds[n] <= kLargestAccumulator &&
            static_cast<double>(acc_bounds[n]) * ratios_.back() < kLargestResult;
    in_floats = in_floats && has_float_ratio(rescales[n], ratios_.back(), acc_bounds[n]);
  }
  if (!exact) {
    ratios_.clear();
    return;
  }
  ratios_.resize((rescales.size() + kTileRows - 1) / kTileRows * kTileRows);
  if (!in_floats) return;
  for (const double ratio : ratios_) float_ratios_.push_back(static_cast<float>(std::ldexp(ratio, kCodeScale)));
}

SumCodes StaticOutput::codes(const Exact& exact, int64_t columns, void* y, int64_t y_stride) const {
  const int32_t offset = std::min(lo_, zero_point_) < 0 ? 128 : 0;
  return {.ratio = float_ratios_.data() + exact.first,
          .addend = std::ldexp(512.5f + static_cast<float>(kCodeMiddle + zero_point_ + offset), kCodeScale),
          .offset = offset,
          .lo = lo_ + offset,
          .hi = hi_ + offset,
          .y = static_cast<uint8_t*>(y),
          .y_stride = y_stride,
          .columns = columns,
          .exact =
              [](const void* context, const int32_t* sums, int64_t column, int64_t count, uint8_t* to) {
                const auto& [output, kernel, first] = *static_cast<const Exact*>(context);
                output->rescale(kernel, first + column, count, 1, sums, count, to, count);
              },
          .context = &exact};
}

StaticRescale static_rescale(CpuPath path) {
  StaticRescale nearest = static_rescale_scalar;
#define ISOBIT_STATIC_RESCALE(name, row_path) \
  if (CpuPath::row_path <= path) nearest = name;
#include "linear/static/kernels.inc"
#undef ISOBIT_STATIC_RESCALE
  return nearest;
}

}  // namespace isobit
