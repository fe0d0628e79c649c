// SPDX-License-Identifier: Apache-2.0
// Exported C, compiled and run here, beside the library.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <sstream>

#include "core/codes.h"
#include "core/toolchain/c_source.h"
#include "core/toolchain/process.h"
#include "isobit/export.h"

namespace isobit {
namespace {

std::vector<std::string> compiler_words(const std::string& compiler) {
  const char* const of_environment = std::getenv("CC");
  std::istringstream stream(!compiler.empty()                                        ? compiler
                            : of_environment != nullptr && of_environment[0] != '\0' ? of_environment
                                                                                     : "cc");
  std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  if (words.empty()) words.emplace_back("cc");
  return words;
}

/// y of the code for x; `first` and `second` are sizes that its program asks for.
Result<std::vector<std::byte>> run_export(const CExport& code, std::span<const std::byte> x, int64_t first,
                                          int64_t second, size_t y_bytes, const std::string& compiler) {
  ISOBIT_ASSIGN_OR_RETURN(const WorkFolder folder, WorkFolder::create("export"));
  for (const ExportedFile& file : code.files) ISOBIT_RETURN_IF_ERROR(folder.write(file.name, file.text));
  const std::string main = folder.file(code.name + "_check.c"), program = folder.file(code.name + "_check");
  ISOBIT_RETURN_IF_ERROR(folder.write(code.name + "_check.c", code.check_program));
  std::vector<std::string> words = compiler_words(compiler);
  const std::string name = words[0];
  words.insert(words.end(), {"-std=c99", "-O2", "-D" + upper_case(code.name) + "_PORTABLE", "-I", folder.path(), "-o",
                             program, main, folder.file(code.name + ".c"), folder.file(code.name + "_data.c")});
  ISOBIT_ASSIGN_OR_RETURN(const ProcessResult compiled, run_process(words));
  if (compiled.exit_status != 0)
    return Status(StatusCode::kFailedPrecondition, name + " refuses the exported C: " + compiled.error.substr(0, 500));
  const int32_t sizes[2] = {static_cast<int32_t>(first), static_cast<int32_t>(second)};
  std::string input(reinterpret_cast<const char*>(sizes), sizeof sizes);
  input.append(reinterpret_cast<const char*>(x.data()), x.size());
  ISOBIT_ASSIGN_OR_RETURN(const ProcessResult run, run_process({program}, input));
  if (run.exit_status != 0 || run.output.size() != y_bytes)
    return Status(StatusCode::kFailedPrecondition, "the exported C gave " + std::to_string(run.output.size()) +
                                                       " bytes, not " + std::to_string(y_bytes) + ", and exit status " +
                                                       std::to_string(run.exit_status) + ": " +
                                                       run.error.substr(0, 500));
  std::vector<std::byte> y(y_bytes);
  std::memcpy(y.data(), run.output.data(), y_bytes);
  return y;
}

/// `place`: "y[3, 0, 17]" of an index.
CCheck compared(std::span<const std::byte> expected, std::span<const std::byte> actual, Dtype dtype,
                const std::function<std::string(int64_t index)>& place) {
  CCheck check;
  check.codes_compared = static_cast<int64_t>(expected.size() / size_in_bytes(dtype));
  for (int64_t i = 0; i < check.codes_compared; ++i) {
    const int64_t want = load_code(expected.data(), dtype, i), got = load_code(actual.data(), dtype, i);
    if (want == got) continue;
    check.first_difference = place(i) + " is " + std::to_string(got) + ", isobit gives " + std::to_string(want);
    break;
  }
  return check;
}

Status check_size(std::span<const std::byte> x, int64_t codes, Dtype dtype) {
  if (codes >= 0 && codes <= INT32_MAX && x.size() == static_cast<size_t>(codes) * size_in_bytes(dtype)) return {};
  return {StatusCode::kInvalidArgument, "x has " + std::to_string(x.size()) + " bytes, must have " +
                                            std::to_string(codes) + " codes of " + std::string(to_string(dtype))};
}

}  // namespace

Result<CCheck> check_c_export(const CExport& code, const GruModel& model, std::span<const std::byte> x, int64_t steps,
                              int64_t batch, const std::string& compiler) {
  const Dtype x_dtype = model.input_grid().dtype(), y_dtype = model.output_grid().dtype();
  ISOBIT_RETURN_IF_ERROR(check_size(x, steps * batch * model.input_size(), x_dtype));
  std::vector<std::byte> y(static_cast<size_t>(steps * batch * model.output_size()) * size_in_bytes(y_dtype));
  GruState state = model.initial_state(batch);
  Workspace workspace = model.workspace(batch, steps);
  RunOptions options;
  options.whole_sequence = true;
  ISOBIT_RETURN_IF_ERROR(model.forward_codes(x, y, steps, state, workspace, options));
  // The program takes one sequence after the other.
  const auto reordered = [&](std::span<const std::byte> from, size_t row) {
    std::vector<std::byte> to(from.size());
    for (int64_t n = 0; n < batch; ++n)
      for (int64_t t = 0; t < steps; ++t)
        std::memcpy(to.data() + static_cast<size_t>(n * steps + t) * row,
                    from.data() + static_cast<size_t>(t * batch + n) * row, row);
    return to;
  };
  const std::vector<std::byte> of_sequences =
      reordered(x, static_cast<size_t>(model.input_size()) * size_in_bytes(x_dtype));
  const std::vector<std::byte> expected =
      reordered(y, static_cast<size_t>(model.output_size()) * size_in_bytes(y_dtype));
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<std::byte> actual,
                          run_export(code, of_sequences, batch, steps, expected.size(), compiler));
  return compared(expected, actual, y_dtype, [&](int64_t i) {
    const int64_t row = i / model.output_size();
    return "y[" + std::to_string(row % steps) + ", " + std::to_string(row / steps) + ", " +
           std::to_string(i % model.output_size()) + "]";
  });
}

Result<CCheck> check_c_export(const CExport& code, const StaticLinearLayer& layer, std::span<const std::byte> x,
                              int64_t m, const std::string& compiler) {
  const StaticLinearParameters& p = layer.parameters();
  ISOBIT_RETURN_IF_ERROR(check_size(x, m * p.columns, p.x_dtype()));
  std::vector<std::byte> y(static_cast<size_t>(m * p.rows) * size_in_bytes(p.y_dtype()));
  Workspace workspace = layer.workspace(m);
  ISOBIT_RETURN_IF_ERROR(layer.forward_codes(x, y, m, workspace));
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<std::byte> actual, run_export(code, x, m, 1, y.size(), compiler));
  return compared(y, actual, p.y_dtype(), [&](int64_t i) {
    return "y[" + std::to_string(i / p.rows) + ", " + std::to_string(i % p.rows) + "]";
  });
}

Result<CCheck> check_c_export(const CExport& code, const StaticConvLayer& layer, std::span<const std::byte> x,
                              int64_t images, const ImageSize& image, const std::string& compiler) {
  const StaticConvParameters& p = layer.parameters();
  if (p.residual)
    return Status(StatusCode::kUnsupported, "check: the convolution adds a residual, which the data has not");
  ISOBIT_RETURN_IF_ERROR(check_size(x, images * image.rows * image.columns * p.shape.channels, p.linear.x_dtype()));
  ISOBIT_ASSIGN_OR_RETURN(const ImageSize out, conv_output_size(p.shape, image, layer.name()));
  const int64_t of_image = out.rows * out.columns * p.shape.outputs;
  std::vector<std::byte> y(static_cast<size_t>(images * of_image) * size_in_bytes(p.linear.y_dtype()));
  ISOBIT_ASSIGN_OR_RETURN(Workspace workspace, layer.workspace(images, image));
  ISOBIT_RETURN_IF_ERROR(layer.forward(x, y, images, image, workspace));
  ISOBIT_ASSIGN_OR_RETURN(const std::vector<std::byte> actual,
                          run_export(code, x, image.rows, image.columns, y.size(), compiler));
  return compared(y, actual, p.linear.y_dtype(), [&](int64_t i) {
    const int64_t pixel = i % of_image / p.shape.outputs;
    return "y[" + std::to_string(i / of_image) + ", " + std::to_string(pixel / out.columns) + ", " +
           std::to_string(pixel % out.columns) + ", " + std::to_string(i % p.shape.outputs) + "]";
  });
}

}  // namespace isobit
