// SPDX-License-Identifier: Apache-2.0
// The loader of saved models. Seeds are real models, made when the program starts. An accepted model is run: no input
// may overflow, and every path must give the bytes of the reference.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/codes.h"
#include "core/random.h"
#include "io/fuzz_saved.h"
#include "isobit/gru.h"

namespace isobit {
namespace {

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
  if (!name.empty()) quantization.notes = {{"bits", spec.bits}, {"reason", "a seed"}};
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

/// The codes of every step, and of the last state.
std::vector<Bytes> run(const GruModel& model, const Bytes& x, std::optional<CpuPath> path) {
  GruState state = model.initial_state(kBatch);
  Workspace workspace = model.workspace(kBatch, kSteps);
  const Grid& grid = model.output_grid();
  std::vector<Bytes> out = {
      Bytes(static_cast<size_t>(kSteps * kBatch * model.output_size()) * size_in_bytes(grid.dtype()))};
  RunOptions options{.whole_sequence = true};
  options.path = path;
  fuzz_require(model.forward_codes(x, out[0], kSteps, state, workspace, options).ok());
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
  return isobit::mutate_saved(seeds, data, size, max_size, seed);
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
