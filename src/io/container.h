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
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/arrays.h"

namespace isobit {

inline constexpr size_t kMaxDimensions = 64;  // as in numpy 2

/// Bytes of an array; nothing if there are more than kMaxDimensions, one is negative, or the product (zero dimensions
/// counted as one, so that strides fit too) exceeds 2^63 - 1.
std::optional<size_t> array_size_bytes(Dtype dtype, const std::vector<int64_t>& shape);

/// "(3, 4)".
std::string shape_text(const std::vector<int64_t>& shape);

/// Text from a file or a caller for a message: quoted, '?' for all but printable ASCII (a message stays valid UTF-8),
/// cut at 80.
std::string in_quotes(std::string_view text);

/// Refuses an array whose bytes do not match its shape, before it is written.
Status check_array(const Array& array, const std::string& what);

Result<std::vector<std::byte>> encode_npy(const Array& array, const std::string& what);
Result<std::vector<std::byte>> encode_npz(const std::map<std::string, Array>& arrays, const std::string& what);
Result<std::vector<std::byte>> encode_safetensors(const ArrayFile& file, const std::string& what);

/// Whether a name is that of a safetensors index.
inline bool is_index_name(const std::string& path) { return path.ends_with(".safetensors.index.json"); }
/// Names of the safetensors files beside `path` that its content, a safetensors index, lists, and the tensors of each.
Result<std::map<std::string, std::set<std::string>>> list_shards(const void* data, size_t size_bytes,
                                                                 const std::string& path);
/// Their arrays.
Result<ArrayFile> load_shards(const void* data, size_t size_bytes, const std::string& path);

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
