// SPDX-License-Identifier: Apache-2.0
// The loops that the kernels of linear layers with float activations share; float.h has the order of sums. Each
// instruction-set file defines `struct Vector` in an unnamed namespace and then includes this file, once: everything
// here has internal linkage.
//
// A few rows decode weights in registers, for every product. More rows decode a chunk of a block to a panel of floats
// first, which all rows then read from the first-level cache: an ordinary product of matrices. Both do the same
// operations for each output. A register tile of 14 rows and two vectors of outputs loads each element of x once for
// two multiply-adds: 16 loads for 28 of these. 28 rows and one vector take 29, where AVX-512 broadcasts an element
// within a multiply-add, and a processor that does two of either in a cycle is 5 % slower.
//
// Vector has
//   Floats, Words              kLanes floats, or words of codes
//   kUnits                     vectors of outputs that are decoded together
//   kFewRows, kFewSums         rows that decode in registers, and how many sums fit beside that
//   kPanelRows, kPanelSums     rows of the product with a panel; rows times tiles of outputs that fit the registers
//   kLookUpBits                codes of so many bits are indices of look_up, whatever the bits above
//   zero, set, load, store, load_words, shift_right, add, sub, min, max, load_as, store_as
//   store_fours(p, stride, a)  lanes 4 i to 4 i + 3 at p + i * stride
//   store_rows(p, stride, a)   the same of each a[r], r to 3, at p + 4 r
//   fma(a, b, c)               a * b + c
//   one_nan(a)                 a, or 0x7FC00000 for every NaN
//   load_table, look_up        values[word modulo 2^kLookUpBits]
//   select(word, mask, bits)   (word & mask) | bits, as floats
#ifndef ISOBIT_LINEAR_FLOAT_BODY_H_
#define ISOBIT_LINEAR_FLOAT_BODY_H_

#include <cstdint>
#include <cstring>

#include "core/unroll.h"
#include "linear/float/kernels.h"

namespace isobit {
namespace {

using Floats = Vector::Floats;
using Words = Vector::Words;
constexpr int kLanes = Vector::kLanes;
constexpr int kWideOutputs = kFloatWideTiles * kFloatTile;

/// Codes are fetched so far ahead of where they are decoded, in words: what memory delivers while it answers, twice.
constexpr int64_t kPrefetchWords = 2048;

/// y is fetched during so many chunks before it is written.
constexpr int64_t kFetchChunks = 8;

constexpr int min_int(int a, int b) { return a < b ? a : b; }

/// A power of two, at most kMost, of units that so many rows take at once within so many sums.
template <int kMost>
constexpr int units_together(int rows, int sums) {
  int units = 1;
  while (2 * units <= kMost && 2 * units * rows <= sums) units *= 2;
  return units;
}

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

/// Weights of one block.
struct Block {
  const uint32_t* codes;
  int64_t groups_before;  // elements of S (and O, z) before those of the block
  int64_t n;              // of its first output
  bool first;             // of these rows: x is not in the workspace yet
};

/// kUnits vectors of weights from words of codes, by look-up, or (kBits too large for that) by making the code the last
/// bits of the mantissa of a power of two and subtracting that.
template <int kBits, bool kZeroPoints, int kUnits>
struct Decoder {
  static constexpr bool kLookUp = kBits <= Vector::kLookUpBits;
  /// Codes that are in the mantissa without a shift: those of the lower half of the word.
  static constexpr int kPlaces = kLookUp ? 1 : 16 / kBits;
  /// Codes that a look-up finds without a shift, by a table for each.
  static constexpr int kTables = kLookUp ? Vector::kLookUpBits / kBits : 1;
  Floats table[kTables];
  Floats minus[kPlaces][kZeroPoints * (kUnits - 1) + 1];

  [[gnu::always_inline]] static constexpr float power(int place) {
    return static_cast<float>(1 << (23 - place * kBits));  // its last bit of the mantissa below the code is 1
  }

  [[gnu::always_inline]] explicit Decoder(const FloatLinearArgs& args) {
    if constexpr (kLookUp) {
      unroll<kTables>(ISOBIT_UNROLLED(t) { table[t] = Vector::load_table(args.values[t]); });
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

  /// Code kField of each word.
  template <int kField>
  [[gnu::always_inline]] inline void values(const Words (&word)[kUnits], Floats (&v)[kUnits]) const {
    unroll<kUnits>(ISOBIT_UNROLLED(u) { v[u] = value<kField>(word[u], u); });
  }

 private:
  template <int kField>
  [[gnu::always_inline]] inline Floats value(Words word, int unit) const {
    if constexpr (kLookUp) {
      constexpr int kTable = kField % kTables;
      const Floats v = Vector::look_up(table[kTable], Vector::template shift_right<(kField - kTable) * kBits>(word));
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

/// sum[r] += v * x[4 r] for every row, as one multiply-add each.
template <int kRows, int kUnits>
[[gnu::always_inline]] inline void add_products(const Floats (&v)[kUnits], const float* x,
                                                Floats (&sum)[kRows][kUnits]) {
  unroll<kRows>(ISOBIT_UNROLLED(r) {
    const Floats u_x = Vector::set(x[r * 4]);
    unroll<kUnits>(ISOBIT_UNROLLED(u) { sum[r][u] = Vector::fma(v[u], u_x, sum[r][u]); });
  });
}

/// body(k, field, values[kUnits]) for all codes of `count` words: field of the eight or four from k on, counted from
/// `words`. Words of more than eight codes are shifted from eight to eight, which keeps the code short.
template <int kBits, int kOutputs, int kUnits, typename TheDecoder, typename Body>
[[gnu::always_inline]] inline void decode_words(const TheDecoder& decoder, const uint32_t* words, int64_t count,
                                                const Body& body) {
  constexpr int kUnrolled = min_int(8, kFields<kBits>);
  int64_t k = 0;
  for (int64_t i = 0; i < count; ++i, words += kOutputs) {
    Words word[kUnits];
    unroll<kUnits>(ISOBIT_UNROLLED(u) {
      word[u] = Vector::load_words(words + u * kLanes);
      if constexpr (u * kLanes % kFloatTile == 0) __builtin_prefetch(words + u * kLanes + kPrefetchWords);
    });
    for (int part = 0; part < kFields<kBits> / kUnrolled; ++part, k += kUnrolled) {
      unroll<kUnrolled>(ISOBIT_UNROLLED(field) {
        Floats v[kUnits];
        decoder.template values<field>(word, v);
        body(k, field, v);
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
[[gnu::always_inline]] inline void finish_row_as(const FloatLinearArgs& args, const float* totals, int64_t tile_stride,
                                                 int64_t m, int64_t n, int64_t count) {
  constexpr int64_t kBytes = kDtype == Dtype::kF32 ? 4 : 2;
  unsigned char* const y = static_cast<unsigned char*>(args.y) + (m * args.y_stride + n) * kBytes;
  const Floats low = Vector::set(args.low);
  const Floats high = Vector::set(args.high);
  for (int64_t i = 0; i < count; i += kLanes) {
    Floats value = Vector::load(totals + i / kFloatTile * tile_stride + i % kFloatTile);
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
    // NaN and -0 are the second operand, which is returned. Which NaN a sum becomes is up to the compiler.
    value = Vector::one_nan(Vector::min(high, Vector::max(low, value)));
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
/// tiles of kFloatTile outputs, tile_stride floats from one to the next.
[[gnu::noinline]] void finish_row(const FloatLinearArgs& args, const float* totals, int64_t tile_stride, int64_t m,
                                  int64_t n, int64_t outputs) {
  const int64_t count = args.n - n < outputs ? args.n - n : outputs;
  switch (args.dtype) {
    case Dtype::kF16: return finish_row_as<Dtype::kF16>(args, totals, tile_stride, m, n, count);
    case Dtype::kBF16: return finish_row_as<Dtype::kBF16>(args, totals, tile_stride, m, n, count);
    default: return finish_row_as<Dtype::kF32>(args, totals, tile_stride, m, n, count);
  }
}

/// Rows in as few tiles of at most Vector::kPanelRows as possible, of sizes that differ by one at most.
class RowTiles {
 public:
  explicit RowTiles(int64_t count)
      : tiles_((count + kMost - 1) / kMost), rows_(count / tiles_), larger_(count % tiles_) {}
  [[nodiscard]] int64_t tiles() const { return tiles_; }
  [[nodiscard]] int64_t first(int64_t tile) const { return tile * rows_ + (tile < larger_ ? tile : larger_); }

 private:
  static constexpr int64_t kMost = Vector::kPanelRows;
  int64_t tiles_;
  int64_t rows_;
  int64_t larger_;
};

/// Consecutive rows of x in the workspace, widened, each group filled with zeros to whole words, four of k of all rows
/// after each other: [k / 4][row][k % 4]. One pointer then serves all broadcasts of a register tile.
struct Rows {
  float* x;
  float* sums;    // [row][chunk]; of kOffset only
  int64_t first;  // row of x and y
  int64_t count;
};

/// x[index .. index + count) to a row of Rows at `out`, where `stride` floats are between one four of k and the next,
/// and zeros to the end of the last four.
template <Dtype kDtype>
void widen(const void* from, int64_t index, int64_t count, float* out, int64_t stride) {
  constexpr int64_t kBytes = kDtype == Dtype::kF32 ? 4 : 2;
  const unsigned char* const bytes = static_cast<const unsigned char*>(from) + index * kBytes;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes, out += kLanes / 4 * stride)
    Vector::store_fours(out, stride, Vector::load_as<kDtype>(bytes, i));
  if (i == count) return;
  unsigned char last[kLanes * kBytes] = {};
  float widened[kLanes];
  std::memcpy(last, bytes + i * kBytes, static_cast<size_t>((count - i) * kBytes));
  Vector::store(widened, Vector::load_as<kDtype>(last, 0));
  for (int64_t j = 0; i + j < count; j += 4, out += stride) std::memcpy(out, widened + j, 4 * sizeof(float));
}

/// The same of four rows, x_stride elements from one to the next, which fill whole lines together.
template <Dtype kDtype>
void widen_four(const void* from, int64_t index, int64_t x_stride, int64_t count, float* out, int64_t stride) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Floats of_rows[4];
    unroll<4>(ISOBIT_UNROLLED(r) { of_rows[r] = Vector::load_as<kDtype>(from, index + r * x_stride + i); });
    Vector::store_rows(out + i / 4 * stride, stride, of_rows);
  }
  if (i == count) return;
  for (int64_t r = 0; r < 4; ++r)
    widen<kDtype>(from, index + r * x_stride + i, count - i, out + i / 4 * stride + r * 4, stride);
}

/// rows: four, or one.
template <Dtype kDtype>
void widen_rows(const void* from, int64_t index, int64_t x_stride, int64_t rows, int64_t count, float* out,
                int64_t stride) {
  if (rows == 4) return widen_four<kDtype>(from, index, x_stride, count, out, stride);
  widen<kDtype>(from, index, count, out, stride);
}

inline void widen_rows_of_type(const void* from, Dtype dtype, int64_t index, int64_t x_stride, int64_t rows,
                               int64_t count, float* out, int64_t stride) {
  switch (dtype) {
    case Dtype::kF16: return widen_rows<Dtype::kF16>(from, index, x_stride, rows, count, out, stride);
    case Dtype::kBF16: return widen_rows<Dtype::kBF16>(from, index, x_stride, rows, count, out, stride);
    default: return widen_rows<Dtype::kF32>(from, index, x_stride, rows, count, out, stride);
  }
}

/// A chunk of rows [first, first + count) of x to `out`, as in Rows, and its sums to `sums`.
template <int kBits>
void take_chunk(const FloatLinearArgs& args, const Chunk& chunk, int64_t first, int64_t count, float* out,
                float* sums) {
  const int64_t floats = chunk.words * kFields<kBits>;
  const int64_t begin = (chunk.word - chunk.group * args.group_words) * kFields<kBits>;  // in the group
  const int64_t from = chunk.group * args.group + begin;
  int64_t existing = args.group - begin < args.k - from ? args.group - begin : args.k - from;
  if (existing > floats) existing = floats;
  const int64_t bytes = args.dtype == Dtype::kF32 ? 4 : 2;
  const int64_t stride = 4 * count;
  const int64_t filled = (existing + 3) / 4 * 4;
  for (int64_t r = 0; r < count;) {
    const int64_t together = count - r < 4 ? 1 : 4;
    const int64_t index = (first + r) * args.x_stride + from;
    for (int64_t row = 0; row < together; ++row) {
      const int64_t end = index + row * args.x_stride + existing;
      const unsigned char* const next = static_cast<const unsigned char*>(args.x) + end * bytes;
      for (int64_t i = 0; i < existing * bytes; i += 64) __builtin_prefetch(next + i, 0, 2);
    }
    widen_rows_of_type(args.x, args.dtype, index, args.x_stride, together, existing, out + r * 4, stride);
    r += together;
  }
  std::memset(out + filled * count, 0, static_cast<size_t>((floats - filled) * count) * sizeof(float));
  if (args.offsets == nullptr) return;
  for (int64_t r = 0; r < count; ++r) {
    float sum[4] = {};
    for (int64_t i = 0; i < floats; i += 4)
      for (int64_t j = 0; j < 4; ++j) sum[j] += out[i * count + r * 4 + j];
    sums[r * args.chunks + chunk.index] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
}

/// For add_chunk. A type of its own, not a lambda of few_rows, so that it is compiled for rows and units only.
template <int kRows, int kUnits>
struct RegisterTotals {
  Floats (&total)[kRows][kUnits];
  [[gnu::always_inline]] inline void operator()(int r, int u, Floats factor, Floats x_v) const {
    total[r][u] = Vector::fma(factor, x_v, total[r][u]);
  }
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
    const float* const x = rows.x + chunk.word * kFields<kBits> * kRows;
    Floats sum[kRows][kUnits];
    unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) { sum[i / kUnits][i % kUnits] = Vector::zero(); });
    decode_words<kBits, kOutputs, kUnits>(
        decoder, block.codes + chunk.word * kOutputs + first,
        chunk.words, [&](int64_t k, int field, const Floats(&v)[kUnits]) __attribute__((always_inline)) {
          add_products(v, x + k * kRows + field / 4 * kRows * 4 + field % 4, sum);
        });
    add_chunk(args, scale_index, sum, rows.sums + chunk.index, RegisterTotals<kRows, kUnits>{total});
  }
  unroll<kRows>(ISOBIT_UNROLLED(r) {
    float totals[kUnits * kLanes];
    unroll<kUnits>(ISOBIT_UNROLLED(u) { Vector::store(totals + u * kLanes, total[r][u]); });
    if (block.n + first < args.n)
      finish_row(args, totals, kFloatTile, rows.first + r, block.n + first, kUnits * kLanes);
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
        chunk.words, [&](int64_t k, int field, const Floats(&v)[kUnits]) __attribute__((always_inline)) {
          float* const to = panel + (k + field) * kOutputs + first;
          unroll<kUnits>(ISOBIT_UNROLLED(u) { Vector::store(to + u * kLanes, v[u]); });
        });
  }
}

struct PanelTile {
  const float* panel;  // from the first output of the tile on
  int64_t count;       // of k, a multiple of four
  const float* x;
  float* totals;          // [tile of outputs][row][output]
  int64_t totals_stride;  // of tiles
  bool first;             // no totals yet
  int64_t scale_index;
  const float* x_sums;
};

/// kRows rows times kTiles tiles of outputs.
template <int kOutputs, int kTiles, int kRows>
void panel_tile(const FloatLinearArgs& args, const PanelTile& tile) {
  constexpr int kUnits = kTiles * kFloatTile / kLanes;
  Floats sum[kRows][kUnits];
  unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) { sum[i / kUnits][i % kUnits] = Vector::zero(); });
  const float* panel = tile.panel;
  const float* x = tile.x;
  for (int64_t k = 0; k < tile.count; k += 4, panel += 4 * kOutputs, x += 4 * kRows) {
    unroll<4>(ISOBIT_UNROLLED(i) {
      Floats v[kUnits];
      unroll<kUnits>(ISOBIT_UNROLLED(u) { v[u] = Vector::load(panel + i * kOutputs + u * kLanes); });
      add_products(v, x + i, sum);
    });
  }
  constexpr int kTileUnits = kFloatTile / kLanes;
  float* const totals = tile.totals;
  const int64_t totals_stride = tile.totals_stride;
  if (tile.first)
    unroll<kRows * kUnits>(ISOBIT_UNROLLED(i) {
      constexpr int kUnit = i % kUnits;
      Vector::store(totals + kUnit / kTileUnits * totals_stride + i / kUnits * kFloatTile + kUnit % kTileUnits * kLanes,
                    Vector::zero());
    });
  add_chunk(
      args, tile.scale_index, sum,
      tile.x_sums, [&](int r, int u, Floats factor, Floats x_v) __attribute__((always_inline)) {
        float* const total = totals + u / kTileUnits * totals_stride + r * kFloatTile + u % kTileUnits * kLanes;
        Vector::store(total, Vector::fma(factor, x_v, Vector::load(total)));
      });
}

/// Tiles of outputs that so many rows take at once.
template <int kOutputs>
constexpr int tiles_together(int rows) {
  return units_together<kOutputs / kFloatTile>(rows, Vector::kPanelSums);
}

using PanelTileFunction = void (*)(const FloatLinearArgs&, const PanelTile&);

template <int kOutputs>
struct PanelTiles {
  PanelTileFunction of_rows[Vector::kPanelRows + 1];
  template <int kRows = 1>
  constexpr void fill() {
    of_rows[kRows] = panel_tile<kOutputs, tiles_together<kOutputs>(kRows), kRows>;
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

/// Asks for the lines of y[m, n .. n + kOutputs).
template <int kOutputs>
[[gnu::always_inline]] inline void fetch_row(const FloatLinearArgs& args, int64_t m, int64_t n) {
  const int64_t bytes = args.dtype == Dtype::kF32 ? 4 : 2;
  const unsigned char* const y = static_cast<const unsigned char*>(args.y) + (m * args.y_stride + n) * bytes;
  for (int64_t i = 0; i < kOutputs * bytes; i += 64) __builtin_prefetch(y + i, 1);
}

/// All rows with one chunk of a block. totals: [tile of outputs][row][output].
template <int kBits, bool kZeroPoints, int kOutputs>
void add_panel(const FloatLinearArgs& args, const Rows& rows, const Block& block, const Chunk& chunk, float* panel,
               float* totals) {
  decode_panel<kBits, kZeroPoints, kOutputs>(args, block, chunk, panel);
  // Lines of y are asked for in the last chunks, a few at a time: stores that wait for memory would hold up the others.
  const int64_t spread = args.chunks < kFetchChunks ? args.chunks : kFetchChunks;
  const RowTiles tiles(rows.count);
  const int64_t row_floats = args.words * kFields<kBits>;
  for (int64_t t = 0; t < tiles.tiles(); ++t) {
    const int64_t m = tiles.first(t);
    const int64_t count = tiles.first(t + 1) - m;
    const int step = tiles_together<kOutputs>(static_cast<int>(count)) * kFloatTile;
    PanelTile tile;
    tile.count = chunk.words * kFields<kBits>;
    float* const x = rows.x + m * row_floats + chunk.word * kFields<kBits> * count;
    if (block.first) take_chunk<kBits>(args, chunk, rows.first + m, count, x, rows.sums + m * args.chunks);
    tile.x = x;
    tile.totals_stride = rows.count * kFloatTile;
    tile.first = chunk.word == 0;
    tile.x_sums = rows.sums + m * args.chunks + chunk.index;
    if (args.chunks - chunk.index <= spread)
      for (int64_t r = chunk.index % spread; r < count; r += spread)
        fetch_row<kOutputs>(args, rows.first + m + r, block.n);
    for (int first = 0; first < kOutputs; first += step) {
      tile.panel = panel + first;
      tile.totals = totals + first / kFloatTile * tile.totals_stride + m * kFloatTile;
      tile.scale_index = block.groups_before + chunk.group * kOutputs + first;
      kPanelTiles<kOutputs>.of_rows[count](args, tile);
    }
    // At once, so that the stores of y wait for memory while the next tile is multiplied.
    if (chunk.word + chunk.words < args.words) continue;
    for (int64_t r = m; r < m + count; ++r)
      finish_row(args, totals + r * kFloatTile, tile.totals_stride, rows.first + r, block.n, kOutputs);
  }
}

/// Up to kFloatBlocks blocks of kOutputs outputs each, many rows.
template <int kBits, bool kZeroPoints, int kOutputs>
void many_rows(const FloatLinearArgs& args, const Rows& rows, const Block& block, int64_t blocks, float* workspace) {
  float* const totals = workspace;
  float* const panel = workspace + kFloatRows * kFloatBlocks * kWideOutputs;
  Chunk part = first_chunk<kBits>(args);
  while (part.word < args.words) {
    Chunk chunk = part;
    const int64_t end = part.word + kFloatPart / kFields<kBits>;
    for (int64_t b = 0; b < blocks; ++b) {
      const Block here{block.codes + b * args.words * kOutputs, block.groups_before + b * args.groups * kOutputs,
                       block.n + b * kOutputs, block.first && b == 0};
      for (chunk = part; chunk.word < end && chunk.word < args.words; advance<kBits>(args, chunk))
        add_panel<kBits, kZeroPoints, kOutputs>(args, rows, here, chunk, panel, totals + b * rows.count * kOutputs);
    }
    part = chunk;
  }
}

template <int kBits, bool kZeroPoints, int kOutputs, int kRows = Vector::kFewRows>
[[gnu::always_inline]] inline void few_rows_of_block(const FloatLinearArgs& args, const Rows& rows,
                                                     const Block& block) {
  constexpr int kMostUnits = min_int(Vector::kUnits, kOutputs / kLanes);
  constexpr int kUnits = units_together<kMostUnits>(kRows, Vector::kFewSums);
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
      block = {block.codes + args.words * kOutputs, block.groups_before + args.groups * kOutputs, block.n + kOutputs,
               false};
    }
    return;
  }
  const int64_t most = args.words * kFields<kBits> <= kFloatPart ? 1 : kFloatBlocks;  // one part: nothing to collect
  for (int64_t b = 0; b < blocks; b += most) {
    const int64_t together = blocks - b < most ? blocks - b : most;
    many_rows<kBits, kZeroPoints, kOutputs>(args, rows, block, together, workspace);
    block.codes += together * args.words * kOutputs;
    block.groups_before += together * args.groups * kOutputs;
    block.n += together * kOutputs;
    block.first = false;
  }
}

template <int kBits, bool kZeroPoints>
void run_rows(const FloatLinearArgs& args) {
  const int64_t most = args.m < kFloatRows ? args.m : kFloatRows;
  const int64_t row_floats = args.words * kFields<kBits>;
  float* const sums = args.workspace + (most * row_floats + 15) / 16 * 16;
  float* const rest = sums + (most * args.chunks + 15) / 16 * 16;
  const RowTiles tiles(args.m);
  constexpr int64_t kMostTiles = kFloatRows / Vector::kPanelRows;
  const int64_t passes = (tiles.tiles() + kMostTiles - 1) / kMostTiles;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t m = tiles.first(tiles.tiles() * pass / passes);
    const Rows rows{args.workspace, sums, m, tiles.first(tiles.tiles() * (pass + 1) / passes) - m};
    if (rows.count <= Vector::kFewRows)
      for (Chunk chunk = first_chunk<kBits>(args); chunk.word < args.words; advance<kBits>(args, chunk))
        take_chunk<kBits>(args, chunk, m, rows.count, rows.x + chunk.word * kFields<kBits> * rows.count, sums);
    Block block{args.codes, 0, 0, true};
    run_blocks<kBits, kZeroPoints, kWideOutputs>(args, rows, block, args.wide_blocks, rest);
    const int64_t wide = int64_t{args.wide_blocks} * kWideOutputs;
    block = {args.codes + wide * args.words, wide * args.groups, wide, wide == 0};
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
