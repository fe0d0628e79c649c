// SPDX-License-Identifier: Apache-2.0
// Internal to io: the tensor types of GGUF.
#ifndef ISOBIT_IO_GGUF_TYPES_H_
#define ISOBIT_IO_GGUF_TYPES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "isobit/dtype.h"

namespace isobit {

/// Elements are stored in blocks, which never cross the end of a row. At most one of `dtype` and `dequantize` is set;
/// neither: a type that is listed but not read.
struct GgufType {
  uint32_t id;
  std::string_view name;
  int64_t block_elements;
  int64_t block_bytes;
  std::optional<Dtype> dtype;  // elements that are arrays of this type as they lie in the file
  void (*dequantize)(const uint8_t* block, float* out);  // one block; all results are NaN or infinite if a scale is
};

/// nullptr when the format has no such type, or no longer has it.
const GgufType* find_gguf_type(uint32_t id);
const GgufType* find_gguf_type(std::string_view name);

/// "F32 F16 ...": those with a `dtype` or a `dequantize`.
std::string readable_gguf_types();

}  // namespace isobit

#endif  // ISOBIT_IO_GGUF_TYPES_H_
