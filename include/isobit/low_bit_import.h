// SPDX-License-Identifier: Apache-2.0
// Low-bit weights that others made, brought into the canonical form without quantising again: quantised tensors of GGUF
// files, and GPTQ and AWQ checkpoints. docs/formats.md says what each type becomes.
//
//   ISOBIT_ASSIGN_OR_RETURN(GgufFile file, GgufFile::load("model.gguf"));
//   ISOBIT_ASSIGN_OR_RETURN(ImportedLowBit imported, import_gguf(file, "blk.0.ffn_up.weight"));
#ifndef ISOBIT_LOW_BIT_IMPORT_H_
#define ISOBIT_LOW_BIT_IMPORT_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/files.h"
#include "isobit/gguf.h"
#include "isobit/low_bit.h"
#include "isobit/status.h"

namespace isobit {

enum class CheckpointFormat : int32_t {
  kGptq = 0,    // zero points are stored minus one
  kGptqV2 = 1,  // zero points are stored as they are
  kAwq = 2,     // the layout "gemm"
};
/// "gptq", "gptq_v2" or "awq".
std::string_view to_string(CheckpointFormat format);
std::optional<CheckpointFormat> checkpoint_format_from_string(std::string_view text);

struct ImportedLowBit {
  LowBitMatrix matrix;
  /// Column j of the matrix belongs to x[permutation[j]]; empty: to x[j]. s32 in LowBitFile::arrays, under
  /// low_bit_permutation_name().
  std::vector<int32_t> permutation;
  /// Groups with a scale of 0 that had codes other than z. Their weights are 0 (or O) whatever the codes; the canonical
  /// form wants z there. Only the sign of such a 0 can change.
  int64_t cleared_groups = 0;
  /// GPTQ: the other one of its two formats, where every zero point is one off 2^(bits-1) and that format would give
  /// 2^(bits-1).
  std::optional<CheckpointFormat> suspected{};
};

/// Of the file's 2-D tensors [N, K]. Dequantised it has the bits of GgufFile::read, but for cleared groups.
///
///   Q4_0, Q8_0     symmetric, 4 and 8 bits, group 32, scales f16 as in the file
///   Q4_1           offset, 4 bits, group 32, f16
///   Q5_0, Q5_1     symmetric and offset, 8 bits (there is no canonical form of 5), group 32, f16
///   Q2_K, Q4_K     offset, 2 and 4 bits, group 16 and 32; S = d * sc and O = -(dmin * m) are products, so f32
///   Q3_K           symmetric, 4 bits, group 16, f32
///   Q5_K           offset, 8 bits, group 32, f32
///   Q6_K           symmetric, 8 bits, group 16, f32
///   IQ4_NL         symmetric, 8 bits: 16 of their 256 codes; group 32, f16
///   TQ2_0          2 bits, group 256, f16; symmetric, or zero_point with z = 1 where a code stands for +2
///
/// kUnsupported, by name, for every other type and number of dimensions; kInvalidFile for a scale that is not finite;
/// kInvalidArgument when there is no such tensor.
Result<ImportedLowBit> import_gguf(const GgufFile& file, std::string_view tensor);
/// Whether import_gguf takes tensors of this type.
bool is_importable(const GgufTensor& tensor);

struct CheckpointOptions {
  CheckpointFormat format = CheckpointFormat::kGptq;
  int32_t bits = 4;     // 2, 4 or 8; AWQ: 4
  int64_t group = 128;  // K or more, or -1: K
  /// GPTQ: every zero point shall be 2^(bits-1); others are refused. Files exist that name the wrong one of the first
  /// two formats, which this shows.
  bool symmetric = false;
  /// GPTQ that does not say whether it is symmetric, which its writers make it by default: a matrix is refused if all
  /// of its zero points are one off (ImportedLowBit::suspected).
  bool symmetric_by_default = false;

  bool operator==(const CheckpointOptions&) const = default;
};

/// What is said about a checkpoint, and where.
struct CheckpointDescription {
  CheckpointOptions options;
  bool format_assumed = false;  // GPTQ without a checkpoint_format: older writers, which had the first one only
  std::string
      source;  // path of the JSON file, or of the checkpoint for its own metadata; empty: the caller's word only
  /// What the source says otherwise than the caller, whose word counts: "quant_method 'auto-round'".
  std::vector<std::string> overruled;
};

/// "gptq, 4 bits, group 128, as quantize_config.json says".
std::string checkpoint_text(const CheckpointDescription& description);

/// What the caller of find_checkpoint_description says.
struct CheckpointOverrides {
  std::optional<CheckpointFormat> format{};
  std::optional<int32_t> bits{};
  std::optional<int64_t> group{};
};

/// Where a checkpoint is described, beside it.
inline constexpr std::array<std::string_view, 3> kCheckpointDescriptionFiles = {"quantize_config.json",
                                                                                "quant_config.json", "config.json"};

/// Looks beside the checkpoint at `path` for kCheckpointDescriptionFiles (of config.json its "quantization_config"),
/// then into `metadata` of safetensors (gptq_bits, gptq_group_size); the first that says something counts. Nothing:
/// none does, and `overrides` lacks a field. kUnsupported, by name, for what would be read wrongly: other methods,
/// widths and layouts, widths that differ by layer. `overrides` count before all of them; with a format no zero point
/// is refused, and with all three nothing that a description says is refused either.
Result<std::optional<CheckpointDescription>> find_checkpoint_description(
    const std::string& path, const std::map<std::string, std::string>& metadata,
    const CheckpointOverrides& overrides = {});

/// Claims the checkpoint at `path`, and what lies beside it, as read; `what` names the argument in messages.
Status claim_checkpoint(const std::string& path, const std::string& what, FileClaims& files);

/// Prefixes P of the tensors P.qweight and P.qzeros, sorted: of a matrix without one of them, too, which
/// import_checkpoint refuses.
std::vector<std::string> list_checkpoint_matrices(const std::map<std::string, Array>& arrays);

/// The matrix [N, K] of the tensors `prefix`.qweight, .qzeros, .scales and, GPTQ, .g_idx: zero_point, or symmetric
/// where every z is 2^(bits-1); scales as in the file. Columns of GPTQ with groups in the order of activations (g_idx)
/// are sorted by group, and `permutation` says how. kInvalidFile for tensors that are missing or do not fit each other
/// or `options`, which the message names. `name` stands for the file in messages.
Result<ImportedLowBit> import_checkpoint(const std::map<std::string, Array>& arrays, const std::string& prefix,
                                         const CheckpointOptions& options, const std::string& name);

// ---------------------------------------------------------------------------------------------------------------
// Weights that other tools quantised in formats that are not imported (MLX, bitsandbytes, compressed-tensors, FP8, ...)

/// A tensor as a file lists it.
struct ListedTensor {
  std::string name;
  std::string type;  // as isobit spells it ("s8"), or as the file does ("I8", "F8_E4M3")
  std::vector<int64_t> shape;
};
std::vector<ListedTensor> list_tensors(const ArrayReader& file);

/// What a file holds in one of these formats.
struct ForeignFormat {
  std::string name;      // "MLX"
  std::string sign;      // what shows it, of the first matrix: "'fc.weight' is u32 beside 'fc.scales' and 'fc.biases'"
  int64_t matrices = 0;  // tensors of codes
  /// Codes, scales and what else belongs to them, sorted: none of them holds weights as floats.
  std::vector<std::string> tensors;
};

/// By names and types alone: whatever has no float type and has scales beside it is found, under a name of its own or
/// as that of another tool. GPTQ and AWQ are left out.
std::vector<ForeignFormat> find_foreign_formats(const std::vector<ListedTensor>& tensors);

/// What a JSON file beside the model at `path` says of a quantisation other than GPTQ and AWQ: "DIR/config.json says
/// quant_method 'fp8'". Nothing: none does, or none of `tensors` can hold codes, so that the file speaks of something
/// else.
Result<std::optional<std::string>> find_foreign_description(const std::string& path,
                                                            const std::vector<ListedTensor>& tensors);

}  // namespace isobit

#endif  // ISOBIT_LOW_BIT_IMPORT_H_
