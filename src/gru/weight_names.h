// SPDX-License-Identifier: Apache-2.0
// Arrays of a file that have the names of a recurrent network, by prefix. Names and shapes only; no values.
#ifndef ISOBIT_GRU_WEIGHT_NAMES_H_
#define ISOBIT_GRU_WEIGHT_NAMES_H_

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit {

enum Part : size_t { kWeightIh, kWeightHh, kBiasIh, kBiasHh, kPartCount };

enum class Naming {
  kPytorch,  // weight_ih_l0, weight_ih, w_ih
  kOnnx,     // W
  kKeras,    // kernel
  kOwn,      // the caller says which array is which
};

using Parts = std::array<const ArrayEntry*, kPartCount>;
using Place = std::pair<int64_t, int64_t>;  // layer, direction

struct Network {
  std::map<Place, Parts> layers;
  Naming naming = Naming::kPytorch;
  std::set<Place> given;                   // by the caller
  bool has_keras_names = false;            // also where the caller gave them
  const ArrayEntry* projection = nullptr;  // weight_hr_l0
  std::string clash;                       // "arrays 'a' and 'b' name the same tensor"
  std::vector<std::string> nodes;          // of an ONNX model: one for each layer, which it feeds to the next
  bool is_part = false;                    // of another network, whose layers are several nodes

  [[nodiscard]] int64_t layer_count() const;
  [[nodiscard]] bool is_used(std::string_view array) const;
};
using Networks = std::map<std::string, Network>;

/// given: PyTorch names, and the names in the file that stand for them; they hide the file's own of that layer.
/// Of an ONNX model: its GRU nodes, "A", and those of which each feeds the next one alone, "A,B". `wanted` may name
/// others as such a list.
Result<Networks> find_networks(const ArrayReader& file, const std::map<std::string, std::string>& given,
                               const std::string& wanted = "");

/// What an ONNX model says of a node; "": nothing.
std::string property_of(const ArrayReader& file, const std::string& node, const std::string& key);

/// Whether `text` is under the prefix: "gru." of "gru"; everything is under the empty one.
bool is_under(std::string_view text, std::string_view prefix);

/// "weight_hh_l1_reverse".
std::string part_name(Part part, const Place& place);

/// Rows and columns of a matrix, and how many lie behind each other: ONNX's first dimension counts directions.
struct MatrixShape {
  int64_t count = 1;
  int64_t rows = 0;
  int64_t columns = 0;
};
std::optional<MatrixShape> matrix_shape(const ArrayEntry& entry, Naming naming);

/// Why a network is no GRU: incomplete, another kind, or of a shape that fits none. Ok: it is one.
Status check_is_gru(const std::string& prefix, const Network& network, const ArrayReader& file);

/// The --layer that names the arrays of a layer one by one, with `array` for one of its parts.
std::string layer_hint(const std::string& prefix, const Place& place, Parts parts, Part part, const ArrayEntry& array);

}  // namespace isobit

#endif  // ISOBIT_GRU_WEIGHT_NAMES_H_
