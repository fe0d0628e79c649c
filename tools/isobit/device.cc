// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <charconv>
#include <string_view>

namespace isobit::tool {

Result<std::unique_ptr<Device>> open_device(const std::string& option) {
  constexpr std::string_view kCuda = "cuda", kNumbered = "cuda:";
  if (option == "cpu") return std::unique_ptr<Device>();
  int32_t index = 0;
  const char* const end = option.data() + option.size();
  bool known = option == kCuda;
  if (!known && option.starts_with(kNumbered)) {
    const auto [stop, error] = std::from_chars(option.data() + kNumbered.size(), end, index);
    known = error == std::errc() && stop == end && index >= 0;
  }
  if (!known)
    return Status(StatusCode::kInvalidArgument,
                  "--device " + option + ": expected cpu, cuda or cuda:N with N from 0 on");
  return open_cuda_device(index, option);
}

Result<std::unique_ptr<Device>> open_device(const std::string& option, int threads) {
  auto device = open_device(option);
  if (!device.ok() || *device == nullptr || threads == 1) return device;
  return refuse_on_device(option, "--threads " + std::to_string(threads), "they are the CPU's");
}

Status refuse_on_device(const std::string& device, const std::string& option, const std::string& instead) {
  return {StatusCode::kInvalidArgument, option + ": not with --device " + device + "; " + instead};
}

}  // namespace isobit::tool
