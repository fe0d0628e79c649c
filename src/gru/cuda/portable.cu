// SPDX-License-Identifier: Apache-2.0
#include "gru/cuda/portable.h"

#include <algorithm>
#include <bit>
#include <string>

#include "core/cuda/status.h"
#include "gru/cuda/portable.cuh"

namespace isobit::cuda {
namespace {

template <typename Ratio>
using Kernel = void (*)(PortableArgs<Ratio>);

template <typename Ratio>
Kernel<Ratio> kernel_of(const PersistentLayer& layer) {
  return with_planes<Ratio>(layer.h_planes, [&](auto planes) -> Kernel<Ratio> {
    return layer.portable.warp_tiles == 4 ? gru_portable<4, planes(), Ratio> : gru_portable<8, planes(), Ratio>;
  });
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

template <typename Ratio>
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
  const Kernel<Ratio> kernel = kernel_of<Ratio>(layer);
  const int32_t shared = shared_of(layer);
  int blocks = 0;
  if (shared <= limits.block_shared) {
    ISOBIT_RETURN_IF_ERROR(
        cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limits.block_shared),
                    "portable: shared memory"));
    ISOBIT_RETURN_IF_ERROR(cuda_status(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kPortableThreads, static_cast<size_t>(shared)),
        "blocks on the device"));
  }
  cut.teams = blocks * limits.processors / cut.blocks;
  if (cut.teams == 0)
    return {StatusCode::kUnsupported, "the device has no room for a team of thread blocks that holds R"};
  return {};
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

int64_t portable_launches(const PersistentLayer& layer, int64_t batch) {
  return pieces_of(batch, spread_of(layer.portable, batch).each);
}

template <typename Ratio>
Status launch_portable(const PersistentLayer& layer, const PersistentChunk& chunk, std::byte* exchange,
                       cudaStream_t stream) {
  const PortableCut& cut = layer.portable;
  const Spread spread = spread_of(cut, chunk.batch);
  PortableArgs<Ratio> a{};
  set_recurrence(a, layer, chunk);
  a.fragments = layer.fragments;
  a.k_tiles = layer.k_tiles;
  a.blocks = cut.blocks;
  a.groups_log2 = log2_of(cut.unit_blocks);
  a.team_sequences = spread.team_sequences;
  a.room_log2 = log2_of(spread.team_sequences);
  a.words = reinterpret_cast<uint2*>(exchange);
  for (int64_t n = 0; n < chunk.batch; n += spread.each) {
    a.first_sequence = static_cast<int32_t>(n);
    a.sequences = static_cast<int32_t>(std::min(spread.each, chunk.batch - n));
    const int32_t teams = pieces_of(a.sequences, spread.team_sequences);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(teams * cut.blocks));
    config.blockDim = dim3(kPortableThreads);
    config.dynamicSmemBytes = static_cast<size_t>(shared_of(layer));
    config.stream = stream;
    // Blocks of a team wait for each other: all of them are on the device at once, or the launch fails.
    cudaLaunchAttribute cooperative{};
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    if (cut.blocks > 1) {
      const auto bytes = static_cast<size_t>(word_bytes(layer, teams, spread.team_sequences));
      if (n > 0) ISOBIT_RETURN_IF_ERROR(cuda_status(cudaMemsetAsync(exchange, 0, bytes, stream), "portable: words"));
      config.attrs = &cooperative;
      config.numAttrs = 1;
    }
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaLaunchKernelEx(&config, kernel_of<Ratio>(layer), a), "kernel gru_portable"));
  }
  return {};
}

#define ISOBIT_PORTABLE_LANES(Ratio)                                              \
  template Status prepare_portable<Ratio>(PersistentLayer&, const DeviceLimits&); \
  template Status launch_portable<Ratio>(const PersistentLayer&, const PersistentChunk&, std::byte*, cudaStream_t);
ISOBIT_PORTABLE_LANES(float)
ISOBIT_PORTABLE_LANES(Fixed)
ISOBIT_PORTABLE_LANES(WideFixed)
ISOBIT_PORTABLE_LANES(double)
#undef ISOBIT_PORTABLE_LANES

}  // namespace isobit::cuda
