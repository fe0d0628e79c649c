// SPDX-License-Identifier: Apache-2.0
// The arrays of a call of training: their sizes, and that what is written is apart from all others.
#ifndef ISOBIT_GRU_TRAINING_ARRAYS_H_
#define ISOBIT_GRU_TRAINING_ARRAYS_H_

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "isobit/status.h"

namespace isobit {

inline Status refuse_training(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

/// An array of the call, for its checks.
struct TrainingArray {
  std::string name, axes;
  const void* data;
  size_t size;  // elements
  size_t element_bytes;
  int64_t wanted;
  bool optional = false;  // may be empty
  bool written = false;

  template <typename T>
  TrainingArray(std::string array, std::string shape, std::span<T> values, int64_t count, bool may_be_empty = false)
      : name(std::move(array)),
        axes(std::move(shape)),
        data(values.data()),
        size(values.size()),
        element_bytes(sizeof(T)),
        wanted(count),
        optional(may_be_empty),
        written(!std::is_const_v<T>) {}
};

inline Status check_training_arrays(const std::string& who, const std::vector<TrainingArray>& arrays) {
  for (const TrainingArray& a : arrays)
    if (a.size != static_cast<size_t>(a.wanted) && !(a.optional && a.size == 0))
      return refuse_training(who + ": " + a.name + " has " + std::to_string(a.size) + " elements, must have " +
                             std::to_string(a.wanted) + ": [" + a.axes + "]");
  for (const TrainingArray& a : arrays)
    for (const TrainingArray& b : arrays) {
      const auto begin = [](const TrainingArray& array) { return reinterpret_cast<uintptr_t>(array.data); };
      const auto end = [&](const TrainingArray& array) { return begin(array) + array.size * array.element_bytes; };
      if (&a != &b && a.written && a.size > 0 && b.size > 0 && begin(a) < end(b) && begin(b) < end(a))
        return refuse_training(who + ": " + a.name + " overlaps " + b.name + ", must be apart from it");
    }
  return {};
}

}  // namespace isobit

#endif  // ISOBIT_GRU_TRAINING_ARRAYS_H_
