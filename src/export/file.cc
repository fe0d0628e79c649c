// SPDX-License-Identifier: Apache-2.0
// The export of a file, and as files: all of them, or none.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "isobit/export.h"

namespace isobit {
namespace {

namespace fs = std::filesystem;

Status io_error(const std::string& path, const std::error_code& error) {
  return {StatusCode::kIo, path + ": " + error.message()};
}

}  // namespace

Result<CExport> export_c(const ArrayReader& file, std::string_view layer, const CExportOptions& options) {
  if (file.kind() == FileKind::kStaticLinear) {
    ISOBIT_ASSIGN_OR_RETURN(const StaticLinearLayer linear, StaticLinearLayer::load(file, layer));
    return export_c(linear, options);
  }
  if (file.kind() == FileKind::kStaticConv) {
    ISOBIT_ASSIGN_OR_RETURN(const StaticConvLayer conv, StaticConvLayer::load(file, layer));
    return export_c(conv, options);
  }
  if (file.kind() == FileKind::kFp16Table) {
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, load_fp16_table(file));
    return export_c(table, options);
  }
  ISOBIT_ASSIGN_OR_RETURN(const GruModel model, GruModel::load(file, layer));
  return export_c(model, options);
}

Status write_c_export(const CExport& code, const std::string& folder, bool force) {
  std::error_code error;
  const fs::path path(folder);
  if (folder.empty()) return {StatusCode::kInvalidArgument, "the folder has no name; give one that does not exist"};
  const bool exists = fs::exists(path, error);
  if (exists && !fs::is_directory(path, error))
    return {StatusCode::kInvalidArgument, folder + ": is no folder; give one that does not exist, or an empty one"};
  if (exists && !force && !fs::is_empty(path, error) && !error)
    return {StatusCode::kInvalidArgument,
            folder + ": is not empty, and nothing is overwritten without --force; give another folder"};
  if (error) return io_error(folder, error);
  for (const ExportedFile& file : code.files) {
    const fs::path to = path / file.name;
    if (fs::exists(to, error) && !fs::is_regular_file(to, error))
      return {StatusCode::kInvalidArgument,
              to.string() + ": is no file, so it cannot be replaced; give another folder"};
  }
  fs::create_directories(path, error);
  if (error) return io_error(folder, error);
  // All files in a folder of their own first: a full disk leaves what was there.
  std::string pattern = (path / ".isobit-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) return {StatusCode::kIo, folder + ": " + std::strerror(errno)};
  const fs::path beside(pattern);
  const auto give_up = [&](Status status) {
    std::error_code ignored;
    fs::remove_all(beside, ignored);
    if (!exists) fs::remove(path, ignored);
    return status;
  };
  for (const ExportedFile& file : code.files) {
    std::ofstream out(beside / file.name, std::ios::binary);
    out << file.text;
    out.close();
    if (!out) return give_up({StatusCode::kIo, (path / file.name).string() + ": cannot be written"});
  }
  for (const ExportedFile& file : code.files) {
    fs::rename(beside / file.name, path / file.name, error);
    if (error) return give_up(io_error((path / file.name).string(), error));
  }
  fs::remove(beside, error);
  return {};
}

}  // namespace isobit
