// SPDX-License-Identifier: Apache-2.0
// Integer activation tables on a CUDA device: the bytes of ActivationTable. Part of isobit::cuda.
#ifndef ISOBIT_CUDA_TABLE_H_
#define ISOBIT_CUDA_TABLE_H_

#include <cstddef>
#include <memory>
#include <span>

#include "isobit/dtype.h"
#include "isobit/run.h"
#include "isobit/status.h"
#include "isobit/table.h"

namespace isobit::cuda {

/// A table of any kind on one device. Immutable; safe to share between threads and streams.
class DeviceTable {
 public:
  /// Checks the table, copies it to the current device, and waits for that.
  static Result<DeviceTable> create(const ActivationTable& table);

  /// y[i] = table(x[i]): codes in the Dtype of the table's input grid to codes in that of its output grid. x and y:
  /// device memory of this device, aligned to their elements, the same number of elements; not overlapping. Of the
  /// options only stream. Asynchronous on it: no allocation, no synchronisation; can be captured in a graph.
  [[nodiscard]] Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                               const RunOptions& options = {}) const;

 private:
  DeviceTable() = default;
  struct Data;
  std::shared_ptr<const Data> data_;
};

}  // namespace isobit::cuda

#endif  // ISOBIT_CUDA_TABLE_H_
