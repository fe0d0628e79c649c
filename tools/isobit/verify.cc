// SPDX-License-Identifier: Apache-2.0
#include "isobit/verify.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device.h"
#include "isobit/cpu.h"
#include "isobit/fp16_function.h"
#include "isobit/gru.h"
#include "isobit/nearest.h"
#include "models.h"
#include "progress.h"
#include "random.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

void store_code(std::vector<std::byte>& codes, Dtype dtype, size_t index, int64_t code) {
  // Little-endian, as everywhere in isobit.
  const size_t size = size_in_bytes(dtype);
  std::memcpy(codes.data() + index * size, &code, size);
}

int64_t load_code(const std::vector<std::byte>& codes, const Grid& grid, size_t index) {
  const size_t size = size_in_bytes(grid.dtype());
  uint64_t raw = 0;
  std::memcpy(&raw, codes.data() + index * size, size);
  const auto unused = static_cast<int>(64 - 8 * size);
  return grid.is_signed ? static_cast<int64_t>(raw << unused) >> unused : static_cast<int64_t>(raw);
}

/// Codes over the whole input grid; every fourth sequence holds its two ends only.
std::vector<std::byte> random_codes(Random& random, const Grid& grid, int64_t steps, int64_t batch, int64_t channels) {
  std::vector<std::byte> codes(static_cast<size_t>(steps * batch * channels) * size_in_bytes(grid.dtype()));
  size_t index = 0;
  for (int64_t t = 0; t < steps; ++t) {
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t code =
            n % 4 == 3 ? (random.between(0, 1) == 0 ? grid.min() : grid.max()) : random.between(grid.min(), grid.max());
        store_code(codes, grid.dtype(), index++, code);
      }
    }
  }
  return codes;
}

/// Somebody who runs a model and is compared with the reference.
struct ModelKernel {
  /// Whether it takes a run of this size.
  std::function<bool(int64_t batch, int64_t steps)> can_run;
  std::function<Status(const std::byte* x, std::byte* y, int64_t steps, GruState& state)> run;
};

ModelKernel path_kernel(const GruModel& model, CpuPath path) {
  const auto run = [&model, path](const std::byte* x, std::byte* y, int64_t steps, GruState& state) {
    GruWorkspace workspace = model.workspace(state.batch(), steps);
    GruRunOptions options;
    options.path = path;
    options.whole_sequence = true;
    return model.forward_codes(x, y, steps, state, workspace, options);
  };
  return {[](int64_t, int64_t) { return true; }, run};
}

ModelKernel device_kernel(DeviceGru& gru, const std::string& name) {
  return {[&gru, name](int64_t batch, int64_t steps) { return gru.choose_kernel(batch, steps, name).ok(); },
          [&gru, name](const std::byte* x, std::byte* y, int64_t steps, GruState& state) {
            return gru.forward_codes(x, y, steps, state, name);
          }};
}

/// Runs codes through one kernel; `state` receives every layer's last state.
Status run_codes(const GruModel& model, const ModelKernel& kernel, const std::vector<std::byte>& x, int64_t steps,
                 int64_t batch, std::vector<std::byte>& y, GruState& state) {
  y.assign(static_cast<size_t>(steps * batch * model.output_size()) * size_in_bytes(model.output_grid().dtype()), {});
  state = model.initial_state(batch);
  return kernel.run(x.data(), y.data(), steps, state);
}

void compare_outputs(const GruModel& model, const std::vector<std::byte>& wanted, const std::vector<std::byte>& got,
                     const GruState& wanted_state, const GruState& got_state, int64_t batch, uint64_t seed,
                     VerifyKernel& kernel) {
  const Grid& grid = model.output_grid();
  const size_t size = size_in_bytes(grid.dtype());
  const auto width = static_cast<size_t>(model.output_size());
  kernel.bytes_compared += wanted.size();
  for (size_t i = 0; i < wanted.size() / size; ++i) {
    ++kernel.outputs_compared;
    if (std::memcmp(wanted.data() + i * size, got.data() + i * size, size) == 0) continue;
    ++kernel.different;
    if (!kernel.first_difference.empty()) continue;
    const size_t row = i / width;
    kernel.first_difference =
        format("step %zu, sequence %zu of %lld, unit %zu: reference %lld, %s %lld (seed %llu)",
               row / static_cast<size_t>(batch), row % static_cast<size_t>(batch), static_cast<long long>(batch),
               i % width, static_cast<long long>(load_code(wanted, grid, i)), kernel.name.c_str(),
               static_cast<long long>(load_code(got, grid, i)), static_cast<unsigned long long>(seed));
  }
  for (int64_t layer = 0; layer < wanted_state.layer_count(); ++layer) {
    const auto a = wanted_state.layer(layer), b = got_state.layer(layer);
    if (std::equal(a.begin(), a.end(), b.begin(), b.end())) continue;
    ++kernel.different;
    if (kernel.first_difference.empty()) {
      kernel.first_difference = "the last state of " + layer_label(layer, model.parameters().directions) +
                                " differs (seed " + std::to_string(seed) + ")";
    }
  }
}

/// The kernels that compute this model, of the CPU or of a device, on random codes of its input grid.
Result<VerifyReport> verify_model(const VerifyOptions& options, const GruModel& model, const Device* device,
                                  Progress& progress) {
  VerifyReport report;
  std::vector<ModelKernel> kernels;
  const auto add = [&](const std::string& name, ModelKernel kernel) {
    kernels.push_back(std::move(kernel));
    report.kernels.emplace_back();
    report.kernels.back().name = name;
  };
  std::unique_ptr<DeviceGru> device_gru;
  if (device != nullptr) {
    ISOBIT_ASSIGN_OR_RETURN(device_gru, device->gru(model));
    for (const DeviceKernel& kernel : device->kernels())
      if (kernel.operation == "gru") add("cuda_" + kernel.name, device_kernel(*device_gru, kernel.name));
  } else {
    for (const CpuPath path : kAllCpuPaths)
      if (path != CpuPath::kReference && cpu_can_run(path) && model.supports(path).ok())
        add(std::string(to_string(path)), path_kernel(model, path));
  }
  if (kernels.empty()) return report;
  const ModelKernel reference = path_kernel(model, CpuPath::kReference);
  // Batches around the widths of the kernels' tiles.
  constexpr int64_t kBatches[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33};
  uint64_t compared = 0;
  for (uint64_t round = 0; compared < options.outputs; ++round) {
    const uint64_t seed = options.seed + round;
    Random random(seed);
    const int64_t batch = kBatches[round % std::size(kBatches)];
    const int64_t steps = 1 + static_cast<int64_t>(round % 13);
    const auto x = random_codes(random, model.input_grid(), steps, batch, model.input_size());
    std::vector<std::byte> wanted, got;
    GruState wanted_state, got_state;
    ISOBIT_RETURN_IF_ERROR(run_codes(model, reference, x, steps, batch, wanted, wanted_state));
    for (size_t i = 0; i < kernels.size(); ++i) {
      if (!kernels[i].can_run(batch, steps)) continue;
      ISOBIT_RETURN_IF_ERROR(run_codes(model, kernels[i], x, steps, batch, got, got_state));
      compare_outputs(model, wanted, got, wanted_state, got_state, batch, seed, report.kernels[i]);
    }
    compared += static_cast<uint64_t>(steps * batch * model.output_size());
    progress.update(static_cast<double>(compared) / static_cast<double>(options.outputs));
  }
  return report;
}

/// Whether `name` is the path, or holds it as a word: "gru_s8_avx2" is of the path avx2.
bool names_path(std::string_view name, std::string_view path) {
  for (size_t at = name.find(path); at != std::string_view::npos; at = name.find(path, at + 1)) {
    const auto is_word = [&](size_t i) { return i < name.size() && std::isalnum(static_cast<unsigned char>(name[i])); };
    if ((at == 0 || !is_word(at - 1)) && !is_word(at + path.size())) return true;
  }
  return false;
}

/// Whether FP16 tables have a kernel of this path; a GRU has one of every path.
bool has_table_kernel(std::string_view path) {
  const auto kernels = fp16_kernels();
  return std::any_of(kernels.begin(), kernels.end(), [&](const Fp16Kernel& k) { return to_string(k.path) == path; });
}

/// What ISOBIT_REQUIRE names and was not compared. nvcc is a compiler, which other tests look after; paths of the CPU
/// are not asked for where a device is verified.
std::vector<std::string> missing_paths(const VerifyReport& report, bool tables, bool on_device) {
  std::vector<std::string> missing;
  const char* required = std::getenv("ISOBIT_REQUIRE");
  std::string_view rest = required ? required : "";
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view path = rest.substr(0, comma);
    rest.remove_prefix(std::min(rest.size(), comma + 1));
    if (path.empty() || path == "nvcc" || path == to_string(CpuPath::kReference)) continue;
    if (on_device && cpu_path_from_string(path)) continue;
    if (tables && cpu_path_from_string(path) && !has_table_kernel(path)) continue;
    const bool compared = std::any_of(report.kernels.begin(), report.kernels.end(), [&](const VerifyKernel& kernel) {
      return kernel.outputs_compared > 0 && names_path(kernel.name, path);
    });
    if (!compared) missing.emplace_back(path);
  }
  return missing;
}

}  // namespace

Result<Outcome> verify(const VerifyOptions& options) {
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device));
  VerifyReport report;
  std::vector<std::string> missing;
  {
    Progress progress("verifying", options.quiet);
    const auto update = [](void* context, double fraction) { static_cast<Progress*>(context)->update(fraction); };
    const auto append = [&](const VerifyReport& part, bool tables) {
      report.kernels.insert(report.kernels.end(), part.kernels.begin(), part.kernels.end());
      report.expected_by.insert(report.expected_by.end(), part.expected_by.begin(), part.expected_by.end());
      for (std::string& path : missing_paths(part, tables, device != nullptr))
        if (std::find(missing.begin(), missing.end(), path) == missing.end()) missing.push_back(std::move(path));
    };
    if (!options.model.empty()) {
      ISOBIT_ASSIGN_OR_RETURN(const GruModel model, load_integer_model(options.model, options.layer));
      ISOBIT_ASSIGN_OR_RETURN(const VerifyReport part, verify_model(options, model, device.get(), progress));
      append(part, false);
    } else {
      const bool all = options.operation.empty();
      if (!all && options.operation != "gru" && options.operation != "fp16_table" && options.operation != "linear")
        return Status(StatusCode::kInvalidArgument,
                      "--operation " + options.operation + ": " +
                          expected_one_of(options.operation, {"gru", "fp16_table", "linear"}) +
                          "; softmax belongs to fp16_table");
      if (options.operation == "linear" && device)
        return Status(StatusCode::kUnsupported, "--operation linear: has no kernels on a device");
      if (all || options.operation == "gru") {
        ISOBIT_ASSIGN_OR_RETURN(const VerifyReport part,
                                device ? device->verify_gru(options.outputs, options.seed, update, &progress)
                                       : verify_gru(options.outputs, options.seed, update, &progress));
        append(part, false);
      }
      if (all || options.operation == "fp16_table") {
        ISOBIT_ASSIGN_OR_RETURN(const VerifyReport part,
                                device ? device->verify_fp16(options.outputs, options.seed, update, &progress)
                                       : verify_fp16(options.outputs, options.seed, update, &progress));
        append(part, true);
      }
      if ((all && !device) || options.operation == "linear") {
        ISOBIT_ASSIGN_OR_RETURN(const VerifyReport part,
                                verify_linear(options.outputs, options.seed, update, &progress));
        append(part, false);
      }
    }
  }

  Outcome out;
  uint64_t compared = 0, bytes = 0, different = 0;
  std::string first;
  Value kernels = Value::array();
  for (const VerifyKernel& kernel : report.kernels) {
    compared += kernel.outputs_compared;
    bytes += kernel.bytes_compared;
    different += kernel.different;
    if (kernel.different > 0 && first.empty()) first = kernel.name + ": " + kernel.first_difference;
    Value entry = Value::object();
    entry.set("name", kernel.name).set("outputs_compared", kernel.outputs_compared);
    entry.set("bytes_compared", kernel.bytes_compared).set("different", kernel.different);
    if (kernel.different > 0) entry.set("first_difference", kernel.first_difference);
    kernels.add(std::move(entry));
    out.text += format("%-30s %14llu outputs compared, %llu bytes, %llu different\n", kernel.name.c_str(),
                       static_cast<unsigned long long>(kernel.outputs_compared),
                       static_cast<unsigned long long>(kernel.bytes_compared),
                       static_cast<unsigned long long>(kernel.different));
  }
  out.json.set("outputs_compared", compared).set("bytes_compared", bytes).set("different", different);
  out.json.set("kernels", std::move(kernels));
  // Of the rest, it was the reference itself.
  uint64_t by_path = 0;
  std::string others;
  Value expected_by = Value::object();
  for (const auto& [name, outputs] : report.expected_by) {
    if (name == to_string(CpuPath::kReference)) continue;
    by_path += outputs;
    expected_by.set(name, outputs);
    others +=
        format(", %llu with %s of the CPU, which equals it", static_cast<unsigned long long>(outputs), name.c_str());
  }
  expected_by.set(std::string(to_string(CpuPath::kReference)), compared - by_path);
  out.json.set("expected_by", std::move(expected_by));
  if (device) out.json.set("device", options.device);
  out.text +=
      format("all%s: %llu outputs compared with the reference%s, %llu different\n",
             device ? (" on " + device->text()).c_str() : "", static_cast<unsigned long long>(compared - by_path),
             others.c_str(), static_cast<unsigned long long>(different));

  if (different > 0) out.failure = first;
  Value missing_json = Value::array();
  for (const std::string& path : missing) {
    missing_json.add(path);
    const auto known = cpu_path_from_string(path);
    const std::string reason = !known                 ? "no such path"
                               : !cpu_can_run(*known) ? std::string(cpu_cannot_run_reason(*known))
                                                      : "nothing here runs on it";
    if (!out.failure.empty()) out.failure += "\n";
    out.failure += format("ISOBIT_REQUIRE names %s, which was not compared: %s", path.c_str(), reason.c_str());
  }
  if (!missing.empty()) out.json.set("missing", std::move(missing_json));
  return out;
}

Result<Outcome> fingerprint(const FingerprintOptions& options) {
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device));
  ISOBIT_ASSIGN_OR_RETURN(const auto path, parse_kernel(device ? "" : options.kernel));
  ISOBIT_ASSIGN_OR_RETURN(const auto hashes, device ? device->fingerprint(options.kernel) : fingerprint_all(path));
  Outcome out;
  Value json = Value::object();
  for (const auto& [operation, hash] : hashes) {
    json.set(operation, hash);
    out.text += format("%s %s\n", operation.c_str(), hash.c_str());
  }
  out.json.set("fingerprints", std::move(json));
  return out;
}

}  // namespace isobit::tool
