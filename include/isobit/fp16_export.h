// SPDX-License-Identifier: Apache-2.0
// FP16 tables as C source and as a memory image. docs/formats.md describes both.
#ifndef ISOBIT_FP16_EXPORT_H_
#define ISOBIT_FP16_EXPORT_H_

#include <string>
#include <string_view>
#include <vector>

#include "isobit/fp16_table.h"
#include "isobit/status.h"

namespace isobit {

/// The function as people write it: "x / (1 + e^-x)". `beta` is for swish only.
std::string fp16_formula(std::string_view function, double beta = 1.0);

struct ExportedFile {
  std::string name;  // without a folder
  std::string text;
};

struct Fp16CExportOptions {
  bool with_test = true;  // NAME_test.c as well
};

/// Freestanding C99 that gives the table's result for every float16 code: NAME.h declares `uint16_t NAME(uint16_t x)`
/// on codes and `float NAME_f32(float x)`, NAME.c defines them, and NAME_test.c is a program that returns 0 when they
/// are right. There is no floating-point operation in NAME.c: neither compiler, options nor FPU can change a bit. The
/// same table and name give the same bytes. Errors: a name that is no C identifier, or one that C or C++ has taken;
/// what check_fp16_table refuses; neighbouring values whose difference is no finite float32 (kUnsupported).
Result<std::vector<ExportedFile>> export_fp16_c(const Fp16Table& table, std::string_view name,
                                                const Fp16CExportOptions& options = {});

/// The table as words in hexadecimal, one a line, for $readmemh and the like.
Result<std::string> export_fp16_hex(const Fp16Table& table);

}  // namespace isobit

#endif  // ISOBIT_FP16_EXPORT_H_
