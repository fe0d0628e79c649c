// SPDX-License-Identifier: Apache-2.0
// Integer tables on a device. The kernel runs the normative look_up of reference.h, which other kernels can call with
// pointers to shared memory just as well.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/cuda/buffer.h"
#include "core/cuda/launch.h"
#include "core/run_options.h"
#include "isobit/cuda/table.h"
#include "table/reference.h"

namespace isobit::cuda {
namespace {

constexpr int kThreads = 256;

template <typename In, typename Out>
__global__ void table_codes(TableView table, const In* x, Out* y, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    y[i] = static_cast<Out>(look_up(table, x[i]));
}

/// Calls body(T()) with the C++ type of a code; tables have at most 16 bits.
template <typename Body>
Status with_code_type(Dtype dtype, Body body) {
  switch (dtype) {
    case Dtype::kS8: return body(int8_t());
    case Dtype::kU8: return body(uint8_t());
    case Dtype::kS16: return body(int16_t());
    case Dtype::kU16: return body(uint16_t());
    default: return {StatusCode::kUnsupported, "codes of type " + std::string(to_string(dtype))};
  }
}

}  // namespace

struct DeviceTable::Data {
  std::shared_ptr<const std::byte> memory;
  TableView view{};
  Dtype input = Dtype::kS8;
  Dtype output = Dtype::kS8;
  int device = 0;
  int processors = 0;
};

Result<DeviceTable> DeviceTable::create(const ActivationTable& table) {
  ISOBIT_RETURN_IF_ERROR(check_table(table, "table"));
  auto data = std::make_shared<Data>();
  data->input = table.input.dtype();
  data->output = table.output.dtype();
  data->view = view_of(table);
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&data->device), "the current device"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(
      cudaDeviceGetAttribute(&data->processors, cudaDevAttrMultiProcessorCount, data->device), "processors"));

  // One piece of memory, the 8-byte vectors first.
  std::vector<std::byte> bytes;
  const auto append = [&bytes](const auto& values) {
    const size_t at = bytes.size();
    bytes.resize(at + values.size() * sizeof values[0]);
    if (!values.empty()) std::memcpy(bytes.data() + at, values.data(), values.size() * sizeof values[0]);
    return at;
  };
  const size_t anchors = append(table.anchors);
  const size_t intercepts = append(table.intercepts);
  const size_t entries = append(table.entries);
  const size_t thresholds = append(table.thresholds);
  const size_t slopes = append(table.slopes);
  ISOBIT_ASSIGN_OR_RETURN(data->memory, copy_to_device(bytes));
  const auto at = [&data](size_t offset, auto*& pointer) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(data->memory.get() + offset);
  };
  at(anchors, data->view.anchors);
  at(intercepts, data->view.intercepts);
  at(entries, data->view.entries);
  at(thresholds, data->view.thresholds);
  at(slopes, data->view.slopes);
  DeviceTable result;
  result.data_ = std::move(data);
  return result;
}

Status DeviceTable::forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                            const RunOptions& options) const {
  const Data& data = *data_;
  ISOBIT_RETURN_IF_ERROR(refuse_options(options, kStreamOption, "a table on a device"));
  if (x_dtype != data.input || y_dtype != data.output)
    return refuse_types(x_dtype, y_dtype, data.input, data.output, false);
  ISOBIT_RETURN_IF_ERROR(check_device_buffer("x", x, data.input));
  ISOBIT_RETURN_IF_ERROR(check_device_buffer("y", y, data.output));
  ISOBIT_RETURN_IF_ERROR(check_same_count(x, data.input, y, data.output));
  ISOBIT_RETURN_IF_ERROR(check_overlap(x, y, false));
  ISOBIT_RETURN_IF_ERROR(check_current_device(data.device));
  const auto count = static_cast<int64_t>(x.size() / size_in_bytes(data.input));
  if (count == 0) return {};
  const int64_t blocks = std::min<int64_t>((count + kThreads - 1) / kThreads, int64_t{16} * data.processors);
  return with_code_type(data.input, [&](auto in) {
    return with_code_type(data.output, [&](auto out) {
      return launch_kernel("table_codes", table_codes<decltype(in), decltype(out)>, static_cast<unsigned>(blocks),
                           kThreads, 0, options.stream, data.view, reinterpret_cast<const decltype(in)*>(x.data()),
                           reinterpret_cast<decltype(out)*>(y.data()), count);
    });
  });
}

}  // namespace isobit::cuda
