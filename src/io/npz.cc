// SPDX-License-Identifier: Apache-2.0
// .npz: a zip archive of .npy files. libzip handles zip64, data descriptors and checksums.
#include <zip.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "io/container.h"

namespace isobit {

namespace {

constexpr std::string_view kSuffix = ".npy";
constexpr uint64_t kChunk = uint64_t{1} << 20;
constexpr size_t kSmallestArchive = 22;  // the record that ends the directory, and nothing else

struct ZipError {
  zip_error_t error;

  ZipError() { zip_error_init(&error); }
  ~ZipError() { zip_error_fini(&error); }
  ZipError(const ZipError&) = delete;
  ZipError& operator=(const ZipError&) = delete;
  std::string text() { return zip_error_strerror(&error); }
};

struct Discard {
  void operator()(zip_t* archive) const { zip_discard(archive); }
  void operator()(zip_file_t* file) const { zip_fclose(file); }
  void operator()(zip_source_t* source) const { zip_source_free(source); }
};
using Archive = std::unique_ptr<zip_t, Discard>;
using EntryFile = std::unique_ptr<zip_file_t, Discard>;
using Source = std::unique_ptr<zip_source_t, Discard>;

Status invalid(const std::string& name, const std::string& text) {
  return {StatusCode::kInvalidFile, name + ": " + text};
}

// Unpacks one entry. The size in the directory is a claim: memory grows with what is really unpacked.
Result<std::vector<std::byte>> unpack(zip_t* archive, zip_uint64_t index, uint64_t claimed_size,
                                      const std::string& what) {
  const EntryFile file(zip_fopen_index(archive, index, 0));
  if (!file) return invalid(what, std::string("cannot be unpacked: ") + zip_strerror(archive));
  std::vector<std::byte> content;
  for (;;) {
    const size_t old_size = content.size();
    // The byte after the claimed size must be absent; reading to the end also makes libzip compare the checksum.
    content.resize(old_size + static_cast<size_t>(std::min(kChunk - 1, claimed_size - old_size) + 1));
    const zip_int64_t count = zip_fread(file.get(), content.data() + old_size, content.size() - old_size);
    if (count < 0) {
      return invalid(what, std::string("cannot be unpacked: ") + zip_error_strerror(zip_file_get_error(file.get())));
    }
    content.resize(old_size + static_cast<size_t>(count));
    if (content.size() > claimed_size || (count == 0 && content.size() < claimed_size)) {
      return invalid(what, "unpacks to " + std::string(count == 0 ? "" : "at least ") + std::to_string(content.size()) +
                               " bytes, but the zip directory says " + std::to_string(claimed_size));
    }
    if (count == 0) return content;
  }
}

// The header of the npy in an entry, without what follows it.
Result<NpyHeader> read_header(zip_t* archive, zip_uint64_t index, uint64_t claimed_size, const std::string& what) {
  const EntryFile file(zip_fopen_index(archive, index, 0));
  if (!file) return invalid(what, std::string("cannot be unpacked: ") + zip_strerror(archive));
  std::string text;
  const auto read_until = [&](uint64_t end) -> Status {
    while (text.size() < end) {
      const size_t old_size = text.size();
      text.resize(old_size + static_cast<size_t>(std::min(end - old_size, kChunk)));
      const zip_int64_t count = zip_fread(file.get(), text.data() + old_size, text.size() - old_size);
      text.resize(old_size + static_cast<size_t>(std::max<zip_int64_t>(count, 0)));
      if (count < 0)
        return invalid(what, std::string("cannot be unpacked: ") + zip_error_strerror(zip_file_get_error(file.get())));
      if (count == 0) break;
    }
    return {};
  };
  ISOBIT_RETURN_IF_ERROR(read_until(std::min<uint64_t>(kNpyPreambleBytes, claimed_size)));
  ISOBIT_ASSIGN_OR_RETURN(const uint64_t header_bytes, npy_header_bytes(text, claimed_size, what));
  ISOBIT_RETURN_IF_ERROR(read_until(header_bytes));
  if (text.size() < header_bytes) return invalid(what, "ends inside the npy header");
  return parse_npy_header(text, claimed_size, what);
}

class NpzContainer : public Container {
 public:
  NpzContainer(SharedContent content, Archive archive) : content_(std::move(content)), archive_(std::move(archive)) {}

  Status read_directory() {
    const zip_int64_t count = zip_get_num_entries(archive_.get(), 0);
    for (zip_uint64_t i = 0; i < static_cast<zip_uint64_t>(count); ++i) ISOBIT_RETURN_IF_ERROR(add_entry(i));
    if (has_array_ || entries.empty()) return finish(content_->name());
    std::vector<std::string> names;
    for (const ArrayEntry& entry : entries) names.push_back(entry.name);
    const FileKind kind = kind_of_archive(names);
    if (kind != FileKind::kZip) return refuse_kind(kind, *content_);
    return invalid(content_->name(),
                   "zip entry " + in_quotes(names[0]) + " is not an array (.npy), and none of the others is one");
  }

  [[nodiscard]] Result<Array> read(size_t index) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::string what = label(entries[index].name);
    zip_stat_t entry;
    if (zip_stat_index(archive_.get(), places[index], 0, &entry) != 0) return invalid(what, "is damaged");
    ISOBIT_ASSIGN_OR_RETURN(const std::vector<std::byte> content,
                            unpack(archive_.get(), places[index], entry.size, what));
    return parse_npy(content.data(), content.size(), what);
  }

 private:
  [[nodiscard]] std::string label(const std::string& array) const {
    return content_->name() + ": array " + in_quotes(array);
  }

  Status add_entry(zip_uint64_t index) {
    zip_stat_t entry;
    constexpr zip_uint64_t kWanted = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    if (zip_stat_index(archive_.get(), index, 0, &entry) != 0 || (entry.valid & kWanted) != kWanted) {
      return invalid(content_->name(), "zip entry " + std::to_string(index) + " is damaged");
    }
    std::string name = entry.name;
    if (name.ends_with('/')) return {};  // a folder
    const bool is_array = name.ends_with(kSuffix);
    if (is_array) name.resize(name.size() - kSuffix.size());
    const std::string what = label(name);
    NpyHeader header;
    const auto refuse = [&header](std::string type, const std::string& why) {
      header.type = std::move(type);
      header.refusal = {StatusCode::kUnsupported, why};
    };
    if (!is_array) {
      refuse("no npy", content_->name() + ": zip entry " + in_quotes(name) + " is not an array (.npy)");
    } else if (entry.encryption_method != ZIP_EM_NONE) {
      refuse("encrypted", what + " is encrypted");
    } else if (entry.comp_method != ZIP_CM_STORE && entry.comp_method != ZIP_CM_DEFLATE) {
      const std::string method = "zip compression method " + std::to_string(entry.comp_method);
      refuse(method, what + ": " + method + "; known are 0 (stored) and 8 (deflated)");
    } else {
      ISOBIT_ASSIGN_OR_RETURN(header, read_header(archive_.get(), index, entry.size, what));
    }
    has_array_ = has_array_ || is_array;
    add({std::move(name), std::move(header.type), header.dtype, std::move(header.shape),
         entry.size - header.size_bytes},
        std::move(header.refusal), index);
    return {};
  }

  SharedContent content_;
  Archive archive_;           // reads content_
  mutable std::mutex mutex_;  // of archive_
  bool has_array_ = false;
};

/// `content` is in memory, and must outlive the archive.
Result<Archive> open_archive(const FileContent& content) {
  const std::string& name = content.name();
  // libzip takes no bytes at all for an archive without entries.
  if (content.size_bytes() < kSmallestArchive) return invalid(name, "not a whole zip archive: it is too short");
  ZipError error;
  Source source(zip_source_buffer_create(content.data(), content.size_bytes(), 0, &error.error));
  if (!source) return invalid(name, error.text());
  Archive archive(zip_open_from_source(source.get(), ZIP_RDONLY | ZIP_CHECKCONS, &error.error));
  if (!archive) {
    const bool twice = zip_error_code_zip(&error.error) == ZIP_ER_EXISTS;
    if (twice) return invalid(name, "two arrays have the same name");
    const bool cut = zip_error_code_zip(&error.error) == ZIP_ER_NOZIP;  // kind_of() has seen how it begins
    return invalid(name, "not a whole zip archive: " + error.text() +
                             (cut ? "; the file is cut short: it has " + std::to_string(content.size_bytes()) +
                                        " bytes, and the directory after the last array is missing"
                                  : ""));
  }
  (void)source.release();  // the archive owns it now
  return archive;
}

Result<SharedContainer> open(const SharedContent& content) {
  ISOBIT_ASSIGN_OR_RETURN(SharedContent whole, FileContent::load(content));
  ISOBIT_ASSIGN_OR_RETURN(Archive archive, open_archive(*whole));
  const auto container = std::make_shared<NpzContainer>(std::move(whole), std::move(archive));
  ISOBIT_RETURN_IF_ERROR(container->read_directory());
  return SharedContainer(container);
}

Status write_entry(zip_t* archive, const std::string& name, const std::vector<std::byte>& content,
                   const std::string& what) {
  const auto failed = [&] { return Status(StatusCode::kInvalidArgument, what + ": " + zip_strerror(archive)); };
  Source source(zip_source_buffer(archive, content.data(), content.size(), 0));
  if (!source) return failed();
  const zip_int64_t index =
      zip_file_add(archive, (name + std::string(kSuffix)).c_str(), source.get(), ZIP_FL_ENC_UTF_8);
  if (index < 0) return failed();
  (void)source.release();  // the archive owns it now
  const auto entry = static_cast<zip_uint64_t>(index);
  constexpr zip_uint16_t kFirstOfJanuary1980 = 1 << 5 | 1;  // a fixed date, for the same bytes every time
  if (zip_set_file_compression(archive, entry, ZIP_CM_STORE, 0) != 0 ||
      zip_file_set_dostime(archive, entry, 0, kFirstOfJanuary1980, 0) != 0) {
    return failed();
  }
  return {};
}

Result<std::vector<std::byte>> encode(const std::map<std::string, Array>& arrays, const std::string& what) {
  if (arrays.empty()) {  // libzip would write no archive at all
    std::vector<std::byte> content(kSmallestArchive);
    std::memcpy(content.data(), "PK\x05\x06", 4);
    return content;
  }
  ZipError error;
  const Source sink(zip_source_buffer_create(nullptr, 0, 0, &error.error));
  if (!sink) return Status(StatusCode::kIo, what + ": " + error.text());
  Archive archive(zip_open_from_source(sink.get(), ZIP_CREATE | ZIP_TRUNCATE, &error.error));
  if (!archive) return Status(StatusCode::kIo, what + ": " + error.text());
  zip_source_keep(sink.get());  // `sink` and the archive each hold a reference

  std::vector<std::vector<std::byte>> contents;  // libzip reads them in zip_close
  contents.reserve(arrays.size());
  for (const auto& [name, array] : arrays) {
    const std::string entry = what + ": array " + in_quotes(name);
    // libzip would cut the name at either of these, and refuses other control characters and broken UTF-8.
    if (name.find('\0') != std::string::npos || name.size() + kSuffix.size() > UINT16_MAX) {
      return Status(StatusCode::kInvalidArgument, entry + ": a name in an npz has no zero byte and at most " +
                                                      std::to_string(UINT16_MAX - kSuffix.size()) + " bytes");
    }
    ISOBIT_ASSIGN_OR_RETURN(std::vector<std::byte> content, encode_npy(array, entry));
    contents.push_back(std::move(content));
    ISOBIT_RETURN_IF_ERROR(write_entry(archive.get(), name, contents.back(), entry));
  }
  if (zip_close(archive.get()) != 0) return Status(StatusCode::kIo, what + ": " + zip_strerror(archive.get()));
  (void)archive.release();  // zip_close freed it

  zip_stat_t whole;
  if (zip_source_stat(sink.get(), &whole) != 0 || (whole.valid & ZIP_STAT_SIZE) == 0 ||
      zip_source_open(sink.get()) != 0) {
    return Status(StatusCode::kIo, what + ": " + zip_error_strerror(zip_source_error(sink.get())));
  }
  std::vector<std::byte> content(whole.size);
  const zip_int64_t count = zip_source_read(sink.get(), content.data(), content.size());
  zip_source_close(sink.get());
  if (count < 0 || static_cast<size_t>(count) != content.size()) {
    return Status(StatusCode::kIo, what + ": " + zip_error_strerror(zip_source_error(sink.get())));
  }
  return content;
}

}  // namespace

Result<SharedContainer> open_npz(const SharedContent& content) { return open(content); }

Result<std::vector<std::string>> names_in_archive(const SharedContent& content) {
  ISOBIT_ASSIGN_OR_RETURN(const SharedContent whole, FileContent::load(content));
  ISOBIT_ASSIGN_OR_RETURN(const Archive archive, open_archive(*whole));
  std::vector<std::string> names;
  const zip_int64_t count = zip_get_num_entries(archive.get(), 0);
  for (zip_uint64_t i = 0; i < static_cast<zip_uint64_t>(count); ++i) {
    const char* name = zip_get_name(archive.get(), i, 0);
    if (name != nullptr) names.emplace_back(name);
  }
  return names;
}

Result<ArrayFile> parse_npz(const void* data, size_t size_bytes, const std::string& name) {
  return without_exceptions(name, [&]() -> Result<ArrayFile> {
    ISOBIT_ASSIGN_OR_RETURN(const SharedContainer container, open(FileContent::view(data, size_bytes, name)));
    return read_all(*container);
  });
}

Result<std::vector<std::byte>> encode_npz(const std::map<std::string, Array>& arrays, const std::string& what) {
  return without_exceptions(what, [&] { return encode(arrays, what); });
}

}  // namespace isobit
