// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <string>

#include "device.h"
#include "isobit/cpu.h"
#include "isobit/dtype.h"
#include "isobit/fp16_function.h"
#include "isobit/linear.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

struct Entry {
  const char* name;
  const char* what;
};

constexpr Entry kOperations[] = {
    {"gru", "GRU layers, reset after the matrix product: any number of layers, one or two directions"},
    {"fp16_table",
     "elementwise functions by interpolation in a table of floats, float16, bfloat16 and float32 in and out"},
    {"fp16_softmax", "softmax over the last dimension from tables of e^x and 1/x"},
    {"linear_float", "linear layers of 1-, 2-, 4- and 8-bit weights, floating-point activations"},
    {"linear_int8", "the same, activations quantised to 8 bits on the fly: the same bytes everywhere"},
    {"linear_static", "linear layers of static codes, integers only"},
};
constexpr Entry kFiles[] = {
    {"npz", "float models, data, results"},
    {"npy", "data, results"},
    {"safetensors", "float models, integer models, FP16 tables, low-bit weights, GPTQ and AWQ checkpoints, data"},
    {"gguf", "tensors of F32 F16 BF16, Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL, TQ2_0; others are listed by inspect"},
};
constexpr Dtype kDtypes[] = {Dtype::kS8,  Dtype::kU8,  Dtype::kS16,  Dtype::kU16, Dtype::kS32, Dtype::kU32,
                             Dtype::kS64, Dtype::kF16, Dtype::kBF16, Dtype::kF32, Dtype::kF64};

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
  Outcome out;
  Value operations = Value::array(), dtypes = Value::array(), files = Value::array(), kernels = Value::array();
  out.text = "operations\n";
  for (const Entry& entry : kOperations) {
    operations.add(entry.name);
    out.text += format("  %-12s %s\n", entry.name, entry.what);
  }
  out.text += "dtypes\n ";
  for (const Dtype dtype : kDtypes) {
    dtypes.add(to_string(dtype));
    out.text += " " + std::string(to_string(dtype));
  }
  out.text += "\nfile types\n";
  for (const Entry& entry : kFiles) {
    files.add(entry.name);
    out.text += format("  %-12s %s\n", entry.name, entry.what);
  }
  // An ISOBIT_CPU that names nothing usable is worth saying here, not worth refusing to answer.
  const auto chosen = default_cpu_path();
  out.text += "kernels\n";
  for (const CpuPath path : kAllCpuPaths) {
    const std::string name(to_string(path));
    const bool usable = cpu_can_run(path);
    const std::string reason(cpu_cannot_run_reason(path));
    const bool built = usable || !reason.starts_with("not built");
    const bool is_default = chosen.ok() && *chosen == path;
    Value entry = Value::object();
    entry.set("name", name).set("built", built).set("usable", usable).set("default", is_default);
    entry.set("reason", usable ? Value() : Value(reason));
    kernels.add(std::move(entry));
    out.text += format("  %-12s %s\n", name.c_str(),
                       usable ? (is_default ? "usable, the default" : "usable")
                              : ((built ? "built, not usable here: " : "") + reason).c_str());
  }
  out.text += "kernels of fp16_table and fp16_softmax\n";
  Value table_kernels = Value::array();
  const auto list = [&](const char* operation, std::span<const Fp16Kernel> rows) {
    for (const Fp16Kernel& kernel : rows) {
      const bool usable = cpu_can_run(kernel.path);
      Value entry = Value::object();
      entry.set("operation", operation).set("name", kernel.name).set("path", to_string(kernel.path));
      entry.set("usable", usable);
      table_kernels.add(std::move(entry));
      out.text += format("  %-12s %-18s %s\n", operation, std::string(kernel.name).c_str(),
                         usable ? "usable" : std::string(cpu_cannot_run_reason(kernel.path)).c_str());
    }
  };
  list("fp16_table", fp16_kernels());
  list("fp16_softmax", fp16_softmax_kernels());
  out.json.set("fp16_kernels", std::move(table_kernels));
  out.text += "kernels of linear layers\n";
  Value linear_kernels = Value::array();
  for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
    const bool usable = cpu_can_run(kernel.path);
    Value entry = Value::object();
    entry.set("operation", kernel.operation).set("name", kernel.name).set("path", to_string(kernel.path));
    entry.set("usable", usable).set("why", kernel.why);
    linear_kernels.add(std::move(entry));
    out.text += format(
        "  %-13s %-18s %s: %s\n", std::string(kernel.operation).c_str(), std::string(kernel.name).c_str(),
        usable ? "usable" : std::string(cpu_cannot_run_reason(kernel.path)).c_str(), std::string(kernel.why).c_str());
  }
  out.json.set("linear_kernels", std::move(linear_kernels));
  if (!chosen.ok()) out.text += "  no default: " + chosen.status().message() + "\n";
  out.json.set("operations", std::move(operations)).set("dtypes", std::move(dtypes)).set("files", std::move(files));
  const bool cuda = built_with_cuda();
  out.text += std::string("CUDA\n  ") + (cuda ? "built; --device cuda lists what the device runs\n" : "not built\n");
  out.json.set("kernels", std::move(kernels)).set("cuda_built", cuda);
  out.json.set("default_kernel_error", chosen.ok() ? Value() : Value(chosen.status().message()));
  return out;
}

}  // namespace isobit::tool
