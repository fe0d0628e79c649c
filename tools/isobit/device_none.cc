// SPDX-License-Identifier: Apache-2.0
// --device in a tool that was built without CUDA.
#include "device.h"

namespace isobit::tool {

Result<std::unique_ptr<Device>> open_cuda_device(int64_t, const std::string& option) {
  return Status(StatusCode::kUnsupported,
                "--device " + option +
                    ": this isobit was built without CUDA; build it with cmake -DISOBIT_CUDA=ON, "
                    "which needs nvcc (scripts/test.sh --cuda)");
}

bool built_with_cuda() { return false; }

}  // namespace isobit::tool
