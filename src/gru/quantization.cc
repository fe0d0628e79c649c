// SPDX-License-Identifier: Apache-2.0
// The text forms of what is wanted of a GRU: bit widths, calibration methods, tables.
#include <algorithm>
#include <charconv>

#include "gru/tensor_groups.h"
#include "isobit/gru.h"
#include "isobit/nearest.h"

namespace isobit {
namespace {

constexpr int64_t kMaxBits = 32;
constexpr int64_t kMaxGateBits = 16;  // tables have at most 2^16 inputs and 16-bit outputs
constexpr int64_t kMaxLayer = 9999;

using TensorMask = uint32_t;
constexpr TensorMask kCalibrated = set_of(kX) | set_of(kH) | kLinearSet | kGateInSet;

constexpr std::string_view kOptionNames[] = {"signed", "unsigned", "symmetric", "asymmetric", "steps=N"};

constexpr NamedBits kNamedBits[] = {
    {"small", "8"},
    {"balanced", "8,x=12,h=12,linear=16,gate_in=12,gate_out=12"},
    {"precise", "16,weights=8"},
};

std::optional<TensorMask> tensors_of(std::string_view name) {
  for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
    if (kGruTensorNames[static_cast<size_t>(tensor)] == name) return set_of(tensor);
  }
  for (const TensorGroup& group : kTensorGroups) {
    if (group.name == name) return group.tensors;
  }
  return std::nullopt;
}

std::string known_names() {
  std::string text;
  for (const std::string_view name : kGruTensorNames) text += std::string(name) + " ";
  for (const TensorGroup& group : kTensorGroups) text += std::string(group.name) + " ";
  text.pop_back();
  return text;
}

/// Cuts `text` at the first `separator` and returns what was before it; `more` says whether there was one.
std::string_view next_part(std::string_view& text, char separator, bool& more) {
  const size_t end = text.find(separator);
  more = end != std::string_view::npos;
  const std::string_view part = text.substr(0, end);
  text = more ? text.substr(end + 1) : std::string_view();
  return part;
}

std::string_view without_spaces_around(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(' '), text.size());
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

std::optional<int64_t> integer_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// One entry of a list: [TARGET=]VALUE, TARGET being NAME, lL.NAME or lL.
struct Entry {
  std::string_view list;  // "bits", "method" or "table"
  std::string_view text;
  std::optional<int64_t> layer;
  std::string_view name;  // empty: all tensors
  std::string_view value;

  [[nodiscard]] Status refuse(const std::string& why) const {
    return {StatusCode::kInvalidArgument, std::string(list) + " entry '" + std::string(text) + "': " + why};
  }
};

Result<Entry> parse_entry(std::string_view list, std::string_view text) {
  Entry entry;
  entry.list = list;
  entry.text = entry.value = text;
  const size_t equals = text.find('=');
  // "steps=" and the like belong to a value.
  if (equals == std::string_view::npos || text.find(':') < equals) return entry;
  if (equals == 0) return entry.refuse("unknown tensor '', must be one of " + known_names());
  entry.name = text.substr(0, equals);
  entry.value = text.substr(equals + 1);
  if (entry.name.size() > 1 && entry.name[0] == 'l' && entry.name[1] >= '0' && entry.name[1] <= '9') {
    const size_t dot = entry.name.find('.');
    const std::string_view layer = entry.name.substr(0, dot);
    entry.layer = integer_of(layer.substr(1));
    if (!entry.layer || *entry.layer > kMaxLayer) {
      return entry.refuse("'" + std::string(layer) + "' is no layer; layers are named l0, l1, ...");
    }
    entry.name = dot == std::string_view::npos ? std::string_view() : entry.name.substr(dot + 1);
    if (dot == std::string_view::npos) return entry;
  }
  if (!tensors_of(entry.name)) {
    std::vector<std::string_view> names(kGruTensorNames.begin(), kGruTensorNames.end());
    for (const TensorGroup& group : kTensorGroups) names.push_back(group.name);
    return entry.refuse("unknown tensor '" + std::string(entry.name) + "', must be one of " + known_names() +
                        nearest_hint(entry.name, names));
  }
  if (entry.name == "x" && entry.layer.value_or(0) > 0) {
    return entry.refuse("x of layer " + std::to_string(*entry.layer) + " is the h of the layer below; set l" +
                        std::to_string(*entry.layer - 1) + ".h");
  }
  return entry;
}

/// The options that an entry changes: those of all layers, or of one, which starts as all are.
std::vector<GruLayerQuantization*> layers_of(GruQuantization& quantization, const std::optional<int64_t>& layer) {
  if (layer) return {&quantization.layers.try_emplace(*layer, quantization).first->second};
  std::vector<GruLayerQuantization*> all = {&quantization};
  for (auto& [index, options] : quantization.layers) all.push_back(&options);
  return all;
}

/// Calls `apply` for every entry of a list; nothing changes if one is refused.
template <typename Apply>
Status apply_list(std::string_view list, std::string_view text, GruQuantization& quantization, Apply apply) {
  GruQuantization changed = quantization;
  bool more = true;
  while (more) {
    ISOBIT_ASSIGN_OR_RETURN(const Entry entry, parse_entry(list, without_spaces_around(next_part(text, ',', more))));
    ISOBIT_RETURN_IF_ERROR(apply(entry, changed));
  }
  quantization = std::move(changed);
  return {};
}

struct Width {
  int32_t bits = 8;
  std::optional<bool> is_signed, symmetric;
  std::optional<int64_t> steps;
};

constexpr Width kWideBiases{16, std::nullopt, std::nullopt, std::nullopt};

/// BITS[:OPTION]...
Result<Width> parse_width(const Entry& entry) {
  bool more = false;
  std::string_view rest = entry.value;
  const std::string_view digits = next_part(rest, ':', more);
  const std::optional<int64_t> bits = integer_of(digits);
  if (!bits || *bits < 1 || *bits > kMaxBits) {
    std::string names;
    std::vector<std::string_view> known;
    for (const NamedBits& named : kNamedBits) {
      names += ", " + std::string(named.name);
      known.push_back(named.name);
    }
    return entry.refuse(std::string(digits) + " bits, must be a whole number from 1 to 32" +
                        (entry.value != entry.text ? "" : ", or one of the named settings" + names.substr(1) +
                                                                  nearest_hint(entry.value, known)));
  }
  Width width;
  width.bits = static_cast<int32_t>(*bits);
  while (more) {
    const std::string_view option = next_part(rest, ':', more);
    if (option == "signed" || option == "unsigned") {
      width.is_signed = option == "signed";
    } else if (option == "symmetric" || option == "asymmetric") {
      width.symmetric = option == "symmetric";
    } else if (option.substr(0, 6) == "steps=" && integer_of(option.substr(6))) {
      width.steps = integer_of(option.substr(6));
    } else {
      return entry.refuse("unknown option '" + std::string(option) +
                          "', must be signed, unsigned, symmetric, asymmetric or steps=N" +
                          nearest_hint(option, kOptionNames));
    }
  }
  return width;
}

void set_width(const Width& width, bool is_bare, TensorMask chosen, std::array<GridOptions, kGruTensorCount>& tensors) {
  for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
    if ((chosen & set_of(tensor)) == 0) continue;
    GridOptions& options = tensors[static_cast<size_t>(tensor)];
    options.bits = width.bits;
    options.steps = width.steps;  // steps belong to a width: without them, the default of the new width
    // What a bare entry says of sign and symmetry is meant for activations.
    if (is_bare && (set_of(tensor) & kWeightSet) != 0) continue;
    options.is_signed = width.is_signed.value_or(options.is_signed);
    options.symmetric = width.symmetric.value_or(options.symmetric);
  }
}

/// The tensors that an entry of widths sets.
TensorMask chosen_by(const Entry& entry, int32_t bits) {
  if (!entry.name.empty()) return *tensors_of(entry.name);
  return bits > 8 ? kAllSet : kAllSet & ~kBiasSet;  // section 4
}

/// Why a tensor cannot have these options; empty if it can.
std::string objection(int32_t tensor, const GridOptions& options) {
  if ((set_of(tensor) & (kGateInSet | kGateOutSet)) != 0 && options.bits > kMaxGateBits) {
    return " has " + std::to_string(options.bits) + " bits, must have at most 16: it is a gate's input or output";
  }
  if ((set_of(tensor) & (kWeightSet | kBiasSet)) != 0 && !options.symmetric) {
    return " is asymmetric, must be symmetric: it is a weight or bias";
  }
  const int64_t least = options.symmetric && options.is_signed ? 2 : 1;
  const int64_t most = int64_t{1} << options.bits;
  if (options.steps && (*options.steps < least || *options.steps > most)) {
    return " has " + std::to_string(*options.steps) + " steps, must have " + std::to_string(least) + " to " +
           std::to_string(most) + " with " + std::to_string(options.bits) + " bits";
  }
  return {};
}

Status apply_bits_entry(const Entry& entry, GruQuantization& quantization) {
  const auto setting = std::find_if(std::begin(kNamedBits), std::end(kNamedBits),
                                    [&](const NamedBits& named) { return named.name == entry.value; });
  if (setting != std::end(kNamedBits)) {
    if (!entry.name.empty()) return entry.refuse("a named setting is for all tensors; leave the name out");
    for (GruLayerQuantization* layer : layers_of(quantization, entry.layer)) {
      GruQuantization named;
      ISOBIT_RETURN_IF_ERROR(apply_bits(setting->bits, named));
      layer->tensors = named.tensors;
    }
    return {};
  }
  ISOBIT_ASSIGN_OR_RETURN(const Width width, parse_width(entry));
  const bool is_bare = entry.name.empty();
  const TensorMask chosen = chosen_by(entry, width.bits);
  for (GruLayerQuantization* layer : layers_of(quantization, entry.layer)) {
    set_width(width, is_bare, is_bare ? chosen & ~kBiasSet : chosen, layer->tensors);
    if (is_bare) set_width(kWideBiases, false, chosen & kBiasSet, layer->tensors);
  }
  return {};
}

Status apply_method_entry(const Entry& entry, GruQuantization& quantization) {
  ISOBIT_ASSIGN_OR_RETURN(const CalibrationOptions method, parse_calibration_options(entry.value));
  const TensorMask chosen = entry.name.empty() || entry.name == "all" ? kCalibrated : *tensors_of(entry.name);
  if ((chosen & ~kCalibrated) != 0) {
    return entry.refuse(std::string(entry.name) + " is not calibrated: weights and biases have the ranges of their " +
                        "values, gate outputs those of their functions");
  }
  for (GruLayerQuantization* layer : layers_of(quantization, entry.layer)) {
    for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
      if ((chosen & set_of(tensor)) != 0) layer->methods[static_cast<size_t>(tensor)] = method;
    }
  }
  return {};
}

Status apply_table_entry(const Entry& entry, GruQuantization& quantization) {
  if (!entry.name.empty()) return entry.refuse("all tables of a layer are of one kind; name the layer only, as in l0=");
  std::optional<TableOptions> table;
  if (entry.value != "default") {
    ISOBIT_ASSIGN_OR_RETURN(table, parse_table_options(entry.value));
  }
  for (GruLayerQuantization* layer : layers_of(quantization, entry.layer)) layer->table = table;
  return {};
}

}  // namespace

std::array<GridOptions, kGruTensorCount> GruLayerQuantization::default_tensors() {
  std::array<GridOptions, kGruTensorCount> tensors;  // 8 bits, signed, asymmetric
  for (const GruTensor tensor : {kW, kR, kBw, kBr, kN}) tensors[tensor].symmetric = true;
  for (const GruTensor tensor : {kU, kRGate}) tensors[tensor].is_signed = false;
  return tensors;
}

const GruLayerQuantization& GruQuantization::layer(int64_t l) const {
  const auto found = layers.find(l);
  return found == layers.end() ? *this : found->second;
}

Status apply_bits(std::string_view text, GruQuantization& quantization) {
  GruQuantization changed = quantization;
  std::vector<Entry> entries;
  ISOBIT_RETURN_IF_ERROR(apply_list("bits", text, changed, [&](const Entry& entry, GruQuantization& out) {
    entries.push_back(entry);
    return apply_bits_entry(entry, out);
  }));
  // Limits hold for what the entries have come to, since later ones win; the last entry about a tensor is to blame.
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    for (const GruLayerQuantization* layer : layers_of(changed, entry->layer)) {
      for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
        const GridOptions& options = layer->tensors[static_cast<size_t>(tensor)];
        const std::string why = objection(tensor, options);
        if (why.empty() || (chosen_by(*entry, options.bits) & set_of(tensor)) == 0) continue;
        return entry->refuse(std::string(kGruTensorNames[static_cast<size_t>(tensor)]) + why);
      }
    }
  }
  quantization = std::move(changed);
  return {};
}

Status apply_methods(std::string_view text, GruQuantization& quantization) {
  return apply_list("method", text, quantization, apply_method_entry);
}

Status apply_tables(std::string_view text, GruQuantization& quantization) {
  return apply_list("table", text, quantization, apply_table_entry);
}

std::span<const NamedBits> named_bits() { return kNamedBits; }

}  // namespace isobit
