// SPDX-License-Identifier: Apache-2.0
// Internal to verify: widths as entries of a SPEC for apply_bits.
#ifndef ISOBIT_VERIFY_BITS_TEXT_H_
#define ISOBIT_VERIFY_BITS_TEXT_H_

#include <array>
#include <span>
#include <string>

#include "gru/tensor_groups.h"
#include "isobit/compare.h"

namespace isobit {

/// What follows '=' in the entry of each tensor.
using WidthTexts = std::array<std::string, kGruTensorCount>;

/// "h=16,gate_out=12" for the tensors of `wanted`, each name preceded by `prefix`. A group stands for its tensors where
/// all of them are in `covered` with one text.
std::string entries_text(GruTensorSet wanted, GruTensorSet covered, const WidthTexts& texts, const std::string& prefix);

/// A whole SPEC for the texts of each layer. x of the layers above the first is left out.
std::string spec_text(std::span<const WidthTexts> layers);

}  // namespace isobit

#endif  // ISOBIT_VERIFY_BITS_TEXT_H_
