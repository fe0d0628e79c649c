// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_CPU_H_
#define ISOBIT_CPU_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "isobit/status.h"

namespace isobit {

/// Instruction sets that kernels are written for. All give the same bytes. kReference is the normative scalar
/// code in 64-bit integers; it runs every configuration.
enum class CpuPath : int32_t { kReference = 0, kScalar = 1, kAvx2 = 2, kAvxVnni = 3, kAvx512Vnni = 4, kAmx = 5 };

inline constexpr CpuPath kAllCpuPaths[] = {CpuPath::kReference, CpuPath::kScalar, CpuPath::kAvx2, CpuPath::kAvxVnni,
                                           CpuPath::kAvx512Vnni, CpuPath::kAmx};

/// "reference", "scalar", "avx2", "avxvnni", "avx512vnni", "amx".
std::string_view to_string(CpuPath path);
std::optional<CpuPath> cpu_path_from_string(std::string_view text);

/// Whether this build holds the path and this processor can run it; ISOBIT_CPU does not matter here.
bool cpu_can_run(CpuPath path);
/// Why not: "not built for this processor family" or the missing instruction sets; empty when it can run.
std::string_view cpu_cannot_run_reason(CpuPath path);

/// The path that is used by default: the best that can run, or what the environment variable ISOBIT_CPU names.
/// An unknown name, or a path that this machine cannot run, is an error that names both.
Result<CpuPath> default_cpu_path();

}  // namespace isobit

#endif  // ISOBIT_CPU_H_
