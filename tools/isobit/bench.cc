// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/ceilings.h"
#include "bench/conv.h"
#include "bench/gru.h"
#include "bench/linear.h"
#include "bench/linear_runs.h"
#include "bench/report.h"
#include "bench/table.h"
#include "device.h"
#include "isobit/cpu.h"
#include "isobit/gru.h"
#include "isobit/linear.h"
#include "isobit/nearest.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr int64_t kMaxSize = 1 << 14;
constexpr int64_t kMaxSteps = 1'000'000;
constexpr int64_t kMaxElements = int64_t{1} << 28;
constexpr int64_t kMebibyte = int64_t{1} << 20;
constexpr int64_t kMaxFootprint = kMebibyte;  // MiB: a terabyte
constexpr std::string_view kModes[] = {"sequence", "streaming", bench::kTwoStates};

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
    if (mode == "sequence" || mode == "streaming" || (mode == bench::kTwoStates && on_device)) continue;
    return bad_option("--mode " + mode + ": expected sequence or streaming, or with --device cuda " +
                      std::string(bench::kTwoStates) + nearest_hint(mode, kModes));
  }
  return {};
}

/// Those that were asked for, or every one that can run it, or the chosen one.
Result<std::vector<bench::GruTime>> measure_on_device(const BenchOptions& options, const Device& device, DeviceGru& gru,
                                                      const GruModel& model, const bench::GruBenchCase& c,
                                                      const std::string& chosen) {
  const int64_t steps = c.steps_a_call();
  std::vector<std::string> kernels = options.kernel;
  if (options.all_kernels) {
    for (const DeviceKernel& kernel : device.kernels())
      if (kernel.operation == "gru" && gru.choose_kernel(c.batch, steps, kernel.name).ok())
        kernels.push_back(kernel.name);
  } else if (kernels.empty()) {
    kernels.push_back(chosen);
  }
  std::vector<bench::GruTime> times;
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
    ISOBIT_ASSIGN_OR_RETURN(paths.emplace_back(), parse_kernel(kernel));
  }
  if (paths.empty()) paths.push_back(std::nullopt);
  return paths;
}

Result<std::vector<bench::GruTime>> measure_on_cpu(const GruModel& model, const bench::GruBenchCase& c,
                                                   const std::vector<std::optional<CpuPath>>& requested,
                                                   double min_time) {
  std::vector<bench::GruTime> times;
  for (const auto& request : requested) {
    ISOBIT_ASSIGN_OR_RETURN(const CpuPath path, model.choose_path(request));
    ISOBIT_ASSIGN_OR_RETURN(const double us, bench::time_gru(model, {c.batch, c.steps, c.streaming(), path}, min_time));
    times.push_back({std::string(to_string(path)), us});
  }
  return times;
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
    ISOBIT_ASSIGN_OR_RETURN(how.paths.emplace_back(), parse_kernel(kernel));
  }
  ISOBIT_ASSIGN_OR_RETURN(const Description description, bench::bench_conv(how));
  return Outcome().add(description);
}

Result<Outcome> bench_table(const BenchOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_range("--elements", options.elements, 1, kMaxElements));
  Progress progress("measuring", options.quiet);
  bench::TableBenchOptions how{.tables = {},
                               .dtypes = options.dtype,
                               .kernels = options.kernel,
                               .all_kernels = options.all_kernels,
                               .elements = options.elements,
                               .min_time = options.min_time,
                               .progress = [&](double part) { progress.update(part); }};
  for (const std::string& function : options.function) {
    ISOBIT_ASSIGN_OR_RETURN(Fp16Table table, find_fp16_table(function, options.source));
    how.tables.push_back(std::move(table));
  }
  ISOBIT_ASSIGN_OR_RETURN(const Description description, bench::bench_table(how));
  return Outcome().add(description);
}

/// Of times on a device, or null: the CPU.
Outcome outcome_of(const bench::TimesReport& report, const Device* device) {
  Outcome out;
  if (device != nullptr) {
    out.json.set("device", device->json());
    out.text = device->text() + "\n";
  }
  out.add(report).failure = report.failure;
  return out;
}

/// Those that were asked for; with --all-kernels every one but the reference, which is a definition, no candidate.
Result<bench::LinearPaths> paths_of(const BenchOptions& options, const bench::LinearProblem& problem) {
  bench::LinearPaths out{.paths = {}, .skip_unsupported = options.all_kernels};
  for (const LinearLayerKernel& kernel : linear_layer_kernels())
    if (options.all_kernels && kernel.operation == problem.operation() && cpu_can_run(kernel.path) &&
        kernel.path != CpuPath::kReference)
      out.paths.emplace_back(kernel.path);
  for (const std::string& name : options.kernel) {
    ISOBIT_ASSIGN_OR_RETURN(out.paths.emplace_back(), parse_linear_kernel(name, problem.operation()));
  }
  if (out.paths.empty()) out.paths.emplace_back(std::nullopt);
  return out;
}

/// The runs, and where they are made.
struct Machine {
  std::shared_ptr<const Device> device;    // null: the CPU
  std::optional<ceilings::Memory> memory;  // of the CPU
  std::optional<bench::LinearRuns> runs{};
  bool quiet = false;
};

Result<Outcome> run_linear(const std::shared_ptr<Machine>& machine, bool repeat) {
  Progress progress("measuring", machine->quiet);
  ISOBIT_ASSIGN_OR_RETURN(const bench::TimesReport report,
                          machine->runs->run([&](double part) { progress.update(part); }));
  Outcome out = outcome_of(report, machine->device.get());
  if (repeat) out.again = [machine] { return run_linear(machine, true); };
  return out;
}

Result<Outcome> bench_linear(const BenchOptions& options, std::shared_ptr<const Device> device) {
  if (device && !options.kernel.empty())
    return refuse_on_device(options.device, "--kernel " + options.kernel.front(), "it chooses by the number of rows");
  ISOBIT_RETURN_IF_ERROR(check_range("--group", options.group, 0, bench::kMaxLinearSize));
  for (const int64_t m : options.m) ISOBIT_RETURN_IF_ERROR(check_range("--m", m, 1, bench::kMaxLinearSize));
  ISOBIT_RETURN_IF_ERROR(check_range("--footprint", options.footprint, 0, kMaxFootprint));
  int64_t footprint = options.footprint * kMebibyte;
  if (footprint == 0 && device) {
    footprint = device->footprint();
  } else if (footprint == 0) {
    ISOBIT_ASSIGN_OR_RETURN(footprint, bench::default_footprint());
  }
  std::vector<std::string> widths = split_list(options.bits);
  if (widths.empty()) widths.emplace_back();  // which is none
  std::vector<bench::LinearProblem> problems;
  for (const std::string& shape : options.shape)
    for (const std::string& bits : widths)
      for (const std::string& activations : options.activations) {
        ISOBIT_ASSIGN_OR_RETURN(bench::LinearProblem problem,
                                bench::LinearProblem::parse(shape, bits, activations, options.group));
        problems.push_back(std::move(problem));
      }
  const auto machine =
      std::make_shared<Machine>(Machine{.device = std::move(device), .memory = {}, .quiet = options.quiet});
  if (!machine->device) machine->memory.emplace(footprint);
  machine->runs.emplace(bench::LinearRunsOptions{
      .problems = std::move(problems),
      .m = options.m,
      .footprint = footprint,
      .min_time = options.min_time,
      .judge = options.all_kernels,
      .keep = options.repeat,
      .make = [options, footprint,
               to = machine.get()](const bench::LinearProblem& problem) -> Result<std::unique_ptr<bench::LinearBench>> {
        if (to->device) return to->device->linear_bench(problem, footprint);
        ISOBIT_ASSIGN_OR_RETURN(const bench::LinearPaths paths, paths_of(options, problem));
        return bench::linear_bench(problem, paths, footprint, *to->memory);
      }});
  return run_linear(machine, options.repeat);
}

}  // namespace

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

  bench::GruTimes all(device != nullptr);
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
        const bench::GruBenchCase c{.input = input,
                                    .hidden = hidden,
                                    .batch = batch,
                                    .steps = options.steps,
                                    .mode = mode,
                                    .bits = options.bits};
        std::string chosen;
        if (gru) {
          ISOBIT_ASSIGN_OR_RETURN(chosen, gru->choose_kernel(batch, c.steps_a_call(), "", c.two_states()));
        }
        ISOBIT_ASSIGN_OR_RETURN(const auto times, gru ? measure_on_device(options, *device, *gru, model, c, chosen)
                                                      : measure_on_cpu(model, c, requested, options.min_time));
        all.add(c, times, chosen, options.all_kernels);
        progress.update(++done / static_cast<double>(total));
      }
    }
  }
  return outcome_of(all.report(), device.get());
}

}  // namespace isobit::tool
