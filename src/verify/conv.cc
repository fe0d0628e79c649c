// SPDX-License-Identifier: Apache-2.0
#include "verify/conv.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "conv/random_shape.h"
#include "core/codes.h"
#include "core/hash.h"
#include "core/random.h"
#include "isobit/conv.h"
#include "isobit/parallel.h"
#include "verify/linear.h"
#include "verify/operations.h"

namespace isobit {
namespace {

using Bytes = std::vector<std::byte>;

struct ConvCase {
  StaticConvParameters parameters;
  ImageSize image, size;
  int64_t images = 1;
  Bytes x, residual;

  [[nodiscard]] int64_t outputs() const { return images * size.rows * size.columns * parameters.shape.outputs; }
};

/// Any code of the grid, in every fourth row its ends.
Bytes random_codes(Random& random, const Grid& grid, int64_t rows, int64_t columns) {
  Bytes codes(static_cast<size_t>(rows * columns) * size_in_bytes(grid.dtype()));
  for (int64_t i = 0; i < rows * columns; ++i) {
    const bool end = i / columns % 4 == 3;
    const int64_t any = random.between(grid.min(), grid.max());
    store_code(codes.data(), grid.dtype(), i, !end ? any : any % 2 == 0 ? grid.min() : grid.max());
  }
  return codes;
}

/// A layer that the proof admits, with its inputs.
Result<ConvCase> random_case(Random& random, bool any_width) {
  for (;;) {
    ConvCase c;
    c.parameters.shape = random_conv_shape(random);
    c.images = random.between(1, 3);
    c.image = {random.between(1, 9), random.between(1, 9)};
    if (c.parameters.shape.channels < 5 && random.one_in(4)) c.image = {random.between(20, 40), random.between(15, 40)};
    const ConvShape& shape = c.parameters.shape;
    const Result<ImageSize> size = conv_output_size(shape, c.image, "random");
    if (!size.ok()) continue;  // a kernel larger than the image
    c.size = *size;
    c.parameters.linear = random_static(random, shape.outputs, shape.depth(), any_width);
    if (any_width) narrow_weights(c.parameters.linear, 1 << random.between(0, 3));
    if (c.parameters.linear.output && random.one_in(4)) {
      Grid grid{.bits = any_width ? static_cast<int32_t>(random.between(2, 16)) : 8, .is_signed = random.one_in(2)};
      grid.zero_point = random.between(grid.min(), grid.max());
      c.parameters.residual = StaticResidual{grid, {static_cast<int32_t>(random.between(1, 1 << 30)), 29}};
    }
    const Status proof = StaticConvLayer::create(c.parameters, "random", CpuPath::kReference).status();
    if (proof.code() == StatusCode::kOverflow) continue;
    ISOBIT_RETURN_IF_ERROR(proof);
    c.x = random_codes(random, c.parameters.linear.input, c.images * c.image.rows * c.image.columns, shape.channels);
    if (c.parameters.residual)
      c.residual = random_codes(random, c.parameters.residual->grid, c.outputs() / shape.outputs, shape.outputs);
    return c;
  }
}

std::string describe(const ConvCase& c, uint64_t seed, int64_t index) {
  const ConvShape& shape = c.parameters.shape;
  const auto axis = [](const ConvAxis& a) {
    return std::to_string(a.kernel) + " stride " + std::to_string(a.stride) + " dilation " +
           std::to_string(a.dilation) + " pads " + std::to_string(a.pad_before) + " " + std::to_string(a.pad_after);
  };
  return "seed " + std::to_string(seed) + " convolution " + std::to_string(index) + ": " + std::to_string(c.images) +
         " of " + std::to_string(c.image.rows) + "x" + std::to_string(c.image.columns) + "x" +
         std::to_string(shape.channels) + " to " + std::to_string(shape.outputs) + ", groups " +
         std::to_string(shape.groups) + (shape.transposed ? ", transposed, " : ", ") + axis(shape.rows) + ", " +
         axis(shape.columns) + ", " + std::to_string(c.parameters.linear.input.bits) + " bits" +
         (c.parameters.residual ? ", residual" : "");
}

Result<Bytes> run(const ConvCase& c, std::optional<CpuPath> path, ThreadPool* pool) {
  ISOBIT_ASSIGN_OR_RETURN(const StaticConvLayer layer, StaticConvLayer::create(c.parameters, "random", path));
  ISOBIT_ASSIGN_OR_RETURN(Workspace workspace,
                          layer.workspace(c.images, c.image, pool == nullptr ? 1 : pool->threads()));
  Bytes y(static_cast<size_t>(c.outputs()) * size_in_bytes(c.parameters.linear.y_dtype()), std::byte{0xa5});
  ISOBIT_RETURN_IF_ERROR(layer.forward(c.x, y, c.images, c.image, workspace, {.pool = pool}, c.residual));
  return y;
}

void compare(const ConvCase& c, const Bytes& expected, const Bytes& actual, const std::string& text,
             VerifyKernel& kernel) {
  kernel.outputs_compared += static_cast<uint64_t>(c.outputs());
  kernel.bytes_compared += expected.size();
  const Dtype dtype = c.parameters.linear.y_dtype();
  for (int64_t i = 0; expected != actual && i < c.outputs(); ++i) {
    const int64_t want = load_code(expected.data(), dtype, i), got = load_code(actual.data(), dtype, i);
    if (want != got)
      note_difference(kernel, 1,
                      text + ": output " + std::to_string(i) + " is " + std::to_string(got) + ", the reference gives " +
                          std::to_string(want));
  }
}

}  // namespace

bool has_conv_kernel(CpuPath path) {
  const auto kernels = static_conv_kernels();
  return std::any_of(kernels.begin(), kernels.end(), [&](const auto& kernel) { return kernel.path == path; });
}

Result<VerifyReport> verify_conv(const VerifyOptions& options) {
  VerifyReport report;
  std::vector<CpuPath> paths;
  for (const LinearLayerKernel& row : static_conv_kernels())
    if (auto kernel = cpu_kernel(std::string(row.name), row.path)) {
      report.kernels.push_back(*std::move(kernel));
      paths.push_back(row.path);
    }
  ThreadPool pool(3);
  const auto round = [&](int64_t index) -> Result<uint64_t> {
    Random random(options.seed * 0x10001 + static_cast<uint64_t>(index));
    ISOBIT_ASSIGN_OR_RETURN(const ConvCase c, random_case(random, random.one_in(2)));
    ISOBIT_ASSIGN_OR_RETURN(const Bytes expected, run(c, CpuPath::kReference, nullptr));
    for (size_t i = 0; i < paths.size(); ++i) {
      ISOBIT_ASSIGN_OR_RETURN(const Bytes actual, run(c, paths[i], random.one_in(2) ? &pool : nullptr));
      compare(c, expected, actual, describe(c, options.seed, index), report.kernels[i]);
    }
    return report.kernels.front().outputs_compared;  // each has run every case
  };
  ISOBIT_RETURN_IF_ERROR(repeat_until(options.outputs, options.progress, round));
  return report;
}

Status fingerprint_conv(std::optional<CpuPath> path, Fingerprints& lines) {
  Random random(20261127);
  uint64_t hash = kHashStart;
  for (int index = 0; index < 96; ++index) {
    ISOBIT_ASSIGN_OR_RETURN(const ConvCase c, random_case(random, index % 2 == 1));
    ISOBIT_ASSIGN_OR_RETURN(const Bytes y, run(c, path, nullptr));
    hash_bytes(hash, y.data(), y.size());
  }
  lines.emplace_back("conv_static", hash_text(hash));
  return {};
}

}  // namespace isobit
