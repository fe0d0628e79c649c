// SPDX-License-Identifier: Apache-2.0
// The GRU on a device against the reference on the host, byte for byte.
#include "isobit/cuda/gru.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/cuda/floats.h"
#include "gru/cuda/limits.h"
#include "gru/cuda/persistent_hooks.h"
#include "gru/cuda/ratios.h"
#include "gru/cuda/step_tile.h"
#include "gru/proof.h"
#include "gru/random_model.h"
#include "isobit/cuda/host_gru.h"
#include "isobit/grid.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

using isobit::testing::GuardedDeviceBuffer;

/// Smaller under compute-sanitizer, which is slow: scripts/test.sh sets it to the name of the tool.
bool sanitized() { return std::getenv("ISOBIT_SANITIZED") != nullptr; }

/// racecheck reports hand-overs of `cluster`, `cluster_many` and `grid` that it does not follow: an arrival of one lane
/// for its warp, after __syncwarp; bulk copies that a barrier was armed for before (cluster.cuh and grid.cuh
/// say what orders them). So it does not get those, nor `persistent`, which is one of them.
bool racecheck() { return sanitized() && std::string_view(std::getenv("ISOBIT_SANITIZED")) == "racecheck"; }

bool hidden_from_sanitizer(std::string_view kernel) {
  return racecheck() && (kernel == "persistent" || kernel == "cluster" || kernel == "cluster_many" || kernel == "grid");
}

/// Whether all forms of `persistent` have code for the device. ISOBIT_CUDA_CODE=80 says that the build has code for
/// compute capability 8.0 only, which the driver translates for the device: then `portable` alone must run.
bool must_run_persistent() {
  int major = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  const char* const code = std::getenv("ISOBIT_CUDA_CODE");
  return major == 9 && (code == nullptr || std::string_view(code) != "80");
}
bool must_run(std::string_view kernel, int64_t hidden) {
  const Result<DeviceLimits> limits = current_device_limits();
  EXPECT_TRUE(limits.ok()) << limits.status().message();
  return kernel == "portable" ? hidden <= int64_t{16} * limits->processors : must_run_persistent();
}

int64_t size_of(const Grid& grid) { return static_cast<int64_t>(size_in_bytes(grid.dtype())); }

/// Products of codes in one step of one sequence.
int64_t products_per_step(const RandomShape& s) {
  int64_t count = 0;
  for (int32_t l = 0; l < s.layers; ++l)
    count += s.directions * 3 * s.hidden * (s.hidden + (l == 0 ? s.input : s.hidden * s.directions));
  return count;
}

/// Which widths random models have: 2 to 16 bits; more than that in places; mostly 8, with what else `persistent` asks
/// for.
enum class Widths { kUsual, kWide, kBytes };

/// Shapes that no kernel likes.
RandomShape device_shape(Random& random, Widths widths) {
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
std::optional<GruModel> with_odd_rescales(Random& random, const GruModel& model) {
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
Result<GruModel> with_multipliers(Random& random, const GruModel& model) {
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
Case next_case(Random& random, Widths widths, int64_t products) {
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
std::string lanes_of(const GruLayerParameters& p) {
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

isobit::GruRunOptions host_options(const Case& c) {
  isobit::GruRunOptions options{.whole_sequence = true};
  if (!c.fast_host) options.path = CpuPath::kReference;
  options.lengths = c.run.lengths;
  options.zoneout_mask = c.run.mask;
  options.batch_first = c.batch_first;
  return options;
}

Outcome on_host(const Case& c) {
  Outcome out;
  out.state = c.run.start;
  out.y.resize(static_cast<size_t>(c.run.steps * c.run.batch * c.model.output_size() * size_of(c.model.output_grid())));
  GruWorkspace workspace = c.model.workspace(c.run.batch, c.run.steps);
  const Status status =
      c.model.forward_codes(c.run.x.data(), out.y.data(), c.run.steps, out.state, workspace, host_options(c));
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

bool equal(const GruState& a, const GruState& b) {
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
    explicit DeviceOptions(const Case& c)
        : lengths(static_cast<int64_t>(c.run.lengths.size()) * 4 + 4),
          mask(static_cast<int64_t>(c.run.mask.size()) + 4) {
      std::vector<int32_t> values(c.run.lengths.begin(), c.run.lengths.end());
      for (size_t i = 0; i < values.size(); ++i) {  // outside 0..T: the nearer end
        if (values[i] == 0 && i % 2 == 0) values[i] = i % 4 == 0 ? -7 : std::numeric_limits<int32_t>::min();
        if (values[i] == c.run.steps && i % 2 == 0) values[i] = std::numeric_limits<int32_t>::max();
      }
      lengths.write(values);
      mask.write(c.run.mask);
      if (!values.empty()) options.lengths = static_cast<const int32_t*>(lengths.data());
      if (!c.run.mask.empty()) options.zoneout_mask = static_cast<const uint8_t*>(mask.data());
      options.batch_first = c.batch_first;
      if (racecheck()) options.kernel = "generic";  // where a test does not ask for one
    }
    GuardedDeviceBuffer lengths, mask;
    GruRunOptions options{.whole_sequence = true};
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
    DeviceOptions device(c);
    device.options.kernel = kernel;
    x.write(input);
    out.state = c.model.initial_state(run.batch);
    const Status started = equal(out.state, run.start) ? gru.initial_state(state.bytes(), run.batch, stream_)
                                                       : gru.upload_state(run.start, state.bytes(), stream_);
    ASSERT_TRUE(started.ok()) << started.message();
    int64_t first = 0;
    for (const int64_t steps : run.chunks) {
      if (c.two_states) device.options.next_state = next->bytes();
      const auto x_bytes = x.bytes().subspan(static_cast<size_t>(first * x_row), static_cast<size_t>(steps * x_row));
      const auto y_bytes = y.bytes().subspan(static_cast<size_t>(first * y_row), static_cast<size_t>(steps * y_row));
      if (of_floats) {
        const Status status = gru.forward({reinterpret_cast<const float*>(x_bytes.data()), x_bytes.size() / 4},
                                          {reinterpret_cast<float*>(y_bytes.data()), y_bytes.size() / 4}, steps,
                                          run.batch, now->bytes(), workspace.bytes(), stream_, device.options);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(DeviceGru::check_input(workspace.bytes(), stream_).message(),
                  nan_message(std::span(floats).subspan(static_cast<size_t>(first * x_row / 4), x_bytes.size() / 4)));
      } else {
        const Status status = gru.forward_codes(x_bytes, y_bytes, steps, run.batch, now->bytes(), workspace.bytes(),
                                                stream_, device.options);
        ASSERT_TRUE(status.ok()) << status.message();
      }
      std::swap(now, next);
      first += steps;
      if (device.options.zoneout_mask != nullptr)
        device.options.zoneout_mask += steps * run.batch * c.model.output_size();
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

/// A model and a run of a given size.
Case case_of(uint64_t seed, const RandomShape& shape, int64_t batch, int64_t steps) {
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
Case case_of(uint64_t seed, int64_t input, int64_t hidden, int64_t batch, int64_t steps, int32_t layers = 1,
             int32_t directions = 1) {
  RandomShape shape;
  shape.input = input;
  shape.hidden = hidden;
  shape.layers = layers;
  shape.directions = directions;
  return case_of(seed, shape, batch, steps);
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

/// Lets teams of gru_cluster_many have guests in short runs.
struct ShortVisits {
  ShortVisits() { set_fewest_guest_steps(2); }
  ~ShortVisits() { set_fewest_guest_steps(0); }
  ShortVisits(const ShortVisits&) = delete;
  ShortVisits& operator=(const ShortVisits&) = delete;
};
/// Of a batch: so many sequences that teams of gru_cluster_many take turns with ten of them.
constexpr int64_t kWithGuests = -1;
int64_t batch_of(int64_t batch, uint64_t seed, const RandomShape& shape, int64_t steps) {
  if (batch != kWithGuests) return batch;
  const Case one = case_of(seed, shape, 1, 1);
  const GruLayerParameters& layer = one.model.parameters().layers[0];
  const Result<int32_t> teams = cluster_many_teams(layer);
  if (!teams.ok()) {
    EXPECT_FALSE(must_run("cluster_many", shape.hidden)) << teams.status().message();
    return 250;
  }
  const int64_t with_guests = 2 * 8 * *teams + 10;
  const Result<int32_t> guests = guests_of_run(layer, with_guests, steps);
  EXPECT_TRUE(guests.ok()) << guests.status().message();
  EXPECT_EQ(*guests, 10) << with_guests << " sequences";
  return with_guests;
}

/// Of each kernel of `persistent`, one block, clusters of every kind, one team and two of the whole device; `products`.
struct PersistentSize {
  int64_t hidden, batch;
  int32_t h_bits;
  std::string_view kernel = "persistent";
  int64_t steps = 6;
};
constexpr PersistentSize kPersistentSizes[] = {{120, 40, 8},
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
                                               {500, kWithGuests, 8, "cluster_many", 8},
                                               {512, kWithGuests, 16, "cluster_many", 8},
                                               {120, 40, 16, "portable"},
                                               {500, 60, 8, "portable"},
                                               {1040, 9, 8, "portable"},
                                               {1100, 70, 16, "products"},
                                               {1100, 130, 8, "products", 1},
                                               {1300, 70, 16, "products", 1}};
Case case_of(uint64_t seed, const PersistentSize& size) {
  RandomShape shape;
  shape.input = 16;
  shape.hidden = size.hidden;
  shape.h_bits = size.h_bits;
  return case_of(seed, shape, batch_of(size.batch, seed, shape, size.steps), size.steps);
}

TEST_F(DeviceGrus, ManySequencesAndLargeSizes) {
  compare(case_of(1, 5, 3, sanitized() ? 300 : 3001, 2));  // more sequences than blocks
  if (!sanitized()) compare(case_of(2, 1531, 1030, 3, 3));
  if (!sanitized()) compare(case_of(3, 1, 2049, 1, 2));
  compare(case_of(4, 9, 1, 40, 20, 2, 2));
  struct Large {
    int64_t hidden, batch;
  };
  for (const Large& size : {Large{1040, 2}, {1040, 40}, {900, 230}}) {  // two directions that take the whole device
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
        const Result<int32_t> teams = grid_teams(layer, size.batch, size.steps);
        ASSERT_TRUE(teams.ok()) << teams.status().message();
        if (*teams > 1) ++ratios[std::string("two teams, ") + name(of_layer.h)];
        ++ratios[std::string(size.h_bits > 8 ? "R h of two planes, " : "R h, ") +
                 (size.hidden > 1024 ? "H above 1024, " : "") + name(of_layer.h)];
      }
    }
  for (const auto& [what, count] : ratios) std::printf("%s: %d layers\n", what.c_str(), count);
  if (!ratios.empty() && !sanitized()) {
    const Result<DeviceLimits> limits = current_device_limits();
    ASSERT_TRUE(limits.ok()) << limits.status().message();
    // A block of each team has 16 units.
    const bool has_room_for_two = must_run_persistent() && limits->processors >= 2 * 1024 / 16;
    for (const std::string of : {"W x, ", "R h, ", "R h, H above 1024, ", "R h of two planes, ",
                                 "R h of two planes, H above 1024, ", "two teams, "})
      for (const std::string type : {"float", "shift", "fixed", "double"})
        if ((type != "float" || of.find("planes") == std::string::npos) && (of != "two teams, " || has_room_for_two)) {
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
      {"grid", 770, 1, 8},
      {"grid", 1000, 40, 16},
      {"grid", 800, 226, 8},
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
/// A batch that is a little more than whole tiles for each team of gru_cluster_many: these take turns with the last
/// sequences, forwards and backwards, of one visit and of several, with lengths and masks that end in any of them, and
/// with every part of the hand-over delayed.
TEST_F(DeviceGrus, TeamsTakeTurnsWithGuests) {
  if (racecheck()) return;  // it does not follow gru_cluster_many
  struct Size {
    int64_t hidden;
    int32_t h_bits, directions = 1, layers = 1;
    int64_t tiles = 2, guests = 9, steps = 13;
    int64_t chunk = 0;  // steps at once, about; 0: all
  };
  constexpr Size kSizes[] = {{300, 8},
                             {270, 16, 2},
                             {300, 16, 2, 1, 2, 9, 13, 5},
                             {320, 8, 1, 1, 2, 12, 13, 6},
                             {320, 8, 1, 1, 2, 9, 130},
                             {270, 16, 1, 1, 3, 4, 130, 70},
                             {512, 8, 1, 1, 2, 16, 40},
                             {500, 16, 1, 2, 3, 1, 8},
                             {509, 8, 2, 1, 2, 8, 9},
                             {400, 8, 1, 2, 3, 11, 3},
                             {512, 16, 1, 1, 2, 16, 33},
                             {640, 8, 1, 1, 2, 5, 17},
                             {768, 16, 2, 1, 2, 16, 7},
                             {701, 8, 1, 1, 2, 10, 2}};
  uint64_t seed = 8300;
  int cases = 0, with_guests = 0;
  for (const Size& size : kSizes)
    for (const ScaleKind kind : {ScaleKind::kPow2, ScaleKind::kReal}) {
      if (sanitized() && (size.hidden > 300 || kind == ScaleKind::kReal)) continue;
      RandomShape shape;
      shape.input = 9;
      shape.hidden = size.hidden;
      shape.h_bits = size.h_bits;
      shape.directions = size.directions;
      shape.layers = size.layers;
      shape.kind = kind;
      Random random(++seed);
      const int64_t steps = sanitized() ? 8 : size.steps;
      const Case small = case_of(seed, shape, 1, steps);
      const GruLayerParameters& layer = small.model.parameters().layers[0];
      const Result<int32_t> teams = cluster_many_teams(layer);
      if (!teams.ok()) {
        EXPECT_FALSE(must_run("cluster_many", size.hidden)) << teams.status().message();
        continue;
      }
      const int64_t batch = size.tiles * 8 * *teams + size.guests;
      Case c = case_of(seed, shape, batch, steps);
      if (random.one_in(2))
        for (int64_t n = 0; n < batch; ++n) c.run.lengths.push_back(random.between(0, steps));
      if (size.layers == 1 && random.one_in(2))
        for (int64_t i = 0; i < steps * batch * c.model.output_size(); ++i)
          c.run.mask.push_back(static_cast<uint8_t>(random.between(0, 2)));
      for (int64_t l = 0; l < c.run.start.layer_count(); ++l) {
        const Grid& grid = c.model.parameters().layers[static_cast<size_t>(l)].grids[kH];
        const std::vector<std::byte> h = random_tensor(random, batch * size.hidden, grid);
        std::copy(h.begin(), h.end(), c.run.start.layer(l).begin());
      }
      c.batch_first = random.one_in(2);
      c.two_states = random.one_in(2);
      c.fast_host = true;
      SCOPED_TRACE(describe(c.shape, c.run, seed, 0));
      const ShortVisits visits;
      // Rows are padded in memory, so at most so many steps find room.
      const ChunkBytes limit(size.chunk * batch * (shape.input + 6 * size.hidden));
      const bool is_cut = size.chunk > 0 && size.chunk < steps;
      if (is_cut) {
        const Result<int64_t> chunks = chunks_of(layer, batch, steps);
        ASSERT_TRUE(chunks.ok()) << chunks.status().message();
        EXPECT_TRUE(*chunks > 1 && *chunks < steps) << *chunks << " chunks must have two steps or more";
      }
      const Result<int32_t> guests = guests_of_run(layer, batch, is_cut ? 2 : steps);
      ASSERT_TRUE(guests.ok()) << guests.status().message();
      const Result<GruProof> proof = prove_no_overflow(layer, "layer");
      ASSERT_TRUE(proof.ok()) << proof.status().message();
      EXPECT_EQ(*guests, choose_ratios(layer, *proof).h == RatioType::kDouble ? 0 : size.guests);
      with_guests += *guests > 0 ? 1 : 0;
      cases += 2;
      compare(c, "cluster_many");
      const Delays delays(static_cast<uint32_t>(seed));
      compare(c, "cluster_many");
    }
  EXPECT_EQ(runs_["cluster_many"], cases);
  if (must_run("cluster_many", 300)) {
    EXPECT_GE(with_guests, sanitized() ? 3 : 14);
  }
  std::printf("%d layers with guests, %lld outputs compared\n", with_guests, static_cast<long long>(compared_));
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
  constexpr Pair kPairs[] = {{{{"grid", 1040, 3, 8}, {"grid", 2000, 1, 8}}},
                             {{{"grid", 1800, 20, 8}, {"grid", 1030, 40, 16}}},
                             {{{"grid", 900, 230, 8}, {"portable", 2048, 5, 8}}},
                             {{{"portable", 1500, 3, 16}, {"portable", 500, 60, 8}}},
                             {{{"grid", 1040, 3, 8}, {"cluster", 1000, 40, 8}}},
                             {{{"grid", 1100, 40, 8}, {"cluster_many", 1000, 90, 8}}},
                             {{{"grid", 1040, 3, 8}, {"cluster_many", 512, kWithGuests, 8}}},
                             {{{"cluster_many", 500, kWithGuests, 16}, {"cluster_many", 512, kWithGuests, 8}}}};
  const ShortVisits visits;
  constexpr int kRuns = 40;
  for (const Pair& pair : kPairs) {
    std::vector<std::thread> threads;
    std::atomic<int> equal_runs = 0;
    for (const Size& size : pair.of) {
      RandomShape shape;
      shape.input = 16;
      shape.hidden = size.hidden;
      shape.h_bits = size.h_bits;
      const int64_t batch = batch_of(size.batch, 43, shape, 20);
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
        GruRunOptions options{.whole_sequence = true};
        options.kernel = size.kernel;
        for (int run = 0; run < kRuns; ++run) {
          ASSERT_TRUE(gru->initial_state(state.bytes(), batch, stream).ok());
          const Status status =
              gru->forward_codes(x.bytes(), y.bytes(), 20, batch, state.bytes(), workspace.bytes(), stream, options);
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
                                           {1000, 130, 16},
                                           {900, 300, 8},
                                           {900, 225, 16},
                                           {512, kWithGuests, 8, "cluster_many"},
                                           {500, kWithGuests, 16, "cluster_many"},
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
  if (sanitized() && (size.hidden > 1040 || size.batch > 33 || size.batch == kWithGuests)) return;
  const ShortVisits visits;
  uint32_t seed = 7300;
  RandomShape shape;
  shape.input = 8;
  shape.hidden = size.hidden;
  shape.h_bits = size.h_bits;
  shape.gate_out_bits = size.hidden == 1040 ? size.h_bits : 8;
  const int64_t checked = sanitized() ? 4 : 40;
  const int64_t batch = batch_of(size.batch, seed, shape, checked);
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
      GruRunOptions options{.whole_sequence = true};
      options.kernel = size.kernel;
      const Status status = gru->forward_codes(x.bytes().first(static_cast<size_t>(steps * x_row)),
                                               y.bytes().first(static_cast<size_t>(steps * y_row)), steps, batch,
                                               state.bytes(), workspace.bytes(), stream_, options);
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
         "_bits_" + (layer.batch == kWithGuests ? "guests" : std::to_string(layer.batch) + "_sequences");
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

/// Calls of one step, as a decoder makes them, and sizes at which `step` takes its other ways: more tiles of sequences
/// than blocks for them, more columns than a block holds at once, codes of two bytes.
TEST_F(DeviceGrus, ChainsOfSingleStepsEqualTheReference) {
  struct Chain {
    int64_t input, hidden, batch, steps;
    int32_t x_bits = 8, h_bits = 8, weight_bits = 8, layers = 1;
    ScaleKind kind = ScaleKind::kPow2;
    Rounding rounding = Rounding::kNearestEven;
  };
  std::vector<Chain> chains = {{64, 128, 1, 20},
                               {48, 80, 19, 5, 8, 16},
                               {24, 72, 3, 5, 16, 8},
                               {13, 70, 9, 6, 5, 4, 3, 2},
                               {70, 61, 17, 5, 16, 16, 6, 2, ScaleKind::kReal}};
  for (const Rounding rounding : kAllRoundings)
    chains.push_back({65, 129, 3, 4, 12, 8, 8, 1, ScaleKind::kReal, rounding});
  if (!sanitized()) {
    chains.push_back({1024, 1024, 1, 12});
    chains.push_back({1024, 1024, 1, 4, 4, 4, 4});
    chains.push_back({300, 1030, 30, 3});
    chains.push_back({700, 2100, 40, 2});
    chains.push_back({2100, 2100, 2, 3, 8, 16});
    chains.push_back({40, 1030, 33, 2, 16, 8, 7, 1, ScaleKind::kReal, Rounding::kFloor});
  }
  uint64_t seed = 61;
  for (const Chain& chain : chains) {
    RandomShape shape;
    shape.input = chain.input;
    shape.hidden = chain.hidden;
    shape.layers = chain.layers;
    shape.x_bits = chain.x_bits;
    shape.h_bits = chain.h_bits;
    shape.weight_bits = chain.weight_bits;
    shape.kind = chain.kind;
    shape.rounding = chain.rounding;
    Case c = case_of(seed, shape, chain.batch, chain.steps);
    SCOPED_TRACE(describe(c.shape, c.run, seed, 0));
    for (const bool two_states : {false, true}) {
      c.two_states = two_states;
      c.run.chunks.assign(static_cast<size_t>(chain.steps), 1);
      compare(c);
      c.run.chunks = {chain.steps};
      compare(c);
    }
    if (HasFailure()) return;
    ++seed;
  }
  EXPECT_EQ(runs_["step"], static_cast<int>(4 * chains.size()));
  for (const char* lanes : {"float", "double", "int64"}) {
    std::printf("step, %s: %d runs\n", lanes, runs_[std::string("step, ") + lanes]);
    EXPECT_GT(runs_[std::string("step, ") + lanes], 0) << lanes;
  }
}

/// One step of floats, over its own state, or of rows that are not aligned, is two launches of `step`; of `products`
/// every step is.
TEST_F(DeviceGrus, StepsThatCopyAreProductsOfFewerSequences) {
  const Result<DeviceGru> aligned = DeviceGru::create(case_of(62, 512, 512, 1, 1).model);
  const Result<DeviceGru> odd_rows = DeviceGru::create(case_of(62, 500, 512, 1, 1).model);
  ASSERT_TRUE(aligned.ok() && odd_rows.ok());
  const bool has_products = aligned->choose_kernel(64, 1, "products").ok();
  if (!has_products) {
    EXPECT_FALSE(must_run_persistent()) << "built without code for sm_90a";
  }
  const char* const many = has_products ? "products" : "step";
  EXPECT_EQ(*aligned->choose_kernel(8, 1), "step");
  EXPECT_EQ(*aligned->choose_kernel(64, 1), many);
  EXPECT_EQ(*aligned->choose_kernel(64, 1, {}, true), "step");
  EXPECT_EQ(*aligned->choose_kernel(512, 1, {}, true), many);
  EXPECT_EQ(*odd_rows->choose_kernel(64, 1, {}, true), many);
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

/// A step of `products` is one launch where x and h are bytes of signed codes in aligned rows, and one more pads what
/// is not, or a state that the step writes over.
TEST_F(DeviceGrus, AlignedStepsOfProductsAreOneLaunch) {
  struct Size {
    int64_t input, hidden, batch, steps;
    int32_t x_bits, h_bits;
    bool two_states, batch_first;
    size_t launches;
  };
  constexpr Size kSizes[] = {{512, 512, 70, 1, 8, 8, true, false, 1},  {512, 512, 70, 1, 8, 8, false, false, 2},
                             {528, 272, 64, 1, 8, 8, true, true, 1},   {272, 512, 130, 2, 8, 8, true, false, 2},
                             {272, 512, 130, 2, 8, 8, false, true, 2}, {512, 528, 33, 3, 8, 8, true, false, 3},
                             {512, 528, 33, 3, 8, 8, false, false, 4}, {272, 512, 65, 4, 8, 8, true, true, 4},
                             {500, 512, 70, 4, 8, 8, true, false, 8},  {512, 500, 70, 3, 8, 8, true, false, 6},
                             {500, 512, 64, 4, 8, 8, true, false, 8},  {500, 512, 9, 3, 8, 8, true, true, 6},
                             {528, 512, 9, 4, 8, 8, false, true, 4},   {512, 512, 257, 3, 8, 8, true, false, 3},
                             {512, 512, 70, 3, 16, 8, true, false, 6}, {512, 512, 70, 3, 8, 16, true, false, 6}};
  uint64_t seed = 9900;
  for (const Size& size : kSizes)
    for (const bool is_signed : {true, false}) {
      if (hidden_from_sanitizer("products")) continue;
      RandomShape shape;
      shape.input = size.input;
      shape.hidden = size.hidden;
      shape.x_bits = size.x_bits;
      shape.h_bits = size.h_bits;
      Case c = case_of(++seed, shape, size.batch, size.steps);
      const GruLayerParameters* layer = &c.model.parameters().layers.front();
      while (layer->grids[kX].is_signed != is_signed || layer->grids[kH].is_signed != is_signed) {
        c = case_of(++seed, shape, size.batch, size.steps);
        layer = &c.model.parameters().layers.front();
      }
      c.two_states = size.two_states;
      c.batch_first = size.batch_first;
      c.fast_host = true;
      SCOPED_TRACE(describe(c.shape, c.run, seed, 0) + (is_signed ? ", signed" : ", unsigned"));
      compare(c, "products");
      if (!must_run("products", size.hidden)) continue;
      const Result<DeviceGru> gru = DeviceGru::create(c.model);
      ASSERT_TRUE(gru.ok()) << gru.status().message();
      const int64_t codes = size.steps * size.batch;
      GuardedDeviceBuffer x(codes * size.input * size_of(c.model.input_grid()));
      GuardedDeviceBuffer y(codes * size.hidden * size_of(c.model.output_grid()));
      GuardedDeviceBuffer state(gru->state_bytes(size.batch)), next(gru->state_bytes(size.batch));
      GuardedDeviceBuffer workspace(gru->workspace_bytes(size.batch, size.steps));
      GruRunOptions options{.whole_sequence = true};
      options.kernel = "products";
      options.batch_first = size.batch_first;
      if (size.two_states) options.next_state = next.bytes();
      const size_t launches = captured_kernels(stream_, [&](cudaStream_t stream) {
                                return gru->forward_codes(x.bytes(), y.bytes(), size.steps, size.batch, state.bytes(),
                                                          workspace.bytes(), stream, options);
                              }).size();
      EXPECT_EQ(launches, is_signed ? size.launches : 2 * static_cast<size_t>(size.steps));
    }
  if (must_run_persistent() && !hidden_from_sanitizer("products")) {
    EXPECT_EQ(runs_["products"], static_cast<int>(2 * std::size(kSizes)));
  }
}

/// Of each cut of gru_cluster_few, in all kinds of lanes: it runs, and gives the CPU's bytes. With 200 and 50 sequences
/// a team has two on an H200.
TEST_F(DeviceGrus, OneOrTwoSequencesOfATeamHaveWarpsForGates) {
  struct Size {
    int64_t hidden, batch;
  };
  enum class Kind { kPow2, kMultipliers, kReal, kWideGates };
  uint64_t seed = 9100;
  int cases = 0;
  for (const Size& size : {Size{40, 1},
                           {64, 200},
                           {66, 30},
                           {100, 1},
                           {128, 50},
                           {128, 100},
                           {130, 1},
                           {240, 15},
                           {256, 50},
                           {300, 2},
                           {512, 4},
                           {600, 1},
                           {768, 5},
                           {785, 1},
                           {1024, 3}})
    for (const int32_t h_bits : {8, 16})
      for (const Kind kind : {Kind::kPow2, Kind::kMultipliers, Kind::kReal, Kind::kWideGates}) {
        ++seed;
        if (hidden_from_sanitizer("cluster") || (kind == Kind::kWideGates && h_bits == 8)) continue;
        if (sanitized() && (size.hidden > 300 || kind == Kind::kMultipliers)) continue;
        RandomShape shape;
        shape.input = 20;
        shape.hidden = size.hidden;
        shape.h_bits = h_bits;
        shape.kind = kind == Kind::kReal ? ScaleKind::kReal : ScaleKind::kPow2;
        shape.gate_out_bits = kind == Kind::kWideGates ? h_bits : 8;
        Case c = case_of(seed, shape, size.batch, sanitized() ? 3 : 21);
        Random random(seed);
        if (kind == Kind::kMultipliers) {
          Result<GruModel> model = with_multipliers(random, c.model);
          ASSERT_TRUE(model.ok()) << model.status().message();
          c.model = *std::move(model);
        }
        if (seed % 2 == 0)
          for (int64_t n = 0; n < size.batch; ++n) c.run.lengths.push_back(random.between(0, c.run.steps));
        if (seed % 3 == 0)
          for (int64_t i = 0; i < c.run.steps * size.batch * size.hidden; ++i)
            c.run.mask.push_back(static_cast<uint8_t>(random.between(0, 2)));
        c.two_states = seed % 5 == 0;
        c.fast_host = true;
        SCOPED_TRACE(describe(c.shape, c.run, seed, 0));
        const int before = runs_["cluster"];
        compare(c, "cluster");
        ++cases;
        if (!must_run("cluster", size.hidden)) continue;
        EXPECT_EQ(runs_["cluster"], before + 1);
        EXPECT_EQ(runs_["cluster, floats"], runs_["cluster"]);
        const Result<DeviceGru> gru = DeviceGru::create(c.model);
        ASSERT_TRUE(gru.ok()) << gru.status().message();
        const int64_t x_bytes = c.run.steps * size.batch * shape.input * size_of(c.model.input_grid());
        const int64_t y_bytes = c.run.steps * size.batch * size.hidden * size_of(c.model.output_grid());
        GuardedDeviceBuffer x(x_bytes), y(y_bytes), state(gru->state_bytes(size.batch));
        GuardedDeviceBuffer workspace(gru->workspace_bytes(size.batch, c.run.steps));
        GruRunOptions options{.whole_sequence = true};
        options.kernel = "cluster";
        int found = 0;
        for (const void* kernel : captured_kernels(stream_, [&](cudaStream_t stream) {
               return gru->forward_codes(x.bytes(), y.bytes(), c.run.steps, size.batch, state.bytes(),
                                         workspace.bytes(), stream, options);
             })) {
          const char* name = nullptr;
          ASSERT_EQ(cudaFuncGetName(&name, kernel), cudaSuccess);
          if (std::string_view(name).find("gru_cluster_few") != std::string_view::npos) ++found;
        }
        EXPECT_EQ(found > 0, h_bits == 8 || size.hidden <= 768);
      }
  if (!hidden_from_sanitizer("cluster")) {
    EXPECT_EQ(cases, sanitized() ? 10 * 5 : 15 * 7);
  }
  std::printf("%lld outputs compared\n", static_cast<long long>(compared_));
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
    for (const int64_t batch : {8, 64, 512}) {
      if (steps * batch > kMostSequences) continue;
      const auto count = static_cast<size_t>(steps * batch * 512);
      const auto kernels = [&](bool floats, bool with_next_state, std::string_view forced) {
        GruRunOptions options{.whole_sequence = true};
        options.kernel = forced;
        if (with_next_state) options.next_state = next_state.bytes();
        return captured_kernels(stream_, [&](cudaStream_t stream) {
          return floats ? gru->forward({static_cast<const float*>(x.data()), count},
                                       {static_cast<float*>(y.data()), count}, steps, batch, state.bytes(),
                                       workspace.bytes(), stream, options)
                        : gru->forward_codes(x.bytes().first(count), y.bytes().first(count), steps, batch,
                                             state.bytes(), workspace.bytes(), stream, options);
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
    const Result<DeviceGru> gru = DeviceGru::create(case_of(64, 16, 512, 1, 1, layers).model);
    ASSERT_TRUE(gru.ok()) << gru.status().message();
    if (!gru->choose_kernel(100, 1, "products").ok()) {
      EXPECT_FALSE(must_run("products", 512));
      return;
    }
    const auto chosen = gru->choose_kernel(100, 1, {}, true);
    ASSERT_TRUE(chosen.ok()) << chosen.status().message();
    EXPECT_EQ(*chosen, layers == 1 ? "step" : "products") << layers << " layers";
  }
}

/// Every tile of many sequences, which `step` chooses by the numbers of units, sequences and processors.
TEST_F(DeviceGrus, StepsOfManySequences) {
  struct Kind {
    const char* name;
    ScaleKind scales;
    int32_t x_bits, h_bits;
  };
  const Result<DeviceLimits> limits = current_device_limits();
  ASSERT_TRUE(limits.ok()) << limits.status().message();
  std::map<std::string, int> tiles;
  uint64_t seed = 80;
  for (const Kind& kind : {Kind{"float", ScaleKind::kPow2, 8, 8}, Kind{"double", ScaleKind::kReal, 8, 8},
                           Kind{"double", ScaleKind::kPow2, 8, 16}, Kind{"double", ScaleKind::kReal, 16, 7}})
    for (const int64_t per_132 : {100, 300, 600, 1100}) {
      const int64_t batch = per_132 * limits->processors / 132;
      if (sanitized() && (batch > 700 || kind.x_bits == 16)) continue;
      RandomShape shape;
      shape.input = seed % 2 == 0 ? 70 : 208;
      shape.hidden = seed % 3 == 0 ? 304 : 301;
      shape.kind = kind.scales;
      shape.x_bits = kind.x_bits;
      shape.h_bits = kind.h_bits;
      if (kind.h_bits == 16) shape.gate_in_bits = 12;
      Case c = case_of(++seed, shape, batch, 2);
      c.fast_host = true;
      c.two_states = seed % 2 == 0;
      Random random(seed);
      for (int64_t n = 0; n < batch; ++n) c.run.lengths.push_back(random.between(1, 2));
      for (int64_t i = 0; i < 2 * batch * shape.hidden; ++i)
        c.run.mask.push_back(static_cast<uint8_t>(random.between(0, 3)));
      SCOPED_TRACE(describe(c.shape, c.run, seed, 0));
      const GruLayerParameters& p = c.model.parameters().layers.front();
      EXPECT_EQ(lanes_of(p), kind.name);
      const Result<StepTile> tile = step_tile(p, batch, *limits);
      ASSERT_TRUE(tile.ok()) << tile.status().message();
      tiles[std::string(kind.name) + (kind.x_bits + kind.h_bits > 16 ? ", two bytes, " : ", ") +
            std::to_string(16 * tile->groups) + " x " + std::to_string(32 * tile->row_tiles)] += 1;
      compare(c, "step");
      if (HasFailure()) return;
    }
  for (const auto& [name, runs] : tiles) std::printf("%s: %d runs\n", name.c_str(), runs);
  for (const char* kind : {"float, ", "double, ", "double, two bytes, "})
    for (const char* tile : {"16 x 32", "16 x 64", "32 x 64"})
      if (limits->block_shared > 200'000) {  // else not all tiles fit
        EXPECT_GT(tiles[std::string(kind) + tile], 0) << kind << tile;
      }
  if (limits->block_shared > 200'000 && !sanitized()) {
    EXPECT_GT(tiles["float, 32 x 128"], 0);
    EXPECT_GT(tiles["double, 32 x 128"], 0);
  }
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
    const DeviceOptions device(c);
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
      GruWorkspace host_workspace = c.model.workspace(batch, steps);
      const Status on_host = c.model.forward(x, expected, steps, expected_state, host_workspace, host_options(c));
      ASSERT_TRUE(on_host.ok()) << on_host.message();
      x_device.write(with_nan);
      ASSERT_TRUE(gru->upload_state(c.run.start, state.bytes(), stream_).ok());
      const Status status = gru->forward({x_begin, with_nan.size()}, {y_begin, expected.size()}, steps, batch,
                                         state.bytes(), workspace.bytes(), stream_, device.options);
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
  GruRunOptions options{.whole_sequence = true};
  if (racecheck()) options.kernel = "step";
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  const Status floats = gru->forward({static_cast<const float*>(x.data()), static_cast<size_t>(x_count)},
                                     {static_cast<float*>(y.data()), static_cast<size_t>(y_count)}, 3, 5, state.bytes(),
                                     workspace.bytes(), stream_, options);
  const Status integers =
      gru->forward_codes(codes.bytes(), y_codes.bytes(), 3, 5, state.bytes(), workspace.bytes(), stream_, options);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_TRUE(floats.ok()) << floats.message();
  ASSERT_TRUE(integers.ok()) << integers.message();
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);

  GruState expected_state = c.run.start;
  GruWorkspace host_workspace = c.model.workspace(5, 3);
  std::vector<float> expected(static_cast<size_t>(y_count));
  std::vector<std::byte> expected_codes(static_cast<size_t>(y_count * y_size));
  for (int replay = 0; replay < 5; ++replay) {
    std::vector<float> values = random_floats(random, c.model.input_grid(), x_count);
    ASSERT_TRUE(c.model.forward(values, expected, 3, expected_state, host_workspace, host_options(c)).ok());
    ASSERT_TRUE(
        c.model.forward_codes(c.run.x.data(), expected_codes.data(), 3, expected_state, host_workspace, host_options(c))
            .ok());
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
    GruRunOptions options{.whole_sequence = true};
    if (s % 2 == 0) options.next_state = states[1 - from].bytes();
    status = gru->forward_codes(x.bytes().subspan(static_cast<size_t>(s * x_row), static_cast<size_t>(x_row)),
                                y.bytes().subspan(static_cast<size_t>(s * y_row), static_cast<size_t>(y_row)), 1,
                                kBatch, states[from].bytes(), workspace.bytes(), stream_, options);
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

TEST_F(DeviceGrus, RunsOfOneInputAreEqual) {
  struct Repeated {
    Case c;
    std::string_view only;  // kernel; of the others those that can run it
  };
  const ShortVisits visits;
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

/// Whatever a launch needs must be in the graph: clusters, cooperative launches, the counters that they start from. Of
/// floats a NaN of one replay is forgotten in the next.
TEST_F(DeviceGrus, PersistentRunsReplayInAGraph) {
  if (racecheck()) return;
  const ShortVisits visits;
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
    GruRunOptions options{.whole_sequence = true};
    options.kernel = size.kernel;
    options.next_state = next.bytes();
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    const Status status = gru->forward_codes(x.bytes(), y.bytes(), c.run.steps, c.run.batch, state.bytes(),
                                             workspace.bytes(), stream_, options);
    const Status of_floats = gru->forward({static_cast<const float*>(x_floats.data()), floats.size()},
                                          {static_cast<float*>(y_floats.data()), float_y.size()}, c.run.steps,
                                          c.run.batch, state.bytes(), workspace.bytes(), stream_, options);
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
        const Status status =
            load_gru->forward_codes(x.bytes(), y.bytes(), 64, 200, state.bytes(), workspace.bytes(), stream);
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
    GruRunOptions options{.whole_sequence = true};
    options.kernel = kernel;
    const auto enqueue = [&](const Run& run, cudaStream_t stream) {
      const Status start = gru->upload_state(c.run.start, run.state.bytes(), stream);
      const Status status = gru->forward_codes(run.x.bytes(), run.y.bytes(), kSteps, kBatch, run.state.bytes(),
                                               run.workspace.bytes(), stream, options);
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
                                               captured.state.bytes(), captured.workspace.bytes(), stream_, options);
    const Status at_once = gru->forward_codes(eager.x.bytes(), eager.y.bytes(), kSteps, kBatch, eager.state.bytes(),
                                              eager.workspace.bytes(), other, options);
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
                                             captured.state.bytes(), captured.workspace.bytes(), stream_, options);
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    EXPECT_TRUE(strict.ok()) << strict.message();
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
}

TEST_F(DeviceGrus, NothingToDo) {
  const Case c = case_of(31, 4, 6, 2, 1);
  const Result<DeviceGru> gru = DeviceGru::create(c.model);
  ASSERT_TRUE(gru.ok()) << gru.status().message();
  GuardedDeviceBuffer state(gru->state_bytes(2));
  GuardedDeviceBuffer workspace(gru->workspace_bytes(2, 1));
  ASSERT_TRUE(gru->upload_state(c.run.start, state.bytes(), stream_).ok());
  for (const auto& [steps, batch] : {std::pair<int64_t, int64_t>{0, 2}, {3, 0}, {0, 0}}) {
    EXPECT_TRUE(gru->forward_codes({}, {}, steps, batch, state.bytes(), workspace.bytes(), stream_).ok());
    EXPECT_TRUE(gru->forward({}, {}, steps, batch, state.bytes(), workspace.bytes(), stream_).ok());
    EXPECT_TRUE(DeviceGru::check_input(workspace.bytes(), stream_).ok());
  }
  EXPECT_TRUE(gru->initial_state({}, 0, stream_).ok());
  GuardedDeviceBuffer other(gru->state_bytes(2));
  GruRunOptions moves{.whole_sequence = true};  // no step: still the state of the run
  moves.next_state = other.bytes();
  EXPECT_TRUE(gru->forward_codes({}, {}, 0, 2, state.bytes(), workspace.bytes(), stream_, moves).ok());
  GruState moved = c.model.initial_state(2);
  ASSERT_TRUE(gru->download_state(other.bytes(), moved, stream_).ok());
  EXPECT_TRUE(equal(moved, c.run.start));
  EXPECT_TRUE(gru->initial_state(other.bytes(), 2, stream_).ok());
  EXPECT_TRUE(gru->forward({}, {}, 0, 2, state.bytes(), workspace.bytes(), stream_, moves).ok());
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
    GruRunOptions options{.whole_sequence = true};
    options.kernel = kernel.name;
    const Status start = gru->initial_state(state.bytes(), 2, stream_);
    EXPECT_TRUE(start.ok()) << start.message();
    const Status status = gru->forward({static_cast<const float*>(x.data()), 60}, {static_cast<float*>(y.data()), 100},
                                       5, 2, state.bytes(), workspace.bytes(), stream_, options);
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
  Result<HostGru> gru = HostGru::create(c.model, 0);
  ASSERT_TRUE(gru.ok()) << gru.status().message();
  std::vector<std::byte> y(expected.y.size(), std::byte{7});
  const std::vector<std::byte> untouched = y;
  GruState state = c.run.start;
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  void* others = nullptr;
  ASSERT_EQ(cudaMalloc(&others, free_bytes - (size_t{64} << 20)), cudaSuccess);
  const Status refused = gru->forward_codes(c.run.x.data(), y.data(), c.run.steps, state);
  EXPECT_NE(refused.message().find(" bytes of memory of device 0: cudaErrorMemoryAllocation"), std::string::npos)
      << refused.message();
  EXPECT_EQ(y, untouched);
  EXPECT_TRUE(equal(state, c.run.start));
  ASSERT_EQ(cudaFree(others), cudaSuccess);
  const Status status = gru->forward_codes(c.run.x.data(), y.data(), c.run.steps, state);
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
  Result<HostGru> gru = HostGru::create(c.model, devices - 1);
  ASSERT_TRUE(gru.ok()) << gru.status().message();
  std::vector<std::byte> y(expected.y.size());
  GruState state = c.run.start;
  const Status status = gru->forward_codes(c.run.x.data(), y.data(), c.run.steps, state);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(y, expected.y);
  EXPECT_TRUE(equal(state, expected.state));
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  std::printf("device %d of %d\n", devices - 1, devices);
}

TEST_F(DeviceGrus, RefusesByName) {
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
                         std::span<std::byte> h, std::span<std::byte> scratch, const GruRunOptions& options = {}) {
    return gru->forward_codes(in, out, steps, batch, h, scratch, stream_, options);
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
    GruRunOptions options{.whole_sequence = true};
    options.next_state = next;
    return codes(in, out, 4, 2, h, scratch, options);
  };
  GuardedDeviceBuffer other_state(512);
  EXPECT_TRUE(moving(other_state.bytes()).ok());
  expect(moving(other_state.bytes().first(511)), "next_state has 511 bytes, must have 512 for 2 sequences");
  expect(moving(other_state.bytes().subspan(1)), "next_state is not aligned to 256 bytes");
  expect(moving({static_cast<std::byte*>(nullptr), 512}), "next_state is null");
  expect(moving(h), "next_state overlaps state, must not");
  expect(moving(h.subspan(256)), "next_state overlaps state, must not");
  expect(moving(scratch.first(512)), "next_state overlaps workspace, must not");
  GruRunOptions unknown{.whole_sequence = true};
  unknown.kernel = "fast";
  expect(codes(in, out, 4, 2, h, scratch, unknown), "kernel is 'fast', must be one of ");
  expect(gru->choose_kernel(2, 4, "fast").status(), "kernel is 'fast', must be one of ");
  EXPECT_TRUE(gru->choose_kernel(2, 4).ok());
  EXPECT_EQ(*gru->choose_kernel(2, 4, "generic"), "generic");
  GruRunOptions masked{.whole_sequence = true};
  masked.zoneout_mask = reinterpret_cast<const uint8_t*>(in.data());
  expect(codes(in, out, 4, 2, h, scratch, masked), "a zoneout mask is for models of one layer, this one has 2");
  GruRunOptions odd{.whole_sequence = true};
  odd.lengths = reinterpret_cast<const int32_t*>(in.data() + 1);
  expect(codes(in, out, 4, 2, h, scratch, odd), "lengths is not aligned");

  alignas(256) static std::byte host[4096];
  expect(codes(std::span<const std::byte>(host).first(in.size()), out, 4, 2, h, scratch), "x is host memory");
  expect(codes(in, std::span(host).first(out.size()), 4, 2, h, scratch), "y is host memory");
  expect(codes(in, out, 4, 2, std::span(host).first(512), scratch), "state is host memory");
  expect(moving(std::span(host).first(512)), "next_state is host memory");
  GruRunOptions on_host{.whole_sequence = true};
  on_host.lengths = reinterpret_cast<const int32_t*>(host);
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
    GruRunOptions few{.whole_sequence = true};
    few.lengths = reinterpret_cast<const int32_t*>(end() - 4);
    expect(codes(in, out, 4, 2, h, scratch, few), "the last byte of lengths is host memory");
    for (void* memory : blocks) ASSERT_EQ(cudaFree(memory), cudaSuccess);
  }
  const Case both_case = case_of(44, 3, 5, 2, 4, 1, 2);
  const Result<DeviceGru> both_gru = DeviceGru::create(both_case.model);
  ASSERT_TRUE(both_gru.ok()) << both_gru.status().message();
  GuardedDeviceBuffer both_y(static_cast<int64_t>(4 * 2 * 10 * size_of(both_case.model.output_grid())));
  GuardedDeviceBuffer both_state(both_gru->state_bytes(2)), both_scratch(both_gru->workspace_bytes(2, 4));
  expect(both_gru->forward_codes(x.bytes().first(24 * static_cast<size_t>(size_of(both_case.model.input_grid()))),
                                 both_y.bytes(), 4, 2, both_state.bytes(), both_scratch.bytes(), stream_),
         "set whole_sequence");
  const Case masked_case = case_of(44, 3, 5, 2, 4);
  const Result<DeviceGru> one_layer_gru = DeviceGru::create(masked_case.model);
  ASSERT_TRUE(one_layer_gru.ok()) << one_layer_gru.status().message();
  GruRunOptions host_mask{.whole_sequence = true};
  host_mask.zoneout_mask = reinterpret_cast<const uint8_t*>(host);
  expect(
      one_layer_gru->forward_codes(x.bytes().first(24 * static_cast<size_t>(size_of(masked_case.model.input_grid()))),
                                   y.bytes().first(40 * static_cast<size_t>(size_of(masked_case.model.output_grid()))),
                                   4, 2, h, scratch, stream_, host_mask),
      "zoneout_mask is host memory");
  for (const char* kernel : {"persistent", "step"})  // more than its grids and integers hold: another row runs it
    expect(gru->choose_kernel(int64_t{1} << 30, 1, kernel).status(), "batch is 1073741824, must be at most ");
  EXPECT_EQ(*gru->choose_kernel(int64_t{1} << 30, 1), "generic");

  const std::span<const float> floats(static_cast<const float*>(x_float.data()), 24);
  const std::span<float> results(static_cast<float*>(y_float.data()), 40);
  expect(gru->forward(floats.first(23), results, 4, 2, h, scratch, stream_), "x has 23 elements of 4 bytes");
  expect(gru->forward(floats, results.first(39), 4, 2, h, scratch, stream_), "y has 39 elements of 4 bytes");
  expect(gru->forward(floats, results, 4, 2, h.first(5), scratch, stream_), "state has 5 bytes");
  expect(gru->forward(floats, results, 4, 2, h, scratch.first(256), stream_), "workspace has 256 bytes");
  expect(DeviceGru::check_input(scratch.first(kNanPlaces * 8 - 1), stream_), "workspace has 8191 bytes");
  expect(DeviceGru::check_input(scratch.subspan(8), stream_), "workspace is not aligned");

  expect(gru->initial_state(h, -1, stream_), "batch is -1");
  expect(gru->initial_state(h.first(511), 2, stream_), "state has 511 bytes");
  expect(gru->initial_state(std::span(host).first(512), 2, stream_), "state is host memory");
  expect(gru->upload_state(c.run.start, h.first(511), stream_), "state has 511 bytes");
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
    expect(gru->forward_codes(in, out, 4, 2, h, scratch, elsewhere), "stream belongs to device 1, must belong to");
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
