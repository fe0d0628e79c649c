// SPDX-License-Identifier: Apache-2.0
// Convolutions of static codes: numerics.md, section 12.
#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "conv/depthwise_weights.h"
#include "conv/layout.h"
#include "conv/reference.h"
#include "core/codes.h"
#include "core/float_mode.h"
#include "core/rescale.h"
#include "core/run_options.h"
#include "isobit/conv.h"
#include "linear/layer_parts.h"
#include "linear/static/parts.h"
#include "linear/static/static.h"
#include "product/product.h"

namespace isobit {
namespace {

/// Outputs that are computed one after the other: of several images where these have fewer, of some rows of one where
/// it has more, so that what is read again stays in the cache.
constexpr int64_t kOutputsTogether = 2 * kStaticRows;
/// Of a block: bytes of so many are a line, where there are many rows.
constexpr int32_t kBlockTiles = 4;
constexpr int64_t kScratchElements = kStaticRows * kBlockTiles * kTileRows;
constexpr int64_t kDepthwiseSums = 16384;           // at once, or an output's
constexpr int64_t kTiledOutputs = 256;              // gathering a row takes as long for fewer, and saves less
constexpr Int128 kMostElements = int64_t{1} << 58;  // bytes and strides of them fit int64

constexpr LinearLayerKernel kKernels[] = {
    {"conv_static_reference", "conv_static", CpuPath::kReference, "normative; R * S * C / groups above 65793"},
    {"conv_static_scalar", "conv_static", CpuPath::kScalar, "for processors without vector kernels"},
#if defined(__x86_64__) && !defined(ISOBIT_NO_X86_KERNELS)
    {"conv_static_avx2", "conv_static", CpuPath::kAvx2, "products in 16 bits"},
    {"conv_static_avxvnni", "conv_static", CpuPath::kAvxVnni, "four products in one instruction, 8 lanes"},
    {"conv_static_avx512vnni", "conv_static", CpuPath::kAvx512Vnni, "16 lanes; rescales in float lanes"},
    {"conv_static_amx", "conv_static", CpuPath::kAmx,
     "tiles of rows that are gathered before: 256 outputs and more, 8-bit codes; else the kernel before"},
#endif
};

Status check_elements(const std::string& name, const char* what, std::initializer_list<int64_t> sizes) {
  Int128 elements = 1;
  for (const int64_t size : sizes) elements = bound_multiply(elements, size);
  if (elements <= kMostElements) return {};
  return refuse_linear(name + ": " + what + " has " + to_decimal(elements) + " elements, must have at most " +
                       to_decimal(kMostElements));
}

Status check_fit(const StaticConvParameters& p, const std::string& name) {
  ISOBIT_RETURN_IF_ERROR(check_conv_shape(p.shape, name));
  const std::pair<const char*, std::pair<int64_t, int64_t>> sizes[] = {
      {"linear.rows", {p.linear.rows, p.shape.outputs}}, {"linear.columns", {p.linear.columns, p.shape.depth()}}};
  for (const auto& [field, value] : sizes)
    if (value.first != value.second)
      return refuse_linear(name + ": " + field + " is " + std::to_string(value.first) + ", must be " +
                           std::to_string(value.second) + ", as the shape says");
  return {};
}

/// The layer itself is proved.
Status check_residual(const StaticConvParameters& p, const std::string& name) {
  if (!p.residual) return {};
  if (!p.linear.output) return refuse_linear(name + ": there is a residual, must be none without an output grid");
  ISOBIT_RETURN_IF_ERROR(check_code_grid(p.residual->grid, name + ": residual.grid"));
  const RescaleParameters& r = p.residual->rescale;
  if (r.multiplier < 1 || r.shift < kMinShift || r.shift > kMaxShift)
    return refuse_linear(name + ": residual.rescale is " + std::to_string(r.multiplier) + " * 2^-" +
                         std::to_string(r.shift) + ", must have a multiplier of at least 1 and a shift of " +
                         std::to_string(kMinShift) + ".." + std::to_string(kMaxShift));
  const Int128 reach = largest_difference(p.residual->grid);
  const Int128 added = bound_add(bound_rescale(reach, r), std::abs(p.linear.output->zero_point));
  for (int64_t o = 0; o < p.linear.rows; ++o) {
    const Int128 acc = largest_accumulator(p.linear.weights.data<int8_t>() + o * p.linear.columns, p.linear.columns,
                                           p.linear.bias.data<int32_t>()[o], p.linear.input);
    const Int128 sum = bound_add(bound_rescale(acc, p.linear.rescales[static_cast<size_t>(o)]), added);
    if (sum > INT64_MAX || bound_multiply(reach, r.multiplier) > INT64_MAX)
      return {StatusCode::kOverflow, name + ": output " + std::to_string(o) + " with its residual can reach " +
                                         to_decimal(sum) + ", must stay within " + std::to_string(INT64_MAX)};
  }
  return {};
}

constexpr int64_t round_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

std::span<const LinearLayerKernel> static_conv_kernels() { return kKernels; }

Result<StaticResidual> derive_static_residual(const Grid& grid, const Grid& output, std::string_view name) {
  const DefaultFloatMode mode;
  const std::string text(name);
  ISOBIT_RETURN_IF_ERROR(check_code_grid(grid, text + ": residual"));
  ISOBIT_RETURN_IF_ERROR(check_code_grid(output, text + ": output"));
  ISOBIT_ASSIGN_OR_RETURN(
      const RescaleParameters rescale,
      encode_ratio(static_cast<double>(grid.scale()) / static_cast<double>(output.scale()), largest_difference(grid)));
  return StaticResidual{grid, rescale};
}

struct StaticConvLayer::Impl {
  /// Outputs of the same channels.
  struct Group {
    PackedWeights weights;
    std::optional<StaticOutput> output;        // none: y is acc
    std::optional<StaticOutput> before_added;  // of added_bytes: in 16 bits, which saturate
    std::vector<int32_t> start;
    std::vector<int64_t> wide_start;
  };
  /// One call, whose sizes are checked.
  struct Call {
    const std::byte* x;
    int64_t x_stride;
    std::byte* y;
    int64_t y_stride;
    const std::byte* residual;  // null: none
    ImageSize image, size;
    ConvLayoutAxis rows, columns;
    int64_t output_rows, padded_rows;  // of an image at a time, and what they read
    bool in_place;                     // they read x itself
    ThreadPool* pool;

    [[nodiscard]] int64_t pixels() const { return image.rows * image.columns; }
    [[nodiscard]] int64_t outputs() const { return size.rows * size.columns; }
    [[nodiscard]] int64_t together(int64_t images) const {
      return std::clamp<int64_t>(kOutputsTogether / outputs(), 1, std::max<int64_t>(images, 1));
    }
    /// Outputs in place_rows.
    [[nodiscard]] int64_t outputs_together(int64_t images) const {
      return together(images) * output_rows * size.columns;
    }
    /// Of what is read: rows of an image, pixels of a row.
    [[nodiscard]] ImageSize read() const { return in_place ? image : ImageSize{padded_rows, columns.length}; }
  };
  /// The workspace of a call, in bytes from its beginning.
  struct Places {
    int64_t row_at, piece_at, zeros, images, plane, scratch, scratch_stride, total;
  };

  StaticConvParameters parameters;
  std::string name;
  CpuPath path = CpuPath::kReference;
  ConvPieces pieces{};
  LinearKernel product = nullptr;  // null: the reference
  LinearKernel tiles = nullptr;    // for gathered rows; null: there is none
  DepthwiseWeights depthwise;      // in place of all groups' weights; no kernel: C / groups is not 1
  /// The same for `count` outputs side by side as one of `count` times the channels, whose codes are made in registers.
  struct Joined {
    int64_t count;
    StaticOutput output;
    DepthwiseWeights weights;
  };
  std::optional<Joined> joined;
  StaticRescale rescale = nullptr;
  std::vector<int32_t> added_bytes;  // what each byte of the residual adds to y of one byte; empty: see pack_added
  int64_t bound = 0;                 // of acc
  std::vector<Group> groups;

  [[nodiscard]] bool wide() const { return bound > INT32_MAX; }
  [[nodiscard]] const StaticLinearParameters& linear_layer() const { return parameters.linear; }
  [[nodiscard]] bool is_depthwise() const {
    return parameters.shape.group_channels() == 1 && parameters.shape.groups > 1;
  }
  /// Of padded images. A depthwise kernel takes each channel once for each of its outputs.
  [[nodiscard]] int64_t channels() const {
    return is_depthwise() ? parameters.shape.outputs : parameters.shape.channels;
  }
  /// Whether kernels may read x itself: unsigned bytes, no pixel outside, and whole quads.
  [[nodiscard]] bool reads_in_place(const Call& call) const {
    const bool inside = call.rows.first == 0 && call.rows.step == 1 && call.rows.length <= call.image.rows &&
                        call.columns.first == 0 && call.columns.step == 1 && call.columns.length <= call.image.columns;
    const bool one_stride = call.x_stride == parameters.shape.channels || pieces.codes <= parameters.shape.channels;
    return linear_layer().x_dtype() == Dtype::kU8 && !is_depthwise() && inside && pieces.codes % 4 == 0 && one_stride;
  }
  /// Whether so many outputs are gathered into tiles.
  [[nodiscard]] bool takes_tiles_of(const Group& group, int64_t m) const {
    return tiles != nullptr && group.weights.n() >= kTiledOutputs && takes_tiles(tiles, group.weights, m);
  }
  [[nodiscard]] int64_t group_count() const { return is_depthwise() ? 1 : parameters.shape.groups; }
  /// Of pack_depthwise.
  [[nodiscard]] int64_t depthwise_dilation() const {
    return parameters.shape.transposed ? 0 : parameters.shape.columns.dilation;
  }
  [[nodiscard]] int64_t depthwise_rows() const { return std::max<int64_t>(1, kDepthwiseSums / depthwise_stride()); }
  [[nodiscard]] int64_t depthwise_stride() const {
    return (parameters.shape.outputs + kDepthwiseChannels - 1) / kDepthwiseChannels * kDepthwiseChannels;
  }
  /// Of the rows that are gathered together.
  [[nodiscard]] int64_t tile_bytes() const {
    return takes_tiles_of(groups[0], kStaticRows) ? kStaticRows * packed_plane_bytes(groups[0].weights.k()) : 0;
  }
  Status pack();
  void pack_added();
  void pack_joined();
  Result<Call> call_of(const ImageSize& image, int64_t images) const;
  [[nodiscard]] Places places(const Call& call, int64_t images, int threads) const;
  void place_rows(const Call& call, const Places& at, int64_t images, std::byte* workspace) const;
  void copy_row(const Call& call, const Places& at, std::byte* workspace, int64_t first_image, int64_t first_row,
                int64_t row) const;
  void run(const Call& call, const Places& at, std::byte* workspace, int64_t first_image, int64_t count,
           int64_t first_row, int64_t rows) const;
  void run_group(const Call& call, const Places& at, const std::byte* workspace, int64_t first_output, int64_t group,
                 const LinearRectangle& part, std::byte* scratch) const;
  template <typename T>
  void run_group(const Call& call, const ActivationRows& rows, BlockRange blocks, const T* start, int64_t first_output,
                 int64_t first_channel, const Group& group, T* scratch) const;
  void gather_tiles(const ActivationRows& rows, int64_t depth, uint8_t* to) const;
  void run_depthwise(const Call& call, const Places& at, std::byte* workspace, int64_t first_output,
                     const LinearRectangle& part, std::byte* scratch) const;
  void run_joined(const DepthwiseArgs& outputs, std::byte* y) const;
  /// y of sums, of which channel 0 is channel n of the group and `channel` of all.
  template <typename T>
  void store(const Call& call, const Group& group, const LinearSums& sums, int64_t first_output, int64_t n,
             int64_t channel, int64_t channels) const;
  template <typename T>
  void add_residual(const Call& call, const LinearSums& sums, int64_t first_output, int64_t channel,
                    int64_t channels) const;
  template <typename T>
  void add_bytes(const Call& call, const StaticOutput& before, const LinearSums& sums, int64_t first_output, int64_t n,
                 int64_t channel, int64_t channels) const;
  void run_reference(const Call& call, std::byte* workspace, int64_t image) const;
};

Status StaticConvLayer::Impl::pack() {
  const StaticLinearParameters& p = linear_layer();
  const ConvShape& shape = parameters.shape;
  pieces = ConvPieces::of(shape);
  const int64_t depth = pieces.count * (is_depthwise() ? 1 : pieces.padded_codes());
  if (depth > kMaxLinearK)
    return {StatusCode::kUnsupported, name + ": R * S * C / groups is " + std::to_string(depth) +
                                          ", with pieces filled up to 4, must be at most " +
                                          std::to_string(kMaxLinearK) + " on the path " + std::string(to_string(path))};
  pack_added();
  const int64_t outputs = shape.outputs / group_count();
  const int64_t zero = p.input.zero_point + storage_offset(p.x_dtype());
  const auto* v = p.weights.data<int8_t>();
  for (int64_t g = 0; g < group_count(); ++g) {
    Group group;
    std::vector<int32_t> codes(is_depthwise() ? 0 : static_cast<size_t>(outputs * depth));
    std::vector<int64_t> bounds;
    std::vector<RescaleParameters> rescales;
    for (int64_t i = 0; i < outputs; ++i) {
      const int64_t o = g * outputs + i;
      const auto* row = v + o * p.columns;
      const int32_t bias = p.bias.data<int32_t>()[o];
      int64_t sum = 0;
      for (int64_t k = 0; k < p.columns; ++k) {
        sum += row[k];
        if (!is_depthwise())
          codes[static_cast<size_t>(i * depth + k / pieces.codes * pieces.padded_codes() + k % pieces.codes)] = row[k];
      }
      group.wide_start.push_back(bias - zero * sum);
      bounds.push_back(static_cast<int64_t>(largest_accumulator(row, p.columns, bias, p.input)));
      if (p.output) rescales.push_back(p.rescales[static_cast<size_t>(o)]);
    }
    if (!is_depthwise()) {
      ISOBIT_ASSIGN_OR_RETURN(group.weights, pack_weights(codes.data(), outputs, depth, 1, kBlockTiles));
    }
    group.wide_start.resize(static_cast<size_t>(is_depthwise() ? depthwise_stride() : group.weights.padded_n()));
    if (!wide()) group.start.assign(group.wide_start.begin(), group.wide_start.end());
    if (p.output)
      group.output.emplace(rescales, bounds, p.rounding, static_cast<int32_t>(p.output->zero_point), p.lo, p.hi,
                           static_cast<int32_t>(size_in_bytes(p.y_dtype())));
    if (!added_bytes.empty())
      group.before_added.emplace(rescales, bounds, p.rounding, static_cast<int32_t>(p.output->zero_point), INT16_MIN,
                                 INT16_MAX, 2);
    groups.push_back(std::move(group));
  }
  if (is_depthwise()) {
    const bool has_codes = groups[0].output && !parameters.residual && !wide() && activation_planes(p.x_dtype()) == 1;
    depthwise = pack_depthwise(v, shape.outputs, shape.rows.kernel, shape.columns.kernel, shape.columns.stride,
                               depthwise_dilation(), path, groups[0].start,
                               has_codes ? groups[0].output->float_ratios() : std::vector<float>());
    if (!depthwise.ratio.empty()) pack_joined();
  }
  product = linear_kernel(std::min(path, CpuPath::kAvx512Vnni));  // that of AMX does not take rows in pieces
  if (path > CpuPath::kAvx512Vnni && activation_planes(p.x_dtype()) == 1 && !is_depthwise())
    tiles = linear_kernel(path);
  rescale = static_rescale(path);
  return {};
}

/// A sum that saturates 16 bits is lo or hi with what a residual of bytes adds, unless that is as large.
void StaticConvLayer::Impl::pack_added() {
  constexpr int64_t kMostAdded = INT16_MAX - UINT8_MAX;
  const StaticLinearParameters& p = linear_layer();
  if (!parameters.residual || size_in_bytes(p.y_dtype()) > 1) return;
  const auto& [grid, r] = *parameters.residual;
  if (size_in_bytes(grid.dtype()) > 1) return;
  std::vector<int32_t> each(UINT8_MAX + 1);
  for (int64_t code = grid.min(); code <= grid.max(); ++code) {
    const int64_t value = Rescale{r.multiplier, r.shift}.apply(code - grid.zero_point, p.rounding);
    if (value < -kMostAdded || value > kMostAdded) return;
    each[static_cast<uint8_t>(code)] = static_cast<int32_t>(value);
  }
  added_bytes = std::move(each);
}

void StaticConvLayer::Impl::pack_joined() {
  const StaticLinearParameters& p = linear_layer();
  const ConvShape& shape = parameters.shape;
  const int64_t count = depthwise_outputs_together(shape.outputs, path);
  if (count < 2 || (!shape.transposed && shape.columns.stride > 1)) return;
  const auto repeat = [&](const auto* values, int64_t size) {
    std::vector<std::remove_cvref_t<decltype(*values)>> repeated;
    for (int64_t i = 0; i < count; ++i) repeated.insert(repeated.end(), values, values + size);
    return repeated;
  };
  StaticOutput output(repeat(p.rescales.data(), shape.outputs),
                      std::vector<int64_t>(static_cast<size_t>(count * shape.outputs), bound), p.rounding,
                      static_cast<int32_t>(p.output->zero_point), p.lo, p.hi);
  if (!output.has_codes()) return;
  DepthwiseWeights weights =
      pack_depthwise(repeat(p.weights.data<int8_t>(), shape.outputs * p.columns).data(), count * shape.outputs,
                     shape.rows.kernel, shape.columns.kernel, count, depthwise_dilation(), path,
                     repeat(groups[0].start.data(), shape.outputs), output.float_ratios());
  joined = Joined{count, std::move(output), std::move(weights)};
}

Result<StaticConvLayer> StaticConvLayer::create(StaticConvParameters parameters, std::string_view name,
                                                std::optional<CpuPath> path) {
  const DefaultFloatMode mode;
  const std::string text(name);
  ISOBIT_RETURN_IF_ERROR(check_fit(parameters, text));
  auto impl = std::make_shared<Impl>();
  ISOBIT_ASSIGN_OR_RETURN(impl->path, linear_path(path, text));
  // It checks and proves all but the shape.
  ISOBIT_ASSIGN_OR_RETURN(const StaticLinearLayer layer,
                          StaticLinearLayer::create(parameters.linear, name, CpuPath::kReference));
  ISOBIT_RETURN_IF_ERROR(check_residual(parameters, text));
  impl->parameters = std::move(parameters);
  impl->name = text;
  impl->bound = layer.accumulator_bound();
  if (impl->path != CpuPath::kReference) {
    const Status packed = impl->pack();
    if (!packed.ok() && (path || packed.code() != StatusCode::kUnsupported)) return packed;
    if (!packed.ok()) impl->path = CpuPath::kReference;
  }
  StaticConvLayer result;
  result.impl_ = std::move(impl);
  return result;
}

const StaticConvParameters& StaticConvLayer::parameters() const { return impl_->parameters; }
const std::string& StaticConvLayer::name() const { return impl_->name; }
CpuPath StaticConvLayer::path() const { return impl_->path; }
std::string_view StaticConvLayer::kernel_name() const {
  const auto after = std::find_if(std::begin(kKernels), std::end(kKernels),
                                  [&](const LinearLayerKernel& kernel) { return kernel.path > impl_->path; });
  return std::prev(after)->name;
}
int64_t StaticConvLayer::accumulator_bound() const { return impl_->bound; }

Result<StaticConvLayer::Impl::Call> StaticConvLayer::Impl::call_of(const ImageSize& image, int64_t images) const {
  const ConvShape& shape = parameters.shape;
  if (images < 0) return refuse_linear(name + ": images is " + std::to_string(images) + ", must be at least 0");
  Call call{};
  call.image = image;
  ISOBIT_ASSIGN_OR_RETURN(call.size, conv_output_size(shape, image, name));
  call.rows = ConvLayoutAxis::of(shape.rows, shape.transposed, call.size.rows);
  call.columns = ConvLayoutAxis::of(shape.columns, shape.transposed, call.size.columns);
  call.output_rows = std::clamp<int64_t>(kOutputsTogether / call.size.columns, 1, call.size.rows);
  call.padded_rows = call.rows.length - (call.size.rows - call.output_rows) * call.rows.output_stride;
  ISOBIT_RETURN_IF_ERROR(check_elements(name, "x", {images, image.rows, image.columns, shape.channels}));
  ISOBIT_RETURN_IF_ERROR(check_elements(name, "y", {images, call.size.rows, call.size.columns, shape.outputs}));
  ISOBIT_RETURN_IF_ERROR(check_elements(name, "x with its pads",
                                        {call.padded_rows, call.columns.length, channels(), call.together(images)}));
  return call;
}

StaticConvLayer::Impl::Places StaticConvLayer::Impl::places(const Call& call, int64_t images, int threads) const {
  Places at{};
  if (product == nullptr) {
    at.total = round_up(call.pixels() * parameters.shape.channels * static_cast<int64_t>(sizeof(int32_t)));
    return at;
  }
  constexpr auto kPlace = static_cast<int64_t>(sizeof(int64_t));
  constexpr auto kSum = static_cast<int64_t>(sizeof(int32_t));
  const int64_t together = call.together(images);
  const int64_t planes = activation_planes(linear_layer().x_dtype());
  const int64_t taps = (pieces.count + kDepthwiseTaps - 1) / kDepthwiseTaps * kDepthwiseTaps;
  at.row_at = 0;
  at.piece_at = at.row_at + round_up(call.outputs_together(images) * kPlace);
  at.zeros = at.piece_at + round_up(taps * kPlace);
  at.images = at.zeros + (is_depthwise() ? depthwise_stride() * kSum : 0);
  // Kernels read on behind the last code.
  at.plane = round_up(together * call.padded_rows * call.columns.length * channels() + kDepthwiseChannels);
  at.scratch = at.images + at.plane * planes;
  const auto sum_bytes = static_cast<int64_t>(wide() ? sizeof(int64_t) : sizeof(int32_t));
  at.scratch_stride = is_depthwise() ? depthwise_rows() * depthwise_stride() * (planes * kSum + sum_bytes)
                                     : kScratchElements * sum_bytes + tile_bytes();
  at.total = at.scratch + at.scratch_stride * threads;
  return at;
}

Result<int64_t> StaticConvLayer::workspace_bytes(int64_t images, const ImageSize& image, int32_t threads) const {
  ISOBIT_ASSIGN_OR_RETURN(const Impl::Call call, impl_->call_of(image, images));
  return impl_->places(call, images, std::max(threads, 1)).total;
}

Result<Workspace> StaticConvLayer::workspace(int64_t images, const ImageSize& image, int32_t threads) const {
  ISOBIT_ASSIGN_OR_RETURN(const int64_t bytes, workspace_bytes(images, image, threads));
  return Workspace(bytes);
}

Result<Workspace> StaticConvLayer::chunk_workspace(int64_t images, int64_t seen, int64_t outputs,
                                                   int32_t threads) const {
  const int64_t stride = impl_->parameters.shape.columns.stride;
  int64_t bytes = 0;
  // Of shorter chunks more images are computed together.
  for (int64_t together = 1; together <= std::clamp<int64_t>(images, 1, kOutputsTogether); ++together) {
    const int64_t some = together == 1 ? outputs : std::min(outputs, kOutputsTogether / together);
    ISOBIT_ASSIGN_OR_RETURN(const Impl::Call call, impl_->call_of({1, seen + some * stride}, images));
    bytes = std::max(bytes, impl_->places(call, images, std::max(threads, 1)).total);
  }
  return Workspace(bytes);
}

namespace {

/// Codes made unsigned, low bytes first, each `times` times; high: null for codes of one byte.
void copy_codes(const std::byte* codes, Dtype dtype, int64_t count, int64_t times, uint8_t* low, uint8_t* high) {
  if (times > 1) {
    for (int64_t i = 0; i < count * times; ++i) {
      const int64_t u = load_code(codes, dtype, i / times) + storage_offset(dtype);
      low[i] = static_cast<uint8_t>(u & 255);
      if (high != nullptr) high[i] = static_cast<uint8_t>(u >> 8);
    }
    return;
  }
  if (high == nullptr) {
    const auto* in = reinterpret_cast<const uint8_t*>(codes);
    const auto flip = static_cast<uint8_t>(storage_offset(dtype));
    if (flip == 0) {
      std::memcpy(low, in, static_cast<size_t>(count));
      return;
    }
    for (int64_t i = 0; i < count; ++i) low[i] = in[i] ^ flip;
    return;
  }
  const auto* in = reinterpret_cast<const uint16_t*>(codes);
  const auto flip = static_cast<uint16_t>(storage_offset(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const auto u = static_cast<unsigned>(in[i] ^ flip);
    low[i] = static_cast<uint8_t>(u & 255);
    high[i] = static_cast<uint8_t>(u >> 8);
  }
}

}  // namespace

/// Row `row` of those that are read together: padded_rows of each image from first_image on, from first_row on.
void StaticConvLayer::Impl::copy_row(const Call& call, const Places& at, std::byte* workspace, int64_t first_image,
                                     int64_t first_row, int64_t row) const {
  const StaticLinearParameters& p = linear_layer();
  const int64_t times = channels() / parameters.shape.channels, width = call.columns.length * channels();
  auto* const low = reinterpret_cast<uint8_t*>(workspace + at.images) + row * width;
  uint8_t* const high = activation_planes(p.x_dtype()) == 2 ? low + at.plane : nullptr;
  const int64_t zero = p.input.zero_point + storage_offset(p.x_dtype());
  const auto fill = [&](int64_t begin, int64_t end) {
    std::memset(low + begin, static_cast<int>(zero & 255), static_cast<size_t>(end - begin));
    if (high != nullptr) std::memset(high + begin, static_cast<int>(zero >> 8), static_cast<size_t>(end - begin));
  };
  const int64_t image = first_image + row / call.padded_rows;
  const int64_t from_first = first_row + row % call.padded_rows - call.rows.first;
  const int64_t i = from_first / call.rows.step;
  if (from_first < 0 || from_first % call.rows.step != 0 || i >= call.image.rows) return fill(0, width);
  const auto code_bytes = static_cast<int64_t>(size_in_bytes(p.x_dtype()));
  const std::byte* const x = call.x + (image * call.pixels() + i * call.image.columns) * call.x_stride * code_bytes;
  const auto copy = [&](int64_t j, int64_t count, int64_t to) {
    copy_codes(x + j * call.x_stride * code_bytes, p.x_dtype(), count, times, low + to,
               high == nullptr ? nullptr : high + to);
  };
  const int64_t begin = std::max<int64_t>(0, -call.columns.first);
  const int64_t end = std::min(call.image.columns, call.columns.length - call.columns.first);
  if (begin < end && call.columns.step == 1 && call.x_stride == parameters.shape.channels) {  // codes in one piece
    const int64_t to = (call.columns.first + begin) * channels();
    fill(0, to);
    copy(begin, (end - begin) * parameters.shape.channels, to);
    return fill((call.columns.first + end) * channels(), width);
  }
  fill(0, width);
  for (int64_t j = 0; j < call.image.columns; ++j)
    if (const int64_t place = call.columns.place(j); place >= 0) copy(j, parameters.shape.channels, place * channels());
}

/// y of sums and residual, both rescaled, before the one clamp.
template <typename T>
void StaticConvLayer::Impl::add_residual(const Call& call, const LinearSums& sums, int64_t first_output,
                                         int64_t channel, int64_t channels) const {
  const StaticLinearParameters& p = linear_layer();
  const StaticResidual& added = *parameters.residual;
  const Rescale of_added{added.rescale.multiplier, added.rescale.shift};
  const auto code_bytes = static_cast<int64_t>(size_in_bytes(p.y_dtype()));
  for (int64_t m = 0; m < sums.rows; ++m) {
    const int64_t at = (first_output + sums.m + m) * call.y_stride + channel;
    for (int64_t i = 0; i < channels; ++i) {
      const RescaleParameters& r = p.rescales[static_cast<size_t>(channel + i)];
      const int64_t code = load_code(call.residual, added.grid.dtype(), at + i) - added.grid.zero_point;
      const int64_t sum =
          Rescale{r.multiplier, r.shift}.apply(static_cast<const T*>(sums.acc)[m * sums.stride + i], p.rounding) +
          of_added.apply(code, p.rounding);
      store_code(call.y + (at + i) * code_bytes, p.y_dtype(), 0, clamp_s64(sum + p.output->zero_point, p.lo, p.hi));
    }
  }
}

/// The same of bytes: some sums at a time are rescaled to 16 bits.
template <typename T>
void StaticConvLayer::Impl::add_bytes(const Call& call, const StaticOutput& before, const LinearSums& sums,
                                      int64_t first_output, int64_t n, int64_t channel, int64_t channels) const {
  constexpr int64_t kRows = 16, kColumns = 64;
  const StaticLinearParameters& p = linear_layer();
  const auto* const residual = reinterpret_cast<const uint8_t*>(call.residual);
  auto* const y = reinterpret_cast<uint8_t*>(call.y);
  const int32_t* const added = added_bytes.data();
  const int32_t lo = p.lo, hi = p.hi;
  int16_t rescaled[kRows * kColumns];
  for (int64_t m = 0; m < sums.rows; m += kRows)
    for (int64_t i = 0; i < channels; i += kColumns) {
      const int64_t rows = std::min(kRows, sums.rows - m), columns = std::min(kColumns, channels - i);
      before.rescale(rescale, n + i, columns, rows, static_cast<const T*>(sums.acc) + m * sums.stride + i, sums.stride,
                     rescaled, kColumns);
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t at = (first_output + sums.m + m + row) * call.y_stride + channel + i;
        for (int64_t j = 0; j < columns; ++j)
          y[at + j] =
              static_cast<uint8_t>(std::min(std::max(rescaled[row * kColumns + j] + added[residual[at + j]], lo), hi));
      }
    }
}

template <typename T>
void StaticConvLayer::Impl::store(const Call& call, const Group& group, const LinearSums& sums, int64_t first_output,
                                  int64_t n, int64_t channel, int64_t channels) const {
  if (group.before_added) return add_bytes<T>(call, *group.before_added, sums, first_output, n, channel, channels);
  if (parameters.residual) return add_residual<T>(call, sums, first_output, channel, channels);
  const auto code_bytes = static_cast<int64_t>(size_in_bytes(linear_layer().y_dtype()));
  std::byte* const y = call.y + ((first_output + sums.m) * call.y_stride + channel) * code_bytes;
  if (group.output)
    return group.output->rescale(rescale, n, channels, sums.rows, static_cast<const T*>(sums.acc), sums.stride, y,
                                 call.y_stride);
  for (int64_t m = 0; m < sums.rows; ++m)
    for (int64_t i = 0; i < channels; ++i)
      reinterpret_cast<int32_t*>(y)[m * call.y_stride + i] =
          static_cast<int32_t>(static_cast<const T*>(sums.acc)[m * sums.stride + i]);
}

/// Rows of pieces as tiles.
void StaticConvLayer::Impl::gather_tiles(const ActivationRows& rows, int64_t depth, uint8_t* to) const {
  const int64_t row_bytes = packed_plane_bytes(depth), codes = depth / rows.pieces;
  for (int64_t m = 0; m < rows.m; ++m) {
    uint8_t* const tile = to + tiled_row_at(m, row_bytes);
    for (int64_t i = 0, k = 0; i < rows.pieces; ++i) {
      const uint8_t* from = rows.data + rows.row_at[m] + rows.piece_at[i];
      for (int64_t left = codes; left > 0;) {
        const int64_t count = std::min(left, kTileColumns - k % kTileColumns);
        std::memcpy(tile + k / kTileColumns * kTileBytes + k % kTileColumns, from, static_cast<size_t>(count));
        from += count;
        k += count;
        left -= count;
      }
    }
  }
}

template <typename T>
void StaticConvLayer::Impl::run_group(const Call& call, const ActivationRows& rows, BlockRange blocks, const T* start,
                                      int64_t first_output, int64_t first_channel, const Group& group,
                                      T* scratch) const {
  const int64_t first = group.weights.first_row(blocks.begin);
  if (!rows.tiled && takes_tiles_of(group, rows.m)) {
    auto* const tile = reinterpret_cast<uint8_t*>(scratch + kScratchElements);
    const int64_t depth = group.weights.k();
    for (int64_t m = 0; m < rows.m; m += kStaticRows) {
      ActivationRows part = rows.part(m, std::min(kStaticRows, rows.m - m));
      gather_tiles(part, depth, tile);
      part = {.data = tile, .stride_bytes = packed_plane_bytes(depth), .planes = 1, .m = part.m, .tiled = true};
      run_group(call, part, blocks, start, first_output + m, first_channel, group, scratch);
    }
    return;
  }
  const LinearKernel kernel = rows.tiled ? tiles : product;
  if (group.output && !parameters.residual) {
    std::byte* const y = call.y + (first_output * call.y_stride + first_channel + first) * group.output->y_bytes();
    return static_product(kernel, rescale, group.weights, blocks, rows, start + first, *group.output, y, call.y_stride,
                          scratch);
  }
  product_in_pieces(kernel, group.weights, blocks, rows, start + first, scratch, [&](const LinearSums& sums) {
    const int64_t n = first + sums.n;
    store<T>(call, group, sums, first_output, n, first_channel + n, std::min(group.weights.n() - n, sums.columns));
  });
}

/// Codes of outputs of a row, as many as `joined` has at least, without any between them.
void StaticConvLayer::Impl::run_joined(const DepthwiseArgs& outputs, std::byte* y) const {
  const int64_t count = joined->count, channels = count * outputs.channels;
  const StaticOutput::Exact exact{&joined->output, rescale, 0};
  SumCodes codes = joined->output.codes(exact, channels, y, channels);
  DepthwiseArgs args = outputs;
  args.row_at_step = count;
  args.start = joined->weights.start.data();
  args.m = outputs.m / count;
  args.channels = channels;
  args.codes = &codes;
  joined->weights.run(args);
  if (outputs.m % count == 0) return;
  // The last ones, with some of those before them once more.
  args.row_at += outputs.m - count;
  args.m = 1;
  codes.y += (outputs.m - count) * outputs.channels;
  joined->weights.run(args);
}

/// Outputs [part.m_begin, part.m_end) of the images together.
void StaticConvLayer::Impl::run_depthwise(const Call& call, const Places& at, std::byte* workspace,
                                          int64_t first_output, const LinearRectangle& part, std::byte* scratch) const {
  const Group& group = groups[0];
  const int64_t outputs = parameters.shape.outputs;
  const int planes = activation_planes(linear_layer().x_dtype());
  const int64_t stride = depthwise_stride(), most = depthwise_rows() * stride;
  const bool sums_are_whole = planes == 1 && !wide(), has_codes = !depthwise.ratio.empty();
  const bool join = joined && call.y_stride == outputs;
  const StaticOutput::Exact exact{has_codes ? &*group.output : nullptr, rescale, 0};
  SumCodes codes{};
  if (has_codes) codes = group.output->codes(exact, outputs, nullptr, call.y_stride);
  auto* const sums = reinterpret_cast<int32_t*>(scratch);
  for (int64_t m = part.m_begin, rows = 0; m < part.m_end; m += rows) {
    rows = std::min(depthwise_rows(), part.m_end - m);
    if (depthwise.step != 0 || join) rows = std::min(rows, call.size.columns - m % call.size.columns);
    codes.y = reinterpret_cast<uint8_t*>(call.y) + (first_output + m) * call.y_stride;
    DepthwiseArgs args{
        .u = reinterpret_cast<const uint8_t*>(workspace + at.images),
        .row_at = reinterpret_cast<const int64_t*>(workspace + at.row_at) + m,
        .row_at_step = 1,
        .tap_at = reinterpret_cast<const int64_t*>(workspace + at.piece_at),
        .weights = nullptr,
        .start = sums_are_whole ? depthwise.start.data() : reinterpret_cast<const int32_t*>(workspace + at.zeros),
        .acc = sums,
        .acc_stride = stride,
        .m = rows,
        .taps = pieces.count,
        .channels = outputs,
        .step = 0,
        .codes = has_codes ? &codes : nullptr};
    if (join && rows >= joined->count) {
      run_joined(args, reinterpret_cast<std::byte*>(codes.y));
      continue;
    }
    for (int plane = 0; plane < planes; ++plane, args.u += at.plane, args.acc += most) depthwise.run(args);
    if (has_codes) continue;
    const auto finish = [&](auto* whole) {
      using T = std::remove_pointer_t<decltype(whole)>;
      store<T>(call, group, {whole, stride, 0, rows, 0, stride}, first_output + m, 0, 0, outputs);
    };
    if (sums_are_whole) {
      finish(sums);
      continue;
    }
    const auto add = [&](auto* whole) {
      using T = std::remove_pointer_t<decltype(whole)>;
      for (int64_t i = 0; i < rows * stride; ++i) {
        int64_t sum = group.wide_start[static_cast<size_t>(i % stride)] + sums[i];
        if (planes == 2) sum += int64_t{sums[most + i]} * 256;
        whole[i] = static_cast<T>(sum);
      }
      finish(whole);
    };
    if (wide()) {
      add(reinterpret_cast<int64_t*>(sums + planes * most));
    } else {
      add(sums + planes * most);
    }
  }
}

/// Outputs [part.m_begin, part.m_end) of the images together, blocks [part.n_begin, part.n_end) of a group.
void StaticConvLayer::Impl::run_group(const Call& call, const Places& at, const std::byte* workspace,
                                      int64_t first_output, int64_t g, const LinearRectangle& part,
                                      std::byte* scratch) const {
  const Group& group = groups[static_cast<size_t>(g)];
  const ConvShape& shape = parameters.shape;
  const int64_t first_row = first_output % call.outputs() / call.size.columns * call.rows.output_stride;
  const int64_t first_pixel = first_output / call.outputs() * call.pixels() + first_row * call.image.columns;
  const std::byte* const read = call.in_place ? call.x + first_pixel * call.x_stride : workspace + at.images;
  const ActivationRows rows{.data = reinterpret_cast<const uint8_t*>(read) + g * shape.group_channels(),
                            .stride_bytes = 0,
                            .planes = activation_planes(linear_layer().x_dtype()),
                            .m = part.m_end - part.m_begin,
                            .row_at = reinterpret_cast<const int64_t*>(workspace + at.row_at) + part.m_begin,
                            .piece_at = reinterpret_cast<const int64_t*>(workspace + at.piece_at),
                            .pieces = pieces.count,
                            .plane_stride_bytes = at.plane};
  const BlockRange blocks{static_cast<int32_t>(part.n_begin), static_cast<int32_t>(part.n_end)};
  const int64_t first_channel = g * (shape.outputs / shape.groups);
  if (wide()) {
    run_group(call, rows, blocks, group.wide_start.data(), first_output + part.m_begin, first_channel, group,
              reinterpret_cast<int64_t*>(scratch));
  } else {
    run_group(call, rows, blocks, group.start.data(), first_output + part.m_begin, first_channel, group,
              reinterpret_cast<int32_t*>(scratch));
  }
}

/// Rows [first_row, first_row + rows) of y of images [first_image, first_image + count): all of several images, or some
/// of one.
void StaticConvLayer::Impl::run(const Call& call, const Places& at, std::byte* workspace, int64_t first_image,
                                int64_t count, int64_t first_row, int64_t rows) const {
  const int64_t unused = (call.output_rows - rows) * call.rows.output_stride;
  const auto copy = [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      copy_row(call, at, workspace, first_image, first_row * call.rows.output_stride, i);
  };
  const int64_t copied = call.in_place ? 0 : count * call.padded_rows - unused;
  if (call.pool == nullptr) {
    copy(0, 0, copied);
  } else if (copied > 0) {
    call.pool->for_ranges(copied, copy);
  }
  const int64_t first_output = first_image * call.outputs() + first_row * call.size.columns;
  const int64_t outputs = count * rows * call.size.columns;
  if (is_depthwise()) {
    for_rectangles(call.pool, outputs, 1, [&](int part, const LinearRectangle& rectangle) {
      run_depthwise(call, at, workspace, first_output, rectangle, workspace + at.scratch + part * at.scratch_stride);
    });
    return;
  }
  for (int64_t g = 0; g < group_count(); ++g)
    for_rectangles(call.pool, outputs, groups[static_cast<size_t>(g)].weights.all_blocks().end,
                   [&](int part, const LinearRectangle& rectangle) {
                     run_group(call, at, workspace, first_output, g, rectangle,
                               workspace + at.scratch + part * at.scratch_stride);
                   });
}

/// What does not depend on x.
void StaticConvLayer::Impl::place_rows(const Call& call, const Places& at, int64_t images, std::byte* workspace) const {
  auto* const row_at = reinterpret_cast<int64_t*>(workspace + at.row_at);
  auto* const piece_at = reinterpret_cast<int64_t*>(workspace + at.piece_at);
  const ImageSize read = call.read();
  const int64_t pixel = call.in_place ? call.x_stride : channels();
  int64_t* next = row_at;
  for (int64_t image = 0; image < call.together(images); ++image)
    for (int64_t p = 0; p < call.output_rows; ++p) {
      const int64_t row = image * read.rows + call.rows.first_output + p * call.rows.output_stride;
      const int64_t first = (row * read.columns + call.columns.first_output) * pixel;
      for (int64_t q = 0; q < call.size.columns; ++q) *next++ = first + q * call.columns.output_stride * pixel;
    }
  const int64_t taps = parameters.shape.columns.kernel;
  for (int64_t i = 0; i < pieces.count; ++i) {
    const int64_t r = pieces.rows ? i : i / taps, s = pieces.rows ? 0 : i % taps;
    piece_at[i] = (r * call.rows.tap * read.columns + s * call.columns.tap) * pixel;
  }
  if (!is_depthwise()) return;
  for (int64_t i = pieces.count; i % kDepthwiseTaps != 0; ++i) piece_at[i] = piece_at[0];
  std::memset(workspace + at.zeros, 0, static_cast<size_t>(at.images - at.zeros));
}

void StaticConvLayer::Impl::run_reference(const Call& call, std::byte* workspace, int64_t image) const {
  const StaticLinearParameters& p = linear_layer();
  const ConvShape& shape = parameters.shape;
  auto* const x = reinterpret_cast<int32_t*>(workspace);
  for (int64_t i = 0; i < call.pixels(); ++i)
    for (int64_t c = 0; c < shape.channels; ++c)
      x[i * shape.channels + c] = static_cast<int32_t>(
          load_code(call.x, p.x_dtype(), (image * call.pixels() + i) * call.x_stride + c) - p.input.zero_point);
  const auto rows = [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t o = 0; o < shape.outputs; ++o) {
        const int64_t at = (image * call.outputs() + i) * call.y_stride + o;
        const std::vector<int32_t> row =
            reference_conv_row(shape, call.image, x, i / call.size.columns, i % call.size.columns, o);
        store_code(call.y, p.y_dtype(), at,
                   reference_static_conv_code(
                       parameters, o, row.data(),
                       call.residual == nullptr ? 0 : load_code(call.residual, parameters.residual->grid.dtype(), at)));
      }
  };
  if (call.pool == nullptr) return rows(0, 0, call.outputs());
  call.pool->for_ranges(call.outputs(), rows);
}

Status StaticConvLayer::forward(std::span<const std::byte> x, std::span<std::byte> y, int64_t images,
                                const ImageSize& image, Workspace& workspace, const RunOptions& options,
                                std::span<const std::byte> residual) const {
  const DefaultFloatMode mode;
  const Impl& impl = *impl_;
  const StaticConvParameters& p = impl.parameters;
  ISOBIT_RETURN_IF_ERROR(check_row_options(options, impl.path, "a convolution on the CPU"));
  ISOBIT_ASSIGN_OR_RETURN(Impl::Call call, impl.call_of(image, images));
  LinearRows x_rows{"x", x.data(), x.size(), p.linear.x_dtype(), p.shape.channels, options.x_stride};
  LinearRows y_rows{"y", y.data(), y.size(), p.linear.y_dtype(), p.shape.outputs, options.y_stride};
  const int64_t pixels = images * call.pixels(), outputs = images * call.outputs();
  ISOBIT_RETURN_IF_ERROR(check_rows_apart(x_rows, pixels, y_rows, outputs));
  if (p.residual.has_value() == residual.empty() && outputs > 0)
    return refuse_linear(impl.name + ": residual has " + std::to_string(residual.size()) +
                         (p.residual ? " bytes, must be codes as y: the layer adds a residual"
                                     : " bytes, must be empty: the layer adds none"));
  if (p.residual && outputs > 0) {
    LinearRows added{"residual",      residual.data(), residual.size(), p.residual->grid.dtype(),
                     p.shape.outputs, y_rows.stride};
    // It may be y itself: each code is read before its place is written.
    const bool is_y = residual.data() == y.data() && size_in_bytes(added.dtype) == size_in_bytes(y_rows.dtype);
    ISOBIT_RETURN_IF_ERROR(check_rows_apart(added, outputs, y_rows, is_y ? 0 : outputs));
    ISOBIT_RETURN_IF_ERROR(
        check_codes(residual.data(), p.residual->grid, outputs, p.shape.outputs, y_rows.stride, impl.name, "residual"));
  }
  const int threads = threads_of(options.pool);
  const Impl::Places at = impl.places(call, images, threads);
  if (!workspace_fits(workspace, at.total))
    return refuse_workspace(workspace, at.total, {}, std::to_string(images) + " images" + on_threads(threads),
                            "workspace(images, image, threads)");
  ISOBIT_RETURN_IF_ERROR(check_codes(x.data(), p.linear.input, pixels, p.shape.channels, x_rows.stride, impl.name));
  call.x = x.data();
  call.x_stride = x_rows.stride;
  call.in_place = impl.reads_in_place(call);
  call.y = y.data();
  call.y_stride = y_rows.stride;
  call.residual = residual.empty() ? nullptr : residual.data();
  call.pool = options.pool;
  if (impl.product == nullptr) {
    for (int64_t b = 0; b < images; ++b) impl.run_reference(call, workspace.data(), b);
    return {};
  }
  impl.place_rows(call, at, images, workspace.data());
  const int64_t together = call.together(images);
  for (int64_t b = 0; b < images; b += together)
    for (int64_t row = 0; row < call.size.rows; row += call.output_rows)
      impl.run(call, at, workspace.data(), b, std::min(together, images - b), row,
               std::min(call.output_rows, call.size.rows - row));
  return {};
}

}  // namespace isobit
