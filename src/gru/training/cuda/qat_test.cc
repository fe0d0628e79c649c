// SPDX-License-Identifier: Apache-2.0
// DeviceGruQat against the CPU: the integers of weights and the forward in equal bytes, gradients near in norm, and the
// same bytes again in every run.
#include "isobit/cuda/gru_qat.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/random.h"
#include "gru/training/cuda/device_test.h"
#include "gru/training/cuda/integers.h"
#include "isobit/arrays.h"
#include "isobit/cuda/gru.h"
#include "isobit/gru_qat.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

using testing::GuardedDeviceBuffer;
using testing::Stream;
using Floats = std::vector<float>;

class CudaGruQat : public ::testing::Test {
 protected:
  void SetUp() override {
    ISOBIT_NEEDS_CUDA_DEVICE();
    if (testing::racecheck()) GTEST_SKIP() << "racecheck does not follow arrivals at named barriers";
  }
};

Floats random_floats(Random& random, int64_t count, float scale) {
  Floats values(static_cast<size_t>(count));
  for (float& v : values) v = static_cast<float>(random.between(-1 << 20, 1 << 20)) * 0x1p-20f * scale;
  return values;
}

GruQuantization random_quantization(Random& random) {
  GruQuantization q;
  const auto one_of = [&](const auto&... of) {
    const std::array<int32_t, sizeof...(of)> all = {of...};
    return all[static_cast<size_t>(random.between(0, sizeof...(of) - 1))];
  };
  q.scale = random.one_in(2) ? ScaleKind::kReal : ScaleKind::kPow2;
  q.rounding = random.one_in(2) ? Rounding::kNearestEven : kAllRoundings[random.between(0, 3)];
  const int32_t weights = one_of(2, 4, 4, 8, 8, 8, 12, 16);
  q.tensors[kW].bits = q.tensors[kR].bits = weights;
  if (random.one_in(3)) q.tensors[kW].steps = (int64_t{1} << weights) - 1;
  q.tensors[kBw].bits = q.tensors[kBr].bits = one_of(8, 16, 24, 32);
  q.tensors[kX].bits = one_of(4, 8, 8, 16);
  q.tensors[kX].is_signed = !random.one_in(3);
  q.tensors[kH].bits = one_of(4, 8, 8, 8, 11, 16);
  q.tensors[kH].symmetric = random.one_in(3);
  q.tensors[kIh].bits = q.tensors[kHh].bits = one_of(6, 8, 12, 16);
  for (const GruTensor tensor : {kUIn, kRIn, kNIn}) q.tensors[tensor].bits = one_of(6, 8, 8, 10);
  for (const GruTensor tensor : {kU, kRGate, kN}) q.tensors[tensor].bits = one_of(6, 8, 8, 12);
  return q;
}

/// Grids of one set of weights, and other weights that are trained on them.
struct QatCase {
  GruTrainingSizes sizes;
  GruQuantization quantization;
  GruRowGrids rows = GruRowGrids::kDerived;
  GruWeights weights;
  std::optional<GruModel> base, model;  // before, and of these weights
  Floats x, dy, first, last_gradient;
  std::vector<int64_t> lengths;
  std::vector<uint8_t> mask;
  bool wants_dx = true;

  static GruWeights random_weights(Random& random, const GruTrainingSizes& s) {
    GruWeights weights;
    weights.directions = static_cast<int32_t>(s.directions);
    const float limit = 1.0f / std::sqrt(static_cast<float>(s.hidden_size));
    for (int64_t i = 0; i < s.layers * s.directions; ++i) {
      const int64_t C = i < s.directions ? s.input_size : s.directions * s.hidden_size, H = s.hidden_size;
      weights.layers.push_back({C, H, random_floats(random, 3 * H * C, limit), random_floats(random, 3 * H * H, limit),
                                random_floats(random, 3 * H, limit), random_floats(random, 3 * H, limit)});
    }
    return weights;
  }

  /// Empty where a grid is refused.
  static std::optional<QatCase> random(Random& random, const GruTrainingSizes& s,
                                       std::optional<GruQuantization> quantization = {}) {
    QatCase c;
    c.sizes = s;
    c.quantization = quantization ? *quantization : random_quantization(random);
    c.rows = random.one_in(4) ? GruRowGrids::kKept : GruRowGrids::kDerived;
    c.weights = random_weights(random, s);
    GruCalibrator calibrator = GruCalibrator::create(c.weights).value();
    const int64_t T = 4, N = 4;
    EXPECT_TRUE(calibrator.observe(random_floats(random, T * N * s.input_size, 1.5f), T, N).ok());
    Result<GruModel> base = calibrator.finish(c.quantization);
    if (!base.ok()) {
      EXPECT_EQ(base.status().code(), StatusCode::kOverflow) << base.status().message();
      return {};
    }
    c.base = *std::move(base);
    for (GruLayerWeights& layer : c.weights.layers)
      for (Floats* tensor : {&layer.W, &layer.R, &layer.bw, &layer.br})
        for (float& w : *tensor) w += 0.1f * w * static_cast<float>(random.between(-10, 10)) / 10.0f;
    c.set_odd_rows(random);
    const Status made = c.make_model();
    if (!made.ok()) return {};
    const int64_t H = s.hidden_size, states = s.layers * s.directions, rows = s.steps * s.batch;
    c.x = random_floats(random, rows * s.input_size, 2.0f);
    c.dy = random_floats(random, rows * s.directions * H, 1.0f);
    if (random.one_in(2)) c.first = random_floats(random, states * s.batch * H, 1.2f);
    if (random.one_in(2)) c.last_gradient = random_floats(random, states * s.batch * H, 1.0f);
    if (random.one_in(2))
      for (int64_t n = 0; n < s.batch; ++n) c.lengths.push_back(random.between(0, s.steps));
    if (random.one_in(3))
      for (int64_t i = 0; i < s.layers * rows * s.directions * H; ++i)
        c.mask.push_back(static_cast<uint8_t>(random.between(0, 3) > 0));
    c.wants_dx = !random.one_in(4);
    return c;
  }
  /// Rows of zeros, and rows that are small beside their bias.
  void set_odd_rows(Random& random) {
    for (GruLayerWeights& layer : weights.layers)
      for (auto [matrix, bias] : {std::pair(&layer.W, &layer.bw), std::pair(&layer.R, &layer.br)})
        for (int64_t row = 0; row < 3 * layer.hidden_size; ++row) {
          if (!random.one_in(12)) continue;
          const auto columns = static_cast<int64_t>(matrix->size()) / (3 * layer.hidden_size);
          const float factor = random.one_in(2) ? 0.0f : random.one_in(2) ? 0x1p-30f : 0x1p-140f;
          for (int64_t k = row * columns; k < (row + 1) * columns; ++k) (*matrix)[static_cast<size_t>(k)] *= factor;
          if (random.one_in(2)) (*bias)[static_cast<size_t>(row)] = 0.0f;
        }
  }
  Status make_model() {
    const Result<GruModelParameters> made = with_weights(base->parameters(), weights, quantization, rows);
    if (!made.ok()) return made.status();
    Result<GruModel> created = GruModel::create(*made);
    if (!created.ok()) return created.status();
    model = *std::move(created);
    return {};
  }

  /// y, the last states, dx, first_gradient and all gradients of weights.
  [[nodiscard]] std::vector<Floats> on_the_cpu(GruQatShares* shares = nullptr) const {
    const auto states = static_cast<size_t>(sizes.layers * sizes.directions * sizes.batch * sizes.hidden_size);
    Floats y(dy.size()), last(states), dx(wants_dx ? x.size() : 0), first_gradient(states);
    const GruQatRun run = GruQatRun::forward(*model, x, sizes.steps, sizes.batch, y, {.first = first, .last = last},
                                             {.lengths = lengths, .zoneout_mask = mask})
                              .value();
    std::vector<Floats> all = {y, last, dx, first_gradient};
    for (const GruLayerWeights& layer : weights.layers)
      for (const Floats* of : {&layer.W, &layer.R, &layer.bw, &layer.br}) all.emplace_back(of->size());
    std::vector<GruTrainingGradients> into;
    for (size_t i = 4; i < all.size(); i += 4) into.push_back({all[i], all[i + 1], all[i + 2], all[i + 3]});
    const Status done = run.backward(dy, all[2], into, {.last_gradient = last_gradient, .first_gradient = all[3]});
    EXPECT_TRUE(done.ok()) << done.message();
    if (shares != nullptr) {
      shares->clipped_units = run.clipped_units();
      shares->clipped_inputs = run.clipped_inputs();
      for (int64_t i = 0; i < sizes.layers * sizes.directions; ++i) {
        auto& of = shares->clipped.emplace_back();
        for (size_t tensor = 0; tensor < of.size(); ++tensor)
          of[tensor] = run.clipped(i, static_cast<GruTensor>(tensor));
      }
    }
    return all;
  }
  [[nodiscard]] std::string text() const {
    std::string text = "T " + std::to_string(sizes.steps) + " N " + std::to_string(sizes.batch) + " C " +
                       std::to_string(sizes.input_size) + " H " + std::to_string(sizes.hidden_size) + " layers " +
                       std::to_string(sizes.layers) + " directions " + std::to_string(sizes.directions) + " lengths " +
                       std::to_string(lengths.size()) + " mask " + std::to_string(mask.size()) + " " +
                       std::string(to_string(quantization.scale)) + " " +
                       std::string(to_string(quantization.rounding)) + (rows == GruRowGrids::kKept ? " kept" : "");
    for (size_t i = 0; i < kGruTensorCount; ++i)
      text += " " + std::string(kGruTensorNames[i]) + "=" + std::to_string(quantization.tensors[i].bits);
    return text;
  }
};

/// A QatCase on the device.
struct DeviceCase {
  const QatCase& host;
  DeviceGruQat gru;
  std::vector<std::unique_ptr<DeviceCopy<float>>> parameters, gradients;
  DeviceCopy<float> x, dy, first, last_gradient, y, dx, last, first_gradient;
  DeviceCopy<int64_t> lengths;
  DeviceCopy<uint8_t> mask;
  GuardedDeviceBuffer saved, workspace;

  static Floats nans(size_t count) { return Floats(count, std::numeric_limits<float>::quiet_NaN()); }
  explicit DeviceCase(const QatCase& c, int64_t offset = 0)
      : host(c),
        gru(DeviceGruQat::create(*c.base, c.quantization, "gru", {}, c.rows).value()),
        x(c.x, offset),
        dy(c.dy, offset),
        first(c.first, offset),
        last_gradient(c.last_gradient, offset),
        y(nans(c.dy.size()), offset),
        dx(nans(c.wants_dx ? c.x.size() : 0), offset),
        last(nans(state_size()), offset),
        first_gradient(nans(state_size()), offset),
        lengths(c.lengths),
        mask(c.mask),
        saved(gru.saved_bytes(c.sizes.steps, c.sizes.batch)),
        workspace(gru.workspace_bytes(c.sizes.steps, c.sizes.batch)) {
    for (const GruLayerWeights& layer : c.weights.layers)
      for (const Floats* p : {&layer.W, &layer.R, &layer.bw, &layer.br}) {
        parameters.push_back(std::make_unique<DeviceCopy<float>>(*p, offset));
        gradients.push_back(std::make_unique<DeviceCopy<float>>(nans(p->size()), offset));
      }
  }
  [[nodiscard]] size_t state_size() const {
    const GruTrainingSizes& s = host.sizes;
    return static_cast<size_t>(s.layers * s.directions * s.batch * s.hidden_size);
  }
  [[nodiscard]] std::vector<GruTrainingWeights> weights() const {
    std::vector<GruTrainingWeights> all;
    for (size_t i = 0; i < parameters.size(); i += 4)
      all.push_back(
          {parameters[i]->span(), parameters[i + 1]->span(), parameters[i + 2]->span(), parameters[i + 3]->span()});
    return all;
  }
  Status enqueue(cudaStream_t stream, std::string_view kernel) {
    std::vector<GruTrainingGradients> into;
    for (size_t i = 0; i < gradients.size(); i += 4)
      into.push_back(
          {gradients[i]->span(), gradients[i + 1]->span(), gradients[i + 2]->span(), gradients[i + 3]->span()});
    const RunOptions options{
        .kernel = kernel, .stream = stream, .lengths = lengths.span(), .zoneout_mask = mask.span()};
    const GruTrainingSizes& s = host.sizes;
    ISOBIT_RETURN_IF_ERROR(gru.forward(weights(), x.span(), s.steps, s.batch, y.span(), saved.bytes(),
                                       workspace.bytes(), {.first = first.span(), .last = last.span()}, options));
    return gru.backward(s.steps, s.batch, saved.bytes(), dy.span(), dx.span(), into, workspace.bytes(),
                        {.last_gradient = last_gradient.span(), .first_gradient = first_gradient.span()}, options);
  }
  [[nodiscard]] Result<GruQatShares> check() { return gru.check(host.sizes.steps, host.sizes.batch, saved.bytes()); }
  [[nodiscard]] std::vector<Floats> results() const {
    (void)workspace.read<uint8_t>();  // its guards
    (void)saved.read<uint8_t>();
    std::vector<Floats> all = {y.values(), last.values(), dx.values(), first_gradient.values()};
    for (const auto& gradient : gradients) all.push_back(gradient->values());
    return all;
  }
  std::vector<Floats> run(std::string_view kernel = {}, bool graph = false) {
    const Stream stream;
    const auto work = [&] { return enqueue(stream.stream, kernel); };
    const Status done = graph ? testing::through_graph(stream.stream, work) : work();
    EXPECT_TRUE(done.ok()) << done.message();
    EXPECT_EQ(cudaStreamSynchronize(stream.stream), cudaSuccess);
    return results();
  }
};

/// The integers of rows, and every rescale.
TEST_F(CudaGruQat, WeightsBecomeTheIntegersOfTheCpu) {
  Random random(60);
  int64_t compared = 0, refused = 0, coarser = 0, wide = 0;
  for (int i = 0; i < (testing::sanitized() ? 6 : 120) && !HasFailure(); ++i) {
    const GruTrainingSizes sizes{.steps = 1,
                                 .batch = 1,
                                 .input_size = random.between(1, 70),
                                 .hidden_size = random.between(1, 70),
                                 .layers = 1,
                                 .directions = 1};
    std::optional<QatCase> c = QatCase::random(random, sizes);
    if (!c) continue;
    if (random.one_in(5)) c->weights.layers[0].W[0] = INFINITY;
    if (random.one_in(5)) c->weights.layers[0].br[2] = c->quantization.scale == ScaleKind::kReal ? 1e-42f : 3e38f;
    SCOPED_TRACE(c->text());
    const GruLayerWeights& w = c->weights.layers[0];
    const GruLayerParameters& before = c->base->parameters().layers[0];
    std::vector<Scale> kept[2];
    if (c->rows == GruRowGrids::kKept)
      for (size_t m = 0; m < 2; ++m)
        for (const Grid& grid : m == 0 ? before.W_grid : before.R_grid) kept[m].push_back(scale_of(grid));
    const int64_t H = sizes.hidden_size, C = sizes.input_size, rows = 3 * H;
    DeviceCopy<float> W(w.W), R(w.R), bw(w.bw), br(w.br);
    DeviceCopy<Scale> kept_W(kept[0]), kept_R(kept[1]);
    DeviceCopy<float> codes_W(Floats(w.W.size())), codes_R(Floats(w.R.size()));
    DeviceCopy<float> numbers_W(Floats(w.W.size())), numbers_R(Floats(w.R.size()));
    const std::vector<QatRow> no_rows(static_cast<size_t>(rows));
    DeviceCopy<QatRow> rows_W(no_rows), rows_R(no_rows);
    const std::vector<QatRowLanes> no_lanes(static_cast<size_t>(rows));
    DeviceCopy<QatRowLanes> lanes_W(no_lanes), lanes_R(no_lanes);
    const std::vector<RowFault> no_faults(static_cast<size_t>(rows));
    DeviceCopy<RowFault> faults[4] = {DeviceCopy(no_faults), DeviceCopy(no_faults), DeviceCopy(no_faults),
                                      DeviceCopy(no_faults)};
    GuardedDeviceBuffer scales(weight_scales_bytes(2 * rows));
    QatLinear linear[2] = {qat_linear_of(before, c->quantization, false), qat_linear_of(before, c->quantization, true)};
    if (c->rows == GruRowGrids::kKept) {
      linear[0].kept_weights = kept_W.span().data();
      linear[1].kept_weights = kept_R.span().data();
    }
    ASSERT_TRUE(quantize_weights(linear, {W.span().data(), R.span().data()}, {bw.span().data(), br.span().data()},
                                 {{codes_W.span().data(),
                                   numbers_W.span().data(),
                                   {rows_W.span().data(), lanes_W.span().data()},
                                   faults[0].span().data(),
                                   faults[1].span().data()},
                                  {codes_R.span().data(),
                                   numbers_R.span().data(),
                                   {rows_R.span().data(), lanes_R.span().data()},
                                   faults[2].span().data(),
                                   faults[3].span().data()}},
                                 before.rounding, scales.data(), nullptr, nullptr)
                    .ok());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    bool is_refused = false;
    for (const auto& of : faults)
      for (const RowFault fault : of.values()) is_refused = is_refused || fault != RowFault::kNone;
    const Status made = c->make_model();
    EXPECT_EQ(is_refused, !made.ok()) << made.message();
    if (is_refused) {
      ++refused;
      continue;
    }
    const GruLayerParameters& p = c->model->parameters().layers[0];
    const auto compare = [&](const CodeMatrix& matrix, const std::vector<Grid>& grids, const CodeMatrix& bias,
                             const std::vector<RescaleParameters>& to_acc, const std::vector<RescaleParameters>& to_out,
                             const Floats& codes, const Floats& numbers, const std::vector<QatRow>& of_rows,
                             const std::vector<QatRowLanes>& of_lanes) {
      for (int64_t row = 0; row < matrix.rows(); ++row) {
        const auto r = static_cast<size_t>(row);
        for (int64_t k = 0; k < matrix.columns(); ++k) {
          const auto at = static_cast<size_t>(row * matrix.columns() + k);
          ASSERT_EQ(codes[at], static_cast<float>(matrix.at(row, k))) << "row " << row << ", " << k;
          ASSERT_EQ(numbers[at], static_cast<float>(matrix.at(row, k)) * grids[r].scale());
        }
        ASSERT_EQ(of_rows[r].bias, rescale(to_acc[r], bias.at(row, 0), p.rounding)) << row;
        ASSERT_EQ(of_rows[r].to_result, to_out[r]) << row;
        ASSERT_EQ(std::isnan(of_lanes[r].bias), std::abs(of_rows[r].bias) >= int64_t{1} << 52);
        wide += std::isnan(of_lanes[r].bias) ? 1 : 0;
        if (!std::isnan(of_lanes[r].bias)) {
          ASSERT_EQ(of_lanes[r].bias, static_cast<double>(of_rows[r].bias));
        }
        ASSERT_EQ(of_lanes[r].ratio, std::ldexp(static_cast<double>(to_out[r].multiplier), -to_out[r].shift));
        ++compared;
      }
    };
    compare(p.W, p.W_grid, p.bw, p.bw_to_acc, p.acc_to_ih, codes_W.values(), numbers_W.values(), rows_W.values(),
            lanes_W.values());
    compare(p.R, p.R_grid, p.br, p.br_to_acc, p.acc_to_hh, codes_R.values(), numbers_R.values(), rows_R.values(),
            lanes_R.values());
    for (int64_t row = 0; row < rows; ++row) {
      bool zeros = true;
      for (int64_t k = 0; k < C; ++k) zeros = zeros && p.W.at(row, k) == 0;
      coarser += zeros ? 1 : 0;
    }
  }
  std::printf("%lld rows compared, %lld models refused, %lld rows of zeros, %lld biases too wide for doubles\n",
              static_cast<long long>(compared), static_cast<long long>(refused), static_cast<long long>(coarser),
              static_cast<long long>(wide));
  EXPECT_GT(compared, 0);
  EXPECT_TRUE(testing::sanitized() || (refused > 0 && coarser > 0 && wide > 0));
}

/// Equal where bytes must be, near where not.
void expect_like_the_cpu(const std::vector<Floats>& actual, const std::vector<Floats>& expected, double& largest) {
  EXPECT_TRUE(same_bytes({actual[0], actual[1]}, {expected[0], expected[1]})) << "y or the last states";
  const double difference =
      largest_difference({actual.begin() + 2, actual.end()}, {expected.begin() + 2, expected.end()});
  EXPECT_LE(difference, kNear);
  largest = std::max(largest, difference);
}

TEST_F(CudaGruQat, TheForwardIsTheModelAndGradientsAreNear) {
  Random random(61);
  double largest = 0;
  int cases = 0, teams = 0, clipped = 0;
  for (int i = 0; i < (testing::sanitized() ? 12 : 120) && !HasFailure(); ++i) {
    const int64_t sizes[] = {1, 3, 16, 31, 48, 64, 65, 100, 128, 129, 200, 256};
    const auto size = [&] { return sizes[random.between(0, testing::sanitized() ? 7 : 11)]; };
    const std::optional<QatCase> c = QatCase::random(random, {.steps = random.between(0, 20),
                                                              .batch = random.one_in(12) ? 0 : random.between(1, 40),
                                                              .input_size = size(),
                                                              .hidden_size = size(),
                                                              .layers = random.between(1, 3),
                                                              .directions = random.between(1, 2)});
    if (!c) continue;
    SCOPED_TRACE(c->text());
    GruQatShares wanted;
    const std::vector<Floats> expected = c->on_the_cpu(&wanted);
    DeviceCase device(*c, random.one_in(3) ? 4 : 0);
    const std::vector<Floats> actual = device.run();
    expect_like_the_cpu(actual, expected, largest);
    const Result<GruQatShares> shares = device.check();
    ASSERT_TRUE(shares.ok()) << shares.status().message();
    EXPECT_EQ(shares->clipped_inputs, wanted.clipped_inputs);
    EXPECT_EQ(shares->clipped_units, wanted.clipped_units);
    EXPECT_EQ(shares->clipped, wanted.clipped);
    EXPECT_TRUE(same_bytes(device.run({}, true), actual));
    expect_like_the_cpu(device.run("steps"), expected, largest);
    ++cases;
    teams += device.gru.kernel_name() == "team" ? 1 : 0;
    clipped += wanted.clipped_units > 0 && wanted.clipped_inputs > 0 ? 1 : 0;
  }
  std::printf("%d cases, %d of team, %d that clip, largest difference %.2e\n", cases, teams, clipped, largest);
  EXPECT_GT(teams, 0);
  EXPECT_GT(cases - teams, 0);
  EXPECT_GT(clipped, 0);
}

/// R in clusters of 16 blocks, in waves of teams, and where it does not fit.
TEST_F(CudaGruQat, LargeSizes) {
  if (testing::sanitized()) GTEST_SKIP() << "too much arithmetic";
  Random random(62);
  double largest = 0;
  const GruTrainingSizes all[] = {
      {.steps = 8, .batch = 32, .input_size = 512, .hidden_size = 512, .layers = 1, .directions = 1},
      {.steps = 5, .batch = 7, .input_size = 40, .hidden_size = 290, .layers = 2, .directions = 2},
      {.steps = 3, .batch = 900, .input_size = 20, .hidden_size = 257, .layers = 1, .directions = 1},
      {.steps = 4, .batch = 5000, .input_size = 8, .hidden_size = 48, .layers = 1, .directions = 1},
      {.steps = 3, .batch = 20, .input_size = 30, .hidden_size = 600, .layers = 2, .directions = 1},
      {.steps = 700, .batch = 3, .input_size = 100, .hidden_size = 128, .layers = 1, .directions = 1}};
  for (const GruTrainingSizes& sizes : all)
    for (const int32_t h_bits : {8, 16}) {
      GruQuantization quantization;
      if (h_bits == 16) {
        ASSERT_TRUE(apply_bits("16,weights=4,x=8", quantization).ok());
      }
      const std::optional<QatCase> c = QatCase::random(random, sizes, quantization);
      ASSERT_TRUE(c);
      SCOPED_TRACE(c->text());
      DeviceCase device(*c);
      EXPECT_EQ(device.gru.kernel_name(), sizes.hidden_size > 512 ? "steps" : "team");
      const std::vector<Floats> actual = device.run();
      expect_like_the_cpu(actual, c->on_the_cpu(), largest);
      EXPECT_TRUE(same_bytes(device.run({}, true), actual));
    }
  std::printf("largest difference %.2e\n", largest);
}

TEST_F(CudaGruQat, TheSameBytesInEveryRun) {
  Random random(63);
  for (const int64_t hidden : {48, 160, 300}) {
    const std::optional<QatCase> c = QatCase::random(
        random, {.steps = 12, .batch = 21, .input_size = 33, .hidden_size = hidden, .layers = 2, .directions = 2},
        GruQuantization());
    ASSERT_TRUE(c);
    DeviceCase device(*c);
    const std::vector<Floats> once = device.run();
    for (int i = 0; i < (testing::sanitized() ? 2 : 20); ++i) EXPECT_TRUE(same_bytes(device.run(), once));
    // Two streams at once.
    DeviceCase left(*c), right(*c);
    const Stream a, b;
    ASSERT_TRUE(left.enqueue(a.stream, {}).ok());
    ASSERT_TRUE(right.enqueue(b.stream, {}).ok());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(same_bytes(left.results(), once));
    EXPECT_TRUE(same_bytes(right.results(), once));
  }
}

/// Every 50 steps of a training and after the last, the model that is exported, loaded and run on the device.
TEST_F(CudaGruQat, WhatIsDeployedIsWhatWasTrained) {
  if (testing::sanitized()) GTEST_SKIP() << "too many steps";
  Random random(64);
  GruQuantization quantization;
  ASSERT_TRUE(apply_bits("8,weights=4", quantization).ok());
  std::optional<QatCase> c;
  while (!c || c->rows == GruRowGrids::kKept || !c->lengths.empty() || !c->mask.empty() || !c->first.empty())
    c = QatCase::random(random,
                        {.steps = 9, .batch = 12, .input_size = 7, .hidden_size = 48, .layers = 2, .directions = 2},
                        quantization);
  DeviceCase device(*c);
  const GruTrainingSizes& s = c->sizes;
  const Floats wanted = random_floats(random, static_cast<int64_t>(c->dy.size()), 0.5f);
  float first_loss = 0, loss = 0;
  for (int step = 0; step <= 120; ++step) {
    // y of the forward alone, then the whole step with the gradient of the loss.
    device.dy.buffer.write(Floats(c->dy.size(), 0.0f));
    (void)device.run();
    const Floats y = device.y.values();
    Floats dy(y.size());
    loss = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      dy[i] = (y[i] - wanted[i]) / 12;
      loss += (y[i] - wanted[i]) * (y[i] - wanted[i]);
    }
    if (step == 0) first_loss = loss;
    if (step % 50 == 0 || step == 120) {
      ASSERT_TRUE(c->make_model().ok());
      const std::vector<std::byte> bytes = c->model->saved_bytes().value();
      const GruModel loaded = GruModel::load(ArrayReader::view(bytes.data(), bytes.size(), "a GRU").value()).value();
      const DeviceGru deployed = DeviceGru::create(loaded).value();
      GruState state = loaded.initial_state(s.batch);
      Workspace workspace = deployed.workspace(s.batch, s.steps).value();
      Floats out(y.size());
      const Status ran = deployed.forward(c->x, out, s.steps, state, workspace, {.whole_sequence = true});
      ASSERT_TRUE(ran.ok()) << ran.message();
      EXPECT_TRUE(same_bytes({out}, {y})) << "step " << step;
    }
    device.dy.buffer.write(dy);
    (void)device.run();
    size_t p = 0;
    for (GruLayerWeights& layer : c->weights.layers)
      for (Floats* of : {&layer.W, &layer.R, &layer.bw, &layer.br}) {
        const Floats gradient = device.gradients[p]->values();
        for (size_t i = 0; i < of->size(); ++i) (*of)[i] -= 0.02f * gradient[i];
        device.parameters[p++]->buffer.write(*of);
      }
  }
  std::printf("loss %.3f, then %.3f\n", static_cast<double>(first_loss), static_cast<double>(loss));
  EXPECT_LT(loss, 0.9f * first_loss);
}

TEST_F(CudaGruQat, WhatIsPastALengthIsNotRead) {
  Random random(65);
  std::optional<QatCase> c;
  while (!c)
    c = QatCase::random(random,
                        {.steps = 6, .batch = 3, .input_size = 5, .hidden_size = 40, .layers = 2, .directions = 2},
                        GruQuantization());
  c->lengths = {6, 2, 0};
  c->wants_dx = true;
  const std::vector<Floats> expected = DeviceCase(*c).run();
  for (int64_t t = 0; t < 6; ++t)
    for (int64_t n = 0; n < 3; ++n)
      if (t >= c->lengths[static_cast<size_t>(n)]) {
        for (int64_t k = 0; k < 5; ++k) c->x[static_cast<size_t>((t * 3 + n) * 5 + k)] = NAN;
        for (int64_t k = 0; k < 80; ++k) c->dy[static_cast<size_t>((t * 3 + n) * 80 + k)] = NAN;
      }
  DeviceCase device(*c);
  EXPECT_TRUE(same_bytes(device.run(), expected));
  EXPECT_TRUE(device.check().ok());
}

TEST_F(CudaGruQat, RefusesByName) {
  Random random(66);
  const GruTrainingSizes sizes{
      .steps = 2, .batch = 2, .input_size = 3, .hidden_size = 600, .layers = 1, .directions = 1};
  std::optional<QatCase> c;
  while (!c || c->first.empty() || !c->lengths.empty()) c = QatCase::random(random, sizes, GruQuantization());
  c->rows = GruRowGrids::kDerived;
  const auto has = [](const Status& status, StatusCode code, const std::string& text) {
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  DeviceCase device(*c);
  has(device.enqueue(nullptr, "team"), StatusCode::kUnsupported, "hidden_size 600");
  has(device.enqueue(nullptr, "other"), StatusCode::kInvalidArgument, "team or steps");
  const auto forward = [&](std::span<const float> x, std::span<std::byte> workspace, int64_t steps = 2) {
    return device.gru.forward(device.weights(), x, steps, 2, device.y.span(), device.saved.bytes(), workspace);
  };
  has(forward(c->x, device.workspace.bytes()), StatusCode::kInvalidArgument, "x is host memory");
  has(forward(device.x.span().first(5), device.workspace.bytes()), StatusCode::kInvalidArgument,
      "x has 5 elements, must have 12");
  has(forward(device.x.span(), device.workspace.bytes().first(256)), StatusCode::kInvalidArgument,
      "workspace has 256 bytes");
  has(forward(device.x.span(), device.workspace.bytes(), int64_t{1} << 30), StatusCode::kInvalidArgument,
      "what forward keeps would have");
  has(device.gru.forward(device.weights(), {}, 0, int64_t{1} << 32, {}, device.saved.bytes(), device.workspace.bytes()),
      StatusCode::kInvalidArgument,
      "gru: the states would have 2576980377600 numbers or more, must have at most 1099511627776");

  // What only numbers tell.
  const auto fault = [&](auto change) {
    QatCase other = *c;
    change(other);
    DeviceCase of(other);
    (void)of.run();
    return of.check().status();
  };
  has(fault([](QatCase& o) { o.x[7] = NAN; }), StatusCode::kInvalidArgument, "gru: x[7] is NaN");
  has(fault([](QatCase& o) { o.first[5] = NAN; }), StatusCode::kInvalidArgument, "gru: states.first[5] is NaN");
  has(fault([](QatCase& o) { o.weights.layers[0].R[600 * 601] = INFINITY; }), StatusCode::kInvalidArgument,
      "layer 0 R row 601 (gate r, unit 1) is not finite");
  has(fault([](QatCase& o) { o.weights.layers[0].bw[1] = -NAN; }), StatusCode::kInvalidArgument, "layer 0 bw row 1");

  GruQuantization wide;
  ASSERT_TRUE(apply_bits("8,h=20", wide).ok());
  GruCalibrator calibrator = GruCalibrator::create(c->weights).value();
  ASSERT_TRUE(calibrator.observe(c->x, 2, 2).ok());
  has(DeviceGruQat::create(calibrator.finish(wide).value(), wide, "gru").status(), StatusCode::kUnsupported,
      "gru: layer 0 h has 20 bits, must have at most 16");
  has(DeviceGruQat::create(*c->base, wide, "gru").status(), StatusCode::kOk, "");
  ASSERT_TRUE(apply_bits("8,W=5", wide).ok());
  has(DeviceGruQat::create(*c->base, wide, "gru").status(), StatusCode::kInvalidArgument,
      "gru: layer 0 W: quantization has 5 signed bits, must have those of the model, 8 signed");
}

}  // namespace
}  // namespace isobit::cuda
