// SPDX-License-Identifier: Apache-2.0
// isobit bench linear: linear layers on random weights. Copies of a layer take turns, so that weights come from memory
// as they do in a model, and what bounds a layer is timed in turn with it: reading as many bytes, and the instruction
// that its kernel multiplies with.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bench/ceilings.h"
#include "isobit/cpu.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "isobit/nearest.h"
#include "models.h"
#include "progress.h"
#include "random.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;
using Layer = std::variant<LinearLayer, StaticLinearLayer>;

constexpr int64_t kMaxSize = int64_t{1} << 20;  // of K, N and M
constexpr int64_t kMebibyte = int64_t{1} << 20;
constexpr int64_t kMaxFootprint = kMebibyte;      // MiB: a terabyte
constexpr int64_t kCacheMultiple = 8;             // footprint, in last-level caches
constexpr int64_t kBytesARound = 32 * kMebibyte;  // of weights: some milliseconds
constexpr int64_t kRowsOfReading = 16;            // are multiplied while weights are read
constexpr int64_t kPeakRuns = 20;                 // some dozen microseconds
constexpr size_t kMinRounds = 11, kSlowRounds = 3;
constexpr double kSlow = 10;              // times --min-time
constexpr double kSlowestChoice = 1.05;   // of the fastest kernel's time
constexpr double kFloatTolerance = 1e-4;  // of the largest result: another order of the sums, no more

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Result<int64_t> parse_size(const std::string& option, std::string_view text, int64_t low, int64_t high) {
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < low || value > high)
    return invalid(option + ": expected " + std::to_string(low) + " to " + std::to_string(high));
  return value;
}

/// What is the same for every number of rows.
struct Problem {
  int64_t columns = 0, rows = 0;  // K, N
  int32_t bits = 8;
  int64_t group = 64;
  std::string activations;

  /// A static layer without a grid of y.
  [[nodiscard]] bool is_accumulators() const { return activations == "accumulators"; }
  [[nodiscard]] bool is_static() const { return activations == "static" || is_accumulators(); }
  [[nodiscard]] std::string operation() const {
    return is_static() ? "linear_static" : activations == "float" ? "linear_float" : "linear_int8";
  }
  [[nodiscard]] std::string name() const {
    return "linear/K" + std::to_string(columns) + "/N" + std::to_string(rows) + "/" + std::to_string(bits) + "bit/g" +
           std::to_string(group) + "/" + activations;
  }
};

Result<Problem> make_problem(const BenchOptions& options, const std::string& shape, const std::string& bits,
                             const std::string& activations) {
  Problem problem;
  const size_t cross = shape.find('x');
  if (cross == std::string::npos) return invalid("--shape " + shape + ": expected KxN, such as 4096x14336");
  const std::string_view text = shape;
  ISOBIT_ASSIGN_OR_RETURN(problem.columns, parse_size("K of --shape " + shape, text.substr(0, cross), 1, kMaxSize));
  ISOBIT_ASSIGN_OR_RETURN(problem.rows, parse_size("N of --shape " + shape, text.substr(cross + 1), 1, kMaxSize));
  ISOBIT_ASSIGN_OR_RETURN(const int64_t width, parse_size("--bits " + bits, bits, 1, 8));
  problem.bits = static_cast<int32_t>(width);
  problem.activations = activations;
  if (!problem.is_static() && !linear_activations_from_string(activations))
    return invalid("--activations " + activations + ": " +
                   expected_one_of(activations, {"float", "int8", "int8_asymmetric", "static", "accumulators"}));
  if (problem.is_static() && problem.bits != 8) return invalid("--bits " + bits + ": static codes have 8 bits");
  problem.group = problem.is_static() || options.group == 0 ? problem.columns : options.group;
  return problem;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char c : list) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// Weights uniform in +-1/sqrt(K), quantised; for static codes with the grids of x in [-1, 1) and, where it has one, of
/// y in [-2, 2), six times its deviation.
class Weights {
 public:
  static Result<Weights> create(const Problem& problem) {
    Random random(static_cast<uint64_t>(problem.columns * 1'000'003 + problem.rows));
    const auto values =
        random.vector(problem.rows * problem.columns, 1.0f / std::sqrt(static_cast<float>(problem.columns)));
    ISOBIT_ASSIGN_OR_RETURN(LowBitMatrix matrix,
                            quantize_low_bit(Array::copy_of(values.data(), {problem.rows, problem.columns}),
                                             {.bits = problem.bits, .group = problem.group}, problem.name()));
    Weights weights(problem, std::move(matrix));
    if (!problem.is_static()) return weights;
    const Grid input{.is_signed = false, .shift = 7, .zero_point = 128};
    std::optional<Grid> output;
    if (!problem.is_accumulators()) output = Grid{.is_signed = false, .shift = 6, .zero_point = 128};
    ISOBIT_ASSIGN_OR_RETURN(weights.parameters_,
                            derive_static_linear(weights.matrix_, {.input = input, .output = output}, problem.name()));
    return weights;
  }

  [[nodiscard]] const Problem& problem() const { return problem_; }
  /// A copy of the packed weights of its own. No path: the layer's choice.
  [[nodiscard]] Result<Layer> layer(std::optional<CpuPath> path) const {
    if (problem_.is_static()) {
      ISOBIT_ASSIGN_OR_RETURN(StaticLinearLayer layer, StaticLinearLayer::create(parameters_, problem_.name(), path));
      return Layer(std::move(layer));
    }
    const LinearOptions options{.activations = *linear_activations_from_string(problem_.activations), .path = path};
    ISOBIT_ASSIGN_OR_RETURN(LinearLayer layer, LinearLayer::create(matrix_, options, problem_.name()));
    return Layer(std::move(layer));
  }

 private:
  Weights(Problem problem, LowBitMatrix matrix) : problem_(std::move(problem)), matrix_(std::move(matrix)) {}

  Problem problem_;
  LowBitMatrix matrix_;
  StaticLinearParameters parameters_;
};

std::string kernel_of(const Layer& layer) {
  return std::visit([](const auto& some) { return std::string(some.kernel_name()); }, layer);
}

CpuPath path_of(const Layer& layer) {
  return std::visit([](const auto& some) { return some.path(); }, layer);
}

/// Whose instructions multiply m rows: AMX has tiles of 16, and only some layers use them.
CpuPath limiting_path(const Layer& layer, int64_t m) {
  const bool tiles = m >= 16 && kernel_of(layer).ends_with("_amx");
  return tiles ? path_of(layer) : std::min(path_of(layer), CpuPath::kAvx512Vnni);
}

/// What bounds m rows, and the same without tiles, where that is another instruction. Null: not known, no other.
struct Peaks {
  const ceilings::Product* used = nullptr;
  const ceilings::Product* vector = nullptr;
};
Peaks peaks_of(const Layer& layer, int64_t m, bool integers) {
  const CpuPath path = limiting_path(layer, m);
  Peaks peaks{.used = ceilings::product_of(path, integers),
              .vector = ceilings::product_of(std::min(path, CpuPath::kAvx512Vnni), integers)};
  if (peaks.vector == peaks.used) peaks.vector = nullptr;
  return peaks;
}

int64_t weight_bytes(const Layer& layer) {
  if (const auto* some = std::get_if<LinearLayer>(&layer)) return some->size_bytes();
  return std::get<StaticLinearLayer>(layer).parameters().weights.size();
}

Dtype y_dtype_of(const Layer& layer) {
  const auto* some = std::get_if<StaticLinearLayer>(&layer);
  return some == nullptr ? Dtype::kF32 : some->parameters().y_dtype;
}

LinearWorkspace workspace_of(const Layer& layer, int64_t m) {
  return std::visit([m](const auto& some) { return some.workspace(m); }, layer);
}

Status forward(const Layer& layer, const Bytes& x, Bytes& y, int64_t m, LinearWorkspace& workspace) {
  if (const auto* some = std::get_if<LinearLayer>(&layer))
    return some->forward(x, Dtype::kF32, y, Dtype::kF32, m, workspace);
  return std::get<StaticLinearLayer>(layer).forward(x, y, m, workspace);
}

/// Rows of one number of them: floats in [-1, 1), or codes.
struct Rows {
  Rows(const Problem& problem, Dtype y_dtype, int64_t count) : m(count) {
    Random random(7);
    x.resize(static_cast<size_t>(m * problem.columns) * (problem.is_static() ? 1 : sizeof(float)));
    y.resize(static_cast<size_t>(m * problem.rows) * size_in_bytes(y_dtype));
    if (problem.is_static()) {
      for (std::byte& code : x) code = static_cast<std::byte>(random.between(0, 255));
    } else {
      const auto values = random.vector(m * problem.columns, 1.0f);
      std::memcpy(x.data(), values.data(), x.size());
    }
  }

  int64_t m;
  Bytes x, y;
};

/// A time for wrong results is worth nothing: first and last row of y against the reference, byte for byte but for
/// float activations.
Status check_results(const Problem& problem, const Layer& reference, const std::string& kernel, const Rows& rows) {
  const size_t x_bytes = rows.x.size() / static_cast<size_t>(rows.m);
  const size_t y_bytes = rows.y.size() / static_cast<size_t>(rows.m);
  LinearWorkspace workspace = workspace_of(reference, 1);
  Bytes expected(y_bytes);
  for (const int64_t row : {int64_t{0}, rows.m - 1}) {
    const std::byte* const from = rows.x.data() + static_cast<size_t>(row) * x_bytes;
    const std::byte* const got = rows.y.data() + static_cast<size_t>(row) * y_bytes;
    ISOBIT_RETURN_IF_ERROR(forward(reference, Bytes(from, from + x_bytes), expected, 1, workspace));
    bool right = std::memcmp(expected.data(), got, y_bytes) == 0;
    if (problem.activations == "float") {
      std::vector<float> wanted(y_bytes / sizeof(float)), found(wanted.size());
      std::memcpy(wanted.data(), expected.data(), y_bytes);
      std::memcpy(found.data(), got, y_bytes);
      float largest = 0, difference = 0;
      for (size_t n = 0; n < wanted.size(); ++n) {
        largest = std::max(largest, std::abs(wanted[n]));
        difference = std::max(difference, std::abs(wanted[n] - found[n]));
      }
      right = difference <= static_cast<float>(kFloatTolerance) * largest;
    }
    if (!right)
      return {StatusCode::kFailedPrecondition, problem.name() + ": row " + std::to_string(row) + " of kernel " +
                                                   kernel + " is not what the reference gives; isobit verify " +
                                                   "--operation linear says where"};
  }
  return {};
}

/// One kernel and its copies of the layer.
struct Contestant {
  std::string kernel;
  int64_t bytes = 0;  // of the weights of a copy
  std::vector<Layer> copies;
  size_t next = 0;
  std::vector<double> seconds{}, peak_seconds{}, vector_peak_seconds{};  // a call; a run of each product

  Status call(Rows& rows, LinearWorkspace& workspace) {
    const Layer& layer = copies[next];
    next = (next + 1) % copies.size();
    return forward(layer, rows.x, rows.y, rows.m, workspace);
  }
};

/// The kernels that were asked for. All of them take turns, so they share the footprint.
Result<std::vector<Contestant>> make_contestants(const BenchOptions& options, const Weights& weights,
                                                 int64_t footprint) {
  const Problem& problem = weights.problem();
  std::vector<std::optional<CpuPath>> paths;
  for (const LinearLayerKernel& kernel : linear_layer_kernels()) {
    // The reference is a definition, no candidate, and slow.
    if (options.all_kernels && kernel.operation == problem.operation() && cpu_can_run(kernel.path) &&
        kernel.path != CpuPath::kReference)
      paths.emplace_back(kernel.path);
  }
  for (const std::string& name : options.kernel) {
    ISOBIT_ASSIGN_OR_RETURN(const auto path, parse_linear_kernel(name, problem.operation()));
    paths.push_back(path);
  }
  if (paths.empty()) paths.emplace_back(std::nullopt);
  std::vector<Contestant> contestants;
  for (const auto& path : paths) {
    Result<Layer> first = weights.layer(path);
    // A kernel that cannot run this layer is no candidate.
    if (!first.ok() && options.all_kernels && first.status().code() == StatusCode::kUnsupported) continue;
    if (!first.ok()) return first.status();
    const std::string kernel = kernel_of(*first);
    // Where a path has no kernel of its own for this layer, that of another path is a contestant already.
    if (std::any_of(contestants.begin(), contestants.end(), [&](const Contestant& c) { return c.kernel == kernel; }))
      continue;
    Contestant c{.kernel = kernel, .bytes = weight_bytes(*first), .copies = {}};
    c.copies.push_back(*std::move(first));
    contestants.push_back(std::move(c));
  }
  const int64_t share = footprint / std::max<int64_t>(1, static_cast<int64_t>(contestants.size()));
  for (Contestant& c : contestants) {
    while (static_cast<int64_t>(c.copies.size()) * c.bytes < share) {
      ISOBIT_ASSIGN_OR_RETURN(Layer copy, weights.layer(path_of(c.copies.front())));
      c.copies.push_back(std::move(copy));
    }
  }
  return contestants;
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void time_peak(const ceilings::Product* product, std::vector<double>& seconds) {
  if (product == nullptr) return;
  const auto start = Clock::now();
  for (int64_t i = 0; i < kPeakRuns; ++i) product->run();
  seconds.push_back(seconds_since(start) / static_cast<double>(kPeakRuns));
}

/// Rounds of everybody in turn, for one number of rows. Returns the median bytes a second of reading.
Result<double> measure(const Weights& weights, const Layer& reference, std::vector<Contestant>& contestants, Rows& rows,
                       ceilings::Memory& memory, double min_time) {
  const bool integers = weights.problem().activations != "float";
  LinearWorkspace workspace;
  for (Contestant& c : contestants) {
    c.seconds.clear();
    c.peak_seconds.clear();
    c.vector_peak_seconds.clear();
    LinearWorkspace own = workspace_of(c.copies.front(), rows.m);
    if (own.size_bytes() > workspace.size_bytes()) workspace = std::move(own);
    ISOBIT_RETURN_IF_ERROR(c.call(rows, workspace));
    ISOBIT_RETURN_IF_ERROR(check_results(weights.problem(), reference, c.kernel, rows));
  }
  const int64_t read_bytes = std::min(memory.size_bytes(), kBytesARound);
  std::vector<double> read_seconds;
  const double enough = min_time * static_cast<double>(contestants.size());
  const auto begin = Clock::now();
  for (;;) {
    for (Contestant& c : contestants) {
      const int64_t calls =
          std::max<int64_t>(1, kBytesARound / (c.bytes * std::max<int64_t>(1, rows.m / kRowsOfReading)));
      // Reading has put x, y and the workspace out of the cache, where layers before and after would have left them.
      ISOBIT_RETURN_IF_ERROR(c.call(rows, workspace));
      const auto start = Clock::now();
      for (int64_t i = 0; i < calls; ++i) ISOBIT_RETURN_IF_ERROR(c.call(rows, workspace));
      c.seconds.push_back(seconds_since(start) / static_cast<double>(calls));
      const Peaks peaks = peaks_of(c.copies.front(), rows.m, integers);
      time_peak(peaks.used, c.peak_seconds);
      time_peak(peaks.vector, c.vector_peak_seconds);
    }
    const auto start = Clock::now();
    const uint64_t sum = memory.read(read_bytes);
    asm volatile("" : : "r"(sum));  // the reading is wanted
    read_seconds.push_back(seconds_since(start));
    const double elapsed = seconds_since(begin);
    const size_t least = elapsed > kSlow * enough ? kSlowRounds : kMinRounds;
    if (elapsed >= enough && read_seconds.size() >= least) break;
  }
  return static_cast<double>(read_bytes) / median(read_seconds);
}

/// One line for each kernel; with --all-kernels, whether the choice is a good one.
void add_cases(const BenchOptions& options, const Problem& problem, int64_t m, const std::string& chosen,
               std::vector<Contestant>& contestants, double read_rate, Outcome& out, Value& cases) {
  double fastest = median(contestants.front().seconds);
  std::string fastest_kernel = contestants.front().kernel;
  for (Contestant& c : contestants) {
    if (median(c.seconds) >= fastest) continue;
    fastest = median(c.seconds);
    fastest_kernel = c.kernel;
  }
  for (Contestant& c : contestants) {
    const double seconds = median(c.seconds);
    const bool is_chosen = c.kernel == chosen;
    const std::string name = problem.name() + "/M" + std::to_string(m) + "/" + c.kernel;
    const double weight_rate = static_cast<double>(c.bytes) / seconds;
    const double rate = 2.0 * static_cast<double>(m * problem.rows * problem.columns) / seconds;
    Value entry = Value::object();
    entry.set("name", name).set("K", problem.columns).set("N", problem.rows).set("bits", problem.bits);
    entry.set("group", problem.group).set("activations", problem.activations).set("M", m).set("kernel", c.kernel);
    entry.set("y_dtype", to_string(y_dtype_of(c.copies.front())));
    entry.set("us", seconds * 1e6).set("weight_bytes", c.bytes).set("copies", c.copies.size());
    entry.set("weight_bytes_per_second", weight_rate).set("read_bytes_per_second", read_rate);
    entry.set("operations_per_second", rate);
    std::string peak_text = "-";
    const Peaks peaks = peaks_of(c.copies.front(), m, problem.activations != "float");
    if (peaks.used == nullptr) {
      entry.set("peak_operations_per_second", Value());
    } else {
      const double peak = static_cast<double>(peaks.used->operations) / median(c.peak_seconds);
      entry.set("peak_operations_per_second", peak).set("peak", peaks.used->name);
      peak_text = format("%.0f", peak / 1e9);
    }
    if (peaks.vector != nullptr) {
      const double peak = static_cast<double>(peaks.vector->operations) / median(c.vector_peak_seconds);
      entry.set("vector_peak_operations_per_second", peak).set("vector_peak", peaks.vector->name);
    }
    entry.set("chosen", is_chosen).set("of_fastest", seconds / fastest);
    cases.add(std::move(entry));
    out.text += format("%-68s %12.2f %8.2f %8.2f %8.1f %8s  %.3f%s\n", name.c_str(), seconds * 1e6, weight_rate / 1e9,
                       read_rate / 1e9, rate / 1e9, peak_text.c_str(), seconds / fastest, is_chosen ? ", chosen" : "");
    if (!options.all_kernels || !is_chosen || seconds <= kSlowestChoice * fastest) continue;
    std::string& failure = out.failure;
    if (!failure.empty()) failure += "\n";
    failure += format("%s is chosen and takes %.3f times as long as %s", name.c_str(), seconds / fastest,
                      fastest_kernel.c_str());
  }
}

/// Bytes that are at least eight times the last-level cache, or --footprint.
Result<int64_t> footprint_of(const BenchOptions& options) {
  if (options.footprint < 0 || options.footprint > kMaxFootprint)
    return invalid(format("--footprint %lld: expected 0 to %lld MiB", static_cast<long long>(options.footprint),
                          static_cast<long long>(kMaxFootprint)));
  if (options.footprint > 0) return options.footprint * kMebibyte;
  for (const int level : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE})
    if (const int64_t bytes = sysconf(level); bytes > 0) return kCacheMultiple * bytes;
  return Status(StatusCode::kFailedPrecondition,
                "this system does not say how large its caches are; name a --footprint of eight times the last one");
}

/// A problem and all copies of its weights.
struct Prepared {
  Weights weights;
  Layer reference;
  std::string chosen;  // kernel
  std::vector<Contestant> contestants;
};

class LinearBench {
 public:
  LinearBench(const BenchOptions& options, std::vector<Problem> problems, int64_t footprint)
      : options_(options), footprint_(footprint), problems_(std::move(problems)), memory_(footprint) {
    prepared_.resize(problems_.size());
  }

  /// Measures everything. Weights are packed once and kept for the next time where there may be one.
  Result<Outcome> run() {
    Outcome out;
    out.text = format("weights take turns over %lld MiB\n%-68s %12s %8s %8s %8s %8s  %s\n",
                      static_cast<long long>(footprint_ / kMebibyte), "case", "us", "GB/s", "read", "GOP/s", "peak",
                      "of the fastest");
    Value cases = Value::array();
    Progress progress("measuring", options_.quiet);
    double done = 0;
    for (size_t i = 0; i < problems_.size(); ++i) {
      if (prepared_[i] == nullptr) {
        ISOBIT_ASSIGN_OR_RETURN(prepared_[i], prepare(problems_[i]));
      }
      Prepared& p = *prepared_[i];
      for (const int64_t m : options_.m) {
        Rows rows(problems_[i], y_dtype_of(p.reference), m);
        ISOBIT_ASSIGN_OR_RETURN(const double read_rate,
                                measure(p.weights, p.reference, p.contestants, rows, memory_, options_.min_time));
        add_cases(options_, problems_[i], m, p.chosen, p.contestants, read_rate, out, cases);
        progress.update(++done / static_cast<double>(problems_.size() * options_.m.size()));
      }
      if (!options_.repeat) prepared_[i].reset();
    }
    out.json.set("footprint_bytes", footprint_).set("cases", std::move(cases));
    return out;
  }

 private:
  Result<std::unique_ptr<Prepared>> prepare(const Problem& problem) {
    ISOBIT_ASSIGN_OR_RETURN(Weights weights, Weights::create(problem));
    ISOBIT_ASSIGN_OR_RETURN(Layer reference, weights.layer(CpuPath::kReference));
    ISOBIT_ASSIGN_OR_RETURN(const Layer chosen, weights.layer(std::nullopt));
    ISOBIT_ASSIGN_OR_RETURN(std::vector<Contestant> contestants, make_contestants(options_, weights, footprint_));
    if (contestants.empty()) return invalid(problem.name() + ": no kernel but the reference runs it");
    return std::make_unique<Prepared>(
        Prepared{std::move(weights), std::move(reference), kernel_of(chosen), std::move(contestants)});
  }

  BenchOptions options_;
  int64_t footprint_;
  std::vector<Problem> problems_;
  ceilings::Memory memory_;
  std::vector<std::unique_ptr<Prepared>> prepared_;  // of problems_; null: not yet, or not any more
};

Result<Outcome> run_again(const std::shared_ptr<LinearBench>& bench) {
  Result<Outcome> out = bench->run();
  if (out.ok()) out->again = [bench] { return run_again(bench); };
  return out;
}

}  // namespace

Result<Outcome> bench_linear(const BenchOptions& options) {
  if (options.all_kernels && !options.kernel.empty())
    return invalid("--all-kernels and --kernel " + options.kernel.front() + ": expected one of them");
  if (!(options.min_time >= 0 && options.min_time <= 3600))
    return invalid(format("--min-time %g: expected 0 to 3600 seconds", options.min_time));
  if (options.group < 0 || options.group > kMaxSize)
    return invalid(format("--group %lld: expected 0 (the whole row) to %lld", static_cast<long long>(options.group),
                          static_cast<long long>(kMaxSize)));
  for (const int64_t m : options.m)
    if (m < 1 || m > kMaxSize)
      return invalid(
          format("--m %lld: expected 1 to %lld", static_cast<long long>(m), static_cast<long long>(kMaxSize)));
  ISOBIT_ASSIGN_OR_RETURN(const int64_t footprint, footprint_of(options));
  std::vector<Problem> problems;
  for (const std::string& shape : options.shape)
    for (const std::string& bits : split(options.bits))
      for (const std::string& activations : options.activations) {
        ISOBIT_ASSIGN_OR_RETURN(Problem problem, make_problem(options, shape, bits, activations));
        problems.push_back(std::move(problem));
      }

  const auto bench = std::make_shared<LinearBench>(options, std::move(problems), footprint);
  return options.repeat ? run_again(bench) : bench->run();
}

}  // namespace isobit::tool
