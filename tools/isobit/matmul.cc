// SPDX-License-Identifier: Apache-2.0
// isobit matmul: a linear layer of saved low-bit weights, numerics.md sections 10 to 12.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "device.h"
#include "isobit/files.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "isobit/nearest.h"
#include "isobit/parallel.h"
#include "isobit/report.h"
#include "isobit/sequences.h"
#include "models.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

struct Weights {
  std::string name;
  LowBitMatrix matrix;
  std::vector<int32_t> permutation;
  std::vector<float> bias;
};

std::string_view operation_of(const std::string& activations) {
  return activations == "float" ? "linear_float" : activations == "static" ? "linear_static" : "linear_int8";
}

/// nearest_hint() among the keys of a map.
template <typename Map>
std::string nearest_key(const std::string& name, const Map& map) {
  std::vector<std::string_view> names;
  names.reserve(map.size());
  for (const auto& [key, value] : map) names.push_back(key);
  return escaped(nearest_hint(name, names));
}

/// FILE and TENSOR, which may be empty, of FILE or FILE:TENSOR; a path may hold colons, a name too.
std::pair<std::string, std::string> split_weights(const std::string& weights) {
  std::error_code error;
  std::string path = weights, tensor;
  for (size_t colon = path.rfind(':'); colon != std::string::npos && !std::filesystem::exists(path, error);
       colon = path.rfind(':')) {
    tensor = weights.substr(colon + 1);
    path.resize(colon);
  }
  return {path, tensor};
}

Result<Weights> load_weights(const MatmulOptions& options) {
  auto [path, tensor] = split_weights(options.weights);
  ISOBIT_ASSIGN_OR_RETURN(LowBitFile file, load_low_bit(path));
  if (tensor.empty()) {
    if (file.matrices.size() != 1)
      return bad_option(options.weights + ": holds " + std::to_string(file.matrices.size()) +
                        " matrices; name one, FILE:TENSOR");
    tensor = file.matrices.begin()->first;
  }
  const auto found = file.matrices.find(tensor);
  if (found == file.matrices.end())
    return bad_option(path + ": no matrix is called '" + escaped(tensor) + "'; isobit inspect lists them" +
                      nearest_key(tensor, file.matrices));
  Weights out{tensor, found->second, low_bit_permutation(file, tensor), {}};
  if (options.bias.empty()) return out;
  const auto bias = file.arrays.find(options.bias);
  if (bias == file.arrays.end())
    return bad_option("--bias " + options.bias + ": " + path + " holds no such array; isobit inspect lists them" +
                      nearest_key(options.bias, file.arrays));
  out.bias = bias->second.to_float();
  return out;
}

Result<LinearClamp> parse_clamp(const std::string& text) {
  LinearClamp clamp;
  if (text == "none") return clamp;
  if (text == "relu") return LinearClamp::relu();
  if (text == "relu6") return LinearClamp::relu6();
  if (parse_range(text, clamp.lo, clamp.hi)) return clamp;
  return bad_option("--clamp " + text + ": expected none, relu, relu6 or LOW:HIGH, two numbers");
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

/// LOW:HIGH of an option; empty: not given.
Result<std::optional<std::pair<float, float>>> parse_range_option(const char* option, const std::string& text) {
  std::pair<float, float> range;
  if (text.empty()) return std::optional<std::pair<float, float>>();
  if (!parse_range(text, range.first, range.second))
    return bad_option(std::string(option) + " " + text + ": expected LOW:HIGH");
  return std::optional(range);
}

class Product {
 public:
  /// `device`: null for the CPU, which then takes `path`.
  Product(const MatmulOptions& options, const Weights& weights, const LinearClamp& clamp, std::optional<CpuPath> path,
          const Device* device)
      : options_(options), weights_(weights), clamp_(clamp), path_(path), device_(device), pool_(options.threads) {
    run_.pool = &pool_;
  }

  Result<Array> floats(const Array& x, LinearActivations activations) {
    const LinearOptions options{.activations = activations, .bias = weights_.bias, .clamp = clamp_, .path = path_};
    const Dtype y_dtype = x.dtype == Dtype::kF64 ? Dtype::kF32 : x.dtype;
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
    ISOBIT_ASSIGN_OR_RETURN(ranges.x, parse_range_option("--input-range", options_.input_range));
    ISOBIT_ASSIGN_OR_RETURN(ranges.y, parse_range_option("--output-range", options_.output_range));
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
    out.json.set("weights", options_.weights).set("matrix", weights_.name).set("rows", weights_.matrix.rows());
    out.json.set("columns", weights_.matrix.columns());
    const LowBitParameters& p = weights_.matrix.parameters();
    out.json.set("bits", p.bits).set("kind", to_string(p.kind)).set("group", p.group);
    out.json.set("scales", to_string(p.scales.dtype));
    out.json.set("activations", options_.activations).set("kernel", kernel_).set("clamp", options_.clamp);
    out.json.set("input", options_.input).set("input_shape", x.shape);
    out.json.set("output", options_.output).set("output_shape", y.shape);
    out.json.set("dtype", to_string(y.dtype));
    const bool is_static = options_.activations == "static";
    if (device_ != nullptr) out.json.set("device", options_.device);
    out.json.set("input_grid", is_static ? Value::parsed(grid_json(input_)) : Value());
    out.json.set("output_grid", is_static ? Value::parsed(grid_json(output_)) : Value());
    out.text = escaped(weights_.name) + ": " +
               list_text(std::vector<int64_t>{weights_.matrix.rows(), weights_.matrix.columns()}) + ", " +
               form_text(weights_.matrix.parameters()) + "; activations " + options_.activations + ", kernel " +
               kernel_ + (device_ != nullptr ? " on " + device_->text() : "") + "\n";
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
  const Weights& weights_;
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
  ISOBIT_RETURN_IF_ERROR(check_threads(options.threads));
  FileClaims files;
  ISOBIT_RETURN_IF_ERROR(check_output(options.output, "-o", OutputKind::kArray, files));
  ISOBIT_RETURN_IF_ERROR(files.reads(split_weights(options.weights).first, "WEIGHTS"));
  ISOBIT_RETURN_IF_ERROR(files.reads(options.input, "X"));
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
  ISOBIT_ASSIGN_OR_RETURN(const Weights weights, load_weights(options));
  Outcome out;
  ISOBIT_ASSIGN_OR_RETURN(ArrayFile file, load_data(options.input, out.warnings));
  if (file.arrays.size() != 1)
    return bad_option(options.input + ": holds " + std::to_string(file.arrays.size()) + " arrays; expected one, X");
  const std::string label = array_label(options.input, file.arrays.begin()->first);
  Array x = std::move(file.arrays.begin()->second);
  if (!is_float(x.dtype)) return bad_option(label + " is " + std::string(to_string(x.dtype)) + "; expected floats");
  if (x.dtype == Dtype::kBF16 && options.activations != "static")
    return bad_option(label + " is bf16, and y has the type of X; " + options.output +
                      " is npy, which has no bf16: convert X to f32 or f16");
  if (x.shape.empty() || x.shape.back() != weights.matrix.columns())
    return bad_option(label + " has the shape " + list_text(x.shape) +
                      "; its last dimension must be K = " + std::to_string(weights.matrix.columns()));
  if (options.activations != "float") ISOBIT_RETURN_IF_ERROR(check_finite(x, label, options.activations));
  ISOBIT_RETURN_IF_ERROR(permute_columns(x, weights.permutation));
  if (x.dtype == Dtype::kF64 && options.activations == "float") x = Array::copy_of(x.to_float().data(), x.shape);
  Product product(options, weights, clamp, path, device.get());
  const auto activations = linear_activations_from_string(options.activations);
  ISOBIT_ASSIGN_OR_RETURN(const Array y, activations ? product.floats(x, *activations) : product.statics(x));
  ISOBIT_RETURN_IF_ERROR(save_npy(options.output, y));
  product.describe(x, y, out);
  return out;
}

}  // namespace isobit::tool
