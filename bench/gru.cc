// SPDX-License-Identifier: Apache-2.0
#include "bench/gru.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/median.h"
#include "bench/random.h"

namespace isobit::bench {
namespace {

constexpr size_t kMinRepeats = 5;
constexpr int64_t kCalibrationSteps = 32, kCalibrationBatch = 8;

/// T steps, in one call or in one call a step.
Status run_once(const GruModel& model, const GruCase& c, std::span<const float> x, std::span<float> y, GruState& state,
                Workspace& workspace) {
  RunOptions options;
  options.path = c.path;
  options.whole_sequence = true;
  if (!c.streaming) return model.forward(x, y, c.steps, state, workspace, options);
  const auto in_row = static_cast<size_t>(c.batch * model.input_size());
  const auto out_row = static_cast<size_t>(c.batch * model.output_size());
  for (size_t t = 0; t < static_cast<size_t>(c.steps); ++t) {
    ISOBIT_RETURN_IF_ERROR(
        model.forward(x.subspan(t * in_row, in_row), y.subspan(t * out_row, out_row), 1, state, workspace, options));
  }
  return {};
}

/// A time for wrong bytes is worth nothing: the first steps are compared with the reference.
Status check_output_bytes(const GruModel& model, GruCase c, std::span<const float> x) {
  c.steps = std::min<int64_t>(c.steps, 4);
  const auto inputs = static_cast<size_t>(c.steps * c.batch * model.input_size());
  std::vector<float> outputs[2];
  const CpuPath paths[2] = {CpuPath::kReference, c.path};
  for (int i = 0; i < 2; ++i) {
    c.path = paths[i];
    outputs[i].resize(static_cast<size_t>(c.steps * c.batch * model.output_size()));
    GruState state = model.initial_state(c.batch);
    Workspace workspace = model.workspace(c.batch, c.streaming ? 1 : c.steps);
    ISOBIT_RETURN_IF_ERROR(run_once(model, c, x.first(inputs), outputs[i], state, workspace));
  }
  if (std::memcmp(outputs[0].data(), outputs[1].data(), outputs[0].size() * sizeof(float)) == 0) return {};
  return {StatusCode::kFailedPrecondition, "kernel " + std::string(to_string(paths[1])) +
                                               " gives other bytes than the reference; isobit verify says where"};
}

}  // namespace

Result<GruModel> random_gru(int64_t input, int64_t hidden, const std::string& bits) {
  Random random(static_cast<uint64_t>(input * 1'000'003 + hidden));
  const float limit = 1.0f / std::sqrt(static_cast<float>(hidden));
  GruLayerWeights layer;
  layer.input_size = input;
  layer.hidden_size = hidden;
  layer.W = random.vector(3 * hidden * input, limit);
  layer.R = random.vector(3 * hidden * hidden, limit);
  layer.bw = random.vector(3 * hidden, limit);
  layer.br = random.vector(3 * hidden, limit);
  GruWeights weights;
  weights.name = "bench";
  weights.layers.push_back(std::move(layer));
  GruQuantization quantization;
  ISOBIT_RETURN_IF_ERROR(apply_bits(bits, quantization));
  ISOBIT_ASSIGN_OR_RETURN(GruCalibrator calibrator, GruCalibrator::create(std::move(weights)));
  const auto x = random.vector(kCalibrationSteps * kCalibrationBatch * input, 2.0f);
  ISOBIT_RETURN_IF_ERROR(calibrator.observe(x, kCalibrationSteps, kCalibrationBatch));
  return calibrator.finish(quantization);
}

Status check_gru_bytes(const GruModel& model, int64_t batch, int64_t steps, const std::string& kernel,
                       const GruRun& run) {
  steps = std::min<int64_t>(steps, 4);
  const auto x = Random(7).vector(steps * batch * model.input_size(), 2.0f);
  std::vector<float> wanted(static_cast<size_t>(steps * batch * model.output_size())), got(wanted.size());
  GruState state = model.initial_state(batch), other = state;
  Workspace workspace = model.workspace(batch, steps);
  RunOptions options;
  options.whole_sequence = true;
  ISOBIT_RETURN_IF_ERROR(model.forward(x, wanted, steps, state, workspace, options));
  ISOBIT_RETURN_IF_ERROR(run(x, got, steps, other));
  if (std::memcmp(wanted.data(), got.data(), wanted.size() * sizeof(float)) == 0) return {};
  return {StatusCode::kFailedPrecondition,
          "kernel " + kernel + " gives other bytes than the CPU; isobit verify --device says where"};
}

Result<double> time_gru(const GruModel& model, const GruCase& c, double min_time) {
  Random random(7);
  const auto x = random.vector(c.steps * c.batch * model.input_size(), 2.0f);
  std::vector<float> y(static_cast<size_t>(c.steps * c.batch * model.output_size()));
  ISOBIT_RETURN_IF_ERROR(check_output_bytes(model, c, x));
  GruState state = model.initial_state(c.batch);
  Workspace workspace = model.workspace(c.batch, c.streaming ? 1 : c.steps);
  ISOBIT_RETURN_IF_ERROR(run_once(model, c, x, y, state, workspace));
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    ISOBIT_RETURN_IF_ERROR(run_once(model, c, x, y, state, workspace));
    const std::chrono::duration<double, std::micro> elapsed = Clock::now() - start;
    times.push_back(elapsed.count() / static_cast<double>(c.steps));
  } while (times.size() < kMinRepeats || std::chrono::duration<double>(Clock::now() - begin).count() < min_time);
  return median(std::move(times));
}

GruTimes::GruTimes(bool has_choices) {
  out_.text = format("%-48s %12s", "case", "us per step") + (has_choices ? "  of the fastest\n" : "\n");
}

void GruTimes::add(const GruBenchCase& c, const std::vector<GruTime>& times, const std::string& chosen, bool judge) {
  const GruTime& fastest =
      *std::min_element(times.begin(), times.end(), [](const GruTime& a, const GruTime& b) { return a.us < b.us; });
  for (const GruTime& time : times) {
    const std::string name =
        format("gru/C%lld/H%lld/N%lld/%s/%s/%s", static_cast<long long>(c.input), static_cast<long long>(c.hidden),
               static_cast<long long>(c.batch), c.mode.c_str(), c.bits.c_str(), time.kernel.c_str());
    nlohmann::ordered_json entry = {{"name", name},          {"C", c.input},   {"H", c.hidden},
                                    {"N", c.batch},          {"T", c.steps},   {"mode", c.mode},
                                    {"kernel", time.kernel}, {"bits", c.bits}, {"us_per_step", time.us}};
    out_.text += format("%-48s %12.3f", name.c_str(), time.us);
    if (!chosen.empty()) {
      const bool is_chosen = time.kernel == chosen;
      const double ratio = time.us / fastest.us;
      entry["chosen"] = is_chosen;
      entry["of_fastest"] = ratio;
      out_.text += format("  %.3f%s", ratio, is_chosen ? ", chosen" : "");
      if (judge && is_chosen) out_.add_failure(slow_choice(name, ratio, fastest.kernel));
    }
    out_.text += "\n";
    cases_.push_back(entry.dump());
  }
}

TimesReport GruTimes::report() const {
  TimesReport out = out_;
  nlohmann::ordered_json cases = nlohmann::ordered_json::array();
  for (const std::string& entry : cases_) cases.push_back(nlohmann::ordered_json::parse(entry));
  out.json = nlohmann::ordered_json{{"cases", std::move(cases)}}.dump();
  return out;
}

}  // namespace isobit::bench
