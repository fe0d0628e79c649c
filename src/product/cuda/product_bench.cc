// SPDX-License-Identifier: Apache-2.0
// The product W x of many steps on a device: every kernel, alone, reading x where it is, and with a launch before
// it in the same graph that pads x. One JSON object a line.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/random.h"
#include "product/cuda/product.h"
#include "testing/cuda_timer.h"

namespace {

using isobit::Fixed;
using isobit::Random;
using isobit::testing::check_cuda;
using isobit::testing::median_microseconds;
namespace cuda = isobit::cuda;

void required(const isobit::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

template <typename T>
T* on_device(const std::vector<T>& values) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, values.size() * sizeof(T) + 1), "memory");
  check_cuda(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  return static_cast<T*>(memory);
}

/// Ratio: what results are rescaled by.
template <typename Ratio>
void time(const char* device, int64_t m, int64_t n, int64_t k) {
  Random random(1);
  cuda::ProductWeights<Ratio> weights;
  weights.n = n;
  weights.k = k;
  weights.w.resize(static_cast<size_t>(n * k));
  for (int8_t& w : weights.w) w = static_cast<int8_t>(random.next() >> 56);
  weights.start.assign(static_cast<size_t>(n), 1000);
  Ratio ratio;
  if constexpr (std::is_same_v<Ratio, Fixed>) {
    ratio = isobit::to_fixed({1, 12}).value();
  } else {
    ratio = Ratio{0x1p-12};
  }
  weights.ratio.assign(static_cast<size_t>(n), ratio);
  weights.again.assign(static_cast<size_t>(n), 1.25f);
  weights.low = -128;
  weights.high = 127;
  const isobit::Result<cuda::ProductPack<Ratio>> pack = cuda::pack_product(weights);
  required(pack.status());
  cuda::DeviceProduct<Ratio> product = pack->product;
  cuda::ProductShape& shape = product.shape;
  shape.w = on_device(pack->w);
  product.start = on_device(pack->start);
  product.ratio = on_device(pack->ratio);
  product.again = on_device(pack->again);
  shape.image = on_device(pack->image);

  std::vector<uint8_t> codes(static_cast<size_t>(m * k));
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random.next() >> 56);
  cuda::ProductRows rows;
  rows.codes = on_device(codes);
  rows.rows = m;
  rows.step = k;
  rows.flip = 0x80;
  void* x = nullptr;
  void* out = nullptr;
  check_cuda(cudaMalloc(&x, static_cast<size_t>(cuda::product_x_bytes(shape, m))), "x");
  check_cuda(cudaMalloc(&out, static_cast<size_t>(m * n * 2)), "out");
  const auto time_kernel = [&](cuda::ProductKernel kernel, const char* name, int32_t tile_columns) {
    const auto pad = [&](cudaStream_t stream) {
      required(cuda::pad_product_x(shape, kernel, rows, static_cast<uint8_t*>(x), stream));
    };
    const auto multiply = [&](const void* padded, cudaStream_t stream) {
      required(cuda::launch_product(product, kernel, rows, static_cast<const uint8_t*>(padded),
                                    static_cast<uint16_t*>(out), stream, tile_columns));
    };
    const double padded_us = median_microseconds([&](cudaStream_t stream) {
      pad(stream);
      multiply(x, stream);
    });
    const double us = median_microseconds([&](cudaStream_t stream) { multiply(nullptr, stream); });
    nlohmann::ordered_json line = {{"device", device}, {"M", m}, {"N", n}, {"K", k}, {"kernel", name}};
    line["ratios"] = std::is_same_v<Ratio, Fixed> ? "fixed" : std::is_same_v<Ratio, double> ? "double" : "float";
    line["us"] = us;
    line["tops"] = 2e-6 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / us;
    line["padded_us"] = padded_us;
    if (tile_columns > 0) line["tile_columns"] = tile_columns;
    line["chosen"] = kernel == cuda::choose_product_kernel(shape, m) &&
                     (tile_columns == 0 || tile_columns == cuda::one_tile_columns(shape, m));
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  };
  time_kernel(cuda::ProductKernel::kMma, "mma", 0);
  if (shape.columns > 0) time_kernel(cuda::ProductKernel::kWgmma, "wgmma", 0);
  // Of every width with which all tiles are on the device at once.
  if (const int32_t least = cuda::one_tile_columns(shape, m); least > 0)
    for (const int32_t columns : cuda::kOneTileColumns)
      if (columns >= least) time_kernel(cuda::ProductKernel::kOneTile, "one_tile", columns);
  for (const void* memory : {static_cast<const void*>(shape.w), static_cast<const void*>(product.start),
                             static_cast<const void*>(product.ratio), static_cast<const void*>(product.again),
                             static_cast<const void*>(shape.image), static_cast<const void*>(rows.codes),
                             static_cast<const void*>(x), static_cast<const void*>(out)})
    cudaFree(const_cast<void*>(memory));
}

}  // namespace

int main() {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "device");
  time<float>(properties.name, 65536, 1536, 512);
  time<Fixed>(properties.name, 65536, 1536, 512);
  time<double>(properties.name, 65536, 1536, 512);
  time<float>(properties.name, 65536, 3072, 1024);
  time<Fixed>(properties.name, 65536, 3072, 1024);
  time<double>(properties.name, 65536, 3072, 1024);
  time<float>(properties.name, 65536, 2304, 768);
  time<float>(properties.name, 16384, 768, 256);
  time<float>(properties.name, 65536, 384, 128);
  time<float>(properties.name, 65536, 6144, 2048);
  time<Fixed>(properties.name, 65536, 6144, 2048);
  time<double>(properties.name, 65536, 6144, 2048);
  time<float>(properties.name, 4096, 6144, 2048);
  // Where the one becomes faster than the other.
  for (const int64_t size : {128, 256, 512, 768, 1024, 2048})
    for (const int64_t m : {64, 256, 512, 1024, 2048, 4096, 8192}) time<float>(properties.name, m, 3 * size, size);
  return 0;
}
