// SPDX-License-Identifier: Apache-2.0
// The read-only twin of a layer with few rows: it reads as many bytes as packed weights and scales have and writes
// nothing. Launches go over copies of the weights that are together more than three times the second-level cache.
#include <algorithm>
#include <limits>

#include "bench/linear_limits.h"
#include "core/cuda/ptx.cuh"

namespace isobit::limits {
namespace {

constexpr int kReaders = 128;  // threads that wait for stages; one more warp fills them
constexpr int kStageBytes = 16384;
struct TwinArgs {
  const uint4* from;
  int64_t bytes;            // a multiple of 16
  int64_t turn;             // after so many of them the first ones come again; a multiple of kStageBytes, or bytes
  int32_t stages;           // of kStageBytes; the last one of all may have less
  bool all;                 // read all words, not one a thread and stage
  unsigned long long* sum;  // of the words read; null: it is not kept
};

/// Nobody can know that it is never stored.
__device__ __forceinline__ void keep(const TwinArgs& a, unsigned long long sum) {
  if (a.sum != nullptr) {
    atomicAdd(a.sum, sum);
  } else if (sum == ~0ull) {
    asm volatile("trap;");
  }
}

/// Bulk copies to a ring of stages. Weights are constants: the first stages are asked for before the grid before ends.
__global__ void __launch_bounds__(kReaders + 32) read_stages(const __grid_constant__ TwinArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  cuda::let_next_grid_start();
  const uint32_t data = cuda::shared_address(shared);
  const uint32_t full = data + static_cast<uint32_t>(a.stages * kStageBytes);
  const uint32_t empty = full + 8 * static_cast<uint32_t>(a.stages);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < static_cast<uint32_t>(a.stages); ++i) {
      cuda::barrier_init(full + 8 * i, 1);
      cuda::barrier_init(empty + 8 * i, kReaders / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  uint32_t stage = 0, phase = 0;
  const auto for_each_stage = [&](auto work) {
    const int64_t step = int64_t{gridDim.x} * kStageBytes;
    for (int64_t at = int64_t{blockIdx.x} * kStageBytes; at < a.bytes; at += step) {
      work(at, static_cast<uint32_t>(min(int64_t{kStageBytes}, a.bytes - at)));
      if (++stage == static_cast<uint32_t>(a.stages)) {
        stage = 0;
        phase ^= 1;
      }
    }
  };
  if (warp == kReaders / 32) {
    if (cuda::is_elected())
      for_each_stage([&](int64_t at, uint32_t bytes) {
        cuda::barrier_wait(empty + 8 * stage, phase ^ 1);
        cuda::barrier_expect(full + 8 * stage, bytes);
        cuda::fetch(data + stage * kStageBytes, a.from + at % a.turn / 16, bytes, full + 8 * stage);
      });
    __syncwarp();
    return;
  }
  cuda::wait_for_grid_before();  // as for activations
  unsigned long long sum = 0;
  for_each_stage([&](int64_t, uint32_t bytes) {
    cuda::barrier_wait(full + 8 * stage, phase);
    const auto* const words = reinterpret_cast<const uint32_t*>(shared + stage * kStageBytes);
    const uint32_t end = a.all ? bytes / 4 : min(bytes / 4, static_cast<uint32_t>(kReaders));
    for (uint32_t i = threadIdx.x; i < end; i += kReaders) sum += words[i];
    __syncwarp();
    if (threadIdx.x % 32 == 0) cuda::barrier_arrive(empty + 8 * stage);
  });
  keep(a, sum);
}

/// sum: of the first ones.
__global__ void fill_words(uint32_t* words, int64_t count, int64_t first, unsigned long long* sum) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  unsigned long long own = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    words[i] = mix(static_cast<uint32_t>(i));
    if (i < first) own += words[i];
  }
  atomicAdd(sum, own);
}

// ---- The host's side

/// How many blocks of a processor read it, and with how many stages each.
struct Way {
  int blocks, stages;
  [[nodiscard]] size_t shared() const { return static_cast<size_t>(stages * (kStageBytes + 16)); }
};

void launch(const Way& way, const TwinArgs& args, bool early, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(way.blocks * device().multiProcessorCount));
  config.blockDim = dim3(kReaders + 32);
  config.dynamicSmemBytes = way.shared();
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, read_stages, args), "launch");
}

constexpr Way kWays[] = {{1, 4}, {1, 8}, {2, 4}};

void allow_all_shared_memory() {
  check_cuda(cudaFuncSetAttribute(read_stages, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(device().sharedMemPerBlockOptin)),
             "shared memory");
}

constexpr int64_t kMostCopies = 8192;  // of next to nothing

/// The weights of a layer, several times.
class Copies {
 public:
  explicit Copies(int64_t bytes)
      : bytes_(bytes),
        count_(std::min(testing::copies_beyond_cache(bytes), kMostCopies)),
        memory_(static_cast<size_t>(count_ * bytes_ / 4)),
        sum_(1) {
    fill_words<<<1024, 256>>>(memory_.get(), count_ * bytes_ / 4, bytes_ / 4, sum_.get());
    check_cuda(cudaGetLastError(), "launch");
    expected_ = sum_.read()[0];
  }
  [[nodiscard]] TwinArgs args(const Way& way, int64_t copy) const {
    return {
        reinterpret_cast<const uint4*>(memory_.get() + copy * bytes_ / 4), bytes_, bytes_, way.stages, false, nullptr};
  }
  /// Whether this way reads every word once.
  bool reads_all(const Way& way) {
    sum_.clear();
    TwinArgs all = args(way, 0);
    all.all = true;
    all.sum = sum_.get();
    launch(way, all, false, nullptr);
    return sum_.read()[0] == expected_;
  }
  /// Microseconds of a layer.
  [[nodiscard]] double time(const Way& way, bool early) const {
    return testing::microseconds_in_turn(
        count_, [&](int64_t copy, cudaStream_t stream) { launch(way, args(way, copy), early, stream); });
  }

 private:
  int64_t bytes_, count_;
  Shared<uint32_t> memory_;
  Shared<unsigned long long> sum_;
  unsigned long long expected_;
};

}  // namespace

double cache_bytes_per_us() {
  allow_all_shared_memory();
  constexpr int64_t kTurn = 8 << 20;  // far less than the cache
  constexpr int64_t kBytes = 256 * kTurn;
  const Shared<uint32_t> memory(kTurn / sizeof(uint32_t));
  double least = std::numeric_limits<double>::infinity();
  for (const Way& way : kWays) {
    const TwinArgs args{reinterpret_cast<const uint4*>(memory.get()), kBytes, kTurn, way.stages, false, nullptr};
    least =
        std::min(least, testing::median_microseconds([&](cudaStream_t stream) { launch(way, args, false, stream); }));
  }
  return kBytes / least;
}

double time_reading(int64_t bytes, bool early) {
  allow_all_shared_memory();
  Copies copies(bytes);
  double least = std::numeric_limits<double>::infinity();
  for (const Way& way : kWays) {
    require(copies.reads_all(way), "not every word was read once");
    least = std::min(least, copies.time(way, early));
  }
  return least;
}

}  // namespace isobit::limits
