// SPDX-License-Identifier: Apache-2.0
// Which rule a run is given to: of its widths, inputs, steps and sequences. No device is needed.
#include "gru/cuda_choice.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace isobit::cuda {
namespace {

constexpr int64_t kNever = INT64_MAX;

TEST(CudaChoice, PersistentTakesRunsOfEnoughSteps) {
  const auto fewest = [](int64_t hidden, bool wide, int64_t batch, bool has_products = true) {
    return persistent_fewest_steps({hidden, hidden, wide}, batch, has_products);
  };
  for (const bool wide : {false, true}) {
    EXPECT_EQ(fewest(128, wide, 1), 3);
    EXPECT_EQ(fewest(2048, wide, 1), 2);
    EXPECT_EQ(fewest(512, wide, 895), 4);
    EXPECT_EQ(fewest(512, wide, 896), kNever) << "several rounds";
    EXPECT_EQ(fewest(768, wide, 640), kNever) << "several rounds";
    EXPECT_EQ(fewest(768, wide, 640, false), 6) << "what products does not run";
    EXPECT_EQ(fewest(128, wide, 1, false), 3);
  }
  EXPECT_EQ(fewest(1792, false, 1), 3);
  EXPECT_EQ(fewest(1792, true, 1), 2);
}

TEST(CudaChoice, ProductsTakeManySequencesByStepsAndCopies) {
  const auto fewest = [](int64_t hidden, bool wide, int64_t steps, bool copies) {
    int64_t batch = 1;
    while (!products_are_faster({hidden, hidden, wide}, batch, steps, copies)) ++batch;
    return batch;
  };
  EXPECT_EQ(fewest(512, false, 1, false), 65);
  EXPECT_EQ(fewest(512, true, 1, false), 161);
  EXPECT_EQ(fewest(512, false, 1, true), 32);
  EXPECT_EQ(fewest(512, false, 2, false), 161);
  EXPECT_EQ(fewest(1024, false, 1, false), 17);
  EXPECT_EQ(fewest(1024, false, 2, false), 17) << "as calls of one step, where a row has nothing else";
  EXPECT_EQ(fewest(1024, true, 1, true), 8);
  EXPECT_EQ(fewest(5000, false, 1, false), 9) << "beyond what persistent runs";
  EXPECT_FALSE(products_are_faster({512, 512, false}, 1000, 0, false));
}

TEST(CudaChoice, ProductsGoByTheInputs) {
  const auto takes = [](int64_t inputs, int64_t hidden, bool wide, int64_t batch) {
    return products_are_faster({inputs, hidden, wide}, batch, 1, false);
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

}  // namespace
}  // namespace isobit::cuda
