// SPDX-License-Identifier: Apache-2.0
// --device in a tool that was built with CUDA: isobit::cuda behind the interface of device.h.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <utility>

#include "bench/random.h"
#include "device.h"
#include "isobit/cuda/compare.h"
#include "isobit/cuda/fp16_table.h"
#include "isobit/cuda/gru.h"
#include "isobit/cuda/timer.h"
#include "isobit/cuda/verify.h"
#include "text.h"

namespace isobit::tool {
namespace {

Status cuda_status(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return {};
  return {StatusCode::kFailedPrecondition,
          what + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")"};
}

/// Device memory with the content of `bytes`.
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(memory_); }

  Status allocate(size_t bytes) {
    bytes_ = bytes;
    return cuda_status(cudaMalloc(&memory_, std::max<size_t>(bytes, 1)),
                       std::to_string(bytes) + " bytes of device memory");
  }
  Status write(std::span<const std::byte> from) {
    ISOBIT_RETURN_IF_ERROR(allocate(from.size()));
    return cuda_status(cudaMemcpy(memory_, from.data(), bytes_, cudaMemcpyHostToDevice), "copying to the device");
  }
  Status read(std::span<std::byte> to) const {
    return cuda_status(cudaMemcpy(to.data(), memory_, bytes_, cudaMemcpyDeviceToHost), "copying to the host");
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return {static_cast<std::byte*>(memory_), bytes_}; }

 private:
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

class CudaGru : public DeviceGru {
 public:
  explicit CudaGru(cuda::DeviceGru gru) : gru_(std::move(gru)) {}

  [[nodiscard]] Result<std::string> choose_kernel(int64_t batch, int64_t steps, const std::string& kernel,
                                                  bool codes_with_next_state) const override {
    ISOBIT_ASSIGN_OR_RETURN(const std::string_view name,
                            gru_.choose_kernel(batch, steps, kernel, codes_with_next_state));
    return std::string(name);
  }
  [[nodiscard]] Result<Workspace> workspace(int64_t batch, int64_t steps) const override {
    return gru_.workspace(batch, steps);
  }
  Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype, int64_t steps,
                 GruState& state, Workspace& workspace, const isobit::RunOptions& options) const override {
    return gru_.forward(x, x_dtype, y, y_dtype, steps, state, workspace, options);
  }
  Result<double> microseconds(int64_t batch, int64_t steps, int64_t calls, bool two_states, const std::string& kernel,
                              double min_time) override {
    const GruModel& model = gru_.model();
    const auto x_call =
        static_cast<size_t>(steps * batch * model.input_size()) * size_in_bytes(model.input_grid().dtype());
    const auto y_call =
        static_cast<size_t>(steps * batch * model.output_size()) * size_in_bytes(model.output_grid().dtype());
    // Codes are those of random floats: the grid may be narrower than its type.
    bench::Random random(7);
    const int64_t count = calls * steps * batch * model.input_size();
    std::vector<std::byte> codes(static_cast<size_t>(calls) * x_call);
    ISOBIT_RETURN_IF_ERROR(quantize(model.input_grid(), random.vector(count, 2.0f), codes.data(), "x"));
    DeviceArray x, y, workspace;
    std::array<DeviceArray, 2> states;
    ISOBIT_RETURN_IF_ERROR(x.write(codes));
    ISOBIT_RETURN_IF_ERROR(y.allocate(static_cast<size_t>(calls) * y_call));
    ISOBIT_RETURN_IF_ERROR(workspace.allocate(static_cast<size_t>(gru_.workspace_bytes(batch, steps))));
    for (DeviceArray& state : states) {
      ISOBIT_RETURN_IF_ERROR(state.allocate(static_cast<size_t>(gru_.state_bytes(batch))));
      ISOBIT_RETURN_IF_ERROR(gru_.initial_state(state.bytes(), batch, nullptr));
    }
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaDeviceSynchronize(), "the first state"));
    const auto work = [&](cudaStream_t stream) -> Status {
      for (size_t call = 0; call < static_cast<size_t>(calls); ++call) {
        isobit::RunOptions options{.kernel = kernel, .stream = stream, .whole_sequence = true};
        if (two_states) options.next_state = states[(call + 1) % 2].bytes();
        ISOBIT_RETURN_IF_ERROR(
            gru_.forward_codes(x.bytes().subspan(call * x_call, x_call), y.bytes().subspan(call * y_call, y_call),
                               steps, batch, states[two_states ? call % 2 : 0].bytes(), workspace.bytes(), options));
      }
      return {};
    };
    return cuda::median_microseconds(work, {.min_replays = 5, .min_seconds = min_time});
  }

 private:
  cuda::DeviceGru gru_;
};

class CudaDevice : public Device {
 public:
  CudaDevice(int index, const cudaDeviceProp& properties) : index_(index), properties_(properties) {}

  [[nodiscard]] std::string text() const override {
    return "cuda:" + std::to_string(index_) + " (" + properties_.name + ")";
  }
  [[nodiscard]] Value json() const override {
    Value device = Value::object();
    device.set("device", "cuda:" + std::to_string(index_)).set("name", properties_.name);
    device.set("compute_capability", format("%d.%d", properties_.major, properties_.minor));
    device.set("multiprocessors", properties_.multiProcessorCount).set("memory_bytes", properties_.totalGlobalMem);
    return device;
  }
  [[nodiscard]] std::vector<DeviceKernel> kernels() const override {
    std::vector<DeviceKernel> list;
    for (const cuda::DeviceGruKernel& kernel : cuda::gru_kernels())
      list.push_back({"gru", std::string(kernel.name), std::string(kernel.what)});
    list.push_back(
        {"fp16_table", "direct", "every function: a look-up among all 65536 results, f16, bf16, f32 in and out"});
    list.push_back({"fp16_softmax", "interpolated", "the tables of e^x and 1/x, a warp or a block of threads a row"});
    list.push_back({"activation_table", "look_up", "integer tables of every kind, as a GRU has them"});
    return list;
  }
  [[nodiscard]] Result<std::unique_ptr<DeviceGru>> gru(const GruModel& model) const override {
    ISOBIT_ASSIGN_OR_RETURN(cuda::DeviceGru gru, cuda::DeviceGru::create(model, index_));
    return std::unique_ptr<DeviceGru>(std::make_unique<CudaGru>(std::move(gru)));
  }
  [[nodiscard]] Result<std::unique_ptr<GruCodeSource>> code_source(const GruModel& model) const override {
    return cuda::code_source(model, index_);
  }
  Status forward(const Fp16Function& function, std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y,
                 Dtype y_dtype) const override {
    ISOBIT_ASSIGN_OR_RETURN(const auto on_device, cuda::DeviceFp16Function::create(function.results()));
    return through_device(x, y, [&](auto from, auto to) { return on_device.forward(from, x_dtype, to, y_dtype); });
  }
  Status forward(const Fp16Softmax& softmax, std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y,
                 Dtype y_dtype, int64_t columns) const override {
    ISOBIT_ASSIGN_OR_RETURN(const auto on_device, cuda::DeviceFp16Softmax::create(softmax));
    return through_device(x, y,
                          [&](auto from, auto to) { return on_device.forward(from, x_dtype, to, y_dtype, columns); });
  }
  [[nodiscard]] Result<VerifyReport> verify(const isobit::VerifyOptions& options) const override {
    return cuda::verify_kernels(index_, options);
  }
  [[nodiscard]] Result<VerifyReport> verify(const GruModel& model,
                                            const isobit::VerifyOptions& options) const override {
    return cuda::verify_model(model, index_, options);
  }
  [[nodiscard]] Result<Fingerprints> fingerprint(const std::string& kernel) const override {
    return cuda::fingerprint_all(index_, kernel);
  }

 private:
  /// work(x, y) on copies on the device, all on its default stream; y comes back.
  template <typename Work>
  static Status through_device(std::span<const std::byte> x, std::span<std::byte> y, Work work) {
    DeviceArray from, to;
    ISOBIT_RETURN_IF_ERROR(from.write(x));
    ISOBIT_RETURN_IF_ERROR(to.allocate(y.size()));
    ISOBIT_RETURN_IF_ERROR(work(from.bytes(), to.bytes()));
    return to.read(y);
  }

  int index_;
  cudaDeviceProp properties_;
};

}  // namespace

Result<std::unique_ptr<Device>> open_cuda_device(int64_t index, const std::string& option) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver || (error == cudaSuccess && count == 0))
    return Status(StatusCode::kUnsupported,
                  "--device " + option + ": this machine has 0 CUDA devices" +
                      (error == cudaSuccess ? "" : std::string(": ") + cudaGetErrorString(error)));
  ISOBIT_RETURN_IF_ERROR(cuda_status(error, "--device " + option));
  if (index >= count)
    return Status(StatusCode::kInvalidArgument, "--device " + option + ": this machine has " +
                                                    count_text(count, "CUDA device") + ", numbered from 0");
  const int device = static_cast<int>(index);
  cudaDeviceProp properties{};
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDeviceProperties(&properties, device), "--device " + option));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(device), "--device " + option));
  ISOBIT_RETURN_IF_ERROR(prefixed("--device " + option + ": ", cuda::DeviceGru::check_device()));
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(device, properties));
}

bool built_with_cuda() { return true; }

}  // namespace isobit::tool
