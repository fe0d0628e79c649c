// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/cuda/status.h"
#include "linear/cuda/few.h"

namespace isobit::cuda {
namespace {

int64_t pieces(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }

/// What the first block of a cluster gets from the others.
int64_t received_bytes(const FewArgs& a, int32_t cluster, int32_t rank_chunks, int columns) {
  const int64_t others = cluster == 1 ? 0 : a.whole ? cluster - 1 : std::max(0, a.chunks - rank_chunks);
  return others * columns * kStripRows * static_cast<int64_t>(sizeof(float));
}
constexpr int64_t kMostReceived = 65536;

}  // namespace

Result<FewDevice> FewDevice::current() {
  FewDevice device;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device.number), "the current device"));
  const std::pair<cudaDeviceAttr, int*> wanted[] = {{cudaDevAttrMultiProcessorCount, &device.processors},
                                                    {cudaDevAttrMaxSharedMemoryPerBlockOptin, &device.shared}};
  for (const auto& [attribute, value] : wanted)
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaDeviceGetAttribute(value, attribute, device.number), "device attributes"));
  ISOBIT_ASSIGN_OR_RETURN(device.bulk_copies, few_has_bulk_copies());
  return device;
}

FewPlan plan_few(const FewDevice& device, const ImageLayout& image, RowsKind kind, FewArgs& a) {
  const int columns = a.x_columns <= kXTileRows && kind != RowsKind::kF32 ? kXTileRows : kFewMaxRows;
  const int turn = few_turn_blocks(image.bits);
  const int64_t strips = image.strips * pieces(a.x_columns, columns);
  constexpr double kWanted = 4;
  FewPlan plan;
  double least = 0;
  for (int32_t cluster = 1; cluster <= (device.bulk_copies ? std::min(kFewMaxCluster, a.chunks) : 1); ++cluster) {
    const auto rank_chunks = static_cast<int32_t>(pieces(a.chunks, cluster));
    if (received_bytes(a, cluster, rank_chunks, columns) > kMostReceived) continue;
    if (static_cast<int64_t>(rank_chunks) * (cluster - 1) >= a.chunks) continue;  // one would have nothing to do
    const int64_t of_processor = pieces(strips * cluster, device.processors);
    const double cost =
        static_cast<double>(of_processor * rank_chunks) + 0.01 * std::abs(static_cast<double>(of_processor) - kWanted);
    if (plan.cluster == 0 || cost < least) {
      least = cost;
      plan.cluster = cluster;
      a.rank_chunks = rank_chunks;
    }
  }
  a.cluster = plan.cluster;

  const auto aligned = [](int64_t bytes) { return pieces(bytes, 128) * 128; };
  const int64_t groups =
      image.padded_group >= kBlockDepth ? (turn - 2) / image.group_blocks + 2 : turn * int64_t{a.block_groups};
  const int64_t x_parts = kind == RowsKind::kCodes ? groups : turn * image.block_parts;
  const int tiles = columns / kXTileRows;
  a.parameters_at = static_cast<int32_t>(turn * image.block_bytes());
  a.x_at = static_cast<int32_t>(aligned(a.parameters_at + groups * image.record_bytes));
  a.x_parameters_at = static_cast<int32_t>(a.x_at + tiles * turn * row_block_bytes(kind));
  a.x_parameters_bytes = static_cast<int32_t>(aligned(x_parts * a.x_part_bytes));
  a.stage_bytes = a.x_parameters_at + tiles * a.x_parameters_bytes;
  a.stages_at =
      static_cast<int32_t>(pieces(kFewExchange + received_bytes(a, a.cluster, a.rank_chunks, columns), 1024) * 1024);

  constexpr int64_t kReserved = 1024;  // of each block, by the system
  constexpr int64_t kMostStages = 8;
  // Clusters do not fill all processors of their part of the device, so that more must fit one than there are for it.
  const int64_t resident =
      std::clamp<int64_t>(pieces(strips * a.cluster, device.processors) + (a.cluster > 2 ? 1 : 0), 1, 5);
  const int64_t room = (device.shared + kReserved) / resident - kReserved - a.stages_at;
  const int64_t turns = pieces(int64_t{a.rank_chunks} * a.chunk_blocks, turn);
  const int64_t wanted = device.bulk_copies ? std::min(turns, kMostStages) : kFewOldStages;
  plan.stages =
      static_cast<int32_t>(std::clamp<int64_t>(room / a.stage_bytes, device.bulk_copies ? 1 : wanted, wanted));
  a.stages = plan.stages;
  plan.shared = a.stages_at + int64_t{plan.stages} * a.stage_bytes;
  return plan;
}

}  // namespace isobit::cuda
