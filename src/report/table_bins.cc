// SPDX-License-Identifier: Apache-2.0
#include "report/table_bins.h"

#include "isobit/text.h"
#include "table/fp16/error.h"

namespace isobit {
namespace {

double error_at(const Fp16Table& table, const std::vector<uint16_t>& exact, uint16_t x) {
  return fp16_ulp(fp16_absolute_error(table(x), exact[x]), exact[x]);
}

}  // namespace

int order_of(double x) {
  int low = -kLastFinite, high = kLastFinite;
  while (low < high) {
    const int middle = low + (high - low + 1) / 2;
    if (value_of_order(middle) <= x) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

Bin total_of(const std::vector<Bin>& bins) {
  Bin total;
  for (const Bin& bin : bins) total.add(bin);
  return total;
}

std::vector<Bin> bins_of_codes(const ActivationTable& table, const std::vector<int32_t>& exact, int64_t width) {
  const int64_t first = table.input.min(), last = table.input.max();
  std::vector<Bin> bins;
  for (int64_t begin = first; begin <= last; begin += width) {
    Bin bin;
    bin.first = static_cast<double>(begin);
    for (int64_t q = begin; q <= std::min(begin + width - 1, last); ++q) {
      bin.add(std::abs(static_cast<double>(table(q) - exact[static_cast<size_t>(q - first)])));
    }
    bins.push_back(bin);
  }
  return bins;
}

Status check_exact(size_t size, size_t expected) {
  if (size == expected) return {};
  return {StatusCode::kInvalidArgument, format("exact results: %zu codes, must be %zu", size, expected)};
}

Bin bin_of_orders(const Fp16Table& table, const std::vector<uint16_t>& exact, int first, int last) {
  Bin bin;
  bin.first = first;
  for (int order = first; order <= last; ++order) {
    const uint16_t code = code_of_order(order);
    bin.add(error_at(table, exact, code));
    if (order == 0) bin.add(error_at(table, exact, 0x8000));
  }
  return bin;
}

std::string short_number(double value) {
  return std::abs(value) >= 1000 && std::abs(value) < 1e6 ? format("%.0f", value) : format("%.4g", value);
}

}  // namespace isobit
