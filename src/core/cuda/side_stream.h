// SPDX-License-Identifier: Apache-2.0
#ifndef ISOBIT_CORE_CUDA_SIDE_STREAM_H_
#define ISOBIT_CORE_CUDA_SIDE_STREAM_H_

#include <cuda_runtime_api.h>

#include <mutex>

#include "core/cuda/status.h"
#include "isobit/status.h"

namespace isobit::cuda {

/// A stream beside the caller's for the other direction of a layer. It joins the caller's again before a run returns,
/// so to the caller it is not there.
class SideStream {
 public:
  SideStream() = default;
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  ~SideStream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    for (const cudaEvent_t event : {begin_, end_})
      if (event != nullptr) cudaEventDestroy(event);
  }
  Status create() {
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "side stream"));
    for (cudaEvent_t* event : {&begin_, &end_})
      ISOBIT_RETURN_IF_ERROR(
          cuda_status(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "side stream's event"));
    return {};
  }
  /// Runs body(another stream), whose work begins after what is in `stream`, then rest(); what comes into `stream` next
  /// waits for both. One after the other in `stream` where this one belongs to another capture.
  template <typename Body, typename Rest>
  Status beside(cudaStream_t stream, Body body, Rest rest) {
    const std::lock_guard lock(mutex_);  // events are recorded and waited for in pairs
    bool usable = false;
    ISOBIT_RETURN_IF_ERROR(usable_with(stream, usable));
    if (!usable) {
      ISOBIT_RETURN_IF_ERROR(body(stream));
      return rest();
    }
    ISOBIT_RETURN_IF_ERROR(order(stream, begin_, stream_));
    const Status first = body(stream_);
    const Status second = rest();
    // Joined whatever happened, or a capture could not end.
    ISOBIT_RETURN_IF_ERROR(order(stream_, end_, stream));
    return first.ok() ? second : first;
  }

 private:
  static Status order(cudaStream_t before, cudaEvent_t event, cudaStream_t after) {
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaEventRecord(event, before), "side stream: an event"));
    return cuda_status(cudaStreamWaitEvent(after, event, 0), "side stream: waiting");
  }
  /// A stream that has joined a capture belongs to it until that ends.
  Status usable_with(cudaStream_t stream, bool& usable) const {
    cudaStreamCaptureStatus own{}, other{};
    unsigned long long own_id = 0, other_id = 0;
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamGetCaptureInfo(stream_, &own, &own_id), "side stream"));
    ISOBIT_RETURN_IF_ERROR(cuda_status(cudaStreamGetCaptureInfo(stream, &other, &other_id), "stream"));
    usable = own == cudaStreamCaptureStatusNone || (own == other && own_id == other_id);
    return {};
  }

  std::mutex mutex_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace isobit::cuda

#endif  // ISOBIT_CORE_CUDA_SIDE_STREAM_H_
