// SPDX-License-Identifier: Apache-2.0
// Random layers and rows through every kernel of linear layers.
#include "verify/linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/codes.h"
#include "core/hash.h"
#include "core/random.h"
#include "isobit/linear.h"
#include "linear/layer_reference.h"
#include "low_bit/parts.h"
#include "verify/operations.h"

namespace isobit {
namespace {

using Bytes = std::vector<std::byte>;

constexpr Dtype kStores[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};
constexpr int32_t kBits[] = {1, 2, 4, 8};

template <typename T, size_t N>
T pick(Random& random, const T (&values)[N]) {
  return values[random.between(0, static_cast<int64_t>(N) - 1)];
}

/// In [-1, 1], a multiple of 2^-23.
float unit(Random& random) { return static_cast<float>(random.between(-(1 << 23), 1 << 23)) * 0x1p-23f; }

/// Rounds to a type of floats. float64 gets bits that float32 has not.
void store(Random& random, std::byte* out, Dtype dtype, int64_t i, float value) {
  if (dtype != Dtype::kF64) return store_float(out, dtype, i, value);
  reinterpret_cast<double*>(out)[i] =
      static_cast<double>(value) * (1.0 + static_cast<double>(random.between(-8, 8)) * 0x1p-27);
}

struct Sizes {
  int64_t m, n, k, group;
};

/// Sums of a few hundred elements mostly: what the reference costs is K.
Sizes random_sizes(Random& random) {
  Sizes sizes{random.between(1, 70), random.between(1, 300), 0, 0};
  if (random.one_in(3)) sizes.m = random.between(1, 4);
  sizes.k = random.one_in(16) ? random.between(1, 1200) : random.between(1, 200);
  if (random.one_in(2)) sizes.k = (sizes.k + 31) / 32 * 32;
  sizes.group = sizes.k;
  if (sizes.k > 8 && !random.one_in(4)) {
    const int64_t most = (sizes.k - 1) / 8;
    sizes.group = 8 * random.between(1, random.one_in(2) ? std::min<int64_t>(most, 4) : most);
    if (const int64_t power = 8 << random.between(0, 4); random.one_in(2) && power < sizes.k) sizes.group = power;
  }
  return sizes;
}

/// Any codes, S of either sign, any zero points; `ordinary`: weights of about 1; `whole_rows`: of 8 bits, symmetric, a
/// group a row, for which there are kernels of their own.
Result<LowBitMatrix> random_matrix(Random& random, const Sizes& sizes, bool ordinary, bool whole_rows = false) {
  LowBitParameters p;
  p.rows = sizes.n;
  p.columns = sizes.k;
  p.group = sizes.group;
  p.bits = pick(random, kBits);
  p.kind = static_cast<LowBitKind>(random.between(0, 2));
  if (whole_rows) {
    p.group = p.columns;
    p.bits = 8;
    p.kind = LowBitKind::kSymmetric;
  }
  const int64_t groups = low_bit_groups(p.columns, p.group);
  const int64_t row_bytes = low_bit_row_bytes(p.columns, p.bits);
  p.codes = Array::zeros(Dtype::kU8, {p.rows, row_bytes});
  auto* codes = p.codes.data<uint8_t>();
  for (int64_t n = 0; n < p.rows; ++n) {
    // Every eighth row holds the two ends only.
    const bool ends = n % 8 == 7;
    for (int64_t k = 0; k < p.columns; ++k) {
      const uint32_t top = (1U << p.bits) - 1;
      const auto code = static_cast<uint32_t>(random.next() & top);
      pack_code(codes + n * row_bytes, k, p.bits, !ends ? code : code > top / 2 ? top : 0);
    }
  }
  const Dtype type = pick(random, kStores);
  const auto numbers = [&](float width) {
    Array array = Array::zeros(type, {p.rows, groups});
    for (int64_t i = 0; i < array.size(); ++i) {
      // Away from 0: a scale of 0 loses codes.
      const float magnitude = (0.25f + 0.75f * std::abs(unit(random))) * width;
      const float wild = ordinary ? 1.0f : std::ldexp(1.0f, static_cast<int>(random.between(-6, 6)));
      store_float(array.bytes.data(), type, i, (random.one_in(2) ? magnitude : -magnitude) * wild);
    }
    return array;
  };
  p.scales = numbers(std::ldexp(2.0f, -p.bits));
  if (p.kind == LowBitKind::kOffset) {
    p.offsets = numbers(0.5f);
    p.zero_point = random.one_in(2) ? 1 << (p.bits - 1) : 0;
  }
  if (p.kind == LowBitKind::kZeroPoint) {
    p.zero_points = Array::zeros(low_bit_zero_point_dtype(p.bits), p.scales.shape);
    for (int64_t i = 0; i < p.zero_points.size(); ++i)
      store_code(p.zero_points.bytes.data(), p.zero_points.dtype, i, random.between(0, 1 << p.bits));
  }
  return LowBitMatrix::create(std::move(p), "random");
}

/// Rows of x in one memory with y behind them, each from an odd address, strides of their own, and a pattern wherever
/// nothing may be written.
class Buffers {
 public:
  Buffers(Random& random, int64_t m, int64_t k, Dtype x_dtype, int64_t n, Dtype y_dtype)
      : m_(m),
        n_(n),
        x_size_(static_cast<int64_t>(size_in_bytes(x_dtype))),
        y_size_(static_cast<int64_t>(size_in_bytes(y_dtype))) {
    const bool dense = random.one_in(2);
    x_stride = k + (dense ? 0 : random.between(0, 9));
    y_stride = n + (dense ? 0 : random.between(0, 9));
    const int64_t x_bytes = ((m - 1) * x_stride + k) * x_size_;
    const int64_t y_bytes = ((m - 1) * y_stride + n) * y_size_;
    x_at_ = random.between(0, 64 / x_size_) * x_size_;
    y_at_ = (x_at_ + x_bytes + 64 + 63) / 64 * 64 + random.between(0, 64 / y_size_) * y_size_;
    bytes_.assign(static_cast<size_t>(y_at_ + y_bytes + 64), kPattern);
    x_bytes_ = static_cast<size_t>(x_bytes);
    y_bytes_ = static_cast<size_t>(y_bytes);
  }

  [[nodiscard]] std::byte* x_row(int64_t i) { return bytes_.data() + x_at_ + i * x_stride * x_size_; }
  [[nodiscard]] const std::byte* y_row(int64_t i) const { return bytes_.data() + y_at_ + i * y_stride * y_size_; }
  [[nodiscard]] std::span<const std::byte> x() const { return {bytes_.data() + x_at_, x_bytes_}; }
  [[nodiscard]] std::span<std::byte> y() { return {bytes_.data() + y_at_, y_bytes_}; }
  void clear_y() { std::fill(y().begin(), y().end(), kPattern); }

  /// Whether what is around the rows of y is as it was.
  [[nodiscard]] bool untouched() const {
    const auto is_pattern = [](const std::byte* begin, const std::byte* end) {
      return std::all_of(begin, end, [](std::byte b) { return b == kPattern; });
    };
    const std::byte* end = bytes_.data() + bytes_.size();
    bool ok = is_pattern(bytes_.data() + x_at_ + x_bytes_, y_row(0));
    for (int64_t i = 0; i < m_; ++i) ok = ok && is_pattern(y_row(i) + n_ * y_size_, i + 1 < m_ ? y_row(i + 1) : end);
    return ok;
  }

  int64_t x_stride = 0;
  int64_t y_stride = 0;

 private:
  static constexpr std::byte kPattern{0xa5};
  int64_t m_, n_, x_size_, y_size_;
  int64_t x_at_ = 0;
  int64_t y_at_ = 0;
  size_t x_bytes_ = 0;
  size_t y_bytes_ = 0;
  Bytes bytes_;
};

/// Numbers of about 1; `wild`: of very different sizes, zeros, and now and then a row that is not finite.
void fill_x(Random& random, Buffers& buffers, int64_t m, int64_t k, Dtype dtype, bool wild) {
  constexpr float kSpecial[] = {0.0f, -0.0f, 0x1p-118f, 0x1p-149f, 3.4e38f, -3.4e38f};
  for (int64_t i = 0; i < m; ++i) {
    const bool special = wild && random.one_in(8);
    const int scale = wild ? static_cast<int>(random.between(-20, 12)) : 0;
    for (int64_t j = 0; j < k; ++j) {
      float value = std::ldexp(unit(random), scale);
      if (special && random.one_in(3)) value = pick(random, kSpecial);
      if (special && random.one_in(200))
        value = random.one_in(2) ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
      store(random, buffers.x_row(i), dtype, j, value);
    }
  }
}

/// Pools of a few sizes, made once. Null: the caller's thread.
class Pools {
 public:
  [[nodiscard]] ThreadPool* pick(Random& random) {
    const int64_t index = random.between(0, static_cast<int64_t>(std::size(pools_)));
    return index == 0 ? nullptr : &pools_[static_cast<size_t>(index - 1)];
  }
  [[nodiscard]] ThreadPool* all() { return &all_; }

 private:
  ThreadPool pools_[3] = {ThreadPool(2), ThreadPool(3), ThreadPool(7)};
  ThreadPool all_{0};
};

using LinearCandidate = Candidate<const LinearLayerKernel*>;

/// What a run is called in a difference.
struct Described {
  std::string text;
  Dtype y_dtype;
};

uint32_t bits_of(const std::byte* y, Dtype dtype, int64_t i) {
  uint32_t bits = 0;
  std::memcpy(&bits, y + i * static_cast<int64_t>(size_in_bytes(dtype)), size_in_bytes(dtype));
  return bits;
}

void compare_rows(const Buffers& expected, const Buffers& actual, int64_t m, int64_t n, const Described& run,
                  VerifyKernel& kernel) {
  const size_t size = size_in_bytes(run.y_dtype);
  kernel.outputs_compared += static_cast<uint64_t>(m * n);
  kernel.bytes_compared += static_cast<uint64_t>(m * n) * size;
  for (int64_t i = 0; i < m; ++i) {
    if (std::memcmp(expected.y_row(i), actual.y_row(i), static_cast<size_t>(n) * size) == 0) continue;
    for (int64_t j = 0; j < n; ++j) {
      const uint32_t want = bits_of(expected.y_row(i), run.y_dtype, j);
      const uint32_t got = bits_of(actual.y_row(i), run.y_dtype, j);
      if (want != got)
        note_difference(kernel, 1,
                        run.text + ": y[" + std::to_string(i) + ", " + std::to_string(j) + "] has the bits " +
                            std::to_string(got) + ", the reference gives " + std::to_string(want));
    }
  }
  if (!actual.untouched()) note_difference(kernel, 1, run.text + ": written beside y");
}

std::string describe(const Sizes& sizes, uint64_t seed, int64_t index) {
  return "seed " + std::to_string(seed) + ", layer " + std::to_string(index) + ", M=" + std::to_string(sizes.m) +
         " N=" + std::to_string(sizes.n) + " K=" + std::to_string(sizes.k) + " group=" + std::to_string(sizes.group);
}

std::string describe(const LowBitMatrix& matrix) {
  const LowBitParameters& p = matrix.parameters();
  return ", " + std::to_string(p.bits) + " bits " + std::string(to_string(p.kind)) + " " +
         std::string(to_string(p.scales.dtype));
}

LinearClamp random_clamp(Random& random) {
  constexpr LinearClamp kClamps[] = {
      LinearClamp::none(), LinearClamp::none(), LinearClamp::relu(), LinearClamp::relu6(), {-0.5f, 0.75f}};
  return pick(random, kClamps);
}

std::vector<float> random_bias(Random& random, int64_t n) {
  std::vector<float> bias(random.one_in(2) ? static_cast<size_t>(n) : 0);
  for (float& b : bias) b = unit(random);
  return bias;
}

/// One layer of section 11, one set of rows: every kernel gives the bytes of the reference.
Status verify_int8(Random& random, const std::string& where, const Sizes& sizes, Pools& pools,
                   std::vector<LinearCandidate>& kernels) {
  constexpr Dtype kX[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kF64};
  const bool wild = random.one_in(2);
  ISOBIT_ASSIGN_OR_RETURN(const LowBitMatrix matrix, random_matrix(random, sizes, !wild, random.one_in(4)));
  const std::vector<float> bias = random_bias(random, sizes.n);
  LinearOptions options{.activations = random.one_in(2) ? LinearActivations::kInt8 : LinearActivations::kInt8Asymmetric,
                        .bias = bias,
                        .clamp = random_clamp(random),
                        .path = CpuPath::kReference};
  const Dtype x_dtype = pick(random, kX);
  const Dtype y_dtype = pick(random, kStores);
  Buffers expected(random, sizes.m, sizes.k, x_dtype, sizes.n, y_dtype);
  fill_x(random, expected, sizes.m, sizes.k, x_dtype, wild);
  Buffers actual = expected;
  const auto run = [&](const LinearLayer& layer, Buffers& buffers, ThreadPool* pool) -> Status {
    Workspace workspace = layer.workspace(sizes.m, pool == nullptr ? 1 : pool->threads());
    return layer.forward(buffers.x(), x_dtype, buffers.y(), y_dtype, sizes.m, workspace,
                         {.pool = pool, .x_stride = buffers.x_stride, .y_stride = buffers.y_stride, .unchecked = true});
  };
  ISOBIT_ASSIGN_OR_RETURN(const LinearLayer reference, LinearLayer::create(matrix, options, "random"));
  ISOBIT_RETURN_IF_ERROR(run(reference, expected, pools.all()));
  const Described described{where + describe(matrix) + " " + std::string(to_string(options.activations)) + ", " +
                                std::string(to_string(x_dtype)) + " -> " + std::string(to_string(y_dtype)),
                            y_dtype};
  for (LinearCandidate& kernel : kernels) {
    options.path = kernel.run->path;
    ISOBIT_ASSIGN_OR_RETURN(const LinearLayer layer, LinearLayer::create(matrix, options, "random"));
    ThreadPool* const pool = pools.pick(random);
    if (layer.kernel_name() != kernel.run->name) continue;  // it has none of its own for this layer
    actual.clear_y();
    ISOBIT_RETURN_IF_ERROR(run(layer, actual, pool));
    compare_rows(expected, actual, sizes.m, sizes.n, described, kernel.report);
  }
  return {};
}

uint32_t bits_of_nan(Dtype dtype) { return dtype == Dtype::kF32 ? 0x7fc00000 : dtype == Dtype::kF16 ? 0x7e00 : 0x7fc0; }

/// One layer of section 10: every row within its bound of float64, and the same bytes alone and among others. Only the
/// latter of wild layers, of whose results, where they are not ordinary numbers, no bound is claimed.
Status verify_float(Random& random, const std::string& where, const Sizes& sizes, Pools& pools,
                    std::vector<LinearCandidate>& kernels) {
  const bool wild = random.one_in(4);
  ISOBIT_ASSIGN_OR_RETURN(const LowBitMatrix matrix, random_matrix(random, sizes, !wild));
  const std::vector<float> bias = random_bias(random, sizes.n);
  const LinearClamp clamp = random_clamp(random);
  const Dtype dtype = pick(random, kStores);
  Buffers buffers(random, sizes.m, sizes.k, dtype, sizes.n, dtype);
  fill_x(random, buffers, sizes.m, sizes.k, dtype, wild);
  const ReferenceWeights weights = reference_weights(matrix);
  std::vector<ReferenceSum> sums(static_cast<size_t>(sizes.m * sizes.n));
  pools.all()->for_ranges(wild ? 0 : sizes.m, [&](int, int64_t begin, int64_t end) {
    std::vector<float> x(static_cast<size_t>(sizes.k));
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t k = 0; k < sizes.k; ++k) x[static_cast<size_t>(k)] = load_float(buffers.x_row(i), dtype, k);
      for (int64_t n = 0; n < sizes.n; ++n)
        sums[static_cast<size_t>(i * sizes.n + n)] =
            reference_sum(weights, n, x.data(), bias.empty() ? 0.0f : bias[static_cast<size_t>(n)]);
    }
  });
  const double limit = reference_limit(dtype, sizes.k);
  const std::string text = where + describe(matrix) + ", " + std::string(to_string(dtype));
  const auto clamped = [&](float y) { return reference_act(y, clamp); };
  for (LinearCandidate& kernel : kernels) {
    VerifyKernel& report = kernel.report;
    ISOBIT_ASSIGN_OR_RETURN(const LinearLayer plain,
                            LinearLayer::create(matrix, {.bias = bias, .path = kernel.run->path}, "random"));
    ISOBIT_ASSIGN_OR_RETURN(
        const LinearLayer acted,
        LinearLayer::create(matrix, {.bias = bias, .clamp = clamp, .path = kernel.run->path}, "random"));
    ThreadPool* const pool = pools.pick(random);
    Workspace workspace = plain.workspace(sizes.m, pool == nullptr ? 1 : pool->threads());
    const RunOptions options{.pool = pool, .x_stride = buffers.x_stride, .y_stride = buffers.y_stride};
    Buffers with_act = buffers;
    buffers.clear_y();
    ISOBIT_RETURN_IF_ERROR(plain.forward(buffers.x(), dtype, buffers.y(), dtype, sizes.m, workspace, options));
    ISOBIT_RETURN_IF_ERROR(acted.forward(with_act.x(), dtype, with_act.y(), dtype, sizes.m, workspace, options));
    report.outputs_compared += static_cast<uint64_t>(sizes.m * sizes.n);
    report.bytes_compared += static_cast<uint64_t>(sizes.m * sizes.n) * size_in_bytes(dtype);
    Bytes alone(static_cast<size_t>(sizes.n) * size_in_bytes(dtype));
    for (int64_t i = 0; i < sizes.m; ++i) {
      ReferenceRowError error;
      bool same_act = true;
      for (int64_t n = 0; n < sizes.n; ++n) {
        const float y = load_float(buffers.y_row(i), dtype, n);
        if (!wild) error.add(static_cast<double>(y), sums[static_cast<size_t>(i * sizes.n + n)]);
        // lo and hi are numbers of every type, so rounding before act is rounding after it, but for the sign of a 0.
        const float got = load_float(with_act.y_row(i), dtype, n);
        same_act = same_act && (got == clamped(y) || (std::isnan(got) && std::isnan(y)));
        if (std::isnan(y) && bits_of(buffers.y_row(i), dtype, n) != bits_of_nan(dtype))
          note_difference(report, 1, text + ": y[" + std::to_string(i) + ", " + std::to_string(n) + "] is another NaN");
      }
      const std::string row = text + ": row " + std::to_string(i);
      if (!wild && !(error.relative(sizes.k) < limit))
        note_difference(
            report, static_cast<uint64_t>(sizes.n),
            row + " is off by " + std::to_string(error.relative(sizes.k)) + ", must be below " + std::to_string(limit));
      if (!same_act) note_difference(report, static_cast<uint64_t>(sizes.n), row + " is not clamped as it must be");
      ISOBIT_RETURN_IF_ERROR(
          plain.forward(buffers.x().subspan(static_cast<size_t>(buffers.x_row(i) - buffers.x_row(0))), dtype, alone,
                        dtype, 1, workspace));
      if (std::memcmp(alone.data(), buffers.y_row(i), alone.size()) != 0)
        note_difference(report, static_cast<uint64_t>(sizes.n), row + " has other bytes when it is computed alone");
    }
    if (!buffers.untouched() || !with_act.untouched()) note_difference(report, 1, text + ": written beside y");
  }
  return {};
}

/// A grid of any width from 2 to 16 bits, more often of more than 8.
Grid random_code_grid(Random& random) {
  Grid grid{.bits = static_cast<int32_t>(random.one_in(3) ? random.between(2, 8) : random.between(9, 16)),
            .is_signed = random.one_in(2)};
  if (random.one_in(4)) grid.bits = 16;
  grid.zero_point =
      random.one_in(4) ? (random.one_in(2) ? grid.min() : grid.max()) : random.between(grid.min(), grid.max());
  return grid;
}

/// A grid of 8 bits without its zero point.
Grid random_byte_grid(Random& random) { return {.bits = 8, .is_signed = random.one_in(2)}; }

/// Integers of a layer of section 12, some of them beyond the proof. Without `any_width` codes of x and y have 8 bits.
StaticLinearParameters random_static(Random& random, const Sizes& sizes, bool any_width) {
  StaticLinearParameters p;
  p.rows = sizes.n;
  p.columns = sizes.k;
  p.weights = Array::zeros(Dtype::kS8, {sizes.n, sizes.k});
  p.scales = Array::zeros(Dtype::kF32, {sizes.n});
  std::fill_n(p.scales.data<float>(), sizes.n, 1.0f);
  p.bias = Array::zeros(Dtype::kS32, {sizes.n});
  const bool ends = random.one_in(8);
  for (int64_t i = 0; i < p.weights.size(); ++i)
    p.weights.data<int8_t>()[i] =
        static_cast<int8_t>(ends ? (random.one_in(2) ? -128 : 127) : random.between(-128, 127));
  const auto code = [&](const Grid& grid) { return static_cast<int32_t>(random.between(grid.min(), grid.max())); };
  p.input = any_width ? random_code_grid(random) : random_byte_grid(random);
  if (!any_width) p.input.zero_point = code(p.input);
  p.rounding = pick(random, kAllRoundings);
  const int64_t bias_limit = random.one_in(16) ? INT32_MAX : random.one_in(2) ? 100000 : 0;
  for (int64_t n = 0; n < sizes.n; ++n)
    p.bias.data<int32_t>()[n] = static_cast<int32_t>(random.between(-bias_limit, bias_limit));
  if (random.one_in(4)) {
    p.lo = INT32_MIN;
    p.hi = INT32_MAX;
    return p;
  }
  Grid y = any_width ? random_code_grid(random) : random_byte_grid(random);
  if (!any_width) y.zero_point = code(y);
  p.output = y;
  p.lo = static_cast<int32_t>(random.one_in(2) ? y.min() : y.zero_point);
  p.hi = random.one_in(2) ? static_cast<int32_t>(y.max()) : std::max(p.lo, code(y));
  // Results of about the range of y: the width of acc less that of y. Powers of two make ties.
  const int width = static_cast<int>(std::bit_width(static_cast<uint64_t>(sizes.k))) / 2 + 14 + p.input.bits - y.bits;
  const bool powers = random.one_in(3);
  const bool any = random.one_in(8);
  for (int64_t n = 0; n < sizes.n; ++n) {
    const auto shift = static_cast<int32_t>(width - 8 + random.between(-4, 4));
    if (any) {
      p.rescales.push_back(
          {static_cast<int32_t>(random.between(1, INT32_MAX)), static_cast<int32_t>(random.between(-8, 127))});
    } else if (powers) {
      p.rescales.push_back({1, shift});
    } else {
      p.rescales.push_back({static_cast<int32_t>(random.between(1 << 30, INT32_MAX)), shift + 31});
    }
  }
  return p;
}

void fill_codes(Random& random, Buffers& buffers, const StaticLinearParameters& p, int64_t m) {
  for (int64_t i = 0; i < m; ++i) {
    const bool ends = i % 4 == 3;
    for (int64_t k = 0; k < p.columns; ++k) {
      // The low bits of a random number, in two's complement where codes are signed.
      auto code = static_cast<int64_t>(random.next() & ((uint64_t{1} << p.input.bits) - 1));
      if (ends) code = (code & 1) != 0 ? p.input.max() : p.input.min();
      if (code > p.input.max()) code -= int64_t{1} << p.input.bits;
      store_code(buffers.x_row(i), p.x_dtype(), k, code);
    }
  }
}

/// One layer of section 12.
Status verify_static(Random& random, const std::string& where, const Sizes& sizes, Pools& pools,
                     std::vector<LinearCandidate>& kernels) {
  const StaticLinearParameters p = random_static(random, sizes, random.one_in(2));
  Buffers expected(random, sizes.m, sizes.k, p.x_dtype(), sizes.n, p.y_dtype());
  fill_codes(random, expected, p, sizes.m);
  Buffers actual = expected;
  const auto run = [&](Buffers& buffers, CpuPath path, ThreadPool* pool) -> Status {
    ISOBIT_ASSIGN_OR_RETURN(const StaticLinearLayer layer, StaticLinearLayer::create(p, "random", path));
    Workspace workspace = layer.workspace(sizes.m, pool == nullptr ? 1 : pool->threads());
    return layer.forward_codes(buffers.x(), buffers.y(), sizes.m, workspace,
                         {.pool = pool, .x_stride = buffers.x_stride, .y_stride = buffers.y_stride});
  };
  if (const Status status = run(expected, CpuPath::kReference, pools.all()); !status.ok())
    return status.code() == StatusCode::kOverflow ? Status() : status;  // refused by the proof, as it must
  const Described described{where + ", static " + std::to_string(p.input.bits) + " bits " +
                                std::string(to_string(p.x_dtype())) + " -> " +
                                (p.output ? std::to_string(p.output->bits) + " bits " : "") +
                                std::string(to_string(p.y_dtype())) + " " + std::string(to_string(p.rounding)),
                            p.y_dtype()};
  for (LinearCandidate& kernel : kernels) {
    actual.clear_y();
    ISOBIT_RETURN_IF_ERROR(run(actual, kernel.run->path, pools.pick(random)));
    compare_rows(expected, actual, sizes.m, sizes.n, described, kernel.report);
  }
  return {};
}

std::vector<LinearCandidate> candidates(std::string_view operation) {
  std::vector<LinearCandidate> out;
  for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
    if (kernel.operation != operation) continue;
    if (auto report = cpu_kernel("linear_" + std::string(kernel.name), kernel.path))
      out.push_back({*std::move(report), &kernel});
  }
  return out;
}

/// The hash of 96 layers of section 12, which those beyond the proof do not count among.
Status fingerprint_static(const std::string& name, Random& random, bool any_width, std::optional<CpuPath> path,
                          Fingerprints& lines) {
  uint64_t hash = kHashStart;
  for (int index = 0; index < 96;) {
    const Sizes sizes = random_sizes(random);
    const StaticLinearParameters p = random_static(random, sizes, any_width);
    const Result<StaticLinearLayer> layer = StaticLinearLayer::create(p, "random", path);
    if (!layer.ok()) {
      if (layer.status().code() == StatusCode::kOverflow) continue;
      return layer.status();
    }
    ++index;
    Buffers buffers(random, sizes.m, sizes.k, p.x_dtype(), sizes.n, p.y_dtype());
    fill_codes(random, buffers, p, sizes.m);
    Workspace workspace = layer->workspace(sizes.m);
    ISOBIT_RETURN_IF_ERROR(layer->forward_codes(buffers.x(), buffers.y(), sizes.m, workspace,
                                          {.x_stride = buffers.x_stride, .y_stride = buffers.y_stride}));
    for (int64_t i = 0; i < sizes.m; ++i)
      hash_bytes(hash, buffers.y_row(i), static_cast<size_t>(sizes.n) * size_in_bytes(p.y_dtype()));
  }
  lines.emplace_back(name, hash_text(hash));
  return {};
}

}  // namespace

Result<VerifyReport> verify_linear(const VerifyOptions& options) {
  using Verify = Status (*)(Random&, const std::string&, const Sizes&, Pools&, std::vector<LinearCandidate>&);
  struct Family {
    Verify verify;
    std::vector<LinearCandidate> kernels;
  };
  Family families[] = {{verify_int8, candidates("linear_int8")},
                       {verify_float, candidates("linear_float")},
                       {verify_static, candidates("linear_static")}};
  Pools pools;
  Random random(options.seed);
  const auto round = [&](int64_t index) -> Result<uint64_t> {
    uint64_t least = UINT64_MAX;
    for (Family& family : families) {
      if (least_compared(family.kernels) < std::max<uint64_t>(options.outputs, 1)) {
        const Sizes sizes = random_sizes(random);
        ISOBIT_RETURN_IF_ERROR(
            family.verify(random, describe(sizes, options.seed, index), sizes, pools, family.kernels));
      }
      least = std::min(least, least_compared(family.kernels));
    }
    return least;
  };
  ISOBIT_RETURN_IF_ERROR(repeat_until(options.outputs, options.progress, round));
  VerifyReport report;
  for (const Family& family : families) append_reports(family.kernels, report);
  return report;
}

Status fingerprint_linear(std::optional<CpuPath> path, Fingerprints& lines) {
  constexpr Dtype kX[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kF64};
  Random random(20261122);
  uint64_t hash = kHashStart;
  for (int index = 0; index < 96; ++index) {
    const Sizes sizes = random_sizes(random);
    const bool wild = index % 2 == 1;
    ISOBIT_ASSIGN_OR_RETURN(const LowBitMatrix matrix, random_matrix(random, sizes, !wild));
    const std::vector<float> bias = random_bias(random, sizes.n);
    const LinearOptions options{
        .activations = index % 4 < 2 ? LinearActivations::kInt8 : LinearActivations::kInt8Asymmetric,
        .bias = bias,
        .clamp = random_clamp(random),
        .path = path};
    const Dtype x_dtype = pick(random, kX);
    const Dtype y_dtype = pick(random, kStores);
    Buffers buffers(random, sizes.m, sizes.k, x_dtype, sizes.n, y_dtype);
    fill_x(random, buffers, sizes.m, sizes.k, x_dtype, wild);
    ISOBIT_ASSIGN_OR_RETURN(const LinearLayer layer, LinearLayer::create(matrix, options, "random"));
    Workspace workspace = layer.workspace(sizes.m);
    ISOBIT_RETURN_IF_ERROR(
        layer.forward(buffers.x(), x_dtype, buffers.y(), y_dtype, sizes.m, workspace,
                      {.x_stride = buffers.x_stride, .y_stride = buffers.y_stride, .unchecked = true}));
    for (int64_t i = 0; i < sizes.m; ++i)
      hash_bytes(hash, buffers.y_row(i), static_cast<size_t>(sizes.n) * size_in_bytes(y_dtype));
  }
  lines.emplace_back("linear_int8", hash_text(hash));

  ISOBIT_RETURN_IF_ERROR(fingerprint_static("linear_static", random, false, path, lines));
  Random random_of_widths(20261126);
  return fingerprint_static("linear_static_16", random_of_widths, true, path, lines);
}

}  // namespace isobit
