// SPDX-License-Identifier: Apache-2.0
// The loader of saved layers of static codes. An accepted file must be what it says: every layer runs with the bytes of
// the reference, and saving the layers again gives a file that is read to the same content.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "io/fuzz_saved.h"
#include "isobit/linear.h"

namespace isobit {
namespace {

Bytes saved(const std::vector<StaticLinearLayer>& layers) {
  static const std::string path = "/tmp/isobit_fuzz_static_linear." + std::to_string(::getpid());
  std::vector<const StaticLinearLayer*> pointers;
  pointers.reserve(layers.size());
  for (const StaticLinearLayer& layer : layers) pointers.push_back(&layer);
  fuzz_require(StaticLinearLayer::save_all(path, pointers).ok());
  Result<Bytes> bytes = read_file(path);
  fuzz_require(bytes.ok() && std::remove(path.c_str()) == 0);
  return *std::move(bytes);
}

/// One file for each width of weights: codes of 8 and of 16 bits out, and accumulators.
std::vector<Bytes> seed_files() {
  std::vector<Bytes> files;
  Array weights = Array::zeros(Dtype::kF32, {3, 7});
  for (int64_t i = 0; i < weights.size(); ++i) weights.data<float>()[i] = static_cast<float>(i % 7) - 3;
  const std::vector<float> bias = {1, -2, 0.5f};
  for (const int bits : {2, 4, 8}) {
    const Result<LowBitMatrix> matrix = quantize_low_bit(weights, {.bits = bits, .group = 7}, "seed");
    fuzz_require(matrix.ok());
    std::vector<StaticLinearLayer> layers;
    for (const int y_bits : {0, 8, 16}) {
      StaticLinearOptions options{.input = {.bits = y_bits == 8 ? 5 : 16, .shift = 10, .zero_point = 3}, .bias = bias};
      if (y_bits != 0)
        options.output = Grid{.bits = y_bits, .is_signed = false, .kind = ScaleKind::kReal, .real_scale = 0.25f};
      const Result<StaticLinearParameters> p = derive_static_linear(*matrix, options, "seed");
      fuzz_require(p.ok());
      Result<StaticLinearLayer> layer = StaticLinearLayer::create(*p, "y" + std::to_string(y_bits));
      fuzz_require(layer.ok());
      layers.push_back(*std::move(layer));
    }
    files.push_back(saved(layers));
  }
  return files;
}

Result<std::vector<StaticLinearLayer>> load(const void* data, size_t size, const char* name,
                                            std::optional<CpuPath> path = {}) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayReader reader, ArrayReader::view(data, size, name));
  return StaticLinearLayer::load_all(reader, path);
}

/// One row of the largest codes and one of the smallest.
Bytes run(const StaticLinearLayer& layer) {
  const StaticLinearParameters& p = layer.parameters();
  Array x = Array::zeros(p.x_dtype(), {2, p.columns});
  for (int64_t k = 0; k < p.columns; ++k) {
    const int64_t ends[] = {p.input.max(), p.input.min()};
    for (int64_t i = 0; i < 2; ++i) {
      auto* at = x.bytes.data() + (i * p.columns + k) * static_cast<int64_t>(size_in_bytes(x.dtype));
      std::copy_n(reinterpret_cast<const std::byte*>(&ends[i]), size_in_bytes(x.dtype), at);
    }
  }
  Bytes y(static_cast<size_t>(2 * p.rows) * size_in_bytes(p.y_dtype()));
  Workspace workspace = layer.workspace(2);
  fuzz_require(layer.forward_codes(x.bytes, y, 2, workspace).ok());
  return y;
}

}  // namespace
}  // namespace isobit

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<isobit::Bytes> seeds = isobit::seed_files();
  return isobit::mutate_saved(seeds, data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto layers = isobit::load(data, size, "fuzz");
  if (!layers.ok()) {
    isobit::fuzz_require(!layers.status().message().empty());
    return 0;
  }
  const auto reference = isobit::load(data, size, "fuzz", isobit::CpuPath::kReference);
  isobit::fuzz_require(reference.ok() && reference->size() == layers->size());
  for (size_t i = 0; i < layers->size(); ++i)
    isobit::fuzz_require(isobit::run((*layers)[i]) == isobit::run((*reference)[i]));
  const isobit::Bytes again = isobit::saved(*layers);
  const auto loaded = isobit::load(again.data(), again.size(), "again");
  isobit::fuzz_require(loaded.ok() && loaded->size() == layers->size() && isobit::saved(*loaded) == again);
  for (size_t i = 0; i < layers->size(); ++i)
    isobit::fuzz_require((*loaded)[i].parameters() == (*layers)[i].parameters());
  return 0;
}
