// SPDX-License-Identifier: Apache-2.0
// Arrays, files on disk, and round trips of random content.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <limits>

#include "io/test_files.h"

namespace isobit {
namespace {

const std::string kOld = "old content";

std::string content_of(const std::string& path) {
  const Result<std::vector<std::byte>> content = read_file(path);
  return content.ok() ? as_string(*content) : "error: " + content.status().message();
}

Status write(const std::string& path, const std::string& content) {
  return write_file_atomically(path, content.data(), content.size());
}

TEST(Array, ConvertsEveryDtypeToFloat) {
  const auto floats = [](auto... values) {
    using T = std::common_type_t<decltype(values)...>;
    const T list[] = {values...};
    return Array::copy_of(list, {static_cast<int64_t>(sizeof...(values))}).to_float();
  };
  using Floats = std::vector<float>;
  EXPECT_EQ(floats(int8_t{-128}, int8_t{127}), (Floats{-128, 127}));
  EXPECT_EQ(floats(uint8_t{255}), Floats{255});
  EXPECT_EQ(floats(int16_t{-32768}), Floats{-32768});
  EXPECT_EQ(floats(uint16_t{65535}), Floats{65535});
  EXPECT_EQ(floats(int32_t{16777217}, int32_t{16777219}), (Floats{16777216, 16777220}));  // ties to even
  EXPECT_EQ(floats(uint32_t{4294967295}), Floats{4294967296});
  EXPECT_EQ(floats(INT64_MIN, INT64_MAX), (Floats{-0x1p63f, 0x1p63f}));
  EXPECT_EQ(floats(1.5f, -0.0f), (Floats{1.5f, -0.0f}));
  EXPECT_EQ(floats(1 + 0x1p-24, 1 + 0x3p-24, 1 + 0x1.000001p-24, 0x1p-150, 1e300),
            (Floats{1, 1 + 0x1p-22f, 1 + 0x1p-23f, 0, std::numeric_limits<float>::infinity()}));
  EXPECT_TRUE(std::isnan(floats(std::nan(""))[0]));
  Array half = Array::zeros(Dtype::kF16, {3});
  half.data<uint16_t>()[0] = 0x3c00;
  half.data<uint16_t>()[1] = 0x8001;
  EXPECT_EQ(half.to_float(), (Floats{1, -0x1p-24f, 0}));
  half.dtype = Dtype::kBF16;
  EXPECT_EQ(half.to_float(), (Floats{0x1p-7f, -0x1p-133f, 0}));
  EXPECT_TRUE(Array::zeros(Dtype::kF64, {0, 5}).to_float().empty());
}

TEST(Array, SizeOfNoDimensionsIsOne) {
  EXPECT_EQ(iota_f32({}).size(), 1);
  EXPECT_EQ(iota_f32({}).bytes.size(), 4U);
  EXPECT_EQ(iota_f32({2, 3}).size(), 6);
  EXPECT_EQ(iota_f32({2, 0, 3}).size(), 0);
}

TEST(LoadArrays, RecognisesFilesByContent) {
  const TemporaryFolder folder;
  const std::string path = folder.file("no_extension");
  ASSERT_TRUE(save_npy(path, iota_f32({2, 3})).ok());
  EXPECT_EQ(load_arrays(path)->arrays, (std::map<std::string, Array>{{"", iota_f32({2, 3})}}));
  ASSERT_TRUE(save_npz(path, {{"a", iota_f32({2})}}).ok());
  EXPECT_EQ(load_arrays(path)->arrays, (std::map<std::string, Array>{{"a", iota_f32({2})}}));
  ASSERT_TRUE(save_npz(path, {}).ok());
  EXPECT_TRUE(load_arrays(path)->arrays.empty());
  const ArrayFile file{{{"a", iota_f32({4})}}, {{"k", "v"}}};
  ASSERT_TRUE(save_safetensors(path, file).ok());
  EXPECT_EQ(*load_arrays(path), file);
  EXPECT_EQ(folder.count(), 1U);

  for (const std::string& other : {std::string("text"), std::string(9, '\0')}) {
    ASSERT_TRUE(write(path, other).ok());
    const Result<ArrayFile> refused = load_arrays(path);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidFile);
    EXPECT_EQ(refused.status().message().rfind(path + ": neither npy nor npz nor safetensors nor GGUF", 0), 0U);
  }
}

TEST(LoadArrays, NamesWhatCannotBeRead) {
  const TemporaryFolder folder;
  const Status missing = load_arrays(folder.file("missing.npz")).status();
  EXPECT_EQ(missing.code(), StatusCode::kIo);
  EXPECT_EQ(missing.message(), folder.file("missing.npz") + ": cannot open: No such file or directory");
  const Status directory = load_arrays(folder.file("")).status();
  EXPECT_EQ(directory.code(), StatusCode::kIo);
  EXPECT_EQ(directory.message(), folder.file("") + ": is a folder; give a file");
  for (const char* name : {"a.npz", "m.safetensors.index.json", "config.json"})
    ASSERT_TRUE(write_file_atomically(folder.file(name), "", 0).ok());
  EXPECT_EQ(load_arrays(folder.file("")).status().message(),
            folder.file("") + ": is a folder; give a file of it, such as " + folder.file("m.safetensors.index.json"));
}

TEST(ReadFile, ReadsFilesWithoutASize) {
  EXPECT_NE(content_of("/proc/self/stat").find("io_test"), std::string::npos);
  EXPECT_EQ(content_of("/dev/null"), "");
}

TEST(ReadFile, ReadsSizesAroundItsChunk) {
  const TemporaryFolder folder;
  for (const size_t size : {0, 1, 1 << 20, (1 << 20) + 1, 3000000}) {
    std::string content(size, '\0');
    for (size_t i = 0; i < size; ++i) content[i] = static_cast<char>(i * 7919 >> 3);
    ASSERT_TRUE(write(folder.file("f"), content).ok());
    EXPECT_TRUE(content_of(folder.file("f")) == content) << size;
  }
}

TEST(WriteFile, ReplacesContentAndKeepsPermissions) {
  const TemporaryFolder folder;
  const std::string path = folder.file("f");
  ASSERT_TRUE(write(path, kOld).ok());
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  ASSERT_TRUE(write(path, "new").ok());
  EXPECT_EQ(content_of(path), "new");
  struct stat status = {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0640U);
  EXPECT_EQ(folder.count(), 1U);
}

TEST(WriteFile, GivesNewFilesThePermissionsOfTheUmask) {
  const TemporaryFolder folder;
  const mode_t old_mask = ::umask(027);
  ASSERT_TRUE(write(folder.file("f"), "new").ok());
  ::umask(old_mask);
  struct stat status = {};
  ASSERT_EQ(::stat(folder.file("f").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0640U);
}

TEST(WriteFile, FollowsALinkAndKeepsDevices) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write(folder.file("target"), kOld).ok());
  ASSERT_EQ(::symlink("target", folder.file("link").c_str()), 0);
  ASSERT_TRUE(write(folder.file("link"), "new").ok());
  EXPECT_EQ(content_of(folder.file("target")), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
  // A link that points to /dev/null, so that a mistake replaces the link only.
  ASSERT_EQ(::symlink("/dev/null", folder.file("null").c_str()), 0);
  ASSERT_TRUE(write(folder.file("null"), "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("null")));
  EXPECT_EQ(folder.count(), 3U);
}

TEST(WriteFile, NamesWhatCannotBeWritten) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write(folder.file("f"), kOld).ok());
  for (const char* name : {"missing/f", "f/f", "", "missing/"}) {
    const Status status = save_npy(folder.file(name), iota_f32({2}));
    EXPECT_EQ(status.code(), StatusCode::kIo) << name;
    EXPECT_EQ(status.message().rfind(folder.file(name) + ": cannot ", 0), 0U) << status.message();
  }
  EXPECT_EQ(write("", "x").code(), StatusCode::kIo);
  EXPECT_EQ(content_of(folder.file("f")), kOld);
  EXPECT_EQ(folder.count(), 1U);
}

// A limit on the size of a file stands for a full disk: it also stops root.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit old_ = {};
};

TEST(WriteFile, LeavesTheOldFileWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  const std::string path = folder.file("f");
  ASSERT_TRUE(write(path, kOld).ok());
  const Array large = Array::zeros(Dtype::kF32, {10000});
  Status statuses[4];
  {
    const FileSizeLimit limit(4096);
    statuses[0] = write(path, std::string(4097, 'x'));
    statuses[1] = save_npy(path, large);
    statuses[2] = save_npz(path, {{"a", large}});
    statuses[3] = save_safetensors(folder.file("new"), {{{"a", large}}, {}});
  }
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), StatusCode::kIo);
    EXPECT_NE(status.message().find(": cannot write: File too large"), std::string::npos) << status.message();
  }
  EXPECT_EQ(content_of(path), kOld);
  EXPECT_EQ(folder.count(), 1U);
}

// Named functions instead of rc::Arbitrary: only these tests need them.
rc::Gen<Array> arrays(bool with_bfloat16) {
  return rc::gen::exec([with_bfloat16] {
    auto dtype = static_cast<Dtype>(*rc::gen::inRange(0, static_cast<int>(Dtype::kF64) + 1));
    if (dtype == Dtype::kBF16 && !with_bfloat16) dtype = Dtype::kF16;
    std::vector<int64_t> shape(static_cast<size_t>(*rc::gen::inRange(0, 5)));
    for (int64_t& dimension : shape) dimension = *rc::gen::inRange<int64_t>(0, 5);
    Array array = Array::zeros(dtype, shape);
    for (std::byte& byte : array.bytes) byte = static_cast<std::byte>(*rc::gen::arbitrary<uint8_t>());
    return array;
  });
}

rc::Gen<std::map<std::string, Array>> named_arrays(bool with_bfloat16) {
  const auto name = rc::gen::container<std::string>(rc::gen::inRange<char>(' ', 127));
  return rc::gen::container<std::map<std::string, Array>>(name, arrays(with_bfloat16));
}

TEST(Properties, NpyRoundTrips) {
  EXPECT_TRUE(rc::check([] {
    const Array array = *arrays(false);
    const auto content = encode_npy(array, "out");
    RC_ASSERT(content.ok());
    RC_ASSERT(*parse_npy(content->data(), content->size(), "again") == array);
  }));
}

TEST(Properties, NpzRoundTrips) {
  EXPECT_TRUE(rc::check([] {
    const std::map<std::string, Array> content = *named_arrays(false);
    const auto bytes = encode_npz(content, "out");
    RC_ASSERT(bytes.ok());
    RC_ASSERT(parse_npz(bytes->data(), bytes->size(), "again")->arrays == content);
  }));
}

TEST(Properties, SafetensorsRoundTrips) {
  EXPECT_TRUE(rc::check([] {
    ArrayFile file;
    file.arrays = *named_arrays(true);
    const auto text = rc::gen::container<std::string>(rc::gen::inRange<char>(0, 127));
    file.metadata = *rc::gen::container<std::map<std::string, std::string>>(text, text);
    const auto bytes = encode_safetensors(file, "out");
    RC_ASSERT(bytes.ok());
    RC_ASSERT(*parse_safetensors(bytes->data(), bytes->size(), "again") == file);
  }));
}

}  // namespace
}  // namespace isobit
