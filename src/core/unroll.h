// SPDX-License-Identifier: Apache-2.0
// Loops that are unrolled before the compiler decides which arrays live in registers. Of internal linkage, as the files
// of instruction sets include it.
#ifndef ISOBIT_CORE_UNROLL_H_
#define ISOBIT_CORE_UNROLL_H_

#include <utility>

namespace isobit {
namespace {

template <int kValue>
struct Index {
  constexpr operator int() const { return kValue; }  // NOLINT: implicit on purpose
};

#define ISOBIT_UNROLLED(i) [&](auto i) __attribute__((always_inline))

template <typename Body, int... kValues>
[[gnu::always_inline]] inline void unroll_over(const Body& body, std::integer_sequence<int, kValues...>) {
  (body(Index<kValues>{}), ...);
}

/// body(Index<0>), ..., body(Index<kCount - 1>). Loops with #pragma unroll are unrolled by g++ only after it has
/// decided which arrays live in registers, and then it stores every accumulator in every iteration.
template <int kCount, typename Body>
[[gnu::always_inline]] inline void unroll(const Body& body) {
  unroll_over(body, std::make_integer_sequence<int, kCount>{});
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_CORE_UNROLL_H_
