// SPDX-License-Identifier: Apache-2.0
// Models as the verbs read and describe them.
#ifndef ISOBIT_TOOLS_MODELS_H_
#define ISOBIT_TOOLS_MODELS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/cpu.h"
#include "isobit/gru.h"
#include "isobit/report.h"
#include "isobit/status.h"
#include "value.h"
#include "verbs.h"

namespace isobit::tool {

struct FloatModel {
  GruWeights weights;
  bool gate_order_assumed = true;
  bool layout_assumed = true;
  bool reset_assumed = true;
};
/// The prefix that --layer names; empty without one.
Result<std::string> gru_prefix(const FloatModelOptions& options);
Result<FloatModel> load_float_model(const ArrayReader& file, const FloatModelOptions& options);
Result<FloatModel> load_float_model(const std::string& path, const FloatModelOptions& options);
/// The same of the GRU with this prefix, which may be empty.
Result<FloatModel> load_float_model(const ArrayReader& file, const FloatModelOptions& options,
                                    const std::string& prefix);
/// A line for each of gate order, layout, reset variant and activations, given or assumed; and what was recognised.
std::string assumptions_text(const FloatModel& model);
/// Where another reading may be meant: arrays under the prefix that are not used, a layout that the names do not have.
void warn_of_doubts(const FloatModel& model, const std::string& file, std::vector<std::string>& warnings);
void set_assumptions(const FloatModel& model, Value& json);

/// One integer GRU; a float model is refused with the verb that makes an integer one.
Result<GruModel> load_integer_model(const std::string& path, const std::string& layer);
Result<GruModel> load_integer_model(const ArrayReader& file, const std::string& layer);

/// Bytes of the saved model and of a workspace: a line of text, and "sizes".
Status describe_sizes(const GruModel& model, Value& json, std::string& text);

/// How many of `count` values of `input` the grid does not reach: "clipped", "clipped_percent", a line of text, and
/// above 1 % a warning that says what is `likely`.
void describe_clipping(int64_t clipped, int64_t count, const Grid& grid, const std::string& input, const char* likely,
                       Outcome& out);

/// Empty text: nothing was asked for.
Result<std::optional<CpuPath>> parse_kernel(const std::string& text);
/// The same of linear layers, whose kernels have names of their own (linear_layer_kernels), of an operation: by such a
/// name, or that of the path.
Result<std::optional<CpuPath>> parse_linear_kernel(const std::string& text, std::string_view operation);
Status check_threads(int threads);

}  // namespace isobit::tool

#endif  // ISOBIT_TOOLS_MODELS_H_
