// SPDX-License-Identifier: Apache-2.0
// Integer GRUs on random weights, timed on this processor; on a device by gru_cuda.h.
#ifndef ISOBIT_BENCH_GRU_H_
#define ISOBIT_BENCH_GRU_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/report.h"
#include "isobit/cpu.h"
#include "isobit/gru.h"
#include "isobit/status.h"

namespace isobit::bench {

/// Weights as PyTorch initialises them, uniform in +-1/sqrt(H), calibrated on uniform data. `bits`: apply_bits().
Result<GruModel> random_gru(int64_t input, int64_t hidden, const std::string& bits);

struct GruCase {
  int64_t batch = 1;
  int64_t steps = 1;
  bool streaming = false;  // a call a step
  CpuPath path = CpuPath::kReference;
};
/// Median microseconds a step on one thread, for `min_time` seconds at least. kFailedPrecondition where the path gives
/// other bytes than the reference.
Result<double> time_gru(const GruModel& model, const GruCase& c, double min_time);

/// Steps of a model on somebody's kernel: x, y, steps, state.
using GruRun = std::function<Status(std::span<const float>, std::span<float>, int64_t, GruState&)>;
/// A time for wrong bytes is worth nothing: kFailedPrecondition where `run`, of a kernel of a device, gives other bytes
/// than the CPU.
Status check_gru_bytes(const GruModel& model, int64_t batch, int64_t steps, const std::string& kernel,
                       const GruRun& run);

/// `calls` calls of `steps` steps each, over one state, or from one of two to the other in turn.
struct DeviceGruCase {
  int64_t batch = 1, steps = 1, calls = 1;
  bool two_states = false;
  std::string kernel{};
  double min_time = 0;  // seconds, at least
};

constexpr std::string_view kTwoStates = "two-states";  // a value of --mode

/// One size, and how its steps are called.
struct GruBenchCase {
  int64_t input = 1, hidden = 1, batch = 1, steps = 1;
  std::string mode, bits;

  [[nodiscard]] bool two_states() const { return mode == kTwoStates; }
  [[nodiscard]] bool streaming() const { return mode != "sequence"; }
  [[nodiscard]] int64_t steps_a_call() const { return streaming() ? 1 : steps; }
};
/// One kernel of a case.
struct GruTime {
  std::string kernel;
  double us = 0;  // a step
};
/// A line for each case and kernel. Where one is `chosen`, as on a device, and choices are judged: whether it is a good
/// one.
class GruTimes {
 public:
  explicit GruTimes(bool has_choices);
  void add(const GruBenchCase& c, const std::vector<GruTime>& times, const std::string& chosen, bool judge);
  [[nodiscard]] TimesReport report() const;

 private:
  TimesReport out_;
  std::vector<std::string> cases_{};  // JSON
};

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_GRU_H_
