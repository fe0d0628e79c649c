// SPDX-License-Identifier: Apache-2.0
// The GRU on a device against the reference on the host, byte for byte: random models, floats, and which kernel a run
// takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gru/cuda/gru_test.h"
#include "gru/random_model.h"
#include "isobit/cuda/gru.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

TEST_F(DeviceGrus, CodesEqualTheReference) {
  const int cases = sanitized() ? 12 : 1000;
  compare_random(7001, Widths::kUsual, cases, sanitized() ? 200'000 : 30'000'000);
  for (const auto& [what, runs] : runs_) std::printf("%s: %d of %d models\n", what.c_str(), runs, cases);
  EXPECT_GT(runs_["step"], cases / 2);
  if (sanitized()) return;
  for (const char* what : {"float", "double", "int64", "nearest_even", "nearest_up", "nearest_away", "floor",
                           "x of 16 bits", "h of 16 bits", "x as it is", "h as it is"})
    EXPECT_GT(runs_[std::string("step, ") + what], cases / 50) << what;
}

TEST_F(DeviceGrus, ByteCodesEqualTheReference) {
  const int cases = sanitized() ? 10 : 300;
  compare_random(7003, Widths::kBytes, cases, sanitized() ? 2'000'000 : 40'000'000);
  int major = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  std::printf("persistent: %d of %d models\n", runs_["persistent"], cases);
  if (major == 9 && !racecheck()) {
    EXPECT_GT(runs_["persistent"], cases / 2);
  }
}

TEST_F(DeviceGrus, WideCodesEqualTheReference) {
  compare_random(7002, Widths::kWide, sanitized() ? 6 : 300, sanitized() ? 200'000 : 20'000'000);
}

/// Gate inputs of 13 to 16 bits, whose tables are interpolated, and of 2 and 3: `step` and `generic` look them up.
TEST_F(DeviceGrus, GateInputsOfEveryWidth) {
  uint64_t seed = 7900;
  int interpolated = 0;
  for (const int32_t gate_in_bits : {2, 3, 13, 14, 16})
    for (const ScaleKind kind : {ScaleKind::kPow2, ScaleKind::kReal}) {
      if (sanitized() && (gate_in_bits > 13 || kind == ScaleKind::kReal)) continue;
      RandomShape shape;
      shape.input = 12;
      shape.hidden = 33;
      shape.h_bits = shape.gate_out_bits = gate_in_bits > 8 ? 16 : 8;
      shape.gate_in_bits = gate_in_bits;
      shape.kind = kind;
      shape.rounding = kAllRoundings[++seed % 4];
      const Case c = case_of(seed, shape, 7, 20);
      SCOPED_TRACE(describe(c.shape, c.run, seed, 0) + ", gate inputs of " + std::to_string(gate_in_bits) + " bits");
      for (const ActivationTable& table : c.model.parameters().layers.front().tables)
        if (table.kind == TableKind::kInterpolated) ++interpolated;
      const int step = runs_["step"], generic = runs_["generic"];
      compare(c);
      EXPECT_EQ(runs_["step"], step + 1);
      EXPECT_EQ(runs_["generic"], generic + 1);
    }
  EXPECT_GE(interpolated, sanitized() ? 1 : 9);
}

TEST_F(DeviceGrus, ManySequencesAndLargeSizes) {
  compare(case_of(1, 5, 3, sanitized() ? 300 : 3001, 2));  // more sequences than blocks
  if (!sanitized()) compare(case_of(2, 1531, 1030, 3, 3));
  if (!sanitized()) compare(case_of(3, 1, 2049, 1, 2));
  compare(case_of(4, 9, 1, 40, 20, 2, 2));
  struct Large {
    int64_t hidden, batch;
  };
  for (const Large& size : {Large{1040, 2}, {1040, 40}, {1100, 230}}) {  // two directions that take the whole device
    if (sanitized()) continue;
    Case c = case_of(5, 20, size.hidden, size.batch, 6, 2, 2);
    c.fast_host = true;
    compare(c);
  }
  if (!sanitized()) {  // several launches, the last of one sequence
    Case c = case_of(6, 1, 1025, 10241, 2);
    c.fast_host = true;
    compare(c, "persistent");
  }
  std::printf("%lld outputs compared\n", static_cast<long long>(compared_));
}

TEST_F(DeviceGrus, FloatsEqualTheReferenceAndNanIsReported) {
  Random random(7003);
  const int cases = sanitized() ? 4 : 150;
  for (int index = 0; index < cases && !HasFailure(); ++index) {
    Case c = next_case(random,
                       index % 4 == 3   ? Widths::kWide
                       : index % 4 == 1 ? Widths::kBytes
                                        : Widths::kUsual,
                       sanitized() ? 100'000 : 5'000'000);
    SCOPED_TRACE(describe(c.shape, c.run, 7003, index));
    const int64_t batch = c.run.batch;
    const int64_t steps = c.run.steps;
    const int64_t x_count = steps * batch * c.model.input_size();
    const int64_t y_count = steps * batch * c.model.output_size();
    std::vector<float> x = random_floats(random, c.model.input_grid(), x_count);
    const Result<DeviceGru> gru = DeviceGru::create(c.model);
    ASSERT_TRUE(gru.ok()) << gru.status().message();
    GuardedDeviceBuffer x_device(x_count * 4, 4);
    GuardedDeviceBuffer y_device(y_count * 4, 4);
    GuardedDeviceBuffer state(gru->state_bytes(batch));
    GuardedDeviceBuffer workspace(gru->workspace_bytes(batch, steps));
    const DeviceOptions device(c, stream_);
    const auto* x_begin = static_cast<const float*>(x_device.data());
    auto* y_begin = static_cast<float*>(y_device.data());
    for (const int nans : {0, 2, 0}) {
      std::vector<float> with_nan = x;
      int64_t first = x_count;
      for (int i = 0; i < nans; ++i) {
        const int64_t at = random.between(0, x_count - 1);
        with_nan[static_cast<size_t>(at)] = std::numeric_limits<float>::quiet_NaN();
        x[static_cast<size_t>(at)] = 0.0f;  // what it counts as
        first = std::min(first, at);
      }
      GruState expected_state = c.run.start;
      std::vector<float> expected(static_cast<size_t>(y_count));
      Workspace host_workspace = c.model.workspace(batch, steps);
      const Status on_host = c.model.forward(x, expected, steps, expected_state, host_workspace, host_options(c));
      ASSERT_TRUE(on_host.ok()) << on_host.message();
      x_device.write(with_nan);
      ASSERT_TRUE(gru->upload_state(c.run.start, state.bytes(), stream_).ok());
      const Status status = gru->forward({x_begin, with_nan.size()}, {y_begin, expected.size()}, steps, batch,
                                         state.bytes(), workspace.bytes(), device.options);
      ASSERT_TRUE(status.ok()) << status.message();
      GruState actual_state = c.model.initial_state(batch);
      ASSERT_TRUE(gru->download_state(state.bytes(), actual_state, stream_).ok());
      const auto actual = y_device.read<uint32_t>();
      for (int64_t i = 0; i < y_count; ++i)
        ASSERT_EQ(actual[static_cast<size_t>(i)], __builtin_bit_cast(uint32_t, expected[static_cast<size_t>(i)]))
            << "y[" << i << "]";
      EXPECT_TRUE(equal(actual_state, expected_state));
      const Status found = DeviceGru::check_input(workspace.bytes(), stream_);
      EXPECT_EQ(found.message(), nans == 0 ? "" : "x[" + std::to_string(first) + "] is NaN, must be a number");
      compared_ += y_count;
    }
    (void)workspace.read<std::byte>();
  }
  std::printf("%d models, %lld float outputs compared\n", cases, static_cast<long long>(compared_));
}

/// What choose_kernel says of a run is what the run takes, for codes with a next state and without, and for floats.
TEST_F(DeviceGrus, RunsTakeTheKernelThatChooseKernelNames) {
  constexpr int64_t kMostSequences = 512;
  const Case c = case_of(63, 512, 512, 1, 1);
  const Result<DeviceGru> gru = DeviceGru::create(c.model);
  ASSERT_TRUE(gru.ok()) << gru.status().message();
  const int64_t most = kMostSequences * 512 * 4;
  GuardedDeviceBuffer x(most), y(most);
  GuardedDeviceBuffer state(gru->state_bytes(kMostSequences)), next_state(gru->state_bytes(kMostSequences));
  GuardedDeviceBuffer workspace(gru->workspace_bytes(kMostSequences, 2));
  std::set<std::string> both_ways;  // chosen for the one kind of codes and not for the other
  for (const int64_t steps : {int64_t{1}, int64_t{2}})
    for (const int64_t batch : {8, 100, 512}) {
      if (steps * batch > kMostSequences) continue;
      const auto count = static_cast<size_t>(steps * batch * 512);
      const auto kernels = [&](bool floats, bool with_next_state, std::string_view forced) {
        RunOptions options{.whole_sequence = true};
        options.kernel = forced;
        if (with_next_state) options.next_state = next_state.bytes();
        return captured_kernels(stream_, [&](cudaStream_t stream) {
          options.stream = stream;
          return floats ? gru->forward({static_cast<const float*>(x.data()), count},
                                       {static_cast<float*>(y.data()), count}, steps, batch, state.bytes(),
                                       workspace.bytes(), options)
                        : gru->forward_codes(x.bytes().first(count), y.bytes().first(count), steps, batch,
                                             state.bytes(), workspace.bytes(), options);
        });
      };
      std::set<std::string> chosen_for_codes;
      for (const bool floats : {false, true})
        for (const bool with_next_state : {false, true}) {
          SCOPED_TRACE(std::to_string(steps) + " steps of " + std::to_string(batch) +
                       (floats ? ", floats" : ", codes") + (with_next_state ? ", next_state" : ""));
          const auto chosen = gru->choose_kernel(batch, steps, {}, !floats && with_next_state);
          ASSERT_TRUE(chosen.ok()) << chosen.status().message();
          const std::vector<const void*> taken = kernels(floats, with_next_state, {});
          ASSERT_FALSE(taken.empty());
          int equal = 0;
          for (const DeviceGruKernel& kernel : gru_kernels()) {
            if (!gru->choose_kernel(batch, steps, kernel.name).ok()) continue;
            const bool same = taken == kernels(floats, with_next_state, kernel.name);
            EXPECT_EQ(same, kernel.name == *chosen) << kernel.name << ", chosen " << *chosen;
            equal += same ? 1 : 0;
          }
          EXPECT_EQ(equal, 1);
          if (!floats) chosen_for_codes.insert(std::string(*chosen));
        }
      if (chosen_for_codes.size() > 1) both_ways.insert(chosen_for_codes.begin(), chosen_for_codes.end());
    }
  if (gru->choose_kernel(64, 1, "products").ok()) {
    EXPECT_EQ(both_ways, (std::set<std::string>{"products", "step"}));
  }
}

/// A first layer of few inputs does not decide for those after it, which have H.
TEST_F(DeviceGrus, TheLastLayersInputsDecide) {
  for (const int32_t layers : {1, 2}) {
    const Result<DeviceGru> gru = DeviceGru::create(case_of(64, 16, 1024, 1, 1, layers).model);
    ASSERT_TRUE(gru.ok()) << gru.status().message();
    if (!gru->choose_kernel(64, 1, "products").ok()) {
      EXPECT_FALSE(must_run("products", 1024));
      return;
    }
    const auto chosen = gru->choose_kernel(64, 1, {}, true);
    ASSERT_TRUE(chosen.ok()) << chosen.status().message();
    EXPECT_EQ(*chosen, layers == 1 ? "step" : "products") << layers << " layers";
  }
}

/// One step of floats, over its own state, or of rows that are not aligned, is two launches of `step`; of `products`
/// every step is.
TEST_F(DeviceGrus, StepsThatCopyAreProductsOfFewerSequences) {
  const Result<DeviceGru> aligned = DeviceGru::create(case_of(62, 512, 512, 1, 1).model);
  const Result<DeviceGru> odd_rows = DeviceGru::create(case_of(62, 500, 512, 1, 1).model);
  ASSERT_TRUE(aligned.ok() && odd_rows.ok());
  const bool has_products = aligned->choose_kernel(100, 1, "products").ok();
  if (!has_products) {
    EXPECT_FALSE(must_run_persistent()) << "built without code for sm_90a";
  }
  const char* const many = has_products ? "products" : "step";
  EXPECT_EQ(*aligned->choose_kernel(8, 1), "step");
  EXPECT_EQ(*aligned->choose_kernel(100, 1), many);
  EXPECT_EQ(*aligned->choose_kernel(100, 1, {}, true), "step");
  EXPECT_EQ(*aligned->choose_kernel(512, 1, {}, true), many);
  EXPECT_EQ(*odd_rows->choose_kernel(100, 1, {}, true), many);
}

TEST_F(DeviceGrus, RunsOfOneInputAreEqual) {
  struct Repeated {
    Case c;
    std::string_view only;  // kernel; of the others those that can run it
  };
  std::vector<Repeated> cases = {{case_of(21, 65, 129, 17, 9, 2, 2), {}}};
  if (!sanitized())
    for (const PersistentSize& size : kPersistentSizes) cases.push_back({case_of(22, size), size.kernel});
  for (const auto& [c, only] : cases) {
    const Result<DeviceGru> gru = DeviceGru::create(c.model);
    ASSERT_TRUE(gru.ok()) << gru.status().message();
    for (const DeviceGruKernel& kernel : gru_kernels()) {
      if (hidden_from_sanitizer(kernel.name) || (!only.empty() && kernel.name != only)) continue;
      if (const Status runs = gru->choose_kernel(c.run.batch, c.run.steps, kernel.name).status(); !runs.ok()) {
        EXPECT_FALSE(!only.empty() && must_run(only, c.shape.hidden)) << runs.message();
        continue;
      }
      Outcome first;
      on_device(c, *gru, kernel.name, Entry::kCodes, first);
      for (int repeat = 1; repeat < (sanitized() ? 3 : 1000) && !HasFailure(); ++repeat) {
        Outcome again;
        on_device(c, *gru, kernel.name, Entry::kCodes, again);
        ASSERT_TRUE(again.y == first.y) << kernel.name << ", H = " << c.shape.hidden << ", repeat " << repeat;
        ASSERT_TRUE(equal(again.state, first.state)) << kernel.name << " " << repeat;
      }
    }
  }
}

/// While another thread keeps the device busy with runs of another model.
TEST_F(DeviceGrus, OtherWorkOnTheDeviceChangesNoByte) {
  if (sanitized()) return;
  const Case load = case_of(41, 512, 512, 200, 64);
  const Result<DeviceGru> load_gru = DeviceGru::create(load.model);
  ASSERT_TRUE(load_gru.ok()) << load_gru.status().message();
  Outcome expected_load;
  on_device(load, *load_gru, {}, Entry::kCodes, expected_load);
  std::atomic<bool> done = false;
  int64_t load_runs = 0;
  std::thread other([&] {
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    GuardedDeviceBuffer x(static_cast<int64_t>(load.run.x.size()));
    GuardedDeviceBuffer y(static_cast<int64_t>(expected_load.y.size()));
    GuardedDeviceBuffer state(load_gru->state_bytes(200));
    GuardedDeviceBuffer workspace(load_gru->workspace_bytes(200, 64));
    x.write(load.run.x);
    while (!done && !HasFailure()) {
      for (int run = 0; run < 8; ++run, ++load_runs) {
        ASSERT_TRUE(load_gru->initial_state(state.bytes(), 200, stream).ok());
        const Status status = load_gru->forward_codes(x.bytes(), y.bytes(), 64, 200, state.bytes(), workspace.bytes(),
                                                      {.stream = stream});
        ASSERT_TRUE(status.ok()) << status.message();
      }
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      EXPECT_EQ(y.read<std::byte>(), expected_load.y);
    }
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  });
  struct Size {
    int64_t hidden, batch, steps;
    int32_t directions;
  };
  for (const Size& size : {Size{64, 300, 20, 2}, Size{300, 40, 20, 2}, Size{1000, 90, 12, 1}, Size{1040, 5, 12, 2},
                           Size{1100, 40, 12, 1}, Size{2048, 3, 12, 1}}) {
    Case c = case_of(42, 24, size.hidden, size.batch, size.steps, 1, size.directions);
    c.fast_host = true;
    SCOPED_TRACE(describe(c.shape, c.run, 42, 0));
    for (const char* kernel : {"persistent", "portable", "products", "step"})
      for (int repeat = kernel == std::string_view("persistent") ? 0 : 2; repeat < 3 && !HasFailure(); ++repeat)
        compare(c, kernel);
  }
  for (const char* kernel : {"persistent", "portable", "products", "step"})
    EXPECT_TRUE(runs_[kernel] > 0 || !must_run(kernel, 1100)) << kernel;
  done = true;
  other.join();
  EXPECT_GT(load_runs, 0);
  std::printf("%lld runs of the other model beside %lld outputs\n", static_cast<long long>(load_runs),
              static_cast<long long>(compared_));
}

}  // namespace
}  // namespace isobit::cuda
