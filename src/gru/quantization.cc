// SPDX-License-Identifier: Apache-2.0
// Bit widths, signs and symmetry of a GRU's tensors, and their text form.
#include <charconv>

#include "isobit/gru.h"
#include "isobit/nearest.h"

namespace isobit {
namespace {

constexpr int64_t kMaxBits = 32;
constexpr int64_t kMaxGateBits = 16;  // tables have at most 2^16 inputs and 16-bit outputs

using TensorMask = uint32_t;
constexpr TensorMask mask_of(int32_t tensor) { return TensorMask{1} << tensor; }
constexpr TensorMask kWeights = mask_of(kW) | mask_of(kR);
constexpr TensorMask kBiases = mask_of(kBw) | mask_of(kBr);
constexpr TensorMask kLinear = mask_of(kIh) | mask_of(kHh);
constexpr TensorMask kGateIn = mask_of(kUIn) | mask_of(kRIn) | mask_of(kNIn);
constexpr TensorMask kGateOut = mask_of(kU) | mask_of(kRGate) | mask_of(kN);
constexpr TensorMask kAll = mask_of(kGruTensorCount) - 1;

constexpr std::string_view kOptionNames[] = {"signed", "unsigned", "symmetric", "asymmetric", "steps=N"};

struct Group {
  std::string_view name;
  TensorMask tensors;
};
constexpr Group kGroups[] = {{"all", kAll},       {"weights", kWeights}, {"biases", kBiases},
                             {"linear", kLinear}, {"gate_in", kGateIn},  {"gate_out", kGateOut}};

Status invalid(std::string_view entry, const std::string& message) {
  return {StatusCode::kInvalidArgument, "bits entry '" + std::string(entry) + "': " + message};
}

std::optional<TensorMask> tensors_of(std::string_view name) {
  for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
    if (kGruTensorNames[static_cast<size_t>(tensor)] == name) return mask_of(tensor);
  }
  for (const Group& group : kGroups) {
    if (group.name == name) return group.tensors;
  }
  return std::nullopt;
}

std::string known_names() {
  std::string text;
  for (const std::string_view name : kGruTensorNames) text += std::string(name) + " ";
  for (const Group& group : kGroups) text += std::string(group.name) + " ";
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

std::optional<int64_t> integer_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// [NAME=]BITS[:OPTION]...; remembers in `set_by` which entry decided each tensor.
Status apply_entry(std::string_view entry, std::array<GridOptions, kGruTensorCount>& tensors,
                   std::array<std::string_view, kGruTensorCount>& set_by) {
  bool more = false;
  std::string_view rest = entry;
  std::string_view width = next_part(rest, ':', more);
  const size_t equals = width.find('=');
  const bool is_bare = equals == std::string_view::npos;
  TensorMask chosen = kAll & ~kBiases;  // section 4: biases are 8 bits unless listed
  if (!is_bare) {
    const std::string_view name = width.substr(0, equals);
    const std::optional<TensorMask> named = tensors_of(name);
    if (!named) {
      std::vector<std::string_view> names(kGruTensorNames.begin(), kGruTensorNames.end());
      for (const Group& group : kGroups) names.push_back(group.name);
      return invalid(entry, "unknown tensor '" + std::string(name) + "', must be one of " + known_names() +
                                nearest_hint(name, names));
    }
    chosen = *named;
    width = width.substr(equals + 1);
  }
  const std::optional<int64_t> bits = integer_of(width);
  if (!bits || *bits < 1 || *bits > kMaxBits) {
    return invalid(entry, std::string(width) + " bits, must be a whole number from 1 to 32");
  }
  std::optional<bool> is_signed;
  std::optional<bool> symmetric;
  std::optional<int64_t> steps;
  while (more) {
    const std::string_view option = next_part(rest, ':', more);
    if (option == "signed" || option == "unsigned") {
      is_signed = option == "signed";
    } else if (option == "symmetric" || option == "asymmetric") {
      symmetric = option == "symmetric";
    } else if (option.substr(0, 6) == "steps=" && integer_of(option.substr(6))) {
      steps = integer_of(option.substr(6));
    } else {
      return invalid(entry, "unknown option '" + std::string(option) +
                                "', must be signed, unsigned, symmetric, asymmetric or steps=N" +
                                nearest_hint(option, kOptionNames));
    }
  }
  for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
    if ((chosen & mask_of(tensor)) == 0) continue;
    GridOptions& options = tensors[static_cast<size_t>(tensor)];
    options.bits = static_cast<int32_t>(*bits);
    options.steps = steps;  // steps belong to a width: without them, the default of the new width
    // What a bare entry says of sign and symmetry is meant for activations.
    if (!is_bare || (mask_of(tensor) & kWeights) == 0) {
      options.is_signed = is_signed.value_or(options.is_signed);
      options.symmetric = symmetric.value_or(options.symmetric);
    }
    set_by[static_cast<size_t>(tensor)] = entry;
  }
  return {};
}

/// Limits of what the entries have come to, since later entries win.
Status check_tensor(int32_t tensor, const GridOptions& options, std::string_view entry) {
  const std::string name(kGruTensorNames[static_cast<size_t>(tensor)]);
  if ((mask_of(tensor) & (kGateIn | kGateOut)) != 0 && options.bits > kMaxGateBits) {
    return invalid(entry, name + " has " + std::to_string(options.bits) +
                              " bits, must have at most 16: it is a gate's input or output");
  }
  if ((mask_of(tensor) & (kWeights | kBiases)) != 0 && !options.symmetric) {
    return invalid(entry, name + " is asymmetric, must be symmetric: it is a weight or bias");
  }
  const int64_t least = options.symmetric && options.is_signed ? 2 : 1;
  const int64_t most = int64_t{1} << options.bits;
  if (options.steps && (*options.steps < least || *options.steps > most)) {
    return invalid(entry, name + " has " + std::to_string(*options.steps) + " steps, must have " +
                              std::to_string(least) + " to " + std::to_string(most) + " with " +
                              std::to_string(options.bits) + " bits");
  }
  return {};
}

}  // namespace

std::array<GridOptions, kGruTensorCount> GruQuantization::default_tensors() {
  std::array<GridOptions, kGruTensorCount> tensors;  // 8 bits, signed, asymmetric
  for (const GruTensor tensor : {kW, kR, kBw, kBr, kN}) tensors[tensor].symmetric = true;
  for (const GruTensor tensor : {kU, kRGate}) tensors[tensor].is_signed = false;
  return tensors;
}

Status apply_bits(std::string_view text, GruQuantization& quantization) {
  std::array<GridOptions, kGruTensorCount> tensors = quantization.tensors;
  std::array<std::string_view, kGruTensorCount> set_by;
  bool more = true;
  while (more) ISOBIT_RETURN_IF_ERROR(apply_entry(next_part(text, ',', more), tensors, set_by));
  for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
    const auto t = static_cast<size_t>(tensor);
    if (!set_by[t].empty()) ISOBIT_RETURN_IF_ERROR(check_tensor(tensor, tensors[t], set_by[t]));
  }
  quantization.tensors = tensors;
  return {};
}

}  // namespace isobit
