// SPDX-License-Identifier: Apache-2.0
#include "isobit/tune.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "isobit/arrays.h"
#include "testing/sanitized.h"

namespace isobit {
namespace {

GruWeights random_weights(uint32_t seed, int64_t layers, int32_t directions, int64_t input, int64_t hidden) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  GruWeights weights;
  weights.directions = directions;
  weights.name = "gru";
  for (int64_t i = 0; i < layers * directions; ++i) {
    GruLayerWeights layer;
    layer.input_size = i < directions ? input : directions * hidden;
    layer.hidden_size = hidden;
    const auto fill = [&](std::vector<float>& values, int64_t count, double scale) {
      for (int64_t k = 0; k < count; ++k) values.push_back(normal(random) * static_cast<float>(scale));
    };
    fill(layer.W, 3 * hidden * layer.input_size, 1 / std::sqrt(static_cast<double>(layer.input_size)));
    fill(layer.R, 3 * hidden * hidden, 1 / std::sqrt(static_cast<double>(hidden)));
    fill(layer.bw, 3 * hidden, 0.5);
    fill(layer.br, 3 * hidden, 0.5);
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

std::vector<float> random_sequence(uint32_t seed, int64_t steps, int64_t channels) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(steps * channels));
  for (float& value : x) value = normal(random);
  return x;
}

struct Tuned {
  GruCalibrator calibrator;
  GruValidation validation;
};

Tuned make_tuned(uint32_t seed, int64_t layers = 1, int32_t directions = 1, ThreadPool* pool = nullptr) {
  const GruWeights weights = random_weights(seed, layers, directions, 5, 7);
  auto calibrator = GruCalibrator::create(weights);
  GruValidationOptions options;
  options.pool = pool;
  auto validation = GruValidation::create(weights, options);
  EXPECT_TRUE(calibrator.ok() && validation.ok());
  for (uint32_t i = 0; i < 3; ++i) {
    const std::vector<float> x = random_sequence(100 * seed + i, 40, 5);
    EXPECT_TRUE(calibrator->observe(x, 40, 1).ok());
    const std::vector<float> unseen = random_sequence(100 * seed + 50 + i, 30, 5);
    GruSequences data;
    data.steps = 30;
    data.batch = 1;
    data.x = unseen;
    EXPECT_TRUE(validation->add(data).ok());
  }
  return {*std::move(calibrator), *std::move(validation)};
}

/// One method, scale and table: a shorter search.
GruTuneOptions narrow_options() {
  GruTuneOptions options;
  options.method = "minmax";
  options.scale = ScaleKind::kPow2;
  options.table = "direct";
  return options;
}

GruTuneResult tuned(Tuned& t, const GruTuneOptions& options) {
  auto result = tune_gru(t.calibrator, t.validation, options);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *std::move(result) : GruTuneResult{};
}

double least_db(Tuned& t, const GruModel& model) {
  const auto sqnr = t.validation.measure(model);
  EXPECT_TRUE(sqnr.ok()) << sqnr.status().message();
  return *std::min_element(sqnr->layer_db.begin(), sqnr->layer_db.end());
}

std::vector<std::byte> saved(const GruModel& model) {
  const std::string path = ::testing::TempDir() + "tune_test.safetensors";
  EXPECT_TRUE(model.save(path).ok());
  return *read_file(path);
}

TEST(Tune, FewestBytesThatReachTheTarget) {
  Tuned t = make_tuned(1, 2);
  GruTuneOptions options = narrow_options();
  options.target = 32;
  const GruTuneResult result = tuned(t, options);
  EXPECT_TRUE(result.reached);
  EXPECT_GE(result.chosen.quality, 32);
  EXPECT_EQ(least_db(t, *result.model), result.chosen.quality);
  int64_t least = result.chosen.bytes, without_reason = 0;
  for (const GruTunePoint& point : result.front) {
    if (point.quality >= 32) least = std::min(least, point.bytes);
    if (point.settings.bits == result.chosen.settings.bits) without_reason = point.bytes;
  }
  EXPECT_GT(without_reason, 0) << "the chosen model is on the front";
  EXPECT_LE(static_cast<double>(without_reason), 1.02 * static_cast<double>(least));
  // The front: by descending quality, and no point beats another.
  for (size_t i = 1; i < result.front.size(); ++i) {
    const GruTunePoint &a = result.front[i - 1], &b = result.front[i];
    EXPECT_GE(a.quality, b.quality);
    EXPECT_TRUE(b.bytes < a.bytes || b.speed < a.speed || a.quality == b.quality) << b.settings.bits;
  }
}

TEST(Tune, TheSettingsGiveTheBytesOfTheModel) {
  Tuned t = make_tuned(2);
  GruTuneOptions options;
  options.target = 38;
  const GruTuneResult result = tuned(t, options);
  const auto quantization = result.chosen.settings.quantization();
  ASSERT_TRUE(quantization.ok()) << quantization.status().message();
  const auto again = t.calibrator.finish(*quantization);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(saved(*again), saved(*result.model));
  EXPECT_EQ(static_cast<int64_t>(saved(*result.model).size()), result.chosen.bytes);
  EXPECT_EQ(result.model->parameters().notes.at("reason"), result.chosen.settings.reason);
  EXPECT_TRUE(result.chosen.settings.reason.ends_with("within 2 % of the fewest bytes that reach 38 dB"))
      << result.chosen.settings.reason;
}

TEST(Tune, NeverBelowItsTargetWithoutSayingSo) {
  std::vector<uint32_t> seeds = {3,   5,   8,   13,   21,   34,   55,   89,    144,   233,
                                 377, 610, 987, 1597, 2584, 4181, 6765, 10946, 17711, 28657};
#ifdef ISOBIT_TESTING_SANITIZED
  seeds.resize(2);  // each takes ten times as long
#endif
  for (const uint32_t seed : seeds) {
    Tuned t = make_tuned(seed, 1 + seed % 2, 1 + static_cast<int32_t>(seed / 2 % 2));
    GruTuneOptions options = narrow_options();
    options.target = seed % 3 == 0 ? 30 : seed % 3 == 1 ? 45 : 200;
    const GruTuneResult result = tuned(t, options);
    EXPECT_EQ(result.reached, result.chosen.quality >= *options.target) << seed;
    EXPECT_EQ(least_db(t, *result.model), result.chosen.quality) << seed;
    if (*options.target < 40) {
      EXPECT_TRUE(result.reached) << seed << ": " << result.chosen.quality;
    }
    if (*options.target > 100) {
      EXPECT_FALSE(result.reached) << seed;
    }
  }
}

TEST(Tune, MostQualityInAnyNumberOfBytes) {
  Tuned t = make_tuned(4);
  GruTuneOptions options = narrow_options();
  options.target = 20;
  const int64_t some_bytes = tuned(t, options).chosen.bytes;
  options.target.reset();
  options.max_bytes = some_bytes;
  const GruTuneResult result = tuned(t, options);
  EXPECT_TRUE(result.reached);
  EXPECT_LE(result.chosen.bytes, some_bytes);
  EXPECT_EQ(static_cast<int64_t>(saved(*result.model).size()), result.chosen.bytes);
  for (const GruTunePoint& point : result.front) {
    if (point.bytes <= some_bytes) {
      EXPECT_GE(result.chosen.quality + 0.5, point.quality) << point.settings.bits;
    }
  }
  options.max_bytes = result.chosen.bytes - 1;  // room for the model perhaps, but not for its reason
  EXPECT_TRUE(tuned(t, options).reached);
  EXPECT_LE(tuned(t, options).chosen.bytes, *options.max_bytes);
  options.max_bytes = 100;
  EXPECT_FALSE(tuned(t, options).reached);
}

TEST(Tune, LikeOtherSettings) {
  Tuned t = make_tuned(5, 2);
  GruTuneOptions options = narrow_options();
  options.like = GruSettings{};
  options.like->bits = "8,linear=16,gate_in=12";
  options.like->table = "direct";
  const GruTuneResult result = tuned(t, options);
  EXPECT_TRUE(result.reached);
  const auto quantization = options.like->quantization();
  const auto like = t.calibrator.finish(*quantization);
  EXPECT_GE(result.chosen.quality, least_db(t, *like));
  const auto tensors = [](const GruModel& model) {
    const GruSizes sizes = *model.sizes();
    return sizes.total_bytes() - sizes.header_bytes;
  };
  EXPECT_LE(tensors(*result.model), tensors(*like));
}

TEST(Tune, DoesNotDependOnThreads) {
  ThreadPool pool(3);
  Tuned one = make_tuned(6, 2), three = make_tuned(6, 2, 1, &pool);
  GruTuneOptions options = narrow_options();
  const GruTuneResult a = tuned(one, options);
  options.pool = &pool;
  const GruTuneResult b = tuned(three, options);
  EXPECT_EQ(saved(*a.model), saved(*b.model));
  ASSERT_EQ(a.front.size(), b.front.size());
  for (size_t i = 0; i < a.front.size(); ++i) {
    EXPECT_EQ(a.front[i].settings.command_options(), b.front[i].settings.command_options());
    EXPECT_EQ(a.front[i].quality, b.front[i].quality);
  }
}

TEST(Tune, AMetricJudgesTheFront) {
  Tuned t = make_tuned(7);
  GruTuneOptions options = narrow_options();
  // Bits of R: what SQNR does not know.
  options.metric = [](const GruModel& model) -> Result<double> {
    return static_cast<double>(model.parameters().layers[0].grids[kR].bits);
  };
  options.target = 8;
  const GruTuneResult result = tuned(t, options);
  EXPECT_TRUE(result.reached);
  EXPECT_EQ(result.chosen.quality, 8);
  EXPECT_EQ(result.model->parameters().layers[0].grids[kR].bits, 8);
  options.target = 17;
  EXPECT_FALSE(tuned(t, options).reached);
  options.metric = [](const GruModel&) -> Result<double> { return std::nan(""); };
  const auto nan = tune_gru(t.calibrator, t.validation, options);
  EXPECT_NE(nan.status().message().find("finite"), std::string::npos) << nan.status().message();
  options.metric = [](const GruModel&) -> Result<double> { return Status(StatusCode::kIo, "no judge"); };
  EXPECT_EQ(tune_gru(t.calibrator, t.validation, options).status().message(), "no judge");
}

TEST(Tune, AnInterruptedSearchKeepsWhatItHas) {
  Tuned t = make_tuned(8);
  GruTuneOptions options = narrow_options();
  options.target = 30;
  options.progress = [](const GruTuneProgress& progress) { return progress.evaluations < 12; };
  const GruTuneResult result = tuned(t, options);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.evaluations, 12);
  EXPECT_TRUE(result.reached) << "16 bits everywhere come first";
  EXPECT_GE(least_db(t, *result.model), 30);
}

TEST(Tune, Refusals) {
  Tuned t = make_tuned(9);
  const auto refused = [&](const GruTuneOptions& options, const char* words) {
    const auto result = tune_gru(t.calibrator, t.validation, options);
    EXPECT_FALSE(result.ok());
    EXPECT_NE(result.status().message().find(words), std::string::npos) << result.status().message();
  };
  GruTuneOptions options = narrow_options();
  options.target = 30;
  options.max_bytes = 1000;
  refused(options, "exclude each other");
  options.target.reset();
  options.max_bytes = 0;
  refused(options, "max_bytes is 0");
  options.max_bytes.reset();
  options.target = std::nan("");
  refused(options, "target is nan");
  options.target.reset();
  options.metric = [](const GruModel&) -> Result<double> { return 1.0; };
  refused(options, "a metric needs a target");
  options = {};
  options.like = GruSettings{};
  options.like->bits = "8,q=4";
  refused(options, "unknown tensor 'q'");
  GruValidation other = make_tuned(11).validation;
  EXPECT_NE(tune_gru(t.calibrator, other, {}).status().message().find("other weights"), std::string::npos);
  auto nothing = GruValidation::create(random_weights(9, 1, 1, 5, 7), {});
  EXPECT_EQ(tune_gru(t.calibrator, *nothing, {}).status().code(), StatusCode::kFailedPrecondition);
  auto uncalibrated = GruCalibrator::create(random_weights(9, 1, 1, 5, 7));
  EXPECT_EQ(tune_gru(*uncalibrated, t.validation, {}).status().code(), StatusCode::kFailedPrecondition);
}

TEST(SpeedClass, OfTheSlowestLayer) {
  Tuned t = make_tuned(10, 2);
  const auto speed_of = [&](const std::string& bits) {
    GruSettings settings;
    settings.bits = bits;
    const auto model = t.calibrator.finish(*settings.quantization());
    EXPECT_TRUE(model.ok()) << model.status().message();
    return speed_class(*model);
  };
  EXPECT_EQ(speed_of("8"), SpeedClass::kTablesInRegisters);
  EXPECT_EQ(speed_of("8,linear=16"), SpeedClass::kTablesInRegisters);
  EXPECT_EQ(speed_of("8,l1.gate_in=12"), SpeedClass::kTablesGathered);
  EXPECT_EQ(speed_of("8,l1.h=12"), SpeedClass::kWideStates);
  EXPECT_EQ(speed_of("8,x=16,W=16,l1.u=12"), SpeedClass::kWideWeights);
  EXPECT_EQ(speed_of("8,x=17"), SpeedClass::kReference);
}

TEST(GruSettings, CommandOptionsGiveTheSettings) {
  GruSettings settings;
  EXPECT_EQ(settings.command_options(), "--bits 8");
  settings.bits = "8,u=8:steps=255";
  settings.method = "minmax,x=ema:0.9";
  settings.table = "interpolated";
  settings.scale = ScaleKind::kReal;
  settings.rounding = Rounding::kFloor;
  settings.reason = "it's enough";
  EXPECT_EQ(
      settings.command_options(),
      "--bits 8,u=8:steps=255 --method minmax,x=ema:0.9 --table interpolated --scale real --rounding floor --reason "
      "'it'\\''s enough'");
}

/// The command gets three files, and its last word counts.
TEST(GruCommandMetric, RunsTheCommand) {
  const GruWeights weights = random_weights(1, 1, 1, 5, 7);
  GruCalibrator calibrator = GruCalibrator::create(weights).value();
  Sequences data;
  data.name = "x.npy";
  data.steps = 30;
  data.batch = 1;
  data.x = random_sequence(1, 30, 5);
  ASSERT_TRUE(calibrator.observe(data.x, 30, 1).ok());
  const GruModel model = calibrator.finish({}).value();
  const auto quality = [&](const std::string& command) -> Result<double> {
    ISOBIT_ASSIGN_OR_RETURN(GruCommandMetric metric, GruCommandMetric::create(command, weights));
    for (int i = 0; i < 2; ++i) ISOBIT_RETURN_IF_ERROR(metric.add(data));  // the second is x_2
    ISOBIT_RETURN_IF_ERROR(metric(model).status());
    return metric(model);
  };
  const std::string given = "f() { grep -q x_2 \"$1\" && grep -q x_2 \"$2\" && grep -q isobit \"$3\" && ";
  const Result<double> found = quality(given + "echo quality 4.5; }; f");
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(*found, 4.5);
  for (const auto& [command, why] :
       {std::pair("exit 3 #", "it failed (exit status 3)"), std::pair("kill $$ #", "it failed (ended by a signal)"),
        std::pair("echo 1 nan #", "the last word it printed is 'nan'"),
        std::pair("true #", "the last word it printed is ''")}) {
    const Status status = quality(command).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(std::string("--metric ") + command + ": " + why), std::string::npos)
        << status.message();
  }
}

}  // namespace
}  // namespace isobit
