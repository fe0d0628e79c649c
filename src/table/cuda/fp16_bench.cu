// SPDX-License-Identifier: Apache-2.0
// FP16 functions on a device beside a copy of the same bytes (the faster of cudaMemcpyAsync and a copy kernel): every
// pair of types, then every built-in function in every model. One JSON object a line.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "isobit/cuda/fp16_table.h"
#include "isobit/fp16_function.h"
#include "testing/cuda_timer.h"

namespace {

using isobit::Dtype;
using isobit::Fp16Function;
using isobit::Fp16Model;
using isobit::cuda::DeviceFp16Function;
using isobit::testing::check_cuda;
using isobit::testing::median_microseconds;

constexpr int64_t kCount = int64_t{1} << 28;

__global__ void copy(const uint4* x, uint4* y, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) __stcs(y + i, __ldcs(x + i));
}

/// Sums of four uniform numbers, in [-3.4, 3.4]: activations look like that; or every code.
__global__ void fill(void* x, bool is_f32, bool is_bf16, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint64_t z = static_cast<uint64_t>(i + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  z ^= z >> 31;
  const float sum = static_cast<float>((z & 0xFFFF) + ((z >> 16) & 0xFFFF) + ((z >> 32) & 0xFFFF) + (z >> 48));
  const float value = 1.7f * (sum / 65536.0f - 2.0f);
  if (is_f32) {
    static_cast<float*>(x)[i] = value;
  } else if (is_bf16) {
    static_cast<uint16_t*>(x)[i] = static_cast<uint16_t>(__float_as_uint(value) >> 16);
  } else {
    static_cast<uint16_t*>(x)[i] = static_cast<uint16_t>(z);
  }
}

/// The buffers, and what a copy of their bytes takes.
class Bench {
 public:
  Bench() {
    check_cuda(cudaGetDeviceProperties(&properties_, 0), "device");
    check_cuda(cudaMalloc(&x_, 4 * kCount), "x");
    check_cuda(cudaMalloc(&y_, 4 * kCount), "y");
  }

  void time(const std::string& name, const DeviceFp16Function& function, Dtype x_dtype, Dtype y_dtype) {
    if (filled_ != x_dtype) {
      fill<<<static_cast<unsigned>(kCount / 256), 256>>>(x_, x_dtype == Dtype::kF32, x_dtype == Dtype::kBF16, kCount);
      check_cuda(cudaDeviceSynchronize(), "fill");
      filled_ = x_dtype;
    }
    const size_t x_bytes = kCount * size_in_bytes(x_dtype);
    const size_t y_bytes = kCount * size_in_bytes(y_dtype);
    const size_t bytes = (x_bytes + y_bytes) / 2;
    const double memcpy_us = median_microseconds([&](cudaStream_t stream) {
      check_cuda(cudaMemcpyAsync(y_, x_, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
    });
    const double kernel_us = median_microseconds([&](cudaStream_t stream) {
      copy<<<static_cast<unsigned>(bytes / 16 / 256), 256, 0, stream>>>(
          static_cast<const uint4*>(x_), static_cast<uint4*>(y_), static_cast<int64_t>(bytes / 16));
    });
    const double us = median_microseconds([&](cudaStream_t stream) {
      const isobit::Status status =
          function.forward({static_cast<const std::byte*>(x_), x_bytes}, x_dtype,
                           {static_cast<std::byte*>(y_), y_bytes}, y_dtype, {.stream = stream});
      if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.message().c_str());
        std::exit(1);
      }
    });
    const double copy_us = std::min(memcpy_us, kernel_us);
    std::printf(
        "{\"device\": \"%s\", \"name\": \"%s\", \"x\": \"%s\", \"y\": \"%s\", \"elements\": %lld, "
        "\"us\": %.1f, \"copy_us\": %.1f, \"share_of_copy\": %.3f}\n",
        properties_.name, name.c_str(), std::string(to_string(x_dtype)).c_str(),
        std::string(to_string(y_dtype)).c_str(), static_cast<long long>(kCount), us, copy_us, copy_us / us);
    std::fflush(stdout);
  }

 private:
  cudaDeviceProp properties_{};
  void* x_ = nullptr;
  void* y_ = nullptr;
  std::optional<Dtype> filled_;
};

DeviceFp16Function builtin(std::string_view function, Fp16Model model) {
  const auto table = isobit::builtin_fp16_table(function, model);
  const auto host = table.ok() ? isobit::Fp16Function::create(*table) : isobit::Result<Fp16Function>(table.status());
  const auto device =
      host.ok() ? DeviceFp16Function::create(host->results()) : isobit::Result<DeviceFp16Function>(host.status());
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().message().c_str());
    std::exit(1);
  }
  return *device;
}

}  // namespace

int main() {
  Bench bench;
  const DeviceFp16Function silu = builtin("silu", Fp16Model::kF32);
  for (const Dtype x : {Dtype::kF16, Dtype::kBF16, Dtype::kF32})
    for (const Dtype y : {Dtype::kF16, Dtype::kBF16, Dtype::kF32}) bench.time("silu f32", silu, x, y);
  for (const Dtype dtype : {Dtype::kF16, Dtype::kF32})
    for (const std::string_view function : isobit::fp16_functions())
      for (const Fp16Model model : {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu})
        bench.time(std::string(function) + " " + std::string(to_string(model)), builtin(function, model), dtype, dtype);
  return 0;
}
