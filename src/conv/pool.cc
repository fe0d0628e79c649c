// SPDX-License-Identifier: Apache-2.0
// Pooling of static codes: numerics.md, section 12.
#include <algorithm>
#include <string>
#include <vector>

#include "core/codes.h"
#include "core/float_mode.h"
#include "core/rescale.h"
#include "core/run_options.h"
#include "isobit/conv.h"
#include "linear/layer_parts.h"
#include "linear/static/parts.h"

namespace isobit {
namespace {

constexpr int64_t kChannelsTogether = 256;  // of sums on the stack
constexpr int64_t kMostTaps = 1 << 20;      // sums of differences below 2^16 fit int64, ratios are kept for each number

Status check_window(const ConvAxis& a, const std::string& what) {
  const int64_t pad = std::max(a.pad_before, a.pad_after);
  if (pad < a.kernel) return {};
  return refuse_linear(what + " has a pad of " + std::to_string(pad) + ", must be smaller than its window, " +
                       std::to_string(a.kernel));
}

/// Every window has a pixel of x; with dilation, pads that are smaller do not say so.
Status check_pixels(const ConvAxis& a, int64_t outputs, int64_t pixels, const std::string& name, const char* axis) {
  for (int64_t output = 0; a.dilation > 1 && output < outputs; ++output) {
    bool any = false;
    for (int64_t tap = 0; tap < a.kernel && !any; ++tap) any = conv_pixel(a, false, pixels, output, tap).has_value();
    if (!any)
      return refuse_linear(name + axis + ": output " + std::to_string(output) + " has no pixel of x in its window");
  }
  return {};
}

ConvShape shape_of(const StaticPoolParameters& p, int64_t channels) {
  return {.channels = channels, .outputs = channels, .groups = channels, .rows = p.rows, .columns = p.columns};
}

}  // namespace

struct StaticPool::Impl {
  StaticPoolParameters parameters;
  std::string name;
  std::vector<Rescale> rescales;  // of kAverage: for n = 1, 2, ...

  /// Pixels: calls what it is given with each pixel of x in the window.
  template <typename Code, typename Pixels>
  void max(const Pixels& pixels, int64_t channels, Code* y) const {
    std::fill_n(y, channels, static_cast<Code>(parameters.input.min()));
    pixels([&](const Code* pixel) {
      for (int64_t c = 0; c < channels; ++c) y[c] = std::max(y[c], pixel[c]);
    });
  }
  template <typename Code, typename Pixels>
  void average(const Pixels& pixels, int64_t channels, std::byte* y) const {
    const StaticPoolParameters& p = parameters;
    for (int64_t first = 0; first < channels; first += kChannelsTogether) {
      const int64_t some = std::min(kChannelsTogether, channels - first);
      int64_t sums[kChannelsTogether] = {}, count = 0;
      pixels([&](const Code* pixel) {
        for (int64_t c = 0; c < some; ++c) sums[c] += pixel[first + c];
        ++count;
      });
      const int64_t n = p.counts_outside ? p.rows.kernel * p.columns.kernel : count;
      const Rescale rescale = rescales[static_cast<size_t>(n - 1)];
      for (int64_t c = 0; c < some; ++c)
        store_code(y, p.output.dtype(), first + c,
                   clamp_s64(rescale.apply(sums[c] - count * p.input.zero_point, p.rounding) + p.output.zero_point,
                             p.output.min(), p.output.max()));
    }
  }
};

Result<StaticPool> StaticPool::create(const StaticPoolParameters& p, std::string_view name) {
  const DefaultFloatMode mode;
  const std::string text(name);
  ISOBIT_RETURN_IF_ERROR(check_conv_shape(shape_of(p, 1), name));
  ISOBIT_RETURN_IF_ERROR(check_window(p.rows, text + ": rows"));
  ISOBIT_RETURN_IF_ERROR(check_window(p.columns, text + ": columns"));
  ISOBIT_RETURN_IF_ERROR(check_code_grid(p.input, text + ": input"));
  ISOBIT_RETURN_IF_ERROR(check_code_grid(p.output, text + ": output"));
  if (p.kind != PoolKind::kMax && p.kind != PoolKind::kAverage)
    return refuse_linear(text + ": kind is " + std::to_string(static_cast<int32_t>(p.kind)) + ", must be 0 or 1");
  if (p.rounding < Rounding::kNearestEven || p.rounding > Rounding::kFloor)
    return refuse_linear(text + ": rounding is " + std::to_string(static_cast<int32_t>(p.rounding)) + ", must be 0..3");
  if (p.kind == PoolKind::kMax && !(p.input == p.output))
    return refuse_linear(text + ": output is another grid than input, must be the same for the largest code");
  const int64_t taps = p.rows.kernel * p.columns.kernel;
  if (taps > kMostTaps)
    return refuse_linear(text + ": the window has " + std::to_string(taps) + " pixels, must have at most " +
                         std::to_string(kMostTaps));
  auto impl = std::make_shared<Impl>();
  impl->parameters = p;
  impl->name = text;
  for (int64_t n = 1; p.kind == PoolKind::kAverage && n <= taps; ++n) {
    const double ratio =
        static_cast<double>(p.input.scale()) / (static_cast<double>(n) * static_cast<double>(p.output.scale()));
    ISOBIT_ASSIGN_OR_RETURN(const RescaleParameters rescale,
                            encode_ratio(ratio, bound_multiply(n, largest_difference(p.input))));
    impl->rescales.push_back({rescale.multiplier, rescale.shift});
  }
  StaticPool pool;
  pool.impl_ = std::move(impl);
  return pool;
}

const StaticPoolParameters& StaticPool::parameters() const { return impl_->parameters; }

Status StaticPool::forward(std::span<const std::byte> x, std::span<std::byte> y, int64_t images, const ImageSize& image,
                           int64_t channels, const RunOptions& options) const {
  const DefaultFloatMode mode;
  const Impl& impl = *impl_;
  const StaticPoolParameters& p = impl.parameters;
  ISOBIT_RETURN_IF_ERROR(refuse_options(options, kPoolOption | kRowOptions, "pooling"));
  if (images < 0) return refuse_linear(impl.name + ": images is " + std::to_string(images) + ", must be at least 0");
  ISOBIT_ASSIGN_OR_RETURN(const ImageSize size, conv_output_size(shape_of(p, channels), image, impl.name));
  ISOBIT_RETURN_IF_ERROR(check_pixels(p.rows, size.rows, image.rows, impl.name, ": rows"));
  ISOBIT_RETURN_IF_ERROR(check_pixels(p.columns, size.columns, image.columns, impl.name, ": columns"));
  const Int128 pixels = bound_multiply(bound_multiply(images, image.rows), image.columns);
  const Int128 outputs = bound_multiply(bound_multiply(images, size.rows), size.columns);
  constexpr Int128 kMost = int64_t{1} << 58;
  if (std::max(pixels, outputs) > kMost)
    return refuse_linear(impl.name + ": x or y has " + to_decimal(std::max(pixels, outputs)) +
                         " pixels, must have at most " + to_decimal(kMost));
  LinearRows x_rows{"x", x.data(), x.size(), p.input.dtype(), channels, options.x_stride};
  LinearRows y_rows{"y", y.data(), y.size(), p.output.dtype(), channels, options.y_stride};
  ISOBIT_RETURN_IF_ERROR(check_rows_apart(x_rows, static_cast<int64_t>(pixels), y_rows, static_cast<int64_t>(outputs)));
  ISOBIT_RETURN_IF_ERROR(
      check_codes(x.data(), p.input, static_cast<int64_t>(pixels), channels, x_rows.stride, impl.name));
  with_code_type(p.input.dtype(), [&](auto zero) {
    using Code = decltype(zero);
    const auto rows = [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {  // a row of y
        const int64_t b = i / size.rows;
        for (int64_t q = 0; q < size.columns; ++q) {
          const auto window = [&](const auto& body) {
            for (int64_t r = 0; r < p.rows.kernel; ++r) {
              const std::optional<int64_t> row = conv_pixel(p.rows, false, image.rows, i % size.rows, r);
              for (int64_t s = 0; row && s < p.columns.kernel; ++s)
                if (const std::optional<int64_t> column = conv_pixel(p.columns, false, image.columns, q, s))
                  body(reinterpret_cast<const Code*>(x.data()) +
                       ((b * image.rows + *row) * image.columns + *column) * x_rows.stride);
            }
          };
          std::byte* const to =
              y.data() + (i * size.columns + q) * y_rows.stride * static_cast<int64_t>(size_in_bytes(p.output.dtype()));
          if (p.kind == PoolKind::kMax) {
            impl.max(window, channels, reinterpret_cast<Code*>(to));
          } else {
            impl.average<Code>(window, channels, to);
          }
        }
      }
    };
    if (options.pool == nullptr) return rows(0, 0, images * size.rows);
    options.pool->for_ranges(images * size.rows, rows);
  });
  return {};
}

}  // namespace isobit
