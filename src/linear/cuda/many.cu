// SPDX-License-Identifier: Apache-2.0
#include "linear/cuda/many.cuh"

#include "core/cuda/grid_launch.h"
#include "linear/cuda/dispatch.h"

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
  const int32_t cluster = args.cluster * args.neighbours;
  launch.cluster = cluster > 1 ? cluster : 0;
  launch.early = early;
  return launch.run("many", kernel, stream, args);
}

}  // namespace

Result<bool> many_can_run() { return has_90a_code(); }

Status run_many(const ImageLayout& image, RowsKind kind, bool general, const ManyPlan& plan, const ManyArgs& args,
                bool early, cudaStream_t stream) {
  return run_for(image, kind, general, [&]<int Bits, RowsKind Kind, bool Fine, bool General>() {
    if constexpr (Kind == RowsKind::kStatic)
      if (plan.columns == kManyStaticColumns)
        return launch<Bits, Kind, kManyStaticColumns, Fine, General>(plan, args, early, stream);
    if constexpr (Kind != RowsKind::kF32)
      if (plan.columns == kManyFewColumns)
        return launch<Bits, Kind, kManyFewColumns, Fine, General>(plan, args, early, stream);
    return launch<Bits, Kind, kManyMostColumns, Fine, General>(plan, args, early, stream);
  });
}

}  // namespace isobit::cuda
