// SPDX-License-Identifier: Apache-2.0
// What a file holds, whatever isobit reads.
#include <algorithm>
#include <utility>

#include "isobit/report.h"
#include "isobit/text.h"
#include "report/json.h"

namespace isobit {
namespace {

bool may_hold_checkpoint(const ArrayReader& file) {
  return std::any_of(file.entries().begin(), file.entries().end(), [](const ArrayEntry& entry) {
    return entry.name.ends_with(".qweight") || entry.name.ends_with(".qzeros");
  });
}

/// Or may, where find_grus() refuses the file.
bool holds_gru(const ArrayReader& file) {
  const auto candidates = find_grus(file);
  return !candidates.ok() || std::any_of(candidates->begin(), candidates->end(),
                                         [](const GruCandidate& candidate) { return candidate.is_gru; });
}

Result<Description> describe_by_kind(const ArrayReader& file, const DescribeOptions& options) {
  if (file.kind() == FileKind::kLowBit) {
    ISOBIT_ASSIGN_OR_RETURN(const LowBitFile content, load_low_bit(file));
    return describe_low_bit(content, file.name());
  }
  if (may_hold_checkpoint(file)) {
    ISOBIT_ASSIGN_OR_RETURN(const ArrayFile arrays, file.read_readable());
    if (!list_checkpoint_matrices(arrays.arrays).empty()) return describe_checkpoint(arrays, file.name());
  }
  if (file.kind() == FileKind::kFp16Table) {
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, load_fp16_table(file));
    return describe_table(table);
  }
  if (file.kind() == FileKind::kStaticLinear) return describe_static_linear(file);
  if (file.kind() == FileKind::kStaticConv) return describe_static_conv(file);
  if (file.kind() == FileKind::kGruModels || file.kind() == FileKind::kOtherSaved)
    return describe_integer_models(file, options.load.prefix, options.full);
  if (options.load.prefix.empty() && options.load.arrays.empty() && !holds_gru(file)) {
    const std::vector<ListedTensor> tensors = list_tensors(file);
    const std::vector<ForeignFormat> foreign = find_foreign_formats(tensors);
    ISOBIT_ASSIGN_OR_RETURN(const std::optional<std::string> said, find_foreign_description(file.name(), tensors));
    if (!foreign.empty() || said) return describe_foreign(file, foreign, said.value_or(""));
  }
  return describe_float_models(file, options.load);
}

}  // namespace

Result<Description> describe_file(const ArrayReader& file, const DescribeOptions& options) {
  if (file.gguf() != nullptr) return describe_gguf(*file.gguf());
  ISOBIT_ASSIGN_OR_RETURN(Description out, describe_by_kind(file, options));
  OrderedJson json = parse_json(out.json), unread = OrderedJson::array();
  std::string text;
  for (const ArrayEntry& entry : file.entries()) {
    if (entry.dtype) continue;
    unread.push_back({{"name", entry.name}, {"type", entry.type}, {"shape", entry.shape}, {"bytes", entry.size_bytes}});
    text += format("  %-44s %-14s %-12s %12llu bytes\n", escaped(entry.name).c_str(), list_text(entry.shape).c_str(),
                   escaped(entry.type).c_str(), static_cast<unsigned long long>(entry.size_bytes));
  }
  json["not_read"] = std::move(unread);
  out.json = json_line(json);
  if (!text.empty()) out.text += "\narrays of types that isobit does not read\n" + text;
  return out;
}

}  // namespace isobit
