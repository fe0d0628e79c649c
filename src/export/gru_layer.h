// SPDX-License-Identifier: Apache-2.0
// One direction of one layer of a GRU in exported C.
#ifndef ISOBIT_EXPORT_GRU_LAYER_H_
#define ISOBIT_EXPORT_GRU_LAYER_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "export/product.h"
#include "export/program.h"
#include "export/tables.h"
#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit {

/// W or R of a layer: the product, and the rescale of its sums.
struct GruLinearPlan {
  Product product;
  std::string prefix;            // "W" or "R"
  std::vector<int64_t> start;    // [3H] what is added to a sum: the bias, and what the zero point of x takes away
  bool is_wide = false;          // the rescale
  bool has_multipliers = false;  // else all are 1
};

/// Of which types the C of a layer is.
struct GruLayerPlan {
  const GruLayerParameters* p = nullptr;
  std::string label;  // "l0", "l0_reverse"
  GruLinearPlan W, R;
  bool is_wide = false;          // the cell, what follows the sums
  bool has_multipliers = false;  // of the cell
  std::array<TableForm, 3> tables;

  /// The member of NAME_state.
  [[nodiscard]] std::string state() const { return "h_" + label; }
  [[nodiscard]] Dtype h() const { return p->grids[kH].dtype(); }
  /// Layers with the same key share their code.
  [[nodiscard]] std::string key() const;
};
/// Errors: kUnsupported where x, h, W or R has more than 16 bits; those of the overflow proof.
Result<GruLayerPlan> plan_gru_layer(const GruLayerParameters& p, const std::string& label, CTarget target);

struct GruLayerCode {
  std::string type, function;
};
/// Adds the code of layers with the key of this one: the type of their constants, and
/// `void f(const type *, const X *x, const H *h, H *next)`, then a buffer for each product that is prepared, W's first.
/// `suffix` tells it from those of other keys.
GruLayerCode add_gru_layer_code(CProgram& program, const GruLayerPlan& layer, const std::string& suffix);
/// Adds the constants of a layer, which are called as its label.
void add_gru_layer_data(CProgram& program, const GruLayerPlan& layer, const std::string& type);

}  // namespace isobit

#endif  // ISOBIT_EXPORT_GRU_LAYER_H_
