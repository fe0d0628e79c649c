// SPDX-License-Identifier: Apache-2.0
// The tables of src/table/fp16/fitted/, as constants: nothing is computed before a table is asked for.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/float_mode.h"
#include "core/half.h"
#include "isobit/fp16_table.h"
#include "isobit/nearest.h"

namespace isobit {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr size_t kValues = 259;
constexpr size_t kCutPoints = 11;

/// The tables of one function: float32 values of each model, then float16 values of each model; all pieces of a table
/// one after another. Bits of float32, or of float16 where that holds them.
template <typename Cut, size_t pieces>
struct Fitted {
  Cut cut_points[6 * pieces * kCutPoints];
  uint32_t values[3 * pieces * kValues];
  uint16_t half_values[3 * pieces * kValues];
  Fp16Certificate certificates[6];
};

// clang-format off
#include "table/fp16/fitted/cos.inc"
#include "table/fp16/fitted/elu.inc"
#include "table/fp16/fitted/erf.inc"
#include "table/fp16/fitted/exp.inc"
#include "table/fp16/fitted/gelu.inc"
#include "table/fp16/fitted/gelu_tanh.inc"
#include "table/fp16/fitted/hardsigmoid.inc"
#include "table/fp16/fitted/hardswish.inc"
#include "table/fp16/fitted/inverse_sigmoid.inc"
#include "table/fp16/fitted/leaky_relu.inc"
#include "table/fp16/fitted/log.inc"
#include "table/fp16/fitted/mish.inc"
#include "table/fp16/fitted/quick_gelu.inc"
#include "table/fp16/fitted/reciprocal.inc"
#include "table/fp16/fitted/relu.inc"
#include "table/fp16/fitted/relu6.inc"
#include "table/fp16/fitted/rsqrt.inc"
#include "table/fp16/fitted/selu.inc"
#include "table/fp16/fitted/sigmoid.inc"
#include "table/fp16/fitted/silu.inc"
#include "table/fp16/fitted/sin.inc"
#include "table/fp16/fitted/softplus.inc"
#include "table/fp16/fitted/sqrt.inc"
#include "table/fp16/fitted/square.inc"
#include "table/fp16/fitted/swish.inc"
#include "table/fp16/fitted/tanh.inc"
// clang-format on

/// Where the numbers of a function are.
struct Row {
  std::string_view function;
  Fp16Reduction reduction;
  size_t pieces;
  const uint32_t* cut_points;       // null where
  const uint16_t* half_cut_points;  // these hold them
  const uint32_t* values;
  const uint16_t* half_values;
  const Fp16Certificate* certificates;
};

template <typename Cut, size_t pieces>
constexpr Row row(std::string_view function, const Fitted<Cut, pieces>& fitted,
                  Fp16Reduction reduction = Fp16Reduction::kNone) {
  Row result{function, reduction, pieces, nullptr, nullptr, fitted.values, fitted.half_values, fitted.certificates};
  if constexpr (sizeof(Cut) == 4) {
    result.cut_points = fitted.cut_points;
  } else {
    result.half_cut_points = fitted.cut_points;
  }
  return result;
}

constexpr Row kRows[] = {
    row("silu", kSilu),
    row("gelu", kGelu),
    row("gelu_tanh", kGeluTanh),
    row("sigmoid", kSigmoid),
    row("tanh", kTanh),
    row("exp", kExp, Fp16Reduction::kExp),
    row("log", kLog, Fp16Reduction::kLog),
    row("sin", kSin, Fp16Reduction::kSin),
    row("cos", kCos, Fp16Reduction::kCos),
    row("mish", kMish),
    row("softplus", kSoftplus),
    row("elu", kElu),
    row("selu", kSelu),
    row("hardswish", kHardswish),
    row("hardsigmoid", kHardsigmoid),
    row("swish", kSwish),
    row("quick_gelu", kQuickGelu),
    row("relu", kRelu),
    row("leaky_relu", kLeakyRelu),
    row("relu6", kRelu6),
    row("erf", kErf),
    row("sqrt", kSqrt, Fp16Reduction::kSqrt),
    row("rsqrt", kRsqrt, Fp16Reduction::kRsqrt),
    row("reciprocal", kReciprocal, Fp16Reduction::kReciprocal),
    row("square", kSquare),
    row("inverse_sigmoid", kInverseSigmoid, Fp16Reduction::kInverseSigmoid),
};

}  // namespace

Result<Fp16Table> builtin_fp16_table(std::string_view function, Fp16Model model, bool half_values) {
  const DefaultFloatMode mode;
  const auto found =
      std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.function == function; });
  if (found == std::end(kRows)) {
    std::string names;
    for (const Row& r : kRows) names += (names.empty() ? "" : ", ") + std::string(r.function);
    return Status(StatusCode::kInvalidArgument, "function is \"" + std::string(function) + "\", must be one of: " +
                                                    names + nearest_hint(function, fp16_functions()));
  }
  const int32_t model_number = static_cast<int32_t>(model);
  if (model_number < 0 || model_number > 2)
    return Status(StatusCode::kInvalidArgument, "model is " + std::to_string(model_number) + ", must be 0..2");

  Fp16Table table;
  table.function = function;
  table.model = model;
  table.half_values = half_values;
  table.reduction = found->reduction;
  const size_t in_group = static_cast<size_t>(model_number);
  const size_t in_all = in_group + (half_values ? 3 : 0);
  table.certificate = found->certificates[in_all];
  const auto read = [](const uint32_t* bits, const uint16_t* half_bits, size_t begin, size_t count) {
    std::vector<float> floats(count);
    for (size_t i = 0; i < count; ++i)
      floats[i] = bits != nullptr ? __builtin_bit_cast(float, bits[begin + i]) : f16_to_f32(half_bits[begin + i]);
    return floats;
  };
  for (size_t i = 0; i < found->pieces; ++i) {
    Fp16Pieces& pieces = table.pieces.emplace_back();
    pieces.steps = fp16_steps_259();
    pieces.cut_points =
        read(found->cut_points, found->half_cut_points, (in_all * found->pieces + i) * kCutPoints, kCutPoints);
    pieces.values = read(half_values ? nullptr : found->values, found->half_values,
                         (in_group * found->pieces + i) * kValues, kValues);
    set_scales(pieces, model);
  }
  return table;
}

}  // namespace isobit
