// SPDX-License-Identifier: Apache-2.0
// The clamps of a unit that training keeps (docs/numerics.md, section 14), as bits. Included by the files of each
// instruction set.
#ifndef ISOBIT_GRU_CLAMPS_H_
#define ISOBIT_GRU_CLAMPS_H_

namespace isobit {

/// Bits of a unit's clamps, 1 where the number was in the grid: ih and hh, of u, r and n; u_in, r_in, n_in; h'.
inline constexpr int kPassIh = 0, kPassHh = 3, kPassGate = 6, kPassState = 9;
inline constexpr int kClamps = 10;
inline constexpr unsigned kPassAll = (1u << kClamps) - 1;

}  // namespace isobit

#endif  // ISOBIT_GRU_CLAMPS_H_
