// SPDX-License-Identifier: Apache-2.0
// Internal to verify: the list of operations that verify and fingerprint go through, and what their verifiers share.
// The list of the CPU is in operations.cc, that of a device in cuda.cc.
#ifndef ISOBIT_VERIFY_OPERATIONS_H_
#define ISOBIT_VERIFY_OPERATIONS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isobit/cpu.h"
#include "isobit/status.h"
#include "isobit/verify.h"

namespace isobit {

struct VerifyOperation {
  std::string name;
  std::function<Result<VerifyReport>(const VerifyOptions&)> verify;  // empty: there is no kernel to compare
  std::function<Status(Fingerprints&)> fingerprint;                  // appends its lines
  std::function<bool(CpuPath)> has_kernel{};                         // empty: of every path
};

/// `path`: of the fingerprint; without one, the default.
std::vector<VerifyOperation> cpu_operations(std::optional<CpuPath> path);

std::vector<std::string_view> names_of_verifiers(std::span<const VerifyOperation> operations);
/// verify_kernels() for a list. `on_device`: it is that of a device.
Result<VerifyReport> verify_with(std::span<const VerifyOperation> operations, const VerifyOptions& options,
                                 bool on_device);
Result<Fingerprints> fingerprint_with(std::span<const VerifyOperation> operations);

/// The names of `required` that no kernel compared. `has_kernel` as in VerifyOperation.
std::vector<std::string> missing_paths(const VerifyReport& report, const VerifyOptions& options, bool on_device,
                                       const std::function<bool(CpuPath)>& has_kernel);

/// Somebody who is compared with the reference.
template <typename Run>
struct Candidate {
  VerifyKernel report;
  Run run;
};

/// The report of a kernel of the CPU; nothing for the reference, and for paths that cannot run here.
std::optional<VerifyKernel> cpu_kernel(std::string name, CpuPath path);

template <typename Run>
uint64_t least_compared(const std::vector<Candidate<Run>>& candidates) {
  uint64_t least = UINT64_MAX;
  for (const Candidate<Run>& candidate : candidates) least = std::min(least, candidate.report.outputs_compared);
  return least;
}

template <typename Run>
void append_reports(const std::vector<Candidate<Run>>& candidates, VerifyReport& report) {
  for (const Candidate<Run>& candidate : candidates) report.kernels.push_back(candidate.report);
}

/// Counts outputs that differ; the first text is kept.
void note_difference(VerifyKernel& kernel, uint64_t count, const std::string& text);

/// Calls round(0), round(1), ... until it returns at least `outputs`, the number of outputs so far.
template <typename Round>
Status repeat_until(uint64_t outputs, const std::function<void(double)>& progress, Round round) {
  uint64_t compared = 0;
  for (int64_t index = 0; index == 0 || compared < outputs; ++index) {
    ISOBIT_ASSIGN_OR_RETURN(compared, round(index));
    if (!progress) continue;
    progress(compared >= outputs ? 1.0 : static_cast<double>(compared) / static_cast<double>(outputs));
  }
  return {};
}

/// Progress of a part of the work, which begins at `first` and is `share` of it.
std::function<void(double)> part_of(const std::function<void(double)>& progress, double first, double share);

}  // namespace isobit

#endif  // ISOBIT_VERIFY_OPERATIONS_H_
