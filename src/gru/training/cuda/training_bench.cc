// SPDX-License-Identifier: Apache-2.0
// Times the float32 forward and backward of a GRU of one layer on a device, captured in CUDA graphs. One JSON object a
// line: for each line of standard input one measurement, so that rivals can be timed in turn.
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/random.h"
#include "isobit/cuda/gru_training.h"
#include "testing/cuda_timer.h"

namespace {

using isobit::testing::check_cuda;
using isobit::testing::device_memory;
using isobit::testing::DeviceMemory;
using isobit::testing::required;

/// Floats on the device, uniform in +-limit.
struct Floats {
  DeviceMemory memory;
  size_t count;

  Floats(isobit::Random& random, int64_t size, float limit)
      : memory(device_memory(static_cast<size_t>(size) * sizeof(float))), count(static_cast<size_t>(size)) {
    std::vector<float> values(count);
    for (float& v : values) v = static_cast<float>(random.between(-1 << 20, 1 << 20)) * 0x1p-20f * limit;
    check_cuda(cudaMemcpy(memory.get(), values.data(), count * sizeof(float), cudaMemcpyHostToDevice), "floats");
  }
  [[nodiscard]] std::span<float> span() const { return {reinterpret_cast<float*>(memory.get()), count}; }
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Times the forward and backward of a GRU in floats on a device; a measurement for each line of input."};
  isobit::GruTrainingSizes sizes;
  std::string kernel;
  int repeats = 21;
  app.add_option("--steps", sizes.steps, "T")->required();
  app.add_option("--batch", sizes.batch, "N")->required();
  app.add_option("--inputs", sizes.input_size, "C")->required();
  app.add_option("--hidden", sizes.hidden_size, "H")->required();
  app.add_option("--kernel", kernel, "team or steps; default: what fits");
  app.add_option("--repeats", repeats, "replays of a graph, at least");
  CLI11_PARSE(app, argc, argv);

  const auto gru = required(isobit::cuda::DeviceGruTraining::create(sizes, "gru"));
  const int64_t rows = sizes.steps * sizes.batch, C = sizes.input_size, H = sizes.hidden_size;
  isobit::Random random(1);
  const Floats W(random, 3 * H * C, 0.1f), R(random, 3 * H * H, 0.1f), bias(random, 3 * H, 0.1f);
  const Floats x(random, rows * C, 1.0f), dy(random, rows * H, 1.0f), y(random, rows * H, 0), dx(random, rows * C, 0);
  const Floats saved(random, gru.saved_size(), 0), dW(random, 3 * H * C, 0), dR(random, 3 * H * H, 0);
  const Floats dbw(random, 3 * H, 0), dbr(random, 3 * H, 0);
  const DeviceMemory memory = device_memory(static_cast<size_t>(gru.workspace_bytes()));
  const std::span<std::byte> workspace(memory.get(), static_cast<size_t>(gru.workspace_bytes()));
  const isobit::GruTrainingWeights weights[] = {{W.span(), R.span(), bias.span(), bias.span()}};
  const isobit::GruTrainingGradients gradients[] = {{dW.span(), dR.span(), dbw.span(), dbr.span()}};
  const auto forward = [&](cudaStream_t stream) {
    required(
        gru.forward(weights, x.span(), y.span(), saved.span(), workspace, {}, {.kernel = kernel, .stream = stream}));
  };
  const auto backward = [&](cudaStream_t stream) {
    required(gru.backward(weights, x.span(), y.span(), saved.span(), dy.span(), dx.span(), gradients, workspace, {},
                          {.kernel = kernel, .stream = stream}));
  };
  const auto both = [&](cudaStream_t stream) {
    forward(stream);
    backward(stream);
  };
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::ordered_json result{{"us", isobit::testing::median_microseconds(both, repeats)},
                                        {"forward_us", isobit::testing::median_microseconds(forward, repeats)},
                                        {"kernel", kernel.empty() ? std::string(gru.kernel_name()) : kernel}};
    std::cout << result.dump() << std::endl;
  }
  return 0;
}
