// SPDX-License-Identifier: Apache-2.0
// AMX: one tdpbusd is 16 activation rows x 16 rows of the weights x 64 k. Packed weights are already what it takes: 16
// quads of k of a tile of 16 rows, 64 bytes each, one block's quad apart. Two by two tiles of sums share what is
// loaded.
#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 takes the undefined operand of its own unmasked intrinsics for a mistake (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "linear/product_kernels.h"

namespace isobit {
namespace {

constexpr int kRows = 16;       // of a tile; with fewer activations AVX-512 VNNI takes less time
constexpr int kQuads = 16;      // of k of a tile
constexpr int kQuadBytes = 64;  // of one tile of weights, and of a row of sums
constexpr int64_t kTileBytes = 1024;

/// What _tile_loadconfig takes: 8 tiles of 16 rows of 64 bytes.
struct alignas(64) Config {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  Config() {
    for (int tile = 0; tile < 8; ++tile) {
      bytes[tile] = kQuadBytes;
      rows[tile] = kRows;
    }
  }
};

/// acc = start + (sums << shift) for rows [skip, kRows) from row m on, 16 columns from n on.
template <typename T>
[[gnu::always_inline]] inline void store_tile(const LinearArgs& args, const int32_t* sums, int64_t m, int64_t skip,
                                              int64_t n) {
  for (int64_t r = skip; r < kRows; ++r) {
    const T* const start = static_cast<const T*>(args.start) + (m + r) * args.start_stride + n;
    T* const out = static_cast<T*>(args.acc) + (m + r) * args.acc_stride + n;
    const int32_t* const sum = sums + r * kRows;
    if constexpr (sizeof(T) == sizeof(int32_t)) {
      const __m512i x = _mm512_sll_epi32(_mm512_load_si512(sum), _mm_cvtsi32_si128(args.shift));
      _mm512_storeu_si512(out, _mm512_add_epi32(_mm512_loadu_si512(start), x));
    } else {
      for (int half = 0; half < 2; ++half) {
        const __m512i wide = _mm512_cvtepi32_epi64(_mm256_load_si256(reinterpret_cast<const __m256i*>(sum + 8 * half)));
        const __m512i x = _mm512_sll_epi64(wide, _mm_cvtsi32_si128(args.shift));
        _mm512_storeu_si512(out + 8 * half, _mm512_add_epi64(_mm512_loadu_si512(start + 8 * half), x));
      }
    }
  }
}

/// Rows of activations of one tile: of 16 that begin at m, those before m + skip are another tile's.
struct Rows {
  int64_t m;
  int64_t skip;
};

/// Weights of the next block, which may come from memory: so many lines are fetched for each tile of k.
struct Ahead {
  const int8_t* from;
  int64_t lines;
};

/// kA tiles of activations by kB of weights. rest: the last columns of k, fewer than a tile, padded with zeros.
template <int kA, int kB>
void multiply(const LinearArgs& args, const int8_t* weights, int64_t quad_bytes, const int8_t* rest,
              const Rows (&rows)[2], int64_t n, Ahead& ahead) {
  const uint8_t* const a0 = args.activations + rows[0].m * args.row_stride_bytes;
  const uint8_t* const a1 = args.activations + rows[kA - 1].m * args.row_stride_bytes;
  const auto stride = static_cast<long>(args.row_stride_bytes);
  _tile_zero(0);
  if constexpr (kB == 2) _tile_zero(1);
  if constexpr (kA == 2) _tile_zero(2);
  if constexpr (kA == 2 && kB == 2) _tile_zero(3);
  // The weights' tiles: 6 and 7, the activations': 4 and 5.
  const auto add = [&](const int8_t* w, int64_t w_stride, int64_t next, int64_t k) __attribute__((always_inline)) {
    for (int64_t line = 0; line < ahead.lines; ++line, ahead.from += kQuadBytes) __builtin_prefetch(ahead.from, 0, 2);
    _tile_loadd(6, w, static_cast<long>(w_stride));
    _tile_loadd(4, a0 + k, stride);
    _tile_dpbusd(0, 4, 6);
    if constexpr (kA == 2) {
      _tile_loadd(5, a1 + k, stride);
      _tile_dpbusd(2, 5, 6);
    }
    if constexpr (kB == 2) {
      _tile_loadd(7, w + next, static_cast<long>(w_stride));
      _tile_dpbusd(1, 4, 7);
      if constexpr (kA == 2) _tile_dpbusd(3, 5, 7);
    }
  };
  int64_t quad = 0;
  for (; quad + kQuads <= args.quads; quad += kQuads)
    add(weights + quad * quad_bytes, quad_bytes, kQuadBytes, 4 * quad);
  if (quad < args.quads) add(rest, kQuadBytes, kTileBytes, 4 * quad);
  alignas(64) int32_t sums[kRows * kRows];
  const auto store = [&](const Rows& from, int64_t column) __attribute__((always_inline)) {
    if (args.wide) {
      store_tile<int64_t>(args, sums, from.m, from.skip, column);
    } else {
      store_tile<int32_t>(args, sums, from.m, from.skip, column);
    }
  };
  _tile_stored(0, sums, kQuadBytes);
  store(rows[0], n);
  if constexpr (kB == 2) {
    _tile_stored(1, sums, kQuadBytes);
    store(rows[0], n + kTileRows);
  }
  if constexpr (kA == 2) {
    _tile_stored(2, sums, kQuadBytes);
    store(rows[1], n);
  }
  if constexpr (kA == 2 && kB == 2) {
    _tile_stored(3, sums, kQuadBytes);
    store(rows[1], n + kTileRows);
  }
}

/// All activation rows with one block of weights, two of its tiles at a time.
void run_block(const LinearArgs& args, const int8_t* weights, int64_t tiles, int64_t n) {
  const int64_t quad_bytes = tiles * kQuadBytes;
  const int64_t whole_quads = args.quads / kQuads * kQuads;
  alignas(64) int8_t rest[2 * kTileBytes];
  Ahead ahead{weights + args.quads * quad_bytes, 0};
  if (args.cold) {
    const int64_t steps = (args.m + 2 * kRows - 1) / (2 * kRows) * ((tiles + 1) / 2);  // each through all of k
    ahead.lines = (tiles * kQuads + steps - 1) / steps;
  }
  for (int64_t tile = 0; tile < tiles; tile += 2) {
    const int64_t together = tiles - tile < 2 ? 1 : 2;
    const int8_t* const from = weights + tile * kQuadBytes;
    if (whole_quads < args.quads) {
      std::memset(rest, 0, sizeof rest);
      for (int64_t t = 0; t < together; ++t)
        for (int64_t quad = whole_quads; quad < args.quads; ++quad)
          std::memcpy(rest + t * kTileBytes + (quad - whole_quads) * kQuadBytes,
                      from + quad * quad_bytes + t * kQuadBytes, kQuadBytes);
    }
    // The last tile of rows ends where they end: rows that it shares with the one before are computed twice, and
    // written once.
    const auto rows_at = [&](int64_t m) {
      const int64_t begin = m + kRows <= args.m ? m : args.m - kRows;
      return Rows{begin, m - begin};
    };
    for (int64_t m = 0; m < args.m; m += 2 * kRows) {
      const bool both = m + kRows < args.m;
      const Rows rows[2] = {rows_at(m), both ? rows_at(m + kRows) : Rows{}};
      const int64_t column = n + tile * kTileRows;
      if (both && together == 2) {
        multiply<2, 2>(args, from, quad_bytes, rest, rows, column, ahead);
      } else if (both) {
        multiply<2, 1>(args, from, quad_bytes, rest, rows, column, ahead);
      } else if (together == 2) {
        multiply<1, 2>(args, from, quad_bytes, rest, rows, column, ahead);
      } else {
        multiply<1, 1>(args, from, quad_bytes, rest, rows, column, ahead);
      }
    }
  }
}

}  // namespace

void linear_u8_s8_amx(const LinearArgs& args) {
  if (args.m < kRows || args.quads < kQuads || args.activation_planes != 1) return linear_u8_s8_avx512vnni(args);
  const Config config;
  _tile_loadconfig(&config);
  const int8_t* weights = args.weights;
  int64_t n = 0;
  const int blocks = args.wide_blocks + args.narrow_blocks;
  for (int block = 0; block < blocks; ++block) {
    const int64_t tiles = block < args.wide_blocks ? args.wide_tiles : args.narrow_tiles;
    run_block(args, weights, tiles, n);
    weights += args.quads * tiles * kQuadBytes;
    n += tiles * kTileRows;
  }
  _tile_release();
}

}  // namespace isobit
