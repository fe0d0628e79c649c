// SPDX-License-Identifier: Apache-2.0
// The persistent kernels: every cut of a layer, every form, runs in chunks, exchanges that are delayed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gru/cuda/gru_test.h"
#include "gru/cuda/plan.h"
#include "gru/proof.h"
#include "gru/random_model.h"
#include "isobit/cuda/gru.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

/// At most so many bytes of x and ih at once.
struct ChunkBytes {
  explicit ChunkBytes(int64_t bytes) { set_chunk_bytes(bytes); }
  ~ChunkBytes() { set_chunk_bytes(0); }
  ChunkBytes(const ChunkBytes&) = delete;
  ChunkBytes& operator=(const ChunkBytes&) = delete;
};

/// Delays every part of an exchange through global memory.
struct Delays {
  explicit Delays(uint32_t seed) { set_exchange_delays(seed); }
  ~Delays() { set_exchange_delays(0); }
  Delays(const Delays&) = delete;
  Delays& operator=(const Delays&) = delete;
};

/// Every way in which `persistent` cuts a layer, with one tile of sequences a team and with several; `step` beside it.
TEST_F(DeviceGrus, LayersOfEverySize) {
  struct Size {
    int64_t input, hidden, batch, steps;
    int32_t x_bits, h_bits, gate_in_bits = 8;
  };
  constexpr Size kSizes[] = {
      {24, 64, 300, 9, 8, 8},       {40, 128, 1100, 5, 8, 16},   {60, 200, 5, 30, 8, 8},    {257, 256, 300, 9, 8, 8},
      {9, 250, 1003, 4, 16, 16},    {100, 384, 70, 6, 8, 8},     {100, 370, 300, 6, 8, 12}, {512, 512, 3, 20, 8, 8},
      {33, 512, 140, 7, 8, 8},      {512, 500, 300, 5, 8, 8},    {64, 512, 90, 6, 8, 16},   {40, 640, 130, 5, 8, 8},
      {96, 768, 200, 4, 12, 8},     {96, 760, 30, 7, 8, 16},     {1024, 1024, 1, 20, 8, 8}, {64, 1000, 300, 5, 8, 8},
      {31, 1024, 100, 5, 8, 16},    {33, 1025, 50, 9, 8, 8},     {16, 1290, 1, 40, 8, 8},   {16, 1536, 40, 9, 8, 16},
      {2048, 2048, 9, 6, 8, 8},     {5, 2048, 70, 7, 8, 8},      {5, 2041, 3, 7, 16, 16},   {7, 1030, 200, 4, 8, 8},
      {20, 1537, 8, 9, 8, 8},       {3, 1100, 600, 3, 8, 8},     {9, 2000, 300, 4, 8, 8},   {9, 1800, 5, 12, 12, 8},
      {9, 1041, 25, 9, 8, 16},      {30, 100, 40, 6, 12, 8},     {30, 250, 200, 5, 12, 8},  {40, 500, 3, 9, 12, 8},
      {40, 500, 300, 5, 12, 8},     {9, 750, 200, 5, 12, 8},     {9, 1000, 200, 5, 12, 8},  {9, 1000, 1, 9, 12, 8},
      {16, 1024, 33, 7, 8, 16, 12}, {16, 500, 33, 7, 8, 16, 12}, {5, 1040, 128, 5, 8, 8},   {5, 1030, 256, 3, 8, 16},
      {20, 120, 3, 9, 8, 16},       {20, 120, 400, 5, 8, 16},    {20, 240, 40, 7, 8, 16},   {20, 240, 100, 6, 8, 16},
      {9, 500, 90, 5, 8, 16},       {9, 750, 12, 7, 8, 16},      {9, 1000, 5, 9, 8, 16},    {9, 1030, 7, 6, 8, 16},
      {9, 1000, 12, 7, 8, 8},       {31, 1024, 150, 5, 8, 16},   {5, 900, 520, 3, 8, 16},   {9, 780, 201, 4, 8, 16, 12},
      {9, 1000, 530, 3, 8, 8},      {12, 800, 226, 6, 8, 8},     {5, 900, 257, 3, 8, 16},   {9, 900, 225, 4, 8, 16},
      {20, 500, 200, 6, 8, 16},     {12, 512, 50, 7, 8, 16, 12}, {9, 380, 127, 6, 8, 8},    {9, 270, 300, 5, 8, 16},
      {40, 640, 12, 5, 8, 8},       {64, 512, 24, 6, 8, 8},      {100, 1000, 31, 5, 8, 8},
  };
  uint64_t seed = 7100;
  std::map<std::string, int> ratios;  // of the layers that persistent ran: how many
  enum class Kind { kPow2, kMultipliers, kReal, kWideGates };
  for (const Kind kind : {Kind::kPow2, Kind::kMultipliers, Kind::kReal, Kind::kWideGates})
    for (const Size& size : kSizes) {
      if (sanitized() && (size.hidden > 300 || size.batch > 300)) continue;
      if (kind == Kind::kWideGates && size.h_bits == 8) continue;  // of two bytes, u has as many: double lanes
      Random random(++seed);
      Case c;
      if (kind == Kind::kReal) c.shape.kind = ScaleKind::kReal;
      c.shape.input = size.input;
      c.shape.hidden = size.hidden;
      c.shape.x_bits = size.x_bits;
      c.shape.h_bits = size.h_bits;
      c.shape.gate_in_bits = size.gate_in_bits;
      c.shape.gate_out_bits = kind == Kind::kWideGates ? size.h_bits : 8;
      Result<GruModel> model = random_model(random, c.shape);
      ASSERT_TRUE(model.ok()) << model.status().message();
      if (kind == Kind::kMultipliers) model = with_multipliers(random, *model);
      ASSERT_TRUE(model.ok()) << model.status().message();
      c.model = *std::move(model);
      c.run.batch = size.batch;
      c.run.steps = sanitized() ? 3 : size.steps;
      if (random.one_in(2)) c.run.chunks.push_back(c.run.steps / 2);
      c.run.chunks.push_back(c.run.steps - (c.run.chunks.empty() ? 0 : c.run.chunks[0]));
      c.run.x = random_tensor(random, c.run.steps * size.batch * size.input, c.model.input_grid());
      c.run.start = c.model.initial_state(size.batch);
      if (c.run.chunks.size() == 1 && random.one_in(2))
        for (int64_t n = 0; n < size.batch; ++n) c.run.lengths.push_back(random.between(0, c.run.steps));
      if (random.one_in(3))
        for (int64_t i = 0; i < c.run.steps * size.batch * size.hidden; ++i)
          c.run.mask.push_back(static_cast<uint8_t>(random.between(0, 2)));
      c.fast_host = true;
      c.two_states = random.one_in(2);
      SCOPED_TRACE(describe(c.shape, c.run, seed, 0));
      const int before = runs_["persistent"];
      const int steps_before = runs_["step"];
      compare(c);
      EXPECT_EQ(runs_["step"], steps_before + 1)
          << DeviceGru::create(c.model)->choose_kernel(1, 1, "step").status().message();
      int major = 0;
      ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
      if (major == 9 && !racecheck()) {
        EXPECT_EQ(runs_["persistent"], before + 1)
            << DeviceGru::create(c.model)->choose_kernel(1, 1, "persistent").status().message();
        const GruLayerParameters& layer = c.model.parameters().layers[0];
        const Result<GruProof> proof = prove_no_overflow(layer, "layer");
        ASSERT_TRUE(proof.ok()) << proof.status().message();
        const LayerRatios of_layer = choose_ratios(layer, *proof);
        const auto name = [](RatioType type) {
          return type == RatioType::kFloat   ? "float"
                 : type == RatioType::kShift ? "shift"
                 : type == RatioType::kFixed ? "fixed"
                                             : "double";
        };
        ++ratios[std::string("W x, ") + name(of_layer.x)];
        ++ratios[std::string(size.h_bits > 8 ? "R h of two planes, " : "R h, ") +
                 (size.hidden > 1024 ? "H above 1024, " : "") + name(of_layer.h)];
      }
    }
  for (const auto& [what, count] : ratios) std::printf("%s: %d layers\n", what.c_str(), count);
  if (!ratios.empty() && !sanitized()) {
    for (const std::string of :
         {"W x, ", "R h, ", "R h, H above 1024, ", "R h of two planes, ", "R h of two planes, H above 1024, "})
      for (const std::string type : {"float", "shift", "fixed", "double"})
        if (type != "float" || of.find("planes") == std::string::npos) {
          EXPECT_GT(ratios[of + type], 0) << of << type;
        }
  }
  std::printf("%lld outputs compared\n", static_cast<long long>(compared_));
}

/// Each form of `persistent`, and `products`, where it was asked for, of one sequence and of many, and where another
/// would be chosen. Small enough for the sanitizers.
TEST_F(DeviceGrus, EveryFormOfPersistent) {
  struct Size {
    std::string_view kernel;
    int64_t hidden, batch;
    int32_t h_bits, directions = 1, gate_out_bits = 8;
    int64_t input = 9, steps = 7;
    int32_t x_bits = 8;
  };
  constexpr Size kSizes[] = {
      {"cluster", 100, 3, 8},
      {"cluster", 250, 70, 16},
      {"cluster", 300, 5, 16, 2},
      {"cluster", 500, 200, 8},
      {"cluster", 760, 30, 16},
      {"cluster", 1000, 12, 8},
      {"cluster", 1024, 9, 16, 1, 16},
      {"cluster_many", 257, 1, 8},
      {"cluster_many", 500, 3, 16, 2},
      {"cluster_many", 760, 30, 16},
      {"cluster_many", 1000, 50, 8},
      {"cluster_many", 1024, 1, 16, 1, 16},
      {"cluster", 270, 1100, 16},
      // Teams in waves, on an H100, the last of which have fewer sequences, or none.
      {"cluster", 640, 401, 8},
      {"cluster_many", 300, 1500, 8},
      {"cluster_many", 640, 301, 16},
      {"cluster_many", 768, 801, 8, 2},
      {"grid", 1026, 1, 8},
      {"grid", 1100, 40, 16},
      {"grid", 1200, 290, 8},
      {"grid", 1025, 3, 16, 2},
      {"grid", 1030, 9, 8},
      {"grid", 1800, 5, 8},
      {"grid", 1800, 20, 16, 1, 16},
      {"portable", 1, 1, 8},
      {"portable", 100, 3, 8, 2},
      {"portable", 128, 2200, 16},
      {"portable", 200, 9, 16, 2},
      {"portable", 256, 300, 8, 1, 16},
      {"portable", 500, 61, 16, 1, 16},
      {"portable", 512, 1, 8},
      {"portable", 760, 30, 8, 2},
      {"portable", 1000, 12, 16},
      {"portable", 1025, 3, 8},
      {"portable", 1500, 9, 16, 1, 16},
      {"portable", 2048, 17, 8},
      {"portable", 2041, 2, 16},
      // Tiles of every width, clusters of 1 and 2, several rounds, rows that are aligned and not, each type of sums
      // of x and h.
      {"products", 257, 9, 8},
      {"products", 760, 64, 16, 2},
      {"products", 1000, 130, 8},
      {"products", 1030, 65, 16, 1, 16},
      {"products", 2048, 129, 16},
      {"products", 2100, 3, 8},
      {"products", 520, 64, 8, 1, 8, 700, 1},
      {"products", 1100, 257, 8, 1, 16, 1024, 1},
      {"products", 1536, 256, 8, 1, 8, 1536, 1},
      {"products", 1536, 255, 16, 1, 8, 1501, 1},
      {"products", 2048, 256, 16, 2, 8, 2048, 1},
      {"products", 2048, 600, 16, 1, 8, 40, 1},
      {"products", 1031, 70, 16, 1, 8, 40, 1},
      {"products", 3001, 300, 8, 1, 8, 40, 1},
      {"products", 512, 64, 8, 1, 8, 64, 3, 16},
      {"products", 512, 200, 8, 1, 8, 1024, 2, 16},
      {"products", 768, 256, 16, 1, 8, 777, 2, 16},
      {"products", 1536, 256, 16, 1, 8, 1536, 1, 16},
      {"products", 400, 70, 16, 1, 8, 32, 3, 16},
      // One or two sequences of a team.
      {"cluster", 70, 1, 8},
      {"cluster", 128, 50, 16},
      {"cluster", 120, 100, 8},
      {"cluster", 200, 2, 16},
      {"cluster", 700, 2, 16},
      {"cluster", 1000, 3, 8},
  };
  uint64_t seed = 7600;
  int cases = 0;
  for (const Size& size : kSizes)
    for (const ScaleKind kind : {ScaleKind::kPow2, ScaleKind::kReal}) {
      ++seed;
      if (hidden_from_sanitizer(size.kernel) || (sanitized() && kind == ScaleKind::kReal)) continue;
      RandomShape shape;
      shape.input = size.input;
      shape.hidden = size.hidden;
      shape.x_bits = size.x_bits;
      shape.h_bits = size.h_bits;
      shape.directions = size.directions;
      shape.gate_out_bits = size.gate_out_bits;
      shape.kind = kind;
      Case c = case_of(seed, shape, size.batch, sanitized() ? std::min<int64_t>(size.steps, 3) : size.steps);
      Random random(seed);
      for (int64_t n = 0; n < size.batch && seed % 3 == 0; ++n) c.run.lengths.push_back(random.between(0, c.run.steps));
      for (int64_t i = 0; i < c.run.steps * size.batch * c.model.output_size() && seed % 4 == 0; ++i)
        c.run.mask.push_back(static_cast<uint8_t>(random.between(0, 2)));
      c.two_states = seed % 2 == 0;
      c.fast_host = true;
      SCOPED_TRACE(describe(c.shape, c.run, seed, 0) + ", kernel " + std::string(size.kernel));
      const int before = runs_[std::string(size.kernel)];
      compare(c, size.kernel);
      ++cases;
      if (!must_run(size.kernel, size.hidden)) continue;
      EXPECT_EQ(runs_[std::string(size.kernel)], before + 1)
          << DeviceGru::create(c.model)->choose_kernel(size.batch, c.run.steps, size.kernel).status().message();
      EXPECT_EQ(runs_[std::string(size.kernel) + ", floats"], runs_[std::string(size.kernel)]);
    }
  for (const char* kernel : {"cluster_many", "grid", "products"})  // floats from aligned addresses on, and others
    if (must_run_persistent() && !hidden_from_sanitizer(kernel)) {
      EXPECT_GE(runs_[std::string(kernel) + ", floats"], 2) << kernel;
    }
  std::printf("%d runs, %lld outputs compared\n", cases, static_cast<long long>(compared_));
}

/// Two threads on two streams with launches that take the whole device, each of which waits for all of its own blocks:
/// a cooperative launch begins when all of them find room, so one waits for the other, and nobody for ever.
TEST_F(DeviceGrus, TwoStreamsThatWantTheWholeDevice) {
  if (sanitized()) return;
  struct Size {
    std::string_view kernel;
    int64_t hidden, batch;
    int32_t h_bits;
  };
  struct Pair {
    Size of[2];
  };
  constexpr Pair kPairs[] = {
      {{{"grid", 1040, 3, 8}, {"grid", 2000, 1, 8}}},       {{{"grid", 1800, 20, 8}, {"grid", 1030, 40, 16}}},
      {{{"grid", 1200, 230, 8}, {"portable", 2048, 5, 8}}}, {{{"portable", 1500, 3, 16}, {"portable", 500, 60, 8}}},
      {{{"grid", 1040, 3, 8}, {"cluster", 1000, 40, 8}}},   {{{"grid", 1100, 40, 8}, {"cluster_many", 1000, 90, 8}}}};
  constexpr int kRuns = 40;
  for (const Pair& pair : kPairs) {
    std::vector<std::thread> threads;
    std::atomic<int> equal_runs = 0;
    for (const Size& size : pair.of) {
      RandomShape shape;
      shape.input = 16;
      shape.hidden = size.hidden;
      shape.h_bits = size.h_bits;
      const int64_t batch = size.batch;
      Case c = case_of(43, shape, batch, 20);
      c.fast_host = true;
      threads.emplace_back([c = std::move(c), batch, &size, &equal_runs] {
        const Outcome expected = on_host(c);
        const Result<DeviceGru> gru = DeviceGru::create(c.model);
        ASSERT_TRUE(gru.ok()) << gru.status().message();
        if (const Status runs = gru->choose_kernel(batch, 20, size.kernel).status(); !runs.ok()) {
          EXPECT_FALSE(must_run(size.kernel, size.hidden)) << runs.message();
          equal_runs += kRuns;
          return;
        }
        cudaStream_t stream = nullptr;
        ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        GuardedDeviceBuffer x(static_cast<int64_t>(c.run.x.size())), y(static_cast<int64_t>(expected.y.size()));
        GuardedDeviceBuffer state(gru->state_bytes(batch));
        GuardedDeviceBuffer workspace(gru->workspace_bytes(batch, 20));
        x.write(c.run.x);
        RunOptions options{.kernel = size.kernel, .stream = stream, .whole_sequence = true};
        for (int run = 0; run < kRuns; ++run) {
          ASSERT_TRUE(gru->initial_state(state.bytes(), batch, stream).ok());
          const Status status =
              gru->forward_codes(x.bytes(), y.bytes(), 20, batch, state.bytes(), workspace.bytes(), options);
          ASSERT_TRUE(status.ok()) << status.message();
          if (run % 8 != 7) continue;  // several in flight
          ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
          ASSERT_TRUE(y.read<std::byte>() == expected.y) << "H = " << size.hidden << ", run " << run;
          equal_runs += 8;
        }
        EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(equal_runs, 2 * kRuns) << pair.of[0].kernel << " beside " << pair.of[1].kernel;
  }
}

/// Runs of more steps than x and ih have memory for at once: every kernel of `persistent` goes on from the state that
/// the chunk before it left, forwards and backwards, with lengths that end in any chunk.
TEST_F(DeviceGrus, ChunksOfStepsChangeNoByte) {
  struct Size {
    int64_t input, hidden, batch;
    int32_t h_bits, directions, layers;
  };
  constexpr int64_t kSteps = 8;
  constexpr Size kSizes[] = {
      {9, 100, 3, 8, 2, 1},    {64, 128, 300, 8, 1, 2},  {30, 250, 70, 16, 2, 2},  {48, 512, 60, 8, 1, 1},
      {9, 500, 300, 16, 2, 1}, {64, 770, 9, 8, 2, 1},    {20, 1000, 200, 8, 2, 2}, {20, 1024, 90, 16, 1, 1},
      {9, 900, 225, 16, 2, 1}, {16, 1030, 1, 8, 2, 2},   {9, 1100, 7, 16, 2, 1},   {16, 1030, 40, 8, 2, 2},
      {9, 2000, 100, 8, 1, 1}, {5, 1040, 128, 16, 2, 1},
  };
  int major = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  uint64_t seed = 7400;
  int cases = 0;
  for (const Size& size : kSizes)
    for (const int64_t chunk : {1, 3}) {
      if (sanitized() && (size.hidden > 260 || size.batch > 100)) continue;
      RandomShape shape;
      shape.input = size.input;
      shape.hidden = size.hidden;
      shape.h_bits = size.h_bits;
      shape.directions = size.directions;
      shape.layers = size.layers;
      Case c = case_of(++seed, shape, size.batch, kSteps);
      Random random(seed);
      if (random.one_in(2))
        for (int64_t n = 0; n < size.batch; ++n) c.run.lengths.push_back(random.between(0, kSteps));
      if (size.layers == 1 && random.one_in(2))
        for (int64_t i = 0; i < kSteps * size.batch * c.model.output_size(); ++i)
          c.run.mask.push_back(static_cast<uint8_t>(random.between(0, 2)));
      c.batch_first = random.one_in(2);
      c.two_states = random.one_in(2);
      c.fast_host = true;
      SCOPED_TRACE(describe(c.shape, c.run, seed, 0) + ", chunks of at most " + std::to_string(chunk) + " steps");
      // Rows of x and ih are padded in memory, so at most `chunk` steps find room.
      const ChunkBytes limit(chunk * size.batch * (size.input + 6 * size.hidden));
      if (major == 9) {
        const Result<int64_t> chunks = chunks_of(c.model.parameters().layers[0], size.batch, kSteps);
        ASSERT_TRUE(chunks.ok()) << chunks.status().message();
        EXPECT_GE(*chunks, (kSteps + chunk - 1) / chunk);
      }
      compare(c, "persistent");
      compare(c, "portable");
      ++cases;
    }
  if (major == 9 && !racecheck()) {
    EXPECT_EQ(runs_["persistent"], cases);
  }
  if (must_run("portable", 2000)) {
    EXPECT_EQ(runs_["portable"], cases);
  }
  std::printf("%lld outputs compared\n", static_cast<long long>(compared_));
}

struct DelayedLayer {
  int64_t hidden, batch;
  int32_t h_bits;
  std::string_view kernel = "persistent";
};

constexpr DelayedLayer kDelayedLayers[] = {{1025, 1, 8},
                                           {1040, 7, 8},
                                           {2048, 2, 16},
                                           {1030, 16, 8},
                                           {1040, 33, 16},
                                           {1040, 128, 8},
                                           {1030, 256, 16},
                                           {2048, 140, 8},
                                           {250, 9, 8, "portable"},
                                           {500, 60, 16, "portable"},
                                           {1000, 3, 8, "portable"},
                                           {2048, 8, 16, "portable"}};

class DelayedExchange : public DeviceGrus, public ::testing::WithParamInterface<DelayedLayer> {};

/// Layers that take the whole device, with every part of the exchange between its blocks delayed at random: the bytes
/// of the host, and over many steps those of a run without delays. ISOBIT_DELAYED_STEPS: how many.
TEST_P(DelayedExchange, ChangesNoByte) {
  if (racecheck()) return;
  constexpr int64_t kMostBytes = int64_t{6} << 30;  // of y
  constexpr int64_t kCallBytes = int64_t{64} << 20;
  const char* const asked = std::getenv("ISOBIT_DELAYED_STEPS");
  const int64_t most_steps = asked != nullptr ? std::strtoll(asked, nullptr, 10) : 5000;
  ASSERT_GT(most_steps, 0) << "ISOBIT_DELAYED_STEPS";
  const DelayedLayer& size = GetParam();
  if (sanitized() && (size.hidden > 1040 || size.batch > 33)) return;
  uint32_t seed = 7300;
  RandomShape shape;
  shape.input = 8;
  shape.hidden = size.hidden;
  shape.h_bits = size.h_bits;
  shape.gate_out_bits = size.hidden == 1040 ? size.h_bits : 8;
  const int64_t checked = sanitized() ? 4 : 40;
  const int64_t batch = size.batch;
  Case c = case_of(seed, shape, batch, checked);
  c.fast_host = true;
  SCOPED_TRACE(describe(c.shape, c.run, seed, 0));
  {
    const Delays delays(seed);
    compare(c, size.kernel);
  }
  if (sanitized()) return;
  const Result<DeviceGru> gru = DeviceGru::create(c.model);
  ASSERT_TRUE(gru.ok()) << gru.status().message();
  if (!gru->choose_kernel(batch, checked, size.kernel).ok()) {
    EXPECT_FALSE(must_run(size.kernel, size.hidden)) << size.kernel;
    return;
  }
  const int64_t x_row = batch * shape.input * size_of(c.model.input_grid());
  const int64_t y_row = batch * size.hidden * size_of(c.model.output_grid());
  const int64_t all = std::min(most_steps, kMostBytes / y_row);
  const int64_t most = std::min(all, kCallBytes / y_row);
  Random random(seed);
  GuardedDeviceBuffer x(most * x_row);
  GuardedDeviceBuffer y(most * y_row);
  GuardedDeviceBuffer workspace(gru->workspace_bytes(batch, most));
  GuardedDeviceBuffer with(gru->state_bytes(batch)), without(gru->state_bytes(batch));
  for (GuardedDeviceBuffer* state : {&with, &without})
    ASSERT_TRUE(gru->initial_state(state->bytes(), batch, stream_).ok());
  for (int64_t done = 0; done < all && !HasFailure(); done += most) {
    const int64_t steps = std::min(most, all - done);
    const auto run = [&](const GuardedDeviceBuffer& state) {
      const RunOptions options{.kernel = size.kernel, .stream = stream_, .whole_sequence = true};
      const Status status = gru->forward_codes(x.bytes().first(static_cast<size_t>(steps * x_row)),
                                               y.bytes().first(static_cast<size_t>(steps * y_row)), steps, batch,
                                               state.bytes(), workspace.bytes(), options);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
      return y.read<std::byte>();
    };
    x.write(random_tensor(random, most * batch * shape.input, c.model.input_grid()));
    const std::vector<std::byte> expected = run(without);
    const Delays delays(++seed);
    ASSERT_TRUE(run(with) == expected) << "steps from " << done;
  }
  std::printf("%s, H = %lld, %lld sequences: %lld delayed steps\n", size.kernel.data(),
              static_cast<long long>(size.hidden), static_cast<long long>(batch), static_cast<long long>(all));
  std::fflush(stdout);  // a long run may be cut off
}

INSTANTIATE_TEST_SUITE_P(Layers, DelayedExchange, ::testing::ValuesIn(kDelayedLayers), [](const auto& test) {
  const DelayedLayer& layer = test.param;
  return std::string(layer.kernel) + "_H" + std::to_string(layer.hidden) + "_" + std::to_string(layer.h_bits) +
         "_bits_" + std::to_string(layer.batch) + "_sequences";
});

/// Whether float holds a ratio: its multiplier without trailing zeros has at most 24 bits.
bool is_float(const RescaleParameters& r) {
  int32_t odd = r.multiplier;
  while (odd % 2 == 0) odd /= 2;
  return odd < 1 << 24;
}

/// Where sums are rescaled as integers, what comes next is in float lanes. Needs no device.
TEST(CudaRatios, AreIntegersOnlyWhereFloatHoldsWhatComesNext) {
  Random random(7200);
  std::map<RatioType, int> x, h;
  for (int index = 0; index < 600; ++index) {
    RandomShape shape;
    shape.input = random.between(1, 1500);
    shape.hidden = random.between(1, 6);
    shape.x_bits = random.one_in(2) ? 12 : 8;
    shape.linear_bits = random.one_in(2) ? 16 : 8;
    shape.kind = random.one_in(3) ? ScaleKind::kReal : ScaleKind::kPow2;
    Result<GruModel> model = random_model(random, shape);
    if (model.ok() && shape.kind == ScaleKind::kPow2 && random.one_in(2)) model = with_multipliers(random, *model);
    if (!model.ok()) continue;  // the overflow proof refuses it
    const GruLayerParameters& p = model->parameters().layers[0];
    const Result<GruProof> proof = prove_no_overflow(p, "layer");
    ASSERT_TRUE(proof.ok()) << proof.status().message();
    const LayerRatios ratios = choose_ratios(p, *proof);
    ++x[ratios.x];
    ++h[ratios.h];
    if (ratios.x != RatioType::kDouble) {
      EXPECT_TRUE(std::all_of(p.ih_to_gate.begin(), p.ih_to_gate.end(), is_float)) << "model " << index;
    }
    if (ratios.h != RatioType::kDouble) {
      EXPECT_TRUE(is_float(p.hh_to_gate[0]) && is_float(p.hh_to_gate[1]) && is_float(p.rhh_to_n)) << "model " << index;
    }
  }
  for (const RatioType type : {RatioType::kFloat, RatioType::kShift, RatioType::kFixed, RatioType::kDouble}) {
    EXPECT_GT(x[type], 20) << static_cast<int>(type);
    EXPECT_GT(h[type], 20) << static_cast<int>(type);
  }
}

}  // namespace
}  // namespace isobit::cuda
