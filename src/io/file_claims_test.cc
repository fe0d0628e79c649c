// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "io/test_files.h"
#include "isobit/arrays.h"
#include "isobit/files.h"

namespace isobit {
namespace {

namespace fs = std::filesystem;

class FileClaimsTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_.file(name); }
  std::string write(const std::string& name, const std::string& text = "content") const {
    EXPECT_TRUE(write_file_atomically(at(name), text.data(), text.size()).ok());
    return at(name);
  }
  /// Whether the second path is refused, whichever of the two is written.
  static void expect_same(const std::string& first, const std::string& second) {
    for (const bool first_written : {false, true}) {
      FileClaims claims;
      ASSERT_TRUE((first_written ? claims.writes(first, "-o") : claims.reads(first, "MODEL")).ok());
      const Status status = first_written ? claims.reads(second, "MODEL") : claims.writes(second, "-o");
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << first << " " << second;
      EXPECT_TRUE(status.message().starts_with("-o ")) << status.message();
      EXPECT_NE(status.message().find("MODEL"), std::string::npos) << status.message();
    }
    FileClaims claims;
    ASSERT_TRUE(claims.writes(first, "-o").ok());
    EXPECT_FALSE(claims.writes(second, "--svg").ok()) << first << " " << second;
  }
  static void expect_different(const std::string& first, const std::string& second) {
    FileClaims claims;
    EXPECT_TRUE(claims.writes(first, "-o").ok());
    EXPECT_TRUE(claims.writes(second, "--svg").ok()) << first << " " << second;
  }

  TemporaryFolder folder_;
};

TEST_F(FileClaimsTest, OneFileUnderManyNames) {
  const std::string file = write("a.npz"), other = write("b.npz");
  fs::create_directory(at("folder"));
  fs::create_symlink("a.npz", at("link"));
  fs::create_symlink(".", at("here"));
  fs::create_hard_link(file, at("hard"));
  for (const char* name : {"a.npz", "./a.npz", "folder/../a.npz", "link", "here/a.npz", "here/here/link", "hard"})
    expect_same(file, at(name));
  expect_different(file, other);
}

TEST_F(FileClaimsTest, FilesThatDoNotExistYet) {
  fs::create_directory(at("folder"));
  fs::create_symlink("folder", at("link"));
  fs::create_symlink("new.npz", at("dangling"));
  fs::create_symlink(at("folder/../dangling"), at("dangling_twice"));
  fs::create_symlink("loop", at("loop"));
  for (const char* name : {"new.npz", "./new.npz", "folder/../new.npz", "dangling", "link/../dangling_twice"})
    expect_same(at("new.npz"), at(name));
  expect_same(at("folder/x"), at("link/x"));
  expect_same(at("no_folder/x"), at("no_folder/y/../x"));
  expect_different(at("new.npz"), at("new.npy"));
  expect_different(at("new.npz"), at("folder/new.npz"));
  expect_different(at("new.npz"), at("loop"));
  // What is refused is what would be written: the target of a link, not the link.
  write("dangling");
  EXPECT_TRUE(fs::is_symlink(at("dangling")));
  EXPECT_TRUE(fs::exists(at("new.npz")));
}

TEST_F(FileClaimsTest, InputsMayBeReadTwiceAndDevicesWritten) {
  const std::string file = write("a.npz"), pipe = at("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  FileClaims claims;
  for (const char* what : {"MODEL", "--calibrate"}) {
    EXPECT_TRUE(claims.reads(file, what).ok());
    EXPECT_TRUE(claims.writes("/dev/null", what).ok());
    EXPECT_TRUE(claims.writes(pipe, what).ok());
  }
  const Status status = claims.writes(at("./a.npz"), "-o");
  EXPECT_NE(status.message().find("MODEL " + file), std::string::npos) << status.message();
}

TEST_F(FileClaimsTest, FilesOfAnIndex) {
  const std::string index = write("model.safetensors.index.json", R"({"weight_map": {"a": "1.st", "b": "2.st"}})");
  write("1.st");
  FileClaims claims;
  EXPECT_TRUE(claims.reads(index, "MODEL").ok());
  for (const char* name : {"1.st", "2.st", "model.safetensors.index.json"})
    EXPECT_FALSE(claims.writes(at(name), "-o").ok()) << name;
  EXPECT_TRUE(claims.writes(at("3.st"), "-o").ok());
  const std::string broken = write("broken.safetensors.index.json", "{");
  EXPECT_TRUE(claims.reads(broken, "MODEL").ok());
  EXPECT_FALSE(claims.writes(broken, "-o").ok());
}

}  // namespace
}  // namespace isobit
