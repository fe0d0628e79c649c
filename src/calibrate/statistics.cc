// SPDX-License-Identifier: Apache-2.0
// numerics.md, section 5: statistics that do not depend on the order of the data and merge exactly.
#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>

#include "core/float_mode.h"
#include "isobit/calibration.h"

namespace isobit {
namespace {

constexpr int kBinBits = 11;  // bins -2^11 .. 2^11 - 1
constexpr int kHalfBins = 1 << kBinBits;
constexpr size_t kFloatRows = 512;  // of the second histogram: a sign and an exponent each
constexpr size_t kFloatColumns = 128;

/// The least E such that magnitude < 2^E; magnitude > 0 and finite, subnormals included: -148..128.
int least_exponent(float magnitude) {
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // fraction * 2^exponent, fraction in [1/2, 1)
  return exponent;
}

/// floor(v) for |v| < 2^31, without a call into libm.
int floor_to_int(double v) {
  const int truncated = static_cast<int>(v);
  return truncated - (v < truncated ? 1 : 0);
}

}  // namespace

void TensorStatistics::observe(const float* x, int64_t count) {
  const DefaultFloatMode mode;
  if (count <= 0) return;
  float low = x[0];
  float high = x[0];
  for (int64_t k = 1; k < count; ++k) {
    low = x[k] < low ? x[k] : low;
    high = x[k] > high ? x[k] : high;
  }
  assert(std::isfinite(low) && std::isfinite(high));
  // Which of -0 and +0 comes first depends on the order of the data: adding +0 makes both +0.
  low += 0.0f;
  high += 0.0f;
  if (count_ == 0) {
    bins_.assign(2 * kHalfBins, 0);
    float_bins_.resize(kFloatRows);
    min_ = low;
    max_ = high;
  } else {
    min_ = std::min(min_, low);
    max_ = std::max(max_, high);
  }
  count_ += static_cast<uint64_t>(count);
  const float magnitude = std::max(-low, high);
  if (magnitude > 0) grow_exponent(least_exponent(magnitude));

  // A product with a power of two, exact in float64 for every float32 and every E. No sample yet but zeros: any
  // factor does.
  const double factor = std::ldexp(1.0, kBinBits - exponent_);
  uint64_t* const zero_bin = bins_.data() + kHalfBins;
  for (int64_t k = 0; k < count; ++k) {
    ++zero_bin[floor_to_int(static_cast<double>(x[k]) * factor)];
    const auto bits = std::bit_cast<uint32_t>(x[k] + 0.0f);
    std::vector<uint64_t>& row = float_bins_[bits >> 23];
    if (row.empty()) row.assign(kFloatColumns, 0);
    ++row[(bits >> 16) % kFloatColumns];
  }
}

void TensorStatistics::observe_sequence_ranges(const float* step_min, const float* step_max, int64_t steps) {
  const DefaultFloatMode mode;
  if (steps <= 0) return;
  auto low = static_cast<double>(step_min[0]);
  auto high = static_cast<double>(step_max[0]);
  const double rest = 1.0 - ema_decay_;
  for (int64_t t = 1; t < steps; ++t) {
    low = ema_decay_ * low + rest * static_cast<double>(step_min[t]);
    high = ema_decay_ * high + rest * static_cast<double>(step_max[t]);
  }
  // +0 for -0, as in observe().
  ema_min_ = has_ema_ ? std::min(ema_min_, low + 0.0) : low + 0.0;
  ema_max_ = has_ema_ ? std::max(ema_max_, high + 0.0) : high + 0.0;
  has_ema_ = true;
}

void TensorStatistics::merge(const TensorStatistics& other) {
  const DefaultFloatMode mode;
  assert(ema_decay_ == other.ema_decay_);
  if (other.count_ > 0) {
    if (count_ == 0) {
      bins_.assign(2 * kHalfBins, 0);
      float_bins_.resize(kFloatRows);
      min_ = other.min_;
      max_ = other.max_;
    } else {
      min_ = std::min(min_, other.min_);
      max_ = std::max(max_, other.max_);
    }
    count_ += other.count_;
    if (other.has_exponent_) grow_exponent(other.exponent_);
    // Only zeros on the other side: they are in bin 0 whatever E is.
    const int halvings = other.has_exponent_ ? std::min(exponent_ - other.exponent_, kBinBits) : 0;
    for (int i = -kHalfBins; i < kHalfBins; ++i) {
      bins_[static_cast<size_t>((i >> halvings) + kHalfBins)] += other.bins_[static_cast<size_t>(i + kHalfBins)];
    }
    for (size_t row = 0; row < kFloatRows; ++row) {
      const std::vector<uint64_t>& from = other.float_bins_[row];
      if (from.empty()) continue;
      std::vector<uint64_t>& to = float_bins_[row];
      if (to.empty()) to.assign(kFloatColumns, 0);
      for (size_t column = 0; column < kFloatColumns; ++column) to[column] += from[column];
    }
  }
  if (other.has_ema_) {
    ema_min_ = has_ema_ ? std::min(ema_min_, other.ema_min_) : other.ema_min_;
    ema_max_ = has_ema_ ? std::max(ema_max_, other.ema_max_) : other.ema_max_;
    has_ema_ = true;
  }
}

/// Brings the histogram to at least `exponent`. Halving k times with floor is one arithmetic shift by k, and
/// after 11 halvings only the bins -1 and 0 are left, which further halvings keep.
void TensorStatistics::grow_exponent(int exponent) {
  if (!has_exponent_) {  // zeros only so far, all in bin 0
    exponent_ = exponent;
    has_exponent_ = true;
    return;
  }
  if (exponent <= exponent_) return;
  const int halvings = std::min(exponent - exponent_, kBinBits);
  exponent_ = exponent;
  const auto move = [&](int i) {
    const uint64_t samples = bins_[static_cast<size_t>(i + kHalfBins)];
    bins_[static_cast<size_t>(i + kHalfBins)] = 0;
    bins_[static_cast<size_t>((i >> halvings) + kHalfBins)] += samples;
  };
  // Outwards from 0 on both sides: a bin's target was emptied before it.
  for (int i = 0; i < kHalfBins; ++i) move(i);
  for (int i = -1; i >= -kHalfBins; --i) move(i);
}

std::vector<TensorStatistics::FloatBin> TensorStatistics::float_bins() const {
  std::vector<FloatBin> bins;
  if (count_ == 0) return bins;
  const auto append = [&](uint32_t high_bits) {
    const std::vector<uint64_t>& row = float_bins_[high_bits / kFloatColumns];
    const uint64_t samples = row.empty() ? 0 : row[high_bits % kFloatColumns];
    if (samples > 0) bins.push_back({static_cast<uint16_t>(high_bits), samples});
  };
  // Sign and magnitude: below zero the largest bits are the least number.
  for (uint32_t bits = 0xffff; bits >= 0x8000; --bits) append(bits);
  for (uint32_t bits = 0; bits < 0x8000; ++bits) append(bits);
  return bins;
}

std::optional<std::pair<double, double>> TensorStatistics::ema_range() const {
  if (!has_ema_) return std::nullopt;
  return std::pair(ema_min_, ema_max_);
}

}  // namespace isobit
