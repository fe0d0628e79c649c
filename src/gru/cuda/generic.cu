// SPDX-License-Identifier: Apache-2.0
// The kernel that runs every model: the reference in 64-bit integers, a block of threads for a sequence, a warp for a
// row of W or R. Everything between two steps is in global memory, so no size is limited by shared memory.
#include <algorithm>

#include "core/cuda/launch.h"
#include "core/cuda/quantize.cuh"
#include "core/cuda/status.h"
#include "gru/cuda/gru.h"

namespace isobit::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kBlocksPerProcessor = 2;
constexpr int64_t kAlignment = 256;

/// A block's scratch: sums of W x and R h [2][3H], codes of x [C] and of h [H]. Room for 64-bit codes.
__host__ __device__ constexpr int64_t block_scratch_bytes(int64_t input_size, int64_t hidden_size) {
  const int64_t bytes = static_cast<int64_t>(sizeof(int64_t)) * (7 * hidden_size + input_size);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t block_count(int64_t batch, const DeviceLimits& limits) {
  return std::min({batch, kBlocksPerProcessor * limits.processors, int64_t{kNanPlaces}});
}

/// core/codes.h on a device.
template <typename Body>
__device__ __forceinline__ void with_code(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::kS8: body(int8_t{}); break;
    case Dtype::kU8: body(uint8_t{}); break;
    case Dtype::kS16: body(int16_t{}); break;
    case Dtype::kU16: body(uint16_t{}); break;
    case Dtype::kS32: body(int32_t{}); break;
    case Dtype::kU32: body(uint32_t{}); break;
    default: break;
  }
}

__device__ __forceinline__ void put_code(void* codes, Dtype dtype, int64_t index, int64_t value) {
  with_code(dtype, [&](auto zero) {
    using Code = decltype(zero);
    static_cast<Code*>(codes)[index] = static_cast<Code>(value);
  });
}

/// to[i] = codes[first + i] for i < count. Every thread of the block takes part; thread i % kThreads writes to[i].
template <typename Wide>
__device__ void widen(const void* codes, Dtype dtype, int64_t first, int64_t count, Wide* to) {
  with_code(dtype, [&](auto zero) {
    const auto* from = static_cast<const decltype(zero)*>(codes) + first;
    for (int64_t i = threadIdx.x; i < count; i += kThreads) to[i] = static_cast<Wide>(from[i]);
  });
}

/// The same of floats, quantised.
template <typename Wide>
__device__ void widen_floats(const DeviceFloats& floats, unsigned long long* nan_place, const float* from,
                             int64_t count, Wide* to) {
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    to[i] = static_cast<Wide>(quantize_float<int64_t>(floats, from[i]));
    look_for_nan(floats, nan_place, from + i, from[i]);
  }
}

/// sums[row] = sum_k codes[row, k] * v[k]. The proof bounds the sum of magnitudes, so the order is free.
template <typename Wide>
__device__ void product(const DeviceMatrix& matrix, int64_t rows, const Wide* v, int64_t* sums) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t columns = matrix.columns;
  with_code(matrix.dtype, [&](auto zero) {
    using Code = decltype(zero);
    for (int64_t row = warp; row < rows; row += kWarps) {
      const Code* weights = static_cast<const Code*>(matrix.codes) + row * columns;
      int64_t sum = 0;
#pragma unroll 4
      for (int64_t k = lane; k < columns; k += 32) sum += static_cast<int64_t>(__ldg(weights + k)) * v[k];
      for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      if (lane == 0) sums[row] = sum;
    }
  });
}

__device__ __forceinline__ int64_t linear(const DeviceMatrix& matrix, int64_t row, const int64_t* sums,
                                          const CodeRange& out, Rounding mode) {
  return reference_linear(sums[row], matrix.zero_point, matrix.row_sums[row], matrix.biases[row],
                          matrix.bias_to_acc[row], matrix.acc_to_out[row], out, mode);
}

/// Wide holds every code of x and h.
template <typename Wide>
__global__ void __launch_bounds__(kThreads)
    gru_generic(const __grid_constant__ DeviceLayer layer, const __grid_constant__ DeviceRun run) {
  const int64_t C = layer.input_size;
  const int64_t H = layer.hidden_size;
  const Rounding mode = layer.cell.rounding;
  std::byte* const scratch = run.scratch + static_cast<int64_t>(blockIdx.x) * block_scratch_bytes(C, H);
  auto* const sums_x = reinterpret_cast<int64_t*>(scratch);
  int64_t* const sums_h = sums_x + 3 * H;
  auto* const x = reinterpret_cast<Wide*>(sums_h + 3 * H);
  Wide* const h = x + C;
  unsigned long long* const nan_place = nan_place_of(run.floats, blockIdx.x);
  begin_nan_search(run.floats, blockIdx.x, gridDim.x);
  const auto put_y = [&](int64_t index, int64_t code) {
    if (run.y_scale == 0) {
      put_code(run.y, layer.h_dtype, index, code);
    } else {
      static_cast<float*>(run.y)[index] = dequantize_difference(code - layer.cell.h.zero_point, run.y_scale);
    }
  };
  const auto load_x = [&](int64_t t, int64_t b) {
    const int64_t first = t * run.x_strides.step + b * run.x_strides.sequence;
    if (run.floats.first == nullptr) {
      widen(run.x, layer.x_dtype, first, C, x);
    } else {
      widen_floats(run.floats, nan_place, static_cast<const float*>(run.x) + first, C, x);
    }
  };
  for (int64_t b = blockIdx.x; b < run.batch; b += gridDim.x) {
    int64_t length = run.steps;
    if (run.lengths != nullptr) length = clamp_s64(run.lengths[b], 0, run.steps);
    for (int64_t t = length; t < run.steps; ++t) {
      for (int64_t i = threadIdx.x; i < H; i += kThreads)
        put_y(t * run.y_strides.step + b * run.y_strides.sequence + i, layer.cell.h.zero_point);
      if (nan_place != nullptr) load_x(t, b);  // a NaN is one there as well
    }
    widen(run.state, layer.h_dtype, b * H, H, h);
    for (int64_t s = 0; s < length; ++s) {
      const int64_t t = run.reverse ? length - 1 - s : s;
      load_x(t, b);
      __syncthreads();
      product(layer.W, 3 * H, x, sums_x);
      product(layer.R, 3 * H, h, sums_h);
      __syncthreads();
      // From here to the next barrier a thread reads and writes h of its own units only; nobody reads x.
      const int64_t y = t * run.y_strides.step + b * run.y_strides.sequence;
      const uint8_t* const mask = run.mask == nullptr ? nullptr : run.mask + (t * run.batch + b) * run.mask_width;
      for (int64_t i = threadIdx.x; i < H; i += kThreads) {
        int64_t ih[3];
        int64_t hh[3];
        for (int gate = 0; gate < 3; ++gate) {
          ih[gate] = linear(layer.W, gate * H + i, sums_x, layer.cell.ih, mode);
          hh[gate] = linear(layer.R, gate * H + i, sums_h, layer.cell.hh, mode);
        }
        int64_t code = h[i];
        if (mask == nullptr || mask[i] != 0) code = reference_cell(layer.cell, ih, hh, code).h;
        h[i] = static_cast<Wide>(code);
        put_y(y + i, code);
      }
    }
    for (int64_t i = threadIdx.x; i < H; i += kThreads) put_code(run.next_state, layer.h_dtype, b * H + i, h[i]);
  }
}

}  // namespace

bool generic_is_taken(std::span<const DeviceLayer>, int64_t, int64_t, bool, const DeviceLimits&) { return true; }

Status generic_supports(std::span<const DeviceLayer>, int64_t, int64_t, const DeviceLimits&) { return {}; }

int64_t generic_scratch_bytes(std::span<const DeviceLayer> layers, int64_t batch, int64_t, const DeviceLimits& limits) {
  int64_t block = 0;
  for (const DeviceLayer& layer : layers)
    block = std::max(block, block_scratch_bytes(layer.input_size, layer.hidden_size));
  return block * block_count(batch, limits);
}

Status generic_launch(const DeviceLayer& layer, const DeviceRun& run, const DeviceLimits& limits, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(block_count(run.batch, limits));
  const bool wide = layer.x_dtype == Dtype::kU32 || layer.h_dtype == Dtype::kU32;
  return launch_kernel("gru_generic", wide ? gru_generic<int64_t> : gru_generic<int32_t>, blocks, kThreads, 0, stream,
                       layer, run);
}

bool generic_beside(const DeviceLayer&, int64_t, int64_t) { return true; }

}  // namespace isobit::cuda
