// SPDX-License-Identifier: Apache-2.0
// The tiles of AMX. Of internal linkage, as the files of the instruction set include it.
#ifndef ISOBIT_PRODUCT_AMX_CONFIG_H_
#define ISOBIT_PRODUCT_AMX_CONFIG_H_

#include <cstdint>

#include "product/kernels.h"

namespace isobit {
namespace {

/// What ldtilecfg takes, of m rows of activations: 64 bytes a row. Sums 0 1 of the first rows of activations, 4,
/// and 2 3 of the second, 5; weights 6 and 7.
struct alignas(64) AmxConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  explicit AmxConfig(int64_t m) {
    const auto first = static_cast<uint8_t>(m < kTileRows ? m : kTileRows);
    const auto second = static_cast<uint8_t>(m > kTileRows ? m - kTileRows : 1);
    const uint8_t of_tiles[8] = {first, first, second, second, first, second, kTileRows, kTileRows};
    for (int tile = 0; tile < 8; ++tile) {
      bytes[tile] = kTileColumns;
      rows[tile] = of_tiles[tile];
    }
  }

  /// The tiles of this thread take this shape.
  void load() const {
    // GCC's _tile_loadconfig says that it reads the first 8 bytes only: stores of the others may be left out.
    __asm__ volatile("ldtilecfg %0" : : "m"(*this));
  }
};

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_PRODUCT_AMX_CONFIG_H_
