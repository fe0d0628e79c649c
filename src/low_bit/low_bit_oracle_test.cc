// SPDX-License-Identifier: Apache-2.0
// Packing, quantisers, decoding and refusals of low-bit weights against the vectors of the independent oracle.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/codes.h"
#include "isobit/low_bit.h"
#include "low_bit/parts.h"
#include "testing/oracle.h"

namespace isobit {
namespace {

using testing::Json;

std::vector<Json> cases_of(const std::string& op) {
  std::vector<Json> out;
  for (const Json& one : testing::built_oracle_cases("low_bit.json"))
    if (one.at("op") == op) out.push_back(one);
  return out;
}

/// Bit for bit, so that -0 is not +0.
void expect_decoded(const LowBitMatrix& matrix, const Json& decoded) {
  Array w = Array::zeros(Dtype::kF32, {matrix.rows(), matrix.columns()});
  ASSERT_TRUE(matrix.dequantize({w.data<float>(), static_cast<size_t>(w.size())}).ok());
  EXPECT_EQ(w, testing::float_rows_of(decoded, Dtype::kF32));
}

TEST(LowBitOracle, Packing) {
  const std::vector<Json> cases = cases_of("pack");
  ASSERT_FALSE(cases.empty());
  for (const Json& one : cases) {
    const int bits = one.at("bits");
    const auto codes = one.at("codes").get<std::vector<uint32_t>>();
    const auto columns = static_cast<int64_t>(codes.size());
    std::vector<uint8_t> row(static_cast<size_t>(low_bit_row_bytes(columns, bits)));
    for (int64_t k = 0; k < columns; ++k) pack_code(row.data(), k, bits, codes[static_cast<size_t>(k)]);
    EXPECT_EQ(row, testing::bytes_of_hex(one.at("packed"))) << one;
    for (int64_t k = 0; k < columns; ++k)
      EXPECT_EQ(unpack_code(row.data(), k, bits), codes[static_cast<size_t>(k)]) << one;
  }
}

TEST(LowBitOracle, Quantisers) {
  int refused = 0;
  int kept = 0;
  for (const Json& one : cases_of("quantize")) {
    SCOPED_TRACE(one.dump());
    const Json& weights = one.at("weights");
    const LowBitOptions options{.bits = weights.at("bits"),
                                .group = weights.at("group"),
                                .kind = low_bit_kind_from_string(weights.at("kind").get<std::string>()).value(),
                                .method = low_bit_method_from_string(one.at("method").get<std::string>()).value(),
                                .scales = testing::low_bit_store_of(weights)};
    const Result<LowBitMatrix> matrix =
        quantize_low_bit(testing::float_rows_of(one.at("rows"), Dtype::kF32), options, "W");
    if (one.contains("refused")) {
      EXPECT_EQ(matrix.status().code(), StatusCode::kInvalidArgument);
      ++refused;
      continue;
    }
    ++kept;
    if (!matrix.ok()) {
      ADD_FAILURE() << matrix.status().message();
      continue;
    }
    const LowBitParameters expected = testing::low_bit_of(weights);
    const LowBitParameters& got = matrix->parameters();
    EXPECT_EQ(got.scales, expected.scales);
    EXPECT_EQ(got.offsets, expected.offsets);
    EXPECT_EQ(got.zero_points, expected.zero_points);
    EXPECT_EQ(got.codes, expected.codes);
    EXPECT_EQ(got, expected);
    expect_decoded(*matrix, one.at("decoded"));
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(kept, 0);
}

/// Scales of either sign, zero points that no quantiser gives, both zero points of the offset kind.
TEST(LowBitOracle, GivenMatrices) {
  const std::vector<Json> cases = cases_of("float");
  ASSERT_FALSE(cases.empty());
  for (const Json& one : cases) {
    SCOPED_TRACE(one.at("weights").dump());
    const Result<LowBitMatrix> matrix = LowBitMatrix::create(testing::low_bit_of(one.at("weights")), "W");
    if (!matrix.ok()) {
      ADD_FAILURE() << matrix.status().message();
      continue;
    }
    expect_decoded(*matrix, one.at("decoded"));
  }
}

}  // namespace
}  // namespace isobit
