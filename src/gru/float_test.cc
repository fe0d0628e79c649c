// SPDX-License-Identifier: Apache-2.0
// The float forward against a plain one in double, and calibration's independence of order and threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "isobit/gru.h"

namespace isobit {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_values(std::mt19937& engine, int64_t count, float magnitude) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    // Not a std distribution: those differ between libraries.
    value = magnitude * (static_cast<float>(engine() >> 8) * 0x1p-23f - 1.0f);
  }
  return values;
}

GruWeights random_weights(uint32_t seed, int64_t C, int64_t H, int64_t layer_count, int32_t directions) {
  std::mt19937 engine(seed);
  GruWeights weights;
  weights.directions = directions;
  for (int64_t i = 0; i < layer_count * directions; ++i) {
    const int64_t inputs = i < directions ? C : H * directions;
    weights.layers.push_back({inputs, H, random_values(engine, 3 * H * inputs, 0.5f),
                              random_values(engine, 3 * H * H, 0.5f), random_values(engine, 3 * H, 0.3f),
                              random_values(engine, 3 * H, 0.3f)});
  }
  return weights;
}

/// One sequence in double, written from the equations alone: x [length, C] to y [length, directions * H].
std::vector<std::vector<double>> naive_forward(const GruWeights& weights, std::vector<std::vector<double>> x,
                                               const std::vector<std::vector<double>>& h0, double zoneout,
                                               std::vector<std::vector<double>>& h_last) {
  const auto H = static_cast<size_t>(weights.hidden_size());
  const auto D = static_cast<size_t>(weights.directions);
  h_last = h0;
  for (size_t l = 0; l < weights.layers.size() / D; ++l) {
    std::vector<std::vector<double>> y(x.size(), std::vector<double>(D * H));
    for (size_t d = 0; d < D; ++d) {
      const GruLayerWeights& w = weights.layers[l * D + d];
      std::vector<double>& h = h_last[l * D + d];
      for (size_t j = 0; j < x.size(); ++j) {
        const size_t t = d == 0 ? j : x.size() - 1 - j;
        const auto dot = [](const std::vector<float>& matrix, size_t row, const std::vector<double>& v) {
          double sum = 0;
          for (size_t k = 0; k < v.size(); ++k) sum += static_cast<double>(matrix[row * v.size() + k]) * v[k];
          return sum;
        };
        const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
        std::vector<double> next(H);
        for (size_t c = 0; c < H; ++c) {
          const auto ih = [&](size_t gate) {
            return dot(w.W, gate * H + c, x[t]) + static_cast<double>(w.bw[gate * H + c]);
          };
          const auto hh = [&](size_t gate) {
            return dot(w.R, gate * H + c, h) + static_cast<double>(w.br[gate * H + c]);
          };
          const double u = sigmoid(ih(0) + hh(0));
          const double r = sigmoid(ih(1) + hh(1));
          const double n = std::tanh(ih(2) + r * hh(2));
          next[c] = zoneout * h[c] + (1 - zoneout) * (u * h[c] + (1 - u) * n);
        }
        h = next;
        for (size_t c = 0; c < H; ++c) y[t][d * H + c] = h[c];
      }
    }
    x = y;
  }
  return x;
}

struct Case {
  GruWeights weights;
  int64_t T, N;
  std::vector<float> x, h0;
  std::vector<int64_t> lengths;

  Case(uint32_t seed, int64_t C, int64_t H, int64_t layers, int32_t directions, int64_t steps, int64_t batch)
      : weights(random_weights(seed, C, H, layers, directions)), T(steps), N(batch) {
    std::mt19937 engine(seed + 1);
    x = random_values(engine, T * N * C, 1.0f);
    h0 = random_values(engine, layers * directions * N * H, 0.8f);
    for (int64_t n = 0; n < N; ++n) lengths.push_back(static_cast<int64_t>(engine() % static_cast<uint32_t>(T + 1)));
    if (N > 1) lengths[1] = 0;
    lengths[0] = T;
  }

  struct Output {
    std::vector<float> y, h_last;
    bool operator==(const Output&) const = default;
  };
  [[nodiscard]] Output forward(bool with_lengths = true, bool with_h0 = true, float zoneout = 0,
                               GruObserver* observer = nullptr) const {
    Output out;
    out.y.assign(static_cast<size_t>(T * N * weights.output_size()), kNan);
    out.h_last.assign(h0.size(), kNan);
    GruFloatArguments arguments;
    arguments.steps = T;
    arguments.batch = N;
    arguments.x = x;
    arguments.y = out.y;
    if (with_lengths) arguments.lengths = lengths;
    if (with_h0) arguments.h0 = h0;
    arguments.h_last = out.h_last;
    arguments.zoneout = zoneout;
    const Status status = gru_forward_float(weights, arguments, observer);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
  /// Sequences `order` of this case as a batch of their own.
  [[nodiscard]] Case subset(const std::vector<int64_t>& order) const {
    Case other = *this;
    other.N = static_cast<int64_t>(order.size());
    const auto pick = [&](const std::vector<float>& from, int64_t outer, int64_t width) {
      std::vector<float> to;
      for (int64_t o = 0; o < outer; ++o) {
        for (const int64_t n : order) {
          to.insert(to.end(), from.begin() + (o * N + n) * width, from.begin() + (o * N + n + 1) * width);
        }
      }
      return to;
    };
    other.x = pick(x, T, weights.input_size());
    other.h0 = pick(h0, static_cast<int64_t>(weights.layers.size()), weights.hidden_size());
    other.lengths.clear();
    for (const int64_t n : order) other.lengths.push_back(lengths[static_cast<size_t>(n)]);
    return other;
  }
};

TEST(FloatForward, EqualsPlainDouble) {
  for (const int32_t directions : {1, 2}) {
    for (const int64_t layers : {1, 3}) {
      for (const float zoneout : {0.0f, 0.25f}) {
        const Case c(static_cast<uint32_t>(10 * layers + directions), 5, 11, layers, directions, 9, 6);
        const Case::Output out = c.forward(true, true, zoneout);
        const auto H = static_cast<size_t>(c.weights.hidden_size());
        const auto width = static_cast<size_t>(c.weights.output_size());
        const auto N = static_cast<size_t>(c.N);
        for (size_t n = 0; n < N; ++n) {
          std::vector<std::vector<double>> x(static_cast<size_t>(c.lengths[n]));
          for (size_t t = 0; t < x.size(); ++t) {
            const auto from = c.x.begin() + static_cast<std::ptrdiff_t>((t * N + n) * 5);
            x[t].assign(from, from + 5);
          }
          std::vector<std::vector<double>> h0(c.weights.layers.size());
          for (size_t i = 0; i < h0.size(); ++i) {
            const auto from = c.h0.begin() + static_cast<std::ptrdiff_t>((i * N + n) * H);
            h0[i].assign(from, from + static_cast<std::ptrdiff_t>(H));
          }
          std::vector<std::vector<double>> h_last;
          const auto y = naive_forward(c.weights, x, h0, static_cast<double>(zoneout), h_last);
          for (size_t t = 0; t < static_cast<size_t>(c.T); ++t) {
            for (size_t k = 0; k < width; ++k) {
              const float got = out.y[(t * N + n) * width + k];
              if (t < y.size()) {
                ASSERT_NEAR(static_cast<double>(got), y[t][k], 1e-5);
              } else {
                ASSERT_EQ(got, 0.0f);
              }
            }
          }
          for (size_t i = 0; i < h_last.size(); ++i) {
            for (size_t k = 0; k < H; ++k) {
              const float got = out.h_last[(i * N + n) * H + k];
              ASSERT_NEAR(static_cast<double>(got), h_last[i][k], 1e-5);
              if (x.empty()) {
                ASSERT_EQ(got, c.h0[(i * N + n) * H + k]);
              }
            }
          }
        }
      }
    }
  }
}

TEST(FloatForward, DoesNotDependOnTheBatch) {
  const Case c(5, 7, 13, 2, 2, 8, 37);
  const Case::Output all = c.forward();
  const int64_t width = c.weights.output_size();
  const int64_t H = c.weights.hidden_size();
  for (int64_t n = 0; n < c.N; ++n) {
    const Case::Output alone = c.subset({n}).forward();
    for (int64_t t = 0; t < c.T; ++t) {
      for (int64_t k = 0; k < width; ++k) {
        ASSERT_EQ(alone.y[static_cast<size_t>(t * width + k)], all.y[static_cast<size_t>((t * c.N + n) * width + k)]);
      }
    }
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t k = 0; k < H; ++k) {
        ASSERT_EQ(alone.h_last[static_cast<size_t>(i * H + k)], all.h_last[static_cast<size_t>((i * c.N + n) * H + k)]);
      }
    }
  }
}

TEST(FloatForward, DefaultsAreZeroStateAndFullLength) {
  Case c(6, 4, 3, 2, 2, 5, 3);
  const Case::Output out = c.forward(false, false);
  c.lengths.assign(3, 5);
  c.h0.assign(c.h0.size(), 0.0f);
  EXPECT_EQ(c.forward(), out);
}

TEST(FloatForward, ContinuesFromItsState) {
  // Also with h_last in the place of h0.
  const Case c(7, 4, 6, 2, 1, 10, 5);
  const Case::Output whole = c.forward(false, true);
  std::vector<float> state = c.h0;
  std::vector<float> y(whole.y.size());
  for (const auto& [begin, steps] : {std::pair<int64_t, int64_t>{0, 4}, {4, 6}}) {
    GruFloatArguments arguments;
    arguments.steps = steps;
    arguments.batch = c.N;
    arguments.x = std::span(c.x).subspan(static_cast<size_t>(begin * c.N * 4), static_cast<size_t>(steps * c.N * 4));
    arguments.y = std::span(y).subspan(static_cast<size_t>(begin * c.N * 6), static_cast<size_t>(steps * c.N * 6));
    arguments.h0 = state;
    arguments.h_last = state;
    ASSERT_TRUE(gru_forward_float(c.weights, arguments).ok());
  }
  EXPECT_EQ(y, whole.y);
  EXPECT_EQ(state, whole.h_last);
}

TEST(FloatForward, ObserverSeesValidStepsInTimeOrder) {
  const Case c(8, 5, 3, 1, 2, 6, 4);
  struct Recorder : GruObserver {
    std::map<std::array<int64_t, 3>, std::vector<int64_t>> steps;  // of tensor, layer and sequence
    std::map<std::array<int64_t, 4>, std::vector<float>> values;
    void observe(int32_t tensor, int64_t layer, int64_t sequence, int64_t step, std::span<const float> v) override {
      steps[{tensor, layer, sequence}].push_back(step);
      values[{tensor, layer, sequence, step}].assign(v.begin(), v.end());
    }
  } recorder;
  const Case::Output out = c.forward(true, true, 0, &recorder);
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (int64_t n = 0; n < c.N; ++n) {
      const int64_t length = c.lengths[static_cast<size_t>(n)];
      std::vector<int64_t> expected;
      for (int64_t j = 0; j < length; ++j) expected.push_back(layer == 0 ? j : length - 1 - j);
      for (int64_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
        const bool is_shown = tensor < kW || tensor > kBr;
        const auto seen = recorder.steps[{tensor, layer, n}];
        EXPECT_EQ(seen, is_shown ? expected : std::vector<int64_t>()) << kGruTensorNames[static_cast<size_t>(tensor)];
      }
      for (const int64_t t : expected) {
        const auto of = [&](int64_t tensor) { return recorder.values[{tensor, layer, n, t}]; };
        EXPECT_EQ(of(kX).size(), 5U);
        EXPECT_EQ(of(kX)[2], c.x[static_cast<size_t>((t * c.N + n) * 5 + 2)]);
        ASSERT_EQ(of(kIh).size(), 9U);
        ASSERT_EQ(of(kHh).size(), 9U);
        for (size_t k = 0; k < 3; ++k) {
          EXPECT_EQ(of(kUIn)[k], of(kIh)[k] + of(kHh)[k]);
          EXPECT_EQ(of(kRIn)[k], of(kIh)[3 + k] + of(kHh)[3 + k]);
          EXPECT_NEAR(of(kNIn)[k], of(kIh)[6 + k] + of(kRGate)[k] * of(kHh)[6 + k], 1e-6f);
          EXPECT_NEAR(of(kU)[k], 1 / (1 + std::exp(-of(kUIn)[k])), 1e-6f);
          EXPECT_NEAR(of(kN)[k], std::tanh(of(kNIn)[k]), 1e-6f);
          EXPECT_EQ(of(kH)[k], out.y[static_cast<size_t>((t * c.N + n) * 6 + layer * 3) + k]);
        }
      }
    }
  }
}

TEST(FloatForward, Refusals) {
  const Case c(9, 2, 3, 1, 1, 4, 2);
  std::vector<float> buffer(100);
  const auto message = [&](const auto& change) {
    GruFloatArguments arguments;
    arguments.steps = 4;
    arguments.batch = 2;
    arguments.x = c.x;
    change(arguments);
    const Status status = gru_forward_float(c.weights, arguments);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument);
    return status.message();
  };
  using A = GruFloatArguments;
  EXPECT_EQ(message([](A&) {}), "");
  EXPECT_EQ(message([](A& a) { a.steps = -1; }), "steps -1 and batch 2 must be at least 0");
  EXPECT_EQ(message([](A& a) { a.batch = 3; }), "x has 16 values, must have the shape [T, N, C] = [4, 3, 2]");
  EXPECT_NE(message([](A& a) { a.steps = a.batch = int64_t{1} << 40; }), "");
  EXPECT_NE(message([&](A& a) { a.y = std::span(buffer).first(23); }).find("y has 23"), std::string::npos);
  EXPECT_NE(message([&](A& a) { a.h0 = std::span(buffer).first(5); }).find("h0 has 5"), std::string::npos);
  EXPECT_NE(message([&](A& a) { a.h_last = std::span(buffer).first(7); }).find("h_last has 7"), std::string::npos);
  const std::vector<int64_t> lengths{4, 5};
  EXPECT_EQ(message([&](A& a) { a.lengths = lengths; }), "lengths[1] is 5, must be 0 to 4");
  EXPECT_NE(message([&](A& a) { a.lengths = std::span(lengths).first(1); }).find("lengths has 1"), std::string::npos);
  EXPECT_EQ(message([](A& a) { a.zoneout = 1.5f; }), "zoneout is 1.5, must be 0 to 1");
  EXPECT_NE(message([](A& a) { a.zoneout = kNan; }), "");
  std::vector<float> x = c.x;
  x[13] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(message([&](A& a) { a.x = x; }), "x[3, 0, 1] is inf, must be finite");
  std::vector<float> h0(6);
  h0[4] = kNan;
  EXPECT_EQ(message([&](A& a) { a.h0 = h0; }), "h0[0, 1, 1] is nan, must be finite");
}

// ---------------------------------------------------------------------------------------------------------------
// Calibration

GruCalibrator calibrator_of(const GruWeights& weights, double ema_decay = 0.9) {
  Result<GruCalibrator> calibrator = GruCalibrator::create(weights, ema_decay);
  EXPECT_TRUE(calibrator.ok());
  return *std::move(calibrator);
}

void observe(GruCalibrator& calibrator, const Case& c, ThreadPool* pool = nullptr) {
  const Status status = calibrator.observe(c.x, c.T, c.N, c.lengths, c.h0, pool);
  EXPECT_TRUE(status.ok()) << status.message();
}

void expect_equal(const GruCalibrator& a, const GruCalibrator& b) {
  for (int64_t layer = 0; layer < static_cast<int64_t>(a.weights().layers.size()); ++layer) {
    for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
      EXPECT_TRUE(a.statistics(layer, GruTensor{tensor}) == b.statistics(layer, GruTensor{tensor}))
          << layer << " " << kGruTensorNames[static_cast<size_t>(tensor)];
    }
  }
}

TEST(Calibrator, DoesNotDependOnThreadsOrderOrPartition) {
  const Case c(20, 6, 10, 2, 2, 7, 41);
  GruCalibrator expected = calibrator_of(c.weights);
  observe(expected, c);
  for (const int threads : {1, 2, 5, 60}) {
    ThreadPool pool(threads);
    GruCalibrator calibrator = calibrator_of(c.weights);
    observe(calibrator, c, &pool);
    expect_equal(calibrator, expected);
  }
  std::vector<int64_t> reversed;
  std::vector<int64_t> even;
  std::vector<int64_t> odd;
  for (int64_t n = c.N; n-- > 0;) {
    reversed.push_back(n);
    (n % 2 == 0 ? even : odd).push_back(n);
  }
  GruCalibrator other_order = calibrator_of(c.weights);
  observe(other_order, c.subset(reversed));
  expect_equal(other_order, expected);
  GruCalibrator first = calibrator_of(c.weights);
  observe(first, c.subset(even));
  GruCalibrator second = calibrator_of(c.weights);
  observe(second, c.subset(odd));
  GruCalibrator merged = second;
  ASSERT_TRUE(merged.merge(first).ok());
  expect_equal(merged, expected);
  ASSERT_TRUE(first.merge(second).ok());
  expect_equal(first, expected);
  observe(second, c.subset(even));
  expect_equal(second, expected);
}

TEST(Calibrator, CountsAndRanges) {
  const Case c(21, 3, 4, 1, 2, 5, 3);
  int64_t steps = 0;
  for (const int64_t length : c.lengths) steps += length;
  GruCalibrator calibrator = calibrator_of(c.weights, 0.5);
  EXPECT_EQ(calibrator.statistics(0, kX).count(), 0U);
  ASSERT_TRUE(calibrator.observe(c.x, c.T, c.N, c.lengths).ok());
  const auto count = [&](GruTensor tensor) { return static_cast<int64_t>(calibrator.statistics(1, tensor).count()); };
  EXPECT_EQ(count(kX), 3 * steps);
  EXPECT_EQ(count(kIh), 12 * steps);
  EXPECT_EQ(count(kHh), 12 * steps);
  for (const GruTensor tensor : {kH, kUIn, kRIn, kNIn}) EXPECT_EQ(count(tensor), 4 * steps);
  for (const GruTensor tensor : {kW, kR, kBw, kBr, kU, kRGate, kN}) EXPECT_EQ(count(tensor), 0);

  // The EMA runs in the direction's own order, from its first step.
  for (int64_t d = 0; d < 2; ++d) {
    double low = 1e9;
    for (int64_t n = 0; n < c.N; ++n) {
      const int64_t length = c.lengths[static_cast<size_t>(n)];
      double ema = 0;
      for (int64_t j = 0; j < length; ++j) {
        const int64_t t = d == 0 ? j : length - 1 - j;
        const auto from = c.x.begin() + (t * c.N + n) * 3;
        const auto step = static_cast<double>(*std::min_element(from, from + 3));
        ema = j == 0 ? step : 0.5 * ema + 0.5 * step;
      }
      if (length > 0) low = std::min(low, ema);
    }
    EXPECT_EQ(calibrator.statistics(d, kX).ema_range()->first, low);
  }

  // A given state is a value of h, but no step of the EMA.
  GruCalibrator with_state = calibrator_of(c.weights, 0.5);
  std::vector<float> h0(c.h0.size());
  ASSERT_TRUE(with_state.observe(c.x, c.T, c.N, c.lengths, h0).ok());
  EXPECT_EQ(with_state.statistics(1, kH).count(), calibrator.statistics(1, kH).count() + 12);
  EXPECT_EQ(with_state.statistics(1, kH).ema_range(), calibrator.statistics(1, kH).ema_range());
}

TEST(Calibrator, ErrorsChangeNothing) {
  const Case c(22, 3, 4, 1, 1, 5, 20);
  GruCalibrator calibrator = calibrator_of(c.weights);
  observe(calibrator, c);
  const GruCalibrator before = calibrator;
  Case bad = c;
  bad.x[static_cast<size_t>((2 * c.N + 19) * 3 + 1)] = kNan;
  EXPECT_EQ(calibrator.observe(bad.x, c.T, c.N).message(), "x[2, 19, 1] is nan, must be finite");
  expect_equal(calibrator, before);
  EXPECT_FALSE(calibrator.observe(c.x, c.T, c.N + 1).ok());
  expect_equal(calibrator, before);

  GruWeights huge = c.weights;
  for (float& value : huge.layers[0].W) value *= 1e38f;
  GruCalibrator overflowing = calibrator_of(huge);
  const GruCalibrator empty = overflowing;
  std::vector<float> x = c.x;
  for (float& value : x) value *= 100;
  const Status status = overflowing.observe(x, c.T, c.N);
  EXPECT_NE(status.message().find("exceeds float32"), std::string::npos) << status.message();
  expect_equal(overflowing, empty);

  EXPECT_FALSE(calibrator.merge(calibrator_of(random_weights(1, 3, 4, 1, 1))).ok());
  EXPECT_FALSE(calibrator.merge(calibrator_of(random_weights(22, 3, 4, 2, 1))).ok());
  EXPECT_FALSE(calibrator.merge(calibrator_of(c.weights, 0.8)).ok());
  GruWeights other_source = c.weights;
  other_source.source_hash = "1";
  EXPECT_FALSE(calibrator.merge(calibrator_of(other_source)).ok());
  expect_equal(calibrator, before);

  EXPECT_FALSE(GruCalibrator::create(c.weights, 1.0).ok());
  EXPECT_FALSE(GruCalibrator::create(c.weights, std::nan("")).ok());
  GruWeights short_weights = c.weights;
  short_weights.layers[0].R.pop_back();
  EXPECT_FALSE(GruCalibrator::create(short_weights).ok());
}

}  // namespace
}  // namespace isobit
