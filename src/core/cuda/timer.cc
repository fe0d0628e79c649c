// SPDX-License-Identifier: Apache-2.0
#include "isobit/cuda/timer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/cuda/status.h"

namespace isobit::cuda {
namespace {

constexpr int kWarmUps = 3;

/// What the CUDA runtime hands out, given back in the end.
struct Handles {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  Handles() = default;
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
    if (executable != nullptr) cudaGraphExecDestroy(executable);
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
};

}  // namespace

Result<double> median_microseconds(const std::function<Status(cudaStream_t)>& work, const TimerOptions& options) {
  if (options.min_replays < 1)
    return Status(StatusCode::kInvalidArgument,
                  "min_replays is " + std::to_string(options.min_replays) + ", must be at least 1");
  Handles h;
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamCreateWithFlags(&h.stream, cudaStreamNonBlocking), "a stream"));
  ISOBIT_RETURN_IF_ERROR(
      cuda_status(cudaStreamBeginCapture(h.stream, cudaStreamCaptureModeThreadLocal), "beginning a graph"));
  const Status captured = work(h.stream);
  const Status ended = cuda_status(cudaStreamEndCapture(h.stream, &h.graph), "ending a graph");
  ISOBIT_RETURN_IF_ERROR(captured);
  ISOBIT_RETURN_IF_ERROR(ended);
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGraphInstantiate(&h.executable, h.graph, 0), "making a graph"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaEventCreate(&h.begin), "an event"));
  ISOBIT_RETURN_IF_ERROR(cuda_status(cudaEventCreate(&h.end), "an event"));
  std::vector<float> times;
  double seconds = 0;
  for (int replay = -kWarmUps; replay < options.min_replays || seconds < options.min_seconds; ++replay) {
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaEventRecord(h.begin, h.stream), "an event"));
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaGraphLaunch(h.executable, h.stream), "launching a graph"));
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaEventRecord(h.end, h.stream), "an event"));
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaEventSynchronize(h.end), "the work"));
    float milliseconds = 0;
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaEventElapsedTime(&milliseconds, h.begin, h.end), "the time"));
    if (replay < 0) continue;
    times.push_back(milliseconds);
    seconds += 1e-3 * static_cast<double>(milliseconds);
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return 1000.0 * static_cast<double>(*middle);
}

}  // namespace isobit::cuda
