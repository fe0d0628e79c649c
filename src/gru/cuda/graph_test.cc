// SPDX-License-Identifier: Apache-2.0
// Runs in CUDA graphs.
#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "gru/cuda/gru_test.h"
#include "gru/random_model.h"
#include "isobit/cuda/gru.h"
#include "isobit/grid.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

TEST_F(DeviceGrus, ReplaysInAGraphWithAMovingState) {
  const Case c = case_of(11, 13, 37, 5, 3, 2, 1);
  const Result<DeviceGru> gru = DeviceGru::create(c.model);
  ASSERT_TRUE(gru.ok()) << gru.status().message();
  Random random(12);
  const int64_t x_count = 3 * 5 * 13;
  const int64_t y_count = 3 * 5 * 37;
  const int64_t y_size = size_of(c.model.output_grid());
  GuardedDeviceBuffer x(x_count * 4);
  GuardedDeviceBuffer codes(static_cast<int64_t>(c.run.x.size()));
  GuardedDeviceBuffer y(y_count * 4);
  GuardedDeviceBuffer y_codes(y_count * y_size);
  GuardedDeviceBuffer state(gru->state_bytes(5));
  GuardedDeviceBuffer workspace(gru->workspace_bytes(5, 3));
  codes.write(c.run.x);
  ASSERT_TRUE(gru->initial_state(state.bytes(), 5, stream_).ok());
  wait();
  RunOptions options{.stream = stream_, .whole_sequence = true};
  if (racecheck()) options.kernel = "step";
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  const Status floats = gru->forward({static_cast<const float*>(x.data()), static_cast<size_t>(x_count)},
                                     {static_cast<float*>(y.data()), static_cast<size_t>(y_count)}, 3, 5, state.bytes(),
                                     workspace.bytes(), options);
  const Status integers =
      gru->forward_codes(codes.bytes(), y_codes.bytes(), 3, 5, state.bytes(), workspace.bytes(), options);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_TRUE(floats.ok()) << floats.message();
  ASSERT_TRUE(integers.ok()) << integers.message();
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);

  GruState expected_state = c.run.start;
  Workspace host_workspace = c.model.workspace(5, 3);
  std::vector<float> expected(static_cast<size_t>(y_count));
  std::vector<std::byte> expected_codes(static_cast<size_t>(y_count * y_size));
  for (int replay = 0; replay < 5; ++replay) {
    std::vector<float> values = random_floats(random, c.model.input_grid(), x_count);
    ASSERT_TRUE(c.model.forward(values, expected, 3, expected_state, host_workspace, host_options(c)).ok());
    ASSERT_TRUE(
        c.model.forward_codes(c.run.x, expected_codes, 3, expected_state, host_workspace, host_options(c)).ok());
    x.write(values);
    ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    wait();
    EXPECT_EQ(y.read<float>(), expected);
    EXPECT_EQ(y_codes.read<std::byte>(), expected_codes);
    GruState actual_state = c.model.initial_state(5);
    ASSERT_TRUE(gru->download_state(state.bytes(), actual_state, stream_).ok());
    EXPECT_TRUE(equal(actual_state, expected_state)) << "replay " << replay;
    EXPECT_TRUE(DeviceGru::check_input(workspace.bytes(), stream_).ok());
  }
  // A NaN of one replay is forgotten in the next.
  std::vector<float> values(static_cast<size_t>(x_count), 0.0f);
  values[17] = std::numeric_limits<float>::quiet_NaN();
  for (const bool nan : {true, false}) {
    x.write(values);
    ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    EXPECT_EQ(DeviceGru::check_input(workspace.bytes(), stream_).message(),
              nan ? "x[17] is NaN, must be a number" : "");
    values[17] = 0.0f;
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(DeviceGrus, SingleStepsReplayInAGraph) {
  constexpr int64_t kBatch = 3;
  const int64_t hidden = sanitized() ? 80 : 528;
  Case c = case_of(51, 48, hidden, kBatch, 4);
  const Result<DeviceGru> gru = DeviceGru::create(c.model);
  ASSERT_TRUE(gru.ok()) << gru.status().message();
  ASSERT_EQ(*gru->choose_kernel(kBatch, 1), "step");
  const int64_t x_row = kBatch * 48 * size_of(c.model.input_grid());
  const int64_t y_row = kBatch * hidden * size_of(c.model.output_grid());
  GuardedDeviceBuffer x(4 * x_row);
  GuardedDeviceBuffer y(4 * y_row);
  const GuardedDeviceBuffer states[2] = {GuardedDeviceBuffer(gru->state_bytes(kBatch)),
                                         GuardedDeviceBuffer(gru->state_bytes(kBatch))};
  GuardedDeviceBuffer workspace(gru->workspace_bytes(kBatch, 1));
  ASSERT_TRUE(gru->initial_state(states[0].bytes(), kBatch, stream_).ok());
  wait();
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  Status status;
  for (int64_t s = 0; s < 4 && status.ok(); ++s) {  // from one state to the other, in place, back, in place
    const size_t from = s == 1 || s == 2 ? 1 : 0;
    RunOptions options{.stream = stream_, .whole_sequence = true};
    if (s % 2 == 0) options.next_state = states[1 - from].bytes();
    status = gru->forward_codes(x.bytes().subspan(static_cast<size_t>(s * x_row), static_cast<size_t>(x_row)),
                                y.bytes().subspan(static_cast<size_t>(s * y_row), static_cast<size_t>(y_row)), 1,
                                kBatch, states[from].bytes(), workspace.bytes(), options);
  }
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_TRUE(status.ok()) << status.message();
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  Random random(52);
  for (int replay = 0; replay < (sanitized() ? 3 : 25) && !HasFailure(); ++replay) {
    c.run.x = random_tensor(random, 4 * kBatch * 48, c.model.input_grid());
    const Outcome expected = on_host(c);
    x.write(c.run.x);
    ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    wait();
    EXPECT_EQ(y.read<std::byte>(), expected.y) << "replay " << replay;
    GruState actual = c.model.initial_state(kBatch);
    ASSERT_TRUE(gru->download_state(states[0].bytes(), actual, stream_).ok());
    EXPECT_TRUE(equal(actual, expected.state)) << "replay " << replay;
    c.run.start = expected.state;
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

/// Whatever a launch needs must be in the graph: clusters, cooperative launches, the counters that they start from. Of
/// floats a NaN of one replay is forgotten in the next.
TEST_F(DeviceGrus, PersistentRunsReplayInAGraph) {
  if (racecheck()) return;
  for (const PersistentSize& size : kPersistentSizes) {
    if (sanitized() && size.hidden > 300) continue;
    Case c = case_of(23, size);
    c.fast_host = true;
    const Grid& grid = c.model.input_grid();
    store_code(c.run.x.data(), grid.dtype(), x_count(c) - 1, grid.zero_point);
    SCOPED_TRACE(describe(c.shape, c.run, 23, 0));
    const Outcome expected = on_host(c);
    std::vector<float> floats(static_cast<size_t>(x_count(c))),
        float_y(static_cast<size_t>(c.run.steps * c.run.batch * c.model.output_size()));
    dequantize(grid, c.run.x.data(), floats);
    dequantize(c.model.output_grid(), expected.y.data(), float_y);
    const Result<DeviceGru> gru = DeviceGru::create(c.model);
    ASSERT_TRUE(gru.ok()) << gru.status().message();
    if (const Status runs = gru->choose_kernel(c.run.batch, c.run.steps, size.kernel).status(); !runs.ok()) {
      EXPECT_FALSE(must_run(size.kernel, size.hidden)) << runs.message();
      continue;
    }
    GuardedDeviceBuffer x(static_cast<int64_t>(c.run.x.size())), y(static_cast<int64_t>(expected.y.size()));
    GuardedDeviceBuffer state(gru->state_bytes(c.run.batch)), next(gru->state_bytes(c.run.batch));
    GuardedDeviceBuffer workspace(gru->workspace_bytes(c.run.batch, c.run.steps));
    GuardedDeviceBuffer x_floats(x_count(c) * 4), y_floats(static_cast<int64_t>(float_y.size()) * 4);
    x.write(c.run.x);
    ASSERT_TRUE(gru->upload_state(c.run.start, state.bytes(), stream_).ok());
    wait();
    RunOptions options{.stream = stream_, .whole_sequence = true};
    options.kernel = size.kernel;
    options.next_state = next.bytes();
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    const Status status =
        gru->forward_codes(x.bytes(), y.bytes(), c.run.steps, c.run.batch, state.bytes(), workspace.bytes(), options);
    const Status of_floats = gru->forward({static_cast<const float*>(x_floats.data()), floats.size()},
                                          {static_cast<float*>(y_floats.data()), float_y.size()}, c.run.steps,
                                          c.run.batch, state.bytes(), workspace.bytes(), options);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(of_floats.ok()) << of_floats.message();
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    for (int replay = 0; replay < 3; ++replay) {
      y.write(std::vector<std::byte>(expected.y.size()));
      floats.back() = replay % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
      x_floats.write(floats);
      ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
      wait();
      EXPECT_TRUE(y.read<std::byte>() == expected.y) << "replay " << replay;
      EXPECT_TRUE(y_floats.read<float>() == float_y) << "replay " << replay;
      EXPECT_EQ(DeviceGru::check_input(workspace.bytes(), stream_).message(), nan_message(floats))
          << "replay " << replay;
      GruState after = c.model.initial_state(c.run.batch);
      ASSERT_TRUE(gru->download_state(next.bytes(), after, stream_).ok());
      EXPECT_TRUE(equal(after, expected.state)) << "replay " << replay;
    }
    EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
}

/// Both directions of a layer run beside each other, also in a graph; not where the model is captured elsewhere.
TEST_F(DeviceGrus, DirectionsReplayInAGraph) {
  if (racecheck()) return;
  constexpr int64_t kSteps = 6, kBatch = 5;
  for (const auto& [kernel, hidden] : {std::pair<std::string_view, int64_t>{"persistent", 70}, {"products", 520}}) {
    if (sanitized() && kernel == "products") continue;
    Case c = case_of(43, 24, hidden, kBatch, kSteps, 2, 2);
    c.fast_host = true;
    SCOPED_TRACE(kernel);
    const Outcome expected = on_host(c);
    const Result<DeviceGru> gru = DeviceGru::create(c.model);
    ASSERT_TRUE(gru.ok()) << gru.status().message();
    if (const Status runs = gru->choose_kernel(kBatch, kSteps, kernel).status(); !runs.ok()) {
      EXPECT_FALSE(must_run(kernel, hidden)) << runs.message();
      continue;
    }
    struct Run {
      explicit Run(const Case& of, const DeviceGru& gru, size_t y_bytes)
          : x(static_cast<int64_t>(of.run.x.size())),
            y(static_cast<int64_t>(y_bytes)),
            state(gru.state_bytes(kBatch)),
            workspace(gru.workspace_bytes(kBatch, kSteps)) {
        x.write(of.run.x);
      }
      GuardedDeviceBuffer x, y, state, workspace;
    };
    const Run captured(c, *gru, expected.y.size()), eager(c, *gru, expected.y.size());
    RunOptions options{.stream = stream_, .whole_sequence = true};
    options.kernel = kernel;
    RunOptions elsewhere = options;
    const auto enqueue = [&](const Run& run, cudaStream_t stream) {
      elsewhere.stream = stream;
      const Status start = gru->upload_state(c.run.start, run.state.bytes(), stream);
      const Status status = gru->forward_codes(run.x.bytes(), run.y.bytes(), kSteps, kBatch, run.state.bytes(),
                                               run.workspace.bytes(), elsewhere);
      return start.ok() ? status : start;
    };
    cudaStream_t other = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_TRUE(gru->upload_state(c.run.start, captured.state.bytes(), stream_).ok());
    ASSERT_TRUE(gru->upload_state(c.run.start, eager.state.bytes(), other).ok());
    wait();
    ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), cudaSuccess);
    const Status in_graph = gru->forward_codes(captured.x.bytes(), captured.y.bytes(), kSteps, kBatch,
                                               captured.state.bytes(), captured.workspace.bytes(), options);
    elsewhere.stream = other;
    const Status at_once = gru->forward_codes(eager.x.bytes(), eager.y.bytes(), kSteps, kBatch, eager.state.bytes(),
                                              eager.workspace.bytes(), elsewhere);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    ASSERT_TRUE(in_graph.ok()) << in_graph.message();
    ASSERT_TRUE(at_once.ok()) << at_once.message();
    ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    EXPECT_EQ(eager.y.read<std::byte>(), expected.y);
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    for (int replay = 0; replay < 3; ++replay) {
      ASSERT_TRUE(gru->upload_state(c.run.start, captured.state.bytes(), stream_).ok());
      ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
      wait();
      EXPECT_EQ(captured.y.read<std::byte>(), expected.y) << "replay " << replay;
    }
    ASSERT_TRUE(enqueue(eager, other).ok());
    ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    EXPECT_EQ(eager.y.read<std::byte>(), expected.y);
    EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
    // In this mode CUDA refuses what allocates or waits, which `relaxed` lets pass.
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    const Status strict = gru->forward_codes(captured.x.bytes(), captured.y.bytes(), kSteps, kBatch,
                                             captured.state.bytes(), captured.workspace.bytes(), options);
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    EXPECT_TRUE(strict.ok()) << strict.message();
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
}

}  // namespace
}  // namespace isobit::cuda
