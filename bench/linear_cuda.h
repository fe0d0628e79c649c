// SPDX-License-Identifier: Apache-2.0
// Linear layers, timed on a CUDA device.
#ifndef ISOBIT_BENCH_LINEAR_CUDA_H_
#define ISOBIT_BENCH_LINEAR_CUDA_H_

#include <cstdint>
#include <memory>

#include "bench/linear.h"
#include "isobit/status.h"

namespace isobit::bench {

/// On the device with this number, which becomes the current one. Copies of the weights, 64 at most, take `footprint`
/// bytes or more together; a call of each is captured in a graph, which is replayed.
Result<std::unique_ptr<LinearBench>> linear_bench_on_device(const LinearProblem& problem, int device,
                                                            int64_t footprint);

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_LINEAR_CUDA_H_
