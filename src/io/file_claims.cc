// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "io/container.h"
#include "isobit/files.h"

namespace isobit {
namespace {

namespace fs = std::filesystem;

/// Nothing for what no output can destroy: devices, pipes, and paths that cannot be followed.
std::optional<std::tuple<uint64_t, uint64_t, std::string>> identity_of(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode)) return std::nullopt;
    return std::tuple(static_cast<uint64_t>(status.st_dev), static_cast<uint64_t>(status.st_ino), std::string());
  }
  std::error_code error;
  fs::path folder = fs::weakly_canonical(fs::absolute(follow_links(path)), error);
  if (error) return std::nullopt;
  fs::path rest;
  while (folder.has_relative_path()) {
    rest = rest.empty() ? folder.filename() : folder.filename() / rest;
    folder = folder.parent_path();
    if (::stat(folder.c_str(), &status) == 0)
      return std::tuple(static_cast<uint64_t>(status.st_dev), static_cast<uint64_t>(status.st_ino), rest.string());
  }
  return std::nullopt;
}

}  // namespace

Status FileClaims::claim(const std::string& path, const std::string& what, bool written) {
  const auto identity = identity_of(path);
  if (!identity) return {};
  const std::string text = what + " " + path;
  const auto [found, is_new] = claims_.emplace(*identity, Claim{written, text});
  if (is_new) return {};
  const Claim& other = found->second;
  if (!written && !other.written) return {};
  const bool both = written && other.written;
  return {StatusCode::kInvalidArgument,
          (written ? text : other.text) + ": is the same file as " + (written ? other.text : text) +
              (both ? ", another output" : ", which is read and would be lost") + "; choose another name"};
}

Status FileClaims::claim_external_files(const std::string& path, const std::string& what) {
  const auto content = FileContent::open(path);
  const auto kind = content.ok() ? kind_of(*content) : content.status();
  if (!kind.ok() || *kind != FileKind::kOnnx) return {};
  const auto files = list_external_files(*content);
  if (!files.ok()) return {};
  for (const std::string& file : *files) ISOBIT_RETURN_IF_ERROR(claim(file, what, false));
  return {};
}

Status FileClaims::reads(const std::string& path, const std::string& what) {
  return without_exceptions(path, [&]() -> Status {
    ISOBIT_RETURN_IF_ERROR(claim(path, what, false));
    if (!identity_of(path)) return {};  // what a pipe holds is for whoever loads it
    if (!is_index_name(path)) return claim_external_files(path, what);
    const auto content = read_file(path);
    if (!content.ok()) return {};  // whoever loads it says why
    const std::string_view text(reinterpret_cast<const char*>(content->data()), content->size());
    const auto shards = list_shards(text, path);
    if (!shards.ok()) return {};
    for (const auto& [shard, tensors] : *shards)
      ISOBIT_RETURN_IF_ERROR(claim((fs::path(path).parent_path() / shard).string(), what, false));
    return {};
  });
}

Status FileClaims::writes(const std::string& path, const std::string& what) {
  return without_exceptions(path, [&] { return claim(path, what, true); });
}

}  // namespace isobit
