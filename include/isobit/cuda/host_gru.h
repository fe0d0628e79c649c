// SPDX-License-Identifier: Apache-2.0
// Integer GRUs on a CUDA device for callers whose arrays are on the host. Part of isobit::cuda.
#ifndef ISOBIT_CUDA_HOST_GRU_H_
#define ISOBIT_CUDA_HOST_GRU_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "isobit/cuda/gru.h"
#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// isobit::RunOptions, with a kernel of the device in place of a path.
struct HostGruOptions {
  std::string_view kernel{};                // empty: DeviceGru::choose_kernel
  std::span<const int64_t> lengths{};       // [N], 0..T
  std::span<const uint8_t> zoneout_mask{};  // [T, N, directions * H]; models of one layer
  bool batch_first = false;
  bool whole_sequence = false;
};

/// GruModel::forward and forward_codes with the arithmetic on a device: the same arguments, the same bytes. Keeps
/// buffers on the device, which grow; every call copies in and out, and waits. For one thread at a time. Leaves the
/// device that it was made for the thread's current one. Where speed counts, keep the data on the device and use
/// DeviceGru.
class HostGru {
 public:
  HostGru(HostGru&&) = default;
  HostGru& operator=(HostGru&&) = default;

  /// Copies the model to the device with this number.
  static Result<HostGru> create(const GruModel& model, int device);

  [[nodiscard]] const DeviceGru& device_gru() const;

  /// x [T, N, C], y [T, N, directions * H], N of `state`. Errors before the results are copied back leave y and `state`
  /// as they were; kInvalidArgument names the first NaN of x.
  Status forward(std::span<const float> x, std::span<float> y, int64_t steps, GruState& state,
                 const HostGruOptions& options = {});
  /// x elements of input_grid().dtype(), y of output_grid().dtype().
  Status forward_codes(const void* x, void* y, int64_t steps, GruState& state, const HostGruOptions& options = {});

 private:
  HostGru() = default;
  struct Data;
  std::shared_ptr<Data> data_;
};

}  // namespace isobit::cuda

#endif  // ISOBIT_CUDA_HOST_GRU_H_
