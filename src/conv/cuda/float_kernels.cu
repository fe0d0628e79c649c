// SPDX-License-Identifier: Apache-2.0
#include "conv/cuda/float_kernels.h"

#include "conv/cuda/device.cuh"
#include "conv/layer_parts.h"
#include "core/cuda/launch.h"
#include "linear/cuda/rows.cuh"
#include "linear/cuda/store.cuh"

namespace isobit::cuda {
namespace {

constexpr float kInfinity = __builtin_huge_valf();

/// The pixel of x that a kernel element reads for an output; -1: outside.
__device__ __forceinline__ int64_t pixel_at(const ConvSource& s, const Place& at, int32_t tap) {
  const int32_t r = tap / s.columns.kernel;
  const int32_t i = pixel_of(s.rows, s.transposed != 0, at.p, r);
  const int32_t j = pixel_of(s.columns, s.transposed != 0, at.q, tap - r * s.columns.kernel);
  if (i < 0 || j < 0) return -1;
  return (at.image * s.rows.pixels + i) * s.columns.pixels + j;
}

struct PixelRows {
  ConvSource source;
  int32_t first_channel, channels, padded;
  bool is_linear;

  [[nodiscard]] __device__ __forceinline__ int64_t pixel(int64_t m, int32_t tap) const {
    if (is_linear) return source.first + m;
    return pixel_at(source, place_of(source, source.first + m), tap);
  }
  template <typename X>
  [[nodiscard]] __device__ __forceinline__ const X* at(int64_t pixel, int32_t c) const {
    return static_cast<const X*>(source.x) + pixel * source.x_stride + first_channel + c;
  }

  template <typename X>
  __device__ __forceinline__ void load(const RowsArgs& a, int64_t m, int group, int i, float (&values)[kUnit]) const {
    const auto k = static_cast<int32_t>(group * a.group + i);
    const auto count = static_cast<int32_t>(m < a.m ? min(min(a.group - i, a.columns - k), int64_t{kUnit}) : 0);
    const int32_t tap = k / padded, c = k - tap * padded;
    if (count <= padded - c) {  // of one pixel
      const int64_t p = count > 0 ? pixel(m, tap) : -1;
      load_elements(at<X>(max(p, int64_t{0}), c), p < 0 ? 0 : min(count, channels - c), values);
      return;
    }
#pragma unroll
    for (int e = 0; e < kUnit; ++e) {
      values[e] = 0.0f;
      if (e >= count) continue;
      const int32_t of = (k + e) / padded;
      const int64_t p = pixel(m, of);
      if (p >= 0) values[e] = widened(*at<X>(p, k + e - of * padded));
    }
  }
  __device__ __forceinline__ int elements(const RowsArgs& a, int64_t group) const {
    return static_cast<int>(min(a.group, channels - group * a.group % padded));
  }
  __device__ __forceinline__ void refuse(const RowsArgs& a, int64_t m, int group) const {
    const auto tap = static_cast<int32_t>(group * a.group / padded);
    atomicMin(source.outside, static_cast<unsigned long long>(pixel(m, tap)));
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Each output by itself

/// Section 11 of one block of channels of a pixel.
struct BlockRange {
  float max = -kInfinity, negated_min = -kInfinity;
  bool wrong = false;

  __device__ __forceinline__ void see(float x) {
    if (!(fabsf(x) < kInfinity)) wrong = true;
    max = fmaxf(max, x);
    negated_min = fmaxf(negated_min, -x);
  }
};

template <typename X>
__global__ void __launch_bounds__(kThreads) sum_directly(const FloatDirect a) {
  const ConvSource& s = a.source;
  const bool asymmetric = a.activations == ConvActivations::kInt8Asymmetric;
  const bool quantizes = a.activations != ConvActivations::kFloat;
  const auto channels = static_cast<int32_t>(a.blocks.channels), block = static_cast<int32_t>(a.blocks.block);
  const int32_t taps = s.rows.kernel * s.columns.kernel;
  const int64_t all = s.m * a.outputs;
  for (int64_t item = blockIdx.x * int64_t{kThreads} + threadIdx.x; item < all; item += int64_t{gridDim.x} * kThreads) {
    const int64_t m = quotient(item, a.outputs);
    const auto o = static_cast<int32_t>(item - m * a.outputs);
    const Place place = place_of(s, m);
    const int32_t first_channel = o / a.group_outputs * channels;
    float total = 0.0f, acc = 0.0f;
    bool wrong = false;
    int32_t g = 0;
    const int16_t* w = a.weights + o;
    for (int32_t tap = 0; tap < taps; ++tap) {
      const int64_t pixel = pixel_at(s, place, tap);
      const X* const x = static_cast<const X*>(s.x) + max(pixel, int64_t{0}) * s.x_stride + first_channel;
      for (int32_t c = 0; c < channels; c += block, ++g) {
        if (g % kChunkGroups == 0) {
          total = __fadd_rn(total, acc);
          acc = 0.0f;
        }
        const int32_t count = min(block, channels - c);
        const int16_t* const of_block = w + static_cast<int64_t>(tap * channels + c) * a.outputs;
        if (pixel < 0) continue;  // changes no byte
        const int64_t at = static_cast<int64_t>(g) * a.outputs + o;
        const float scale = a.scales[at];
        if (!quantizes) {
          float products = 0.0f, sum = 0.0f;
          for (int32_t e = 0; e < count; ++e) {
            const float value = widened(x[c + e]);
            products = fmaf(value, of_block[static_cast<int64_t>(e) * a.outputs], products);
            sum += value;
          }
          acc = fmaf(scale, products, acc);
          if (a.has_offsets) acc = fmaf(a.offsets[at], sum, acc);
          continue;
        }
        BlockRange range;
        for (int32_t e = 0; e < count; ++e) range.see(widened(x[c + e]));
        const float width = asymmetric ? __fadd_rn(range.max, range.negated_min) : fmaxf(range.max, range.negated_min);
        if (range.wrong || !(width < kInfinity)) {
          wrong = true;
          atomicMin(s.outside, static_cast<unsigned long long>(pixel));
          continue;
        }
        const float steps = asymmetric ? 255.0f : 127.0f;
        float x_scale = 0.0f, x_offset = asymmetric ? range.max : 0.0f, inverse = 0.0f;
        if (width >= kLeastRange) {
          x_scale = __fdiv_rn(width, steps);
          if (asymmetric) x_offset = __fmaf_rn(-127.0f, x_scale, range.max);
          inverse = __fdiv_rn(steps, width);
        }
        int32_t d = 0, t = 0, v = 0;
        for (int32_t e = 0; e < count; ++e) {
          const int32_t weight = of_block[static_cast<int64_t>(e) * a.outputs];
          v += weight;
          if (inverse == 0.0f) continue;
          const float value = widened(x[c + e]);
          const float code = rintf(__fmul_rn(asymmetric ? __fsub_rn(value, x_offset) : value, inverse));
          const auto whole = static_cast<int32_t>(fminf(fmaxf(code, asymmetric ? -128.0f : -127.0f), 127.0f));
          d += whole * weight;
          t += whole;
        }
        acc = __fmaf_rn(__int2float_rn(d), __fmul_rn(scale, x_scale), acc);
        if (asymmetric) acc = __fmaf_rn(__int2float_rn(v), __fmul_rn(scale, x_offset), acc);
        if (!a.has_offsets) continue;
        float sum = __fmul_rn(x_scale, __int2float_rn(t));
        if (asymmetric) sum = __fmaf_rn(x_offset, static_cast<float>(count), sum);
        acc = __fmaf_rn(a.offsets[at], sum, acc);
      }
    }
    total = __fadd_rn(total, acc);
    if (wrong) total = __uint_as_float(kFloat32NaN);
    store_result(a.result, m, o, total, a.bias[o]);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// One scale for each image

/// Blocks of threads (x) of an image (y).
constexpr int64_t kImageBlocks = 64;

/// body(element of x, element of codes) of this thread.
template <typename Body>
__device__ __forceinline__ void for_elements(const ImageCodes& a, const Body& body) {
  const int64_t of_image = a.pixels * a.channels;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < of_image; i += int64_t{gridDim.x} * kThreads) {
    const int64_t pixel = quotient(i, a.channels);
    body((blockIdx.y * a.pixels + pixel) * a.x_stride + i - pixel * a.channels, blockIdx.y * of_image + i);
  }
}

template <typename X>
__global__ void __launch_bounds__(kThreads) find_magnitudes(const ImageCodes a) {
  uint32_t most = 0;  // bits of magnitudes have their order, and what is not finite is above all others
  for_elements(a, [&](int64_t from, int64_t) {
    most = max(most, __float_as_uint(widened(static_cast<const X*>(a.x)[from])) & 0x7fffffffu);
  });
  most = __reduce_max_sync(0xffffffffu, most);
  if (threadIdx.x % 32 == 0) atomicMax(a.magnitudes + blockIdx.y, most);
}

template <typename X>
__global__ void __launch_bounds__(kThreads) quantize_elements(const ImageCodes a) {
  const float magnitude = __uint_as_float(a.magnitudes[blockIdx.y]);
  const bool any = magnitude >= kLeastRange && magnitude < kInfinity;
  const float inverse = any ? __fdiv_rn(127.0f, magnitude) : 0.0f;
  for_elements(a, [&](int64_t from, int64_t to) {
    float code = 0.0f;
    if (any) code = rintf(__fmul_rn(widened(static_cast<const X*>(a.x)[from]), inverse));
    a.codes[to] = static_cast<uint8_t>(static_cast<int32_t>(fminf(fmaxf(code, -127.0f), 127.0f)) + 128);
  });
}

__global__ void __launch_bounds__(kThreads) finish_sums(const ImageResults a) {
  const int64_t all = a.images * a.outputs * a.channels;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < all; i += int64_t{gridDim.x} * kThreads) {
    const int64_t output = quotient(i, a.channels), channel = i - output * a.channels;
    const float magnitude = __uint_as_float(a.magnitudes[quotient(output, a.outputs)]);
    float y = __uint_as_float(kFloat32NaN);
    if (magnitude < kInfinity) {
      const float scale = magnitude < kLeastRange ? 0.0f : __fdiv_rn(magnitude, 127.0f);
      y = __fmaf_rn(__int2float_rn(a.sums[i]), __fmul_rn(a.scales[channel], scale), 0.0f);
    }
    store_result(a.result, output, channel, y, a.bias[channel]);
  }
}

}  // namespace

Status prepare_pixel_rows(const ImageLayout& image, const RowsLayout& layout, const ConvRows& rows, Dtype x_dtype,
                          bool asymmetric, std::byte* to, bool early, cudaStream_t stream) {
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  const PixelRows source{rows.source, narrow(rows.first_channel), narrow(rows.blocks.channels),
                         narrow(rows.blocks.padded), rows.is_linear};
  return prepare_rows_of(image, layout, source, rows.source.m, x_dtype, asymmetric, to, early, stream);
}

Status run_float_direct(const FloatDirect& conv, Dtype x_dtype, cudaStream_t stream) {
  return with_float_type(x_dtype, [&](auto type) {
    return launch_kernel("sum_directly", sum_directly<decltype(type)>,
                         dim3(blocks_for(conv.source.m * conv.outputs, kThreads)), kThreads, 0, stream, conv);
  });
}

Status quantize_images(const ImageCodes& images, Dtype x_dtype, cudaStream_t stream) {
  constexpr int64_t kMostImages = 65535;  // of a grid
  return with_float_type(x_dtype, [&](auto type) -> Status {
    using X = decltype(type);
    for (int64_t first = 0; first < images.images; first += kMostImages) {
      ImageCodes part = images;
      part.images = std::min(kMostImages, images.images - first);
      part.x = static_cast<const X*>(images.x) + first * images.pixels * images.x_stride;
      part.magnitudes += first;
      part.codes += first * images.pixels * images.channels;
      const auto blocks = static_cast<unsigned>(
          std::clamp<int64_t>(row_pieces(images.pixels * images.channels, kThreads), 1, kImageBlocks));
      const dim3 grid(blocks, static_cast<unsigned>(part.images));
      ISOBIT_RETURN_IF_ERROR(launch_kernel("find_magnitudes", find_magnitudes<X>, grid, kThreads, 0, stream, part));
      ISOBIT_RETURN_IF_ERROR(launch_kernel("quantize_elements", quantize_elements<X>, grid, kThreads, 0, stream, part));
    }
    return {};
  });
}

Status finish_images(const ImageResults& results, cudaStream_t stream) {
  return launch_kernel("finish_sums", finish_sums,
                       dim3(blocks_for(results.images * results.outputs * results.channels, kThreads)), kThreads, 0,
                       stream, results);
}

}  // namespace isobit::cuda
