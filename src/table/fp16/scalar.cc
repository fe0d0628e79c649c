// SPDX-License-Identifier: Apache-2.0
// Plain C++: the references, and the look-up of results.
#include <algorithm>

#include "table/fp16/kernels.h"

namespace isobit {
namespace {

[[gnu::always_inline]] inline uint16_t load_f16(const void* x, Fp16Element element, int64_t i) {
  switch (element) {
    case Fp16Element::kF16: return static_cast<const uint16_t*>(x)[i];
    case Fp16Element::kBf16: return f32_to_f16(bf16_to_f32(static_cast<const uint16_t*>(x)[i]));
    case Fp16Element::kF32: break;
  }
  return f32_to_f16(static_cast<const float*>(x)[i]);
}

[[gnu::always_inline]] inline void store_f16(void* y, Fp16Element element, int64_t i, uint16_t code) {
  switch (element) {
    case Fp16Element::kF16: static_cast<uint16_t*>(y)[i] = code; break;
    case Fp16Element::kBf16: static_cast<uint16_t*>(y)[i] = f32_to_bf16(f16_to_f32(code)); break;
    case Fp16Element::kF32: static_cast<float*>(y)[i] = f16_to_f32(code); break;
  }
}

void softmax_row(const Fp16SoftmaxArgs& args, int64_t first) {
  const auto value = [&](int64_t i) { return f16_to_f32(load_f16(args.x, args.x_element, first + i)); };
  constexpr float kInfinity = __builtin_huge_valf();
  float largest = -kInfinity;
  bool nan = false;
  for (int64_t i = 0; i < args.columns; ++i) {
    nan |= value(i) != value(i);
    largest = std::max(largest, value(i));
  }
  if (nan || largest == kInfinity || largest == -kInfinity) {
    for (int64_t i = 0; i < args.columns; ++i) store_f16(args.y, args.y_element, first + i, kFp16Nan);
    return;
  }
  int64_t sum = 0;
  for (int64_t i = 0; i < args.columns; ++i)
    sum += static_cast<int64_t>(f32_rint(f32_mul(fp16_softmax_exp(*args.exp, f32_sub(value(i), largest)), 0x1p30f)));
  const float quotient = fp16_softmax_quotient(*args.reciprocal, sum);
  for (int64_t i = 0; i < args.columns; ++i) {
    const float e = fp16_softmax_exp(*args.exp, f32_sub(value(i), largest));
    store_f16(args.y, args.y_element, first + i, f32_to_f16(f32_mul(e, quotient)));
  }
}

/// With the types outside the loop: a look-up is one load.
template <Fp16Element kX, Fp16Element kY>
void look_up(const Fp16FunctionArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) store_f16(args.y, kY, i, args.results[load_f16(args.x, kX, i)]);
}

template <Fp16Element kX>
void look_up_to(const Fp16FunctionArgs& args) {
  switch (args.y_element) {
    case Fp16Element::kF16: look_up<kX, Fp16Element::kF16>(args); break;
    case Fp16Element::kBf16: look_up<kX, Fp16Element::kBf16>(args); break;
    case Fp16Element::kF32: look_up<kX, Fp16Element::kF32>(args); break;
  }
}

}  // namespace

void fp16_function_reference(const Fp16FunctionArgs& args) {
  for (int64_t i = 0; i < args.count; ++i)
    store_f16(args.y, args.y_element, i, fp16_evaluate(*args.table, load_f16(args.x, args.x_element, i)));
}

void fp16_function_direct_scalar(const Fp16FunctionArgs& args) {
  switch (args.x_element) {
    case Fp16Element::kF16: look_up_to<Fp16Element::kF16>(args); break;
    case Fp16Element::kBf16: look_up_to<Fp16Element::kBf16>(args); break;
    case Fp16Element::kF32: look_up_to<Fp16Element::kF32>(args); break;
  }
}

void fp16_softmax_reference(const Fp16SoftmaxArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) softmax_row(args, row * args.columns);
}

float fp16_softmax_quotient_of(const Fp16SoftmaxArgs& args, int64_t sum) {
  return fp16_softmax_quotient(*args.reciprocal, sum);
}

}  // namespace isobit
