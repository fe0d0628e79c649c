// SPDX-License-Identifier: Apache-2.0
#include "linear/float/float.h"

#include <cstring>
#include <string>

#include "core/aligned_memory.h"
#include "low_bit/parts.h"

namespace isobit {
namespace {

/// The block of a row: its first output, and how many outputs it has.
struct Place {
  int64_t first;
  int64_t outputs;
};

Place place_of(const FloatLinearArgs& args, int64_t n) {
  constexpr int64_t kWide = kFloatWideTiles * kFloatTile;
  const int64_t outputs = n < args.wide_blocks * kWide ? kWide : kFloatTile;
  return {n / outputs * outputs, outputs};
}

}  // namespace

FloatLinearKernel float_linear_kernel(CpuPath path) {
  if (!cpu_can_run(path)) return nullptr;
  FloatLinearKernel nearest = nullptr;
#define ISOBIT_FLOAT_KERNEL(name, row_path) \
  if (CpuPath::row_path <= path && cpu_can_run(CpuPath::row_path)) nearest = name;
#include "linear/float/kernels.inc"
#undef ISOBIT_FLOAT_KERNEL
  return nearest;
}

Result<PackedFloatWeights> pack_float_weights(const LowBitMatrix& matrix) {
  const LowBitParameters& p = matrix.parameters();
  PackedFloatWeights packed;
  FloatLinearArgs& args = packed.args_;
  const int fields = 32 / p.bits;
  const int64_t groups = matrix.groups();
  const int64_t last = p.columns - (groups - 1) * p.group;
  const int64_t tiles = (p.rows + kFloatTile - 1) / kFloatTile;
  packed.n_ = p.rows;
  args.scale_dtype = p.scales.dtype;
  args.bits = p.bits;
  args.k = p.columns;
  args.group = p.group;
  args.groups = groups;
  args.group_words = (p.group + fields - 1) / fields;
  args.words = (groups - 1) * args.group_words + (last + fields - 1) / fields;
  const int64_t chunk_words = kFloatChunk / fields;
  const int64_t last_words = args.words - (groups - 1) * args.group_words;
  args.chunks = (groups - 1) * ((args.group_words + chunk_words - 1) / chunk_words) +
                (last_words + chunk_words - 1) / chunk_words;
  args.wide_blocks = static_cast<int32_t>(tiles / kFloatWideTiles);
  args.narrow_blocks = static_cast<int32_t>(tiles % kFloatWideTiles);
  const bool by_group = p.kind == LowBitKind::kZeroPoint;
  const int32_t zero = by_group ? 0 : matrix.zero_point(0, 0);
  args.zero = static_cast<float>(zero);
  for (int32_t at = 0; at < 4; ++at)
    for (int32_t i = 0; i < 16; ++i)
      args.values[at][i] =
          static_cast<float>(low_bit_value(p.kind, p.bits, zero, (i >> (at * p.bits)) % (1 << p.bits)));

  const auto scale_bytes = static_cast<int64_t>(size_in_bytes(p.scales.dtype));
  const int64_t outputs = tiles * kFloatTile;
  const int64_t code_bytes = outputs * args.words * 4;  // a multiple of 64
  const int64_t table_bytes = round_up_64(outputs * groups * scale_bytes);
  const bool offset = p.kind == LowBitKind::kOffset;
  packed.size_bytes_ = code_bytes + table_bytes + (offset ? table_bytes : 0) + (by_group ? outputs * groups * 2 : 0);
  const auto owned = aligned_memory<uint8_t>(packed.size_bytes_);
  if (owned == nullptr)
    return Status(StatusCode::kInvalidArgument,
                  "pack_float_weights: no memory for " + std::to_string(packed.size_bytes_) + " bytes of weights");
  packed.memory_ = owned;
  uint8_t* const memory = owned.get();
  std::memset(memory, 0, static_cast<size_t>(packed.size_bytes_));  // outputs beyond N have codes and S of 0
  auto* const codes = reinterpret_cast<uint32_t*>(memory);
  uint8_t* const scales = memory + code_bytes;
  uint8_t* const offsets = scales + table_bytes;
  auto* const zero_points = reinterpret_cast<uint16_t*>(scales + table_bytes);
  args.codes = codes;
  args.scales = scales;
  args.offsets = offset ? offsets : nullptr;
  args.zero_points = by_group ? zero_points : nullptr;

  const int64_t row_bytes = matrix.row_bytes();
  for (int64_t n = 0; n < p.rows; ++n) {
    const Place place = place_of(args, n);
    const uint8_t* const row = p.codes.data<uint8_t>() + n * row_bytes;
    uint32_t* const words = codes + place.first * args.words + (n - place.first);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * p.group;
      const int64_t count = g + 1 < groups ? p.group : last;
      // Groups begin at whole bytes of a row, as they are multiples of eight elements.
      const uint8_t* const bytes = row + begin * p.bits / 8;
      const int64_t group_bytes = packed_bytes(count, p.bits);
      for (int64_t i = 0; i < group_bytes; ++i)
        words[(g * args.group_words + i / 4) * place.outputs] |= static_cast<uint32_t>(bytes[i]) << (i % 4 * 8);
      const int64_t to = place.first * groups + g * place.outputs + (n - place.first);
      const auto from = static_cast<size_t>((n * groups + g) * scale_bytes);
      std::memcpy(scales + to * scale_bytes, p.scales.bytes.data() + from, static_cast<size_t>(scale_bytes));
      if (offset)
        std::memcpy(offsets + to * scale_bytes, p.offsets.bytes.data() + from, static_cast<size_t>(scale_bytes));
      if (by_group) zero_points[to] = f32_to_f16(static_cast<float>(matrix.zero_point(n, g)));  // exact: 0..256
    }
  }
  return packed;
}

int64_t float_linear_workspace_bytes(const PackedFloatWeights& weights, int64_t m) {
  const int64_t rows = m < kFloatRows ? m : kFloatRows;
  const int64_t sums = (rows * weights.args_.chunks + 15) / 16 * 16;
  const int64_t block = int64_t{kFloatWideTiles} * kFloatTile;
  const int64_t x = (rows * weights.args_.words * (32 / weights.args_.bits) + 15) / 16 * 16;
  const int64_t floats = x + sums + kFloatRows * kFloatBlocks * block + kFloatChunk * block;
  return floats * static_cast<int64_t>(sizeof(float));
}

void float_linear(FloatLinearKernel kernel, const PackedFloatWeights& weights, BlockRange blocks, const FloatRows& rows,
                  const FloatEpilogue& epilogue, void* workspace) {
  if (rows.m == 0 || blocks.begin >= blocks.end) return;
  FloatLinearArgs args = weights.args_;
  const int64_t first = weights.first_row(blocks.begin);
  const int64_t end = weights.first_row(blocks.end);
  const int32_t wide_end = blocks.end < args.wide_blocks ? blocks.end : args.wide_blocks;
  const auto scale_bytes = static_cast<int64_t>(size_in_bytes(args.scale_dtype));
  args.wide_blocks = blocks.begin < wide_end ? wide_end - blocks.begin : 0;
  args.narrow_blocks = blocks.end - blocks.begin - args.wide_blocks;
  args.n = (end < weights.n_ ? end : weights.n_) - first;
  args.codes += first * args.words;
  args.scales = static_cast<const uint8_t*>(args.scales) + first * args.groups * scale_bytes;
  if (args.offsets != nullptr)
    args.offsets = static_cast<const uint8_t*>(args.offsets) + first * args.groups * scale_bytes;
  if (args.zero_points != nullptr) args.zero_points += first * args.groups;
  args.x = rows.x;
  args.y = static_cast<uint8_t*>(rows.y) + first * static_cast<int64_t>(size_in_bytes(rows.dtype));
  args.dtype = rows.dtype;
  args.x_stride = rows.x_stride;
  args.y_stride = rows.y_stride;
  args.m = rows.m;
  args.bias = epilogue.bias == nullptr ? nullptr : epilogue.bias + first;
  args.low = epilogue.lo;
  args.high = epilogue.hi;
  args.workspace = static_cast<float*>(workspace);
  kernel(args);
}

}  // namespace isobit
