// SPDX-License-Identifier: Apache-2.0
#include "gru/training/body.h"

namespace isobit {

GruTrainingKernels gru_training_scalar() { return training_kernels<ScalarLanes, 4>(); }

}  // namespace isobit
