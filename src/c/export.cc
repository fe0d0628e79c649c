// SPDX-License-Identifier: Apache-2.0
// Models as C99.
#include "isobit/export.h"

#include "c/boundary.h"
#include "isobit/arrays.h"

using namespace isobit;     // NOLINT: functions of C have no namespace
using namespace isobit::c;  // NOLINT

int32_t isobit_export_c(const char* model, const char* layer, const char* folder, const isobit_export_options* options,
                        isobit_export_info* info) {
  return guarded([&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(check_pointer(model, "model"));
    ISOBIT_RETURN_IF_ERROR(check_pointer(folder, "folder"));
    isobit_export_options given{};
    ISOBIT_RETURN_IF_ERROR(read_optional_struct(options, given, "options"));
    ISOBIT_RETURN_IF_ERROR(check_between(given.target, ISOBIT_TARGET_GENERIC, ISOBIT_TARGET_CORTEX_M55, "target"));
    ISOBIT_RETURN_IF_ERROR(check_flag(given.float_entry, "float_entry"));
    ISOBIT_RETURN_IF_ERROR(check_flag(given.allow_large_tables, "allow_large_tables"));
    ISOBIT_RETURN_IF_ERROR(check_flag(given.force, "force"));
    ISOBIT_RETURN_IF_ERROR(check_zero(given.reserved, "reserved"));
    CExportOptions how;
    how.target = static_cast<CTarget>(given.target);
    if (given.name != nullptr) how.name = given.name;
    if (given.selftest_steps != 0) how.selftest_steps = given.selftest_steps;
    how.float_entry = given.float_entry != 0;
    how.allow_large_tables = given.allow_large_tables != 0;
    ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(model));
    ISOBIT_ASSIGN_OR_RETURN(const CExport code, export_c(file, layer == nullptr ? "" : layer, how));
    ISOBIT_RETURN_IF_ERROR(write_c_export(code, folder, given.force != 0));
    if (info == nullptr) return {};
    const CExportSizes& s = code.sizes;
    isobit_export_info out{};
    out.weights_bytes = s.weights_bytes;
    out.tables_bytes = s.tables_bytes;
    out.constants_bytes = s.other_bytes;
    out.selftest_bytes = s.selftest_bytes;
    out.state_bytes = s.state_bytes;
    out.scratch_bytes = s.scratch_bytes;
    out.multiply_adds = s.multiply_adds;
    return write_struct(info, out, "info");
  });
}
