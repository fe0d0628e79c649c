// SPDX-License-Identifier: Apache-2.0
#include "linear/layer_parts.h"

#include <cmath>
#include <functional>
#include <iterator>

#include "core/number_text.h"
#include "core/rescale.h"
#include "core/run_options.h"
#include "low_bit/parts.h"

namespace isobit {
namespace {

constexpr LinearLayerKernel kKernels[] = {
#define ISOBIT_LAYER_KERNEL(name, operation, path, why) {name, operation, CpuPath::path, why},
#include "linear/layer_kernels.inc"
#undef ISOBIT_LAYER_KERNEL
};

constexpr std::string_view kActivationNames[] = {"float", "int8", "int8_asymmetric"};

/// Bytes from the first element to the last. 128 bits: rows and strides are the caller's.
Int128 extent_bytes(const LinearRows& rows, int64_t m) {
  const Int128 elements = static_cast<Int128>(m - 1) * rows.stride + rows.columns;
  return elements * static_cast<Int128>(size_in_bytes(rows.dtype));
}

Status check_rows(LinearRows& rows, int64_t m) {
  const std::string name = rows.name;
  if (rows.stride == 0) rows.stride = rows.columns;
  if (rows.stride < rows.columns)
    return refuse_linear(name + "_stride is " + std::to_string(rows.stride) + ", must be at least " +
                         std::to_string(rows.columns) + ", or 0");
  if (m == 0) return {};
  const Int128 needed = extent_bytes(rows, m);
  if (static_cast<Int128>(rows.size_bytes) < needed)
    return refuse_linear(name + " has " + std::to_string(rows.size_bytes) + " bytes, must have at least " +
                         to_decimal(needed) + ": " + std::to_string(m) + " rows of " + std::to_string(rows.columns) +
                         " elements of " + std::string(to_string(rows.dtype)) + ", " + std::to_string(rows.stride) +
                         " from one to the next");
  if (rows.data == nullptr) return refuse_linear(name + " is null");
  const size_t size = size_in_bytes(rows.dtype);
  if (reinterpret_cast<uintptr_t>(rows.data) % size != 0)
    return refuse_linear(name + " is at address " + std::to_string(reinterpret_cast<uintptr_t>(rows.data)) +
                         ", must be a multiple of " + std::to_string(size) + " for " +
                         std::string(to_string(rows.dtype)));
  return {};
}

Status unsupported_type(const char* name, Dtype dtype, const std::string& limit) {
  return {StatusCode::kUnsupported,
          std::string(name) + " is of type " + std::string(to_string(dtype)) + ", must be " + limit};
}

}  // namespace

std::string_view to_string(LinearActivations activations) { return kActivationNames[static_cast<size_t>(activations)]; }

std::optional<LinearActivations> linear_activations_from_string(std::string_view text) {
  for (size_t i = 0; i < std::size(kActivationNames); ++i)
    if (kActivationNames[i] == text) return static_cast<LinearActivations>(i);
  return std::nullopt;
}

std::span<const LinearLayerKernel> linear_layer_kernels() { return kKernels; }

Result<CpuPath> linear_path(std::optional<CpuPath> requested, const std::string& name) {
  if (!requested) return default_cpu_path();
  if (*requested < CpuPath::kReference || *requested > CpuPath::kAmx)
    return refuse_linear(name + ": path is " + std::to_string(static_cast<int32_t>(*requested)) + ", must be 0.." +
                         std::to_string(static_cast<int32_t>(CpuPath::kAmx)));
  if (!cpu_can_run(*requested))
    return Status(StatusCode::kFailedPrecondition,
                  name + ": path " + std::string(to_string(*requested)) +
                      " cannot run here: " + std::string(cpu_cannot_run_reason(*requested)));
  return *requested;
}

const LinearLayerKernel& linear_layer_kernel(std::string_view operation, CpuPath path) {
  const LinearLayerKernel* best = nullptr;
  for (const LinearLayerKernel& kernel : kKernels)
    if (kernel.operation == operation && kernel.path <= path && cpu_can_run(kernel.path)) best = &kernel;
  return *best;  // every operation has a reference
}

Status check_clamp(const LinearClamp& clamp, const std::string& name) {
  for (const auto& [end, value] : {std::pair("lo", clamp.lo), std::pair("hi", clamp.hi)})
    if (std::isnan(value)) return refuse_linear(name + ": clamp." + end + " is NaN, must be a number");
  if (clamp.lo > clamp.hi)
    return refuse_linear(name + ": clamp.lo is " + number_text(static_cast<double>(clamp.lo)) +
                         ", must be at most clamp.hi, " + number_text(static_cast<double>(clamp.hi)));
  return {};
}

Status check_bias(std::span<const float> bias, int64_t rows, const std::string& name) {
  if (bias.empty() || static_cast<int64_t>(bias.size()) == rows) return {};
  return refuse_linear(name + ": bias has " + std::to_string(bias.size()) + " elements, must have " +
                       std::to_string(rows) + " or none");
}

Status check_linear_options(const LinearOptions& options, int64_t rows, const std::string& name) {
  if (options.activations < LinearActivations::kFloat || options.activations > LinearActivations::kInt8Asymmetric)
    return refuse_linear(name + ": activations is " + std::to_string(static_cast<int32_t>(options.activations)) +
                         ", must be 0..2");
  ISOBIT_RETURN_IF_ERROR(check_clamp(options.clamp, name));
  return check_bias(options.bias, rows, name);
}

Status check_linear_types(Dtype x, Dtype y, LinearActivations activations) {
  const bool quantised = activations != LinearActivations::kFloat;
  if (!is_low_bit_scale(x) && !(quantised && x == Dtype::kF64))
    return unsupported_type("x", x, quantised ? "f32, f16, bf16 or f64" : "f32, f16 or bf16");
  if (!is_low_bit_scale(y)) return unsupported_type("y", y, "f32, f16 or bf16");
  if (!quantised && x != y)
    return unsupported_type("y", y, "that of x, " + std::string(to_string(x)) + ", in a layer of float activations");
  return {};
}

Status check_linear_rows(LinearRows& x, LinearRows& y, int64_t m) {
  if (m < 0) return refuse_linear("m is " + std::to_string(m) + ", must be at least 0");
  return check_rows_apart(x, m, y, m);
}

Status check_rows_apart(LinearRows& x, int64_t x_rows, LinearRows& y, int64_t y_rows) {
  ISOBIT_RETURN_IF_ERROR(check_rows(x, x_rows));
  ISOBIT_RETURN_IF_ERROR(check_rows(y, y_rows));
  if (x_rows == 0 || y_rows == 0) return {};
  const std::byte* x_end = x.data + static_cast<size_t>(extent_bytes(x, x_rows));
  const std::byte* y_end = y.data + static_cast<size_t>(extent_bytes(y, y_rows));
  const std::less<const std::byte*> before;
  if (before(x.data, y_end) && before(y.data, x_end))
    return refuse_linear(std::string(y.name) + " overlaps " + x.name + ", must be apart from it");
  return {};
}

Status check_row_options(const RunOptions& options, CpuPath path, std::string_view who) {
  ISOBIT_RETURN_IF_ERROR(refuse_options(options, kPathOption | kPoolOption | kRowOptions, who));
  if (options.path && *options.path != path)
    return refuse_linear("options.path is " + std::string(to_string(*options.path)) +
                         ", but the layer is packed for the path " + std::string(to_string(path)) +
                         "; create it for that path");
  return {};
}

Status check_linear_workspace(const Workspace& workspace, int64_t needed_bytes, int64_t m, int threads) {
  if (workspace_fits(workspace, needed_bytes)) return {};
  return refuse_workspace(workspace, needed_bytes, {}, std::to_string(m) + " rows" + on_threads(threads),
                          "workspace(m, threads)");
}

}  // namespace isobit
