// SPDX-License-Identifier: Apache-2.0
// What tiles of convolutions are made of: copies of 16 bytes to shared memory, and matrix instructions on them.
#ifndef ISOBIT_CONV_CUDA_TILE_CUH_
#define ISOBIT_CONV_CUDA_TILE_CUH_

#include <cstdint>

#include "conv/cuda/tile.h"

namespace isobit::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void copy_piece(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_word(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t (&registers)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(from)
               : "memory");
}
/// A row by column tile of 16 by 8; 32 bytes of each. Sums of floats are floats.
template <TileType kType>
__device__ __forceinline__ void multiply(uint32_t (&d)[4], const uint32_t (&x)[4], uint32_t w0, uint32_t w1) {
#define ISOBIT_MULTIPLY(SHAPE)                                                                              \
  asm volatile("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                             \
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(w0), "r"(w1))
  if constexpr (kType == TileType::kU8) {
    ISOBIT_MULTIPLY("m16n8k32.row.col.s32.u8.s8.s32");
  } else if constexpr (kType == TileType::kS8 || kType == TileType::kScaledS8) {
    ISOBIT_MULTIPLY("m16n8k32.row.col.s32.s8.s8.s32");
  } else if constexpr (kType == TileType::kF16 || kType == TileType::kScaledF16) {
    ISOBIT_MULTIPLY("m16n8k16.row.col.f32.f16.f16.f32");
  } else {
    ISOBIT_MULTIPLY("m16n8k16.row.col.f32.bf16.bf16.f32");
  }
#undef ISOBIT_MULTIPLY
}

/// Pieces of 16 codes in shared memory, kDepth of a row: 8 rows of one column lie in different banks.
template <int kDepth>
__device__ __forceinline__ uint32_t piece_at(int row, int piece) {
  static_assert(kDepth == 64 || kDepth == 128);
  const int turned = kDepth == 128 ? piece ^ (row & 7) : piece ^ ((row >> 1) & 3);
  return static_cast<uint32_t>(row * kDepth + turned * kPieceCodes);
}

/// Sums of a row in shared memory: neighbouring rows begin in other banks.
constexpr int sum_stride(int columns) { return columns + 8; }

}  // namespace isobit::cuda

#endif  // ISOBIT_CONV_CUDA_TILE_CUH_
