// SPDX-License-Identifier: Apache-2.0
// A model with wider tensors over the same ranges: isobit/compare.h.
#include <algorithm>
#include <string>

#include "core/float_mode.h"
#include "gru/dead_rows.h"
#include "gru/rescale.h"
#include "isobit/compare.h"
#include "verify/sequences.h"

namespace isobit {
namespace {

constexpr int kMaxScaleShift = 62;
constexpr float kMinRealScale = 0x1p-126f;

bool contains(GruTensorSet set, int32_t tensor) { return (set >> tensor & 1) != 0; }

Grid widened(Grid grid, int32_t bits) {
  int finer = bits - grid.bits;
  if (grid.kind == ScaleKind::kPow2) {
    finer = std::min(finer, kMaxScaleShift - grid.shift);
    grid.shift += finer;
  } else {
    while (finer > 0 && grid.real_scale / static_cast<float>(int64_t{1} << finer) < kMinRealScale) --finer;
    grid.real_scale /= static_cast<float>(int64_t{1} << finer);
  }
  grid.zero_point *= int64_t{1} << finer;
  grid.bits = bits;
  return grid;
}

/// What a table of other widths is fitted with: the kind that was asked for, where it is not the default.
TableOptions table_options(const ActivationTable& table, const Grid& input) {
  if (table.kind == default_table_options(table.input.bits).kind) return default_table_options(input.bits);
  TableOptions options;
  options.kind = table.kind;
  if (table.kind == TableKind::kSegments) options.segments = static_cast<int32_t>(table.slopes.size());
  if (table.kind == TableKind::kInterpolated) options.guard_bits = table.guard_bits;
  return options;
}

/// W, R, bw or br [rows, columns] at `bits` bits.
Status widen_rows(std::span<const float> values, GruTensor tensor, int32_t bits, const std::string& name,
                  GruLayerParameters& p, CodeMatrix& codes, std::vector<Grid>& grids) {
  const bool is_weight = tensor == kW || tensor == kR;
  GridOptions options;
  options.bits = bits;
  options.is_signed = p.grids[tensor].is_signed;
  options.symmetric = true;
  const int64_t rows = codes.rows(), columns = codes.columns();
  ISOBIT_ASSIGN_OR_RETURN(grids, derive_row_grids(values, rows, columns, options, p.grids[tensor].kind,
                                                  name + " " + std::string(kGruTensorNames[tensor]), is_weight));
  p.grids[tensor].bits = bits;
  codes = CodeMatrix(p.grids[tensor].dtype(), rows, columns);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      codes.set(row, column,
                quantize_value(grids[static_cast<size_t>(row)], values[static_cast<size_t>(row * columns + column)]));
    }
  }
  return {};
}

Status widen_layer(const GruLayerWeights& w, GruTensorSet set, int32_t bits, const std::string& name,
                   TableCache* tables, GruLayerParameters& p) {
  const auto chosen = [&](int32_t tensor) {
    return contains(set, tensor) && p.grids[static_cast<size_t>(tensor)].bits < bits;
  };
  if (chosen(kW)) ISOBIT_RETURN_IF_ERROR(widen_rows(w.W, kW, bits, name, p, p.W, p.W_grid));
  if (chosen(kR)) ISOBIT_RETURN_IF_ERROR(widen_rows(w.R, kR, bits, name, p, p.R, p.R_grid));
  if (chosen(kBw)) ISOBIT_RETURN_IF_ERROR(widen_rows(w.bw, kBw, bits, name, p, p.bw, p.bw_grid));
  if (chosen(kBr)) ISOBIT_RETURN_IF_ERROR(widen_rows(w.br, kBr, bits, name, p, p.br, p.br_grid));
  for (const GruTensor tensor : {kH, kIh, kHh, kUIn, kRIn, kNIn, kU, kRGate, kN}) {
    if (chosen(tensor)) p.grids[tensor] = widened(p.grids[tensor], bits);
  }
  for (size_t gate = 0; gate < 3; ++gate) {
    ActivationTable& table = p.tables[gate];
    const Grid &in = p.grids[kUIn + gate], &out = p.grids[kU + gate];
    if (table.input == in && table.output == out) continue;
    const TableOptions options = table_options(table, in);
    ISOBIT_ASSIGN_OR_RETURN(table, tables != nullptr ? tables->fit(table.function, in, out, options, p.rounding)
                                                     : fit_table(table.function, in, out, options, p.rounding));
  }
  rescale_dead_rows(w, p);
  return derive_rescales(p, name);
}

}  // namespace

Result<GruModelParameters> widen(const GruWeights& weights, const GruModelParameters& model,
                                 std::span<const GruTensorSet> sets, int32_t bits, TableCache* tables) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_weights(weights));
  ISOBIT_RETURN_IF_ERROR(check_same_shape(weights, model));
  const auto refuse = [](const std::string& message) { return Status(StatusCode::kInvalidArgument, message); };
  if (bits < 1 || bits > 16) return refuse("bits is " + std::to_string(bits) + ", must be 1 to 16");
  if (static_cast<int64_t>(sets.size()) != weights.layer_count()) {
    return refuse("sets has " + std::to_string(sets.size()) + " values, must have one for each of the " +
                  std::to_string(weights.layer_count()) + " layers");
  }
  GruModelParameters out = model;
  for (size_t i = 0; i < out.layers.size(); ++i) {
    const size_t l = i / static_cast<size_t>(out.directions);
    GruLayerParameters& p = out.layers[i];
    if (l > 0 && contains(sets[l], kX)) {
      return refuse("sets[" + std::to_string(l) + "] has x, which is h of the layer below; widen that");
    }
    if (l > 0) {
      p.grids[kX] = out.layers[i - static_cast<size_t>(out.directions)].grids[kH];
    } else if (contains(sets[l], kX) && p.grids[kX].bits < bits) {
      p.grids[kX] = widened(p.grids[kX], bits);
    }
    if (sets[l] == 0 && p.grids[kX] == model.layers[i].grids[kX]) continue;
    const bool reverse = i % static_cast<size_t>(out.directions) == 1;
    const std::string name = "layer " + std::to_string(l) + (reverse ? " reverse" : "");
    ISOBIT_RETURN_IF_ERROR(widen_layer(weights.layers[i], sets[l], bits, name, tables, p));
  }
  return out;
}

}  // namespace isobit
