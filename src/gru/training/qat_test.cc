// SPDX-License-Identifier: Apache-2.0
#include "gru/training/qat.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/codes.h"
#include "core/random.h"
#include "gru/random_model.h"
#include "gru/reference.h"
#include "isobit/cpu.h"
#include "isobit/gru.h"
#include "isobit/gru_qat.h"
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
    std::vector<int64_t> x(static_cast<size_t>(T * N * C));
    std::vector<std::byte> x_bytes(x.size() * size_in_bytes(x_grid.dtype()));
    for (size_t k = 0; k < x.size(); ++k) {
      x[k] = random.between(x_grid.min(), x_grid.max());
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

    std::vector<int64_t> y(static_cast<size_t>(T * N * H)), last(static_cast<size_t>(N * H));
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

/// What rounding added is exact, then rounded once.
TEST(GruQat, RestsOfEveryShift) {
  Random random(24);
  for (int i = 0; i < 20000; ++i) {
    const RescaleParameters ratio{static_cast<int32_t>(random.between(1, 1000)),
                                  static_cast<int32_t>(random.between(-5, 127))};
    const int64_t x = random.between(-(int64_t{1} << 30), int64_t{1} << 30) >> random.between(0, 30);
    const int64_t result = rescale(ratio, x, kAllRoundings[random.between(0, 3)]);
    // Exact: both operands and the difference have fewer than 64 bits, or the difference is -1 to within 2^-25.
    const long double wanted =
        static_cast<long double>(result) - std::ldexp(static_cast<long double>(x * ratio.multiplier), -ratio.shift);
    EXPECT_EQ(rest_of(ratio, x, result), static_cast<float>(wanted)) << x << " " << ratio.shift;
  }
  // Of floor, the greatest rests that there are.
  EXPECT_EQ(rest_of({1, 127}, -1, -1), -1.0f);
  EXPECT_EQ(rest_of({1, 62}, -1, -1), -1.0f);
  EXPECT_EQ(rest_of({1, 64}, INT64_MIN, -1), -0.5f);
  EXPECT_EQ(rest_of({1, 127}, 1, 0), -0x1p-127f);
  EXPECT_EQ(rest_of({3, 24}, 1, 0), -0x1.8p-23f);
}

/// Gradients of a run, those of weights in the order W, R, bw, br of each direction, then dx and the first states'.
std::vector<std::vector<float>> gradients_of(const GruQatRun& run, std::span<const float> dy,
                                             ThreadPool* pool = nullptr, std::span<GruGridGradients> grids = {}) {
  const GruTrainingSizes& s = run.sizes();
  const int64_t H = s.hidden_size;
  std::vector<std::vector<float>> all;
  for (int64_t i = 0; i < s.layers * s.directions; ++i) {
    const int64_t inputs = i < s.directions ? s.input_size : s.directions * H;
    for (const int64_t count : {3 * H * inputs, 3 * H * H, 3 * H, 3 * H}) all.emplace_back(count);
  }
  all.emplace_back(s.steps * s.batch * s.input_size);
  all.emplace_back(s.layers * s.directions * s.batch * H);
  std::vector<GruTrainingGradients> into;
  for (size_t i = 0; i + 2 < all.size(); i += 4) into.push_back({all[i], all[i + 1], all[i + 2], all[i + 3]});
  const Status done = run.backward(dy, all[all.size() - 2], into, {.first_gradient = all.back()}, pool, grids);
  EXPECT_TRUE(done.ok()) << done.message();
  return all;
}

TEST(GruQat, RunsGiveTheNumbersOfTheModelAndTheSameGradientsEverywhere) {
  Random random(21);
  int models = 0, many = 0;
  for (int i = 0; i < (testing::kSanitized ? 6 : 40) && !::testing::Test::HasFailure(); ++i) {
    RandomShape shape = random_shape(random);
    shape.input = std::min<int64_t>(shape.input, 20);
    shape.hidden = std::min<int64_t>(shape.hidden, 40);
    const Result<GruModel> model = random_model(random, shape);
    if (!model.ok() && model.status().code() == StatusCode::kOverflow) continue;
    ASSERT_TRUE(model.ok()) << model.status().message();
    const int64_t T = random.between(0, 6), N = random.between(1, 4);
    const int64_t states = model->layer_count() * model->parameters().directions;
    const std::vector<float> x = random_floats(random, model->input_grid(), T * N * model->input_size());
    std::vector<float> first;
    if (random.one_in(2))
      first = random_floats(random, model->parameters().layers[0].grids[kH], states * N * model->hidden_size());
    std::vector<int64_t> lengths;
    if (random.one_in(2))
      for (int64_t n = 0; n < N; ++n) lengths.push_back(random.between(0, T));
    std::vector<uint8_t> mask;
    if (states == 1 && random.one_in(3))
      for (int64_t k = 0; k < T * N * model->hidden_size(); ++k) mask.push_back(static_cast<uint8_t>(k * 7 % 3 != 0));
    const RunOptions options{.lengths = lengths, .zoneout_mask = mask, .whole_sequence = true};

    std::vector<float> wanted(static_cast<size_t>(T * N * model->output_size())), y(wanted.size());
    GruState state = first.empty() ? model->initial_state(N) : model->state_from_float(first, N).value();
    Workspace workspace = model->workspace(N, T);
    const Status deployed = model->forward(x, wanted, T, state, workspace, options);
    ASSERT_TRUE(deployed.ok()) << deployed.message();
    std::vector<float> last(static_cast<size_t>(states * N * model->hidden_size())), wanted_last(last.size());
    model->state_to_float(state, wanted_last);

    std::vector<float> dy(y.size());
    for (float& d : dy) d = static_cast<float>(random.between(-100, 100)) / 64;
    std::vector<std::vector<float>> expected;
    std::vector<std::byte> saved, saved_of_grids;
    for (const CpuPath path : {CpuPath::kReference, CpuPath::kScalar, CpuPath::kAvx2, CpuPath::kAvx512Vnni}) {
      if (!cpu_can_run(path)) continue;
      RunOptions of_path = options;
      of_path.path = path;
      const Result<GruQatRun> run = GruQatRun::forward(*model, x, T, N, y, {.first = first, .last = last}, of_path);
      ASSERT_TRUE(run.ok()) << run.status().message();
      EXPECT_EQ(y, wanted);
      EXPECT_EQ(last, wanted_last);
      ThreadPool pool(3);
      const std::vector<std::vector<float>> gradients = gradients_of(*run, dy, i % 2 == 0 ? nullptr : &pool);
      if (expected.empty()) expected = gradients;
      EXPECT_EQ(gradients, expected) << to_string(path);
      std::vector<std::byte> bytes(static_cast<size_t>(run->saved_size()));
      ASSERT_TRUE(run->save(bytes).ok());
      if (saved.empty()) saved = bytes;
      EXPECT_EQ(bytes, saved) << to_string(path);
      const Result<GruQatRun> restored = GruQatRun::restore(bytes);
      ASSERT_TRUE(restored.ok()) << restored.status().message();
      EXPECT_EQ(gradients_of(*restored, dy), expected);
      EXPECT_FALSE(GruQatRun::restore(std::span(bytes).first(bytes.size() - 1)).ok());

      const Result<GruQatRun> learns =
          GruQatRun::forward(*model, x, T, N, y, {.first = first}, of_path, {.learn_grids = true});
      ASSERT_TRUE(learns.ok()) << learns.status().message();
      bytes.resize(static_cast<size_t>(learns->saved_size()));
      ASSERT_TRUE(learns->save(bytes).ok());
      if (saved_of_grids.empty()) saved_of_grids = bytes;
      EXPECT_EQ(bytes, saved_of_grids) << to_string(path);
      const Result<GruQatRun> learns_again = GruQatRun::restore(bytes);
      ASSERT_TRUE(learns_again.ok()) << learns_again.status().message();
      std::vector<GruGridGradients> grids(static_cast<size_t>(states)), restored_grids(grids.size());
      EXPECT_EQ(gradients_of(*learns, dy, nullptr, grids), expected);
      EXPECT_EQ(gradients_of(*learns_again, dy, nullptr, restored_grids), expected);
      EXPECT_EQ(restored_grids, grids);
      EXPECT_GE(run->clipped_units(), 0.0);
      EXPECT_LE(run->clipped_units(), 1.0);
      double units = 0;
      for (int64_t layer = 0; layer < states; ++layer) {
        const auto of = [&](GruTensor tensor) { return run->clipped(layer, tensor); };
        units += 3 * of(kIh) + 3 * of(kHh) + of(kUIn) + of(kRIn) + of(kNIn) + of(kH);
        EXPECT_EQ(of(kX), layer < model->parameters().directions ? run->clipped_inputs() : 0.0);
        EXPECT_EQ(of(kW) + of(kN), 0.0);
      }
      EXPECT_NEAR(units / static_cast<double>(10 * states), run->clipped_units(), 1e-12);
    }
    ++models;
    many += states > 1;
  }
  EXPECT_GT(models, 4);
  EXPECT_GT(many, 0);
}

TEST(GruQat, WithoutStepsTheLastStateIsTheFirst) {
  Random random(25);
  RandomShape shape;
  shape.input = 5;
  shape.hidden = 40;
  const Result<GruModel> model = random_model(random, shape);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<float> first = random_floats(random, model->parameters().layers[0].grids[kH], 3 * 40);
  for (const CpuPath path : {CpuPath::kReference, CpuPath::kScalar, CpuPath::kAvx2, CpuPath::kAvx512Vnni}) {
    if (!cpu_can_run(path)) continue;
    std::vector<float> last(first.size());
    const Result<GruQatRun> run =
        GruQatRun::forward(*model, {}, 0, 3, {}, {.first = first, .last = last}, {.path = path});
    ASSERT_TRUE(run.ok()) << run.status().message();
    for (size_t i = 0; i < first.size(); ++i)
      EXPECT_EQ(last[i], dequantize_value(model->output_grid(), quantize_value(model->output_grid(), first[i])));
    const std::vector<std::vector<float>> gradients = gradients_of(*run, {});
    for (const std::vector<float>& of : gradients) EXPECT_EQ(of, std::vector<float>(of.size()));
  }
}

/// A GRU of 4-bit weights learns, and what is exported is what was trained.
TEST(GruQat, Learns) {
  constexpr int64_t kSteps = 6, kBatch = 8, kInputs = 2, kHidden = 8;
  Random random(22);
  const auto floats = [&](int64_t count, float scale) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& v : values) v = static_cast<float>(random.between(-1000, 1000)) / 1000 * scale;
    return values;
  };
  GruWeights weights;
  weights.layers.push_back({kInputs, kHidden, floats(3 * kHidden * kInputs, 0.5f), floats(3 * kHidden * kHidden, 0.3f),
                            floats(3 * kHidden, 0.1f), floats(3 * kHidden, 0.1f)});
  const std::vector<float> x = floats(kSteps * kBatch * kInputs, 1.0f);
  std::vector<float> wanted(static_cast<size_t>(kSteps * kBatch * kHidden));
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = 0.6f * x[i / kHidden * kInputs + i % 2];
  GruQuantization quantization;
  for (const GruTensor tensor : {kW, kR}) quantization.tensors[tensor].bits = 4;
  const auto parameters = [&] {
    GruCalibrator calibrator = GruCalibrator::create(weights).value();
    EXPECT_TRUE(calibrator.observe(x, kSteps, kBatch).ok());
    return calibrator.derive(quantization).value();
  };
  GruModelParameters integers = parameters();
  float first_loss = 0, loss = 0;
  for (int step = 0; step < 300; ++step) {
    if (step % 50 == 0) integers = parameters();  // grids change between epochs only
    integers = with_weights(std::move(integers), weights, quantization).value();
    const GruModel model = GruModel::create(integers).value();
    std::vector<float> y(wanted.size()), dy(wanted.size());
    const GruQatRun run = GruQatRun::forward(model, x, kSteps, kBatch, y).value();
    loss = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      dy[i] = (y[i] - wanted[i]) / kBatch;
      loss += (y[i] - wanted[i]) * (y[i] - wanted[i]);
    }
    if (step == 0) first_loss = loss;
    if (step % 50 == 49) {
      GruState state = model.initial_state(kBatch);
      Workspace workspace = model.workspace(kBatch, kSteps);
      std::vector<float> deployed(y.size());
      ASSERT_TRUE(model.forward(x, deployed, kSteps, state, workspace).ok());
      EXPECT_EQ(deployed, y);
    }
    const std::vector<std::vector<float>> gradients = gradients_of(run, dy);
    GruLayerWeights& layer = weights.layers[0];
    std::vector<float>* const trained[] = {&layer.W, &layer.R, &layer.bw, &layer.br};
    for (size_t p = 0; p < 4; ++p)
      for (size_t i = 0; i < trained[p]->size(); ++i) (*trained[p])[i] -= 0.1f * gradients[p][i];
  }
  EXPECT_LT(loss, 0.3f * first_loss);
}

TEST(GruQat, StopsGradientsOfWhatWasOutsideAndRefusesByName) {
  Random random(23);
  RandomShape shape;
  shape.input = 2;
  shape.hidden = 3;
  Result<GruModel> model = random_model(random, shape);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const Grid& grid = model->input_grid();
  const float beyond = 4.0f * grid.scale() * static_cast<float>(grid.max() - grid.min() + 1);
  std::vector<float> x = {0.0f, beyond, -beyond, 0.0f}, y(6);
  const Result<GruQatRun> run = GruQatRun::forward(*model, x, 2, 1, y);
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->clipped_inputs(), 0.5);
  EXPECT_EQ(run->clipped(0, kX), 0.5);
  const std::vector<float> dy(6, 1.0f);
  const std::vector<float> dx = gradients_of(*run, dy)[4];
  EXPECT_EQ(dx[1], 0.0f);
  EXPECT_EQ(dx[2], 0.0f);

  const auto begins = [](const Status& status, const std::string& text) {
    EXPECT_EQ(status.message().substr(0, text.size()), text);
  };
  begins(GruQatRun::forward(*model, std::span(x).first(3), 2, 1, y).status(),
         "training: x has 3 elements, must have 4");
  begins(GruQatRun::forward(*model, x, -1, 1, y).status(), "training: steps is -1");
  const std::vector<int64_t> lengths = {3};
  begins(GruQatRun::forward(*model, x, 2, 1, y, {}, {.lengths = lengths}).status(),
         "training: options.lengths[0] is 3, must be 0 to 2");
  x[3] = std::numeric_limits<float>::quiet_NaN();
  begins(GruQatRun::forward(*model, x, 2, 1, y).status(), "training: x[3] is NaN");
  begins(run->backward(dy, {}, {}), "training: gradients has 0 elements, must have 1");
  std::vector<std::byte> bytes(static_cast<size_t>(run->saved_size()));
  begins(run->save(std::span(bytes).first(5)), "training: saved has 5 bytes, must have ");
  begins(GruQatRun::restore(std::span(bytes).first(5)).status(), "training: saved is no more than a part");
  begins(GruQatRun::restore(bytes).status(), "training: saved is not what save() wrote");
}

/// A state on a narrower and coarser grid: what state_from gives, and gradients stop where it clamped.
TEST(GruQat, HandsStatesOver) {
  Random random(24);
  int passes = 0, stops = 0;
  for (int i = 0; i < 30; ++i) {
    RandomShape shape = random_shape(random);
    const Result<GruModel> from = random_model(random, shape), to = random_model(random, shape);
    if (!from.ok() || !to.ok()) continue;
    const Grid& from_grid = from->parameters().layers[0].grids[kH];
    if (from_grid.kind != to->parameters().layers[0].grids[kH].kind) continue;
    const int64_t layers = from->layer_count() * from->parameters().directions;
    const std::vector<float> h = random_floats(random, from_grid, layers * 2 * from->hidden_size());
    std::vector<float> out(h.size()), expected(h.size());
    std::vector<uint8_t> passed(h.size());
    const Status done = hand_over(*from, *to, h, 2, out, passed);
    if (done.code() == StatusCode::kOverflow) continue;
    ASSERT_TRUE(done.ok()) << done.message();
    const GruState state = from->state_from_float(h, 2).value();
    to->state_to_float(to->state_from(*from, state).value(), expected);
    EXPECT_EQ(out, expected);
    std::vector<float> numbers(h.size());  // of the codes of `from`, whose steps may be wide
    from->state_to_float(state, numbers);
    for (size_t k = 0; k < h.size(); ++k) {
      (passed[k] == 1 ? passes : stops) += 1;
      const Grid& grid = to->parameters().layers[k / (h.size() / static_cast<size_t>(layers))].grids[kH];
      const float low = dequantize_value(grid, grid.min()), high = dequantize_value(grid, grid.max());
      const float margin = grid.scale() + 1e-6f * std::abs(numbers[k]);
      if (numbers[k] < low - margin || numbers[k] > high + margin) {
        EXPECT_EQ(passed[k], 0);
      }
    }
    EXPECT_EQ(hand_over(*from, *to, std::span(h).first(1), 2, out, passed).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_GT(passes, 0);
  EXPECT_GT(stops, 0);
}

}  // namespace
}  // namespace isobit
