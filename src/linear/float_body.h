// SPDX-License-Identifier: Apache-2.0
// The loops that the kernels of linear layers with float activations share; float.h has the order of sums. Each
// instruction-set file defines `struct Vector` in an unnamed namespace and then includes this file, once: everything
// here has internal linkage.
//
// A few rows decode weights in registers, for every product. More rows decode a chunk of a block to a panel of floats
// first, which all rows then read from the first-level cache: an ordinary product of matrices. Both do the same
// operations for each output.
//
// Vector has
//   Floats, Words              kLanes floats, or words of codes
//   kUnits                     vectors of outputs of a register tile
//   kFewRows                   rows that decode in registers; kFewRows * kUnits sums fit them
//   kPanelUnits, kPanelRows    the register tile of the product with a panel
//   kLookUpBits                codes of so many bits are indices of look_up, whatever the bits above
//   zero, set, load, store, load_words, shift_right, add, sub, min, max, load_as, store_as
//   fma(a, b, c)               a * b + c
//   load_table, look_up        values[word modulo 2^kLookUpBits]
//   select(word, mask, bits)   (word & mask) | bits, as floats
#ifndef ISOBIT_LINEAR_FLOAT_BODY_H_
#define ISOBIT_LINEAR_FLOAT_BODY_H_

#include <cstdint>
#include <cstring>

#include "core/unroll.h"
#include "linear/float_kernels.h"

namespace isobit {
namespace {

using Floats = Vector::Floats;
using Words = Vector::Words;
constexpr int kLanes = Vector::kLanes;
constexpr int kWideOutputs = kFloatWideTiles * kFloatTile;

constexpr int min_int(int a, int b) { return a < b ? a : b; }

// kBits is the width of codes, kZeroPoints says whether each group has a z of its own.
template <int kBits>
constexpr int kFields = 32 / kBits;  // codes of a word

/// A stretch of k inside a group, in words of codes.
struct Chunk {
  int64_t index;  // among the chunks of a row
  int64_t group;
  int64_t word;
  int64_t words;
};

template <int kBits>
[[gnu::always_inline]] inline void set_words(const FloatLinearArgs& args, Chunk& chunk) {
  const int64_t group_end = chunk.group + 1 == args.groups ? args.words : (chunk.group + 1) * args.group_words;
  const int64_t left = group_end - chunk.word;
  constexpr int64_t kMost = kFloatChunk / kFields<kBits>;
  chunk.words = left < kMost ? left : kMost;
}

template <int kBits>
[[gnu::always_inline]] inline Chunk first_chunk(const FloatLinearArgs& args) {
  Chunk chunk{0, 0, 0, 0};
  set_words<kBits>(args, chunk);
  return chunk;
}

/// To the next chunk; that which begins at word args.words does not exist.
template <int kBits>
[[gnu::always_inline]] inline void advance(const FloatLinearArgs& args, Chunk& chunk) {
  chunk.word += chunk.words;
  ++chunk.index;
  if (chunk.group + 1 < args.groups && chunk.word == (chunk.group + 1) * args.group_words) ++chunk.group;
  set_words<kBits>(args, chunk);
}

[[gnu::always_inline]] inline Floats load_of_type(const void* from, Dtype dtype, int64_t index) {
  if (dtype == Dtype::kF32) return Vector::load_as<Dtype::kF32>(from, index);
  if (dtype == Dtype::kF16) return Vector::load_as<Dtype::kF16>(from, index);
  return Vector::load_as<Dtype::kBF16>(from, index);
}

/// Weights of one block, from its output `first` on.
struct Block {
  const uint32_t* codes;
  int64_t groups_before;  // elements of S (and O, z) before those of the block
  int64_t n;              // of its first output
};

/// kUnits vectors of weights from words of codes, by look-up, or (kBits too large for that) by making the code the last
/// bits of the mantissa of a power of two and subtracting that.
template <int kBits, bool kZeroPoints, int kUnits>
struct Decoder {
  static constexpr bool kLookUp = kBits <= Vector::kLookUpBits;
  /// Codes that are in the mantissa without a shift: those of the lower half of the word.
  static constexpr int kPlaces = kLookUp ? 1 : 16 / kBits;
  Floats table;
  Floats minus[kPlaces][kZeroPoints * (kUnits - 1) + 1];

  [[gnu::always_inline]] static constexpr float power(int place) {
    return static_cast<float>(1 << (23 - place * kBits));  // its last bit of the mantissa below the code is 1
  }

  [[gnu::always_inline]] explicit Decoder(const FloatLinearArgs& args) {
    if constexpr (kLookUp) {
      table = Vector::load_table(args.values);
    } else if constexpr (!kZeroPoints) {
      for (int place = 0; place < kPlaces; ++place) minus[place][0] = Vector::set(power(place) + args.zero);
    }
  }

  /// Takes z of a group: `index` is that of the first unit.
  [[gnu::always_inline]] inline void begin_group(const FloatLinearArgs& args, int64_t index) {
    if constexpr (kZeroPoints) {
      unroll<kUnits>(ISOBIT_UNROLLED(u) {
        const Floats z = Vector::load_as<Dtype::kF16>(args.zero_points, index + u * kLanes);
        for (int place = 0; place < kPlaces; ++place)
          minus[place][u] = kLookUp ? z : Vector::add(z, Vector::set(power(place)));
      });
    }
  }

  /// Code kField of the word.
  template <int kField>
  [[gnu::always_inline]] inline Floats value(Words word, int unit) const {
    if constexpr (kLookUp) {
      const Floats v = Vector::look_up(table, Vector::template shift_right<kField * kBits>(word));
      if constexpr (kZeroPoints) return Vector::sub(v, minus[0][unit]);
      return v;
    } else {
      constexpr int kPlace = kField % kPlaces;
      const Words half = Vector::template shift_right<kField / kPlaces * 16>(word);
      const Floats code = Vector::select(half, ((1u << kBits) - 1) << (kPlace * kBits), power(kPlace));
      return Vector::sub(code, minus[kPlace][kZeroPoints ? unit : 0]);
    }
  }
};

/// body(field, values[kUnits], offset in k from `words` on) for all codes of `count` words. Words of more than eight
/// codes are shifted from eight to eight, which keeps the code short.
template <int kBits, int kOutputs, int kUnits, typename TheDecoder, typename Body>
[[gnu::always_inline]] inline void decode_words(const TheDecoder& decoder, const uint32_t* words, int64_t count,
                                                const Body& body) {
  constexpr int kUnrolled = min_int(8, kFields<kBits>);
  int64_t k = 0;
  for (int64_t i = 0; i < count; ++i, words += kOutputs) {
    Words word[kUnits];
    unroll<kUnits>(ISOBIT_UNROLLED(u) { word[u] = Vector::load_words(words + u * kLanes); });
    for (int part = 0; part < kFields<kBits> / kUnrolled; ++part, k += kUnrolled) {
      unroll<kUnrolled>(ISOBIT_UNROLLED(field) {
        Floats v[kUnits];
        unroll<kUnits>(ISOBIT_UNROLLED(u) { v[u] = decoder.template value<field>(word[u], u); });
        body(k + field, v);
      });
      if constexpr (kFields < kBits >> kUnrolled)
        unroll<kUnits>(ISOBIT_UNROLLED(u) { word[u] = Vector::template shift_right<kUnrolled * kBits>(word[u]); });
    }
  }
}

/// total = S * sum + total, then total = O * (sum of x) + total, for rows r from `x_sums` on.
template <int kRows, int kUnits, typename Total>
[[gnu::always_inline]] inline void add_chunk(const FloatLinearArgs& args, int64_t scale_index,
                                             const Floats (&sum)[kRows][kUnits], const float* x_sums,
                                             const Total& total) {
  unroll<kUnits>(ISOBIT_UNROLLED(u) {
    const Floats scale = load_of_type(args.scales, args.scale_dtype, scale_index + u * kLanes);
    unroll<kRows>(ISOBIT_UNROLLED(r) { total(r, u, scale, sum[r][u]); });
  });
  if (args.offsets == nullptr) return;
  unroll<kUnits>(ISOBIT_UNROLLED(u) {
    const Floats offset = load_of_type(args.offsets, args.scale_dtype, scale_index + u * kLanes);
    unroll<kRows>(ISOBIT_UNROLLED(r) { total(r, u, offset, Vector::set(x_sums[r * args.chunks])); });
  });
}

template <Dtype kDtype>
[[gnu::always_inline]] inline void finish_row_as(const FloatLinearArgs& args, const float* totals, int64_t m, int64_t n,
                                                 int64_t count) {
  constexpr int64_t kBytes = kDtype == Dtype::kF32 ? 4 : 2;
  unsigned char* const y = static_cast<unsigned char*>(args.y) + (m * args.y_stride + n) * kBytes;
  const Floats low = Vector::set(args.low);
  const Floats high = Vector::set(args.high);
  for (int64_t i = 0; i < count; i += kLanes) {
    Floats value = Vector::load(totals + i);
    const int64_t left = count - i;
    if (args.bias != nullptr) {
      if (left >= kLanes) {
        value = Vector::add(value, Vector::load(args.bias + n + i));
      } else {
        float bias[kLanes] = {};
        std::memcpy(bias, args.bias + n + i, static_cast<size_t>(left) * sizeof(float));
        value = Vector::add(value, Vector::load(bias));
      }
    }
    value = Vector::min(high, Vector::max(low, value));  // NaN and -0 are the second operand, which is returned
    if (left >= kLanes) {
      Vector::store_as<kDtype>(y, i, value);
    } else {
      unsigned char last[kLanes * kBytes];
      Vector::store_as<kDtype>(last, 0, value);
      std::memcpy(y + i * kBytes, last, static_cast<size_t>(left * kBytes));
    }
  }
}

/// Bias, clamp and rounding to the type of y; writes y[m, n .. n + outputs) as far as these outputs exist. totals are
/// readable up to a multiple of a tile.
inline void finish_row(const FloatLinearArgs& args, const float* totals, int64_t m, int64_t n, int64_t outputs) {
  const int64_t count = args.n - n < outputs ? args.n - n : outputs;
  switch (args.dtype) {
    case Dtype::kF16: return finish_row_as<Dtype::kF16>(args, totals, m, n, count);
    case Dtype::kBF16: return finish_row_as<Dtype::kBF16>(args, totals, m, n, count);
    default: return finish_row_as<Dtype::kF32>(args, totals, m, n, count);
  }
}

/// Rows of x in the workspace, widened, each group filled with zeros to whole words, and their sums over chunks.
struct Rows {
  const float* x;
  int64_t stride;
  const float* sums;  // [row][chunk]; of kOffset only
  int64_t first;      // row of x and y
  int64_t count;
};

/// kRows rows with kUnits vectors of outputs of a block, from output `first` of it on.
template <int kBits, bool kZeroPoints, int kOutputs, int kUnits, int kRows>
void few_rows(const FloatLinearArgs& args, const Rows& rows, const Block& block, int first) {
  Floats total[kRows][kUnits];
  unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) { total[i / kUnits][i % kUnits] = Vector::zero(); });
  Decoder<kBits, kZeroPoints, kUnits> decoder(args);
  for (Chunk chunk = first_chunk<kBits>(args); chunk.word < args.words; advance<kBits>(args, chunk)) {
    const int64_t scale_index = block.groups_before + chunk.group * kOutputs + first;
    decoder.begin_group(args, scale_index);
    const float* x = rows.x + chunk.word * kFields<kBits>;
    const int64_t stride = rows.stride;
    Floats sum[kRows][kUnits];
    unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) { sum[i / kUnits][i % kUnits] = Vector::zero(); });
    decode_words<kBits, kOutputs, kUnits>(
        decoder, block.codes + chunk.word * kOutputs + first,
        chunk.words, [&](int64_t k, const Floats(&v)[kUnits]) __attribute__((always_inline)) {
          unroll<kRows>(ISOBIT_UNROLLED(r) {
            const Floats u_x = Vector::set(x[r * stride + k]);
            unroll<kUnits>(ISOBIT_UNROLLED(u) { sum[r][u] = Vector::fma(v[u], u_x, sum[r][u]); });
          });
        });
    add_chunk(
        args, scale_index, sum,
        rows.sums + chunk.index, [&](int r, int u, Floats factor, Floats x_v) __attribute__((always_inline)) {
          total[r][u] = Vector::fma(factor, x_v, total[r][u]);
        });
  }
  unroll<kRows>(ISOBIT_UNROLLED(r) {
    float totals[kUnits * kLanes];
    unroll<kUnits>(ISOBIT_UNROLLED(u) { Vector::store(totals + u * kLanes, total[r][u]); });
    if (block.n + first < args.n) finish_row(args, totals, rows.first + r, block.n + first, kUnits * kLanes);
  });
}

/// A panel: [k of a chunk][output of the block].
template <int kBits, bool kZeroPoints, int kOutputs>
void decode_panel(const FloatLinearArgs& args, const Block& block, const Chunk& chunk, float* panel) {
  constexpr int kUnits = min_int(Vector::kUnits, kOutputs / kLanes);
  Decoder<kBits, kZeroPoints, kUnits> decoder(args);
  for (int first = 0; first < kOutputs; first += kUnits * kLanes) {
    decoder.begin_group(args, block.groups_before + chunk.group * kOutputs + first);
    decode_words<kBits, kOutputs, kUnits>(
        decoder, block.codes + chunk.word * kOutputs + first,
        chunk.words, [&](int64_t k, const Floats(&v)[kUnits]) __attribute__((always_inline)) {
          unroll<kUnits>(ISOBIT_UNROLLED(u) { Vector::store(panel + k * kOutputs + first + u * kLanes, v[u]); });
        });
  }
}

struct PanelTile {
  const float* panel;  // from the first output of the tile on
  int64_t count;       // of k, a multiple of four
  const float* x;
  int64_t x_stride;
  float* totals;
  int64_t scale_index;
  const float* x_sums;
};

constexpr int kTotalsStride = kFloatBlocks * kWideOutputs;

template <int kOutputs, int kRows>
void panel_tile(const FloatLinearArgs& args, const PanelTile& tile) {
  constexpr int kUnits = min_int(Vector::kPanelUnits, kOutputs / kLanes);
  Floats sum[kRows][kUnits];
  unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) { sum[i / kUnits][i % kUnits] = Vector::zero(); });
  const float* rows[kRows];
  unroll<kRows>(ISOBIT_UNROLLED(r) { rows[r] = tile.x + r * tile.x_stride; });
  const float* panel = tile.panel;
  for (int64_t k = 0; k < tile.count; k += 4, panel += 4 * kOutputs) {
    unroll<4>(ISOBIT_UNROLLED(i) {
      Floats v[kUnits];
      unroll<kUnits>(ISOBIT_UNROLLED(u) { v[u] = Vector::load(panel + i * kOutputs + u * kLanes); });
      unroll<kRows>(ISOBIT_UNROLLED(r) {
        const Floats x = Vector::set(rows[r][k + i]);
        unroll<kUnits>(ISOBIT_UNROLLED(u) { sum[r][u] = Vector::fma(v[u], x, sum[r][u]); });
      });
    });
  }
  add_chunk(
      args, tile.scale_index, sum,
      tile.x_sums, [&](int r, int u, Floats factor, Floats x_v) __attribute__((always_inline)) {
        float* const total = tile.totals + r * kTotalsStride + u * kLanes;
        Vector::store(total, Vector::fma(factor, x_v, Vector::load(total)));
      });
}

using PanelTileFunction = void (*)(const FloatLinearArgs&, const PanelTile&);

template <int kOutputs>
struct PanelTiles {
  PanelTileFunction of_rows[Vector::kPanelRows + 1];
  template <int kRows = 1>
  constexpr void fill() {
    of_rows[kRows] = panel_tile<kOutputs, kRows>;
    if constexpr (kRows < Vector::kPanelRows) fill<kRows + 1>();
  }
  static constexpr PanelTiles make() {
    PanelTiles tiles{};
    tiles.template fill<>();
    return tiles;
  }
};

template <int kOutputs>
constexpr PanelTiles<kOutputs> kPanelTiles = PanelTiles<kOutputs>::make();

/// All rows with one chunk of a block.
template <int kBits, bool kZeroPoints, int kOutputs>
void add_panel(const FloatLinearArgs& args, const Rows& rows, const Block& block, const Chunk& chunk, float* panel,
               float* totals) {
  decode_panel<kBits, kZeroPoints, kOutputs>(args, block, chunk, panel);
  constexpr int kStep = min_int(Vector::kPanelUnits * kLanes, kOutputs);
  for (int first = 0; first < kOutputs; first += kStep) {
    for (int64_t m = 0; m < rows.count;) {
      // The last two tiles share what is left evenly: a lone row is slow.
      const int64_t left = rows.count - m;
      const int64_t most = Vector::kPanelRows;
      const int64_t together = left >= 2 * most ? most : left > most ? (left + 1) / 2 : left;
      PanelTile tile;
      tile.panel = panel + first;
      tile.count = chunk.words * kFields<kBits>;
      tile.x = rows.x + m * rows.stride + chunk.word * kFields<kBits>;
      tile.x_stride = rows.stride;
      tile.totals = totals + m * kTotalsStride + first;
      tile.scale_index = block.groups_before + chunk.group * kOutputs + first;
      tile.x_sums = rows.sums + m * args.chunks + chunk.index;
      kPanelTiles<kOutputs>.of_rows[together](args, tile);
      m += together;
    }
  }
}

/// Up to kFloatBlocks blocks of kOutputs outputs each, many rows.
template <int kBits, bool kZeroPoints, int kOutputs>
void many_rows(const FloatLinearArgs& args, const Rows& rows, const Block& block, int64_t blocks, float* workspace) {
  float* const totals = workspace;
  float* const panel = workspace + kFloatRows * kTotalsStride;
  std::memset(totals, 0, static_cast<size_t>(rows.count) * kTotalsStride * sizeof(float));
  Chunk part = first_chunk<kBits>(args);
  while (part.word < args.words) {
    Chunk chunk = part;
    const int64_t end = part.word + kFloatPart / kFields<kBits>;
    for (int64_t b = 0; b < blocks; ++b) {
      const Block here{block.codes + b * args.words * kOutputs, block.groups_before + b * args.groups * kOutputs,
                       block.n + b * kOutputs};
      for (chunk = part; chunk.word < end && chunk.word < args.words; advance<kBits>(args, chunk))
        add_panel<kBits, kZeroPoints, kOutputs>(args, rows, here, chunk, panel, totals + b * kOutputs);
    }
    part = chunk;
  }
  for (int64_t m = 0; m < rows.count; ++m)
    finish_row(args, totals + m * kTotalsStride, rows.first + m, block.n, blocks * kOutputs);
}

template <int kBits, bool kZeroPoints, int kOutputs, int kRows = Vector::kFewRows>
[[gnu::always_inline]] inline void few_rows_of_block(const FloatLinearArgs& args, const Rows& rows,
                                                     const Block& block) {
  constexpr int kUnits = min_int(Vector::kUnits, kOutputs / kLanes);
  if (rows.count == kRows) {
    for (int first = 0; first < kOutputs; first += kUnits * kLanes)
      few_rows<kBits, kZeroPoints, kOutputs, kUnits, kRows>(args, rows, block, first);
  } else if constexpr (kRows > 1) {
    few_rows_of_block<kBits, kZeroPoints, kOutputs, kRows - 1>(args, rows, block);
  }
}

template <int kBits, bool kZeroPoints, int kOutputs>
void run_blocks(const FloatLinearArgs& args, const Rows& rows, Block block, int64_t blocks, float* workspace) {
  if (rows.count <= Vector::kFewRows) {
    for (int64_t b = 0; b < blocks; ++b) {
      few_rows_of_block<kBits, kZeroPoints, kOutputs>(args, rows, block);
      block = {block.codes + args.words * kOutputs, block.groups_before + args.groups * kOutputs, block.n + kOutputs};
    }
    return;
  }
  for (int64_t b = 0; b < blocks; b += kFloatBlocks) {
    const int64_t together = blocks - b < kFloatBlocks ? blocks - b : kFloatBlocks;
    many_rows<kBits, kZeroPoints, kOutputs>(args, rows, block, together, workspace);
    block.codes += together * args.words * kOutputs;
    block.groups_before += together * args.groups * kOutputs;
    block.n += together * kOutputs;
  }
}

template <Dtype kDtype>
void widen(const void* from, int64_t index, int64_t count, float* out) {
  constexpr int64_t kBytes = kDtype == Dtype::kF32 ? 4 : 2;
  const unsigned char* const bytes = static_cast<const unsigned char*>(from) + index * kBytes;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Vector::store(out + i, Vector::load_as<kDtype>(bytes, i));
  if (i == count) return;
  unsigned char last[kLanes * kBytes] = {};
  float widened[kLanes];
  std::memcpy(last, bytes + i * kBytes, static_cast<size_t>((count - i) * kBytes));
  Vector::store(widened, Vector::load_as<kDtype>(last, 0));
  std::memcpy(out + i, widened, static_cast<size_t>(count - i) * sizeof(float));
}

inline void widen_of_type(const void* from, Dtype dtype, int64_t index, int64_t count, float* out) {
  switch (dtype) {
    case Dtype::kF16: return widen<Dtype::kF16>(from, index, count, out);
    case Dtype::kBF16: return widen<Dtype::kBF16>(from, index, count, out);
    default: return widen<Dtype::kF32>(from, index, count, out);
  }
}

/// Row m of x to `out`.
template <int kBits>
void take_row(const FloatLinearArgs& args, int64_t m, float* out, float* sums) {
  const int64_t group_floats = args.group_words * kFields<kBits>;
  const int64_t from = m * args.x_stride;
  if (group_floats == args.group || args.groups == 1) {
    widen_of_type(args.x, args.dtype, from, args.k, out);
  } else {
    for (int64_t g = 0; g < args.groups; ++g) {
      const int64_t begin = g * args.group;
      const int64_t count = args.k - begin < args.group ? args.k - begin : args.group;
      widen_of_type(args.x, args.dtype, from + begin, count, out + g * group_floats);
      for (int64_t i = count; i < group_floats && g + 1 < args.groups; ++i) out[g * group_floats + i] = 0.0f;
    }
  }
  const int64_t last = args.k - (args.groups - 1) * args.group;
  for (int64_t i = (args.groups - 1) * group_floats + last; i < args.words * kFields<kBits>; ++i) out[i] = 0.0f;
  if (args.offsets == nullptr) return;
  for (Chunk chunk = first_chunk<kBits>(args); chunk.word < args.words; advance<kBits>(args, chunk)) {
    float sum[4] = {};
    const float* const x = out + chunk.word * kFields<kBits>;
    for (int64_t i = 0; i < chunk.words * kFields<kBits>; i += 4)
      for (int j = 0; j < 4; ++j) sum[j] += x[i + j];
    sums[chunk.index] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
}

template <int kBits, bool kZeroPoints>
void run_rows(const FloatLinearArgs& args) {
  const int64_t most = args.m < kFloatRows ? args.m : kFloatRows;
  float* const sums = args.workspace + most * args.workspace_stride;
  float* const rest = sums + (most * args.chunks + 15) / 16 * 16;
  for (int64_t m = 0; m < args.m; m += most) {
    const Rows rows{args.workspace, args.workspace_stride, sums, m, args.m - m < most ? args.m - m : most};
    for (int64_t r = 0; r < rows.count; ++r)
      take_row<kBits>(args, m + r, args.workspace + r * args.workspace_stride, sums + r * args.chunks);
    Block block{args.codes, 0, 0};
    run_blocks<kBits, kZeroPoints, kWideOutputs>(args, rows, block, args.wide_blocks, rest);
    const int64_t wide = int64_t{args.wide_blocks} * kWideOutputs;
    block = {args.codes + wide * args.words, wide * args.groups, wide};
    run_blocks<kBits, kZeroPoints, kFloatTile>(args, rows, block, args.narrow_blocks, rest);
  }
}

template <int kBits>
void run_kind(const FloatLinearArgs& args) {
  if (args.zero_points == nullptr) {
    run_rows<kBits, false>(args);
  } else {
    run_rows<kBits, true>(args);
  }
}

inline void run_float_linear(const FloatLinearArgs& args) {
  switch (args.bits) {
    case 1: return run_kind<1>(args);
    case 2: return run_kind<2>(args);
    case 4: return run_kind<4>(args);
    default: return run_kind<8>(args);
  }
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_LINEAR_FLOAT_BODY_H_
