// SPDX-License-Identifier: Apache-2.0
// Weights of convolutions: their layouts, and the matrices that they become.
#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "io/container.h"
#include "low_bit/parts.h"

namespace isobit {
namespace {

constexpr std::string_view kLayoutNames[] = {"ohwi", "oihw", "iohw"};

Status check_dimensions(const Array& weights, const std::string& name, const char* must) {
  if (weights.shape.size() == 4) return {};
  return {StatusCode::kInvalidArgument, name + " has the shape " + list_text(weights.shape) + ", must be " + must};
}

}  // namespace

std::string_view to_string(ConvLayout layout) { return kLayoutNames[static_cast<size_t>(layout)]; }

std::optional<ConvLayout> conv_layout_from_string(std::string_view text) {
  for (size_t i = 0; i < std::size(kLayoutNames); ++i)
    if (kLayoutNames[i] == text) return static_cast<ConvLayout>(i);
  return std::nullopt;
}

std::string conv_text(const ConvWeights& weights) {
  return std::to_string(weights.kernel_rows) + " x " + std::to_string(weights.kernel_columns) + ", " +
         std::to_string(weights.channels) + " -> " + std::to_string(weights.outputs);
}

Result<ConvWeights> conv_weights_of(const Array& weights, std::string_view name) {
  ISOBIT_RETURN_IF_ERROR(check_dimensions(weights, std::string(name), "[O, R, S, C / groups]"));
  const std::vector<int64_t>& shape = weights.shape;
  return ConvWeights{.outputs = shape[0], .kernel_rows = shape[1], .kernel_columns = shape[2], .channels = shape[3]};
}

Result<Array> conv_weights_from(const Array& weights, ConvLayout layout, int64_t groups, std::string_view name) {
  const std::string text(name);
  const bool of_inputs = layout == ConvLayout::kIohw;
  const char* const forms[] = {"[O, R, S, C / groups]", "[O, C / groups, R, S]", "[C, O / groups, R, S]"};
  ISOBIT_RETURN_IF_ERROR(check_dimensions(weights, text, forms[static_cast<size_t>(layout)]));
  const std::vector<int64_t>& shape = weights.shape;
  const int64_t most = of_inputs ? std::max<int64_t>(shape[0], 1) : 1;
  if (groups < 1 || groups > most || shape[0] % groups != 0)
    return Status(
        StatusCode::kInvalidArgument,
        text + ": groups is " + std::to_string(groups) + ", must be " +
            (of_inputs ? "1 to " + std::to_string(most) + " and divide " + std::to_string(shape[0]) +
                             " channels of weights in iohw"
                       : "1 of weights in " + std::string(to_string(layout)) + ", which do not depend on it"));
  if (layout == ConvLayout::kOhwi) return weights;
  if (layout == ConvLayout::kOihw) return reordered(weights, std::vector<size_t>{0, 2, 3, 1});
  Array grouped = weights;
  grouped.shape = {groups, shape[0] / groups, shape[1], shape[2], shape[3]};
  Array out = reordered(grouped, std::vector<size_t>{0, 2, 3, 4, 1});
  out.shape = {groups * shape[1], shape[2], shape[3], shape[0] / groups};
  return out;
}

Result<LowBitMatrix> quantize_conv_weights(const Array& weights, const LowBitOptions& options, std::string_view name,
                                           ThreadPool* pool) {
  ISOBIT_ASSIGN_OR_RETURN(const ConvWeights w, conv_weights_of(weights, name));
  const int64_t taps = w.kernel_rows * w.kernel_columns;
  Array matrix = weights;
  LowBitOptions form = options;
  if (options.group == 0) {
    matrix.shape = {w.outputs, taps * w.channels};
    form.group = taps * w.channels;
  } else {
    matrix.shape = {w.outputs * taps, w.channels};
  }
  return quantize_low_bit(matrix, form, name, pool);
}

}  // namespace isobit
