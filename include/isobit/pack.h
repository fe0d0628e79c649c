// SPDX-License-Identifier: Apache-2.0
// A model's weights as low-bit weights: floats are quantised, quantised tensors of GGUF, GPTQ and AWQ are imported as
// they are, the rest is kept. First a plan, which says what becomes of each tensor and refuses what cannot be done,
// then the work. Messages name the options as `isobit pack` does: --include.
//
//   ISOBIT_ASSIGN_OR_RETURN(Packing packing, Packing::plan("model.safetensors", {.bits = 4, .exclude = {"emb*"}}));
//   ISOBIT_ASSIGN_OR_RETURN(const LowBitFile packed, std::move(packing).run());
//   Status status = save_low_bit("packed.safetensors", packed);
#ifndef ISOBIT_PACK_H_
#define ISOBIT_PACK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "isobit/dtype.h"
#include "isobit/low_bit.h"
#include "isobit/low_bit_import.h"
#include "isobit/parallel.h"
#include "isobit/status.h"

namespace isobit {

struct PackOptions {
  // How matrices of floats are quantised: LowBitOptions. With a checkpoint_format and without requantize, bits and
  // group say how the checkpoint is stored.
  std::optional<int32_t> bits{};         // default 4
  std::optional<int64_t> group{};        // default 64; 0, or above K: K
  std::optional<LowBitKind> kind{};      // default kSymmetric
  std::optional<LowBitMethod> method{};  // default default_low_bit_method()
  std::optional<Dtype> scales{};         // default f32
  /// Patterns of names, as in a shell. A tensor that `exclude` names is neither quantised nor imported. Of the others,
  /// matrices of floats that `include` names are quantised. Without `include` all of them are, unless the model holds
  /// quantised tensors.
  std::vector<std::string> include{}, exclude{};
  std::optional<CheckpointFormat> checkpoint_format{};  // default: as a JSON file beside the model says
  bool requantize = false;                              // quantise tensors again that are quantised already
  /// Floats of four dimensions are weights of convolutions in this layout, and matrices to quantise like others: group
  /// counts channels, C / groups of them in place of K; 0: all of an output. Default: they stay as they are.
  std::optional<ConvLayout> conv_layout{};
  std::optional<int64_t> conv_groups{};  // of kIohw; default 1

  /// The defaults filled in.
  [[nodiscard]] LowBitOptions form() const;
};

/// Floats that PackOptions::conv_layout has as weights of a convolution.
struct PackedConv {
  ConvWeights convolution{};
  LowBitMatrix matrix;
  Array floats{};  // in the order of the matrix
};
/// What Packing makes of such weights: f16, bf16, f32 or f64. `conv_layout` is given. Errors: those of
/// conv_weights_from() and quantize_low_bit().
Result<PackedConv> pack_conv(const Array& weights, const PackOptions& options, const std::string& name,
                             ThreadPool* pool = nullptr);

enum class PackAction : int32_t { kQuantize, kImport, kDequantize, kKeep, kLeaveOut, kRefuse };
/// "quantize", "import", "dequantize", "keep", "leave_out" or "refuse".
std::string_view to_string(PackAction action);

/// A tensor of the result.
struct PackTensor {
  std::string name;
  std::string source;  // its name in the model; GPTQ and AWQ: the prefix of its tensors
  std::string type;    // in the model: "f32", "Q4_1", "gptq"
  std::vector<int64_t> shape;
  uint64_t bytes = 0;  // in the model
  PackAction action = PackAction::kKeep;
  std::string refusal{};   // kRefuse: why
  bool quantized = false;  // in the model, in a format that isobit imports
  bool readable = true;    // false: isobit lists tensors of this type and does not read them
  std::string foreign{};   // the format of another tool that the tensor belongs to
};

/// What became of a tensor.
struct PackedTensor {
  std::optional<LowBitMatrix> matrix{};
  std::vector<int64_t> shape{};
  uint64_t bytes = 0;            // in the result; 0: the tensor is not there
  std::optional<double> sqnr{};  // kQuantize: sqnr()
  int64_t cleared_groups = 0;    // ImportedLowBit
  bool permuted = false;         // the result has its permutation, too
  std::optional<CheckpointFormat> suspected{};
};

/// Of a GGUF file.
struct PackedMetadata {
  int64_t values = 0, kept = 0;
  std::vector<std::pair<std::string, std::string>> left_out{};  // keys and why
};

class Packing {
 public:
  /// Reads the model, or its directory, and decides. A tensor that is refused makes run() fail, not plan(). Errors: a
  /// model that cannot be read, options that name nothing or have no effect, a model without a matrix to pack.
  static Result<Packing> plan(const std::string& model, const PackOptions& options);
  Packing(Packing&&) noexcept;
  Packing& operator=(Packing&&) noexcept;
  ~Packing();

  [[nodiscard]] const std::vector<PackTensor>& tensors() const;
  /// Why run() fails, a line for each reason; empty: no tensor is refused.
  [[nodiscard]] const std::string& refusal() const;
  /// How GPTQ and AWQ tensors are read.
  [[nodiscard]] const std::optional<CheckpointDescription>& checkpoint() const;
  [[nodiscard]] const std::optional<PackedMetadata>& metadata() const;

  /// Called after each tensor, in their order.
  using Report = std::function<void(const PackTensor& tensor, const PackedTensor& packed)>;
  /// Packs everything: what save_low_bit() takes. Without a pool: on the caller's thread.
  Result<LowBitFile> run(ThreadPool* pool = nullptr, const Report& report = {}) &&;
  /// Does all that run() does, without a result. Tensors that are refused are reported, too.
  Status rehearse(ThreadPool* pool = nullptr, const Report& report = {}) &&;

 private:
  struct Impl;
  explicit Packing(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace isobit

#endif  // ISOBIT_PACK_H_
