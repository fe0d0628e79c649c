// SPDX-License-Identifier: Apache-2.0
// The ways in which the state crosses in src/gru/cuda/cluster.cuh and gru/cuda/grid.cuh, without products and gates.
// Codes are bytes; four of them are a word. A team's state is so many regions, one written by each block. From state s
// on, block b makes its region of state s + 1: that of block b + 1 + s, each word plus kAdvance. So no region can be
// sent before another has come, which one changes in every step, and what the last state must be is known without a
// run: all blocks compare all of it, in every launch.
//
// exchange_sends, exchange_copies: a team is a cluster, and the state is in the shared memory of every block, twice.
// State s + 1 of a turn goes where state s - 1 was, as soon as state s is complete: it has come from all blocks, each
// of which had read all that it needed of state s - 1 before it sent its region of s. State s > 0 completes phase (s -
// 1) / 2 of barrier s % 2, which counts bytes and one arrival, of the thread that arms it. Bytes that come before that
// count, too. A phase cannot be over twice before all warps of the block have seen it, as it needs what each of them
// sends, or a barrier of the block.
//
// exchange_words: as gru_grid_few; what crosses are words of codes with the number of their state.
//
// exchange_counters: as gru_grid_many, with its slots, barriers and counters, whose header says why they are safe. A
// publishing warp takes the turns of its own slots, each of which it waits for: a phase is never waited for while the
// one before is not over.
#include "bench/exchange_floor.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "core/cuda/ptx.cuh"
#include "testing/cuda_timer.h"

namespace isobit::exchange {
namespace {

using testing::check_cuda;
using testing::device_memory;
using testing::DeviceMemory;

constexpr uint32_t kAdvance = 0x85ebca6bu;  // odd: a multiple of it is 0 after 2^32 steps only
constexpr int kPieceBytes = 16;             // codes of 16 units of a sequence
constexpr int kPieceWords = kPieceBytes / 4;

// ---- What is exchanged

/// What all launches of a case have found.
struct Found {
  uint32_t blocks;  // that came to their end
  uint32_t wrong;   // words
};

/// part: any number for what is exchanged by itself. A region has less than 2^12 words, and there are at most 2^7.
__device__ __forceinline__ uint32_t first_word(int part, int region, int word) {
  return ((static_cast<uint32_t>(part) << 7 | static_cast<uint32_t>(region)) << 12 | static_cast<uint32_t>(word)) *
         0x9e3779b1u;
}
__device__ __forceinline__ uint4 advanced(const uint4& v) {
  return {v.x + kAdvance, v.y + kAdvance, v.z + kAdvance, v.w + kAdvance};
}
__device__ __forceinline__ void write_first(uint32_t* state, int part, int regions, int region_words) {
  for (int i = static_cast<int>(threadIdx.x); i < regions * region_words; i += static_cast<int>(blockDim.x))
    state[i] = first_word(part, i / region_words, i % region_words);
}
/// Compares state s, with `threads` threads; this one is number `thread`.
__device__ __forceinline__ void compare(const uint32_t* state, int part, int regions, int region_words, int s,
                                        int thread, int threads, Found* found) {
  const auto moved = static_cast<int>(uint64_t{static_cast<uint32_t>(s)} * (static_cast<uint32_t>(s) + 1) / 2 %
                                      static_cast<uint32_t>(regions));
  uint32_t wrong = 0;
  for (int i = thread; i < regions * region_words; i += threads) {
    const uint32_t first = first_word(part, (i / region_words + moved) % regions, i % region_words);
    if (state[i] != first + static_cast<uint32_t>(s) * kAdvance) ++wrong;
  }
  if (wrong > 0) atomicAdd(&found->wrong, wrong);
}
__device__ __forceinline__ void count_block(Found* found) {
  if (threadIdx.x == 0) atomicAdd(&found->blocks, 1u);
}
/// What a block that has read this region reads in the next step.
__device__ __forceinline__ int region_after(int region, int regions) { return region + 1 < regions ? region + 1 : 0; }

// ---- Clusters

constexpr int kClusterWarps = 8;         // at most
constexpr int kBarrierBytes = 128;       // two barriers of 8 bytes for each turn
constexpr int kTurnSequences = 8;        // as a tile of gru_cluster, where they cross in several turns
constexpr int kMostTeamSequences = 56;   // beyond, gru_cluster has further teams, which wait for a processor
constexpr int kMostBlockR = 192 * 1024;  // bytes of R in registers and shared memory of a block
static_assert(kMostTeamSequences / kTurnSequences * 16 <= kBarrierBytes);

struct ClusterArgs {
  int32_t steps, cluster, turns;
  int32_t pieces;  // of a block's region, of a turn
  Found* found;
};

/// The shared memory of a block of a cluster.
class ClusterStates {
 public:
  __device__ explicit ClusterStates(const ClusterArgs& a, uint8_t* shared)
      : shared_(shared), turn_bytes_(a.cluster * a.pieces * kPieceBytes) {}
  [[nodiscard]] __device__ int turn_bytes() const { return turn_bytes_; }
  /// Bytes from the start of shared memory.
  [[nodiscard]] __device__ uint32_t offset(int turn, int s) const {
    return static_cast<uint32_t>(kBarrierBytes + (2 * turn + s % 2) * turn_bytes_);
  }
  [[nodiscard]] __device__ uint4* state(int turn, int s) const {
    return reinterpret_cast<uint4*>(shared_ + offset(turn, s));
  }
  [[nodiscard]] __device__ static uint32_t barrier_offset(int turn, int s) {
    return 8 * static_cast<uint32_t>(2 * turn + s % 2);
  }
  /// Until state s is complete.
  __device__ void wait(int turn, int s) const {
    if (s > 0)
      cuda::barrier_wait(cuda::shared_address(shared_) + barrier_offset(turn, s), static_cast<uint32_t>(s - 1) / 2 % 2);
  }

 private:
  uint8_t* shared_;
  int turn_bytes_;
};

/// Barriers and state 0, then all blocks.
__device__ __forceinline__ void begin_cluster(const ClusterArgs& a, const ClusterStates& states, uint32_t barriers) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * a.turns; ++i) cuda::barrier_init(barriers + 8 * static_cast<uint32_t>(i), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  const int team = static_cast<int>(blockIdx.x) / a.cluster;
  for (int j = 0; j < a.turns; ++j)
    write_first(reinterpret_cast<uint32_t*>(states.state(j, 0)), team * a.turns + j, a.cluster, a.pieces * kPieceWords);
  __syncwarp();
  cuda::cluster_sync();
}
/// The last state; then all blocks, as copies may still read the memory of one that has its states.
__device__ __forceinline__ void end_cluster(const ClusterArgs& a, const ClusterStates& states) {
  const int team = static_cast<int>(blockIdx.x) / a.cluster;
  for (int j = 0; j < a.turns; ++j) {
    states.wait(j, a.steps);
    compare(reinterpret_cast<const uint32_t*>(states.state(j, a.steps)), team * a.turns + j, a.cluster,
            a.pieces * kPieceWords, a.steps, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x), a.found);
  }
  count_block(a.found);
  __syncwarp();
  cuda::cluster_sync();
}

/// st.async of a piece a lane. A warp sends some pieces to all blocks, its own among them, so that there is one kind of
/// arrival. `cluster` divides 32, and every warp has pieces.
__global__ void __launch_bounds__(32 * kClusterWarps, 1) exchange_sends(const __grid_constant__ ClusterArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  const ClusterStates states(a, shared);
  const uint32_t own = cuda::shared_address(shared);
  begin_cluster(a, states, own);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = static_cast<int>(cuda::block_in_cluster());
  const int at_once = 32 / a.cluster;  // pieces of a warp
  const int first = static_cast<int>(threadIdx.x) / 32 * at_once;
  const int stride = static_cast<int>(blockDim.x) / 32 * at_once;
  const int of_lane = lane / a.cluster;
  const uint32_t receiver = cuda::address_in(own, static_cast<uint32_t>(lane % a.cluster));
  int region = rank;
  for (int s = 0; s < a.steps; ++s) {
    region = region_after(region, a.cluster);
    for (int j = 0; j < a.turns; ++j) {
      states.wait(j, s);
      const uint32_t barrier = ClusterStates::barrier_offset(j, s + 1);
      const uint4* const from = states.state(j, s) + region * a.pieces;
      const uint32_t to = receiver + states.offset(j, s + 1) + static_cast<uint32_t>(rank * a.pieces * kPieceBytes);
      for (int some = first; some < a.pieces; some += stride) {
        const int piece = some + of_lane;
        uint4 codes{};
        if (piece < a.pieces) codes = advanced(from[piece]);
        // Whoever has got this piece may overwrite what was read for the others.
        __syncwarp();
        if (piece < a.pieces) cuda::send(to + static_cast<uint32_t>(piece * kPieceBytes), codes, receiver + barrier);
      }
      // Not before, as nobody waits for this.
      if (threadIdx.x == 0) cuda::barrier_expect(own + barrier, static_cast<uint32_t>(states.turn_bytes()));
    }
  }
  end_cluster(a, states);
}

/// One bulk copy of the block's region to each other block; warps share these.
__global__ void __launch_bounds__(32 * kClusterWarps, 1) exchange_copies(const __grid_constant__ ClusterArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  const ClusterStates states(a, shared);
  const uint32_t barriers = cuda::shared_address(shared);
  begin_cluster(a, states, barriers);
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const int rank = static_cast<int>(cuda::block_in_cluster());
  const auto bytes = static_cast<uint32_t>(a.pieces * kPieceBytes);
  int region = rank;
  for (int s = 0; s < a.steps; ++s) {
    region = region_after(region, a.cluster);
    for (int j = 0; j < a.turns; ++j) {
      states.wait(j, s);
      const uint4* const from = states.state(j, s) + region * a.pieces;
      uint4* const to = states.state(j, s + 1) + rank * a.pieces;
      for (int i = thread; i < a.pieces; i += threads) to[i] = advanced(from[i]);
      cuda::fence_before_copies();
      __syncthreads();
      if (cuda::is_elected()) {
        const uint32_t barrier = barriers + ClusterStates::barrier_offset(j, s + 1);
        const uint32_t own = cuda::shared_address(to);
        for (int other = warp + 1; other < a.cluster; other += threads / 32) {
          const auto block = static_cast<uint32_t>(rank + other < a.cluster ? rank + other : rank + other - a.cluster);
          cuda::copy_to_block(cuda::address_in(own, block), own, bytes, cuda::address_in(barrier, block));
        }
        if (warp == 0) cuda::barrier_expect(barrier, static_cast<uint32_t>(a.cluster - 1) * bytes);
      }
      __syncwarp();
    }
  }
  end_cluster(a, states);
}

// ---- The whole device: words

constexpr int kUnits = 16;         // of a block
constexpr int kWordThreads = 256;  // the eight warps of gru_grid_few that multiply
constexpr int kWordSequences = 8;  // of a team, at most
constexpr int kWordCopies = 4;     // of every word
constexpr int kMostBlocks = 128;
constexpr int kMostPolls = kMostBlocks * 2 * kWordSequences / kWordThreads;  // of a thread, two words each
static_assert(kMostPolls == 8 && kWordCopies * 4 * kWordSequences <= kWordThreads);

struct WordArgs {
  int32_t steps, blocks, sequences;  // of a team
  /// [team][s % 2][copy][block][sequence][4] words of four codes and s + 1, zero at the start.
  uint2* words;
  Found* found;
};

/// Polls: of a thread, at most.
template <int Polls>
__global__ void __launch_bounds__(kWordThreads, 1) exchange_words(const __grid_constant__ WordArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x) % a.blocks;
  const int team = static_cast<int>(blockIdx.x) / a.blocks;
  const int region_words = 4 * a.sequences;
  const int all_words = a.blocks * region_words;
  const auto words_of = [&](int s, int copy) {
    return a.words + ((int64_t{team} * 2 + s % 2) * kWordCopies + copy) * all_words;
  };
  const auto received = [&](int s) { return reinterpret_cast<uint32_t*>(shared) + s % 2 * all_words; };
  // The word that this thread publishes a copy of.
  const bool publishes = thread < kWordCopies * region_words;
  const int word = thread % region_words;
  const auto publish = [&](int s, uint32_t codes) {
    cuda::publish(words_of(s, thread / region_words) + block * region_words + word, codes,
                  static_cast<uint32_t>(s + 1));
  };
  uint32_t all = 0;  // pairs of words that this thread polls
#pragma unroll
  for (int i = 0; i < Polls; ++i)
    if (2 * (thread + i * kWordThreads) < all_words) all |= 1u << i;
  if (publishes) publish(0, first_word(team, block, word));
  int region = block;
  for (int s = 0;; ++s) {
    const uint2* const from = words_of(s, block % kWordCopies) + 2 * thread;
    uint32_t* const to = received(s) + 2 * thread;
    uint32_t missing = all;
    while (__any_sync(0xffffffffu, missing != 0)) {
      ulonglong2 two[Polls];
#pragma unroll
      for (int i = 0; i < Polls; ++i)
        if ((missing >> i & 1) != 0) cuda::poll(from + 2 * kWordThreads * i, two[i]);
#pragma unroll
      for (int i = 0; i < Polls; ++i) {
        const auto is_there = [s](unsigned long long x) { return static_cast<int32_t>(x >> 32) == s + 1; };
        if ((missing >> i & 1) == 0 || !is_there(two[i].x) || !is_there(two[i].y)) continue;
        missing &= ~(1u << i);
        *reinterpret_cast<uint2*>(to + 2 * kWordThreads * i) =
            uint2{static_cast<uint32_t>(two[i].x), static_cast<uint32_t>(two[i].y)};
      }
    }
    // All words of state s, and so all reads of s - 1 by blocks that have written them: what is written next may go
    // where those were. `received` of s - 2 was read before the barrier of s - 1.
    __syncthreads();
    if (s == a.steps) break;
    region = region_after(region, a.blocks);
    if (publishes) publish(s + 1, received(s)[region * region_words + word] + kAdvance);
  }
  compare(received(a.steps), team, a.blocks, region_words, a.steps, thread, kWordThreads, a.found);
  count_block(a.found);
}

// ---- The whole device: counters

constexpr int kColumns = 32;  // sequences of a turn, a lane each
constexpr int kTileSequences = 8;
constexpr int kTiles = kColumns / kTileSequences;
constexpr int kTileBytes = kTileSequences * kPieceBytes;  // of a block
constexpr int kFetchers = 2;                              // warps
constexpr int kPublishers = 4;                            // warps; they have nothing to do but to wait for their stores
constexpr int kCounterThreads = 32 * (kFetchers + kPublishers);
constexpr int kMostSlots = 8;
constexpr int kSlotBarriers = 2 * 8 * kMostSlots;  // bytes: a slot's state is there, is read
constexpr int kCounterWords = 32;                  // from one counter to the next: a line each

struct CounterArgs {
  int32_t steps, blocks, cluster, turns, slots;
  int32_t last_tiles;  // of 8 sequences, of the last turn
  /// [team][s % 2][turn][tile of 8 sequences][block][8][16] codes.
  uint8_t* codes;
  uint32_t* counters;  // [team][turn][block of a cluster][kCounterWords], zero at the start: blocks of that share
  Found* found;
};

__global__ void __launch_bounds__(kCounterThreads, 1) exchange_counters(const __grid_constant__ CounterArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int block = static_cast<int>(blockIdx.x) % a.blocks;
  const int team = static_cast<int>(blockIdx.x) / a.blocks;
  const int rank = static_cast<int>(cuda::block_in_cluster());
  const int share = a.blocks / a.cluster;  // blocks whose codes each block of a cluster fetches
  const int tile_bytes = a.blocks * kTileBytes;
  const int slot_bytes = kTiles * tile_bytes;
  uint8_t* const slots = shared + kSlotBarriers;
  const uint32_t full = cuda::shared_address(shared);
  const uint32_t empty = full + 8 * kMostSlots;
  const auto tiles_of = [&](int j) { return j + 1 < a.turns ? kTiles : a.last_tiles; };
  const auto codes_of = [&](int s, int j) {
    return a.codes + ((int64_t{team} * 2 + s % 2) * a.turns + j) * slot_bytes;
  };
  const auto counter_of = [&](int j, int of_share) {
    return a.counters + (int64_t{team} * a.turns + j) * a.cluster * kCounterWords + of_share * kCounterWords;
  };
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < static_cast<uint32_t>(a.slots); ++i) {
      cuda::barrier_init(full + 8 * i, 1);
      cuda::barrier_init(empty + 8 * i, static_cast<uint32_t>(a.cluster));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncwarp();
  cuda::cluster_sync();

  if (warp < kFetchers) {
    // ---- Those that fetch: one thread each, every other slot.
    if (cuda::is_elected()) {
      const auto everyone = static_cast<uint16_t>((1u << a.cluster) - 1);
      const auto piece_bytes = static_cast<uint32_t>(share * kTileBytes);
      int slot = 0;
      uint32_t phase = 1;  // of `empty`: that of a barrier that nobody has arrived at counts as over
      for (int s = 0; s <= a.steps; ++s)
        for (int j = 0; j < a.turns; ++j) {
          if (slot % kFetchers == warp) {
            const uint32_t barrier = full + 8 * static_cast<uint32_t>(slot);
            cuda::barrier_wait(empty + 8 * static_cast<uint32_t>(slot), phase);
            const int tiles = tiles_of(j);
            cuda::barrier_expect(barrier, static_cast<uint32_t>(tiles * tile_bytes));
            const auto complete = static_cast<uint32_t>(share) * static_cast<uint32_t>(s + 1);
            const uint32_t* const counter = counter_of(j, rank);
            uint32_t counted = 0;
            do {
              asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(counted) : "l"(counter) : "memory");
            } while (counted < complete);
            asm volatile("fence.proxy.async.global;" ::: "memory");
            const uint32_t to =
                cuda::shared_address(slots + slot * slot_bytes) + static_cast<uint32_t>(rank) * piece_bytes;
            const uint8_t* const from = codes_of(s, j) + static_cast<uint32_t>(rank) * piece_bytes;
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
              if (tile < tiles)
                cuda::fetch_for_cluster(to + static_cast<uint32_t>(tile * tile_bytes), from + tile * tile_bytes,
                                        piece_bytes, barrier, everyone);
          }
          if (++slot == a.slots) {
            slot = 0;
            phase ^= 1;
          }
        }
    }
  } else {
    // ---- Those that publish: a lane has a sequence.
    const int publisher = warp - kFetchers;
    const int place = lane / kTileSequences * tile_bytes + lane % kTileSequences * kPieceBytes;  // without the region's
    const uint32_t leave =
        cuda::address_in(empty, static_cast<uint32_t>(lane < a.cluster ? lane : 0));  // of one block a lane
    const auto part_of = [&](int j) { return (team * a.turns + j) * kTiles; };
    const auto store = [&](int s, int j, const uint4& codes) {
      *reinterpret_cast<uint4*>(codes_of(s, j) + block * kTileBytes + place) = codes;
    };
    const auto count = [&](int j) {
      __syncwarp();
      if (lane == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter_of(j, block / share)) : "memory");
    };
    for (int j = publisher; j < a.turns; j += kPublishers) {
      const auto first = [&](int i) {
        return first_word(part_of(j) + lane / kTileSequences, block, lane % kTileSequences * kPieceWords + i);
      };
      if (lane / kTileSequences < tiles_of(j)) store(0, j, uint4{first(0), first(1), first(2), first(3)});
      count(j);
    }
    int slot = 0;
    uint32_t phase = 0;
    int region = block;
    for (int s = 0; s <= a.steps; ++s) {
      region = region_after(region, a.blocks);
      for (int j = 0; j < a.turns; ++j) {
        if (slot % kPublishers == publisher) {
          const int tiles = tiles_of(j);
          const uint8_t* const state = slots + slot * slot_bytes;
          cuda::barrier_wait(full + 8 * static_cast<uint32_t>(slot), phase);
          if (s == a.steps) {
            for (int tile = 0; tile < tiles; ++tile)
              compare(reinterpret_cast<const uint32_t*>(state + tile * tile_bytes), part_of(j) + tile, a.blocks,
                      kTileBytes / 4, s, lane, 32, a.found);
          } else if (lane / kTileSequences < tiles) {
            // What is stored has been read: so have all lanes when they meet.
            store(s + 1, j, advanced(*reinterpret_cast<const uint4*>(state + region * kTileBytes + place)));
          }
          __syncwarp();
          if (lane < a.cluster) cuda::barrier_arrive_in(leave + 8 * static_cast<uint32_t>(slot));
          if (s < a.steps) count(j);
        }
        if (++slot == a.slots) {
          slot = 0;
          phase ^= 1;
        }
      }
    }
  }
  count_block(a.found);
  // Nobody leaves while blocks of its cluster may still send to it.
  __syncwarp();
  cuda::cluster_sync();
}

// ---- The host's side

struct Case {
  int32_t hidden, batch, steps;
  int repeats;
  int32_t processors, shared;  // of the device; bytes that a block can have
};

int32_t pieces_of(int32_t count, int32_t piece) { return (count + piece - 1) / piece; }

/// More than half of a processor's shared memory, so that each block has a processor to itself.
int32_t at_least_half(const Case& c, int32_t shared) { return std::max(shared, c.shared / 2 + 1); }

/// The configuration of a launch, which points to its attributes.
class Launch {
 public:
  Launch(int32_t blocks, int32_t threads, int32_t shared, int32_t cluster, bool cooperative) {
    config_.gridDim = dim3(static_cast<unsigned>(blocks));
    config_.blockDim = dim3(static_cast<unsigned>(threads));
    config_.dynamicSmemBytes = static_cast<size_t>(shared);
    config_.attrs = attributes_;
    if (cluster > 1) {
      cudaLaunchAttribute& attribute = attributes_[config_.numAttrs++];
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    }
    // Blocks wait for each other: all of them are on the device at once, or the launch fails.
    if (cooperative) {
      cudaLaunchAttribute& attribute = attributes_[config_.numAttrs++];
      attribute.id = cudaLaunchAttributeCooperative;
      attribute.val.cooperative = 1;
    }
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  template <typename Args>
  void run(void (*kernel)(Args), const Args& args, cudaStream_t stream) {
    config_.stream = stream;
    check_cuda(cudaLaunchKernelEx(&config_, kernel, args), "launch");
  }
  /// Clusters of it that are on the device at once.
  template <typename Args>
  [[nodiscard]] int32_t room(void (*kernel)(Args)) const {
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config_) == cudaSuccess) return clusters;
    cudaGetLastError();  // clusters of this size are not to be had there
    return 0;
  }

 private:
  cudaLaunchAttribute attributes_[2]{};
  cudaLaunchConfig_t config_{};
};

template <typename Args>
void allow(const Case& c, void (*kernel)(Args)) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, c.shared), "shared memory");
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "clusters of 16");
}

/// Microseconds a step of what `launch` adds to a stream: so many blocks, which leave in their argument what they
/// found.
template <typename Work>
double timed(const Case& c, const char* way, int32_t blocks, const Work& launch) {
  const DeviceMemory memory = device_memory(sizeof(Found));
  auto* const on_device = reinterpret_cast<Found*>(memory.get());
  check_cuda(cudaMemset(on_device, 0, sizeof(Found)), "results");
  check_cuda(cudaDeviceSynchronize(), "results");
  const double us =
      testing::median_microseconds([&](cudaStream_t stream) { launch(stream, on_device); }, c.repeats) / c.steps;
  Found found{};
  check_cuda(cudaMemcpy(&found, on_device, sizeof found, cudaMemcpyDeviceToHost), "results");
  if (found.wrong == 0 && found.blocks > 0 && found.blocks % static_cast<uint32_t>(blocks) == 0) return us;
  std::fprintf(stderr, "%s, H = %d, N = %d: %u words of the last states are wrong, %u blocks of launches of %d\n", way,
               c.hidden, c.batch, found.wrong, found.blocks, blocks);
  std::exit(1);
}

void time_clusters(const Case& c, int32_t cluster, std::vector<Time>& times) {
  const int32_t units = c.hidden / cluster;
  const int32_t least = at_least_half(c, 0);
  for (const bool sends : {true, false}) {
    if (sends && 32 % cluster != 0) continue;
    void (*const kernel)(ClusterArgs) = sends ? exchange_sends : exchange_copies;
    allow(c, kernel);
    const int32_t room = Launch(cluster, 32 * kClusterWarps, least, cluster, false).room(kernel);
    if (room == 0) continue;
    const int32_t sequences = pieces_of(c.batch, room);
    if (sequences > kMostTeamSequences) continue;
    const int32_t teams = pieces_of(c.batch, sequences);
    const int32_t most_turns = pieces_of(sequences, kTurnSequences);
    for (int32_t turns = 1; turns <= most_turns; turns += std::max(1, most_turns - 1)) {
      const int32_t pieces = units / 16 * pieces_of(sequences, turns);
      const int32_t shared = kBarrierBytes + turns * 2 * cluster * pieces * kPieceBytes;
      if (shared > c.shared) continue;
      const int32_t warps = sends ? std::min(kClusterWarps, pieces_of(pieces * cluster, 32))
                                  : std::min(kClusterWarps, std::max(cluster - 1, pieces_of(pieces, 32)));
      const char* const way = sends ? "st.async" : "bulk copy";
      Launch launch(teams * cluster, 32 * warps, at_least_half(c, shared), cluster, false);
      const double us = timed(c, way, teams * cluster, [&](cudaStream_t stream, Found* found) {
        launch.run(kernel, ClusterArgs{c.steps, cluster, turns, pieces, found}, stream);
      });
      times.push_back({way, cluster, cluster, teams, turns, us});
    }
  }
}

void time_words(const Case& c, std::vector<Time>& times) {
  const int32_t blocks = c.hidden / kUnits;
  if (blocks > c.processors) return;
  const int32_t sequences = pieces_of(c.batch, c.processors / blocks);
  if (sequences > kWordSequences) return;
  const int32_t teams = pieces_of(c.batch, sequences);
  const int32_t words = blocks * 4 * sequences;
  const size_t bytes = static_cast<size_t>(teams) * 2 * kWordCopies * static_cast<size_t>(words) * sizeof(uint2);
  const DeviceMemory memory = device_memory(bytes);
  const int32_t polls = pieces_of(words, 2 * kWordThreads);
  const auto kernel = polls == 1   ? exchange_words<1>
                      : polls == 2 ? exchange_words<2>
                      : polls <= 4 ? exchange_words<4>
                                   : exchange_words<kMostPolls>;
  allow(c, kernel);
  const char* const way = "words through L2";
  Launch launch(teams * blocks, kWordThreads, at_least_half(c, 2 * words * 4), 1, true);
  const double us = timed(c, way, teams * blocks, [&](cudaStream_t stream, Found* found) {
    check_cuda(cudaMemsetAsync(memory.get(), 0, bytes, stream), "words");
    launch.run(kernel, WordArgs{c.steps, blocks, sequences, reinterpret_cast<uint2*>(memory.get()), found}, stream);
  });
  times.push_back({way, blocks, 1, teams, 1, us});
}

void time_counters(const Case& c, int32_t cluster, std::vector<Time>& times) {
  const int32_t blocks = c.hidden / kUnits;
  const int32_t slot_bytes = kColumns * c.hidden;
  const int32_t slots = std::min(kMostSlots, (c.shared - kSlotBarriers) / slot_bytes);
  if (blocks % cluster != 0 || slots == 0) return;
  const int32_t shared = at_least_half(c, kSlotBarriers + slots * slot_bytes);
  allow(c, exchange_counters);
  const int32_t room = Launch(blocks, kCounterThreads, shared, cluster, true).room(exchange_counters);
  const int32_t most_teams = room / (blocks / cluster);
  if (most_teams == 0) return;
  const int32_t sequences = pieces_of(c.batch, most_teams);
  const int32_t teams = pieces_of(c.batch, sequences);
  const int32_t turns = pieces_of(sequences, kColumns);
  const int32_t last_tiles = pieces_of(sequences - (turns - 1) * kColumns, kTileSequences);
  const size_t counter_bytes = static_cast<size_t>(teams * turns * cluster) * kCounterWords * 4;
  const DeviceMemory counters = device_memory(counter_bytes);
  const DeviceMemory codes = device_memory(static_cast<size_t>(teams * 2 * turns) * static_cast<size_t>(slot_bytes));
  const char* const way = "counters through L2";
  Launch launch(teams * blocks, kCounterThreads, shared, cluster, true);
  const double us = timed(c, way, teams * blocks, [&](cudaStream_t stream, Found* found) {
    check_cuda(cudaMemsetAsync(counters.get(), 0, counter_bytes, stream), "counters");
    launch.run(exchange_counters,
               CounterArgs{c.steps, blocks, cluster, turns, slots, last_tiles, reinterpret_cast<uint8_t*>(codes.get()),
                           reinterpret_cast<uint32_t*>(counters.get()), found},
               stream);
  });
  times.push_back({way, blocks, cluster, teams, turns, us});
}

}  // namespace

std::vector<Time> times(int32_t hidden, int32_t batch, int32_t steps, int repeats) {
  std::vector<Time> times;
  if (hidden <= 128 || hidden > kUnits * kMostBlocks || hidden % kUnits != 0) return times;
  int device = 0;
  Case c{hidden, batch, steps, repeats, 0, 0};
  check_cuda(cudaGetDevice(&device), "device");
  check_cuda(cudaDeviceGetAttribute(&c.processors, cudaDevAttrMultiProcessorCount, device), "processors");
  check_cuda(cudaDeviceGetAttribute(&c.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "shared memory");
  for (const int32_t cluster : {2, 4, 8, 12, 16})
    if (hidden % (16 * cluster) == 0 && 3 * (hidden / cluster) * hidden <= kMostBlockR)
      time_clusters(c, cluster, times);
  time_words(c, times);
  for (const int32_t cluster : {2, 4, 8}) time_counters(c, cluster, times);
  return times;
}

}  // namespace isobit::exchange
