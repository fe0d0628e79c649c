// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of io.
#ifndef ISOBIT_IO_TEST_FILES_H_
#define ISOBIT_IO_TEST_FILES_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/container.h"

namespace isobit {

/// Bytes of a hexadecimal text.
inline std::string from_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return out;
}

inline std::string as_string(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Little-endian.
inline std::string number(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

inline Array iota_f32(std::vector<int64_t> shape) {
  Array array = Array::zeros(Dtype::kF32, std::move(shape));
  for (int64_t i = 0; i < array.size(); ++i) array.data<float>()[i] = static_cast<float>(i);
  return array;
}

/// An empty folder that goes away with the test.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_((std::filesystem::temp_directory_path() / "isobit_io_XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "cannot create " << path_;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] size_t count() const {
    size_t files = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++files;
    return files;
  }

 private:
  std::string path_;
};

inline void expect_consistent(const Array& array) {
  EXPECT_EQ(array_size_bytes(array.dtype, array.shape), array.bytes.size());
}

inline void expect_consistent(const ArrayFile& file) {
  for (const auto& [name, array] : file.arrays) expect_consistent(array);
}

/// Cuts `valid` everywhere, and sets each byte to each of 256 values: a Status or consistent arrays, and every cut is
/// refused. The copies are exactly as long as the content, so a sanitizer sees any read past the end.
template <typename Parse>
void expect_damage_is_survived(const std::string& valid, Parse parse) {
  ASSERT_TRUE(parse(valid.data(), valid.size(), "valid").ok());
  for (size_t size = 0; size < valid.size(); ++size) {
    const std::vector<char> cut(valid.begin(), valid.begin() + static_cast<ptrdiff_t>(size));
    const auto result = parse(cut.data(), cut.size(), "cut");
    EXPECT_FALSE(result.ok()) << size << " bytes";
    EXPECT_EQ(result.status().message().rfind("cut: ", 0), 0U) << result.status().message();
  }
  std::vector<char> damaged(valid.begin(), valid.end());
  for (char& byte : damaged) {
    const char original = byte;
    for (int value = 0; value < 256; ++value) {
      byte = static_cast<char>(value);
      const auto result = parse(damaged.data(), damaged.size(), "damaged");
      if (result.ok()) {
        expect_consistent(*result);
      } else {
        EXPECT_FALSE(result.status().message().empty());
      }
    }
    byte = original;
  }
}

}  // namespace isobit

#endif  // ISOBIT_IO_TEST_FILES_H_
