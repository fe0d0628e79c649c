// SPDX-License-Identifier: Apache-2.0
// States and masks of GRUs in files.
#include <algorithm>
#include <map>
#include <utility>

#include "core/codes.h"
#include "core/number_text.h"
#include "io/container.h"
#include "isobit/gru_files.h"

namespace isobit {
namespace {

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

const Grid& state_grid(const GruModel& model, int64_t index) {
  return model.parameters().layers[static_cast<size_t>(index)].grids[kH];
}

/// Where more than a hundredth of first states lies beyond the grids of h.
void warn_of_clipped_states(std::span<const float> h, const GruModel& model, const std::string& label,
                            std::vector<std::string>& warnings) {
  const size_t layers = model.parameters().layers.size(), each = h.size() / layers;
  int64_t clipped = 0;
  for (size_t i = 0; i < layers; ++i)
    clipped += count_clipped(state_grid(model, static_cast<int64_t>(i)), h.subspan(i * each, each));
  const double percent = h.empty() ? 0 : 100.0 * static_cast<double>(clipped) / static_cast<double>(h.size());
  if (percent <= 1) return;
  warnings.push_back(short_text(percent, 3) + " % of the values of " + label +
                     " lie outside the range of h and are clipped");
}

}  // namespace

Status check_codes(const Array& array, const Grid& grid, const std::string& label) {
  if (array.dtype != grid.dtype())
    return invalid(label + " has the dtype " + std::string(to_string(array.dtype)) + "; the model's codes there are " +
                   std::string(to_string(grid.dtype())));
  for (int64_t i = 0; i < array.size(); ++i) {
    const int64_t code = load_code(array.bytes.data(), array.dtype, i);
    if (code < grid.min() || code > grid.max())
      return invalid(label + ": code " + std::to_string(code) + " at flat index " + std::to_string(i) +
                     " is outside its grid, " + std::to_string(grid.min()) + " to " + std::to_string(grid.max()));
  }
  return {};
}

Result<GruState> load_state(const std::string& path, const GruModel& model, int64_t batch, const std::string& what,
                            std::vector<std::string>& warnings) {
  ISOBIT_ASSIGN_OR_RETURN(const ArrayFile file, load_data(path, warnings));
  const auto count = static_cast<int64_t>(model.parameters().layers.size());
  const int64_t hidden = model.hidden_size();
  const std::string file_label = what + " " + path;
  if (file.arrays.size() == 1 && is_float(file.arrays.begin()->second.dtype)) {
    const auto& [name, array] = *file.arrays.begin();
    const std::string label = array_label(file_label, name);
    const std::vector<int64_t> wanted = {count, batch, hidden};
    if (array.shape != wanted)
      return invalid(label + " has the shape " + list_text(array.shape) +
                     "; expected [layers * directions, N, H] = " + list_text(wanted));
    const std::vector<float> h = array.to_float();
    warn_of_clipped_states(h, model, label, warnings);
    Result<GruState> state = model.state_from_float(h, batch);
    if (state.ok()) return state;
    return Status(state.status().code(), label + ": " + state.status().message());
  }
  if (static_cast<int64_t>(file.arrays.size()) != count)
    return invalid(file_label + ": holds " + std::to_string(file.arrays.size()) + " arrays; expected h0 to h" +
                   std::to_string(count - 1));
  GruState state = model.initial_state(batch);
  for (int64_t i = 0; i < count; ++i) {
    const std::string name = "h" + std::to_string(i);
    const auto found = file.arrays.find(name);
    if (found == file.arrays.end()) return invalid(std::string(file_label).append(": no array \"").append(name) + "\"");
    const std::string label = array_label(file_label, name);
    const std::vector<int64_t> wanted = {batch, hidden};
    if (found->second.shape != wanted)
      return invalid(label + " has the shape " + list_text(found->second.shape) +
                     "; expected [N, H] = " + list_text(wanted));
    ISOBIT_RETURN_IF_ERROR(check_codes(found->second, state_grid(model, i), label));
    std::copy(found->second.bytes.begin(), found->second.bytes.end(), state.layer(i).begin());
  }
  return state;
}

Status save_state(const std::string& path, const GruModel& model, const GruState& state) {
  std::map<std::string, Array> arrays;
  for (int64_t i = 0; i < state.layer_count(); ++i) {
    Array array = Array::zeros(state_grid(model, i).dtype(), {state.batch(), model.hidden_size()});
    std::copy(state.layer(i).begin(), state.layer(i).end(), array.bytes.begin());
    arrays["h" + std::to_string(i)] = std::move(array);
  }
  return save_npz(path, arrays);
}

Result<std::vector<uint8_t>> zoneout_mask(const Companion& file, const std::string& name, const SequenceShape& shape,
                                          const GruModel& model, bool batch_first) {
  if (file.empty()) return std::vector<uint8_t>();
  ISOBIT_ASSIGN_OR_RETURN(const Array* array, file.find(name));
  const bool swapped = batch_first && !shape.single;
  std::vector<int64_t> wanted = {shape.steps, shape.batch, model.output_size()};
  if (shape.single) wanted = {shape.steps, model.output_size()};
  if (swapped) std::swap(wanted[0], wanted[1]);
  if (array->dtype != Dtype::kU8 || array->shape != wanted)
    return invalid(file.label(name) + " is " + std::string(to_string(array->dtype)) + " " + list_text(array->shape) +
                   "; expected u8 or bool " + list_text(wanted) + ": 1 takes the new state, 0 keeps the old one");
  const Array time_major = swapped ? swap_batch_and_time(*array) : *array;
  std::vector<uint8_t> mask(time_major.data<uint8_t>(), time_major.data<uint8_t>() + time_major.size());
  const auto bad = std::find_if(mask.begin(), mask.end(), [](uint8_t value) { return value > 1; });
  if (bad == mask.end()) return mask;
  return invalid(file.label(name) + ": value " + std::to_string(*bad) + "; expected 0 (keep the state) or 1");
}

}  // namespace isobit
