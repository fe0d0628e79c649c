// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets of io share. Their seeds are made by the encoders, so no corpus of binary files is kept.
#ifndef ISOBIT_IO_FUZZ_H_
#define ISOBIT_IO_FUZZ_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "io/container.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace isobit {

/// Not assert: it must hold in release builds too.
inline void fuzz_require(bool condition) {
  if (!condition) std::abort();
}

inline void fuzz_require_consistent(const Array& array) {
  const auto bytes = array_size_bytes(array.dtype, array.shape);
  fuzz_require(bytes && *bytes == array.bytes.size());
  fuzz_require(array.to_float().size() == static_cast<size_t>(array.size()));
}

/// A directory is one, whatever the types: each array is read as it says, or refused.
inline void fuzz_require_readable(const uint8_t* data, size_t size) {
  const Result<ArrayReader> reader = ArrayReader::view(data, size, "fuzz");
  if (!reader.ok()) return;
  for (const ArrayEntry& entry : reader->entries()) {
    const Result<Array> array = reader->read(entry.name);
    fuzz_require(entry.dtype || !array.ok());
    if (!array.ok()) continue;
    fuzz_require_consistent(*array);
    fuzz_require(array->dtype == *entry.dtype && array->shape == entry.shape);
  }
}

inline std::map<std::string, Array> fuzz_seed_arrays() {
  const float weights[6] = {0, 1, -2.5f, 3, 4, 5};
  const int8_t bias[2] = {1, -2};
  std::map<std::string, Array> arrays;
  arrays.emplace("W", Array::copy_of(weights, {2, 3}));
  arrays.emplace("b", Array::copy_of(bias, {2}));
  arrays.emplace("empty", Array::zeros(Dtype::kF16, {0, 4}));
  return arrays;
}

/// Now and then starts again from a valid file; otherwise mutates what there is.
inline size_t fuzz_mutate(uint8_t* data, size_t size, size_t max_size, unsigned seed,
                          const std::vector<std::byte>& valid_file) {
  if ((size < 8 || seed % 64 == 0) && valid_file.size() <= max_size) {
    std::memcpy(data, valid_file.data(), valid_file.size());
    size = valid_file.size();
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

}  // namespace isobit

#endif  // ISOBIT_IO_FUZZ_H_
