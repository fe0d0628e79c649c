// SPDX-License-Identifier: Apache-2.0
// The kernels of a GRU step beside the integer products, one set an instruction set: the gates (rescale to ih and hh,
// gate inputs, table look-ups, new state: numerics.md, section 7) and the conversions of input and output rows
// (section 3). Rewritten so that a lane needs no zero points: every tensor is held as code - zero point, clamps are
// shifted accordingly, and each activation table of at most 16 input bits is expanded to one 16-bit entry per code.
#ifndef ISOBIT_GRU_CPU_KERNELS_H_
#define ISOBIT_GRU_CPU_KERNELS_H_

#include <cstdint>

#include "core/hd.h"
#include "core/magic.h"
#include "isobit/rounding.h"

namespace isobit {

/// Hidden units of one tile: each gate has one tile of weight rows for it.
inline constexpr int64_t kUnitsPerTile = 16;

/// Rows of W, R and everything that belongs to them are in tile order: the 16 rows of gate u of the first 16 units,
/// of r, of n, then those of the next 16 units, so that whatever one unit needs lies together.
ISOBIT_HD constexpr int64_t tile_row(int64_t gate, int64_t unit) {
  return unit / kUnitsPerTile * (3 * kUnitsPerTile) + gate * kUnitsPerTile + unit % kUnitsPerTile;
}

/// round_shift(x * multiplier, right - left), one of left and right is zero. half and tie_mask as in RowRatios.
struct UniformRatio {
  int32_t multiplier;
  int32_t left;
  int32_t right;
  int64_t half;
  int64_t tie_mask;
};

/// acc -> ih or hh: one ratio a row, in tile order; padding rows have shift 0 and multiplier 1.
struct RowRatios {
  const int32_t* shift;       // >= 0 for the s32 kernels
  const int32_t* multiplier;  // read by the s64 kernels only
  const int32_t* half;        // 2^(shift-1), or 0 for shift 0; read by the s32 kernels only
  const int32_t* tie_mask;    // 2^shift - 1, or -1 for shift 0; read by the s32 kernels only
};

/// Constants of one direction of one layer. Plain data: instruction-set files read it.
struct GateConstants {
  RowRatios ih, hh;
  int64_t ih_low, ih_high;  // grid limits minus zero point
  int64_t hh_low, hh_high;
  UniformRatio ih_to_gate[3];
  UniformRatio hh_to_gate[3];  // [2] is r * hh -> n_in
  int64_t gate_offset[3];      // zero point - qmin of the gate input: its code becomes a table index
  int64_t gate_last[3];        // 2^bits - 1
  const uint16_t* table[3];    // output code - qmin, 2^bits entries and one of padding
  int64_t table_offset[3];     // qmin - zero point of the output
  UniformRatio n_to_h;
  UniformRatio u_to_one;
  int64_t one;  // code of 1 minus z_u
  int64_t h_low, h_high;
  int64_t h_to_unsigned;  // z_h - qmin of the storage type: h_diff + h_to_unsigned is what products read
  int64_t planes;         // 1: it is below 256; 2: low and high byte
  Rounding rounding;
  bool any_left;          // one of the uniform ratios shifts to the left
  float saved_scales[4];  // of u, r, n and hh, for GateRecord
};

/// What training keeps of some units of a step (numerics.md, section 14); rows are `stride` elements apart.
struct GateRecord {
  float* saved;      // [4][units]: u, r, n and hh_n as numbers
  uint16_t* passes;  // [units], the bits of gru/clamps.h
  uint16_t* above;   // [units]: 1 where the number was above the grid; of learned grids, else null
  float* rests;      // [kClamps][units]: what roundings added, 0 where the clamp did not pass; the same
  int64_t stride;
};

/// The same for kernels that compute on integers held in T = float or double, exactly: one fused multiply-add rounds
/// x * ratio to an integer, with the rounding direction in the instruction. They need the bounds of GruProof::gates_f32
/// or gates_f64.
template <typename T>
struct FloatGateConstants {
  const T* ih;  // ratio of each row, acc -> ih, in tile order
  const T* hh;
  T ih_low, ih_high;  // grid limits minus zero point
  T hh_low, hh_high;
  T ih_to_gate[3];
  T hh_to_gate[3];              // [2] is r * hh -> n_in
  T gate_low[3], gate_high[3];  // grid limits minus zero point
  T gate_to_index[3];           // magic number + zero point - qmin: added, it leaves the table index in the low bits
  const uint16_t* table[3];
  const uint8_t* byte_table[3];
  int64_t table_offset[3];
  T n_to_h;
  T u_to_one;
  T one;
  T h_low, h_high;
  int64_t h_to_unsigned;
  int64_t planes;
  Rounding rounding;
};

/// Units [unit, unit + units), both multiples of 16, of one sequence. acc_x, acc_h: complete accumulators (start values
/// included) of these units' rows, in tile order. h_diff, low, high: of all units; h_diff holds code of h minus zero
/// point, in and out; low and high receive the bytes of h_diff + h_to_unsigned, high when planes is 2. Units past H
/// get whatever their zero rows give.
template <typename Constants, typename Acc>
using Gates = void (*)(const Constants& c, int64_t unit, int64_t units, const Acc* acc_x, const Acc* acc_h,
                       int32_t* h_diff, uint8_t* low, uint8_t* high);
using GatesS32 = Gates<GateConstants, int32_t>;
using GatesS64 = Gates<GateConstants, int64_t>;
using GatesF32 = Gates<FloatGateConstants<float>, int32_t>;
using GatesF64 = Gates<FloatGateConstants<double>, int64_t>;
/// The same with a record, of unit `unit` on.
template <typename Acc>
using RecordGates = void (*)(const GateConstants& c, int64_t unit, int64_t units, const Acc* acc_x, const Acc* acc_h,
                             int32_t* h_diff, uint8_t* low, uint8_t* high, const GateRecord& record);

/// Float to activation planes: clamp(rint(x * inverse_scale), low, high) + to_unsigned. No x is NaN.
struct RowQuantizer {
  float inverse_scale;
  float low, high;      // grid limits minus zero point, exact
  int32_t to_unsigned;  // zero point - qmin of the storage type
  int32_t planes;
};

struct GruKernels {
  GatesS32 gates_s32;
  GatesS64 gates_s64;
  GatesF32 gates_f32;        // null: none
  GatesF32 gates_f32_bytes;  // for layers whose three byte_tables are not null; null: none
  GatesF64 gates_f64;        // null: none
  RecordGates<int32_t> record_s32;
  RecordGates<int64_t> record_s64;
  /// Index of the first NaN, or count.
  int64_t (*find_nan)(const float* x, int64_t count);
  /// Writes at most 15 bytes beyond count, never beyond the next multiple of 16.
  void (*quantize_row)(const RowQuantizer& q, const float* x, int64_t count, uint8_t* low, uint8_t* high);
  /// 8- or 16-bit codes (planes 1 or 2) to activation planes: the bytes of u = code ^ flip, flip being the sign bit of
  /// signed codes; and diff = u - to_unsigned where diff is not null.
  void (*load_row)(const void* codes, int64_t count, int32_t planes, int32_t flip, int32_t to_unsigned, uint8_t* low,
                   uint8_t* high, int32_t* diff);
  /// y = diff * scale in float32.
  void (*dequantize_row)(const int32_t* diff, int64_t count, float scale, float* y);
  /// y = diff + zero_point as 8- or 16-bit codes (planes 1 or 2), modulo 2^bits.
  void (*store_row)(const int32_t* diff, int64_t count, int32_t zero_point, int32_t planes, void* y);
};

#define ISOBIT_GRU_KERNELS(path, name) GruKernels name();
#include "gru/cpu/kernels.inc"
#undef ISOBIT_GRU_KERNELS

/// A part of avx512vnni that needs AVX-512 VBMI as well; null where the processor lacks it.
GatesF32 gru_gates_f32_bytes_avx512vbmi();

}  // namespace isobit

#endif  // ISOBIT_GRU_CPU_KERNELS_H_
