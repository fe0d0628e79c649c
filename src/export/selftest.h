// SPDX-License-Identifier: Apache-2.0
// The vectors of NAME_selftest.
#ifndef ISOBIT_EXPORT_SELFTEST_H_
#define ISOBIT_EXPORT_SELFTEST_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/random.h"
#include "isobit/export.h"
#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit {

struct Selftest {
  std::vector<int64_t> x, y;  // codes
  CSelftestCoverage coverage;
};

/// Codes for rows of `width`: any, and in every third row the ends of the grid only.
void random_codes_of(Random& random, const Grid& grid, int64_t width, std::span<std::byte> codes);
std::vector<int64_t> widened_codes(std::span<const std::byte> codes, Dtype dtype);

/// So many steps from the first state of a model: of several seeds the x with the most clamps and ties.
Result<Selftest> make_selftest(const GruModel& model, int64_t steps);

}  // namespace isobit

#endif  // ISOBIT_EXPORT_SELFTEST_H_
