// SPDX-License-Identifier: Apache-2.0
// Named arrays in files: npy, npz, safetensors and GGUF. Containers only; nothing here knows an operation.
#ifndef ISOBIT_ARRAYS_H_
#define ISOBIT_ARRAYS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "isobit/dtype.h"
#include "isobit/status.h"

namespace isobit {

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

/// `arrays` in the order of their names; `metadata` is safetensors' __metadata__ (empty for the others).
struct ArrayFile {
  std::map<std::string, Array> arrays;
  std::map<std::string, std::string> metadata;

  bool operator==(const ArrayFile&) const = default;
};

/// Reads .npy (one array named ""), .npz, .safetensors or .gguf, recognised by content; of a name that ends in
/// .safetensors.index.json all the safetensors files in its folder that it lists, without their metadata. Errors name
/// the file, the array, the value and the limit. Nothing is allocated from a size that has not been checked against the
/// file.
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
