// SPDX-License-Identifier: Apache-2.0
#include "isobit/verify.h"

#include <algorithm>

#include "core/codes.h"
#include "core/hash.h"
#include "core/random.h"
#include "gru/random_model.h"
#include "isobit/gru.h"
#include "table/fp16_verify.h"

namespace isobit {

Result<VerifyReport> verify_gru(uint64_t minimum_outputs, uint64_t seed, void (*progress)(void*, double fraction),
                                void* context) {
  VerifyReport report;
  std::vector<CpuPath> paths;
  for (const CpuPath path : kAllCpuPaths) {
    if (path == CpuPath::kReference || !cpu_can_run(path)) continue;
    paths.push_back(path);
    report.kernels.push_back({"gru_" + std::string(to_string(path)), 0, 0, ""});
  }
  Random random(seed);
  for (int64_t index = 0;; ++index) {
    uint64_t least = UINT64_MAX;
    for (const VerifyKernel& kernel : report.kernels) least = std::min(least, kernel.outputs_compared);
    if (progress != nullptr)
      progress(context, minimum_outputs == 0 ? 1.0 : std::min(1.0, static_cast<double>(least) / static_cast<double>(minimum_outputs)));
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
      VerifyKernel& kernel = report.kernels[k];
      const Dtype dtype = model->output_grid().dtype();
      const int64_t count = run.steps * run.batch * model->output_size();
      kernel.outputs_compared += static_cast<uint64_t>(count);
      bool states_equal = true;
      for (int64_t l = 0; l < expected.state.layer_count(); ++l) {
        const auto a = expected.state.layer(l);
        const auto b = actual.state.layer(l);
        states_equal = states_equal && std::equal(a.begin(), a.end(), b.begin(), b.end());
      }
      if (expected.y == actual.y && states_equal) continue;
      if (expected.y == actual.y) {
        ++kernel.different;
        if (kernel.first_difference.empty()) kernel.first_difference = describe(shape, run, seed, index) + ": last state";
      }
      for (int64_t i = 0; i < count; ++i) {
        const int64_t want = load_code(expected.y.data(), dtype, i);
        const int64_t got = load_code(actual.y.data(), dtype, i);
        if (want == got) continue;
        ++kernel.different;
        if (!kernel.first_difference.empty()) continue;
        const int64_t width = model->output_size();
        kernel.first_difference = describe(shape, run, seed, index) + ": y[" + std::to_string(i / (width * run.batch)) + ", " +
                                  std::to_string(i / width % run.batch) + ", " + std::to_string(i % width) + "] is " +
                                  std::to_string(got) + ", the reference gives " + std::to_string(want);
      }
    }
  }
  return report;
}

Result<std::vector<std::pair<std::string, std::string>>> fingerprint_all(std::optional<CpuPath> path) {
  std::vector<std::pair<std::string, std::string>> lines;
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
      for (const ActivationTable& table : layer.tables)
        for (int64_t q = table.input.min(); q <= table.input.max(); ++q) {
          const auto code = static_cast<int32_t>(table(q));
          hash_bytes(tables, &code, sizeof code);
        }
    const RandomRun run = random_run(random, *model, 4000);
    // Models with wider tensors run on the reference whatever the path.
    CpuPath used = CpuPath::kReference;
    if (path) {
      if (!cpu_can_run(*path)) return model->supports(*path);
      if (model->supports(*path).ok()) used = *path;
    } else {
      ISOBIT_ASSIGN_OR_RETURN(used, model->choose_path(std::nullopt));
    }
    ISOBIT_ASSIGN_OR_RETURN(const RunOutput out, execute(*model, run, used, true));
    hash_bytes(gru, out.y.data(), out.y.size());
    for (int64_t l = 0; l < out.state.layer_count(); ++l) hash_bytes(gru, out.state.layer(l).data(), out.state.layer(l).size());
  }
  lines.emplace_back("activation_table", hash_text(tables));
  ISOBIT_RETURN_IF_ERROR(fingerprint_fp16(path, lines));
  lines.emplace_back("gru", hash_text(gru));
  return lines;
}

}  // namespace isobit
