// SPDX-License-Identifier: Apache-2.0
// `step`: chains of calls of one step, and tiles of many sequences.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "gru/cuda/gru_test.h"
#include "gru/cuda/plan.h"
#include "gru/random_model.h"
#include "isobit/cuda/gru.h"

namespace isobit::cuda {
namespace {

/// Calls of one step, as a decoder makes them, and sizes at which `step` takes its other ways: more tiles of sequences
/// than blocks for them, more columns than a block holds at once, codes of two bytes.
TEST_F(DeviceGrus, ChainsOfSingleStepsEqualTheReference) {
  struct Chain {
    int64_t input, hidden, batch, steps;
    int32_t x_bits = 8, h_bits = 8, weight_bits = 8, layers = 1;
    ScaleKind kind = ScaleKind::kPow2;
    Rounding rounding = Rounding::kNearestEven;
  };
  std::vector<Chain> chains = {{64, 128, 1, 20},
                               {48, 80, 19, 5, 8, 16},
                               {24, 72, 3, 5, 16, 8},
                               {13, 70, 9, 6, 5, 4, 3, 2},
                               {70, 61, 17, 5, 16, 16, 6, 2, ScaleKind::kReal}};
  for (const Rounding rounding : kAllRoundings)
    chains.push_back({65, 129, 3, 4, 12, 8, 8, 1, ScaleKind::kReal, rounding});
  if (!sanitized()) {
    chains.push_back({1024, 1024, 1, 12});
    chains.push_back({1024, 1024, 1, 4, 4, 4, 4});
    chains.push_back({300, 1030, 30, 3});
    chains.push_back({700, 2100, 40, 2});
    chains.push_back({2100, 2100, 2, 3, 8, 16});
    chains.push_back({40, 1030, 33, 2, 16, 8, 7, 1, ScaleKind::kReal, Rounding::kFloor});
  }
  uint64_t seed = 61;
  for (const Chain& chain : chains) {
    RandomShape shape;
    shape.input = chain.input;
    shape.hidden = chain.hidden;
    shape.layers = chain.layers;
    shape.x_bits = chain.x_bits;
    shape.h_bits = chain.h_bits;
    shape.weight_bits = chain.weight_bits;
    shape.kind = chain.kind;
    shape.rounding = chain.rounding;
    Case c = case_of(seed, shape, chain.batch, chain.steps);
    SCOPED_TRACE(describe(c.shape, c.run, seed, 0));
    for (const bool two_states : {false, true}) {
      c.two_states = two_states;
      c.run.chunks.assign(static_cast<size_t>(chain.steps), 1);
      compare(c);
      c.run.chunks = {chain.steps};
      compare(c);
    }
    if (HasFailure()) return;
    ++seed;
  }
  EXPECT_EQ(runs_["step"], static_cast<int>(4 * chains.size()));
  for (const char* lanes : {"float", "double", "int64"}) {
    std::printf("step, %s: %d runs\n", lanes, runs_[std::string("step, ") + lanes]);
    EXPECT_GT(runs_[std::string("step, ") + lanes], 0) << lanes;
  }
}

/// Every tile of many sequences, which `step` chooses by the numbers of units, sequences and processors.
TEST_F(DeviceGrus, StepsOfManySequences) {
  struct Kind {
    const char* name;
    ScaleKind scales;
    int32_t x_bits, h_bits;
  };
  const Result<DeviceLimits> limits = current_device_limits();
  ASSERT_TRUE(limits.ok()) << limits.status().message();
  std::map<std::string, int> tiles;
  uint64_t seed = 80;
  for (const Kind& kind : {Kind{"float", ScaleKind::kPow2, 8, 8}, Kind{"double", ScaleKind::kReal, 8, 8},
                           Kind{"double", ScaleKind::kPow2, 8, 16}, Kind{"double", ScaleKind::kReal, 16, 7}})
    for (const int64_t per_132 : {100, 300, 600, 1100}) {
      const int64_t batch = per_132 * limits->processors / 132;
      if (sanitized() && (batch > 700 || kind.x_bits == 16)) continue;
      RandomShape shape;
      shape.input = seed % 2 == 0 ? 70 : 208;
      shape.hidden = seed % 3 == 0 ? 304 : 301;
      shape.kind = kind.scales;
      shape.x_bits = kind.x_bits;
      shape.h_bits = kind.h_bits;
      if (kind.h_bits == 16) shape.gate_in_bits = 12;
      Case c = case_of(++seed, shape, batch, 2);
      c.fast_host = true;
      c.two_states = seed % 2 == 0;
      Random random(seed);
      for (int64_t n = 0; n < batch; ++n) c.run.lengths.push_back(random.between(1, 2));
      for (int64_t i = 0; i < 2 * batch * shape.hidden; ++i)
        c.run.mask.push_back(static_cast<uint8_t>(random.between(0, 3)));
      SCOPED_TRACE(describe(c.shape, c.run, seed, 0));
      const GruLayerParameters& p = c.model.parameters().layers.front();
      EXPECT_EQ(lanes_of(p), kind.name);
      const Result<StepTile> tile = step_tile(p, batch, *limits);
      ASSERT_TRUE(tile.ok()) << tile.status().message();
      tiles[std::string(kind.name) + (kind.x_bits + kind.h_bits > 16 ? ", two bytes, " : ", ") +
            std::to_string(16 * tile->groups) + " x " + std::to_string(32 * tile->row_tiles)] += 1;
      compare(c, "step");
      if (HasFailure()) return;
    }
  for (const auto& [name, runs] : tiles) std::printf("%s: %d runs\n", name.c_str(), runs);
  for (const char* kind : {"float, ", "double, ", "double, two bytes, "})
    for (const char* tile : {"16 x 32", "16 x 64", "32 x 64"})
      if (limits->block_shared > 200'000) {  // else not all tiles fit
        EXPECT_GT(tiles[std::string(kind) + tile], 0) << kind << tile;
      }
  if (limits->block_shared > 200'000 && !sanitized()) {
    EXPECT_GT(tiles["float, 32 x 128"], 0);
    EXPECT_GT(tiles["double, 32 x 128"], 0);
  }
}

}  // namespace
}  // namespace isobit::cuda
