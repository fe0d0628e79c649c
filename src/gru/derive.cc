// SPDX-License-Identifier: Apache-2.0
// From statistics and float weights to the integers of a model: numerics.md, sections 2, 4 and 7.
#include <algorithm>
#include <cmath>
#include <utility>

#include "calibrate/derive_grid.h"
#include "core/float_mode.h"
#include "core/number_text.h"
#include "gru/dead_rows.h"
#include "gru/proof.h"
#include "gru/rescale.h"
#include "isobit/gru.h"

namespace isobit {
namespace {

/// N of the gate outputs u, r and n.
int64_t gate_output_steps(const GridOptions& options, ScaleKind kind, GruTensor tensor) {
  // With general scales 1 gets a code, so that u can hold the state. A power of two would double the step for it.
  const bool has_code_of_one = kind == ScaleKind::kReal && tensor != kN;
  return (int64_t{1} << options.bits) - (has_code_of_one ? 1 : 0);
}

/// Keeps what was encoded; a refusal names what was to be derived, and what to do.
Status keep(const Result<RescaleParameters>& encoded, const std::string& name, const std::string& advice,
            RescaleParameters& out) {
  if (!encoded.ok()) return {encoded.status().code(), name + ": " + encoded.status().message() + "; " + advice};
  out = *encoded;
  return {};
}

/// W x + bw -> ih, or R h + br -> hh.
struct Linear {
  GruTensor weights, activation, bias, result;
  const std::vector<Grid>& weight_grids;
  const std::vector<Grid>& bias_grids;
  const std::vector<Int128>& bias_operands;
  const std::vector<Int128>& dots;
  std::vector<RescaleParameters>& bias_to_acc;
  std::vector<RescaleParameters>& acc_to_result;
};

Status derive_linear(const GruLayerParameters& p, const std::string& layer, const Linear& linear) {
  const auto name_of = [](GruTensor tensor) { return std::string(kGruTensorNames[tensor]); };
  const size_t rows = linear.weight_grids.size();
  linear.bias_to_acc.resize(rows);
  linear.acc_to_result.resize(rows);
  for (size_t c = 0; c < rows; ++c) {
    const auto keep_row = [&](const Result<RescaleParameters>& encoded, const std::string& rescale,
                              RescaleParameters& out) {
      if (encoded.ok()) return keep(encoded, {}, {}, out);
      const std::string matrix = name_of(linear.weights);
      std::string name = layer;
      name.append(" ").append(matrix).append(" ").append(row_text(static_cast<int64_t>(c), p.hidden_size));
      return keep(encoded, name.append(": rescale ").append(rescale),
                  "use fewer bits for " + matrix + ", " + name_of(linear.activation) + " or " + name_of(linear.bias),
                  out);
    };
    const LinearRow row{scale_of(p.grids[linear.activation]), scale_of(linear.bias_grids[c]),
                        scale_of(p.grids[linear.result]), linear.bias_operands[c], linear.dots[c]};
    const Scale weights = scale_of(linear.weight_grids[c]);
    const Int128 bias = row.bias_operand;
    ISOBIT_RETURN_IF_ERROR(keep_row(with_message(row.bias_to_acc(weights, bias), bias),
                                    name_of(linear.bias) + " -> accumulator", linear.bias_to_acc[c]));
    const Int128 accumulator = bound_add(row.dot, bound_rescale(bias, linear.bias_to_acc[c]));
    ISOBIT_RETURN_IF_ERROR(keep_row(with_message(row.acc_to_result(weights, accumulator), accumulator),
                                    "accumulator -> " + name_of(linear.result), linear.acc_to_result[c]));
  }
  return {};
}

Result<CodeMatrix> quantize_rows(const std::vector<float>& values, int64_t rows, int64_t columns,
                                 const std::vector<Grid>& grids) {
  CodeMatrix codes(grids[0].dtype(), rows, columns);
  const size_t row_bytes = static_cast<size_t>(columns) * size_in_bytes(codes.dtype());
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row)
    ISOBIT_RETURN_IF_ERROR(quantize(grids[row], std::span(values).subspan(row * columns, static_cast<size_t>(columns)),
                                    codes.data() + row * row_bytes, "weights"));
  return codes;
}

Grid without_scale(const GridOptions& options, ScaleKind kind) {
  return Grid{options.bits, options.is_signed, kind, 0, 1.0f, 0};
}

}  // namespace

Result<RescaleParameters> encode_hand_over(const Grid& from, const Grid& to) {
  if (from.kind != to.kind)
    return Status(StatusCode::kInvalidArgument,
                  "a state cannot be handed from a model with power-of-two scales to one with real scales, or back");
  const Int128 operand = largest_difference(from);
  const Scale unit = unit_scale(to.kind);
  Result<RescaleParameters> ratio = encode_scales(operand, scale_of(from), unit, scale_of(to), unit);
  if (!ratio.ok()) return Status(ratio.status().code(), "state hand-over: " + ratio.status().message());
  if (bound_add(bound_rescale(operand, *ratio), largest_code(to)) > static_cast<Int128>(INT64_MAX))
    return Status(StatusCode::kOverflow, "state hand-over: the rescaled state does not fit int64");
  return ratio;
}

Status derive_rescales(GruLayerParameters& p, const std::string& name) {
  const Grid& h_grid = p.grids[kH];
  const ScaleKind kind = h_grid.kind;
  const Grid& u = p.grids[kU];
  const double one = std::rint(1.0 / static_cast<double>(u.scale()));
  if (!(one >= 1))
    return Status(StatusCode::kInvalidArgument, name + ": one step of u is " + std::to_string(u.scale()) +
                                                    ", must be at most 1; use more bits for u");
  p.one = static_cast<int64_t>(one) + u.zero_point;

  const GruOperandBounds bounds = operand_bounds(p);
  ISOBIT_RETURN_IF_ERROR(derive_linear(
      p, name, {kW, kX, kBw, kIh, p.W_grid, p.bw_grid, bounds.bias_w, bounds.dot_x, p.bw_to_acc, p.acc_to_ih}));
  ISOBIT_RETURN_IF_ERROR(derive_linear(
      p, name, {kR, kH, kBr, kHh, p.R_grid, p.br_grid, bounds.bias_r, bounds.dot_h, p.br_to_acc, p.acc_to_hh}));
  const Scale unit = unit_scale(kind);
  // The rescale from * factor -> to.
  const auto derive = [&](const std::string& rescale, Int128 operand, const Scale& from, const Scale& factor,
                          const Scale& to, const std::string& advice, RescaleParameters& out) {
    return keep(encode_scales(operand, from, factor, to, unit), name + ": rescale " + rescale, advice, out);
  };
  const Int128 ih = largest_difference(p.grids[kIh]);
  const Int128 hh = largest_difference(p.grids[kHh]);
  for (size_t gate = 0; gate < 3; ++gate) {
    const std::string input(kGruTensorNames[kUIn + gate]);
    const Scale to = scale_of(p.grids[kUIn + gate]);
    const std::string advice = "use fewer bits for " + input;
    ISOBIT_RETURN_IF_ERROR(derive("ih -> " + input, ih, scale_of(p.grids[kIh]), unit, to, advice, p.ih_to_gate[gate]));
    if (gate < 2)
      ISOBIT_RETURN_IF_ERROR(
          derive("hh -> " + input, hh, scale_of(p.grids[kHh]), unit, to, advice, p.hh_to_gate[gate]));
  }
  const Grid& r = p.grids[kRGate];
  const Grid& n = p.grids[kN];
  const Int128 r_hh = bound_multiply(largest_difference(r), hh);
  const std::string h_advice = "one step of h is " + number_text(static_cast<double>(h_grid.scale())) +
                               "; calibrate on data where h is larger, or use fewer bits for h";
  ISOBIT_RETURN_IF_ERROR(derive("r * hh -> n_in", r_hh, scale_of(r), scale_of(p.grids[kHh]), scale_of(p.grids[kNIn]),
                                "use fewer bits for r, hh or n_in", p.rhh_to_n));
  ISOBIT_RETURN_IF_ERROR(
      derive("n -> h", largest_difference(n), scale_of(n), unit, scale_of(h_grid), h_advice, p.n_to_h));
  if (kind == ScaleKind::kPow2) return derive("u -> 1", 1, scale_of(u), unit, unit, "use more bits for u", p.u_to_one);
  const Int128 n_on_h = bound_rescale(largest_difference(n), p.n_to_h);
  const Int128 mixed = bound_add(bound_multiply(largest_difference(u), largest_difference(h_grid)),
                                 bound_multiply(bound_add(largest_difference(u), static_cast<Int128>(one)), n_on_h));
  // 1 / (one - z_u), whatever S_u is: u and 1 - u then sum to exactly 1 and a held state does not decay.
  return keep(encode_ratio(1.0 / one, mixed), name + ": rescale u -> 1", h_advice, p.u_to_one);
}

namespace {

std::string direction_name(int64_t index, int64_t directions) {
  return "layer " + std::to_string(index / directions) + (index % directions == 1 ? " reverse" : "");
}

/// W, R and biases on grids of their rows, and all rescales, where everything else is there.
Status derive_weights(const GruLayerWeights& w, const std::array<GridOptions, kGruTensorCount>& options, ScaleKind kind,
                      const std::string& name, GruRowGrids grids, GruLayerParameters& p) {
  const int64_t rows = 3 * w.hidden_size;
  const auto row_grids = [&](GruTensor tensor, const std::vector<float>& values, int64_t columns) {
    const std::string matrix = name + " " + std::string(kGruTensorNames[tensor]);
    const bool zero_rows_follow = tensor == kW || tensor == kR;
    return derive_named_row_grids(values, rows, columns, options[tensor], kind, matrix, zero_rows_follow,
                                  [&](int64_t row) { return matrix + " " + row_text(row, w.hidden_size); });
  };
  if (grids == GruRowGrids::kDerived) {
    ISOBIT_ASSIGN_OR_RETURN(p.W_grid, row_grids(kW, w.W, w.input_size));
    ISOBIT_ASSIGN_OR_RETURN(p.R_grid, row_grids(kR, w.R, w.hidden_size));
    for (const GruTensor tensor : {kW, kR}) p.grids[tensor] = without_scale(options[tensor], kind);
  }
  ISOBIT_ASSIGN_OR_RETURN(p.bw_grid, row_grids(kBw, w.bw, 1));
  ISOBIT_ASSIGN_OR_RETURN(p.br_grid, row_grids(kBr, w.br, 1));
  for (const GruTensor tensor : {kBw, kBr}) p.grids[tensor] = without_scale(options[tensor], kind);
  ISOBIT_ASSIGN_OR_RETURN(p.W, quantize_rows(w.W, rows, w.input_size, p.W_grid));
  ISOBIT_ASSIGN_OR_RETURN(p.R, quantize_rows(w.R, rows, w.hidden_size, p.R_grid));
  ISOBIT_ASSIGN_OR_RETURN(p.bw, quantize_rows(w.bw, rows, 1, p.bw_grid));
  ISOBIT_ASSIGN_OR_RETURN(p.br, quantize_rows(w.br, rows, 1, p.br_grid));
  rescale_dead_rows(w, p);
  return derive_rescales(p, name);
}

/// The table of a gate, for the grids that are there.
Status derive_table(size_t gate, const GruLayerQuantization& wanted, const std::string& name, TableCache* tables,
                    GruLayerParameters& p) {
  const Grid &in = p.grids[kUIn + gate], &out = p.grids[kU + gate];
  const Activation function = gate == 2 ? Activation::kTanh : Activation::kSigmoid;
  const TableOptions options = wanted.table.value_or(default_table_options(in.bits));
  Result<ActivationTable> table = tables != nullptr ? tables->fit(function, in, out, options, p.rounding)
                                                    : fit_table(function, in, out, options, p.rounding);
  if (!table.ok())
    return {table.status().code(),
            name + " table of " + std::string(kGruTensorNames[kU + gate]) + ": " + table.status().message()};
  p.tables[gate] = *std::move(table);
  return {};
}

/// The grid that a change makes of `grid`.
Result<Grid> changed_grid(const GruGridChange& change, Grid grid, const GridOptions& options, const std::string& name) {
  const int given = int{change.shift.has_value()} + int{change.scale.has_value()} + int{change.range.has_value()};
  if (given != 1)
    return Status(StatusCode::kInvalidArgument,
                  name + ": " + std::to_string(given) + " of shift, scale and range are given, must be 1");
  if (change.range)
    return derive_grid_f64(change.range->first, change.range->second, options, grid.kind,
                           (int64_t{1} << std::clamp(options.bits, 1, 32)) - 1, name);
  if (change.shift.has_value() != (grid.kind == ScaleKind::kPow2))
    return Status(StatusCode::kInvalidArgument,
                  name + (change.shift ? ": shift is given, must be scale: " : ": scale is given, must be shift: ") +
                      "the model's scales are " + std::string(to_string(grid.kind)));
  if (change.shift) grid.shift = *change.shift;
  if (change.scale) grid.real_scale = *change.scale;
  ISOBIT_RETURN_IF_ERROR(check_grid(grid, name));
  return grid;
}

/// The grids of all activations after the changes.
Status change_grids(std::span<const GruGridChange> changes, const GruQuantization& quantization,
                    GruModelParameters& model) {
  const int64_t directions = model.directions, count = static_cast<int64_t>(model.layers.size());
  const auto refuse = [](const std::string& what) { return Status(StatusCode::kInvalidArgument, what); };
  std::vector<std::array<bool, kGruTensorCount>> changed(model.layers.size());
  for (const GruGridChange& change : changes) {
    if (change.layer < 0 || change.layer >= count)
      return refuse("the layer of a change of grids is " + std::to_string(change.layer) + ", must be 0.." +
                    std::to_string(count - 1) + " (layer * directions + direction)");
    const GruTensor tensor = change.tensor;
    if (tensor < 0 || tensor >= kGruTensorCount)
      return refuse("the tensor of a change of grids is " + std::to_string(static_cast<int>(tensor)) + ", must be 0.." +
                    std::to_string(kGruTensorCount - 1));
    const auto index = static_cast<size_t>(change.layer);
    const std::string name =
        direction_name(change.layer, directions) + " " + std::string(kGruTensorNames[static_cast<size_t>(tensor)]);
    const bool is_shared = tensor == kX || tensor == kH;
    if (std::find(kGruCalibratedTensors.begin(), kGruCalibratedTensors.end(), tensor) == kGruCalibratedTensors.end())
      return refuse(name + ": its grid cannot be changed, must be that of x, h, ih, hh, u_in, r_in or n_in");
    if (tensor == kX && change.layer >= directions)
      return refuse(name + ": its grid is that of " + direction_name(change.layer - directions, directions) +
                    " h, which must be changed");
    if (changed[index][tensor]) return refuse(name + ": its grid is changed twice, must be once");
    changed[index][tensor] = true;
    GruLayerParameters& p = model.layers[index];
    const GridOptions& options = quantization.layer(change.layer / directions).tensors[tensor];
    // The other direction may have changed a shared grid already. The comparison below finds where that differs.
    ISOBIT_ASSIGN_OR_RETURN(const Grid grid, changed_grid(change, p.grids[tensor], options, name));
    if (!is_shared) {
      p.grids[tensor] = grid;
      continue;
    }
    const int64_t first = change.layer / directions * directions;
    for (int64_t other = first; other < first + directions; ++other) {
      const auto of = static_cast<size_t>(other);
      if (other != change.layer && changed[of][tensor] && model.layers[of].grids[tensor] != grid)
        return refuse(name + ": one step is " + number_text(static_cast<double>(grid.scale())) + " and z " +
                      std::to_string(grid.zero_point) + ", must be " +
                      number_text(static_cast<double>(model.layers[of].grids[tensor].scale())) + " and " +
                      std::to_string(model.layers[of].grids[tensor].zero_point) + ": directions share this grid");
      model.layers[of].grids[tensor] = grid;
    }
  }
  for (int64_t i = directions; i < count; ++i)
    model.layers[static_cast<size_t>(i)].grids[kX] = model.layers[static_cast<size_t>(i - directions)].grids[kH];
  return {};
}

}  // namespace

Result<GruModelParameters> with_weights(GruModelParameters model, const GruWeights& weights,
                                        const GruQuantization& quantization, GruRowGrids rows) {
  return with_grids(std::move(model), {}, weights, quantization, nullptr, rows);
}

Result<GruModelParameters> with_grids(GruModelParameters model, std::span<const GruGridChange> changes,
                                      const GruWeights& weights, const GruQuantization& quantization,
                                      TableCache* tables, GruRowGrids rows) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_weights(weights));
  if (weights.directions != model.directions || weights.layers.size() != model.layers.size())
    return Status(StatusCode::kInvalidArgument, "weights have " + std::to_string(weights.layers.size()) +
                                                    " matrices W in " + std::to_string(weights.directions) +
                                                    " directions, must have " + std::to_string(model.layers.size()) +
                                                    " in " + std::to_string(model.directions) + ", as the model");
  ISOBIT_RETURN_IF_ERROR(change_grids(changes, quantization, model));
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const GruLayerWeights& w = weights.layers[i];
    GruLayerParameters& p = model.layers[i];
    const auto index = static_cast<int64_t>(i);
    const std::string name = direction_name(index, model.directions);
    if (w.input_size != p.input_size || w.hidden_size != p.hidden_size)
      return Status(StatusCode::kInvalidArgument, name + ": weights have C = " + std::to_string(w.input_size) +
                                                      ", H = " + std::to_string(w.hidden_size) + ", must have " +
                                                      std::to_string(p.input_size) + " and " +
                                                      std::to_string(p.hidden_size) + ", as the model");
    const GruLayerQuantization& wanted = quantization.layer(index / model.directions);
    for (size_t gate = 0; gate < 3; ++gate)
      if (p.tables[gate].input != p.grids[kUIn + gate])
        ISOBIT_RETURN_IF_ERROR(derive_table(gate, wanted, name, tables, p));
    ISOBIT_RETURN_IF_ERROR(derive_weights(w, wanted.tensors, p.grids[kH].kind, name, rows, p));
  }
  model.source_hash = weights.source_hash;
  return model;
}

Result<GruModelParameters> GruCalibrator::derive(const GruQuantization& quantization, TableCache* tables) const {
  const DefaultFloatMode mode;
  GruModelParameters model;
  model.directions = weights_.directions;
  model.name = weights_.name;
  model.source_hash = weights_.source_hash;
  model.notes = quantization.notes;
  const ScaleKind kind = quantization.scale;
  const int64_t directions = weights_.directions;
  if (!quantization.layers.empty() && quantization.layers.rbegin()->first >= weights_.layer_count()) {
    return Status(StatusCode::kInvalidArgument, "layer l" + std::to_string(quantization.layers.rbegin()->first) +
                                                    " is named, the GRU has l0 to l" +
                                                    std::to_string(weights_.layer_count() - 1));
  }
  Grid chained_x;  // the h grid of the layer below
  for (int64_t l = 0; l < weights_.layer_count(); ++l) {
    const std::string layer = "layer " + std::to_string(l);
    // Both directions share the x grid and the h grid.
    TensorStatistics x_statistics = statistics(l * directions, kX);
    TensorStatistics h_statistics = statistics(l * directions, kH);
    for (int64_t d = 1; d < directions; ++d) {
      x_statistics.merge(statistics(l * directions + d, kX));
      h_statistics.merge(statistics(l * directions + d, kH));
    }
    const GruLayerQuantization& wanted = quantization.layer(l);
    const auto& options = wanted.tensors;
    if (l == 0) {
      ISOBIT_ASSIGN_OR_RETURN(chained_x, choose_grid(x_statistics, options[kX], kind, wanted.methods[kX], "x"));
    }
    const Grid x_grid = chained_x;
    ISOBIT_ASSIGN_OR_RETURN(const Grid h_grid,
                            choose_grid(h_statistics, options[kH], kind, wanted.methods[kH], layer + " h"));
    for (int64_t d = 0; d < directions; ++d) {
      const GruLayerWeights& w = weights_.layers[static_cast<size_t>(l * directions + d)];
      const std::string name = direction_name(l * directions + d, directions);
      GruLayerParameters p;
      p.input_size = w.input_size;
      p.hidden_size = w.hidden_size;
      p.rounding = quantization.rounding;
      p.grids[kX] = x_grid;
      p.grids[kH] = h_grid;
      for (const GruTensor tensor : {kIh, kHh, kUIn, kRIn, kNIn}) {
        ISOBIT_ASSIGN_OR_RETURN(p.grids[tensor],
                                choose_grid(statistics(l * directions + d, tensor), options[tensor], kind,
                                            wanted.methods[tensor], name + " " + std::string(kGruTensorNames[tensor])));
      }
      for (const GruTensor tensor : {kU, kRGate, kN}) {
        ISOBIT_ASSIGN_OR_RETURN(p.grids[tensor], derive_grid(tensor == kN ? -1.0f : 0.0f, 1.0f, options[tensor], kind,
                                                             gate_output_steps(options[tensor], kind, tensor),
                                                             name + " " + std::string(kGruTensorNames[tensor])));
      }
      for (size_t gate = 0; gate < 3; ++gate) ISOBIT_RETURN_IF_ERROR(derive_table(gate, wanted, name, tables, p));
      ISOBIT_RETURN_IF_ERROR(derive_weights(w, options, kind, name, GruRowGrids::kDerived, p));
      model.layers.push_back(std::move(p));
    }
    chained_x = h_grid;
  }
  return model;
}

Result<GruModel> GruCalibrator::finish(const GruQuantization& quantization, TableCache* tables) const {
  ISOBIT_ASSIGN_OR_RETURN(GruModelParameters parameters, derive(quantization, tables));
  return GruModel::create(std::move(parameters), tables);
}

}  // namespace isobit
