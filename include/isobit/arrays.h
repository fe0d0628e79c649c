// SPDX-License-Identifier: Apache-2.0
// Named arrays in files: npy, npz, safetensors, GGUF, and the weights of GRU nodes of ONNX models. Containers only;
// nothing here knows an operation.
#ifndef ISOBIT_ARRAYS_H_
#define ISOBIT_ARRAYS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/dtype.h"
#include "isobit/status.h"

namespace isobit {

/// A shape for people: "[3, 4]".
std::string list_text(std::span<const int64_t> numbers);

/// A name in a file for people: JSON's escapes without the quotes. The whole text, and no control character of a file
/// reaches a terminal.
std::string escaped(std::string_view text);

/// A dense little-endian array in C order. bytes.size() == product(shape) * size_in_bytes(dtype).
struct Array {
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;

  [[nodiscard]] int64_t size() const;  // number of elements; 1 for a zero-dimensional array

  template <typename T>
  [[nodiscard]] const T* data() const {
    return reinterpret_cast<const T*>(bytes.data());
  }
  template <typename T>
  [[nodiscard]] T* data() {
    return reinterpret_cast<T*>(bytes.data());
  }

  bool operator==(const Array&) const = default;  // the same bytes: NaN equals itself, 0 is not -0

  /// A zero-filled array. The shape is the caller's own: no dimension is negative, and the array fits in memory.
  static Array zeros(Dtype dtype, std::vector<int64_t> shape);
  /// Copies `size(shape)` elements of type T.
  template <typename T>
  static Array copy_of(const T* values, const std::vector<int64_t>& shape);

  /// Every element as float32: floats of other widths and integers are converted, float64 rounded to
  /// nearest even (numerics.md, section 3).
  [[nodiscard]] std::vector<float> to_float() const;
};

/// Dimension i of the result is dimension order[i] of the array; `order` has each of them once.
Array reordered(const Array& array, std::span<const size_t> order);

/// `arrays` in the order of their names; `metadata` is safetensors' __metadata__ (empty for the others).
struct ArrayFile {
  std::map<std::string, Array> arrays;
  std::map<std::string, std::string> metadata;

  bool operator==(const ArrayFile&) const = default;
};

/// What a file is. Those before kEmpty are read; of the others messages say what to do.
enum class FileKind : int32_t {
  kNpy,
  kNpz,
  kSafetensors,
  // Safetensors files that isobit writes (docs/formats.md), known by their metadata:
  kGruModels,         // integer GRUs
  kFp16Table,         // an activation table
  kLowBit,            // low-bit weights
  kStaticLinear,      // linear layers of static codes
  kStaticConv,        // convolutions of static codes
  kOtherSaved,        // damaged, or of a later version
  kSafetensorsIndex,  // a name that ends in .safetensors.index.json
  kGguf,
  kOnnx,
  kEmpty,
  kGitLfsPointer,
  kPytorch,  // what torch.save writes, a zip archive
  kPickle,
  kHdf5,
  kKeras,  // a zip archive
  kTfLite,
  kHtml,
  kJson,
  kTar,
  kZip,         // without an array in it
  kCompressed,  // gzip, bzip2, xz or zstd
  kUnknown,
};
/// "npy", "npz", "safetensors", "integer GRUs of isobit", "safetensors index", "GGUF"; "a PyTorch checkpoint", ...
std::string_view to_string(FileKind kind);
/// Judged by the beginning of the file, of zip archives by what they hold, of safetensors files by their metadata. It
/// takes away what a pipe holds: ArrayReader reads that once and knows the kind, too.
Result<FileKind> file_kind(const std::string& path);

/// What the directory of a file says of an array.
struct ArrayEntry {
  std::string name;
  std::string type;            // as the file has it: "F8_E4M3", "<U7", "Q4_K"
  std::optional<Dtype> dtype;  // of what read() gives; nothing: a type that isobit does not read
  std::vector<int64_t> shape;  // empty where the directory has none
  uint64_t size_bytes = 0;     // of the elements in the file, before compression
};

class GgufFile;
struct Container;

/// A file of arrays, npy (one array named ""), npz, safetensors, a safetensors index, GGUF or ONNX: its directory, and
/// single arrays when somebody asks for them. So an array of a type that is not read spoils no other one. Sizes are
/// checked against the file when it is opened. Copies share the content; safe to share between threads.
class ArrayReader {
 public:
  /// Recognised by content, and a safetensors index by its name. A pipe is read once, into memory. The external data of
  /// an ONNX model is read from regular files in its folder, and from nowhere else.
  static Result<ArrayReader> open(const std::string& path);
  /// Over memory that the caller keeps; `name` stands for the file in messages.
  static Result<ArrayReader> view(const void* data, size_t size_bytes, const std::string& name);

  [[nodiscard]] const std::string& name() const { return name_; }  // of the file
  [[nodiscard]] FileKind kind() const { return kind_; }
  [[nodiscard]] const std::vector<ArrayEntry>& entries() const;              // in the order of their names
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;  // safetensors, ONNX; else empty
  [[nodiscard]] const ArrayEntry* find(std::string_view name) const;         // nullptr: there is none
  /// kUnsupported, by name and type, for an array without a dtype; kInvalidArgument when there is no such array.
  [[nodiscard]] Result<Array> read(std::string_view name) const;
  /// Every array: one without a dtype refuses the file.
  [[nodiscard]] Result<ArrayFile> read_all() const;
  /// Every array with a dtype.
  [[nodiscard]] Result<ArrayFile> read_readable() const;
  /// Of a GGUF file, as long as this reader lives; else nullptr.
  [[nodiscard]] const GgufFile* gguf() const;

 private:
  ArrayReader(std::string name, FileKind kind, std::shared_ptr<const Container> container)
      : name_(std::move(name)), kind_(kind), container_(std::move(container)) {}

  std::string name_;
  FileKind kind_ = FileKind::kUnknown;
  std::shared_ptr<const Container> container_;
};

/// ArrayReader::open and read_all in one. Errors name the file, the array, the value and the limit. Nothing is
/// allocated from a size that has not been checked against the file.
Result<ArrayFile> load_arrays(const std::string& path);

/// Parsers over memory; `name` stands for the file in messages. Booleans are read as kU8. What has no Dtype (uint64,
/// complex, strings, objects, records, float8) and big-endian npy is refused by name (kUnsupported). Of GGUF
/// every tensor is read, as GgufFile::read (gguf.h) does it for one, and no metadata.
Result<Array> parse_npy(const void* data, size_t size_bytes, const std::string& name);
Result<ArrayFile> parse_npz(const void* data, size_t size_bytes, const std::string& name);
Result<ArrayFile> parse_safetensors(const void* data, size_t size_bytes, const std::string& name);
Result<ArrayFile> parse_gguf(const void* data, size_t size_bytes, const std::string& name);

/// Writers: the file appears whole, under its own name, or not at all (temporary file, fsync, rename).
/// The same content gives the same bytes. npy and npz have no bfloat16 (kUnsupported).
Status save_npy(const std::string& path, const Array& array);
Status save_npz(const std::string& path, const std::map<std::string, Array>& arrays);
Status save_safetensors(const std::string& path, const ArrayFile& file);

/// Writes text or binary content whole or not at all, with the same guarantee. A symbolic link is followed; a device
/// or pipe (/dev/stdout) is written to directly.
Status write_file_atomically(const std::string& path, const void* data, size_t size_bytes);
/// Reads a whole file.
Result<std::vector<std::byte>> read_file(const std::string& path);

template <typename T>
Array Array::copy_of(const T* values, const std::vector<int64_t>& shape) {
  Array array = zeros(dtype_of<T>(), shape);
  const int64_t count = array.size();
  T* out = array.data<T>();
  for (int64_t i = 0; i < count; ++i) out[i] = values[i];
  return array;
}

}  // namespace isobit

#endif  // ISOBIT_ARRAYS_H_
