// SPDX-License-Identifier: Apache-2.0
#include "export/gru_layer.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>

#include "core/fixed.h"
#include "core/rescale.h"
#include "gru/proof.h"
#include "isobit/text.h"

namespace isobit {
namespace {

constexpr int32_t kWidestCode = 16;

bool has_multiplier(std::span<const RescaleParameters> rescales) {
  return std::any_of(rescales.begin(), rescales.end(), [](const RescaleParameters& r) { return r.multiplier != 1; });
}

/// A rescale of the cell, by its name in C.
struct CellRescale {
  const char* name;
  RescaleParameters ratio;
};
std::array<CellRescale, 8> cell_rescales(const GruLayerParameters& p) {
  return {{{"ih_to_u_in", p.ih_to_gate[0]},
           {"ih_to_r_in", p.ih_to_gate[1]},
           {"ih_to_n_in", p.ih_to_gate[2]},
           {"hh_to_u_in", p.hh_to_gate[0]},
           {"hh_to_r_in", p.hh_to_gate[1]},
           {"rhh_to_n_in", p.rhh_to_n},
           {"n_to_h", p.n_to_h},
           {"u_to_one", p.u_to_one}}};
}

GruLinearPlan plan_linear(const std::string& prefix, CTarget target, const CodeMatrix& weights, const Grid& weight_grid,
                          const Grid& x, const CodeMatrix& bias, const std::vector<RescaleParameters>& to_acc,
                          const std::vector<RescaleParameters>& to_out, Rounding rounding,
                          const GruLinearWidths& widths) {
  GruLinearPlan linear;
  linear.prefix = prefix;
  Int128 largest = std::max(widths.products, widths.accumulator);
  const std::vector<RowSums> sums = row_sums(weights);
  for (int64_t row = 0; row < weights.rows(); ++row) {
    const RescaleParameters& ratio = to_acc[static_cast<size_t>(row)];
    const int64_t start = Rescale{ratio.multiplier, ratio.shift}.apply(bias.at(row, 0), rounding) -
                          x.zero_point * sums[static_cast<size_t>(row)].sum;
    linear.start.push_back(start);
    largest = std::max(largest, start < 0 ? -static_cast<Int128>(start) : static_cast<Int128>(start));
  }
  linear.product = choose_product(target, weight_grid.bits, weight_grid.is_signed, x.dtype(), largest_code(x),
                                  weights.columns(), largest);
  linear.has_multipliers = has_multiplier(to_out);
  linear.is_wide = linear.product.is_wide || linear.has_multipliers || !fits_s32(widths.result);
  return linear;
}

// ---- Code

constexpr std::string_view kRatioType = R"(
/* @WHAT */
typedef struct {
  int32_t @FIELDS;
} @TYPE;
)";
constexpr std::string_view kRescale = R"(
static @T @F(@T x, const @TYPE *ratio)
{
  return @CAST@ROUND(@X, ratio->shift);
}
)";

constexpr std::string_view kLayerType = R"(
/* One direction of a layer. low and high limit a code minus its zero point. Rows of W and R: gates u, r, n. */
typedef struct {
  uint32_t inputs, hidden;
@LINEARS  @T h_zero, h_low, h_high;
  @T ih_low, ih_high, hh_low, hh_high;
  @T u_in_low, u_in_high, r_in_low, r_in_high, n_in_low, n_in_high;
  @T u_zero, r_zero, n_zero;
  @T one; /* the code of u for 1, minus u_zero */
  @RATIO ih_to_u_in, ih_to_r_in, ih_to_n_in, hh_to_u_in, hh_to_r_in, rhh_to_n_in, n_to_h, u_to_one;
  @TABLE0u_table;
  @TABLE1r_table;
  @TABLE2n_table;
} @LAYER;
)";

constexpr std::string_view kLinearMembers = R"(  const @WEIGHT *@M;
  uint32_t @M_row;   /* elements from row to row */
  uint32_t @M_count; /* @COUNT */
  const @SUM *@M_start; /* of the sum of a row: bias, and -zero point of the input * sum of its weights */
@MULTIPLIERS  const int8_t *@M_shift;
)";

constexpr std::string_view kLayer = R"(
/* One step of a layer:
     ih = W x + bw                     hh = R h + br
     u = sigmoid(ih_u + hh_u)          r = sigmoid(ih_r + hh_r)
     n = tanh(ih_n + r * hh_n)         next = u * h + (1 - u) * n
   Every value is a code minus its zero point; a rescale takes it to the scale of the next one, and rounds. */
static void @F(const @LAYER *p, const @X *x, const @H *h, @H *next@ARGUMENTS)
{
  const uint32_t gate_W = p->hidden * p->W_row;
  const uint32_t gate_R = p->hidden * p->R_row;
@PREPARE  uint32_t unit;
  for (unit = 0; unit < p->hidden; ++unit) {
    @SUM_W sums_W[3];
    @SUM_R sums_R[3];
    @T ih[3], hh[3], u, r, n;
    uint32_t gate;
    uint32_t row = unit;
    @MULTIPLY_W(p->W + unit * p->W_row, gate_W, @X_W, p->W_count, sums_W);
    @MULTIPLY_R(p->R + unit * p->R_row, gate_R, @X_R, p->R_count, sums_R);
    for (gate = 0; gate < 3u; ++gate) {
@IH@HH      row += p->hidden;
    }
    u = @CLAMP(
        @RESCALE(ih[0], &p->ih_to_u_in) + @RESCALE(hh[0], &p->hh_to_u_in),
        p->u_in_low, p->u_in_high);
    u = @LOOK0(p->u_table, (int32_t)(u - p->u_in_low)) - p->u_zero;
    r = @CLAMP(
        @RESCALE(ih[1], &p->ih_to_r_in) + @RESCALE(hh[1], &p->hh_to_r_in),
        p->r_in_low, p->r_in_high);
    r = @LOOK1(p->r_table, (int32_t)(r - p->r_in_low)) - p->r_zero;
    n = @CLAMP(
        @RESCALE(ih[2], &p->ih_to_n_in) + @RESCALE(r * hh[2], &p->rhh_to_n_in),
        p->n_in_low, p->n_in_high);
    n = @LOOK2(p->n_table, (int32_t)(n - p->n_in_low)) - p->n_zero;
    n = u * (h[unit] - p->h_zero) + (p->one - u) * @RESCALE(n, &p->n_to_h);
    n = @CLAMP(@RESCALE(n, &p->u_to_one), p->h_low, p->h_high);
    next[unit] = (@H)(n + p->h_zero);
  }
}
)";

/// Rescales of the cell: 32 or 64 bits, with multipliers or not.
struct Ratio {
  std::string type, function;
};
Ratio add_ratio(CProgram& program, const GruLayerPlan& layer) {
  const bool is_wide = layer.is_wide || layer.has_multipliers;
  const std::string round = program.round_shift(is_wide);
  Ratio ratio;
  ratio.type = layer.has_multipliers ? "$_ratio" : "$_shift";
  ratio.function = ratio.type + (layer.is_wide ? "_rescale_64" : "_rescale");
  program.add_internal(
      ratio.type,
      fill(std::string(kRatioType), {{"@WHAT", layer.has_multipliers ? "The ratio multiplier / 2^shift of two scales."
                                                                     : "The ratio 1 / 2^shift of two scales."},
                                     {"@FIELDS", layer.has_multipliers ? "multiplier, shift" : "shift"},
                                     {"@TYPE", ratio.type}}));
  program.add_function(ratio.function, fill(std::string(kRescale),
                                            {{"@CAST", layer.has_multipliers && !layer.is_wide ? "(int32_t)" : ""},
                                             {"@ROUND", round},
                                             {"@X", layer.has_multipliers ? "(int64_t)x * ratio->multiplier" : "x"},
                                             {"@F", ratio.function},
                                             {"@TYPE", ratio.type},
                                             {"@T", sum_type(layer.is_wide)}}));
  return ratio;
}

/// The statements that make ih or hh of a row from its sum.
std::string linear_lines(CProgram& program, const GruLayerPlan& layer, const GruLinearPlan& linear,
                         const std::string& out) {
  const std::string round = program.round_shift(linear.is_wide);
  const std::string& m = linear.prefix;
  // In this order: without what the offset adds, the sum is one that the proof knows.
  std::string sum = "sums_" + m + "[gate]" + (linear.product.needs_sum() ? " - less_" + m : std::string()) + " + p->" +
                    m + "_start[row]";
  const bool is_widened = linear.is_wide && !linear.product.is_wide;
  if (is_widened || linear.has_multipliers) sum = std::string(is_widened ? "(int64_t)" : "") + "(" + sum + ")";
  if (linear.has_multipliers) sum += " * p->" + m + "_multiplier[row]";
  return "      " + out + "[gate] = " + (linear.is_wide && !layer.is_wide ? "(int32_t)" : "") +
         program.clamp(linear.is_wide) + "(\n          " + round + "(" + sum + ", p->" + m + "_shift[row]), p->" + out +
         "_low, p->" + out + "_high);\n";
}

std::string linear_members(const GruLinearPlan& linear) {
  const Product& product = linear.product;
  const std::string count = product.kernel == ProductKernel::kPlain   ? "columns"
                            : product.kernel == ProductKernel::kPairs ? "words of a row"
                                                                      : "vectors of a row";
  return fill(std::string(kLinearMembers),
              {{"@WEIGHT", product.weight_type()},
               {"@COUNT", count},
               {"@SUM", product.sum()},
               {"@MULTIPLIERS", linear.has_multipliers ? "  const int32_t *@M_multiplier;\n" : std::string()},
               {"@M", linear.prefix}});
}

/// The statement that prepares x or h, or sums its codes, where the product needs that.
std::string prepare_lines(CProgram& program, const GruLinearPlan& linear, const std::string& x,
                          const std::string& count) {
  const Product& product = linear.product;
  if (!product.is_prepared() && !product.needs_sum()) return {};
  const std::string function = prepare(program, product), &m = linear.prefix;
  const std::string call =
      function + "(" + x + ", p->" + count + (product.is_prepared() ? ", prepared_" + m : std::string()) + ");";
  if (!product.needs_sum()) return "  " + call + "\n";
  return "  const " + product.sum() + " less_" + m + " = " + c_number(product.offset) + " * " + call +
         " /* stored weights are so much too large */\n";
}

/// A shift as it is stored. Of 32 bits, only what is always 0 can be shifted further to the left than int32 has room.
int stored_shift(bool is_wide, int shift) { return !is_wide && shift < -30 ? 0 : shift; }

/// The branches of the rounding functions that a layer needs, of code that is there.
void note_shifts(CProgram& program, const GruLayerPlan& layer) {
  const GruLayerParameters& p = *layer.p;
  const auto note = [&](bool is_wide, int shift) { program.note_shift(is_wide, stored_shift(is_wide, shift)); };
  for (const RescaleParameters& ratio : p.acc_to_ih) note(layer.W.is_wide, ratio.shift);
  for (const RescaleParameters& ratio : p.acc_to_hh) note(layer.R.is_wide, ratio.shift);
  for (const CellRescale& rescale : cell_rescales(p)) note(layer.is_wide || layer.has_multipliers, rescale.ratio.shift);
  for (const ActivationTable& table : p.tables) look_up_function(program, table);
}

// ---- Data

/// Adds the arrays of W or R. Returns the initialisers of its members.
std::vector<std::string> add_linear_data(CProgram& program, const GruLayerPlan& layer, const GruLinearPlan& linear,
                                         const CodeMatrix& weights, int32_t bits,
                                         const std::vector<RescaleParameters>& rescales) {
  const std::string name = layer.label + "_" + linear.prefix;
  program.add_data_comment(linear.prefix + " of " + layer.label + ": " + std::to_string(weights.rows()) + " x " +
                           std::to_string(weights.columns()) + ", " + count_text(bits, "bit"));
  const std::string array = add_weights(program, name, linear.product, weights.rows(),
                                        [&](int64_t r, int64_t c) { return weights.at(r, c) + linear.product.offset; });
  const Dtype sum = linear.product.is_wide ? Dtype::kS64 : Dtype::kS32;
  std::vector<int64_t> multipliers, shifts;
  for (const RescaleParameters& ratio : rescales) {
    multipliers.push_back(ratio.multiplier);
    shifts.push_back(stored_shift(linear.is_wide, ratio.shift));
  }
  std::vector<std::string> members = {
      array + ", " + c_number(linear.product.row_elements()) + ", " + c_number(linear.product.count()) + ",",
      program.add_array(sum, name + "_start", linear.start, DataPart::kOther) + ","};
  if (linear.has_multipliers)
    members.push_back(program.add_array(Dtype::kS32, name + "_multiplier", multipliers, DataPart::kOther) + ",");
  members.push_back(program.add_array(Dtype::kS8, name + "_shift", shifts, DataPart::kOther, true) + ",");
  return members;
}

std::string low_high(const Grid& grid) {
  return c_number(grid.min() - grid.zero_point) + ", " + c_number(grid.max() - grid.zero_point);
}

}  // namespace

std::string GruLayerPlan::key() const {
  std::string text;
  for (const GruLinearPlan* linear : {&W, &R})
    text += linear->product.key() + "/" + std::string(to_string(linear->product.x)) + "/" +
            std::to_string(linear->is_wide) + std::to_string(linear->has_multipliers) + ",";
  text += std::to_string(is_wide) + std::to_string(has_multipliers) + std::string(to_string(h()));
  for (const TableForm& table : tables) text += "," + table.pointer();
  return text;
}

Result<GruLayerPlan> plan_gru_layer(const GruLayerParameters& p, const std::string& label, CTarget target) {
  for (const GruTensor tensor : {kX, kH, kW, kR}) {
    if (p.grids[tensor].bits <= kWidestCode) continue;
    const std::string name(kGruTensorNames[tensor]);
    return Status(StatusCode::kUnsupported, label + ": " + name + " has " + std::to_string(p.grids[tensor].bits) +
                                                " bits, exported C takes at most 16; quantise with --bits " + name +
                                                "=16");
  }
  ISOBIT_ASSIGN_OR_RETURN(const GruProof proof, prove_no_overflow(p, label));
  GruLayerPlan layer;
  layer.p = &p;
  layer.label = label;
  layer.W =
      plan_linear("W", target, p.W, p.grids[kW], p.grids[kX], p.bw, p.bw_to_acc, p.acc_to_ih, p.rounding, proof.ih);
  layer.R =
      plan_linear("R", target, p.R, p.grids[kR], p.grids[kH], p.br, p.br_to_acc, p.acc_to_hh, p.rounding, proof.hh);
  layer.is_wide = !proof.cell_s32;
  for (GruLinearPlan* linear : {&layer.W, &layer.R}) linear->is_wide |= layer.is_wide;  // its limits are the cell's
  const std::array<CellRescale, 8> rescales = cell_rescales(p);
  layer.has_multipliers =
      std::any_of(rescales.begin(), rescales.end(), [](const CellRescale& r) { return r.ratio.multiplier != 1; });
  for (size_t gate = 0; gate < 3; ++gate) layer.tables[gate] = form_of(p.tables[gate]);
  return layer;
}

GruLayerCode add_gru_layer_code(CProgram& program, const GruLayerPlan& layer, const std::string& suffix) {
  const GruLayerParameters& p = *layer.p;
  GruLayerCode names = {"$_layer" + suffix + "_data", "$_layer" + suffix};
  // Types come before the layer's, which has members of them.
  const Ratio ratio = add_ratio(program, layer);
  std::array<std::string, 3> look_up;
  for (size_t gate = 0; gate < 3; ++gate) look_up[gate] = look_up_function(program, p.tables[gate]);
  program.add_internal(names.type,
                       fill(std::string(kLayerType), {{"@LINEARS", linear_members(layer.W) + linear_members(layer.R)},
                                                      {"@RATIO", ratio.type},
                                                      {"@TABLE0", layer.tables[0].pointer()},
                                                      {"@TABLE1", layer.tables[1].pointer()},
                                                      {"@TABLE2", layer.tables[2].pointer()},
                                                      {"@LAYER", names.type},
                                                      {"@T", sum_type(layer.is_wide)}}));
  std::string arguments;
  for (const GruLinearPlan* linear : {&layer.W, &layer.R})
    if (linear->product.is_prepared())
      arguments += ", " + linear->product.prepared_type() + " *prepared_" + linear->prefix;
  const std::string prepare_text =
      prepare_lines(program, layer.W, "x", "inputs") + prepare_lines(program, layer.R, "h", "hidden");
  program.add_function(names.function,
                       fill(std::string(kLayer), {{"@PREPARE", prepare_text},
                                                  {"@ARGUMENTS", arguments},
                                                  {"@MULTIPLY_W", multiply(program, layer.W.product)},
                                                  {"@MULTIPLY_R", multiply(program, layer.R.product)},
                                                  {"@SUM_W", layer.W.product.sum()},
                                                  {"@SUM_R", layer.R.product.sum()},
                                                  {"@X_W", layer.W.product.is_prepared() ? "prepared_W" : "x"},
                                                  {"@X_R", layer.R.product.is_prepared() ? "prepared_R" : "h"},
                                                  {"@LOOK0", look_up[0]},
                                                  {"@LOOK1", look_up[1]},
                                                  {"@LOOK2", look_up[2]},
                                                  {"@RESCALE", ratio.function},
                                                  {"@IH", linear_lines(program, layer, layer.W, "ih")},
                                                  {"@HH", linear_lines(program, layer, layer.R, "hh")},
                                                  {"@CLAMP", program.clamp(layer.is_wide)},
                                                  {"@LAYER", names.type},
                                                  {"@F", names.function},
                                                  {"@X", c_type(layer.W.product.x)},
                                                  {"@H", c_type(layer.h())},
                                                  {"@T", sum_type(layer.is_wide)}}));
  return names;
}

void add_gru_layer_data(CProgram& program, const GruLayerPlan& layer, const std::string& type) {
  const GruLayerParameters& p = *layer.p;
  const auto& grids = p.grids;
  note_shifts(program, layer);
  std::vector<std::string> members = {c_number(p.input_size) + ", " + c_number(p.hidden_size) + ","};
  for (const auto& [linear, weights, tensor, rescales] :
       {std::tuple(&layer.W, &p.W, kW, &p.acc_to_ih), std::tuple(&layer.R, &p.R, kR, &p.acc_to_hh)})
    for (const std::string& member : add_linear_data(program, layer, *linear, *weights, grids[tensor].bits, *rescales))
      members.push_back(member);
  static constexpr const char* kGates[] = {"u", "r", "n"};
  std::string tables;
  program.add_data_comment("tables of " + layer.label + ", where no layer before has them");
  for (size_t gate = 0; gate < 3; ++gate)
    tables += (gate == 0 ? "" : ", ") + add_table(program, layer.label + "_" + kGates[gate], p.tables[gate]);
  members.push_back(c_number(grids[kH].zero_point) + ", " + low_high(grids[kH]) + ", /* h */");
  members.push_back(low_high(grids[kIh]) + ", " + low_high(grids[kHh]) + ", /* ih, hh */");
  members.push_back(low_high(grids[kUIn]) + ", " + low_high(grids[kRIn]) + ", " + low_high(grids[kNIn]) +
                    ", /* u_in, r_in, n_in */");
  members.push_back(c_number(grids[kU].zero_point) + ", " + c_number(grids[kRGate].zero_point) + ", " +
                    c_number(grids[kN].zero_point) + ", /* zero points of u, r, n */");
  members.push_back(c_number(p.one - grids[kU].zero_point) + ", /* one */");
  for (const auto& [name, ratio] : cell_rescales(p))
    members.push_back("{" + (layer.has_multipliers ? c_number(ratio.multiplier) + ", " : std::string()) +
                      c_number(stored_shift(layer.is_wide || layer.has_multipliers, ratio.shift)) + "}, /* " + name +
                      " */");
  members.push_back(tables);
  // Words of 4 bytes, on a microcontroller; members of 8 bytes begin at a multiple of 8.
  int64_t words = 12 + (layer.W.has_multipliers ? 1 : 0) + (layer.R.has_multipliers ? 1 : 0);
  if (layer.is_wide) words = (words + 1) / 2 * 2;
  words += (layer.is_wide ? 2 : 1) * 17 + (layer.has_multipliers ? 16 : 8) + 3;
  if (layer.is_wide) words = (words + 1) / 2 * 2;
  program.add_data_comment(layer.label);
  program.make_external(program.add_object(type, layer.label, members, words * 4));
}

}  // namespace isobit
