// SPDX-License-Identifier: Apache-2.0
// Matrix instructions of sm_90a with one interface for all types: wgmma with a left matrix from registers or from
// shared memory, and mma.sync.
//
// In all of them, lane 4 g + q of a warp has of its 16 rows of results, 8 columns at a time: columns 2 q and 2 q + 1 of
// row g, then of row g + 8; and of the left matrix, a word each of k: rows g and g + 8 of the first half of k at word
// q, then of the second half. A warpgroup's warp w has rows 16 w to 16 w + 15.
#ifndef ISOBIT_CORE_CUDA_TENSOR_CORE_CUH_
#define ISOBIT_CORE_CUDA_TENSOR_CORE_CUH_

#include <cstdint>

#include "core/cuda/wgmma.cuh"

namespace isobit::cuda {

struct Int8 {
  using Result = int32_t;
  static constexpr const char* kName = "int8";
  static constexpr int kBytes = 1;
};
/// Unsigned on the left, signed on the right.
struct UInt8Int8 {
  using Result = int32_t;
  static constexpr const char* kName = "uint8 * int8";
  static constexpr int kBytes = 1;
};
/// What floats of two bytes share. kMantissa: its bits; kExponents: values of the exponent's field.
template <int Mantissa, int Bias>
struct TwoByteFloat {
  using Result = float;
  static constexpr int kBytes = 2, kMantissa = Mantissa, kBias = Bias, kExponents = 2 * (Bias + 1);
};
struct Float16 : TwoByteFloat<10, 15> {
  static constexpr const char* kName = "float16";
};
struct BFloat16 : TwoByteFloat<7, 127> {
  static constexpr const char* kName = "bfloat16";
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <int Count>
__device__ __forceinline__ void keep_in_registers(float (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
/// d (64 x N) = a * b, plus d where `add`; 32 bytes of k. a: 4 words of registers, or a matrix in shared memory.
template <typename T, int N>
__device__ __forceinline__ void wgmma(typename T::Result (&d)[N / 2], const uint32_t* a, uint64_t b, bool add);
template <typename T, int N>
__device__ __forceinline__ void wgmma(typename T::Result (&d)[N / 2], uint64_t a, uint64_t b, bool add);

// clang-format off
#define ISOBIT_R4 "%0,%1,%2,%3"
#define ISOBIT_R8 ISOBIT_R4 "," "%4,%5,%6,%7"
#define ISOBIT_R16 ISOBIT_R8 "," "%8,%9,%10,%11,%12,%13,%14,%15"
#define ISOBIT_R32 ISOBIT_R8 "," \
  "%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define ISOBIT_R64 ISOBIT_R32 "," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57," \
  "%58,%59,%60,%61,%62,%63"
#define ISOBIT_R128 ISOBIT_R64 "," \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89," \
  "%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
  "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define ISOBIT_D4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define ISOBIT_D8(c, i) ISOBIT_D4(c, i), ISOBIT_D4(c, i + 4)
#define ISOBIT_D16(c, i) ISOBIT_D8(c, i), ISOBIT_D8(c, i + 8)
#define ISOBIT_D32(c, i) ISOBIT_D8(c, i), ISOBIT_D8(c, i + 8), ISOBIT_D8(c, i + 16), ISOBIT_D8(c, i + 24)
#define ISOBIT_D64(c, i) ISOBIT_D32(c, i), ISOBIT_D32(c, i + 32)
#define ISOBIT_D128(c, i) ISOBIT_D64(c, i), ISOBIT_D64(c, i + 64)
// p0 to p5: the operands behind the R registers of d.
#define ISOBIT_WGMMA(T, N, R, c, types, factors, order, p0, p1, p2, p3, p4, p5)                                        \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma<T, N>(T::Result (&d)[N / 2], const uint32_t* a, uint64_t b, bool add) {        \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " p5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N types " {"    \
                 ISOBIT_R##R "}, {" p0 "," p1 "," p2 "," p3 "}, " p4 ", add" factors order ";\n}\n"                    \
                 : ISOBIT_D##R(c, 0)                                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(add)));                \
  }                                                                                                                    \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma<T, N>(T::Result (&d)[N / 2], uint64_t a, uint64_t b, bool add) {               \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " p2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N types " {"    \
                 ISOBIT_R##R "}, " p0 ", " p1 ", add" factors order order ";\n}\n"                                     \
                 : ISOBIT_D##R(c, 0)                                                                                   \
                 : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)));                                                    \
  }
#define ISOBIT_WGMMA_TYPES(...)                                                     \
  ISOBIT_WGMMA_TYPE(Int8, "+r", "k32.s32.s8.s8", "", "", __VA_ARGS__)               \
  ISOBIT_WGMMA_TYPE(UInt8Int8, "+r", "k32.s32.u8.s8", "", "", __VA_ARGS__)          \
  ISOBIT_WGMMA_TYPE(Float16, "+f", "k16.f32.f16.f16", ",1,1", ",0", __VA_ARGS__)    \
  ISOBIT_WGMMA_TYPE(BFloat16, "+f", "k16.f32.bf16.bf16", ",1,1", ",0", __VA_ARGS__)
#define ISOBIT_WGMMA_TYPE(T, c, types, factors, order, N, R, ...) \
  ISOBIT_WGMMA(T, N, R, c, types, factors, order, __VA_ARGS__)
ISOBIT_WGMMA_TYPES(8, 4, "%4", "%5", "%6", "%7", "%8", "%9")
ISOBIT_WGMMA_TYPES(16, 8, "%8", "%9", "%10", "%11", "%12", "%13")
ISOBIT_WGMMA_TYPES(32, 16, "%16", "%17", "%18", "%19", "%20", "%21")
ISOBIT_WGMMA_TYPES(64, 32, "%32", "%33", "%34", "%35", "%36", "%37")
ISOBIT_WGMMA_TYPES(128, 64, "%64", "%65", "%66", "%67", "%68", "%69")
ISOBIT_WGMMA_TYPES(256, 128, "%128", "%129", "%130", "%131", "%132", "%133")
// clang-format on
#undef ISOBIT_WGMMA_TYPE
#undef ISOBIT_WGMMA_TYPES
#undef ISOBIT_WGMMA
#undef ISOBIT_D128
#undef ISOBIT_D64
#undef ISOBIT_D32
#undef ISOBIT_D16
#undef ISOBIT_D8
#undef ISOBIT_D4
#undef ISOBIT_R128
#undef ISOBIT_R64
#undef ISOBIT_R32
#undef ISOBIT_R16
#undef ISOBIT_R8
#undef ISOBIT_R4
#endif

/// d (16 x 8) += a * b, 32 bytes of k. b: column g, as a's rows.
template <typename T>
__device__ __forceinline__ void mma(typename T::Result (&d)[4], const uint32_t* a, uint32_t b0, uint32_t b1);
#define ISOBIT_MMA(T, c, types)                                                                           \
  template <>                                                                                             \
  __device__ __forceinline__ void mma<T>(T::Result(&d)[4], const uint32_t* a, uint32_t b0, uint32_t b1) { \
    asm volatile("mma.sync.aligned." types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"       \
                 : c(d[0]), c(d[1]), c(d[2]), c(d[3])                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                         \
  }
ISOBIT_MMA(Int8, "+r", "m16n8k32.row.col.s32.s8.s8.s32")
ISOBIT_MMA(UInt8Int8, "+r", "m16n8k32.row.col.s32.u8.s8.s32")
ISOBIT_MMA(Float16, "+f", "m16n8k16.row.col.f32.f16.f16.f32")
ISOBIT_MMA(BFloat16, "+f", "m16n8k16.row.col.f32.bf16.bf16.f32")
#undef ISOBIT_MMA
/// The same of single bits, 32 bytes of k: the number of places where both are 1.
__device__ __forceinline__ void mma_bits_256(int32_t (&d)[4], const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// 16 bytes of k: a has rows g and g + 8 at word q, b column g.
__device__ __forceinline__ void mma_bits_128(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a0), "r"(a1), "r"(b));
}

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_TENSOR_CORE_CUH_
