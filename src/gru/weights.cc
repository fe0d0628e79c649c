// SPDX-License-Identifier: Apache-2.0
// Float weights: checks, and the arrays of a file as layers.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "core/float_mode.h"
#include "core/number_text.h"
#include "gru/weight_names.h"
#include "io/container.h"
#include "isobit/arrays.h"
#include "isobit/gru.h"
#include "isobit/nearest.h"

namespace isobit {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;  // of C and H: 3 * H * C fits easily

// ---------------------------------------------------------------------------------------------------------------
// Checks

Status check_tensor(const std::string& name, const std::vector<float>& values, int64_t rows, int64_t columns) {
  if (static_cast<int64_t>(values.size()) != rows * columns) {
    return {StatusCode::kInvalidArgument, name + " has " + std::to_string(values.size()) + " values, must have " +
                                              std::to_string(rows) + " x " + std::to_string(columns)};
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    const auto index = static_cast<int64_t>(i);
    return {StatusCode::kInvalidArgument, name + "[" + std::to_string(index / columns) +
                                              (columns == 1 ? std::string() : ", " + std::to_string(index % columns)) +
                                              "] is " + number_text(static_cast<double>(values[i])) +
                                              ", must be finite"};
  }
  return {};
}

Status refuse_reset_before(const std::string& what, const std::string& way_out = "") {
  return {StatusCode::kUnsupported,
          what +
              " is not supported: there the reset gate is applied to h before the matrix product, R_n (r * h), "
              "which cannot be computed from isobit's r * (R_n h + br_n); the weights would give other results. "
              "Use a GRU with reset_after = true (PyTorch, Keras's default) or linear_before_reset = 1 (ONNX)" +
              way_out};
}

// ---------------------------------------------------------------------------------------------------------------
// Values

/// FNV-1a, 64 bits, over the arrays in the order of their names: name, 0, dtype token, 0, number of dimensions and
/// dimensions as 8 little-endian bytes each, content. It tells models apart; it is no signature.
class SourceHash {
 public:
  void add(const std::string& name, const Array& array) {
    add_text(name);
    add_text(to_string(array.dtype));
    add_integer(static_cast<uint64_t>(array.shape.size()));
    for (const int64_t dimension : array.shape) add_integer(static_cast<uint64_t>(dimension));
    for (const std::byte byte : array.bytes) add_byte(static_cast<uint8_t>(byte));
  }
  [[nodiscard]] std::string text() const {
    std::string hex;
    for (int shift = 60; shift >= 0; shift -= 4) hex += "0123456789abcdef"[(hash_ >> shift) & 15];
    return hex;
  }

 private:
  void add_byte(uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3; }
  void add_integer(uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) add_byte(static_cast<uint8_t>(value >> shift));
  }
  void add_text(std::string_view text) {
    for (const char c : text) add_byte(static_cast<uint8_t>(c));
    add_byte(0);
  }

  uint64_t hash_ = 0xcbf29ce484222325;
};

/// The arrays of one network as layers.
class LayerReader {
 public:
  LayerReader(const ArrayReader& file, const std::string& prefix, const Network& network, const GruLoadOptions& options)
      : file_(file), prefix_(prefix), network_(network), options_(options) {}

  Result<GruWeights> read() {
    ISOBIT_RETURN_IF_ERROR(read_arrays());
    ISOBIT_RETURN_IF_ERROR(choose_defaults());
    weights_.name = prefix_;
    const MatrixShape first = *shape_of(network_.layers.begin()->second[kWeightHh]);
    weights_.directions = static_cast<int32_t>(first.count);
    for (const auto& [place, parts] : network_.layers)
      weights_.directions = std::max(weights_.directions, static_cast<int32_t>(place.second) + 1);
    for (int64_t l = 0; l < network_.layer_count(); ++l)
      for (int64_t d = 0; d < weights_.directions; ++d) ISOBIT_RETURN_IF_ERROR(read_layer(l, d, first.count));
    SourceHash hash;
    for (const auto& [name, array] : arrays_) hash.add(name, array);
    weights_.source_hash = hash.text();
    return std::move(weights_);
  }

 private:
  [[nodiscard]] Status invalid(const std::string& text) const {
    return {StatusCode::kInvalidFile, file_.name() + ": " + text};
  }
  static std::string label(const ArrayEntry& entry) {
    return "array " + in_quotes(entry.name) + " has the shape " + shape_text(entry.shape);
  }
  void note(const std::string& text) {
    if (!network_.nodes.empty()) return;  // what their operator says is not recognised but known
    std::vector<std::string>& notes = weights_.report.notes;
    if (std::find(notes.begin(), notes.end(), text) == notes.end()) notes.push_back(text);
  }
  [[nodiscard]] std::optional<MatrixShape> shape_of(const ArrayEntry* entry) const {
    return matrix_shape(*entry, network_.naming);
  }

  Status read_arrays() {
    for (const auto& [place, parts] : network_.layers) {
      for (const ArrayEntry* entry : parts) {
        if (entry == nullptr || arrays_.count(entry->name) > 0) continue;
        if (entry->dtype && !is_float(*entry->dtype)) {
          return invalid("array " + in_quotes(entry->name) + " is " + std::string(to_string(*entry->dtype)) +
                         ", must be f16, bf16, f32 or f64; are these codes of quantised weights? Give the float model");
        }
        ISOBIT_ASSIGN_OR_RETURN(Array array, file_.read(entry->name));
        arrays_.emplace(entry->name, std::move(array));
      }
    }
    return {};
  }

  /// Gate order and layout: what the caller says, then what the shapes say, then what the names say.
  Status choose_defaults() {
    GruLoadReport& report = weights_.report;
    const Parts& parts = network_.layers.begin()->second;
    const ArrayEntry& W = *parts[kWeightIh];
    const ArrayEntry& R = *parts[kWeightHh];
    const MatrixShape r = *shape_of(&R);
    const bool is_onnx =
        network_.naming == Naming::kOnnx || (network_.naming == Naming::kOwn && R.shape.size() == 3);
    const bool is_keras = network_.has_keras_names;
    const bool is_node = !network_.nodes.empty();  // whose operator says what its arrays are
    report.gate_order_assumed = !options_.gate_order && !is_node;
    report.layout_assumed = !options_.layout && !is_node;
    report.reset_assumed = !options_.reset_after && !is_node;
    report.gate_order = options_.gate_order.value_or(is_onnx || is_keras ? GateOrder::kOnnx : GateOrder::kRun);
    if (is_keras) note("names of Keras and Haste (" + in_quotes(R.name) + "): their gate order is onnx (z r h)");
    if (is_onnx) note("names or shapes of ONNX (" + in_quotes(R.name) + "): its gate order is onnx (z r h)");
    if (options_.layout) {
      report.layout = *options_.layout;
      return {};
    }
    report.layout = is_keras ? GruLayout::kColumns : GruLayout::kRows;
    const std::optional<MatrixShape> w = shape_of(&W);
    if (!w) return {};  // read_layer says so
    const GruLayout shown = r.rows > r.columns ? GruLayout::kRows : GruLayout::kColumns;
    if (shown == report.layout || w->rows == w->columns) return {};
    report.layout = shown;
    report.layout_note = "layout " + std::string(to_string(shown)) + ", as the shapes of " + in_quotes(W.name) + " " +
                         shape_text(W.shape) + " and " + in_quotes(R.name) + " " + shape_text(R.shape) + " say";
    return {};
  }

  Status read_layer(int64_t l, int64_t d, int64_t count) {
    // ONNX has both directions in one array.
    const int64_t index = count == 2 ? d : 0;
    const auto found = network_.layers.find({l, count == 2 ? 0 : d});
    const Parts& parts = found->second;
    const ArrayEntry& W = *parts[kWeightIh];
    const ArrayEntry& R = *parts[kWeightHh];
    if (count == 2 && network_.layers.count({l, 1}) > 0)
      return invalid(label(R) + ", both directions, but the reverse one is there by itself, too");
    const bool columns = weights_.report.layout == GruLayout::kColumns;
    // R alone says what H is; of W only C is free.
    MatrixShape r = *shape_of(&R);
    if (columns) std::swap(r.rows, r.columns);
    if (r.count != count || r.columns < 1 || r.columns > kMaxSize || r.rows != 3 * r.columns) {
      return invalid(label(R) + ", must be " + (columns ? "(H, 3 * H)" : "(3 * H, H)") +
                     (r.columns == 3 * r.rows ? std::string("; the layout ") + (columns ? "rows" : "columns") +
                                                    " (--layout) reads (" + (columns ? "3 * H, H)" : "H, 3 * H)")
                                              : ""));
    }
    GruLayerWeights layer;
    layer.hidden_size = r.columns;
    const int64_t rows = r.rows;
    std::optional<MatrixShape> w = shape_of(&W);
    if (w && columns) std::swap(w->rows, w->columns);
    if (!w || w->count != count || w->rows != rows || w->columns < 1 || w->columns > kMaxSize) {
      return invalid(label(W) + ", must be " +
                     (columns ? "(C, " + std::to_string(rows) + ")" : "(" + std::to_string(rows) + ", C)") + ": " +
                     in_quotes(R.name) + " has H = " + std::to_string(layer.hidden_size));
    }
    layer.input_size = w->columns;
    if (l > 0 && layer.input_size != weights_.output_size()) {
      return invalid(label(W) + ": layer " + std::to_string(l) + ": C is " + std::to_string(layer.input_size) +
                     ", must be " + std::to_string(weights_.output_size()) + ", directions * H of the layer below");
    }
    for (const ArrayEntry* entry : {&W, &R}) {
      if (entry->shape.size() != 3) continue;
      note(in_quotes(entry->name) + " " + shape_text(entry->shape) +
           (count == 2 ? ": its first dimension counts directions" : ": its leading 1 is removed"));
    }
    ISOBIT_ASSIGN_OR_RETURN(layer.W, read_blocks(W, index * rows * w->columns, rows, w->columns));
    ISOBIT_ASSIGN_OR_RETURN(layer.R, read_blocks(R, index * rows * r.columns, rows, r.columns));
    ISOBIT_RETURN_IF_ERROR(read_biases(*found, index, count, layer));
    weights_.layers.push_back(std::move(layer));
    return {};
  }

  Status read_biases(const std::pair<const Place, Parts>& found, int64_t index, int64_t count, GruLayerWeights& layer) {
    const auto& [place, parts] = found;
    const int64_t rows = 3 * layer.hidden_size;
    const bool by_pytorch =
        network_.naming == Naming::kPytorch || (network_.naming == Naming::kOwn && network_.given.count(place) == 0);
    layer.bw.resize(static_cast<size_t>(rows));
    layer.br.resize(static_cast<size_t>(rows));
    const ArrayEntry* const first = parts[kBiasIh];
    const ArrayEntry* const second = parts[kBiasHh];
    if (first != nullptr && second == nullptr && !by_pytorch) {
      int64_t size = 1;
      for (const int64_t dimension : first->shape) size *= dimension;
      const bool halves = first->shape == std::vector<int64_t>{2, rows} && count == 1;
      const bool joined = first->shape == std::vector<int64_t>{count, 2 * rows} ||
                          (count == 1 && first->shape == std::vector<int64_t>{2 * rows});
      if (halves || joined) {
        note(in_quotes(first->name) + " " + shape_text(first->shape) + ": the bias of W, then that of R");
        const int64_t begin = index * 2 * rows;
        ISOBIT_ASSIGN_OR_RETURN(layer.bw, read_blocks(*first, begin, rows, 1));
        ISOBIT_ASSIGN_OR_RETURN(layer.br, read_blocks(*first, begin + rows, rows, 1));
        return {};
      }
      if (network_.naming != Naming::kKeras)
        return invalid(label(*first) + ", must be " + shape_text({count, 2 * rows}) +
                       ", the bias of W, then that of R, as there is no second bias");
      if (network_.naming == Naming::kKeras && size == rows)
        return refuse_reset_before(file_.name() + ": a GRU with a single bias, " + in_quotes(first->name) + " " +
                                   shape_text(first->shape) + " (Keras: reset_after = False),");
    }
    const std::pair<const ArrayEntry*, std::vector<float>*> biases[] = {{first, &layer.bw}, {second, &layer.br}};
    for (const auto& [entry, values] : biases) {
      if (entry == nullptr) continue;
      const bool has_count = (!by_pytorch || count == 1) && entry->shape == std::vector<int64_t>{count, rows};
      if (!has_count && (count != 1 || entry->shape != std::vector<int64_t>{rows}))
        return invalid(label(*entry) + ", must be " + shape_text({rows}));
      ISOBIT_ASSIGN_OR_RETURN(*values, read_blocks(*entry, has_count ? index * rows : 0, rows, 1));
    }
    return {};
  }

  /// `rows` times `columns` values of an array from `begin` on, in rows and the order u, r, n. Errors have the index in
  /// the file.
  Result<std::vector<float>> read_blocks(const ArrayEntry& entry, int64_t begin, int64_t rows, int64_t columns) const {
    const Array& array = arrays_.at(entry.name);
    const std::vector<float> all = array.to_float();
    const int64_t count = rows * columns;
    for (int64_t i = begin; i < begin + count; ++i) {
      if (!std::isfinite(all[static_cast<size_t>(i)])) return not_finite(entry, array, i);
    }
    const auto first = all.begin() + begin;
    std::vector<float> values(first, first + count);
    if (weights_.report.layout == GruLayout::kColumns && columns > 1) {
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < columns; ++column)
          values[static_cast<size_t>(row * columns + column)] = first[column * rows + row];
    }
    if (weights_.report.gate_order == GateOrder::kRun) {
      const auto block = static_cast<std::ptrdiff_t>(values.size() / 3);
      std::swap_ranges(values.begin(), values.begin() + block, values.begin() + block);
    }
    return values;
  }

  [[nodiscard]] Status not_finite(const ArrayEntry& entry, const Array& array, int64_t flat) const {
    std::string index;
    int64_t rest = flat;
    for (size_t d = entry.shape.size(); d-- > 0; rest /= entry.shape[d])
      index.insert(0, std::to_string(rest % entry.shape[d]) + (index.empty() ? "" : ", "));
    const float value = array.to_float()[static_cast<size_t>(flat)];
    std::string text = number_text(static_cast<double>(value));
    if (const double* wide = array.dtype == Dtype::kF64 ? array.data<double>() + flat : nullptr;
        wide != nullptr && std::isfinite(*wide))
      text = number_text(*wide) + ", " + text + " as float32";
    const std::string quoted = in_quotes(entry.name);
    return invalid(quoted.substr(1, quoted.size() - 2) + "[" + index + "] is " + text + ", must be finite");
  }

  const ArrayReader& file_;
  const std::string& prefix_;
  const Network& network_;
  const GruLoadOptions& options_;
  std::map<std::string, Array> arrays_;
  GruWeights weights_;
};

// ---------------------------------------------------------------------------------------------------------------
// What makes another function of the same weights

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

/// "sigmoid", "[\"Sigmoid\", \"Tanh\"]" and "sigmoid,tanh" as words.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : lower_case(text)) {
    const bool is_part = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    if (is_part) {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

/// Refuses a file that says of itself that it is another function. `reset_after`: what the caller says, and that wins.
/// `prefix`: of the GRU, in an ONNX model the name of one of its nodes.
Status check_metadata(const ArrayReader& file, const std::string& prefix, std::optional<bool> reset_after,
                      std::vector<std::string>& notes) {
  for (const auto& [name, value] : file.metadata()) {
    std::string key = name;
    if (!prefix.empty() && is_under(name, prefix)) key = name.substr(prefix.size() + 1);
    const bool is_node = file.kind() == FileKind::kOnnx;
    const std::string told = is_node ? "the GRU node " + in_quotes(prefix) + ": " + key + " = " + in_quotes(value)
                                     : "metadata " + in_quotes(name) + " = " + in_quotes(value);
    const std::string what = file.name() + ": " + told;
    const std::vector<std::string> words = words_of(value);
    const bool is_false = lower_case(value) == "0" || lower_case(value) == "false";
    if ((key == "reset_after" || key == "linear_before_reset") && is_false) {
      if (!reset_after)
        return refuse_reset_before(
            what, std::string("; --reset after overrules the file, where it is wrong") +
                      (is_node ? ", as PyTorch's dynamo exporter may have made it (onnxscript issue 2852)" : ""));
      notes.push_back(told + ", which --reset after overrules");
      continue;
    }
    const bool both = key == "activations";
    const bool gates = key == "recurrent_activation" || key == "gate_activation" || key == "gate_activations";
    if (!both && !gates && key != "activation") continue;
    for (size_t i = 0; i < words.size(); ++i) {
      const char* const wanted = gates || (both && i % 2 == 0) ? "sigmoid" : "tanh";
      if (words[i] == wanted) continue;
      return {StatusCode::kUnsupported, what + " is not supported: isobit's GRU has sigmoid for u and r and tanh for " +
                                            "n, and other activations make another network of these weights"};
    }
  }
  return {};
}

/// What a GRU node takes that is the caller's to give.
void add_node_notes(const ArrayReader& file, const Network& network, std::vector<std::string>& notes) {
  if (network.nodes.size() > 1) {
    std::string text = "a GRU of " + std::to_string(network.nodes.size()) + " layers, as each node feeds the next:";
    for (const std::string& node : network.nodes) text += " " + in_quotes(node);
    notes.push_back(text);
  }
  for (const std::string& node : network.nodes) {
    if (const std::string state = property_of(file, node, "initial_h"); !state.empty())
      notes.push_back(in_quotes(node) + " starts from " + state + ", which is not read: give it as the first state");
    if (const std::string lengths = property_of(file, node, "sequence_lens"); !lengths.empty())
      notes.push_back(in_quotes(node) + " takes lengths from " + lengths +
                      ", which is not read: give them with the data");
  }
}

/// What follows the name of a weight in that of an array from which the weight is computed at each step.
constexpr std::string_view kReparametrised[] = {"_raw", "_g",     "_v",      "_orig",      "_mask",
                                                "_u",   "_scale", "_scales", "_zero_point"};

/// A name without the parts "module" that wrappers of a network add: "enc.weight_hh_l0" for "enc.module.weight_hh_l0".
std::string without_wrappers(const std::string& name) {
  std::string out;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (part != "module") out.append(out.empty() ? "" : ".").append(part);
    begin = end + 1;
  }
  return out;
}

/// The weight that `name` would replace; nullptr: none.
const ArrayEntry* replaced_by(const std::string& name, const std::string& prefix, const Network& network, Place& place,
                              Part& part) {
  const size_t skip = prefix.empty() ? 0 : prefix.size() + 1;
  const std::string own = is_under(name, prefix) ? name.substr(skip) : "";
  for (const auto& [at, parts] : network.layers) {
    if (network.given.count(at) > 0) continue;  // the caller chose
    for (size_t i = 0; i < kPartCount; ++i) {
      const ArrayEntry* const entry = parts[i];
      if (entry == nullptr || (entry->dtype && !is_float(*entry->dtype))) continue;  // refused for its type
      place = at;
      part = static_cast<Part>(i);
      for (const std::string_view end : kReparametrised)
        if (without_wrappers(name) == without_wrappers(entry->name) + std::string(end)) return entry;
      if (own.starts_with("parametrizations." + entry->name.substr(skip) + ".")) return entry;
    }
  }
  return nullptr;
}

/// What stands between the prefix and the names of this network's arrays.
std::string separators_of(const std::string& prefix, const Network& network) {
  std::string separators;
  for (const auto& [place, parts] : network.layers)
    for (const ArrayEntry* entry : parts)
      if (entry != nullptr && network.given.count(place) == 0) separators += entry->name[prefix.size()];
  return separators.empty() ? "./" : separators;
}

/// Lists arrays under the prefix that are not used, and refuses those that should have been.
Status check_unused(const ArrayReader& file, const std::string& prefix, const Networks& networks,
                    std::vector<std::string>& unused) {
  const Network& network = networks.at(prefix);
  const std::string separators = separators_of(prefix, network);
  for (const ArrayEntry& entry : file.entries()) {
    if (network.is_used(entry.name)) continue;
    const bool is_own = is_under(entry.name, prefix) &&
                        (prefix.empty() || separators.find(entry.name[prefix.size()]) != std::string::npos);
    if (!is_own && !is_under(without_wrappers(entry.name), without_wrappers(prefix))) continue;
    const bool is_others = std::any_of(networks.begin(), networks.end(), [&](const auto& other) {
      return other.second.is_used(entry.name) || other.second.projection == &entry ||
             (other.first.size() > prefix.size() && is_under(entry.name, other.first));
    });
    if (is_others) continue;
    Place place;
    Part part = kWeightIh;
    const ArrayEntry* const weight = replaced_by(entry.name, prefix, network, place, part);
    if (weight == nullptr) {
      if (is_own) unused.push_back(entry.name);
      continue;
    }
    const Parts& parts = network.layers.at(place);
    const bool can_choose = entry.name.ends_with("_raw");
    return {StatusCode::kUnsupported,
            file.name() + ": " + in_quotes(weight->name) + " is probably a stale copy: " + in_quotes(entry.name) +
                ", from which training computes it, is beside it. Choose: " +
                (can_choose ? layer_hint(prefix, place, parts, part, entry) + " takes the trained one, " : "") +
                layer_hint(prefix, place, parts, part, *weight) + " the copy as it is"};
  }
  return {};
}

const Network* find_named(const Networks& networks, const std::string& prefix) {
  const auto found = networks.find(prefix);
  return found == networks.end() ? nullptr : &found->second;
}

std::string quoted_list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + in_quotes(name);
  return text;
}

/// The prefix of the GRU to load.
Result<std::string> choose_prefix(const ArrayReader& file, const Networks& networks, const GruLoadOptions& options) {
  const std::string& wanted = options.prefix;
  std::vector<std::string> grus, parts, others;
  for (const auto& [prefix, network] : networks)
    (!check_is_gru(prefix, network, file).ok() ? others : network.is_part ? parts : grus).push_back(prefix);
  if (!wanted.empty() || options.unprefixed) {
    if (find_named(networks, wanted) != nullptr) return wanted;
    grus.insert(grus.end(), parts.begin(), parts.end());
    const std::vector<std::string_view> known(grus.begin(), grus.end());
    return Status(StatusCode::kInvalidArgument,
                  file.name() + ": no GRU " + in_quotes(wanted) +
                      (grus.empty() ? "; the file holds none" : "; the prefix must be one of " + quoted_list(grus)) +
                      nearest_hint(wanted, known));
  }
  if (grus.size() == 1) return grus[0];
  if (grus.size() > 1) {
    return Status(StatusCode::kInvalidArgument, file.name() + ": " + std::to_string(grus.size()) +
                                                    " GRUs; the prefix must be one of " + quoted_list(grus));
  }
  if (others.size() == 1) return others[0];
  std::string text;
  for (const std::string& prefix : others)
    text += "; " + check_is_gru(prefix, networks.at(prefix), file).message().substr(file.name().size() + 2);
  return Status(StatusCode::kInvalidFile,
                file.name() +
                    ": no GRU: no arrays named PREFIX.weight_ih_l0, weight_hh_l0, ..., weight_ih, weight_hh, "
                    "W, R, kernel, recurrent_kernel, or ending in w_ih, w_hh, with 3 * H rows; --layer "
                    "NAME=W,R,BW,BR names others" +
                    text);
}

}  // namespace

std::string_view to_string(GateOrder order) {
  switch (order) {
    case GateOrder::kUrn: return "urn";
    case GateOrder::kRun: return "pytorch";
    case GateOrder::kOnnx: return "onnx";
  }
  return "invalid";
}

std::optional<GateOrder> gate_order_from_string(std::string_view text) {
  for (const GateOrder order : {GateOrder::kUrn, GateOrder::kRun, GateOrder::kOnnx}) {
    if (text == to_string(order)) return order;
  }
  return std::nullopt;
}

std::string_view to_string(GruLayout layout) {
  switch (layout) {
    case GruLayout::kRows: return "rows";
    case GruLayout::kColumns: return "columns";
  }
  return "invalid";
}

std::optional<GruLayout> gru_layout_from_string(std::string_view text) {
  for (const GruLayout layout : {GruLayout::kRows, GruLayout::kColumns}) {
    if (text == to_string(layout)) return layout;
  }
  return std::nullopt;
}

Status check_weights(const GruWeights& weights) {
  const auto invalid = [](const std::string& message) { return Status(StatusCode::kInvalidArgument, message); };
  if (weights.directions != 1 && weights.directions != 2) {
    return invalid("directions is " + std::to_string(weights.directions) + ", must be 1 or 2");
  }
  const auto directions = static_cast<size_t>(weights.directions);
  if (weights.layers.empty() || weights.layers.size() % directions != 0) {
    return invalid("layers has " + std::to_string(weights.layers.size()) +
                   " entries, must have at least 1 and a multiple of directions = " + std::to_string(directions));
  }
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const GruLayerWeights& layer = weights.layers[i];
    const std::string name = "layer " + std::to_string(i / directions) + (i % directions == 1 ? " reverse" : "");
    if (layer.input_size < 1 || layer.input_size > kMaxSize || layer.hidden_size < 1 || layer.hidden_size > kMaxSize) {
      return invalid(name + ": C = " + std::to_string(layer.input_size) +
                     " and H = " + std::to_string(layer.hidden_size) + " must be 1 to " + std::to_string(kMaxSize));
    }
    if (layer.hidden_size != weights.hidden_size()) {
      return invalid(name + ": H is " + std::to_string(layer.hidden_size) + ", must be layer 0's " +
                     std::to_string(weights.hidden_size()));
    }
    const int64_t input_size = i < directions ? weights.input_size() : weights.output_size();
    if (layer.input_size != input_size) {
      return invalid(name + ": C is " + std::to_string(layer.input_size) + ", must be " + std::to_string(input_size) +
                     (i < directions ? ", the forward direction's" : ", directions * H of the layer below"));
    }
    const int64_t rows = 3 * layer.hidden_size;
    ISOBIT_RETURN_IF_ERROR(check_tensor(name + ": W", layer.W, rows, layer.input_size));
    ISOBIT_RETURN_IF_ERROR(check_tensor(name + ": R", layer.R, rows, layer.hidden_size));
    ISOBIT_RETURN_IF_ERROR(check_tensor(name + ": bw", layer.bw, rows, 1));
    ISOBIT_RETURN_IF_ERROR(check_tensor(name + ": br", layer.br, rows, 1));
  }
  return {};
}

Result<std::vector<GruCandidate>> find_grus(const ArrayReader& file) {
  ISOBIT_ASSIGN_OR_RETURN(const Networks networks, find_networks(file, {}));
  std::vector<GruCandidate> candidates;
  for (const auto& [prefix, network] : networks) {
    if (network.is_part) continue;
    const Status status = check_is_gru(prefix, network, file);
    std::string problem = status.ok() ? "" : status.message().substr(file.name().size() + 2);
    candidates.push_back({prefix, status.ok(), std::move(problem)});
  }
  return candidates;
}

Result<std::vector<std::string>> list_grus(const std::string& path) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  ISOBIT_ASSIGN_OR_RETURN(const auto candidates, find_grus(file));
  std::vector<std::string> prefixes;
  for (const GruCandidate& candidate : candidates) {
    if (candidate.is_gru) prefixes.push_back(candidate.prefix);
  }
  return prefixes;
}

Result<GruWeights> load_gru(const std::string& path, const GruLoadOptions& options) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  return load_gru(file, options);
}

Result<GruWeights> load_gru(const ArrayReader& file, const GruLoadOptions& options) {
  const DefaultFloatMode mode;
  if (file.kind() == FileKind::kGruModels)
    return Status(StatusCode::kInvalidArgument,
                  file.name() + ": is an integer model already; give the float model that it was made from");
  if (!options.reset_after.value_or(true)) return refuse_reset_before("reset_after = false");
  if (options.gate_order && to_string(*options.gate_order) == "invalid") {
    return Status(StatusCode::kInvalidArgument,
                  "gate_order is " + std::to_string(static_cast<int32_t>(*options.gate_order)) + ", must be 0 to 2");
  }
  if (options.layout && to_string(*options.layout) == "invalid") {
    return Status(StatusCode::kInvalidArgument,
                  "layout is " + std::to_string(static_cast<int32_t>(*options.layout)) + ", must be 0 or 1");
  }
  if (file.kind() == FileKind::kOnnx && !options.arrays.empty())
    return Status(StatusCode::kInvalidArgument, file.name() +
                                                    ": of an ONNX model nodes are named, not arrays: --layer NODE, or "
                                                    "--layer A,B for nodes of which each feeds the next");
  return without_exceptions(file.name(), [&]() -> Result<GruWeights> {
    ISOBIT_ASSIGN_OR_RETURN(const Networks networks, find_networks(file, options.arrays, options.prefix));
    ISOBIT_ASSIGN_OR_RETURN(const std::string prefix, choose_prefix(file, networks, options));
    const Network& network = networks.at(prefix);
    ISOBIT_RETURN_IF_ERROR(check_is_gru(prefix, network, file));
    std::vector<std::string> unused, notes;
    for (const std::string& name : network.nodes.empty() ? std::vector<std::string>{prefix} : network.nodes)
      ISOBIT_RETURN_IF_ERROR(check_metadata(file, name, options.reset_after, notes));
    add_node_notes(file, network, notes);
    if (network.nodes.empty()) ISOBIT_RETURN_IF_ERROR(check_unused(file, prefix, networks, unused));
    ISOBIT_ASSIGN_OR_RETURN(GruWeights weights, LayerReader(file, prefix, network, options).read());
    weights.report.unused = std::move(unused);
    weights.report.notes.insert(weights.report.notes.end(), notes.begin(), notes.end());
    if (const Status status = check_weights(weights); !status.ok()) {
      return Status(StatusCode::kInvalidFile, file.name() + ": GRU " + in_quotes(prefix) + ": " + status.message());
    }
    return weights;
  });
}

}  // namespace isobit
