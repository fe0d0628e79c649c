// SPDX-License-Identifier: Apache-2.0
// Linear layers at their door: what is refused and how, threads, strides, memory; and the random layers of verify.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/codes.h"
#include "isobit/linear.h"
#include "isobit/verify.h"
#include "linear/layer_engine.h"
#include "linear/layer_parts.h"
#include "testing/guarded_bytes.h"

namespace isobit {
namespace {

using testing::GuardedBytes;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Array random_floats(int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  Array out = Array::zeros(Dtype::kF32, {rows, columns});
  for (int64_t i = 0; i < out.size(); ++i) out.data<float>()[i] = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  return out;
}

LowBitMatrix random_matrix(int64_t rows, int64_t columns, LowBitOptions options) {
  if (options.kind != LowBitKind::kSymmetric) options.method = LowBitMethod::kMinmax;
  return *quantize_low_bit(random_floats(rows, columns, 1), options, "W");
}

LinearLayer layer_of(const LowBitMatrix& matrix, const LinearOptions& options) {
  const Result<LinearLayer> layer = LinearLayer::create(matrix, options, "fc");
  EXPECT_TRUE(layer.ok()) << layer.status().message();
  return *layer;
}

void expect_refused(const Status& status, StatusCode code, const std::string& message) {
  EXPECT_EQ(status.code(), code);
  EXPECT_EQ(status.message(), message);
}

/// Ready for calls that are refused.
struct Small {
  LowBitMatrix matrix = random_matrix(3, 16, {.bits = 4, .group = 8});
  LinearLayer layer = layer_of(matrix, {.activations = LinearActivations::kInt8});
  Workspace workspace = layer.workspace(2);
  std::vector<float> x = std::vector<float>(32, 0.5f);
  std::vector<float> y = std::vector<float>(6, 7.0f);

  Status run(int64_t m = 2, Dtype x_dtype = Dtype::kF32, Dtype y_dtype = Dtype::kF32, const RunOptions& options = {}) {
    return layer.forward(std::as_bytes(std::span(x)), x_dtype, std::as_writable_bytes(std::span(y)), y_dtype, m,
                         workspace, options);
  }
};

TEST(LinearLayer, Tokens) {
  for (const auto activations :
       {LinearActivations::kFloat, LinearActivations::kInt8, LinearActivations::kInt8Asymmetric})
    EXPECT_EQ(linear_activations_from_string(to_string(activations)), activations);
  EXPECT_EQ(linear_activations_from_string("int4"), std::nullopt);
}

TEST(LinearLayer, RefusesOptions) {
  const LowBitMatrix matrix = random_matrix(3, 16, {.bits = 4, .group = 8});
  const auto status = [&](const LinearOptions& options) { return LinearLayer::create(matrix, options, "fc").status(); };
  const std::vector<float> bias(2);
  expect_refused(status({.bias = bias}), StatusCode::kInvalidArgument, "fc: bias has 2 elements, must have 3 or none");
  expect_refused(status({.clamp = {kNan, 1}}), StatusCode::kInvalidArgument, "fc: clamp.lo is NaN, must be a number");
  expect_refused(status({.clamp = {0, kNan}}), StatusCode::kInvalidArgument, "fc: clamp.hi is NaN, must be a number");
  expect_refused(status({.clamp = {1, 0.5f}}), StatusCode::kInvalidArgument,
                 "fc: clamp.lo is 1, must be at most clamp.hi, 0.5");
  expect_refused(status({.activations = static_cast<LinearActivations>(3)}), StatusCode::kInvalidArgument,
                 "fc: activations is 3, must be 0..2");
  expect_refused(status({.path = static_cast<CpuPath>(9)}), StatusCode::kInvalidArgument,
                 "fc: path is 9, must be 0..5");
  for (const CpuPath path : kAllCpuPaths)
    if (!cpu_can_run(path))
      expect_refused(
          status({.path = path}), StatusCode::kFailedPrecondition,
          "fc: path " + std::string(to_string(path)) + " cannot run here: " + std::string(cpu_cannot_run_reason(path)));
}

TEST(LinearLayer, RefusesTypes) {
  Small small;
  expect_refused(small.run(2, Dtype::kS8), StatusCode::kUnsupported, "x is of type s8, must be f32, f16, bf16 or f64");
  expect_refused(small.run(2, Dtype::kF32, Dtype::kF64), StatusCode::kUnsupported,
                 "y is of type f64, must be f32, f16 or bf16");
  small.layer = layer_of(small.matrix, {});
  expect_refused(small.run(2, Dtype::kF64), StatusCode::kUnsupported, "x is of type f64, must be f32, f16 or bf16");
  expect_refused(small.run(2, Dtype::kF32, Dtype::kF16), StatusCode::kUnsupported,
                 "y is of type f16, must be that of x, f32, in a layer of float activations");
}

TEST(LinearLayer, RefusesSizes) {
  Small small;
  expect_refused(small.run(-1), StatusCode::kInvalidArgument, "m is -1, must be at least 0");
  expect_refused(small.run(3), StatusCode::kInvalidArgument,
                 "x has 128 bytes, must have at least 192: 3 rows of 16 elements of f32, 16 from one to the next");
  small.y.pop_back();
  expect_refused(small.run(2), StatusCode::kInvalidArgument,
                 "y has 20 bytes, must have at least 24: 2 rows of 3 elements of f32, 3 from one to the next");
  expect_refused(small.run(2, Dtype::kF32, Dtype::kF32, {.x_stride = 15}), StatusCode::kInvalidArgument,
                 "x_stride is 15, must be at least 16, or 0");
  expect_refused(small.run(2, Dtype::kF32, Dtype::kF32, {.y_stride = -3}), StatusCode::kInvalidArgument,
                 "y_stride is -3, must be at least 3, or 0");
  // Beyond 64 bits.
  expect_refused(small.run(3, Dtype::kF32, Dtype::kF32, {.x_stride = INT64_MAX}), StatusCode::kInvalidArgument,
                 "x has 128 bytes, must have at least 73786976294838206520: 3 rows of 16 elements of f32, "
                 "9223372036854775807 from one to the next");
}

TEST(LinearLayer, RefusesPointers) {
  Small small;
  const std::span<const std::byte> x = std::as_bytes(std::span(small.x));
  const std::span<std::byte> y = std::as_writable_bytes(std::span(small.y));
  const auto run = [&](std::span<const std::byte> from, std::span<std::byte> to) {
    return small.layer.forward(from, Dtype::kF32, to, Dtype::kF32, 1, small.workspace);
  };
  expect_refused(run({static_cast<const std::byte*>(nullptr), 64}, y), StatusCode::kInvalidArgument, "x is null");
  expect_refused(run(x, {static_cast<std::byte*>(nullptr), 12}), StatusCode::kInvalidArgument, "y is null");
  const auto odd = reinterpret_cast<uintptr_t>(x.data()) + 2;
  expect_refused(run(x.subspan(2), y), StatusCode::kInvalidArgument,
                 "x is at address " + std::to_string(odd) + ", must be a multiple of 4 for f32");
  const std::span<std::byte> inside = std::as_writable_bytes(std::span(small.x)).subspan(60);
  expect_refused(run(x, inside), StatusCode::kInvalidArgument, "y overlaps x, must be apart from it");
  EXPECT_TRUE(run(x, inside.subspan(4)).ok());
}

TEST(LinearLayer, RefusesOptionsOfOthers) {
  Small small;
  const std::vector<int64_t> lengths = {1};
  const auto run = [&](const RunOptions& options) { return small.run(2, Dtype::kF32, Dtype::kF32, options); };
  EXPECT_TRUE(run({.path = small.layer.path()}).ok());
  const CpuPath other = small.layer.path() == CpuPath::kReference ? CpuPath::kScalar : CpuPath::kReference;
  EXPECT_NE(run({.path = other}).message().find("create it for that path"), std::string::npos);
  expect_refused(run({.lengths = lengths}), StatusCode::kInvalidArgument,
                 "options.lengths is set, which means nothing to a linear layer on the CPU; leave it at its default");
  EXPECT_NE(run({.kernel = "int8_avx2"}).message().find("options.kernel is set"), std::string::npos);
}

TEST(LinearLayer, RefusesWorkspaces) {
  Small small;
  const int64_t has = small.workspace.size_bytes();
  small.workspace = Workspace();
  const std::string text = " bytes, must have at least ";
  expect_refused(
      small.run(2), StatusCode::kInvalidArgument,
      "workspace has 0" + text + std::to_string(has) + " for 2 rows on 1 thread; make it with workspace(m, threads)");
  ThreadPool pool(3);
  small.workspace = small.layer.workspace(2);
  const Status status = small.run(2, Dtype::kF32, Dtype::kF32, {.pool = &pool});
  EXPECT_NE(status.message().find("for 2 rows on 3 threads"), std::string::npos) << status.message();
  small.workspace = small.layer.workspace(2, 3);
  EXPECT_TRUE(small.run(2, Dtype::kF32, Dtype::kF32, {.pool = &pool}).ok());
}

TEST(LinearLayer, NoRows) {
  Small small;
  Workspace none;
  EXPECT_TRUE(small.layer.forward({}, Dtype::kF32, {}, Dtype::kF32, 0, none).ok());
  EXPECT_GE(small.layer.workspace(-1, 0).size_bytes(), 0);
}

TEST(LinearLayer, RowsThatAreNotFinite) {
  for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
    if (kernel.operation != "linear_int8" || !cpu_can_run(kernel.path)) continue;
    SCOPED_TRACE(kernel.name);
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      Small small;
      small.layer = layer_of(
          small.matrix, {.activations = LinearActivations::kInt8, .clamp = LinearClamp::relu6(), .path = kernel.path});
      small.workspace = small.layer.workspace(2);
      small.x[16 + 9] = bad;
      expect_refused(small.run(), StatusCode::kInvalidArgument,
                     "x[1] has a NaN, an infinity, or a group whose range is infinite, must be finite, or the call "
                     "unchecked");
      EXPECT_EQ(small.y, std::vector<float>(6, 7.0f));
      EXPECT_TRUE(small.run(1).ok());
      ASSERT_TRUE(small.run(2, Dtype::kF32, Dtype::kF32, {.unchecked = true}).ok());
      for (size_t n = 0; n < 3; ++n) {
        EXPECT_TRUE(std::isfinite(small.y[n]));
        EXPECT_EQ(std::bit_cast<uint32_t>(small.y[3 + n]), 0x7fc00000u);
      }
    }
  }
}

/// Finite, but the range of a group is not: the asymmetric form refuses it, the symmetric one does not.
TEST(LinearLayer, InfiniteRange) {
  Small small;
  small.x[3] = 3e38f;
  small.x[4] = -3e38f;
  EXPECT_TRUE(small.run().ok());
  small.layer = layer_of(small.matrix, {.activations = LinearActivations::kInt8Asymmetric});
  EXPECT_TRUE(small.run().message().starts_with("x[0] "));
}

TEST(LinearLayer, FloatRowsStayApart) {
  const LowBitMatrix matrix = random_matrix(40, 64, {.bits = 2, .group = 32, .kind = LowBitKind::kOffset});
  for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
    if (kernel.operation != "linear_float" || !cpu_can_run(kernel.path)) continue;
    const LinearLayer layer = layer_of(matrix, {.path = kernel.path});
    Workspace workspace = layer.workspace(9);
    Array x = random_floats(9, 64, 2);
    Array y = Array::zeros(Dtype::kF32, {9, 40});
    Array other = y;
    ASSERT_TRUE(layer.forward(x.bytes, x.dtype, y.bytes, y.dtype, 9, workspace).ok());
    x.data<float>()[4 * 64 + 7] = kNan;
    x.data<float>()[4 * 64 + 8] = kInfinity;
    ASSERT_TRUE(layer.forward(x.bytes, x.dtype, other.bytes, other.dtype, 9, workspace).ok());
    for (int64_t i = 0; i < 9; ++i) {
      constexpr size_t kRowBytes = 40 * sizeof(float);
      const size_t at = static_cast<size_t>(i) * kRowBytes;
      const bool same = std::memcmp(y.bytes.data() + at, other.bytes.data() + at, kRowBytes) == 0;
      EXPECT_EQ(same, i != 4) << kernel.name << ", row " << i;
    }
    EXPECT_TRUE(std::isnan(other.data<float>()[4 * 40]));
  }
}

TEST(LinearLayer, GroupsBeyondInt32RunOnTheReference) {
  const int64_t columns = 65536;
  const LowBitMatrix matrix = random_matrix(2, columns, {.bits = 1, .group = columns});
  const LinearLayer layer = layer_of(matrix, {.activations = LinearActivations::kInt8});
  EXPECT_EQ(layer.kernel_name(), "int8_reference");
  const Result<LinearLayer> asked =
      LinearLayer::create(matrix, {.activations = LinearActivations::kInt8, .path = CpuPath::kScalar}, "fc");
  EXPECT_EQ(asked.status().code(), StatusCode::kUnsupported);
}

/// Rows of every kind of tile, and what is left of them.
constexpr int64_t kGuardedRows[] = {1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 70};

/// forward(x, y) of x that ends at a page that cannot be touched, and y that ends at one, or begins behind one: the
/// bytes of other memory, and nothing else is written.
template <typename Forward>
void expect_same_between_pages(const std::vector<std::byte>& x, size_t y_bytes, const Forward& forward) {
  std::vector<std::byte> expected(y_bytes);
  forward(std::span<const std::byte>(x), std::span<std::byte>(expected));
  const GuardedBytes guarded_x(static_cast<int64_t>(x.size()));
  std::copy(x.begin(), x.end(), guarded_x.bytes().begin());
  for (const bool at_end : {true, false}) {
    const GuardedBytes y(static_cast<int64_t>(y_bytes), at_end);
    forward(std::span<const std::byte>(guarded_x.bytes()), y.bytes());
    ASSERT_EQ(std::memcmp(y.data(), expected.data(), y_bytes), 0) << (at_end ? "at the end" : "at the beginning");
    ASSERT_TRUE(y.untouched_around());
  }
  ASSERT_TRUE(guarded_x.untouched_around());
  ASSERT_EQ(std::memcmp(guarded_x.data(), x.data(), x.size()), 0);
}

TEST(LinearLayer, TouchesNothingElse) {
  const std::vector<LinearActivations> quantised = {LinearActivations::kInt8, LinearActivations::kInt8Asymmetric};
  for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
    if (!cpu_can_run(kernel.path) || kernel.operation == "linear_static") continue;
    for (const LinearActivations activations :
         kernel.operation == "linear_int8" ? quantised : std::vector{LinearActivations::kFloat})
      for (const int64_t columns : {1, 8, 33, 100, 257})
        for (const int64_t rows : {1, 15, 50}) {
          const LowBitMatrix matrix = random_matrix(
              rows, columns, {.bits = 4, .group = columns > 32 ? 32 : columns, .kind = LowBitKind::kZeroPoint});
          const GuardedBytes bias(rows * 4);
          std::memcpy(bias.data(), random_floats(1, rows, 3).bytes.data(), static_cast<size_t>(rows * 4));
          const LinearLayer layer =
              layer_of(matrix, {.activations = activations,
                                .bias = {reinterpret_cast<const float*>(bias.data()), static_cast<size_t>(rows)},
                                .path = kernel.path});
          Workspace workspace = layer.workspace(70);
          for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16})
            for (const int64_t m : kGuardedRows) {
              SCOPED_TRACE(std::string(kernel.name) + ", " + std::string(to_string(activations)) + ", K " +
                           std::to_string(columns) + ", N " + std::to_string(rows) + ", M " + std::to_string(m) + ", " +
                           std::string(to_string(dtype)));
              const Array floats = random_floats(m, columns, 4);
              Array x = Array::zeros(dtype, {m, columns});
              for (int64_t i = 0; i < x.size(); ++i) store_float(x.bytes.data(), dtype, i, floats.data<float>()[i]);
              expect_same_between_pages(x.bytes, static_cast<size_t>(m * rows) * size_in_bytes(dtype),
                                        [&](auto from, auto to) {
                                          const Status status = layer.forward(from, dtype, to, dtype, m, workspace);
                                          ASSERT_TRUE(status.ok()) << status.message();
                                        });
              if (HasFatalFailure()) return;
            }
        }
  }
}

/// Symmetric weights of 8 bits whose rows are one group have a way of their own: the bytes of the reference, between
/// pages that cannot be touched, with a row that is not finite, and with sums that overflow.
TEST(LinearLayer, WholeRows) {
  for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
    if (kernel.operation != "linear_int8" || !cpu_can_run(kernel.path) || kernel.path == CpuPath::kReference) continue;
    SCOPED_TRACE(kernel.name);
    uint32_t seed = 1;
    for (const auto activations : {LinearActivations::kInt8, LinearActivations::kInt8Asymmetric})
      for (const int64_t columns : {1, 33, 100, 257})
        for (const int64_t rows : {1, 15, 50, 112}) {
          Array floats = random_floats(rows, columns, ++seed);
          for (int64_t k = 0; k < columns; ++k) floats.data<float>()[k] *= 0x1p127f;
          const LowBitMatrix matrix = *quantize_low_bit(floats, {.bits = 8, .group = columns}, "W");
          const Array bias = random_floats(1, rows, ++seed);
          LinearOptions options{.activations = activations,
                                .bias = {bias.data<float>(), static_cast<size_t>(rows)},
                                .clamp = {-0.75f, kInfinity},
                                .path = CpuPath::kReference};
          const LinearLayer reference = layer_of(matrix, options);
          options.path = kernel.path;
          const LinearLayer layer = layer_of(matrix, options);
          const Dtype y_dtype = rows == 15 ? Dtype::kF16 : rows == 50 ? Dtype::kBF16 : Dtype::kF32;
          const auto size = static_cast<int64_t>(size_in_bytes(y_dtype));
          for (const int64_t m : {1, 3, 21, columns == 100 ? 260 : 8}) {
            Array values = random_floats(m, columns, ++seed);
            values.data<float>()[m / 2 * columns] = m == 8 ? kNan : 3.0f;
            const auto bytes = static_cast<size_t>(m * columns) * sizeof(float);
            const GuardedBytes x(static_cast<int64_t>(bytes));
            const GuardedBytes y(m * rows * size);
            std::memcpy(x.data(), values.bytes.data(), bytes);
            std::vector<std::byte> expected(static_cast<size_t>(m * rows * size));
            Workspace workspace = reference.workspace(m);
            const RunOptions unchecked{.unchecked = true};
            ASSERT_TRUE(reference.forward(values.bytes, Dtype::kF32, expected, y_dtype, m, workspace, unchecked).ok());
            workspace = layer.workspace(m);
            ASSERT_TRUE(layer
                            .forward({reinterpret_cast<const std::byte*>(x.data()), bytes}, Dtype::kF32,
                                     {reinterpret_cast<std::byte*>(y.data()), expected.size()}, y_dtype, m, workspace,
                                     unchecked)
                            .ok());
            ASSERT_EQ(std::memcmp(y.data(), expected.data(), expected.size()), 0)
                << to_string(activations) << ", K " << columns << ", N " << rows << ", M " << m;
          }
        }
  }
}

/// More rows than a kernel takes at a time (256): every pass writes its own rows of y, also those of floats that y is
/// too narrow to hold the sums of.
TEST(LinearLayer, SeveralPassesOfRows) {
  const int64_t m = 300, rows = 400, columns = 72;  // enough blocks that a thread has all rows
  const LowBitMatrix matrix = random_matrix(rows, columns, {.bits = 8, .group = 32});
  const Array x = random_floats(m, columns, 2);
  ThreadPool pool(2);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    const auto run = [&](CpuPath path, ThreadPool* on) {
      const LinearLayer layer = layer_of(matrix, {.activations = LinearActivations::kInt8, .path = path});
      Workspace workspace = layer.workspace(m, threads_of(on));
      std::vector<std::byte> y(static_cast<size_t>(m * rows) * size_in_bytes(dtype));
      EXPECT_TRUE(layer.forward(x.bytes, x.dtype, y, dtype, m, workspace, {.pool = on}).ok());
      return y;
    };
    const std::vector<std::byte> expected = run(CpuPath::kReference, nullptr);
    for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
      if (kernel.operation != "linear_int8" || !cpu_can_run(kernel.path)) continue;
      EXPECT_EQ(run(kernel.path, nullptr), expected) << kernel.name << ", " << to_string(dtype);
      EXPECT_EQ(run(kernel.path, &pool), expected) << kernel.name << ", " << to_string(dtype) << ", two threads";
    }
  }
}

/// Every output is computed once, whatever the sizes and the number of threads.
TEST(LinearLayer, RectanglesCoverY) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (const int64_t m : {1, 5, 16, 17, 70, 1000})
      for (const int64_t n : {1, 2, 3, 19, 200}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(m * n));
        for_rectangles(&pool, m, n, [&](int part, const LinearRectangle& r) {
          EXPECT_LT(part, threads);
          EXPECT_LT(r.m_begin, r.m_end);
          EXPECT_LT(r.n_begin, r.n_end);
          for (int64_t i = r.m_begin; i < r.m_end; ++i)
            for (int64_t j = r.n_begin; j < r.n_end; ++j) ++seen[static_cast<size_t>(i * n + j)];
        });
        for (const std::atomic<int>& count : seen) ASSERT_EQ(count.load(), 1) << threads << " " << m << " " << n;
      }
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Static codes

StaticLinearParameters static_parameters() {
  StaticLinearParameters p;
  p.rows = 2;
  p.columns = 3;
  const int8_t weights[] = {1, -2, 3, 4, 5, -6};
  const int32_t bias[] = {10, -20};
  p.weights = Array::copy_of(weights, {2, 3});
  const float scales[] = {1, 1};
  p.scales = Array::copy_of(scales, {2});
  p.bias = Array::copy_of(bias, {2});
  p.input.zero_point = 1;
  p.rescales = {{1, 1}, {3, 2}};
  p.output = Grid{.zero_point = 5};
  return p;
}

TEST(StaticLinearLayer, ByHand) {
  // acc = {1 * 2 - 2 * 3 + 3 * 4 + 10, 4 * 2 + 5 * 3 - 6 * 4 - 20} = {18, -21}; 18 / 2 = 9; -63 / 4 = -15.75
  const int8_t x[] = {3, 4, 5};
  int8_t y[2] = {};
  for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
    if (kernel.operation != "linear_static" || !cpu_can_run(kernel.path)) continue;
    StaticLinearParameters p = static_parameters();
    const auto run = [&](std::span<std::byte> out) {
      const Result<StaticLinearLayer> layer = StaticLinearLayer::create(p, "fc", kernel.path);
      ASSERT_TRUE(layer.ok()) << layer.status().message();
      EXPECT_EQ(layer->parameters(), p);
      Workspace workspace = layer->workspace(1);
      ASSERT_TRUE(layer->forward_codes(std::as_bytes(std::span(x)), out, 1, workspace).ok());
    };
    run(std::as_writable_bytes(std::span(y)));
    EXPECT_EQ(y[0], 14);
    EXPECT_EQ(y[1], -11);
    p.lo = 5;
    run(std::as_writable_bytes(std::span(y)));
    EXPECT_EQ(y[1], 5);
    p.rescales.clear();
    p.output.reset();
    p.lo = INT32_MIN;
    p.hi = INT32_MAX;
    int32_t acc[2] = {};
    run(std::as_writable_bytes(std::span(acc)));
    EXPECT_EQ(acc[0], 18);
    EXPECT_EQ(acc[1], -21);
  }
}

TEST(StaticLinearLayer, RefusesParameters) {
  const auto refused = [](void (*change)(StaticLinearParameters&), const std::string& message,
                          StatusCode code = StatusCode::kInvalidArgument) {
    StaticLinearParameters p = static_parameters();
    change(p);
    expect_refused(StaticLinearLayer::create(p, "fc").status(), code, message);
  };
  using P = StaticLinearParameters;
  refused([](P& p) { p.rows = 0; }, "fc: N is 0, must be 1..2147483647");
  refused([](P& p) { p.columns = -1; }, "fc: K is -1, must be 1..2147483647");
  refused([](P& p) { p.weights.dtype = Dtype::kU8; }, "fc: weights is u8, must be s8");
  refused([](P& p) { p.weights.shape = {3, 2}; }, "fc: weights has the shape (3, 2), must have (2, 3)");
  refused([](P& p) { p.bias = Array::zeros(Dtype::kF32, {2}); }, "fc: bias is f32, must be s32");
  refused([](P& p) { p.bias = Array::zeros(Dtype::kS32, {3}); }, "fc: bias has the shape (3,), must have (2,)");
  refused([](P& p) { p.scales = Array::zeros(Dtype::kF32, {1}); }, "fc: scales has the shape (1,), must have (2,)");
  refused([](P& p) { p.scales.data<float>()[1] = 0; }, "fc: scales[1] is 0, must be positive and finite");
  refused([](P& p) { p.scales.data<float>()[0] = kNan; }, "fc: scales[0] is nan, must be positive and finite");
  refused([](P& p) { p.scales.data<float>()[0] = kInfinity; }, "fc: scales[0] is inf, must be positive and finite");
  refused([](P& p) { p.weight_bits = 3; }, "fc: weight_bits is 3, must be 1, 2, 4 or 8");
  refused([](P& p) { p.weight_bits = 2; }, "fc: weights[0, 2] is 3, must be -2..1");
  refused([](P& p) { p.weight_bits = 1; }, "fc: weights[0, 1] is -2, must be -1 or 1");
  refused([](P& p) { p.weight_bits = 1, p.weights.data<int8_t>()[0] = 0; }, "fc: weights[0, 0] is 0, must be -1 or 1");
  refused([](P& p) { p.weight_bits = 4, p.weights.data<int8_t>()[5] = -9; }, "fc: weights[1, 2] is -9, must be -8..7");
  refused([](P& p) { p.input.bits = 17; }, "fc: input: bits is 17, must be 2..16");
  refused([](P& p) { p.input = {.bits = 1}; }, "fc: input: bits is 1, must be 2..16");
  refused([](P& p) { p.output->bits = 32; }, "fc: output: bits is 32, must be 2..16");
  refused([](P& p) { p.hi = 128; }, "fc: hi is 128, must be -128..127, a code of the output grid");
  refused([](P& p) { p.lo = -200; }, "fc: lo is -200, must be -128..127, a code of the output grid");
  refused([](P& p) { p.output->bits = 4; }, "fc: lo is -128, must be -8..7, a code of the output grid");
  refused(
      [](P& p) {
        p.lo = 4;
        p.hi = 3;
      },
      "fc: lo is 4, must be at most hi, 3");
  refused([](P& p) { p.rounding = static_cast<Rounding>(4); }, "fc: rounding is 4, must be 0..3");
  refused([](P& p) { p.rescales.pop_back(); }, "fc: there are 1 rescales, must be 2");
  refused([](P& p) { p.rescales[1].multiplier = 0; }, "fc: rescales[1].multiplier is 0, must be at least 1");
  refused([](P& p) { p.rescales[0].shift = 128; }, "fc: rescales[0].shift is 128, must be -62..127");
  refused([](P& p) { p.rescales[0].shift = -62; },
          "fc: row 0: y before its clamp can reach 3615561838447072116741, must stay within 9223372036854775807",
          StatusCode::kOverflow);
  refused([](P& p) { p.rescales.clear(); }, "fc: there are 0 rescales, must be 2");
  refused([](P& p) { p.output.reset(); }, "fc: lo is -128, must be -2147483648 without an output grid");
  refused(
      [](P& p) {
        p.output.reset();
        p.lo = INT32_MIN;
        p.hi = INT32_MAX;
      },
      "fc: there are 2 rescales, must be none without an output grid");
  refused(
      [](P& p) {
        p.rescales.clear();
        p.output.reset();
        p.lo = INT32_MIN;
        p.hi = INT32_MAX;
        p.bias.data<int32_t>()[1] = INT32_MIN;
      },
      "fc: row 1: the accumulator can reach 2147485583, must stay within 2147483647", StatusCode::kOverflow);
}

TEST(StaticLinearLayer, RefusesDerivation) {
  const LowBitMatrix matrix = random_matrix(3, 16, {.bits = 8, .group = 16});
  const Grid grid{.kind = ScaleKind::kReal, .real_scale = 0.1f};
  const auto status = [&](const LowBitMatrix& weights, const StaticLinearOptions& options) {
    return derive_static_linear(weights, options, "fc").status();
  };
  EXPECT_TRUE(status(matrix, {.input = grid, .output = grid}).ok());
  EXPECT_TRUE(status(random_matrix(3, 16, {.bits = 1, .group = 16}), {.input = grid}).ok());
  const LowBitMatrix zeros = *quantize_low_bit(Array::zeros(Dtype::kF32, {3, 16}), {.bits = 1, .group = 16}, "W");
  expect_refused(status(zeros, {.input = grid}), StatusCode::kInvalidArgument,
                 "fc: scales[0, 0] is 0: row 0 has zeros only, which weights of 1 bit cannot be; use 2 bits or more");
  expect_refused(status(random_matrix(3, 16, {.bits = 8, .group = 8}), {.input = grid}), StatusCode::kInvalidArgument,
                 "fc: group is 8, must be K, 16");
  expect_refused(status(random_matrix(3, 16, {.bits = 8, .group = 16, .kind = LowBitKind::kOffset}), {.input = grid}),
                 StatusCode::kInvalidArgument, "fc: kind is offset, must be symmetric");
  Grid wide = grid;
  wide.bits = 17;
  expect_refused(status(matrix, {.input = wide}), StatusCode::kInvalidArgument, "fc: input: bits is 17, must be 2..16");
  expect_refused(status(matrix, {.input = grid, .output = wide}), StatusCode::kInvalidArgument,
                 "fc: output: bits is 17, must be 2..16");
  expect_refused(status(matrix, {.input = grid, .clamp = LinearClamp::relu()}), StatusCode::kInvalidArgument,
                 "fc: a clamp of 0..inf was given, must be none without an output grid");
  expect_refused(status(matrix, {.input = grid, .output = grid, .clamp = {1, 0}}), StatusCode::kInvalidArgument,
                 "fc: clamp.lo is 1, must be at most clamp.hi, 0");
  const std::vector<float> bias = {0, kInfinity, 0};
  expect_refused(status(matrix, {.input = grid, .output = grid, .bias = bias}), StatusCode::kInvalidArgument,
                 "fc: bias[1] is inf, must be finite");
  LowBitParameters negative = matrix.parameters();
  negative.scales.data<float>()[2] = -0.5f;
  expect_refused(status(*LowBitMatrix::create(negative, "W"), {.input = grid, .output = grid}),
                 StatusCode::kInvalidArgument, "fc: scales[2, 0] is -0.5, must be positive, or 0 in a row of zeros");
}

/// From the integers that it has itself, a layer gets its own rescales and limits.
TEST(StaticLinearLayer, DerivesRequantization) {
  const LowBitMatrix matrix = random_matrix(5, 16, {.bits = 8, .group = 16});
  const Grid x{.bits = 8, .kind = ScaleKind::kReal, .real_scale = 0.037f, .zero_point = -3};
  const Grid y{.bits = 8, .kind = ScaleKind::kReal, .real_scale = 0.11f, .zero_point = 7};
  const std::vector<float> bias = {1, -2, 3, 0, 0.5f};
  const StaticLinearOptions options{.input = x, .output = y, .bias = bias, .clamp = LinearClamp::relu6()};
  const StaticLinearParameters made = *derive_static_linear(matrix, options, "fc");
  StaticLinearParameters integers = made;
  integers.rescales.assign(9, {});
  integers.lo = integers.hi = 77;
  const Result<StaticLinearParameters> again = derive_static_requantization(integers, LinearClamp::relu6(), "fc");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, made);
  EXPECT_EQ(again->lo, 7);
  EXPECT_EQ(again->hi, 7 + 55);  // 6 / 0.11 = 54.5...
  for (size_t n = 0; n < 5; ++n) {
    const RescaleParameters& r = again->rescales[n];
    const double ratio = static_cast<double>(x.real_scale) * static_cast<double>(made.scales.data<float>()[n]) /
                         static_cast<double>(y.real_scale);
    EXPECT_NEAR(std::ldexp(static_cast<double>(r.multiplier), -r.shift) / ratio, 1, 0x1p-30);
  }
  integers.output.reset();
  const Result<StaticLinearParameters> sums = derive_static_requantization(integers, LinearClamp::none(), "fc");
  ASSERT_TRUE(sums.ok()) << sums.status().message();
  EXPECT_TRUE(sums->rescales.empty());
  EXPECT_EQ(sums->lo, INT32_MIN);
  EXPECT_EQ(sums->hi, INT32_MAX);
  EXPECT_TRUE(StaticLinearLayer::create(*sums, "fc").ok());
}

TEST(StaticLinearLayer, RefusesRequantization) {
  const LowBitMatrix matrix = random_matrix(3, 16, {.bits = 4, .group = 16});
  const Grid grid{.kind = ScaleKind::kReal, .real_scale = 0.1f};
  const StaticLinearParameters made = *derive_static_linear(matrix, {.input = grid, .output = grid}, "fc");
  const auto refused = [&](const auto& change, const LinearClamp& clamp, const std::string& message,
                           StatusCode code = StatusCode::kInvalidArgument) {
    StaticLinearParameters p = made;
    change(p);
    expect_refused(derive_static_requantization(p, clamp, "fc").status(), code, message);
  };
  const LinearClamp none = LinearClamp::none();
  refused([](auto& p) { p.weights.template data<int8_t>()[17] = 8; }, none, "fc: weights[1, 1] is 8, must be -8..7");
  refused([](auto& p) { p.scales.template data<float>()[2] = 0; }, none,
          "fc: scales[2] is 0, must be positive and finite");
  refused([](auto& p) { p.bias = Array::zeros(Dtype::kS32, {4}); }, none,
          "fc: bias has the shape (4,), must have (3,)");
  refused([](auto& p) { p.input.bits = 1; }, none, "fc: input: bits is 1, must be 2..16");
  refused([](auto& p) { p.output->bits = 17; }, none, "fc: output: bits is 17, must be 2..16");
  refused([](auto&) {}, {2, 1}, "fc: clamp.lo is 2, must be at most clamp.hi, 1");
  refused([](auto& p) { p.output.reset(); }, LinearClamp::relu(),
          "fc: a clamp of 0..inf was given, must be none without an output grid");
}

/// A row of zeros takes the smallest scale of the others, so that its bias is not lost.
TEST(StaticLinearLayer, RowsOfZeros) {
  Array floats = Array::zeros(Dtype::kF32, {3, 4});
  floats.data<float>()[1] = 127.0f;     // S = 1
  floats.data<float>()[8 + 2] = 63.5f;  // S = 1/2
  const LowBitMatrix matrix = *quantize_low_bit(floats, {.bits = 8, .group = 4}, "W");
  const Grid grid{};  // a scale of 1
  const std::vector<float> bias = {3, 3, 3};
  const Result<StaticLinearParameters> p =
      derive_static_linear(matrix, {.input = grid, .output = grid, .bias = bias}, "fc");
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_EQ(p->bias.data<int32_t>()[0], 3);
  EXPECT_EQ(p->bias.data<int32_t>()[1], 6);
  EXPECT_EQ(p->bias.data<int32_t>()[2], 6);
}

/// Grids cover x and the results of the layer on it, or the ranges that are given.
TEST(StaticLinearLayer, GridsOfData) {
  Array floats = Array::zeros(Dtype::kF32, {3, 4});
  floats.data<float>()[1] = 127.0f;
  floats.data<float>()[8 + 2] = -63.5f;
  const LowBitMatrix matrix = *quantize_low_bit(floats, {.bits = 8, .group = 4}, "W");
  const std::vector<float> bias = {3, 30, -3};
  const std::vector<float> x = {0, 1, 2, 0, 0, -0.5f, 0, 1};  // y: 130 30 -130, -60.5 30 -3
  const auto choose = [&](const StaticLinearOptions& options, const StaticLinearRanges& ranges, ThreadPool* pool) {
    return choose_static_grids(matrix, x, options, ranges, "fc", pool);
  };
  ThreadPool pool(2);
  const Result<StaticLinearOptions> chosen = choose({.bias = bias}, {}, &pool);
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_EQ(chosen->input, derive_grid(-0.5f, 2, {}, ScaleKind::kReal, 255, "x").value());
  EXPECT_EQ(chosen->bias.data(), bias.data());
  ASSERT_TRUE(chosen->output.has_value());
  const auto step = static_cast<double>(chosen->output->scale());
  EXPECT_NEAR(step, 260.0 / 255, 0.02);
  EXPECT_NEAR(dequantize_value(*chosen->output, chosen->output->max()), 130, 2 * step);
  EXPECT_NEAR(dequantize_value(*chosen->output, chosen->output->min()), -130, 2 * step);
  EXPECT_TRUE(derive_static_linear(matrix, *chosen, "fc").ok());

  const Result<StaticLinearOptions> clamped = choose({.bias = bias, .clamp = LinearClamp::relu()}, {}, nullptr);
  ASSERT_TRUE(clamped.ok());
  EXPECT_EQ(dequantize_value(*clamped->output, clamped->output->min()), 0);
  const Result<StaticLinearOptions> given = choose({}, {.x = {{-1.0f, 1.0f}}, .y = {{-4.0f, 4.0f}}}, nullptr);
  ASSERT_TRUE(given.ok());
  EXPECT_EQ(given->input, derive_grid(-1, 1, {}, ScaleKind::kReal, 255, "x").value());
  EXPECT_EQ(given->output, derive_grid(-4, 4, {}, ScaleKind::kReal, 255, "y").value());

  const std::vector<float> bad = {0, 1, std::numeric_limits<float>::infinity(), 0};
  EXPECT_EQ(choose_static_grids(matrix, bad, {}, {}, "fc").status().message(),
            "X is not finite at flat index 2; it has no grid");
  EXPECT_EQ(choose_static_grids(matrix, std::span(x).first(5), {}, {}, "fc").status().message(),
            "fc: x has 5 elements, must have a multiple of K, 4");
}

/// Widths of x and y; none: accumulators.
struct Widths {
  int32_t x;
  std::optional<int32_t> y;
};
constexpr Widths kWidths[] = {{8, 8}, {8, {}}, {16, 16}, {16, {}}, {8, 16}, {16, 8}, {2, 11}, {12, 5}};

/// A layer of random weights between those widths, signed or not by the number of rows.
StaticLinearParameters static_of(int64_t rows, int64_t columns, const Widths& widths) {
  const LowBitMatrix matrix = random_matrix(rows, columns, {.bits = 8, .group = columns});
  const Grid x{.bits = widths.x,
               .is_signed = rows != 15,
               .kind = ScaleKind::kReal,
               .real_scale = std::ldexp(2.56f, -widths.x),
               .zero_point = 1};
  StaticLinearOptions options{.input = x};
  if (widths.y)
    options.output = Grid{.bits = *widths.y,
                          .is_signed = rows != 50,
                          .kind = ScaleKind::kReal,
                          .real_scale = std::ldexp(25.6f, -*widths.y)};
  const Result<StaticLinearParameters> p = derive_static_linear(matrix, options, "fc");
  EXPECT_TRUE(p.ok()) << p.status().message();
  return *p;
}

std::vector<std::byte> random_codes(const Grid& grid, int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> codes(static_cast<size_t>(count) * size_in_bytes(grid.dtype()));
  const auto values = static_cast<uint32_t>(grid.max() - grid.min() + 1);
  for (int64_t i = 0; i < count; ++i)
    store_code(codes.data(), grid.dtype(), i, grid.min() + static_cast<int64_t>(random() % values));
  return codes;
}

TEST(StaticLinearLayer, TouchesNothingElse) {
  for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
    if (kernel.operation != "linear_static" || !cpu_can_run(kernel.path)) continue;
    for (const int64_t columns : {1, 8, 33, 64, 100, 257})
      for (const int64_t rows : {1, 15, 50, 112})
        for (const Widths& widths : kWidths) {
          const StaticLinearParameters p = static_of(rows, columns, widths);
          const Result<StaticLinearLayer> layer = StaticLinearLayer::create(p, "fc", kernel.path);
          ASSERT_TRUE(layer.ok()) << layer.status().message();
          Workspace workspace = layer->workspace(70);
          for (const int64_t m : kGuardedRows) {
            SCOPED_TRACE(std::string(kernel.name) + ", K " + std::to_string(columns) + ", N " + std::to_string(rows) +
                         ", M " + std::to_string(m) + ", " + std::to_string(widths.x) + " bits to " +
                         std::string(to_string(p.y_dtype())));
            const std::vector<std::byte> x = random_codes(p.input, m * columns, static_cast<uint32_t>(m));
            expect_same_between_pages(x, static_cast<size_t>(m * rows) * size_in_bytes(p.y_dtype()),
                                      [&](auto from, auto to) {
                                        const Status status = layer->forward_codes(from, to, m, workspace);
                                        ASSERT_TRUE(status.ok()) << status.message();
                                      });
            if (HasFatalFailure()) return;
          }
        }
  }
}

TEST(StaticLinearLayer, SeveralPassesOfRows) {
  const int64_t m = 300, rows = 400, columns = 72;  // enough blocks that a thread has all rows
  ThreadPool pool(2);
  for (const Widths& widths : kWidths) {
    const StaticLinearParameters p = static_of(rows, columns, widths);
    const std::vector<std::byte> x = random_codes(p.input, m * columns, 1);
    const auto run = [&](CpuPath path, ThreadPool* on) {
      const Result<StaticLinearLayer> layer = StaticLinearLayer::create(p, "fc", path);
      EXPECT_TRUE(layer.ok()) << layer.status().message();
      Workspace workspace = layer->workspace(m, threads_of(on));
      std::vector<std::byte> y(static_cast<size_t>(m * rows) * size_in_bytes(p.y_dtype()));
      EXPECT_TRUE(layer->forward_codes(x, y, m, workspace, {.pool = on}).ok());
      return y;
    };
    const std::vector<std::byte> expected = run(CpuPath::kReference, nullptr);
    for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
      if (kernel.operation != "linear_static" || !cpu_can_run(kernel.path)) continue;
      const std::string text = std::string(kernel.name) + ", " + std::to_string(widths.x) + " bits to " +
                               std::string(to_string(p.y_dtype()));
      EXPECT_EQ(run(kernel.path, nullptr), expected) << text;
      EXPECT_EQ(run(kernel.path, &pool), expected) << text << ", two threads";
    }
  }
}

/// Sums of K at which the accumulator just fits int32 and just does not, of the largest codes and weights.
TEST(StaticLinearLayer, LargestSums) {
  for (const int64_t columns : {258, 259}) {
    StaticLinearParameters p;
    p.rows = 2;
    p.columns = columns;
    p.weights = Array::zeros(Dtype::kS8, {2, columns});
    std::fill_n(p.weights.data<int8_t>(), columns, int8_t{127});
    std::fill_n(p.weights.data<int8_t>() + columns, columns, int8_t{-127});
    const float scales[] = {1, 1};
    p.scales = Array::copy_of(scales, {2});
    p.bias = Array::zeros(Dtype::kS32, {2});
    p.input = {.bits = 16, .is_signed = false, .zero_point = 65535};
    p.output = Grid{.bits = 16, .is_signed = true};
    p.rescales = {{1 << 30, 47}, {1 << 30, 47}};
    p.lo = -32768;
    p.hi = 32767;
    std::vector<uint16_t> x(static_cast<size_t>(columns));  // -65535 each
    for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
      if (kernel.operation != "linear_static" || !cpu_can_run(kernel.path)) continue;
      const Result<StaticLinearLayer> layer = StaticLinearLayer::create(p, "fc", kernel.path);
      ASSERT_TRUE(layer.ok()) << layer.status().message();
      EXPECT_EQ(layer->accumulator_bound(), 127 * 65535 * columns);
      EXPECT_EQ(layer->accumulator_bound() > INT32_MAX, columns == 259);
      Workspace workspace = layer->workspace(1);
      int16_t y[2] = {};
      ASSERT_TRUE(
          layer->forward_codes(std::as_bytes(std::span(x)), std::as_writable_bytes(std::span(y)), 1, workspace).ok());
      const double exact = std::ldexp(127.0 * 65535.0 * static_cast<double>(columns), -17);
      EXPECT_EQ(y[0], -std::rint(exact)) << kernel.name;
      EXPECT_EQ(y[1], std::rint(exact)) << kernel.name;
    }
  }
}

TEST(StaticLinearLayer, RefusesCodesOutsideTheGrid) {
  StaticLinearParameters p = static_parameters();
  p.input = {.bits = 5, .is_signed = true};
  for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
    if (kernel.operation != "linear_static" || !cpu_can_run(kernel.path)) continue;
    const Result<StaticLinearLayer> layer = StaticLinearLayer::create(p, "fc", kernel.path);
    ASSERT_TRUE(layer.ok()) << layer.status().message();
    Workspace workspace = layer->workspace(2);
    std::vector<int8_t> x = {-16, 15, 0, 1, 2, 3};
    std::vector<int8_t> y(4, 77);
    const auto run = [&] {
      return layer->forward_codes(std::as_bytes(std::span(x)), std::as_writable_bytes(std::span(y)), 2, workspace,
                                  {.unchecked = true});
    };
    for (const auto& [code, text] : {std::pair(16, "16"), std::pair(-17, "-17")}) {
      x[4] = static_cast<int8_t>(code);
      expect_refused(run(), StatusCode::kInvalidArgument,
                     "fc: x[1, 1] is " + std::string(text) + ", must be -16..15, a code of the input grid");
    }
    EXPECT_EQ(y, std::vector<int8_t>(4, 77));
    x[4] = 15;
    EXPECT_TRUE(run().ok());
  }
}

// ---------------------------------------------------------------------------------------------------------------

TEST(LinearVerify, EveryKernel) {
  const Result<VerifyReport> report = verify_kernels({.operation = "linear", .outputs = 300000, .seed = 5});
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_FALSE(report->kernels.empty());
  for (const VerifyKernel& kernel : report->kernels) {
    EXPECT_GE(kernel.outputs_compared, 300000u) << kernel.name;
    EXPECT_EQ(kernel.different, 0u) << kernel.name << ": " << kernel.first_difference;
  }
}

}  // namespace
}  // namespace isobit
