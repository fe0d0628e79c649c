// SPDX-License-Identifier: Apache-2.0
// From statistics and float weights to the integers of a model: numerics.md, sections 2, 4 and 7.
#include <cmath>

#include "core/float_mode.h"
#include "gru/proof.h"
#include "gru/rescale.h"
#include "isobit/gru.h"

namespace isobit {
namespace {

int64_t default_steps(const GridOptions& options, bool calibrated) {
  return (int64_t{1} << options.bits) - (calibrated ? 1 : 0);
}

/// Rescales of one layer: every call names what it derives, the operand's bound and the scales.
class RescaleDeriver {
 public:
  RescaleDeriver(ScaleKind kind, std::string layer) : kind_(kind), layer_(std::move(layer)) {}

  /// numerator[0] * numerator[1] / (denominator[0] * denominator[1]); absent factors are one().
  Status derive(const std::string& name, Int128 operand, const Grid& n0, const Grid& n1, const Grid& d0, const Grid& d1,
                RescaleParameters& out) const {
    Result<RescaleParameters> ratio =
        kind_ == ScaleKind::kPow2
            ? encode_shift(static_cast<int64_t>(d0.shift) * -1 - d1.shift + n0.shift + n1.shift, operand)
            : encode_ratio(static_cast<double>(n0.scale()) * static_cast<double>(n1.scale()) /
                               (static_cast<double>(d0.scale()) * static_cast<double>(d1.scale())),
                           operand);
    if (!ratio.ok()) return {ratio.status().code(), layer_ + ": rescale " + name + ": " + ratio.status().message()};
    out = *ratio;
    return {};
  }
  [[nodiscard]] Grid one() const { return Grid{1, false, kind_, 0, 1.0f, 0}; }

 private:
  ScaleKind kind_;
  std::string layer_;
};

CodeMatrix quantize_rows(const std::vector<float>& values, int64_t rows, int64_t columns, const std::vector<Grid>& grids) {
  CodeMatrix codes(grids[0].dtype(), rows, columns);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      codes.set(row, column,
                quantize_value(grids[static_cast<size_t>(row)], values[static_cast<size_t>(row * columns + column)]));
  return codes;
}

Grid without_scale(const GridOptions& options, ScaleKind kind) {
  return Grid{options.bits, options.is_signed, kind, 0, 1.0f, 0};
}

}  // namespace

Status derive_rescales(GruLayerParameters& p, const std::string& name) {
  const Grid& x_grid = p.grids[kX];
  const Grid& h_grid = p.grids[kH];
  const ScaleKind kind = h_grid.kind;
  const int64_t rows = 3 * p.hidden_size;
  const Grid& u = p.grids[kU];
  const double one = std::rint(1.0 / static_cast<double>(u.scale()));
  if (!(one >= 1))
    return Status(StatusCode::kInvalidArgument,
                  name + ": one step of u is " + std::to_string(u.scale()) + ", must be at most 1; use more bits for u");
  p.one = static_cast<int64_t>(one) + u.zero_point;

  const RescaleDeriver ratios(kind, name);
  const Grid unit = ratios.one();
  const GruOperandBounds bounds = operand_bounds(p);
  for (std::vector<RescaleParameters>* rescales : {&p.bw_to_acc, &p.br_to_acc, &p.acc_to_ih, &p.acc_to_hh})
    rescales->resize(static_cast<size_t>(rows));
  for (size_t c = 0; c < static_cast<size_t>(rows); ++c) {
    ISOBIT_RETURN_IF_ERROR(ratios.derive("bw -> accumulator", bounds.bias_w[c], p.bw_grid[c], unit, p.W_grid[c], x_grid, p.bw_to_acc[c]));
    ISOBIT_RETURN_IF_ERROR(ratios.derive("br -> accumulator", bounds.bias_r[c], p.br_grid[c], unit, p.R_grid[c], h_grid, p.br_to_acc[c]));
    const Int128 acc_x = bound_add(bounds.dot_x[c], bound_rescale(bounds.bias_w[c], p.bw_to_acc[c]));
    const Int128 acc_h = bound_add(bounds.dot_h[c], bound_rescale(bounds.bias_r[c], p.br_to_acc[c]));
    ISOBIT_RETURN_IF_ERROR(
        ratios.derive("accumulator -> ih", acc_x, p.W_grid[c], x_grid, p.grids[kIh], unit, p.acc_to_ih[c]));
    ISOBIT_RETURN_IF_ERROR(
        ratios.derive("accumulator -> hh", acc_h, p.R_grid[c], h_grid, p.grids[kHh], unit, p.acc_to_hh[c]));
  }
  const Int128 ih = largest_difference(p.grids[kIh]);
  const Int128 hh = largest_difference(p.grids[kHh]);
  for (int gate = 0; gate < 3; ++gate)
    ISOBIT_RETURN_IF_ERROR(ratios.derive("ih -> gate input", ih, p.grids[kIh], unit, p.grids[kUIn + gate], unit,
                                         p.ih_to_gate[gate]));
  for (int gate = 0; gate < 2; ++gate)
    ISOBIT_RETURN_IF_ERROR(ratios.derive("hh -> gate input", hh, p.grids[kHh], unit, p.grids[kUIn + gate], unit,
                                         p.hh_to_gate[gate]));
  const Grid& r = p.grids[kRGate];
  const Grid& n = p.grids[kN];
  const Int128 r_hh = bound_multiply(largest_difference(r), hh);
  ISOBIT_RETURN_IF_ERROR(ratios.derive("r * hh -> n_in", r_hh, r, p.grids[kHh], p.grids[kNIn], unit, p.rhh_to_n));
  ISOBIT_RETURN_IF_ERROR(ratios.derive("n -> h", largest_difference(n), n, unit, h_grid, unit, p.n_to_h));
  if (kind == ScaleKind::kPow2) {
    ISOBIT_RETURN_IF_ERROR(ratios.derive("u -> 1", 1, u, unit, unit, unit, p.u_to_one));
  } else {
    const Int128 n_on_h = bound_rescale(largest_difference(n), p.n_to_h);
    const Int128 mixed = bound_add(bound_multiply(largest_difference(u), largest_difference(h_grid)),
                                   bound_multiply(bound_add(largest_difference(u), static_cast<Int128>(one)), n_on_h));
    // 1 / (one - z_u), whatever S_u is: u and 1 - u then sum to exactly 1 and a held state does not decay.
    Result<RescaleParameters> ratio = encode_ratio(1.0 / one, mixed);
    if (!ratio.ok()) return Status(ratio.status().code(), name + ": rescale u -> 1: " + ratio.status().message());
    p.u_to_one = *ratio;
  }
  return {};
}

Result<GruModelParameters> GruCalibrator::derive(const GruQuantization& quantization) const {
  const DefaultFloatMode mode;
  GruModelParameters model;
  model.directions = weights_.directions;
  model.name = weights_.name;
  model.source_hash = weights_.source_hash;
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
      const std::string name = layer + (d == 1 ? " reverse" : "");
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
        ISOBIT_ASSIGN_OR_RETURN(
            p.grids[tensor],
            derive_grid(tensor == kN ? -1.0f : 0.0f, 1.0f, options[tensor], kind, default_steps(options[tensor], false),
                        name + " " + std::string(kGruTensorNames[tensor])));
      }
      const int64_t rows = 3 * w.hidden_size;
      ISOBIT_ASSIGN_OR_RETURN(p.W_grid, derive_row_grids(w.W, rows, w.input_size, options[kW], kind, name + " W", true));
      ISOBIT_ASSIGN_OR_RETURN(p.R_grid, derive_row_grids(w.R, rows, w.hidden_size, options[kR], kind, name + " R", true));
      ISOBIT_ASSIGN_OR_RETURN(p.bw_grid, derive_row_grids(w.bw, rows, 1, options[kBw], kind, name + " bw", false));
      ISOBIT_ASSIGN_OR_RETURN(p.br_grid, derive_row_grids(w.br, rows, 1, options[kBr], kind, name + " br", false));
      for (const GruTensor tensor : {kW, kR, kBw, kBr}) p.grids[tensor] = without_scale(options[tensor], kind);
      p.W = quantize_rows(w.W, rows, w.input_size, p.W_grid);
      p.R = quantize_rows(w.R, rows, w.hidden_size, p.R_grid);
      p.bw = quantize_rows(w.bw, rows, 1, p.bw_grid);
      p.br = quantize_rows(w.br, rows, 1, p.br_grid);

      for (int gate = 0; gate < 3; ++gate) {
        const Grid& in = p.grids[kUIn + gate];
        ISOBIT_ASSIGN_OR_RETURN(
            p.tables[gate],
            fit_table(gate == 2 ? Activation::kTanh : Activation::kSigmoid, in, p.grids[kU + gate],
                      wanted.table.value_or(default_table_options(in.bits)), quantization.rounding));
      }

      ISOBIT_RETURN_IF_ERROR(derive_rescales(p, name));
      model.layers.push_back(std::move(p));
    }
    chained_x = h_grid;
  }
  return model;
}

Result<GruModel> GruCalibrator::finish(const GruQuantization& quantization) const {
  ISOBIT_ASSIGN_OR_RETURN(GruModelParameters parameters, derive(quantization));
  return GruModel::create(std::move(parameters));
}

}  // namespace isobit
