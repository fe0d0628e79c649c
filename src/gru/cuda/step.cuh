// SPDX-License-Identifier: Apache-2.0
// One step of a layer in one launch, for every device: nothing stays in a processor between steps, the weights come
// from the second-level cache each time.
//
// The cut. A block owns 8 hidden units, all three gates of W and R, all columns: the weights are the 32 x 8 operand of
// mma.m16n8k32, the activations of 16 sequences the 16 x 32 one. Rows of 8 units rather than 16 make 128 blocks of
// H = 1024, one for each processor of a large device and with the same share of the weights, 256 of H = 2048 and still
// 16 of H = 128; and nothing has to cross between blocks before the gates. Half of an mma is wasted on 8 sequences or
// fewer, where the kernel waits for weights anyway. The warps of a block split the columns, some those of W, some those
// of R, in pieces of 64: 16 bytes a lane and gate. Their sums meet in shared memory, and a warp computes the gates of
// the 8 units of a sequence.
//
// Time of a single step is latency. So a warp asks for all its weights at once and before it waits for the grid before
// it (programmatic dependent launch, sm_90 and later): they are constant, all else is read and written after that wait.
// x and h are read as they are, 16 aligned bytes at a time; what lies past the end of a row meets weights of zero.
// Where the caller's rows are not aligned, or floats, step_prepare has copied them to rows that are aligned codes.
//
// Who reads and writes the state. Any block may read all of h after another has finished, so h_(s+1) must not be
// written over h_s. The first step reads the caller's state, the last one writes the next; between them the state is in
// one of two buffers in turn. So a run of one step is one launch, unless both states of the caller are one: then
// step_prepare copies it first. (To do without would take a counter of the blocks that have read h, and memory for it
// that somebody has set to zero: a workspace comes as it is.) Grid s + 1 writes what grid s reads only after its wait
// for all of grid s, and every block waits, so the end of a grid is the end of all before it.
#ifndef ISOBIT_GRU_CUDA_STEP_CUH_
#define ISOBIT_GRU_CUDA_STEP_CUH_

#include <cuda_pipeline.h>

#include <cstdint>
#include <type_traits>

#include "core/cuda/ptx.cuh"
#include "core/cuda/quantize.cuh"
#include "gru/cuda/gates.cuh"
#include "gru/cuda/gru.h"
#include "gru/reference.h"
#include "product/cuda/mma.cuh"

namespace isobit::cuda {

inline constexpr int kStepWarps = 8;                // of a block, at most
inline constexpr int kStepUnits = 8;                // of a block
inline constexpr int kStepSequences = 16;           // of an mma; 8 where that is enough
inline constexpr int kStepDepth = 64;               // columns of a piece
inline constexpr int kStepSharedEntries = 3 * 256;  // larger tables stay in global memory
inline constexpr int kPrepareThreads = 256;

// ---- Lanes
//
// A kernel takes one of F32Lanes, F64Lanes, S64Lanes, with
//   Row: of a row of W and of R, the start value of its accumulator and what rescales it; row() makes it on the host;
//   next(): the new unsigned code of h from that before. rows[(3 * side + gate) * kStride] and sums[side][gate]: side 0
//     is W x, 1 is R h; a sum is of the low bytes of the activations, and of the high ones where kPlanes is 2.

template <typename Acc, int kPlanes>
__device__ __forceinline__ Acc accumulator(Acc start, const int32_t (&sums)[kPlanes]) {
  using Bits = std::make_unsigned_t<Acc>;
  Bits acc = static_cast<Bits>(start) + static_cast<Bits>(static_cast<Acc>(sums[0]));
  if constexpr (kPlanes == 2) acc += static_cast<Bits>(static_cast<Acc>(sums[1])) << 8;
  return static_cast<Acc>(acc);
}

/// Acc: a start value alone may need more bits than the complete accumulator, which fits Real.
template <typename Real, typename Acc>
struct RealLanes {
  using Lane = Real;
  using Constants = StepGates<Real>;
  struct Row {
    Acc start;
    Real ratio;
  };
  static Row row(int64_t start, const RescaleParameters& ratio) {
    return {static_cast<Acc>(start), ratio_of<Real>(ratio)};
  }

  /// ih rescaled to the gate inputs.
  template <int kPlanes>
  static __device__ __forceinline__ Real from_x(const Constants& c, int gate, const Row& row,
                                                const int32_t (&sums)[kPlanes]) {
    const auto acc = static_cast<Real>(accumulator(row.start, sums));
    return rescale_even(clamp_lane(rescale_even(acc, row.ratio), c.ih_low, c.ih_high), c.ih_to_gate[gate]);
  }
  template <int kPlanes>
  static __device__ __forceinline__ Real hh(const Constants& c, const Row& row, const int32_t (&sums)[kPlanes]) {
    Real value[1];
    rescale_hh(c.cell, {static_cast<SumOf<Real>>(accumulator(row.start, sums))}, {row.ratio}, value);
    return value[0];
  }
  template <int N>
  static __device__ __forceinline__ void cells(const Constants& c, const uint8_t* tables, const Real (&of_x)[3][N],
                                               const Real (&of_h)[3][N], const uint32_t (&codes)[N],
                                               uint32_t (&fresh)[N]) {
    Real h[N];
#pragma unroll
    for (int i = 0; i < N; ++i) h[i] = to_lane<Real>(static_cast<int32_t>(codes[i] - c.cell.h_to_unsigned));
    const auto look_up = [&](int gate, uint32_t bits) {
      return *reinterpret_cast<const float*>(tables + (bits * 4 + c.cell.gate_to_byte[gate]));
    };
    gru_gates(c.cell, look_up, of_x, of_h, h, fresh);
#pragma unroll
    for (int i = 0; i < N; ++i) fresh[i] &= 0xffff;
  }

  template <int kStride, int kPlanes>
  static __device__ __forceinline__ uint32_t next(const Constants& c, const uint8_t* tables, const Row* rows,
                                                  const int32_t (&sums)[2][3][kPlanes], uint32_t code) {
    Real of_x[3][1], of_h[3][1];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      of_x[gate][0] = from_x(c, gate, rows[gate * kStride], sums[0][gate]);
      of_h[gate][0] = hh(c, rows[(3 + gate) * kStride], sums[1][gate]);
    }
    uint32_t fresh[1];
    cells(c, tables, of_x, of_h, {code}, fresh);
    return fresh[0];
  }
};
using F32Lanes = RealLanes<float, int32_t>;
using F64Lanes = RealLanes<double, int64_t>;

/// The reference itself: any rounding, any multiplier.
struct S64Lanes {
  struct Constants {
    CellView cell;
    int64_t h_offset;  // code + h_offset is the unsigned code
  };
  struct Row {
    int64_t start;
    RescaleParameters ratio;
  };
  static Row row(int64_t start, const RescaleParameters& ratio) { return {start, ratio}; }

  template <int kStride, int kPlanes>
  static __device__ __forceinline__ uint32_t next(const Constants& c, const uint8_t*, const Row* rows,
                                                  const int32_t (&sums)[2][3][kPlanes], uint32_t code) {
    const CellView& cell = c.cell;
    const auto linear = [&](int side, int gate, const CodeRange& out) {
      const Row& row = rows[(3 * side + gate) * kStride];
      const int64_t acc = accumulator(row.start, sums[side][gate]);
      return clamp_to(out, rescale(row.ratio, acc, cell.rounding) + out.zero_point);
    };
    int64_t ih[3], hh[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      ih[gate] = linear(0, gate, cell.ih);
      hh[gate] = linear(1, gate, cell.hh);
    }
    return static_cast<uint32_t>(reference_cell(cell, ih, hh, static_cast<int64_t>(code) - c.h_offset).h + c.h_offset);
  }
};

// ---- The kernels

/// W and x_t, or R and h.
struct StepSide {
  const uint4* fragments;  // [groups][pieces][gate][lane]
  const uint8_t* codes;    // of x or h, from a multiple of kRowAlignment on, as is every row
  int64_t sequence_bytes;  // from a row to the next one
  int32_t row_bytes;       // that may be read, a multiple of kRowAlignment
  int32_t code_bytes, pieces;
  uint32_t flip;  // of four codes' highest bytes: makes them unsigned
};

template <typename Lanes>
struct StepArgs {
  typename Lanes::Constants gates;
  StepSide sides[2];
  const std::byte* rows;  // Lanes::Row [groups][side][gate][8]
  const float* tables;
  int32_t table_entries;
  int32_t warps, x_warps;  // that multiply; of them, with W
  int32_t batch, hidden;
  void* next;  // codes of the next state
  void* y;     // codes or floats of this step
  int64_t next_sequence, y_sequence;
  float y_scale;    // 0: codes; else floats, differences from z_h by this
  uint32_t flip;    // the sign bit of signed codes of h
  uint32_t h_zero;  // unsigned
  int32_t t;
  const int64_t* lengths;  // [batch], or null
  const uint8_t* mask;     // of this step [batch][mask_width], or null
  int64_t mask_width;
};

/// Rows of codes to be copied to aligned rows, padded with zeros.
struct CodeRows {
  const uint8_t* from;    // or floats
  DeviceStrides strides;  // in bytes
  uint32_t rows;          // steps * batch
  int32_t bytes;          // of a row of codes
  int32_t padded_bytes;   // of a copied row
  uint8_t* to;
};
struct PrepareArgs {
  CodeRows sets[3];  // x, and the state twice: padding is set in both buffers
  DeviceFloats floats;
  int32_t x_code_bytes;  // what floats of x become
  uint32_t x_code_mask;  // the bits of such a code
  uint32_t batch;
};

/// The new code of a cell, or where the cell keeps its state the old one, to the next state and to y.
template <typename Lanes>
__device__ __forceinline__ void put_state(const StepArgs<Lanes>& a, int64_t n, int unit, uint32_t fresh, uint32_t old) {
  const bool frozen = a.lengths != nullptr && a.t >= a.lengths[n];
  const bool keeps = frozen || (a.mask != nullptr && a.mask[n * a.mask_width + unit] == 0);
  const uint32_t code = keeps ? old : fresh;
  const auto put = [&](void* codes, int64_t index, uint32_t value) {
    if (a.sides[1].code_bytes == 2) {
      static_cast<uint16_t*>(codes)[index] = static_cast<uint16_t>(value ^ a.flip);
    } else {
      static_cast<uint8_t*>(codes)[index] = static_cast<uint8_t>(value ^ a.flip);
    }
  };
  put(a.next, n * a.next_sequence + unit, code);
  const uint32_t shown = frozen ? a.h_zero : code;
  if (a.y_scale == 0) {
    put(a.y, n * a.y_sequence + unit, shown);
  } else {
    static_cast<float*>(a.y)[n * a.y_sequence + unit] =
        dequantize_difference(static_cast<int32_t>(shown - a.h_zero), a.y_scale);
  }
}

/// A volatile load, so that all are under way before the first product: ptxas moves others behind the conditions of the
/// products that use them, one wait after the other.
__device__ __forceinline__ uint4 load_codes(const uint8_t* from) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

/// Four bytes a thread.
static __global__ void __launch_bounds__(kPrepareThreads) step_prepare(const __grid_constant__ PrepareArgs a) {
  let_next_grid_start();
  wait_for_grid_before();
  const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
  unsigned long long* const nan_place = nan_place_of(a.floats, block);
  begin_nan_search(a.floats, block, gridDim.x * gridDim.y);
  const int k = static_cast<int>(blockIdx.x * kPrepareThreads + threadIdx.x) * 4;
  const uint32_t rows = a.sets[0].rows + a.sets[1].rows + a.sets[2].rows;
  for (uint32_t i = blockIdx.y; i < rows; i += gridDim.y) {
    uint32_t row = i;
    int set = 0;
    while (row >= a.sets[set].rows) row -= a.sets[set++].rows;
    const CodeRows& s = a.sets[set];
    if (k >= s.padded_bytes) continue;
    const uint8_t* const from = s.from + row / a.batch * s.strides.step + row % a.batch * s.strides.sequence;
    uint32_t four = 0;
    if (set == 0 && a.floats.first != nullptr) {
      const float* const floats = reinterpret_cast<const float*>(from) + k / a.x_code_bytes;
      const int there = min(4, s.bytes - k);
      float values[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) values[j] = j * a.x_code_bytes < there ? floats[j] : 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto code = static_cast<uint32_t>(quantize_float<int32_t>(a.floats, values[j]));
        if (j * a.x_code_bytes < there) four |= (code & a.x_code_mask) << (8 * a.x_code_bytes * j);
      }
      look_for_nan(a.floats, nan_place, floats, values);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (k + j < s.bytes) four |= uint32_t{from[k + j]} << (8 * j);
    }
    *reinterpret_cast<uint32_t*>(s.to + int64_t{row} * s.padded_bytes + k) = four;
  }
}

/// What a block of gru_step hands over. kHalves: 1 for at most 8 sequences a tile, which saves registers, else 2.
template <typename Lanes, int kPlanes, int kHalves>
struct StepShared {
  static constexpr int kSequences = kStepSequences / 2 * kHalves;
  static constexpr int kTile = kSequences * kStepUnits;
  // The sums of a warp; 8 more, so that those of four warps meet no bank twice.
  static constexpr int kPartial = 3 * kPlanes * kTile + 8;
  static constexpr int kRowBytes = 6 * kStepUnits * static_cast<int>(sizeof(typename Lanes::Row));
  alignas(16) int32_t partial[kStepWarps][kPartial];
  alignas(16) uint8_t row_bytes[kRowBytes];
  alignas(16) float tables[kStepSharedEntries];
  alignas(16) uint8_t own[kSequences][kStepUnits * kPlanes];  // this block's units of h
};

/// kPlanes: bytes of a code, the larger of x's and h's.
template <typename Lanes, int kPlanes, int kHalves>
struct StepBlock {
  using Row = typename Lanes::Row;
  using Shared = StepShared<Lanes, kPlanes, kHalves>;
  static constexpr int kPieces = kPlanes == 1 ? 4 : 2;  // that a warp has in registers
  static constexpr int kSequences = Shared::kSequences, kTile = Shared::kTile, kRowBytes = Shared::kRowBytes;

  const StepArgs<Lanes>& a;
  Shared& shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32;
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const int warps = threads / 32;
  const int group = static_cast<int>(blockIdx.x);
  const bool of_h = warp >= a.x_warps;
  const StepSide& side = a.sides[of_h ? 1 : 0];
  const StepSide& h = a.sides[1];
  const int pieces = side.pieces;
  const int stride = of_h ? a.warps - a.x_warps : a.x_warps;                    // between two pieces of a warp
  const int first = warp >= a.warps ? pieces : of_h ? warp - a.x_warps : warp;  // of warps for gates only: none
  const uint4* const fragments = side.fragments + int64_t{group} * pieces * 96 + lane;
  uint4 weights[kPieces][3] = {};
  int first_sequence = 0, sequences = 0;  // of the tile

  __device__ __forceinline__ bool shares_tables() const { return a.table_entries <= kStepSharedEntries; }
  __device__ __forceinline__ void fetch_weights(int from) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (from + i * stride < pieces)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
          weights[i][gate] = load_weights(fragments + ((from + i * stride) * 3 + gate) * 32);
  }
  /// First: constants, before the grid before this one has ended.
  __device__ __forceinline__ void begin() {
    fetch_weights(first);
    let_next_grid_start();
    for (int i = thread * 16; i < kRowBytes; i += threads * 16)
      __pipeline_memcpy_async(shared.row_bytes + i, a.rows + int64_t{group} * kRowBytes + i, 16);
    if (shares_tables())
      for (int i = thread * 4; i < a.table_entries; i += threads * 4)
        __pipeline_memcpy_async(shared.tables + i, a.tables + i, 16);
    __pipeline_commit();
    wait_for_grid_before();
  }

  using Codes = uint4[kPieces][kPlanes][kHalves];
  /// The codes that a warp multiplies by pieces `from` on. No load is behind a condition: what does not exist is read
  /// from where something does; then its sums are not read, or it is not multiplied, or its weights are zero.
  __device__ __forceinline__ void load_rows(const uint8_t* const (&codes)[kHalves], int from, Codes& rows) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane)
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          // With two bytes a code: the first eight codes of a lane's 16, and the others.
          const int at = ((from + i * stride) * kStepDepth + lane % 4 * 16) * side.code_bytes + 16 * plane;
          rows[i][plane][half] = load_codes(codes[half] + (at < side.row_bytes ? at : side.row_bytes - 16));
        }
  }
  /// Of a piece, a plane of a half of the sequences, unsigned.
  __device__ __forceinline__ uint4 plane_of(const uint4 (&rows)[kPlanes][kHalves], int plane, int half) const {
    uint4 v = rows[0][half];
    if (kPlanes == 2 && side.code_bytes == 2) {
      const uint4& w = rows[kPlanes - 1][half];
      const uint32_t bytes = plane == 0 ? 0x6420 : 0x7531;  // of two words: the low ones, the high ones
      v = {__byte_perm(v.x, v.y, bytes), __byte_perm(v.z, v.w, bytes), __byte_perm(w.x, w.y, bytes),
           __byte_perm(w.z, w.w, bytes)};
    }
    const uint32_t flip = side.code_bytes == 1 || plane == 1 ? side.flip : 0;
    return uint4{v.x ^ flip, v.y ^ flip, v.z ^ flip, v.w ^ flip};
  }
  /// acc: of the planes; with one plane two chains, which are shorter.
  __device__ __forceinline__ void multiply(bool first_tile, int32_t (&acc)[2][3][4]) {
    const uint8_t* codes[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int sequence = lane / 4 + 8 * half < sequences ? lane / 4 + 8 * half : 0;
      codes[half] = side.codes + (int64_t{first_sequence} + sequence) * side.sequence_bytes;
    }
    for (int from = first; from < pieces; from += kPieces * stride) {
      const bool fetched = from == first && (first_tile || pieces <= kPieces * stride);
      if (!fetched) fetch_weights(from);
      Codes rows;
      load_rows(codes, from, rows);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        if (from + i * stride >= pieces) break;
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
          if (plane >= side.code_bytes) break;
          // The columns of a piece are permuted alike in both operands: lane q of a row has columns 16q to 16q + 15,
          // eight of them in each of two products.
          const uint4 upper = plane_of(rows[i], plane, 0);
          const uint4 lower = kHalves == 2 ? plane_of(rows[i], plane, kHalves - 1) : uint4{0, 0, 0, 0};
          const uint32_t even[4] = {upper.x, lower.x, upper.y, lower.y};
          const uint32_t odd[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            const uint4& w = weights[i][gate];
            mma_u8s8(acc[kPlanes == 2 ? plane : 0][gate], even, w.x, w.y);
            mma_u8s8(acc[kPlanes == 2 ? plane : 1][gate], odd, w.z, w.w);
          }
        }
      }
    }
  }
  __device__ __forceinline__ void leave_sums(const int32_t (&acc)[2][3][4]) const {
    int32_t* const to = shared.partial[warp] + lane / 4 * kStepUnits + lane % 4 * 2;
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane)
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          int2 sum{acc[plane][gate][2 * half], acc[plane][gate][2 * half + 1]};
          if constexpr (kPlanes == 1) {
            sum.x += acc[1][gate][2 * half];
            sum.y += acc[1][gate][2 * half + 1];
          }
          *reinterpret_cast<int2*>(to + (gate * kPlanes + plane) * kTile + half * 8 * kStepUnits) = sum;
        }
  }
  /// In a warp: the 8 units of sequence s of the tile, four lanes a unit, which share the sums.
  __device__ __forceinline__ void gates(int s) const {
    const int unit_in_group = lane / 4;
    const int unit = group * kStepUnits + unit_in_group;
    int32_t sums[2][3][kPlanes] = {};
#pragma unroll
    for (int i = 0; i < kStepWarps; i += 4) {
      const int w = lane % 4 + i;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
          const int32_t sum = shared.partial[w][(gate * kPlanes + plane) * kTile + s * kStepUnits + unit_in_group];
          sums[0][gate][plane] += w < a.x_warps ? sum : 0;
          sums[1][gate][plane] += w >= a.x_warps && w < warps ? sum : 0;
        }
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
#pragma unroll
          for (int plane = 0; plane < kPlanes; ++plane)
            sums[i][gate][plane] += __shfl_xor_sync(0xffffffffu, sums[i][gate][plane], offset);
    if (lane % 4 != 0 || unit >= a.hidden) return;
    uint32_t code = shared.own[s][unit_in_group];
    if constexpr (kPlanes == 2)
      if (h.code_bytes == 2) code = reinterpret_cast<const uint16_t*>(shared.own[s])[unit_in_group];
    code ^= a.flip;
    const auto* const tables = reinterpret_cast<const uint8_t*>(shares_tables() ? shared.tables : a.tables);
    const uint32_t fresh = Lanes::template next<kStepUnits, kPlanes>(
        a.gates, tables, reinterpret_cast<const Row*>(shared.row_bytes) + unit_in_group, sums, code);
    put_state(a, int64_t{first_sequence} + s, unit, fresh, code);
  }
  __device__ __forceinline__ void run_tile(int tile) {
    first_sequence = tile * kSequences;
    sequences = min(a.batch - first_sequence, kSequences);
    // Pieces of 8 bytes: a code of two bytes takes two pieces.
    const int own_piece = thread / kSequences;
    const int own_sequence = thread % kSequences;
    const bool takes_own = own_piece < h.code_bytes && own_sequence < sequences;
    uint2 own_units{0, 0};
    if (takes_own)
      own_units =
          __ldcg(reinterpret_cast<const uint2*>(h.codes + (int64_t{first_sequence} + own_sequence) * h.sequence_bytes +
                                                group * kStepUnits * h.code_bytes + own_piece * 8));
    int32_t acc[2][3][4] = {};
    multiply(tile == static_cast<int>(blockIdx.y), acc);
    leave_sums(acc);
    if (takes_own) *reinterpret_cast<uint2*>(shared.own[own_sequence] + own_piece * 8) = own_units;
    __pipeline_wait_prior(0);
    __syncthreads();
    for (int s = warp; s < sequences; s += warps) gates(s);
    __syncthreads();  // before the sums of the next tile
  }
};

template <typename Lanes, int kPlanes, int kHalves>
__global__ void __launch_bounds__(32 * kStepWarps, 2) gru_step(const __grid_constant__ StepArgs<Lanes> a) {
  using Block = StepBlock<Lanes, kPlanes, kHalves>;
  __shared__ typename Block::Shared shared;
  Block block{a, shared};
  block.begin();
  const int tiles = (a.batch + Block::kSequences - 1) / Block::kSequences;
  for (int tile = static_cast<int>(blockIdx.y); tile < tiles; tile += static_cast<int>(gridDim.y)) block.run_tile(tile);
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_STEP_CUH_
