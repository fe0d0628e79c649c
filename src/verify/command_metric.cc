// SPDX-License-Identifier: Apache-2.0
// A metric of the user's own, computed by a command.
#include <sys/wait.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "core/toolchain/process.h"
#include "isobit/gru_files.h"
#include "isobit/tune.h"

namespace isobit {
namespace {

namespace fs = std::filesystem;

Status refuse(const std::string& command, const std::string& why) {
  return {StatusCode::kInvalidArgument, "--metric " + command + ": " + why};
}

/// The last word that `line` prints.
Result<double> number_of(const std::string& command, const std::string& line) {
  std::FILE* const pipe = ::popen(line.c_str(), "r");
  if (pipe == nullptr) return Status(StatusCode::kIo, "--metric " + command + ": no shell can be started");
  std::string text;
  char buffer[4096];
  for (size_t count = 0; (count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, count);
  const int state = ::pclose(pipe);
  if (!WIFEXITED(state) || WEXITSTATUS(state) != 0) {
    return refuse(command, "it failed (" +
                               (WIFEXITED(state) ? "exit status " + std::to_string(WEXITSTATUS(state))
                                                 : std::string("ended by a signal")) +
                               "); it must print a number and exit with 0");
  }
  const size_t end = text.find_last_not_of(" \t\r\n") + 1;
  const size_t begin = end == 0 ? 0 : text.find_last_of(" \t\r\n", end - 1) + 1;
  const std::string word = text.substr(begin, end - begin);
  double value = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || error != std::errc() || stop != word.data() + word.size() || !std::isfinite(value)) {
    return refuse(command,
                  "the last word it printed is '" + escaped(word.substr(0, 80)) + "', must be a finite number");
  }
  return value;
}

std::span<float> floats_of(Array& array) { return {array.data<float>(), static_cast<size_t>(array.size())}; }

}  // namespace

struct GruCommandMetric::Impl {
  Impl(std::string words, GruFloatModel model, int64_t width, float probability, WorkFolder files)
      : command(std::move(words)),
        float_model(std::move(model)),
        outputs(width),
        zoneout(probability),
        folder(std::move(files)) {}

  Status add(Sequences one) {
    const std::string name = one.array.empty() ? fs::path(one.name).stem().string() : one.array;
    one.name = name;
    for (int64_t i = 2; float_outputs.contains(one.name); ++i) one.name = name + "_" + std::to_string(i);
    Array y = Array::zeros(Dtype::kF32, {one.steps, one.batch, outputs});
    GruFloatArguments arguments;
    arguments.steps = one.steps;
    arguments.batch = one.batch;
    arguments.x = one.x;
    arguments.lengths = one.lengths;
    arguments.h0 = one.h0;
    arguments.zoneout = zoneout;
    arguments.y = floats_of(y);
    ISOBIT_RETURN_IF_ERROR(float_model.forward(arguments));
    float_outputs.emplace(one.name, std::move(y));
    data.push_back(std::move(one));
    is_written = false;
    return {};
  }

  Result<double> measure(const GruModel& model) {
    std::map<std::string, Array> integer_outputs;
    for (const Sequences& one : data) {
      Array y = Array::zeros(Dtype::kF32, {one.steps, one.batch, outputs});
      GruState state = model.initial_state(one.batch);
      if (!one.h0.empty()) {
        ISOBIT_ASSIGN_OR_RETURN(state, model.state_from_float(one.h0, one.batch));
      }
      Workspace workspace = model.workspace(one.batch, one.steps);
      RunOptions options;
      options.whole_sequence = true;
      options.lengths = one.lengths;
      ISOBIT_RETURN_IF_ERROR(model.forward(one.x, floats_of(y), one.steps, state, workspace, options));
      integer_outputs.emplace(one.name, std::move(y));
    }
    const std::string floats = folder.file("float.npz"), integers = folder.file("integer.npz"),
                      path = folder.file("model.safetensors");
    if (!is_written) ISOBIT_RETURN_IF_ERROR(save_npz(floats, float_outputs));
    is_written = true;
    ISOBIT_RETURN_IF_ERROR(save_npz(integers, integer_outputs));
    ISOBIT_RETURN_IF_ERROR(model.save(path));
    return number_of(command,
                     command + " " + shell_quoted(floats) + " " + shell_quoted(integers) + " " + shell_quoted(path));
  }

  std::string command;
  GruFloatModel float_model;
  int64_t outputs;
  float zoneout;
  WorkFolder folder;
  std::vector<Sequences> data;
  std::map<std::string, Array> float_outputs;
  bool is_written = false;  // float_outputs
};

GruCommandMetric::GruCommandMetric(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GruCommandMetric::GruCommandMetric(GruCommandMetric&&) noexcept = default;
GruCommandMetric& GruCommandMetric::operator=(GruCommandMetric&&) noexcept = default;
GruCommandMetric::~GruCommandMetric() = default;

Result<GruCommandMetric> GruCommandMetric::create(std::string command, const GruWeights& weights, float zoneout) {
  ISOBIT_ASSIGN_OR_RETURN(GruFloatModel model, GruFloatModel::create(weights));
  ISOBIT_ASSIGN_OR_RETURN(WorkFolder folder, WorkFolder::create("tune"));
  return GruCommandMetric(
      std::make_unique<Impl>(std::move(command), std::move(model), weights.output_size(), zoneout, std::move(folder)));
}

Status GruCommandMetric::add(Sequences data) { return impl_->add(std::move(data)); }
Result<double> GruCommandMetric::operator()(const GruModel& model) { return impl_->measure(model); }

}  // namespace isobit
