// SPDX-License-Identifier: Apache-2.0
// DeviceLinear: what is checked, and the launches.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/upload.h"
#include "core/run_options.h"
#include "isobit/cuda/linear.h"
#include "linear/cuda/arguments.h"
#include "linear/cuda/image.h"
#include "linear/cuda/plan.h"
#include "linear/cuda/rows.h"
#include "linear/cuda/steps.h"
#include "linear/int8/int8.h"
#include "linear/layer_parts.h"

namespace isobit::cuda {
namespace {

RowsKind rows_kind(LinearActivations activations, Dtype x) {
  if (activations != LinearActivations::kFloat) return RowsKind::kCodes;
  return x == Dtype::kF16 ? RowsKind::kF16 : x == Dtype::kBF16 ? RowsKind::kBF16 : RowsKind::kF32;
}

}  // namespace

struct DeviceLinear::Data {
  LinearDevice device;
  ImageLayout image;
  LowBitKind kind = LowBitKind::kSymmetric;
  int32_t zero_point = 0, code_factor = 1;
  LinearActivations activations = LinearActivations::kFloat;
  LinearClamp clamp;
  std::shared_ptr<const std::byte> memory;
  const uint8_t* codes = nullptr;
  const uint8_t* parameters = nullptr;
  const float* bias = nullptr;

  [[nodiscard]] bool quantises() const { return activations != LinearActivations::kFloat; }
  [[nodiscard]] bool asymmetric() const { return activations == LinearActivations::kInt8Asymmetric; }
  /// Whether more is needed than scales and one zero point for all.
  [[nodiscard]] bool general() const { return kind != LowBitKind::kSymmetric || asymmetric(); }
  [[nodiscard]] LinearPlan plan(RowsKind rows, int64_t m) const {
    return plan_linear(device, image, rows, m, quantises() ? asymmetric() : kind != LowBitKind::kSymmetric);
  }
  /// Rows of x, then a number.
  [[nodiscard]] static int64_t first_refused_at(const LinearPlan& plan) { return aligned_size(plan.rows.bytes()); }
  [[nodiscard]] static int64_t workspace_bytes(const LinearPlan& plan) {
    return first_refused_at(plan) + kDeviceAlignment;
  }
};

Result<DeviceLinear> DeviceLinear::create(const LowBitMatrix& matrix, const LinearOptions& options,
                                          std::string_view name, std::optional<int> device) {
  const std::string text(name);
  ISOBIT_RETURN_IF_ERROR(check_linear_options(options, matrix.rows(), text));
  if (options.path)
    return refuse_linear(text + ": path is " + std::string(to_string(*options.path)) +
                         ", must be empty for a layer on a device");
  const LowBitParameters& p = matrix.parameters();
  auto data = std::make_shared<Data>();
  data->activations = options.activations;
  if (data->quantises() && std::min(p.group, p.columns) > kMaxInt8Group)
    return Status(StatusCode::kUnsupported, text + ": groups have " + std::to_string(p.group) +
                                                " elements, must have at most " + std::to_string(kMaxInt8Group) +
                                                " where activations are quantised on the fly on a device");
  if (device) ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(*device), "device " + std::to_string(*device)));
  ISOBIT_ASSIGN_OR_RETURN(data->device, LinearDevice::current());
  data->image = ImageLayout::of(p, data->asymmetric());
  data->kind = p.kind;
  data->clamp = options.clamp;
  data->zero_point = p.kind == LowBitKind::kOffset ? p.zero_point : p.bits == 1 ? 1 : 1 << (p.bits - 1);
  data->code_factor = p.kind == LowBitKind::kSymmetric && p.bits == 1 ? 2 : 1;

  std::vector<float> bias(static_cast<size_t>(data->image.strips * kStripRows));
  std::copy(options.bias.begin(), options.bias.end(), bias.begin());
  const std::vector<std::byte> codes = pack_image_codes(matrix, data->image);
  const std::vector<std::byte> parameters = pack_image_parameters(matrix, data->image);
  Upload upload;
  upload.add(std::span(codes), data->codes);
  upload.add(std::span(parameters), data->parameters);
  upload.add(std::span<const float>(bias), data->bias);
  ISOBIT_ASSIGN_OR_RETURN(data->memory, upload.finish());
  DeviceLinear layer;
  layer.data_ = std::move(data);
  return layer;
}

int64_t DeviceLinear::rows() const { return data_->image.rows; }
int64_t DeviceLinear::columns() const { return data_->image.columns; }
LinearActivations DeviceLinear::activations() const { return data_->activations; }
int DeviceLinear::device() const { return data_->device.number; }
int64_t DeviceLinear::size_bytes() const {
  const ImageLayout& image = data_->image;
  return image.codes_bytes() + image.parameters_bytes() +
         image.strips * kStripRows * static_cast<int64_t>(sizeof(float));
}

std::string_view DeviceLinear::kernel_name(int64_t m) const {
  return data_->plan(data_->quantises() ? RowsKind::kCodes : RowsKind::kF32, std::max<int64_t>(m, 1)).kernel();
}
int64_t DeviceLinear::workspace_bytes(int64_t m) const {
  const RowsKind kind = data_->quantises() ? RowsKind::kCodes : RowsKind::kF32;
  return kDeviceAlignment + most_row_bytes(data_->device, data_->image, kind, m);
}

Status DeviceLinear::forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                             int64_t m, std::span<std::byte> workspace, const RunOptions& options) const {
  const Data& data = *data_;
  ISOBIT_RETURN_IF_ERROR(check_linear_types(x_dtype, y_dtype, data.activations));
  ISOBIT_RETURN_IF_ERROR(refuse_options(options, kStreamOption | kRowOptions, "a linear layer on a device"));
  LinearRows x_rows{"x", x.data(), x.size(), x_dtype, columns(), options.x_stride};
  LinearRows y_rows{"y", y.data(), y.size(), y_dtype, rows(), options.y_stride};
  ISOBIT_RETURN_IF_ERROR(check_linear_rows(x_rows, y_rows, m));
  if (m == 0) return {};
  if (m > kMostRows)
    return refuse_linear("m is " + std::to_string(m) + ", must be at most " + std::to_string(kMostRows));
  const LinearPlan plan = LinearSteps::plan(*this, x_dtype, m);
  ISOBIT_RETURN_IF_ERROR(check_linear_memory(x, y, workspace, std::to_string(m) + " rows", Data::workspace_bytes(plan),
                                             device(), options.stream));
  ISOBIT_RETURN_IF_ERROR(prepare_rows(data.image, plan.rows, {x.data(), x_dtype, x_rows.stride, m}, data.asymmetric(),
                                      workspace.data(), data.device.bulk_copies, options.stream));
  return LinearSteps::multiply(*this, plan, workspace.data(), y.data(), y_dtype, y_rows.stride, m, options.stream);
}

const ImageLayout& LinearSteps::image(const DeviceLinear& layer) { return layer.data_->image; }

LinearPlan LinearSteps::plan(const DeviceLinear& layer, Dtype x_dtype, int64_t m) {
  return layer.data_->plan(rows_kind(layer.data_->activations, x_dtype), m);
}

int64_t LinearSteps::row_bytes(const DeviceLinear& layer, Dtype x_dtype, int64_t m) {
  const DeviceLinear::Data& data = *layer.data_;
  return most_row_bytes(data.device, data.image, rows_kind(data.activations, x_dtype), m);
}

Status LinearSteps::multiply(const DeviceLinear& layer, const LinearPlan& plan, const std::byte* rows, std::byte* y,
                             Dtype y_dtype, int64_t y_stride, int64_t m, cudaStream_t stream) {
  const DeviceLinear::Data& data = *layer.data_;
  const auto complete = [&](ProductArgs& args) {
    args.w = data.codes;
    args.parameters = data.parameters;
    args.bias = data.bias;
    args.x = reinterpret_cast<const uint8_t*>(rows);
    args.x_parameters = args.x + plan.rows.parameters_at;
    args.y = y;
    args.y_stride = y_stride;
    args.y_type = y_type_of(y_dtype);
    const size_t four = 4 * size_in_bytes(y_dtype);
    args.y_in_fours = reinterpret_cast<uintptr_t>(y) % four == 0 && y_stride % 4 == 0;
    args.m = m;
    args.zero_point = data.zero_point;
    args.code_factor = data.code_factor;
    args.asymmetric = data.asymmetric();
    args.lo = data.clamp.lo;
    args.hi = data.clamp.hi;
  };
  const RowsKind kind = plan.rows.kind;
  if (plan.many) {
    ManyArgs args = plan.many_args;
    complete(args);
    return run_many(data.image, kind, data.general(), *plan.many, args, data.device.bulk_copies, stream);
  }
  FewArgs args = plan.few_args;
  complete(args);
  return run_few(data.image, kind, data.general(), plan.few, args, data.device.bulk_copies, stream);
}

Status DeviceLinear::check_input(std::span<std::byte> workspace, int64_t m, CUstream_st* stream) const {
  if (!data_->quantises() || m <= 0) return cuda_status(cudaStreamSynchronize(stream), "check_input");
  const LinearPlan plan = data_->plan(RowsKind::kCodes, m);
  ISOBIT_RETURN_IF_ERROR(check_device_buffer("workspace", workspace, Dtype::kU8));
  if (static_cast<int64_t>(workspace.size()) < Data::workspace_bytes(plan))
    return refuse_argument("workspace has " + std::to_string(workspace.size()) + " bytes, must be that of a run of " +
                           std::to_string(m) + " rows");
  auto* const first = reinterpret_cast<unsigned long long*>(workspace.data() + Data::first_refused_at(plan));
  unsigned long long row = 0;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaMemsetAsync(first, 0xff, sizeof row, stream), "check_input"));
  ISOBIT_RETURN_IF_ERROR(find_refused_row(data_->image, plan.rows, workspace.data(), m, first, stream));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaMemcpyAsync(&row, first, sizeof row, cudaMemcpyDeviceToHost, stream), "check_input"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "check_input"));
  if (row == ~0ull) return {};
  return refuse_linear("x[" + std::to_string(row) + "] has a NaN, an infinity, or a group whose range is infinite, " +
                       "must be finite");
}

}  // namespace isobit::cuda
