// SPDX-License-Identifier: Apache-2.0
// GGUF files, versions 2 and 3, little-endian: metadata, the table of tensors, and tensors as float arrays. What is
// computed from a quantised block is in docs/formats.md.
#ifndef ISOBIT_GGUF_H_
#define ISOBIT_GGUF_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/status.h"

namespace isobit {

/// Numbered as in the file.
enum class GgufValueType : uint32_t {
  kU8,
  kS8,
  kU16,
  kS16,
  kU32,
  kS32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kS64,
  kF64
};

/// "u8", "s8", "u16", "s16", "u32", "s32", "f32", "bool", "string", "array", "u64", "s64", "f64".
std::string_view to_string(GgufValueType type);

/// One value of the metadata.
struct GgufValue {
  using List = std::vector<GgufValue>;

  GgufValueType type = GgufValueType::kU8;
  GgufValueType element_type = GgufValueType::kU8;  // of kArray, also of an empty one
  /// Unsigned integers, signed integers, floats (a float32 exactly), booleans, strings (any bytes), arrays.
  std::variant<uint64_t, int64_t, double, bool, std::string, List> value;
};

/// Keys and values, in the order of the file.
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

struct GgufTensor {
  std::string name;
  std::string type;            // the format's own name: "F32", "Q4_K", ...; of one that is not known its number: "99"
  bool readable = false;       // whether GgufFile::read takes this type
  std::vector<int64_t> shape;  // C order: the reverse of the file's, rows are the last dimension
  uint64_t offset = 0;         // of its first byte in the file
  uint64_t size_bytes = 0;     // of a type that is not known: up to the next tensor, or the end of the file
};

/// A file whose directory was checked: every text, count, shape and offset lies in the file, no name is there twice,
/// and tensors are aligned and do not overlap. Copies share the content.
class GgufFile {
 public:
  /// Reads the whole file.
  static Result<GgufFile> load(const std::string& path);
  /// Over memory that the caller keeps; `name` stands for the file in messages.
  static Result<GgufFile> view(const void* data, size_t size_bytes, const std::string& name);

  [[nodiscard]] const std::string& name() const { return name_; }  // of the file, in messages
  [[nodiscard]] uint32_t version() const { return version_; }
  [[nodiscard]] uint32_t alignment() const { return alignment_; }  // of tensors, in bytes
  [[nodiscard]] uint64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] const GgufMetadata& metadata() const { return metadata_; }
  [[nodiscard]] const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// nullptr when there is none of this name.
  [[nodiscard]] const GgufValue* find_metadata(std::string_view key) const;
  [[nodiscard]] const GgufTensor* find_tensor(std::string_view name) const;

  /// The tensor called `name`: F32, F16 and BF16 as they are; Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL and
  /// TQ2_0 as float32, the same bits on every machine. kUnsupported for every other type, kInvalidFile for a block
  /// whose scale is infinite or NaN, kInvalidArgument when there is no such tensor.
  [[nodiscard]] Result<Array> read(std::string_view name) const;

  /// The bytes of one of tensors(), as they lie in the file.
  [[nodiscard]] std::span<const std::byte> stored(const GgufTensor& tensor) const;

 private:
  friend class GgufReader;
  friend Result<ArrayFile> parse_gguf(const void* data, size_t size_bytes, const std::string& name);
  [[nodiscard]] Result<Array> read(const GgufTensor& tensor) const;

  std::shared_ptr<const std::vector<std::byte>> content_;  // of load; data_ points into it
  const std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  std::string name_;
  uint32_t version_ = 0;
  uint32_t alignment_ = 32;
  GgufMetadata metadata_;
  std::vector<GgufTensor> tensors_;
};

// ---------------------------------------------------------------------------------------------------------------
// Metadata as JSON text, for the metadata of a saved file: docs/formats.md

struct GgufMetadataText {
  std::string text;
  /// Keys and why: entries that the text, or the header of a safetensors file, cannot hold.
  std::vector<std::pair<std::string, std::string>> left_out;
};

/// Key of the text in the metadata of a saved file.
inline constexpr std::string_view kGgufMetadataKey = "gguf";
/// Characters that the text may have in the header of a safetensors file, which has at most 10^8: entries that do not
/// fit any more are left out.
inline constexpr size_t kMaxGgufMetadataBytes = 50000000;

/// Entries whose text is not UTF-8 are left out. Of a NaN only that it is one is kept.
Result<GgufMetadataText> gguf_metadata_to_text(const GgufMetadata& metadata, size_t max_bytes = kMaxGgufMetadataBytes);
/// Checks types, ranges and that no key is there twice; `name` stands for the text in messages.
Result<GgufMetadata> gguf_metadata_from_text(std::string_view text, const std::string& name);

}  // namespace isobit

#endif  // ISOBIT_GGUF_H_
