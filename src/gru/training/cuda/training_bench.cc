// SPDX-License-Identifier: Apache-2.0
// Times the forward and backward of a GRU of one layer on a device, captured in CUDA graphs: in float32, or of integers
// that the weights become in each step. One JSON object a line: for each line of standard input one measurement, so
// that rivals can be timed in turn.
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/random.h"
#include "isobit/cuda/gru_qat.h"
#include "isobit/cuda/gru_training.h"
#include "testing/cuda_timer.h"

namespace {

using isobit::testing::check_cuda;
using isobit::testing::device_memory;
using isobit::testing::DeviceMemory;
using isobit::testing::required;

/// Floats on the device, uniform in +-limit.
struct Floats {
  std::vector<float> values;
  DeviceMemory memory;

  Floats(isobit::Random& random, int64_t size, float limit)
      : values(static_cast<size_t>(size)), memory(device_memory(values.size() * sizeof(float))) {
    for (float& v : values) v = static_cast<float>(random.between(-1 << 20, 1 << 20)) * 0x1p-20f * limit;
    check_cuda(cudaMemcpy(memory.get(), values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice),
               "floats");
  }
  [[nodiscard]] std::span<float> span() const { return {reinterpret_cast<float*>(memory.get()), values.size()}; }
};
struct Bytes {
  DeviceMemory memory;
  std::span<std::byte> span;
  explicit Bytes(int64_t size)
      : memory(device_memory(static_cast<size_t>(size))), span(memory.get(), static_cast<size_t>(size)) {}
};

/// What is timed, both of the same arrays.
struct Call {
  std::vector<isobit::GruTrainingWeights> weights;
  std::vector<isobit::GruTrainingGradients> gradients;
  std::span<float> x, y, dy, dx;
  std::string kernel;
};
struct Timed {
  std::function<void(cudaStream_t)> forward, backward;
  std::string kernel;
};

Timed of_floats(const isobit::GruTrainingSizes& sizes, const Call& call) {
  const auto gru = required(isobit::cuda::DeviceGruTraining::create(sizes, "gru"));
  const auto saved = std::make_shared<Bytes>(gru.saved_size() * static_cast<int64_t>(sizeof(float)));
  const auto workspace = std::make_shared<Bytes>(gru.workspace_bytes());
  const std::span<float> kept(reinterpret_cast<float*>(saved->memory.get()), static_cast<size_t>(gru.saved_size()));
  return {[=](cudaStream_t stream) {
            (void)saved;
            required(gru.forward(call.weights, call.x, call.y, kept, workspace->span, {},
                                 {.kernel = call.kernel, .stream = stream}));
          },
          [=](cudaStream_t stream) {
            required(gru.backward(call.weights, call.x, call.y, kept, call.dy, call.dx, call.gradients, workspace->span,
                                  {}, {.kernel = call.kernel, .stream = stream}));
          },
          call.kernel.empty() ? std::string(gru.kernel_name()) : call.kernel};
}

Timed of_integers(const isobit::GruTrainingSizes& sizes, const Call& call, const isobit::GruWeights& weights,
                  std::span<const float> x, const std::string& bits, isobit::ScaleKind scale) {
  isobit::GruQuantization quantization;
  quantization.scale = scale;
  required(isobit::apply_bits(bits, quantization));
  auto calibrator = required(isobit::GruCalibrator::create(weights));
  constexpr int64_t kSteps = 8, kBatch = 8;
  required(calibrator.observe(x.first(static_cast<size_t>(kSteps * kBatch * sizes.input_size)), kSteps, kBatch));
  const auto gru =
      required(isobit::cuda::DeviceGruQat::create(required(calibrator.finish(quantization)), quantization, "gru"));
  const auto saved = std::make_shared<Bytes>(gru.saved_bytes(sizes.steps, sizes.batch));
  const auto workspace = std::make_shared<Bytes>(gru.workspace_bytes(sizes.steps, sizes.batch));
  return {[=](cudaStream_t stream) {
            required(gru.forward(call.weights, call.x, sizes.steps, sizes.batch, call.y, saved->span, workspace->span,
                                 {}, {.kernel = call.kernel, .stream = stream}));
          },
          [=](cudaStream_t stream) {
            required(gru.backward(sizes.steps, sizes.batch, saved->span, call.dy, call.dx, call.gradients,
                                  workspace->span, {}, {.kernel = call.kernel, .stream = stream}));
          },
          call.kernel.empty() ? std::string(gru.kernel_name()) : call.kernel};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Times the forward and backward of a GRU on a device; a measurement for each line of input."};
  isobit::GruTrainingSizes sizes;
  std::string kernel, bits, scale = "pow2";
  int repeats = 21;
  app.add_option("--steps", sizes.steps, "T")->required();
  app.add_option("--batch", sizes.batch, "N")->required();
  app.add_option("--inputs", sizes.input_size, "C")->required();
  app.add_option("--hidden", sizes.hidden_size, "H")->required();
  app.add_option("--kernel", kernel, "team or steps; default: what fits");
  app.add_option("--bits", bits, "quantisation-aware, with these widths; default: in floats");
  app.add_option("--scale", scale, "pow2 or real")->check(CLI::IsMember({"pow2", "real"}));
  app.add_option("--repeats", repeats, "replays of a graph, at least");
  CLI11_PARSE(app, argc, argv);

  const int64_t rows = sizes.steps * sizes.batch, C = sizes.input_size, H = sizes.hidden_size;
  isobit::Random random(1);
  const Floats W(random, 3 * H * C, 0.1f), R(random, 3 * H * H, 0.1f), bias(random, 3 * H, 0.1f);
  const Floats x(random, rows * C, 1.0f), dy(random, rows * H, 1.0f), y(random, rows * H, 0), dx(random, rows * C, 0);
  const Floats dW(random, 3 * H * C, 0), dR(random, 3 * H * H, 0), dbw(random, 3 * H, 0), dbr(random, 3 * H, 0);
  const Call call{{{W.span(), R.span(), bias.span(), bias.span()}},
                  {{dW.span(), dR.span(), dbw.span(), dbr.span()}},
                  x.span(),
                  y.span(),
                  dy.span(),
                  dx.span(),
                  kernel};
  isobit::GruWeights weights;
  weights.layers.push_back({C, H, W.values, R.values, bias.values, bias.values});
  const Timed timed =
      bits.empty() ? of_floats(sizes, call)
                   : of_integers(sizes, call, weights, x.values, bits, isobit::scale_kind_from_string(scale).value());
  const auto both = [&](cudaStream_t stream) {
    timed.forward(stream);
    timed.backward(stream);
  };
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::ordered_json result{{"us", isobit::testing::median_microseconds(both, repeats)},
                                        {"forward_us", isobit::testing::median_microseconds(timed.forward, repeats)},
                                        {"kernel", timed.kernel}};
    std::cout << result.dump() << std::endl;
  }
  return 0;
}
