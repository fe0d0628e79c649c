// SPDX-License-Identifier: Apache-2.0
// libisobit.so against the C++ library that the test itself has inside: the same bytes, and refusals by name.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "c/api_test.h"
#include "core/random.h"
#include "gru/random_model.h"
#include "io/test_files.h"
#include "isobit/arrays.h"
#include "isobit/fp16_function.h"
#include "isobit/gru.h"
#include "isobit/isobit.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "testing/allocations.h"

namespace isobit {
namespace {

using Gru = Owned<isobit_gru, isobit_gru_destroy>;
using State = Owned<isobit_gru_state, isobit_gru_state_destroy>;
using GruWorkspace = Owned<isobit_gru_workspace, isobit_gru_workspace_destroy>;
using Table = Owned<isobit_fp16_table, isobit_fp16_table_destroy>;
using Arrays = Owned<isobit_arrays, isobit_arrays_destroy>;
using Linear = Owned<isobit_linear, isobit_linear_destroy>;
using StaticLinear = Owned<isobit_static_linear, isobit_static_linear_destroy>;

RandomShape shape_of(int64_t input, int64_t hidden, int32_t layers = 1, int32_t directions = 1) {
  RandomShape shape;
  shape.input = input;
  shape.hidden = hidden;
  shape.layers = layers;
  shape.directions = directions;
  return shape;
}

/// A random model, here and through a file in C.
struct Pair {
  explicit Pair(const RandomShape& shape, uint64_t seed = 1) {
    Random random(seed);
    for (Result<GruModel> made = random_model(random, shape);; made = random_model(random, shape)) {
      if (!made.ok()) continue;  // refused by the proof
      model = *std::move(made);
      break;
    }
    const TemporaryFolder folder;
    const std::string path = folder.file("model.safetensors");
    EXPECT_TRUE(model->save(path).ok());
    EXPECT_DONE(isobit_gru_load(path.c_str(), nullptr, gru.out()));
  }
  std::optional<GruModel> model;
  Gru gru;
};

TEST(CApi, VersionStatusAndPaths) {
  EXPECT_STREQ(isobit_version(), ISOBIT_VERSION);
  EXPECT_STREQ(isobit_status_name(ISOBIT_OVERFLOW), "overflow");
  EXPECT_STREQ(isobit_status_name(55), "unknown status");
  EXPECT_DONE(isobit_cpu_check(ISOBIT_CPU_REFERENCE));
  EXPECT_DONE(isobit_cpu_check(ISOBIT_CPU_SCALAR));
  for (const CpuPath path : kAllCpuPaths) {
    const int32_t status = isobit_cpu_check(static_cast<int32_t>(path) + 1);
    EXPECT_EQ(status, cpu_can_run(path) ? ISOBIT_OK : ISOBIT_FAILED_PRECONDITION);
  }
  refused(isobit_cpu_check(7), "cpu_path is 7, must be 0..6");
  refused(isobit_cpu_check(-1), "cpu_path is -1, must be 0..6");
}

TEST(CApi, ErrorsAreOfTheirThread) {
  refused(isobit_cpu_check(77), "cpu_path is 77");
  std::string other;
  std::thread([&] { other = isobit_last_error(); }).join();
  EXPECT_EQ(other, "");
  EXPECT_DONE(isobit_cpu_check(ISOBIT_CPU_SCALAR));
  EXPECT_EQ(std::string(isobit_last_error()).find("cpu_path is 77"), 0U);  // a success leaves it
}

TEST(CApi, Pools) {
  Pool pool;
  ASSERT_DONE(isobit_pool_create(3, pool.out()));
  EXPECT_EQ(isobit_pool_threads(pool), 3);
  EXPECT_EQ(isobit_pool_threads(nullptr), 0);
  isobit_pool* none = pool;
  refused(isobit_pool_create(1025, &none), "threads is 1025, must be 0..1024");
  EXPECT_EQ(none, nullptr);
  refused(isobit_pool_create(1, nullptr), "pool is NULL");
}

TEST(CApi, StructSizes) {
  const Pair pair(shape_of(3, 5));
  isobit_gru_info info{};
  refused(isobit_gru_get_info(pair.gru, &info), "info->struct_size is 0, must be 112");
  info.struct_size = sizeof info - 1;
  refused(isobit_gru_get_info(pair.gru, &info), "info->struct_size is 111");
  info.struct_size = 1025;
  refused(isobit_gru_get_info(pair.gru, &info), "at most 1024");
  refused(isobit_gru_get_info(pair.gru, nullptr), "info is NULL");

  // A later version's structure: what is not known is zeroed.
  struct Later {
    isobit_gru_info info;
    int64_t more[2];
  } later{};
  later.info.struct_size = sizeof later;
  later.more[0] = later.more[1] = -1;
  ASSERT_DONE(isobit_gru_get_info(pair.gru, &later.info));
  EXPECT_EQ(later.info.struct_size, sizeof later);
  EXPECT_EQ(later.info.hidden_size, 5);
  EXPECT_EQ(later.more[0], 0);
  EXPECT_EQ(later.more[1], 0);

  // And what is not known must be zero.
  struct LaterOptions {
    isobit_low_bit_options options;
    int64_t more;
  } options{};
  options.options = {sizeof options, 4, 8, ISOBIT_SYMMETRIC, ISOBIT_ABSMAX, ISOBIT_F32, 0};
  const std::vector<float> weights(16, 1.0f);
  Matrix matrix;
  EXPECT_DONE(isobit_low_bit_quantize(weights.data(), ISOBIT_F32, 16, 1, 16, &options.options, nullptr, matrix.out()));
  options.more = 1 << 16;
  isobit_low_bit* none = nullptr;
  refused(isobit_low_bit_quantize(weights.data(), ISOBIT_F32, 16, 1, 16, &options.options, nullptr, &none),
          ISOBIT_UNSUPPORTED, "options has a field at byte 34");
}

TEST(CApi, GruInfo) {
  const Pair pair(shape_of(7, 5, 2, 2));
  auto info = sized<isobit_gru_info>();
  ASSERT_DONE(isobit_gru_get_info(pair.gru, &info));
  const GruModel& model = *pair.model;
  EXPECT_EQ(info.directions, 2);
  EXPECT_EQ(info.layers, 2);
  EXPECT_EQ(info.input_size, 7);
  EXPECT_EQ(info.hidden_size, 5);
  EXPECT_EQ(info.output_size, 10);
  EXPECT_EQ(info.input_dtype, static_cast<int32_t>(model.input_grid().dtype()));
  EXPECT_EQ(info.output_dtype, static_cast<int32_t>(model.output_grid().dtype()));
  EXPECT_EQ(info.input_grid.bits, model.input_grid().bits);
  EXPECT_EQ(info.input_grid.shift, model.input_grid().shift);
  EXPECT_EQ(info.output_grid.zero_point, model.output_grid().zero_point);
  EXPECT_EQ(info.output_grid.is_signed, model.output_grid().is_signed ? 1 : 0);
}

TEST(CApi, GruFloatsAreTheLibrarys) {
  Random random(5);
  Pool pool;
  ASSERT_DONE(isobit_pool_create(2, pool.out()));
  for (int i = 0; i < 12; ++i) {
    const Pair pair(random_shape(random), 100 + static_cast<uint64_t>(i));
    const GruModel& model = *pair.model;
    const int64_t steps = random.between(0, 9);
    const int64_t batch = random.between(1, 5);
    const std::vector<float> x = random_floats(random, steps * batch * model.input_size());
    std::vector<int64_t> lengths;
    if (random.one_in(2))
      for (int64_t n = 0; n < batch; ++n) lengths.push_back(random.between(0, steps));
    RunOptions options{.whole_sequence = true};
    options.lengths = lengths;
    options.batch_first = random.one_in(2);
    std::vector<float> expected(static_cast<size_t>(steps * batch * model.output_size()));
    GruState state = model.initial_state(batch);
    isobit::Workspace workspace = model.workspace(batch, steps);
    ASSERT_TRUE(model.forward(x, expected, steps, state, workspace, options).ok());
    std::vector<float> expected_h(static_cast<size_t>(state.layer_count() * batch * model.hidden_size()));
    model.state_to_float(state, expected_h);

    for (const int32_t path : {ISOBIT_CPU_DEFAULT, ISOBIT_CPU_REFERENCE}) {
      auto c = sized<isobit_gru_run_options>();
      c.cpu_path = path;
      c.lengths = lengths.data();
      c.length_count = std::ssize(lengths);
      c.batch_first = options.batch_first ? 1 : 0;
      c.whole_sequence = 1;
      c.pool = pool;
      State c_state;
      GruWorkspace c_workspace;
      ASSERT_DONE(isobit_gru_state_create(pair.gru, batch, c_state.out()));
      ASSERT_DONE(isobit_gru_workspace_create(pair.gru, batch, steps, 2, c_workspace.out()));
      EXPECT_GE(isobit_gru_workspace_size_bytes(c_workspace), workspace.size_bytes());
      std::vector<float> y(expected.size(), -1.0f);
      ASSERT_DONE(isobit_gru_forward(pair.gru, x.data(), std::ssize(x), y.data(), std::ssize(y), steps, c_state,
                                     c_workspace, &c));
      EXPECT_EQ(y, expected);
      std::vector<float> h(expected_h.size());
      ASSERT_DONE(isobit_gru_state_get(c_state, h.data(), std::ssize(h)));
      EXPECT_EQ(h, expected_h);
    }
  }
}

TEST(CApi, GruCodesStreamAsTheyRun) {
  Random random(6);
  for (int i = 0; i < 8; ++i) {
    RandomShape shape = random_shape(random);
    shape.directions = 1;
    const Pair pair(shape, 200 + static_cast<uint64_t>(i));
    const GruModel& model = *pair.model;
    const int64_t steps = 8;
    const int64_t batch = 3;
    const std::vector<std::byte> x = random_tensor(random, steps * batch * model.input_size(), model.input_grid());
    const auto y_size = static_cast<int64_t>(size_in_bytes(model.output_grid().dtype()));
    const auto x_size = static_cast<int64_t>(size_in_bytes(model.input_grid().dtype()));
    const int64_t x_row = batch * model.input_size();
    const int64_t y_row = batch * model.output_size();
    std::vector<std::byte> expected(static_cast<size_t>(steps * y_row * y_size));
    GruState state = model.initial_state(batch);
    isobit::Workspace workspace = model.workspace(batch, steps);
    ASSERT_TRUE(model.forward_codes(x, expected, steps, state, workspace).ok());

    State c_state;
    State copy;
    GruWorkspace c_workspace;
    ASSERT_DONE(isobit_gru_state_create(pair.gru, batch, c_state.out()));
    ASSERT_DONE(isobit_gru_state_create(pair.gru, batch, copy.out()));
    ASSERT_DONE(isobit_gru_workspace_create(pair.gru, batch, steps, 1, c_workspace.out()));
    std::vector<std::byte> y(expected.size());
    const auto run = [&](isobit_gru_state* at, int64_t from, int64_t count) {
      ASSERT_DONE(isobit_gru_forward_codes(pair.gru, x.data() + from * x_row * x_size, count * x_row,
                                           y.data() + from * y_row * y_size, count * y_row, count, at, c_workspace,
                                           nullptr));
    };
    run(c_state, 0, 3);
    run(c_state, 3, 1);
    ASSERT_DONE(isobit_gru_state_copy(c_state, copy));
    run(c_state, 4, 4);
    EXPECT_EQ(y, expected);
    std::fill(y.begin() + 4 * y_row * y_size, y.end(), std::byte{0});
    run(copy, 4, 4);  // from the copy, again
    EXPECT_EQ(y, expected);
    ASSERT_DONE(isobit_gru_state_reset(c_state));
    std::fill(y.begin(), y.end(), std::byte{0});
    run(c_state, 0, 8);
    EXPECT_EQ(y, expected);
  }
}

TEST(CApi, BidirectionalGrusWantWholeSequences) {
  const Pair pair(shape_of(3, 4, 1, 2), 9);
  State state;
  GruWorkspace workspace;
  ASSERT_DONE(isobit_gru_state_create(pair.gru, 2, state.out()));
  ASSERT_DONE(isobit_gru_workspace_create(pair.gru, 2, 5, 1, workspace.out()));
  const std::vector<float> x(5 * 2 * 3, 0.5f);
  std::vector<float> y(5 * 2 * 8, -7.0f);
  const auto run = [&](const isobit_gru_run_options* options) {
    return isobit_gru_forward(pair.gru, x.data(), 30, y.data(), 80, 5, state, workspace, options);
  };
  auto options = sized<isobit_gru_run_options>();
  refused(run(nullptr), "the model is bidirectional");
  refused(run(&options), "set whole_sequence");
  EXPECT_EQ(y, std::vector<float>(80, -7.0f));
  options.whole_sequence = 1;
  ASSERT_DONE(run(&options));
  EXPECT_NE(y, std::vector<float>(80, -7.0f));
}

TEST(CApi, GruStatesAreSetReadAndHandedOver) {
  const Pair from(shape_of(3, 6), 1);
  const Pair to(shape_of(4, 6), 2);
  Random random(7);
  const std::vector<float> h = random_floats(random, 2 * 6);
  const Result<GruState> state = from.model->state_from_float(h, 2);
  ASSERT_TRUE(state.ok());
  const Result<GruState> handed = to.model->state_from(*from.model, *state);
  ASSERT_TRUE(handed.ok());
  std::vector<float> expected(12);
  to.model->state_to_float(*handed, expected);

  State a;
  State b;
  State larger;
  ASSERT_DONE(isobit_gru_state_create(from.gru, 2, a.out()));
  ASSERT_DONE(isobit_gru_state_create(to.gru, 2, b.out()));
  ASSERT_DONE(isobit_gru_state_create(to.gru, 3, larger.out()));
  ASSERT_DONE(isobit_gru_state_set(a, h.data(), 12));
  ASSERT_DONE(isobit_gru_state_hand_over(a, b));
  std::vector<float> read(12);
  ASSERT_DONE(isobit_gru_state_get(b, read.data(), 12));
  EXPECT_EQ(read, expected);
  refused(isobit_gru_state_copy(a, b), "from is of another model");
  refused(isobit_gru_state_hand_over(a, larger), "from has 2 sequences, must have 3");
  refused(isobit_gru_state_get(b, read.data(), 11), "h has 11 elements, must have 1 * 2 * 6");
  refused(isobit_gru_state_set(a, nullptr, 12), "h is NULL");
  std::vector<float> nan = h;
  nan[7] = std::numeric_limits<float>::quiet_NaN();
  refused(isobit_gru_state_set(a, nan.data(), 12), "state of layer 0[7] is NaN, must be a number");
  refused(isobit_gru_state_reset(nullptr), "state is NULL");
}

TEST(CApi, HandlesDoNotNeedEachOther) {
  State state;
  {
    const Pair pair(shape_of(2, 3));
    ASSERT_DONE(isobit_gru_state_create(pair.gru, 1, state.out()));
  }
  std::vector<float> h(3, -1.0f);
  ASSERT_DONE(isobit_gru_state_get(state, h.data(), 3));
  EXPECT_EQ(h, std::vector<float>(3, 0.0f));
}

TEST(CApi, GruRefusals) {
  const Pair pair(shape_of(3, 4));
  const Pair other(shape_of(3, 4), 2);
  State state;
  State other_state;
  GruWorkspace workspace;
  ASSERT_DONE(isobit_gru_state_create(pair.gru, 2, state.out()));
  ASSERT_DONE(isobit_gru_state_create(other.gru, 2, other_state.out()));
  ASSERT_DONE(isobit_gru_workspace_create(pair.gru, 2, 5, 1, workspace.out()));
  std::vector<float> x(5 * 2 * 3, 0.5f);
  std::vector<float> y(5 * 2 * 4, -7.0f);
  const auto run = [&](const float* in, int64_t in_count, float* out, int64_t out_count, int64_t steps,
                       isobit_gru_state* s, isobit_gru_workspace* w, const isobit_gru_run_options* o) {
    return isobit_gru_forward(pair.gru, in, in_count, out, out_count, steps, s, w, o);
  };
  const float* in = x.data();
  float* out = y.data();
  refused(isobit_gru_forward(nullptr, in, 30, out, 40, 5, state, workspace, nullptr), "gru is NULL");
  refused(run(nullptr, 30, out, 40, 5, state, workspace, nullptr), "x is NULL, but has 30 elements");
  refused(run(in, 30, nullptr, 40, 5, state, workspace, nullptr), "y is NULL");
  refused(run(in, 29, out, 40, 5, state, workspace, nullptr), "x has 29 elements, must have 5 * 2 * 3 (T * N * C)");
  refused(run(in, 30, out, 41, 5, state, workspace, nullptr), "y has 41 elements, must have 5 * 2 * 4");
  refused(run(in, -1, out, 40, 5, state, workspace, nullptr), "x has -1 elements");
  refused(run(in, 30, out, 40, -1, state, workspace, nullptr), "steps is -1");
  const std::vector<float> longer_x(36, 0.5f);
  std::vector<float> longer_y(48);
  refused(run(longer_x.data(), 36, longer_y.data(), 48, 6, state, workspace, nullptr), "bytes, must have at least");
  refused(run(in, 30, out, 40, 5, nullptr, workspace, nullptr), "state is NULL");
  refused(run(in, 30, out, 40, 5, other_state, workspace, nullptr), "state was made by another model");
  refused(run(in, 30, out, 40, 5, state, nullptr, nullptr), "workspace is NULL");
  refused(run(out, 30, out, 40, 5, state, workspace, nullptr), "y overlaps x");
  refused(run(out + 29, 30, out, 40, 5, state, workspace, nullptr), "y overlaps x");
  const auto* odd = reinterpret_cast<const float*>(reinterpret_cast<const char*>(in) + 2);
  refused(run(odd, 30, out, 40, 5, state, workspace, nullptr), "must be a multiple of 4");
  x[17] = std::numeric_limits<float>::quiet_NaN();
  refused(run(in, 30, out, 40, 5, state, workspace, nullptr), "x[17] is NaN, must be a number");
  x[17] = 0.5f;

  const std::vector<int64_t> lengths = {5, 6};
  auto options = sized<isobit_gru_run_options>();
  options.lengths = lengths.data();
  options.length_count = 2;
  refused(run(in, 30, out, 40, 5, state, workspace, &options), "lengths[1] is 6, must be 0..5");
  options.length_count = 1;
  refused(run(in, 30, out, 40, 5, state, workspace, &options), "lengths has 1 values, must have 2");
  options.lengths = nullptr;
  refused(run(in, 30, out, 40, 5, state, workspace, &options), "options->lengths is NULL, but has 1 elements");
  options.length_count = 0;
  options.cpu_path = 9;
  refused(run(in, 30, out, 40, 5, state, workspace, &options), "options->cpu_path is 9, must be 0..6");
  options.cpu_path = 0;
  options.batch_first = 2;
  refused(run(in, 30, out, 40, 5, state, workspace, &options), "options->batch_first is 2, must be 0..1");
  options.batch_first = 0;
  options.whole_sequence = 2;
  refused(run(in, 30, out, 40, 5, state, workspace, &options), "options->whole_sequence is 2, must be 0..1");
  EXPECT_EQ(y, std::vector<float>(40, -7.0f));  // nothing was written

  isobit_gru_state* none = state;
  refused(isobit_gru_state_create(pair.gru, -1, &none), "batch is -1");
  EXPECT_EQ(none, nullptr);
  refused(isobit_gru_state_create(nullptr, 1, &none), "gru is NULL");
  isobit_gru_workspace* nowhere = workspace;
  refused(isobit_gru_workspace_create(pair.gru, 1, 1, 0, &nowhere), "threads is 0, must be 1..1024");
  const int64_t large = std::numeric_limits<int32_t>::max();
  refused(isobit_gru_workspace_create(pair.gru, large, large, 1, &nowhere), "batch * steps");
  EXPECT_EQ(nowhere, nullptr);
  EXPECT_EQ(isobit_gru_workspace_size_bytes(nullptr), 0);
}

TEST(CApi, CodesThatAreNotOnTheGrid) {
  RandomShape shape = shape_of(2, 3);
  shape.x_bits = 5;
  const Pair pair(shape);
  const Grid& grid = pair.model->input_grid();
  State state;
  GruWorkspace workspace;
  ASSERT_DONE(isobit_gru_state_create(pair.gru, 1, state.out()));
  ASSERT_DONE(isobit_gru_workspace_create(pair.gru, 1, 1, 1, workspace.out()));
  std::vector<int8_t> x = {static_cast<int8_t>(grid.max()), static_cast<int8_t>(grid.max() + 1)};
  std::vector<std::byte> y(3 * size_in_bytes(pair.model->output_grid().dtype()));
  refused(isobit_gru_forward_codes(pair.gru, x.data(), 2, y.data(), 3, 1, state, workspace, nullptr),
          "x[1] is " + std::to_string(grid.max() + 1) + ", must be a code of " + std::to_string(grid.min()) + ".." +
              std::to_string(grid.max()));
  x[1] = x[0];
  EXPECT_DONE(isobit_gru_forward_codes(pair.gru, x.data(), 2, y.data(), 3, 1, state, workspace, nullptr));
}

TEST(CApi, ExportsC) {
  Random random(5);
  Result<GruModel> model = random_model(random, shape_of(7, 9));
  while (!model.ok()) model = random_model(random, shape_of(7, 9));
  const TemporaryFolder folder;
  const std::string file = folder.file("model.safetensors"), out = folder.file("c");
  ASSERT_TRUE(model->save(file).ok());
  isobit_export_options options{};
  options.struct_size = sizeof options;
  options.target = ISOBIT_TARGET_CORTEX_M55;
  options.name = "enc";
  isobit_export_info info{};
  info.struct_size = sizeof info;
  EXPECT_DONE(isobit_export_c(file.c_str(), nullptr, out.c_str(), &options, &info));
  EXPECT_EQ(info.multiply_adds, 3 * 9 * (7 + 9));
  EXPECT_EQ(info.state_bytes, 9);
  EXPECT_GT(info.weights_bytes, info.multiply_adds - 1);
  for (const char* name : {"enc.h", "enc.c", "enc_data.c", "enc.cmake"})
    EXPECT_TRUE(std::filesystem::exists(out + "/" + name)) << name;
  const auto fails = [&](const std::string& text) {
    refused(isobit_export_c(file.c_str(), nullptr, folder.file("other").c_str(), &options, nullptr), text);
    EXPECT_FALSE(std::filesystem::exists(folder.file("other")));
  };
  refused(isobit_export_c(file.c_str(), nullptr, out.c_str(), nullptr, nullptr), "not empty");
  options.target = 6;
  fails("target is 6, must be 0..5");
  options.target = ISOBIT_TARGET_GENERIC;
  options.name = "int";
  fails("\"int\": is a word or a function of C");
  options.name = nullptr;
  options.selftest_steps = 1001;
  fails("selftest_steps is 1001, must be 1 to 1000");
  options.selftest_steps = 1;
  options.force = 2;
  fails("force");
  options.force = 1;
  EXPECT_DONE(isobit_export_c(file.c_str(), nullptr, out.c_str(), &options, nullptr));
}

TEST(CApi, FilesThatAreNotThere) {
  Gru gru;
  refused(isobit_gru_load("/nowhere/a.safetensors", nullptr, gru.out()), ISOBIT_IO, "/nowhere/a.safetensors");
  refused(isobit_gru_load(nullptr, nullptr, gru.out()), "path is NULL");
  refused(isobit_gru_load("/nowhere/a", nullptr, nullptr), "gru is NULL");
  Table table;
  refused(isobit_fp16_table_load("/nowhere/b", table.out()), ISOBIT_IO, "/nowhere/b");
  Matrix matrix;
  refused(isobit_low_bit_load("/nowhere/c", nullptr, matrix.out()), ISOBIT_IO, "/nowhere/c");
  Arrays arrays;
  refused(isobit_arrays_load("/nowhere/d", arrays.out()), ISOBIT_IO, "/nowhere/d");
  const TemporaryFolder folder;
  const std::string path = folder.file("bad.safetensors");
  ASSERT_TRUE(write_file_atomically(path, "\x08\0\0\0\0\0\0\0nonsense", 16).ok());
  refused(isobit_gru_load(path.c_str(), nullptr, gru.out()), ISOBIT_INVALID_FILE, "bad.safetensors");
}

TEST(CApi, Tables) {
  const Result<Fp16Table> built_in = builtin_fp16_table("gelu", Fp16Model::kNliGpu, true);
  ASSERT_TRUE(built_in.ok());
  const TemporaryFolder folder;
  const std::string path = folder.file("gelu.safetensors");
  ASSERT_TRUE(save_fp16_table(path, *built_in).ok());
  Table made;
  Table loaded;
  ASSERT_DONE(isobit_fp16_table_builtin("gelu", ISOBIT_FP16_NLI_GPU, 1, made.out()));
  ASSERT_DONE(isobit_fp16_table_load(path.c_str(), loaded.out()));
  std::vector<uint16_t> x(65536);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(i);
  for (const Table* table : {&made, &loaded}) {
    EXPECT_STREQ(isobit_fp16_table_function(*table), "gelu");
    auto info = sized<isobit_fp16_table_info>();
    ASSERT_DONE(isobit_fp16_table_get_info(*table, &info));
    EXPECT_EQ(info.model, ISOBIT_FP16_NLI_GPU);
    EXPECT_EQ(info.half_values, 1);
    EXPECT_EQ(info.max_ulp, built_in->certificate.max_ulp);
    EXPECT_EQ(info.mean_ulp, built_in->certificate.mean_ulp);
    EXPECT_EQ(info.worst_code, built_in->certificate.worst_code);
    EXPECT_EQ(info.max_absolute, built_in->certificate.max_absolute);
    EXPECT_EQ(info.share_exact, built_in->certificate.share_exact);
    EXPECT_EQ(info.share_within_ulp, built_in->certificate.share_within_ulp);
    EXPECT_EQ(info.beta, 1.0);
    std::vector<uint16_t> y(x.size());
    ASSERT_DONE(isobit_fp16_table_run(*table, x.data(), ISOBIT_F16, y.data(), ISOBIT_F16, 65536, nullptr));
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], (*built_in)(x[i])) << i;
    const std::vector<float> f = {-1.0f, 0.0f, 3.0f};
    std::vector<float> expected(3);
    const Result<Fp16Function> function = Fp16Function::create(*built_in);
    ASSERT_TRUE(function
                    ->forward(std::as_bytes(std::span(f)), Dtype::kF32, std::as_writable_bytes(std::span(expected)),
                              Dtype::kF32)
                    .ok());
    std::vector<float> g(3);
    ASSERT_DONE(isobit_fp16_table_run(*table, f.data(), ISOBIT_F32, g.data(), ISOBIT_F32, 3, nullptr));
    EXPECT_EQ(g, expected);
  }
  EXPECT_STREQ(isobit_fp16_table_function(nullptr), "");
  EXPECT_DONE(isobit_fp16_table_run(made, nullptr, ISOBIT_F16, nullptr, ISOBIT_F16, 0, nullptr));
  refused(isobit_fp16_table_run(made, x.data(), ISOBIT_F16, x.data() + 1, ISOBIT_F16, 2, nullptr), "y overlaps x");
  refused(isobit_fp16_table_run(made, x.data(), ISOBIT_S8, x.data(), ISOBIT_F16, 2, nullptr), ISOBIT_UNSUPPORTED,
          "x is of type s8");
  refused(isobit_fp16_table_run(made, x.data(), 11, x.data(), ISOBIT_F16, 2, nullptr), "x_dtype is 11, must be 0..10");
  refused(isobit_fp16_table_run(made, nullptr, ISOBIT_F16, x.data(), ISOBIT_F16, 2, nullptr), "x is NULL");
  isobit_fp16_table* none = nullptr;
  refused(isobit_fp16_table_builtin("gelo", 0, 0, &none), "function is \"gelo\", must be one of: ");
  refused(isobit_fp16_table_builtin("gelu", 3, 0, &none), "model is 3, must be 0..2");
  refused(isobit_fp16_table_builtin("gelu", 0, 2, &none), "half_values is 2, must be 0..1");
  refused(isobit_fp16_table_builtin(nullptr, 0, 0, &none), "function is NULL");
}

TEST(CApi, LowBitWeights) {
  Random random(9);
  const std::vector<float> w = random_floats(random, 6 * 40);
  const TemporaryFolder folder;
  const std::string path = folder.file("w.safetensors");
  Pool pool;
  ASSERT_DONE(isobit_pool_create(2, pool.out()));
  for (const int32_t bits : {1, 2, 4, 8}) {
    const LowBitOptions how{.bits = bits,
                            .group = 16,
                            .kind = LowBitKind::kZeroPoint,
                            .method = LowBitMethod::kMinmax,
                            .scales = Dtype::kF16};
    const Result<LowBitMatrix> expected = quantize_low_bit(Array::copy_of(w.data(), {6, 40}), how, "w");
    ASSERT_TRUE(expected.ok());
    std::vector<float> expected_values(w.size());
    ASSERT_TRUE(expected->dequantize(expected_values).ok());
    auto options = sized<isobit_low_bit_options>();
    options.bits = bits;
    options.group = 16;
    options.kind = ISOBIT_ZERO_POINT;
    options.method = ISOBIT_MINMAX;
    options.scale_dtype = ISOBIT_F16;
    Matrix made;
    Matrix loaded;
    ASSERT_DONE(isobit_low_bit_quantize(w.data(), ISOBIT_F32, 240, 6, 40, &options, pool, made.out()));
    ASSERT_DONE(isobit_low_bit_save(made, "fc", path.c_str()));
    ASSERT_DONE(isobit_low_bit_load(path.c_str(), bits == 1 ? nullptr : "fc", loaded.out()));
    for (const Matrix* matrix : {&made, &loaded}) {
      auto info = sized<isobit_low_bit_info>();
      ASSERT_DONE(isobit_low_bit_get_info(*matrix, &info));
      EXPECT_EQ(info.bits, bits);
      EXPECT_EQ(info.rows, 6);
      EXPECT_EQ(info.columns, 40);
      EXPECT_EQ(info.group, 16);
      EXPECT_EQ(info.groups, 3);
      EXPECT_EQ(info.row_bytes, expected->row_bytes());
      EXPECT_EQ(info.size_bytes, expected->size_bytes());
      EXPECT_EQ(info.kind, ISOBIT_ZERO_POINT);
      EXPECT_EQ(info.scale_dtype, ISOBIT_F16);
      std::vector<float> values(w.size());
      ASSERT_DONE(isobit_low_bit_dequantize(*matrix, values.data(), 240, nullptr));
      EXPECT_EQ(values, expected_values);
    }
  }
}

TEST(CApi, LowBitRefusals) {
  std::vector<float> w(6 * 40, 1.0f);
  isobit_low_bit* none = nullptr;
  // Arguments of a call that is right, of which each refusal changes what it is about.
  struct Call {
    const void* weights;
    int32_t dtype;
    int64_t count;
    int64_t rows;
    int64_t columns;
    isobit_low_bit_options options;
  };
  const auto quantize = [&](auto&& change) {
    return [&, change] {
      Call c{w.data(), ISOBIT_F32, 240, 6, 40, sized<isobit_low_bit_options>()};
      c.options.bits = 4;
      c.options.group = 8;
      c.options.scale_dtype = ISOBIT_F32;
      change(c);
      return isobit_low_bit_quantize(c.weights, c.dtype, c.count, c.rows, c.columns, &c.options, nullptr, &none);
    };
  };
  const auto with = [&](float value) {
    return [&, value] {
      std::vector<float> bad = w;
      bad[47] = value;
      return quantize([&](Call& c) { c.weights = bad.data(); })();
    };
  };
  expect_refusals({
      {"options is NULL",
       [&] { return isobit_low_bit_quantize(w.data(), ISOBIT_F32, 240, 6, 40, nullptr, nullptr, &none); }},
      {"matrix is NULL, must point to where the handle goes",
       [&] { return isobit_low_bit_quantize(w.data(), ISOBIT_F32, 240, 6, 40, nullptr, nullptr, nullptr); }},
      {"weights is NULL, but has 240 elements", quantize([](Call& c) { c.weights = nullptr; })},
      {"dtype is 11, must be 0..10", quantize([](Call& c) { c.dtype = 11; })},
      {"weights: weights are f64, must be f32, f16 or bf16", quantize([](Call& c) {
         c.dtype = ISOBIT_F64;
         c.rows = 3;
         c.count = 120;
       })},
      {"weights has 240 elements, must have 6 * 41", quantize([](Call& c) { c.columns = 41; })},
      {"rows is 0, must be 1..2147483647", quantize([](Call& c) { c.rows = c.count = 0; })},
      {"columns is 0, must be 1..2147483647", quantize([](Call& c) { c.columns = c.count = 0; })},
      {"weights[1, 7] is nan, must be finite", with(std::numeric_limits<float>::quiet_NaN())},
      {"weights[1, 7] is -inf, must be finite", with(-std::numeric_limits<float>::infinity())},
      {too_small<isobit_low_bit_options>("options"),
       quantize([](Call& c) { c.options.struct_size = sizeof c.options - 1; })},
      {"weights: bits is 0, must be 1, 2, 4 or 8", quantize([](Call& c) { c.options.bits = 0; })},
      {"weights: group is 0, must be K, 40, or a multiple of 8 below it",
       quantize([](Call& c) { c.options.group = 0; })},
      {"options->kind is 3, must be 0..2", quantize([](Call& c) { c.options.kind = 3; })},
      {"options->method is 3, must be 0..2", quantize([](Call& c) { c.options.method = 3; })},
      {"options->scale_dtype is 11, must be 0..10", quantize([](Call& c) { c.options.scale_dtype = 11; })},
      {"weights: scales are s8, must be f32, f16 or bf16",
       quantize([](Call& c) { c.options.scale_dtype = ISOBIT_S8; })},
      {"options->reserved is 1, must be 0..0", quantize([](Call& c) { c.options.reserved = 1; })},
  });
  EXPECT_EQ(none, nullptr);

  const TemporaryFolder folder;
  const std::string one = folder.file("one.safetensors"), two = folder.file("two.safetensors");
  const Result<LowBitMatrix> made = quantize_low_bit(Array::copy_of(w.data(), {6, 40}), {.bits = 4, .group = 8}, "w");
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(save_low_bit(one, {.matrices = {{"fc", *made}}}).ok());
  ASSERT_TRUE(save_low_bit(two, {.matrices = {{"fc", *made}, {"out", *made}}}).ok());
  Matrix matrix;
  ASSERT_DONE(isobit_low_bit_load(one.c_str(), nullptr, matrix.out()));
  isobit_low_bit_info info{};
  info.struct_size = sizeof info - 1;
  expect_refusals({
      {"matrix is NULL, must point to where the handle goes",
       [&] { return isobit_low_bit_load(one.c_str(), nullptr, nullptr); }},
      {"path is NULL", [&] { return isobit_low_bit_load(nullptr, "fc", &none); }},
      {one + ": name is \"fd\", must be one of: \"fc\"", [&] { return isobit_low_bit_load(one.c_str(), "fd", &none); }},
      {two + ": name is NULL, must be one of: \"fc\", \"out\"",
       [&] { return isobit_low_bit_load(two.c_str(), nullptr, &none); }},
      {"matrix is NULL", [&] { return isobit_low_bit_save(nullptr, "a", one.c_str()); }},
      {"name is NULL", [&] { return isobit_low_bit_save(matrix, nullptr, one.c_str()); }},
      {"path is NULL", [&] { return isobit_low_bit_save(matrix, "a", nullptr); }},
      {one + ": a matrix has no name", [&] { return isobit_low_bit_save(matrix, "", one.c_str()); }},
      {"matrix is NULL", [&] { return isobit_low_bit_get_info(nullptr, &info); }},
      {"info is NULL", [&] { return isobit_low_bit_get_info(matrix, nullptr); }},
      {too_small<isobit_low_bit_info>("info"), [&] { return isobit_low_bit_get_info(matrix, &info); }},
      {"matrix is NULL", [&] { return isobit_low_bit_dequantize(nullptr, w.data(), 240, nullptr); }},
      {"weights is NULL, but has 240 elements",
       [&] { return isobit_low_bit_dequantize(matrix, nullptr, 240, nullptr); }},
      {"weights has 239 elements, must have 6 * 40",
       [&] { return isobit_low_bit_dequantize(matrix, w.data(), 239, nullptr); }},
  });
  EXPECT_EQ(none, nullptr);
}

/// Random weights of N = 5, K = 48 in `bits`, here and in C.
struct Weights {
  explicit Weights(int32_t bits, int64_t group = 16) {
    Random random(11);
    values = random_floats(random, 5 * 48);
    LowBitOptions how;
    how.bits = bits;
    how.group = group;
    Result<LowBitMatrix> made = quantize_low_bit(Array::copy_of(values.data(), {5, 48}), how, "w");
    EXPECT_TRUE(made.ok());
    matrix = *std::move(made);
    auto options = sized<isobit_low_bit_options>();
    options.bits = bits;
    options.group = group;
    options.scale_dtype = ISOBIT_F32;
    EXPECT_DONE(isobit_low_bit_quantize(values.data(), ISOBIT_F32, 5 * 48, 5, 48, &options, nullptr, c_matrix.out()));
  }
  std::vector<float> values;
  std::optional<LowBitMatrix> matrix;
  Matrix c_matrix;
};

TEST(CApi, LinearLayersAreTheLibrarys) {
  Random random(12);
  const int64_t m = 3;
  const std::vector<float> x = random_floats(random, m * 48);
  const std::vector<float> bias = random_floats(random, 5);
  Pool pool;
  ASSERT_DONE(isobit_pool_create(2, pool.out()));
  for (const int32_t bits : {1, 2, 4, 8})
    for (const int32_t activations :
         {ISOBIT_ACTIVATIONS_FLOAT, ISOBIT_ACTIVATIONS_INT8, ISOBIT_ACTIVATIONS_INT8_ASYMMETRIC}) {
      const Weights weights(bits);
      LinearOptions how;
      how.activations = static_cast<LinearActivations>(activations);
      how.bias = bias;
      how.clamp = {-2.0f, 3.0f};
      const Result<LinearLayer> layer = LinearLayer::create(*weights.matrix, how, "fc");
      ASSERT_TRUE(layer.ok()) << layer.status().message();
      std::vector<float> expected(static_cast<size_t>(m * 5));
      isobit::Workspace workspace = layer->workspace(m);
      ASSERT_TRUE(layer
                      ->forward(std::as_bytes(std::span(x)), Dtype::kF32, std::as_writable_bytes(std::span(expected)),
                                Dtype::kF32, m, workspace)
                      .ok());

      auto options = sized<isobit_linear_options>();
      options.activations = activations;
      options.has_clamp = 1;
      options.clamp_lo = -2.0f;
      options.clamp_hi = 3.0f;
      options.bias = bias.data();
      options.bias_count = 5;
      Linear c_layer;
      LinearScratch scratch;
      ASSERT_DONE(isobit_linear_create(weights.c_matrix, &options, c_layer.out()));
      ASSERT_DONE(isobit_linear_workspace_create(c_layer, m, 2, scratch.out()));
      EXPECT_EQ(isobit_linear_workspace_size_bytes(scratch), layer->workspace(m, 2).size_bytes());
      EXPECT_EQ(std::string(isobit_linear_kernel(c_layer)), layer->kernel_name());
      auto info = sized<isobit_linear_info>();
      ASSERT_DONE(isobit_linear_get_info(c_layer, &info));
      EXPECT_EQ(info.rows, 5);
      EXPECT_EQ(info.columns, 48);
      EXPECT_EQ(info.activations, activations);
      EXPECT_EQ(info.cpu_path, static_cast<int32_t>(layer->path()) + 1);
      EXPECT_EQ(info.size_bytes, layer->size_bytes());

      std::vector<float> y(expected.size(), -9.0f);
      ASSERT_DONE(isobit_linear_forward(c_layer, x.data(), ISOBIT_F32, m * 48, y.data(), ISOBIT_F32, m * 5, m, scratch,
                                        nullptr));
      EXPECT_EQ(y, expected);
      // Rows of y with gaps, on two threads.
      auto run = sized<isobit_linear_run_options>();
      run.y_stride = 7;
      run.pool = pool;
      std::vector<float> gaps(19, -9.0f);
      ASSERT_DONE(
          isobit_linear_forward(c_layer, x.data(), ISOBIT_F32, m * 48, gaps.data(), ISOBIT_F32, 19, m, scratch, &run));
      for (int64_t i = 0; i < 19; ++i)
        EXPECT_EQ(gaps[static_cast<size_t>(i)], i % 7 < 5 ? expected[static_cast<size_t>(i / 7 * 5 + i % 7)] : -9.0f);
    }
}

/// A file whose columns are in another order than x, as a GPTQ checkpoint with groups in the order of activations
/// becomes: through C it is as if they were not.
TEST(CApi, PermutedColumns) {
  const int64_t rows = 5, columns = 48, m = 3;
  Random random(17);
  const std::vector<float> sorted = random_floats(random, rows * columns);  // column j belongs to x[permutation[j]]
  std::vector<int32_t> permutation(static_cast<size_t>(columns));
  for (size_t j = 0; j < permutation.size(); ++j) permutation[j] = static_cast<int32_t>(j * 29 % permutation.size());
  LowBitOptions how;
  how.bits = 8;
  how.group = columns;
  Result<LowBitMatrix> matrix = quantize_low_bit(Array::copy_of(sorted.data(), {rows, columns}), how, "w");
  ASSERT_TRUE(matrix.ok()) << matrix.status().message();
  std::vector<float> in_order(sorted.size()), expected_w(sorted.size());
  ASSERT_TRUE(matrix->dequantize(in_order).ok());
  for (size_t i = 0; i < in_order.size(); ++i)
    expected_w[i / permutation.size() * permutation.size() + static_cast<size_t>(permutation[i % permutation.size()])] =
        in_order[i];
  const TemporaryFolder folder;
  const std::string first = folder.file("permuted.safetensors"), second = folder.file("again.safetensors");
  LowBitFile file;
  file.matrices.emplace("w", *matrix);
  file.arrays["w.permutation"] = Array::copy_of(permutation.data(), {columns});
  ASSERT_TRUE(save_low_bit(first, file).ok());
  Matrix loaded, again;
  ASSERT_DONE(isobit_low_bit_load(first.c_str(), "w", loaded.out()));
  ASSERT_DONE(isobit_low_bit_save(loaded, "w", second.c_str()));
  const Result<LowBitFile> saved = load_low_bit(second);
  ASSERT_TRUE(saved.ok()) << saved.status().message();
  EXPECT_EQ(*saved, file);
  ASSERT_DONE(isobit_low_bit_load(second.c_str(), nullptr, again.out()));

  const int64_t stride = columns + 2;
  const std::vector<float> x = random_floats(random, m * stride);
  std::vector<float> x_sorted;
  for (int64_t r = 0; r < m; ++r)
    for (const int32_t k : permutation) x_sorted.push_back(x[static_cast<size_t>(r * stride + k)]);
  for (const Matrix* of : {&loaded, &again}) {
    std::vector<float> w(sorted.size());
    ASSERT_DONE(isobit_low_bit_dequantize(*of, w.data(), rows * columns, nullptr));
    EXPECT_EQ(w, expected_w);
    for (const int32_t activations : {ISOBIT_ACTIVATIONS_FLOAT, ISOBIT_ACTIVATIONS_INT8}) {
      LinearOptions options;
      options.activations = static_cast<LinearActivations>(activations);
      const Result<LinearLayer> layer = LinearLayer::create(*matrix, options, "w");
      ASSERT_TRUE(layer.ok()) << layer.status().message();
      std::vector<float> expected(static_cast<size_t>(m * rows)), y(expected.size());
      isobit::Workspace workspace = layer->workspace(m);
      ASSERT_TRUE(layer
                      ->forward(std::as_bytes(std::span(x_sorted)), Dtype::kF32,
                                std::as_writable_bytes(std::span(expected)), Dtype::kF32, m, workspace)
                      .ok());
      auto c_options = sized<isobit_linear_options>();
      c_options.activations = activations;
      auto run_options = sized<isobit_linear_run_options>();
      run_options.x_stride = stride;
      Linear c_layer;
      LinearScratch scratch, small;
      ASSERT_DONE(isobit_linear_create(*of, &c_options, c_layer.out()));
      ASSERT_DONE(isobit_linear_workspace_create(c_layer, m, 1, scratch.out()));
      EXPECT_GT(isobit_linear_workspace_size_bytes(scratch), layer->workspace(m).size_bytes());
      const auto run = [&](int64_t x_count, isobit_linear_workspace* with) {
        return isobit_linear_forward(c_layer, x.data(), ISOBIT_F32, x_count, y.data(), ISOBIT_F32, m * rows, m, with,
                                     &run_options);
      };
      int32_t status = ISOBIT_OK;
      EXPECT_EQ(testing::allocations_of([&] { status = run(m * stride - 2, scratch); }), 0);
      ASSERT_DONE(status);
      EXPECT_EQ(y, expected);
      refused(run(m * stride - 3, scratch),
              "x has 588 bytes, must have at least 592: 3 rows of 48 elements of f32, 50");
      if (activations == ISOBIT_ACTIVATIONS_FLOAT) {
        const std::vector<double> wide(x.size());
        refused(isobit_linear_forward(c_layer, wide.data(), ISOBIT_F64, m * stride, y.data(), ISOBIT_F32, m * rows, m,
                                      scratch, &run_options),
                ISOBIT_UNSUPPORTED, "x is of type f64, must be f32, f16 or bf16");
      }
      ASSERT_DONE(isobit_linear_workspace_create(c_layer, 0, 1, small.out()));
      refused(run(m * stride, small), "workspace has 0 bytes for rows of x, must have 576");
      // The layer sees the rows that were put in order, so it cannot know that y was written over them.
      std::vector<float> both = x;
      refused(isobit_linear_forward(c_layer, both.data(), ISOBIT_F32, m * stride, both.data() + 9, ISOBIT_F32, m * rows,
                                    m, scratch, &run_options),
              "y overlaps x, must not");
      EXPECT_EQ(both, x);
    }
    for (const int32_t bits : {8, 16}) {
      const int64_t size = bits / 8;
      StaticLinearOptions derive;
      derive.input = Grid{bits, true, ScaleKind::kReal, 0, 0.05f, 3};
      const std::vector<std::byte> codes = random_tensor(random, m * columns, derive.input);
      std::vector<std::byte> codes_sorted;
      for (int64_t r = 0; r < m; ++r)
        for (const int32_t k : permutation)
          for (int64_t i = 0; i < size; ++i)
            codes_sorted.push_back(codes[static_cast<size_t>((r * columns + k) * size + i)]);
      const Result<StaticLinearParameters> parameters = derive_static_linear(*matrix, derive, "w");
      ASSERT_TRUE(parameters.ok()) << parameters.status().message();
      const Result<StaticLinearLayer> layer = StaticLinearLayer::create(*parameters, "w");
      ASSERT_TRUE(layer.ok()) << layer.status().message();
      std::vector<int32_t> expected(static_cast<size_t>(m * rows)), y(expected.size());
      isobit::Workspace workspace = layer->workspace(m);
      ASSERT_TRUE(layer->forward_codes(codes_sorted, std::as_writable_bytes(std::span(expected)), m, workspace).ok());
      auto static_options = sized<isobit_static_linear_options>();
      static_options.input = {bits, 1, ISOBIT_SCALE_REAL, 0, 0.05f, 0, 3};
      StaticLinear c_layer;
      LinearScratch scratch;
      ASSERT_DONE(isobit_static_linear_create(*of, &static_options, c_layer.out()));
      ASSERT_DONE(isobit_static_linear_workspace_create(c_layer, m, 1, scratch.out()));
      ASSERT_DONE(
          isobit_static_linear_forward(c_layer, codes.data(), m * columns, y.data(), m * rows, m, scratch, nullptr));
      EXPECT_EQ(y, expected);
      std::vector<std::byte> both = codes;
      refused(
          isobit_static_linear_forward(c_layer, both.data(), m * columns, both.data(), m * rows, m, scratch, nullptr),
          "y overlaps x, must not");
      EXPECT_EQ(both, codes);
    }
  }
}

TEST(CApi, LinearRefusals) {
  const Weights weights(4);
  isobit_linear* none = nullptr;
  const auto create = [&](auto&& change) {
    return [&, change] {
      auto options = sized<isobit_linear_options>();
      change(options);
      return isobit_linear_create(weights.c_matrix, &options, &none);
    };
  };
  using Options = isobit_linear_options;
  expect_refusals({
      {"layer is NULL, must point to where the handle goes",
       [&] { return isobit_linear_create(weights.c_matrix, nullptr, nullptr); }},
      {"matrix is NULL", [&] { return isobit_linear_create(nullptr, nullptr, &none); }},
      {too_small<Options>("options"), create([](Options& o) { o.struct_size = sizeof o - 1; })},
      {"options->activations is 3, must be 0..2",
       create([](Options& o) { o.activations = ISOBIT_ACTIVATIONS_INT8_PER_IMAGE; })},
      {"options->cpu_path is 7, must be 0..6", create([](Options& o) { o.cpu_path = 7; })},
      {"options->has_clamp is 2, must be 0..1", create([](Options& o) { o.has_clamp = 2; })},
      {"options->has_clamp is 0, so clamp_lo and clamp_hi must be 0", create([](Options& o) { o.clamp_hi = 6.0f; })},
      {"layer: clamp.lo is 7, must be at most clamp.hi, 6", create([](Options& o) {
         o.has_clamp = 1;
         o.clamp_lo = 7.0f;
         o.clamp_hi = 6.0f;
       })},
      {"layer: clamp.hi is NaN, must be a number", create([](Options& o) {
         o.has_clamp = 1;
         o.clamp_hi = std::numeric_limits<float>::quiet_NaN();
       })},
      {"options->bias is NULL, but has 5 elements", create([](Options& o) { o.bias_count = 5; })},
      {"layer: bias has 4 elements, must have 5 or none", create([&](Options& o) {
         o.bias = weights.values.data();
         o.bias_count = 4;
       })},
  });
  EXPECT_EQ(none, nullptr);

  auto options = sized<isobit_linear_options>();
  options.activations = ISOBIT_ACTIVATIONS_INT8;
  options.cpu_path = ISOBIT_CPU_REFERENCE;
  Linear layer;
  LinearScratch scratch;
  LinearScratch small;
  ASSERT_DONE(isobit_linear_create(weights.c_matrix, &options, layer.out()));
  ASSERT_DONE(isobit_linear_workspace_create(layer, 2, 1, scratch.out()));
  ASSERT_DONE(isobit_linear_workspace_create(layer, 0, 1, small.out()));
  isobit_linear_workspace* nowhere = nullptr;
  isobit_linear_info info{};
  info.struct_size = sizeof info - 1;
  expect_refusals({
      {"layer is NULL", [&] { return isobit_linear_get_info(nullptr, &info); }},
      {"info is NULL", [&] { return isobit_linear_get_info(layer, nullptr); }},
      {too_small<isobit_linear_info>("info"), [&] { return isobit_linear_get_info(layer, &info); }},
      {"workspace is NULL, must point to where the handle goes",
       [&] { return isobit_linear_workspace_create(layer, 1, 1, nullptr); }},
      {"layer is NULL", [&] { return isobit_linear_workspace_create(nullptr, 1, 1, &nowhere); }},
      {"m is -1, must be 0..2147483647", [&] { return isobit_linear_workspace_create(layer, -1, 1, &nowhere); }},
      {"threads is 0, must be 1..1024", [&] { return isobit_linear_workspace_create(layer, 1, 0, &nowhere); }},
      {"threads is 1025, must be 1..1024", [&] { return isobit_linear_workspace_create(layer, 1, 1025, &nowhere); }},
  });
  EXPECT_EQ(nowhere, nullptr);

  // Arguments of a call that is right, of which each refusal changes what it is about.
  std::vector<float> x(96, 1.0f);
  std::vector<float> y(10, -9.0f);
  struct Call {
    const isobit_linear* layer;
    const void* x;
    int32_t x_dtype;
    int64_t x_count;
    void* y;
    int32_t y_dtype;
    int64_t y_count;
    int64_t m;
    isobit_linear_workspace* workspace;
    isobit_linear_run_options options;
  };
  const auto forward = [&](auto&& change) {
    return [&, change] {
      Call c{layer, x.data(), ISOBIT_F32, 96, y.data(), ISOBIT_F32, 10, 2, scratch, sized<isobit_linear_run_options>()};
      change(c);
      return isobit_linear_forward(c.layer, c.x, c.x_dtype, c.x_count, c.y, c.y_dtype, c.y_count, c.m, c.workspace,
                                   &c.options);
    };
  };
  const auto* odd = reinterpret_cast<const char*>(x.data()) + 2;
  expect_refusals({
      {"layer is NULL", forward([](Call& c) { c.layer = nullptr; })},
      {"workspace is NULL", forward([](Call& c) { c.workspace = nullptr; })},
      {"workspace has " + std::to_string(isobit_linear_workspace_size_bytes(small)) + " bytes, must have at least " +
           std::to_string(isobit_linear_workspace_size_bytes(scratch)) +
           " for 2 rows on 1 thread; make it with workspace(m, threads)",
       forward([&](Call& c) { c.workspace = small; })},
      {"m is -1, must be 0..2147483647", forward([](Call& c) { c.m = -1; })},
      {"x is NULL, but has 96 elements", forward([](Call& c) { c.x = nullptr; })},
      {"y is NULL, but has 10 elements", forward([](Call& c) { c.y = nullptr; })},
      {"x has -1 elements, must have 0..576460752303423487", forward([](Call& c) { c.x_count = -1; })},
      {"x has 380 bytes, must have at least 384: 2 rows of 48 elements of f32, 48 from one to the next",
       forward([](Call& c) { c.x_count = 95; })},
      {"y has 36 bytes, must have at least 40: 2 rows of 5 elements of f32, 5 from one to the next",
       forward([](Call& c) { c.y_count = 9; })},
      {"x is at address " + address_text(odd) + ", must be a multiple of 4", forward([&](Call& c) { c.x = odd; })},
      {"x_dtype is 99, must be 0..10", forward([](Call& c) { c.x_dtype = 99; })},
      {"y_dtype is -1, must be 0..10", forward([](Call& c) { c.y_dtype = -1; })},
      {"x is of type u8, must be f32, f16, bf16 or f64", forward([](Call& c) { c.x_dtype = ISOBIT_U8; }),
       ISOBIT_UNSUPPORTED},
      {"y is of type s32, must be f32, f16 or bf16", forward([](Call& c) { c.y_dtype = ISOBIT_S32; }),
       ISOBIT_UNSUPPORTED},
      {"y overlaps x, must be apart from it", forward([&](Call& c) { c.y = x.data() + 80; })},
      {too_small<isobit_linear_run_options>("options"),
       forward([](Call& c) { c.options.struct_size = sizeof c.options - 1; })},
      {"options->unchecked is 2, must be 0..1", forward([](Call& c) { c.options.unchecked = 2; })},
      {"x_stride is 47, must be at least 48, or 0", forward([](Call& c) { c.options.x_stride = 47; })},
      {"y_stride is -5, must be at least 5, or 0", forward([](Call& c) { c.options.y_stride = -5; })},
  });
  x[50] = std::numeric_limits<float>::infinity();
  const auto unchanged = [](Call&) {};
  expect_refusals(
      {{"x[1] has a NaN, an infinity, or a group whose range is infinite, must be finite, or the call unchecked",
        forward(unchanged)}});
  EXPECT_EQ(y, std::vector<float>(10, -9.0f));
  ASSERT_DONE(forward([](Call& c) { c.options.unchecked = 1; })());
  EXPECT_EQ(y[4], y[4]);
  EXPECT_NE(y[5], y[5]);  // NaN
  EXPECT_EQ(isobit_linear_workspace_size_bytes(nullptr), 0);
  EXPECT_STREQ(isobit_linear_kernel(nullptr), "");
}

TEST(CApi, StaticLinearLayersAreTheLibrarys) {
  const Weights weights(8, 48);
  Random random(13);
  const std::vector<float> bias = random_floats(random, 5);
  StaticLinearOptions how;
  how.input.shift = 5;
  how.input.zero_point = 3;
  how.bias = bias;
  auto options = sized<isobit_static_linear_options>();
  options.input = {8, 1, ISOBIT_SCALE_POW2, 5, 0.0f, 0, 3};
  options.bias = bias.data();
  options.bias_count = 5;
  const std::tuple<int32_t, bool> cases[] = {{8, true}, {8, false}, {16, true}, {16, false}};
  for (const auto& [bits, has_output] : cases) {
    how.input.bits = options.input.bits = bits;
    if (has_output) {
      how.output = Grid{bits, false, ScaleKind::kReal, 0, 0.11f, 100};
      how.clamp = {-1.0f, 4.0f};
      options.has_output = options.has_clamp = 1;
      options.output = {bits, 0, ISOBIT_SCALE_REAL, 0, 0.11f, 0, 100};
      options.clamp_lo = -1.0f;
      options.clamp_hi = 4.0f;
    } else {
      how.output.reset();
      how.clamp = {};
      options.has_output = options.has_clamp = 0;
      options.clamp_lo = options.clamp_hi = 0.0f;
    }
    const Result<StaticLinearParameters> parameters = derive_static_linear(*weights.matrix, how, "fc");
    ASSERT_TRUE(parameters.ok()) << parameters.status().message();
    const Result<StaticLinearLayer> layer = StaticLinearLayer::create(*parameters, "fc");
    ASSERT_TRUE(layer.ok()) << layer.status().message();
    StaticLinear c_layer;
    LinearScratch scratch;
    ASSERT_DONE(isobit_static_linear_create(weights.c_matrix, &options, c_layer.out()));
    ASSERT_DONE(isobit_static_linear_workspace_create(c_layer, 2, 1, scratch.out()));
    auto info = sized<isobit_static_linear_info>();
    ASSERT_DONE(isobit_static_linear_get_info(c_layer, &info));
    EXPECT_EQ(info.rows, 5);
    EXPECT_EQ(info.columns, 48);
    EXPECT_EQ(info.x_dtype, bits == 8 ? ISOBIT_S8 : ISOBIT_S16);
    EXPECT_EQ(info.y_dtype, !has_output ? ISOBIT_S32 : bits == 8 ? ISOBIT_U8 : ISOBIT_U16);
    EXPECT_EQ(info.cpu_path, static_cast<int32_t>(layer->path()) + 1);
    EXPECT_EQ(std::string(isobit_static_linear_kernel(c_layer)), layer->kernel_name());
    const std::vector<std::byte> x = random_tensor(random, 96, how.input);
    alignas(8) std::byte expected[40] = {};
    alignas(8) std::byte y[40] = {};
    isobit::Workspace workspace = layer->workspace(2);
    const size_t bytes = 10 * size_in_bytes(layer->parameters().y_dtype());
    ASSERT_TRUE(layer->forward_codes(x, std::span(expected).first(bytes), 2, workspace).ok());
    ASSERT_DONE(isobit_static_linear_forward(c_layer, x.data(), 96, y, 10, 2, scratch, nullptr));
    EXPECT_EQ(std::memcmp(y, expected, sizeof y), 0);

    const TemporaryFolder folder;
    const std::string path = folder.file("fc.safetensors");
    ASSERT_TRUE(layer->save(path).ok());
    for (const char* name : {static_cast<const char*>(nullptr), "fc"}) {
      StaticLinear loaded;
      ASSERT_DONE(isobit_static_linear_load(path.c_str(), name, ISOBIT_CPU_REFERENCE, loaded.out()));
      EXPECT_STREQ(isobit_static_linear_kernel(loaded), "static_reference");
      ASSERT_DONE(isobit_static_linear_workspace_create(loaded, 2, 1, scratch.out()));
      std::memset(y, 0, sizeof y);
      ASSERT_DONE(isobit_static_linear_forward(loaded, x.data(), 96, y, 10, 2, scratch, nullptr));
      EXPECT_EQ(std::memcmp(y, expected, sizeof y), 0);
    }
    StaticLinear none;
    refused(isobit_static_linear_load(path.c_str(), "fd", ISOBIT_CPU_DEFAULT, none.out()), "no layer 'fd'");
    refused(isobit_static_linear_load(path.c_str(), nullptr, 7, none.out()), "cpu_path is 7, must be 0..6");
    refused(isobit_static_linear_load(nullptr, nullptr, ISOBIT_CPU_DEFAULT, none.out()), "path is NULL");
    refused(isobit_static_linear_load("/nowhere/fc", nullptr, ISOBIT_CPU_DEFAULT, none.out()), ISOBIT_IO,
            "/nowhere/fc");
  }
}

TEST(CApi, StaticLinearRefusals) {
  const Weights weights(8, 48);
  const Weights other(4);
  isobit_static_linear* none = nullptr;
  using Options = isobit_static_linear_options;
  const auto right = [] {
    auto options = sized<Options>();
    options.input = {8, 1, ISOBIT_SCALE_POW2, 5, 0.0f, 0, 3};
    return options;
  };
  const auto create = [&](auto&& change) {
    return [&, change] {
      Options options = right();
      change(options);
      return isobit_static_linear_create(weights.c_matrix, &options, &none);
    };
  };
  const Options options = right();
  expect_refusals({
      {"layer is NULL, must point to where the handle goes",
       [&] { return isobit_static_linear_create(weights.c_matrix, &options, nullptr); }},
      {"matrix is NULL", [&] { return isobit_static_linear_create(nullptr, &options, &none); }},
      {"options is NULL", [&] { return isobit_static_linear_create(weights.c_matrix, nullptr, &none); }},
      {"layer: group is 16, must be K, 48",
       [&] { return isobit_static_linear_create(other.c_matrix, &options, &none); }},
      {too_small<Options>("options"), create([](Options& o) { o.struct_size = sizeof o - 1; })},
      {"options->cpu_path is -1, must be 0..6", create([](Options& o) { o.cpu_path = -1; })},
      {"options->has_output is 2, must be 0..1", create([](Options& o) { o.has_output = 2; })},
      {"options->has_clamp is -1, must be 0..1", create([](Options& o) { o.has_clamp = -1; })},
      {"options->has_clamp is 0, so clamp_lo and clamp_hi must be 0", create([](Options& o) { o.clamp_lo = -1.0f; })},
      {"layer: a clamp of 0..1 was given, must be none without an output grid", create([](Options& o) {
         o.has_clamp = 1;
         o.clamp_hi = 1.0f;
       })},
      {"options->rounding is 4, must be 0..3", create([](Options& o) { o.rounding = 4; })},
      {"options->reserved is 1, must be 0..0", create([](Options& o) { o.reserved = 1; })},
      {"options->input.is_signed is 2, must be 0..1", create([](Options& o) { o.input.is_signed = 2; })},
      {"options->input.scale_kind is 2, must be 0..1", create([](Options& o) { o.input.scale_kind = 2; })},
      {"options->input.reserved is 1, must be 0..0", create([](Options& o) { o.input.reserved = 1; })},
      {"grid of options->input: zero point is 200, must be -128..127",
       create([](Options& o) { o.input.zero_point = 200; })},
      {"layer: input: bits is 17, must be 2..16", create([](Options& o) { o.input.bits = 17; })},
      {"grid of options->output: bits is 0, must be 1..32", create([](Options& o) { o.has_output = 1; })},
      {"options->bias is NULL, but has 5 elements", create([](Options& o) { o.bias_count = 5; })},
      {"layer: bias has 4 elements, must have 5 or none", create([&](Options& o) {
         o.bias = weights.values.data();
         o.bias_count = 4;
       })},
  });
  EXPECT_EQ(none, nullptr);

  StaticLinear layer;
  LinearScratch scratch;
  LinearScratch small;
  ASSERT_DONE(isobit_static_linear_create(weights.c_matrix, &options, layer.out()));
  ASSERT_DONE(isobit_static_linear_workspace_create(layer, 2, 1, scratch.out()));
  ASSERT_DONE(isobit_static_linear_workspace_create(layer, 0, 1, small.out()));
  isobit_linear_workspace* nowhere = nullptr;
  isobit_static_linear_info info{};
  info.struct_size = sizeof info - 1;
  expect_refusals({
      {"layer is NULL", [&] { return isobit_static_linear_get_info(nullptr, &info); }},
      {"info is NULL", [&] { return isobit_static_linear_get_info(layer, nullptr); }},
      {too_small<isobit_static_linear_info>("info"), [&] { return isobit_static_linear_get_info(layer, &info); }},
      {"workspace is NULL, must point to where the handle goes",
       [&] { return isobit_static_linear_workspace_create(layer, 1, 1, nullptr); }},
      {"layer is NULL", [&] { return isobit_static_linear_workspace_create(nullptr, 1, 1, &nowhere); }},
      {"m is -1, must be 0..2147483647", [&] { return isobit_static_linear_workspace_create(layer, -1, 1, &nowhere); }},
      {"threads is 0, must be 1..1024", [&] { return isobit_static_linear_workspace_create(layer, 1, 0, &nowhere); }},
  });
  EXPECT_EQ(nowhere, nullptr);

  alignas(8) std::byte x[96] = {};
  std::vector<int32_t> y(10, -9);
  struct Call {
    const isobit_static_linear* layer;
    const void* x;
    int64_t x_count;
    void* y;
    int64_t y_count;
    int64_t m;
    isobit_linear_workspace* workspace;
    isobit_linear_run_options options;
  };
  const auto forward = [&](auto&& change) {
    return [&, change] {
      Call c{layer, x, 96, y.data(), 10, 2, scratch, sized<isobit_linear_run_options>()};
      change(c);
      return isobit_static_linear_forward(c.layer, c.x, c.x_count, c.y, c.y_count, c.m, c.workspace, &c.options);
    };
  };
  auto* odd = reinterpret_cast<char*>(y.data()) + 1;
  expect_refusals({
      {"layer is NULL", forward([](Call& c) { c.layer = nullptr; })},
      {"workspace is NULL", forward([](Call& c) { c.workspace = nullptr; })},
      {"workspace has " + std::to_string(isobit_linear_workspace_size_bytes(small)) + " bytes, must have at least " +
           std::to_string(isobit_linear_workspace_size_bytes(scratch)) +
           " for 2 rows on 1 thread; make it with workspace(m, threads)",
       forward([&](Call& c) { c.workspace = small; })},
      {"m is -1, must be 0..2147483647", forward([](Call& c) { c.m = -1; })},
      {"x is NULL, but has 96 elements", forward([](Call& c) { c.x = nullptr; })},
      {"y is NULL, but has 10 elements", forward([](Call& c) { c.y = nullptr; })},
      {"x has 95 bytes, must have at least 96: 2 rows of 48 elements of s8, 48 from one to the next",
       forward([](Call& c) { c.x_count = 95; })},
      {"y has 36 bytes, must have at least 40: 2 rows of 5 elements of s32, 5 from one to the next",
       forward([](Call& c) { c.y_count = 9; })},
      {"y is at address " + address_text(odd) + ", must be a multiple of 4", forward([&](Call& c) { c.y = odd; })},
      {"y overlaps x, must be apart from it", forward([&](Call& c) { c.y = x + 52; })},
      {too_small<isobit_linear_run_options>("options"),
       forward([](Call& c) { c.options.struct_size = sizeof c.options - 1; })},
      {"options->unchecked is 1, must be 0..0", forward([](Call& c) { c.options.unchecked = 1; })},
      {"x_stride is 47, must be at least 48, or 0", forward([](Call& c) { c.options.x_stride = 47; })},
      {"y_stride is 4, must be at least 5, or 0", forward([](Call& c) { c.options.y_stride = 4; })},
  });
  EXPECT_EQ(y, std::vector<int32_t>(10, -9));
  EXPECT_STREQ(isobit_static_linear_kernel(nullptr), "");
}

TEST(CApi, DeviceLinearRefusals) {
  const Weights weights(8, 48);
  StaticLinear host;
  auto static_options = sized<isobit_static_linear_options>();
  static_options.input = {8, 1, ISOBIT_SCALE_POW2, 5, 0.0f, 0, 3};
  ASSERT_DONE(isobit_static_linear_create(weights.c_matrix, &static_options, host.out()));
  ASSERT_EQ(setenv("ISOBIT_CUDA_LIBRARY", "/nowhere/cuda.so", 1), 0);
  isobit_device_linear* none = nullptr;
  const auto create = [&](auto&& change) {
    return [&, change] {
      auto options = sized<isobit_linear_options>();
      change(options);
      return isobit_device_linear_create(weights.c_matrix, &options, 0, &none);
    };
  };
  int64_t bytes = -9;
  float x[48] = {};
  expect_refusals({
      {"layer is NULL, must point to where the handle goes",
       [&] { return isobit_device_linear_create(weights.c_matrix, nullptr, 0, nullptr); }},
      {"matrix is NULL", [&] { return isobit_device_linear_create(nullptr, nullptr, 0, &none); }},
      {too_small<isobit_linear_options>("options"),
       create([](isobit_linear_options& o) { o.struct_size = sizeof o - 1; })},
      {"options->cpu_path is 2, must be ISOBIT_CPU_DEFAULT, 0, for a device",
       create([](isobit_linear_options& o) { o.cpu_path = ISOBIT_CPU_SCALAR; })},
      {"layer is NULL, must point to where the handle goes",
       [&] { return isobit_device_linear_create_static(host, 0, nullptr); }},
      {"host_layer is NULL", [&] { return isobit_device_linear_create_static(nullptr, 0, &none); }},
      {"layer is NULL", [&] { return isobit_device_linear_workspace_bytes(nullptr, 1, &bytes); }},
      {"layer is NULL",
       [&] { return isobit_device_linear_forward(nullptr, x, ISOBIT_F32, 48, x, ISOBIT_F32, 5, 1, x, 256, nullptr); }},
      {"layer is NULL", [&] { return isobit_device_linear_check_input(nullptr, x, 256, 1, nullptr); }},
  });
  EXPECT_EQ(bytes, -9);
  const std::string missing =
      "a CUDA device needs libisobit_cuda.so, which ISOBIT_CUDA_LIBRARY names: "
      "/nowhere/cuda.so: cannot open";
  refused(isobit_device_linear_create(weights.c_matrix, nullptr, 0, &none), ISOBIT_UNSUPPORTED, missing);
  refused(isobit_device_linear_create_static(host, 0, &none), ISOBIT_UNSUPPORTED, missing);
  EXPECT_EQ(none, nullptr);
  isobit_device_linear_destroy(nullptr);

  LowBitFile permuted;  // the last column first
  permuted.matrices.emplace("w", *weights.matrix);
  std::vector<int32_t> order(48);
  for (int32_t j = 0; j < 48; ++j) order[static_cast<size_t>(j)] = (j + 47) % 48;
  permuted.arrays["w.permutation"] = Array::copy_of(order.data(), {48});
  const TemporaryFolder folder;
  const std::string path = folder.file("permuted.safetensors");
  ASSERT_TRUE(save_low_bit(path, permuted).ok());
  Matrix matrix;
  ASSERT_DONE(isobit_low_bit_load(path.c_str(), nullptr, matrix.out()));
  refused(isobit_device_linear_create(matrix, nullptr, 0, &none), ISOBIT_UNSUPPORTED,
          "matrix has its columns in another order than x");
  ASSERT_DONE(isobit_static_linear_create(matrix, &static_options, host.out()));
  refused(isobit_device_linear_create_static(host, 0, &none), ISOBIT_UNSUPPORTED,
          "host_layer has its columns in another order than x");
}

TEST(CApi, ArraysOfAFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.npz");
  const std::vector<float> values = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f};
  ASSERT_TRUE(save_npz(path, {{"w", Array::copy_of(values.data(), {2, 3})},
                              {"deep", Array::zeros(Dtype::kU8, {1, 1, 1, 1, 1, 1, 1, 1, 1})}})
                  .ok());
  Arrays arrays;
  ASSERT_DONE(isobit_arrays_load(path.c_str(), arrays.out()));
  auto info = sized<isobit_array_info>();
  ASSERT_DONE(isobit_arrays_find(arrays, "w", &info));
  EXPECT_EQ(info.dtype, ISOBIT_F32);
  EXPECT_EQ(info.dimensions, 2);
  EXPECT_EQ(info.shape[0], 2);
  EXPECT_EQ(info.shape[1], 3);
  EXPECT_EQ(info.shape[2], 0);
  ASSERT_EQ(info.size_bytes, 24);
  const auto* data = static_cast<const float*>(info.data);
  EXPECT_EQ(std::vector<float>(data, data + 6), values);
  refused(isobit_arrays_find(arrays, "v", &info), "name is \"v\", must be one of: \"deep\", \"w\"");
  refused(isobit_arrays_find(arrays, "deep", &info), ISOBIT_UNSUPPORTED, "has 9 dimensions, must have at most 8");
  refused(isobit_arrays_find(arrays, nullptr, &info), "name is NULL");
}

}  // namespace
}  // namespace isobit
