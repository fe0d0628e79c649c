// SPDX-License-Identifier: Apache-2.0
// The product of many rows of unsigned codes with a weight matrix on a device, each result rescaled twice:
//   s = start[n] + sum over k of x[m][k] * w[n][k]                in int32, wrapping
//   v = min(max(nearest_even(s * ratio[n]), low), high)           in float32
//   out[m][n] = nearest_even(v * again[n]) + 32768                in uint16
// Exact where |s| <= 2^24 and |s * ratio|, |v * again| < 2^22; the same bytes from each kernel in any case.
#ifndef ISOBIT_LINEAR_CUDA_PRODUCT_H_
#define ISOBIT_LINEAR_CUDA_PRODUCT_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "isobit/status.h"

namespace isobit::cuda {

enum class ProductKernel {
  kMma,    // cuda_product.cuh: every device, any depth
  kWgmma,  // cuda_product_wgmma.cuh: code for sm_90a, and a depth that shared memory holds
};

/// What a product takes, without padding.
struct ProductWeights {
  int64_t n = 0, k = 0;        // n a multiple of 48, k at least 1
  std::vector<int8_t> w;       // [n][k]
  std::vector<int32_t> start;  // [n] each
  std::vector<float> ratio, again;
  float low = 0, high = 0;
};

/// The same on a device.
struct DeviceProduct {
  int64_t n = 0, k = 0;
  float low = 0, high = 0;
  int32_t processors = 0;
  // For kMma, padded to whole tiles: [n_padded][k_padded], [n_padded].
  int64_t n_padded = 0, k_padded = 0;
  const int8_t* w = nullptr;
  const int32_t* start = nullptr;
  const float* ratio = nullptr;
  const float* again = nullptr;
  // For kWgmma: WgmmaArgs::w; columns of a tile, 0 where it cannot run; clusters that the device runs at once.
  int32_t columns = 0, k_blocks = 0, stages = 0, cluster = 0, clusters = 0;
  const uint8_t* image = nullptr;
};

/// The arrays behind the pointers, on the host.
struct ProductPack {
  DeviceProduct product;
  std::vector<int8_t> w;
  std::vector<int32_t> start;
  std::vector<float> ratio, again;
  std::vector<uint8_t> image;
};

/// Rows of codes in device memory: row r is the k bytes from codes + r / batch * step + r % batch * sequence on.
struct ProductRows {
  const uint8_t* codes = nullptr;
  int64_t rows = 0, batch = 1;
  int64_t step = 0, sequence = 0;
  uint8_t flip = 0;  // exclusive or: 0x80 makes signed codes unsigned
};

/// Packs for the current device and prepares its kernels there.
Result<ProductPack> pack_product(const ProductWeights& weights);

/// The faster kernel for so many rows.
ProductKernel choose_product_kernel(const DeviceProduct& product, int64_t rows);

/// Bytes of padded rows, for either kernel: grows with `rows`, and by at most 64 * product_x_row_bytes more than
/// in proportion to them.
int64_t product_x_row_bytes(const DeviceProduct& product);
int64_t product_x_bytes(const DeviceProduct& product, int64_t rows);

/// Writes the rows into x, 16-byte aligned, in the order of a kernel. At least one row.
Status pad_product_x(const DeviceProduct& product, ProductKernel kernel, const ProductRows& from, uint8_t* x,
                     cudaStream_t stream);
/// out [rows][n], 16-byte aligned, from what pad_product_x has written for that kernel. At least one row.
Status launch_product(const DeviceProduct& product, ProductKernel kernel, const uint8_t* x, int64_t rows, uint16_t* out,
                      cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_PRODUCT_H_
