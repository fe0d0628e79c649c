// SPDX-License-Identifier: Apache-2.0
#include <zip.h>

#include "io/test_files.h"

namespace isobit {
namespace {

// numpy.savez_compressed with W = float32 [[0 1 2] [3 4 5]] and b = int8 [1 -2], numpy 2: zip64 local headers.
constexpr std::string_view kDeflated =
    "504b03042d0000000800000021004fe9002affffffffffffffff05001400572e6e70790100100098000000000000005500000000000000"
    "9bec17ea1b10c9c850c650ad9e925a9c5ca46ea5a06e9366a2aea3a09e965f54529498179f5f94920a12774bcc294e058a17672416a402"
    "f91a463a0ac69a3a0ab50a64032e063068b007120e4004c40d40bcc00100504b03042d000000080000002100f99bf312ffffffffffffff"
    "ff05001400622e6e7079010010008200000000000000460000000000"
    "00009bec17ea1b10c9c850c650ad9e925a9c5ca46ea5a05e9369a8aea3a09e965f54529498179f5f94920a12774bcc294e058a17672416"
    "a402f91a463a9a3a0ab50a14002ec67f00504b01022d032d0000000800000021004fe9002a550000009800000005000000000000000000"
    "0000800100000000572e6e7079504b01022d032d000000080000002100f99bf312460000008200000005000000000000000000000080018c"
    "000000622e6e7079504b0506000000000200020066000000090100000000";
// The same W, written by numpy into a stream that cannot seek: the sizes follow in a zip64 data descriptor.
constexpr std::string_view kStreamed =
    "504b03042d00080008000000210000000000ffffffffffffffff05001400572e6e70790100100000000000000000000000000000000000"
    "9bec17ea1b10c9c850c650ad9e925a9c5ca46ea5a06e9366a2aea3a09e965f54529498179f5f94920a12774bcc294e058a17672416a402"
    "f91a463a0ac69a3a0ab50a64032e063068b007120e4004c40d40bcc00100504b07084fe9002a5500000000000000980000000000000050"
    "4b01022d032d0008000800000021004fe9002a5500000098000000050000000000000000000000800100000000572e6e7079504b050600"
    "0000000100010033000000a40000000000";

Result<ArrayFile> parse(const std::string& content) { return parse_npz(content.data(), content.size(), "test.npz"); }

void expect_refused(const std::string& content, StatusCode code, const std::string& message) {
  const Result<ArrayFile> file = parse(content);
  ASSERT_FALSE(file.ok()) << message;
  EXPECT_EQ(file.status().code(), code) << file.status().message();
  EXPECT_NE(file.status().message().find(message), std::string::npos) << file.status().message();
}

std::map<std::string, Array> two_arrays() {
  const int8_t bias[2] = {1, -2};
  return {{"W", iota_f32({2, 3})}, {"b", Array::copy_of(bias, {2})}};
}

struct Entry {
  std::string name;
  std::string content;
};

// A stored archive, so that tests can hold what the writer would not write.
std::string zip_of(const std::vector<Entry>& entries) {
  zip_source_t* sink = zip_source_buffer_create(nullptr, 0, 0, nullptr);
  zip_t* archive = zip_open_from_source(sink, ZIP_TRUNCATE | ZIP_CREATE, nullptr);
  zip_source_keep(sink);
  for (const Entry& entry : entries) {
    zip_source_t* source = zip_source_buffer(archive, entry.content.data(), entry.content.size(), 0);
    const auto index = static_cast<zip_uint64_t>(zip_file_add(archive, entry.name.c_str(), source, 0));
    zip_set_file_compression(archive, index, ZIP_CM_STORE, 0);
  }
  EXPECT_EQ(zip_close(archive), 0);
  zip_stat_t whole;
  zip_source_stat(sink, &whole);
  std::string content(whole.size, '\0');
  zip_source_open(sink);
  EXPECT_EQ(zip_source_read(sink, content.data(), content.size()), static_cast<zip_int64_t>(content.size()));
  zip_source_close(sink);
  zip_source_free(sink);
  return content;
}

// Overwrites a field of the central directory's record of the first entry.
std::string with_directory_field(std::string content, size_t offset, const std::string& value) {
  return content.replace(content.find("PK\x01\x02") + offset, value.size(), value);
}

TEST(Npz, ReadsWhatNumpyWrites) {
  const Result<ArrayFile> deflated = parse(from_hex(kDeflated));
  ASSERT_TRUE(deflated.ok()) << deflated.status().message();
  EXPECT_EQ(deflated->arrays, two_arrays());
  const Result<ArrayFile> streamed = parse(from_hex(kStreamed));
  ASSERT_TRUE(streamed.ok()) << streamed.status().message();
  EXPECT_EQ(streamed->arrays.at("W"), iota_f32({2, 3}));
}

TEST(Npz, RoundTripsWithTheSameBytes) {
  std::map<std::string, Array> arrays = two_arrays();
  arrays["encoder.weight/\xc3\xa9"] = Array::zeros(Dtype::kF64, {0, 3});
  arrays[""] = iota_f32({});
  const auto content = encode_npz(arrays, "out");
  ASSERT_TRUE(content.ok()) << content.status().message();
  EXPECT_EQ(*encode_npz(arrays, "out"), *content);
  const Result<ArrayFile> file = parse(as_string(*content));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->arrays, arrays);
}

TEST(Npz, RoundTripsNoArrays) {
  const auto content = encode_npz({}, "out");
  ASSERT_TRUE(content.ok());
  const Result<ArrayFile> file = parse(as_string(*content));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(file->arrays.empty());
}

TEST(Npz, RefusesOtherArchives) {
  const std::string array = as_string(*encode_npy(iota_f32({2}), "out"));
  expect_refused("PK\x03\x04", StatusCode::kInvalidFile, "test.npz: not a whole zip archive");
  expect_refused(zip_of({{"archive/data.pkl", "x"}}), StatusCode::kUnsupported, "test.npz: is a PyTorch checkpoint");
  expect_refused(zip_of({{"README", "x"}}), StatusCode::kInvalidFile, "zip entry 'README' is not an array");
  expect_refused(zip_of({{"README", "x"}, {"a.npy", array}}), StatusCode::kUnsupported,
                 "zip entry 'README' is not an array");
  expect_refused(zip_of({{"a.npy", "x"}}), StatusCode::kInvalidFile,
                 "test.npz: array 'a': does not begin with the npy magic");
  std::string twice = zip_of({{"a.npy", array}, {"b.npy", array}});
  for (size_t at = twice.find("b.npy"); at != std::string::npos; at = twice.find("b.npy")) twice[at] = 'a';
  expect_refused(twice, StatusCode::kInvalidFile, "test.npz: two arrays have the same name");
}

TEST(Npz, RefusesLyingSizes) {
  const std::string valid = zip_of({{"a.npy", as_string(*encode_npy(iota_f32({2}), "out"))}});
  ASSERT_TRUE(parse(valid).ok());
  for (const uint32_t size : {0u, 1u, 135u, 137u, 0x7fffffffu, 0xfffffffeu, 0xffffffffu}) {
    EXPECT_FALSE(parse(with_directory_field(valid, 24, number(size, 4))).ok()) << size;
    EXPECT_FALSE(parse(with_directory_field(valid, 20, number(size, 4))).ok()) << size;
    // In both places, so that they agree.
    std::string both = with_directory_field(valid, 24, number(size, 4));
    EXPECT_FALSE(parse(both.replace(22, 4, number(size, 4))).ok()) << size;
  }
  // A wrong checksum, in both places.
  std::string checksum = with_directory_field(valid, 16, number(1, 4));
  expect_refused(checksum.replace(14, 4, number(1, 4)), StatusCode::kInvalidFile, "array 'a': cannot be unpacked");
  // A count of entries that the directory does not have.
  std::string count = valid;
  count.replace(count.rfind("PK\x05\x06") + 8, 4, number(0xfffefffe, 4));
  EXPECT_FALSE(parse(count).ok());
}

TEST(Npz, RefusesAnAbsurdZip64Directory) {
  const auto end64 = [](uint64_t count, uint64_t size, uint64_t offset) {
    return "PK\x06\x06" + number(44, 8) + number(45, 2) + number(45, 2) + number(0, 8) + number(count, 8) +
           number(count, 8) + number(size, 8) + number(offset, 8) + "PK\x06\x07" + number(0, 4) + number(0, 8) +
           number(1, 4) + "PK\x05\x06" + number(0, 4) + number(0xffff, 2) + number(0xffff, 2) + number(0xffffffff, 4) +
           number(0xffffffff, 4) + number(0, 2);
  };
  for (const uint64_t count : {uint64_t{1}, uint64_t{1} << 24, uint64_t{1} << 40, UINT64_MAX / 2, UINT64_MAX}) {
    for (const uint64_t size : {uint64_t{0}, uint64_t{46}, uint64_t{1} << 40, UINT64_MAX}) {
      EXPECT_FALSE(parse(end64(count, size, 0)).ok()) << count << " " << size;
    }
  }
}

TEST(Npz, RefusesUnknownCompressionByName) {
  std::string content = zip_of({{"a.npy", as_string(*encode_npy(iota_f32({2}), "out"))}});
  content = with_directory_field(content, 10, number(14, 2)).replace(8, 2, number(14, 2));
  expect_refused(content, StatusCode::kUnsupported, "array 'a': zip compression method 14");
}

TEST(Npz, SurvivesDamage) {
  const std::string name = as_string(*encode_npz({{"W", iota_f32({2})}}, "out"));
  expect_damage_is_survived(name, parse_npz);
  expect_damage_is_survived(from_hex(kStreamed), parse_npz);
}

TEST(Npz, WriterRefusesNamesAndArrays) {
  EXPECT_EQ(encode_npz({{std::string("a\0b", 3), iota_f32({2})}}, "out").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(encode_npz({{"\xff\xfe", iota_f32({2})}}, "out").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(encode_npz({{std::string(70000, 'a'), iota_f32({2})}}, "out").status().code(),
            StatusCode::kInvalidArgument);
  const auto bfloat16 = encode_npz({{"a", Array::zeros(Dtype::kBF16, {1})}}, "out.npz");
  EXPECT_EQ(bfloat16.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(bfloat16.status().message().rfind("out.npz: array 'a': ", 0), 0U) << bfloat16.status().message();
}

}  // namespace
}  // namespace isobit
