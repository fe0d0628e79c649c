// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "device.h"
#include "isobit/report.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

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
