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

inline constexpr int kMaxGgufBlock = 256;  // elements of a block
inline constexpr int kMaxGgufGroups = 16;  // groups of a block

/// How the codes q of a block decode: element i is S[g] * (q[i] - zero), g = i / group, and O[g] is added where the
/// type has it, each a float32 operation of its own. To subtract a minimum is to add its negative.
struct GgufQuantization {
  int bits;   // q is in 0..2^bits - 1
  int group;  // elements that share S and O
  int zero;
  bool has_offsets;
  Dtype scales;  // f16: S and O are float16 numbers of the file; f32: products of them
  /// One block. S and O are NaN or infinite if a scale or minimum of the file is. O is left alone where there is none.
  void (*split)(const uint8_t* block, float* scales, float* offsets, uint8_t* codes);
};

/// Elements are stored in blocks, which never cross the end of a row. At most one of `dtype` and `quantization` is set;
/// neither: a type that is listed but not read.
struct GgufType {
  uint32_t id;
  std::string_view name;
  int64_t block_elements;
  int64_t block_bytes;
  std::optional<Dtype> dtype;  // elements that are arrays of this type as they lie in the file
  const GgufQuantization* quantization;
};

/// nullptr when no type of this number or name is known.
const GgufType* find_gguf_type(uint32_t id);
const GgufType* find_gguf_type(std::string_view name);

/// "F32 F16 ...": those with a `dtype` or a `quantization`.
std::string readable_gguf_types();

}  // namespace isobit

#endif  // ISOBIT_IO_GGUF_TYPES_H_
