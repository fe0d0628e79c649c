// SPDX-License-Identifier: Apache-2.0
// Device memory for tests: guard bytes around it tell of writes outside.
#ifndef ISOBIT_TESTING_CUDA_BUFFER_H_
#define ISOBIT_TESTING_CUDA_BUFFER_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace isobit::testing {

/// Skips, or fails where ISOBIT_REQUIRE names cuda, when there is no device. For SetUp().
#define ISOBIT_NEEDS_CUDA_DEVICE()                                                                        \
  do {                                                                                                    \
    int isobit_devices = 0;                                                                               \
    const cudaError_t isobit_error = cudaGetDeviceCount(&isobit_devices);                                 \
    if (isobit_error != cudaSuccess || isobit_devices == 0) {                                             \
      const char* isobit_names = std::getenv("ISOBIT_REQUIRE");                                           \
      const std::string isobit_list = "," + std::string(isobit_names == nullptr ? "" : isobit_names) + ","; \
      ASSERT_EQ(isobit_list.find(",cuda,"), std::string::npos) << "ISOBIT_REQUIRE names cuda: no device";  \
      GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(isobit_error);                             \
    }                                                                                                     \
  } while (false)

/// Tests are smaller under compute-sanitizer, which is slow: scripts/test.sh sets this to the name of the tool.
inline bool sanitized() { return std::getenv("ISOBIT_SANITIZED") != nullptr; }

/// racecheck reports hand-overs of the GRU's `cluster`, `cluster_many` and `grid` that it does not follow: an arrival of
/// one lane for its warp, after __syncwarp; bulk copies that a barrier was armed for before (the heads of their kernels
/// say what orders them). So it does not get those, nor `persistent`, which is one of them, nor linear layers that use a
/// stage of shared memory again, nor the training of GRUs, whose warps arrive at named barriers without waiting.
inline bool racecheck() { return sanitized() && std::string_view(std::getenv("ISOBIT_SANITIZED")) == "racecheck"; }

/// One that does not wait for the default stream.
struct Stream {
  cudaStream_t stream = nullptr;
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { cudaStreamDestroy(stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
};

/// What work() enqueues on the stream is captured in a graph, and the graph is run.
template <typename Work>
auto through_graph(cudaStream_t stream, const Work& work) {
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t exec = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  auto status = work();
  EXPECT_EQ(cudaStreamEndCapture(stream, &captured), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&exec, captured, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(captured);
  return status;
}

/// `bytes` bytes of device memory, `offset` bytes after a 256-byte boundary, filled with kCanary as are the 256 bytes
/// on both sides.
class GuardedDeviceBuffer {
 public:
  static constexpr int64_t kGuard = 256;
  static constexpr uint8_t kCanary = 0xA5;

  explicit GuardedDeviceBuffer(int64_t bytes, int64_t offset = 0) : bytes_(bytes), offset_(offset) {
    EXPECT_EQ(cudaMalloc(&base_, static_cast<size_t>(total())), cudaSuccess);
    EXPECT_EQ(cudaMemset(base_, kCanary, static_cast<size_t>(total())), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // non-blocking streams do not wait for it
  }
  ~GuardedDeviceBuffer() { cudaFree(base_); }
  GuardedDeviceBuffer(const GuardedDeviceBuffer&) = delete;
  GuardedDeviceBuffer& operator=(const GuardedDeviceBuffer&) = delete;

  [[nodiscard]] void* data() const { return static_cast<uint8_t*>(base_) + kGuard + offset_; }
  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(data()), static_cast<size_t>(bytes_)};
  }
  template <typename T>
  void write(const std::vector<T>& values) {
    ASSERT_LE(static_cast<int64_t>(values.size() * sizeof(T)), bytes_);
    ASSERT_EQ(cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // nor for the end of a copy from pageable memory
  }
  /// The content; fails when a guard byte has changed.
  template <typename T>
  [[nodiscard]] std::vector<T> read() const {
    std::vector<uint8_t> all(static_cast<size_t>(total()));
    EXPECT_EQ(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    const auto begin = static_cast<size_t>(kGuard + offset_);
    const auto end = begin + static_cast<size_t>(bytes_);
    const auto intact = [](uint8_t byte) { return byte == kCanary; };
    EXPECT_TRUE(std::all_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(begin), intact)) << "before";
    EXPECT_TRUE(std::all_of(all.begin() + static_cast<std::ptrdiff_t>(end), all.end(), intact)) << "behind";
    std::vector<T> values(static_cast<size_t>(bytes_) / sizeof(T));
    std::copy_n(all.data() + begin, values.size() * sizeof(T), reinterpret_cast<uint8_t*>(values.data()));
    return values;
  }

 private:
  [[nodiscard]] int64_t total() const { return bytes_ + offset_ + 2 * kGuard; }
  void* base_ = nullptr;
  int64_t bytes_;
  int64_t offset_;
};

}  // namespace isobit::testing

#endif  // ISOBIT_TESTING_CUDA_BUFFER_H_
