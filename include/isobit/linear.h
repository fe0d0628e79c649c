// SPDX-License-Identifier: Apache-2.0
// Linear layers on low-bit weights. docs/numerics.md, sections 10 to 12.
//
//   y[m, n] = act( sum over k of x[m, k] * W[n, k] + bias[n] )       act: clamp(lo, hi), or none
//
// x is [M, K], y is [M, N], W [N, K] a LowBitMatrix. LinearLayer takes floating-point rows: as they are (kFloat), or
// quantised to 8 bits for each group inside the operation (kInt8, kInt8Asymmetric; the same bytes on every machine).
// StaticLinearLayer takes and gives codes of 2 to 16 bits on fixed grids, and is integers only.
//
//   ISOBIT_ASSIGN_OR_RETURN(LinearLayer layer,
//                           LinearLayer::create(matrix, {.activations = LinearActivations::kInt8, .bias = bias},
//                           "fc"));
//   Workspace workspace = layer.workspace(m);
//   Status status = layer.forward(std::as_bytes(std::span(x)), Dtype::kF32, std::as_writable_bytes(std::span(y)),
//                                 Dtype::kF32, m, workspace);
#ifndef ISOBIT_LINEAR_H_
#define ISOBIT_LINEAR_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/calibration.h"
#include "isobit/cpu.h"
#include "isobit/dtype.h"
#include "isobit/grid.h"
#include "isobit/low_bit.h"
#include "isobit/rounding.h"
#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit {

/// What happens to rows of x before the product.
enum class LinearActivations : int32_t {
  kFloat = 0,           // nothing: section 10
  kInt8 = 1,            // 8-bit codes of each group, symmetric: section 11
  kInt8Asymmetric = 2,  // the same with an offset Oa for each group
};
/// "float", "int8" or "int8_asymmetric".
std::string_view to_string(LinearActivations activations);
std::optional<LinearActivations> linear_activations_from_string(std::string_view text);

/// act: y < lo ? lo : y > hi ? hi : y, in float32. lo <= hi; infinities are allowed, NaN is refused. NaN stays NaN.
struct LinearClamp {
  float lo = -std::numeric_limits<float>::infinity();
  float hi = std::numeric_limits<float>::infinity();

  static constexpr LinearClamp none() { return {}; }
  static constexpr LinearClamp relu() { return {0.0f, std::numeric_limits<float>::infinity()}; }
  static constexpr LinearClamp relu6() { return {0.0f, 6.0f}; }
  bool operator==(const LinearClamp&) const = default;
};

/// A kernel of linear layers on the CPU, as `kernel_name` gives it.
struct LinearLayerKernel {
  std::string_view name;       // "float_avx2", "int8_avx512vnni", "static_scalar"
  std::string_view operation;  // "linear_float", "linear_int8" (symmetric and asymmetric) or "linear_static"
  CpuPath path = CpuPath::kReference;
  std::string_view why;  // why it is there, in a few words
};
/// In a fixed order, those included that cannot run here (cpu_can_run says).
std::span<const LinearLayerKernel> linear_layer_kernels();

struct LinearOptions {
  LinearActivations activations = LinearActivations::kFloat;
  std::span<const float> bias{};  // [N], or empty: +0. Any float32.
  LinearClamp clamp{};
  std::optional<CpuPath> path{};  // default: default_cpu_path(); reference where only it can run
};

/// A linear layer with floating-point rows in and out. Immutable, cheap to copy, safe to share between threads.
class LinearLayer {
 public:
  /// Packs the weights for the path chosen; the matrix is not needed afterwards. `name` is the layer in messages.
  /// Errors: kInvalidArgument for a bias that has not N elements, a clamp with NaN or lo > hi, or activations that do
  /// not exist; kFailedPrecondition for a path that this machine cannot run; kUnsupported for a requested path that has
  /// no kernel for this layer.
  static Result<LinearLayer> create(const LowBitMatrix& matrix, const LinearOptions& options, std::string_view name);

  [[nodiscard]] int64_t rows() const;     // N
  [[nodiscard]] int64_t columns() const;  // K
  [[nodiscard]] LinearActivations activations() const;
  [[nodiscard]] CpuPath path() const;
  /// One of linear_layer_kernels().
  [[nodiscard]] std::string_view kernel_name() const;
  /// Of the packed weights, with scales, bias and what else forward reads.
  [[nodiscard]] int64_t size_bytes() const;

  /// Enough for calls with up to m rows on up to `threads` threads. m below 0 counts as 0, threads below 1 as 1.
  [[nodiscard]] Workspace workspace(int64_t m, int32_t threads = 1) const;

  /// y = act(x W^T + bias) for m rows, m >= 0.
  ///   kFloat: x is f32, f16 or bf16, y of the same type. The order of the sums is the kernel's own; a row of y depends
  ///     on its row of x, on the layer and on the kernel only. NaN and infinity in x touch their own row.
  ///   kInt8, kInt8Asymmetric: x is f32, f16, bf16 or f64, y is f32, f16 or bf16, any pair. Every byte is determined by
  ///     section 11. A row of x with NaN or infinity (asymmetric: with a group whose range is infinite) is refused by
  ///     its index, unless the call is unchecked.
  /// x has at least (m - 1) * x_stride + K elements, y (m - 1) * y_stride + N, both aligned to their elements, apart
  /// from each other. Allocates nothing when it succeeds.
  /// Errors: kUnsupported for other types; kInvalidArgument for sizes, strides, alignment, overlap, a workspace that is
  /// too small, or rows that are not finite. Nothing is written then.
  [[nodiscard]] Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                               int64_t m, Workspace& workspace, const RunOptions& options = {}) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// ---------------------------------------------------------------------------------------------------------------
// Static codes

/// Every integer of a layer of static codes, and what the codes stand for:
///   acc[m, n] = sum over k of (x[m, k] - input.zero_point) * weights[n, k] + bias[n]
///   y[m, n]   = acc[m, n], int32, without an output grid; else
///               clamp(round_shift(acc[m, n] * multiplier[n], shift[n], rounding) + output.zero_point, lo, hi)
struct StaticLinearParameters {
  int64_t rows = 0;         // N
  int64_t columns = 0;      // K
  int32_t weight_bits = 8;  // 1, 2, 4 or 8
  Array weights;            // s8 [N, K], each in -2^(weight_bits - 1)..2^(weight_bits - 1) - 1; 1 bit: -1 or 1
  Array scales;             // f32 [N]: S_w, positive and finite; no result depends on it
  Array bias;               // s32 [N], on the scale S_x * S_w[n]
  Grid input{};             // of x: 2 to 16 bits
  /// Of y: 2 to 16 bits; none: y is acc, on the scale S_x * S_w[n] with zero point 0.
  std::optional<Grid> output{};
  std::vector<RescaleParameters> rescales;  // [N]; none without an output grid
  int32_t lo = -128;                        // codes of y, lo <= hi; without an output grid the ends of int32
  int32_t hi = 127;
  Rounding rounding = Rounding::kNearestEven;

  [[nodiscard]] Dtype x_dtype() const { return input.dtype(); }                           // s8, u8, s16 or u16
  [[nodiscard]] Dtype y_dtype() const { return output ? output->dtype() : Dtype::kS32; }  // the same, or s32
  bool operator==(const StaticLinearParameters&) const = default;
};

struct StaticLinearOptions {
  Grid input{};                   // of x: 2 to 16 bits
  std::optional<Grid> output{};   // of y: 2 to 16 bits; none: int32 accumulators on the scale S_x * S_w[n]
  std::span<const float> bias{};  // [N], finite, or empty: 0
  LinearClamp clamp{};            // in real numbers; none without an output grid
  Rounding rounding = Rounding::kNearestEven;
};

/// Section 12: from symmetric weights with one group a row (quantize_low_bit with group = K) and grids to integers. A
/// row of zeros takes the smallest scale of the other rows; of 1 bit it is refused. A bias beyond int32 is clamped.
/// Errors: kInvalidArgument for other weights, a scale that is negative, grids of other widths, a bias that is not
/// finite or has not N elements, a clamp that is not one; kOverflow for a ratio of scales that has no encoding, or
/// accumulators that do not fit.
Result<StaticLinearParameters> derive_static_linear(const LowBitMatrix& matrix, const StaticLinearOptions& options,
                                                    std::string_view name);

/// Section 12, of a layer whose weights, scales and bias are integers already, such as one of TFLite: `layer` with the
/// rescales of the ratios S_x * scales[n] / S_y, and with lo and hi of `clamp`, in real numbers, in place of its own.
/// Errors: kInvalidArgument for a field outside its limits and a clamp that is not one, or not none without an output
/// grid; kOverflow for a ratio that has no encoding. StaticLinearLayer::create does the rest.
Result<StaticLinearParameters> derive_static_requantization(StaticLinearParameters layer, const LinearClamp& clamp,
                                                            std::string_view name);

/// Ranges of real numbers, lowest and highest, that the grids of a static layer cover; default: those of the data.
struct StaticLinearRanges {
  std::optional<std::pair<float, float>> x{}, y{};
};
/// `options` with grids of 8 bits and general scales in place of its own, for data `x` [m, K], finite. Without a range
/// of y the layer computes y of this data in accumulators, which are exact: the same grid on every machine.
/// Errors: those of derive_static_linear and derive_grid; kInvalidArgument for other sizes and values that are not
/// finite.
Result<StaticLinearOptions> choose_static_grids(const LowBitMatrix& matrix, std::span<const float> x,
                                                const StaticLinearOptions& options, const StaticLinearRanges& ranges,
                                                std::string_view name, ThreadPool* pool = nullptr);

/// A linear layer of static codes. Immutable, cheap to copy, safe to share between threads.
class StaticLinearLayer {
 public:
  /// Checks every field, bounds every intermediate (section 8) and packs the weights. `path` as in LinearOptions;
  /// `name` is the layer in messages and in files.
  /// Errors: kInvalidArgument for a field outside its limits; kOverflow for an intermediate beyond int64, or an
  /// accumulator beyond int32 that is the result; those of LinearLayer::create for a path.
  static Result<StaticLinearLayer> create(StaticLinearParameters parameters, std::string_view name,
                                          std::optional<CpuPath> path = {});

  [[nodiscard]] const StaticLinearParameters& parameters() const;
  [[nodiscard]] const std::string& name() const;
  [[nodiscard]] const Grid& input_grid() const { return parameters().input; }
  [[nodiscard]] const std::optional<Grid>& output_grid() const { return parameters().output; }
  /// What the magnitude of an accumulator can reach: the largest X of section 12.
  [[nodiscard]] int64_t accumulator_bound() const;
  [[nodiscard]] CpuPath path() const;
  /// One of linear_layer_kernels().
  [[nodiscard]] std::string_view kernel_name() const;

  /// As LinearLayer::workspace.
  [[nodiscard]] Workspace workspace(int64_t m, int32_t threads = 1) const;

  /// x: codes of parameters().x_dtype(), y: of y_dtype(); sizes, strides, alignment, overlap and errors as in
  /// LinearLayer::forward (`unchecked` has no meaning here). A code outside the grid of x is refused by its place.
  [[nodiscard]] Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                               int64_t m, Workspace& workspace, const RunOptions& options = {}) const;
  /// The same, of the only types that there are.
  [[nodiscard]] Status forward_codes(std::span<const std::byte> x, std::span<std::byte> y, int64_t m,
                                     Workspace& workspace, const RunOptions& options = {}) const {
    return forward(x, parameters().x_dtype(), y, parameters().y_dtype(), m, workspace, options);
  }

  /// docs/formats.md. The file appears whole or not at all; the same layers give the same bytes.
  [[nodiscard]] Status save(const std::string& path) const;
  /// The content of the file that save() writes; ArrayReader::view reads it.
  [[nodiscard]] Result<std::vector<std::byte>> saved_bytes() const;
  /// Names must differ.
  static Status save_all(const std::string& path, std::span<const StaticLinearLayer* const> layers);
  /// Checks all that create does: a file gets no more trust than a caller. `name`: of several layers in a file;
  /// `cpu_path` as in create.
  static Result<StaticLinearLayer> load(const std::string& path, std::string_view name = {},
                                        std::optional<CpuPath> cpu_path = {});
  static Result<StaticLinearLayer> load(const ArrayReader& file, std::string_view name = {},
                                        std::optional<CpuPath> cpu_path = {});
  static Result<std::vector<StaticLinearLayer>> load_all(const ArrayReader& file, std::optional<CpuPath> cpu_path = {});

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// How a layer of static codes is made from float weights and statistics.
struct StaticLinearQuantization {
  GridOptions x{};                              // 2 to 16 bits
  std::optional<Grid> input{};                  // in place of x: the grid of what comes before (GruModel::output_grid)
  std::optional<GridOptions> y{GridOptions{}};  // 2 to 16 bits; none: int32 accumulators
  ScaleKind scale = ScaleKind::kPow2;           // of x and y
  CalibrationOptions x_method{}, y_method{};
  int32_t weight_bits = 8;                             // 1, 2, 4 or 8
  LowBitMethod weight_method = LowBitMethod::kAbsmax;  // or kMse
  Rounding rounding = Rounding::kNearestEven;
};

/// Statistics of x and of y = act(x W^T + bias), and the layer that is derived from them: section 12. Statistics are
/// the same on every machine, and depend on neither the order of calls nor threads.
class StaticLinearCalibrator {
 public:
  /// weights: f32, f16 or bf16 [N, K]; bias [N], or empty: none. All are finite. `name` is the layer in messages.
  static Result<StaticLinearCalibrator> create(const Array& weights, std::span<const float> bias,
                                               const LinearClamp& clamp, std::string_view name, double ema_decay = 0.9);

  /// x [steps, batch, K]: `batch` sequences (which only the method ema tells apart). An x or y that is not finite is
  /// refused by its place, and nothing is observed then.
  Status observe(std::span<const float> x, int64_t steps, int64_t batch = 1, ThreadPool* pool = nullptr);
  /// Adds statistics of a calibrator of the same weights, bias, clamp and decay; exact, in any order.
  Status merge(const StaticLinearCalibrator& other);
  [[nodiscard]] const TensorStatistics& x_statistics() const { return x_; }
  [[nodiscard]] const TensorStatistics& y_statistics() const { return y_; }

  /// Grids, weights, bias and rescales. A row whose weights are so small that its bias would overflow takes a larger
  /// scale; of 1 bit it is refused. Errors: those of choose_grid, quantize_low_bit and derive_static_linear.
  [[nodiscard]] Result<StaticLinearParameters> derive(const StaticLinearQuantization& quantization) const;
  [[nodiscard]] Result<StaticLinearLayer> finish(const StaticLinearQuantization& quantization,
                                                 std::optional<CpuPath> path = {}) const;

 private:
  StaticLinearCalibrator() = default;

  Array weights_;            // f32 [N, K]
  std::vector<float> bias_;  // [N], or empty
  LinearClamp clamp_;
  std::string name_;
  TensorStatistics x_, y_;
};

}  // namespace isobit

#endif  // ISOBIT_LINEAR_H_
