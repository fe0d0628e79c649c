// SPDX-License-Identifier: Apache-2.0
// FP16 tables: activation functions of hardware that interpolates in a small table of floats. docs/numerics.md,
// section 13.
// Values in and out are float16 codes here; float32 and bfloat16 are rounded to float16 first.
#ifndef ISOBIT_FP16_TABLE_H_
#define ISOBIT_FP16_TABLE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/status.h"

namespace isobit {

class ArrayReader;

/// How a table is evaluated.
enum class Fp16Model : int32_t {
  kF32 = 0,     // "f32": float32 throughout, one fused multiply-add
  kNliGpu = 1,  // "nli_gpu": the published GPU code; difference and division of the scale rounded to float16
  kNliCpu = 2,  // "nli_cpu": the published CPU code; x - c and the product rounded too, no fused multiply-add
};
std::string_view to_string(Fp16Model model);
std::optional<Fp16Model> fp16_model_from_string(std::string_view text);

/// What is done before and after the look-up; docs/numerics.md, section 13.
enum class Fp16Reduction : int32_t {
  kNone = 0,
  kSin = 1,         // x = k pi/2 + r; pieces[0] is sin, pieces[1] is cos on r in [-pi/4, pi/4]
  kCos = 2,
  kExp = 3,         // x = k ln 2 + r, table of e^r, times 2^k
  kLog = 4,         // x = 2^k m, m in [sqrt(1/2), sqrt(2)), k ln 2 + table of log m
  kReciprocal = 5,  // x = 2^k m, m in [1, 2)
  kRsqrt = 6,       // x = 2^k m, k even, m in [1, 4)
  kSqrt = 7,
  kInverseSigmoid = 8,  // NaN outside [0, 1], infinite at its ends, no change of the argument between
};
std::string_view to_string(Fp16Reduction reduction);

/// One piecewise linear function: n intervals between n + 1 cut points, interval i cut into steps[i] equal steps.
struct Fp16Pieces {
  std::vector<int32_t> steps;     // of each interval, 1..4096
  std::vector<float> cut_points;  // n + 1, finite, not descending; float16 numbers where there is no range reduction
  std::vector<float> scales;      // n: steps[i] / (cut_points[i + 1] - cut_points[i]) as the model rounds it; 0 where
                                  // the cut points are equal
  std::vector<float> values;      // sum of steps + 1; value of step j of interval i at sum of steps before i + j
  bool operator==(const Fp16Pieces&) const = default;
};

/// Errors over every finite float16 input, in units of the last place of the correctly rounded float16 result (the
/// spacing of float16 numbers there) and absolute. Results that should be infinite or NaN must be that, and count as
/// exact then; else the error is infinite.
struct Fp16Certificate {
  double max_ulp = 0;
  double mean_ulp = 0;
  uint16_t worst_code = 0;     // smallest code, as an unsigned integer, with max_ulp
  double max_absolute = 0;
  double share_exact = 0;      // 0..1
  double share_within_ulp = 0;
  bool operator==(const Fp16Certificate&) const = default;
};

struct Fp16Table {
  std::string function;  // "silu", ...; "custom" for a function of the user's own
  double beta = 1.0;     // swish; else 1
  Fp16Model model = Fp16Model::kF32;
  bool half_values = false;  // values are float16 numbers
  Fp16Reduction reduction = Fp16Reduction::kNone;
  std::vector<Fp16Pieces> pieces;  // one; two for kSin and kCos
  Fp16Certificate certificate;

  /// The normative evaluation: float16 code to float16 code.
  [[nodiscard]] uint16_t operator()(uint16_t x) const;
  bool operator==(const Fp16Table&) const = default;
};

/// Steps of the published table: 1, eight times 32, 1; 259 entries.
inline std::vector<int32_t> fp16_steps_259() { return {1, 32, 32, 32, 32, 32, 32, 32, 32, 1}; }

/// Steps of intervals as text, NxM for N intervals of M: "1,8x32,1". At most 256 intervals of 1 to 4096 steps.
Result<std::vector<int32_t>> parse_fp16_steps(std::string_view text);

/// Fills the scales from cut points, steps and model.
void set_scales(Fp16Pieces& pieces, Fp16Model model);

/// Checks sizes, order, finiteness and scales of a table that came from outside; `name` is the table in messages.
Status check_fp16_table(const Fp16Table& table, std::string_view name);

/// Names of the functions that isobit knows, in a fixed order.
std::vector<std::string_view> fp16_functions();
bool is_fp16_function(std::string_view name);

/// The correctly rounded float16 result of a function at every float16 code. `beta` is for swish only.
Result<std::vector<uint16_t>> fp16_exact(std::string_view function, double beta = 1.0);

/// The same for a function of the user's own; `values` as in fit_fp16_table.
Result<std::vector<uint16_t>> fp16_exact(const std::vector<double>& values);

/// The same for the function of a table. `values_file`: load_fp16_values() where that is the user's own, else empty.
Result<std::vector<uint16_t>> fp16_exact(const Fp16Table& table, const std::string& values_file = {});
/// Values of a function of the user's own: an npy file with 65536 float64.
Result<std::vector<double>> load_fp16_values(const std::string& path);

/// Compares a table with exact results (65536 codes).
Result<Fp16Certificate> certify(const Fp16Table& table, const std::vector<uint16_t>& exact);

/// Whether the table's certificate is what certify() gives, and its max_ulp at most `limit`. kFailedPrecondition where
/// it is not.
Status check_fp16_certificate(const Fp16Table& table, const std::vector<uint16_t>& exact, double limit);

/// What the built-in table of a function promises: its largest max_ulp, infinite where nothing is promised.
/// docs/tables.md.
double promised_ulp(std::string_view function, Fp16Model model, bool half_values);

/// Finite float16 inputs at which two tables give other bits.
struct Fp16Difference {
  int64_t inputs = 0;
  int64_t different = 0;
  std::optional<uint16_t> first_code{};  // the smallest of them, as an unsigned integer, and both results there
  double first_input = 0;                // what it stands for
  uint16_t first_result = 0, second_result = 0;
};
Result<Fp16Difference> compare_fp16_tables(const Fp16Table& first, const Fp16Table& second);

enum class Fp16Goal : int32_t {
  kMaxUlp = 0,  // "max_ulp": the largest error in ULP of the rounded result
  /// "mean_relative": the mean of |T(x) - f(x)| / max(|f(x)|, 2^-14) over all finite float16 inputs x whose exact result
  /// is finite, where T(x) is the float16 result of the table and f(x) the real value, not the rounded one. 2^-14 is
  /// the smallest normal float16 number: results below it, and 0, have its absolute precision, not a relative one.
  /// Results that should be infinite or NaN are left out of the mean, but a table that gives them where it can is
  /// preferred. This goal takes longer, and its mean is never above that of a fit for kMaxUlp.
  kMeanRelative = 1,
};

struct Fp16FitOptions {
  Fp16Model model = Fp16Model::kF32;
  bool half_values = false;
  Fp16Goal goal = Fp16Goal::kMaxUlp;
  std::vector<int32_t> steps = fp16_steps_259();
  double beta = 1.0;  // swish
  /// A plain table over [low, high], constant beyond it, where the function would have range reduction.
  bool plain = false;
  float low = -65504.0f;
  float high = 65504.0f;
  /// Optional: receives `progress_context` and the share done, 0 to 1, from the caller's thread.
  void (*progress)(void* context, double fraction) = nullptr;
  void* progress_context = nullptr;
};

/// Chooses cut points and values together and certifies the result; deterministic. Range reduction is used for sin,
/// cos, exp, log, reciprocal, rsqrt and sqrt, unless the options say `plain`.
Result<Fp16Table> fit_fp16_table(std::string_view function, const Fp16FitOptions& options);

/// A function of the user's own: f(x) for each of the 65536 float16 codes in ascending order of the code as an unsigned
/// integer; values at NaN codes are ignored, those between the smallest and largest finite code must be finite.
Result<Fp16Table> fit_fp16_table(const std::vector<double>& values, const Fp16FitOptions& options);

/// A table with given cut points and values sampled from the function at each step, as the published implementation
/// makes it.
Result<Fp16Table> import_fp16_table(std::string_view function, const std::vector<float>& cut_points,
                                    const Fp16FitOptions& options);

/// A table that isobit carries (src/table/fp16/fitted/): every function of fp16_functions() with its range reduction, every
/// model, float32 and float16 values, 259 of them a piece, fitted for kMaxUlp; swish with beta 1.
Result<Fp16Table> builtin_fp16_table(std::string_view function, Fp16Model model = Fp16Model::kF32,
                                     bool half_values = false);

/// The built-in table of the function that `table` names, else the table that the file `table` holds. Model and type of
/// the values are those of a built-in table.
Result<Fp16Table> find_fp16_table(const std::string& table, Fp16Model model = Fp16Model::kF32,
                                  bool half_values = false);
/// kIo, with the nearest name, for what is neither a function, nor "softmax" where that may stand, nor a file.
Status check_table_name(const std::string& name, bool or_softmax = false);
/// Opens a file whose name may have been meant for that of a function, which the message of a missing file says.
Result<ArrayReader> open_table_file(const std::string& path);

/// One safetensors file a table, docs/formats.md. A file gets no more trust than a caller: loading checks all that
/// check_fp16_table does. It does not compute the certificate again; that needs the exact function (`certify`).
Status save_fp16_table(const std::string& path, const Fp16Table& table);
Result<Fp16Table> load_fp16_table(const std::string& path);
Result<Fp16Table> load_fp16_table(const ArrayReader& file);
/// The same from memory; `name` stands for the file in messages.
Result<Fp16Table> parse_fp16_table(const void* data, size_t size_bytes, const std::string& name);

}  // namespace isobit

#endif  // ISOBIT_FP16_TABLE_H_
