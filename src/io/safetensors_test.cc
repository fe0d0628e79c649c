// SPDX-License-Identifier: Apache-2.0
#include "io/test_files.h"

namespace isobit {
namespace {

std::string file_of(const std::string& header, const std::string& elements = "") {
  return number(header.size(), 8) + header + elements;
}

Result<ArrayFile> parse(const std::string& content) {
  return parse_safetensors(content.data(), content.size(), "test.safetensors");
}

void expect_refused(const std::string& content, const std::string& message,
                    StatusCode code = StatusCode::kInvalidFile) {
  const Result<ArrayFile> file = parse(content);
  ASSERT_FALSE(file.ok()) << message;
  EXPECT_EQ(file.status().code(), code) << file.status().message();
  EXPECT_NE(file.status().message().find(message), std::string::npos) << file.status().message();
  EXPECT_EQ(file.status().message().rfind("test.safetensors: ", 0), 0U) << file.status().message();
}

const std::string kEightBytes = "\1\2\3\4\5\6\7\10";

// safetensors.numpy.save of the Python package, version 0.8.
TEST(Safetensors, ReadsAndWritesWhatTheReferenceWrites) {
  std::string header = R"({"__metadata__":{"k":"v"},"W":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                       R"("h":{"dtype":"F16","shape":[1,2],"data_offsets":[24,28]},)"
                       R"("b":{"dtype":"I8","shape":[2],"data_offsets":[28,30]}})";
  header.resize(200, ' ');
  const std::string from_python = file_of(header, as_string(iota_f32({2, 3}).bytes) + from_hex("003c003c01fe"));
  const Result<ArrayFile> file = parse(from_python);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->arrays.at("W"), iota_f32({2, 3}));
  EXPECT_EQ(file->arrays.at("h").to_float(), (std::vector<float>{1, 1}));
  EXPECT_EQ(file->arrays.at("b").to_float(), (std::vector<float>{1, -2}));
  EXPECT_EQ(file->metadata, (std::map<std::string, std::string>{{"k", "v"}}));
  EXPECT_EQ(as_string(*encode_safetensors(*file, "out")), from_python);
}

TEST(Safetensors, RoundTripsEveryDtypeAligned) {
  ArrayFile file;
  for (int i = 0; i <= static_cast<int>(Dtype::kF64); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    Array array = Array::zeros(dtype, {3});
    for (std::byte& byte : array.bytes) byte = static_cast<std::byte>(i + 1);
    file.arrays[std::string(to_string(dtype))] = array;
  }
  file.arrays["\xc3\xa9 \"quoted\\\n\x01"] = iota_f32({});
  file.arrays[""] = iota_f32({2, 0});
  file.metadata = {{"", ""}, {"isobit", R"({"version": 1, "text": "\u00e9"})"}};
  const auto content = encode_safetensors(file, "out");
  ASSERT_TRUE(content.ok()) << content.status().message();
  EXPECT_EQ(*encode_safetensors(file, "out"), *content);
  const Result<ArrayFile> again = parse(as_string(*content));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, file);
  // The header ends at a multiple of 8, and the first tensor is the widest.
  EXPECT_EQ(std::to_integer<int>((*content)[0]) % 8, 0);
  const size_t elements = 8 + std::to_integer<size_t>((*content)[0]) + 256 * std::to_integer<size_t>((*content)[1]);
  EXPECT_EQ(std::to_integer<int>((*content)[elements]), static_cast<int>(Dtype::kF64) + 1);
  EXPECT_TRUE(parse(as_string(*encode_safetensors({}, "out")))->arrays.empty());
}

TEST(Safetensors, ReadsInAnyOrder) {
  const Result<ArrayFile> file =
      parse(file_of(R"({"a":{"data_offsets":[4,8],"shape":[2],"dtype":"I16"},"e":{"dtype":"U8","shape":[0],)"
                    R"("data_offsets":[4,4]},"b":{"shape":[],"dtype":"U32","data_offsets":[0,4]},)"
                    R"("__metadata__":{}}  )",
                    kEightBytes));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(as_string(file->arrays.at("b").bytes), kEightBytes.substr(0, 4));
  EXPECT_EQ(as_string(file->arrays.at("a").bytes), kEightBytes.substr(4));
  EXPECT_TRUE(file->arrays.at("e").bytes.empty());
  EXPECT_EQ(parse(file_of(R"({"m":{"dtype":"BOOL","shape":[8],"data_offsets":[0,8]}})", kEightBytes))->arrays.at("m"),
            (Array::copy_of(reinterpret_cast<const uint8_t*>(kEightBytes.data()), {8})));
}

TEST(Safetensors, RefusesBrokenHeaders) {
  expect_refused("", "ends before the length");
  expect_refused(number(3, 8) + "{}", "safetensors header of 3 bytes; at most 2 are possible");
  expect_refused(number(UINT64_MAX, 8) + "{}", "safetensors header of 18446744073709551615 bytes");
  expect_refused(number(UINT64_MAX - 7, 8) + "{}", "at most 2 are possible");
  expect_refused(file_of(""), "does not begin with '{'");
  expect_refused(file_of("[]"), "does not begin with '{'");
  expect_refused(file_of("\xef\xbb\xbf{}"), "does not begin with '{'");
  expect_refused(file_of(std::string("{}\0{", 4)), "holds a zero byte");
  expect_refused(file_of("{"), "not JSON at its byte 2");
  expect_refused(file_of("{}{}"), "not JSON at its byte 3");
  expect_refused(file_of("{\"\xff\":{}}"), "not JSON");
  expect_refused(file_of(R"({"__metadata__":{"a":"b"},"__metadata__":{}})"), "'__metadata__': is there twice");
  expect_refused(file_of(R"({"__metadata__":{"a":"b","a":"c"}})"), "'__metadata__': 'a' is there twice");
  expect_refused(file_of(R"({"__metadata__":{"a":1}})"), "'__metadata__': 'a' cannot be or hold 1");
  expect_refused(file_of(R"({"__metadata__":{"a":{}}})"), "'a' cannot be or hold an object");
  expect_refused(file_of(R"({"__metadata__":{"a":[]}})"), "'a' cannot be or hold a list");
  expect_refused(file_of(R"({"__metadata__":"a"})"), "'__metadata__': cannot be or hold a string");
}

TEST(Safetensors, RefusesBrokenTensors) {
  const auto refused = [](const std::string& tensor, const std::string& message,
                          StatusCode code = StatusCode::kInvalidFile) {
    expect_refused(file_of(R"({"a":)" + tensor + "}", kEightBytes), message, code);
  };
  const std::string valid = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  ASSERT_TRUE(parse(file_of(R"({"a":{)" + valid + "}}", kEightBytes)).ok());
  refused("null", "'a': cannot be or hold null");
  refused("[1]", "'a': cannot be or hold a list");
  refused("{}", "tensor 'a': has no 'dtype'");
  refused(R"({"dtype":"F32","data_offsets":[0,8]})", "tensor 'a': has no 'shape'");
  refused(R"({"dtype":"F32","shape":[2]})", "tensor 'a': has no 'data_offsets'");
  refused("{" + valid + "," + valid + "}", "'a': 'dtype' is there twice");
  refused(R"({"shape":[2],"shape":[2]})", "'a': 'shape' is there twice");
  refused("{" + valid + R"(},"a":{)" + valid + "}", "'a': is there twice");
  refused("{" + valid + R"(,"extra":1})", "'a': unknown key 'extra'");
  refused(R"({"dtype":7})", "'dtype' cannot be or hold 7");
  refused(R"({"dtype":["F32"]})", "'dtype' cannot be or hold a list");
  refused(R"({"shape":"F32"})", "'shape' cannot be or hold a string");
  refused(R"({"shape":[true]})", "'shape' cannot be or hold a boolean");
  refused(R"({"shape":[-1]})", "'shape' cannot be or hold -1");
  refused(R"({"shape":[2.0]})", "'shape' cannot be or hold 2.0");
  refused(R"({"shape":[18446744073709551616]})", "'shape' cannot be or hold 18446744073709551616");
  refused(R"({"shape":[1e999]})", "not JSON");
  refused(R"({"shape":[[2]]})", "'shape' cannot be or hold a list");
  refused(R"({"shape":{}})", "'shape' cannot be or hold an object");
  std::string ones;
  for (int i = 0; i < 64; ++i) ones += "1,";
  refused(R"({"shape":[)" + ones + "1]}", "'shape' has too many numbers");
  refused(R"({"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]})", "tensor 'a': dtype 'F8_E4M3' is not one of",
          StatusCode::kUnsupported);
  refused(R"({"dtype":"U64","shape":[1],"data_offsets":[0,8]})", "dtype 'U64'", StatusCode::kUnsupported);
  refused(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})", "'data_offsets' has 1 numbers, not 2");
  refused(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4,8]})", "'data_offsets' has 3 numbers, not 2");
}

TEST(Safetensors, RefusesLyingSizes) {
  const auto refused = [](const std::string& shape, const std::string& offsets, const std::string& message) {
    expect_refused(
        file_of(R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", kEightBytes),
        message);
  };
  refused("[2]", "[8,0]", "data_offsets [8, 0] do not lie in the file's 8 bytes of data");
  refused("[2]", "[0,9]", "data_offsets [0, 9] do not lie in");
  refused("[2]", "[18446744073709551608,18446744073709551615]", "do not lie in");
  refused("[3]", "[0,8]", "shape (3,) of F32 needs 12 bytes, but data_offsets span 8");
  refused("[4611686018427387904,2]", "[0,8]", "needs 2^63 or more bytes");
  refused("[18446744073709551615]", "[0,8]", "needs 2^63 or more bytes");
  refused("[4294967296,4294967296,0]", "[0,0]", "needs 2^63 or more bytes");
  refused("[1]", "[0,4]", "the tensors end at 4, but the file has 8 bytes of data");
  refused("[1]", "[4,8]", "tensor 'a' begins at 4, but the tensor before it ends at 0");
  expect_refused(file_of("{}", "x"), "the tensors end at 0, but the file has 1 bytes of data");
  expect_refused(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                         R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                         kEightBytes),
                 "tensor 'b' begins at 4, but the tensor before it ends at 8");
}

TEST(Safetensors, SurvivesDeepNesting) {
  for (const char* opening : {"[", "{\"a\":"}) {
    std::string header = "{\"a\":";
    for (int i = 0; i < 1000000; ++i) header += opening;
    EXPECT_FALSE(parse(file_of(header)).ok());
  }
}

TEST(Safetensors, SurvivesDamage) {
  ArrayFile file;
  file.arrays["W"] = iota_f32({1, 2});
  file.arrays["b"] = Array::zeros(Dtype::kS8, {3});
  file.metadata["k"] = "v";
  expect_damage_is_survived(as_string(*encode_safetensors(file, "out")), parse_safetensors);
}

TEST(Safetensors, WriterRefusesNamesAndArrays) {
  const auto code = [](const ArrayFile& file) { return encode_safetensors(file, "out").status().code(); };
  EXPECT_EQ(code({{{"__metadata__", iota_f32({1})}}, {}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{{"\xff", iota_f32({1})}}, {}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{}, {{"a", "\xff"}}}), StatusCode::kInvalidArgument);
  Array array = iota_f32({1});
  array.shape = {2};
  EXPECT_EQ(code({{{"a", array}}, {}}), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace isobit
