// SPDX-License-Identifier: Apache-2.0
// A step of one unit, forward and backward: numerics.md, section 14, with the device's own e^x and division.
#ifndef ISOBIT_GRU_TRAINING_CUDA_GATES_CUH_
#define ISOBIT_GRU_TRAINING_CUDA_GATES_CUH_

#include <cstdint>

#include "gru/training/kernels.h"

namespace isobit::cuda {

__device__ __forceinline__ float training_sigmoid(float x) {
  const float z = __expf(-fabsf(x));
  return __fdividef(x < 0.0f ? z : 1.0f, 1.0f + z);
}

__device__ __forceinline__ float training_tanh(float x) {
  const float s = x * x;
  float p = -0x1.76ac3p-8f;
  p = __fmaf_rn(p, s, 0x1.5256dcp-6f);
  p = __fmaf_rn(p, s, -0x1.b8444ap-5f);
  p = __fmaf_rn(p, s, 0x1.110768p-3f);
  p = __fmaf_rn(p, s, -0x1.555534p-2f);
  const float near = __fmaf_rn(x * s, p, x);
  const float t = __expf(-2.0f * fabsf(x));
  const float far = copysignf(__fdividef(1.0f - t, 1.0f + t), x);
  return fabsf(x) < 0.625f ? near : far;
}

struct TrainingCell {
  float u, r, n, q, h;
};
__device__ __forceinline__ TrainingCell training_cell(const float (&ih)[3], const float (&hh)[3], float h) {
  TrainingCell c{};
  c.u = training_sigmoid(ih[0] + hh[0]);
  c.r = training_sigmoid(ih[1] + hh[1]);
  c.q = hh[2];
  c.n = training_tanh(__fmaf_rn(c.r, c.q, ih[2]));
  c.h = __fmaf_rn(c.u, h - c.n, c.n);
  return c;
}

struct TrainingCellGradients {
  float gx[3], gh[3], base;  // base: of the state before, but for what comes through R
};
/// `passes`: bits from kPassIh on.
__device__ __forceinline__ TrainingCellGradients training_cell_backward(float u, float r, float n, float q, float h,
                                                                        float d, bool taken, uint32_t passes) {
  const auto passed = [&](int bit, float value) { return (passes >> bit & 1) != 0 ? value : 0.0f; };
  const float e = taken ? passed(kPassGate + 3, d) : 0.0f;
  const float da = passed(kPassGate + 2, __fmaf_rn(-n, n, 1.0f) * ((1.0f - u) * e));
  const float dq = r * da;
  const float dr = passed(kPassGate + 1, (r * (1.0f - r)) * (q * da));
  const float du = passed(kPassGate, (u * (1.0f - u)) * ((h - n) * e));
  return {{passed(kPassIh, du), passed(kPassIh + 1, dr), passed(kPassIh + 2, da)},
          {passed(kPassHh, du), passed(kPassHh + 1, dr), passed(kPassHh + 2, dq)},
          taken ? u * e : d};
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_TRAINING_CUDA_GATES_CUH_
