// SPDX-License-Identifier: Apache-2.0
// Integer GRUs, timed on a CUDA device.
#ifndef ISOBIT_BENCH_GRU_CUDA_H_
#define ISOBIT_BENCH_GRU_CUDA_H_

#include "bench/gru.h"
#include "isobit/cuda/gru.h"
#include "isobit/status.h"

namespace isobit::bench {

/// Median microseconds of all calls on random codes, replayed from a graph.
Result<double> time_gru(const cuda::DeviceGru& gru, const DeviceGruCase& c);

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_GRU_CUDA_H_
