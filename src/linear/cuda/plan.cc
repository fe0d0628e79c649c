// SPDX-License-Identifier: Apache-2.0
#include "linear/cuda/plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/cuda/arguments.h"
#include "core/cuda/status.h"

namespace isobit::cuda {
namespace {

int64_t pieces(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }
int64_t aligned(int64_t bytes) { return pieces(bytes, 128) * 128; }

constexpr int64_t kReservedShared = 1024;  // of each block, by the system

ProductArgs product_args(const ImageLayout& image, const RowsLayout& rows, int64_t m, int64_t x_columns) {
  ProductArgs a{};
  const RowsKind kind = rows.kind;
  a.m = m;
  a.x_columns = x_columns;
  a.n = image.rows;
  a.strips = static_cast<int32_t>(image.strips);
  a.blocks = static_cast<int32_t>(image.blocks);
  a.used_blocks = static_cast<int32_t>(image.used_blocks);
  a.groups = static_cast<int32_t>(image.groups);
  a.group_blocks = static_cast<int32_t>(image.group_blocks);
  a.block_groups = static_cast<int32_t>(std::max<int64_t>(1, kBlockDepth / image.padded_group));
  a.x_parts = static_cast<int32_t>(rows.parts);
  a.x_part_bytes = kind == RowsKind::kStatic ? 0 : static_cast<int32_t>(rows.part_bytes);
  a.x_block_parts = image.block_parts;
  a.whole = is_integer(kind) && image.groups == 1;
  const int64_t chunk_positions = kChunkGroups * image.padded_group;
  a.chunk_blocks = a.whole ? kBlocksStep : static_cast<int32_t>(chunk_positions / kBlockDepth);
  // The order of float sums is ours.
  if (!is_integer(kind)) a.chunk_blocks = std::min(a.chunk_blocks, kChunkGroups);
  a.chunks = static_cast<int32_t>(pieces(a.blocks, a.chunk_blocks));
  a.record_bytes = image.record_bytes;
  a.zero_points_at = image.zero_points_at;
  a.offsets_at = image.offsets_at;
  a.sums_at = image.sums_at;
  return a;
}

/// Sums of other blocks of a cluster that its first one gets.
int64_t sums_of_others(const ProductArgs& a, int32_t cluster, int32_t rank_chunks) {
  return cluster == 1 ? 0 : a.whole ? cluster - 1 : std::max(0, a.chunks - rank_chunks);
}
/// A block would have nothing to do.
bool is_idle(const ProductArgs& a, int32_t cluster, int32_t rank_chunks) {
  return static_cast<int64_t>(rank_chunks) * (cluster - 1) >= a.chunks;
}

// ---------------------------------------------------------------------------------------------------------------
// Few rows

int few_columns(RowsKind kind, int64_t x_columns) {
  return x_columns <= kXTileRows && few_has_tile(kind) ? kXTileRows : kFewMaxRows;
}

/// Blocks of threads that share a strip: as many as give each processor the least to do one after the other; of equal
/// ones, those of which about four are on a processor.
void plan_few(const LinearDevice& device, const ImageLayout& image, RowsKind kind, LinearPlan& result) {
  FewArgs& a = result.few_args;
  FewPlan& plan = result.few;
  a.group_steps = static_cast<int32_t>(image.padded_group / kStepDepth);
  const int columns = few_columns(kind, a.x_columns);
  const int turn = few_turn_blocks(image.bits);
  const int64_t strips = image.strips * pieces(a.x_columns, columns);
  constexpr double kWanted = 4;
  constexpr int64_t kMostReceived = 65536;
  const auto received = [&](int32_t cluster, int32_t rank_chunks) {
    return sums_of_others(a, cluster, rank_chunks) * columns * kStripRows * static_cast<int64_t>(sizeof(float));
  };
  double least = 0;
  for (int32_t cluster = 1; cluster <= (device.bulk_copies ? std::min(kFewMaxCluster, a.chunks) : 1); ++cluster) {
    const auto rank_chunks = static_cast<int32_t>(pieces(a.chunks, cluster));
    if (received(cluster, rank_chunks) > kMostReceived || is_idle(a, cluster, rank_chunks)) continue;
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

  const int64_t groups =
      image.padded_group >= kBlockDepth ? (turn - 2) / image.group_blocks + 2 : turn * int64_t{a.block_groups};
  const int64_t x_parts = kind == RowsKind::kCodes ? groups : turn * image.block_parts;
  const int tiles = columns / kXTileRows;
  a.parameters_at = static_cast<int32_t>(turn * image.block_bytes());
  a.x_at = static_cast<int32_t>(aligned(a.parameters_at + groups * image.record_bytes));
  a.x_parameters_at = static_cast<int32_t>(a.x_at + tiles * turn * row_block_bytes(kind));
  a.stage_bytes = static_cast<int32_t>(aligned(a.x_parameters_at + x_parts * tiles * a.x_part_bytes));
  a.stages_at = static_cast<int32_t>(pieces(kFewExchange + received(a.cluster, a.rank_chunks), 1024) * 1024);

  constexpr int64_t kMostStages = 8;
  // Clusters do not fill all processors of their part of the device, so that more must fit one than there are for it.
  const int64_t resident =
      std::clamp<int64_t>(pieces(strips * a.cluster, device.processors) + (a.cluster > 2 ? 1 : 0), 1, 5);
  const int64_t room = (device.shared + kReservedShared) / resident - kReservedShared - a.stages_at;
  const int64_t turns = pieces(int64_t{a.rank_chunks} * a.chunk_blocks, turn);
  const int64_t wanted = device.bulk_copies ? std::min(turns, kMostStages) : kFewOldStages;
  plan.stages =
      static_cast<int32_t>(std::clamp<int64_t>(room / a.stage_bytes, device.bulk_copies ? 1 : wanted, wanted));
  a.stages = plan.stages;
  plan.shared = a.stages_at + int64_t{plan.stages} * a.stage_bytes;
}

// ---------------------------------------------------------------------------------------------------------------
// Many rows

/// Clocks of a processor.
struct ManyCosts {
  double multiply, promote;  // of a block, for one row of x and a strip
  double block;              // what else a block takes
  double tile = 2500, cluster = 1500;
  double bytes = 20;  // that come in a clock
};
ManyCosts many_costs(const ImageLayout& image, RowsKind kind) {
  ManyCosts costs{};
  const bool codes = kind == RowsKind::kCodes;
  costs.multiply = 0.5 * static_cast<double>(row_block_bytes(kind)) / 256;
  costs.promote = kind == RowsKind::kStatic ? 0
                  : codes ? 2.2 * static_cast<double>(kBlockDepth) / static_cast<double>(image.padded_group)
                          : 0.7 * static_cast<double>(image.block_parts);
  costs.block = 250;
  return costs;
}

/// Whether warpgroups have few rows of x. There are no such kernels of float32.
bool has_few_columns(RowsKind kind, int64_t x_columns) {
  return x_columns <= kManyMostColumns / 2 && kind != RowsKind::kF32;
}
int64_t many_rows(RowsKind kind, int64_t m) {
  if (has_few_columns(kind, m)) return kManyMostColumns / 2;
  const int64_t step = kind == RowsKind::kStatic && m > kManyMostColumns ? kManyStaticColumns : kManyMostColumns;
  return pieces(m, step) * step;
}

/// The division that takes the least time.
void plan_many(const LinearDevice& device, const ImageLayout& image, RowsKind kind, LinearPlan& result) {
  ManyArgs& best = result.many_args;
  const ManyCosts costs = many_costs(image, kind);
  double least = 0;
  const auto consider = [&](int32_t columns, int32_t cluster, int32_t neighbours) {
    if ((columns == kManyFewColumns) != has_few_columns(kind, best.x_columns)) return;
    if (columns == kManyStaticColumns && (kind != RowsKind::kStatic || best.x_columns <= kManyMostColumns)) return;
    ManyArgs a = best;
    a.tile_slabs = columns / (kManySlabTiles * kXTileRows);
    a.cluster = cluster;
    a.neighbours = neighbours;
    a.rank_chunks = static_cast<int32_t>(pieces(a.chunks, cluster));
    if (is_idle(a, cluster, a.rank_chunks)) return;
    a.w_tiles = static_cast<int32_t>(pieces(a.strips, kManyGroups * neighbours));
    a.x_tiles = static_cast<int32_t>(pieces(a.x_columns, columns));
    const int64_t tiles = int64_t{a.w_tiles} * a.x_tiles;
    const int64_t clusters = device.processors / (cluster * neighbours);  // that run at once
    if (cluster > 1 && tiles > clusters) return;

    const int64_t x_parts = a.x_part_bytes == 0 ? 0 : kind == RowsKind::kCodes ? a.block_groups : a.x_block_parts;
    a.parameters_at = static_cast<int32_t>(kManyGroups * image.block_bytes());
    a.x_at =
        static_cast<int32_t>(aligned(a.parameters_at + int64_t{kManyGroups} * a.block_groups * image.record_bytes));
    const int64_t x_bytes = a.tile_slabs * kManySlabTiles * row_block_bytes(kind);
    a.x_parameters_at = static_cast<int32_t>(a.x_at + x_bytes);
    a.x_slab_parameters = static_cast<int32_t>(x_parts * kManySlabTiles * a.x_part_bytes);
    a.stage_bytes = static_cast<int32_t>(aligned(a.x_parameters_at + int64_t{a.tile_slabs} * a.x_slab_parameters));
    const int64_t received = sums_of_others(a, cluster, a.rank_chunks) * kManyGroups * many_sums_bytes(columns);
    a.stages_at = static_cast<int32_t>(pieces(kManyExchange + received, 1024) * 1024);
    constexpr int64_t kMostStages = 8;
    const int64_t stages = std::min<int64_t>(kMostStages, (device.shared - a.stages_at) / a.stage_bytes);
    if (stages < 2) return;
    a.stages = static_cast<int32_t>(stages);

    const double products = costs.multiply * columns, alone = products + costs.promote * columns + costs.block;
    const double loaded = static_cast<double>(a.x_at) + static_cast<double>(a.stage_bytes - a.x_at) / neighbours;
    const double block = std::max({alone, products * kManyGroups,
                                   (products + costs.promote * columns) * 0.9 * kManyGroups, loaded / costs.bytes});
    const double blocks = std::min<double>(a.used_blocks, static_cast<double>(a.rank_chunks) * a.chunk_blocks);
    const auto rounds = static_cast<double>(pieces(tiles, clusters));
    const double cost = rounds * (blocks * block + costs.tile) + (cluster > 1 ? costs.cluster : 0);
    if (result.many && cost >= least) return;
    least = cost;
    best = a;
    result.many = ManyPlan{.columns = columns,
                           .blocks = static_cast<int32_t>(std::min(tiles, clusters) * cluster * neighbours),
                           .shared = a.stages_at + stages * a.stage_bytes};
  };
  for (const int32_t columns : {kManyStaticColumns, kManyMostColumns, kManyFewColumns}) {
    for (int32_t cluster = 1; cluster <= std::min(8, best.chunks); ++cluster) consider(columns, cluster, 1);
    if (columns != kManyFewColumns) consider(columns, 1, kManyMostNeighbours);
  }
}

bool is_for_many(const LinearDevice& device, int64_t m) { return device.wgmma && m > kFewMaxRows; }

}  // namespace

Result<LinearDevice> LinearDevice::current() {
  LinearDevice device;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device.number), "the current device"));
  int major = 0;
  const std::pair<cudaDeviceAttr, int*> wanted[] = {{cudaDevAttrComputeCapabilityMajor, &major},
                                                    {cudaDevAttrMultiProcessorCount, &device.processors},
                                                    {cudaDevAttrMaxSharedMemoryPerBlockOptin, &device.shared}};
  for (const auto& [attribute, value] : wanted)
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaDeviceGetAttribute(value, attribute, device.number), "device attributes"));
  ISOBIT_ASSIGN_OR_RETURN(device.bulk_copies, few_has_bulk_copies());
  if (major == 9) {  // the file of `many` has no code at all for others
    ISOBIT_ASSIGN_OR_RETURN(device.wgmma, many_can_run());
  }
  return device;
}

LinearPlan plan_linear(const LinearDevice& device, const ImageLayout& image, RowsKind kind, int64_t m,
                       bool x_parameters) {
  LinearPlan plan;
  if (is_for_many(device, m)) {
    plan.rows = RowsLayout::of(image, kind, x_parameters, many_rows(kind, m), kManySlabTiles);
    static_cast<ProductArgs&>(plan.many_args) = product_args(image, plan.rows, m, m);
    plan_many(device, image, kind, plan);
    if (plan.many) return plan;
  }
  plan.rows = RowsLayout::of(image, kind, x_parameters, m, few_columns(kind, m) / kXTileRows);
  static_cast<ProductArgs&>(plan.few_args) = product_args(image, plan.rows, m, m);
  plan_few(device, image, kind, plan);
  return plan;
}

LinearPlan plan_static(const LinearDevice& device, const ImageLayout& image, int32_t planes, int64_t m) {
  LinearPlan plan;
  const int64_t x_columns = planes == 1 ? m : pieces(m, kXTileRows) * kXTileRows * planes;
  const bool many = is_for_many(device, x_columns);
  plan.rows = RowsLayout::of_static(image, planes, many ? many_rows(RowsKind::kStatic, x_columns) / planes : m,
                                    many ? kManySlabTiles : few_columns(RowsKind::kStatic, x_columns) / kXTileRows);
  static_cast<ProductArgs&>(plan.many_args) = product_args(image, plan.rows, m, x_columns);
  static_cast<ProductArgs&>(plan.few_args) = plan.many_args;
  if (many) {
    plan_many(device, image, RowsKind::kStatic, plan);
  } else {
    plan_few(device, image, RowsKind::kStatic, plan);
  }
  return plan;
}

int64_t most_row_bytes(const LinearDevice& device, const ImageLayout& image, RowsKind kind, int64_t m) {
  const int64_t rows =
      is_for_many(device, m) ? many_rows(kind, m) : pieces(std::max<int64_t>(m, 0), kFewMaxRows) * kFewMaxRows;
  return aligned_size(RowsLayout::of(image, kind, true, rows, 1).bytes());
}

}  // namespace isobit::cuda
