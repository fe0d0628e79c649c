// SPDX-License-Identifier: Apache-2.0
// What the persistent kernels have in common: what a launch is told, and a few functions of it.
#ifndef ISOBIT_GRU_CUDA_RECURRENCE_CUH_
#define ISOBIT_GRU_CUDA_RECURRENCE_CUH_

#include <cstdint>
#include <tuple>

#include "core/cuda/quantize.cuh"
#include "gru/cuda/gates.cuh"
#include "gru/cuda/persistent.h"

namespace isobit::cuda {

/// Ratio: core/ratio.h.
template <typename Ratio>
struct RecurrenceArgs {
  GateLanes<LaneOf<Ratio>> gates;
  const SumOf<Ratio>* start;  // of hh's accumulators, tile order (gru/cpu/kernels.h)
  const Ratio* ratio;         // accumulator -> hh, tile order
  const float* tables;        // u, r, n behind each other: code minus zero point for each gate input
  int32_t table_entries;      // of all three
  /// ih rescaled to the gate inputs, plus 32768: [steps][batch][groups of 16 units][gate][unit].
  const uint16_t* ih;
  int32_t groups;      // of 16 units in ih, padded ones included
  int32_t first_step;  // of these steps in the sequence: what lengths and the mask are counted from
  int32_t steps, batch, hidden;
  const uint8_t* state;        // [batch][hidden] codes
  uint8_t* next_state;         // after the last step; may be `state`
  uint8_t* y;                  // codes or floats; already offset to this direction's columns
  int64_t y_step, y_sequence;  // bytes
  int32_t y_unit;              // the same from a unit to the next one
  float y_scale;               // 0: codes; else floats, differences from z_h by this
  uint32_t flip;               // the sign bit of signed codes, of the high bytes, in all four bytes
  const int32_t* lengths;      // [batch], or null
  const uint8_t* mask;         // [all steps][batch][mask_width], or null
  int64_t mask_width;
  bool reverse;
  uint32_t delays;  // 0, or a seed: set_exchange_delays
};

template <typename Ratio>
void set_recurrence(RecurrenceArgs<Ratio>& a, const PersistentLayer& layer, const PersistentChunk& chunk) {
  a.gates = std::get<GateLanes<LaneOf<Ratio>>>(layer.gates);
  a.start = std::get<PersistentRows<Ratio>>(layer.rows).start;
  a.ratio = std::get<PersistentRows<Ratio>>(layer.rows).ratio;
  a.tables = layer.tables;
  a.table_entries = layer.table_entries;
  a.ih = chunk.ih;
  a.groups = layer.groups;
  a.first_step = static_cast<int32_t>(chunk.first_step);
  a.steps = static_cast<int32_t>(chunk.steps);
  a.batch = static_cast<int32_t>(chunk.batch);
  a.hidden = layer.hidden_size;
  a.state = chunk.state;
  a.next_state = chunk.next_state;
  a.y = chunk.y;
  a.y_step = chunk.y_step;
  a.y_sequence = chunk.y_sequence;
  a.y_unit = chunk.y_unit;
  a.y_scale = chunk.y_scale;
  a.flip = layer.h_flip;
  a.lengths = chunk.lengths;
  a.mask = chunk.mask;
  a.mask_width = chunk.mask_width;
  a.reverse = chunk.reverse;
  a.delays = chunk.delays;
}

/// A float of y, of an unsigned code of h with anything above it.
template <int Planes, typename Ratio>
__device__ __forceinline__ float y_of(const RecurrenceArgs<Ratio>& a, uint32_t code) {
  return dequantize_difference(static_cast<int32_t>((code & (Planes == 2 ? 0xffff : 0xff)) - a.gates.h_to_unsigned),
                               a.y_scale);
}

/// A test's hook: up to 2^13 cycles, where there is a seed.
__device__ __forceinline__ void delay(uint32_t seed, int turn, int part) {
  if (seed == 0) return;
  const uint32_t warp = threadIdx.x / 32;
  uint32_t x = seed ^ (static_cast<uint32_t>(turn) * 0x9e3779b9u + blockIdx.x * 0x85ebca6bu + warp * 0xc2b2ae35u +
                       static_cast<uint32_t>(part) * 0x27d4eb2fu);
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  x ^= x >> 16;
  if (x % 4 != 0) return;
  const long long until = clock64() + (x >> 2) % 8192;
  while (clock64() < until) {
  }
}
enum DelayedPart { kDelayRead, kDelaySums, kDelayGates, kDelayWrite };

/// Whether a cell keeps its state in this step; t: of the steps of the launch.
template <typename Args>
__device__ __forceinline__ bool is_masked(const Args& a, int t, int64_t n, int unit) {
  return a.mask != nullptr && unit < a.hidden &&
         a.mask[((int64_t{t} + a.first_step) * a.batch + n) * a.mask_width + unit] == 0;
}

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_RECURRENCE_CUH_
