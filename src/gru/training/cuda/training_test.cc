// SPDX-License-Identifier: Apache-2.0
// DeviceGruTraining against GruTraining on the CPU: near in norm, and the same bytes again in every run.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/random.h"
#include "gru/training/cuda/device_test.h"
#include "gru/training/training_case_test.h"
#include "isobit/cuda/gru_training.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

using testing::GuardedDeviceBuffer;
using testing::Stream;

class CudaGruTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    ISOBIT_NEEDS_CUDA_DEVICE();
    if (testing::racecheck()) GTEST_SKIP() << "racecheck does not follow arrivals at named barriers";
  }
};

/// A TrainingCase on the device: the tensors of TrainingCase::tensors().
struct DeviceCase {
  const TrainingCase& host;
  DeviceGruTraining training;
  int64_t offset;
  std::vector<std::unique_ptr<DeviceCopy<float>>> parameters, gradients;
  DeviceCopy<float> x, dy, first, last_gradient, y, saved, dx, last, first_gradient;
  DeviceCopy<int64_t> lengths;
  DeviceCopy<uint8_t> mask;
  GuardedDeviceBuffer workspace;

  static Floats nans(size_t count) { return Floats(count, std::numeric_limits<float>::quiet_NaN()); }
  explicit DeviceCase(const TrainingCase& c, int64_t offset_bytes = 0)
      : host(c),
        training(DeviceGruTraining::create(c.sizes, "gru").value()),
        offset(offset_bytes),
        x(c.x, offset),
        dy(c.dy, offset),
        first(c.first, offset),
        last_gradient(c.last_gradient, offset),
        y(nans(c.dy.size()), offset),
        saved(nans(static_cast<size_t>(training.saved_size())), offset),
        dx(nans(c.wants_dx ? c.x.size() : 0), offset),
        last(nans(state_size()), offset),
        first_gradient(nans(state_size()), offset),
        lengths(c.lengths),
        mask(c.mask),
        workspace(training.workspace_bytes()) {
    for (const Floats& p : c.parameters) {
      parameters.push_back(std::make_unique<DeviceCopy<float>>(p, offset));
      gradients.push_back(std::make_unique<DeviceCopy<float>>(nans(p.size()), offset));
    }
  }
  [[nodiscard]] size_t state_size() const {
    const GruTrainingSizes& s = host.sizes;
    return static_cast<size_t>(s.layers * s.directions * s.batch * s.hidden_size);
  }
  Status enqueue(cudaStream_t stream, std::string_view kernel) {
    std::vector<GruTrainingWeights> weights;
    std::vector<GruTrainingGradients> into;
    for (size_t i = 0; i < parameters.size(); i += 4) {
      weights.push_back(
          {parameters[i]->span(), parameters[i + 1]->span(), parameters[i + 2]->span(), parameters[i + 3]->span()});
      into.push_back(
          {gradients[i]->span(), gradients[i + 1]->span(), gradients[i + 2]->span(), gradients[i + 3]->span()});
    }
    const RunOptions options{
        .kernel = kernel, .stream = stream, .lengths = lengths.span(), .zoneout_mask = mask.span()};
    ISOBIT_RETURN_IF_ERROR(training.forward(weights, x.span(), y.span(), saved.span(), room(),
                                            {.first = first.span(), .last = last.span()}, options));
    return training.backward(
        weights, x.span(), y.span(), saved.span(), dy.span(), dx.span(), into, room(),
        {.first = first.span(), .last_gradient = last_gradient.span(), .first_gradient = first_gradient.span()},
        options);
  }
  [[nodiscard]] std::span<std::byte> room() { return workspace.bytes(); }
  std::vector<Floats> run(std::string_view kernel = {}, bool graph = false) {
    const Stream stream;
    const auto work = [&] { return enqueue(stream.stream, kernel); };
    const Status done = graph ? testing::through_graph(stream.stream, work) : work();
    EXPECT_TRUE(done.ok()) << done.message();
    EXPECT_EQ(cudaStreamSynchronize(stream.stream), cudaSuccess);
    (void)workspace.read<uint8_t>();  // its guards
    std::vector<Floats> all = {y.values(), last.values(), dx.values(), first_gradient.values()};
    for (const auto& gradient : gradients) all.push_back(gradient->values());
    return all;
  }
};

TEST_F(CudaGruTraining, NearTheCpu) {
  Random random(45);
  double largest = 0;
  const int count = testing::sanitized() ? 8 : 60;
  for (int i = 0; i < count && !HasFailure(); ++i) {
    const int64_t sizes[] = {1, 3, 16, 31, 48, 64, 65, 100, 128, 129, 200, 256};
    const auto size = [&] { return sizes[random.between(0, testing::sanitized() ? 7 : 11)]; };
    TrainingCase c = TrainingCase::random(random, {.steps = random.between(0, 20),
                                                   .batch = random.one_in(12) ? 0 : random.between(1, 40),
                                                   .input_size = size(),
                                                   .hidden_size = size(),
                                                   .layers = random.between(1, 3),
                                                   .directions = random.between(1, 2)});
    c.set_usual_weights(random);
    SCOPED_TRACE(c.text());
    const std::vector<Floats> expected = c.tensors(default_cpu_path().value(), 1);
    DeviceCase device(c, random.one_in(3) ? 4 : 0);
    const std::vector<Floats> actual = device.run();
    const double difference = largest_difference(actual, expected);
    EXPECT_LE(difference, kNear);
    EXPECT_TRUE(same_bytes(device.run({}, true), actual));
    EXPECT_LE(largest_difference(device.run("steps"), expected), kNear);
    largest = std::max(largest, difference);
  }
  std::printf("%d cases, largest difference %.2e\n", count, largest);
}

/// R in clusters of 16 blocks, in waves of teams, and where it does not fit.
TEST_F(CudaGruTraining, LargeSizes) {
  if (testing::sanitized()) GTEST_SKIP() << "too much arithmetic";
  Random random(46);
  const GruTrainingSizes all[] = {
      {.steps = 8, .batch = 32, .input_size = 512, .hidden_size = 512},
      {.steps = 5, .batch = 7, .input_size = 40, .hidden_size = 290, .layers = 2, .directions = 2},
      {.steps = 3, .batch = 900, .input_size = 20, .hidden_size = 257},
      {.steps = 4, .batch = 5000, .input_size = 8, .hidden_size = 48},
      {.steps = 3, .batch = 20, .input_size = 30, .hidden_size = 600, .layers = 2},
      {.steps = 700, .batch = 3, .input_size = 100, .hidden_size = 128}};
  for (const GruTrainingSizes& sizes : all) {
    TrainingCase c = TrainingCase::random(random, sizes);
    c.set_usual_weights(random);
    SCOPED_TRACE(c.text());
    DeviceCase device(c);
    EXPECT_EQ(device.training.kernel_name(), sizes.hidden_size > 512 ? "steps" : "team");
    const std::vector<Floats> actual = device.run();
    EXPECT_LE(largest_difference(actual, c.tensors(default_cpu_path().value(), 1)), kNear);
    EXPECT_TRUE(same_bytes(device.run({}, true), actual));
  }
}

TEST_F(CudaGruTraining, TheSameBytesInEveryRun) {
  Random random(47);
  for (const int64_t hidden : {48, 160, 300}) {
    const TrainingCase c = TrainingCase::random(
        random, {.steps = 12, .batch = 21, .input_size = 33, .hidden_size = hidden, .layers = 2, .directions = 2});
    DeviceCase device(c);
    const std::vector<Floats> once = device.run();
    for (int i = 0; i < (testing::sanitized() ? 2 : 20); ++i) EXPECT_TRUE(same_bytes(device.run(), once));
    // Two streams at once.
    DeviceCase left(c), right(c);
    const Stream a, b;
    ASSERT_TRUE(left.enqueue(a.stream, {}).ok());
    ASSERT_TRUE(right.enqueue(b.stream, {}).ok());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (size_t p = 0; p < c.parameters.size(); ++p) {
      EXPECT_EQ(left.gradients[p]->values(), once[4 + p]);
      EXPECT_EQ(right.gradients[p]->values(), once[4 + p]);
    }
  }
}

TEST_F(CudaGruTraining, WhatIsPastALengthIsNotRead) {
  Random random(48);
  TrainingCase c =
      TrainingCase::random(random, {.steps = 6, .batch = 3, .input_size = 5, .hidden_size = 40, .directions = 2});
  c.lengths = {6, 2, 0};
  c.wants_dx = true;
  const std::vector<Floats> expected = DeviceCase(c).run();
  for (int64_t t = 0; t < 6; ++t)
    for (int64_t n = 0; n < 3; ++n)
      if (t >= c.lengths[static_cast<size_t>(n)]) {
        for (int64_t k = 0; k < 5; ++k) c.x[static_cast<size_t>((t * 3 + n) * 5 + k)] = NAN;
        for (int64_t k = 0; k < 80; ++k) c.dy[static_cast<size_t>((t * 3 + n) * 80 + k)] = NAN;
      }
  EXPECT_TRUE(same_bytes(DeviceCase(c).run(), expected));
}

TEST_F(CudaGruTraining, RefusesByName) {
  Random random(49);
  const TrainingCase c = TrainingCase::random(random, {.steps = 2, .batch = 2, .input_size = 3, .hidden_size = 600});
  DeviceCase device(c);
  const Status kernel = device.enqueue(nullptr, "team");
  EXPECT_EQ(kernel.code(), StatusCode::kUnsupported);
  EXPECT_NE(kernel.message().find("hidden_size 600"), std::string::npos) << kernel.message();
  EXPECT_NE(device.enqueue(nullptr, "other").message().find("team or steps"), std::string::npos);
  std::vector<GruTrainingWeights> weights = {{device.parameters[0]->span(), device.parameters[1]->span(),
                                              device.parameters[2]->span(), device.parameters[3]->span()}};
  const auto forward = [&](std::span<const float> x, std::span<std::byte> workspace) {
    return std::string(device.training.forward(weights, x, device.y.span(), device.saved.span(), workspace).message());
  };
  EXPECT_NE(forward(c.x, device.room()).find("x is host memory"), std::string::npos) << forward(c.x, device.room());
  EXPECT_NE(forward(device.x.span().first(5), device.room()).find("x has 5 elements, must have 12"), std::string::npos);
  EXPECT_NE(forward(device.x.span(), device.room().first(256)).find("workspace has 256 bytes"), std::string::npos);
  EXPECT_NE(DeviceGruTraining::create({.steps = 1 << 16, .batch = 1 << 15, .input_size = 1, .hidden_size = 1}, "gru")
                .status()
                .message()
                .find("steps * batch is 2147483648"),
            std::string::npos);
}

}  // namespace
}  // namespace isobit::cuda
