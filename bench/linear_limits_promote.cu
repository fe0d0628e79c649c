// SPDX-License-Identifier: Apache-2.0
// The main loop of a layer with 8-bit activations quantised on the fly and many rows, without what comes from memory:
// warpgroups of 64 rows of W by 128 rows of x, codes of 4 bits decoded into registers, sums promoted as
// docs/numerics.md section 11 says. A stage, 128 elements of k, stays in shared memory; the barriers of a real ring are
// waited for and arrived at, but never open or close anything.

#include "bench/linear_limits.h"
#include "bench/linear_limits_rates.h"
#include "core/cuda/ptx.cuh"
#include "core/cuda/tensor_core.cuh"

namespace isobit::limits {
namespace {

constexpr int kColumns = 128, kStages = 3, kChunk = 16;

struct Options {
  int group = kRatesDepth;  // elements of k
  bool asymmetric = false;
  bool multiply = true;  // else sums stay those of the first group
  bool decode = true;    // else the weights of stage 0 stay in registers
  bool promote = true;   // else all sums are one
  int warpgroups = 2;
  int parts = 1;  // of columns: while one is promoted, the one before is multiplied
  /// Sums become floats as 1.5 * 2^23 + d, whose last bits are those of d, less 1.5 * 2^23: exact for d from -2^22 to
  /// 2^22, which sums of 128 products of 8-bit codes are. Otherwise by an instruction for it, I2FP.
  bool by_adding = false;
};
template <Options O>
struct Loop {
  static constexpr Options kOptions = O;
  static constexpr int kThreads = 128 * O.warpgroups, kResults = kColumns / 2;  // of a thread
  static constexpr int kGroups = kRatesDepth / O.group;                         // of a stage
  static constexpr int kStagesOfTurn = O.parts > 1 ? 2 : 1;                     // between which no product is under way
  static constexpr int kStagesOfChunk = O.promote ? kChunk / kGroups : kStagesOfTurn;
  static constexpr int kSteps = O.group / 32;  // instructions of a group and part
  static_assert(O.parts == 1 || (O.multiply && O.decode && O.promote));
  struct alignas(1024) Stage {
    int8_t x[kColumns * kRatesDepth];             // 128-byte rows whose 16-byte pieces are exchanged: piece ^ row % 8
    uint4 w[2][kThreads];                         // of each thread, in the order of its registers
    float4 sa[kGroups][8][4], oa[kGroups][8][4];  // of 32 columns of lanes with the same lane % 4
    float2 s[kGroups][kThreads / 4];              // of both rows of a lane's four; 1/16 of it, as codes are times 16
    int2 v[kGroups][kThreads / 4];                // sums of codes
  };
  struct Block {
    Stage stages[kStages];
    float4 totals[16][kThreads];
    uint64_t full[kStages], empty[kStages];
  };
};

// ---- Data. What only has to be the same in the kernel and in its check is any number.

__device__ uint32_t packed_of(int stage, int thread, int word) {
  return mix(static_cast<uint32_t>(stage * 8 + word), static_cast<uint32_t>(thread));
}
/// Of a row of all warpgroups.
__device__ int32_t weight_of(int stage, int row, int k) {
  const int thread = row / 16 * 32 + row % 8 * 4 + k % 16 / 4;
  const int of_registers = k / 32 * 4 + k % 32 / 16 * 2 + row % 16 / 8;
  const uint32_t word = packed_of(stage, thread, of_registers / 2);
  const uint32_t code = word >> (k % 4 * 8 + of_registers % 2 * 4) & 15;
  return static_cast<int32_t>(code ^ 8) - 8;
}
__device__ int8_t activation_of(int stage, int column, int k) {
  return static_cast<int8_t>(mix(static_cast<uint32_t>(1000 + stage * 128 + k), static_cast<uint32_t>(column)) & 0xff);
}
enum { kS, kSa, kOa, kV };
__device__ uint32_t parameter_of(int which, int stage, int group, int line) {
  return mix(static_cast<uint32_t>(5000 + (stage * 4 + group) * 4 + which), static_cast<uint32_t>(line));
}
__device__ float s_of(int stage, int group, int row) { return scale_of(parameter_of(kS, stage, group, row)); }
__device__ float sa_of(int stage, int group, int column) { return scale_of(parameter_of(kSa, stage, group, column)); }
__device__ float oa_of(int stage, int group, int column) { return -scale_of(parameter_of(kOa, stage, group, column)); }
__device__ int32_t v_of(int stage, int group, int row) {
  return static_cast<int32_t>(parameter_of(kV, stage, group, row) % 1024) - 512;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <typename L>
__device__ __forceinline__ void fill(typename L::Block& m) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int stage = 0; stage < kStages; ++stage) {
    auto& to = m.stages[stage];
    for (int i = thread; i < kColumns * kRatesDepth; i += L::kThreads) {
      const int column = i / kRatesDepth, k = i % kRatesDepth;
      to.x[column * kRatesDepth + (k / 16 ^ column % 8) * 16 + k % 16] = activation_of(stage, column, k);
    }
    for (int i = 0; i < 2; ++i)
      to.w[i][thread] = uint4{packed_of(stage, thread, 4 * i), packed_of(stage, thread, 4 * i + 1),
                              packed_of(stage, thread, 4 * i + 2), packed_of(stage, thread, 4 * i + 3)};
    for (int group = 0; group < L::kGroups; ++group) {
      if (thread < kColumns) {
        const int i = thread / 8 * 2 + thread % 2, q = thread % 8 / 2;  // result i of lanes q
        reinterpret_cast<float*>(&to.sa[group][i / 4][q])[i % 4] = sa_of(stage, group, thread);
        reinterpret_cast<float*>(&to.oa[group][i / 4][q])[i % 4] = oa_of(stage, group, thread);
      }
      if (thread % 4 == 0) {
        const int row = thread / 32 * 16 + thread % 32 / 4;
        to.s[group][thread / 4] = {s_of(stage, group, row) / 16, s_of(stage, group, row + 8) / 16};
        to.v[group][thread / 4] = {v_of(stage, group, row), v_of(stage, group, row + 8)};
      }
    }
    if (thread == 0) {
      cuda::barrier_init(cuda::shared_address(&m.full[stage]), 1);
      cuda::barrier_init(cuda::shared_address(&m.empty[stage]), L::kThreads / 32);
    }
  }
  for (auto& total : m.totals) total[thread] = float4{};
  cuda::fence_before_copies();
  __syncthreads();
}
/// 32 codes of 4 bits, times 16 each.
__device__ __forceinline__ void decode_four(const uint4 (&packed)[2], uint32_t (&a)[16]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t words[] = {packed[i].x, packed[i].y, packed[i].z, packed[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      a[8 * i + 2 * j] = words[j] * 16 & 0xf0f0f0f0;
      a[8 * i + 2 * j + 1] = words[j] & 0xf0f0f0f0;
    }
  }
}
template <bool ByAdding>
__device__ __forceinline__ float as_float(int32_t d) {
  if constexpr (!ByAdding) return __int2float_rn(d);
  return __fadd_rn(__int_as_float(d + __float_as_int(0x1.8p23f)), -0x1.8p23f);
}
__device__ __forceinline__ uint64_t swizzled_rows(const void* p) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16 | (cuda::shared_address(p) & 0x3ffff) >> 4;
}
#endif

template <typename L>
__global__ void __launch_bounds__(L::kThreads, 1) promote_loop(const __grid_constant__ RateArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr Options kO = L::kOptions;
  constexpr int kN = kColumns / kO.parts, kResults = kN / 2;
  extern __shared__ __align__(1024) uint8_t shared[];
  auto& m = *reinterpret_cast<typename L::Block*>(shared);
  fill<L>(m);
  const int thread = static_cast<int>(threadIdx.x), q = thread % 4;
  int32_t d[kO.parts][kResults]{};
  float acc[L::kResults]{};
  uint32_t a[kO.parts][16];  // of this stage; of the next one too where products of this one are under way
  bool add = false;          // to the sums, without promotion
  const auto multiply = [&](int part, const uint32_t(&weights)[16], const auto& from, int group) {
    const uint64_t x = swizzled_rows(from.x) + static_cast<uint64_t>(part * kN * kRatesDepth / 16);
    cuda::wgmma_fence();
#pragma unroll
    for (int step = group * L::kSteps; step < (group + 1) * L::kSteps; ++step)
      cuda::wgmma<cuda::Int8, kN>(d[part], weights + 4 * step, x + static_cast<uint64_t>(2 * step),
                                  kO.promote ? step > group * L::kSteps : add || step > 0);
    cuda::wgmma_commit();
  };
  const auto promote_part = [&](int part, const auto& from, int group) {
    const float2 s = from.s[group][thread / 4];
    const int2 v = from.v[group][thread / 4];
#pragma unroll
    for (int j = 0; j < kResults / 8; ++j) {
      const int eight = part * kResults / 8 + j;
      const auto add_scaled = [&](const float4& of_columns, const auto& number) {
        const float of_column[] = {of_columns.x, of_columns.y, of_columns.z, of_columns.w};
#pragma unroll
        for (int e = 0; e < 8; ++e) {  // columns e / 4 * 8 + e % 2 of both rows
          const float scale = __fmul_rn(e / 2 % 2 == 0 ? s.x : s.y, of_column[e / 4 * 2 + e % 2]);
          acc[8 * eight + e] = __fmaf_rn(number(e), scale, acc[8 * eight + e]);
        }
      };
      add_scaled(from.sa[group][eight][q], [&](int e) { return as_float<L::kOptions.by_adding>(d[part][8 * j + e]); });
      if constexpr (L::kOptions.asymmetric)
        add_scaled(from.oa[group][eight][q], [&](int e) { return __int2float_rn(e / 2 % 2 == 0 ? v.x : v.y); });
    }
  };
  const auto decode_stage = [&](uint32_t(&to)[16], const auto& from) {
    if (kO.decode) decode_four({from.w[0][thread], from.w[1][thread]}, to);
    for (uint32_t& word : to) asm volatile("" : "+r"(word));  // are in place before the fence
  };
  const auto wait_for = [&](int stage) { cuda::barrier_wait(cuda::shared_address(&m.full[stage]), 1); };
  decode_four({m.stages[0].w[0][thread], m.stages[0].w[1][thread]}, a[0]);
  if constexpr (!kO.multiply) {
    multiply(0, a[0], m.stages[0], 0);
    cuda::wgmma_wait<0>();
  }
  int stage = 0;
  const Span span = begin_span();
  for (int turn = 0; turn < args.turns; ++turn) {
#pragma unroll 1
    for (int i = 0; i < L::kStagesOfChunk; i += L::kStagesOfTurn) {
      wait_for(stage);
      decode_stage(a[0], m.stages[stage]);
      if constexpr (kO.parts > 1)
        for (int part = 0; part < kO.parts; ++part) multiply(part, a[0], m.stages[stage], 0);
#pragma unroll
      for (int group = 0; group < L::kStagesOfTurn * L::kGroups; ++group) {
        const auto& from = m.stages[stage];
        const int of_stage = group % L::kGroups, next_group = (group + 1) % L::kGroups;
        const bool ends = group + 1 == L::kStagesOfTurn * L::kGroups;
        const int next = next_group > 0 ? stage : stage + 1 < kStages ? stage + 1 : 0;
        uint32_t(&next_a)[16] = a[(group + 1) / L::kGroups % kO.parts];
        if constexpr (kO.parts > 1) {
          if (next_group == 0 && !ends) {
            wait_for(next);
            decode_stage(next_a, m.stages[next]);
          }
        } else if constexpr (kO.multiply) {
          multiply(0, a[0], from, of_stage);
        }
        add = true;
#pragma unroll
        for (int part = 0; part < kO.parts; ++part) {
          if (kO.parts > 1 && !(ends && part + 1 == kO.parts)) {
            cuda::wgmma_wait<1>();
          } else if (kO.multiply) {
            cuda::wgmma_wait<0>();
          }
          cuda::keep_in_registers(d[part]);
          if (kO.promote) promote_part(part, from, of_stage);
          if (kO.parts > 1 && !ends) multiply(part, next_a, m.stages[next], next_group);
        }
        if (next_group == 0 && thread % 32 == 0) cuda::barrier_arrive(cuda::shared_address(&m.empty[stage]));
        stage = next;
      }
    }
    if constexpr (kO.promote) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float4& to = m.totals[i][thread];
        const float4 t = to;
        to = {t.x + acc[4 * i], t.y + acc[4 * i + 1], t.z + acc[4 * i + 2], t.w + acc[4 * i + 3]};
        acc[4 * i] = acc[4 * i + 1] = acc[4 * i + 2] = acc[4 * i + 3] = 0;
      }
    }
  }
  end_span(args, span);
  if (blockIdx.x > 0) return;
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + q * 2 + i % 2;
    const float total = reinterpret_cast<const float*>(&m.totals[i / 4][thread])[i % 4];
    args.out[row * kColumns + column] = kO.promote ? total : __int2float_rn(d[0][i % kResults]);
  }
#endif
}

/// What promote_loop must find: a thread a result.
template <typename L>
__global__ void promote_expected(const __grid_constant__ RateArgs args) {
  constexpr Options kO = L::kOptions;
  const int row = static_cast<int>(blockIdx.x), column = static_cast<int>(threadIdx.x);
  float total = 0;
  uint32_t all = 0;
  for (int turn = 0, stage = 0; turn < args.turns; ++turn) {
    float acc = 0;
    for (int i = 0; i < L::kStagesOfChunk; ++i) {
      for (int group = 0; group < L::kGroups; ++group) {
        int32_t d = 0;
        const int of_stage = kO.multiply ? stage : 0, first_k = kO.multiply ? group * kO.group : 0;
        for (int k = first_k; k < first_k + kO.group; ++k)
          d += weight_of(kO.decode ? of_stage : 0, row, k) * activation_of(of_stage, column, k);
        all += static_cast<uint32_t>(16 * d);
        const float s = s_of(stage, group, row);
        acc = __fmaf_rn(__int2float_rn(d), __fmul_rn(s, sa_of(stage, group, column)), acc);
        // The sums of codes stand for those of codes times 16, as the scale is that of these.
        if (kO.asymmetric)
          acc = __fmaf_rn(__int2float_rn(v_of(stage, group, row)), __fmul_rn(s / 16, oa_of(stage, group, column)), acc);
      }
      stage = stage + 1 < kStages ? stage + 1 : 0;
    }
    total = __fadd_rn(total, acc);
  }
  args.out[row * kColumns + column] = kO.promote ? total : __int2float_rn(static_cast<int32_t>(all));
}

// ---- The host's side

template <Options O>
void promote_of() {
  using L = Loop<O>;
  constexpr size_t kShared = sizeof(typename L::Block);
  constexpr int kRows = 64 * O.warpgroups, kCheckedTurns = 5;
  const Kernel kernel = promote_loop<L>;
  const bool right = is_right(kernel, L::kThreads, kShared, promote_expected<L>, kRows, kColumns, kCheckedTurns, 0);

  // About half a second, so that the device is as fast as its power lets it be for long.
  constexpr int kStagesInAll = 4096, kTurns = kStagesInAll / L::kStagesOfChunk;
  constexpr double kMicroseconds = 5e5;
  const double us = rate_of(kernel, 1, L::kThreads, kShared, kTurns, 1).us;
  const Rate rate = rate_of(kernel, 1, L::kThreads, kShared, kTurns, static_cast<int>(kMicroseconds / us) + 1);
  const double operations = 2.0 * kRows * kColumns * kRatesDepth * kStagesInAll * device().multiProcessorCount;
  print({{"what", "promote"},
         {"warpgroups", O.warpgroups},
         {"parts", O.parts},
         {"group", O.group},
         {"asymmetric", O.asymmetric},
         {"multiply", O.multiply},
         {"decode", O.decode},
         {"promote", O.promote},
         {"by_adding", O.by_adding},
         {"clocks_of_stage", rate.clocks / kStagesInAll},
         {"TOP/s", operations / rate.us / 1e6},
         {"right", right}});
}
template <int Warpgroups>
void promote_with() {
  constexpr int kW = Warpgroups;
  promote_of<Options{.decode = false, .promote = false, .warpgroups = kW}>();
  promote_of<Options{.promote = false, .warpgroups = kW}>();
  promote_of<Options{.multiply = false, .decode = false, .warpgroups = kW}>();
  promote_of<Options{.warpgroups = kW}>();
  promote_of<Options{.warpgroups = kW, .by_adding = true}>();
  promote_of<Options{.asymmetric = true, .warpgroups = kW}>();
  promote_of<Options{.group = 64, .warpgroups = kW}>();
  promote_of<Options{.group = 32, .warpgroups = kW}>();
}

}  // namespace

void promote() {
  promote_with<2>();
  promote_with<3>();
  promote_of<Options{.parts = 2}>();
}

}  // namespace isobit::limits
