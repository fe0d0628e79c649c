// SPDX-License-Identifier: Apache-2.0
// Internal to verify: sequences of a caller, checked and one by one.
#ifndef ISOBIT_VERIFY_SEQUENCES_H_
#define ISOBIT_VERIFY_SEQUENCES_H_

#include <cstdint>
#include <vector>

#include "isobit/compare.h"

namespace isobit {

struct Sequence {
  int64_t number = 0;  // in the order of add()
  int64_t steps = 0;
  std::vector<float> x;   // [steps, C]
  std::vector<float> h0;  // [layers * directions, H]; empty: 0
};

/// Sizes of a GRU that data must fit.
struct GruShape {
  int64_t input = 0;
  int64_t states = 0;  // layers * directions
  int64_t hidden = 0;
};
inline GruShape shape_of(const GruWeights& weights) {
  return {weights.input_size(), static_cast<int64_t>(weights.layers.size()), weights.hidden_size()};
}

/// Refuses spans of other sizes, lengths outside 0..T, and values that are not finite, by name and index.
Status check_sequences(const GruSequences& data, const GruShape& shape);
/// Sequence n of checked data.
Sequence sequence_of(const GruSequences& data, const GruShape& shape, int64_t n);

/// Refuses a model whose shape differs from that of the weights.
Status check_same_shape(const GruWeights& weights, const GruModelParameters& model);
/// Refuses a probability of zoneout outside 0..1.
Status check_zoneout(float zoneout);

/// One layer of a model, with its directions, as a model of its own.
Result<GruModel> layer_model(const GruModelParameters& model, int64_t layer, const TableCache* tables = nullptr);

/// 10 log10(signal / error), see isobit/compare.h.
double sqnr_db(double signal, double error);

}  // namespace isobit

#endif  // ISOBIT_VERIFY_SEQUENCES_H_
