// SPDX-License-Identifier: Apache-2.0
#include "gru/training/cuda/integers.h"

#include <algorithm>
#include <cmath>

#include "core/cuda/lanes.cuh"
#include "core/cuda/launch.h"
#include "core/cuda/quantize.cuh"
#include "gru/clamps.h"
#include "gru/row.h"
#include "gru/training/cuda/products.cuh"

namespace isobit::cuda {
namespace {

constexpr int kThreads = 128;

dim3 blocks_for(int64_t count) {
  constexpr int64_t kMostBlocks = 132 * 16;
  return dim3(static_cast<unsigned>(std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, kMostBlocks)));
}
/// body(i) for i < count, by all threads of the blocks from `first` on.
template <typename Body>
__device__ __forceinline__ void for_each_index(int64_t count, int64_t first, Body body) {
  for (int64_t i = (blockIdx.x - first) * kThreads + threadIdx.x; i < count; i += (gridDim.x - first) * kThreads)
    body(i);
}

/// quantize() of core/grid.cc, minus the zero point. Never -0, as codes are integers.
__device__ __forceinline__ float code_of(float rounded, float low, float high) {
  return __fadd_rn(fminf(fmaxf(rounded, low), high), 0.0f);
}
__device__ __forceinline__ float code_of(float x, float inverse, float low, float high) {
  return code_of(rintf(__fmul_rn(x, inverse)), low, high);
}

// ---- Inputs

__device__ __forceinline__ void quantize_in_blocks(const QatInputs& in, int64_t first_block) {
  const auto low = static_cast<float>(in.range.min - in.range.zero_point);
  const auto high = static_cast<float>(in.range.max - in.range.zero_point);
  for_each_index(in.rows * in.columns, first_block, [&](int64_t i) {
    float code = 0.0f;
    uint8_t passes = kNoInput;
    const auto row = static_cast<int32_t>(i / in.columns);
    if (in.lengths == nullptr || row / in.batch < in.lengths[row % in.batch]) {
      const float value = in.values[i], rounded = rintf(__fmul_rn(value, in.inverse_scale));
      code = isnan(value) ? 0.0f : code_of(rounded, low, high);
      passes = isnan(value) ? kInputNan : code == rounded ? kInputPassed : kInputClipped;
    }
    if (in.codes != nullptr) in.codes[i] = code;
    in.numbers[i] = __fmul_rn(code, in.scale);
    const int64_t column = i % in.columns;
    uint8_t* const of_row = in.passes + row * pass_row(in.columns);
    of_row[column] = passes;
    if (column + 1 == in.columns)
      for (int64_t k = in.columns; k < pass_row(in.columns); ++k) of_row[k] = kNoInput;
  });
}
__global__ void __launch_bounds__(kThreads) training_quantize(QatInputs in) { quantize_in_blocks(in, 0); }

// ---- Weights

constexpr int kRowsOfBlock = kThreads / 32;

struct RowScale {
  DerivedRow row;
  RowFault fault;
};

struct WeightsArgs {
  QatLinear linear[2];
  const float *weights[2], *biases[2];
  QatWeights to[2];
  RowScale* scales;  // of all rows
  QatInputs inputs;
  int32_t row_blocks;
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
/// The scale of each row, but of rows of zeros; and, by blocks behind those of rows, the inputs.
__global__ void __launch_bounds__(kThreads) training_row_scales(const __grid_constant__ WeightsArgs a) {
  wait_for_grid_before();
  if (static_cast<int32_t>(blockIdx.x) >= a.row_blocks) {
    quantize_in_blocks(a.inputs, a.row_blocks);
    return;
  }
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
  const DerivedRow row = derive_row_scale(least, most, linear.weights);
  const bool has_scale = linear.kept_weights != nullptr || row.derived.refusal == ScaleRefusal::kNone;
  a.scales[place.all] = {row, !finite ? RowFault::kNotFinite : has_scale ? RowFault::kNone : RowFault::kNoScale};
}

/// The least step of the matrix's rows that are not zeros; infinity: there is none. By a warp.
__device__ __forceinline__ float finest_step(const RowScale* rows, int64_t count) {
  float finest = INFINITY;
  for (int64_t row = threadIdx.x % 32; row < count; row += 32)
    if (!rows[row].row.is_zero) finest = fminf(finest, step_of(rows[row].row.derived.scale));
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    finest = fminf(finest, __shfl_xor_sync(0xffffffff, finest, distance));
  return finest;
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
__global__ void __launch_bounds__(kThreads)
    training_row_codes(const __grid_constant__ WeightsArgs a, Rounding rounding) {
  wait_for_grid_before();
  const RowPlace place = place_of(a);
  if (!place.exists) return;
  const QatLinear& linear = a.linear[place.which];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* const weights = a.weights[place.which] + place.row * linear.columns;
  const float bias = a.biases[place.which][place.row];
  const bool kept = linear.kept_weights != nullptr;
  const RowScale& derived = a.scales[place.all];
  Scale scale = kept ? linear.kept_weights[place.row] : derived.row.derived.scale;
  if (!kept && derived.row.is_zero) {
    const float finest = finest_step(a.scales + place.all - place.row, linear.rows);
    if (!isinf(finest)) scale = scale_of_step(linear.weights.kind, finest);
  }
  const DerivedScale biases = derive_row_scale(fminf(bias, 0.0f), fmaxf(bias, 0.0f), linear.biases).derived;
  const Scale of_bias = biases.scale;
  RowFault of_weights = derived.fault;
  const RowFault of_biases = !is_finite(bias)                        ? RowFault::kNotFinite
                             : biases.refusal == ScaleRefusal::kNone ? RowFault::kNone
                                                                     : RowFault::kNoScale;
  const int64_t b = bias_code(bias, inverse_of(of_bias), linear.biases);
  const int64_t bias_operand = b == 0                    ? 0
                               : linear.biases.is_signed ? -lowest_code(linear.biases)
                                                         : highest_code(linear.biases);
  const auto low = static_cast<float>(lowest_code(linear.weights)),
             high = static_cast<float>(highest_code(linear.weights));
  float* const codes = a.to[place.which].codes + place.row * linear.columns;
  float* const numbers = a.to[place.which].numbers + place.row * linear.columns;
  /// Writes the row on its scale; the sum of magnitudes.
  const auto quantize_row = [&] {
    const float step = step_of(scale), inverse = inverse_of(scale);
    int64_t sum = 0;
    for (int64_t k = lane; k < linear.columns; k += 32) {
      const float code = code_of(weights[k], inverse, low, high);
      codes[k] = code;
      numbers[k] = __fmul_rn(code, step);
      sum += static_cast<int64_t>(fabsf(code));
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
    return sum;
  };
  const auto row_of = [&](int64_t of_codes) {
    return LinearRow{linear.activation, of_bias, linear.result, bias_operand,
                     bound_multiply(of_codes, linear.largest_activation)};
  };
  LinearRow row = row_of(quantize_row());
  RowRescales rescales = rescales_of(row, scale, bias_operand);
  if (!rescales.fits && rescales_of(row, scale, 0).fits && make_coarser(row, scale)) {
    row = row_of(quantize_row());
    rescales = rescales_of(row, scale, bias_operand);
  }
  if (lane != 0) return;
  const RescaleParameters to_acc = rescales.bias_to_acc.ratio, to_result = rescales.acc_to_result.ratio;
  const Int128 accumulator = bound_add(row.dot, bound_rescale(bias_operand, to_acc));
  const bool fits = rescales.fits && bound_add(bound_rescale(accumulator, to_result), linear.result_zero) <= INT64_MAX;
  if (of_weights == RowFault::kNone && of_biases == RowFault::kNone && !fits) of_weights = RowFault::kOverflow;
  a.to[place.which].of_weights[place.row] = of_weights;
  a.to[place.which].of_biases[place.row] = of_biases;
  const int64_t on_acc = rescale(to_acc, b, rounding);
  const bool fits_double = on_acc > -(int64_t{1} << 52) && on_acc < int64_t{1} << 52;
  a.to[place.which].of_rows.integers[place.row] = {on_acc, to_result};
  a.to[place.which].of_rows.lanes[place.row] = {fits_double ? static_cast<double>(on_acc) : nan(""),
                                                ldexp(static_cast<double>(to_result.multiplier), -to_result.shift)};
}

// ---- Clamps

__global__ void __launch_bounds__(kThreads) training_stop(StoppedGradients s) {
  stop_some(s, static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, static_cast<int64_t>(gridDim.x) * kThreads);
}

/// By whole warps.
__device__ __forceinline__ void add_count(uint32_t number, unsigned long long* to) {
  const uint32_t sum = __reduce_add_sync(0xffffffff, number);
  if (threadIdx.x % 32 == 0 && sum != 0) atomicAdd(to, sum);
}
__global__ void __launch_bounds__(kThreads)
    training_count_units(const uint16_t* passes, int64_t count, unsigned long long* counts) {
  uint32_t all = 0, clipped[kClamps]{};
  for_each_index(count, 0, [&](int64_t i) {
    if (passes[i] == kNoUnit) return;
    ++all;
#pragma unroll
    for (int bit = 0; bit < kClamps; ++bit) clipped[bit] += (passes[i] >> bit & 1) == 0 ? 1 : 0;
  });
#pragma unroll
  for (int bit = 0; bit < kClamps; ++bit) add_count(clipped[bit], counts + bit);
  add_count(all, counts + kClamps);
}
__global__ void __launch_bounds__(kThreads)
    training_count_inputs(const uint8_t* passes, int64_t rows, int64_t columns, unsigned long long* counts) {
  uint32_t all = 0, clipped = 0;
  for_each_index(rows * columns, 0, [&](int64_t i) {
    const uint8_t of = passes[i / columns * pass_row(columns) + i % columns];
    if (of == kNoInput) return;
    ++all;
    clipped += of == kInputClipped ? 1 : 0;
    if (of == kInputNan) atomicMax(counts + 2, ~static_cast<unsigned long long>(i));
  });
  add_count(clipped, counts);
  add_count(all, counts + 1);
}

// ---- Products

__device__ __forceinline__ int gate_of(int64_t column, int64_t hidden) {
  return column < hidden ? 0 : column < 2 * hidden ? 1 : 2;
}

__device__ __forceinline__ void write_gate_input(const QatGateInputs& to, int64_t row, int64_t column, int32_t rescaled,
                                                 bool passed) {
  to.out[row * 3 * to.hidden + column] = rescaled * 2 + (passed ? 1 : 0);
}
/// In 64-bit integers. Not inlined: each thread has many sums.
__device__ __noinline__ void put_gate_input(const QatGateInputs& to, int64_t row, int64_t column, int64_t sum) {
  const QatRow of = to.rows.integers[column];
  const int64_t before = rescale(of.to_result, sum + of.bias, to.rounding) + to.ih.zero_point;
  const int64_t code = clamp_to(to.ih, before);
  const int64_t rescaled = rescale(to.ih_to_gate[gate_of(column, to.hidden)], code - to.ih.zero_point, to.rounding);
  write_gate_input(to, row, column, static_cast<int32_t>(rescaled), code == before);
}
struct GateInputsOut {
  QatGateInputs to;

  struct Column {
    int64_t column = 0;
    template <typename Real>
    __device__ __forceinline__ void put(const GateInputsOut& out, int64_t row, Real sum) const {
      put_gate_input(out.to, row, column, static_cast<int64_t>(sum));
    }
  };
  [[nodiscard]] __device__ __forceinline__ Column column(int64_t column) const { return {column}; }
};
/// In doubles.
struct GateInputsLanesOut {
  QatGateInputs to;
  double low, high;  // of ih minus its zero point
  double ih_to_gate[3];

  explicit GateInputsLanesOut(const QatGateInputs& inputs)
      : to(inputs),
        low(static_cast<double>(to.ih.min - to.ih.zero_point)),
        high(static_cast<double>(to.ih.max - to.ih.zero_point)) {
    for (int gate = 0; gate < 3; ++gate)
      ih_to_gate[gate] = std::ldexp(static_cast<double>(to.ih_to_gate[gate].multiplier), -to.ih_to_gate[gate].shift);
  }

  struct Column {
    int64_t column = 0;
    QatRowLanes of{};

    template <typename Real>
    __device__ __forceinline__ void put(const GateInputsLanesOut& out, int64_t row, Real sum) const {
      const double before = rescale_even(static_cast<double>(sum) + of.bias, of.ratio);
      if (isnan(before)) {
        put_gate_input(out.to, row, column, static_cast<int64_t>(sum));
        return;
      }
      const double code = clamp_lane(before, out.low, out.high);
      const int gate = gate_of(column, out.to.hidden);
      const double ratio = gate == 0 ? out.ih_to_gate[0] : gate == 1 ? out.ih_to_gate[1] : out.ih_to_gate[2];
      write_gate_input(out.to, row, column, static_cast<int32_t>(low_bits(to_magic(code, ratio))), code == before);
    }
  };
  [[nodiscard]] __device__ __forceinline__ Column column(int64_t column) const {
    return {column, to.rows.lanes[column]};
  }
};

struct SumsOut {
  double* out;
  int64_t stride;
  struct Column {
    int64_t column = 0;
    template <typename Real>
    __device__ __forceinline__ void put(const SumsOut& to, int64_t row, Real sum) const {
      to.out[row * to.stride + column] = static_cast<double>(sum);
    }
  };
  [[nodiscard]] __device__ __forceinline__ Column column(int64_t column) const { return {column}; }
};

template <bool kLong, typename Out>
Status run_product_of_codes(FloatRows a, FloatRows b, const Out& out, int64_t M, int64_t N, int64_t K, bool wide,
                            cudaStream_t stream) {
  const TermsOfRows of_a{operand_of(a), M, K}, of_b{operand_of(b), N, K};
  if (wide) return run_product(ProductArgs<TermsOfRows, double, Out, kLong>{of_a, of_b, out, 0, N, K}, M, stream);
  return run_product(ProductArgs<TermsOfRows, float, Out, kLong>{of_a, of_b, out, 0, N, K}, M, stream);
}

}  // namespace

int64_t weight_scales_bytes(int64_t rows) { return rows * static_cast<int64_t>(sizeof(RowScale)); }

Status quantize_weights(const QatLinear (&linear)[2], const float* const (&weights)[2], const float* const (&biases)[2],
                        const QatWeights (&to)[2], Rounding rounding, void* scales, const QatInputs* inputs,
                        cudaStream_t stream) {
  const auto row_blocks = static_cast<unsigned>(tile_pieces(linear[0].rows + linear[1].rows, kRowsOfBlock));
  WeightsArgs args{{linear[0], linear[1]},          {weights[0], weights[1]},
                   {biases[0], biases[1]},          {to[0], to[1]},
                   static_cast<RowScale*>(scales),  inputs == nullptr ? QatInputs{} : *inputs,
                   static_cast<int32_t>(row_blocks)};
  const int64_t count = inputs == nullptr ? 0 : inputs->rows * inputs->columns;
  const dim3 blocks(row_blocks + (count == 0 ? 0 : blocks_for(count).x));
  ISOBIT_RETURN_IF_ERROR(
      launch_early("kernel training_row_scales", training_row_scales, blocks, kThreads, stream, args));
  return launch_early("kernel training_row_codes", training_row_codes, dim3(row_blocks), kThreads, stream, args,
                      rounding);
}

Status quantize_inputs(const QatInputs& inputs, cudaStream_t stream) {
  const int64_t count = inputs.rows * inputs.columns;
  if (count == 0) return {};
  return launch_kernel("training_quantize", training_quantize, blocks_for(count), kThreads, 0, stream, inputs);
}

Status stop_gradients(const StoppedGradients& stopped, cudaStream_t stream) {
  const int64_t count = stopped.rows * stopped.columns;
  if (count == 0) return {};
  return launch_kernel("training_stop", training_stop, blocks_for(count), kThreads, 0, stream, stopped);
}

Status count_units(const uint16_t* passes, int64_t count, unsigned long long* counts, cudaStream_t stream) {
  if (count == 0) return {};
  return launch_kernel("training_count_units", training_count_units, blocks_for(count), kThreads, 0, stream, passes,
                       count, counts);
}
Status count_inputs(const uint8_t* passes, int64_t rows, int64_t columns, unsigned long long* counts,
                    cudaStream_t stream) {
  if (rows * columns == 0) return {};
  return launch_kernel("training_count_inputs", training_count_inputs, blocks_for(rows * columns), kThreads, 0, stream,
                       passes, rows, columns, counts);
}

Status product_to_gate_inputs(FloatRows x, FloatRows weights, const QatGateInputs& to, int64_t M, int64_t K, bool wide,
                              cudaStream_t stream) {
  if (to.in_lanes)
    return run_product_of_codes<true>(x, weights, GateInputsLanesOut(to), M, 3 * to.hidden, K, wide, stream);
  return run_product_of_codes<true>(x, weights, GateInputsOut{to}, M, 3 * to.hidden, K, wide, stream);
}
Status product_of_codes(FloatRows a, FloatRows b, double* out, int64_t M, int64_t N, int64_t K, bool wide,
                        cudaStream_t stream) {
  return run_product_of_codes<false>(a, b, SumsOut{out, N}, M, N, K, wide, stream);
}

}  // namespace isobit::cuda
