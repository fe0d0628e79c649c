// SPDX-License-Identifier: Apache-2.0
// Convolutions of floating-point images: numerics.md, sections 10 to 12. Rows of a linear layer are gathered from x,
// some at a time; with one scale for each image the codes go through StaticConvLayer.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "conv/layer_parts.h"
#include "conv/pixel_weights.h"
#include "core/codes.h"
#include "core/float_mode.h"
#include "core/rescale.h"
#include "core/run_options.h"
#include "isobit/conv.h"
#include "linear/int8/int8.h"
#include "linear/layer_engine.h"
#include "linear/layer_parts.h"
#include "linear/layer_reference.h"

namespace isobit {
namespace {

constexpr int64_t kGatheredBytes = 1 << 20, kLeastRows = 64, kMostRows = 1024;
constexpr int64_t kFinishRows = 16;  // outputs whose floats are written together
constexpr int64_t kLanes = 16;       // what kernels read of scales and biases, and of sums, is a multiple
constexpr Int128 kMostElements = int64_t{1} << 58;

/// The largest magnitude, which is not finite where one of them is not.
float largest_magnitude(const float* x, int64_t count) {
  uint32_t most = 0;  // bits of magnitudes have their order
  for (int64_t i = 0; i < count; ++i) most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return std::bit_cast<float>(most);
}

/// Codes a + 128 of section 11, symmetric.
void quantize_with(float amax, const float* x, int64_t count, uint8_t* codes) {
  if (amax < kLeastRange) {
    std::fill_n(codes, count, uint8_t{128});
    return;
  }
  const float inverse = 127.0f / amax;
  constexpr float kRounds = 0x1.8p23f;  // a number of this size has no fraction: the sum is rounded to an integer
  for (int64_t i = 0; i < count; ++i) {
    const float sum = x[i] * inverse + kRounds;
    const int32_t code = std::bit_cast<int32_t>(sum) - std::bit_cast<int32_t>(kRounds);
    codes[i] = static_cast<uint8_t>(std::clamp(code, -127, 127) + 128);
  }
}

}  // namespace

struct ConvLayer::Impl {
  /// One call, whose sizes are checked.
  struct Call {
    const std::byte* x;
    Dtype x_dtype;
    int64_t x_stride;
    std::byte* y;
    Dtype y_dtype;
    int64_t y_stride;
    int64_t images;
    ImageSize image, size;
    ThreadPool* pool;
    bool unchecked;

    [[nodiscard]] int64_t pixels() const { return image.rows * image.columns; }
    [[nodiscard]] int64_t outputs() const { return size.rows * size.columns; }
    [[nodiscard]] const std::byte* pixel(int64_t at) const {
      return x + at * x_stride * static_cast<int64_t>(size_in_bytes(x_dtype));
    }
    [[nodiscard]] std::byte* output(int64_t at) const {
      return y + at * y_stride * static_cast<int64_t>(size_in_bytes(y_dtype));
    }
  };
  /// The workspace, in bytes from its beginning.
  struct Places {
    int64_t rows;  // gathered together
    int64_t quantized, scratch, scratch_stride, total;
  };
  struct ImagePlaces {
    int64_t floats, codes, sums, lines, line_stride, inner, inner_bytes, total;
  };

  ConvShape shape;
  ConvActivations activations = ConvActivations::kFloat;
  std::string name;
  CpuPath path = CpuPath::kReference;
  LinearEpilogue epilogue;

  PixelBlocks blocks;
  std::vector<std::unique_ptr<const LinearEngine>> engines;  // of groups of channels

  std::optional<StaticConvLayer> sums;   // kInt8PerImage
  std::vector<float> scales;             // S, and bias, up to a multiple of kLanes
  const Int8Kernels* kernels = nullptr;  // null: the reference

  [[nodiscard]] int64_t taps() const { return shape.rows.kernel * shape.columns.kernel; }
  [[nodiscard]] int64_t columns() const { return taps() * blocks.padded; }
  [[nodiscard]] int64_t group_outputs() const { return shape.outputs / shape.groups; }
  [[nodiscard]] bool quantizes() const { return activations != ConvActivations::kFloat; }

  Result<Call> call_of(int64_t images, const ImageSize& image) const;
  [[nodiscard]] Places places(const Call& call, int threads) const;
  [[nodiscard]] Result<ImagePlaces> image_places(const Call& call, int threads) const;
  [[nodiscard]] Result<int64_t> workspace_bytes(const Call& call, int threads) const;
  [[nodiscard]] Status check_finite(const Call& call) const;
  void gather(const Call& call, int64_t output, int64_t group, std::byte* row) const;
  void run_rows(const Call& call, const Places& at, std::byte* workspace, int64_t first, int64_t rows,
                int64_t group) const;
  void run(const Call& call, std::byte* workspace) const;
  [[nodiscard]] Status run_image(const Call& call, const ImagePlaces& at, std::byte* workspace, int64_t b) const;
  [[nodiscard]] float image_floats(const Call& call, int64_t b, std::byte* floats) const;
  void finish(const Call& call, int64_t first, int64_t rows, const int32_t* d, float scale, float* lines) const;
};

Result<ConvLayer> ConvLayer::create(const ConvShape& shape, const LowBitMatrix& weights, const ConvOptions& options,
                                    std::string_view name) {
  const DefaultFloatMode mode;
  const std::string text(name);
  ISOBIT_RETURN_IF_ERROR(check_conv_layer(shape, weights, options, text));
  auto impl = std::make_shared<Impl>();
  impl->shape = shape;
  impl->activations = options.activations;
  impl->name = text;
  ISOBIT_ASSIGN_OR_RETURN(impl->path, linear_path(options.path, text));
  impl->epilogue = {{options.bias.begin(), options.bias.end()}, options.clamp};
  impl->epilogue.bias.resize(static_cast<size_t>(shape.outputs));
  ConvLayer layer;
  if (options.activations == ConvActivations::kInt8PerImage) {
    ISOBIT_ASSIGN_OR_RETURN(impl->sums, StaticConvLayer::create(per_image_sums(shape, weights), name, options.path));
    impl->path = impl->sums->path();
    impl->kernels = int8_kernels(impl->path);
    for (int64_t o = 0; o < shape.outputs; ++o) impl->scales.push_back(weights.scale(o, 0));
    impl->scales.resize(static_cast<size_t>((shape.outputs + kLanes - 1) / kLanes * kLanes));
    impl->epilogue.bias.resize(impl->scales.size());
    layer.impl_ = std::move(impl);
    return layer;
  }
  const bool is_float = options.activations == ConvActivations::kFloat;
  ISOBIT_ASSIGN_OR_RETURN(
      const PixelWeights pixels,
      pixel_weights(shape, weights, is_float, options.activations == ConvActivations::kInt8Asymmetric, text));
  impl->blocks = pixels.blocks;
  for (int64_t g = 0; g < shape.groups; ++g) {
    const auto bias = impl->epilogue.bias.begin() + g * impl->group_outputs();
    const LinearEpilogue epilogue{{bias, bias + impl->group_outputs()}, options.clamp};
    const auto make = [&] {
      return make_linear_engine(pixels.groups[static_cast<size_t>(g)], linear_activations(options.activations),
                                impl->path, epilogue, text);
    };
    auto engine = make();
    if (!engine.ok() && engine.status().code() == StatusCode::kUnsupported && !options.path && g == 0) {
      impl->path = CpuPath::kReference;
      engine = make();
    }
    if (!engine.ok()) return engine.status();
    impl->engines.push_back(*std::move(engine));
  }
  layer.impl_ = std::move(impl);
  return layer;
}

const ConvShape& ConvLayer::shape() const { return impl_->shape; }
ConvActivations ConvLayer::activations() const { return impl_->activations; }
const std::string& ConvLayer::name() const { return impl_->name; }
CpuPath ConvLayer::path() const { return impl_->path; }

Result<ConvLayer::Impl::Call> ConvLayer::Impl::call_of(int64_t images, const ImageSize& image) const {
  if (images < 0) return refuse_linear(name + ": images is " + std::to_string(images) + ", must be at least 0");
  Call call{};
  call.images = images;
  call.image = image;
  ISOBIT_ASSIGN_OR_RETURN(call.size, conv_output_size(shape, image, name));
  const std::pair<const char*, Int128> sizes[] = {
      {"x", bound_multiply(bound_multiply(images, call.pixels()), shape.channels)},
      {"y", bound_multiply(bound_multiply(images, call.outputs()), shape.outputs)}};
  for (const auto& [what, elements] : sizes)
    if (elements > kMostElements)
      return refuse_linear(name + ": " + what + " has " + to_decimal(elements) + " elements, must have at most " +
                           to_decimal(kMostElements));
  return call;
}

ConvLayer::Impl::Places ConvLayer::Impl::places(const Call& call, int threads) const {
  Places at{};
  const int64_t row_bytes = columns() * static_cast<int64_t>(sizeof(double));  // the largest type
  at.rows = std::min(std::clamp(kGatheredBytes / row_bytes, kLeastRows, kMostRows), call.images * call.outputs());
  at.quantized = is_conv_linear(shape) && !blocks.filled() ? 0 : round_up_64(at.rows * row_bytes);
  int64_t quantized = 0;
  for (const auto& engine : engines) {
    quantized = std::max(quantized, engine->rows_bytes(at.rows));
    at.scratch_stride = std::max(at.scratch_stride, round_up_64(engine->scratch_bytes(at.rows)));
  }
  at.scratch = at.quantized + round_up_64(quantized);
  at.total = at.scratch + at.scratch_stride * threads;
  return at;
}

Result<ConvLayer::Impl::ImagePlaces> ConvLayer::Impl::image_places(const Call& call, int threads) const {
  ImagePlaces at{};
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  const int64_t elements = call.pixels() * shape.channels, outputs = call.outputs() * shape.outputs;
  at.codes = at.floats + round_up_64(elements * kFloat);
  at.sums = at.codes + round_up_64(elements);
  at.lines = at.sums + round_up_64((outputs + kLanes) * kFloat);
  at.line_stride = round_up_64((kFinishRows * shape.outputs + kLanes) * kFloat);
  at.inner = at.lines + at.line_stride * threads;
  ISOBIT_ASSIGN_OR_RETURN(at.inner_bytes, sums->workspace_bytes(1, call.image, threads));
  at.total = at.inner + at.inner_bytes;
  return at;
}

Result<int64_t> ConvLayer::Impl::workspace_bytes(const Call& call, int threads) const {
  if (!sums) return places(call, threads).total;
  ISOBIT_ASSIGN_OR_RETURN(const ImagePlaces at, image_places(call, threads));
  return at.total;
}

Result<Workspace> ConvLayer::workspace(int64_t images, const ImageSize& image, int32_t threads) const {
  ISOBIT_ASSIGN_OR_RETURN(const Impl::Call call, impl_->call_of(images, image));
  ISOBIT_ASSIGN_OR_RETURN(const int64_t bytes, impl_->workspace_bytes(call, std::max(threads, 1)));
  return Workspace(bytes);
}

// ---------------------------------------------------------------------------------------------------------------
// Rows that are gathered

/// The first pixel that section 11 refuses.
Status ConvLayer::Impl::check_finite(const Call& call) const {
  const bool asymmetric = activations == ConvActivations::kInt8Asymmetric;
  const int64_t pixels = call.images * call.pixels();
  std::atomic<int64_t> first{pixels};
  const auto part = [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end && i < first.load(); ++i) {
      const std::byte* const x = call.pixel(i);
      bool finite = true;
      for (int64_t c = 0; c < shape.channels && finite; ++c) finite = std::isfinite(load_float(x, call.x_dtype, c));
      if (finite && asymmetric)
        for (int64_t g = 0; g < shape.groups && finite; ++g)
          for (int64_t b = 0; b < blocks.channels && finite; b += blocks.block) {
            const int64_t from = g * blocks.channels + b, to = std::min(from + blocks.block, (g + 1) * blocks.channels);
            float low = load_float(x, call.x_dtype, from), high = low;
            for (int64_t c = from; c < to; ++c) {
              const float value = load_float(x, call.x_dtype, c);
              low = std::min(low, value);
              high = std::max(high, value);
            }
            finite = std::isfinite(high - low);
          }
      if (finite) continue;
      int64_t seen = first.load();
      while (i < seen && !first.compare_exchange_weak(seen, i)) {
      }
      return;
    }
  };
  if (call.pool == nullptr) {
    part(0, 0, pixels);
  } else {
    call.pool->for_ranges(pixels, part);
  }
  const int64_t bad = first.load();
  if (bad == pixels) return {};
  return refuse_conv_pixel(bad, call.image);
}

/// What output `output` of all images reads of a group of channels.
void ConvLayer::Impl::gather(const Call& call, int64_t output, int64_t group, std::byte* row) const {
  const auto size = size_in_bytes(call.x_dtype);
  const size_t bytes = static_cast<size_t>(blocks.channels) * size;
  const auto padded = static_cast<size_t>(blocks.padded) * size;
  const int64_t image = output / call.outputs();
  const int64_t p = output % call.outputs() / call.size.columns, q = output % call.size.columns;
  const bool repeats = activations == ConvActivations::kInt8Asymmetric;
  for (int64_t r = 0; r < shape.rows.kernel; ++r) {
    const std::optional<int64_t> i = conv_pixel(shape.rows, shape.transposed, call.image.rows, p, r);
    for (int64_t s = 0; s < shape.columns.kernel; ++s, row += padded) {
      const std::optional<int64_t> j =
          i ? conv_pixel(shape.columns, shape.transposed, call.image.columns, q, s) : std::nullopt;
      if (!j) {
        std::memset(row, 0, padded);
        continue;
      }
      const std::byte* const x =
          call.pixel(image * call.pixels() + *i * call.image.columns + *j) + static_cast<size_t>(group) * bytes;
      std::memcpy(row, x, bytes);
      // What fills up a block must not change its range.
      for (size_t at = bytes; at < padded; at += size)
        if (repeats) {
          std::memcpy(row + at, x + static_cast<size_t>(blocks.last()) * size, size);
        } else {
          std::memset(row + at, 0, size);
        }
    }
  }
}

/// Outputs [first, first + rows) of all images, those of one group of channels.
void ConvLayer::Impl::run_rows(const Call& call, const Places& at, std::byte* workspace, int64_t first, int64_t rows,
                               int64_t group) const {
  const LinearEngine& engine = *engines[static_cast<size_t>(group)];
  const auto x_size = static_cast<int64_t>(size_in_bytes(call.x_dtype));
  const auto y_size = static_cast<int64_t>(size_in_bytes(call.y_dtype));
  const bool direct = is_conv_linear(shape) && !blocks.filled();
  const LinearCall rows_of{.x = direct ? call.pixel(first) + group * blocks.channels * x_size : workspace,
                           .x_dtype = call.x_dtype,
                           .x_stride = direct ? call.x_stride : columns(),
                           .y = call.output(first) + group * group_outputs() * y_size,
                           .y_dtype = call.y_dtype,
                           .y_stride = call.y_stride,
                           .m = rows,
                           .rows = workspace + at.quantized};
  const auto take = [&](int part, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (!direct) gather(call, first + i, group, workspace + i * columns() * x_size);
      if (quantizes()) engine.quantize_row(rows_of, i, workspace + at.scratch + part * at.scratch_stride);
    }
  };
  if (call.pool == nullptr) {
    take(0, 0, rows);
  } else {
    call.pool->for_ranges(rows, take);
  }
  for_rectangles(call.pool, rows, engine.blocks(), [&](int part, const LinearRectangle& rectangle) {
    engine.run(rows_of, rectangle, workspace + at.scratch + part * at.scratch_stride);
  });
}

void ConvLayer::Impl::run(const Call& call, std::byte* workspace) const {
  const Places at = places(call, threads_of(call.pool));
  const int64_t outputs = call.images * call.outputs();
  for (int64_t first = 0; first < outputs; first += at.rows)
    for (int64_t g = 0; g < shape.groups; ++g)
      run_rows(call, at, workspace, first, std::min(at.rows, outputs - first), g);
}

// ---------------------------------------------------------------------------------------------------------------
// One scale for each image

/// Image b as float32, behind each other; the largest magnitude, which is not finite where one of them is not.
float ConvLayer::Impl::image_floats(const Call& call, int64_t b, std::byte* floats) const {
  auto* const out = reinterpret_cast<float*>(floats);
  for (int64_t i = 0; i < call.pixels(); ++i) {
    const std::byte* const x = call.pixel(b * call.pixels() + i);
    float* const to = out + i * shape.channels;
    if (call.x_dtype == Dtype::kF32) {
      std::memcpy(to, x, static_cast<size_t>(shape.channels) * sizeof(float));
    } else {
      for (int64_t c = 0; c < shape.channels; ++c) to[c] = load_float(x, call.x_dtype, c);
    }
  }
  return largest_magnitude(out, call.pixels() * shape.channels);
}

/// y of `rows` outputs from `first` on.
void ConvLayer::Impl::finish(const Call& call, int64_t first, int64_t rows, const int32_t* d, float scale,
                             float* lines) const {
  const bool is_f32 = call.y_dtype == Dtype::kF32;
  const std::vector<float>& bias = epilogue.bias;
  Int8Group groups[kFinishRows] = {};
  for (Int8Group& group : groups) group.scale = scale;
  for (int64_t i = 0; i < rows; i += kFinishRows) {
    const int64_t count = std::min(kFinishRows, rows - i);
    float* const y = is_f32 ? reinterpret_cast<float*>(call.output(first + i)) : lines;
    const int64_t stride = is_f32 ? call.y_stride : shape.outputs;
    const int32_t* const sums_of_rows = d + i * shape.outputs;
    if (kernels != nullptr) {
      kernels->finish({.d = sums_of_rows,
                       .d_stride = shape.outputs,
                       .rows = count,
                       .count = shape.outputs,
                       .groups = groups,
                       .scales = scales.data(),
                       .sums = nullptr,
                       .bias = bias.data(),
                       .lo = epilogue.clamp.lo,
                       .hi = epilogue.clamp.hi,
                       .y = y,
                       .y_stride = stride});
    } else {
      for (int64_t m = 0; m < count; ++m)
        for (int64_t o = 0; o < shape.outputs; ++o) {
          const auto sum = static_cast<float>(sums_of_rows[m * shape.outputs + o]);
          const auto at = static_cast<size_t>(o);
          y[m * stride + o] = reference_finish(std::fma(sum, scales[at] * scale, 0.0f), bias[at], epilogue.clamp);
        }
    }
    if (is_f32) continue;
    for (int64_t m = 0; m < count; ++m)
      for (int64_t o = 0; o < shape.outputs; ++o)
        store_float(call.output(first + i + m), call.y_dtype, o, lines[m * shape.outputs + o]);
  }
}

Status ConvLayer::Impl::run_image(const Call& call, const ImagePlaces& at, std::byte* workspace, int64_t b) const {
  const float amax = image_floats(call, b, workspace + at.floats);
  const bool finite = std::isfinite(amax);
  const int64_t elements = call.pixels() * shape.channels, outputs = call.outputs() * shape.outputs;
  const float scale = !finite ? std::numeric_limits<float>::quiet_NaN() : amax < kLeastRange ? 0.0f : amax / 127.0f;
  const auto* const floats = reinterpret_cast<const float*>(workspace + at.floats);
  auto* const codes = reinterpret_cast<uint8_t*>(workspace + at.codes);
  const auto quantize = [&](int, int64_t begin, int64_t end) {
    quantize_with(finite ? amax : 0.0f, floats + begin, end - begin, codes + begin);
  };
  if (call.pool == nullptr) {
    quantize(0, 0, elements);
  } else {
    call.pool->for_ranges(elements, quantize);
  }
  auto* const d = reinterpret_cast<int32_t*>(workspace + at.sums);
  Workspace inner(std::span(workspace + at.inner, static_cast<size_t>(at.inner_bytes)));
  ISOBIT_RETURN_IF_ERROR(sums->forward({workspace + at.codes, static_cast<size_t>(elements)},
                                       {workspace + at.sums, static_cast<size_t>(outputs) * sizeof(int32_t)}, 1,
                                       call.image, inner, {.pool = call.pool}));
  const auto write = [&](int part, int64_t begin, int64_t end) {
    finish(call, b * call.outputs() + begin, end - begin, d + begin * shape.outputs, scale,
           reinterpret_cast<float*>(workspace + at.lines + part * at.line_stride));
  };
  if (call.pool == nullptr) {
    write(0, 0, call.outputs());
  } else {
    call.pool->for_ranges(call.outputs(), write);
  }
  return {};
}

Status ConvLayer::forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                          int64_t images, const ImageSize& image, Workspace& workspace,
                          const RunOptions& options) const {
  const DefaultFloatMode mode;
  const Impl& impl = *impl_;
  ISOBIT_RETURN_IF_ERROR(check_linear_types(x_dtype, y_dtype, linear_activations(impl.activations)));
  ISOBIT_RETURN_IF_ERROR(check_row_options(options, impl.path, "a convolution on the CPU"));
  ISOBIT_ASSIGN_OR_RETURN(Impl::Call call, impl.call_of(images, image));
  LinearRows x_rows{"x", x.data(), x.size(), x_dtype, impl.shape.channels, options.x_stride};
  LinearRows y_rows{"y", y.data(), y.size(), y_dtype, impl.shape.outputs, options.y_stride};
  ISOBIT_RETURN_IF_ERROR(check_rows_apart(x_rows, images * call.pixels(), y_rows, images * call.outputs()));
  const int threads = threads_of(options.pool);
  ISOBIT_ASSIGN_OR_RETURN(const int64_t needed, impl.workspace_bytes(call, threads));
  if (!workspace_fits(workspace, needed))
    return refuse_workspace(workspace, needed, {}, std::to_string(images) + " images" + on_threads(threads),
                            "workspace(images, image, threads)");
  if (images == 0) return {};
  call.x = x.data();
  call.x_dtype = x_dtype;
  call.x_stride = x_rows.stride;
  call.y = y.data();
  call.y_dtype = y_dtype;
  call.y_stride = y_rows.stride;
  call.pool = options.pool;
  call.unchecked = options.unchecked;
  if (!impl.sums) {
    if (impl.quantizes() && !options.unchecked) ISOBIT_RETURN_IF_ERROR(impl.check_finite(call));
    impl.run(call, workspace.data());
    return {};
  }
  ISOBIT_ASSIGN_OR_RETURN(const Impl::ImagePlaces at, impl.image_places(call, threads));
  for (int64_t b = 0; b < images && !options.unchecked; ++b)
    if (!std::isfinite(impl.image_floats(call, b, workspace.data() + at.floats))) return refuse_conv_image(b);
  for (int64_t b = 0; b < images; ++b) ISOBIT_RETURN_IF_ERROR(impl.run_image(call, at, workspace.data(), b));
  return {};
}

}  // namespace isobit
