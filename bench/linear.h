// SPDX-License-Identifier: Apache-2.0
// Linear layers on random weights. Copies of a layer take turns, so that weights come from memory as they do in a
// model. On the CPU what bounds a layer is timed in turn with it: reading as many bytes, and the instruction that its
// kernel multiplies with.
#ifndef ISOBIT_BENCH_LINEAR_H_
#define ISOBIT_BENCH_LINEAR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/ceilings.h"
#include "isobit/cpu.h"
#include "isobit/dtype.h"
#include "isobit/status.h"

namespace isobit::bench {

constexpr int64_t kMaxLinearSize = int64_t{1} << 20;  // of K, N and M

/// What is the same for every number of rows.
struct LinearProblem {
  /// From the values of the options of `isobit bench linear`, which messages name. shape: "KxN". group: 0 is K, which
  /// static layers always have.
  static Result<LinearProblem> parse(const std::string& shape, const std::string& bits, const std::string& activations,
                                     int64_t group);

  int64_t columns = 0, rows = 0;  // K, N
  int32_t bits = 8;
  int64_t group = 64;
  std::string activations;  // float, int8, int8_asymmetric, static or accumulators

  /// A static layer without a grid of y.
  [[nodiscard]] bool is_accumulators() const { return activations == "accumulators"; }
  [[nodiscard]] bool is_static() const { return activations == "static" || is_accumulators(); }
  /// As linear_layer_kernels() names it.
  [[nodiscard]] std::string operation() const {
    return is_static() ? "linear_static" : activations == "float" ? "linear_float" : "linear_int8";
  }
  [[nodiscard]] std::string name() const {
    return "linear/K" + std::to_string(columns) + "/N" + std::to_string(rows) + "/" + std::to_string(bits) + "bit/g" +
           std::to_string(group) + "/" + activations;
  }
};

/// The paths to time; nothing: the layer's choice.
struct LinearPaths {
  std::vector<std::optional<CpuPath>> paths;
  bool skip_unsupported = false;  // a path that cannot run the layer is no candidate
};

struct LinearPeak {
  std::string instruction;
  double operations_per_second = 0;
};

/// One kernel and number of rows. Medians.
struct LinearTime {
  std::string kernel;
  Dtype y_dtype = Dtype::kF32;
  double seconds = 0;        // a call
  int64_t weight_bytes = 0;  // of one copy
  int64_t copies = 0;
  std::optional<double> read_bytes_per_second{};
  std::optional<LinearPeak> peak{}, vector_peak{};  // vector: where tiles are not the only way
};

constexpr int64_t kCacheMultiple = 8;  // footprint, in last-level caches
/// Bytes that are so many times the last-level cache, over which copies of weights take turns.
Result<int64_t> default_footprint();

/// A problem and its weights, packed for everybody who computes it.
class LinearBench {
 public:
  LinearBench() = default;
  LinearBench(const LinearBench&) = delete;
  LinearBench& operator=(const LinearBench&) = delete;
  virtual ~LinearBench() = default;

  /// What m rows take where no kernel is asked for.
  [[nodiscard]] virtual std::string chosen_kernel(int64_t m) const = 0;
  /// All kernels, m rows, for `min_time` seconds each at least. kFailedPrecondition where one gives other results than
  /// the reference.
  virtual Result<std::vector<LinearTime>> time(int64_t m, double min_time) = 0;
};

/// Kernels of this processor in turn, whose weights take `footprint` bytes or more together. `memory` is read between
/// them and outlives the result.
Result<std::unique_ptr<LinearBench>> linear_bench(const LinearProblem& problem, const LinearPaths& paths,
                                                  int64_t footprint, ceilings::Memory& memory);

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_LINEAR_H_
