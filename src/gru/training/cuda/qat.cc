// SPDX-License-Identifier: Apache-2.0
// DeviceGruQat: what is checked, and the layers one after the other.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/status.h"
#include "core/cuda/upload.h"
#include "core/rescale.h"
#include "core/scratch.h"
#include "gru/clamps.h"
#include "gru/cuda/tables.h"
#include "gru/proof.h"
#include "gru/training/cuda/call.h"
#include "gru/training/cuda/direction.h"
#include "gru/training/cuda/integers.h"
#include "gru/training/cuda/recurrence.h"
#include "gru/training/layers.h"
#include "isobit/calibration.h"
#include "isobit/cuda/gru.h"
#include "isobit/cuda/gru_qat.h"

namespace isobit::cuda {
namespace {

constexpr Int128 kFloatLimit = static_cast<Int128>(1) << 24;   // sums of floats are exact to here
constexpr Int128 kDoubleLimit = static_cast<Int128>(1) << 52;  // QatRowLanes
constexpr Int128 kGateInputLimit = static_cast<Int128>(1) << 30;

/// One direction of one layer: what does not depend on weights.
struct QatDevice {
  CellView cell;
  IntegerScales scales;
  QatLinear linear[2];
  CodeRange x, h;
  float x_inverse, x_scale, h_inverse;
  RescaleParameters ih_to_gate[3];
  CellLanes lanes;
  CellConstants constants;
  std::vector<float> tables[4];  // of CellConstants, before they are on the device
  bool wide_x, wide_h;
  int32_t parts;               // of h, for the kernel "team"; 0: sums would not be exact
  std::vector<Scale> kept[2];  // of rows of W and of R
};

/// Device memory of what a backward needs.
struct QatSaved {
  struct Direction {
    float *W, *R, *saved;
    uint16_t* passes;
  };
  unsigned long long* counts;  // [layers * directions][kClamps + 1], then of x and of states.first
  int64_t counts_size;
  float* x;
  uint8_t* x_passes;
  float* first;
  uint8_t* first_passes;
  RowFault* faults;       // [layers * directions][4][3H]: of W, R, bw and br
  std::vector<float*> y;  // of each layer
  std::vector<Direction> directions;

  QatSaved(Scratch& scratch, const GruTrainingSizes& s) {
    const int64_t rows = s.steps * s.batch, H = s.hidden_size, states = s.layers * s.directions;
    counts_size = states * (kClamps + 1) + 2 * kInputCounts;
    counts = scratch.take<unsigned long long>(counts_size);
    x = scratch.take<float>(rows * s.input_size);
    x_passes = scratch.take<uint8_t>(rows * pass_row(s.input_size));
    first = scratch.take<float>(states * s.batch * H);
    first_passes = scratch.take<uint8_t>(states * s.batch * pass_row(H));
    faults = scratch.take<RowFault>(states * 12 * H);
    for (int64_t layer = 0; layer < s.layers; ++layer) y.push_back(scratch.take<float>(y_size(s)));
    for (int64_t i = 0; i < states; ++i)
      directions.push_back({scratch.take<float>(3 * H * inputs_of(s, i / s.directions)), scratch.take<float>(3 * H * H),
                            scratch.take<float>(4 * rows * H), scratch.take<uint16_t>(rows * H)});
  }
};

/// Device memory of either call; what is below `training` is of a forward.
struct QatScratch {
  TrainingScratch training;
  float* codes[2];  // of x, then of y of layers
  float *W, *R, *first;
  QatRows of_rows[2];
  void* scales;

  QatScratch(Scratch& scratch, const GruTrainingSizes& s) : training(scratch, s) {
    const int64_t rows = s.steps * s.batch, H = s.hidden_size;
    int64_t inputs = s.input_size;
    for (int64_t layer = 1; layer < std::min<int64_t>(s.layers, 2); ++layer)
      inputs = std::max(inputs, inputs_of(s, layer));
    codes[0] = scratch.take<float>(rows * inputs);
    codes[1] = scratch.take<float>(s.layers > 1 ? y_size(s) : 0);
    W = scratch.take<float>(3 * H * inputs);
    R = scratch.take<float>(3 * H * H);
    first = scratch.take<float>(s.layers * s.directions * s.batch * H);
    for (QatRows& of : of_rows) of = {scratch.take<QatRow>(3 * H), scratch.take<QatRowLanes>(3 * H)};
    scales = scratch.take<std::byte>(weight_scales_bytes(6 * H));
  }
};

template <typename Memory>
int64_t bytes_of(const GruTrainingSizes& s) {
  Scratch scratch(nullptr);
  const Memory memory(scratch, s);
  return scratch.used();
}

std::string name_of(int64_t index, int64_t directions) {
  return "layer " + std::to_string(index / directions) + (index % directions == 1 ? " reverse" : "");
}

ScaleOptions scale_options(const GridOptions& options, ScaleKind kind) {
  return {kind, options.bits, options.is_signed, options.symmetric, options.steps.value_or(int64_t{1} << options.bits)};
}

/// Refuses what no row could be quantised with.
Status check_rows(const GruLayerParameters& p, const GruLayerQuantization& wanted, const std::string& name) {
  for (const GruTensor tensor : {kW, kR, kBw, kBr}) {
    const GridOptions& options = wanted.tensors[tensor];
    const Grid& grid = p.grids[tensor];
    const std::string of = name + " " + std::string(kGruTensorNames[tensor]);
    const float zero = 0.0f;
    ISOBIT_RETURN_IF_ERROR(
        derive_row_grids({&zero, 1}, 1, 1, options, p.grids[kH].kind, of, tensor == kW || tensor == kR).status());
    if (options.bits != grid.bits || options.is_signed != grid.is_signed)
      return refuse_training(of + ": quantization has " + std::to_string(options.bits) +
                             (options.is_signed ? " signed" : " unsigned") + " bits, must have those of the model, " +
                             std::to_string(grid.bits) + (grid.is_signed ? " signed" : " unsigned"));
  }
  for (const GruTensor tensor : {kX, kH, kW, kR})
    if (p.grids[tensor].bits > DeviceGruQat::kMostBits)
      return {StatusCode::kUnsupported, name + " " + std::string(kGruTensorNames[tensor]) + " has " +
                                            std::to_string(p.grids[tensor].bits) + " bits, must have at most " +
                                            std::to_string(DeviceGruQat::kMostBits) +
                                            " to be trained on a device; train on the CPU"};
  const std::array<std::array<GruTensor, 2>, 2> products = {{{kW, kX}, {kR, kH}}};
  for (const auto& [weights, activation] : products) {
    const int64_t terms = weights == kW ? p.input_size : p.hidden_size;
    const Int128 bound =
        bound_multiply(bound_multiply(largest_code(p.grids[weights]), terms), largest_difference(p.grids[activation]));
    if (bound >= kDoubleLimit)
      return {StatusCode::kUnsupported, name + " sum of " + std::string(kGruTensorNames[weights]) + " * " +
                                            std::string(kGruTensorNames[activation]) + " can reach " +
                                            to_decimal(bound) +
                                            ", must stay below 2^52 to be trained on a device; train on the CPU"};
  }
  for (size_t gate = 0; gate < 3; ++gate) {
    const Int128 bound = bound_rescale(largest_difference(p.grids[kIh]), p.ih_to_gate[gate]);
    if (bound >= kGateInputLimit)
      return {StatusCode::kUnsupported, name + " ih -> " + std::string(kGruTensorNames[kUIn + gate]) + " can reach " +
                                            to_decimal(bound) +
                                            ", must stay below 2^30 to be trained on a device; train on the CPU"};
  }
  return {};
}

double ratio_of(const RescaleParameters& ratio) {
  return std::ldexp(static_cast<double>(ratio.multiplier), -ratio.shift);
}

/// Lanes that hold every intermediate of a cell.
Result<CellLanes> lanes_of(const GruLayerParameters& p) {
  constexpr Int128 kMost = static_cast<Int128>(1) << 24;
  if (p.rounding != Rounding::kNearestEven) return CellLanes::kIntegers;
  const auto narrow = [&](GruTensor tensor) { return largest_difference(p.grids[tensor]) < kMost; };
  for (const GruTensor tensor : {kIh, kHh, kU, kRGate, kN})
    if (!narrow(tensor)) return CellLanes::kIntegers;
  for (size_t gate = 0; gate < 3; ++gate)
    if (p.grids[kUIn + gate].bits > 16) return CellLanes::kIntegers;
  if (bound_rescale(largest_difference(p.grids[kN]), p.n_to_h) > kMost) return CellLanes::kIntegers;
  ISOBIT_ASSIGN_OR_RETURN(const GruProof proof, prove_no_overflow(p, "the layer"));
  return proof.cell_f32 ? CellLanes::kFloats : proof.cell_f64 ? CellLanes::kDoubles : CellLanes::kIntegers;
}

/// But for the tables' places.
void fill_constants(const GruLayerParameters& p, QatDevice& to) {
  const auto low = [&](size_t tensor) {
    return static_cast<double>(p.grids[tensor].min() - p.grids[tensor].zero_point);
  };
  const auto high = [&](size_t tensor) {
    return static_cast<double>(p.grids[tensor].max() - p.grids[tensor].zero_point);
  };
  CellConstants& c = to.constants;
  c = {.hh_low = low(kHh),
       .hh_high = high(kHh),
       .hh_to_gate = {ratio_of(p.hh_to_gate[0]), ratio_of(p.hh_to_gate[1]), ratio_of(p.rhh_to_n)},
       .gate_low = {low(kUIn), low(kRIn), low(kNIn)},
       .gate_high = {high(kUIn), high(kRIn), high(kNIn)},
       .u_to_one = ratio_of(p.u_to_one),
       .one = static_cast<double>(p.one - p.grids[kU].zero_point),
       .h_low = low(kH),
       .h_high = high(kH),
       .u = nullptr,
       .r = nullptr,
       .n = nullptr,
       .n_on_h = nullptr};
  for (size_t gate = 0; gate < 3; ++gate) {
    const Grid& in = p.grids[kUIn + gate];
    for (int64_t q = in.min(); q <= in.max(); ++q) {
      const int64_t code = p.tables[gate](q) - p.grids[kU + gate].zero_point;
      to.tables[gate].push_back(static_cast<float>(code));
      if (gate == 2) to.tables[3].push_back(static_cast<float>(rescale(p.n_to_h, code, p.rounding)));
    }
  }
}

void fill(const GruLayerParameters& p, const GruLayerQuantization& wanted, GruRowGrids rows, QatDevice& to) {
  const auto scale = [&](GruTensor tensor) { return p.grids[tensor].scale(); };
  to.cell = view_of(p);
  to.scales = {scale(kH), scale(kU), scale(kRGate), scale(kN), scale(kHh)};
  to.linear[0] = qat_linear_of(p, wanted, false);
  to.linear[1] = qat_linear_of(p, wanted, true);
  to.x = range_of(p.grids[kX]);
  to.h = range_of(p.grids[kH]);
  to.x_inverse = p.grids[kX].inverse_scale();
  to.x_scale = scale(kX);
  to.h_inverse = p.grids[kH].inverse_scale();
  std::copy(p.ih_to_gate.begin(), p.ih_to_gate.end(), to.ih_to_gate);
  const Int128 of_x = bound_multiply(largest_code(p.grids[kW]), p.input_size);
  const Int128 of_h = bound_multiply(largest_code(p.grids[kR]), p.hidden_size);
  to.wide_x = bound_multiply(of_x, largest_difference(p.grids[kX])) > kFloatLimit;
  to.wide_h = bound_multiply(of_h, largest_difference(p.grids[kH])) > kFloatLimit;
  // A half of 16 bits is up to 256.
  to.parts = !to.wide_h ? 1 : bound_multiply(of_h, 256) <= kFloatLimit ? 2 : 0;
  if (rows == GruRowGrids::kDerived) return;
  for (int of = 0; of < 2; ++of)
    for (const Grid& grid : of == 0 ? p.W_grid : p.R_grid) to.kept[of].push_back(scale_of(grid));
}

}  // namespace

QatLinear qat_linear_of(const GruLayerParameters& p, const GruLayerQuantization& wanted, bool of_h) {
  const Grid &activation = p.grids[of_h ? kH : kX], &result = p.grids[of_h ? kHh : kIh];
  return {.weights = scale_options(wanted.tensors[of_h ? kR : kW], activation.kind),
          .biases = scale_options(wanted.tensors[of_h ? kBr : kBw], activation.kind),
          .activation = scale_of(activation),
          .result = scale_of(result),
          .largest_activation = static_cast<int64_t>(largest_difference(activation)),
          .result_zero = std::abs(result.zero_point),
          .rows = 3 * p.hidden_size,
          .columns = of_h ? p.hidden_size : p.input_size,
          .kept_weights = nullptr};
}

struct DeviceGruQat::Data {
  std::string name;
  int device = 0;
  GruTrainingSizes sizes;  // but for steps and batch
  Rounding rounding = Rounding::kNearestEven;
  std::vector<QatDevice> directions;
  std::shared_ptr<const std::byte> memory;
  TeamArithmetic arithmetic{CellLanes::kFloats, 1};
  TeamPlan forward_plan, backward_plan;
  std::string why_no_team;  // empty: it runs the forward

  [[nodiscard]] GruTrainingSizes of(int64_t steps, int64_t batch) const {
    GruTrainingSizes s = sizes;
    s.steps = steps;
    s.batch = batch;
    return s;
  }
  [[nodiscard]] const TeamPlan* forward_team(const RunOptions& options) const {
    return forward_plan.blocks > 0 && options.kernel != kSteps ? &forward_plan : nullptr;
  }
  [[nodiscard]] const TeamPlan* backward_team(const RunOptions& options) const {
    return backward_plan.blocks > 0 && options.kernel != kSteps ? &backward_plan : nullptr;
  }
  Status check_sizes(int64_t steps, int64_t batch) const {
    ISOBIT_RETURN_IF_ERROR(GruTraining::create(of(steps, batch), name).status());
    return check_training_rows(name, of(steps, batch));
  }
  /// Codes of states.first of a layer, and their numbers.
  Status quantize_first(const GruTrainingSizes& s, int64_t layer, const GruTrainingStates& states,
                        const QatSaved& saved, const QatScratch& scratch, cudaStream_t stream) const {
    const int64_t rows = s.directions * s.batch, first = layer * rows * s.hidden_size;
    const QatDevice& of = directions[static_cast<size_t>(layer * s.directions)];
    const std::span<const float> values(states.first);
    return quantize_inputs({.values = values.data() + first,
                            .range = of.h,
                            .inverse_scale = of.h_inverse,
                            .scale = of.scales.h,
                            .codes = scratch.first + first,
                            .numbers = saved.first + first,
                            .passes = saved.first_passes + layer * rows * pass_row(s.hidden_size),
                            .lengths = nullptr,
                            .rows = rows,
                            .columns = s.hidden_size,
                            .batch = static_cast<int32_t>(std::max<int64_t>(s.batch, 1))},
                           stream);
  }
  Status run_direction(const GruTrainingSizes& s, int64_t layer, int64_t d, const GruTrainingWeights& weights,
                       const QatInputs* x, const GruTrainingStates& states, float* y, const QatSaved& saved,
                       const QatScratch& scratch, const RunOptions& options) const;
  [[nodiscard]] Status refusal_of(unsigned long long nan_of_x, unsigned long long nan_of_first,
                                  std::span<const RowFault> faults) const;
};

Status DeviceGruQat::Data::run_direction(const GruTrainingSizes& s, int64_t layer, int64_t d,
                                         const GruTrainingWeights& weights, const QatInputs* x,
                                         const GruTrainingStates& states, float* y, const QatSaved& saved,
                                         const QatScratch& scratch, const RunOptions& options) const {
  const int64_t index = layer * s.directions + d, rows = s.steps * s.batch, H = s.hidden_size;
  const int64_t C = inputs_of(s, layer);
  const QatDevice& of = directions[static_cast<size_t>(index)];
  const QatSaved::Direction& to = saved.directions[static_cast<size_t>(index)];
  RowFault* const faults = saved.faults + index * 12 * H;
  ISOBIT_RETURN_IF_ERROR(quantize_weights(of.linear, {weights.W.data(), weights.R.data()},
                                          {weights.bw.data(), weights.br.data()},
                                          {{scratch.W, to.W, scratch.of_rows[0], faults, faults + 6 * H},
                                           {scratch.R, to.R, scratch.of_rows[1], faults + 3 * H, faults + 9 * H}},
                                          rounding, scratch.scales, x, options.stream));
  auto* const ih = reinterpret_cast<int32_t*>(scratch.training.gx);
  QatGateInputs gates{scratch.of_rows[0], of.lanes != CellLanes::kIntegers, of.cell.ih, {}, rounding, H, ih};
  std::copy(std::begin(of.ih_to_gate), std::end(of.ih_to_gate), gates.ih_to_gate);
  ISOBIT_RETURN_IF_ERROR(
      product_to_gate_inputs({scratch.codes[layer % 2], C}, {scratch.W, C}, gates, rows, C, of.wide_x, options.stream));
  TrainingSteps steps = steps_of(s, layer, d, options);
  steps.R = scratch.R;
  if (!states.first.empty()) steps.first = scratch.first + index * s.batch * H;
  const IntegerForwardSteps run{steps,
                                ih,
                                scratch.of_rows[1],
                                of.cell,
                                of.constants,
                                of.scales,
                                saved.y[static_cast<size_t>(layer)] + d * H,
                                layer + 1 == s.layers ? y + d * H : nullptr,
                                layer + 1 == s.layers ? nullptr : scratch.codes[(layer + 1) % 2] + d * H,
                                to.saved,
                                to.passes,
                                state_of(states.last, index, s)};
  const TeamPlan* const team = forward_team(options);
  return team != nullptr ? run_team_forward(*team, arithmetic, run, options.stream)
                         : run_step_forward(run, of.wide_h, scratch.training.recurrence, options.stream);
}

/// The first fault that a forward met. Places of NaN are inverted; 0: there is none.
Status DeviceGruQat::Data::refusal_of(unsigned long long nan_of_x, unsigned long long nan_of_first,
                                      std::span<const RowFault> faults) const {
  const auto nan = [&](const char* what, unsigned long long place) {
    return refuse_training(name + ": " + what + "[" + std::to_string(~place) + "] is NaN, must be a number");
  };
  if (nan_of_x != 0) return nan("x", nan_of_x);
  if (nan_of_first != 0) return nan("states.first", nan_of_first);
  const auto fault = std::find_if(faults.begin(), faults.end(), [](RowFault f) { return f != RowFault::kNone; });
  if (fault == faults.end()) return {};
  const int64_t place = fault - faults.begin(), rows = 3 * sizes.hidden_size, matrix = place / rows;
  constexpr GruTensor kMatrices[] = {kW, kR, kBw, kBr};
  const std::string where = name + ": " + name_of(matrix / 4, sizes.directions) + " " +
                            std::string(kGruTensorNames[kMatrices[matrix % 4]]) + " " +
                            row_text(place % rows, sizes.hidden_size);
  switch (*fault) {
    case RowFault::kNotFinite: return refuse_training(where + " is not finite, must be; lower the learning rate");
    case RowFault::kNoScale:
      return refuse_training(where +
                             " needs a shift below -32, or a scale that is no normal float32; set values this "
                             "small to 0, lower the learning rate, or use the other kind of scales");
    default:
      return {StatusCode::kOverflow,
              where +
                  ": a rescale or a sum does not fit int64; use fewer bits for its weights, input or bias. "
                  "with_weights() on the CPU names which"};
  }
}

Result<DeviceGruQat> DeviceGruQat::create(const GruModel& model, const GruQuantization& quantization,
                                          std::string_view name, std::optional<int> device, GruRowGrids rows) {
  const std::vector<GruLayerParameters>& layers = model.parameters().layers;
  auto data = std::make_shared<Data>();
  data->name = name;
  data->sizes = {.input_size = layers[0].input_size,
                 .hidden_size = layers[0].hidden_size,
                 .layers = model.layer_count(),
                 .directions = model.parameters().directions};
  data->rounding = layers[0].rounding;
  const int64_t directions = data->sizes.directions;
  if (!quantization.layers.empty() && quantization.layers.rbegin()->first >= data->sizes.layers)
    return refuse_training(data->name + ": quantization has layer " +
                           std::to_string(quantization.layers.rbegin()->first) + ", must be 0.." +
                           std::to_string(data->sizes.layers - 1) + ", as the model");
  if (device) ISOBIT_RETURN_IF_ERROR(cuda_status(cudaSetDevice(*device), "device " + std::to_string(*device)));
  ISOBIT_RETURN_IF_ERROR(DeviceGru::check_device());
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&data->device), "the current device"));
  data->directions.resize(layers.size());
  Upload upload;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const GruLayerQuantization& wanted = quantization.layer(index / directions);
    ISOBIT_RETURN_IF_ERROR(check_rows(layers[i], wanted, data->name + ": " + name_of(index, directions)));
    QatDevice& to = data->directions[i];
    fill(layers[i], wanted, rows, to);
    for (size_t gate = 0; gate < 3; ++gate) upload_table(upload, layers[i].tables[gate], to.cell.tables[gate]);
    ISOBIT_ASSIGN_OR_RETURN(to.lanes, lanes_of(layers[i]));
    data->arithmetic.lanes = std::min(data->arithmetic.lanes, to.lanes);
    if (to.lanes != CellLanes::kIntegers) {
      fill_constants(layers[i], to);
      upload.add(std::span<const float>(to.tables[0]), to.constants.u);
      upload.add(std::span<const float>(to.tables[1]), to.constants.r);
      upload.add(std::span<const float>(to.tables[2]), to.constants.n);
      upload.add(std::span<const float>(to.tables[3]), to.constants.n_on_h);
    }
    for (int of = 0; of < 2 && rows == GruRowGrids::kKept; ++of)
      upload.add(std::span<const Scale>(to.kept[of]), to.linear[of].kept_weights);
    int32_t& parts = data->arithmetic.parts;
    parts = parts == 0 || to.parts == 0 ? 0 : std::max(parts, to.parts);
    if (to.parts == 0 && data->why_no_team.empty())
      data->why_no_team = name_of(index, directions) + " R of " + std::to_string(layers[i].grids[kR].bits) +
                          " bits with h of " + std::to_string(layers[i].grids[kH].bits) + ", whose sums can pass 2^24,";
  }
  ISOBIT_ASSIGN_OR_RETURN(data->memory, upload.finish());
  for (size_t i = 0; i < layers.size(); ++i) {
    // An index is minus the zero point.
    const auto from_zero = [&](GruTensor in, const float*& table) {
      table += layers[i].grids[in].zero_point - layers[i].grids[in].min();
    };
    QatDevice& to = data->directions[i];
    for (std::vector<float>& table : to.tables) table.clear();
    if (to.lanes == CellLanes::kIntegers) continue;
    from_zero(kUIn, to.constants.u);
    from_zero(kRIn, to.constants.r);
    from_zero(kNIn, to.constants.n);
    from_zero(kNIn, to.constants.n_on_h);
  }
  ISOBIT_RETURN_IF_ERROR(plan_teams(data->sizes.hidden_size, data->backward_plan));
  if (data->arithmetic.parts > 0) {
    data->forward_plan = data->backward_plan;
    ISOBIT_RETURN_IF_ERROR(plan_integer_teams(data->forward_plan, data->arithmetic));
    if (data->forward_plan.blocks == 0) data->why_no_team = "hidden_size " + std::to_string(data->sizes.hidden_size);
  }
  DeviceGruQat made;
  made.data_ = std::move(data);
  return made;
}

int DeviceGruQat::device() const { return data_->device; }
std::string_view DeviceGruQat::kernel_name() const { return data_->forward_plan.blocks > 0 ? kTeam : kSteps; }
int64_t DeviceGruQat::saved_bytes(int64_t steps, int64_t batch) const {
  return bytes_of<QatSaved>(data_->of(steps, batch));
}
int64_t DeviceGruQat::workspace_bytes(int64_t steps, int64_t batch) const {
  return bytes_of<QatScratch>(data_->of(steps, batch));
}

Status DeviceGruQat::forward(std::span<const GruTrainingWeights> weights, std::span<const float> x, int64_t steps,
                             int64_t batch, std::span<float> y, std::span<std::byte> saved,
                             std::span<std::byte> workspace, const GruTrainingStates& states,
                             const RunOptions& options) const {
  const Data& data = *data_;
  ISOBIT_RETURN_IF_ERROR(data.check_sizes(steps, batch));
  const GruTrainingSizes s = data.of(steps, batch);
  const TrainingCall call{data.name, data.device, data.why_no_team};
  ISOBIT_RETURN_IF_ERROR(call.check_options(options));
  std::vector<TrainingArray> arrays = {TrainingArray("y", "T, N, directions * H", y, y_size(s))};
  ISOBIT_RETURN_IF_ERROR(add_call_arrays(data.name, s, weights, x, states, options, arrays));
  const TrainingCall::Room rooms[] = {{"saved", saved, saved_bytes(steps, batch)},
                                      {"workspace", workspace, workspace_bytes(steps, batch)}};
  ISOBIT_RETURN_IF_ERROR(call.check_arrays(std::move(arrays), rooms, batch, options.stream));

  Scratch saved_memory(saved.data()), work_memory(workspace.data());
  const QatSaved to(saved_memory, s);
  const QatScratch scratch(work_memory, s);
  const auto set = [&](void* memory, int value, int64_t bytes) {
    return cuda_status(cudaMemsetAsync(memory, value, static_cast<size_t>(bytes), options.stream), "what is saved");
  };
  const QatDevice& first = data.directions[0];
  const QatInputs inputs{.values = x.data(),
                         .range = first.x,
                         .inverse_scale = first.x_inverse,
                         .scale = first.x_scale,
                         .codes = scratch.codes[0],
                         .numbers = to.x,
                         .passes = to.x_passes,
                         .lengths = given(options.lengths),
                         .rows = steps * batch,
                         .columns = s.input_size,
                         .batch = static_cast<int32_t>(std::max<int64_t>(batch, 1))};
  if (states.first.empty()) {
    const int64_t rows = s.layers * s.directions * batch;
    ISOBIT_RETURN_IF_ERROR(set(to.first, 0, rows * s.hidden_size * static_cast<int64_t>(sizeof(float))));
    ISOBIT_RETURN_IF_ERROR(set(to.first_passes, kInputPassed, rows * pass_row(s.hidden_size)));
  }
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    if (!states.first.empty())
      ISOBIT_RETURN_IF_ERROR(data.quantize_first(s, layer, states, to, scratch, options.stream));
    for (int64_t d = 0; d < s.directions; ++d)
      ISOBIT_RETURN_IF_ERROR(data.run_direction(s, layer, d, weights[static_cast<size_t>(layer * s.directions + d)],
                                                layer == 0 && d == 0 ? &inputs : nullptr, states, y.data(), to, scratch,
                                                options));
  }
  return {};
}

Status DeviceGruQat::backward(int64_t steps, int64_t batch, std::span<const std::byte> saved, std::span<const float> dy,
                              std::span<float> dx, std::span<const GruTrainingGradients> gradients,
                              std::span<std::byte> workspace, const GruTrainingStates& states,
                              const RunOptions& options) const {
  const Data& data = *data_;
  ISOBIT_RETURN_IF_ERROR(data.check_sizes(steps, batch));
  const GruTrainingSizes s = data.of(steps, batch);
  const TrainingCall call{data.name, data.device, data.why_no_team};
  ISOBIT_RETURN_IF_ERROR(call.check_options(options));
  const int64_t H = s.hidden_size, all_states = s.layers * s.directions * batch * H;
  std::vector<TrainingArray> arrays = {
      TrainingArray("dy", "T, N, directions * H", dy, y_size(s)),
      TrainingArray("dx", "T, N, C", dx, steps * batch * s.input_size, true),
      TrainingArray("states.last_gradient", "layers * directions, N, H", states.last_gradient, all_states, true),
      TrainingArray("states.first_gradient", "layers * directions, N, H", states.first_gradient, all_states, true),
      TrainingArray("options.lengths", "N", options.lengths, batch, true),
      TrainingArray("options.zoneout_mask", "layers, T, N, directions * H", options.zoneout_mask, s.layers * y_size(s),
                    true)};
  ISOBIT_RETURN_IF_ERROR(add_gradients(data.name, s, gradients, arrays));
  // Nothing writes to it.
  const std::span<std::byte> from{const_cast<std::byte*>(saved.data()), saved.size()};
  const TrainingCall::Room rooms[] = {{"saved", from, saved_bytes(steps, batch)},
                                      {"workspace", workspace, workspace_bytes(steps, batch)}};
  ISOBIT_RETURN_IF_ERROR(call.check_arrays(std::move(arrays), rooms, batch, options.stream));

  Scratch saved_memory(from.data()), work_memory(workspace.data());
  const QatSaved of(saved_memory, s);
  const QatScratch scratch(work_memory, s);
  for (int64_t layer = s.layers - 1; layer >= 0; --layer) {
    const int64_t C = inputs_of(s, layer);
    const float* const dout = layer + 1 == s.layers ? dy.data() : scratch.training.dy[(layer + 1) % 2];
    float* const din = layer > 0 ? scratch.training.dy[layer % 2] : given(dx);
    for (int64_t d = 0; d < s.directions; ++d) {
      const int64_t index = layer * s.directions + d;
      const QatSaved::Direction& direction = of.directions[static_cast<size_t>(index)];
      TrainingSteps of_direction = steps_of(s, layer, d, options);
      of_direction.R = direction.R;
      of_direction.first = of.first + index * batch * H;
      const TrainingBackwardSteps run{{of_direction},
                                      of.y[static_cast<size_t>(layer)] + d * H,
                                      direction.saved,
                                      direction.passes,
                                      moved(dout, d * H),
                                      state_of(states.last_gradient, index, s),
                                      state_of(states.first_gradient, index, s),
                                      nullptr,
                                      nullptr};
      const FloatRows x{layer == 0 ? of.x : of.y[static_cast<size_t>(layer - 1)], C};
      ISOBIT_RETURN_IF_ERROR(run_direction_backward({run, x, direction.W, C, din, gradients[static_cast<size_t>(index)],
                                                     layer == 0 && d + 1 == s.directions ? of.x_passes : nullptr},
                                                    data.backward_team(options), scratch.training, options.stream));
    }
  }
  return stop_gradients({states.first_gradient.data(), of.first_passes, std::ssize(states.first_gradient) / H, H},
                        options.stream);
}

Result<GruQatShares> DeviceGruQat::check(int64_t steps, int64_t batch, std::span<std::byte> saved,
                                         CUstream_st* stream) const {
  const Data& data = *data_;
  ISOBIT_RETURN_IF_ERROR(data.check_sizes(steps, batch));
  const GruTrainingSizes s = data.of(steps, batch);
  const std::string why;
  const TrainingCall call{data.name, data.device, why};
  ISOBIT_RETURN_IF_ERROR(check_current_device(data.device, "the training"));
  const TrainingCall::Room rooms[] = {{"saved", saved, saved_bytes(steps, batch)}};
  ISOBIT_RETURN_IF_ERROR(call.check_arrays({}, rooms, batch, stream));
  Scratch saved_memory(saved.data());
  const QatSaved of(saved_memory, s);
  const int64_t states = s.layers * s.directions, units = steps * batch * s.hidden_size;
  const auto count_bytes = static_cast<size_t>(of.counts_size) * sizeof(unsigned long long);
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaMemsetAsync(of.counts, 0, count_bytes, stream), "what is saved"));
  for (int64_t i = 0; i < states; ++i)
    ISOBIT_RETURN_IF_ERROR(
        count_units(of.directions[static_cast<size_t>(i)].passes, units, of.counts + i * (kClamps + 1), stream));
  unsigned long long* const of_inputs = of.counts + states * (kClamps + 1);
  ISOBIT_RETURN_IF_ERROR(count_inputs(of.x_passes, steps * batch, s.input_size, of_inputs, stream));
  ISOBIT_RETURN_IF_ERROR(
      count_inputs(of.first_passes, states * batch, s.hidden_size, of_inputs + kInputCounts, stream));
  std::vector<unsigned long long> counts(static_cast<size_t>(of.counts_size));
  std::vector<RowFault> faults(static_cast<size_t>(states * 12 * s.hidden_size));
  ISOBIT_RETURN_IF_ERROR(cuda_status(
      cudaMemcpyAsync(counts.data(), of.counts, count_bytes, cudaMemcpyDeviceToHost, stream), "what is saved"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(
      cudaMemcpyAsync(faults.data(), of.faults, faults.size(), cudaMemcpyDeviceToHost, stream), "what is saved"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "the forward"));
  const std::span<const unsigned long long> inputs = std::span(counts).last(2 * kInputCounts);
  ISOBIT_RETURN_IF_ERROR(data.refusal_of(inputs[2], inputs[kInputCounts + 2], faults));

  const auto share = [](unsigned long long clipped, unsigned long long all) {
    return all == 0 ? 0.0 : static_cast<double>(clipped) / static_cast<double>(all);
  };
  GruQatShares shares;
  shares.clipped_inputs = share(inputs[0], inputs[1]);
  unsigned long long clipped = 0, all = 0;
  for (int64_t i = 0; i < states; ++i) {
    const unsigned long long* const of_direction = counts.data() + i * (kClamps + 1);
    std::array<unsigned long long, kGruTensorCount> of_tensor{}, numbers{};
    for (int bit = 0; bit < kClamps; ++bit) {
      const GruTensor tensor = tensor_of_clamp(bit);
      of_tensor[tensor] += of_direction[bit];
      numbers[tensor] += of_direction[kClamps];
    }
    std::array<double, kGruTensorCount>& to = shares.clipped.emplace_back();
    for (size_t tensor = 0; tensor < to.size(); ++tensor) {
      to[tensor] = share(of_tensor[tensor], numbers[tensor]);
      clipped += of_tensor[tensor];
      all += numbers[tensor];
    }
    if (i < s.directions) to[kX] = shares.clipped_inputs;
  }
  shares.clipped_units = share(clipped, all);
  return shares;
}

}  // namespace isobit::cuda
