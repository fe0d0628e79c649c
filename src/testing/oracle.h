// SPDX-License-Identifier: Apache-2.0
// Reads the vectors of the independent oracle (oracle/README.md describes every field).
#ifndef ISOBIT_TESTING_ORACLE_H_
#define ISOBIT_TESTING_ORACLE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "isobit/grid.h"
#include "isobit/gru.h"
#include "isobit/low_bit.h"

namespace isobit::testing {

using Json = nlohmann::json;

/// The cases of testdata/NAME; throws when the file is missing, so that no test passes without its vectors.
Json oracle_cases(const std::string& name);

/// The cases of a file that is too large for testdata/; throws when it is missing.
Json built_oracle_cases(const std::string& name);
float float_of_bits(const std::string& hex);
Rounding rounding_of(const std::string& name);
Grid grid_of(const Json& j);
RescaleParameters rescale_of(const Json& j);
std::vector<RescaleParameters> rescales_of(const Json& j);
ActivationTable table_of(const Json& j, const Grid& input, const Grid& output, Rounding rounding);
std::vector<Grid> row_grids_of(const Json& j);
CodeMatrix matrix_of(const Json& j, const Grid& grid);

/// One direction of one layer.
GruLayerParameters layer_of(const Json& j, Rounding rounding);

/// "0a10": two digits a byte, first byte first.
std::vector<uint8_t> bytes_of_hex(const std::string& hex);

/// Rows of bit patterns of f32, f64, f16 or bf16.
Array float_rows_of(const Json& rows, Dtype dtype);
Dtype float_dtype_of(const Json& name);

/// The type of scales and offsets.
Dtype low_bit_store_of(const Json& weights);

/// Low-bit weights, unchecked.
LowBitParameters low_bit_of(const Json& j);

/// All numbers of nested lists in order.
void flatten(const Json& j, std::vector<int64_t>& out);
std::vector<int64_t> flatten(const Json& j);

}  // namespace isobit::testing

#endif  // ISOBIT_TESTING_ORACLE_H_
