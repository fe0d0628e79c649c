// SPDX-License-Identifier: Apache-2.0
// The device kernels of FP16 functions against core/half.h and the list of results, byte for byte.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "core/half.h"
#include "core/random.h"
#include "isobit/cuda/fp16_table.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

using isobit::testing::GuardedDeviceBuffer;

/// Any results will do; NaN comes as 0x7E00 only.
std::vector<uint16_t> random_results() {
  Random random(16);
  std::vector<uint16_t> results(65536);
  for (uint16_t& result : results) {
    result = static_cast<uint16_t>(random.next());
    if ((result & 0x7FFF) > 0x7C00) result = 0x7E00;
  }
  for (uint32_t code = 0; code < 65536; ++code)
    if ((code & 0x7FFF) > 0x7C00) results[code] = 0x7E00;
  return results;
}

uint32_t load(const std::vector<uint8_t>& bytes, Dtype dtype, int64_t i) {
  uint32_t bits = 0;
  std::memcpy(&bits, bytes.data() + static_cast<size_t>(i) * size_in_bytes(dtype), size_in_bytes(dtype));
  return bits;
}

uint16_t to_code(uint32_t bits, Dtype dtype) {
  if (dtype == Dtype::kF16) return static_cast<uint16_t>(bits);
  const uint32_t wide = dtype == Dtype::kBF16 ? bits << 16 : bits;
  return f32_to_f16(__builtin_bit_cast(float, wide));
}

uint32_t from_code(uint16_t code, Dtype dtype) {
  if (dtype == Dtype::kF16) return code;
  const float value = f16_to_f32(code);
  return dtype == Dtype::kBF16 ? f32_to_bf16(value) : __builtin_bit_cast(uint32_t, value);
}

constexpr Dtype kDtypes[] = {Dtype::kF16, Dtype::kBF16, Dtype::kF32};

class DeviceFp16 : public ::testing::TestWithParam<std::tuple<Dtype, Dtype>> {
 protected:
  void SetUp() override { ISOBIT_NEEDS_CUDA_DEVICE(); }
};

/// x of `count` elements: every 16-bit pattern, then random bits (of floats: around the float16 range).
std::vector<uint8_t> input_of(Dtype dtype, int64_t count) {
  Random random(static_cast<uint64_t>(count));
  std::vector<uint8_t> bytes(static_cast<size_t>(count) * size_in_bytes(dtype));
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = i < 65536 ? static_cast<uint32_t>(i) : static_cast<uint32_t>(random.next());
    if (dtype == Dtype::kF32) {
      if (i < 65536) {
        bits = __builtin_bit_cast(uint32_t, f16_to_f32(static_cast<uint16_t>(i)));
      } else if ((i & 3) != 0) {  // ties and neighbours of float16 numbers
        bits = __builtin_bit_cast(uint32_t, f16_to_f32(static_cast<uint16_t>(bits))) + (bits >> 28) - 8 + (bits & 0x1000);
      }
    }
    std::memcpy(bytes.data() + static_cast<size_t>(i) * size_in_bytes(dtype), &bits, size_in_bytes(dtype));
  }
  return bytes;
}

TEST_P(DeviceFp16, EqualsTheResultsByteForByte) {
  const auto [x_dtype, y_dtype] = GetParam();
  const std::vector<uint16_t> results = random_results();
  Result<DeviceFp16Function> function = DeviceFp16Function::create(results);
  ASSERT_TRUE(function.ok()) << function.status().message();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  int64_t compared = 0;
  for (const int64_t count : {0, 1, 3, 4, 7, 8, 9, 255, 1021, 65536, 70001, (1 << 20) - 1, 1 << 20, (1 << 20) + 5,
                              (1 << 22) + 3}) {
    for (const int64_t offset : {0, 1}) {  // in elements: misaligned vectors
      SCOPED_TRACE(std::string(to_string(x_dtype)) + " -> " + std::string(to_string(y_dtype)) + ", count " +
                   std::to_string(count) + ", offset " + std::to_string(offset));
      const auto x_size = static_cast<int64_t>(size_in_bytes(x_dtype));
      const auto y_size = static_cast<int64_t>(size_in_bytes(y_dtype));
      const std::vector<uint8_t> x = input_of(x_dtype, count);
      GuardedDeviceBuffer x_device(count * x_size, offset * x_size);
      GuardedDeviceBuffer y_device(count * y_size, offset * y_size);
      x_device.write(x);
      const Status status = function->run(x_device.data(), x_dtype, y_device.data(), y_dtype, count, stream);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      const std::vector<uint8_t> y = y_device.read<uint8_t>();
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(load(y, y_dtype, i), from_code(results[to_code(load(x, x_dtype, i), x_dtype)], y_dtype))
            << "at " << i << ", x bits " << load(x, x_dtype, i);
      compared += count;
    }
  }
  RecordProperty("outputs_compared", static_cast<int>(compared));
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(Pairs, DeviceFp16, ::testing::Combine(::testing::ValuesIn(kDtypes), ::testing::ValuesIn(kDtypes)),
                         [](const auto& pair) {
                           return std::string(to_string(std::get<0>(pair.param))) + "_" +
                                  std::string(to_string(std::get<1>(pair.param)));
                         });

class DeviceFp16Rules : public ::testing::Test {
 protected:
  void SetUp() override { ISOBIT_NEEDS_CUDA_DEVICE(); }
};

TEST_F(DeviceFp16Rules, ReplaysInAGraphAndInPlace) {
  const std::vector<uint16_t> results = random_results();
  Result<DeviceFp16Function> function = DeviceFp16Function::create(results);
  ASSERT_TRUE(function.ok()) << function.status().message();
  for (const int64_t count : {1000, 1 << 20}) {
    std::vector<uint16_t> expected(static_cast<size_t>(count));
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<uint16_t>(i * 7);
    GuardedDeviceBuffer x(count * 2);
    x.write(expected);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    const Status status = function->run(x.data(), Dtype::kF16, x.data(), Dtype::kF16, count, stream);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_TRUE(status.ok()) << status.message();
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    for (int replay = 0; replay < 3; ++replay) {
      ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
      for (uint16_t& code : expected) code = results[code];
    }
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(x.read<uint16_t>(), expected);
    EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
}

TEST_F(DeviceFp16Rules, RefusesByName) {
  const std::vector<uint16_t> results = random_results();
  Result<DeviceFp16Function> function = DeviceFp16Function::create(results);
  ASSERT_TRUE(function.ok()) << function.status().message();
  EXPECT_NE(DeviceFp16Function::create(std::span(results).first(3)).status().message().find("results has 3 codes"),
            std::string::npos);
  GuardedDeviceBuffer x(64);
  auto* odd = static_cast<uint8_t*>(x.data()) + 1;
  const auto message = [&](const void* in, Dtype in_dtype, void* out, Dtype out_dtype, int64_t count) {
    return function->run(in, in_dtype, out, out_dtype, count, nullptr).message();
  };
  EXPECT_NE(message(x.data(), Dtype::kF16, x.data(), Dtype::kF16, -1).find("count is -1"), std::string::npos);
  EXPECT_NE(message(x.data(), Dtype::kS8, x.data(), Dtype::kF16, 1).find("x has elements of type s8"), std::string::npos);
  EXPECT_NE(message(x.data(), Dtype::kF16, x.data(), Dtype::kF64, 1).find("y has elements of type f64"),
            std::string::npos);
  EXPECT_NE(message(nullptr, Dtype::kF16, x.data(), Dtype::kF16, 1).find("x is null"), std::string::npos);
  EXPECT_NE(message(x.data(), Dtype::kF16, odd, Dtype::kF16, 1).find("y is not aligned"), std::string::npos);
  (void)x.read<uint8_t>();
}

}  // namespace
}  // namespace isobit::cuda
