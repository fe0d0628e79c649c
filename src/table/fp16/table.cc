// SPDX-License-Identifier: Apache-2.0
#include "isobit/fp16_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "core/float_mode.h"
#include "core/half.h"
#include "isobit/nearest.h"
#include "table/fp16/error.h"
#include "table/fp16/reference.h"

namespace isobit {
namespace {

constexpr std::string_view kModelNames[] = {"f32", "nli_gpu", "nli_cpu"};
constexpr std::string_view kReductionNames[] = {
    "none", "sin", "cos", "exp", "log", "reciprocal", "rsqrt", "sqrt", "inverse_sigmoid"};
constexpr int32_t kMaxSteps = 4096;
constexpr size_t kMaxIntervals = 256;

std::string text_of(float value) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.9g", static_cast<double>(value));
  return buffer;
}
std::string text_of(double value) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.17g", value);
  return buffer;
}

bool is_f16(float value) { return f32_through_f16(value) == value; }

/// Every refusal names the table, the field, its value and the limit.
class Refusal {
 public:
  explicit Refusal(std::string prefix) : prefix_(std::move(prefix)) {}
  Status operator()(const std::string& field, const std::string& value, const std::string& limit) const {
    return Status(StatusCode::kInvalidFile, prefix_ + field + " is " + value + ", must be " + limit);
  }
  Status operator()(const std::string& field, size_t value, const std::string& limit) const {
    return (*this)(field, std::to_string(value), limit);
  }

 private:
  std::string prefix_;
};

std::string element(const char* field, size_t index) { return std::string(field) + "[" + std::to_string(index) + "]"; }

Status check_pieces(const Fp16Pieces& pieces, const Fp16Table& table, const Refusal& refuse) {
  const size_t count = pieces.steps.size();
  if (count < 1 || count > kMaxIntervals)
    return refuse("number of intervals", count, "1.." + std::to_string(kMaxIntervals));
  size_t entries = 1;
  for (size_t i = 0; i < count; ++i) {
    if (pieces.steps[i] < 1 || pieces.steps[i] > kMaxSteps)
      return refuse(element("steps", i), std::to_string(pieces.steps[i]), "1.." + std::to_string(kMaxSteps));
    entries += static_cast<size_t>(pieces.steps[i]);
  }
  if (pieces.cut_points.size() != count + 1)
    return refuse("number of cut points", pieces.cut_points.size(), std::to_string(count + 1));
  if (pieces.scales.size() != count) return refuse("number of scales", pieces.scales.size(), std::to_string(count));
  if (pieces.values.size() != entries)
    return refuse("number of values", pieces.values.size(), std::to_string(entries) + ", the sum of the steps plus 1");
  for (size_t i = 0; i <= count; ++i) {
    const float cut = pieces.cut_points[i];
    if (!std::isfinite(cut)) return refuse(element("cut_points", i), text_of(cut), "finite");
    if (table.reduction == Fp16Reduction::kNone && !is_f16(cut))
      return refuse(element("cut_points", i), text_of(cut), "a float16 number");
    if (i > 0 && cut < pieces.cut_points[i - 1])
      return refuse(element("cut_points", i), text_of(cut),
                    "at least " + element("cut_points", i - 1) + ", " + text_of(pieces.cut_points[i - 1]));
  }
  if (!(pieces.cut_points.front() < pieces.cut_points.back()))
    return refuse("last of the cut points", text_of(pieces.cut_points.back()),
                  "above the first, " + text_of(pieces.cut_points.front()));
  Fp16Pieces expected = pieces;
  set_scales(expected, table.model);
  for (size_t i = 0; i < count; ++i) {
    const float scale = expected.scales[i];
    if (pieces.cut_points[i] < pieces.cut_points[i + 1] && !(scale > 0 && std::isfinite(scale)))
      return refuse(element("cut_points", i + 1), text_of(pieces.cut_points[i + 1]),
                    "far enough from " + element("cut_points", i) + ", " + text_of(pieces.cut_points[i]) +
                        ", for a scale that is positive and finite in model " + std::string(to_string(table.model)) +
                        ", not " + text_of(scale));
    if (__builtin_bit_cast(uint32_t, pieces.scales[i]) != __builtin_bit_cast(uint32_t, scale))
      return refuse(element("scales", i), text_of(pieces.scales[i]), text_of(scale));
  }
  for (size_t i = 0; i < entries; ++i) {
    if (!std::isfinite(pieces.values[i])) return refuse(element("values", i), text_of(pieces.values[i]), "finite");
    if (table.half_values && !is_f16(pieces.values[i]))
      return refuse(element("values", i), text_of(pieces.values[i]), "a float16 number");
  }
  return {};
}

Status check_certificate(const Fp16Certificate& certificate, const Refusal& refuse) {
  const struct {
    const char* field;
    double value, limit;
  } fields[] = {{"max_ulp", certificate.max_ulp, std::numeric_limits<double>::infinity()},
                {"mean_ulp", certificate.mean_ulp, certificate.max_ulp},
                {"max_absolute", certificate.max_absolute, std::numeric_limits<double>::infinity()},
                {"share_exact", certificate.share_exact, certificate.share_within_ulp},
                {"share_within_ulp", certificate.share_within_ulp, 1.0}};
  for (const auto& field : fields)
    if (!(field.value >= 0 && field.value <= field.limit))
      return refuse(std::string("certificate ") + field.field, text_of(field.value), "0.." + text_of(field.limit));
  if ((certificate.worst_code & 0x7fffu) >= kFp16Infinity)
    return refuse("certificate worst_code", certificate.worst_code, "the code of a finite float16");
  return {};
}

}  // namespace

std::string_view to_string(Fp16Model model) { return kModelNames[static_cast<size_t>(model)]; }

std::optional<Fp16Model> fp16_model_from_string(std::string_view text) {
  for (size_t i = 0; i < std::size(kModelNames); ++i)
    if (kModelNames[i] == text) return static_cast<Fp16Model>(i);
  return std::nullopt;
}

std::string_view to_string(Fp16Reduction reduction) { return kReductionNames[static_cast<size_t>(reduction)]; }

uint16_t Fp16Table::operator()(uint16_t x) const {
  return in_default_float_mode([&] { return fp16_evaluate(view_of(*this), x); });
}

void set_scales(Fp16Pieces& pieces, Fp16Model model) {
  const DefaultFloatMode mode;
  pieces.scales.assign(pieces.steps.size(), 0.0f);
  for (size_t i = 0; i < pieces.steps.size() && i + 1 < pieces.cut_points.size(); ++i)
    if (pieces.cut_points[i] < pieces.cut_points[i + 1])
      pieces.scales[i] = fp16_scale(model, pieces.steps[i], pieces.cut_points[i], pieces.cut_points[i + 1]);
}

Status check_fp16_table(const Fp16Table& table, std::string_view name) {
  const DefaultFloatMode mode;
  const std::string prefix = "table " + std::string(name) + ": ";
  const Refusal refuse(prefix);
  if (table.function != "custom" && !is_fp16_function(table.function))
    return refuse("function", "\"" + table.function + "\"",
                  "\"custom\" or the name of a function" + nearest_hint(table.function, fp16_functions()));
  if (table.function == "swish" ? !std::isfinite(table.beta) : table.beta != 1.0)
    return refuse("beta", text_of(table.beta), table.function == "swish" ? "finite" : "1, for it belongs to swish");
  const int32_t model = static_cast<int32_t>(table.model);
  if (model < 0 || model > 2) return refuse("model", std::to_string(model), "0..2");
  const int32_t reduction = static_cast<int32_t>(table.reduction);
  if (reduction < 0 || reduction > 8) return refuse("reduction", std::to_string(reduction), "0..8");
  if (table.reduction != Fp16Reduction::kNone && to_string(table.reduction) != table.function)
    return refuse("reduction", std::string(to_string(table.reduction)),
                  "none, or that of function \"" + table.function + "\"");
  const bool two = table.reduction == Fp16Reduction::kSin || table.reduction == Fp16Reduction::kCos;
  if (table.pieces.size() != (two ? 2u : 1u)) return refuse("number of pieces", table.pieces.size(), two ? "2" : "1");
  for (size_t i = 0; i < table.pieces.size(); ++i)
    ISOBIT_RETURN_IF_ERROR(
        check_pieces(table.pieces[i], table, Refusal(two ? prefix + "pieces[" + std::to_string(i) + "]: " : prefix)));
  return check_certificate(table.certificate, refuse);
}

Result<Fp16Certificate> certify(const Fp16Table& table, const std::vector<uint16_t>& exact) {
  const DefaultFloatMode mode;
  if (exact.size() != 65536)
    return Status(StatusCode::kInvalidArgument,
                  "exact results: " + std::to_string(exact.size()) + " codes, must be 65536");
  ISOBIT_RETURN_IF_ERROR(check_fp16_table(table, table.function));
  const Fp16TableView view = view_of(table);
  Fp16Certificate result;
  double sum = 0;  // of multiples of a power of two: exact
  int64_t finite = 0, equal = 0, within = 0;
  for (uint32_t x = 0; x < 65536; ++x) {
    if ((x & 0x7fffu) >= kFp16Infinity) continue;
    const uint16_t truth = exact[x];
    const uint16_t code = fp16_evaluate(view, static_cast<uint16_t>(x));
    const double absolute = fp16_absolute_error(code, truth);
    const double ulp = fp16_ulp(absolute, truth);
    ++finite;
    sum += ulp;
    equal += ulp == 0 ? 1 : 0;
    within += ulp <= 1 ? 1 : 0;
    if (ulp > result.max_ulp) {
      result.max_ulp = ulp;
      result.worst_code = static_cast<uint16_t>(x);
    }
    result.max_absolute = std::max(result.max_absolute, absolute);
  }
  const double count = static_cast<double>(finite);
  result.mean_ulp = sum / count;
  result.share_exact = static_cast<double>(equal) / count;
  result.share_within_ulp = static_cast<double>(within) / count;
  return result;
}

}  // namespace isobit
