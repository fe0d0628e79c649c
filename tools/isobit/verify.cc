// SPDX-License-Identifier: Apache-2.0
#include "isobit/verify.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "device.h"
#include "isobit/cpu.h"
#include "isobit/gru.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

/// What ISOBIT_REQUIRE names; nvcc is a compiler, which other tests look after.
std::vector<std::string> required_paths() {
  const char* const names = std::getenv("ISOBIT_REQUIRE");
  std::vector<std::string> paths = split_list(names != nullptr ? names : "");
  std::erase_if(paths, [](const std::string& path) { return path.empty() || path == "nvcc"; });
  return paths;
}

Result<VerifyReport> report_of(const VerifyOptions& options, const Device* device) {
  Progress progress("verifying", options.quiet);
  isobit::VerifyOptions library;
  library.operation = options.operation;
  library.outputs = options.outputs;
  library.seed = options.seed;
  library.required = required_paths();
  library.progress = [&](double fraction) { progress.update(fraction); };
  if (!options.model.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(const GruModel model, load_integer_model(options.model, options.layer));
    return device != nullptr ? device->verify(model, library) : verify_model(model, library);
  }
  auto report = device != nullptr ? device->verify(library) : verify_kernels(library);
  if (report.ok() || report.status().code() != StatusCode::kInvalidArgument) return report;
  return Status(report.status().code(), "--" + report.status().message());  // "operation ..."
}

}  // namespace

Result<Outcome> verify(const VerifyOptions& options) {
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device));
  ISOBIT_ASSIGN_OR_RETURN(const VerifyReport report, report_of(options, device.get()));
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
  uint64_t by_path = 0;
  std::string others;
  Value expected_by = Value::object();
  for (const auto& [name, outputs] : report.expected_by) {
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
  for (const std::string& path : report.missing) {
    missing_json.add(path);
    const auto known = cpu_path_from_string(path);
    const std::string reason = !known                 ? "no such path"
                               : !cpu_can_run(*known) ? std::string(cpu_cannot_run_reason(*known))
                                                      : "nothing here runs on it";
    if (!out.failure.empty()) out.failure += "\n";
    out.failure += format("ISOBIT_REQUIRE names %s, which was not compared: %s", path.c_str(), reason.c_str());
  }
  if (!report.missing.empty()) out.json.set("missing", std::move(missing_json));
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
