// SPDX-License-Identifier: Apache-2.0
#include "verify/bits_text.h"

#include <map>
#include <utility>
#include <vector>

namespace isobit {
namespace {

WidthTexts texts_of(const GruLayerParameters& layer) {
  const auto defaults = GruQuantization::default_tensors();
  WidthTexts texts;
  for (size_t t = 0; t < texts.size(); ++t) {
    const Grid& grid = layer.grids[t];
    texts[t] = std::to_string(grid.bits);
    if (grid.is_signed != defaults[t].is_signed) texts[t] += grid.is_signed ? ":signed" : ":unsigned";
  }
  return texts;
}

/// Whether a SPEC gives a model's widths and signs.
bool gives(const std::string& bits, const GruModelParameters& model) {
  GruQuantization quantization;
  if (!apply_bits(bits, quantization).ok()) return false;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const auto& tensors = quantization.layer(static_cast<int64_t>(i) / model.directions).tensors;
    for (size_t t = i < static_cast<size_t>(model.directions) ? kX : kH; t < tensors.size(); ++t) {
      const Grid& grid = model.layers[i].grids[t];
      if (tensors[t].bits != grid.bits || tensors[t].is_signed != grid.is_signed) return false;
    }
  }
  return true;
}

}  // namespace

std::string entries_text(GruTensorSet wanted, GruTensorSet covered, const WidthTexts& texts,
                         const std::string& prefix) {
  std::string out;
  const auto add = [&](const std::string& name, const std::string& text) {
    out.append(out.empty() ? "" : ",").append(prefix).append(name).append("=").append(text);
  };
  for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
    if ((wanted & set_of(tensor)) == 0) continue;
    const std::string& text = texts[static_cast<size_t>(tensor)];
    GruTensorSet done = set_of(tensor);
    std::string name(kGruTensorNames[static_cast<size_t>(tensor)]);
    for (const auto& [group, members] : kTensorGroups) {
      bool alike = (members & set_of(tensor)) != 0 && (members & ~covered) == 0;
      for (int32_t t = 0; t < kGruTensorCount; ++t) {
        alike = alike && ((members & set_of(t)) == 0 || texts[static_cast<size_t>(t)] == text);
      }
      if (!alike) continue;
      name = group;
      done = members;
      break;
    }
    add(name, text);
    wanted &= ~done;
  }
  return out;
}

std::string spec_text(std::span<const WidthTexts> layers) {
  const WidthTexts& first = layers[0];
  std::map<int, int> tensors_of_width;
  for (int32_t t = 0; t < kGruTensorCount; ++t) {
    if ((kBiasSet & set_of(t)) == 0) ++tensors_of_width[std::stoi(first[static_cast<size_t>(t)])];
  }
  std::pair<int, int> bare{0, 0};  // the most frequent width
  for (const auto& entry : tensors_of_width) {
    if (entry.second > bare.second) bare = entry;
  }
  const std::string width = std::to_string(bare.first);
  GruTensorSet others = 0;
  for (int32_t t = 0; t < kGruTensorCount; ++t) {
    // A bare width gives biases 8 or 16 bits.
    const bool is_bias = (kBiasSet & set_of(t)) != 0;
    const std::string expected = !is_bias ? width : bare.first <= 8 ? "8" : "16";
    if (first[static_cast<size_t>(t)] != expected) others |= set_of(t);
  }
  std::string out = width;
  const auto add = [&](const std::string& entries) { out.append(entries.empty() ? "" : ",").append(entries); };
  add(entries_text(others, others, first, ""));
  for (size_t l = 1; l < layers.size(); ++l) {
    const WidthTexts& above = layers[l];
    GruTensorSet differ = 0;
    for (int32_t t = 0; t < kGruTensorCount; ++t) {
      const auto at = static_cast<size_t>(t);
      if (t != kX && above[at] != first[at]) differ |= set_of(t);  // x is h of the layer below
    }
    add(entries_text(differ, differ, above, "l" + std::to_string(l) + "."));
  }
  return out;
}

std::string bits_text(const GruModelParameters& model) {
  const auto note = model.notes.find("bits");
  if (note != model.notes.end() && gives(note->second, model)) return note->second;
  std::vector<WidthTexts> layers;
  for (size_t i = 0; i < model.layers.size(); i += static_cast<size_t>(model.directions)) {
    layers.push_back(texts_of(model.layers[i]));
  }
  return spec_text(layers);
}

}  // namespace isobit
