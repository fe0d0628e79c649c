// SPDX-License-Identifier: Apache-2.0
// Random layers and images through every kernel of convolutions.
#include "verify/conv.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "conv/random_shape.h"
#include "conv/reference.h"
#include "core/codes.h"
#include "core/hash.h"
#include "core/random.h"
#include "isobit/parallel.h"
#include "linear/layer_reference.h"

namespace isobit {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int64_t kMostProducts = 4'000'000'000;  // of a case of a device: below a second of a vector path
constexpr int kFingerprintCases = 96;

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

/// Channels, outputs and images as those of networks: blocks of threads have many rows, and some images are gathered in
/// several pieces.
void enlarge(Random& random, ConvShape& shape, ImageSize& image) {
  const bool depthwise = shape.groups > 3;
  if (depthwise) {
    shape.outputs /= shape.groups;
    shape.channels = shape.groups = random.between(1, 400);
    shape.outputs *= shape.groups;
    if (random.one_in(2)) {  // as networks have them, which a kernel of a device takes only
      shape.channels = shape.groups = shape.outputs = 4 * random.between(1, 100);
      shape.transposed = false;
      const int64_t kernel = random.one_in(2) ? 3 : 5, stride = random.between(1, 2);
      for (ConvAxis* const axis : {&shape.rows, &shape.columns})
        *axis = {.kernel = kernel,
                 .stride = stride,
                 .pad_before = random.between(0, kernel - 1),
                 .pad_after = random.between(0, kernel - 1)};
    }
  } else {
    shape.channels = shape.groups * random.between(1, random.one_in(4) ? 400 : 100);
    shape.outputs = shape.groups * random.between(1, random.one_in(4) ? 400 : 100);
  }
  const bool large = random.one_in(8);
  image.rows = large ? random.between(30, 120) : random.between(1, 30);
  image.columns = large ? random.between(30, 120) : random.between(1, 30);
}

/// A layer that the proof admits, with its inputs. `on_device`: for one.
Result<StaticConvCase> random_case(Random& random, bool any_width, bool on_device) {
  for (;;) {
    StaticConvCase c;
    c.parameters.shape = random_conv_shape(random);
    c.images = random.between(1, 3);
    c.image = {random.between(1, 9), random.between(1, 9)};
    if (c.parameters.shape.channels < 5 && random.one_in(4)) c.image = {random.between(20, 40), random.between(15, 40)};
    if (on_device) enlarge(random, c.parameters.shape, c.image);
    const ConvShape& shape = c.parameters.shape;
    const Result<ImageSize> size = conv_output_size(shape, c.image, "random");
    if (!size.ok()) continue;  // a kernel larger than the image
    c.size = *size;
    if (c.outputs() * shape.outputs * shape.depth() > kMostProducts) continue;
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
    c.x = random_codes(random, c.parameters.linear.input, c.pixels(), shape.channels);
    if (c.parameters.residual)
      c.residual = random_codes(random, c.parameters.residual->grid, c.outputs(), shape.outputs);
    return c;
  }
}

LinearBuffers buffers_of(Random& random, const StaticConvCase& c) {
  const StaticConvParameters& p = c.parameters;
  LinearBuffers buffers(random, c.pixels(), p.shape.channels, p.linear.x_dtype(), c.outputs(), p.shape.outputs,
                        p.linear.y_dtype());
  buffers.fill_x(c.x);
  return buffers;
}

LinearBuffers buffers_of(Random& random, const RandomConv& c) {
  LinearBuffers buffers(random, c.pixels(), c.shape.channels, c.x.dtype, c.outputs(), c.shape.outputs, c.y_dtype);
  buffers.fill_x(c.x.bytes);
  return buffers;
}

Status run_static(const StaticConvLayer& layer, const StaticConvCase& c, ThreadPool* pool, LinearBuffers& buffers) {
  const int threads = pool == nullptr ? 1 : pool->threads();
  ISOBIT_ASSIGN_OR_RETURN(Workspace workspace, layer.workspace(c.images, c.image, threads));
  return layer.forward(buffers.x(0, c.pixels()), buffers.y(0, c.outputs()), c.images, c.image, workspace,
                       {.pool = pool, .x_stride = buffers.x_stride, .y_stride = buffers.y_stride},
                       c.residual_rows(buffers.y_stride));
}

Status run_calls(const RandomConv& c, std::optional<CpuPath> path, std::span<const int64_t> calls, ThreadPool* pool,
                 LinearBuffers& buffers) {
  ISOBIT_ASSIGN_OR_RETURN(const ConvLayer layer, ConvLayer::create(c.shape, c.weights, c.options(path), "random"));
  const int threads = pool == nullptr ? 1 : pool->threads();
  const int64_t pixels = c.image.rows * c.image.columns, outputs = c.size.rows * c.size.columns;
  ISOBIT_ASSIGN_OR_RETURN(Workspace workspace,
                          layer.workspace(*std::max_element(calls.begin(), calls.end()), c.image, threads));
  int64_t first = 0;
  for (const int64_t images : calls) {
    ISOBIT_RETURN_IF_ERROR(
        layer.forward(buffers.x(first * pixels, images * pixels), c.x.dtype,
                      buffers.y(first * outputs, images * outputs), c.y_dtype, images, c.image, workspace,
                      {.pool = pool, .x_stride = buffers.x_stride, .y_stride = buffers.y_stride, .unchecked = true}));
    first += images;
  }
  return {};
}

/// One layer of static codes: every kernel gives the bytes that are expected.
Status verify_static(Random& random, Measure measure, bool on_device, std::vector<Candidate<StaticConvRun>>& kernels) {
  // The reference takes long for what is made for devices.
  ISOBIT_ASSIGN_OR_RETURN(const StaticConvCase c, random_case(random, random.one_in(2), on_device && !measure.path));
  const StaticConvParameters& p = c.parameters;
  LinearBuffers expected = buffers_of(random, c), actual = expected;
  ISOBIT_ASSIGN_OR_RETURN(const StaticConvLayer layer, StaticConvLayer::create(p, "random", measure.path));
  ISOBIT_RETURN_IF_ERROR(run_static(layer, c, measure.pool, expected));
  measure.text += conv_text(p.shape, c.images, c.image) + ", weights of " + std::to_string(p.linear.weight_bits) +
                  " bits, static " + std::to_string(p.linear.input.bits) + " bits " +
                  std::string(to_string(p.linear.x_dtype())) + " -> " +
                  (p.linear.output ? std::to_string(p.linear.output->bits) + " bits " : "") +
                  std::string(to_string(p.linear.y_dtype())) + (p.residual ? ", residual" : "");
  for (Candidate<StaticConvRun>& kernel : kernels) {
    actual.clear_y();
    ISOBIT_ASSIGN_OR_RETURN(const bool ran, run_named(measure.text, kernel, c, actual));
    if (ran)
      compare_rows({expected, layer.path(), p.linear.y_dtype()}, actual, c.outputs(), p.shape.outputs, measure,
                   kernel.report);
  }
  return {};
}

/// What RandomConv makes for a device: larger layers, of so many products at most.
auto enlarged(Random& random, int64_t most_products) {
  return [&random, most_products](ConvShape& shape, ImageSize& image) {
    enlarge(random, shape, image);
    const Result<ImageSize> size = conv_output_size(shape, image, "random");
    return size.ok() && size->rows * size->columns * shape.outputs * shape.depth() <= most_products;
  };
}

/// One layer whose bytes are determined.
Status verify_int8(Random& random, Measure measure, ConvActivations activations, bool on_device,
                   std::vector<Candidate<ConvRun>>& kernels) {
  constexpr int64_t kProducts = 100'000'000;
  // The reference takes long for what is made for devices.
  const bool larger = on_device && !measure.path;
  Result<RandomConv> made = larger
                                ? RandomConv::random(random, activations, random.one_in(2), enlarged(random, kProducts))
                                : RandomConv::random(random, activations, random.one_in(2));
  ISOBIT_ASSIGN_OR_RETURN(const RandomConv c, std::move(made));
  LinearBuffers expected = buffers_of(random, c), actual = expected;
  ISOBIT_RETURN_IF_ERROR(run_calls(c, measure.path, {&c.images, 1}, larger ? measure.pool : nullptr, expected));
  measure.text += c.text();
  for (Candidate<ConvRun>& kernel : kernels) {
    actual.clear_y();
    ISOBIT_ASSIGN_OR_RETURN(const bool ran, run_named(measure.text, kernel, c, std::span(&c.images, 1), actual));
    if (ran)
      compare_rows({expected, measure.path ? *measure.path : *default_cpu_path(), c.y_dtype}, actual, c.outputs(),
                   c.shape.outputs, measure, kernel.report);
  }
  return {};
}

/// [pixels of y, O], in float64 and without act.
std::vector<ReferenceSum> sums_of(const RandomConv& c, ThreadPool* pool) {
  const ReferenceWeights weights = reference_weights(c.weights);
  const std::vector<float> x = c.x.to_float();
  const int64_t pixels = c.image.rows * c.image.columns, outputs = c.size.rows * c.size.columns;
  const int64_t group_outputs = c.shape.outputs / c.shape.groups;
  std::vector<ReferenceSum> sums(static_cast<size_t>(c.outputs() * c.shape.outputs));
  pool->for_ranges(c.outputs(), [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* const image = x.data() + i / outputs * pixels * c.shape.channels;
      const int64_t p = i % outputs / c.size.columns, q = i % c.size.columns;
      std::vector<float> row;
      for (int64_t o = 0; o < c.shape.outputs; ++o) {
        if (o % group_outputs == 0) row = reference_conv_row(c.shape, c.image, image, p, q, o);
        const float bias = c.bias.empty() ? 0.0f : c.bias[static_cast<size_t>(o)];
        sums[static_cast<size_t>(i * c.shape.outputs + o)] = reference_conv_sum(c.shape, weights, o, row.data(), bias);
      }
    }
  });
  return sums;
}

/// One layer of section 10: every pixel of y within its bound of float64, and with the same bytes whatever the other
/// images of a call. Only the latter of wild layers.
Status verify_float(Random& random, const Measure& measure, bool on_device, std::vector<Candidate<ConvRun>>& kernels) {
  constexpr int64_t kProducts = 5'000'000;
  const bool wild = random.one_in(4);
  Result<RandomConv> made = on_device && random.one_in(2)
                                ? RandomConv::random(random, ConvActivations::kFloat, wild, enlarged(random, kProducts))
                                : RandomConv::random(random, ConvActivations::kFloat, wild);
  ISOBIT_ASSIGN_OR_RETURN(RandomConv c, std::move(made));
  const LinearClamp clamp = c.clamp;
  const std::vector<ReferenceSum> sums = wild ? std::vector<ReferenceSum>() : sums_of(c, measure.pool);
  const std::string text = measure.text + c.text();
  const std::vector<int64_t> calls = random_calls(random, c.images);
  LinearBuffers plain = buffers_of(random, c), with_act = plain, in_calls = plain;
  for (Candidate<ConvRun>& kernel : kernels) {
    for (LinearBuffers* buffers : {&plain, &with_act, &in_calls}) buffers->clear_y();
    c.clamp = clamp;
    ISOBIT_ASSIGN_OR_RETURN(const bool ran, run_named(text, kernel, c, std::span(&c.images, 1), with_act));
    if (!ran) continue;
    c.clamp = {};
    ISOBIT_RETURN_IF_ERROR(run_named(text, kernel, c, std::span(&c.images, 1), plain).status());
    ISOBIT_RETURN_IF_ERROR(run_named(text, kernel, c, calls, in_calls).status());
    compare_float_rows({.plain = plain,
                        .with_act = with_act,
                        .in_calls = in_calls,
                        .m = c.outputs(),
                        .n = c.shape.outputs,
                        .depth = c.shape.depth(),
                        .dtype = c.y_dtype,
                        .clamp = clamp,
                        .sums = sums},
                       text, kernel.report);
  }
  return {};
}

/// One kernel of ConvLayer for each path that has one of its own, of those that can run here.
std::vector<Candidate<ConvRun>> candidates(const std::string& name, std::span<const LinearLayerKernel> rows,
                                           std::string_view operation, const std::shared_ptr<Pools>& pools) {
  std::vector<Candidate<ConvRun>> out;
  for (const LinearLayerKernel& row : rows) {
    if (row.operation != operation) continue;
    if (auto report = cpu_kernel(name + "_" + std::string(to_string(row.path)), row.path))
      out.push_back({*std::move(report),
                     [path = row.path, pools](const RandomConv& c, std::span<const int64_t> calls,
                                              LinearBuffers& buffers) -> Result<bool> {
                       ISOBIT_RETURN_IF_ERROR(run_calls(c, path, calls, pools->pick(), buffers));
                       return true;
                     }});
  }
  return out;
}

}  // namespace

std::vector<std::byte> StaticConvCase::residual_rows(int64_t y_stride) const {
  if (!parameters.residual) return {};
  const size_t code_bytes = size_in_bytes(parameters.residual->grid.dtype());
  const size_t row_bytes = static_cast<size_t>(parameters.shape.outputs) * code_bytes;
  Bytes rows(static_cast<size_t>(outputs() * y_stride) * code_bytes);
  for (size_t i = 0; i < static_cast<size_t>(outputs()); ++i)
    std::memcpy(rows.data() + i * static_cast<size_t>(y_stride) * code_bytes, residual.data() + i * row_bytes,
                row_bytes);
  return rows;
}

Result<VerifyReport> verify_conv_with(ConvCandidates candidates, const VerifyOptions& options) {
  ThreadPool pool(0);
  Random random(options.seed);
  std::map<std::string, uint64_t> expected_by;
  const uint64_t wanted = std::max<uint64_t>(options.outputs, 1);
  const auto round = [&](int64_t index) -> Result<uint64_t> {
    std::optional<CpuPath> path = CpuPath::kReference;
    if (candidates.on_device && index % 100 != 0) path.reset();
    const auto measure = [&] {
      return Measure{path, &pool, &expected_by,
                     "seed " + std::to_string(options.seed) + ", convolution " + std::to_string(index) + ", "};
    };
    const auto has_enough = [&](const auto& kernels) { return least_compared(kernels) >= wanted; };
    if (!has_enough(candidates.statics))
      ISOBIT_RETURN_IF_ERROR(verify_static(random, measure(), candidates.on_device, candidates.statics));
    if (!has_enough(candidates.int8)) {
      const auto kind = random.one_in(2) ? ConvActivations::kInt8 : ConvActivations::kInt8Asymmetric;
      ISOBIT_RETURN_IF_ERROR(verify_int8(random, measure(), kind, candidates.on_device, candidates.int8));
    }
    if (!has_enough(candidates.per_image))
      ISOBIT_RETURN_IF_ERROR(
          verify_int8(random, measure(), ConvActivations::kInt8PerImage, candidates.on_device, candidates.per_image));
    if (!has_enough(candidates.floats))
      ISOBIT_RETURN_IF_ERROR(verify_float(random, measure(), candidates.on_device, candidates.floats));
    return std::min({least_compared(candidates.statics), least_compared(candidates.int8),
                     least_compared(candidates.per_image), least_compared(candidates.floats)});
  };
  ISOBIT_RETURN_IF_ERROR(repeat_until(options.outputs, options.progress, round));
  VerifyReport report;
  append_reports(candidates.statics, report);
  append_reports(candidates.int8, report);
  append_reports(candidates.per_image, report);
  append_reports(candidates.floats, report);
  report.expected_by.assign(expected_by.begin(), expected_by.end());
  return report;
}

Result<VerifyReport> verify_conv(const VerifyOptions& options) {
  const auto pools = std::make_shared<Pools>(options.seed);
  ConvCandidates all{.int8 = candidates("conv_int8", linear_layer_kernels(), "linear_int8", pools),
                     .per_image = candidates("conv_int8_per_image", static_conv_kernels(), "conv_static", pools),
                     .floats = candidates("conv_float", linear_layer_kernels(), "linear_float", pools)};
  for (const LinearLayerKernel& row : static_conv_kernels())
    if (auto report = cpu_kernel(std::string(row.name), row.path))
      all.statics.push_back({*std::move(report),
                             [path = row.path, pools](const StaticConvCase& c, LinearBuffers& buffers) -> Result<bool> {
                               ISOBIT_ASSIGN_OR_RETURN(const StaticConvLayer layer,
                                                       StaticConvLayer::create(c.parameters, "random", path));
                               ISOBIT_RETURN_IF_ERROR(run_static(layer, c, pools->pick(), buffers));
                               return true;
                             }});
  return verify_conv_with(std::move(all), options);
}

bool has_conv_kernel(CpuPath path) {
  const auto is_of_path = [&](const LinearLayerKernel& row) { return row.path == path; };
  const auto linear = linear_layer_kernels(), statics = static_conv_kernels();
  return std::any_of(statics.begin(), statics.end(), is_of_path) ||
         std::any_of(linear.begin(), linear.end(),
                     [&](const LinearLayerKernel& row) { return is_of_path(row) && row.operation != "linear_static"; });
}

StaticConvRun static_conv_run(std::optional<CpuPath> path) {
  return [path](const StaticConvCase& c, LinearBuffers& buffers) -> Result<bool> {
    ISOBIT_ASSIGN_OR_RETURN(const StaticConvLayer layer, StaticConvLayer::create(c.parameters, "random", path));
    ISOBIT_RETURN_IF_ERROR(run_static(layer, c, nullptr, buffers));
    return true;
  };
}

ConvRun conv_run(std::optional<CpuPath> path) {
  return [path](const RandomConv& c, std::span<const int64_t> calls, LinearBuffers& buffers) -> Result<bool> {
    ISOBIT_RETURN_IF_ERROR(run_calls(c, path, calls, nullptr, buffers));
    return true;
  };
}

Status fingerprint_conv(const StaticConvRun& run_codes, const ConvRun& run, Fingerprints& lines) {
  Random places(1);  // of rows in memory, which no byte depends on
  const auto add = [](uint64_t& hash, const LinearBuffers& buffers, int64_t rows, size_t row_bytes) {
    for (int64_t i = 0; i < rows; ++i) hash_bytes(hash, buffers.y_row(i), row_bytes);
  };
  Random random(20261127);
  uint64_t hash = kHashStart;
  for (int index = 0; index < kFingerprintCases; ++index) {
    ISOBIT_ASSIGN_OR_RETURN(const StaticConvCase c, random_case(random, index % 2 == 1, false));
    LinearBuffers buffers = buffers_of(places, c);
    ISOBIT_RETURN_IF_ERROR(run_codes(c, buffers).status());
    const StaticConvParameters& p = c.parameters;
    add(hash, buffers, c.outputs(), static_cast<size_t>(p.shape.outputs) * size_in_bytes(p.linear.y_dtype()));
  }
  lines.emplace_back("conv_static", hash_text(hash));

  constexpr ConvActivations kKinds[] = {ConvActivations::kInt8, ConvActivations::kInt8Asymmetric,
                                        ConvActivations::kInt8PerImage};
  Random random_of_floats(20261128);
  hash = kHashStart;
  for (size_t index = 0; index < kFingerprintCases; ++index) {
    ISOBIT_ASSIGN_OR_RETURN(const RandomConv c,
                            RandomConv::random(random_of_floats, kKinds[index % std::size(kKinds)], index % 2 == 1));
    LinearBuffers buffers = buffers_of(places, c);
    ISOBIT_RETURN_IF_ERROR(run(c, {&c.images, 1}, buffers).status());
    add(hash, buffers, c.outputs(), static_cast<size_t>(c.shape.outputs) * size_in_bytes(c.y_dtype));
  }
  lines.emplace_back("conv_int8", hash_text(hash));
  return {};
}

}  // namespace isobit
