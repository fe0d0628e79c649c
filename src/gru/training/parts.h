// SPDX-License-Identifier: Apache-2.0
// How threads share the work of training.
#ifndef ISOBIT_GRU_TRAINING_PARTS_H_
#define ISOBIT_GRU_TRAINING_PARTS_H_

#include <cstdint>

#include "isobit/parallel.h"

namespace isobit {

inline int64_t pieces(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }

/// body(part, begin, end) of parts of `items`, each of which has results of its own.
template <typename Body>
void in_parts(ThreadPool* pool, int64_t items, const Body& body) {
  if (pool == nullptr) {
    if (items > 0) body(0, int64_t{0}, items);
  } else {
    pool->for_ranges(items, body);
  }
}

}  // namespace isobit

#endif  // ISOBIT_GRU_TRAINING_PARTS_H_
