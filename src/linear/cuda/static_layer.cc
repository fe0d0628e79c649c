// SPDX-License-Identifier: Apache-2.0
// DeviceStaticLinear: what is checked, and the integers of a layer as the kernels take them.
#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/upload.h"
#include "core/rescale.h"
#include "core/run_options.h"
#include "isobit/cuda/linear.h"
#include "linear/cuda/arguments.h"
#include "linear/cuda/image.h"
#include "linear/cuda/plan.h"
#include "linear/cuda/rows.h"
#include "linear/layer_parts.h"
#include "linear/static/parts.h"
#include "low_bit/parts.h"
#include "product/product.h"

namespace isobit::cuda {
namespace {

/// Left out: the scales, on which no result depends.
Result<LowBitMatrix> matrix_of(const StaticLinearParameters& p, const std::string& name) {
  const int64_t row_bytes = low_bit_row_bytes(p.columns, p.weight_bits);
  LowBitParameters matrix;
  matrix.rows = p.rows;
  matrix.columns = p.columns;
  matrix.bits = p.weight_bits;
  matrix.group = p.columns;
  matrix.codes = Array::zeros(Dtype::kU8, {p.rows, row_bytes});
  matrix.scales = Array::zeros(Dtype::kF32, {p.rows, 1});
  std::fill_n(matrix.scales.data<float>(), p.rows, 1.0f);
  for (int64_t n = 0; n < p.rows; ++n)
    for (int64_t k = 0; k < p.columns; ++k)
      pack_code(matrix.codes.data<uint8_t>() + n * row_bytes, k, p.weight_bits,
                symmetric_code(p.weight_bits, p.weights.data<int8_t>()[n * p.columns + k]));
  return LowBitMatrix::create(std::move(matrix), name);
}

/// Whether acc * r, |acc| <= bound, can lie in the middle of two integers.
bool can_tie(const RescaleParameters& r, Int128 bound) {
  const int zeros = std::countr_zero(static_cast<uint32_t>(r.multiplier));
  return zeros < r.shift && bound >= static_cast<Int128>(1) << (r.shift - 1 - zeros);
}

/// Sets what makes y in one addition and a shift, where that is exact: without a tie one half rounds to the nearest.
void make_quick(StaticChannel& channel, const RescaleParameters& r, Int128 bound, Rounding rounding,
                int64_t zero_point) {
  constexpr int32_t kMostQuickShift = 62;
  if (r.shift < 0 || r.shift > kMostQuickShift) return;
  const bool breaks_ties = rounding == Rounding::kNearestEven || rounding == Rounding::kNearestAway;
  if (breaks_ties && can_tie(r, bound)) return;
  const Int128 half = rounding == Rounding::kFloor ? 0 : (static_cast<Int128>(1) << r.shift) >> 1;
  const Int128 addend = half + static_cast<Int128>(zero_point) * (static_cast<Int128>(1) << r.shift);
  const Int128 most = bound_add(bound_multiply(bound, r.multiplier), addend < 0 ? -addend : addend);
  if (most > INT64_MAX || (most >> r.shift) >= INT32_MAX) return;
  channel.addend = static_cast<int64_t>(addend);
  channel.quick = 1;
}

StaticChannel channel_of(const StaticLinearParameters& p, int64_t n) {
  const int8_t* const v = p.weights.data<int8_t>() + n * p.columns;
  const int32_t bias = p.bias.data<int32_t>()[n];
  int64_t sum = 0;
  for (int64_t k = 0; k < p.columns; ++k) sum += v[k];
  StaticChannel channel{};
  channel.start = bias + (static_offset(p.x_dtype()) - p.input.zero_point) * sum;
  if (!p.output) return channel;
  const RescaleParameters& r = p.rescales[static_cast<size_t>(n)];
  channel.multiplier = r.multiplier;
  channel.shift = r.shift;
  make_quick(channel, r, largest_accumulator(v, p.columns, bias, p.input), p.rounding, p.output->zero_point);
  return channel;
}

}  // namespace

struct DeviceStaticLinear::Data {
  explicit Data(StaticLinearLayer host) : layer(std::move(host)) {}

  StaticLinearLayer layer;
  LinearDevice device;
  ImageLayout image;
  std::shared_ptr<const std::byte> memory;
  const uint8_t* codes = nullptr;
  const StaticChannel* channels = nullptr;

  [[nodiscard]] const StaticLinearParameters& parameters() const { return layer.parameters(); }
  [[nodiscard]] auto planes() const { return static_cast<int32_t>(size_in_bytes(parameters().x_dtype())); }
  /// Rows of x in a run.
  [[nodiscard]] int64_t most_rows() const { return kMostRows / planes(); }
  [[nodiscard]] LinearPlan plan(int64_t m) const { return plan_static(device, image, planes(), m); }
  /// Whether the type of x has codes that its grid has not.
  [[nodiscard]] bool has_codes_outside() const { return parameters().input.bits != 8 * planes(); }
  /// All but the pointer to rows.
  [[nodiscard]] StaticEpilogue epilogue() const;
};

StaticEpilogue DeviceStaticLinear::Data::epilogue() const {
  const StaticLinearParameters& p = parameters();
  return {.channels = channels,
          .rows = nullptr,
          .code_factor = p.weight_bits == 1 ? 2 : 1,
          .middle = p.weight_bits == 1 ? 1 : 1 << (p.weight_bits - 1),
          .planes = planes(),
          .y_bytes = static_cast<int32_t>(size_in_bytes(p.y_dtype())),
          .zero_point = p.output ? static_cast<int32_t>(p.output->zero_point) : 0,
          .lo = p.lo,
          .hi = p.hi,
          .rounding = p.rounding,
          .wide = layer.accumulator_bound() > INT32_MAX};
}

Result<DeviceStaticLinear> DeviceStaticLinear::create(const StaticLinearLayer& layer, std::optional<int> device) {
  const StaticLinearParameters& p = layer.parameters();
  if (p.columns > kMaxLinearK)
    return Status(StatusCode::kUnsupported, layer.name() + ": K is " + std::to_string(p.columns) +
                                                ", must be at most " + std::to_string(kMaxLinearK) + " on a device");
  ISOBIT_ASSIGN_OR_RETURN(const LowBitMatrix matrix, matrix_of(p, layer.name()));
  if (device) ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(*device), "device " + std::to_string(*device)));
  auto data = std::make_shared<Data>(layer);
  ISOBIT_ASSIGN_OR_RETURN(data->device, LinearDevice::current());
  data->image = ImageLayout::of_static(matrix.parameters());
  std::vector<StaticChannel> channels(static_cast<size_t>(data->image.strips * kStripRows));
  for (int64_t n = 0; n < p.rows; ++n) channels[static_cast<size_t>(n)] = channel_of(p, n);
  const std::vector<std::byte> codes = pack_image_codes(matrix, data->image);
  Upload upload;
  upload.add(std::span(codes), data->codes);
  upload.add(std::span<const StaticChannel>(channels), data->channels);
  ISOBIT_ASSIGN_OR_RETURN(data->memory, upload.finish());
  DeviceStaticLinear result;
  result.data_ = std::move(data);
  return result;
}

const StaticLinearLayer& DeviceStaticLinear::layer() const { return data_->layer; }
int DeviceStaticLinear::device() const { return data_->device.number; }
int64_t DeviceStaticLinear::size_bytes() const {
  const ImageLayout& image = data_->image;
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
  if (m > data.most_rows())
    return refuse_linear("m is " + std::to_string(m) + ", must be at most " + std::to_string(data.most_rows()));
  ISOBIT_RETURN_IF_ERROR(check_linear_memory(x, y, workspace, m, workspace_bytes(m), device(), options.stream));

  const LinearPlan plan = data.plan(m);
  const bool early = data.device.bulk_copies;
  ISOBIT_RETURN_IF_ERROR(prepare_static_rows(plan.rows, {x.data(), x_dtype, x_rows.stride, m}, p.columns,
                                             static_cast<int32_t>(p.input.min()), static_cast<int32_t>(p.input.max()),
                                             workspace.data(), early, options.stream));
  const auto complete = [&](ProductArgs& args) {
    args.w = data.codes;
    args.x = reinterpret_cast<const uint8_t*>(workspace.data());
    args.y = y.data();
    args.y_stride = y_rows.stride;
    const size_t four = 4 * size_in_bytes(y_dtype);
    args.y_in_fours = reinterpret_cast<uintptr_t>(y.data()) % four == 0 && args.y_stride % 4 == 0;
    args.static_codes = data.epilogue();
    args.static_codes.rows = reinterpret_cast<const StaticRow*>(workspace.data() + plan.rows.parameters_at);
  };
  if (plan.many) {
    ManyArgs args = plan.many_args;
    complete(args);
    return run_many(data.image, RowsKind::kStatic, false, *plan.many, args, early, options.stream);
  }
  FewArgs args = plan.few_args;
  complete(args);
  return run_few(data.image, RowsKind::kStatic, false, plan.few, args, early, options.stream);
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
