// SPDX-License-Identifier: Apache-2.0
// GRU layers: float weights, calibration, and the integer model. numerics.md, sections 4 to 8.
//
//   u = sigmoid(W_u x + bw_u + R_u h + br_u)      update gate
//   r = sigmoid(W_r x + bw_r + R_r h + br_r)      reset gate
//   n = tanh(W_n x + bw_n + r * (R_n h + br_n))   new gate; the reset is applied after the matrix product
//   h' = u * h + (1 - u) * n
//
// Shapes: T steps, N sequences, C inputs, H hidden units; W [3H, C], R [3H, H], bw and br [3H], gate order u, r, n.
#ifndef ISOBIT_GRU_H_
#define ISOBIT_GRU_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "isobit/calibration.h"
#include "isobit/cpu.h"
#include "isobit/grid.h"
#include "isobit/parallel.h"
#include "isobit/rounding.h"
#include "isobit/run.h"
#include "isobit/status.h"
#include "isobit/table.h"

namespace isobit {

class ArrayReader;
class FloatGru;

/// Order of the three gate blocks in W, R and the biases of a file. isobit computes in kUrn.
enum class GateOrder : int32_t {
  kUrn = 0,   // update, reset, new: isobit
  kRun = 1,   // reset, update, new: PyTorch ("r z n")
  kOnnx = 2,  // update, reset, new under the names z r h: the same blocks as kUrn
};
/// "urn", "pytorch", "onnx".
std::string_view to_string(GateOrder order);
std::optional<GateOrder> gate_order_from_string(std::string_view text);

/// How the matrices of a file lie.
enum class GruLayout : int32_t {
  kRows = 0,     // W [3H, C], R [3H, H]: PyTorch, ONNX
  kColumns = 1,  // W [C, 3H], R [H, 3H]: Keras, Haste
};
/// "rows", "columns".
std::string_view to_string(GruLayout layout);
std::optional<GruLayout> gru_layout_from_string(std::string_view text);

/// What load_gru found out about a file, for those who check it.
struct GruLoadReport {
  GateOrder gate_order = GateOrder::kRun;
  GruLayout layout = GruLayout::kRows;
  bool gate_order_assumed = true, layout_assumed = true, reset_assumed = true;  // the options did not say
  std::vector<std::string> notes;   // what was recognised and done, a clause each: "W (1, 48, 16): ..."
  std::string layout_note;          // why the layout is not the one of the names, where it was not given either
  std::vector<std::string> unused;  // arrays under the prefix that are no part of the GRU
};

/// Float weights of one layer in one direction; gate order u, r, n.
struct GruLayerWeights {
  int64_t input_size = 0;   // C
  int64_t hidden_size = 0;  // H
  std::vector<float> W;     // [3H, C]
  std::vector<float> R;     // [3H, H]
  std::vector<float> bw;    // [3H]
  std::vector<float> br;    // [3H]
};

struct GruWeights {
  /// layers[l * directions + d], d = 0 forward, 1 reverse. Layer l + 1 reads directions * H inputs.
  std::vector<GruLayerWeights> layers;
  int32_t directions = 1;
  std::string name;         // prefix of the arrays in the file, e.g. "enc"
  std::string source_hash;  // of the arrays as read, hexadecimal; part of a saved model
  GruLoadReport report;     // of load_gru

  [[nodiscard]] int64_t layer_count() const { return static_cast<int64_t>(layers.size()) / directions; }
  [[nodiscard]] int64_t input_size() const { return layers[0].input_size; }
  [[nodiscard]] int64_t hidden_size() const { return layers[0].hidden_size; }
  [[nodiscard]] int64_t output_size() const { return hidden_size() * directions; }
};

/// Checks shapes, chaining of layers, and that every value is finite; names tensor and index.
Status check_weights(const GruWeights& weights);

struct GruLoadOptions {
  std::string prefix;                     // empty: the only GRU of the file, else an error that lists the prefixes
  std::optional<GateOrder> gate_order{};  // default: that of the names, see load_gru
  std::optional<bool> reset_after{};      // default: what the file says, else true; false is refused by name
  /// Arrays with names of their own: the PyTorch name that each stands for (PREFIX.weight_ih_l0, ...), and its name in
  /// the file. A bias_ih without bias_hh holds both biases: [6H] or [2, 3H].
  std::map<std::string, std::string> arrays{};
  std::optional<GruLayout> layout{};  // default: what the shapes say, else that of the names
  bool unprefixed = false;            // an empty prefix means the GRU whose arrays have none, also beside others
};
/// Reads a GRU of npz, safetensors, GGUF or ONNX. Names, what follows the prefix, and their defaults:
///
///   weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0   further layers, _reverse; pytorch, rows
///   weight_ih weight_hh bias_ih bias_hh               GRUCell; pytorch, rows
///   w_ih w_hh b_ih b_hh                               pytorch, rows
///   W R B                                             ONNX, [directions, ...]; onnx, rows
///   kernel recurrent_kernel bias [recurrent_bias]     Keras and Haste; onnx, columns
///
/// In an ONNX model the prefix is the name of a GRU node, or "A,B": nodes of which each feeds the next, as layers; by
/// default all nodes, where they are such. First states and lengths that a node takes are in the report's notes.
///
/// Missing biases are zero. Arrays that make the network another function are refused by name: copies beside
/// reparametrised weights (weight_hh_l0_raw, _g and _v, ...), projections, activations other than sigmoid and tanh in
/// the metadata. Other arrays under the prefix are in the report. Errors name the file's own arrays and indices.
Result<GruWeights> load_gru(const std::string& path, const GruLoadOptions& options = {});
Result<GruWeights> load_gru(const ArrayReader& file, const GruLoadOptions& options = {});

/// Arrays with the names of a recurrent network.
struct GruCandidate {
  std::string prefix;
  bool is_gru = false;  // by names and shapes; load_gru may still refuse its values
  std::string problem;  // why it is none: "an LSTM, ...", "has no array ..."
};
/// Every one in a file, sorted by prefix.
Result<std::vector<GruCandidate>> find_grus(const ArrayReader& file);
/// The prefixes of those that are GRUs.
Result<std::vector<std::string>> list_grus(const std::string& path);

// ---------------------------------------------------------------------------------------------------------------
// Float forward

/// y[t, n, :] and final state for x [T, N, C] (time-major). `lengths` (optional, N values in 0..T): past its length a
/// sequence's state is frozen and y is 0. `h0` (optional) and `h_last`: [layers * directions, N, H]. `zoneout`
/// (optional) is the probability p of inference, h' <- p * h + (1 - p) * h'.
struct GruFloatArguments {
  int64_t steps = 0;
  int64_t batch = 0;
  std::span<const float> x;            // [T, N, C]
  std::span<float> y;                  // [T, N, directions * H]; may be empty
  std::span<const int64_t> lengths{};  // [N]
  std::span<const float> h0{};         // [layers * directions, N, H]
  std::span<float> h_last{};           // [layers * directions, N, H]; may be empty
  float zoneout = 0.0f;
};

/// Sees every tensor of the float forward, in float32: one call per tensor, step and sequence. Used by calibration,
/// comparison and training.
class GruObserver {
 public:
  virtual ~GruObserver() = default;
  /// tensor: one of kGruTensorNames' activations. layer: l * directions + d. values: C, H or 3H floats.
  virtual void observe(int32_t tensor, int64_t layer, int64_t sequence, int64_t step,
                       std::span<const float> values) = 0;
};

/// A float GRU, its weights checked and in the order of its loops. Immutable; safe to share between threads. The plain
/// forward of calibration: every sum in ascending order, so that its bits depend on the machine's libm alone.
class GruFloatModel {
 public:
  static Result<GruFloatModel> create(const GruWeights& weights);
  Status forward(const GruFloatArguments& arguments, GruObserver* observer = nullptr) const;

 private:
  GruFloatModel() = default;
  std::shared_ptr<const FloatGru> gru_;
};
/// create() and forward() in one.
Status gru_forward_float(const GruWeights& weights, const GruFloatArguments& arguments,
                         GruObserver* observer = nullptr);

// ---------------------------------------------------------------------------------------------------------------
// Configuration

/// The tensors of one GRU direction, in this order everywhere.
enum GruTensor : int32_t { kX = 0, kH, kW, kR, kBw, kBr, kIh, kHh, kUIn, kRIn, kNIn, kU, kRGate, kN, kGruTensorCount };
/// "x h W R bw br ih hh u_in r_in n_in u r n".
inline constexpr std::array<std::string_view, kGruTensorCount> kGruTensorNames = {
    "x", "h", "W", "R", "bw", "br", "ih", "hh", "u_in", "r_in", "n_in", "u", "r", "n"};

/// Those whose grids are calibrated, and can be learned. The x of a layer is the h of the layer below.
inline constexpr std::array<GruTensor, 7> kGruCalibratedTensors = {kX, kH, kIh, kHh, kUIn, kRIn, kNIn};

/// What is wanted of one layer, both directions alike.
struct GruLayerQuantization {
  std::array<GridOptions, kGruTensorCount> tensors = default_tensors();
  std::array<CalibrationOptions, kGruTensorCount> methods{};  // of calibrated tensors: x h ih hh u_in r_in n_in
  std::optional<TableOptions> table{};                        // default_table_options(bits of the gate input)

  static std::array<GridOptions, kGruTensorCount> default_tensors();
};

/// What is wanted of a model: of every layer, or of those in `layers` instead.
struct GruQuantization : GruLayerQuantization {
  ScaleKind scale = ScaleKind::kPow2;
  Rounding rounding = Rounding::kNearestEven;
  std::map<int64_t, GruLayerQuantization> layers{};
  std::map<std::string, std::string> notes{};  // of GruModelParameters

  [[nodiscard]] const GruLayerQuantization& layer(int64_t l) const;
};

/// Bit widths as a list where later entries win: "8,linear=16,gate_in=12,l1.h=16:symmetric,x=8:unsigned". Each entry is
/// a named setting (below), or [[lL.]NAME=]BITS[:signed|unsigned|symmetric|asymmetric|steps=N]...; NAME is a tensor or
/// a group (all, weights, biases, linear, gate_in, gate_out), lL. restricts it to layer L. lL=BITS is a bare width of
/// one layer. A bare width sets every tensor but the weights' symmetry, and the biases only above 8 bits, to 16. Of the
/// layers above the first, x is the h of the layer below and cannot be set.
Status apply_bits(std::string_view text, GruQuantization& quantization);
/// Calibration methods as a list where later entries win: "minmax,x=ema:0.9,l1.h=sqnr"; NAME as in apply_bits,
/// calibrated tensors only.
Status apply_methods(std::string_view text, GruQuantization& quantization);
/// Kinds of tables as a list where later entries win: "direct,l1=segments:16"; "default" for default_table_options().
Status apply_tables(std::string_view text, GruQuantization& quantization);
/// A list of widths with a name: an entry of apply_bits().
struct NamedBits {
  std::string_view name;  // small, balanced, precise
  std::string_view bits;  // what it stands for
};
std::span<const NamedBits> named_bits();

// ---------------------------------------------------------------------------------------------------------------
// Integer model

/// Codes of a matrix in their narrowest type.
class CodeMatrix {
 public:
  CodeMatrix() = default;
  CodeMatrix(Dtype dtype, int64_t rows, int64_t columns)
      : dtype_(dtype),
        rows_(rows),
        columns_(columns),
        bytes_(static_cast<size_t>(rows * columns) * size_in_bytes(dtype)) {}
  [[nodiscard]] Dtype dtype() const { return dtype_; }
  [[nodiscard]] int64_t rows() const { return rows_; }
  [[nodiscard]] int64_t columns() const { return columns_; }
  [[nodiscard]] const std::byte* data() const { return bytes_.data(); }
  [[nodiscard]] std::byte* data() { return bytes_.data(); }
  [[nodiscard]] int64_t at(int64_t row, int64_t column) const;
  void set(int64_t row, int64_t column, int64_t value);
  bool operator==(const CodeMatrix&) const = default;

 private:
  Dtype dtype_ = Dtype::kS8;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  std::vector<std::byte> bytes_;
};

/// One row of the overflow proof: an intermediate, the largest magnitude that it can take, and the width assigned.
struct OverflowBound {
  std::string intermediate;
  std::string bound;  // decimal; may exceed 64 bits when the proof fails
  int32_t bits = 64;  // 32 or 64
};

/// Every integer of one direction of one layer: what a saved model holds and what the reference reads.
struct GruLayerParameters {
  int64_t input_size = 0;
  int64_t hidden_size = 0;
  std::array<Grid, kGruTensorCount> grids;             // W, R, bw, br: bits and sign only; per row below
  std::vector<Grid> W_grid, R_grid, bw_grid, br_grid;  // [3H] each
  CodeMatrix W, R, bw, br;                             // [3H, C], [3H, H], [3H, 1], [3H, 1]
  std::vector<RescaleParameters> bw_to_acc, br_to_acc, acc_to_ih, acc_to_hh;  // [3H]
  // ih -> u_in, r_in, n_in and hh -> u_in, r_in; r * hh -> n_in; n -> h; u -> 1
  std::array<RescaleParameters, 3> ih_to_gate;
  std::array<RescaleParameters, 2> hh_to_gate;
  RescaleParameters rhh_to_n;
  RescaleParameters n_to_h;
  RescaleParameters u_to_one;
  int64_t one = 0;  // code of 1 on u's grid
  Rounding rounding = Rounding::kNearestEven;
  std::array<ActivationTable, 3> tables;  // u, r, n
};

struct GruModelParameters {
  std::vector<GruLayerParameters> layers;  // l * directions + d
  int32_t directions = 1;
  std::string name;
  std::string source_hash;
  /// How the model was made, as text by key (bits, method, scale, rounding, table, reason). Saved; decides nothing.
  /// At most 64 notes, keys of 1 to 64 bytes, texts of at most 65536 bytes, all UTF-8.
  std::map<std::string, std::string> notes{};
};

/// Bytes of a saved model.
struct GruSizes {
  int64_t weights_bytes = 0;  // codes of W, R, bw and br
  int64_t tables_bytes = 0;   // values of the activation tables
  int64_t other_bytes = 0;    // grids and rescales of rows
  int64_t header_bytes = 0;   // names, shapes and metadata, as text
  [[nodiscard]] int64_t total_bytes() const { return weights_bytes + tables_bytes + other_bytes + header_bytes; }
};

class GruModel;

/// Codes of h for every layer and direction: [layers * directions, N, H] of each layer's own h grid.
class GruState {
 public:
  [[nodiscard]] int64_t batch() const { return batch_; }
  /// Codes of one layer-direction, [N, H] of its h grid's dtype.
  [[nodiscard]] std::span<std::byte> layer(int64_t index) { return layers_[static_cast<size_t>(index)]; }
  [[nodiscard]] std::span<const std::byte> layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  [[nodiscard]] int64_t layer_count() const { return static_cast<int64_t>(layers_.size()); }

 private:
  friend class GruModel;
  int64_t batch_ = 0;
  std::vector<std::vector<std::byte>> layers_;
};

/// Receives codes of every tensor of the reference forward; widened to int64. See GruObserver.
class GruCodeObserver {
 public:
  virtual ~GruCodeObserver() = default;
  virtual void observe(int32_t tensor, int64_t layer, int64_t sequence, int64_t step,
                       std::span<const int64_t> codes) = 0;
};

/// An integer GRU. Immutable; safe to share between threads.
class GruModel {
 public:
  /// Validates every field, derives the overflow proof, packs the weights for each path. kOverflow names the
  /// intermediate and its bound. Tables that `tables` has made are not checked again.
  static Result<GruModel> create(GruModelParameters parameters, const TableCache* tables = nullptr);
  static Result<GruModel> load(const std::string& path, std::string_view name = {});  // name: of several GRUs in a file
  static Result<GruModel> load(const ArrayReader& file, std::string_view name = {});
  static Result<std::vector<GruModel>> load_all(const std::string& path);
  static Result<std::vector<GruModel>> load_all(const ArrayReader& file);
  [[nodiscard]] Status save(const std::string& path) const;
  /// The content of the file that save() writes; ArrayReader::view reads it.
  [[nodiscard]] Result<std::vector<std::byte>> saved_bytes() const;
  static Status save_all(const std::string& path, std::span<const GruModel* const> models);
  /// Of the file that save() writes.
  [[nodiscard]] Result<GruSizes> sizes() const;

  [[nodiscard]] const GruModelParameters& parameters() const;
  [[nodiscard]] int64_t layer_count() const;
  [[nodiscard]] int64_t input_size() const;
  [[nodiscard]] int64_t hidden_size() const;
  [[nodiscard]] int64_t output_size() const;
  [[nodiscard]] const Grid& input_grid() const;
  [[nodiscard]] const Grid& output_grid() const;
  [[nodiscard]] const std::vector<OverflowBound>& overflow_proof(int64_t layer) const;
  /// Whether `path` computes this model, and why not.
  [[nodiscard]] Status supports(CpuPath path) const;
  /// The path that a run with `requested` (or the default) takes.
  [[nodiscard]] Result<CpuPath> choose_path(std::optional<CpuPath> requested) const;

  /// Every code of h is z_h.
  [[nodiscard]] GruState initial_state(int64_t batch) const;
  /// A float state [layers * directions, N, H], quantised on each layer's h grid.
  [[nodiscard]] Result<GruState> state_from_float(std::span<const float> h, int64_t batch) const;
  void state_to_float(const GruState& state, std::span<float> h) const;
  /// The state of another model with as many layers, directions and hidden units, requantised to this one's h grids.
  [[nodiscard]] Result<GruState> state_from(const GruModel& other, const GruState& state) const;

  /// Enough for calls of up to `steps` steps of `batch` sequences on up to `threads` threads.
  [[nodiscard]] int64_t workspace_bytes(int64_t batch, int64_t steps, int32_t threads = 1) const;
  [[nodiscard]] Workspace workspace(int64_t batch, int64_t steps, int32_t threads = 1) const;

  /// x [T, N, C], y [T, N, directions * H]; N is the state's. Continues from `state` and leaves the last state there
  /// (bidirectional models: the reverse direction starts anew from `state` in each call, and options.whole_sequence
  /// must be set). Allocates nothing.
  ///   x_dtype and y_dtype f32: x is quantised on input_grid(), y dequantised from output_grid().
  ///   x_dtype input_grid().dtype(), y_dtype output_grid().dtype(): codes of these grids in and out.
  /// Errors: kUnsupported for other types; kInvalidArgument for sizes, lengths, masks, strides of rows, a state of
  /// another model, a workspace that is too small, or a NaN of x, by its index; those of choose_path. Nothing is
  /// written then.
  [[nodiscard]] Status forward(std::span<const std::byte> x, Dtype x_dtype, std::span<std::byte> y, Dtype y_dtype,
                               int64_t steps, GruState& state, Workspace& workspace,
                               const RunOptions& options = {}) const;
  /// The same of floats.
  [[nodiscard]] Status forward(std::span<const float> x, std::span<float> y, int64_t steps, GruState& state,
                               Workspace& workspace, const RunOptions& options = {}) const {
    return forward(std::as_bytes(x), Dtype::kF32, std::as_writable_bytes(y), Dtype::kF32, steps, state, workspace,
                   options);
  }
  /// The same of codes: elements of input_grid().dtype() and output_grid().dtype().
  [[nodiscard]] Status forward_codes(std::span<const std::byte> x, std::span<std::byte> y, int64_t steps,
                                     GruState& state, Workspace& workspace, const RunOptions& options = {}) const {
    return forward(x, input_grid().dtype(), y, output_grid().dtype(), steps, state, workspace, options);
  }
  /// The reference on codes, with every intermediate shown. Time-major.
  [[nodiscard]] Status forward_observed(std::span<const std::byte> x, std::span<std::byte> y, int64_t steps,
                                        GruState& state, GruCodeObserver& observer,
                                        const RunOptions& options = {}) const;

 private:
  friend class GruQatRun;
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// Float forward over calibration data with statistics of every tensor, then integers. Holds no copy of the data.
class GruCalibrator {
 public:
  static Result<GruCalibrator> create(GruWeights weights, double ema_decay = 0.9);
  /// The same with the decay of each tensor's method where that is `ema`, else 0.9.
  static Result<GruCalibrator> create(GruWeights weights, const GruQuantization& quantization);

  /// x [T, N, C]; h0 (optional) is observed as a value of h; zoneout as in GruFloatArguments. NaN and infinity are
  /// refused with their index.
  Status observe(std::span<const float> x, int64_t steps, int64_t batch, std::span<const int64_t> lengths = {},
                 std::span<const float> h0 = {}, ThreadPool* pool = nullptr, float zoneout = 0.0f);
  /// Adds statistics of a calibrator with the same weights; exact, in any order.
  Status merge(const GruCalibrator& other);
  [[nodiscard]] const TensorStatistics& statistics(int64_t layer, GruTensor tensor) const;
  [[nodiscard]] const GruWeights& weights() const { return weights_; }

  /// Grids, codes, rescales and tables; the overflow proof decides. kFailedPrecondition when nothing was observed.
  /// `tables` (optional) fits the tables.
  [[nodiscard]] Result<GruModelParameters> derive(const GruQuantization& quantization,
                                                  TableCache* tables = nullptr) const;
  [[nodiscard]] Result<GruModel> finish(const GruQuantization& quantization, TableCache* tables = nullptr) const;

 private:
  GruCalibrator() = default;
  GruWeights weights_;
  std::vector<std::array<TensorStatistics, kGruTensorCount>> statistics_;  // [layers * directions]
};

/// The grids of rows of W and R: derived from the weights, or those that the model has, but for nearly dead rows, whose
/// bias would not fit. Those of biases are derived.
enum class GruRowGrids : int32_t { kDerived, kKept };
/// `model` with other weights: grids and tables of activations stay; W, R and biases are quantised anew, as
/// GruCalibrator::derive does with `quantization`, and rescales follow. kKept: W and R on the grids of rows that `model`
/// has; weights outside are clamped. Errors: kInvalidArgument for other sizes, those of check_weights and of derive.
Result<GruModelParameters> with_weights(GruModelParameters model, const GruWeights& weights,
                                        const GruQuantization& quantization, GruRowGrids rows = GruRowGrids::kDerived);

/// Another grid for an activation: one of shift, scale and range.
struct GruGridChange {
  int64_t layer = 0;               // l * directions + d; directions share x and h: of either, they are those of both
  GruTensor tensor = kH;           // of kGruCalibratedTensors, x of the first layer only
  std::optional<int32_t> shift{};  // -32..62: the step is 2^-shift, of models with such; bits, sign and z stay
  std::optional<float> scale{};    // positive, normal: the step, of models with real scales; bits, sign and z stay
  std::optional<std::pair<double, double>> range{};  // low, high: section 4, with the GridOptions of `quantization`
};
/// with_weights() after changes of grids: tables of other gate inputs, by `tables` where it is given, and all rescales
/// are as GruCalibrator::derive makes them for these grids. Errors: kInvalidArgument, naming layer and tensor, for a
/// tensor whose grid is no calibrated one, for a step out of range, for a grid that is changed twice or differs between
/// directions; those of with_weights, and of tables.
Result<GruModelParameters> with_grids(GruModelParameters model, std::span<const GruGridChange> changes,
                                      const GruWeights& weights, const GruQuantization& quantization,
                                      TableCache* tables = nullptr, GruRowGrids rows = GruRowGrids::kDerived);

}  // namespace isobit

#endif  // ISOBIT_GRU_H_
