// SPDX-License-Identifier: Apache-2.0
#include "testing/oracle.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace isobit::testing {

Json oracle_cases(const std::string& name) {
  std::ifstream file(std::string(ISOBIT_TESTDATA) + "/" + name);
  if (!file) throw std::runtime_error("missing test vectors: " + name);
  return Json::parse(file).at("cases");
}

Json built_oracle_cases(const std::string& name) {
  const std::string path = std::string(ISOBIT_BUILT_VECTORS) + "/" + name;
  std::ifstream file(path);
  if (!file)
    throw std::runtime_error("missing test vectors: " + path +
                             "; write them with: python3 -m oracle generate --built --out build/oracle");
  return Json::parse(file).at("cases");
}

float float_of_bits(const std::string& hex) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(hex, nullptr, 16)));
}

Rounding rounding_of(const std::string& name) { return rounding_from_string(name).value(); }

Grid grid_of(const Json& j) {
  Grid grid;
  grid.bits = j.at("bits");
  grid.is_signed = j.at("signed");
  grid.zero_point = j.at("zero_point");
  if (j.contains("shift")) {
    grid.kind = ScaleKind::kPow2;
    grid.shift = j.at("shift");
  } else {
    grid.kind = ScaleKind::kReal;
    grid.real_scale = float_of_bits(j.at("scale"));
  }
  return grid;
}

RescaleParameters rescale_of(const Json& j) { return {j.at("m").get<int32_t>(), j.at("n").get<int32_t>()}; }

std::vector<RescaleParameters> rescales_of(const Json& j) {
  std::vector<RescaleParameters> out;
  for (const Json& one : j) out.push_back(rescale_of(one));
  return out;
}

ActivationTable table_of(const Json& j, const Grid& input, const Grid& output, Rounding rounding) {
  ActivationTable table;
  table.function = j.at("function") == "tanh" ? Activation::kTanh : Activation::kSigmoid;
  table.input = input;
  table.output = output;
  table.rounding = rounding;
  table.low = j.at("lo");
  table.high = j.at("hi");
  if (j.at("kind") == "direct") {
    table.kind = TableKind::kDirect;
    table.entries = j.at("entries").get<std::vector<int32_t>>();
  } else if (j.at("kind") == "interpolated") {
    table.kind = TableKind::kInterpolated;
    table.origin = j.at("q0");
    table.interval_bits = j.at("k");
    table.fraction_bits = j.at("F");
    table.guard_bits = j.at("G");
    table.anchors = j.at("anchors").get<std::vector<int64_t>>();
  } else {
    table.kind = TableKind::kSegments;
    table.thresholds = j.at("t").get<std::vector<int32_t>>();
    table.slopes = j.at("b").get<std::vector<int32_t>>();
    table.intercepts = j.at("c").get<std::vector<int64_t>>();
    table.shift = j.at("shift");
  }
  return table;
}

std::vector<Grid> row_grids_of(const Json& j) {
  std::vector<Grid> out;
  const bool pow2 = j.contains("shift");
  for (const Json& scale : j.at(pow2 ? "shift" : "scale"))
    out.push_back({j.at("bits").get<int32_t>(), j.at("signed").get<bool>(), pow2 ? ScaleKind::kPow2 : ScaleKind::kReal,
                   pow2 ? scale.get<int32_t>() : 0, pow2 ? 1.0f : float_of_bits(scale), 0});
  return out;
}

CodeMatrix matrix_of(const Json& j, const Grid& grid) {
  const auto rows = static_cast<int64_t>(j.size());
  const int64_t columns = j.at(0).is_array() ? static_cast<int64_t>(j.at(0).size()) : 1;
  CodeMatrix out(grid.dtype(), rows, columns);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const Json& row = j.at(static_cast<size_t>(r));
      out.set(r, c, row.is_array() ? row.at(static_cast<size_t>(c)).get<int64_t>() : row.get<int64_t>());
    }
  return out;
}

GruLayerParameters layer_of(const Json& j, Rounding rounding) {
  GruLayerParameters p;
  p.input_size = j.at("C");
  p.hidden_size = j.at("H");
  p.rounding = rounding;
  for (const GruTensor tensor : {kX, kH, kIh, kHh, kUIn, kRIn, kNIn, kU, kRGate, kN})
    p.grids[tensor] = grid_of(j.at("grids").at(std::string(kGruTensorNames[tensor])));
  const Json& rows = j.at("row_grids");
  p.W_grid = row_grids_of(rows.at("W"));
  p.R_grid = row_grids_of(rows.at("R"));
  p.bw_grid = row_grids_of(rows.at("bw"));
  p.br_grid = row_grids_of(rows.at("br"));
  const auto shared = [](const std::vector<Grid>& grids) {
    return Grid{grids[0].bits, grids[0].is_signed, grids[0].kind, 0, 1.0f, 0};
  };
  p.grids[kW] = shared(p.W_grid);
  p.grids[kR] = shared(p.R_grid);
  p.grids[kBw] = shared(p.bw_grid);
  p.grids[kBr] = shared(p.br_grid);
  p.W = matrix_of(j.at("W"), p.grids[kW]);
  p.R = matrix_of(j.at("R"), p.grids[kR]);
  p.bw = matrix_of(j.at("bw"), p.grids[kBw]);
  p.br = matrix_of(j.at("br"), p.grids[kBr]);
  const Json& r = j.at("rescale");
  p.bw_to_acc = rescales_of(r.at("bw_to_acc"));
  p.br_to_acc = rescales_of(r.at("br_to_acc"));
  p.acc_to_ih = rescales_of(r.at("acc_to_ih"));
  p.acc_to_hh = rescales_of(r.at("acc_to_hh"));
  p.ih_to_gate = {rescale_of(r.at("ih_to_u")), rescale_of(r.at("ih_to_r")), rescale_of(r.at("ih_to_n"))};
  p.hh_to_gate = {rescale_of(r.at("hh_to_u")), rescale_of(r.at("hh_to_r"))};
  p.rhh_to_n = rescale_of(r.at("rhh_to_n"));
  p.n_to_h = rescale_of(r.at("n_to_h"));
  p.u_to_one = rescale_of(r.at("u_to_1"));
  p.one = j.at("one");
  const char* gates[3] = {"u", "r", "n"};
  for (size_t gate = 0; gate < 3; ++gate)
    p.tables[gate] = table_of(j.at("tables").at(gates[gate]), p.grids[kUIn + gate], p.grids[kU + gate], rounding);
  return p;
}

std::vector<uint8_t> bytes_of_hex(const std::string& hex) {
  std::vector<uint8_t> out;
  for (size_t i = 0; i < hex.size(); i += 2)
    out.push_back(static_cast<uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  return out;
}

Array float_rows_of(const Json& rows, Dtype dtype) {
  const auto columns = static_cast<int64_t>(rows.at(0).size());
  Array out = Array::zeros(dtype, {static_cast<int64_t>(rows.size()), columns});
  const size_t size = size_in_bytes(dtype);
  size_t at = 0;
  for (const Json& row : rows)
    for (const Json& bits : row) {
      const uint64_t value = std::stoull(bits.get<std::string>(), nullptr, 16);
      std::memcpy(out.bytes.data() + at, &value, size);  // little-endian, as everywhere in isobit
      at += size;
    }
  return out;
}

Dtype float_dtype_of(const Json& name) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kF64})
    if (name == to_string(dtype)) return dtype;
  throw std::runtime_error("test vectors: no type of floats: " + name.dump());
}

Dtype low_bit_store_of(const Json& weights) { return float_dtype_of(weights.at("store")); }

LowBitParameters low_bit_of(const Json& j) {
  LowBitParameters p;
  p.rows = static_cast<int64_t>(j.at("w").size());
  p.columns = j.at("K");
  p.bits = j.at("bits");
  p.group = j.at("group");
  p.kind = low_bit_kind_from_string(j.at("kind").get<std::string>()).value();
  std::vector<uint8_t> codes;
  for (const Json& row : j.at("w")) {
    const std::vector<uint8_t> bytes = bytes_of_hex(row);
    codes.insert(codes.end(), bytes.begin(), bytes.end());
  }
  p.codes = Array::copy_of(codes.data(), {p.rows, static_cast<int64_t>(codes.size()) / p.rows});
  p.scales = float_rows_of(j.at("S"), low_bit_store_of(j));
  if (p.kind == LowBitKind::kZeroPoint) {
    p.zero_points = Array::zeros(p.bits == 8 ? Dtype::kU16 : Dtype::kU8, p.scales.shape);
    int64_t i = 0;
    for (const Json& row : j.at("z"))
      for (const int32_t z : row)
        if (p.bits == 8) {
          p.zero_points.data<uint16_t>()[i++] = static_cast<uint16_t>(z);
        } else {
          p.zero_points.data<uint8_t>()[i++] = static_cast<uint8_t>(z);
        }
  }
  if (p.kind == LowBitKind::kOffset) {
    p.zero_point = j.at("z");
    p.offsets = float_rows_of(j.at("O"), low_bit_store_of(j));
  }
  return p;
}

void flatten(const Json& j, std::vector<int64_t>& out) {
  if (j.is_array()) {
    for (const Json& one : j) flatten(one, out);
  } else {
    out.push_back(j.get<int64_t>());
  }
}

std::vector<int64_t> flatten(const Json& j) {
  std::vector<int64_t> out;
  flatten(j, out);
  return out;
}

}  // namespace isobit::testing
