// SPDX-License-Identifier: Apache-2.0
#include "conv/cuda/tile.h"

#include "conv/cuda/device.cuh"
#include "conv/cuda/tile.cuh"
#include "core/cuda/grid_launch.h"
#include "core/cuda/launch.h"
#include "linear/cuda/store.cuh"

namespace isobit::cuda {
namespace {

constexpr int kThreads = 256;

/// Scaled sums of blocks, of a warp's tiles. Of codes section 11, in its chunks.
template <bool kCodes, int kRowTiles, int kColumnTiles>
struct ScaledSums {
  using Sums = float[kRowTiles][kColumnTiles][4];
  Sums chunk{}, total{};
  int blocks = 0;

  /// d, which become 0 again. Scales of 16 rows a tile, of codes: of this thread's two, 8 apart; of 8 columns: of its
  /// two.
  __device__ __forceinline__ void promote(uint32_t (&d)[kRowTiles][kColumnTiles][4], const float* rows,
                                          const float* columns) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const float2 of_columns = *reinterpret_cast<const float2*>(columns + n * 8);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float scale = i % 2 == 0 ? of_columns.x : of_columns.y, sum = __uint_as_float(d[m][n][i]);
          if constexpr (kCodes) {
            scale = __fmul_rn(scale, rows[m * 16 + i / 2 * 8]);
            sum = __int2float_rn(static_cast<int32_t>(d[m][n][i]));
          }
          chunk[m][n][i] = __fmaf_rn(sum, scale, chunk[m][n][i]);
          d[m][n][i] = 0;
        }
      }
    }
    if (kCodes && ++blocks % kChunkGroups == 0) end_chunk();
  }
  __device__ __forceinline__ void end_chunk() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[m][n][i] = __fadd_rn(total[m][n][i], chunk[m][n][i]);
          chunk[m][n][i] = 0.0f;
        }
  }
  /// All, as bits.
  __device__ __forceinline__ void finish(uint32_t (&d)[kRowTiles][kColumnTiles][4]) {
    if (kCodes && blocks % kChunkGroups != 0) end_chunk();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) d[m][n][i] = __float_as_uint(kCodes ? total[m][n][i] : chunk[m][n][i]);
  }
};

constexpr int stage_bytes(int rows, int columns, int depth, TileType type) {
  return (rows + columns) * (depth + (is_scaled(type) ? static_cast<int>(sizeof(float)) : 0));
}

/// Four neighbours of a row of y, or so many as are left.
__device__ __forceinline__ void store_four(const ProductArgs& a, int64_t m, int64_t n, int left, const float (&sums)[4],
                                           const float2 (&channels)[4]) {
  if (left < 4 || !a.y_in_fours || n % 4 != 0) {
    for (int c = 0; c < min(left, 4); ++c) store_result(a, m, n + c, sums[c], channels[c].y);
    return;
  }
  float y[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) y[c] = clamped(a, __fadd_rn(sums[c], channels[c].y));
  const int64_t at = m * a.y_stride + n;
  if (a.y_type == 0) {
    *reinterpret_cast<uint4*>(static_cast<uint32_t*>(a.y) + at) =
        uint4{float32_bits(y[0]), float32_bits(y[1]), float32_bits(y[2]), float32_bits(y[3])};
  } else {
    const bool half = a.y_type == 1;
    const auto pair = [&](float low, float high) {
      return half ? with_nan(float16_pair(low, high), kFloat16NaN) : with_nan(bfloat16_pair(low, high), kBFloat16NaN);
    };
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(a.y) + at) = uint2{pair(y[0], y[1]), pair(y[2], y[3])};
  }
}

/// kRows outputs by kColumns channels, kDepth bytes of x at a time, kStages of them under way; of a warp kWarpRows by
/// kWarpColumns.
template <int kRows, int kColumns, int kDepth, int kStages, int kWarpRows, int kWarpColumns, TileType kType>
__global__ void __launch_bounds__(kThreads, 2) tile(const __grid_constant__ ConvTile a) {
  constexpr int kPieces = kDepth / kPieceCodes;
  constexpr int kLoadRows = kThreads / kPieces;  // a thread copies the same piece of every so many rows
  constexpr int kXLoads = kRows / kLoadRows, kWLoads = kColumns / kLoadRows;
  constexpr bool kScaled = is_scaled(kType), kScaledCodes = kType == TileType::kScaledS8;
  constexpr int kStageBytes = stage_bytes(kRows, kColumns, kDepth, kType);
  constexpr int kScalesAt = (kRows + kColumns) * kDepth;  // of rows, then of columns
  constexpr int kRowTiles = kWarpRows / 16, kColumnTiles = kWarpColumns / 8;
  static_assert(kRows / kWarpRows * (kColumns / kWarpColumns) == kThreads / 32 && kColumnTiles % 2 == 0);
  static_assert(kXLoads >= 1 && kWLoads >= 1);
  extern __shared__ __align__(128) uint8_t memory[];
  const ConvSource& s = a.source;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int column_tiles = (a.outputs + kColumns - 1) / kColumns;
  // Neighbouring blocks have the same rows of x.
  const int64_t first_row = int64_t{blockIdx.x} / column_tiles * kRows;
  const int first_column = static_cast<int>(blockIdx.x % column_tiles) * kColumns;
  const int group = static_cast<int>(blockIdx.y);

  // What this thread copies.
  const int piece = thread % kPieces, load_row = thread / kPieces;
  const auto* const x = static_cast<const uint8_t*>(s.x) + group * s.group_channels;
  uint32_t image[kXLoads];
  int32_t i_first[kXLoads], j_first[kXLoads];
#pragma unroll
  for (int l = 0; l < kXLoads; ++l) {
    const int64_t m = first_row + load_row + l * kLoadRows;
    const Place at = m < s.m ? place_of(s, s.first + m) : Place{0, 0, 0};
    image[l] = static_cast<uint32_t>(at.image * s.rows.pixels * s.columns.pixels);
    i_first[l] = s.transposed ? at.p + s.rows.before : at.p * s.rows.stride - s.rows.before;
    j_first[l] = s.transposed ? at.q + s.columns.before : at.q * s.columns.stride - s.columns.before;
    if (m >= s.m) i_first[l] = INT32_MIN / 2;  // outside
  }
  const int8_t* const w =
      a.weights + (int64_t{group} * a.padded_outputs + first_column + load_row) * a.padded_depth + piece * kPieceCodes;
  int32_t channel = piece * kPieceCodes, r = 0, t = 0, k = channel;
  const auto settle = [&] {
    while (channel >= s.group_channels) {
      channel -= s.group_channels;
      if (++t == s.columns.kernel) {
        t = 0;
        ++r;
      }
    }
  };
  settle();
  const auto inside = [](const DeviceAxis& axis, bool transposed, int32_t first, int32_t tap) {
    if (!transposed) return first + tap * axis.dilation;
    const int32_t at = first - tap * axis.dilation;
    return at < 0 || at % axis.stride != 0 ? -1 : at / axis.stride;
  };
  const uint32_t zeros = (static_cast<uint32_t>(s.zero) & 0xff) * 0x01010101u;
  const auto load = [&](int stage, int step) {
    const uint32_t to = shared_address(memory + stage * kStageBytes);
#pragma unroll
    for (int l = 0; l < kXLoads; ++l) {
      const int32_t i = inside(s.rows, s.transposed, i_first[l], r);
      const int32_t j = inside(s.columns, s.transposed, j_first[l], t);
      const bool real = k < a.depth && static_cast<uint32_t>(i) < static_cast<uint32_t>(s.rows.pixels) &&
                        static_cast<uint32_t>(j) < static_cast<uint32_t>(s.columns.pixels);
      const uint32_t at = piece_at<kDepth>(load_row + l * kLoadRows, piece);
      const uint32_t pixel = image[l] + static_cast<uint32_t>(i * s.columns.pixels + j);
      if constexpr (kScaledCodes) {
        const int row = load_row + l * kLoadRows;
        if (piece == 0 && real) {
          const int32_t block = group * s.group_channels / a.scales.block_bytes + channel / a.scales.block_bytes;
          copy_word(to + kScalesAt + row * 4, a.scales.x + (int64_t{pixel} * a.scales.blocks + block));
        } else if (piece == 0) {
          *reinterpret_cast<float*>(memory + stage * kStageBytes + kScalesAt + row * 4) = 0.0f;
        }
      }
      if (real) {
        copy_piece(to + at, x + (pixel * static_cast<uint32_t>(s.x_stride) + static_cast<uint32_t>(channel)));
      } else {  // a copy of zeros from one place would wait for all others
        *reinterpret_cast<uint4*>(memory + stage * kStageBytes + at) = uint4{zeros, zeros, zeros, zeros};
      }
    }
#pragma unroll
    for (int l = 0; l < kWLoads; ++l)
      copy_piece(to + kRows * kDepth + piece_at<kDepth>(load_row + l * kLoadRows, piece),
                 w + int64_t{l} * kLoadRows * a.padded_depth + step * kDepth);
    if constexpr (kScaled) {
      if (thread < kColumns / 4) {
        const int64_t groups = a.depth / a.scales.block_bytes;
        copy_piece(to + kScalesAt + kRows * 4 + thread * 16,
                   a.scales.weights + (group * groups + step * kDepth / a.scales.block_bytes) * a.padded_outputs +
                       first_column + thread * 4);
      }
    }
    k += kDepth;
    channel += kDepth;
    settle();
  };

  const int warp_row = warp % (kRows / kWarpRows) * kWarpRows, warp_column = warp / (kRows / kWarpRows) * kWarpColumns;
  uint32_t sums[kRowTiles][kColumnTiles][4]{};
  ScaledSums<kScaledCodes, kRowTiles, kColumnTiles> scaled;  // of kScaled only
  const int block_steps = kScaled ? a.scales.block_bytes / kDepth : 0;
  int steps_left = block_steps;
  const int steps = (a.depth + kDepth - 1) / kDepth;
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < steps) load(stage, stage);
    end_copies();
  }
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    const int next = step + kStages - 1;
    if (next < steps) load(next % kStages, next);
    end_copies();
    const uint32_t from = shared_address(memory + step % kStages * kStageBytes);
#pragma unroll
    for (int part = 0; part < kDepth / 32; ++part) {
      uint32_t rows[kRowTiles][4], columns[kColumnTiles / 2][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
        load_matrices(rows[m], from + piece_at<kDepth>(warp_row + m * 16 + lane % 16, part * 2 + lane / 16));
#pragma unroll
      for (int n = 0; n < kColumnTiles / 2; ++n)
        load_matrices(columns[n],
                      from + kRows * kDepth +
                          piece_at<kDepth>(warp_column + n * 16 + lane % 8 + lane / 16 * 8, part * 2 + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n)
          multiply<kType>(sums[m][n], rows[m], columns[n / 2][n % 2 * 2], columns[n / 2][n % 2 * 2 + 1]);
    }
    if constexpr (kScaled) {
      if (--steps_left == 0) {
        steps_left = block_steps;
        const auto* const scales = reinterpret_cast<const float*>(memory + step % kStages * kStageBytes + kScalesAt);
        scaled.promote(sums, scales + warp_row + lane / 4, scales + kRows + warp_column + lane % 4 * 2);
      }
    }
  }
  if constexpr (kScaled) scaled.finish(sums);
  wait_for_copies<0>();
  __syncthreads();

  // Through shared memory: a thread has the same four channels of many outputs then.
  constexpr int kStride = sum_stride(kColumns);
  auto* const all = reinterpret_cast<uint32_t*>(memory);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<uint2*>(all + (warp_row + m * 16 + half * 8 + lane / 4) * kStride + warp_column + n * 8 +
                                  lane % 4 * 2) = uint2{sums[m][n][half * 2], sums[m][n][half * 2 + 1]};
  __syncthreads();
  constexpr int kFours = kColumns / 4, kRowStep = kThreads / kFours;
  const int column = thread % kFours * 4, left = a.outputs - first_column - column;
  if (left <= 0) return;
  const int32_t of_all = group * a.outputs + first_column + column;
  if constexpr (gives_floats(kType)) {
    float2 channels[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) channels[c] = a.float_channels[of_all + min(c, left - 1)];
    for (int row = thread / kFours; row < kRows && first_row + row < s.m; row += kRowStep) {
      const uint4 four = *reinterpret_cast<const uint4*>(all + row * kStride + column);
      const uint32_t values[4] = {four.x, four.y, four.z, four.w};
      float y[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) y[c] = __fmul_rn(__uint_as_float(values[c]), channels[c].x);
      store_four(a.result, s.first + first_row + row, of_all, left, y, channels);
    }
    return;
  }
  const StaticEpilogue& e = a.epilogue;
  StaticChannel channels[4];
  bool quick = true;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    channels[c] = e.channels[of_all + min(c, left - 1)];
    quick = quick && is_quick(e, channels[c], a.residual);
  }
  for (int row = thread / kFours; row < kRows && first_row + row < s.m; row += kRowStep) {
    const uint4 four = *reinterpret_cast<const uint4*>(all + row * kStride + column);
    const int32_t values[4] = {static_cast<int32_t>(four.x), static_cast<int32_t>(four.y), static_cast<int32_t>(four.z),
                               static_cast<int32_t>(four.w)};
    const int64_t at = (s.first + first_row + row) * a.y_stride + of_all;
    if (quick) {
      uint32_t codes = 0;
#pragma unroll
      for (int c = 0; c < 4; ++c)
        codes |= (static_cast<uint32_t>(quick_sum(e, channels[c], values[c])) & 0xff) << (8 * c);
      auto* const to = static_cast<uint8_t*>(a.y) + at;
      if (left >= 4 && reinterpret_cast<uintptr_t>(to) % 4 == 0) {
        *reinterpret_cast<uint32_t*>(to) = codes;
      } else {
        for (int c = 0; c < min(left, 4); ++c) to[c] = static_cast<uint8_t>(codes >> (8 * c));
      }
      continue;
    }
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (c < left) store_code(a.y, e.y_bytes, at + c, finished_sum(e, channels[c], a.residual, values[c], at + c));
  }
}

// ---- Rows of images whose channels are no multiple of a piece

__global__ void __launch_bounds__(kThreads) copy_codes(const CodeRows a) {
  const ConvSource& s = a.source;
  const auto* const x = static_cast<const uint8_t*>(s.x);
  const int32_t pieces = a.depth / kPieceCodes;
  const int32_t end = s.rows.kernel * s.columns.kernel * s.group_channels;
  const auto zero = static_cast<uint8_t>(s.zero);
  const int64_t count = s.m * pieces, all = int64_t{gridDim.x} * kThreads;
  for (int64_t index = blockIdx.x * int64_t{kThreads} + threadIdx.x; index < count; index += all) {
    const int64_t m = quotient(index, pieces);
    const Place at = place_of(s, s.first + m);
    const int64_t image = at.image * s.rows.pixels * s.columns.pixels;
    int32_t k = static_cast<int32_t>(index - m * pieces) * kPieceCodes;
    int32_t tap = k / s.group_channels, c = k - tap * s.group_channels, last = -1;
    const uint8_t* from = nullptr;
#pragma unroll 1
    for (int word = 0; word < kPieceCodes / 4; ++word) {
      uint32_t codes = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i, ++k) {
        if (tap != last) {
          last = tap;
          const int32_t r = tap / s.columns.kernel;
          const int32_t row = pixel_of(s.rows, s.transposed, at.p, r);
          const int32_t column = pixel_of(s.columns, s.transposed, at.q, tap - r * s.columns.kernel);
          from = k < end && row >= 0 && column >= 0
                     ? x + (image + int64_t{row} * s.columns.pixels + column) * s.x_stride
                     : nullptr;
        }
        codes |= static_cast<uint32_t>(from == nullptr || k >= end ? zero : from[c]) << (8 * i);
        if (++c == s.group_channels) {
          c = 0;
          ++tap;
        }
      }
      *reinterpret_cast<uint32_t*>(a.rows + index * kPieceCodes + word * 4) = codes;
    }
  }
}

// ---- Depthwise

constexpr int kTogether = 4;  // outputs of a thread side by side, and channels

template <bool kUnsigned>
__device__ __forceinline__ int32_t byte_of(uint32_t word, int i) {
  const uint32_t byte = __byte_perm(word, 0, 0x4440 + i);
  return kUnsigned ? static_cast<int32_t>(byte) : static_cast<int32_t>(static_cast<int8_t>(byte));
}

/// Columns in steps of the dilation.
template <int kKernel, int kStride, bool kUnsigned>
__global__ void __launch_bounds__(kThreads) depthwise(const __grid_constant__ ConvTile a) {
  constexpr int kPixels = (kTogether - 1) * kStride + kKernel;
  const ConvSource& s = a.source;
  const int32_t words = s.channels / kTogether;
  const DepthwiseStrips strips = DepthwiseStrips::of(s.columns, kStride, kTogether);
  const int64_t rows = s.m / s.columns.outputs;  // of all images
  const int64_t count = rows * strips.count * words, all = int64_t{gridDim.x} * kThreads;
  const uint32_t zeros = (static_cast<uint32_t>(s.zero) & 0xff) * 0x01010101u;
  for (int64_t index = blockIdx.x * int64_t{kThreads} + threadIdx.x; index < count; index += all) {
    const int64_t strip = quotient(index, words);
    const auto channel = static_cast<int32_t>(index - strip * words) * kTogether;
    const int64_t row = quotient(strip, strips.count);
    const int32_t q = strips.first(static_cast<int32_t>(strip - row * strips.count));
    const int64_t image = quotient(row, s.rows.outputs);
    const auto p = static_cast<int32_t>(row - image * s.rows.outputs);
    const auto* const x =
        static_cast<const uint8_t*>(s.x) + image * s.rows.pixels * s.columns.pixels * s.x_stride + channel;
    const int32_t i_first = p * s.rows.stride - s.rows.before, j_first = q * s.columns.stride - s.columns.before;
    int32_t sums[kTogether][kTogether]{};
#pragma unroll
    for (int r = 0; r < kKernel; ++r) {
      const int32_t i = i_first + r * s.rows.dilation;
      const bool row_inside = i >= 0 && i < s.rows.pixels;
      uint32_t pixels[kPixels];
#pragma unroll
      for (int j = 0; j < kPixels; ++j) {
        const int32_t at = j_first + j * s.columns.dilation;
        pixels[j] = row_inside && at >= 0 && at < s.columns.pixels
                        ? *reinterpret_cast<const uint32_t*>(x + (int64_t{i} * s.columns.pixels + at) * s.x_stride)
                        : zeros;
      }
#pragma unroll
      for (int t = 0; t < kKernel; ++t) {
        const uint32_t weights =
            *reinterpret_cast<const uint32_t*>(a.weights + int64_t{r * kKernel + t} * a.padded_outputs + channel);
#pragma unroll
        for (int c = 0; c < kTogether; ++c) {
          const int32_t w = byte_of<false>(weights, c);
#pragma unroll
          for (int o = 0; o < kTogether; ++o) sums[o][c] += byte_of<kUnsigned>(pixels[o * kStride + t], c) * w;
        }
      }
    }
    const StaticEpilogue& e = a.epilogue;
    StaticChannel channels[kTogether];
    bool quick = true;
#pragma unroll
    for (int c = 0; c < kTogether; ++c) {
      channels[c] = e.channels[channel + c];
      quick = quick && is_quick(e, channels[c], a.residual);
    }
#pragma unroll
    for (int o = 0; o < kTogether; ++o) {
      const int32_t output = q + o * strips.apart;
      if (output >= s.columns.outputs) continue;
      const int64_t at = (row * s.columns.outputs + output) * a.y_stride + channel;
      auto* const to = static_cast<uint8_t*>(a.y) + at;
      if (quick && reinterpret_cast<uintptr_t>(to) % kTogether == 0) {
        uint32_t codes = 0;
#pragma unroll
        for (int c = 0; c < kTogether; ++c)
          codes |= (static_cast<uint32_t>(quick_sum(e, channels[c], sums[o][c])) & 0xff) << (8 * c);
        *reinterpret_cast<uint32_t*>(to) = codes;
        continue;
      }
#pragma unroll
      for (int c = 0; c < kTogether; ++c)
        store_code(a.y, e.y_bytes, at + c, finished_sum(e, channels[c], a.residual, sums[o][c], at + c));
    }
  }
}

struct TileKernel {
  ConvKernel size;
  int depth;                              // bytes of x at a time
  void (*kernels[kTileTypes])(ConvTile);  // by TileType; null: not there

  [[nodiscard]] const ConvTileSize& tile() const { return kConvTileSizes[static_cast<size_t>(size)]; }
  [[nodiscard]] int64_t shared(TileType type) const {
    const auto& [rows, columns, whole_depth, stages] = tile();
    return std::max<int64_t>(stages * stage_bytes(rows, columns, depth, type),
                             rows * sum_stride(columns) * static_cast<int64_t>(sizeof(int32_t)));
  }
  [[nodiscard]] double us(const ConvWork& work) const { return estimated_microseconds(size, work, depth); }
};
template <ConvKernel kSize, int kDepth, int kWarpRows, int kWarpColumns, TileType... kTypes>
constexpr TileKernel tile_kernel() {
  constexpr ConvTileSize kOf = kConvTileSizes[static_cast<size_t>(kSize)];
  TileKernel kernel{kSize, kDepth, {}};
  ((kernel.kernels[static_cast<size_t>(kTypes)] =
        tile<kOf.rows, kOf.columns, kDepth, kOf.stages, kWarpRows, kWarpColumns, kTypes>),
   ...);
  return kernel;
}
template <ConvKernel kSize, int kWarpRows, int kWarpColumns, TileType... kMore>
constexpr TileKernel plain_tile() {
  return tile_kernel<kSize, kConvTileSizes[static_cast<size_t>(kSize)].depth, kWarpRows, kWarpColumns, TileType::kS8,
                     TileType::kU8, TileType::kF16, TileType::kBF16, kMore...>();
}
const TileKernel kTiles[] = {
    plain_tile<ConvKernel::kTile128x128, 64, 32>(),
    plain_tile<ConvKernel::kTile128x64, 32, 32, TileType::kScaledF16, TileType::kScaledBF16>(),
    plain_tile<ConvKernel::kTile64x64, 32, 16, TileType::kScaledS8, TileType::kScaledF16, TileType::kScaledBF16>(),
    plain_tile<ConvKernel::kTile64x32, 16, 16, TileType::kScaledS8, TileType::kScaledF16, TileType::kScaledBF16>(),
    tile_kernel<ConvKernel::kTile64x64, kScaledDepth, 32, 16, TileType::kScaledS8, TileType::kScaledF16,
                TileType::kScaledBF16>()};

}  // namespace

Status run_tile(const ConvTile& conv, TileType type, int processors, cudaStream_t stream,
                std::optional<ConvKernel> size) {
  const auto number = static_cast<size_t>(type);
  const ConvWork work{.rows = conv.source.m,
                      .groups = conv.groups,
                      .outputs = conv.outputs,
                      .depth = conv.depth,
                      .copied = false,
                      .processors = processors};
  const TileKernel* best = nullptr;
  for (const TileKernel& kernel : kTiles) {
    if (kernel.kernels[number] == nullptr || (size && kernel.size != *size)) continue;
    if (is_scaled(type) && conv.scales.block_bytes % kernel.depth != 0) continue;
    if (best == nullptr || kernel.us(work) < best->us(work)) best = &kernel;
  }
  const auto count = [](int64_t values, int64_t of_tile) { return (values + of_tile - 1) / of_tile; };
  const int64_t tiles = count(work.rows, best->tile().rows) * count(work.outputs, best->tile().columns);
  const GridLaunch grid{.blocks = dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(conv.groups)),
                        .threads = kThreads,
                        .shared = best->shared(type)};
  const auto kernel = best->kernels[number];
  ISOBIT_RETURN_IF_ERROR(allow_shared(kernel, grid.shared, "tile"));
  return grid.run("tile", kernel, stream, conv);
}

Status copy_rows(const CodeRows& rows, cudaStream_t stream) {
  return launch_kernel("copy_codes", copy_codes, dim3(blocks_for(rows.source.m * (rows.depth / kPieceCodes), kThreads)),
                       kThreads, 0, stream, rows);
}

bool has_depthwise(const ConvSource& s) {
  return s.group_channels == 1 && s.channels % kTogether == 0 && s.transposed == 0 &&
         s.rows.kernel == s.columns.kernel && (s.rows.kernel == 3 || s.rows.kernel == 5) &&
         s.columns.dilation <= kMostDepthwiseDilation && depthwise_step(s.columns.stride, s.columns.dilation) <= 2;
}

Status run_depthwise(const ConvTile& conv, Dtype x_dtype, cudaStream_t stream) {
  const ConvSource& s = conv.source;
  const int64_t step = depthwise_step(s.columns.stride, s.columns.dilation);
  const int64_t strips = DepthwiseStrips::of(s.columns, static_cast<int32_t>(step), kTogether).count;
  const dim3 blocks(blocks_for(s.m / s.columns.outputs * strips * (s.channels / kTogether), kThreads));
  const bool is_unsigned = x_dtype == Dtype::kU8;
  const auto launch = [&](auto of_signed, auto of_unsigned) {
    return launch_kernel("depthwise", is_unsigned ? of_unsigned : of_signed, blocks, kThreads, 0, stream, conv);
  };
  if (s.rows.kernel == 3)
    return step == 1 ? launch(depthwise<3, 1, false>, depthwise<3, 1, true>)
                     : launch(depthwise<3, 2, false>, depthwise<3, 2, true>);
  return step == 1 ? launch(depthwise<5, 1, false>, depthwise<5, 1, true>)
                   : launch(depthwise<5, 2, false>, depthwise<5, 2, true>);
}

}  // namespace isobit::cuda
