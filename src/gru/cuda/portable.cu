// SPDX-License-Identifier: Apache-2.0
// The host side of gru_portable: layers to H = 2048 on devices without clusters.
#include "gru/cuda/portable.cuh"

#include <algorithm>
#include <bit>
#include <string>

#include "core/cuda/grid_launch.h"
#include "core/cuda/status.h"

namespace isobit::cuda {
namespace {

template <typename Ratio>
using Kernel = void (*)(PortableArgs<Ratio>);

template <int Planes, typename Ratio>
Kernel<Ratio> kernel_of(const PersistentLayer& layer) {
  return layer.portable.warp_tiles == 4 ? gru_portable<4, Planes, Ratio> : gru_portable<8, Planes, Ratio>;
}
int32_t shared_of(const PersistentLayer& layer) {
  return portable_shared(layer.portable.warp_tiles, layer.portable.unit_blocks, layer.h_planes, layer.table_entries)
      .total;
}

constexpr int32_t kMaxPortableHidden = 2048;

int32_t pieces_of(int64_t count, int64_t piece) { return static_cast<int32_t>((count + piece - 1) / piece); }
/// The next.
int32_t log2_of(int32_t count) { return std::bit_width(static_cast<uint32_t>(count - 1)); }

/// How a batch is spread over launches of `each` sequences, and those over teams. Teams of one block need not be on the
/// device together.
struct Spread {
  int64_t each;
  int32_t team_sequences;
};
Spread spread_of(const PortableCut& cut, int64_t batch) {
  if (cut.blocks == 1) return {batch, std::min(pieces_of(batch, cut.teams), kPortableSequences)};
  const int32_t each = pieces_of(batch, pieces_of(batch, int64_t{kPortableSequences} * cut.teams));
  return {each, pieces_of(each, cut.teams)};
}
int64_t word_bytes(const PersistentLayer& layer, int64_t teams, int32_t team_sequences) {
  const int32_t words =
      portable_words(layer.portable.blocks * layer.portable.unit_blocks, layer.h_planes, log2_of(team_sequences));
  return teams * 2 * kPortableCopies * words * 8;
}

}  // namespace

Status prepare_portable(PersistentLayer& layer, const DeviceLimits& limits) {
  const int32_t hidden = layer.hidden_size;
  if (hidden > kMaxPortableHidden)
    return {StatusCode::kUnsupported,
            "H is " + std::to_string(hidden) + ", must be at most 2048: more does not fit the registers of a device"};
  PortableCut& cut = layer.portable;
  // The fewest blocks whose warps have room for their part of R in registers.
  cut.unit_blocks = hidden <= 128 ? 8 : hidden <= 256 ? 4 : hidden <= 512 ? 2 : 1;
  cut.warp_tiles = hidden <= 1024 ? 4 : 8;
  cut.blocks = pieces_of(hidden, int64_t{16} * cut.unit_blocks);
  layer.groups = std::max(layer.groups, cut.blocks * cut.unit_blocks);
  const int32_t shared = shared_of(layer);
  int blocks = 0;
  if (shared <= limits.block_shared)
    ISOBIT_RETURN_IF_ERROR(with_lanes(layer, [&](auto ratio, auto planes) -> Status {
      const auto kernel = kernel_of<planes(), decltype(ratio)>(layer);
      ISOBIT_RETURN_IF_ERROR(allow_shared(kernel, limits.block_shared, "portable: shared memory"));
      return cuda_status(
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kPortableThreads, static_cast<size_t>(shared)),
          "blocks on the device");
    }));
  cut.teams = blocks * limits.processors / cut.blocks;
  return cut.teams == 0 ? no_room() : Status();
}

int64_t portable_exchange_bytes(const PersistentLayer& layer, int64_t batch) {
  const PortableCut& cut = layer.portable;
  if (cut.blocks == 1) return 0;
  // Smaller batches included: those of fewer sequences than teams have one each.
  const int64_t most = std::min(batch, int64_t{kPortableSequences} * cut.teams);
  return word_bytes(layer, std::min<int64_t>(most, cut.teams),
                    batch > most ? kPortableSequences : pieces_of(most, cut.teams));
}

int64_t portable_zeroed_bytes(const PersistentLayer& layer, int64_t batch) {
  if (layer.portable.blocks == 1) return 0;
  const Spread spread = spread_of(layer.portable, batch);
  return word_bytes(layer, pieces_of(spread.each, spread.team_sequences), spread.team_sequences);
}

Status launch_portable(const PersistentLayer& layer, const Recurrence& run, std::byte* exchange, cudaStream_t stream) {
  const PortableCut& cut = layer.portable;
  const Spread spread = spread_of(cut, run.batch);
  return with_lanes(layer, [&](auto ratio, auto planes) -> Status {
    using Ratio = decltype(ratio);
    PortableArgs<Ratio> args{recurrence_args<Ratio>(layer, run),
                             layer.fragments,
                             layer.k_tiles,
                             cut.blocks,
                             log2_of(cut.unit_blocks),
                             0,
                             0,
                             spread.team_sequences,
                             log2_of(spread.team_sequences),
                             reinterpret_cast<uint2*>(exchange)};
    for (int64_t n = 0; n < run.batch; n += spread.each) {
      args.first_sequence = static_cast<int32_t>(n);
      args.sequences = static_cast<int32_t>(std::min(spread.each, run.batch - n));
      const int32_t teams = pieces_of(args.sequences, spread.team_sequences);
      if (cut.blocks > 1 && n > 0) {
        const auto bytes = static_cast<size_t>(word_bytes(layer, teams, spread.team_sequences));
        ISOBIT_RETURN_IF_ERROR(cuda_status(cudaMemsetAsync(exchange, 0, bytes, stream), "portable: words"));
      }
      // Blocks of a team wait for each other.
      const GridLaunch launch{static_cast<unsigned>(teams * cut.blocks), kPortableThreads, shared_of(layer), 0,
                              cut.blocks > 1};
      ISOBIT_RETURN_IF_ERROR(launch.run("kernel gru_portable", kernel_of<planes(), Ratio>(layer), stream, args));
    }
    return {};
  });
}

}  // namespace isobit::cuda
