// SPDX-License-Identifier: Apache-2.0
// AMX: one tdpbusd is 16 activation rows x 16 rows of the weights x 64 k. Packed weights are already what it takes: 16
// quads of k of a tile of 16 rows, 64 bytes each, one block's quad apart; activations are rows, or tiles packed for it.
// Two by two tiles of sums, maybe of two blocks, share what is loaded.
#include <cstdint>
#include <cstring>

#include "core/x86_intrinsics.h"
#include "product/amx_config.h"
#include "product/kernels.h"

namespace isobit {
namespace {

constexpr int kRows = 16;         // of a tile; with fewer activations AVX-512 VNNI takes less time
constexpr int kQuads = 16;        // of k of a tile
constexpr int kQuadBytes = 64;    // of one tile of weights, and of a row of activations or sums
constexpr int kSide = 2 * kRows;  // of four tiles of sums

/// out = start + (sums << shift), 16 columns.
template <typename T>
[[gnu::always_inline]] inline void store_tile(const int32_t* sums, const T* start, int64_t start_stride, int shift,
                                              int64_t rows, T* out, int64_t out_stride) {
  const __m128i count = _mm_cvtsi32_si128(shift);
  for (int64_t r = 0; r < rows; ++r, sums += kRows, start += start_stride, out += out_stride) {
    if constexpr (sizeof(T) == sizeof(int32_t)) {
      const __m512i x = _mm512_sll_epi32(_mm512_load_si512(sums), count);
      _mm512_storeu_si512(out, _mm512_add_epi32(_mm512_loadu_si512(start), x));
    } else {
      for (int half = 0; half < 16; half += 8) {
        const __m512i wide = _mm512_cvtepi32_epi64(_mm256_load_si256(reinterpret_cast<const __m256i*>(sums + half)));
        const __m512i x = _mm512_sll_epi64(wide, count);
        _mm512_storeu_si512(out + half, _mm512_add_epi64(_mm512_loadu_si512(start + half), x));
      }
    }
  }
}

/// A tile of weights in its block.
struct Weights {
  const int8_t* from;
  int64_t quad_bytes;
};

/// Weights that may come from memory: so many lines are fetched for each tile of k.
struct Ahead {
  const int8_t* from;
  int64_t lines;
};

/// kA tiles of activations, of `rows` rows, by kB of weights. rest: the last columns of k, fewer than a tile, padded
/// with zeros.
template <typename T, int kA, int kB>
void multiply(const LinearArgs& args, const Weights (&weights)[2], const int8_t* rest, int64_t m, int64_t rows,
              int64_t n, Ahead& ahead) {
  const uint8_t* a0 = args.activations + m * args.row_stride_bytes;
  const uint8_t* a1 = a0 + kRows * args.row_stride_bytes;
  const auto a_stride = static_cast<long>(args.tiled ? kQuadBytes : args.row_stride_bytes);
  const int64_t a_step = args.tiled ? kTileBytes : kQuadBytes;
  const T* const start = static_cast<const T*>(args.start) + m * args.start_stride + n;
  // Sums of int32 that are not shifted begin with `start` and go where they belong.
  const bool direct = sizeof(T) == sizeof(int32_t) && args.shift == 0;
  if (direct) {
    const auto stride = static_cast<long>(args.start_stride * sizeof(T));
    const T* const below = start + kRows * args.start_stride;
    _tile_loadd(0, start, stride);
    if constexpr (kB == 2) _tile_loadd(1, start + kRows, stride);
    if constexpr (kA == 2) _tile_loadd(2, below, stride);
    if constexpr (kA == 2 && kB == 2) _tile_loadd(3, below + kRows, stride);
  } else {
    _tile_zero(0);
    if constexpr (kB == 2) _tile_zero(1);
    if constexpr (kA == 2) _tile_zero(2);
    if constexpr (kA == 2 && kB == 2) _tile_zero(3);
  }
  const int8_t* w0 = weights[0].from;
  const int8_t* w1 = weights[1].from;
  const auto add = [&](const int8_t* b0, int64_t b0_stride, const int8_t* b1, int64_t b1_stride)
      __attribute__((always_inline)) {
    _tile_loadd(6, b0, static_cast<long>(b0_stride));
    _tile_loadd(4, a0, a_stride);
    _tile_dpbusd(0, 4, 6);
    if constexpr (kA == 2) {
      _tile_loadd(5, a1, a_stride);
      _tile_dpbusd(2, 5, 6);
    }
    if constexpr (kB == 2) {
      _tile_loadd(7, b1, static_cast<long>(b1_stride));
      _tile_dpbusd(1, 4, 7);
      if constexpr (kA == 2) _tile_dpbusd(3, 5, 7);
    }
    a0 += a_step;
    a1 += a_step;
  };
  for (int64_t quad = 0; quad + kQuads <= args.quads; quad += kQuads) {
    for (int64_t line = 0; line < ahead.lines; ++line, ahead.from += kQuadBytes) __builtin_prefetch(ahead.from, 0, 2);
    add(w0, weights[0].quad_bytes, w1, weights[1].quad_bytes);
    w0 += kQuads * weights[0].quad_bytes;
    w1 += kQuads * weights[1].quad_bytes;
  }
  if (args.quads % kQuads != 0) add(rest, kQuadBytes, rest + kTileBytes, kQuadBytes);

  alignas(64) T piece[kSide * kSide];
  T* const out = args.then.call != nullptr ? piece : static_cast<T*>(args.acc) + m * args.acc_stride + n;
  const int64_t out_stride = args.then.call != nullptr ? kSide : args.acc_stride;
  if (direct) {
    const auto stride = static_cast<long>(out_stride * sizeof(T));
    T* const below = out + kRows * out_stride;
    _tile_stored(0, out, stride);
    if constexpr (kB == 2) _tile_stored(1, out + kRows, stride);
    if constexpr (kA == 2) _tile_stored(2, below, stride);
    if constexpr (kA == 2 && kB == 2) _tile_stored(3, below + kRows, stride);
  } else {
    alignas(64) int32_t sums[4][kRows * kRows];
    _tile_stored(0, sums[0], kQuadBytes);
    if constexpr (kB == 2) _tile_stored(1, sums[1], kQuadBytes);
    if constexpr (kA == 2) _tile_stored(2, sums[2], kQuadBytes);
    if constexpr (kA == 2 && kB == 2) _tile_stored(3, sums[3], kQuadBytes);
    for (int64_t i = 0; i < kA; ++i)
      for (int64_t j = 0; j < kB; ++j)
        store_tile(sums[2 * i + j], start + kRows * (i * args.start_stride + j), args.start_stride, args.shift,
                   i + 1 < kA ? kRows : rows - i * kRows, out + kRows * (i * out_stride + j), out_stride);
  }
  if (args.then.call != nullptr) args.then.call(args.then.context, {piece, kSide, m, rows, n, kB * kRows});
}

/// All activation rows with all tiles of weights, two of them at a time.
template <typename T>
void run(const LinearArgs& args) {
  const int64_t wide_tiles = int64_t{args.wide_blocks} * args.wide_tiles;
  const int64_t tiles = wide_tiles + int64_t{args.narrow_blocks} * args.narrow_tiles;
  const int8_t* const narrow = args.weights + wide_tiles * args.quads * kQuadBytes;
  const auto tile_at = [&](int64_t tile) {
    const bool is_wide = tile < wide_tiles;
    const int64_t in_block = is_wide ? args.wide_tiles : args.narrow_tiles;
    if (!is_wide) tile -= wide_tiles;
    return Weights{
        (is_wide ? args.weights : narrow) + (tile / in_block * in_block * args.quads + tile % in_block) * kQuadBytes,
        in_block * kQuadBytes};
  };
  const int64_t whole_quads = args.quads / kQuads * kQuads;
  alignas(64) int8_t rest[2 * kTileBytes];
  Ahead ahead{};
  if (args.cold) {
    // Weights of two tiles are fetched while those before are used, k by k in all rows.
    const int64_t steps = (args.m + kSide - 1) / kSide;
    ahead = {args.weights + 2 * args.quads * kQuadBytes, (2 * kQuads + steps - 1) / steps};
  }
  AmxConfig config(args.m < kSide ? args.m : kSide);
  config.load();
  for (int64_t tile = 0; tile < tiles; tile += 2) {
    const bool both = tile + 1 < tiles;
    const Weights weights[2] = {tile_at(tile), tile_at(both ? tile + 1 : tile)};
    if (whole_quads < args.quads) {
      std::memset(rest, 0, sizeof rest);
      for (int t = 0; t < 2; ++t)
        for (int64_t quad = whole_quads; quad < args.quads; ++quad)
          std::memcpy(rest + t * kTileBytes + (quad - whole_quads) * kQuadBytes,
                      weights[t].from + quad * weights[t].quad_bytes, kQuadBytes);
    }
    for (int64_t m = 0; m < args.m; m += kSide) {
      const int64_t rows = args.m - m < kSide ? args.m - m : kSide;
      const int64_t n = tile * kTileRows;
      if (rows < kSide && args.m > kSide) {
        config = AmxConfig(rows);
        config.load();
      }
      if (rows > kRows && both) {
        multiply<T, 2, 2>(args, weights, rest, m, rows, n, ahead);
      } else if (rows > kRows) {
        multiply<T, 2, 1>(args, weights, rest, m, rows, n, ahead);
      } else if (both) {
        multiply<T, 1, 2>(args, weights, rest, m, rows, n, ahead);
      } else {
        multiply<T, 1, 1>(args, weights, rest, m, rows, n, ahead);
      }
      if (rows < kSide && args.m > kSide) {
        config = AmxConfig(kSide);
        config.load();
      }
    }
  }
  _tile_release();
}

}  // namespace

void linear_u8_s8_amx(const LinearArgs& args) {
  if (args.m == 0 || args.row_at != nullptr ||
      (!args.tiled && (args.m < kRows || args.quads < kQuads || args.activation_planes != 1)))
    return linear_u8_s8_avx512vnni(args);
  return args.wide ? run<int64_t>(args) : run<int32_t>(args);
}

}  // namespace isobit
