// SPDX-License-Identifier: Apache-2.0
// libisobit_cuda.so, found at run time: libisobit.so and the Python package work without it.
#ifndef ISOBIT_CUDA_LIBRARY_H_
#define ISOBIT_CUDA_LIBRARY_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "cuda/functions.h"
#include "isobit/conv.h"
#include "isobit/dtype.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// The functions of libisobit_cuda.so: of the file that ISOBIT_CUDA_LIBRARY names, else of the one in the folder of the
/// library or module that calls this, else of what the loader finds. Looked for until it is found once.
/// kUnsupported: what is missing, or which versions differ.
Result<const isobit_cuda_functions*> library_functions();

/// What a function of that library returned, with its message.
Status library_status(const isobit_cuda_functions& functions, int32_t code);

/// What it takes of ConvLayer::create.
isobit_cuda_conv_shape library_shape(const ConvShape& shape);
/// The same of LinearOptions and ConvOptions. The bias stays theirs.
template <typename Options>
isobit_cuda_linear_options library_options(const Options& options) {
  return {options.bias.data(), std::ssize(options.bias), static_cast<int32_t>(options.activations), options.clamp.lo,
          options.clamp.hi};
}

/// The memory of a call, into its run.
template <typename Run>
void set_arrays(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                std::span<std::byte> workspace, Run& run) {
  run.x = x.data();
  run.x_bytes = std::ssize(x);
  run.x_dtype = static_cast<int32_t>(x_dtype);
  run.y = y.data();
  run.y_bytes = std::ssize(y);
  run.y_dtype = static_cast<int32_t>(y_dtype);
  run.workspace = workspace.data();
  run.workspace_bytes = std::ssize(workspace);
}

}  // namespace isobit::cuda

#endif  // ISOBIT_CUDA_LIBRARY_H_
