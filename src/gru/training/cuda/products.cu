// SPDX-License-Identifier: Apache-2.0
// A block computes a tile of outputs with fused multiply-adds, 16 terms at a time through shared memory, the next 16
// on their way meanwhile. Gradients of weights have few outputs and many terms: several blocks share a tile, and their
// sums are added in ascending order.
#include "gru/training/cuda/products.h"

#include <algorithm>

#include "core/cuda/launch.h"

namespace isobit::cuda {
namespace {

constexpr int kDepth = 16;  // terms of a stage

struct Operand {
  const float* data;
  int64_t stride;
  bool vectors;  // rows are multiples of 16 bytes
};

Operand operand_of(FloatRows rows) {
  return {rows.data, rows.stride, reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride % 4 == 0};
}

/// Four neighbours of a row of `count`, 0 past its end.
__device__ __forceinline__ float4 load4(const float* row, int64_t at, int64_t count, bool vectors) {
  if (row == nullptr || at >= count) return {0.0f, 0.0f, 0.0f, 0.0f};
  if (vectors && at + 4 <= count) return *reinterpret_cast<const float4*>(row + at);
  return {row[at], at + 1 < count ? row[at + 1] : 0.0f, at + 2 < count ? row[at + 2] : 0.0f,
          at + 3 < count ? row[at + 3] : 0.0f};
}

/// Rows of outputs, terms behind each other.
struct TermsOfRows {
  static constexpr bool kAcross = true;
  Operand from;
  int64_t rows, terms;
  __device__ __forceinline__ float4 load(int64_t row, int64_t term) const {
    return load4(row < rows ? from.data + row * from.stride : nullptr, term, terms, from.vectors);
  }
};
/// Rows of terms, outputs behind each other.
struct RowsOfTerms {
  static constexpr bool kAcross = false;
  Operand from;
  int64_t columns, terms;
  __device__ __forceinline__ float4 load(int64_t column, int64_t term) const {
    return load4(term < terms ? from.data + term * from.stride : nullptr, column, columns, from.vectors);
  }
};
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

/// kRows x kColumns outputs of a block, 8 x kWide of a thread.
template <int kRowCount, int kColumnCount, int kWideCount>
struct Tile {
  static constexpr int kRows = kRowCount, kColumns = kColumnCount, kWide = kWideCount;
  static constexpr int kThreads = kRows * kColumns / 8 / kWide;
};
using LargeTile = Tile<128, 128, 8>;
using SmallTile = Tile<64, 64, 4>;

/// What a block's shared memory has of one operand and one stage: [term][output], a gap against equal banks.
template <int kOutputs>
using Stage = float[kDepth][kOutputs + 4];

/// One operand on its way to shared memory.
template <typename Source, int kOutputs, int kThreads>
struct Loader {
  static constexpr int kVectors = kOutputs * kDepth / 4 / kThreads;
  float4 held[kVectors];

  __device__ __forceinline__ static void place(int i, int& output, int& term) {
    const int index = static_cast<int>(threadIdx.x) + i * kThreads;
    if constexpr (Source::kAcross) {
      output = index / (kDepth / 4);
      term = index % (kDepth / 4) * 4;
    } else {
      output = index % (kOutputs / 4) * 4;
      term = index / (kOutputs / 4);
    }
  }
  __device__ __forceinline__ void fetch(const Source& source, int64_t first_output, int64_t first_term) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      int output = 0, term = 0;
      place(i, output, term);
      held[i] = source.load(first_output + output, first_term + term);
    }
  }
  __device__ __forceinline__ void store(Stage<kOutputs>& stage) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      int output = 0, term = 0;
      place(i, output, term);
      if constexpr (Source::kAcross) {
        stage[term][output] = held[i].x;
        stage[term + 1][output] = held[i].y;
        stage[term + 2][output] = held[i].z;
        stage[term + 3][output] = held[i].w;
      } else {
        *reinterpret_cast<float4*>(&stage[term][output]) = held[i];
      }
    }
  }
};

/// Sums of a thread: rows y * 4 + i and half a tile further, columns the same.
template <typename TileShape>
struct Sums {
  float values[8][TileShape::kWide]{};

  static constexpr int kAcross = TileShape::kColumns / TileShape::kWide;
  __device__ __forceinline__ static int row(int i) {
    return static_cast<int>(threadIdx.x) / kAcross * 4 + i % 4 + i / 4 * (TileShape::kRows / 2);
  }
  __device__ __forceinline__ static int column(int j) {
    return static_cast<int>(threadIdx.x) % kAcross * 4 + j % 4 + j / 4 * (TileShape::kColumns / 2);
  }
  __device__ __forceinline__ void add(const Stage<TileShape::kRows>& a, const Stage<TileShape::kColumns>& b) {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      float left[8], right[TileShape::kWide];
#pragma unroll
      for (int i = 0; i < 8; i += 4)
        *reinterpret_cast<float4*>(left + i) = *reinterpret_cast<const float4*>(&a[k][row(i)]);
#pragma unroll
      for (int j = 0; j < TileShape::kWide; j += 4)
        *reinterpret_cast<float4*>(right + j) = *reinterpret_cast<const float4*>(&b[k][column(j)]);
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < TileShape::kWide; ++j) values[i][j] = __fmaf_rn(left[i], right[j], values[i][j]);
    }
  }
};

/// The sums of terms [begin, end); `at_stage(a)` sees each stage of the rows' operand.
template <typename TileShape, typename A, typename B, typename AtStage>
__device__ __forceinline__ void multiply(const A& a, const B& b, int64_t first_row, int64_t first_column, int64_t begin,
                                         int64_t end, Sums<TileShape>& sums, AtStage at_stage) {
  __shared__ alignas(16) Stage<TileShape::kRows> a_stages[2];
  __shared__ alignas(16) Stage<TileShape::kColumns> b_stages[2];
  Loader<A, TileShape::kRows, TileShape::kThreads> a_loader;
  Loader<B, TileShape::kColumns, TileShape::kThreads> b_loader;
  a_loader.fetch(a, first_row, begin);
  b_loader.fetch(b, first_column, begin);
  a_loader.store(a_stages[0]);
  b_loader.store(b_stages[0]);
  __syncthreads();
  int stage = 0;
  for (int64_t term = begin; term < end; term += kDepth, stage ^= 1) {
    const bool more = term + kDepth < end;
    if (more) {
      a_loader.fetch(a, first_row, term + kDepth);
      b_loader.fetch(b, first_column, term + kDepth);
    }
    at_stage(a_stages[stage]);
    sums.add(a_stages[stage], b_stages[stage]);
    if (more) {
      a_loader.store(a_stages[stage ^ 1]);
      b_loader.store(b_stages[stage ^ 1]);
    }
    __syncthreads();
  }
}

template <typename B>
struct ProductArgs {
  TermsOfRows a;
  B b;
  const float* bias;
  float* out;
  int64_t out_stride, N, K;
  bool add;
};

template <typename TileShape, typename B>
__global__ void __launch_bounds__(TileShape::kThreads, 2) training_product(ProductArgs<B> p) {
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * TileShape::kRows;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * TileShape::kColumns;
  Sums<TileShape> sums;
  multiply<TileShape>(p.a, p.b, first_row, first_column, 0, p.K, sums, [](const auto&) {});
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t row = first_row + sums.row(i);
    if (row >= p.a.rows) break;
#pragma unroll
    for (int j = 0; j < TileShape::kWide; ++j) {
      const int64_t column = first_column + sums.column(j);
      if (column >= p.N) continue;
      float* const to = p.out + row * p.out_stride + column;
      const float start = p.bias != nullptr ? p.bias[column] : p.add ? *to : 0.0f;
      *to = sums.values[i][j] + start;
    }
  }
}

int64_t pieces(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }

template <typename TileShape, typename B>
Status launch_product(const ProductArgs<B>& args, int64_t M, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(pieces(args.N, TileShape::kColumns)),
                    static_cast<unsigned>(pieces(M, TileShape::kRows)));
  return launch_kernel("training_product", training_product<TileShape, B>, blocks, TileShape::kThreads, 0, stream,
                       args);
}

/// So many large tiles fill a device; of fewer outputs, small tiles use more of it.
constexpr int64_t kFullDevice = 128;
/// Rows of outputs of one launch: blocks of a column.
constexpr int64_t kMostRows = int64_t{60'000} * SmallTile::kRows;

template <typename B>
Status run_product(ProductArgs<B> args, int64_t M, cudaStream_t stream) {
  for (int64_t row = 0; row < M; row += kMostRows) {
    ProductArgs<B> part = args;
    part.a.from.data += row * args.a.from.stride;
    part.a.rows = std::min(M - row, kMostRows);
    part.out += row * args.out_stride;
    const int64_t large = pieces(part.a.rows, LargeTile::kRows) * pieces(args.N, LargeTile::kColumns);
    ISOBIT_RETURN_IF_ERROR(large >= kFullDevice ? launch_product<LargeTile>(part, part.a.rows, stream)
                                                : launch_product<SmallTile>(part, part.a.rows, stream));
  }
  return {};
}

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
};

__global__ void __launch_bounds__(256) training_add_parts(PartsArgs p) {
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
  const int64_t tiles =
      pieces(gates, LargeTile::kRows) * (pieces(inputs, LargeTile::kColumns) + pieces(hidden, LargeTile::kColumns));
  int64_t best = 1, best_cost = INT64_MAX;
  for (int64_t splits = 1; splits <= kMostSplits; ++splits) {
    const int64_t each = pieces(rows, splits * kDepth) * kDepth;
    const int64_t cost = pieces(tiles * splits, kSlots) * (each + kStart) + splits * 2;
    if (cost < best_cost) {
      best = splits;
      best_cost = cost;
    }
  }
  const int64_t each = std::max<int64_t>(pieces(rows, best * kDepth) * kDepth, kDepth);
  return {std::max<int64_t>(pieces(rows, each), 1), each, gates * (inputs + hidden + 2)};
}

}  // namespace

Status product_by_rows(FloatRows a, FloatRows b, const float* bias, float* out, int64_t out_stride, int64_t M,
                       int64_t N, int64_t K, cudaStream_t stream) {
  return run_product<TermsOfRows>({{operand_of(a), M, K}, {operand_of(b), N, K}, bias, out, out_stride, N, K, false}, M,
                                  stream);
}

Status product_by_columns(FloatRows a, FloatRows b, float* out, int64_t out_stride, bool add, int64_t M, int64_t N,
                          int64_t K, cudaStream_t stream) {
  return run_product<RowsOfTerms>({{operand_of(a), M, K}, {operand_of(b), N, K}, nullptr, out, out_stride, N, K, add},
                                  M, stream);
}

int64_t weight_gradients_bytes(int64_t rows, int64_t gates, int64_t inputs, int64_t hidden) {
  const GradientPlan plan = plan_gradients(rows, gates, inputs, hidden);
  return plan.splits * plan.part * static_cast<int64_t>(sizeof(float));
}

Status weight_gradients(const WeightGradient (&of)[2], int64_t rows, int64_t gates, float* workspace,
                        cudaStream_t stream) {
  const GradientPlan plan = plan_gradients(rows, gates, of[0].columns, of[1].columns);
  GradientArgs g{};
  PartsArgs parts{workspace, plan.part, static_cast<int32_t>(plan.splits), {}, {}};
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
    g.columns_of[i] = static_cast<int32_t>(pieces(of[i].columns, LargeTile::kColumns));
  }
  const int64_t tile_rows = pieces(gates, LargeTile::kRows);
  g.tiles_of_first = static_cast<int32_t>(tile_rows * g.columns_of[0]);
  g.part = plan.part;
  g.terms_each = plan.terms_each;
  g.terms = rows;
  const dim3 blocks(static_cast<unsigned>(tile_rows * (g.columns_of[0] + g.columns_of[1])),
                    static_cast<unsigned>(plan.splits));
  ISOBIT_RETURN_IF_ERROR(
      launch_kernel("training_gradients", training_gradients, blocks, LargeTile::kThreads, 0, stream, g));
  constexpr int kThreads = 256;
  return launch_kernel("training_add_parts", training_add_parts, dim3(static_cast<unsigned>(pieces(at, kThreads))),
                       kThreads, 0, stream, parts);
}

}  // namespace isobit::cuda
