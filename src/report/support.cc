// SPDX-License-Identifier: Apache-2.0
// What this build and this machine can do, as text and JSON.
#include <span>
#include <utility>

#include "isobit/conv.h"
#include "isobit/cpu.h"
#include "isobit/dtype.h"
#include "isobit/fp16_function.h"
#include "isobit/linear.h"
#include "isobit/report.h"
#include "isobit/text.h"
#include "report/json.h"

namespace isobit {
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
    {"conv_static", "convolutions of static codes: strides, dilations, groups, transposed, residuals, streams"},
    {"conv_float", "convolutions of 1-, 2-, 4- and 8-bit weights, floating-point images"},
    {"conv_int8", "the same, images quantised to 8 bits on the fly: the same bytes everywhere"},
    {"pool_static", "max and average pooling of static codes"},
};
constexpr Entry kFiles[] = {
    {"npz", "float models, data, results"},
    {"npy", "data, results"},
    {"safetensors", "float models, integer models, FP16 tables, low-bit weights, GPTQ and AWQ checkpoints, data"},
    {"gguf", "tensors of F32 F16 BF16, Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL, TQ2_0; others are listed by inspect"},
    {"onnx", "float models: GRU nodes"},
};
constexpr Dtype kDtypes[] = {Dtype::kS8,  Dtype::kU8,  Dtype::kS16,  Dtype::kU16, Dtype::kS32, Dtype::kU32,
                             Dtype::kS64, Dtype::kF16, Dtype::kBF16, Dtype::kF32, Dtype::kF64};

OrderedJson describe_entries(std::span<const Entry> entries, std::string& text) {
  OrderedJson names = OrderedJson::array();
  for (const Entry& entry : entries) {
    names.push_back(entry.name);
    text += format("  %-12s %s\n", entry.name, entry.what);
  }
  return names;
}

std::string usable_text(CpuPath path) {
  return cpu_can_run(path) ? "usable" : std::string(cpu_cannot_run_reason(path));
}

OrderedJson describe_paths(const Result<CpuPath>& chosen, std::string& text) {
  OrderedJson kernels = OrderedJson::array();
  for (const CpuPath path : kAllCpuPaths) {
    const bool usable = cpu_can_run(path);
    const std::string reason(cpu_cannot_run_reason(path));
    const bool built = usable || !reason.starts_with("not built");
    const bool is_default = chosen.ok() && *chosen == path;
    kernels.push_back({{"name", to_string(path)},
                       {"built", built},
                       {"usable", usable},
                       {"default", is_default},
                       {"reason", usable ? OrderedJson() : OrderedJson(reason)}});
    text += format("  %-12s %s\n", std::string(to_string(path)).c_str(),
                   usable ? (is_default ? "usable, the default" : "usable")
                          : ((built ? "built, not usable here: " : "") + reason).c_str());
  }
  return kernels;
}

void describe_fp16(const char* operation, std::span<const Fp16Kernel> rows, OrderedJson& json, std::string& text) {
  for (const Fp16Kernel& kernel : rows) {
    json.push_back({{"operation", operation},
                    {"name", kernel.name},
                    {"path", to_string(kernel.path)},
                    {"usable", cpu_can_run(kernel.path)}});
    text += format("  %-12s %-18s %s\n", operation, std::string(kernel.name).c_str(), usable_text(kernel.path).c_str());
  }
}

OrderedJson describe_layers(std::span<const LinearLayerKernel> rows, std::string& text) {
  OrderedJson kernels = OrderedJson::array();
  for (const LinearLayerKernel& kernel : rows) {
    kernels.push_back({{"operation", kernel.operation},
                       {"name", kernel.name},
                       {"path", to_string(kernel.path)},
                       {"usable", cpu_can_run(kernel.path)},
                       {"why", kernel.why}});
    text += format("  %-13s %-22s %s: %s\n", std::string(kernel.operation).c_str(), std::string(kernel.name).c_str(),
                   usable_text(kernel.path).c_str(), std::string(kernel.why).c_str());
  }
  return kernels;
}

}  // namespace

Description describe_support() {
  OrderedJson json;
  std::string text = "operations\n";
  json["operations"] = describe_entries(kOperations, text);
  text += "dtypes\n ";
  json["dtypes"] = OrderedJson::array();
  for (const Dtype dtype : kDtypes) {
    json["dtypes"].push_back(to_string(dtype));
    text += " " + std::string(to_string(dtype));
  }
  text += "\nfile types\n";
  json["files"] = describe_entries(kFiles, text);
  // An ISOBIT_CPU that names nothing usable is worth saying here, not worth refusing to answer.
  const Result<CpuPath> chosen = default_cpu_path();
  text += "kernels\n";
  json["kernels"] = describe_paths(chosen, text);
  text += "kernels of fp16_table and fp16_softmax\n";
  OrderedJson fp16 = OrderedJson::array();
  describe_fp16("fp16_table", fp16_kernels(), fp16, text);
  describe_fp16("fp16_softmax", fp16_softmax_kernels(), fp16, text);
  json["fp16_kernels"] = std::move(fp16);
  text += "kernels of linear layers\n";
  json["linear_kernels"] = describe_layers(linear_layer_kernels(), text);
  text += "kernels of convolutions\n";
  json["conv_kernels"] = describe_layers(static_conv_kernels(), text);
  json["default_kernel_error"] = chosen.ok() ? OrderedJson() : OrderedJson(chosen.status().message());
  if (!chosen.ok()) text += "  no default: " + chosen.status().message() + "\n";
  return {.text = std::move(text), .json = json_line(json)};
}

}  // namespace isobit
