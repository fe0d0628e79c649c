// SPDX-License-Identifier: Apache-2.0
// Rows of codes as kernels for sm_90a read them where the caller has them, by bulk copies of a tensor map: without a
// launch before that copies them.
#ifndef ISOBIT_PRODUCT_CUDA_ROWS_IN_PLACE_H_
#define ISOBIT_PRODUCT_CUDA_ROWS_IN_PLACE_H_

#include <cuda.h>

#include <cstdint>

#include "isobit/status.h"

namespace isobit::cuda {

struct ProductRows;

/// Copies bring 128 codes of up to 64 rows into shared memory in the order of WgmmaArgs::x, zeros for what is beyond
/// the rows or their codes. Row r is row r % batch of step r / batch; rows that are all as far apart are one step.
///
/// A copy takes some 7 cycles for each row beyond the last one, more than for one that is there. So where a batch is
/// one step, copies have no more rows than that, and the last tile may begin in the one before it (begin_tile).
struct RowsInPlace {
  CUtensorMap map;
  int32_t batch = 1;
  int32_t rows = 0;       // where tiles may not go beyond them, else 0
  int32_t box_bytes = 0;  // of a copy
};

/// Whether their k codes are signed bytes, in rows of whole pieces of 16 bytes.
bool are_signed_pieces(const ProductRows& rows, int32_t planes);
/// Whether a tensor map can describe them: are_signed_pieces, and all as far apart, or of so many sequences that 64
/// rows are whole steps, or a part of one.
bool has_map(const ProductRows& rows, int32_t planes);
/// Looks up the driver's function for maps, when a model is created: its first run may be in a capture.
Status find_tensor_maps();
/// Of rows that have one. box_rows: of a copy, a power of two to 64.
Status map_rows(const ProductRows& rows, int64_t k, int32_t box_rows, RowsInPlace& result);

}  // namespace isobit::cuda

#endif  // ISOBIT_PRODUCT_CUDA_ROWS_IN_PLACE_H_
