// SPDX-License-Identifier: Apache-2.0
// What verify and fingerprint share, whoever computes: the paths of the CPU (gru.cc), a device (cuda.cc).
#ifndef ISOBIT_VERIFY_GRU_H_
#define ISOBIT_VERIFY_GRU_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gru/random_model.h"
#include "isobit/gru.h"
#include "isobit/table.h"
#include "isobit/verify.h"
#include "verify/fp16.h"

namespace isobit {

/// Counts the outputs of a run that differ, codes or floats by y_dtype, bit by bit; and a different last state as one
/// more. `what` describes the run, `expected_by` who gave what is expected.
void compare_run(const GruModel& model, const RandomRun& run, Dtype y_dtype, const RunOutput& expected,
                 const RunOutput& actual, bool batch_first, const std::string& what, std::string_view expected_by,
                 VerifyKernel& kernel);

struct FingerprintRuns {
  Fp16FunctionRun function;
  Fp16SoftmaxRun softmax;
  std::function<Result<std::vector<int32_t>>(const ActivationTable&)> table;  // at every input code, ascending
  std::function<Result<RunOutput>(const GruModel&, const RandomRun&)> gru;    // in the run's chunks
};
Result<Fingerprints> fingerprint_with(const FingerprintRuns& runs);

}  // namespace isobit

#endif  // ISOBIT_VERIFY_GRU_H_
