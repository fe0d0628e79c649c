// SPDX-License-Identifier: Apache-2.0
// Runs FP16 tables on the CPU. docs/numerics.md, section 13. All kernels give the same bytes.
#ifndef ISOBIT_FP16_FUNCTION_H_
#define ISOBIT_FP16_FUNCTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/cpu.h"
#include "isobit/dtype.h"
#include "isobit/fp16_table.h"
#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit {

/// One row of src/table/fp16/kernels.inc.
struct Fp16Kernel {
  std::string_view name;  // "reference", "avx2", "avx512vnni", "direct_scalar", "direct_avx2", "direct_avx512vnni"
  CpuPath path = CpuPath::kReference;
  bool direct = false;  // looks the result up among all 65536 rather than interpolating
};
/// In a fixed order, those included that cannot run here (cpu_can_run says).
std::span<const Fp16Kernel> fp16_kernels();

/// An elementwise function: y = table(x). Immutable, cheap to copy, safe to share between threads.
class Fp16Function {
 public:
  /// Checks the table and computes the results of all 65536 codes.
  static Result<Fp16Function> create(const Fp16Table& table);

  [[nodiscard]] const Fp16Table& table() const;
  /// The result of every float16 code, in ascending order of the code as an unsigned integer.
  [[nodiscard]] std::span<const uint16_t> results() const;
  /// The kernel that runs when none is named. `create` reads ISOBIT_CPU; an error there is this one's.
  [[nodiscard]] Result<std::string_view> default_kernel() const;

  /// x and y: f16, bf16 or f32, any pair, aligned to their elements, the same number of elements. x is rounded to
  /// float16 (nearest even), y is the float16 result widened, or rounded to bfloat16; NaN comes out as the quiet NaN
  /// 0x7E00, 0x7FC0 or 0x7FC00000. y may be x itself where both types have the same size; other overlaps are refused.
  /// Needs no workspace and allocates nothing. Of the options kernel, or path, and pool: elements (rows of a softmax)
  /// are split statically. Default: the fastest kernel that can run here, or on the path that ISOBIT_CPU named at
  /// `create`. Errors: kUnsupported for other types; kInvalidArgument for sizes, alignment, overlap, an unknown kernel
  /// or other options; kFailedPrecondition for a kernel that this machine cannot run. Nothing is written then.
  [[nodiscard]] Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                               const RunOptions& options = {}) const;

 private:
  struct Data;
  std::shared_ptr<const Data> data_;
};

/// softmax over the last dimension: y_i = e^(x_i - max x) / sum_j e^(x_j - max x), with the exponential and the
/// reciprocal from tables and an exact sum, so that neither order nor kernel changes a bit.
class Fp16Softmax {
 public:
  /// `exp`: reduction kExp, values in [0.5, 2]; `reciprocal`: reduction kReciprocal, values in [0.25, 2]; the same
  /// model.
  static Result<Fp16Softmax> create(const Fp16Table& exp, const Fp16Table& reciprocal);

  [[nodiscard]] const Fp16Table& exp_table() const;
  [[nodiscard]] const Fp16Table& reciprocal_table() const;

  /// x and y as for Fp16Function, rows of `columns` elements, 1..2^31 - 1, which must divide their number. Kernels:
  /// "reference" and what `fp16_softmax_kernels` adds.
  [[nodiscard]] Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                               int64_t columns, const RunOptions& options = {}) const;

 private:
  struct Data;
  std::shared_ptr<const Data> data_;
};
std::span<const Fp16Kernel> fp16_softmax_kernels();

}  // namespace isobit

#endif  // ISOBIT_FP16_FUNCTION_H_
