// SPDX-License-Identifier: Apache-2.0
// Saved models: docs/formats.md. A file holds integers only; nothing is recomputed in floating point at load.
#include <algorithm>
#include <set>
#include <utility>

#include "core/bits.h"
#include "core/codes.h"
#include "core/float_mode.h"
#include "io/container.h"
#include "io/metadata.h"
#include "isobit/arrays.h"
#include "isobit/gru.h"
#include "isobit/nearest.h"

namespace isobit {
namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kMaxSize = int64_t{1} << 24;  // of C and H, as in GruModel::create
constexpr int64_t kMaxDirections = 2;
constexpr int32_t kMaxBits = 32;
constexpr int32_t kMaxGateBits = 16;
constexpr int64_t kMaxIntervalBits = 12;
constexpr int64_t kMaxSegments = 256;
constexpr int32_t kMaxPackedBits = 4;

// ---------------------------------------------------------------------------------------------------------------
// What both directions share: names and the order of fields

/// "enc.l0.reverse."
std::string tensor_prefix(const std::string& gru, int64_t index, int64_t directions) {
  return gru + (gru.empty() ? "" : ".") + "l" + std::to_string(index / directions) +
         (index % directions == 1 ? ".reverse." : ".");
}

constexpr bool is_per_row(int32_t tensor) { return tensor >= kW && tensor <= kBr; }
/// The tensor of gate u, r or n, in the order of GruLayerParameters::tables.
constexpr int32_t gate_output(int64_t gate) { return kU + static_cast<int32_t>(gate); }
constexpr int32_t gate_input(int64_t gate) { return kUIn + static_cast<int32_t>(gate); }
std::string name_of(int32_t tensor) { return std::string(kGruTensorNames[static_cast<size_t>(tensor)]); }

/// The per-row tensors of a layer; Layer is GruLayerParameters, const or not.
template <typename Layer>
auto matrices_of(Layer& p) {
  struct Row {
    GruTensor tensor;
    decltype(&p.W) codes;
    decltype(&p.W_grid) grids;
    int64_t columns;
    bool is_vector;  // stored with one dimension
  };
  return std::array<Row, 4>{Row{kW, &p.W, &p.W_grid, p.input_size, false},
                            Row{kR, &p.R, &p.R_grid, p.hidden_size, false}, Row{kBw, &p.bw, &p.bw_grid, 1, true},
                            Row{kBr, &p.br, &p.br_grid, 1, true}};
}

template <typename Layer>
auto row_rescales_of(Layer& p) {
  using Pointer = decltype(&p.bw_to_acc);
  return std::array<std::pair<const char*, Pointer>, 4>{{{"bw_to_acc", &p.bw_to_acc},
                                                         {"br_to_acc", &p.br_to_acc},
                                                         {"acc_to_ih", &p.acc_to_ih},
                                                         {"acc_to_hh", &p.acc_to_hh}}};
}

template <typename Layer>
auto scalar_rescales_of(Layer& p) {
  using Pointer = decltype(&p.n_to_h);
  return std::array<std::pair<const char*, Pointer>, 8>{{{"ih_to_u_in", &p.ih_to_gate[0]},
                                                         {"ih_to_r_in", &p.ih_to_gate[1]},
                                                         {"ih_to_n_in", &p.ih_to_gate[2]},
                                                         {"hh_to_u_in", &p.hh_to_gate[0]},
                                                         {"hh_to_r_in", &p.hh_to_gate[1]},
                                                         {"rhh_to_n_in", &p.rhh_to_n},
                                                         {"n_to_h", &p.n_to_h},
                                                         {"u_to_one", &p.u_to_one}}};
}

/// The row of the proof that bounds an accumulator; `result` is "ih" or "hh".
const OverflowBound& accumulator_bound(const GruModel& model, int64_t layer, const std::string& result) {
  for (const OverflowBound& row : model.overflow_proof(layer))
    if (row.intermediate == result + ": accumulator") return row;
  refuse_argument("the overflow proof has no row for the accumulator of " + result);
}

/// Width of a packed code: a power of two, so that none straddles two bytes.
constexpr int packed_width(int32_t bits) { return bits == 3 ? 4 : bits; }

/// The shape of a tensor of codes in the file.
std::vector<int64_t> code_shape(int64_t rows, int64_t columns, const Grid& grid, bool is_vector) {
  if (grid.bits <= kMaxPackedBits) return {rows, packed_bytes(columns, packed_width(grid.bits))};
  if (is_vector) return {rows};
  return {rows, columns};
}

// ---------------------------------------------------------------------------------------------------------------
// Writing

class Writer {
 public:
  void add(const GruModel& model) {
    const GruModelParameters& p = model.parameters();
    Json layers = Json::array();
    for (size_t i = 0; i < p.layers.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      prefix_ = tensor_prefix(p.name, index, p.directions);
      Json layer = layer_json(p.layers[i]);
      for (const char* result : {"ih", "hh"}) {
        const OverflowBound& row = accumulator_bound(model, index, result);
        layer["accumulators"][result] = {{"bits", row.bits}, {"bound", row.bound}};
      }
      layers.push_back(std::move(layer));
    }
    grus_.push_back({{"name", p.name},
                     {"directions", p.directions},
                     {"rounding", std::string(to_string(p.layers[0].rounding))},
                     {"source_hash", p.source_hash},
                     {"layers", std::move(layers)}});
    if (!p.notes.empty()) grus_.back()["notes"] = p.notes;
  }

  ArrayFile finish() {
    const Json root = {{"format_version", kVersion}, {"grus", std::move(grus_)}};
    file_.metadata[kMetadataKey] = root.dump();
    return std::move(file_);
  }

  /// Without header_bytes.
  [[nodiscard]] const GruSizes& sizes() const { return sizes_; }

 private:
  void put(const std::string& name, Array array) {
    const auto bytes = static_cast<int64_t>(array.bytes.size());
    const bool is_weight = name == "W" || name == "R" || name == "bw" || name == "br";
    (is_weight                    ? sizes_.weights_bytes
     : name.starts_with("table.") ? sizes_.tables_bytes
                                  : sizes_.other_bytes) += bytes;
    if (!file_.arrays.emplace(prefix_ + name, std::move(array)).second)
      refuse_argument("two GRUs of the file have a tensor " + in_quotes(prefix_ + name));
  }

  template <typename T>
  void put_values(const std::string& name, const std::vector<T>& values) {
    put(name, Array::copy_of(values.data(), {static_cast<int64_t>(values.size())}));
  }

  Json layer_json(const GruLayerParameters& p) {
    Json json = {{"input_size", p.input_size}, {"hidden_size", p.hidden_size}, {"one", p.one}};
    for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
      if (is_per_row(tensor)) continue;
      const Grid& grid = p.grids[static_cast<size_t>(tensor)];
      json["grids"][name_of(tensor)] = json_of_grid(grid);
    }
    for (const auto& matrix : matrices_of(p)) {
      const std::string name = name_of(matrix.tensor);
      json["grids"][name] = grid_form_json(p.grids[matrix.tensor], matrix.grids->front().kind);
      put_codes(name, *matrix.codes, p.grids[matrix.tensor], matrix.is_vector);
      put_row_grids(name, *matrix.grids);
    }
    for (const auto& [name, rescales] : row_rescales_of(p)) {
      std::vector<int32_t> multipliers;
      std::vector<int32_t> shifts;
      for (const RescaleParameters& r : *rescales) {
        multipliers.push_back(r.multiplier);
        shifts.push_back(r.shift);
      }
      put_values(std::string(name) + ".multiplier", multipliers);
      put_values(std::string(name) + ".shift", shifts);
    }
    for (const auto& [name, r] : scalar_rescales_of(p))
      json["rescales"][name] = {{"multiplier", r->multiplier}, {"shift", r->shift}};
    for (int64_t gate = 0; gate < 3; ++gate)
      json["tables"][name_of(gate_output(gate))] =
          table_json(p.tables[static_cast<size_t>(gate)], "table." + name_of(gate_output(gate)));
    return json;
  }

  void put_codes(const std::string& name, const CodeMatrix& codes, const Grid& grid, bool is_vector) {
    const int64_t rows = codes.rows();
    const int64_t columns = codes.columns();
    const bool packed = grid.bits <= kMaxPackedBits;
    Array array = Array::zeros(packed ? Dtype::kU8 : grid.dtype(), code_shape(rows, columns, grid, is_vector));
    if (packed) {
      const int width = packed_width(grid.bits);
      const int64_t row_bytes = packed_bytes(columns, width);
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < columns; ++column)
          pack_code(array.data<uint8_t>() + row * row_bytes, column, width,
                    static_cast<uint32_t>(codes.at(row, column) - grid.min()));
    } else {
      std::copy_n(codes.data(), array.bytes.size(), array.bytes.begin());
    }
    put(name, std::move(array));
  }

  void put_row_grids(const std::string& name, const std::vector<Grid>& grids) {
    std::vector<int32_t> shifts;
    std::vector<float> scales;
    for (const Grid& grid : grids) {
      if (grid.kind != grids.front().kind)
        refuse_argument("tensor " + in_quotes(prefix_ + name) +
                        ": some rows have power-of-two scales and some real ones, a file can hold one kind");
      shifts.push_back(grid.shift);
      scales.push_back(grid.real_scale);
    }
    if (grids.front().kind == ScaleKind::kPow2) {
      put_values(name + ".shift", shifts);
    } else {
      put_values(name + ".scale", scales);
    }
  }

  Json table_json(const ActivationTable& table, const std::string& name) {
    Json json = {{"kind", std::string(to_string(table.kind))},
                 {"low", table.low},
                 {"high", table.high},
                 {"max_error_lsb", table.certificate.max_error_lsb},
                 {"worst_code", table.certificate.worst_code}};
    switch (table.kind) {
      case TableKind::kDirect: {
        const Dtype dtype = table.output.dtype();
        Array entries = Array::zeros(dtype, {static_cast<int64_t>(table.entries.size())});
        for (size_t i = 0; i < table.entries.size(); ++i)
          store_code(entries.bytes.data(), dtype, static_cast<int64_t>(i), table.entries[i]);
        put(name + ".entries", std::move(entries));
        break;
      }
      case TableKind::kInterpolated:
        json["origin"] = table.origin;
        json["interval_bits"] = table.interval_bits;
        json["fraction_bits"] = table.fraction_bits;
        json["guard_bits"] = table.guard_bits;
        put_values(name + ".anchors", table.anchors);
        break;
      case TableKind::kSegments:
        json["segments"] = table.slopes.size();
        json["shift"] = table.shift;
        put_values(name + ".thresholds", table.thresholds);
        put_values(name + ".slopes", table.slopes);
        put_values(name + ".intercepts", table.intercepts);
        break;
    }
    return json;
  }

  ArrayFile file_;
  GruSizes sizes_;
  Json grus_ = Json::array();
  std::string prefix_;  // of the layer being written
};

// ---------------------------------------------------------------------------------------------------------------
// Reading

std::optional<TableKind> parse_table_kind(std::string_view text) {
  for (const TableKind kind : {TableKind::kDirect, TableKind::kInterpolated, TableKind::kSegments})
    if (text == to_string(kind)) return kind;
  return std::nullopt;
}

/// What a file says of the accumulators of one layer direction.
struct AccumulatorBounds {
  int64_t ih = 0;
  int64_t hh = 0;
};

struct ReadGru {
  GruModelParameters parameters;
  std::vector<AccumulatorBounds> bounds;
};

class Reader {
 public:
  Reader(std::string path, ArrayFile file)
      : path_(std::move(path)), json_(parse_metadata(path_, file, "model")), arrays_(std::move(file.arrays)) {}

  std::vector<ReadGru> read() {
    Fields root(json_, path_ + ": metadata 'isobit'");
    check_format_version(root, path_, kVersion);
    std::vector<ReadGru> grus;
    std::set<std::string> names;
    for (const Json& json : root.list("grus")) {
      Fields fields(json, path_ + ": GRU " + std::to_string(grus.size()) + " of metadata 'isobit'");
      const std::string& name = fields.string("name");
      if (!names.insert(name).second) refuse_file(path_ + ": two GRUs are named " + in_quotes(name));
      grus.push_back(read_gru(fields, name));
    }
    root.finish();
    if (!arrays_.empty()) refuse_file(path_ + ": unknown tensor " + in_quotes(arrays_.begin()->first));
    return grus;
  }

 private:
  ReadGru read_gru(Fields& fields, const std::string& name) {
    ReadGru gru;
    GruModelParameters& p = gru.parameters;
    p.name = name;
    p.directions = fields.integer32("directions", 1, kMaxDirections);
    p.source_hash = fields.string("source_hash");
    if (fields.has("notes")) p.notes = read_notes(fields.object("notes"));
    const auto rounding =
        fields.choice("rounding", rounding_from_string, "nearest_even, nearest_up, nearest_away or floor");
    const Json& layers = fields.list("layers");
    fields.finish();
    for (const Json& json : layers) {
      const auto index = static_cast<int64_t>(p.layers.size());
      prefix_ = tensor_prefix(name, index, p.directions);
      Fields layer(json, path_ + ": GRU " + in_quotes(name) + " layer " + std::to_string(index / p.directions) +
                             (index % p.directions == 1 ? " reverse" : ""));
      gru.bounds.push_back(read_bounds(layer));
      p.layers.push_back(read_layer(layer, rounding));
      layer.finish();
    }
    return gru;
  }

  static std::map<std::string, std::string> read_notes(Fields fields) {
    std::map<std::string, std::string> notes;
    if (fields.keys().empty()) refuse_file(fields.where() + " is empty, must have a note or be left out");
    for (const std::string& key : fields.keys()) notes.emplace(key, fields.string(key));
    return notes;
  }

  static AccumulatorBounds read_bounds(Fields& layer) {
    Fields fields = layer.object("accumulators");
    AccumulatorBounds bounds;
    bounds.ih = read_accumulator(fields.object("ih"));
    bounds.hh = read_accumulator(fields.object("hh"));
    fields.finish();
    return bounds;
  }

  GruLayerParameters read_layer(Fields& layer, Rounding rounding) {
    GruLayerParameters p;
    p.rounding = rounding;
    p.input_size = layer.integer("input_size", 1, kMaxSize);
    p.hidden_size = layer.integer("hidden_size", 1, kMaxSize);
    p.one = layer.integer("one", INT64_MIN, INT64_MAX);
    Fields grids = layer.object("grids");
    for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor) {
      Fields grid = grids.object(name_of(tensor));
      p.grids[static_cast<size_t>(tensor)] = read_tensor_grid(grid, tensor);
      grid.finish();
    }
    grids.finish();

    const int64_t rows = 3 * p.hidden_size;
    for (const auto& matrix : matrices_of(p)) {
      const std::string name = name_of(matrix.tensor);
      *matrix.codes = take_codes(name, p.grids[matrix.tensor], rows, matrix.columns, matrix.is_vector);
      *matrix.grids = take_row_grids(name, p.grids[matrix.tensor], rows);
    }
    for (const auto& [name, rescales] : row_rescales_of(p)) {
      const Array multipliers = take(std::string(name) + ".multiplier", Dtype::kS32, {rows});
      const Array shifts = take(std::string(name) + ".shift", Dtype::kS32, {rows});
      rescales->resize(static_cast<size_t>(rows));
      for (int64_t row = 0; row < rows; ++row)
        (*rescales)[static_cast<size_t>(row)] = {multipliers.data<int32_t>()[row], shifts.data<int32_t>()[row]};
    }
    Fields rescales = layer.object("rescales");
    for (const auto& [name, r] : scalar_rescales_of(p)) {
      Fields fields = rescales.object(name);
      *r = {fields.integer32("multiplier"), fields.integer32("shift")};
      fields.finish();
    }
    rescales.finish();
    Fields tables = layer.object("tables");
    for (int64_t gate = 0; gate < 3; ++gate) {
      const std::string name = name_of(gate_output(gate));
      ActivationTable& table = p.tables[static_cast<size_t>(gate)];
      table.function = gate == 2 ? Activation::kTanh : Activation::kSigmoid;
      table.input = p.grids[static_cast<size_t>(gate_input(gate))];
      table.output = p.grids[static_cast<size_t>(gate_output(gate))];
      table.rounding = rounding;
      Fields fields = tables.object(name);
      read_table(fields, "table." + name, table);
      fields.finish();
    }
    tables.finish();
    return p;
  }

  static Grid read_tensor_grid(Fields& fields, int32_t tensor) {
    const int32_t most_bits = tensor >= kUIn ? kMaxGateBits : kMaxBits;
    // Per row, scales are in a tensor, and zero points are 0.
    return is_per_row(tensor) ? read_grid_form(fields, 1, most_bits) : read_grid(fields, 1, most_bits);
  }

  void read_table(Fields& fields, const std::string& name, ActivationTable& table) {
    table.kind = fields.choice("kind", parse_table_kind, "direct, interpolated or segments");
    table.low = fields.integer("low", table.output.min(), table.output.max());
    table.high = fields.integer("high", table.output.min(), table.output.max());
    table.certificate.max_error_lsb = fields.integer("max_error_lsb", 0, INT64_MAX);
    table.certificate.worst_code = fields.integer("worst_code", table.input.min(), table.input.max());
    switch (table.kind) {
      case TableKind::kDirect: {
        const Dtype dtype = table.output.dtype();
        const Array entries = take(name + ".entries", dtype, {int64_t{1} << table.input.bits});
        for (int64_t i = 0; i < entries.size(); ++i)  // at most 16 bits: gate grids are no wider
          table.entries.push_back(static_cast<int32_t>(load_code(entries.bytes.data(), dtype, i)));
        break;
      }
      case TableKind::kInterpolated:
        table.origin = fields.integer("origin", table.input.min(), table.input.max());
        table.interval_bits = fields.integer32("interval_bits", 0, kMaxIntervalBits);
        table.fraction_bits = fields.integer32("fraction_bits");
        table.guard_bits = fields.integer32("guard_bits");
        table.anchors = take_values<int64_t>(name + ".anchors", (int64_t{1} << table.interval_bits) + 1);
        break;
      case TableKind::kSegments: {
        const int64_t segments = fields.integer("segments", 1, kMaxSegments);
        table.shift = fields.integer32("shift");
        table.thresholds = take_values<int32_t>(name + ".thresholds", segments - 1);
        table.slopes = take_values<int32_t>(name + ".slopes", segments);
        table.intercepts = take_values<int64_t>(name + ".intercepts", segments);
        break;
      }
    }
  }

  Array take(const std::string& name, Dtype dtype, const std::vector<int64_t>& shape) {
    return take_tensor(path_, arrays_, prefix_ + name, dtype, shape);
  }

  template <typename T>
  std::vector<T> take_values(const std::string& name, int64_t count) {
    const Array array = take(name, dtype_of<T>(), {count});
    return std::vector<T>(array.data<T>(), array.data<T>() + count);
  }

  CodeMatrix take_codes(const std::string& name, const Grid& grid, int64_t rows, int64_t columns, bool is_vector) {
    const bool packed = grid.bits <= kMaxPackedBits;
    const Array array = take(name, packed ? Dtype::kU8 : grid.dtype(), code_shape(rows, columns, grid, is_vector));
    CodeMatrix codes(grid.dtype(), rows, columns);
    if (!packed) {
      std::copy(array.bytes.begin(), array.bytes.end(), codes.data());
      return codes;
    }
    const int width = packed_width(grid.bits);
    const int64_t row_bytes = packed_bytes(columns, width);
    const int64_t slots = row_bytes * 8 / width;
    for (int64_t row = 0; row < rows; ++row) {
      const uint8_t* in = array.data<uint8_t>() + row * row_bytes;
      for (int64_t column = 0; column < slots; ++column) {
        const int64_t code = unpack_code(in, column, width);
        // One content, one file: padding is zero, and 3-bit codes leave the upper half of their 4 bits unused.
        if (code > (column < columns ? grid.max() - grid.min() : 0))
          refuse_file(path_ + ": tensor " + in_quotes(prefix_ + name) + " row " + std::to_string(row) + " holds " +
                      std::to_string(code) + " in place " + std::to_string(column) + ", must be " +
                      (column < columns ? "0.." + std::to_string(grid.max() - grid.min()) : "0 (padding)"));
        if (column < columns) codes.set(row, column, code + grid.min());
      }
    }
    return codes;
  }

  std::vector<Grid> take_row_grids(const std::string& name, const Grid& grid, int64_t rows) {
    const bool pow2 = grid.kind == ScaleKind::kPow2;
    const Array array = take(name + (pow2 ? ".shift" : ".scale"), pow2 ? Dtype::kS32 : Dtype::kF32, {rows});
    std::vector<Grid> grids(static_cast<size_t>(rows), grid);
    for (int64_t row = 0; row < rows; ++row) {
      Grid& out = grids[static_cast<size_t>(row)];
      if (pow2) {
        out.shift = array.data<int32_t>()[row];
      } else {
        out.real_scale = array.data<float>()[row];
      }
    }
    return grids;
  }

  std::string path_;
  Json json_;
  std::map<std::string, Array> arrays_;
  std::string prefix_;  // of the layer being read
};

GruModel create_model(const std::string& path, ReadGru gru) {
  const std::string what = path + ": GRU " + in_quotes(gru.parameters.name);
  Result<GruModel> model = GruModel::create(std::move(gru.parameters));
  if (!model.ok()) {
    const StatusCode code = model.status().code();
    throw Refusal{{code == StatusCode::kInvalidArgument ? StatusCode::kInvalidFile : code,
                   what + ": " + model.status().message()}};
  }
  for (size_t layer = 0; layer < gru.bounds.size(); ++layer) {
    const std::pair<const char*, int64_t> stored[] = {{"ih", gru.bounds[layer].ih}, {"hh", gru.bounds[layer].hh}};
    for (const auto& [result, bound] : stored) {
      // A later isobit may prove less than the file says, never more.
      const OverflowBound& row = accumulator_bound(*model, static_cast<int64_t>(layer), result);
      const std::optional<int64_t> proved = parse_bound(row.bound);
      if (!proved || *proved > bound)
        refuse_file(what + ": layer direction " + std::to_string(layer) + ": accumulators: " + result +
                    ": field 'bound' is " + std::to_string(bound) + ", but the accumulator can reach " + row.bound);
    }
  }
  return *std::move(model);
}

std::vector<ReadGru> read_grus(const ArrayReader& file) {
  Result<ArrayFile> arrays = file.read_all();
  if (!arrays.ok()) throw Refusal{arrays.status()};
  return Reader(file.name(), *std::move(arrays)).read();
}

}  // namespace

Result<GruModel> GruModel::load(const std::string& path, std::string_view name) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  return load(file, name);
}

Result<GruModel> GruModel::load(const ArrayReader& file, std::string_view name) {
  const DefaultFloatMode mode;
  const std::string& path = file.name();
  return without_refusal(path, [&]() -> Result<GruModel> {
    std::vector<ReadGru> grus = read_grus(file);
    if (name.empty() && grus.size() == 1) return create_model(path, std::move(grus.front()));
    std::string names;
    std::vector<std::string_view> known;
    for (ReadGru& gru : grus) {
      if (!name.empty() && gru.parameters.name == name) return create_model(path, std::move(gru));
      names += (names.empty() ? "" : ", ") + in_quotes(gru.parameters.name);
      known.push_back(gru.parameters.name);
    }
    refuse_argument(path + ": " + (name.empty() ? std::to_string(grus.size()) + " GRUs" : "no GRU " + in_quotes(name)) +
                    "; the name must be one of " + names + nearest_hint(name, known));
  });
}

Result<std::vector<GruModel>> GruModel::load_all(const std::string& path) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  return load_all(file);
}

Result<std::vector<GruModel>> GruModel::load_all(const ArrayReader& file) {
  const DefaultFloatMode mode;
  const std::string& path = file.name();
  return without_refusal(path, [&]() -> Result<std::vector<GruModel>> {
    std::vector<GruModel> models;
    std::vector<ReadGru> grus = read_grus(file);
    models.reserve(grus.size());
    for (ReadGru& gru : grus) models.push_back(create_model(path, std::move(gru)));
    return models;
  });
}

Status GruModel::save(const std::string& path) const {
  const GruModel* const self = this;
  return save_all(path, {&self, 1});
}

Result<std::vector<std::byte>> GruModel::saved_bytes() const {
  const DefaultFloatMode mode;
  return without_refusal(parameters().name, [&]() -> Result<std::vector<std::byte>> {
    Writer writer;
    writer.add(*this);
    return encode_safetensors(writer.finish(), parameters().name);
  });
}

Result<GruSizes> GruModel::sizes() const {
  const DefaultFloatMode mode;
  return without_refusal(parameters().name, [&]() -> Result<GruSizes> {
    Writer writer;
    writer.add(*this);
    GruSizes sizes = writer.sizes();
    ISOBIT_ASSIGN_OR_RETURN(const auto content, encode_safetensors(writer.finish(), parameters().name));
    sizes.header_bytes = static_cast<int64_t>(content.size()) - sizes.total_bytes();
    return sizes;
  });
}

Status GruModel::save_all(const std::string& path, std::span<const GruModel* const> models) {
  const DefaultFloatMode mode;
  return without_refusal(path, [&]() -> Status {
    if (models.empty()) refuse_argument(path + ": no model to save, must be at least 1");
    std::set<std::string> names;
    Writer writer;
    for (const GruModel* model : models) {
      if (model == nullptr) refuse_argument(path + ": model " + std::to_string(names.size()) + " is null");
      if (!names.insert(model->parameters().name).second)
        refuse_argument(path + ": two models are named " + in_quotes(model->parameters().name) +
                        ", the names in a file must differ");
      writer.add(*model);
    }
    return save_safetensors(path, writer.finish());
  });
}

}  // namespace isobit
