// SPDX-License-Identifier: Apache-2.0
// The real functions behind FP16 tables, from 50-digit arithmetic.
#ifndef ISOBIT_TABLE_FP16_EXACT_H_
#define ISOBIT_TABLE_FP16_EXACT_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "isobit/status.h"

namespace isobit {

struct Fp16Exact {
  std::vector<uint16_t> codes;  // correctly rounded, at every float16 code
  /// The nearest float64; NaN and infinities where the function has them. Far in a tail, where the result is decided, a
  /// value with the same result may stand in its place; 0 is always a true 0.
  std::vector<double> values;
};
Result<Fp16Exact> fp16_exact_values(std::string_view function, double beta);
/// Of a function of the user's own, as fit_fp16_table takes it.
Result<Fp16Exact> fp16_exact_values(const std::vector<double>& values);

/// The function at any finite x, as the nearest float64. The function's name is known.
double fp16_function_at(std::string_view function, double beta, double x);

/// Correctly rounded, ties to even; from 65520 on, infinity.
uint16_t f64_to_f16(double value);

}  // namespace isobit

#endif  // ISOBIT_TABLE_FP16_EXACT_H_
