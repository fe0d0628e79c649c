// SPDX-License-Identifier: Apache-2.0
// Convolutions of floats and of static codes, streams and pooling.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "arrays.h"
#include "cuda.h"
#include "cuda/library.h"
#include "errors.h"
#include "export.h"
#include "gru.h"
#include "isobit/conv.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "names.h"
#include "path.h"

namespace isobit::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

using Pair = std::pair<int64_t, int64_t>;
using OneOrTwo = std::variant<int64_t, Pair>;
using Padding = std::variant<int64_t, Pair, std::pair<Pair, Pair>>;
using Range = std::optional<std::pair<float, float>>;
using Codes = std::vector<std::byte>;

Pair two_of(const OneOrTwo& value) {
  if (const auto* pair = std::get_if<Pair>(&value)) return *pair;
  return {std::get<int64_t>(value), std::get<int64_t>(value)};
}
/// (top, bottom), (left, right); of a pair: rows, columns.
std::pair<Pair, Pair> pads_of(const Padding& value) {
  if (const auto* all = std::get_if<std::pair<Pair, Pair>>(&value)) return *all;
  const auto* pair = std::get_if<Pair>(&value);
  const Pair sides = pair != nullptr ? *pair : Pair(std::get<int64_t>(value), std::get<int64_t>(value));
  return {{sides.first, sides.first}, {sides.second, sides.second}};
}
ImageSize size_of(const Pair& pair) { return {pair.first, pair.second}; }

/// A layer of floating-point images, what it was made of, and its copies on devices.
struct Conv : ConvLayer {
  Conv(ConvLayer layer, LowBitMatrix low, const ConvOptions& options)
      : ConvLayer(std::move(layer)),
        weights(std::move(low)),
        bias(options.bias.begin(), options.bias.end()),
        clamp(options.clamp),
        has_path(options.path.has_value()) {}
  /// The copy on a device, made when it is first asked for.
  [[nodiscard]] const isobit_cuda_conv* on(int device) const {
    const isobit_cuda_functions& functions = cuda_functions();
    return copies.get(device, functions.conv_destroy, [&](isobit_cuda_conv** made) {
      const std::vector<std::byte> saved = take(saved_low_bit({.matrices = {{"layer", weights}}}));
      const isobit_cuda_conv_shape of = cuda::library_shape(shape());
      const isobit_cuda_linear_options options =
          cuda::library_options(ConvOptions{.activations = activations(), .bias = bias, .clamp = clamp});
      return functions.conv_create(saved.data(), std::ssize(saved), &of, &options, name().c_str(), device, made);
    });
  }

  LowBitMatrix weights;
  std::vector<float> bias;
  LinearClamp clamp;
  bool has_path;
  OnDevices<isobit_cuda_conv> copies;
};

/// A layer of static codes, and its copies on devices.
struct StaticConv : StaticConvLayer {
  StaticConv(StaticConvLayer layer, bool path = false)  // NOLINT: implicit on purpose
      : StaticConvLayer(std::move(layer)), has_path(path) {}
  [[nodiscard]] const isobit_cuda_conv* on(int device) const {
    return copies.get(device, *this, &isobit_cuda_functions::conv_create_static, &isobit_cuda_functions::conv_destroy);
  }

  bool has_path;
  OnDevices<isobit_cuda_conv> copies;
};

/// The grid that a dictionary of grid_dict() describes.
Grid grid_of(const Facts& facts, const std::string& name) {
  Grid grid{.kind = ScaleKind::kReal};
  std::optional<std::string> dtype;
  bool has_bits = false, has_scale = false;
  for (const auto& [key, value] : static_cast<const nb::dict&>(facts)) {
    const std::string field = nb::cast<std::string>(key);
    const auto take_field = [&](auto& to) {
      if (!nb::try_cast(value, to))
        refuse_type(name + "['" + field + "'] is " + std::string(nb::str(value.type().attr("__name__")).c_str()) +
                    ", which this field cannot be");
    };
    if (field == "bits") {
      take_field(grid.bits);
      has_bits = true;
    } else if (field == "signed") {
      take_field(grid.is_signed);
    } else if (field == "scale") {
      take_field(grid.real_scale);
      has_scale = true;
    } else if (field == "zero_point") {
      take_field(grid.zero_point);
    } else if (field == "dtype") {
      take_field(dtype.emplace());
    } else {
      refuse(name + " has '" + field + "', must have bits, signed, scale, zero_point and dtype only");
    }
  }
  if (!has_bits || !has_scale)
    refuse(name + " has no '" + (has_bits ? "scale" : "bits") + "', must have bits and scale at least");
  check(check_grid(grid, name));
  if (dtype && *dtype != to_string(grid.dtype()))
    refuse(name + "['dtype'] is '" + *dtype + "', must be '" + std::string(to_string(grid.dtype())) + "', as bits say");
  return grid;
}
std::optional<Grid> optional_grid(const std::optional<Facts>& facts, const std::string& name) {
  if (!facts) return std::nullopt;
  return grid_of(*facts, name);
}
std::optional<Facts> optional_dict(const std::optional<Grid>& grid) {
  if (!grid) return std::nullopt;
  return grid_dict(*grid);
}

/// What from_codes() and quantize() share.
struct Made {
  OneOrTwo stride, dilation;
  Padding padding;
  int64_t groups;
  bool transposed;
  OneOrTwo output_padding;

  [[nodiscard]] ConvShape shape(const ConvWeights& weights, const std::string& name) const {
    const auto [top_bottom, left_right] = pads_of(padding);
    const Pair strides = two_of(stride), dilations = two_of(dilation), more = two_of(output_padding);
    return take(conv_shape_of(weights,
                              {.stride = {strides.first, strides.second},
                               .dilation = {dilations.first, dilations.second},
                               .padding = {top_bottom.first, top_bottom.second, left_right.first, left_right.second},
                               .output_padding = {more.first, more.second},
                               .groups = groups,
                               .transposed = transposed},
                              name));
  }
};

ConvWeights weights_of(const Input& weights) {
  const std::vector<int64_t>& shape = weights.shape();
  if (shape.size() != 4) refuse("weights has shape " + shape_text(shape) + ", must be [O, R, S, C / groups]");
  return {.outputs = shape[0], .kernel_rows = shape[1], .kernel_columns = shape[2], .channels = shape[3]};
}

std::unique_ptr<StaticConv> conv_of(const ConvShape& shape, StaticLinearParameters linear,
                                    const std::optional<Grid>& residual, const std::string& name,
                                    const std::optional<CpuPath>& path) {
  StaticConvParameters parameters{shape, std::move(linear)};
  if (residual) {
    if (!parameters.linear.output) refuse(name + ": residual_grid is given, must be None without an output_grid");
    parameters.residual = take(derive_static_residual(*residual, *parameters.linear.output, name));
  }
  return std::make_unique<StaticConv>(take(StaticConvLayer::create(std::move(parameters), name, path)),
                                      path.has_value());
}

std::unique_ptr<StaticConv> conv_of_codes(nb::any weights, nb::any scales, const Facts& input_grid,
                                          const std::optional<Facts>& output_grid, nb::any bias, const Range& clamp,
                                          const OneOrTwo& stride, const OneOrTwo& dilation, const Padding& padding,
                                          int64_t groups, bool transposed, const OneOrTwo& output_padding,
                                          const std::optional<Facts>& residual_grid, const std::string& rounding,
                                          const std::string& name, const std::optional<std::string>& path) {
  const Input codes(weights, "weights", Dtype::kS8);
  const ConvWeights form = weights_of(codes);
  StaticLinearParameters p;
  p.weights = array_of(codes);
  p.rows = form.outputs;
  p.columns = form.kernel_rows * form.kernel_columns * form.channels;
  p.weights.shape = {p.rows, p.columns};
  p.scales = array_of(Input(scales, "scales", Dtype::kF32));
  p.bias = bias.is_none() ? Array::zeros(Dtype::kS32, {p.rows}) : array_of(Input(bias, "bias", Dtype::kS32));
  p.input = grid_of(input_grid, "input_grid");
  p.output = optional_grid(output_grid, "output_grid");
  p.rounding = rounding_named(rounding);
  const ConvShape shape = Made{stride, dilation, padding, groups, transposed, output_padding}.shape(form, name);
  const std::optional<Grid> residual = optional_grid(residual_grid, "residual_grid");
  const std::optional<CpuPath> cpu_path = path_named(path);
  const LinearClamp range = clamp ? LinearClamp{clamp->first, clamp->second} : LinearClamp();
  const nb::gil_scoped_release release;
  return conv_of(shape, take(derive_static_requantization(std::move(p), range, name)), residual, name, cpu_path);
}

std::unique_ptr<StaticConv> conv_of_floats(nb::any weights, const Facts& input_grid,
                                           const std::optional<Facts>& output_grid, nb::any bias, const Range& clamp,
                                           const OneOrTwo& stride, const OneOrTwo& dilation, const Padding& padding,
                                           int64_t groups, bool transposed, const OneOrTwo& output_padding,
                                           const std::optional<Facts>& residual_grid, int32_t weight_bits,
                                           const std::string& method, const std::string& rounding,
                                           const std::string& name, const std::optional<std::string>& path) {
  const Input floats(weights, "weights", Dtype::kF32);
  const ConvWeights form = weights_of(floats);
  const Array array = array_of(floats);
  std::optional<Input> biases;
  StaticLinearOptions options{.input = grid_of(input_grid, "input_grid"),
                              .output = optional_grid(output_grid, "output_grid")};
  if (!bias.is_none()) options.bias = biases.emplace(bias, "bias", Dtype::kF32).values<float>();
  if (clamp) options.clamp = {clamp->first, clamp->second};
  options.rounding = rounding_named(rounding);
  const LowBitOptions low_bit{
      .bits = weight_bits,
      .group = 0,
      .method = parse_name("method", method, low_bit_method_from_string, "absmax, mse"),
  };
  const ConvShape shape = Made{stride, dilation, padding, groups, transposed, output_padding}.shape(form, name);
  const std::optional<Grid> residual = optional_grid(residual_grid, "residual_grid");
  const std::optional<CpuPath> cpu_path = path_named(path);
  const nb::gil_scoped_release release;
  const LowBitMatrix low = take(quantize_conv_weights(array, low_bit, name + ": weights"));
  return conv_of(shape, take(derive_static_linear(low, options, name)), residual, name, cpu_path);
}

/// x [B, H, W, C], or [B, W, C] with H = 1; y has as many dimensions.
struct Images {
  int64_t count = 0;
  ImageSize size{};
  bool flat = false;

  Images(const Input& x, int64_t channels) {
    const std::vector<int64_t>& shape = x.shape();
    if ((shape.size() != 3 && shape.size() != 4) || (channels > 0 && shape.back() != channels)) {
      const std::string last = channels > 0 ? std::to_string(channels) : "C";
      refuse("x has shape " + shape_text(shape) + ", must be [B, H, W, " + last + "], or [B, W, " + last +
             "] of images with one row");
    }
    flat = shape.size() == 3;
    count = shape[0];
    size = {flat ? 1 : shape[1], shape[flat ? 1 : 2]};
  }
  /// What y of such images must be.
  [[nodiscard]] std::vector<int64_t> y_shape(const ImageSize& y, int64_t outputs) const {
    if (!flat) return {count, y.rows, y.columns, outputs};
    if (y.rows != 1)
      refuse("x has one row and y would have " + std::to_string(y.rows) + "; pass x as [B, 1, W, C] for such a layer");
    return {count, y.columns, outputs};
  }
};

/// The residual of y of this shape, where x lies, and only where the layer has one.
std::optional<Input> residual_of(nb::handle residual, const std::optional<StaticResidual>& wanted,
                                 const std::vector<int64_t>& y_shape, Dtype dtype, Device device = {}) {
  if (residual.is_none() != !wanted)
    refuse(wanted ? "residual is None, must be given: the layer has a residual_grid"
                  : "residual is given, must be None: the layer has no residual_grid");
  if (!wanted) return std::nullopt;
  std::optional<Input> input(std::in_place, residual, "residual", dtype, Places::kHostOrDevice);
  if (input->device() != device)
    refuse_type("residual is " + place_text(input->device()) + ", must be " + place_text(device) + ", as x");
  if (input->shape() != y_shape)
    refuse("residual has shape " + shape_text(input->shape()) + ", must be " + shape_text(y_shape) + ", as y");
  return input;
}

void forward_codes(const StaticConvLayer& self, std::span<const std::byte> x, std::span<std::byte> y,
                   const Images& images, std::span<const std::byte> residual, Pool* pool) {
  const PoolUse use(pool);
  Workspace workspace = take(self.workspace(images.count, images.size, use.threads()));
  check(self.forward(x, y, images.count, images.size, workspace, {.pool = use.pool}, residual));
}

/// The call of a layer of either kind with x on a device, in the order of torch's current stream.
void run_on_device(const isobit_cuda_conv* layer, nb::handle x, const Input& input, const Images& images,
                   std::span<const std::byte> residual, const Returned& y, Dtype y_dtype) {
  const isobit_cuda_functions& functions = cuda_functions();
  const Stream stream(x);
  int64_t bytes = 0;
  check_cuda(functions.conv_workspace_bytes(layer, images.count, images.size.rows, images.size.columns, &bytes));
  const NewArray workspace = new_array(x, Dtype::kU8, {bytes}, input.device());
  isobit_cuda_conv_run run{};
  cuda::set_arrays(input.bytes(), input.dtype(), y.bytes(), y_dtype, workspace.bytes, run);
  run.residual = residual.data();
  run.residual_bytes = std::ssize(residual);
  run.images = images.count;
  run.rows = images.size.rows;
  run.columns = images.size.columns;
  run.stream = stream.handle;
  check_cuda(functions.conv_run(layer, &run));
}

nb::any run_conv(const StaticConv& self, nb::any x, nb::any residual, nb::any out, Pool* pool) {
  const StaticConvParameters& p = self.parameters();
  const Input input(x, "x", p.linear.x_dtype(), Places::kHostOrDevice);
  const Images images(input, p.shape.channels);
  const std::vector<int64_t> y_shape =
      images.y_shape(take(conv_output_size(p.shape, images.size, self.name())), p.shape.outputs);
  if (input.device()) {
    refuse_on_device("pool", pool != nullptr);
    refuse_on_device("path", self.has_path);
  }
  const std::optional<Input> added =
      residual_of(residual, p.residual, y_shape, p.residual ? p.residual->grid.dtype() : Dtype::kS8, input.device());
  const std::span<const std::byte> adding = added ? added->bytes() : std::span<const std::byte>();
  const Returned y(x, out, p.linear.y_dtype(), y_shape, input.device());
  if (input.device()) {
    run_on_device(self.on(*input.device()), x, input, images, adding, y, p.linear.y_dtype());
  } else {
    const nb::gil_scoped_release release;
    forward_codes(self, input.bytes(), y.bytes(), images, adding, pool);
  }
  return nb::borrow<nb::any>(y.array());
}

Codes quantized(const Grid& grid, const Input& x, const char* name) {
  const std::span<const float> values = x.values<float>();
  Codes codes(values.size() * size_in_bytes(grid.dtype()));
  check(quantize(grid, values, codes.data(), name));
  return codes;
}

/// Numbers in and out: quantised on the grids, dequantised from the output grid.
nb::any run_conv_floats(const StaticConv& self, nb::any x, nb::any residual, nb::any out, Pool* pool) {
  const StaticConvParameters& p = self.parameters();
  const Input input(x, "x", Dtype::kF32);
  const Images images(input, p.shape.channels);
  if (!p.linear.output) refuse("the layer has no output grid: its results are accumulators; use run_codes()");
  const std::vector<int64_t> y_shape =
      images.y_shape(take(conv_output_size(p.shape, images.size, self.name())), p.shape.outputs);
  const std::optional<Input> added = residual_of(residual, p.residual, y_shape, Dtype::kF32);
  const Returned y(x, out, Dtype::kF32, y_shape);
  {
    const nb::gil_scoped_release release;
    const Codes x_codes = quantized(p.linear.input, input, "x");
    const Codes residual_codes = added ? quantized(p.residual->grid, *added, "residual") : Codes();
    const size_t count = y.bytes().size() / sizeof(float);
    Codes y_codes(count * size_in_bytes(p.linear.y_dtype()));
    forward_codes(self, x_codes, y_codes, images, residual_codes, pool);
    dequantize(*p.linear.output, y_codes.data(), {reinterpret_cast<float*>(y.bytes().data()), count});
  }
  return nb::borrow<nb::any>(y.array());
}

// ---- Floating-point images

constexpr auto kFloats = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};

std::unique_ptr<Conv> float_conv(nb::any weights, int32_t bits, std::optional<int64_t> group, const std::string& kind,
                                 const std::optional<std::string>& method, const std::string& scales,
                                 const std::string& activations, nb::any bias, const Range& clamp,
                                 const OneOrTwo& stride, const OneOrTwo& dilation, const Padding& padding,
                                 int64_t groups, bool transposed, const OneOrTwo& output_padding,
                                 const std::string& name, const std::optional<std::string>& path) {
  const Input floats(weights, "weights", kFloats);
  const ConvWeights form = weights_of(floats);
  const Array array = array_of(floats);
  const ConvShape shape = Made{stride, dilation, padding, groups, transposed, output_padding}.shape(form, name);
  if (group && *group < 1) refuse("group is " + std::to_string(*group) + ", must be at least 1, or None");
  LowBitOptions low_bit{.bits = bits, .group = group.value_or(0)};
  low_bit.kind = parse_name("kind", kind, low_bit_kind_from_string, "symmetric, zero_point, offset");
  low_bit.method = method ? parse_name("method", *method, low_bit_method_from_string, "absmax, minmax, mse")
                          : default_low_bit_method(bits, low_bit.kind);
  low_bit.scales = dtype_named("scales", scales, kFloats);
  ConvOptions options{.activations = parse_name("activations", activations, conv_activations_from_string,
                                                "float, int8, int8_asymmetric, int8_per_image")};
  std::optional<Input> biases;
  if (!bias.is_none()) options.bias = biases.emplace(bias, "bias", Dtype::kF32).values<float>();
  if (clamp) options.clamp = {clamp->first, clamp->second};
  options.path = path_named(path);
  const nb::gil_scoped_release release;
  LowBitMatrix low = take(quantize_conv_weights(array, low_bit, name + ": weights"));
  ConvLayer layer = take(ConvLayer::create(shape, low, options, name));
  return std::make_unique<Conv>(std::move(layer), std::move(low), options);
}

nb::any run_float_conv(const Conv& self, nb::any x, nb::any out, Pool* pool) {
  const Input input(x, "x", kFloats, Places::kHostOrDevice);
  const Images images(input, self.shape().channels);
  const std::vector<int64_t> y_shape =
      images.y_shape(take(conv_output_size(self.shape(), images.size, self.name())), self.shape().outputs);
  if (input.device()) {
    refuse_on_device("pool", pool != nullptr);
    refuse_on_device("path", self.has_path);
  }
  const Returned y(x, out, input.dtype(), y_shape, input.device());
  if (input.device()) {
    run_on_device(self.on(*input.device()), x, input, images, {}, y, input.dtype());
  } else {
    const nb::gil_scoped_release release;
    const PoolUse use(pool);
    Workspace workspace = take(self.workspace(images.count, images.size, use.threads()));
    check(self.forward(input.bytes(), input.dtype(), y.bytes(), input.dtype(), images.count, images.size, workspace,
                       {.pool = use.pool}));
  }
  return nb::borrow<nb::any>(y.array());
}

constexpr const char* kFloatConvDoc =
    "weights: float32, float16 or bfloat16 [O, R, S, C / groups], quantised to bits of 1, 2, 4 or 8. group: channels\n"
    "that share a scale, a multiple of 8 below C / groups; None: all weights of an output channel share one. kind,\n"
    "method and scales as in LowBit.quantize. activations: 'float' (x as it is), 'int8' (8-bit codes of each block of\n"
    "channels of a pixel), 'int8_asymmetric' or 'int8_per_image' (one scale for each image; symmetric, group None).\n"
    "bias: float32 [O]. clamp: (lowest, highest) of y. All else as in StaticConv.from_codes.";

/// A state, with the stream that it is of and the scratch memory of its calls. One call at a time: others wait.
struct ConvState {
  StaticConvStream stream;
  StaticConvState state;
  Workspace workspace;
  int workspace_threads = 0;
  std::mutex mutex;

  ConvState(StaticConvStream of, StaticConvState first) : stream(std::move(of)), state(std::move(first)) {}
};

std::unique_ptr<StaticConvStream> stream_of(const StaticConv& layer) {
  const nb::gil_scoped_release release;
  return std::make_unique<StaticConvStream>(
      take(StaticConvStream::create(layer.parameters(), layer.name(), layer.path())));
}

nb::any run_stream(const StaticConvStream& self, nb::any x, ConvState& state, nb::any residual, nb::any out,
                   Pool* pool) {
  const StaticConvParameters& p = self.parameters();
  const Input input(x, "x", p.linear.x_dtype());
  const std::vector<int64_t>& shape = input.shape();
  if (shape.size() != 3 || shape[2] != p.shape.channels)
    refuse("x has shape " + shape_text(shape) + ", must be [B, columns, " + std::to_string(p.shape.channels) + "]");
  if (&state.stream.parameters() != &p) refuse("state was made by another stream, must be of state() of this one");
  const std::vector<int64_t> y_shape = {shape[0], shape[1] / p.shape.columns.stride, p.shape.outputs};
  const std::optional<Input> added =
      residual_of(residual, p.residual, y_shape, p.residual ? p.residual->grid.dtype() : Dtype::kS8);
  const Returned y(x, out, p.linear.y_dtype(), y_shape);
  {
    const nb::gil_scoped_release release;
    const std::unique_lock<std::mutex> lock(state.mutex);
    const PoolUse use(pool);
    if (state.workspace_threads < use.threads()) {
      state.workspace = take(self.workspace(state.state.images(), state.state.columns(), use.threads()));
      state.workspace_threads = use.threads();
    }
    check(self.forward(input.bytes(), y.bytes(), shape[0], shape[1], state.state, state.workspace, {.pool = use.pool},
                       added ? added->bytes() : std::span<const std::byte>()));
  }
  return nb::borrow<nb::any>(y.array());
}

std::unique_ptr<ConvState> copy_state(ConvState& self) {
  const nb::gil_scoped_release release;
  const std::unique_lock<std::mutex> lock(self.mutex);
  return std::make_unique<ConvState>(self.stream, self.state);
}

std::unique_ptr<StaticPool> pool_of(const std::string& kind, const OneOrTwo& window,
                                    const std::optional<OneOrTwo>& stride, const Padding& padding,
                                    const Facts& input_grid, const std::optional<Facts>& output_grid,
                                    bool counts_outside, const std::string& rounding, const std::string& name) {
  StaticPoolParameters p;
  if (kind != "max" && kind != "average") refuse("kind is '" + kind + "', must be one of max, average");
  p.kind = kind == "max" ? PoolKind::kMax : PoolKind::kAverage;
  const Pair sides = two_of(window), strides = stride ? two_of(*stride) : sides;
  const auto [top_bottom, left_right] = pads_of(padding);
  p.rows = {
      .kernel = sides.first, .stride = strides.first, .pad_before = top_bottom.first, .pad_after = top_bottom.second};
  p.columns = {
      .kernel = sides.second, .stride = strides.second, .pad_before = left_right.first, .pad_after = left_right.second};
  p.input = grid_of(input_grid, "input_grid");
  p.output = output_grid ? grid_of(*output_grid, "output_grid") : p.input;
  p.counts_outside = counts_outside;
  p.rounding = rounding_named(rounding);
  return std::make_unique<StaticPool>(take(StaticPool::create(p, name)));
}

ImageSize pooled(const StaticPool& self, const ImageSize& image) {
  const StaticPoolParameters& p = self.parameters();
  return take(conv_output_size({.rows = p.rows, .columns = p.columns}, image, "pool"));
}

nb::any run_pool(const StaticPool& self, nb::any x, nb::any out, Pool* pool) {
  const StaticPoolParameters& p = self.parameters();
  const Input input(x, "x", p.input.dtype());
  const Images images(input, 0);
  const int64_t channels = input.shape().back();
  const Returned y(x, out, p.output.dtype(), images.y_shape(pooled(self, images.size), channels));
  {
    const nb::gil_scoped_release release;
    const PoolUse use(pool);
    check(self.forward(input.bytes(), y.bytes(), images.count, images.size, channels, {.pool = use.pool}));
  }
  return nb::borrow<nb::any>(y.array());
}

Pair pair_of(const ImageSize& size) { return {size.rows, size.columns}; }

std::vector<std::unique_ptr<StaticConv>> load_all(const Path& path) {
  const nb::gil_scoped_release release;
  const ArrayReader file = take(ArrayReader::open(path.text));
  std::vector<std::unique_ptr<StaticConv>> layers;
  for (StaticConvLayer& layer : take(StaticConvLayer::load_all(file)))
    layers.push_back(std::make_unique<StaticConv>(std::move(layer)));
  return layers;
}

void save_all(const Path& path, const std::vector<const StaticConv*>& layers) {
  const nb::gil_scoped_release release;
  check(StaticConvLayer::save_all(path.text, std::vector<const StaticConvLayer*>(layers.begin(), layers.end())));
}

constexpr const char* kFromCodesDoc =
    "A layer that is in integers already, such as one of TFLite. weights: int8 [O, R, S, C / groups]; scales: float32\n"
    "[O]; bias: int32 [O], on the scale of x times scales[o]; None: 0. Grids are dictionaries as input_grid gives "
    "them:\n"
    "bits, scale, and signed (True) and zero_point (0) where they are others. Without an output_grid y is the int32\n"
    "accumulator. clamp: (lowest, highest) of y, in numbers. stride, dilation, output_padding: of rows and columns, "
    "or\n"
    "(rows, columns). padding: the same, or ((top, bottom), (left, right)). residual_grid: codes of this grid are "
    "added\n"
    "before the clamp. rounding: 'nearest_even', 'nearest_up', 'nearest_away' or 'floor'. path: kernels of one\n"
    "instruction set.";
constexpr const char* kQuantizeDoc =
    "The same of floats: weights [O, R, S, C / groups] and bias [O], float32. weight_bits: 1, 2, 4 or 8, with a scale\n"
    "an output channel. method: 'absmax' or 'mse'.";
constexpr const char* kRunDoc =
    "x: codes of input_grid [B, H, W, C], or [B, W, C] of images with one row; y: codes of output_grid, or int32\n"
    "accumulators, [B, P, Q, O] or [B, Q, O]. residual: codes of residual_grid, as many as y, for a layer that has "
    "one.\n"
    "A code outside its grid is refused by its place. x may be a torch.Tensor on a CUDA device, where such a code "
    "counts\n"
    "as the nearer end of its grid; pool and path mean nothing there.";

void bind_streams(nb::module_& m) {
  nb::class_<ConvState>(m, "StaticConvState",
                        "The columns that a stream has seen last. It is used by one call at a time.")
      .def_prop_ro("batch", [](const ConvState& self) { return self.state.images(); })
      .def_prop_ro(
          "columns", [](const ConvState& self) { return self.state.columns(); }, "The largest chunk.")
      .def("copy", &copy_state);

  nb::class_<StaticConvStream>(
      m, "StaticConvStream",
      "A StaticConv of one dimension whose x comes in chunks of columns: the outputs of all chunks are those of the\n"
      "whole. layer: R = 1, no pads of rows and none on the right; on the left dilation * (S - 1) columns, which is "
      "causal,\n"
      "or fewer, by at most stride - 1.")
      .def(nb::new_(&stream_of), "layer"_a)
      .def(
          "state",
          [](const StaticConvStream& self, int64_t batch, int64_t columns) {
            return std::make_unique<ConvState>(self, take(self.state(batch, columns)));
          },
          "batch"_a, "columns"_a, "Before the first chunk. columns: those of the largest chunk.")
      .def("run_codes", &run_stream, "x"_a, "state"_a, "residual"_a = nb::none(), nb::kw_only(), "out"_a = nb::none(),
           "pool"_a.none() = nb::none(),
           "x: codes [B, columns, C], columns a multiple of the stride; y: [B, columns / stride, O]. state: what "
           "state()\n"
           "made; it holds what comes next. All else as in StaticConv.run_codes().");
}

void bind_pool(nb::module_& m) {
  nb::class_<StaticPool>(
      m, "StaticPool",
      "Pooling of codes: the largest code ('max') or the average ('average') of the pixels of a window inside x.\n"
      "stride: default the window. output_grid: default input_grid; of 'average' only. counts_outside: sums are "
      "divided\n"
      "by the size of the window, not by the number of its pixels inside x. All else as in StaticConv.")
      .def(nb::new_(&pool_of), "kind"_a, "window"_a, nb::kw_only(), "stride"_a = nb::none(), "padding"_a = 0,
           "input_grid"_a, "output_grid"_a = nb::none(), "counts_outside"_a = false, "rounding"_a = "nearest_even",
           "name"_a = "pool")
      .def_prop_ro("input_grid", [](const StaticPool& self) { return grid_dict(self.parameters().input); })
      .def_prop_ro("output_grid", [](const StaticPool& self) { return grid_dict(self.parameters().output); })
      .def(
          "output_shape",
          [](const StaticPool& self, const Pair& image) { return pair_of(pooled(self, size_of(image))); }, "image"_a,
          "(P, Q) of images (H, W).")
      .def("run_codes", &run_pool, "x"_a, nb::kw_only(), "out"_a = nb::none(), "pool"_a.none() = nb::none(),
           "x: codes of input_grid [B, H, W, C] or [B, W, C], y: of output_grid [B, P, Q, C] or [B, Q, C].");
}

}  // namespace

void bind_conv(nb::module_& m) {
  nb::class_<Conv>(
      m, "Conv",
      "A convolution of floating-point images on low-bit weights (docs/numerics.md, sections 10 to 12). A pixel "
      "outside\n"
      "x is zero. With 'int8' activations of any kind every byte is the same everywhere. Immutable; any number of\n"
      "threads may use it.")
      .def_static("quantize", &float_conv, "weights"_a, nb::kw_only(), "bits"_a = 8, "group"_a = nb::none(),
                  "kind"_a = "symmetric", "method"_a = nb::none(), "scales"_a = "f32", "activations"_a = "int8",
                  "bias"_a = nb::none(), "clamp"_a = nb::none(), "stride"_a = 1, "dilation"_a = 1, "padding"_a = 0,
                  "groups"_a = 1, "transposed"_a = false, "output_padding"_a = 0, "name"_a = "layer",
                  "path"_a = nb::none(), kFloatConvDoc)
      .def_prop_ro("name", &Conv::name)
      .def_prop_ro("activations", [](const Conv& self) { return std::string(to_string(self.activations())); })
      .def_prop_ro("path", [](const Conv& self) { return std::string(to_string(self.path())); })
      .def(
          "output_shape",
          [](const Conv& self, const Pair& image) {
            return pair_of(take(conv_output_size(self.shape(), size_of(image), self.name())));
          },
          "image"_a, "(P, Q) of images (H, W).")
      .def(
          "__call__", &run_float_conv, "x"_a, nb::kw_only(), "out"_a = nb::none(), "pool"_a.none() = nb::none(),
          "x [B, H, W, C], or [B, W, C] of images with one row, to y of the same dtype: float32, float16 or bfloat16.\n"
          "A pixel (of 'int8_per_image': an image) that is not finite is refused by its place, but with 'float'\n"
          "activations. x may be a torch.Tensor on a CUDA device, where a call cannot wait to say so: its outputs are "
          "NaN\n"
          "there. pool and path mean nothing there.");

  nb::class_<StaticConv> fixed(
      m, "StaticConv",
      "A convolution of codes on fixed grids; integers only (docs/numerics.md, section 12). A pixel outside x is the\n"
      "zero point of x. Immutable; any number of threads may use it.");
  bind_export_c(fixed);
  fixed
      .def_static("from_codes", &conv_of_codes, "weights"_a, "scales"_a, nb::kw_only(), "input_grid"_a,
                  "output_grid"_a = nb::none(), "bias"_a = nb::none(), "clamp"_a = nb::none(), "stride"_a = 1,
                  "dilation"_a = 1, "padding"_a = 0, "groups"_a = 1, "transposed"_a = false, "output_padding"_a = 0,
                  "residual_grid"_a = nb::none(), "rounding"_a = "nearest_even", "name"_a = "layer",
                  "path"_a = nb::none(), kFromCodesDoc)
      .def_static("quantize", &conv_of_floats, "weights"_a, nb::kw_only(), "input_grid"_a, "output_grid"_a = nb::none(),
                  "bias"_a = nb::none(), "clamp"_a = nb::none(), "stride"_a = 1, "dilation"_a = 1, "padding"_a = 0,
                  "groups"_a = 1, "transposed"_a = false, "output_padding"_a = 0, "residual_grid"_a = nb::none(),
                  "weight_bits"_a = 8, "method"_a = "absmax", "rounding"_a = "nearest_even", "name"_a = "layer",
                  "path"_a = nb::none(), kQuantizeDoc)
      .def_static(
          "load",
          [](const Path& path, const std::string& name) {
            const nb::gil_scoped_release release;
            return std::make_unique<StaticConv>(take(StaticConvLayer::load(path.text, name)));
          },
          "path"_a, "name"_a = "", "A layer that save() wrote. name: of a file with several.")
      .def_static("load_all", &load_all, "path"_a, "All layers of a file, in its order.")
      .def_static("save_all", &save_all, "path"_a, "layers"_a, "Several layers in a file; their names must differ.")
      .def(
          "save",
          [](const StaticConv& self, const Path& path) {
            const nb::gil_scoped_release release;
            check(self.save(path.text));
          },
          "path"_a)
      .def_prop_ro("name", &StaticConv::name)
      .def_prop_ro("path", [](const StaticConv& self) { return std::string(to_string(self.path())); })
      .def_prop_ro("input_grid", [](const StaticConv& self) { return grid_dict(self.parameters().linear.input); })
      .def_prop_ro("output_grid", [](const StaticConv& self) { return optional_dict(self.parameters().linear.output); })
      .def_prop_ro("residual_grid",
                   [](const StaticConv& self) -> std::optional<Facts> {
                     if (!self.parameters().residual) return std::nullopt;
                     return grid_dict(self.parameters().residual->grid);
                   })
      .def(
          "output_shape",
          [](const StaticConv& self, const Pair& image) {
            return pair_of(take(conv_output_size(self.parameters().shape, size_of(image), self.name())));
          },
          "image"_a, "(P, Q) of images (H, W).")
      .def("__call__", &run_conv_floats, "x"_a, "residual"_a = nb::none(), nb::kw_only(), "out"_a = nb::none(),
           "pool"_a.none() = nb::none(),
           "The same of numbers, float32: quantised on input_grid and residual_grid, dequantised from output_grid.")
      .def("run_codes", &run_conv, "x"_a, "residual"_a = nb::none(), nb::kw_only(), "out"_a = nb::none(),
           "pool"_a.none() = nb::none(), kRunDoc);
  bind_streams(m);
  bind_pool(m);
}

}  // namespace isobit::python
