// SPDX-License-Identifier: Apache-2.0
// Do float results depend on the instruction? A block multiplies 64 rows by 256 columns in every form, from the same
// matrices in shared memory and, if asked, from the same sums to add to. In all forms a thread has the same results.
// They are compared with those of mma.sync, and these with float64.
#include <algorithm>
#include <iterator>
#include <vector>

#include "bench/linear_limits.h"
#include "core/cuda/ptx.cuh"
#include "core/cuda/tensor_core.cuh"

namespace isobit::limits {
namespace {

constexpr int kRows = 64, kColumns = 256, kMostDepth = 128, kThreads = 128, kOfThread = kRows * kColumns / kThreads;
constexpr int kDepths[] = {16, 32, 64, 128};
constexpr int kTiles = 528;  // of each input, depth and start

enum class Input : int32_t { kRandom, kCancelling, kSubnormal, kWide, kSpecial };
constexpr const char* kInputs[] = {"random", "cancelling", "subnormal", "wide exponents", "inf, nan, -0"};

/// In the order in which compare_forms compares them.
constexpr const char* kForms[] = {
    "wgmma n8, A in registers",       "wgmma n16, A in registers",      "wgmma n64, A in registers",
    "wgmma n128, A in registers",     "wgmma n256, A in registers",     "wgmma n8, A in shared memory",
    "wgmma n16, A in shared memory",  "wgmma n64, A in shared memory",  "wgmma n128, A in shared memory",
    "wgmma n256, A in shared memory", "wgmma n64, sums through memory", "mma.sync, sums through memory"};
constexpr int kFormCount = sizeof kForms / sizeof kForms[0];

struct Results {
  unsigned long long different[kFormCount];  // from mma.sync
  unsigned long long checked, wrong;         // of mma.sync, by float64
};
struct Args {
  Input input;
  int32_t depth;
  bool start;  // from sums that are not zero
  uint32_t seed;
  Results* results;
  struct Scratch* scratch;  // of each block
};

// ---- Inputs

template <typename T>
__device__ uint16_t number(uint32_t random, int field, bool negative) {
  return static_cast<uint16_t>(static_cast<uint32_t>(negative) << 15 | static_cast<uint32_t>(field) << T::kMantissa |
                               (random & ((1u << T::kMantissa) - 1)));
}
/// Element k of row `line` of A or of column `line` of B.
template <typename T>
__device__ __noinline__ uint16_t element(const Args& a, int tile, bool of_b, int line, int k) {
  const uint32_t of_tile = mix(a.seed, static_cast<uint32_t>(tile));
  const uint32_t of_line = mix(of_tile, static_cast<uint32_t>(2 * line + (of_b ? 1 : 0)));
  const int partner = 1 << of_tile % 7;  // the k whose product cancels this one's
  const int k_of_pair = a.input == Input::kCancelling ? k & ~partner : k;
  const uint32_t r = mix(of_line, static_cast<uint32_t>(k_of_pair));
  const uint32_t s = mix(r);  // for choices
  const bool negative = (r >> 31) != 0;
  constexpr int kInf = T::kExponents - 1;
  const uint16_t usual = number<T>(r, T::kBias - 1 - static_cast<int>(s % 4), negative);
  const auto zero = static_cast<uint16_t>(r >> 31 << 15);
  switch (a.input) {
    case Input::kRandom: return usual;
    case Input::kCancelling: {
      const uint16_t x = number<T>(r, T::kBias - static_cast<int>(s % 8), negative);
      if ((k & partner) == 0) return x;
      return of_b ? x ^ (s >> 8 & s >> 9 & 1) : x ^ 0x8000;
    }
    case Input::kSubnormal: {
      if (T::kMantissa == 10) return number<T>(r, static_cast<int>(s % 4), negative);
      // Products around the least float32: subnormal by 2^-10, or 2^-70 by 2^-70.
      const int spread = static_cast<int>(s % 16) - 8;
      if (of_line % 2 == 0) return number<T>(r, of_b ? T::kBias - 10 + spread : 0, negative);
      return number<T>(r, T::kBias - 70 + spread, negative);
    }
    case Input::kWide: return number<T>(r, T::kBias - 14 + static_cast<int>(s % 29), negative);
    case Input::kSpecial:
      switch (of_line % 4) {
        case 0: return zero;
        case 1:
          return s % 64 == 0 ? number<T>(0, kInf, negative) : s % 64 == 1 ? number<T>(r | 1, kInf, negative) : usual;
        case 2: return s % 2 == 0 ? number<T>(~0u, kInf - 1, negative) : usual;
        default: return s % 2 == 0 ? zero : usual;
      }
  }
  return 0;
}
template <typename T>
__device__ __noinline__ float start_of(const Args& a, int tile, int row, int column) {
  if (!a.start) return 0;
  const uint32_t r = mix(mix(a.seed + 1, static_cast<uint32_t>(tile)), static_cast<uint32_t>(row * kColumns + column));
  const uint32_t s = mix(r);
  const auto made = [&](uint32_t field) { return __uint_as_float((r & 0x807fffff) | field << 23); };
  switch (a.input) {
    case Input::kRandom: return made(127 + s % 4);
    case Input::kCancelling: return made(127 - s % 12);
    case Input::kSubnormal: return made(T::kMantissa == 10 ? 127 - 48 + s % 32 : s % 4);
    case Input::kWide: return made(127 - 28 + s % 57);
    case Input::kSpecial:
      switch (s % 8) {
        case 0: return 0.0f;
        case 1: return -0.0f;
        case 2: return __uint_as_float((r & 0x80000000) | 0x7f800000);
        case 3: return made(255);
        case 4: return __uint_as_float((r & 0x80000000) | 0x7f7fffff);
        case 5: return made(0);
        default: return made(126 + s % 4);
      }
  }
  return 0;
}

// ---- A block

/// In shared memory. Matrices have 8 lines of 8 elements behind each other, then the next 8 elements of these lines.
struct Block {
  uint16_t a[kRows * kMostDepth], b[kColumns * kMostDepth];
};
/// Of a block, in global memory: each thread's results, of which only that thread knows.
using Sums = float[kOfThread][kThreads];
struct Scratch {
  Sums start, reference, got;
};
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ int place(int line, int k) {
  return (line / 8 * (kMostDepth / 8) + k / 8) * 64 + line % 8 * 8 + k % 8;
}
constexpr int kEightLines = 8 * kMostDepth * 2;  // bytes
__device__ __forceinline__ uint32_t two(const uint16_t* matrix, int line, int k) {
  return *reinterpret_cast<const uint32_t*>(matrix + place(line, k));
}
template <typename T>
__device__ float as_float(uint16_t x) {
  if constexpr (T::kMantissa == 7) return __uint_as_float(static_cast<uint32_t>(x) << 16);
  float wide = 0;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
  return wide;
}

/// What a thread has: result i of all is in this row and column.
struct Place {
  int row, column;
  __device__ explicit Place(int i) {
    const int thread = static_cast<int>(threadIdx.x);
    row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
    column = i / 4 * 8 + thread % 4 * 2 + i % 2;
  }
};
/// This thread's words of A for 16 elements of k.
__device__ __forceinline__ void load_a(const Block& m, int k, uint32_t (&a)[4]) {
  const Place at(0);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    a[i] = two(m.a, at.row + i % 2 * 8, k + i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2);
}
template <int Count>
__device__ __forceinline__ void load(const Sums& from, int first, float (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) d[i] = __ldcg(&from[first + i][threadIdx.x]);
}
template <int Count>
__device__ __forceinline__ void store(Sums& to, int first, const float (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) __stcg(&to[first + i][threadIdx.x], d[i]);
}

/// Passed: sums go through memory after each instruction.
template <typename T, int N, bool AShared, bool Passed>
__device__ __forceinline__ void multiply_wgmma(const Args& args, const Block& m, const Sums& start, Sums& to) {
  const uint64_t a_in_memory = cuda::core_matrices(cuda::shared_address(m.a), kEightLines);
#pragma unroll 1
  for (int column = 0; column < kColumns; column += N) {
    const uint64_t b =
        cuda::core_matrices(cuda::shared_address(m.b) + static_cast<uint32_t>(column / 8 * kEightLines), kEightLines);
    float d[N / 2];
    load(start, column / 2, d);
#pragma unroll 1
    for (int k = 0; k < args.depth; k += 16) {
      uint32_t a[4]{};
      if (!AShared) load_a(m, k, a);
      cuda::keep_in_registers(d);
      cuda::wgmma_fence();
      if constexpr (AShared) {
        cuda::wgmma<T, N>(d, a_in_memory + static_cast<uint64_t>(k), b + static_cast<uint64_t>(k), args.start || k > 0);
      } else {
        cuda::wgmma<T, N>(d, a, b + static_cast<uint64_t>(k), args.start || k > 0);
      }
      cuda::wgmma_commit();
      cuda::wgmma_wait<0>();
      cuda::keep_in_registers(d);
      if constexpr (Passed) {
        store(to, column / 2, d);
        load(to, column / 2, d);
      }
    }
    store(to, column / 2, d);
  }
}
template <typename T, bool Passed>
__device__ __forceinline__ void multiply_mma(const Args& args, const Block& m, const Sums& start, Sums& to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int column = 0; column < kColumns; column += 8) {
    float d[4];
    load(start, column / 2, d);
#pragma unroll 1
    for (int k = 0; k < args.depth; k += 16) {
      uint32_t a[4];
      load_a(m, k, a);
      const int b_line = column + lane / 4, b_k = k + lane % 4 * 2;
      cuda::mma<T>(d, a, two(m.b, b_line, b_k), two(m.b, b_line, b_k + 8));
      if constexpr (Passed) {
        store(to, column / 2, d);
        load(to, column / 2, d);
      }
    }
    store(to, column / 2, d);
  }
}

__device__ void compare(const Args& args, const Scratch& scratch, int form) {
  uint32_t different = 0;
  for (int i = 0; i < kOfThread; ++i)
    if (__float_as_uint(scratch.got[i][threadIdx.x]) != __float_as_uint(scratch.reference[i][threadIdx.x])) ++different;
  if (different > 0) atomicAdd(&args.results->different[form], different);
}
template <typename T, bool AShared, bool Passed, int... N>
__device__ __forceinline__ void compare_widths(const Args& args, const Block& m, Scratch& scratch, int& form) {
  (..., (multiply_wgmma<T, N, AShared, Passed>(args, m, scratch.start, scratch.got), compare(args, scratch, form++)));
}

/// Results that cannot overflow on the way are within 2^-23 of the largest product or start, for each product.
template <typename T>
__device__ __noinline__ void compare_with_float64(const Args& args, const Block& m, const Scratch& scratch) {
  unsigned long long checked = 0, wrong = 0;
  for (int i = 0; i < kOfThread; ++i) {
    const Place at(i);
    double exact = static_cast<double>(scratch.start[i][threadIdx.x]);
    double largest = fabs(exact), magnitudes = largest;
    for (int k = 0; k < args.depth; ++k) {
      const double product = static_cast<double>(as_float<T>(m.a[place(at.row, k)])) *
                             static_cast<double>(as_float<T>(m.b[place(at.column, k)]));
      exact += product;
      largest = fmax(largest, fabs(product));
      magnitudes += fabs(product);
    }
    if (!(magnitudes < 0x1p127)) continue;
    ++checked;
    const double bound = args.depth * fmax(largest * 0x1p-23, 0x1p-148);
    if (!(fabs(static_cast<double>(scratch.reference[i][threadIdx.x]) - exact) <= bound)) ++wrong;
  }
  atomicAdd(&args.results->checked, checked);
  atomicAdd(&args.results->wrong, wrong);
}
#endif

template <typename T>
__global__ void __launch_bounds__(kThreads, 1) compare_forms(const __grid_constant__ Args args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) uint8_t shared[];
  Block& m = *reinterpret_cast<Block*>(shared);
  Scratch& scratch = args.scratch[blockIdx.x];
  for (int tile = static_cast<int>(blockIdx.x); tile < kTiles; tile += static_cast<int>(gridDim.x)) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < (kRows + kColumns) * kMostDepth; i += kThreads) {
      const int line = i / kMostDepth, k = i % kMostDepth;
      if (line < kRows) {
        m.a[place(line, k)] = element<T>(args, tile, false, line, k);
      } else {
        m.b[place(line - kRows, k)] = element<T>(args, tile, true, line - kRows, k);
      }
    }
    for (int i = 0; i < kOfThread; ++i) {
      const Place at(i);
      scratch.start[i][threadIdx.x] = start_of<T>(args, tile, at.row, at.column);
    }
    cuda::fence_before_copies();
    __syncthreads();
    multiply_mma<T, false>(args, m, scratch.start, scratch.reference);
    int form = 0;
    compare_widths<T, false, false, 8, 16, 64, 128, 256>(args, m, scratch, form);
    compare_widths<T, true, false, 8, 16, 64, 128, 256>(args, m, scratch, form);
    compare_widths<T, false, true, 64>(args, m, scratch, form);
    multiply_mma<T, true>(args, m, scratch.start, scratch.got);
    compare(args, scratch, form);
    compare_with_float64<T>(args, m, scratch);
  }
#endif
}

// ---- The host's side

template <typename T>
void equal_of() {
  const auto kernel = compare_forms<T>;
  constexpr int kShared = sizeof(Block);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared), "shared memory");
  const int blocks = std::min(kTiles, device().multiProcessorCount);
  const Shared<Scratch> scratch(static_cast<size_t>(blocks));
  for (int input = 0; input < static_cast<int>(std::size(kInputs)); ++input) {
    const Shared<Results> results(1);
    for (const int depth : kDepths)
      for (const bool start : {false, true}) {
        const auto seed = static_cast<uint32_t>(input * 1000 + depth * 2 + (start ? 1 : 0));
        kernel<<<static_cast<unsigned>(blocks), kThreads, kShared>>>(
            Args{static_cast<Input>(input), depth, start, seed, results.get(), scratch.get()});
        check_cuda(cudaGetLastError(), "launch");
      }
    const Results found = results.read()[0];
    std::vector<const char*> different;
    for (int i = 0; i < kFormCount; ++i)
      if (found.different[i] > 0) different.push_back(kForms[i]);
    print({{"what", "equal"},
           {"type", T::kName},
           {"input", kInputs[input]},
           {"forms", kFormCount},
           {"results", int64_t{kTiles} * kRows * kColumns * 2 * static_cast<int>(std::size(kDepths))},
           {"different", different},
           {"right", counted(found.checked > 0 && found.wrong == 0)}});
  }
}

}  // namespace

void equal() {
  equal_of<cuda::Float16>();
  equal_of<cuda::BFloat16>();
}

}  // namespace isobit::limits
