// SPDX-License-Identifier: Apache-2.0
// Self-checks that need no files: every kernel against the reference, and hashes that are the same everywhere.
#ifndef ISOBIT_VERIFY_H_
#define ISOBIT_VERIFY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "isobit/cpu.h"
#include "isobit/status.h"

namespace isobit {

/// What one kernel of an operation gave, compared with the reference byte for byte.
struct VerifyKernel {
  std::string name;  // operation and kernel: "gru_avx2", "fp16_table_direct_avx2", "fp16_softmax_avx512vnni"
  uint64_t outputs_compared = 0;
  uint64_t bytes_compared = 0;  // what those outputs occupy
  uint64_t different = 0;
  std::string first_difference;  // configuration, coordinate and both values; empty when nothing differs
};

struct VerifyReport {
  std::vector<VerifyKernel> kernels;
  /// Who gave the expected outputs ("reference", a CPU path), and how many of those compared; empty: the reference,
  /// all.
  std::vector<std::pair<std::string, uint64_t>> expected_by;
};

/// Runs seeded random GRUs and inputs through every kernel that this machine can run, until each has given at least
/// `minimum_outputs` outputs. `progress` (optional) receives `context` and the share done, 0 to 1.
Result<VerifyReport> verify_gru(uint64_t minimum_outputs, uint64_t seed, void (*progress)(void*, double fraction),
                                void* context);

/// Runs built-in FP16 tables through every kernel that this machine can run until each has given at least
/// `minimum_outputs` outputs: first every code of every table (functions, models, types of values) for every pair of
/// types, 100 million outputs in all, then random and special float32 inputs. Softmax of random rows, a tenth of that.
Result<VerifyReport> verify_fp16(uint64_t minimum_outputs, uint64_t seed, void (*progress)(void*, double fraction),
                                 void* context);

/// Runs seeded random linear layers through every kernel that this machine can run until each has given at least
/// `minimum_outputs` outputs. Activations of 8 bits and static codes: compared with the reference. Float activations: a
/// row counts as different where it is beyond the bound of numerics.md, section 10, or has other bytes when it is
/// computed alone or on other threads.
Result<VerifyReport> verify_linear(uint64_t minimum_outputs, uint64_t seed, void (*progress)(void*, double fraction),
                                   void* context);

/// (operation, hash) over a fixed corpus: the same text on every machine and for every path.
using Fingerprints = std::vector<std::pair<std::string, std::string>>;
Result<Fingerprints> fingerprint_all(std::optional<CpuPath> path);

}  // namespace isobit

#endif  // ISOBIT_VERIFY_H_
