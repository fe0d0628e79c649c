// SPDX-License-Identifier: Apache-2.0
#include "low_bit.h"

#include <filesystem>

#include "text.h"

namespace isobit::tool {

double bits_per_weight(const LowBitMatrix& matrix) {
  return 8 * static_cast<double>(matrix.size_bytes()) /
         (static_cast<double>(matrix.rows()) * static_cast<double>(matrix.columns()));
}

std::string form_text(const LowBitParameters& p) {
  return format("%d %s %s, group %lld, %s", p.bits, p.bits == 1 ? "bit" : "bits",
                std::string(to_string(p.kind)).c_str(), static_cast<long long>(p.group),
                std::string(to_string(p.scales.dtype)).c_str());
}

void set_form(const LowBitParameters& p, Value& json) {
  json.set("bits", p.bits).set("kind", to_string(p.kind)).set("group", p.group);
  json.set("scales", to_string(p.scales.dtype));
}

Value shape_json(std::span<const int64_t> shape) {
  Value json = Value::array();
  for (const int64_t dimension : shape) json.add(dimension);
  return json;
}

Status claim_checkpoint(const std::string& path, const std::string& option, FileClaims& files) {
  ISOBIT_RETURN_IF_ERROR(files.reads(path, option));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const std::string_view name : kCheckpointDescriptionFiles)
    ISOBIT_RETURN_IF_ERROR(files.reads((folder / name).string(), "beside " + option));
  return {};
}

namespace {
constexpr const char* kOptionsSay = "--checkpoint-format, --bits and --group say";
}  // namespace

std::string checkpoint_text(const CheckpointDescription& description) {
  const CheckpointOptions& options = description.options;
  const std::string group = options.group == -1 ? "K" : std::to_string(options.group);
  std::string text = format("%s%s, %d bits, group %s, as ", std::string(to_string(options.format)).c_str(),
                            description.format_assumed ? " (assumed)" : "", options.bits, group.c_str());
  if (description.source.empty()) text += kOptionsSay;
  if (!description.source.empty() && description.overruled.empty()) text += description.source + " says";
  if (description.overruled.empty()) return text;
  text += description.source.empty() ? "; overruled: " : "options say; " + description.source + " says otherwise: ";
  for (size_t i = 0; i < description.overruled.size(); ++i) text += (i > 0 ? ", " : "") + description.overruled[i];
  return text;
}

Value checkpoint_json(const CheckpointDescription& description) {
  const CheckpointOptions& options = description.options;
  Value json = Value::object(), overruled = Value::array();
  for (const std::string& what : description.overruled) overruled.add(what);
  json.set("format", to_string(options.format)).set("format_assumed", description.format_assumed);
  json.set("bits", options.bits).set("group", options.group);
  json.set("source", description.source.empty() ? kOptionsSay : description.source);
  json.set("overruled", std::move(overruled));
  return json;
}

std::string checkpoint_refusal(const Status& status, const std::string& path,
                               const std::map<std::string, std::string>& metadata) {
  const bool format_will_do = find_checkpoint_description(path, metadata, {.format = CheckpointFormat::kGptq}).ok();
  return status.message() + "; isobit pack --checkpoint-format gptq, gptq_v2 or awq" +
         (format_will_do ? " overrules that" : " with --bits and --group overrules that");
}

std::string foreign_text(const ForeignFormat& format) {
  return "weights quantised by " + format.name + " (" + std::to_string(format.matrices) +
         (format.matrices == 1 ? " matrix; " : " matrices; ") + format.sign + ")";
}

Result<Array> dense_weights(const LowBitMatrix& matrix, std::span<const int32_t> permutation) {
  Array out = Array::zeros(Dtype::kF32, {matrix.rows(), matrix.columns()});
  const auto columns = static_cast<size_t>(matrix.columns());
  const std::span<float> w(out.data<float>(), static_cast<size_t>(out.size()));
  ISOBIT_RETURN_IF_ERROR(matrix.dequantize(w));
  if (permutation.empty()) return out;
  std::vector<float> row(columns);
  for (size_t begin = 0; begin < w.size(); begin += columns) {
    for (size_t j = 0; j < columns; ++j) row[static_cast<size_t>(permutation[j])] = w[begin + j];
    std::copy(row.begin(), row.end(), w.begin() + static_cast<ptrdiff_t>(begin));
  }
  return out;
}

}  // namespace isobit::tool
