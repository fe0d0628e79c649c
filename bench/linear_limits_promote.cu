// SPDX-License-Identifier: Apache-2.0
// The main loop of a layer with 8-bit activations quantised on the fly and many rows, without what comes from memory:
// warpgroups of 64 rows of W by 128 rows of x, codes of 4 bits decoded into registers, sums promoted as
// docs/numerics.md section 11 says. A stage, 128 elements of k, stays in shared memory; the barriers of a real ring are
// waited for and arrived at, but never open or close anything.
#include <cstddef>
#include <vector>

#include "bench/linear_limits.h"
#include "bench/linear_limits_rates.h"
#include "bench/tensor_core.cuh"
#include "core/cuda/ptx.cuh"

namespace isobit::limits {
namespace {

constexpr int kColumns = 128, kStages = 3, kChunk = 16;

/// group: elements of k. Without `promote` all sums are one; without `decode` the weights of stage 0 stay in registers.
/// turns: two warpgroups give their products to the tensor cores in turns.
template <int Group, bool Asymmetric, bool Decode, bool Promote, int Warpgroups, bool Turns = false>
struct Loop {
  static constexpr int kGroup = Group, kWarpgroups = Warpgroups, kThreads = 128 * Warpgroups;
  static constexpr bool kAsymmetric = Asymmetric, kDecode = Decode, kPromote = Promote, kTurns = Turns;
  static constexpr int kGroups = kRatesDepth / Group;                    // of a stage
  static constexpr int kStagesOfChunk = Promote ? kChunk / kGroups : 1;  // the loop's turn
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
__device__ __forceinline__ uint64_t swizzled_rows(const void* p) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16 | (cuda::shared_address(p) & 0x3ffff) >> 4;
}
#endif

template <typename L>
__global__ void __launch_bounds__(L::kThreads, 1) promote_loop(const __grid_constant__ RateArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t shared[];
  auto& m = *reinterpret_cast<typename L::Block*>(shared);
  fill<L>(m);
  const int thread = static_cast<int>(threadIdx.x), q = thread % 4;
  int32_t d[64]{};
  float acc[64]{};
  uint32_t a[16];
  if (!L::kDecode) decode_four({m.stages[0].w[0][thread], m.stages[0].w[1][thread]}, a);
  int stage = 0;
  bool add = false;  // to the sums, without promotion
  static_assert(!L::kTurns || L::kWarpgroups == 2);
  constexpr int kTurn = 1;  // a named barrier for each warpgroup
  const int warpgroup = __shfl_sync(0xffffffff, thread / 128, 0);
  if (L::kTurns && warpgroup == 1) cuda::named_barrier_arrive(kTurn, L::kThreads);
  const Span span = begin_span();
  for (int turn = 0; turn < args.turns; ++turn) {
#pragma unroll 1
    for (int i = 0; i < L::kStagesOfChunk; ++i) {
      const auto& from = m.stages[stage];
      cuda::barrier_wait(cuda::shared_address(&m.full[stage]), 1);
      if (L::kDecode) decode_four({from.w[0][thread], from.w[1][thread]}, a);
      const uint64_t x = swizzled_rows(from.x);
#pragma unroll
      for (int group = 0; group < L::kGroups; ++group) {
        constexpr int kSteps = L::kGroup / 32;
        for (uint32_t& word : a) asm volatile("" : "+r"(word));  // are in place before the fence
        if (L::kTurns) cuda::named_barrier_sync(kTurn + warpgroup, L::kThreads);
        cuda::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
          cuda::wgmma<cuda::Int8, kColumns>(d, a + 4 * (group * kSteps + step),
                                            x + static_cast<uint64_t>(2 * (group * kSteps + step)),
                                            L::kPromote ? step > 0 : add || group + step > 0);
        cuda::wgmma_commit();
        if (L::kTurns) cuda::named_barrier_arrive(kTurn + 1 - warpgroup, L::kThreads);
        add = true;
        const float2 s = from.s[group][thread / 4];
        const int2 v = from.v[group][thread / 4];
        cuda::wgmma_wait<0>();
        cuda::keep_in_registers(d);
        if constexpr (L::kPromote) {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const float4 sa = from.sa[group][j][q];
            const float of_column[] = {sa.x, sa.y, sa.z, sa.w};
#pragma unroll
            for (int e = 0; e < 8; ++e) {  // columns e / 4 * 8 + e % 2 of both rows
              const int r = 8 * j + e;
              const float scale = __fmul_rn(e / 2 % 2 == 0 ? s.x : s.y, of_column[e / 4 * 2 + e % 2]);
              acc[r] = __fmaf_rn(__int2float_rn(d[r]), scale, acc[r]);
            }
            if constexpr (L::kAsymmetric) {
              const float4 oa = from.oa[group][j][q];
              const float of_column_o[] = {oa.x, oa.y, oa.z, oa.w};
#pragma unroll
              for (int e = 0; e < 8; ++e) {
                const bool first = e / 2 % 2 == 0;
                const float scale = __fmul_rn(first ? s.x : s.y, of_column_o[e / 4 * 2 + e % 2]);
                acc[8 * j + e] = __fmaf_rn(__int2float_rn(first ? v.x : v.y), scale, acc[8 * j + e]);
              }
            }
          }
        }
      }
      if (thread % 32 == 0) cuda::barrier_arrive(cuda::shared_address(&m.empty[stage]));
      stage = stage + 1 < kStages ? stage + 1 : 0;
    }
    if constexpr (L::kPromote) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float4& to = m.totals[i][thread];
        const float4 t = to;
        to = {t.x + acc[4 * i], t.y + acc[4 * i + 1], t.z + acc[4 * i + 2], t.w + acc[4 * i + 3]};
        acc[4 * i] = acc[4 * i + 1] = acc[4 * i + 2] = acc[4 * i + 3] = 0;
      }
    }
  }
  if (L::kTurns && warpgroup == 0) cuda::named_barrier_sync(kTurn, L::kThreads);  // has been arrived at once more
  end_span(args, span);
  if (blockIdx.x > 0) return;
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + q * 2 + i % 2;
    const float total = reinterpret_cast<const float*>(&m.totals[i / 4][thread])[i % 4];
    args.out[row * kColumns + column] = L::kPromote ? total : __int2float_rn(d[i]);
  }
#endif
}

/// What promote_loop must find: a thread a result.
template <typename L>
__global__ void promote_expected(const __grid_constant__ RateArgs args) {
  const int row = static_cast<int>(blockIdx.x), column = static_cast<int>(threadIdx.x);
  float total = 0;
  uint32_t all = 0;
  for (int turn = 0, stage = 0; turn < args.turns; ++turn) {
    float acc = 0;
    for (int i = 0; i < L::kStagesOfChunk; ++i) {
      for (int group = 0; group < L::kGroups; ++group) {
        int32_t d = 0;
        for (int k = group * L::kGroup; k < (group + 1) * L::kGroup; ++k)
          d += weight_of(L::kDecode ? stage : 0, row, k) * activation_of(stage, column, k);
        all += static_cast<uint32_t>(16 * d);
        const float s = s_of(stage, group, row);
        acc = __fmaf_rn(__int2float_rn(d), __fmul_rn(s, sa_of(stage, group, column)), acc);
        // The sums of codes stand for those of codes times 16, as the scale is that of these.
        if (L::kAsymmetric)
          acc = __fmaf_rn(__int2float_rn(v_of(stage, group, row)), __fmul_rn(s / 16, oa_of(stage, group, column)), acc);
      }
      stage = stage + 1 < kStages ? stage + 1 : 0;
    }
    total = __fadd_rn(total, acc);
  }
  args.out[row * kColumns + column] = L::kPromote ? total : __int2float_rn(static_cast<int32_t>(all));
}

// ---- The host's side

template <typename L>
void promote_of() {
  constexpr int kShared = sizeof(typename L::Block);
  constexpr int kRows = 64 * L::kWarpgroups;
  const auto kernel = promote_loop<L>;
  const cudaFuncAttributes attributes = attributes_of(kernel);
  require(blocks_at_once(kernel, L::kThreads, kShared) == 1, "promote: not one block a processor");
  const Shared<float> out(kRows * kColumns), expected(kRows * kColumns);
  const Shared<Span> span(1);
  constexpr int kCheckedTurns = 5;
  kernel<<<1, L::kThreads, kShared>>>(RateArgs{kCheckedTurns, out.get(), span.get()});
  promote_expected<L><<<kRows, kColumns>>>(RateArgs{kCheckedTurns, expected.get(), nullptr});
  check_cuda(cudaGetLastError(), "launch");
  const auto got = out.read(), right = expected.read();
  const bool is_right = counted(std::memcmp(got.data(), right.data(), got.size() * sizeof(float)) == 0);

  // About half a second, so that the device is as fast as its power lets it be for long.
  constexpr int kStagesInAll = 4096, kLaunches = 300;
  const Rate rate = rate_of(kernel, 1, L::kThreads, kShared, kStagesInAll / L::kStagesOfChunk, kLaunches, out);
  const double operations = 2.0 * kRows * kColumns * kRatesDepth * kStagesInAll * device().multiProcessorCount;
  print({{"what", "promote"},
         {"group", L::kPromote ? L::kGroup : 0},
         {"activations", L::kAsymmetric ? "asymmetric" : "symmetric"},
         {"decode", L::kDecode},
         {"promote", L::kPromote},
         {"warpgroups", L::kWarpgroups},
         {"turns", L::kTurns},
         {"right", is_right},
         {"registers", attributes.numRegs},
         {"local_bytes", attributes.localSizeBytes},
         {"TOP/s", operations / rate.us / 1e6},
         {"us", rate.us},
         {"clocks_per_stage", rate.clocks / kStagesInAll},
         {"GHz", rate.ghz}});
}

template <int Warpgroups>
void promote_with() {
  promote_of<Loop<128, false, false, false, Warpgroups>>();
  promote_of<Loop<128, false, true, false, Warpgroups>>();
  promote_of<Loop<128, false, false, true, Warpgroups>>();
  promote_of<Loop<128, false, true, true, Warpgroups>>();
  promote_of<Loop<64, false, true, true, Warpgroups>>();
  promote_of<Loop<32, false, true, true, Warpgroups>>();
  promote_of<Loop<128, true, true, true, Warpgroups>>();
  promote_of<Loop<64, true, true, true, Warpgroups>>();
  promote_of<Loop<32, true, true, true, Warpgroups>>();
}

}  // namespace

void promote() {
  promote_with<2>();
  promote_with<3>();
  promote_of<Loop<128, false, true, true, 2, true>>();
  promote_of<Loop<64, false, true, true, 2, true>>();
  promote_of<Loop<128, true, true, true, 2, true>>();
}

}  // namespace isobit::limits
