// SPDX-License-Identifier: Apache-2.0
// isobit verify, fingerprint, supported.
#include "isobit/verify.h"

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "isobit/cpu.h"
#include "isobit/gru.h"
#include "isobit/report.h"
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

/// What a device computes; files and dtypes are no business of it.
Outcome supported_by(const Device& device) {
  Outcome out;
  out.json = device.json();
  out.text = device.text() + "\nkernels\n";
  Value kernels = Value::array();
  for (const DeviceKernel& kernel : device.kernels()) {
    Value entry = Value::object();
    entry.set("operation", kernel.operation).set("name", kernel.name).set("what", kernel.what);
    kernels.add(std::move(entry));
    out.text += format("  %-16s %-12s %s\n", kernel.operation.c_str(), kernel.name.c_str(), kernel.what.c_str());
  }
  out.json.set("kernels", std::move(kernels));
  return out;
}

}  // namespace

Result<Outcome> verify(const VerifyOptions& options) {
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device));
  ISOBIT_ASSIGN_OR_RETURN(const VerifyReport report, report_of(options, device.get()));
  Outcome out = Outcome().add(describe_verification(report, device ? device->text() : ""));
  if (device) out.json.set("device", options.device);
  out.failure = failure_text(report);
  return out;
}

Result<Outcome> fingerprint(const FingerprintOptions& options) {
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device));
  ISOBIT_ASSIGN_OR_RETURN(const auto path, parse_kernel(device ? "" : options.kernel));
  ISOBIT_ASSIGN_OR_RETURN(const auto hashes, device ? device->fingerprint(options.kernel) : fingerprint_all(path));
  return Outcome().add(describe_fingerprints(hashes));
}

Result<Outcome> supported(const DeviceOptions& options) {
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device));
  if (device) return supported_by(*device);
  Outcome out = Outcome().add(describe_support());
  const bool cuda = built_with_cuda();
  out.text += std::string("CUDA\n  ") + (cuda ? "built; --device cuda lists what the device runs\n" : "not built\n");
  out.json.set("cuda_built", cuda);
  return out;
}

}  // namespace isobit::tool
