// SPDX-License-Identifier: Apache-2.0
#include "linear/int8/int8.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/aligned_memory.h"
#include "core/bits.h"
#include "low_bit/parts.h"
#include "product/product.h"

namespace isobit {
namespace {

constexpr int64_t blocks_of(int64_t columns, int bits) {
  const int64_t block = int8_block_columns(bits);
  return (columns + block - 1) / block;
}

Int8Layout layout_of(const LowBitMatrix& matrix, bool asymmetric) {
  const LowBitParameters& p = matrix.parameters();
  Int8Layout layout{};
  layout.bits = p.bits;
  layout.twice = p.bits == 1 && p.kind == LowBitKind::kSymmetric;
  layout.columns = p.columns;
  layout.group = p.group;
  layout.groups = matrix.groups();
  layout.group_blocks = blocks_of(p.group, p.bits);
  layout.last_group_blocks = blocks_of(p.columns - (layout.groups - 1) * p.group, p.bits);
  layout.scale_type = int8_float(p.scales.dtype);
  // |v| is at most 2^bits.
  layout.sum_type = (p.group << p.bits) <= INT16_MAX ? Int8Float::kS16 : Int8Float::kF32;
  layout.zero_point_bytes = p.bits == 8 ? 2 : 1;
  const int64_t in_chunk = std::min<int64_t>(layout.groups, kInt8ChunkGroups);
  const int64_t numbers = in_chunk * kInt8TileRows;
  int64_t end = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t begin = end;
    end += round_up_64(bytes);
    return begin;
  };
  take(numbers * int8_float_bytes(layout.scale_type));
  if (p.kind == LowBitKind::kZeroPoint) layout.zero_points = take(numbers * layout.zero_point_bytes);
  if (p.kind == LowBitKind::kOffset) layout.offsets = take(numbers * int8_float_bytes(layout.scale_type));
  if (asymmetric) layout.sums = take(numbers * int8_float_bytes(layout.sum_type));
  layout.codes = end;
  layout.chunk_bytes = end + in_chunk * layout.group_blocks * kInt8BlockBytes;
  const int64_t last_chunk = (layout.groups - 1) / kInt8ChunkGroups;
  const int64_t whole_groups = layout.groups - 1 - last_chunk * kInt8ChunkGroups;
  layout.tile_bytes = last_chunk * layout.chunk_bytes + end +
                      (whole_groups * layout.group_blocks + layout.last_group_blocks) * kInt8BlockBytes;
  return layout;
}

/// Rows [first, first + 16) of the matrix, as far as they exist.
void pack_tile(const LowBitMatrix& matrix, const Int8Layout& layout, int64_t first, uint8_t* tile) {
  const LowBitParameters& p = matrix.parameters();
  const int64_t rows = std::min<int64_t>(kInt8TileRows, p.rows - first);
  const int64_t row_bytes = matrix.row_bytes();
  const size_t scale_bytes = size_in_bytes(p.scales.dtype);
  const int64_t block_columns = int8_block_columns(p.bits);
  for (int64_t g = 0; g < layout.groups; ++g) {
    uint8_t* chunk = tile + g / kInt8ChunkGroups * layout.chunk_bytes;
    const int64_t in_chunk = g % kInt8ChunkGroups;
    uint8_t* codes = chunk + layout.codes + in_chunk * layout.group_blocks * kInt8BlockBytes;
    const int64_t begin = g * p.group;
    const int64_t end = std::min(begin + p.group, p.columns);
    for (int64_t lane = 0; lane < rows; ++lane) {
      const int64_t n = first + lane;
      const int64_t at = in_chunk * kInt8TileRows + lane;
      const auto copy = [&](int64_t part, const Array& from) {
        std::memcpy(chunk + part + at * static_cast<int64_t>(scale_bytes),
                    from.data<uint8_t>() + (n * layout.groups + g) * static_cast<int64_t>(scale_bytes), scale_bytes);
      };
      copy(0, p.scales);
      if (layout.offsets != 0) copy(layout.offsets, p.offsets);
      if (layout.zero_points != 0) {
        const auto z = static_cast<uint16_t>(matrix.zero_point(n, g));
        if (layout.zero_point_bytes == 1) {
          chunk[layout.zero_points + at] = static_cast<uint8_t>(z);
        } else {
          std::memcpy(chunk + layout.zero_points + 2 * at, &z, sizeof z);
        }
      }
      const uint8_t* row = p.codes.data<uint8_t>() + n * row_bytes;
      const int32_t z = matrix.zero_point(n, g);
      int32_t sum = 0;
      for (int64_t k = begin; k < end; ++k) {
        const uint32_t code = unpack_code(row, k, p.bits);
        sum += low_bit_value(p.kind, p.bits, z, static_cast<int32_t>(code));
        const int64_t in_block = (k - begin) % block_columns;
        uint8_t& byte = codes[(k - begin) / block_columns * kInt8BlockBytes + 4 * lane + in_block % 4];
        byte = static_cast<uint8_t>(byte | code << (in_block / 4 * p.bits));
      }
      if (layout.sums == 0) continue;
      if (layout.sum_type == Int8Float::kS16) {
        const auto narrow = static_cast<int16_t>(sum);
        std::memcpy(chunk + layout.sums + 2 * at, &narrow, sizeof narrow);
      } else {
        const auto rounded = static_cast<float>(sum);
        std::memcpy(chunk + layout.sums + 4 * at, &rounded, sizeof rounded);
      }
    }
  }
}

}  // namespace

struct LowBitPacker {
  static Result<PackedLowBit> pack(const LowBitMatrix& matrix, bool asymmetric, const std::string& name,
                                   ThreadPool* pool) {
    const LowBitParameters& p = matrix.parameters();
    if (p.group > kMaxInt8Group)
      return Status(StatusCode::kUnsupported, name + ": group is " + std::to_string(p.group) +
                                                  ", kernels of 8-bit activations take groups of at most " +
                                                  std::to_string(kMaxInt8Group) + " elements");
    PackedLowBit packed;
    packed.layout_ = layout_of(matrix, asymmetric);
    packed.rows_ = p.rows;
    packed.asymmetric_ = asymmetric;
    packed.factor_ = p.kind == LowBitKind::kZeroPoint ? 1 : matrix.zero_point(0, 0);
    const int64_t last = p.columns - (packed.groups() - 1) * p.group;
    packed.code_bytes_ = round_up_64((packed.groups() - 1) * int8_padded(p.group) + int8_padded(last));
    const auto owned = aligned_memory<uint8_t>(packed.size_bytes());
    if (owned == nullptr)
      return Status(StatusCode::kInvalidArgument,
                    name + ": no memory for " + std::to_string(packed.size_bytes()) + " bytes of weights");
    packed.memory_ = owned;
    uint8_t* const memory = owned.get();
    ISOBIT_RETURN_IF_ERROR(for_rows(pool, packed.tiles(), [&](int64_t begin, int64_t end) {
      std::memset(memory + begin * packed.layout_.tile_bytes, 0,
                  static_cast<size_t>((end - begin) * packed.layout_.tile_bytes));
      for (int64_t tile = begin; tile < end; ++tile)
        pack_tile(matrix, packed.layout_, tile * kInt8TileRows, memory + tile * packed.layout_.tile_bytes);
      return Status();
    }));
    return packed;
  }
};

Result<PackedLowBit> pack_low_bit(const LowBitMatrix& matrix, bool asymmetric, std::string_view name,
                                  ThreadPool* pool) {
  return LowBitPacker::pack(matrix, asymmetric, std::string(name), pool);
}

const Int8Kernels* int8_kernels(CpuPath path) {
  if (!cpu_can_run(path)) return nullptr;
  const Int8Kernels* nearest = nullptr;
#define ISOBIT_INT8_KERNELS(row_path, name)                          \
  if (CpuPath::row_path <= path && cpu_can_run(CpuPath::row_path)) { \
    static const Int8Kernels kernels{name()};                        \
    nearest = &kernels;                                              \
  }
#include "linear/int8/kernels.inc"
#undef ISOBIT_INT8_KERNELS
  return nearest;
}

bool quantize_row(const Int8Kernels& kernels, const PackedLowBit& weights, const void* x, Dtype dtype, int8_t* codes,
                  Int8Group* groups) {
  return kernels.quantize({.x = x,
                           .type = int8_float(dtype),
                           .columns = weights.layout_.columns,
                           .group = weights.layout_.group,
                           .factor = weights.factor_,
                           .asymmetric = weights.asymmetric_,
                           .is_unsigned = false,
                           .codes = codes,
                           .groups = groups});
}

void int8_pack_row(const PackedLowBit& weights, const int8_t* codes, const Int8Group* groups, int64_t m,
                   int8_t* tiled_codes, Int8Group* tiled_groups) {
  pack_activations_row(codes, Dtype::kU8, weights.layout().columns,
                       reinterpret_cast<uint8_t*>(tiled_codes) + tiled_row_at(m, weights.code_bytes()), kTileBytes);
  Int8Group* const out = tiled_groups + m / kTileRows * kTileRows * weights.groups() + m % kTileRows;
  for (int64_t g = 0; g < weights.groups(); ++g) out[g * kTileRows] = groups[g];
}

void int8_product(const Int8Kernels& kernels, const PackedLowBit& weights, TileRange tiles, const Int8Rows& x,
                  const Int8Epilogue& epilogue, float* y, int64_t y_stride, uint8_t* scratch) {
  const int64_t first = tiles.begin * kInt8TileRows;
  const auto product = x.tiled ? kernels.tiled : kernels.product;
  product({.layout = weights.layout(),
           .weights = weights.data() + tiles.begin * weights.layout().tile_bytes,
           .tiles = tiles.end - tiles.begin,
           .factor = weights.factor_,
           .codes = x.codes,
           .code_stride = weights.code_bytes(),
           .x_groups = x.groups,
           .group_stride = weights.groups(),
           .m = x.m,
           .count = std::min(weights.rows(), tiles.end * kInt8TileRows) - first,
           .bias = epilogue.bias + first,
           .lo = epilogue.lo,
           .hi = epilogue.hi,
           .y = y,
           .y_stride = y_stride,
           .scratch = scratch});
}

}  // namespace isobit
