// SPDX-License-Identifier: Apache-2.0
// Internal to verify: convolutions of static codes.
#ifndef ISOBIT_VERIFY_CONV_H_
#define ISOBIT_VERIFY_CONV_H_

#include <optional>

#include "isobit/cpu.h"
#include "isobit/status.h"
#include "isobit/verify.h"

namespace isobit {

/// Whether a path has kernels of its own: AMX has none.
bool has_conv_kernel(CpuPath path);
/// The verifier of random convolutions on the paths of the CPU.
Result<VerifyReport> verify_conv(const VerifyOptions& options);
/// Appends the hash of what section 12 determines. path: default, the fastest.
Status fingerprint_conv(std::optional<CpuPath> path, Fingerprints& lines);

}  // namespace isobit

#endif  // ISOBIT_VERIFY_CONV_H_
