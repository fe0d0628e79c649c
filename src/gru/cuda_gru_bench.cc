// SPDX-License-Identifier: Apache-2.0
// Times of integer GRUs on a device, C = H, 8 bits, replayed from a graph: cuda_gru_bench T H,H,... N,N,... One JSON
// object a line. bench/gru_cuda.py puts a rival beside it.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/random.h"
#include "isobit/cuda/gru.h"
#include "testing/cuda_timer.h"

namespace {

using isobit::Random;
using isobit::cuda::DeviceGru;
using isobit::testing::check_cuda;

template <typename T>
T required(isobit::Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().message().c_str());
    std::exit(1);
  }
  return *std::move(result);
}
void required(const isobit::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

/// Weights as PyTorch initialises them, uniform in +-1/sqrt(H), calibrated on uniform data.
isobit::GruModel random_model(int64_t size) {
  Random random(static_cast<uint64_t>(size));
  const auto uniform = [&](int64_t count, float limit) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = limit * static_cast<float>(random.between(-1'000'000, 1'000'000)) * 1e-6f;
    return values;
  };
  const float limit = 1.0f / std::sqrt(static_cast<float>(size));
  isobit::GruWeights weights;
  weights.name = "bench";
  weights.layers.push_back({size, size, uniform(3 * size * size, limit), uniform(3 * size * size, limit),
                            uniform(3 * size, limit), uniform(3 * size, limit)});
  isobit::GruQuantization quantization;
  required(isobit::apply_bits("8", quantization));
  auto calibrator = required(isobit::GruCalibrator::create(std::move(weights)));
  required(calibrator.observe(uniform(8 * 2 * size, 2.0f), 8, 2));
  return required(calibrator.finish(quantization));
}

std::vector<int64_t> list_of(const char* text) {
  std::vector<int64_t> values;
  for (char* at = const_cast<char*>(text); *at != 0; at += *at == ',') values.push_back(std::strtoll(at, &at, 10));
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: cuda_gru_bench T H,H,... N,N,...\n");
    return 2;
  }
  const int64_t steps = std::strtoll(argv[1], nullptr, 10);
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "device");
  for (const int64_t size : list_of(argv[2])) {
    const DeviceGru gru = required(DeviceGru::create(random_model(size)));
    for (const int64_t batch : list_of(argv[3])) {
      const auto bytes = static_cast<size_t>(steps * batch * size);
      const auto state_bytes = static_cast<size_t>(gru.state_bytes(batch));
      const auto workspace_bytes = static_cast<size_t>(gru.workspace_bytes(batch, steps));
      void* buffers[4] = {};
      const size_t sizes[4] = {bytes, bytes, state_bytes, workspace_bytes};
      for (int i = 0; i < 4; ++i) check_cuda(cudaMalloc(&buffers[i], sizes[i]), "memory");
      std::vector<uint8_t> x(bytes);
      Random random(1);
      for (uint8_t& code : x) code = static_cast<uint8_t>(random.next() >> 56);
      check_cuda(cudaMemcpy(buffers[0], x.data(), bytes, cudaMemcpyHostToDevice), "x");
      const auto span = [&](int i) { return std::span(static_cast<std::byte*>(buffers[i]), sizes[i]); };
      required(gru.initial_state(span(2), batch, nullptr));
      check_cuda(cudaDeviceSynchronize(), "state");
      const double us = isobit::testing::median_microseconds([&](cudaStream_t stream) {
        required(gru.forward_codes(span(0), span(1), steps, batch, span(2), span(3), stream));
      });
      std::printf(
          "{\"device\": \"%s\", \"H\": %lld, \"N\": %lld, \"T\": %lld, \"kernel\": \"%s\", \"us_per_step\": %.4f}\n",
          properties.name, static_cast<long long>(size), static_cast<long long>(batch), static_cast<long long>(steps),
          std::string(required(gru.choose_kernel(batch, steps))).c_str(), us / static_cast<double>(steps));
      std::fflush(stdout);
      for (void* buffer : buffers) cudaFree(buffer);
    }
  }
  return 0;
}
