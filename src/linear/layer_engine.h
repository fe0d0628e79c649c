// SPDX-License-Identifier: Apache-2.0
// Who computes a layer of floating-point rows: the reference, or the kernels of a path on packed weights.
#ifndef ISOBIT_LINEAR_LAYER_ENGINE_H_
#define ISOBIT_LINEAR_LAYER_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "isobit/linear.h"

namespace isobit {

/// What becomes of the sums.
struct LinearEpilogue {
  std::vector<float> bias;  // [N]; +0 where the caller has none
  LinearClamp clamp;
};

/// One call of forward: x [m, K], y [m, N], strides in elements.
struct LinearCall {
  const std::byte* x;
  Dtype x_dtype;
  int64_t x_stride;
  std::byte* y;
  Dtype y_dtype;
  int64_t y_stride;
  int64_t m;
  std::byte* rows;  // rows_bytes(m)

  [[nodiscard]] const std::byte* x_row(int64_t i) const {
    return x + i * x_stride * static_cast<int64_t>(size_in_bytes(x_dtype));
  }
  [[nodiscard]] std::byte* y_row(int64_t i) const {
    return y + i * y_stride * static_cast<int64_t>(size_in_bytes(y_dtype));
  }
};

/// Rows [m_begin, m_end) of y, blocks [n_begin, n_end) of its columns.
struct LinearRectangle {
  int64_t m_begin;
  int64_t m_end;
  int64_t n_begin;
  int64_t n_end;
};

class LinearEngine {
 public:
  virtual ~LinearEngine() = default;
  /// Blocks of outputs that can be computed apart.
  [[nodiscard]] virtual int64_t blocks() const = 0;
  [[nodiscard]] virtual int64_t size_bytes() const = 0;
  /// Of a layer with this path, whose kernel it runs.
  [[nodiscard]] virtual CpuPath kernel_path(CpuPath path) const { return path; }
  /// Of what quantize_row leaves for m rows: multiples of 64. 0: there is nothing to quantise.
  [[nodiscard]] virtual int64_t rows_bytes(int64_t /*m*/) const { return 0; }
  /// For one thread, in a call with m rows.
  [[nodiscard]] virtual int64_t scratch_bytes(int64_t m) const = 0;
  /// Row i of x to codes. False where section 11 refuses it; run() gives NaN for it then.
  virtual bool quantize_row(const LinearCall& /*call*/, int64_t /*i*/, std::byte* /*scratch*/) const { return true; }
  virtual void run(const LinearCall& call, const LinearRectangle& part, std::byte* scratch) const = 0;
};

/// kUnsupported where the path has no kernel for the layer.
Result<std::unique_ptr<const LinearEngine>> make_linear_engine(const LowBitMatrix& matrix,
                                                               LinearActivations activations, CpuPath path,
                                                               LinearEpilogue epilogue, std::string_view name);

}  // namespace isobit

#endif  // ISOBIT_LINEAR_LAYER_ENGINE_H_
