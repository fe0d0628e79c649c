// SPDX-License-Identifier: Apache-2.0
// What the importers share.
#ifndef ISOBIT_LOW_BIT_IMPORTERS_H_
#define ISOBIT_LOW_BIT_IMPORTERS_H_

#include <cstdint>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/low_bit.h"
#include "isobit/low_bit_import.h"

namespace isobit {

/// Sizes, width, group, kind and types are set: arrays of zeros.
void allocate_low_bit(LowBitParameters& parameters, Dtype scales);

/// Makes all codes z in groups with a scale of 0, after the zero points of such groups have become 2^(bits-1). Returns
/// in how many groups a code changed.
int64_t clear_zero_scales(LowBitParameters& parameters);

/// find_checkpoint_description() of one JSON text: of config.json (`whole_model`), or of one of the other two.
Result<std::optional<CheckpointDescription>> parse_checkpoint_description(std::string_view text, bool whole_model,
                                                                          const std::string& where);

/// Names of the tensors of a GPTQ or AWQ matrix, of those that are there.
std::vector<std::string> checkpoint_parts(const std::map<std::string, Array>& arrays, const std::string& prefix);

/// Where a checkpoint is described by the caller alone.
inline constexpr const char* kCheckpointOptionsSay = "--checkpoint-format, --bits and --group say";

/// What is refused about a checkpoint, and the options of isobit pack that overrule it.
std::string checkpoint_refusal(const Status& status, const std::string& path,
                               const std::map<std::string, std::string>& metadata);

/// "weights quantised by MLX (2 matrices; 'fc.weight' is u32 beside 'fc.scales')".
std::string foreign_text(const ForeignFormat& format);

}  // namespace isobit

#endif  // ISOBIT_LOW_BIT_IMPORTERS_H_
