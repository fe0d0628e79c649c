// SPDX-License-Identifier: Apache-2.0
// Internal to io: what the container formats share, and the encoders behind the writers (the tests and fuzz targets
// use them for round trips in memory).
#ifndef ISOBIT_IO_CONTAINER_H_
#define ISOBIT_IO_CONTAINER_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/arrays.h"

namespace isobit {

inline constexpr size_t kMaxDimensions = 64;  // as in numpy 2

/// Bytes of an array; nothing if there are more than kMaxDimensions, one is negative, or the product (zero dimensions
/// counted as one, so that strides fit too) exceeds 2^63 - 1.
std::optional<size_t> array_size_bytes(Dtype dtype, const std::vector<int64_t>& shape);

/// The same of elements of `bits` bits each, as they lie in a file, without gaps.
std::optional<uint64_t> stored_size_bytes(uint64_t bits, const std::vector<int64_t>& shape);

/// "(3, 4)".
std::string shape_text(const std::vector<int64_t>& shape);

/// Text from a file or a caller for a message: quoted, '?' for all but printable ASCII (a message stays valid UTF-8),
/// cut at 80.
std::string in_quotes(std::string_view text);

/// "; the file is cut short: it has 24 bytes of at least 32", or nothing where it has as many as it needs.
std::string cut_short(uint64_t size_bytes, uint64_t needed_bytes);

/// Refuses an array whose bytes do not match its shape, before it is written.
Status check_array(const Array& array, const std::string& what);

Result<std::vector<std::byte>> encode_npy(const Array& array, const std::string& what);
Result<std::vector<std::byte>> encode_npz(const std::map<std::string, Array>& arrays, const std::string& what);
Result<std::vector<std::byte>> encode_safetensors(const ArrayFile& file, const std::string& what);

/// The bytes of a file: a regular one stays open and is read where somebody asks; pipes and callers' memory are held.
class FileContent {
 public:
  static Result<std::shared_ptr<const FileContent>> open(const std::string& path);
  static std::shared_ptr<const FileContent> view(const void* data, size_t size_bytes, const std::string& name);
  /// `content`, in memory as a whole.
  static Result<std::shared_ptr<const FileContent>> load(std::shared_ptr<const FileContent> content);
  ~FileContent();
  FileContent(const FileContent&) = delete;
  FileContent& operator=(const FileContent&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] uint64_t size_bytes() const { return size_bytes_; }
  /// A regular file, whose name is its path.
  [[nodiscard]] bool is_file() const { return fd_ >= 0; }
  /// Of content that load() or view() gave.
  [[nodiscard]] const std::byte* data() const { return data_; }
  /// The caller has checked that the bytes lie in the file.
  Status read(uint64_t offset, void* out, uint64_t size_bytes) const;
  /// At most `limit` bytes of its beginning.
  [[nodiscard]] Result<std::string> beginning(uint64_t limit) const;

 private:
  explicit FileContent(std::string name) : name_(std::move(name)) {}

  std::string name_;
  uint64_t size_bytes_ = 0;
  int fd_ = -1;
  std::vector<std::byte> own_;
  const std::byte* data_ = nullptr;
};
using SharedContent = std::shared_ptr<const FileContent>;

/// A file whose directory was read.
struct Container {
  std::vector<ArrayEntry> entries;  // after finish(): in the order of their names
  std::vector<Status> refusals;     // of each entry: why it is not read
  std::vector<uint64_t> places;     // of each entry: where it is, as the format counts
  std::map<std::string, std::string> metadata;

  Container() = default;
  Container(const Container&) = delete;
  Container& operator=(const Container&) = delete;
  virtual ~Container() = default;
  /// The array of an entry that is not refused.
  [[nodiscard]] virtual Result<Array> read(size_t index) const = 0;
  [[nodiscard]] virtual const GgufFile* gguf() const { return nullptr; }

  void add(ArrayEntry entry, Status refusal, uint64_t place);
  /// Sorts; `name` of the file, whose arrays must have different names.
  Status finish(const std::string& name);
  [[nodiscard]] std::optional<size_t> find(std::string_view name) const;
};
using SharedContainer = std::shared_ptr<const Container>;

Result<SharedContainer> open_npy(const SharedContent& content);
Result<SharedContainer> open_npz(const SharedContent& content);
Result<SharedContainer> open_safetensors(const SharedContent& content);
Result<SharedContainer> open_gguf(const SharedContent& content);
Result<SharedContainer> open_onnx(const SharedContent& content);
/// The safetensors files beside it that a safetensors index names.
Result<SharedContainer> open_shards(const SharedContent& content);

/// Whether a name is that of a safetensors index.
inline bool is_index_name(const std::string& path) { return path.ends_with(".safetensors.index.json"); }
/// kSafetensors, or what its metadata says.
FileKind kind_of_saved(const Container& container);
/// Names of the safetensors files beside the index `path` that its text lists, and the tensors of each.
Result<std::map<std::string, std::set<std::string>>> list_shards(std::string_view text, const std::string& path);

/// Whether the content is that of an ONNX model, perhaps cut short.
Result<bool> has_onnx_graph(const FileContent& content);
/// The files beside an ONNX model that hold its external data.
Result<std::vector<std::string>> list_external_files(const SharedContent& content);

/// Every array of a file; the first that is refused refuses it.
Result<ArrayFile> read_all(const Container& container);

/// What a header of npy says.
struct NpyHeader {
  std::string type = "npy";  // descr
  std::optional<Dtype> dtype;
  std::optional<uint64_t> element_bits;  // nothing: of a type whose elements have no fixed size
  Status refusal;                        // without a dtype: why
  bool fortran_order = false;
  std::vector<int64_t> shape;
  uint64_t size_bytes = 0;  // of the header
};
/// Where the header ends, from at least kNpyPreambleBytes of the file; 0: the version is not known.
inline constexpr size_t kNpyPreambleBytes = 12;
Result<uint64_t> npy_header_bytes(std::string_view beginning, uint64_t file_bytes, const std::string& name);
/// `beginning` holds the header; the size of the elements is checked against that of the file.
Result<NpyHeader> parse_npy_header(std::string_view beginning, uint64_t file_bytes, const std::string& name);

/// The kind of a file that is no zip archive, by its beginning: kBeginningBytes, where it has as many.
inline constexpr uint64_t kBeginningBytes = 4096;
FileKind kind_of_beginning(std::string_view beginning);
/// Of a zip archive, by the names of its entries.
FileKind kind_of_archive(const std::vector<std::string>& names);
/// kNpz: any zip archive.
Result<FileKind> kind_of(const SharedContent& content);
/// Files of a zip archive.
Result<std::vector<std::string>> names_in_archive(const SharedContent& content);
/// Refuses a file of a kind that is not read, and says what to do.
Status refuse_kind(FileKind kind, const FileContent& content);

/// What a symbolic link at `path` points to, even where that does not exist yet; `path` itself where it is no link.
std::filesystem::path follow_links(const std::filesystem::path& path);

/// Runs `body`; an exception of the standard library becomes a Status, because nothing throws across the API.
template <typename Body>
auto without_exceptions(const std::string& what, Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kIo, what + ": out of memory");
  } catch (const std::exception& error) {
    return Status(StatusCode::kIo, what + ": " + error.what());
  }
}

}  // namespace isobit

#endif  // ISOBIT_IO_CONTAINER_H_
