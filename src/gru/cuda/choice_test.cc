// SPDX-License-Identifier: Apache-2.0
// Which rule a run is given to: of its widths, inputs, steps and sequences. No device is needed.
#include "gru/cuda/choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "gru/cuda/persistent_hooks.h"

namespace isobit::cuda {
namespace {

constexpr int64_t kNever = INT64_MAX;
constexpr int32_t kBlocks = 132;  // of an H100, one a processor

TEST(CudaChoice, PersistentTakesRunsOfEnoughSteps) {
  const auto fewest = [](int64_t hidden, bool wide, int64_t batch, bool has_products = true) {
    return persistent_fewest_steps({hidden, hidden, wide}, batch, has_products);
  };
  for (const bool wide : {false, true}) {
    EXPECT_EQ(fewest(128, wide, 1), 3);
    EXPECT_EQ(fewest(2048, wide, 1), 2);
    EXPECT_EQ(fewest(512, wide, 640), 3);
    EXPECT_EQ(fewest(928, true, 353, false), 6) << "what products does not run";
    EXPECT_EQ(fewest(128, wide, 1, false), 3);
  }
  EXPECT_EQ(fewest(512, false, 128), 4);
  EXPECT_EQ(fewest(512, false, 129), 3);
  EXPECT_EQ(fewest(512, true, 128), 3);
  EXPECT_EQ(fewest(640, true, 56), 2);
  EXPECT_EQ(fewest(640, true, 57), 3);
  EXPECT_EQ(fewest(640, false, 280), 5);
  EXPECT_EQ(fewest(896, true, 112), 4);
  EXPECT_EQ(fewest(896, false, 2000), 7);
  EXPECT_EQ(fewest(896, true, 2000), 16);
  EXPECT_EQ(fewest(1792, false, 1), 3);
  EXPECT_EQ(fewest(1792, true, 1), 2);
}

TEST(CudaChoice, PersistentTakesLongerRunsInWaves) {
  EXPECT_EQ(persistent_fewest_steps_in_waves(512, 10, 1), 12);
  EXPECT_EQ(persistent_fewest_steps_in_waves(513, 8, 1), 16);
  EXPECT_EQ(persistent_fewest_steps_in_waves(513, 9, 1), 48);
  EXPECT_EQ(persistent_fewest_steps_in_waves(768, 15, 2), 16);
  EXPECT_EQ(persistent_fewest_steps_in_waves(768, 20, 2), 48);
  EXPECT_EQ(persistent_fewest_steps_in_waves(768, 21, 2), kNever);
}

TEST(CudaChoice, ProductsTakeManySequencesByStepsAndCopies) {
  const auto fewest = [](int64_t hidden, bool wide, int64_t steps, bool copies) {
    int64_t batch = 1;
    while (!products_are_faster({hidden, hidden, wide}, batch, steps, copies, kBlocks)) ++batch;
    return batch;
  };
  EXPECT_EQ(fewest(512, false, 1, false), 65);
  EXPECT_EQ(fewest(512, true, 1, false), 161);
  EXPECT_EQ(fewest(512, false, 1, true), 32);
  EXPECT_EQ(fewest(352, false, 2, false), 193) << "beyond 22 x 6 blocks of step";
  EXPECT_EQ(fewest(512, false, 2, true), 129) << "beyond 32 x 4";
  EXPECT_EQ(fewest(1024, true, 2, false), 65) << "beyond 64 x 2";
  EXPECT_EQ(fewest(1280, true, 2, false), 9);
  EXPECT_EQ(fewest(1024, false, 1, false), 17);
  EXPECT_EQ(fewest(1024, true, 1, true), 8);
  EXPECT_EQ(fewest(5000, false, 1, false), 9) << "beyond what persistent runs";
  EXPECT_FALSE(products_are_faster({512, 512, false}, 1000, 0, false, kBlocks));
}

TEST(CudaChoice, ProductsGoByTheInputs) {
  const auto takes = [](int64_t inputs, int64_t hidden, bool wide, int64_t batch) {
    return products_are_faster({inputs, hidden, wide}, batch, 1, false, kBlocks);
  };
  EXPECT_FALSE(takes(64, 1024, false, 64));
  EXPECT_TRUE(takes(65, 1024, false, 64));
  EXPECT_TRUE(takes(768, 1024, false, 12));
  EXPECT_FALSE(takes(769, 1024, false, 12));
  EXPECT_FALSE(takes(640, 512, false, 33));
  EXPECT_TRUE(takes(641, 512, false, 33));
  EXPECT_FALSE(takes(1280, 512, true, 33));
  EXPECT_TRUE(takes(1281, 512, true, 33));
}

TEST(CudaChoice, ProductsOfSeveralStepsGoByTheInputs) {
  const auto takes = [](int64_t inputs, int64_t hidden, int64_t batch) {
    return products_are_faster({inputs, hidden, false}, batch, 2, false, kBlocks);
  };
  EXPECT_FALSE(takes(1536, 512, 128));
  EXPECT_TRUE(takes(1537, 512, 33)) << "as calls of one step";
  EXPECT_FALSE(takes(960, 1280, 32));
  EXPECT_TRUE(takes(960, 1280, 33));
  EXPECT_TRUE(takes(961, 1280, 9));
  EXPECT_FALSE(takes(64, 5000, 8));
  EXPECT_TRUE(takes(64, 5000, 9));
}

constexpr TeamRoom kRoom = {15, 7, 8};  // of H = 512 on an H100

TEST(CudaChoice, GuestsAreALittleMoreThanWholeTiles) {
  const auto guests = [](int64_t hidden, bool wide, int64_t batch, int64_t steps) {
    return guests_of(hidden, wide, kRoom, batch, steps, 0).sequences;
  };
  EXPECT_EQ(guests(512, false, 240, 256), 0) << "whole tiles";
  EXPECT_EQ(guests(512, false, 241, 256), 1);
  EXPECT_EQ(guests(512, false, 256, 256), 16);
  EXPECT_EQ(guests(512, false, 257, 256), 0) << "more than two tiles of them";
  EXPECT_EQ(guests(512, false, 121, 256), 0) << "one tile for each team";
  EXPECT_EQ(guests(512, false, 5 * 120 + 16, 256), 16);
  EXPECT_EQ(guests(512, false, 6 * 120 + 16, 256), 0) << "no room for eight tiles";
  EXPECT_EQ(guests(512, false, 256, 31), 0);
  EXPECT_EQ(guests(512, false, 256, 32), 16);
  EXPECT_EQ(guests(512, false, 376, 63), 0) << "three tiles";
  EXPECT_EQ(guests(512, true, 376, 32), 16);
  EXPECT_EQ(guests(640, true, 256, 95), 0);
  EXPECT_EQ(guests(640, true, 256, 96), 16);
  EXPECT_EQ(guests(640, true, 376, 4096), 0);
}

TEST(CudaChoice, WavesOfTeamsAreAlike) {
  const auto expect = [](int64_t batch, int64_t steps, int64_t waves, int64_t tiles) {
    const BatchSpread spread = batch_spread(640, 7, 7, kBlocks, batch, steps);  // as on an H100
    EXPECT_EQ(spread.waves, waves) << batch << " sequences, " << steps << " steps";
    EXPECT_EQ(spread.tiles, tiles) << batch << " sequences, " << steps << " steps";
  };
  expect(392, 1, 1, 7);
  expect(393, 1, 2, 4);  // not seven, and seven again for the last sequence
  expect(448, 1, 2, 4);
  expect(784, 1, 2, 7);
  expect(785, 1, 3, 5);
  expect(113, 1, 1, 3);
  expect(113, 256, 1, 3);  // two tiles, and one of guests
}

TEST(CudaChoice, ProductsTakeFewRounds) {
  const auto rounds = [](int32_t hidden, int64_t batch) {
    return batch_spread(hidden, 7, 7, kBlocks, batch, 1).product_rounds;
  };
  EXPECT_EQ(rounds(528, 1024), 2) << "not four of 48 columns";
  EXPECT_EQ(rounds(768, 512), 1);
  EXPECT_EQ(rounds(768, 513), 1);
  EXPECT_EQ(rounds(768, 641), 2);
}

TEST(CudaChoice, EachVisitHasTwoStepsOrMore) {
  EXPECT_EQ(guests_of(512, false, kRoom, 256, 1, 1).sequences, 0);
  const auto check = [](int32_t teams, int64_t steps) {
    const Guests guests = guests_of(512, false, {teams, 7, 8}, int64_t{teams} * 16 + 1, steps, 1);
    ASSERT_EQ(guests.sequences, 1);
    ASSERT_GE(guests.steps, 2);
    ASSERT_LE(guests.visits, std::min(teams, kMostVisits));
    const int64_t of_the_last = steps - int64_t{guests.steps} * (guests.visits - 1);
    ASSERT_TRUE(of_the_last >= 2 && of_the_last <= guests.steps) << teams << " teams, " << steps << " steps";
  };
  for (const int32_t teams : {1, 2, 3, 7, 9, 15, 16, 22, 30, 63, 64, 66}) {
    for (int64_t steps = 2; steps < 20000; ++steps) check(teams, steps);
    for (int64_t steps = 1 << 16; steps < int64_t{1} << 25; steps *= 2)
      for (const int64_t more : {-1, 0, 1}) check(teams, steps + more);
  }
}

}  // namespace
}  // namespace isobit::cuda
