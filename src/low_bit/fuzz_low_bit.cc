// SPDX-License-Identifier: Apache-2.0
// The loader of saved low-bit matrices. An accepted file must be what it says: every weight is finite, and saving it
// again gives a file that is read to the same content.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "io/fuzz_saved.h"
#include "isobit/gguf.h"
#include "isobit/low_bit.h"

namespace isobit {
namespace {

Bytes saved(const LowBitFile& file) {
  static const std::string path = "/tmp/isobit_fuzz_low_bit." + std::to_string(::getpid());
  fuzz_require(save_low_bit(path, file).ok());
  Result<Bytes> bytes = read_file(path);
  fuzz_require(bytes.ok() && std::remove(path.c_str()) == 0);
  return *std::move(bytes);
}

/// One file for each width, with a matrix of each kind and an array.
std::vector<Bytes> seed_files() {
  std::vector<Bytes> files;
  Array weights = Array::zeros(Dtype::kF32, {2, 19});
  for (int64_t i = 0; i < weights.size(); ++i) weights.data<float>()[i] = static_cast<float>(i % 7) - 3;
  for (const int bits : {1, 2, 4, 8}) {
    LowBitFile file;
    for (const auto kind : {LowBitKind::kSymmetric, LowBitKind::kZeroPoint, LowBitKind::kOffset}) {
      const LowBitOptions options{.bits = bits,
                                  .group = bits == 2 ? 19 : 8,
                                  .kind = kind,
                                  .method = LowBitMethod::kMse,
                                  .scales = bits == 4 ? Dtype::kF16 : Dtype::kF32};
      Result<LowBitMatrix> matrix = quantize_low_bit(weights, options, "seed");
      fuzz_require(matrix.ok());
      file.matrices.emplace(to_string(kind), *std::move(matrix));
    }
    if (bits == 8) file.convolutions["offset"] = {.outputs = 1, .kernel_rows = 2, .channels = 19};
    file.arrays["bias"] = Array::zeros(Dtype::kF32, {2});
    file.metadata["gguf"] = R"([{"key":"k","type":"array","element_type":"f32","value":["0x1p+0"]}])";
    files.push_back(saved(file));
  }
  return files;
}

}  // namespace
}  // namespace isobit

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<isobit::Bytes> seeds = isobit::seed_files();
  return isobit::mutate_saved(seeds, data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const isobit::Result<isobit::LowBitFile> file = isobit::parse_low_bit(data, size, "fuzz");
  if (!file.ok()) {
    isobit::fuzz_require(!file.status().message().empty());
    return 0;
  }
  for (const auto& [name, matrix] : file->matrices) {
    std::vector<float> w(static_cast<size_t>(matrix.rows() * matrix.columns()));
    isobit::fuzz_require(matrix.dequantize(w).ok());
    for (const float value : w) isobit::fuzz_require(std::isfinite(value));
  }
  for (const auto& [key, text] : file->metadata) {
    const isobit::Result<isobit::GgufMetadata> values = isobit::gguf_metadata_from_text(text, key);
    if (!values.ok()) continue;
    const isobit::Result<isobit::GgufMetadataText> written = isobit::gguf_metadata_to_text(*values);
    isobit::fuzz_require(written.ok() && written->left_out.empty());
    isobit::fuzz_require(isobit::gguf_metadata_from_text(written->text, key).ok());
  }
  const isobit::Bytes again = isobit::saved(*file);
  const isobit::Result<isobit::LowBitFile> loaded = isobit::parse_low_bit(again.data(), again.size(), "again");
  isobit::fuzz_require(loaded.ok() && *loaded == *file && isobit::saved(*loaded) == again);
  return 0;
}
