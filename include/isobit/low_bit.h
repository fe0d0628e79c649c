// SPDX-License-Identifier: Apache-2.0
// Weights of 1, 2, 4 and 8 bits: the canonical form that every importer writes and every kernel packs from, quantisers,
// and the saved form. docs/numerics.md, section 9.
//
// W is [N, K]: N rows (outputs), K columns (inputs). Each row is cut into G = ceil(K / group) groups along k; the last
// one may be short. With g = floor(k / group) and codes w in 0..2^bits - 1:
//
//   W[n, k] = S[n, g] * v[n, k] + O[n, g]
//
//   kind        v                                               O
//   symmetric   w - 2^(bits-1); bits = 1: 2w - 1, that is +-1   none
//   zero_point  w - z[n, g], z an integer in 0..2^bits          none
//   offset      w - z, one z for the matrix, 0 or 2^(bits-1)    a floating-point number, like S
//
//   ISOBIT_ASSIGN_OR_RETURN(ArrayFile file, load_arrays("model.safetensors"));
//   ISOBIT_ASSIGN_OR_RETURN(LowBitMatrix matrix, quantize_low_bit(file.arrays["fc.weight"], {.bits = 4}, "fc.weight"));
//   ISOBIT_ASSIGN_OR_RETURN(double decibels, sqnr(file.arrays["fc.weight"], matrix, "fc.weight"));
//   Status status = save_low_bit("packed.safetensors", {.matrices = {{"fc.weight", matrix}}});
#ifndef ISOBIT_LOW_BIT_H_
#define ISOBIT_LOW_BIT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/dtype.h"
#include "isobit/parallel.h"
#include "isobit/status.h"

namespace isobit {

enum class LowBitKind : int32_t { kSymmetric = 0, kZeroPoint = 1, kOffset = 2 };
/// "symmetric", "zero_point" or "offset".
std::string_view to_string(LowBitKind kind);
std::optional<LowBitKind> low_bit_kind_from_string(std::string_view text);

/// The canonical form. N and K are 1..2^31 - 1.
struct LowBitParameters {
  int64_t rows = 0;     // N
  int64_t columns = 0;  // K
  int32_t bits = 4;     // 1, 2, 4 or 8
  int64_t group = 64;   // elements of a group: K, or a multiple of 8 below K
  LowBitKind kind = LowBitKind::kSymmetric;
  int32_t zero_point = 0;  // kOffset: z, 0 or 2^(bits-1); else 0
  /// u8 [N, row_bytes]: element k of a row in bits (k * bits) mod 8 of byte floor(k * bits / 8), low bits first. A row
  /// is padded with zeros to a multiple of 4 bytes.
  Array codes;
  Array scales;       // S: f32, f16 or bf16 [N, G]
  Array zero_points;  // kZeroPoint: z, u8 [N, G], for 8 bits u16; else empty
  Array offsets;      // kOffset: O, [N, G] in the type of the scales; else empty
  bool operator==(const LowBitParameters&) const = default;
};
/// "4 bits symmetric, group 64, f16".
std::string form_text(const LowBitParameters& parameters);

/// A checked canonical form; immutable.
class LowBitMatrix {
 public:
  /// Checks every field; `name` is the matrix in messages. Scales and offsets must be finite, and so must every number
  /// that a code of the group can stand for, as float32. Scales may be negative (GGUF has such). A scale of zero is
  /// accepted only where it loses nothing: all codes of its group are z (1 in the symmetric kind of 1 bit).
  static Result<LowBitMatrix> create(LowBitParameters parameters, std::string_view name);

  [[nodiscard]] const LowBitParameters& parameters() const { return parameters_; }
  [[nodiscard]] int64_t rows() const { return parameters_.rows; }
  [[nodiscard]] int64_t columns() const { return parameters_.columns; }
  /// G.
  [[nodiscard]] int64_t groups() const;
  /// Of a row of codes: a multiple of 4.
  [[nodiscard]] int64_t row_bytes() const;
  /// Codes, scales, zero points and offsets, in memory as in a file.
  [[nodiscard]] int64_t size_bytes() const;
  /// Bits of size_bytes() for each weight.
  [[nodiscard]] double bits_per_weight() const;

  /// Elements; n in 0..N-1, k in 0..K-1, g in 0..G-1.
  [[nodiscard]] uint32_t code(int64_t n, int64_t k) const;       // w
  [[nodiscard]] int32_t value(int64_t n, int64_t k) const;       // v
  [[nodiscard]] float scale(int64_t n, int64_t g) const;         // S, widened exactly
  [[nodiscard]] float offset(int64_t n, int64_t g) const;        // O; 0 unless kOffset
  [[nodiscard]] int32_t zero_point(int64_t n, int64_t g) const;  // z; of 1 bit symmetric, which has none: 1

  /// w[n * K + k] = W[n, k] in float32: S * v rounded to nearest even; kOffset: O added in a second rounding. Refuses a
  /// span that has not N * K elements. Without a pool: on the caller's thread.
  Status dequantize(std::span<float> w, ThreadPool* pool = nullptr) const;

  bool operator==(const LowBitMatrix&) const = default;

 private:
  explicit LowBitMatrix(LowBitParameters parameters) : parameters_(std::move(parameters)) {}

  LowBitParameters parameters_;
};

// ---------------------------------------------------------------------------------------------------------------
// Quantisers

enum class LowBitMethod : int32_t {
  kAbsmax = 0,  // S from the largest magnitude; kSymmetric only
  kMinmax = 1,  // S (and z or O) from smallest and largest value; kZeroPoint and kOffset only
  /// The range of the above times 1 - i/64, i = 0..31: the one with the least squared error; every kind. Without a
  /// range, kSymmetric of 1 bit, it is kAbsmax.
  kMse = 2,
};
/// "absmax", "minmax" or "mse".
std::string_view to_string(LowBitMethod method);
std::optional<LowBitMethod> low_bit_method_from_string(std::string_view text);
/// What isobit pack takes: kMse at 1 and 2 bits, where a range that no weight leaves costs most of the codes; else
/// kAbsmax for kSymmetric, kMinmax for the other kinds.
LowBitMethod default_low_bit_method(int32_t bits, LowBitKind kind);

struct LowBitOptions {
  int32_t bits = 4;    // 1, 2, 4 or 8
  int64_t group = 64;  // K, or a multiple of 8 below K
  LowBitKind kind = LowBitKind::kSymmetric;
  LowBitMethod method = LowBitMethod::kAbsmax;
  Dtype scales = Dtype::kF32;  // f32, f16 or bf16: type of S and O
};

/// Quantises weights: f32, f16 or bf16 [N, K], N and K at least 1. In float64; each S and O is rounded once to its
/// type, and codes are computed from the rounded ones. The same bytes on every machine and for every pool. An element
/// that is NaN or infinite is refused with its index, and so is an S or O that overflows its type, and an f16 S below
/// 2^-14 that is not 0 (bf16 and f32 hold it). A group whose S is 0 has w = z.
Result<LowBitMatrix> quantize_low_bit(const Array& weights, const LowBitOptions& options, std::string_view name,
                                      ThreadPool* pool = nullptr);

/// 10 * log10(sum W^2 / sum (W - W')^2) in decibels, W' the dequantised matrix, sums in float64 (each row, then the
/// sums of the rows); infinite if there is no error. `weights`: f32, f16 or bf16 [N, K], finite.
Result<double> sqnr(const Array& weights, const LowBitMatrix& matrix, std::string_view name,
                    ThreadPool* pool = nullptr);

// ---------------------------------------------------------------------------------------------------------------
// Weights of convolutions

/// The order of the dimensions of floats. R and S are the kernel's rows and columns.
enum class ConvLayout : int32_t {
  kOhwi = 0,  // [O, R, S, C / groups], as in ConvLayer
  kOihw = 1,  // [O, C / groups, R, S], as in PyTorch and ONNX
  kIohw = 2,  // [C, O / groups, R, S], there, of transposed convolutions
};
/// "ohwi", "oihw" or "iohw".
std::string_view to_string(ConvLayout layout);
std::optional<ConvLayout> conv_layout_from_string(std::string_view text);

/// What a matrix of a convolution's weights does not say of them. It is [O * R * S, C / groups], or
/// [O, R * S * C / groups] with one group a row.
struct ConvWeights {
  int64_t outputs = 1;  // O
  int64_t kernel_rows = 1, kernel_columns = 1;
  int64_t channels = 1;           // C / groups
  int64_t transposed_groups = 0;  // of what was kIohw: its groups, which divide O; else 0

  bool operator==(const ConvWeights&) const = default;
};
/// "3 x 3, 16 -> 8", C / groups -> O.
std::string conv_text(const ConvWeights& weights);
/// Of weights in kOhwi. kInvalidArgument where they have not four dimensions.
Result<ConvWeights> conv_weights_of(const Array& weights, std::string_view name);

/// Floats of another layout in kOhwi. groups: of kIohw, 1 to C, which they divide; of the others 1.
Result<Array> conv_weights_from(const Array& weights, ConvLayout layout, int64_t groups, std::string_view name);

/// Quantises weights in kOhwi as quantize_low_bit() does, to a matrix as of ConvWeights: with groups of options.group
/// channels, or where that is 0 with one group a row.
Result<LowBitMatrix> quantize_conv_weights(const Array& weights, const LowBitOptions& options, std::string_view name,
                                           ThreadPool* pool = nullptr);

// ---------------------------------------------------------------------------------------------------------------
// Saved form: one safetensors file, docs/formats.md

struct LowBitFile {
  std::map<std::string, LowBitMatrix> matrices{};
  /// What was not quantised (biases, norms), as it was. An array NAME.permutation of a matrix NAME is s32 [K], each of
  /// 0..K-1 once: column j of the matrix belongs to x[permutation[j]] (GPTQ with groups in the order of activations).
  std::map<std::string, Array> arrays{};
  /// Other texts of the file, UTF-8, by key; "gguf": what GGUF metadata the weights came with (isobit/gguf.h).
  std::map<std::string, std::string> metadata{};
  /// Of the matrices that are weights of convolutions, which have no permutation.
  std::map<std::string, ConvWeights> convolutions{};

  bool operator==(const LowBitFile&) const = default;
};

/// "NAME.permutation".
std::string low_bit_permutation_name(std::string_view matrix);
/// The permutation of a matrix of a file that was loaded; empty: it has none.
std::vector<int32_t> low_bit_permutation(const LowBitFile& file, std::string_view matrix);

/// The name of a matrix of a file of this path: `name`, or where that is empty the only one's. kInvalidArgument where
/// there is none, with the nearest name.
Result<std::string> find_low_bit_matrix(const LowBitFile& file, const std::string& path, const std::string& name);

/// W [N, K] as float32, its columns in the order of x.
Result<Array> dequantize_low_bit(const LowBitMatrix& matrix, std::span<const int32_t> permutation);
/// A tensor of a file as float32: a matrix as dequantize_low_bit() gives it, of a convolution [O, R, S, C / groups], or
/// an array. kInvalidArgument with the nearest name where there is no such tensor.
Result<Array> low_bit_tensor(const LowBitFile& file, std::string_view name);
/// Puts the columns of `x` [..., K] in the order of the columns of a matrix with this permutation; an empty one changes
/// nothing. kInvalidArgument where the last dimension is not the permutation's.
Status permute_columns(Array& x, std::span<const int32_t> permutation);

/// The file appears whole or not at all; the same content gives the same bytes. There must be a matrix; names must be
/// UTF-8 and not empty, and an array must not have the name of a matrix, or of a tensor of one (NAME.codes, ...).
Status save_low_bit(const std::string& path, const LowBitFile& file);
/// The content of the file that save_low_bit() writes; parse_low_bit() reads it.
Result<std::vector<std::byte>> saved_low_bit(const LowBitFile& file);
/// Checks all that LowBitMatrix::create does: a file gets no more trust than a caller.
Result<LowBitFile> load_low_bit(const std::string& path);
Result<LowBitFile> load_low_bit(const ArrayReader& file);
/// The same from memory; `name` stands for the file in messages.
Result<LowBitFile> parse_low_bit(const void* data, size_t size_bytes, const std::string& name);

}  // namespace isobit

#endif  // ISOBIT_LOW_BIT_H_
