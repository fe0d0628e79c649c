// SPDX-License-Identifier: Apache-2.0
// How fast the state of a persistent GRU can cross between thread blocks: what its kernels exchange in a step, one byte
// for each hidden unit and sequence, and nothing else. A step whose state crosses in one of these ways takes no less,
// however fast products and gates are.
#ifndef ISOBIT_BENCH_EXCHANGE_FLOOR_H_
#define ISOBIT_BENCH_EXCHANGE_FLOOR_H_

#include <cstdint>
#include <vector>

namespace isobit::exchange {

/// The exchange of all sequences in one way, each state made of the one before.
struct Time {
  const char* way;
  int32_t blocks;   // of a team, which has the whole state of its sequences
  int32_t cluster;  // blocks that are a cluster
  int32_t teams;    // which share the sequences
  int32_t turns;    // parts of a team's sequences that cross one after the other
  double us_per_step;
};

/// Every way that there is for so many hidden units and sequences, on the current device: medians of replays of a graph
/// with one launch of `steps` steps. None where a block holds all of R, to H = 128, as nothing crosses; ways that do
/// not divide H into equal parts are left out. Ends the program where something fails, or a state arrives that is not
/// what was sent.
std::vector<Time> times(int32_t hidden, int32_t batch, int32_t steps, int repeats);

}  // namespace isobit::exchange

#endif  // ISOBIT_BENCH_EXCHANGE_FLOOR_H_
