// SPDX-License-Identifier: Apache-2.0
// Linear layers with float activations (docs/numerics.md, section 10):
//   y[m,n] = act( sum_g ( S[n,g] * sum_(k in g) x[m,k] * v[n,k]  +  O[n,g] * sum_(k in g) x[m,k] )  +  bias[n] )
//
//   ISOBIT_ASSIGN_OR_RETURN(const PackedFloatWeights w, pack_float_weights(matrix));   // once, with the model
//   const FloatLinearKernel kernel = float_linear_kernel(path);                        // once
//   float_linear(kernel, w, w.all_blocks(), {x, y, Dtype::kF32, K, N, m}, {bias, lo, hi}, workspace);
//
// The order of sums, the same for every number of rows and every range of blocks: a group is cut into chunks of
// kFloatChunk elements; the sum over a chunk ascends in k from +0 by fused multiply-adds (v is exact), and is added to
// the total of the output by one fused multiply-add with S, ascending; the sum of x over the chunk times O follows.
// float_linear_scalar rounds products and sums separately. So the bytes of a row depend on the row, the layer and the
// kernel alone.
#ifndef ISOBIT_LINEAR_FLOAT_FLOAT_H_
#define ISOBIT_LINEAR_FLOAT_FLOAT_H_

#include <cstdint>
#include <memory>

#include "isobit/cpu.h"
#include "isobit/dtype.h"
#include "isobit/low_bit.h"
#include "isobit/status.h"
#include "linear/float/kernels.h"
#include "product/product.h"

namespace isobit {

/// Weights in the order in which kernels read them, the same for all paths; immutable, so a copy shares the memory.
class PackedFloatWeights {
 public:
  [[nodiscard]] int64_t n() const { return n_; }
  [[nodiscard]] int64_t k() const { return args_.k; }
  [[nodiscard]] BlockRange all_blocks() const { return {0, args_.wide_blocks + args_.narrow_blocks}; }
  /// The first output of a block, a multiple of 16; first_row(all_blocks().end) is n rounded up to 16.
  [[nodiscard]] int64_t first_row(int32_t block) const {
    const int64_t wide = block < args_.wide_blocks ? block : args_.wide_blocks;
    return kFloatTile * (wide * kFloatWideTiles + (block - wide));
  }
  /// Codes, scales, offsets and zero points: what a product of one row reads.
  [[nodiscard]] int64_t size_bytes() const { return size_bytes_; }

 private:
  friend Result<PackedFloatWeights> pack_float_weights(const LowBitMatrix& matrix);
  friend int64_t float_linear_workspace_bytes(const PackedFloatWeights& weights, int64_t m);
  friend void float_linear(FloatLinearKernel kernel, const PackedFloatWeights& weights, BlockRange blocks,
                           const struct FloatRows& rows, const struct FloatEpilogue& epilogue, void* workspace);

  std::shared_ptr<const uint8_t> memory_;  // 64-byte aligned
  FloatLinearArgs args_{};                 // the weights; no rows
  int64_t n_ = 0;
  int64_t size_bytes_ = 0;
};

/// kInvalidArgument where there is no memory.
Result<PackedFloatWeights> pack_float_weights(const LowBitMatrix& matrix);

/// The kernel of a path, or of the nearest one before it: of every path that this build and processor can run, except
/// kReference; else null.
FloatLinearKernel float_linear_kernel(CpuPath path);

/// Rows of x [m, K] and y [m, N], all f32, f16 or bf16. y is that of output 0 whatever the range of blocks.
struct FloatRows {
  const void* x;
  void* y;
  Dtype dtype;
  int64_t x_stride;  // in elements
  int64_t y_stride;
  int64_t m;
};

/// bias [N], or null; y < lo ? lo : y > hi ? hi : y (-inf and inf: no clamp).
struct FloatEpilogue {
  const float* bias;
  float lo;
  float hi;
};

/// For one caller of float_linear with at most m rows: 4 * K bytes for each of up to kFloatRows rows, and a little.
int64_t float_linear_workspace_bytes(const PackedFloatWeights& weights, int64_t m);

/// Writes the outputs of `blocks`, and no other. The workspace is 64-byte aligned and used by nobody else meanwhile;
/// x, y and bias need the alignment of their elements only. Any m >= 0. A NaN or an infinity in x touches its own row
/// only. For more than a few rows, ranges of several blocks (8 or more wide ones) share the cost of reading x.
void float_linear(FloatLinearKernel kernel, const PackedFloatWeights& weights, BlockRange blocks, const FloatRows& rows,
                  const FloatEpilogue& epilogue, void* workspace);

}  // namespace isobit

#endif  // ISOBIT_LINEAR_FLOAT_FLOAT_H_
