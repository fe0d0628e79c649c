// SPDX-License-Identifier: Apache-2.0
// Convolutions on a device, whose images are in no cache: copies in turn. The results of an image are compared with the
// CPU's. One JSON object a line, in the order of the options, layers fastest.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/conv.h"
#include "conv/cuda/choice.h"
#include "core/codes.h"
#include "isobit/conv.h"
#include "isobit/cuda/conv.h"
#include "isobit/low_bit.h"
#include "low_bit/parts.h"
#include "testing/cuda_timer.h"

namespace {

using isobit::testing::check_cuda;
using isobit::testing::DeviceMemory;
using isobit::testing::required;

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

struct Device {
  std::string name;
  double operations_per_second = 0;  // of 8-bit codes, at the highest clock
  double bytes_per_second = 0;       // of its memory
  int processors = 0;

  static Device current() {
    int number = 0, khz = 0, memory_khz = 0, bus = 0;
    check_cuda(cudaGetDevice(&number), "device");
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, number), "device");
    check_cuda(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, number), "clock");
    check_cuda(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, number), "clock of memory");
    check_cuda(cudaDeviceGetAttribute(&bus, cudaDevAttrGlobalMemoryBusWidth, number), "width of memory");
    constexpr double kInt8 = 8192;  // of a processor of sm_90 in a clock, a multiplication and an addition being two
    return {properties.name, kInt8 * 1e3 * khz * properties.multiProcessorCount, 2e3 * memory_khz * bus / 8,
            properties.multiProcessorCount};
  }
};

/// What is timed: static codes of 8 bits, or floats in and out on symmetric weights with a scale for each group of
/// channels.
struct LayerKind {
  std::string name = "static";
  bool is_static = true;
  isobit::ConvActivations activations = isobit::ConvActivations::kFloat;
  int32_t bits = 8;

  /// "static", "float16:BITS" or "int8:BITS".
  static LayerKind of(const std::string& text) {
    if (text == "static") return {};
    const size_t colon = text.find(':');
    const std::string what = text.substr(0, colon);
    if (colon == std::string::npos || (what != "float16" && what != "int8"))
      fail("--layers has '" + text + "', must be static, float16:BITS or int8:BITS");
    using isobit::ConvActivations;
    return {text, false, what == "int8" ? ConvActivations::kInt8 : ConvActivations::kFloat,
            std::stoi(text.substr(colon + 1))};
  }
};

/// A layer on both sides.
struct Layer {
  isobit::Dtype dtype = isobit::Dtype::kS8;  // of x and y
  double weight_bytes = 0;
  double operations_share = 1;  // of the speed of 8-bit codes
  std::function<void(std::span<const std::byte> x, std::span<std::byte> y, int64_t images)> on_host;
  std::function<isobit::Status(std::span<std::byte> x, std::span<std::byte> y, std::span<std::byte> workspace,
                               cudaStream_t stream)>
      on_device;
  int64_t workspace_bytes = 0;
  std::string kernel;
  bool exact = true;
};

/// kernel: empty, the layer's choice; one that runs it.
Layer static_layer(const isobit::bench::ConvProblem& problem, std::string_view kernel) {
  const auto host = required(isobit::StaticConvLayer::create(isobit::bench::random_conv(problem.shape), "conv"));
  const auto device = required(isobit::cuda::DeviceStaticConv::create(host));
  Layer layer;
  layer.weight_bytes = static_cast<double>(problem.shape.outputs * problem.shape.depth());
  layer.on_host = [host, problem](auto x, auto y, int64_t images) {
    isobit::Workspace workspace = required(host.workspace(images, problem.image));
    required(host.forward(x, y, images, problem.image, workspace));
  };
  layer.on_device = [device, problem, kernel](auto x, auto y, auto workspace, cudaStream_t stream) {
    return device.forward(x, y, problem.images, problem.image, workspace, {.kernel = kernel, .stream = stream});
  };
  layer.workspace_bytes = required(device.workspace_bytes(problem.images, problem.image, kernel));
  layer.kernel = kernel.empty() ? required(device.kernel_name(problem.images, problem.image)) : kernel;
  return layer;
}

Layer float_layer(const isobit::bench::ConvProblem& problem, const LayerKind& kind) {
  constexpr int64_t kGroup = 128;
  const isobit::ConvShape& shape = problem.shape;
  isobit::LowBitParameters p;
  p.rows = shape.outputs * shape.rows.kernel * shape.columns.kernel;
  p.columns = shape.group_channels();
  p.bits = kind.bits;
  p.group = std::min(p.columns, kGroup);
  p.codes = isobit::Array::zeros(isobit::Dtype::kU8, {p.rows, isobit::low_bit_row_bytes(p.columns, p.bits)});
  for (int64_t n = 0; n < p.rows; ++n) {
    const std::vector<std::byte> codes =
        isobit::testing::random_bytes(static_cast<size_t>(p.columns * p.bits / 8), static_cast<uint64_t>(n));
    std::copy(codes.begin(), codes.end(), p.codes.bytes.begin() + n * p.codes.size() / p.rows);
  }
  p.scales = isobit::Array::zeros(isobit::Dtype::kF32, {p.rows, isobit::low_bit_groups(p.columns, p.group)});
  std::fill_n(p.scales.data<float>(), p.scales.size(), 0.01f);
  const auto weights = required(isobit::LowBitMatrix::create(std::move(p), "W"));
  const isobit::ConvOptions options{.activations = kind.activations};
  const auto host = required(isobit::ConvLayer::create(shape, weights, options, "conv"));
  const auto device = required(isobit::cuda::DeviceConv::create(shape, weights, options, "conv"));
  Layer layer;
  layer.dtype = isobit::Dtype::kF16;
  layer.weight_bytes = static_cast<double>(shape.outputs * shape.depth() * kind.bits) / 8;
  layer.exact = kind.activations != isobit::ConvActivations::kFloat;
  layer.operations_share = layer.exact ? 1 : 0.5;
  layer.on_host = [host, problem](auto x, auto y, int64_t images) {
    isobit::Workspace workspace = required(host.workspace(images, problem.image));
    required(host.forward(x, isobit::Dtype::kF16, y, isobit::Dtype::kF16, images, problem.image, workspace));
  };
  layer.on_device = [device, problem](auto x, auto y, auto workspace, cudaStream_t stream) {
    return device.forward(x, isobit::Dtype::kF16, y, isobit::Dtype::kF16, problem.images, problem.image, workspace,
                          {.stream = stream});
  };
  layer.workspace_bytes = required(device.workspace_bytes(problem.images, problem.image));
  layer.kernel = device.kernel_name(layer.dtype);
  return layer;
}

/// Of the largest result. A layout that is wrong differs by more; the tests of the layer have the real bound.
constexpr float kFloatDifference = 0.01f;

bool agree(const Layer& layer, std::span<const std::byte> y, std::span<const std::byte> expected) {
  if (layer.exact) return std::equal(y.begin(), y.end(), expected.begin(), expected.end());
  const auto count = static_cast<int64_t>(y.size() / isobit::size_in_bytes(layer.dtype));
  float largest = 0;
  for (int64_t i = 0; i < count; ++i)
    largest = std::max(largest, std::abs(isobit::load_float(expected.data(), layer.dtype, i)));
  for (int64_t i = 0; i < count; ++i) {
    const float error =
        isobit::load_float(y.data(), layer.dtype, i) - isobit::load_float(expected.data(), layer.dtype, i);
    if (!(std::abs(error) <= kFloatDifference * largest)) return false;  // NaN, too
  }
  return true;
}

/// most_us: where a run takes longer there is no time.
nlohmann::ordered_json time(const Device& device, const isobit::bench::ConvProblem& problem, const LayerKind& kind,
                            std::string_view kernel = {}, double most_us = INFINITY) {
  const Layer layer = kind.is_static ? static_layer(problem, kernel) : float_layer(problem, kind);
  const isobit::ImageSize size = required(isobit::conv_output_size(problem.shape, problem.image, "conv"));
  const auto element = static_cast<int64_t>(isobit::size_in_bytes(layer.dtype));
  const int64_t outputs = size.rows * size.columns * problem.shape.outputs;  // of an image
  const auto x_image =
      static_cast<size_t>(element * problem.image.rows * problem.image.columns * problem.shape.channels);
  const auto y_image = static_cast<size_t>(element * outputs);
  const size_t x_bytes = x_image * static_cast<size_t>(problem.images), y_bytes = y_image * x_bytes / x_image;
  std::vector<std::byte> x = isobit::testing::random_bytes(x_bytes);
  if (!kind.is_static) {
    const std::vector<uint16_t> halves = isobit::testing::random_halves(x_bytes / sizeof(uint16_t));
    std::memcpy(x.data(), halves.data(), x_bytes);
  }
  // An image alone gives what it gives beside others.
  std::vector<std::byte> expected(y_image), y(y_image);
  layer.on_host(std::span(x).last(x_image), expected, 1);

  const int64_t copies = isobit::testing::copies_beyond_cache(static_cast<int64_t>(x_bytes + y_bytes));
  std::vector<DeviceMemory> x_d, y_d;
  for (int64_t i = 0; i < copies; ++i) {
    x_d.push_back(isobit::testing::repeated(x, x_bytes));
    y_d.push_back(isobit::testing::device_memory(y_bytes));
  }
  const auto needed = static_cast<size_t>(layer.workspace_bytes);
  const DeviceMemory workspace = isobit::testing::device_memory(needed);
  const auto run = [&](int64_t copy, cudaStream_t stream) {
    const auto at = static_cast<size_t>(copy);
    required(layer.on_device({x_d[at].get(), x_bytes}, {y_d[at].get(), y_bytes}, {workspace.get(), needed}, stream));
  };
  run(0, nullptr);
  check_cuda(cudaDeviceSynchronize(), "a run");
  const auto start = std::chrono::steady_clock::now();
  run(0, nullptr);
  check_cuda(cudaDeviceSynchronize(), "a run");
  const std::chrono::duration<double, std::micro> once = std::chrono::steady_clock::now() - start;
  if (once.count() > most_us) return nullptr;
  check_cuda(cudaMemcpy(y.data(), y_d[0].get() + y_bytes - y_image, y_image, cudaMemcpyDeviceToHost), "y");
  if (!agree(layer, y, expected)) fail(problem.name() + ", " + kind.name + ": other results than on the CPU");
  const double operations =
      2.0 * static_cast<double>(problem.images * outputs) * static_cast<double>(problem.shape.depth());
  return {{"device", device.name},
          {"layer", kind.name},
          {"images", problem.images},
          {"us", isobit::testing::microseconds_in_turn(copies, run)},
          {"kernel", layer.kernel},
          {"copies", copies},
          {"operations_us", 1e6 * operations / (device.operations_per_second * layer.operations_share)},
          {"memory_us", 1e6 * (static_cast<double>(x_bytes + y_bytes) + layer.weight_bytes) / device.bytes_per_second}};
}

/// Each kernel that runs the layer, with the terms of its estimated time; no time of one that takes many times as long
/// as the fastest.
void time_kernels(const Device& device, const isobit::bench::ConvProblem& problem) {
  constexpr double kMostTimes = 8, kLaunches = 20;  // µs of launches, which the first run has
  using namespace isobit::cuda;
  const auto host = required(isobit::StaticConvLayer::create(isobit::bench::random_conv(problem.shape), "conv"));
  const auto layer = required(DeviceStaticConv::create(host));
  const isobit::ImageSize size = required(isobit::conv_output_size(problem.shape, problem.image, "conv"));
  const ConvWork work = ConvWork::of(problem.shape, problem.images * size.rows * size.columns, 1, device.processors);
  double fastest = INFINITY;
  for (int i = 0; i < kConvKernels; ++i) {
    const auto kernel = static_cast<ConvKernel>(i);
    if (!layer.workspace_bytes(problem.images, problem.image, to_string(kernel)).ok()) continue;
    nlohmann::ordered_json line = time(device, problem, {}, to_string(kernel), kMostTimes * fastest + kLaunches);
    if (line.is_null()) continue;
    fastest = std::min(fastest, line["us"].get<double>());
    line["terms"] = conv_terms(kernel, work);
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times convolutions on the current CUDA device.");
  std::vector<std::string> shapes, layers = {"static"};
  std::vector<int64_t> batches;
  bool all_kernels = false;
  app.add_option("--conv", shapes, "HxWxC:O:R[:STRIDE[:GROUPS[:DILATION]]], DILATION * floor(R / 2) pads on every side")
      ->required();
  app.add_option("--batch", batches, "images of a run")->delimiter(',')->required();
  app.add_option("--layers", layers,
                 "static: codes of 8 bits; float16:BITS: floats in and out on weights of so many "
                 "bits; int8:BITS: the same, quantised in the call")
      ->delimiter(',');
  app.add_flag("--all-kernels", all_kernels, "static codes by each kernel, and what it is estimated from");
  CLI11_PARSE(app, argc, argv);
  const Device device = Device::current();
  for (const std::string& text : shapes)
    for (const int64_t images : batches) {
      const auto problem = required(isobit::bench::ConvProblem::parse(text, images));
      if (all_kernels) {
        time_kernels(device, problem);
        continue;
      }
      for (const std::string& layer : layers) {
        std::printf("%s\n", time(device, problem, LayerKind::of(layer)).dump().c_str());
        std::fflush(stdout);
      }
    }
  return 0;
}
