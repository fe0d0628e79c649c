// SPDX-License-Identifier: Apache-2.0
// GRUs as C99: the interface, around the layers of gru_layer.cc.
#include <algorithm>
#include <cstddef>
#include <map>
#include <set>

#include "export/gru_layer.h"
#include "export/interface.h"
#include "export/selftest.h"
#include "isobit/export.h"
#include "isobit/report.h"
#include "isobit/text.h"

namespace isobit {
namespace {

constexpr std::string_view kSizes = R"(
#define @NAME_INPUTS @INPUTS
#define @NAME_OUTPUTS @OUTPUTS
)";

constexpr std::string_view kOneWayHeader = R"(
/* Every code of h is the zero point, which is the number 0. */
void $_init_state($_state *state);

/* One step. x: @NAME_INPUTS codes, @NAME_INPUT_MIN to @NAME_INPUT_MAX, which is not checked. y: @NAME_OUTPUTS codes; may
   be null, as they are in state->@LAST too. */
void $_step($_state *state, $_scratch *scratch, const $_input *x, $_output *y);

/* `steps` steps: x [steps][@NAME_INPUTS], y [steps][@NAME_OUTPUTS]. */
void $_run($_state *state, $_scratch *scratch, const $_input *x, $_output *y, uint32_t steps);

/* Runs @NAME_SELFTEST_STEPS steps whose results isobit has stored: -1, or the index t * @NAME_OUTPUTS + i of the first
   code that is another one. Leaves the state of these steps. */
int32_t $_selftest($_state *state, $_scratch *scratch);
)";

constexpr std::string_view kTwoWayHeader = R"(
/* Every code of h is the zero point, which is the number 0. */
void $_init_state($_state *state);

/* A whole sequence: x [steps][@NAME_INPUTS], y [steps][@NAME_OUTPUTS]: forward direction, then reverse, which takes the
   steps from the last to the first. Both begin with `state` and leave their last states there. Codes of x are
   @NAME_INPUT_MIN to @NAME_INPUT_MAX, which is not checked.@INNER_TEXT */
void $_run($_state *state, $_scratch *scratch, const $_input *x, $_output *y@INNER_ARGUMENTS, uint32_t steps);

/* Runs @NAME_SELFTEST_STEPS steps whose results isobit has stored: -1, or the index t * @NAME_OUTPUTS + i of the first
   code that is another one. y and what follows it have as many steps. */
int32_t $_selftest($_state *state, $_scratch *scratch, $_output *y@INNER_ARGUMENTS);
)";

constexpr std::string_view kCopy = R"(
static void @F(@T *to, const @T *from, uint32_t count)
{
  uint32_t i;
  for (i = 0; i < count; ++i) {
    to[i] = from[i];
  }
}
)";
constexpr std::string_view kFill = R"(
static void @F(@T *to, @T value, uint32_t count)
{
  uint32_t i;
  for (i = 0; i < count; ++i) {
    to[i] = value;
  }
}
)";

constexpr std::string_view kRun = R"(
void $_run($_state *state, $_scratch *scratch, const $_input *x, $_output *y, uint32_t steps)
{
  for (; steps > 0; --steps) {
    $_step(state, scratch, x, y);
    x += @NAME_INPUTS;
    y += @NAME_OUTPUTS;
  }
}
)";

constexpr std::string_view kSelftest = R"(
int32_t $_selftest($_state *state, $_scratch *scratch)
{
  const $_input *x = $_selftest_x;
  const $_output *y = $_selftest_y;
  uint32_t t;
  uint32_t i;
  $_init_state(state);
  for (t = 0; t < @NAME_SELFTEST_STEPS; ++t) {
    $_step(state, scratch, x, 0);
    for (i = 0; i < @NAME_OUTPUTS; ++i) {
      if (state->@LAST[i] != y[i]) {
        return (int32_t)((t * @NAME_OUTPUTS) + i);
      }
    }
    x += @NAME_INPUTS;
    y += @NAME_OUTPUTS;
  }
  return -1;
}
)";

constexpr std::string_view kTwoWaySelftest = R"(
int32_t $_selftest($_state *state, $_scratch *scratch, $_output *y@INNER_ARGUMENTS)
{
  int32_t index;
  $_init_state(state);
  $_run(state, scratch, $_selftest_x, y@INNER_NAMES, @NAME_SELFTEST_STEPS);
  for (index = 0; index < (int32_t)(@NAME_SELFTEST_STEPS * @NAME_OUTPUTS); ++index) {
    if (y[index] != $_selftest_y[index]) {
      return index;
    }
  }
  return -1;
}
)";

constexpr std::string_view kCheck = R"(    static $_state state;
    static $_scratch scratch;
    const size_t steps = (size_t)second;
    $_output *y = memory(steps * @NAME_OUTPUTS * sizeof *y);
@INNER_MEMORY    int32_t n;
    if (count != (size_t)first * steps * @NAME_INPUTS) return 6;
    for (n = 0; n < first; ++n) {
      $_init_state(&state);
      $_run(&state, &scratch, x + (size_t)n * steps * @NAME_INPUTS, y@INNER_NAMES, (uint32_t)steps);
      put(y, steps * @NAME_OUTPUTS);
    }
)";

constexpr std::string_view kFloatHeader = R"(
/* The same step with float32: x is quantised, clamped to the codes there are (a NaN counts as 0); y is dequantised. */
void $_step_float($_state *state, $_scratch *scratch, const float *x, float *y);
)";

constexpr std::string_view kFloatStep = R"(
void $_step_float($_state *state, $_scratch *scratch, const float *x, float *y)
{
  uint32_t i;
  for (i = 0; i < @NAME_INPUTS; ++i) {
    scratch->input[i] = ($_input)$_quantize(x[i]);
  }
  $_step(state, scratch, scratch->input, 0);
  for (i = 0; i < @NAME_OUTPUTS; ++i) {
    y[i] = (float)(state->@LAST[i] - (int32_t)@NAME_OUTPUT_ZERO_POINT) * @NAME_OUTPUT_SCALE;
  }
}
)";

/// What an export of a GRU is made of.
class GruExport {
 public:
  GruExport(const GruModel& model, std::vector<GruLayerPlan> layers, CProgram& program, const CExportOptions& options)
      : model_(model), layers_(std::move(layers)), program_(program), options_(options) {}

  Result<CExport> make();

 private:
  [[nodiscard]] int64_t directions() const { return model_.parameters().directions; }
  [[nodiscard]] bool is_one_way() const { return directions() == 1; }
  /// Outputs of inner layers of a bidirectional model: ", int8_t *layer0", ", layer0", and lines that declare them.
  [[nodiscard]] std::string inner_arguments() const;
  [[nodiscard]] std::string inner_names() const;
  [[nodiscard]] std::string inner_lines(const std::string& before, const std::string& after) const;
  std::string copy(Dtype dtype);
  std::string call(const GruLayerPlan& layer, const std::string& x, const std::string& indent);
  std::string init_state();
  std::string one_way_code();
  std::string two_way_code();
  [[nodiscard]] std::vector<std::string> head(const std::string& text) const;
  std::string header(const CStruct& state, const CStruct& scratch);
  [[nodiscard]] std::string program_that_checks() const;
  [[nodiscard]] std::string program_that_measures() const;
  void fill_structs(CStruct& state, CStruct& scratch);

  const GruModel& model_;
  std::vector<GruLayerPlan> layers_;
  CProgram& program_;
  const CExportOptions& options_;
  std::map<std::string, GruLayerCode> codes_;
};

std::string GruExport::inner_arguments() const {
  std::string text;
  for (int64_t l = 0; l + 1 < model_.layer_count(); ++l)
    text += ", " + c_type(layers_[static_cast<size_t>(l * directions())].h()) + " *layer" + std::to_string(l);
  return text;
}
std::string GruExport::inner_names() const {
  std::string text;
  for (int64_t l = 0; l + 1 < model_.layer_count(); ++l) text += ", layer" + std::to_string(l);
  return text;
}

std::string GruExport::inner_lines(const std::string& before, const std::string& after) const {
  std::string lines;
  for (int64_t l = 0; !is_one_way() && l + 1 < model_.layer_count(); ++l)
    lines += fill(before, {{"@T", c_type(layers_[static_cast<size_t>(l * directions())].h())}}) + "layer" +
             std::to_string(l) + after;
  return lines;
}

std::string GruExport::copy(Dtype dtype) {
  const std::string name = "$_copy_" + std::string(to_string(dtype));
  return program_.add_function(name, fill(std::string(kCopy), {{"@F", name}, {"@T", c_type(dtype)}}));
}

/// The statements of one step of a layer.
std::string GruExport::call(const GruLayerPlan& layer, const std::string& x, const std::string& indent) {
  const std::string next = "scratch->next_" + std::string(to_string(layer.h()));
  std::string arguments;
  for (const GruLinearPlan* linear : {&layer.W, &layer.R})
    if (linear->product.is_prepared())
      arguments += ", scratch->" + linear->prefix + "_" + linear->product.prepared_name();
  const std::string state = "state->" + layer.state();
  return indent + codes_.at(layer.key()).function + "(&$_" + layer.label + ", " + x + ", " + state + ", " + next +
         arguments + ");\n" + indent + copy(layer.h()) + "(" + state + ", " + next + ", " +
         std::to_string(model_.hidden_size()) + "u);\n";
}

std::string GruExport::init_state() {
  std::string lines;
  for (const GruLayerPlan& layer : layers_) {
    const std::string name = "$_fill_" + std::string(to_string(layer.h()));
    const std::string fill_codes =
        program_.add_function(name, fill(std::string(kFill), {{"@F", name}, {"@T", c_type(layer.h())}}));
    lines += "  " + fill_codes + "(state->" + layer.state() + ", " + c_number(layer.p->grids[kH].zero_point) + ", " +
             std::to_string(model_.hidden_size()) + "u);\n";
  }
  return "\nvoid $_init_state($_state *state)\n{\n" + lines + "}\n";
}

std::string GruExport::one_way_code() {
  std::string code = init_state();
  std::string step;
  std::string x = "x";
  for (const GruLayerPlan& layer : layers_) {
    step += call(layer, x, "  ");
    x = "state->" + layer.state();
  }
  const GruLayerPlan& last = layers_.back();
  code += "\nvoid $_step($_state *state, $_scratch *scratch, const $_input *x, $_output *y)\n{\n" + step +
          "  if (y != 0) {\n    " + copy(last.h()) + "(y, state->" + last.state() + ", @NAME_OUTPUTS);\n  }\n}\n";
  code += kRun;
  if (options_.float_entry) {
    add_quantize(program_, model_.input_grid());
    code += fill(std::string(kFloatStep), {{"@LAST", last.state()}});
  }
  return code + fill(std::string(kSelftest), {{"@LAST", last.state()}});
}

std::string GruExport::two_way_code() {
  std::string body;
  for (int64_t l = 0; l < model_.layer_count(); ++l) {
    const std::string in = l == 0 ? "x" : "layer" + std::to_string(l - 1);
    const std::string out = l + 1 == model_.layer_count() ? "y" : "layer" + std::to_string(l);
    const int64_t width = l == 0 ? model_.input_size() : model_.output_size();
    for (int64_t d = 0; d < directions(); ++d) {
      const GruLayerPlan& layer = layers_[static_cast<size_t>(l * directions() + d)];
      const std::string at = d == 0 ? "t" : "(steps - 1u - t)";
      const std::string offset = d == 0 ? "" : " + " + std::to_string(model_.hidden_size()) + "u";
      body += "  for (t = 0; t < steps; ++t) {\n" +
              call(layer, in + " + " + at + " * " + std::to_string(width) + "u", "    ") + "    " + copy(layer.h()) +
              "(" + out + " + " + at + " * @NAME_OUTPUTS" + offset + ", state->" + layer.state() + ", " +
              std::to_string(model_.hidden_size()) + "u);\n  }\n";
    }
  }
  return init_state() + "\nvoid $_run($_state *state, $_scratch *scratch, const $_input *x, $_output *y" +
         inner_arguments() + ", uint32_t steps)\n{\n  uint32_t t;\n" + body + "}\n" +
         fill(std::string(kTwoWaySelftest), {{"@INNER_ARGUMENTS", inner_arguments()}, {"@INNER_NAMES", inner_names()}});
}

void GruExport::fill_structs(CStruct& state, CStruct& scratch) {
  std::set<Dtype> next;
  std::map<std::string, Product> prepared;  // by name, the largest
  for (const GruLayerPlan& layer : layers_) {
    const auto bytes = static_cast<int64_t>(size_in_bytes(layer.h()));
    state.add(c_type(layer.h()), bytes, layer.state(), model_.hidden_size());
    if (next.insert(layer.h()).second)
      scratch.add(c_type(layer.h()), bytes, "next_" + std::string(to_string(layer.h())), model_.hidden_size());
    for (const GruLinearPlan* linear : {&layer.W, &layer.R}) {
      if (!linear->product.is_prepared()) continue;
      Product& product = prepared[linear->prefix + "_" + linear->product.prepared_name()];
      if (!product.is_prepared() || product.prepared_elements() < linear->product.prepared_elements())
        product = linear->product;
    }
  }
  for (const auto& [name, product] : prepared)
    scratch.add(product.prepared_type(), product.prepared_element_bytes(), name, product.prepared_elements());
  if (options_.float_entry && is_one_way()) {
    const Dtype x = model_.input_grid().dtype();
    scratch.add(c_type(x), static_cast<int64_t>(size_in_bytes(x)), "input", model_.input_size());
  }
}

std::string GruExport::header(const CStruct& state, const CStruct& scratch) {
  std::string text = fill(std::string(kSizes), {{"@INPUTS", std::to_string(model_.input_size()) + "u"},
                                                {"@OUTPUTS", std::to_string(model_.output_size()) + "u"}});
  text += grid_constants("input", "x", model_.input_grid()) + grid_constants("output", "y", model_.output_grid());
  text += "\n/* What is kept between steps: " + std::to_string(state.bytes()) + " bytes. */\n" + state.text("$_state");
  text += "\n/* What is used during a call: " + std::to_string(scratch.bytes()) + " bytes. */\n" +
          scratch.text("$_scratch");
  text += "\n#define @NAME_STATE_BYTES " + std::to_string(state.bytes()) + "u\n#define @NAME_SCRATCH_BYTES " +
          std::to_string(scratch.bytes()) + "u\n#define @NAME_SELFTEST_STEPS " +
          std::to_string(options_.selftest_steps) + "u\n";
  if (is_one_way()) {
    text += fill(std::string(kOneWayHeader), {{"@LAST", layers_.back().state()}});
    if (options_.float_entry) text += kFloatHeader;
    return text;
  }
  const std::string inner_text = model_.layer_count() == 1
                                     ? ""
                                     : "\n   layer0 and further ones: [steps][" + std::to_string(model_.output_size()) +
                                           "], the outputs of inner layers.";
  return text +
         fill(std::string(kTwoWayHeader), {{"@INNER_TEXT", inner_text}, {"@INNER_ARGUMENTS", inner_arguments()}});
}

std::vector<std::string> GruExport::head(const std::string& text) const {
  std::vector<std::string> head = {text + ", rounding " + std::string(to_string(layers_[0].p->rounding)) + "."};
  for (const GruLayerPlan& layer : layers_) {
    head.push_back("");
    head.push_back(layer.label + ": grids");
    for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
      const Grid& grid = layer.p->grids[static_cast<size_t>(tensor)];
      std::string line = "  " + std::string(kGruTensorNames[static_cast<size_t>(tensor)]);
      line.resize(8, ' ');
      head.push_back(line + (tensor >= kW && tensor <= kBr ? format("%2d bits, a scale for each row", grid.bits)
                                                           : grid_text(grid)));
    }
  }
  add_closing_lines(head, options_.target);
  return head;
}

std::string GruExport::program_that_checks() const {
  return check_program(
      program_,
      fill(std::string(kCheck), {{"@INNER_MEMORY", inner_lines("    @T *", " = memory(steps * @NAME_OUTPUTS * 2);\n")},
                                 {"@INNER_NAMES", is_one_way() ? "" : inner_names()}}));
}

std::string GruExport::program_that_measures() const {
  const std::string size = "[@NAME_SELFTEST_STEPS * @NAME_OUTPUTS];\n";
  std::string objects = "static $_state state;\nstatic $_scratch scratch;\n";
  std::string steps =
      "  uint32_t t;\n  for (t = 0; t < @NAME_SELFTEST_STEPS; ++t)\n"
      "    $_step(&state, &scratch, $_selftest_x + t * @NAME_INPUTS, 0);\n";
  if (!is_one_way()) {
    objects += "static $_output y" + size + inner_lines("static @T ", size);
    steps = "  $_run(&state, &scratch, $_selftest_x, y" + inner_names() + ", @NAME_SELFTEST_STEPS);\n";
  }
  const std::string selftest = "$_selftest(&state, &scratch" + (is_one_way() ? ")" : ", y" + inner_names() + ")");
  return measure_program(program_, objects, selftest, steps, "@NAME_SELFTEST_STEPS");
}

Result<CExport> GruExport::make() {
  for (const GruLayerPlan& layer : layers_) {
    const std::string key = layer.key();
    if (codes_.contains(key)) continue;
    codes_[key] = add_gru_layer_code(program_, layer, codes_.empty() ? "" : "_" + std::to_string(codes_.size() + 1));
  }
  for (const GruLayerPlan& layer : layers_) {
    add_gru_layer_data(program_, layer, codes_.at(layer.key()).type);
    program_.sizes.multiply_adds += 3 * layer.p->hidden_size * (layer.p->input_size + layer.p->hidden_size);
  }
  ISOBIT_ASSIGN_OR_RETURN(const Selftest test, make_selftest(model_, options_.selftest_steps));
  program_.add_data_comment("What $_selftest compares");
  program_.make_external(program_.add_array(model_.input_grid().dtype(), "selftest_x", test.x, DataPart::kSelftest));
  program_.make_external(program_.add_array(model_.output_grid().dtype(), "selftest_y", test.y, DataPart::kSelftest));
  CStruct state, scratch;
  fill_structs(state, scratch);
  program_.sizes.state_bytes = state.bytes();
  program_.sizes.scratch_bytes = scratch.bytes();
  CExport out;
  out.name = program_.name();
  const GruModelParameters& p = model_.parameters();
  out.model = gru_text(p.name, model_.layer_count(), p.directions, model_.input_size(), model_.output_size());
  out.target = options_.target;
  out.coverage = test.coverage;
  out.x_dtype = model_.input_grid().dtype();
  out.y_dtype = model_.output_grid().dtype();
  const std::string code = is_one_way() ? one_way_code() : two_way_code();
  out.files = program_.files(head(out.model), header(state, scratch), code);
  out.check_program = program_that_checks();
  out.measure_program = program_that_measures();
  out.sizes = program_.sizes;
  return out;
}

}  // namespace

Result<CExport> export_c(const GruModel& model, const CExportOptions& options) {
  const GruModelParameters& parameters = model.parameters();
  ISOBIT_ASSIGN_OR_RETURN(const std::string name, c_name_of(options, parameters.name, "gru"));
  if (options.float_entry && parameters.directions != 1) return no_float_entry();
  std::vector<GruLayerPlan> layers;
  for (size_t i = 0; i < parameters.layers.size(); ++i) {
    const GruLayerParameters& p = parameters.layers[i];
    const std::string label = layer_label(static_cast<int64_t>(i), parameters.directions);
    static constexpr const char* kGates[] = {"u", "r", "n"};
    for (size_t gate = 0; gate < 3; ++gate)
      ISOBIT_RETURN_IF_ERROR(
          check_table_size(p.tables[gate], options, std::string("table of ") + kGates[gate] + " of " + label));
    ISOBIT_ASSIGN_OR_RETURN(GruLayerPlan layer, plan_gru_layer(p, label, options.target));
    layers.push_back(std::move(layer));
  }
  CProgram program(name, options.target, parameters.layers[0].rounding);
  return GruExport(model, std::move(layers), program, options).make();
}

}  // namespace isobit
