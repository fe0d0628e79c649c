// SPDX-License-Identifier: Apache-2.0
// The self-checks of isobit/verify.h with a CUDA device as the one who computes. Part of isobit::cuda.
#ifndef ISOBIT_CUDA_VERIFY_H_
#define ISOBIT_CUDA_VERIFY_H_

#include <string_view>
#include <vector>

#include "isobit/status.h"
#include "isobit/verify.h"

namespace isobit::cuda {

/// Names for VerifyOptions: the operations of which a device has kernels, "fp16_table", "gru", "linear" and "conv".
std::vector<std::string_view> verify_operations();

/// isobit::verify_kernels with the kernels of the device with this number. Leaves that device the current one.
///   gru: runs through every kernel that can run them, until the runs have given at least options.outputs outputs,
///     counted once, whatever the number of kernels. C and H from 1 to 2100, N to 300, T to 200, widths of 2 to 24 bits
///     (biases 8, gate inputs to 16), every rounding, two layers and directions, chunks, lengths, masks, both layouts;
///     a third of the runs take floats and give floats, the others codes. Most models are small; one in 8 has codes of
///     8 bits, up to 1024 units and many sequences, and gives most of the outputs. The expected bytes of a run of at
///     most 40 million products come from the reference; those of larger ones from the fastest CPU path that runs the
///     model, which is compared with the reference first (kFailedPrecondition where it differs);
///     VerifyReport::expected_by counts those. CPU work is done on all processors.
///   fp16_table: DeviceFp16Function and DeviceFp16Softmax.
///   linear: random layers with x in floats, quantised to 8 bits in the call, or static codes: M to 300, N to 600, K to
///     6000, groups from 8 elements to K, every width and kind. Expected bytes come from the best path of the CPU, of
///     one layer in 100 from the reference; that path is compared with the reference first, as above. Rows of float
///     activations are judged as on the CPU, each also in calls with other rows, or alone. The kernels of an operation
///     share options.outputs by the rows of the layers, each with a thousandth at least.
///   conv: random convolutions of static codes, C and O to 1200, images to 120 x 120, every shape, width and residual.
///     Expected bytes as of linear layers. Each kernel gives at least options.outputs.
/// Other operations are refused (kInvalidArgument).
Result<VerifyReport> verify_kernels(int device, const VerifyOptions& options = {});

/// isobit::verify_model with the kernels of a device, which are named "cuda_generic" and so on.
Result<VerifyReport> verify_model(const GruModel& model, int device, const VerifyOptions& options = {});

/// The text of isobit::fingerprint_all, computed on a device, but for conv_int8, of which it has no kernels. `kernel`:
/// of the GRU; models that it cannot run, and all of them where it is empty, take that of DeviceGru::choose_kernel.
Result<Fingerprints> fingerprint_all(int device, std::string_view kernel = {});

}  // namespace isobit::cuda

#endif  // ISOBIT_CUDA_VERIFY_H_
