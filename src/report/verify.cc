// SPDX-License-Identifier: Apache-2.0
// What was compared with the reference, as text and JSON.
#include "isobit/verify.h"

#include <utility>

#include "isobit/report.h"
#include "isobit/text.h"
#include "report/json.h"

namespace isobit {

Description describe_verification(const VerifyReport& report, const std::string& device) {
  uint64_t compared = 0, bytes = 0, different = 0, by_path = 0;
  OrderedJson kernels = OrderedJson::array();
  std::string text, others;
  for (const VerifyKernel& kernel : report.kernels) {
    compared += kernel.outputs_compared;
    bytes += kernel.bytes_compared;
    different += kernel.different;
    OrderedJson entry = {{"name", kernel.name},
                         {"outputs_compared", kernel.outputs_compared},
                         {"bytes_compared", kernel.bytes_compared},
                         {"different", kernel.different}};
    if (kernel.different > 0) entry["first_difference"] = kernel.first_difference;
    kernels.push_back(std::move(entry));
    text += format("%-30s %14llu outputs compared, %llu bytes, %llu different\n", kernel.name.c_str(),
                   static_cast<unsigned long long>(kernel.outputs_compared),
                   static_cast<unsigned long long>(kernel.bytes_compared),
                   static_cast<unsigned long long>(kernel.different));
  }
  OrderedJson expected_by = OrderedJson::object();
  for (const auto& [name, outputs] : report.expected_by) {
    by_path += outputs;
    expected_by[name] = outputs;
    others +=
        format(", %llu with %s of the CPU, which equals it", static_cast<unsigned long long>(outputs), name.c_str());
  }
  expected_by[std::string(to_string(CpuPath::kReference))] = compared - by_path;
  text += format("all%s: %llu outputs compared with the reference%s, %llu different\n",
                 device.empty() ? "" : (" on " + device).c_str(), static_cast<unsigned long long>(compared - by_path),
                 others.c_str(), static_cast<unsigned long long>(different));
  OrderedJson json = {{"outputs_compared", compared},
                      {"bytes_compared", bytes},
                      {"different", different},
                      {"kernels", std::move(kernels)},
                      {"expected_by", std::move(expected_by)}};
  if (!report.missing.empty()) json["missing"] = report.missing;
  return {.text = std::move(text), .json = json_line(json)};
}

Description describe_fingerprints(const Fingerprints& fingerprints) {
  OrderedJson json = OrderedJson::object();
  std::string text;
  for (const auto& [operation, hash] : fingerprints) {
    json[operation] = hash;
    text.append(operation).append(" ").append(hash).append("\n");
  }
  return {.text = std::move(text), .json = json_line({{"fingerprints", std::move(json)}})};
}

std::string failure_text(const VerifyReport& report) {
  std::string text;
  for (const VerifyKernel& kernel : report.kernels)
    if (kernel.different > 0 && text.empty()) text = kernel.name + ": " + kernel.first_difference;
  for (const std::string& path : report.missing) {
    const auto known = cpu_path_from_string(path);
    const std::string reason = !known                 ? "no such path"
                               : !cpu_can_run(*known) ? std::string(cpu_cannot_run_reason(*known))
                                                      : "nothing here runs on it";
    if (!text.empty()) text += "\n";
    text += format("ISOBIT_REQUIRE names %s, which was not compared: %s", path.c_str(), reason.c_str());
  }
  return text;
}

}  // namespace isobit
