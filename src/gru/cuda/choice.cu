// SPDX-License-Identifier: Apache-2.0
#include "gru/cuda/choice.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>

#include "gru/cuda/gru.h"
#include "gru/cuda/persistent.h"

namespace isobit::cuda {
namespace {

// Made by scripts/fit_cost.py: kStepCost and so on, for h of one byte and of two.
#include "gru/cuda/cost.inc"

template <size_t kTerms, typename... Terms>
double sum_of(const double (&costs)[2][kTerms], const RunSize& run, Terms... terms) {
  static_assert(sizeof...(terms) == kTerms);
  const double values[] = {static_cast<double>(terms)...};
  return std::inner_product(std::begin(values), std::end(values), costs[run.h_planes - 1], 0.0);
}

// The terms are those of scripts/fit_cost.py, in the same order. The first one is what a run of several steps takes
// beside them.

constexpr int64_t pieces(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }
double row_bytes(const RunSize& run) {
  return static_cast<double>(run.inputs * run.x_planes + run.hidden * run.h_planes);
}

/// gru_step or gru_step_many, with about the tiles that step.cu chooses: loads of weights, then products, wait for
/// each other in a step.
double step_microseconds(const RunSize& run, int64_t processors) {
  const auto steps = static_cast<double>(run.steps);
  const double bytes = row_bytes(run);
  const bool several = run.steps > 1;
  const bool bytes_only = run.x_planes == 1 && run.h_planes == 1;
  const bool few_inputs = bytes_only && 4 * run.inputs <= 3 * run.hidden;
  const int64_t groups = pieces(run.hidden, 8), blocks_of_8 = groups * pieces(run.batch, 8);
  if (run.batch <= (few_inputs ? 8 : 16) || blocks_of_8 <= (few_inputs ? 1 : 2) * processors) {
    const int64_t sequences = run.batch <= 8 || blocks_of_8 <= 2 * processors ? 8 : 16;
    const int64_t blocks = groups * pieces(run.batch, sequences);
    return sum_of(kStepCost, run, several, run.copies, steps, steps * run.hidden * (run.inputs + run.hidden),
                  steps * run.batch * bytes, steps * blocks * bytes, steps * (sequences - 8) * bytes);
  }
  constexpr struct { int64_t units, sequences; } kTiles[] = {{16, 32}, {16, 64}, {32, 64}, {32, 128}};
  int64_t blocks = 0, area = 0;
  for (const auto& tile : kTiles) {
    if (tile.sequences == 128 && !bytes_only) break;
    blocks = pieces(run.hidden, tile.units) * pieces(run.batch, tile.sequences);
    area = tile.units * tile.sequences / 512;
    if (blocks <= processors) break;
  }
  const double rounds = steps * pieces(blocks, processors);
  return sum_of(kStepManyCost, run, several, run.copies, steps, rounds * bytes, rounds * area, rounds * area * bytes);
}

/// gru_products, with the tiles that products.cu chooses: a block's products are limited by shared memory, those of all
/// blocks by the second-level cache.
double products_microseconds(const RunSize& run, int64_t room) {
  int64_t row_blocks = pieces(run.batch, 64);
  if (row_blocks > 1) row_blocks = pieces(row_blocks, 2) * 2;
  int64_t columns = 0, rounds = 0, tiles = 0;
  for (const int64_t wider : {48, 96, 144, 192}) {
    const int64_t wider_tiles = row_blocks * pieces(pieces(run.hidden, 16) * 48, wider);
    const int64_t fewer_rounds = pieces(wider_tiles, room);
    if (columns > 0 && fewer_rounds * (wider + 48) > rounds * (columns + 48)) continue;
    columns = wider;
    rounds = fewer_rounds;
    tiles = wider_tiles;
  }
  const auto steps = static_cast<double>(run.steps);
  const double bytes = row_bytes(run);
  return sum_of(kProductsCost, run, run.steps > 1, run.copies, steps * rounds, steps * rounds * columns,
                steps * rounds * columns * bytes, steps * std::min<int64_t>(run.batch, 64) * columns,
                steps * tiles * bytes);
}

/// A form of `persistent`, of which so many teams are on the device at once, with at most so many sequences each, in
/// tiles: the first reading of R, the product W x, then turns, in which what crosses between blocks takes its time.
double persistent_microseconds(const double (&costs)[2][12], const RunSize& run, int64_t teams, int64_t most,
                               int64_t tile = 8) {
  const int64_t waves = pieces(run.batch, teams * most), each = pieces(run.batch, teams * waves);
  const int64_t tiles = pieces(each, tile);
  const double rows = static_cast<double>(run.steps) * static_cast<double>(run.batch);
  const double turns = static_cast<double>(run.steps) * static_cast<double>(waves);
  const int doublings = std::bit_width(static_cast<uint64_t>(pieces(each, tiles) - 1));
  return sum_of(costs, run, run.steps > 1, run.hidden, waves, rows * run.hidden * run.inputs * run.x_planes,
                rows * run.hidden, run.inputs * run.x_planes, std::min(rows, 512.0), turns, turns * each,
                turns * each * run.hidden, turns * doublings * run.hidden, turns * (tiles - 1));
}

DeviceRoom room_of(const PersistentLayer& layer, int64_t processors) {
  return {processors,      layer.products_room,       layer.cuts > 0 ? layer.cut[layer.cuts - 1].room : 0,
          layer.many.room, layer.many.sequence_tiles, layer.portable.teams};
}
static_assert(static_cast<size_t>(EstimatedKernel::kProducts) == static_cast<size_t>(PersistentForm::kProducts));
constexpr double kNever = std::numeric_limits<double>::infinity();

/// kNever: the kernel does not run the layers, or there is no step. Of several layers it is a run with the last one's
/// inputs: all but the first have H, or 2 H.
double estimate(EstimatedKernel kernel, std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, bool copies,
                const DeviceLimits& limits) {
  const DeviceLayer& layer = layers.front();
  const bool runs = kernel == EstimatedKernel::kStep ? layer.step.supported
                                                     : fits(layer.persistent, static_cast<PersistentForm>(kernel));
  if (!runs || steps == 0) return kNever;
  const auto planes = [](Dtype dtype) { return size_in_bytes(dtype) == 1 ? 1 : 2; };
  RunSize run{layers.back().input_size, layer.hidden_size, std::clamp<int64_t>(batch, 1, INT32_MAX), steps};
  run.x_planes = planes(layer.x_dtype);
  run.h_planes = planes(layer.h_dtype);
  run.copies = copies;
  return estimated_microseconds(kernel, run, room_of(layer.persistent, limits.processors));
}

}  // namespace

double estimated_microseconds(EstimatedKernel kernel, const RunSize& run, const DeviceRoom& room) {
  switch (kernel) {
    case EstimatedKernel::kStep: return step_microseconds(run, room.processors);
    case EstimatedKernel::kProducts: return products_microseconds(run, room.products_blocks);
    case EstimatedKernel::kCluster:
      return persistent_microseconds(run.hidden <= 256 ? kClusterSmallCost : kClusterCost, run, room.cluster_teams,
                                     run.batch);
    case EstimatedKernel::kClusterMany:
      return persistent_microseconds(kClusterManyCost, run, room.cluster_many_teams, 8 * room.cluster_many_tiles);
    case EstimatedKernel::kGrid:
      return persistent_microseconds(run.batch <= 8 ? kGridFewCost : kGridManyCost, run, 1, 256, 256);
    case EstimatedKernel::kPortable: break;
  }
  return persistent_microseconds(kPortableCost, run, room.portable_teams, 8);
}

PersistentForm fastest_form(const PersistentLayer& layer, int64_t batch, int64_t steps) {
  const bool cluster = fits(layer, PersistentForm::kCluster), many = fits(layer, PersistentForm::kClusterMany);
  if (!cluster && !many) return fits(layer, PersistentForm::kGrid) ? PersistentForm::kGrid : PersistentForm::kPortable;
  if (!cluster || !many) return cluster ? PersistentForm::kCluster : PersistentForm::kClusterMany;
  RunSize run{product_shape(layer).k, layer.hidden_size, std::clamp<int64_t>(batch, 1, INT32_MAX), steps};
  run.x_planes = layer.x_planes;
  run.h_planes = layer.h_planes;
  const DeviceRoom room = room_of(layer, 0);
  const double by_cluster = estimated_microseconds(EstimatedKernel::kCluster, run, room);
  const double by_many = estimated_microseconds(EstimatedKernel::kClusterMany, run, room);
  return by_cluster <= by_many ? PersistentForm::kCluster : PersistentForm::kClusterMany;
}

bool persistent_is_taken(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, bool copies,
                         const DeviceLimits& limits) {
  const auto of = [&](EstimatedKernel kernel) { return estimate(kernel, layers, batch, steps, copies, limits); };
  const double own = of(static_cast<EstimatedKernel>(fastest_form(layers.front().persistent, batch, steps)));
  return own < kNever && own <= std::min(of(EstimatedKernel::kStep), of(EstimatedKernel::kProducts));
}

bool products_is_taken(std::span<const DeviceLayer> layers, int64_t batch, int64_t steps, bool copies,
                       const DeviceLimits& limits) {
  const auto of = [&](EstimatedKernel kernel) { return estimate(kernel, layers, batch, steps, copies, limits); };
  const double own = of(EstimatedKernel::kProducts);
  return own < kNever && own <= of(EstimatedKernel::kStep);
}

bool only_if_asked(std::span<const DeviceLayer>, int64_t, int64_t, bool, const DeviceLimits&) { return false; }

}  // namespace isobit::cuda
