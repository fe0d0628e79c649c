// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>

#include "isobit/report.h"

namespace isobit {
namespace {

const std::vector<float> kCuts = {-20.359375f, -8.3671875f, -1.9755859375f, -0.255615234375f, 0.228515625f, 1.58203125f,
                                  10.46875f,   64.0f,       256.0f,         1024.0f,          65504.0f};

Fp16Table silu() {
  Result<Fp16Table> table = import_fp16_table("silu", kCuts, {});
  EXPECT_TRUE(table.ok()) << table.status().message();
  return *std::move(table);
}

ActivationTable tanh_segments() {
  Grid input, output;
  input.bits = output.bits = 12;
  input.is_signed = output.is_signed = true;
  input.shift = 8;
  output.shift = 11;
  Result<ActivationTable> table = fit_table(Activation::kTanh, input, output,
                                            {.kind = TableKind::kSegments, .segments = 8}, Rounding::kNearestEven);
  EXPECT_TRUE(table.ok()) << table.status().message();
  return *std::move(table);
}

template <typename Table, typename Exact>
void check_svg(const Table& table, const Exact& exact, const std::string& title) {
  const Result<std::string> svg = svg_of_table(table, exact);
  ASSERT_TRUE(svg.ok()) << svg.status().message();
  EXPECT_EQ(svg->rfind("<?xml", 0), 0);
  EXPECT_NE(svg->find(title), std::string::npos);
  EXPECT_NE(svg->find("at most"), std::string::npos);
  EXPECT_LT(svg->size(), 300000);
  const Result<std::string> again = svg_of_table(table, exact);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*svg, *again);
}

template <typename Table, typename Exact>
void check_text(const Table& table, const Exact& exact) {
  const Result<std::string> text = text_plot(table, exact);
  ASSERT_TRUE(text.ok()) << text.status().message();
  std::istringstream lines(*text);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 80) << line;
  EXPECT_GE(count, 6);
}

TEST(Plot, Fp16Table) {
  const Fp16Table table = silu();
  check_svg(table, *fp16_exact("silu"), "silu");
  check_text(table, *fp16_exact("silu"));
}

// A function that is infinite, or not a number, where the table is not, and the other way round.
TEST(Plot, InfiniteErrors) {
  const Fp16Table table = silu();
  for (const char* other : {"log", "reciprocal", "exp"}) {
    check_svg(table, *fp16_exact(other), "infinite");
    const Result<std::string> text = text_plot(table, *fp16_exact(other));
    ASSERT_TRUE(text.ok());
    EXPECT_NE(text->find("! infinite"), std::string::npos);
    check_text(table, *fp16_exact(other));
  }
  check_svg(table, std::vector<uint16_t>(65536, 0x7e00), "silu");
}

TEST(Plot, IntegerTable) {
  const ActivationTable table = tanh_segments();
  const auto exact = *exact_codes(table.function, table.input, table.output);
  check_svg(table, exact, "tanh");
  check_text(table, exact);
}

TEST(Plot, Refusals) {
  const Fp16Table table = silu();
  EXPECT_EQ(svg_of_table(table, {1, 2}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(text_plot(table, {1, 2}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(svg_of_table(tanh_segments(), {1}).status().code(), StatusCode::kInvalidArgument);
}

TEST(Plot, WithoutGnuplot) {
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", "/nowhere", 1);
  const Result<std::string> svg = svg_of_table(silu(), *fp16_exact("silu"));
  ::setenv("PATH", path.c_str(), 1);
  ASSERT_FALSE(svg.ok());
  EXPECT_EQ(svg.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(svg.status().message().find("gnuplot-nox"), std::string::npos) << svg.status().message();
}

}  // namespace
}  // namespace isobit
