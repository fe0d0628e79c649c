// SPDX-License-Identifier: Apache-2.0
#include "linear/cuda/many.cuh"

#include "core/cuda/grid_launch.h"

namespace isobit::cuda {
namespace {

template <int Bits, RowsKind Kind, int Columns, bool Fine, bool General>
Status launch(const ManyPlan& plan, const ManyArgs& args, bool early, cudaStream_t stream) {
  const auto kernel = many<Bits, Kind, Columns, Fine, General>;
  ISOBIT_RETURN_IF_ERROR(allow_shared(kernel, plan.shared, "many"));
  GridLaunch launch;
  launch.blocks = dim3(static_cast<unsigned>(plan.blocks));
  launch.threads = kManyThreads;
  launch.shared = plan.shared;
  launch.cluster = args.cluster > 1 ? args.cluster : 0;
  launch.early = early;
  return launch.run("many", kernel, stream, args);
}

template <int Bits, RowsKind Kind>
Status run_kind(const ImageLayout& image, bool general, const ManyPlan& plan, const ManyArgs& args, bool early,
                cudaStream_t stream) {
  const auto columns = [&]<int Columns>() {
    if constexpr (Kind != RowsKind::kStatic) {
      if (image.block_parts > 1) return launch<Bits, Kind, Columns, true, true>(plan, args, early, stream);
      if (general) return launch<Bits, Kind, Columns, false, true>(plan, args, early, stream);
    }
    return launch<Bits, Kind, Columns, false, false>(plan, args, early, stream);
  };
  if (plan.columns == kManyMostColumns) return columns.template operator()<kManyMostColumns>();
  return columns.template operator()<kManyFewColumns>();
}

template <int Bits>
Status run_bits(const ImageLayout& image, RowsKind kind, bool general, const ManyPlan& plan, const ManyArgs& args,
                bool early, cudaStream_t stream) {
  switch (kind) {
    case RowsKind::kCodes: return run_kind<Bits, RowsKind::kCodes>(image, general, plan, args, early, stream);
    case RowsKind::kF16: return run_kind<Bits, RowsKind::kF16>(image, general, plan, args, early, stream);
    case RowsKind::kBF16: return run_kind<Bits, RowsKind::kBF16>(image, general, plan, args, early, stream);
    case RowsKind::kStatic: return run_kind<Bits, RowsKind::kStatic>(image, general, plan, args, early, stream);
    default: return run_kind<Bits, RowsKind::kF32>(image, general, plan, args, early, stream);
  }
}

}  // namespace

Result<bool> many_can_run() { return has_90a_code(); }

Status run_many(const ImageLayout& image, RowsKind kind, bool general, const ManyPlan& plan, const ManyArgs& args,
                bool early, cudaStream_t stream) {
  switch (image.bits) {
    case 1: return run_bits<1>(image, kind, general, plan, args, early, stream);
    case 2: return run_bits<2>(image, kind, general, plan, args, early, stream);
    case 4: return run_bits<4>(image, kind, general, plan, args, early, stream);
    default: return run_bits<8>(image, kind, general, plan, args, early, stream);
  }
}

}  // namespace isobit::cuda
