// SPDX-License-Identifier: Apache-2.0
// Errors of tables over ranges of their inputs, as pictures and bars show them.
#ifndef ISOBIT_REPORT_TABLE_BINS_H_
#define ISOBIT_REPORT_TABLE_BINS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/half.h"
#include "isobit/fp16_table.h"
#include "isobit/status.h"
#include "isobit/table.h"

namespace isobit {

inline constexpr int kLastFinite = 0x7bff;

inline double value_of(uint16_t code) { return static_cast<double>(f16_to_f32(code)); }

/// Finite float16 numbers in ascending order; both zeros have 0.
inline uint16_t code_of_order(int order) { return static_cast<uint16_t>(order >= 0 ? order : 0x8000 | -order); }
inline double value_of_order(int order) { return value_of(code_of_order(order)); }

/// The order of the last float16 number that is not above x.
int order_of(double x);

/// Of a range of inputs. Infinite errors are counted, and are in neither the maximum nor the mean.
struct Bin {
  double first = 0;
  double max = 0, sum = 0;
  int64_t count = 0, exact = 0, infinite = 0;

  void add(double error) {
    ++count;
    if (error == 0) ++exact;
    if (std::isinf(error)) {
      ++infinite;
    } else {
      max = std::max(max, error);
      sum += error;
    }
  }
  void add(const Bin& other) {
    max = std::max(max, other.max);
    sum += other.sum;
    count += other.count;
    exact += other.exact;
    infinite += other.infinite;
  }
  [[nodiscard]] double mean() const { return count == infinite ? 0 : sum / static_cast<double>(count - infinite); }
};

Bin total_of(const std::vector<Bin>& bins);
/// Errors at the inputs of order `first` to `last`.
Bin bin_of_orders(const Fp16Table& table, const std::vector<uint16_t>& exact, int first, int last);

/// Errors in LSB at all input codes, ascending: a bin has `width` codes, the last one what is left.
std::vector<Bin> bins_of_codes(const ActivationTable& table, const std::vector<int32_t>& exact, int64_t width);

/// Refuses another number of exact results than there are inputs.
Status check_exact(size_t size, size_t expected);

/// Four digits, or a whole number from 1000 on.
std::string short_number(double value);

}  // namespace isobit

#endif  // ISOBIT_REPORT_TABLE_BINS_H_
