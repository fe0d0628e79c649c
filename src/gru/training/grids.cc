// SPDX-License-Identifier: Apache-2.0
#include "gru/training/grids.h"

#include <algorithm>
#include <vector>

#include "gru/training/parts.h"

namespace isobit {
namespace {

constexpr int64_t kColumnsTogether = 64;  // their sums stay in the cache from row to row

/// Chains over the rows that are in, of `groups` rows of `columns` sums. add(row, first, end, chunk) adds the terms of
/// a row to columns [first, end) of all groups.
template <typename IsIn, typename Add>
void chain_rows(int64_t rows, int64_t groups, int64_t columns, const IsIn& is_in, const Add& add, float* sums,
                float* chunk, ThreadPool* pool) {
  in_parts(pool, pieces(columns, kColumnsTogether), [&](int, int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = piece * kColumnsTogether, last = std::min(columns, first + kColumnsTogether);
      const auto for_columns = [&](const auto& body) {
        for (int64_t group = 0; group < groups; ++group)
          for (int64_t i = group * columns + first; i < group * columns + last; ++i) body(i);
      };
      for_columns([&](int64_t i) { sums[i] = chunk[i] = 0.0f; });
      const auto end_chunk = [&] {
        for_columns([&](int64_t i) {
          sums[i] += chunk[i];
          chunk[i] = 0.0f;
        });
      };
      int64_t terms = 0;
      for (int64_t row = 0; row < rows; ++row) {
        if (!is_in(row)) continue;
        add(row, first, last, chunk);
        if (++terms % kChainTerms == 0) end_chunk();
      }
      if (terms % kChainTerms != 0) end_chunk();
    }
  });
}

/// Of `columns` columns in each of the three sums, `stride` apart.
GruGridGradient sums_of(const GruTrainingKernels& kernels, const float* sums, int64_t stride, int64_t columns) {
  GruGridGradient of;
  kernels.sum_rows(sums, columns, 1, &of.inside);
  kernels.sum_rows(sums + stride, columns, 1, &of.below);
  kernels.sum_rows(sums + 2 * stride, columns, 1, &of.above);
  return of;
}

}  // namespace

void grids_of_units(const TrainingDirection& d, const TrainingBackward& b, const GruTrainingKernels& kernels,
                    const int64_t* place, const float* clamped, float* scratch, ThreadPool* pool) {
  const int64_t H = d.hidden, stride = kClamps * H;
  const auto is_in = [&](int64_t row) { return place[row] >= 0; };
  const auto add = [&](int64_t row, int64_t first, int64_t end, float* chunk) {
    kernels.grid_units({.clamped = clamped + place[row] * 4 * H,
                        .r = b.saved + row * 4 * H + H,
                        .rests = b.rests + row * stride,
                        .passes = b.passes + row * H,
                        .above = b.above + row * H,
                        .sums = chunk,
                        .units = H,
                        .first = first,
                        .end = end});
  };
  chain_rows(d.rows(), 3 * kClamps, H, is_in, add, scratch, scratch + 3 * stride, pool);
  const auto of = [&](int bit, int64_t clamps) { return sums_of(kernels, scratch + bit * H, stride, clamps * H); };
  GruGridGradients& grids = *b.grids;
  grids = {};
  grids[kIh] = of(kPassIh, 3);
  grids[kHh] = of(kPassHh, 3);
  for (int gate = 0; gate < 3; ++gate) grids[static_cast<size_t>(kUIn + gate)] = of(kPassGate + gate, 1);
  grids[kH] = of(kPassState, 1);
}

GruGridGradient grid_of_inputs(const TrainingDirection& d, const float* g, const InputClamps& clamps,
                               const GruTrainingKernels& kernels, ThreadPool* pool) {
  const int64_t C = d.inputs;
  std::vector<float> sums(static_cast<size_t>(2 * 3 * C));
  const auto is_in = [&](int64_t row) { return row / d.batch < d.length(row % d.batch); };
  const auto add = [&](int64_t row, int64_t first, int64_t end, float* chunk) {
    kernels.grid_inputs({.g = g + row * C,
                         .rests = clamps.rests + row * C,
                         .passes = clamps.passes + row * C,
                         .above = clamps.above + row * C,
                         .sums = chunk,
                         .inputs = C,
                         .first = first,
                         .end = end});
  };
  chain_rows(d.rows(), 3, C, is_in, add, sums.data(), sums.data() + 3 * C, pool);
  return sums_of(kernels, sums.data(), C, C);
}

}  // namespace isobit
