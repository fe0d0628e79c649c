// SPDX-License-Identifier: Apache-2.0
// Gradients of learned grids: the same on every path, and those of a smooth function.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <numbers>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "gru/random_model.h"
#include "isobit/cpu.h"
#include "isobit/gru.h"
#include "isobit/gru_qat.h"
#include "testing/sanitized.h"

namespace isobit {
namespace {

/// A forward's arguments.
struct Call {
  int64_t steps, batch;
  std::vector<float> x, first, dy;
  std::vector<int64_t> lengths;
  std::vector<uint8_t> mask;

  Call(Random& random, const GruModel& model) : steps(random.between(1, 6)), batch(random.between(1, 4)) {
    const int64_t directions = model.parameters().directions, states = model.layer_count() * directions;
    x = random_floats(random, model.input_grid(), steps * batch * model.input_size());
    if (random.one_in(2))
      first = random_floats(random, model.parameters().layers[0].grids[kH], states * batch * model.hidden_size());
    if (random.one_in(2))
      for (int64_t n = 0; n < batch; ++n) lengths.push_back(random.between(0, steps));
    if (model.layer_count() == 1 && random.one_in(3))
      for (int64_t k = 0; k < steps * batch * model.output_size(); ++k)
        mask.push_back(static_cast<uint8_t>(random.between(0, 2) > 0));
    dy.resize(static_cast<size_t>(steps * batch * model.output_size()));
    for (float& d : dy) d = static_cast<float>(random.between(-100, 100)) / 64;
  }
  [[nodiscard]] Result<GruQatRun> forward(const GruModel& model, std::span<float> y, CpuPath path, bool learn_grids,
                                          ThreadPool* pool = nullptr) const {
    return GruQatRun::forward(model, x, steps, batch, y, {.first = first},
                              {.path = path, .pool = pool, .lengths = lengths, .zoneout_mask = mask},
                              {.learn_grids = learn_grids});
  }
};

/// Of a backward, those of weights in the order W, R, bw, br of each direction, then dx.
struct Gradients {
  std::vector<std::vector<float>> of_weights;
  std::vector<GruGridGradients> grids;

  Gradients(const GruQatRun& run, const Call& call, bool wants_dx, bool wants_grids, ThreadPool* pool = nullptr) {
    const GruTrainingSizes& s = run.sizes();
    const int64_t H = s.hidden_size;
    for (int64_t i = 0; i < s.layers * s.directions; ++i) {
      const int64_t inputs = i < s.directions ? s.input_size : s.directions * H;
      for (const int64_t count : {3 * H * inputs, 3 * H * H, 3 * H, 3 * H}) of_weights.emplace_back(count);
    }
    of_weights.emplace_back(wants_dx ? call.x.size() : 0);
    std::vector<GruTrainingGradients> into;
    for (size_t i = 0; i + 1 < of_weights.size(); i += 4)
      into.push_back({of_weights[i], of_weights[i + 1], of_weights[i + 2], of_weights[i + 3]});
    if (wants_grids) grids.resize(into.size());
    const Status done = run.backward(call.dy, of_weights.back(), into, {}, pool, grids);
    EXPECT_TRUE(done.ok()) << done.message();
  }
};

TEST(GruGrids, AreTheSameOnEveryPathAndForAnyNumberOfThreads) {
  Random random(30);
  int models = 0;
  for (int i = 0; i < (testing::kSanitized ? 6 : 40) && !::testing::Test::HasFailure(); ++i) {
    RandomShape shape = random_shape(random);
    shape.input = std::min<int64_t>(shape.input, 20);
    shape.hidden = std::min<int64_t>(shape.hidden, 90);
    if (i % 8 == 7) shape.x_bits = 20;  // more than packed kernels take
    const Result<GruModel> model = random_model(random, shape);
    if (!model.ok() && model.status().code() == StatusCode::kOverflow) continue;
    ASSERT_TRUE(model.ok()) << model.status().message();
    const Call call(random, *model);
    std::vector<float> y(call.dy.size()), wanted_y(y.size());
    std::vector<GruGridGradients> wanted;
    for (const CpuPath path : {CpuPath::kReference, CpuPath::kScalar, CpuPath::kAvx2, CpuPath::kAvx512Vnni}) {
      if (!cpu_can_run(path)) continue;
      const Result<GruQatRun> plain = call.forward(*model, wanted_y, path, false);
      ASSERT_TRUE(plain.ok()) << plain.status().message();
      const Gradients without(*plain, call, true, false);
      for (const int threads : {1, 2, 7}) {
        SCOPED_TRACE(std::string(to_string(path)) + ", " + std::to_string(threads) + " threads");
        ThreadPool pool(threads);
        const Result<GruQatRun> run = call.forward(*model, y, path, true, &pool);
        ASSERT_TRUE(run.ok()) << run.status().message();
        EXPECT_EQ(y, wanted_y);
        const Gradients found(*run, call, true, true, &pool);
        EXPECT_EQ(found.of_weights, without.of_weights);
        if (wanted.empty()) wanted = found.grids;
        EXPECT_EQ(found.grids, wanted);
        EXPECT_EQ(Gradients(*run, call, false, true, &pool).grids, wanted);
      }
    }
    ++models;
  }
  EXPECT_GT(models, 4);
}

/// The GRU of power-of-two grids in float64. The first run rounds and clamps; the following ones go straight through:
/// they add what the first one's roundings added, in steps, stay on the ends where it clamped, and take tables as the
/// lines through the first one's points whose slopes are those of the output codes.
class StraightThrough {
 public:
  StraightThrough(const GruModel& model, const Call& call) : model_(model), call_(call) {}

  /// By tensor of a direction: factors of steps, and what is added to the ends of a range.
  struct Change {
    double step = 1, low = 0, high = 0;
  };
  std::map<std::pair<int64_t, GruTensor>, Change> changes;

  /// y [T, N, directions * H].
  std::vector<double> run() {
    at_ = 0;
    const GruModelParameters& p = model_.parameters();
    const int64_t rows = call_.steps * call_.batch, directions = p.directions, H = model_.hidden_size();
    std::vector<double> in(call_.x.begin(), call_.x.end());
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t k = 0; k < model_.input_size(); ++k) {
        double& v = in[static_cast<size_t>(row * model_.input_size() + k)];
        if (row / call_.batch < length(row % call_.batch)) v = clamp(0, kX, v, v, 0);
      }
    for (int64_t layer = 0; layer < model_.layer_count(); ++layer) {
      std::vector<double> out(static_cast<size_t>(rows * directions * H));
      for (int64_t d = 0; d < directions; ++d) direction(layer * directions + d, d == 1, in, out);
      in = out;
    }
    recording_ = false;
    return in;
  }

 private:
  [[nodiscard]] int64_t length(int64_t n) const {
    return call_.lengths.empty() ? call_.steps : call_.lengths[static_cast<size_t>(n)];
  }
  double& number() {
    if (recording_) numbers_.push_back(0);
    return numbers_[at_++];
  }
  /// The clamp of what has been rounded from `a` and `b`, `v` their sum.
  double clamp(int64_t layer, GruTensor tensor, double v, double a, double b) {
    const Grid& grid = model_.parameters().layers[static_cast<size_t>(layer)].grids[tensor];
    const auto found = changes.find({layer, tensor});
    const Change change = found == changes.end() ? Change{} : found->second;
    const double base = std::ldexp(1.0, -grid.shift), step = base * change.step;
    const auto low = static_cast<double>(grid.min() - grid.zero_point);
    const auto high = static_cast<double>(grid.max() - grid.zero_point);
    double &side = number(), &rest = number();
    if (recording_) {
      const double code = std::nearbyint(a / base) + std::nearbyint(b / base);
      side = code < low ? -1 : code > high ? 1 : 0;
      rest = code - v / base;
      ++sides[static_cast<size_t>(side + 1)];
    }
    if (side < 0) return low * step + change.low;
    if (side > 0) return high * step + change.high;
    return v + rest * step;
  }
  /// A table from the code of `v`.
  double look_up(const ActivationTable& table, double v) {
    double &from = number(), &to = number();
    if (recording_) {
      from = v;
      const auto code = static_cast<int64_t>(std::ldexp(v, table.input.shift)) + table.input.zero_point;
      to = std::ldexp(static_cast<double>(table(code) - table.output.zero_point), -table.output.shift);
    }
    const double slope = table.function == Activation::kTanh ? 1 - to * to : to * (1 - to);
    return to + slope * (v - from);
  }
  /// What is rounded to steps, and is not learned.
  double rounded(double v, double step) {
    double& added = number();
    if (recording_) added = std::nearbyint(v / step) * step - v;
    return v + added;
  }
  static double linear(const CodeMatrix& weights, const std::vector<Grid>& grids, const CodeMatrix& bias,
                       const std::vector<Grid>& bias_grids, const Grid& input, int64_t c, const double* v) {
    const auto row = static_cast<size_t>(c);
    const double step = std::ldexp(1.0, -grids[row].shift - input.shift);
    double sum = std::nearbyint(std::ldexp(static_cast<double>(bias.at(c, 0)), -bias_grids[row].shift) / step) * step;
    for (int64_t k = 0; k < weights.columns(); ++k)
      sum += std::ldexp(static_cast<double>(weights.at(c, k)), -grids[row].shift) * v[k];
    return sum;
  }
  void direction(int64_t index, bool reverse, const std::vector<double>& in, std::vector<double>& out) {
    const GruLayerParameters& p = model_.parameters().layers[static_cast<size_t>(index)];
    const int64_t H = p.hidden_size, N = call_.batch, width = model_.output_size();
    const double h_step = std::ldexp(1.0, -p.grids[kH].shift);
    for (int64_t n = 0; n < N; ++n) {
      std::vector<double> h(static_cast<size_t>(H));
      for (int64_t j = 0; j < H && !call_.first.empty(); ++j)
        h[static_cast<size_t>(j)] = static_cast<double>(dequantize_value(
            p.grids[kH], quantize_value(p.grids[kH], call_.first[static_cast<size_t>((index * N + n) * H + j)])));
      for (int64_t i = 0; i < call_.steps; ++i) {
        const int64_t t = reverse ? call_.steps - 1 - i : i, row = t * N + n;
        if (t >= length(n)) continue;
        double* const y = out.data() + row * width + (reverse ? H : 0);
        const auto offset = static_cast<size_t>(row * width + (reverse ? H : 0));
        for (int64_t j = 0; j < H; ++j) {
          double ih[3], hh[3];
          for (int64_t gate = 0; gate < 3; ++gate) {
            const int64_t c = gate * H + j;
            const double x = linear(p.W, p.W_grid, p.bw, p.bw_grid, p.grids[kX], c, in.data() + row * p.input_size);
            const double r = linear(p.R, p.R_grid, p.br, p.br_grid, p.grids[kH], c, h.data());
            ih[gate] = clamp(index, kIh, x, x, 0);
            hh[gate] = clamp(index, kHh, r, r, 0);
          }
          const double u = look_up(p.tables[0], clamp(index, kUIn, ih[0] + hh[0], ih[0], hh[0]));
          const double r = look_up(p.tables[1], clamp(index, kRIn, ih[1] + hh[1], ih[1], hh[1]));
          const double q = r * hh[2], before = h[static_cast<size_t>(j)];
          const double tanh = rounded(look_up(p.tables[2], clamp(index, kNIn, ih[2] + q, ih[2], q)), h_step);
          const double mixed = u * before + (1 - u) * tanh;
          if (!call_.mask.empty() && call_.mask[offset + static_cast<size_t>(j)] == 0) {
            y[j] = before;
          } else {
            y[j] = clamp(index, kH, mixed, mixed, 0);
          }
        }
        std::copy_n(y, H, h.begin());
      }
    }
  }

  const GruModel& model_;
  const Call& call_;
  bool recording_ = true;
  std::deque<double> numbers_;  // what the first run keeps; references stay
  size_t at_ = 0;

 public:
  int64_t sides[3] = {};  // clamps below, in, above
};

TEST(GruGrids, GradientsAreThoseOfRangesAndStepsStraightThrough) {
  Random random(31);
  int64_t compared = 0, sides[3] = {};
  double worst = 0;
  for (int i = 0; i < (testing::kSanitized ? 4 : 30) && !::testing::Test::HasFailure(); ++i) {
    RandomShape shape;
    shape.input = random.between(1, 4);
    shape.hidden = random.between(1, 5);
    shape.layers = static_cast<int32_t>(random.between(1, 2));
    shape.directions = static_cast<int32_t>(random.between(1, 2));
    shape.linear_bits = 6;
    const Result<GruModel> model = random_model(random, shape);
    ASSERT_TRUE(model.ok()) << model.status().message();
    const Call call(random, *model);
    std::vector<float> y(call.dy.size());
    const Result<GruQatRun> run = call.forward(*model, y, CpuPath::kReference, true);
    ASSERT_TRUE(run.ok()) << run.status().message();
    const std::vector<GruGridGradients> found = Gradients(*run, call, false, true).grids;

    StraightThrough twin(*model, call);
    const std::vector<double> wanted_y = twin.run();
    for (size_t k = 0; k < y.size(); ++k) ASSERT_EQ(static_cast<double>(y[k]), wanted_y[k]) << "case " << i;
    for (int side = 0; side < 3; ++side) sides[side] += twin.sides[side];
    const auto loss = [&] {
      const std::vector<double> of = twin.run();
      double sum = 0;
      for (size_t k = 0; k < of.size(); ++k) sum += static_cast<double>(call.dy[k]) * of[k];
      return sum;
    };
    const int64_t directions = shape.directions;
    for (int64_t layer = 0; layer < static_cast<int64_t>(found.size()); ++layer)
      for (const GruTensor tensor : kGruCalibratedTensors) {
        if (tensor == kX && layer >= directions) {
          EXPECT_EQ(found[static_cast<size_t>(layer)][kX], GruGridGradient{});
          continue;
        }
        const Grid& grid = model->parameters().layers[static_cast<size_t>(layer)].grids[tensor];
        const GruGridGradient& sums = found[static_cast<size_t>(layer)][tensor];
        constexpr double kStep = 1e-6;
        const auto slope = [&](double StraightThrough::Change::*part) {
          double losses[2];
          for (int end = 0; end < 2; ++end) {
            twin.changes.clear();
            for (int64_t d = 0; d < directions; ++d) {  // which share x and h
              const int64_t of = tensor == kX || tensor == kH ? layer / directions * directions + d : layer;
              twin.changes[{of, tensor}].*part += end == 0 ? -kStep : kStep;
              if (of == layer && tensor != kX && tensor != kH) break;
            }
            losses[end] = loss();
          }
          return (losses[1] - losses[0]) / (2 * kStep);
        };
        // A step is changed by a factor: d/d log2(S) is ln 2 times the slope.
        const std::pair<double, double> pairs[] = {
            {sums.below, slope(&StraightThrough::Change::low)},
            {sums.above, slope(&StraightThrough::Change::high)},
            {log2_step_gradient(sums, grid), slope(&StraightThrough::Change::step) * std::numbers::ln2}};
        for (const auto& [value, wanted] : pairs) {
          EXPECT_NEAR(value, wanted, 2e-5 * (10 + std::abs(wanted)))
              << "case " << i << ", layer " << layer << " " << kGruTensorNames[tensor];
          worst = std::max(worst, std::abs(value - wanted) / (10 + std::abs(wanted)));
          compared += wanted != 0;
        }
      }
  }
  std::printf("%lld gradients, off by at most %.1e; clamps below, in, above: %lld, %lld, %lld\n",
              static_cast<long long>(compared), worst, static_cast<long long>(sides[0]),
              static_cast<long long>(sides[1]), static_cast<long long>(sides[2]));
  EXPECT_GT(compared, 50);
  for (const int64_t side : sides) EXPECT_GT(side, 20);
}

TEST(GruGrids, RefusesByName) {
  Random random(32);
  RandomShape shape;
  shape.input = 2;
  shape.hidden = 3;
  const Result<GruModel> model = random_model(random, shape);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const Call call(random, *model);
  std::vector<float> y(call.dy.size()), W(18), R(27), bw(9), br(9);
  const std::vector<GruTrainingGradients> into = {{W, R, bw, br}};
  std::vector<GruGridGradients> grids(1);
  const auto backward = [&](bool learn_grids) {
    return call.forward(*model, y, CpuPath::kScalar, learn_grids)->backward(call.dy, {}, into, {}, nullptr, grids);
  };
  EXPECT_EQ(backward(false).message(),
            "training: grids has 1 elements, must have 0: forward was called without learn_grids");
  EXPECT_TRUE(backward(true).ok());
  grids.resize(2);
  EXPECT_EQ(backward(true).message(), "training: grids has 2 elements, must have 1: [layers * directions]");
}

}  // namespace
}  // namespace isobit
