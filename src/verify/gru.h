// SPDX-License-Identifier: Apache-2.0
// Internal to verify: integer GRUs and their activation tables, whoever computes: the paths of the CPU (gru.cc), a
// device (cuda.cc).
#ifndef ISOBIT_VERIFY_GRU_H_
#define ISOBIT_VERIFY_GRU_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gru/random_model.h"
#include "isobit/gru.h"
#include "isobit/table.h"
#include "isobit/verify.h"
#include "verify/operations.h"

namespace isobit {

/// One run of one model, and what is expected of it.
struct GruCase {
  GruModel model;
  RandomRun run;
  std::vector<float> x_floats{};  // what the codes of run.x are of, or empty: then the run is one of codes
  bool batch_first = false;
  RunOutput expected{};  // y: codes, or floats
  CpuPath expected_by = CpuPath::kReference;
  std::string text{};
};

/// What a kernel gives for a case in the run's chunks; nothing where it cannot run that.
using GruRun = std::function<Result<std::optional<RunOutput>>(const GruCase&)>;

/// Runs a case on every candidate, and counts outputs that differ, bit by bit, and last states that differ as one more.
/// `expected_by`: see VerifyReport.
Status compare_case(const GruCase& c, std::vector<Candidate<GruRun>>& candidates,
                    std::map<std::string, uint64_t>& expected_by);

/// verify_model() for any candidates.
Result<VerifyReport> verify_model_with(const GruModel& model, std::vector<Candidate<GruRun>> candidates,
                                       const VerifyOptions& options, bool on_device);

/// The verifier of random models on the paths of the CPU.
Result<VerifyReport> verify_gru(const VerifyOptions& options);

/// The same of somebody who runs every model, for the fingerprint.
using GruRunOfAll = std::function<Result<RunOutput>(const GruCase&)>;
/// A path's kernel; of models that it does not support, the reference. Without a path, the default.
GruRunOfAll gru_run(std::optional<CpuPath> path);
/// Appends the hash of GRUs.
Status fingerprint_gru(const GruRunOfAll& run, Fingerprints& lines);

/// The table at every input code, ascending.
Result<std::vector<int32_t>> table_codes(const ActivationTable& table);
/// Appends the hash of the tables of those GRUs. `run` as table_codes.
Status fingerprint_tables(const std::function<Result<std::vector<int32_t>>(const ActivationTable&)>& run,
                          Fingerprints& lines);

}  // namespace isobit

#endif  // ISOBIT_VERIFY_GRU_H_
