// SPDX-License-Identifier: Apache-2.0
// What options of several verbs stand for: models, tables, kernels, layers.
#ifndef ISOBIT_TOOLS_MODELS_H_
#define ISOBIT_TOOLS_MODELS_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/cpu.h"
#include "isobit/fp16_table.h"
#include "isobit/gru.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "isobit/pack.h"
#include "isobit/report.h"
#include "isobit/sequences.h"
#include "isobit/status.h"
#include "value.h"
#include "verbs.h"

namespace isobit::tool {

/// How a float GRU is to be read.
Result<GruLoadOptions> parse_source(const FloatModelOptions& options);

/// One integer GRU; a float model is refused with the verb that makes an integer one.
Result<GruModel> load_integer_model(const std::string& path, const std::string& layer);
Result<GruModel> load_integer_model(const ArrayReader& file, const std::string& layer);

/// The table that --gate names; as long as the model lives.
Result<const ActivationTable*> find_gate_table(const GruModel& model, const std::string& gate);

constexpr const char* kOtherUnits = "other units, scaling or normalisation than the calibration data has";
/// The warning of describe_clipping() alone.
void warn_of_clipping(const ClippedInputs& inputs, const Grid& grid, const std::string& input, Outcome& out);

/// The array of a file of data that must have one; `label` is what messages call it.
Result<Array> load_only_array(const std::string& path, std::string& label, std::vector<std::string>& warnings);
/// check_output() of -o, which only a dry run may lack.
Status claim_output(const std::string& path, bool dry_run, FileClaims& files);
/// Writes a file, and says so.
Status write_text(const std::string& text, const std::string& path, Outcome& out);
/// The same of a page of --html.
Status write_page(const GruPage& page, const std::string& path, Outcome& out);
/// "output" and "bytes" of what was written; an empty path: of a dry run.
void add_saved(const std::string& path, Outcome& out);

/// How floats become low-bit weights; without conv_groups, which is another option in each verb.
Result<isobit::PackOptions> parse_form(const FormOptions& options);

Result<Fp16Model> parse_fp16_model(const std::string& text);
/// "f32" or "f16"; whether values are float16 numbers.
Result<bool> parse_value_type(const std::string& text);
/// Refuses what is neither a function's name nor that of an npy.
Status check_function_name(const std::string& function);
/// A built-in table when `table` names a function, else a saved one.
Result<Fp16Table> find_fp16_table(const std::string& table, const TableSourceOptions& source);

/// Empty text: nothing was asked for.
Result<std::optional<CpuPath>> parse_kernel(const std::string& text);
/// The same of linear layers, whose kernels have names of their own (linear_layer_kernels), of an operation: by such a
/// name, or that of the path.
Result<std::optional<CpuPath>> parse_linear_kernel(const std::string& text, std::string_view operation);
Status check_threads(int threads);

// What matmul and conv share: a layer of weights in a file, and X.

struct LayerWeights {
  std::string name;
  LowBitMatrix matrix;
  std::vector<int32_t> permutation{};
  std::vector<float> bias{};
  std::optional<ConvWeights> convolution{};
};

/// FILE and TENSOR, which may be empty, of FILE or FILE:TENSOR; a path may hold colons, a name too.
std::pair<std::string, std::string> split_weights(const std::string& weights);
/// Saved low-bit weights, with --bias of the same file.
Result<LayerWeights> load_weights(const ArrayReader& file, const std::string& tensor, const std::string& bias);

/// Before anything is computed: threads, and which file is what.
Status check_layer(const LayerOptions& options);
Result<LinearClamp> parse_clamp(const std::string& text);
/// The only array of X, floats whose type y can have; `label` is what messages call it. --activations float makes
/// float64 float32, as there y is float32.
Result<Array> load_x(const LayerOptions& options, std::string& label, std::vector<std::string>& warnings);
/// The type of y.
Dtype y_dtype_of(const Array& x);

/// What there is to say of a layer and its arrays. `kernel`: for people, `where` follows it.
void describe_layer(const LayerOptions& options, const LayerWeights& weights, const std::string& kernel,
                    const std::string& where, const Array& x, const Array& y, Outcome& out);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_MODELS_H_
