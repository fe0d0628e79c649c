// SPDX-License-Identifier: Apache-2.0
// Gradients of weights have few outputs and many terms: several blocks share a tile, and their sums are added in
// ascending order.
#include "gru/training/cuda/products.cuh"

namespace isobit::cuda {
namespace {

/// Terms of steps: as RowsOfTerms, with StepRows.
struct StepsOfTerms {
  static constexpr bool kAcross = false;
  Operand from;
  int64_t columns, terms;
  const float* first;
  const int64_t* lengths;
  int32_t steps, batch, shift;

  __device__ __forceinline__ const float* row(int64_t term) const {
    if (term >= terms) return nullptr;
    if (shift == 0 && lengths == nullptr) return from.data + term * from.stride;
    const auto t = static_cast<int32_t>(term) / batch, n = static_cast<int32_t>(term) % batch;
    const int64_t length = lengths == nullptr ? steps : min(lengths[n], int64_t{steps});
    if (t >= length) return nullptr;
    const int32_t source = t + shift;
    if (source < 0 || source >= length) return first == nullptr ? nullptr : first + n * columns;
    return from.data + (static_cast<int64_t>(source) * batch + n) * from.stride;
  }
  __device__ __forceinline__ float4 load(int64_t column, int64_t term) const {
    return load4(row(term), column, columns, from.vectors);
  }
};

/// out[row][column] = sum + bias[column].
struct BiasOut {
  float* out;
  int64_t stride;
  const float* bias;  // null: none
  struct Column {
    int64_t column = 0;
    float start = 0;
    __device__ __forceinline__ void put(const BiasOut& to, int64_t row, float sum) const {
      to.out[row * to.stride + column] = sum + start;
    }
  };
  [[nodiscard]] __device__ __forceinline__ Column column(int64_t column) const {
    return {column, bias == nullptr ? 0.0f : bias[column]};
  }
};
/// out[row][column] = sum, and what was in out before where `add` is set.
struct AddOut {
  float* out;
  int64_t stride;
  bool add;
  struct Column {
    int64_t column = 0;
    __device__ __forceinline__ void put(const AddOut& to, int64_t row, float sum) const {
      float* const at = to.out + row * to.stride + column;
      *at = sum + (to.add ? *at : 0.0f);
    }
  };
  [[nodiscard]] __device__ __forceinline__ Column column(int64_t column) const { return {column}; }
};

struct GradientArgs {
  RowsOfTerms gates[2];
  StepsOfTerms inputs[2];
  float *weights[2], *bias[2];  // of sums that one block made, or of parts
  int64_t part;                 // from the numbers of a part to those of the next one
  int64_t terms_each, terms;
  int32_t tiles_of_first, columns_of[2];  // tiles
};

/// blockIdx.x: a tile of either; blockIdx.y: a part of the terms.
__global__ void __launch_bounds__(LargeTile::kThreads, 2) training_gradients(GradientArgs g) {
  wait_for_grid_before();
  const bool second = static_cast<int32_t>(blockIdx.x) >= g.tiles_of_first;
  const int32_t which = second ? 1 : 0, tile = static_cast<int32_t>(blockIdx.x) - (second ? g.tiles_of_first : 0);
  const RowsOfTerms& gates = g.gates[which];
  const StepsOfTerms& inputs = g.inputs[which];
  const int64_t first_row = static_cast<int64_t>(tile / g.columns_of[which]) * LargeTile::kRows;
  const int64_t first_column = static_cast<int64_t>(tile % g.columns_of[which]) * LargeTile::kColumns;
  const int64_t begin = blockIdx.y * g.terms_each, end = min(g.terms, begin + g.terms_each);
  Sums<LargeTile> sums;
  float bias[8]{};
  const bool has_bias = first_column == 0 && sums.column(0) == 0;
  multiply<LargeTile>(gates, inputs, first_row, first_column, begin, end, sums, [&](const Stage<LargeTile::kRows>& a) {
    if (!has_bias) return;
    for (int k = 0; k < kDepth; ++k)
#pragma unroll
      for (int i = 0; i < 8; ++i) bias[i] += a[k][sums.row(i)];
  });
  float* const weights = g.weights[which] + blockIdx.y * g.part;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t row = first_row + sums.row(i);
    if (row >= gates.columns) break;
    if (has_bias) g.bias[which][blockIdx.y * g.part + row] = bias[i];
#pragma unroll
    for (int j = 0; j < LargeTile::kWide; ++j) {
      const int64_t column = first_column + sums.column(j);
      if (column < inputs.columns) weights[row * inputs.columns + column] = sums.values[i][j];
    }
  }
}

/// dW, dR, dbw and dbr, behind each other in a part.
struct PartsArgs {
  const float* parts;
  int64_t part;
  int32_t count;
  int64_t ends[4];
  float* out[4];
  int32_t blocks;  // of parts; those behind them stop gradients
  StoppedGradients stopped;
};

__global__ void __launch_bounds__(256) training_add_parts(PartsArgs p) {
  wait_for_grid_before();
  if (static_cast<int32_t>(blockIdx.x) >= p.blocks) {
    const int64_t block = blockIdx.x - p.blocks, blocks = gridDim.x - p.blocks;
    stop_some(p.stopped, block * blockDim.x + threadIdx.x, blocks * blockDim.x);
    return;
  }
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.ends[3]) return;
  float sum = 0.0f;
#pragma unroll 4
  for (int32_t k = 0; k < p.count; ++k) sum += p.parts[k * p.part + i];
  int which = 0;
  int64_t begin = 0;
#pragma unroll
  for (int w = 0; w < 3; ++w)
    if (i >= p.ends[w]) {
      which = w + 1;
      begin = p.ends[w];
    }
  float* out = p.out[0];
#pragma unroll
  for (int w = 1; w < 4; ++w)
    if (which == w) out = p.out[w];
  out[i - begin] = sum;
}

struct GradientPlan {
  int64_t splits, terms_each, part;
};
/// Parts of the terms: as many as fill the device's blocks best, two a processor.
GradientPlan plan_gradients(int64_t rows, int64_t gates, int64_t inputs, int64_t hidden) {
  constexpr int64_t kSlots = 264, kMostSplits = 64, kStart = 64;
  const int64_t tiles = tile_pieces(gates, LargeTile::kRows) *
                        (tile_pieces(inputs, LargeTile::kColumns) + tile_pieces(hidden, LargeTile::kColumns));
  int64_t best = 1, best_cost = INT64_MAX;
  for (int64_t splits = 1; splits <= kMostSplits; ++splits) {
    const int64_t each = tile_pieces(rows, splits * kDepth) * kDepth;
    const int64_t cost = tile_pieces(tiles * splits, kSlots) * (each + kStart) + splits * 2;
    if (cost < best_cost) {
      best = splits;
      best_cost = cost;
    }
  }
  const int64_t each = std::max<int64_t>(tile_pieces(rows, best * kDepth) * kDepth, kDepth);
  return {std::max<int64_t>(tile_pieces(rows, each), 1), each, gates * (inputs + hidden + 2)};
}

}  // namespace

Status product_by_rows(FloatRows a, FloatRows b, const float* bias, float* out, int64_t out_stride, int64_t M,
                       int64_t N, int64_t K, cudaStream_t stream) {
  return run_product(
      ProductArgs<TermsOfRows, float, BiasOut>{
          {operand_of(a), M, K}, {operand_of(b), N, K}, {out, out_stride, bias}, 0, N, K},
      M, stream);
}

Status product_by_columns(FloatRows a, FloatRows b, float* out, int64_t out_stride, bool add, int64_t M, int64_t N,
                          int64_t K, cudaStream_t stream) {
  return run_product(
      ProductArgs<RowsOfTerms, float, AddOut>{
          {operand_of(a), M, K}, {operand_of(b), N, K}, {out, out_stride, add}, 0, N, K},
      M, stream);
}

int64_t weight_gradients_bytes(int64_t rows, int64_t gates, int64_t inputs, int64_t hidden) {
  const GradientPlan plan = plan_gradients(rows, gates, inputs, hidden);
  return plan.splits * plan.part * static_cast<int64_t>(sizeof(float));
}

Status weight_gradients(const WeightGradient (&of)[2], int64_t rows, int64_t gates, float* workspace,
                        const StoppedGradients& stopped, cudaStream_t stream) {
  const GradientPlan plan = plan_gradients(rows, gates, of[0].columns, of[1].columns);
  GradientArgs g{};
  PartsArgs parts{workspace, plan.part, static_cast<int32_t>(plan.splits), {}, {}, 0, stopped};
  const int64_t sizes[4] = {gates * of[0].columns, gates * of[1].columns, gates, gates};
  int64_t at = 0;
  for (int i = 0; i < 4; ++i) {
    (i < 2 ? g.weights[i] : g.bias[i - 2]) = workspace + at;
    parts.ends[i] = at += sizes[i];
    parts.out[i] = i < 2 ? of[i].weights : of[i - 2].bias;
  }
  for (int i = 0; i < 2; ++i) {
    const StepRows& s = of[i].inputs;
    g.gates[i] = {operand_of(of[i].gates), gates, rows};
    g.inputs[i] = {operand_of(s.rows), of[i].columns, rows, s.first, s.lengths, s.steps, s.batch, s.shift};
    g.inputs[i].from.vectors &= reinterpret_cast<uintptr_t>(s.first) % 16 == 0 && of[i].columns % 4 == 0;
    g.columns_of[i] = static_cast<int32_t>(tile_pieces(of[i].columns, LargeTile::kColumns));
  }
  const int64_t tile_rows = tile_pieces(gates, LargeTile::kRows);
  g.tiles_of_first = static_cast<int32_t>(tile_rows * g.columns_of[0]);
  g.part = plan.part;
  g.terms_each = plan.terms_each;
  g.terms = rows;
  const dim3 blocks(static_cast<unsigned>(tile_rows * (g.columns_of[0] + g.columns_of[1])),
                    static_cast<unsigned>(plan.splits));
  ISOBIT_RETURN_IF_ERROR(
      launch_early("kernel training_gradients", training_gradients, blocks, LargeTile::kThreads, stream, g));
  constexpr int kThreads = 256;
  constexpr int64_t kMostStopping = 1024;
  parts.blocks = static_cast<int32_t>(tile_pieces(at, kThreads));
  const int64_t stopping = std::min(tile_pieces(stopped.rows * stopped.columns, kThreads), kMostStopping);
  return launch_early("kernel training_add_parts", training_add_parts,
                      dim3(static_cast<unsigned>(parts.blocks + stopping)), kThreads, stream, parts);
}

}  // namespace isobit::cuda
