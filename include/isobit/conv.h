// SPDX-License-Identifier: Apache-2.0
// Convolutions: numerics.md, section 12. Images are [B, H, W, C], weights [O, R, S, C / groups].
#ifndef ISOBIT_CONV_H_
#define ISOBIT_CONV_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/cpu.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit {

/// What a convolution does along one dimension of an image.
struct ConvAxis {
  int64_t kernel = 1;  // R or S
  int64_t stride = 1;
  int64_t dilation = 1;
  int64_t pad_before = 0;  // top or left
  int64_t pad_after = 0;   // bottom or right
  int64_t more = 0;        // of a transposed convolution: outputs beyond the last

  bool operator==(const ConvAxis&) const = default;

  /// What the kernel covers, dilation * (kernel - 1) + 1.
  [[nodiscard]] int64_t extent() const { return dilation * (kernel - 1) + 1; }
};

struct ConvShape {
  int64_t channels = 1;  // C
  int64_t outputs = 1;   // O
  int64_t groups = 1;    // divides both; depthwise: C
  ConvAxis rows{}, columns{};
  bool transposed = false;

  bool operator==(const ConvShape&) const = default;

  /// K = R * S * C / groups of the linear layer that an output is a row of, k over (r, s, c).
  [[nodiscard]] int64_t depth() const { return rows.kernel * columns.kernel * group_channels(); }
  [[nodiscard]] int64_t group_channels() const { return channels / groups; }
  /// The first channel of x that output o reads.
  [[nodiscard]] int64_t first_channel(int64_t o) const { return o / (outputs / groups) * group_channels(); }
};

/// Errors: kInvalidArgument for sizes below 1, pads below 0, sizes above 2^31 - 1, groups that do not divide channels
/// and outputs, outputs beyond the last of a convolution that is not transposed, or as many as stride and dilation.
/// They name `name`, the field, its value and its limit.
Status check_conv_shape(const ConvShape& shape, std::string_view name);

/// What a convolution has besides its weights; of rows, then of columns.
struct ConvAttributes {
  std::array<int64_t, 2> stride{1, 1}, dilation{1, 1};
  std::array<int64_t, 4> padding{};         // top, bottom, left, right
  std::array<int64_t, 2> output_padding{};  // ConvAxis::more
  int64_t groups = 1;
  bool transposed = false;
};
/// The shape of a convolution with these weights. Errors: kInvalidArgument for groups outside 1 to O; those of
/// check_conv_shape.
Result<ConvShape> conv_shape_of(const ConvWeights& weights, const ConvAttributes& attributes, std::string_view name);

struct ImageSize {
  int64_t rows = 1;     // H or P
  int64_t columns = 1;  // W or Q

  bool operator==(const ImageSize&) const = default;
};

/// P and Q of images of a size. Errors: those of check_conv_shape; kInvalidArgument for sizes of an image outside 1 to
/// 2^31 - 1, and where P or Q would be: a kernel larger than the padded image.
Result<ImageSize> conv_output_size(const ConvShape& shape, const ImageSize& image, std::string_view name);

/// The pixel of x, of `pixels` along this axis, that kernel element `tap` multiplies for output `output`; none outside
/// x. All of them, and sums of pads and sizes, are below 2^32.
std::optional<int64_t> conv_pixel(const ConvAxis& axis, bool transposed, int64_t pixels, int64_t output, int64_t tap);

// ---------------------------------------------------------------------------------------------------------------
// Floating-point images

/// What happens to x before the product.
enum class ConvActivations : int32_t {
  kFloat = 0,           // nothing: section 10
  kInt8 = 1,            // 8-bit codes of each block of channels of a pixel, symmetric: section 11
  kInt8Asymmetric = 2,  // the same with an offset for each block
  kInt8PerImage = 3,    // 8-bit codes with one symmetric scale for each image
};
/// "float", "int8", "int8_asymmetric" or "int8_per_image".
std::string_view to_string(ConvActivations activations);
std::optional<ConvActivations> conv_activations_from_string(std::string_view text);

struct ConvOptions {
  ConvActivations activations = ConvActivations::kFloat;
  std::span<const float> bias{};  // [O], or empty: +0. Any float32.
  LinearClamp clamp{};
  std::optional<CpuPath> path{};  // default: default_cpu_path(); reference where only it can run
};

/// A convolution with floating-point images in and out, on low-bit weights: numerics.md, sections 10 to 12.
///   y[b, p, q, o] = act( sum over (r, s, c) of x[b, i, j, first_channel + c] * W[o, r, s, c] + bias[o] )
/// Of the int8 kinds every byte is determined; of kFloat the order of sums is the kernel's own. Immutable, cheap to
/// copy, safe to share between threads.
class ConvLayer {
 public:
  /// weights: [O * R * S, C / groups], rows in the order (o, r, s), with groups of section 9 along the channels; or
  /// [O, R * S * C / groups], k over (r, s, c), c fastest, with one group a row, which all (r, s) share. kInt8PerImage
  /// takes the second only, symmetric. `name` is the layer in messages.
  /// Errors: those of check_conv_shape and LinearLayer::create; kInvalidArgument for weights of other sizes or kinds;
  /// kUnsupported: kInt8Asymmetric where blocks of channels must be filled up to a multiple of 8 and weights have no
  /// code for zero; kInt8PerImage with R * S * C / groups of 65,536 and more.
  static Result<ConvLayer> create(const ConvShape& shape, const LowBitMatrix& weights, const ConvOptions& options,
                                  std::string_view name);

  [[nodiscard]] const ConvShape& shape() const;
  [[nodiscard]] ConvActivations activations() const;
  [[nodiscard]] const std::string& name() const;
  [[nodiscard]] CpuPath path() const;

  /// For runs of up to so many images of this size. Errors: those of conv_output_size; kInvalidArgument for images < 0
  /// or sizes in bytes beyond int64.
  [[nodiscard]] Result<Workspace> workspace(int64_t images, const ImageSize& image, int32_t threads = 1) const;

  /// x: [images, H, W, C], y: [images, P, Q, O]. Types, and what is not finite, as in LinearLayer::forward: the int8
  /// kinds refuse a pixel of x (kInt8PerImage: an image) by its place, unless the call is unchecked; its outputs are
  /// NaN then. Strides are from pixel to pixel. Of the options path, pool, strides and unchecked. Allocates nothing
  /// when it succeeds, but on the reference. Errors: those of LinearLayer::forward. Nothing is written then.
  [[nodiscard]] Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                               int64_t images, const ImageSize& image, Workspace& workspace,
                               const RunOptions& options = {}) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// ---------------------------------------------------------------------------------------------------------------
// Static codes

/// Codes that are added before the clamp: `y = clamp(rs(acc) + rs_r(q - z) + z_y, lo, hi)`.
struct StaticResidual {
  Grid grid{};                  // of q: 2 to 16 bits
  RescaleParameters rescale{};  // rs_r, of the ratio S_r / S_y

  bool operator==(const StaticResidual&) const = default;
};
/// rs_r for codes of `grid` and results of `output`. Errors: kInvalidArgument where a grid has not 2 to 16 bits, or the
/// ratio of scales cannot be encoded (section 2).
Result<StaticResidual> derive_static_residual(const Grid& grid, const Grid& output, std::string_view name);

struct StaticConvParameters {
  ConvShape shape{};
  /// The layer whose row is an output: rows = O, columns = R * S * C / groups, k over (r, s, c), c fastest.
  StaticLinearParameters linear{};
  std::optional<StaticResidual> residual{};  // with an output grid only

  bool operator==(const StaticConvParameters&) const = default;
};

/// Kernels of convolutions on the CPU, in the order of paths, those included that cannot run here. A path takes its
/// own, or that of the nearest path before it.
std::span<const LinearLayerKernel> static_conv_kernels();

/// A convolution of static codes, immutable: any number of threads may run it at once, each with its own workspace.
/// `y[b, p, q, o] = clamp(rs_o(acc) + z_y, lo, hi)`, acc of section 12: a pixel outside x is the zero point of x. All
/// paths give the same bytes.
class StaticConvLayer {
 public:
  /// Checks shape and layer, bounds every intermediate (section 8) and packs the weights. path: default, the fastest of
  /// this processor; the reference where kernels cannot hold the layer (R * S * C / groups above 65793).
  /// Errors: those of check_conv_shape and StaticLinearLayer::create; kInvalidArgument where they do not fit each
  /// other; kOverflow where a residual leaves int64.
  static Result<StaticConvLayer> create(StaticConvParameters parameters, std::string_view name,
                                        std::optional<CpuPath> path = {});

  [[nodiscard]] const StaticConvParameters& parameters() const;
  [[nodiscard]] const std::string& name() const;
  [[nodiscard]] CpuPath path() const;
  /// One of static_conv_kernels().
  [[nodiscard]] std::string_view kernel_name() const;
  /// The largest X of section 12: no |acc| is above it.
  [[nodiscard]] int64_t accumulator_bound() const;

  /// Files of layers (docs/formats.md), and errors, as of StaticLinearLayer.
  [[nodiscard]] Status save(const std::string& path) const;
  [[nodiscard]] Result<std::vector<std::byte>> saved_bytes() const;
  static Status save_all(const std::string& path, std::span<const StaticConvLayer* const> layers);
  static Result<StaticConvLayer> load(const std::string& path, std::string_view name = {},
                                      std::optional<CpuPath> cpu_path = {});
  static Result<StaticConvLayer> load(const ArrayReader& file, std::string_view name = {},
                                      std::optional<CpuPath> cpu_path = {});
  static Result<std::vector<StaticConvLayer>> load_all(const ArrayReader& file, std::optional<CpuPath> cpu_path = {});

  /// For runs of up to so many images of this size. Errors: those of conv_output_size; kInvalidArgument for images < 0
  /// or sizes in bytes beyond int64.
  [[nodiscard]] Result<Workspace> workspace(int64_t images, const ImageSize& image, int32_t threads = 1) const;
  /// Of the memory that such a workspace has.
  [[nodiscard]] Result<int64_t> workspace_bytes(int64_t images, const ImageSize& image, int32_t threads = 1) const;

  /// x: codes [images, H, W, C] of parameters().linear.x_dtype(); y: [images, P, Q, O] of y_dtype(). residual: codes as
  /// y, of the residual's grid, where the layer has one; apart from y or y itself. Of the options path, pool and
  /// strides, from pixel to pixel.
  /// Errors: kInvalidArgument for sizes, strides, alignment, overlap of x and y, a workspace that is too small, and a
  /// code outside its grid, by its place (pixel, channel).
  [[nodiscard]] Status forward(std::span<const std::byte> x, std::span<std::byte> y, int64_t images,
                               const ImageSize& image, Workspace& workspace, const RunOptions& options = {},
                               std::span<const std::byte> residual = {}) const;

 private:
  friend class StaticConvStream;
  struct Impl;
  /// Of a stream: for chunks of up to so many outputs behind what was seen.
  [[nodiscard]] Result<Workspace> chunk_workspace(int64_t images, int64_t seen, int64_t outputs, int32_t threads) const;
  std::shared_ptr<const Impl> impl_;
};

/// What a stream has seen last, and room for its next chunk. Belongs to one stream of chunks.
class StaticConvState {
 public:
  /// [images, pad_before, C], at the beginning the zero point of x.
  [[nodiscard]] std::span<std::byte> codes() { return std::span(memory_).first(codes_bytes_); }
  [[nodiscard]] int64_t images() const { return images_; }
  /// The largest chunk.
  [[nodiscard]] int64_t columns() const { return columns_; }

 private:
  friend class StaticConvStream;
  int64_t images_ = 0, columns_ = 0;
  size_t codes_bytes_ = 0;
  std::vector<std::byte> memory_;
};

/// A convolution of one dimension whose x comes in chunks of columns: the outputs of all chunks are those of the whole.
class StaticConvStream {
 public:
  /// shape.rows: kernel 1, stride 1, no pads. shape.columns: pad_after 0, and pad_before, what the state holds, from
  /// max(0, extent - stride) to extent - 1; causal is extent - 1. Errors: those of StaticConvLayer::create, and
  /// kInvalidArgument for other shapes.
  static Result<StaticConvStream> create(StaticConvParameters parameters, std::string_view name,
                                         std::optional<CpuPath> path = {});

  [[nodiscard]] const StaticConvParameters& parameters() const;
  /// For chunks of up to so many columns. Errors: kInvalidArgument for sizes below 1 or beyond int64.
  [[nodiscard]] Result<StaticConvState> state(int64_t images, int64_t columns) const;
  /// For such chunks.
  [[nodiscard]] Result<Workspace> workspace(int64_t images, int64_t columns, int32_t threads = 1) const;

  /// x: [images, columns, C], y: [images, columns / stride, O]; columns: a multiple of the stride, at most those of the
  /// state, which then holds what comes next. All else, errors too, as in StaticConvLayer::forward; where x is refused
  /// the state is as before.
  [[nodiscard]] Status forward(std::span<const std::byte> x, std::span<std::byte> y, int64_t images, int64_t columns,
                               StaticConvState& state, Workspace& workspace, const RunOptions& options = {},
                               std::span<const std::byte> residual = {}) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

enum class PoolKind : int32_t { kMax = 0, kAverage = 1 };

struct StaticPoolParameters {
  PoolKind kind = PoolKind::kMax;
  ConvAxis rows{}, columns{};   // the window; each pad is smaller than its side
  Grid input{};                 // of x: 2 to 16 bits
  Grid output{};                // of y: 2 to 16 bits; of kMax that of x
  bool counts_outside = false;  // kAverage: sums are divided by R * S, not by the number of pixels inside x
  Rounding rounding = Rounding::kNearestEven;
};

/// Pooling of static codes: numerics.md, section 12. Immutable; needs no workspace.
///   kMax      y = the largest code of the window inside x
///   kAverage  y = clamp(rs_n(sum of q - z_x) + z_y), rs_n of the ratio S_x / (n * S_y)
class StaticPool {
 public:
  /// Errors: kInvalidArgument for what check_conv_shape refuses of the window, pads as large as it, a grid that has not
  /// 2 to 16 bits, kMax with two grids, kAverage with a ratio that cannot be encoded (section 2).
  static Result<StaticPool> create(const StaticPoolParameters& parameters, std::string_view name);

  [[nodiscard]] const StaticPoolParameters& parameters() const;

  /// x: codes [images, H, W, channels] of the input grid, y: [images, P, Q, channels] of the output grid. Of the
  /// options pool and strides, from pixel to pixel. Errors: those of StaticConvLayer::forward.
  [[nodiscard]] Status forward(std::span<const std::byte> x, std::span<std::byte> y, int64_t images,
                               const ImageSize& image, int64_t channels, const RunOptions& options = {}) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace isobit

#endif  // ISOBIT_CONV_H_
