// SPDX-License-Identifier: Apache-2.0
// Behind zip's checksums, mutated elements are rarely reached; fuzz_npy does that part.
#include "io/fuzz.h"

using isobit::ArrayFile;

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const auto valid_file = *isobit::encode_npz(isobit::fuzz_seed_arrays(), "seed");
  return isobit::fuzz_mutate(data, size, max_size, seed, valid_file);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  isobit::fuzz_require_readable(data, size);
  const isobit::Result<ArrayFile> file = isobit::parse_npz(data, size, "fuzz");
  if (!file.ok()) return 0;
  for (const auto& [name, array] : file->arrays) isobit::fuzz_require_consistent(array);
  const auto encoded = isobit::encode_npz(file->arrays, "fuzz");
  if (!encoded.ok()) return 0;  // a name that is not UTF-8
  const isobit::Result<ArrayFile> again = isobit::parse_npz(encoded->data(), encoded->size(), "fuzz");
  isobit::fuzz_require(again.ok() && *again == *file);
  return 0;
}
