// SPDX-License-Identifier: Apache-2.0
// isobit/cuda/timer.h for benchmarks, which end where something fails.
#ifndef ISOBIT_TESTING_CUDA_TIMER_H_
#define ISOBIT_TESTING_CUDA_TIMER_H_

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "isobit/cuda/timer.h"
#include "isobit/status.h"

namespace isobit::testing {

inline void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

/// cuda::median_microseconds of work(stream), for programs that end where it fails. What the work touches should be far
/// larger than the second-level cache, or differ from launch to launch.
template <typename Work>
double median_microseconds(const Work& work, int repeats = 21) {
  const Result<double> median = cuda::median_microseconds(
      [&](cudaStream_t stream) {
        work(stream);
        return Status();
      },
      {.min_replays = repeats});
  if (median.ok()) return *median;
  std::fprintf(stderr, "%s\n", median.status().message().c_str());
  std::exit(1);
}

}  // namespace isobit::testing

#endif  // ISOBIT_TESTING_CUDA_TIMER_H_
