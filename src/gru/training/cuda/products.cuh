// SPDX-License-Identifier: Apache-2.0
// Tiles of products of floats. A block computes a tile of outputs with fused multiply-adds, 16 terms at a time through
// shared memory, the next 16 on their way meanwhile.
#ifndef ISOBIT_GRU_TRAINING_CUDA_PRODUCTS_CUH_
#define ISOBIT_GRU_TRAINING_CUDA_PRODUCTS_CUH_

#include <algorithm>
#include <cstdint>

#include "core/cuda/lanes.cuh"
#include "core/cuda/ptx.cuh"
#include "gru/training/cuda/early.h"
#include "gru/training/cuda/products.h"

namespace isobit::cuda {

inline constexpr int kDepth = 16;  // terms of a stage

struct Operand {
  const float* data;
  int64_t stride;
  bool vectors;  // rows are multiples of 16 bytes
};

inline Operand operand_of(FloatRows rows) {
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
template <typename TileShape, typename Real = float>
struct Sums {
  Real values[8][TileShape::kWide]{};

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
        for (int j = 0; j < TileShape::kWide; ++j)
          values[i][j] = fused(static_cast<Real>(left[i]), static_cast<Real>(right[j]), values[i][j]);
    }
  }
};

/// The sums of terms [begin, end); `at_stage(a)` sees each stage of the rows' operand.
template <typename TileShape, typename Real, typename A, typename B, typename AtStage>
__device__ __forceinline__ void multiply(const A& a, const B& b, int64_t first_row, int64_t first_column, int64_t begin,
                                         int64_t end, Sums<TileShape, Real>& sums, AtStage at_stage) {
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

/// The gradients from `first` on, `stride` apart.
__device__ __forceinline__ void stop_some(const StoppedGradients& s, int64_t first, int64_t stride) {
  for (int64_t i = first; i < s.rows * s.columns; i += stride)
    if (s.passes[i / s.columns * pass_row(s.columns) + i % s.columns] == kInputClipped) s.gradients[i] = 0.0f;
}

inline int64_t tile_pieces(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }

/// out.column(column) gives what takes the sums of a column: put(out, row, sum). Real: float or double, in which they
/// are added. kLong: put() is many instructions.
template <typename B, typename Real, typename Out, bool kLong = false>
struct ProductArgs {
  static constexpr bool kIsLong = kLong;
  using Sum = Real;
  using Column = typename Out::Column;
  TermsOfRows a;
  B b;
  Out out;
  int64_t first_row, N, K;
};

template <typename TileShape, typename Args>
__global__ void __launch_bounds__(TileShape::kThreads, 2) training_product(const __grid_constant__ Args p) {
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * TileShape::kRows;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * TileShape::kColumns;
  wait_for_grid_before();
  Sums<TileShape, typename Args::Sum> sums;
  multiply<TileShape>(p.a, p.b, first_row, first_column, 0, p.K, sums, [](const auto&) {});
  typename Args::Column columns[TileShape::kWide];
#pragma unroll
  for (int j = 0; j < TileShape::kWide; ++j)
    if (first_column + sums.column(j) < p.N) columns[j] = p.out.column(first_column + sums.column(j));
  const auto put = [&](int i, const auto& sum) {
    const int64_t row = first_row + sums.row(i);
    if (row >= p.a.rows) return;
#pragma unroll
    for (int j = 0; j < TileShape::kWide; ++j)
      if (first_column + sums.column(j) < p.N) columns[j].put(p.out, p.first_row + row, sum[j]);
  };
  if constexpr (Args::kIsLong) {
    // A loop: what runs once waits for its instructions.
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      typename Args::Sum chosen[TileShape::kWide];
#pragma unroll
      for (int j = 0; j < TileShape::kWide; ++j) {
        chosen[j] = sums.values[0][j];
#pragma unroll
        for (int of = 1; of < 8; ++of) chosen[j] = i == of ? sums.values[of][j] : chosen[j];
      }
      put(i, chosen);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) put(i, sums.values[i]);
  }
}

template <typename TileShape, typename Args>
Status launch_product(const Args& args, int64_t M, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(tile_pieces(args.N, TileShape::kColumns)),
                    static_cast<unsigned>(tile_pieces(M, TileShape::kRows)));
  return launch_early("kernel training_product", training_product<TileShape, Args>, blocks, TileShape::kThreads, stream,
                      args);
}

/// So many large tiles fill a device; of fewer outputs, small tiles use more of it.
inline constexpr int64_t kFullDevice = 128;
/// Rows of outputs of one launch: blocks of a column.
inline constexpr int64_t kMostRows = int64_t{60'000} * SmallTile::kRows;

template <typename Args>
Status run_product(const Args& args, int64_t M, cudaStream_t stream) {
  for (int64_t row = 0; row < M; row += kMostRows) {
    Args part = args;
    part.a.from.data += row * args.a.from.stride;
    part.a.rows = std::min(M - row, kMostRows);
    part.first_row = row;
    // A thread has no registers for more sums of double.
    const int64_t large = tile_pieces(part.a.rows, LargeTile::kRows) * tile_pieces(args.N, LargeTile::kColumns);
    if constexpr (sizeof(typename Args::Sum) == sizeof(float)) {
      if (large >= kFullDevice) {
        ISOBIT_RETURN_IF_ERROR(launch_product<LargeTile>(part, part.a.rows, stream));
        continue;
      }
    }
    ISOBIT_RETURN_IF_ERROR(launch_product<SmallTile>(part, part.a.rows, stream));
  }
  return {};
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_TRAINING_CUDA_PRODUCTS_CUH_
