// SPDX-License-Identifier: Apache-2.0
// DeviceStaticConv: what is checked, and which kernels run.
#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conv/cuda/call.h"
#include "conv/cuda/choice.h"
#include "conv/cuda/kernels.h"
#include "conv/cuda/tile.h"
#include "core/cuda/arguments.h"
#include "core/cuda/upload.h"
#include "core/rescale.h"
#include "core/run_options.h"
#include "isobit/cuda/conv.h"
#include "linear/cuda/arguments.h"
#include "linear/cuda/plan.h"
#include "linear/cuda/static_product.h"
#include "linear/layer_parts.h"
#include "linear/static/parts.h"
#include "product/product.h"

namespace isobit::cuda {
namespace {

constexpr int64_t kRowStep = 1024;
constexpr int64_t kWordCodes = 4;       // of 8 bits
constexpr int64_t kMostGroups = 65535;  // of a grid of blocks of threads

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

}  // namespace

std::span<const DeviceLinearKernel> conv_kernels() {
  static constexpr std::string_view kTile =
      "grids of 8 bits of x: matrix instructions on rows that are copied from images, so many outputs by channels";
  static constexpr DeviceLinearKernel kKernels[] = {
      {"conv_static", kConvKernelNames[0], kTile},
      {"conv_static", kConvKernelNames[1], kTile},
      {"conv_static", kConvKernelNames[2], kTile},
      {"conv_static", kConvKernelNames[3], kTile},
      {"conv_static", kConvKernelNames[4], "grids of 8 bits of x: 3 x 3 and 5 x 5, a channel by itself"},
      {"conv_static", kConvKernelNames[5],
       "rows are gathered from images and multiplied by the kernels of linear layers"},
      {"conv_static", kConvKernelNames[6], "each output by itself: small groups, and whatever else no other runs"},
      {"conv_int8", "tile", "v of 8 bits, no offsets: pixels are quantised, then as tile of static codes"},
      {"conv_int8", "depthwise", "no offsets: 3 x 3 and 5 x 5, a channel by itself"},
      {"conv_int8", "product", "pixels are quantised as rows, which the kernels of linear layers multiply"},
      {"conv_int8", "direct", "each output by itself: groups of fewer than 16 channels"},
      {"conv_float", "tile", "float16 and bfloat16, no offsets: as tile of static codes, with v as floats"},
      {"conv_float", "depthwise", "3 x 3 and 5 x 5, a channel by itself"},
      {"conv_float", "product", "pixels are gathered as rows, which the kernels of linear layers multiply"},
      {"conv_float", "direct", "each output by itself: groups of fewer than 16 channels"},
      {"conv_int8_per_image", "sums", "a convolution of static codes, whose sums are scaled"}};
  return kKernels;
}

struct DeviceStaticConv::Data {
  explicit Data(StaticConvLayer host) : layer(std::move(host)) {}

  using Call = DeviceConvCall;
  /// The workspace, in bytes from its beginning: the code outside the grid, rows, sums.
  struct Places {
    ConvKernel kernel;
    int64_t rows;  // gathered together; 0: none
    int64_t sums, total;
  };

  StaticConvLayer layer;
  LinearDevice device;
  std::vector<StaticProduct> products;  // of groups of channels; none: only "direct" can run it
  const int8_t* weights = nullptr;      // [K, O]
  StaticEpilogue epilogue{};            // of all outputs; channels start from the bias
  const int8_t* tiles = nullptr;        // as ConvTile has them; null: only others can run it
  const StaticChannel* tile_channels = nullptr;
  std::shared_ptr<const std::byte> memory;

  [[nodiscard]] const StaticConvParameters& parameters() const { return layer.parameters(); }
  [[nodiscard]] const ConvShape& shape() const { return parameters().shape; }
  [[nodiscard]] int32_t code_bytes() const { return epilogue.planes; }
  [[nodiscard]] bool has_codes_outside() const { return parameters().linear.input.bits != 8 * code_bytes(); }
  [[nodiscard]] int64_t group_outputs() const { return shape().outputs / shape().groups; }

  /// C / groups of a piece are a multiple of it, so that rows need not be copied.
  [[nodiscard]] bool has_whole_pieces() const { return shape().group_channels() % kPieceCodes == 0; }
  [[nodiscard]] int64_t tile_depth() const {
    return (parameters().linear.columns + kPieceCodes - 1) / kPieceCodes * kPieceCodes;
  }
  [[nodiscard]] int64_t padded_depth() const { return (tile_depth() + kTileDepth - 1) / kTileDepth * kTileDepth; }
  [[nodiscard]] int64_t padded_outputs() const {
    return (group_outputs() + kTileOutputs - 1) / kTileOutputs * kTileOutputs;
  }

  Status pack();
  [[nodiscard]] ConvSource source_of(const Call& call) const;
  [[nodiscard]] bool can_run(ConvKernel kernel, const Call& call) const;
  [[nodiscard]] Result<Call> call_of(int64_t images, const ImageSize& image) const {
    return device_conv_call(shape(), images, image, layer.name());
  }
  [[nodiscard]] ConvKernel fastest(const Call& call) const;
  /// kernel: empty, the one that takes the least time.
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
  std::vector<int8_t> packed;
  std::vector<StaticChannel> plain_channels;
  if (p.input.bits == 8 && p.columns <= kMaxLinearK) {
    const bool tiled = (shape().groups == 1 || has_whole_pieces()) && shape().groups <= kMostGroups;
    if (tiled) packed.resize(static_cast<size_t>(shape().groups * padded_outputs() * padded_depth()));
    for (int64_t n = 0; n < p.rows; ++n) {
      plain_channels.push_back(static_channel(p, 0, n));
      if (!tiled) continue;
      const int64_t row = n / group_outputs() * padded_outputs() + n % group_outputs();
      std::copy_n(p.weights.data<int8_t>() + n * p.columns, p.columns,
                  packed.begin() + static_cast<std::ptrdiff_t>(row * padded_depth()));
    }
    if (tiled) upload.add(std::span<const int8_t>(packed), tiles);
    upload.add(std::span<const StaticChannel>(plain_channels), tile_channels);
  }
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

ConvSource DeviceStaticConv::Data::source_of(const Call& call) const {
  const StaticConvParameters& p = parameters();
  ConvSource source = device_source(p.shape, call);
  source.zero = static_cast<int32_t>(p.linear.input.zero_point);
  source.least = static_cast<int32_t>(p.linear.input.min());
  source.most = static_cast<int32_t>(p.linear.input.max());
  return source;
}

bool DeviceStaticConv::Data::can_run(ConvKernel kernel, const Call& call) const {
  if (is_tile(kernel)) return tiles != nullptr;
  if (kernel == ConvKernel::kProduct) return !products.empty();
  if (kernel == ConvKernel::kDirect) return true;
  return tile_channels != nullptr && shape().outputs == shape().channels && has_depthwise(source_of(call));
}

ConvKernel DeviceStaticConv::Data::fastest(const Call& call) const {
  const ConvWork work = ConvWork::of(shape(), call.outputs(), code_bytes(), device.processors);
  ConvKernel best = ConvKernel::kDirect;
  for (int i = 0; i < kConvKernels; ++i) {
    const auto kernel = static_cast<ConvKernel>(i);
    if (can_run(kernel, call) && estimated_microseconds(kernel, work) < estimated_microseconds(best, work))
      best = kernel;
  }
  return best;
}

Result<DeviceStaticConv::Data::Places> DeviceStaticConv::Data::places(const Call& call, std::string_view kernel) const {
  Places at{};
  at.kernel = fastest(call);
  if (!kernel.empty()) {
    const auto* const found = std::find(std::begin(kConvKernelNames), std::end(kConvKernelNames), kernel);
    if (found == std::end(kConvKernelNames)) {
      std::string names;
      for (const std::string_view name : kConvKernelNames) names += (names.empty() ? "" : ", ") + std::string(name);
      return refuse_argument(layer.name() + ": kernel is '" + std::string(kernel) + "', must be one of " + names);
    }
    at.kernel = static_cast<ConvKernel>(found - std::begin(kConvKernelNames));
    if (!can_run(at.kernel, call))
      return Status(StatusCode::kUnsupported, layer.name() + ": kernel is " + std::string(kernel) +
                                                  ", which does not run this layer; direct does");
  }
  at.sums = at.total = kDeviceAlignment;
  const bool copies = is_tile(at.kernel) && !has_whole_pieces();
  if (call.outputs() == 0 || (at.kernel != ConvKernel::kProduct && !copies)) return at;
  const int64_t row_bytes = copies ? tile_depth() : products[0].image.blocks * kBlockDepth * code_bytes();
  at.rows = std::min(conv_rows_together(row_bytes), call.outputs());
  if (copies) {
    at.sums += aligned_size(at.rows * row_bytes);
    at.total = at.sums;
    return at;
  }
  const StaticProduct& product = products[0];
  at.rows = std::min(at.rows, product.most_rows() / kRowStep * kRowStep);
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
  return to_string(data_->fastest(call));
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
  ISOBIT_RETURN_IF_ERROR(check_linear_memory(x, y, workspace, images_text(images), at.total, device(), options.stream));
  ISOBIT_RETURN_IF_ERROR(check_apart({{"residual", residual}, {"workspace", workspace}}));

  auto* const outside = reinterpret_cast<unsigned long long*>(workspace.data());
  if (data.has_codes_outside())
    ISOBIT_RETURN_IF_ERROR(
        cuda_status(cudaMemsetAsync(outside, 0xff, sizeof *outside, options.stream), "the check of x"));
  ConvSource source = data.source_of(call);
  source.x = x.data();
  source.x_stride = x_rows.stride;
  if (data.has_codes_outside()) source.outside = outside;
  std::byte* const rows = workspace.data() + kDeviceAlignment;
  ConvTile tile{.source = source,
                .weights = data.tiles,
                .groups = static_cast<int32_t>(p.shape.groups),
                .outputs = static_cast<int32_t>(data.group_outputs()),
                .depth = static_cast<int32_t>(data.tile_depth()),
                .padded_outputs = static_cast<int32_t>(data.padded_outputs()),
                .padded_depth = static_cast<int32_t>(data.padded_depth()),
                .epilogue = data.epilogue,
                .residual = added,
                .y = y.data(),
                .y_stride = y_rows.stride,
                .float_channels = nullptr,
                .result = {},
                .scales = {}};
  tile.epilogue.channels = data.tile_channels;
  /// `part` writes from output `first` on, and adds the residual from there on.
  const auto begin_at = [&](ConvTile& part, int64_t first) {
    const auto moved = [&](auto* from, Dtype dtype) {
      return from + first * y_rows.stride * static_cast<int64_t>(size_in_bytes(dtype));
    };
    part.y = moved(y.data(), y_dtype);
    if (p.residual) part.residual.codes = moved(residual.data(), p.residual->grid.dtype());
  };
  const TileType tile_type = x_dtype == Dtype::kU8 ? TileType::kU8 : TileType::kS8;
  const bool pieces = is_tile(at.kernel) && at.rows == 0;
  const int64_t codes = at.kernel == ConvKernel::kDepthwise ? kWordCodes : pieces ? kPieceCodes : 1;
  const int64_t image_codes = image.rows * image.columns * x_rows.stride;
  const bool fits = reinterpret_cast<uintptr_t>(x.data()) % static_cast<uintptr_t>(codes) == 0 &&
                    x_rows.stride % codes == 0 && (!pieces || image_codes <= kMostImageSize);
  if (!options.kernel.empty() && !fits)
    return {StatusCode::kUnsupported, name + ": kernel is " + std::string(options.kernel) +
                                          ", which needs x and x_stride to be multiples of " + std::to_string(codes) +
                                          (pieces ? ", and images of less than 2^31 codes" : "") +
                                          "; leave the kernel to the layer"};
  if (at.kernel == ConvKernel::kDepthwise && fits) {
    tile.weights = data.weights;
    tile.padded_outputs = static_cast<int32_t>(p.shape.outputs);
    return run_depthwise(tile, x_dtype, options.stream);
  }
  if (pieces && fits) {  // so many images that offsets have 32 bits
    const int64_t together = kMostImageSize / image_codes, outputs = call.size.rows * call.size.columns;
    for (int64_t b = 0; b < images; b += together) {
      ConvTile part = tile;
      part.source.x = x.data() + b * image_codes;
      part.source.m = std::min(together, images - b) * outputs;
      begin_at(part, b * outputs);
      ISOBIT_RETURN_IF_ERROR(run_tile(part, tile_type, data.device.processors, options.stream, at.kernel));
    }
    return {};
  }
  if (is_tile(at.kernel) && at.rows > 0) {
    for (int64_t first = 0; first < call.outputs(); first += at.rows) {
      source.first = first;
      source.m = std::min(at.rows, call.outputs() - first);
      auto* const copied = reinterpret_cast<uint8_t*>(rows);
      ISOBIT_RETURN_IF_ERROR(copy_rows({.source = source, .depth = tile.depth, .rows = copied}, options.stream));
      // Rows are the pixels of one image, from y's `first` on.
      ConvTile part = tile;
      part.source = {.x = copied,
                     .x_stride = tile.depth,
                     .first = 0,
                     .m = source.m,
                     .rows = {1, 1, 1, 1, 1, 0},
                     .columns = {static_cast<int32_t>(source.m), static_cast<int32_t>(source.m), 1, 1, 1, 0},
                     .transposed = 0,
                     .channels = tile.depth,
                     .group_channels = tile.depth,
                     .zero = source.zero,
                     .least = source.least,
                     .most = source.most,
                     .outside = nullptr};
      begin_at(part, first);
      ISOBIT_RETURN_IF_ERROR(run_tile(part, tile_type, data.device.processors, options.stream, at.kernel));
    }
    return {};
  }
  if (at.kernel != ConvKernel::kProduct)
    return run_direct({.source = source,
                       .weights = data.weights,
                       .outputs = static_cast<int32_t>(p.shape.outputs),
                       .group_outputs = static_cast<int32_t>(data.group_outputs()),
                       .epilogue = data.epilogue,
                       .residual = added,
                       .y = y.data(),
                       .y_stride = y_rows.stride},
                      x_dtype, options.stream);
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
