// SPDX-License-Identifier: Apache-2.0
#include "product/cuda/rows_in_place.h"

#include <cudaTypedefs.h>

#include <algorithm>
#include <string>

#include "core/cuda/status.h"
#include "product/cuda/product.h"

namespace isobit::cuda {
namespace {

constexpr int64_t kTileRows = 64;
constexpr uint32_t kBoxBytes = 128;  // of a row
constexpr int64_t kPiece = 16;       // bytes: addresses and strides of a map are multiples of it
constexpr int64_t kMostStride = (int64_t{1} << 40) - 1, kMostRows = INT32_MAX;  // coordinates have 32 bits

/// Rows in two dimensions: `inner`, `inner_stride` bytes apart, again and again, `outer_stride` bytes apart.
struct Layout {
  int64_t inner, inner_stride, outer_stride;
};
Layout layout_of(const ProductRows& rows) {
  if (rows.batch == 1) return {rows.rows, rows.step, kPiece};
  if (rows.rows <= rows.batch || rows.step == rows.batch * rows.sequence) return {rows.rows, rows.sequence, kPiece};
  return {rows.batch, rows.sequence, rows.step};
}

struct Driver {
  PFN_cuTensorMapEncodeTiled_v12000 encode_tiled;
};
/// Its library is not linked: it is not there on a machine without a device.
Result<Driver> find_driver() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  ISOBIT_RETURN_IF_ERROR(cuda_status(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
      "cuTensorMapEncodeTiled"));
  if (found != cudaDriverEntryPointSuccess || function == nullptr)
    return Status{StatusCode::kUnsupported, "the CUDA driver has no cuTensorMapEncodeTiled"};
  return Driver{reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function)};
}
const Result<Driver>& driver() {
  static const Result<Driver> found = find_driver();
  return found;
}

}  // namespace

bool are_signed_pieces(const ProductRows& rows, int32_t planes) {
  const uint64_t bits =
      reinterpret_cast<uintptr_t>(rows.codes) | static_cast<uint64_t>(rows.step) | static_cast<uint64_t>(rows.sequence);
  return planes == 1 && rows.flip == 0x80 && rows.floats.first == nullptr && bits % kPiece == 0;
}

bool has_map(const ProductRows& rows, int32_t planes) {
  if (!are_signed_pieces(rows, planes)) return false;
  const Layout at = layout_of(rows);
  const auto is_stride = [](int64_t stride) { return stride >= 0 && stride <= kMostStride; };
  return is_stride(at.inner_stride) && is_stride(at.outer_stride) && rows.rows <= kMostRows &&
         (at.inner == rows.rows || at.inner % kTileRows == 0 || kTileRows % at.inner == 0);
}

Status find_tensor_maps() { return driver().status(); }

Status map_rows(const ProductRows& rows, int64_t k, int32_t box_rows, RowsInPlace& result) {
  ISOBIT_RETURN_IF_ERROR(find_tensor_maps());
  const Layout at = layout_of(rows);
  const bool is_one_step = at.inner == rows.rows;
  if (is_one_step) box_rows = static_cast<int32_t>(std::min<int64_t>(box_rows, rows.rows));
  const int64_t box_inner = is_one_step ? box_rows : std::min<int64_t>(box_rows, at.inner);
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(at.inner),
                              static_cast<cuuint64_t>((rows.rows + at.inner - 1) / at.inner)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(at.inner_stride), static_cast<cuuint64_t>(at.outer_stride)};
  const cuuint32_t box[] = {kBoxBytes, static_cast<cuuint32_t>(box_inner),
                            static_cast<cuuint32_t>(box_rows / box_inner)};
  constexpr cuuint32_t kEach[] = {1, 1, 1};
  result.batch = is_one_step ? INT32_MAX : static_cast<int32_t>(at.inner);
  result.rows = is_one_step ? static_cast<int32_t>(rows.rows) : 0;
  result.box_bytes = box_rows * static_cast<int32_t>(kBoxBytes);
  const CUresult error =
      driver()->encode_tiled(&result.map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<uint8_t*>(rows.codes), sizes,
                             strides, box, kEach, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (error != CUDA_SUCCESS)
    return {StatusCode::kFailedPrecondition,
            "cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(error)) + " for " +
                std::to_string(rows.rows) + " rows of " + std::to_string(k) + " bytes"};
  return {};
}

}  // namespace isobit::cuda
