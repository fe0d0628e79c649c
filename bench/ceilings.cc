// SPDX-License-Identifier: Apache-2.0
#include "bench/ceilings.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace isobit::ceilings {
namespace {

constexpr int64_t kStep = 256;  // bytes: four loads of 64
constexpr std::align_val_t kAlignment{4096};

using Wide [[gnu::vector_size(64)]] = uint64_t;

// A macro, since vectors are split before a function of another instruction set could be inlined.
#define ISOBIT_READ(name, attribute)                              \
  attribute uint64_t name(const std::byte* from, int64_t bytes) { \
    const auto* const wide = reinterpret_cast<const Wide*>(from); \
    Wide sums[4] = {};                                            \
    for (int64_t i = 0; i < bytes / 64; i += 4)                   \
      for (int j = 0; j < 4; ++j) sums[j] ^= wide[i + j];         \
    const Wide all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];       \
    uint64_t result = 0;                                          \
    for (size_t j = 0; j < 8; ++j) result ^= all[j];              \
    return result;                                                \
  }

ISOBIT_READ(read_any, )

#if defined(__x86_64__)
ISOBIT_READ(read_avx2, [[gnu::target("avx2")]])
ISOBIT_READ(read_avx512, [[gnu::target("avx512f")]])

// Twelve chains: more than latency times throughput. Of zeros, since denormal numbers are slow.
constexpr int64_t kChains = 12, kRounds = 1000;
#define ISOBIT_TWELVE(op) \
  op("0") op("1") op("2") op("3") op("4") op("5") op("6") op("7") op("8") op("9") op("10") op("11")
#define ISOBIT_RUN(name, isa, op)                                                                                   \
  [[gnu::target(isa)]] void name() {                                                                                \
    static_assert(kRounds == 1000);                                                                                 \
    asm volatile("vzeroall\n\tmov $1000, %%eax\n\t1:\n\t" ISOBIT_TWELVE(op) "dec %%eax\n\tjnz 1b\n\tvzeroupper" ::  \
                     : "eax", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
                       "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                                       \
  }
#define ISOBIT_FMA_YMM(r) "vfmadd231ps %%ymm" r ", %%ymm" r ", %%ymm" r "\n\t"
#define ISOBIT_FMA_ZMM(r) "vfmadd231ps %%zmm" r ", %%zmm" r ", %%zmm" r "\n\t"
#define ISOBIT_MADD_YMM(r) "vpmaddwd %%ymm12, %%ymm13, %%ymm14\n\tvpaddd %%ymm14, %%ymm" r ", %%ymm" r "\n\t"
#define ISOBIT_DOT_YMM(r) "%{vex%} vpdpbusd %%ymm12, %%ymm13, %%ymm" r "\n\t"
#define ISOBIT_DOT_ZMM(r) "vpdpbusd %%zmm12, %%zmm13, %%zmm" r "\n\t"
ISOBIT_RUN(fma_ymm, "avx2,fma", ISOBIT_FMA_YMM)
ISOBIT_RUN(fma_zmm, "avx512f", ISOBIT_FMA_ZMM)
ISOBIT_RUN(madd_ymm, "avx2", ISOBIT_MADD_YMM)
ISOBIT_RUN(dot_ymm, "avx2,avxvnni", ISOBIT_DOT_YMM)
ISOBIT_RUN(dot_zmm, "avx512f,avx512vnni", ISOBIT_DOT_ZMM)

/// Four tiles of sums. The configuration: 16 rows of 64 bytes each.
void tiles() {
  alignas(64) uint8_t config[64] = {1};
  for (int tile = 0; tile < 8; ++tile) {
    config[16 + 2 * tile] = 64;
    config[48 + tile] = 16;
  }
  static_assert(kRounds == 1000);
  asm volatile(
      "ldtilecfg %0\n\ttilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"
      "tilezero %%tmm4\n\ttilezero %%tmm5\n\tmov $1000, %%eax\n\t1:\n\t"
      "tdpbusd %%tmm5, %%tmm4, %%tmm0\n\ttdpbusd %%tmm5, %%tmm4, %%tmm1\n\t"
      "tdpbusd %%tmm5, %%tmm4, %%tmm2\n\ttdpbusd %%tmm5, %%tmm4, %%tmm3\n\t"
      "dec %%eax\n\tjnz 1b\n\ttilerelease" ::"m"(config)
      : "eax", "cc");
}

constexpr int64_t operations(int64_t multiply_adds) { return 2 * multiply_adds * kChains * kRounds; }

constexpr Product kProducts[] = {
    {"avx2 fma", CpuPath::kAvx2, false, operations(8), fma_ymm},
    {"avx512 fma", CpuPath::kAvx512Vnni, false, operations(16), fma_zmm},
    {"avx2 vpmaddwd", CpuPath::kAvx2, true, operations(16), madd_ymm},
    {"avxvnni", CpuPath::kAvxVnni, true, operations(32), dot_ymm},
    {"avx512vnni", CpuPath::kAvx512Vnni, true, operations(64), dot_zmm},
    {"amx", CpuPath::kAmx, true, 2 * 4 * kRounds * 16 * 16 * 64, tiles},
};
#else
constexpr std::span<const Product> kProducts;
#endif

uint64_t read_once(const std::byte* from, int64_t bytes) {
#if defined(__x86_64__)
  if (cpu_can_run(CpuPath::kAvx512Vnni)) return read_avx512(from, bytes);
  if (cpu_can_run(CpuPath::kAvx2)) return read_avx2(from, bytes);
#endif
  return read_any(from, bytes);
}

}  // namespace

void Memory::Free::operator()(std::byte* p) const { ::operator delete(p, kAlignment); }

Memory::Memory(int64_t bytes)
    : bytes_(std::max<int64_t>(1, (bytes + kStep - 1) / kStep) * kStep),
      data_(static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes_), kAlignment))) {
  std::memset(data_.get(), 1, static_cast<size_t>(bytes_));
}

uint64_t Memory::read(int64_t bytes) {
  uint64_t result = 0;
  for (int64_t left = bytes / kStep * kStep; left > 0;) {
    const int64_t part = std::min(left, bytes_ - at_);
    result ^= read_once(data_.get() + at_, part);
    left -= part;
    at_ = (at_ + part) % bytes_;
  }
  return result;
}

std::span<const Product> products() { return kProducts; }

const Product* product_of(CpuPath path, bool integers) {
  const Product* best = nullptr;
  for (const Product& product : products())
    if (product.integers == integers && product.path <= path) best = &product;
  return path == CpuPath::kReference || path == CpuPath::kScalar ? nullptr : best;
}

}  // namespace isobit::ceilings
