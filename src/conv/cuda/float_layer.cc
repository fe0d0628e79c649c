// SPDX-License-Identifier: Apache-2.0
// DeviceConv: what is checked, and the launches.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conv/cuda/call.h"
#include "conv/cuda/float_kernels.h"
#include "conv/layer_parts.h"
#include "conv/pixel_weights.h"
#include "core/cuda/arguments.h"
#include "core/cuda/upload.h"
#include "core/run_options.h"
#include "isobit/cuda/conv.h"
#include "linear/cuda/plan.h"
#include "linear/cuda/steps.h"
#include "linear/layer_parts.h"

namespace isobit::cuda {
namespace {

constexpr int64_t kLeastGroupChannels = 16;  // of a product; a layer has the same kernel for all sizes of images
constexpr int64_t kRowStep = 1024;

/// What "direct" reads of weights; k over (r, s, c), g over (r, s, block), o fastest.
struct DirectWeights {
  std::vector<int16_t> values;
  std::vector<float> scales, offsets;

  DirectWeights(const PixelWeights& pixels, int64_t outputs, int64_t taps) {
    const PixelBlocks& blocks = pixels.blocks;
    const int64_t groups = pixels.groups[0].groups(), of_group = pixels.groups[0].rows();
    values.resize(static_cast<size_t>(taps * blocks.channels * outputs));
    scales.resize(static_cast<size_t>(groups * outputs));
    offsets.resize(scales.size());
    for (int64_t o = 0; o < outputs; ++o) {
      const LowBitMatrix& matrix = pixels.groups[static_cast<size_t>(o / of_group)];
      const int64_t row = o % of_group;
      for (int64_t tap = 0; tap < taps; ++tap)
        for (int64_t c = 0; c < blocks.channels; ++c)
          values[static_cast<size_t>((tap * blocks.channels + c) * outputs + o)] =
              static_cast<int16_t>(matrix.value(row, tap * blocks.padded + c));
      for (int64_t g = 0; g < groups; ++g) {
        scales[static_cast<size_t>(g * outputs + o)] = matrix.scale(row, g);
        offsets[static_cast<size_t>(g * outputs + o)] = matrix.offset(row, g);
      }
    }
  }
};

ProductArgs result_of(std::byte* y, Dtype y_dtype, int64_t y_stride, const LinearClamp& clamp) {
  ProductArgs result{};
  result.y = y;
  result.y_stride = y_stride;
  result.y_type = y_type_of(y_dtype);
  result.lo = clamp.lo;
  result.hi = clamp.hi;
  return result;
}

}  // namespace

struct DeviceConv::Data {
  /// The workspace, in bytes from its beginning: what was refused, or magnitudes of images; then rows, or codes and
  /// sums.
  struct Places {
    int64_t rows = 0;  // gathered together
    int64_t codes = 0, sums = 0, inner = 0, inner_bytes = 0, total = 0;
  };

  ConvShape shape;
  ConvActivations activations = ConvActivations::kFloat;
  std::string name;
  LinearClamp clamp;
  LinearDevice device;
  PixelBlocks blocks;
  std::vector<DeviceLinear> products;    // of groups of channels
  std::optional<DeviceStaticConv> sums;  // kInt8PerImage
  FloatDirect direct{};                  // weights: null: products, or sums, run
  std::shared_ptr<const std::byte> memory;
  const float* scales = nullptr;  // [O], of sums
  const float* bias = nullptr;    // [O], of sums and of "direct"

  [[nodiscard]] bool quantizes() const { return activations != ConvActivations::kFloat; }
  [[nodiscard]] bool asymmetric() const { return activations == ConvActivations::kInt8Asymmetric; }
  [[nodiscard]] int64_t group_outputs() const { return shape.outputs / shape.groups; }

  Status pack_sums(const LowBitMatrix& weights, std::span<const float> biases);
  Status pack_direct(const LowBitMatrix& weights, std::span<const float> biases);
  Status pack_products(const LowBitMatrix& weights, std::span<const float> biases);
  [[nodiscard]] Result<DeviceConvCall> call_of(int64_t images, const ImageSize& image) const {
    return device_conv_call(shape, images, image, name);
  }
  [[nodiscard]] Result<Places> places(const DeviceConvCall& call, Dtype x_dtype) const;

  struct Run {
    DeviceConvCall call;
    std::span<const std::byte> x;
    Dtype x_dtype;
    int64_t x_stride;
    std::span<std::byte> y;
    Dtype y_dtype;
    int64_t y_stride;
    std::byte* workspace;
    Places at;
    cudaStream_t stream;
  };
  [[nodiscard]] Status run_sums(const Run& run) const;
  [[nodiscard]] Status run_direct(const Run& run) const;
  [[nodiscard]] Status run_products(const Run& run) const;
};

Status DeviceConv::Data::pack_sums(const LowBitMatrix& weights, std::span<const float> biases) {
  ISOBIT_ASSIGN_OR_RETURN(const StaticConvLayer layer, StaticConvLayer::create(per_image_sums(shape, weights), name));
  ISOBIT_ASSIGN_OR_RETURN(sums, DeviceStaticConv::create(layer));
  std::vector<float> of_rows;
  for (int64_t o = 0; o < shape.outputs; ++o) of_rows.push_back(weights.scale(o, 0));
  Upload upload;
  upload.add(std::span<const float>(of_rows), scales);
  upload.add(biases, bias);
  ISOBIT_ASSIGN_OR_RETURN(memory, upload.finish());
  return {};
}

Status DeviceConv::Data::pack_direct(const LowBitMatrix& weights, std::span<const float> biases) {
  ISOBIT_ASSIGN_OR_RETURN(const PixelWeights pixels, pixel_weights(shape, weights, false, asymmetric(), name));
  blocks = pixels.blocks;
  const DirectWeights unpacked(pixels, shape.outputs, shape.rows.kernel * shape.columns.kernel);
  direct.activations = activations;
  direct.has_offsets = weights.parameters().kind == LowBitKind::kOffset;
  direct.blocks = blocks;
  direct.outputs = static_cast<int32_t>(shape.outputs);
  direct.group_outputs = static_cast<int32_t>(group_outputs());
  Upload upload;
  upload.add(std::span<const int16_t>(unpacked.values), direct.weights);
  upload.add(std::span<const float>(unpacked.scales), direct.scales);
  upload.add(std::span<const float>(unpacked.offsets), direct.offsets);
  upload.add(biases, bias);
  ISOBIT_ASSIGN_OR_RETURN(memory, upload.finish());
  direct.bias = bias;
  return {};
}

Status DeviceConv::Data::pack_products(const LowBitMatrix& weights, std::span<const float> biases) {
  ISOBIT_ASSIGN_OR_RETURN(const PixelWeights pixels, pixel_weights(shape, weights, !quantizes(), asymmetric(), name));
  blocks = pixels.blocks;
  for (int64_t g = 0; g < shape.groups; ++g) {
    const auto first = static_cast<size_t>(g * group_outputs()), count = static_cast<size_t>(group_outputs());
    ISOBIT_ASSIGN_OR_RETURN(DeviceLinear product, DeviceLinear::create(pixels.groups[static_cast<size_t>(g)],
                                                                       {.activations = linear_activations(activations),
                                                                        .bias = biases.subspan(first, count),
                                                                        .clamp = clamp},
                                                                       name));
    products.push_back(std::move(product));
  }
  return {};
}

Result<DeviceConv> DeviceConv::create(const ConvShape& shape, const LowBitMatrix& weights, const ConvOptions& options,
                                      std::string_view name, std::optional<int> device) {
  auto data = std::make_shared<Data>();
  data->name = name;
  ISOBIT_RETURN_IF_ERROR(check_conv_layer(shape, weights, options, data->name));
  if (options.path)
    return refuse_argument(data->name + ": path is " + std::string(to_string(*options.path)) +
                           ", must be empty for a layer on a device");
  data->shape = shape;
  data->activations = options.activations;
  data->clamp = options.clamp;
  if (device) ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(*device), "device " + std::to_string(*device)));
  ISOBIT_ASSIGN_OR_RETURN(data->device, LinearDevice::current());
  std::vector<float> bias(options.bias.begin(), options.bias.end());
  bias.resize(static_cast<size_t>(shape.outputs));
  const bool few_channels = shape.groups > 1 && shape.group_channels() < kLeastGroupChannels;
  ISOBIT_RETURN_IF_ERROR(options.activations == ConvActivations::kInt8PerImage ? data->pack_sums(weights, bias)
                         : few_channels                                        ? data->pack_direct(weights, bias)
                                                                               : data->pack_products(weights, bias));
  DeviceConv layer;
  layer.data_ = std::move(data);
  return layer;
}

const ConvShape& DeviceConv::shape() const { return data_->shape; }
ConvActivations DeviceConv::activations() const { return data_->activations; }
const std::string& DeviceConv::name() const { return data_->name; }
int DeviceConv::device() const { return data_->device.number; }
std::string_view DeviceConv::kernel_name() const {
  return data_->sums ? "sums" : data_->products.empty() ? "direct" : "product";
}

Result<DeviceConv::Data::Places> DeviceConv::Data::places(const DeviceConvCall& call, Dtype x_dtype) const {
  Places at;
  if (sums) {
    at.codes = aligned_size(call.images * static_cast<int64_t>(sizeof(uint32_t)));
    at.sums = at.codes + aligned_size(call.pixels() * shape.channels);
    at.inner = at.sums + aligned_size(call.outputs() * shape.outputs * static_cast<int64_t>(sizeof(int32_t)));
    ISOBIT_ASSIGN_OR_RETURN(at.inner_bytes, sums->workspace_bytes(call.images, call.image));
    at.total = at.inner + at.inner_bytes;
    return at;
  }
  at.total = kDeviceAlignment;
  if (products.empty() || call.outputs() == 0) return at;
  const int64_t row = LinearSteps::row_bytes(products[0], x_dtype, kRowStep) / kRowStep;
  at.rows = std::min(std::max<int64_t>(kGatheredBytes / row / kRowStep, 1) * kRowStep, call.outputs());
  at.total += LinearSteps::row_bytes(products[0], x_dtype, at.rows);
  return at;
}

Result<int64_t> DeviceConv::workspace_bytes(int64_t images, const ImageSize& image) const {
  ISOBIT_ASSIGN_OR_RETURN(const DeviceConvCall call, data_->call_of(images, image));
  int64_t most = 0;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16}) {
    ISOBIT_ASSIGN_OR_RETURN(const Data::Places at, data_->places(call, dtype));
    most = std::max(most, at.total);
  }
  return most;
}

Status DeviceConv::Data::run_sums(const Run& run) const {
  const DeviceConvCall& call = run.call;
  auto* const magnitudes = reinterpret_cast<uint32_t*>(run.workspace);
  const auto count = static_cast<size_t>(call.images);
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaMemsetAsync(magnitudes, 0, count * sizeof *magnitudes, run.stream), "magnitudes"));
  std::byte* const codes = run.workspace + run.at.codes;
  ISOBIT_RETURN_IF_ERROR(quantize_images({.x = run.x.data(),
                                          .x_stride = run.x_stride,
                                          .images = call.images,
                                          .pixels = call.image.rows * call.image.columns,
                                          .channels = shape.channels,
                                          .magnitudes = magnitudes,
                                          .codes = reinterpret_cast<uint8_t*>(codes)},
                                         run.x_dtype, run.stream));
  const std::span d(run.workspace + run.at.sums, static_cast<size_t>(call.outputs() * shape.outputs) * sizeof(int32_t));
  ISOBIT_RETURN_IF_ERROR(
      sums->forward({codes, static_cast<size_t>(call.pixels() * shape.channels)}, d, call.images, call.image,
                    {run.workspace + run.at.inner, static_cast<size_t>(run.at.inner_bytes)}, {.stream = run.stream}));
  return finish_images({.sums = reinterpret_cast<const int32_t*>(d.data()),
                        .images = call.images,
                        .outputs = call.size.rows * call.size.columns,
                        .channels = shape.outputs,
                        .magnitudes = magnitudes,
                        .scales = scales,
                        .bias = bias,
                        .result = result_of(run.y.data(), run.y_dtype, run.y_stride, clamp)},
                       run.stream);
}

Status DeviceConv::Data::run_direct(const Run& run) const {
  FloatDirect conv = direct;
  conv.source = device_source(shape, run.call);
  conv.source.x = run.x.data();
  conv.source.x_stride = run.x_stride;
  conv.source.outside = reinterpret_cast<unsigned long long*>(run.workspace);
  conv.result = result_of(run.y.data(), run.y_dtype, run.y_stride, clamp);
  return run_float_direct(conv, run.x_dtype, run.stream);
}

Status DeviceConv::Data::run_products(const Run& run) const {
  std::byte* const rows = run.workspace + kDeviceAlignment;
  ConvRows from{.source = device_source(shape, run.call),
                .blocks = blocks,
                .first_channel = 0,
                .is_linear = is_conv_linear(shape)};
  from.source.x = run.x.data();
  from.source.x_stride = run.x_stride;
  from.source.outside = reinterpret_cast<unsigned long long*>(run.workspace);
  const auto y_bytes = static_cast<int64_t>(size_in_bytes(run.y_dtype));
  for (int64_t first = 0; first < run.call.outputs(); first += run.at.rows) {
    const int64_t m = std::min(run.at.rows, run.call.outputs() - first);
    from.source.first = first;
    from.source.m = m;
    for (int64_t g = 0; g < shape.groups; ++g) {
      const DeviceLinear& product = products[static_cast<size_t>(g)];
      const LinearPlan plan = LinearSteps::plan(product, run.x_dtype, m);
      from.first_channel = g * blocks.channels;
      ISOBIT_RETURN_IF_ERROR(prepare_pixel_rows(LinearSteps::image(product), plan.rows, from, run.x_dtype, asymmetric(),
                                                rows, device.bulk_copies, run.stream));
      ISOBIT_RETURN_IF_ERROR(LinearSteps::multiply(
          product, plan, rows, run.y.data() + (first * run.y_stride + g * group_outputs()) * y_bytes, run.y_dtype,
          run.y_stride, m, run.stream));
    }
  }
  return {};
}

Status DeviceConv::forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                           int64_t images, const ImageSize& image, std::span<std::byte> workspace,
                           const RunOptions& options) const {
  const Data& data = *data_;
  ISOBIT_RETURN_IF_ERROR(check_linear_types(x_dtype, y_dtype, linear_activations(data.activations)));
  ISOBIT_RETURN_IF_ERROR(refuse_options(options, kStreamOption | kRowOptions, "a convolution on a device"));
  ISOBIT_ASSIGN_OR_RETURN(const DeviceConvCall call, data.call_of(images, image));
  LinearRows x_rows{"x", x.data(), x.size(), x_dtype, data.shape.channels, options.x_stride};
  LinearRows y_rows{"y", y.data(), y.size(), y_dtype, data.shape.outputs, options.y_stride};
  ISOBIT_RETURN_IF_ERROR(check_rows_apart(x_rows, call.pixels(), y_rows, call.outputs()));
  if (images == 0) return {};
  ISOBIT_ASSIGN_OR_RETURN(const Data::Places at, data.places(call, x_dtype));
  ISOBIT_RETURN_IF_ERROR(check_conv_memory(x, y, workspace, at.total, images, device(), options.stream));
  const Data::Run run{call, x, x_dtype, x_rows.stride, y, y_dtype, y_rows.stride, workspace.data(), at, options.stream};
  if (data.sums) return data.run_sums(run);
  if (data.quantizes())
    ISOBIT_RETURN_IF_ERROR(
        cuda_status(cudaMemsetAsync(workspace.data(), 0xff, sizeof kNoneRefused, options.stream), "the check of x"));
  return data.products.empty() ? data.run_direct(run) : data.run_products(run);
}

Status DeviceConv::check_input(std::span<const std::byte> workspace, int64_t images, const ImageSize& image,
                               CUstream_st* stream) const {
  const Data& data = *data_;
  ISOBIT_ASSIGN_OR_RETURN(const DeviceConvCall call, data.call_of(images, image));
  if (!data.quantizes() || images == 0) return cuda_status(cudaStreamSynchronize(stream), "check_input");
  ISOBIT_RETURN_IF_ERROR(check_device_buffer("workspace", workspace, Dtype::kU8));
  std::vector<uint32_t> magnitudes(data.sums ? static_cast<size_t>(images) : 0);
  unsigned long long pixel = kNoneRefused;
  const std::span<std::byte> to =
      data.sums ? std::as_writable_bytes(std::span(magnitudes)) : std::as_writable_bytes(std::span(&pixel, 1));
  if (workspace.size() < to.size())
    return refuse_argument("workspace has " + std::to_string(workspace.size()) + " bytes, must be that of a run of " +
                           std::to_string(images) + " images");
  ISOBIT_RETURN_IF_ERROR(cuda_status(
      cudaMemcpyAsync(to.data(), workspace.data(), to.size(), cudaMemcpyDeviceToHost, stream), "check_input"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "check_input"));
  if (data.sums) {
    constexpr uint32_t kInfinityBits = 0x7f800000;
    const auto found = std::find_if(magnitudes.begin(), magnitudes.end(),
                                    [](uint32_t magnitude) { return magnitude >= kInfinityBits; });
    return found == magnitudes.end() ? Status() : refuse_conv_image(found - magnitudes.begin());
  }
  if (pixel == kNoneRefused) return {};
  return refuse_conv_pixel(static_cast<int64_t>(pixel), call.image);
}

}  // namespace isobit::cuda
