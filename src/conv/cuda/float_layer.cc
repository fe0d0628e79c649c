// SPDX-License-Identifier: Apache-2.0
// DeviceConv: what is checked, and the launches.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conv/cuda/call.h"
#include "conv/cuda/float_kernels.h"
#include "conv/cuda/tile.h"
#include "conv/layer_parts.h"
#include "conv/pixel_weights.h"
#include "core/codes.h"
#include "core/cuda/arguments.h"
#include "core/cuda/upload.h"
#include "core/run_options.h"
#include "isobit/cuda/conv.h"
#include "linear/cuda/arguments.h"
#include "linear/cuda/plan.h"
#include "linear/cuda/steps.h"
#include "linear/int8/int8.h"
#include "linear/layer_parts.h"

namespace isobit::cuda {
namespace {

constexpr int64_t kLeastGroupChannels = 16;  // of matrix instructions
constexpr int64_t kRowStep = 1024;
constexpr int64_t kMostGroups = 65535;  // of a grid of blocks of threads
enum class Kernel { kTile, kDepthwise, kProduct, kDirect, kSums };

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

ProductArgs result_of(std::byte* y, Dtype y_dtype, int64_t y_stride, const LinearClamp& clamp) {
  ProductArgs result{};
  result.y = y;
  result.y_stride = y_stride;
  result.y_type = y_type_of(y_dtype);
  result.lo = clamp.lo;
  result.hi = clamp.hi;
  const size_t four = 4 * size_in_bytes(y_dtype);
  result.y_in_fours = reinterpret_cast<uintptr_t>(y) % four == 0 && y_stride % 4 == 0;
  return result;
}

/// Weights of single outputs: k over (r, s, c), g over (r, s, block), o fastest.
struct PlainWeights {
  int64_t outputs, taps, groups;  // groups: of a row
  PixelBlocks blocks;
  std::vector<int16_t> values;  // v
  std::vector<float> scales, offsets;

  PlainWeights(const PixelWeights& pixels, int64_t all_outputs, int64_t all_taps)
      : outputs(all_outputs), taps(all_taps), groups(pixels.groups[0].groups()), blocks(pixels.blocks) {
    const int64_t of_group = pixels.groups[0].rows();
    values.resize(static_cast<size_t>(taps * blocks.channels * outputs));
    scales.resize(static_cast<size_t>(groups * outputs));
    offsets.resize(scales.size());
    for (int64_t o = 0; o < outputs; ++o) {
      const LowBitMatrix& matrix = pixels.groups[static_cast<size_t>(o / of_group)];
      const int64_t row = o % of_group;
      for (int64_t tap = 0; tap < taps; ++tap)
        for (int64_t c = 0; c < blocks.channels; ++c)
          values[value_at(o, tap, c)] = static_cast<int16_t>(matrix.value(row, tap * blocks.padded + c));
      for (int64_t g = 0; g < groups; ++g) {
        scales[static_cast<size_t>(g * outputs + o)] = matrix.scale(row, g);
        offsets[static_cast<size_t>(g * outputs + o)] = matrix.offset(row, g);
      }
    }
  }
  [[nodiscard]] size_t value_at(int64_t o, int64_t tap, int64_t c) const {
    return static_cast<size_t>((tap * blocks.channels + c) * outputs + o);
  }
  /// W = S * v + O, rounded once.
  [[nodiscard]] float weight(int64_t o, int64_t tap, int64_t c) const {
    const int64_t g = tap * blocks.count() + c / blocks.block;
    const auto at = static_cast<size_t>(g * outputs + o);
    return static_cast<float>(static_cast<double>(scales[at]) * values[value_at(o, tap, c)] +
                              static_cast<double>(offsets[at]));
  }
  [[nodiscard]] bool values_have_8_bits() const {
    return std::all_of(values.begin(), values.end(), [](int16_t v) { return v >= INT8_MIN && v <= INT8_MAX; });
  }
};

}  // namespace

struct DeviceConv::Data {
  /// The workspace, in bytes from its beginning: what was refused, or magnitudes of images; then what is gathered, or
  /// codes and sums.
  struct Places {
    int64_t rows = 0;    // of a product, gathered together
    int64_t images = 0;  // of a tile, together
    int64_t scales = 0;  // of a tile
    int64_t codes = 0, sums = 0, inner = 0, inner_bytes = 0, total = 0;
  };
  /// Weights as a tile has them, and what it needs of outputs.
  struct Tiles {
    const std::byte* weights = nullptr;  // null: there is no tile
    int64_t pixel_bytes = 0;             // of a group of channels
    int64_t depth_bytes = 0;
    int32_t block_bytes = 0;
  };

  ConvShape shape;
  ConvActivations activations = ConvActivations::kFloat;
  std::string name;
  LinearClamp clamp;
  LinearDevice device;
  PixelBlocks blocks;
  Tiles f16, bf16, codes;
  std::vector<DeviceLinear> products;  // of groups of channels
  PixelBlocks product_blocks;
  std::optional<DeviceStaticConv> sums;  // kInt8PerImage
  FloatDirect direct{};                  // weights: null: it is not there
  FloatDepthwise depthwise{};            // the same
  const float2* channels = nullptr;      // of tiles: factor of the sum, bias
  const float* block_scales = nullptr;   // of tiles, S of each block; null: one scale a row, which is the factor
  std::shared_ptr<const std::byte> memory;
  const float* scales = nullptr;  // [O], of sums
  const float* bias = nullptr;    // [O]

  [[nodiscard]] bool quantizes() const { return activations != ConvActivations::kFloat; }
  [[nodiscard]] bool asymmetric() const { return activations == ConvActivations::kInt8Asymmetric; }
  [[nodiscard]] int64_t group_outputs() const { return shape.outputs / shape.groups; }
  [[nodiscard]] int64_t taps() const { return shape.rows.kernel * shape.columns.kernel; }
  /// An output has the same kernel in all runs.
  [[nodiscard]] const Tiles& tiles(Dtype x_dtype) const {
    static const Tiles kNone;
    return quantizes() ? codes : x_dtype == Dtype::kF16 ? f16 : x_dtype == Dtype::kBF16 ? bf16 : kNone;
  }
  [[nodiscard]] Kernel kernel(Dtype x_dtype) const {
    if (sums) return Kernel::kSums;
    if (depthwise.weights != nullptr) return Kernel::kDepthwise;
    if (tiles(x_dtype).weights != nullptr) return Kernel::kTile;
    return products.empty() ? Kernel::kDirect : Kernel::kProduct;
  }

  Status pack_sums(const LowBitMatrix& weights, std::span<const float> biases);
  Status pack_outputs(const LowBitMatrix& weights, std::span<const float> biases);
  void pack_depthwise(const PlainWeights& plain, Upload& upload);
  void pack_direct(const PlainWeights& plain, bool has_offsets, Upload& upload);
  void pack_tiles(const PlainWeights& plain, bool one_scale, std::span<const float> biases, Upload& upload);
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

    [[nodiscard]] unsigned long long* refused() const { return reinterpret_cast<unsigned long long*>(workspace); }
  };
  [[nodiscard]] Status run_sums(const Run& run) const;
  [[nodiscard]] Status run_outputs(const Run& run) const;  // direct, depthwise
  [[nodiscard]] Status run_products(const Run& run) const;
  [[nodiscard]] Status run_tiles(const Run& run) const;
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

Status DeviceConv::Data::pack_outputs(const LowBitMatrix& weights, std::span<const float> biases) {
  const bool has_offsets = weights.parameters().kind == LowBitKind::kOffset;
  ISOBIT_ASSIGN_OR_RETURN(const PixelWeights pixels, pixel_weights(shape, weights, false, asymmetric(), name));
  blocks = pixels.blocks;
  const PlainWeights plain(pixels, shape.outputs, taps());
  Upload upload;
  upload.add(biases, bias);
  if (has_float_depthwise(shape) && !asymmetric() && !(quantizes() && has_offsets)) {
    pack_depthwise(plain, upload);
  } else if (shape.groups > 1 && shape.group_channels() < kLeastGroupChannels) {
    pack_direct(plain, has_offsets, upload);
  } else if (shape.groups <= kMostGroups && !asymmetric() && !has_offsets &&
             (!quantizes() || (blocks.block <= kMaxInt8Group && plain.values_have_8_bits()))) {
    // One scale a row needs no blocks.
    const bool one_scale = !quantizes() && weights.groups() == 1 && (taps() == 1 || weights.rows() == shape.outputs);
    pack_tiles(plain, one_scale, biases, upload);
  }
  ISOBIT_ASSIGN_OR_RETURN(memory, upload.finish());
  direct.bias = depthwise.bias = bias;
  return {};
}

void DeviceConv::Data::pack_depthwise(const PlainWeights& plain, Upload& upload) {
  std::vector<float> numbers;
  for (int64_t tap = 0; tap < taps(); ++tap)
    for (int64_t o = 0; o < shape.outputs; ++o)
      numbers.push_back(quantizes() ? static_cast<float>(plain.values[plain.value_at(o, tap, 0)])
                                    : plain.weight(o, tap, 0));
  upload.add(std::span<const float>(numbers), depthwise.weights);
  if (quantizes()) upload.add(std::span<const float>(plain.scales), depthwise.scales);
}

void DeviceConv::Data::pack_direct(const PlainWeights& plain, bool has_offsets, Upload& upload) {
  direct.activations = activations;
  direct.has_offsets = has_offsets;
  direct.blocks = blocks;
  direct.outputs = static_cast<int32_t>(shape.outputs);
  direct.group_outputs = static_cast<int32_t>(group_outputs());
  upload.add(std::span<const int16_t>(plain.values), direct.weights);
  upload.add(std::span<const float>(plain.scales), direct.scales);
  upload.add(std::span<const float>(plain.offsets), direct.offsets);
}

/// Of each element type that tiles may have; all v of 8 bits, and their differences from zero points, are float16 and
/// bfloat16.
void DeviceConv::Data::pack_tiles(const PlainWeights& plain, bool one_scale, std::span<const float> biases,
                                  Upload& upload) {
  if (one_scale) blocks.block = blocks.padded;
  std::vector<float2> of_channels;
  for (int64_t o = 0; o < shape.outputs; ++o)
    of_channels.push_back({one_scale ? plain.scales[static_cast<size_t>(o)] : 1.0f, biases[static_cast<size_t>(o)]});
  upload.add(std::span<const float2>(of_channels), channels);
  const int64_t padded_outputs = round_up(group_outputs(), kTileOutputs);
  const auto padded_row = [&](int64_t o) { return o / group_outputs() * padded_outputs + o % group_outputs(); };
  const auto pack = [&](Tiles& tiles, int64_t element_bytes, const auto& store) {
    tiles.block_bytes =
        static_cast<int32_t>(round_up(blocks.block * element_bytes, one_scale ? kPieceCodes : kScaledDepth));
    tiles.pixel_bytes = blocks.count() * tiles.block_bytes;
    tiles.depth_bytes = taps() * tiles.pixel_bytes;
    const int64_t row_bytes = round_up(tiles.depth_bytes, kTileDepth);
    const int64_t block_elements = tiles.block_bytes / element_bytes;
    std::vector<std::byte> to(static_cast<size_t>(shape.groups * padded_outputs * row_bytes));
    for (int64_t o = 0; o < shape.outputs; ++o)
      for (int64_t tap = 0; tap < taps(); ++tap)
        for (int64_t c = 0; c < blocks.channels; ++c)
          store(to.data() + padded_row(o) * row_bytes,
                (tap * blocks.count() + c / blocks.block) * block_elements + c % blocks.block,
                plain.values[plain.value_at(o, tap, c)]);
    upload.add(std::span<const std::byte>(to), tiles.weights);
  };
  if (quantizes()) {
    pack(codes, 1, [](std::byte* row, int64_t at, int16_t v) { row[at] = static_cast<std::byte>(v); });
  } else {
    for (const auto& [tiles, dtype] : {std::pair(&f16, Dtype::kF16), std::pair(&bf16, Dtype::kBF16)})
      pack(*tiles, 2, [of = dtype](std::byte* row, int64_t at, int16_t v) { store_float(row, of, at, v); });
  }
  if (one_scale) return;
  std::vector<float> numbers(static_cast<size_t>(shape.groups * plain.groups * padded_outputs));
  for (int64_t o = 0; o < shape.outputs; ++o)
    for (int64_t g = 0; g < plain.groups; ++g) {
      const int64_t row = o / group_outputs() * plain.groups + g;
      numbers[static_cast<size_t>(row * padded_outputs + o % group_outputs())] =
          plain.scales[static_cast<size_t>(g * shape.outputs + o)];
    }
  upload.add(std::span<const float>(numbers), block_scales);
}

Status DeviceConv::Data::pack_products(const LowBitMatrix& weights, std::span<const float> biases) {
  ISOBIT_ASSIGN_OR_RETURN(const PixelWeights pixels, pixel_weights(shape, weights, !quantizes(), asymmetric(), name));
  product_blocks = pixels.blocks;
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
  // Kernels count the bytes of a row so, with what blocks are filled up with.
  constexpr int64_t kMostFill = 256;
  if (2 * data->taps() * (shape.group_channels() + kMostFill) > kMostImageSize)
    return Status(StatusCode::kUnsupported, data->name + ": R * S * C / groups is " + std::to_string(shape.depth()) +
                                                ", must be at most about 2^30 for a layer on a device");
  if (device) ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(*device), "device " + std::to_string(*device)));
  ISOBIT_ASSIGN_OR_RETURN(data->device, LinearDevice::current());
  std::vector<float> bias(options.bias.begin(), options.bias.end());
  bias.resize(static_cast<size_t>(shape.outputs));
  if (options.activations == ConvActivations::kInt8PerImage) {
    ISOBIT_RETURN_IF_ERROR(data->pack_sums(weights, bias));
  } else {
    ISOBIT_RETURN_IF_ERROR(data->pack_outputs(weights, bias));
    // float32 has no tile.
    if (data->depthwise.weights == nullptr && data->direct.weights == nullptr && data->codes.weights == nullptr)
      ISOBIT_RETURN_IF_ERROR(data->pack_products(weights, bias));
  }
  DeviceConv layer;
  layer.data_ = std::move(data);
  return layer;
}

const ConvShape& DeviceConv::shape() const { return data_->shape; }
ConvActivations DeviceConv::activations() const { return data_->activations; }
const std::string& DeviceConv::name() const { return data_->name; }
int DeviceConv::device() const { return data_->device.number; }
std::string_view DeviceConv::kernel_name(Dtype x_dtype) const {
  constexpr std::string_view kNames[] = {"tile", "depthwise", "product", "direct", "sums"};
  return kNames[static_cast<size_t>(data_->kernel(x_dtype))];
}

Result<DeviceConv::Data::Places> DeviceConv::Data::places(const DeviceConvCall& call, Dtype x_dtype) const {
  Places at;
  at.total = kDeviceAlignment;
  if (call.outputs() == 0) return at;
  switch (kernel(x_dtype)) {
    case Kernel::kSums: {
      at.codes = aligned_size(call.images * static_cast<int64_t>(sizeof(uint32_t)));
      at.sums = at.codes + aligned_size(call.pixels() * shape.channels);
      at.inner = at.sums + aligned_size(call.outputs() * shape.outputs * static_cast<int64_t>(sizeof(int32_t)));
      ISOBIT_ASSIGN_OR_RETURN(at.inner_bytes, sums->workspace_bytes(call.images, call.image));
      at.total = at.inner + at.inner_bytes;
      return at;
    }
    case Kernel::kTile: {
      const Tiles& tile = tiles(x_dtype);
      const int64_t pixels = call.image.rows * call.image.columns,
                    image_bytes = pixels * shape.groups * tile.pixel_bytes;
      if (image_bytes > kMostImageSize)
        return refuse_argument(name + ": an image takes " + std::to_string(image_bytes) +
                               " bytes of the workspace, must take at most " + std::to_string(kMostImageSize));
      at.images = std::clamp<int64_t>(kGatheredBytes / image_bytes, 1, call.images);
      at.scales = at.total + aligned_size(at.images * image_bytes);
      at.total = at.scales;
      if (quantizes())
        at.total += aligned_size(at.images * image_bytes / tile.block_bytes * static_cast<int64_t>(sizeof(float)));
      return at;
    }
    case Kernel::kProduct: {
      const int64_t row = LinearSteps::row_bytes(products[0], x_dtype, kRowStep) / kRowStep;
      at.rows = std::min(conv_rows_together(row), call.outputs());
      at.total += LinearSteps::row_bytes(products[0], x_dtype, at.rows);
      return at;
    }
    case Kernel::kDepthwise:
    case Kernel::kDirect: break;
  }
  return at;
}

Result<int64_t> DeviceConv::workspace_bytes(int64_t images, const ImageSize& image) const {
  ISOBIT_ASSIGN_OR_RETURN(const DeviceConvCall call, data_->call_of(images, image));
  int64_t most = 0;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
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
  std::byte* const image_codes = run.workspace + run.at.codes;
  ISOBIT_RETURN_IF_ERROR(quantize_images({.x = run.x.data(),
                                          .x_stride = run.x_stride,
                                          .images = call.images,
                                          .pixels = call.image.rows * call.image.columns,
                                          .channels = shape.channels,
                                          .magnitudes = magnitudes,
                                          .codes = reinterpret_cast<uint8_t*>(image_codes)},
                                         run.x_dtype, run.stream));
  const std::span d(run.workspace + run.at.sums, static_cast<size_t>(call.outputs() * shape.outputs) * sizeof(int32_t));
  ISOBIT_RETURN_IF_ERROR(
      sums->forward({image_codes, static_cast<size_t>(call.pixels() * shape.channels)}, d, call.images, call.image,
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

Status DeviceConv::Data::run_outputs(const Run& run) const {
  ConvSource source = device_source(shape, run.call);
  source.x = run.x.data();
  source.x_stride = run.x_stride;
  source.outside = run.refused();
  const ProductArgs result = result_of(run.y.data(), run.y_dtype, run.y_stride, clamp);
  if (depthwise.weights != nullptr) {
    FloatDepthwise conv = depthwise;
    conv.source = source;
    conv.result = result;
    return run_float_depthwise(conv, run.x_dtype, run.stream);
  }
  FloatDirect conv = direct;
  conv.source = source;
  conv.result = result;
  return run_float_direct(conv, run.x_dtype, run.stream);
}

Status DeviceConv::Data::run_tiles(const Run& run) const {
  const Tiles& tile = tiles(run.x_dtype);
  const int64_t pixels = run.call.image.rows * run.call.image.columns;
  const int64_t outputs = run.call.size.rows * run.call.size.columns;
  const auto x_bytes = static_cast<int64_t>(size_in_bytes(run.x_dtype));
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  const bool in_place =
      !quantizes() && tile.pixel_bytes == blocks.channels * x_bytes && run.x_stride * x_bytes % kPieceCodes == 0 &&
      reinterpret_cast<uintptr_t>(run.x.data()) % kPieceCodes == 0 && pixels * run.x_stride * x_bytes <= kMostImageSize;
  const int64_t together = in_place ? kMostImageSize / (pixels * run.x_stride * x_bytes) : run.at.images;
  std::byte* const copies = run.workspace + kDeviceAlignment;
  auto* const x_scales = reinterpret_cast<float*>(run.workspace + run.at.scales);
  ConvTile conv{};
  conv.source = device_source(shape, run.call);
  conv.source.channels = narrow(shape.groups * tile.pixel_bytes);
  conv.source.group_channels = narrow(tile.pixel_bytes);
  conv.source.x_stride = in_place ? run.x_stride * x_bytes : shape.groups * tile.pixel_bytes;
  conv.weights = reinterpret_cast<const int8_t*>(tile.weights);
  conv.groups = narrow(shape.groups);
  conv.outputs = narrow(group_outputs());
  conv.depth = narrow(tile.depth_bytes);
  conv.padded_outputs = narrow(round_up(group_outputs(), kTileOutputs));
  conv.padded_depth = narrow(round_up(tile.depth_bytes, kTileDepth));
  conv.float_channels = channels;
  conv.scales = {tile.block_bytes, narrow(shape.groups * blocks.count()), x_scales, block_scales};
  const bool is_f16 = run.x_dtype == Dtype::kF16;
  const TileType type = quantizes()               ? TileType::kScaledS8
                        : block_scales == nullptr ? is_f16 ? TileType::kF16 : TileType::kBF16
                        : is_f16                  ? TileType::kScaledF16
                                                  : TileType::kScaledBF16;
  for (int64_t first = 0; first < run.call.images; first += together) {
    const int64_t count = std::min(together, run.call.images - first);
    const std::byte* const x = run.x.data() + first * pixels * run.x_stride * x_bytes;
    if (quantizes()) {
      ISOBIT_RETURN_IF_ERROR(quantize_pixels({.x = x,
                                              .x_stride = run.x_stride,
                                              .pixels = count * pixels,
                                              .groups = narrow(shape.groups),
                                              .blocks = blocks,
                                              .block_codes = tile.block_bytes,
                                              .to = reinterpret_cast<int8_t*>(copies),
                                              .scales = x_scales,
                                              .refused = run.refused(),
                                              .first_pixel = first * pixels},
                                             run.x_dtype, run.stream));
    } else if (!in_place) {
      ISOBIT_RETURN_IF_ERROR(copy_pixels({.x = x,
                                          .x_stride = run.x_stride,
                                          .pixels = count * pixels,
                                          .groups = narrow(shape.groups),
                                          .blocks = blocks,
                                          .block_elements = narrow(tile.block_bytes / x_bytes),
                                          .to = copies},
                                         run.stream));
    }
    conv.source.x = in_place ? x : copies;
    conv.source.m = count * outputs;
    std::byte* const y =
        run.y.data() + first * outputs * run.y_stride * static_cast<int64_t>(size_in_bytes(run.y_dtype));
    conv.result = result_of(y, run.y_dtype, run.y_stride, clamp);
    ISOBIT_RETURN_IF_ERROR(run_tile(conv, type, device.processors, run.stream));
  }
  return {};
}

Status DeviceConv::Data::run_products(const Run& run) const {
  std::byte* const rows = run.workspace + kDeviceAlignment;
  PixelRows from{.source = device_source(shape, run.call),
                 .blocks = product_blocks,
                 .first_channel = 0,
                 .is_linear = is_conv_linear(shape)};
  from.source.x = run.x.data();
  from.source.x_stride = run.x_stride;
  from.source.outside = run.refused();
  const auto y_bytes = static_cast<int64_t>(size_in_bytes(run.y_dtype));
  for (int64_t first = 0; first < run.call.outputs(); first += run.at.rows) {
    const int64_t m = std::min(run.at.rows, run.call.outputs() - first);
    from.source.first = first;
    from.source.m = m;
    for (int64_t g = 0; g < shape.groups; ++g) {
      const DeviceLinear& product = products[static_cast<size_t>(g)];
      const LinearPlan plan = LinearSteps::plan(product, run.x_dtype, m);
      from.first_channel = g * product_blocks.channels;
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
  ISOBIT_RETURN_IF_ERROR(check_linear_memory(x, y, workspace, images_text(images), at.total, device(), options.stream));
  const Data::Run run{call, x, x_dtype, x_rows.stride, y, y_dtype, y_rows.stride, workspace.data(), at, options.stream};
  if (data.sums) return data.run_sums(run);
  if (data.quantizes())
    ISOBIT_RETURN_IF_ERROR(
        cuda_status(cudaMemsetAsync(workspace.data(), 0xff, sizeof kNoneRefused, options.stream), "the check of x"));
  switch (data.kernel(x_dtype)) {
    case Kernel::kTile: return data.run_tiles(run);
    case Kernel::kProduct: return data.run_products(run);
    default: return data.run_outputs(run);
  }
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
