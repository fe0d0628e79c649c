// SPDX-License-Identifier: Apache-2.0
// Times on a CUDA device: work is captured in a graph once and replayed, the figure is a median. Part of isobit::cuda.
#ifndef ISOBIT_CUDA_TIMER_H_
#define ISOBIT_CUDA_TIMER_H_

#include <cuda_runtime_api.h>

#include <functional>

#include "isobit/status.h"

namespace isobit::cuda {

/// How often a graph is replayed after three replays that do not count: until both are reached.
struct TimerOptions {
  int min_replays = 21;  // at least 1
  double min_seconds = 0;
};

/// Median microseconds of work(stream) on the current device; it launches and never waits. Its own error is returned.
Result<double> median_microseconds(const std::function<Status(cudaStream_t)>& work, const TimerOptions& options = {});

}  // namespace isobit::cuda

#endif  // ISOBIT_CUDA_TIMER_H_
