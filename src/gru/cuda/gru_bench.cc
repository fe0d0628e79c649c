// SPDX-License-Identifier: Apache-2.0
// Times of integer GRUs on a device, C = H, one layer, codes in and out (with --floats: floats). One JSON object a
// line: T steps a call, `calls` of them in a graph, each going on from the state of the one before. T > 1: one call.
// T = 1, two states in turn (with --one-state: one, which each call reads and writes over, what takes a second launch):
// "same": every call is of one model, whose weights stay in the second-level cache; "rotating": of copies in turn, so
// that weights come from memory (without --same-weights). bench/gru_cuda.py puts rivals beside it. What was timed runs
// once more, and the first steps are compared with the CPU's bytes.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/random.h"
#include "isobit/cuda/gru.h"
#include "testing/cuda_timer.h"

namespace {

using isobit::Random;
using isobit::cuda::DeviceGru;
using isobit::testing::check_cuda;
using isobit::testing::required;

struct Options {
  std::vector<int64_t> hidden;
  std::vector<int64_t> batch;
  std::vector<std::string> bits = {"8"};
  int64_t steps = 256;
  int repeats = 11;
  bool sequences_only = false;
  bool calls_only = false;
  bool one_state = false;
  bool same_weights = false;
  bool floats = false;
};

/// `generic` takes milliseconds a step for such a layer: fewer steps and replays, and no rotation.
constexpr int64_t kSlowHidden = 512;
constexpr int64_t kSlowSteps = 16;
constexpr int kSlowRepeats = 5;
constexpr int64_t kCheckedSteps = 3;

/// Weights as PyTorch initialises them, uniform in +-1/sqrt(H), calibrated on uniform data.
isobit::GruCalibrator random_calibrator(int64_t size) {
  Random random(static_cast<uint64_t>(size));
  const auto uniform = [&](int64_t count, float limit) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = limit * static_cast<float>(random.between(-1'000'000, 1'000'000)) * 1e-6f;
    return values;
  };
  const float limit = 1.0f / std::sqrt(static_cast<float>(size));
  isobit::GruWeights weights;
  weights.name = "bench";
  weights.layers.push_back({size, size, uniform(3 * size * size, limit), uniform(3 * size * size, limit),
                            uniform(3 * size, limit), uniform(3 * size, limit)});
  auto calibrator = required(isobit::GruCalibrator::create(std::move(weights)));
  required(calibrator.observe(uniform(8 * 2 * size, 2.0f), 8, 2));
  return calibrator;
}

/// A model, and for one-step calls as many copies as it takes for their weights not to be found in the cache.
std::vector<DeviceGru> copies_of(const isobit::GruModel& model, bool one) {
  const isobit::GruLayerParameters& layer = model.parameters().layers[0];
  const auto bytes_of = [](const isobit::CodeMatrix& matrix) {
    return matrix.rows() * matrix.columns() * static_cast<int64_t>(size_in_bytes(matrix.dtype()));
  };
  std::vector<DeviceGru> copies;
  const int64_t count = one ? 1 : isobit::testing::blocks_beyond_cache(bytes_of(layer.W) + bytes_of(layer.R));
  for (int64_t i = count; i > 0; --i) copies.push_back(required(DeviceGru::create(model)));
  return copies;
}

class Bench {
 public:
  Bench(const Options& options, std::string bits, const isobit::GruModel& model)
      : options_(options),
        bits_(std::move(bits)),
        size_(model.hidden_size()),
        grus_(copies_of(model, options.sequences_only || options.same_weights)) {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, 0), "device");
    device_ = properties.name;
  }

  void time(int64_t batch) const {
    if (!options_.calls_only) time(batch, false, 1);
    if (options_.sequences_only) return;
    time(batch, true, 1);
    if (!options_.same_weights && !slow(batch, 1)) time(batch, true, grus_.size());
  }

 private:
  [[nodiscard]] bool two_states(int64_t call_steps) const { return call_steps == 1 && !options_.one_state; }
  [[nodiscard]] std::string kernel(int64_t batch, int64_t steps) const {
    return std::string(required(grus_[0].choose_kernel(batch, steps, {}, two_states(steps) && !options_.floats)));
  }
  [[nodiscard]] bool slow(int64_t batch, int64_t steps) const {
    return size_ >= kSlowHidden && kernel(batch, steps) == "generic";
  }

  /// `one_step`: calls of one step each, of the first `models` models in turn.
  void time(int64_t batch, bool one_step, size_t models) const {
    const bool is_slow = slow(batch, one_step ? 1 : options_.steps);
    const int64_t steps = is_slow ? std::min(kSlowSteps, options_.steps) : options_.steps;  // of x
    const int64_t call_steps = one_step ? 1 : steps;
    const int64_t calls = one_step ? std::max(steps, static_cast<int64_t>(models)) : 1;
    const size_t y_width = options_.floats ? 4 : size_in_bytes(grus_[0].model().output_grid().dtype());
    const auto elements = static_cast<size_t>(call_steps * batch * size_);
    const size_t x_bytes = elements * (options_.floats ? 4 : 1);
    const size_t y_bytes = elements * y_width;
    const auto count = static_cast<size_t>(steps / call_steps);
    const auto state_bytes = static_cast<size_t>(grus_[0].state_bytes(batch));
    const auto workspace_bytes = static_cast<size_t>(grus_[0].workspace_bytes(batch, call_steps));
    const auto x = isobit::testing::device_memory(count * x_bytes);
    const auto y = isobit::testing::device_memory(count * y_bytes);
    const std::shared_ptr<std::byte> states[2] = {isobit::testing::device_memory(state_bytes),
                                                  isobit::testing::device_memory(state_bytes)};
    const auto workspace = isobit::testing::device_memory(workspace_bytes);
    Random random(1);
    if (options_.floats) {
      std::vector<float> values(count * elements);
      for (float& value : values) value = static_cast<float>(random.between(-2'000'000, 2'000'000)) * 1e-6f;
      check_cuda(cudaMemcpy(x.get(), values.data(), count * x_bytes, cudaMemcpyHostToDevice), "x");
    } else {
      std::vector<uint64_t> codes((count * x_bytes + 7) / 8);
      for (uint64_t& eight : codes) eight = random.next();
      check_cuda(cudaMemcpy(x.get(), codes.data(), count * x_bytes, cudaMemcpyHostToDevice), "x");
    }
    required(grus_[0].initial_state({states[0].get(), state_bytes}, batch, nullptr));
    check_cuda(cudaDeviceSynchronize(), "state");
    const auto enqueue = [&](size_t call, cudaStream_t stream) {
      isobit::RunOptions run{.stream = stream, .whole_sequence = true};
      if (two_states(call_steps)) run.next_state = {states[1 - call % 2].get(), state_bytes};
      const DeviceGru& gru = grus_[call % models];
      std::byte* const in = x.get() + call % count * x_bytes;
      std::byte* const out = y.get() + call % count * y_bytes;
      const std::span<std::byte> state(states[two_states(call_steps) ? call % 2 : 0].get(), state_bytes);
      const std::span<std::byte> scratch(workspace.get(), workspace_bytes);
      required(options_.floats
                   ? gru.forward({reinterpret_cast<const float*>(in), elements},
                                 {reinterpret_cast<float*>(out), elements}, call_steps, batch, state, scratch, run)
                   : gru.forward_codes({in, x_bytes}, {out, y_bytes}, call_steps, batch, state, scratch, run));
    };
    const double us = isobit::testing::median_microseconds(
        [&](cudaStream_t stream) {
          for (size_t call = 0; call < static_cast<size_t>(calls); ++call) enqueue(call, stream);
        },
        is_slow ? kSlowRepeats : options_.repeats);
    required(grus_[0].initial_state({states[0].get(), state_bytes}, batch, nullptr));
    const int64_t checked = std::min(kCheckedSteps, steps);
    for (int64_t call = 0; call * call_steps < checked; ++call) enqueue(static_cast<size_t>(call), nullptr);
    check_cuda(cudaDeviceSynchronize(), "the checked run");
    check(x.get(), y.get(), checked, batch);
    nlohmann::ordered_json line = {{"device", device_}, {"H", size_},     {"N", batch},
                                   {"T", call_steps},   {"calls", calls}, {"bits", bits_}};
    line["entry"] = options_.floats ? "floats" : "codes";
    line["weights"] = models > 1 ? "rotating" : "same";
    line["kernel"] = kernel(batch, call_steps);
    line["us_per_step"] = us / static_cast<double>(calls * call_steps);
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }

  /// The first steps of y from the initial state on.
  void check(const std::byte* x, const std::byte* y, int64_t steps, int64_t batch) const {
    const isobit::GruModel& model = grus_[0].model();
    const auto elements = static_cast<size_t>(steps * batch * size_);
    const auto on_host = [&](const std::byte* from, size_t width) {
      std::vector<std::byte> bytes(elements * width);
      check_cuda(cudaMemcpy(bytes.data(), from, bytes.size(), cudaMemcpyDeviceToHost), "copying to the host");
      return bytes;
    };
    const size_t y_width = options_.floats ? 4 : size_in_bytes(model.output_grid().dtype());
    const std::vector<std::byte> in = on_host(x, options_.floats ? 4 : 1);
    std::vector<std::byte> expected(elements * y_width);
    isobit::GruState state = model.initial_state(batch);
    isobit::Workspace workspace = model.workspace(batch, steps);
    required(options_.floats
                 ? model.forward({reinterpret_cast<const float*>(in.data()), elements},
                                 {reinterpret_cast<float*>(expected.data()), elements}, steps, state, workspace)
                 : model.forward_codes(in, expected, steps, state, workspace));
    if (on_host(y, y_width) == expected) return;
    std::fprintf(stderr, "H %lld, N %lld, bits %s: y differs from the CPU's\n", static_cast<long long>(size_),
                 static_cast<long long>(batch), bits_.c_str());
    std::exit(1);
  }

  const Options& options_;
  std::string device_;
  std::string bits_;
  int64_t size_;
  std::vector<DeviceGru> grus_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times integer GRUs on the current CUDA device, C = H: whole sequences and one-step calls.");
  Options options;
  app.add_option("--hidden", options.hidden, "hidden units")->delimiter(',')->check(CLI::PositiveNumber)->required();
  app.add_option("--batch", options.batch, "sequences")->delimiter(',')->check(CLI::PositiveNumber)->required();
  app.add_option("--bits", options.bits, "widths of a model, as apply_bits reads them; one or more");
  app.add_option("--steps", options.steps, "of a sequence, and one-step calls in a graph")->check(CLI::Range(2, 65536));
  auto* const sequences = app.add_flag("--sequences-only", options.sequences_only, "no one-step calls");
  app.add_flag("--calls-only", options.calls_only, "one-step calls only")->excludes(sequences);
  app.add_flag("--one-state", options.one_state, "one-step calls that write over the state that they read");
  app.add_flag("--same-weights", options.same_weights, "no one-step calls of copies in turn, which take long to make");
  app.add_flag("--floats", options.floats, "x and y are floats, not codes");
  app.add_option("--repeats", options.repeats, "replays; the figure is their median")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  for (const int64_t size : options.hidden) {
    const isobit::GruCalibrator calibrator = random_calibrator(size);
    for (const std::string& bits : options.bits) {
      isobit::GruQuantization quantization;
      required(isobit::apply_bits(bits, quantization));
      if (quantization.tensors[isobit::kX].bits != 8) {
        std::fprintf(stderr, "--bits %s: x must have 8 bits, its codes are random bytes\n", bits.c_str());
        return 2;
      }
      const Bench bench(options, bits, required(calibrator.finish(quantization)));
      for (const int64_t batch : options.batch) bench.time(batch);
    }
  }
  return 0;
}
