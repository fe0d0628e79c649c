// SPDX-License-Identifier: Apache-2.0
#include "isobit/cpu.h"

#include <cstdlib>
#include <string>

#include "core/cpuid.h"

#if defined(__x86_64__) && !defined(ISOBIT_NO_X86_KERNELS)
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace isobit {
namespace {

#if defined(__x86_64__) && !defined(ISOBIT_NO_X86_KERNELS)
constexpr bool kBuiltForX86 = true;

bool has_f16c() {  // leaf 1, ECX bit 29; clang++ 14 has no name for it
  return (cpuid_leaf(1, 0).ecx & (1U << 29)) != 0;
}

bool has_avx2() { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c(); }

bool has_avx512_vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512vnni") != 0;
}

bool has_avx_vnni() {  // leaf 7, subleaf 1, EAX bit 4; clang++ 14 has no name for it
  return has_avx2() && (cpuid_leaf(7, 1).eax & (1U << 4)) != 0;
}
/// Whether the system lets this process use the tiles' registers, which it asks for: once for all of its threads.
bool tiles_are_granted() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

bool has_amx() {  // leaf 7, EDX: bit 24 tiles, bit 25 products of 8-bit integers
  return has_avx512_vnni() && (cpuid_leaf(7, 0).edx >> 24 & 3) == 3 && tiles_are_granted();
}
#else
constexpr bool kBuiltForX86 = false;
bool has_amx() { return false; }
bool has_avx2() { return false; }
bool has_avx512_vnni() { return false; }
bool has_avx_vnni() { return false; }
#endif

}  // namespace

std::string_view to_string(CpuPath path) {
  switch (path) {
    case CpuPath::kReference: return "reference";
    case CpuPath::kScalar: return "scalar";
    case CpuPath::kAvx2: return "avx2";
    case CpuPath::kAvxVnni: return "avxvnni";
    case CpuPath::kAvx512Vnni: return "avx512vnni";
    case CpuPath::kAmx: return "amx";
  }
  return "unknown";
}

std::optional<CpuPath> cpu_path_from_string(std::string_view text) {
  for (const CpuPath path : kAllCpuPaths)
    if (to_string(path) == text) return path;
  return std::nullopt;
}

bool cpu_can_run(CpuPath path) {
  switch (path) {
    case CpuPath::kReference:
    case CpuPath::kScalar: return true;
    case CpuPath::kAvx2: return has_avx2();
    case CpuPath::kAvxVnni: return has_avx_vnni();
    case CpuPath::kAvx512Vnni: return has_avx512_vnni();
    case CpuPath::kAmx: return has_amx();
  }
  return false;
}

std::string_view cpu_cannot_run_reason(CpuPath path) {
  if (cpu_can_run(path)) return "";
  if (!kBuiltForX86) return "not built for this processor family";
  switch (path) {
    case CpuPath::kAvx2: return "the processor lacks one of AVX2, FMA, F16C";
    case CpuPath::kAvxVnni: return "the processor lacks AVX-VNNI";
    case CpuPath::kAmx: return "the processor or the system lacks AMX of 8-bit integers, or AVX-512";
    default: return "the processor lacks one of AVX-512 F, BW, DQ, VL, VNNI";
  }
}

Result<CpuPath> default_cpu_path() {
  if (const char* forced = std::getenv("ISOBIT_CPU"); forced != nullptr && *forced != '\0') {
    const std::optional<CpuPath> path = cpu_path_from_string(forced);
    if (!path)
      return Status(StatusCode::kInvalidArgument,
                    "environment variable ISOBIT_CPU is '" + std::string(forced) +
                        "', must be one of reference, scalar, avx2, avxvnni, avx512vnni, amx");
    if (!cpu_can_run(*path))
      return Status(StatusCode::kUnsupported, "environment variable ISOBIT_CPU asks for '" + std::string(forced) +
                                                  "': " + std::string(cpu_cannot_run_reason(*path)));
    return *path;
  }
  CpuPath best = CpuPath::kScalar;
  for (const CpuPath path : kAllCpuPaths)
    if (cpu_can_run(path)) best = path;
  return best;
}

}  // namespace isobit
