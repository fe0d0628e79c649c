// SPDX-License-Identifier: Apache-2.0
// The device kernels of FP16 functions against core/half.h and the list of results, byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/half.h"
#include "core/random.h"
#include "isobit/cuda/fp16_table.h"
#include "isobit/fp16_function.h"
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
        bits =
            __builtin_bit_cast(uint32_t, f16_to_f32(static_cast<uint16_t>(bits))) + (bits >> 28) - 8 + (bits & 0x1000);
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
  for (const int64_t count :
       {0, 1, 3, 4, 7, 8, 9, 255, 1021, 65536, 70001, (1 << 20) - 1, 1 << 20, (1 << 20) + 5, (1 << 22) + 3}) {
    for (const int64_t offset : {0, 1}) {  // in elements: misaligned vectors
      SCOPED_TRACE(std::string(to_string(x_dtype)) + " -> " + std::string(to_string(y_dtype)) + ", count " +
                   std::to_string(count) + ", offset " + std::to_string(offset));
      const auto x_size = static_cast<int64_t>(size_in_bytes(x_dtype));
      const auto y_size = static_cast<int64_t>(size_in_bytes(y_dtype));
      const std::vector<uint8_t> x = input_of(x_dtype, count);
      GuardedDeviceBuffer x_device(count * x_size, offset * x_size);
      GuardedDeviceBuffer y_device(count * y_size, offset * y_size);
      x_device.write(x);
      const Status status = function->forward(x_device.bytes(), x_dtype, y_device.bytes(), y_dtype, {.stream = stream});
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

INSTANTIATE_TEST_SUITE_P(Pairs, DeviceFp16,
                         ::testing::Combine(::testing::ValuesIn(kDtypes), ::testing::ValuesIn(kDtypes)),
                         [](const auto& pair) {
                           return std::string(to_string(std::get<0>(pair.param))) + "_" +
                                  std::string(to_string(std::get<1>(pair.param)));
                         });

class DeviceFp16Rules : public ::testing::Test {
 protected:
  void SetUp() override { ISOBIT_NEEDS_CUDA_DEVICE(); }
};

using isobit::testing::sanitized;

class DeviceFp16Builtin : public DeviceFp16Rules {
 protected:
  /// Runs `x` through the reference on the host and through the device; every byte must be the same.
  void compare(const Fp16Function& host, const DeviceFp16Function& device, const std::vector<std::byte>& x,
               Dtype x_dtype, Dtype y_dtype, std::string_view kernel) {
    const size_t count = x.size() / size_in_bytes(x_dtype);
    std::vector<std::byte> expected(count * size_in_bytes(y_dtype));
    const Status status = host.forward(x, x_dtype, expected, y_dtype, {.kernel = kernel});
    ASSERT_TRUE(status.ok()) << status.message();
    GuardedDeviceBuffer x_device(static_cast<int64_t>(x.size()));
    GuardedDeviceBuffer y_device(static_cast<int64_t>(expected.size()));
    x_device.write(x);
    const Status run = device.forward(x_device.bytes(), x_dtype, y_device.bytes(), y_dtype);
    ASSERT_TRUE(run.ok()) << run.message();
    const std::vector<std::byte> y = y_device.read<std::byte>();
    compared_ += static_cast<int64_t>(count);
    if (y == expected) return;
    const auto first = static_cast<size_t>(std::mismatch(y.begin(), y.end(), expected.begin()).first - y.begin());
    FAIL() << to_string(x_dtype) << " -> " << to_string(y_dtype) << ": element " << first / size_in_bytes(y_dtype);
  }
  int64_t compared_ = 0;
};

TEST_F(DeviceFp16Builtin, EveryTableEveryCodeEveryPairEqualsTheReference) {
  int tables = 0;
  for (const std::string_view function : fp16_functions())
    for (const Fp16Model model : {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu})
      for (const bool half_values : {false, true}) {
        if (sanitized() && tables > 5) continue;
        SCOPED_TRACE(std::string(function) + " " + std::string(to_string(model)) + (half_values ? " f16" : " f32"));
        const Result<Fp16Table> table = builtin_fp16_table(function, model, half_values);
        ASSERT_TRUE(table.ok()) << table.status().message();
        const Result<Fp16Function> host = Fp16Function::create(*table);
        ASSERT_TRUE(host.ok()) << host.status().message();
        const Result<DeviceFp16Function> device = DeviceFp16Function::create(host->results());
        ASSERT_TRUE(device.ok()) << device.status().message();
        for (const Dtype x_dtype : kDtypes) {
          const std::vector<uint8_t> bytes = input_of(x_dtype, 65536);
          const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
          for (const Dtype y_dtype : kDtypes)
            compare(*host, *device, {begin, begin + bytes.size()}, x_dtype, y_dtype, "reference");
        }
        ++tables;
      }
  std::printf("%d tables, %lld outputs compared, 0 different\n", tables, static_cast<long long>(compared_));
}

TEST_F(DeviceFp16Builtin, RandomFloat32EqualsTheReference) {
  constexpr int64_t kChunk = int64_t{1} << 23;
  const int64_t total = sanitized() ? kChunk : 100'000'000;
  const Result<Fp16Table> table = builtin_fp16_table("silu");
  ASSERT_TRUE(table.ok()) << table.status().message();
  const Result<Fp16Function> host = Fp16Function::create(*table);
  ASSERT_TRUE(host.ok()) << host.status().message();
  const Result<DeviceFp16Function> device = DeviceFp16Function::create(host->results());
  ASSERT_TRUE(device.ok()) << device.status().message();
  Random random(32);
  std::vector<std::byte> x(static_cast<size_t>(kChunk) * 4);
  while (compared_ < total) {
    for (size_t i = 0; i < x.size(); i += 8) {
      const uint64_t bits = random.next();
      std::memcpy(x.data() + i, &bits, 8);
    }
    compare(*host, *device, x, Dtype::kF32, Dtype::kF32, "reference");
    if (HasFailure()) return;
  }
  std::printf("%lld outputs compared, 0 different\n", static_cast<long long>(compared_));
}

/// Rows around 0 with spreads from 1/4 to 32, every eighth with infinities or NaN.
std::vector<std::byte> rows_of(Random& random, Dtype dtype, int64_t rows, int64_t columns) {
  std::vector<std::byte> bytes(static_cast<size_t>(rows * columns) * size_in_bytes(dtype));
  for (int64_t row = 0; row < rows; ++row) {
    const float spread = static_cast<float>(1 << random.between(0, 7)) / 4.0f;
    const bool special = random.one_in(8);
    for (int64_t i = 0; i < columns; ++i) {
      float value = spread * (static_cast<float>(random.between(0, 1 << 20)) / static_cast<float>(1 << 19) - 1.0f);
      if (special && random.one_in(columns < 8 ? 2 : 8))
        value = f16_to_f32(static_cast<uint16_t>(0x7c00 + random.between(-1, 1)));
      if (special && random.one_in(4)) value = -__builtin_inff();
      uint32_t bits = __builtin_bit_cast(uint32_t, value);
      if (dtype != Dtype::kF32) bits = dtype == Dtype::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
      std::memcpy(bytes.data() + static_cast<size_t>(row * columns + i) * size_in_bytes(dtype), &bits,
                  size_in_bytes(dtype));
    }
  }
  return bytes;
}

TEST_F(DeviceFp16Builtin, SoftmaxEqualsTheReference) {
  Random random(99);
  for (const Fp16Model model : {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu}) {
    const Result<Fp16Table> exp = builtin_fp16_table("exp", model);
    const Result<Fp16Table> reciprocal = builtin_fp16_table("reciprocal", model);
    ASSERT_TRUE(exp.ok() && reciprocal.ok());
    const Result<Fp16Softmax> host = Fp16Softmax::create(*exp, *reciprocal);
    ASSERT_TRUE(host.ok()) << host.status().message();
    const Result<DeviceFp16Softmax> device = DeviceFp16Softmax::create(*host);
    ASSERT_TRUE(device.ok()) << device.status().message();
    for (const int64_t columns : {1, 2, 31, 32, 33, 255, 512, 513, 1000, 4097, 50000}) {
      const int64_t rows = sanitized() ? 3 : std::max<int64_t>(3, 60000 / columns);
      if (sanitized() && columns > 1000) continue;
      for (const Dtype x_dtype : kDtypes)
        for (const Dtype y_dtype : kDtypes) {
          SCOPED_TRACE(std::string(to_string(model)) + " " + std::string(to_string(x_dtype)) + " -> " +
                       std::string(to_string(y_dtype)) + ", columns " + std::to_string(columns));
          const std::vector<std::byte> x = rows_of(random, x_dtype, rows, columns);
          std::vector<std::byte> expected(static_cast<size_t>(rows * columns) * size_in_bytes(y_dtype));
          ASSERT_TRUE(host->forward(x, x_dtype, expected, y_dtype, columns, {.kernel = "reference"}).ok());
          GuardedDeviceBuffer x_device(static_cast<int64_t>(x.size()));
          GuardedDeviceBuffer y_device(static_cast<int64_t>(expected.size()));
          x_device.write(x);
          const Status status = device->forward(x_device.bytes(), x_dtype, y_device.bytes(), y_dtype, columns);
          ASSERT_TRUE(status.ok()) << status.message();
          ASSERT_TRUE(y_device.read<std::byte>() == expected);
          compared_ += rows * columns;
        }
    }
    GuardedDeviceBuffer x(64);
    const Status status = device->forward(x.bytes(), Dtype::kF16, x.bytes(), Dtype::kF16, 5);
    EXPECT_NE(status.message().find("columns is 5"), std::string::npos) << status.message();
    (void)x.read<uint8_t>();
  }
  std::printf("softmax: %lld outputs compared, 0 different\n", static_cast<long long>(compared_));
}

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
    const Status status = function->forward(x.bytes(), Dtype::kF16, x.bytes(), Dtype::kF16, {.stream = stream});
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
  GuardedDeviceBuffer y(64);
  const auto message = [&](std::span<const std::byte> in, Dtype in_dtype, std::span<std::byte> out, Dtype out_dtype) {
    return function->forward(in, in_dtype, out, out_dtype).message();
  };
  const auto f16 = Dtype::kF16;
  const auto expect = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(message(x.bytes(), Dtype::kS8, y.bytes(), f16), "x has elements of type s8, must be f16, bf16 or f32");
  expect(message(x.bytes(), f16, y.bytes(), Dtype::kF64), "y has elements of type f64, must be f16, bf16 or f32");
  expect(message({static_cast<const std::byte*>(nullptr), 4}, f16, y.bytes().first(4), f16),
         "x is null, must hold 2 elements");
  expect(message(x.bytes().first(4), f16, y.bytes().subspan(1, 4), f16), "y is not aligned to its elements of 2 bytes");
  expect(message(x.bytes().first(4), f16, y.bytes().first(3), f16), "y has 3 bytes, must be whole elements of 2 bytes");
  expect(message(x.bytes().first(4), f16, y.bytes().first(2), f16), "y has 1 elements, must have 2, as x");
  expect(message(x.bytes().first(8), f16, x.bytes().subspan(2, 8), f16), "y overlaps x");
  expect(message(x.bytes().first(8), f16, x.bytes().first(16), Dtype::kF32), "y overlaps x");
  (void)x.read<uint8_t>();
  (void)y.read<uint8_t>();
}

}  // namespace
}  // namespace isobit::cuda
