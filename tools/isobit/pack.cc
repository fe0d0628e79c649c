// SPDX-License-Identifier: Apache-2.0
// isobit pack: float weights to low bits, and low-bit weights of others to the saved form.
#include "isobit/pack.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "data.h"
#include "isobit/nearest.h"
#include "isobit/parallel.h"
#include "isobit/report.h"
#include "low_bit.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr int kMaxNameWidth = 60;

/// One of some words; an empty text is none of them.
template <typename T>
Status parse(const char* option, const std::string& text, std::optional<T> (*parser)(std::string_view),
             std::initializer_list<std::string_view> words, std::optional<T>& out) {
  if (text.empty()) return {};
  out = parser(text);
  return out ? Status() : bad_option(std::string(option) + " " + text + ": " + expected_one_of(text, words));
}

std::optional<Dtype> scales_from_string(std::string_view text) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16})
    if (text == to_string(dtype)) return dtype;
  return std::nullopt;
}

Result<isobit::PackOptions> parse_options(const PackOptions& options) {
  isobit::PackOptions out{.bits = options.bits,
                          .group = options.group,
                          .include = options.include,
                          .exclude = options.exclude,
                          .requantize = options.requantize};
  ISOBIT_RETURN_IF_ERROR(
      parse("--kind", options.kind, low_bit_kind_from_string, {"symmetric", "zero_point", "offset"}, out.kind));
  ISOBIT_RETURN_IF_ERROR(
      parse("--method", options.method, low_bit_method_from_string, {"absmax", "minmax", "mse"}, out.method));
  ISOBIT_RETURN_IF_ERROR(parse("--scales", options.scales, scales_from_string, {"f32", "f16", "bf16"}, out.scales));
  ISOBIT_RETURN_IF_ERROR(parse("--checkpoint-format", options.checkpoint_format, checkpoint_format_from_string,
                               {"gptq", "gptq_v2", "awq"}, out.checkpoint_format));
  return out;
}

/// What is said before the work, and of each tensor.
class Printer {
 public:
  Printer(const PackOptions& options, const isobit::PackOptions& parsed, const Packing& packing)
      : form_(parsed.form()) {
    const std::vector<PackTensor>& tensors = packing.tensors();
    out_.refusal = packing.refusal();
    out_.json.set("model", options.model).set("dry_run", options.dry_run);
    out_.json.set("checkpoint", packing.checkpoint() ? Value::parsed(checkpoint_json(*packing.checkpoint())) : Value());
    out_.text = options.model + ": " + count_text(std::ssize(tensors), "tensor");
    if (packing.checkpoint()) out_.text += "; " + checkpoint_text(*packing.checkpoint());
    if (std::any_of(tensors.begin(), tensors.end(),
                    [](const PackTensor& tensor) { return tensor.action == PackAction::kQuantize; }))
      out_.text += "; quantised by " + std::string(to_string(form_.method)) +
                   (options.method.empty() ? ", the default at " + count_text(form_.bits, "bit") : "");
    print_metadata(packing.metadata());
    for (const PackTensor& tensor : tensors) {
      name_width_ = std::clamp(static_cast<int>(escaped(tensor.name).size()), name_width_, kMaxNameWidth);
      all_ += tensor.bytes;
    }
    out_.text += "\n" + format("%-*s %-14s %-10s %-36s %6s %8s %12s %12s\n", name_width_, "tensor", "shape", "was",
                               "becomes", "bits/w", "SQNR dB", "bytes", "packed");
  }

  void print(const PackTensor& tensor, const PackedTensor& packed) {
    std::string bits_text, error;
    Value entry = Value::object();
    entry.set("name", tensor.name).set("shape", Value::list(packed.shape)).set("type", tensor.type);
    entry.set("action", to_string(tensor.action));
    const char* const texts[] = {"", "", "f32", "as it is", "left out", "refused"};
    std::string becomes = texts[static_cast<size_t>(tensor.action)];
    if (packed.matrix) {
      const double bits = packed.matrix->bits_per_weight();
      bits_text = format("%.3f", bits);
      set_form(packed.matrix->parameters(), entry);
      entry.set("bits_per_weight", bits);
      becomes = form_text(packed.matrix->parameters());
    }
    if (tensor.action == PackAction::kImport) error = "imported";
    if (packed.sqnr) error = std::isinf(*packed.sqnr) ? "exact" : format("%.2f", *packed.sqnr);
    entry.set("sqnr_db", packed.sqnr ? Value(*packed.sqnr) : Value());
    entry.set("bytes", tensor.bytes).set("packed_bytes", packed.bytes);
    entry.set("method", tensor.action == PackAction::kQuantize ? Value(to_string(form_.method)) : Value());
    entry.set("cleared_groups", packed.cleared_groups).set("permuted", packed.permuted);
    entry.set("suspected_format", packed.suspected ? Value(to_string(*packed.suspected)) : Value());
    entry.set("refusal", tensor.action == PackAction::kRefuse ? Value(tensor.refusal) : Value());
    tensors_.add(std::move(entry));
    done_ += tensor.bytes;
    packed_bytes_ += packed.bytes;
    out_.text +=
        format("%-*s %-14s %-10s %-36s %6s %8s %12llu %12llu\n", name_width_, escaped(tensor.name).c_str(),
               shape_text(packed.shape).c_str(), tensor.type.c_str(), becomes.c_str(), bits_text.c_str(), error.c_str(),
               static_cast<unsigned long long>(tensor.bytes), static_cast<unsigned long long>(packed.bytes));
    if (tensor.action == PackAction::kRefuse) out_.text += "  " + escaped(tensor.refusal) + "\n";
    if (packed.permuted) out_.text += "  columns sorted by group: its permutation is saved beside it\n";
    if (packed.suspected)
      out_.text += "  every zero point is one off the middle: is its format " +
                   std::string(to_string(*packed.suspected)) + "?\n";
    if (packed.cleared_groups > 0)
      out_.text += "  " + count_text(packed.cleared_groups, "group") +
                   " of scale 0 with codes that counted for nothing: they are the code of zero now\n";
  }

  [[nodiscard]] double share_done() const {
    return static_cast<double>(done_) / static_cast<double>(std::max<uint64_t>(all_, 1));
  }

  /// `output`: empty for a dry run.
  Outcome finish(const std::string& output) && {
    out_.text += format("%-*s %-14s %-10s %-36s %6s %8s %12llu %12llu\n", name_width_, "all", "", "", "", "", "",
                        static_cast<unsigned long long>(done_), static_cast<unsigned long long>(packed_bytes_));
    out_.json.set("tensors", std::move(tensors_));
    out_.json.set("total", Value::object().set("bytes", done_).set("packed_bytes", packed_bytes_));
    std::error_code error;
    const auto bytes = output.empty() ? 0 : std::filesystem::file_size(output, error);
    out_.json.set("output", output.empty() ? Value() : Value(output));
    out_.json.set("bytes", output.empty() || error ? Value() : Value(bytes));
    out_.text += output.empty() ? "dry run: nothing written\n"
                                : "saved " + output + (error ? "" : ", " + std::to_string(bytes) + " bytes") + "\n";
    return std::move(out_);
  }

 private:
  /// What is kept of a GGUF file's, and what is not and why.
  void print_metadata(const std::optional<PackedMetadata>& metadata) {
    Value json, left_out = Value::array();
    if (metadata) {
      out_.text +=
          "; metadata: " + std::to_string(metadata->kept) + " of " + count_text(metadata->values, "value") + " kept";
      for (const auto& [key, reason] : metadata->left_out) {
        out_.text += "\n  left out: " + escaped(key) + ", " + reason;
        left_out.add(Value::object().set("key", key).set("reason", reason));
      }
      json = Value::object().set("kept", metadata->kept).set("left_out", std::move(left_out));
    }
    out_.json.set("metadata", std::move(json));
  }

  const LowBitOptions form_;
  Outcome out_;
  int name_width_ = 6;
  Value tensors_ = Value::array();
  uint64_t all_ = 0, done_ = 0, packed_bytes_ = 0;  // bytes
};

}  // namespace

Result<Outcome> pack(const PackOptions& options) {
  if (options.output.empty() && !options.dry_run)
    return bad_option("-o OUT is missing; --dry-run reports without writing");
  ISOBIT_RETURN_IF_ERROR(check_threads(options.threads));
  FileClaims files;
  if (!options.dry_run) ISOBIT_RETURN_IF_ERROR(check_output(options.output, "-o", OutputKind::kSafetensors, files));
  ISOBIT_RETURN_IF_ERROR(claim_checkpoint(options.model, "MODEL", files));
  ISOBIT_ASSIGN_OR_RETURN(const isobit::PackOptions parsed, parse_options(options));
  ISOBIT_ASSIGN_OR_RETURN(Packing packing, Packing::plan(options.model, parsed));
  Printer printer(options, parsed, packing);
  Progress progress("packing", options.quiet);
  const auto report = [&](const PackTensor& tensor, const PackedTensor& packed) {
    printer.print(tensor, packed);
    progress.update(printer.share_done());
  };
  ThreadPool pool(options.threads);
  if (options.dry_run) {
    ISOBIT_RETURN_IF_ERROR(std::move(packing).rehearse(&pool, report));
    return std::move(printer).finish("");
  }
  ISOBIT_ASSIGN_OR_RETURN(const LowBitFile content, std::move(packing).run(&pool, report));
  ISOBIT_RETURN_IF_ERROR(save_low_bit(options.output, content));
  return std::move(printer).finish(options.output);
}

}  // namespace isobit::tool
