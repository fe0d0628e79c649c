// SPDX-License-Identifier: Apache-2.0
// The normative linear layers: numerics.md, sections 10 to 12, on weights as section 9 has them, before any packing.
// The integer kernels equal it byte for byte.
#ifndef ISOBIT_LINEAR_LAYER_REFERENCE_H_
#define ISOBIT_LINEAR_LAYER_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/fixed.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"

namespace isobit {

/// v, S and O of a matrix, and V of section 11.
struct ReferenceWeights {
  int64_t n = 0;
  int64_t k = 0;
  int64_t group = 0;
  int64_t groups = 0;          // G
  std::vector<int16_t> v;      // [N, K], -256..255
  std::vector<float> scales;   // [N, G]
  std::vector<float> offsets;  // [N, G] in the offset kind, else empty
  std::vector<float> parts;    // [N, G]: abs(S * (h - z)), which section 10 counts; empty in the symmetric kind
  std::vector<int64_t> sums;   // [N, G]: V, the sum of v
};

inline ReferenceWeights reference_weights(const LowBitMatrix& matrix) {
  ReferenceWeights w;
  w.n = matrix.rows();
  w.k = matrix.columns();
  w.group = matrix.parameters().group;
  w.groups = matrix.groups();
  w.v.reserve(static_cast<size_t>(w.n * w.k));
  w.sums.resize(static_cast<size_t>(w.n * w.groups));
  const int bits = matrix.parameters().bits;
  const float middle = bits == 1 ? 0.5f : static_cast<float>(1 << (bits - 1));
  for (int64_t n = 0; n < w.n; ++n) {
    for (int64_t k = 0; k < w.k; ++k) {
      const int32_t v = matrix.value(n, k);
      w.v.push_back(static_cast<int16_t>(v));
      w.sums[static_cast<size_t>(n * w.groups + k / w.group)] += v;
    }
    for (int64_t g = 0; g < w.groups; ++g) {
      w.scales.push_back(matrix.scale(n, g));
      if (matrix.parameters().kind == LowBitKind::kOffset) w.offsets.push_back(matrix.offset(n, g));
      if (matrix.parameters().kind != LowBitKind::kSymmetric)
        w.parts.push_back(std::abs(matrix.scale(n, g) * (middle - static_cast<float>(matrix.zero_point(n, g)))));
    }
  }
  return w;
}

inline float reference_act(float y, const LinearClamp& clamp) {
  return y < clamp.lo ? clamp.lo : y > clamp.hi ? clamp.hi : y;
}

/// Section 10, one result in float64, bias included, and the magnitudes of what it is the sum of.
struct ReferenceSum {
  double value = 0;
  double terms = 0;
};

/// Every sum ascends. x: a row.
inline ReferenceSum reference_sum(const ReferenceWeights& w, int64_t n, const float* x, float bias) {
  ReferenceSum y;
  for (int64_t g = 0; g < w.groups; ++g) {
    const int64_t end = std::min(w.k, (g + 1) * w.group);
    double product = 0;
    double sum = 0;
    double magnitude = 0;
    double sum_magnitude = 0;
    for (int64_t k = g * w.group; k < end; ++k) {
      const double element = x[k];
      const double term = element * w.v[static_cast<size_t>(n * w.k + k)];
      product += term;
      sum += element;
      magnitude += std::abs(term);
      sum_magnitude += std::abs(element);
    }
    const auto at = static_cast<size_t>(n * w.groups + g);
    const double scale = w.scales[at];
    const double offset = w.offsets.empty() ? 0.0 : w.offsets[at];
    y.value += scale * product;
    y.terms += std::abs(scale) * magnitude;
    if (!w.parts.empty()) y.terms += w.parts[at] * sum_magnitude;
    if (w.offsets.empty()) continue;
    y.value += offset * sum;
    y.terms += std::abs(offset) * sum_magnitude;
  }
  y.value += static_cast<double>(bias);
  y.terms += std::abs(static_cast<double>(bias));
  return y;
}

/// What section 10 bounds: the error of a row of y.
class ReferenceRowError {
 public:
  void add(double y, const ReferenceSum& sum) {
    error_ += (y - sum.value) * (y - sum.value);
    norm_ += sum.value * sum.value;
    terms_ += sum.terms * sum.terms;
  }
  /// `||y - ref|| / max(||ref||, ||t|| / (8 * sqrt(K)))`; 0 for no error.
  [[nodiscard]] double relative(int64_t k) const {
    return error_ == 0 ? 0 : std::sqrt(error_ / std::max(norm_, terms_ / (64.0 * static_cast<double>(k))));
  }

 private:
  double error_ = 0;
  double norm_ = 0;
  double terms_ = 0;
};

/// e of section 10.
inline double reference_limit(Dtype dtype, int64_t k) {
  if (dtype == Dtype::kF32) return 1e-6 * std::sqrt(static_cast<double>(k));
  return dtype == Dtype::kF16 ? 2e-3 : 1e-2;
}

/// One group of a row of activations, section 11.
struct ReferenceGroup {
  int64_t sum = 0;   // t
  float scale = 0;   // Sa
  float offset = 0;  // Oa
};

/// Codes of a group of `count` elements; false where it counts as not finite.
inline bool reference_quantize(const float* x, int64_t count, bool asymmetric, int8_t* codes, ReferenceGroup& group) {
  constexpr float kSmallest = 0x1p-118f;
  float largest = 0;
  float max = -std::numeric_limits<float>::infinity();
  float min = std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(x[i])) return false;
    largest = std::max(largest, std::abs(x[i]));
    max = std::max(max, x[i]);
    min = std::min(min, x[i]);
  }
  const float range = asymmetric ? max - min : largest;
  if (std::isinf(range)) return false;
  group = {0, 0.0f, asymmetric ? max : 0.0f};
  if (range < kSmallest) {
    std::fill(codes, codes + count, int8_t{0});
    return true;
  }
  group.scale = range / (asymmetric ? 255.0f : 127.0f);
  if (asymmetric) group.offset = std::fma(-127.0f, group.scale, max);
  const float inverse = (asymmetric ? 255.0f : 127.0f) / range;
  for (int64_t i = 0; i < count; ++i) {
    const float difference = asymmetric ? x[i] - group.offset : x[i];
    const float code = std::rint(difference * inverse);
    codes[i] = static_cast<int8_t>(std::clamp(code, asymmetric ? -128.0f : -127.0f, 127.0f));
    group.sum += codes[i];
  }
  return true;
}

/// T of section 11: codes [K] and groups [G] of a row of activations with row n of the weights.
inline float reference_promoted(const ReferenceWeights& w, int64_t n, const int8_t* codes, const ReferenceGroup* groups,
                                bool asymmetric) {
  constexpr int64_t kChunk = 16;
  float total = 0;
  for (int64_t chunk = 0; chunk < w.groups; chunk += kChunk) {
    float acc = 0;
    for (int64_t g = chunk; g < std::min(w.groups, chunk + kChunk); ++g) {
      const int64_t begin = g * w.group;
      const int64_t end = std::min(w.k, begin + w.group);
      const auto at = static_cast<size_t>(n * w.groups + g);
      const int16_t* v = w.v.data() + n * w.k;
      int64_t d = 0;
      for (int64_t k = begin; k < end; ++k) d += codes[k] * v[k];
      const ReferenceGroup& group = groups[g];
      acc = std::fma(static_cast<float>(d), w.scales[at] * group.scale, acc);
      if (asymmetric) acc = std::fma(static_cast<float>(w.sums[at]), w.scales[at] * group.offset, acc);
      if (!w.offsets.empty()) {
        float x = group.scale * static_cast<float>(group.sum);
        if (asymmetric) x = std::fma(group.offset, static_cast<float>(end - begin), x);
        acc = std::fma(w.offsets[at], x, acc);
      }
    }
    total = total + acc;
  }
  return total;
}

/// The one NaN of section 11.
inline float reference_one_nan(float y) { return std::isnan(y) ? __builtin_bit_cast(float, 0x7fc00000u) : y; }

/// Section 11, one result from T.
inline float reference_finish(float total, float bias, const LinearClamp& clamp) {
  return reference_one_nan(reference_act(total + bias, clamp));
}

/// Section 12, acc[n]. x: a row of codes minus the zero point.
inline int64_t reference_static_acc(const StaticLinearParameters& p, int64_t n, const int32_t* x) {
  const auto* v = p.weights.data<int8_t>() + n * p.columns;
  int64_t acc = p.bias.data<int32_t>()[n];
  for (int64_t k = 0; k < p.columns; ++k) acc += x[k] * v[k];
  return acc;
}

/// One result: a code, or the accumulator.
inline int64_t reference_static(const StaticLinearParameters& p, int64_t n, const int32_t* x) {
  const int64_t acc = reference_static_acc(p, n, x);
  if (!p.output) return acc;
  const RescaleParameters& r = p.rescales[static_cast<size_t>(n)];
  return clamp_s64(Rescale{r.multiplier, r.shift}.apply(acc, p.rounding) + p.output->zero_point, p.lo, p.hi);
}

}  // namespace isobit

#endif  // ISOBIT_LINEAR_LAYER_REFERENCE_H_
