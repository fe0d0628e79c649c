// SPDX-License-Identifier: Apache-2.0
// isobit pack: float weights to low bits, and low-bit weights of others to the saved form.
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "data.h"
#include "isobit/gguf.h"
#include "isobit/low_bit.h"
#include "isobit/low_bit_import.h"
#include "isobit/nearest.h"
#include "isobit/parallel.h"
#include "low_bit.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr int32_t kDefaultBits = 4;
constexpr int64_t kDefaultGroup = 64;
constexpr int kMaxNameWidth = 60;

Status refuse(const std::string& what) { return {StatusCode::kInvalidArgument, what}; }

Result<LowBitOptions> parse_options(const PackOptions& options) {
  LowBitOptions out;
  out.bits = options.bits.value_or(kDefaultBits);
  out.group = options.group.value_or(kDefaultGroup);
  if (out.group < 0) return refuse("--group " + std::to_string(out.group) + ": expected 0, a whole row, or more");
  if (!options.kind.empty()) {
    const auto kind = low_bit_kind_from_string(options.kind);
    if (!kind)
      return refuse("--kind " + options.kind + ": " +
                    expected_one_of(options.kind, {"symmetric", "zero_point", "offset"}));
    out.kind = *kind;
  }
  out.method = default_low_bit_method(out.bits, out.kind);
  if (!options.method.empty()) {
    const auto method = low_bit_method_from_string(options.method);
    if (!method)
      return refuse("--method " + options.method + ": " + expected_one_of(options.method, {"absmax", "minmax", "mse"}));
    out.method = *method;
  }
  if (options.scales.empty()) return out;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    if (options.scales != to_string(dtype)) continue;
    out.scales = dtype;
    return out;
  }
  return refuse("--scales " + options.scales + ": " + expected_one_of(options.scales, {"f32", "f16", "bf16"}));
}

enum class Action { kQuantize, kImport, kDequantize, kKeep, kLeaveOut, kRefuse };
constexpr const char* kActionNames[] = {"quantize", "import", "dequantize", "keep", "leave_out", "refuse"};

/// A tensor of the result.
struct Item {
  std::string name;
  std::string source;  // its name in the model; GPTQ and AWQ: the prefix of its tensors
  std::string type;    // there: "f32", "Q4_1", "gptq"
  std::vector<int64_t> shape;
  uint64_t bytes = 0;  // there
  bool imported = false;
  Action action = Action::kKeep;
  std::string foreign{};  // the format of another tool that it belongs to
  std::string refusal{};  // kRefuse: why
  bool unread = false;    // of a type that is listed only; a file of isobit cannot hold it
};

/// What became of it.
struct Packed {
  std::optional<LowBitMatrix> matrix;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  std::optional<double> sqnr;
  int64_t cleared_groups = 0;
  bool permuted = false;
  std::optional<CheckpointFormat> suspected;  // ImportedLowBit::suspected
};

class Packer {
 public:
  Packer(const PackOptions& options, const LowBitOptions& form)
      : options_(options), form_(form), pool_(options.threads) {}

  Result<Outcome> run() {
    ISOBIT_ASSIGN_OR_RETURN(reader_, ArrayReader::open(options_.model));
    ISOBIT_RETURN_IF_ERROR(reader_->gguf() != nullptr ? open_gguf() : open_arrays());
    ISOBIT_RETURN_IF_ERROR(choose());
    describe_source();
    ISOBIT_RETURN_IF_ERROR(pack_all());
    return finish();
  }

 private:
  // -------------------------------------------------------------------------------------------------------------
  // What the model holds

  Status open_gguf() {
    if (!options_.checkpoint_format.empty()) return no_checkpoint();
    gguf_ = *reader_->gguf();
    for (const GgufTensor& tensor : gguf_->tensors()) {
      Item item{tensor.name, tensor.name, tensor.type, tensor.shape, tensor.size_bytes};
      const bool is_float = tensor.type == "F32" || tensor.type == "F16" || tensor.type == "BF16";
      item.imported = is_importable(tensor);
      item.action = item.imported     ? Action::kImport
                    : is_float        ? Action::kKeep
                    : tensor.readable ? Action::kDequantize
                                      : Action::kRefuse;
      items_.push_back(std::move(item));
    }
    ISOBIT_ASSIGN_OR_RETURN(GgufMetadataText metadata, gguf_metadata_to_text(gguf_->metadata()));
    if (gguf_->metadata().size() > metadata.left_out.size())
      content_.metadata.emplace(kGgufMetadataKey, std::move(metadata.text));
    left_out_ = std::move(metadata.left_out);
    return {};
  }

  Status open_arrays() {
    file_.metadata = reader_->metadata();
    for (const ArrayEntry& entry : reader_->entries()) {
      if (!entry.dtype) continue;
      ISOBIT_ASSIGN_OR_RETURN(Array array, reader_->read(entry.name));
      file_.arrays.emplace(entry.name, std::move(array));
    }
    if (file_.metadata.contains("isobit"))
      return refuse(options_.model + ": is a file of isobit already; isobit inspect says what it holds");
    ISOBIT_RETURN_IF_ERROR(find_checkpoint());
    std::set<std::string> used;
    if (checkpoint_) {
      for (const std::string& prefix : list_checkpoint_matrices(file_.arrays)) {
        Item item{prefix + ".weight", prefix, std::string(to_string(checkpoint_->options.format)), {}, 0, true,
                  Action::kImport};
        for (const std::string& name : parts_of(prefix)) {
          item.bytes += file_.arrays.at(name).bytes.size();
          used.insert(name);
        }
        items_.push_back(std::move(item));
      }
    }
    for (const auto& [name, array] : file_.arrays)
      if (!used.contains(name)) items_.push_back(as_it_is(name));
    for (const ArrayEntry& entry : reader_->entries()) {
      if (entry.dtype) continue;
      Item item{entry.name, entry.name, entry.type, entry.shape, entry.size_bytes, false, Action::kRefuse};
      item.unread = true;
      items_.push_back(std::move(item));
    }
    return find_foreign();
  }

  /// What another tool quantised is refused. Where only a file beside the model says that it is quantised, its floats
  /// may be anything, and are taken by name.
  Status find_foreign() {
    foreign_ = find_foreign_formats(list_tensors(*reader_));
    std::map<std::string, std::string> format_of;
    for (const ForeignFormat& format : foreign_)
      for (const std::string& name : format.tensors) format_of.emplace(name, format.name);
    for (Item& item : items_) {
      const auto found = format_of.find(item.source);
      if (item.imported || found == format_of.end()) continue;
      item.foreign = found->second;
      item.action = Action::kRefuse;
    }
    if (checkpoint_) return {};
    ISOBIT_ASSIGN_OR_RETURN(foreign_said_, find_foreign_description(options_.model, list_tensors(*reader_)));
    if (!foreign_said_ || !foreign_.empty() || !options_.include.empty()) return {};
    return {StatusCode::kUnsupported,
            options_.model + ": " + *foreign_said_ +
                ", which is not imported, so its floats may be scales of quantised weights; " +
                "pack the float model, or name the float weights to take with --include"};
  }

  /// Names of the tensors of a GPTQ or AWQ matrix.
  [[nodiscard]] std::vector<std::string> parts_of(const std::string& prefix) const {
    std::vector<std::string> names;
    for (const char* suffix : {".qweight", ".qzeros", ".scales", ".g_idx"})
      if (file_.arrays.contains(prefix + suffix)) names.push_back(prefix + suffix);
    return names;
  }

  [[nodiscard]] Item as_it_is(const std::string& name) const {
    const Array& array = file_.arrays.at(name);
    return {name, name, std::string(to_string(array.dtype)), array.shape, array.bytes.size()};
  }

  [[nodiscard]] Status no_checkpoint() const {
    return refuse("--checkpoint-format " + options_.checkpoint_format + ": " + options_.model +
                  " holds no tensors of GPTQ or AWQ (NAME.qweight)");
  }

  /// How GPTQ and AWQ tensors are read: what options say counts, then what lies beside the file. With
  /// --checkpoint-format, --bits and --group are options of that kind, unless they are those of --requantize. Nothing
  /// is guessed.
  Status find_checkpoint() {
    if (list_checkpoint_matrices(file_.arrays).empty())
      return options_.checkpoint_format.empty() ? Status() : no_checkpoint();
    CheckpointOverrides overrides;
    if (!options_.checkpoint_format.empty()) {
      overrides.format = checkpoint_format_from_string(options_.checkpoint_format);
      if (!overrides.format)
        return refuse("--checkpoint-format " + options_.checkpoint_format + ": " +
                      expected_one_of(options_.checkpoint_format, {"gptq", "gptq_v2", "awq"}));
    }
    if (options_.requantize) ISOBIT_RETURN_IF_ERROR(describe_checkpoint(overrides));
    if (!checkpoint_ && overrides.format) {
      overrides.bits = options_.bits;
      overrides.group = options_.group == 0 ? -1 : options_.group;
      stored_by_options_ = true;
    }
    if (!checkpoint_) ISOBIT_RETURN_IF_ERROR(describe_checkpoint(overrides));
    if (checkpoint_) return {};
    return refuse(options_.model +
                  ": holds GPTQ or AWQ tensors, and neither a JSON file beside it nor its metadata says how they "
                  "are stored; give --checkpoint-format, --bits and --group");
  }

  Status describe_checkpoint(const CheckpointOverrides& overrides) {
    auto found = find_checkpoint_description(options_.model, file_.metadata, overrides);
    if (!found.ok() && !overrides.format)
      return {found.status().code(), checkpoint_refusal(found.status(), options_.model, file_.metadata)};
    ISOBIT_ASSIGN_OR_RETURN(checkpoint_, std::move(found));
    return {};
  }

  // -------------------------------------------------------------------------------------------------------------
  // What is done with it

  [[nodiscard]] bool is_candidate(const Item& item) const {
    if (item.imported) return options_.requantize;
    return item.action == Action::kKeep && item.shape.size() == 2 &&
           (item.type == "f16" || item.type == "bf16" || item.type == "f32" || item.type == "f64" ||
            item.type == "F16" || item.type == "BF16" || item.type == "F32");
  }

  /// What --exclude names is neither quantised nor imported. Of the rest, candidates are quantised that --include
  /// names. Without it: all; but in a file that holds quantised tensors already, these only (--requantize).
  Status choose() {
    std::set<std::string> names;
    for (const Item& item : items_)
      if (!names.insert(item.name).second) return same_name(item.name);
    const bool has_imports = std::any_of(items_.begin(), items_.end(), [](const Item& item) { return item.imported; });
    std::vector<bool> included(options_.include.size()), excluded(options_.exclude.size());
    const auto matches = [](const std::vector<std::string>& patterns, const std::string& name,
                            std::vector<bool>& used) {
      bool any = false;
      for (size_t i = 0; i < patterns.size(); ++i)
        if (fnmatch(patterns[i].c_str(), name.c_str(), 0) == 0) any = used[i] = true;
      return any;
    };
    std::vector<Item> chosen;
    for (Item& item : items_) {
      if (!item.foreign.empty()) {
        const bool named = matches(options_.include, item.name, included);
        if (matches(options_.exclude, item.name, excluded) || (!named && !options_.include.empty()))
          item.action = item.unread ? Action::kLeaveOut : Action::kKeep;
        if (item.action == Action::kRefuse) item.refusal = refusal_of(item);
        chosen.push_back(std::move(item));
        continue;
      }
      const bool candidate = is_candidate(item);
      bool wanted = candidate && matches(options_.include, item.name, included);
      if (options_.include.empty()) wanted = candidate && (item.imported || !has_imports);
      if ((candidate || item.action != Action::kKeep) && matches(options_.exclude, item.name, excluded)) {
        exclude(std::move(item), chosen);
        continue;
      }
      if (wanted) item.action = is_empty(item) ? Action::kRefuse : Action::kQuantize;
      if (item.action == Action::kRefuse) item.refusal = refusal_of(item);
      chosen.push_back(std::move(item));
    }
    items_ = std::move(chosen);
    ISOBIT_RETURN_IF_ERROR(all_used("--include", options_.include, included, "matrix of floats"));
    ISOBIT_RETURN_IF_ERROR(all_used("--exclude", options_.exclude, excluded, "matrix of floats or quantised tensor"));
    const bool something = std::any_of(items_.begin(), items_.end(), [](const Item& item) {
      return item.action == Action::kQuantize || item.action == Action::kImport || item.action == Action::kRefuse;
    });
    if (!something)
      return refuse(options_.model + ": holds no matrix to quantise or import" +
                    (gguf_ && !gguf_->split_text().empty() ? "; it is " + gguf_->split_text() : ""));
    if (gguf_ && !gguf_->split_text().empty() && options_.include.empty())
      return refuse(options_.model + ": the file is " + gguf_->split_text() +
                    "; --include GLOB packs tensors of this part all the same");
    ISOBIT_RETURN_IF_ERROR(all_have_a_use());
    out_.refusal = refusals();
    return options_.dry_run || out_.refusal.empty() ? Status() : Status(StatusCode::kUnsupported, out_.refusal);
  }

  /// All of them: of another tool's weights one for each format, of everything else one for each tensor.
  [[nodiscard]] std::string refusals() const {
    std::string text;
    const auto add = [&text](const std::string& line) { text += (text.empty() ? "" : "\n") + line; };
    for (const ForeignFormat& format : foreign_) {
      const auto of_it = [&format](const Item& item) {
        return item.action == Action::kRefuse && item.foreign == format.name;
      };
      if (std::any_of(items_.begin(), items_.end(), of_it))
        add(options_.model + ": holds " + foreign_text(format) + (foreign_said_ ? "; " + *foreign_said_ : "") +
            "; that is not imported: pack the float model, or name float weights of this file to take with --include");
    }
    bool unreadable = false;  // the message with the types that are read, once
    for (const Item& item : items_) {
      if (item.action != Action::kRefuse || !item.foreign.empty()) continue;
      const bool again = unreadable && !is_empty(item);
      add(again ? "--exclude '" + escaped(item.name) + "' leaves out the next one, of type " + item.type
                : item.refusal);
      unreadable = unreadable || !is_empty(item);
    }
    return text;
  }

  /// As it is, where a safetensors file can hold that: blocks of GGUF and types that are not read it cannot.
  void exclude(Item item, std::vector<Item>& chosen) const {
    if (item.action == Action::kRefuse || (gguf_ && item.action != Action::kKeep)) {
      item.action = Action::kLeaveOut;
      chosen.push_back(std::move(item));
    } else if (item.imported) {
      for (const std::string& name : parts_of(item.source)) chosen.push_back(as_it_is(name));
    } else {
      chosen.push_back(std::move(item));
    }
  }

  [[nodiscard]] static bool is_empty(const Item& item) {
    return !item.imported && std::find(item.shape.begin(), item.shape.end(), 0) != item.shape.end();
  }

  /// Matrices of floats without an element, and types that are listed but not read.
  [[nodiscard]] std::string refusal_of(const Item& item) const {
    if (!item.foreign.empty())
      return "belongs to weights quantised by " + item.foreign + "; --exclude '" + escaped(item.name) +
             (item.unread ? "' leaves it out" : "' keeps it as it is");
    if (is_empty(item))
      return array_label(options_.model, item.name) + " has the shape " + shape_text(item.shape) +
             ", must have elements; --exclude '" + escaped(item.name) + "' keeps it as it is";
    return reader_->read(item.source).status().message() + "; --exclude '" + escaped(item.name) + "' leaves it out";
  }

  /// What says how to quantise, where nothing is quantised. What is refused might have been.
  [[nodiscard]] Status all_have_a_use() const {
    const bool quantises = std::any_of(items_.begin(), items_.end(), [](const Item& item) {
      return item.action == Action::kQuantize || item.action == Action::kRefuse;
    });
    if (quantises) return {};
    const std::string option = options_.bits && !stored_by_options_    ? "--bits " + std::to_string(*options_.bits)
                               : options_.group && !stored_by_options_ ? "--group " + std::to_string(*options_.group)
                               : !options_.kind.empty()                ? "--kind " + options_.kind
                               : !options_.method.empty()              ? "--method " + options_.method
                               : !options_.scales.empty()              ? "--scales " + options_.scales
                                                                       : "";
    if (option.empty()) return {};
    return refuse(option + ": the matrices of " + options_.model +
                  " are quantised already and are taken as they are; leave it out, or give --requantize");
  }

  [[nodiscard]] Status all_used(const char* option, const std::vector<std::string>& patterns,
                                const std::vector<bool>& used, const char* what) const {
    const auto unused = std::find(used.begin(), used.end(), false);
    if (unused == used.end()) return {};
    return refuse(std::string(option) + " " + patterns[static_cast<size_t>(unused - used.begin())] + ": " +
                  options_.model + " holds no " + what + " with such a name");
  }

  void describe_source() {
    out_.json.set("model", options_.model).set("dry_run", options_.dry_run);
    out_.json.set("checkpoint", checkpoint_ ? checkpoint_json(*checkpoint_) : Value());
    out_.text = options_.model + ": " + count_text(static_cast<int64_t>(items_.size()), "tensor");
    if (checkpoint_) out_.text += "; " + checkpoint_text(*checkpoint_);
    const bool quantises =
        std::any_of(items_.begin(), items_.end(), [](const Item& item) { return item.action == Action::kQuantize; });
    if (quantises)
      out_.text += "; quantised by " + std::string(to_string(form_.method)) +
                   (options_.method.empty() ? ", the default at " + count_text(form_.bits, "bit") : "");
    describe_metadata();
    for (const Item& item : items_)
      name_width_ = std::clamp(static_cast<int>(escaped(item.name).size()), name_width_, kMaxNameWidth);
    out_.text += "\n" + format("%-*s %-14s %-10s %-36s %6s %8s %12s %12s\n", name_width_, "tensor", "shape", "was",
                               "becomes", "bits/w", "SQNR dB", "bytes", "packed");
  }

  /// What is kept of a GGUF file's, and what is not and why.
  void describe_metadata() {
    Value json, left_out = Value::array();
    if (gguf_) {
      const auto kept = static_cast<int64_t>(gguf_->metadata().size() - left_out_.size());
      out_.text += "; metadata: " + std::to_string(kept) + " of " +
                   count_text(static_cast<int64_t>(gguf_->metadata().size()), "value") + " kept";
      for (const auto& [key, reason] : left_out_) {
        out_.text += "\n  left out: " + escaped(key) + ", " + reason;
        left_out.add(Value::object().set("key", key).set("reason", reason));
      }
      json = Value::object();
      json.set("kept", kept).set("left_out", std::move(left_out));
    }
    out_.json.set("metadata", std::move(json));
  }

  Status pack_all() {
    Progress progress("packing", options_.quiet);
    uint64_t done = 0, all = 0;
    for (const Item& item : items_) all += item.bytes;
    for (const Item& item : items_) {
      progress.update(static_cast<double>(done) / static_cast<double>(std::max<uint64_t>(all, 1)));
      done += item.bytes;
      ISOBIT_ASSIGN_OR_RETURN(const Packed packed, pack(item));
      describe(item, packed);
    }
    return {};
  }

  Result<Packed> pack(const Item& item) {
    if (item.action == Action::kQuantize) return quantize(item);
    Packed packed;
    if (item.action == Action::kLeaveOut || item.action == Action::kRefuse) {
      packed.shape = item.shape;
      return packed;
    }
    if (item.action == Action::kImport) {
      ISOBIT_ASSIGN_OR_RETURN(ImportedLowBit imported, import(item));
      packed.cleared_groups = imported.cleared_groups;
      packed.permuted = !imported.permutation.empty();
      packed.suspected = imported.suspected;
      packed.bytes = static_cast<uint64_t>(imported.matrix.size_bytes());
      packed.matrix = imported.matrix;
      packed.shape = {imported.matrix.rows(), imported.matrix.columns()};
      if (packed.permuted) {
        Array permutation = Array::copy_of(imported.permutation.data(), {imported.matrix.columns()});
        packed.bytes += permutation.bytes.size();
        ISOBIT_RETURN_IF_ERROR(put(low_bit_permutation_name(item.name), std::move(permutation)));
      }
      ISOBIT_RETURN_IF_ERROR(put(item.name, std::move(imported.matrix)));
      return packed;
    }
    ISOBIT_ASSIGN_OR_RETURN(Array array, take(item));
    packed.bytes = array.bytes.size();
    packed.shape = array.shape;
    ISOBIT_RETURN_IF_ERROR(put(item.name, std::move(array)));
    return packed;
  }

  Result<Packed> quantize(const Item& item) {
    Array weights;
    Packed packed;
    if (item.imported) {
      ISOBIT_ASSIGN_OR_RETURN(const ImportedLowBit imported, import(item));
      ISOBIT_ASSIGN_OR_RETURN(weights, dense_weights(imported.matrix, imported.permutation));
    } else {
      ISOBIT_ASSIGN_OR_RETURN(weights, take(item));
      if (weights.dtype == Dtype::kF64) weights = Array::copy_of(weights.to_float().data(), weights.shape);
    }
    packed.shape = weights.shape;
    LowBitOptions form = form_;
    if (form.group == 0 || form.group > weights.shape[1]) form.group = weights.shape[1];
    const std::string label = array_label(options_.model, item.name);
    ISOBIT_ASSIGN_OR_RETURN(packed.matrix, quantize_low_bit(weights, form, label, &pool_));
    ISOBIT_ASSIGN_OR_RETURN(packed.sqnr, sqnr(weights, *packed.matrix, label, &pool_));
    packed.bytes = static_cast<uint64_t>(packed.matrix->size_bytes());
    ISOBIT_RETURN_IF_ERROR(put(item.name, *packed.matrix));
    return packed;
  }

  Result<ImportedLowBit> import(const Item& item) const {
    if (gguf_) return import_gguf(*gguf_, item.source);
    auto imported = import_checkpoint(file_.arrays, item.source, checkpoint_->options, options_.model);
    if (imported.ok() || !options_.checkpoint_format.empty()) return imported;
    return Status(imported.status().code(), imported.status().message() + " (read as " + checkpoint_text(*checkpoint_) +
                                                "; --checkpoint-format overrules that)");
  }

  /// A tensor as an array; each is asked for once.
  Result<Array> take(const Item& item) {
    if (gguf_) return gguf_->read(item.source);
    return std::move(file_.arrays.at(item.source));
  }

  Status put(const std::string& name, Array array) {
    return content_.arrays.emplace(name, std::move(array)).second ? Status() : same_name(name);
  }
  Status put(const std::string& name, LowBitMatrix matrix) {
    return content_.matrices.emplace(name, std::move(matrix)).second ? Status() : same_name(name);
  }
  [[nodiscard]] Status same_name(const std::string& name) const {
    return refuse(options_.model + ": two tensors of the result would be named " + name);
  }

  // -------------------------------------------------------------------------------------------------------------
  // Report

  void describe(const Item& item, const Packed& packed) {
    std::string bits_text;
    Value entry = Value::object();
    entry.set("name", item.name).set("shape", shape_json(packed.shape)).set("type", item.type);
    entry.set("action", kActionNames[static_cast<size_t>(item.action)]);
    if (packed.matrix) {
      const double bits = bits_per_weight(*packed.matrix);
      bits_text = format("%.3f", bits);
      set_form(packed.matrix->parameters(), entry);
      entry.set("bits_per_weight", bits);
    }
    entry.set("sqnr_db", packed.sqnr ? Value(*packed.sqnr) : Value());
    entry.set("bytes", item.bytes).set("packed_bytes", packed.bytes);
    entry.set("method", item.action == Action::kQuantize ? Value(to_string(form_.method)) : Value());
    entry.set("cleared_groups", packed.cleared_groups).set("permuted", packed.permuted);
    entry.set("suspected_format", packed.suspected ? Value(to_string(*packed.suspected)) : Value());
    entry.set("refusal", item.action == Action::kRefuse ? Value(item.refusal) : Value());
    tensors_.add(std::move(entry));
    bytes_ += item.bytes;
    packed_bytes_ += packed.bytes;
    const char* const texts[] = {"", "", "f32", "as it is", "left out", "refused"};
    std::string becomes = texts[static_cast<size_t>(item.action)];
    if (packed.matrix) becomes = form_text(packed.matrix->parameters());
    std::string error;
    if (item.action == Action::kImport) error = "imported";
    if (packed.sqnr) error = std::isinf(*packed.sqnr) ? "exact" : format("%.2f", *packed.sqnr);
    out_.text +=
        format("%-*s %-14s %-10s %-36s %6s %8s %12llu %12llu\n", name_width_, escaped(item.name).c_str(),
               shape_text(packed.shape).c_str(), item.type.c_str(), becomes.c_str(), bits_text.c_str(), error.c_str(),
               static_cast<unsigned long long>(item.bytes), static_cast<unsigned long long>(packed.bytes));
    if (item.action == Action::kRefuse) out_.text += "  " + escaped(item.refusal) + "\n";
    if (packed.permuted) out_.text += "  columns sorted by group: its permutation is saved beside it\n";
    if (packed.suspected)
      out_.text += "  every zero point is one off the middle: is its format " +
                   std::string(to_string(*packed.suspected)) + "?\n";
    if (packed.cleared_groups > 0)
      out_.text += "  " + count_text(packed.cleared_groups, "group") +
                   " of scale 0 with codes that counted for nothing: they are the code of zero now\n";
  }

  Result<Outcome> finish() {
    out_.text += format("%-*s %-14s %-10s %-36s %6s %8s %12llu %12llu\n", name_width_, "all", "", "", "", "", "",
                        static_cast<unsigned long long>(bytes_), static_cast<unsigned long long>(packed_bytes_));
    Value total = Value::object();
    total.set("bytes", bytes_).set("packed_bytes", packed_bytes_);
    out_.json.set("tensors", std::move(tensors_)).set("total", std::move(total));
    if (options_.dry_run) {
      out_.json.set("output", Value()).set("bytes", Value());
      out_.text += "dry run: nothing written\n";
      return std::move(out_);
    }
    ISOBIT_RETURN_IF_ERROR(save_low_bit(options_.output, content_));
    std::error_code error;
    const auto bytes = std::filesystem::file_size(options_.output, error);
    out_.json.set("output", options_.output).set("bytes", error ? Value() : Value(bytes));
    out_.text += "saved " + options_.output + (error ? "" : ", " + std::to_string(bytes) + " bytes") + "\n";
    return std::move(out_);
  }

  const PackOptions& options_;
  const LowBitOptions form_;
  ThreadPool pool_;
  std::optional<ArrayReader> reader_;
  std::optional<GgufFile> gguf_;  // the model: this, which points into reader_, or file_
  ArrayFile file_;
  std::optional<CheckpointDescription> checkpoint_;
  std::vector<ForeignFormat> foreign_;
  std::optional<std::string> foreign_said_;  // by a file beside the model
  bool stored_by_options_ = false;           // --bits and --group say how the checkpoint is stored
  std::vector<Item> items_;
  std::vector<std::pair<std::string, std::string>> left_out_;  // metadata: key, reason
  LowBitFile content_;
  Outcome out_;
  int name_width_ = 6;
  Value tensors_ = Value::array();
  uint64_t bytes_ = 0, packed_bytes_ = 0;
};

}  // namespace

Result<Outcome> pack(const PackOptions& options) {
  if (options.output.empty() && !options.dry_run) return refuse("-o OUT is missing; --dry-run reports without writing");
  ISOBIT_RETURN_IF_ERROR(check_threads(options.threads));
  FileClaims files;
  if (!options.dry_run) ISOBIT_RETURN_IF_ERROR(check_output(options.output, "-o", OutputKind::kSafetensors, files));
  ISOBIT_RETURN_IF_ERROR(claim_checkpoint(options.model, "MODEL", files));
  ISOBIT_ASSIGN_OR_RETURN(const LowBitOptions form, parse_options(options));
  return Packer(options, form).run();
}

}  // namespace isobit::tool
