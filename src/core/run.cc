// SPDX-License-Identifier: Apache-2.0
#include "isobit/run.h"

#include <new>
#include <string>
#include <utility>

#include "core/aligned_memory.h"
#include "core/run_options.h"

namespace isobit {

Workspace::Workspace(int64_t size_bytes)
    : bytes_(static_cast<std::byte*>(::operator new[](static_cast<size_t>(size_bytes), kMemoryAlignment)),
             [](std::byte* memory) { ::operator delete[](memory, kMemoryAlignment); }),
      size_bytes_(size_bytes) {}

Workspace::Workspace(std::span<std::byte> memory)
    : bytes_(memory.data(), [](std::byte*) {}), size_bytes_(static_cast<int64_t>(memory.size())) {}

Workspace::Workspace(std::byte* memory, int64_t size_bytes, int device, void (*release)(std::byte*))
    : bytes_(memory, release), size_bytes_(size_bytes), device_(device) {}

Status refuse_options(const RunOptions& options, RunOptionSet known, std::string_view who) {
  const struct {
    RunOptionSet option;
    const char* name;
    bool given;
  } all[] = {
      {kPathOption, "path", options.path.has_value()},
      {kKernelOption, "kernel", !options.kernel.empty()},
      {kPoolOption, "pool", options.pool != nullptr},
      {kStreamOption, "stream", options.stream != nullptr},
      {kSequenceOptions, "lengths", !options.lengths.empty()},
      {kSequenceOptions, "zoneout_mask", !options.zoneout_mask.empty()},
      {kSequenceOptions, "batch_first", options.batch_first},
      {kSequenceOptions, "whole_sequence", options.whole_sequence},
      {kNextStateOption, "next_state", !options.next_state.empty()},
      {kRowOptions, "x_stride", options.x_stride != 0},
      {kRowOptions, "y_stride", options.y_stride != 0},
      {kRowOptions, "unchecked", options.unchecked},
  };
  for (const auto& option : all)
    if (option.given && (known & option.option) == 0)
      return {StatusCode::kInvalidArgument, std::string("options.") + option.name + " is set, which means nothing to " +
                                                std::string(who) + "; leave it at its default"};
  return {};
}

Status refuse_types(Dtype x, Dtype y, Dtype x_codes, Dtype y_codes, bool or_floats) {
  const auto both = [](Dtype a, Dtype b) {
    return "x " + std::string(to_string(a)) + " and y " + std::string(to_string(b));
  };
  return {StatusCode::kUnsupported, both(x, y) + ", must be codes: " + both(x_codes, y_codes) +
                                        (or_floats ? "; or floats: x f32 and y f32" : "")};
}

Status refuse_workspace(const Workspace& workspace, int64_t needed_bytes, std::optional<int> device,
                        const std::string& call, const std::string& make) {
  const auto place = [](std::optional<int> number) {
    return number ? "CUDA device " + std::to_string(*number) : std::string("the host");
  };
  if (workspace.device() == device && workspace.size_bytes() >= needed_bytes)
    return {StatusCode::kInvalidArgument, "workspace is not aligned to 64 bytes, must be"};
  const std::string what = workspace.device() != device
                               ? "is memory of " + place(workspace.device()) + ", must be of " + place(device)
                               : "has " + std::to_string(workspace.size_bytes()) + " bytes, must have at least " +
                                     std::to_string(needed_bytes) + " for " + call;
  return {StatusCode::kInvalidArgument, "workspace " + what + "; make it with " + make};
}

}  // namespace isobit
