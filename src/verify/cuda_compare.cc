// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "core/codes.h"
#include "isobit/cuda/compare.h"
#include "isobit/cuda/gru.h"
#include "verify/sequences.h"

namespace isobit::cuda {
namespace {

/// Layer by layer.
class DeviceLayers : public GruCodeSource {
 public:
  Status add(const GruModel& model, int device) {
    ISOBIT_ASSIGN_OR_RETURN(DeviceGru gru, DeviceGru::create(model, device));
    layers_.push_back({model, std::move(gru), {}});
    return {};
  }

  Status start(std::span<const float> h0) override {
    for (size_t l = 0; l < layers_.size(); ++l) {
      Layer& layer = layers_[l];
      layer.state = layer.model.initial_state(1);
      if (h0.empty()) continue;
      const auto count = static_cast<size_t>(layer.model.output_size());  // of all directions
      ISOBIT_ASSIGN_OR_RETURN(layer.state, layer.model.state_from_float(h0.subspan(l * count, count), 1));
    }
    return {};
  }

  Status run(const std::byte* x_codes, int64_t steps, GruCodeObserver& observer) override {
    const Grid& x_grid = layers_[0].model.input_grid();
    const auto x_bytes = static_cast<size_t>(steps * layers_[0].model.input_size()) * size_in_bytes(x_grid.dtype());
    std::vector<std::byte> x(x_codes, x_codes + x_bytes), y;
    for (size_t l = 0; l < layers_.size(); ++l) {
      Layer& layer = layers_[l];
      const GruModel& model = layer.model;
      const int32_t directions = model.parameters().directions;
      const Dtype x_dtype = model.input_grid().dtype(), y_dtype = model.output_grid().dtype();
      y.resize(static_cast<size_t>(steps * model.output_size()) * size_in_bytes(y_dtype));
      ISOBIT_ASSIGN_OR_RETURN(Workspace workspace, layer.gru.workspace(1, steps));
      ISOBIT_RETURN_IF_ERROR(layer.gru.forward_codes(x, y, steps, layer.state, workspace, {.whole_sequence = true}));
      for (int32_t d = 0; d < directions; ++d) {
        const auto index = static_cast<int64_t>(l) * directions + d;
        for (int64_t s = 0; s < steps; ++s) {  // in the reference's order: sums of doubles depend on it
          const int64_t t = d == 1 ? steps - 1 - s : s;
          observe(observer, kX, index, t, x, x_dtype, t * model.input_size(), model.input_size());
          observe(observer, kH, index, t, y, y_dtype, t * model.output_size() + d * model.hidden_size(),
                  model.hidden_size());
        }
      }
      std::swap(x, y);
    }
    return {};
  }

 private:
  struct Layer {
    GruModel model;
    DeviceGru gru;
    GruState state;
  };

  static void observe(GruCodeObserver& observer, int32_t tensor, int64_t layer, int64_t step,
                      const std::vector<std::byte>& codes, Dtype dtype, int64_t first, int64_t count) {
    std::vector<int64_t> values;
    for (int64_t i = first; i < first + count; ++i) values.push_back(load_code(codes.data(), dtype, i));
    observer.observe(tensor, layer, 0, step, values);
  }

  std::vector<Layer> layers_;
};

}  // namespace

Result<std::unique_ptr<GruCodeSource>> code_source(const GruModel& model, int device) {
  auto layers = std::make_unique<DeviceLayers>();
  for (int64_t l = 0; l < model.layer_count(); ++l) {
    ISOBIT_ASSIGN_OR_RETURN(const GruModel layer, layer_model(model.parameters(), l));
    ISOBIT_RETURN_IF_ERROR(layers->add(layer, device));
  }
  return std::unique_ptr<GruCodeSource>(std::move(layers));
}

}  // namespace isobit::cuda
