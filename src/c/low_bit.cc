// SPDX-License-Identifier: Apache-2.0
#include "c/low_bit.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "c/boundary.h"

using namespace isobit;     // NOLINT: functions of C have no namespace
using namespace isobit::c;  // NOLINT

namespace {

Result<LowBitOptions> quantise_options(const isobit_low_bit_options* in) {
  isobit_low_bit_options c;
  ISOBIT_RETURN_IF_ERROR(read_struct(in, c, "options"));
  ISOBIT_RETURN_IF_ERROR(check_between(c.kind, ISOBIT_SYMMETRIC, ISOBIT_OFFSET, "options->kind"));
  ISOBIT_RETURN_IF_ERROR(check_between(c.method, ISOBIT_ABSMAX, ISOBIT_MSE, "options->method"));
  ISOBIT_RETURN_IF_ERROR(check_zero(c.reserved, "options->reserved"));
  LowBitOptions out;
  out.bits = c.bits;
  out.group = c.group;
  out.kind = static_cast<LowBitKind>(c.kind);
  out.method = static_cast<LowBitMethod>(c.method);
  ISOBIT_ASSIGN_OR_RETURN(out.scales, dtype_of(c.scale_dtype, "options->scale_dtype"));
  return out;
}

Status check_count(int64_t count, int64_t rows, int64_t columns) {
  if (rows * columns == count) return {};
  return refuse("weights has " + std::to_string(count) + " elements, must have " + std::to_string(rows) + " * " +
                std::to_string(columns));
}

}  // namespace

int32_t isobit_low_bit_quantize(const void* weights, int32_t dtype, int64_t count, int64_t rows, int64_t columns,
                                const isobit_low_bit_options* options, isobit_pool* pool, isobit_low_bit** matrix) {
  return make_handle(matrix, "matrix", [&]() -> Result<isobit_low_bit> {
    ISOBIT_ASSIGN_OR_RETURN(const Dtype type, dtype_of(dtype, "dtype"));
    ISOBIT_ASSIGN_OR_RETURN(const auto values, bytes_of(weights, count, type, "weights"));
    ISOBIT_RETURN_IF_ERROR(check_between(rows, 1, kMaxExtent, "rows"));
    ISOBIT_RETURN_IF_ERROR(check_between(columns, 1, kMaxExtent, "columns"));
    ISOBIT_RETURN_IF_ERROR(check_count(count, rows, columns));
    ISOBIT_ASSIGN_OR_RETURN(const auto how, quantise_options(options));
    const Array array{type, {rows, columns}, {values.begin(), values.end()}};
    ISOBIT_ASSIGN_OR_RETURN(auto made, quantize_low_bit(array, how, "weights", pool_of(pool)));
    return isobit_low_bit{std::move(made)};
  });
}

int32_t isobit_low_bit_load(const char* path, const char* name, isobit_low_bit** matrix) {
  return make_handle(matrix, "matrix", [&]() -> Result<isobit_low_bit> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(path, "path"));
    ISOBIT_ASSIGN_OR_RETURN(auto file, load_low_bit(path));
    std::string names;
    for (auto& [other, found] : file.matrices) {
      if (name == nullptr ? file.matrices.size() == 1 : other == name)
        return isobit_low_bit{std::move(found), low_bit_permutation(file, other)};
      names += (names.empty() ? "\"" : ", \"") + other + "\"";
    }
    return refuse(std::string(path) + ": name is " + (name == nullptr ? "NULL" : "\"" + std::string(name) + "\"") +
                  ", must be one of: " + names);
  });
}

int32_t isobit_low_bit_save(const isobit_low_bit* matrix, const char* name, const char* path) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(matrix, "matrix"));
    ISOBIT_RETURN_IF_ERROR(check_pointer(name, "name"));
    ISOBIT_RETURN_IF_ERROR(check_pointer(path, "path"));
    LowBitFile file{.matrices = {{name, matrix->matrix}}};
    if (const auto& columns = matrix->permutation; !columns.empty())
      file.arrays[low_bit_permutation_name(name)] =
          Array::copy_of(columns.data(), {static_cast<int64_t>(columns.size())});
    return save_low_bit(path, file);
  });
}

void isobit_low_bit_destroy(isobit_low_bit* matrix) { delete matrix; }

int32_t isobit_low_bit_get_info(const isobit_low_bit* matrix, isobit_low_bit_info* info) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(matrix, "matrix"));
    const LowBitParameters& in = matrix->matrix.parameters();
    isobit_low_bit_info out{};
    out.bits = in.bits;
    out.rows = in.rows;
    out.columns = in.columns;
    out.group = in.group;
    out.groups = matrix->matrix.groups();
    out.row_bytes = matrix->matrix.row_bytes();
    out.size_bytes = matrix->matrix.size_bytes();
    out.kind = static_cast<int32_t>(in.kind);
    out.scale_dtype = static_cast<int32_t>(in.scales.dtype);
    return write_struct(info, out, "info");
  });
}

int32_t isobit_low_bit_dequantize(const isobit_low_bit* matrix, float* weights, int64_t count, isobit_pool* pool) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(matrix, "matrix"));
    ISOBIT_ASSIGN_OR_RETURN(const auto values, span_of(weights, count, "weights"));
    ISOBIT_RETURN_IF_ERROR(check_count(count, matrix->matrix.rows(), matrix->matrix.columns()));
    ISOBIT_RETURN_IF_ERROR(matrix->matrix.dequantize(values, pool_of(pool)));
    const size_t columns = matrix->permutation.size();
    std::vector<float> row(columns);
    for (size_t begin = 0; columns > 0 && begin < values.size(); begin += columns) {
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(begin), columns, row.begin());
      for (size_t j = 0; j < columns; ++j) values[begin + static_cast<size_t>(matrix->permutation[j])] = row[j];
    }
    return {};
  });
}
