// SPDX-License-Identifier: Apache-2.0
// The normative integer matrix product, on codes as they are, before any plane or packing. Every kernel equals it
// byte for byte.
#ifndef ISOBIT_PRODUCT_REFERENCE_H_
#define ISOBIT_PRODUCT_REFERENCE_H_

#include <cstdint>

#include "core/codes.h"
#include "product/product.h"

namespace isobit {

/// acc[m, n] = start[n] + sum over k of w[n, k] * (code[m, k] + storage_offset), modulo 2^64 (2^32 when T is
/// int32_t: dropping the high half commutes with sums and products). codes: m x k, dense; acc: m x n, dense.
template <typename T>
void reference_linear_product(const int32_t* w, const void* codes, Dtype dtype, int64_t m, int64_t n, int64_t k,
                              const T* start, T* acc) {
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t col = 0; col < n; ++col) {
      uint64_t sum = static_cast<uint64_t>(static_cast<int64_t>(start[col]));
      for (int64_t i = 0; i < k; ++i) {
        const int64_t u = load_code(codes, dtype, row * k + i) + storage_offset(dtype);
        sum += static_cast<uint64_t>(w[col * k + i] * u);
      }
      acc[row * n + col] = static_cast<T>(sum);
    }
  }
}

}  // namespace isobit

#endif  // ISOBIT_PRODUCT_REFERENCE_H_
