// SPDX-License-Identifier: Apache-2.0
// Saved static linear layers: docs/formats.md. A file holds integers, and the scales that they stand for.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/bits.h"
#include "isobit/linear.h"
#include "linear/static/parts.h"
#include "linear/static/saved.h"
#include "low_bit/parts.h"

namespace isobit {
namespace {

constexpr int32_t kMaxPackedBits = 4;

std::string tensor_prefix(const std::string& name) { return name.empty() ? "" : name + "."; }

/// Weights of up to 4 bits are packed, as the codes w.
Array stored_weights(const StaticLinearParameters& p) {
  if (p.weight_bits > kMaxPackedBits) return p.weights;
  const int64_t row_bytes = packed_bytes(p.columns, p.weight_bits);
  Array packed = Array::zeros(Dtype::kU8, {p.rows, row_bytes});
  for (int64_t n = 0; n < p.rows; ++n)
    for (int64_t k = 0; k < p.columns; ++k)
      pack_code(packed.data<uint8_t>() + n * row_bytes, k, p.weight_bits,
                symmetric_code(p.weight_bits, p.weights.data<int8_t>()[n * p.columns + k]));
  return packed;
}

void put(ArrayFile& file, const std::string& name, Array array) {
  if (!file.arrays.emplace(name, std::move(array)).second)
    refuse_argument("two layers of the file have a tensor " + in_quotes(name));
}

Grid take_grid(Fields fields) {
  const Grid grid = read_grid(fields, kLeastStaticBits, kMostStaticBits);
  fields.finish();
  return grid;
}

Array take_weights(const std::string& path, const std::string& prefix, std::map<std::string, Array>& arrays,
                   const StaticLinearParameters& p) {
  if (p.weight_bits > kMaxPackedBits)
    return take_tensor(path, arrays, prefix + "weights", Dtype::kS8, {p.rows, p.columns});
  const int64_t row_bytes = packed_bytes(p.columns, p.weight_bits);
  const Array packed = take_tensor(path, arrays, prefix + "weights", Dtype::kU8, {p.rows, row_bytes});
  Array weights = Array::zeros(Dtype::kS8, {p.rows, p.columns});
  for (int64_t n = 0; n < p.rows; ++n) {
    const uint8_t* row = packed.data<uint8_t>() + n * row_bytes;
    for (int64_t k = 0; k < p.columns; ++k)
      weights.data<int8_t>()[n * p.columns + k] =
          static_cast<int8_t>(symmetric_value(p.weight_bits, static_cast<int32_t>(unpack_code(row, k, p.weight_bits))));
    // One content, one file.
    for (int64_t k = p.columns; k < row_bytes * 8 / p.weight_bits; ++k)
      if (unpack_code(row, k, p.weight_bits) != 0)
        refuse_file(path + ": tensor " + in_quotes(prefix + "weights") + " row " + std::to_string(n) +
                    " has padding that is not zero");
  }
  return weights;
}

/// StaticLinearLayer as SavedLayers takes it.
struct SavedStaticLinear {
  using Layer = StaticLinearLayer;
  struct Read : ReadStaticLinear {
    std::string name;
  };
  static constexpr const char* kKey = "static_linears";
  static constexpr const char* kWhat = "static linear layer";

  static void write(const Layer& layer, Json& json, ArrayFile& file) {
    write_static_linear(layer.parameters(), layer.accumulator_bound(), layer.name(), json, file);
  }
  static Read read(Fields& fields, const std::string& path, const std::string& name,
                   std::map<std::string, Array>& arrays) {
    return {read_static_linear(fields, path, name, arrays), name};
  }
  static Layer create(const std::string& path, Read read, std::optional<CpuPath> cpu_path) {
    Result<Layer> layer = Layer::create(std::move(read.parameters), read.name, cpu_path);
    check_read_layer(layer.status(), path);
    check_read_bound(layer->accumulator_bound(), read.bound, path, read.name);
    return *std::move(layer);
  }
};
using Saved = SavedLayers<SavedStaticLinear>;

}  // namespace

void write_static_linear(const StaticLinearParameters& p, int64_t bound, const std::string& name, Json& fields,
                         ArrayFile& file) {
  const std::string prefix = tensor_prefix(name);
  fields["rows"] = p.rows;
  fields["columns"] = p.columns;
  fields["weight_bits"] = p.weight_bits;
  fields["rounding"] = std::string(to_string(p.rounding));
  fields["input"] = json_of_grid(p.input);
  fields["accumulator"] = {{"bits", bound <= INT32_MAX ? 32 : 64}, {"bound", std::to_string(bound)}};
  put(file, prefix + "weights", stored_weights(p));
  put(file, prefix + "scales", p.scales);
  put(file, prefix + "bias", p.bias);
  if (!p.output) return;
  fields["output"] = json_of_grid(*p.output);
  fields["lo"] = p.lo;
  fields["hi"] = p.hi;
  Array multipliers = Array::zeros(Dtype::kS32, {p.rows});
  Array shifts = multipliers;
  for (int64_t n = 0; n < p.rows; ++n) {
    multipliers.data<int32_t>()[n] = p.rescales[static_cast<size_t>(n)].multiplier;
    shifts.data<int32_t>()[n] = p.rescales[static_cast<size_t>(n)].shift;
  }
  put(file, prefix + "multiplier", std::move(multipliers));
  put(file, prefix + "shift", std::move(shifts));
}

ReadStaticLinear read_static_linear(Fields& fields, const std::string& path, const std::string& name,
                                    std::map<std::string, Array>& arrays) {
  const std::string prefix = tensor_prefix(name);
  const auto take = [&](const char* tensor, Dtype dtype, const std::vector<int64_t>& shape) {
    return take_tensor(path, arrays, prefix + tensor, dtype, shape);
  };
  ReadStaticLinear layer;
  StaticLinearParameters& p = layer.parameters;
  p.rows = fields.integer("rows", 1, kMaxLowBitSize);
  p.columns = fields.integer("columns", 1, kMaxLowBitSize);
  p.weight_bits = fields.integer32("weight_bits", 1, 8);
  if (const Status status = check_weight_bits(p.weight_bits, fields.where() + ": field 'weight_bits'"); !status.ok())
    refuse_file(status.message());
  p.rounding = fields.choice("rounding", rounding_from_string, "nearest_even, nearest_up, nearest_away or floor");
  p.input = take_grid(fields.object("input"));
  p.weights = take_weights(path, prefix, arrays, p);
  p.scales = take("scales", Dtype::kF32, {p.rows});
  p.bias = take("bias", Dtype::kS32, {p.rows});
  if (fields.has("output")) {
    p.output = take_grid(fields.object("output"));
    p.lo = fields.integer32("lo");
    p.hi = fields.integer32("hi");
    const Array multipliers = take("multiplier", Dtype::kS32, {p.rows});
    const Array shifts = take("shift", Dtype::kS32, {p.rows});
    for (int64_t n = 0; n < p.rows; ++n)
      p.rescales.push_back({multipliers.data<int32_t>()[n], shifts.data<int32_t>()[n]});
  } else {
    p.lo = INT32_MIN;
    p.hi = INT32_MAX;
  }
  layer.bound = read_accumulator(fields.object("accumulator"));
  return layer;
}

void check_read_layer(const Status& status, const std::string& path) {
  if (status.ok()) return;
  const StatusCode code = status.code();
  throw Refusal{
      {code == StatusCode::kInvalidArgument ? StatusCode::kInvalidFile : code, path + ": layer " + status.message()}};
}

void check_read_bound(int64_t bound, int64_t read, const std::string& path, const std::string& name) {
  // A later isobit may prove less than the file says, never more.
  if (bound > read)
    refuse_file(path + ": layer " + in_quotes(name) + ": accumulator: field 'bound' is " + std::to_string(read) +
                ", but the accumulator can reach " + std::to_string(bound));
}

Status StaticLinearLayer::save(const std::string& path) const {
  const StaticLinearLayer* const self = this;
  return save_all(path, {&self, 1});
}

Result<std::vector<std::byte>> StaticLinearLayer::saved_bytes() const { return Saved::bytes(*this); }

Status StaticLinearLayer::save_all(const std::string& path, std::span<const StaticLinearLayer* const> layers) {
  return Saved::save_all(path, layers);
}

Result<StaticLinearLayer> StaticLinearLayer::load(const std::string& path, std::string_view name,
                                                  std::optional<CpuPath> cpu_path) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  return load(file, name, cpu_path);
}

Result<StaticLinearLayer> StaticLinearLayer::load(const ArrayReader& file, std::string_view name,
                                                  std::optional<CpuPath> cpu_path) {
  return Saved::load(file, name, cpu_path);
}

Result<std::vector<StaticLinearLayer>> StaticLinearLayer::load_all(const ArrayReader& file,
                                                                   std::optional<CpuPath> cpu_path) {
  return Saved::load_all(file, cpu_path);
}

}  // namespace isobit
