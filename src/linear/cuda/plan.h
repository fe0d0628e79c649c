// SPDX-License-Identifier: Apache-2.0
// Which kernel does a run of a linear layer, and how its work is divided: a model of what each division costs.
#ifndef ISOBIT_LINEAR_CUDA_PLAN_H_
#define ISOBIT_LINEAR_CUDA_PLAN_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "isobit/status.h"
#include "linear/cuda/few.h"
#include "linear/cuda/image.h"
#include "linear/cuda/many.h"
#include "linear/cuda/rows.h"

namespace isobit::cuda {

struct LinearDevice {
  int number = 0;
  int processors = 0;
  int shared = 0;            // bytes of a block
  bool bulk_copies = false;  // and clusters
  bool wgmma = false;

  /// kUnsupported where the build has no code for it.
  static Result<LinearDevice> current();
};

/// Sizes and divisions are set in the arguments, pointers and what the layer alone knows are not.
struct LinearPlan {
  RowsLayout rows;
  FewPlan few;
  FewArgs few_args{};
  std::optional<ManyPlan> many;  // in place of few
  ManyArgs many_args{};

  [[nodiscard]] std::string_view kernel() const { return many ? "many" : "few"; }
};

/// Of floats and codes of groups. x_parameters: rows need more than RowsLayout always has.
LinearPlan plan_linear(const LinearDevice& device, const ImageLayout& image, RowsKind kind, int64_t m,
                       bool x_parameters);
/// Of static codes; planes: bytes of a code.
LinearPlan plan_static(const LinearDevice& device, const ImageLayout& image, int32_t planes, int64_t m);
/// Enough for `rows` of plan_linear for any number of rows up to m.
int64_t most_row_bytes(const LinearDevice& device, const ImageLayout& image, RowsKind kind, int64_t m);

}  // namespace isobit::cuda

#endif  // ISOBIT_LINEAR_CUDA_PLAN_H_
