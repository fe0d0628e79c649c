// SPDX-License-Identifier: Apache-2.0
// Files of layers of static codes: docs/formats.md. Linear layers and convolutions have one form.
#ifndef ISOBIT_LINEAR_STATIC_SAVED_H_
#define ISOBIT_LINEAR_STATIC_SAVED_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/float_mode.h"
#include "io/metadata.h"
#include "isobit/linear.h"
#include "isobit/nearest.h"

namespace isobit {

/// The fields of a layer, but its name, and its tensors. bound: the largest |acc|, which the file states.
void write_static_linear(const StaticLinearParameters& p, int64_t bound, const std::string& name, Json& fields,
                         ArrayFile& file);

struct ReadStaticLinear {
  StaticLinearParameters parameters;
  int64_t bound = 0;  // as the file says
};
/// Takes its tensors from `arrays`; throws Refusal.
ReadStaticLinear read_static_linear(Fields& fields, const std::string& path, const std::string& name,
                                    std::map<std::string, Array>& arrays);

/// `status`: what create() says of a layer that was read; `bound`: of its accumulators. Both throw Refusal.
void check_read_layer(const Status& status, const std::string& path);
void check_read_bound(int64_t bound, int64_t read, const std::string& path, const std::string& name);

/// Files with layers of one kind:
///   using Layer         has name()
///   using Read          has name
///   kKey, kWhat         the list in the metadata, and "static linear layer"
///   write(layer, json, file)
///   read(fields, path, name, arrays) -> Read
///   create(path, Read, cpu_path) -> Layer; throws Refusal
template <typename Kind>
class SavedLayers {
 public:
  using Layer = typename Kind::Layer;
  using Layers = std::vector<Layer>;

  static Result<std::vector<std::byte>> bytes(const Layer& layer) {
    const DefaultFloatMode mode;
    return without_refusal(layer.name(), [&]() -> Result<std::vector<std::byte>> {
      const Layer* const self = &layer;
      return encode_safetensors(content({&self, 1}), layer.name());
    });
  }

  static Status save_all(const std::string& path, std::span<const Layer* const> layers) {
    const DefaultFloatMode mode;
    return without_refusal(path, [&]() -> Status {
      if (layers.empty()) refuse_argument(path + ": no layer to save, must be at least 1");
      std::set<std::string> names;
      for (const Layer* layer : layers) {
        if (layer == nullptr) refuse_argument(path + ": layer " + std::to_string(names.size()) + " is null");
        if (!names.insert(layer->name()).second)
          refuse_argument(path + ": two layers are named " + in_quotes(layer->name()) +
                          ", the names in a file must differ");
      }
      return save_safetensors(path, content(layers));
    });
  }

  static Result<Layer> load(const ArrayReader& file, std::string_view name, std::optional<CpuPath> cpu_path) {
    const DefaultFloatMode mode;
    const std::string& path = file.name();
    return without_refusal(path, [&]() -> Result<Layer> {
      std::vector<typename Kind::Read> layers = read(file);
      if (name.empty() && layers.size() == 1) return Kind::create(path, std::move(layers.front()), cpu_path);
      std::string names;
      std::vector<std::string_view> known;
      for (typename Kind::Read& layer : layers) {
        if (!name.empty() && layer.name == name) return Kind::create(path, std::move(layer), cpu_path);
        names += (names.empty() ? "" : ", ") + in_quotes(layer.name);
        known.push_back(layer.name);
      }
      refuse_argument(path + ": " +
                      (name.empty() ? std::to_string(layers.size()) + " layers" : "no layer " + in_quotes(name)) +
                      "; the name must be one of " + names + nearest_hint(name, known));
    });
  }

  static Result<Layers> load_all(const ArrayReader& file, std::optional<CpuPath> cpu_path) {
    const DefaultFloatMode mode;
    const std::string& path = file.name();
    return without_refusal(path, [&]() -> Result<Layers> {
      Layers layers;
      for (typename Kind::Read& layer : read(file)) layers.push_back(Kind::create(path, std::move(layer), cpu_path));
      return layers;
    });
  }

 private:
  static constexpr int64_t kVersion = 1;

  static ArrayFile content(std::span<const Layer* const> layers) {
    ArrayFile file;
    Json list = Json::array();
    for (const Layer* layer : layers) {
      Json json = {{"name", layer->name()}};
      Kind::write(*layer, json, file);
      list.push_back(std::move(json));
    }
    const Json root = {{"format_version", kVersion}, {Kind::kKey, std::move(list)}};
    file.metadata[kMetadataKey] = root.dump();
    return file;
  }

  static std::vector<typename Kind::Read> read(const ArrayReader& reader) {
    Result<ArrayFile> file = reader.read_all();
    if (!file.ok()) throw Refusal{file.status()};
    const std::string& path = reader.name();
    const Json json = parse_metadata(path, *file, Kind::kWhat);
    Fields root(json, path + ": metadata 'isobit'");
    check_format_version(root, path, kVersion);
    std::vector<typename Kind::Read> layers;
    std::set<std::string> names;
    for (const Json& layer : root.list(Kind::kKey)) {
      Fields fields(layer, path + ": layer " + std::to_string(layers.size()) + " of metadata 'isobit'");
      const std::string& name = fields.string("name");
      if (!names.insert(name).second) refuse_file(path + ": two layers are named " + in_quotes(name));
      layers.push_back(Kind::read(fields, path, name, file->arrays));
      fields.finish();
    }
    root.finish();
    if (!file->arrays.empty()) refuse_file(path + ": unknown tensor " + in_quotes(file->arrays.begin()->first));
    return layers;
  }
};

}  // namespace isobit

#endif  // ISOBIT_LINEAR_STATIC_SAVED_H_
