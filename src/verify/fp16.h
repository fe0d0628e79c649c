// SPDX-License-Identifier: Apache-2.0
// Internal to verify: what FP16 tables are verified and fingerprinted on, whoever computes them: a kernel of the CPU or
// a device.
#ifndef ISOBIT_VERIFY_FP16_H_
#define ISOBIT_VERIFY_FP16_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isobit/cpu.h"
#include "isobit/dtype.h"
#include "isobit/fp16_function.h"
#include "isobit/status.h"
#include "isobit/verify.h"
#include "verify/operations.h"

namespace isobit {

using Fp16FunctionRun = std::function<Status(const Fp16Function& function, std::span<const std::byte> x, Dtype x_dtype,
                                             std::span<std::byte> y, Dtype y_dtype)>;
/// float16 rows in and out.
using Fp16SoftmaxRun = std::function<Status(const Fp16Softmax& softmax, std::span<const std::byte> x,
                                            std::span<std::byte> y, int64_t columns)>;

/// On a path's kernel, or that of the nearest path before it; without a path, on the default.
Fp16FunctionRun fp16_function_run(std::optional<CpuPath> path);
Fp16SoftmaxRun fp16_softmax_run(std::optional<CpuPath> path);

/// The verifier on the kernels of the CPU, and for any candidates.
Result<VerifyReport> verify_fp16(const VerifyOptions& options);
Result<VerifyReport> verify_fp16_with(std::vector<Candidate<Fp16FunctionRun>> functions,
                                      std::vector<Candidate<Fp16SoftmaxRun>> softmaxes, const VerifyOptions& options);
/// Whether there is a kernel of this path.
bool has_fp16_kernel(CpuPath path);

/// Appends the hashes of FP16 tables and softmax to those of the fingerprint.
Status fingerprint_fp16(const Fp16FunctionRun& run_function, const Fp16SoftmaxRun& run_softmax, Fingerprints& lines);

}  // namespace isobit

#endif  // ISOBIT_VERIFY_FP16_H_
