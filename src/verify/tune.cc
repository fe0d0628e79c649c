// SPDX-License-Identifier: Apache-2.0
#include "isobit/tune.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "core/float_mode.h"
#include "core/number_text.h"
#include "verify/bits_text.h"
#include "verify/sequences.h"

namespace isobit {
namespace {

// Narrower models than this are no use, and the search need not go on to them.
constexpr double kWorstDb = 6;
// Models that differ by less are of one size: the faster one is better.
constexpr double kSameSize = 1.02;
// Qualities that differ by less are alike: the faster model is better.
constexpr double kSameDb = 0.5;
// A guess at the bytes of an interpolated table, and what a look-up in memory costs in bytes of weights read.
constexpr double kInterpolatedBytes = 8 * 1025;
constexpr double kGatherBytes = 4;
// What reading a byte of weights in every step costs in bytes of the model.
constexpr double kWorkWeight = 0.25;
// Another method is worth a search of its own from this gain on.
constexpr double kVariantGainDb = 1;
// Quality, by SQNR, of the models that a metric is shown beside those on the way down.
constexpr double kMetricRungsDb[] = {15, 25, 35, 45};

constexpr std::string_view kMethods[] = {"minmax", "percentile:99.99", "percentile:99.9", "sqnr",
                                         "minmax,x=ema:0.9,h=ema:0.9"};
constexpr std::string_view kTables[] = {"default", "interpolated"};

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

double noise_of(double db) { return std::pow(10.0, -db / 10); }

// ---------------------------------------------------------------------------------------------------------------
// What may be narrowed

/// Tensors of a layer that have one width, and the widths, widest first.
struct Knob {
  int64_t layer = 0;
  std::vector<GruTensor> tensors;
  std::vector<std::string> widths;  // as in a SPEC: "8:steps=255"
};
/// An index into the widths of each knob.
using Choice = std::vector<size_t>;

std::vector<Knob> knobs_of(int64_t layers, ScaleKind scale) {
  const std::vector<std::string> states = {"16", "12", "8"};
  const std::vector<std::string> matrices = {"16", "8", "4", "2", "1"};
  std::vector<std::string> held = states;
  // With powers of two the 8-bit grid of u ends below 1; a step twice as coarse has a code for it.
  if (scale == ScaleKind::kPow2) held = {"16", "12", "8:steps=255", "8"};
  std::vector<Knob> knobs = {{0, {kX}, states}};
  for (int64_t l = 0; l < layers; ++l) {
    knobs.push_back({l, {kW}, matrices});
    knobs.push_back({l, {kR}, matrices});
    knobs.push_back({l, {kBw, kBr}, {"16", "8"}});
    knobs.push_back({l, {kH}, states});
    knobs.push_back({l, {kUIn, kRIn, kNIn}, states});
    knobs.push_back({l, {kU}, held});
    knobs.push_back({l, {kRGate, kN}, states});
  }
  return knobs;
}

int bits_of(const std::string& width) { return std::stoi(width); }

std::string spec_of(const std::vector<Knob>& knobs, const Choice& choice, int64_t layers) {
  WidthTexts all16;
  all16.fill("16");
  std::vector<WidthTexts> texts(static_cast<size_t>(layers), all16);
  for (size_t k = 0; k < knobs.size(); ++k) {
    for (const GruTensor tensor : knobs[k].tensors) {
      texts[static_cast<size_t>(knobs[k].layer)][tensor] = knobs[k].widths[choice[k]];
    }
  }
  return spec_text(texts);
}

/// What a choice costs, to order the steps of the search by: bytes, and the work of a step in bytes of weights that
/// products read, once for each plane of 8 bits of either factor.
class CostModel {
 public:
  CostModel(const GruWeights& weights, const std::vector<Knob>& knobs, double work_weight)
      : weights_(weights), knobs_(knobs), work_weight_(work_weight) {}

  [[nodiscard]] double of(const Choice& choice) const {
    std::vector<std::array<int, kGruTensorCount>> bits(static_cast<size_t>(weights_.layer_count()));
    for (auto& layer : bits) layer.fill(16);
    for (size_t k = 0; k < knobs_.size(); ++k) {
      for (const GruTensor tensor : knobs_[k].tensors) {
        bits[static_cast<size_t>(knobs_[k].layer)][tensor] = bits_of(knobs_[k].widths[choice[k]]);
      }
    }
    double cost = 0;
    for (size_t l = 0; l < bits.size(); ++l) {
      if (l > 0) bits[l][kX] = bits[l - 1][kH];
      cost += of_layer(weights_.layers[l * static_cast<size_t>(weights_.directions)], bits[l]);
    }
    return cost * weights_.directions;
  }

 private:
  [[nodiscard]] double of_layer(const GruLayerWeights& layer, const std::array<int, kGruTensorCount>& bits) const {
    const double rows = 3.0 * static_cast<double>(layer.hidden_size);
    const double W = rows * static_cast<double>(layer.input_size);
    const double R = rows * static_cast<double>(layer.hidden_size);
    const auto planes = [](int width) { return width > 8 ? 2.0 : 1.0; };
    double bytes = W * bits[kW] / 8 + R * bits[kR] / 8 + rows * (planes(bits[kBw]) + planes(bits[kBr]));
    double work = W * planes(bits[kW]) * planes(bits[kX]) + R * planes(bits[kR]) * planes(bits[kH]);
    for (int gate = 0; gate < 3; ++gate) {
      const int in = bits[static_cast<size_t>(kUIn + gate)], out = bits[static_cast<size_t>(kU + gate)];
      const bool is_direct = default_table_options(in).kind == TableKind::kDirect;
      bytes += is_direct ? std::ldexp(planes(out), in) : kInterpolatedBytes;
      if (in > 8 || out > 8) work += kGatherBytes * rows;
    }
    return bytes + work_weight_ * work;
  }

  const GruWeights& weights_;
  const std::vector<Knob>& knobs_;
  double work_weight_;
};

// ---------------------------------------------------------------------------------------------------------------
// The search

class Search {
 public:
  Search(const GruCalibrator& calibrator, GruValidation& validation, const GruTuneOptions& options)
      : calibrator_(calibrator), validation_(validation), options_(options) {}

  Result<GruTuneResult> run() {
    ISOBIT_RETURN_IF_ERROR(prepare());
    const Status status = search();
    if (!status.ok() && !interrupted_) return status;
    return finish();
  }

 private:
  enum class Goal { kTarget, kBytes, kMetric };

  /// A point, or why there is none.
  struct Evaluated {
    std::optional<GruTunePoint> point;
    int64_t tensor_bytes = 0;
    int64_t number = 0;  // in the order of evaluation
    Status refused;
  };

  Status prepare() {
    ISOBIT_RETURN_IF_ERROR(check_tune_options(options_));
    const GruWeights &calibrated = calibrator_.weights(), &validated = validation_.weights();
    const bool alike = std::equal(calibrated.layers.begin(), calibrated.layers.end(), validated.layers.begin(),
                                  validated.layers.end(), [](const GruLayerWeights& a, const GruLayerWeights& b) {
                                    return a.W == b.W && a.R == b.R && a.bw == b.bw && a.br == b.br;
                                  });
    if (!alike || calibrated.directions != validated.directions) {
      return invalid("the calibrator and the validation have other weights; make both from the same");
    }
    goal_db_ = target_ = options_.target.value_or(GruTuneOptions::kDefaultTargetDb);
    goal_ = options_.metric ? Goal::kMetric : options_.max_bytes || options_.like ? Goal::kBytes : Goal::kTarget;
    settings_.rounding = options_.rounding;
    settings_.scale = options_.scale.value_or(ScaleKind::kPow2);
    settings_.method = options_.method.value_or("minmax");
    settings_.table = options_.table.value_or("default");
    return {};
  }

  Status measure_like() {
    like_ = *options_.like;
    like_.reason.clear();
    ISOBIT_ASSIGN_OR_RETURN(const Evaluated* like, evaluate_one(like_));
    if (!like->point) return {like->refused.code(), "like: " + like->refused.message()};
    goal_db_ = like->point->quality;
    return {};
  }

  /// Why `chosen` was chosen.
  [[nodiscard]] std::string reason(const GruTunePoint& chosen) const {
    std::string goal =
        options_.metric ? "the first of ascending bytes with " : "within 2 % of the fewest bytes that reach ";
    goal += number_text(target_) + (options_.metric ? "" : " dB");
    if (options_.max_bytes) goal = "the best quality in at most " + std::to_string(*options_.max_bytes) + " bytes";
    if (options_.like) goal = "the best quality in the bytes of " + options_.like->bits;
    const double tenths = std::round(chosen.quality * 10) / 10;
    return "isobit tune: " + number_text(tenths) + (options_.metric ? " by the metric on " : " dB on ") +
           std::to_string(validation_.sequences()) + " sequences of validation data; " + goal;
  }

  // ---- evaluation

  Result<const Evaluated*> evaluate_one(const GruSettings& settings) {
    std::vector<const Evaluated*> out;
    ISOBIT_RETURN_IF_ERROR(evaluate({settings}, out));
    return out[0];
  }

  /// Models of all settings, each once; `out` in their order.
  Status evaluate(const std::vector<GruSettings>& wanted, std::vector<const Evaluated*>& out) {
    std::vector<const GruSettings*> fresh;
    for (const GruSettings& settings : wanted) {
      const std::string key = settings.command_options();
      if (done_.try_emplace(key).second) fresh.push_back(&settings);
    }
    const size_t together = options_.pool == nullptr ? 1 : static_cast<size_t>(options_.pool->threads());
    for (size_t begin = 0; begin < fresh.size(); begin += together) {
      const size_t count = std::min(together, fresh.size() - begin);
      std::vector<std::optional<Result<Layers>>> models(count);
      const auto derive = [&](int, int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          models[static_cast<size_t>(i)] = layers_of(*fresh[begin + static_cast<size_t>(i)]);
        }
      };
      if (options_.pool == nullptr) {
        derive(0, 0, static_cast<int64_t>(count));
      } else {
        options_.pool->for_ranges(static_cast<int64_t>(count), derive);
      }
      for (size_t i = 0; i < count; ++i) {
        const GruSettings& settings = *fresh[begin + i];
        ISOBIT_RETURN_IF_ERROR(measure(settings, *models[i], done_[settings.command_options()]));
      }
    }
    for (const GruSettings& settings : wanted) out.push_back(&done_[settings.command_options()]);
    return {};
  }

  /// A model, and its layers one by one.
  struct Layers {
    GruModel model;
    std::vector<GruModel> layers;
  };

  Result<GruModel> model_of(const GruSettings& settings) {
    ISOBIT_ASSIGN_OR_RETURN(const GruQuantization quantization, settings.quantization());
    return calibrator_.finish(quantization, &tables_);
  }

  Result<Layers> layers_of(const GruSettings& settings) {
    ISOBIT_ASSIGN_OR_RETURN(GruModel model, model_of(settings));
    std::vector<GruModel> layers;
    for (int64_t l = 0; l < model.layer_count(); ++l) {
      ISOBIT_ASSIGN_OR_RETURN(GruModel layer, layer_model(model.parameters(), l, &tables_));
      layers.push_back(std::move(layer));
    }
    return Layers{std::move(model), std::move(layers)};
  }

  Status measure(const GruSettings& settings, const Result<Layers>& made, Evaluated& out) {
    ++evaluations_;
    if (!made.ok()) {
      out.refused = made.status();
    } else {
      const GruModel& model = made->model;
      GruTunePoint point;
      point.settings = settings;
      ISOBIT_ASSIGN_OR_RETURN(point.sqnr, validation_.measure(made->layers));
      point.quality = *std::min_element(point.sqnr.layer_db.begin(), point.sqnr.layer_db.end());
      ISOBIT_ASSIGN_OR_RETURN(const GruSizes sizes, model.sizes());
      point.bytes = sizes.total_bytes();
      point.speed = speed_class(model);
      out.tensor_bytes = sizes.total_bytes() - sizes.header_bytes;
      out.point = std::move(point);
      out.number = evaluations_;
      order_.push_back(&out);
    }
    return report();
  }

  Status report() {
    if (!options_.progress) return {};
    const Evaluated* best = best_of(order_);
    if (best == nullptr) best = best_quality(order_);
    GruTuneProgress progress;
    progress.evaluations = evaluations_;
    progress.fraction = std::min(0.99, static_cast<double>(evaluations_) / static_cast<double>(expected_));
    progress.best = best == nullptr ? nullptr : &*best->point;
    if (options_.progress(progress)) return {};
    interrupted_ = true;
    return {StatusCode::kFailedPrecondition, "interrupted"};
  }

  // ---- what is better

  [[nodiscard]] bool qualifies(const Evaluated& e) const {
    if (options_.max_bytes) return e.point->bytes <= *options_.max_bytes;
    if (options_.like) return e.tensor_bytes <= like_bytes() && e.point->quality >= goal_db_;
    return e.point->quality >= goal_db_;
  }

  [[nodiscard]] int64_t like_bytes() const { return done_.at(like_.command_options()).tensor_bytes; }

  /// Of those that qualify, the fewest bytes (goal: target) or the best quality (goal: bytes); almost equal ones by
  /// speed class, power-of-two scales before general ones, quality, bytes, and the order of evaluation. Null: none
  /// qualifies.
  [[nodiscard]] const Evaluated* best_of(const std::vector<const Evaluated*>& all) const {
    std::vector<const Evaluated*> good;
    for (const Evaluated* e : all) {
      if (qualifies(*e)) good.push_back(e);
    }
    if (good.empty()) return nullptr;
    if (goal_ == Goal::kBytes) {
      double most = -std::numeric_limits<double>::infinity();
      for (const Evaluated* e : good) most = std::max(most, e->point->quality);
      std::erase_if(good, [&](const Evaluated* e) { return e->point->quality < most - kSameDb; });
    } else {
      int64_t least = std::numeric_limits<int64_t>::max();
      for (const Evaluated* e : good) least = std::min(least, e->point->bytes);
      std::erase_if(good, [&](const Evaluated* e) {
        return static_cast<double>(e->point->bytes) > kSameSize * static_cast<double>(least);
      });
    }
    const auto rank = [](const Evaluated* e) {
      const GruTunePoint& p = *e->point;
      return std::tuple(p.speed, p.settings.scale, -p.quality, p.bytes);
    };
    return *std::min_element(good.begin(), good.end(),
                             [&](const Evaluated* a, const Evaluated* b) { return rank(a) < rank(b); });
  }

  /// The best quality, whatever it costs; of equal ones the fewest bytes, then the fastest. Null: there is none.
  [[nodiscard]] static const Evaluated* best_quality(const std::vector<const Evaluated*>& all) {
    const auto rank = [](const Evaluated* e) {
      return std::tuple(-e->point->quality, e->point->bytes, e->point->speed);
    };
    const auto best = std::min_element(all.begin(), all.end(),
                                       [&](const Evaluated* a, const Evaluated* b) { return rank(a) < rank(b); });
    return best == all.end() ? nullptr : *best;
  }

  // ---- the way down

  [[nodiscard]] GruSettings settings_of(const Choice& choice) const {
    GruSettings settings = settings_;
    settings.bits = spec_of(knobs_, choice, calibrator_.weights().layer_count());
    return settings;
  }

  Status evaluate_choices(const std::vector<Choice>& choices, std::vector<const Evaluated*>& out) {
    std::vector<GruSettings> settings;
    settings.reserve(choices.size());
    for (const Choice& choice : choices) settings.push_back(settings_of(choice));
    return evaluate(settings, out);
  }

  Status search() {
    knobs_ = knobs_of(calibrator_.weights().layer_count(), settings_.scale);
    expected_ = 40 + static_cast<int64_t>(4 * knobs_.size() * 3);
    if (options_.like) ISOBIT_RETURN_IF_ERROR(measure_like());
    ISOBIT_RETURN_IF_ERROR(start());
    std::vector<Choice> path;
    ISOBIT_RETURN_IF_ERROR(descend(path));
    if (goal_ == Goal::kMetric) {
      for (const double rung : kMetricRungsDb) {
        goal_db_ = rung;
        ISOBIT_RETURN_IF_ERROR(refine(path));
        ISOBIT_RETURN_IF_ERROR(try_variants(path));
      }
      return {};
    }
    ISOBIT_RETURN_IF_ERROR(refine(path));
    return try_variants(path);
  }

  /// The widest model; with other methods and scales where the target is out of its reach.
  Status start() {
    const Choice widest(knobs_.size(), 0);
    ISOBIT_ASSIGN_OR_RETURN(const Evaluated* first, evaluate_one(settings_of(widest)));
    if (first->point && (goal_ != Goal::kTarget || qualifies(*first))) return {};
    std::vector<const Evaluated*> variants;
    ISOBIT_RETURN_IF_ERROR(evaluate(variants_of(settings_of(widest)), variants));
    std::erase_if(variants, [](const Evaluated* e) { return !e->point; });
    if (variants.empty() && !first->point) return first->refused;
    if (first->point) variants.push_back(first);
    const Evaluated* best = goal_ == Goal::kTarget ? best_of(variants) : nullptr;
    if (best == nullptr) best = best_quality(variants);
    take_variant(best->point->settings);
    return {};
  }

  void take_variant(const GruSettings& settings) {
    settings_.method = settings.method;
    settings_.scale = settings.scale;
    settings_.table = settings.table;
    knobs_ = knobs_of(calibrator_.weights().layer_count(), settings_.scale);
  }

  /// The same widths with every other method, scale and table that may be tried.
  [[nodiscard]] std::vector<GruSettings> variants_of(const GruSettings& settings) const {
    std::vector<GruSettings> out;
    for (const ScaleKind scale : {ScaleKind::kPow2, ScaleKind::kReal}) {
      if (options_.scale && scale != *options_.scale) continue;
      for (const std::string_view method : kMethods) {
        if (options_.method && method != kMethods[0]) continue;
        for (const std::string_view table : kTables) {
          if (options_.table && table != kTables[0]) continue;
          GruSettings variant = settings;
          variant.scale = scale;
          if (!options_.method) variant.method = method;
          if (!options_.table) variant.table = table;
          out.push_back(std::move(variant));
        }
      }
    }
    return out;
  }

  /// From the widest model on, each time the step with the least noise for what it saves, by what each step alone does
  /// to the widest model; a step that does far more in company is not taken.
  Status descend(std::vector<Choice>& path) {
    const CostModel cost(calibrator_.weights(), knobs_, goal_ == Goal::kBytes ? 0.0 : kWorkWeight);
    const Choice widest(knobs_.size(), 0);
    std::vector<Choice> singles = {widest};
    std::vector<std::pair<size_t, size_t>> steps = {{0, 0}};
    for (size_t k = 0; k < knobs_.size(); ++k) {
      for (size_t width = 1; width < knobs_[k].widths.size(); ++width) {
        singles.push_back(widest);
        singles.back()[k] = width;
        steps.emplace_back(k, width);
      }
    }
    std::vector<const Evaluated*> alone;
    ISOBIT_RETURN_IF_ERROR(evaluate_choices(singles, alone));
    const double floor = noise_of(alone[0]->point->quality);
    std::vector<std::vector<double>> noise(knobs_.size());
    for (size_t k = 0; k < knobs_.size(); ++k) noise[k].assign(knobs_[k].widths.size(), 0);
    for (size_t i = 1; i < alone.size(); ++i) {
      const auto [k, width] = steps[i];
      noise[k][width] = alone[i]->point ? std::max(0.0, noise_of(alone[i]->point->quality) - floor)
                                        : std::numeric_limits<double>::infinity();
    }

    Choice now = widest;
    const Evaluated* here = alone[0];
    path = {now};
    std::vector<std::vector<bool>> barred(knobs_.size());
    for (size_t k = 0; k < knobs_.size(); ++k) barred[k].assign(knobs_[k].widths.size(), false);
    for (;;) {
      const double price = cost.of(now);
      double least = std::numeric_limits<double>::infinity();
      std::pair<size_t, size_t> step;
      for (size_t k = 0; k < knobs_.size(); ++k) {
        for (size_t width = now[k] + 1; width < knobs_[k].widths.size(); ++width) {
          if (barred[k][width]) continue;
          Choice next = now;
          next[k] = width;
          const double saved = price - cost.of(next);
          if (saved <= 0) continue;
          const double added = std::max(0.0, noise[k][width] - noise[k][now[k]]);
          // Steps that add nothing are in the order of what they save.
          const double rate = (added + 1e-3 * floor) / saved;
          if (rate < least) {
            least = rate;
            step = {k, width};
          }
        }
      }
      if (!std::isfinite(least)) return {};
      const auto [k, width] = step;
      Choice next = now;
      next[k] = width;
      const double expected = noise_of(here->point->quality) + std::max(0.0, noise[k][width] - noise[k][now[k]]);
      ISOBIT_ASSIGN_OR_RETURN(const Evaluated* there, evaluate_one(settings_of(next)));
      if (!there->point || noise_of(there->point->quality) > 4 * expected) {
        barred[k][width] = true;
        continue;
      }
      now = std::move(next);
      here = there;
      path.push_back(now);
      if (here->point->quality < kWorstDb) return {};
    }
  }

  // ---- around one choice

  /// Every knob one step down or up, and those of all layers together.
  [[nodiscard]] std::vector<Choice> neighbours(const Choice& choice) const {
    std::vector<Choice> out;
    const auto add = [&](Choice next) {
      if (next != choice && std::find(out.begin(), out.end(), next) == out.end()) out.push_back(std::move(next));
    };
    for (size_t k = 0; k < knobs_.size(); ++k) {
      for (size_t width = 0; width < knobs_[k].widths.size(); ++width) {
        const bool down = width > choice[k] && width <= choice[k] + 2;
        const bool up = goal_ == Goal::kBytes && width + 1 == choice[k];
        if (!down && !up) continue;
        Choice next = choice;
        next[k] = width;
        add(std::move(next));
      }
    }
    if (goal_ == Goal::kBytes) return out;
    // Speed classes are those of the slowest layer: one layer alone gains nothing.
    const GruTensorSet together[] = {set_of(kX) | set_of(kH), kGateInSet | kGateOutSet, kWeightSet};
    for (const GruTensorSet tensors : together) {
      for (const int bits : {12, 8}) {
        Choice next = choice;
        for (size_t k = 0; k < knobs_.size(); ++k) {
          if ((tensors & set_of(knobs_[k].tensors[0])) == 0) continue;
          while (next[k] + 1 < knobs_[k].widths.size() && bits_of(knobs_[k].widths[next[k]]) > bits) ++next[k];
        }
        add(std::move(next));
      }
    }
    return out;
  }

  /// The best that qualifies; where none does and bytes are the limit, the fewest bytes that keep the quality.
  [[nodiscard]] const Evaluated* best_or_nearest(const std::vector<const Evaluated*>& all) const {
    const Evaluated* best = best_of(all);
    if (best != nullptr || goal_ != Goal::kBytes) return best;
    const double least_db = options_.like ? goal_db_ : kWorstDb;
    for (const Evaluated* e : all) {
      if (e->point->quality < least_db || (best != nullptr && e->tensor_bytes >= best->tensor_bytes)) continue;
      best = e;
    }
    return best;
  }

  /// From the best choice of the path, neighbour by neighbour, for as long as one is better.
  Status refine(const std::vector<Choice>& path) {
    std::vector<Choice> choices = path;
    const Evaluated* best = nullptr;
    std::set<const Evaluated*> passed;  // what is better depends on the company: the way must not be a circle
    for (;;) {
      std::vector<const Evaluated*> evaluated;
      ISOBIT_RETURN_IF_ERROR(evaluate_choices(choices, evaluated));
      std::vector<const Evaluated*> usable;
      if (best != nullptr) usable.push_back(best);
      for (const Evaluated* e : evaluated) {
        if (e->point) usable.push_back(e);
      }
      const Evaluated* better = best_or_nearest(usable);
      if (better == nullptr || better == best || !passed.insert(better).second) return {};
      best = better;
      const auto at = std::find(evaluated.begin(), evaluated.end(), best) - evaluated.begin();
      choices = neighbours(Choice(choices[static_cast<size_t>(at)]));
    }
  }

  /// Other methods, scales and tables at the best model so far; a search around it with one that is clearly better.
  Status try_variants(const std::vector<Choice>& path) {
    const Evaluated* best = best_of(order_);
    if (best == nullptr) return {};
    std::vector<const Evaluated*> variants;
    ISOBIT_RETURN_IF_ERROR(evaluate(variants_of(best->point->settings), variants));
    const Evaluated* most = best;
    for (const Evaluated* e : variants) {
      if (e->point && e->point->settings.scale == settings_.scale && e->point->quality > most->point->quality) most = e;
    }
    if (most->point->quality < best->point->quality + kVariantGainDb) return {};
    take_variant(most->point->settings);
    return refine(path);
  }

  // ---- the result

  Result<GruTuneResult> finish() {
    if (order_.empty()) return Status(StatusCode::kFailedPrecondition, "interrupted before the first model");
    GruTuneResult result;
    result.interrupted = interrupted_;
    result.evaluations = evaluations_;
    const auto cost = [](const Evaluated* e) {
      const GruTunePoint& p = *e->point;
      return std::tuple(-p.quality, p.bytes, p.speed, p.settings.scale);
    };
    std::vector<const Evaluated*> front;
    for (const Evaluated* e : order_) {
      const auto beats = [&, at = cost(e)](const Evaluated* other) {
        const auto [quality, bytes, speed, scale] = cost(other);
        const bool as_good = quality <= std::get<0>(at) && bytes <= std::get<1>(at) && speed <= std::get<2>(at) &&
                             scale <= std::get<3>(at);
        return as_good && (cost(other) != at || other->number < e->number);
      };
      if (std::none_of(order_.begin(), order_.end(), beats)) front.push_back(e);
    }
    std::stable_sort(front.begin(), front.end(),
                     [](const Evaluated* a, const Evaluated* b) { return a->point->quality > b->point->quality; });
    result.judged = goal_ == Goal::kMetric && !interrupted_;
    if (result.judged) {
      ISOBIT_RETURN_IF_ERROR(judge(front, result));
    } else {
      const Evaluated* chosen = goal_ == Goal::kMetric ? nullptr : best_of(order_);
      result.reached = chosen != nullptr;
      if (chosen == nullptr) chosen = options_.max_bytes ? smallest() : best_quality(order_);
      for (const Evaluated* e : front) result.front.push_back(*e->point);
      result.chosen = *chosen->point;
    }
    return with_reason(std::move(result));
  }

  [[nodiscard]] const Evaluated* smallest() const {
    return *std::min_element(order_.begin(), order_.end(),
                             [](const Evaluated* a, const Evaluated* b) { return a->point->bytes < b->point->bytes; });
  }

  /// The model of a result. The reason is left out where a limit of bytes has no room for it.
  Result<GruTuneResult> with_reason(GruTuneResult result) {
    const auto finish_with = [&](std::string reason) -> Status {
      result.chosen.settings.reason = std::move(reason);
      ISOBIT_ASSIGN_OR_RETURN(result.model, model_of(result.chosen.settings));
      ISOBIT_ASSIGN_OR_RETURN(const GruSizes sizes, result.model->sizes());
      result.chosen.bytes = sizes.total_bytes();
      return {};
    };
    ISOBIT_RETURN_IF_ERROR(finish_with(result.reached ? reason(result.chosen) : ""));
    if (result.reached && options_.max_bytes && result.chosen.bytes > *options_.max_bytes) {
      ISOBIT_RETURN_IF_ERROR(finish_with(""));
    }
    return result;
  }

  /// The metric on the front, cheapest first, until one reaches the target.
  Status judge(std::vector<const Evaluated*> front, GruTuneResult& result) {
    std::stable_sort(front.begin(), front.end(), [](const Evaluated* a, const Evaluated* b) {
      return std::pair(a->point->bytes, a->point->speed) < std::pair(b->point->bytes, b->point->speed);
    });
    for (const Evaluated* e : front) {
      ISOBIT_ASSIGN_OR_RETURN(const GruModel model, model_of(e->point->settings));
      const Result<double> quality = options_.metric(model);
      // What interrupts the search may have ended the metric, too.
      const bool stop = !report().ok();
      if (quality.ok() && !std::isfinite(*quality)) {
        return invalid("the metric is " + number_text(*quality) + ", must be a finite number");
      }
      if (quality.ok()) {
        GruTunePoint point = *e->point;
        point.quality = *quality;
        if (result.front.empty() || point.quality > result.chosen.quality) result.chosen = point;
        result.front.push_back(std::move(point));
        result.reached = *quality >= target_;
        if (result.reached) break;
      } else if (!stop) {
        return quality.status();
      }
      if (stop) {
        result.interrupted = true;
        break;
      }
    }
    if (result.front.empty()) {  // interrupted during the first
      result.judged = false;
      for (const Evaluated* e : front) result.front.push_back(*e->point);
      result.chosen = *best_quality(order_)->point;
    }
    std::stable_sort(result.front.begin(), result.front.end(),
                     [](const GruTunePoint& a, const GruTunePoint& b) { return a.quality > b.quality; });
    return {};
  }

  const GruCalibrator& calibrator_;
  GruValidation& validation_;
  const GruTuneOptions& options_;
  Goal goal_ = Goal::kTarget;
  double target_ = 0;     // the caller's, in dB or of the metric
  double goal_db_ = 0;    // what the search goes for
  GruSettings settings_;  // method, scale and table in use
  GruSettings like_;
  std::vector<Knob> knobs_;
  TableCache tables_;
  std::map<std::string, Evaluated> done_;
  std::vector<const Evaluated*> order_;  // those with a point, as they came
  int64_t evaluations_ = 0;
  int64_t expected_ = 1;
  bool interrupted_ = false;
};

}  // namespace

std::string_view to_string(SpeedClass speed) {
  switch (speed) {
    case SpeedClass::kTablesInRegisters: return "8-bit states, tables in registers";
    case SpeedClass::kTablesGathered: return "8-bit states, tables gathered";
    case SpeedClass::kWideStates: return "16-bit states";
    case SpeedClass::kWideSums: return "64-bit sums";
    case SpeedClass::kWideWeights: return "weights above 8 bits";
    case SpeedClass::kReference: return "reference only";
  }
  return "invalid";
}

SpeedClass speed_class(const GruModel& model) {
  if (!model.supports(CpuPath::kScalar).ok()) return SpeedClass::kReference;
  SpeedClass slowest = SpeedClass::kTablesInRegisters;
  const auto at_least = [&](SpeedClass speed) { slowest = std::max(slowest, speed); };
  const std::vector<GruLayerParameters>& layers = model.parameters().layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto& grids = layers[i].grids;
    for (const GruTensor tensor : {kUIn, kRIn, kNIn, kU, kRGate, kN}) {
      if (grids[tensor].bits > 8) at_least(SpeedClass::kTablesGathered);
    }
    for (const GruTensor tensor : {kX, kH}) {
      if (grids[tensor].bits > 8) at_least(SpeedClass::kWideStates);
    }
    for (const OverflowBound& row : model.overflow_proof(static_cast<int64_t>(i))) {
      if (row.bits > 32 && row.intermediate.ends_with(": accumulator")) at_least(SpeedClass::kWideSums);
    }
    for (const GruTensor tensor : {kW, kR}) {
      if (grids[tensor].bits > 8) at_least(SpeedClass::kWideWeights);
    }
  }
  return slowest;
}

Result<GruQuantization> GruSettings::quantization() const {
  GruQuantization out;
  ISOBIT_RETURN_IF_ERROR(apply_bits(bits, out));
  ISOBIT_RETURN_IF_ERROR(apply_methods(method, out));
  ISOBIT_RETURN_IF_ERROR(apply_tables(table, out));
  out.scale = scale;
  out.rounding = rounding;
  out.notes = {{"bits", bits},
               {"method", method},
               {"table", table},
               {"scale", std::string(to_string(scale))},
               {"rounding", std::string(to_string(rounding))}};
  if (!reason.empty()) out.notes["reason"] = reason;
  return out;
}

std::string shell_quoted(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789,=:._-/+@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string GruSettings::command_options() const {
  const GruSettings defaults;
  std::string out = "--bits " + shell_quoted(bits);
  if (method != defaults.method) out += " --method " + shell_quoted(method);
  if (table != defaults.table) out += " --table " + shell_quoted(table);
  if (scale != defaults.scale) out += " --scale " + std::string(to_string(scale));
  if (rounding != defaults.rounding) out += " --rounding " + std::string(to_string(rounding));
  if (!reason.empty()) out += " --reason " + shell_quoted(reason);
  return out;
}

GruSettings GruTuneOptions::settings_with(const std::string& bits) const {
  GruSettings out;
  out.bits = bits;
  out.method = method.value_or(out.method);
  out.table = table.value_or(out.table);
  out.scale = scale.value_or(out.scale);
  out.rounding = rounding;
  return out;
}

Status check_tune_options(const GruTuneOptions& options) {
  const DefaultFloatMode mode;
  if (int{options.target.has_value()} + int{options.max_bytes.has_value()} + int{options.like.has_value()} > 1) {
    return invalid("target, max_bytes and like exclude each other; give one of them");
  }
  if (options.target && !std::isfinite(*options.target)) {
    return invalid("target is " + number_text(*options.target) + ", must be a finite number");
  }
  if (options.max_bytes && *options.max_bytes < 1) {
    return invalid("max_bytes is " + std::to_string(*options.max_bytes) + ", must be at least 1");
  }
  if (options.metric && (options.max_bytes || options.like || !options.target)) {
    return invalid("a metric needs a target in its own units, and neither max_bytes nor like");
  }
  GruSettings settings;
  settings.method = options.method.value_or(settings.method);
  settings.table = options.table.value_or(settings.table);
  for (const GruSettings& wanted : {settings, options.like.value_or(settings)}) {
    if (const auto quantization = wanted.quantization(); !quantization.ok()) return quantization.status();
  }
  return {};
}

Result<GruTuneResult> tune_gru(const GruCalibrator& calibrator, GruValidation& validation,
                               const GruTuneOptions& options) {
  const DefaultFloatMode mode;
  if (validation.steps() == 0) {
    return Status(StatusCode::kFailedPrecondition, "no validation data was added; the search needs at least one step");
  }
  return Search(calibrator, validation, options).run();
}

}  // namespace isobit
