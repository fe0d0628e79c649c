// SPDX-License-Identifier: Apache-2.0
#include "isobit/tune.h"

#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calibrate.h"
#include "isobit/files.h"
#include "isobit/report.h"
#include "isobit/sequences.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

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
  if (!options.like.empty()) out.like = out.settings_with(options.like);
  return out;
}

}  // namespace

Result<Outcome> tune(const TuneOptions& options) {
  if (!options.metric.empty() && !options.target) {
    return bad_option("--metric " + options.metric + ": give --target, the least number that will do, too");
  }
  FileClaims claims;
  ISOBIT_RETURN_IF_ERROR(claim_output(options.output, options.dry_run, claims));
  if (!options.svg.empty()) ISOBIT_RETURN_IF_ERROR(check_output(options.svg, "--svg", OutputKind::kSvg, claims));
  if (!options.html.empty()) ISOBIT_RETURN_IF_ERROR(check_output(options.html, "--html", OutputKind::kHtml, claims));
  ISOBIT_ASSIGN_OR_RETURN(GruTuneOptions search, parse_options(options));
  ISOBIT_RETURN_IF_ERROR(check_tune_options(search));
  if (!options.svg.empty()) ISOBIT_RETURN_IF_ERROR(check_gnuplot());
  ISOBIT_ASSIGN_OR_RETURN(const CalibrationInput input, open_input(options, claims));
  const GruWeights& weights = input.weights;
  const SequenceFiles& files = *input.validation;
  Outcome out = outcome_of(options, weights);

  ThreadPool pool(options.threads);
  GruQuantization decays;
  if (search.method) ISOBIT_RETURN_IF_ERROR(apply_methods(*search.method, decays));
  ISOBIT_ASSIGN_OR_RETURN(GruCalibrator calibrator, GruCalibrator::create(weights, decays));
  SeenSequences seen;
  ISOBIT_ASSIGN_OR_RETURN(const ObservedCount count,
                          observe(options, input.data, calibrator, {.pool = &pool, .seen = &seen}, out.warnings));
  ISOBIT_ASSIGN_OR_RETURN(GruValidation validation,
                          GruValidation::create(weights, {.zoneout = options.of_data.zoneout, .pool = &pool}));
  std::optional<GruCommandMetric> metric;
  if (!options.metric.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(metric, GruCommandMetric::create(options.metric, weights, options.of_data.zoneout));
  }
  int64_t repeated = 0;
  const auto add = [&](const Sequences& sequences) -> Status {
    repeated += seen.count(sequences, input.sizes);
    if (metric) ISOBIT_RETURN_IF_ERROR(metric->add(sequences));
    return validation.add(view_of(sequences));
  };
  ISOBIT_RETURN_IF_ERROR(files.for_each(add, out.warnings));
  if (validation.steps() == 0)
    return bad_option("--validate " + options.validate.front() + ": the data has no time step");
  if (repeated > 0) out.warnings.push_back(repeated_text(repeated));
  out.text += "calibrated on " + observed_text(count) + "; validated on " +
              count_text(validation.sequences(), "sequence") + ", " + count_text(validation.steps(), "step") + "\n";

  search.pool = &pool;
  if (metric) search.metric = [&](const GruModel& model) { return (*metric)(model); };
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

  if (result.model && !result.reached) {  // perhaps why
    ClippedInputs inputs;
    std::vector<std::string> given;  // by the first pass over the files
    const auto count_inputs = [&](const Sequences& sequences) -> Status {
      inputs.add(result.model->input_grid(), sequences.x, input.sizes.channels, sequences.lengths);
      return {};
    };
    ISOBIT_RETURN_IF_ERROR(files.for_each(count_inputs, given));
    warn_of_clipping(inputs, result.model->input_grid(), "--validate", out);
  }
  out.add(describe_search(result, [&](const GruSettings& settings) { return command_of(options, settings); }));
  const bool write = result.reached && !result.interrupted;
  if (write && !options.dry_run) {
    ISOBIT_RETURN_IF_ERROR(result.model->save(options.output));
    out.text += "saved " + options.output + ", " + std::to_string(result.chosen.bytes) + " bytes\n";
  }
  if (!options.svg.empty() && !result.interrupted) {
    ISOBIT_ASSIGN_OR_RETURN(const std::string svg, svg_of_front(result, result.judged));
    ISOBIT_RETURN_IF_ERROR(write_text(svg, options.svg, out));
  }
  if (!options.html.empty() && !result.interrupted) {
    GruPage page;
    page.title = options.model;
    page.model = result.model ? &*result.model : nullptr;
    page.search = &result;
    page.warnings = out.warnings;
    ISOBIT_RETURN_IF_ERROR(write_page(page, options.html, out));
  }
  out.json.set("output", write && !options.dry_run ? Value(options.output) : Value());
  if (result.interrupted) {
    out.failure = "interrupted; nothing was written";
  } else if (!result.reached) {
    out.failure = unreached_text(result, search) + "; no model was written";
  }
  return out;
}

}  // namespace isobit::tool
