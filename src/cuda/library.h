// SPDX-License-Identifier: Apache-2.0
// libisobit_cuda.so, found at run time: libisobit.so and the Python package work without it.
#ifndef ISOBIT_CUDA_LIBRARY_H_
#define ISOBIT_CUDA_LIBRARY_H_

#include "cuda/functions.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// The functions of libisobit_cuda.so: of the file that ISOBIT_CUDA_LIBRARY names, else of the one in the folder of the
/// library or module that calls this, else of what the loader finds. Looked for until it is found once.
/// kUnsupported: what is missing, or which versions differ.
Result<const isobit_cuda_functions*> library_functions();

/// What a function of that library returned, with its message.
Status library_status(const isobit_cuda_functions& functions, int32_t code);

}  // namespace isobit::cuda

#endif  // ISOBIT_CUDA_LIBRARY_H_
