// SPDX-License-Identifier: Apache-2.0
// Integer models as C99: docs/microcontrollers.md.
//
//   ISOBIT_ASSIGN_OR_RETURN(const GruModel model, GruModel::load("enc.safetensors"));
//   ISOBIT_ASSIGN_OR_RETURN(const CExport code, export_c(model, {.name = "enc", .target = CTarget::kCortexM4}));
//   ISOBIT_RETURN_IF_ERROR(write_c_export(code, "out"));
#ifndef ISOBIT_EXPORT_H_
#define ISOBIT_EXPORT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/conv.h"
#include "isobit/fp16_export.h"
#include "isobit/fp16_table.h"
#include "isobit/gru.h"
#include "isobit/linear.h"
#include "isobit/report.h"
#include "isobit/status.h"
#include "isobit/table.h"

namespace isobit {

/// What the C is for. All targets give the same bytes.
enum class CTarget : int32_t {
  kGeneric = 0,    // C99 and nothing else
  kCortexM3 = 1,   // the same
  kCortexM4 = 2,   // products of two 16-bit pairs (SMLAD)
  kCortexM7 = 3,   // the same
  kCortexM33 = 4,  // the same
  kCortexM55 = 5,  // vectors of 16 bytes (MVE)
};
inline constexpr CTarget kAllCTargets[] = {CTarget::kGeneric,  CTarget::kCortexM3,  CTarget::kCortexM4,
                                           CTarget::kCortexM7, CTarget::kCortexM33, CTarget::kCortexM55};
/// "generic", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55".
std::string_view to_string(CTarget target);
std::optional<CTarget> c_target_from_string(std::string_view text);

struct CExportOptions {
  std::string name{};  // of files and functions: a C identifier; empty: made from that of the model
  CTarget target = CTarget::kGeneric;
  bool allow_large_tables = false;  // activation tables above kLargeTableBytes
  bool float_entry = false;         // GRUs: functions that take and give float32, too
  int64_t selftest_steps = 8;       // of NAME_selftest: steps of a GRU, rows of a linear layer; 1..1000
};
inline constexpr int64_t kLargeTableBytes = 16384;

/// Bytes, of the memories of a microcontroller, without code and stack, which depend on the compiler.
struct CExportSizes {
  int64_t weights_bytes = 0;   // codes of weights
  int64_t tables_bytes = 0;    // values of activation tables
  int64_t other_bytes = 0;     // start values and rescales of rows, constants of layers
  int64_t selftest_bytes = 0;  // vectors of NAME_selftest; the linker drops them where nothing calls it
  int64_t state_bytes = 0;     // RAM that is kept between steps
  int64_t scratch_bytes = 0;   // RAM during a call
  int64_t multiply_adds = 0;   // a step of a GRU, a row of a linear layer, an output pixel of a convolution
};

/// How many of a model's clamps and roundings the vectors of NAME_selftest meet at their limits.
struct CSelftestCoverage {
  int64_t clamps = 0, all_clamps = 0;  // tensors whose codes reach an end of the grid, of all that are clamped
  int64_t ties = 0;                    // rescales that meet a number halfway between two integers
};

struct CExport {
  std::string name, model;  // model: what is said of it, "GRU "enc", 1 layer, 20 -> 48"
  CTarget target = CTarget::kGeneric;
  std::vector<ExportedFile> files;  // NAME.h, NAME.c, NAME_data.c, NAME.cmake
  CExportSizes sizes;
  CSelftestCoverage coverage;
  std::string check_program;    // a main() that reads x and writes y, for check_c_export(); tables have none
  std::string measure_program;  // a main() that counts a step, for measure_c_export(); tables have none
  Dtype x_dtype = Dtype::kS8, y_dtype = Dtype::kS8;
};

/// C99 that gives the bytes of the model: no heap, no floating point, no recursion; of headers stdint.h, and those of
/// the target's instructions. The same model and options give the same text. docs/microcontrollers.md says what is in
/// it. Errors: kInvalidArgument for a name that is no C identifier, steps outside their limits; kUnsupported for a
/// model with x, h, W or R of more than 16 bits, or activation tables that are too large.
Result<CExport> export_c(const GruModel& model, const CExportOptions& options = {});
/// The same of a linear layer of static codes.
Result<CExport> export_c(const StaticLinearLayer& layer, const CExportOptions& options = {});
/// The same of a convolution of static codes, for images of any size.
Result<CExport> export_c(const StaticConvLayer& layer, const CExportOptions& options = {});

/// The same of an activation table: one function of a code.
Result<CExport> export_c(const ActivationTable& table, const CExportOptions& options = {});
/// What export_fp16_c() gives.
Result<CExport> export_c(const Fp16Table& table, const CExportOptions& options = {});
/// The same of a file of any of these kinds, but an activation table; `layer`: of several in it.
Result<CExport> export_c(const ArrayReader& file, std::string_view layer, const CExportOptions& options = {});

/// The files in `folder`, which is made where it is not there: all of them, or none. Errors: kInvalidArgument where
/// `folder` is not empty and `force` is not set; kIo.
Status write_c_export(const CExport& code, const std::string& folder, bool force = false);

/// What a check found.
struct CCheck {
  int64_t codes_compared = 0;
  std::string first_difference;  // empty: none. "y[3, 0, 17] is -5, isobit gives -4"
};
/// Compiles the code in a temporary folder, with `compiler` and then -std=c99 -O2, runs it, and compares with
/// forward(). `compiler`: words between spaces; empty: $CC, or else cc. No shell is started. Errors: kInvalidArgument
/// where `x` has another size or a code outside its grid; kFailedPrecondition where the compiler cannot be run or
/// refuses the code. x: codes [steps, batch, C]; every sequence begins with the first state.
Result<CCheck> check_c_export(const CExport& code, const GruModel& model, std::span<const std::byte> x, int64_t steps,
                              int64_t batch, const std::string& compiler = {});
/// The same of rows of a linear layer, x: codes [m, K].
Result<CCheck> check_c_export(const CExport& code, const StaticLinearLayer& layer, std::span<const std::byte> x,
                              int64_t m, const std::string& compiler = {});
/// The same of images of a convolution without residual, x: codes [images, H, W, C].
Result<CCheck> check_c_export(const CExport& code, const StaticConvLayer& layer, std::span<const std::byte> x,
                              int64_t images, const ImageSize& image, const std::string& compiler = {});

/// What compiler and emulator say of the code.
struct CMeasurement {
  CTarget core = CTarget::kCortexM4;
  std::string compiler, emulator, optimisation;  // the first lines of their versions; "-Os"
  int64_t code_bytes = 0;                        // functions that a step needs
  std::vector<std::string> helpers;              // functions of the compiler's own library, and others that it calls
  int64_t helper_bytes = 0;
  int64_t stack_bytes = 0;   // of a step
  int64_t instructions = 0;  // of a step, the mean of NAME_selftest's; not cycles
};
/// Compiles the code with arm-none-eabi-gcc and runs it, its self-test first, on a core that qemu-system-arm emulates.
/// `core` need not be the export's target, whose fast products are then plain C. Errors: kInvalidArgument for a core
/// that is none; kUnsupported for a table; kFailedPrecondition where compiler or emulator is not on PATH; kIo where one
/// of them fails, or the self-test does.
Result<CMeasurement> measure_c_export(const CExport& code, CTarget core, const std::string& optimisation = "-Os");

/// What there is to say of an export: a table of its memory, and JSON. `why_not`: why nothing was measured.
Description describe_c_export(const CExport& code, const std::optional<CMeasurement>& measured,
                              const std::string& why_not = {});

}  // namespace isobit

#endif  // ISOBIT_EXPORT_H_
