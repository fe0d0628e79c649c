// SPDX-License-Identifier: Apache-2.0
#include "isobit/tune.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calibrate.h"
#include "data.h"
#include "isobit/report.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

namespace fs = std::filesystem;

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

/// The first Ctrl-C asks the search to end, the next one ends the program.
class Interruption {
 public:
  Interruption() : before_(std::signal(SIGINT, on_signal)) {
    if (before_ == SIG_IGN) std::signal(SIGINT, SIG_IGN);
  }
  ~Interruption() { std::signal(SIGINT, before_); }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
  [[nodiscard]] static bool asked() { return asked_ != 0; }

 private:
  static void on_signal(int) {
    asked_ = 1;
    std::signal(SIGINT, SIG_DFL);
  }
  static volatile std::sig_atomic_t asked_;
  void (*before_)(int);
};
volatile std::sig_atomic_t Interruption::asked_ = 0;

/// A folder that is gone when the object is.
class TemporaryFolder {
 public:
  static Result<TemporaryFolder> create() {
    std::error_code error;
    std::string pattern = (fs::temp_directory_path(error) / "isobit-tune-XXXXXX").string();
    if (error || ::mkdtemp(pattern.data()) == nullptr) {
      return Status(StatusCode::kIo, pattern + ": no temporary folder can be made there; TMPDIR names another place");
    }
    return TemporaryFolder(pattern);
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string file(const std::string& name) const { return (fs::path(path_) / name).string(); }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

/// The user's own quality: COMMAND gets two npz files, the outputs of the float and of the integer model on every array
/// of the validation data, and the integer model; the last word that it prints is the number.
class Metric {
 public:
  static Result<Metric> create(std::string command, const GruWeights& weights, float zoneout) {
    ISOBIT_ASSIGN_OR_RETURN(GruFloatModel model, GruFloatModel::create(weights));
    return Metric(std::move(command), std::move(model), weights.output_size(), zoneout);
  }

  /// The outputs have the array's name, in an npy the file's; where several files have the name, with a number.
  Status add(Sequences one) {
    const std::string name = one.array.empty() ? fs::path(one.name).stem().string() : one.array;
    one.name = name;
    for (int64_t i = 2; float_outputs_.contains(one.name); ++i) one.name = name + "_" + std::to_string(i);
    Array y = Array::zeros(Dtype::kF32, {one.steps, one.batch, outputs_});
    GruFloatArguments arguments;
    arguments.steps = one.steps;
    arguments.batch = one.batch;
    arguments.x = one.x;
    arguments.lengths = one.lengths;
    arguments.h0 = one.h0;
    arguments.zoneout = zoneout_;
    arguments.y = {y.data<float>(), static_cast<size_t>(y.size())};
    ISOBIT_RETURN_IF_ERROR(float_.forward(arguments));
    float_outputs_.emplace(one.name, std::move(y));
    validation_.push_back(std::move(one));
    return {};
  }

  /// All data was added: writes the outputs of the float model.
  Status start() {
    ISOBIT_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::create());
    folder_.emplace(std::move(folder));
    return save_npz(folder_->file("float.npz"), float_outputs_);
  }

  Result<double> operator()(const GruModel& model) const {
    std::map<std::string, Array> outputs;
    for (const Sequences& one : validation_) {
      Array y = Array::zeros(Dtype::kF32, {one.steps, one.batch, outputs_});
      GruState state = model.initial_state(one.batch);
      if (!one.h0.empty()) {
        ISOBIT_ASSIGN_OR_RETURN(state, model.state_from_float(one.h0, one.batch));
      }
      Workspace workspace = model.workspace(one.batch, one.steps);
      isobit::RunOptions options;
      options.whole_sequence = true;
      options.lengths = one.lengths;
      ISOBIT_RETURN_IF_ERROR(
          model.forward(one.x, {y.data<float>(), static_cast<size_t>(y.size())}, one.steps, state, workspace, options));
      outputs.emplace(one.name, std::move(y));
    }
    const std::string integer = folder_->file("integer.npz"), path = folder_->file("model.safetensors");
    ISOBIT_RETURN_IF_ERROR(save_npz(integer, outputs));
    ISOBIT_RETURN_IF_ERROR(model.save(path));
    return run(command_ + " " + shell_quoted(folder_->file("float.npz")) + " " + shell_quoted(integer) + " " +
               shell_quoted(path));
  }

 private:
  Metric(std::string command, GruFloatModel model, int64_t outputs, float zoneout)
      : command_(std::move(command)), float_(std::move(model)), outputs_(outputs), zoneout_(zoneout) {}

  [[nodiscard]] Result<double> run(const std::string& line) const {
    std::FILE* const pipe = ::popen(line.c_str(), "r");
    if (pipe == nullptr) return Status(StatusCode::kIo, "--metric " + command_ + ": no shell can be started");
    std::string text;
    char buffer[4096];
    for (size_t count = 0; (count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, count);
    const int state = ::pclose(pipe);
    if (!WIFEXITED(state) || WEXITSTATUS(state) != 0) {
      return invalid("--metric " + command_ + ": it failed (" +
                     (WIFEXITED(state) ? format("exit status %d", WEXITSTATUS(state)) : "ended by a signal") +
                     "); it must print a number and exit with 0");
    }
    const size_t end = text.find_last_not_of(" \t\r\n") + 1;
    const size_t begin = end == 0 ? 0 : text.find_last_of(" \t\r\n", end - 1) + 1;
    const std::string word = text.substr(begin, end - begin);
    double value = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (word.empty() || error != std::errc() || stop != word.data() + word.size() || !std::isfinite(value)) {
      return invalid("--metric " + command_ + ": the last word it printed is '" + escaped(word.substr(0, 80)) +
                     "', must be a finite number");
    }
    return value;
  }

  std::string command_;
  std::optional<TemporaryFolder> folder_;
  GruFloatModel float_;
  int64_t outputs_;
  float zoneout_;
  std::vector<Sequences> validation_;
  std::map<std::string, Array> float_outputs_;
};

/// The words of the command line that say how the model and its data are read.
std::string source_words(const TuneOptions& options) {
  std::string out = shell_quoted(options.model) + " --calibrate";
  for (const std::string& data : options.data) out += " " + shell_quoted(data);
  for (const std::string& layer : options.source.layer) out += " --layer " + shell_quoted(layer);
  if (!options.source.gate_order.empty()) out += " --gate-order " + options.source.gate_order;
  if (!options.source.layout.empty()) out += " --layout " + options.source.layout;
  if (!options.source.reset.empty()) out += " --reset " + options.source.reset;
  if (options.of_data.batch_first) out += " --batch-first";
  if (options.of_data.zoneout != 0.0f) out += format(" --zoneout %.9g", static_cast<double>(options.of_data.zoneout));
  if (!options.of_data.lengths.empty()) out += " --lengths " + shell_quoted(options.of_data.lengths);
  if (!options.of_data.h0.empty()) out += " --state " + shell_quoted(options.of_data.h0);
  return out;
}

std::string command_of(const TuneOptions& options, const GruSettings& settings) {
  return "isobit quantize " + source_words(options) + " " + settings.command_options() + " -o " +
         shell_quoted(options.output.empty() ? "OUT.safetensors" : options.output);
}

std::string quality_text(double quality, bool is_metric) {
  return is_metric ? format("%.6g", quality) : format("%.2f dB", quality);
}

Value point_json(const TuneOptions& options, const GruTunePoint& point) {
  Value json = Value::object(), layers = Value::array();
  for (const double db : point.sqnr.layer_db) layers.add(db);
  json.set("quality", point.quality).set("layer_sqnr_db", std::move(layers)).set("bytes", point.bytes);
  json.set("speed_class", static_cast<int>(point.speed)).set("speed", to_string(point.speed));
  json.set("bits", point.settings.bits).set("method", point.settings.method);
  json.set("scale", to_string(point.settings.scale)).set("table", point.settings.table);
  json.set("command", command_of(options, point.settings));
  return json;
}

std::string front_text(const TuneOptions& options, const GruTuneResult& result) {
  const bool is_metric = result.judged;
  std::string out =
      format("   %9s %10s  %-36s %s\n", is_metric ? "metric" : "quality", "bytes", "speed class", "settings");
  for (const GruTunePoint& point : result.front) {
    GruSettings of_chosen = result.chosen.settings;
    of_chosen.reason.clear();
    const bool chosen = point.settings.command_options() == of_chosen.command_options();
    out += format("%-2s %9s %10lld  %-36s %s\n", chosen ? "->" : "", quality_text(point.quality, is_metric).c_str(),
                  static_cast<long long>(point.bytes),
                  format("%d %s", static_cast<int>(point.speed), std::string(to_string(point.speed)).c_str()).c_str(),
                  point.settings.command_options().c_str());
  }
  out += "commands, in the order of the table:\n";
  for (const GruTunePoint& point : result.front) out += "  " + command_of(options, point.settings) + "\n";
  return out;
}

Result<GruTuneOptions> parse_options(const TuneOptions& options) {
  GruTuneOptions out;
  out.target = options.target;
  out.max_bytes = options.max_bytes;
  ISOBIT_ASSIGN_OR_RETURN(out.rounding, parse_rounding(options.rounding));
  if (!options.scale.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(out.scale, parse_scale(options.scale));
  }
  if (!options.method.empty()) out.method = options.method;
  if (!options.table.empty()) out.table = options.table;
  if (!options.like.empty()) {
    GruSettings like;
    like.bits = options.like;
    like.method = out.method.value_or(like.method);
    like.table = out.table.value_or(like.table);
    like.scale = out.scale.value_or(like.scale);
    like.rounding = out.rounding;
    out.like = like;
  }
  return out;
}

std::string goal_text(const TuneOptions& options, const GruTuneResult& result) {
  const GruTunePoint& chosen = result.chosen;
  const std::string has = quality_text(chosen.quality, result.judged);
  if (options.max_bytes) {
    return format("no model that was tried has at most %lld bytes; the smallest has %lld, with %s",
                  static_cast<long long>(*options.max_bytes), static_cast<long long>(chosen.bytes), has.c_str());
  }
  return format("no model that was tried reaches %.6g; the best has ", options.target.value_or(35)) + has +
         " with --bits " + chosen.settings.bits;
}

}  // namespace

Result<Outcome> tune(const TuneOptions& options) {
  if (options.output.empty() && !options.dry_run) {
    return invalid("-o OUT is missing; --dry-run searches without writing");
  }
  ISOBIT_RETURN_IF_ERROR(check_threads(options.threads));
  if (!options.metric.empty() && !options.target) {
    return invalid("--metric " + options.metric + ": give --target, the least number that will do, too");
  }
  FileClaims claims;
  if (!options.dry_run) ISOBIT_RETURN_IF_ERROR(check_output(options.output, "-o", OutputKind::kSafetensors, claims));
  if (!options.svg.empty()) ISOBIT_RETURN_IF_ERROR(check_output(options.svg, "--svg", OutputKind::kSvg, claims));
  ISOBIT_RETURN_IF_ERROR(claims.reads(options.model, "MODEL"));
  ISOBIT_ASSIGN_OR_RETURN(GruTuneOptions search, parse_options(options));
  ISOBIT_RETURN_IF_ERROR(check_tune_options(search));
  if (!options.svg.empty()) ISOBIT_RETURN_IF_ERROR(check_gnuplot());
  ISOBIT_RETURN_IF_ERROR(check_zoneout(options.of_data.zoneout));
  ISOBIT_ASSIGN_OR_RETURN(const FloatModel source, load_float_model(options.model, options.source));
  const GruWeights& weights = source.weights;
  const SequenceSizes sizes = sequence_sizes(weights);
  ISOBIT_ASSIGN_OR_RETURN(const SequenceFiles data, SequenceFiles::open(options.data, options.of_data, sizes, claims));
  ISOBIT_ASSIGN_OR_RETURN(const SequenceFiles files,
                          open_validation(options.validate, options.of_data.batch_first, options.validate_lengths,
                                          options.validate_h0, sizes, claims));

  Outcome out;
  out.json.set("model", options.model).set("name", weights.name);
  set_assumptions(source, out.json);
  out.text =
      options.model + ": " +
      gru_text(weights.name, weights.layer_count(), weights.directions, weights.input_size(), weights.output_size()) +
      "\n" + assumptions_text(source);
  warn_of_doubts(source, options.model, out.warnings);

  ThreadPool pool(options.threads);
  GruQuantization decays;
  if (search.method) ISOBIT_RETURN_IF_ERROR(apply_methods(*search.method, decays));
  ISOBIT_ASSIGN_OR_RETURN(GruCalibrator calibrator, GruCalibrator::create(weights, decays));
  SeenSequences seen;
  ISOBIT_ASSIGN_OR_RETURN(const ObservedCount count, observe(data, calibrator, options.of_data.zoneout, options.quiet,
                                                             {.pool = &pool, .seen = &seen}, out.warnings));
  GruValidationOptions validation_options;
  validation_options.pool = &pool;
  validation_options.zoneout = options.of_data.zoneout;
  ISOBIT_ASSIGN_OR_RETURN(GruValidation validation, GruValidation::create(weights, validation_options));
  std::unique_ptr<Metric> metric;
  if (!options.metric.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(Metric created, Metric::create(options.metric, weights, options.of_data.zoneout));
    metric = std::make_unique<Metric>(std::move(created));
  }
  int64_t repeated = 0;
  const auto add = [&](const Sequences& sequences) -> Status {
    repeated += seen.count(sequences, sizes);
    if (metric != nullptr) ISOBIT_RETURN_IF_ERROR(metric->add(sequences));
    return validation.add(view_of(sequences));
  };
  ISOBIT_RETURN_IF_ERROR(files.for_each(add, out.warnings));
  if (validation.steps() == 0) return invalid("--validate " + options.validate.front() + ": the data has no time step");
  if (repeated > 0) out.warnings.push_back(repeated_text(repeated));
  out.text += "calibrated on " + count_text(count) + "; validated on " + count_text(validation.sequences(), "sequence") +
              ", " + count_text(validation.steps(), "step") + "\n";

  search.pool = &pool;
  if (metric != nullptr) {
    ISOBIT_RETURN_IF_ERROR(metric->start());
    search.metric = [&](const GruModel& model) { return (*metric)(model); };
  }
  Result<GruTuneResult> found = Status(StatusCode::kFailedPrecondition, "");
  {
    const Interruption interruption;
    Progress progress("tuning", options.quiet);
    search.progress = [&](const GruTuneProgress& now) {
      std::string best;
      if (now.best != nullptr) {
        best = quality_text(now.best->quality, false) + ", " + std::to_string(now.best->bytes) + " bytes";
      }
      progress.update(now.fraction, best);
      return !Interruption::asked();
    };
    found = tune_gru(calibrator, validation, search);
  }
  if (!found.ok()) return found.status();
  const GruTuneResult& result = *found;

  Value front = Value::array();
  for (const GruTunePoint& point : result.front) front.add(point_json(options, point));
  out.json.set("evaluations", result.evaluations).set("reached", result.reached).set("interrupted", result.interrupted);
  out.json.set("front", std::move(front)).set("chosen", point_json(options, result.chosen));
  out.text += "models tried: " + std::to_string(result.evaluations) + "\n" + front_text(options, result);
  out.text += std::string(result.interrupted ? "best so far: "
                          : result.reached   ? "chosen: "
                                             : "best: ") +
              quality_text(result.chosen.quality, result.judged) + ", " + std::to_string(result.chosen.bytes) +
              " bytes, " + std::string(to_string(result.chosen.speed)) + "\n  " +
              command_of(options, result.chosen.settings) + "\n";
  const bool write = result.reached && !result.interrupted;
  if (write && !options.dry_run) {
    ISOBIT_RETURN_IF_ERROR(result.model->save(options.output));
    out.text += "saved " + options.output + ", " + std::to_string(result.chosen.bytes) + " bytes\n";
  }
  if (!options.svg.empty() && !result.interrupted) {
    ISOBIT_ASSIGN_OR_RETURN(const std::string svg, svg_of_front(result, result.judged));
    ISOBIT_RETURN_IF_ERROR(write_file_atomically(options.svg, svg.data(), svg.size()));
    out.text += "saved " + options.svg + "\n";
  }
  out.json.set("output", write && !options.dry_run ? Value(options.output) : Value());
  if (result.interrupted) {
    out.failure = "interrupted; nothing was written";
  } else if (!result.reached) {
    out.failure = goal_text(options, result) + "; no model was written";
  }
  return out;
}

}  // namespace isobit::tool
