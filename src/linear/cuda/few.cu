// SPDX-License-Identifier: Apache-2.0
#include "linear/cuda/few.cuh"

#include "core/cuda/grid_launch.h"
#include "linear/cuda/dispatch.h"

namespace isobit::cuda {
namespace {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ const int32_t compiled_with_bulk_copies = 1;
#else
__device__ const int32_t compiled_with_bulk_copies = 0;
#endif

template <int Bits, RowsKind Kind, int Columns, bool Fine, bool General>
Status launch(const ImageLayout& image, const FewPlan& plan, const FewArgs& args, bool early, cudaStream_t stream) {
  const auto kernel = few<Bits, Kind, Columns, Fine, General>;
  ISOBIT_RETURN_IF_ERROR(allow_shared(kernel, plan.shared, "few"));
  GridLaunch launch;
  launch.blocks = dim3(static_cast<unsigned>(image.strips * plan.cluster),
                       static_cast<unsigned>((args.x_columns + Columns - 1) / Columns));
  launch.threads = kFewThreads;
  launch.shared = plan.shared;
  launch.cluster = plan.cluster > 1 ? plan.cluster : 0;
  launch.early = early;
  return launch.run("few", kernel, stream, args);
}

}  // namespace

Result<bool> few_has_bulk_copies() {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, few<4, RowsKind::kCodes, kXTileRows, false, false>);
  if (error != cudaSuccess)
    return Status(StatusCode::kUnsupported, cuda_status(error, "the build has no code for the device").message());
  int32_t has = 0;
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaMemcpyFromSymbol(&has, compiled_with_bulk_copies, sizeof has), "code for sm_90"));
  return has != 0;
}

Status run_few(const ImageLayout& image, RowsKind kind, bool general, const FewPlan& plan, const FewArgs& args,
               bool early, cudaStream_t stream) {
  return run_for(image, kind, general, [&]<int Bits, RowsKind Kind, bool Fine, bool General>() {
    // Fewer kernels than there are cases: time goes into loading here.
    constexpr bool kGeneral = General || (Kind != RowsKind::kStatic && (Fine || Kind != RowsKind::kCodes));
    if constexpr (few_has_tile(Kind))
      if (args.x_columns <= kXTileRows)
        return launch<Bits, Kind, kXTileRows, Fine, kGeneral>(image, plan, args, early, stream);
    constexpr bool kFine = Fine || (Kind == RowsKind::kCodes && General);
    return launch<Bits, Kind, kFewMaxRows, kFine, kGeneral>(image, plan, args, early, stream);
  });
}

}  // namespace isobit::cuda
