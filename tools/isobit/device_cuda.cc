// SPDX-License-Identifier: Apache-2.0
// --device in a tool that was built with CUDA: isobit::cuda behind the interface of device.h.
#include <cuda_runtime_api.h>

#include <utility>

#include "bench/device_array.h"
#include "bench/gru_cuda.h"
#include "bench/linear_cuda.h"
#include "device.h"
#include "isobit/cuda/compare.h"
#include "isobit/cuda/conv.h"
#include "isobit/cuda/fp16_table.h"
#include "isobit/cuda/gru.h"
#include "isobit/cuda/linear.h"
#include "isobit/cuda/verify.h"
#include "text.h"

namespace isobit::tool {
namespace {

using bench::cuda_status;
using bench::DeviceArray;

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
  Result<double> microseconds(const bench::DeviceGruCase& c) override { return bench::time_gru(gru_, c); }

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
    Value out = Value::object();
    out.set("device", "cuda:" + std::to_string(index_)).set("name", properties_.name);
    out.set("compute_capability", format("%d.%d", properties_.major, properties_.minor));
    return out.set("multiprocessors", properties_.multiProcessorCount).set("memory_bytes", properties_.totalGlobalMem);
  }
  [[nodiscard]] std::vector<DeviceKernel> kernels() const override {
    std::vector<DeviceKernel> list;
    for (const cuda::DeviceGruKernel& kernel : cuda::gru_kernels())
      list.push_back({"gru", std::string(kernel.name), std::string(kernel.what)});
    for (const auto& rows : {cuda::linear_kernels(), cuda::conv_kernels()})
      for (const cuda::DeviceLinearKernel& kernel : rows)
        list.push_back({std::string(kernel.operation), std::string(kernel.name), std::string(kernel.what)});
    list.push_back({"fp16_table", "direct", "any function: a look-up among 65536 results, f16, bf16, f32 in and out"});
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
  Result<std::string> forward(const LowBitMatrix& matrix, const LinearOptions& options, const std::string& name,
                              std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                              int64_t m) const override {
    ISOBIT_ASSIGN_OR_RETURN(const auto on_device, cuda::DeviceLinear::create(matrix, options, name, index_));
    ISOBIT_RETURN_IF_ERROR(rows_through_device(on_device, x, x_dtype, y, y_dtype, m));
    return std::string(on_device.kernel_name(m));
  }
  Result<std::string> forward(const StaticLinearLayer& layer, std::span<const std::byte> x, std::span<std::byte> y,
                              int64_t m) const override {
    ISOBIT_ASSIGN_OR_RETURN(const auto on_device, cuda::DeviceStaticLinear::create(layer, index_));
    ISOBIT_RETURN_IF_ERROR(
        rows_through_device(on_device, x, layer.parameters().x_dtype(), y, layer.parameters().y_dtype(), m));
    return std::string(on_device.kernel_name(m));
  }
  [[nodiscard]] int64_t footprint() const override { return bench::kCacheMultiple * properties_.l2CacheSize; }
  [[nodiscard]] Result<std::unique_ptr<bench::LinearBench>> linear_bench(const bench::LinearProblem& problem,
                                                                         int64_t footprint) const override {
    return bench::linear_bench_on_device(problem, index_, footprint);
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
  template <typename Layer>
  static Status rows_through_device(const Layer& layer, std::span<const std::byte> x, Dtype x_dtype,
                                    std::span<std::byte> y, Dtype y_dtype, int64_t m) {
    DeviceArray workspace;
    ISOBIT_RETURN_IF_ERROR(workspace.allocate(static_cast<size_t>(layer.workspace_bytes(m))));
    return through_device(x, y, [&](auto from, auto to) -> Status {
      ISOBIT_RETURN_IF_ERROR(layer.forward(from, x_dtype, to, y_dtype, m, workspace.bytes()));
      return layer.check_input(workspace.bytes(), m, nullptr);
    });
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
