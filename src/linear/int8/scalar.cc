// SPDX-License-Identifier: Apache-2.0
// Plain C++ over the packed weights: what processors without vector kernels use.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/half.h"
#include "linear/int8/kernels.h"

namespace isobit {
namespace {

float number(Int8Float type, const uint8_t* from, int64_t i) {
  if (type == Int8Float::kF32) {
    float value;
    std::memcpy(&value, from + 4 * i, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from + 2 * i, sizeof bits);
  if (type == Int8Float::kF16) return f16_to_f32(bits);
  if (type == Int8Float::kBF16) return bf16_to_f32(bits);
  return static_cast<float>(static_cast<int16_t>(bits));
}

/// sums[lane] += sum of w * a over the blocks of one group; kLow = 1: of 2 w * a.
template <int kBits, int kLow>
void add_group(const uint8_t* codes, int64_t blocks, const int8_t* a, int32_t (&sums)[kInt8TileRows]) {
  constexpr int kFields = 8 / kBits;
  constexpr int kMask = (1 << kBits) - 1;
  for (int64_t i = 0; i < blocks; ++i, codes += kInt8BlockBytes, a += 4 * kFields)
    for (int lane = 0; lane < kInt8TileRows; ++lane)
      for (int j = 0; j < 4; ++j)
        for (int field = 0; field < kFields; ++field)
          sums[lane] += ((codes[4 * lane + j] >> (field * kBits) & kMask) << kLow) * a[4 * field + j];
}

/// act, and the one NaN.
float finished(float total, float lo, float hi) {
  const float y = total < lo ? lo : total > hi ? hi : total;
  return std::isnan(y) ? std::numeric_limits<float>::quiet_NaN() : y;
}

template <int kBits, int kLow>
void product_of_bits(const Int8ProductArgs& args) {
  const Int8Layout& layout = args.layout;
  const int64_t group_bytes = int8_padded(layout.group);
  for (int64_t tile = 0; tile < args.tiles; ++tile) {
    for (int64_t m = 0; m < args.m; ++m) {
      float total[kInt8TileRows] = {};
      float acc[kInt8TileRows] = {};
      for (int64_t g = 0; g < layout.groups; ++g) {
        const uint8_t* chunk = args.weights + tile * layout.tile_bytes + g / kInt8ChunkGroups * layout.chunk_bytes;
        const int64_t in_chunk = g % kInt8ChunkGroups;
        const Int8Group& x = args.x_groups[m * args.group_stride + g];
        int32_t sums[kInt8TileRows] = {};
        add_group<kBits, kLow>(chunk + layout.codes + in_chunk * layout.group_blocks * kInt8BlockBytes,
                               g + 1 == layout.groups ? layout.last_group_blocks : layout.group_blocks,
                               args.codes + m * args.code_stride + g * group_bytes, sums);
        for (int lane = 0; lane < kInt8TileRows; ++lane) {
          const int64_t at = in_chunk * kInt8TileRows + lane;
          int32_t start = x.start;
          if (layout.zero_points != 0) {
            uint16_t z = chunk[layout.zero_points + at * layout.zero_point_bytes];
            if (layout.zero_point_bytes == 2) std::memcpy(&z, chunk + layout.zero_points + 2 * at, sizeof z);
            start *= z;
          }
          const float scale = number(layout.scale_type, chunk, at);
          acc[lane] = std::fma(static_cast<float>(start + sums[lane]), scale * x.scale, acc[lane]);
          if (layout.sums != 0)
            acc[lane] = std::fma(number(layout.sum_type, chunk + layout.sums, at), scale * x.offset, acc[lane]);
          if (layout.offsets != 0)
            acc[lane] = std::fma(number(layout.scale_type, chunk + layout.offsets, at), x.affine, acc[lane]);
        }
        if (in_chunk + 1 < kInt8ChunkGroups && g + 1 < layout.groups) continue;
        for (int lane = 0; lane < kInt8TileRows; ++lane) {
          total[lane] += acc[lane];
          acc[lane] = 0.0f;
        }
      }
      const int64_t first = tile * kInt8TileRows;
      for (int64_t n = first; n < std::min(args.count, first + kInt8TileRows); ++n)
        args.y[m * args.y_stride + n] = finished(total[n - first] + args.bias[n], args.lo, args.hi);
    }
  }
}

void product(const Int8ProductArgs& args) {
  switch (args.layout.bits) {
    case 1: return args.layout.twice ? product_of_bits<1, 1>(args) : product_of_bits<1, 0>(args);
    case 2: return product_of_bits<2, 0>(args);
    case 4: return product_of_bits<4, 0>(args);
    default: return product_of_bits<8, 0>(args);
  }
}

bool quantize(const Int8QuantizeArgs& args) {
  const auto* x = static_cast<const uint8_t*>(args.x);
  int8_t* codes = args.codes;
  Int8Group* out = args.groups;
  bool finite = true;
  for (int64_t begin = 0; begin < args.columns; begin += args.group) {
    const int64_t length = std::min(args.group, args.columns - begin);
    const float first = number(args.type, x, begin);
    float low = first;
    float high = first;
    float amax = 0.0f;
    for (int64_t k = begin; k < begin + length; ++k) {
      const float value = number(args.type, x, k);
      finite = finite && std::isfinite(value);
      low = std::min(low, value);
      high = std::max(high, value);
      amax = std::max(amax, std::fabs(value));
    }
    const float range = args.asymmetric ? high - low : amax;
    finite = finite && std::isfinite(range);
    const bool usable = range >= 0x1p-118f && std::isfinite(range);
    Int8Group group{};
    if (usable) group.scale = range / (args.asymmetric ? 255.0f : 127.0f);
    if (args.asymmetric) group.offset = usable ? std::fma(-127.0f, group.scale, high) : high;
    const float inverse = usable ? (args.asymmetric ? 255.0f : 127.0f) / range : 0.0f;
    int32_t sum = 0;
    for (int64_t k = 0; k < length; ++k) {
      const float value = number(args.type, x, begin + k);
      const float scaled = std::nearbyint((args.asymmetric ? value - group.offset : value) * inverse);
      const float lowest = args.asymmetric ? -128.0f : -127.0f;
      const float code = scaled < lowest ? lowest : scaled > 127.0f ? 127.0f : scaled;
      const int32_t a = usable && std::isfinite(value) ? static_cast<int32_t>(code) : 0;
      codes[k] = static_cast<int8_t>(args.is_unsigned ? a + 128 : a);
      sum += a;
    }
    std::memset(codes + length, 0, static_cast<size_t>(int8_padded(length) - length));
    codes += int8_padded(length);
    group.start = -args.factor * sum;
    group.affine = group.scale * static_cast<float>(sum);
    if (args.asymmetric) group.affine = std::fma(group.offset, static_cast<float>(length), group.affine);
    *out++ = group;
  }
  return finite;
}

void finish(const Int8FinishArgs& args) {
  for (int64_t m = 0; m < args.rows; ++m) {
    const Int8Group& row = args.groups[m];
    for (int64_t n = 0; n < args.count; ++n) {
      float acc = std::fma(static_cast<float>(args.d[m * args.d_stride + n]), args.scales[n] * row.scale, 0.0f);
      if (args.sums != nullptr) acc = std::fma(args.sums[n], args.scales[n] * row.offset, acc);
      args.y[m * args.y_stride + n] = finished((0.0f + acc) + args.bias[n], args.lo, args.hi);
    }
  }
}

}  // namespace

Int8Kernels int8_kernels_scalar() { return {product, quantize, finish}; }

}  // namespace isobit
