// SPDX-License-Identifier: Apache-2.0
// From what is known when a layer runs to the parameters of kernels' templates.
#ifndef ISOBIT_LINEAR_CUDA_DISPATCH_H_
#define ISOBIT_LINEAR_CUDA_DISPATCH_H_

#include "isobit/status.h"
#include "linear/cuda/image.h"
#include "linear/cuda/rows.h"

namespace isobit::cuda {

template <int Bits, RowsKind Kind, typename Run>
Status run_for_kind(const ImageLayout& image, bool general, const Run& run) {
  if constexpr (Kind != RowsKind::kStatic) {
    const bool fine = image.block_parts > 1;
    if (fine && general) return run.template operator()<Bits, Kind, true, true>();
    if (fine) return run.template operator()<Bits, Kind, true, false>();
    if (general) return run.template operator()<Bits, Kind, false, true>();
  }
  return run.template operator()<Bits, Kind, false, false>();
}

template <int Bits, typename Run>
Status run_for_bits(const ImageLayout& image, RowsKind kind, bool general, const Run& run) {
  switch (kind) {
    case RowsKind::kCodes: return run_for_kind<Bits, RowsKind::kCodes>(image, general, run);
    case RowsKind::kF16: return run_for_kind<Bits, RowsKind::kF16>(image, general, run);
    case RowsKind::kBF16: return run_for_kind<Bits, RowsKind::kBF16>(image, general, run);
    case RowsKind::kStatic: return run_for_kind<Bits, RowsKind::kStatic>(image, general, run);
    default: return run_for_kind<Bits, RowsKind::kF32>(image, general, run);
  }
}

/// Calls run.operator()<Bits, Kind, Fine, General>(). Fine: groups are smaller than a block. General: promotion needs
/// more than scales; of codes of x, than scales and zero points of weights.
template <typename Run>
Status run_for(const ImageLayout& image, RowsKind kind, bool general, const Run& run) {
  switch (image.bits) {
    case 1: return run_for_bits<1>(image, kind, general, run);
    case 2: return run_for_bits<2>(image, kind, general, run);
    case 4: return run_for_bits<4>(image, kind, general, run);
    default: return run_for_bits<8>(image, kind, general, run);
  }
}

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_DISPATCH_H_
