// SPDX-License-Identifier: Apache-2.0
// The export of a file, and as files: all of them, or none.
#include <cerrno>
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
  const bool exists = fs::exists(path, error);
  if (exists && !fs::is_directory(path, error))
    return {StatusCode::kInvalidArgument, folder + ": is no folder; give one that does not exist, or an empty one"};
  if (exists && !force && !fs::is_empty(path, error))
    return {StatusCode::kInvalidArgument,
            folder + ": is not empty, and nothing is overwritten without --force; give another folder"};
  for (const ExportedFile& file : code.files) {
    const fs::path to = path / file.name;
    if (fs::exists(to, error) && !fs::is_regular_file(to, error))
      return {StatusCode::kInvalidArgument,
              to.string() + ": is no file, so it cannot be replaced; give another folder"};
  }
  fs::create_directories(path, error);
  if (error) return io_error(folder, error);
  // Each file beside its place first: a full disk leaves what was there.
  std::vector<std::pair<fs::path, fs::path>> renames;
  const auto remove_all = [&] {
    std::error_code ignored;
    for (const auto& [from, to] : renames) fs::remove(from, ignored);
    if (!exists) fs::remove(path, ignored);
  };
  for (const ExportedFile& file : code.files) {
    const fs::path to = path / file.name, from = path / (file.name + ".isobit_tmp");
    renames.emplace_back(from, to);
    std::ofstream out(from, std::ios::binary | std::ios::trunc);
    out << file.text;
    out.close();
    if (out) continue;
    const std::string message = from.string() + ": cannot be written: " + std::strerror(errno);
    remove_all();
    return {StatusCode::kIo, message};
  }
  for (const auto& [from, to] : renames) {
    fs::rename(from, to, error);
    if (!error) continue;
    const Status status = io_error(to.string(), error);
    remove_all();
    return status;
  }
  return {};
}

}  // namespace isobit
