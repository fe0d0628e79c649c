// SPDX-License-Identifier: Apache-2.0
// Which tensors to widen: isobit/compare.h.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "core/float_mode.h"
#include "core/number_text.h"
#include "isobit/compare.h"
#include "verify/bits_text.h"
#include "verify/sequences.h"

namespace isobit {
namespace {

constexpr int32_t kWide = 16;
constexpr double kOtherDataDb = 1;  // what other data may give less
constexpr double kNearBestDb = 3;   // the goal where the target is out of reach

using LayerSets = std::vector<GruTensorSet>;  // of each layer

constexpr GruTensorSet kTriedSets[] = {
    kWeightSet, kBiasSet, kLinearSet, kGateInSet, kGateOutSet, kAllSet & ~kWeightSet & ~kBiasSet, kAllSet,
    // Faults that show together only: a state needs fine steps and gates that can hold it, a sum is as good as the
    // worse of its operands, and a result as good as the grid that it is rounded to next.
    set_of(kH) | set_of(kU), set_of(kH) | set_of(kU) | set_of(kN), set_of(kH) | kGateOutSet, set_of(kX) | kWeightSet,
    kLinearSet | kGateInSet, set_of(kX) | kLinearSet | kGateInSet, set_of(kH) | kLinearSet | kGateInSet | kGateOutSet};

// The dearest first: bytes, then slower products, then the rest, whose groups stay whole: what a SPEC names is short,
// and other data has some room.
constexpr GruTensorSet kTakenBack[] = {set_of(kW), set_of(kR), set_of(kX), set_of(kH),
                                       kBiasSet,   kLinearSet, kGateInSet, kGateOutSet};

struct Cost {
  int64_t matrix_bytes = 0;  // of W and R
  int64_t products = 0;      // with an operand that comes to need more than 8 bits
  int64_t tensors = 0;
};

std::string db_text(double db) {
  if (!std::isfinite(db)) return db > 0 ? "all of its bits" : "no signal";
  return number_text(std::round(db * 10) / 10) + " dB";
}

class Ablation {
 public:
  Ablation(GruValidation& validation, const GruModel& model, const GruAblationOptions& options)
      : validation_(validation), parameters_(model.parameters()), options_(options) {}

  Result<GruAblation> run() {
    const size_t layers = layer_count();
    out_.bits = bits_text(parameters_);
    for (size_t l = 0; l < layers; ++l) {
      ISOBIT_ASSIGN_OR_RETURN(GruModel layer, layer_model(parameters_, static_cast<int64_t>(l)));
      layers_.push_back(std::move(layer));
    }
    ISOBIT_ASSIGN_OR_RETURN(out_.sqnr, validation_.measure(layers_));

    std::vector<LayerSets> sets;
    sets.reserve(kGruTensorCount + std::size(kTriedSets) + layers);
    for (int32_t t = 0; t < kGruTensorCount; ++t) sets.emplace_back(layers, set_of(t));
    for (const GruTensorSet set : kTriedSets) sets.emplace_back(layers, set);
    for (size_t l = 0; layers > 1 && l < layers; ++l) sets.push_back(only(l, kAllSet));
    expected_ = sets.size() + std::size(kTakenBack) + layers + (options_.alone ? layers * kGruTensorCount : 0);
    for (const LayerSets& set : sets) ISOBIT_RETURN_IF_ERROR(measure(set).status());

    double best = out_.sqnr.output_db;
    for (const GruAblationRow& row : out_.rows) {
      if (row.refused.empty()) best = std::max(best, row.sqnr.output_db);
    }
    out_.goal_db = std::min(options_.target_db + kOtherDataDb, best - kNearBestDb);
    if (out_.sqnr.output_db < out_.goal_db) {
      ISOBIT_RETURN_IF_ERROR(take_back());
      for (size_t l = 0, found = cheapest(); layers > 1 && found < out_.rows.size() && l < layers; ++l) {
        ISOBIT_RETURN_IF_ERROR(measure(only(l, sets_[found][l])).status());
      }
    }
    if (options_.alone) ISOBIT_RETURN_IF_ERROR(measure_alone());
    return result(best);
  }

 private:
  /// Each tensor that is narrower than all others would be.
  Status measure_alone() {
    const LayerSets all = effective(LayerSets(layer_count(), kAllSet));
    for (size_t l = 0; l < all.size(); ++l) {
      for (int32_t t = 0; t < kGruTensorCount; ++t) {
        ++done_;
        if ((all[l] & set_of(t)) == 0) continue;
        LayerSets others = all;
        others[l] &= ~set_of(t);
        GruTensorAlone alone{static_cast<int64_t>(l), static_cast<GruTensor>(t), 0, {}};
        const Result<GruOutputSqnr> sqnr = measure_widened(others);
        if (sqnr.ok()) alone.sqnr_db = sqnr->output_db;
        if (!sqnr.ok()) alone.refused = sqnr.status().message();
        out_.alone.push_back(std::move(alone));
        tell();
      }
    }
    return {};
  }

  void tell() const {
    if (!options_.progress) return;
    options_.progress(std::min(1.0, static_cast<double>(out_.rows.size() + done_) / static_cast<double>(expected_)));
  }

  [[nodiscard]] size_t layer_count() const {
    return parameters_.layers.size() / static_cast<size_t>(parameters_.directions);
  }
  [[nodiscard]] const GruLayerParameters& layer(size_t l) const {
    return parameters_.layers[l * static_cast<size_t>(parameters_.directions)];
  }
  [[nodiscard]] LayerSets only(size_t l, GruTensorSet set) const {
    LayerSets sets(layer_count());
    sets[l] = set;
    return sets;
  }

  /// Without what is that wide already, and without x above the first layer.
  [[nodiscard]] LayerSets effective(LayerSets sets) const {
    for (size_t l = 0; l < sets.size(); ++l) {
      if (l > 0) sets[l] &= ~set_of(kX);
      for (int32_t t = 0; t < kGruTensorCount; ++t) {
        if (layer(l).grids[static_cast<size_t>(t)].bits >= kWide) sets[l] &= ~set_of(t);
      }
    }
    return sets;
  }

  /// Entries that widen `sets`, which are effective.
  [[nodiscard]] std::string text_of(const LayerSets& sets) const {
    WidthTexts texts;
    texts.fill(std::to_string(kWide));
    // A name without a layer, or of a group, may stand for what is 16 bits wide already, or for x above the first
    // layer.
    LayerSets covered = sets;
    for (size_t l = 0; l < sets.size(); ++l) {
      if (l > 0) covered[l] |= set_of(kX);
      for (int32_t t = 0; t < kGruTensorCount; ++t) {
        if (layer(l).grids[static_cast<size_t>(t)].bits == kWide) covered[l] |= set_of(t);
      }
    }
    GruTensorSet anywhere = 0, everywhere = kAllSet;
    for (size_t l = 0; l < sets.size(); ++l) {
      anywhere |= sets[l];
      everywhere &= covered[l];
    }
    if ((anywhere & ~everywhere) == 0) return entries_text(anywhere, everywhere, texts, "");
    std::string out;
    for (size_t l = 0; l < sets.size(); ++l) {
      if (sets[l] == 0) continue;
      out += (out.empty() ? "" : ",") + entries_text(sets[l], covered[l], texts, "l" + std::to_string(l) + ".");
    }
    return out;
  }

  /// What `sets`, which are effective, cost; fills in the bytes of all weights.
  [[nodiscard]] Cost cost_of(const LayerSets& sets, int64_t& weight_bytes) const {
    Cost cost;
    weight_bytes = 0;
    const int64_t directions = parameters_.directions;
    const auto is_narrow = [&](size_t l, GruTensor tensor) {
      return (sets[l] & set_of(tensor)) != 0 && layer(l).grids[tensor].bits <= 8;
    };
    for (size_t l = 0; l < sets.size(); ++l) {
      const GruLayerParameters& p = layer(l);
      const std::pair<GruTensor, const CodeMatrix*> matrices[] = {{kW, &p.W}, {kR, &p.R}, {kBw, &p.bw}, {kBr, &p.br}};
      for (const auto& [tensor, codes] : matrices) {
        if ((sets[l] & set_of(tensor)) == 0) continue;
        const size_t wide = size_in_bytes(code_dtype(kWide, p.grids[tensor].is_signed));
        const int64_t bytes =
            directions * codes->rows() * codes->columns() * static_cast<int64_t>(wide - size_in_bytes(codes->dtype()));
        weight_bytes += bytes;
        if ((kWeightSet & set_of(tensor)) != 0) cost.matrix_bytes += bytes;
      }
      cost.products += is_narrow(l, kX) ? 1 : 0;
      if (is_narrow(l, kH)) cost.products += l + 1 < sets.size() ? 2 : 1;
      for (int32_t t = 0; t < kGruTensorCount; ++t) cost.tensors += (sets[l] & set_of(t)) != 0 ? 1 : 0;
    }
    return cost;
  }

  /// The row of a set, measured where it is new; rows.size() where there is nothing to widen.
  Result<size_t> measure(const LayerSets& requested) {
    const LayerSets sets = effective(requested);
    if (std::all_of(sets.begin(), sets.end(), [](GruTensorSet set) { return set == 0; })) return out_.rows.size();
    const auto [found, is_new] = index_.emplace(sets, out_.rows.size());
    if (!is_new) return found->second;
    GruAblationRow row;
    row.set = text_of(sets);
    row.bits = out_.bits + "," + row.set;
    costs_.push_back(cost_of(sets, row.weight_bytes));
    sets_.push_back(sets);
    const Result<GruOutputSqnr> sqnr = measure_widened(sets);
    if (sqnr.ok()) {
      row.sqnr = *sqnr;
      row.gain_db = sqnr->output_db == out_.sqnr.output_db ? 0 : sqnr->output_db - out_.sqnr.output_db;
    } else {
      row.refused = sqnr.status().message();
    }
    out_.rows.push_back(std::move(row));
    tell();
    return out_.rows.size() - 1;
  }

  Result<GruOutputSqnr> measure_widened(const LayerSets& sets) {
    ISOBIT_ASSIGN_OR_RETURN(const GruModelParameters wide,
                            widen(validation_.weights(), parameters_, sets, kWide, &tables_));
    std::vector<GruModel> models;
    for (size_t l = 0; l < sets.size(); ++l) {
      if (sets[l] == 0 && (l == 0 || (sets[l - 1] & set_of(kH)) == 0)) {
        models.push_back(layers_[l]);
        continue;
      }
      ISOBIT_ASSIGN_OR_RETURN(GruModel model, layer_model(wide, static_cast<int64_t>(l), &tables_));
      models.push_back(std::move(model));
    }
    return validation_.measure(models);
  }

  [[nodiscard]] bool reaches_goal(size_t row) const {
    return row < out_.rows.size() && out_.rows[row].refused.empty() && out_.rows[row].sqnr.output_db >= out_.goal_db;
  }

  /// From all tensors at 16 bits back to few.
  Status take_back() {
    LayerSets kept(layer_count(), kAllSet);
    for (const GruTensorSet set : kTakenBack) {
      LayerSets fewer = kept;
      for (GruTensorSet& one : fewer) one &= ~set;
      if (effective(fewer) == effective(kept)) continue;
      ISOBIT_ASSIGN_OR_RETURN(const size_t row, measure(fewer));
      if (reaches_goal(row)) kept = fewer;
    }
    return {};
  }

  /// The cheapest row that reaches the goal; rows.size() if none does.
  [[nodiscard]] size_t cheapest() const {
    size_t found = out_.rows.size();
    const auto rank = [&](size_t row) {
      const Cost& cost = costs_[row];
      return std::make_tuple(cost.matrix_bytes, cost.products, cost.tensors, -out_.rows[row].sqnr.output_db);
    };
    for (size_t row = 0; row < out_.rows.size(); ++row) {
      if (reaches_goal(row) && (found == out_.rows.size() || rank(row) < rank(found))) found = row;
    }
    return found;
  }

  GruAblation result(double best) {
    const double own = out_.sqnr.output_db;
    const size_t chosen = own < out_.goal_db ? cheapest() : out_.rows.size();
    std::vector<size_t> order(out_.rows.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto rank = [&](size_t row) {
      return std::make_pair(!out_.rows[row].refused.empty(), -out_.rows[row].gain_db);
    };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
    std::vector<GruAblationRow> rows;
    for (const size_t row : order) {
      if (row == chosen) out_.advice = static_cast<int64_t>(rows.size());
      rows.push_back(std::move(out_.rows[row]));
    }
    out_.rows = std::move(rows);

    if (out_.advice >= 0) {
      const GruAblationRow& row = out_.rows[static_cast<size_t>(out_.advice)];
      out_.sentence = "Widen " + row.set + ": --bits " + row.bits + " gives the output " + db_text(row.sqnr.output_db) +
                      " instead of " + db_text(own) + ", with " + std::to_string(row.weight_bytes) +
                      " bytes of weights more";
      if (best < options_.target_db) {
        out_.sentence += " (" + db_text(options_.target_db) + " are out of reach of wider tensors, which give " +
                         db_text(best) + " at most)";
      }
      out_.sentence += ".";
    } else if (own >= options_.target_db + kOtherDataDb) {
      out_.sentence = "Nothing needs to be wider: the output has " + db_text(own) + ".";
    } else {
      out_.sentence = "Wider tensors do not help: the output has " + db_text(own) + ", and " + db_text(best) +
                      " at most with 16 bits; look at what is clipped, at --method and at --scale.";
    }
    return std::move(out_);
  }

  GruValidation& validation_;
  const GruModelParameters& parameters_;
  const GruAblationOptions& options_;
  std::vector<GruModel> layers_;
  TableCache tables_;
  std::map<LayerSets, size_t> index_;
  std::vector<LayerSets> sets_;  // of each row
  std::vector<Cost> costs_;
  size_t expected_ = 1, done_ = 0;  // done_: tensors alone
  GruAblation out_;
};

}  // namespace

Result<GruAblation> ablate(GruValidation& validation, const GruModel& model, const GruAblationOptions& options) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_same_shape(validation.weights(), model.parameters()));
  if (!std::isfinite(options.target_db)) {
    return Status(StatusCode::kInvalidArgument,
                  "target_db is " + number_text(options.target_db) + ", must be a finite number of dB");
  }
  return Ablation(validation, model, options).run();
}

}  // namespace isobit
