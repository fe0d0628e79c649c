// SPDX-License-Identifier: Apache-2.0
// Internal to verify: linear layers, whoever computes: the paths of the CPU (linear.cc), a device (cuda.cc).
#ifndef ISOBIT_VERIFY_LINEAR_H_
#define ISOBIT_VERIFY_LINEAR_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "isobit/cpu.h"
#include "isobit/dtype.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "isobit/parallel.h"
#include "isobit/status.h"
#include "isobit/verify.h"
#include "linear/layer_reference.h"
#include "verify/operations.h"

namespace isobit {

/// Rows of x in one memory with y behind them, each from an odd address, strides of their own, and a pattern wherever
/// nothing may be written.
class LinearBuffers {
 public:
  LinearBuffers(Random& random, int64_t m, int64_t k, Dtype x_dtype, int64_t n, Dtype y_dtype)
      : LinearBuffers(random, m, k, x_dtype, m, n, y_dtype) {}
  /// x has other rows than y, as of a convolution.
  LinearBuffers(Random& random, int64_t x_rows, int64_t k, Dtype x_dtype, int64_t y_rows, int64_t n, Dtype y_dtype)
      : x_rows_(x_rows),
        k_(k),
        y_rows_(y_rows),
        n_(n),
        x_size_(static_cast<int64_t>(size_in_bytes(x_dtype))),
        y_size_(static_cast<int64_t>(size_in_bytes(y_dtype))) {
    const bool dense = random.one_in(2);
    x_stride = k + (dense ? 0 : random.between(0, 9));
    y_stride = n + (dense ? 0 : random.between(0, 9));
    const int64_t x_bytes = ((x_rows - 1) * x_stride + k) * x_size_;
    const int64_t y_bytes = ((y_rows - 1) * y_stride + n) * y_size_;
    x_at_ = random.between(0, 64 / x_size_) * x_size_;
    y_at_ = (x_at_ + x_bytes + 64 + 63) / 64 * 64 + random.between(0, 64 / y_size_) * y_size_;
    bytes_.assign(static_cast<size_t>(y_at_ + y_bytes + 64), kPattern);
  }

  [[nodiscard]] std::byte* x_row(int64_t i) { return bytes_.data() + x_at_ + i * x_stride * x_size_; }
  [[nodiscard]] const std::byte* y_row(int64_t i) const { return bytes_.data() + y_at_ + i * y_stride * y_size_; }
  /// `count` rows from one on.
  [[nodiscard]] std::span<std::byte> x(int64_t first, int64_t count) {
    return {x_row(first), static_cast<size_t>(((count - 1) * x_stride + k_) * x_size_)};
  }
  [[nodiscard]] std::span<std::byte> y(int64_t first, int64_t count) {
    return {const_cast<std::byte*>(y_row(first)), static_cast<size_t>(((count - 1) * y_stride + n_) * y_size_)};
  }
  /// All rows, one behind the other in `codes`.
  void fill_x(std::span<const std::byte> codes) {
    const auto bytes = static_cast<size_t>(k_ * x_size_);
    for (int64_t i = 0; i < x_rows_; ++i) std::memcpy(x_row(i), codes.data() + static_cast<size_t>(i) * bytes, bytes);
  }
  /// All of the memory.
  [[nodiscard]] std::span<std::byte> bytes() { return bytes_; }
  void clear_y() {
    const std::span<std::byte> rows = y(0, y_rows_);
    std::fill(rows.begin(), rows.end(), kPattern);
  }

  /// Whether what is around the rows of y is as it was.
  [[nodiscard]] bool untouched() const {
    const auto is_pattern = [](const std::byte* begin, const std::byte* end) {
      return std::all_of(begin, end, [](std::byte b) { return b == kPattern; });
    };
    const std::byte* end = bytes_.data() + bytes_.size();
    bool ok = is_pattern(bytes_.data() + x_at_ + ((x_rows_ - 1) * x_stride + k_) * x_size_, y_row(0));
    for (int64_t i = 0; i < y_rows_; ++i)
      ok = ok && is_pattern(y_row(i) + n_ * y_size_, i + 1 < y_rows_ ? y_row(i + 1) : end);
    return ok;
  }

  int64_t x_stride = 0;
  int64_t y_stride = 0;

 private:
  static constexpr std::byte kPattern{0xa5};
  int64_t x_rows_, k_, y_rows_, n_, x_size_, y_size_;
  int64_t x_at_ = 0;
  int64_t y_at_ = 0;
  std::vector<std::byte> bytes_;
};

/// Pools of a few sizes, made once. Null: the caller's thread.
class Pools {
 public:
  explicit Pools(uint64_t seed) : random_(seed) {}
  [[nodiscard]] ThreadPool* pick() {
    const int64_t index = random_.between(0, static_cast<int64_t>(std::size(pools_)));
    return index == 0 ? nullptr : &pools_[static_cast<size_t>(index - 1)];
  }

 private:
  Random random_;
  ThreadPool pools_[3] = {ThreadPool(2), ThreadPool(3), ThreadPool(7)};
};

/// Who gives what is expected: the reference, or the best path of the CPU; and what a run is called in a difference.
struct Measure {
  std::optional<CpuPath> path;
  ThreadPool* pool;
  std::map<std::string, uint64_t>* expected_by;
  std::string text;
};

/// kernel.run, whose errors name the layer and the kernel.
template <typename Run, typename... Arguments>
Result<bool> run_named(const std::string& text, const Candidate<Run>& kernel, Arguments&&... arguments) {
  Result<bool> ran = kernel.run(std::forward<Arguments>(arguments)...);
  if (ran.ok()) return ran;
  return Status(ran.status().code(), text + ", " + kernel.report.name + ": " + ran.status().message());
}

/// What is expected, by which path, and of what type.
struct ExpectedRows {
  const LinearBuffers& buffers;
  CpuPath path;
  Dtype y_dtype;
};
/// Rows of y byte by byte, and what is beside them.
void compare_rows(const ExpectedRows& expected, const LinearBuffers& actual, int64_t m, int64_t n,
                  const Measure& measure, VerifyKernel& kernel);

/// m rows in calls of any numbers of them, half of the times of one.
std::vector<int64_t> random_calls(Random& random, int64_t m);

/// Results of section 10: of one call without act, of one with it, and of any calls.
struct FloatRows {
  const LinearBuffers &plain, &with_act, &in_calls;
  int64_t m, n;
  int64_t depth;  // K
  Dtype dtype;
  LinearClamp clamp;
  std::span<const ReferenceSum> sums;  // [M, N] without act; empty: no bound is claimed
};
/// Every row within its bound, clamped as it must be, and with the same bytes in any calls.
void compare_float_rows(const FloatRows& rows, const std::string& text, VerifyKernel& kernel);

/// A layer of section 10 or 11, and how its rows are computed: so many in each call.
struct LinearCase {
  LowBitMatrix matrix;
  LinearActivations activations = LinearActivations::kFloat;
  std::vector<float> bias{};
  LinearClamp clamp{};
  Dtype x_dtype = Dtype::kF32, y_dtype = Dtype::kF32;
  std::vector<int64_t> calls{};

  [[nodiscard]] LinearOptions options(std::optional<CpuPath> path = {}) const {
    return {.activations = activations, .bias = bias, .clamp = clamp, .path = path};
  }
};
/// Writes y of the buffers, also of rows that are not finite; false where the kernel is none for this layer.
using LinearRun = std::function<Result<bool>(const LinearCase&, LinearBuffers&)>;

/// The same of a layer of section 12 and m rows of codes.
using StaticLinearRun = std::function<Result<bool>(const StaticLinearParameters&, int64_t m, LinearBuffers&)>;

struct LinearCandidates {
  std::vector<Candidate<LinearRun>> int8{}, floats{};
  std::vector<Candidate<StaticLinearRun>> statics{};
  /// Layers are larger, and but for one in 100 the best path of the CPU is the measure of int8 and static.
  bool on_device = false;
};
Result<VerifyReport> verify_linear_with(LinearCandidates candidates, const VerifyOptions& options);
/// The verifier of random layers on the kernels of the CPU.
Result<VerifyReport> verify_linear(const VerifyOptions& options);

/// Integers of a layer of section 12 of N rows and K columns, some of them beyond the proof. Without `any_width` codes
/// of x and y have 8 bits.
StaticLinearParameters random_static(Random& random, int64_t rows, int64_t columns, bool any_width);
/// The nearest weights below of fewer bits, of 1 bit the signs, and results of about the same range.
void narrow_weights(StaticLinearParameters& p, int32_t bits);

/// On a path of the CPU; without one, on the default.
LinearRun linear_run(std::optional<CpuPath> path);
StaticLinearRun static_linear_run(std::optional<CpuPath> path);
/// Appends the hashes of what section 11 and section 12 determine.
Status fingerprint_linear(const LinearRun& run, const StaticLinearRun& run_codes, Fingerprints& lines);

}  // namespace isobit

#endif  // ISOBIT_VERIFY_LINEAR_H_
