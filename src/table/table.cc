// SPDX-License-Identifier: Apache-2.0
#include "isobit/table.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/fixed.h"
#include "core/float_mode.h"
#include "isobit/nearest.h"
#include "table/exact.h"
#include "table/fit.h"
#include "table/reference.h"

namespace isobit {
namespace {

__extension__ typedef __int128 Int128;

constexpr int kMaxBits = 16;
constexpr int kMinIntervalBits = 6;  // of a fit
constexpr int kMaxIntervalBits = 12;
constexpr int kMinSegments = 2;
constexpr int kMaxSegments = 256;
constexpr int kMaxGuardBits = 8;
constexpr int kMaxSegmentShift = 31;
constexpr std::string_view kTableNames[] = {"direct", "interpolated", "segments"};

Status check_function(Activation function) {
  if (function == Activation::kSigmoid || function == Activation::kTanh) return {};
  return Status(
      StatusCode::kInvalidArgument,
      "activation function is " + std::to_string(static_cast<int32_t>(function)) + ", must be 0 (sigmoid) or 1 (tanh)");
}

Status check_rounding(Rounding rounding) {
  const int32_t value = static_cast<int32_t>(rounding);
  if (value >= 0 && value <= static_cast<int32_t>(Rounding::kFloor)) return {};
  return Status(StatusCode::kInvalidArgument, "rounding mode is " + std::to_string(value) + ", must be 0..3");
}

Status check_width(const Grid& grid, std::string_view name) {
  ISOBIT_RETURN_IF_ERROR(check_grid(grid, name));
  if (grid.bits <= kMaxBits) return {};
  return Status(StatusCode::kUnsupported, "activation table: its " + std::string(name) + " is " +
                                              std::to_string(grid.bits) + " bits wide, the limit is 16");
}

Status check_arguments(Activation function, const Grid& input, const Grid& output) {
  ISOBIT_RETURN_IF_ERROR(check_function(function));
  ISOBIT_RETURN_IF_ERROR(check_width(input, "input"));
  return check_width(output, "output");
}

TableCertificate certify(const ActivationTable& table, const std::vector<int32_t>& codes) {
  const TableView view = view_of(table);
  TableCertificate certificate{0, view.input_min};
  for (size_t i = 0; i < codes.size(); ++i) {
    const int64_t q = view.input_min + static_cast<int64_t>(i);
    const int64_t difference = look_up(view, q) - codes[i];
    const int64_t error = difference < 0 ? -difference : difference;
    if (error > certificate.max_error_lsb) certificate = {error, q};
  }
  return certificate;
}

bool fits_s64(Int128 value) { return value >= INT64_MIN && value <= INT64_MAX; }

/// Says "table NAME: WHAT is VALUE, must be LIMIT".
class Refusal {
 public:
  explicit Refusal(std::string_view name) : prefix_("table " + std::string(name) + ": ") {}
  Status operator()(std::string_view what, int64_t value, const std::string& limit) const {
    return Status(StatusCode::kInvalidFile,
                  prefix_ + std::string(what) + " is " + std::to_string(value) + ", must be " + limit);
  }
  Status overflow(std::string_view what, size_t index) const {
    return Status(StatusCode::kOverflow,
                  prefix_ + std::string(what) + " " + std::to_string(index) + " overflows the 64-bit look-up");
  }
  /// The same error, with the table's name.
  Status named(const Status& status) const { return Status(status.code(), prefix_ + status.message()); }

 private:
  std::string prefix_;
};

std::string range_text(int64_t low, int64_t high) { return std::to_string(low) + ".." + std::to_string(high); }

Status check_direct(const ActivationTable& table, const Refusal& refuse) {
  const size_t size = size_t{1} << table.input.bits;
  if (table.entries.size() != size)
    return refuse("number of entries", static_cast<int64_t>(table.entries.size()), std::to_string(size));
  for (const int32_t entry : table.entries)
    if (entry < table.low || entry > table.high) return refuse("an entry", entry, range_text(table.low, table.high));
  return {};
}

Status check_interpolated(const ActivationTable& table, const Refusal& refuse) {
  if (table.interval_bits < 0 || table.interval_bits > kMaxIntervalBits)
    return refuse("interval bits", table.interval_bits, range_text(0, kMaxIntervalBits));
  if (table.fraction_bits < 0 || table.fraction_bits > kMaxBits)
    return refuse("fraction bits", table.fraction_bits, range_text(0, kMaxBits));
  if (table.guard_bits < 0 || table.guard_bits > kMaxGuardBits)
    return refuse("guard bits", table.guard_bits, range_text(0, kMaxGuardBits));
  if (table.origin < table.input.min() || table.origin > table.input.max())
    return refuse("origin", table.origin, range_text(table.input.min(), table.input.max()));
  const size_t size = (size_t{1} << table.interval_bits) + 1;
  if (table.anchors.size() != size)
    return refuse("number of anchors", static_cast<int64_t>(table.anchors.size()), std::to_string(size));
  const Int128 length = Int128{1} << table.fraction_bits;
  for (size_t i = 0; i + 1 < size; ++i) {
    // The sum lies between its values at the two anchors; products grow with the fraction.
    const Int128 a = table.anchors[i];
    const Int128 difference = table.anchors[i + 1] - a;
    if (!fits_s64(a * length) || !fits_s64(difference) || !fits_s64(difference * (length - 1)) ||
        !fits_s64(a * length + difference * (length - 1)))
      return refuse.overflow("anchor", i);
  }
  return {};
}

Status check_segments(const ActivationTable& table, const Refusal& refuse) {
  const size_t size = table.slopes.size();
  if (size < 1 || size > kMaxSegments)
    return refuse("number of slopes", static_cast<int64_t>(size), range_text(1, kMaxSegments));
  if (table.intercepts.size() != size)
    return refuse("number of intercepts", static_cast<int64_t>(table.intercepts.size()), std::to_string(size));
  if (table.thresholds.size() != size - 1)
    return refuse("number of thresholds", static_cast<int64_t>(table.thresholds.size()), std::to_string(size - 1));
  if (table.shift < 0 || table.shift > kMaxSegmentShift)
    return refuse("segment shift", table.shift, range_text(0, kMaxSegmentShift));
  int64_t previous = table.input.min();
  for (const int32_t threshold : table.thresholds) {
    if (threshold < previous || threshold > table.input.max())
      return refuse("a threshold", threshold, range_text(previous, table.input.max()) + " (ascending input codes)");
    previous = threshold;
  }
  for (size_t i = 0; i < size; ++i) {
    for (const int64_t q : {table.input.min(), table.input.max()}) {  // linear in q: the ends bound it
      const Int128 product = static_cast<Int128>(table.slopes[i]) * (q - table.input.zero_point);
      if (!fits_s64(product + table.intercepts[i])) return refuse.overflow("segment", i);
    }
  }
  return {};
}

/// Everything but the certificate.
Status check_form(const ActivationTable& table, const Refusal& refuse) {
  if (Status status = check_arguments(table.function, table.input, table.output); !status.ok())
    return refuse.named(status);
  if (Status status = check_rounding(table.rounding); !status.ok()) return refuse.named(status);
  int64_t low = 0;
  int64_t high = 0;
  code_bounds(table.function, table.output, &low, &high);
  if (table.low != low) return refuse("lowest output", table.low, std::to_string(low));
  if (table.high != high) return refuse("highest output", table.high, std::to_string(high));

  const bool direct = table.kind == TableKind::kDirect;
  const bool interpolated = table.kind == TableKind::kInterpolated;
  const bool segments = table.kind == TableKind::kSegments;
  if (!direct && !interpolated && !segments) return refuse("kind", static_cast<int32_t>(table.kind), "0..2");
  if ((!direct && !table.entries.empty()) || (!interpolated && !table.anchors.empty()) ||
      (!segments && (!table.thresholds.empty() || !table.slopes.empty() || !table.intercepts.empty())))
    return refuse("kind", static_cast<int32_t>(table.kind), "the kind of the values that are present");
  if (direct) ISOBIT_RETURN_IF_ERROR(check_direct(table, refuse));
  if (interpolated) ISOBIT_RETURN_IF_ERROR(check_interpolated(table, refuse));
  if (segments) ISOBIT_RETURN_IF_ERROR(check_segments(table, refuse));
  return {};
}

}  // namespace

std::string_view to_string(Activation activation) { return activation == Activation::kSigmoid ? "sigmoid" : "tanh"; }

std::string_view to_string(TableKind kind) {
  switch (kind) {
    case TableKind::kDirect: return "direct";
    case TableKind::kInterpolated: return "interpolated";
    case TableKind::kSegments: break;
  }
  return "segments";
}

std::string to_string(const TableOptions& options) {
  std::string text(to_string(options.kind));
  if (options.kind == TableKind::kSegments) text += ":" + std::to_string(options.segments);
  return text;
}

Result<TableOptions> parse_table_options(std::string_view text) {
  TableOptions options;
  if (text == "direct") return options;
  if (text == "interpolated") {
    options.kind = TableKind::kInterpolated;
    return options;
  }
  constexpr std::string_view kPrefix = "segments:";
  if (text.substr(0, kPrefix.size()) == kPrefix) {
    options.kind = TableKind::kSegments;
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + kPrefix.size(), end, options.segments);
    if (parsed.ec == std::errc() && parsed.ptr == end && options.segments >= kMinSegments &&
        options.segments <= kMaxSegments)
      return options;
  }
  return Status(StatusCode::kInvalidArgument, "table is \"" + std::string(text) +
                                                  "\", must be direct, interpolated or segments:N with N in 2..256" +
                                                  nearest_hint(text.substr(0, text.find(':')), kTableNames));
}

TableOptions default_table_options(int input_bits) {
  TableOptions options;
  options.kind = input_bits <= 12 ? TableKind::kDirect : TableKind::kInterpolated;
  return options;
}

int64_t ActivationTable::operator()(int64_t q) const { return look_up(view_of(*this), q); }

Result<std::vector<int32_t>> exact_codes(Activation function, const Grid& input, const Grid& output) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_arguments(function, input, output));
  return exact_function(function, input, output).codes;
}

Result<ActivationTable> fit_table(Activation function, const Grid& input, const Grid& output,
                                  const TableOptions& options, Rounding rounding) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_arguments(function, input, output));
  ISOBIT_RETURN_IF_ERROR(check_rounding(rounding));
  const auto refuse = [](const char* what, int64_t value, const std::string& limit) {
    return Status(StatusCode::kInvalidArgument,
                  std::string("table options: ") + what + " is " + std::to_string(value) + ", must be " + limit);
  };
  const ExactFunction exact = exact_function(function, input, output);
  ActivationTable table;
  table.function = function;
  table.input = input;
  table.output = output;
  table.rounding = rounding;
  table.low = exact.low;
  table.high = exact.high;
  table.kind = options.kind;
  switch (options.kind) {
    case TableKind::kDirect: break;
    case TableKind::kInterpolated:
      if (options.guard_bits < 0 || options.guard_bits > kMaxGuardBits)
        return refuse("guard bits", options.guard_bits, range_text(0, kMaxGuardBits));
      table.guard_bits = options.guard_bits;
      for (int k = kMinIntervalBits; k <= std::min(kMaxIntervalBits, input.bits); ++k) {
        if (!fit_anchors(exact, k, &table)) continue;
        table.certificate = certify(table, exact.codes);
        if (table.certificate.max_error_lsb <= 1) return table;
      }
      table.kind = TableKind::kDirect;
      table.origin = 0;
      table.interval_bits = table.fraction_bits = table.guard_bits = 0;
      table.anchors.clear();
      break;
    case TableKind::kSegments:
      if (options.segments < kMinSegments || options.segments > kMaxSegments)
        return refuse("segments", options.segments, range_text(kMinSegments, kMaxSegments));
      fit_segments(exact, options.segments, &table);
      table.certificate = certify(table, exact.codes);
      return table;
    default: return refuse("kind", static_cast<int32_t>(options.kind), "0 (direct), 1 (interpolated) or 2 (segments)");
  }
  table.entries = exact.codes;
  table.certificate = certify(table, exact.codes);
  return table;
}

Status check_table(const ActivationTable& table, std::string_view name) {
  const DefaultFloatMode mode;
  const Refusal refuse(name);
  ISOBIT_RETURN_IF_ERROR(check_form(table, refuse));
  const TableCertificate truth = certify(table, exact_function(table.function, table.input, table.output).codes);
  if (table.kind == TableKind::kDirect && truth.max_error_lsb != 0)
    return refuse("error of a direct table", truth.max_error_lsb,
                  "0, at input code " + std::to_string(truth.worst_code));
  if (table.certificate.max_error_lsb != truth.max_error_lsb)
    return refuse("certified error", table.certificate.max_error_lsb, std::to_string(truth.max_error_lsb));
  if (table.certificate.worst_code != truth.worst_code)
    return refuse("certified worst input", table.certificate.worst_code, std::to_string(truth.worst_code));
  return {};
}

Result<TableErrors> table_errors(const ActivationTable& table) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_form(table, Refusal(to_string(table.function))));
  const std::vector<int32_t> exact = exact_function(table.function, table.input, table.output).codes;
  const TableView view = view_of(table);
  TableErrors errors{.inputs = static_cast<int64_t>(exact.size()), .worst_code = view.input_min};
  int64_t sum = 0, equal = 0, within = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const int64_t q = view.input_min + static_cast<int64_t>(i);
    const int64_t difference = look_up(view, q) - exact[i];
    const int64_t error = difference < 0 ? -difference : difference;
    sum += error;
    equal += error == 0 ? 1 : 0;
    within += error <= 1 ? 1 : 0;
    if (error <= errors.max_lsb) continue;
    errors.max_lsb = error;
    errors.worst_code = q;
  }
  const auto count = static_cast<double>(exact.size());
  errors.mean_lsb = static_cast<double>(sum) / count;
  errors.share_exact = static_cast<double>(equal) / count;
  errors.share_within_lsb = static_cast<double>(within) / count;
  return errors;
}

}  // namespace isobit
