// SPDX-License-Identifier: Apache-2.0
#include "io/fuzz.h"

using isobit::Array;

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const auto valid_file = *isobit::encode_npy(isobit::fuzz_seed_arrays().at("W"), "seed");
  return isobit::fuzz_mutate(data, size, max_size, seed, valid_file);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  isobit::fuzz_require_readable(data, size);
  const isobit::Result<Array> array = isobit::parse_npy(data, size, "fuzz");
  if (!array.ok()) return 0;
  isobit::fuzz_require_consistent(*array);
  const auto encoded = isobit::encode_npy(*array, "fuzz");
  isobit::fuzz_require(encoded.ok());
  const isobit::Result<Array> again = isobit::parse_npy(encoded->data(), encoded->size(), "fuzz");
  isobit::fuzz_require(again.ok() && *again == *array);
  return 0;
}
