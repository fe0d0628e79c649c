// SPDX-License-Identifier: Apache-2.0
// isobit conv: a convolution of floating-point images on low-bit weights, numerics.md sections 10 to 12.
#include "isobit/conv.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "isobit/pack.h"
#include "isobit/parallel.h"
#include "models.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr size_t kToNhwc[] = {0, 2, 3, 1}, kToNchw[] = {0, 3, 1, 2};

/// One number for all of N, two for rows and columns, or four.
template <size_t N>
Status spread(const std::string& option, const std::vector<int64_t>& values, int64_t low, std::array<int64_t, N>& out) {
  const size_t given = values.size();
  if (given != 1 && given != 2 && given != N)
    return bad_option(option + " " + list_text(values) + ": expected 1, 2 " + (N > 2 ? "or 4 " : "") + "numbers");
  for (const int64_t value : values) ISOBIT_RETURN_IF_ERROR(check_range(option, value, low, INT32_MAX));
  for (size_t i = 0; i < N; ++i) out[i] = values[i * given / N];
  return {};
}

/// Of a matrix of isobit pack, or of floats that become one.
Result<LayerWeights> load_conv_weights(const ConvOptions& options, const isobit::PackOptions& form, ThreadPool& pool) {
  const auto [path, name] = split_weights(options.weights);
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  if (file.kind() == FileKind::kLowBit) {
    if (options.form != FormOptions())
      return bad_option(path +
                        ": holds low-bit weights; --bits, --group, --kind, --method, --scales and "
                        "--weight-layout are for floats");
    ISOBIT_ASSIGN_OR_RETURN(LayerWeights weights, load_weights(file, name, options.bias));
    if (weights.convolution) return weights;
    return bad_option(path + ": '" + escaped(weights.name) +
                      "' is no weights of a convolution; isobit pack --weight-layout makes such of 4 dimensions");
  }
  if (!form.conv_layout)
    return bad_option(path + ": holds no low-bit weights; of floats --weight-layout must say oihw, ohwi or iohw");
  if (name.empty() && file.entries().size() != 1)
    return bad_option(path + ": holds " + std::to_string(file.entries().size()) + " arrays; name one, FILE:TENSOR");
  const std::string tensor = name.empty() ? file.entries().front().name : name;
  ISOBIT_ASSIGN_OR_RETURN(const Array floats, file.read(tensor));
  ISOBIT_ASSIGN_OR_RETURN(PackedConv packed, pack_conv(floats, form, array_label(path, tensor), &pool));
  LayerWeights out{tensor.empty() ? path : tensor, std::move(packed.matrix)};
  out.convolution = packed.convolution;
  if (options.bias.empty()) return out;
  ISOBIT_ASSIGN_OR_RETURN(const Array bias, prefixed("--bias " + options.bias + ": ", file.read(options.bias)));
  out.bias = bias.to_float();
  return out;
}

Result<ConvAttributes> attributes_of(const ConvOptions& options, const ConvWeights& weights) {
  const int64_t known = weights.transposed_groups;
  if (known > 0 && options.groups.value_or(known) != known)
    return bad_option("--groups " + std::to_string(*options.groups) + ": expected " + std::to_string(known) +
                      ", which the weights were packed with");
  ConvAttributes out{.groups = options.groups.value_or(std::max<int64_t>(known, 1)),
                     .transposed = options.transposed || known > 0};
  ISOBIT_RETURN_IF_ERROR(spread("--stride", options.stride, 1, out.stride));
  ISOBIT_RETURN_IF_ERROR(spread("--dilation", options.dilation, 1, out.dilation));
  ISOBIT_RETURN_IF_ERROR(spread("--padding", options.padding, 0, out.padding));
  ISOBIT_RETURN_IF_ERROR(spread("--output-padding", options.output_padding, 0, out.output_padding));
  return out;
}

}  // namespace

Result<Outcome> conv(const ConvOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_layer(options));
  ISOBIT_ASSIGN_OR_RETURN(const auto activations,
                          parse_word("--activations", options.activations, conv_activations_from_string,
                                     {"float", "int8", "int8_asymmetric", "int8_per_image"}));
  ISOBIT_ASSIGN_OR_RETURN(const bool nchw, parse_second("--layout", options.layout, "nhwc", "nchw"));
  ISOBIT_ASSIGN_OR_RETURN(const LinearClamp clamp, parse_clamp(options.clamp));
  ISOBIT_ASSIGN_OR_RETURN(const auto path, parse_kernel(options.kernel));
  ISOBIT_ASSIGN_OR_RETURN(isobit::PackOptions form, parse_form(options.form));
  if (form.conv_layout == ConvLayout::kIohw) form.conv_groups = options.groups;
  ThreadPool pool(options.threads);
  ISOBIT_ASSIGN_OR_RETURN(const LayerWeights weights, load_conv_weights(options, form, pool));
  ISOBIT_ASSIGN_OR_RETURN(const ConvAttributes attributes, attributes_of(options, *weights.convolution));
  ISOBIT_ASSIGN_OR_RETURN(const ConvShape shape, conv_shape_of(*weights.convolution, attributes, weights.name));
  ISOBIT_ASSIGN_OR_RETURN(
      const ConvLayer layer,
      ConvLayer::create(shape, weights.matrix,
                        {.activations = activations, .bias = weights.bias, .clamp = clamp, .path = path},
                        weights.name));
  Outcome out;
  std::string label;
  ISOBIT_ASSIGN_OR_RETURN(Array x, load_x(options, label, out.warnings));
  const std::vector<int64_t> given = x.shape;
  if (given.size() != 4 || given[nchw ? 1 : 3] != shape.channels)
    return bad_option(label + " has the shape " + list_text(given) + "; expected " +
                      (nchw ? "[B, C, H, W]" : "[B, H, W, C]") + " with C = " + std::to_string(shape.channels) +
                      (shape.groups > 1 ? ", in " + std::to_string(shape.groups) + " groups" : ""));
  if (nchw) x = reordered(x, kToNhwc);
  const ImageSize image{x.shape[1], x.shape[2]};
  ISOBIT_ASSIGN_OR_RETURN(const ImageSize size, conv_output_size(shape, image, weights.name));
  ISOBIT_ASSIGN_OR_RETURN(Workspace workspace, layer.workspace(x.shape[0], image, pool.threads()));
  Array y = Array::zeros(y_dtype_of(x), {x.shape[0], size.rows, size.columns, shape.outputs});
  ISOBIT_RETURN_IF_ERROR(prefixed(
      label + ": ", layer.forward(x.bytes, x.dtype, y.bytes, y.dtype, x.shape[0], image, workspace, {.pool = &pool})));
  if (nchw) y = reordered(y, kToNchw);
  ISOBIT_RETURN_IF_ERROR(save_npy(options.output, y));
  x.shape = given;
  describe_layer(options, weights, std::string(to_string(layer.path())), "", x, y, out);
  out.json.set("kernel_size", std::vector<int64_t>{shape.rows.kernel, shape.columns.kernel});
  out.json.set("groups", shape.groups).set("transposed", shape.transposed).set("layout", options.layout);
  out.text += options.output + ": " + list_text(y.shape) + ", " + std::string(to_string(y.dtype)) + "\n";
  return out;
}

}  // namespace isobit::tool
