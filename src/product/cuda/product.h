// SPDX-License-Identifier: Apache-2.0
// The product of many rows of unsigned codes with a weight matrix on a device, each result rescaled twice, first by
// ratios of type Ratio (core/ratio.h):
//   s = start[n] + sum over k of x[m][k] * w[n][k]
//   v = min(max(nearest_even(s * ratio[n]), low), high)
//   out[m][n] = nearest_even(v * again[n]) + 32768                in uint16
// Exact in float where |s| <= 2^24 and |s * ratio|, |v * again| < 2^22, in double where |s| <= 2^53 and those < 2^51,
// Fixed where s fits 32 bits and |low|, |high|, |v * again| < 2^22; the same bytes from each kernel in any case. By
// shifts: start has 2^(shift - 1) - 1 more, with which, and one more, s fits. The sum over k of bytes of x fits 32
// bits: k at most 2^16.
#ifndef ISOBIT_PRODUCT_CUDA_PRODUCT_H_
#define ISOBIT_PRODUCT_CUDA_PRODUCT_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/cuda/floats.h"
#include "core/ratio.h"
#include "isobit/status.h"

namespace isobit::cuda {

enum class ProductKernel {
  kMma,      // product.cuh: every device, every depth
  kWgmma,    // wgmma.cuh: code for sm_90a; codes of two bytes from K = 641 on
  kOneTile,  // one_tile.cuh: code for sm_90a; as many rows as one_tile_columns says
};

/// That a tile of kOneTile can have.
inline constexpr int32_t kOneTileColumns[] = {48, 96, 144};

/// What a product takes, without padding.
template <typename Ratio>
struct ProductWeights {
  int64_t n = 0, k = 0;             // n a multiple of 48, k at least 1
  int32_t planes = 1;               // bytes of a code of x: 1, either of Fixed and double, 2 of WideFixed
  std::vector<int8_t> w;            // [n][k]
  std::vector<SumOf<Ratio>> start;  // [n] each
  std::vector<Ratio> ratio;
  std::vector<LaneOf<Ratio>> again;
  LimitOf<Ratio> low = 0, high = 0;
  bool by_shifts = false;  // rows of Fixed and WideFixed
};

/// What does not depend on the ratios. Pointers are device memory.
struct ProductShape {
  int64_t n = 0, k = 0;
  int32_t planes = 1;
  int32_t processors = 0;
  bool starts_early = false;  // the device has programmatic dependent launch
  // For kMma, padded to whole tiles: [n_padded][k_padded].
  int64_t n_padded = 0, k_padded = 0;
  const int8_t* w = nullptr;
  // For kWgmma and kOneTile: WgmmaArgs::w and n_image.
  const uint8_t* image = nullptr;
  int64_t n_image = 0;
  int32_t k_blocks = 0;
  // Of kWgmma: columns of a tile, 0 where it cannot run; clusters that the device runs at once.
  int32_t columns = 0, stages = 0, cluster = 0, clusters = 0;
  bool deep = false;  // product_wgmma_deep: W does not stay in shared memory
  // Blocks of kOneTile that the device runs at once, in clusters of two; 0 where it cannot run.
  int32_t tiles_at_once = 0;
};
/// A product on a device.
template <typename Ratio>
struct DeviceProduct {
  ProductShape shape;
  LimitOf<Ratio> low = 0, high = 0;
  bool by_shifts = false;
  const SumOf<Ratio>* start = nullptr;  // [n_padded] each, for kMma
  const Ratio* ratio = nullptr;
  const LaneOf<Ratio>* again = nullptr;
};

/// The arrays behind the pointers, on the host.
template <typename Ratio>
struct ProductPack {
  DeviceProduct<Ratio> product;
  std::vector<int8_t> w;
  std::vector<SumOf<Ratio>> start;
  std::vector<Ratio> ratio;
  std::vector<LaneOf<Ratio>> again;
  std::vector<uint8_t> image;
};

/// Rows of codes in device memory: row r is k codes from byte codes + r / batch * step + r % batch * sequence on, each
/// little-endian.
struct ProductRows {
  const uint8_t* codes = nullptr;
  int64_t rows = 0, batch = 1;
  int64_t step = 0, sequence = 0;  // bytes
  uint8_t flip = 0;                // exclusive or with the highest byte: 0x80 makes signed codes unsigned
  DeviceFloats floats{};           // where `codes` are floats: quantised on the way, and NaN looked for
};

/// Packs for the current device and prepares its kernels there.
template <typename Ratio>
Result<ProductPack<Ratio>> pack_product(const ProductWeights<Ratio>& weights);

/// Weights for a kernel of one's own, as WgmmaMatrix has them: the image and its shape, nothing else. Any ratios.
template <typename Ratio>
ProductPack<Ratio> pack_wgmma_weights(const ProductWeights<Ratio>& weights);

/// The faster kernel for so many rows.
ProductKernel choose_product_kernel(const ProductShape& shape, int64_t rows);
/// Columns of a tile of kOneTile: the fewest with which the device takes all tiles of so many rows at once. 0 where
/// there are none.
int32_t one_tile_columns(const ProductShape& shape, int64_t rows);

/// Bytes of padded rows, for any kernel: grows with `rows`, and by at most 64 * product_x_row_bytes more than
/// in proportion to them.
int64_t product_x_row_bytes(const ProductShape& shape);
int64_t product_x_bytes(const ProductShape& shape, int64_t rows);

/// Writes the rows into x, 16-byte aligned, in the order of a kernel. At least one row.
Status pad_product_x(const ProductShape& shape, ProductKernel kernel, const ProductRows& from, uint8_t* x,
                     cudaStream_t stream);
/// What is padded in the order of kWgmma and kOneTile.
struct ProductPadding {
  const ProductShape* shape;
  ProductRows from;
  uint8_t* x;
};
Status pad_product_x(const ProductPadding& only, cudaStream_t stream);
/// The same for two products in one launch. Only `first` may be of floats.
Status pad_product_x(const ProductPadding& first, const ProductPadding& second, cudaStream_t stream);

/// Whether that kernel can do without padding: bytes of signed codes in rows of whole pieces of 16 bytes, whose layout
/// it can describe.
bool reads_in_place(const ProductShape& shape, ProductKernel kernel, const ProductRows& x);
/// out [rows][n], 16-byte aligned, from what pad_product_x, just before in the stream, has written for that kernel and
/// these rows, or, where `padded` is null, from the rows, which it reads_in_place. At least one row. Where the device
/// can, both let the next grid begin early (let_next_grid_start), and this one does. columns: of kOneTile, one of
/// kOneTileColumns; 0: what one_tile_columns says.
template <typename Ratio>
Status launch_product(const DeviceProduct<Ratio>& product, ProductKernel kernel, const ProductRows& x,
                      const uint8_t* padded, uint16_t* out, cudaStream_t stream, int32_t columns = 0);

}  // namespace isobit::cuda

#endif  // ISOBIT_PRODUCT_CUDA_PRODUCT_H_
