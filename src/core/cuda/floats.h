// SPDX-License-Identifier: Apache-2.0
// Floats in device memory in place of codes, for kernels that quantise them as they read (quantize.cuh).
#ifndef ISOBIT_CORE_CUDA_FLOATS_H_
#define ISOBIT_CORE_CUDA_FLOATS_H_

#include <cstdint>

namespace isobit::cuda {

/// Indices of NaN that a search keeps, one for each block of its first launch; the least is the first.
inline constexpr uint32_t kNanPlaces = 1024;
inline constexpr unsigned long long kNoNan = ~0ull;

/// What quantises floats. Nothing where `first` is null: there are codes.
struct DeviceFloats {
  const float* first = nullptr;  // what an index of NaN counts from
  float inverse_scale = 0;
  int64_t min = 0, max = 0, zero_point = 0;  // of codes
  unsigned long long* nans = nullptr;        // [kNanPlaces]; null: nobody looks for NaN
  bool begins = false;                       // this launch is the first of a search and sets all places
};

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_FLOATS_H_
