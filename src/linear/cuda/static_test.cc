// SPDX-License-Identifier: Apache-2.0
// DeviceStaticLinear against StaticLinearLayer on the CPU, byte for byte.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/codes.h"
#include "core/random.h"
#include "core/rescale.h"
#include "isobit/cuda/linear.h"
#include "isobit/linear.h"
#include "testing/cuda_buffer.h"

namespace isobit::cuda {
namespace {

using testing::GuardedDeviceBuffer;

class CudaStaticLinear : public ::testing::Test {
 protected:
  void SetUp() override { ISOBIT_NEEDS_CUDA_DEVICE(); }
};

/// Ratios of acc to y.
enum class Ratios {
  kSpread,   // to all codes of y and a little more
  kPow2,     // the same, powers of two: ties
  kHalves,   // a half, a quarter, an eighth: most results are ties
  kExtreme,  // shifts from one end to the other
};

struct Case {
  int32_t bits = 8;
  Grid input{};
  std::optional<Grid> output = Grid{};
  int64_t n = 64, k = 128;
  Rounding rounding = Rounding::kNearestEven;
  Ratios ratios = Ratios::kSpread;
  bool ends = false;  // weights and codes at the ends of their ranges
  uint32_t seed = 1;
};

std::string text_of(const Grid& grid) {
  return (grid.is_signed ? "s" : "u") + std::to_string(grid.bits) + " zero " + std::to_string(grid.zero_point);
}
std::string text_of(const Case& c, int64_t m) {
  return std::to_string(c.bits) + " bits, x " + text_of(c.input) + ", y " + (c.output ? text_of(*c.output) : "acc") +
         ", " + std::string(to_string(c.rounding)) + ", ratios " + std::to_string(static_cast<int>(c.ratios)) + " M " +
         std::to_string(m) + " N " + std::to_string(c.n) + " K " + std::to_string(c.k) + " seed " +
         std::to_string(c.seed);
}

Grid random_grid(Random& random, int32_t bits, bool is_signed) {
  Grid grid{.bits = bits, .is_signed = is_signed};
  grid.zero_point = random.between(grid.min(), grid.max());
  return grid;
}

int32_t random_weight(Random& random, int32_t bits) {
  if (bits == 1) return random.one_in(2) ? 1 : -1;
  return static_cast<int32_t>(random.between(code_min(bits, true), code_max(bits, true)));
}

RescaleParameters random_rescale(Random& random, const Case& c, Int128 bound) {
  const auto most = static_cast<double>(bound);
  double ratio = 0;
  switch (c.ratios) {
    case Ratios::kHalves: ratio = 1.0 / static_cast<double>(1 << random.between(1, 3)); break;
    case Ratios::kExtreme: {
      const auto shift = static_cast<int32_t>(random.between(kMinShift, kMaxShift));
      // The largest odd multiplier that the proof lets pass.
      const auto most_products = static_cast<int64_t>(INT64_MAX / std::max<Int128>(bound, 1)) >> std::max(0, 1 - shift);
      if (most_products == 0) return {1, 1};
      return {static_cast<int32_t>((std::min<int64_t>(most_products, INT32_MAX) - 1) | 1), shift};
    }
    default:
      ratio = static_cast<double>(int64_t{1} << c.output->bits) / std::max(most, 1.0) *
              static_cast<double>(random.between(1, 40));
      if (c.ratios == Ratios::kPow2) ratio = std::exp2(std::floor(std::log2(ratio)));
  }
  return encode_ratio(ratio, bound).value();
}

/// |acc| of a row at most.
Int128 bound_of(const StaticLinearParameters& p, int64_t n) {
  Int128 sum = std::abs(static_cast<int64_t>(p.bias.data<int32_t>()[n]));
  for (int64_t k = 0; k < p.columns; ++k)
    sum += std::abs(p.weights.data<int8_t>()[n * p.columns + k]) * largest_difference(p.input);
  return sum;
}

StaticLinearParameters parameters_of(const Case& c) {
  Random random(c.seed);
  StaticLinearParameters p;
  p.rows = c.n;
  p.columns = c.k;
  p.weight_bits = c.bits;
  p.weights = Array::zeros(Dtype::kS8, {c.n, c.k});
  p.scales = Array::zeros(Dtype::kF32, {c.n});
  p.bias = Array::zeros(Dtype::kS32, {c.n});
  p.input = c.input;
  p.output = c.output;
  p.rounding = c.rounding;
  p.lo = std::numeric_limits<int32_t>::min();
  p.hi = std::numeric_limits<int32_t>::max();
  if (c.output) {
    p.lo = static_cast<int32_t>(random.one_in(2) ? c.output->min() : c.output->zero_point);
    p.hi = static_cast<int32_t>(random.one_in(2) ? c.output->max() : random.between(p.lo, c.output->max()));
  }
  for (int64_t n = 0; n < c.n; ++n) {
    p.scales.data<float>()[n] = 3.4e38f;  // no result depends on it
    const int32_t end =
        c.bits == 1 ? 1 : static_cast<int32_t>(random.one_in(2) ? code_min(c.bits, true) : code_max(c.bits, true));
    for (int64_t k = 0; k < c.k; ++k)
      p.weights.data<int8_t>()[n * c.k + k] = static_cast<int8_t>(c.ends ? end : random_weight(random, c.bits));
    const int64_t bias = c.ends && c.output ? std::numeric_limits<int32_t>::max() : 100000;
    p.bias.data<int32_t>()[n] = static_cast<int32_t>(random.between(-bias, bias));
    if (c.output) p.rescales.push_back(random_rescale(random, c, bound_of(p, n)));
  }
  return p;
}

/// Both layers of a case.
struct Both {
  StaticLinearLayer host;
  DeviceStaticLinear device;

  static Both make(const Case& c) {
    Result<StaticLinearLayer> host = StaticLinearLayer::create(parameters_of(c), "fc");
    EXPECT_TRUE(host.ok()) << host.status().message();
    Result<DeviceStaticLinear> device = DeviceStaticLinear::create(*host);
    EXPECT_TRUE(device.ok()) << device.status().message();
    return {*std::move(host), *std::move(device)};
  }
};

std::vector<uint8_t> rows_of(const Case& c, int64_t m, int64_t stride) {
  Random random(c.seed + 1);
  const Grid& grid = c.input;
  const auto size = static_cast<int64_t>(size_in_bytes(grid.dtype()));
  std::vector<uint8_t> bytes(static_cast<size_t>(((m - 1) * stride + c.k) * size), 0x7f);
  for (int64_t i = 0; i < m; ++i) {
    const int64_t end = random.one_in(2) ? grid.min() : grid.max();
    for (int64_t k = 0; k < c.k; ++k)
      store_code(bytes.data(), grid.dtype(), i * stride + k, c.ends ? end : random.between(grid.min(), grid.max()));
  }
  return bytes;
}

int64_t y_bytes(const StaticLinearLayer& layer, int64_t m, const RunOptions& options) {
  const StaticLinearParameters& p = layer.parameters();
  const int64_t stride = options.y_stride == 0 ? p.rows : options.y_stride;
  return ((m - 1) * stride + p.rows) * static_cast<int64_t>(size_in_bytes(p.y_dtype()));
}

std::vector<uint8_t> run_on_host(const StaticLinearLayer& layer, const std::vector<uint8_t>& x, int64_t m,
                                 const RunOptions& options = {}) {
  std::vector<uint8_t> y(static_cast<size_t>(y_bytes(layer, m, options)), GuardedDeviceBuffer::kCanary);
  Workspace workspace = layer.workspace(m);
  const Status status =
      layer.forward_codes(std::as_bytes(std::span(x)), std::as_writable_bytes(std::span(y)), m, workspace, options);
  EXPECT_TRUE(status.ok()) << status.message();
  return y;
}

/// x, y and workspace of runs on the device, as little aligned as allowed.
struct Buffers {
  GuardedDeviceBuffer x, y, workspace;

  Buffers(const DeviceStaticLinear& layer, const std::vector<uint8_t>& values, int64_t m,
          const RunOptions& options = {})
      : x(static_cast<int64_t>(values.size()),
          static_cast<int64_t>(size_in_bytes(layer.layer().parameters().x_dtype()))),
        y(y_bytes(layer.layer(), m, options),
          static_cast<int64_t>(size_in_bytes(layer.layer().parameters().y_dtype()))),
        workspace(layer.workspace_bytes(m)) {
    x.write(values);
  }
  [[nodiscard]] Status run(const DeviceStaticLinear& layer, int64_t m, const RunOptions& options = {}) const {
    return layer.forward_codes(x.bytes(), y.bytes(), m, workspace.bytes(), options);
  }
};

/// More than 16 rows of planes use stages of shared memory again, which racecheck cannot follow (cuda_buffer.h).
int64_t most_rows(int64_t m) { return testing::racecheck() ? std::min<int64_t>(m, 8) : m; }

void expect_same_bytes(const Case& c, int64_t rows, const RunOptions& options = {}) {
  const int64_t m = most_rows(rows);
  SCOPED_TRACE(text_of(c, m));
  const Both both = Both::make(c);
  const std::vector<uint8_t> x = rows_of(c, m, options.x_stride == 0 ? c.k : options.x_stride);
  const std::vector<uint8_t> expected = run_on_host(both.host, x, m, options);
  const Buffers buffers(both.device, x, m, options);
  const Status status = buffers.run(both.device, m, options);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(both.device.check_input(buffers.workspace.bytes(), m, nullptr).message(), "");
  (void)buffers.workspace.read<uint8_t>();
  const std::vector<uint8_t> y = buffers.y.read<uint8_t>();
  ASSERT_EQ(y.size(), expected.size());
  const auto first = std::mismatch(y.begin(), y.end(), expected.begin()).first;
  EXPECT_EQ(first, y.end()) << "byte " << first - y.begin() << " of " << y.size();
}

constexpr int32_t kWeightBits[] = {8, 4, 2, 1};

TEST_F(CudaStaticLinear, BytesOfTheHost) {
  Random random(1);
  uint32_t seed = 0;
  for (const int32_t bits : kWeightBits)
    for (const int32_t x_bits : {2, 5, 8, 9, 16})
      for (const bool x_signed : {true, false})
        for (const int32_t y_bits : {0, 3, 8, 11, 16}) {
          ++seed;
          Case c{.bits = bits,
                 .input = random_grid(random, x_bits, x_signed),
                 .output = {},
                 .n = 1 + seed * 37 % 200,
                 .k = 1 + seed * 53 % 1100,
                 .rounding = kAllRoundings[seed % 4],
                 .ratios = seed % 3 == 0 ? Ratios::kPow2 : Ratios::kSpread,
                 .ends = y_bits > 0 && seed % 7 == 0,
                 .seed = seed};
          constexpr int64_t kMostOfAccumulators = 200;  // columns: acc must fit int32, with any grid of x
          if (y_bits == 0) c.k = 1 + c.k % kMostOfAccumulators;
          if (y_bits > 0) c.output = random_grid(random, y_bits, seed % 2 == 0);
          const int64_t m = 1 + seed * 7 % 40;
          RunOptions options;
          if (seed % 2 == 0) options.x_stride = c.k + 3, options.y_stride = c.n + 5;
          expect_same_bytes(c, m, options);
        }
}

TEST_F(CudaStaticLinear, EveryNumberOfRows) {
  for (const int32_t bits : {8, 16})
    for (int64_t m = 1; m <= (testing::sanitized() ? 18 : 40); ++m)
      expect_same_bytes({.bits = 4, .input = {.bits = bits}, .n = 130, .k = 4500, .seed = 7}, m);
}

TEST_F(CudaStaticLinear, Ties) {
  uint32_t seed = 0;
  for (const Rounding rounding : kAllRoundings)
    for (const Ratios ratios : {Ratios::kHalves, Ratios::kPow2, Ratios::kExtreme})
      for (const int32_t x_bits : {4, 16}) {
        ++seed;
        for (const int32_t y_bits : {8, 16})
          expect_same_bytes({.bits = 2,
                             .input = {.bits = x_bits},
                             .output = Grid{.bits = y_bits, .zero_point = 5},
                             .n = 100,
                             .k = 90,
                             .rounding = rounding,
                             .ratios = ratios,
                             .seed = seed},
                            19);
      }
}

/// Accumulators of more than 32 bits, and all that saturates.
TEST_F(CudaStaticLinear, TheEndsOfAllRanges) {
  constexpr int64_t kMostColumns = 65793;
  uint32_t seed = 0;
  for (const int32_t x_bits : {8, 16})
    for (const bool x_signed : {true, false})
      for (const bool last : {true, false})
        for (const Ratios ratios : {Ratios::kSpread, Ratios::kExtreme}) {
          ++seed;
          Grid input{.bits = x_bits, .is_signed = x_signed};
          input.zero_point = last ? input.max() : input.min();
          for (const int32_t bits : kWeightBits)
            expect_same_bytes({.bits = bits,
                               .input = input,
                               .output = Grid{.bits = 16, .zero_point = last ? 32767 : -32768},
                               .n = 70,
                               .k = testing::sanitized() ? 3000 : kMostColumns,
                               .rounding = kAllRoundings[seed % 4],
                               .ratios = ratios,
                               .ends = true,
                               .seed = seed},
                              9);
        }
}

TEST_F(CudaStaticLinear, LargeLayers) {
  if (testing::sanitized()) GTEST_SKIP() << "small layers only under sanitizers";
  for (const int32_t bits : kWeightBits)
    for (const int32_t x_bits : {8, 16})
      for (const int64_t m : {1, 13, 200})
        expect_same_bytes({.bits = bits, .input = {.bits = x_bits, .zero_point = 3}, .n = 1000, .k = 8192, .seed = 3},
                          m);
}

TEST_F(CudaStaticLinear, CodesOutsideTheGrid) {
  if (testing::racecheck()) GTEST_SKIP() << "more rows than racecheck can follow (most_rows)";
  for (const int32_t x_bits : {5, 13}) {
    const Case c{
        .bits = 4, .input = {.bits = x_bits, .is_signed = false, .zero_point = 7}, .n = 70, .k = 300, .seed = 5};
    const Both both = Both::make(c);
    constexpr int64_t kRows = 20;
    const Dtype dtype = c.input.dtype();
    std::vector<uint8_t> x = rows_of(c, kRows, c.k);
    std::vector<uint8_t> nearer = x;
    for (const int64_t place : {7 * c.k + 200, 7 * c.k + 290, 12 * c.k}) {
      store_code(x.data(), dtype, place, c.input.max() + place % 100 + 1);
      store_code(nearer.data(), dtype, place, c.input.max());
    }
    const Buffers buffers(both.device, x, kRows);
    ASSERT_TRUE(buffers.run(both.device, kRows).ok());
    EXPECT_EQ(buffers.y.read<uint8_t>(), run_on_host(both.host, nearer, kRows));
    const Status status = both.device.check_input(buffers.workspace.bytes(), kRows, nullptr);
    Workspace workspace = both.host.workspace(kRows);
    std::vector<std::byte> y(static_cast<size_t>(y_bytes(both.host, kRows, {})));
    const Status of_host = both.host.forward_codes(std::as_bytes(std::span(x)), y, kRows, workspace);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), of_host.message());
    EXPECT_EQ(both.device.check_input(buffers.workspace.bytes().subspan(0, 256), kRows, nullptr).message(),
              "workspace has 256 bytes, must be that of a run of 20 rows");
  }
}

TEST_F(CudaStaticLinear, TwoStreamsAtOnce) {
  const Case c{.bits = 4, .input = {.bits = 16}, .n = 700, .k = 4096, .seed = 17};
  const Both both = Both::make(c);
  const int64_t rows = most_rows(11);
  const std::vector<uint8_t> x = rows_of(c, rows, c.k);
  const std::vector<uint8_t> expected = run_on_host(both.host, x, rows);
  const Buffers one(both.device, x, rows), two(both.device, x, rows);
  const testing::Stream first, second;
  for (int run = 0; run < (testing::sanitized() ? 3 : 300); ++run) {
    ASSERT_EQ(cudaMemsetAsync(one.y.data(), 0, one.y.bytes().size(), first.stream), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(two.y.data(), 0, two.y.bytes().size(), second.stream), cudaSuccess);
    for (int again = 0; again < 3; ++again) {
      ASSERT_TRUE(one.run(both.device, rows, {.stream = first.stream}).ok());
      ASSERT_TRUE(two.run(both.device, rows, {.stream = second.stream}).ok());
    }
    ASSERT_EQ(cudaStreamSynchronize(first.stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(second.stream), cudaSuccess);
    ASSERT_EQ(one.y.read<uint8_t>(), expected) << "run " << run;
    ASSERT_EQ(two.y.read<uint8_t>(), expected) << "run " << run;
  }
}

TEST_F(CudaStaticLinear, InAGraph) {
  const Case c{.bits = 2, .input = {.bits = 7}, .n = 300, .k = 2000, .seed = 19};
  const Both both = Both::make(c);
  const int64_t rows_of_x = most_rows(21);
  const std::vector<uint8_t> x = rows_of(c, rows_of_x, c.k);
  Buffers buffers(both.device, x, rows_of_x);
  const testing::Stream stream;
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  const Status status = buffers.run(both.device, rows_of_x, {.stream = stream.stream});
  ASSERT_EQ(cudaStreamEndCapture(stream.stream, &graph), cudaSuccess);
  ASSERT_TRUE(status.ok()) << status.message();
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  const Case other{.bits = 2, .input = {.bits = 7}, .n = 300, .k = 2000, .seed = 23};
  for (const std::vector<uint8_t>& rows : {x, rows_of(other, rows_of_x, c.k)}) {
    buffers.x.write(rows);
    ASSERT_EQ(cudaGraphLaunch(executable, stream.stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream.stream), cudaSuccess);
    EXPECT_EQ(buffers.y.read<uint8_t>(), run_on_host(both.host, rows, rows_of_x));
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(CudaStaticLinear, RefusesWhatCannotRun) {
  const Case c{.bits = 4, .input = {.bits = 16}, .n = 8, .k = 100};
  const Both both = Both::make(c);
  const DeviceStaticLinear& layer = both.device;
  EXPECT_EQ(layer.layer().name(), "fc");
  const GuardedDeviceBuffer x(2 * 100 * 2), y(2 * 8), workspace(layer.workspace_bytes(2));
  const auto message = [&](std::span<std::byte> from, std::span<std::byte> to, std::span<std::byte> scratch,
                           const RunOptions& options = {},
                           int64_t m = 2) { return layer.forward_codes(from, to, m, scratch, options).message(); };
  EXPECT_EQ(message(x.bytes(), y.bytes(), workspace.bytes()), "");
  EXPECT_EQ(message({}, {}, {}, {}, 0), "");
  EXPECT_EQ(message(x.bytes(), y.bytes(), workspace.bytes(), {}, -1), "m is -1, must be at least 0");
  EXPECT_EQ(layer.forward(x.bytes(), Dtype::kS8, y.bytes(), Dtype::kS8, 2, workspace.bytes()).code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(layer.forward(x.bytes(), Dtype::kS16, y.bytes(), Dtype::kS32, 2, workspace.bytes()).code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(message(x.bytes(), x.bytes().subspan(3), workspace.bytes()), "y overlaps x, must be apart from it");
  EXPECT_EQ(message(x.bytes(), workspace.bytes(), workspace.bytes()), "workspace overlaps y, must not");
  EXPECT_EQ(message(x.bytes(), y.bytes(), workspace.bytes().subspan(0, 256)),
            "workspace has 256 bytes, must have " + std::to_string(layer.workspace_bytes(2)) +
                " for 2 rows (workspace_bytes)");
  EXPECT_EQ(message(x.bytes(), y.bytes(), workspace.bytes().subspan(16)), "workspace is not aligned to 256 bytes");
  EXPECT_NE(
      message(x.bytes().subspan(1), y.bytes(), workspace.bytes(), {}, 1).find(", must be a multiple of 2 for s16"),
      std::string::npos);
  std::vector<std::byte> host(2 * 100 * 2);
  EXPECT_EQ(message(host, y.bytes(), workspace.bytes()), "x is host memory, must be memory of device 0");
  EXPECT_EQ(message(x.bytes(), host, workspace.bytes()), "y is host memory, must be memory of device 0");
  ThreadPool pool(1);
  EXPECT_NE(message(x.bytes(), y.bytes(), workspace.bytes(), {.pool = &pool}).find("pool"), std::string::npos);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  const Result<StaticLinearLayer> wide =
      StaticLinearLayer::create(parameters_of({.bits = 2, .input = {.bits = 8}, .n = 1, .k = 65794}), "fc");
  ASSERT_TRUE(wide.ok()) << wide.status().message();
  EXPECT_EQ(DeviceStaticLinear::create(*wide).status().message(), "fc: K is 65794, must be at most 65793 on a device");
}

}  // namespace
}  // namespace isobit::cuda
