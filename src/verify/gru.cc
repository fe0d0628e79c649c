// SPDX-License-Identifier: Apache-2.0
#include "isobit/verify.h"

#include <algorithm>

#include "core/codes.h"
#include "core/float_mode.h"
#include "core/hash.h"
#include "core/number_text.h"
#include "core/random.h"
#include "gru/random_model.h"
#include "isobit/gru.h"
#include "verify/fp16.h"
#include "verify/gru.h"
#include "verify/linear.h"

namespace isobit {

void compare_run(const GruModel& model, const RandomRun& run, Dtype y_dtype, const RunOutput& expected,
                 const RunOutput& actual, bool batch_first, const std::string& what, std::string_view expected_by,
                 VerifyKernel& kernel) {
  const bool floats = y_dtype == Dtype::kF32;
  const auto bits = [&](const RunOutput& run_output, int64_t i) {
    return load_code(run_output.y.data(), floats ? Dtype::kU32 : y_dtype, i);
  };
  const auto text = [&](int64_t value) {
    return floats ? number_text(double{__builtin_bit_cast(float, static_cast<uint32_t>(value))})
                  : std::to_string(value);
  };
  const int64_t width = model.output_size();
  const int64_t count = run.steps * run.batch * width;
  kernel.outputs_compared += static_cast<uint64_t>(count);
  kernel.bytes_compared += expected.y.size();
  const auto report = [&](const std::string& where) {
    ++kernel.different;
    if (kernel.first_difference.empty()) kernel.first_difference = what + ": " + where;
  };
  const int64_t differing = expected.y == actual.y ? 0 : count;
  for (int64_t i = 0; i < differing; ++i) {
    const int64_t want = bits(expected, i);
    const int64_t got = bits(actual, i);
    if (want == got) continue;
    const int64_t row = i / width;
    const int64_t t = batch_first ? row % run.steps : row / run.batch;
    const int64_t n = batch_first ? row / run.steps : row % run.batch;
    report("y[" + std::to_string(t) + ", " + std::to_string(n) + ", " + std::to_string(i % width) + "] is " +
           text(got) + ", " + std::string(expected_by) + " gives " + text(want));
  }
  bool states_equal = true;
  for (int64_t l = 0; l < expected.state.layer_count(); ++l) {
    const auto a = expected.state.layer(l);
    const auto b = actual.state.layer(l);
    states_equal = states_equal && std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  if (!states_equal) report("the last state");
}

Result<VerifyReport> verify_gru(uint64_t minimum_outputs, uint64_t seed, void (*progress)(void*, double fraction),
                                void* context) {
  const DefaultFloatMode mode;
  VerifyReport report;
  std::vector<CpuPath> paths;
  for (const CpuPath path : kAllCpuPaths) {
    if (path == CpuPath::kReference || !cpu_can_run(path)) continue;
    paths.push_back(path);
    report.kernels.emplace_back();
    report.kernels.back().name = "gru_" + std::string(to_string(path));
  }
  Random random(seed);
  for (int64_t index = 0;; ++index) {
    uint64_t least = UINT64_MAX;
    for (const VerifyKernel& kernel : report.kernels) least = std::min(least, kernel.outputs_compared);
    if (progress != nullptr)
      progress(context, minimum_outputs == 0
                            ? 1.0
                            : std::min(1.0, static_cast<double>(least) / static_cast<double>(minimum_outputs)));
    if (least >= minimum_outputs) break;
    const RandomShape shape = random_shape(random);
    Result<GruModel> model = random_model(random, shape);
    if (!model.ok()) {
      if (model.status().code() == StatusCode::kOverflow) continue;  // refused by the proof, as it must
      return model.status();
    }
    const RandomRun run = random_run(random, *model, 60000);
    ISOBIT_ASSIGN_OR_RETURN(const RunOutput expected, execute(*model, run, CpuPath::kReference, false));
    for (size_t k = 0; k < paths.size(); ++k) {
      if (!model->supports(paths[k]).ok()) continue;
      ISOBIT_ASSIGN_OR_RETURN(const RunOutput actual, execute(*model, run, paths[k], true));
      compare_run(*model, run, model->output_grid().dtype(), expected, actual, false, describe(shape, run, seed, index),
                  "the reference", report.kernels[k]);
    }
  }
  return report;
}

Result<Fingerprints> fingerprint_with(const FingerprintRuns& runs) {
  const DefaultFloatMode mode;
  Fingerprints lines;
  uint64_t tables = kHashStart;
  uint64_t gru = kHashStart;
  Random random(20240601);
  for (int64_t index = 0; index < 48;) {
    const RandomShape shape = random_shape(random);
    Result<GruModel> model = random_model(random, shape);
    if (!model.ok()) {
      if (model.status().code() == StatusCode::kOverflow) continue;
      return model.status();
    }
    ++index;
    for (const GruLayerParameters& layer : model->parameters().layers)
      for (const ActivationTable& table : layer.tables) {
        ISOBIT_ASSIGN_OR_RETURN(const std::vector<int32_t> codes, runs.table(table));
        hash_bytes(tables, codes.data(), codes.size() * sizeof(int32_t));
      }
    ISOBIT_ASSIGN_OR_RETURN(const RunOutput out, runs.gru(*model, random_run(random, *model, 4000)));
    hash_bytes(gru, out.y.data(), out.y.size());
    for (int64_t l = 0; l < out.state.layer_count(); ++l)
      hash_bytes(gru, out.state.layer(l).data(), out.state.layer(l).size());
  }
  lines.emplace_back("activation_table", hash_text(tables));
  ISOBIT_RETURN_IF_ERROR(fingerprint_fp16(runs.function, runs.softmax, lines));
  lines.emplace_back("gru", hash_text(gru));
  return lines;
}

Result<Fingerprints> fingerprint_all(std::optional<CpuPath> path) {
  const DefaultFloatMode mode;
  if (path && !cpu_can_run(*path))
    return Status(StatusCode::kFailedPrecondition,
                  "path " + std::string(to_string(*path)) + ": " + std::string(cpu_cannot_run_reason(*path)));
  FingerprintRuns runs;
  runs.function = fp16_function_run(path);
  runs.softmax = fp16_softmax_run(path);
  runs.table = [](const ActivationTable& table) -> Result<std::vector<int32_t>> {
    std::vector<int32_t> codes;
    for (int64_t q = table.input.min(); q <= table.input.max(); ++q) codes.push_back(static_cast<int32_t>(table(q)));
    return codes;
  };
  runs.gru = [path](const GruModel& model, const RandomRun& run) -> Result<RunOutput> {
    // Models with wider tensors run on the reference whatever the path.
    CpuPath used = CpuPath::kReference;
    if (!path) {
      ISOBIT_ASSIGN_OR_RETURN(used, model.choose_path(std::nullopt));
    } else if (model.supports(*path).ok()) {
      used = *path;
    }
    return execute(model, run, used, true);
  };
  ISOBIT_ASSIGN_OR_RETURN(Fingerprints lines, fingerprint_with(runs));
  ISOBIT_RETURN_IF_ERROR(fingerprint_linear(path, lines));
  return lines;
}

}  // namespace isobit
