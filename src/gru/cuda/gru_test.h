// SPDX-License-Identifier: Apache-2.0
// What the tests of the GRU on a device share: random models and runs, and a fixture that compares every kernel with
// the reference on the host, byte for byte.
#ifndef ISOBIT_GRU_CUDA_GRU_TEST_H_
#define ISOBIT_GRU_CUDA_GRU_TEST_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/cuda/floats.h"
#include "gru/cuda/plan.h"
#include "gru/proof.h"
#include "gru/random_model.h"
#include "isobit/cuda/gru.h"
#include "isobit/grid.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {

using isobit::testing::GuardedDeviceBuffer;
using isobit::testing::racecheck;
using isobit::testing::sanitized;

inline bool hidden_from_sanitizer(std::string_view kernel) {
  return racecheck() && (kernel == "persistent" || kernel == "cluster" || kernel == "cluster_many" || kernel == "grid");
}

/// Whether all forms of `persistent` have code for the device. ISOBIT_CUDA_CODE=80 says that the build has code for
/// compute capability 8.0 only, which the driver translates for the device: then `portable` alone must run.
inline bool must_run_persistent() {
  int major = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  const char* const code = std::getenv("ISOBIT_CUDA_CODE");
  return major == 9 && (code == nullptr || std::string_view(code) != "80");
}

inline bool must_run(std::string_view kernel, int64_t hidden) {
  const Result<DeviceLimits> limits = current_device_limits();
  EXPECT_TRUE(limits.ok()) << limits.status().message();
  return kernel == "portable" ? hidden <= int64_t{16} * limits->processors : must_run_persistent();
}

inline int64_t size_of(const Grid& grid) { return static_cast<int64_t>(size_in_bytes(grid.dtype())); }

/// Products of codes in one step of one sequence.
inline int64_t products_per_step(const RandomShape& s) {
  int64_t count = 0;
  for (int32_t l = 0; l < s.layers; ++l)
    count += s.directions * 3 * s.hidden * (s.hidden + (l == 0 ? s.input : s.hidden * s.directions));
  return count;
}

/// Which widths random models have: 2 to 16 bits; more than that in places; mostly 8, with what else `persistent` asks
/// for.
enum class Widths { kUsual, kWide, kBytes };

/// Shapes that no kernel likes.
inline RandomShape device_shape(Random& random, Widths widths) {
  RandomShape s = random_shape(random);
  const int64_t most = random.one_in(3) ? (sanitized() ? 70 : 300) : 40;
  s.input = random.between(1, most);
  s.hidden = random.between(1, most);
  if (widths == Widths::kBytes) {
    const int64_t most_bytes = sanitized() ? 300 : 800;
    s.hidden = random.one_in(2) ? random.between(1, most_bytes) : 16 * random.between(1, most_bytes / 16);
    if (random.one_in(3)) s.input = random.between(1, sanitized() ? 70 : 500);
    for (int32_t* bits : {&s.x_bits, &s.h_bits, &s.weight_bits, &s.linear_bits, &s.gate_in_bits, &s.gate_out_bits})
      *bits = random.one_in(4) ? static_cast<int32_t>(random.between(2, 8)) : 8;
    if (random.one_in(3)) s.linear_bits = static_cast<int32_t>(random.between(9, 16));
    if (random.one_in(4)) s.gate_in_bits = static_cast<int32_t>(random.between(9, 12));
    if (random.one_in(4)) s.x_bits = static_cast<int32_t>(random.between(9, 16));
    if (random.one_in(4)) s.h_bits = static_cast<int32_t>(random.between(9, 16));
    if (!random.one_in(4)) s.kind = ScaleKind::kPow2;
    s.rounding = Rounding::kNearestEven;
  }
  for (int64_t* size : {&s.input, &s.hidden})  // rows that are aligned, if x is
    if (random.one_in(3)) *size = (*size + 15) / 16 * 16;
  if (widths != Widths::kWide) return s;
  const auto widen = [&](int32_t& bits) {
    if (random.one_in(2)) bits = static_cast<int32_t>(random.between(17, 32));
  };
  widen(s.x_bits);
  widen(s.h_bits);
  widen(s.linear_bits);
  if (random.one_in(3)) s.weight_bits = static_cast<int32_t>(random.between(17, 30));
  return s;
}

/// Rescales that no derivation makes: shifts of more than 62 and less than 0, multipliers of any size. Empty where the
/// overflow proof refuses all tries.
inline std::optional<GruModel> with_odd_rescales(Random& random, const GruModel& model) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    GruModelParameters parameters = model.parameters();
    const auto change = [&](RescaleParameters& r) {
      if (!random.one_in(3)) return;
      switch (random.between(0, 3)) {
        case 0: r.shift = static_cast<int32_t>(random.between(60, 127)); break;
        case 1: r.shift = std::max(r.shift - static_cast<int32_t>(random.between(1, 3)), -62); break;
        case 2: {  // about the same ratio
          if (r.multiplier != 1) break;
          const auto bits = static_cast<int32_t>(random.between(1, 12));
          r.multiplier = static_cast<int32_t>(random.between(int64_t{1} << bits, (int64_t{2} << bits) - 1));
          r.shift = std::clamp(r.shift + bits, -62, 127);
          break;
        }
        default: r.shift = std::min(r.shift + static_cast<int32_t>(random.between(1, 3)), 127); break;
      }
    };
    for (GruLayerParameters& p : parameters.layers) {
      for (auto* rows : {&p.bw_to_acc, &p.br_to_acc, &p.acc_to_ih, &p.acc_to_hh})
        for (RescaleParameters& r : *rows) change(r);
      for (auto* r : {&p.ih_to_gate[0], &p.ih_to_gate[1], &p.ih_to_gate[2], &p.hh_to_gate[0], &p.hh_to_gate[1],
                      &p.rhh_to_n, &p.n_to_h})
        change(*r);
      const int64_t row = random.between(0, 3 * p.hidden_size - 1);
      p.bw.set(row, 0, 0);
      p.bw_to_acc[static_cast<size_t>(row)] = {1, -62};
    }
    Result<GruModel> changed = GruModel::create(std::move(parameters));
    if (changed.ok()) return *std::move(changed);
  }
  return std::nullopt;
}

/// The same model with about the same ratios of accumulators, none of which is a power of two.
inline Result<GruModel> with_multipliers(Random& random, const GruModel& model) {
  GruModelParameters parameters = model.parameters();
  for (GruLayerParameters& p : parameters.layers)
    for (auto* rows : {&p.acc_to_ih, &p.acc_to_hh})
      for (RescaleParameters& r : *rows) {
        r.multiplier = static_cast<int32_t>(2 * random.between(1 << 10, (1 << 11) - 1) + 1);
        r.shift += 11;
      }
  return GruModel::create(std::move(parameters));
}

struct Case {
  RandomShape shape;
  GruModel model;
  RandomRun run;
  bool batch_first = false;
  bool odd_rescales = false;
  bool two_states = false;  // in turn, call by call; and x aligned to 16 bytes, else to its elements only
  bool fast_host = false;   // not the reference, but the kernel that the host chooses: `isobit verify` compares those
};

/// The next model that the overflow proof lets pass, and a run of about `products` products at most.
inline Case next_case(Random& random, Widths widths, int64_t products) {
  Case c;
  for (;;) {
    c.shape = device_shape(random, widths);
    Result<GruModel> model = random_model(random, c.shape);
    if (!model.ok()) {
      EXPECT_EQ(model.status().code(), StatusCode::kOverflow) << model.status().message();
      continue;
    }
    c.model = *std::move(model);
    break;
  }
  if (widths != Widths::kBytes && random.one_in(3))
    if (std::optional<GruModel> changed = with_odd_rescales(random, c.model)) {
      c.model = *std::move(changed);
      c.odd_rescales = true;
    }
  RandomRun& run = c.run;
  const int64_t rows = std::max<int64_t>(products / products_per_step(c.shape), 1);
  const int64_t batch = std::min(random.between(1, 40), rows);
  const bool random_state = random.one_in(2);
  run.batch = batch;
  run.steps = std::clamp<int64_t>(rows / batch, 1, random.between(1, 20));
  run.x = random_tensor(random, run.steps * batch * c.model.input_size(), c.model.input_grid());
  run.start = c.model.initial_state(batch);
  for (int64_t l = 0; random_state && l < run.start.layer_count(); ++l) {
    const std::vector<std::byte> h = random_tensor(random, batch * c.model.hidden_size(),
                                                   c.model.parameters().layers[static_cast<size_t>(l)].grids[kH]);
    std::copy(h.begin(), h.end(), run.start.layer(l).begin());
  }
  c.batch_first = random.one_in(3);
  c.two_states = random.one_in(2);
  if (random.one_in(3)) {
    for (int64_t b = 0; b < batch; ++b) run.lengths.push_back(random.between(0, run.steps));
  } else if (c.shape.directions == 1 && !c.batch_first && random.one_in(2)) {
    for (int64_t left = run.steps; left > 0; left -= run.chunks.back()) run.chunks.push_back(random.between(1, left));
  }
  if (run.chunks.empty()) run.chunks.push_back(run.steps);
  if (c.shape.layers == 1 && random.one_in(4))
    for (int64_t i = 0; i < run.steps * batch * c.model.output_size(); ++i)
      run.mask.push_back(static_cast<uint8_t>(random.between(0, 2)));
  return c;
}

/// What can hold the integers of a layer's gates exactly.
inline std::string lanes_of(const GruLayerParameters& p) {
  const Result<GruProof> proof = prove_no_overflow(p, "layer");
  EXPECT_TRUE(proof.ok()) << proof.status().message();
  if (p.rounding != Rounding::kNearestEven || !proof->gates_f64) return "int64";
  const bool bytes = size_of(p.grids[kX]) == 1 && size_of(p.grids[kH]) == 1;
  return proof->gates_f32 && bytes ? "float" : "double";
}

struct Outcome {
  std::vector<std::byte> y;
  GruState state;
};

inline isobit::RunOptions host_options(const Case& c) {
  isobit::RunOptions options{.whole_sequence = true};
  if (!c.fast_host) options.path = CpuPath::kReference;
  options.lengths = c.run.lengths;
  options.zoneout_mask = c.run.mask;
  options.batch_first = c.batch_first;
  return options;
}

inline Outcome on_host(const Case& c) {
  Outcome out;
  out.state = c.run.start;
  out.y.resize(static_cast<size_t>(c.run.steps * c.run.batch * c.model.output_size() * size_of(c.model.output_grid())));
  Workspace workspace = c.model.workspace(c.run.batch, c.run.steps);
  const Status status = c.model.forward_codes(c.run.x, out.y, c.run.steps, out.state, workspace, host_options(c));
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

inline bool equal(const GruState& a, const GruState& b) {
  for (int64_t l = 0; l < a.layer_count(); ++l)
    if (!std::equal(a.layer(l).begin(), a.layer(l).end(), b.layer(l).begin(), b.layer(l).end())) return false;
  return a.layer_count() == b.layer_count() && a.batch() == b.batch();
}

class DeviceGrus : public ::testing::Test {
 protected:
  void SetUp() override {
    ISOBIT_NEEDS_CUDA_DEVICE();
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  void wait() const { ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

  /// Options of a run on the device, and the memory behind them.
  struct DeviceOptions {
    DeviceOptions(const Case& c, cudaStream_t stream)
        : lengths(static_cast<int64_t>(c.run.lengths.size()) * 8 + 8),
          mask(static_cast<int64_t>(c.run.mask.size()) + 4) {
      std::vector<int64_t> values(c.run.lengths.begin(), c.run.lengths.end());
      for (size_t i = 0; i < values.size(); ++i) {  // outside 0..T: the nearer end
        if (values[i] == 0 && i % 2 == 0) values[i] = i % 4 == 0 ? -7 : std::numeric_limits<int64_t>::min();
        if (values[i] == c.run.steps && i % 2 == 0) values[i] = std::numeric_limits<int64_t>::max();
      }
      lengths.write(values);
      mask.write(c.run.mask);
      if (!values.empty()) options.lengths = {static_cast<const int64_t*>(lengths.data()), values.size()};
      if (!c.run.mask.empty()) options.zoneout_mask = {static_cast<const uint8_t*>(mask.data()), c.run.mask.size()};
      options.batch_first = c.batch_first;
      options.stream = stream;
      if (racecheck()) options.kernel = "generic";  // where a test does not ask for one
    }
    GuardedDeviceBuffer lengths, mask;
    RunOptions options{.whole_sequence = true};
  };

  /// What a run takes and gives: codes; floats, y from 4 bytes past a multiple of 256 on; or from a multiple on.
  enum class Entry { kCodes, kFloats, kAlignedFloats };

  static int64_t x_count(const Case& c) { return c.run.steps * c.run.batch * c.model.input_size(); }
  /// Where NaN is among the floats of x: nowhere; in the last place, which may be beyond a length and in a later chunk
  /// only; in a few places.
  static std::vector<int64_t> nan_places(const Case& c) {
    const int64_t count = x_count(c);
    Random random(static_cast<uint64_t>(count * 31 + c.model.hidden_size() * 7 + c.run.steps));
    switch (random.between(0, 3)) {
      case 0: return {};
      case 1: return {count - 1};
      case 2: return {random.between(0, count - 1)};
      default: return {random.between(0, count - 1), random.between(0, count - 1), count - 1};
    }
  }
  /// The same with zeros there, which is what NaN counts as.
  static Case with_zeros(Case c) {
    const Grid& grid = c.model.input_grid();
    for (const int64_t place : nan_places(c)) store_code(c.run.x.data(), grid.dtype(), place, grid.zero_point);
    return c;
  }
  /// Floats that are quantised to the codes of x, or NaN.
  static std::vector<float> floats_of_x(const Case& c) {
    const Grid& grid = c.model.input_grid();
    std::vector<float> x(static_cast<size_t>(x_count(c)));
    Random random(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t code = load_code(c.run.x.data(), grid.dtype(), static_cast<int64_t>(i));
      const float noise = 0.05f * static_cast<float>(random.between(-8, 8));
      x[i] = (static_cast<float>(code - grid.zero_point) + noise) * grid.scale();
      if ((code == grid.min() || code == grid.max()) && random.one_in(4))
        x[i] = code == grid.min() ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
    }
    for (const int64_t place : nan_places(c)) x[static_cast<size_t>(place)] = std::numeric_limits<float>::quiet_NaN();
    return x;
  }
  /// What check_input says of floats.
  static std::string nan_message(std::span<const float> x) {
    const auto nan = std::find_if(x.begin(), x.end(), [](float value) { return std::isnan(value); });
    return nan == x.end() ? "" : "x[" + std::to_string(nan - x.begin()) + "] is NaN, must be a number";
  }

  /// Runs the case in its chunks with one kernel.
  void on_device(const Case& c, const DeviceGru& gru, std::string_view kernel, Entry entry, Outcome& out) const {
    const RandomRun& run = c.run;
    const bool of_floats = entry != Entry::kCodes;
    const int64_t x_size = of_floats ? 4 : size_of(c.model.input_grid());
    const int64_t y_size = of_floats ? 4 : size_of(c.model.output_grid());
    const std::vector<float> floats = of_floats ? floats_of_x(c) : std::vector<float>();
    const auto* const float_bytes = reinterpret_cast<const std::byte*>(floats.data());
    const std::vector<std::byte> input =
        of_floats ? std::vector<std::byte>(float_bytes, float_bytes + floats.size() * 4) : run.x;
    const int64_t x_row = run.batch * c.model.input_size() * x_size;
    const int64_t y_row = run.batch * c.model.output_size() * y_size;
    GuardedDeviceBuffer x(run.steps * x_row, c.two_states ? 0 : x_size);
    GuardedDeviceBuffer y(run.steps * y_row, entry == Entry::kAlignedFloats ? 0 : y_size);
    GuardedDeviceBuffer state(gru.state_bytes(run.batch));
    GuardedDeviceBuffer other_state(c.two_states ? gru.state_bytes(run.batch) : 0);
    const GuardedDeviceBuffer* now = &state;
    const GuardedDeviceBuffer* next = c.two_states ? &other_state : &state;
    GuardedDeviceBuffer workspace(
        gru.workspace_bytes(run.batch, *std::max_element(run.chunks.begin(), run.chunks.end())));
    DeviceOptions device(c, stream_);
    device.options.kernel = kernel;
    const std::span<const uint8_t> mask = device.options.zoneout_mask;
    x.write(input);
    out.state = c.model.initial_state(run.batch);
    const Status started = equal(out.state, run.start) ? gru.initial_state(state.bytes(), run.batch, stream_)
                                                       : gru.upload_state(run.start, state.bytes(), stream_);
    ASSERT_TRUE(started.ok()) << started.message();
    int64_t first = 0;
    for (const int64_t steps : run.chunks) {
      if (c.two_states) device.options.next_state = next->bytes();
      const int64_t masked = run.batch * c.model.output_size();
      if (!mask.empty())
        device.options.zoneout_mask =
            mask.subspan(static_cast<size_t>(first * masked), static_cast<size_t>(steps * masked));
      const auto x_bytes = x.bytes().subspan(static_cast<size_t>(first * x_row), static_cast<size_t>(steps * x_row));
      const auto y_bytes = y.bytes().subspan(static_cast<size_t>(first * y_row), static_cast<size_t>(steps * y_row));
      if (of_floats) {
        const Status status = gru.forward({reinterpret_cast<const float*>(x_bytes.data()), x_bytes.size() / 4},
                                          {reinterpret_cast<float*>(y_bytes.data()), y_bytes.size() / 4}, steps,
                                          run.batch, now->bytes(), workspace.bytes(), device.options);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(DeviceGru::check_input(workspace.bytes(), stream_).message(),
                  nan_message(std::span(floats).subspan(static_cast<size_t>(first * x_row / 4), x_bytes.size() / 4)));
      } else {
        const Status status =
            gru.forward_codes(x_bytes, y_bytes, steps, run.batch, now->bytes(), workspace.bytes(), device.options);
        ASSERT_TRUE(status.ok()) << status.message();
      }
      std::swap(now, next);
      first += steps;
    }
    const Status finished = gru.download_state(now->bytes(), out.state, stream_);
    ASSERT_TRUE(finished.ok()) << finished.message();
    out.y = y.read<std::byte>();
    EXPECT_EQ(x.read<std::byte>(), input);
    for (const GuardedDeviceBuffer* buffer : {&state, &other_state, &workspace, &device.lengths, &device.mask})
      (void)buffer->read<std::byte>();
  }

  /// Every kernel that can run the case, or `only` one.
  void compare(const Case& given, std::string_view only = {}) {
    const Case c = with_zeros(given);
    const Outcome expected = on_host(c);
    const Result<DeviceGru> gru = DeviceGru::create(c.model);
    ASSERT_TRUE(gru.ok()) << gru.status().message();
    for (const DeviceGruKernel& kernel : gru_kernels()) {
      if (hidden_from_sanitizer(kernel.name) || (!only.empty() && kernel.name != only)) continue;
      if (!gru->choose_kernel(c.run.batch, c.run.steps, kernel.name).ok()) continue;
      if (size_of(c.model.input_grid()) <= 2) {  // the float of a code of more bits is another one's
        compare_floats(c, *gru, kernel.name, expected);
        if (HasFatalFailure()) return;
      }
      Outcome actual;
      on_device(c, *gru, kernel.name, Entry::kCodes, actual);
      if (HasFatalFailure()) return;
      const int64_t count = c.run.steps * c.run.batch * c.model.output_size();
      compared_ += count;
      runs_[std::string(kernel.name)] += 1;
      if (kernel.name == "step") {
        const GruLayerParameters& p = c.model.parameters().layers.front();
        runs_["step, " + lanes_of(p)] += 1;
        runs_["step, " + std::string(to_string(p.rounding))] += 1;
        for (const GruTensor tensor : {kX, kH})
          if (size_of(p.grids[tensor]) == 2)
            runs_["step, " + std::string(kGruTensorNames[tensor]) + " of 16 bits"] += 1;
        if (c.two_states && c.model.input_size() % 16 == 0) runs_["step, x as it is"] += 1;
        if (c.model.hidden_size() % 16 == 0) runs_["step, h as it is"] += 1;
      }
      EXPECT_TRUE(equal(actual.state, expected.state)) << kernel.name << ": last state";
      if (actual.y == expected.y) continue;
      const Dtype dtype = c.model.output_grid().dtype();
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(load_code(actual.y.data(), dtype, i), load_code(expected.y.data(), dtype, i))
            << kernel.name << ": y[" << i << "] of " << count;
    }
  }

  void compare_floats(const Case& c, const DeviceGru& gru, std::string_view kernel, const Outcome& expected) {
    Outcome actual;
    const std::string with_floats = std::string(kernel) + ", floats";
    const bool aligned = runs_[with_floats]++ % 2 == 0;
    on_device(c, gru, kernel, aligned ? Entry::kAlignedFloats : Entry::kFloats, actual);
    if (HasFatalFailure()) return;
    std::vector<float> y(actual.y.size() / 4);
    dequantize(c.model.output_grid(), expected.y.data(), y);
    EXPECT_TRUE(equal(actual.state, expected.state)) << kernel << ": last state of floats";
    const auto* const bits = reinterpret_cast<const uint32_t*>(actual.y.data());
    for (size_t i = 0; i < y.size(); ++i)
      ASSERT_EQ(bits[i], __builtin_bit_cast(uint32_t, y[i])) << kernel << ": float y[" << i << "] of " << y.size();
  }

  void compare_random(uint64_t seed, Widths widths, int cases, int64_t products) {
    Random random(seed);
    int odd = 0;
    int over_16_bits = 0;
    int unsigned_32_bits = 0;  // the types of x and h that make `generic` hold codes in 64 bits
    for (int index = 0; index < cases && !HasFailure(); ++index) {
      const Case c = next_case(random, widths, products);
      const Dtype types[] = {c.model.input_grid().dtype(), c.model.output_grid().dtype()};
      odd += c.odd_rescales ? 1 : 0;
      over_16_bits += c.shape.x_bits > 16 || c.shape.h_bits > 16 ? 1 : 0;
      unsigned_32_bits += std::count(std::begin(types), std::end(types), Dtype::kU32) > 0 ? 1 : 0;
      SCOPED_TRACE(describe(c.shape, c.run, seed, index) + (c.batch_first ? ", batch first" : "") +
                   (c.run.lengths.empty() ? "" : ", lengths") + (c.run.mask.empty() ? "" : ", mask") +
                   (c.odd_rescales ? ", odd rescales" : "") + (c.two_states ? ", two states" : "") + ", chunks " +
                   std::to_string(c.run.chunks.size()));
      compare(c);
    }
    std::printf("%d models (%d with odd rescales; x or h over 16 bits in %d, u32 in %d), %lld outputs compared, %s\n",
                cases, odd, over_16_bits, unsigned_32_bits, static_cast<long long>(compared_),
                HasFailure() ? "DIFFERENT" : "0 different");
  }

  cudaStream_t stream_ = nullptr;
  int64_t compared_ = 0;
  std::map<std::string, int> runs_;  // of each kernel
};

/// A model and a run of a given size.
inline Case case_of(uint64_t seed, const RandomShape& shape, int64_t batch, int64_t steps) {
  Random random(seed);
  Case c;
  c.shape = shape;
  Result<GruModel> model = random_model(random, c.shape);
  EXPECT_TRUE(model.ok()) << model.status().message();
  c.model = *std::move(model);
  c.run.batch = batch;
  c.run.steps = steps;
  c.run.chunks.push_back(steps);
  c.run.x = random_tensor(random, steps * batch * shape.input, c.model.input_grid());
  c.run.start = c.model.initial_state(batch);
  return c;
}

inline Case case_of(uint64_t seed, int64_t input, int64_t hidden, int64_t batch, int64_t steps, int32_t layers = 1,
                    int32_t directions = 1) {
  RandomShape shape;
  shape.input = input;
  shape.hidden = hidden;
  shape.layers = layers;
  shape.directions = directions;
  return case_of(seed, shape, batch, steps);
}

/// Of each kernel of `persistent`, one block, clusters of every kind, the whole device; `products`.
struct PersistentSize {
  int64_t hidden, batch;
  int32_t h_bits;
  std::string_view kernel = "persistent";
  int64_t steps = 6;
};

inline constexpr PersistentSize kPersistentSizes[] = {{120, 40, 8},
                                                      {250, 9, 16},
                                                      {500, 2, 8},
                                                      {500, 60, 16},
                                                      {1000, 2, 8},
                                                      {1000, 90, 8},
                                                      {760, 90, 16},
                                                      {1040, 3, 16},
                                                      {1040, 40, 16},
                                                      {1800, 20, 8},
                                                      {900, 230, 8},
                                                      {900, 120, 16},
                                                      {120, 40, 16, "portable"},
                                                      {500, 60, 8, "portable"},
                                                      {1040, 9, 8, "portable"},
                                                      {1100, 70, 16, "products"},
                                                      {1100, 130, 8, "products", 1},
                                                      {1300, 70, 16, "products", 1}};

inline Case case_of(uint64_t seed, const PersistentSize& size) {
  RandomShape shape;
  shape.input = 16;
  shape.hidden = size.hidden;
  shape.h_bits = size.h_bits;
  return case_of(seed, shape, size.batch, size.steps);
}

/// The kernels of what `enqueue(stream)` captures, in the order of the graph's nodes.
template <typename Enqueue>
std::vector<const void*> captured_kernels(cudaStream_t stream, const Enqueue& enqueue) {
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  const Status status = enqueue(stream);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_TRUE(status.ok()) << status.message();
  size_t count = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &count), cudaSuccess);
  std::vector<cudaGraphNode_t> nodes(count);
  EXPECT_EQ(cudaGraphGetNodes(graph, nodes.data(), &count), cudaSuccess);
  std::vector<const void*> kernels;
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    EXPECT_EQ(cudaGraphNodeGetType(node, &type), cudaSuccess);
    if (type != cudaGraphNodeTypeKernel) continue;
    cudaKernelNodeParams parameters{};
    EXPECT_EQ(cudaGraphKernelNodeGetParams(node, &parameters), cudaSuccess);
    kernels.push_back(parameters.func);
  }
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  return kernels;
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_GRU_TEST_H_
