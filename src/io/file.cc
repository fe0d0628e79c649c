// SPDX-License-Identifier: Apache-2.0
// Whole files in and out. POSIX, because fsync and O_EXCL are needed for the promise that a file is never half-written.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "io/container.h"

namespace isobit {

namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { close(); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  [[nodiscard]] int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  int close() {
    const int fd = release();
    return fd >= 0 ? ::close(fd) : 0;
  }

 private:
  int fd_;
};

Status io_error(const std::string& path, const char* what, int error) {
  return {StatusCode::kIo, path + ": " + what + ": " + std::generic_category().message(error)};
}

Status write_all(int fd, const void* data, size_t size_bytes, const std::string& path) {
  const char* rest = static_cast<const char*>(data);
  while (size_bytes > 0) {
    const ssize_t written = ::write(fd, rest, size_bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      return io_error(path, "cannot write", errno);
    }
    rest += written;
    size_bytes -= static_cast<size_t>(written);
  }
  return {};
}

// A temporary file beside `path`, removed unless it was renamed to it. Opened with O_EXCL instead of mkstemp, so that
// the file gets the permissions that the user's umask gives.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& path) : fd_(create(path.parent_path())) {
    error_ = fd_.get() < 0 ? errno : 0;
  }
  ~TemporaryFile() {
    if (error_ == 0 && !renamed_) ::unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  [[nodiscard]] int error() const { return error_; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  int close() { return fd_.close(); }
  int rename_to(const std::filesystem::path& path) {
    const int result = ::rename(name_.c_str(), path.c_str());
    renamed_ = result == 0;
    return result;
  }

 private:
  int create(const std::filesystem::path& folder) {
    static std::atomic<uint64_t> counter{0};
    for (;;) {
      name_ = folder / (".isobit." + std::to_string(::getpid()) + "." + std::to_string(counter++) + ".tmp");
      const int fd = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (fd >= 0 || errno != EEXIST) return fd;  // EEXIST: left by a process that was killed
    }
  }

  std::filesystem::path name_;
  FileDescriptor fd_;
  int error_ = 0;
  bool renamed_ = false;
};

Status write_atomically(const std::string& path, const void* data, size_t size_bytes) {
  const std::filesystem::path target = follow_links(path);  // replace what a symbolic link points to, not the link
  struct stat old = {};
  const bool exists = ::stat(path.c_str(), &old) == 0;
  if (exists && S_ISDIR(old.st_mode)) return io_error(path, "cannot write", EISDIR);
  if (exists && !S_ISREG(old.st_mode)) {  // renaming onto /dev/null or a pipe would replace it
    FileDescriptor device(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (device.get() < 0) return io_error(path, "cannot open for writing", errno);
    ISOBIT_RETURN_IF_ERROR(write_all(device.get(), data, size_bytes, path));
    return device.close() == 0 ? Status() : io_error(path, "cannot close", errno);
  }

  TemporaryFile temporary(target);
  if (temporary.error() != 0) return io_error(path, "cannot create a file in its folder", temporary.error());
  if (exists && ::fchmod(temporary.fd(), old.st_mode & 07777) != 0) {
    return io_error(path, "cannot keep its permissions", errno);
  }
  ISOBIT_RETURN_IF_ERROR(write_all(temporary.fd(), data, size_bytes, path));
  if (::fsync(temporary.fd()) != 0) return io_error(path, "cannot flush", errno);
  if (temporary.close() != 0) return io_error(path, "cannot close", errno);
  if (temporary.rename_to(target) != 0) return io_error(path, "cannot rename the temporary file to it", errno);

  // The new name survives a power cut only once the folder is flushed. The file is whole either way, and some file
  // systems cannot do it, so the result is not checked.
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  const FileDescriptor folder_fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder_fd.get() >= 0) ::fsync(folder_fd.get());
  return {};
}

Result<std::vector<std::byte>> read_all(int fd, const std::string& path) {
  constexpr size_t kChunk = size_t{1} << 20;
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return io_error(path, "cannot read", errno);
  std::vector<std::byte> content;
  // One byte more than the file has, to see its end without growing; pipes and /proc have no size and grow.
  if (S_ISREG(status.st_mode)) content.reserve(static_cast<size_t>(status.st_size) + 1);
  for (;;) {
    const size_t old_size = content.size();
    const size_t room = content.capacity() - old_size;
    content.resize(old_size + (room > 0 ? std::min(room, kChunk) : kChunk));
    const ssize_t count = ::read(fd, content.data() + old_size, content.size() - old_size);
    const int error = errno;
    content.resize(old_size + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0) return content;
    if (count < 0 && error != EINTR) return io_error(path, "cannot read", error);
  }
}

/// Until the end of the file or of `size_bytes`; gives how many bytes there were.
Result<uint64_t> read_at(int fd, uint64_t offset, void* out, uint64_t size_bytes, const std::string& path) {
  uint64_t done = 0;
  while (done < size_bytes) {
    const ssize_t count =
        ::pread(fd, static_cast<std::byte*>(out) + done, size_bytes - done, static_cast<off_t>(offset + done));
    if (count == 0) break;
    if (count < 0 && errno != EINTR) return io_error(path, "cannot read", errno);
    done += static_cast<uint64_t>(std::max<ssize_t>(count, 0));
  }
  return done;
}

}  // namespace

Result<SharedContent> FileContent::open(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return io_error(path, "cannot open", errno);
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) return io_error(path, "cannot read", errno);
  const std::shared_ptr<FileContent> content(new FileContent(path));
  if (S_ISREG(status.st_mode) && status.st_size > 0) {
    content->size_bytes_ = static_cast<uint64_t>(status.st_size);
    content->fd_ = file.release();
    return SharedContent(content);
  }
  ISOBIT_ASSIGN_OR_RETURN(content->own_, read_all(file.get(), path));
  content->data_ = content->own_.data();
  content->size_bytes_ = content->own_.size();
  return SharedContent(content);
}

SharedContent FileContent::view(const void* data, size_t size_bytes, const std::string& name) {
  const std::shared_ptr<FileContent> content(new FileContent(name));
  content->data_ = static_cast<const std::byte*>(data);
  content->size_bytes_ = size_bytes;
  return content;
}

Result<SharedContent> FileContent::load(SharedContent content) {
  if (content->fd_ < 0) return content;
  const std::shared_ptr<FileContent> loaded(new FileContent(content->name_));
  loaded->own_.resize(content->size_bytes_);
  ISOBIT_RETURN_IF_ERROR(content->read(0, loaded->own_.data(), content->size_bytes_));
  loaded->data_ = loaded->own_.data();
  loaded->size_bytes_ = content->size_bytes_;
  return SharedContent(loaded);
}

FileContent::~FileContent() {
  if (fd_ >= 0) ::close(fd_);
}

Status FileContent::read(uint64_t offset, void* out, uint64_t size_bytes) const {
  if (size_bytes == 0) return {};
  if (fd_ < 0) {
    std::memcpy(out, data_ + offset, size_bytes);
    return {};
  }
  ISOBIT_ASSIGN_OR_RETURN(const uint64_t count, read_at(fd_, offset, out, size_bytes, name_));
  if (count == size_bytes) return {};
  return {StatusCode::kIo, name_ + ": became shorter while it was read"};
}

Result<std::string> FileContent::beginning(uint64_t limit) const {
  std::string text(std::min(limit, size_bytes_), '\0');
  ISOBIT_RETURN_IF_ERROR(read(0, text.data(), text.size()));
  return text;
}

std::filesystem::path follow_links(const std::filesystem::path& path) {
  constexpr int kMaxLinks = 40;  // as Linux: then it is a loop, and opening it says so
  std::filesystem::path at = path;
  std::error_code error;
  for (int i = 0; i < kMaxLinks && std::filesystem::is_symlink(at, error); ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(at, error);
    if (error) break;
    at = at.parent_path() / target;  // an absolute target replaces it
  }
  return at;
}

Status write_file_atomically(const std::string& path, const void* data, size_t size_bytes) {
  return without_exceptions(path, [&] { return write_atomically(path, data, size_bytes); });
}

Result<std::vector<std::byte>> read_file(const std::string& path) {
  return without_exceptions(path, [&]() -> Result<std::vector<std::byte>> {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.get() < 0) return io_error(path, "cannot open", errno);
    return read_all(file.get(), path);
  });
}

}  // namespace isobit
