// SPDX-License-Identifier: Apache-2.0
// Steps as products of whole matrices, for many sequences of large layers: R is read anew in each, by all of the device
// at once, and gates are a launch of their own.
#ifndef ISOBIT_GRU_CUDA_PRODUCTS_H_
#define ISOBIT_GRU_CUDA_PRODUCTS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "gru/cuda_persistent.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// h as the product R h takes it, and its results, of one step of so many sequences.
int64_t products_scratch_bytes(const PersistentLayer& layer, int64_t batch);

/// For each step of the chunk: h in the order of the product, the product R h, gates. The first h is prepared beside x,
/// and the first R h multiplied beside W x: input_product() launches W x, as ProductOrder::kFirst, just after a launch
/// of pad_product_x, told how many blocks R h leaves it. scratch: products_scratch_bytes.
template <typename Ratio>
Status launch_products(const PersistentLayer& layer, const PersistentChunk& chunk, std::byte* scratch,
                       cudaStream_t stream, const std::function<Status(int64_t)>& input_product);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_PRODUCTS_H_
