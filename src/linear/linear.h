// SPDX-License-Identifier: Apache-2.0
// The integer matrix product of every operation: acc[m, n] = start[n] + sum over k of w[n, k] * u[m, k].
// u is an activation code made unsigned (code + storage_offset), cut into planes of eight bits; w is a weight code,
// cut into planes of signed eight bits by pack_weights. All paths give the same bytes (reference.h).
//
//   ISOBIT_ASSIGN_OR_RETURN(const PackedWeights w, pack_weights(path, codes, n, k));      // once, with the model
//   pack_activations_row(codes_m, Dtype::kS8, k, packed + m * packed_row_bytes(Dtype::kS8, k));
//   linear_s32(w, packed, packed_row_bytes(...), activation_planes(Dtype::kS8), m_rows, start, acc, w.padded_n());
//
// The caller folds everything that does not depend on the activation into start: with z the zero point,
//   sum w * (code - z) = sum w * u - (z + storage_offset(dtype)) * sum w.
#ifndef ISOBIT_LINEAR_LINEAR_H_
#define ISOBIT_LINEAR_LINEAR_H_

#include <cstdint>
#include <memory>

#include "isobit/cpu.h"
#include "isobit/dtype.h"
#include "isobit/status.h"
#include "linear/kernels.h"

namespace isobit {

/// Weights in the order in which kernels read them; immutable, so a copy shares the memory. Layout, the same for
/// all paths: [plane][block][quad of k][row of the block][4 k], each block 1 to 12 tiles of 16 rows.
class PackedWeights {
 public:
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  /// n rounded up to 16: the number of elements of start that are read, and of acc that are written, per row.
  int64_t padded_n() const { return int64_t{16} * (wide_blocks_ * wide_tiles_ + narrow_blocks_ * (wide_tiles_ - 1)); }
  /// 1 when every weight lies in [-128, 127], 2 to 32639, 3 above (plane 2 holds a carry).
  int planes() const { return planes_; }
  int64_t size_bytes() const { return planes_ * plane_bytes_; }
  CpuPath path() const { return path_; }

 private:
  friend Result<PackedWeights> pack_weights(CpuPath path, const int32_t* weights, int64_t n, int64_t k);
  friend void linear_s32(const PackedWeights& weights, const uint8_t* activations, int64_t row_stride_bytes,
                         int activation_planes, int64_t m, const int32_t* start, int32_t* acc, int64_t acc_stride);
  friend void linear_s64(const PackedWeights& weights, const uint8_t* activations, int64_t row_stride_bytes,
                         int activation_planes, int64_t m, const int64_t* start, int64_t* acc, int64_t acc_stride);
  template <typename T>
  void run(const uint8_t* activations, int64_t row_stride_bytes, int activation_planes, int64_t m, const T* start,
           T* acc, int64_t acc_stride) const;

  std::shared_ptr<const int8_t> memory_;  // 64-byte aligned
  LinearKernel kernel_ = nullptr;
  int64_t n_ = 0;
  int64_t k_ = 0;
  int64_t plane_bytes_ = 0;
  int32_t wide_blocks_ = 0;
  int32_t narrow_blocks_ = 0;
  int32_t wide_tiles_ = 1;
  int32_t planes_ = 1;
  CpuPath path_ = CpuPath::kScalar;
};

/// weights: n x k codes, row-major, each in [-32768, 65535] (any 8- or 16-bit type, signed or not). k at most
/// kMaxLinearK, so that the product of two planes is exact in int32. path: one that cpu_can_run, except kReference.
Result<PackedWeights> pack_weights(CpuPath path, const int32_t* weights, int64_t n, int64_t k);
inline constexpr int64_t kMaxLinearK = 65793;  // 255 * 128 * 65793 < 2^31

/// Activation rows: u = code + storage_offset, plane p holds bits 8p to 8p + 7 (low plane first), each plane
/// round_up(k, 64) bytes. Bytes beyond k only need to be readable: they meet zero weights.
constexpr int64_t storage_offset(Dtype dtype) { return dtype == Dtype::kS8 ? 128 : dtype == Dtype::kS16 ? 32768 : 0; }
constexpr int activation_planes(Dtype dtype) { return static_cast<int>(size_in_bytes(dtype)); }
constexpr int64_t packed_plane_bytes(int64_t k) { return (k + 63) / 64 * 64; }
constexpr int64_t packed_row_bytes(Dtype dtype, int64_t k) { return activation_planes(dtype) * packed_plane_bytes(k); }

/// codes: k codes of type s8, u8, s16 or u16. Writes packed_row_bytes(dtype, k) bytes, zero beyond k.
void pack_activations_row(const void* codes, Dtype dtype, int64_t k, uint8_t* out);

template <typename T>
inline void PackedWeights::run(const uint8_t* activations, int64_t row_stride_bytes, int activation_planes, int64_t m,
                               const T* start, T* acc, int64_t acc_stride) const {
  LinearArgs args;
  args.weights = memory_.get();
  args.quads = (k_ + 3) / 4;
  args.wide_blocks = wide_blocks_;
  args.narrow_blocks = narrow_blocks_;
  args.wide_tiles = wide_tiles_;
  args.activation_planes = activation_planes;
  args.activations = activations;
  args.row_stride_bytes = row_stride_bytes;
  args.plane_stride_bytes = packed_plane_bytes(k_);
  args.m = m;
  args.start = start;
  args.start_stride = 0;
  args.acc = acc;
  args.acc_stride = acc_stride;
  args.shift = 0;
  args.wide = sizeof(T) == sizeof(int64_t);
  kernel_(args);
  for (int plane = 1; plane < planes_; ++plane) {  // further planes are added to what the first ones left
    args.weights += plane_bytes_;
    args.start = acc;
    args.start_stride = acc_stride;
    args.shift = 8 * plane;
    kernel_(args);
  }
}

/// acc[m, n] = start[n] + product, modulo 2^32: exact when the caller has proved that the final value fits.
/// start: padded_n elements. acc: m rows of acc_stride >= padded_n elements, of which padded_n are written.
/// No alignment is needed; 64 bytes is faster. row_stride_bytes: usually packed_row_bytes; a negative or zero
/// stride is allowed. start and acc do not overlap.
inline void linear_s32(const PackedWeights& weights, const uint8_t* activations, int64_t row_stride_bytes,
                       int activation_planes, int64_t m, const int32_t* start, int32_t* acc, int64_t acc_stride) {
  weights.run(activations, row_stride_bytes, activation_planes, m, start, acc, acc_stride);
}

/// The same in int64, exact for every input whose start leaves room (|product| < 2^49).
inline void linear_s64(const PackedWeights& weights, const uint8_t* activations, int64_t row_stride_bytes,
                       int activation_planes, int64_t m, const int64_t* start, int64_t* acc, int64_t acc_stride) {
  weights.run(activations, row_stride_bytes, activation_planes, m, start, acc, acc_stride);
}

}  // namespace isobit

#endif  // ISOBIT_LINEAR_LINEAR_H_
