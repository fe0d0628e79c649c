// SPDX-License-Identifier: Apache-2.0
// The integer matrix product of every operation: acc[m, n] = start[n] + sum over k of w[n, k] * u[m, k].
// u is an activation code made unsigned (code + storage_offset), cut into planes of eight bits; w is a weight code,
// cut into planes of signed eight bits by pack_weights. All paths give the same bytes (reference.h).
//
//   ISOBIT_ASSIGN_OR_RETURN(const PackedWeights w, pack_weights(codes, n, k));   // once, with the model
//   const LinearKernel kernel = linear_kernel(path);                             // once
//   pack_activations_row(codes_m, Dtype::kS8, k, packed + m * packed_row_bytes(Dtype::kS8, k));
//   linear(kernel, w, w.all_blocks(), {packed, packed_row_bytes(...), activation_planes(Dtype::kS8), m}, start, acc,
//          w.padded_n());
//
// The caller folds everything that does not depend on the activation into start: with z the zero point,
//   sum w * (code - z) = sum w * u - (z + storage_offset(dtype)) * sum w.
#ifndef ISOBIT_PRODUCT_PRODUCT_H_
#define ISOBIT_PRODUCT_PRODUCT_H_

#include <cstdint>
#include <memory>

#include "core/aligned_memory.h"
#include "isobit/cpu.h"
#include "isobit/dtype.h"
#include "isobit/status.h"
#include "product/kernels.h"

namespace isobit {

/// Blocks [begin, end) of packed weights.
struct BlockRange {
  int32_t begin;
  int32_t end;
};

/// m packed rows of activations, see pack_activations_row. A negative or zero stride is allowed.
struct ActivationRows {
  const uint8_t* data;
  int64_t stride_bytes;  // usually packed_row_bytes
  int planes;
  int64_t m;
  // Instead of rows [m / 16][k / 64][16 rows][64 k], one plane, and the stride is packed_row_bytes; where takes_tiles()
  // is true. The last rows may be missing, but not their memory.
  bool tiled = false;
  // Instead of rows stride_bytes apart: `pieces` equal pieces of k, multiples of 4 codes, of which row m has piece i at
  // data + row_at[m] + piece_at[i]. Not with tiles.
  const int64_t* row_at = nullptr;
  const int64_t* piece_at = nullptr;
  int64_t pieces = 1;
  int64_t plane_stride_bytes = 0;  // of pieces

  /// Rows from `first` on, `count` of them; of tiles, `first` is a multiple of 16.
  [[nodiscard]] ActivationRows part(int64_t first, int64_t count) const {
    ActivationRows rows = *this;
    if (row_at != nullptr) {
      rows.row_at += first;
    } else {
      rows.data += first * stride_bytes;
    }
    rows.m = count;
    return rows;
  }
};

class PackedWeights;

/// Up to so many rows ask for weights as fast as the processor fetches them by itself, unless they come from memory for
/// certain: they do not fit the second-level cache.
inline constexpr int64_t kFewRows = 2;
inline constexpr int64_t kSecondLevelBytes = int64_t{2} << 20;

template <typename T>
void linear(LinearKernel kernel, const PackedWeights& weights, BlockRange blocks, const ActivationRows& u,
            const T* start, T* acc, int64_t acc_stride, bool cold = false, LinearThen then = {},
            const SumCodes* codes = nullptr);

/// Weights in the order in which kernels read them; immutable, so a copy shares the memory. Layout, the same for
/// all paths: [plane][block][quad of k][row of the block][4 k], each block 1 to 12 tiles of 16 rows.
class PackedWeights {
 public:
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  /// n rounded up to 16: the number of elements of start that are read, and of acc that are written, per row.
  int64_t padded_n() const { return first_row(wide_blocks_ + narrow_blocks_); }
  BlockRange all_blocks() const { return {0, wide_blocks_ + narrow_blocks_}; }
  /// Where the rows of a block begin: a multiple of 16. first_row(all_blocks().end) is padded_n().
  int64_t first_row(int32_t block) const {
    const int32_t wide = block < wide_blocks_ ? block : wide_blocks_;
    return int64_t{kTileRows} * (int64_t{wide} * wide_tiles_ + int64_t{block - wide} * narrow_tiles_);
  }
  /// 1 when every weight lies in [-128, 127], 2 to 32639, 3 above (plane 2 holds a carry).
  int planes() const { return planes_; }
  int64_t size_bytes() const { return planes_ * plane_bytes_; }

 private:
  friend Result<PackedWeights> pack_weights(const int32_t* weights, int64_t n, int64_t k, int32_t tiles_together,
                                            int32_t max_block_tiles);
  template <typename T>
  friend void linear(LinearKernel kernel, const PackedWeights& weights, BlockRange blocks, const ActivationRows& u,
                     const T* start, T* acc, int64_t acc_stride, bool cold, LinearThen then, const SumCodes* codes);

  std::shared_ptr<const int8_t> memory_;  // 64-byte aligned
  int64_t n_ = 0;
  int64_t k_ = 0;
  int64_t plane_bytes_ = 0;
  int32_t wide_blocks_ = 0;
  int32_t narrow_blocks_ = 0;
  int32_t wide_tiles_ = 1;
  int32_t narrow_tiles_ = 0;
  int32_t planes_ = 1;
};

/// weights: n x k codes, row-major, each in [-32768, 65535] (any 8- or 16-bit type, signed or not). k at most
/// kMaxLinearK, so that the product of two planes is exact in int32. A block holds a multiple of tiles_together tiles,
/// at most max_block_tiles (tiles_together..kMaxBlockTiles); n must be a multiple of 16 * tiles_together when that is
/// above 1.
Result<PackedWeights> pack_weights(const int32_t* weights, int64_t n, int64_t k, int32_t tiles_together = 1,
                                   int32_t max_block_tiles = kMaxBlockTiles);
inline constexpr int64_t kMaxLinearK = 65793;  // 255 * 128 * 65793 < 2^31

/// The kernel of a path: of every path that this build and processor can run, except kReference; else null.
LinearKernel linear_kernel(CpuPath path);

/// Activation rows: u = code + storage_offset, plane p holds bits 8p to 8p + 7 (low plane first), each plane
/// round_up(k, 64) bytes. Bytes beyond k only need to be readable: they meet zero weights.
constexpr int64_t storage_offset(Dtype dtype) { return dtype == Dtype::kS8 ? 128 : dtype == Dtype::kS16 ? 32768 : 0; }
constexpr int activation_planes(Dtype dtype) { return static_cast<int>(size_in_bytes(dtype)); }
constexpr int64_t packed_plane_bytes(int64_t k) { return round_up_64(k); }
constexpr int64_t packed_row_bytes(Dtype dtype, int64_t k) { return activation_planes(dtype) * packed_plane_bytes(k); }

/// Whether m rows for these weights are best packed as tiles. A part of such a call may have fewer rows.
bool takes_tiles(LinearKernel kernel, const PackedWeights& weights, int64_t m);
/// Whether it can make codes of sums.
bool gives_codes(LinearKernel kernel);
constexpr int64_t round_up_to_tile(int64_t m) { return (m + kTileRows - 1) / kTileRows * kTileRows; }
/// Where row m of tiles begins: kTileColumns codes, the next ones kTileBytes further.
constexpr int64_t tiled_row_at(int64_t m, int64_t row_bytes) {
  return m / kTileRows * kTileRows * row_bytes + m % kTileRows * kTileColumns;
}

/// codes: k codes of type s8, u8, s16 or u16. Writes packed_row_bytes(dtype, k) bytes, zero beyond k. 8-bit codes:
/// 64 bytes at a time, piece_stride bytes apart.
void pack_activations_row(const void* codes, Dtype dtype, int64_t k, uint8_t* out, int64_t piece_stride = kTileColumns);

/// For every row r of `blocks`: acc[m, r - first] = start[r - first] + product, first = first_row(blocks.begin). T is
/// int32_t: modulo 2^32, exact when the caller has proved that the final value fits; or int64_t: exact for every input
/// whose start leaves room (|product| < 2^49). acc: m rows of acc_stride elements. No alignment is needed; 64 bytes is
/// faster. start and acc do not overlap. With `then`, of tiled activations and weights of one plane, it takes the sums
/// in place of acc, in pieces. With `codes`, where gives_codes() is true, of activations and weights of one plane, its
/// y is written in place of acc.
template <typename T>
inline void linear(LinearKernel kernel, const PackedWeights& weights, BlockRange blocks, const ActivationRows& u,
                   const T* start, T* acc, int64_t acc_stride, bool cold, LinearThen then, const SumCodes* codes) {
  static_assert(sizeof(T) == sizeof(int32_t) || sizeof(T) == sizeof(int64_t));
  const int32_t wide_end = blocks.end < weights.wide_blocks_ ? blocks.end : weights.wide_blocks_;
  LinearArgs args;
  args.quads = (weights.k_ + 3) / 4;
  args.weights = weights.memory_.get() + weights.first_row(blocks.begin) * 4 * args.quads;
  args.wide_blocks = blocks.begin < wide_end ? wide_end - blocks.begin : 0;
  args.narrow_blocks = blocks.end - blocks.begin - args.wide_blocks;
  args.wide_tiles = weights.wide_tiles_;
  args.narrow_tiles = weights.narrow_tiles_;
  args.activation_planes = u.planes;
  args.activations = u.data;
  args.row_stride_bytes = u.stride_bytes;
  args.plane_stride_bytes = u.row_at != nullptr ? u.plane_stride_bytes : packed_plane_bytes(weights.k_);
  args.row_at = u.row_at;
  args.piece_at = u.piece_at;
  args.pieces = u.pieces;
  args.piece_quads = args.quads / u.pieces;
  args.m = u.m;
  args.start = start;
  args.start_stride = 0;
  args.acc = acc;
  args.acc_stride = acc_stride;
  args.shift = 0;
  args.wide = sizeof(T) == sizeof(int64_t);
  args.cold = cold && (u.m > kFewRows || weights.size_bytes() > kSecondLevelBytes);
  args.tiled = u.tiled;
  args.then = then;
  args.codes = codes;
  kernel(args);
  for (int plane = 1; plane < weights.planes_; ++plane) {  // further planes are added to what the first ones left
    args.weights += weights.plane_bytes_;
    args.start = acc;
    args.start_stride = acc_stride;
    args.shift = 8 * plane;
    kernel(args);
  }
}

}  // namespace isobit

#endif  // ISOBIT_PRODUCT_PRODUCT_H_
