// SPDX-License-Identifier: Apache-2.0
// The loader of saved models. Seeds are real models, made when the program starts. Most mutations keep the
// container and the JSON text well-formed, else nearly every input would be refused at its first byte. An accepted
// model is run: no input may overflow, and every path must give the bytes of the reference.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/codes.h"
#include "core/random.h"
#include "io/fuzz.h"
#include "isobit/gru.h"

namespace isobit {
namespace {

using Json = nlohmann::json;
using Bytes = std::vector<std::byte>;

constexpr int64_t kSteps = 3;
constexpr int64_t kBatch = 2;

struct Spec {
  const char* bits;
  ScaleKind scale;
  int64_t layers;
  int32_t directions;
  const char* table;
};
// Narrow gates: the certificate of a table is checked in software arithmetic, once for each of its input codes.
constexpr Spec kSpecs[] = {{"8,gate_in=5", ScaleKind::kPow2, 1, 1, "direct"},
                           {"8,weights=3,gate_in=4,linear=16", ScaleKind::kReal, 1, 2, "direct"},
                           {"6,biases=2,gate_in=6", ScaleKind::kPow2, 1, 1, "segments:4"},
                           {"12,weights=2,gate_in=7", ScaleKind::kPow2, 2, 1, "interpolated"},
                           {"20,gate_in=5,gate_out=8", ScaleKind::kPow2, 1, 1, "direct"}};

std::vector<float> random_values(Random& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(random.between(-1000, 1000)) / 700.0f;
  return values;
}

template <typename T>
T required(Result<T> result) {
  fuzz_require(result.ok());
  return *std::move(result);
}

GruModel seed_model(const Spec& spec, const std::string& name) {
  Random random(1);
  constexpr int64_t kInputs = 2;
  constexpr int64_t kHidden = 2;
  GruWeights weights;
  weights.directions = spec.directions;
  weights.name = name;
  for (int64_t i = 0; i < spec.layers * spec.directions; ++i) {
    const int64_t inputs = i < spec.directions ? kInputs : spec.directions * kHidden;
    weights.layers.push_back({inputs, kHidden, random_values(random, 3 * kHidden * inputs),
                              random_values(random, 3 * kHidden * kHidden), random_values(random, 3 * kHidden),
                              random_values(random, 3 * kHidden)});
  }
  GruCalibrator calibrator = required(GruCalibrator::create(std::move(weights)));
  fuzz_require(calibrator.observe(random_values(random, kSteps * kBatch * kInputs), kSteps, kBatch).ok());
  GruQuantization quantization;
  quantization.scale = spec.scale;
  fuzz_require(apply_bits(spec.bits, quantization).ok());
  quantization.table = required(parse_table_options(spec.table));
  return required(calibrator.finish(quantization));
}

/// One file a spec, and one that holds two GRUs.
std::vector<Bytes> seed_files() {
  std::string folder = (std::filesystem::temp_directory_path() / "isobit_fuzz_XXXXXX").string();
  fuzz_require(::mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/model.safetensors";
  std::vector<Bytes> files;
  for (const Spec& spec : kSpecs) {
    fuzz_require(seed_model(spec, "").save(path).ok());
    files.push_back(required(read_file(path)));
  }
  const GruModel first = seed_model(kSpecs[0], "a");
  const GruModel second = seed_model(kSpecs[2], "b");
  const GruModel* const both[] = {&first, &second};
  fuzz_require(GruModel::save_all(path, both).ok());
  files.push_back(required(read_file(path)));
  std::filesystem::remove_all(folder);
  return files;
}

/// Mutates `bytes` as libFuzzer would; their number changes only if `resize`.
void mutate_bytes(Bytes& bytes, bool resize) {
  const size_t size = bytes.size();
  const size_t limit = resize ? size + 64 : size;
  if (limit == 0) return;
  bytes.resize(limit);
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), size, limit));
  if (!resize) bytes.resize(size);
}

int64_t interesting_number(Random& random, const Json& old) {
  const int64_t now = old.is_number_integer() ? old.get<int64_t>() : 0;
  switch (random.between(0, 4)) {
    case 0: return now > INT64_MIN ? now - 1 : now;
    case 1: return now < INT64_MAX ? now + 1 : now;
    case 2: return random.between(-2, 34);  // widths and shifts that are valid
    case 3: return random.between(0, 1) == 0 ? INT64_MIN : INT64_MAX;
    default: {
      const int64_t power = int64_t{1} << random.between(0, 61);
      return random.between(-power, power);
    }
  }
}

/// Changes, copies or removes one value somewhere in the JSON text.
void mutate_json(Random& random, std::string& text) {
  Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return;
  std::vector<Json*> leaves;
  std::vector<Json*> containers;
  const auto walk = [&](const auto& self, Json& value) -> void {
    if (!value.is_structured()) return leaves.push_back(&value);
    if (!value.empty()) containers.push_back(&value);
    for (Json& child : value) self(self, child);
  };
  walk(walk, root);
  const auto pick = [&random](const auto& list) {
    return list[static_cast<size_t>(random.between(0, static_cast<int64_t>(list.size()) - 1))];
  };
  if (leaves.empty() || containers.empty()) return;
  if (random.one_in(8)) {
    Json& container = *pick(containers);
    auto item = container.begin();
    std::advance(item, random.between(0, static_cast<int64_t>(container.size()) - 1));
    if (container.is_array() && random.one_in(2)) {
      const Json copy = *item;
      container.push_back(copy);
    } else {
      container.erase(item);
    }
  } else if (Json& leaf = *pick(leaves); leaf.is_boolean()) {
    leaf = !leaf.get<bool>();
  } else if (leaf.is_string()) {
    const Json copy = *pick(leaves);  // another field's words and numbers
    leaf = copy.is_string() ? copy : Json(std::to_string(interesting_number(random, leaf)));
  } else if (const Json copy = *pick(leaves); copy.is_number() && random.one_in(3)) {
    leaf = copy;
  } else {
    leaf = interesting_number(random, leaf);
  }
  text = root.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void mutate_array(Random& random, std::map<std::string, Array>& arrays) {
  if (arrays.empty()) return;
  auto item = std::next(arrays.begin(), random.between(0, static_cast<int64_t>(arrays.size()) - 1));
  Array& array = item->second;
  switch (random.between(0, 9)) {
    case 0: arrays.erase(item); break;
    case 1:
      array = Array::zeros(array.dtype, {random.between(0, 40)});
      break;
    case 2:
      array = Array::zeros(static_cast<Dtype>(random.between(0, static_cast<int64_t>(Dtype::kF64))), array.shape);
      break;
    case 3:  // an extreme in one element
      if (!array.bytes.empty()) {
        const size_t size = size_in_bytes(array.dtype);
        const auto at = static_cast<size_t>(random.between(0, array.size() - 1)) * size;
        const std::byte fill = random.one_in(2) ? std::byte{0xff} : std::byte{0};
        std::fill_n(array.bytes.begin() + static_cast<ptrdiff_t>(at), size, fill);
        array.bytes[at + size - 1] = random.one_in(2) ? std::byte{0x7f} : std::byte{0x80};
      }
      break;
    default: mutate_bytes(array.bytes, /*resize=*/false); break;
  }
}

/// Nothing if the input is no safetensors file.
std::optional<Bytes> mutate_model(Random& random, const uint8_t* data, size_t size) {
  Result<ArrayFile> file = parse_safetensors(data, size, "mutator");
  if (!file.ok()) return std::nullopt;
  const int64_t changes = random.between(1, 3);
  for (int64_t i = 0; i < changes; ++i) {
    if (random.one_in(2)) {
      mutate_json(random, file->metadata["isobit"]);
    } else {
      mutate_array(random, file->arrays);
    }
  }
  Result<Bytes> encoded = encode_safetensors(*file, "mutator");
  if (!encoded.ok()) return std::nullopt;
  return *std::move(encoded);
}

/// The codes of every step, and of the last state.
std::vector<Bytes> run(const GruModel& model, const Bytes& x, std::optional<CpuPath> path) {
  GruState state = model.initial_state(kBatch);
  GruWorkspace workspace = model.workspace(kBatch, kSteps);
  const Grid& grid = model.output_grid();
  std::vector<Bytes> out = {
      Bytes(static_cast<size_t>(kSteps * kBatch * model.output_size()) * size_in_bytes(grid.dtype()))};
  GruRunOptions options;
  options.path = path;
  fuzz_require(model.forward_codes(x.data(), out[0].data(), kSteps, state, workspace, options).ok());
  for (int64_t i = 0; i < kSteps * kBatch * model.output_size(); ++i) {
    const int64_t code = load_code(out[0].data(), grid.dtype(), i);
    fuzz_require(code >= grid.min() && code <= grid.max());
  }
  for (int64_t i = 0; i < state.layer_count(); ++i) out.emplace_back(state.layer(i).begin(), state.layer(i).end());
  return out;
}

void run_every_way(const GruModel& model) {
  const Grid& grid = model.input_grid();
  const int64_t count = kSteps * kBatch * model.input_size();
  Bytes x(static_cast<size_t>(count) * size_in_bytes(grid.dtype()));
  Random random(7);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t codes[] = {grid.min(), grid.max(), random.between(grid.min(), grid.max())};
    store_code(x.data(), grid.dtype(), i, codes[random.between(0, 2)]);
  }
  const std::vector<Bytes> expected = run(model, x, CpuPath::kReference);
  for (const CpuPath path : kAllCpuPaths) {
    if (path != CpuPath::kReference && model.supports(path).ok()) fuzz_require(run(model, x, path) == expected);
  }
}

/// A file in memory: the loader takes a path.
std::string memory_file(const uint8_t* data, size_t size) {
  static const int file = ::memfd_create("isobit_fuzz", 0);
  fuzz_require(file >= 0 && ::ftruncate(file, 0) == 0);
  fuzz_require(::pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
  return "/proc/self/fd/" + std::to_string(file);
}

}  // namespace
}  // namespace isobit

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<isobit::Bytes> seeds = isobit::seed_files();
  isobit::Random random(seed);
  if (size < 8 || random.one_in(16)) {
    const isobit::Bytes& file = seeds[random.next() % seeds.size()];
    isobit::fuzz_require(file.size() <= max_size);  // the test's -max_len
    std::copy_n(reinterpret_cast<const uint8_t*>(file.data()), file.size(), data);
    size = file.size();
  }
  if (!random.one_in(8)) {
    const std::optional<isobit::Bytes> mutated = isobit::mutate_model(random, data, size);
    if (mutated && mutated->size() <= max_size) {
      std::copy_n(reinterpret_cast<const uint8_t*>(mutated->data()), mutated->size(), data);
      return mutated->size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const isobit::Result<std::vector<isobit::GruModel>> models =
      isobit::GruModel::load_all(isobit::memory_file(data, size));
  if (!models.ok()) {
    isobit::fuzz_require(!models.status().message().empty());
    return 0;
  }
  for (const isobit::GruModel& model : *models) isobit::run_every_way(model);
  return 0;
}
