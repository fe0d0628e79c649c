// SPDX-License-Identifier: Apache-2.0
// The product's host side: packing, padding, the choice of a kernel, launches.
#include "product/cuda/product.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "core/cuda/launch.h"
#include "core/cuda/quantize.cuh"
#include "core/cuda/status.h"
#include "product/cuda/one_tile.cuh"
#include "product/cuda/product.cuh"
#include "product/cuda/rows_in_place.h"
#include "product/cuda/wgmma.cuh"

namespace isobit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWgmmaMinStages = 4;
/// Where kWgmma is ahead of kMma, padding included: fewer rows of a small depth leave most of the device without a tile
/// of 64.
constexpr int64_t kWgmmaMinRows = 512, kWgmmaMinDepth = 512;
/// product_wgmma_deep takes matrices from this depth on: its pipeline takes many k blocks to pay. A cluster takes 256 rows
/// at once.
constexpr int64_t kDeepMinDepth = 641, kDeepMinRows = 128;
/// kOneTile pays from this depth on: below it the others are as fast.
constexpr int64_t kOneTileMinDepth = 256;

int64_t ceil_div(int64_t x, int64_t by) { return (x + by - 1) / by; }

template <typename Ratio>
using MmaKernel = void (*)(ProductArgs<Ratio>);
/// Calls body with the planes of x as a constant: sums of two do not fit float.
template <typename Ratio, typename Body>
auto with_planes(int32_t planes, Body body) {
  if constexpr (!std::is_same_v<Ratio, float>)
    if (planes == 2) return body(std::integral_constant<int, 2>());
  return body(std::integral_constant<int, 1>());
}
template <typename Ratio>
MmaKernel<Ratio> mma_kernel(int32_t planes) {
  return with_planes<Ratio>(planes, [](auto count) -> MmaKernel<Ratio> { return product_mma<count(), Ratio>; });
}
template <typename Ratio>
using WgmmaKernel = void (*)(WgmmaArgs<Ratio>);
template <typename Ratio>
WgmmaKernel<Ratio> wgmma_kernel(const ProductShape& p) {
  return with_planes<Ratio>(p.planes, [&](auto planes) -> WgmmaKernel<Ratio> {
    if constexpr (planes() == 1)
      if (!p.deep)
        return p.columns == 192   ? product_wgmma<192, Ratio>
               : p.columns == 144 ? product_wgmma<144, Ratio>
                                  : product_wgmma<96, Ratio>;
    return product_wgmma_deep<planes(), Ratio>;
  });
}

template <int Planes>
__device__ __forceinline__ uint32_t code_at(const uint8_t* row, int64_t k) {
  uint32_t code = row[k * Planes];
  if (Planes == 2) code |= static_cast<uint32_t>(row[k * 2 + 1]) << 8;
  return code;
}
/// Bits of the code of a float.
template <int Planes>
__device__ __forceinline__ uint32_t code_of(const ProductRows& from, float value) {
  return static_cast<uint32_t>(quantize_float<int32_t>(from.floats, value)) & (Planes == 2 ? 0xffff : 0xff);
}
/// Byte `plane` of each of four codes, high bytes first.
template <int Planes>
__device__ __forceinline__ uint32_t word_of(const uint32_t (&code)[4], int plane) {
  uint32_t word = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) word |= (code[j] >> 8 * (Planes - 1 - plane) & 0xff) << 8 * j;
  return word;
}

/// What makes bytes of a plane what kernels take: signed where it is the only one, else the high ones unsigned.
template <int Planes>
__device__ __forceinline__ uint32_t flips_of(const ProductRows& from) {
  return (Planes == 1 ? from.flip ^ 0x80u : from.flip) * 0x01010101u;
}

/// Codes, or floats of codes, to rows of planes of bytes, high ones first; four codes a thread. What comes beyond
/// `size` does not matter: weights there are zero.
template <int Planes>
__global__ void __launch_bounds__(kThreads)
    pad_rows(const __grid_constant__ ProductRows from, int64_t size, int64_t padded, int64_t words, uint32_t* out) {
  let_next_grid_start();
  wait_for_grid_before();
  unsigned long long* const nan_place = nan_place_of(from.floats, blockIdx.x);
  begin_nan_search(from.floats, blockIdx.x, gridDim.x);
  const bool is_float = from.floats.first != nullptr;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  const int64_t row_words = padded / 4;
  const uint32_t flips = flips_of<Planes>(from);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += stride) {
    const int64_t row = i / row_words;
    const int64_t k = i % row_words * 4;
    const uint8_t* const at = from.codes + row / from.batch * from.step + row % from.batch * from.sequence;
    uint32_t code[4] = {};
    if (is_float) {
      const float* const floats = reinterpret_cast<const float*>(at) + k;
      float values[4] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (k + j < size) values[j] = floats[j];
#pragma unroll
      for (int j = 0; j < 4; ++j) code[j] = code_of<Planes>(from, values[j]);
      look_for_nan(from.floats, nan_place, floats, values);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (k + j < size) code[j] = code_at<Planes>(at, k + j);
    }
#pragma unroll
    for (int plane = 0; plane < Planes; ++plane)
      out[(row * Planes + plane) * row_words + i % row_words] = word_of<Planes>(code, plane) ^ (plane == 0 ? flips : 0);
  }
}

/// Byte `first` of each code of two bytes of two words, one pair of words after the other.
__device__ __forceinline__ uint4 plane_of(const uint4& codes, const uint4& more, bool high) {
  const uint32_t bytes = high ? 0x7531 : 0x6420;
  return uint4{__byte_perm(codes.x, codes.y, bytes), __byte_perm(codes.z, codes.w, bytes),
               __byte_perm(more.x, more.y, bytes), __byte_perm(more.z, more.w, bytes)};
}
/// Rows to the order of WgmmaArgs::x. whole: every 16 codes, or 4 floats, are there and aligned.
struct PadStages {
  ProductRows from;
  int64_t size;
  uint4* out;
  int32_t k_blocks, planes;
  bool whole;
};
/// A row of pad.from; the last one for rows beyond.
__device__ __forceinline__ const uint8_t* row_at(const PadStages& pad, int64_t wanted) {
  const ProductRows& from = pad.from;
  const auto batch = static_cast<uint32_t>(from.batch);
  const auto row = static_cast<uint32_t>(min(wanted, from.rows - 1));
  return from.codes + row / batch * from.step + row % batch * from.sequence;
}
/// 64 rows x 128 codes by a block of threads, 16 codes a thread at a time. What is read for a row or a column that is
/// not there does not matter: rows are of no use, and weights of such columns are zero.
template <int Planes, bool Whole>
__device__ __forceinline__ void pad_stage(const PadStages& pad, int64_t row_tile, int32_t k_block) {
  constexpr int kHalves = kWgmmaRows * kWgmmaDepth / 16 / kThreads;
  const uint32_t flips = flips_of<Planes>(pad.from);
  const int64_t plane_pieces = int64_t{pad.k_blocks} * (kWgmmaStageBytes / 16);
  uint4* const to = pad.out + row_tile * Planes * plane_pieces + k_block * (kWgmmaStageBytes / 16) + threadIdx.x;
  const auto first = static_cast<int>(threadIdx.x);
  const int64_t k = int64_t{k_block} * kWgmmaDepth + (first % 8 ^ first / 8 % 8) * 16;
  const uint8_t* rows[kHalves];
#pragma unroll
  for (int half = 0; half < kHalves; ++half)
    rows[half] = row_at(pad, row_tile * kWgmmaRows + first / 8 + half * (kThreads / 8));
  uint4 piece[kHalves][Planes];  // high bytes first
  // All loads are under way before the first result is looked at.
  if constexpr (Whole) {
    uint4 codes[kHalves][Planes];
    const int64_t there = k < pad.size ? k : 0;
    wait_for_grid_before();
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = 0; i < Planes; ++i) codes[half][i] = reinterpret_cast<const uint4*>(rows[half] + there * Planes)[i];
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int plane = 0; plane < Planes; ++plane)
        piece[half][plane] =
            Planes == 1 ? codes[half][0] : plane_of(codes[half][0], codes[half][Planes - 1], plane == 0);
  } else {
    uint32_t code[kHalves][4][4] = {};
    wait_for_grid_before();
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int j = 0; j < 16; ++j)
        if (k + j < pad.size) code[half][j / 4][j % 4] = code_at<Planes>(rows[half], k + j);
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int plane = 0; plane < Planes; ++plane)
        piece[half][plane] = uint4{word_of<Planes>(code[half][0], plane), word_of<Planes>(code[half][1], plane),
                                   word_of<Planes>(code[half][2], plane), word_of<Planes>(code[half][3], plane)};
  }
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    uint4& high = piece[half][0];
    high = uint4{high.x ^ flips, high.y ^ flips, high.z ^ flips, high.w ^ flips};
#pragma unroll
    for (int plane = 0; plane < Planes; ++plane) to[plane * plane_pieces + half * kThreads] = piece[half][plane];
  }
}
__device__ __forceinline__ void pad_stage_of_codes(const PadStages& pad, uint32_t stage) {
  const auto k_blocks = static_cast<uint32_t>(pad.k_blocks);
  const auto row_tile = static_cast<int64_t>(stage / k_blocks);
  const auto k_block = static_cast<int32_t>(stage % k_blocks);
  if (pad.planes == 1) {
    pad.whole ? pad_stage<1, true>(pad, row_tile, k_block) : pad_stage<1, false>(pad, row_tile, k_block);
  } else {
    pad.whole ? pad_stage<2, true>(pad, row_tile, k_block) : pad_stage<2, false>(pad, row_tile, k_block);
  }
}
/// Stages of `one`, then of `another`, a block each.
__global__ void __launch_bounds__(kThreads)
    pad_stages(const __grid_constant__ PadStages one, const __grid_constant__ PadStages another,
               uint32_t first_stages) {
  let_next_grid_start();
  const bool is_first = blockIdx.x < first_stages;
  pad_stage_of_codes(is_first ? one : another, is_first ? blockIdx.x : blockIdx.x - first_stages);
}

/// Floats are four times the bytes of codes: a stage is cut into parts for more of the device to read it, where there
/// are few stages.
constexpr int kFloatParts = 4;
constexpr uint32_t kMostFloatParts = 1024;
/// A part of a stage, 64 / Parts rows, from floats: four of a row a thread, the next four the next thread, a warp a
/// row.
template <int Planes, int Parts>
__device__ __forceinline__ void pad_part(const PadStages& pad, uint32_t part, bool is_first) {
  constexpr int kWarps = kThreads / 32;
  constexpr int kRows = kWgmmaRows / Parts / kWarps;  // of a warp, which are kWarps apart
  static_assert(kWgmmaDepth == 4 * 32 && kWarps % 8 == 0);
  const ProductRows& from = pad.from;
  const uint32_t flips = flips_of<Planes>(from);
  const auto k_blocks = static_cast<uint32_t>(pad.k_blocks);
  const uint32_t stage = part / Parts;
  const int64_t row_tile = stage / k_blocks, k_block = stage % k_blocks;
  const int64_t plane_words = int64_t{pad.k_blocks} * (kWgmmaStageBytes / 4);
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const auto first = static_cast<int>(part % Parts) * kRows * kWarps + static_cast<int>(threadIdx.x) / 32;
  uint32_t* const to = reinterpret_cast<uint32_t*>(pad.out) + row_tile * Planes * plane_words +
                       k_block * (kWgmmaStageBytes / 4) + first * 32 + lane;
  const int64_t k = k_block * kWgmmaDepth + (lane / 4 ^ first % 8) * 16 + lane % 4 * 4;
  unsigned long long* const nan_place = nan_place_of(from.floats, blockIdx.x);
  // A lane divides for a row of the warp, not each lane for all.
  const auto my_row = reinterpret_cast<uint64_t>(row_at(pad, row_tile * kWgmmaRows + first + lane % kRows * kWarps));
  const float* floats[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) floats[i] = reinterpret_cast<const float*>(__shfl_sync(0xffffffffu, my_row, i)) + k;
  wait_for_grid_before();
  float values[kRows][4] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (pad.whole) {
      if (k < pad.size) {
        const float4 four = *reinterpret_cast<const float4*>(floats[i]);
        values[i][0] = four.x;
        values[i][1] = four.y;
        values[i][2] = four.z;
        values[i][3] = four.w;
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (k + j < pad.size) values[i][j] = floats[i][j];
    }
  }
  if (is_first) begin_nan_search(from.floats, blockIdx.x, gridDim.x);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    uint32_t code[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) code[j] = code_of<Planes>(from, values[i][j]);
    look_for_nan(from.floats, nan_place, floats[i], values[i]);
#pragma unroll
    for (int plane = 0; plane < Planes; ++plane)
      to[plane * plane_words + i * kThreads] = word_of<Planes>(code, plane) ^ (plane == 0 ? flips : 0);
  }
}
/// Parts of `one`, which is of floats, then stages of `another`, which is of codes.
template <int Parts>
__global__ void __launch_bounds__(kThreads)
    pad_floats(const __grid_constant__ PadStages one, const __grid_constant__ PadStages another, uint32_t parts,
               uint32_t parts_and_stages) {
  let_next_grid_start();
  for (uint32_t i = blockIdx.x; i < parts_and_stages; i += gridDim.x) {
    const bool is_first = i == blockIdx.x;
    if (i < parts) {
      one.planes == 1 ? pad_part<1, Parts>(one, i, is_first) : pad_part<2, Parts>(one, i, is_first);
    } else {
      pad_stage_of_codes(another, i - parts);
      if (is_first) begin_nan_search(one.from.floats, blockIdx.x, gridDim.x);
    }
  }
}
PadStages pad_stages_of(const ProductPadding& padding) {
  const ProductShape& p = *padding.shape;
  const ProductRows& from = padding.from;
  const int64_t row = from.floats.first != nullptr ? p.k * 4 : p.k;
  const bool whole = (reinterpret_cast<uintptr_t>(from.codes) | static_cast<uint64_t>(from.step) |
                      static_cast<uint64_t>(from.sequence) | static_cast<uint64_t>(row)) %
                         16 ==
                     0;
  return {from, p.k, reinterpret_cast<uint4*>(padding.x), p.k_blocks, p.planes, whole};
}
uint32_t stages_of(const PadStages& pad) {
  return static_cast<uint32_t>(ceil_div(pad.from.rows, kWgmmaRows) * pad.k_blocks);
}
/// Stages beyond those of `one` are of `another`.
Status launch_pad_stages(const PadStages& one, const PadStages& another, uint32_t another_stages, cudaStream_t stream) {
  cudaLaunchAttribute early = early_start();
  cudaLaunchConfig_t config{};
  const uint32_t stages = stages_of(one);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  if (one.from.floats.first == nullptr) {
    config.gridDim = dim3(stages + another_stages);
    return cuda_status(cudaLaunchKernelEx(&config, pad_stages, one, another, stages), "kernel pad_stages");
  }
  const bool cut = stages * kFloatParts <= kMostFloatParts;
  const uint32_t parts = stages * (cut ? kFloatParts : 1);
  const uint32_t all = parts + another_stages;
  config.gridDim = dim3(one.from.floats.begins ? std::min(all, kNanPlaces) : all);
  return cuda_status(
      cudaLaunchKernelEx(&config, cut ? pad_floats<kFloatParts> : pad_floats<1>, one, another, parts, all),
      "kernel pad_floats");
}

template <typename Ratio>
cudaLaunchConfig_t wgmma_config(const ProductShape& p, int64_t clusters, cudaLaunchAttribute& attribute) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * p.cluster));
  config.blockDim = dim3(p.deep ? kDeepThreads : kWgmmaThreads);
  const WgmmaShared at = p.deep ? deep_shared<Ratio>() : wgmma_shared<Ratio>(p.columns, p.k_blocks, p.stages);
  config.dynamicSmemBytes = static_cast<size_t>(at.total);
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(p.cluster), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  return config;
}

template <typename Ratio>
WgmmaKernel<Ratio> one_tile_kernel(int32_t planes, int32_t columns) {
  return with_planes<Ratio>(planes, [&](auto count) {
    return with_columns(columns, [](auto width) -> WgmmaKernel<Ratio> {
      return product_one_tile<width(), decltype(count)::value, Ratio>;
    });
  });
}
/// Sets p.tiles_at_once.
template <typename Ratio>
Status prepare_one_tile(int32_t shared, ProductShape& p) {
  if (shared < kOneTileShared) return {};
  int32_t least = INT32_MAX;
  for (const int32_t columns : kOneTileColumns) {
    WgmmaArgs<Ratio> a{};
    a.m = int64_t{kOneTileMaxCluster} * kOneTileRowTiles * kWgmmaRows;
    cudaLaunchAttribute attribute{};
    cudaLaunchConfig_t config{};
    cut_one_tile(a, p, columns, config, attribute);
    const WgmmaKernel<Ratio> kernel = one_tile_kernel<Ratio>(p.planes, columns);
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                            static_cast<int>(config.dynamicSmemBytes)),
                                       "product_one_tile: shared memory"));
    int32_t clusters = 0;
    ISOBIT_RETURN_IF_ERROR(
        cuda_status(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "clusters on the device"));
    least = std::min(least, clusters);
  }
  p.tiles_at_once = least * kOneTileMaxCluster;
  return {};
}

/// The tile whose part of W fits shared memory with the least to multiply. A tile reads its 64 rows of x for its
/// columns: as if they were 16 columns more. From kDeepMinDepth on product_wgmma_deep, if its stages fit.
template <typename Ratio>
void cut_wgmma(int32_t shared, ProductShape& p) {
  const int64_t k_blocks = p.k_blocks;
  if (p.k >= kDeepMinDepth && deep_shared<Ratio>().total <= shared) {
    p.deep = true;
    p.columns = kDeepColumns;
    p.stages = kDeepStages;
    p.cluster = kDeepCluster;
    return;
  }
  if (p.planes != 1) return;
  int64_t least = INT64_MAX;
  for (const int32_t columns : {192, 144, 96}) {
    if (k_blocks * columns * kWgmmaDepth > shared) continue;
    const auto blocks = static_cast<int32_t>(k_blocks);
    int32_t stages = kWgmmaMaxStages;
    while (stages >= kWgmmaMinStages && wgmma_shared<Ratio>(columns, blocks, stages).total > shared) --stages;
    const int64_t work = ceil_div(p.n, columns) * (columns + 16);
    if (stages < kWgmmaMinStages || work >= least) continue;
    least = work;
    p.columns = columns;
    p.stages = stages;
  }
  if (p.columns > 0) p.cluster = ceil_div(p.n, p.columns) % 2 == 0 ? 2 : 1;
}

void size_image(ProductShape& p) {
  p.k_blocks = static_cast<int32_t>(ceil_div(p.k, kWgmmaDepth));
  p.n_image = p.n + kWgmmaMostColumns - 48;
}
/// Sets p.columns where the device can run product_wgmma or product_wgmma_deep, and p.tiles_at_once.
template <typename Ratio>
Status prepare_wgmma(ProductShape& p) {
  ISOBIT_ASSIGN_OR_RETURN(const bool compiled, has_90a_code());
  if (!compiled) return {};
  // A driver that is too old for them leaves all products to kMma.
  if (const Status maps = find_tensor_maps(); !maps.ok())
    return maps.code() == StatusCode::kUnsupported ? Status() : maps;
  int device = 0, shared = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "the current device"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                                     "shared memory of a block"));
  size_image(p);
  ISOBIT_RETURN_IF_ERROR(prepare_one_tile<Ratio>(shared, p));
  cut_wgmma<Ratio>(shared, p);
  if (p.columns == 0) return {};
  cudaLaunchAttribute attribute{};
  const cudaLaunchConfig_t config = wgmma_config<Ratio>(p, 1, attribute);
  const WgmmaKernel<Ratio> kernel = wgmma_kernel<Ratio>(p);
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
                                     "product_wgmma: shared memory"));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaOccupancyMaxActiveClusters(&p.clusters, kernel, &config), "clusters on the device"));
  if (p.clusters == 0) p.columns = 0;
  return {};
}

/// Of a cluster of product_wgmma_deep.
int64_t deep_tiles(const ProductShape& p, int64_t rows) {
  const int64_t row_tiles = ceil_div(rows, kWgmmaRows) * p.planes;
  return ceil_div(row_tiles, kDeepCluster * kDeepRowTiles) * ceil_div(p.n, p.columns);
}

/// What the sum of a row begins with where kernels take bytes as signed: they are less by 128 then.
template <typename Ratio>
SumOf<Ratio> start_of_bytes(const ProductWeights<Ratio>& weights, size_t row) {
  const SumOf<Ratio> start = weights.start[row];
  if (weights.planes == 2) return start;
  const auto depth = static_cast<size_t>(weights.k);
  int32_t sum = 0;
  for (size_t k = 0; k < depth; ++k) sum += weights.w[row * depth + k];
  if constexpr (std::is_same_v<SumOf<Ratio>, int32_t>) {  // modulo 2^32, as sums are
    return static_cast<int32_t>(static_cast<uint32_t>(start) + 128 * static_cast<uint32_t>(sum));
  } else {
    return start + 128 * static_cast<SumOf<Ratio>>(sum);
  }
}

/// WgmmaMatrix::w.
template <typename Ratio>
void pack_image(const ProductWeights<Ratio>& weights, ProductPack<Ratio>& pack) {
  const ProductShape& p = pack.product.shape;
  const auto columns = static_cast<size_t>(p.n_image);
  const auto depth = static_cast<size_t>(weights.k);
  const size_t matrix_bytes = static_cast<size_t>(p.k_blocks) * columns * kWgmmaDepth;
  pack.image.assign(matrix_bytes + columns / 2 * kWgmmaPairBytes<Ratio>, 0);
  auto* const ratios = reinterpret_cast<WgmmaRatios<Ratio>*>(pack.image.data() + matrix_bytes);
  auto* const starts = reinterpret_cast<WgmmaStarts<Ratio>*>(ratios + columns / 2);
  for (size_t column = 0; column < columns; ++column) {
    if (column >= static_cast<size_t>(p.n)) {  // rescaled as well, and not stored
      ratios[column / 2].ratio[column % 2] = Ratio{};
      continue;
    }
    for (size_t k = 0; k < depth; ++k) {
      const size_t piece = k % kWgmmaDepth / 16 ^ column % 8;
      pack.image[(k / kWgmmaDepth * columns + column) * kWgmmaDepth + piece * 16 + k % 16] =
          static_cast<uint8_t>(weights.w[column * depth + k]);
    }
    ratios[column / 2].ratio[column % 2] = weights.ratio[column];
    ratios[column / 2].again[column % 2] = weights.again[column];
    starts[column / 2].start[column % 2] = start_of_bytes(weights, column);
  }
}

template <typename Ratio>
ProductPack<Ratio> begin_pack(const ProductWeights<Ratio>& weights) {
  ProductPack<Ratio> pack;
  pack.product.shape.n = weights.n;
  pack.product.shape.k = weights.k;
  pack.product.shape.planes = weights.planes;
  pack.product.low = weights.low;
  pack.product.high = weights.high;
  pack.product.by_shifts = weights.by_shifts;
  return pack;
}

}  // namespace

template <typename Ratio>
Result<ProductPack<Ratio>> pack_product(const ProductWeights<Ratio>& weights) {
  ProductPack<Ratio> pack = begin_pack(weights);
  ProductShape& p = pack.product.shape;
  p.n_padded = ceil_div(p.n, kProductColumns) * kProductColumns;
  p.k_padded = ceil_div(p.k, kProductDepth) * kProductDepth;
  int device = 0, major = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "the current device"));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability"));
  p.starts_early = major >= 9;
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&p.processors, cudaDevAttrMultiProcessorCount, device), "processors"));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaFuncSetAttribute(mma_kernel<Ratio>(p.planes), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       kProductStages * kProductStageBytes),
                  "product_mma: shared memory"));
  ISOBIT_RETURN_IF_ERROR(prepare_wgmma<Ratio>(p));

  if (p.k_blocks > 0) pack_image(weights, pack);
  const auto rows = static_cast<size_t>(p.n_padded);
  const auto depth = static_cast<size_t>(p.k);
  pack.w.assign(rows * static_cast<size_t>(p.k_padded), 0);
  for (size_t row = 0; row < static_cast<size_t>(p.n); ++row)
    std::copy_n(weights.w.begin() + static_cast<std::ptrdiff_t>(row * depth), depth,
                pack.w.begin() + static_cast<std::ptrdiff_t>(row * static_cast<size_t>(p.k_padded)));
  for (size_t row = 0; row < static_cast<size_t>(p.n); ++row) pack.start.push_back(start_of_bytes(weights, row));
  pack.ratio = weights.ratio;
  pack.again = weights.again;
  pack.start.resize(rows, 0);
  pack.ratio.resize(rows, Ratio{});
  pack.again.resize(rows, 0);
  return pack;
}

template Result<ProductPack<float>> pack_product(const ProductWeights<float>&);
template Result<ProductPack<Fixed>> pack_product(const ProductWeights<Fixed>&);
template Result<ProductPack<double>> pack_product(const ProductWeights<double>&);

template <typename Ratio>
ProductPack<Ratio> pack_wgmma_weights(const ProductWeights<Ratio>& weights) {
  ProductPack<Ratio> pack = begin_pack(weights);
  size_image(pack.product.shape);
  pack_image(weights, pack);
  return pack;
}
template ProductPack<float> pack_wgmma_weights(const ProductWeights<float>&);
template ProductPack<Fixed> pack_wgmma_weights(const ProductWeights<Fixed>&);
template ProductPack<WideFixed> pack_wgmma_weights(const ProductWeights<WideFixed>&);
template ProductPack<double> pack_wgmma_weights(const ProductWeights<double>&);

ProductKernel choose_product_kernel(const ProductShape& p, int64_t rows) {
  const int64_t least = p.planes == 2 ? kDeepMinDepth : rows < kWgmmaMinRows ? kOneTileMinDepth : kWgmmaMinDepth;
  if (p.k >= least && one_tile_columns(p, rows) > 0) return ProductKernel::kOneTile;
  const bool enough = p.deep ? rows * p.planes >= kDeepMinRows : rows >= kWgmmaMinRows || p.k >= kWgmmaMinDepth;
  return p.columns > 0 && enough ? ProductKernel::kWgmma : ProductKernel::kMma;
}

int32_t one_tile_columns(const ProductShape& p, int64_t rows) {
  for (const int32_t columns : kOneTileColumns)
    if (one_tile_row_blocks(p, rows) * ceil_div(p.n, columns) <= p.tiles_at_once) return columns;
  return 0;
}

int64_t product_x_row_bytes(const ProductShape& p) {
  return p.planes * std::max(p.k_padded, int64_t{p.k_blocks} * kWgmmaDepth);
}
int64_t product_x_bytes(const ProductShape& p, int64_t rows) {
  return ceil_div(rows, kWgmmaRows) * kWgmmaRows * product_x_row_bytes(p);
}

Status pad_product_x(const ProductShape& p, ProductKernel kernel, const ProductRows& from, uint8_t* x,
                     cudaStream_t stream) {
  if (kernel == ProductKernel::kMma) {
    const int64_t words = from.rows * p.k_padded / 4;
    cudaLaunchAttribute early = early_start();
    cudaLaunchConfig_t config{};
    const int64_t most = from.floats.begins ? int64_t{kNanPlaces} : int64_t{16} * p.processors;
    config.gridDim = dim3(static_cast<unsigned>(std::min(ceil_div(words, kThreads), most)));
    config.blockDim = dim3(kThreads);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = p.starts_early ? 1 : 0;
    const auto pad = p.planes == 1 ? pad_rows<1> : pad_rows<2>;
    return cuda_status(cudaLaunchKernelEx(&config, pad, from, p.k, p.k_padded, words, reinterpret_cast<uint32_t*>(x)),
                       "kernel pad_rows");
  }
  return pad_product_x({&p, from, x}, stream);
}
Status pad_product_x(const ProductPadding& only, cudaStream_t stream) {
  const PadStages pad = pad_stages_of(only);
  return launch_pad_stages(pad, pad, 0, stream);
}
Status pad_product_x(const ProductPadding& first, const ProductPadding& second, cudaStream_t stream) {
  const PadStages one = pad_stages_of(first), another = pad_stages_of(second);
  return launch_pad_stages(one, another, stages_of(another), stream);
}

bool reads_in_place(const ProductShape& p, ProductKernel kernel, const ProductRows& rows) {
  if (kernel == ProductKernel::kMma) return are_signed_pieces(rows, p.planes) && p.k % 16 == 0;
  return has_map(rows, p.planes);
}

template <typename Ratio>
Status launch_product(const DeviceProduct<Ratio>& product, ProductKernel kernel, const ProductRows& x,
                      const uint8_t* padded, uint16_t* out, cudaStream_t stream, int32_t columns) {
  const ProductShape& p = product.shape;
  const int64_t rows = x.rows;
  if (kernel == ProductKernel::kMma) {
    ProductArgs<Ratio> a{};
    if (padded != nullptr) {
      a.x = padded;
      a.batch = 1;
      a.step = p.planes * p.k_padded;
      a.k = p.k_padded;
    } else {
      a.x = x.codes;
      a.batch = x.batch;
      a.step = x.step;
      a.sequence = x.sequence;
      a.k = p.k;
    }
    a.w = p.w;
    a.m = rows;
    a.n = p.n;
    a.k_padded = p.k_padded;
    a.start = product.start;
    a.ratio = product.ratio;
    a.by_shifts = product.by_shifts;
    a.low = product.low;
    a.high = product.high;
    a.again = product.again;
    a.out = out;
    cudaLaunchAttribute early = early_start();
    cudaLaunchConfig_t config{};
    // Blocks that run together read the same rows of x. The caller has few enough rows for the second dimension.
    config.gridDim =
        dim3(static_cast<unsigned>(p.n_padded / kProductColumns), static_cast<unsigned>(ceil_div(rows, kProductRows)));
    config.blockDim = dim3(kProductThreads);
    config.dynamicSmemBytes = kProductStages * kProductStageBytes;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = p.starts_early ? 1 : 0;
    return cuda_status(cudaLaunchKernelEx(&config, mma_kernel<Ratio>(p.planes), a), "kernel product_mma");
  }
  WgmmaArgs<Ratio> a{};
  static_cast<WgmmaMatrix<Ratio>&>(a) = wgmma_weights(product);
  a.x = padded;
  a.m = rows;
  a.n = p.n;
  a.out = out;
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  WgmmaKernel<Ratio> run = nullptr;
  if (kernel == ProductKernel::kOneTile) {
    if (columns == 0) columns = one_tile_columns(p, rows);
    if (columns == 0)
      return {StatusCode::kUnsupported,
              "product_one_tile: the device does not take the tiles of " + std::to_string(rows) + " rows at once"};
    run = one_tile_kernel<Ratio>(p.planes, columns);
    cut_one_tile(a, p, columns, config, attributes[0]);
  } else {
    a.n_tiles = static_cast<int32_t>(ceil_div(p.n, p.columns));
    a.stages = p.stages;
    a.cluster = p.cluster;
    // product_wgmma: the same number of clusters for each group of tiles of columns, all at once where there are
    // enough.
    const int64_t groups = a.n_tiles / p.cluster;
    const int64_t clusters = p.deep ? std::min<int64_t>(p.clusters, deep_tiles(p, rows))
                                    : groups * std::clamp<int64_t>(p.clusters / groups, 1, ceil_div(rows, kWgmmaRows));
    run = wgmma_kernel<Ratio>(p);
    config = wgmma_config<Ratio>(p, clusters, attributes[0]);
  }
  if (padded == nullptr) {
    const int32_t shares = kernel == ProductKernel::kWgmma && !p.deep ? p.cluster : 1;
    ISOBIT_RETURN_IF_ERROR(map_rows(x, p.k, kWgmmaRows / shares, a.in_place));
  }
  attributes[1] = early_start();
  config.numAttrs = 2;
  config.stream = stream;
  return cuda_status(cudaLaunchKernelEx(&config, run, a), "kernel product_wgmma or product_one_tile");
}
template Status launch_product(const DeviceProduct<float>&, ProductKernel, const ProductRows&, const uint8_t*,
                               uint16_t*, cudaStream_t, int32_t);
template Status launch_product(const DeviceProduct<Fixed>&, ProductKernel, const ProductRows&, const uint8_t*,
                               uint16_t*, cudaStream_t, int32_t);
template Status launch_product(const DeviceProduct<double>&, ProductKernel, const ProductRows&, const uint8_t*,
                               uint16_t*, cudaStream_t, int32_t);

}  // namespace isobit::cuda
