// SPDX-License-Identifier: Apache-2.0
// The loops that the x86 kernels share. Each instruction-set file defines `struct Vector` in an unnamed namespace
// and then includes this file, once: everything here has internal linkage, so that no copy compiled for a wide
// instruction set can be linked into baseline code.
//
// Vector has
//   Acc                       partial sums of kUnitRows rows of the weights. A vector of int32_t, not __m512i: the
//                             change of type in every iteration makes g++ 12 copy every accumulator twice
//   Activation                four u8 codes (a quad of k), broadcast
//   Weights                   one vector of weights
//   kUnitRows                 rows of one weight vector (4 * kUnitRows bytes)
//   kAccumulators             accumulators that leave room for the operands in the register file
//   kMaxRows                  most activation rows (times planes) of a register tile
//   kChains                   independent accumulators that hide the latency of one dot product
//   zero, broadcast, load, dot, add
//   store(start, out, sums[planes], shift), for int32_t and int64_t
//   kRowsOfFour               most rows of a block of four units
//   Codes                     what they share
//   load_start(start), store_codes(to, codes, sums[units], column, columns, y)
#ifndef ISOBIT_PRODUCT_X86_BODY_H_
#define ISOBIT_PRODUCT_X86_BODY_H_

#include <cstdint>

#include "core/unroll.h"
#include "product/kernels.h"

namespace isobit {
namespace {

constexpr int kBytesPerQuadRow = 4;
constexpr int kUnitBytes = kBytesPerQuadRow * Vector::kUnitRows;
constexpr int kUnitsPerTile = kTileRows / Vector::kUnitRows;

/// How far ahead a stream of weights is fetched.
constexpr int64_t kAheadBytes = 8192;
constexpr int64_t kLineBytes = 64;

constexpr int min_int(int a, int b) { return a < b ? a : b; }

/// Widest register tile, in units of weights, for `rows` activation rows. One or two rows read whole blocks where
/// registers allow, as their weights stream from the cache; more rows need no more than 16 accumulators.
constexpr int max_units(int rows) {
  const int fit = min_int(kMaxBlockTiles, Vector::kAccumulators / rows);
  return rows <= 2 || rows >= 5 ? fit : min_int(fit, 4);
}

/// Bytes of so many units fill a vector: a tile whose sums become codes has no more.
constexpr int kCodeUnits = 4;

/// Interleaved sums over k in a tile of so many accumulators.
constexpr int split(int accumulators) {
  const int most = min_int(Vector::kChains + 6, Vector::kAccumulators);
  if (2 * accumulators < Vector::kChains && 4 * accumulators <= most) return 4;
  return 2 * accumulators <= most ? 2 : 1;
}

/// One quad of k: kRows x kUnits dot products. The operand that has fewer registers stays live in the outer loop.
template <int kRows, int kUnits>
[[gnu::always_inline]] inline void add_quad(Vector::Acc (&acc)[kRows][kUnits], const int8_t* weights,
                                            const uint8_t* const (&rows)[kRows], int64_t offset) {
  if constexpr (kRows <= kUnits) {
    Vector::Activation u[kRows];
    unroll<kRows>(ISOBIT_UNROLLED(r) { u[r] = Vector::broadcast(rows[r] + offset); });
    unroll<kUnits>(ISOBIT_UNROLLED(t) {
      const Vector::Weights w = Vector::load(weights + t * kUnitBytes);
      unroll<kRows>(ISOBIT_UNROLLED(r) { acc[r][t] = Vector::dot(acc[r][t], u[r], w); });
    });
  } else {
    Vector::Weights w[kUnits];
    unroll<kUnits>(ISOBIT_UNROLLED(t) { w[t] = Vector::load(weights + t * kUnitBytes); });
    unroll<kRows>(ISOBIT_UNROLLED(r) {
      const Vector::Activation u = Vector::broadcast(rows[r] + offset);
      unroll<kUnits>(ISOBIT_UNROLLED(t) { acc[r][t] = Vector::dot(acc[r][t], u, w[t]); });
    });
  }
}

template <typename T, int kPlanes, int kSplit, int kRows, int kUnits>
[[gnu::always_inline]] inline void store_tile(const LinearArgs& args, const Vector::Acc (&acc)[kSplit][kRows][kUnits],
                                              int64_t m, int64_t n) {
  const int shift = args.shift;
  unroll<kRows / kPlanes>(ISOBIT_UNROLLED(r) {
    const T* start = static_cast<const T*>(args.start) + (m + r) * args.start_stride + n;
    T* out = static_cast<T*>(args.acc) + (m + r) * args.acc_stride + n;
    unroll<kUnits>(ISOBIT_UNROLLED(t) {
      Vector::Acc sums[kPlanes];
      unroll<kPlanes>(ISOBIT_UNROLLED(p) {
        sums[p] = acc[0][r * kPlanes + p][t];
        unroll<kSplit - 1>(ISOBIT_UNROLLED(s) { sums[p] = Vector::add(sums[p], acc[s + 1][r * kPlanes + p][t]); });
      });
      Vector::store<kPlanes>(start + t * Vector::kUnitRows, out + t * Vector::kUnitRows, sums, shift);
    });
  });
}

template <int kSplit, int kRows, int kUnits>
[[gnu::always_inline]] inline void store_codes(const LinearArgs& args, const Vector::Acc (&acc)[kSplit][kRows][kUnits],
                                               int64_t m, int64_t n) {
  const SumCodes& to = *args.codes;
  if (n >= to.columns) return;  // the rest of a tile
  const Vector::Codes codes(to);
  constexpr int kColumns = kUnits * Vector::kUnitRows;
  const int64_t columns = to.columns - n < kColumns ? to.columns - n : kColumns;
  unroll<kRows>(ISOBIT_UNROLLED(r) {
    Vector::Acc sums[kUnits];
    unroll<kUnits>(ISOBIT_UNROLLED(t) {
      sums[t] = acc[0][r][t];
      unroll<kSplit - 1>(ISOBIT_UNROLLED(s) { sums[t] = Vector::add(sums[t], acc[s + 1][r][t]); });
    });
    Vector::store_codes(to, codes, sums, n, columns, to.y + (m + r) * to.y_stride + n);
  });
}

/// Weights that one call of a register tile fetches into the second-level cache, as the first level is full of this
/// block: `bytes` for each kQuadsTogether quads of k, from `from` on.
struct Ahead {
  const int8_t* from;
  int64_t bytes;
};
constexpr int kQuadsTogether = 4;

[[gnu::always_inline]] inline void fetch(Ahead& ahead) {
  constexpr int kLines = 4;
  int64_t i = 0;
  for (; i + kLines * kLineBytes <= ahead.bytes; i += kLines * kLineBytes)
    unroll<kLines>(ISOBIT_UNROLLED(line) { __builtin_prefetch(ahead.from + i + line * kLineBytes, 0, 2); });
  for (; i < ahead.bytes; i += kLineBytes) __builtin_prefetch(ahead.from + i, 0, 2);
  ahead.from += ahead.bytes;
}

/// A register tile: kRows / kPlanes activation rows from m on, kUnits units of output columns from n on.
template <bool kCold, int kPlanes, bool kCodes, int kRows, int kUnits>
void micro_tile(const LinearArgs& args, const int8_t* weights, int64_t quad_bytes, int64_t m, int64_t n,
                const Ahead* weights_ahead) {
  // Narrow tiles cut k into interleaved sums, or the latency of the dot product would show.
  constexpr int kSplit = split(kRows * kUnits);
  const uint8_t* rows[kRows];
  unroll<kRows>(ISOBIT_UNROLLED(r) {
    const int64_t row = m + r / kPlanes;
    rows[r] = args.activations + (args.row_at != nullptr ? args.row_at[row] : row * args.row_stride_bytes) +
              (r % kPlanes) * args.plane_stride_bytes;
  });
  Vector::Acc acc[kSplit][kRows][kUnits];
  unroll<kSplit * kRows * kUnits>(ISOBIT_UNROLLED(i) {
    Vector::Acc& sum = acc[i / (kRows * kUnits)][i / kUnits % kRows][i % kUnits];
    if constexpr (kCodes && i < kRows * kUnits) {
      sum = Vector::load_start(static_cast<const int32_t*>(args.start) + n + i % kUnits * Vector::kUnitRows);
    } else {
      sum = Vector::zero();
    }
  });
  Ahead ahead{};
  if constexpr (kCold) ahead = *weights_ahead;
  constexpr int kTogether = kCold || kRows > 4 ? kQuadsTogether : kSplit;
  for (int64_t piece = 0; piece < args.pieces; ++piece) {
    int64_t offset = args.piece_at != nullptr ? args.piece_at[piece] : 0;
    const int64_t end = offset + args.piece_quads * kBytesPerQuadRow;
    for (; offset + kTogether * kBytesPerQuadRow <= end; offset += kTogether * kBytesPerQuadRow) {
      if constexpr (kCold) fetch(ahead);
      unroll<kTogether>(ISOBIT_UNROLLED(q) {
        add_quad<kRows, kUnits>(acc[q % kSplit], weights, rows, offset + q * kBytesPerQuadRow);
        weights += quad_bytes;
      });
    }
    if constexpr (kTogether > 1) {
      for (; offset < end; offset += kBytesPerQuadRow) {
        add_quad<kRows, kUnits>(acc[0], weights, rows, offset);
        weights += quad_bytes;
      }
    }
  }
  if constexpr (kCodes) {
    store_codes(args, acc, m, n);
  } else if (args.wide) {
    store_tile<int64_t, kPlanes>(args, acc, m, n);
  } else {
    store_tile<int32_t, kPlanes>(args, acc, m, n);
  }
}

using MicroTile = void (*)(const LinearArgs&, const int8_t*, int64_t, int64_t, int64_t, const Ahead*);

/// All register tiles for kPlanes: of_m[activation rows][units].
template <bool kCold, int kPlanes, bool kCodes>
struct Tiles {
  static constexpr int kMaxM = Vector::kMaxRows / kPlanes;
  MicroTile of_m[kMaxM + 1][kMaxBlockTiles + 1];
  int max[kMaxM + 1];

  template <int kM = 1, int kUnits = 1>
  constexpr void fill() {
    constexpr int kMost = min_int(max_units(kM * kPlanes), kCodes ? kCodeUnits : kMaxBlockTiles);
    max[kM] = kMost;
    of_m[kM][kUnits] = micro_tile<kCold, kPlanes, kCodes, kM * kPlanes, kUnits>;
    if constexpr (kUnits < kMost) {
      fill<kM, kUnits + 1>();
    } else if constexpr (kM < kMaxM) {
      fill<kM + 1>();
    }
  }
  static constexpr Tiles make() {
    Tiles tiles{};
    tiles.template fill<>();
    return tiles;
  }
};

template <bool kCold, int kPlanes, bool kCodes>
constexpr auto kTiles = Tiles<kCold, kPlanes, kCodes>::make();

/// All activation rows with one block of weights.
template <bool kCold, int kPlanes, bool kCodes>
[[gnu::always_inline]] inline void run_block(const LinearArgs& args, const int8_t* weights, int tiles, int64_t n) {
  constexpr const auto& table = kTiles<kCold, kPlanes, kCodes>;
  const int most_rows = kPlanes == 1 && tiles * kUnitsPerTile == kCodeUnits ? Vector::kRowsOfFour : table.kMaxM;
  const int64_t quad_bytes = int64_t{tiles} * kTileRows * kBytesPerQuadRow;
  Ahead ahead{};
  Ahead next{};
  if constexpr (kCold) {
    // The tile of the first rows reads what nobody has fetched; the others have time to fetch the next block.
    const int64_t groups = (args.m + most_rows - 1) / most_rows;
    const int64_t strips = (tiles * kUnitsPerTile + table.max[most_rows] - 1) / table.max[most_rows];
    ahead = {weights + kAheadBytes, kQuadsTogether * quad_bytes};
    next = {weights + args.quads * quad_bytes, groups > 1 ? ahead.bytes / (groups * strips - 1) + 1 : 0};
  }
  int64_t m = 0;
  while (m < args.m) {
    // The last two groups share what is left evenly: 9 rows are 8 + 1 otherwise, and a lone row is slow.
    const int64_t left = args.m - m;
    const int rows = static_cast<int>(left >= 2 * most_rows ? most_rows : left > most_rows ? (left + 1) / 2 : left);
    const int max = table.max[rows];
    // Groups with the same number of rows run one after the other over the same strip of weights, which the
    // first of them brings to L1.
    const int64_t group_end = left >= 2 * most_rows ? m + left / most_rows * most_rows - most_rows : m + rows;
    int unit = 0;
    int units_left = tiles * kUnitsPerTile;
    while (units_left > 0) {
      const int units = units_left >= 2 * max ? max : units_left > max ? (units_left + 1) / 2 : units_left;
      const MicroTile tile = table.of_m[rows][units];
      for (int64_t i = m; i < group_end; i += rows) {
        tile(args, weights + unit * kUnitBytes, quad_bytes, i, n + unit * Vector::kUnitRows, &ahead);
        if constexpr (kCold) {
          ahead = next;
          next.from += next.bytes * (args.quads / kQuadsTogether);
        }
      }
      unit += units;
      units_left -= units;
    }
    m = group_end;
  }
}

template <bool kCold, int kPlanes, bool kCodes = false>
[[gnu::always_inline]] inline void run_planes(const LinearArgs& args) {
  const int8_t* weights = args.weights;
  int64_t n = 0;
  const int blocks = args.wide_blocks + args.narrow_blocks;
  for (int block = 0; block < blocks; ++block) {
    const int tiles = block < args.wide_blocks ? args.wide_tiles : args.narrow_tiles;
    run_block<kCold, kPlanes, kCodes>(args, weights, tiles, n);
    weights += args.quads * tiles * kTileRows * kBytesPerQuadRow;
    n += tiles * kTileRows;
  }
}

[[gnu::always_inline]] inline void run_linear(const LinearArgs& args) {
  if (args.codes != nullptr) return args.cold ? run_planes<true, 1, true>(args) : run_planes<false, 1, true>(args);
  if (args.activation_planes == 2) {
    run_planes<false, 2>(args);
  } else if (args.cold) {
    run_planes<true, 1>(args);
  } else {
    run_planes<false, 1>(args);
  }
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_PRODUCT_X86_BODY_H_
