// SPDX-License-Identifier: Apache-2.0
// DeviceLinear against LinearLayer on the CPU, byte for byte where activations are quantised; within section 10's
// bounds for float activations, whose rows must not depend on their batch.
#include "isobit/cuda/linear.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/codes.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "linear/layer_reference.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

using testing::GuardedDeviceBuffer;

class CudaLinear : public ::testing::Test {
 protected:
  void SetUp() override { ISOBIT_NEEDS_CUDA_DEVICE(); }
};

struct Case {
  int32_t bits = 4;
  LowBitKind kind = LowBitKind::kSymmetric;
  int64_t n = 64, k = 128, group = 128;
  LinearActivations activations = LinearActivations::kInt8;
  Dtype scales = Dtype::kF32;
  bool bias = false, clamp = false;
  uint32_t seed = 1;
};

/// From 17 rows on stages of shared memory are used again, which racecheck cannot follow (cuda_buffer.h).
int64_t most_rows(int64_t m) { return testing::racecheck() ? std::min<int64_t>(m, 16) : m; }

std::string text_of(const Case& c, int64_t m) {
  return std::to_string(c.bits) + " bits " + std::string(to_string(c.kind)) + " " +
         std::string(to_string(c.activations)) + " M " + std::to_string(m) + " N " + std::to_string(c.n) + " K " +
         std::to_string(c.k) + " group " + std::to_string(c.group) + " seed " + std::to_string(c.seed);
}

std::vector<float> floats(std::mt19937& random, int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

LowBitMatrix matrix_of(const Case& c) {
  std::mt19937 random(c.seed);
  Array weights = Array::zeros(Dtype::kF32, {c.n, c.k});
  const std::vector<float> values = floats(random, c.n * c.k);
  std::copy(values.begin(), values.end(), weights.data<float>());
  const Result<LowBitMatrix> matrix =
      quantize_low_bit(weights,
                       {.bits = c.bits,
                        .group = c.group,
                        .kind = c.kind,
                        .method = c.kind == LowBitKind::kSymmetric ? LowBitMethod::kAbsmax : LowBitMethod::kMinmax,
                        .scales = c.scales},
                       "W");
  EXPECT_TRUE(matrix.ok()) << matrix.status().message();
  return *matrix;
}

/// Both layers of a case, and what runs of them give.
struct Both {
  LowBitMatrix matrix;
  std::vector<float> bias;
  LinearOptions options;
  LinearLayer host;
  DeviceLinear device;

  static Both make(const Case& c) {
    LowBitMatrix matrix = matrix_of(c);
    std::mt19937 random(c.seed + 1);
    std::vector<float> bias;
    if (c.bias) bias = floats(random, c.n);
    LinearOptions options;
    options.activations = c.activations;
    options.bias = bias;
    if (c.clamp) options.clamp = {-0.5f, 2.0f};
    Result<LinearLayer> host = LinearLayer::create(matrix, options, "fc");
    Result<DeviceLinear> device = DeviceLinear::create(matrix, options, "fc");
    EXPECT_TRUE(host.ok()) << host.status().message();
    EXPECT_TRUE(device.ok()) << device.status().message();
    return {std::move(matrix), std::move(bias), options, *std::move(host), *std::move(device)};
  }
};

std::vector<uint8_t> rows_of(std::mt19937& random, int64_t m, int64_t columns, int64_t stride, Dtype dtype) {
  const auto size = static_cast<int64_t>(size_in_bytes(dtype));
  std::vector<uint8_t> bytes(static_cast<size_t>(((m - 1) * stride + columns) * size), 0x7f);
  for (int64_t i = 0; i < m; ++i) {
    const std::vector<float> values = floats(random, columns);
    for (int64_t k = 0; k < columns; ++k) {
      if (dtype == Dtype::kF64) {
        const double value = static_cast<double>(values[static_cast<size_t>(k)]) * 1.000000123;
        std::memcpy(bytes.data() + (i * stride + k) * size, &value, sizeof value);
      } else {
        store_float(bytes.data(), dtype, i * stride + k, values[static_cast<size_t>(k)]);
      }
    }
  }
  return bytes;
}

std::vector<uint8_t> run_on_device(const DeviceLinear& layer, const std::vector<uint8_t>& x, Dtype x_dtype,
                                   Dtype y_dtype, int64_t m, const RunOptions& options) {
  const int64_t y_stride = options.y_stride == 0 ? layer.rows() : options.y_stride;
  const int64_t y_bytes = ((m - 1) * y_stride + layer.rows()) * static_cast<int64_t>(size_in_bytes(y_dtype));
  const GuardedDeviceBuffer on_device_x(static_cast<int64_t>(x.size()), 8), y(y_bytes, 8),
      workspace(layer.workspace_bytes(m));
  const_cast<GuardedDeviceBuffer&>(on_device_x).write(x);
  const Status status = layer.forward(on_device_x.bytes(), x_dtype, y.bytes(), y_dtype, m, workspace.bytes(), options);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  (void)workspace.read<uint8_t>();
  return y.read<uint8_t>();
}

std::vector<uint8_t> run_on_host(const LinearLayer& layer, const std::vector<uint8_t>& x, Dtype x_dtype, Dtype y_dtype,
                                 int64_t m, const RunOptions& options) {
  const int64_t y_stride = options.y_stride == 0 ? layer.rows() : options.y_stride;
  std::vector<uint8_t> y(
      static_cast<size_t>(((m - 1) * y_stride + layer.rows()) * static_cast<int64_t>(size_in_bytes(y_dtype))),
      GuardedDeviceBuffer::kCanary);
  Workspace workspace = layer.workspace(m);
  const Status status = layer.forward(std::as_bytes(std::span(x)), x_dtype, std::as_writable_bytes(std::span(y)),
                                      y_dtype, m, workspace, options);
  EXPECT_TRUE(status.ok()) << status.message();
  return y;
}

void expect_same_bytes(const Case& c, int64_t rows, Dtype x_dtype, Dtype y_dtype, RunOptions options = {}) {
  const int64_t m = most_rows(rows);
  SCOPED_TRACE(text_of(c, m));
  const Both both = Both::make(c);
  std::mt19937 random(c.seed + 2);
  const std::vector<uint8_t> x = rows_of(random, m, c.k, options.x_stride == 0 ? c.k : options.x_stride, x_dtype);
  const std::vector<uint8_t> expected = run_on_host(both.host, x, x_dtype, y_dtype, m, options);
  const std::vector<uint8_t> y = run_on_device(both.device, x, x_dtype, y_dtype, m, options);
  ASSERT_EQ(y.size(), expected.size());
  const auto first = std::mismatch(y.begin(), y.end(), expected.begin()).first;
  EXPECT_EQ(first, y.end()) << "byte " << first - y.begin() << " of " << y.size();
}

constexpr LowBitKind kKinds[] = {LowBitKind::kSymmetric, LowBitKind::kZeroPoint, LowBitKind::kOffset};
constexpr LinearActivations kQuantised[] = {LinearActivations::kInt8, LinearActivations::kInt8Asymmetric};

TEST_F(CudaLinear, BytesOfTheHost) {
  uint32_t seed = 0;
  for (const int32_t bits : {8, 4, 2, 1})
    for (const LowBitKind kind : kKinds)
      for (const LinearActivations activations : kQuantised)
        for (const int64_t group : {16, 32, 40, 64, 96, 128, 256, 1000}) {
          ++seed;
          const int64_t k = group == 1000 ? 1000 : 24 + group * (seed % 5 + 3);
          expect_same_bytes({.bits = bits,
                             .kind = kind,
                             .n = 1 + seed * 37 % 200,
                             .k = k,
                             .group = group,
                             .activations = activations,
                             .bias = seed % 2 == 0,
                             .clamp = seed % 3 == 0,
                             .seed = seed},
                            1 + (seed % 4 == 0 ? seed * 13 % 300 : seed * 7 % 35), Dtype::kF32, Dtype::kF32);
        }
}

TEST_F(CudaLinear, EveryNumberOfRows) {
  for (int64_t m = 1; m <= (testing::sanitized() ? 18 : 70); ++m)
    expect_same_bytes({.bits = 4, .n = 130, .k = 4500, .group = 128, .seed = 7}, m, Dtype::kF32, Dtype::kF32);
}

TEST_F(CudaLinear, LargeLayers) {
  if (testing::sanitized()) GTEST_SKIP() << "small layers only under sanitizers";
  for (const int32_t bits : {8, 4, 2, 1})
    for (const int64_t group : {32, 128, 512, 4096})
      for (const int64_t m : {1, 13, 64, 300})
        expect_same_bytes({.bits = bits, .n = 1000, .k = 8192, .group = group == 4096 ? 8192 : group, .seed = 3}, m,
                          Dtype::kF16, Dtype::kF16);
}

TEST_F(CudaLinear, TypesAndStrides) {
  for (const Dtype x : {Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kF64})
    for (const Dtype y : {Dtype::kF32, Dtype::kF16, Dtype::kBF16})
      expect_same_bytes({.bits = 4, .n = 77, .k = 300, .group = 64, .bias = true, .seed = 11}, 9, x, y,
                        {.x_stride = 313, .y_stride = 79});
}

/// y as float32.
std::vector<float> widened(const std::vector<uint8_t>& bytes, Dtype dtype) {
  std::vector<float> values(bytes.size() / size_in_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) values[i] = load_float(bytes.data(), dtype, static_cast<int64_t>(i));
  return values;
}

class CudaLinearFloats : public CudaLinear, public ::testing::WithParamInterface<Dtype> {
 protected:
  void SetUp() override {
    CudaLinear::SetUp();
    if (testing::racecheck() && GetParam() == Dtype::kF32)
      GTEST_SKIP() << "rows of float32 leave room for so few stages that these are used again (cuda_buffer.h)";
  }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaLinearFloats, ::testing::Values(Dtype::kF16, Dtype::kBF16, Dtype::kF32),
                         [](const auto& type) { return std::string(to_string(type.param)); });

TEST_P(CudaLinearFloats, AreWithinTheBound) {
  const Dtype dtype = GetParam();
  uint32_t seed = 0;
  double worst = 0;
  for (const int32_t bits : {8, 4, 2, 1})
    for (const LowBitKind kind : kKinds)
      for (const int64_t group : {16, 64, 96, 128, 256, 1000}) {
        ++seed;
        const Case c{.bits = bits,
                     .kind = kind,
                     .n = 1 + seed * 37 % 90,
                     .k = group == 1000 ? 1000 : 24 + group * (seed % 5 + 3),
                     .group = group,
                     .activations = LinearActivations::kFloat,
                     .bias = seed % 2 == 0,
                     .seed = seed};
        const int64_t m = most_rows(1 + (seed % 3 == 0 ? seed * 11 % 150 : seed * 5 % 20));
        SCOPED_TRACE(text_of(c, m) + " " + std::string(to_string(dtype)));
        const Both both = Both::make(c);
        std::mt19937 random(seed);
        const std::vector<uint8_t> x = rows_of(random, m, c.k, c.k, dtype);
        const std::vector<float> y = widened(run_on_device(both.device, x, dtype, dtype, m, {}), dtype);
        const ReferenceWeights weights = reference_weights(both.matrix);
        const std::vector<float> wide = widened(x, dtype);
        for (int64_t i = 0; i < m; ++i) {
          ReferenceRowError error;
          for (int64_t n = 0; n < c.n; ++n)
            error.add(static_cast<double>(y[static_cast<size_t>(i * c.n + n)]),
                      reference_sum(weights, n, wide.data() + i * c.k,
                                    both.bias.empty() ? 0.0f : both.bias[static_cast<size_t>(n)]));
          const double share = error.relative(c.k) / reference_limit(dtype, c.k);
          worst = std::max(worst, share);
          EXPECT_LT(share, 1);
        }
      }
  RecordProperty("worst_share_of_the_bound", std::to_string(worst));
}

/// A row alone gives the bytes of the row in any batch.
TEST_P(CudaLinearFloats, DoNotDependOnTheirBatch) {
  const Dtype dtype = GetParam();
  for (const int64_t group : {32, 128}) {
    const Case c{.bits = 4,
                 .kind = LowBitKind::kZeroPoint,
                 .n = 100,
                 .k = 2500,
                 .group = group,
                 .activations = LinearActivations::kFloat,
                 .seed = 5};
    const Both both = Both::make(c);
    const int64_t rows = most_rows(testing::sanitized() ? 37 : 140);
    std::mt19937 random(9);
    const std::vector<uint8_t> x = rows_of(random, rows, c.k, c.k, dtype);
    const std::vector<uint8_t> all = run_on_device(both.device, x, dtype, dtype, rows, {});
    const auto size = static_cast<int64_t>(size_in_bytes(dtype));
    for (int64_t m = 1; m <= rows; m += testing::sanitized() ? 12 : m < 18 ? 1 : 9) {
      const std::vector<uint8_t> some(x.begin(), x.begin() + m * c.k * size);
      const std::vector<uint8_t> y = run_on_device(both.device, some, dtype, dtype, m, {});
      EXPECT_TRUE(std::equal(y.begin(), y.end(), all.begin())) << m << " rows of " << to_string(dtype);
    }
  }
}

TEST_F(CudaLinear, RowsThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Case c{.bits = 4, .n = 70, .k = 256, .group = 64, .clamp = true, .seed = 13};
  const Both both = Both::make(c);
  std::mt19937 random(1);
  const int64_t rows = most_rows(20);
  std::vector<uint8_t> x = rows_of(random, rows, c.k, c.k, Dtype::kF32);
  store_float(x.data(), Dtype::kF32, 7 * c.k + 200, infinity);
  store_float(x.data(), Dtype::kF32, 12 * c.k, std::numeric_limits<float>::quiet_NaN());
  const std::vector<uint8_t> expected = run_on_host(both.host, x, Dtype::kF32, Dtype::kBF16, rows, {.unchecked = true});
  GuardedDeviceBuffer on_device_x(static_cast<int64_t>(x.size())), y(rows * c.n * 2),
      workspace(both.device.workspace_bytes(rows));
  on_device_x.write(x);
  ASSERT_TRUE(
      both.device.forward(on_device_x.bytes(), Dtype::kF32, y.bytes(), Dtype::kBF16, rows, workspace.bytes()).ok());
  const Status status = both.device.check_input(workspace.bytes(), rows, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "x[7] has a NaN, an infinity, or a group whose range is infinite, must be finite");
  EXPECT_EQ(y.read<uint8_t>(), expected);
}

TEST_F(CudaLinear, TheSameBytesEachTime) {
  const Case c{.bits = 4, .n = 700, .k = 4096, .group = 64, .seed = 17};
  const Both both = Both::make(c);
  std::mt19937 random(1);
  constexpr int64_t kRows = 11;
  const std::vector<uint8_t> x = rows_of(random, kRows, c.k, c.k, Dtype::kF32);
  GuardedDeviceBuffer on_device_x(static_cast<int64_t>(x.size())), y(kRows * c.n * 4),
      workspace(both.device.workspace_bytes(kRows));
  on_device_x.write(x);
  std::vector<uint8_t> first;
  for (int run = 0; run < (testing::sanitized() ? 3 : 1000); ++run) {
    ASSERT_TRUE(
        both.device.forward(on_device_x.bytes(), Dtype::kF32, y.bytes(), Dtype::kF32, kRows, workspace.bytes()).ok());
    const std::vector<uint8_t> bytes = y.read<uint8_t>();
    if (run == 0) first = bytes;
    ASSERT_EQ(bytes, first) << "run " << run;
  }
}

/// Memory of a run.
struct Buffers {
  GuardedDeviceBuffer x, y, workspace;
  int64_t m;

  Buffers(const DeviceLinear& layer, const std::vector<uint8_t>& values, int64_t rows)
      : x(static_cast<int64_t>(values.size())),
        y(rows * layer.rows() * 4),
        workspace(layer.workspace_bytes(rows)),
        m(rows) {
    x.write(values);
  }
  [[nodiscard]] Status run(const DeviceLinear& layer, cudaStream_t stream) const {
    return layer.forward(x.bytes(), Dtype::kF32, y.bytes(), Dtype::kF32, m, workspace.bytes(), {.stream = stream});
  }
};

TEST_F(CudaLinear, TwoStreamsAtOnce) {
  const Case c{.bits = 4, .n = 700, .k = 4096, .group = 64, .seed = 19};
  const Both both = Both::make(c);
  std::mt19937 random(1);
  const int64_t few = 5, many = most_rows(70);
  const std::vector<uint8_t> x = rows_of(random, many, c.k, c.k, Dtype::kF32);
  const std::vector<uint8_t> x_few(x.begin(), x.begin() + few * c.k * 4);
  const Buffers one(both.device, x_few, few), two(both.device, x, many);
  const testing::Stream first, second;
  for (int run = 0; run < (testing::sanitized() ? 3 : 300); ++run) {
    ASSERT_EQ(cudaMemsetAsync(one.y.data(), 0, one.y.bytes().size(), first.stream), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(two.y.data(), 0, two.y.bytes().size(), second.stream), cudaSuccess);
    for (int again = 0; again < 3; ++again) {
      ASSERT_TRUE(one.run(both.device, first.stream).ok());
      ASSERT_TRUE(two.run(both.device, second.stream).ok());
    }
    ASSERT_EQ(cudaStreamSynchronize(first.stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(second.stream), cudaSuccess);
    if (run % 50 != 0) continue;
    ASSERT_EQ(one.y.read<uint8_t>(), run_on_host(both.host, x_few, Dtype::kF32, Dtype::kF32, few, {})) << "run " << run;
    ASSERT_EQ(two.y.read<uint8_t>(), run_on_host(both.host, x, Dtype::kF32, Dtype::kF32, many, {})) << "run " << run;
  }
}

TEST_F(CudaLinear, InAGraph) {
  for (const int64_t m : {int64_t{3}, most_rows(40)}) {
    const Case c{.bits = 2, .n = 300, .k = 2000, .group = 128, .seed = 23};
    const Both both = Both::make(c);
    std::mt19937 random(1);
    std::vector<uint8_t> x = rows_of(random, m, c.k, c.k, Dtype::kF32);
    Buffers buffers(both.device, x, m);
    const testing::Stream stream;
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    const Status status = buffers.run(both.device, stream.stream);
    ASSERT_EQ(cudaStreamEndCapture(stream.stream, &graph), cudaSuccess);
    ASSERT_TRUE(status.ok()) << status.message();
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    for (int run = 0; run < 2; ++run) {
      buffers.x.write(x);
      ASSERT_EQ(cudaGraphLaunch(executable, stream.stream), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream.stream), cudaSuccess);
      EXPECT_EQ(buffers.y.read<uint8_t>(), run_on_host(both.host, x, Dtype::kF32, Dtype::kF32, m, {})) << m << " rows";
      x = rows_of(random, m, c.k, c.k, Dtype::kF32);
    }
    EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
}

TEST_F(CudaLinear, RefusesWhatCannotRun) {
  const Both both = Both::make({.n = 8, .k = 128, .group = 32});
  GuardedDeviceBuffer x(2 * 128 * 4), y(2 * 8 * 4), workspace(both.device.workspace_bytes(2));
  const auto message = [&](std::span<std::byte> from, std::span<std::byte> to, std::span<std::byte> scratch,
                           const RunOptions& options = {}) {
    return both.device.forward(from, Dtype::kF32, to, Dtype::kF32, 2, scratch, options).message();
  };
  EXPECT_EQ(message(x.bytes(), y.bytes(), workspace.bytes()), "");
  EXPECT_EQ(message(x.bytes(), x.bytes().subspan(4), workspace.bytes()), "y overlaps x, must be apart from it");
  EXPECT_EQ(message(x.bytes(), workspace.bytes(), workspace.bytes()), "workspace overlaps y, must not");
  EXPECT_EQ(message(x.bytes(), y.bytes(), workspace.bytes().subspan(0, 256)),
            "workspace has 256 bytes, must have 4608 for 2 rows (workspace_bytes)");
  EXPECT_EQ(message(x.bytes(), y.bytes(), workspace.bytes().subspan(16)), "workspace is not aligned to 256 bytes");
  std::vector<std::byte> host(2 * 128 * 4);
  EXPECT_EQ(message(host, y.bytes(), workspace.bytes()), "x is host memory, must be memory of device 0");
  const Case c{.n = 8, .k = 128, .group = 32};
  const LowBitMatrix matrix = matrix_of(c);
  EXPECT_EQ(DeviceLinear::create(matrix, {.path = CpuPath::kScalar}, "fc").status().message(),
            "fc: path is scalar, must be empty for a layer on a device");
}

}  // namespace
}  // namespace isobit::cuda
