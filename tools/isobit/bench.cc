// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device.h"
#include "isobit/cpu.h"
#include "isobit/gru.h"
#include "isobit/nearest.h"
#include "models.h"
#include "progress.h"
#include "random.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr int64_t kMaxSize = 1 << 14;
constexpr int64_t kMaxSteps = 1'000'000;
constexpr size_t kMinRepeats = 5;
constexpr double kSlowestChoice = 1.05;                // of the fastest kernel's time
constexpr std::string_view kTwoStates = "two-states";  // a value of --mode
constexpr std::string_view kModes[] = {"sequence", "streaming", kTwoStates};
constexpr int64_t kCalibrationSteps = 32, kCalibrationBatch = 8;

Status check_range(const char* option, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return {StatusCode::kInvalidArgument, format("%s %lld: expected %lld to %lld", option, static_cast<long long>(value),
                                               static_cast<long long>(low), static_cast<long long>(high))};
}

Status check(const BenchOptions& options, bool on_device) {
  if (options.operation != "gru") {
    return {StatusCode::kInvalidArgument, "bench " + options.operation + ": no such operation; " +
                                              expected_one_of(options.operation, {"gru", "linear", "table"})};
  }
  for (const int64_t hidden : options.hidden) ISOBIT_RETURN_IF_ERROR(check_range("--hidden", hidden, 1, kMaxSize));
  for (const int64_t batch : options.batch) ISOBIT_RETURN_IF_ERROR(check_range("--batch", batch, 1, kMaxSize));
  if (options.all_kernels && !options.kernel.empty())
    return {StatusCode::kInvalidArgument,
            "--all-kernels and --kernel " + options.kernel.front() + ": expected one of them"};
  if (options.input != 0) ISOBIT_RETURN_IF_ERROR(check_range("--input", options.input, 1, kMaxSize));
  ISOBIT_RETURN_IF_ERROR(check_range("--steps", options.steps, 1, kMaxSteps));
  for (const std::string& mode : options.mode) {
    if (mode == "sequence" || mode == "streaming" || (mode == kTwoStates && on_device)) continue;
    return {StatusCode::kInvalidArgument, "--mode " + mode +
                                              ": expected sequence or streaming, or with --device cuda " +
                                              std::string(kTwoStates) + nearest_hint(mode, kModes)};
  }
  if (!(options.min_time >= 0 && options.min_time <= 3600)) {
    return {StatusCode::kInvalidArgument, format("--min-time %g: expected 0 to 3600 seconds", options.min_time)};
  }
  return {};
}

/// Weights as PyTorch initialises them, uniform in +-1/sqrt(H), calibrated on uniform data.
Result<GruModel> random_model(int64_t input, int64_t hidden, const std::string& bits) {
  Random random(static_cast<uint64_t>(input * 1'000'003 + hidden));
  const float limit = 1.0f / std::sqrt(static_cast<float>(hidden));
  GruLayerWeights layer;
  layer.input_size = input;
  layer.hidden_size = hidden;
  layer.W = random.vector(3 * hidden * input, limit);
  layer.R = random.vector(3 * hidden * hidden, limit);
  layer.bw = random.vector(3 * hidden, limit);
  layer.br = random.vector(3 * hidden, limit);
  GruWeights weights;
  weights.name = "bench";
  weights.layers.push_back(std::move(layer));
  GruQuantization quantization;
  ISOBIT_RETURN_IF_ERROR(apply_bits(bits, quantization));
  ISOBIT_ASSIGN_OR_RETURN(GruCalibrator calibrator, GruCalibrator::create(std::move(weights)));
  const auto x = random.vector(kCalibrationSteps * kCalibrationBatch * input, 2.0f);
  ISOBIT_RETURN_IF_ERROR(calibrator.observe(x, kCalibrationSteps, kCalibrationBatch));
  return calibrator.finish(quantization);
}

struct Case {
  int64_t batch = 1;
  int64_t steps = 1;
  bool streaming = false;
  bool two_states = false;  // streaming on a device
  CpuPath path = CpuPath::kReference;
};

/// T steps, in one call or in one call a step.
Status run_once(const GruModel& model, const Case& c, std::span<const float> x, std::span<float> y, GruState& state,
                GruWorkspace& workspace) {
  GruRunOptions options;
  options.path = c.path;
  options.whole_sequence = true;
  if (!c.streaming) return model.forward(x, y, c.steps, state, workspace, options);
  const auto in_row = static_cast<size_t>(c.batch * model.input_size());
  const auto out_row = static_cast<size_t>(c.batch * model.output_size());
  for (size_t t = 0; t < static_cast<size_t>(c.steps); ++t) {
    ISOBIT_RETURN_IF_ERROR(
        model.forward(x.subspan(t * in_row, in_row), y.subspan(t * out_row, out_row), 1, state, workspace, options));
  }
  return {};
}

/// A time for wrong bytes is worth nothing: the first steps are compared with the reference.
Status check_output_bytes(const GruModel& model, Case c, std::span<const float> x) {
  c.steps = std::min<int64_t>(c.steps, 4);
  const auto inputs = static_cast<size_t>(c.steps * c.batch * model.input_size());
  std::vector<float> outputs[2];
  const CpuPath paths[2] = {CpuPath::kReference, c.path};
  for (int i = 0; i < 2; ++i) {
    c.path = paths[i];
    outputs[i].resize(static_cast<size_t>(c.steps * c.batch * model.output_size()));
    GruState state = model.initial_state(c.batch);
    GruWorkspace workspace = model.workspace(c.batch, c.streaming ? 1 : c.steps);
    ISOBIT_RETURN_IF_ERROR(run_once(model, c, x.first(inputs), outputs[i], state, workspace));
  }
  if (std::memcmp(outputs[0].data(), outputs[1].data(), outputs[0].size() * sizeof(float)) == 0) return {};
  return {StatusCode::kFailedPrecondition, "kernel " + std::string(to_string(paths[1])) +
                                               " gives other bytes than the reference; isobit verify says where"};
}

/// The same for a kernel of a device, of which the CPU's default path is the measure.
Status check_output_bytes(DeviceGru& gru, const GruModel& model, Case c, int64_t steps, const std::string& kernel) {
  Random random(7);
  c.steps = std::min<int64_t>(steps, 4);
  ISOBIT_ASSIGN_OR_RETURN(c.path, model.choose_path(std::nullopt));
  const auto x = random.vector(c.steps * c.batch * model.input_size(), 2.0f);
  std::vector<float> wanted(static_cast<size_t>(c.steps * c.batch * model.output_size())), got(wanted.size());
  GruState state = model.initial_state(c.batch), device_state = state;
  GruWorkspace workspace = model.workspace(c.batch, c.steps);
  c.streaming = false;
  ISOBIT_RETURN_IF_ERROR(run_once(model, c, x, wanted, state, workspace));
  ISOBIT_RETURN_IF_ERROR(gru.forward(x, got, c.steps, device_state, kernel));
  if (std::memcmp(wanted.data(), got.data(), wanted.size() * sizeof(float)) == 0) return {};
  return {StatusCode::kFailedPrecondition,
          "kernel " + kernel + " gives other bytes than the CPU; isobit verify --device says where"};
}

/// One kernel of a device at one size.
struct DeviceTime {
  std::string kernel;
  double us = 0;
};

/// Those that were asked for, or every one that can run it, or the chosen one.
Result<std::vector<DeviceTime>> measure_on_device(const BenchOptions& options, const Device& device, DeviceGru& gru,
                                                  const GruModel& model, const Case& c, const std::string& chosen) {
  const int64_t steps = c.streaming ? 1 : c.steps;  // a call
  std::vector<std::string> kernels = options.kernel;
  if (options.all_kernels) {
    for (const DeviceKernel& kernel : device.kernels())
      if (kernel.operation == "gru" && gru.choose_kernel(c.batch, steps, kernel.name).ok())
        kernels.push_back(kernel.name);
  } else if (kernels.empty()) {
    kernels.push_back(chosen);
  }
  std::vector<DeviceTime> times;
  for (const std::string& kernel : kernels) {
    ISOBIT_RETURN_IF_ERROR(check_output_bytes(gru, model, c, steps, kernel));
    ISOBIT_ASSIGN_OR_RETURN(const double us, gru.microseconds(c.batch, steps, c.streaming ? c.steps : 1, c.two_states,
                                                              kernel, options.min_time));
    times.push_back({kernel, us / static_cast<double>(c.steps)});
  }
  return times;
}

/// bench gru on a device: medians of graph replays; with --all-kernels, whether the choice is a good one.
Result<Outcome> bench_device(const BenchOptions& options, const Device& device) {
  Outcome out;
  out.text = device.text() + "\n" + format("%-48s %12s  %s\n", "case", "us per step", "of the fastest");
  Value cases = Value::array();
  Progress progress("measuring", options.quiet);
  const size_t total = options.hidden.size() * options.batch.size() * options.mode.size();
  size_t done = 0;
  for (const int64_t hidden : options.hidden) {
    const int64_t input = options.input > 0 ? options.input : hidden;
    ISOBIT_ASSIGN_OR_RETURN(const GruModel model, random_model(input, hidden, options.bits));
    ISOBIT_ASSIGN_OR_RETURN(const auto gru, device.gru(model));
    for (const int64_t batch : options.batch) {
      for (const std::string& mode : options.mode) {
        const bool two_states = mode == kTwoStates;
        const Case c{batch, options.steps, two_states || mode == "streaming", two_states};
        ISOBIT_ASSIGN_OR_RETURN(const std::string chosen,
                                gru->choose_kernel(batch, c.streaming ? 1 : c.steps, "", two_states));
        ISOBIT_ASSIGN_OR_RETURN(const auto times, measure_on_device(options, device, *gru, model, c, chosen));
        const auto by_time = [](const DeviceTime& a, const DeviceTime& b) { return a.us < b.us; };
        const DeviceTime& fastest = *std::min_element(times.begin(), times.end(), by_time);
        for (const DeviceTime& time : times) {
          const bool is_chosen = time.kernel == chosen;
          const double ratio = time.us / fastest.us;
          const std::string name =
              format("gru/C%lld/H%lld/N%lld/%s/%s/%s", static_cast<long long>(input), static_cast<long long>(hidden),
                     static_cast<long long>(batch), mode.c_str(), options.bits.c_str(), time.kernel.c_str());
          Value entry = Value::object();
          entry.set("name", name).set("C", input).set("H", hidden).set("N", batch).set("T", options.steps);
          entry.set("mode", mode).set("kernel", time.kernel).set("bits", options.bits).set("us_per_step", time.us);
          entry.set("chosen", is_chosen).set("of_fastest", ratio);
          cases.add(std::move(entry));
          out.text += format("%-48s %12.3f  %.3f%s\n", name.c_str(), time.us, ratio, is_chosen ? ", chosen" : "");
          if (!options.all_kernels || !is_chosen || ratio <= kSlowestChoice) continue;
          if (!out.failure.empty()) out.failure += "\n";
          out.failure +=
              format("%s is chosen and takes %.3f times as long as %s", name.c_str(), ratio, fastest.kernel.c_str());
        }
        progress.update(static_cast<double>(++done) / static_cast<double>(total));
      }
    }
  }
  out.json.set("device", device.json()).set("cases", std::move(cases));
  return out;
}

/// Median microseconds a step, one thread.
Result<double> measure(const GruModel& model, const Case& c, double min_time) {
  Random random(7);
  const auto x = random.vector(c.steps * c.batch * model.input_size(), 2.0f);
  std::vector<float> y(static_cast<size_t>(c.steps * c.batch * model.output_size()));
  ISOBIT_RETURN_IF_ERROR(check_output_bytes(model, c, x));
  GruState state = model.initial_state(c.batch);
  GruWorkspace workspace = model.workspace(c.batch, c.streaming ? 1 : c.steps);
  ISOBIT_RETURN_IF_ERROR(run_once(model, c, x, y, state, workspace));
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    ISOBIT_RETURN_IF_ERROR(run_once(model, c, x, y, state, workspace));
    const std::chrono::duration<double, std::micro> elapsed = Clock::now() - start;
    times.push_back(elapsed.count() / static_cast<double>(c.steps));
  } while (times.size() < kMinRepeats || std::chrono::duration<double>(Clock::now() - begin).count() < min_time);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

Result<Outcome> bench(const BenchOptions& options) {
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device));
  if (options.operation == "table") {
    if (device) return refuse_on_device(options.device, "bench table", "scripts/bench.sh --cuda table times them");
    return bench_table(options);
  }
  if (options.operation == "linear") {
    if (device) return refuse_on_device(options.device, "bench linear", "it times the kernels of this processor");
    return bench_linear(options);
  }
  ISOBIT_RETURN_IF_ERROR(check(options, device != nullptr));
  if (device) return bench_device(options, *device);
  std::vector<std::optional<CpuPath>> requested;
  for (const CpuPath path : kAllCpuPaths)
    if (options.all_kernels && cpu_can_run(path)) requested.emplace_back(path);
  for (const std::string& kernel : options.kernel) {
    ISOBIT_ASSIGN_OR_RETURN(const auto path, parse_kernel(kernel));
    requested.push_back(path);
  }
  if (requested.empty()) requested.push_back(std::nullopt);

  Outcome out;
  out.text = format("%-48s %12s\n", "case", "us per step");
  Value cases = Value::array();
  Progress progress("measuring", options.quiet);
  const size_t total = options.hidden.size() * options.batch.size() * options.mode.size() * requested.size();
  size_t done = 0;
  for (const int64_t hidden : options.hidden) {
    const int64_t input = options.input > 0 ? options.input : hidden;
    ISOBIT_ASSIGN_OR_RETURN(const GruModel model, random_model(input, hidden, options.bits));
    for (const int64_t batch : options.batch) {
      for (const std::string& mode : options.mode) {
        for (const auto& request : requested) {
          Case c;
          c.batch = batch;
          c.steps = options.steps;
          c.streaming = mode == "streaming";
          ISOBIT_ASSIGN_OR_RETURN(c.path, model.choose_path(request));
          ISOBIT_ASSIGN_OR_RETURN(const double us, measure(model, c, options.min_time));
          const std::string kernel(to_string(c.path));
          const std::string name =
              format("gru/C%lld/H%lld/N%lld/%s/%s/%s", static_cast<long long>(input), static_cast<long long>(hidden),
                     static_cast<long long>(batch), mode.c_str(), options.bits.c_str(), kernel.c_str());
          Value entry = Value::object();
          entry.set("name", name).set("C", input).set("H", hidden).set("N", batch).set("T", options.steps);
          entry.set("mode", mode).set("kernel", kernel).set("bits", options.bits).set("us_per_step", us);
          cases.add(std::move(entry));
          out.text += format("%-48s %12.3f\n", name.c_str(), us);
          progress.update(static_cast<double>(++done) / static_cast<double>(total));
        }
      }
    }
  }
  out.json.set("cases", std::move(cases));
  return out;
}

}  // namespace isobit::tool
