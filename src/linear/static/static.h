// SPDX-License-Identifier: Apache-2.0
// Static codes of 2 to 16 bits: the integer product of product/product.h, whose sums become codes in registers, or each
// block followed by the rescale of its outputs while they are in the cache. numerics.md, section 12.
//
//   start[n] = bias_s32[n] - (z_a + storage_offset(dtype)) * sum over k of v[n, k]
//   y[m, n]  = clamp(rs_n(start[n] + sum over k of v[n, k] * u[m, k]) + z_y, lo, hi)
//
// Layers that give acc itself call linear().
#ifndef ISOBIT_LINEAR_STATIC_STATIC_H_
#define ISOBIT_LINEAR_STATIC_STATIC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "isobit/cpu.h"
#include "isobit/rounding.h"
#include "linear/static/kernels.h"
#include "product/product.h"

namespace isobit {

/// What turns accumulators of n outputs into codes.
class StaticOutput {
 public:
  /// Every acc * multiplier fits int64, shifts are -62..127, multipliers at least 1; acc_bounds: X of every output;
  /// y_bytes of a code: 1 or 2.
  StaticOutput(const std::vector<RescaleParameters>& rescales, const std::vector<int64_t>& acc_bounds,
               Rounding rounding, int32_t zero_point, int32_t lo, int32_t hi, int32_t y_bytes = 1);

  [[nodiscard]] int32_t y_bytes() const { return y_bytes_; }
  /// Whether codes() may be called.
  [[nodiscard]] bool has_codes() const { return !float_ratios_.empty(); }
  /// Of product/codes.h, up to a multiple of 16 outputs; empty: has_codes() is false.
  [[nodiscard]] const std::vector<float>& float_ratios() const { return float_ratios_; }

  /// What rows that `kernel` takes one by one, where a kernel of products does not decide, are left to.
  struct Exact {
    const StaticOutput* output;
    StaticRescale kernel;
    int64_t first;
  };
  /// Sums of 32 bits to codes from output exact.first on, a multiple of 16; `exact` is there as long as it is used.
  [[nodiscard]] SumCodes codes(const Exact& exact, int64_t columns, void* y, int64_t y_stride) const;

  /// Outputs [first, first + count) of `rows` rows: acc and y begin at output `first`, a multiple of 16.
  template <typename T>
  void rescale(StaticRescale kernel, int64_t first, int64_t count, int64_t rows, const T* acc, int64_t acc_stride,
               void* y, int64_t y_stride) const {
    kernel({.acc = acc,
            .acc_stride = acc_stride,
            .rows = rows,
            .count = count,
            .multiplier = multipliers_.data() + first,
            .shift = shifts_.data() + first,
            .ratio = ratios_.empty() ? nullptr : ratios_.data() + first,
            .rounding = rounding_,
            .wide = sizeof(T) == sizeof(int64_t),
            .zero_point = zero_point_,
            .lo = lo_,
            .hi = hi_,
            .y = y,
            .y_stride = y_stride,
            .y_bytes = y_bytes_});
  }

 private:
  std::vector<int32_t> multipliers_, shifts_;
  std::vector<double> ratios_;       // padded; empty when one of them is not exact enough
  std::vector<float> float_ratios_;  // padded, of product/codes.h; empty where those are, or its proof does not hold
  Rounding rounding_;
  int32_t zero_point_, lo_, hi_, y_bytes_;
};

/// The kernel of a path: its own, or that of the nearest path before it. The path can run here.
StaticRescale static_rescale(CpuPath path);

/// Rows of u that share one pass over a block.
inline constexpr int64_t kStaticRows = 256;
/// With more rows than these, fetching weights ahead of their use takes more time than it saves.
inline constexpr int64_t kFetchingRows = 64;
/// Of a block that one register tile of many rows covers, so that its weights are one stream.
inline constexpr int32_t kStaticBlockTiles = 3;
/// Elements of scratch, of T; aligned to 64 bytes it is faster.
inline constexpr int64_t kStaticScratch = kStaticRows * kMaxBlockTiles * kTileRows;

/// Calls then(sums) for pieces of start + product, the columns of first_row(blocks.begin) being 0, each while it is in
/// the cache. scratch: kStaticScratch elements at most, of u.m rows and the widest of `blocks`; none for tiles.
template <typename T, typename Then>
void product_in_pieces(LinearKernel product, const PackedWeights& weights, BlockRange blocks, const ActivationRows& u,
                       const T* start, T* scratch, const Then& then) {
  const int64_t first = weights.first_row(blocks.begin);
  for (int64_t m = 0; m < u.m; m += kStaticRows) {
    const ActivationRows rows = u.part(m, u.m - m < kStaticRows ? u.m - m : kStaticRows);
    if (u.tiled) {
      const auto moved = [&](LinearSums sums) {
        sums.m += m;
        then(sums);
      };
      using Moved = decltype(moved);
      const auto call = [](const void* context, const LinearSums& sums) { (*static_cast<Moved*>(context))(sums); };
      linear<T>(product, weights, blocks, rows, start, nullptr, 0, true, {call, &moved});
      continue;
    }
    for (int32_t block = blocks.begin; block < blocks.end; ++block) {
      const int64_t n = weights.first_row(block) - first;
      const int64_t columns = weights.first_row(block + 1) - first - n;
      linear(product, weights, {block, block + 1}, rows, start + n, scratch, columns, true);
      then({scratch, columns, m, rows.m, n, columns});
    }
  }
}

/// y[m * y_stride + n - first] for the rows m of u and the outputs n of `blocks`, first = first_row(blocks.begin), n
/// below N. start[n - first], readable up to a multiple of 16. T: int32_t where every acc fits, else int64_t.
template <typename T>
void static_product(LinearKernel product, StaticRescale rescale, const PackedWeights& weights, BlockRange blocks,
                    const ActivationRows& u, const T* start, const StaticOutput& output, void* y, int64_t y_stride,
                    T* scratch) {
  const int64_t first = weights.first_row(blocks.begin);
  if constexpr (sizeof(T) == sizeof(int32_t)) {
    if (output.has_codes() && gives_codes(product) && u.planes == 1 && !u.tiled) {
      const StaticOutput::Exact exact{&output, rescale, first};
      SumCodes codes = output.codes(exact, weights.n() - first, y, y_stride);
      for (int64_t m = 0; m < u.m; m += kStaticRows, codes.y += kStaticRows * y_stride) {
        const ActivationRows rows = u.part(m, u.m - m < kStaticRows ? u.m - m : kStaticRows);
        linear<T>(product, weights, blocks, rows, start, nullptr, 0, rows.m <= kFetchingRows, {}, &codes);
      }
      return;
    }
  }
  product_in_pieces(product, weights, blocks, u, start, scratch, [&](const LinearSums& sums) {
    const int64_t left = weights.n() - first - sums.n;
    output.rescale(rescale, first + sums.n, left < sums.columns ? left : sums.columns, sums.rows,
                   static_cast<const T*>(sums.acc), sums.stride,
                   static_cast<uint8_t*>(y) + (sums.m * y_stride + sums.n) * output.y_bytes(), y_stride);
  });
}

}  // namespace isobit

#endif  // ISOBIT_LINEAR_STATIC_STATIC_H_
