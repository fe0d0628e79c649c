// SPDX-License-Identifier: Apache-2.0
// Saved convolutions of static codes: docs/formats.md.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "isobit/conv.h"
#include "linear/static/parts.h"
#include "linear/static/saved.h"

namespace isobit {
namespace {

constexpr int64_t kMostSize = (int64_t{1} << 31) - 1;

/// Names of fields of ConvAxis.
constexpr std::pair<const char*, int64_t ConvAxis::*> kAxisFields[] = {
    {"kernel", &ConvAxis::kernel},         {"stride", &ConvAxis::stride},       {"dilation", &ConvAxis::dilation},
    {"pad_before", &ConvAxis::pad_before}, {"pad_after", &ConvAxis::pad_after}, {"more", &ConvAxis::more}};

Json json_of_axis(const ConvAxis& axis) {
  Json json;
  for (const auto& [name, field] : kAxisFields) json[name] = axis.*field;
  return json;
}

ConvAxis read_axis(Fields fields) {
  ConvAxis axis;
  for (const auto& [name, field] : kAxisFields) axis.*field = fields.integer(name, 0, kMostSize);
  fields.finish();
  return axis;
}

/// StaticConvLayer as SavedLayers takes it.
struct SavedStaticConv {
  using Layer = StaticConvLayer;
  struct Read {
    std::string name;
    StaticConvParameters parameters;
    int64_t bound;
  };
  static constexpr const char* kKey = "static_convs";
  static constexpr const char* kWhat = "static convolution";

  static void write(const Layer& layer, Json& json, ArrayFile& file) {
    const StaticConvParameters& p = layer.parameters();
    write_static_linear(p.linear, layer.accumulator_bound(), layer.name(), json, file);
    json["shape"] = {{"channels", p.shape.channels},
                     {"outputs", p.shape.outputs},
                     {"groups", p.shape.groups},
                     {"rows", json_of_axis(p.shape.rows)},
                     {"columns", json_of_axis(p.shape.columns)},
                     {"transposed", p.shape.transposed}};
    if (p.residual)
      json["residual"] = {{"grid", json_of_grid(p.residual->grid)},
                          {"multiplier", p.residual->rescale.multiplier},
                          {"shift", p.residual->rescale.shift}};
  }

  static Read read(Fields& fields, const std::string& path, const std::string& name,
                   std::map<std::string, Array>& arrays) {
    Fields shape = fields.object("shape");
    Read layer{name, {}, 0};
    ConvShape& s = layer.parameters.shape;
    s.channels = shape.integer("channels", 1, kMostSize);
    s.outputs = shape.integer("outputs", 1, kMostSize);
    s.groups = shape.integer("groups", 1, kMostSize);
    s.rows = read_axis(shape.object("rows"));
    s.columns = read_axis(shape.object("columns"));
    s.transposed = shape.boolean("transposed");
    shape.finish();
    if (fields.has("residual")) {
      Fields residual = fields.object("residual");
      Fields grid = residual.object("grid");
      StaticResidual& r = layer.parameters.residual.emplace();
      r.grid = read_grid(grid, kLeastStaticBits, kMostStaticBits);
      grid.finish();
      r.rescale = {residual.integer32("multiplier"), residual.integer32("shift")};
      residual.finish();
    }
    ReadStaticLinear linear = read_static_linear(fields, path, name, arrays);
    layer.parameters.linear = std::move(linear.parameters);
    layer.bound = linear.bound;
    return layer;
  }

  static Layer create(const std::string& path, Read read, std::optional<CpuPath> cpu_path) {
    Result<Layer> layer = Layer::create(std::move(read.parameters), read.name, cpu_path);
    check_read_layer(layer.status(), path);
    check_read_bound(layer->accumulator_bound(), read.bound, path, read.name);
    return *std::move(layer);
  }
};
using Saved = SavedLayers<SavedStaticConv>;

}  // namespace

Status StaticConvLayer::save(const std::string& path) const {
  const StaticConvLayer* const self = this;
  return save_all(path, {&self, 1});
}

Result<std::vector<std::byte>> StaticConvLayer::saved_bytes() const { return Saved::bytes(*this); }

Status StaticConvLayer::save_all(const std::string& path, std::span<const StaticConvLayer* const> layers) {
  return Saved::save_all(path, layers);
}

Result<StaticConvLayer> StaticConvLayer::load(const std::string& path, std::string_view name,
                                              std::optional<CpuPath> cpu_path) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  return load(file, name, cpu_path);
}

Result<StaticConvLayer> StaticConvLayer::load(const ArrayReader& file, std::string_view name,
                                              std::optional<CpuPath> cpu_path) {
  return Saved::load(file, name, cpu_path);
}

Result<std::vector<StaticConvLayer>> StaticConvLayer::load_all(const ArrayReader& file,
                                                               std::optional<CpuPath> cpu_path) {
  return Saved::load_all(file, cpu_path);
}

}  // namespace isobit
