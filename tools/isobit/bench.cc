// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/conv.h"
#include "bench/gru.h"
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
                      expected_one_of(options.operation, {"gru", "linear", "conv", "table"}));
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

/// One size, and how its steps are called.
struct Case {
  int64_t input = 1, hidden = 1, batch = 1, steps = 1;
  std::string mode;

  [[nodiscard]] bool two_states() const { return mode == kTwoStates; }
  [[nodiscard]] bool streaming() const { return mode != "sequence"; }
  [[nodiscard]] int64_t steps_a_call() const { return streaming() ? 1 : steps; }
};

/// One kernel of a case.
struct KernelTime {
  std::string kernel;
  double us = 0;  // a step
};

/// Those that were asked for, or every one that can run it, or the chosen one.
Result<std::vector<KernelTime>> measure_on_device(const BenchOptions& options, const Device& device, DeviceGru& gru,
                                                  const GruModel& model, const Case& c, const std::string& chosen) {
  const int64_t steps = c.steps_a_call();
  std::vector<std::string> kernels = options.kernel;
  if (options.all_kernels) {
    for (const DeviceKernel& kernel : device.kernels())
      if (kernel.operation == "gru" && gru.choose_kernel(c.batch, steps, kernel.name).ok())
        kernels.push_back(kernel.name);
  } else if (kernels.empty()) {
    kernels.push_back(chosen);
  }
  std::vector<KernelTime> times;
  for (const std::string& kernel : kernels) {
    const auto run = [&](std::span<const float> x, std::span<float> y, int64_t some, GruState& state) -> Status {
      ISOBIT_ASSIGN_OR_RETURN(Workspace workspace, gru.workspace(c.batch, some));
      isobit::RunOptions how;
      how.kernel = kernel;
      how.whole_sequence = true;
      return gru.forward(std::as_bytes(x), Dtype::kF32, std::as_writable_bytes(y), Dtype::kF32, some, state, workspace,
                         how);
    };
    ISOBIT_RETURN_IF_ERROR(bench::check_gru_bytes(model, c.batch, steps, kernel, run));
    ISOBIT_ASSIGN_OR_RETURN(
        const double us, gru.microseconds({c.batch, steps, c.steps / steps, c.two_states(), kernel, options.min_time}));
    times.push_back({kernel, us / static_cast<double>(c.steps)});
  }
  return times;
}

/// Paths that were asked for, or every one that can run here, or the model's choice.
Result<std::vector<std::optional<CpuPath>>> requested_paths(const BenchOptions& options) {
  std::vector<std::optional<CpuPath>> paths;
  for (const CpuPath path : kAllCpuPaths)
    if (options.all_kernels && cpu_can_run(path)) paths.emplace_back(path);
  for (const std::string& kernel : options.kernel) {
    ISOBIT_ASSIGN_OR_RETURN(const auto path, parse_kernel(kernel));
    paths.push_back(path);
  }
  if (paths.empty()) paths.push_back(std::nullopt);
  return paths;
}

Result<std::vector<KernelTime>> measure_on_cpu(const GruModel& model, const Case& c,
                                               const std::vector<std::optional<CpuPath>>& requested, double min_time) {
  std::vector<KernelTime> times;
  for (const auto& request : requested) {
    ISOBIT_ASSIGN_OR_RETURN(const CpuPath path, model.choose_path(request));
    ISOBIT_ASSIGN_OR_RETURN(const double us, bench::time_gru(model, {c.batch, c.steps, c.streaming(), path}, min_time));
    times.push_back({std::string(to_string(path)), us});
  }
  return times;
}

/// A line for each kernel. Where one is `chosen`, as on a device: with --all-kernels, whether the choice is a good one.
void add_times(const BenchOptions& options, const Case& c, const std::vector<KernelTime>& times,
               const std::string& chosen, Outcome& out, Value& cases) {
  const KernelTime& fastest = *std::min_element(times.begin(), times.end(),
                                                [](const KernelTime& a, const KernelTime& b) { return a.us < b.us; });
  for (const KernelTime& time : times) {
    const std::string name =
        format("gru/C%lld/H%lld/N%lld/%s/%s/%s", static_cast<long long>(c.input), static_cast<long long>(c.hidden),
               static_cast<long long>(c.batch), c.mode.c_str(), options.bits.c_str(), time.kernel.c_str());
    Value entry = Value::object();
    entry.set("name", name).set("C", c.input).set("H", c.hidden).set("N", c.batch).set("T", c.steps);
    entry.set("mode", c.mode).set("kernel", time.kernel).set("bits", options.bits).set("us_per_step", time.us);
    out.text += format("%-48s %12.3f", name.c_str(), time.us);
    if (!chosen.empty()) {
      const bool is_chosen = time.kernel == chosen;
      const double ratio = time.us / fastest.us;
      entry.set("chosen", is_chosen).set("of_fastest", ratio);
      out.text += format("  %.3f%s", ratio, is_chosen ? ", chosen" : "");
      if (options.all_kernels && is_chosen) add_slow_choice(name, ratio, fastest.kernel, out);
    }
    out.text += "\n";
    cases.add(std::move(entry));
  }
}

Result<Outcome> bench_conv(const BenchOptions& options) {
  for (const int64_t images : options.batch) ISOBIT_RETURN_IF_ERROR(check_range("--batch", images, 1, kMaxSize));
  Progress progress("measuring", options.quiet);
  bench::ConvBenchOptions how{.shapes = options.conv,
                              .images = options.batch,
                              .paths = {},
                              .all_kernels = options.all_kernels,
                              .min_time = options.min_time,
                              .progress = [&](double part) { progress.update(part); }};
  for (const std::string& kernel : options.kernel) {
    ISOBIT_ASSIGN_OR_RETURN(const auto path, parse_kernel(kernel));
    how.paths.push_back(path);
  }
  ISOBIT_ASSIGN_OR_RETURN(const Description description, bench::bench_conv(how));
  return Outcome().add(description);
}

}  // namespace

void add_slow_choice(const std::string& name, double ratio, const std::string& fastest, Outcome& out) {
  if (ratio <= kSlowestChoice) return;
  if (!out.failure.empty()) out.failure += "\n";
  out.failure += format("%s is chosen and takes %.3f times as long as %s", name.c_str(), ratio, fastest.c_str());
}

Result<Outcome> bench(const BenchOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_common(options));
  ISOBIT_ASSIGN_OR_RETURN(auto device, open_device(options.device));
  if (options.operation == "table") {
    if (device) return refuse_on_device(options.device, "bench table", "scripts/bench.sh --cuda table times them");
    return bench_table(options);
  }
  if (options.operation == "linear") return bench_linear(options, std::move(device));
  if (options.operation == "conv" && device)
    return refuse_on_device(options.device, "bench conv", "convolutions run on the CPU only");
  if (options.operation == "conv") return bench_conv(options);
  ISOBIT_RETURN_IF_ERROR(check_gru(options, device != nullptr));
  std::vector<std::optional<CpuPath>> requested;
  if (!device) {
    ISOBIT_ASSIGN_OR_RETURN(requested, requested_paths(options));
  }

  Outcome out;
  if (device) out.json.set("device", device->json());
  out.text = (device ? device->text() + "\n" : "") + format("%-48s %12s", "case", "us per step") +
             (device ? "  of the fastest\n" : "\n");
  Value cases = Value::array();
  Progress progress("measuring", options.quiet);
  const size_t total = options.hidden.size() * options.batch.size() * options.mode.size();
  double done = 0;
  for (const int64_t hidden : options.hidden) {
    const int64_t input = options.input > 0 ? options.input : hidden;
    ISOBIT_ASSIGN_OR_RETURN(const GruModel model, bench::random_gru(input, hidden, options.bits));
    std::unique_ptr<DeviceGru> gru;
    if (device) {
      ISOBIT_ASSIGN_OR_RETURN(gru, device->gru(model));
    }
    for (const int64_t batch : options.batch) {
      for (const std::string& mode : options.mode) {
        const Case c{.input = input, .hidden = hidden, .batch = batch, .steps = options.steps, .mode = mode};
        std::string chosen;
        if (gru) {
          ISOBIT_ASSIGN_OR_RETURN(chosen, gru->choose_kernel(batch, c.steps_a_call(), "", c.two_states()));
        }
        ISOBIT_ASSIGN_OR_RETURN(const auto times, gru ? measure_on_device(options, *device, *gru, model, c, chosen)
                                                      : measure_on_cpu(model, c, requested, options.min_time));
        add_times(options, c, times, chosen, out, cases);
        progress.update(++done / static_cast<double>(total));
      }
    }
  }
  out.json.set("cases", std::move(cases));
  return out;
}

}  // namespace isobit::tool
