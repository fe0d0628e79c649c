// SPDX-License-Identifier: Apache-2.0
// What the x86 kernels of 8-bit activations share. Each instruction-set file defines `struct Vector` in an unnamed
// namespace and then includes this file, once: everything here has internal linkage. Vector has
//   Ints, Floats              kLanes 32-bit lanes, a lane is one output. Ints is a vector of int32_t, not __m512i: see
//                             product_x86_body.h
//   Bytes                     four bytes a lane
//   Operand<kBits>            bytes as dot wants them: codes of at most kBits bits, or four activations in every lane;
//                             operand_bits(bits): kBits for codes of so many bits
//   kUnits, kRows             the largest register tile: outputs / kLanes, rows of x
//   load_bytes, field<shift, mask>, weights<kBits>, activations<kBits>, dot<kBits>
//   set, set_float, multiply, add, to_float, multiply_float, fma, load_float, store_float, floats (of a DynamicFloat),
//   zero_points
//   and for the quantiser: absolute_bits, max_bits, largest_bits, min_float, max_float, smallest, largest, to_codes,
//   sum_codes
#ifndef ISOBIT_LINEAR_DYNAMIC_X86_BODY_H_
#define ISOBIT_LINEAR_DYNAMIC_X86_BODY_H_

#include <cstdint>
#include <cstring>

#include "core/hd.h"
#include "core/unroll.h"
#include "linear/dynamic_kernels.h"

namespace isobit {
namespace {

/// Bytes ahead of a load of weights that come from memory.
constexpr int64_t kPrefetchBytes = 2048;

/// One chunk of kUnits units for kRows rows of x.
struct TileArgs {
  const DynamicLayout* layout;
  const uint8_t* chunk;  // of the first unit's tile
  const uint8_t* codes;  // of its groups: in the chunk, or decoded
  int64_t code_tile_bytes;
  int64_t blocks;  // of a group
  int64_t last_blocks;
  int64_t groups;  // of the chunk
  const int8_t* a;
  int64_t a_stride;
  int64_t a_group_bytes;
  const DynamicGroup* x;
  int64_t x_stride;
  float* y;
  int64_t y_stride;
  bool first;  // of all chunks
};

constexpr int kUnitsPerTile = kDynamicTileRows / Vector::kLanes;

/// Where unit u begins in a tile of `tile_bytes`, and within a row of 16 numbers.
ISOBIT_HD int64_t unit_tile(int u, int64_t tile_bytes) { return u / kUnitsPerTile * tile_bytes; }
constexpr int unit_lane(int u) { return u % kUnitsPerTile * Vector::kLanes; }

/// Codes of kStored bits that are at most kBits bits wide once shifted to the left by kLow.
template <int kStored, int kBits, int kLow, int kRows, int kUnits>
void run_tile(const TileArgs& args) {
  constexpr int kFields = 8 / kStored;
  constexpr int kMask = ((1 << kStored) - 1) << kLow;
  constexpr int kUnrolled =
      kStored >= 4 ? kStored / 2 : 1;  // blocks: address arithmetic takes the ports of the products
  const DynamicLayout& layout = *args.layout;
  Vector::Floats sums[kRows][kUnits];
  unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) { sums[i / kUnits][i % kUnits] = Vector::set_float(0.0f); });
  const uint8_t* codes = args.codes;
  const int8_t* a = args.a;
  const uint8_t* numbers = args.chunk;
  int64_t at = 0;
  const auto* x = reinterpret_cast<const uint8_t*>(args.x);
  const int64_t x_stride = args.x_stride * static_cast<int64_t>(sizeof(DynamicGroup));
  const auto x_of = [&](int64_t r) __attribute__((always_inline))->const DynamicGroup& {
    return *reinterpret_cast<const DynamicGroup*>(x + r * x_stride);
  };
  for (int64_t g = 0; g < args.groups; ++g, at += kDynamicTileRows, x += sizeof(DynamicGroup)) {
    Vector::Ints acc[kRows][kUnits];
    if (layout.zero_points == 0) {
      unroll<kRows>(ISOBIT_UNROLLED(r) {
        const Vector::Ints start = Vector::set(x_of(r).start);
        unroll<kUnits>(ISOBIT_UNROLLED(u) { acc[r][u] = start; });
      });
    } else {
      unroll<kUnits>(ISOBIT_UNROLLED(u) {
        const Vector::Ints z = Vector::zero_points(
            layout.zero_point_bytes, numbers + unit_tile(u, layout.tile_bytes) + layout.zero_points, at + unit_lane(u));
        unroll<kRows>(ISOBIT_UNROLLED(r) { acc[r][u] = Vector::multiply(z, Vector::set(x_of(r).start)); });
      });
    }
    const int64_t blocks = g + 1 < args.groups ? args.blocks : args.last_blocks;
    const int8_t* quad = a;
    const auto block = [&](int64_t i) __attribute__((always_inline)) {
      Vector::Bytes bytes[kUnits];
      unroll<kUnits>(ISOBIT_UNROLLED(u) {
        const uint8_t* from = codes + unit_tile(u, args.code_tile_bytes) + i * kDynamicBlockBytes + 4 * unit_lane(u);
        bytes[u] = Vector::load_bytes(from);
        if constexpr ((kStored < 8 || kRows <= 2) && unit_lane(u) == 0) __builtin_prefetch(from + kPrefetchBytes);
      });
      unroll<kFields>(ISOBIT_UNROLLED(field) {
        Vector::Operand<kBits> w[kUnits];
        unroll<kUnits>(ISOBIT_UNROLLED(u) {
          w[u] = Vector::weights<kBits>(Vector::field<field * kStored - kLow, kMask>(bytes[u]));
        });
        unroll<kRows>(ISOBIT_UNROLLED(r) {
          const auto four = Vector::activations<kBits>(quad + r * args.a_stride + 4 * (i * kFields + field));
          unroll<kUnits>(ISOBIT_UNROLLED(u) { acc[r][u] = Vector::dot<kBits>(acc[r][u], w[u], four); });
        });
      });
    };
    int64_t i = 0;
    for (; i + kUnrolled <= blocks; i += kUnrolled) {
      unroll<kUnrolled>(ISOBIT_UNROLLED(j) { block(j); });
      codes += kUnrolled * kDynamicBlockBytes;
      quad += kUnrolled * 4 * kFields;
    }
    for (; i < blocks; ++i) {
      block(0);
      codes += kDynamicBlockBytes;
      quad += 4 * kFields;
    }
    a += args.a_group_bytes;
    Vector::Floats scale[kUnits];
    unroll<kUnits>(ISOBIT_UNROLLED(u) {
      scale[u] = Vector::floats(layout.scale_type, numbers + unit_tile(u, layout.tile_bytes), at + unit_lane(u));
      unroll<kRows>(ISOBIT_UNROLLED(r) {
        const Vector::Floats both = Vector::multiply_float(scale[u], Vector::set_float(x_of(r).scale));
        sums[r][u] = Vector::fma(Vector::to_float(acc[r][u]), both, sums[r][u]);
      });
    });
    if (layout.sums != 0) {
      unroll<kUnits>(ISOBIT_UNROLLED(u) {
        const Vector::Floats v =
            Vector::floats(layout.sum_type, numbers + unit_tile(u, layout.tile_bytes) + layout.sums, at + unit_lane(u));
        unroll<kRows>(ISOBIT_UNROLLED(r) {
          const Vector::Floats both = Vector::multiply_float(scale[u], Vector::set_float(x_of(r).offset));
          sums[r][u] = Vector::fma(v, both, sums[r][u]);
        });
      });
    }
    if (layout.offsets != 0) {
      unroll<kUnits>(ISOBIT_UNROLLED(u) {
        const Vector::Floats offset = Vector::floats(
            layout.scale_type, numbers + unit_tile(u, layout.tile_bytes) + layout.offsets, at + unit_lane(u));
        unroll<kRows>(
            ISOBIT_UNROLLED(r) { sums[r][u] = Vector::fma(offset, Vector::set_float(x_of(r).affine), sums[r][u]); });
      });
    }
  }
  unroll<kRows>(ISOBIT_UNROLLED(r) {
    unroll<kUnits>(ISOBIT_UNROLLED(u) {
      float* y = args.y + r * args.y_stride + u * Vector::kLanes;
      // +0 + acc, as the first chunk has it: -0 becomes +0.
      const Vector::Floats before = args.first ? Vector::set_float(0.0f) : Vector::load_float(y);
      Vector::store_float(y, Vector::add_float(before, sums[r][u]));
    });
  });
}

using RunTile = void (*)(const TileArgs&);

/// of[rows - 1][units - 1]
template <int kStored, int kBits, int kLow>
struct Tiles {
  RunTile of[Vector::kRows][Vector::kUnits];

  template <int kRows = 1, int kUnits = 1>
  constexpr void fill() {
    of[kRows - 1][kUnits - 1] = run_tile<kStored, kBits, kLow, kRows, kUnits>;
    if constexpr (kUnits < Vector::kUnits) {
      fill<kRows, kUnits + 1>();
    } else if constexpr (kRows < Vector::kRows) {
      fill<kRows + 1>();
    }
  }
  static constexpr Tiles make() {
    Tiles tiles{};
    tiles.template fill<>();
    return tiles;
  }
};

template <int kStored, int kBits, int kLow>
constexpr Tiles<kStored, kBits, kLow> kTiles = Tiles<kStored, kBits, kLow>::make();

/// Blocks of one tile to bytes: block i becomes blocks i * kFields and up of 8-bit codes.
template <int kStored, int kLow>
ISOBIT_HD void decode(const uint8_t* from, int64_t blocks, uint8_t* to) {
  constexpr int kFields = 8 / kStored;
  constexpr int kMask = ((1 << kStored) - 1) << kLow;
  for (int64_t i = 0; i < blocks; ++i, from += kDynamicBlockBytes) {
    unroll<kUnitsPerTile>(ISOBIT_UNROLLED(u) {
      const Vector::Bytes bytes = Vector::load_bytes(from + 4 * unit_lane(u));
      __builtin_prefetch(from + kPrefetchBytes);
      unroll<kFields>(ISOBIT_UNROLLED(field) {
        Vector::store_bytes(to + field * kDynamicBlockBytes + 4 * unit_lane(u),
                            Vector::field<field * kStored - kLow, kMask>(bytes));
      });
    });
    to += kFields * kDynamicBlockBytes;
  }
}

/// Rows of x in groups of at most kRows, the last two of which share what is left.
template <typename Body>
ISOBIT_HD void for_row_groups(int64_t m, const Body& body) {
  int64_t row = 0;
  while (row < m) {
    const int64_t left = m - row;
    const int64_t rows = left >= 2 * Vector::kRows ? Vector::kRows : left > Vector::kRows ? (left + 1) / 2 : left;
    body(row, rows);
    row += rows;
  }
}

/// Outputs of so many tiles, times kDynamicMaxM rows of x, stay in the second-level cache while chunks are added.
constexpr int64_t kTilesTogether = 16;
constexpr int kTilesAbreast = Vector::kUnits / kUnitsPerTile;

template <int kStored, int kLow>
void product_of_bits(const DynamicProductArgs& args) {
  constexpr int kFields = 8 / kStored;
  constexpr int kBits = Vector::operand_bits(kStored);
  const DynamicLayout& layout = args.layout;
  const int64_t chunks = (layout.groups + kDynamicChunkGroups - 1) / kDynamicChunkGroups;
  const int64_t group_bytes = dynamic_padded(layout.group);
  for (int64_t row = 0; row < args.m; row += kDynamicMaxM) {
    const int64_t m = args.m - row < kDynamicMaxM ? args.m - row : kDynamicMaxM;
    const bool decoded = kStored != 8 && m > Vector::kRows;
    // Few rows: a tile is one stream through memory.
    const int64_t together = m > Vector::kRows ? kTilesTogether : kTilesAbreast;
    for (int64_t first = 0; first < args.tiles; first += together) {
      const int64_t tiles_end = args.tiles - first < together ? args.tiles : first + together;
      for (int64_t c = 0; c < chunks; ++c) {
        const bool last = c + 1 == chunks;
        TileArgs tile{};
        tile.layout = &layout;
        tile.groups = last ? layout.groups - c * kDynamicChunkGroups : kDynamicChunkGroups;
        tile.blocks = layout.group_blocks;
        tile.last_blocks = last ? layout.last_group_blocks : layout.group_blocks;
        tile.a_stride = args.code_stride;
        tile.a_group_bytes = group_bytes;
        tile.x_stride = args.group_stride;
        tile.y_stride = args.y_stride;
        tile.first = c == 0;
        const int64_t blocks = (tile.groups - 1) * tile.blocks + tile.last_blocks;
        if (decoded) {
          tile.blocks *= kFields;
          tile.last_blocks *= kFields;
        }
        for (int64_t t = first; t < tiles_end; t += kTilesAbreast) {
          const int64_t abreast = tiles_end - t < kTilesAbreast ? tiles_end - t : kTilesAbreast;
          const int64_t units = abreast * kUnitsPerTile;
          tile.chunk = args.weights + t * layout.tile_bytes + c * layout.chunk_bytes;
          tile.codes = tile.chunk + layout.codes;
          tile.code_tile_bytes = layout.tile_bytes;
          if (decoded) {
            const int64_t bytes = blocks * kFields * kDynamicBlockBytes;
            for (int64_t i = 0; i < abreast; ++i)
              decode<kStored, kLow>(tile.codes + i * layout.tile_bytes, blocks, args.scratch + i * bytes);
            tile.codes = args.scratch;
            tile.code_tile_bytes = bytes;
          }
          for_row_groups(
              m, [&](int64_t from, int64_t rows) __attribute__((always_inline)) {
                const int64_t r = row + from;
                tile.a = args.codes + r * args.code_stride + c * kDynamicChunkGroups * group_bytes;
                tile.x = args.x_groups + r * args.group_stride + c * kDynamicChunkGroups;
                tile.y = args.y + r * args.y_stride + t * kDynamicTileRows;
                if (decoded) {
                  kTiles<8, kBits, 0>.of[rows - 1][units - 1](tile);
                } else {
                  kTiles<kStored, kBits, kLow>.of[rows - 1][units - 1](tile);
                }
              });
        }
      }
    }
  }
}

void run_product(const DynamicProductArgs& args) {
  switch (args.layout.bits) {
    case 1: return args.layout.twice ? product_of_bits<1, 1>(args) : product_of_bits<1, 0>(args);
    case 2: return product_of_bits<2, 0>(args);
    case 4: return product_of_bits<4, 0>(args);
    default: return product_of_bits<8, 0>(args);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Quantising

/// body(float lanes, codes' place) for every register of a group. The lanes past its end repeat an element of the
/// group.
template <DynamicFloat kType, typename Body>
ISOBIT_HD void for_group(const uint8_t* x, int64_t length, const Body& body) {
  constexpr int64_t kBytes = dynamic_float_bytes(kType);
  int64_t k = 0;
  for (; k + Vector::kLanes <= length; k += Vector::kLanes) body(Vector::floats(kType, x, k), k);
  if (k == length) return;
  uint8_t rest[Vector::kLanes * kBytes];
  for (int64_t i = 0; i < Vector::kLanes; ++i)
    std::memcpy(rest + i * kBytes, x + (k + i < length ? k + i : k) * kBytes, kBytes);
  body(Vector::floats(kType, rest, 0), k);
}

template <DynamicFloat kType, bool kAsymmetric>
bool quantize_row_of(const DynamicQuantizeArgs& args) {
  using Floats = Vector::Floats;
  const auto* x = static_cast<const uint8_t*>(args.x);
  int8_t* codes = args.codes;
  DynamicGroup* out = args.groups;
  uint32_t worst = 0;
  for (int64_t begin = 0; begin < args.columns; begin += args.group) {
    const int64_t length = args.columns - begin < args.group ? args.columns - begin : args.group;
    const uint8_t* from = x + begin * dynamic_float_bytes(kType);
    // Magnitudes compare as integers do, and a NaN is above infinity.
    Vector::Ints bits = Vector::set(0);
    Floats low = Vector::set_float(__builtin_inff());
    Floats high = Vector::set_float(-__builtin_inff());
    for_group<kType>(
        from, length, [&](Floats v, int64_t) __attribute__((always_inline)) {
          bits = Vector::max_bits(bits, Vector::absolute_bits(v));
          if constexpr (kAsymmetric) {
            low = Vector::min_float(low, v);
            high = Vector::max_float(high, v);
          }
        });
    const uint32_t amax_bits = Vector::largest_bits(bits);
    const float top = kAsymmetric ? Vector::largest(high) : 0.0f;
    const float range = kAsymmetric ? top - Vector::smallest(low) : __builtin_bit_cast(float, amax_bits);
    worst = worst > amax_bits ? worst : amax_bits;
    if (kAsymmetric && !(range <= 0x1.fffffep127f)) worst = 0x7F800000;
    constexpr float kSteps = kAsymmetric ? 255.0f : 127.0f;
    const bool usable = range >= 0x1p-118f;
    DynamicGroup group;
    group.scale = usable ? range / kSteps : 0.0f;
    group.offset = !kAsymmetric ? 0.0f : usable ? __builtin_fmaf(-127.0f, group.scale, top) : top;
    int32_t sum = 0;
    const int64_t padded = dynamic_padded(length);
    if (usable) {
      const Floats inverse = Vector::set_float(kSteps / range);
      const Floats offset = Vector::set_float(group.offset);
      for_group<kType>(
          from, length, [&](Floats v, int64_t k) __attribute__((always_inline)) {
            if constexpr (kAsymmetric) v = Vector::subtract_float(v, offset);
            // Saturates at -128 and 127. No symmetric code is below -127: |x| * (127 / amax) is at most 127 (1 +
            // 2^-22).
            Vector::to_codes(codes + k, Vector::multiply_float(v, inverse));
          });
      std::memset(codes + length, 0, static_cast<size_t>(padded - length));
      sum = Vector::sum_codes(codes, padded);
    } else {
      std::memset(codes, 0, static_cast<size_t>(padded));
    }
    codes += padded;
    group.start = -args.factor * sum;
    group.affine = group.scale * static_cast<float>(sum);
    if constexpr (kAsymmetric) group.affine = __builtin_fmaf(group.offset, static_cast<float>(length), group.affine);
    *out++ = group;
  }
  return worst < 0x7F800000;
}

template <DynamicFloat kType>
bool quantize_type(const DynamicQuantizeArgs& args) {
  return args.asymmetric ? quantize_row_of<kType, true>(args) : quantize_row_of<kType, false>(args);
}

bool run_quantize(const DynamicQuantizeArgs& args) {
  switch (args.type) {
    case DynamicFloat::kF16: return quantize_type<DynamicFloat::kF16>(args);
    case DynamicFloat::kBF16: return quantize_type<DynamicFloat::kBF16>(args);
    default: return quantize_type<DynamicFloat::kF32>(args);
  }
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_LINEAR_DYNAMIC_X86_BODY_H_
