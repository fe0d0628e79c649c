// SPDX-License-Identifier: Apache-2.0
// Importers over GGUF files and over safetensors that hold GPTQ or AWQ tensors; what JSON files and metadata say about
// the latter, too: their text is the metadata that the mutator knows. What is accepted must be what it says: GGUF has
// the bits of GgufFile::read, every weight is finite, and a permutation is one.
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/fuzz_saved.h"
#include "io/gguf/seed.h"
#include "isobit/low_bit_import.h"
#include "low_bit/importers.h"
#include "low_bit/parts.h"

namespace isobit {
namespace {

constexpr const char* kDescriptions[] = {
    R"({"bits": 4, "group_size": 32, "desc_act": true, "sym": false, "quant_method": "gptq", "checkpoint_format":
        "gptq_v2", "pack_dtype": "int32", "is_marlin_format": false,
        "dynamic": {"-:head": {}, "+:up": {"bits": 4, "sym": false}}})",
    R"({"w_bit": 4, "q_group_size": 32, "zero_point": true, "version": "GEMM"})",
    R"({"model_type": "llama", "quantization_config": {"bits": 4, "group_size": 32, "quant_method": "awq",
        "version": "gemm", "zero_point": true, "modules_to_not_convert": null}})"};

/// K = 64, N = 16, groups of 32 that take turns.
Bytes checkpoint_seed(bool awq, const char* description) {
  ArrayFile file;
  file.metadata["isobit"] = description;  // the text that mutate_saved() changes
  file.metadata["gptq_bits"] = "4";
  file.metadata["gptq_group_size"] = "32";
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

/// What is said about the tensors is either refused, or tried on them.
void import_described(const ArrayFile& file, const Result<std::optional<CheckpointDescription>>& found) {
  fuzz_require(found.ok() || !found.status().message().empty());
  if (!found.ok() || !*found) return;
  const CheckpointDescription& description = **found;
  fuzz_require(description.source == "/dev/null/fuzz" && description.options.bits >= -1 &&
               description.options.group >= -1 && description.options.group <= kMaxLowBitSize);
  for (const std::string& prefix : list_checkpoint_matrices(file.arrays)) {
    const Result<ImportedLowBit> imported = import_checkpoint(file.arrays, prefix, description.options, "fuzz");
    if (imported.ok()) require_sound(*imported);
  }
}

void import_described(const ArrayFile& file, std::string_view text) {
  for (const bool whole_model : {false, true})
    import_described(file, parse_checkpoint_description(text, whole_model, "/dev/null/fuzz"));
}

/// Each tensor that is found is one of the file and belongs to one format only.
void require_sound(const ArrayReader& file, const std::vector<ForeignFormat>& formats) {
  std::set<std::string> seen;
  for (const ForeignFormat& format : formats) {
    fuzz_require(format.matrices > 0 && !format.sign.empty());
    for (const std::string& name : format.tensors) fuzz_require(file.find(name) != nullptr && seen.insert(name).second);
  }
}

void import_all(const ArrayFile& file) {
  import_described(file, find_checkpoint_description("/dev/null/fuzz", file.metadata));  // there are no files
  if (const auto text = file.metadata.find("isobit"); text != file.metadata.end()) import_described(file, text->second);
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
  static const std::vector<isobit::Bytes> seeds = {
      isobit::checkpoint_seed(false, isobit::kDescriptions[0]), isobit::checkpoint_seed(true, isobit::kDescriptions[1]),
      isobit::checkpoint_seed(true, isobit::kDescriptions[2]), isobit::gguf_seed_file()};
  return isobit::mutate_saved(seeds, data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (const auto gguf = isobit::GgufFile::view(data, size, "fuzz"); gguf.ok()) isobit::import_all(*gguf);
  if (const auto file = isobit::ArrayReader::view(data, size, "fuzz"); file.ok() && file->gguf() == nullptr) {
    isobit::require_sound(*file, isobit::find_foreign_formats(isobit::list_tensors(*file)));
    if (const auto arrays = file->read_all(); arrays.ok()) isobit::import_all(*arrays);
  }
  isobit::import_described({}, {reinterpret_cast<const char*>(data), size});
  return 0;
}
