// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "isobit/arrays.h"
#include "isobit/files.h"
#include "isobit/gru.h"
#include "isobit/gru_files.h"
#include "isobit/parallel.h"
#include "isobit/sequences.h"
#include "models.h"
#include "progress.h"
#include "text.h"
#include "verbs.h"

namespace isobit::tool {
namespace {

/// Rows [first, first + count), of `width` elements each.
template <typename Byte>
std::span<Byte> rows_of(std::span<Byte> bytes, Dtype dtype, int64_t width, int64_t first, int64_t count) {
  const auto row = static_cast<size_t>(width) * size_in_bytes(dtype);
  return bytes.subspan(static_cast<size_t>(first) * row, static_cast<size_t>(count) * row);
}

class Runner {
 public:
  /// `device`: null for the CPU, which then takes `path`.
  Runner(const GruModel& model, const RunOptions& options, CpuPath path, DeviceGru* device)
      : model_(model), options_(options), pool_(options.threads), path_(path), device_(device) {}

  /// Those that ran: "persistent", "generic, persistent".
  [[nodiscard]] std::string kernels() const {
    std::string text;
    for (const std::string& name : kernels_) text.append(text.empty() ? "" : ", ").append(name);
    return text;
  }

  /// Values of x that the input grid does not reach, and all that were looked at.
  [[nodiscard]] const ClippedInputs& inputs() const { return inputs_; }

  /// One array of the input to the same array of the output; `state` continues.
  Result<Array> run(const Array& input, const std::string& label, const SequenceShape& shape,
                    std::span<const int64_t> lengths, std::span<const uint8_t> mask, GruState& state,
                    Progress& progress, double first_share, double share) {
    std::vector<int64_t> out_shape = input.shape;
    out_shape.back() = model_.output_size();
    Array output = Array::zeros(options_.integer ? model_.output_grid().dtype() : Dtype::kF32, out_shape);
    std::vector<float> x;
    if (options_.integer) {
      if (const Status status = check_codes(input, model_.input_grid(), label); !status.ok())
        return Status(status.code(), status.message() + (input.dtype == model_.input_grid().dtype()
                                                             ? ""
                                                             : " (without --integer, floats are quantised)"));
    } else {
      x = input.to_float();
      const auto bad = std::find_if(x.begin(), x.end(), [](float value) { return std::isnan(value); });
      if (bad != x.end()) {
        return bad_option(label + ": value nan at " +
                          place_text(bad - x.begin(), shape, model_.input_size(), options_.batch_first) +
                          "; it has no code");
      }
      inputs_.add(model_.input_grid(), x, model_.input_size(), lengths);
    }
    const int64_t chunk = chunk_of(shape);
    ISOBIT_RETURN_IF_ERROR(note_kernel(shape.batch, chunk));
    if (shape.steps == 0 || shape.batch == 0) return output;

    isobit::RunOptions run_options;
    run_options.whole_sequence = chunk == shape.steps;
    Workspace workspace;
    if (device_ != nullptr) {
      run_options.kernel = options_.kernel;
      ISOBIT_ASSIGN_OR_RETURN(workspace, device_->workspace(shape.batch, chunk));
    } else {
      run_options.path = path_;
      run_options.pool = &pool_;
      workspace = model_.workspace(shape.batch, chunk, pool_.threads());
    }
    const std::span<const std::byte> x_bytes =
        options_.integer ? std::as_bytes(std::span(input.bytes)) : std::as_bytes(std::span(x));
    const std::span<std::byte> y_bytes(output.bytes);
    const Dtype x_dtype = options_.integer ? input.dtype : Dtype::kF32;
    std::vector<int64_t> rest;  // of each length, from the chunk's first step on
    const int64_t in_row = shape.batch * model_.input_size(), out_row = shape.batch * model_.output_size();
    for (int64_t begin = 0; begin < shape.steps; begin += chunk) {
      const int64_t steps = std::min(chunk, shape.steps - begin);
      if (steps != chunk) ISOBIT_RETURN_IF_ERROR(note_kernel(shape.batch, steps));
      rest.clear();
      for (const int64_t length : lengths) rest.push_back(std::clamp<int64_t>(length - begin, 0, steps));
      run_options.lengths = rest;
      if (!mask.empty())
        run_options.zoneout_mask =
            mask.subspan(static_cast<size_t>(begin * out_row), static_cast<size_t>(steps * out_row));
      const auto forward = [&](const auto& gru) {
        return gru.forward(rows_of(x_bytes, x_dtype, in_row, begin, steps), x_dtype,
                           rows_of(y_bytes, output.dtype, out_row, begin, steps), output.dtype, steps, state, workspace,
                           run_options);
      };
      ISOBIT_RETURN_IF_ERROR(device_ != nullptr ? forward(*device_) : forward(model_));
      progress.update(first_share + share * static_cast<double>(begin + steps) / static_cast<double>(shape.steps));
    }
    return output;
  }

 private:
  /// Steps a call. Without --chunk pieces of a length that lets the bar move, where pieces change neither bytes nor
  /// kernels.
  [[nodiscard]] int64_t chunk_of(const SequenceShape& shape) const {
    constexpr int64_t kPieces = 100, kLeastSteps = 64;
    if (options_.chunk > 0) return std::min(options_.chunk, shape.steps);
    if (device_ != nullptr || model_.parameters().directions == 2) return shape.steps;
    return std::min(shape.steps, std::max(kLeastSteps, (shape.steps + kPieces - 1) / kPieces));
  }

  /// A device may choose another kernel for another number of steps.
  Status note_kernel(int64_t batch, int64_t steps) {
    std::string name(to_string(path_));
    if (device_ != nullptr) {
      ISOBIT_ASSIGN_OR_RETURN(name, device_->choose_kernel(batch, steps, options_.kernel));
    }
    kernels_.insert(std::move(name));
    return {};
  }

  const GruModel& model_;
  const RunOptions& options_;
  ThreadPool pool_;
  CpuPath path_;
  DeviceGru* device_;
  std::set<std::string> kernels_;
  ClippedInputs inputs_;
};

}  // namespace

Result<Outcome> run(const RunOptions& options) {
  ISOBIT_RETURN_IF_ERROR(check_threads(options.threads));
  FileClaims files;
  ISOBIT_RETURN_IF_ERROR(check_output(options.output, "-o", OutputKind::kArrays, files));
  if (!options.save_state.empty())
    ISOBIT_RETURN_IF_ERROR(check_output(options.save_state, "--save-state", OutputKind::kState, files));
  ISOBIT_RETURN_IF_ERROR(files.reads(options.model, "MODEL"));
  ISOBIT_RETURN_IF_ERROR(files.reads(options.input, "INPUT"));
  for (const auto& [option, path] : {std::pair{"--state", &options.state}, std::pair{"--lengths", &options.lengths},
                                     std::pair{"--zoneout-mask", &options.zoneout_mask}})
    if (!path->empty()) ISOBIT_RETURN_IF_ERROR(files.reads(*path, option));
  if (options.chunk < 0) return bad_option("--chunk " + std::to_string(options.chunk) + ": expected at least 1 step");
  const bool npz = options.output.ends_with(".npz");
  ISOBIT_ASSIGN_OR_RETURN(const auto device, open_device(options.device, options.threads));
  ISOBIT_ASSIGN_OR_RETURN(const auto requested, parse_kernel(device ? "" : options.kernel));
  ISOBIT_ASSIGN_OR_RETURN(const GruModel model, load_integer_model(options.model, options.layer));
  CpuPath path = CpuPath::kReference;
  std::unique_ptr<DeviceGru> device_gru;
  if (device) {
    ISOBIT_ASSIGN_OR_RETURN(device_gru, device->gru(model));
  } else {
    ISOBIT_ASSIGN_OR_RETURN(path, model.choose_path(requested));
  }
  if (options.chunk > 0 && model.parameters().directions == 2) {
    return bad_option("--chunk " + std::to_string(options.chunk) + ": " + options.model +
                      " is bidirectional, and its reverse direction needs the whole sequence; leave --chunk out");
  }
  Outcome out;
  ISOBIT_ASSIGN_OR_RETURN(const ArrayFile input, load_data(options.input, out.warnings));
  const bool uses_state = !options.state.empty() || !options.save_state.empty();
  if (input.arrays.size() > 1 && (uses_state || !npz)) {
    return bad_option(
        options.input + ": holds " + std::to_string(input.arrays.size()) + " arrays; " +
        (npz ? "--state and --save-state take an input with one" : "-o must name an .npz to hold as many"));
  }

  ISOBIT_ASSIGN_OR_RETURN(const Companion all_lengths, Companion::load("--lengths", options.lengths));
  ISOBIT_ASSIGN_OR_RETURN(const Companion masks, Companion::load("--zoneout-mask", options.zoneout_mask));

  Runner runner(model, options, path, device_gru.get());
  if (uses_state && model.parameters().directions == 2) {
    out.warnings.push_back(options.model +
                           " is bidirectional: a sequence that is run in pieces, with states between them, "
                           "gives other results than the whole one");
  }
  Value arrays = Value::array();
  std::map<std::string, Array> outputs;
  GruState last_state;
  int64_t sequences = 0, steps = 0;
  bool integers = false;
  std::optional<Progress> progress(std::in_place, "running", options.quiet);
  double done = 0, all = 0;  // values of x
  for (const auto& [name, array] : input.arrays) all += static_cast<double>(array.size());
  for (const auto& [name, array] : input.arrays) {
    const std::string label = array_label(options.input, name);
    ISOBIT_ASSIGN_OR_RETURN(const SequenceShape shape,
                            sequence_shape(array, model.input_size(), label, options.batch_first));
    const bool swapped = options.batch_first && !shape.single;
    if (const std::string hint = options.batch_first ? "" : layout_hint(shape, label, "--batch-first"); !hint.empty())
      out.warnings.push_back(hint);
    integers |= !is_float(array.dtype);
    ISOBIT_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, all_lengths.lengths(name, shape));
    ISOBIT_ASSIGN_OR_RETURN(const std::vector<uint8_t> mask,
                            zoneout_mask(masks, name, shape, model, options.batch_first));
    GruState state = model.initial_state(shape.batch);
    if (!options.state.empty()) {
      ISOBIT_ASSIGN_OR_RETURN(state, load_state(options.state, model, shape.batch, "--state", out.warnings));
    }
    const double share = static_cast<double>(array.size()) / std::max(all, 1.0);
    ISOBIT_ASSIGN_OR_RETURN(Array output, runner.run(swapped ? swap_batch_and_time(array) : array, label, shape,
                                                     lengths, mask, state, *progress, done, share));
    if (swapped) output = swap_batch_and_time(output);
    done += share;
    if (!options.save_state.empty()) last_state = std::move(state);
    sequences += shape.batch;
    steps += shape.batch * shape.steps;
    Value entry = Value::object();
    entry.set("name", name).set("dtype", to_string(output.dtype)).set("shape", output.shape);
    arrays.add(std::move(entry));
    outputs[name] = std::move(output);
  }
  progress.reset();
  if (npz) {
    // An npy has no name; in an npz it needs one.
    if (auto unnamed = outputs.extract(""); !unnamed.empty()) {
      unnamed.key() = "y";
      outputs.insert(std::move(unnamed));
    }
    ISOBIT_RETURN_IF_ERROR(save_npz(options.output, outputs));
  } else {
    ISOBIT_RETURN_IF_ERROR(save_npy(options.output, outputs.begin()->second));
  }
  if (!options.save_state.empty()) ISOBIT_RETURN_IF_ERROR(save_state(options.save_state, model, last_state));
  out.json.set("output", options.output).set("kernel", runner.kernels()).set("sequences", sequences);
  if (device) out.json.set("device", options.device);
  out.json.set("steps", steps).set("arrays", std::move(arrays));
  out.text = "ran " + count_text(sequences, "sequence") + ", " + count_text(steps, "step") + " with kernel " +
             runner.kernels() + (device ? " on " + device->text() : "") + "\n";
  if (options.integer) {
    out.json.set("clipped", Value()).set("clipped_percent", Value());
  } else {
    out.add(describe_clipping(
        runner.inputs(), model.input_grid(), options.input,
        integers ? "integers that stand for codes (--integer), or samples that were not scaled as in calibration"
                 : kOtherUnits));
  }
  out.text += "saved " + options.output + "\n";
  if (!options.save_state.empty()) {
    out.json.set("state", options.save_state);
    out.text += "saved " + options.save_state + "\n";
  }
  return out;
}

}  // namespace isobit::tool
