// SPDX-License-Identifier: Apache-2.0
// Quantised tensors of GGUF files in the canonical form.
#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

#include "core/codes.h"
#include "core/float_mode.h"
#include "io/container.h"
#include "io/gguf/types.h"
#include "isobit/low_bit_import.h"
#include "low_bit/importers.h"
#include "low_bit/parts.h"

namespace isobit {
namespace {

struct Block {
  std::array<float, kMaxGgufGroups> scales{}, offsets{};
  std::array<uint8_t, kMaxGgufBlock> codes{};
};

/// Calls use(n, k, block), k the column of its first element.
template <typename Use>
void for_blocks(const GgufFile& file, const GgufTensor& tensor, const GgufType& type, Use use) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(file.stored(tensor).data());
  Block block;
  for (int64_t n = 0; n < tensor.shape[0]; ++n)
    for (int64_t k = 0; k < tensor.shape[1]; k += type.block_elements, bytes += type.block_bytes) {
      type.quantization->split(bytes, block.scales.data(), block.offsets.data(), block.codes.data());
      use(n, k, block);
    }
}

/// Whether some v = q - zero is above the largest of the symmetric kind; only TQ2_0 has room for one.
bool exceeds_symmetric(const GgufFile& file, const GgufTensor& tensor, const GgufType& type, int bits) {
  const GgufQuantization& q = *type.quantization;
  const int limit = (1 << (bits - 1)) - 1 + q.zero;
  if ((1 << q.bits) - 1 <= limit) return false;
  bool exceeds = false;
  for_blocks(file, tensor, type, [&](int64_t, int64_t, const Block& block) {
    exceeds = exceeds || std::any_of(block.codes.begin(), block.codes.begin() + type.block_elements,
                                     [limit](uint8_t code) { return code > limit; });
  });
  return exceeds;
}

Result<ImportedLowBit> import(const GgufFile& file, const GgufTensor& tensor) {
  const std::string what = file.name() + ": tensor " + in_quotes(tensor.name);
  if (!is_importable(tensor))
    return Status(StatusCode::kUnsupported,
                  what + " is " + tensor.type + " of the shape " + shape_text(tensor.shape) +
                      "; imported are matrices of Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL TQ2_0");
  const GgufType& type = *find_gguf_type(tensor.type);
  const GgufQuantization& q = *type.quantization;
  LowBitParameters p;
  p.rows = tensor.shape[0];
  p.columns = tensor.shape[1];
  p.bits = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(q.bits)));  // the next width that there is
  p.group = q.group;
  if (q.has_offsets) {
    p.kind = LowBitKind::kOffset;
  } else if (exceeds_symmetric(file, tensor, type, p.bits)) {
    p.kind = LowBitKind::kZeroPoint;
  }
  ISOBIT_RETURN_IF_ERROR(check_low_bit_form(p.rows, p.columns, p.bits, p.group, p.kind, what));
  allocate_low_bit(p, q.scales);
  if (p.kind == LowBitKind::kZeroPoint)
    std::fill(p.zero_points.bytes.begin(), p.zero_points.bytes.end(), static_cast<std::byte>(q.zero));
  const int up = p.kind == LowBitKind::kSymmetric ? (1 << (p.bits - 1)) - q.zero : 0;
  const int64_t groups = low_bit_groups(p.columns, p.group), row_bytes = low_bit_row_bytes(p.columns, p.bits);
  for_blocks(file, tensor, type, [&](int64_t n, int64_t k, const Block& block) {
    uint8_t* row = p.codes.data<uint8_t>() + n * row_bytes;
    for (int64_t i = 0; i < type.block_elements; ++i)
      pack_code(row, k + i, p.bits, static_cast<uint32_t>(block.codes[static_cast<size_t>(i)] + up));
    for (int64_t g = 0; g < type.block_elements / q.group; ++g) {
      const int64_t at = n * groups + k / q.group + g;
      set_float_at(p.scales, at, block.scales[static_cast<size_t>(g)]);
      if (q.has_offsets) set_float_at(p.offsets, at, block.offsets[static_cast<size_t>(g)]);
    }
  });
  const int64_t cleared = clear_zero_scales(p);
  Result<LowBitMatrix> matrix = LowBitMatrix::create(std::move(p), what + " (" + std::string(type.name) + ")");
  if (!matrix.ok()) return Status(StatusCode::kInvalidFile, matrix.status().message());
  return ImportedLowBit{*std::move(matrix), {}, cleared, {}};
}

}  // namespace

void allocate_low_bit(LowBitParameters& p, Dtype scales) {
  const std::vector<int64_t> per_group = {p.rows, low_bit_groups(p.columns, p.group)};
  p.codes = Array::zeros(Dtype::kU8, {p.rows, low_bit_row_bytes(p.columns, p.bits)});
  p.scales = Array::zeros(scales, per_group);
  if (p.kind == LowBitKind::kZeroPoint) p.zero_points = Array::zeros(low_bit_zero_point_dtype(p.bits), per_group);
  if (p.kind == LowBitKind::kOffset) p.offsets = Array::zeros(scales, per_group);
}

int64_t clear_zero_scales(LowBitParameters& p) {
  const int64_t groups = low_bit_groups(p.columns, p.group), row_bytes = low_bit_row_bytes(p.columns, p.bits);
  const int32_t middle = 1 << (p.bits - 1);
  const auto z = static_cast<uint32_t>(p.kind == LowBitKind::kOffset ? p.zero_point : middle);
  int64_t cleared = 0;
  for (int64_t i = 0; i < p.rows * groups; ++i) {
    if (float_at(p.scales, i) != 0) continue;
    if (p.kind == LowBitKind::kZeroPoint) store_code(p.zero_points.bytes.data(), p.zero_points.dtype, i, middle);
    uint8_t* row = p.codes.data<uint8_t>() + i / groups * row_bytes;
    const int64_t begin = i % groups * p.group, end = std::min(p.columns, begin + p.group);
    bool changed = false;
    for (int64_t k = begin; k < end; ++k) {
      const uint32_t difference = unpack_code(row, k, p.bits) ^ z;
      row[k * p.bits / 8] = static_cast<uint8_t>(row[k * p.bits / 8] ^ difference << (k * p.bits % 8));
      changed = changed || difference != 0;
    }
    cleared += changed ? 1 : 0;
  }
  return cleared;
}

bool is_importable(const GgufTensor& tensor) {
  const GgufType* type = find_gguf_type(tensor.type);
  return type != nullptr && type->quantization != nullptr && tensor.shape.size() == 2;
}

Result<ImportedLowBit> import_gguf(const GgufFile& file, std::string_view tensor) {
  const DefaultFloatMode mode;
  return without_exceptions(file.name(), [&]() -> Result<ImportedLowBit> {
    const GgufTensor* found = file.find_tensor(tensor);
    if (found != nullptr) return import(file, *found);
    return Status(StatusCode::kInvalidArgument, file.name() + ": no tensor is called " + in_quotes(tensor) +
                                                    "; it holds " + std::to_string(file.tensors().size()) + " others");
  });
}

}  // namespace isobit
