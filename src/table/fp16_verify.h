// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_TABLE_FP16_VERIFY_H_
#define ISOBIT_TABLE_FP16_VERIFY_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "isobit/cpu.h"
#include "isobit/status.h"

namespace isobit {

/// Appends the hashes of FP16 tables and softmax to those of fingerprint_all.
Status fingerprint_fp16(std::optional<CpuPath> path, std::vector<std::pair<std::string, std::string>>& lines);

}  // namespace isobit

#endif  // ISOBIT_TABLE_FP16_VERIFY_H_
