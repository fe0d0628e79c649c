// SPDX-License-Identifier: Apache-2.0
// FP16 functions on a device beside a copy of the same bytes (the faster of cudaMemcpyAsync and a copy kernel). One JSON
// object a line. The time does not depend on the function: every one is the same look-up.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "isobit/cuda/fp16_table.h"
#include "testing/cuda_timer.h"

namespace {

using isobit::Dtype;
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

}  // namespace

int main() {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "device");
  std::vector<uint16_t> results(65536);
  for (uint32_t i = 0; i < 65536; ++i) results[i] = static_cast<uint16_t>(i * 40503 >> 3);
  const auto function = isobit::cuda::DeviceFp16Function::create(results);
  if (!function.ok()) {
    std::fprintf(stderr, "%s\n", function.status().message().c_str());
    return 1;
  }
  void* x = nullptr;
  void* y = nullptr;
  check_cuda(cudaMalloc(&x, 4 * kCount), "x");
  check_cuda(cudaMalloc(&y, 4 * kCount), "y");
  for (const Dtype x_dtype : {Dtype::kF16, Dtype::kBF16, Dtype::kF32}) {
    fill<<<static_cast<unsigned>(kCount / 256), 256>>>(x, x_dtype == Dtype::kF32, x_dtype == Dtype::kBF16, kCount);
    check_cuda(cudaDeviceSynchronize(), "fill");
    for (const Dtype y_dtype : {Dtype::kF16, Dtype::kBF16, Dtype::kF32}) {
      const int64_t bytes = kCount * static_cast<int64_t>(size_in_bytes(x_dtype) + size_in_bytes(y_dtype)) / 2;
      const double memcpy_us = median_microseconds([&](cudaStream_t stream) {
        check_cuda(cudaMemcpyAsync(y, x, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream), "copy");
      });
      const double kernel_us = median_microseconds([&](cudaStream_t stream) {
        copy<<<static_cast<unsigned>(bytes / 16 / 256), 256, 0, stream>>>(static_cast<const uint4*>(x),
                                                                          static_cast<uint4*>(y), bytes / 16);
      });
      const double us = median_microseconds([&](cudaStream_t stream) {
        const isobit::Status status = function->run(x, x_dtype, y, y_dtype, kCount, stream);
        if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
      });
      std::printf("{\"device\": \"%s\", \"x\": \"%s\", \"y\": \"%s\", \"elements\": %lld, \"us\": %.1f, "
                  "\"copy_us\": %.1f, \"share_of_copy\": %.3f}\n",
                  properties.name, std::string(to_string(x_dtype)).c_str(), std::string(to_string(y_dtype)).c_str(),
                  static_cast<long long>(kCount), us, std::min(memcpy_us, kernel_us),
                  std::min(memcpy_us, kernel_us) / us);
    }
  }
  return 0;
}
