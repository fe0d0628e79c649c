// SPDX-License-Identifier: Apache-2.0
#include "io/test_files.h"

namespace isobit {
namespace {

std::string npy(const std::string& header, const std::string& elements, int version = 1) {
  return std::string("\x93NUMPY") + static_cast<char>(version) + '\0' + number(header.size(), version == 1 ? 2 : 4) +
         header + elements;
}

Result<Array> parse(const std::string& content) { return parse_npy(content.data(), content.size(), "test.npy"); }

void expect_refused(const std::string& content, StatusCode code, const std::string& message) {
  const Result<Array> array = parse(content);
  ASSERT_FALSE(array.ok()) << message;
  EXPECT_EQ(array.status().code(), code) << array.status().message();
  EXPECT_NE(array.status().message().find(message), std::string::npos) << array.status().message();
  EXPECT_EQ(array.status().message().rfind("test.npy: ", 0), 0U) << array.status().message();
}

std::string dictionary(const std::string& descr, const std::string& order, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

const std::string kSixFloats = as_string(iota_f32({6}).bytes);

// numpy.save(f, numpy.arange(6, dtype='f4').reshape(2, 3)), numpy 2.
TEST(Npy, ReadsAndWritesWhatNumpyWrites) {
  const std::string from_numpy =
      npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }" + std::string(58, ' ') + "\n", kSixFloats);
  ASSERT_EQ(from_numpy.size(), 152U);
  const Result<Array> array = parse(from_numpy);
  ASSERT_TRUE(array.ok()) << array.status().message();
  EXPECT_EQ(*array, iota_f32({2, 3}));
  EXPECT_EQ(as_string(*encode_npy(*array, "out")), from_numpy);
}

TEST(Npy, ReadsEveryVersionAndSpelling) {
  for (const int version : {1, 2, 3}) {
    EXPECT_EQ(*parse(npy(dictionary("'<f4'", "False", "(2, 3)"), kSixFloats, version)), iota_f32({2, 3}));
  }
  for (const char* header : {
           "{'descr':'=f4','fortran_order':False,'shape':(2,3)}",
           "{\"shape\": (2L, 3L), \"fortran_order\": False, \"descr\": \"|f4\"}",
           " { 'shape' : ( 2 , 3 , ) , 'descr' : '<f4' , 'fortran_order' : False , } \n",
       }) {
    const Result<Array> array = parse(npy(header, kSixFloats));
    ASSERT_TRUE(array.ok()) << header << array.status().message();
    EXPECT_EQ(*array, iota_f32({2, 3}));
  }
}

TEST(Npy, ReadsEveryDtype) {
  const struct {
    const char* descr;
    Dtype dtype;
  } kRows[] = {{"|i1", Dtype::kS8},  {"|u1", Dtype::kU8},  {"<i2", Dtype::kS16}, {"<u2", Dtype::kU16},
               {"<i4", Dtype::kS32}, {"<u4", Dtype::kU32}, {"<i8", Dtype::kS64}, {"<f2", Dtype::kF16},
               {"<f4", Dtype::kF32}, {"<f8", Dtype::kF64}, {"|b1", Dtype::kU8}};
  for (const auto& row : kRows) {
    const std::string elements(3 * size_in_bytes(row.dtype), '\1');
    const Result<Array> array = parse(npy(dictionary("'" + std::string(row.descr) + "'", "False", "(3,)"), elements));
    ASSERT_TRUE(array.ok()) << array.status().message();
    EXPECT_EQ(array->dtype, row.dtype);
    EXPECT_EQ(array->shape, std::vector<int64_t>{3});
    EXPECT_EQ(as_string(array->bytes), elements);
  }
}

TEST(Npy, ConvertsFortranOrder) {
  // Element (i, j, k) of shape (2, 3, 4) lies at i + 2j + 6k.
  const Result<Array> array =
      parse(npy(dictionary("'<f4'", "True", "(2, 3, 4)"), as_string(iota_f32({2, 3, 4}).bytes)));
  ASSERT_TRUE(array.ok());
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k) {
        EXPECT_EQ(array->data<float>()[(i * 3 + j) * 4 + k], static_cast<float>(i + 2 * j + 6 * k));
      }
    }
  }
  EXPECT_EQ(*parse(npy(dictionary("'<f4'", "True", "(6,)"), kSixFloats)), iota_f32({6}));
  EXPECT_EQ(*parse(npy(dictionary("'<f4'", "True", "()"), kSixFloats.substr(0, 4))), iota_f32({}));
  EXPECT_EQ(*parse(npy(dictionary("'<f4'", "True", "(3, 0, 2)"), "")), iota_f32({3, 0, 2}));
}

TEST(Npy, RefusesDtypesByName) {
  const auto refused = [](const std::string& descr, const std::string& message) {
    expect_refused(npy(dictionary(descr, "False", "(2, 3)"), kSixFloats), StatusCode::kUnsupported, message);
  };
  refused("'>f4'", "big-endian dtype '>f4'");
  refused("'|O'", "dtype '|O' is not one of f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 b1 (pickled Python objects)");
  refused("'<u8'", "dtype '<u8'");
  refused("'<c8'", "dtype '<c8'");
  refused("'<U7'", "dtype '<U7'");
  refused("'<V2'", "dtype '<V2'");
  refused("'f4'", "dtype 'f4'");
  refused("[('a', '<f4'), ('b', '<i4')]", "structured dtype");
  refused("('<f4', (2,))", "structured dtype");
  expect_refused(npy(dictionary("''", "False", "(2, 3)"), kSixFloats), StatusCode::kInvalidFile, "descr is empty");
}

TEST(Npy, RefusesVersionsAndBrokenHeaders) {
  expect_refused("", StatusCode::kInvalidFile, "does not begin with the npy magic");
  expect_refused(npy(dictionary("'<f4'", "False", "(2, 3)"), kSixFloats, 4), StatusCode::kUnsupported,
                 "npy version 4.0");
  const auto refused = [](const std::string& header, const std::string& message) {
    expect_refused(npy(header, kSixFloats), StatusCode::kInvalidFile, message);
  };
  refused("", "'{' expected");
  refused("{}", "the npy header has no 'descr'");
  refused("{'descr': '<f4', 'shape': (2, 3)}", "the npy header has no 'fortran_order'");
  refused("{'descr': '<f4', 'fortran_order': False}", "the npy header has no 'shape'");
  refused("{'descr': '<f4', 'descr': '<f4'}", "'descr' twice");
  refused("{'other': 1}", "unknown key 'other'");
  refused("{'\xff\n': 1}", "unknown key '\?\?'");
  refused("{'descr", "a key expected");
  refused("{'descr' '<f4'}", "':' expected");
  refused("{'descr': 3}", "the dtype as a string expected");
  refused("{'descr': '<f4' 'shape': (2, 3)}", "',' or '}' expected");
  refused("{,}", "a key expected");
  refused(dictionary("'<f4'", "Maybe", "(2, 3)"), "True or False expected, not 'Maybe");
  refused(dictionary("'<f4'", "False", "6"), "'(' expected");
  refused(dictionary("'<f4'", "False", "(-2, 3)"), "a dimension expected, not '-2");
  refused(dictionary("'<f4'", "False", "(2 3)"), "',' or ')' expected");
  refused(dictionary("'<f4'", "False", "(9223372036854775808,)"), "a dimension below 2^63 expected");
  refused(dictionary("'<f4'", "False", "(2, 3)") + "x", "nothing more expected, not 'x'");
  refused(dictionary("'<f4'", "False", "(2, 3)") + std::string(1, '\0'), "nothing more expected");
  std::string many = "(";
  for (int i = 0; i < 65; ++i) many += "1,";
  refused(dictionary("'<f4'", "False", many + ")"), "more than 64 dimensions");
  expect_refused(npy("", "", 2).replace(8, 4, number(0xffffffff, 4)), StatusCode::kInvalidFile,
                 "npy header of 4294967295 bytes, but only 0 follow");
}

TEST(Npy, RefusesLyingSizes) {
  const auto refused = [](const std::string& shape, const std::string& message) {
    expect_refused(npy(dictionary("'<f4'", "False", shape), kSixFloats), StatusCode::kInvalidFile, message);
  };
  refused("(2, 4)", "shape (2, 4) of f32 needs 32 bytes, but the file has 24");
  refused("(5,)", "shape (5,) of f32 needs 20 bytes, but the file has 24");
  refused("(1000000000000,)", "needs 4000000000000 bytes");
  // Products that come out as 24 or 0 when they wrap around.
  refused("(4611686018427387904, 6)", "needs 2^63 or more bytes");
  refused("(4294967296, 4294967296)", "needs 2^63 or more bytes");
  refused("(9223372036854775807, 9223372036854775807, 0)", "needs 2^63 or more bytes");
  expect_refused(npy(dictionary("'<f4'", "True", "(4294967296, 0, 4294967296)"), ""), StatusCode::kInvalidFile,
                 "needs 2^63 or more bytes");
}

TEST(Npy, SurvivesDamage) {
  expect_damage_is_survived(npy(dictionary("'<f4'", "True", "(2, 3)"), kSixFloats), parse_npy);
  expect_damage_is_survived(npy(dictionary("'<f4'", "False", "(2, 3)"), kSixFloats, 2), parse_npy);
}

TEST(Npy, WriterRefusesBfloat16AndInconsistentArrays) {
  EXPECT_EQ(encode_npy(Array::zeros(Dtype::kBF16, {2}), "out").status().code(), StatusCode::kUnsupported);
  Array array = iota_f32({2});
  array.shape = {3};
  EXPECT_EQ(encode_npy(array, "out").status().message(), "out: shape (3,) of f32 does not fit the array's 8 bytes");
  array.shape = {-2};
  EXPECT_EQ(encode_npy(array, "out").status().code(), StatusCode::kInvalidArgument);
  array.shape.assign(65, 1);
  EXPECT_EQ(encode_npy(array, "out").status().code(), StatusCode::kInvalidArgument);
  // The longest header there is.
  array = Array::zeros(Dtype::kF32, {0});
  array.shape.assign(64, 1);
  array.shape[0] = 0;
  array.shape[1] = 2305843009213693951;
  const auto content = encode_npy(array, "out");
  ASSERT_TRUE(content.ok());
  EXPECT_EQ(*parse_npy(content->data(), content->size(), "again"), array);
}

}  // namespace
}  // namespace isobit
