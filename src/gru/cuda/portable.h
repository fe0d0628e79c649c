// SPDX-License-Identifier: Apache-2.0
// The host side of gru_portable (portable.cuh): layers to H = 2048 on devices without clusters.
#ifndef ISOBIT_GRU_CUDA_PORTABLE_H_
#define ISOBIT_GRU_CUDA_PORTABLE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gru/cuda/limits.h"
#include "gru/cuda/persistent.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// layer.portable and groups, on the current device; the kernel's attributes there. kUnsupported: no room for a team.
template <typename Ratio>
Status prepare_portable(PersistentLayer& layer, const DeviceLimits& limits);

/// Device memory that crosses between blocks in runs of up to `batch` sequences.
int64_t portable_exchange_bytes(const PersistentLayer& layer, int64_t batch);

/// Of a chunk of a run of so many sequences.
int64_t portable_launches(const PersistentLayer& layer, int64_t batch);

/// Of these, from the first one on, those that are zero when a run of so many sequences begins: numbers of states.
int64_t portable_zeroed_bytes(const PersistentLayer& layer, int64_t batch);

/// `exchange`: portable_exchange_bytes, of which the first portable_zeroed_bytes are zero.
template <typename Ratio>
Status launch_portable(const PersistentLayer& layer, const PersistentChunk& chunk, std::byte* exchange,
                       cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_PORTABLE_H_
