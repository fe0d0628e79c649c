// SPDX-License-Identifier: Apache-2.0
// Steps as products of whole matrices, for many sequences of large layers: W and R are read anew in each, by all of the
// device at once.
#ifndef ISOBIT_GRU_CUDA_PRODUCTS_H_
#define ISOBIT_GRU_CUDA_PRODUCTS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gru/cuda/limits.h"
#include "gru/cuda/persistent.h"
#include "isobit/status.h"
#include "product/cuda/product.h"

namespace isobit::cuda {

/// Prepares the kernels on the current device and sets layer.products_room. kUnsupported: they do not run the layer
/// there.
Status prepare_products(PersistentLayer& layer, const DeviceLimits& limits);

/// How often the blocks of a step fill the device.
int64_t products_rounds(const PersistentLayer& layer, int64_t batch);

/// x and h of so many sequences as the kernel takes them.
int64_t products_padded_bytes(const PersistentLayer& layer, int64_t batch);

/// The steps of the chunk, one launch each, and one before it for what has to be padded of x and h: what are not bytes
/// of signed codes in rows of whole pieces of 16 bytes, or a state that the step writes over. chunk.ih is not read. x:
/// the chunk's rows. scratch: products_padded_bytes.
Status launch_products(const PersistentLayer& layer, const PersistentChunk& chunk, const ProductRows& x,
                       std::byte* scratch, cudaStream_t stream);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_PRODUCTS_H_
