// SPDX-License-Identifier: Apache-2.0
// Element access to codes and floats whose type is known at run time only. For loads, saves and the reference; kernels
// are typed.
#ifndef ISOBIT_CORE_CODES_H_
#define ISOBIT_CORE_CODES_H_

#include <cstdint>

#include "core/half.h"
#include "isobit/dtype.h"

namespace isobit {

/// Calls body with a typed zero of the integer type `dtype`, e.g. body(int8_t{}).
template <typename Body>
void with_code_type(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::kS8: body(int8_t{}); break;
    case Dtype::kU8: body(uint8_t{}); break;
    case Dtype::kS16: body(int16_t{}); break;
    case Dtype::kU16: body(uint16_t{}); break;
    case Dtype::kS32: body(int32_t{}); break;
    case Dtype::kU32: body(uint32_t{}); break;
    default: break;  // not a code type; callers hold Grid::dtype()
  }
}

inline int64_t load_code(const void* codes, Dtype dtype, int64_t index) {
  int64_t value = 0;
  with_code_type(dtype, [&](auto zero) { value = static_cast<const decltype(zero)*>(codes)[index]; });
  return value;
}

inline void store_code(void* codes, Dtype dtype, int64_t index, int64_t value) {
  with_code_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    static_cast<T*>(codes)[index] = static_cast<T>(value);
  });
}

/// Element i of floats of any type as float32: widened, float64 rounded.
inline float load_float(const void* x, Dtype dtype, int64_t i) {
  switch (dtype) {
    case Dtype::kF16: return f16_to_f32(static_cast<const uint16_t*>(x)[i]);
    case Dtype::kBF16: return bf16_to_f32(static_cast<const uint16_t*>(x)[i]);
    case Dtype::kF64: return static_cast<float>(static_cast<const double*>(x)[i]);
    default: return static_cast<const float*>(x)[i];
  }
}

/// Rounds to f32, f16 or bf16, once.
inline void store_float(void* y, Dtype dtype, int64_t i, float value) {
  switch (dtype) {
    case Dtype::kF16: static_cast<uint16_t*>(y)[i] = f32_to_f16(value); break;
    case Dtype::kBF16: static_cast<uint16_t*>(y)[i] = f32_to_bf16(value); break;
    default: static_cast<float*>(y)[i] = value;
  }
}

}  // namespace isobit

#endif  // ISOBIT_CORE_CODES_H_
