// SPDX-License-Identifier: Apache-2.0
// isobit matmul: a linear layer of saved low-bit weights, numerics.md sections 10 to 12.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "isobit/nearest.h"
#include "isobit/parallel.h"
#include "isobit/report.h"
#include "models.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

std::string_view operation_of(const std::string& activations) {
  return activations == "float" ? "linear_float" : activations == "static" ? "linear_static" : "linear_int8";
}

/// 8-bit activations have no code for NaN and infinity.
Status check_finite(const Array& x, const std::string& label, const std::string& activations) {
  const std::vector<float> values = x.to_float();
  const auto bad = std::find_if_not(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  if (bad == values.end()) return {};
  const int64_t columns = x.shape.back(), index = bad - values.begin();
  return bad_option(label + ": value " + (std::isnan(*bad) ? "nan" : "inf") + " in row " +
                    std::to_string(index / columns) + ", column " + std::to_string(index % columns) +
                    "; --activations " + activations + " takes finite values only");
}

class Product {
 public:
  /// `device`: null for the CPU, which then takes `path`.
  Product(const MatmulOptions& options, const LayerWeights& weights, const LinearClamp& clamp,
          std::optional<CpuPath> path, const Device* device)
      : options_(options), weights_(weights), clamp_(clamp), path_(path), device_(device), pool_(options.threads) {
    run_.pool = &pool_;
  }

  Result<Array> floats(const Array& x, LinearActivations activations) {
    const LinearOptions options{.activations = activations, .bias = weights_.bias, .clamp = clamp_, .path = path_};
    const Dtype y_dtype = y_dtype_of(x);
    Array y = Array::zeros(y_dtype, shape_of_y(x));
    const int64_t m = rows_of(x);
    if (device_ != nullptr) {
      ISOBIT_ASSIGN_OR_RETURN(
          kernel_, device_->forward(weights_.matrix, options, weights_.name, x.bytes, x.dtype, y.bytes, y_dtype, m));
      return y;
    }
    ISOBIT_ASSIGN_OR_RETURN(const LinearLayer layer, LinearLayer::create(weights_.matrix, options, weights_.name));
    kernel_ = layer.kernel_name();
    Workspace workspace = layer.workspace(m, pool_.threads());
    ISOBIT_RETURN_IF_ERROR(
        prefixed(options_.input + ": ", layer.forward(x.bytes, x.dtype, y.bytes, y_dtype, m, workspace, run_)));
    return y;
  }

  Result<Array> statics(const Array& x) {
    StaticLinearRanges ranges;
    ISOBIT_ASSIGN_OR_RETURN(ranges.x, parse_range("--input-range", options_.input_range));
    ISOBIT_ASSIGN_OR_RETURN(ranges.y, parse_range("--output-range", options_.output_range));
    const std::vector<float> values = x.to_float();
    ISOBIT_ASSIGN_OR_RETURN(const StaticLinearOptions options,
                            choose_static_grids(weights_.matrix, values, {.bias = weights_.bias, .clamp = clamp_},
                                                ranges, weights_.name, &pool_));
    input_ = options.input;
    output_ = *options.output;
    clipped_ = count_clipped(input_, values);
    ISOBIT_ASSIGN_OR_RETURN(StaticLinearParameters parameters,
                            derive_static_linear(weights_.matrix, options, weights_.name));
    ISOBIT_ASSIGN_OR_RETURN(const StaticLinearLayer layer,
                            StaticLinearLayer::create(std::move(parameters), weights_.name, path_));
    Array codes = Array::zeros(input_.dtype(), x.shape), y = Array::zeros(output_.dtype(), shape_of_y(x));
    ISOBIT_RETURN_IF_ERROR(isobit::quantize(input_, values, codes.bytes.data(), "X"));
    const int64_t m = rows_of(x);
    Workspace workspace = layer.workspace(m, pool_.threads());
    if (device_ != nullptr) {
      ISOBIT_ASSIGN_OR_RETURN(kernel_, device_->forward(layer, codes.bytes, y.bytes, m));
    } else {
      ISOBIT_RETURN_IF_ERROR(layer.forward_codes(codes.bytes, y.bytes, m, workspace, run_));
      kernel_ = layer.kernel_name();
    }
    if (options_.codes) return y;
    Array out = Array::zeros(Dtype::kF32, y.shape);
    isobit::dequantize(output_, y.bytes.data(), {out.data<float>(), static_cast<size_t>(out.size())});
    return out;
  }

  void describe(const Array& x, const Array& y, Outcome& out) const {
    describe_layer(options_, weights_, kernel_, device_ != nullptr ? " on " + device_->text() : "", x, y, out);
    const bool is_static = options_.activations == "static";
    if (device_ != nullptr) out.json.set("device", options_.device);
    out.json.set("input_grid", is_static ? Value::parsed(grid_json(input_)) : Value());
    out.json.set("output_grid", is_static ? Value::parsed(grid_json(output_)) : Value());
    if (is_static) {
      out.text += "x: " + grid_text(input_) + "\ny: " + grid_text(output_) + "\n";
      out.add(
          describe_clipping({clipped_, x.size()}, input_, options_.input, "an --input-range that is not that of X"));
    }
    out.text += options_.output + ": " + list_text(y.shape) + ", " + std::string(to_string(y.dtype)) + "\n";
  }

 private:
  [[nodiscard]] int64_t rows_of(const Array& x) const { return x.size() / weights_.matrix.columns(); }
  [[nodiscard]] std::vector<int64_t> shape_of_y(const Array& x) const {
    std::vector<int64_t> shape = x.shape;
    shape.back() = weights_.matrix.rows();
    return shape;
  }

  const MatmulOptions& options_;
  const LayerWeights& weights_;
  const LinearClamp clamp_;
  const std::optional<CpuPath> path_;
  const Device* device_;
  ThreadPool pool_;
  isobit::RunOptions run_;
  std::string kernel_;
  Grid input_, output_;
  int64_t clipped_ = 0;  // static: values of x beyond the input grid
};

Status check_options(const MatmulOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_layer(options));
  const bool is_static = options.activations == "static";
  if (!is_static && !linear_activations_from_string(options.activations))
    return bad_option("--activations " + options.activations + ": " +
                      expected_one_of(options.activations, {"float", "int8", "int8_asymmetric", "static"}));
  if (!is_static && (options.codes || !options.input_range.empty() || !options.output_range.empty()))
    return bad_option("--codes, --input-range and --output-range are for --activations static, not " +
                      options.activations);
  return {};
}

}  // namespace

Result<Outcome> matmul(const MatmulOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_options(options));
  ISOBIT_ASSIGN_OR_RETURN(const LinearClamp clamp, parse_clamp(options.clamp));
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device, options.threads));
  if (device && !options.kernel.empty())
    return refuse_on_device(options.device, "--kernel " + options.kernel, "the device chooses by the number of rows");
  ISOBIT_ASSIGN_OR_RETURN(const auto path, parse_linear_kernel(options.kernel, operation_of(options.activations)));
  const auto [weights_path, tensor] = split_weights(options.weights);
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(weights_path));
  ISOBIT_ASSIGN_OR_RETURN(const LayerWeights weights, load_weights(file, tensor, options.bias));
  Outcome out;
  std::string label;
  ISOBIT_ASSIGN_OR_RETURN(Array x, load_x(options, label, out.warnings));
  if (x.shape.empty() || x.shape.back() != weights.matrix.columns())
    return bad_option(label + " has the shape " + list_text(x.shape) +
                      "; its last dimension must be K = " + std::to_string(weights.matrix.columns()));
  if (options.activations != "float") ISOBIT_RETURN_IF_ERROR(check_finite(x, label, options.activations));
  ISOBIT_RETURN_IF_ERROR(permute_columns(x, weights.permutation));
  Product product(options, weights, clamp, path, device.get());
  const auto activations = linear_activations_from_string(options.activations);
  ISOBIT_ASSIGN_OR_RETURN(const Array y, activations ? product.floats(x, *activations) : product.statics(x));
  ISOBIT_RETURN_IF_ERROR(save_npy(options.output, y));
  product.describe(x, y, out);
  return out;
}

}  // namespace isobit::tool
