// SPDX-License-Identifier: Apache-2.0
// What the x86 kernels of 8-bit activations share. Each instruction-set file defines `struct Vector` in an unnamed
// namespace and then includes this file, once: everything here has internal linkage. Vector has
//   Ints, Floats              kLanes 32-bit lanes, a lane is one output. Ints is a vector of int32_t, not __m512i: see
//                             product/x86_body.h
//   Bytes                     four bytes a lane
//   Operand<kBits>            bytes as dot wants them: codes of at most kBits bits, or four activations in every lane;
//                             operand_bits(bits): kBits for codes of so many bits
//   kUnits, kRows             the largest register tile for few rows: outputs / kLanes, rows of x
//   kPanelUnits, kPanelRows   and for many
//   load_bytes, field<shift, mask>, weights<kBits>, activations<kBits>, dot<kBits>
//   load_ints, store_ints, set, set_float, multiply, add, shift_right<bits>, to_float, multiply_float, fma, load_float,
//   store_float, floats (of a Int8Float), zero_points, one_nan (0x7FC00000 for every NaN) and for the quantiser:
//   absolute_bits, max_bits, largest_bits, min_float, max_float, smallest, largest, to_codes, sum_codes
//   kGroupsTogether           1, or so many groups quantised by
//   quantize_groups           symmetric, of `length` elements each, a multiple of 4 * kLanes: codes and numbers of all;
//                             in some lane of the result are the bits of each group's largest magnitude
#ifndef ISOBIT_LINEAR_INT8_X86_BODY_H_
#define ISOBIT_LINEAR_INT8_X86_BODY_H_

#include <cstdint>
#include <cstring>

#include "core/hd.h"
#include "core/unroll.h"
#include "linear/int8/kernels.h"

namespace isobit {
namespace {

/// Bytes ahead of loads of weights that come from memory, of all tiles that are read abreast: found by timing, for each
/// width.
template <int kStored>
constexpr int64_t kPrefetchBytes = kStored == 1 ? 16384 : 8192;
/// The same of each tile of a panel.
template <int kStored>
constexpr int64_t kPanelPrefetchBytes = kStored == 1   ? 8192
                                        : kStored == 4 ? 2048
                                                       : 4096;

/// What a register tile reads: kUnits units for kRows rows of x, groups of one chunk.
struct TileArgs {
  const Int8Layout* layout;
  const uint8_t* numbers;  // the chunk of the first unit's tile
  const uint8_t* tile_end;
  const uint8_t* codes;  // in the chunk; of a panel: for each quad of k the bytes of all units
  int64_t blocks;        // of a group
  int64_t last_blocks;
  int64_t groups;
  const int8_t* a;
  int64_t a_stride;
  int64_t a_group_bytes;
  const Int8Group* x;
  int64_t x_stride;
  float* totals;  // [rows, kPanelColumns]: T of the chunks before
  bool first_chunk;
  bool last_chunk;
  const float* bias;
  float lo;
  float hi;
  float* y;
  int64_t y_stride;
  int64_t count;  // of y's columns that exist
  // Of a panel, whose blocks are of 8 bits:
  int64_t first_group;  // in the chunk
  bool group_begins;    // else `ints` go on
  bool group_ends;      // else they are kept
  bool chunk_begins;
  bool chunk_ends;
  int32_t* ints;  // [rows, kPanelColumns], as sums
  float* sums;
};

constexpr int kUnitsPerTile = kInt8TileRows / Vector::kLanes;

/// Where unit u begins in a tile of `tile_bytes`, and within a row of 16 numbers.
ISOBIT_HD int64_t unit_tile(int u, int64_t tile_bytes) { return u / kUnitsPerTile * tile_bytes; }
constexpr int unit_lane(int u) { return u % kUnitsPerTile * Vector::kLanes; }

/// The numbers of group `group` of a chunk, for kUnits units and rows of x from `x` on.
template <int kUnits>
struct GroupNumbers {
  const Int8Layout& layout;
  const uint8_t* chunk;
  int64_t group;
  const Int8Group* x;
  int64_t x_stride;

  const Int8Group& row(int64_t r) const { return x[r * x_stride]; }
  const uint8_t* part(int u, int64_t offset) const { return chunk + unit_tile(u, layout.tile_bytes) + offset; }
  int64_t at(int u) const { return group * kInt8TileRows + unit_lane(u); }
  Vector::Floats floats(Int8Float type, int u, int64_t offset) const {
    return Vector::floats(type, part(u, offset), at(u));
  }

  /// What kRows rows of integers start from: - z * t.
  template <int kRows>
  ISOBIT_HD void start(Vector::Ints (&acc)[kRows][kUnits]) const {
    if (layout.zero_points == 0) {
      unroll<kRows>(ISOBIT_UNROLLED(r) {
        const Vector::Ints start = Vector::set(row(r).start);
        unroll<kUnits>(ISOBIT_UNROLLED(u) { acc[r][u] = start; });
      });
    } else {
      unroll<kUnits>(ISOBIT_UNROLLED(u) {
        const Vector::Ints z = Vector::zero_points(layout.zero_point_bytes, part(u, layout.zero_points), at(u));
        unroll<kRows>(ISOBIT_UNROLLED(r) { acc[r][u] = Vector::multiply(z, Vector::set(row(r).start)); });
      });
    }
  }

  /// Adds the terms of a group to the sums, for kRows rows of acc = d.
  template <int kRows>
  ISOBIT_HD void promote(const Vector::Ints (&acc)[kRows][kUnits], Vector::Floats (&sums)[kRows][kUnits]) const {
    using Floats = Vector::Floats;
    Floats scale[kUnits];
    unroll<kUnits>(ISOBIT_UNROLLED(u) { scale[u] = floats(layout.scale_type, u, 0); });
    unroll<kRows>(ISOBIT_UNROLLED(r) {
      const Floats own = Vector::set_float(row(r).scale);
      unroll<kUnits>(ISOBIT_UNROLLED(u) {
        const Floats both = Vector::multiply_float(scale[u], own);
        sums[r][u] = Vector::fma(Vector::to_float(acc[r][u]), both, sums[r][u]);
      });
    });
    if (layout.sums != 0) {
      unroll<kUnits>(ISOBIT_UNROLLED(u) {
        const Floats v = floats(layout.sum_type, u, layout.sums);
        unroll<kRows>(ISOBIT_UNROLLED(r) {
          const Floats both = Vector::multiply_float(scale[u], Vector::set_float(row(r).offset));
          sums[r][u] = Vector::fma(v, both, sums[r][u]);
        });
      });
    }
    if (layout.offsets != 0) {
      unroll<kUnits>(ISOBIT_UNROLLED(u) {
        const Floats offset = floats(layout.scale_type, u, layout.offsets);
        unroll<kRows>(ISOBIT_UNROLLED(r) {
          const Floats own = Vector::set_float(row(r).affine);
          sums[r][u] = Vector::fma(offset, own, sums[r][u]);
        });
      });
    }
  }
};

/// Four products of each output, acc[r][u] + w[u] . a[r], where rows of `a` are a_stride bytes apart.
template <int kBits, int kRows, int kUnits>
ISOBIT_HD void add_products(const Vector::Operand<kBits> (&w)[kUnits], const int8_t* a, int64_t a_stride,
                            Vector::Ints (&acc)[kRows][kUnits]) {
  unroll<kRows>(ISOBIT_UNROLLED(r) {
    const auto four = Vector::activations<kBits>(a + r * a_stride);
    unroll<kUnits>(ISOBIT_UNROLLED(u) { acc[r][u] = Vector::dot<kBits>(acc[r][u], w[u], four); });
  });
}

/// Outputs, and bytes of decoded codes, that stay in the first-level cache while all rows of x meet them.
constexpr int kPanelColumns = Vector::kPanelUnits * Vector::kLanes;
constexpr int64_t kPanelQuads = kInt8PanelBytes / (4 * kPanelColumns);

/// Asks for `count` columns of a row of y that is written later: rows are far apart, and y need not begin a line.
ISOBIT_HD void fetch_row(const float* y, int64_t count) {
  for (int64_t n = 0; n < count; n += kInt8TileRows) __builtin_prefetch(y + n, 1);
  __builtin_prefetch(y + count - 1, 1);
}

/// act of kLanes outputs from n on, and the one NaN. Those past `count` are left out.
ISOBIT_HD void store_finished(float* y, int64_t n, int64_t count, Vector::Floats lo, Vector::Floats hi,
                              Vector::Floats total) {
  // A NaN is the second operand, and stays.
  const Vector::Floats out = Vector::one_nan(Vector::min_float(hi, Vector::max_float(lo, total)));
  if (n + Vector::kLanes <= count) {
    Vector::store_float(y + n, out);
  } else if (n < count) {
    float rest[Vector::kLanes];
    Vector::store_float(rest, out);
    std::memcpy(y + n, rest, static_cast<size_t>(count - n) * sizeof(float));
  }
}

/// A chunk's sums: T = +0 + those of the first, T + those of a later one (-0 becomes +0), y after the last.
template <int kRows, int kUnits>
[[gnu::noinline]] void add_to_totals(const TileArgs& args, const Vector::Floats (&sums)[kRows][kUnits]) {
  Vector::Floats total[kRows][kUnits];
  unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) {
    constexpr int kR = i / kUnits;
    constexpr int kU = i % kUnits;
    const float* before = args.totals + kR * kPanelColumns + kU * Vector::kLanes;
    total[kR][kU] =
        Vector::add_float(args.first_chunk ? Vector::set_float(0.0f) : Vector::load_float(before), sums[kR][kU]);
  });
  if (!args.last_chunk) {
    unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) {
      Vector::store_float(args.totals + i / kUnits * kPanelColumns + i % kUnits * Vector::kLanes,
                          total[i / kUnits][i % kUnits]);
    });
    return;
  }
  const Vector::Floats lo = Vector::set_float(args.lo);
  const Vector::Floats hi = Vector::set_float(args.hi);
  unroll<kUnits>(ISOBIT_UNROLLED(u) {
    const Vector::Floats bias = Vector::load_float(args.bias + u * Vector::kLanes);
    unroll<kRows>(ISOBIT_UNROLLED(r) {
      store_finished(args.y + r * args.y_stride, u * Vector::kLanes, args.count, lo, hi,
                     Vector::add_float(total[r][u], bias));
    });
  });
}

/// The same. Of a copy: sums whose address is known elsewhere would be in memory in the loops before.
template <int kRows, int kUnits>
ISOBIT_HD void end_chunk(const TileArgs& args, const Vector::Floats (&sums)[kRows][kUnits]) {
  Vector::Floats done[kRows][kUnits];
  unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) { done[i / kUnits][i % kUnits] = sums[i / kUnits][i % kUnits]; });
  add_to_totals(args, done);
}

/// Few rows of x and a whole chunk. Codes of kStored bits that are at most kBits bits wide once shifted to the left by
/// kLow are decoded in registers.
template <int kStored, int kBits, int kLow, int kRows, int kUnits>
void run_tile(const TileArgs& args) {
  constexpr int kFields = 8 / kStored;
  constexpr int kMask = ((1 << kStored) - 1) << kLow;
  // Blocks: address arithmetic takes the ports of the products.
  constexpr int kUnrolled = kStored >= 4 ? kStored / 2 : 1;
  // One row's products would wait for each other.
  constexpr int kChains = kRows == 1 ? 4 / kUnits : 1;
  // Of one row decoding is most of the work. Where an operand has room, every other field stays where it is, next to
  // the one before it, with which it shares a shift: its codes, and its chain's sums, are 2^kStored times as large.
  // Exact, as a group of such codes fits int32 (kMaxInt8Group).
  constexpr bool kInPlace = kRows == 1 && kChains % 2 == 0 && 2 * kStored + kLow <= kBits;
  Vector::Floats sums[kRows][kUnits];
  unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) { sums[i / kUnits][i % kUnits] = Vector::set_float(0.0f); });
  const uint8_t* codes = args.codes;
  const int8_t* a = args.a;
  // Past the end of a tile come those after its neighbours. Numbers are not loaded in their order: what follows them by
  // as much is asked for now.
  constexpr int kAbreast = (kUnits + kUnitsPerTile - 1) / kUnitsPerTile;
  constexpr int64_t kPrefetch = kPrefetchBytes<kStored> / kAbreast;
  const uint8_t* const turn = args.tile_end - kPrefetch;
  const auto ahead = [&](const uint8_t* from) {
    return kPrefetch + (from < turn ? 0 : (kAbreast - 1) * args.layout->tile_bytes);
  };
  for (int64_t i = 0; i < args.layout->codes; i += 64)
    unroll<kAbreast>(ISOBIT_UNROLLED(t) {
      const uint8_t* from = args.numbers + i;
      __builtin_prefetch(from + ahead(from) + t * args.layout->tile_bytes);
    });
  GroupNumbers<kUnits> numbers{*args.layout, args.numbers, 0, args.x, args.x_stride};
  for (; numbers.group < args.groups; ++numbers.group, ++numbers.x) {
    Vector::Ints acc[kChains][kRows][kUnits];
    numbers.start(acc[0]);
    unroll<(kChains - 1) * kRows * kUnits>(
        ISOBIT_UNROLLED(i) { acc[1 + i / (kRows * kUnits)][i / kUnits % kRows][i % kUnits] = Vector::set(0); });
    const int64_t blocks = numbers.group + 1 < args.groups ? args.blocks : args.last_blocks;
    const int8_t* quad = a;
    const int64_t prefetch = ahead(codes);
    const auto block = [&](auto i) __attribute__((always_inline)) {
      Vector::Bytes bytes[kUnits];
      unroll<kUnits>(ISOBIT_UNROLLED(u) {
        const uint8_t* from = codes + unit_tile(u, args.layout->tile_bytes) + i * kInt8BlockBytes + 4 * unit_lane(u);
        bytes[u] = Vector::load_bytes(from);
        if constexpr (unit_lane(u) == 0) __builtin_prefetch(from + prefetch);
      });
      unroll<kFields>(ISOBIT_UNROLLED(field) {
        constexpr int kChain = (i * kFields + field) % kChains;
        Vector::Operand<kBits> w[kUnits];
        unroll<kUnits>(ISOBIT_UNROLLED(u) {
          constexpr int kUp = kInPlace && field % 2 != 0 ? kStored : 0;
          w[u] = Vector::weights<kBits>(Vector::field<field * kStored - kUp - kLow, kMask << kUp>(bytes[u]));
        });
        add_products<kBits>(w, quad + 4 * (i * kFields + field), args.a_stride, acc[kChain]);
      });
    };
    int64_t done = 0;
    for (; done + kUnrolled <= blocks; done += kUnrolled) {
      unroll<kUnrolled>(block);
      codes += kUnrolled * kInt8BlockBytes;
      quad += kUnrolled * 4 * kFields;
    }
    for (; done < blocks; ++done) {
      block(Index<0>{});
      codes += kInt8BlockBytes;
      quad += 4 * kFields;
    }
    a += args.a_group_bytes;
    unroll<(kChains - 1) * kRows * kUnits>(ISOBIT_UNROLLED(i) {
      constexpr int kChain = 1 + i / (kRows * kUnits);
      constexpr int kR = i / kUnits % kRows;
      constexpr int kU = i % kUnits;
      Vector::Ints sum = acc[kChain][kR][kU];
      if constexpr (kInPlace && kChain % 2 != 0) sum = Vector::shift_right<kStored>(sum);
      acc[0][kR][kU] = Vector::add(acc[0][kR][kU], sum);
    });
    numbers.promote(acc[0], sums);
  }
  end_chunk(args, sums);
}

/// Many rows of x and a piece of a chunk, decoded: some groups, or a part of one. Between pieces sums, and integers of
/// a group that is cut, are in memory.
template <int kBits, int kRows, int kUnits>
void run_panel(const TileArgs& args) {
  constexpr int kUnrolled = 4;
  constexpr int64_t kQuadBytes = 4 * kUnits * Vector::kLanes;
  Vector::Floats sums[kRows][kUnits];
  unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) {
    const float* before = args.sums + i / kUnits * kPanelColumns + i % kUnits * Vector::kLanes;
    sums[i / kUnits][i % kUnits] = args.chunk_begins ? Vector::set_float(0.0f) : Vector::load_float(before);
  });
  if (args.chunk_ends && args.last_chunk)
    unroll<kRows>(ISOBIT_UNROLLED(r) { fetch_row(args.y + r * args.y_stride, kUnits * Vector::kLanes); });
  const uint8_t* codes = args.codes;
  const int8_t* a = args.a;
  GroupNumbers<kUnits> numbers{*args.layout, args.numbers, args.first_group, args.x, args.x_stride};
  for (int64_t g = 0; g < args.groups; ++g, ++numbers.group, ++numbers.x) {
    Vector::Ints acc[kRows][kUnits];
    if (args.group_begins) {
      numbers.start(acc);
    } else {
      unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) {
        acc[i / kUnits][i % kUnits] =
            Vector::load_ints(args.ints + i / kUnits * kPanelColumns + i % kUnits * Vector::kLanes);
      });
    }
    const int64_t blocks = g + 1 < args.groups ? args.blocks : args.last_blocks;
    const int8_t* quad = a;
    const auto block = [&](auto i) __attribute__((always_inline)) {
      Vector::Operand<kBits> w[kUnits];
      unroll<kUnits>(ISOBIT_UNROLLED(u) {
        w[u] = Vector::weights<kBits>(Vector::load_bytes(codes + (i * kUnits + u) * 4 * Vector::kLanes));
      });
      add_products<kBits>(w, quad + 4 * i, args.a_stride, acc);
    };
    int64_t done = 0;
    for (; done + kUnrolled <= blocks; done += kUnrolled) {
      unroll<kUnrolled>(block);
      codes += kUnrolled * kQuadBytes;
      quad += kUnrolled * 4;
    }
    for (; done < blocks; ++done) {
      block(Index<0>{});
      codes += kQuadBytes;
      quad += 4;
    }
    a += args.a_group_bytes;
    if (!args.group_ends) {
      unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) {
        Vector::store_ints(args.ints + i / kUnits * kPanelColumns + i % kUnits * Vector::kLanes,
                           acc[i / kUnits][i % kUnits]);
      });
      break;
    }
    numbers.promote(acc, sums);
  }
  if (args.chunk_ends) return end_chunk(args, sums);
  unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) {
    Vector::store_float(args.sums + i / kUnits * kPanelColumns + i % kUnits * Vector::kLanes,
                        sums[i / kUnits][i % kUnits]);
  });
}

using RunTile = void (*)(const TileArgs&);

/// of[rows - 1][units - 1] for all sizes of a register tile.
template <int kMaxRows, int kMaxUnits>
struct Tiles {
  RunTile of[kMaxRows][kMaxUnits];

  template <typename Kernel, int kRows = 1, int kUnits = 1>
  constexpr void fill() {
    of[kRows - 1][kUnits - 1] = Kernel::template run<kRows, kUnits>;
    if constexpr (kUnits < kMaxUnits) {
      fill<Kernel, kRows, kUnits + 1>();
    } else if constexpr (kRows < kMaxRows) {
      fill<Kernel, kRows + 1>();
    }
  }
  template <typename Kernel>
  static constexpr Tiles make() {
    Tiles tiles{};
    tiles.template fill<Kernel>();
    return tiles;
  }
};

template <int kStored, int kBits, int kLow>
struct FewRows {
  template <int kRows, int kUnits>
  static void run(const TileArgs& args) {
    run_tile<kStored, kBits, kLow, kRows, kUnits>(args);
  }
};
template <int kBits>
struct ManyRows {
  template <int kRows, int kUnits>
  static void run(const TileArgs& args) {
    run_panel<kBits, kRows, kUnits>(args);
  }
};

template <int kStored, int kBits, int kLow>
constexpr auto kTiles = Tiles<Vector::kRows, Vector::kUnits>::make<FewRows<kStored, kBits, kLow>>();
template <int kBits>
constexpr auto kPanels = Tiles<Vector::kPanelRows, Vector::kPanelUnits>::make<ManyRows<kBits>>();

/// Blocks of one tile to bytes: block i becomes blocks i * kFields and up of 8-bit codes, which are `stride` apart.
template <int kStored, int kLow>
ISOBIT_HD void decode(const uint8_t* from, int64_t blocks, uint8_t* to, int64_t stride) {
  constexpr int kFields = 8 / kStored;
  constexpr int kMask = ((1 << kStored) - 1) << kLow;
  for (int64_t i = 0; i < blocks; ++i, from += kInt8BlockBytes) {
    unroll<kUnitsPerTile>(ISOBIT_UNROLLED(u) {
      const Vector::Bytes bytes = Vector::load_bytes(from + 4 * unit_lane(u));
      __builtin_prefetch(from + kPanelPrefetchBytes<kStored>);
      unroll<kFields>(ISOBIT_UNROLLED(field) {
        Vector::store_bytes(to + field * stride + 4 * unit_lane(u),
                            Vector::field<field * kStored - kLow, kMask>(bytes));
      });
    });
    to += kFields * stride;
  }
}

/// Rows of x in groups of at most kMost, the last two of which share what is left.
template <int kMost, typename Body>
ISOBIT_HD void for_row_groups(int64_t m, const Body& body) {
  int64_t row = 0;
  while (row < m) {
    const int64_t left = m - row;
    const int64_t rows = left >= 2 * kMost ? kMost : left > kMost ? (left + 1) / 2 : left;
    body(row, rows);
    row += rows;
  }
}

constexpr int kTilesAbreast = Vector::kUnits / kUnitsPerTile;
constexpr int kPanelTiles = Vector::kPanelUnits / kUnitsPerTile;

/// One chunk of `tiles` tiles, at most kPanelTiles, with all m rows: pieces of at most kPanelQuads.
template <int kStored, int kLow>
void product_of_panel(TileArgs tile, const Int8ProductArgs& args, int64_t m, int64_t tiles) {
  constexpr int kFields = 8 / kStored;
  constexpr int kBits = Vector::operand_bits(kStored);
  const TileArgs whole = tile;
  const int64_t in_piece = kPanelQuads / (whole.blocks * kFields);  // groups
  uint8_t* const decoded = args.scratch;
  int32_t* const ints = reinterpret_cast<int32_t*>(args.scratch + kInt8PanelBytes);
  float* const sums = reinterpret_cast<float*>(ints + kInt8MaxM * kPanelColumns);
  int64_t group = 0;
  int64_t block = 0;  // of the group
  while (group < whole.groups) {
    const int64_t left = whole.groups - group;
    tile.groups = in_piece == 0 ? 1 : left < in_piece ? left : in_piece;
    const int64_t last_blocks = tile.groups == left ? whole.last_blocks : whole.blocks;
    // Of the last group, which is the only one if it is cut.
    const int64_t rest = last_blocks - block;
    const int64_t taken = in_piece == 0 && rest > kPanelQuads / kFields ? kPanelQuads / kFields : rest;
    tile.first_group = group;
    tile.group_begins = block == 0;
    tile.group_ends = taken == rest;
    tile.chunk_begins = group == 0 && block == 0;
    tile.chunk_ends = tile.groups == left && tile.group_ends;
    tile.blocks = whole.blocks * kFields;
    tile.last_blocks = taken * kFields;
    const int64_t blocks = (tile.groups - 1) * whole.blocks + taken;
    const uint8_t* codes = whole.codes + (group * whole.blocks + block) * kInt8BlockBytes;
    tile.codes = decoded;
    for (int64_t i = 0; i < tiles; ++i)
      decode<kStored, kLow>(codes + i * args.layout.tile_bytes, blocks, decoded + i * kInt8BlockBytes,
                            tiles * kInt8BlockBytes);
    const int64_t a = group * whole.a_group_bytes + block * kFields * 4;
    for_row_groups<Vector::kPanelRows>(
        m, [&](int64_t row, int64_t rows) __attribute__((always_inline)) {
          tile.a = whole.a + row * whole.a_stride + a;
          tile.x = whole.x + row * whole.x_stride + group;
          tile.y = whole.y + row * whole.y_stride;
          tile.totals = whole.totals + row * kPanelColumns;
          tile.ints = ints + row * kPanelColumns;
          tile.sums = sums + row * kPanelColumns;
          kPanels<kBits>.of[rows - 1][tiles * kUnitsPerTile - 1](tile);
        });
    if (tile.group_ends) {
      group += tile.groups;
      block = 0;
    } else {
      block += taken;
    }
  }
}

template <int kStored, int kLow>
void product_of_bits(const Int8ProductArgs& args) {
  constexpr int kBits = Vector::operand_bits(kStored);
  const Int8Layout& layout = args.layout;
  const int64_t chunks = (layout.groups + kInt8ChunkGroups - 1) / kInt8ChunkGroups;
  const int64_t group_bytes = int8_padded(layout.group);
  for (int64_t row = 0; row < args.m; row += kInt8MaxM) {
    const int64_t m = args.m - row < kInt8MaxM ? args.m - row : kInt8MaxM;
    const bool few = m <= Vector::kRows;
    // Two streams share what they load of x. A single row is read in one, which is faster from memory and the
    // third-level cache, slower from the second.
    const int64_t abreast = !few ? kPanelTiles : m == 1 ? 1 : kTilesAbreast;
    for (int64_t t = 0; t < args.tiles; t += abreast) {
      const int64_t tiles = args.tiles - t < abreast ? args.tiles - t : abreast;
      for (int64_t c = 0; c < chunks; ++c) {
        const bool last = c + 1 == chunks;
        TileArgs tile{};
        tile.layout = &layout;
        tile.numbers = args.weights + t * layout.tile_bytes + c * layout.chunk_bytes;
        tile.tile_end = args.weights + (t + 1) * layout.tile_bytes;
        tile.codes = tile.numbers + layout.codes;
        tile.groups = last ? layout.groups - c * kInt8ChunkGroups : kInt8ChunkGroups;
        tile.blocks = layout.group_blocks;
        tile.last_blocks = last ? layout.last_group_blocks : layout.group_blocks;
        tile.a = args.codes + row * args.code_stride + c * kInt8ChunkGroups * group_bytes;
        tile.a_stride = args.code_stride;
        tile.a_group_bytes = group_bytes;
        tile.x = args.x_groups + row * args.group_stride + c * kInt8ChunkGroups;
        tile.x_stride = args.group_stride;
        tile.totals = reinterpret_cast<float*>(args.scratch + kInt8PanelBytes) + 2 * kInt8MaxM * kPanelColumns;
        tile.first_chunk = c == 0;
        tile.last_chunk = last;
        tile.bias = args.bias + t * kInt8TileRows;
        tile.lo = args.lo;
        tile.hi = args.hi;
        tile.y = args.y + row * args.y_stride + t * kInt8TileRows;
        tile.y_stride = args.y_stride;
        tile.count = args.count - t * kInt8TileRows;
        if (few) {
          kTiles<kStored, kBits, kLow>.of[m - 1][tiles * kUnitsPerTile - 1](tile);
        } else {
          product_of_panel<kStored, kLow>(tile, args, m, tiles);
        }
      }
    }
  }
}

void run_product(const Int8ProductArgs& args) {
  switch (args.layout.bits) {
    case 1: return args.layout.twice ? product_of_bits<1, 1>(args) : product_of_bits<1, 0>(args);
    case 2: return product_of_bits<2, 0>(args);
    case 4: return product_of_bits<4, 0>(args);
    default: return product_of_bits<8, 0>(args);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Groups that are whole rows

/// Rows ahead of the one that is written.
constexpr int64_t kFinishAhead = 4;

void run_finish(const Int8FinishArgs& args) {
  using Floats = Vector::Floats;
  const Floats zero = Vector::set_float(0.0f);
  const Floats lo = Vector::set_float(args.lo);
  const Floats hi = Vector::set_float(args.hi);
  for (int64_t m = 0; m < args.rows; ++m) {
    const Int8Group& row = args.groups[m];
    const int32_t* d = args.d + m * args.d_stride;
    float* y = args.y + m * args.y_stride;
    if (m + kFinishAhead < args.rows) fetch_row(y + kFinishAhead * args.y_stride, args.count);
    const Floats own = Vector::set_float(row.scale);
    const Floats offset = Vector::set_float(row.offset);
    const auto lanes = [&](int64_t n) __attribute__((always_inline)) {
      const Floats scale = Vector::load_float(args.scales + n);
      Floats acc = Vector::fma(Vector::to_float(Vector::load_ints(d + n)), Vector::multiply_float(scale, own), zero);
      if (args.sums != nullptr)
        acc = Vector::fma(Vector::load_float(args.sums + n), Vector::multiply_float(scale, offset), acc);
      const Floats total = Vector::add_float(Vector::add_float(zero, acc), Vector::load_float(args.bias + n));
      store_finished(y, n, args.count, lo, hi, total);
    };
    for (int64_t n = 0; n < args.count; n += Vector::kLanes) lanes(n);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Quantising

/// In long groups minima and maxima would wait for each other.
constexpr int kQuantizeChains = 4;
constexpr int64_t kLongGroup = 16 * Vector::kLanes;

/// body(float lanes, codes' place, chain) for every register of a group; neighbours are of different chains. The lanes
/// past its end repeat an element of the group.
template <Int8Float kType, typename Body>
ISOBIT_HD void for_group(const uint8_t* x, int64_t length, const Body& body) {
  constexpr int64_t kBytes = int8_float_bytes(kType);
  int64_t k = 0;
  for (; length >= kLongGroup && k + kQuantizeChains * Vector::kLanes <= length; k += kQuantizeChains * Vector::kLanes)
    unroll<kQuantizeChains>(ISOBIT_UNROLLED(chain) {
      const int64_t at = k + chain * Vector::kLanes;
      body(Vector::floats(kType, x, at), at, chain);
    });
  for (; k + Vector::kLanes <= length; k += Vector::kLanes) body(Vector::floats(kType, x, k), k, Index<0>{});
  if (k == length) return;
  uint8_t rest[Vector::kLanes * kBytes];
  for (int64_t i = 0; i < Vector::kLanes; ++i)
    std::memcpy(rest + i * kBytes, x + (k + i < length ? k + i : k) * kBytes, kBytes);
  body(Vector::floats(kType, rest, 0), k, Index<0>{});
}

template <Int8Float kType, bool kAsymmetric, bool kUnsigned>
bool quantize_row_of(const Int8QuantizeArgs& args) {
  using Floats = Vector::Floats;
  const auto* x = static_cast<const uint8_t*>(args.x);
  int8_t* codes = args.codes;
  Int8Group* out = args.groups;
  uint32_t worst = 0;
  int64_t begin = 0;
  if constexpr (!kAsymmetric && Vector::kGroupsTogether > 1) {
    // One by one, a group's lanes are combined by instructions that wait for each other, twice, and divided alone.
    const int64_t together = Vector::kGroupsTogether * args.group;
    Vector::Ints bits = Vector::set(0);
    for (; args.group % (4 * Vector::kLanes) == 0 && begin + together <= args.columns; begin += together) {
      bits = Vector::max_bits(bits, Vector::template quantize_groups<kType, kUnsigned>(
                                        x + begin * int8_float_bytes(kType), args.group, args.factor, codes, out));
      codes += together;
      out += Vector::kGroupsTogether;
    }
    worst = Vector::largest_bits(bits);
  }
  for (; begin < args.columns; begin += args.group) {
    const int64_t length = args.columns - begin < args.group ? args.columns - begin : args.group;
    const uint8_t* from = x + begin * int8_float_bytes(kType);
    // Magnitudes compare as integers do, and a NaN is above infinity.
    Vector::Ints bits = Vector::set(0);
    Floats low[kQuantizeChains], high[kQuantizeChains];
    unroll<kQuantizeChains>(ISOBIT_UNROLLED(chain) {
      low[chain] = Vector::set_float(__builtin_inff());
      high[chain] = Vector::set_float(-__builtin_inff());
    });
    for_group<kType>(
        from, length, [&](Floats v, int64_t, [[maybe_unused]] auto chain) __attribute__((always_inline)) {
          bits = Vector::max_bits(bits, Vector::absolute_bits(v));
          if constexpr (kAsymmetric) {
            low[chain] = Vector::min_float(low[chain], v);
            high[chain] = Vector::max_float(high[chain], v);
          }
        });
    const uint32_t amax_bits = Vector::largest_bits(bits);
    if (length >= kLongGroup) {
      unroll<kQuantizeChains - 1>(ISOBIT_UNROLLED(chain) {
        low[0] = Vector::min_float(low[0], low[chain + 1]);
        high[0] = Vector::max_float(high[0], high[chain + 1]);
      });
    }
    const float top = kAsymmetric ? Vector::largest(high[0]) : 0.0f;
    const float range = kAsymmetric ? top - Vector::smallest(low[0]) : __builtin_bit_cast(float, amax_bits);
    worst = worst > amax_bits ? worst : amax_bits;
    if (kAsymmetric && !(range <= 0x1.fffffep127f)) worst = 0x7F800000;
    constexpr float kSteps = kAsymmetric ? 255.0f : 127.0f;
    const bool usable = range >= 0x1p-118f;
    Int8Group group;
    group.scale = usable ? range / kSteps : 0.0f;
    group.offset = !kAsymmetric ? 0.0f : usable ? __builtin_fmaf(-127.0f, group.scale, top) : top;
    int32_t sum = 0;
    const int64_t padded = int8_padded(length);
    if (usable) {
      const Floats inverse = Vector::set_float(kSteps / range);
      const Floats offset = Vector::set_float(group.offset);
      // Conversions saturate at -128 and 127. No symmetric code is below -127: |x| * (127 / amax) is at most 127 (1 +
      // 2^-22).
      const auto scaled = [&](Floats v) __attribute__((always_inline)) {
        if constexpr (kAsymmetric) v = Vector::subtract_float(v, offset);
        return Vector::multiply_float(v, inverse);
      };
      int64_t done = 0;
      for (; done + 4 * Vector::kLanes <= length; done += 4 * Vector::kLanes) {
        Floats four[4];
        // The next row, where rows are dense: its smallest and largest elements wait for memory otherwise.
        const uint8_t* const next = from + (length + done) * int8_float_bytes(kType);
        unroll<4>(ISOBIT_UNROLLED(i) {
          constexpr int64_t kUnitBytes = Vector::kLanes * int8_float_bytes(kType);
          if constexpr (i * kUnitBytes % 64 == 0) __builtin_prefetch(next + i * kUnitBytes);
          four[i] = scaled(Vector::floats(kType, from, done + i * Vector::kLanes));
        });
        Vector::to_codes<kUnsigned>(codes + done, four);
      }
      for_group<kType>(
          from + done * int8_float_bytes(kType),
          length - done, [&](Floats v, int64_t k, auto) __attribute__((always_inline)) {
            Vector::to_codes<kUnsigned>(codes + done + k, scaled(v));
          });
      std::memset(codes + length, 0, static_cast<size_t>(padded - length));
      if constexpr (!kUnsigned) sum = Vector::sum_codes(codes, padded);
    } else {
      std::memset(codes, kUnsigned ? 0x80 : 0, static_cast<size_t>(padded));
    }
    codes += padded;
    group.start = -args.factor * sum;
    group.affine = group.scale * static_cast<float>(sum);
    if constexpr (kAsymmetric) group.affine = __builtin_fmaf(group.offset, static_cast<float>(length), group.affine);
    *out++ = group;
  }
  return worst < 0x7F800000;
}

template <Int8Float kType>
bool quantize_type(const Int8QuantizeArgs& args) {
  if (args.is_unsigned)
    return args.asymmetric ? quantize_row_of<kType, true, true>(args) : quantize_row_of<kType, false, true>(args);
  return args.asymmetric ? quantize_row_of<kType, true, false>(args) : quantize_row_of<kType, false, false>(args);
}

bool run_quantize(const Int8QuantizeArgs& args) {
  switch (args.type) {
    case Int8Float::kF16: return quantize_type<Int8Float::kF16>(args);
    case Int8Float::kBF16: return quantize_type<Int8Float::kBF16>(args);
    default: return quantize_type<Int8Float::kF32>(args);
  }
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_LINEAR_INT8_X86_BODY_H_
