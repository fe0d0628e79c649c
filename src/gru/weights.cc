// SPDX-License-Identifier: Apache-2.0
// Float weights: checks, and arrays of a file by their names.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/float_mode.h"
#include "core/number_text.h"
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

// ---------------------------------------------------------------------------------------------------------------
// Names

enum Part : size_t { kWeightIh, kWeightHh, kBiasIh, kBiasHh, kPartCount };
constexpr std::array<std::string_view, kPartCount> kLongNames = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
constexpr std::array<std::string_view, kPartCount> kShortNames = {"w_ih", "w_hh", "b_ih", "b_hh"};

struct NamedArray {
  std::string name;
  const Array* array = nullptr;
};

/// The arrays of one GRU by layer and direction.
struct FoundGru {
  std::map<std::pair<int64_t, int64_t>, std::array<NamedArray, kPartCount>> layers;
};

struct ParsedName {
  std::string prefix;
  Part part = kWeightIh;
  int64_t layer = 0;
  int64_t direction = 0;
};

bool remove_suffix(std::string_view& text, std::string_view suffix) {
  if (text.size() < suffix.size() || text.substr(text.size() - suffix.size()) != suffix) return false;
  text.remove_suffix(suffix.size());
  return true;
}

/// One of `names` at the end of `text`, which keeps what precedes it.
std::optional<Part> remove_part(std::string_view& text, const std::array<std::string_view, kPartCount>& names) {
  for (size_t part = 0; part < kPartCount; ++part) {
    if (remove_suffix(text, names[part])) return static_cast<Part>(part);
  }
  return std::nullopt;
}

/// PREFIX.weight_ih_l1_reverse, or PREFIX_w_ih; nothing for other names.
std::optional<ParsedName> parse_name(std::string_view text) {
  ParsedName parsed;
  std::optional<Part> part = remove_part(text, kShortNames);
  if (!part) {
    if (remove_suffix(text, "_reverse")) parsed.direction = 1;
    size_t digits = 0;
    while (digits < text.size() && text[text.size() - 1 - digits] >= '0' && text[text.size() - 1 - digits] <= '9') {
      ++digits;
    }
    if (digits < 1 || digits > 4) return std::nullopt;
    for (const char c : text.substr(text.size() - digits)) parsed.layer = 10 * parsed.layer + (c - '0');
    text.remove_suffix(digits);
    if (!remove_suffix(text, "_l")) return std::nullopt;
    part = remove_part(text, kLongNames);
    if (!part) return std::nullopt;
  }
  parsed.part = *part;
  if (!text.empty() && (text.back() == '.' || text.back() == '_' || text.back() == '/')) text.remove_suffix(1);
  parsed.prefix = text;
  return parsed;
}

/// An LSTM (4 blocks) or a plain RNN (1 block) has the same names.
bool is_other_network(const FoundGru& gru) {
  const Array* const R = gru.layers.begin()->second[kWeightHh].array;
  if (R == nullptr || R->shape.size() != 2) return false;
  const int64_t rows = R->shape[0];
  const int64_t hidden = R->shape[1];
  return hidden > 0 && (rows == hidden || (rows % 4 == 0 && rows / 4 == hidden));
}

/// Every GRU by prefix. given: PyTorch names, and the names in the file that stand for them.
Result<std::map<std::string, FoundGru>> find_grus(const ArrayFile& file, const std::string& path,
                                                  const std::map<std::string, std::string>& given = {}) {
  std::map<std::string, FoundGru> grus;
  std::set<std::string> renamed;
  for (const auto& [meaning, name] : given) {
    const std::optional<ParsedName> parsed = parse_name(meaning);
    if (!parsed)
      return Status(StatusCode::kInvalidArgument, in_quotes(meaning) + " is no tensor of a GRU; expected names like "
                                                                       "PREFIX.weight_ih_l0");
    const auto found = file.arrays.find(name);
    if (found == file.arrays.end())
      return Status(StatusCode::kInvalidArgument, path + ": no array " + in_quotes(name) + ", named for " +
                                                      in_quotes(meaning));
    grus[parsed->prefix].layers[{parsed->layer, parsed->direction}][parsed->part] = {name, &found->second};
    renamed.insert(name);
  }
  for (const auto& [name, array] : file.arrays) {
    const std::optional<ParsedName> parsed = parse_name(name);
    if (!parsed || renamed.count(name) > 0) continue;
    NamedArray& slot = grus[parsed->prefix].layers[{parsed->layer, parsed->direction}][parsed->part];
    if (slot.array != nullptr) {
      return Status(StatusCode::kInvalidFile, path + ": arrays " + in_quotes(slot.name) + " and " + in_quotes(name) +
                                                  " name the same tensor of the GRU " + in_quotes(parsed->prefix));
    }
    slot = {name, &array};
  }
  return grus;
}

std::string prefixes_of(const std::map<std::string, FoundGru>& grus) {
  std::string text;
  for (const auto& [prefix, gru] : grus) text += (text.empty() ? "" : ", ") + in_quotes(prefix);
  return text;
}

std::string nearest_prefix(const std::map<std::string, FoundGru>& grus, std::string_view prefix) {
  std::vector<std::string_view> prefixes;
  for (const auto& [known, gru] : grus) prefixes.push_back(known);
  return nearest_hint(prefix, prefixes);
}

// ---------------------------------------------------------------------------------------------------------------
// Values

/// FNV-1a, 64 bits, over the arrays in the order of their names: name, 0, dtype token, 0, number of dimensions and
/// dimensions as 8 little-endian bytes each, content. It tells models apart; it is no signature.
class SourceHash {
 public:
  void add(const NamedArray& named) {
    add_text(named.name);
    add_text(to_string(named.array->dtype));
    add_integer(static_cast<uint64_t>(named.array->shape.size()));
    for (const int64_t dimension : named.array->shape) add_integer(static_cast<uint64_t>(dimension));
    for (const std::byte byte : named.array->bytes) add_byte(static_cast<uint8_t>(byte));
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

/// An array of 3H rows as float, its blocks in the order u, r, n.
Result<std::vector<float>> read_blocks(const NamedArray& named, const std::vector<int64_t>& shape, GateOrder order,
                                       const std::string& path) {
  const Array& array = *named.array;
  if (!is_float(array.dtype)) {
    return Status(StatusCode::kInvalidFile, path + ": array " + in_quotes(named.name) + " is " +
                                                std::string(to_string(array.dtype)) +
                                                ", must be f16, bf16, f32 or f64");
  }
  if (array.shape != shape) {
    return Status(StatusCode::kInvalidFile, path + ": array " + in_quotes(named.name) + " has the shape " +
                                                shape_text(array.shape) + ", must be " + shape_text(shape));
  }
  std::vector<float> values = array.to_float();
  if (order == GateOrder::kRun) {
    const auto block = static_cast<std::ptrdiff_t>(values.size() / 3);
    std::swap_ranges(values.begin(), values.begin() + block, values.begin() + block);
  }
  return values;
}

Result<GruLayerWeights> read_layer(const std::array<NamedArray, kPartCount>& parts, GateOrder order,
                                   const std::string& path) {
  const NamedArray& W = parts[kWeightIh];
  const NamedArray& R = parts[kWeightHh];
  // R alone says what H is; of W only the columns are free.
  if (R.array->shape.size() != 2 || R.array->shape[1] < 1 || R.array->shape[1] > kMaxSize ||
      R.array->shape[0] != 3 * R.array->shape[1]) {
    const std::vector<int64_t>& shape = R.array->shape;
    const bool is_lstm = shape.size() == 2 && shape[0] % 4 == 0 && shape[0] / 4 == shape[1];
    return Status(StatusCode::kInvalidFile, path + ": array " + in_quotes(R.name) + " has the shape " +
                                                shape_text(R.array->shape) + ", must be (3 * H, H)" +
                                                (is_lstm ? "; (4 * H, H) is an LSTM" : ""));
  }
  GruLayerWeights layer;
  layer.hidden_size = R.array->shape[1];
  const int64_t rows = 3 * layer.hidden_size;
  if (W.array->shape.size() != 2 || W.array->shape[0] != rows || W.array->shape[1] < 1 ||
      W.array->shape[1] > kMaxSize) {
    return Status(StatusCode::kInvalidFile, path + ": array " + in_quotes(W.name) + " has the shape " +
                                                shape_text(W.array->shape) + ", must be (" + std::to_string(rows) +
                                                ", C): " + in_quotes(R.name) +
                                                " has H = " + std::to_string(layer.hidden_size));
  }
  layer.input_size = W.array->shape[1];
  ISOBIT_ASSIGN_OR_RETURN(layer.W, read_blocks(W, {rows, layer.input_size}, order, path));
  ISOBIT_ASSIGN_OR_RETURN(layer.R, read_blocks(R, {rows, layer.hidden_size}, order, path));
  layer.bw.resize(static_cast<size_t>(rows));
  layer.br.resize(static_cast<size_t>(rows));
  if (parts[kBiasIh].array != nullptr) {
    ISOBIT_ASSIGN_OR_RETURN(layer.bw, read_blocks(parts[kBiasIh], {rows}, order, path));
  }
  if (parts[kBiasHh].array != nullptr) {
    ISOBIT_ASSIGN_OR_RETURN(layer.br, read_blocks(parts[kBiasHh], {rows}, order, path));
  }
  return layer;
}

Status refuse_reset_before(const std::string& what) {
  return {StatusCode::kUnsupported,
          what +
              " is not supported: there the reset gate is applied to h before the matrix product, R_n (r * h), "
              "which cannot be computed from isobit's r * (R_n h + br_n); the weights would give other results. "
              "Use a GRU with reset_after = true (PyTorch, Keras's default) or linear_before_reset = 1 (ONNX)"};
}

/// Refuses a file that says of itself that the reset comes first.
Status check_metadata(const ArrayFile& file, const std::string& prefix, const std::string& path) {
  for (const std::string key : {"reset_after", "linear_before_reset"}) {
    for (const std::string& name : {key, prefix + "." + key}) {
      const auto found = file.metadata.find(name);
      if (found == file.metadata.end()) continue;
      std::string value = found->second;
      std::transform(value.begin(), value.end(), value.begin(),
                     [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
      if (value == "0" || value == "false") {
        return refuse_reset_before(path + ": metadata " + in_quotes(name) + " = " + in_quotes(found->second));
      }
    }
  }
  return {};
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

Result<std::vector<std::string>> list_grus(const std::string& path) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayFile file, load_arrays(path));
  ISOBIT_ASSIGN_OR_RETURN(const auto grus, find_grus(file, path));
  std::vector<std::string> prefixes;
  for (const auto& [prefix, gru] : grus) {
    if (!is_other_network(gru)) prefixes.push_back(prefix);
  }
  return prefixes;
}

Result<GruWeights> load_gru(const std::string& path, const GruLoadOptions& options) {
  const DefaultFloatMode mode;
  if (!options.reset_after) return refuse_reset_before("reset_after = false");
  const GateOrder order = options.gate_order.value_or(GateOrder::kRun);
  if (to_string(order) == "invalid") {
    return Status(StatusCode::kInvalidArgument,
                  "gate_order is " + std::to_string(static_cast<int32_t>(order)) + ", must be 0 to 2");
  }
  ISOBIT_ASSIGN_OR_RETURN(const ArrayFile file, load_arrays(path));
  ISOBIT_ASSIGN_OR_RETURN(auto grus, find_grus(file, path, options.arrays));
  if (options.prefix.empty()) {
    for (auto it = grus.begin(); it != grus.end();) it = is_other_network(it->second) ? grus.erase(it) : std::next(it);
  }
  if (grus.empty()) {
    return Status(StatusCode::kInvalidFile, path +
                                                ": no GRU: no arrays named PREFIX.weight_ih_l0, weight_hh_l0, ... "
                                                "or ending in w_ih, w_hh, b_ih, b_hh, with 3 * H rows");
  }
  if (options.prefix.empty() && grus.size() > 1) {
    return Status(StatusCode::kInvalidArgument,
                  path + ": " + std::to_string(grus.size()) + " GRUs; the prefix must be one of " + prefixes_of(grus));
  }
  const auto found = options.prefix.empty() ? grus.begin() : grus.find(options.prefix);
  if (found == grus.end()) {
    return Status(StatusCode::kInvalidArgument, path + ": no GRU " + in_quotes(options.prefix) +
                                                    "; the prefix must be one of " + prefixes_of(grus) +
                                                    nearest_prefix(grus, options.prefix));
  }
  const auto& [prefix, gru] = *found;
  ISOBIT_RETURN_IF_ERROR(check_metadata(file, prefix, path));

  GruWeights weights;
  weights.name = prefix;
  int64_t layer_count = 0;
  std::map<std::string, const Array*> used;
  for (const auto& [key, parts] : gru.layers) {
    layer_count = std::max(layer_count, key.first + 1);
    weights.directions = std::max(weights.directions, static_cast<int32_t>(key.second) + 1);
    for (const NamedArray& part : parts) {
      if (part.array != nullptr) used.emplace(part.name, part.array);
    }
  }
  for (int64_t l = 0; l < layer_count; ++l) {
    for (int64_t d = 0; d < weights.directions; ++d) {
      const auto parts = gru.layers.find({l, d});
      for (const Part part : {kWeightIh, kWeightHh}) {
        if (parts != gru.layers.end() && parts->second[part].array != nullptr) continue;
        return Status(StatusCode::kInvalidFile, path + ": the GRU " + in_quotes(prefix) + " has no array " +
                                                    std::string(kLongNames[part]) + "_l" + std::to_string(l) +
                                                    (d == 1 ? "_reverse" : "") +
                                                    (l == 0 && d == 0 ? " or " + std::string(kShortNames[part]) : ""));
      }
      ISOBIT_ASSIGN_OR_RETURN(GruLayerWeights layer, read_layer(parts->second, order, path));
      weights.layers.push_back(std::move(layer));
    }
  }
  if (const Status status = check_weights(weights); !status.ok()) {
    return Status(StatusCode::kInvalidFile, path + ": GRU " + in_quotes(prefix) + ": " + status.message());
  }
  SourceHash hash;
  for (const auto& [name, array] : used) hash.add({name, array});
  weights.source_hash = hash.text();
  return weights;
}

}  // namespace isobit
