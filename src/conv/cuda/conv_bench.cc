// SPDX-License-Identifier: Apache-2.0
// Convolutions of static codes on a device, whose images are in no cache: copies in turn. Results are compared with the
// CPU's. One JSON object a line, in the order of the options.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/conv.h"
#include "isobit/conv.h"
#include "isobit/cuda/conv.h"
#include "testing/cuda_timer.h"

namespace {

using isobit::testing::check_cuda;
using isobit::testing::DeviceMemory;
using isobit::testing::required;

struct Device {
  std::string name;
  double operations_per_second = 0;  // of 8-bit codes, at the highest clock
  double bytes_per_second = 0;       // of its memory

  static Device current() {
    int number = 0, khz = 0, memory_khz = 0, bus = 0;
    check_cuda(cudaGetDevice(&number), "device");
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, number), "device");
    check_cuda(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, number), "clock");
    check_cuda(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, number), "clock of memory");
    check_cuda(cudaDeviceGetAttribute(&bus, cudaDevAttrGlobalMemoryBusWidth, number), "width of memory");
    constexpr double kInt8 = 8192;  // of a processor of sm_90 in a clock, a multiplication and an addition being two
    return {properties.name, kInt8 * 1e3 * khz * properties.multiProcessorCount, 2e3 * memory_khz * bus / 8};
  }
};

nlohmann::ordered_json time(const Device& device, const isobit::bench::ConvProblem& problem) {
  const isobit::StaticConvLayer host =
      required(isobit::StaticConvLayer::create(isobit::bench::random_conv(problem.shape), "conv"));
  const auto layer = required(isobit::cuda::DeviceStaticConv::create(host));
  const isobit::ImageSize size = required(isobit::conv_output_size(problem.shape, problem.image, "conv"));
  const int64_t images = problem.images;
  const auto x_bytes =
      static_cast<size_t>(images * problem.image.rows * problem.image.columns * problem.shape.channels);
  const auto y_bytes = static_cast<size_t>(images * size.rows * size.columns * problem.shape.outputs);
  const std::vector<std::byte> x = isobit::testing::random_bytes(x_bytes);
  std::vector<std::byte> expected(y_bytes), y(y_bytes);
  isobit::Workspace on_host = required(host.workspace(images, problem.image));
  required(host.forward(x, expected, images, problem.image, on_host));

  const int64_t copies = isobit::testing::copies_beyond_cache(static_cast<int64_t>(x_bytes + y_bytes));
  std::vector<DeviceMemory> x_d, y_d;
  for (int64_t i = 0; i < copies; ++i) {
    x_d.push_back(isobit::testing::repeated(x, x_bytes));
    y_d.push_back(isobit::testing::device_memory(y_bytes));
  }
  const auto needed = static_cast<size_t>(required(layer.workspace_bytes(images, problem.image)));
  const DeviceMemory workspace = isobit::testing::device_memory(needed);
  const auto run = [&](int64_t copy, cudaStream_t stream) {
    const auto at = static_cast<size_t>(copy);
    required(layer.forward({x_d[at].get(), x_bytes}, {y_d[at].get(), y_bytes}, images, problem.image,
                           {workspace.get(), needed}, {.stream = stream}));
  };
  run(0, nullptr);
  check_cuda(cudaMemcpy(y.data(), y_d[0].get(), y_bytes, cudaMemcpyDeviceToHost), "y");
  if (y != expected) {
    std::fprintf(stderr, "%s: other bytes than on the CPU\n", problem.name().c_str());
    std::exit(1);
  }
  const double operations = 2.0 * static_cast<double>(y_bytes) * static_cast<double>(problem.shape.depth());
  const auto bytes =
      static_cast<double>(x_bytes + y_bytes) + static_cast<double>(problem.shape.outputs * problem.shape.depth());
  return {{"device", device.name},
          {"images", images},
          {"us", isobit::testing::microseconds_in_turn(copies, run)},
          {"kernel", required(layer.kernel_name(images, problem.image))},
          {"copies", copies},
          {"operations_us", 1e6 * operations / device.operations_per_second},
          {"memory_us", 1e6 * bytes / device.bytes_per_second}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times convolutions of static codes of 8 bits on the current CUDA device.");
  std::vector<std::string> shapes;
  std::vector<int64_t> batches;
  app.add_option("--conv", shapes, "HxWxC:O:R[:STRIDE[:GROUPS]], floor(R / 2) pads on every side")->required();
  app.add_option("--batch", batches, "images of a run")->delimiter(',')->required();
  CLI11_PARSE(app, argc, argv);
  const Device device = Device::current();
  for (const std::string& text : shapes)
    for (const int64_t images : batches) {
      std::printf("%s\n", time(device, required(isobit::bench::ConvProblem::parse(text, images))).dump().c_str());
      std::fflush(stdout);
    }
  return 0;
}
