// SPDX-License-Identifier: Apache-2.0
// Weights that other tools quantised in formats that are not imported, told by the names and types of their tensors and
// by the JSON files beside them. Scales of such weights are floats, too, but nobody's weights.
#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/metadata.h"
#include "isobit/low_bit_import.h"
#include "low_bit/importers.h"

namespace isobit {
namespace {

enum class Codes { kS8, kU8, kS32, kU32, kF8, kAny };  // kAny: whatever is no float of 16 bits or more

/// A format: the tensor P + `codes`, `beside` it P + each of these, and what else belongs to them if it is there. A
/// suffix that ends in '*' stands for all names that begin with what is before it.
struct Signature {
  std::string_view name;
  std::string_view codes;
  Codes type;
  std::vector<std::string_view> beside, more;
};

/// The first that fits a tensor counts: what is particular to a format comes before what several have.
const std::vector<Signature>& signatures() {
  static const std::vector<Signature> list = {
      {"bitsandbytes (4 bits)",
       "",
       Codes::kU8,
       {".absmax"},
       {".quant_map", ".nested_absmax", ".nested_quant_map", ".quant_state*"}},
      {"bitsandbytes (LLM.int8)", ".weight", Codes::kS8, {".SCB"}, {".weight_format"}},
      {"MLX", ".weight", Codes::kU32, {".scales"}, {".biases"}},
      {"compressed-tensors", "_packed", Codes::kAny, {"_scale"}, {"_shape", "_zero_point", "_g_idx", "_global_scale"}},
      {"FP8", "", Codes::kF8, {"_scale_inv"}, {}},
      {"FP8", "", Codes::kF8, {"_scale"}, {}},
      {"FP8", ".weight", Codes::kF8, {".scale_weight"}, {".scale_input"}},
      {"FP8", ".weight", Codes::kF8, {".scale"}, {".input_scale"}},
      {"NVFP4", "", Codes::kU8, {"_scale", "_scale_2"}, {}},
      {"MXFP4", "_blocks", Codes::kU8, {"_scales"}, {}},
      {"SINQ", ".W_q", Codes::kAny, {".scale", ".scale2"}, {".zero*", ".meta*", ".nbits", ".shape"}},
      {"HQQ", ".W_q", Codes::kAny, {".scale*", ".zero*"}, {".meta*", ".nbits", ".group_size", ".shape", ".axis"}},
      {"AQLM", ".codes", Codes::kAny, {".codebooks", ".scales"}, {}},
      {"EETQ", ".weight", Codes::kS8, {".weight_scales"}, {}},
      {"EETQ", ".qweight", Codes::kS8, {".weight_scales"}, {}},
      {"quanto", "._data._data", Codes::kAny, {"._scale"}, {"._shift"}},
      {"quanto", "._data", Codes::kAny, {"._scale"}, {"._shift"}},
      {"torchao", "_qdata", Codes::kAny, {"_scale"}, {"_zero_point"}},
      {"torchao", ":tensor_impl:int_data", Codes::kAny, {":tensor_impl:scale"}, {":tensor_impl:zero_point"}},
      {"torchao", ":_data", Codes::kAny, {":_scale"}, {":_zero_point"}},
      {"VPTQ",
       ".indices",
       Codes::kAny,
       {".centroids*"},
       {".outlier_*", ".res_*", ".weight_scale", ".weight_bias", ".perm"}},
      {"QuIP#", ".Qidxs", Codes::kAny, {".SU", ".SV"}, {".Wscale", ".codebook_id"}},
      {"EXL2", ".q_weight", Codes::kAny, {".q_scale"}, {".q_scale_max", ".q_group*", ".q_perm", ".q_invperm"}},
      {"EXL3", ".trellis", Codes::kAny, {".svh"}, {".suh", ".su", ".sv"}},
      {"SqueezeLLM", ".qweight", Codes::kS32, {".lookup_table"}, {}},
      {"Marlin 2:4", ".B_24", Codes::kAny, {".s"}, {".B_meta", ".workspace"}},
      {"TensorRT-LLM", ".weight", Codes::kAny, {".per_channel_scale"}, {}},
      {"TensorRT-LLM",
       ".weight",
       Codes::kAny,
       {".weights_scaling_factor"},
       {".activation_scaling_factor", ".prequant_scaling_factor", ".weights_scaling_factor_2", ".alpha"}},
      {"FasterTransformer", ".int8.col", Codes::kS8, {".scale"}, {}},
      {"Marlin", ".B", Codes::kS32, {".s"}, {".workspace"}},
      {"ONNX", "_quantized", Codes::kAny, {"_scale"}, {"_zero_point"}},
      {"another tool (codes and scales)", "_int8", Codes::kAny, {"_scale"}, {"_zero_point", "_zero"}},
      {"another tool (codes and scales)", "_q", Codes::kAny, {"_scale"}, {"_zero_point", "_zero", "_z"}},
      {"another tool (codes and scales)", "_q", Codes::kAny, {"_s"}, {"_zero", "_z"}},
      {"another tool (codes and scales)", "q", Codes::kAny, {"scale"}, {"zero"}},
      {"another tool (codes and scales)", "", Codes::kAny, {"_scale"}, {"_zero_point", "_zero", "_offset"}},
      {"another tool (codes and scales)", "", Codes::kAny, {"_scales"}, {"_zero_points", "_zeros", "_biases"}},
      {"another tool (codes and scales)", "", Codes::kAny, {".scale"}, {".zero_point", ".zero"}},
      {"another tool (codes and scales)", "", Codes::kAny, {".scales"}, {".zero_points", ".zeros", ".biases"}},
      {"another tool (codes and scales)", ".weight", Codes::kAny, {".scale"}, {".zero_point", ".zero"}},
      {"another tool (codes and scales)", ".weight", Codes::kAny, {".scales"}, {".zero_points", ".zeros", ".biases"}},
  };
  return list;
}

/// In small letters, signed integers as isobit spells them: "s8" for "I8".
std::string spelling(std::string_view type) {
  std::string text(type);
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (text.starts_with('i')) text[0] = 's';
  return text;
}

bool is_of(Codes codes, std::string_view type) {
  switch (codes) {
    case Codes::kS8: return type == "s8";
    case Codes::kU8: return type == "u8";
    case Codes::kS32: return type == "s32";
    case Codes::kU32: return type == "u32";
    case Codes::kF8: return type.starts_with("f8");
    case Codes::kAny: break;
  }
  return type != "f16" && type != "bf16" && type != "f32" && type != "f64";
}

class Finder {
 public:
  explicit Finder(const std::vector<ListedTensor>& tensors) {
    for (const ListedTensor& tensor : tensors) tensors_.emplace(tensor.name, &tensor);
  }

  std::vector<ForeignFormat> run() {
    claim_checkpoints();
    for (const Signature& signature : signatures())
      for (const auto& [name, tensor] : tensors_) find(signature, name, *tensor);
    for (ForeignFormat& format : found_) std::sort(format.tensors.begin(), format.tensors.end());
    return std::move(found_);
  }

 private:
  /// GPTQ and AWQ, which are imported.
  void claim_checkpoints() {
    for (const auto& [name, tensor] : tensors_) {
      if (!name.ends_with(".qzeros")) continue;
      const std::string prefix = name.substr(0, name.size() - std::string_view(".qzeros").size());
      for (const char* suffix : {".qweight", ".qzeros", ".scales", ".g_idx"}) claimed_.insert(prefix + suffix);
    }
  }

  [[nodiscard]] std::vector<std::string> matching(const std::string& prefix, std::string_view suffix) const {
    std::vector<std::string> names;
    if (!suffix.ends_with('*')) {
      if (tensors_.contains(prefix + std::string(suffix))) names.push_back(prefix + std::string(suffix));
      return names;
    }
    const std::string begin = prefix + std::string(suffix.substr(0, suffix.size() - 1));
    for (auto at = tensors_.lower_bound(begin); at != tensors_.end() && at->first.starts_with(begin); ++at)
      names.push_back(at->first);
    return names;
  }

  void find(const Signature& signature, const std::string& name, const ListedTensor& tensor) {
    if (!name.ends_with(signature.codes) || name.size() == signature.codes.size() || tensor.shape.empty()) return;
    const std::string type = spelling(tensor.type);
    if (claimed_.contains(name) || !is_of(signature.type, type)) return;
    const std::string prefix = name.substr(0, name.size() - signature.codes.size());
    std::vector<std::string> names;
    for (const std::string_view suffix : signature.beside) {
      const std::vector<std::string> some = matching(prefix, suffix);
      if (some.empty()) return;
      names.insert(names.end(), some.begin(), some.end());
    }
    for (const std::string_view suffix : signature.more) {
      const std::vector<std::string> some = matching(prefix, suffix);
      names.insert(names.end(), some.begin(), some.end());
    }
    auto format = std::find_if(found_.begin(), found_.end(),
                               [&](const ForeignFormat& other) { return other.name == signature.name; });
    if (format == found_.end()) {
      std::string sign = in_quotes(name) + " is " + type + " beside ";
      for (size_t i = 0; i < names.size(); ++i)
        sign += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + in_quotes(names[i]);
      format = found_.insert(found_.end(), {std::string(signature.name), std::move(sign), 0, {}});
    }
    ++format->matrices;
    names.push_back(name);
    for (const std::string& each : names)
      if (claimed_.insert(each).second) format->tensors.push_back(each);
  }

  std::map<std::string, const ListedTensor*> tensors_;
  std::set<std::string> claimed_;
  std::vector<ForeignFormat> found_;
};

/// A field of an object that is a text or a number; nullptr: no such.
const Json* plain_field(const Json& json, const char* name) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(name);
  return found == json.end() || found->is_null() || found->is_structured() ? nullptr : &*found;
}

/// "quant_method 'fp8'", if it is no method that is imported.
std::optional<std::string> foreign_method(const Json& json) {
  for (const char* name : {"quant_method", "quant_algo"}) {
    const Json* field = plain_field(json, name);
    if (field == nullptr) continue;
    const std::string text = field->is_string() ? field->get<std::string>() : field->dump();
    const std::string known = spelling(text);
    if (known == "gptq" || known == "gptq_v2" || known == "gptq-v2" || known == "awq") return std::nullopt;
    return std::string(name) + " " + in_quotes(text);
  }
  for (const char* name : {"load_in_4bit", "load_in_8bit"})
    if (const Json* field = plain_field(json, name); field != nullptr && *field == true)
      return std::string(name) + ", as bitsandbytes has it";
  return std::nullopt;
}

std::optional<std::string> foreign_model(const Json& json) {
  // A model of several parts describes its text model in an object of its own.
  for (const char* part : {"text_config", "language_config", "llm_config"})
    if (const auto found = json.find(part); found != json.end() && found->is_object())
      if (auto method = foreign_model(*found)) return method;
  if (const auto mlx = json.find("quantization"); mlx != json.end() && plain_field(*mlx, "bits") != nullptr)
    return "'quantization' with bits " + json_text(*plain_field(*mlx, "bits")) + ", as MLX has it";
  for (const char* name : {"quantization_config", "compression_config", "quantization"})
    if (const auto found = json.find(name); found != json.end())
      if (auto method = foreign_method(*found)) return method;
  return foreign_method(json);
}

}  // namespace

std::vector<ListedTensor> list_tensors(const ArrayReader& file) {
  std::vector<ListedTensor> tensors;
  tensors.reserve(file.entries().size());
  for (const ArrayEntry& entry : file.entries())
    tensors.push_back({entry.name, entry.dtype ? std::string(to_string(*entry.dtype)) : entry.type, entry.shape});
  return tensors;
}

std::vector<ForeignFormat> find_foreign_formats(const std::vector<ListedTensor>& tensors) {
  return Finder(tensors).run();
}

Result<std::optional<std::string>> find_foreign_description(const std::string& path,
                                                            const std::vector<ListedTensor>& tensors) {
  const bool has_codes = std::any_of(tensors.begin(), tensors.end(), [](const ListedTensor& tensor) {
    return tensor.shape.size() > 1 && is_of(Codes::kAny, spelling(tensor.type)) && spelling(tensor.type) != "s64";
  });
  if (!has_codes) return std::optional<std::string>();
  return without_refusal(path, [&]() -> Result<std::optional<std::string>> {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    for (const char* file : {"quantize_config.json", "quant_config.json", "config.json", "hf_quant_config.json"}) {
      std::error_code error;
      const std::filesystem::path beside = folder / file;
      if (!std::filesystem::is_regular_file(beside, error)) continue;
      ISOBIT_ASSIGN_OR_RETURN(const std::vector<std::byte> content, read_file(beside.string()));
      const auto* begin = reinterpret_cast<const char*>(content.data());
      const Json json = Json::parse(begin, begin + content.size(), nullptr, /*allow_exceptions=*/false);
      if (!json.is_object()) continue;  // it describes no model
      if (auto said = foreign_model(json)) return std::optional(beside.string() + " says " + *said);
    }
    return std::optional<std::string>();
  });
}

std::string foreign_text(const ForeignFormat& format) {
  return "weights quantised by " + format.name + " (" + std::to_string(format.matrices) +
         (format.matrices == 1 ? " matrix; " : " matrices; ") + format.sign + ")";
}

}  // namespace isobit
