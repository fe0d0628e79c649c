// SPDX-License-Identifier: Apache-2.0
#include "isobit/low_bit.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/codes.h"
#include "core/float_mode.h"
#include "core/number_text.h"
#include "io/container.h"
#include "low_bit/parts.h"

namespace isobit {
namespace {

constexpr std::string_view kKindNames[] = {"symmetric", "zero_point", "offset"};

Status refuse(const std::string& what) { return {StatusCode::kInvalidArgument, what}; }

/// The one definition of a decoded weight in float32: two roundings at most, never contracted.
float decoded(float scale, int32_t value, const float* offset) {
  const float product = scale * static_cast<float>(value);
  return offset == nullptr ? product : product + *offset;
}

std::string dtype_text(Dtype dtype) { return std::string(to_string(dtype)); }

Status check_tensor(const Array& array, bool wanted, Dtype dtype, const std::vector<int64_t>& shape,
                    const std::string& what) {
  if (!wanted) {
    if (!array.bytes.empty() || !array.shape.empty())
      return refuse(what + " of the shape " + shape_text(array.shape) + " were given, the kind has none");
    return {};
  }
  if (array.dtype != dtype) return refuse(what + " are " + dtype_text(array.dtype) + ", must be " + dtype_text(dtype));
  if (array.shape != shape)
    return refuse(what + " have the shape " + shape_text(array.shape) + ", must have " + shape_text(shape));
  return check_array(array, what);
}

/// One content, one encoding: padding is zero.
Status check_padding(const LowBitParameters& p, const std::string& name) {
  const int64_t row_bytes = low_bit_row_bytes(p.columns, p.bits);
  const int64_t places = row_bytes * 8 / p.bits;
  for (int64_t n = 0; n < p.rows; ++n) {
    const uint8_t* row = p.codes.data<uint8_t>() + n * row_bytes;
    for (int64_t k = p.columns; k < places; ++k)
      if (const uint32_t code = unpack_code(row, k, p.bits); code != 0)
        return refuse(name + ": " + low_bit_element("codes", n, k) + " is " + std::to_string(code) +
                      ", must be 0 (padding)");
  }
  return {};
}

Status check_group(const LowBitMatrix& m, int64_t n, int64_t g, const std::string& name) {
  const LowBitParameters& p = m.parameters();
  const float scale = m.scale(n, g);
  const float offset = m.offset(n, g);
  const int32_t z = m.zero_point(n, g);
  const auto refuse_element = [&](const char* what, const std::string& value, const std::string& limit) {
    return refuse(name + ": " + low_bit_element(what, n, g) + " is " + value + ", must be " + limit);
  };
  if (!std::isfinite(scale)) return refuse_element("scales", number_text(static_cast<double>(scale)), "finite");
  if (!std::isfinite(offset)) return refuse_element("offsets", number_text(static_cast<double>(offset)), "finite");
  if (z > 1 << p.bits) return refuse_element("zero_points", std::to_string(z), "0.." + std::to_string(1 << p.bits));
  const float* added = p.kind == LowBitKind::kOffset ? &offset : nullptr;
  for (const int32_t code : {0, (1 << p.bits) - 1})
    if (!std::isfinite(decoded(scale, low_bit_value(p.kind, p.bits, z, code), added)))
      return refuse_element("scales", number_text(static_cast<double>(scale)),
                            "small enough for the weight of code " + std::to_string(code) + " to be finite");
  if (scale != 0) return {};
  const int64_t end = std::min(p.columns, (g + 1) * p.group);
  for (int64_t k = g * p.group; k < end; ++k)
    if (m.code(n, k) != static_cast<uint32_t>(z))
      return refuse_element("scales", "0",
                            "not 0 where " + low_bit_element("codes", n, k) + " is " + std::to_string(m.code(n, k)) +
                                ", not " + std::to_string(z));
  return {};
}

Status check(const LowBitMatrix& m, const std::string& name) {
  const LowBitParameters& p = m.parameters();
  ISOBIT_RETURN_IF_ERROR(check_low_bit_form(p.rows, p.columns, p.bits, p.group, p.kind, name));
  const int32_t middle = 1 << (p.bits - 1);
  if (p.zero_point != 0 && (p.kind != LowBitKind::kOffset || p.zero_point != middle))
    return refuse(name + ": the zero point of the matrix is " + std::to_string(p.zero_point) + ", must be 0" +
                  (p.kind == LowBitKind::kOffset ? " or " + std::to_string(middle)
                                                 : " in the kind " + std::string(to_string(p.kind))));
  const std::vector<int64_t> per_group = {p.rows, m.groups()};
  if (!is_low_bit_scale(p.scales.dtype))
    return refuse(name + ": scales are " + dtype_text(p.scales.dtype) + ", must be f32, f16 or bf16");
  ISOBIT_RETURN_IF_ERROR(check_tensor(p.codes, true, Dtype::kU8, {p.rows, m.row_bytes()}, name + ": codes"));
  ISOBIT_RETURN_IF_ERROR(check_tensor(p.scales, true, p.scales.dtype, per_group, name + ": scales"));
  ISOBIT_RETURN_IF_ERROR(check_tensor(p.zero_points, p.kind == LowBitKind::kZeroPoint, low_bit_zero_point_dtype(p.bits),
                                      per_group, name + ": zero_points"));
  ISOBIT_RETURN_IF_ERROR(
      check_tensor(p.offsets, p.kind == LowBitKind::kOffset, p.scales.dtype, per_group, name + ": offsets"));
  for (int64_t n = 0; n < p.rows; ++n)
    for (int64_t g = 0; g < m.groups(); ++g) ISOBIT_RETURN_IF_ERROR(check_group(m, n, g, name));
  return check_padding(p, name);
}

void dequantize_row(const LowBitMatrix& m, int64_t n, float* out) {
  const LowBitParameters& p = m.parameters();
  const uint8_t* row = p.codes.data<uint8_t>() + n * m.row_bytes();
  for (int64_t g = 0; g < m.groups(); ++g) {
    const float scale = m.scale(n, g);
    const float offset = m.offset(n, g);
    const float* added = p.kind == LowBitKind::kOffset ? &offset : nullptr;
    const int32_t z = m.zero_point(n, g);
    const int64_t end = std::min(p.columns, (g + 1) * p.group);
    for (int64_t k = g * p.group; k < end; ++k) {
      const auto code = static_cast<int32_t>(unpack_code(row, k, p.bits));
      out[k] = decoded(scale, low_bit_value(p.kind, p.bits, z, code), added);
    }
  }
}

}  // namespace

std::string_view to_string(LowBitKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

std::optional<LowBitKind> low_bit_kind_from_string(std::string_view text) {
  for (size_t i = 0; i < std::size(kKindNames); ++i)
    if (kKindNames[i] == text) return static_cast<LowBitKind>(i);
  return std::nullopt;
}

Status check_low_bit_form(int64_t rows, int64_t columns, int32_t bits, int64_t group, LowBitKind kind,
                          const std::string& name) {
  if (kind < LowBitKind::kSymmetric || kind > LowBitKind::kOffset)
    return refuse(name + ": kind is " + std::to_string(static_cast<int32_t>(kind)) + ", must be 0..2");
  if (bits != 1 && bits != 2 && bits != 4 && bits != 8)
    return refuse(name + ": bits is " + std::to_string(bits) + ", must be 1, 2, 4 or 8");
  if (rows < 1 || rows > kMaxLowBitSize)
    return refuse(name + ": N is " + std::to_string(rows) + ", must be 1.." + std::to_string(kMaxLowBitSize));
  if (columns < 1 || columns > kMaxLowBitSize)
    return refuse(name + ": K is " + std::to_string(columns) + ", must be 1.." + std::to_string(kMaxLowBitSize));
  if (group != columns && (group < 8 || group > columns || group % 8 != 0))
    return refuse(name + ": group is " + std::to_string(group) + ", must be K, " + std::to_string(columns) +
                  ", or a multiple of 8 below it");
  return {};
}

Result<LowBitMatrix> LowBitMatrix::create(LowBitParameters parameters, std::string_view name) {
  const DefaultFloatMode mode;
  LowBitMatrix matrix(std::move(parameters));
  ISOBIT_RETURN_IF_ERROR(check(matrix, std::string(name)));
  return matrix;
}

int64_t LowBitMatrix::groups() const { return low_bit_groups(parameters_.columns, parameters_.group); }
int64_t LowBitMatrix::row_bytes() const { return low_bit_row_bytes(parameters_.columns, parameters_.bits); }

int64_t LowBitMatrix::size_bytes() const {
  const LowBitParameters& p = parameters_;
  return static_cast<int64_t>(p.codes.bytes.size() + p.scales.bytes.size() + p.zero_points.bytes.size() +
                              p.offsets.bytes.size());
}

double LowBitMatrix::bits_per_weight() const {
  return 8 * static_cast<double>(size_bytes()) / (static_cast<double>(rows()) * static_cast<double>(columns()));
}

std::string form_text(const LowBitParameters& p) {
  return std::to_string(p.bits) + (p.bits == 1 ? " bit " : " bits ") + std::string(to_string(p.kind)) + ", group " +
         std::to_string(p.group) + ", " + std::string(to_string(p.scales.dtype));
}

uint32_t LowBitMatrix::code(int64_t n, int64_t k) const {
  return unpack_code(parameters_.codes.data<uint8_t>() + n * row_bytes(), k, parameters_.bits);
}

int32_t LowBitMatrix::value(int64_t n, int64_t k) const {
  const int32_t z = zero_point(n, k / parameters_.group);
  return low_bit_value(parameters_.kind, parameters_.bits, z, static_cast<int32_t>(code(n, k)));
}

float LowBitMatrix::scale(int64_t n, int64_t g) const { return float_at(parameters_.scales, n * groups() + g); }

float LowBitMatrix::offset(int64_t n, int64_t g) const {
  return parameters_.kind == LowBitKind::kOffset ? float_at(parameters_.offsets, n * groups() + g) : 0.0f;
}

int32_t LowBitMatrix::zero_point(int64_t n, int64_t g) const {
  const LowBitParameters& p = parameters_;
  if (p.kind == LowBitKind::kSymmetric) return 1 << (p.bits - 1);
  if (p.kind == LowBitKind::kOffset) return p.zero_point;
  return static_cast<int32_t>(load_code(p.zero_points.bytes.data(), p.zero_points.dtype, n * groups() + g));
}

Status LowBitMatrix::dequantize(std::span<float> w, ThreadPool* pool) const {
  const DefaultFloatMode mode;
  const auto count = static_cast<uint64_t>(rows()) * static_cast<uint64_t>(columns());
  if (w.size() != count)
    return refuse("dequantize: w has " + std::to_string(w.size()) + " elements, must have " + std::to_string(count) +
                  ", N * K");
  return for_rows(pool, rows(), [&](int64_t begin, int64_t end) -> Status {
    for (int64_t n = begin; n < end; ++n) dequantize_row(*this, n, w.data() + n * columns());
    return {};
  });
}

}  // namespace isobit
