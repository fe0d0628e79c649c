// SPDX-License-Identifier: Apache-2.0
// Bit widths, calibration methods, scales and tables of a GRU, searched for a target. docs/tutorial.md, section 5.
//
// quality: the least SQNR in dB of a layer's output h against the float model, on data that calibration did not see.
// bytes: of the saved model. speed class: of the kernels that the model takes, from what they have to do (SpeedClass).
#ifndef ISOBIT_TUNE_H_
#define ISOBIT_TUNE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "isobit/compare.h"
#include "isobit/gru.h"
#include "isobit/sequences.h"
#include "isobit/status.h"

namespace isobit {

/// What a model costs at run time, fastest first; of a model, that of its slowest layer.
enum class SpeedClass : int32_t {
  kTablesInRegisters = 1,  // x, h and weights of at most 8 bits, gate inputs and outputs too
  kTablesGathered = 2,     // x, h and weights of at most 8 bits
  kWideStates = 3,         // x or h of 9 to 16 bits: two products where there was one
  kWideSums = 4,           // 64-bit sums
  kWideWeights = 5,        // weights above 8 bits: two or three products where there was one
  kReference = 6,          // no fast kernel
};
/// "8-bit states, tables in registers", ...
std::string_view to_string(SpeedClass speed);
/// By the widths of x, h, weights, gate inputs and outputs, and of the sums in the overflow proof.
SpeedClass speed_class(const GruModel& model);

/// The options of `isobit quantize` as text, and what they mean.
struct GruSettings {
  std::string bits = "8";         // apply_bits()
  std::string method = "minmax";  // apply_methods()
  std::string table = "default";  // apply_tables()
  ScaleKind scale = ScaleKind::kPow2;
  Rounding rounding = Rounding::kNearestEven;
  std::string reason{};           // why; saved with the model

  /// The quantisation that the texts stand for; its notes hold the texts.
  [[nodiscard]] Result<GruQuantization> quantization() const;
  /// "--bits SPEC --method M ...", quoted for a shell; options that have their defaults are left out.
  [[nodiscard]] std::string command_options() const;
};

/// `text` as one word of a shell: as it is where nothing in it needs quotes.
std::string shell_quoted(const std::string& text);

/// A model that was tried.
struct GruTunePoint {
  GruSettings settings;
  double quality = 0;             // dB, or the metric's number
  GruOutputSqnr sqnr;             // on the validation data
  int64_t bytes = 0;              // of the saved model
  SpeedClass speed = SpeedClass::kReference;
};

struct GruTuneProgress {
  double fraction = 0;                 // 0 to 1, an estimate
  int64_t evaluations = 0;             // models tried
  const GruTunePoint* best = nullptr;  // by SQNR: what would be chosen now, or the best quality; null before the first
};

/// At most one of target, max_bytes and like; none of them is kDefaultTargetDb. With a metric the target is in its
/// units.
struct GruTuneOptions {
  static constexpr double kDefaultTargetDb = 35;
  std::optional<double> target{};            // least quality, at the fewest bytes
  std::optional<int64_t> max_bytes{};        // most bytes, at the best quality
  std::optional<GruSettings> like{};         // at most the bytes of their tensors, at least their quality
  std::optional<ScaleKind> scale{};          // the only kind to try; default both, power of two first
  std::optional<std::string> method{};       // the only methods to try, as in GruSettings
  std::optional<std::string> table{};        // the only tables to try, as in GruSettings
  Rounding rounding = Rounding::kNearestEven;
  /// The user's own quality of a model, higher is better. The search itself goes by SQNR; the metric judges the models
  /// of its front, cheapest first, until one reaches the target. An error ends the search.
  std::function<Result<double>(const GruModel&)> metric{};
  /// Called after every model; false ends the search with what was found so far.
  std::function<bool(const GruTuneProgress&)> progress{};
  ThreadPool* pool = nullptr;

  /// Of `like`: these widths, with what else the search fixes.
  [[nodiscard]] GruSettings settings_with(const std::string& bits) const;
};

struct GruTuneResult {
  /// The models that no other one beats in quality, bytes, speed class and kind of scale (powers of two are better) at
  /// once, by descending quality.
  std::vector<GruTunePoint> front;
  GruTunePoint chosen;            // settings.reason says why, where that fits into max_bytes
  bool reached = false;           // whether the target, or the limit of bytes, is met
  bool judged = false;            // qualities are the metric's; else dB
  bool interrupted = false;
  int64_t evaluations = 0;        // models tried
  std::optional<GruModel> model;  // the chosen one
};

/// What tune_gru() refuses of options alone.
Status check_tune_options(const GruTuneOptions& options);

/// Searches. Starts with 16 bits for every tensor and takes away, since what narrow tensors do to each other cannot be
/// seen by widening them one by one. Widths are 16, 12 and 8 bits for x, h, gate inputs and outputs, 16, 8, 4, 2 and 1
/// for W and R, 16 and 8 for biases; ih and hh keep 16, as fewer make nothing smaller or faster. u may have 8 bits with
/// 255 steps, so that 1 has a code.
/// The result depends on weights, data and options alone, not on threads or time.
/// Errors: kInvalidArgument for options that contradict each other or that no model can have, and for a validation of
/// other weights than the calibrator's; kFailedPrecondition without calibration or validation data; the metric's own. A
/// target that nothing reaches is no error: `reached`.
Result<GruTuneResult> tune_gru(const GruCalibrator& calibrator, GruValidation& validation,
                               const GruTuneOptions& options = {});

/// GruTuneOptions::metric as a command: a shell runs COMMAND FLOAT.npz INTEGER.npz MODEL, and the last word that it
/// prints is the quality. The files hold the outputs of the float and of the integer model on every array of the
/// validation data, [T, N, directions * H], and the integer model.
class GruCommandMetric {
 public:
  /// kIo where there can be no temporary folder. zoneout: of the float model, see GruFloatArguments.
  static Result<GruCommandMetric> create(std::string command, const GruWeights& weights, float zoneout = 0.0f);
  GruCommandMetric(GruCommandMetric&&) noexcept;
  GruCommandMetric& operator=(GruCommandMetric&&) noexcept;
  ~GruCommandMetric();

  /// The outputs get the array's name, in an npy the file's; where several have the same name, with a number.
  Status add(Sequences data);
  /// kInvalidArgument, with the name of the option, where the command fails or its last word is no finite number.
  Result<double> operator()(const GruModel& model);

 private:
  struct Impl;
  explicit GruCommandMetric(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobit

#endif  // ISOBIT_TUNE_H_
