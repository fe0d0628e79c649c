// SPDX-License-Identifier: Apache-2.0
// DeviceStaticConv: what is checked, and which kernels run.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conv/cuda/kernels.h"
#include "core/cuda/arguments.h"
#include "core/cuda/upload.h"
#include "core/rescale.h"
#include "core/run_options.h"
#include "isobit/cuda/conv.h"
#include "linear/cuda/plan.h"
#include "linear/cuda/static_product.h"
#include "linear/layer_parts.h"
#include "linear/static/parts.h"
#include "product/product.h"

namespace isobit::cuda {
namespace {

/// Outputs that are gathered together: what they read is still in the second-level cache when it is multiplied.
constexpr int64_t kGatheredBytes = 24 << 20;
constexpr int64_t kRowStep = 1024;
constexpr const char *kProduct = "product", *kDirect = "direct";
constexpr int64_t kMostSize = (int64_t{1} << 31) - 1;

/// The layer of some outputs.
StaticLinearParameters part_of(const StaticLinearParameters& p, int64_t first, int64_t count, bool sums) {
  StaticLinearParameters part = p;
  part.rows = count;
  part.weights = Array::copy_of(p.weights.data<int8_t>() + first * p.columns, {count, p.columns});
  part.scales = Array::copy_of(p.scales.data<float>() + first, {count});
  part.bias = Array::copy_of(p.bias.data<int32_t>() + first, {count});
  if (!p.output) return part;
  part.rescales.assign(p.rescales.begin() + first, p.rescales.begin() + first + count);
  if (!sums) return part;
  part.output.reset();
  part.rescales.clear();
  part.lo = INT32_MIN;
  part.hi = INT32_MAX;
  return part;
}

DeviceAxis axis_of(const ConvAxis& axis, int64_t pixels, int64_t outputs) {
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  return {narrow(pixels),      narrow(outputs),       narrow(axis.kernel),
          narrow(axis.stride), narrow(axis.dilation), narrow(axis.pad_before)};
}

}  // namespace

std::span<const DeviceLinearKernel> conv_kernels() {
  static constexpr DeviceLinearKernel kKernels[] = {
      {"conv_static", kProduct, "rows are gathered from images and multiplied by the kernels of linear layers"},
      {"conv_static", kDirect,
       "each output by itself: depthwise, small groups, and whatever else product does not run"}};
  return kKernels;
}

struct DeviceStaticConv::Data {
  explicit Data(StaticConvLayer host) : layer(std::move(host)) {}

  /// One call, whose sizes are checked.
  struct Call {
    int64_t images;
    ImageSize image, size;

    [[nodiscard]] int64_t outputs() const { return images * size.rows * size.columns; }
  };
  /// The workspace, in bytes from its beginning: the code outside the grid, rows, sums.
  struct Places {
    bool direct;
    int64_t rows;  // gathered together
    int64_t sums, total;
  };

  StaticConvLayer layer;
  LinearDevice device;
  std::vector<StaticProduct> products;  // of groups of channels; none: only "direct" can run it
  const int8_t* weights = nullptr;      // [K, O]
  StaticEpilogue epilogue{};            // of all outputs; channels start from the bias
  std::shared_ptr<const std::byte> memory;

  [[nodiscard]] const StaticConvParameters& parameters() const { return layer.parameters(); }
  [[nodiscard]] const ConvShape& shape() const { return parameters().shape; }
  [[nodiscard]] int32_t code_bytes() const { return epilogue.planes; }
  [[nodiscard]] bool has_codes_outside() const { return parameters().linear.input.bits != 8 * code_bytes(); }
  [[nodiscard]] int64_t group_outputs() const { return shape().outputs / shape().groups; }

  Status pack();
  Result<Call> call_of(int64_t images, const ImageSize& image) const;
  [[nodiscard]] bool is_direct(const Call& call) const;
  /// kernel: empty, the one that takes less time.
  [[nodiscard]] Result<Places> places(const Call& call, std::string_view kernel) const;
};

Status DeviceStaticConv::Data::pack() {
  const StaticLinearParameters& p = parameters().linear;
  epilogue = static_epilogue(p, layer.accumulator_bound());
  Upload upload;
  std::vector<StaticChannel> channels;
  std::vector<int8_t> transposed(static_cast<size_t>(p.rows * p.columns));
  for (int64_t n = 0; n < p.rows; ++n) {
    channels.push_back(static_channel(p, p.input.zero_point, n));
    for (int64_t k = 0; k < p.columns; ++k)
      transposed[static_cast<size_t>(k * p.rows + n)] = p.weights.data<int8_t>()[n * p.columns + k];
  }
  upload.add(std::span<const StaticChannel>(channels), epilogue.channels);
  upload.add(std::span<const int8_t>(transposed), weights);
  // A residual needs sums of 32 bits.
  const bool sums = parameters().residual.has_value();
  if (p.columns <= kMaxLinearK && (shape().groups == 1 || shape().group_channels() >= 16) && !(sums && epilogue.wide)) {
    products.resize(static_cast<size_t>(shape().groups));
    for (int64_t g = 0; g < shape().groups; ++g)
      ISOBIT_RETURN_IF_ERROR(products[static_cast<size_t>(g)].add(
          part_of(p, g * group_outputs(), group_outputs(), sums), layer.accumulator_bound(), layer.name(), upload));
  }
  ISOBIT_ASSIGN_OR_RETURN(memory, upload.finish());
  return {};
}

Result<DeviceStaticConv> DeviceStaticConv::create(const StaticConvLayer& layer, std::optional<int> device) {
  if (device) ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(*device), "device " + std::to_string(*device)));
  auto data = std::make_shared<Data>(layer);
  ISOBIT_ASSIGN_OR_RETURN(data->device, LinearDevice::current());
  ISOBIT_RETURN_IF_ERROR(data->pack());
  DeviceStaticConv result;
  result.data_ = std::move(data);
  return result;
}

const StaticConvLayer& DeviceStaticConv::layer() const { return data_->layer; }
int DeviceStaticConv::device() const { return data_->device.number; }

Result<DeviceStaticConv::Data::Call> DeviceStaticConv::Data::call_of(int64_t images, const ImageSize& image) const {
  const std::string& name = layer.name();
  if (images < 0) return refuse_argument(name + ": images is " + std::to_string(images) + ", must be at least 0");
  Call call{images, image, {}};
  ISOBIT_ASSIGN_OR_RETURN(call.size, conv_output_size(shape(), image, name));
  const std::pair<const char*, int64_t> sizes[] = {
      {"x", product_of_sizes({images, image.rows, image.columns, shape().channels})},
      {"y", product_of_sizes({images, call.size.rows, call.size.columns, shape().outputs})}};
  constexpr int64_t kMostElements = int64_t{1} << 46;  // outside_key
  for (const auto& [what, elements] : sizes)
    if (elements > kMostElements)
      return refuse_argument(name + ": " + what + " has " + std::to_string(elements) + " elements, must have at most " +
                             std::to_string(kMostElements) + " on a device");
  if (image.rows * image.columns > kMostSize || call.size.rows * call.size.columns > kMostSize)
    return refuse_argument(name + ": an image has " + std::to_string(image.rows * image.columns) + " pixels and " +
                           std::to_string(call.size.rows * call.size.columns) + " outputs, must have at most " +
                           std::to_string(kMostSize) + " on a device");
  return call;
}

/// Which takes less time, in nanoseconds: each product of rows is two launches, and moves each of the codes that it
/// multiplies twice; "direct" multiplies one by one.
bool DeviceStaticConv::Data::is_direct(const Call& call) const {
  if (products.empty()) return true;
  constexpr double kLaunch = 5000, kSummed = 1.0 / 1500, kMoved = 1.0 / 1000, kMultiplied = 1.0 / 400000;
  const auto m = static_cast<double>(call.outputs()), k = static_cast<double>(parameters().linear.columns);
  const auto padded = static_cast<double>(products[0].image.blocks * kBlockDepth);
  const auto strips = static_cast<double>(products[0].image.strips * kStripRows);
  const auto groups = static_cast<double>(shape().groups);
  return kLaunch + m * static_cast<double>(shape().outputs) * k * kSummed <
         groups * (2 * kLaunch + m * padded * (kMoved + strips * kMultiplied));
}

Result<DeviceStaticConv::Data::Places> DeviceStaticConv::Data::places(const Call& call, std::string_view kernel) const {
  Places at{};
  at.direct = kernel.empty() ? is_direct(call) : kernel == kDirect;
  if (!kernel.empty() && kernel != kDirect && kernel != kProduct)
    return refuse_argument(layer.name() + ": kernel is '" + std::string(kernel) + "', must be " + kDirect + " or " +
                           kProduct);
  if (!at.direct && products.empty())
    return Status(StatusCode::kUnsupported,
                  layer.name() + ": kernel is product, must be direct for groups of less than 16 channels, rows of " +
                      "more than " + std::to_string(kMaxLinearK) + " codes, and residuals of 64-bit sums");
  at.sums = at.total = kDeviceAlignment;
  if (at.direct || call.outputs() == 0) return at;
  const StaticProduct& product = products[0];
  const int64_t row_bytes = product.image.blocks * kBlockDepth * code_bytes();
  const int64_t together = std::max(kGatheredBytes / row_bytes / kRowStep, int64_t{1}) * kRowStep;
  at.rows = std::min({together, call.outputs(), product.most_rows() / kRowStep * kRowStep});
  const int64_t last = (call.outputs() - 1) % at.rows + 1;
  at.sums +=
      aligned_size(std::max(product.plan(device, at.rows).rows.bytes(), product.plan(device, last).rows.bytes()));
  at.total = at.sums;
  if (parameters().residual)
    at.total += aligned_size(at.rows * group_outputs() * static_cast<int64_t>(sizeof(int32_t)));
  return at;
}

Result<std::string_view> DeviceStaticConv::kernel_name(int64_t images, const ImageSize& image) const {
  ISOBIT_ASSIGN_OR_RETURN(const Data::Call call, data_->call_of(images, image));
  return std::string_view(data_->is_direct(call) ? kDirect : kProduct);
}

Result<int64_t> DeviceStaticConv::workspace_bytes(int64_t images, const ImageSize& image,
                                                  std::string_view kernel) const {
  ISOBIT_ASSIGN_OR_RETURN(const Data::Call call, data_->call_of(images, image));
  ISOBIT_ASSIGN_OR_RETURN(const Data::Places at, data_->places(call, kernel));
  return at.total;
}

Status DeviceStaticConv::forward(std::span<const std::byte> x, std::span<std::byte> y, int64_t images,
                                 const ImageSize& image, std::span<std::byte> workspace, const RunOptions& options,
                                 std::span<const std::byte> residual) const {
  const Data& data = *data_;
  const StaticConvParameters& p = data.parameters();
  const std::string& name = data.layer.name();
  ISOBIT_RETURN_IF_ERROR(
      refuse_options(options, kKernelOption | kStreamOption | kRowOptions, "a convolution on a device"));
  ISOBIT_ASSIGN_OR_RETURN(const Data::Call call, data.call_of(images, image));
  const Dtype x_dtype = p.linear.x_dtype(), y_dtype = p.linear.y_dtype();
  LinearRows x_rows{"x", x.data(), x.size(), x_dtype, p.shape.channels, options.x_stride};
  LinearRows y_rows{"y", y.data(), y.size(), y_dtype, p.shape.outputs, options.y_stride};
  ISOBIT_RETURN_IF_ERROR(check_rows_apart(x_rows, images * image.rows * image.columns, y_rows, call.outputs()));
  if (p.residual.has_value() == residual.empty() && call.outputs() > 0)
    return refuse_argument(name + ": residual has " + std::to_string(residual.size()) +
                           (p.residual ? " bytes, must be codes as y: the layer adds a residual"
                                       : " bytes, must be empty: the layer adds none"));
  if (call.outputs() == 0) return {};
  ConvResidual added{};
  if (p.residual) {
    const Grid& grid = p.residual->grid;
    LinearRows rows{"residual", residual.data(), residual.size(), grid.dtype(), p.shape.outputs, y_rows.stride};
    const bool is_y = residual.data() == y.data() && size_in_bytes(grid.dtype()) == size_in_bytes(y_dtype);
    ISOBIT_RETURN_IF_ERROR(check_rows_apart(rows, call.outputs(), y_rows, is_y ? 0 : call.outputs()));
    ISOBIT_RETURN_IF_ERROR(check_on_device({"residual", residual}, device()));
    added = {.codes = residual.data(),
             .dtype = grid.dtype(),
             .zero = static_cast<int32_t>(grid.zero_point),
             .least = static_cast<int32_t>(grid.min()),
             .most = static_cast<int32_t>(grid.max()),
             .rescale = {p.residual->rescale.multiplier, p.residual->rescale.shift}};
  }
  ISOBIT_ASSIGN_OR_RETURN(const Data::Places at, data.places(call, options.kernel));
  ISOBIT_RETURN_IF_ERROR(check_device_buffer("workspace", workspace, Dtype::kU8));
  ISOBIT_RETURN_IF_ERROR(check_alignment("workspace", workspace.data()));
  if (static_cast<int64_t>(workspace.size()) < at.total)
    return refuse_argument("workspace has " + std::to_string(workspace.size()) + " bytes, must have " +
                           std::to_string(at.total) + " for " + std::to_string(images) +
                           " images of this size (workspace_bytes)");
  ISOBIT_RETURN_IF_ERROR(check_current_device(device(), "the layer"));
  const std::initializer_list<NamedBuffer> buffers = {{"x", x}, {"y", y}, {"workspace", workspace}};
  ISOBIT_RETURN_IF_ERROR(check_apart(buffers));
  for (const NamedBuffer& buffer : buffers) ISOBIT_RETURN_IF_ERROR(check_on_device(buffer, device()));
  ISOBIT_RETURN_IF_ERROR(check_stream(options.stream, device()));

  auto* const outside = reinterpret_cast<unsigned long long*>(workspace.data());
  if (data.has_codes_outside())
    ISOBIT_RETURN_IF_ERROR(
        cuda_status(cudaMemsetAsync(outside, 0xff, sizeof *outside, options.stream), "the check of x"));
  ConvSource source{.x = x.data(),
                    .x_stride = x_rows.stride,
                    .first = 0,
                    .m = call.outputs(),
                    .rows = axis_of(p.shape.rows, image.rows, call.size.rows),
                    .columns = axis_of(p.shape.columns, image.columns, call.size.columns),
                    .transposed = p.shape.transposed ? 1 : 0,
                    .channels = static_cast<int32_t>(p.shape.channels),
                    .group_channels = static_cast<int32_t>(p.shape.group_channels()),
                    .zero = static_cast<int32_t>(p.linear.input.zero_point),
                    .least = static_cast<int32_t>(p.linear.input.min()),
                    .most = static_cast<int32_t>(p.linear.input.max()),
                    .outside = data.has_codes_outside() ? outside : nullptr};
  if (at.direct)
    return run_direct({.source = source,
                       .weights = data.weights,
                       .outputs = static_cast<int32_t>(p.shape.outputs),
                       .group_outputs = static_cast<int32_t>(data.group_outputs()),
                       .epilogue = data.epilogue,
                       .residual = added,
                       .y = y.data(),
                       .y_stride = y_rows.stride},
                      x_dtype, options.stream);
  std::byte* const rows = workspace.data() + kDeviceAlignment;
  std::byte* const sums = workspace.data() + at.sums;
  const auto y_bytes = static_cast<int64_t>(size_in_bytes(y_dtype));
  for (int64_t first = 0; first < call.outputs(); first += at.rows) {
    source.first = first;
    source.m = std::min(at.rows, call.outputs() - first);
    for (int64_t g = 0; g < p.shape.groups; ++g) {
      const StaticProduct& product = data.products[static_cast<size_t>(g)];
      const LinearPlan plan = product.plan(data.device, source.m);
      ISOBIT_RETURN_IF_ERROR(gather_rows(plan.rows, source, x_dtype, static_cast<int32_t>(g * p.shape.group_channels()),
                                         rows, options.stream));
      const int64_t to = first * y_rows.stride + g * data.group_outputs();
      std::byte* const y_of_group = y.data() + to * y_bytes;
      ISOBIT_RETURN_IF_ERROR(product.run(data.device, plan, rows, p.residual ? sums : y_of_group,
                                         p.residual ? data.group_outputs() : y_rows.stride, options.stream));
      if (!p.residual) continue;
      ConvAdd add{.acc = reinterpret_cast<const int32_t*>(sums),
                  .m = source.m,
                  .n = static_cast<int32_t>(data.group_outputs()),
                  .epilogue = data.epilogue,
                  .residual = added,
                  .y = y_of_group,
                  .y_stride = y_rows.stride};
      add.epilogue.channels += g * data.group_outputs();
      add.residual.codes = residual.data() + to * static_cast<int64_t>(size_in_bytes(p.residual->grid.dtype()));
      ISOBIT_RETURN_IF_ERROR(add_residual(add, options.stream));
    }
  }
  return {};
}

Status DeviceStaticConv::check_input(std::span<const std::byte> workspace, CUstream_st* stream) const {
  const Data& data = *data_;
  unsigned long long key = kNoneOutside;
  if (data.has_codes_outside()) {
    ISOBIT_RETURN_IF_ERROR(check_device_buffer("workspace", workspace, Dtype::kU8));
    if (workspace.size() < sizeof key)
      return refuse_argument("workspace has " + std::to_string(workspace.size()) + " bytes, must be that of a run");
    ISOBIT_RETURN_IF_ERROR(cuda_status(
        cudaMemcpyAsync(&key, workspace.data(), sizeof key, cudaMemcpyDeviceToHost, stream), "check_input"));
  }
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "check_input"));
  if (key == kNoneOutside) return {};
  const Grid& grid = data.parameters().linear.input;
  const auto low = static_cast<uint16_t>(key & 0xffff);
  const int64_t code = grid.is_signed ? int64_t{static_cast<int16_t>(low)} : int64_t{low};
  const auto element = static_cast<int64_t>(key >> 16);
  return refuse_code(grid, element / data.shape().channels, element % data.shape().channels, code, data.layer.name());
}

}  // namespace isobit::cuda
