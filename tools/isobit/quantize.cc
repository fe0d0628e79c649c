// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "data.h"
#include "isobit/gru.h"
#include "isobit/parallel.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

// Single sequences of a file are observed together, so that threads have something to share.
constexpr size_t kMaxTogether = 64;
constexpr int64_t kMaxTogetherFloats = int64_t{1} << 24;

Result<GruQuantization> parse_quantization(const QuantizeOptions& options) {
  GruQuantization out;
  ISOBIT_RETURN_IF_ERROR(apply_bits(options.bits, out));
  ISOBIT_RETURN_IF_ERROR(apply_methods(options.method, out));
  const auto scale = scale_kind_from_string(options.scale);
  if (!scale) return Status(StatusCode::kInvalidArgument, "--scale " + options.scale + ": expected pow2 or real");
  out.scale = *scale;
  const auto rounding = rounding_from_string(options.rounding);
  if (!rounding) {
    return Status(StatusCode::kInvalidArgument,
                  "--rounding " + options.rounding + ": expected nearest_even, nearest_up, nearest_away or floor");
  }
  out.rounding = *rounding;
  if (!options.table.empty()) {
    ISOBIT_RETURN_IF_ERROR(apply_tables(options.table, out));
  }
  out.notes = {{"bits", options.bits},
               {"method", options.method},
               {"scale", std::string(to_string(out.scale))},
               {"rounding", std::string(to_string(out.rounding))}};
  if (!options.table.empty()) out.notes["table"] = options.table;
  if (!options.reason.empty()) out.notes["reason"] = options.reason;
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

struct DataCount {
  int64_t files = 0, sequences = 0, steps = 0;
};

/// Feeds a calibrator, single sequences of one file padded to one batch.
class Feeder {
 public:
  Feeder(GruCalibrator& calibrator, ThreadPool& pool) : calibrator_(calibrator), pool_(pool) {}

  Status add(const Sequences& sequences) {
    count_.sequences += sequences.batch;
    count_.steps += sequences.batch * sequences.steps;
    if (sequences.steps == 0 || sequences.batch == 0) return {};
    if (sequences.batch > 1) {
      return calibrator_.observe(sequences.x, sequences.steps, sequences.batch, {}, {}, &pool_);
    }
    const int64_t steps = std::max(longest_, sequences.steps);
    const auto together = static_cast<int64_t>(pending_.size()) + 1;
    const int64_t channels = calibrator_.weights().input_size();
    if (pending_.size() == kMaxTogether || steps > kMaxTogetherFloats / (together * channels)) {
      ISOBIT_RETURN_IF_ERROR(flush());
    }
    longest_ = std::max(longest_, sequences.steps);
    pending_.push_back(sequences);
    return {};
  }

  Status flush() {
    if (pending_.empty()) return {};
    const size_t batch = pending_.size();
    const auto channels = static_cast<size_t>(calibrator_.weights().input_size());
    std::vector<float> x(static_cast<size_t>(longest_) * batch * channels);
    std::vector<int64_t> lengths;
    for (size_t n = 0; n < batch; ++n) {
      lengths.push_back(pending_[n].steps);
      for (size_t t = 0; t < static_cast<size_t>(pending_[n].steps); ++t) {
        std::copy_n(&pending_[n].x[t * channels], channels, &x[(t * batch + n) * channels]);
      }
    }
    const int64_t steps = longest_;
    pending_.clear();
    longest_ = 0;
    return calibrator_.observe(x, steps, static_cast<int64_t>(batch), lengths, {}, &pool_);
  }

  [[nodiscard]] const DataCount& count() const { return count_; }
  void count_file() { ++count_.files; }

 private:
  GruCalibrator& calibrator_;
  ThreadPool& pool_;
  std::vector<Sequences> pending_;
  int64_t longest_ = 0;
  DataCount count_;
};

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
        entry.set("grid", grid_json(grid));
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
  if (!options.dry_run) ISOBIT_RETURN_IF_ERROR(check_output(options.output, "-o"));
  ISOBIT_ASSIGN_OR_RETURN(const GruQuantization quantization, parse_quantization(options));
  ISOBIT_ASSIGN_OR_RETURN(const FloatModel source, load_float_model(options.model, options.source));
  ISOBIT_ASSIGN_OR_RETURN(const auto files, find_data_files(options.data));
  const GruWeights& weights = source.weights;

  Outcome out;
  out.json.set("model", options.model).set("name", weights.name).set("layers", weights.layer_count());
  out.json.set("directions", weights.directions).set("input_size", weights.input_size());
  out.json.set("hidden_size", weights.hidden_size());
  set_assumptions(source, out.json);
  out.text =
      options.model + ": " +
      gru_text(weights.name, weights.layer_count(), weights.directions, weights.input_size(), weights.output_size());
  out.text += "\n" + assumptions_text(source);

  ISOBIT_ASSIGN_OR_RETURN(GruCalibrator calibrator, GruCalibrator::create(weights, quantization));
  ThreadPool pool(options.threads);
  Feeder feeder(calibrator, pool);
  {
    Progress progress("calibrating", options.quiet);
    for (size_t i = 0; i < files.size(); ++i) {
      progress.update(static_cast<double>(i) / static_cast<double>(files.size()));
      feeder.count_file();
      ISOBIT_RETURN_IF_ERROR(for_each_array(files[i], weights.input_size(),
                                            [&](const Sequences& sequences) { return feeder.add(sequences); }));
      ISOBIT_RETURN_IF_ERROR(feeder.flush());
    }
  }
  const DataCount& count = feeder.count();
  if (count.steps == 0) {
    return Status(StatusCode::kInvalidArgument,
                  "--calibrate " + options.data.front() + ": the data has no time step; ranges need at least one");
  }
  Value data = Value::object();
  data.set("files", count.files).set("sequences", count.sequences).set("steps", count.steps);
  out.json.set("calibration", std::move(data));
  out.text += "calibrated on " + count_text(count.files, "file") + ", " + count_text(count.sequences, "sequence") +
              ", " + count_text(count.steps, "step") + "\n";

  ISOBIT_ASSIGN_OR_RETURN(const GruModel model, calibrator.finish(quantization));
  out.json.set("bits", options.bits).set("method", options.method);
  out.json.set("scale", to_string(quantization.scale)).set("rounding", to_string(quantization.rounding));
  out.json.set("table", options.table.empty() ? Value() : Value(options.table));
  out.json.set("reason", options.reason.empty() ? Value() : Value(options.reason));
  describe_grids(model, calibrator, out);
  out.text += biases_text(options.bits, model.parameters());
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
