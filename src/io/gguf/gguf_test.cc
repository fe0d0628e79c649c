// SPDX-License-Identifier: Apache-2.0
// Files made here byte by byte; tests/gguf_test.py compares with the gguf package.
#include "isobit/gguf.h"

#include <cmath>

#include "core/half.h"
#include "io/test_files.h"

namespace isobit {
namespace {

constexpr uint32_t kF32Id = 0, kF16Id = 1, kQ4_0Id = 2, kQ4_1Id = 3, kQ5_0Id = 6, kQ5_1Id = 7, kQ8_0Id = 8;
constexpr uint32_t kQ8_1Id = 9, kQ2_KId = 10, kQ3_KId = 11, kQ4_KId = 12, kQ5_KId = 13, kQ6_KId = 14, kIQ4_NLId = 20;
constexpr uint32_t kI8Id = 24, kBF16Id = 30, kTQ2_0Id = 35;

std::string text(const std::string& content) { return number(content.size(), 8) + content; }

std::string entry(const std::string& key, GgufValueType type, const std::string& value) {
  return text(key) + number(static_cast<uint32_t>(type), 4) + value;
}

std::string list(GgufValueType type, uint64_t count, const std::string& items) {
  return number(static_cast<uint32_t>(type), 4) + number(count, 8) + items;
}

// `dimensions` in the order of the file: rows first.
std::string tensor(const std::string& name, const std::vector<uint64_t>& dimensions, uint32_t type, uint64_t offset) {
  std::string out = text(name) + number(dimensions.size(), 4);
  for (const uint64_t dimension : dimensions) out += number(dimension, 8);
  return out + number(type, 4) + number(offset, 8);
}

struct Content {
  uint32_t version = 3;
  std::vector<std::string> metadata;
  std::vector<std::string> tensors;
  std::string data;
  size_t alignment = 32;

  [[nodiscard]] std::string bytes() const {
    std::string out = "GGUF" + number(version, 4) + number(tensors.size(), 8) + number(metadata.size(), 8);
    for (const std::string& item : metadata) out += item;
    for (const std::string& item : tensors) out += item;
    if (!data.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data;
  }
};

Result<GgufFile> view(const std::string& content) {
  return GgufFile::view(content.data(), content.size(), "test.gguf");
}

void expect_refused(const std::string& content, const std::string& message,
                    StatusCode code = StatusCode::kInvalidFile) {
  const Result<GgufFile> file = view(content);
  ASSERT_FALSE(file.ok()) << message;
  EXPECT_EQ(file.status().code(), code) << file.status().message();
  EXPECT_NE(file.status().message().find(message), std::string::npos) << file.status().message();
  EXPECT_EQ(file.status().message().rfind("test.gguf: ", 0), 0U) << file.status().message();
}

void expect_refused(const Content& content, const std::string& message) { expect_refused(content.bytes(), message); }

Content small_file() {
  Content content;
  content.metadata = {
      entry("general.architecture", GgufValueType::kString, text("llama")),
      entry("general.alignment", GgufValueType::kU32, number(8, 4)),
      entry("list", GgufValueType::kArray, list(GgufValueType::kS16, 2, number(0xfffeu, 2) + number(7, 2)))};
  content.tensors = {tensor("W", {3, 2}, kF32Id, 0), tensor("q", {32}, kQ4_0Id, 24)};
  content.alignment = 8;
  content.data = as_string(iota_f32({2, 3}).bytes) + number(0x3800, 2) + std::string(16, '\x88');
  return content;
}

TEST(Gguf, ReadsMetadataOfEveryType) {
  const double half = 0.5;
  const float quarter = 0.25f;
  const auto raw = [](const auto& value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); };
  using Type = GgufValueType;
  Content content;
  content.metadata = {
      entry("u8", Type::kU8, "\xff"),
      entry("s8", Type::kS8, "\xff"),
      entry("u16", Type::kU16, "\xff\xff"),
      entry("s16", Type::kS16, "\xff\xff"),
      entry("u32", Type::kU32, number(UINT32_MAX, 4)),
      entry("s32", Type::kS32, number(UINT32_MAX, 4)),
      entry("f32", Type::kF32, raw(quarter)),
      entry("bool", Type::kBool, "\1"),
      entry("string", Type::kString, text(std::string("a\0\xff", 3))),
      entry("u64", Type::kU64, number(UINT64_MAX, 8)),
      entry("s64", Type::kS64, number(UINT64_MAX, 8)),
      entry("f64", Type::kF64, raw(half)),
      entry("strings", Type::kArray, list(Type::kString, 2, text("x") + text(""))),
      entry("nested", Type::kArray, list(Type::kArray, 2, list(Type::kU8, 1, "\7") + list(Type::kBool, 0, ""))),
  };
  const Result<GgufFile> file = view(content.bytes());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->metadata().size(), content.metadata.size());
  for (const auto& [key, value] : file->metadata()) {
    if (value.type == Type::kArray) continue;
    EXPECT_EQ(key, to_string(value.type));
  }
  const auto value = [&](const char* key) { return file->find_metadata(key)->value; };
  EXPECT_EQ(std::get<uint64_t>(value("u8")), 255U);
  EXPECT_EQ(std::get<int64_t>(value("s8")), -1);
  EXPECT_EQ(std::get<uint64_t>(value("u16")), 65535U);
  EXPECT_EQ(std::get<int64_t>(value("s16")), -1);
  EXPECT_EQ(std::get<uint64_t>(value("u32")), UINT32_MAX);
  EXPECT_EQ(std::get<int64_t>(value("s32")), -1);
  EXPECT_EQ(std::get<double>(value("f32")), 0.25);
  EXPECT_TRUE(std::get<bool>(value("bool")));
  EXPECT_EQ(std::get<std::string>(value("string")), std::string("a\0\xff", 3));
  EXPECT_EQ(std::get<uint64_t>(value("u64")), UINT64_MAX);
  EXPECT_EQ(std::get<int64_t>(value("s64")), -1);
  EXPECT_EQ(std::get<double>(value("f64")), 0.5);
  const auto strings = std::get<GgufValue::List>(value("strings"));
  ASSERT_EQ(strings.size(), 2U);
  EXPECT_EQ(std::get<std::string>(strings[0].value), "x");
  const auto nested = std::get<GgufValue::List>(value("nested"));
  ASSERT_EQ(nested.size(), 2U);
  EXPECT_EQ(std::get<uint64_t>(std::get<GgufValue::List>(nested[0].value).at(0).value), 7U);
  EXPECT_EQ(nested[1].element_type, Type::kBool);
  EXPECT_EQ(file->find_metadata("none"), nullptr);
}

TEST(Gguf, ReadsTensorsOfBothVersions) {
  for (const uint32_t version : {2U, 3U}) {
    Content content = small_file();
    content.version = version;
    const std::string bytes = content.bytes();
    const Result<GgufFile> file = view(bytes);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(file->version(), version);
    EXPECT_EQ(file->alignment(), 8U);
    ASSERT_EQ(file->tensors().size(), 2U);
    const GgufTensor& first = file->tensors()[0];
    EXPECT_EQ(first.name, "W");
    EXPECT_EQ(first.type, "F32");
    EXPECT_EQ(first.shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(first.size_bytes, 24U);
    EXPECT_EQ(first.offset, bytes.size() - content.data.size());
    EXPECT_EQ(*file->read("W"), iota_f32({2, 3}));
    EXPECT_EQ(*file->read("q"), Array::zeros(Dtype::kF32, {32}));
    const Result<Array> none = file->read("none");
    EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(none.status().message(), "test.gguf: no tensor is called 'none'; it holds 2 others");
  }
}

TEST(Gguf, LoadsFilesAsArraysToo) {
  const TemporaryFolder folder;
  const std::string path = folder.file("model.gguf"), bytes = small_file().bytes();
  ASSERT_TRUE(write_file_atomically(path, bytes.data(), bytes.size()).ok());
  const Result<ArrayFile> arrays = load_arrays(path);
  ASSERT_TRUE(arrays.ok()) << arrays.status().message();
  EXPECT_EQ(arrays->arrays.size(), 2U);
  EXPECT_EQ(arrays->arrays.at("W"), iota_f32({2, 3}));
  Result<GgufFile> loaded = GgufFile::load(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const GgufFile copy = *loaded;
  loaded = Status(StatusCode::kIo, "gone");
  EXPECT_EQ(*copy.read("W"), iota_f32({2, 3}));
  EXPECT_EQ(GgufFile::load(folder.file("none")).status().code(), StatusCode::kIo);
}

TEST(Gguf, KeepsPlainFloatsAndEmptyTensors) {
  Content content;
  content.tensors = {tensor("scalar", {}, kF32Id, 0),
                     tensor("half", {2}, kF16Id, 32),
                     tensor("brain", {1, 1, 1, 2}, kBF16Id, 64),
                     tensor("empty", {32, 0}, kQ4_0Id, 64),
                     tensor("bytes", {3}, kI8Id, 96),
                     tensor("q8", {32}, kQ8_1Id, 128)};
  content.data = number(0x7fa00001, 4) + std::string(28, '\0') + from_hex("003c017c") + std::string(28, '\0') +
                 from_hex("803f81ff") + std::string(28, '\0') + std::string(32 + 36, '\1');
  const std::string bytes = content.bytes();
  const Result<GgufFile> file = view(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(as_string(file->read("scalar")->bytes), number(0x7fa00001, 4));  // a signalling NaN stays as it is
  EXPECT_EQ(file->read("scalar")->shape, std::vector<int64_t>{});
  EXPECT_EQ(file->read("half")->dtype, Dtype::kF16);
  EXPECT_EQ(as_string(file->read("half")->bytes), from_hex("003c017c"));
  EXPECT_EQ(file->read("brain")->dtype, Dtype::kBF16);
  EXPECT_EQ(file->read("brain")->shape, (std::vector<int64_t>{2, 1, 1, 1}));
  EXPECT_EQ(*file->read("empty"), Array::zeros(Dtype::kF32, {0, 32}));
  EXPECT_FALSE(file->find_tensor("bytes")->readable);
  const Result<Array> refused = file->read("q8");
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(
      refused.status().message(),
      "test.gguf: tensor 'q8' is of type Q8_1; read are F32 F16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K "
      "IQ4_NL BF16 TQ2_0");
  EXPECT_EQ(parse_gguf(bytes.data(), bytes.size(), "test.gguf").status().code(), StatusCode::kUnsupported);
}

/// They are listed, and what is known can be read beside them.
TEST(Gguf, ListsUnknownTypes) {
  Content content;
  content.tensors = {tensor("new", {7}, UINT32_MAX, 32), tensor("f", {2}, kF32Id, 0), tensor("old", {3, 5}, 4, 96),
                     tensor("none", {0}, 99, 32)};
  content.data = std::string(128, '\0');
  const std::string bytes = content.bytes();
  const Result<GgufFile> file = view(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  for (const auto& [name, type, size] : {std::tuple{"new", "4294967295", 64U}, std::tuple{"old", "4", 32U}}) {
    const GgufTensor& tensor = *file->find_tensor(name);
    EXPECT_EQ(tensor.type, type);
    EXPECT_EQ(tensor.size_bytes, size);
    EXPECT_FALSE(tensor.readable);
    const Result<Array> refused = file->read(name);
    EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(refused.status().message().find(std::string("is of type ") + type + "; read are F32"), std::string::npos)
        << refused.status().message();
  }
  EXPECT_EQ(*file->read("f"), Array::zeros(Dtype::kF32, {2}));
  EXPECT_EQ(file->find_tensor("none")->size_bytes, 0U);
  const Result<ArrayReader> reader = ArrayReader::view(bytes.data(), bytes.size(), "test.gguf");
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ(reader->find("new")->type, "4294967295");
  EXPECT_FALSE(reader->find("new")->dtype);
  EXPECT_EQ(reader->read("new").status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(reader->read("f").ok());
  content.tensors.push_back(tensor("g", {2}, kF32Id, 96));
  expect_refused(content, "tensor 'g' begins at byte");
}

struct Bits {
  size_t at;
  int value;
};
struct Expected {
  size_t element;
  float value;
};

// A block of zero bytes but for `bits` and the float16 numbers in `halves`.
void expect_block(uint32_t type, size_t elements, size_t block_bytes,
                  const std::vector<std::pair<size_t, float>>& halves, const std::vector<Bits>& bits,
                  const std::vector<Expected>& expected) {
  Content content;
  content.data = std::string(2 * block_bytes, '\0');
  for (const auto& [at, value] : halves) content.data.replace(block_bytes + at, 2, number(f32_to_f16(value), 2));
  for (const Bits& byte : bits) content.data[block_bytes + byte.at] = static_cast<char>(byte.value);
  content.tensors = {tensor("t", {elements, 2}, type, 0)};
  const std::string bytes = content.bytes();
  const Result<GgufFile> file = view(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Result<Array> array = file->read("t");
  ASSERT_TRUE(array.ok()) << array.status().message();
  ASSERT_EQ(array->shape, (std::vector<int64_t>{2, static_cast<int64_t>(elements)}));
  for (size_t i = 0; i < elements; ++i) EXPECT_EQ(array->data<float>()[i], 0.0f) << i;  // scales of zero
  for (const Expected& item : expected) {
    EXPECT_EQ(array->data<float>()[elements + item.element], item.value) << type << " " << item.element;
  }

  for (const auto& half : halves) {
    for (const float scale : {INFINITY, -INFINITY, NAN}) {
      Content broken = content;
      broken.data.replace(block_bytes + half.first, 2, number(f32_to_f16(scale), 2));
      const std::string broken_bytes = broken.bytes();
      const Result<Array> refused = view(broken_bytes)->read("t");
      EXPECT_EQ(refused.status().code(), StatusCode::kInvalidFile);
      EXPECT_NE(refused.status().message().find("tensor 't': a scale of block 1 of 2"), std::string::npos)
          << refused.status().message();
    }
  }
}

TEST(Gguf, FindsTheBitsOfEveryElement) {
  expect_block(kQ4_0Id, 32, 18, {{0, 0.5f}}, {{2 + 3, 0xf1}}, {{3, -3.5f}, {19, 3.5f}, {0, -4}, {31, -4}});
  expect_block(kQ4_1Id, 32, 20, {{0, 0.5f}, {2, -1}}, {{4 + 15, 0x2e}}, {{15, 6}, {31, 0}, {0, -1}});
  // The fifth bit of element 3 is bit 3 of byte 2, that of element 31 bit 7 of byte 5.
  expect_block(kQ5_0Id, 32, 22, {{0, 0.5f}}, {{2, 0x08}, {5, 0x80}, {6 + 3, 0xf1}, {6 + 15, 0x20}},
               {{3, 0.5f}, {19, -0.5f}, {31, 1}, {15, -8}, {0, -8}});
  expect_block(kQ5_1Id, 32, 24, {{0, 0.5f}, {2, -1}}, {{4 + 2, 0x08}, {8 + 3, 0x2e}}, {{3, 6}, {19, 8}, {0, -1}});
  expect_block(kQ8_0Id, 32, 34, {{0, 0.25f}}, {{2, 0x80}, {33, 0x7f}}, {{0, -32}, {31, 31.75f}, {1, 0}});
  // Group 5 has the scale 2 and the minimum 3 * 0.25; group 15 1 and 0.25.
  expect_block(kQ2_KId, 256, 84, {{80, 1}, {82, 0.25f}}, {{5, 0x32}, {15, 0x11}, {16 + 16, 0x30}, {16 + 63, 0x80}},
               {{80, 5.25f}, {81, -0.75f}, {255, 1.75f}, {254, -0.25f}, {16, 0}});
  // Group 5 has the scale 10 + 48 - 32, group 12 15 - 32, group 0 -32.
  expect_block(kQ3_KId, 256, 110, {{108, 0.25f}},
               {{96 + 5, 0x0a}, {96 + 8 + 1, 0x0c}, {96 + 4, 0xf0}, {16, 0x04}, {32 + 16, 0x30}, {32 + 32, 0x20}},
               {{80, 19.5f}, {81, -26}, {192, 8.5f}, {208, 32}, {0, 32}});
  // Group 0: scale 5, minimum 3; group 5: scale 1 + 3 * 16, minimum 2 + 16, each in two places.
  expect_block(kQ4_KId, 256, 144, {{0, 1}, {2, 0.5f}},
               {{4, 5}, {4 + 4, 3}, {4 + 9, 0x21}, {4 + 1, 0xc0}, {4 + 5, 0x40}, {16, 7}, {16 + 65, 0xa0}},
               {{0, 33.5f}, {1, -1.5f}, {161, 481}, {160, -9}, {129, 0}, {32, 0}});
  expect_block(
      kQ5_KId, 256, 176, {{0, 1}, {2, 0.5f}},
      {{4, 5}, {4 + 4, 3}, {4 + 9, 0x21}, {4 + 1, 0xc0}, {4 + 5, 0x40}, {48, 7}, {16, 1}, {48 + 65, 0xa0}, {17, 0x20}},
      {{0, 113.5f}, {1, -1.5f}, {161, 1265}, {160, -9}, {129, 0}, {32, 0}});
  // Group 0 has the scale 1, group 10 the scale -2; the code of element 165 is 11 + 3 * 16 - 32.
  expect_block(kQ6_KId, 256, 210, {{208, 0.5f}}, {{192, 1}, {192 + 10, 0xfe}, {101, 0x0b}, {128 + 37, 0x0c}},
               {{165, -27}, {164, 32}, {0, -16}, {16, 0}});
  expect_block(kIQ4_NLId, 32, 18, {{0, 0.5f}}, {{2 + 3, 0xf1}, {2 + 15, 0x87}},
               {{3, -52}, {19, 56.5f}, {15, -5}, {31, 0.5f}, {0, -63.5f}});
  expect_block(kTQ2_0Id, 256, 66, {{64, 2}}, {{33, 0x92}}, {{129, 2}, {161, -2}, {193, 0}, {225, 2}, {0, -2}});
}

TEST(Gguf, RefusesBrokenHeaders) {
  expect_refused("", "the GGUF header needs 4 bytes at byte 0, but the file has 0");
  expect_refused("GGML" + std::string(20, '\0'), "the file does not begin with 'GGUF'");
  const auto header = [](uint32_t version, uint64_t tensors, uint64_t entries) {
    return "GGUF" + number(version, 4) + number(tensors, 8) + number(entries, 8);
  };
  expect_refused(header(1, 0, 0), "GGUF version 1; 2 and 3, little-endian, are read", StatusCode::kUnsupported);
  expect_refused(header(4, 0, 0), "GGUF version 4", StatusCode::kUnsupported);
  expect_refused(header(3U << 24, 0, 0), "(a big-endian file)", StatusCode::kUnsupported);
  expect_refused(header(3, UINT64_MAX, 0), "the table of tensors has 18446744073709551615 entries");
  expect_refused(header(3, 0, UINT64_MAX), "the metadata has 18446744073709551615 entries; the 0 bytes that are left");
  EXPECT_TRUE(view(header(3, 0, 0))->tensors().empty());
}

TEST(Gguf, RefusesBrokenMetadata) {
  const auto refused = [](const std::vector<std::string>& metadata, const std::string& message) {
    Content content;
    content.metadata = metadata;
    expect_refused(content, message);
  };
  using Type = GgufValueType;
  refused({number(UINT64_MAX, 8) + std::string(8, 'k')},
          "the key of metadata entry 0 needs 18446744073709551615 bytes");
  refused({text(std::string(65536, 'k'))}, "the key of metadata entry 0 has 65536 bytes; at most 65535 are allowed");
  refused({text("k") + number(13, 4) + "\1"}, "metadata 'k' has the unknown type 13; the largest is 12");
  refused({entry("key", Type::kU64, "1234567")}, "metadata 'key' needs 8 bytes at byte 39, but the file has 46");
  refused({entry("k", Type::kBool, "\2")}, "metadata 'k' is the boolean 2, neither 0 nor 1");
  refused({entry("k", Type::kString, number(9, 8) + "short")}, "metadata 'k' needs 9 bytes");
  refused({entry("k", Type::kU8, "1"), entry("k", Type::kU8, "1")}, "metadata 'k' is there twice");
  refused({entry("k", Type::kArray, list(Type::kU32, uint64_t{1} << 62, "12345678"))},
          "metadata 'k' has 4611686018427387904 entries; the 8 bytes that are left hold at most 2");
  refused({entry("k", Type::kArray, list(static_cast<Type>(99), 0, ""))}, "metadata 'k' has the unknown type 99");
  std::string nested;
  for (int depth = 0; depth < 100; ++depth) nested += list(Type::kArray, 1, "");
  refused({entry("k", Type::kArray, nested)}, "metadata 'k' has arrays nested more than 8 deep");
  refused({entry("general.alignment", Type::kU64, number(32, 8))}, "'general.alignment' is of type u64, not u32");
  refused({entry("general.alignment", Type::kU32, number(0, 4))}, "is 0, not a positive multiple of 8");
  refused({entry("general.alignment", Type::kU32, number(33, 4))}, "is 33, not a positive multiple of 8");
}

TEST(Gguf, RefusesBrokenTensors) {
  const auto refused = [](const std::vector<std::string>& tensors, const std::string& message) {
    Content content;
    content.tensors = tensors;
    content.data = std::string(96, '\0');
    expect_refused(content, message);
  };
  const uint64_t huge = uint64_t{1} << 32;
  refused({tensor("a", {1, 1, 1, 1, 1}, kF32Id, 0)}, "tensor 'a' has 5 dimensions; at most 4 are allowed");
  refused({tensor("a", {1}, 4, 128)}, "tensor 'a' has 0 bytes from byte 128 of the data, which has 96");
  refused({tensor("a", {33}, kQ4_0Id, 0)}, "tensor 'a' has rows of 33 elements; Q4_0 needs a multiple of 32");
  refused({tensor("a", {}, kQ4_0Id, 0)}, "tensor 'a' has rows of 1 elements");
  refused({tensor("a", {huge, huge}, kF32Id, 0)},
          "tensor 'a' has the shape (4294967296, 4294967296), beyond 2^63 bytes");
  refused({tensor("a", {0, huge, huge}, kF32Id, 0)}, "beyond 2^63 bytes");
  refused({tensor("a", {UINT64_MAX}, kF32Id, 0)}, "tensor 'a' has the shape (-1,), beyond 2^63 bytes");
  refused({tensor("a", {25}, kF32Id, 0)}, "tensor 'a' has 100 bytes from byte 0 of the data, which has 96");
  refused({tensor("a", {9}, kF32Id, 64)}, "tensor 'a' has 36 bytes from byte 64 of the data, which has 96");
  refused({tensor("a", {1}, kF32Id, 128)}, "tensor 'a' has 4 bytes from byte 128 of the data, which has 96");
  refused({tensor("a", {1}, kF32Id, UINT64_MAX - 31)}, "from byte 18446744073709551584 of the data");
  refused({tensor("a", {1}, kF32Id, 8)}, "begins at byte 8 of the data, not at a multiple of the alignment, 32");
  refused({tensor("a", {1}, kF32Id, 32), tensor("b", {9}, kF32Id, 0)},
          "tensor 'a' begins at byte 128 of the file, before the end of tensor 'b' at 132");
  refused({tensor("a", {1}, kF32Id, 0), tensor("b", {1}, kF32Id, 0)}, "before the end of tensor");
  refused({tensor("a", {1}, kF32Id, 0), tensor("a", {1}, kF32Id, 32)}, "tensor 'a' is there twice");
}

// ---------------------------------------------------------------------------------------------------------------
// Metadata as text

std::string raw_f32(float value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); }
std::string raw_f64(double value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); }

/// What text becomes and is again.
GgufMetadata there_and_back(const GgufMetadata& metadata, const std::string& expected) {
  const Result<GgufMetadataText> text = gguf_metadata_to_text(metadata);
  EXPECT_TRUE(text.ok() && text->left_out.empty());
  EXPECT_EQ(text->text, expected);
  const Result<GgufMetadata> back = gguf_metadata_from_text(text->text, "text");
  EXPECT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(gguf_metadata_to_text(*back)->text, expected);
  return *back;
}

TEST(GgufMetadataText, HasEveryValue) {
  using Type = GgufValueType;
  const float infinity = std::numeric_limits<float>::infinity();
  Content content;
  content.metadata = {
      entry("u8", Type::kU8, "\xff"),
      entry("s8", Type::kS8, "\x80"),
      entry("u16", Type::kU16, "\xff\xff"),
      entry("s16", Type::kS16, std::string("\0\x80", 2)),
      entry("u32", Type::kU32, number(UINT32_MAX, 4)),
      entry("s32", Type::kS32, number(0x80000000u, 4)),
      entry("f32", Type::kF32, raw_f32(0x1.4f8b58p-17f)),
      entry("bool", Type::kBool, "\1"),
      entry("string", Type::kString, text(std::string("a\0\n\"\xc3\xbc", 6))),
      entry("u64", Type::kU64, number(UINT64_MAX, 8)),
      entry("s64", Type::kS64, number(uint64_t{1} << 63, 8)),
      entry("f64", Type::kF64, raw_f64(-0.1)),
      entry("A floats", Type::kArray,
            list(Type::kF32, 5,
                 raw_f32(-0.0f) + raw_f32(0x1p-149f) + raw_f32(infinity) + raw_f32(-infinity) +
                     raw_f32(std::numeric_limits<float>::quiet_NaN()))),
      entry("strings", Type::kArray, list(Type::kString, 2, text("x") + text(""))),
      entry("nested", Type::kArray, list(Type::kArray, 2, list(Type::kU8, 1, "\7") + list(Type::kBool, 0, ""))),
  };
  const Result<GgufFile> file = view(content.bytes());
  ASSERT_TRUE(file.ok()) << file.status().message();
  const GgufMetadata back = there_and_back(
      file->metadata(),
      R"([{"key":"u8","type":"u8","value":255},{"key":"s8","type":"s8","value":-128},)"
      R"({"key":"u16","type":"u16","value":65535},{"key":"s16","type":"s16","value":-32768},)"
      R"({"key":"u32","type":"u32","value":4294967295},{"key":"s32","type":"s32","value":-2147483648},)"
      R"({"key":"f32","type":"f32","value":"0x1.4f8b58p-17"},{"key":"bool","type":"bool","value":true},)"
      R"({"key":"string","type":"string","value":"a\u0000\n\"ü"},)"
      R"({"key":"u64","type":"u64","value":18446744073709551615},)"
      R"({"key":"s64","type":"s64","value":-9223372036854775808},)"
      R"({"key":"f64","type":"f64","value":"-0x1.999999999999ap-4"},)"
      R"({"element_type":"f32","key":"A floats","type":"array","value":["-0x0p+0","0x1p-149","inf","-inf","nan"]},)"
      R"({"element_type":"string","key":"strings","type":"array","value":["x",""]},)"
      R"({"element_type":"array","key":"nested","type":"array",)"
      R"("value":[{"element_type":"u8","value":[7]},{"element_type":"bool","value":[]}]}])");
  ASSERT_EQ(back.size(), file->metadata().size());
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i].first, file->metadata()[i].first);
    EXPECT_EQ(back[i].second.type, file->metadata()[i].second.type);
  }
  EXPECT_EQ(std::get<uint64_t>(back[9].second.value), UINT64_MAX);
  EXPECT_EQ(std::get<int64_t>(back[10].second.value), INT64_MIN);
  EXPECT_EQ(std::get<double>(back[11].second.value), -0.1);
  there_and_back({}, "[]");
}

TEST(GgufMetadataText, SaysWhatItLeavesOut) {
  const GgufValue bad{GgufValueType::kString, {}, std::string("\xff")}, good{GgufValueType::kU8, {}, uint64_t{1}};
  const GgufMetadata metadata = {{"bad", bad}, {"one", good}, {"\xc3", good}, {"two", good}, {"3", good}};
  const Result<GgufMetadataText> all = gguf_metadata_to_text(metadata);
  ASSERT_TRUE(all.ok());
  const std::string one = R"({"key":"one","type":"u8","value":1})", three = R"({"key":"3","type":"u8","value":1})";
  EXPECT_EQ(all->text, "[" + one + R"(,{"key":"two","type":"u8","value":1},)" + three + "]");
  using LeftOut = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(all->left_out, (LeftOut{{"bad", "its text is not UTF-8"}, {"\xc3", "its text is not UTF-8"}}));
  // As it is in a header: quotes have a backslash, and there are two around it.
  const size_t room = (one.size() + 10 + 2) + (three.size() + 10 + 2);
  const Result<GgufMetadataText> some = gguf_metadata_to_text(metadata, room);
  ASSERT_TRUE(some.ok());
  EXPECT_EQ(some->text, "[" + one + "," + three + "]");
  ASSERT_EQ(some->left_out.size(), 3U);
  EXPECT_EQ(some->left_out[2].first, "two");
  EXPECT_EQ(some->left_out[2].second, "it has 47 bytes, and of 92 there are 45 left");
}

TEST(GgufMetadataText, RefusesByName) {
  const auto refused = [](const std::string& content, const std::string& message) {
    const Result<GgufMetadata> metadata = gguf_metadata_from_text(content, "text");
    EXPECT_EQ(metadata.status().code(), StatusCode::kInvalidFile) << content;
    EXPECT_EQ(metadata.status().message(), message);
  };
  const auto value = [&](const std::string& type, const std::string& json, const std::string& message) {
    refused(R"([{"key":"k","type":")" + type + R"(","value":)" + json + "}]", "text: 'k' is " + message);
  };
  refused("[", "text is not JSON");
  refused("{}", "text is an object, must be a list");
  refused("[1]", "text: entry 0 is not a JSON object");
  refused(R"([{"type":"u8","value":1}])", "text: entry 0: field 'key' is missing");
  refused(R"([{"key":"k","type":"u8"}])", "text: entry 0: field 'value' is missing");
  refused(R"([{"key":"k","type":"u8","value":1,"x":2}])", "text: entry 0: unknown field 'x'");
  refused(R"([{"key":"k","type":"u8","value":1},{"key":"k","type":"u8","value":1}])", "text: 'k' is there twice");
  refused(R"([{"key":"k","type":"u9","value":1}])",
          "text: entry 0: field 'type' is 'u9', must be u8, s8, u16, s16, u32, s32, f32, bool, string, array, u64, s64 "
          "or f64");
  value("u8", "256", "'256', must be an integer in 0..255");
  value("u8", "-1", "'-1', must be an integer in 0..255");
  value("s8", "128", "'128', must be an integer in -128..127");
  value("s8", "-129", "'-129', must be an integer in -128..127");
  value("u64", "1.0", "'1.0', must be an integer in 0..18446744073709551615");
  value("s64", "9223372036854775808",
        "'9223372036854775808', must be an integer in -9223372036854775808..9223372036854775807");
  value("f32", "1.5", "'1.5', must be a float32 as hexadecimal text");
  value("f32", R"("0x1.0000001p+0")", "'\"0x1.0000001p+0\"', must be a float32 as hexadecimal text");
  value("f64", R"("one")", "'\"one\"', must be a float64 as hexadecimal text");
  value("bool", "0", "'0', must be true or false");
  value("string", "0", "'0', must be a string");
  refused(R"([{"key":"k","type":"array","element_type":"u8","value":{}}])",
          "text: entry 0: field 'value' is an object, must be a list");
  refused(R"([{"key":"k","type":"array","element_type":"u8","value":[1,256]}])",
          "text: entry 0: element 1 is '256', must be an integer in 0..255");
  std::string nested = R"({"element_type":"u8","value":[]})";
  for (int i = 0; i < 8; ++i) nested.insert(0, R"({"element_type":"array","value":[)").append("]}");
  const Result<GgufMetadata> deep =
      gguf_metadata_from_text(R"([{"key":"k","type":"array",)" + nested.substr(1) + "]", "text");
  EXPECT_NE(deep.status().message().find("arrays are nested more than 8 deep"), std::string::npos)
      << deep.status().message();
}

TEST(Gguf, SurvivesDamage) { expect_damage_is_survived(small_file().bytes(), parse_gguf); }

TEST(Gguf, SaysWhichPartOfASplitModelItIs) {
  const auto content = [](uint64_t no, uint64_t count) {
    Content out;
    out.metadata = {entry("split.no", GgufValueType::kU16, number(no, 2)),
                    entry("split.count", GgufValueType::kU16, number(count, 2)),
                    entry("split.tensors.count", GgufValueType::kS32, number(7, 4))};
    return out.bytes();
  };
  const std::string part = content(1, 3), whole = content(0, 1);
  const Result<GgufFile> file = view(part);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->split_text(),
            "part 2 of 3 of a model that was split; it holds 0 of 7 tensors, the other parts hold the rest");
  EXPECT_NE(file->read("a").status().message().find("no tensor is called 'a'; the file is part 2 of 3"),
            std::string::npos);
  EXPECT_EQ(view(whole)->split_text(), "");
}

}  // namespace
}  // namespace isobit
