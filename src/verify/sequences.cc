// SPDX-License-Identifier: Apache-2.0
#include "verify/sequences.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>

#include "core/number_text.h"

namespace isobit {
namespace {

Status invalid(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }

/// Refuses a span whose size is not the product of `shape`.
Status check_size(const std::string& name, size_t size, const std::string& axes, std::initializer_list<int64_t> shape) {
  int64_t expected = 1;
  bool overflow = false;
  std::string text;
  for (const int64_t dimension : shape) {
    overflow = overflow || __builtin_mul_overflow(expected, dimension, &expected);
    text += (text.empty() ? "" : ", ") + std::to_string(dimension);
  }
  if (!overflow && size == static_cast<size_t>(expected)) return {};
  return invalid(name + " has " + std::to_string(size) + " values, must have the shape [" + axes + "] = [" + text +
                 "]");
}

/// Refuses values of [outer, middle, columns] that are not finite.
Status check_finite(const std::string& name, std::span<const float> values, int64_t middle, int64_t columns) {
  const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad == values.end()) return {};
  const int64_t index = bad - values.begin();
  return invalid(name + "[" + std::to_string(index / columns / middle) + ", " +
                 std::to_string(index / columns % middle) + ", " + std::to_string(index % columns) + "] is " +
                 number_text(static_cast<double>(*bad)) + ", must be finite");
}

std::string shape_text(int64_t layers, int32_t directions, int64_t input, int64_t hidden) {
  return std::to_string(layers) + (layers == 1 ? " layer, " : " layers, ") + std::to_string(directions) +
         (directions == 1 ? " direction, " : " directions, ") + std::to_string(input) + " inputs, " +
         std::to_string(hidden) + " hidden units";
}

}  // namespace

Status check_sequences(const GruSequences& data, const GruShape& shape) {
  if (data.steps < 0 || data.batch < 0) {
    return invalid("steps " + std::to_string(data.steps) + " and batch " + std::to_string(data.batch) +
                   " must be at least 0");
  }
  const int64_t outer = data.batch_first ? data.batch : data.steps;
  const int64_t middle = data.batch_first ? data.steps : data.batch;
  ISOBIT_RETURN_IF_ERROR(
      check_size("x", data.x.size(), data.batch_first ? "N, T, C" : "T, N, C", {outer, middle, shape.input}));
  if (!data.h0.empty()) {
    ISOBIT_RETURN_IF_ERROR(
        check_size("h0", data.h0.size(), "layers * directions, N, H", {shape.states, data.batch, shape.hidden}));
  }
  if (!data.lengths.empty()) {
    ISOBIT_RETURN_IF_ERROR(check_size("lengths", data.lengths.size(), "N", {data.batch}));
    for (size_t n = 0; n < data.lengths.size(); ++n) {
      if (data.lengths[n] >= 0 && data.lengths[n] <= data.steps) continue;
      return invalid("lengths[" + std::to_string(n) + "] is " + std::to_string(data.lengths[n]) + ", must be 0 to " +
                     std::to_string(data.steps) + " (the steps)");
    }
  }
  ISOBIT_RETURN_IF_ERROR(check_finite("x", data.x, middle, shape.input));
  return check_finite("h0", data.h0, data.batch, shape.hidden);
}

Sequence sequence_of(const GruSequences& data, const GruShape& shape, int64_t n) {
  Sequence out;
  out.steps = data.lengths.empty() ? data.steps : data.lengths[static_cast<size_t>(n)];
  out.x.resize(static_cast<size_t>(out.steps * shape.input));
  for (int64_t t = 0; t < out.steps; ++t) {
    const int64_t row = data.batch_first ? n * data.steps + t : t * data.batch + n;
    std::copy_n(data.x.begin() + row * shape.input, shape.input, out.x.begin() + t * shape.input);
  }
  if (data.h0.empty()) return out;
  for (int64_t s = 0; s < shape.states; ++s) {
    const auto from = data.h0.begin() + (s * data.batch + n) * shape.hidden;
    out.h0.insert(out.h0.end(), from, from + shape.hidden);
  }
  return out;
}

Status check_same_shape(const GruWeights& weights, const GruModelParameters& model) {
  const std::string a =
      shape_text(weights.layer_count(), weights.directions, weights.input_size(), weights.hidden_size());
  const std::string b = shape_text(static_cast<int64_t>(model.layers.size()) / model.directions, model.directions,
                                   model.layers[0].input_size, model.layers[0].hidden_size);
  if (a == b) return {};
  return invalid("float and integer model differ in shape: " + a + " against " + b +
                 "; compare an integer model with the float model it was made from");
}

Status check_zoneout(float zoneout) {
  if (zoneout >= 0.0f && zoneout <= 1.0f) return {};
  return invalid("zoneout is " + number_text(static_cast<double>(zoneout)) + ", must be 0 to 1");
}

Result<GruModel> layer_model(const GruModelParameters& model, int64_t layer, const TableCache* tables) {
  GruModelParameters parameters;
  parameters.directions = model.directions;
  const auto first = model.layers.begin() + layer * model.directions;
  parameters.layers.assign(first, first + model.directions);
  return GruModel::create(std::move(parameters), tables);
}

double sqnr_db(double signal, double error) {
  if (error == 0) return std::numeric_limits<double>::infinity();
  return signal == 0 ? -std::numeric_limits<double>::infinity() : 10 * std::log10(signal / error);
}

}  // namespace isobit
