// SPDX-License-Identifier: Apache-2.0
// The entry: what a call refuses, and what it leaves alone.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/floats.h"
#include "gru/cuda/gru_test.h"
#include "isobit/cuda/gru.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

TEST_F(DeviceGrus, NothingToDo) {
  const RunOptions on_stream{.stream = stream_};
  const Case c = case_of(31, 4, 6, 2, 1);
  const Result<DeviceGru> gru = DeviceGru::create(c.model);
  ASSERT_TRUE(gru.ok()) << gru.status().message();
  GuardedDeviceBuffer state(gru->state_bytes(2));
  GuardedDeviceBuffer workspace(gru->workspace_bytes(2, 1));
  ASSERT_TRUE(gru->upload_state(c.run.start, state.bytes(), stream_).ok());
  for (const auto& [steps, batch] : {std::pair<int64_t, int64_t>{0, 2}, {3, 0}, {0, 0}}) {
    EXPECT_TRUE(gru->forward_codes({}, {}, steps, batch, state.bytes(), workspace.bytes(), on_stream).ok());
    EXPECT_TRUE(gru->forward({}, {}, steps, batch, state.bytes(), workspace.bytes(), on_stream).ok());
    EXPECT_TRUE(DeviceGru::check_input(workspace.bytes(), stream_).ok());
  }
  EXPECT_TRUE(gru->initial_state({}, 0, stream_).ok());
  GuardedDeviceBuffer other(gru->state_bytes(2));
  RunOptions moves{.stream = stream_, .whole_sequence = true};  // no step: still the state of the run
  moves.next_state = other.bytes();
  EXPECT_TRUE(gru->forward_codes({}, {}, 0, 2, state.bytes(), workspace.bytes(), moves).ok());
  GruState moved = c.model.initial_state(2);
  ASSERT_TRUE(gru->download_state(other.bytes(), moved, stream_).ok());
  EXPECT_TRUE(equal(moved, c.run.start));
  EXPECT_TRUE(gru->initial_state(other.bytes(), 2, stream_).ok());
  EXPECT_TRUE(gru->forward({}, {}, 0, 2, state.bytes(), workspace.bytes(), moves).ok());
  ASSERT_TRUE(gru->download_state(other.bytes(), moved, stream_).ok());
  EXPECT_TRUE(equal(moved, c.run.start));
  GruState after = c.model.initial_state(2);
  ASSERT_TRUE(gru->download_state(state.bytes(), after, stream_).ok());
  EXPECT_TRUE(equal(after, c.run.start));
}

/// An error of another call, which the runtime keeps for whoever asks for the last one, is not told as one of a run.
TEST_F(DeviceGrus, ErrorsOfOthersAreNotTold) {
  if (sanitized()) return;  // memcheck tells them
  const Case c = case_of(32, 6, 10, 2, 5);
  const Result<DeviceGru> gru = DeviceGru::create(c.model);
  ASSERT_TRUE(gru.ok()) << gru.status().message();
  GuardedDeviceBuffer x(5 * 2 * 6 * 4), y(5 * 2 * 10 * 4);
  GuardedDeviceBuffer state(gru->state_bytes(2)), workspace(gru->workspace_bytes(2, 5));
  for (const DeviceGruKernel& kernel : gru_kernels()) {
    if (!gru->choose_kernel(2, 5, kernel.name).ok()) {  // of large layers only
      EXPECT_TRUE(kernel.name == "cluster_many" || kernel.name == "grid" || kernel.name == "products" ||
                  !must_run(kernel.name, 10))
          << kernel.name;
      continue;
    }
    void* memory = nullptr;
    ASSERT_NE(cudaMalloc(&memory, size_t{1} << 60), cudaSuccess);
    RunOptions options{.stream = stream_, .whole_sequence = true};
    options.kernel = kernel.name;
    const Status start = gru->initial_state(state.bytes(), 2, stream_);
    EXPECT_TRUE(start.ok()) << start.message();
    const Status status = gru->forward({static_cast<const float*>(x.data()), 60}, {static_cast<float*>(y.data()), 100},
                                       5, 2, state.bytes(), workspace.bytes(), options);
    EXPECT_TRUE(status.ok()) << kernel.name << ": " << status.message();
    wait();
    EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  }
}

/// Arrays of the host: what finds no room on the device is refused, and the same object runs what does.
TEST_F(DeviceGrus, HostArraysThatDoNotFitAreRefused) {
  if (sanitized()) return;  // memcheck tells the failed allocation
  Case c = case_of(45, 64, 64, 4000, 200);
  c.fast_host = true;
  const Outcome expected = on_host(c);
  const Result<DeviceGru> gru = DeviceGru::create(c.model);
  ASSERT_TRUE(gru.ok()) << gru.status().message();
  std::vector<std::byte> y(expected.y.size(), std::byte{7});
  const std::vector<std::byte> untouched = y;
  GruState state = c.run.start;
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  void* others = nullptr;
  ASSERT_EQ(cudaMalloc(&others, free_bytes - (size_t{64} << 20)), cudaSuccess);
  const Status no_room = gru->workspace(c.run.batch, c.run.steps).status();
  EXPECT_NE(no_room.message().find(" bytes of memory of device 0: cudaErrorMemoryAllocation"), std::string::npos)
      << no_room.message();
  Result<Workspace> small = gru->workspace(c.run.batch, 1);
  ASSERT_TRUE(small.ok()) << small.status().message();
  const Status refused = gru->forward_codes(c.run.x, y, c.run.steps, state, *small);
  EXPECT_NE(refused.message().find(" for 200 steps of 4000 sequences; make it with workspace(batch, steps)"),
            std::string::npos)
      << refused.message();
  Workspace of_host = c.model.workspace(c.run.batch, c.run.steps);
  EXPECT_NE(gru->forward_codes(c.run.x, y, c.run.steps, state, of_host)
                .message()
                .find("memory of the host, must be of CUDA device 0"),
            std::string::npos);
  EXPECT_NE(c.model.forward_codes(c.run.x, y, c.run.steps, state, *small)
                .message()
                .find("memory of CUDA device 0, must be of the host"),
            std::string::npos);
  EXPECT_EQ(y, untouched);
  EXPECT_TRUE(equal(state, c.run.start));
  ASSERT_EQ(cudaFree(others), cudaSuccess);
  Result<Workspace> workspace = gru->workspace(c.run.batch, c.run.steps);
  ASSERT_TRUE(workspace.ok()) << workspace.status().message();
  const Status status = gru->forward_codes(c.run.x, y, c.run.steps, state, *workspace);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(y, expected.y);
  EXPECT_TRUE(equal(state, expected.state));
}

/// A model on the device with the highest number.
TEST_F(DeviceGrus, OtherDevicesGiveTheSameBytes) {
  if (racecheck()) return;
  int devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  Case c = case_of(46, 40, 300, 9, 12);
  const Outcome expected = on_host(c);
  const Result<DeviceGru> gru = DeviceGru::create(c.model, devices - 1);
  ASSERT_TRUE(gru.ok()) << gru.status().message();
  std::vector<std::byte> y(expected.y.size());
  GruState state = c.run.start;
  Result<Workspace> workspace = gru->workspace(c.run.batch, c.run.steps);
  ASSERT_TRUE(workspace.ok()) << workspace.status().message();
  const Status status = gru->forward_codes(c.run.x, y, c.run.steps, state, *workspace);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(y, expected.y);
  EXPECT_TRUE(equal(state, expected.state));
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  std::printf("device %d of %d\n", devices - 1, devices);
}

TEST_F(DeviceGrus, RefusesByName) {
  const RunOptions on_stream{.stream = stream_};
  if (racecheck()) return;
  const Case c = case_of(41, 3, 5, 2, 4, 2, 1);
  const Result<DeviceGru> gru = DeviceGru::create(c.model);
  ASSERT_TRUE(gru.ok()) << gru.status().message();
  const int64_t x_size = size_of(c.model.input_grid());
  const int64_t y_size = size_of(c.model.output_grid());
  GuardedDeviceBuffer x(4 * 2 * 3 * x_size);
  GuardedDeviceBuffer y(4 * 2 * 5 * y_size);
  GuardedDeviceBuffer x_float(4 * 2 * 3 * 4);
  GuardedDeviceBuffer y_float(4 * 2 * 5 * 4);
  GuardedDeviceBuffer state(gru->state_bytes(2) + 256);
  GuardedDeviceBuffer workspace(gru->workspace_bytes(2, 4) + 256);
  EXPECT_EQ(gru->state_bytes(2), 512);  // two layers
  const auto expect = [](const Status& status, const char* part) {
    EXPECT_FALSE(status.ok()) << part;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message() << "\nwithout: " << part;
  };
  const auto codes = [&](std::span<const std::byte> in, std::span<std::byte> out, int64_t steps, int64_t batch,
                         std::span<std::byte> h, std::span<std::byte> scratch, RunOptions options = {}) {
    options.stream = stream_;
    return gru->forward_codes(in, out, steps, batch, h, scratch, options);
  };
  const auto in = std::span<const std::byte>(x.bytes());
  const auto out = y.bytes();
  const auto h = state.bytes();
  const auto scratch = workspace.bytes();
  EXPECT_TRUE(codes(in, out, 4, 2, h, scratch).ok());
  wait();
  expect(codes(in, out, -1, 2, h, scratch), "steps is -1, must not be negative");
  expect(codes(in, out, 4, -2, h, scratch), "batch is -2, must not be negative");
  expect(codes(in.first(23 * static_cast<size_t>(x_size)), out, 4, 2, h, scratch), "x has 23 elements");
  expect(codes(in, out, 5, 2, h, scratch), "must have 5 * 2 * 3");
  expect(codes(in, out.first(39 * static_cast<size_t>(y_size)), 4, 2, h, scratch), "y has 39 elements");
  expect(codes({static_cast<const std::byte*>(nullptr), in.size()}, out, 4, 2, h, scratch), "x is null");
  expect(codes(in, out, INT64_MAX / 2, INT64_MAX / 2, h, scratch), "x has 24 elements");
  expect(codes(in, out, 4, 2, h.first(511), scratch), "state has 511 bytes, must have 512 for 2 sequences");
  expect(codes(in, out, 4, 2, h.subspan(1), scratch), "state is not aligned to 256 bytes");
  expect(codes(in, out, 4, 2, h, scratch.first(scratch.size() - 257)), "workspace has ");
  expect(codes(in, out, 4, 2, h, scratch.subspan(64)), "workspace is not aligned to 256 bytes");
  expect(codes(out.first(in.size()), out, 4, 2, h, scratch), "y overlaps x, must not");
  expect(codes(in, out, 4, 2, scratch.first(512), scratch), "workspace overlaps state, must not");
  expect(codes(in, scratch.subspan(scratch.size() - out.size()), 4, 2, h, scratch), "workspace overlaps y, must not");
  const auto moving = [&](std::span<std::byte> next) {
    RunOptions options{.stream = stream_, .whole_sequence = true};
    options.next_state = next;
    return codes(in, out, 4, 2, h, scratch, options);
  };
  const auto with = [&](RunOptions options, const char* part) {
    expect(codes(in, out, 4, 2, h, scratch, options), part);
  };
  ThreadPool pool(1);
  with({.path = CpuPath::kScalar}, "options.path is set, which means nothing to a GRU on a device");
  with({.pool = &pool}, "options.pool is set");
  with({.x_stride = 5}, "options.x_stride is set");
  const auto lengths = std::span(reinterpret_cast<const int64_t*>(in.data()), 3);
  with({.lengths = lengths}, "lengths has 3 values, must have 2 (the batch)");
  GuardedDeviceBuffer other_state(512);
  EXPECT_TRUE(moving(other_state.bytes()).ok());
  expect(moving(other_state.bytes().first(511)), "next_state has 511 bytes, must have 512 for 2 sequences");
  expect(moving(other_state.bytes().subspan(1)), "next_state is not aligned to 256 bytes");
  expect(moving({static_cast<std::byte*>(nullptr), 512}), "next_state is null");
  expect(moving(h), "next_state overlaps state, must not");
  expect(moving(h.subspan(256)), "next_state overlaps state, must not");
  expect(moving(scratch.first(512)), "next_state overlaps workspace, must not");
  RunOptions unknown{.stream = stream_, .whole_sequence = true};
  unknown.kernel = "fast";
  expect(codes(in, out, 4, 2, h, scratch, unknown), "kernel is 'fast', must be one of ");
  expect(gru->choose_kernel(2, 4, "fast").status(), "kernel is 'fast', must be one of ");
  EXPECT_TRUE(gru->choose_kernel(2, 4).ok());
  EXPECT_EQ(*gru->choose_kernel(2, 4, "generic"), "generic");
  RunOptions masked{.stream = stream_, .whole_sequence = true};
  masked.zoneout_mask = {reinterpret_cast<const uint8_t*>(in.data()), 40};
  expect(codes(in, out, 4, 2, h, scratch, masked), "a zoneout mask is for models of one layer, this one has 2");
  RunOptions odd{.stream = stream_, .whole_sequence = true};
  odd.lengths = {reinterpret_cast<const int64_t*>(in.data() + 1), 2};
  expect(codes(in, out, 4, 2, h, scratch, odd), "lengths is not aligned");

  alignas(256) static std::byte host[4096];
  expect(codes(std::span<const std::byte>(host).first(in.size()), out, 4, 2, h, scratch), "x is host memory");
  expect(codes(in, std::span(host).first(out.size()), 4, 2, h, scratch), "y is host memory");
  expect(codes(in, out, 4, 2, std::span(host).first(512), scratch), "state is host memory");
  expect(moving(std::span(host).first(512)), "next_state is host memory");
  RunOptions on_host{.stream = stream_, .whole_sequence = true};
  on_host.lengths = {reinterpret_cast<const int64_t*>(host), 2};
  expect(codes(in, out, 4, 2, h, scratch, on_host), "lengths is host memory");
  alignas(256) static std::byte host_workspace[1 << 20];
  ASSERT_LE(scratch.size(), sizeof(host_workspace));
  expect(codes(in, out, 4, 2, h, host_workspace), "workspace is host memory");
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, in.size()), cudaSuccess);
  expect(codes({static_cast<const std::byte*>(pinned), in.size()}, out, 4, 2, h, scratch), "x is host memory");
  ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
  {  // What ends sooner than it is said to: the first allocation behind which there is none.
    std::vector<void*> blocks;
    const size_t block = size_t{64} << 20;
    const auto end = [&] { return static_cast<const std::byte*>(blocks.back()) + block; };
    cudaPointerAttributes behind{};
    do {
      ASSERT_LT(blocks.size(), 16U);
      void* memory = nullptr;
      ASSERT_EQ(cudaMalloc(&memory, block), cudaSuccess);
      blocks.push_back(memory);
      ASSERT_EQ(cudaPointerGetAttributes(&behind, end() + 8), cudaSuccess);
    } while (behind.type == cudaMemoryTypeDevice);
    expect(codes({end() - 8, in.size()}, out, 4, 2, h, scratch), "the last byte of x is host memory");
    RunOptions few{.stream = stream_, .whole_sequence = true};
    few.lengths = {reinterpret_cast<const int64_t*>(end() - 8), 2};
    expect(codes(in, out, 4, 2, h, scratch, few), "the last byte of lengths is host memory");
    for (void* memory : blocks) ASSERT_EQ(cudaFree(memory), cudaSuccess);
  }
  const Case both_case = case_of(44, 3, 5, 2, 4, 1, 2);
  const Result<DeviceGru> both_gru = DeviceGru::create(both_case.model);
  ASSERT_TRUE(both_gru.ok()) << both_gru.status().message();
  GuardedDeviceBuffer both_y(static_cast<int64_t>(4 * 2 * 10 * size_of(both_case.model.output_grid())));
  GuardedDeviceBuffer both_state(both_gru->state_bytes(2)), both_scratch(both_gru->workspace_bytes(2, 4));
  expect(both_gru->forward_codes(x.bytes().first(24 * static_cast<size_t>(size_of(both_case.model.input_grid()))),
                                 both_y.bytes(), 4, 2, both_state.bytes(), both_scratch.bytes(), on_stream),
         "set whole_sequence");
  const Case masked_case = case_of(44, 3, 5, 2, 4);
  const Result<DeviceGru> one_layer_gru = DeviceGru::create(masked_case.model);
  ASSERT_TRUE(one_layer_gru.ok()) << one_layer_gru.status().message();
  RunOptions host_mask{.stream = stream_, .whole_sequence = true};
  host_mask.zoneout_mask = {reinterpret_cast<const uint8_t*>(host), 40};
  expect(
      one_layer_gru->forward_codes(x.bytes().first(24 * static_cast<size_t>(size_of(masked_case.model.input_grid()))),
                                   y.bytes().first(40 * static_cast<size_t>(size_of(masked_case.model.output_grid()))),
                                   4, 2, h, scratch, host_mask),
      "zoneout_mask is host memory");
  for (const char* kernel : {"persistent", "step"})  // more than its grids and integers hold: another row runs it
    expect(gru->choose_kernel(int64_t{1} << 30, 1, kernel).status(), "batch is 1073741824, must be at most ");
  EXPECT_EQ(*gru->choose_kernel(int64_t{1} << 30, 1), "generic");

  const std::span<const float> floats(static_cast<const float*>(x_float.data()), 24);
  const std::span<float> results(static_cast<float*>(y_float.data()), 40);
  expect(gru->forward(floats.first(23), results, 4, 2, h, scratch, on_stream), "x has 23 elements of 4 bytes");
  expect(gru->forward(floats, results.first(39), 4, 2, h, scratch, on_stream), "y has 39 elements of 4 bytes");
  expect(gru->forward(floats, results, 4, 2, h.first(5), scratch, on_stream), "state has 5 bytes");
  expect(gru->forward(floats, results, 4, 2, h, scratch.first(256), on_stream), "workspace has 256 bytes");
  expect(DeviceGru::check_input(scratch.first(kNanPlaces * 8 - 1), stream_), "workspace has 8191 bytes");
  expect(DeviceGru::check_input(scratch.subspan(8), stream_), "workspace is not aligned");

  expect(gru->initial_state(h, -1, stream_), "batch is -1");
  expect(gru->initial_state(h.first(511), 2, stream_), "state has 511 bytes");
  expect(gru->initial_state(std::span(host).first(512), 2, stream_), "state is host memory");
  expect(gru->upload_state(c.run.start, h.first(511), stream_), "state has 511 bytes");
  const std::span<float> numbers = results.first(20);  // [2 layers, 2, 5]
  expect(gru->state_from_float(numbers.first(19), h, 2, stream_), "h has 19 elements of 4 bytes, must have 2 * 2 * 5");
  expect(gru->state_from_float(numbers, h.first(511), 2, stream_), "state has 511 bytes");
  expect(gru->state_to_float(h, numbers, -1, stream_), "batch is -1");
  expect(gru->state_to_float(h, {reinterpret_cast<float*>(h.data()), 20}, 2, stream_), "overlaps");
  GruState other = case_of(42, 3, 6, 2, 1, 2, 1).run.start;
  expect(gru->upload_state(other, h, stream_), "the state of the host has 12 bytes in layer direction 0, must have 10");
  expect(gru->download_state(h, other, stream_),
         "the state of the host has 12 bytes in layer direction 0, must have 10");
  GruState one_layer = case_of(43, 3, 5, 2, 1, 1, 1).run.start;
  expect(gru->download_state(h, one_layer, stream_), "the state of the host has 1 layer directions, must have 2");

  int devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  if (devices > 1) {
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    expect(codes(in, out, 4, 2, h, scratch), "the current device is 1, must be that of the model, 0");
    cudaStream_t elsewhere = nullptr;
    ASSERT_EQ(cudaStreamCreate(&elsewhere), cudaSuccess);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    expect(gru->forward_codes(in, out, 4, 2, h, scratch, {.stream = elsewhere}),
           "stream belongs to device 1, must belong to");
    EXPECT_EQ(cudaStreamDestroy(elsewhere), cudaSuccess);
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    void* of_another = nullptr;
    ASSERT_EQ(cudaMalloc(&of_another, 4096), cudaSuccess);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    expect(codes({static_cast<const std::byte*>(of_another), in.size()}, out, 4, 2, h, scratch),
           "x is memory of device 1, must be memory of device 0");
    EXPECT_EQ(cudaFree(of_another), cudaSuccess);
    EXPECT_TRUE(codes(in, out, 4, 2, h, scratch).ok());
  }
  wait();
  for (const GuardedDeviceBuffer* buffer : {&x, &y, &x_float, &y_float, &state, &workspace})
    (void)buffer->read<std::byte>();
}

}  // namespace
}  // namespace isobit::cuda
