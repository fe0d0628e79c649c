// SPDX-License-Identifier: Apache-2.0
// The product's host side: packing, padding, the choice of a kernel, launches.
#include "linear/cuda_product.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/cuda_status.h"
#include "linear/cuda_product.cuh"
#include "linear/cuda_product_wgmma.cuh"

namespace isobit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWgmmaMinStages = 4;
/// Fewer rows leave most of the device without a tile of 64 of them, and W is read for little: kMma takes those.
constexpr int64_t kWgmmaMinRows = 2048;

int64_t ceil_div(int64_t x, int64_t by) { return (x + by - 1) / by; }

using WgmmaKernel = void (*)(WgmmaArgs);
WgmmaKernel wgmma_kernel(int32_t columns) {
  return columns == 192 ? product_wgmma<192> : columns == 144 ? product_wgmma<144> : product_wgmma<96>;
}

/// Codes to unsigned rows padded with zeros; four bytes a thread.
__global__ void __launch_bounds__(kThreads)
    pad_rows(const __grid_constant__ ProductRows from, int64_t size, int64_t padded, int64_t words, uint32_t* out) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  const int64_t row_words = padded / 4;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += stride) {
    const int64_t row = i / row_words;
    const int64_t k = i % row_words * 4;
    const uint8_t* codes = from.codes + row / from.batch * from.step + row % from.batch * from.sequence + k;
    uint32_t word = 0;
    for (int64_t j = 0; j < 4; ++j)
      if (k + j < size) word |= static_cast<uint32_t>(codes[j] ^ from.flip) << (8 * j);
    out[i] = word;
  }
}

/// The same in the order of WgmmaArgs::x; a block of threads is 64 rows x 128 codes, 16 codes a thread. Whole: every
/// 16 codes are there and aligned.
template <bool Whole>
__global__ void __launch_bounds__(kThreads)
    pad_stages(const __grid_constant__ ProductRows from, int64_t size, uint4* out) {
  const uint32_t flips = from.flip * 0x01010101u;
  const auto batch = static_cast<uint32_t>(from.batch);
  uint4* const to = out + (int64_t{blockIdx.x} * gridDim.y + blockIdx.y) * (kWgmmaStageBytes / 16);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto i = static_cast<int>(threadIdx.x) + half * kThreads;
    const int64_t row = int64_t{blockIdx.x} * kWgmmaRows + i / 8;
    const int64_t k = int64_t{blockIdx.y} * kWgmmaDepth + (i % 8 ^ i / 8 % 8) * 16;
    uint4 piece{0, 0, 0, 0};
    if (row < from.rows && k < size) {
      const uint8_t* codes = from.codes + static_cast<uint32_t>(row) / batch * from.step +
                             static_cast<uint32_t>(row) % batch * from.sequence + k;
      if (Whole) {
        piece = *reinterpret_cast<const uint4*>(codes);
        piece = uint4{piece.x ^ flips, piece.y ^ flips, piece.z ^ flips, piece.w ^ flips};
      } else {
        uint32_t words[4] = {};
#pragma unroll
        for (int j = 0; j < 16; ++j)
          if (k + j < size) words[j / 4] |= static_cast<uint32_t>(codes[j] ^ from.flip) << (j % 4 * 8);
        piece = uint4{words[0], words[1], words[2], words[3]};
      }
    }
    to[i] = piece;
  }
}

cudaLaunchConfig_t wgmma_config(const DeviceProduct& p, int64_t clusters, cudaLaunchAttribute& attribute) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * p.cluster));
  config.blockDim = dim3(kWgmmaThreads);
  config.dynamicSmemBytes = static_cast<size_t>(wgmma_shared(p.columns, p.k_blocks, p.stages).total);
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(p.cluster), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  return config;
}

/// The tile whose part of W fits shared memory with the least to multiply. A tile reads its 64 rows of x for its
/// columns: as if they were 16 columns more.
void cut_wgmma(int32_t shared, DeviceProduct& p) {
  const int64_t k_blocks = ceil_div(p.k, kWgmmaDepth);
  int64_t least = INT64_MAX;
  for (const int32_t columns : {192, 144, 96}) {
    if (k_blocks * columns * kWgmmaDepth > shared) continue;
    const auto blocks = static_cast<int32_t>(k_blocks);
    int32_t stages = kWgmmaMaxStages;
    while (stages >= kWgmmaMinStages && wgmma_shared(columns, blocks, stages).total > shared) --stages;
    const int64_t work = ceil_div(p.n, columns) * (columns + 16);
    if (stages < kWgmmaMinStages || work >= least) continue;
    least = work;
    p.columns = columns;
    p.k_blocks = blocks;
    p.stages = stages;
  }
  if (p.columns > 0) p.cluster = ceil_div(p.n, p.columns) % 2 == 0 ? 2 : 1;
}

/// Sets p.columns where the device can run product_wgmma.
Status prepare_wgmma(DeviceProduct& p) {
  int32_t compiled = 0;
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaMemcpyFromSymbol(&compiled, wgmma_compiled, sizeof compiled), "product: wgmma"));
  if (compiled == 0) return {};
  int device = 0, shared = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "the current device"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                                     "shared memory of a block"));
  cut_wgmma(shared, p);
  if (p.columns == 0) return {};
  cudaLaunchAttribute attribute{};
  const cudaLaunchConfig_t config = wgmma_config(p, 1, attribute);
  const WgmmaKernel kernel = wgmma_kernel(p.columns);
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
                                     "product_wgmma: shared memory"));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaOccupancyMaxActiveClusters(&p.clusters, kernel, &config), "clusters on the device"));
  if (p.clusters == 0) p.columns = 0;
  return {};
}

/// WgmmaArgs::w.
void pack_image(const ProductWeights& weights, ProductPack& pack) {
  const DeviceProduct& p = pack.product;
  const auto columns = static_cast<size_t>(p.columns);
  const auto depth = static_cast<size_t>(weights.k);
  const size_t block_bytes = columns * kWgmmaDepth;
  const size_t matrix_bytes = static_cast<size_t>(p.k_blocks) * block_bytes;
  const size_t tile_bytes = matrix_bytes + columns * kWgmmaParameterBytes;
  pack.image.assign(static_cast<size_t>(ceil_div(p.n, p.columns)) * tile_bytes, 0);
  for (size_t row = 0; row < static_cast<size_t>(p.n); ++row) {
    uint8_t* const tile = pack.image.data() + row / columns * tile_bytes;
    const size_t column = row % columns;
    for (size_t k = 0; k < depth; ++k) {
      const size_t piece = k % kWgmmaDepth / 16 ^ column % 8;
      tile[k / kWgmmaDepth * block_bytes + column * kWgmmaDepth + piece * 16 + k % 16] =
          static_cast<uint8_t>(weights.w[row * depth + k]);
    }
    uint8_t* const ratios = tile + matrix_bytes + column / 2 * 16 + column % 2 * 4;
    std::memcpy(ratios, &weights.ratio[row], 4);
    std::memcpy(ratios + 8, &weights.again[row], 4);
    std::memcpy(tile + matrix_bytes + columns * 8 + column * 4, &weights.start[row], 4);
  }
}

}  // namespace

Result<ProductPack> pack_product(const ProductWeights& weights) {
  ProductPack pack;
  DeviceProduct& p = pack.product;
  p.n = weights.n;
  p.k = weights.k;
  p.low = weights.low;
  p.high = weights.high;
  p.n_padded = ceil_div(p.n, kProductColumns) * kProductColumns;
  p.k_padded = ceil_div(p.k, kProductDepth) * kProductDepth;
  int device = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "the current device"));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&p.processors, cudaDevAttrMultiProcessorCount, device), "processors"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaFuncSetAttribute(product_u8s8, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                          kProductStages * kProductStageBytes),
                                     "product_u8s8: shared memory"));
  ISOBIT_RETURN_IF_ERROR(prepare_wgmma(p));

  const auto rows = static_cast<size_t>(p.n_padded);
  const auto depth = static_cast<size_t>(p.k);
  pack.w.assign(rows * static_cast<size_t>(p.k_padded), 0);
  for (size_t row = 0; row < static_cast<size_t>(p.n); ++row)
    std::copy_n(weights.w.begin() + static_cast<std::ptrdiff_t>(row * depth), depth,
                pack.w.begin() + static_cast<std::ptrdiff_t>(row * static_cast<size_t>(p.k_padded)));
  pack.start = weights.start;
  pack.ratio = weights.ratio;
  pack.again = weights.again;
  pack.start.resize(rows, 0);
  pack.ratio.resize(rows, 1);
  pack.again.resize(rows, 1);
  if (p.columns > 0) pack_image(weights, pack);
  return pack;
}

ProductKernel choose_product_kernel(const DeviceProduct& product, int64_t rows) {
  return product.columns > 0 && rows >= kWgmmaMinRows ? ProductKernel::kWgmma : ProductKernel::kMma;
}

int64_t product_x_row_bytes(const DeviceProduct& p) {
  return std::max(p.k_padded, p.columns > 0 ? int64_t{p.k_blocks} * kWgmmaDepth : 0);
}
int64_t product_x_bytes(const DeviceProduct& p, int64_t rows) {
  return ceil_div(rows, kWgmmaRows) * kWgmmaRows * product_x_row_bytes(p);
}

Status pad_product_x(const DeviceProduct& p, ProductKernel kernel, const ProductRows& from, uint8_t* x,
                     cudaStream_t stream) {
  if (kernel == ProductKernel::kMma) {
    const int64_t words = from.rows * p.k_padded / 4;
    const int64_t blocks = std::min(ceil_div(words, kThreads), int64_t{16} * p.processors);
    pad_rows<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(from, p.k, p.k_padded, words,
                                                                     reinterpret_cast<uint32_t*>(x));
    return launch_status("pad_rows");
  }
  const dim3 grid(static_cast<unsigned>(ceil_div(from.rows, kWgmmaRows)), static_cast<unsigned>(p.k_blocks));
  const bool whole = (reinterpret_cast<uintptr_t>(from.codes) | static_cast<uint64_t>(from.step) |
                      static_cast<uint64_t>(from.sequence) | static_cast<uint64_t>(p.k)) %
                         16 ==
                     0;
  (whole ? pad_stages<true> : pad_stages<false>)<<<grid, kThreads, 0, stream>>>(from, p.k, reinterpret_cast<uint4*>(x));
  return launch_status("pad_stages");
}

Status launch_product(const DeviceProduct& p, ProductKernel kernel, const uint8_t* x, int64_t rows, uint16_t* out,
                      cudaStream_t stream) {
  if (kernel == ProductKernel::kMma) {
    ProductArgs a{};
    a.x = x;
    a.w = p.w;
    a.m = rows;
    a.n = p.n;
    a.k_padded = p.k_padded;
    a.start = p.start;
    a.ratio = p.ratio;
    a.low = p.low;
    a.high = p.high;
    a.again = p.again;
    a.out = out;
    // Blocks that run together read the same rows of x. The caller has few enough rows for the second dimension.
    const dim3 grid(static_cast<unsigned>(p.n_padded / kProductColumns),
                    static_cast<unsigned>(ceil_div(rows, kProductRows)));
    product_u8s8<<<grid, kProductThreads, kProductStages * kProductStageBytes, stream>>>(a);
    return launch_status("product_u8s8");
  }
  WgmmaArgs a{};
  a.x = x;
  a.w = p.image;
  a.m = rows;
  a.n = p.n;
  a.k_blocks = p.k_blocks;
  a.n_tiles = static_cast<int32_t>(ceil_div(p.n, p.columns));
  a.stages = p.stages;
  a.cluster = p.cluster;
  a.low = p.low;
  a.high = p.high;
  a.out = out;
  // The same number of clusters for each group of tiles of columns, all at once where there are enough.
  const int64_t groups = a.n_tiles / p.cluster;
  const int64_t each = std::clamp<int64_t>(p.clusters / groups, 1, ceil_div(rows, kWgmmaRows));
  cudaLaunchAttribute attribute{};
  cudaLaunchConfig_t config = wgmma_config(p, groups * each, attribute);
  config.stream = stream;
  return cuda_status(cudaLaunchKernelEx(&config, wgmma_kernel(p.columns), a), "kernel product_wgmma");
}

}  // namespace isobit::cuda
