// SPDX-License-Identifier: Apache-2.0
// AMX: one tdpbssd is 16 rows of x x 16 outputs x 64 k, all sums of a group of 64. Blocks of codes have the order of
// its quads already, so that decoding, which subtracts z, leaves tiles of v.
#include <cstdint>

#include "core/hd.h"
#include "core/unroll.h"
#include "core/x86_intrinsics.h"
#include "linear/int8/avx512_lanes.h"
#include "linear/int8/kernels.h"
#include "product/amx_config.h"

namespace isobit {
namespace {

using Vector = Avx512Lanes;

/// Tiles of weights that meet the same rows of x while those are in the first-level cache.
constexpr int kAbreast = 2;
/// Tiles of k that are decoded together: whole groups of a chunk.
constexpr int64_t kSliceTiles = kInt8TiledGroup / kTileColumns;
/// Groups whose sums are in memory.
constexpr int64_t kSums = 4;
/// Bytes ahead of weights that come from memory.
constexpr int64_t kPrefetchBytes = 2048;

/// The scratch memory.
struct alignas(64) Scratch {
  int8_t v[kAbreast][kSliceTiles * kTileBytes];
  float numbers[kAbreast][3][kInt8ChunkGroups * kTileRows];  // S, float(V), O
  float acc[kAbreast][kInt8MaxM * kTileRows];
  float totals[kAbreast][kInt8MaxM * kTileRows];
};
static_assert(sizeof(Scratch) <= kInt8ScratchBytes);

/// Groups of a chunk, as far as they are decoded together.
struct Slice {
  int64_t chunk;
  int64_t first;  // group in the chunk
  int64_t groups;
  bool first_chunk;
  bool last_chunk;
  bool chunk_begins;
  bool chunk_ends;
};

constexpr int64_t tiles_of(int64_t columns) { return (columns + kTileColumns - 1) / kTileColumns; }

/// The codes of a group to tiles of v. What is left of the last tile meets activations that are zero.
template <int kStored, int kLow>
ISOBIT_HD void decode(const uint8_t* from, int64_t blocks, __m512i z, int8_t* to) {
  constexpr int kFields = 8 / kStored;
  constexpr int kMask = ((1 << kStored) - 1) << kLow;
  for (int64_t i = 0; i < blocks; ++i, from += kInt8BlockBytes) {
    __builtin_prefetch(from + kPrefetchBytes);
    const __m512i bytes = Vector::load_bytes(from);
    unroll<kFields>(ISOBIT_UNROLLED(field) {
      Vector::store_bytes(to, _mm512_sub_epi8(Vector::field<field * kStored - kLow, kMask>(bytes), z));
      to += kInt8BlockBytes;
    });
  }
}

/// What a slice needs of one tile of weights.
template <int kStored, int kLow>
void decode_slice(const Int8ProductArgs& args, const Slice& slice, int64_t tile, int8_t* v,
                  float (&numbers)[3][kInt8ChunkGroups * kTileRows]) {
  const Int8Layout& layout = args.layout;
  const uint8_t* const chunk = args.weights + tile * layout.tile_bytes + slice.chunk * layout.chunk_bytes;
  const uint8_t* codes = chunk + layout.codes + slice.first * layout.group_blocks * kInt8BlockBytes;
  for (int64_t g = 0; g < slice.groups; ++g) {
    const int64_t at = (slice.first + g) * kTileRows;
    const int64_t to = g * kTileRows;
    const auto widen = [&](Int8Float type, int64_t part, float* out) __attribute__((always_inline)) {
      Vector::store_float(out + to, Vector::floats(type, chunk + part, at));
    };
    widen(layout.scale_type, 0, numbers[0]);
    if (layout.sums != 0) widen(layout.sum_type, layout.sums, numbers[1]);
    if (layout.offsets != 0) widen(layout.scale_type, layout.offsets, numbers[2]);
    __m512i z = _mm512_set1_epi8(static_cast<char>(args.factor));
    if (layout.zero_points != 0)  // of at most 16: the same byte four times
      z = Vector::bits(
          Vector::multiply(Vector::zero_points(1, chunk + layout.zero_points, at), Vector::set(0x01010101)));
    const bool last = slice.chunk * kInt8ChunkGroups + slice.first + g + 1 == layout.groups;
    decode<kStored, kLow>(codes, last ? layout.last_group_blocks : layout.group_blocks, z, v);
    codes += layout.group_blocks * kInt8BlockBytes;
    v += tiles_of(layout.group) * kTileBytes;
  }
}

/// 16 rows of x with one tile of weights.
struct Piece {
  const int8_t* a;  // tiles of the slice
  const int8_t* v;
  const float (*numbers)[kInt8ChunkGroups * kTileRows];
  const Int8Group* x;
  float* acc;  // [16][16]
  float* totals;
  const float* bias;
  float* y;
  int64_t rows;
  __mmask16 columns;
};

/// The end of a chunk: T = +0 + the sums of the first, T + those of a later one, y after the last.
ISOBIT_HD void end_chunk(const Int8ProductArgs& args, const Slice& slice, const Piece& piece,
                         const __m512 (&acc)[kTileRows]) {
  const __m512 bias = Vector::load_float(piece.bias);
  const __m512 lo = Vector::set_float(args.lo);
  const __m512 hi = Vector::set_float(args.hi);
  unroll<kTileRows>(ISOBIT_UNROLLED(r) {
    float* const kept = piece.totals + r * kTileRows;
    const __m512 total =
        Vector::add_float(slice.first_chunk ? Vector::set_float(0.0f) : Vector::load_float(kept), acc[r]);
    if (!slice.last_chunk) {
      Vector::store_float(kept, total);
    } else if (r < piece.rows) {
      // A NaN is the second operand, and stays.
      const __m512 y = Vector::min_float(hi, Vector::max_float(lo, Vector::add_float(total, bias)));
      _mm512_mask_storeu_ps(piece.y + r * args.y_stride, piece.columns, Vector::one_nan(y));
    }
  });
}

void run_piece(const Int8ProductArgs& args, const Slice& slice, Piece piece) {
  const Int8Layout& layout = args.layout;
  alignas(64) int32_t sums[kSums][kTileRows * kTileRows];
  __m512 acc[kTileRows];
  unroll<kTileRows>(ISOBIT_UNROLLED(r) {
    acc[r] = slice.chunk_begins ? Vector::set_float(0.0f) : Vector::load_float(piece.acc + r * kTileRows);
  });
  if (slice.chunk_ends && slice.last_chunk)  // rows of y are far apart, and need not begin a line
    for (int64_t r = 0; r < piece.rows; ++r) {
      __builtin_prefetch(piece.y + r * args.y_stride, 1);
      __builtin_prefetch(piece.y + r * args.y_stride + kTileRows - 1, 1);
    }
  const int64_t first = slice.chunk * kInt8ChunkGroups + slice.first;
  // A product and its store take longer than promoting a group: sums are promoted two groups after they are stored.
  const auto multiply = [&](int64_t g) __attribute__((always_inline)) {
    const bool odd = g % 2 != 0;
    const int64_t at = (first + g) * layout.group;
    const int64_t tiles = tiles_of(first + g + 1 < layout.groups ? layout.group : layout.columns - at);
    if (odd) {
      _tile_zero(1);
    } else {
      _tile_zero(0);
    }
    for (int64_t i = 0; i < tiles; ++i, piece.a += kTileBytes, piece.v += kTileBytes) {
      if (odd) {
        _tile_loadd(5, piece.a, kTileColumns);
        _tile_loadd(7, piece.v, kTileColumns);
        _tile_dpbssd(1, 5, 7);
      } else {
        _tile_loadd(4, piece.a, kTileColumns);
        _tile_loadd(6, piece.v, kTileColumns);
        _tile_dpbssd(0, 4, 6);
      }
    }
  };
  const auto promote = [&](int64_t g) __attribute__((always_inline)) {
    const int32_t* const d = sums[g % kSums];
    const Int8Group* const x = piece.x + g * kTileRows;
    const __m512 scale = Vector::load_float(piece.numbers[0] + g * kTileRows);
    unroll<kTileRows>(ISOBIT_UNROLLED(r) {
      const __m512 both = Vector::multiply_float(scale, Vector::set_float(x[r].scale));
      acc[r] = Vector::fma(Vector::to_float(Vector::load_ints(d + r * kTileRows)), both, acc[r]);
    });
    if (layout.sums != 0) {
      const __m512 v = Vector::load_float(piece.numbers[1] + g * kTileRows);
      unroll<kTileRows>(ISOBIT_UNROLLED(r) {
        acc[r] = Vector::fma(v, Vector::multiply_float(scale, Vector::set_float(x[r].offset)), acc[r]);
      });
    }
    if (layout.offsets != 0) {
      const __m512 offset = Vector::load_float(piece.numbers[2] + g * kTileRows);
      unroll<kTileRows>(ISOBIT_UNROLLED(r) { acc[r] = Vector::fma(offset, Vector::set_float(x[r].affine), acc[r]); });
    }
  };
  multiply(0);
  for (int64_t g = 0; g <= slice.groups + 1; ++g) {
    if (g + 1 < slice.groups) multiply(g + 1);
    if (g < slice.groups && g % 2 != 0) _tile_stored(1, sums[g % kSums], kTileColumns);
    if (g < slice.groups && g % 2 == 0) _tile_stored(0, sums[g % kSums], kTileColumns);
    if (g > 1) promote(g - 2);
  }
  if (slice.chunk_ends) return end_chunk(args, slice, piece, acc);
  unroll<kTileRows>(ISOBIT_UNROLLED(r) { Vector::store_float(piece.acc + r * kTileRows, acc[r]); });
}

/// Rows [row, row + m) of x with all tiles of weights.
template <int kStored, int kLow>
void product_of_rows(const Int8ProductArgs& args, int64_t row, int64_t m) {
  const Int8Layout& layout = args.layout;
  auto* const scratch = reinterpret_cast<Scratch*>(args.scratch);
  const int64_t most = kInt8TiledGroup / layout.group;  // groups of a slice
  for (int64_t t = 0; t < args.tiles; t += kAbreast) {
    const int64_t tiles = args.tiles - t < kAbreast ? args.tiles - t : kAbreast;
    for (int64_t group = 0; group < layout.groups;) {
      Slice slice{};
      slice.chunk = group / kInt8ChunkGroups;
      slice.first = group % kInt8ChunkGroups;
      const int64_t end = (slice.chunk + 1) * kInt8ChunkGroups;
      const int64_t left = (end < layout.groups ? end : layout.groups) - group;
      slice.groups = left < most ? left : most;
      slice.first_chunk = slice.chunk == 0;
      slice.last_chunk = end >= layout.groups;
      slice.chunk_begins = slice.first == 0;
      slice.chunk_ends = slice.groups == left;
      for (int64_t i = 0; i < tiles; ++i)
        decode_slice<kStored, kLow>(args, slice, t + i, scratch->v[i], scratch->numbers[i]);
      for (int64_t r = 0; r < m; r += kTileRows)
        for (int64_t i = 0; i < tiles; ++i) {
          const int64_t n = (t + i) * kTileRows;
          const int64_t count = args.count - n < kTileRows ? args.count - n : kTileRows;
          run_piece(args, slice,
                    {.a = args.codes + (row + r) * args.code_stride + group * layout.group * kTileRows,
                     .v = scratch->v[i],
                     .numbers = scratch->numbers[i],
                     .x = args.x_groups + (row + r) * args.group_stride + group * kTileRows,
                     .acc = scratch->acc[i] + r * kTileRows,
                     .totals = scratch->totals[i] + r * kTileRows,
                     .bias = args.bias + n,
                     .y = args.y + (row + r) * args.y_stride + n,
                     .rows = m - r < kTileRows ? m - r : kTileRows,
                     .columns = static_cast<__mmask16>((1 << count) - 1)});
        }
      group += slice.groups;
    }
  }
}

template <int kStored, int kLow>
void product_of_bits(const Int8ProductArgs& args) {
  const AmxConfig config(2 * kTileRows);
  config.load();
  for (int64_t row = 0; row < args.m; row += kInt8MaxM)
    product_of_rows<kStored, kLow>(args, row, args.m - row < kInt8MaxM ? args.m - row : kInt8MaxM);
  _tile_release();
}

void run_tiled(const Int8ProductArgs& args) {
  switch (args.layout.bits) {
    case 1: return args.layout.twice ? product_of_bits<1, 1>(args) : product_of_bits<1, 0>(args);
    case 2: return product_of_bits<2, 0>(args);
    case 4: return product_of_bits<4, 0>(args);
    default: return product_of_bits<8, 0>(args);
  }
}

}  // namespace

Int8Kernels int8_kernels_amx() {
  Int8Kernels kernels = int8_kernels_avx512vnni();
  kernels.tiled = run_tiled;
  return kernels;
}

}  // namespace isobit
