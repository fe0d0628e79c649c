// SPDX-License-Identifier: Apache-2.0
#include "bench/linear_cuda.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bench/device_array.h"
#include "bench/linear_parts.h"
#include "isobit/cuda/linear.h"
#include "isobit/cuda/timer.h"

namespace isobit::bench {
namespace {

using DeviceLayer = std::variant<cuda::DeviceLinear, cuda::DeviceStaticLinear>;

constexpr int64_t kMostCopies = 64;
constexpr int64_t kCallsOfAGraph = 100;  // so many that its start does not count
constexpr int kMinReplays = 5;

/// A copy of the packed weights of its own.
Result<DeviceLayer> layer_on_device(const LinearWeights& weights, const Layer& reference, int device) {
  const LinearProblem& problem = weights.problem();
  if (problem.is_static()) {
    ISOBIT_ASSIGN_OR_RETURN(auto layer,
                            cuda::DeviceStaticLinear::create(std::get<StaticLinearLayer>(reference), device));
    return DeviceLayer(std::move(layer));
  }
  const LinearOptions options{.activations = *linear_activations_from_string(problem.activations)};
  ISOBIT_ASSIGN_OR_RETURN(auto layer, cuda::DeviceLinear::create(weights.matrix(), options, problem.name(), device));
  return DeviceLayer(std::move(layer));
}

int64_t size_of(const DeviceLayer& layer) {
  return std::visit([](const auto& some) { return some.size_bytes(); }, layer);
}

class DeviceLinearBench : public LinearBench {
 public:
  DeviceLinearBench(LinearProblem problem, Layer reference, std::vector<DeviceLayer> copies)
      : problem_(std::move(problem)), reference_(std::move(reference)), copies_(std::move(copies)) {}

  [[nodiscard]] std::string chosen_kernel(int64_t m) const override {
    return std::visit([m](const auto& layer) { return std::string(layer.kernel_name(m)); }, copies_.front());
  }
  Result<std::vector<LinearTime>> time(int64_t m, double min_time) override {
    const std::string kernel = chosen_kernel(m);
    LinearRows rows(problem_, y_dtype_of(reference_), m);
    DeviceArray x, y, workspace;
    ISOBIT_RETURN_IF_ERROR(x.write(rows.x));
    ISOBIT_RETURN_IF_ERROR(y.allocate(rows.y.size()));
    ISOBIT_RETURN_IF_ERROR(workspace.allocate(
        static_cast<size_t>(std::visit([m](const auto& layer) { return layer.workspace_bytes(m); }, copies_.front()))));
    const Dtype x_dtype = x_dtype_of(reference_), y_dtype = y_dtype_of(reference_);
    const auto call = [&](const DeviceLayer& some, cudaStream_t stream) {
      return std::visit(
          [&](const auto& layer) {
            return layer.forward(x.bytes(), x_dtype, y.bytes(), y_dtype, m, workspace.bytes(), {.stream = stream});
          },
          some);
    };
    ISOBIT_RETURN_IF_ERROR(call(copies_.front(), nullptr));
    ISOBIT_RETURN_IF_ERROR(y.read(rows.y));
    ISOBIT_RETURN_IF_ERROR(check_linear_results(problem_, reference_, kernel, rows));

    const int64_t rounds = std::max<int64_t>(1, kCallsOfAGraph / std::ssize(copies_));
    const auto work = [&](cudaStream_t stream) -> Status {
      for (int64_t round = 0; round < rounds; ++round)
        for (const DeviceLayer& layer : copies_) ISOBIT_RETURN_IF_ERROR(call(layer, stream));
      return {};
    };
    ISOBIT_ASSIGN_OR_RETURN(const double us,
                            cuda::median_microseconds(work, {.min_replays = kMinReplays, .min_seconds = min_time}));
    return std::vector{LinearTime{.kernel = kernel,
                                  .y_dtype = y_dtype,
                                  .seconds = us * 1e-6 / static_cast<double>(rounds * std::ssize(copies_)),
                                  .weight_bytes = size_of(copies_.front()),
                                  .copies = std::ssize(copies_)}};
  }

 private:
  LinearProblem problem_;
  Layer reference_;
  std::vector<DeviceLayer> copies_;
};

}  // namespace

Result<std::unique_ptr<LinearBench>> linear_bench_on_device(const LinearProblem& problem, int device,
                                                            int64_t footprint) {
  ISOBIT_ASSIGN_OR_RETURN(const LinearWeights weights, LinearWeights::create(problem));
  ISOBIT_ASSIGN_OR_RETURN(Layer reference, weights.layer(CpuPath::kReference));
  std::vector<DeviceLayer> copies;
  do {
    Result<DeviceLayer> copy = layer_on_device(weights, reference, device);
    if (!copy.ok()) return copy.status();
    copies.push_back(*std::move(copy));
  } while (std::ssize(copies) < kMostCopies && std::ssize(copies) * size_of(copies.front()) < footprint);
  return std::unique_ptr<LinearBench>(
      std::make_unique<DeviceLinearBench>(problem, std::move(reference), std::move(copies)));
}

}  // namespace isobit::bench
