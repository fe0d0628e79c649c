// SPDX-License-Identifier: Apache-2.0
// The baseline twin: plain C++ that any processor runs, on the same layout.
#include <cstdint>

#include "product/kernels.h"

namespace isobit {
namespace {

/// One tile (16 rows of weights), one activation plane: sums[row] += all quads. Sums are unsigned: they wrap.
void add_tile(const int8_t* weights, int64_t quad_bytes, int64_t quads, const uint8_t* u, uint32_t (&sums)[kTileRows]) {
  for (int64_t q = 0; q < quads; ++q, weights += quad_bytes, u += 4) {
    const int16_t u0 = u[0];
    const int16_t u1 = u[1];
    const int16_t u2 = u[2];
    const int16_t u3 = u[3];
    for (int row = 0; row < kTileRows; ++row) {
      const int8_t* w = weights + 4 * row;
      sums[row] += static_cast<uint32_t>(w[0] * u0 + w[1] * u1 + w[2] * u2 + w[3] * u3);
    }
  }
}

template <typename T>
void run_linear(const LinearArgs& args) {
  const int8_t* block_weights = args.weights;
  int64_t n = 0;
  for (int block = 0; block < args.wide_blocks + args.narrow_blocks; ++block) {
    const int tiles = block < args.wide_blocks ? args.wide_tiles : args.narrow_tiles;
    const int64_t quad_bytes = int64_t{tiles} * kTileRows * 4;
    for (int tile = 0; tile < tiles; ++tile, n += kTileRows) {
      for (int64_t m = 0; m < args.m; ++m) {
        const T* start = static_cast<const T*>(args.start) + m * args.start_stride + n;
        T* out = static_cast<T*>(args.acc) + m * args.acc_stride + n;
        uint64_t total[kTileRows] = {};
        for (int plane = 0; plane < args.activation_planes; ++plane) {
          uint32_t sums[kTileRows] = {};
          const uint8_t* const u = args.activations +
                                   (args.row_at != nullptr ? args.row_at[m] : m * args.row_stride_bytes) +
                                   plane * args.plane_stride_bytes;
          for (int64_t piece = 0; piece < args.pieces; ++piece)
            add_tile(block_weights + piece * args.piece_quads * quad_bytes + tile * kTileRows * 4, quad_bytes,
                     args.piece_quads, u + (args.piece_at != nullptr ? args.piece_at[piece] : 0), sums);
          for (int row = 0; row < kTileRows; ++row)
            total[row] += static_cast<uint64_t>(int64_t{static_cast<int32_t>(sums[row])}) << (8 * plane);
        }
        for (int row = 0; row < kTileRows; ++row)
          out[row] = static_cast<T>(static_cast<uint64_t>(start[row]) + (total[row] << args.shift));
      }
    }
    block_weights += args.quads * quad_bytes;
  }
}

}  // namespace

void linear_u8_s8_scalar(const LinearArgs& args) {
  if (args.wide) {
    run_linear<int64_t>(args);
  } else {
    run_linear<int32_t>(args);
  }
}

}  // namespace isobit
