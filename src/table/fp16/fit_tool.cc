// SPDX-License-Identifier: Apache-2.0
// Internal, for scripts/fit_tables.sh: fits the built-in tables of FUNCTION and prints its file of
// src/table/fp16/fitted/. Without an argument: prints the names of all functions.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "core/half.h"
#include "isobit/fp16_table.h"

namespace {

using isobit::Fp16Model;
using isobit::Fp16Table;

/// inverse_sigmoid -> kInverseSigmoid
std::string constant_name(std::string_view function) {
  std::string name = "k";
  bool begins_word = true;
  for (const char c : function) {
    if (c != '_') name += begins_word && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    begins_word = c == '_';
  }
  return name;
}

void print_bits(const std::vector<float>& values, bool half) {
  const size_t in_line = half ? 16 : 10;
  for (size_t i = 0; i < values.size(); ++i) {
    const unsigned bits = half ? isobit::f32_to_f16(values[i]) : __builtin_bit_cast(uint32_t, values[i]);
    std::printf(half ? "%s0x%04x," : "%s0x%08x,", i == 0 ? "" : (i % in_line == 0 ? "\n" : " "), bits);
  }
  std::printf("\n");
}

void print_number(double value) {
  if (std::isinf(value)) {
    std::printf("kInfinite, ");
  } else {
    std::printf("%a, ", value);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) {
    for (const std::string_view name : isobit::fp16_functions()) std::printf("%s\n", std::string(name).c_str());
    return 0;
  }
  if (argc != 2) {
    std::fprintf(stderr, "usage: fp16_fit_tool [FUNCTION]\n");
    return 2;
  }
  std::vector<Fp16Table> tables;  // float32 values of each model, then float16 values
  for (const bool half : {false, true})
    for (const Fp16Model model : {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu}) {
      isobit::Fp16FitOptions options;
      options.model = model;
      options.half_values = half;
      auto table = isobit::fit_fp16_table(argv[1], options);
      if (!table.ok()) {
        std::fprintf(stderr, "error: %s, model %s: %s\n", argv[1], std::string(to_string(model)).c_str(),
                     table.status().message().c_str());
        return 1;
      }
      const isobit::Fp16Certificate& c = table->certificate;
      std::fprintf(stderr, "%s %s %s max_ulp %g mean_ulp %.5f share_exact %.4f\n", argv[1],
                   std::string(to_string(model)).c_str(), half ? "float16" : "float32", c.max_ulp, c.mean_ulp,
                   c.share_exact);
      tables.push_back(*std::move(table));
    }
  // Cut points of the real argument are float16 numbers; those of a reduced one are not.
  bool half_cuts = true;
  for (const Fp16Table& table : tables)
    for (const isobit::Fp16Pieces& pieces : table.pieces)
      for (const float cut : pieces.cut_points)
        half_cuts = half_cuts && isobit::f16_to_f32(isobit::f32_to_f16(cut)) == cut;

  std::printf("// SPDX-License-Identifier: Apache-2.0\n// Made by scripts/fit_tables.sh: not to be edited.\n");
  std::printf("constexpr Fitted<%s, %zu> %s = {\n", half_cuts ? "uint16_t" : "uint32_t", tables[0].pieces.size(),
              constant_name(argv[1]).c_str());
  std::printf("{  // cut points\n");
  for (const Fp16Table& table : tables)
    for (const isobit::Fp16Pieces& pieces : table.pieces) print_bits(pieces.cut_points, half_cuts);
  std::printf("},\n");
  for (const bool half : {false, true}) {
    std::printf("{  // %s values\n", half ? "float16" : "float32");
    for (const Fp16Table& table : tables)
      if (table.half_values == half)
        for (const isobit::Fp16Pieces& pieces : table.pieces) print_bits(pieces.values, half);
    std::printf("},\n");
  }
  std::printf("{  // certificates\n");
  for (const Fp16Table& table : tables) {
    const isobit::Fp16Certificate& c = table.certificate;
    std::printf("{");
    print_number(c.max_ulp);
    print_number(c.mean_ulp);
    std::printf("0x%04x, ", c.worst_code);
    print_number(c.max_absolute);
    std::printf("%a, %a},\n", c.share_exact, c.share_within_ulp);
  }
  std::printf("},\n};\n");
  return 0;
}
