// SPDX-License-Identifier: Apache-2.0
// Importers over GGUF files and over safetensors that hold GPTQ or AWQ tensors. What is accepted must be what it says:
// GGUF has the bits of GgufFile::read, every weight is finite, and a permutation is one.
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "io/fuzz_saved.h"
#include "io/gguf_seed.h"
#include "isobit/low_bit_import.h"

namespace isobit {
namespace {

/// K = 64, N = 16, groups of 32 that take turns.
Bytes checkpoint_seed(bool awq) {
  ArrayFile file;
  file.arrays["m.qweight"] = Array::zeros(Dtype::kS32, awq ? std::vector<int64_t>{64, 2} : std::vector<int64_t>{8, 16});
  file.arrays["m.qzeros"] = Array::zeros(Dtype::kS32, {2, 2});
  file.arrays["m.scales"] = Array::zeros(Dtype::kF16, {2, 16});
  for (auto& [name, array] : file.arrays)
    for (size_t i = 0; i < array.bytes.size(); ++i) array.bytes[i] = static_cast<std::byte>(0x10 + i % 32);
  if (!awq) {
    Array& groups = file.arrays["m.g_idx"] = Array::zeros(Dtype::kS32, {64});
    for (int32_t k = 0; k < 64; ++k) groups.data<int32_t>()[k] = k % 2;
  }
  Result<Bytes> bytes = encode_safetensors(file, "seed");
  fuzz_require(bytes.ok());
  return *std::move(bytes);
}

void require_sound(const ImportedLowBit& imported) {
  const LowBitMatrix& matrix = imported.matrix;
  std::vector<float> w(static_cast<size_t>(matrix.rows() * matrix.columns()));
  fuzz_require(matrix.dequantize(w).ok());
  for (const float value : w) fuzz_require(std::isfinite(value));
  if (imported.permutation.empty()) return;
  std::vector<bool> seen(static_cast<size_t>(matrix.columns()));
  fuzz_require(imported.permutation.size() == seen.size());
  for (const int32_t k : imported.permutation) {
    fuzz_require(k >= 0 && static_cast<size_t>(k) < seen.size() && !seen[static_cast<size_t>(k)]);
    seen[static_cast<size_t>(k)] = true;
  }
}

void import_all(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors()) {
    const Result<ImportedLowBit> imported = import_gguf(file, tensor.name);
    fuzz_require(!imported.ok() || is_importable(tensor));
    if (!imported.ok()) continue;
    require_sound(*imported);
    const Result<Array> array = file.read(tensor.name);
    fuzz_require(array.ok());
    std::vector<float> w(static_cast<size_t>(array->size()));
    fuzz_require(imported->matrix.dequantize(w).ok());
    if (imported->cleared_groups > 0) continue;  // zeros may have lost their sign
    fuzz_require(std::memcmp(w.data(), array->bytes.data(), array->bytes.size()) == 0);
  }
}

void import_all(const ArrayFile& file) {
  for (const std::string& prefix : list_checkpoint_matrices(file.arrays))
    for (const auto format : {CheckpointFormat::kGptq, CheckpointFormat::kGptqV2, CheckpointFormat::kAwq})
      for (const int32_t bits : {2, 4, 8})
        for (const int64_t group : {int64_t{-1}, int64_t{32}, int64_t{64}}) {
          const Result<ImportedLowBit> imported =
              import_checkpoint(file.arrays, prefix, {.format = format, .bits = bits, .group = group}, "fuzz");
          if (imported.ok()) require_sound(*imported);
        }
}

}  // namespace
}  // namespace isobit

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<isobit::Bytes> seeds = {isobit::checkpoint_seed(false), isobit::checkpoint_seed(true),
                                                   isobit::gguf_seed_file()};
  return isobit::mutate_saved(seeds, data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (const auto gguf = isobit::GgufFile::view(data, size, "fuzz"); gguf.ok()) isobit::import_all(*gguf);
  if (const auto arrays = isobit::parse_safetensors(data, size, "fuzz"); arrays.ok()) isobit::import_all(*arrays);
  return 0;
}
