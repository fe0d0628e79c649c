// SPDX-License-Identifier: Apache-2.0
#include "gru/weight_names.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "io/container.h"

namespace isobit {
namespace {

using PartNames = std::array<std::string_view, kPartCount>;
constexpr PartNames kLongNames = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
constexpr PartNames kShortNames = {"w_ih", "w_hh", "b_ih", "b_hh"};
constexpr PartNames kOnnxNames = {"W", "R", "B", ""};
constexpr PartNames kKerasNames = {"kernel", "recurrent_kernel", "bias", "recurrent_bias"};

struct ParsedName {
  std::string prefix;
  Part part = kWeightIh;
  Place place = {0, 0};
  Naming naming = Naming::kPytorch;
  bool is_projection = false;
};

bool remove_suffix(std::string_view& text, std::string_view suffix) {
  if (suffix.empty() || !text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

bool is_separator(char c) { return c == '.' || c == '_' || c == '/'; }

/// One of `names` at the end of `text`, which keeps what precedes it; the longest, as some end in another one.
std::optional<Part> remove_part(std::string_view& text, const PartNames& names, bool whole_words) {
  std::optional<Part> found;
  for (size_t part = 0; part < kPartCount; ++part) {
    const std::string_view name = names[part];
    if (name.empty() || !text.ends_with(name) || (found && names[*found].size() > name.size())) continue;
    if (whole_words && text.size() > name.size() && !is_separator(text[text.size() - name.size() - 1])) continue;
    found = static_cast<Part>(part);
  }
  if (found) text.remove_suffix(names[*found].size());
  return found;
}

/// "_l1" or "_l1_reverse" at the end of `text`.
std::optional<Place> remove_place(std::string_view& text) {
  std::string_view rest = text;
  Place place{0, remove_suffix(rest, "_reverse") ? 1 : 0};
  const size_t end = rest.find_last_not_of("0123456789");
  const std::string_view digits = end == std::string_view::npos ? rest : rest.substr(end + 1);
  if (digits.empty() || digits.size() > 4) return std::nullopt;
  for (const char c : digits) place.first = 10 * place.first + (c - '0');
  rest.remove_suffix(digits.size());
  if (!remove_suffix(rest, "_l")) return std::nullopt;
  text = rest;
  return place;
}

/// PREFIX.weight_ih_l1_reverse, PREFIX.weight_ih, PREFIX_w_ih, PREFIX.W, PREFIX/kernel:0; nothing for other names.
std::optional<ParsedName> parse_name(std::string_view text) {
  ParsedName parsed;
  std::optional<Part> part;
  if (const std::optional<Place> place = remove_place(text)) {
    parsed.place = *place;
    part = remove_part(text, kLongNames, false);
    if (!part) {
      if (!remove_suffix(text, "weight_hr")) return std::nullopt;
      parsed.is_projection = true;
      part = kWeightHh;
    }
  }
  if (!part) part = remove_part(text, kShortNames, false);
  if (!part) part = remove_part(text, kLongNames, false);
  if (!part) {
    remove_suffix(text, ":0");  // as TensorFlow names variables
    parsed.naming = Naming::kOnnx;
    part = remove_part(text, kOnnxNames, true);
  }
  if (!part) {
    parsed.naming = Naming::kKeras;
    part = remove_part(text, kKerasNames, true);
  }
  if (!part) return std::nullopt;
  parsed.part = *part;
  if (!text.empty() && is_separator(text.back())) text.remove_suffix(1);
  parsed.prefix = text;
  return parsed;
}

Status add_given(const ArrayReader& file, const std::map<std::string, std::string>& given, Networks& networks,
                 std::set<std::string_view>& names) {
  for (const auto& [meaning, name] : given) {
    const std::optional<ParsedName> parsed = parse_name(meaning);
    if (!parsed || parsed->naming != Naming::kPytorch || parsed->is_projection)
      return {StatusCode::kInvalidArgument,
              in_quotes(meaning) + " is no tensor of a GRU; expected names like PREFIX.weight_ih_l0"};
    const ArrayEntry* const entry = file.find(name);
    if (entry == nullptr)
      return {StatusCode::kInvalidArgument,
              file.name() + ": no array " + in_quotes(name) + ", named for " + in_quotes(meaning)};
    Network& network = networks[parsed->prefix];
    network.naming = Naming::kOwn;
    network.given.insert(parsed->place);
    network.layers[parsed->place][parsed->part] = entry;
    names.insert(entry->name);
    const std::optional<ParsedName> own = parse_name(name);
    if (own && own->naming == Naming::kKeras && own->part == parsed->part && own->part == kWeightHh)
      network.has_keras_names = true;
  }
  return {};
}

/// A clash spoils this network, not the file.
void add_array(const ArrayEntry& entry, const ParsedName& parsed, Network& network) {
  if (parsed.is_projection) {
    network.projection = &entry;
    return;
  }
  if (network.given.count(parsed.place) > 0) return;
  const ArrayEntry*& slot = network.layers[parsed.place][parsed.part];
  if (slot != nullptr && network.clash.empty())
    network.clash = "arrays " + in_quotes(slot->name) + " and " + in_quotes(entry.name) + " name the same tensor";
  slot = &entry;
}

std::string blocks_text(int64_t blocks) {
  if (blocks == 1) return "(H, H) is a plain RNN, which isobit does not convert";
  if (blocks == 4) return "(4 * H, H) is an LSTM, which isobit does not convert";
  return "";
}

/// Arrays that hold a missing one in another form, and the way out.
std::string form_hint(const std::string& prefix, const Place& place, Part part, const Network& network,
                      const ArrayReader& file) {
  for (const ArrayEntry& entry : file.entries()) {
    if (!is_under(entry.name, prefix) || network.is_used(entry.name)) continue;
    const size_t at = entry.name.find(part_name(part, place));
    if (at == std::string::npos || entry.name.find("_reverse", at) != std::string::npos) continue;
    std::string text = "; " + in_quotes(entry.name) + " holds it in another form";
    if (!entry.name.ends_with("_raw"))
      return text + ": save the weight itself (in PyTorch: remove the parametrisation before state_dict())";
    return text + ": if it is the trained weight, " + layer_hint(prefix, place, network.layers.at(place), part, entry) +
           " takes it";
  }
  return "";
}

// ---------------------------------------------------------------------------------------------------------------
// Nodes of ONNX models

Network network_of_nodes(const Networks& networks, const std::vector<std::string>& nodes) {
  Network network;
  network.naming = Naming::kOnnx;
  network.nodes = nodes;
  for (size_t l = 0; l < nodes.size(); ++l)
    network.layers[{static_cast<int64_t>(l), 0}] = networks.at(nodes[l]).layers.at({0, 0});
  return network;
}

std::string joined(const std::vector<std::string>& nodes) {
  std::string text;
  for (const std::string& node : nodes) text += (text.empty() ? "" : ",") + node;
  return text;
}

/// Whether the second network can be a layer above the first.
bool fits_above(const Network& below, const Network& above) {
  const ArrayEntry* const R = below.layers.at({0, 0})[kWeightHh];
  const ArrayEntry* const next = above.layers.at({0, 0})[kWeightHh];
  return R->dtype && next->dtype && R->shape == next->shape;
}

/// The longest lists of nodes of which each feeds the next one alone.
void add_chains(const ArrayReader& file, Networks& networks) {
  std::map<std::string, std::vector<std::string>> readers;
  std::set<std::string> fed;
  for (auto& [name, network] : networks) {
    network.nodes = {name};
    const auto below = networks.find(property_of(file, name, "fed_by"));
    if (below != networks.end() && fits_above(below->second, network)) readers[below->first].push_back(name);
  }
  for (const auto& [below, above] : readers)
    if (above.size() == 1) fed.insert(above[0]);
  std::vector<std::vector<std::string>> chains;
  for (const auto& [name, network] : networks) {
    std::vector<std::string> chain = {name};
    for (auto next = readers.find(name); next != readers.end() && next->second.size() == 1;
         next = readers.find(chain.back()))
      chain.push_back(next->second[0]);
    if (chain.size() > 1 && !fed.contains(name)) chains.push_back(std::move(chain));
  }
  for (const std::vector<std::string>& chain : chains) {
    for (const std::string& node : chain) networks.at(node).is_part = true;
    networks.emplace(joined(chain), network_of_nodes(networks, chain));
  }
}

/// The nodes of a list "A,B".
Status add_wanted(const ArrayReader& file, const std::string& wanted, Networks& networks) {
  std::vector<std::string> nodes(1);
  for (const char c : wanted) {
    if (c == ',') {
      nodes.emplace_back();
    } else {
      nodes.back() += c;
    }
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto node = networks.find(nodes[i]);
    if (node == networks.end() || node->second.nodes.size() != 1) return {};  // whoever looks for it says so
    if (i > 0 && property_of(file, nodes[i], "fed_by") != nodes[i - 1])
      return {StatusCode::kInvalidArgument, file.name() + ": layer " + in_quotes(wanted) + ": the node " +
                                                in_quotes(nodes[i]) + " does not read the output Y of " +
                                                in_quotes(nodes[i - 1]) + " alone, as the next layer does; its X is " +
                                                property_of(file, nodes[i], "X")};
  }
  networks.emplace(wanted, network_of_nodes(networks, nodes));
  return {};
}

}  // namespace

std::string property_of(const ArrayReader& file, const std::string& node, const std::string& key) {
  const auto found = file.metadata().find(node + "." + key);
  return found == file.metadata().end() ? "" : found->second;
}

int64_t Network::layer_count() const { return layers.empty() ? 0 : layers.rbegin()->first.first + 1; }

bool Network::is_used(std::string_view array) const {
  return std::any_of(layers.begin(), layers.end(), [array](const auto& layer) {
    return std::any_of(layer.second.begin(), layer.second.end(),
                       [array](const ArrayEntry* entry) { return entry != nullptr && entry->name == array; });
  });
}

Result<Networks> find_networks(const ArrayReader& file, const std::map<std::string, std::string>& given,
                               const std::string& wanted) {
  Networks networks;
  std::set<std::string_view> names;
  ISOBIT_RETURN_IF_ERROR(add_given(file, given, networks, names));
  std::map<std::pair<std::string, Naming>, Network> others;
  for (const ArrayEntry& entry : file.entries()) {
    const std::optional<ParsedName> parsed = parse_name(entry.name);
    if (!parsed || names.count(entry.name) > 0) continue;
    if (parsed->naming == Naming::kPytorch) {
      add_array(entry, *parsed, networks[parsed->prefix]);
    } else {
      add_array(entry, *parsed, others[{parsed->prefix, parsed->naming}]);
    }
  }
  // Many layers have a kernel or a W; with a recurrent one beside it it is a recurrent network.
  for (auto& [key, network] : others) {
    const Parts& parts = network.layers.begin()->second;
    if (parts[kWeightIh] == nullptr || parts[kWeightHh] == nullptr || networks.count(key.first) > 0) continue;
    network.naming = key.second;
    network.has_keras_names = key.second == Naming::kKeras;
    networks.emplace(key.first, std::move(network));
  }
  if (file.kind() != FileKind::kOnnx) return networks;
  add_chains(file, networks);
  if (!networks.contains(wanted)) ISOBIT_RETURN_IF_ERROR(add_wanted(file, wanted, networks));
  return networks;
}

bool is_under(std::string_view text, std::string_view prefix) {
  if (prefix.empty()) return true;
  return text.starts_with(prefix) && text.size() > prefix.size() && is_separator(text[prefix.size()]);
}

std::string part_name(Part part, const Place& place) {
  return std::string(kLongNames[part]) + "_l" + std::to_string(place.first) + (place.second == 1 ? "_reverse" : "");
}

std::optional<MatrixShape> matrix_shape(const ArrayEntry& entry, Naming naming) {
  const std::vector<int64_t>& shape = entry.shape;
  if (shape.size() == 2) return MatrixShape{1, shape[0], shape[1]};
  const int64_t most = naming == Naming::kOnnx || naming == Naming::kOwn ? 2 : 1;
  if (shape.size() != 3 || shape[0] < 1 || shape[0] > most) return std::nullopt;
  return MatrixShape{shape[0], shape[1], shape[2]};
}

Status check_is_gru(const std::string& prefix, const Network& network, const ArrayReader& file) {
  const auto invalid = [&](const std::string& text) {
    return Status(StatusCode::kInvalidFile, file.name() + ": " + text);
  };
  if (!network.nodes.empty()) {
    for (const auto& [place, parts] : network.layers)
      for (const ArrayEntry* const entry : parts)
        if (entry != nullptr && !entry->dtype) return file.read(entry->name).status();
  }
  if (!network.clash.empty()) return invalid(network.clash + " of the GRU " + in_quotes(prefix));
  if (network.projection != nullptr)
    return invalid(in_quotes(prefix) + " has the projection " + in_quotes(network.projection->name) + " " +
                   shape_text(network.projection->shape) +
                   ": it is an LSTM with proj_size, which isobit does not convert");
  // What kind it is, before what is missing: an LSTM is never called an incomplete GRU.
  for (const auto& [place, parts] : network.layers) {
    const ArrayEntry* const R = parts[kWeightHh];
    if (R == nullptr) continue;
    const std::optional<MatrixShape> shape = matrix_shape(*R, network.naming);
    const int64_t small = shape ? std::min(shape->rows, shape->columns) : 0;
    const int64_t large = shape ? std::max(shape->rows, shape->columns) : 0;
    const int64_t blocks = small > 0 && large % small == 0 ? large / small : 0;
    if (blocks == 3) continue;
    const std::string what = blocks_text(blocks);
    return invalid("array " + in_quotes(R->name) + " has the shape " + shape_text(R->shape) + ", must be (3 * H, H)" +
                   (what.empty() ? "" : "; " + what));
  }
  int64_t directions = 1;
  for (const auto& [place, parts] : network.layers) directions = std::max(directions, place.second + 1);
  for (int64_t l = 0; l < network.layer_count(); ++l) {
    for (int64_t d = 0; d < directions; ++d) {
      const auto parts = network.layers.find({l, d});
      for (const Part part : {kWeightIh, kWeightHh}) {
        if (parts != network.layers.end() && parts->second[part] != nullptr) continue;
        const std::string other = std::string(kLongNames[part]) + " or " + std::string(kShortNames[part]);
        return invalid("the GRU " + in_quotes(prefix) + " has no array " + part_name(part, {l, d}) +
                       (l == 0 && d == 0 ? ", " + other : "") +
                       (parts == network.layers.end() ? "" : form_hint(prefix, {l, d}, part, network, file)));
      }
    }
  }
  return {};
}

std::string layer_hint(const std::string& prefix, const Place& place, Parts parts, Part part, const ArrayEntry& array) {
  parts[part] = &array;
  std::string text = "--layer " + (prefix.empty() ? "gru" : prefix) +
                     (place == Place{0, 0} ? "" : part_name(kWeightIh, place).substr(kLongNames[kWeightIh].size())) +
                     "=";
  for (size_t i = 0; i < kPartCount; ++i)
    if (i < 2 || parts[kBiasIh] != nullptr) text += (i == 0 ? "" : ",") + (parts[i] == nullptr ? "?" : parts[i]->name);
  return text;
}

}  // namespace isobit
