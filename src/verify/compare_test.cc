// SPDX-License-Identifier: Apache-2.0
#include "isobit/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/codes.h"
#include "core/random.h"

namespace isobit {
namespace {

float uniform(Random& random, float limit) {
  return limit * static_cast<float>(random.between(-1000000, 1000000)) / 1000000.0f;
}

std::vector<float> uniforms(Random& random, int64_t count, float limit) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(random, limit);
  return values;
}

/// update_bias: a large one holds a state for long.
GruWeights random_weights(uint64_t seed, int64_t input, int64_t hidden, int64_t layers, int32_t directions,
                          float update_bias = 0) {
  Random random(seed);
  GruWeights weights;
  weights.directions = directions;
  weights.name = "gru";
  for (int64_t i = 0; i < layers * directions; ++i) {
    GruLayerWeights w;
    w.input_size = i < directions ? input : hidden * directions;
    w.hidden_size = hidden;
    const float limit = 1.7f / std::sqrt(static_cast<float>(hidden));
    w.W = uniforms(random, 3 * hidden * w.input_size, 1.7f / std::sqrt(static_cast<float>(w.input_size)));
    w.R = uniforms(random, 3 * hidden * hidden, limit);
    w.bw = uniforms(random, 3 * hidden, limit);
    w.br = uniforms(random, 3 * hidden, limit);
    for (int64_t h = 0; h < hidden; ++h) w.bw[static_cast<size_t>(h)] += update_bias;
    weights.layers.push_back(std::move(w));
  }
  return weights;
}

/// [T, N, C] with channels of different loudness; `loud`: the factor of channel 0.
std::vector<float> random_data(uint64_t seed, int64_t steps, int64_t batch, int64_t channels, float loud = 1) {
  Random random(seed);
  std::vector<float> x = uniforms(random, steps * batch * channels, 1);
  for (size_t i = 0; i < x.size(); i += static_cast<size_t>(channels)) x[i] *= loud;
  return x;
}

Result<GruModel> quantized(const GruWeights& weights, const std::vector<float>& x, int64_t steps, int64_t batch,
                           const std::string& bits, ScaleKind scale = ScaleKind::kPow2) {
  GruQuantization quantization;
  ISOBIT_RETURN_IF_ERROR(apply_bits(bits, quantization));
  quantization.scale = scale;
  ISOBIT_ASSIGN_OR_RETURN(GruCalibrator calibrator, GruCalibrator::create(weights));
  ISOBIT_RETURN_IF_ERROR(calibrator.observe(x, steps, batch));
  return calibrator.finish(quantization);
}

GruSequences sequences(const std::vector<float>& x, int64_t steps, int64_t batch) {
  GruSequences data;
  data.steps = steps;
  data.batch = batch;
  data.x = x;
  return data;
}

const TensorComparison& row_of(const GruComparisonReport& report, int64_t layer, GruTensor tensor) {
  const auto found = std::find_if(report.tensors.begin(), report.tensors.end(), [&](const TensorComparison& row) {
    return row.layer == layer && row.tensor == tensor;
  });
  EXPECT_NE(found, report.tensors.end());
  return *found;
}

Result<GruComparisonReport> compare(const GruWeights& weights, const GruModel& model, const GruSequences& data,
                                    const GruCompareOptions& options = {}) {
  ISOBIT_ASSIGN_OR_RETURN(GruComparison comparison, GruComparison::create(weights, model, options));
  ISOBIT_RETURN_IF_ERROR(comparison.add(data));
  return comparison.finish();
}

// ---------------------------------------------------------------------------------------------------------------
// Tensor by tensor

using Key = std::array<int64_t, 4>;  // layer, tensor, sequence, step

struct FloatTensors : GruObserver {
  void observe(int32_t tensor, int64_t layer, int64_t sequence, int64_t step, std::span<const float> v) override {
    values[{layer, tensor, sequence, step}].assign(v.begin(), v.end());
  }
  std::map<Key, std::vector<float>> values;
};
struct CodeTensors : GruCodeObserver {
  void observe(int32_t tensor, int64_t layer, int64_t sequence, int64_t step, std::span<const int64_t> c) override {
    codes[{layer, tensor, sequence, step}].assign(c.begin(), c.end());
  }
  std::map<Key, std::vector<int64_t>> codes;
};

/// All tensors of both models on the same data.
struct Sides {
  FloatTensors floats;
  CodeTensors fixed;

  Status run(const GruWeights& weights, const GruModel& model, const GruSequences& data) {
    GruFloatArguments arguments;
    arguments.steps = data.steps;
    arguments.batch = data.batch;
    arguments.x = data.x;
    arguments.lengths = data.lengths;
    arguments.h0 = data.h0;
    ISOBIT_RETURN_IF_ERROR(gru_forward_float(weights, arguments, &floats));
    std::vector<std::byte> x(data.x.size() * size_in_bytes(model.input_grid().dtype()));
    std::vector<std::byte> y(static_cast<size_t>(data.steps * data.batch * model.output_size()) *
                             size_in_bytes(model.output_grid().dtype()));
    ISOBIT_RETURN_IF_ERROR(quantize(model.input_grid(), data.x, x.data(), "x"));
    ISOBIT_ASSIGN_OR_RETURN(GruState state, model.state_from_float(data.h0, data.batch));
    RunOptions options;
    options.lengths = data.lengths;
    options.whole_sequence = true;
    return model.forward_observed(x, y, data.steps, state, fixed, options);
  }
};

/// One tensor the simple way.
struct Expected {
  uint64_t count = 0, clipped = 0;
  double largest = 0;
  int64_t first_part = -1;
  std::map<int64_t, double> signal, error, own;  // by channel
};

double db_of(const std::map<int64_t, double>& signal, const std::map<int64_t, double>& error) {
  double a = 0, e = 0;
  for (const auto& [channel, sum] : signal) a += sum;
  for (const auto& [channel, sum] : error) e += sum;
  return 10 * std::log10(a / e);
}

struct Shape {
  int64_t layers;
  int32_t directions;
};
class Comparison : public ::testing::TestWithParam<Shape> {};

TEST_P(Comparison, EqualsSimpleSums) {
  constexpr int64_t kSteps = 150, kBatch = 6, kInput = 5, kHidden = 7;  // pieces and groups with a rest
  const auto [layers, directions] = GetParam();
  const GruWeights weights = random_weights(1, kInput, kHidden, layers, directions);
  const std::vector<float> x = random_data(2, kSteps, kBatch, kInput);
  const std::vector<int64_t> lengths = {150, 3, 0, 64, 65, 149};
  Random random(3);
  const int64_t states = layers * directions;
  const std::vector<float> h0 = uniforms(random, states * kBatch * kHidden, 0.9f);
  std::vector<float> quiet = random_data(4, 20, 4, kInput);
  for (float& value : quiet) value *= 0.4f;  // so that some of x is clipped
  const auto model = quantized(weights, quiet, 20, 4, "8,linear=12");
  ASSERT_TRUE(model.ok()) << model.status().message();

  GruSequences data = sequences(x, kSteps, kBatch);
  data.lengths = lengths;
  data.h0 = h0;
  const auto report = compare(weights, *model, data);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->sequences, kBatch);
  EXPECT_EQ(report->steps, 431);

  Sides sides;
  const Status both = sides.run(weights, *model, data);
  ASSERT_TRUE(both.ok()) << both.message();
  const FloatTensors& floats = sides.floats;
  const CodeTensors& fixed = sides.fixed;

  std::map<std::pair<int64_t, int64_t>, Expected> expected;
  for (const auto& [key, codes] : fixed.codes) {
    const auto& [layer, tensor, sequence, step] = key;
    const Grid& grid = model->parameters().layers[static_cast<size_t>(layer)].grids[static_cast<size_t>(tensor)];
    Expected& sums = expected[{layer, tensor}];
    const double scale = static_cast<double>(grid.scale());
    const bool is_fixed = tensor >= kU;
    const double low = is_fixed ? (tensor == kN ? -1 : 0) : static_cast<double>(grid.min() - grid.zero_point) * scale;
    const double high = is_fixed ? 1 : static_cast<double>(grid.max() - grid.zero_point) * scale;
    for (size_t i = 0; i < codes.size(); ++i) {
      const float value = floats.values.at(key)[i];
      const double a = static_cast<double>(value);
      const double b = static_cast<double>(dequantize_value(grid, codes[i]));
      const double q = static_cast<double>(dequantize_value(grid, quantize_value(grid, value)));
      const auto channel = static_cast<int64_t>(i);
      ++sums.count;
      sums.clipped += a < low - 0.501 * scale || a > high + 0.501 * scale ? 1 : 0;
      sums.largest = std::max(sums.largest, std::abs(a - b));
      sums.signal[channel] += a * a;
      sums.error[channel] += (a - b) * (a - b);
      sums.own[channel] += (a - q) * (a - q);
      if (std::abs(a - b) > scale && (sums.first_part < 0 || step < sums.first_part)) sums.first_part = step;
    }
  }
  for (int64_t layer = 0; layer < states; ++layer) {
    const GruLayerParameters& p = model->parameters().layers[static_cast<size_t>(layer)];
    const std::vector<float>& W = weights.layers[static_cast<size_t>(layer)].W;
    Expected& sums = expected[{layer, kW}];
    for (int64_t row = 0; row < 3 * kHidden; ++row) {
      for (int64_t column = 0; column < p.input_size; ++column) {
        const double a = static_cast<double>(W[static_cast<size_t>(row * p.input_size + column)]);
        const double b = static_cast<double>(dequantize_value(p.W_grid[static_cast<size_t>(row)], p.W.at(row, column)));
        ++sums.count;
        sums.signal[row] += a * a;
        sums.error[row] += (a - b) * (a - b);
        sums.largest = std::max(sums.largest, std::abs(a - b));
      }
    }
    sums.own = sums.error;
  }
  const std::vector<GruTensor> flow = {kX, kW, kBw, kIh, kR, kBr, kHh, kUIn, kRIn, kNIn, kU, kRGate, kN, kH};
  ASSERT_EQ(report->tensors.size(), flow.size() * static_cast<size_t>(states));
  for (size_t i = 0; i < report->tensors.size(); ++i) {
    const TensorComparison& row = report->tensors[i];
    EXPECT_EQ(row.layer, static_cast<int64_t>(i / flow.size()));
    EXPECT_EQ(row.tensor, flow[i % flow.size()]);
    if (row.tensor == kR || row.tensor == kBw || row.tensor == kBr) continue;
    SCOPED_TRACE(std::to_string(row.layer) + " " + std::string(kGruTensorNames[row.tensor]));
    const Expected& sums = expected.at({row.layer, row.tensor});
    EXPECT_EQ(row.count, sums.count);
    EXPECT_EQ(row.clipped, sums.clipped);
    EXPECT_NEAR(row.sqnr_db, db_of(sums.signal, sums.error), 1e-9);
    EXPECT_NEAR(row.own_sqnr_db, db_of(sums.signal, sums.own), 1e-9);
    EXPECT_NEAR(row.largest_error, sums.largest, 1e-9);
    EXPECT_EQ(row.first_part.step, sums.first_part);
    for (const auto& [worst, error] : {std::pair(row.worst, sums.error), std::pair(row.own_worst, sums.own)}) {
      double least = std::numeric_limits<double>::infinity();
      for (const auto& [channel, e] : error) least = std::min(least, 10 * std::log10(sums.signal.at(channel) / e));
      EXPECT_NEAR(worst.sqnr_db, least, 1e-9);
      EXPECT_NEAR(10 * std::log10(sums.signal.at(worst.channel) / error.at(worst.channel)), least, 1e-9);
    }
    const ComparePlace& at = row.largest_error_at;
    if (row.tensor == kW) {
      EXPECT_EQ(at.sequence, -1);
      EXPECT_LT(at.step, 3 * kHidden);
      continue;
    }
    const Key key = {row.layer, row.tensor, at.sequence, at.step};
    const Grid& grid = model->parameters().layers[static_cast<size_t>(row.layer)].grids[row.tensor];
    EXPECT_NEAR(
        std::abs(static_cast<double>(floats.values.at(key)[static_cast<size_t>(at.index)]) -
                 static_cast<double>(dequantize_value(grid, fixed.codes.at(key)[static_cast<size_t>(at.index)]))),
        sums.largest, 1e-9);
  }
  EXPECT_GT(row_of(*report, 0, kX).clipped, 0U);
}

TEST_P(Comparison, DependsNeitherOnThreadsNorOnPieces) {
  constexpr int64_t kSteps = 70, kBatch = 23, kInput = 3;
  const auto [layers, directions] = GetParam();
  const GruWeights weights = random_weights(5, kInput, 6, layers, directions);
  const std::vector<float> x = random_data(6, kSteps, kBatch, kInput);
  const auto model = quantized(weights, x, kSteps, kBatch, "8");
  ASSERT_TRUE(model.ok()) << model.status().message();
  const auto wanted = compare(weights, *model, sequences(x, kSteps, kBatch));
  ASSERT_TRUE(wanted.ok()) << wanted.status().message();

  std::vector<float> batch_first(x.size());
  for (int64_t t = 0; t < kSteps; ++t) {
    for (int64_t n = 0; n < kBatch; ++n) {
      std::copy_n(x.begin() + (t * kBatch + n) * kInput, kInput, batch_first.begin() + (n * kSteps + t) * kInput);
    }
  }
  ThreadPool pool(3);
  int64_t done = 0;
  GruCompareOptions options;
  options.pool = &pool;
  options.progress = [&](int64_t count) { done = std::max(done, count); };
  auto comparison = GruComparison::create(weights, *model, options);
  ASSERT_TRUE(comparison.ok()) << comparison.status().message();
  for (int64_t first = 0; first < kBatch; first += 4) {
    const int64_t count = std::min<int64_t>(4, kBatch - first);
    GruSequences data;
    data.steps = kSteps;
    data.batch = count;
    data.batch_first = true;
    data.x = std::span<const float>(batch_first)
                 .subspan(static_cast<size_t>(first * kSteps * kInput), static_cast<size_t>(count * kSteps * kInput));
    ASSERT_TRUE(comparison->add(data).ok());
  }
  const auto report = comparison->finish();
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(done, kBatch);
  ASSERT_EQ(report->tensors.size(), wanted->tensors.size());
  for (size_t i = 0; i < report->tensors.size(); ++i) {
    const TensorComparison &a = report->tensors[i], &b = wanted->tensors[i];
    EXPECT_EQ(a.sqnr_db, b.sqnr_db);
    EXPECT_EQ(a.own_sqnr_db, b.own_sqnr_db);
    EXPECT_EQ(a.cosine, b.cosine);
    EXPECT_EQ(a.worst.channel, b.worst.channel);
    EXPECT_EQ(a.own_worst.sqnr_db, b.own_worst.sqnr_db);
    EXPECT_EQ(a.largest_error, b.largest_error);
    EXPECT_EQ(a.largest_error_at.sequence, b.largest_error_at.sequence);
    EXPECT_EQ(a.first_part.step, b.first_part.step);
    EXPECT_EQ(a.clipped, b.clipped);
  }
}

TEST_P(Comparison, ProfileEqualsSimpleCounts) {
  constexpr int64_t kSteps = 150, kBatch = 6, kInput = 5, kHidden = 7;  // more steps than slices
  const auto [layers, directions] = GetParam();
  const int64_t states = layers * directions;
  const GruWeights weights = random_weights(1, kInput, kHidden, layers, directions);
  const std::vector<float> x = random_data(2, kSteps, kBatch, kInput);
  const std::vector<int64_t> lengths = {150, 3, 0, 64, 65, 149};
  Random random(3);
  const std::vector<float> h0 = uniforms(random, states * kBatch * kHidden, 0.9f);
  const auto model = quantized(weights, x, kSteps, kBatch, "8,gate_in=10");
  ASSERT_TRUE(model.ok()) << model.status().message();
  GruSequences data = sequences(x, kSteps, kBatch);
  data.lengths = lengths;
  data.h0 = h0;
  ThreadPool pool(3);
  const auto plain = compare(weights, *model, data), found = compare(weights, *model, data, {.profile = true}),
             threaded = compare(weights, *model, data, {.pool = &pool, .profile = true});
  ASSERT_TRUE(plain.ok() && found.ok() && threaded.ok());
  EXPECT_TRUE(plain->by_sequence.empty() && plain->worst_over_time.slices.empty());
  Sides sides;
  ASSERT_TRUE(sides.run(weights, *model, data).ok());

  std::map<std::pair<int64_t, int64_t>, std::vector<uint64_t>> bins, codes_used;
  std::map<int64_t, std::map<int64_t, double>> slice_error;  // of each layer's h, by slice of 2 steps
  std::map<int64_t, std::pair<double, double>> by_sequence;  // signal and error of the output
  for (const auto& [key, codes] : sides.fixed.codes) {
    const auto& [layer, tensor, sequence, step] = key;
    const Grid& grid = model->parameters().layers[static_cast<size_t>(layer)].grids[static_cast<size_t>(tensor)];
    const GridHistogram& histogram = row_of(*found, layer, static_cast<GruTensor>(tensor)).values;
    std::vector<uint64_t>& counts = bins[{layer, tensor}];
    counts.resize(60);
    for (size_t i = 0; i < codes.size(); ++i) {
      const double a = static_cast<double>(sides.floats.values.at(key)[i]);
      const double b = static_cast<double>(dequantize_value(grid, codes[i]));
      const double at = a / static_cast<double>(grid.scale()) + static_cast<double>(grid.zero_point);
      const double bin = std::floor(60 * (at - histogram.low) / (histogram.high - histogram.low));
      ++counts[static_cast<size_t>(std::clamp(bin, 0.0, 59.0))];
      if (tensor >= kUIn && tensor <= kNIn) {
        codes_used[{layer, tensor}].resize(256);
        ++codes_used[{layer, tensor}][static_cast<size_t>((codes[i] - grid.min()) / 4)];
      }
      if (tensor == kH) slice_error[layer][step / 2] += (a - b) * (a - b);
      if (tensor != kH || layer < states - directions) continue;
      by_sequence[sequence].first += a * a;
      by_sequence[sequence].second += (a - b) * (a - b);
    }
  }

  double signal = 0, error = 0;
  for (const auto& [sequence, sums] : by_sequence) {
    signal += sums.first;
    error += sums.second;
    const double db = 10 * std::log10(sums.first / sums.second);
    EXPECT_NEAR(found->by_sequence[static_cast<size_t>(sequence)].sqnr_db, db, 1e-9);
    EXPECT_LE(found->by_sequence[static_cast<size_t>(found->worst_sequence)].sqnr_db, db + 1e-9);
  }
  EXPECT_NEAR(found->output_sqnr_db, 10 * std::log10(signal / error), 1e-9);
  EXPECT_NEAR(found->output_rms_error, std::sqrt(error / (431.0 * static_cast<double>(kHidden * directions))), 1e-12);
  ASSERT_EQ(found->by_sequence.size(), static_cast<size_t>(kBatch));
  EXPECT_EQ(found->by_sequence[1].steps, 3);
  for (size_t i = 0; i < found->tensors.size(); ++i) {
    const TensorComparison& row = found->tensors[i];
    const TensorComparison& same = threaded->tensors[i];
    EXPECT_EQ(row.sqnr_db, plain->tensors[i].sqnr_db) << "a profile changes nothing";
    EXPECT_TRUE(plain->tensors[i].values.counts.empty() && plain->tensors[i].over_time.slices.empty());
    EXPECT_EQ(row.values.counts, same.values.counts);
    EXPECT_EQ(row.codes, same.codes);
    uint64_t sum = 0, moved = 0;
    for (const uint64_t count : row.values.counts) sum += count;
    if (row.tensor == kBw || row.tensor == kBr) {
      EXPECT_EQ(sum, 0U);
      continue;
    }
    EXPECT_EQ(sum, row.count);
    if (row.tensor == kW || row.tensor == kR) continue;
    const std::vector<uint64_t>& expected = bins[{row.layer, row.tensor}];
    for (size_t bin = 0; bin < expected.size(); ++bin) {
      moved += std::max(row.values.counts[bin], expected[bin]) - std::min(row.values.counts[bin], expected[bin]);
    }
    EXPECT_LE(moved, 4U) << "values at the very edge of a bin";
    const auto used = codes_used.find({row.layer, row.tensor});
    EXPECT_EQ(row.codes, used == codes_used.end() ? std::vector<uint64_t>() : used->second);
    if (row.tensor != kH) continue;
    EXPECT_EQ(row.over_time.slice_steps, 2);
    ASSERT_EQ(row.over_time.slices.size(), 75U);
    for (const auto& [slice, sum_of_squares] : slice_error[row.layer]) {
      const ErrorOverTime::Slice& one = row.over_time.slices[static_cast<size_t>(slice)];
      EXPECT_NEAR(one.error, sum_of_squares, 1e-12);
      EXPECT_EQ(one.error, same.over_time.slices[static_cast<size_t>(slice)].error);
      EXPECT_LE(one.largest, row.largest_error);
    }
  }
  uint64_t inside = 0;
  const GridHistogram& W = row_of(*found, 0, kW).values;
  for (size_t bin = 6; bin < 54; ++bin) inside += W.counts[bin];
  EXPECT_EQ(inside, row_of(*found, 0, kW).count - row_of(*found, 0, kW).clipped) << "the margins are an eighth each";
  EXPECT_EQ(W.covered_low, -128);
  EXPECT_EQ(W.covered_high, 128);
}

TEST(ErrorOverTime, SlicesGrowWithTheSteps) {
  ErrorOverTime errors;
  for (int64_t step = 0; step < 1000; ++step) errors.add(step, {1, 2.0, static_cast<double>(step)});
  EXPECT_EQ(errors.slice_steps, 8);
  ASSERT_EQ(errors.slices.size(), 125U);
  EXPECT_EQ(errors.slices[3].count, 8U);
  EXPECT_EQ(errors.slices[3].error, 16.0);
  EXPECT_EQ(errors.slices[3].largest, 31.0);
  ErrorOverTime few;
  few.add(5, {3, 1.0, 2000.0});
  few.add(errors);  // the coarser one decides
  EXPECT_EQ(few.slice_steps, 8);
  EXPECT_EQ(few.slices[0].count, 11U);
  EXPECT_EQ(few.slices[0].error, 17.0);
  EXPECT_EQ(few.slices[0].largest, 2000.0);
  errors.add(few);
  EXPECT_EQ(errors.slices[124].count, 16U);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Comparison, ::testing::Values(Shape{1, 1}, Shape{2, 1}, Shape{1, 2}, Shape{2, 2}));

TEST(Clipped, IsNothingOnCalibrationData) {
  // Gates that saturate: their values lie beyond 255/256, and are on the grid all the same.
  GruWeights weights = random_weights(7, 4, 9, 2, 1, 6);
  for (float& w : weights.layers[0].W) w *= 8;
  const std::vector<float> x = random_data(8, 60, 5, 4);
  for (const ScaleKind scale : {ScaleKind::kPow2, ScaleKind::kReal}) {
    for (const std::string bits : {"8", "4", "16", "8,x=8:unsigned,h=8:symmetric"}) {
      const auto model = quantized(weights, x, 60, 5, bits, scale);
      ASSERT_TRUE(model.ok()) << model.status().message();
      const auto report = compare(weights, *model, sequences(x, 60, 5));
      ASSERT_TRUE(report.ok()) << report.status().message();
      for (const TensorComparison& row : report->tensors) {
        if (bits.size() > 2 && row.tensor == kX) continue;  // an unsigned grid has no place for what is below 0
        EXPECT_EQ(row.clipped, 0U) << bits << " " << row.layer << " " << kGruTensorNames[row.tensor];
      }
      std::vector<float> louder = x;
      for (float& value : louder) value *= 2;
      const auto clipped = compare(weights, *model, sequences(louder, 60, 5));
      ASSERT_TRUE(clipped.ok()) << clipped.status().message();
      EXPECT_GT(row_of(*clipped, 0, kX).clipped, 100U) << bits;
      for (const GruTensor gate : {kU, kRGate, kN}) EXPECT_EQ(row_of(*clipped, 0, gate).clipped, 0U) << bits;
    }
  }
}

TEST(WorstChannel, IsTheQuietOne) {
  const GruWeights weights = random_weights(9, 6, 8, 1, 1);
  std::vector<float> x = random_data(10, 80, 3, 6, 60);
  for (size_t i = 3; i < x.size(); i += 6) x[i] *= 0.01f;  // channel 3 is the quietest
  const auto model = quantized(weights, x, 80, 3, "8");
  ASSERT_TRUE(model.ok()) << model.status().message();
  const auto report = compare(weights, *model, sequences(x, 80, 3));
  ASSERT_TRUE(report.ok()) << report.status().message();
  const TensorComparison& row = row_of(*report, 0, kX);
  EXPECT_EQ(row.own_worst.channel, 3);
  EXPECT_LT(row.own_worst.sqnr_db, 1);
  EXPECT_GT(row.own_sqnr_db, 35);
  EXPECT_EQ(row.own_sqnr_db, row.sqnr_db);  // the first tensor inherits nothing
  const TensorComparison& n = row_of(*report, 0, kN);
  EXPECT_GT(n.own_sqnr_db, n.sqnr_db + 3);  // most of its error is inherited
}

/// x and h of a model of one layer, as a device shows them.
class FastSource : public GruCodeSource {
 public:
  explicit FastSource(const GruModel& model) : model_(model) {}
  Status start(std::span<const float> h0) override {
    state_ = model_.initial_state(1);
    if (h0.empty()) return {};
    ISOBIT_ASSIGN_OR_RETURN(state_, model_.state_from_float(h0, 1));
    return {};
  }
  Status run(const std::byte* x, int64_t steps, GruCodeObserver& observer) override {
    Workspace workspace = model_.workspace(1, steps);
    const auto bytes = [&](int64_t width, const Grid& grid) {
      return static_cast<size_t>(steps * width) * size_in_bytes(grid.dtype());
    };
    std::vector<std::byte> y(bytes(model_.output_size(), model_.output_grid()));
    ISOBIT_RETURN_IF_ERROR(
        model_.forward_codes({x, bytes(model_.input_size(), model_.input_grid())}, y, steps, state_, workspace));
    for (int64_t t = 0; t < steps; ++t) {
      for (const auto& [tensor, codes, grid, width] :
           {std::tuple(kX, x, model_.input_grid(), model_.input_size()),
            std::tuple(kH, static_cast<const std::byte*>(y.data()), model_.output_grid(), model_.output_size())}) {
        std::vector<int64_t> row;
        for (int64_t i = 0; i < width; ++i) row.push_back(load_code(codes, grid.dtype(), t * width + i));
        observer.observe(tensor, 0, 0, t, row);
      }
    }
    return {};
  }

 private:
  const GruModel& model_;
  GruState state_;
};

TEST(CodeSource, StandsForTheReference) {
  const GruWeights weights = random_weights(11, 4, 6, 1, 1);
  const std::vector<float> x = random_data(12, 90, 5, 4);
  const auto model = quantized(weights, x, 90, 5, "8");
  ASSERT_TRUE(model.ok()) << model.status().message();
  Random random(13);
  const std::vector<float> h0 = uniforms(random, 5 * 6, 0.5f);
  GruSequences data = sequences(x, 90, 5);
  data.h0 = h0;
  const auto wanted = compare(weights, *model, data);
  FastSource source(*model);
  ThreadPool pool(2);
  GruCompareOptions options;
  options.source = &source;
  options.pool = &pool;
  const auto report = compare(weights, *model, data, options);
  ASSERT_TRUE(wanted.ok() && report.ok());
  EXPECT_EQ(report->tensors.size(), 6U);  // x, h, and the weights
  for (const GruTensor tensor : {kX, kH}) {
    EXPECT_EQ(row_of(*report, 0, tensor).sqnr_db, row_of(*wanted, 0, tensor).sqnr_db);
    EXPECT_EQ(row_of(*report, 0, tensor).count, row_of(*wanted, 0, tensor).count);
  }
}

TEST(Comparison, Refuses) {
  const GruWeights weights = random_weights(14, 3, 4, 1, 1);
  std::vector<float> x = random_data(15, 10, 2, 3);
  const auto model = quantized(weights, x, 10, 2, "8");
  ASSERT_TRUE(model.ok()) << model.status().message();
  const auto refused = [](const Status& status, const std::string& words) {
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  };
  refused(GruComparison::create(random_weights(14, 3, 5, 1, 1), *model).status(), "differ in shape");
  GruCompareOptions options;
  options.part_codes = 0;
  refused(GruComparison::create(weights, *model, options).status(), "part_codes is 0");
  options = {};
  options.zoneout = 1.5f;
  refused(GruComparison::create(weights, *model, options).status(), "zoneout is 1.5");
  auto comparison = GruComparison::create(weights, *model);
  ASSERT_TRUE(comparison.ok());
  refused(comparison->finish().status(), "no time step");
  GruSequences data = sequences(x, 10, 3);
  refused(comparison->add(data), "x has 60 values, must have the shape [T, N, C] = [10, 3, 3]");
  data = sequences(x, 10, 2);
  const std::vector<int64_t> lengths = {10, 11};
  data.lengths = lengths;
  refused(comparison->add(data), "lengths[1] is 11");
  data.lengths = {};
  data.h0 = std::span<const float>(x).first(3);
  refused(comparison->add(data), "h0 has 3 values");
  data.h0 = {};
  x[(4 * 2 + 1) * 3 + 2] = std::numeric_limits<float>::quiet_NaN();
  refused(comparison->add(data), "x[4, 1, 2] is nan");
  auto validation = GruValidation::create(weights);
  ASSERT_TRUE(validation.ok());
  refused(validation->measure(*model).status(), "no time step");
}

// ---------------------------------------------------------------------------------------------------------------
// Outputs alone, and wider tensors

TEST(Validation, MeasuresWhatTheComparisonShows) {
  for (const int32_t directions : {1, 2}) {
    const GruWeights weights = random_weights(16, 4, 6, 2, directions);
    const std::vector<float> x = random_data(17, 50, 40, 4);
    const auto model = quantized(weights, x, 50, 40, "8");
    ASSERT_TRUE(model.ok()) << model.status().message();
    GruSequences data = sequences(x, 50, 40);
    std::vector<int64_t> lengths(40, 50);
    for (size_t n = 0; n < lengths.size(); n += 3) lengths[n] = static_cast<int64_t>(n);
    data.lengths = lengths;
    ThreadPool pool(2);
    GruCompareOptions compare_options;
    compare_options.zoneout = 0.1f;
    GruValidationOptions options;
    options.zoneout = 0.1f;
    options.pool = &pool;
    const auto report = compare(weights, *model, data, compare_options);
    auto validation = GruValidation::create(weights, options);
    ASSERT_TRUE(report.ok() && validation.ok());
    ASSERT_TRUE(validation->add(data).ok());
    const auto sqnr = validation->measure(*model);
    ASSERT_TRUE(sqnr.ok()) << sqnr.status().message();
    EXPECT_EQ(validation->steps(), report->steps);
    ASSERT_EQ(sqnr->layer_db.size(), 2U);
    EXPECT_EQ(sqnr->output_db, sqnr->layer_db[1]);
    if (directions == 2) continue;  // the comparison shows each direction by itself
    for (const size_t layer : {0, 1}) {
      EXPECT_NEAR(sqnr->layer_db[layer], row_of(*report, static_cast<int64_t>(layer), kH).sqnr_db, 1e-9);
    }
  }
}

TEST(Widen, CoversTheSameRangeAndLeavesTheRest) {
  const GruWeights weights = random_weights(18, 4, 6, 2, 2);
  const std::vector<float> x = random_data(19, 50, 4, 4);
  for (const ScaleKind scale : {ScaleKind::kPow2, ScaleKind::kReal}) {
    const auto model = quantized(weights, x, 50, 4, "8,n_in=12", scale);
    ASSERT_TRUE(model.ok()) << model.status().message();
    for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
      const std::vector<GruTensorSet> sets = {GruTensorSet{1} << tensor, 0};
      const auto wide = widen(weights, model->parameters(), sets);
      ASSERT_TRUE(wide.ok()) << wide.status().message();
      for (size_t i = 0; i < 4; ++i) {
        const GruLayerParameters &before = model->parameters().layers[i], &after = wide->layers[i];
        for (int32_t t = 0; t < kGruTensorCount; ++t) {
          const Grid &a = before.grids[static_cast<size_t>(t)], &b = after.grids[static_cast<size_t>(t)];
          const bool widened = (i < 2 && t == tensor) || (i >= 2 && t == kX && tensor == kH);
          if (!widened) {
            EXPECT_EQ(a, b);
            continue;
          }
          EXPECT_EQ(b.bits, 16);
          if (t >= kW && t <= kBr) continue;
          EXPECT_EQ(dequantize_value(b, b.min()), dequantize_value(a, a.min()));
          EXPECT_GE(dequantize_value(b, b.max()), dequantize_value(a, a.max()));
          EXPECT_LE(dequantize_value(b, b.max()), dequantize_value(a, a.max()) + a.scale());
        }
        EXPECT_EQ(before.W == after.W, !(i < 2 && tensor == kW));
        EXPECT_EQ(before.br == after.br, !(i < 2 && tensor == kBr));
      }
      EXPECT_TRUE(GruModel::create(*wide).ok());
    }
    const std::vector<GruTensorSet> x_above = {0, GruTensorSet{1} << kX};
    EXPECT_FALSE(widen(weights, model->parameters(), x_above).ok());
    EXPECT_FALSE(widen(weights, model->parameters(), std::vector<GruTensorSet>{0}).ok());
  }
}

TEST(Widen, NearlyDeadRowsToo) {
  GruWeights weights = random_weights(3, 4, 5, 1, 1);
  for (size_t k = 0; k < 4; ++k) weights.layers[0].W[7 * 4 + k] *= 1e-18f;
  const std::vector<float> x = random_data(4, 30, 2, 4);
  for (const ScaleKind scale : {ScaleKind::kPow2, ScaleKind::kReal}) {
    const Result<GruModel> model = quantized(weights, x, 30, 2, "8", scale);
    ASSERT_TRUE(model.ok()) << model.status().message();
    for (const GruTensor tensor : {kX, kH, kW, kR, kBw, kBr}) {
      const std::vector<GruTensorSet> sets = {GruTensorSet{1} << tensor};
      const auto wide = widen(weights, model->parameters(), sets);
      ASSERT_TRUE(wide.ok()) << wide.status().message();
      const Result<GruModel> made = GruModel::create(*wide);
      EXPECT_TRUE(made.ok()) << made.status().message();
    }
  }
}

TEST(BitsText, GivesTheWidthsBack) {
  const GruWeights weights = random_weights(20, 4, 5, 2, 1);
  const std::vector<float> x = random_data(21, 30, 2, 4);
  for (const std::string bits : {"8", "6,biases=4", "8,x=8:unsigned,linear=16,gate_in=12", "16,weights=8,r=8",
                                 "8,h=16,l1.ih=12,l1.gate_out=10"}) {
    const auto model = quantized(weights, x, 30, 2, bits);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(bits_text(model->parameters()), bits);
    GruModelParameters noted = model->parameters();
    noted.notes["bits"] = "2," + bits;  // as the user typed it
    EXPECT_EQ(bits_text(noted), "2," + bits);
    noted.notes["bits"] = "7";
    EXPECT_EQ(bits_text(noted), bits);
  }
}

/// Ablates on one part of the data, quantises anew with the SPEC of the advice, and measures on another part.
struct Advice {
  GruAblation ablation;
  double before_db = 0, after_db = 0;
};
Result<Advice> advice_for(const GruWeights& weights, float loud, const std::string& bits) {
  constexpr int64_t kSteps = 300, kBatch = 8;
  const int64_t channels = weights.input_size();
  const std::vector<float> x = random_data(30, kSteps, kBatch, channels, loud);
  const std::vector<float> other = random_data(31, kSteps, kBatch, channels, loud);
  ISOBIT_ASSIGN_OR_RETURN(const GruModel model, quantized(weights, x, kSteps, kBatch, bits));
  ISOBIT_ASSIGN_OR_RETURN(GruValidation seen, GruValidation::create(weights));
  ISOBIT_RETURN_IF_ERROR(seen.add(sequences(x, kSteps, kBatch)));
  Advice advice;
  ISOBIT_ASSIGN_OR_RETURN(advice.ablation, ablate(seen, model));
  ISOBIT_ASSIGN_OR_RETURN(GruValidation unseen, GruValidation::create(weights));
  ISOBIT_RETURN_IF_ERROR(unseen.add(sequences(other, kSteps, kBatch)));
  ISOBIT_ASSIGN_OR_RETURN(const GruOutputSqnr before, unseen.measure(model));
  advice.before_db = before.output_db;
  if (advice.ablation.advice < 0) return advice;
  const std::string& spec = advice.ablation.rows[static_cast<size_t>(advice.ablation.advice)].bits;
  ISOBIT_ASSIGN_OR_RETURN(const GruModel wide, quantized(weights, x, kSteps, kBatch, spec));
  ISOBIT_ASSIGN_OR_RETURN(const GruOutputSqnr after, unseen.measure(wide));
  advice.after_db = after.output_db;
  return advice;
}

const GruAblationRow* row_of(const GruAblation& ablation, const std::string& set) {
  for (const GruAblationRow& row : ablation.rows) {
    if (row.set == set) return &row;
  }
  return nullptr;
}

TEST(Ablation, NamesTheInputWithALoudChannel) {
  const auto advice = advice_for(random_weights(22, 16, 24, 1, 1), 60, "8,linear=16,gate_in=12");
  ASSERT_TRUE(advice.ok()) << advice.status().message();
  const GruAblation& ablation = advice->ablation;
  ASSERT_GE(ablation.advice, 0) << ablation.sentence;
  EXPECT_NE(ablation.rows[static_cast<size_t>(ablation.advice)].set.find("x=16"), std::string::npos)
      << ablation.sentence;
  EXPECT_GE(advice->after_db, 35) << ablation.sentence;
  EXPECT_LT(advice->before_db, 25) << ablation.sentence;
}

TEST(Ablation, FindsTensorsThatHelpTogetherOnly) {
  const auto advice = advice_for(random_weights(23, 16, 24, 2, 1, 5), 1, "8,linear=16,gate_in=12");
  ASSERT_TRUE(advice.ok()) << advice.status().message();
  const GruAblation& ablation = advice->ablation;
  const GruAblationRow *h = row_of(ablation, "h=16"), *u = row_of(ablation, "u=16"),
                       *both = row_of(ablation, "h=16,u=16");
  ASSERT_TRUE(h != nullptr && u != nullptr && both != nullptr);
  EXPECT_GT(both->gain_db, std::max(h->gain_db, 0.0) + std::max(u->gain_db, 0.0) + 5);
  ASSERT_GE(ablation.advice, 0) << ablation.sentence;
  const std::string& set = ablation.rows[static_cast<size_t>(ablation.advice)].set;
  EXPECT_NE(set.find("h=16"), std::string::npos) << ablation.sentence;
  EXPECT_TRUE(set.find("u=16") != std::string::npos || set.find("gate_out=16") != std::string::npos)
      << ablation.sentence;
  EXPECT_EQ(both->weight_bytes, 0);
  EXPECT_EQ(both->bits, "8,linear=16,gate_in=12,h=16,u=16");
  EXPECT_GE(advice->after_db, 35) << ablation.sentence;
  EXPECT_NE(ablation.sentence.find("--bits 8,linear=16,gate_in=12,"), std::string::npos) << ablation.sentence;
  for (size_t i = 1; i < ablation.rows.size(); ++i) EXPECT_GE(ablation.rows[i - 1].gain_db, ablation.rows[i].gain_db);
}

TEST(Ablation, SaysWhereNothingHasToBeWider) {
  const auto advice = advice_for(random_weights(24, 6, 8, 1, 2), 1, "16");
  ASSERT_TRUE(advice.ok()) << advice.status().message();
  EXPECT_EQ(advice->ablation.advice, -1);
  EXPECT_NE(advice->ablation.sentence.find("Nothing needs to be wider"), std::string::npos)
      << advice->ablation.sentence;
  EXPECT_TRUE(advice->ablation.rows.empty());
}

TEST(Ablation, EachTensorAlone) {
  const GruWeights weights = random_weights(25, 6, 8, 2, 1);
  const std::vector<float> x = random_data(26, 40, 4, 6);
  const auto model = quantized(weights, x, 40, 4, "16,W=3,l1.h=6");
  ASSERT_TRUE(model.ok()) << model.status().message();
  auto validation = GruValidation::create(weights);
  ASSERT_TRUE(validation.ok() && validation->add(sequences(x, 40, 4)).ok());
  const auto plain = ablate(*validation, *model), found = ablate(*validation, *model, {.alone = true});
  ASSERT_TRUE(plain.ok() && found.ok());
  EXPECT_TRUE(plain->alone.empty());
  EXPECT_EQ(plain->sentence, found->sentence);
  EXPECT_EQ(plain->rows.size(), found->rows.size());
  std::vector<std::pair<int64_t, GruTensor>> tensors;
  for (const GruTensorAlone& one : found->alone) {
    EXPECT_TRUE(one.refused.empty()) << one.refused;
    tensors.emplace_back(one.layer, one.tensor);
    // What a model of that width gives, the others having 16 bits over the same ranges.
    std::vector<GruTensorSet> sets(2, (GruTensorSet{1} << kGruTensorCount) - 1);
    sets[static_cast<size_t>(one.layer)] &= ~(GruTensorSet{1} << one.tensor);
    sets[1] &= ~(GruTensorSet{1} << kX);
    const auto wide = widen(weights, model->parameters(), sets);
    ASSERT_TRUE(wide.ok());
    const auto measured = validation->measure(*GruModel::create(*wide));
    ASSERT_TRUE(measured.ok());
    EXPECT_EQ(one.sqnr_db, measured->output_db);
  }
  EXPECT_EQ(tensors, (std::vector<std::pair<int64_t, GruTensor>>{{0, kW}, {1, kH}, {1, kW}}));
}

}  // namespace
}  // namespace isobit
