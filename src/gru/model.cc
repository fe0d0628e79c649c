// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <new>

#include "core/aligned_memory.h"
#include "core/codes.h"
#include "core/float_mode.h"
#include "core/run_options.h"
#include "gru/model.h"
#include "gru/reference.h"
#include "gru/rescale.h"

namespace isobit {

int64_t CodeMatrix::at(int64_t row, int64_t column) const {
  return load_code(bytes_.data(), dtype_, row * columns_ + column);
}
void CodeMatrix::set(int64_t row, int64_t column, int64_t value) {
  store_code(bytes_.data(), dtype_, row * columns_ + column, value);
}

namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;  // of C, H and the batch: keeps every index far inside int64
constexpr size_t kMaxNotes = 64;
constexpr size_t kMaxNoteKeyBytes = 64;
constexpr size_t kMaxNoteBytes = 65536;

Status refuse(const std::string& what) { return {StatusCode::kInvalidArgument, what}; }

Status check_matrix(const CodeMatrix& m, int64_t rows, int64_t columns, const Grid& grid, const std::string& name) {
  if (m.rows() != rows || m.columns() != columns)
    return refuse(name + " is [" + std::to_string(m.rows()) + ", " + std::to_string(m.columns()) + "], must be [" +
                  std::to_string(rows) + ", " + std::to_string(columns) + "]");
  if (m.dtype() != grid.dtype())
    return refuse(name + " has elements of type " + std::string(to_string(m.dtype())) + ", must be " +
                  std::string(to_string(grid.dtype())) + " for its " + std::to_string(grid.bits) + " bits");
  bool is_in = true;
  with_code_type(m.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* const codes = reinterpret_cast<const T*>(m.data());
    T least = 0, most = 0;  // which every grid of weights has
    for (int64_t i = 0; i < rows * columns; ++i) {
      least = std::min(least, codes[i]);
      most = std::max(most, codes[i]);
    }
    is_in = int64_t{least} >= grid.min() && int64_t{most} <= grid.max();
  });
  for (int64_t row = 0; row < rows && !is_in; ++row)
    for (int64_t column = 0; column < columns; ++column)
      if (const int64_t code = m.at(row, column); code < grid.min() || code > grid.max())
        return refuse(name + "[" + std::to_string(row) + ", " + std::to_string(column) + "] is " +
                      std::to_string(code) + ", must be " + std::to_string(grid.min()) + ".." +
                      std::to_string(grid.max()));
  return {};
}

Status check_rescale(const RescaleParameters& r, const std::string& name) {
  if (r.multiplier < 1)
    return refuse(name + ": multiplier is " + std::to_string(r.multiplier) + ", must be at least 1");
  if (r.shift < kMinShift || r.shift > kMaxShift)
    return refuse(name + ": shift is " + std::to_string(r.shift) + ", must be -62..127");
  return {};
}

Status check_layer(const GruLayerParameters& p, const std::string& name, const TableCache* tables) {
  if (p.input_size < 1 || p.input_size > kMaxSize)
    return refuse(name + ": input size is " + std::to_string(p.input_size) + ", must be 1..16777216");
  if (p.hidden_size < 1 || p.hidden_size > kMaxSize)
    return refuse(name + ": hidden size is " + std::to_string(p.hidden_size) + ", must be 1..16777216");
  if (std::find(std::begin(kAllRoundings), std::end(kAllRoundings), p.rounding) == std::end(kAllRoundings))
    return refuse(name + ": rounding mode is " + std::to_string(static_cast<int>(p.rounding)) + ", must be 0..3");
  const int64_t rows = 3 * p.hidden_size;
  for (int tensor = 0; tensor < kGruTensorCount; ++tensor) {
    const std::string tensor_name = name + " " + std::string(kGruTensorNames[static_cast<size_t>(tensor)]);
    ISOBIT_RETURN_IF_ERROR(check_grid(p.grids[static_cast<size_t>(tensor)], tensor_name));
    if (tensor >= kUIn && p.grids[static_cast<size_t>(tensor)].bits > 16)
      return refuse(tensor_name + " has " + std::to_string(p.grids[static_cast<size_t>(tensor)].bits) +
                    " bits, gate inputs and outputs take at most 16");
    if (tensor >= kW && tensor <= kBr && p.grids[static_cast<size_t>(tensor)].zero_point != 0)
      return refuse(tensor_name + ": zero point is " + std::to_string(p.grids[static_cast<size_t>(tensor)].zero_point) +
                    ", must be 0");
  }
  const auto check_rows = [&](GruTensor tensor, const CodeMatrix& codes, int64_t columns,
                              const std::vector<Grid>& grids) {
    const std::string tensor_name = name + " " + std::string(kGruTensorNames[tensor]);
    ISOBIT_RETURN_IF_ERROR(check_matrix(codes, rows, columns, p.grids[tensor], tensor_name));
    if (static_cast<int64_t>(grids.size()) != rows)
      return refuse(tensor_name + " has " + std::to_string(grids.size()) + " row grids, must have " +
                    std::to_string(rows));
    for (const Grid& grid : grids) {
      ISOBIT_RETURN_IF_ERROR(check_grid(grid, tensor_name));
      if (grid.bits != p.grids[tensor].bits || grid.is_signed != p.grids[tensor].is_signed || grid.zero_point != 0)
        return refuse(tensor_name + ": a row's grid has another width, sign or zero point than the tensor");
    }
    return Status();
  };
  ISOBIT_RETURN_IF_ERROR(check_rows(kW, p.W, p.input_size, p.W_grid));
  ISOBIT_RETURN_IF_ERROR(check_rows(kR, p.R, p.hidden_size, p.R_grid));
  ISOBIT_RETURN_IF_ERROR(check_rows(kBw, p.bw, 1, p.bw_grid));
  ISOBIT_RETURN_IF_ERROR(check_rows(kBr, p.br, 1, p.br_grid));
  const std::pair<const std::vector<RescaleParameters>*, const char*> per_row[] = {{&p.bw_to_acc, "bw -> accumulator"},
                                                                                   {&p.br_to_acc, "br -> accumulator"},
                                                                                   {&p.acc_to_ih, "accumulator -> ih"},
                                                                                   {&p.acc_to_hh, "accumulator -> hh"}};
  for (const auto& [rescales, what] : per_row) {
    if (static_cast<int64_t>(rescales->size()) != rows)
      return refuse(name + " " + what + " has " + std::to_string(rescales->size()) + " rows, must have " +
                    std::to_string(rows));
    for (const RescaleParameters& r : *rescales) ISOBIT_RETURN_IF_ERROR(check_rescale(r, name + " " + what));
  }
  for (const RescaleParameters& r : p.ih_to_gate) ISOBIT_RETURN_IF_ERROR(check_rescale(r, name + " ih -> gate input"));
  for (const RescaleParameters& r : p.hh_to_gate) ISOBIT_RETURN_IF_ERROR(check_rescale(r, name + " hh -> gate input"));
  ISOBIT_RETURN_IF_ERROR(check_rescale(p.rhh_to_n, name + " r * hh -> n_in"));
  ISOBIT_RETURN_IF_ERROR(check_rescale(p.n_to_h, name + " n -> h"));
  ISOBIT_RETURN_IF_ERROR(check_rescale(p.u_to_one, name + " u -> 1"));
  if (p.one <= p.grids[kU].zero_point || p.one > p.grids[kU].zero_point + (int64_t{1} << 62))
    return refuse(name + ": the code of 1 on u's grid is " + std::to_string(p.one) + ", must be above its zero point " +
                  std::to_string(p.grids[kU].zero_point));
  for (int gate = 0; gate < 3; ++gate) {
    const std::string table = name + " table of " + std::string(kGruTensorNames[static_cast<size_t>(kU + gate)]);
    if (tables == nullptr || !tables->made(p.tables[static_cast<size_t>(gate)]))
      ISOBIT_RETURN_IF_ERROR(check_table(p.tables[static_cast<size_t>(gate)], table));
    if (p.tables[static_cast<size_t>(gate)].input != p.grids[static_cast<size_t>(kUIn + gate)] ||
        p.tables[static_cast<size_t>(gate)].output != p.grids[static_cast<size_t>(kU + gate)])
      return refuse(table + " is for other grids than the layer's");
    if (p.tables[static_cast<size_t>(gate)].rounding != p.rounding)
      return refuse(table + " is for another rounding mode than the layer's");
    if (p.tables[static_cast<size_t>(gate)].function != (gate == 2 ? Activation::kTanh : Activation::kSigmoid))
      return refuse(table + " is of " + std::string(to_string(p.tables[static_cast<size_t>(gate)].function)));
  }
  return {};
}

Status check_notes(const std::map<std::string, std::string>& notes) {
  if (notes.size() > kMaxNotes)
    return refuse(std::to_string(notes.size()) + " notes, must be at most " + std::to_string(kMaxNotes));
  for (const auto& [key, text] : notes) {
    if (key.empty() || key.size() > kMaxNoteKeyBytes)
      return refuse("the key of a note has " + std::to_string(key.size()) + " bytes, must have 1 to " +
                    std::to_string(kMaxNoteKeyBytes));
    if (text.size() > kMaxNoteBytes)
      return refuse("note " + key + " has " + std::to_string(text.size()) + " bytes, must have at most " +
                    std::to_string(kMaxNoteBytes));
  }
  return {};
}

std::string layer_name(int64_t index, int64_t directions) {
  return "layer " + std::to_string(index / directions) + (index % directions == 1 ? " reverse" : "");
}

}  // namespace

Result<GruModel> GruModel::create(GruModelParameters parameters, const TableCache* tables) {
  const DefaultFloatMode mode;
  if (parameters.directions != 1 && parameters.directions != 2)
    return refuse("directions is " + std::to_string(parameters.directions) + ", must be 1 or 2");
  ISOBIT_RETURN_IF_ERROR(check_notes(parameters.notes));
  const int64_t directions = parameters.directions;
  const auto count = static_cast<int64_t>(parameters.layers.size());
  if (count == 0 || count % directions != 0)
    return refuse("the model has " + std::to_string(count) + " layer directions, must have a positive multiple of " +
                  std::to_string(directions));
  for (int64_t i = 0; i < count; ++i) {
    const GruLayerParameters& p = parameters.layers[static_cast<size_t>(i)];
    const std::string name = layer_name(i, directions);
    ISOBIT_RETURN_IF_ERROR(check_layer(p, name, tables));
    const GruLayerParameters& first = parameters.layers[static_cast<size_t>(i / directions * directions)];
    if (p.input_size != first.input_size || p.hidden_size != first.hidden_size || p.grids[kX] != first.grids[kX] ||
        p.grids[kH] != first.grids[kH])
      return refuse(name + ": both directions must have the same sizes, x grid and h grid");
    if (i >= directions) {
      const GruLayerParameters& below = parameters.layers[static_cast<size_t>(i - directions)];
      if (p.input_size != directions * below.hidden_size)
        return refuse(name + ": input size is " + std::to_string(p.input_size) + ", must be " +
                      std::to_string(directions * below.hidden_size) + " (the layer below)");
      if (p.hidden_size != below.hidden_size)
        return refuse(name + ": hidden size is " + std::to_string(p.hidden_size) + ", must be " +
                      std::to_string(below.hidden_size) + " as in the layer below");
      if (p.grids[kX] != below.grids[kH]) return refuse(name + ": its x grid must be the h grid of the layer below");
    }
    if (p.rounding != first.rounding || p.rounding != parameters.layers[0].rounding)
      return refuse(name + ": all layers must have the same rounding mode");
  }
  auto impl = std::make_shared<Impl>();
  impl->parameters = std::move(parameters);
  for (int64_t i = 0; i < count; ++i) {
    ISOBIT_ASSIGN_OR_RETURN(
        GruLayer layer, GruLayer::create(impl->parameters.layers[static_cast<size_t>(i)], layer_name(i, directions)));
    impl->layers.push_back(std::move(layer));
  }
  impl->default_path = default_cpu_path();
  GruModel model;
  model.impl_ = impl;
  for (const CpuPath path : kAllCpuPaths) impl->runs[static_cast<size_t>(path)] = model.supports(path).ok();
  return model;
}

const GruModelParameters& GruModel::parameters() const { return impl_->parameters; }
int64_t GruModel::layer_count() const {
  return static_cast<int64_t>(impl_->layers.size()) / impl_->parameters.directions;
}
int64_t GruModel::input_size() const { return impl_->parameters.layers[0].input_size; }
int64_t GruModel::hidden_size() const { return impl_->parameters.layers[0].hidden_size; }
int64_t GruModel::output_size() const { return hidden_size() * impl_->parameters.directions; }
const Grid& GruModel::input_grid() const { return impl_->parameters.layers.front().grids[kX]; }
const Grid& GruModel::output_grid() const { return impl_->parameters.layers.back().grids[kH]; }
const std::vector<OverflowBound>& GruModel::overflow_proof(int64_t layer) const {
  return impl_->layers[static_cast<size_t>(layer)].proof().rows;
}

Status GruModel::supports(CpuPath path) const {
  if (!cpu_can_run(path))
    return {StatusCode::kUnsupported,
            "kernel '" + std::string(to_string(path)) + "': " + std::string(cpu_cannot_run_reason(path))};
  if (path == CpuPath::kReference) return {};
  for (const GruLayer& layer : impl_->layers) ISOBIT_RETURN_IF_ERROR(layer.supports_packed());
  return {};
}

Result<CpuPath> GruModel::choose_path(std::optional<CpuPath> requested) const {
  if (requested && impl_->runs[static_cast<size_t>(*requested)]) return *requested;
  if (requested) {
    ISOBIT_RETURN_IF_ERROR(supports(*requested));
    return *requested;
  }
  if (!impl_->default_path.ok()) return impl_->default_path.status();
  // Wider models run on the reference; supports() says why.
  return impl_->runs[static_cast<size_t>(*impl_->default_path)] ? *impl_->default_path : CpuPath::kReference;
}

GruState GruModel::initial_state(int64_t batch) const {
  GruState state;
  state.batch_ = batch;
  for (const GruLayer& layer : impl_->layers) {
    const Grid& grid = layer.parameters().grids[kH];
    const int64_t count = batch * hidden_size();
    std::vector<std::byte> codes(static_cast<size_t>(count) * size_in_bytes(grid.dtype()));
    for (int64_t i = 0; i < count; ++i) store_code(codes.data(), grid.dtype(), i, grid.zero_point);
    state.layers_.push_back(std::move(codes));
  }
  return state;
}

Result<GruState> GruModel::state_from_float(std::span<const float> h, int64_t batch) const {
  const int64_t count = batch * hidden_size();
  const auto layers = static_cast<int64_t>(impl_->layers.size());
  if (batch < 0 || static_cast<int64_t>(h.size()) != layers * count)
    return refuse("the state has " + std::to_string(h.size()) + " values, must have " + std::to_string(layers) + " * " +
                  std::to_string(batch) + " * " + std::to_string(hidden_size()));
  GruState state = initial_state(batch);
  for (int64_t l = 0; l < layers; ++l)
    ISOBIT_RETURN_IF_ERROR(quantize(impl_->layers[static_cast<size_t>(l)].parameters().grids[kH],
                                    h.subspan(static_cast<size_t>(l * count), static_cast<size_t>(count)),
                                    state.layer(l).data(), "state of " + layer_name(l, impl_->parameters.directions)));
  return state;
}

void GruModel::state_to_float(const GruState& state, std::span<float> h) const {
  const auto count = static_cast<size_t>(state.batch() * hidden_size());
  for (int64_t l = 0; l < state.layer_count(); ++l)
    dequantize(impl_->layers[static_cast<size_t>(l)].parameters().grids[kH], state.layer(l).data(),
               h.subspan(static_cast<size_t>(l) * count, count));
}

Result<GruState> GruModel::state_from(const GruModel& other, const GruState& state) const {
  const DefaultFloatMode mode;
  if (other.impl_->layers.size() != impl_->layers.size() || other.hidden_size() != hidden_size())
    return refuse("the other model has " + std::to_string(other.impl_->layers.size()) + " layer directions of " +
                  std::to_string(other.hidden_size()) + " hidden units, must have " +
                  std::to_string(impl_->layers.size()) + " of " + std::to_string(hidden_size()));
  GruState out = initial_state(state.batch());
  for (size_t l = 0; l < impl_->layers.size(); ++l) {
    const GruLayerParameters& to = impl_->layers[l].parameters();
    const GruLayerParameters& from = other.impl_->layers[l].parameters();
    const Grid& from_grid = from.grids[kH];
    const Grid& to_grid = to.grids[kH];
    ISOBIT_ASSIGN_OR_RETURN(const RescaleParameters ratio, encode_hand_over(from_grid, to_grid));
    const int64_t count = state.batch() * hidden_size();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t code = load_code(state.layer(static_cast<int64_t>(l)).data(), from_grid.dtype(), i);
      store_code(
          out.layer(static_cast<int64_t>(l)).data(), to_grid.dtype(), i,
          clamp_to(range_of(to_grid), rescale(ratio, code - from_grid.zero_point, to.rounding) + to_grid.zero_point));
    }
  }
  return out;
}

namespace {

/// Offsets in a workspace, multiples of 64.
struct Layout {
  int64_t x = 0;  // codes of x and y, where floats run on the reference
  int64_t y = 0;
  int64_t between[2] = {0, 0};  // codes between layers
  int64_t scratch = 0;          // of the first thread
  int64_t scratch_stride = 0;
  int64_t total = 0;
};

Layout layout_of(const std::vector<GruLayer>& layers, int64_t directions, int64_t batch, int64_t steps,
                 int32_t threads) {
  Layout layout;
  const auto take = [&](int64_t bytes) {
    const int64_t offset = layout.total;
    layout.total += round_up_64(bytes);
    return offset;
  };
  const auto size = [](const GruLayer& layer, GruTensor tensor) {
    return static_cast<int64_t>(size_in_bytes(layer.parameters().grids[tensor].dtype()));
  };
  const int64_t output = directions * layers.front().parameters().hidden_size;
  layout.x = take(steps * batch * layers.front().parameters().input_size * size(layers.front(), kX));
  layout.y = take(steps * batch * output * size(layers.back(), kH));
  if (static_cast<int64_t>(layers.size()) > directions)
    for (int64_t& offset : layout.between) offset = take(steps * batch * output * 4);
  for (const GruLayer& layer : layers)
    layout.scratch_stride = std::max(layout.scratch_stride, round_up_64(layer.scratch_bytes(batch, steps)));
  layout.scratch = take(layout.scratch_stride * threads);
  return layout;
}

}  // namespace

int64_t GruModel::workspace_bytes(int64_t batch, int64_t steps, int32_t threads) const {
  return layout_of(impl_->layers, impl_->parameters.directions, batch, steps, std::max(threads, 1)).total;
}

Workspace GruModel::workspace(int64_t batch, int64_t steps, int32_t threads) const {
  return Workspace(workspace_bytes(batch, steps, threads));
}

namespace {

/// What every entry checks before it touches anything.
Status check_run(const GruModel& model, int64_t steps, const GruState& state, int64_t state_layers,
                 const RunOptions& options) {
  ISOBIT_RETURN_IF_ERROR(refuse_options(options, kPathOption | kPoolOption | kSequenceOptions, "a GRU on the CPU"));
  const int64_t batch = state.batch();
  if (steps < 0) return refuse("steps is " + std::to_string(steps) + ", must not be negative");
  if (state.layer_count() != state_layers)
    return refuse("the state has " + std::to_string(state.layer_count()) + " layer directions, must have " +
                  std::to_string(state_layers));
  if (!options.lengths.empty()) {
    if (static_cast<int64_t>(options.lengths.size()) != batch)
      return refuse("lengths has " + std::to_string(options.lengths.size()) + " values, must have " +
                    std::to_string(batch) + " (the batch)");
    for (size_t b = 0; b < options.lengths.size(); ++b)
      if (options.lengths[b] < 0 || options.lengths[b] > steps)
        return refuse("lengths[" + std::to_string(b) + "] is " + std::to_string(options.lengths[b]) + ", must be 0.." +
                      std::to_string(steps) + " (the steps)");
  }
  if (!options.zoneout_mask.empty()) {
    if (model.layer_count() != 1)
      return refuse("a zoneout mask is for models of one layer, this one has " + std::to_string(model.layer_count()));
    if (static_cast<int64_t>(options.zoneout_mask.size()) != steps * batch * model.output_size())
      return refuse("the zoneout mask has " + std::to_string(options.zoneout_mask.size()) + " values, must have " +
                    std::to_string(steps * batch * model.output_size()) + " ([T, N, directions * H])");
  }
  if (model.parameters().directions == 2 && !options.whole_sequence)
    return refuse(
        "the model is bidirectional, and its reverse direction begins at the last step: x must hold whole sequences, "
        "not pieces; set whole_sequence where it does");
  return {};
}

Status check_state_grids(const std::vector<GruLayer>& layers, const GruState& state) {
  for (size_t l = 0; l < layers.size(); ++l) {
    const GruLayerParameters& p = layers[l].parameters();
    const size_t expected = static_cast<size_t>(state.batch() * p.hidden_size) * size_in_bytes(p.grids[kH].dtype());
    if (state.layer(static_cast<int64_t>(l)).size() != expected)
      return refuse("the state of layer direction " + std::to_string(l) + " has " +
                    std::to_string(state.layer(static_cast<int64_t>(l)).size()) + " bytes, must have " +
                    std::to_string(expected) + "; use state_from() for another model's state");
  }
  return {};
}

/// Of x or y: as many elements as the extents say.
Status check_elements(const char* name, size_t bytes, Dtype dtype, int64_t steps, int64_t batch, int64_t width) {
  const Int128 elements = static_cast<Int128>(steps) * batch * width;
  const auto size = static_cast<Int128>(size_in_bytes(dtype));
  if (static_cast<Int128>(bytes) == elements * size) return {};
  return refuse(std::string(name) + " has " + std::to_string(bytes / size_in_bytes(dtype)) + " values, must have " +
                std::to_string(steps) + " * " + std::to_string(batch) + " * " + std::to_string(width));
}

/// Input and output of a call: codes or values of each.
struct Ends {
  const std::byte* x = nullptr;
  const float* x_float = nullptr;
  std::byte* y = nullptr;
  float* y_float = nullptr;
};

/// What the layers of a call share.
struct Call {
  const std::vector<GruLayer>& layers;
  int64_t directions;
  CpuPath path;
  Ends ends;
  int64_t steps;
  GruState& state;
  const RunOptions& options;
  std::byte* between[2];
  bool last_block_first;
  GruCodeObserver* observer;
};

/// All layers over sequences [begin, end).
void run_layers(const Call& call, std::byte* scratch, int64_t begin, int64_t end) {
  const int64_t steps = call.steps;
  const int64_t batch = call.state.batch();
  const int64_t hidden = call.layers[0].parameters().hidden_size;
  const int64_t output = call.directions * hidden;
  const auto outer = [&](int64_t width) {
    return call.options.batch_first ? CodeStrides{width, steps * width} : CodeStrides{batch * width, width};
  };
  const auto count = static_cast<int64_t>(call.layers.size());
  for (int64_t l = 0, index = 0; index < count; ++l)
    for (int64_t d = 0; d < call.directions; ++d, ++index) {
      const GruLayer& layer = call.layers[static_cast<size_t>(index)];
      const auto y_size = static_cast<int64_t>(size_in_bytes(layer.parameters().grids[kH].dtype()));
      LayerRun run;
      run.steps = steps;
      run.begin = begin;
      run.end = end;
      run.reverse = d == 1;
      if (l == 0) {
        run.x = call.ends.x;
        run.x_float = call.ends.x_float;
        run.x_strides = outer(layer.parameters().input_size);
      } else {
        run.x = call.between[(l + 1) % 2];
        run.x_strides = {batch * output, output};
      }
      if (index - d + call.directions == count) {  // the last layer
        if (call.ends.y != nullptr) run.y = call.ends.y + d * hidden * y_size;
        if (call.ends.y_float != nullptr) run.y_float = call.ends.y_float + d * hidden;
        run.y_strides = outer(output);
      } else {
        run.y = call.between[l % 2] + d * hidden * y_size;
        run.y_strides = {batch * output, output};
      }
      run.h = call.state.layer(index).data();
      run.lengths = call.options.lengths;
      run.mask = call.options.zoneout_mask.empty() ? nullptr : call.options.zoneout_mask.data() + d * hidden;
      run.batch = batch;
      run.mask_width = output;
      run.observer = call.observer;
      run.layer = index;
      run.scratch = scratch;
      run.last_block_first = call.last_block_first;
      layer.run(call.path, run);
    }
}

/// All sequences, on the pool where there is one.
void run_batch(const Call& call, std::byte* scratch, int64_t scratch_stride) {
  if (call.options.pool == nullptr) return run_layers(call, scratch, 0, call.state.batch());
  const auto part = [&](int index, int64_t begin, int64_t end) {
    run_layers(call, scratch + index * scratch_stride, begin, end);
  };
  call.options.pool->for_ranges(call.state.batch(), part);
}

int threads_of(const RunOptions& options) { return options.pool == nullptr ? 1 : options.pool->threads(); }

}  // namespace

Status GruModel::forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                         int64_t steps, GruState& state, Workspace& workspace, const RunOptions& options) const {
  const DefaultFloatMode mode;
  const bool floats = x_dtype == Dtype::kF32 && y_dtype == Dtype::kF32;
  if (!floats && (x_dtype != input_grid().dtype() || y_dtype != output_grid().dtype()))
    return refuse_types(x_dtype, y_dtype, input_grid().dtype(), output_grid().dtype(), true);
  const int64_t batch = state.batch();
  ISOBIT_RETURN_IF_ERROR(check_run(*this, steps, state, static_cast<int64_t>(impl_->layers.size()), options));
  ISOBIT_RETURN_IF_ERROR(check_elements("x", x.size(), x_dtype, steps, batch, input_size()));
  ISOBIT_RETURN_IF_ERROR(check_elements("y", y.size(), y_dtype, steps, batch, output_size()));
  ISOBIT_RETURN_IF_ERROR(check_state_grids(impl_->layers, state));
  const int threads = threads_of(options);
  const Layout layout = layout_of(impl_->layers, impl_->parameters.directions, batch, steps, threads);
  if (!workspace_fits(workspace, layout.total))
    return refuse_workspace(
        workspace, layout.total, {},
        std::to_string(steps) + " steps of " + std::to_string(batch) + " sequences" + on_threads(threads),
        "workspace(batch, steps, threads)");
  ISOBIT_ASSIGN_OR_RETURN(const CpuPath path, choose_path(options.path));
  std::byte* const base = workspace.data();
  const std::span x_values(reinterpret_cast<const float*>(x.data()), floats ? x.size() / sizeof(float) : 0);
  const std::span y_values(reinterpret_cast<float*>(y.data()), floats ? y.size() / sizeof(float) : 0);
  const bool by_reference = floats && path == CpuPath::kReference;
  Ends ends;
  if (by_reference) {
    ISOBIT_RETURN_IF_ERROR(quantize(input_grid(), x_values, base + layout.x, "x"));
    ends.x = base + layout.x;
    ends.y = base + layout.y;
  } else if (floats) {
    if (const int64_t i = impl_->layers[0].find_nan(path, x_values); i < static_cast<int64_t>(x_values.size()))
      return refuse("x[" + std::to_string(i) + "] is NaN, must be a number");
    ends.x_float = x_values.data();
    ends.y_float = y_values.data();
  } else {
    ends.x = x.data();
    ends.y = y.data();
  }
  run_batch({impl_->layers,
             impl_->parameters.directions,
             path,
             ends,
             steps,
             state,
             options,
             {base + layout.between[0], base + layout.between[1]},
             workspace.last_block_first_,
             nullptr},
            base + layout.scratch, layout.scratch_stride);
  workspace.last_block_first_ ^= steps % 2 == 1;
  if (by_reference) dequantize(output_grid(), base + layout.y, y_values);
  return {};
}

Status GruModel::forward_observed(std::span<const std::byte> x, std::span<std::byte> y, int64_t steps, GruState& state,
                                  GruCodeObserver& observer, const RunOptions& options) const {
  const DefaultFloatMode mode;
  const int64_t batch = state.batch();
  ISOBIT_RETURN_IF_ERROR(check_run(*this, steps, state, static_cast<int64_t>(impl_->layers.size()), options));
  ISOBIT_RETURN_IF_ERROR(check_elements("x", x.size(), input_grid().dtype(), steps, batch, input_size()));
  ISOBIT_RETURN_IF_ERROR(check_elements("y", y.size(), output_grid().dtype(), steps, batch, output_size()));
  ISOBIT_RETURN_IF_ERROR(check_state_grids(impl_->layers, state));
  const Layout layout = layout_of(impl_->layers, impl_->parameters.directions, batch, steps, 1);
  Workspace workspace(layout.total);
  std::byte* const base = workspace.data();
  Ends ends;
  ends.x = x.data();
  ends.y = y.data();
  run_layers({impl_->layers,
              impl_->parameters.directions,
              CpuPath::kReference,
              ends,
              steps,
              state,
              options,
              {base + layout.between[0], base + layout.between[1]},
              false,
              &observer},
             base + layout.scratch, 0, batch);
  return {};
}

}  // namespace isobit
