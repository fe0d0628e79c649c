// SPDX-License-Identifier: Apache-2.0
// isobit matmul: a linear layer of saved low-bit weights, numerics.md sections 10 to 12.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "data.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "isobit/nearest.h"
#include "isobit/parallel.h"
#include "low_bit.h"
#include "models.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

struct Weights {
  std::string name;
  LowBitMatrix matrix;
  std::vector<int32_t> permutation;
  std::vector<float> bias;
};

/// FILE or FILE:TENSOR; a path may hold colons, a name too.
/// FILE and TENSOR, which may be empty.
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
      return invalid(options.weights + ": holds " + std::to_string(file.matrices.size()) +
                     " matrices; name one, FILE:TENSOR");
    tensor = file.matrices.begin()->first;
  }
  const auto found = file.matrices.find(tensor);
  if (found == file.matrices.end())
    return invalid(path + ": no matrix is called '" + escaped(tensor) + "'; isobit inspect lists them" +
                   nearest_key(tensor, file.matrices));
  Weights out{tensor, found->second, low_bit_permutation(file, tensor), {}};
  if (options.bias.empty()) return out;
  const auto bias = file.arrays.find(options.bias);
  if (bias == file.arrays.end())
    return invalid("--bias " + options.bias + ": " + path + " holds no such array; isobit inspect lists them" +
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
  return invalid("--clamp " + text + ": expected none, relu, relu6 or LOW:HIGH, two numbers");
}

/// 8-bit activations have no code for NaN and infinity.
Status check_finite(const Array& x, const std::string& label, const std::string& activations) {
  const std::vector<float> values = x.to_float();
  const auto bad = std::find_if_not(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  if (bad == values.end()) return {};
  const int64_t columns = x.shape.back(), index = bad - values.begin();
  return invalid(label + ": value " + (std::isnan(*bad) ? "nan" : "inf") + " in row " +
                 std::to_string(index / columns) + ", column " + std::to_string(index % columns) + "; --activations " +
                 activations + " takes finite values only");
}

/// Columns of x in the order of the matrix's.
void permute(Array& x, std::span<const int32_t> permutation) {
  if (permutation.empty()) return;
  const size_t size = size_in_bytes(x.dtype), columns = permutation.size();
  std::vector<std::byte> row(columns * size);
  for (size_t begin = 0; begin < x.bytes.size(); begin += row.size()) {
    for (size_t j = 0; j < columns; ++j)
      std::copy_n(x.bytes.begin() + static_cast<ptrdiff_t>(begin + static_cast<size_t>(permutation[j]) * size), size,
                  row.begin() + static_cast<ptrdiff_t>(j * size));
    std::copy(row.begin(), row.end(), x.bytes.begin() + static_cast<ptrdiff_t>(begin));
  }
}

class Product {
 public:
  Product(const MatmulOptions& options, const Weights& weights, const LinearClamp& clamp, std::optional<CpuPath> path)
      : options_(options), weights_(weights), clamp_(clamp), path_(path), pool_(options.threads) {
    run_.pool = &pool_;
  }

  Result<Array> floats(const Array& x, LinearActivations activations) {
    const LinearOptions options{.activations = activations, .bias = weights_.bias, .clamp = clamp_, .path = path_};
    ISOBIT_ASSIGN_OR_RETURN(const LinearLayer layer, LinearLayer::create(weights_.matrix, options, weights_.name));
    kernel_ = layer.kernel_name();
    const Dtype y_dtype = x.dtype == Dtype::kF64 ? Dtype::kF32 : x.dtype;
    Array y = Array::zeros(y_dtype, shape_of_y(x));
    const int64_t m = rows_of(x);
    LinearWorkspace workspace = layer.workspace(m, pool_.threads());
    const Status status = layer.forward(x.bytes, x.dtype, y.bytes, y_dtype, m, workspace, run_);
    if (!status.ok()) return Status(status.code(), options_.input + ": " + status.message());
    return y;
  }

  /// Grids have general scales, and the ranges of the data where none are given.
  Result<Array> statics(const Array& x) {
    const std::vector<float> values = x.to_float();
    StaticLinearOptions options{.bias = weights_.bias};
    ISOBIT_ASSIGN_OR_RETURN(options.input, grid("--input-range", options_.input_range, values, "X"));
    Array codes = Array::zeros(options.input.dtype(), x.shape);
    ISOBIT_RETURN_IF_ERROR(isobit::quantize(options.input, values, codes.bytes.data(), "X"));
    clipped_ = count_clipped(options.input, values);
    std::vector<float> results;
    if (options_.output_range.empty()) {  // from the accumulators, which are exact: the same grid on every machine
      ISOBIT_ASSIGN_OR_RETURN(results, accumulators(codes, options));
    }
    ISOBIT_ASSIGN_OR_RETURN(options.output, grid("--output-range", options_.output_range, results, "the result"));
    options.clamp = clamp_;
    ISOBIT_ASSIGN_OR_RETURN(const Array y, forward(codes, options));
    input_ = options.input;
    output_ = *options.output;
    if (options_.codes) return y;
    Array out = Array::zeros(Dtype::kF32, y.shape);
    isobit::dequantize(output_, y.bytes.data(), {out.data<float>(), static_cast<size_t>(out.size())});
    return out;
  }

  void describe(const Array& x, const Array& y, Outcome& out) const {
    out.json.set("weights", options_.weights).set("matrix", weights_.name).set("rows", weights_.matrix.rows());
    out.json.set("columns", weights_.matrix.columns());
    set_form(weights_.matrix.parameters(), out.json);
    out.json.set("activations", options_.activations).set("kernel", kernel_).set("clamp", options_.clamp);
    out.json.set("input", options_.input).set("input_shape", shape_json(x.shape));
    out.json.set("output", options_.output).set("output_shape", shape_json(y.shape));
    out.json.set("dtype", to_string(y.dtype));
    const bool is_static = options_.activations == "static";
    out.json.set("input_grid", is_static ? grid_json(input_) : Value());
    out.json.set("output_grid", is_static ? grid_json(output_) : Value());
    out.text = escaped(weights_.name) + ": " +
               shape_text(std::vector<int64_t>{weights_.matrix.rows(), weights_.matrix.columns()}) + ", " +
               form_text(weights_.matrix.parameters()) + "; activations " + options_.activations + ", kernel " +
               std::string(kernel_) + "\n";
    if (is_static) {
      out.text += "x: " + grid_text(input_) + "\ny: " + grid_text(output_) + "\n";
      describe_clipping(clipped_, x.size(), input_, options_.input, "an --input-range that is not that of X", out);
    }
    out.text += options_.output + ": " + shape_text(y.shape) + ", " + std::string(to_string(y.dtype)) + "\n";
  }

 private:
  [[nodiscard]] int64_t rows_of(const Array& x) const { return x.size() / weights_.matrix.columns(); }
  [[nodiscard]] std::vector<int64_t> shape_of_y(const Array& x) const {
    std::vector<int64_t> shape = x.shape;
    shape.back() = weights_.matrix.rows();
    return shape;
  }

  static Result<Grid> grid(const char* option, const std::string& range, const std::vector<float>& values,
                           const std::string& what) {
    float low = 0, high = 0;
    if (!range.empty()) {
      if (!parse_range(range, low, high)) return invalid(std::string(option) + " " + range + ": expected LOW:HIGH");
    } else if (!values.empty()) {
      const auto bad = std::find_if_not(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
      if (bad != values.end())
        return invalid(what + " is not finite at flat index " + std::to_string(bad - values.begin()) +
                       "; it has no grid");
      low = *std::min_element(values.begin(), values.end());
      high = *std::max_element(values.begin(), values.end());
    }
    return derive_grid(low, high, {}, ScaleKind::kReal, 255, what);
  }

  Result<Array> forward(const Array& codes, const StaticLinearOptions& options) {
    ISOBIT_ASSIGN_OR_RETURN(StaticLinearParameters parameters,
                            derive_static_linear(weights_.matrix, options, weights_.name));
    const Dtype y_dtype = parameters.y_dtype;
    ISOBIT_ASSIGN_OR_RETURN(const StaticLinearLayer layer,
                            StaticLinearLayer::create(std::move(parameters), weights_.name, path_));
    kernel_ = layer.kernel_name();
    Array y = Array::zeros(y_dtype, shape_of_y(codes));
    const int64_t m = rows_of(codes);
    LinearWorkspace workspace = layer.workspace(m, pool_.threads());
    ISOBIT_RETURN_IF_ERROR(layer.forward(codes.bytes, y.bytes, m, workspace, run_));
    return y;
  }

  /// The clamped results as real numbers, rounded to float32.
  Result<std::vector<float>> accumulators(const Array& codes, const StaticLinearOptions& options) {
    ISOBIT_ASSIGN_OR_RETURN(const Array sums, forward(codes, options));
    std::vector<float> out(static_cast<size_t>(sums.size()));
    const int64_t n = weights_.matrix.rows();
    float smallest = std::numeric_limits<float>::infinity();  // the scale of rows of zeros, which may have a bias
    for (int64_t i = 0; i < n; ++i)
      if (const float scale = weights_.matrix.scale(i, 0); scale > 0) smallest = std::min(smallest, scale);
    if (std::isinf(smallest)) smallest = 1;
    for (int64_t i = 0; i < sums.size(); ++i) {
      const float own = weights_.matrix.scale(i % n, 0);
      const double scale = static_cast<double>(options.input.scale()) * static_cast<double>(own > 0 ? own : smallest);
      const auto value = static_cast<float>(scale * sums.data<int32_t>()[i]);
      out[static_cast<size_t>(i)] = value < clamp_.lo ? clamp_.lo : value > clamp_.hi ? clamp_.hi : value;
    }
    return out;
  }

  const MatmulOptions& options_;
  const Weights& weights_;
  const LinearClamp clamp_;
  const std::optional<CpuPath> path_;
  ThreadPool pool_;
  LinearRunOptions run_;
  std::string_view kernel_;
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
    return invalid("--activations " + options.activations + ": " +
                   expected_one_of(options.activations, {"float", "int8", "int8_asymmetric", "static"}));
  if (!is_static && (options.codes || !options.input_range.empty() || !options.output_range.empty()))
    return invalid("--codes, --input-range and --output-range are for --activations static, not " +
                   options.activations);
  return {};
}

std::string_view operation_of(const std::string& activations) {
  return activations == "float" ? "linear_float" : activations == "static" ? "linear_static" : "linear_int8";
}

}  // namespace

Result<Outcome> matmul(const MatmulOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_options(options));
  ISOBIT_ASSIGN_OR_RETURN(const LinearClamp clamp, parse_clamp(options.clamp));
  ISOBIT_ASSIGN_OR_RETURN(const auto path, parse_linear_kernel(options.kernel, operation_of(options.activations)));
  ISOBIT_ASSIGN_OR_RETURN(const Weights weights, load_weights(options));
  Outcome out;
  ISOBIT_ASSIGN_OR_RETURN(ArrayFile file, load_data(options.input, out.warnings));
  if (file.arrays.size() != 1)
    return invalid(options.input + ": holds " + std::to_string(file.arrays.size()) + " arrays; expected one, X");
  const std::string label = array_label(options.input, file.arrays.begin()->first);
  Array x = std::move(file.arrays.begin()->second);
  if (!is_float(x.dtype)) return invalid(label + " is " + std::string(to_string(x.dtype)) + "; expected floats");
  if (x.dtype == Dtype::kBF16 && options.activations != "static")
    return invalid(label + " is bf16, and y has the type of X; " + options.output +
                   " is npy, which has no bf16: convert X to f32 or f16");
  if (x.shape.empty() || x.shape.back() != weights.matrix.columns())
    return invalid(label + " has the shape " + shape_text(x.shape) +
                   "; its last dimension must be K = " + std::to_string(weights.matrix.columns()));
  if (options.activations != "float") ISOBIT_RETURN_IF_ERROR(check_finite(x, label, options.activations));
  permute(x, weights.permutation);
  if (x.dtype == Dtype::kF64 && options.activations == "float") x = Array::copy_of(x.to_float().data(), x.shape);
  Product product(options, weights, clamp, path);
  const auto activations = linear_activations_from_string(options.activations);
  ISOBIT_ASSIGN_OR_RETURN(const Array y, activations ? product.floats(x, *activations) : product.statics(x));
  ISOBIT_RETURN_IF_ERROR(save_npy(options.output, y));
  product.describe(x, y, out);
  return out;
}

}  // namespace isobit::tool
