// SPDX-License-Identifier: Apache-2.0
// The integer side of a comparison (isobit/compare.h) on a CUDA device. Part of isobit::cuda.
#ifndef ISOBIT_CUDA_COMPARE_H_
#define ISOBIT_CUDA_COMPARE_H_

#include <memory>

#include "isobit/compare.h"
#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// For GruCompareOptions::source: runs the layers of `model` one after the other on the device with this number. Shows x
/// and h of every layer; what lies between does not leave the device.
Result<std::unique_ptr<GruCodeSource>> code_source(const GruModel& model, int device);

}  // namespace isobit::cuda

#endif  // ISOBIT_CUDA_COMPARE_H_
