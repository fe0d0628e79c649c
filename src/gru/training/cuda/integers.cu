// SPDX-License-Identifier: Apache-2.0
#include "gru/training/cuda/integers.h"

#include <algorithm>
#include <limits>

#include "core/cuda/launch.h"
#include "core/cuda/quantize.cuh"
#include "gru/clamps.h"
#include "gru/row.h"
#include "gru/training/cuda/products.cuh"

namespace isobit::cuda {
namespace {

// ---- Weights

constexpr int kRowThreads = 128, kRowsOfBlock = kRowThreads / 32;

struct WeightsArgs {
  QatLinear linear[2];
  const float *weights[2], *biases[2];
  QatWeights to[2];
  DerivedRow* scales;  // of all rows
  unsigned* finest;    // of W and of R: inverted bits of the least scale of rows that are not zeros
  QatReport* report;
  int64_t direction;
};

__device__ __forceinline__ float step_of(const Scale& scale) {
  return scale.kind == ScaleKind::kPow2 ? __int_as_float((127 - scale.shift) << 23) : scale.real;
}
__device__ __forceinline__ float inverse_of(const Scale& scale) {
  return scale.kind == ScaleKind::kPow2 ? __int_as_float((127 + scale.shift) << 23) : __fdiv_rn(1.0f, scale.real);
}
__device__ __forceinline__ Scale scale_of_step(ScaleKind kind, float step) {
  return kind == ScaleKind::kPow2 ? Scale{kind, 127 - (__float_as_int(step) >> 23), 1.0f} : Scale{kind, 0, step};
}
__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= 3.402823466e38f; }

/// The warp's row: of W, then of R.
struct RowPlace {
  int which = 0;
  int64_t row = 0, all = 0;
  bool exists = false;
};
__device__ __forceinline__ RowPlace place_of(const WeightsArgs& a) {
  RowPlace place;
  place.all = static_cast<int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.x / 32;
  place.which = place.all >= a.linear[0].rows ? 1 : 0;
  place.row = place.all - (place.which == 1 ? a.linear[0].rows : 0);
  place.exists = place.row < a.linear[place.which].rows;
  return place;
}
__device__ __forceinline__ void refuse(const WeightsArgs& a, int matrix, int64_t row, RowFault fault) {
  atomicMax(&a.report->refused, refused_place(a.direction, matrix, row, fault));
}

/// The scale of each row, but of rows of zeros.
__global__ void __launch_bounds__(kRowThreads) training_row_scales(WeightsArgs a) {
  const RowPlace place = place_of(a);
  if (!place.exists) return;
  const QatLinear& linear = a.linear[place.which];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* const weights = a.weights[place.which] + place.row * linear.columns;
  float least = 0.0f, most = 0.0f;
  bool finite = true;
  for (int64_t k = lane; k < linear.columns; k += 32) {
    const float w = weights[k];
    least = fminf(least, w);
    most = fmaxf(most, w);
    finite = finite && is_finite(w);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    least = fminf(least, __shfl_xor_sync(0xffffffff, least, distance));
    most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, distance));
  }
  finite = __all_sync(0xffffffff, finite);
  if (lane != 0) return;
  if (!finite) refuse(a, place.which, place.row, RowFault::kNotFinite);
  if (linear.kept_weights != nullptr) return;
  const DerivedRow row = derive_row_scale(least, most, linear.weights);
  a.scales[place.all] = row;
  if (row.is_zero) return;
  if (row.derived.refusal != ScaleRefusal::kNone) refuse(a, place.which, place.row, RowFault::kNoScale);
  atomicMax(a.finest + place.which, ~__float_as_uint(step_of(row.derived.scale)));
}

/// quantize() of core/grid.cc, minus the zero point. Never -0, as codes are integers.
__device__ __forceinline__ float code_of(float rounded, float low, float high) {
  return __fadd_rn(fminf(fmaxf(rounded, low), high), 0.0f);
}
__device__ __forceinline__ float code_of(float x, float inverse, float low, float high) {
  return code_of(rintf(__fmul_rn(x, inverse)), low, high);
}
ISOBIT_HD int64_t lowest_code(const ScaleOptions& o) { return o.is_signed ? -(int64_t{1} << (o.bits - 1)) : 0; }
ISOBIT_HD int64_t highest_code(const ScaleOptions& o) {
  return (int64_t{1} << (o.is_signed ? o.bits - 1 : o.bits)) - 1;
}
/// Of a bias, whose codes may have 32 bits.
__device__ __forceinline__ int64_t bias_code(float x, float inverse, const ScaleOptions& options) {
  constexpr float kLimit = 8589934592.0f;  // 2^33
  const float rounded = fminf(fmaxf(rintf(__fmul_rn(x, inverse)), -kLimit), kLimit);
  return clamp_s64(static_cast<int64_t>(rounded), lowest_code(options), highest_code(options));
}

/// Codes and rescales of each row. All lanes derive the same rescales.
__global__ void __launch_bounds__(kRowThreads) training_row_codes(WeightsArgs a, Rounding rounding) {
  const RowPlace place = place_of(a);
  if (!place.exists) return;
  const QatLinear& linear = a.linear[place.which];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* const weights = a.weights[place.which] + place.row * linear.columns;
  const float bias = a.biases[place.which][place.row];
  Scale scale, of_bias;
  const bool kept = linear.kept_weights != nullptr;
  if (kept) {
    scale = linear.kept_weights[place.row];
    of_bias = linear.kept_biases[place.row];
  } else {
    const DerivedRow& row = a.scales[place.all];
    scale = row.derived.scale;
    const unsigned finest = a.finest[place.which];
    if (row.is_zero && finest != 0) scale = scale_of_step(linear.weights.kind, __uint_as_float(~finest));
    const DerivedRow biases = derive_row_scale(fminf(bias, 0.0f), fmaxf(bias, 0.0f), linear.biases);
    of_bias = biases.derived.scale;
    if (lane == 0 && biases.derived.refusal != ScaleRefusal::kNone)
      refuse(a, 2 + place.which, place.row, RowFault::kNoScale);
  }
  if (lane == 0 && !is_finite(bias)) refuse(a, 2 + place.which, place.row, RowFault::kNotFinite);
  const int64_t b = bias_code(bias, inverse_of(of_bias), linear.biases);
  const int64_t bias_operand = b == 0                    ? 0
                               : linear.biases.is_signed ? -lowest_code(linear.biases)
                                                         : highest_code(linear.biases);
  const auto low = static_cast<float>(lowest_code(linear.weights)),
             high = static_cast<float>(highest_code(linear.weights));
  const auto magnitude = [&](float inverse) {
    int64_t sum = 0;
    for (int64_t k = lane; k < linear.columns; k += 32)
      sum += static_cast<int64_t>(fabsf(code_of(weights[k], inverse, low, high)));
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
    return sum;
  };
  const auto row_of = [&](int64_t of_codes) {
    return LinearRow{linear.activation, of_bias, linear.result, bias_operand,
                     bound_multiply(of_codes, linear.largest_activation)};
  };
  LinearRow row = row_of(magnitude(inverse_of(scale)));
  RowRescales rescales = rescales_of(row, scale, bias_operand);
  if (!rescales.fits && !kept && rescales_of(row, scale, 0).fits && make_coarser(row, scale)) {
    row = row_of(magnitude(inverse_of(scale)));
    rescales = rescales_of(row, scale, bias_operand);
  }
  const float step = step_of(scale), inverse = inverse_of(scale);
  float* const codes = a.to[place.which].codes + place.row * linear.columns;
  float* const numbers = a.to[place.which].numbers + place.row * linear.columns;
  for (int64_t k = lane; k < linear.columns; k += 32) {
    const float code = code_of(weights[k], inverse, low, high);
    codes[k] = code;
    numbers[k] = __fmul_rn(code, step);
  }
  if (lane != 0) return;
  const RescaleParameters to_acc = rescales.bias_to_acc.ratio, to_result = rescales.acc_to_result.ratio;
  const Int128 accumulator = bound_add(row.dot, bound_rescale(bias_operand, to_acc));
  if (!rescales.fits || bound_add(bound_rescale(accumulator, to_result), linear.result_zero) > INT64_MAX)
    refuse(a, place.which, place.row, RowFault::kOverflow);
  a.to[place.which].of_rows[place.row] = {rescale(to_acc, b, rounding), to_result};
}

// ---- Inputs

constexpr int kThreads = 256;

dim3 blocks_for(int64_t count) {
  constexpr int64_t kMostBlocks = 132 * 16;
  return dim3(static_cast<unsigned>(std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, kMostBlocks)));
}
/// body(i) for i < count, by all threads of the launch.
template <typename Body>
__device__ __forceinline__ void for_each_index(int64_t count, Body body) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kThreads)
    body(i);
}

__global__ void __launch_bounds__(kThreads) training_quantize(QatInputs in) {
  const auto low = static_cast<float>(in.range.min - in.range.zero_point);
  const auto high = static_cast<float>(in.range.max - in.range.zero_point);
  for_each_index(in.rows * in.columns, [&](int64_t i) {
    float code = 0.0f;
    uint8_t passes = kNoInput;
    const auto row = static_cast<int32_t>(i / in.columns);
    if (in.lengths == nullptr || row / in.batch < in.lengths[row % in.batch]) {
      const float value = in.values[i];
      if (isnan(value)) atomicMax(in.nan, ~static_cast<unsigned long long>(in.nan_from + i));
      const float rounded = isnan(value) ? 0.0f : rintf(__fmul_rn(value, in.inverse_scale));
      code = code_of(rounded, low, high);
      passes = code == rounded ? 1 : 0;
    }
    if (in.codes != nullptr) in.codes[i] = code;
    in.numbers[i] = __fmul_rn(code, in.scale);
    in.passes[i] = passes;
  });
}

__global__ void __launch_bounds__(kThreads) training_stop(float* gradients, const uint8_t* passes, int64_t count) {
  for_each_index(count, [&](int64_t i) {
    if (passes[i] == 0) gradients[i] = 0.0f;
  });
}

/// Of one bit, or of the kClamps bits of a unit.
template <typename Passes>
__global__ void __launch_bounds__(kThreads)
    training_count(const Passes* passes, int64_t count, unsigned long long* counts) {
  constexpr int kBits = sizeof(Passes) == 1 ? 1 : kClamps;
  constexpr Passes kNone = sizeof(Passes) == 1 ? kNoInput : kNoUnit;
  uint32_t all = 0, clipped[kBits]{};
  for_each_index(count, [&](int64_t i) {
    if (passes[i] == kNone) return;
    ++all;
#pragma unroll
    for (int bit = 0; bit < kBits; ++bit) clipped[bit] += (passes[i] >> bit & 1) == 0 ? 1 : 0;
  });
  const auto add = [&](uint32_t number, unsigned long long* to) {
    const uint32_t sum = __reduce_add_sync(0xffffffff, number);
    if (threadIdx.x % 32 == 0 && sum != 0) atomicAdd(to, sum);
  };
#pragma unroll
  for (int bit = 0; bit < kBits; ++bit) add(clipped[bit], counts + bit);
  add(all, counts + kBits);
}

// ---- Products

struct GateInputsOut {
  QatGateInputs to;

  template <typename Real>
  __device__ __forceinline__ void operator()(int64_t row, int64_t column, Real sum) const {
    const QatRow of = to.rows[column];
    const int gate = column < to.hidden ? 0 : column < 2 * to.hidden ? 1 : 2;
    const RescaleParameters ratio = gate == 0 ? to.ih_to_gate[0] : gate == 1 ? to.ih_to_gate[1] : to.ih_to_gate[2];
    const int64_t before = rescale(of.to_result, static_cast<int64_t>(sum) + of.bias, to.rounding) + to.ih.zero_point;
    const int64_t code = clamp_to(to.ih, before);
    const auto rescaled = static_cast<int32_t>(rescale(ratio, code - to.ih.zero_point, to.rounding));
    to.out[row * 3 * to.hidden + column] = rescaled * 2 + (code == before ? 1 : 0);
  }
};

struct SumsOut {
  double* out;
  int64_t stride;
  template <typename Real>
  __device__ __forceinline__ void operator()(int64_t row, int64_t column, Real sum) const {
    out[row * stride + column] = static_cast<double>(sum);
  }
};

template <typename Out>
Status run_product_of_codes(FloatRows a, FloatRows b, const Out& out, int64_t M, int64_t N, int64_t K, bool wide,
                            cudaStream_t stream) {
  const TermsOfRows of_a{operand_of(a), M, K}, of_b{operand_of(b), N, K};
  if (wide) return run_product(ProductArgs<TermsOfRows, double, Out>{of_a, of_b, out, 0, N, K}, M, stream);
  return run_product(ProductArgs<TermsOfRows, float, Out>{of_a, of_b, out, 0, N, K}, M, stream);
}

}  // namespace

int64_t weight_scales_bytes(int64_t rows) { return rows * static_cast<int64_t>(sizeof(DerivedRow)); }

Status quantize_weights(const QatLinear (&linear)[2], const float* const (&weights)[2], const float* const (&biases)[2],
                        const QatWeights (&to)[2], Rounding rounding, int64_t direction, void* scales, unsigned* finest,
                        QatReport* report, cudaStream_t stream) {
  WeightsArgs args{{linear[0], linear[1]},
                   {weights[0], weights[1]},
                   {biases[0], biases[1]},
                   {to[0], to[1]},
                   static_cast<DerivedRow*>(scales),
                   finest,
                   report,
                   direction};
  const dim3 blocks(static_cast<unsigned>(tile_pieces(linear[0].rows + linear[1].rows, kRowsOfBlock)));
  ISOBIT_RETURN_IF_ERROR(
      launch_kernel("training_row_scales", training_row_scales, blocks, kRowThreads, 0, stream, args));
  return launch_kernel("training_row_codes", training_row_codes, blocks, kRowThreads, 0, stream, args, rounding);
}

Status quantize_inputs(const QatInputs& inputs, cudaStream_t stream) {
  const int64_t count = inputs.rows * inputs.columns;
  if (count == 0) return {};
  return launch_kernel("training_quantize", training_quantize, blocks_for(count), kThreads, 0, stream, inputs);
}

Status stop_gradients(float* gradients, const uint8_t* passes, int64_t count, cudaStream_t stream) {
  if (count == 0) return {};
  return launch_kernel("training_stop", training_stop, blocks_for(count), kThreads, 0, stream, gradients, passes,
                       count);
}

Status count_clipped(const uint16_t* passes, int64_t count, unsigned long long* counts, cudaStream_t stream) {
  if (count == 0) return {};
  return launch_kernel("training_count", training_count<uint16_t>, blocks_for(count), kThreads, 0, stream, passes,
                       count, counts);
}
Status count_clipped(const uint8_t* passes, int64_t count, unsigned long long* counts, cudaStream_t stream) {
  if (count == 0) return {};
  return launch_kernel("training_count", training_count<uint8_t>, blocks_for(count), kThreads, 0, stream, passes, count,
                       counts);
}

Status product_to_gate_inputs(FloatRows x, FloatRows weights, const QatGateInputs& to, int64_t M, int64_t K, bool wide,
                              cudaStream_t stream) {
  return run_product_of_codes(x, weights, GateInputsOut{to}, M, 3 * to.hidden, K, wide, stream);
}
Status product_of_codes(FloatRows a, FloatRows b, double* out, int64_t M, int64_t N, int64_t K, bool wide,
                        cudaStream_t stream) {
  return run_product_of_codes(a, b, SumsOut{out, N}, M, N, K, wide, stream);
}

}  // namespace isobit::cuda
