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

struct GatheredRows {
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
// Pixels for tiles

__global__ void __launch_bounds__(kThreads) fill_pixels(const PixelCopies a) {
  const auto channels = static_cast<int32_t>(a.blocks.channels), block = static_cast<int32_t>(a.blocks.block);
  const int32_t block_pieces = a.block_elements / kUnit;
  const int64_t blocks = a.blocks.count(), count = a.pixels * a.groups * blocks * block_pieces;
  const int64_t all = int64_t{gridDim.x} * kThreads;
  const auto* const x = static_cast<const uint16_t*>(a.x);
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += all) {
    const int64_t of_block = quotient(i, block_pieces), of_group = quotient(of_block, blocks);
    const int64_t pixel = quotient(of_group, a.groups);
    const auto in_block = static_cast<int32_t>(i - of_block * block_pieces) * kUnit;
    const auto c = static_cast<int32_t>(of_block - of_group * blocks) * block + in_block;
    const int32_t left = min(block - in_block, channels - c);
    const uint16_t* const from =
        x + pixel * a.x_stride + static_cast<int32_t>(of_group - pixel * a.groups) * channels + c;
    uint16_t elements[kUnit];
#pragma unroll
    for (int e = 0; e < kUnit; ++e) elements[e] = e < left ? from[e] : uint16_t{0};
    uint4 piece;
    memcpy(&piece, elements, sizeof piece);
    static_cast<uint4*>(a.to)[i] = piece;
  }
}

/// `lanes` neighbouring threads of a warp for each block.
template <typename X>
__global__ void __launch_bounds__(kThreads) quantize_blocks(const PixelCodes a, const int lanes) {
  const auto channels = static_cast<int32_t>(a.blocks.channels), block = static_cast<int32_t>(a.blocks.block);
  const auto blocks = static_cast<int32_t>(a.blocks.count());  // of a group
  const int64_t count = a.pixels * a.groups * blocks;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t step = int64_t{gridDim.x} * (kThreads / lanes);
  // Neighbours do the same number of rounds, as they exchange magnitudes.
  for (int64_t first = blockIdx.x * int64_t{kThreads / lanes}; first < count; first += step) {
    const int64_t item = first + static_cast<int>(threadIdx.x) / lanes;
    const bool there = item < count;
    const int64_t of_group = quotient(item, blocks), pixel = quotient(of_group, a.groups);
    const int32_t c = static_cast<int32_t>(item - of_group * blocks) * block;
    const X* const x = static_cast<const X*>(a.x) + pixel * a.x_stride +
                       static_cast<int32_t>(of_group - pixel * a.groups) * channels + c;
    const int32_t elements = there ? min(block, channels - c) : 0;
    float magnitude = 0.0f, wrong = 0.0f;
    float values[kUnit];
    int32_t loaded = -1;  // the place that values are of
    for (int32_t i = lane * kUnit; i < elements; i += lanes * kUnit) {
      load_elements(x + i, elements - i, values);
      loaded = i;
#pragma unroll
      for (int e = 0; e < kUnit; ++e) {
        if (!(fabsf(values[e]) < kInfinity)) wrong = 1.0f;
        magnitude = fmaxf(magnitude, fabsf(values[e]));
      }
    }
    const auto larger = [](float p, float q) { return fmaxf(p, q); };
    magnitude = over_lanes(magnitude, lanes, larger);
    wrong = over_lanes(wrong, lanes, larger);
    const bool any = wrong == 0.0f && magnitude >= kLeastRange;
    const float inverse = any ? __fdiv_rn(127.0f, magnitude) : 0.0f;
    if (!there) continue;
    for (int32_t i = lane * kUnit; i < a.block_codes; i += lanes * kUnit) {
      uint32_t codes[2]{};
      if (any && i < elements) {
        if (i != loaded) load_elements(x + i, elements - i, values);
        loaded = i;
#pragma unroll
        for (int e = 0; e < kUnit; ++e) {
          const float code = rintf(__fmul_rn(values[e], inverse));
          const auto clamped = static_cast<int32_t>(fminf(fmaxf(code, -127.0f), 127.0f));
          codes[e / 4] |= (static_cast<uint32_t>(clamped) & 0xff) << (8 * (e % 4));
        }
      }
      *reinterpret_cast<uint2*>(a.to + item * a.block_codes + i) = uint2{codes[0], codes[1]};
    }
    if (lane != 0) continue;
    a.scales[item] = wrong != 0.0f ? __uint_as_float(kFloat32NaN) : any ? __fdiv_rn(magnitude, 127.0f) : 0.0f;
    if (wrong != 0.0f) atomicMin(a.refused, static_cast<unsigned long long>(a.first_pixel + pixel));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Depthwise

constexpr int kTogether = 4;  // outputs of a thread side by side, and channels

struct Four {
  float of[kTogether];
};
/// Four neighbours; aligned: to all of them.
template <typename X>
__device__ __forceinline__ Four load_four(const void* x, int64_t at, bool aligned) {
  X elements[kTogether];
  const X* const from = static_cast<const X*>(x) + at;
  if (aligned) {
    struct alignas(kTogether * sizeof(X) > 16 ? 16 : kTogether * sizeof(X)) Whole {
      X of[kTogether];
    };
    const Whole whole = *reinterpret_cast<const Whole*>(from);
    memcpy(elements, &whole, sizeof elements);
  } else {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) elements[i] = from[i];
  }
  return {{widened(elements[0]), widened(elements[1]), widened(elements[2]), widened(elements[3])}};
}
__device__ __forceinline__ Four load_four(const void* x, Dtype dtype, int64_t at, bool aligned) {
  switch (dtype) {
    case Dtype::kF16: return load_four<__half>(x, at, aligned);
    case Dtype::kBF16: return load_four<__nv_bfloat16>(x, at, aligned);
    case Dtype::kF64: return load_four<double>(x, at, aligned);
    default: return load_four<float>(x, at, aligned);
  }
}

/// kQuantizes: a block is one element, whose code is 127 or -127.
template <int kKernel, int kStride, bool kQuantizes>
__global__ void __launch_bounds__(kThreads)
    float_depthwise(const FloatDepthwise a, const Dtype dtype, const bool aligned) {
  constexpr int kPixels = (kTogether - 1) * kStride + kKernel;
  const ConvSource& s = a.source;
  const int32_t fours = s.channels / kTogether;
  const DepthwiseStrips strips = DepthwiseStrips::of(s.columns, kStride, kTogether);
  const int64_t rows = s.m / s.columns.outputs;  // of all images
  const int64_t count = rows * strips.count * fours, all = int64_t{gridDim.x} * kThreads;
  for (int64_t index = blockIdx.x * int64_t{kThreads} + threadIdx.x; index < count; index += all) {
    const int64_t strip = quotient(index, fours);
    const auto channel = static_cast<int32_t>(index - strip * fours) * kTogether;
    const int64_t row = quotient(strip, strips.count);
    const int32_t q = strips.first(static_cast<int32_t>(strip - row * strips.count));
    const int64_t image = quotient(row, s.rows.outputs);
    const auto p = static_cast<int32_t>(row - image * s.rows.outputs);
    const int64_t first_pixel = image * s.rows.pixels * s.columns.pixels;
    const int32_t i_first = p * s.rows.stride - s.rows.before, j_first = q * s.columns.stride - s.columns.before;
    float chunk[kTogether][kTogether]{}, total[kTogether][kTogether]{};
#pragma unroll
    for (int r = 0; r < kKernel; ++r) {
      const int32_t i = i_first + r * s.rows.dilation;
      const bool row_inside = i >= 0 && i < s.rows.pixels;
      Four pixels[kPixels], x_scales[kQuantizes ? kPixels : 1];
#pragma unroll
      for (int j = 0; j < kPixels; ++j) {
        const int32_t at = j_first + j * s.columns.dilation;
        const bool inside = row_inside && at >= 0 && at < s.columns.pixels;
        const int64_t pixel = first_pixel + int64_t{i} * s.columns.pixels + at;
        pixels[j] = {};
        if (inside) pixels[j] = load_four(s.x, dtype, pixel * s.x_stride + channel, aligned);
        if constexpr (kQuantizes) {
#pragma unroll
          for (int c = 0; c < kTogether; ++c) {
            float &x = pixels[j].of[c], &scale = x_scales[j].of[c];
            const float magnitude = fabsf(x);
            scale = magnitude < kLeastRange ? 0.0f : __fdiv_rn(magnitude, 127.0f);
            x = scale == 0.0f ? 0.0f : copysignf(127.0f, x);
            if (magnitude < kInfinity) continue;
            scale = __uint_as_float(kFloat32NaN);
            atomicMin(s.outside, static_cast<unsigned long long>(pixel));
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kKernel; ++t) {
        const int tap = r * kKernel + t;
        const int64_t at = int64_t{tap} * s.channels + channel;
        const float4 w = *reinterpret_cast<const float4*>(a.weights + at);
        const float weights[kTogether] = {w.x, w.y, w.z, w.w};
        float scales[kTogether];
        if constexpr (kQuantizes) {
          const float4 four = *reinterpret_cast<const float4*>(a.scales + at);
          scales[0] = four.x, scales[1] = four.y, scales[2] = four.z, scales[3] = four.w;
        }
#pragma unroll
        for (int o = 0; o < kTogether; ++o)
#pragma unroll
          for (int c = 0; c < kTogether; ++c) {
            const float x = pixels[o * kStride + t].of[c];
            float& sum = chunk[o][c];
            if constexpr (kQuantizes) {
              const float scale = __fmul_rn(scales[c], x_scales[o * kStride + t].of[c]);
              sum = __fmaf_rn(__fmul_rn(x, weights[c]), scale, sum);
              if (tap % kChunkGroups == kChunkGroups - 1) {
                total[o][c] = __fadd_rn(total[o][c], sum);
                sum = 0.0f;
              }
            } else {
              sum = fmaf(x, weights[c], sum);
            }
          }
      }
    }
    // What is right of the last output has no place in y.
#pragma unroll
    for (int o = 0; o < kTogether; ++o) {
      const int32_t output = q + o * strips.apart;
      if (output >= s.columns.outputs) continue;
#pragma unroll
      for (int c = 0; c < kTogether; ++c)
        store_result(a.result, row * s.columns.outputs + output, channel + c, __fadd_rn(total[o][c], chunk[o][c]),
                     a.bias[channel + c]);
    }
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

Status prepare_pixel_rows(const ImageLayout& image, const RowsLayout& layout, const PixelRows& rows, Dtype x_dtype,
                          bool asymmetric, std::byte* to, bool early, cudaStream_t stream) {
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  const GatheredRows source{rows.source, narrow(rows.first_channel), narrow(rows.blocks.channels),
                            narrow(rows.blocks.padded), rows.is_linear};
  return prepare_rows_of(image, layout, source, rows.source.m, x_dtype, asymmetric, to, early, stream);
}

Status run_float_direct(const FloatDirect& conv, Dtype x_dtype, cudaStream_t stream) {
  return with_float_type(x_dtype, [&](auto type) {
    return launch_kernel("sum_directly", sum_directly<decltype(type)>,
                         dim3(blocks_for(conv.source.m * conv.outputs, kThreads)), kThreads, 0, stream, conv);
  });
}

Status copy_pixels(const PixelCopies& copies, cudaStream_t stream) {
  const int64_t pieces = copies.pixels * copies.groups * copies.blocks.count() * (copies.block_elements / kUnit);
  return launch_kernel("fill_pixels", fill_pixels, dim3(blocks_for(pieces, kThreads)), kThreads, 0, stream, copies);
}

Status quantize_pixels(const PixelCodes& codes, Dtype x_dtype, cudaStream_t stream) {
  const int lanes =
      static_cast<int>(std::bit_ceil(static_cast<uint32_t>(std::min<int32_t>(codes.block_codes / kUnit, 32))));
  const int64_t blocks = codes.pixels * codes.groups * codes.blocks.count();
  return with_float_type(x_dtype, [&](auto type) {
    return launch_kernel("quantize_blocks", quantize_blocks<decltype(type)>, dim3(blocks_for(blocks, kThreads / lanes)),
                         kThreads, 0, stream, codes, lanes);
  });
}

bool has_float_depthwise(const ConvShape& shape) {
  const ConvAxis &a = shape.rows, &b = shape.columns;
  return shape.group_channels() == 1 && shape.outputs == shape.channels && shape.channels % kTogether == 0 &&
         !shape.transposed && a.kernel == b.kernel && (a.kernel == 3 || a.kernel == 5) &&
         b.dilation <= kMostDepthwiseDilation && depthwise_step(b.stride, b.dilation) <= 2;
}

Status run_float_depthwise(const FloatDepthwise& conv, Dtype x_dtype, cudaStream_t stream) {
  const ConvSource& s = conv.source;
  const int64_t step = depthwise_step(s.columns.stride, s.columns.dilation);
  const int64_t strips = DepthwiseStrips::of(s.columns, static_cast<int32_t>(step), kTogether).count;
  const dim3 blocks(blocks_for(s.m / s.columns.outputs * strips * (s.channels / kTogether), kThreads));
  const auto bytes = static_cast<int64_t>(size_in_bytes(x_dtype));
  const int64_t four = std::min<int64_t>(kTogether * bytes, sizeof(uint4));
  const bool aligned =
      reinterpret_cast<uintptr_t>(s.x) % static_cast<uintptr_t>(four) == 0 && s.x_stride * bytes % four == 0;
  const auto launch = [&](auto of_floats, auto of_codes) {
    return launch_kernel("float_depthwise", conv.scales == nullptr ? of_floats : of_codes, blocks, kThreads, 0, stream,
                         conv, x_dtype, aligned);
  };
  if (s.rows.kernel == 3)
    return step == 1 ? launch(float_depthwise<3, 1, false>, float_depthwise<3, 1, true>)
                     : launch(float_depthwise<3, 2, false>, float_depthwise<3, 2, true>);
  return step == 1 ? launch(float_depthwise<5, 1, false>, float_depthwise<5, 1, true>)
                   : launch(float_depthwise<5, 2, false>, float_depthwise<5, 2, true>);
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
