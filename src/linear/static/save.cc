// SPDX-License-Identifier: Apache-2.0
// Saved static linear layers: docs/formats.md. A file holds integers, and the scales that they stand for.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/bits.h"
#include "core/float_mode.h"
#include "io/metadata.h"
#include "isobit/linear.h"
#include "isobit/nearest.h"
#include "linear/static/parts.h"
#include "low_bit/parts.h"

namespace isobit {
namespace {

constexpr int64_t kVersion = 1;
constexpr const char* kLayersKey = "static_linears";
constexpr int32_t kMaxPackedBits = 4;

std::string tensor_prefix(const std::string& name) { return name.empty() ? "" : name + "."; }

// ---------------------------------------------------------------------------------------------------------------
// Writing

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

class Writer {
 public:
  void add(const StaticLinearLayer& layer) {
    const StaticLinearParameters& p = layer.parameters();
    const std::string prefix = tensor_prefix(layer.name());
    const int64_t bound = layer.accumulator_bound();
    Json json = {{"name", layer.name()},
                 {"rows", p.rows},
                 {"columns", p.columns},
                 {"weight_bits", p.weight_bits},
                 {"rounding", std::string(to_string(p.rounding))},
                 {"input", json_of_grid(p.input)},
                 {"accumulator", {{"bits", bound <= INT32_MAX ? 32 : 64}, {"bound", std::to_string(bound)}}}};
    put(prefix + "weights", stored_weights(p));
    put(prefix + "scales", p.scales);
    put(prefix + "bias", p.bias);
    if (p.output) {
      json["output"] = json_of_grid(*p.output);
      json["lo"] = p.lo;
      json["hi"] = p.hi;
      Array multipliers = Array::zeros(Dtype::kS32, {p.rows});
      Array shifts = multipliers;
      for (int64_t n = 0; n < p.rows; ++n) {
        multipliers.data<int32_t>()[n] = p.rescales[static_cast<size_t>(n)].multiplier;
        shifts.data<int32_t>()[n] = p.rescales[static_cast<size_t>(n)].shift;
      }
      put(prefix + "multiplier", std::move(multipliers));
      put(prefix + "shift", std::move(shifts));
    }
    layers_.push_back(std::move(json));
  }

  ArrayFile finish() {
    const Json root = {{"format_version", kVersion}, {kLayersKey, std::move(layers_)}};
    file_.metadata[kMetadataKey] = root.dump();
    return std::move(file_);
  }

 private:
  void put(const std::string& name, Array array) {
    if (!file_.arrays.emplace(name, std::move(array)).second)
      refuse_argument("two layers of the file have a tensor " + in_quotes(name));
  }

  ArrayFile file_;
  Json layers_ = Json::array();
};

// ---------------------------------------------------------------------------------------------------------------
// Reading

struct ReadLayer {
  std::string name;
  StaticLinearParameters parameters;
  int64_t bound = 0;  // of the accumulators, as the file says
};

class Reader {
 public:
  Reader(std::string path, ArrayFile file)
      : path_(std::move(path)),
        json_(parse_metadata(path_, file, "static linear layer")),
        arrays_(std::move(file.arrays)) {}

  std::vector<ReadLayer> read() {
    Fields root(json_, path_ + ": metadata 'isobit'");
    check_format_version(root, path_, kVersion);
    std::vector<ReadLayer> layers;
    std::set<std::string> names;
    for (const Json& json : root.list(kLayersKey)) {
      Fields fields(json, path_ + ": layer " + std::to_string(layers.size()) + " of metadata 'isobit'");
      const std::string& name = fields.string("name");
      if (!names.insert(name).second) refuse_file(path_ + ": two layers are named " + in_quotes(name));
      layers.push_back(read_layer(fields, name));
      fields.finish();
    }
    root.finish();
    if (!arrays_.empty()) refuse_file(path_ + ": unknown tensor " + in_quotes(arrays_.begin()->first));
    return layers;
  }

 private:
  ReadLayer read_layer(Fields& fields, const std::string& name) {
    prefix_ = tensor_prefix(name);
    ReadLayer layer{name, {}, 0};
    StaticLinearParameters& p = layer.parameters;
    p.rows = fields.integer("rows", 1, kMaxLowBitSize);
    p.columns = fields.integer("columns", 1, kMaxLowBitSize);
    p.weight_bits = fields.integer32("weight_bits", 1, 8);
    if (const Status status = check_weight_bits(p.weight_bits, fields.where() + ": field 'weight_bits'"); !status.ok())
      refuse_file(status.message());
    p.rounding = fields.choice("rounding", rounding_from_string, "nearest_even, nearest_up, nearest_away or floor");
    p.input = take_grid(fields.object("input"));
    p.weights = take_weights(p);
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

  static Grid take_grid(Fields fields) {
    const Grid grid = read_grid(fields, kLeastStaticBits, kMostStaticBits);
    fields.finish();
    return grid;
  }

  Array take(const char* name, Dtype dtype, const std::vector<int64_t>& shape) {
    return take_tensor(path_, arrays_, prefix_ + name, dtype, shape);
  }

  Array take_weights(const StaticLinearParameters& p) {
    if (p.weight_bits > kMaxPackedBits) return take("weights", Dtype::kS8, {p.rows, p.columns});
    const int64_t row_bytes = packed_bytes(p.columns, p.weight_bits);
    const Array packed = take("weights", Dtype::kU8, {p.rows, row_bytes});
    Array weights = Array::zeros(Dtype::kS8, {p.rows, p.columns});
    for (int64_t n = 0; n < p.rows; ++n) {
      const uint8_t* row = packed.data<uint8_t>() + n * row_bytes;
      for (int64_t k = 0; k < p.columns; ++k)
        weights.data<int8_t>()[n * p.columns + k] = static_cast<int8_t>(
            symmetric_value(p.weight_bits, static_cast<int32_t>(unpack_code(row, k, p.weight_bits))));
      // One content, one file.
      for (int64_t k = p.columns; k < row_bytes * 8 / p.weight_bits; ++k)
        if (unpack_code(row, k, p.weight_bits) != 0)
          refuse_file(path_ + ": tensor " + in_quotes(prefix_ + "weights") + " row " + std::to_string(n) +
                      " has padding that is not zero");
    }
    return weights;
  }

  std::string path_;
  Json json_;
  std::map<std::string, Array> arrays_;
  std::string prefix_;  // of the layer being read
};

StaticLinearLayer create_layer(const std::string& path, ReadLayer read, std::optional<CpuPath> cpu_path) {
  const std::string what = path + ": layer " + in_quotes(read.name);
  Result<StaticLinearLayer> layer = StaticLinearLayer::create(std::move(read.parameters), read.name, cpu_path);
  if (!layer.ok()) {
    const StatusCode code = layer.status().code();
    throw Refusal{{code == StatusCode::kInvalidArgument ? StatusCode::kInvalidFile : code,
                   path + ": layer " + layer.status().message()}};
  }
  // A later isobit may prove less than the file says, never more.
  if (layer->accumulator_bound() > read.bound)
    refuse_file(what + ": accumulator: field 'bound' is " + std::to_string(read.bound) +
                ", but the accumulator can reach " + std::to_string(layer->accumulator_bound()));
  return *std::move(layer);
}

std::vector<ReadLayer> read_layers(const ArrayReader& file) {
  Result<ArrayFile> arrays = file.read_all();
  if (!arrays.ok()) throw Refusal{arrays.status()};
  return Reader(file.name(), *std::move(arrays)).read();
}

}  // namespace

Status StaticLinearLayer::save(const std::string& path) const {
  const StaticLinearLayer* const self = this;
  return save_all(path, {&self, 1});
}

Result<std::vector<std::byte>> StaticLinearLayer::saved_bytes() const {
  const DefaultFloatMode mode;
  return without_refusal(name(), [&]() -> Result<std::vector<std::byte>> {
    Writer writer;
    writer.add(*this);
    return encode_safetensors(writer.finish(), name());
  });
}

Status StaticLinearLayer::save_all(const std::string& path, std::span<const StaticLinearLayer* const> layers) {
  const DefaultFloatMode mode;
  return without_refusal(path, [&]() -> Status {
    if (layers.empty()) refuse_argument(path + ": no layer to save, must be at least 1");
    std::set<std::string> names;
    Writer writer;
    for (const StaticLinearLayer* layer : layers) {
      if (layer == nullptr) refuse_argument(path + ": layer " + std::to_string(names.size()) + " is null");
      if (!names.insert(layer->name()).second)
        refuse_argument(path + ": two layers are named " + in_quotes(layer->name()) +
                        ", the names in a file must differ");
      writer.add(*layer);
    }
    return save_safetensors(path, writer.finish());
  });
}

Result<StaticLinearLayer> StaticLinearLayer::load(const std::string& path, std::string_view name,
                                                  std::optional<CpuPath> cpu_path) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader file, ArrayReader::open(path));
  return load(file, name, cpu_path);
}

Result<StaticLinearLayer> StaticLinearLayer::load(const ArrayReader& file, std::string_view name,
                                                  std::optional<CpuPath> cpu_path) {
  const DefaultFloatMode mode;
  const std::string& path = file.name();
  return without_refusal(path, [&]() -> Result<StaticLinearLayer> {
    std::vector<ReadLayer> layers = read_layers(file);
    if (name.empty() && layers.size() == 1) return create_layer(path, std::move(layers.front()), cpu_path);
    std::string names;
    std::vector<std::string_view> known;
    for (ReadLayer& layer : layers) {
      if (!name.empty() && layer.name == name) return create_layer(path, std::move(layer), cpu_path);
      names += (names.empty() ? "" : ", ") + in_quotes(layer.name);
      known.push_back(layer.name);
    }
    refuse_argument(path + ": " +
                    (name.empty() ? std::to_string(layers.size()) + " layers" : "no layer " + in_quotes(name)) +
                    "; the name must be one of " + names + nearest_hint(name, known));
  });
}

Result<std::vector<StaticLinearLayer>> StaticLinearLayer::load_all(const ArrayReader& file,
                                                                   std::optional<CpuPath> cpu_path) {
  const DefaultFloatMode mode;
  const std::string& path = file.name();
  return without_refusal(path, [&]() -> Result<std::vector<StaticLinearLayer>> {
    std::vector<StaticLinearLayer> layers;
    for (ReadLayer& read : read_layers(file)) layers.push_back(create_layer(path, std::move(read), cpu_path));
    return layers;
  });
}

}  // namespace isobit
