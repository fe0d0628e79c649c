// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/gru.h"
#include "bench/random.h"
#include "device.h"
#include "isobit/cpu.h"
#include "isobit/gru.h"
#include "isobit/nearest.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr int64_t kMaxSize = 1 << 14;
constexpr int64_t kMaxSteps = 1'000'000;
constexpr double kSlowestChoice = 1.25;                // of the fastest kernel's time
constexpr std::string_view kTwoStates = "two-states";  // a value of --mode
constexpr std::string_view kModes[] = {"sequence", "streaming", kTwoStates};

/// What every operation has.
Status check_common(const BenchOptions& options) {
  if (options.all_kernels && !options.kernel.empty())
    return bad_option("--all-kernels and --kernel " + options.kernel.front() + ": expected one of them");
  if (!(options.min_time >= 0 && options.min_time <= 3600))
    return bad_option(format("--min-time %g: expected 0 to 3600 seconds", options.min_time));
  return {};
}

Status check_gru(const BenchOptions& options, bool on_device) {
  if (options.operation != "gru") {
    return bad_option("bench " + options.operation + ": no such operation; " +
                      expected_one_of(options.operation, {"gru", "linear", "table"}));
  }
  for (const int64_t hidden : options.hidden) ISOBIT_RETURN_IF_ERROR(check_range("--hidden", hidden, 1, kMaxSize));
  for (const int64_t batch : options.batch) ISOBIT_RETURN_IF_ERROR(check_range("--batch", batch, 1, kMaxSize));
  if (options.input != 0) ISOBIT_RETURN_IF_ERROR(check_range("--input", options.input, 1, kMaxSize));
  ISOBIT_RETURN_IF_ERROR(check_range("--steps", options.steps, 1, kMaxSteps));
  for (const std::string& mode : options.mode) {
    if (mode == "sequence" || mode == "streaming" || (mode == kTwoStates && on_device)) continue;
    return bad_option("--mode " + mode + ": expected sequence or streaming, or with --device cuda " +
                      std::string(kTwoStates) + nearest_hint(mode, kModes));
  }
  return {};
}

struct Case {
  int64_t batch = 1;
  int64_t steps = 1;
  bool streaming = false;   // a call a step
  bool two_states = false;  // streaming on a device
};

/// A time for wrong bytes is worth nothing: the first steps are compared with what the CPU computes.
Status check_output_bytes(const DeviceGru& gru, const GruModel& model, int64_t batch, int64_t steps,
                          const std::string& kernel) {
  steps = std::min<int64_t>(steps, 4);
  const auto x = bench::Random(7).vector(steps * batch * model.input_size(), 2.0f);
  std::vector<float> wanted(static_cast<size_t>(steps * batch * model.output_size())), got(wanted.size());
  GruState state = model.initial_state(batch), device_state = state;
  Workspace workspace = model.workspace(batch, steps);
  isobit::RunOptions options;
  options.whole_sequence = true;
  ISOBIT_RETURN_IF_ERROR(model.forward(x, wanted, steps, state, workspace, options));
  ISOBIT_ASSIGN_OR_RETURN(Workspace on_device, gru.workspace(batch, steps));
  options.kernel = kernel;
  ISOBIT_RETURN_IF_ERROR(gru.forward(std::as_bytes(std::span(x)), Dtype::kF32, std::as_writable_bytes(std::span(got)),
                                     Dtype::kF32, steps, device_state, on_device, options));
  if (std::memcmp(wanted.data(), got.data(), wanted.size() * sizeof(float)) == 0) return {};
  return {StatusCode::kFailedPrecondition,
          "kernel " + kernel + " gives other bytes than the CPU; isobit verify --device says where"};
}

std::string case_name(const BenchOptions& options, int64_t input, int64_t hidden, const Case& c,
                      const std::string& mode, const std::string& kernel) {
  return format("gru/C%lld/H%lld/N%lld/%s/%s/%s", static_cast<long long>(input), static_cast<long long>(hidden),
                static_cast<long long>(c.batch), mode.c_str(), options.bits.c_str(), kernel.c_str());
}

Value case_json(const BenchOptions& options, const std::string& name, int64_t input, int64_t hidden, const Case& c,
                const std::string& mode, const std::string& kernel, double us) {
  Value entry = Value::object();
  entry.set("name", name).set("C", input).set("H", hidden).set("N", c.batch).set("T", options.steps);
  entry.set("mode", mode).set("kernel", kernel).set("bits", options.bits).set("us_per_step", us);
  return entry;
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
    ISOBIT_RETURN_IF_ERROR(check_output_bytes(gru, model, c.batch, steps, kernel));
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
    ISOBIT_ASSIGN_OR_RETURN(const GruModel model, bench::random_gru(input, hidden, options.bits));
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
          const std::string name = case_name(options, input, hidden, c, mode, time.kernel);
          Value entry = case_json(options, name, input, hidden, c, mode, time.kernel, time.us);
          cases.add(std::move(entry.set("chosen", is_chosen).set("of_fastest", ratio)));
          out.text += format("%-48s %12.3f  %.3f%s\n", name.c_str(), time.us, ratio, is_chosen ? ", chosen" : "");
          if (options.all_kernels && is_chosen) add_slow_choice(name, ratio, fastest.kernel, out);
        }
        progress.update(static_cast<double>(++done) / static_cast<double>(total));
      }
    }
  }
  out.json.set("device", device.json()).set("cases", std::move(cases));
  return out;
}

}  // namespace

void add_slow_choice(const std::string& name, double ratio, const std::string& fastest, Outcome& out) {
  if (ratio <= kSlowestChoice) return;
  if (!out.failure.empty()) out.failure += "\n";
  out.failure += format("%s is chosen and takes %.3f times as long as %s", name.c_str(), ratio, fastest.c_str());
}

Result<Outcome> bench(const BenchOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_common(options));
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device));
  if (options.operation == "table") {
    if (device) return refuse_on_device(options.device, "bench table", "scripts/bench.sh --cuda table times them");
    return bench_table(options);
  }
  if (options.operation == "linear") {
    if (device) return refuse_on_device(options.device, "bench linear", "it times the kernels of this processor");
    return bench_linear(options);
  }
  ISOBIT_RETURN_IF_ERROR(check_gru(options, device != nullptr));
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
    ISOBIT_ASSIGN_OR_RETURN(const GruModel model, bench::random_gru(input, hidden, options.bits));
    for (const int64_t batch : options.batch) {
      for (const std::string& mode : options.mode) {
        for (const auto& request : requested) {
          const Case c{.batch = batch, .steps = options.steps, .streaming = mode == "streaming"};
          ISOBIT_ASSIGN_OR_RETURN(const CpuPath path, model.choose_path(request));
          ISOBIT_ASSIGN_OR_RETURN(const double us,
                                  bench::time_gru(model, {batch, c.steps, c.streaming, path}, options.min_time));
          const std::string kernel(to_string(path));
          const std::string name = case_name(options, input, hidden, c, mode, kernel);
          cases.add(case_json(options, name, input, hidden, c, mode, kernel, us));
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
