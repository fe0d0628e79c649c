// SPDX-License-Identifier: Apache-2.0
// Packing of models: what becomes of each tensor (PackPlan), and the work (Packing::Impl).
#include "isobit/pack.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "io/container.h"
#include "isobit/gguf.h"
#include "isobit/sequences.h"
#include "low_bit/importers.h"

namespace isobit {
namespace {

constexpr std::string_view kActionNames[] = {"quantize", "import", "dequantize", "keep", "leave_out", "refuse"};

Status refuse(const std::string& what) { return {StatusCode::kInvalidArgument, what}; }

bool is_float_type(const std::string& type) {
  constexpr std::string_view kTypes[] = {"f16", "bf16", "f32", "f64", "F16", "BF16", "F32"};
  return std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes);
}

/// Of floats: whether they can be weights of a convolution.
bool is_conv(const PackTensor& tensor) { return tensor.shape.size() == 4 && !tensor.quantized; }

bool is_empty(const PackTensor& tensor) {
  return !tensor.quantized && std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
}

/// Patterns of one option, and which of them named something.
class Patterns {
 public:
  Patterns(const char* option, const std::vector<std::string>& patterns)
      : option_(option), patterns_(patterns), used_(patterns.size()) {}

  bool match(const std::string& name) {
    bool any = false;
    for (size_t i = 0; i < patterns_.size(); ++i)
      if (fnmatch(patterns_[i].c_str(), name.c_str(), 0) == 0) any = used_[i] = true;
    return any;
  }
  [[nodiscard]] Status all_used(const std::string& model, const char* what) const {
    const auto unused = std::find(used_.begin(), used_.end(), false);
    if (unused == used_.end()) return {};
    return refuse(std::string(option_) + " " + patterns_[static_cast<size_t>(unused - used_.begin())] + ": " + model +
                  " holds no " + what + " with such a name");
  }

 private:
  const char* option_;
  const std::vector<std::string>& patterns_;
  std::vector<bool> used_;
};

}  // namespace

std::string_view to_string(PackAction action) { return kActionNames[static_cast<size_t>(action)]; }

LowBitOptions PackOptions::form() const {
  LowBitOptions form;
  form.bits = bits.value_or(form.bits);
  form.group = group.value_or(form.group);
  form.kind = kind.value_or(form.kind);
  form.method = method.value_or(default_low_bit_method(form.bits, form.kind));
  form.scales = scales.value_or(form.scales);
  return form;
}

Result<PackedConv> pack_conv(const Array& weights, const PackOptions& options, const std::string& name,
                             ThreadPool* pool) {
  const ConvLayout layout = *options.conv_layout;
  const int64_t groups = options.conv_groups.value_or(1);
  ISOBIT_ASSIGN_OR_RETURN(Array floats, conv_weights_from(weights, layout, groups, name));
  if (floats.dtype == Dtype::kF64) floats = Array::copy_of(floats.to_float().data(), floats.shape);
  ISOBIT_ASSIGN_OR_RETURN(ConvWeights conv, conv_weights_of(floats, name));
  if (layout == ConvLayout::kIohw) conv.transposed_groups = groups;
  LowBitOptions form = options.form();
  form.group = std::min(form.group, conv.channels);
  ISOBIT_ASSIGN_OR_RETURN(LowBitMatrix matrix, quantize_conv_weights(floats, form, name, pool));
  floats.shape = {matrix.rows(), matrix.columns()};
  return PackedConv{conv, std::move(matrix), std::move(floats)};
}

struct Packing::Impl {
  Impl(std::string path, PackOptions pack_options) : model(std::move(path)), options(std::move(pack_options)) {}

  const std::string model;
  const PackOptions options;
  std::optional<ArrayReader> reader;
  std::optional<GgufFile> gguf;  // the model: this, which points into reader, or file
  ArrayFile file;
  std::optional<CheckpointDescription> checkpoint;
  std::vector<ForeignFormat> foreign;
  std::optional<std::string> foreign_said;  // by a file beside the model
  bool stored_by_options = false;           // bits and group say how the checkpoint is stored
  std::vector<PackTensor> tensors;
  std::string refusal;
  std::optional<PackedMetadata> metadata;
  LowBitFile content;
  ThreadPool* pool = nullptr;

  Status plan() {
    if (const int64_t group = options.group.value_or(0); group < 0)
      return refuse("--group " + std::to_string(group) + ": expected 0, a whole row, or more");
    if (options.conv_groups && options.conv_layout != ConvLayout::kIohw)
      return refuse("--groups " + std::to_string(*options.conv_groups) +
                    ": is for --weight-layout iohw, whose weights depend on it");
    ISOBIT_ASSIGN_OR_RETURN(reader, ArrayReader::open(model));
    if (reader->kind() == FileKind::kOnnx)
      return refuse(model +
                    ": is an ONNX model, of which GRU nodes are read and no other weights; save its "
                    "initialisers with numpy.savez (onnx.numpy_helper.to_array)");
    ISOBIT_RETURN_IF_ERROR(reader->gguf() != nullptr ? open_gguf() : open_arrays());
    return choose();
  }

  // -------------------------------------------------------------------------------------------------------------
  // What the model holds

  Status open_gguf() {
    if (options.checkpoint_format) return no_checkpoint();
    gguf = *reader->gguf();
    for (const GgufTensor& tensor : gguf->tensors()) {
      PackTensor item{tensor.name, tensor.name, tensor.type, tensor.shape, tensor.size_bytes};
      item.quantized = is_importable(tensor);
      item.action = item.quantized               ? PackAction::kImport
                    : is_float_type(tensor.type) ? PackAction::kKeep
                    : tensor.readable            ? PackAction::kDequantize
                                                 : PackAction::kRefuse;
      tensors.push_back(std::move(item));
    }
    ISOBIT_ASSIGN_OR_RETURN(GgufMetadataText text, gguf_metadata_to_text(gguf->metadata()));
    metadata = PackedMetadata{.values = static_cast<int64_t>(gguf->metadata().size()),
                              .kept = static_cast<int64_t>(gguf->metadata().size() - text.left_out.size()),
                              .left_out = std::move(text.left_out)};
    if (metadata->kept > 0) content.metadata.emplace(kGgufMetadataKey, std::move(text.text));
    return {};
  }

  Status open_arrays() {
    ISOBIT_ASSIGN_OR_RETURN(file, reader->read_readable());
    if (file.metadata.contains("isobit"))
      return refuse(model + ": is a file of isobit already; isobit inspect says what it holds");
    ISOBIT_RETURN_IF_ERROR(find_checkpoint());
    std::set<std::string> used;
    if (checkpoint) {
      for (const std::string& prefix : list_checkpoint_matrices(file.arrays)) {
        PackTensor item{prefix + ".weight", prefix, std::string(to_string(checkpoint->options.format)), {}};
        item.quantized = true;
        item.action = PackAction::kImport;
        for (const std::string& name : checkpoint_parts(file.arrays, prefix)) {
          item.bytes += file.arrays.at(name).bytes.size();
          used.insert(name);
        }
        tensors.push_back(std::move(item));
      }
    }
    for (const auto& [name, array] : file.arrays)
      if (!used.contains(name)) tensors.push_back(as_it_is(name));
    for (const ArrayEntry& entry : reader->entries()) {
      if (entry.dtype) continue;
      PackTensor item{entry.name, entry.name, entry.type, entry.shape, entry.size_bytes, PackAction::kRefuse};
      item.readable = false;
      tensors.push_back(std::move(item));
    }
    return find_foreign();
  }

  /// What another tool quantised is refused. Where only a file beside the model says that it is quantised, its floats
  /// may be anything, and are taken by name.
  Status find_foreign() {
    const std::vector<ListedTensor> listed = list_tensors(*reader);
    foreign = find_foreign_formats(listed);
    std::map<std::string, std::string> format_of;
    for (const ForeignFormat& format : foreign)
      for (const std::string& name : format.tensors) format_of.emplace(name, format.name);
    for (PackTensor& tensor : tensors) {
      const auto found = format_of.find(tensor.source);
      if (tensor.quantized || found == format_of.end()) continue;
      tensor.foreign = found->second;
      tensor.action = PackAction::kRefuse;
    }
    if (checkpoint) return {};
    ISOBIT_ASSIGN_OR_RETURN(foreign_said, find_foreign_description(model, listed));
    if (!foreign_said || !foreign.empty() || !options.include.empty()) return {};
    return {StatusCode::kUnsupported,
            model + ": " + *foreign_said +
                ", which is not imported, so its floats may be scales of quantised weights; " +
                "pack the float model, or name the float weights to take with --include"};
  }

  [[nodiscard]] PackTensor as_it_is(const std::string& name) const {
    const Array& array = file.arrays.at(name);
    return {name, name, std::string(to_string(array.dtype)), array.shape, array.bytes.size()};
  }

  [[nodiscard]] Status no_checkpoint() const {
    return refuse("--checkpoint-format " + std::string(to_string(*options.checkpoint_format)) + ": " + model +
                  " holds no tensors of GPTQ or AWQ (NAME.qweight)");
  }

  /// How GPTQ and AWQ tensors are read: what options say counts, then what lies beside the file. With a format, bits
  /// and group are options of that kind, unless they are those of requantize. Nothing is guessed.
  Status find_checkpoint() {
    if (list_checkpoint_matrices(file.arrays).empty()) return options.checkpoint_format ? no_checkpoint() : Status();
    CheckpointOverrides overrides{.format = options.checkpoint_format};
    if (options.requantize) ISOBIT_RETURN_IF_ERROR(describe_checkpoint(overrides));
    if (!checkpoint && overrides.format) {
      overrides.bits = options.bits;
      overrides.group = options.group == 0 ? -1 : options.group;
      stored_by_options = true;
    }
    if (!checkpoint) ISOBIT_RETURN_IF_ERROR(describe_checkpoint(overrides));
    if (checkpoint) return {};
    return refuse(model +
                  ": holds GPTQ or AWQ tensors, and neither a JSON file beside it nor its metadata says how "
                  "they are stored; give --checkpoint-format, --bits and --group");
  }

  Status describe_checkpoint(const CheckpointOverrides& overrides) {
    auto found = find_checkpoint_description(model, file.metadata, overrides);
    if (!found.ok() && !overrides.format)
      return {found.status().code(), checkpoint_refusal(found.status(), model, file.metadata)};
    ISOBIT_ASSIGN_OR_RETURN(checkpoint, std::move(found));
    return {};
  }

  // -------------------------------------------------------------------------------------------------------------
  // What is done with it

  [[nodiscard]] bool is_candidate(const PackTensor& tensor) const {
    if (tensor.quantized) return options.requantize;
    return tensor.action == PackAction::kKeep &&
           (tensor.shape.size() == 2 || (options.conv_layout && is_conv(tensor))) && is_float_type(tensor.type);
  }

  /// Actions by include and exclude.
  Status choose() {
    std::set<std::string> names;
    for (const PackTensor& tensor : tensors)
      if (!names.insert(tensor.name).second) return same_name(tensor.name);
    const bool has_imports =
        std::any_of(tensors.begin(), tensors.end(), [](const PackTensor& tensor) { return tensor.quantized; });
    Patterns include("--include", options.include), exclude("--exclude", options.exclude);
    std::vector<PackTensor> chosen;
    for (PackTensor& tensor : tensors) {
      const bool candidate = tensor.foreign.empty() && is_candidate(tensor);
      const bool can_be_included = candidate || !tensor.foreign.empty();
      const bool included = can_be_included && include.match(tensor.name);
      const bool excluded = (candidate || tensor.action != PackAction::kKeep) && exclude.match(tensor.name);
      if (!tensor.foreign.empty()) {
        if (excluded || (!included && !options.include.empty()))
          tensor.action = tensor.readable ? PackAction::kKeep : PackAction::kLeaveOut;
      } else if (excluded) {
        leave(std::move(tensor), chosen);
        continue;
      } else if (options.include.empty() ? candidate && (tensor.quantized || !has_imports) : included) {
        tensor.action = is_empty(tensor) ? PackAction::kRefuse : PackAction::kQuantize;
      }
      if (tensor.action == PackAction::kRefuse) tensor.refusal = refusal_of(tensor);
      chosen.push_back(std::move(tensor));
    }
    tensors = std::move(chosen);
    ISOBIT_RETURN_IF_ERROR(include.all_used(model, "matrix of floats"));
    ISOBIT_RETURN_IF_ERROR(exclude.all_used(model, "matrix of floats or quantised tensor"));
    const std::string split = gguf ? gguf->split_text() : "";
    if (!has(PackAction::kQuantize) && !has(PackAction::kImport) && !has(PackAction::kRefuse))
      return refuse(model + ": holds no matrix to quantise or import" +
                    (split.empty() ? no_layout() : "; it is " + split));
    if (!split.empty() && options.include.empty())
      return refuse(model + ": the file is " + split + "; --include GLOB packs tensors of this part all the same");
    const bool has_conv = std::any_of(tensors.begin(), tensors.end(), [](const PackTensor& tensor) {
      return (tensor.action == PackAction::kQuantize || tensor.action == PackAction::kRefuse) && is_conv(tensor);
    });
    if (options.conv_layout && !has_conv)
      return refuse("--weight-layout " + std::string(to_string(*options.conv_layout)) + ": " + model +
                    " holds no floats of 4 dimensions to quantise; leave it out");
    refusal = refusals();
    return all_have_a_use();
  }

  /// What would have found matrices.
  [[nodiscard]] std::string no_layout() const {
    const bool any = std::any_of(tensors.begin(), tensors.end(), [](const PackTensor& tensor) {
      return tensor.action == PackAction::kKeep && is_conv(tensor) && is_float_type(tensor.type);
    });
    return any && !options.conv_layout
               ? "; --weight-layout oihw, ohwi or iohw takes floats of 4 dimensions as weights of convolutions"
               : "";
  }

  [[nodiscard]] bool has(PackAction action) const {
    return std::any_of(tensors.begin(), tensors.end(),
                       [action](const PackTensor& tensor) { return tensor.action == action; });
  }

  /// All of them: of another tool's weights one for each format, of everything else one for each tensor.
  [[nodiscard]] std::string refusals() const {
    std::string text;
    const auto add = [&text](const std::string& line) { text += (text.empty() ? "" : "\n") + line; };
    for (const ForeignFormat& format : foreign) {
      const auto of_it = [&format](const PackTensor& tensor) {
        return tensor.action == PackAction::kRefuse && tensor.foreign == format.name;
      };
      if (std::any_of(tensors.begin(), tensors.end(), of_it))
        add(model + ": holds " + foreign_text(format) + (foreign_said ? "; " + *foreign_said : "") +
            "; that is not imported: pack the float model, or name float weights of this file to take with --include");
    }
    bool unreadable = false;  // the message with the types that are read, once
    for (const PackTensor& tensor : tensors) {
      if (tensor.action != PackAction::kRefuse || !tensor.foreign.empty()) continue;
      const bool again = unreadable && !is_empty(tensor);
      add(again ? "--exclude '" + escaped(tensor.name) + "' leaves out the next one, of type " + tensor.type
                : tensor.refusal);
      unreadable = unreadable || !is_empty(tensor);
    }
    return text;
  }

  /// As it is, where a safetensors file can hold that: blocks of GGUF and types that are not read it cannot.
  void leave(PackTensor tensor, std::vector<PackTensor>& chosen) const {
    if (tensor.action == PackAction::kRefuse || (gguf && tensor.action != PackAction::kKeep)) {
      tensor.action = PackAction::kLeaveOut;
      chosen.push_back(std::move(tensor));
    } else if (tensor.quantized) {
      for (const std::string& name : checkpoint_parts(file.arrays, tensor.source)) chosen.push_back(as_it_is(name));
    } else {
      chosen.push_back(std::move(tensor));
    }
  }

  /// Matrices of floats without an element, and types that are listed but not read.
  [[nodiscard]] std::string refusal_of(const PackTensor& tensor) const {
    if (!tensor.foreign.empty())
      return "belongs to weights quantised by " + tensor.foreign + "; --exclude '" + escaped(tensor.name) +
             (tensor.readable ? "' keeps it as it is" : "' leaves it out");
    if (is_empty(tensor))
      return array_label(model, tensor.name) + " has the shape " + list_text(tensor.shape) +
             ", must have elements; --exclude '" + escaped(tensor.name) + "' keeps it as it is";
    return reader->read(tensor.source).status().message() + "; --exclude '" + escaped(tensor.name) + "' leaves it out";
  }

  /// What says how to quantise, where nothing is quantised. What is refused might have been.
  [[nodiscard]] Status all_have_a_use() const {
    if (has(PackAction::kQuantize) || has(PackAction::kRefuse)) return {};
    const auto named = [](const char* option, std::string_view value) { return option + std::string(value); };
    const std::string option = options.bits && !stored_by_options    ? named("--bits ", std::to_string(*options.bits))
                               : options.group && !stored_by_options ? named("--group ", std::to_string(*options.group))
                               : options.kind                        ? named("--kind ", to_string(*options.kind))
                               : options.method                      ? named("--method ", to_string(*options.method))
                               : options.scales                      ? named("--scales ", to_string(*options.scales))
                                                                     : "";
    if (option.empty()) return {};
    return refuse(option + ": the matrices of " + model +
                  " are quantised already and are taken as they are; leave it out, or give --requantize");
  }

  // -------------------------------------------------------------------------------------------------------------
  // The work

  Status pack_all(const Report& report) {
    for (const PackTensor& tensor : tensors) {
      ISOBIT_ASSIGN_OR_RETURN(const PackedTensor packed, pack(tensor));
      if (report) report(tensor, packed);
    }
    return {};
  }

  Result<PackedTensor> pack(const PackTensor& tensor) {
    switch (tensor.action) {
      case PackAction::kQuantize: return quantize(tensor);
      case PackAction::kImport: return import(tensor);
      case PackAction::kDequantize:
      case PackAction::kKeep: return keep(tensor);
      case PackAction::kLeaveOut:
      case PackAction::kRefuse: break;
    }
    return PackedTensor{.shape = tensor.shape};
  }

  Result<PackedTensor> keep(const PackTensor& tensor) {
    ISOBIT_ASSIGN_OR_RETURN(Array array, take(tensor));
    PackedTensor packed{.shape = array.shape, .bytes = array.bytes.size()};
    ISOBIT_RETURN_IF_ERROR(put(tensor.name, std::move(array)));
    return packed;
  }

  Result<PackedTensor> import(const PackTensor& tensor) {
    ISOBIT_ASSIGN_OR_RETURN(ImportedLowBit imported, import_matrix(tensor));
    PackedTensor packed{.matrix = imported.matrix,
                        .shape = {imported.matrix.rows(), imported.matrix.columns()},
                        .bytes = static_cast<uint64_t>(imported.matrix.size_bytes()),
                        .cleared_groups = imported.cleared_groups,
                        .permuted = !imported.permutation.empty(),
                        .suspected = imported.suspected};
    if (packed.permuted) {
      Array permutation = Array::copy_of(imported.permutation.data(), {imported.matrix.columns()});
      packed.bytes += permutation.bytes.size();
      ISOBIT_RETURN_IF_ERROR(put(low_bit_permutation_name(tensor.name), std::move(permutation)));
    }
    ISOBIT_RETURN_IF_ERROR(put(tensor.name, std::move(imported.matrix)));
    return packed;
  }

  Result<PackedTensor> quantize(const PackTensor& tensor) {
    Array weights;
    if (tensor.quantized) {
      ISOBIT_ASSIGN_OR_RETURN(const ImportedLowBit imported, import_matrix(tensor));
      ISOBIT_ASSIGN_OR_RETURN(weights, dequantize_low_bit(imported.matrix, imported.permutation));
    } else {
      ISOBIT_ASSIGN_OR_RETURN(weights, take(tensor));
      if (weights.dtype == Dtype::kF64) weights = Array::copy_of(weights.to_float().data(), weights.shape);
    }
    PackedTensor packed{.shape = weights.shape};
    LowBitOptions form = options.form();
    const std::string label = array_label(model, tensor.name);
    if (is_conv(tensor)) {
      ISOBIT_ASSIGN_OR_RETURN(PackedConv made, pack_conv(weights, options, label, pool));
      packed.matrix = std::move(made.matrix);
      weights = std::move(made.floats);
      content.convolutions.emplace(tensor.name, made.convolution);
    } else {
      if (form.group == 0 || form.group > weights.shape[1]) form.group = weights.shape[1];
      ISOBIT_ASSIGN_OR_RETURN(packed.matrix, quantize_low_bit(weights, form, label, pool));
    }
    ISOBIT_ASSIGN_OR_RETURN(packed.sqnr, sqnr(weights, *packed.matrix, label, pool));
    packed.bytes = static_cast<uint64_t>(packed.matrix->size_bytes());
    ISOBIT_RETURN_IF_ERROR(put(tensor.name, *packed.matrix));
    return packed;
  }

  [[nodiscard]] Result<ImportedLowBit> import_matrix(const PackTensor& tensor) const {
    if (gguf) return import_gguf(*gguf, tensor.source);
    auto imported = import_checkpoint(file.arrays, tensor.source, checkpoint->options, model);
    if (imported.ok() || options.checkpoint_format) return imported;
    return Status(imported.status().code(), imported.status().message() + " (read as " + checkpoint_text(*checkpoint) +
                                                "; --checkpoint-format overrules that)");
  }

  /// A tensor as an array; each is asked for once.
  Result<Array> take(const PackTensor& tensor) {
    if (gguf) return gguf->read(tensor.source);
    return std::move(file.arrays.at(tensor.source));
  }

  Status put(const std::string& name, Array array) {
    return content.arrays.emplace(name, std::move(array)).second ? Status() : same_name(name);
  }
  Status put(const std::string& name, LowBitMatrix matrix) {
    return content.matrices.emplace(name, std::move(matrix)).second ? Status() : same_name(name);
  }
  [[nodiscard]] Status same_name(const std::string& name) const {
    return refuse(model + ": two tensors of the result would be named " + name);
  }
};

Packing::Packing(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Packing::Packing(Packing&&) noexcept = default;
Packing& Packing::operator=(Packing&&) noexcept = default;
Packing::~Packing() = default;

Result<Packing> Packing::plan(const std::string& model, const PackOptions& options) {
  auto impl = std::make_unique<Impl>(model, options);
  ISOBIT_RETURN_IF_ERROR(impl->plan());
  return Packing(std::move(impl));
}

const std::vector<PackTensor>& Packing::tensors() const { return impl_->tensors; }
const std::string& Packing::refusal() const { return impl_->refusal; }
const std::optional<CheckpointDescription>& Packing::checkpoint() const { return impl_->checkpoint; }
const std::optional<PackedMetadata>& Packing::metadata() const { return impl_->metadata; }

Result<LowBitFile> Packing::run(ThreadPool* pool, const Report& report) && {
  if (!impl_->refusal.empty()) return Status(StatusCode::kUnsupported, impl_->refusal);
  impl_->pool = pool;
  ISOBIT_RETURN_IF_ERROR(impl_->pack_all(report));
  return std::move(impl_->content);
}

Status Packing::rehearse(ThreadPool* pool, const Report& report) && {
  impl_->pool = pool;
  return impl_->pack_all(report);
}

}  // namespace isobit
