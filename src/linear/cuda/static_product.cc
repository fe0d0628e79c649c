// SPDX-License-Identifier: Apache-2.0
#include "linear/cuda/static_product.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "core/rescale.h"
#include "linear/static/parts.h"
#include "low_bit/parts.h"

namespace isobit::cuda {
namespace {

/// Left out: the scales, on which no result depends.
Result<LowBitMatrix> matrix_of(const StaticLinearParameters& p, const std::string& name) {
  const int64_t row_bytes = low_bit_row_bytes(p.columns, p.weight_bits);
  LowBitParameters matrix;
  matrix.rows = p.rows;
  matrix.columns = p.columns;
  matrix.bits = p.weight_bits;
  matrix.group = p.columns;
  matrix.codes = Array::zeros(Dtype::kU8, {p.rows, row_bytes});
  matrix.scales = Array::zeros(Dtype::kF32, {p.rows, 1});
  std::fill_n(matrix.scales.data<float>(), p.rows, 1.0f);
  for (int64_t n = 0; n < p.rows; ++n)
    for (int64_t k = 0; k < p.columns; ++k)
      pack_code(matrix.codes.data<uint8_t>() + n * row_bytes, k, p.weight_bits,
                symmetric_code(p.weight_bits, p.weights.data<int8_t>()[n * p.columns + k]));
  return LowBitMatrix::create(std::move(matrix), name);
}

/// Whether acc * r, |acc| <= bound, can lie in the middle of two integers.
bool can_tie(const RescaleParameters& r, Int128 bound) {
  const int zeros = std::countr_zero(static_cast<uint32_t>(r.multiplier));
  return zeros < r.shift && bound >= static_cast<Int128>(1) << (r.shift - 1 - zeros);
}

/// Sets what makes y in one addition and a shift, where that is exact: without a tie one half rounds to the nearest.
void make_quick(StaticChannel& channel, const RescaleParameters& r, Int128 bound, Rounding rounding,
                int64_t zero_point) {
  constexpr int32_t kMostQuickShift = 62;
  if (r.shift < 0 || r.shift > kMostQuickShift) return;
  const bool breaks_ties = rounding == Rounding::kNearestEven || rounding == Rounding::kNearestAway;
  if (breaks_ties && can_tie(r, bound)) return;
  const Int128 half = rounding == Rounding::kFloor ? 0 : (static_cast<Int128>(1) << r.shift) >> 1;
  const Int128 addend = half + static_cast<Int128>(zero_point) * (static_cast<Int128>(1) << r.shift);
  const Int128 most = bound_add(bound_multiply(bound, r.multiplier), addend < 0 ? -addend : addend);
  if (most > INT64_MAX || (most >> r.shift) >= INT32_MAX) return;
  channel.addend = static_cast<int64_t>(addend);
  channel.quick = 1;
}

}  // namespace

StaticChannel static_channel(const StaticLinearParameters& p, int64_t offset, int64_t n) {
  const int8_t* const v = p.weights.data<int8_t>() + n * p.columns;
  const int32_t bias = p.bias.data<int32_t>()[n];
  int64_t sum = 0;
  for (int64_t k = 0; k < p.columns; ++k) sum += v[k];
  StaticChannel channel{};
  channel.start = bias + (offset - p.input.zero_point) * sum;
  if (!p.output) return channel;
  const RescaleParameters& r = p.rescales[static_cast<size_t>(n)];
  channel.multiplier = r.multiplier;
  channel.shift = r.shift;
  make_quick(channel, r, largest_accumulator(v, p.columns, bias, p.input), p.rounding, p.output->zero_point);
  return channel;
}

StaticEpilogue static_epilogue(const StaticLinearParameters& p, int64_t bound) {
  return {.channels = nullptr,
          .rows = nullptr,
          .code_factor = p.weight_bits == 1 ? 2 : 1,
          .middle = p.weight_bits == 1 ? 1 : 1 << (p.weight_bits - 1),
          .planes = static_cast<int32_t>(size_in_bytes(p.x_dtype())),
          .y_bytes = static_cast<int32_t>(size_in_bytes(p.y_dtype())),
          .zero_point = p.output ? static_cast<int32_t>(p.output->zero_point) : 0,
          .lo = p.lo,
          .hi = p.hi,
          .rounding = p.rounding,
          .wide = bound > INT32_MAX};
}

Status StaticProduct::add(const StaticLinearParameters& p, int64_t bound, const std::string& name, Upload& upload) {
  ISOBIT_ASSIGN_OR_RETURN(const LowBitMatrix matrix, matrix_of(p, name));
  image = ImageLayout::of_static(matrix.parameters());
  epilogue = static_epilogue(p, bound);
  std::vector<StaticChannel> numbers(static_cast<size_t>(image.strips * kStripRows));
  for (int64_t n = 0; n < p.rows; ++n)
    numbers[static_cast<size_t>(n)] = static_channel(p, static_offset(p.x_dtype()), n);
  const std::vector<std::byte> bytes = pack_image_codes(matrix, image);
  upload.add(std::span(bytes), codes);
  upload.add(std::span<const StaticChannel>(numbers), epilogue.channels);
  return {};
}

Status StaticProduct::run(const LinearDevice& device, const LinearPlan& plan, const std::byte* rows, std::byte* y,
                          int64_t y_stride, CUstream_st* stream) const {
  const bool early = device.bulk_copies;
  const auto complete = [&](ProductArgs& args) {
    args.w = codes;
    args.x = reinterpret_cast<const uint8_t*>(rows);
    args.y = y;
    args.y_stride = y_stride;
    const auto four = 4 * static_cast<size_t>(epilogue.y_bytes);
    args.y_in_fours = reinterpret_cast<uintptr_t>(y) % four == 0 && y_stride % 4 == 0;
    args.static_codes = epilogue;
    args.static_codes.rows = reinterpret_cast<const StaticRow*>(rows + plan.rows.parameters_at);
  };
  if (plan.many) {
    ManyArgs args = plan.many_args;
    complete(args);
    return run_many(image, RowsKind::kStatic, false, *plan.many, args, early, stream);
  }
  FewArgs args = plan.few_args;
  complete(args);
  return run_few(image, RowsKind::kStatic, false, plan.few, args, early, stream);
}

}  // namespace isobit::cuda
