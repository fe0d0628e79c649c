// SPDX-License-Identifier: Apache-2.0
// Products of packed weights and codes in exported C.
#ifndef ISOBIT_EXPORT_PRODUCT_H_
#define ISOBIT_EXPORT_PRODUCT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "export/program.h"
#include "isobit/dtype.h"

namespace isobit {

/// How three rows of weights are multiplied with x at once.
enum class ProductKernel {
  kPlain,   // C99
  kPairs,   // words of x that hold two codes of 16 bits: SMLAD
  kBytes,   // vectors of 16 codes of 8 bits: MVE
  kHalves,  // vectors of 8 codes of 16 bits: MVE
};

/// A matrix in C, and the functions that multiply it. What is stored is a weight plus `offset`, so that fields of fewer
/// than 8 bits are not negative, and unsigned weights fit signed types; users subtract offset * sum of x.
struct Product {
  ProductKernel kernel = ProductKernel::kPlain;
  int32_t field_bits = 8;  // 1, 2, 4, 8 or 16; a row begins at a multiple of 4 bytes
  Dtype x = Dtype::kS8;    // of 8 or 16 bits
  bool is_wide = false;    // sums of 64 bits
  int64_t columns = 1;
  int64_t offset = 0;

  [[nodiscard]] bool has_fields() const { return field_bits < 8; }
  [[nodiscard]] bool needs_sum() const { return offset != 0; }
  /// What is made of x before the products is kept in RAM.
  [[nodiscard]] bool is_prepared() const { return kernel != ProductKernel::kPlain; }
  [[nodiscard]] std::string sum() const { return sum_type(is_wide); }
  /// Of an array of weights: uint32_t for words, else int8_t, uint8_t or int16_t.
  [[nodiscard]] std::string weight_type() const;
  /// Elements of that type from row to row.
  [[nodiscard]] int64_t row_elements() const;
  /// What `count` is for the function of multiply(): columns, words or vectors of a row.
  [[nodiscard]] int64_t count() const;
  /// Of x when it is prepared: "pairs", "bytes" or "halves"; type, elements and bytes of one.
  [[nodiscard]] std::string prepared_name() const;
  [[nodiscard]] std::string prepared_type() const;
  [[nodiscard]] int64_t prepared_elements() const;
  [[nodiscard]] int64_t prepared_element_bytes() const;
  /// Tells the functions of two products apart.
  [[nodiscard]] std::string key() const;
};

/// The product of a matrix with columns of weights of so many bits and x of a type. `sum_bound`: what a sum can reach,
/// of weights as they are; it decides on 32 bits together with the fields.
Product choose_product(CTarget target, int32_t weight_bits, bool is_signed, Dtype x, Int128 largest_x, int64_t columns,
                       Int128 sum_bound);

/// Adds rows of weights; field(row, column) is what is stored. Returns the name of the array.
std::string add_weights(CProgram& program, const std::string& name, const Product& product, int64_t rows,
                        const std::function<int64_t(int64_t row, int64_t column)>& field);

/// The function `void f(const W *w, uint32_t row, const X *x, uint32_t count, S *sums)`: the sums of three rows, which
/// are `row` elements apart.
std::string multiply(CProgram& program, const Product& product);
/// The function `S f(const X *x, uint32_t n)`, the sum of x; of a product that is prepared
/// `S f(const X *x, uint32_t n, P *prepared)`, or void where the sum is not needed.
std::string prepare(CProgram& program, const Product& product);

}  // namespace isobit

#endif  // ISOBIT_EXPORT_PRODUCT_H_
