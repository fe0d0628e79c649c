// SPDX-License-Identifier: Apache-2.0
// Random layers and rows through every kernel of linear layers.
#include "verify/linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/codes.h"
#include "core/hash.h"
#include "core/random.h"
#include "isobit/linear.h"
#include "linear/layer_reference.h"
#include "linear/random_layer.h"
#include "verify/operations.h"

namespace isobit {
namespace {

struct Sizes {
  int64_t m, n, k, group;
};

/// The largest of most layers; `few` rows and `long_k` columns are of some.
struct Limits {
  int64_t m, few, n, k, long_k;
};
/// Sums of a few hundred elements mostly: what the reference costs is K.
constexpr Limits kCpuLimits = {.m = 70, .few = 4, .n = 300, .k = 200, .long_k = 1200};
/// A block of threads has 8 or 16 rows, and several blocks share long sums.
constexpr Limits kDeviceLimits = {.m = 300, .few = 20, .n = 600, .k = 1200, .long_k = 6000};

Sizes random_sizes(Random& random, const Limits& limits) {
  Sizes sizes{random.between(1, limits.m), random.between(1, limits.n), 0, 0};
  if (random.one_in(3)) sizes.m = random.between(1, limits.few);
  sizes.k = random.one_in(16) ? random.between(1, limits.long_k) : random.between(1, limits.k);
  if (random.one_in(2)) sizes.k = (sizes.k + 31) / 32 * 32;
  sizes.group = sizes.k;
  if (sizes.k > 8 && !random.one_in(4)) {
    const int64_t most = (sizes.k - 1) / 8;
    sizes.group = 8 * random.between(1, random.one_in(2) ? std::min<int64_t>(most, 4) : most);
    if (const int64_t power = 8 << random.between(0, 4); random.one_in(2) && power < sizes.k) sizes.group = power;
  }
  return sizes;
}

/// Any bits and kind; `whole_rows`: of 8 bits, symmetric, a group a row, for which there are kernels of their own.
Result<LowBitMatrix> matrix_of(Random& random, const Sizes& sizes, bool ordinary, bool whole_rows = false) {
  RandomMatrix form{.rows = sizes.n, .columns = sizes.k, .group = sizes.group, .ordinary = ordinary};
  if (whole_rows) {
    form.group = form.columns;
    form.bits = 8;
    form.kind = LowBitKind::kSymmetric;
  }
  return random_matrix(random, form);
}

/// Numbers of about 1; `wild`: of very different sizes, zeros, and now and then a row that is not finite.
void fill_x(Random& random, LinearBuffers& buffers, int64_t m, int64_t k, Dtype dtype, bool wild) {
  for (int64_t i = 0; i < m; ++i) {
    const bool special = wild && random.one_in(8);
    const int scale = wild ? static_cast<int>(random.between(-20, 12)) : 0;
    random_row(random, buffers.x_row(i), k, dtype, scale, special);
  }
}

int threads_of(const ThreadPool* pool) { return pool == nullptr ? 1 : pool->threads(); }

Status run_calls(const LinearLayer& layer, const LinearCase& c, ThreadPool* pool, LinearBuffers& buffers) {
  Workspace workspace = layer.workspace(*std::max_element(c.calls.begin(), c.calls.end()), threads_of(pool));
  int64_t first = 0;
  for (const int64_t rows : c.calls) {
    ISOBIT_RETURN_IF_ERROR(
        layer.forward(buffers.x(first, rows), c.x_dtype, buffers.y(first, rows), c.y_dtype, rows, workspace,
                      {.pool = pool, .x_stride = buffers.x_stride, .y_stride = buffers.y_stride, .unchecked = true}));
    first += rows;
  }
  return {};
}

Status run_static(const StaticLinearLayer& layer, int64_t m, ThreadPool* pool, LinearBuffers& buffers) {
  Workspace workspace = layer.workspace(m, threads_of(pool));
  return layer.forward_codes(buffers.x(0, m), buffers.y(0, m), m, workspace,
                             {.pool = pool, .x_stride = buffers.x_stride, .y_stride = buffers.y_stride});
}

uint32_t bits_of(const std::byte* y, Dtype dtype, int64_t i) {
  uint32_t bits = 0;
  std::memcpy(&bits, y + i * static_cast<int64_t>(size_in_bytes(dtype)), size_in_bytes(dtype));
  return bits;
}

uint32_t bits_of_nan(Dtype dtype) { return dtype == Dtype::kF32 ? 0x7fc00000 : dtype == Dtype::kF16 ? 0x7e00 : 0x7fc0; }

}  // namespace

void compare_rows(const ExpectedRows& expected, const LinearBuffers& actual, int64_t m, int64_t n,
                  const Measure& measure, VerifyKernel& kernel) {
  const size_t size = size_in_bytes(expected.y_dtype);
  const std::string by(to_string(expected.path));
  if (expected.path != CpuPath::kReference) (*measure.expected_by)[by] += static_cast<uint64_t>(m * n);
  kernel.outputs_compared += static_cast<uint64_t>(m * n);
  kernel.bytes_compared += static_cast<uint64_t>(m * n) * size;
  for (int64_t i = 0; i < m; ++i) {
    if (std::memcmp(expected.buffers.y_row(i), actual.y_row(i), static_cast<size_t>(n) * size) == 0) continue;
    for (int64_t j = 0; j < n; ++j) {
      const uint32_t want = bits_of(expected.buffers.y_row(i), expected.y_dtype, j);
      const uint32_t got = bits_of(actual.y_row(i), expected.y_dtype, j);
      if (want != got)
        note_difference(kernel, 1,
                        measure.text + ": y[" + std::to_string(i) + ", " + std::to_string(j) + "] has the bits " +
                            std::to_string(got) + ", " + (expected.path == CpuPath::kReference ? "the " : "") + by +
                            " gives " + std::to_string(want));
    }
  }
  if (!actual.untouched()) note_difference(kernel, 1, measure.text + ": written beside y");
}

std::vector<int64_t> random_calls(Random& random, int64_t m) {
  std::vector<int64_t> calls;
  const bool alone = random.one_in(2);
  for (; m > 0; m -= calls.back()) calls.push_back(alone ? 1 : random.between(1, m));
  return calls;
}

void compare_float_rows(const FloatRows& rows, const std::string& text, VerifyKernel& kernel) {
  const size_t row_bytes = static_cast<size_t>(rows.n) * size_in_bytes(rows.dtype);
  const double limit = reference_limit(rows.dtype, rows.depth);
  kernel.outputs_compared += static_cast<uint64_t>(rows.m * rows.n);
  kernel.bytes_compared += static_cast<uint64_t>(rows.m) * row_bytes;
  for (int64_t i = 0; i < rows.m; ++i) {
    const std::byte* const plain = rows.plain.y_row(i);
    ReferenceRowError error;
    bool same_act = true;
    for (int64_t n = 0; n < rows.n; ++n) {
      const float y = load_float(plain, rows.dtype, n);
      if (!rows.sums.empty()) error.add(static_cast<double>(y), rows.sums[static_cast<size_t>(i * rows.n + n)]);
      // lo and hi are numbers of every type, so rounding before act is rounding after it, but for the sign of a 0.
      const float got = load_float(rows.with_act.y_row(i), rows.dtype, n);
      same_act = same_act && (got == reference_act(y, rows.clamp) || (std::isnan(got) && std::isnan(y)));
      if (std::isnan(y) && bits_of(plain, rows.dtype, n) != bits_of_nan(rows.dtype))
        note_difference(kernel, 1, text + ": y[" + std::to_string(i) + ", " + std::to_string(n) + "] is another NaN");
    }
    const std::string row = text + ": row " + std::to_string(i);
    const auto outputs = static_cast<uint64_t>(rows.n);
    if (const double relative = error.relative(rows.depth); !(relative < limit))
      note_difference(kernel, outputs,
                      row + " is off by " + std::to_string(relative) + ", must be below " + std::to_string(limit));
    if (!same_act) note_difference(kernel, outputs, row + " is not clamped as it must be");
    if (std::memcmp(rows.in_calls.y_row(i), plain, row_bytes) != 0)
      note_difference(kernel, outputs, row + " has other bytes among other rows, or alone");
  }
  for (const LinearBuffers* written : {&rows.plain, &rows.with_act, &rows.in_calls})
    if (!written->untouched()) note_difference(kernel, 1, text + ": written beside y");
}

namespace {

std::string describe(const Sizes& sizes, uint64_t seed, int64_t index) {
  return "seed " + std::to_string(seed) + ", layer " + std::to_string(index) + ", M=" + std::to_string(sizes.m) +
         " N=" + std::to_string(sizes.n) + " K=" + std::to_string(sizes.k) + " group=" + std::to_string(sizes.group);
}

std::string describe(const LowBitMatrix& matrix) {
  const LowBitParameters& p = matrix.parameters();
  return ", " + std::to_string(p.bits) + " bits " + std::string(to_string(p.kind)) + " " +
         std::string(to_string(p.scales.dtype));
}

/// A layer of section 11 with x and y of any types, in one call.
Result<std::pair<LinearCase, LinearBuffers>> random_int8(Random& random, const Sizes& sizes,
                                                         LinearActivations activations, bool wild, bool whole_rows) {
  ISOBIT_ASSIGN_OR_RETURN(LowBitMatrix matrix, matrix_of(random, sizes, !wild, whole_rows));
  LinearCase c{.matrix = std::move(matrix), .activations = activations, .calls = {sizes.m}};
  c.bias = random_bias(random, sizes.n);
  c.clamp = random_clamp(random);
  c.x_dtype = random_of(random, kRandomRows);
  c.y_dtype = random_of(random, kRandomStores);
  LinearBuffers buffers(random, sizes.m, sizes.k, c.x_dtype, sizes.n, c.y_dtype);
  fill_x(random, buffers, sizes.m, sizes.k, c.x_dtype, wild);
  return std::pair(std::move(c), std::move(buffers));
}

/// One layer of section 11, one set of rows: every kernel gives the bytes that are expected.
Status verify_int8(Random& random, Measure measure, const Sizes& sizes, std::vector<Candidate<LinearRun>>& kernels) {
  const bool wild = random.one_in(2), whole_rows = random.one_in(4);
  const auto activations = random.one_in(2) ? LinearActivations::kInt8 : LinearActivations::kInt8Asymmetric;
  ISOBIT_ASSIGN_OR_RETURN(const auto made, random_int8(random, sizes, activations, wild, whole_rows));
  const LinearCase& c = made.first;
  LinearBuffers expected = made.second, actual = made.second;
  ISOBIT_ASSIGN_OR_RETURN(const LinearLayer layer, LinearLayer::create(c.matrix, c.options(measure.path), "random"));
  ISOBIT_RETURN_IF_ERROR(run_calls(layer, c, measure.pool, expected));
  measure.text += describe(c.matrix) + " " + std::string(to_string(activations)) + ", " +
                  std::string(to_string(c.x_dtype)) + " -> " + std::string(to_string(c.y_dtype));
  for (Candidate<LinearRun>& kernel : kernels) {
    actual.clear_y();
    ISOBIT_ASSIGN_OR_RETURN(const bool ran, run_named(measure.text, kernel, c, actual));
    if (ran) compare_rows({expected, layer.path(), c.y_dtype}, actual, sizes.m, sizes.n, measure, kernel.report);
  }
  return {};
}

/// One layer of section 10: every row within its bound of float64, and the same bytes alone and among others. Only the
/// latter of wild layers, of whose results, where they are not ordinary numbers, no bound is claimed.
Status verify_float(Random& random, const Measure& measure, const Sizes& sizes,
                    std::vector<Candidate<LinearRun>>& kernels) {
  const bool wild = random.one_in(4);
  ISOBIT_ASSIGN_OR_RETURN(LowBitMatrix matrix, matrix_of(random, sizes, !wild));
  LinearCase c{.matrix = std::move(matrix)};
  c.bias = random_bias(random, sizes.n);
  const LinearClamp clamp = random_clamp(random);
  const Dtype dtype = c.x_dtype = c.y_dtype = random_of(random, kRandomStores);
  LinearBuffers buffers(random, sizes.m, sizes.k, dtype, sizes.n, dtype);
  fill_x(random, buffers, sizes.m, sizes.k, dtype, wild);
  const ReferenceWeights weights = reference_weights(c.matrix);
  std::vector<ReferenceSum> sums(wild ? 0 : static_cast<size_t>(sizes.m * sizes.n));
  measure.pool->for_ranges(wild ? 0 : sizes.m, [&](int, int64_t begin, int64_t end) {
    std::vector<float> x(static_cast<size_t>(sizes.k));
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t k = 0; k < sizes.k; ++k) x[static_cast<size_t>(k)] = load_float(buffers.x_row(i), dtype, k);
      for (int64_t n = 0; n < sizes.n; ++n)
        sums[static_cast<size_t>(i * sizes.n + n)] =
            reference_sum(weights, n, x.data(), c.bias.empty() ? 0.0f : c.bias[static_cast<size_t>(n)]);
    }
  });
  const std::string text = measure.text + describe(c.matrix) + ", " + std::string(to_string(dtype));
  for (Candidate<LinearRun>& kernel : kernels) {
    LinearBuffers with_act = buffers, in_calls = buffers;
    buffers.clear_y();
    const auto run = [&](const LinearClamp& act, std::vector<int64_t> calls, LinearBuffers& to) {
      c.clamp = act;
      c.calls = std::move(calls);
      return run_named(text, kernel, c, to);
    };
    ISOBIT_ASSIGN_OR_RETURN(const bool ran, run({}, {sizes.m}, buffers));
    if (!ran) continue;
    for (const auto& [act, calls, to] : {std::tuple(clamp, std::vector{sizes.m}, &with_act),
                                         std::tuple(LinearClamp(), random_calls(random, sizes.m), &in_calls)})
      ISOBIT_RETURN_IF_ERROR(run(act, calls, *to).status());
    compare_float_rows({.plain = buffers,
                        .with_act = with_act,
                        .in_calls = in_calls,
                        .m = sizes.m,
                        .n = sizes.n,
                        .depth = sizes.k,
                        .dtype = dtype,
                        .clamp = clamp,
                        .sums = sums},
                       text, kernel.report);
  }
  return {};
}

/// A grid of any width from 2 to 16 bits, more often of more than 8.
Grid random_code_grid(Random& random) {
  Grid grid{.bits = static_cast<int32_t>(random.one_in(3) ? random.between(2, 8) : random.between(9, 16)),
            .is_signed = random.one_in(2)};
  if (random.one_in(4)) grid.bits = 16;
  grid.zero_point =
      random.one_in(4) ? (random.one_in(2) ? grid.min() : grid.max()) : random.between(grid.min(), grid.max());
  return grid;
}

/// A grid of 8 bits without its zero point.
Grid random_byte_grid(Random& random) { return {.bits = 8, .is_signed = random.one_in(2)}; }

}  // namespace

StaticLinearParameters random_static(Random& random, int64_t rows, int64_t columns, bool any_width) {
  StaticLinearParameters p;
  p.rows = rows;
  p.columns = columns;
  p.weights = Array::zeros(Dtype::kS8, {rows, columns});
  p.scales = Array::zeros(Dtype::kF32, {rows});
  std::fill_n(p.scales.data<float>(), rows, 1.0f);
  p.bias = Array::zeros(Dtype::kS32, {rows});
  const bool ends = random.one_in(8);
  for (int64_t i = 0; i < p.weights.size(); ++i)
    p.weights.data<int8_t>()[i] =
        static_cast<int8_t>(ends ? (random.one_in(2) ? -128 : 127) : random.between(-128, 127));
  const auto code = [&](const Grid& grid) { return static_cast<int32_t>(random.between(grid.min(), grid.max())); };
  p.input = any_width ? random_code_grid(random) : random_byte_grid(random);
  if (!any_width) p.input.zero_point = code(p.input);
  p.rounding = random_of(random, kAllRoundings);
  const int64_t bias_limit = random.one_in(16) ? INT32_MAX : random.one_in(2) ? 100000 : 0;
  for (int64_t n = 0; n < rows; ++n)
    p.bias.data<int32_t>()[n] = static_cast<int32_t>(random.between(-bias_limit, bias_limit));
  if (random.one_in(4)) {
    p.lo = INT32_MIN;
    p.hi = INT32_MAX;
    return p;
  }
  Grid y = any_width ? random_code_grid(random) : random_byte_grid(random);
  if (!any_width) y.zero_point = code(y);
  p.output = y;
  p.lo = static_cast<int32_t>(random.one_in(2) ? y.min() : y.zero_point);
  p.hi = random.one_in(2) ? static_cast<int32_t>(y.max()) : std::max(p.lo, code(y));
  // Results of about the range of y: the width of acc less that of y. Powers of two make ties.
  const int width = static_cast<int>(std::bit_width(static_cast<uint64_t>(columns))) / 2 + 14 + p.input.bits - y.bits;
  const bool powers = random.one_in(3);
  const bool any = random.one_in(8);
  for (int64_t n = 0; n < rows; ++n) {
    const auto shift = static_cast<int32_t>(width - 8 + random.between(-4, 4));
    if (any) {
      p.rescales.push_back(
          {static_cast<int32_t>(random.between(1, INT32_MAX)), static_cast<int32_t>(random.between(-8, 127))});
    } else if (powers) {
      p.rescales.push_back({1, shift});
    } else {
      p.rescales.push_back({static_cast<int32_t>(random.between(1 << 30, INT32_MAX)), shift + 31});
    }
  }
  return p;
}

void narrow_weights(StaticLinearParameters& p, int32_t bits) {
  p.weight_bits = bits;
  for (int64_t i = 0; i < p.weights.size(); ++i) {
    int8_t& weight = p.weights.data<int8_t>()[i];
    weight = static_cast<int8_t>(bits == 1 ? (weight < 0 ? -1 : 1) : weight >> (8 - bits));
  }
  for (RescaleParameters& rescale : p.rescales) rescale.shift -= 8 - bits;
}

namespace {

void fill_codes(Random& random, LinearBuffers& buffers, const StaticLinearParameters& p, int64_t m) {
  for (int64_t i = 0; i < m; ++i) {
    const bool ends = i % 4 == 3;
    for (int64_t k = 0; k < p.columns; ++k) {
      // The low bits of a random number, in two's complement where codes are signed.
      auto code = static_cast<int64_t>(random.next() & ((uint64_t{1} << p.input.bits) - 1));
      if (ends) code = (code & 1) != 0 ? p.input.max() : p.input.min();
      if (code > p.input.max()) code -= int64_t{1} << p.input.bits;
      store_code(buffers.x_row(i), p.x_dtype(), k, code);
    }
  }
}

/// One layer of section 12.
Status verify_static(Random& random, Measure measure, const Sizes& sizes,
                     std::vector<Candidate<StaticLinearRun>>& kernels) {
  StaticLinearParameters p = random_static(random, sizes.n, sizes.k, random.one_in(2));
  narrow_weights(p, random_of(random, kRandomBits));
  LinearBuffers expected(random, sizes.m, sizes.k, p.x_dtype(), sizes.n, p.y_dtype());
  fill_codes(random, expected, p, sizes.m);
  LinearBuffers actual = expected;
  const Result<StaticLinearLayer> layer = StaticLinearLayer::create(p, "random", measure.path);
  if (!layer.ok())  // refused by the proof, as it must
    return layer.status().code() == StatusCode::kOverflow ? Status() : layer.status();
  ISOBIT_RETURN_IF_ERROR(run_static(*layer, sizes.m, measure.pool, expected));
  measure.text += ", weights of " + std::to_string(p.weight_bits) + " bits, static " + std::to_string(p.input.bits) +
                  " bits " + std::string(to_string(p.x_dtype())) + " -> " +
                  (p.output ? std::to_string(p.output->bits) + " bits " : "") + std::string(to_string(p.y_dtype())) +
                  " " + std::string(to_string(p.rounding));
  for (Candidate<StaticLinearRun>& kernel : kernels) {
    actual.clear_y();
    ISOBIT_ASSIGN_OR_RETURN(const bool ran, run_named(measure.text, kernel, p, sizes.m, actual));
    if (ran) compare_rows({expected, layer->path(), p.y_dtype()}, actual, sizes.m, sizes.n, measure, kernel.report);
  }
  return {};
}

/// Kernels of the CPU, each on one of the pools. run(kernel, pool, ...) as in LinearRun and StaticLinearRun.
template <typename Run, typename OnPool>
std::vector<Candidate<Run>> candidates(std::string_view operation, const std::shared_ptr<Pools>& pools, OnPool run) {
  std::vector<Candidate<Run>> out;
  for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
    if (kernel.operation != operation) continue;
    if (auto report = cpu_kernel("linear_" + std::string(kernel.name), kernel.path))
      out.push_back({*std::move(report),
                     [&kernel, pools, run](auto&&... arguments) { return run(kernel, pools->pick(), arguments...); }});
  }
  return out;
}

/// The hash of 96 layers of section 12, which those beyond the proof do not count among.
Status fingerprint_static(const std::string& name, Random& random, bool any_width, const StaticLinearRun& run,
                          Fingerprints& lines) {
  uint64_t hash = kHashStart;
  for (int index = 0; index < 96;) {
    const Sizes sizes = random_sizes(random, kCpuLimits);
    const StaticLinearParameters p = random_static(random, sizes.n, sizes.k, any_width);
    if (Status proof = StaticLinearLayer::create(p, "random").status(); !proof.ok()) {
      if (proof.code() == StatusCode::kOverflow) continue;
      return proof;
    }
    ++index;
    LinearBuffers buffers(random, sizes.m, sizes.k, p.x_dtype(), sizes.n, p.y_dtype());
    fill_codes(random, buffers, p, sizes.m);
    ISOBIT_RETURN_IF_ERROR(run(p, sizes.m, buffers).status());
    for (int64_t i = 0; i < sizes.m; ++i)
      hash_bytes(hash, buffers.y_row(i), static_cast<size_t>(sizes.n) * size_in_bytes(p.y_dtype()));
  }
  lines.emplace_back(name, hash_text(hash));
  return {};
}

/// Of one operation, what counts towards the outputs asked for. On a device its kernels share the layers by their
/// rows: all outputs count, but no more than kMostShare times those of the kernel with the fewest.
template <typename Run>
uint64_t counted(const std::vector<Candidate<Run>>& kernels, bool on_device) {
  constexpr uint64_t kMostShare = 1000;
  const uint64_t least = least_compared(kernels);
  if (!on_device || kernels.empty()) return least;
  uint64_t all = 0;
  for (const Candidate<Run>& kernel : kernels) all += kernel.report.outputs_compared;
  return std::min(all, kMostShare * least);
}

}  // namespace

Result<VerifyReport> verify_linear_with(LinearCandidates candidates, const VerifyOptions& options) {
  ThreadPool pool(0);
  Random random(options.seed);
  std::map<std::string, uint64_t> expected_by;
  const uint64_t wanted = std::max<uint64_t>(options.outputs, 1);
  const auto round = [&](int64_t index) -> Result<uint64_t> {
    const auto family = [&](auto& kernels, auto verify) -> Status {
      if (counted(kernels, candidates.on_device) >= wanted) return {};
      const Sizes sizes = random_sizes(random, candidates.on_device ? kDeviceLimits : kCpuLimits);
      std::optional<CpuPath> path = CpuPath::kReference;
      if (candidates.on_device && index % 100 != 0) path.reset();
      return verify(random, Measure{path, &pool, &expected_by, describe(sizes, options.seed, index)}, sizes, kernels);
    };
    ISOBIT_RETURN_IF_ERROR(family(candidates.int8, verify_int8));
    ISOBIT_RETURN_IF_ERROR(family(candidates.floats, verify_float));
    ISOBIT_RETURN_IF_ERROR(family(candidates.statics, verify_static));
    const bool on_device = candidates.on_device;
    return std::min({counted(candidates.int8, on_device), counted(candidates.floats, on_device),
                     counted(candidates.statics, on_device)});
  };
  ISOBIT_RETURN_IF_ERROR(repeat_until(options.outputs, options.progress, round));
  VerifyReport report;
  append_reports(candidates.int8, report);
  append_reports(candidates.floats, report);
  append_reports(candidates.statics, report);
  report.expected_by.assign(expected_by.begin(), expected_by.end());
  return report;
}

Result<VerifyReport> verify_linear(const VerifyOptions& options) {
  const auto pools = std::make_shared<Pools>(options.seed);
  const auto run = [](const LinearLayerKernel& kernel, ThreadPool* pool, const LinearCase& c,
                      LinearBuffers& buffers) -> Result<bool> {
    ISOBIT_ASSIGN_OR_RETURN(const LinearLayer layer, LinearLayer::create(c.matrix, c.options(kernel.path), "random"));
    if (layer.kernel_name() != kernel.name) return false;  // it has none of its own for this layer
    ISOBIT_RETURN_IF_ERROR(run_calls(layer, c, pool, buffers));
    return true;
  };
  const auto run_codes = [](const LinearLayerKernel& kernel, ThreadPool* pool, const StaticLinearParameters& p,
                            int64_t m, LinearBuffers& buffers) -> Result<bool> {
    ISOBIT_ASSIGN_OR_RETURN(const StaticLinearLayer layer, StaticLinearLayer::create(p, "random", kernel.path));
    if (layer.kernel_name() != kernel.name) return false;
    ISOBIT_RETURN_IF_ERROR(run_static(layer, m, pool, buffers));
    return true;
  };
  return verify_linear_with({.int8 = candidates<LinearRun>("linear_int8", pools, run),
                             .floats = candidates<LinearRun>("linear_float", pools, run),
                             .statics = candidates<StaticLinearRun>("linear_static", pools, run_codes)},
                            options);
}

LinearRun linear_run(std::optional<CpuPath> path) {
  return [path](const LinearCase& c, LinearBuffers& buffers) -> Result<bool> {
    ISOBIT_ASSIGN_OR_RETURN(const LinearLayer layer, LinearLayer::create(c.matrix, c.options(path), "random"));
    ISOBIT_RETURN_IF_ERROR(run_calls(layer, c, nullptr, buffers));
    return true;
  };
}

StaticLinearRun static_linear_run(std::optional<CpuPath> path) {
  return [path](const StaticLinearParameters& p, int64_t m, LinearBuffers& buffers) -> Result<bool> {
    ISOBIT_ASSIGN_OR_RETURN(const StaticLinearLayer layer, StaticLinearLayer::create(p, "random", path));
    ISOBIT_RETURN_IF_ERROR(run_static(layer, m, nullptr, buffers));
    return true;
  };
}

Status fingerprint_linear(const LinearRun& run, const StaticLinearRun& run_codes, Fingerprints& lines) {
  Random random(20261122);
  uint64_t hash = kHashStart;
  for (int index = 0; index < 96; ++index) {
    const Sizes sizes = random_sizes(random, kCpuLimits);
    const auto activations = index % 4 < 2 ? LinearActivations::kInt8 : LinearActivations::kInt8Asymmetric;
    ISOBIT_ASSIGN_OR_RETURN(auto made, random_int8(random, sizes, activations, index % 2 == 1, false));
    auto& [c, buffers] = made;
    ISOBIT_RETURN_IF_ERROR(run(c, buffers).status());
    for (int64_t i = 0; i < sizes.m; ++i)
      hash_bytes(hash, buffers.y_row(i), static_cast<size_t>(sizes.n) * size_in_bytes(c.y_dtype));
  }
  lines.emplace_back("linear_int8", hash_text(hash));

  ISOBIT_RETURN_IF_ERROR(fingerprint_static("linear_static", random, false, run_codes, lines));
  Random random_of_widths(20261126);
  return fingerprint_static("linear_static_16", random_of_widths, true, run_codes, lines);
}

}  // namespace isobit
