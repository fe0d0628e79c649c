// SPDX-License-Identifier: Apache-2.0
// gru_cluster_few: it runs where it should.
#include <gtest/gtest.h>

#include <cstdio>
#include <string_view>
#include <utility>

#include "gru/cuda/gru_test.h"
#include "gru/random_model.h"
#include "isobit/cuda/gru.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

/// Of each cut of gru_cluster_few, in all kinds of lanes: it runs, and gives the CPU's bytes. With 200 and 50 sequences
/// a team has two on an H200.
TEST_F(DeviceGrus, OneOrTwoSequencesOfATeamHaveWarpsForGates) {
  struct Size {
    int64_t hidden, batch;
  };
  enum class Kind { kPow2, kMultipliers, kReal, kWideGates };
  uint64_t seed = 9100;
  int cases = 0;
  for (const Size& size : {Size{40, 1},
                           {64, 200},
                           {66, 30},
                           {100, 1},
                           {128, 50},
                           {128, 100},
                           {130, 1},
                           {240, 15},
                           {256, 50},
                           {300, 2},
                           {512, 4},
                           {600, 1},
                           {768, 5},
                           {785, 1},
                           {1024, 3}})
    for (const int32_t h_bits : {8, 16})
      for (const Kind kind : {Kind::kPow2, Kind::kMultipliers, Kind::kReal, Kind::kWideGates}) {
        ++seed;
        if (hidden_from_sanitizer("cluster") || (kind == Kind::kWideGates && h_bits == 8)) continue;
        if (sanitized() && (size.hidden > 300 || kind == Kind::kMultipliers)) continue;
        RandomShape shape;
        shape.input = 20;
        shape.hidden = size.hidden;
        shape.h_bits = h_bits;
        shape.kind = kind == Kind::kReal ? ScaleKind::kReal : ScaleKind::kPow2;
        shape.gate_out_bits = kind == Kind::kWideGates ? h_bits : 8;
        Case c = case_of(seed, shape, size.batch, sanitized() ? 3 : 21);
        Random random(seed);
        if (kind == Kind::kMultipliers) {
          Result<GruModel> model = with_multipliers(random, c.model);
          ASSERT_TRUE(model.ok()) << model.status().message();
          c.model = *std::move(model);
        }
        if (seed % 2 == 0)
          for (int64_t n = 0; n < size.batch; ++n) c.run.lengths.push_back(random.between(0, c.run.steps));
        if (seed % 3 == 0)
          for (int64_t i = 0; i < c.run.steps * size.batch * size.hidden; ++i)
            c.run.mask.push_back(static_cast<uint8_t>(random.between(0, 2)));
        c.two_states = seed % 5 == 0;
        c.fast_host = true;
        SCOPED_TRACE(describe(c.shape, c.run, seed, 0));
        const int before = runs_["cluster"];
        compare(c, "cluster");
        ++cases;
        if (!must_run("cluster", size.hidden)) continue;
        EXPECT_EQ(runs_["cluster"], before + 1);
        EXPECT_EQ(runs_["cluster, floats"], runs_["cluster"]);
        const Result<DeviceGru> gru = DeviceGru::create(c.model);
        ASSERT_TRUE(gru.ok()) << gru.status().message();
        const int64_t x_bytes = c.run.steps * size.batch * shape.input * size_of(c.model.input_grid());
        const int64_t y_bytes = c.run.steps * size.batch * size.hidden * size_of(c.model.output_grid());
        GuardedDeviceBuffer x(x_bytes), y(y_bytes), state(gru->state_bytes(size.batch));
        GuardedDeviceBuffer workspace(gru->workspace_bytes(size.batch, c.run.steps));
        RunOptions options{.whole_sequence = true};
        options.kernel = "cluster";
        int found = 0;
        for (const void* kernel : captured_kernels(stream_, [&](cudaStream_t stream) {
               options.stream = stream;
               return gru->forward_codes(x.bytes(), y.bytes(), c.run.steps, size.batch, state.bytes(),
                                         workspace.bytes(), options);
             })) {
          const char* name = nullptr;
          ASSERT_EQ(cudaFuncGetName(&name, kernel), cudaSuccess);
          if (std::string_view(name).find("gru_cluster_few") != std::string_view::npos) ++found;
        }
        EXPECT_EQ(found > 0, h_bits == 8 || size.hidden <= 768);
      }
  if (!hidden_from_sanitizer("cluster")) {
    EXPECT_EQ(cases, sanitized() ? 10 * 5 : 15 * 7);
  }
  std::printf("%lld outputs compared\n", static_cast<long long>(compared_));
}

}  // namespace
}  // namespace isobit::cuda
