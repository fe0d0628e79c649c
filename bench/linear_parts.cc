// SPDX-License-Identifier: Apache-2.0
#include "bench/linear_parts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/random.h"

namespace isobit::bench {
namespace {

constexpr double kFloatTolerance = 1e-4;  // of the largest result: another order of the sums, no more

}  // namespace

Result<LinearWeights> LinearWeights::create(const LinearProblem& problem) {
  Random random(static_cast<uint64_t>(problem.columns * 1'000'003 + problem.rows));
  const auto values =
      random.vector(problem.rows * problem.columns, 1.0f / std::sqrt(static_cast<float>(problem.columns)));
  ISOBIT_ASSIGN_OR_RETURN(LowBitMatrix matrix,
                          quantize_low_bit(Array::copy_of(values.data(), {problem.rows, problem.columns}),
                                           {.bits = problem.bits, .group = problem.group}, problem.name()));
  LinearWeights weights(problem, std::move(matrix));
  if (!problem.is_static()) return weights;
  const Grid input{.is_signed = false, .shift = 7, .zero_point = 128};
  std::optional<Grid> output;
  if (!problem.is_accumulators()) output = Grid{.is_signed = false, .shift = 6, .zero_point = 128};
  ISOBIT_ASSIGN_OR_RETURN(weights.parameters_,
                          derive_static_linear(weights.matrix_, {.input = input, .output = output}, problem.name()));
  return weights;
}

Result<Layer> LinearWeights::layer(std::optional<CpuPath> path) const {
  if (problem_.is_static()) {
    ISOBIT_ASSIGN_OR_RETURN(StaticLinearLayer layer, StaticLinearLayer::create(parameters_, problem_.name(), path));
    return Layer(std::move(layer));
  }
  const LinearOptions options{.activations = *linear_activations_from_string(problem_.activations), .path = path};
  ISOBIT_ASSIGN_OR_RETURN(LinearLayer layer, LinearLayer::create(matrix_, options, problem_.name()));
  return Layer(std::move(layer));
}

Dtype x_dtype_of(const Layer& layer) {
  const auto* some = std::get_if<StaticLinearLayer>(&layer);
  return some == nullptr ? Dtype::kF32 : some->parameters().x_dtype();
}

Dtype y_dtype_of(const Layer& layer) {
  const auto* some = std::get_if<StaticLinearLayer>(&layer);
  return some == nullptr ? Dtype::kF32 : some->parameters().y_dtype();
}

Workspace workspace_of(const Layer& layer, int64_t m) {
  return std::visit([m](const auto& some) { return some.workspace(m); }, layer);
}

Status forward(const Layer& layer, const Bytes& x, Bytes& y, int64_t m, Workspace& workspace) {
  if (const auto* some = std::get_if<LinearLayer>(&layer))
    return some->forward(x, Dtype::kF32, y, Dtype::kF32, m, workspace);
  return std::get<StaticLinearLayer>(layer).forward_codes(x, y, m, workspace);
}

LinearRows::LinearRows(const LinearProblem& problem, Dtype y_dtype, int64_t count) : m(count) {
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

Status check_linear_results(const LinearProblem& problem, const Layer& reference, const std::string& kernel,
                            const LinearRows& rows) {
  const size_t x_bytes = rows.x.size() / static_cast<size_t>(rows.m);
  const size_t y_bytes = rows.y.size() / static_cast<size_t>(rows.m);
  Workspace workspace = workspace_of(reference, 1);
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

}  // namespace isobit::bench
