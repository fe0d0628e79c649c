// SPDX-License-Identifier: Apache-2.0
// Low-bit weights as the verbs read and describe them.
#ifndef ISOBIT_TOOLS_LOW_BIT_H_
#define ISOBIT_TOOLS_LOW_BIT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/files.h"
#include "isobit/gguf.h"
#include "isobit/low_bit.h"
#include "isobit/low_bit_import.h"
#include "isobit/nearest.h"
#include "isobit/status.h"
#include "text.h"
#include "value.h"

namespace isobit::tool {

/// nearest_hint() among the keys of a map.
template <typename Map>
std::string nearest_key(const std::string& name, const Map& map) {
  std::vector<std::string_view> names;
  names.reserve(map.size());
  for (const auto& [key, value] : map) names.push_back(key);
  return escaped(nearest_hint(name, names));
}

/// Bits of codes, scales, zero points and offsets together, for each weight.
double bits_per_weight(const LowBitMatrix& matrix);
/// "4 bits symmetric, group 64, f16".
std::string form_text(const LowBitParameters& parameters);
/// bits, kind, group and scales.
void set_form(const LowBitParameters& parameters, Value& json);
Value shape_json(std::span<const int64_t> shape);

/// A model that may be GPTQ or AWQ is read, and what lies beside it.
Status claim_checkpoint(const std::string& path, const std::string& option, FileClaims& files);
/// What is said about a GPTQ or AWQ checkpoint: "gptq, 4 bits, group 128, as quantize_config.json says".
std::string checkpoint_text(const CheckpointDescription& description);
Value checkpoint_json(const CheckpointDescription& description);
/// What is refused about a checkpoint, with the options that overrule it.
std::string checkpoint_refusal(const Status& status, const std::string& path,
                               const std::map<std::string, std::string>& metadata);

/// "weights quantised by MLX (2 matrices; 'fc.weight' is u32 beside 'fc.scales')".
std::string foreign_text(const ForeignFormat& format);

/// Appends a row for each value, shortened; returns what --json has of them.
Value describe_gguf_metadata(const GgufMetadata& metadata, std::string& text);

/// W [N, K] as float32, its columns in the order of x.
Result<Array> dense_weights(const LowBitMatrix& matrix, std::span<const int32_t> permutation);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_LOW_BIT_H_
