// SPDX-License-Identifier: Apache-2.0
#include "io/fuzz.h"
#include "io/gguf/seed.h"
#include "isobit/gguf.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const auto valid_file = isobit::gguf_seed_file();
  return isobit::fuzz_mutate(data, size, max_size, seed, valid_file);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  isobit::fuzz_require_readable(data, size);
  static const auto valid_file = isobit::gguf_seed_file();
  isobit::fuzz_require(isobit::parse_gguf(valid_file.data(), valid_file.size(), "seed").ok());
  const isobit::Result<isobit::GgufFile> file = isobit::GgufFile::view(data, size, "fuzz");
  const isobit::Result<isobit::ArrayFile> arrays = isobit::parse_gguf(data, size, "fuzz");
  if (!file.ok()) {
    isobit::fuzz_require(!arrays.ok());
    return 0;
  }
  for (const isobit::GgufTensor& tensor : file->tensors()) {
    const isobit::Result<isobit::Array> array = file->read(tensor.name);
    if (!array.ok()) continue;
    isobit::fuzz_require_consistent(*array);
    isobit::fuzz_require(array->shape == tensor.shape);
    isobit::fuzz_require(!arrays.ok() || arrays->arrays.at(tensor.name) == *array);
  }
  return 0;
}
