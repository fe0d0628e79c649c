// SPDX-License-Identifier: Apache-2.0
// Low-bit weights as kernels on a device read them: one form for any number of rows of x.
//
// The columns of W are in positions: each group is filled up to 32, 64 or a multiple of 128 positions, and blocks of
// 128 positions follow each other, a multiple of 4 of them. What fills up is 0 in x. Strips of 64 rows of W, each with
// all of its blocks, follow each other; what fills up the last strip are rows of code 0 and scale 0.
//
// A block of a strip is four tiles of 16 rows. A tile is 32 lanes with 2 * bits words each, in pieces of 4 words (1
// bit: 2 words): piece i of all lanes, then piece i + 1. Lane 4r + q has of rows r and r + 8, for each step of 32
// positions, positions 8q to 8q + 7, as 4 registers of 4 codes: row r of positions 8q to 8q + 3, row r + 8 of these,
// row r of the next 4, row r + 8 of these. Code j of register e = 4 * step + register is in bits 8j + bits * (e mod (8
// / bits)) and up of word e / (8 / bits). This is how matrix instructions take their left operand.
#ifndef ISOBIT_LINEAR_CUDA_IMAGE_H_
#define ISOBIT_LINEAR_CUDA_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "isobit/low_bit.h"

namespace isobit::cuda {

inline constexpr int kStripRows = 64;
inline constexpr int kTileRows = 16;
inline constexpr int kBlockDepth = 128;
inline constexpr int kBlocksStep = 4;  // blocks of a row are a multiple
inline constexpr int kStepDepth = 32;  // of an instruction of 8-bit codes
inline constexpr int kChunkGroups = 16;
inline constexpr int kBlockSteps = kBlockDepth / kStepDepth;
/// Rows of x that one instruction takes; rows are filled up to a multiple of it.
inline constexpr int kXTileRows = 8;

/// Where things are; a few sizes that kernels and packers share.
struct ImageLayout {
  int64_t rows = 0;     // N
  int64_t columns = 0;  // K
  int32_t bits = 4;
  int64_t group = 0;
  int64_t padded_group = 0;  // 32, 64, or a multiple of 128
  int64_t groups = 0;
  int64_t strips = 0;
  int64_t blocks = 0;        // of a row
  int64_t used_blocks = 0;   // the others belong to no group
  int32_t block_parts = 1;   // parts of a block: 4 where groups have 32 or 64 positions, else 1
  int64_t group_blocks = 1;  // blocks of a group that has one or more
  // Parameters of 64 rows for a group, in bytes: S as float32; then what the kind and the activations need.
  int32_t zero_points_at = 0, offsets_at = 0, sums_at = 0;  // 0: not there. u16 z; float32 O; float32 V
  int32_t record_bytes = 0;

  /// `asymmetric`: of the activations, which need V.
  static ImageLayout of(const LowBitParameters& matrix, bool asymmetric);
  /// Of static codes: one group a row, whose parameters are not in the image.
  static ImageLayout of_static(const LowBitParameters& matrix);

  /// Of a row: what each block, or step where groups are smaller than a block, has of one group.
  [[nodiscard]] int64_t parts() const { return blocks * block_parts; }
  [[nodiscard]] int64_t block_bytes() const { return int64_t{kStripRows} * kBlockDepth * bits / 8; }
  [[nodiscard]] int64_t codes_bytes() const { return strips * blocks * block_bytes(); }
  [[nodiscard]] int64_t parameters_bytes() const { return strips * groups * record_bytes; }
};

/// codes_bytes() and parameters_bytes() of it.
std::vector<std::byte> pack_image_codes(const LowBitMatrix& matrix, const ImageLayout& layout);
std::vector<std::byte> pack_image_parameters(const LowBitMatrix& matrix, const ImageLayout& layout);

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_IMAGE_H_
