// SPDX-License-Identifier: Apache-2.0
// Everything of a GRU step after the two integer products, for one sequence: rescale to ih and hh, gate inputs,
// table look-ups, new state. numerics.md, section 7, rewritten so that a lane needs no zero points:
// every tensor is held as code - zero point, clamps are shifted accordingly, and each activation table of at most
// 16 input bits is expanded to one 16-bit entry per code.
#ifndef ISOBIT_GRU_GATES_H_
#define ISOBIT_GRU_GATES_H_

#include <cstdint>

#include "isobit/rounding.h"

namespace isobit {

/// round_shift(x * multiplier, right - left), one of left and right is zero.
struct GateRescale {
  int32_t multiplier;
  int32_t left;
  int32_t right;
};

/// Constants of one direction of one layer. Arrays over rows are [3][padded_hidden], gate order u, r, n; padding rows
/// hold zeros (multipliers 1). Plain data: instruction-set files read it.
struct GateConstants {
  int64_t padded_hidden;          // H rounded up to 16
  const int32_t* shift_ih;        // acc -> ih; >= 0 for the s32 kernels
  const int32_t* shift_hh;
  const int32_t* multiplier_ih;   // read by the s64 kernels only
  const int32_t* multiplier_hh;
  int64_t ih_low, ih_high;        // grid limits minus zero point
  int64_t hh_low, hh_high;
  GateRescale ih_to_gate[3];
  GateRescale hh_to_gate[3];      // [2] is r * hh -> n_in
  int64_t gate_offset[3];         // zero point - qmin of the gate input: its code becomes a table index
  int64_t gate_last[3];           // 2^bits - 1
  const int16_t* table[3];        // output code - table_base, 2^bits entries and one of padding
  int64_t table_offset[3];        // table_base - zero point of the output
  GateRescale n_to_h;
  GateRescale u_to_one;
  int64_t one;                    // code of 1 minus z_u
  int64_t h_low, h_high;
  int64_t h_to_unsigned;          // z_h - qmin of the storage type: u = h_diff + h_to_unsigned is what products read
  int64_t planes;                 // 1: u < 256; 2: low and high byte
  Rounding rounding;
};

/// acc_x, acc_h: [3][padded_hidden], complete accumulators (start values included). h_diff: [padded_hidden], code of h
/// minus zero point, in and out. low: u mod 256; high: u / 256 when planes is 2. Lanes past H are written with
/// whatever their zero rows give.
using GatesS32 = void (*)(const GateConstants& c, const int32_t* acc_x, const int32_t* acc_h, int32_t* h_diff,
                          uint8_t* low, uint8_t* high);
using GatesS64 = void (*)(const GateConstants& c, const int64_t* acc_x, const int64_t* acc_h, int32_t* h_diff,
                          uint8_t* low, uint8_t* high);

#define ISOBIT_GATES_ROW(path, name, acc) void name(const GateConstants&, const acc*, const acc*, int32_t*, uint8_t*, uint8_t*);
#include "gru/kernels.inc"
#undef ISOBIT_GATES_ROW

}  // namespace isobit

#endif  // ISOBIT_GRU_GATES_H_
