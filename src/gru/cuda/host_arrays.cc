// SPDX-License-Identifier: Apache-2.0
// Runs of DeviceGru whose arrays are on the host.
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "core/cuda/arguments.h"
#include "core/run_options.h"
#include "isobit/cuda/gru.h"

namespace isobit::cuda {
namespace {

/// What a call puts into its workspace, one after the other; offsets are multiples of 256.
struct Parts {
  struct Part {
    int64_t offset = 0, bytes = 0;
  };
  Part x, y, state, lengths, mask, workspace;
  int64_t total = 0;

  Parts(const DeviceGru& gru, int64_t batch, int64_t steps, int64_t x_bytes, int64_t y_bytes, int64_t mask_bytes) {
    const GruModel& model = gru.model();
    const auto place = [&](Part& part, int64_t bytes) {
      part = {total, bytes};
      total = sum_of_sizes(total, aligned_size(bytes));
    };
    place(x, product_of_sizes({steps, batch, model.input_size(), x_bytes}));
    place(y, product_of_sizes({steps, batch, model.output_size(), y_bytes}));
    place(state, gru.state_bytes(batch));
    place(lengths, product_of_sizes({batch, int64_t{sizeof(int64_t)}}));
    place(mask, product_of_sizes({steps, batch, model.output_size(), mask_bytes}));
    place(workspace, gru.workspace_bytes(batch, steps));
  }
};

Status too_many(int64_t batch, int64_t steps) {
  return refuse_argument(std::to_string(steps) + " steps of " + std::to_string(batch) + " sequences are too many");
}

/// What a run on the device could only clamp, or not say in time.
Status check_host_run(int64_t steps, int64_t batch, std::span<const int64_t> lengths) {
  if (steps < 0) return refuse_argument("steps is " + std::to_string(steps) + ", must not be negative");
  if (!lengths.empty() && static_cast<int64_t>(lengths.size()) != batch)
    return refuse_argument("lengths has " + std::to_string(lengths.size()) + " values, must have " +
                           std::to_string(batch) + " (the batch)");
  for (size_t n = 0; n < lengths.size(); ++n)
    if (lengths[n] < 0 || lengths[n] > steps)
      return refuse_argument("lengths[" + std::to_string(n) + "] is " + std::to_string(lengths[n]) + ", must be 0.." +
                             std::to_string(steps) + " (the steps)");
  return {};
}

}  // namespace

Result<Workspace> DeviceGru::workspace(int64_t batch, int64_t steps) const {
  if (batch < 0 || steps < 0)
    return refuse_argument("batch is " + std::to_string(batch) + " and steps " + std::to_string(steps) +
                           ", must not be negative");
  constexpr int64_t kWidestElement = 4;  // float32, and the widest code
  const int64_t bytes = Parts(*this, batch, steps, kWidestElement, kWidestElement, 1).total;
  if (bytes == INT64_MAX) return too_many(batch, steps);
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(device()), "device " + std::to_string(device())));
  void* memory = nullptr;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaMalloc(&memory, static_cast<size_t>(bytes)),
                                     std::to_string(bytes) + " bytes of memory of device " + std::to_string(device())));
  return Workspace(static_cast<std::byte*>(memory), bytes, device(), [](std::byte* p) { cudaFree(p); });
}

Status DeviceGru::forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                          int64_t steps, GruState& state, Workspace& workspace, const RunOptions& options) const {
  const int64_t batch = state.batch();
  if (!options.next_state.empty())
    return refuse_argument("options.next_state is set, which is for arrays on the device; leave it at its default");
  ISOBIT_RETURN_IF_ERROR(check_host_run(steps, batch, options.lengths));
  const Parts parts(*this, batch, steps, static_cast<int64_t>(size_in_bytes(x_dtype)),
                    static_cast<int64_t>(size_in_bytes(y_dtype)), options.zoneout_mask.empty() ? 0 : 1);
  if (parts.total == INT64_MAX) return too_many(batch, steps);
  ISOBIT_RETURN_IF_ERROR(check_size({"x", x}, {steps, batch, model().input_size()}, x_dtype));
  ISOBIT_RETURN_IF_ERROR(check_size({"y", y}, {steps, batch, model().output_size()}, y_dtype));
  if (!options.zoneout_mask.empty())
    ISOBIT_RETURN_IF_ERROR(check_size({"zoneout_mask", std::as_bytes(options.zoneout_mask)},
                                      {steps, batch, model().output_size()}, Dtype::kU8));
  if (!workspace_fits(workspace, parts.total, device()))
    return refuse_workspace(workspace, parts.total, device(),
                            std::to_string(steps) + " steps of " + std::to_string(batch) + " sequences",
                            "workspace(batch, steps)");
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(device()), "device " + std::to_string(device())));

  cudaStream_t const stream = options.stream;
  const auto at = [&](const Parts::Part& part) {
    return std::span(workspace.data() + part.offset, static_cast<size_t>(part.bytes));
  };
  const auto upload = [&](const Parts::Part& to, std::span<const std::byte> from, const char* what) {
    return cuda_status(cudaMemcpyAsync(at(to).data(), from.data(), from.size(), cudaMemcpyHostToDevice, stream), what);
  };
  ISOBIT_RETURN_IF_ERROR(upload(parts.x, x, "copying x"));
  ISOBIT_RETURN_IF_ERROR(upload(parts.lengths, std::as_bytes(options.lengths), "copying lengths"));
  ISOBIT_RETURN_IF_ERROR(upload(parts.mask, std::as_bytes(options.zoneout_mask), "copying the zoneout mask"));
  ISOBIT_RETURN_IF_ERROR(upload_state(state, at(parts.state), stream));
  RunOptions on_device = options;
  if (!options.lengths.empty())
    on_device.lengths = {reinterpret_cast<const int64_t*>(at(parts.lengths).data()), options.lengths.size()};
  if (!options.zoneout_mask.empty())
    on_device.zoneout_mask = {reinterpret_cast<const uint8_t*>(at(parts.mask).data()), options.zoneout_mask.size()};
  ISOBIT_RETURN_IF_ERROR(forward(at(parts.x), x_dtype, at(parts.y), y_dtype, steps, batch, at(parts.state),
                                 at(parts.workspace), on_device));
  if (x_dtype == Dtype::kF32) ISOBIT_RETURN_IF_ERROR(check_input(at(parts.workspace), stream));
  // What the kernels report comes before anything is written.
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "the run"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(
      cudaMemcpyAsync(y.data(), at(parts.y).data(), y.size(), cudaMemcpyDeviceToHost, stream), "copying y"));
  return download_state(at(parts.state), state, stream);
}

}  // namespace isobit::cuda
