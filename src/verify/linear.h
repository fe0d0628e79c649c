// SPDX-License-Identifier: Apache-2.0
// Internal to verify: linear layers.
#ifndef ISOBIT_VERIFY_LINEAR_H_
#define ISOBIT_VERIFY_LINEAR_H_

#include <optional>

#include "isobit/cpu.h"
#include "isobit/status.h"
#include "isobit/verify.h"

namespace isobit {

/// The verifier of random layers on the kernels of the CPU.
Result<VerifyReport> verify_linear(const VerifyOptions& options);

/// Appends the hashes of what section 11 and section 12 determine, on the kernels of a path; without one, the default.
Status fingerprint_linear(std::optional<CpuPath> path, Fingerprints& lines);

}  // namespace isobit

#endif  // ISOBIT_VERIFY_LINEAR_H_
