// SPDX-License-Identifier: Apache-2.0
// Self-checks: every kernel against the reference, and hashes that are the same everywhere.
#ifndef ISOBIT_VERIFY_H_
#define ISOBIT_VERIFY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "isobit/cpu.h"
#include "isobit/status.h"

namespace isobit {

class GruModel;

/// What one kernel of an operation gave, compared with the reference byte for byte.
struct VerifyKernel {
  std::string name;  // operation and kernel: "gru_avx2", "fp16_table_direct_avx2", "fp16_softmax_avx512vnni"
  std::string path;  // of the CPU, as to_string(CpuPath) has it, or "cuda"
  uint64_t outputs_compared = 0;
  uint64_t bytes_compared = 0;  // what those outputs occupy
  uint64_t different = 0;
  std::string first_difference{};  // configuration, coordinate and both values; empty when nothing differs
};

struct VerifyReport {
  std::vector<VerifyKernel> kernels;
  /// CPU paths that gave expected outputs in place of the reference, and how many of those compared.
  std::vector<std::pair<std::string, uint64_t>> expected_by;
  std::vector<std::string> missing;  // of VerifyOptions::required
};

struct VerifyOptions {
  std::string operation{};        // one of verify_operations(); empty: all of them
  uint64_t outputs = 10'000'000;  // least number of outputs that each kernel gives
  uint64_t seed = 1;              // of models and inputs
  /// Paths that must be compared, "avx2" or "cuda", of every operation that has a kernel of theirs. VerifyReport::missing
  /// names those that were not. A device is not asked for paths of the CPU.
  std::vector<std::string> required{};
  std::function<void(double fraction)> progress{};  // 0 to 1
};

/// Names for VerifyOptions: "fp16_table" (with softmax), "gru", "linear", "conv".
std::vector<std::string_view> verify_operations();

/// Runs seeded random layers and inputs through every kernel that this machine can run.
///   fp16_table: every code of every built-in table (functions, models, types of values) for every pair of types, 100
///     million outputs in all, then random and special float32 inputs; softmax of random rows, a tenth of that.
///   gru: random models and runs.
///   linear: random layers. Activations of 8 bits and static codes are compared with the reference. Float activations: a
///     row counts as different where it is beyond the bound of numerics.md, section 10, or has other bytes when it is
///     computed alone or on other threads.
///   conv: random convolutions. Static codes, and images that are quantised on the fly, are compared with the
///     reference. Of float activations an output pixel is judged as a row of linear layers is.
/// kInvalidArgument for an unknown operation. A difference is no error: it is in the report.
Result<VerifyReport> verify_kernels(const VerifyOptions& options = {});

/// Runs random codes of the input grid of `model`, extremes included, through every kernel of this machine that supports
/// it: batches around the widths of the kernels' tiles, first states, lengths, pieces and masks. The names of the kernels
/// are those of their paths. options.outputs counts the outputs of a kernel; options.operation is not used.
Result<VerifyReport> verify_model(const GruModel& model, const VerifyOptions& options = {});

/// (operation, hash) over a fixed corpus: the same text on every machine and for every path.
using Fingerprints = std::vector<std::pair<std::string, std::string>>;
Result<Fingerprints> fingerprint_all(std::optional<CpuPath> path);

}  // namespace isobit

#endif  // ISOBIT_VERIFY_H_
