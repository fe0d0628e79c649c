// SPDX-License-Identifier: Apache-2.0
// The main loop of a layer with few rows, without what comes from memory: a warpgroup has 64 rows of W, decodes codes
// into the registers of wgmma, and promotes sums of 128 elements of k. While a group is multiplied, the one before is
// promoted and the next one decoded. Sums are not under way from a turn of the loop to the next, as ptxas would wait
// for each instruction then. All data stays in shared memory. And how often matrix instructions can be issued by
// themselves.
//
// A word of packed codes has those of several registers. Integers: codes are two's complement (1 bit: 0 or 1) and
// become the high bits of bytes, times 2^(8 - bits). Floats: codes become bits of the mantissa of 2^e, so that each
// register has an offset of its own; what all offsets add, times x, is subtracted from a sum of a group.
#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "bench/linear_limits.h"
#include "bench/linear_limits_rates.h"
#include "core/cuda/ptx.cuh"
#include "core/cuda/tensor_core.cuh"

namespace isobit::limits {
namespace {

using cuda::BFloat16;
using cuda::Float16;
using cuda::Int8;

constexpr int kThreads = 128, kRows = 64, kStages = 4, kXGroups = 4;
template <typename T>
constexpr bool kIsInt = std::is_same_v<T, Int8>;

template <typename T, int Bits, int N>
struct Form {
  using Type = T;
  static constexpr int kBits = Bits, kN = N;
  static constexpr int kRegisters = kIsInt<T> ? 16 : 32;         // of a group's weights
  static constexpr int kWords = 2 * Bits;                        // which they are packed in
  static constexpr int kOfWord = kRegisters / kWords;            // registers
  static constexpr int kStageGroups = Bits >= 4 ? 1 : 4 / Bits;  // a stage is 4 KB, or 8
  static constexpr int kTurnGroups = 4;
  static constexpr int kGroups = kStages * kStageGroups;       // in shared memory
  static constexpr int kXBytes = N * kRatesDepth * T::kBytes;  // of a group
  using Load = std::conditional_t<(kWords < 4), uint2, uint4>;
  static constexpr int kLoads = kWords * 4 / static_cast<int>(sizeof(Load));
  struct Block {
    uint8_t x[kXGroups][kXBytes];  // 8 lines of 16 bytes behind each other, then their next 16 bytes
    Load w[kGroups][kLoads][kThreads];
    float2 s[kGroups][kThreads / 4];  // of both rows of a lane's four
    float2 column[kXGroups][N / 2];   // integers: Sa; floats: what offsets add
    int2 sum[kXGroups][N / 2];        // integers of 1 bit: 64 sums of codes of x
    uint64_t full[kStages], empty[kStages];
  };
};

// ---- Where codes are in a word

/// Of floats, 16 bits each: fields up to the top of the mantissa; then the next ones, in the word rotated.
template <typename T, int Bits>
struct Fields {
  static constexpr int kAtOnce = T::kMantissa / Bits;
  /// The lowest bit of register i's codes, and by how much the word is rotated to the right.
  __host__ __device__ static constexpr int position(int i) {
    return T::kMantissa - kAtOnce * Bits + i % kAtOnce * Bits;
  }
  __host__ __device__ static constexpr int rotation(int i) { return i / kAtOnce * kAtOnce * Bits; }
  /// What is added to a code.
  __host__ __device__ static constexpr int offset(int i) { return 1 << (T::kMantissa - position(i)); }
  __host__ __device__ static constexpr uint32_t base(int i) {
    return static_cast<uint32_t>(T::kMantissa - position(i) + T::kBias) << T::kMantissa;
  }
};
/// Whether all fields together are a word.
template <typename T, int Bits>
constexpr bool cover_a_word() {
  uint32_t seen = 0;
  for (int bit = 0; bit < 32; ++bit) {
    const int i = bit / 2 / Bits, place = bit % 2;
    const int at = Fields<T, Bits>::position(i) + Fields<T, Bits>::rotation(i) + 16 * place + bit / 2 % Bits;
    seen |= 1u << at % 32;
  }
  return seen == ~0u;
}
static_assert(cover_a_word<Float16, 4>() && cover_a_word<Float16, 2>() && cover_a_word<Float16, 1>());
static_assert(cover_a_word<BFloat16, 4>() && cover_a_word<BFloat16, 2>() && cover_a_word<BFloat16, 1>());
template <typename F>
__device__ uint32_t packed_of(int group, int thread, int word) {
  return mix(static_cast<uint32_t>(group * 16 + word), static_cast<uint32_t>(thread));
}
/// The registers of the first eight of 16 rows come first, so that what offsets add does not depend on the row.
template <typename F>
__host__ __device__ constexpr int register_of(int i) {
  return i % (F::kRegisters / 2) * 2 + i / (F::kRegisters / 2);
}
struct Code {
  uint32_t code;
  int of_word;  // which of its registers has it
};
template <typename F>
__device__ Code code_of(int group, int row, int k) {
  using T = typename F::Type;
  constexpr int kInWord = 4 / T::kBytes, kHalf = 16 / T::kBytes;
  const int thread = row / 16 * 32 + row % 8 * 4 + k % kHalf / kInWord;
  const int i = row % 16 / 8 * (F::kRegisters / 2) + k / kHalf;  // register_of(i) has it
  const int of_word = i % F::kOfWord, place = k % kInWord;
  const uint32_t word = packed_of<F>(group, thread, i / F::kOfWord);
  int bit = 0;
  if constexpr (kIsInt<T>) {
    bit = 8 * place + F::kBits * of_word;
  } else if constexpr (F::kBits == 8) {
    bit = 8 * (2 * of_word + place);
  } else {
    using Of = Fields<T, F::kBits>;
    bit = Of::position(of_word) + Of::rotation(of_word) + 16 * place;
  }
  const uint32_t rotated = __funnelshift_r(word, word, static_cast<uint32_t>(bit % 32));
  return {rotated & ((1u << F::kBits) - 1), of_word};
}
/// Integers: as in registers.
template <typename F>
__device__ int32_t int_of(int group, int row, int k) {
  return static_cast<int8_t>(code_of<F>(group, row, k).code << (8 - F::kBits));
}
/// Floats: a code less the middle of all codes.
template <typename F>
__device__ float middle() {
  return F::kBits == 1 ? 0.5f : static_cast<float>(1 << (F::kBits - 1));
}
/// What the register has beyond that.
template <typename F>
__device__ float excess_of(int of_word) {
  using T = typename F::Type;
  if constexpr (F::kBits == 8) return T::kMantissa == 10 ? 1024 + middle<F>() : 0;
  if constexpr (F::kBits < 8) return static_cast<float>(Fields<T, F::kBits>::offset(of_word)) + middle<F>();
}

__device__ int8_t code_of_x(int group, int column, int k) {
  return static_cast<int8_t>(mix(static_cast<uint32_t>(3000 + group * 128 + k), static_cast<uint32_t>(column)));
}
/// Bits of a float in (-2, 2), and its value.
template <typename T>
__device__ uint16_t bits_of_x(int group, int column, int k) {
  const uint32_t r = mix(static_cast<uint32_t>(3000 + group * 128 + k), static_cast<uint32_t>(column));
  const uint32_t field = static_cast<uint32_t>(T::kBias) - (r >> 20) % 4;
  return static_cast<uint16_t>((r >> 31) << 15 | field << T::kMantissa | (r & ((1u << T::kMantissa) - 1)));
}
template <typename T>
__device__ float value_of_x(int group, int column, int k) {
  const uint32_t bits = bits_of_x<T>(group, column, k);
  const uint32_t exponent = (bits >> T::kMantissa) % T::kExponents - T::kBias + 127;
  return __uint_as_float(bits >> 15 << 31 | exponent << 23 | (bits << (23 - T::kMantissa) & 0x7fffff));
}
__device__ float s_of(int group, int row) {
  return scale_of(mix(static_cast<uint32_t>(7000 + group), static_cast<uint32_t>(row)));
}
__device__ float sa_of(int group, int column) {
  return scale_of(mix(static_cast<uint32_t>(8000 + group), static_cast<uint32_t>(column)));
}
__device__ int32_t sum_of_x(int group, int column) {
  int32_t sum = 0;
  for (int k = 0; k < kRatesDepth; ++k) sum += code_of_x(group, column, k);
  return sum;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// Barriers that are waited for and arrived at as those of a real ring.
template <typename Block>
__device__ __forceinline__ void start_barriers(Block& m) {
  if (threadIdx.x == 0)
    for (int i = 0; i < kStages; ++i) {
      cuda::barrier_init(cuda::shared_address(&m.full[i]), 1);
      cuda::barrier_init(cuda::shared_address(&m.empty[i]), kThreads / 32);
    }
  cuda::fence_before_copies();
  __syncthreads();
}
template <typename F>
__device__ __forceinline__ void fill(typename F::Block& m) {
  using T = typename F::Type;
  constexpr int kOfLoad = F::kWords / F::kLoads;
  const int thread = static_cast<int>(threadIdx.x);
  for (int group = 0; group < F::kGroups; ++group) {
    for (int word = 0; word < F::kWords; ++word)
      reinterpret_cast<uint32_t*>(&m.w[group][word / kOfLoad][thread])[word % kOfLoad] =
          packed_of<F>(group, thread, word);
    if (thread % 4 == 0) {
      const int row = thread / 32 * 16 + thread % 32 / 4;
      m.s[group][thread / 4] = {s_of(group, row), s_of(group, row + 8)};
    }
  }
  for (int group = 0; group < kXGroups; ++group) {
    for (int i = thread; i < F::kN * kRatesDepth; i += kThreads) {
      constexpr int kPiece = 16 / T::kBytes;
      const int column = i / kRatesDepth, k = i % kRatesDepth;
      const int at =
          (column / 8 * (kRatesDepth / kPiece) + k / kPiece) * 128 + column % 8 * 16 + k % kPiece * T::kBytes;
      if constexpr (kIsInt<T>) {
        m.x[group][at] = static_cast<uint8_t>(code_of_x(group, column, k));
      } else {
        *reinterpret_cast<uint16_t*>(&m.x[group][at]) = bits_of_x<T>(group, column, k);
      }
    }
    if (thread < F::kN) {
      float& column = reinterpret_cast<float*>(m.column[group])[thread];
      if constexpr (kIsInt<T>) {
        column = sa_of(group, thread);
        reinterpret_cast<int32_t*>(m.sum[group])[thread] = 64 * sum_of_x(group, thread);
      } else {
        column = 0;
        for (int k = 0; k < kRatesDepth; ++k)
          column += excess_of<F>(code_of<F>(0, 0, k).of_word) * value_of_x<T>(group, thread, k);
      }
    }
  }
  start_barriers(m);
}

template <uint32_t Mask>
__device__ __forceinline__ uint32_t masked_or(uint32_t x, uint32_t base) {
  uint32_t result = 0;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(x), "n"(Mask), "r"(base));
  return result;
}
template <int Selector>
__device__ __forceinline__ uint32_t permuted(uint32_t x, uint32_t y) {
  uint32_t result = 0;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(y), "n"(Selector));
  return result;
}
/// Registers I and on of a word.
template <typename F, int I = 0>
__device__ __forceinline__ void decode_word(uint32_t word, uint32_t (&to)[F::kOfWord]) {
  using T = typename F::Type;
  if constexpr (kIsInt<T>) {
    constexpr int kShift = 8 - F::kBits * (I + 1);
    constexpr uint32_t kMask = (0xff << (8 - F::kBits) & 0xff) * 0x01010101u;
    to[I] = F::kBits == 8 ? word : word * (1u << kShift) & kMask;
  } else if constexpr (F::kBits == 8 && T::kMantissa == 10) {
    to[I] = permuted < I == 0 ? 0x4140 : 0x4342 > (word, 0x64646464);
  } else if constexpr (F::kBits == 8) {
    const float low = __uint_as_float(permuted<0x7440 + 2 * I>(word, 0x4b000000)) - (0x1p23f + 128);
    const float high = __uint_as_float(permuted<0x7441 + 2 * I>(word, 0x4b000000)) - (0x1p23f + 128);
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(to[I]) : "f"(high), "f"(low));
  } else {
    using Of = Fields<T, F::kBits>;
    constexpr auto kRotation = static_cast<uint32_t>(Of::rotation(I));
    constexpr uint32_t kMask = ((1u << F::kBits) - 1) << Of::position(I);
    to[I] = masked_or<kMask * 0x10001u>(kRotation == 0 ? word : __funnelshift_r(word, word, kRotation),
                                        Of::base(I) * 0x10001u);
  }
  if constexpr (I + 1 < F::kOfWord) decode_word<F, I + 1>(word, to);
}
template <typename F>
__device__ __forceinline__ void decode_group(const uint32_t (&words)[F::kWords], uint32_t (&a)[F::kRegisters]) {
#pragma unroll
  for (int i = 0; i < F::kWords; ++i) {
    uint32_t part[F::kOfWord];
    decode_word<F>(words[i], part);
#pragma unroll
    for (int j = 0; j < F::kOfWord; ++j) a[register_of<F>(i * F::kOfWord + j)] = part[j];
  }
}
#endif

template <typename F>
__global__ void __launch_bounds__(kThreads) decode_loop(const __grid_constant__ RateArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = typename F::Type;
  constexpr int kPairs = F::kN / 8;  // of columns, of a thread
  extern __shared__ __align__(128) uint8_t shared[];
  auto& m = *reinterpret_cast<typename F::Block*>(shared);
  fill<F>(m);
  const int thread = static_cast<int>(threadIdx.x), q = thread % 4;
  typename T::Result d[2][F::kN / 2]{};
  uint32_t a[2][F::kRegisters];
  float acc[F::kN / 2]{};
  // Of the group whose products are under way.
  float2 s{}, column[kPairs]{};
  int2 sum[kPairs]{};
  const auto promote_group = [&](const typename T::Result(&of_group)[F::kN / 2]) {
#pragma unroll
    for (int i = 0; i < F::kN / 2; ++i) {
      const float of_row = i / 2 % 2 == 0 ? s.x : s.y;
      const float of_column = i % 2 == 0 ? column[i / 4].x : column[i / 4].y;
      if constexpr (kIsInt<T>) {
        int32_t x = of_group[i];
        if constexpr (F::kBits == 1) x = -x - (i % 2 == 0 ? sum[i / 4].x : sum[i / 4].y);
        acc[i] = __fmaf_rn(__int2float_rn(x), __fmul_rn(of_row, of_column), acc[i]);
      } else {
        acc[i] = __fmaf_rn(__fadd_rn(of_group[i], -of_column), of_row, acc[i]);
      }
    }
  };
  alignas(16) uint32_t words[F::kWords];
  // i: the group's place in its turn.
  const auto load_next = [&](int group, int i) {
    const int stage = group / F::kStageGroups;
    if (i % F::kStageGroups == 0) cuda::barrier_wait(cuda::shared_address(&m.full[stage]), 1);
#pragma unroll
    for (int part = 0; part < F::kLoads; ++part)
      reinterpret_cast<typename F::Load*>(words)[part] = m.w[group][part][thread];
    if (i % F::kStageGroups == F::kStageGroups - 1 && thread % 32 == 0)
      cuda::barrier_arrive(cuda::shared_address(&m.empty[stage]));
  };
  int first = 0;
  const Span span = begin_span();
  load_next(0, 0);
  decode_group<F>(words, a[0]);
#pragma unroll 1
  for (int turn = 0; turn < args.turns; ++turn) {
    const int next = first + F::kTurnGroups < F::kGroups ? first + F::kTurnGroups : 0;
#pragma unroll
    for (int i = 0; i < F::kTurnGroups; ++i) {
      const int group = first + i, x_group = i % kXGroups;
      const uint64_t x = cuda::core_matrices(cuda::shared_address(m.x[x_group]), 8 * kRatesDepth * T::kBytes);
      load_next(i + 1 < F::kTurnGroups ? group + 1 : next, (i + 1) % F::kTurnGroups);
      for (uint32_t& word : a[i % 2]) asm volatile("" : "+r"(word));
      cuda::wgmma_fence();
#pragma unroll
      for (int step = 0; step < F::kRegisters / 4; ++step)
        cuda::wgmma<T, F::kN>(d[i % 2], a[i % 2] + 4 * step, x + static_cast<uint64_t>(16 * step), step > 0);
      cuda::wgmma_commit();
      if (i > 0) {
        cuda::wgmma_wait<1>();
        cuda::keep_in_registers(d[1 - i % 2]);
        promote_group(d[1 - i % 2]);
      }
      s = m.s[group][thread / 4];
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        column[j] = m.column[x_group][4 * j + q];
        if (kIsInt<T> && F::kBits == 1) sum[j] = m.sum[x_group][4 * j + q];
      }
      decode_group<F>(words, a[1 - i % 2]);
    }
    cuda::wgmma_wait<0>();
    cuda::keep_in_registers(d[1]);
    promote_group(d[1]);
    first = next;
  }
  end_span(args, span);
  if (blockIdx.x > 0) return;
#pragma unroll
  for (int i = 0; i < F::kN / 2; ++i) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
    args.out[row * F::kN + i / 4 * 8 + q * 2 + i % 2] = acc[i];
  }
#endif
}
/// What decode_loop must find, floats nearly. A thread a result.
template <typename F>
__global__ void decode_expected(const __grid_constant__ RateArgs args) {
  using T = typename F::Type;
  const int row = static_cast<int>(blockIdx.x), column = static_cast<int>(threadIdx.x);
  float acc = 0;
  double exact = 0;
  for (int i = 0; i < args.turns * F::kTurnGroups; ++i) {
    const int group = i % F::kGroups, x_group = group % kXGroups;
    if constexpr (kIsInt<T>) {
      int32_t d = 0;
      for (int k = 0; k < kRatesDepth; ++k) {
        const int32_t v = F::kBits == 1 ? (code_of<F>(group, row, k).code != 0 ? 64 : -64) : int_of<F>(group, row, k);
        d += v * code_of_x(x_group, column, k);
      }
      acc = __fmaf_rn(__int2float_rn(d), __fmul_rn(s_of(group, row), sa_of(x_group, column)), acc);
    } else {
      double sum = 0;
      for (int k = 0; k < kRatesDepth; ++k)
        sum += static_cast<double>(static_cast<float>(code_of<F>(group, row, k).code) - middle<F>()) *
               static_cast<double>(value_of_x<T>(x_group, column, k));
      exact += static_cast<double>(s_of(group, row)) * sum;
    }
  }
  args.out[row * F::kN + column] = kIsInt<T> ? acc : static_cast<float>(exact);
}

// ---- One row, weights of 1 bit: single bits of weights by those of x

constexpr int kBitGroups = 4 * kStages;
struct BitBlock {
  uint4 w[kBitGroups / 2][kThreads];  // two groups, rows g and g + 8 of each
  uint2 x[kBitGroups / 2][32];        // two groups, bit g of 32 codes
  float2 s[kBitGroups][kThreads / 4];
  float sa[kBitGroups];
  int32_t sum[kBitGroups];
  uint64_t full[kStages], empty[kStages];
};
__device__ uint32_t bits_of_w(int group, int row, int word) {
  return mix(static_cast<uint32_t>(group * 4 + word), static_cast<uint32_t>(row));
}
__device__ uint32_t bits_of_codes(int group, int plane, int word) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= (static_cast<uint32_t>(code_of_x(group, 0, 32 * word + i)) >> plane & 1) << i;
  return bits;
}
__global__ void __launch_bounds__(kThreads) decode_bits(const __grid_constant__ RateArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) uint8_t shared[];
  BitBlock& m = *reinterpret_cast<BitBlock*>(shared);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, q = thread % 4;
  const int row = thread / 32 * 16 + lane / 4;
  for (int group = 0; group < kBitGroups; ++group) {
    const auto w = reinterpret_cast<uint32_t*>(&m.w[group / 2][thread]) + group % 2 * 2;
    w[0] = bits_of_w(group, row, q);
    w[1] = bits_of_w(group, row + 8, q);
    if (thread < 32) reinterpret_cast<uint32_t*>(&m.x[group / 2][lane])[group % 2] = bits_of_codes(group, lane / 4, q);
    if (q == 0) m.s[group][thread / 4] = {s_of(group, row), s_of(group, row + 8)};
    if (thread == 0) m.sa[group] = sa_of(group, 0);
    if (thread == 0) m.sum[group] = sum_of_x(group, 0);
  }
  start_barriers(m);
  const int32_t weight[] = {1 << 2 * q, q == 3 ? -128 : 2 << 2 * q};  // of the two bits whose places this lane counts
  const bool second = q % 2 != 0;                                     // the lane has row g + 8 in the end
  float acc = 0;
  int stage = 0;
  const Span span = begin_span();
#pragma unroll 1
  for (int turn = 0; turn < args.turns; ++turn) {
    cuda::barrier_wait(cuda::shared_address(&m.full[stage]), 1);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int pair = 2 * stage + i / 2;
      const uint4 w = m.w[pair][thread];
      const uint2 x = m.x[pair][lane];
      int32_t places[2][4]{};
      cuda::mma_bits_128(places[0], w.x, w.y, x.x);
      cuda::mma_bits_128(places[1], w.z, w.w, x.y);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int group = 2 * pair + j;
        const int32_t one = places[j][0] * weight[0] + places[j][1] * weight[1];
        const int32_t other = places[j][2] * weight[0] + places[j][3] * weight[1];
        int32_t d = (second ? other : one) + __shfl_xor_sync(0xffffffff, second ? one : other, 1);
        d += __shfl_xor_sync(0xffffffff, d, 2);
        const float s = reinterpret_cast<const float*>(&m.s[group][thread / 4])[second ? 1 : 0];
        acc = __fmaf_rn(__int2float_rn(2 * d - m.sum[group]), __fmul_rn(s, m.sa[group]), acc);
      }
    }
    if (lane == 0) cuda::barrier_arrive(cuda::shared_address(&m.empty[stage]));
    stage = stage + 1 < kStages ? stage + 1 : 0;
  }
  end_span(args, span);
  if (blockIdx.x == 0 && q < 2) args.out[row + 8 * q] = acc;
#endif
}
__global__ void decode_bits_expected(const __grid_constant__ RateArgs args) {
  const int row = static_cast<int>(blockIdx.x);
  float acc = 0;
  for (int i = 0; i < 4 * args.turns; ++i) {
    const int group = i % kBitGroups;
    int32_t d = 0;
    for (int k = 0; k < kRatesDepth; ++k)
      d += (bits_of_w(group, row, k / 32) >> k % 32 & 1) != 0 ? code_of_x(group, 0, k) : -code_of_x(group, 0, k);
    acc = __fmaf_rn(__int2float_rn(d), __fmul_rn(s_of(group, row), sa_of(group, 0)), acc);
  }
  args.out[row] = acc;
}

// ---- Matrix instructions by themselves

constexpr int kAtOnce = 8;  // instructions of a turn
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) issue_wgmma(const __grid_constant__ RateArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) uint8_t shared[];
  for (int i = static_cast<int>(threadIdx.x); i < N * 8; i += kThreads)
    reinterpret_cast<uint32_t*>(shared)[i] = mix(static_cast<uint32_t>(i)) & 0x3fff3fff;  // floats are finite
  cuda::fence_before_copies();
  typename T::Result d[N / 2]{};
  uint32_t a[4];
  for (uint32_t& word : a) word = mix(threadIdx.x) & 0x3fff3fff;
  const Span span = begin_span();
#pragma unroll 1
  for (int turn = 0; turn < args.turns; ++turn) {
    for (uint32_t& word : a) asm volatile("" : "+r"(word));
    cuda::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      cuda::wgmma<T, N>(d, a, cuda::core_matrices(cuda::shared_address(shared), 256), true);
    cuda::wgmma_commit();
    cuda::wgmma_wait<1>();
  }
  cuda::wgmma_wait<0>();
  cuda::keep_in_registers(d);
  end_span(args, span);
  float sum = 0;
  for (const auto x : d) sum += static_cast<float>(x);
  if (blockIdx.x == 0) args.out[threadIdx.x] = sum;
#endif
}
struct Bits {
  using Result = int32_t;
};
/// kAtOnce sums take turns. Bits: 128 of k.
template <typename T>
__global__ void __launch_bounds__(kThreads) issue_mma(const __grid_constant__ RateArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  typename T::Result d[kAtOnce][4]{};
  uint32_t a[6];
  for (uint32_t& word : a) word = mix(threadIdx.x) & 0x3fff3fff;
  const Span span = begin_span();
#pragma unroll 1
  for (int turn = 0; turn < args.turns; ++turn)
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if constexpr (std::is_same_v<T, Bits>) {
        cuda::mma_bits_128(d[i], a[0], a[1], a[4]);
      } else {
        cuda::mma<T>(d[i], a, a[4], a[5]);
      }
    }
  end_span(args, span);
  float sum = 0;
  for (auto& sums : d)
    for (const auto x : sums) sum += static_cast<float>(x);
  if (blockIdx.x == 0) args.out[threadIdx.x] = sum;
#endif
}

// ---- The host's side

constexpr int kMostBlocks = 4, kLaunches = 20;

void decode_of(Kernel kernel, Kernel expected, int columns, size_t shared, double tolerance, int bits, int turn_groups,
               Line line) {
  constexpr int kCheckedTurns = 21, kGroups = 8192;
  line["right"] = is_right(kernel, kThreads, shared, expected, kRows, columns, kCheckedTurns, tolerance);
  const int blocks = std::min(kMostBlocks, blocks_at_once(kernel, kThreads, shared));
  const double clocks =
      rate_of(kernel, blocks, kThreads, shared, kGroups / turn_groups, kLaunches).clocks / kGroups / blocks;
  line["warpgroups"] = blocks;
  line["bytes_per_clock"] = kRows * kRatesDepth * bits / 8 / clocks;
  print(line);
}
template <typename T, int Bits, int N>
void decode_form() {
  using F = Form<T, Bits, N>;
  decode_of(decode_loop<F>, decode_expected<F>, N, sizeof(typename F::Block), kIsInt<T> ? 0 : 2e-3, Bits,
            F::kTurnGroups,
            {{"what", "decode"}, {"instruction", "wgmma"}, {"activations", T::kName}, {"n", N}, {"bits", Bits}});
}
template <typename T, int... N>
void decode_forms() {
  (..., (decode_form<T, 8, N>(), decode_form<T, 4, N>(), decode_form<T, 2, N>(), decode_form<T, 1, N>()));
}

/// For 64 rows of the left matrix: one wgmma, or four mma.sync.
void issue_of(Kernel kernel, size_t shared, Line line) {
  constexpr int kTurns = 4096;
  const double clocks = rate_of(kernel, kMostBlocks, kThreads, shared, kTurns, kLaunches).clocks;
  line["clocks_of_64_rows"] = clocks / kTurns / kAtOnce / kMostBlocks;
  print(line);
}
template <typename T, int... N>
void issue_wgmma_of() {
  (..., issue_of(issue_wgmma<T, N>, N * 32,
                 {{"what", "issue"}, {"instruction", "wgmma"}, {"activations", T::kName}, {"n", N}}));
}
template <typename T>
void issue_mma_of(const char* instruction) {
  issue_of(issue_mma<T>, 0, {{"what", "issue"}, {"instruction", instruction}, {"n", 8}});
}

}  // namespace

void issue() {
  issue_wgmma_of<Int8, 8, 16, 64>();
  issue_wgmma_of<Float16, 8, 16, 64>();
  issue_mma_of<Bits>("mma.sync m16n8k128 b1");
  issue_mma_of<Int8>("mma.sync m16n8k32 s8");
  issue_mma_of<Float16>("mma.sync m16n8k16 f16");
}
void decode() {
  decode_forms<Int8, 8, 16>();
  decode_forms<Float16, 8, 16>();
  decode_forms<BFloat16, 8>();
  decode_of(decode_bits, decode_bits_expected, 1, sizeof(BitBlock), 0, 1, 4,
            {{"what", "decode"}, {"instruction", "mma.sync b1"}, {"activations", "int8"}, {"n", 1}, {"bits", 1}});
}

}  // namespace isobit::limits
