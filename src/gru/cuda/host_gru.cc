// SPDX-License-Identifier: Apache-2.0
#include "isobit/cuda/host_gru.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/status.h"

namespace isobit::cuda {
namespace {

constexpr size_t kAlignment = 256;

Status refuse(const std::string& what) { return {StatusCode::kInvalidArgument, what}; }

/// steps * batch * width, which callers compare sizes with.
Result<int64_t> elements(int64_t steps, int64_t batch, int64_t width) {
  int64_t count = 0;
  if (__builtin_mul_overflow(steps, batch, &count) || __builtin_mul_overflow(count, width, &count) ||
      count > INT64_MAX / 8)
    return refuse(std::to_string(steps) + " steps of " + std::to_string(batch) + " sequences of " +
                  std::to_string(width) + " values are too many");
  return count;
}

}  // namespace

struct HostGru::Data {
  explicit Data(DeviceGru on_device) : gru(std::move(on_device)) {}
  ~Data() {
    cudaFree(memory);
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
  Data(const Data&) = delete;
  Data& operator=(const Data&) = delete;

  /// What the two entries share: bytes in, bytes out.
  struct Call {
    std::span<const std::byte> x;
    std::span<std::byte> y;
    bool floats = false;
    int64_t steps = 0;
  };
  [[nodiscard]] Status check(const Call& call, int64_t batch, const HostGruOptions& options) const;
  Status reserve(size_t bytes);
  Status run(const Call& call, GruState& state, const HostGruOptions& options);

  DeviceGru gru;
  int device = 0;
  cudaStream_t stream = nullptr;
  void* memory = nullptr;
  size_t memory_bytes = 0;
};

Status HostGru::Data::check(const Call& call, int64_t batch, const HostGruOptions& options) const {
  const int64_t steps = call.steps;
  const std::span<const int64_t> lengths = options.lengths;
  if (!lengths.empty() && static_cast<int64_t>(lengths.size()) != batch)
    return refuse("lengths has " + std::to_string(lengths.size()) + " values, must have " + std::to_string(batch));
  for (size_t n = 0; n < lengths.size(); ++n)
    if (lengths[n] < 0 || lengths[n] > steps)
      return refuse("lengths[" + std::to_string(n) + "] is " + std::to_string(lengths[n]) + ", must be 0.." +
                    std::to_string(steps));
  if (steps > INT32_MAX && !lengths.empty())
    return refuse("steps is " + std::to_string(steps) + ", must be at most 2147483647 with lengths");
  const GruModel& model = gru.model();
  ISOBIT_ASSIGN_OR_RETURN(const int64_t inputs, elements(steps, batch, model.input_size()));
  ISOBIT_ASSIGN_OR_RETURN(const int64_t masked, elements(steps, batch, model.output_size()));
  const auto check_size = [&](const char* name, size_t bytes, int64_t count, const Grid& grid) -> Status {
    const size_t width = call.floats ? sizeof(float) : size_in_bytes(grid.dtype());
    if (bytes == static_cast<size_t>(count) * width) return {};
    return refuse(std::string(name) + " has " + std::to_string(bytes / width) + " elements, must have " +
                  std::to_string(count));
  };
  ISOBIT_RETURN_IF_ERROR(check_size("x", call.x.size(), inputs, model.input_grid()));
  ISOBIT_RETURN_IF_ERROR(check_size("y", call.y.size(), masked, model.output_grid()));
  if (!options.zoneout_mask.empty() && static_cast<int64_t>(options.zoneout_mask.size()) != masked)
    return refuse("the zoneout mask has " + std::to_string(options.zoneout_mask.size()) + " values, must have " +
                  std::to_string(masked));
  return {};
}

Status HostGru::Data::reserve(size_t bytes) {
  if (bytes <= memory_bytes) return {};
  cudaFree(std::exchange(memory, nullptr));
  memory_bytes = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaMalloc(&memory, bytes),
                                     std::to_string(bytes) + " bytes of memory of device " + std::to_string(device)));
  memory_bytes = bytes;
  return {};
}

Status HostGru::Data::run(const Call& call, GruState& state, const HostGruOptions& options) {
  const int64_t batch = state.batch();
  if (call.steps < 0) return refuse("steps is " + std::to_string(call.steps) + ", must not be negative");
  ISOBIT_RETURN_IF_ERROR(check(call, batch, options));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(device), "device " + std::to_string(device)));
  const std::vector<int32_t> lengths(options.lengths.begin(), options.lengths.end());

  size_t total = 0;
  const auto place = [&](size_t bytes) {
    const size_t at = total;
    total += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return std::pair(at, bytes);
  };
  const auto x = place(call.x.size());
  const auto y = place(call.y.size());
  const auto h = place(static_cast<size_t>(gru.state_bytes(batch)));
  const int64_t workspace_bytes = gru.workspace_bytes(batch, call.steps);
  if (workspace_bytes > INT64_MAX / 2)
    return refuse(std::to_string(call.steps) + " steps of " + std::to_string(batch) + " sequences are too many");
  const auto workspace = place(static_cast<size_t>(workspace_bytes));
  const auto length = place(lengths.size() * sizeof(int32_t));
  const auto mask = place(options.zoneout_mask.size());
  ISOBIT_RETURN_IF_ERROR(reserve(total));
  const auto at = [&](std::pair<size_t, size_t> part) {
    return std::span(static_cast<std::byte*>(memory) + part.first, part.second);
  };
  const auto upload = [&](std::pair<size_t, size_t> to, const void* from, const char* what) {
    return cuda_status(cudaMemcpyAsync(at(to).data(), from, to.second, cudaMemcpyHostToDevice, stream), what);
  };
  ISOBIT_RETURN_IF_ERROR(upload(x, call.x.data(), "copying x"));
  ISOBIT_RETURN_IF_ERROR(upload(length, lengths.data(), "copying lengths"));
  ISOBIT_RETURN_IF_ERROR(upload(mask, options.zoneout_mask.data(), "copying the zoneout mask"));
  ISOBIT_RETURN_IF_ERROR(gru.upload_state(state, at(h), stream));

  GruRunOptions run;
  run.kernel = options.kernel;
  run.batch_first = options.batch_first;
  run.whole_sequence = options.whole_sequence;
  if (!lengths.empty()) run.lengths = reinterpret_cast<const int32_t*>(at(length).data());
  if (mask.second > 0) run.zoneout_mask = reinterpret_cast<const uint8_t*>(at(mask).data());
  if (call.floats) {
    const std::span in(reinterpret_cast<const float*>(at(x).data()), x.second / sizeof(float));
    const std::span out(reinterpret_cast<float*>(at(y).data()), y.second / sizeof(float));
    ISOBIT_RETURN_IF_ERROR(gru.forward(in, out, call.steps, batch, at(h), at(workspace), stream, run));
    ISOBIT_RETURN_IF_ERROR(DeviceGru::check_input(at(workspace), stream));
  } else {
    ISOBIT_RETURN_IF_ERROR(gru.forward_codes(at(x), at(y), call.steps, batch, at(h), at(workspace), stream, run));
  }
  // What the kernels report comes before anything is written.
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "the run"));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaMemcpyAsync(call.y.data(), at(y).data(), y.second, cudaMemcpyDeviceToHost, stream), "copying y"));
  return gru.download_state(at(h), state, stream);
}

Result<HostGru> HostGru::create(const GruModel& model, int device) {
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(device), "device " + std::to_string(device)));
  ISOBIT_ASSIGN_OR_RETURN(DeviceGru gru, DeviceGru::create(model));
  HostGru host;
  host.data_ = std::make_shared<Data>(std::move(gru));
  host.data_->device = device;
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaStreamCreateWithFlags(&host.data_->stream, cudaStreamNonBlocking), "a stream"));
  return host;
}

const DeviceGru& HostGru::device_gru() const { return data_->gru; }

Status HostGru::forward(std::span<const float> x, std::span<float> y, int64_t steps, GruState& state,
                        const HostGruOptions& options) {
  return data_->run({std::as_bytes(x), std::as_writable_bytes(y), true, steps}, state, options);
}

Status HostGru::forward_codes(const void* x, void* y, int64_t steps, GruState& state, const HostGruOptions& options) {
  if (steps < 0) return refuse("steps is " + std::to_string(steps) + ", must not be negative");
  const GruModel& model = data_->gru.model();
  ISOBIT_ASSIGN_OR_RETURN(const int64_t inputs, elements(steps, state.batch(), model.input_size()));
  ISOBIT_ASSIGN_OR_RETURN(const int64_t outputs, elements(steps, state.batch(), model.output_size()));
  const auto bytes = [](int64_t count, const Grid& grid) {
    return static_cast<size_t>(count) * size_in_bytes(grid.dtype());
  };
  return data_->run({{static_cast<const std::byte*>(x), bytes(inputs, model.input_grid())},
                     {static_cast<std::byte*>(y), bytes(outputs, model.output_grid())},
                     false,
                     steps},
                    state, options);
}

}  // namespace isobit::cuda
