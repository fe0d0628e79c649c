// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_GRU_CUDA_LIMITS_H_
#define ISOBIT_GRU_CUDA_LIMITS_H_

#include "isobit/status.h"

namespace isobit::cuda {

/// The device that a model is on.
struct DeviceLimits {
  int device = 0;
  int processors = 0;
  int major = 0;             // of the compute capability
  int block_shared = 0;      // bytes of shared memory that a block may ask for
  int processor_shared = 0;  // that a processor has
};

/// Of the current device.
Result<DeviceLimits> current_device_limits();

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_LIMITS_H_
