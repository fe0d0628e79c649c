// SPDX-License-Identifier: Apache-2.0
#include "linear/cuda/image.h"

#include <algorithm>
#include <cstring>

namespace isobit::cuda {
namespace {

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

uint32_t all_ones(int64_t bits) { return static_cast<uint32_t>((uint64_t{1} << bits) - 1); }

/// Four codes of so many bits, behind each other in `codes`, as the low bits of four bytes.
uint32_t a_byte_each(uint32_t codes, int bits) {
  const uint32_t pairs = (codes | codes << (16 - 2 * bits)) & all_ones(2 * bits) * 0x00010001u;
  return (pairs | pairs << (8 - bits)) & all_ones(bits) * 0x01010101u;
}

}  // namespace

ImageLayout ImageLayout::of(const LowBitParameters& matrix, bool asymmetric) {
  ImageLayout layout;
  layout.rows = matrix.rows;
  layout.columns = matrix.columns;
  layout.bits = matrix.bits;
  layout.group = matrix.group;
  layout.groups = (matrix.columns + matrix.group - 1) / matrix.group;
  layout.padded_group = matrix.group <= 32 ? 32 : matrix.group <= 64 ? 64 : round_up(matrix.group, kBlockDepth);
  layout.block_parts = layout.padded_group < kBlockDepth ? kBlockDepth / kStepDepth : 1;
  layout.group_blocks = std::max<int64_t>(1, layout.padded_group / kBlockDepth);
  layout.strips = (matrix.rows + kStripRows - 1) / kStripRows;
  const int64_t last = matrix.columns - (layout.groups - 1) * matrix.group;
  layout.used_blocks = round_up((layout.groups - 1) * layout.padded_group + last, kBlockDepth) / kBlockDepth;
  layout.blocks = round_up(layout.used_blocks, kBlocksStep);
  layout.record_bytes = kStripRows * 4;
  const auto add = [&](bool there, int32_t& at, int32_t bytes) {
    if (!there) return;
    at = layout.record_bytes;
    layout.record_bytes += kStripRows * bytes;
  };
  add(matrix.kind == LowBitKind::kZeroPoint, layout.zero_points_at, 2);
  add(matrix.kind == LowBitKind::kOffset, layout.offsets_at, 4);
  add(asymmetric, layout.sums_at, 4);
  return layout;
}

ImageLayout ImageLayout::of_static(const LowBitParameters& matrix) {
  ImageLayout layout = of(matrix, false);
  layout.padded_group = round_up(matrix.columns, kBlockDepth);
  layout.block_parts = 1;
  layout.group_blocks = layout.padded_group / kBlockDepth;
  layout.record_bytes = 0;
  return layout;
}

std::vector<std::byte> pack_image_codes(const LowBitMatrix& matrix, const ImageLayout& layout) {
  std::vector<std::byte> image(static_cast<size_t>(layout.codes_bytes()));
  const int bits = layout.bits;
  const int fields = 8 / bits;              // registers of a word
  const int piece = std::min(4, 2 * bits);  // words of a lane behind each other
  const int64_t tile_bytes = layout.block_bytes() / (kStripRows / kTileRows);
  constexpr int kUnit = 4;  // codes of a register; groups are multiples of it, but for the last one
  for (int64_t n = 0; n < layout.rows; ++n) {
    const auto* const codes = matrix.parameters().codes.data<uint8_t>() + n * matrix.row_bytes();
    std::byte* const tile =
        image.data() + n / kStripRows * layout.blocks * layout.block_bytes() + n % kStripRows / kTileRows * tile_bytes;
    const auto row = static_cast<int>(n % kTileRows);
    for (int64_t group = 0; group < layout.groups; ++group) {
      const int64_t end = std::min(layout.columns, (group + 1) * layout.group);
      int64_t at = group * layout.padded_group;
      for (int64_t first = group * layout.group; first < end; first += kUnit, at += kUnit) {
        const auto in_block = static_cast<int>(at % kBlockDepth);
        const int in_step = in_block % kStepDepth;
        const int lane = row % 8 * 4 + in_step / 8;
        const int e = in_block / kStepDepth * 4 + in_step % 8 / kUnit * 2 + row / 8;
        const int word = e / fields;
        std::byte* const to = tile + at / kBlockDepth * layout.block_bytes() +
                              ((word / piece * 32 + lane) * piece + word % piece) * kUnit;
        // Rows are whole words, so that a unit's bytes are there.
        uint32_t four = 0;
        std::memcpy(&four, codes + first * bits / 8, static_cast<size_t>(std::max(1, kUnit * bits / 8)));
        four = four >> (first * bits % 8) & all_ones(std::min<int64_t>(kUnit, end - first) * bits);
        uint32_t all = 0;
        std::memcpy(&all, to, sizeof all);
        all |= a_byte_each(four, bits) << (bits * (e % fields));
        std::memcpy(to, &all, sizeof all);
      }
    }
  }
  return image;
}

std::vector<std::byte> pack_image_parameters(const LowBitMatrix& matrix, const ImageLayout& layout) {
  std::vector<std::byte> image(static_cast<size_t>(layout.parameters_bytes()));
  for (int64_t n = 0; n < layout.rows; ++n) {
    for (int64_t g = 0; g < layout.groups; ++g) {
      std::byte* const record = image.data() + (n / kStripRows * layout.groups + g) * layout.record_bytes;
      const auto put = [&](int64_t at, const auto value) {
        std::memcpy(record + at + n % kStripRows * static_cast<int64_t>(sizeof value), &value, sizeof value);
      };
      put(0, matrix.scale(n, g));
      if (layout.zero_points_at > 0) put(layout.zero_points_at, static_cast<uint16_t>(matrix.zero_point(n, g)));
      if (layout.offsets_at > 0) put(layout.offsets_at, matrix.offset(n, g));
      if (layout.sums_at == 0) continue;
      int64_t sum = 0;
      for (int64_t k = g * layout.group; k < std::min(layout.columns, (g + 1) * layout.group); ++k)
        sum += matrix.value(n, k);
      put(layout.sums_at, static_cast<float>(sum));
    }
  }
  return image;
}

}  // namespace isobit::cuda
