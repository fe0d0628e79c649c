// SPDX-License-Identifier: Apache-2.0
#include "verify/fp16.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>

#include "core/half.h"
#include "core/hash.h"
#include "core/random.h"
#include "isobit/cpu.h"
#include "isobit/fp16_table.h"

namespace isobit {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kF16, Dtype::kBF16, Dtype::kF32};
constexpr Fp16Model kModels[] = {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu};
constexpr size_t kCodes = 65536;
constexpr size_t kChunk = size_t{1} << 16;

using Bytes = std::vector<std::byte>;

/// All patterns of a 16-bit type; for f32 all float16 numbers.
Bytes all_codes(Dtype dtype) {
  Bytes bytes(kCodes * size_in_bytes(dtype));
  for (uint32_t code = 0; code < kCodes; ++code) {
    const uint32_t bits =
        dtype == Dtype::kF32 ? __builtin_bit_cast(uint32_t, f16_to_f32(static_cast<uint16_t>(code))) : code;
    std::memcpy(bytes.data() + code * size_in_bytes(dtype), &bits, size_in_bytes(dtype));
  }
  return bytes;
}

/// Half of them any bits; half float16 numbers, halfway cases between two, and their neighbours.
Bytes random_f32(Random& random, size_t count) {
  Bytes bytes(count * 4);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t r = random.next();
    auto bits = static_cast<uint32_t>(r);
    if ((r >> 63) != 0) {
      bits = __builtin_bit_cast(uint32_t, f16_to_f32(static_cast<uint16_t>(r)));
      if ((r & 0x10000) != 0) bits += 0x1000;
      bits += static_cast<uint32_t>((r >> 17) % 3) - 1;
    }
    std::memcpy(bytes.data() + i * 4, &bits, 4);
  }
  return bytes;
}

/// Rows of numbers around 0, some with infinities or NaN.
Bytes random_rows(Random& random, size_t rows, size_t columns) {
  Bytes bytes(rows * columns * 2);
  for (size_t row = 0; row < rows; ++row) {
    const bool special = random.one_in(16);
    const float spread = static_cast<float>(1 << random.between(0, 7)) / 4.0f;
    for (size_t i = 0; i < columns; ++i) {
      const float x = spread * (static_cast<float>(random.between(0, 1 << 20)) / static_cast<float>(1 << 19) - 1.0f);
      uint16_t code = f32_to_f16(x);
      if (special && random.one_in(8)) code = random.one_in(2) ? 0xfc00 : static_cast<uint16_t>(random.next());
      std::memcpy(bytes.data() + (row * columns + i) * 2, &code, 2);
    }
  }
  return bytes;
}

/// Counts the elements of two outputs that differ.
void compare(const std::string& what, const Bytes& expected, const Bytes& actual, Dtype dtype, VerifyKernel& kernel) {
  const size_t size = size_in_bytes(dtype);
  const size_t count = expected.size() / size;
  kernel.outputs_compared += count;
  kernel.bytes_compared += expected.size();
  if (expected == actual) return;
  for (size_t i = 0; i < count; ++i) {
    uint32_t want = 0;
    uint32_t got = 0;
    std::memcpy(&want, expected.data() + i * size, size);
    std::memcpy(&got, actual.data() + i * size, size);
    if (want == got) continue;
    note_difference(kernel, 1,
                    what + ": element " + std::to_string(i) + " has the bits " + std::to_string(got) +
                        ", the reference gives " + std::to_string(want));
  }
}

std::string describe(const Fp16Table& table, Dtype x, Dtype y) {
  return table.function + " " + std::string(to_string(table.model)) +
         (table.half_values ? " f16 values, " : " f32 values, ") + std::string(to_string(x)) + " -> " +
         std::string(to_string(y));
}

/// Every kernel that can run here. `run_with` makes what runs a kernel of this name.
template <typename Run>
std::vector<Candidate<Run>> candidates(std::span<const Fp16Kernel> kernels, const std::string& operation,
                                       Run (*run_with)(std::string_view)) {
  std::vector<Candidate<Run>> result;
  for (const Fp16Kernel& kernel : kernels)
    if (auto report = cpu_kernel(operation + "_" + std::string(kernel.name), kernel.path))
      result.push_back({*std::move(report), run_with(kernel.name)});
  return result;
}

Fp16FunctionRun function_run(std::string_view kernel) {
  return [kernel](const Fp16Function& function, std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y,
                  Dtype y_dtype) { return function.forward(x, x_dtype, y, y_dtype, {.kernel = kernel}); };
}

Fp16SoftmaxRun softmax_run(std::string_view kernel) {
  return [kernel](const Fp16Softmax& softmax, std::span<const std::byte> x, std::span<std::byte> y, int64_t columns) {
    return softmax.forward(x, Dtype::kF16, y, Dtype::kF16, columns, {.kernel = kernel});
  };
}

Status compare_function(const Fp16Function& function, const Bytes& x, Dtype x_dtype, Dtype y_dtype,
                        std::vector<Candidate<Fp16FunctionRun>>& kernels) {
  Bytes expected(x.size() / size_in_bytes(x_dtype) * size_in_bytes(y_dtype));
  Bytes actual(expected.size());
  ISOBIT_RETURN_IF_ERROR(function.forward(x, x_dtype, expected, y_dtype, {.kernel = "reference"}));
  for (Candidate<Fp16FunctionRun>& candidate : kernels) {
    std::fill(actual.begin(), actual.end(), std::byte{0xa5});
    ISOBIT_RETURN_IF_ERROR(candidate.run(function, x, x_dtype, actual, y_dtype));
    compare(describe(function.table(), x_dtype, y_dtype), expected, actual, y_dtype, candidate.report);
  }
  return {};
}

Result<Fp16Softmax> builtin_softmax(Fp16Model model) {
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Table exp, builtin_fp16_table("exp", model));
  ISOBIT_ASSIGN_OR_RETURN(const Fp16Table reciprocal, builtin_fp16_table("reciprocal", model));
  return Fp16Softmax::create(exp, reciprocal);
}

/// The kernel of a path, or of the nearest path before it. Interpolating rather than direct: it computes more.
std::string_view kernel_of(std::span<const Fp16Kernel> kernels, CpuPath path) {
  std::string_view name = "reference";
  for (const Fp16Kernel& kernel : kernels)
    if (kernel.path <= path && cpu_can_run(kernel.path) && !kernel.direct) name = kernel.name;
  return name;
}

}  // namespace

Fp16FunctionRun fp16_function_run(std::optional<CpuPath> path) {
  return function_run(path ? kernel_of(fp16_kernels(), *path) : std::string_view());
}

Fp16SoftmaxRun fp16_softmax_run(std::optional<CpuPath> path) {
  return softmax_run(path ? kernel_of(fp16_softmax_kernels(), *path) : std::string_view());
}

bool has_fp16_kernel(CpuPath path) {
  const auto kernels = fp16_kernels();
  return std::any_of(kernels.begin(), kernels.end(), [path](const Fp16Kernel& kernel) { return kernel.path == path; });
}

Result<VerifyReport> verify_fp16(const VerifyOptions& options) {
  return verify_fp16_with(candidates(fp16_kernels(), "fp16_table", function_run),
                          candidates(fp16_softmax_kernels(), "fp16_softmax", softmax_run), options);
}

Result<VerifyReport> verify_fp16_with(std::vector<Candidate<Fp16FunctionRun>> functions,
                                      std::vector<Candidate<Fp16SoftmaxRun>> softmaxes, const VerifyOptions& options) {
  const auto names = fp16_functions();
  const Bytes codes[] = {all_codes(kDtypes[0]), all_codes(kDtypes[1]), all_codes(kDtypes[2])};
  const size_t tables = names.size() * std::size(kModels) * 2;
  Random random(options.seed);
  uint64_t outputs = 0;
  // First every code of every table, in an order that mixes functions, models and types of values; then random inputs.
  const auto visit_table = [&](int64_t visit) -> Result<uint64_t> {
    const bool first = static_cast<size_t>(visit) < tables;
    const size_t index = static_cast<size_t>(visit) % tables;
    const bool half_values = (index / names.size()) % 2 != 0;
    const Fp16Model model = kModels[index / names.size() / 2];
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, builtin_fp16_table(names[index % names.size()], model, half_values));
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Function function, Fp16Function::create(table));
    const auto run = [&](const Bytes& x, Dtype x_dtype, Dtype y_dtype) {
      outputs += x.size() / size_in_bytes(x_dtype);
      return compare_function(function, x, x_dtype, y_dtype, functions);
    };
    for (size_t x = 0; first && x < std::size(kDtypes); ++x)
      for (const Dtype y_dtype : kDtypes) ISOBIT_RETURN_IF_ERROR(run(codes[x], kDtypes[x], y_dtype));
    for (size_t chunk = 0; chunk < (first ? 1 : 16); ++chunk)
      ISOBIT_RETURN_IF_ERROR(run(random_f32(random, kChunk), Dtype::kF32, Dtype::kF32));
    return outputs;
  };
  ISOBIT_RETURN_IF_ERROR(repeat_until(options.outputs, part_of(options.progress, 0, 0.9), visit_table));

  std::vector<Fp16Softmax> all;
  for (const Fp16Model model : kModels) {
    ISOBIT_ASSIGN_OR_RETURN(Fp16Softmax softmax, builtin_softmax(model));
    all.push_back(std::move(softmax));
  }
  outputs = 0;
  const auto run_softmaxes = [&](int64_t) -> Result<uint64_t> {
    const Fp16Softmax& softmax = all[static_cast<size_t>(random.between(0, 2))];
    const auto columns = static_cast<size_t>(random.one_in(4) ? random.between(1, 5000) : random.between(1, 100));
    const size_t rows = std::max<size_t>(1, 20000 / columns);
    const Bytes x = random_rows(random, rows, columns);
    Bytes expected(x.size());
    Bytes actual(x.size());
    const std::string what =
        "softmax " + std::string(to_string(softmax.exp_table().model)) + ", " + std::to_string(columns) + " columns";
    ISOBIT_RETURN_IF_ERROR(softmax_run("reference")(softmax, x, expected, static_cast<int64_t>(columns)));
    for (Candidate<Fp16SoftmaxRun>& candidate : softmaxes) {
      std::fill(actual.begin(), actual.end(), std::byte{0xa5});
      ISOBIT_RETURN_IF_ERROR(candidate.run(softmax, x, actual, static_cast<int64_t>(columns)));
      compare(what, expected, actual, Dtype::kF16, candidate.report);
    }
    return outputs += rows * columns;
  };
  ISOBIT_RETURN_IF_ERROR(repeat_until(options.outputs / 10, part_of(options.progress, 0.9, 0.1), run_softmaxes));
  VerifyReport report;
  append_reports(functions, report);
  append_reports(softmaxes, report);
  return report;
}

Status fingerprint_fp16(const Fp16FunctionRun& run_function, const Fp16SoftmaxRun& run_softmax, Fingerprints& lines) {
  uint64_t hash = kHashStart;
  Random random(20261121);
  const Bytes codes = all_codes(Dtype::kF16);
  Bytes y(kCodes * 4);
  for (const std::string_view name : fp16_functions())
    for (const Fp16Model model : kModels)
      for (const bool half_values : {false, true}) {
        ISOBIT_ASSIGN_OR_RETURN(const Fp16Table table, builtin_fp16_table(name, model, half_values));
        ISOBIT_ASSIGN_OR_RETURN(const Fp16Function function, Fp16Function::create(table));
        const std::span<std::byte> half(y.data(), kCodes * 2);
        ISOBIT_RETURN_IF_ERROR(run_function(function, codes, Dtype::kF16, half, Dtype::kF16));
        hash_bytes(hash, half.data(), half.size());
        const Bytes x = random_f32(random, 4096);
        const std::span<std::byte> wide(y.data(), x.size());
        ISOBIT_RETURN_IF_ERROR(run_function(function, x, Dtype::kF32, wide, Dtype::kF32));
        hash_bytes(hash, wide.data(), wide.size());
      }
  lines.emplace_back("fp16_table", hash_text(hash));

  hash = kHashStart;
  for (const Fp16Model model : kModels) {
    ISOBIT_ASSIGN_OR_RETURN(const Fp16Softmax softmax, builtin_softmax(model));
    for (const size_t columns : {1, 2, 3, 17, 64, 1000}) {
      const Bytes x = random_rows(random, 20, columns);
      Bytes rows(x.size());
      ISOBIT_RETURN_IF_ERROR(run_softmax(softmax, x, rows, static_cast<int64_t>(columns)));
      hash_bytes(hash, rows.data(), rows.size());
    }
  }
  lines.emplace_back("fp16_softmax", hash_text(hash));
  return {};
}

}  // namespace isobit
