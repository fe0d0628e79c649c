// SPDX-License-Identifier: Apache-2.0
// The self-checks of isobit/verify.h with a CUDA device as the one who computes. Part of isobit::cuda.
#ifndef ISOBIT_CUDA_VERIFY_H_
#define ISOBIT_CUDA_VERIFY_H_

#include <cstdint>
#include <string_view>

#include "isobit/status.h"
#include "isobit/verify.h"

namespace isobit::cuda {

/// Seeded random GRUs and runs through every kernel of the device with this number that can run them, until the runs
/// have given at least `minimum_outputs` outputs (counted once, whatever the number of kernels); y and last states are
/// compared byte for byte. C and H from 1 to 2100, N to 300, T to 200, widths of 2 to 24 bits (biases 8, gate inputs to
/// 16), every rounding, two layers and directions, chunks, lengths, masks, both layouts; a third of the runs take
/// floats and give floats, the others codes. Most models are small; one in 8 has codes of 8 bits, up to 1024 units and
/// many sequences, and gives most of the outputs. The expected bytes of a run of at most 40 million products come from
/// the reference; those of larger ones from the fastest CPU path that runs the model, which is compared with the
/// reference first (kFailedPrecondition where it differs); VerifyReport::expected_by counts both. CPU work is done on
/// all processors. `progress` (optional) receives `context` and the share done, 0 to 1.
Result<VerifyReport> verify_gru(int device, uint64_t minimum_outputs, uint64_t seed,
                                void (*progress)(void*, double fraction), void* context);

/// isobit::verify_fp16 with DeviceFp16Function and DeviceFp16Softmax as the kernels.
Result<VerifyReport> verify_fp16(int device, uint64_t minimum_outputs, uint64_t seed,
                                 void (*progress)(void*, double fraction), void* context);

/// The text of isobit::fingerprint_all: every operation that a device has is computed there, linear layers, of which it
/// has no kernels, on this processor.
/// `kernel`: of the GRU; models that it cannot run, and all of them where it is empty, take that of
/// DeviceGru::choose_kernel.
Result<Fingerprints> fingerprint_all(int device, std::string_view kernel = {});

}  // namespace isobit::cuda

#endif  // ISOBIT_CUDA_VERIFY_H_
