// SPDX-License-Identifier: Apache-2.0
// FP16 tables on a CUDA device: the bytes of Fp16Table, whatever its model. Part of isobit::cuda.
#ifndef ISOBIT_CUDA_FP16_TABLE_H_
#define ISOBIT_CUDA_FP16_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "isobit/dtype.h"
#include "isobit/fp16_function.h"
#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// The results of a float16 function at all 65536 codes, on one device (512 KiB: a table for each pair of 16-bit
/// types). An element is one read of shared memory, whatever table, model or range reduction the results came from.
/// Immutable; safe to share between threads and streams.
class DeviceFp16Function {
 public:
  /// results[c]: float16 code of the result at float16 code c (Fp16Function::results). Copies them to the current
  /// device, and waits for that.
  static Result<DeviceFp16Function> create(std::span<const uint16_t> results);

  /// y[i] = f(float16(x[i])) converted to y_dtype: f16, bf16 or f32 in and out, any pair. x and y: device memory of
  /// this device, aligned to their elements (16 bytes is faster), the same number of elements; they are the same
  /// memory, with types of one size, or do not overlap. Of the options only stream. Asynchronous on it: no allocation,
  /// no synchronisation; can be captured in a graph.
  [[nodiscard]] Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                               const RunOptions& options = {}) const;

 private:
  DeviceFp16Function() = default;
  std::shared_ptr<const std::byte> tables_;
  int device_ = 0;
  int processors_ = 0;
  bool fits_shared_ = false;  // a block may have 128 KiB of shared memory
};

/// softmax over the last dimension on a device: the bytes of Fp16Softmax. Immutable; safe to share between threads and
/// streams.
class DeviceFp16Softmax {
 public:
  /// Copies the two tables to the current device, and waits for that.
  static Result<DeviceFp16Softmax> create(const Fp16Softmax& softmax);

  /// As DeviceFp16Function::forward, on rows of `columns` elements, 1..2^31 - 1, which must divide their number. x is
  /// read three times.
  [[nodiscard]] Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                               int64_t columns, const RunOptions& options = {}) const;

 private:
  DeviceFp16Softmax() = default;
  struct Data;
  std::shared_ptr<const Data> data_;
};

}  // namespace isobit::cuda

#endif  // ISOBIT_CUDA_FP16_TABLE_H_
