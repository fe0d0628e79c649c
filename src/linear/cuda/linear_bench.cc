// SPDX-License-Identifier: Apache-2.0
// Linear layers on a device with weights that are in no cache: copies of a layer in turn, more than three times the
// second-level cache together. A few results of each are compared with the CPU's. One JSON object a line.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/codes.h"
#include "isobit/cuda/linear.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "linear/cuda/steps.h"
#include "testing/cuda_timer.h"

namespace {

using isobit::Dtype;
using isobit::LinearActivations;
using isobit::LowBitKind;
using isobit::LowBitMatrix;
using isobit::StaticLinearLayer;
using isobit::testing::check_cuda;
using isobit::testing::DeviceMemory;
using isobit::testing::required;
using nlohmann::ordered_json;
namespace cuda = isobit::cuda;

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

// ---- What is timed

struct Weights {
  int32_t bits = 4;
  LowBitKind kind = LowBitKind::kSymmetric;
  int64_t group = 128;

  /// BITS, BITS:KIND or BITS:KIND:GROUP.
  static Weights of(const std::string& text) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, ':');) parts.push_back(part);
    Weights weights;
    if (parts.empty() || parts.size() > 3) fail("--weights has '" + text + "', must be BITS[:KIND[:GROUP]]");
    weights.bits = std::stoi(parts[0]);
    if (parts.size() > 1) {
      const auto kind = isobit::low_bit_kind_from_string(parts[1]);
      if (!kind) fail("--weights has '" + text + "', its kind must be symmetric, zero_point or offset");
      weights.kind = *kind;
    }
    if (parts.size() > 2) weights.group = std::stoll(parts[2]);
    return weights;
  }
};

struct Activations {
  std::string name;
  LinearActivations what = LinearActivations::kFloat;
  Dtype dtype = Dtype::kF16;  // of x and y

  [[nodiscard]] bool is_static() const { return dtype == Dtype::kS8; }

  static Activations of(const std::string& name) {
    if (name == "static") return {name, LinearActivations::kFloat, Dtype::kS8};
    if (const auto quantised = isobit::linear_activations_from_string(name);
        quantised && *quantised != LinearActivations::kFloat)
      return {name, *quantised, Dtype::kF16};
    for (const auto& [text, dtype] :
         {std::pair{"float16", Dtype::kF16}, {"bfloat16", Dtype::kBF16}, {"float32", Dtype::kF32}})
      if (name == text) return {name, LinearActivations::kFloat, dtype};
    fail("--activations has '" + name + "', must be int8, int8_asymmetric, static, float16, bfloat16 or float32");
  }
};

/// Codes of every value, scales of ordinary size. The first rows of a larger matrix are those of a smaller one.
LowBitMatrix random_matrix(int64_t n, int64_t k, const Weights& weights) {
  isobit::LowBitParameters p;
  p.rows = n;
  p.columns = k;
  p.bits = weights.bits;
  p.group = weights.group == 0 ? k : weights.group;
  p.kind = weights.kind;
  const int64_t groups = (k + p.group - 1) / p.group;
  p.codes = isobit::Array::zeros(Dtype::kU8, {n, (k * p.bits / 8 + 3) / 4 * 4});
  p.codes.bytes = isobit::testing::random_bytes(p.codes.bytes.size());
  const auto fill = [&](isobit::Array& array, float value) {
    array = isobit::Array::zeros(Dtype::kF32, {n, groups});
    std::fill_n(array.data<float>(), array.size(), value);
  };
  fill(p.scales, 0.01f);
  if (p.kind == LowBitKind::kOffset) fill(p.offsets, -0.1f);
  if (p.kind == LowBitKind::kZeroPoint) {
    p.zero_points = isobit::Array::zeros(p.bits == 8 ? Dtype::kU16 : Dtype::kU8, {n, groups});
    for (int64_t i = 0; i < p.zero_points.size(); ++i) {
      const auto z = static_cast<uint8_t>(i % (int64_t{1} << p.bits));
      if (p.bits == 8) {
        p.zero_points.data<uint16_t>()[i] = z;
      } else {
        p.zero_points.data<uint8_t>()[i] = z;
      }
    }
  }
  return required(LowBitMatrix::create(std::move(p), "W"));
}

/// Grids of 8 bits, of which y takes most codes.
StaticLinearLayer static_layer(const LowBitMatrix& matrix) {
  const isobit::Grid input{.bits = 8, .is_signed = true, .shift = 5}, output{.bits = 8, .is_signed = true, .shift = -1};
  return required(StaticLinearLayer::create(
      required(isobit::derive_static_linear(matrix, {.input = input, .output = output}, "fc")), "fc"));
}

using DeviceLayer = std::variant<cuda::DeviceLinear, cuda::DeviceStaticLinear>;

/// A layer in as many copies as it takes.
struct Layer {
  Weights weights;
  Activations activations;
  std::shared_ptr<const LowBitMatrix> matrix;
  std::optional<StaticLinearLayer> statics{};
  std::vector<std::optional<DeviceLayer>> copies{};

  Layer(const Weights& w, const Activations& a, std::shared_ptr<const LowBitMatrix> m)
      : weights(w), activations(a), matrix(std::move(m)) {
    // Packed weights have scales, too: so many are never too few.
    copies.resize(
        static_cast<size_t>(isobit::testing::copies_beyond_cache(matrix->rows() * matrix->columns() * w.bits / 8)));
    if (activations.is_static()) statics = static_layer(*matrix);
  }
  [[nodiscard]] DeviceLayer create() const {
    if (statics) return required(cuda::DeviceStaticLinear::create(*statics));
    return required(cuda::DeviceLinear::create(*matrix, {.activations = activations.what}, "fc"));
  }
};

/// Packs every copy of every layer anew, which takes far longer than a run; on all processors of the host.
void make_copies(std::vector<Layer>& layers) {
  std::vector<std::pair<Layer*, size_t>> tasks;
  for (Layer& layer : layers)
    for (size_t copy = 0; copy < layer.copies.size(); ++copy) tasks.emplace_back(&layer, copy);
  std::atomic<size_t> next = 0;
  std::vector<std::jthread> threads;
  for (size_t i = std::max(1U, std::thread::hardware_concurrency()); i > 0; --i)
    threads.emplace_back([&] {
      for (size_t task = next++; task < tasks.size(); task = next++) {
        const auto& [layer, copy] = tasks[task];
        layer->copies[copy] = layer->create();
      }
    });
}

// ---- Runs

/// Rows of x and y on the device.
struct Rows {
  int64_t m = 0, k = 0, n = 0;
  Dtype dtype = Dtype::kF16;
  DeviceMemory x, y;

  static Rows random(int64_t m, int64_t k, int64_t n, Dtype dtype) {
    const auto count = static_cast<size_t>(std::min(m * k, isobit::testing::kRandomBlock));
    if (dtype == Dtype::kS8) {
      Rows rows{m, k, n, dtype, {}, {}};
      rows.x = isobit::testing::repeated(isobit::testing::random_bytes(count), rows.x_bytes());
      rows.y = isobit::testing::device_memory(rows.y_bytes());
      return rows;
    }
    const std::vector<uint16_t> halves = isobit::testing::random_halves(count);
    std::vector<std::byte> block(count * isobit::size_in_bytes(dtype));
    for (size_t i = 0; i < count; ++i)
      isobit::store_float(block.data(), dtype, static_cast<int64_t>(i), isobit::f16_to_f32(halves[i]));
    Rows rows{m, k, n, dtype, {}, {}};
    rows.x = isobit::testing::repeated(block, rows.x_bytes());
    rows.y = isobit::testing::device_memory(rows.y_bytes());
    return rows;
  }
  [[nodiscard]] size_t x_bytes() const { return static_cast<size_t>(m * k) * isobit::size_in_bytes(dtype); }
  [[nodiscard]] size_t y_bytes() const { return static_cast<size_t>(m * n) * isobit::size_in_bytes(dtype); }
};

/// Of an output row, compared with the CPU.
constexpr int64_t kCheckedColumns = 64;
/// Of the largest result of a row. A layout that is wrong differs by more; the tests of the layer have the real bound.
constexpr float kFloatDifference = 0.01f;

/// Whether the first outputs of the first row and of the last are what the CPU gives.
class Check {
 public:
  Check(const Weights& weights, const Activations& activations, int64_t n, int64_t k)
      : activations_(activations), rows_(std::min(n, kCheckedColumns)) {
    const LowBitMatrix matrix = random_matrix(rows_, k, weights);
    if (activations.is_static()) {
      layer_ = static_layer(matrix);
    } else {
      layer_ = required(isobit::LinearLayer::create(matrix, {.activations = activations.what}, "fc"));
    }
  }

  [[nodiscard]] bool passes(const Rows& rows) const {
    const size_t size = isobit::size_in_bytes(rows.dtype);
    std::vector<std::byte> x(static_cast<size_t>(rows.k) * size), y(static_cast<size_t>(rows_) * size);
    std::vector<std::byte> found(y.size());
    for (const int64_t row : {int64_t{0}, rows.m - 1}) {
      const auto copy = [&](std::vector<std::byte>& to, const DeviceMemory& from, int64_t columns) {
        const std::byte* const at = from.get() + static_cast<size_t>(row * columns) * size;
        check_cuda(cudaMemcpy(to.data(), at, to.size(), cudaMemcpyDeviceToHost), "results");
      };
      copy(x, rows.x, rows.k);
      copy(found, rows.y, rows.n);
      std::visit(
          [&](const auto& layer) {
            isobit::Workspace workspace = layer->workspace(1);
            required(layer->forward(x, rows.dtype, y, rows.dtype, 1, workspace));
          },
          layer_);
      if (!equal(rows.dtype, y, found)) return false;
    }
    return true;
  }

 private:
  [[nodiscard]] bool equal(Dtype dtype, const std::vector<std::byte>& y, const std::vector<std::byte>& found) const {
    if (activations_.is_static() || activations_.what != LinearActivations::kFloat) return y == found;
    float largest = 0;
    for (int64_t i = 0; i < rows_; ++i) largest = std::max(largest, std::abs(isobit::load_float(y.data(), dtype, i)));
    for (int64_t i = 0; i < rows_; ++i) {
      const float error = isobit::load_float(found.data(), dtype, i) - isobit::load_float(y.data(), dtype, i);
      if (!(std::abs(error) <= kFloatDifference * largest)) return false;  // NaN, too
    }
    return true;
  }

  Activations activations_;
  int64_t rows_;
  std::variant<std::optional<isobit::LinearLayer>, std::optional<StaticLinearLayer>> layer_;
};

/// Rows from which on the product of quantised rows is timed by itself, too.
constexpr int64_t kProductRows = 256;

struct Times {
  double us = 0;
  std::optional<double> product_us{};  // without the launch that quantises x
};
/// Microseconds of a layer. y is from the last copy.
Times time(const Layer& layer, const Rows& rows) {
  const auto scratch = static_cast<size_t>(
      std::visit([&](const auto& first) { return first.workspace_bytes(rows.m); }, *layer.copies[0]));
  const DeviceMemory workspace = isobit::testing::device_memory(scratch);
  check_cuda(cudaMemset(rows.y.get(), 0xff, rows.y_bytes()), "results");
  check_cuda(cudaDeviceSynchronize(), "results");
  const std::span<const std::byte> x(rows.x.get(), rows.x_bytes());
  const std::span y(rows.y.get(), rows.y_bytes()), space(workspace.get(), scratch);
  const auto in_turn = [&](const auto& run) {
    return isobit::testing::microseconds_in_turn(
        static_cast<int64_t>(layer.copies.size()), [&](int64_t copy, cudaStream_t stream) {
          required(run(*layer.copies[static_cast<size_t>(copy)], isobit::RunOptions{.stream = stream}));
        });
  };
  Times times{in_turn([&](const DeviceLayer& any, const isobit::RunOptions& options) {
    return std::visit(
        [&](const auto& some) { return some.forward(x, rows.dtype, y, rows.dtype, rows.m, space, options); }, any);
  })};
  if (rows.m >= kProductRows && layer.activations.what != LinearActivations::kFloat)
    times.product_us = in_turn([&](const DeviceLayer& any, const isobit::RunOptions& options) {
      const auto& some = std::get<cuda::DeviceLinear>(any);
      return cuda::LinearSteps::multiply(some, cuda::LinearSteps::plan(some, rows.dtype, rows.m), workspace.get(),
                                         rows.y.get(), rows.dtype, rows.n, rows.m, options.stream);
    });
  return times;
}

/// By type and number of rows; of one shape of W.
using AllRows = std::map<std::pair<Dtype, int64_t>, Rows>;

/// Prints a line for each number of rows.
void time_layer(const Layer& layer, const std::vector<int64_t>& rows, AllRows& all_rows) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "device");
  const Weights& weights = layer.weights;
  const Activations& activations = layer.activations;
  const int64_t k = layer.matrix->columns(), n = layer.matrix->rows();
  const int64_t bytes = std::visit([](const auto& first) { return first.size_bytes(); }, *layer.copies[0]);
  const Check check(weights, activations, n, k);
  for (const int64_t m : rows) {
    const auto [at, is_new] = all_rows.try_emplace({activations.dtype, m});
    if (is_new) at->second = Rows::random(m, k, n, activations.dtype);
    const Times times = time(layer, at->second);
    const double us = times.us;
    ordered_json line = {
        {"device", properties.name},
        {"K", k},
        {"N", n},
        {"M", m},
        {"activations", activations.name},
        {"bits", weights.bits},
        {"kind", isobit::to_string(weights.kind)},
        {"group", layer.matrix->parameters().group},
        {"us", us},
        {"weight_bytes", bytes},
        {"copies", layer.copies.size()},
        {"TB/s", static_cast<double>(bytes) / us * 1e-6},
        {"TOP/s", 2e-6 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / us}};
    if (times.product_us) line["product_us"] = *times.product_us;
    if (!check.passes(at->second)) fail("not the CPU's results: " + line.dump());
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> shapes = {"4096x4096", "4096x14336", "8192x28672"}, activations = {"float16", "int8"},
                           weights = {"8", "4", "2", "1"};
  std::vector<int64_t> rows = {1, 8, 16};
  CLI::App app("Times of linear layers on the current CUDA device.");
  app.add_option("--shape", shapes, "KxN: inputs, outputs")->delimiter(',');
  app.add_option("--weights", weights,
                 "BITS[:KIND[:GROUP]]; KIND: symmetric, zero_point or offset; GROUP: 128 if not given, 0 for K")
      ->delimiter(',');
  app.add_option("--activations", activations, "float16, bfloat16, float32, int8, int8_asymmetric, static")
      ->delimiter(',');
  app.add_option("--m", rows, "rows of x")->delimiter(',');
  CLI11_PARSE(app, argc, argv);

  for (const std::string& shape : shapes) {
    const size_t cross = shape.find('x');
    if (cross == std::string::npos) fail("--shape has '" + shape + "', must be KxN");
    const int64_t k = std::stoll(shape), n = std::stoll(shape.substr(cross + 1));
    std::vector<Layer> layers;
    for (const std::string& text : weights) {
      const Weights what = Weights::of(text);
      const auto matrix = std::make_shared<const LowBitMatrix>(random_matrix(n, k, what));
      for (const std::string& name : activations) layers.emplace_back(what, Activations::of(name), matrix);
    }
    make_copies(layers);
    AllRows all_rows;
    for (const Layer& layer : layers) time_layer(layer, rows, all_rows);
  }
  return 0;
}
