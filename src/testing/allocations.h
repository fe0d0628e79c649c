// SPDX-License-Identifier: Apache-2.0
// How often a call allocates, for test programs that link allocations.cc: it counts for the whole process.
#ifndef ISOBIT_TESTING_ALLOCATIONS_H_
#define ISOBIT_TESTING_ALLOCATIONS_H_

#include "isobit/parallel.h"

namespace isobit::testing {

/// Begins at 0.
void start_counting_allocations();
/// Those of all threads since then.
int stop_counting_allocations();

/// Allocations of all threads while `body` runs.
template <typename Body>
int allocations_of(const Body& body) {
  start_counting_allocations();
  body();
  return stop_counting_allocations();
}

/// Waits until every thread of the pool runs: under a sanitizer its first steps allocate.
inline void start(ThreadPool& pool) {
  pool.for_ranges(pool.threads(), [](int, int64_t, int64_t) {});
}

}  // namespace isobit::testing

#endif  // ISOBIT_TESTING_ALLOCATIONS_H_
