// SPDX-License-Identifier: Apache-2.0
// What calls of training on a device check before they enqueue anything.
#ifndef ISOBIT_GRU_TRAINING_CUDA_CALL_H_
#define ISOBIT_GRU_TRAINING_CUDA_CALL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/cuda/arguments.h"
#include "core/cuda/status.h"
#include "core/run_options.h"
#include "gru/training/arrays.h"
#include "isobit/gru_training.h"
#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit::cuda {

inline constexpr std::string_view kTeam = "team", kSteps = "steps";
/// t * batch + n is an int32_t, and so is a row of states.
inline constexpr int64_t kMostTrainingRows = (int64_t{1} << 31) - 1;

inline Status check_training_rows(const std::string& name, const GruTrainingSizes& s) {
  const auto refuse = [&](const char* what, int64_t value) {
    return refuse_training(name + ": " + what + " is " + std::to_string(value) + ", must be at most " +
                           std::to_string(kMostTrainingRows));
  };
  const int64_t rows = product_of_sizes({s.steps, s.batch}), states = product_of_sizes({s.batch, s.directions});
  if (rows > kMostTrainingRows) return refuse("steps * batch", rows);
  return states > kMostTrainingRows ? refuse("batch * directions", states) : Status();
}

struct TrainingCall {
  const std::string& name;
  int device;
  std::string_view why_no_team;  // empty: the kernel "team" runs it

  [[nodiscard]] Status check_options(const RunOptions& options) const {
    ISOBIT_RETURN_IF_ERROR(
        refuse_options(options, kKernelOption | kStreamOption | kSequenceOptions, "the training of a GRU on a device"));
    if (options.batch_first)
      return refuse_training(name + ": batch_first is set, must be false: x is [T, N, C] in training");
    if (!options.kernel.empty() && options.kernel != kTeam && options.kernel != kSteps)
      return refuse_training(name + ": kernel is '" + std::string(options.kernel) + "', must be team or steps");
    if (options.kernel == kTeam && !why_no_team.empty())
      return {StatusCode::kUnsupported, name + ": kernel is team, which does not run " + std::string(why_no_team) +
                                            " on device " + std::to_string(device) + "; use steps"};
    return check_current_device(device, "the training");
  }
  /// rooms: memory of at least so many bytes.
  struct Room {
    const char* name;
    std::span<std::byte> bytes;
    int64_t needed;
  };
  [[nodiscard]] Status check_arrays(std::vector<TrainingArray> arrays, std::span<const Room> rooms, int64_t batch,
                                    cudaStream_t stream) const {
    for (const Room& room : rooms) {
      ISOBIT_RETURN_IF_ERROR(check_room({room.name, room.bytes}, room.needed, batch));
      arrays.emplace_back(room.name, "bytes", room.bytes, static_cast<int64_t>(room.bytes.size()));
    }
    ISOBIT_RETURN_IF_ERROR(check_training_arrays(name, arrays));
    for (const TrainingArray& array : arrays)
      ISOBIT_RETURN_IF_ERROR(check_on_device(
          {array.name.c_str(), {static_cast<const std::byte*>(array.data), array.size * array.element_bytes}}, device));
    return check_stream(stream, device);
  }
};

}  // namespace isobit::cuda

#endif  // ISOBIT_GRU_TRAINING_CUDA_CALL_H_
