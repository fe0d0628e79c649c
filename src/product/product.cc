// SPDX-License-Identifier: Apache-2.0
#include "product/product.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace isobit {
namespace {

/// Digits of w in base 256, each in [-128, 127]: w = sum digit[j] * 256^j. A third one is needed above 32639 only.
struct Digits {
  int8_t digit[3];
};

Digits split(int32_t w) {
  Digits digits;
  for (int8_t& digit : digits.digit) {
    const int32_t low = ((w + 128) & 255) - 128;
    digit = static_cast<int8_t>(low);
    w = (w - low) / 256;  // exact
  }
  return digits;
}

[[gnu::always_inline]] inline void flip_codes(const uint8_t* __restrict in, int64_t count, uint8_t flip,
                                              uint8_t* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = in[i] ^ flip;
}

/// Keeps every product of sizes within int64.
constexpr int64_t kMaxN = int64_t{1} << 31;

}  // namespace

LinearKernel linear_kernel(CpuPath path) {
  if (!cpu_can_run(path)) return nullptr;
#define ISOBIT_LINEAR_KERNEL(name, row_path) \
  if (path == CpuPath::row_path) return name;
#include "product/kernels.inc"
#undef ISOBIT_LINEAR_KERNEL
  return nullptr;
}

Result<PackedWeights> pack_weights(const int32_t* weights, int64_t n, int64_t k, int32_t tiles_together,
                                   int32_t max_block_tiles) {
  if (n < 0 || n > kMaxN)
    return Status(StatusCode::kInvalidArgument,
                  "pack_weights: n is " + std::to_string(n) + ", must be in [0, " + std::to_string(kMaxN) + "]");
  if (k < 0 || k > kMaxLinearK)
    return Status(StatusCode::kInvalidArgument,
                  "pack_weights: k is " + std::to_string(k) + ", must be in [0, " + std::to_string(kMaxLinearK) + "]");
  if (tiles_together < 1 || tiles_together > kMaxBlockTiles)
    return Status(StatusCode::kInvalidArgument, "pack_weights: tiles_together is " + std::to_string(tiles_together) +
                                                    ", must be in [1, " + std::to_string(kMaxBlockTiles) + "]");
  if (max_block_tiles < tiles_together || max_block_tiles > kMaxBlockTiles)
    return Status(StatusCode::kInvalidArgument, "pack_weights: max_block_tiles is " + std::to_string(max_block_tiles) +
                                                    ", must be in [" + std::to_string(tiles_together) + ", " +
                                                    std::to_string(kMaxBlockTiles) + "]");
  if (tiles_together > 1 && n % (int64_t{kTileRows} * tiles_together) != 0)
    return Status(StatusCode::kInvalidArgument, "pack_weights: n is " + std::to_string(n) + ", must be a multiple of " +
                                                    std::to_string(kTileRows * tiles_together));
  int32_t least = 0, most = 0;
  for (int64_t i = 0; i < n * k; ++i) {
    least = std::min(least, weights[i]);
    most = std::max(most, weights[i]);
  }
  for (int64_t i = 0; (least < -32768 || most > 65535) && i < n * k; ++i)
    if (weights[i] < -32768 || weights[i] > 65535)
      return Status(StatusCode::kInvalidArgument, "pack_weights: weights[" + std::to_string(i / k) + ", " +
                                                      std::to_string(i % k) + "] is " + std::to_string(weights[i]) +
                                                      ", must be in [-32768, 65535]");
  const int planes = least >= -128 && most <= 127 ? 1 : most <= 32639 ? 2 : 3;
  const int64_t tiles = (n + kTileRows - 1) / kTileRows;
  const int64_t groups = tiles / tiles_together;
  const int64_t max_groups = max_block_tiles / tiles_together;
  const int64_t blocks = (groups + max_groups - 1) / max_groups;
  const int64_t quads = (k + 3) / 4;
  PackedWeights packed;
  packed.n_ = n;
  packed.k_ = k;
  packed.planes_ = planes;
  if (blocks > 0) {  // blocks differ by one group at most, and the wide ones come first
    const int64_t narrow_blocks = (blocks - groups % blocks) % blocks;
    packed.narrow_blocks_ = static_cast<int32_t>(narrow_blocks);
    packed.wide_blocks_ = static_cast<int32_t>(blocks - narrow_blocks);
    packed.wide_tiles_ = static_cast<int32_t>((groups + blocks - 1) / blocks) * tiles_together;
    packed.narrow_tiles_ = packed.wide_tiles_ - tiles_together;
  }
  packed.plane_bytes_ = tiles * kTileRows * quads * 4;
  const auto owned = aligned_memory<int8_t>(packed.size_bytes());
  if (owned == nullptr)
    return Status(StatusCode::kInvalidArgument,
                  "pack_weights: no memory for " + std::to_string(packed.size_bytes()) + " bytes of weights");
  packed.memory_ = owned;
  int8_t* const memory = owned.get();
  std::memset(memory, 0, static_cast<size_t>(packed.size_bytes()));
  int64_t first_row = 0;
  int64_t block_offset = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t rows = int64_t{kTileRows} * (block < packed.wide_blocks_ ? packed.wide_tiles_ : packed.narrow_tiles_);
    for (int64_t row = 0; row < rows && first_row + row < n; ++row) {
      if (planes == 1) {
        const int32_t* const of_row = weights + (first_row + row) * k;
        int8_t* const to = memory + block_offset + row * 4;
        for (int64_t i = 0; i < k; ++i) to[i / 4 * rows * 4 + i % 4] = static_cast<int8_t>(of_row[i]);
        continue;
      }
      for (int64_t i = 0; i < k; ++i) {
        const Digits digits = split(weights[(first_row + row) * k + i]);
        for (int plane = 0; plane < planes; ++plane)
          memory[plane * packed.plane_bytes_ + block_offset + (i / 4 * rows + row) * 4 + i % 4] = digits.digit[plane];
      }
    }
    first_row += rows;
    block_offset += rows * quads * 4;
  }
  return packed;
}

bool takes_tiles([[maybe_unused]] LinearKernel kernel, [[maybe_unused]] const PackedWeights& weights,
                 [[maybe_unused]] int64_t m) {
#if defined(__x86_64__) && !defined(ISOBIT_NO_X86_KERNELS)
  return kernel == linear_u8_s8_amx && m >= kTileRows && weights.k() > kTileColumns - 4 && weights.planes() == 1;
#else
  return false;
#endif
}

bool gives_codes([[maybe_unused]] LinearKernel kernel) {
#if defined(__x86_64__) && !defined(ISOBIT_NO_X86_KERNELS)
  return kernel == linear_u8_s8_avx2 || kernel == linear_u8_s8_avxvnni || kernel == linear_u8_s8_avx512vnni;
#else
  return false;
#endif
}

void pack_activations_row(const void* codes, Dtype dtype, int64_t k, uint8_t* out, int64_t piece_stride) {
  if (activation_planes(dtype) == 1) {
    const uint8_t* in = static_cast<const uint8_t*>(codes);
    const uint8_t flip = dtype == Dtype::kS8 ? 0x80 : 0;  // adding 128 modulo 256
    for (; k >= kTileColumns; k -= kTileColumns, in += kTileColumns, out += piece_stride)
      flip_codes(in, kTileColumns, flip, out);
    if (k == 0) return;
    flip_codes(in, k, flip, out);
    std::memset(out + k, 0, static_cast<size_t>(kTileColumns - k));
    return;
  }
  const int64_t plane_bytes = packed_plane_bytes(k);
  const uint16_t* in = static_cast<const uint16_t*>(codes);
  const uint16_t flip = dtype == Dtype::kS16 ? 0x8000 : 0;
  uint8_t* const high = out + plane_bytes;
  for (int64_t i = 0; i < k; ++i) {
    const unsigned u = static_cast<unsigned>(in[i] ^ flip);
    out[i] = static_cast<uint8_t>(u & 255);
    high[i] = static_cast<uint8_t>(u >> 8);
  }
  std::memset(out + k, 0, static_cast<size_t>(plane_bytes - k));
  std::memset(high + k, 0, static_cast<size_t>(plane_bytes - k));
}

}  // namespace isobit
