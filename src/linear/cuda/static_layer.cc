// SPDX-License-Identifier: Apache-2.0
// DeviceStaticLinear: what is checked.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/run_options.h"
#include "isobit/cuda/linear.h"
#include "linear/cuda/arguments.h"
#include "linear/cuda/plan.h"
#include "linear/cuda/rows.h"
#include "linear/cuda/static_product.h"
#include "linear/layer_parts.h"
#include "linear/static/parts.h"
#include "product/product.h"

namespace isobit::cuda {

struct DeviceStaticLinear::Data {
  explicit Data(StaticLinearLayer host) : layer(std::move(host)) {}

  StaticLinearLayer layer;
  LinearDevice device;
  StaticProduct product;
  std::shared_ptr<const std::byte> memory;

  [[nodiscard]] const StaticLinearParameters& parameters() const { return layer.parameters(); }
  [[nodiscard]] LinearPlan plan(int64_t m) const { return product.plan(device, m); }
  /// Whether the type of x has codes that its grid has not.
  [[nodiscard]] bool has_codes_outside() const { return parameters().input.bits != 8 * product.epilogue.planes; }
};

Result<DeviceStaticLinear> DeviceStaticLinear::create(const StaticLinearLayer& layer, std::optional<int> device) {
  const StaticLinearParameters& p = layer.parameters();
  if (p.columns > kMaxLinearK)
    return Status(StatusCode::kUnsupported, layer.name() + ": K is " + std::to_string(p.columns) +
                                                ", must be at most " + std::to_string(kMaxLinearK) + " on a device");
  if (device) ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(*device), "device " + std::to_string(*device)));
  auto data = std::make_shared<Data>(layer);
  ISOBIT_ASSIGN_OR_RETURN(data->device, LinearDevice::current());
  Upload upload;
  ISOBIT_RETURN_IF_ERROR(data->product.add(p, layer.accumulator_bound(), layer.name(), upload));
  ISOBIT_ASSIGN_OR_RETURN(data->memory, upload.finish());
  DeviceStaticLinear result;
  result.data_ = std::move(data);
  return result;
}

const StaticLinearLayer& DeviceStaticLinear::layer() const { return data_->layer; }
int DeviceStaticLinear::device() const { return data_->device.number; }
int64_t DeviceStaticLinear::size_bytes() const {
  const ImageLayout& image = data_->product.image;
  return image.codes_bytes() + image.strips * kStripRows * static_cast<int64_t>(sizeof(StaticChannel));
}
std::string_view DeviceStaticLinear::kernel_name(int64_t m) const {
  return data_->plan(std::max<int64_t>(m, 1)).kernel();
}
int64_t DeviceStaticLinear::workspace_bytes(int64_t m) const {
  return data_->plan(std::max<int64_t>(m, 1)).rows.bytes();
}

Status DeviceStaticLinear::forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                                   int64_t m, std::span<std::byte> workspace, const RunOptions& options) const {
  const Data& data = *data_;
  const StaticLinearParameters& p = data.parameters();
  if (x_dtype != p.x_dtype() || y_dtype != p.y_dtype())
    return refuse_types(x_dtype, y_dtype, p.x_dtype(), p.y_dtype(), false);
  ISOBIT_RETURN_IF_ERROR(refuse_options(options, kStreamOption | kRowOptions, "a linear layer on a device"));
  LinearRows x_rows{"x", x.data(), x.size(), x_dtype, p.columns, options.x_stride};
  LinearRows y_rows{"y", y.data(), y.size(), y_dtype, p.rows, options.y_stride};
  ISOBIT_RETURN_IF_ERROR(check_linear_rows(x_rows, y_rows, m));
  if (m == 0) return {};
  if (m > data.product.most_rows())
    return refuse_linear("m is " + std::to_string(m) + ", must be at most " + std::to_string(data.product.most_rows()));
  ISOBIT_RETURN_IF_ERROR(
      check_linear_memory(x, y, workspace, std::to_string(m) + " rows", workspace_bytes(m), device(), options.stream));

  const LinearPlan plan = data.plan(m);
  ISOBIT_RETURN_IF_ERROR(prepare_static_rows(plan.rows, {x.data(), x_dtype, x_rows.stride, m}, p.columns,
                                             static_cast<int32_t>(p.input.min()), static_cast<int32_t>(p.input.max()),
                                             workspace.data(), data.device.bulk_copies, options.stream));
  return data.product.run(data.device, plan, workspace.data(), y.data(), y_rows.stride, options.stream);
}

Status DeviceStaticLinear::check_input(std::span<const std::byte> workspace, int64_t m, CUstream_st* stream) const {
  const Data& data = *data_;
  std::vector<StaticRow> rows;
  if (m > 0 && data.has_codes_outside()) {
    const RowsLayout layout = data.plan(m).rows;
    ISOBIT_RETURN_IF_ERROR(check_device_buffer("workspace", workspace, Dtype::kU8));
    if (static_cast<int64_t>(workspace.size()) < layout.bytes())
      return refuse_argument("workspace has " + std::to_string(workspace.size()) + " bytes, must be that of a run of " +
                             std::to_string(m) + " rows");
    rows.resize(static_cast<size_t>(m));
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaMemcpyAsync(rows.data(), workspace.data() + layout.parameters_at,
                                                       rows.size() * sizeof(StaticRow), cudaMemcpyDeviceToHost, stream),
                                       "check_input"));
  }
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "check_input"));
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i].column >= 0)
      return refuse_code(data.parameters().input, static_cast<int64_t>(i), rows[i].column, rows[i].code,
                         data.layer.name());
  return {};
}

}  // namespace isobit::cuda
