// SPDX-License-Identifier: Apache-2.0
#include "linear/cuda/few.cuh"

#include "core/cuda/grid_launch.h"

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

template <int Bits, RowsKind Kind>
Status run_kind(const ImageLayout& image, bool general, const FewPlan& plan, const FewArgs& args, bool early,
                cudaStream_t stream) {
  const bool fine = image.block_parts > 1;
  const auto columns = [&]<int Columns>() {
    if constexpr (Kind != RowsKind::kStatic) {
      if (fine) return launch<Bits, Kind, Columns, true, true>(image, plan, args, early, stream);
      if (general) return launch<Bits, Kind, Columns, false, true>(image, plan, args, early, stream);
    }
    return launch<Bits, Kind, Columns, false, false>(image, plan, args, early, stream);
  };
  if constexpr (Kind != RowsKind::kF32)
    if (args.x_columns <= kXTileRows) return columns.template operator()<kXTileRows>();
  return columns.template operator()<kFewMaxRows>();
}

template <int Bits>
Status run_bits(const ImageLayout& image, RowsKind kind, bool general, const FewPlan& plan, const FewArgs& args,
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
  switch (image.bits) {
    case 1: return run_bits<1>(image, kind, general, plan, args, early, stream);
    case 2: return run_bits<2>(image, kind, general, plan, args, early, stream);
    case 4: return run_bits<4>(image, kind, general, plan, args, early, stream);
    default: return run_bits<8>(image, kind, general, plan, args, early, stream);
  }
}

}  // namespace isobit::cuda
