// SPDX-License-Identifier: Apache-2.0
#include "bench/linear.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <string_view>
#include <utility>
#include <variant>

#include "bench/ceilings.h"
#include "bench/linear_parts.h"
#include "bench/median.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "isobit/nearest.h"

namespace isobit::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMebibyte = int64_t{1} << 20;
constexpr int64_t kBytesARound = 32 * kMebibyte;  // of weights: some milliseconds
constexpr int64_t kRowsOfReading = 16;            // are multiplied while weights are read
constexpr int64_t kPeakRuns = 20;                 // some dozen microseconds
constexpr size_t kMinRounds = 11, kSlowRounds = 3;
constexpr double kSlow = 10;  // times --min-time

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Result<int64_t> parse_size(const std::string& option, std::string_view text, int64_t high) {
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < 1 || value > high)
    return invalid(option + ": expected 1 to " + std::to_string(high));
  return value;
}

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

/// One kernel and its copies of the layer.
struct Contestant {
  std::string kernel;
  int64_t bytes = 0;  // of the weights of a copy
  std::vector<Layer> copies;
  size_t next = 0;
  std::vector<double> seconds{}, peak_seconds{}, vector_peak_seconds{};  // a call; a run of each product

  Status call(LinearRows& rows, Workspace& workspace) {
    const Layer& layer = copies[next];
    next = (next + 1) % copies.size();
    return forward(layer, rows.x, rows.y, rows.m, workspace);
  }
};

/// A contestant for each path. All of them take turns, so they share the footprint.
Result<std::vector<Contestant>> make_contestants(const LinearWeights& weights, const LinearPaths& paths,
                                                 int64_t footprint) {
  std::vector<Contestant> contestants;
  for (const auto& path : paths.paths) {
    Result<Layer> first = weights.layer(path);
    // A kernel that cannot run this layer is no candidate.
    if (!first.ok() && paths.skip_unsupported && first.status().code() == StatusCode::kUnsupported) continue;
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

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void time_peak(const ceilings::Product* product, std::vector<double>& seconds) {
  if (product == nullptr) return;
  const auto start = Clock::now();
  for (int64_t i = 0; i < kPeakRuns; ++i) product->run();
  seconds.push_back(seconds_since(start) / static_cast<double>(kPeakRuns));
}

/// Rounds of everybody in turn, for one number of rows. Returns the median bytes a second of reading.
Result<double> measure(const LinearWeights& weights, const Layer& reference, std::vector<Contestant>& contestants,
                       LinearRows& rows, ceilings::Memory& memory, double min_time) {
  const bool integers = weights.problem().activations != "float";
  Workspace workspace;
  for (Contestant& c : contestants) {
    c.seconds.clear();
    c.peak_seconds.clear();
    c.vector_peak_seconds.clear();
    Workspace own = workspace_of(c.copies.front(), rows.m);
    if (own.size_bytes() > workspace.size_bytes()) workspace = std::move(own);
    ISOBIT_RETURN_IF_ERROR(c.call(rows, workspace));
    ISOBIT_RETURN_IF_ERROR(check_linear_results(weights.problem(), reference, c.kernel, rows));
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

LinearTime time_of(const LinearProblem& problem, int64_t m, const Contestant& c, double read_rate) {
  LinearTime out{.kernel = c.kernel,
                 .y_dtype = y_dtype_of(c.copies.front()),
                 .seconds = median(c.seconds),
                 .weight_bytes = c.bytes,
                 .copies = std::ssize(c.copies),
                 .read_bytes_per_second = read_rate};
  const Peaks peaks = peaks_of(c.copies.front(), m, problem.activations != "float");
  const auto peak_of = [](const ceilings::Product& product, const std::vector<double>& seconds) {
    return LinearPeak{std::string(product.name), static_cast<double>(product.operations) / median(seconds)};
  };
  if (peaks.used != nullptr) out.peak = peak_of(*peaks.used, c.peak_seconds);
  if (peaks.vector != nullptr) out.vector_peak = peak_of(*peaks.vector, c.vector_peak_seconds);
  return out;
}

/// All copies of the weights.
class CpuLinearBench : public LinearBench {
 public:
  CpuLinearBench(LinearWeights weights, Layer reference, std::string chosen, std::vector<Contestant> contestants,
                 ceilings::Memory& memory)
      : weights_(std::move(weights)),
        reference_(std::move(reference)),
        chosen_(std::move(chosen)),
        contestants_(std::move(contestants)),
        memory_(memory) {}

  [[nodiscard]] std::string chosen_kernel(int64_t /*m*/) const override { return chosen_; }
  Result<std::vector<LinearTime>> time(int64_t m, double min_time) override {
    LinearRows rows(weights_.problem(), y_dtype_of(reference_), m);
    ISOBIT_ASSIGN_OR_RETURN(const double read_rate,
                            measure(weights_, reference_, contestants_, rows, memory_, min_time));
    std::vector<LinearTime> times;
    for (const Contestant& c : contestants_) times.push_back(time_of(weights_.problem(), m, c, read_rate));
    return times;
  }

 private:
  LinearWeights weights_;
  Layer reference_;
  std::string chosen_;  // kernel
  std::vector<Contestant> contestants_;
  ceilings::Memory& memory_;
};

}  // namespace

Result<LinearProblem> LinearProblem::parse(const std::string& shape, const std::string& bits,
                                           const std::string& activations, int64_t group) {
  LinearProblem problem;
  const size_t cross = shape.find('x');
  if (cross == std::string::npos) return invalid("--shape " + shape + ": expected KxN, such as 4096x14336");
  const std::string_view text = shape;
  ISOBIT_ASSIGN_OR_RETURN(problem.columns, parse_size("K of --shape " + shape, text.substr(0, cross), kMaxLinearSize));
  ISOBIT_ASSIGN_OR_RETURN(problem.rows, parse_size("N of --shape " + shape, text.substr(cross + 1), kMaxLinearSize));
  ISOBIT_ASSIGN_OR_RETURN(const int64_t width, parse_size("--bits " + bits, bits, 8));
  problem.bits = static_cast<int32_t>(width);
  problem.activations = activations;
  if (!problem.is_static() && !linear_activations_from_string(activations))
    return invalid("--activations " + activations + ": " +
                   expected_one_of(activations, {"float", "int8", "int8_asymmetric", "static", "accumulators"}));
  if (problem.is_static() && problem.bits != 8) return invalid("--bits " + bits + ": static codes have 8 bits");
  problem.group = problem.is_static() || group == 0 ? problem.columns : group;
  return problem;
}

Result<int64_t> default_footprint() {
  for (const int level : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE})
    if (const int64_t bytes = sysconf(level); bytes > 0) return kCacheMultiple * bytes;
  return Status(StatusCode::kFailedPrecondition,
                "this system does not say how large its caches are; name a --footprint of eight times the last one");
}

Result<std::unique_ptr<LinearBench>> linear_bench(const LinearProblem& problem, const LinearPaths& paths,
                                                  int64_t footprint, ceilings::Memory& memory) {
  ISOBIT_ASSIGN_OR_RETURN(LinearWeights weights, LinearWeights::create(problem));
  ISOBIT_ASSIGN_OR_RETURN(Layer reference, weights.layer(CpuPath::kReference));
  ISOBIT_ASSIGN_OR_RETURN(const Layer chosen, weights.layer(std::nullopt));
  ISOBIT_ASSIGN_OR_RETURN(std::vector<Contestant> contestants, make_contestants(weights, paths, footprint));
  if (contestants.empty()) return invalid(problem.name() + ": no kernel but the reference runs it");
  return std::unique_ptr<LinearBench>(std::make_unique<CpuLinearBench>(
      std::move(weights), std::move(reference), kernel_of(chosen), std::move(contestants), memory));
}

}  // namespace isobit::bench
