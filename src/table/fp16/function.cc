// SPDX-License-Identifier: Apache-2.0
#include "isobit/fp16_function.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include "core/float_mode.h"
#include "core/run_options.h"
#include "isobit/nearest.h"
#include "table/fp16/kernels.h"
#include "table/fp16/reference.h"

namespace isobit {
namespace {

constexpr Fp16Kernel kFunctionKernels[] = {
#define ISOBIT_FP16_KERNEL(name, function, path, direct) {name, CpuPath::path, direct},
#include "table/fp16/kernels.inc"
#undef ISOBIT_FP16_KERNEL
};
constexpr Fp16FunctionKernel kFunctionCode[] = {
#define ISOBIT_FP16_KERNEL(name, function, path, direct) function,
#include "table/fp16/kernels.inc"
#undef ISOBIT_FP16_KERNEL
};
constexpr Fp16Kernel kSoftmaxKernels[] = {
#define ISOBIT_FP16_SOFTMAX_KERNEL(name, function, path, direct) {name, CpuPath::path, direct},
#include "table/fp16/kernels.inc"
#undef ISOBIT_FP16_SOFTMAX_KERNEL
};
constexpr Fp16SoftmaxKernel kSoftmaxCode[] = {
#define ISOBIT_FP16_SOFTMAX_KERNEL(name, function, path, direct) function,
#include "table/fp16/kernels.inc"
#undef ISOBIT_FP16_SOFTMAX_KERNEL
};

/// Elements that a thread takes at once.
constexpr int64_t kGrain = 1024;

std::string text_of(float value) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.9g", static_cast<double>(value));
  return buffer;
}

Status invalid(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

/// What can run here is asked once: the question is a trap in a virtual machine.
class KernelChoice {
 public:
  explicit KernelChoice(std::span<const Fp16Kernel> kernels) : kernels_(kernels), path_(default_cpu_path()) {
    for (const CpuPath path : kAllCpuPaths) runs_[static_cast<size_t>(path)] = cpu_can_run(path);
  }

  [[nodiscard]] Result<size_t> choose(const RunOptions& options) const {
    ISOBIT_RETURN_IF_ERROR(
        refuse_options(options, kPathOption | kKernelOption | kPoolOption, "an FP16 table on the CPU"));
    const std::string_view name = options.kernel;
    if (options.path && !name.empty()) return invalid("options.kernel and options.path are both set, must be one");
    if (name.empty()) {
      if (!options.path && !path_.ok()) return path_.status();
      const CpuPath path = options.path ? *options.path : *path_;
      if (static_cast<size_t>(path) >= std::size(kAllCpuPaths))
        return invalid("options.path is " + std::to_string(static_cast<int32_t>(path)) + ", must be a CpuPath");
      if (!runs_[static_cast<size_t>(path)])
        return Status(StatusCode::kFailedPrecondition, "path " + std::string(to_string(path)) + " cannot run here: " +
                                                           std::string(cpu_cannot_run_reason(path)));
      size_t best = 0;
      for (size_t i = 0; i < kernels_.size(); ++i)
        if (kernels_[i].path <= path && runs_[static_cast<size_t>(kernels_[i].path)]) best = i;
      return best;
    }
    std::string names;
    for (size_t i = 0; i < kernels_.size(); ++i) {
      if (kernels_[i].name != name) continue;
      if (!runs_[static_cast<size_t>(kernels_[i].path)])
        return Status(StatusCode::kFailedPrecondition, "kernel '" + std::string(name) + "' cannot run here: " +
                                                           std::string(cpu_cannot_run_reason(kernels_[i].path)));
      return i;
    }
    std::vector<std::string_view> known;
    for (const Fp16Kernel& kernel : kernels_) {
      names += (names.empty() ? "" : ", ") + std::string(kernel.name);
      known.push_back(kernel.name);
    }
    return invalid("kernel is '" + std::string(name) + "', must be one of " + names + nearest_hint(name, known));
  }

 private:
  std::span<const Fp16Kernel> kernels_;
  Result<CpuPath> path_;
  bool runs_[std::size(kAllCpuPaths)] = {};
};

/// Owns what an Fp16Lanes points to.
class LaneTable {
 public:
  explicit LaneTable(const Fp16Table& table) {
    size_t most = 0;
    for (const Fp16Pieces& pieces : table.pieces) most = std::max(most, pieces.steps.size());
    int32_t levels = 4;
    while ((size_t{1} << levels) < most + 2) ++levels;
    lanes_.levels = levels;
    lanes_.pieces = static_cast<int32_t>(table.pieces.size());
    lanes_.model = table.model;
    lanes_.reduction = table.reduction;
    int32_t size = 0;
    for (int32_t level = 0; level < levels; ++level) {
      lanes_.level_starts[level] = size;
      size += padded(lanes_.pieces << level);
    }
    thresholds_.assign(static_cast<size_t>(size), std::numeric_limits<float>::infinity());
    const size_t intervals = static_cast<size_t>(padded(lanes_.pieces << levels));
    starts_.assign(intervals, 0.0f);
    scales_.assign(intervals, 0.0f);
    bases_.assign(intervals, 0);
    for (int32_t piece = 0; piece < lanes_.pieces; ++piece)
      add(table.pieces[static_cast<size_t>(piece)], table.model, piece);
    for (const float value : entries_) lanes_.overflows |= std::isinf(value);
    lanes_.thresholds = thresholds_.data();
    lanes_.starts = starts_.data();
    lanes_.scales = scales_.data();
    lanes_.bases = bases_.data();
    lanes_.entries = entries_.data();
    const bool unit = table.reduction == Fp16Reduction::kInverseSigmoid;
    lanes_.limit = unit ? 0x3c00 : kFp16Infinity;
    const uint32_t of_class[] = {0, lanes_.limit - 1U, lanes_.limit, lanes_.limit + 1U};
    for (uint32_t i = 0; i < 8; ++i) {
      const auto code = static_cast<uint16_t>(of_class[i & 3] | (i >= 4 ? 0x8000u : 0u));
      const Fp16Reduced reduced = fp16_reduce(table.reduction, code);
      lanes_.special[i + 1] = reduced.done ? static_cast<uint8_t>(reduced.code >> 8) : 0xff;
    }
    // VFIXUPIMMPS: four bits for each of quiet and signalling NaN, 0, 1, -infinity, infinity, negative, positive.
    const uint16_t of_token[] = {kFp16Nan, kFp16Nan, 0, 0x3c00, kFp16Infinity | 0x8000, kFp16Infinity, 0xbb00, 0x3b00};
    for (uint32_t i = 0; i < 8; ++i) lanes_.fixup |= fixup_response(table.reduction, of_token[i]) << (4 * i);
  }
  LaneTable(const LaneTable&) = delete;
  LaneTable& operator=(const LaneTable&) = delete;
  [[nodiscard]] const Fp16Lanes& lanes() const { return lanes_; }

 private:
  /// What VFIXUPIMMPS does with such a number.
  static uint32_t fixup_response(Fp16Reduction reduction, uint16_t code) {
    const Fp16Reduced reduced = fp16_reduce(reduction, code);
    if (!reduced.done) return 0;  // leaves the result
    if (code == 0) {
      const bool changes_sign = fp16_reduce(reduction, 0x8000).code != reduced.code;
      if (changes_sign) return reduced.code == 0 ? 1 : 6;  // the number itself; infinity with its sign
    }
    switch (reduced.code) {
      case kFp16Nan: return 3;  // the negative quiet NaN
      case kFp16Infinity | 0x8000: return 4;
      case kFp16Infinity: return 5;
      case 0x8000: return 7;
      default: return 8;  // 0
    }
  }
  static int32_t padded(int32_t size) { return (size + kFp16LaneGroup - 1) / kFp16LaneGroup * kFp16LaneGroup; }

  void add_interval(size_t at, float start, float scale) {
    starts_[at] = start;
    scales_[at] = scale;
    bases_[at] = static_cast<int32_t>(entries_.size() / 2);
  }
  void add_entry(float left, float difference) {
    entries_.push_back(left);
    entries_.push_back(difference);
  }

  void add(const Fp16Pieces& pieces, Fp16Model model, int32_t piece) {
    const size_t count = pieces.steps.size();
    const float* cuts = pieces.cut_points.data();
    size_t at = static_cast<size_t>(piece) << lanes_.levels;
    add_interval(at++, 0.0f, 0.0f);
    add_entry(pieces.values[0], -0.0f);
    size_t base = 0;
    for (size_t i = 0; i < count; ++i) {
      const int32_t length = pieces.steps[i];
      add_interval(at++, cuts[i], pieces.scales[i]);
      if (cuts[i] < cuts[i + 1]) {
        // Every operation of the position rises with x, so the largest argument has the last entry.
        const float last = std::nextafter(cuts[i + 1], -std::numeric_limits<float>::infinity());
        float distance = last - cuts[i];
        if (model == Fp16Model::kNliCpu) distance = f32_through_f16(distance);
        float position = distance * pieces.scales[i];
        if (model == Fp16Model::kNliCpu) position = f32_through_f16(position);
        const int32_t steps = static_cast<int32_t>(position);
        for (int32_t j = 0; j <= steps; ++j) {
          const float left = pieces.values[base + static_cast<size_t>(std::min(j, length))];
          const float right = pieces.values[base + static_cast<size_t>(std::min(j + 1, length))];
          add_entry(left, right - left);
        }
      }
      base += static_cast<size_t>(length);
    }
    add_interval(at, 0.0f, 0.0f);
    add_entry(pieces.values[base], -0.0f);
    // An argument is in interval i when it has reached i thresholds. Only an argument above c_0 is in the table, even
    // where further cut points equal c_0.
    std::vector<float> sorted((size_t{1} << lanes_.levels) - 1, std::numeric_limits<float>::infinity());
    sorted[0] = std::nextafter(cuts[0], std::numeric_limits<float>::infinity());
    for (size_t i = 1; i <= count; ++i) sorted[i] = std::max(cuts[i], sorted[0]);
    for (int32_t level = 0; level < lanes_.levels; ++level) {
      const size_t nodes = size_t{1} << level;
      const size_t half = size_t{1} << (lanes_.levels - 1 - level);
      float* out = thresholds_.data() + lanes_.level_starts[level] + static_cast<size_t>(piece) * nodes;
      for (size_t m = 0; m < nodes; ++m) out[m] = sorted[(2 * m + 1) * half - 1];
    }
  }

  Fp16Lanes lanes_{};
  std::vector<float> thresholds_, starts_, scales_, entries_;
  std::vector<int32_t> bases_;
};

std::optional<Fp16Element> element_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16: return Fp16Element::kF16;
    case Dtype::kBF16: return Fp16Element::kBf16;
    case Dtype::kF32: return Fp16Element::kF32;
    default: return std::nullopt;
  }
}

struct Ends {
  int64_t count;
  Fp16Element x, y;
};

Result<Ends> check_ends(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype) {
  const struct {
    const char* name;
    const std::byte* data;
    size_t bytes;
    Dtype dtype;
  } both[] = {{"x", x.data(), x.size(), x_dtype}, {"y", y.data(), y.size(), y_dtype}};
  for (const auto& end : both) {
    const std::string name = end.name;
    if (!element_of(end.dtype))
      return Status(StatusCode::kUnsupported,
                    name + " is of type " + std::string(to_string(end.dtype)) + ", must be f16, bf16 or f32");
    const size_t size = size_in_bytes(end.dtype);
    if (end.bytes % size != 0)
      return invalid(name + " has " + std::to_string(end.bytes) + " bytes, must be a multiple of " +
                     std::to_string(size) + " for " + std::string(to_string(end.dtype)));
    if (reinterpret_cast<uintptr_t>(end.data) % size != 0)
      return invalid(name + " is at address " + std::to_string(reinterpret_cast<uintptr_t>(end.data)) +
                     ", must be a multiple of " + std::to_string(size) + " for " + std::string(to_string(end.dtype)));
  }
  const size_t count = x.size() / size_in_bytes(x_dtype);
  if (y.size() / size_in_bytes(y_dtype) != count)
    return invalid("y has " + std::to_string(y.size() / size_in_bytes(y_dtype)) + " elements, must be as many as x, " +
                   std::to_string(count));
  const bool in_place = x.data() == y.data() && x.size() == y.size();
  const std::less<const std::byte*> before;
  if (count > 0 && !in_place && before(x.data(), y.data() + y.size()) && before(y.data(), x.data() + x.size()))
    return invalid("y overlaps x, must be apart from it or, for types of the same size, x itself");
  return Ends{static_cast<int64_t>(count), *element_of(x_dtype), *element_of(y_dtype)};
}

int64_t size_of(Fp16Element element) { return element == Fp16Element::kF32 ? 4 : 2; }

/// Calls body(begin, end) for parts of `items`, of whole `grain`s, on the pool if there is one.
template <typename Body>
void split(ThreadPool* pool, int64_t items, int64_t grain, const Body& body) {
  if (items == 0) return;
  if (pool == nullptr) {
    body(int64_t{0}, items);
    return;
  }
  const int64_t grains = items / grain + (items % grain != 0 ? 1 : 0);
  pool->for_ranges(grains,
                   [&](int, int64_t begin, int64_t end) { body(begin * grain, end == grains ? items : end * grain); });
}

}  // namespace

std::span<const Fp16Kernel> fp16_kernels() { return kFunctionKernels; }
std::span<const Fp16Kernel> fp16_softmax_kernels() { return kSoftmaxKernels; }

struct Fp16Function::Data {
  explicit Data(const Fp16Table& t) : table(t), view(view_of(table)), lanes(table), choice(kFunctionKernels) {
    results.resize(65537);  // one more, which 32-bit loads read
    for (uint32_t code = 0; code < 65536; ++code) results[code] = fp16_evaluate(view, static_cast<uint16_t>(code));
  }
  Fp16Table table;
  Fp16TableView view;
  LaneTable lanes;
  KernelChoice choice;
  std::vector<uint16_t> results;
};

Result<Fp16Function> Fp16Function::create(const Fp16Table& table) {
  const DefaultFloatMode mode;
  ISOBIT_RETURN_IF_ERROR(check_fp16_table(table, table.function));
  Fp16Function function;
  function.data_ = std::make_shared<const Data>(table);
  return function;
}

const Fp16Table& Fp16Function::table() const { return data_->table; }

std::span<const uint16_t> Fp16Function::results() const { return std::span(data_->results).first(65536); }

Result<std::string_view> Fp16Function::default_kernel() const {
  ISOBIT_ASSIGN_OR_RETURN(const size_t kernel, data_->choice.choose({}));
  return kFunctionKernels[kernel].name;
}

Status Fp16Function::forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                             const RunOptions& options) const {
  const DefaultFloatMode mode;
  ISOBIT_ASSIGN_OR_RETURN(const Ends ends, check_ends(x, x_dtype, y, y_dtype));
  ISOBIT_ASSIGN_OR_RETURN(const size_t kernel, data_->choice.choose(options));
  const Data& data = *data_;
  split(options.pool, ends.count, kGrain, [&](int64_t begin, int64_t end) {
    kFunctionCode[kernel]({&data.view, &data.lanes.lanes(), data.results.data(), x.data() + begin * size_of(ends.x),
                           y.data() + begin * size_of(ends.y), end - begin, ends.x, ends.y});
  });
  return {};
}

struct Fp16Softmax::Data {
  Data(const Fp16Table& e, const Fp16Table& r)
      : exp(e),
        reciprocal(r),
        exp_view(view_of(exp)),
        reciprocal_view(view_of(reciprocal)),
        lanes(exp),
        choice(kSoftmaxKernels) {}
  Fp16Table exp, reciprocal;
  Fp16TableView exp_view, reciprocal_view;
  LaneTable lanes;
  KernelChoice choice;
};

Result<Fp16Softmax> Fp16Softmax::create(const Fp16Table& exp, const Fp16Table& reciprocal) {
  const DefaultFloatMode mode;
  const struct {
    const char* name;
    const Fp16Table& table;
    Fp16Reduction reduction;
    float low;
  } both[] = {{"exp", exp, Fp16Reduction::kExp, 0.5f}, {"reciprocal", reciprocal, Fp16Reduction::kReciprocal, 0.25f}};
  for (const auto& [name, table, reduction, low] : both) {
    ISOBIT_RETURN_IF_ERROR(check_fp16_table(table, name));
    const std::string prefix = "table " + std::string(name) + ": ";
    if (table.reduction != reduction)
      return invalid(prefix + "reduction is " + std::string(to_string(table.reduction)) + ", must be " + name);
    for (size_t i = 0; i < table.pieces[0].values.size(); ++i) {
      const float value = table.pieces[0].values[i];
      if (!(value >= low && value <= 2.0f))
        return invalid(prefix + "values[" + std::to_string(i) + "] is " + text_of(value) + ", must be in [" +
                       text_of(low) + ", 2] for a softmax");
    }
  }
  if (exp.model != reciprocal.model)
    return invalid("table reciprocal: model is " + std::string(to_string(reciprocal.model)) + ", must be " +
                   std::string(to_string(exp.model)) + ", that of the exp table");
  Fp16Softmax softmax;
  softmax.data_ = std::make_shared<const Data>(exp, reciprocal);
  return softmax;
}

const Fp16Table& Fp16Softmax::exp_table() const { return data_->exp; }
const Fp16Table& Fp16Softmax::reciprocal_table() const { return data_->reciprocal; }

Status Fp16Softmax::forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                            int64_t columns, const RunOptions& options) const {
  const DefaultFloatMode mode;
  ISOBIT_ASSIGN_OR_RETURN(const Ends ends, check_ends(x, x_dtype, y, y_dtype));
  if (columns < 1 || columns > std::numeric_limits<int32_t>::max())
    return invalid("columns is " + std::to_string(columns) + ", must be in [1, 2147483647]");
  if (ends.count % columns != 0)
    return invalid("x has " + std::to_string(ends.count) + " elements, must be a multiple of columns, " +
                   std::to_string(columns));
  ISOBIT_ASSIGN_OR_RETURN(const size_t kernel, data_->choice.choose(options));
  const Data& data = *data_;
  split(options.pool, ends.count / columns, 1, [&](int64_t begin, int64_t end) {
    kSoftmaxCode[kernel]({&data.exp_view, &data.lanes.lanes(), &data.reciprocal_view,
                          x.data() + begin * columns * size_of(ends.x), y.data() + begin * columns * size_of(ends.y),
                          end - begin, columns, ends.x, ends.y});
  });
  return {};
}

}  // namespace isobit
