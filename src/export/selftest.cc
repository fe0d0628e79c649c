// SPDX-License-Identifier: Apache-2.0
#include "export/selftest.h"

#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "core/codes.h"
#include "core/fixed.h"

namespace isobit {
namespace {

constexpr int kSeeds = 8;

bool is_tie(int64_t x, const RescaleParameters& ratio) {
  if (ratio.shift < 1 || ratio.shift > 62) return false;
  const auto product = static_cast<uint64_t>(x * ratio.multiplier);
  return (product & ((uint64_t{1} << ratio.shift) - 1)) == uint64_t{1} << (ratio.shift - 1);
}

/// Sees the codes of a run, and which limits they meet.
class Coverage final : public GruCodeObserver {
 public:
  explicit Coverage(const GruModel& model) : layers_(model.parameters().layers), codes_(layers_.size()) {}

  void observe(int32_t tensor, int64_t layer, int64_t /*sequence*/, int64_t /*step*/,
               std::span<const int64_t> codes) override {
    auto& of_layer = codes_[static_cast<size_t>(layer)];
    const Grid& grid = layers_[static_cast<size_t>(layer)].grids[static_cast<size_t>(tensor)];
    if (tensor != kX && (tensor < kU || tensor > kN))
      for (const int64_t code : codes)
        if (code == grid.min() || code == grid.max()) clamped_.emplace(layer, tensor);
    if (tensor == kH) count_ties(layer, of_layer);  // the last of a step
    of_layer[static_cast<size_t>(tensor)].assign(codes.begin(), codes.end());
  }

  [[nodiscard]] CSelftestCoverage result() const {
    return {static_cast<int64_t>(clamped_.size()), static_cast<int64_t>(layers_.size()) * 6,
            static_cast<int64_t>(ties_.size())};
  }

 private:
  using Codes = std::array<std::vector<int64_t>, kGruTensorCount>;

  void note(bool is_met, int64_t layer, int rescale) {
    if (is_met) ties_.emplace(layer, rescale);
  }

  void count_ties(int64_t layer, const Codes& codes) {
    const GruLayerParameters& p = layers_[static_cast<size_t>(layer)];
    const auto minus_zero = [&](GruTensor tensor, int64_t i) {
      return codes[tensor][static_cast<size_t>(i)] - p.grids[tensor].zero_point;
    };
    for (int64_t i = 0; i < p.hidden_size; ++i) {
      for (int64_t gate = 0; gate < 3; ++gate)
        note(is_tie(minus_zero(kIh, gate * p.hidden_size + i), p.ih_to_gate[static_cast<size_t>(gate)]), layer,
             static_cast<int>(gate));
      for (int64_t gate = 0; gate < 2; ++gate)
        note(is_tie(minus_zero(kHh, gate * p.hidden_size + i), p.hh_to_gate[static_cast<size_t>(gate)]), layer,
             3 + static_cast<int>(gate));
      note(is_tie(minus_zero(kRGate, i) * minus_zero(kHh, 2 * p.hidden_size + i), p.rhh_to_n), layer, 5);
      note(is_tie(minus_zero(kN, i), p.n_to_h), layer, 6);
    }
  }

  const std::vector<GruLayerParameters>& layers_;
  std::vector<Codes> codes_;
  std::set<std::pair<int64_t, int32_t>> clamped_;
  std::set<std::pair<int64_t, int>> ties_;
};

}  // namespace

void random_codes_of(Random& random, const Grid& grid, int64_t width, std::span<std::byte> codes) {
  const Dtype dtype = grid.dtype();
  const auto count = static_cast<int64_t>(codes.size() / size_in_bytes(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const bool is_extreme = i / width % 3 == 1;
    store_code(codes.data(), dtype, i,
               is_extreme ? (random.one_in(2) ? grid.min() : grid.max()) : random.between(grid.min(), grid.max()));
  }
}

std::vector<int64_t> widened_codes(std::span<const std::byte> codes, Dtype dtype) {
  std::vector<int64_t> values(codes.size() / size_in_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) values[i] = load_code(codes.data(), dtype, static_cast<int64_t>(i));
  return values;
}

Result<Selftest> make_selftest(const GruModel& model, int64_t steps) {
  const Grid& x_grid = model.input_grid();
  const Dtype x_dtype = x_grid.dtype(), y_dtype = model.output_grid().dtype();
  const int64_t width = model.input_size();
  Selftest best;
  for (int seed = 0; seed < kSeeds; ++seed) {
    Random random(static_cast<uint64_t>(seed) + 1);
    std::vector<std::byte> x(static_cast<size_t>(steps * width) * size_in_bytes(x_dtype));
    std::vector<std::byte> y(static_cast<size_t>(steps * model.output_size()) * size_in_bytes(y_dtype));
    random_codes_of(random, x_grid, width, x);
    Coverage coverage(model);
    GruState state = model.initial_state(1);
    RunOptions options;
    options.whole_sequence = true;
    ISOBIT_RETURN_IF_ERROR(model.forward_observed(x, y, steps, state, coverage, options));
    const CSelftestCoverage result = coverage.result();
    if (seed > 0 && result.clamps + result.ties <= best.coverage.clamps + best.coverage.ties) continue;
    best = {widened_codes(x, x_dtype), widened_codes(y, y_dtype), result};
  }
  return best;
}

}  // namespace isobit
