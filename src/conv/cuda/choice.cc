// SPDX-License-Identifier: Apache-2.0
#include "conv/cuda/choice.h"

#include <algorithm>

#include "conv/cuda/call.h"
#include "conv/cuda/tile.h"
#include "linear/cuda/image.h"

namespace isobit::cuda {
namespace {

#include "conv/cuda/cost.inc"

int64_t pieces(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }

}  // namespace

ConvWork ConvWork::of(const ConvShape& shape, int64_t rows, int64_t code_bytes, int64_t processors) {
  return {.rows = rows,
          .groups = shape.groups,
          .outputs = shape.outputs / shape.groups,
          .depth = shape.depth() * code_bytes,
          .copied = shape.group_channels() % kPieceCodes != 0,
          .processors = processors};
}

std::array<double, kConvTerms> conv_terms(ConvKernel kernel, const ConvWork& w, std::optional<int> step) {
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const double outputs = real(w.rows * w.groups) * real(w.outputs);
  switch (kernel) {
    // Those of all outputs, and of all products.
    case ConvKernel::kDepthwise:
    case ConvKernel::kDirect: return {1, outputs, outputs * real(w.depth), 0, 0, 0};
    // Runs, their length, what is gathered, what of it byte by byte, what is multiplied, and sums that are rescaled.
    case ConvKernel::kProduct: {
      const int64_t depth = pieces(w.depth, kBlockDepth) * kBlockDepth, strips = pieces(w.outputs, kStripRows);
      const double gathered = real(w.rows * w.groups) * real(depth);
      const double runs = real(w.groups * pieces(w.rows, conv_rows_together(depth)));
      return {runs, runs * real(depth), gathered, w.copied ? gathered : 0.0, gathered * real(strips), outputs};
    }
    default: break;
  }
  // A run, rounds of blocks of threads on all processors, the steps of these, and rows that are copied. Less than one
  // block a processor takes as long as one.
  const ConvTileSize& size = kConvTileSizes[static_cast<size_t>(kernel)];
  const int64_t bytes = pieces(w.depth, kPieceCodes) * kPieceCodes, taken = step.value_or(size.depth);
  const double blocks = real(pieces(w.rows, size.rows) * pieces(w.outputs, size.columns) * w.groups);
  const double rounds = std::max(1.0, blocks / real(w.processors));
  const double steps = real(pieces(bytes, taken) * taken) / size.depth;
  return {1, rounds, rounds * steps, w.copied ? 1.0 : 0.0, w.copied ? real(w.rows) * real(bytes) : 0.0, 0};
}

double estimated_microseconds(ConvKernel kernel, const ConvWork& work, std::optional<int> step) {
  const std::array<double, kConvTerms> terms = conv_terms(kernel, work, step);
  double us = 0;
  for (size_t i = 0; i < terms.size(); ++i) us += kConvCost[static_cast<size_t>(kernel)][i] * terms[i];
  return us;
}

}  // namespace isobit::cuda
