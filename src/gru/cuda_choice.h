// SPDX-License-Identifier: Apache-2.0
// Which kernel of the GRU on a device is the fastest for a run: rules made by timing. cuda_choice.cu has fastest_form of
// `persistent` (cuda_persistent.h), too.
#ifndef ISOBIT_GRU_CUDA_CHOICE_H_
#define ISOBIT_GRU_CUDA_CHOICE_H_

#include <cstdint>

namespace isobit::cuda {

struct LayerSize {
  int64_t inputs, hidden;
  bool wide;  // h of two bytes
};

/// For so many sequences `persistent`, in another form than portable, is the fastest from so many steps on, INT64_MAX:
/// of none. has_products: `products` runs the layer.
int64_t persistent_fewest_steps(const LayerSize& layer, int64_t batch, bool has_products);

/// Whether `products` is faster than `step`. copies: as is_taken (cuda_gru.h) says.
bool products_are_faster(const LayerSize& layer, int64_t batch, int64_t steps, bool copies);

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_CUDA_CHOICE_H_
