// SPDX-License-Identifier: Apache-2.0
// Every public operation that computes with floats, called in other floating-point modes than the default: the same
// bytes, and the caller's modes afterwards. Inputs have ties, subnormals and numbers that no float holds: without
// core/float_mode.h all fail but gguf_import, gru_load, table_fit, gru_forward_codes, linear_static and fp16_direct,
// which have nothing that is rounded, or round as their instructions say, and are here so that it stays so.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cfenv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/half.h"
#include "core/random.h"
#include "io/gguf/seed.h"
#include "isobit/arrays.h"
#include "isobit/calibration.h"
#include "isobit/compare.h"
#include "isobit/cpu.h"
#include "isobit/fp16_export.h"
#include "isobit/fp16_function.h"
#include "isobit/gguf.h"
#include "isobit/grid.h"
#include "isobit/gru.h"
#include "isobit/gru_qat.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "isobit/low_bit_import.h"
#include "isobit/parallel.h"
#include "isobit/report.h"
#include "isobit/table.h"
#include "isobit/tune.h"
#include "isobit/verify.h"
#include "testing/sanitized.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace isobit {
namespace {

using Bytes = std::vector<std::byte>;

// ---------------------------------------------------------------------------------------------------------------
// Modes

struct Mode {
  const char* name;
  int rounding;
  bool flush;  // of subnormals: results (FTZ) and operands (DAZ)
};
constexpr Mode kModes[] = {
#if defined(__x86_64__)
    {"flush", FE_TONEAREST, true}, {"flush, up", FE_UPWARD, true},
#endif
    {"up", FE_UPWARD, false},      {"down", FE_DOWNWARD, false},   {"toward zero", FE_TOWARDZERO, false},
};

#if defined(__x86_64__)
constexpr uint32_t kFlush = 0x8040;
uint32_t flush_bits() { return _mm_getcsr() & kFlush; }
#endif

/// Sets a mode; the default one when it goes.
class Within {
 public:
  explicit Within(const Mode& mode) : mode_(mode) {
    EXPECT_EQ(std::fesetround(mode.rounding), 0);
#if defined(__x86_64__)
    if (mode.flush) _mm_setcsr(_mm_getcsr() | kFlush);
#endif
  }
  ~Within() {
    EXPECT_EQ(std::fegetround(), mode_.rounding) << "left behind in mode " << mode_.name;
#if defined(__x86_64__)
    EXPECT_EQ(flush_bits(), mode_.flush ? kFlush : 0u) << "left behind in mode " << mode_.name;
    EXPECT_EQ((_mm_getcsr() >> 13) & 3, (static_cast<uint32_t>(mode_.rounding) >> 10) & 3) << mode_.name;
    _mm_setcsr(_mm_getcsr() & ~kFlush);
#endif
    EXPECT_EQ(std::fesetround(FE_TONEAREST), 0);
  }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;

 private:
  Mode mode_;
};

// ---------------------------------------------------------------------------------------------------------------
// Operations. A maker prepares inputs in the default mode; what it returns does nothing but call.

using Call = std::function<Bytes(ThreadPool*)>;
struct Operation {
  std::string name;
  std::function<Call()> make;
  bool takes_pool = false;
  friend void PrintTo(const Operation& operation, std::ostream* out) { *out << operation.name; }
};

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto* first = reinterpret_cast<const std::byte*>(values.data());
  return {first, first + values.size() * sizeof(T)};
}
template <typename T>
Bytes bytes_of_one(const T& value) {
  return bytes_of(std::vector<T>{value});
}
Bytes bytes_of(const std::string& text) { return bytes_of(std::vector<char>(text.begin(), text.end())); }
void append(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }
Bytes bytes_of(const Grid& grid) {
  return bytes_of(std::vector<double>{grid.scale(), static_cast<double>(grid.zero_point)});
}
Bytes bytes_of(const LowBitMatrix& matrix) {
  Bytes all = matrix.parameters().codes.bytes;
  for (const Array* array :
       {&matrix.parameters().scales, &matrix.parameters().zero_points, &matrix.parameters().offsets})
    append(all, array->bytes);
  return all;
}

/// The value, or the end of the test with its message.
template <typename T>
T value_of(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return *std::move(result);
}
void expect_ok(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

/// Numbers in [-1, 1] of all 24 bits.
std::vector<float> numbers(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> out(count);
  for (float& value : out) value = static_cast<float>(random.between(-(1 << 24), 1 << 24)) * 0x1p-24f;
  return out;
}
/// The same, every second row of `columns` times 2^-128: subnormal for the most part.
std::vector<float> with_subnormal_rows(size_t rows, size_t columns, uint64_t seed) {
  std::vector<float> out = numbers(rows * columns, seed);
  for (size_t i = 0; i < out.size(); ++i)
    if (i / columns % 2 == 1) out[i] *= 0x1p-128f;
  return out;
}
Array array_of(const std::vector<float>& values, const std::vector<int64_t>& shape) {
  return Array::copy_of(values.data(), shape);
}

/// Calls with the bytes of a saved file.
Bytes saved(const std::function<Status(const std::string&)>& save) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("isobit_float_mode_test_" + std::to_string(::getpid()) + ".safetensors"))
                               .string();
  expect_ok(save(path));
  Bytes content = value_of(read_file(path));
  std::filesystem::remove(path);
  return content;
}

// Grids and calibration -----------------------------------------------------------------------------------------

constexpr Grid kTenth{.bits = 8, .kind = ScaleKind::kReal, .real_scale = 0.1f, .zero_point = 3};
/// Codes of subnormal numbers.
constexpr Grid kTiny{.bits = 8, .kind = ScaleKind::kReal, .real_scale = 0x1.8p-126f};

Call grid_quantize() {
  std::vector<float> x = numbers(200, 1);
  for (float& value : x) value *= 12;
  std::vector<float> tiny = numbers(200, 2);
  for (float& value : tiny) value *= 0x1p-126f;
  return [=](ThreadPool*) {
    std::vector<int8_t> codes(400);
    expect_ok(quantize(kTenth, x, codes.data(), "x"));
    expect_ok(quantize(kTiny, tiny, codes.data() + 200, "x"));
    return bytes_of(codes);
  };
}
Call grid_quantize_value() {
  return [x = numbers(50, 3), tiny = with_subnormal_rows(2, 50, 4)](ThreadPool*) {
    std::vector<int64_t> codes;
    codes.reserve(x.size() + tiny.size());
    for (const float value : x) codes.push_back(quantize_value(kTenth, value));
    for (const float value : tiny) codes.push_back(quantize_value(kTiny, value));
    return bytes_of(codes);
  };
}
Call grid_dequantize() {
  std::vector<int8_t> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<int8_t>(i);
  return [=](ThreadPool*) {
    std::vector<float> x(256);
    dequantize(kTenth, codes.data(), x);
    return bytes_of(x);
  };
}
Call grid_dequantize_value() {
  return [](ThreadPool*) {
    std::vector<float> x;
    for (int64_t code = -128; code < 128; ++code) x.push_back(dequantize_value(kTenth, code));
    return bytes_of(x);
  };
}
Call grid_inverse_scale() {
  return [scales = numbers(50, 5)](ThreadPool*) {
    std::vector<float> inverse;
    inverse.reserve(scales.size());
    for (const float scale : scales)
      inverse.push_back(Grid{.kind = ScaleKind::kReal, .real_scale = std::abs(scale)}.inverse_scale());
    return bytes_of(inverse);
  };
}
Call grids_derived() {
  return [x = numbers(64, 6)](ThreadPool*) {
    Bytes all;
    for (size_t i = 0; i + 1 < x.size(); i += 2)
      append(all, bytes_of(value_of(derive_grid(-std::abs(x[i]), std::abs(x[i + 1]), {.symmetric = false},
                                                ScaleKind::kReal, 255, "x"))));
    return all;
  };
}
Call row_grids_derived() {
  return [x = numbers(64, 7)](ThreadPool*) {
    Bytes all;
    for (const Grid& grid :
         value_of(derive_row_grids(x, 16, 4, {.symmetric = true, .steps = 255}, ScaleKind::kReal, "W", false)))
      append(all, bytes_of(grid));
    return all;
  };
}
Bytes bytes_of(const TensorStatistics& statistics) {
  Bytes all = bytes_of(std::vector<float>{statistics.min(), statistics.max()});
  append(all, bytes_of_one(statistics.exponent()));
  append(all, bytes_of(statistics.bins()));
  for (const TensorStatistics::FloatBin& bin : statistics.float_bins()) {
    append(all, bytes_of_one(bin.high_bits));
    append(all, bytes_of_one(bin.count));
  }
  if (const auto range = statistics.ema_range())
    append(all, bytes_of(std::vector<double>{range->first, range->second}));
  return all;
}
Call statistics_observed() {
  return [x = numbers(500, 8), y = with_subnormal_rows(2, 100, 9)](ThreadPool*) {
    TensorStatistics statistics(0.9), tiny(0.9);
    statistics.observe(x.data(), static_cast<int64_t>(x.size()));
    statistics.observe_sequence_ranges(x.data(), x.data() + 100, 100);
    tiny.observe(y.data() + 100, 100);  // subnormal
    Bytes all = bytes_of(tiny);
    statistics.merge(tiny);
    append(all, bytes_of(statistics));
    return all;
  };
}
Call grids_chosen() {
  TensorStatistics statistics(0.9);
  const std::vector<float> x = numbers(500, 10);
  statistics.observe(x.data(), 500);
  statistics.observe_sequence_ranges(x.data(), x.data() + 100, 100);
  return [=](ThreadPool*) {
    Bytes all;
    for (const char* method : {"minmax", "percentile:99.9", "sqnr", "ema"})
      append(all, bytes_of(value_of(choose_grid(statistics, {}, ScaleKind::kReal,
                                                value_of(parse_calibration_options(method)), "x"))));
    return all;
  };
}
Call calibration_parsed() {
  return [](ThreadPool*) {
    Bytes all;
    for (const char* text : {"ema:0.3", "ema:0.7", "ema:0.123456789"}) {
      const CalibrationOptions options = value_of(parse_calibration_options(text));
      append(all, bytes_of_one(options.ema_decay));
      append(all, bytes_of(to_string(options)));
    }
    return all;
  };
}

// Files ---------------------------------------------------------------------------------------------------------

Call array_to_float() {
  std::vector<double> values;
  for (const float value : with_subnormal_rows(2, 100, 11))
    values.push_back(static_cast<double>(value) * (1 + 0x1p-30));
  return [array = Array::copy_of(values.data(), {200})](ThreadPool*) { return bytes_of(array.to_float()); };
}
/// Of the types with offsets these are so small beside the scales that sums are rounded.
Bytes gguf_file() {
  Bytes file = gguf_seed_file(std::byte{0x35});
  const GgufFile view = value_of(GgufFile::view(file.data(), file.size(), "seed"));
  for (const auto& [name, at] : {std::pair{"3", 2}, std::pair{"10", 82}, std::pair{"12", 2}}) {
    const uint16_t small = 0x0c01;  // about 2^-12
    std::memcpy(file.data() + view.find_tensor(name)->offset + at, &small, sizeof small);
  }
  return file;
}
/// Metadata: a subnormal number, which becomes a double.
Call gguf_view() {
  Bytes file;
  const auto put = [&file](auto value) { append(file, bytes_of_one(value)); };
  for (const uint32_t word : {0x46554747u, 3u}) put(word);  // "GGUF", version
  for (const uint64_t number : {0u, 1u, 1u}) put(number);   // tensors, entries, characters of the key
  put('f');
  put(uint32_t{6});  // float32
  put(uint32_t{12345});
  return [=](ThreadPool*) {
    const GgufFile view = value_of(GgufFile::view(file.data(), file.size(), "one"));
    return bytes_of_one(std::get<double>(view.find_metadata("f")->value));
  };
}
Call gguf_read() {
  return [file = gguf_file()](ThreadPool*) {
    Bytes all;
    const GgufFile view = value_of(GgufFile::view(file.data(), file.size(), "seed"));
    for (const GgufTensor& tensor : view.tensors()) append(all, value_of(view.read(tensor.name)).bytes);
    return all;
  };
}
Call gguf_parsed() {
  return [file = gguf_file()](ThreadPool*) {
    Bytes all;
    for (const auto& [name, array] : value_of(parse_gguf(file.data(), file.size(), "seed")).arrays)
      append(all, array.bytes);
    return all;
  };
}
Call gguf_imported() {
  return [file = gguf_file()](ThreadPool*) {
    Bytes all;
    const GgufFile view = value_of(GgufFile::view(file.data(), file.size(), "seed"));
    for (const GgufTensor& tensor : view.tensors())
      if (is_importable(tensor)) append(all, bytes_of(value_of(import_gguf(view, tensor.name)).matrix));
    return all;
  };
}
/// 3 S is just above the largest float: infinite where it is rounded to nearest, not where it is cut.
Call low_bit_checked() {
  LowBitParameters p;
  p.rows = 1;
  p.columns = p.group = 8;
  p.bits = 2;
  p.kind = LowBitKind::kOffset;
  p.codes = Array::zeros(Dtype::kU8, {1, 4});
  p.codes.data<uint8_t>()[0] = 0xff;
  p.scales = array_of({0x1.555556p126f}, {1, 1});
  p.offsets = array_of({0}, {1, 1});
  return [=](ThreadPool*) {
    const Result<LowBitMatrix> matrix = LowBitMatrix::create(p, "m");
    return bytes_of(matrix.ok() ? std::string("accepted") : matrix.status().message());
  };
}

// Low-bit weights -----------------------------------------------------------------------------------------------

constexpr int64_t kN = 70, kK = 96;

Call low_bit_quantized() {
  return [w = array_of(numbers(kN * kK, 12), {kN, kK})](ThreadPool* pool) {
    Bytes all;
    for (const LowBitKind kind : {LowBitKind::kSymmetric, LowBitKind::kZeroPoint, LowBitKind::kOffset})
      append(all, bytes_of(value_of(quantize_low_bit(
                      w, {.bits = 4, .group = 32, .kind = kind, .method = LowBitMethod::kMse}, "w", pool))));
    return all;
  };
}
LowBitMatrix matrix_of(LowBitKind kind, int64_t group, int32_t bits, float scale = 1) {
  std::vector<float> w = numbers(kN * kK, 13);
  for (float& value : w) value *= scale;
  const LowBitMethod method = kind == LowBitKind::kSymmetric ? LowBitMethod::kAbsmax : LowBitMethod::kMinmax;
  return value_of(
      quantize_low_bit(array_of(w, {kN, kK}), {.bits = bits, .group = group, .kind = kind, .method = method}, "w"));
}
Call low_bit_dequantized() {
  return [a = matrix_of(LowBitKind::kOffset, 32, 4),
          b = matrix_of(LowBitKind::kSymmetric, 32, 4, 0x1p-123f)](ThreadPool* pool) {
    std::vector<float> w(2 * kN * kK);
    expect_ok(a.dequantize(std::span(w).first(kN * kK), pool));
    expect_ok(b.dequantize(std::span(w).last(kN * kK), pool));
    return bytes_of(w);
  };
}
Call low_bit_sqnr() {
  return [w = array_of(numbers(kN * kK, 13), {kN, kK}), m = matrix_of(LowBitKind::kOffset, 32, 4)](ThreadPool* pool) {
    return bytes_of_one(value_of(sqnr(w, m, "w", pool)));
  };
}

// Linear layers -------------------------------------------------------------------------------------------------

/// m = 1, 5 and 40 rows, every second of subnormal results.
Call linear(LinearActivations activations, CpuPath path) {
  std::vector<LinearLayer> layers;
  for (const LowBitKind kind : {LowBitKind::kSymmetric, LowBitKind::kOffset})
    for (const int32_t bits : {2, 8})
      layers.push_back(value_of(
          LinearLayer::create(matrix_of(kind, bits == 8 && kind == LowBitKind::kSymmetric ? kK : 32, bits, 0x1p-6f),
                              {.activations = activations, .path = path}, "layer")));
  std::vector<float> x = numbers(40 * kK, 14);
  for (size_t i = 0; i < x.size(); ++i)
    if (i / kK % 2 == 0) x[i] *= activations == LinearActivations::kFloat ? 0x1p-127f : 0x1p-116f;
  auto workspace = std::make_shared<Workspace>();
  for (const LinearLayer& layer : layers)
    if (layer.workspace(40, 3).size_bytes() > workspace->size_bytes()) *workspace = layer.workspace(40, 3);
  std::vector<uint16_t> half(x.size());
  for (size_t i = 0; i < x.size(); ++i) half[i] = f32_to_f16(x[i]);
  return [=](ThreadPool* pool) {
    Bytes all;
    for (const LinearLayer& layer : layers)
      for (const int64_t m : {1, 5, 40}) {
        const auto count = static_cast<size_t>(m * kN), from = static_cast<size_t>(m * kK);
        Bytes y(count * 4), y_half(count * 2);
        expect_ok(layer.forward(std::as_bytes(std::span(x).first(from)), Dtype::kF32, y, Dtype::kF32, m, *workspace,
                                {.pool = pool}));
        expect_ok(layer.forward(std::as_bytes(std::span(half).first(from)), Dtype::kF16, y_half, Dtype::kF16, m,
                                *workspace, {.pool = pool}));
        append(all, y);
        append(all, y_half);
      }
    return all;
  };
}
/// A clamp of two subnormal numbers in the wrong order.
Call linear_created() {
  return [matrix = matrix_of(LowBitKind::kOffset, 32, 4)](ThreadPool*) {
    return bytes_of(LinearLayer::create(matrix, {.clamp = {0x1p-130f, 0x1p-140f}}, "layer").status().message());
  };
}

StaticLinearOptions static_options() {
  static const std::vector<float> bias = numbers(kN, 16);
  return {.input = {.bits = 8, .kind = ScaleKind::kReal, .real_scale = 0.011f, .zero_point = 5},
          .output = Grid{.bits = 8, .kind = ScaleKind::kReal, .real_scale = 0.013f, .zero_point = -7},
          .bias = bias,
          .clamp = {-0.7f, 0.9f}};
}
Call static_derived() {
  return [matrix = matrix_of(LowBitKind::kSymmetric, kK, 8)](ThreadPool*) {
    const StaticLinearParameters p = value_of(derive_static_linear(matrix, static_options(), "layer"));
    Bytes all = p.bias.bytes;
    append(all, p.weights.bytes);
    for (const RescaleParameters& r : p.rescales) append(all, bytes_of(std::vector<int64_t>{r.multiplier, r.shift}));
    append(all, bytes_of(std::vector<int32_t>{p.lo, p.hi}));
    const StaticLinearParameters again = value_of(derive_static_requantization(p, static_options().clamp, "layer"));
    for (const RescaleParameters& r : again.rescales)
      append(all, bytes_of(std::vector<int64_t>{r.multiplier, r.shift}));
    append(all, bytes_of(std::vector<int32_t>{again.lo, again.hi}));
    return all;
  };
}
StaticLinearCalibrator static_calibrator() {
  const Array weights = array_of(numbers(kN * kK, 31), {kN, kK});
  return value_of(StaticLinearCalibrator::create(weights, numbers(kN, 32), LinearClamp::none(), "layer"));
}
Call static_observed() {
  return [x = numbers(9 * kK, 33)](ThreadPool* pool) {
    StaticLinearCalibrator made = static_calibrator();
    expect_ok(made.observe(x, 3, 3, pool));
    expect_ok(made.merge(made));
    const auto [y_min, y_max] = made.y_statistics().ema_range().value();
    return bytes_of(std::vector<double>{y_min, y_max, static_cast<double>(made.y_statistics().min()),
                                        static_cast<double>(made.y_statistics().max())});
  };
}
/// Derived by all that rounds: the search for least errors, general scales, a row that is nearly dead.
Call static_calibrated() {
  std::vector<float> weights = numbers(kN * kK, 31);
  for (int64_t k = 0; k < kK; ++k) weights[static_cast<size_t>(k)] *= 0x1p-60f;
  StaticLinearCalibrator made = value_of(
      StaticLinearCalibrator::create(array_of(weights, {kN, kK}), numbers(kN, 32), LinearClamp::none(), "layer"));
  expect_ok(made.observe(numbers(9 * kK, 33), 9));
  return [made](ThreadPool*) {
    StaticLinearQuantization q;
    q.x.bits = q.y->bits = 12;
    q.scale = ScaleKind::kReal;
    q.x_method.method = q.y_method.method = CalibrationMethod::kSqnr;
    q.weight_method = LowBitMethod::kMse;
    const StaticLinearLayer layer = value_of(made.finish(q));
    const Bytes file = saved([&](const std::string& to) { return layer.save(to); });
    const ArrayReader reader = value_of(ArrayReader::view(file.data(), file.size(), "layer"));
    const StaticLinearLayer loaded = value_of(StaticLinearLayer::load(reader));
    return saved([&](const std::string& to) { return loaded.save(to); });
  };
}
/// `created`: the layer is made within the modes, too.
Call static_linear(CpuPath path, bool created) {
  const StaticLinearParameters p =
      value_of(derive_static_linear(matrix_of(LowBitKind::kSymmetric, kK, 8), static_options(), "layer"));
  const StaticLinearLayer made = value_of(StaticLinearLayer::create(p, "layer", path));
  std::vector<std::byte> x(40 * kK);
  Random random(17);
  for (std::byte& code : x) code = static_cast<std::byte>(random.between(0, 255));
  auto workspace = std::make_shared<Workspace>(made.workspace(40, 3));
  return [=](ThreadPool* pool) {
    const StaticLinearLayer layer = created ? value_of(StaticLinearLayer::create(p, "layer", path)) : made;
    Bytes y(40 * kN);
    expect_ok(layer.forward_codes(x, y, 40, *workspace, {.pool = pool}));
    return y;
  };
}

// The GRU -------------------------------------------------------------------------------------------------------

constexpr int64_t kC = 5, kH = 20, kSteps = 7, kBatch = 6;

GruWeights gru_weights(uint64_t seed = 18) {
  GruWeights weights;
  weights.name = "gru";
  weights.layers.push_back({kC, kH, numbers(3 * kH * kC, seed), numbers(3 * kH * kH, seed + 1),
                            numbers(3 * kH, seed + 2), numbers(3 * kH, seed + 3)});
  return weights;
}
Call gru_float() {
  return [weights = gru_weights(), x = numbers(kSteps * kBatch * kC, 22)](ThreadPool*) {
    std::vector<float> y(kSteps * kBatch * kH);
    expect_ok(gru_forward_float(weights, {.steps = kSteps, .batch = kBatch, .x = x, .y = y}));
    return bytes_of(y);
  };
}
GruCalibrator calibrator(ThreadPool* pool = nullptr, uint64_t seed = 18) {
  GruCalibrator made = value_of(GruCalibrator::create(gru_weights(seed)));
  expect_ok(made.observe(numbers(kSteps * kBatch * kC, 22), kSteps, kBatch, {}, {}, pool));
  return made;
}
Call gru_observed() {
  return [](ThreadPool* pool) {
    const GruCalibrator made = calibrator(pool);
    Bytes all;
    for (int32_t tensor = 0; tensor < kGruTensorCount; ++tensor)
      append(all, bytes_of(made.statistics(0, static_cast<GruTensor>(tensor))));
    return all;
  };
}
GruModel gru_model(ScaleKind kind, uint64_t seed = 18) {
  GruQuantization quantization;
  quantization.scale = kind;
  return value_of(calibrator(nullptr, seed).finish(quantization));
}
Call gru_derived() {
  GruWeights weights = gru_weights();
  for (size_t k = 0; k < kC; ++k) weights.layers[0].W[k] *= 1e-18f;  // a nearly dead row
  GruCalibrator dead = value_of(GruCalibrator::create(weights));
  expect_ok(dead.observe(numbers(kSteps * kBatch * kC, 22), kSteps, kBatch));
  return [made = std::move(dead)](ThreadPool*) {
    GruQuantization quantization;
    quantization.scale = ScaleKind::kReal;
    const GruModel model = value_of(made.finish(quantization));
    return saved([&](const std::string& path) { return model.save(path); });
  };
}
Call gru_loaded() {
  const GruModel model = gru_model(ScaleKind::kReal);
  const auto path = (std::filesystem::temp_directory_path() /
                     ("isobit_float_mode_gru_" + std::to_string(::getpid()) + ".safetensors"))
                        .string();
  expect_ok(model.save(path));
  const std::shared_ptr<void> owner(nullptr, [path](void*) { std::filesystem::remove(path); });
  return [=](ThreadPool*) {
    (void)owner;
    const GruModel loaded = value_of(GruModel::load(path));
    return saved([&](const std::string& to) { return loaded.save(to); });
  };
}
/// Codes from floats and back, both kinds of scales; `floats`: also x and y.
Call gru_forward(CpuPath path, bool floats) {
  std::vector<GruModel> models{gru_model(ScaleKind::kReal), gru_model(ScaleKind::kPow2)};
  auto workspaces = std::make_shared<std::vector<Workspace>>();
  for (const GruModel& model : models) workspaces->push_back(model.workspace(kBatch, kSteps, 3));
  std::vector<float> x = numbers(kSteps * kBatch * kC, 23);
  std::vector<std::byte> codes(x.size());
  Random random(24);
  for (std::byte& code : codes) code = static_cast<std::byte>(random.between(0, 255));
  return [=](ThreadPool* pool) {
    Bytes all;
    for (size_t i = 0; i < models.size(); ++i) {
      GruState state = models[i].initial_state(kBatch);
      const RunOptions options{.path = path, .pool = pool};
      if (floats) {
        std::vector<float> y(kSteps * kBatch * kH);
        expect_ok(models[i].forward(x, y, kSteps, state, (*workspaces)[i], options));
        append(all, bytes_of(y));
      } else {
        Bytes y(kSteps * kBatch * kH);
        expect_ok(models[i].forward_codes(codes, y, kSteps, state, (*workspaces)[i], options));
        append(all, y);
      }
      append(all, Bytes(state.layer(0).begin(), state.layer(0).end()));
    }
    return all;
  };
}
Call gru_state() {
  return [to = gru_model(ScaleKind::kReal), from = gru_model(ScaleKind::kReal, 40),
          h = numbers(kBatch * kH, 25)](ThreadPool*) {
    const GruState state = value_of(from.state_from_float(h, kBatch));
    const GruState handed = value_of(to.state_from(from, state));
    std::vector<float> back(kBatch * kH);
    to.state_to_float(handed, back);
    Bytes all(state.layer(0).begin(), state.layer(0).end());
    append(all, bytes_of(back));
    return all;
  };
}

/// A step of training: other grids and weights, forward, gradients of weights and grids; both kinds of scales.
Call gru_trained(CpuPath path) {
  std::vector<GruModelParameters> models;
  for (const ScaleKind kind : {ScaleKind::kReal, ScaleKind::kPow2}) models.push_back(gru_model(kind).parameters());
  return [=, weights = gru_weights(41), x = numbers(kSteps * kBatch * kC, 23),
          dy = numbers(kSteps * kBatch * kH, 26)](ThreadPool* pool) {
    Bytes all;
    for (const GruModelParameters& model : models) {
      const std::vector<GruGridChange> changes = {{.tensor = kNIn, .range = {{-1.1, 0.7}}}};
      const GruModel changed = value_of(GruModel::create(value_of(with_grids(model, changes, weights, {}))));
      std::vector<float> y(dy.size()), dx(x.size()), W(3 * kH * kC), R(3 * kH * kH), bw(3 * kH), br(3 * kH);
      const GruQatRun run = value_of(
          GruQatRun::forward(changed, x, kSteps, kBatch, y, {}, {.path = path, .pool = pool}, {.learn_grids = true}));
      const std::vector<GruTrainingGradients> into = {{W, R, bw, br}};
      std::vector<GruGridGradients> grids(1);
      expect_ok(run.backward(dy, dx, into, {}, pool, grids));
      for (const std::vector<float>& values : {y, dx, W, R, bw, br}) append(all, bytes_of(values));
      for (const GruTensor tensor : kGruCalibratedTensors) {
        const GruGridGradient& sums = grids[0][tensor];
        append(all, bytes_of_one(sums));
        append(all, bytes_of_one(log2_step_gradient(sums, changed.parameters().layers[0].grids[tensor])));
      }
      append(all, bytes_of_one(run.clipped_units()));
    }
    return all;
  };
}

GruSequences gru_sequences(const std::vector<float>& x) {
  GruSequences data;
  data.steps = kSteps;
  data.batch = kBatch;
  data.x = x;
  return data;
}
Call gru_compared() {
  return [model = gru_model(ScaleKind::kReal), x = numbers(kSteps * kBatch * kC, 23)](ThreadPool* pool) {
    GruCompareOptions options;
    options.pool = pool;
    options.profile = true;
    GruComparison comparison = value_of(GruComparison::create(gru_weights(), model, options));
    expect_ok(comparison.add(gru_sequences(x)));
    const GruComparisonReport report = value_of(comparison.finish());
    std::vector<double> values;
    for (const TensorComparison& row : report.tensors) {
      for (const double value : {row.sqnr_db, row.own_sqnr_db, row.cosine, row.largest_error, row.worst.sqnr_db})
        values.push_back(value);
    }
    GruPage page;
    page.model = &model;
    page.comparison = &report;
    page.sequences.assign(kBatch, "x");
    Bytes all = bytes_of(values);
    append(all, bytes_of(value_of(html_page(page))));
    append(all, bytes_of(value_of(html_part(page))));
    return all;
  };
}
Call gru_ablated() {
  GruQuantization quantization;
  expect_ok(apply_bits("16,x=8", quantization));
  const GruModel model = value_of(calibrator().finish(quantization));
  return [model, x = numbers(kSteps * kBatch * kC, 23)](ThreadPool* pool) {
    GruValidationOptions options;
    options.pool = pool;
    GruValidation validation = value_of(GruValidation::create(gru_weights(), options));
    expect_ok(validation.add(gru_sequences(x)));
    Bytes all = bytes_of_one(value_of(validation.measure(model)).output_db);
    const std::vector<GruTensorSet> sets = {GruTensorSet{1} << kX};
    const GruModelParameters wide = value_of(widen(gru_weights(), model.parameters(), sets));
    append(all, bytes_of(wide.layers[0].grids[kX]));
    for (const RescaleParameters& r : wide.layers[0].acc_to_ih) append(all, bytes_of_one(r.multiplier));
    append(all, bytes_of(value_of(ablate(validation, model)).sentence));
    return all;
  };
}

Call gru_tuned() {
  return [x = numbers(kSteps * kBatch * kC, 24)](ThreadPool* pool) {
    GruValidationOptions options;
    options.pool = pool;
    GruValidation validation = value_of(GruValidation::create(gru_weights(), options));
    expect_ok(validation.add(gru_sequences(x)));
    GruTuneOptions search;
    search.pool = pool;
    search.target = 20;
    search.method = "minmax";
    search.scale = ScaleKind::kPow2;
    search.table = "segments:4";
    const GruTuneResult result = value_of(tune_gru(calibrator(), validation, search));
    Bytes all = bytes_of(result.chosen.settings.command_options());
    for (const GruTunePoint& point : result.front) append(all, bytes_of_one(point.quality));
    return all;
  };
}

// Tables --------------------------------------------------------------------------------------------------------

Call table_fitted() {
  return [](ThreadPool*) {
    Bytes all;
    const Grid in{.bits = 8, .kind = ScaleKind::kReal, .real_scale = 0.03f};
    const Grid out{.bits = 8, .kind = ScaleKind::kReal, .real_scale = 0.0079f};
    for (const char* kind : {"direct", "interpolated", "segments:8"}) {
      const ActivationTable table =
          value_of(fit_table(Activation::kTanh, in, out, value_of(parse_table_options(kind)), Rounding::kNearestEven));
      expect_ok(check_table(table, "table"));
      for (int64_t q = in.min(); q <= in.max(); ++q) append(all, bytes_of_one(table(q)));
    }
    append(all, bytes_of(value_of(exact_codes(Activation::kSigmoid, in, out))));
    return all;
  };
}
/// f16 and f32 in, all three out.
Call fp16_run(std::string_view kernel) {
  std::vector<float> x = numbers(3000, 26);
  for (float& value : x) value *= 9;
  std::vector<Fp16Function> functions;
  for (const Fp16Model model : {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu})
    for (const char* name : {"gelu", "sin", "exp"})
      functions.push_back(value_of(Fp16Function::create(value_of(builtin_fp16_table(name, model)))));
  return [=](ThreadPool* pool) {
    Bytes all;
    for (const Fp16Function& function : functions)
      for (const Dtype to : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
        Bytes y(x.size() * size_in_bytes(to));
        expect_ok(function.forward(std::as_bytes(std::span(x)), Dtype::kF32, y, to, {.kernel = kernel, .pool = pool}));
        append(all, y);
      }
    return all;
  };
}
Call fp16_softmax(std::string_view kernel) {
  std::vector<float> x = numbers(3000, 27);
  for (float& value : x) value *= 9;
  std::vector<Fp16Softmax> softmaxes;
  for (const Fp16Model model : {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu})
    softmaxes.push_back(value_of(Fp16Softmax::create(value_of(builtin_fp16_table("exp", model)),
                                                     value_of(builtin_fp16_table("reciprocal", model)))));
  return [=](ThreadPool* pool) {
    Bytes all;
    for (const Fp16Softmax& softmax : softmaxes)
      for (const Dtype to : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
        Bytes y(x.size() * size_in_bytes(to));
        expect_ok(
            softmax.forward(std::as_bytes(std::span(x)), Dtype::kF32, y, to, 100, {.kernel = kernel, .pool = pool}));
        append(all, y);
      }
    return all;
  };
}
Bytes bytes_of(const Fp16Certificate& c) {
  return bytes_of(std::vector<double>{c.max_ulp, c.mean_ulp, double(c.worst_code), c.max_absolute, c.share_exact,
                                      c.share_within_ulp});
}
Call fp16_look_up() {
  return [table = value_of(builtin_fp16_table("sin"))](ThreadPool*) {
    std::vector<uint16_t> y;
    for (uint32_t x = 0; x < 65536; x += 13) y.push_back(table(static_cast<uint16_t>(x)));
    return bytes_of(y);
  };
}
Call fp16_created() {
  return [](ThreadPool*) {
    Bytes all;
    for (const Fp16Model model : {Fp16Model::kF32, Fp16Model::kNliGpu, Fp16Model::kNliCpu}) {
      Fp16Table table = value_of(builtin_fp16_table("gelu", model));
      expect_ok(check_fp16_table(table, "table"));
      const Fp16Function function = value_of(Fp16Function::create(table));
      append(all, bytes_of(std::vector<uint16_t>(function.results().begin(), function.results().end())));
      append(all, bytes_of(table.pieces[0].scales));
      set_scales(table.pieces[0], model);
      append(all, bytes_of(table.pieces[0].scales));
    }
    return all;
  };
}
Call fp16_certified() {
  const Fp16Table table = value_of(builtin_fp16_table("gelu"));
  return
      [table, exact = value_of(fp16_exact("gelu"))](ThreadPool*) { return bytes_of(value_of(certify(table, exact))); };
}
Call fp16_imported() {
  return [](ThreadPool*) {
    const Fp16Table table =
        value_of(import_fp16_table("tanh", {-3.0f, -0.7001953125f, 0.2998046875f, 3.0f}, {.steps = {5, 7, 9}}));
    Bytes all = bytes_of(table.pieces[0].values);
    append(all, bytes_of(table.pieces[0].scales));
    append(all, bytes_of(table.certificate));
    return all;
  };
}
Call fp16_saved() {
  return [table = value_of(builtin_fp16_table("gelu"))](ThreadPool*) {
    const Bytes file = saved([&](const std::string& path) { return save_fp16_table(path, table); });
    Bytes all = file;
    append(all, bytes_of(value_of(parse_fp16_table(file.data(), file.size(), "table")).pieces[0].values));
    return all;
  };
}
Call fp16_exported() {
  return [table = value_of(builtin_fp16_table("gelu"))](ThreadPool*) {
    Bytes all;
    for (const ExportedFile& file : value_of(export_fp16_c(table, "gelu"))) append(all, bytes_of(file.text));
    append(all, bytes_of(value_of(export_fp16_hex(table))));
    append(all, bytes_of(fp16_formula("swish", 0.1)));
    return all;
  };
}

std::vector<Operation> operations() {
  std::vector<Operation> all = {
      {"grid_quantize", grid_quantize},
      {"grid_quantize_value", grid_quantize_value},
      {"grid_dequantize", grid_dequantize},
      {"grid_dequantize_value", grid_dequantize_value},
      {"grid_inverse_scale", grid_inverse_scale},
      {"derive_grid", grids_derived},
      {"derive_row_grids", row_grids_derived},
      {"statistics", statistics_observed},
      {"choose_grid", grids_chosen},
      {"calibration_options", calibration_parsed},
      {"array_to_float", array_to_float},
      {"gguf_view", gguf_view},
      {"gguf_read", gguf_read},
      {"gguf_parse", gguf_parsed},
      {"gguf_import", gguf_imported},
      {"low_bit_create", low_bit_checked},
      {"low_bit_quantize", low_bit_quantized, true},
      {"low_bit_dequantize", low_bit_dequantized, true},
      {"low_bit_sqnr", low_bit_sqnr, true},
      {"linear_create", linear_created},
      {"static_derive", static_derived},
      {"static_observe", static_observed, true},
      {"static_calibrate", static_calibrated},
      {"gru_float", gru_float},
      {"gru_observe", gru_observed, true},
      {"gru_derive", gru_derived},
      {"gru_load", gru_loaded},
      {"gru_state", gru_state},
      {"gru_compare", gru_compared, true},
      {"gru_ablate", gru_ablated, true},
      {"gru_tune", gru_tuned, true},
      {"table_fit", table_fitted},
      {"fp16_look_up", fp16_look_up},
      {"fp16_create", fp16_created},
      {"fp16_certify", fp16_certified},
      {"fp16_import", fp16_imported},
      {"fp16_save", fp16_saved},
      {"fp16_export", fp16_exported},
  };
  constexpr std::pair<const char*, LinearActivations> kActivations[] = {
      {"float", LinearActivations::kFloat},
      {"int8", LinearActivations::kInt8},
      {"int8_asymmetric", LinearActivations::kInt8Asymmetric}};
  for (const CpuPath path : kAllCpuPaths) {
    if (!cpu_can_run(path)) continue;
    const std::string of_path = "_" + std::string(to_string(path));
    for (const auto& [name, activations] : kActivations)
      all.push_back(
          {std::string("linear_") + name + of_path, [kind = activations, path] { return linear(kind, path); }, true});
    all.push_back({"linear_static" + of_path, [path] { return static_linear(path, false); }, true});
    all.push_back({"linear_static_create" + of_path, [path] { return static_linear(path, true); }, true});
    all.push_back({"gru_forward" + of_path, [path] { return gru_forward(path, true); }, true});
    all.push_back({"gru_forward_codes" + of_path, [path] { return gru_forward(path, false); }, true});
    all.push_back({"gru_training" + of_path, [path] { return gru_trained(path); }, true});
  }
  for (const Fp16Kernel& kernel : fp16_kernels())
    if (cpu_can_run(kernel.path))
      all.push_back({"fp16_" + std::string(kernel.name), [&kernel] { return fp16_run(kernel.name); }, true});
  for (const Fp16Kernel& kernel : fp16_softmax_kernels())
    if (cpu_can_run(kernel.path))
      all.push_back(
          {"fp16_softmax_" + std::string(kernel.name), [&kernel] { return fp16_softmax(kernel.name); }, true});
  return all;
}

class FloatMode : public ::testing::TestWithParam<Operation> {};

TEST_P(FloatMode, ChangesNoByteAndIsLeftAsItWas) {
  const Call run = GetParam().make();
  const Bytes expected = run(nullptr);
  ASSERT_FALSE(expected.empty());
  ThreadPool made_before(3);
  for (const Mode& mode : std::span(kModes).first(testing::kSanitized ? 2 : std::size(kModes))) {
    SCOPED_TRACE(mode.name);
    std::vector<Bytes> results;
    {
      const Within within(mode);
      results.push_back(run(nullptr));
      if (GetParam().takes_pool) {
        results.push_back(run(&made_before));
        ThreadPool made_within(3);  // its threads have the modes of this one
        results.push_back(run(&made_within));
      }
    }
    for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(results[i] == expected) << "call " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, FloatMode, ::testing::ValuesIn(operations()),
                         [](const auto& operation) { return operation.param.name; });

TEST(FloatModeOfFingerprints, IsTheDefaultOne) {
  const Fingerprints expected = value_of(fingerprint_all(CpuPath::kScalar));
  const Within within(kModes[1]);
  const Result<Fingerprints> lines = fingerprint_all(CpuPath::kScalar);
  ASSERT_TRUE(lines.ok());
  EXPECT_EQ(*lines, expected);
}

/// Bodies of a pool run in the default modes on all of its threads.
TEST(FloatModeOfPools, BodiesHaveTheDefaultOne) {
  for (const Mode& mode : kModes) {
    SCOPED_TRACE(mode.name);
    std::vector<int> roundings(3, -1);
    {
      const Within within(mode);
      ThreadPool pool(3);
      pool.for_ranges(3, [&](int, int64_t begin, int64_t) {
        bool plain = std::fegetround() == FE_TONEAREST;
#if defined(__x86_64__)
        plain = plain && flush_bits() == 0;
#endif
        roundings[static_cast<size_t>(begin)] = plain ? 1 : 0;
      });
    }
    EXPECT_EQ(roundings, std::vector<int>(3, 1));
  }
}

#if defined(__x86_64__)
TEST(FloatModeOfFlags, StayRaisedAndMaskedAsTheyWere) {
  std::vector<float> y(1);
  const std::vector<int8_t> codes{4};
  for (const uint32_t modes : {0u, kFlush}) {
    // Invalid operation raised, underflow not masked: nothing here underflows.
    const uint32_t before = 0x1f80u & ~0x0800u;
    _mm_setcsr(before | 0x0001u | modes);
    dequantize(Grid{.bits = 8, .shift = 1}, codes.data(), y);  // exact
    EXPECT_EQ(_mm_getcsr(), before | 0x0001u | modes);
    _mm_setcsr(before | modes);
    dequantize(kTenth, codes.data(), y);  // 1 * 0.1f is exact, too
    EXPECT_EQ(_mm_getcsr(), before | modes);
    _mm_setcsr(0x1f80);
  }
}
#endif

}  // namespace
}  // namespace isobit
