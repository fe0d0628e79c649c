// SPDX-License-Identifier: Apache-2.0
// Arrays in files and FP16 tables.
#include <utility>

#include "c/boundary.h"
#include "isobit/arrays.h"
#include "isobit/fp16_function.h"
#include "isobit/fp16_table.h"

struct isobit_arrays {
  isobit::ArrayFile file;
};

struct isobit_fp16_table {
  isobit::Fp16Function function;
};

using namespace isobit;     // NOLINT: functions of C have no namespace
using namespace isobit::c;  // NOLINT

int32_t isobit_arrays_load(const char* path, isobit_arrays** arrays) {
  return make_handle(arrays, "arrays", [&]() -> Result<isobit_arrays> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(path, "path"));
    ISOBIT_ASSIGN_OR_RETURN(auto file, load_arrays(path));
    return isobit_arrays{std::move(file)};
  });
}

void isobit_arrays_destroy(isobit_arrays* arrays) { delete arrays; }

int32_t isobit_arrays_find(const isobit_arrays* arrays, const char* name, isobit_array_info* info) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(arrays, "arrays"));
    ISOBIT_RETURN_IF_ERROR(check_pointer(name, "name"));
    const auto found = arrays->file.arrays.find(name);
    if (found == arrays->file.arrays.end()) {
      std::string names;
      for (const auto& [other, array] : arrays->file.arrays) names += (names.empty() ? "\"" : ", \"") + other + "\"";
      return refuse("name is \"" + std::string(name) + "\", must be one of: " + names);
    }
    const Array& array = found->second;
    isobit_array_info out{};
    if (array.shape.size() > std::size(out.shape))
      return {StatusCode::kUnsupported, "array \"" + std::string(name) + "\" has " +
                                            std::to_string(array.shape.size()) + " dimensions, must have at most " +
                                            std::to_string(std::size(out.shape))};
    out.dtype = static_cast<int32_t>(array.dtype);
    out.dimensions = static_cast<int32_t>(array.shape.size());
    for (size_t i = 0; i < array.shape.size(); ++i) out.shape[i] = array.shape[i];
    out.size_bytes = static_cast<int64_t>(array.bytes.size());
    out.data = array.bytes.data();
    return write_struct(info, out, "info");
  });
}

int32_t isobit_fp16_table_builtin(const char* function, int32_t model, int32_t half_values, isobit_fp16_table** table) {
  return make_handle(table, "table", [&]() -> Result<isobit_fp16_table> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(function, "function"));
    ISOBIT_RETURN_IF_ERROR(check_between(model, ISOBIT_FP16_F32, ISOBIT_FP16_NLI_CPU, "model"));
    ISOBIT_RETURN_IF_ERROR(check_flag(half_values, "half_values"));
    ISOBIT_ASSIGN_OR_RETURN(const auto built_in,
                            builtin_fp16_table(function, static_cast<Fp16Model>(model), half_values == 1));
    ISOBIT_ASSIGN_OR_RETURN(auto made, Fp16Function::create(built_in));
    return isobit_fp16_table{std::move(made)};
  });
}

int32_t isobit_fp16_table_load(const char* path, isobit_fp16_table** table) {
  return make_handle(table, "table", [&]() -> Result<isobit_fp16_table> {
    ISOBIT_RETURN_IF_ERROR(check_pointer(path, "path"));
    ISOBIT_ASSIGN_OR_RETURN(const auto loaded, load_fp16_table(path));
    ISOBIT_ASSIGN_OR_RETURN(auto made, Fp16Function::create(loaded));
    return isobit_fp16_table{std::move(made)};
  });
}

void isobit_fp16_table_destroy(isobit_fp16_table* table) { delete table; }

int32_t isobit_fp16_table_get_info(const isobit_fp16_table* table, isobit_fp16_table_info* info) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(table, "table"));
    const Fp16Table& in = table->function.table();
    isobit_fp16_table_info out{};
    out.model = static_cast<int32_t>(in.model);
    out.half_values = in.half_values ? 1 : 0;
    out.worst_code = in.certificate.worst_code;
    out.beta = in.beta;
    out.max_ulp = in.certificate.max_ulp;
    out.mean_ulp = in.certificate.mean_ulp;
    out.max_absolute = in.certificate.max_absolute;
    out.share_exact = in.certificate.share_exact;
    out.share_within_ulp = in.certificate.share_within_ulp;
    return write_struct(info, out, "info");
  });
}

const char* isobit_fp16_table_function(const isobit_fp16_table* table) {
  return table == nullptr ? "" : table->function.table().function.c_str();
}

int32_t isobit_fp16_table_run(const isobit_fp16_table* table, const void* x, int32_t x_dtype, void* y, int32_t y_dtype,
                              int64_t count, isobit_pool* pool) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(table, "table"));
    ISOBIT_ASSIGN_OR_RETURN(const TypedArrays of, typed_arrays(x, x_dtype, count, y, y_dtype, count));
    RunOptions options;
    options.pool = pool_of(pool);
    return table->function.forward(of.x, of.x_dtype, of.y, of.y_dtype, options);
  });
}
