// SPDX-License-Identifier: Apache-2.0
#include "verify/gru.h"

#include <algorithm>
#include <iterator>

#include "core/codes.h"
#include "core/float_mode.h"
#include "core/hash.h"
#include "core/number_text.h"
#include "core/random.h"

namespace isobit {
namespace {

void compare_outputs(const GruCase& c, const RunOutput& actual, VerifyKernel& kernel) {
  const bool floats = !c.x_floats.empty();
  const Dtype dtype = floats ? Dtype::kU32 : c.model.output_grid().dtype();
  const auto text = [&](int64_t bits) {
    return floats ? number_text(double{__builtin_bit_cast(float, static_cast<uint32_t>(bits))}) : std::to_string(bits);
  };
  const std::string by =
      (c.expected_by == CpuPath::kReference ? "the " : "") + std::string(to_string(c.expected_by)) + " gives ";
  const RandomRun& run = c.run;
  const int64_t width = c.model.output_size();
  const int64_t count = run.steps * run.batch * width;
  kernel.outputs_compared += static_cast<uint64_t>(count);
  kernel.bytes_compared += c.expected.y.size();
  const int64_t differing = c.expected.y == actual.y ? 0 : count;
  for (int64_t i = 0; i < differing; ++i) {
    const int64_t want = load_code(c.expected.y.data(), dtype, i);
    const int64_t got = load_code(actual.y.data(), dtype, i);
    if (want == got) continue;
    const int64_t row = i / width;
    const int64_t t = c.batch_first ? row % run.steps : row / run.batch;
    const int64_t n = c.batch_first ? row / run.steps : row % run.batch;
    note_difference(kernel, 1,
                    c.text + ": y[" + std::to_string(t) + ", " + std::to_string(n) + ", " + std::to_string(i % width) +
                        "] is " + text(got) + ", " + by + text(want));
  }
  bool states_equal = true;
  for (int64_t l = 0; l < c.expected.state.layer_count(); ++l) {
    const auto a = c.expected.state.layer(l), b = actual.state.layer(l);
    states_equal = states_equal && std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  if (!states_equal) note_difference(kernel, 1, c.text + ": the last state");
}

Candidate<GruRun> path_candidate(VerifyKernel report, CpuPath path) {
  return {std::move(report), [path](const GruCase& c) -> Result<std::optional<RunOutput>> {
            if (!c.model.supports(path).ok()) return std::optional<RunOutput>();
            ISOBIT_ASSIGN_OR_RETURN(RunOutput out, execute(c.model, c.run, path, true));
            return std::optional(std::move(out));
          }};
}

/// Run number `index` of a model that is given.
Result<GruCase> case_of_model(const GruModel& model, uint64_t seed, int64_t index) {
  constexpr int64_t kBatches[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33};  // around the widths of the kernels' tiles
  Random random(seed + static_cast<uint64_t>(index));
  GruCase c;
  c.model = model;
  c.run.batch = kBatches[static_cast<size_t>(index) % std::size(kBatches)];
  c.run.steps = 1 + index % 13;
  fill_run(random, model, c.run);
  const Grid& grid = model.input_grid();
  for (int64_t row = 0; row < c.run.steps * c.run.batch; ++row) {
    if (row % c.run.batch % 4 != 3) continue;  // every fourth sequence holds the two ends of the grid only
    for (int64_t i = row * model.input_size(); i < (row + 1) * model.input_size(); ++i)
      store_code(c.run.x.data(), grid.dtype(), i, random.one_in(2) ? grid.min() : grid.max());
  }
  c.text = "seed " + std::to_string(seed) + " run " + std::to_string(index) + ", T " + std::to_string(c.run.steps) +
           " N " + std::to_string(c.run.batch);
  ISOBIT_ASSIGN_OR_RETURN(c.expected, execute(model, c.run, CpuPath::kReference, false));
  return c;
}

/// The models and runs of the fingerprint.
Status for_each_fingerprint_case(const std::function<Status(const GruCase&)>& use) {
  Random random(20240601);
  for (int64_t index = 0; index < 48;) {
    Result<GruModel> model = random_model(random, random_shape(random));
    if (!model.ok()) {
      if (model.status().code() == StatusCode::kOverflow) continue;
      return model.status();
    }
    ++index;
    GruCase c;
    c.model = *std::move(model);
    c.run = random_run(random, c.model, 4000);
    ISOBIT_RETURN_IF_ERROR(use(c));
  }
  return {};
}

}  // namespace

Status compare_case(const GruCase& c, std::vector<Candidate<GruRun>>& candidates,
                    std::map<std::string, uint64_t>& expected_by) {
  for (Candidate<GruRun>& candidate : candidates) {
    const Result<std::optional<RunOutput>> actual = candidate.run(c);
    if (!actual.ok())
      return {actual.status().code(), c.text + ", " + candidate.report.name + ": " + actual.status().message()};
    if (!*actual) continue;
    compare_outputs(c, **actual, candidate.report);
    if (c.expected_by != CpuPath::kReference)
      expected_by[std::string(to_string(c.expected_by))] +=
          static_cast<uint64_t>(c.run.steps * c.run.batch * c.model.output_size());
  }
  return {};
}

Result<VerifyReport> verify_model_with(const GruModel& model, std::vector<Candidate<GruRun>> candidates,
                                       const VerifyOptions& options, bool on_device) {
  const DefaultFloatMode mode;
  VerifyReport report;
  uint64_t outputs = 0;
  std::map<std::string, uint64_t> expected_by;  // the reference only
  const auto round = [&](int64_t index) -> Result<uint64_t> {
    ISOBIT_ASSIGN_OR_RETURN(const GruCase c, case_of_model(model, options.seed, index));
    ISOBIT_RETURN_IF_ERROR(compare_case(c, candidates, expected_by));
    return outputs += static_cast<uint64_t>(c.run.steps * c.run.batch * model.output_size());
  };
  if (!candidates.empty()) ISOBIT_RETURN_IF_ERROR(repeat_until(options.outputs, options.progress, round));
  append_reports(candidates, report);
  report.missing = missing_paths(report, options, on_device, {});
  return report;
}

Result<VerifyReport> verify_model(const GruModel& model, const VerifyOptions& options) {
  std::vector<Candidate<GruRun>> candidates;
  for (const CpuPath path : kAllCpuPaths) {
    std::optional<VerifyKernel> kernel = cpu_kernel(std::string(to_string(path)), path);
    if (kernel && model.supports(path).ok()) candidates.push_back(path_candidate(*std::move(kernel), path));
  }
  return verify_model_with(model, std::move(candidates), options, false);
}

Result<VerifyReport> verify_gru(const VerifyOptions& options) {
  std::vector<Candidate<GruRun>> candidates;
  for (const CpuPath path : kAllCpuPaths)
    if (auto kernel = cpu_kernel("gru_" + std::string(to_string(path)), path))
      candidates.push_back(path_candidate(*std::move(kernel), path));
  Random random(options.seed);
  std::map<std::string, uint64_t> expected_by;  // the reference only
  const auto round = [&](int64_t index) -> Result<uint64_t> {
    const RandomShape shape = random_shape(random);
    Result<GruModel> model = random_model(random, shape);
    if (!model.ok()) {
      if (model.status().code() != StatusCode::kOverflow) return model.status();
      return least_compared(candidates);  // refused by the proof, as it must
    }
    GruCase c;
    c.model = *std::move(model);
    c.run = random_run(random, c.model, 60000);
    c.text = describe(shape, c.run, options.seed, index);
    ISOBIT_ASSIGN_OR_RETURN(c.expected, execute(c.model, c.run, CpuPath::kReference, false));
    ISOBIT_RETURN_IF_ERROR(compare_case(c, candidates, expected_by));
    return least_compared(candidates);
  };
  ISOBIT_RETURN_IF_ERROR(repeat_until(options.outputs, options.progress, round));
  VerifyReport report;
  append_reports(candidates, report);
  return report;
}

GruRunOfAll gru_run(std::optional<CpuPath> path) {
  return [path](const GruCase& c) -> Result<RunOutput> {
    CpuPath used = CpuPath::kReference;
    if (!path) {
      ISOBIT_ASSIGN_OR_RETURN(used, c.model.choose_path(std::nullopt));
    } else if (c.model.supports(*path).ok()) {
      used = *path;
    }
    return execute(c.model, c.run, used, true);
  };
}

Status fingerprint_gru(const GruRunOfAll& run, Fingerprints& lines) {
  uint64_t hash = kHashStart;
  ISOBIT_RETURN_IF_ERROR(for_each_fingerprint_case([&](const GruCase& c) -> Status {
    ISOBIT_ASSIGN_OR_RETURN(const RunOutput out, run(c));
    hash_bytes(hash, out.y.data(), out.y.size());
    for (int64_t l = 0; l < out.state.layer_count(); ++l)
      hash_bytes(hash, out.state.layer(l).data(), out.state.layer(l).size());
    return {};
  }));
  lines.emplace_back("gru", hash_text(hash));
  return {};
}

Result<std::vector<int32_t>> table_codes(const ActivationTable& table) {
  std::vector<int32_t> codes;
  for (int64_t q = table.input.min(); q <= table.input.max(); ++q) codes.push_back(static_cast<int32_t>(table(q)));
  return codes;
}

Status fingerprint_tables(const std::function<Result<std::vector<int32_t>>(const ActivationTable&)>& run,
                          Fingerprints& lines) {
  uint64_t hash = kHashStart;
  ISOBIT_RETURN_IF_ERROR(for_each_fingerprint_case([&](const GruCase& c) -> Status {
    for (const GruLayerParameters& layer : c.model.parameters().layers)
      for (const ActivationTable& table : layer.tables) {
        ISOBIT_ASSIGN_OR_RETURN(const std::vector<int32_t> codes, run(table));
        hash_bytes(hash, codes.data(), codes.size() * sizeof(int32_t));
      }
    return {};
  }));
  lines.emplace_back("activation_table", hash_text(hash));
  return {};
}

}  // namespace isobit
