// SPDX-License-Identifier: Apache-2.0
// A rescale of integers that are held exactly in floating-point lanes; F wraps the lanes of one type. One fused
// multiply-add rounds x * ratio + kMagic once, to a multiple of one, in the direction that the instruction names,
// whatever the program has set. Exact where ratio is and |x * ratio| stays below an eighth of kMagic.
#ifndef ISOBIT_CORE_RESCALE_LANES_H_
#define ISOBIT_CORE_RESCALE_LANES_H_

#include "core/hd.h"
#include "core/magic.h"
#include "isobit/rounding.h"

namespace isobit {
namespace {  // each including file has its own copy, compiled for its instruction set

/// The integer nearest to x * ratio by kMode.
template <typename F, Rounding kMode>
ISOBIT_HD typename F::Lanes rescale(typename F::Lanes x, typename F::Lanes ratio);

/// kMagic + the integer nearest to x * ratio by kMode.
template <typename F, Rounding kMode>
ISOBIT_HD typename F::Lanes rescale_to_magic(typename F::Lanes x, typename F::Lanes ratio) {
  using Lanes = typename F::Lanes;
  using T = typename F::Scalar;
  const Lanes magic = F::set(kMagic<T>);
  if constexpr (kMode == Rounding::kNearestEven) return F::fma_even(x, ratio, magic);
  if constexpr (kMode == Rounding::kFloor) return F::fma_down(x, ratio, magic);
  if constexpr (kMode == Rounding::kNearestUp) {
    // floor(floor(2 y) / 2 + 1/2) is floor(y + 1/2); half the magic number rounds to multiples of one half.
    const Lanes halves = F::fma_down(x, ratio, F::set(kMagic<T> / 2));
    return F::add_down(halves, F::set(kMagic<T> / 2 + T{0.5}));
  }
  return F::add(rescale<F, kMode>(x, ratio), magic);
}

template <typename F, Rounding kMode>
ISOBIT_HD typename F::Lanes rescale(typename F::Lanes x, typename F::Lanes ratio) {
  using T = typename F::Scalar;
  if constexpr (kMode == Rounding::kNearestAway)
    return F::with_sign(rescale<F, Rounding::kNearestUp>(F::abs(x), ratio), x);  // ties away from zero
  return F::sub(rescale_to_magic<F, kMode>(x, ratio), F::set(kMagic<T>));
}

}  // namespace
}  // namespace isobit

#endif  // ISOBIT_CORE_RESCALE_LANES_H_
