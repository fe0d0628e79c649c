// SPDX-License-Identifier: Apache-2.0
#include "conv/cuda/kernels.h"

#include "conv/cuda/device.cuh"
#include "core/cuda/launch.h"

namespace isobit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnit = 8;  // positions of a thread at a time
constexpr int kStepUnits = kStepDepth / kUnit, kBlockUnits = kBlockDepth / kUnit;

struct GatherArgs {
  ConvSource source;
  int32_t first_channel;  // of this group
  int32_t lanes;          // of a row: a power of two up to 32
  int32_t columns, blocks, slab_tiles, offset;
  uint8_t* rows;
  StaticRow* parameters;
};

template <int kPlanes>
struct Unit {
  uint32_t words[kPlanes][2]{};
  int32_t sum = 0;

  __device__ void put(int j, int32_t value) {
    sum += value;
    const auto byte = [&](int plane, int32_t of) {
      words[plane][j / 4] |= (static_cast<uint32_t>(of) & 0xff) << (8 * (j % 4));
    };
    byte(kPlanes - 1, value);
    if constexpr (kPlanes == 2) byte(0, (value + 128) >> 8);  // the low byte is signed
  }
  __device__ void store(const GatherArgs& a, int64_t m, int32_t unit) const {
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
      const int64_t tile = m / kXTileRows * kPlanes + plane;
      const int64_t of_slab = tile / a.slab_tiles * a.blocks + unit / kBlockUnits;
      uint8_t* const pieces = a.rows +
                              (of_slab * a.slab_tiles + tile % a.slab_tiles) * row_block_bytes(RowsKind::kStatic) +
                              unit % kBlockUnits / kStepUnits * 256 + m % kXTileRows * 16 + unit % kStepUnits * 4;
      *reinterpret_cast<uint32_t*>(pieces) = words[plane][0];
      *reinterpret_cast<uint32_t*>(pieces + 128) = words[plane][1];
    }
  }
};

/// `lanes` neighbouring threads for each row. kWhole: C / groups is a multiple of a unit, so a unit is of one pixel; 8
/// codes of 8 bits are one load where x_stride and first channel are multiples, too.
template <typename X, bool kWhole>
__global__ void __launch_bounds__(kThreads) gather_pixels(const GatherArgs a, const int64_t all_rows) {
  constexpr int kPlanes = sizeof(X);
  const ConvSource& s = a.source;
  const X* const x = static_cast<const X*>(s.x) + a.first_channel;
  const int lane = static_cast<int>(threadIdx.x) % a.lanes;
  const int64_t step = int64_t{gridDim.x} * (kThreads / a.lanes);
  const bool vector =
      sizeof(X) == 1 && s.outside == nullptr && s.x_stride % kUnit == 0 && reinterpret_cast<uintptr_t>(x) % kUnit == 0;
  // Neighbours do the same number of rounds, as they exchange sums.
  for (int64_t first = blockIdx.x * int64_t{kThreads / a.lanes}; first < all_rows; first += step) {
    const int64_t m = first + static_cast<int>(threadIdx.x) / a.lanes;
    const bool real = m < s.m;
    const Place at = real ? place_of(s, s.first + m) : Place{};
    const int64_t image = at.image * s.rows.pixels * s.columns.pixels;
    int64_t sum = 0;
    const auto value_of = [&](int32_t i, int32_t j, int32_t c) {
      if (i < 0 || j < 0) return s.zero - a.offset;
      const int64_t pixel = image + int64_t{i} * s.columns.pixels + j;
      return inside_grid(s, x[pixel * s.x_stride + c], pixel, a.first_channel + c) - a.offset;
    };
    if (m < all_rows) {
      int32_t end = 0;  // of the units of columns
      if constexpr (kWhole) {
        const int32_t tap_units = s.group_channels / kUnit;
        const auto outside_byte = static_cast<uint32_t>(s.zero - a.offset) & 0xff;
        for (int32_t r = 0, unit = 0; r < s.rows.kernel; ++r) {
          const int32_t i = real ? pixel_of(s.rows, s.transposed, at.p, r) : 0;
          for (int32_t t = 0; t < s.columns.kernel; ++t, unit += tap_units) {
            const int32_t j = real ? pixel_of(s.columns, s.transposed, at.q, t) : 0;
            const X* const pixel = x + (image + int64_t{i} * s.columns.pixels + j) * s.x_stride;
            for (int32_t u = lane; u < tap_units; u += a.lanes) {
              Unit<kPlanes> codes;
              if (!real) {
              } else if (vector) {
                uint2 words{outside_byte * 0x01010101u, outside_byte * 0x01010101u};
                if (i >= 0 && j >= 0) {
                  words = *reinterpret_cast<const uint2*>(pixel + u * kUnit);
                  const uint32_t flip = (static_cast<uint32_t>(a.offset) & 0xff) * 0x01010101u;  // 0, or 128 each
                  words.x ^= flip;
                  words.y ^= flip;
                }
                codes.words[0][0] = words.x;
                codes.words[0][1] = words.y;
                codes.sum = __dp4a(static_cast<int32_t>(words.x), 0x01010101,
                                   __dp4a(static_cast<int32_t>(words.y), 0x01010101, 0));
              } else {
#pragma unroll
                for (int e = 0; e < kUnit; ++e) codes.put(e, value_of(i, j, u * kUnit + e));
              }
              sum += codes.sum;
              codes.store(a, m, unit + u);
            }
          }
        }
        end = s.rows.kernel * s.columns.kernel * tap_units;
      } else {
        end = (a.columns + kUnit - 1) / kUnit;
        for (int32_t unit = lane; unit < end; unit += a.lanes) {
          Unit<kPlanes> codes;
#pragma unroll
          for (int e = 0; e < kUnit; ++e) {
            const int32_t k = unit * kUnit + e;
            if (!real || k >= a.columns) continue;
            const int32_t tap = k / s.group_channels;
            const int32_t r = tap / s.columns.kernel;
            codes.put(e, value_of(pixel_of(s.rows, s.transposed, at.p, r),
                                  pixel_of(s.columns, s.transposed, at.q, tap - r * s.columns.kernel),
                                  k - tap * s.group_channels));
          }
          sum += codes.sum;
          codes.store(a, m, unit);
        }
      }
      for (int32_t unit = end + lane; unit < a.blocks * kBlockUnits; unit += a.lanes) Unit<kPlanes>{}.store(a, m, unit);
    }
    for (int distance = a.lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (lane == 0 && m < all_rows) a.parameters[m] = StaticRow{sum, -1, 0};
  }
}

// ---- Sums for each output

/// A thread for each output and channel, neighbours in channels.
template <typename X, typename Acc>
__global__ void __launch_bounds__(kThreads) sum_directly(const ConvDirect d) {
  const ConvSource& s = d.source;
  const X* const x = static_cast<const X*>(s.x);
  const int64_t count = s.m * d.outputs, step = int64_t{gridDim.x} * kThreads;
  for (int64_t index = blockIdx.x * int64_t{kThreads} + threadIdx.x; index < count; index += step) {
    const int64_t m = quotient(index, d.outputs);
    const auto o = static_cast<int32_t>(index - m * d.outputs);
    const Place at = place_of(s, s.first + m);
    const int64_t image = at.image * s.rows.pixels * s.columns.pixels;
    const int32_t first = o / d.group_outputs * s.group_channels;
    const StaticChannel channel = d.epilogue.channels[o];
    Acc acc = static_cast<Acc>(channel.start);
    const int8_t* w = d.weights + o;
    for (int32_t r = 0; r < s.rows.kernel; ++r) {
      const int32_t i = pixel_of(s.rows, s.transposed, at.p, r);
      for (int32_t t = 0; t < s.columns.kernel; ++t, w += int64_t{s.group_channels} * d.outputs) {
        const int32_t j = pixel_of(s.columns, s.transposed, at.q, t);
        if (i < 0 || j < 0) continue;
        const int64_t pixel = image + int64_t{i} * s.columns.pixels + j;
        const X* const from = x + pixel * s.x_stride + first;
        for (int32_t c = 0; c < s.group_channels; ++c)
          acc += static_cast<Acc>(inside_grid(s, from[c], pixel, first + c) - s.zero) * w[int64_t{c} * d.outputs];
      }
    }
    const int64_t to = (s.first + m) * d.y_stride + o;
    store_code(d.y, d.epilogue.y_bytes, to, finished(d.epilogue, channel, d.residual, acc, to));
  }
}

__global__ void __launch_bounds__(kThreads) add_codes(const ConvAdd a) {
  const int64_t count = a.m * a.n, step = int64_t{gridDim.x} * kThreads;
  for (int64_t index = blockIdx.x * int64_t{kThreads} + threadIdx.x; index < count; index += step) {
    const int64_t m = quotient(index, a.n);
    const auto n = static_cast<int32_t>(index - m * a.n);
    const int64_t to = m * a.y_stride + n;
    store_code(a.y, a.epilogue.y_bytes, to, finished(a.epilogue, a.epilogue.channels[n], a.residual, a.acc[index], to));
  }
}

/// body(X{}) with the type of codes.
template <typename Body>
Status with_codes(Dtype dtype, const Body& body) {
  switch (dtype) {
    case Dtype::kS8: return body(int8_t{});
    case Dtype::kU8: return body(uint8_t{});
    case Dtype::kS16: return body(int16_t{});
    default: return body(uint16_t{});
  }
}

}  // namespace

Status gather_rows(const RowsLayout& layout, const ConvSource& source, Dtype x_dtype, int32_t first_channel,
                   std::byte* to, cudaStream_t stream) {
  GatherArgs a{};
  a.source = source;
  a.first_channel = first_channel;
  a.columns = source.rows.kernel * source.columns.kernel * source.group_channels;
  a.blocks = static_cast<int32_t>(layout.blocks);
  a.slab_tiles = static_cast<int32_t>(layout.slab_tiles);
  a.offset = static_offset(x_dtype);
  a.rows = reinterpret_cast<uint8_t*>(to);
  a.parameters = reinterpret_cast<StaticRow*>(to + layout.parameters_at);
  const bool whole = source.group_channels % kUnit == 0;
  const int32_t units = (whole ? source.group_channels : a.columns + kUnit - 1) / kUnit;
  a.lanes = 1;
  while (a.lanes < 32 && a.lanes < units) a.lanes *= 2;
  const int64_t rows = layout.tiles * kXTileRows / static_cast<int64_t>(size_in_bytes(x_dtype));
  return with_codes(x_dtype, [&](auto code) {
    using X = decltype(code);
    const auto kernel = whole ? gather_pixels<X, true> : gather_pixels<X, false>;
    return launch_kernel("gather_pixels", kernel, dim3(blocks_for(rows * a.lanes, kThreads)), kThreads, 0, stream, a,
                         rows);
  });
}

Status run_direct(const ConvDirect& conv, Dtype x_dtype, cudaStream_t stream) {
  const dim3 blocks(blocks_for(conv.source.m * conv.outputs, kThreads));
  return with_codes(x_dtype, [&](auto code) {
    using X = decltype(code);
    const auto kernel = conv.epilogue.wide ? sum_directly<X, int64_t> : sum_directly<X, int32_t>;
    return launch_kernel("sum_directly", kernel, blocks, kThreads, 0, stream, conv);
  });
}

Status add_residual(const ConvAdd& add, cudaStream_t stream) {
  return launch_kernel("add_codes", add_codes, dim3(blocks_for(add.m * add.n, kThreads)), kThreads, 0, stream, add);
}

}  // namespace isobit::cuda
