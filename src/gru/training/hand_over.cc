// SPDX-License-Identifier: Apache-2.0
// The last state of one model as the first state of another, with the places where its gradient stops.
#include <string>
#include <vector>

#include "core/codes.h"
#include "core/float_mode.h"
#include "gru/reference.h"
#include "gru/rescale.h"
#include "gru/training/arrays.h"
#include "isobit/gru_qat.h"

namespace isobit {

Status hand_over(const GruModel& from, const GruModel& to, std::span<const float> h, int64_t batch,
                 std::span<float> out, std::span<uint8_t> passed) {
  const DefaultFloatMode mode;
  const std::vector<GruLayerParameters>& layers = from.parameters().layers;
  const int64_t count = batch * from.hidden_size(), states = std::ssize(layers) * count;
  ISOBIT_RETURN_IF_ERROR(
      check_training_arrays("hand_over", {TrainingArray("h", "layers * directions, N, H", h, states),
                                          TrainingArray("out", "layers * directions, N, H", out, states),
                                          TrainingArray("passed", "layers * directions, N, H", passed, states)}));
  ISOBIT_ASSIGN_OR_RETURN(const GruState codes, from.state_from_float(h, batch));
  ISOBIT_ASSIGN_OR_RETURN(const GruState handed, to.state_from(from, codes));
  to.state_to_float(handed, out);
  for (int64_t l = 0; l < std::ssize(layers); ++l) {
    const Grid& grid = layers[static_cast<size_t>(l)].grids[kH];
    const GruLayerParameters& wanted = to.parameters().layers[static_cast<size_t>(l)];
    const Grid& to_grid = wanted.grids[kH];
    ISOBIT_ASSIGN_OR_RETURN(const RescaleParameters ratio, encode_hand_over(grid, to_grid));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t code = load_code(codes.layer(l).data(), grid.dtype(), i);
      const int64_t unclamped = rescale(ratio, code - grid.zero_point, wanted.rounding) + to_grid.zero_point;
      const auto at = static_cast<size_t>(l * count + i);
      const bool inside = count_clipped(grid, h.subspan(at, 1)) == 0;
      passed[at] = inside && unclamped >= to_grid.min() && unclamped <= to_grid.max() ? 1 : 0;
    }
  }
  return {};
}

}  // namespace isobit
