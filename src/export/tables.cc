// SPDX-License-Identifier: Apache-2.0
#include "export/tables.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace isobit {
namespace {

Int128 magnitude(Int128 x) { return x < 0 ? -x : x; }

template <typename T>
std::vector<int64_t> widened(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

/// The narrowest type that holds all of them.
Dtype narrowest(std::span<const int64_t> values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  for (const Dtype dtype : {Dtype::kS8, Dtype::kU8, Dtype::kS16, Dtype::kU16, Dtype::kS32}) {
    const int bits = static_cast<int>(size_in_bytes(dtype)) * 8;
    const bool is_signed = dtype != Dtype::kU8 && dtype != Dtype::kU16;
    if (*low >= code_min(bits, is_signed) && *high <= code_max(bits, is_signed)) return dtype;
  }
  return Dtype::kS64;
}

/// What is stored: outputs, anchors or intercepts.
std::vector<int64_t> values_of(const ActivationTable& table) {
  if (table.kind == TableKind::kInterpolated) return table.anchors;
  if (table.kind == TableKind::kSegments) return table.intercepts;
  std::vector<int64_t> values;
  for (const int32_t entry : table.entries) values.push_back(std::clamp<int64_t>(entry, table.low, table.high));
  return values;
}

/// Of every intermediate of a look-up.
Int128 largest_intermediate(const ActivationTable& table) {
  Int128 largest = 0;
  if (table.kind == TableKind::kInterpolated) {
    for (size_t i = 0; i + 1 < table.anchors.size(); ++i) {
      const Int128 a = table.anchors[i], b = table.anchors[i + 1];
      largest = std::max(largest, (magnitude(a) + magnitude(b - a)) << table.fraction_bits);
    }
  } else if (table.kind == TableKind::kSegments) {
    const Int128 z = table.input.zero_point;
    const Int128 x = std::max(magnitude(table.input.min() - z), magnitude(table.input.max() - z));
    for (size_t i = 0; i < table.slopes.size(); ++i)
      largest = std::max(largest, magnitude(table.slopes[i]) * x + magnitude(table.intercepts[i]));
  }
  return largest;
}

constexpr std::string_view kDirect = R"(
/* An entry for each code. */
static int32_t @F(@POINTERtable, int32_t index)
{
  return table[index];
}
)";

constexpr std::string_view kInterpolatedType = R"(
/* A line between each two anchors, which are 2^fraction_bits codes apart. An anchor is an output code times
   2^guard_bits. */
typedef struct {
  const @V *anchors;
  int32_t first; /* the smallest code, counted from the first anchor */
  int32_t last;  /* the last code that lies between two anchors, counted so */
  int32_t fraction_bits, guard_bits;
  int32_t low, high; /* of the function's own bounds */
} $_interpolated_@KEY;
)";
constexpr std::string_view kInterpolated = R"(
static int32_t @F(@POINTERtable, int32_t index)
{
  const int32_t t = @CLAMP32(index + table->first, 0, table->last);
  const @V *anchor = table->anchors + (t >> table->fraction_bits);
  const int32_t fraction = t & (((int32_t)1 << table->fraction_bits) - 1);
  const @T a = anchor[0];
  const @T b = anchor[1];
  const @T sum = (a * ((@T)1 << table->fraction_bits)) + ((b - a) * fraction);
  return (int32_t)@CLAMP(@ROUND(sum, table->fraction_bits + table->guard_bits), table->low, table->high);
}
)";

constexpr std::string_view kSegmentsType = R"(
/* A line for each segment. The segment of a code is the number of thresholds that are not above it. */
typedef struct {
  const @H *thresholds; /* counted from the smallest code */
  const int32_t *slopes;
  const @V *intercepts;
  int32_t count; /* of thresholds */
  int32_t first; /* the smallest code minus the zero point */
  int32_t shift;
  int32_t low, high; /* of the function's own bounds */
} $_segments_@KEY;
)";
constexpr std::string_view kSegments = R"(
static int32_t @F(@POINTERtable, int32_t index)
{
  @T sum;
  int32_t i;
  int32_t segment = 0;
  for (i = 0; i < table->count; ++i) {
    segment += (table->thresholds[i] <= index) ? 1 : 0;
  }
  sum = ((@T)table->slopes[segment] * (index + table->first)) + table->intercepts[segment];
  return (int32_t)@CLAMP(@ROUND(sum, table->shift), table->low, table->high);
}
)";

/// The type of a table that is not direct, without const and pointer.
std::string struct_type(const TableForm& form) {
  return std::string(form.kind == TableKind::kSegments ? "$_segments_" : "$_interpolated_") + form.key();
}

void declare(CProgram& program, const TableForm& form) {
  if (form.kind == TableKind::kDirect) return;
  const bool is_segments = form.kind == TableKind::kSegments;
  const std::string thresholds = is_segments ? c_type(form.thresholds) : std::string();
  program.add_internal(struct_type(form),
                       fill(std::string(is_segments ? kSegmentsType : kInterpolatedType),
                            {{"@H", thresholds}, {"@V", c_type(form.values)}, {"@KEY", form.key()}}));
}

}  // namespace

std::string TableForm::key() const {
  std::string text(to_string(values));
  if (kind == TableKind::kSegments) text += "_" + std::string(to_string(thresholds));
  if (kind != TableKind::kDirect && is_wide) text += "_64";
  return text;
}

std::string TableForm::pointer() const {
  if (kind == TableKind::kDirect) return "const " + c_type(values) + " *";
  return "const " + struct_type(*this) + " *";
}

TableForm form_of(const ActivationTable& table) {
  TableForm form;
  form.kind = table.kind;
  form.values = narrowest(values_of(table));
  form.is_wide = !fits_s32(largest_intermediate(table));
  form.thresholds = table.input.bits <= 8 ? Dtype::kU8 : Dtype::kU16;
  return form;
}

int64_t table_bytes(const ActivationTable& table) {
  const TableForm form = form_of(table);
  int64_t bytes = static_cast<int64_t>(values_of(table).size() * size_in_bytes(form.values));
  if (table.kind == TableKind::kSegments)
    bytes += static_cast<int64_t>(table.slopes.size() * 4 + table.thresholds.size() * size_in_bytes(form.thresholds));
  return bytes;
}

std::string add_table(CProgram& program, const std::string& name, const ActivationTable& table) {
  const TableForm form = form_of(table);
  std::string values = program.add_array(form.values, name, values_of(table), DataPart::kTables, true);
  if (table.kind == TableKind::kDirect) return values;
  declare(program, form);
  const std::string low_high = c_number(table.low) + ", " + c_number(table.high);
  std::vector<std::string> members;
  if (table.kind == TableKind::kInterpolated) {
    const int64_t last = (int64_t{1} << (table.interval_bits + table.fraction_bits)) - 1;
    members = {values + ",", c_number(table.input.min() - table.origin) + ", " + c_number(last) + ",",
               c_number(table.fraction_bits) + ", " + c_number(table.guard_bits) + ",", low_high};
  } else {
    std::vector<int64_t> thresholds = widened(table.thresholds);
    for (int64_t& threshold : thresholds) threshold -= table.input.min();
    members = {program.add_array(form.thresholds, name + "_thresholds", thresholds, DataPart::kTables, true) + ",",
               program.add_array(Dtype::kS32, name + "_slopes", widened(table.slopes), DataPart::kTables, true) + ",",
               values + ",",
               c_number(static_cast<int64_t>(thresholds.size())) + ",",
               c_number(table.input.min() - table.input.zero_point) + ", " + c_number(table.shift) + ",",
               low_high};
  }
  const int64_t bytes = static_cast<int64_t>(table.kind == TableKind::kInterpolated ? 28 : 32);
  return "&" + program.add_object(struct_type(form), name + "_table", members, bytes);
}

std::string look_up_function(CProgram& program, const ActivationTable& table) {
  const TableForm form = form_of(table);
  declare(program, form);
  const std::string name = "$_look_up_" + std::string(to_string(form.kind)) + "_" + form.key();
  if (table.kind == TableKind::kDirect)
    return program.add_function(name, fill(std::string(kDirect), {{"@F", name}, {"@POINTER", form.pointer()}}));
  const bool is_segments = table.kind == TableKind::kSegments;
  const int shift = is_segments ? table.shift : table.fraction_bits + table.guard_bits;
  const std::string round = program.round_shift(form.is_wide), clamp = program.clamp(form.is_wide);
  program.note_shift(form.is_wide, shift);
  const std::string clamp_32 = is_segments ? std::string() : program.clamp(false);
  return program.add_function(
      name, fill(std::string(is_segments ? kSegments : kInterpolated), {{"@F", name},
                                                                        {"@POINTER", form.pointer()},
                                                                        {"@CLAMP32", clamp_32},
                                                                        {"@CLAMP", clamp},
                                                                        {"@ROUND", round},
                                                                        {"@V", c_type(form.values)},
                                                                        {"@T", sum_type(form.is_wide)}}));
}

}  // namespace isobit
