// SPDX-License-Identifier: Apache-2.0
#include "verify/operations.h"

#include <map>

#include "core/float_mode.h"
#include "isobit/nearest.h"
#include "verify/conv.h"
#include "verify/fp16.h"
#include "verify/gru.h"
#include "verify/linear.h"

namespace isobit {

std::vector<VerifyOperation> cpu_operations(std::optional<CpuPath> path) {
  return {
      {"activation_table", {}, [](Fingerprints& lines) { return fingerprint_tables(table_codes, lines); }},
      {"fp16_table", verify_fp16,
       [path](Fingerprints& lines) { return fingerprint_fp16(fp16_function_run(path), fp16_softmax_run(path), lines); },
       has_fp16_kernel},
      {"gru", verify_gru, [path](Fingerprints& lines) { return fingerprint_gru(gru_run(path), lines); }},
      {"linear", verify_linear,
       [path](Fingerprints& lines) { return fingerprint_linear(linear_run(path), static_linear_run(path), lines); }},
      {"conv", verify_conv,
       [path](Fingerprints& lines) { return fingerprint_conv(static_conv_run(path), conv_run(path), lines); },
       has_conv_kernel},
  };
}

std::vector<std::string_view> names_of_verifiers(std::span<const VerifyOperation> operations) {
  std::vector<std::string_view> names;
  for (const VerifyOperation& operation : operations)
    if (operation.verify) names.push_back(operation.name);
  return names;
}

std::optional<VerifyKernel> cpu_kernel(std::string name, CpuPath path) {
  if (path == CpuPath::kReference || !cpu_can_run(path)) return std::nullopt;
  VerifyKernel kernel;
  kernel.name = std::move(name);
  kernel.path = to_string(path);
  return kernel;
}

void note_difference(VerifyKernel& kernel, uint64_t count, const std::string& text) {
  kernel.different += count;
  if (kernel.first_difference.empty()) kernel.first_difference = text;
}

std::function<void(double)> part_of(const std::function<void(double)>& progress, double first, double share) {
  if (!progress) return {};
  return [&progress, first, share](double fraction) { progress(first + share * fraction); };
}

std::vector<std::string> missing_paths(const VerifyReport& report, const VerifyOptions& options, bool on_device,
                                       const std::function<bool(CpuPath)>& has_kernel) {
  std::vector<std::string> missing;
  for (const std::string& name : options.required) {
    const std::optional<CpuPath> path = cpu_path_from_string(name);
    if (path && (on_device || *path == CpuPath::kReference || (has_kernel && !has_kernel(*path)))) continue;
    const bool compared = std::any_of(report.kernels.begin(), report.kernels.end(), [&](const VerifyKernel& kernel) {
      return kernel.outputs_compared > 0 && kernel.path == name;
    });
    if (!compared) missing.push_back(name);
  }
  return missing;
}

Result<VerifyReport> verify_with(std::span<const VerifyOperation> operations, const VerifyOptions& options,
                                 bool on_device) {
  const DefaultFloatMode mode;
  std::vector<const VerifyOperation*> chosen;
  for (const VerifyOperation& operation : operations) {
    if (!options.operation.empty() && operation.name != options.operation) continue;
    if (operation.verify) {
      chosen.push_back(&operation);
    } else if (on_device && !options.operation.empty()) {
      return Status(StatusCode::kInvalidArgument, "operation " + options.operation + ": has no kernels on a device");
    }
  }
  if (chosen.empty())
    return Status(StatusCode::kInvalidArgument, "operation " + options.operation + ": " +
                                                    expected_one_of(options.operation, names_of_verifiers(operations)) +
                                                    "; softmax belongs to fp16_table");
  VerifyReport report;
  std::map<std::string, uint64_t> expected_by;
  const double share = 1 / static_cast<double>(chosen.size());
  for (size_t i = 0; i < chosen.size(); ++i) {
    VerifyOptions own = options;
    own.progress = part_of(options.progress, static_cast<double>(i) * share, share);
    ISOBIT_ASSIGN_OR_RETURN(const VerifyReport part, chosen[i]->verify(own));
    report.kernels.insert(report.kernels.end(), part.kernels.begin(), part.kernels.end());
    for (const auto& [name, outputs] : part.expected_by) expected_by[name] += outputs;
    for (const std::string& name : missing_paths(part, options, on_device, chosen[i]->has_kernel))
      if (std::find(report.missing.begin(), report.missing.end(), name) == report.missing.end())
        report.missing.push_back(name);
  }
  report.expected_by.assign(expected_by.begin(), expected_by.end());
  return report;
}

Result<Fingerprints> fingerprint_with(std::span<const VerifyOperation> operations) {
  const DefaultFloatMode mode;
  Fingerprints lines;
  for (const VerifyOperation& operation : operations) ISOBIT_RETURN_IF_ERROR(operation.fingerprint(lines));
  return lines;
}

std::vector<std::string_view> verify_operations() {
  static const std::vector<VerifyOperation> operations = cpu_operations(std::nullopt);
  return names_of_verifiers(operations);
}

Result<VerifyReport> verify_kernels(const VerifyOptions& options) {
  return verify_with(cpu_operations(std::nullopt), options, false);
}

Result<Fingerprints> fingerprint_all(std::optional<CpuPath> path) {
  if (path && !cpu_can_run(*path))
    return Status(StatusCode::kFailedPrecondition,
                  "path " + std::string(to_string(*path)) + ": " + std::string(cpu_cannot_run_reason(*path)));
  return fingerprint_with(cpu_operations(path));
}

}  // namespace isobit
