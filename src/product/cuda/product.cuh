// SPDX-License-Identifier: Apache-2.0
// The integer product of a block of activation rows with a weight matrix, followed by the rescale of each result:
// W x of many steps at once. mma.m16n8k32, tiles of 128 x 96 x 64 bytes, three of them in flight (cp.async).
#ifndef ISOBIT_PRODUCT_CUDA_PRODUCT_CUH_
#define ISOBIT_PRODUCT_CUDA_PRODUCT_CUH_

#include <cstdint>
#include <type_traits>

#include "core/cuda/lanes.cuh"
#include "core/cuda/ptx.cuh"
#include "product/cuda/mma.cuh"
#include "product/cuda/product.h"

namespace isobit::cuda {

template <typename Ratio>
struct ProductArgs {
  /// Row r: Planes x k bytes from x + r / batch * step + r % batch * sequence on, 16-byte aligned; of k only whole
  /// pieces of 16 bytes are read. One plane is signed bytes; two are those of unsigned codes, high bytes first.
  const uint8_t* x;
  int64_t batch, step, sequence;
  int64_t k;
  const int8_t* w;             // [n_padded][k_padded]
  int64_t m, n;                // n a multiple of 48
  int64_t k_padded;            // a multiple of 64
  const SumOf<Ratio>* start;   // [n_padded]
  const Ratio* ratio;          // [n_padded]
  bool by_shifts;              // rows of Fixed
  LimitOf<Ratio> low, high;    // of the result minus zero point
  const LaneOf<Ratio>* again;  // [n_padded]: a second ratio, by which the clamped result is rescaled
  uint16_t* out;               // [m][n]: that + 32768
};

inline constexpr int kProductRows = 128, kProductColumns = 96, kProductDepth = 64, kProductStages = 4,
                     kProductThreads = 256;
inline constexpr int kProductStageBytes = (kProductRows + kProductColumns) * kProductDepth;

__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool valid) {
  const uint32_t bytes = valid ? 16 : 0;  // the rest is filled with zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void load_fragments(uint32_t (&r)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from));
}
/// Results, in the low 16 bits: the sums rescaled, clamped, rescaled again, plus 32768.
template <typename Args, typename Ratio, int N>
__device__ __forceinline__ void product_codes(const Args& a, const SumOf<Ratio> (&sum)[N], const Ratio (&ratio)[N],
                                              const LaneOf<Ratio> (&again)[N], uint32_t (&code)[N]) {
  LaneOf<Ratio> value[N];
  rescale_clamped(sum, ratio, a.by_shifts, a.low, a.high, value);
#pragma unroll
  for (int i = 0; i < N; ++i)
    code[i] = low_bits(fused(value[i], again[i], kMagic<LaneOf<Ratio>> + LaneOf<Ratio>{32768}));
}
/// Two of them, the first below.
__device__ __forceinline__ uint32_t both_codes(uint32_t first, uint32_t second) {
  return __byte_perm(first, second, 0x5410);
}
/// 16-byte piece `piece` (0..3) of a row of a tile, so that ldmatrix meets no bank twice.
__device__ __forceinline__ uint32_t tile_offset(int row, int piece) {
  return static_cast<uint32_t>(row * kProductDepth + ((piece ^ ((row >> 1) & 3)) << 4));
}

/// Planes: bytes of a code of x.
template <int Planes, typename Ratio>
__global__ void __launch_bounds__(kProductThreads) product_mma(const __grid_constant__ ProductArgs<Ratio> a) {
  extern __shared__ __align__(128) uint8_t shared[];
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int warp_row = warp % 4 * 32;
  const int warp_column = warp / 4 * 48;
  const int64_t first_row = int64_t{blockIdx.y} * kProductRows;
  const int64_t first_column = int64_t{blockIdx.x} * kProductColumns;
  const int plane_tiles = static_cast<int>(a.k_padded / kProductDepth);
  const int depth_tiles = Planes * plane_tiles;

  const auto stage_of = [&](int tile) {
    return base + static_cast<uint32_t>(tile % kProductStages * kProductStageBytes);
  };
  const uint8_t* rows[2];
  bool is_row[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t from = first_row + thread / 4 + i * 64;
    is_row[i] = from < a.m;
    const auto row = static_cast<uint32_t>(is_row[i] ? from : 0), batch = static_cast<uint32_t>(a.batch);
    rows[i] = a.x + row / batch * a.step + row % batch * a.sequence + thread % 4 * 16;
  }
  const int64_t depth = Planes * a.k - thread % 4 * 16;
  const auto load_x = [&](int tile) {
    const uint32_t stage = stage_of(tile);
    const int64_t k = int64_t{tile} * kProductDepth;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      copy_async(stage + tile_offset(thread / 4 + i * 64, thread % 4), rows[i] + (k < depth ? k : 0),
                 is_row[i] && k < depth);
  };
  const auto load_w = [&](int tile) {
    const uint32_t stage = stage_of(tile);
    const int weight_tile = tile < plane_tiles ? tile : tile - plane_tiles;
    for (int i = thread; i < kProductColumns * 4; i += kProductThreads)
      copy_async(stage + kProductRows * kProductDepth + tile_offset(i / 4, i % 4),
                 a.w + (first_column + i / 4) * a.k_padded + weight_tile * kProductDepth + i % 4 * 16, true);
  };

  static_assert(Planes == 1 || !std::is_same_v<Ratio, float>);
  int32_t acc[2][6][4] = {};
  int32_t high[Planes == 2 ? 48 : 1];
  // W is constant; x comes from the grid before, which comes after whoever reads `out`.
  let_next_grid_start();
  for (int tile = 0; tile < kProductStages - 1 && tile < depth_tiles; ++tile) load_w(tile);
  wait_for_grid_before();
  for (int tile = 0; tile < kProductStages - 1; ++tile) {
    if (tile < depth_tiles) load_x(tile);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  for (int tile = 0; tile < depth_tiles; ++tile) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kProductStages - 2) : "memory");
    __syncthreads();
    if (const int ahead = tile + kProductStages - 1; ahead < depth_tiles) {
      load_x(ahead);
      load_w(ahead);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    const uint32_t stage = stage_of(tile);
    const uint32_t weights = stage + kProductRows * kProductDepth;
    if (Planes == 2 && tile == plane_tiles)  // the high bytes are done
#pragma unroll
      for (int i = 0; i < 48; ++i) {
        high[i] = acc[i / 24][i / 4 % 6][i % 4];
        acc[i / 24][i / 4 % 6][i % 4] = 0;
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t x[2][4], w[3][4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        load_fragments(x[i], stage + tile_offset(warp_row + i * 16 + lane % 16, half * 2 + lane / 16));
#pragma unroll
      for (int i = 0; i < 3; ++i)
        load_fragments(w[i],
                       weights + tile_offset(warp_column + i * 16 + lane % 8 + lane / 16 * 8, half * 2 + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 6; ++j) {
          const uint32_t w0 = w[j / 2][j % 2 * 2], w1 = w[j / 2][j % 2 * 2 + 1];
          Planes == 1 ? mma_s8s8(acc[i][j], x[i], w0, w1) : mma_u8s8(acc[i][j], x[i], w0, w1);
        }
    }
  }
  // Through shared memory, so that rows are written in pieces of 16 bytes.
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  constexpr int kPitch = kProductColumns + 8;  // codes
  auto* const codes = reinterpret_cast<uint16_t*>(shared);
#pragma unroll
  for (int j = 0; j < 6; ++j) {
    const int column = warp_column + j * 8 + lane % 4 * 2;
    SumOf<Ratio> start[2];
    Ratio ratio[2];
    LaneOf<Ratio> again[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      start[c] = a.start[first_column + column + c];
      ratio[c] = a.ratio[first_column + column + c];
      again[c] = a.again[first_column + column + c];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        SumOf<Ratio> sum[2];
        uint32_t code[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          int32_t planes[Planes];
          planes[Planes - 1] = acc[i][j][r * 2 + c];
          if constexpr (Planes == 2) planes[0] = high[i * 24 + j * 4 + r * 2 + c];
          sum[c] = complete_sum<Ratio>(planes, start[c]);
        }
        product_codes(a, sum, ratio, again, code);
        *reinterpret_cast<uint32_t*>(codes + (warp_row + i * 16 + lane / 4 + r * 8) * kPitch + column) =
            both_codes(code[0], code[1]);
      }
  }
  __syncthreads();
  for (int i = thread; i < kProductRows * (kProductColumns / 8); i += kProductThreads) {
    const int row = i / (kProductColumns / 8);
    const int column = i % (kProductColumns / 8) * 8;
    if (first_row + row < a.m && first_column + column < a.n)
      *reinterpret_cast<uint4*>(a.out + (first_row + row) * a.n + first_column + column) =
          *reinterpret_cast<const uint4*>(codes + row * kPitch + column);
  }
}

}  // namespace isobit::cuda

#endif  // ISOBIT_PRODUCT_CUDA_PRODUCT_CUH_
