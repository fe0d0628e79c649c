// SPDX-License-Identifier: Apache-2.0
// What every layer checks of RunOptions and Workspace at its door.
#ifndef ISOBIT_CORE_RUN_OPTIONS_H_
#define ISOBIT_CORE_RUN_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "isobit/dtype.h"
#include "isobit/run.h"
#include "isobit/status.h"

namespace isobit {

/// Options of RunOptions that a layer can follow, a bit each.
using RunOptionSet = uint32_t;
inline constexpr RunOptionSet kPathOption = 1, kKernelOption = 2, kPoolOption = 4, kStreamOption = 8,
                              kSequenceOptions = 16, kNextStateOption = 32, kRowOptions = 64;

/// kInvalidArgument where one is set that is not `known` to `who` ("a GRU on the CPU").
[[nodiscard]] Status refuse_options(const RunOptions& options, RunOptionSet known, std::string_view who);

/// kUnsupported: the types that x and y must have, of a layer of codes. `or_floats`: f32 both will do as well.
[[nodiscard]] Status refuse_types(Dtype x, Dtype y, Dtype x_codes, Dtype y_codes, bool or_floats);

/// " on 2 threads".
inline std::string on_threads(int threads) {
  return " on " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
}

/// Whether the workspace is large enough and where it must be; device: empty for the host.
[[nodiscard]] inline bool workspace_fits(const Workspace& workspace, int64_t needed_bytes,
                                         std::optional<int> device = {}) {
  return workspace.device() == device && workspace.size_bytes() >= needed_bytes && workspace.is_aligned();
}
/// kInvalidArgument: why it does not fit `call` ("3 rows"). `make`: the function that makes one.
[[nodiscard]] Status refuse_workspace(const Workspace& workspace, int64_t needed_bytes, std::optional<int> device,
                                      const std::string& call, const std::string& make);

}  // namespace isobit

#endif  // ISOBIT_CORE_RUN_OPTIONS_H_
