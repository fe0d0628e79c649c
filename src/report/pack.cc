// SPDX-License-Identifier: Apache-2.0
// What becomes of a model's tensors when it is packed, as text and JSON.
#include "isobit/pack.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "isobit/report.h"
#include "isobit/text.h"
#include "report/json.h"

namespace isobit {
namespace {

constexpr int kMaxNameWidth = 60;

/// `value` as it is, or null.
template <typename T>
OrderedJson or_null(bool is_there, const T& value) {
  return is_there ? OrderedJson(value) : OrderedJson();
}

/// What is kept of a GGUF file's metadata, and what is not and why.
OrderedJson describe_metadata(const PackedMetadata& metadata, std::string& text) {
  OrderedJson left_out = OrderedJson::array();
  text += "; metadata: " + std::to_string(metadata.kept) + " of " + count_text(metadata.values, "value") + " kept";
  for (const auto& [key, reason] : metadata.left_out) {
    text += "\n  left out: " + escaped(key) + ", " + reason;
    left_out.push_back({{"key", key}, {"reason", reason}});
  }
  return {{"kept", metadata.kept}, {"left_out", std::move(left_out)}};
}

}  // namespace

struct PackDescription::Impl {
  LowBitOptions form;
  std::string text;
  OrderedJson json, tensors = OrderedJson::array();
  int name_width = 6;
  uint64_t bytes = 0, done = 0, packed = 0;
};

PackDescription::PackDescription(PackDescription&&) noexcept = default;
PackDescription& PackDescription::operator=(PackDescription&&) noexcept = default;
PackDescription::~PackDescription() = default;

PackDescription::PackDescription(const std::string& model, const PackOptions& options, const Packing& packing)
    : impl_(std::make_unique<Impl>()) {
  Impl& i = *impl_;
  i.form = options.form();
  const std::vector<PackTensor>& tensors = packing.tensors();
  i.json["checkpoint"] = packing.checkpoint() ? json_of(*packing.checkpoint()) : OrderedJson();
  i.text = model + ": " + count_text(std::ssize(tensors), "tensor");
  if (packing.checkpoint()) i.text += "; " + checkpoint_text(*packing.checkpoint());
  if (std::any_of(tensors.begin(), tensors.end(),
                  [](const PackTensor& tensor) { return tensor.action == PackAction::kQuantize; }))
    i.text += "; quantised by " + std::string(to_string(i.form.method)) +
              (options.method ? "" : ", the default at " + count_text(i.form.bits, "bit"));
  i.json["metadata"] = packing.metadata() ? describe_metadata(*packing.metadata(), i.text) : OrderedJson();
  for (const PackTensor& tensor : tensors) {
    i.name_width = std::clamp(static_cast<int>(escaped(tensor.name).size()), i.name_width, kMaxNameWidth);
    i.bytes += tensor.bytes;
  }
  i.text += "\n" + format("%-*s %-14s %-10s %-36s %6s %8s %12s %12s\n", i.name_width, "tensor", "shape", "was",
                          "becomes", "bits/w", "SQNR dB", "bytes", "packed");
}

void PackDescription::add(const PackTensor& tensor, const PackedTensor& packed) {
  Impl& i = *impl_;
  const bool is_quantized = tensor.action == PackAction::kQuantize, is_refused = tensor.action == PackAction::kRefuse;
  const char* const texts[] = {"", "", "f32", "as it is", "left out", "refused"};
  std::string bits, becomes = texts[static_cast<size_t>(tensor.action)];
  OrderedJson json = {
      {"name", tensor.name}, {"shape", packed.shape}, {"type", tensor.type}, {"action", to_string(tensor.action)}};
  if (packed.matrix) {
    const LowBitParameters& p = packed.matrix->parameters();
    bits = format("%.3f", packed.matrix->bits_per_weight());
    becomes = form_text(p);
    json.update({{"bits", p.bits},
                 {"kind", to_string(p.kind)},
                 {"group", p.group},
                 {"scales", to_string(p.scales.dtype)},
                 {"bits_per_weight", packed.matrix->bits_per_weight()}});
  }
  const std::string sqnr = packed.sqnr ? (std::isinf(*packed.sqnr) ? "exact" : format("%.2f", *packed.sqnr))
                           : tensor.action == PackAction::kImport ? "imported"
                                                                  : "";
  json.update({{"sqnr_db", or_null(packed.sqnr.has_value(), packed.sqnr.value_or(0))},
               {"bytes", tensor.bytes},
               {"packed_bytes", packed.bytes},
               {"method", or_null(is_quantized, to_string(i.form.method))},
               {"cleared_groups", packed.cleared_groups},
               {"permuted", packed.permuted},
               {"suspected_format", packed.suspected ? OrderedJson(to_string(*packed.suspected)) : OrderedJson()},
               {"refusal", or_null(is_refused, tensor.refusal)}});
  i.tensors.push_back(std::move(json));
  i.done += tensor.bytes;
  i.packed += packed.bytes;
  i.text += format("%-*s %-14s %-10s %-36s %6s %8s %12llu %12llu\n", i.name_width, escaped(tensor.name).c_str(),
                   list_text(packed.shape).c_str(), tensor.type.c_str(), becomes.c_str(), bits.c_str(), sqnr.c_str(),
                   static_cast<unsigned long long>(tensor.bytes), static_cast<unsigned long long>(packed.bytes));
  if (is_refused) i.text += "  " + escaped(tensor.refusal) + "\n";
  if (packed.permuted) i.text += "  columns sorted by group: its permutation is saved beside it\n";
  if (packed.suspected)
    i.text +=
        "  every zero point is one off the middle: is its format " + std::string(to_string(*packed.suspected)) + "?\n";
  if (packed.cleared_groups > 0)
    i.text += "  " + count_text(packed.cleared_groups, "group") +
              " of scale 0 with codes that counted for nothing: they are the code of zero now\n";
}

double PackDescription::share_done() const {
  return static_cast<double>(impl_->done) / static_cast<double>(std::max<uint64_t>(impl_->bytes, 1));
}

Description PackDescription::describe() const {
  const Impl& i = *impl_;
  OrderedJson json = i.json;
  json["tensors"] = i.tensors;
  json["total"] = {{"bytes", i.done}, {"packed_bytes", i.packed}};
  return {
      .text = i.text + format("%-*s %-14s %-10s %-36s %6s %8s %12llu %12llu\n", i.name_width, "all", "", "", "", "", "",
                              static_cast<unsigned long long>(i.done), static_cast<unsigned long long>(i.packed)),
      .json = json_line(json)};
}

}  // namespace isobit
