// SPDX-License-Identifier: Apache-2.0
// Do float results depend on the instruction? A block multiplies 64 rows by 256 columns in every form, from the same
// matrices in shared memory and, if asked, from the same sums to add to. In all forms a thread has the same results.
// They are compared with those of mma.sync and of wgmma with 64 columns, and these two with float64.
#include <algorithm>
#include <string>
#include <vector>

#include "bench/linear_limits.h"
#include "bench/tensor_core.cuh"
#include "core/cuda/ptx.cuh"

namespace isobit::limits {
namespace {

constexpr int kRows = 64, kColumns = 256, kMostDepth = 128, kThreads = 128, kOfThread = kRows * kColumns / kThreads;
constexpr int kDepths[] = {16, 32, 64, 128};

enum class Input : int32_t { kRandom, kCancelling, kSubnormal, kWide, kSpecial };
constexpr const char* kInputs[] = {"random", "cancelling", "subnormal", "wide exponents", "inf, nan, -0"};

// ---- Forms

constexpr const char* kForms[] = {
    "wgmma n8, A in registers",       "wgmma n16, A in registers",     "wgmma n64, A in registers",
    "wgmma n128, A in registers",     "wgmma n256, A in registers",    "wgmma n8, A in shared memory",
    "wgmma n16, A in shared memory",  "wgmma n64, A in shared memory", "wgmma n128, A in shared memory",
    "wgmma n256, A in shared memory", "mma.sync, sums through memory", "wgmma n64, sums through memory"};
constexpr int kFormCount = sizeof kForms / sizeof kForms[0];
constexpr const char* kReferences[] = {"mma.sync", "wgmma n64, A in registers"};

/// The first result that differs from a reference.
struct First {
  int32_t found, tile, row, column, depth, start;
  uint32_t c, bits, expected;  // c: what was added to, if anything
  uint16_t a[kMostDepth], b[kMostDepth];
};
struct Form {
  unsigned long long different[2], nan[2];  // from each reference; where both are NaN
  First first[2];
};
/// Of a reference, against float64, where that is finite. A unit is 2^-24 of the largest product or start.
struct Error {
  unsigned long long results, nearest, toward_zero, away;
  uint32_t most_units;  // bits of a float
};
struct Results {
  Form forms[kFormCount];
  Error errors[2];
};
struct Args {
  Input input;
  int32_t depth, tiles;
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
  Sums start, reference[2], got;
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

__device__ void note(const Args& a, const Block& m, int tile, First& first, int i, float got, float expected, float c) {
  if (first.found != 0 || atomicExch(&first.found, 1) != 0) return;
  const Place at(i);
  first.tile = tile;
  first.row = at.row;
  first.column = at.column;
  first.depth = a.depth;
  first.start = a.start ? 1 : 0;
  first.c = __float_as_uint(c);
  first.bits = __float_as_uint(got);
  first.expected = __float_as_uint(expected);
  for (int k = 0; k < a.depth; ++k) {
    first.a[k] = m.a[place(at.row, k)];
    first.b[k] = m.b[place(at.column, k)];
  }
}
/// What a form has got, with both references.
__device__ __noinline__ void compare(const Args& args, const Block& m, const Scratch& scratch, int tile, int form) {
  Form& to = args.results->forms[form];
  for (int reference = 0; reference < 2; ++reference) {
    uint32_t different = 0, nan = 0;
    for (int i = 0; i < kOfThread; ++i) {
      const float got = scratch.got[i][threadIdx.x], expected = scratch.reference[reference][i][threadIdx.x];
      if (__float_as_uint(got) == __float_as_uint(expected)) continue;
      ++different;
      if (isnan(got) && isnan(expected)) ++nan;
      note(args, m, tile, to.first[reference], i, got, expected, scratch.start[i][threadIdx.x]);
    }
    if (different > 0) atomicAdd(&to.different[reference], different);
    if (nan > 0) atomicAdd(&to.nan[reference], nan);
  }
}

template <typename T>
__device__ __noinline__ void compare_with_float64(const Args& args, const Block& m, const Scratch& scratch) {
  Error errors[2]{};
  for (int i = 0; i < kOfThread; ++i) {
    const Place at(i);
    double exact = static_cast<double>(scratch.start[i][threadIdx.x]), largest = fabs(exact);
    for (int k = 0; k < args.depth; ++k) {
      const double product = static_cast<double>(as_float<T>(m.a[place(at.row, k)])) *
                             static_cast<double>(as_float<T>(m.b[place(at.column, k)]));
      exact += product;
      largest = fmax(largest, fabs(product));
    }
    if (!isfinite(exact) || fabs(exact) >= 0x1p127) continue;
    const double unit = fmax(largest * 0x1p-24, 0x1p-149);
#pragma unroll
    for (int reference = 0; reference < 2; ++reference) {
      const float got = scratch.reference[reference][i][threadIdx.x];
      const double magnitude = fabs(static_cast<double>(got));
      Error& error = errors[reference];
      ++error.results;
      if (got == static_cast<float>(exact)) ++error.nearest;
      if (magnitude < fabs(exact)) ++error.toward_zero;
      if (magnitude > fabs(exact)) ++error.away;
      const auto units = static_cast<float>(fabs(static_cast<double>(got) - exact) / unit);
      error.most_units = max(error.most_units, __float_as_uint(units));
    }
  }
  for (int reference = 0; reference < 2; ++reference) {
    Error& to = args.results->errors[reference];
    atomicAdd(&to.results, errors[reference].results);
    atomicAdd(&to.nearest, errors[reference].nearest);
    atomicAdd(&to.toward_zero, errors[reference].toward_zero);
    atomicAdd(&to.away, errors[reference].away);
    atomicMax(&to.most_units, errors[reference].most_units);
  }
}
#endif

template <typename T>
__global__ void __launch_bounds__(kThreads, 1) compare_forms(const __grid_constant__ Args args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) uint8_t shared[];
  Block& m = *reinterpret_cast<Block*>(shared);
  Scratch& scratch = args.scratch[blockIdx.x];
  for (int tile = static_cast<int>(blockIdx.x); tile < args.tiles; tile += static_cast<int>(gridDim.x)) {
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
    const auto compare_got = [&](int form) { compare(args, m, scratch, tile, form); };
    multiply_mma<T, false>(args, m, scratch.start, scratch.reference[0]);
    multiply_wgmma<T, 64, false, false>(args, m, scratch.start, scratch.reference[1]);
    multiply_wgmma<T, 8, false, false>(args, m, scratch.start, scratch.got);
    compare_got(0);
    multiply_wgmma<T, 16, false, false>(args, m, scratch.start, scratch.got);
    compare_got(1);
    multiply_wgmma<T, 64, false, false>(args, m, scratch.start, scratch.got);
    compare_got(2);
    multiply_wgmma<T, 128, false, false>(args, m, scratch.start, scratch.got);
    compare_got(3);
    multiply_wgmma<T, 256, false, false>(args, m, scratch.start, scratch.got);
    compare_got(4);
    multiply_wgmma<T, 8, true, false>(args, m, scratch.start, scratch.got);
    compare_got(5);
    multiply_wgmma<T, 16, true, false>(args, m, scratch.start, scratch.got);
    compare_got(6);
    multiply_wgmma<T, 64, true, false>(args, m, scratch.start, scratch.got);
    compare_got(7);
    multiply_wgmma<T, 128, true, false>(args, m, scratch.start, scratch.got);
    compare_got(8);
    multiply_wgmma<T, 256, true, false>(args, m, scratch.start, scratch.got);
    compare_got(9);
    multiply_mma<T, true>(args, m, scratch.start, scratch.got);
    compare_got(10);
    multiply_wgmma<T, 64, false, true>(args, m, scratch.start, scratch.got);
    compare_got(11);
    compare_with_float64<T>(args, m, scratch);
  }
#endif
}

// ---- The host's side

std::string hex(uint32_t bits, int digits) {
  char text[16];
  std::snprintf(text, sizeof text, "%0*x", digits, bits);
  return text;
}
Line line_of(const First& first) {
  std::string a, b;
  for (int k = 0; k < first.depth; ++k) {
    a.append(k > 0 ? 1 : 0, ' ').append(hex(first.a[k], 4));
    b.append(k > 0 ? 1 : 0, ' ').append(hex(first.b[k], 4));
  }
  return {{"depth", first.depth},
          {"tile", first.tile},
          {"row", first.row},
          {"column", first.column},
          {"start", first.start != 0 ? hex(first.c, 8) : "none"},
          {"got", hex(first.bits, 8)},
          {"reference", hex(first.expected, 8)},
          {"a", a},
          {"b", b}};
}

template <typename T>
void equal_of(int tiles) {
  const auto kernel = compare_forms<T>;
  constexpr int kShared = sizeof(Block);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared), "shared memory");
  const int blocks = std::min(tiles, device().multiProcessorCount);
  const Shared<Scratch> scratch(static_cast<size_t>(blocks));
  for (int input = 0; input < 5; ++input) {
    Form forms[kFormCount]{};
    for (const int depth : kDepths) {
      for (const bool start : {false, true}) {
        const Shared<Results> results(1);
        const auto seed = static_cast<uint32_t>(input * 1000 + depth * 2 + (start ? 1 : 0));
        kernel<<<static_cast<unsigned>(blocks), kThreads, kShared>>>(
            Args{static_cast<Input>(input), depth, tiles, start, seed, results.get(), scratch.get()});
        check_cuda(cudaGetLastError(), "launch");
        const Results found = results.read()[0];
        for (int i = 0; i < kFormCount; ++i)
          for (int j = 0; j < 2; ++j) {
            forms[i].different[j] += found.forms[i].different[j];
            forms[i].nan[j] += found.forms[i].nan[j];
            if (forms[i].first[j].found == 0) forms[i].first[j] = found.forms[i].first[j];
          }
        for (int j = 0; j < 2; ++j) {
          const Error& e = found.errors[j];
          float most = 0;
          std::memcpy(&most, &e.most_units, sizeof most);
          print({{"what", "error"},
                 {"type", T::kName},
                 {"input", kInputs[input]},
                 {"form", kReferences[j]},
                 {"depth", depth},
                 {"start", start},
                 {"results", e.results},
                 {"nearest", e.nearest},
                 {"toward_zero", e.toward_zero},
                 {"away", e.away},
                 {"most_units", most}});
        }
      }
    }
    for (int i = 0; i < kFormCount; ++i)
      for (int j = 0; j < 2; ++j) {
        Line line = {{"what", "equal"},
                     {"type", T::kName},
                     {"input", kInputs[input]},
                     {"form", kForms[i]},
                     {"reference", kReferences[j]},
                     {"results", int64_t{tiles} * kRows * kColumns * 2 * static_cast<int>(std::size(kDepths))},
                     {"different", forms[i].different[j]},
                     {"both_nan", forms[i].nan[j]}};
        if (forms[i].first[j].found != 0) line["first"] = line_of(forms[i].first[j]);
        print(line);
      }
  }
}

}  // namespace

void equal(int tiles) {
  equal_of<cuda::Float16>(tiles);
  equal_of<cuda::BFloat16>(tiles);
}

}  // namespace isobit::limits
