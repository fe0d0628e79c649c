// SPDX-License-Identifier: Apache-2.0
// Internal: fits FUNCTION and prints the table as a C++ initializer of Fp16Table. Floats
// are hexadecimal, so that they are exact, and there are six on a line, so that a change is easy to see.
//   fp16_fit_tool FUNCTION [MODEL] [half]
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/fp16_table.h"

namespace {

void print_floats(const char* field, const std::vector<float>& values) {
  std::printf("    .%s = {", field);
  for (size_t i = 0; i < values.size(); ++i)
    std::printf("%s%af,", i % 6 == 0 ? "\n      " : " ", static_cast<double>(values[i]));
  std::printf("},\n");
}

}  // namespace

int main(int argc, char** argv) {
  isobit::Fp16FitOptions options;
  bool valid = argc >= 2;
  for (int i = 2; i < argc; ++i) {
    if (std::string_view(argv[i]) == "half") {
      options.half_values = true;
    } else if (const auto model = isobit::fp16_model_from_string(argv[i])) {
      options.model = *model;
    } else {
      valid = false;
    }
  }
  if (!valid) {
    std::fprintf(stderr, "usage: fp16_fit_tool FUNCTION [f32|nli_gpu|nli_cpu] [half]\n");
    return 2;
  }
  const auto table = isobit::fit_fp16_table(argv[1], options);
  if (!table.ok()) {
    std::fprintf(stderr, "%s\n", table.status().message().c_str());
    return 1;
  }
  const isobit::Fp16Certificate& c = table->certificate;
  std::printf("// SPDX-License-Identifier: Apache-2.0\n// Made by fp16_fit_tool");
  for (int i = 1; i < argc; ++i) std::printf(" %s", argv[i]);
  std::printf(": not to be edited.\nFp16Table{\n  .function = \"%s\",\n", table->function.c_str());
  std::printf("  .beta = %a,\n  .model = static_cast<Fp16Model>(%d),  // %s\n", table->beta,
              static_cast<int>(table->model), std::string(to_string(table->model)).c_str());
  std::printf("  .half_values = %s,\n", table->half_values ? "true" : "false");
  std::printf("  .reduction = static_cast<Fp16Reduction>(%d),  // %s\n  .pieces = {\n",
              static_cast<int>(table->reduction), std::string(to_string(table->reduction)).c_str());
  for (const isobit::Fp16Pieces& pieces : table->pieces) {
    std::printf("   {.steps = {");
    for (const int32_t steps : pieces.steps) std::printf("%d, ", steps);
    std::printf("},\n");
    print_floats("cut_points", pieces.cut_points);
    print_floats("scales", pieces.scales);
    print_floats("values", pieces.values);
    std::printf("   },\n");
  }
  std::printf("  },\n  // max_ulp, mean_ulp, worst_code, max_absolute, share_exact, share_within_ulp\n");
  std::printf("  .certificate = {%a, %a, 0x%04x, %a, %a, %a},\n}\n", c.max_ulp, c.mean_ulp, c.worst_code,
              c.max_absolute, c.share_exact, c.share_within_ulp);
  return 0;
}
