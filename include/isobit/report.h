// SPDX-License-Identifier: Apache-2.0
// What there is to say of models, tables and files of weights: text for people, JSON for programs, pictures.
//
//   ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open("enc.safetensors"));
//   ISOBIT_ASSIGN_OR_RETURN(const Description description, describe_integer_models(file));
//   std::puts(description.text.c_str());
#ifndef ISOBIT_REPORT_H_
#define ISOBIT_REPORT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/fp16_table.h"
#include "isobit/gguf.h"
#include "isobit/grid.h"
#include "isobit/gru.h"
#include "isobit/low_bit.h"
#include "isobit/low_bit_import.h"
#include "isobit/status.h"
#include "isobit/table.h"
#include "isobit/tune.h"

namespace isobit {

struct Description {
  std::string text;                     // lines, each with its end
  std::string json;                     // one line, an object
  std::vector<std::string> warnings{};  // about what was described all the same
};

// ---------------------------------------------------------------------------------------------------------------
// Files

/// The integer models of a file, or the one called `name`: grids, rescales, certificates of the tables, overflow proof,
/// kernels of this machine that can run them, sizes. `full`: the text has rescales and the whole proof, as the JSON
/// always has.
Result<Description> describe_integer_models(const ArrayReader& file, const std::string& name = {}, bool full = false);

/// The static linear layers of a file: grids, bound of the accumulators.
Result<Description> describe_static_linear(const ArrayReader& file);

/// Metadata, shortened, and tensors.
Description describe_gguf(const GgufFile& file);

/// Saved low-bit weights, and the metadata of the GGUF file that they came from.
Result<Description> describe_low_bit(const LowBitFile& content, const std::string& path);

/// A GPTQ or AWQ checkpoint; whatever is wrong with its description, its tensors are listed.
Result<Description> describe_checkpoint(const ArrayFile& file, const std::string& path);

/// Weights that other tools quantised. `said`: what find_foreign_description() found, or nothing.
Description describe_foreign(const ArrayReader& file, const std::vector<ForeignFormat>& formats,
                             const std::string& said);

/// The arrays of a file that isobit reads; the JSON is a list.
Description describe_arrays(const ArrayReader& file);

// ---------------------------------------------------------------------------------------------------------------
// Parts of models

/// "l0", "l0_reverse", "l1": as PyTorch names them. index: l * directions + d.
std::string layer_label(int64_t index, int32_t directions);

/// An activation table of a model: "l0.u".
struct GateTable {
  std::string name;
  const ActivationTable* table = nullptr;
};
/// As long as the model lives.
std::vector<GateTable> gate_tables(const GruModel& model);

/// "GRU "enc", 2 layers, bidirectional, 256 -> 512".
std::string gru_text(const std::string& name, int64_t layers, int32_t directions, int64_t input, int64_t output);

/// Bytes of the saved model and of a workspace.
Result<Description> describe_sizes(const GruModel& model);

/// " 8 bits signed    scale 2^-7         zero point 0".
std::string grid_text(const Grid& grid);
std::string grid_json(const Grid& grid);

std::string checkpoint_json(const CheckpointDescription& description);

// ---------------------------------------------------------------------------------------------------------------
// Tables

/// Pieces and certificate of an FP16 table.
Description describe_table(const Fp16Table& table);
/// "silu, model f32, 259 float32 values".
std::string fp16_table_text(const Fp16Table& table);
/// The head of the list of certificates, and a row of it; without the end of the line.
std::string certificate_head();
std::string certificate_row(const Fp16Table& table);

/// SVG: function and table over the input, and below them the error at every finite float16 input in ULP. `exact` is
/// fp16_exact of the table's function, 65536 codes. The same arguments give the same bytes (of one gnuplot).
/// Errors: kFailedPrecondition where gnuplot is not on PATH; kIo where it fails; kInvalidArgument for a wrong `exact`.
Result<std::string> svg_of_table(const Fp16Table& table, const std::vector<uint16_t>& exact);
/// The same with the error at every input code in LSB of the output. `exact` is exact_codes of the table's function.
Result<std::string> svg_of_table(const ActivationTable& table, const std::vector<int32_t>& exact);

/// Errors over ranges of the input as lines of text, at most 80 columns.
Result<std::string> text_plot(const Fp16Table& table, const std::vector<uint16_t>& exact);
Result<std::string> text_plot(const ActivationTable& table, const std::vector<int32_t>& exact);

// ---------------------------------------------------------------------------------------------------------------
// Searches

/// SVG of the front of a search: quality over bytes, a colour a speed class. `is_metric`: quality is the user's metric,
/// not SQNR. Errors as svg_of_table().
Result<std::string> svg_of_front(const GruTuneResult& result, bool is_metric);

/// Whether gnuplot, which draws every SVG here, can be run.
Status check_gnuplot();

}  // namespace isobit

#endif  // ISOBIT_REPORT_H_
