// SPDX-License-Identifier: Apache-2.0
// What a run promises besides its numbers: it allocates nothing, and the bytes do not depend on the threads.
#include <gtest/gtest.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "core/random.h"
#include "gru/cpu/layer.h"
#include "isobit/gru.h"
#include "testing/allocations.h"

namespace isobit {
namespace {

using testing::allocations_of;

constexpr int64_t kInputs = 5;
constexpr int64_t kHidden = 19;  // no multiple of a vector
constexpr int64_t kSteps = 40;   // more than one block of steps
constexpr int64_t kBatch = 9;

struct Spec {
  friend void PrintTo(const Spec& spec, std::ostream* out) { *out << spec.name; }
  std::string name;
  std::string bits;
  ScaleKind scale = ScaleKind::kPow2;
  int64_t layers = 1;
  int32_t directions = 1;
};
// 32-bit lanes, 64-bit lanes for two reasons, several layers, and what only the reference runs.
const Spec kSpecs[] = {{"Bits8", "8"},
                       {"Bits16", "16"},
                       {"RealScales", "8", ScaleKind::kReal},
                       {"TwoLayersBidirectional", "8,linear=16,gate_in=12", ScaleKind::kPow2, 2, 2},
                       {"TooWideForKernels", "8,h=20"}};

std::vector<float> random_values(Random& random, int64_t count, float limit) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = limit * static_cast<float>(random.between(-1000, 1000)) / 1000.0f;
  return values;
}

std::vector<float> input(int64_t steps = kSteps) {
  Random random(2);
  return random_values(random, steps * kBatch * kInputs, 2.0f);
}

Result<GruModel> make_model(const Spec& spec) {
  Random random(1);
  GruWeights weights;
  weights.directions = spec.directions;
  for (int64_t i = 0; i < spec.layers * spec.directions; ++i) {
    const int64_t inputs = i < spec.directions ? kInputs : spec.directions * kHidden;
    weights.layers.push_back({inputs, kHidden, random_values(random, 3 * kHidden * inputs, 0.6f),
                              random_values(random, 3 * kHidden * kHidden, 0.4f),
                              random_values(random, 3 * kHidden, 0.3f), random_values(random, 3 * kHidden, 0.3f)});
  }
  ISOBIT_ASSIGN_OR_RETURN(GruCalibrator calibrator, GruCalibrator::create(std::move(weights)));
  ISOBIT_RETURN_IF_ERROR(calibrator.observe(input(), kSteps, kBatch));
  GruQuantization quantization;
  quantization.scale = spec.scale;
  ISOBIT_RETURN_IF_ERROR(apply_bits(spec.bits, quantization));
  return calibrator.finish(quantization);
}

std::vector<CpuPath> paths_of(const GruModel& model) {
  std::vector<CpuPath> paths;
  for (const CpuPath path : kAllCpuPaths)
    if (model.supports(path).ok()) paths.push_back(path);
  return paths;
}

class Forward : public ::testing::TestWithParam<Spec> {};

TEST_P(Forward, AllocatesNothing) {
  const Result<GruModel> model = make_model(GetParam());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<float> x = input();
  const auto outputs = static_cast<size_t>(kSteps * kBatch * model->output_size());
  const std::vector<std::byte> x_codes(x.size() * size_in_bytes(model->input_grid().dtype()));
  std::vector<float> y(outputs);
  std::vector<std::byte> y_codes(outputs * size_in_bytes(model->output_grid().dtype()));
  const std::vector<int64_t> lengths = {kSteps, 0, 1, 3, kSteps, 17, 5, kSteps - 1, 2};
  const std::vector<uint8_t> mask(outputs, 1);

  std::vector<RunOptions> runs;
  for (const CpuPath path : paths_of(*model)) {
    runs.emplace_back(RunOptions{.whole_sequence = true}).path = path;
    runs.emplace_back(runs.back()).lengths = lengths;
    runs.emplace_back(runs.back()).batch_first = true;
    if (GetParam().layers == 1) runs.emplace_back(runs.back()).zoneout_mask = mask;
  }
  ASSERT_FALSE(runs.empty());
  // The default path.
  runs.emplace_back(RunOptions{.whole_sequence = true});
  for (const int threads : {0, 1, 2, 3, 7}) {  // 0: no pool
    std::optional<ThreadPool> pool;
    if (threads > 0) testing::start(pool.emplace(threads));
    Workspace workspace = model->workspace(kBatch, kSteps, threads);
    GruState state = model->initial_state(kBatch);
    for (RunOptions& options : runs) {
      options.pool = pool ? &*pool : nullptr;
      SCOPED_TRACE((options.path ? std::string(to_string(*options.path)) : "default path") + ", threads " +
                   std::to_string(threads));
      Status status;
      EXPECT_EQ(allocations_of([&] { status = model->forward(x, y, kSteps, state, workspace, options); }), 0);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(
          allocations_of([&] { status = model->forward_codes(x_codes, y_codes, kSteps, state, workspace, options); }),
          0);
      ASSERT_TRUE(status.ok()) << status.message();
      if (!options.lengths.empty()) continue;
      // Streaming: a step a call, with the workspace of the whole sequence.
      const auto in = static_cast<size_t>(kBatch * kInputs);
      const auto out = static_cast<size_t>(kBatch * model->output_size());
      EXPECT_EQ(allocations_of([&] {
                  for (size_t t = 0; t < 3 && status.ok(); ++t)
                    status = model->forward(std::span(x).subspan(t * in, in), std::span(y).subspan(t * out, out), 1,
                                            state, workspace, options);
                }),
                0);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
}

TEST_P(Forward, DoesNotDependOnTheThreads) {
  const Result<GruModel> model = make_model(GetParam());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<float> x = input();
  const std::vector<int64_t> all_lengths[] = {{}, {3, kSteps, 0, 1, kSteps, 17, 5, kSteps - 1, 2}};
  for (const std::vector<int64_t>& lengths : all_lengths) {
    std::vector<float> expected;
    std::vector<float> expected_state;
    for (const CpuPath path : paths_of(*model)) {
      for (const int threads : {0, 1, 2, 3, 7, 12}) {  // 12: more than there are sequences
        SCOPED_TRACE(std::string(to_string(path)) + ", threads " + std::to_string(threads));
        std::optional<ThreadPool> pool;
        if (threads > 0) pool.emplace(threads);
        RunOptions options{.whole_sequence = true};
        options.path = path;
        options.lengths = lengths;
        options.pool = pool ? &*pool : nullptr;
        Workspace workspace = model->workspace(kBatch, kSteps, threads);
        GruState state = model->initial_state(kBatch);
        std::vector<float> y(static_cast<size_t>(kSteps * kBatch * model->output_size()));
        const Status status = model->forward(x, y, kSteps, state, workspace, options);
        ASSERT_TRUE(status.ok()) << status.message();
        std::vector<float> last(static_cast<size_t>(state.layer_count() * kBatch * kHidden));
        model->state_to_float(state, last);
        if (expected.empty()) {
          expected = y;
          expected_state = last;
        }
        EXPECT_EQ(y, expected);
        EXPECT_EQ(last, expected_state);
      }
    }
  }
}

TEST_P(Forward, RefusesMoreThreadsThanTheWorkspaceIsFor) {
  const Result<GruModel> model = make_model(GetParam());
  ASSERT_TRUE(model.ok()) << model.status().message();
  ThreadPool pool(3);
  RunOptions options{.whole_sequence = true};
  options.pool = &pool;
  Workspace workspace = model->workspace(kBatch, kSteps, 2);
  GruState state = model->initial_state(kBatch);
  std::vector<float> y(static_cast<size_t>(kSteps * kBatch * model->output_size()));
  const Status status = model->forward(input(), y, kSteps, state, workspace, options);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("on 3 threads; make it with workspace("), std::string::npos) << status.message();
  workspace = model->workspace(kBatch + 4, kSteps + 1, 3);  // larger than needed
  EXPECT_TRUE(model->forward(input(), y, kSteps, state, workspace, options).ok());
}

TEST_P(Forward, RefusesWhatDoesNotFit) {
  const Result<GruModel> model = make_model(GetParam());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const Grid& in = model->input_grid();
  const std::vector<std::byte> x(static_cast<size_t>(kSteps * kBatch * model->input_size()) *
                                 size_in_bytes(in.dtype()));
  std::vector<std::byte> y(static_cast<size_t>(kSteps * kBatch * model->output_size()) *
                           size_in_bytes(model->output_grid().dtype()));
  Workspace workspace = model->workspace(kBatch, kSteps);
  GruState state = model->initial_state(kBatch);
  const auto refused = [&](const Status& status, const std::string& words) {
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  };
  const RunOptions whole{.whole_sequence = true};
  refused(model->forward(x, in.dtype(), y, Dtype::kF64, kSteps, state, workspace, whole), "and y f64, must be codes");
  refused(model->forward_codes(std::span(x).first(1), y, kSteps, state, workspace, whole), "x has ");
  refused(model->forward_codes(x, std::span(y).first(1), kSteps, state, workspace, whole), "y has ");
  refused(model->forward_codes(x, y, kSteps, state, workspace, {.whole_sequence = true, .x_stride = 64}), "x_stride");
}

TEST_P(Forward, BidirectionalModelsWantWholeSequences) {
  const Result<GruModel> model = make_model(GetParam());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const bool bidirectional = model->parameters().directions == 2;
  const std::vector<float> x = input();
  const std::vector<std::byte> x_codes(x.size() * size_in_bytes(model->input_grid().dtype()));
  std::vector<float> y(static_cast<size_t>(kSteps * kBatch * model->output_size()), 7.0f);
  std::vector<std::byte> y_codes(y.size() * size_in_bytes(model->output_grid().dtype()));
  Workspace workspace = model->workspace(kBatch, kSteps);
  GruState state = model->initial_state(kBatch);
  class Nobody : public GruCodeObserver {
    void observe(int32_t, int64_t, int64_t, int64_t, std::span<const int64_t>) override {}
  } nobody;
  for (const bool whole : {false, true}) {
    const RunOptions options{.whole_sequence = whole};
    for (const Status& status : {model->forward(x, y, kSteps, state, workspace, options),
                                 model->forward_codes(x_codes, y_codes, kSteps, state, workspace, options),
                                 model->forward_observed(x_codes, y_codes, kSteps, state, nobody, options)}) {
      EXPECT_EQ(status.ok(), whole || !bidirectional) << status.message();
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find("set whole_sequence"), std::string::npos) << status.message();
      EXPECT_EQ(y, std::vector<float>(y.size(), 7.0f));  // nothing was written
    }
  }
}

// A thread's part of the batch takes more steps together than the whole batch does.
TEST_P(Forward, ScratchOfABatchIsEnoughForEveryPartOfIt) {
  const Result<GruModel> model = make_model(GetParam());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const Result<GruLayer> layer = GruLayer::create(model->parameters().layers[0], "layer 0");
  ASSERT_TRUE(layer.ok()) << layer.status().message();
  for (const int64_t steps : {1, 2, 7, 40}) {
    for (int64_t batch = 2; batch <= 70; ++batch) {
      EXPECT_GE(layer->scratch_bytes(batch, steps), layer->scratch_bytes(batch - 1, steps)) << batch << ", " << steps;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, Forward, ::testing::ValuesIn(kSpecs),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace isobit
