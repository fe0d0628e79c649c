// SPDX-License-Identifier: Apache-2.0
// What the importers share.
#ifndef ISOBIT_LOW_BIT_IMPORTERS_H_
#define ISOBIT_LOW_BIT_IMPORTERS_H_

#include <cstdint>

#include <optional>
#include <string>
#include <string_view>

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

}  // namespace isobit

#endif  // ISOBIT_LOW_BIT_IMPORTERS_H_
