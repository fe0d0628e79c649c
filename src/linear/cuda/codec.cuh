// SPDX-License-Identifier: Apache-2.0
// From packed codes (image.h) to the left operands of matrix instructions. Codec<bits, kind of rows> is the only code
// that knows a width.
#ifndef ISOBIT_LINEAR_CUDA_CODEC_CUH_
#define ISOBIT_LINEAR_CUDA_CODEC_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "linear/cuda/rows.h"

namespace isobit::cuda {

template <int Bits>
struct PackedCodes {
  static constexpr int kWords = 2 * Bits;   // of a lane in a block
  static constexpr int kFields = 8 / Bits;  // registers of a word
  static constexpr uint32_t kMask = (1u << Bits) - 1;

  uint32_t words[kWords];

  /// Of a tile of 16 rows in shared memory.
  __device__ __forceinline__ void load(const uint8_t* tile, int lane) {
    if constexpr (kWords == 2) {
      const uint2 both = reinterpret_cast<const uint2*>(tile)[lane];
      words[0] = both.x, words[1] = both.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const uint4 four = reinterpret_cast<const uint4*>(tile)[32 * i + lane];
        words[4 * i] = four.x, words[4 * i + 1] = four.y, words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
      }
    }
  }
  /// Four codes of register e, a byte each.
  __device__ __forceinline__ uint32_t bytes(int e) const {
    return words[e / kFields] >> (Bits * (e % kFields)) & kMask * 0x01010101u;
  }
};

/// Bytes 0 and 2, or 1 and 3, of register e as two halves.
template <int Bits>
__device__ __forceinline__ uint32_t float16_pair(const PackedCodes<Bits>& packed, int e, bool odd) {
  const uint32_t codes = odd ? packed.bytes(e) >> 8 : packed.bytes(e);
  if constexpr (Bits == 1) return (codes << 15 & 0x80008000u) ^ 0xbc00bc00u;
  const uint32_t with_base = (codes & 0x00ff00ffu) | 0x64006400u;  // 1024 + w
  const uint32_t base = 0x64006400u + (1u << (Bits - 1)) * 0x00010001u;
  const __half2 pair = __hsub2(reinterpret_cast<const __half2&>(with_base), reinterpret_cast<const __half2&>(base));
  return reinterpret_cast<const uint32_t&>(pair);
}
template <int Bits>
__device__ __forceinline__ uint32_t bfloat16_pair(const PackedCodes<Bits>& packed, int e, bool odd) {
  const uint32_t codes = packed.bytes(e);
  if constexpr (Bits == 1) return ((odd ? codes >> 8 : codes) << 15 & 0x80008000u) ^ 0xbf80bf80u;
  constexpr float kBase = 8388608.0f + static_cast<float>(1 << (Bits - 1));
  const float low = __uint_as_float(__byte_perm(codes, 0x4b000000u, odd ? 0x7651 : 0x7650)) - kBase;
  const float high = __uint_as_float(__byte_perm(codes, 0x4b000000u, odd ? 0x7653 : 0x7652)) - kBase;
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);  // the other halves are 0
}

/// The left operand of instruction i of a block, of what is multiplied: of codes of x the codes w themselves; of floats
/// w - 2^(bits - 1), of 1 bit 2 w - 1, exactly.
template <int Bits, RowsKind Kind>
struct Codec {
  using Operand = uint32_t[4];

  static __device__ __forceinline__ void decode(const PackedCodes<Bits>& packed, int i, Operand& a) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (is_integer(Kind)) {
        a[j] = packed.bytes(4 * i + j);
      } else if constexpr (Kind == RowsKind::kF16) {
        a[j] = float16_pair(packed, 2 * i + j % 2, j >= 2);
      } else {
        a[j] = bfloat16_pair(packed, 2 * i + j % 2, j >= 2);
      }
    }
  }
};

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_CODEC_CUH_
