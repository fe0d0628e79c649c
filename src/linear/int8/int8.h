// SPDX-License-Identifier: Apache-2.0
// Low-bit weights times rows of x that are quantised to 8 bits on the fly: numerics.md, section 11, y of type f32. All
// paths give the same bytes.
//
//   ISOBIT_ASSIGN_OR_RETURN(const PackedLowBit w, pack_low_bit(matrix, {.asymmetric = false}, "fc"));   // once
//   const Int8Kernels* kernels = int8_kernels(path);                                              // once
//   for m: finite = quantize_row(*kernels, w, x_m, Dtype::kF32, codes + m * w.code_bytes(), groups + m * w.groups());
//   int8_product(*kernels, w, w.all_tiles(), {codes, groups, m}, {bias, lo, hi}, y, w.rows(), scratch);
#ifndef ISOBIT_LINEAR_INT8_INT8_H_
#define ISOBIT_LINEAR_INT8_INT8_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "isobit/cpu.h"
#include "isobit/dtype.h"
#include "isobit/low_bit.h"
#include "isobit/parallel.h"
#include "linear/int8/kernels.h"
#include "product/kernels.h"

namespace isobit {

/// Tiles [begin, end) of packed weights: outputs n = 16 begin .. 16 end - 1.
struct TileRange {
  int64_t begin;
  int64_t end;
};

/// m rows from quantize_row, one after the other.
struct Int8Rows {
  const int8_t* codes;      // [m, code_bytes], 64-byte aligned is faster
  const Int8Group* groups;  // [m, groups]
  int64_t m;
  // Where int8_takes_tiles() is true, instead: codes [m / 16][k / 64][16 rows][64 k], zeros beyond K, and groups
  // [m / 16][groups][16 rows]. The last rows may be missing, but not their memory.
  bool tiled = false;
};

/// What follows T: bias [padded_rows], and act, a clamp.
struct Int8Epilogue {
  const float* bias;
  float lo;
  float hi;
};

/// Weights in the order in which kernels read them, the same for all paths; immutable, so a copy shares the memory.
class PackedLowBit {
 public:
  const Int8Layout& layout() const { return layout_; }
  /// size_bytes() bytes, 64-byte aligned.
  const uint8_t* data() const { return memory_.get(); }
  int64_t rows() const { return rows_; }
  /// N rounded up to 16: the elements of a bias.
  int64_t padded_rows() const { return tiles() * kInt8TileRows; }
  int64_t tiles() const { return (rows_ + kInt8TileRows - 1) / kInt8TileRows; }
  TileRange all_tiles() const { return {0, tiles()}; }
  int64_t groups() const { return layout_.groups; }
  bool asymmetric() const { return asymmetric_; }
  int64_t size_bytes() const { return tiles() * layout_.tile_bytes; }
  /// Of the codes of one row of x.
  int64_t code_bytes() const { return code_bytes_; }
  /// Whether kernels of tiled rows can multiply them.
  bool fits_tiles() const {
    const bool narrow = layout_.bits < 8 || (layout_.zero_points == 0 && factor_ == 128);  // v is an int8
    return narrow && layout_.group % kTileColumns == 0 && layout_.group <= kInt8TiledGroup;
  }
  /// Of the scratch memory of one thread.
  int64_t scratch_bytes() const { return kInt8ScratchBytes; }

 private:
  friend struct LowBitPacker;
  friend bool quantize_row(const Int8Kernels& kernels, const PackedLowBit& weights, const void* x, Dtype dtype,
                           int8_t* codes, Int8Group* groups);

  friend void int8_product(const Int8Kernels& kernels, const PackedLowBit& weights, TileRange tiles, const Int8Rows& x,
                           const Int8Epilogue& epilogue, float* y, int64_t y_stride, uint8_t* scratch);

  std::shared_ptr<const uint8_t> memory_;  // 64-byte aligned
  Int8Layout layout_{};
  int64_t rows_ = 0;
  int64_t code_bytes_ = 0;
  int32_t factor_ = 0;
  bool asymmetric_ = false;
};

/// kUnsupported when a group has more elements, as its sums may then need int64: the reference runs such a layer.
inline constexpr int64_t kMaxInt8Group = 65535;

/// `asymmetric`: activations are; the sums of v are packed as well then. Without a pool: on the caller's thread.
Result<PackedLowBit> pack_low_bit(const LowBitMatrix& matrix, bool asymmetric, std::string_view name,
                                  ThreadPool* pool = nullptr);

/// The kernels of a path, or of the nearest one before it: of every path that this build and processor can run, except
/// kReference; else null.
const Int8Kernels* int8_kernels(CpuPath path);

/// Of f32, f16 or bf16.
constexpr Int8Float int8_float(Dtype dtype) {
  return dtype == Dtype::kF32 ? Int8Float::kF32 : dtype == Dtype::kF16 ? Int8Float::kF16 : Int8Float::kBF16;
}

/// One row of x, K elements of type f32, f16 or bf16, to code_bytes() codes and groups() groups. False where section 11
/// refuses the row (NaN, infinity, asymmetric D = inf); what was written is then of no use, but may be multiplied.
bool quantize_row(const Int8Kernels& kernels, const PackedLowBit& weights, const void* x, Dtype dtype, int8_t* codes,
                  Int8Group* groups);

/// Whether m rows for these weights are best packed as tiles. A part of such a call may have fewer rows.
inline bool int8_takes_tiles(const Int8Kernels& kernels, const PackedLowBit& weights, int64_t m) {
  return kernels.tiled != nullptr && m >= kTileRows && weights.fits_tiles();
}

/// Row m of tiled rows, from quantize_row's codes and groups.
void int8_pack_row(const PackedLowBit& weights, const int8_t* codes, const Int8Group* groups, int64_t m,
                   int8_t* tiled_codes, Int8Group* tiled_groups);

/// y[i * y_stride + n - 16 * tiles.begin] = act(T[i, n] + bias[n]) for the m rows i of x and every n < N of `tiles`.
/// scratch: scratch_bytes(), 64-byte aligned, one for each thread.
void int8_product(const Int8Kernels& kernels, const PackedLowBit& weights, TileRange tiles, const Int8Rows& x,
                  const Int8Epilogue& epilogue, float* y, int64_t y_stride, uint8_t* scratch);

}  // namespace isobit

#endif  // ISOBIT_LINEAR_INT8_INT8_H_
