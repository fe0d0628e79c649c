// SPDX-License-Identifier: Apache-2.0
#include "io/fuzz.h"

using isobit::ArrayFile;

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const auto valid_file =
      *isobit::encode_safetensors({isobit::fuzz_seed_arrays(), {{"isobit", "{\"version\":1}"}}}, "seed");
  return isobit::fuzz_mutate(data, size, max_size, seed, valid_file);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  isobit::fuzz_require_readable(data, size);
  const isobit::Result<ArrayFile> file = isobit::parse_safetensors(data, size, "fuzz");
  if (!file.ok()) return 0;
  for (const auto& [name, array] : file->arrays) isobit::fuzz_require_consistent(array);
  const auto encoded = isobit::encode_safetensors(*file, "fuzz");
  isobit::fuzz_require(encoded.ok());
  const isobit::Result<ArrayFile> again = isobit::parse_safetensors(encoded->data(), encoded->size(), "fuzz");
  isobit::fuzz_require(again.ok() && *again == *file);
  return 0;
}
