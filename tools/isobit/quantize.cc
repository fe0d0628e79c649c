// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "calibrate.h"
#include "data.h"
#include "isobit/gru.h"
#include "isobit/parallel.h"
#include "isobit/tune.h"
#include "models.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

constexpr double kGoodDb = 30;

Result<GruSettings> parse_settings(const QuantizeOptions& options) {
  GruSettings out;
  out.bits = options.bits;
  out.method = options.method;
  out.table = options.table;
  ISOBIT_ASSIGN_OR_RETURN(out.scale, parse_scale(options.scale));
  ISOBIT_ASSIGN_OR_RETURN(out.rounding, parse_rounding(options.rounding));
  out.reason = options.reason;
  return out;
}

/// That a bare width widened the biases, where it did and no entry names them.
std::string biases_text(const std::string& bits, const GruModelParameters& parameters) {
  for (const char* name : {"biases=", "bw=", "br=", "all="}) {
    if (bits.find(name) != std::string::npos) return {};
  }
  int32_t widest = 0;
  for (const GruLayerParameters& layer : parameters.layers) widest = std::max(widest, layer.grids[kBw].bits);
  if (widest <= 8) return {};
  return "biases have " + std::to_string(widest) + " bits, as with every bare width above 8; --bits " + bits +
         ",biases=8 keeps 8\n";
}

/// The SQNR of the outputs on --validate, or else on the last tenth of the calibration data.
Status validate(const QuantizeOptions& options, const GruWeights& weights, const GruModel& model,
                const std::optional<SequenceFiles>& files, const LastTenth& last_tenth, const SeenSequences& seen,
                ThreadPool& pool, Outcome& out) {
  GruValidationOptions validation_options;
  validation_options.pool = &pool;
  validation_options.zoneout = options.of_data.zoneout;
  ISOBIT_ASSIGN_OR_RETURN(GruValidation validation, GruValidation::create(weights, validation_options));
  int64_t repeated = 0, clipped = 0, inputs = 0;
  const auto add = [&](const Sequences& data) {
    repeated += seen.count(data, sequence_sizes(weights));
    inputs += static_cast<int64_t>(data.x.size());
    clipped += count_clipped(model.input_grid(), data.x);
    return validation.add(view_of(data));
  };
  ISOBIT_RETURN_IF_ERROR(files ? files->for_each(add, out.warnings) : last_tenth.add_to(validation));
  if (repeated > 0) out.warnings.push_back(repeated_text(repeated));
  if (files) {
    describe_clipping(clipped, inputs, model.input_grid(), "--validate",
                      "other units, scaling or normalisation than the calibration data has", out);
  }
  if (validation.steps() == 0) {
    return {StatusCode::kInvalidArgument, "--validate " + options.validate.front() + ": the data has no time step"};
  }
  ISOBIT_ASSIGN_OR_RETURN(const GruOutputSqnr sqnr, validation.measure(model));
  Value layers = Value::array();
  std::string text;
  for (const double db : sqnr.layer_db) {
    layers.add(db);
    text += (text.empty() ? "" : ", ") + db_text(db);
  }
  Value json = Value::object();
  json.set("unseen", files.has_value() && repeated == 0)
      .set("sequences", validation.sequences())
      .set("steps", validation.steps());
  json.set("output_sqnr_db", sqnr.output_db).set("layer_sqnr_db", std::move(layers));
  out.json.set("validation", std::move(json));
  out.text += "SQNR of the output" + std::string(sqnr.layer_db.size() > 1 ? "s of each layer: " : ": ") + text +
              " dB, on " + count_text(validation.sequences(), "sequence") +
              (files ? " of --validate\n" : ", the last tenth of the calibration data (--validate takes other data)\n");
  const double least = *std::min_element(sqnr.layer_db.begin(), sqnr.layer_db.end());
  if (least < kGoodDb) {
    out.text += "below " + format("%.0f", kGoodDb) +
                " dB: isobit tune with this data, --validate DATA and --target DB finds widths that give more; "
                "isobit compare --ablate says which tensors are at fault\n";
  }
  return {};
}

bool is_activation(int32_t tensor) { return tensor != kW && tensor != kR && tensor != kBw && tensor != kBr; }

void describe_grids(const GruModel& model, const GruCalibrator& calibrator, Outcome& out) {
  const GruModelParameters& parameters = model.parameters();
  Value grids = Value::array();
  for (size_t i = 0; i < parameters.layers.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    const std::string label = layer_label(layer, parameters.directions);
    out.text += "layer " + label + "\n";
    for (int32_t t = 0; t < kGruTensorCount; ++t) {
      const std::string name(kGruTensorNames[static_cast<size_t>(t)]);
      const Grid& grid = parameters.layers[i].grids[static_cast<size_t>(t)];
      Value entry = Value::object();
      entry.set("layer", label).set("tensor", name);
      if (!is_activation(t)) {
        entry.set("bits", grid.bits).set("signed", grid.is_signed).set("per_row", true);
        out.text += format("  %-5s %2d bits %-8s  a scale for each row\n", name.c_str(), grid.bits,
                           grid.is_signed ? "signed" : "unsigned");
      } else {
        const TensorStatistics& statistics = calibrator.statistics(layer, static_cast<GruTensor>(t));
        entry.set("grid", Value::parsed(grid_json(grid)));
        // The outputs of sigmoid and tanh have fixed ranges and are not observed.
        const bool observed = statistics.count() > 0;
        entry.set("observed_min", observed ? Value(static_cast<double>(statistics.min())) : Value());
        entry.set("observed_max", observed ? Value(static_cast<double>(statistics.max())) : Value());
        out.text += format("  %-5s %s", name.c_str(), grid_text(grid).c_str());
        if (observed) {
          out.text += format(", observed %.5g..%.5g", static_cast<double>(statistics.min()),
                             static_cast<double>(statistics.max()));
        }
        out.text += "\n";
      }
      grids.add(std::move(entry));
    }
  }
  out.json.set("grids", std::move(grids));
}

}  // namespace

Result<Outcome> quantize(const QuantizeOptions& options) {
  if (options.output.empty() && !options.dry_run) {
    return Status(StatusCode::kInvalidArgument, "-o OUT is missing; --dry-run calibrates without writing");
  }
  ISOBIT_RETURN_IF_ERROR(check_threads(options.threads));
  FileClaims claims;
  if (!options.dry_run) ISOBIT_RETURN_IF_ERROR(check_output(options.output, "-o", OutputKind::kSafetensors, claims));
  ISOBIT_RETURN_IF_ERROR(claims.reads(options.model, "MODEL"));
  ISOBIT_ASSIGN_OR_RETURN(const GruSettings settings, parse_settings(options));
  ISOBIT_ASSIGN_OR_RETURN(const GruQuantization quantization, settings.quantization());
  ISOBIT_RETURN_IF_ERROR(check_zoneout(options.of_data.zoneout));
  ISOBIT_ASSIGN_OR_RETURN(const FloatModel source, load_float_model(options.model, options.source));
  const GruWeights& weights = source.weights;
  const SequenceSizes sizes = sequence_sizes(weights);
  ISOBIT_ASSIGN_OR_RETURN(const SequenceFiles data, SequenceFiles::open(options.data, options.of_data, sizes, claims));
  std::optional<SequenceFiles> validation;
  if (!options.validate.empty()) {
    ISOBIT_ASSIGN_OR_RETURN(validation,
                            open_validation(options.validate, options.of_data.batch_first, options.validate_lengths,
                                            options.validate_h0, sizes, claims));
  }

  Outcome out;
  out.json.set("model", options.model).set("name", weights.name).set("layers", weights.layer_count());
  out.json.set("directions", weights.directions).set("input_size", weights.input_size());
  out.json.set("hidden_size", weights.hidden_size());
  set_assumptions(source, out.json);
  out.text =
      options.model + ": " +
      gru_text(weights.name, weights.layer_count(), weights.directions, weights.input_size(), weights.output_size());
  out.text += "\n" + assumptions_text(source);
  warn_of_doubts(source, options.model, out.warnings);

  ISOBIT_ASSIGN_OR_RETURN(GruCalibrator calibrator, GruCalibrator::create(weights, quantization));
  ThreadPool pool(options.threads);
  LastTenth last_tenth;
  SeenSequences seen;
  ObserveOptions observed{.pool = &pool};
  if (validation) observed.seen = &seen;
  if (!validation) observed.last_tenth = &last_tenth;
  ISOBIT_ASSIGN_OR_RETURN(const ObservedCount count, observe(data, calibrator, options.of_data.zoneout, options.quiet,
                                                             observed, out.warnings));
  Value counts = Value::object();
  counts.set("files", count.files).set("sequences", count.sequences).set("steps", count.steps);
  out.json.set("calibration", std::move(counts));
  out.text += "calibrated on " + count_text(count) + "\n";

  ISOBIT_ASSIGN_OR_RETURN(const GruModel model, calibrator.finish(quantization));
  out.json.set("bits", options.bits).set("method", options.method);
  out.json.set("scale", to_string(quantization.scale)).set("rounding", to_string(quantization.rounding));
  out.json.set("table", options.table);
  out.json.set("reason", options.reason.empty() ? Value() : Value(options.reason));
  describe_grids(model, calibrator, out);
  out.text += biases_text(options.bits, model.parameters());
  if (const Status sized = describe_sizes(model, out.json, out.text); !sized.ok())
    return Status(sized.code(), (options.output.empty() ? options.model : options.output) + ": " + sized.message());
  ISOBIT_RETURN_IF_ERROR(validate(options, weights, model, validation, last_tenth, seen, pool, out));
  if (options.dry_run) {
    out.json.set("output", Value()).set("bytes", Value());
    out.text += "dry run: nothing written\n";
    return out;
  }
  ISOBIT_RETURN_IF_ERROR(model.save(options.output));
  std::error_code error;
  const auto bytes = std::filesystem::file_size(options.output, error);
  out.json.set("output", options.output).set("bytes", error ? Value() : Value(bytes));
  out.text += "saved " + options.output + (error ? "" : ", " + std::to_string(bytes) + " bytes") + "\n";
  return out;
}

}  // namespace isobit::tool
