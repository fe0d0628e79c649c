// SPDX-License-Identifier: Apache-2.0
#include "gru/training/qat.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "core/codes.h"
#include "core/random.h"
#include "gru/random_model.h"
#include "isobit/gru.h"
#include "testing/sanitized.h"

namespace isobit {
namespace {

/// The forward of training is the model that is deployed.
TEST(GruQat, TheForwardGivesTheCodesOfTheModel) {
  Random random(20);
  int64_t compared = 0, stopped = 0;
  for (int i = 0; i < (testing::kSanitized ? 8 : 60) && !::testing::Test::HasFailure(); ++i) {
    RandomShape shape = random_shape(random);
    shape.layers = 1;
    shape.directions = 1;
    const Result<GruModel> model = random_model(random, shape);
    if (!model.ok() && model.status().code() == StatusCode::kOverflow) continue;
    ASSERT_TRUE(model.ok()) << model.status().message();
    const GruLayerParameters& layer = model->parameters().layers[0];
    const int64_t T = random.between(1, 6), N = random.between(1, 4), C = layer.input_size, H = layer.hidden_size;
    const Grid &x_grid = layer.grids[kX], &h_grid = layer.grids[kH];
    std::vector<int32_t> x(static_cast<size_t>(T * N * C));
    std::vector<std::byte> x_bytes(x.size() * size_in_bytes(x_grid.dtype()));
    for (size_t k = 0; k < x.size(); ++k) {
      x[k] = static_cast<int32_t>(random.between(x_grid.min(), x_grid.max()));
      store_code(x_bytes.data(), x_grid.dtype(), static_cast<int64_t>(k), x[k]);
    }
    std::vector<int64_t> lengths;
    if (random.one_in(2))
      for (int64_t n = 0; n < N; ++n) lengths.push_back(random.between(0, T));
    std::vector<uint8_t> mask;
    if (random.one_in(3))
      for (int64_t k = 0; k < T * N * H; ++k) mask.push_back(static_cast<uint8_t>(random.between(0, 1)));

    std::vector<std::byte> y_bytes(static_cast<size_t>(T * N * H) * size_in_bytes(h_grid.dtype()));
    GruState state = model->initial_state(N);
    Workspace workspace = model->workspace(N, T);
    const Status run =
        model->forward_codes(x_bytes, y_bytes, T, state, workspace, {.lengths = lengths, .zoneout_mask = mask});
    ASSERT_TRUE(run.ok()) << run.message();

    std::vector<int32_t> y(static_cast<size_t>(T * N * H)), last(static_cast<size_t>(N * H));
    std::vector<float> saved(4 * y.size());
    std::vector<uint16_t> passes(y.size());
    ThreadPool pool(3);
    qat_forward({.layer = &layer,
                 .steps = T,
                 .batch = N,
                 .reverse = false,
                 .lengths = lengths,
                 .x = x.data(),
                 .mask = mask.empty() ? nullptr : mask.data(),
                 .first = nullptr,
                 .y_row = H},
                {y.data(), last.data(), saved.data(), passes.data()}, i % 2 == 0 ? nullptr : &pool);
    for (size_t k = 0; k < y.size(); ++k)
      ASSERT_EQ(y[k], load_code(y_bytes.data(), h_grid.dtype(), static_cast<int64_t>(k))) << "case " << i << ", " << k;
    for (size_t k = 0; k < last.size(); ++k)
      ASSERT_EQ(last[k], load_code(state.layer(0).data(), h_grid.dtype(), static_cast<int64_t>(k))) << "case " << i;
    compared += static_cast<int64_t>(y.size());
    stopped +=
        std::count_if(passes.begin(), passes.end(), [](uint16_t bits) { return bits != (1 << (kPassState + 1)) - 1; });
  }
  std::printf("%lld codes compared, %lld units with a clamp that stopped\n", static_cast<long long>(compared),
              static_cast<long long>(stopped));
  EXPECT_GT(stopped, 0);
  EXPECT_LT(stopped, compared);
}

}  // namespace
}  // namespace isobit
