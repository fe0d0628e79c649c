// SPDX-License-Identifier: Apache-2.0
// Linear layers on a device with weights that are in no cache: copies of a layer in turn, three times the second-level
// cache together. One JSON object a line.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/random.h"
#include "isobit/cuda/linear.h"
#include "isobit/low_bit.h"
#include "testing/cuda_timer.h"

namespace {

using isobit::Dtype;
using isobit::LinearActivations;
using isobit::LowBitKind;
using isobit::testing::check_cuda;
namespace cuda = isobit::cuda;

template <typename T>
T required(isobit::Result<T> result) {
  if (result.ok()) return *std::move(result);
  std::fprintf(stderr, "%s\n", result.status().message().c_str());
  std::exit(1);
}
void required(const isobit::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

std::byte* device_memory(int64_t bytes) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, static_cast<size_t>(bytes)), "memory");
  check_cuda(cudaMemset(memory, 0x31, static_cast<size_t>(bytes)), "memory");
  return static_cast<std::byte*>(memory);
}

constexpr int64_t kLaunches = 100;

/// Codes of every value, scales of ordinary size.
isobit::LowBitMatrix random_matrix(int64_t n, int64_t k, int32_t bits, int64_t group, LowBitKind kind) {
  isobit::Random random(1);
  isobit::LowBitParameters p;
  p.rows = n;
  p.columns = k;
  p.bits = bits;
  p.group = group;
  p.kind = kind;
  const int64_t groups = (k + group - 1) / group;
  p.codes = isobit::Array::zeros(Dtype::kU8, {n, (k * bits / 8 + 3) / 4 * 4});
  for (std::byte& byte : p.codes.bytes) byte = static_cast<std::byte>(random.next() >> 56);
  const auto fill = [&](isobit::Array& array, float value) {
    array = isobit::Array::zeros(Dtype::kF32, {n, groups});
    std::fill_n(array.data<float>(), array.size(), value);
  };
  fill(p.scales, 0.01f);
  if (kind == LowBitKind::kOffset) fill(p.offsets, -0.1f);
  if (kind == LowBitKind::kZeroPoint) {
    p.zero_points = isobit::Array::zeros(bits == 8 ? Dtype::kU16 : Dtype::kU8, {n, groups});
    for (std::byte& byte : p.zero_points.bytes) byte = std::byte{0};
  }
  return required(isobit::LowBitMatrix::create(std::move(p), "W"));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> shapes = {"4096x4096", "4096x14336", "8192x28672"}, activations = {"int8", "float16"},
                           kinds = {"symmetric"};
  std::vector<int32_t> bits = {8, 4, 2, 1};
  std::vector<int64_t> rows = {1, 8, 16}, groups = {128};
  CLI::App app("Times of linear layers on a CUDA device.");
  app.add_option("--shape", shapes, "NxK")->delimiter(',');
  app.add_option("--bits", bits)->delimiter(',');
  app.add_option("--m", rows)->delimiter(',');
  app.add_option("--group", groups, "0: K")->delimiter(',');
  app.add_option("--kind", kinds, "symmetric, zero_point, offset")->delimiter(',');
  app.add_option("--activations", activations, "int8, int8_asymmetric, float16, bfloat16, float32")->delimiter(',');
  CLI11_PARSE(app, argc, argv);

  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "device");
  for (const std::string& shape : shapes) {
    const int64_t n = std::stoll(shape), k = std::stoll(shape.substr(shape.find('x') + 1));
    for (const int32_t width : bits)
      for (const std::string& kind : kinds)
        for (const int64_t group : groups) {
          const isobit::LowBitMatrix matrix =
              random_matrix(n, k, width, group == 0 ? k : group, isobit::low_bit_kind_from_string(kind).value());
          for (const std::string& name : activations) {
            const auto quantised = isobit::linear_activations_from_string(name);
            const Dtype dtype = quantised            ? Dtype::kF16
                                : name == "float16"  ? Dtype::kF16
                                : name == "bfloat16" ? Dtype::kBF16
                                                     : Dtype::kF32;
            const isobit::LinearOptions options{.activations = quantised.value_or(LinearActivations::kFloat)};
            std::vector<cuda::DeviceLinear> layers;
            layers.push_back(required(cuda::DeviceLinear::create(matrix, options, "fc")));
            const int64_t copies =
                std::clamp<int64_t>(3 * int64_t{properties.l2CacheSize} / layers[0].size_bytes() + 1, 2, 64);
            while (static_cast<int64_t>(layers.size()) < copies)
              layers.push_back(required(cuda::DeviceLinear::create(matrix, options, "fc")));
            for (const int64_t m : rows) {
              const auto size = static_cast<int64_t>(isobit::size_in_bytes(dtype));
              const int64_t x_bytes = m * k * size, y_bytes = m * n * size, scratch = layers[0].workspace_bytes(m);
              std::byte *const x = device_memory(x_bytes), *const y = device_memory(y_bytes),
                               *const workspace = device_memory(scratch);
              // So many that the start of a graph does not count.
              const int64_t rounds = (kLaunches + copies - 1) / copies;
              const double us = isobit::testing::median_microseconds([&](cudaStream_t stream) {
                for (int64_t round = 0; round < rounds; ++round)
                  for (const cuda::DeviceLinear& layer : layers)
                    required(layer.forward({x, static_cast<size_t>(x_bytes)}, dtype, {y, static_cast<size_t>(y_bytes)},
                                           dtype, m, {workspace, static_cast<size_t>(scratch)}, {.stream = stream}));
              });
              const double each = us / static_cast<double>(copies * rounds);
              nlohmann::ordered_json line = {{"device", properties.name},
                                             {"N", n},
                                             {"K", k},
                                             {"bits", width},
                                             {"kind", kind},
                                             {"group", group},
                                             {"activations", name},
                                             {"M", m},
                                             {"us", each},
                                             {"bytes", layers[0].size_bytes()},
                                             {"copies", copies}};
              line["TB/s"] = static_cast<double>(layers[0].size_bytes()) / each * 1e-6;
              line["TOP/s"] = 2e-6 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / each;
              std::printf("%s\n", line.dump().c_str());
              std::fflush(stdout);
              for (std::byte* memory : {x, y, workspace}) cudaFree(memory);
            }
          }
        }
  }
  return 0;
}
