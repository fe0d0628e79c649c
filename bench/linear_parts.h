// SPDX-License-Identifier: Apache-2.0
// What linear.h times, whoever computes it: random weights and rows, and the check of the results.
#ifndef ISOBIT_BENCH_LINEAR_PARTS_H_
#define ISOBIT_BENCH_LINEAR_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bench/linear.h"
#include "isobit/cpu.h"
#include "isobit/dtype.h"
#include "isobit/linear.h"
#include "isobit/low_bit.h"
#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit::bench {

using Bytes = std::vector<std::byte>;
using Layer = std::variant<LinearLayer, StaticLinearLayer>;

/// Weights uniform in +-1/sqrt(K), quantised; for static codes with the grids of x in [-1, 1) and, where it has one, of
/// y in [-2, 2), six times its deviation.
class LinearWeights {
 public:
  static Result<LinearWeights> create(const LinearProblem& problem);

  [[nodiscard]] const LinearProblem& problem() const { return problem_; }
  [[nodiscard]] const LowBitMatrix& matrix() const { return matrix_; }
  /// A copy of the packed weights of its own. No path: the layer's choice.
  [[nodiscard]] Result<Layer> layer(std::optional<CpuPath> path) const;

 private:
  LinearWeights(LinearProblem problem, LowBitMatrix matrix)
      : problem_(std::move(problem)), matrix_(std::move(matrix)) {}

  LinearProblem problem_;
  LowBitMatrix matrix_;
  StaticLinearParameters parameters_;
};

Dtype x_dtype_of(const Layer& layer);
Dtype y_dtype_of(const Layer& layer);
Workspace workspace_of(const Layer& layer, int64_t m);
Status forward(const Layer& layer, const Bytes& x, Bytes& y, int64_t m, Workspace& workspace);

/// Rows of one number of them: floats in [-1, 1), or codes.
struct LinearRows {
  LinearRows(const LinearProblem& problem, Dtype y_dtype, int64_t count);

  int64_t m;
  Bytes x, y;
};

/// A time for wrong results is worth nothing: first and last row of y against the reference, byte for byte but for
/// float activations.
Status check_linear_results(const LinearProblem& problem, const Layer& reference, const std::string& kernel,
                            const LinearRows& rows);

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_LINEAR_PARTS_H_
