// SPDX-License-Identifier: Apache-2.0
// What there is to say of models, tables and files of weights: text for people, JSON for programs, pictures.
//
//   ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open("enc.safetensors"));
//   ISOBIT_ASSIGN_OR_RETURN(const Description description, describe_file(file));
//   std::puts(description.text.c_str());
#ifndef ISOBIT_REPORT_H_
#define ISOBIT_REPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/compare.h"
#include "isobit/fp16_table.h"
#include "isobit/gguf.h"
#include "isobit/grid.h"
#include "isobit/gru.h"
#include "isobit/low_bit.h"
#include "isobit/low_bit_import.h"
#include "isobit/pack.h"
#include "isobit/sequences.h"
#include "isobit/status.h"
#include "isobit/table.h"
#include "isobit/tune.h"
#include "isobit/verify.h"

namespace isobit {

struct Description {
  std::string text;                     // lines, each with its end
  std::string json;                     // one line, an object
  std::vector<std::string> warnings{};  // about what was described all the same
};

// ---------------------------------------------------------------------------------------------------------------
// Files

struct DescribeOptions {
  GruLoadOptions load{};  // of float models; the prefix is also the name of an integer model. Default: all of the file
  bool full = false;      // describe_integer_models()
};
/// Whatever isobit reads, by one of the functions below. Arrays of types that isobit does not read are listed, too.
Result<Description> describe_file(const ArrayReader& file, const DescribeOptions& options = {});

/// The float GRUs of a file, or the one of `load`: how they are read, sizes; what looks like one and why it is none.
/// Where none can be read, the arrays are listed and a refusal is a warning; but an error where `load` says how to read
/// it.
Result<Description> describe_float_models(const ArrayReader& file, const GruLoadOptions& load = {});

/// The integer models of a file, or the one called `name`: grids, rescales, certificates of the tables, overflow proof,
/// kernels of this machine that can run them, sizes. `full`: the text has rescales and the whole proof, as the JSON
/// always has.
Result<Description> describe_integer_models(const ArrayReader& file, const std::string& name = {}, bool full = false);

/// The layers of static codes of a file: grids, bound of the accumulators, of convolutions their shape.
Result<Description> describe_static_linear(const ArrayReader& file);
Result<Description> describe_static_conv(const ArrayReader& file);

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
std::string gru_text(const GruWeights& weights);

/// Bytes of the saved model and of a workspace.
Result<Description> describe_sizes(const GruModel& model);

/// " 8 bits signed    scale 2^-7         zero point 0".
std::string grid_text(const Grid& grid);
std::string grid_json(const Grid& grid);

std::string checkpoint_json(const CheckpointDescription& description);

/// How load_gru() read a float GRU of `path`: gate order, layout, reset variant, activations, given or assumed, and
/// what was recognised. Warnings: where another reading may be meant. Messages name the options of `isobit quantize`.
Description describe_reading(const GruWeights& weights, const std::string& path);

/// The grids of a model and what its calibrator observed, layer by layer.
Description describe_calibration(const GruModel& model, const GruCalibrator& calibrator);

/// How many values of `input` the grid does not reach; above 1 % a warning says what is `likely`.
Description describe_clipping(const ClippedInputs& inputs, const Grid& grid, const std::string& input,
                              const std::string& likely);

// ---------------------------------------------------------------------------------------------------------------
// Tables

/// Pieces and certificate of an FP16 table.
Description describe_table(const Fp16Table& table);
/// table_errors() of a model's table: a row of text.
Result<Description> describe_table(const ActivationTable& table, const std::string& name);
/// What compare_fp16_tables() found.
Description describe_difference(const Fp16Table& first, const Fp16Table& second, const Fp16Difference& difference);
/// "silu, model f32, 259 float32 values".
std::string fp16_table_text(const Fp16Table& table);
/// The head of the list of certificates, and a row of it; without the end of the line.
std::string certificate_head();
std::string certificate_row(const Fp16Table& table);

/// Certificates of tables, computed again.
class TableChecks {
 public:
  TableChecks();
  TableChecks(TableChecks&&) noexcept;
  TableChecks& operator=(TableChecks&&) noexcept;
  ~TableChecks();

  /// check_fp16_certificate(). An error is one of the arguments; a table that does not pass counts as failed.
  Status add(const std::string& name, const Fp16Table& table, const std::vector<uint16_t>& exact, double limit);
  /// Every table of a model of the file `path`.
  Status add(const std::string& path, const GruModel& model);
  /// A line for each table that failed; empty: none did.
  [[nodiscard]] const std::string& failure() const;
  [[nodiscard]] Description describe() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

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
// Packing

/// What becomes of the tensors of a model: begins with the plan, then takes each tensor that is done.
class PackDescription {
 public:
  /// `options`: of Packing::plan().
  PackDescription(const std::string& model, const PackOptions& options, const Packing& packing);
  PackDescription(PackDescription&&) noexcept;
  PackDescription& operator=(PackDescription&&) noexcept;
  ~PackDescription();

  /// As Packing::Report.
  void add(const PackTensor& tensor, const PackedTensor& packed);
  /// Of the model's bytes, 0 to 1.
  [[nodiscard]] double share_done() const;
  [[nodiscard]] Description describe() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// ---------------------------------------------------------------------------------------------------------------
// Comparisons and searches

/// Tensor by tensor, with bars. `sequences`: their names, in the order in which they were added. `directions`: of the
/// model; `part_codes`: of GruCompareOptions.
Description describe_comparison(const GruComparisonReport& report, int32_t directions,
                                const std::vector<std::string>& sequences, double part_codes);
Description describe_ablation(const GruAblation& ablation);

/// "SQNR of the outputs of each layer: 38.1, 35.2 dB".
std::string sqnr_text(const GruOutputSqnr& sqnr);

/// The front of a search, and what was chosen of it. `command` (optional) says how to make the model of some settings.
Description describe_search(const GruTuneResult& result,
                            const std::function<std::string(const GruSettings&)>& command = {});
/// Why there is no model, where nothing reached the goal of `options`.
std::string unreached_text(const GruTuneResult& result, const GruTuneOptions& options);
/// "35.20 dB", or the number of the user's metric.
std::string quality_text(double quality, bool is_metric);

/// SVG of the front of a search: quality over bytes, a colour a speed class. `is_metric`: quality is the user's metric,
/// not SQNR. Errors as svg_of_table().
Result<std::string> svg_of_front(const GruTuneResult& result, bool is_metric);

// ---------------------------------------------------------------------------------------------------------------
// Pages

/// What a page shows. What is null is left out.
struct GruPage {
  std::string title{};                              // any text, the names of the files, say
  const GruModel* model = nullptr;                  // its sizes, overflow proof, and with a comparison its grids
  const GruComparisonReport* comparison = nullptr;  // of `model`; GruCompareOptions::profile gives it pictures
  std::vector<std::string> sequences{};             // names, as in describe_comparison()
  double part_codes = 1.0;                          // of GruCompareOptions
  const GruAblation* ablation = nullptr;            // GruAblationOptions::alone gives it a picture
  const GruTuneResult* search = nullptr;
  std::vector<std::string> warnings{};
};

/// A whole HTML page, below 1,000,000 bytes: without scripts, other files or links, its pictures inside as SVG, for
/// light and dark windows, telephones and paper; well-formed XML, too. The same arguments give the same bytes.
/// kInvalidArgument: a comparison without its model, or with fewer names than sequences.
Result<std::string> html_page(const GruPage& page);
/// The head of that page for a notebook, a <div>: figures, tensors, front of the search.
Result<std::string> html_part(const GruPage& page);

// ---------------------------------------------------------------------------------------------------------------
// The machine

/// Operations, dtypes, types of files and kernels of this build, and which kernels run here.
Description describe_support();

/// A line for each operation.
Description describe_fingerprints(const Fingerprints& fingerprints);

/// What verify_kernels() or verify_model() compared. `device`: where, if not on the CPU.
Description describe_verification(const VerifyReport& report, const std::string& device = {});
/// Why the check failed, a line for each reason; empty: it did not.
std::string failure_text(const VerifyReport& report);

/// Whether gnuplot, which draws every SVG here, can be run.
Status check_gnuplot();

}  // namespace isobit

#endif  // ISOBIT_REPORT_H_
