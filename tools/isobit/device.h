// SPDX-License-Identifier: Apache-2.0
// --device: what the verbs ask of a CUDA device. device_cuda.cc answers where the tool was built with CUDA, and
// device_none.cc says how to build it where not; nothing else of the tool knows which one is linked.
#ifndef ISOBIT_TOOLS_DEVICE_H_
#define ISOBIT_TOOLS_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/gru.h"
#include "bench/linear.h"
#include "isobit/compare.h"
#include "isobit/fp16_function.h"
#include "isobit/gru.h"
#include "isobit/linear.h"
#include "isobit/status.h"
#include "isobit/verify.h"
#include "value.h"

namespace isobit::tool {

/// isobit::cuda::DeviceGru, which a tool without CUDA does not link.
class DeviceGru {
 public:
  virtual ~DeviceGru() = default;
  /// The kernel of a run, and why it, or another that was asked for, cannot run. codes_with_next_state: that of
  /// isobit::cuda::DeviceGru::choose_kernel.
  [[nodiscard]] virtual Result<std::string> choose_kernel(int64_t batch, int64_t steps, const std::string& kernel,
                                                          bool codes_with_next_state = false) const = 0;
  /// isobit::cuda::DeviceGru's of arrays on the host.
  [[nodiscard]] virtual Result<Workspace> workspace(int64_t batch, int64_t steps) const = 0;
  virtual Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                         int64_t steps, GruState& state, Workspace& workspace,
                         const isobit::RunOptions& options) const = 0;
  /// bench/gru_cuda.h.
  virtual Result<double> microseconds(const bench::DeviceGruCase& c) = 0;
};

struct DeviceKernel {
  std::string operation;
  std::string name;
  std::string what;
};

class Device {
 public:
  virtual ~Device() = default;
  /// "cuda:0 (NVIDIA H200)".
  [[nodiscard]] virtual std::string text() const = 0;
  [[nodiscard]] virtual Value json() const = 0;
  /// Those of the GRU in the order in which they are considered.
  [[nodiscard]] virtual std::vector<DeviceKernel> kernels() const = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<DeviceGru>> gru(const GruModel& model) const = 0;
  /// isobit/cuda/compare.h.
  [[nodiscard]] virtual Result<std::unique_ptr<GruCodeSource>> code_source(const GruModel& model) const = 0;
  virtual Status forward(const Fp16Function& function, std::span<const std::byte> x, Dtype x_dtype,
                         std::span<std::byte> y, Dtype y_dtype) const = 0;
  virtual Status forward(const Fp16Softmax& softmax, std::span<const std::byte> x, Dtype x_dtype,
                         std::span<std::byte> y, Dtype y_dtype, int64_t columns) const = 0;
  /// One layer on m rows, and its kernel; refused as by LinearLayer and StaticLinearLayer.
  virtual Result<std::string> forward(const LowBitMatrix& matrix, const LinearOptions& options, const std::string& name,
                                      std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y,
                                      Dtype y_dtype, int64_t m) const = 0;
  virtual Result<std::string> forward(const StaticLinearLayer& layer, std::span<const std::byte> x,
                                      std::span<std::byte> y, int64_t m) const = 0;
  /// bench/linear_cuda.h, and what default_footprint() is there.
  [[nodiscard]] virtual Result<std::unique_ptr<bench::LinearBench>> linear_bench(const bench::LinearProblem& problem,
                                                                                 int64_t footprint) const = 0;
  [[nodiscard]] virtual int64_t footprint() const = 0;
  /// isobit/cuda/verify.h.
  [[nodiscard]] virtual Result<VerifyReport> verify(const isobit::VerifyOptions& options) const = 0;
  [[nodiscard]] virtual Result<VerifyReport> verify(const GruModel& model,
                                                    const isobit::VerifyOptions& options) const = 0;
  [[nodiscard]] virtual Result<Fingerprints> fingerprint(const std::string& kernel) const = 0;
};

/// The value of --device: null for "cpu", the device for "cuda" (number 0) and "cuda:N".
Result<std::unique_ptr<Device>> open_device(const std::string& option);
/// The same for a verb with --threads, of which the CPU alone has others than 1.
Result<std::unique_ptr<Device>> open_device(const std::string& option, int threads);

/// For verbs whose --option means something on the CPU only.
Status refuse_on_device(const std::string& device, const std::string& option, const std::string& instead);

/// device_cuda.cc or device_none.cc. `option`: as typed, for messages.
Result<std::unique_ptr<Device>> open_cuda_device(int64_t index, const std::string& option);
bool built_with_cuda();

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_DEVICE_H_
