// SPDX-License-Identifier: Apache-2.0
// Times of cuDNN's GRU in float16 (one layer, C = H, inference, sums in float32), by algorithm and layout of x and y;
// what cuDNN refuses is a line that says why. Shapes, graphs and lines are those of src/gru/cuda/gru_bench.cc. Before
// anything is timed, a small layer is compared with isobit's float GRU; after it, every last state with that of the
// first way.
#include <cudnn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/cudnn_objects.h"
#include "core/half.h"
#include "core/random.h"
#include "isobit/gru.h"
#include "testing/cuda_timer.h"

namespace {

using isobit::Status;
using isobit::bench::cudnn_status;
using isobit::bench::CudnnObject;
using isobit::testing::check_cuda;
using isobit::testing::device_memory;
using isobit::testing::DeviceMemory;
using isobit::testing::required;
using Json = nlohmann::ordered_json;

/// Of states in (-1, 1): some float16 roundings; a wrong gate differs by far more.
constexpr float kTolerance = 1.0f / 64;

struct Way {
  const char* name;
  cudnnRNNAlgo_t algorithm;
  const char* layout;
  cudnnRNNDataLayout_t data_layout;
  unsigned flags;
};
/// All sequences have T steps, so that packed and unpacked data are the same bytes. A plan of PERSIST_DYNAMIC is a run
/// of a compiler, so it is timed with one layout only.
constexpr Way kWays[] = {
#define ISOBIT_PACKED "packed", CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED, CUDNN_RNN_PADDED_IO_DISABLED
#define ISOBIT_UNPACKED "unpacked", CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, CUDNN_RNN_PADDED_IO_ENABLED
    {"STANDARD", CUDNN_RNN_ALGO_STANDARD, ISOBIT_PACKED},
    {"STANDARD", CUDNN_RNN_ALGO_STANDARD, ISOBIT_UNPACKED},
    {"PERSIST_STATIC", CUDNN_RNN_ALGO_PERSIST_STATIC, ISOBIT_PACKED},
    {"PERSIST_STATIC", CUDNN_RNN_ALGO_PERSIST_STATIC, ISOBIT_UNPACKED},
    {"PERSIST_STATIC_SMALL_H", CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H, ISOBIT_PACKED},
    {"PERSIST_STATIC_SMALL_H", CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H, ISOBIT_UNPACKED},
    {"PERSIST_DYNAMIC", CUDNN_RNN_ALGO_PERSIST_DYNAMIC, ISOBIT_PACKED},
#undef ISOBIT_PACKED
#undef ISOBIT_UNPACKED
};

struct Options {
  std::vector<int> hidden;
  std::vector<int> batch;
  std::vector<std::string> algorithms;
  int steps = 256;
  int repeats = 11;
  bool sequences_only = false;
  bool calls_only = false;
  bool same_weights = false;
};

using Handle = isobit::bench::CudnnHandle;
using Tensor = isobit::bench::CudnnTensor;
using Dropout = CudnnObject<cudnnDropoutStruct, cudnnCreateDropoutDescriptor, cudnnDestroyDropoutDescriptor>;
using RnnData = CudnnObject<cudnnRNNDataStruct, cudnnCreateRNNDataDescriptor, cudnnDestroyRNNDataDescriptor>;
using Rnn = CudnnObject<cudnnRNNStruct, cudnnCreateRNNDescriptor, cudnnDestroyRNNDescriptor>;

/// float16 codes, uniform in +-limit.
std::vector<uint16_t> uniform(isobit::Random& random, size_t count, float limit) {
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values)
    value = isobit::f32_to_f16(limit * static_cast<float>(random.between(-1'000'000, 1'000'000)) * 1e-6f);
  return values;
}

std::vector<float> to_float(const std::vector<uint16_t>& codes) {
  std::vector<float> values(codes.size());
  std::transform(codes.begin(), codes.end(), values.begin(), isobit::f16_to_f32);
  return values;
}

/// `count` float16 numbers of the device's memory.
std::vector<float> read(const std::byte* at, size_t count) {
  std::vector<uint16_t> codes(count);
  check_cuda(cudaMemcpy(codes.data(), at, 2 * count, cudaMemcpyDeviceToHost), "reading results");
  return to_float(codes);
}

/// NaN counts as infinity.
float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

/// As PyTorch initialises them, uniform in +-1/sqrt(H); gate order u, r, n.
struct Weights {
  explicit Weights(int hidden) : size(hidden) {
    const auto h = static_cast<size_t>(hidden);
    const float limit = 1.0f / std::sqrt(static_cast<float>(hidden));
    isobit::Random random(h);
    for (std::vector<uint16_t>& matrix : matrices) matrix = uniform(random, 3 * h * h, limit);
    for (std::vector<uint16_t>& bias : biases) bias = uniform(random, 3 * h, limit);
  }
  int size;
  std::vector<uint16_t> matrices[2];  // W, R [3H, H]
  std::vector<uint16_t> biases[2];    // bw, br [3H]
};

/// Buffers of T steps, uniform x, a first state of zeros.
struct Data {
  Data(int size, int batch, int step_count)
      : step_bytes(size_t{2} * static_cast<size_t>(size) * static_cast<size_t>(batch)),
        steps(static_cast<size_t>(step_count)),
        x(device_memory(steps * step_bytes)),
        y(device_memory(steps * step_bytes)),
        first_state(device_memory(step_bytes)),
        last_state(device_memory(step_bytes)) {
    isobit::Random random(1);
    x_codes = uniform(random, steps * step_bytes / 2, 2.0f);
    check_cuda(cudaMemcpy(x.get(), x_codes.data(), steps * step_bytes, cudaMemcpyHostToDevice), "x");
    check_cuda(cudaMemset(first_state.get(), 0, step_bytes), "state");
    check_cuda(cudaDeviceSynchronize(), "state");
  }
  /// y is NaN, so that what is compared later was written.
  void forget_results() const {
    check_cuda(cudaMemset(y.get(), 0xff, steps * step_bytes), "y");
    check_cuda(cudaDeviceSynchronize(), "y");
  }
  size_t step_bytes;
  size_t steps;
  std::vector<uint16_t> x_codes;
  DeviceMemory x;
  DeviceMemory y;
  DeviceMemory first_state;
  DeviceMemory last_state;
};

/// One layer in one way, and copies of its weights. An error says what cuDNN refuses.
class Gru {
 public:
  Gru(const Handle& handle, const Way& way, int size, int batch)
      : handle_(handle), way_(way), size_(size), batch_(batch) {}

  Status create(const Weights& weights, bool with_copies) {
    ISOBIT_RETURN_IF_ERROR(cudnn_status(cudnnSetDropoutDescriptor(dropout_.get(), handle_.get(), 0, nullptr, 0, 0),
                                        "cudnnSetDropoutDescriptor"));
    ISOBIT_RETURN_IF_ERROR(cudnn_status(
        cudnnSetRNNDescriptor_v8(rnn_.get(), way_.algorithm, CUDNN_GRU, CUDNN_RNN_DOUBLE_BIAS, CUDNN_UNIDIRECTIONAL,
                                 CUDNN_LINEAR_INPUT, CUDNN_DATA_HALF, CUDNN_DATA_FLOAT, CUDNN_TENSOR_OP_MATH, size_,
                                 size_, size_, 1, dropout_.get(), way_.flags),
        "cudnnSetRNNDescriptor_v8"));
    if (way_.algorithm == CUDNN_RNN_ALGO_PERSIST_DYNAMIC) {
      const auto begin = std::chrono::steady_clock::now();
      ISOBIT_RETURN_IF_ERROR(
          cudnn_status(cudnnBuildRNNDynamic(handle_.get(), rnn_.get(), batch_), "cudnnBuildRNNDynamic"));
      plan_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    ISOBIT_RETURN_IF_ERROR(cudnn_status(cudnnGetRNNWeightSpaceSize(handle_.get(), rnn_.get(), &weight_bytes_),
                                        "cudnnGetRNNWeightSpaceSize"));
    stride_ = (weight_bytes_ + 255) / 256 * 256;
    copies_ = with_copies
                  ? static_cast<size_t>(isobit::testing::blocks_beyond_cache(static_cast<int64_t>(weight_bytes_)))
                  : 1;
    weights_ = device_memory(copies_ * stride_);
    check_cuda(cudaMemset(weights_.get(), 0, weight_bytes_), "weights");
    for (int id = 0; id < 6; ++id) ISOBIT_RETURN_IF_ERROR(put(weights, id));
    for (size_t copy = 1; copy < copies_; ++copy)
      check_cuda(cudaMemcpy(weights_.get() + copy * stride_, weights_.get(), weight_bytes_, cudaMemcpyDeviceToDevice),
                 "copies of the weights");
    check_cuda(cudaDeviceSynchronize(), "weights");
    return {};
  }
  /// Before calls of `steps` steps.
  Status prepare(int steps) {
    const std::vector<int> lengths(static_cast<size_t>(batch_), steps);
    for (const RnnData* data : {&x_, &y_})
      ISOBIT_RETURN_IF_ERROR(cudnn_status(cudnnSetRNNDataDescriptor(data->get(), CUDNN_DATA_HALF, way_.data_layout,
                                                                    steps, batch_, size_, lengths.data(), nullptr),
                                          "cudnnSetRNNDataDescriptor"));
    const int shape[3] = {1, batch_, size_};
    const int strides[3] = {batch_ * size_, size_, 1};
    ISOBIT_RETURN_IF_ERROR(cudnn_status(cudnnSetTensorNdDescriptor(state_.get(), CUDNN_DATA_HALF, 3, shape, strides),
                                        "cudnnSetTensorNdDescriptor"));
    size_t reserve_bytes = 0;  // of training
    ISOBIT_RETURN_IF_ERROR(cudnn_status(cudnnGetRNNTempSpaceSizes(handle_.get(), rnn_.get(), CUDNN_FWD_MODE_INFERENCE,
                                                                  x_.get(), &workspace_bytes_, &reserve_bytes),
                                        "cudnnGetRNNTempSpaceSizes"));
    workspace_ = device_memory(workspace_bytes_);
    return {};
  }
  /// `calls` calls of the steps prepared, the state moving on. A call of one step finds the state in the y of the one
  /// before, so that nothing is copied. Weights are those of the first `copies` copies in turn.
  Status run(const Data& data, int steps, size_t calls, size_t copies, cudaStream_t stream) const {
    ISOBIT_RETURN_IF_ERROR(cudnn_status(cudnnSetStream(handle_.get(), stream), "cudnnSetStream"));
    const size_t count = data.steps / static_cast<size_t>(steps);
    const size_t bytes = data.step_bytes * static_cast<size_t>(steps);
    const std::byte* state = data.first_state.get();
    for (size_t call = 0; call < calls; ++call) {
      std::byte* const y = data.y.get() + call % count * bytes;
      ISOBIT_RETURN_IF_ERROR(cudnn_status(
          cudnnRNNForward(handle_.get(), rnn_.get(), CUDNN_FWD_MODE_INFERENCE, nullptr, x_.get(),
                          data.x.get() + call % count * bytes, y_.get(), y, state_.get(), state,
                          steps == 1 ? nullptr : data.last_state.get(), nullptr, nullptr, nullptr, weight_bytes_,
                          weights_.get() + call % copies * stride_, workspace_bytes_, workspace_.get(), 0, nullptr),
          "cudnnRNNForward"));
      state = y;
    }
    return {};
  }
  /// Forgets a stream that is about to go.
  void release_stream() const { required(cudnn_status(cudnnSetStream(handle_.get(), nullptr), "cudnnSetStream")); }
  [[nodiscard]] size_t copies() const { return copies_; }
  [[nodiscard]] const Way& way() const { return way_; }
  [[nodiscard]] double plan_seconds() const { return plan_seconds_; }

 private:
  /// cuDNN's matrices and biases r, u, n of x, then those of h.
  Status put(const Weights& weights, int id) {
    static constexpr size_t kGate[3] = {1, 0, 2};  // in the order u, r, n
    const Tensor matrix;
    const Tensor bias;
    void* matrix_at = nullptr;
    void* bias_at = nullptr;
    ISOBIT_RETURN_IF_ERROR(
        cudnn_status(cudnnGetRNNWeightParams(handle_.get(), rnn_.get(), 0, weight_bytes_, weights_.get(), id,
                                             matrix.get(), &matrix_at, bias.get(), &bias_at),
                     "cudnnGetRNNWeightParams"));
    cudnnDataType_t type{};
    int dimensions = 0;
    int shape[3] = {};
    int strides[3] = {};
    ISOBIT_RETURN_IF_ERROR(cudnn_status(cudnnGetTensorNdDescriptor(matrix.get(), 3, &type, &dimensions, shape, strides),
                                        "a weight matrix"));
    if (type != CUDNN_DATA_HALF || dimensions != 3 || shape[1] != size_ || shape[2] != size_ || strides[1] != size_ ||
        strides[2] != 1 || matrix_at == nullptr || bias_at == nullptr)
      return {isobit::StatusCode::kUnsupported, "weight matrix " + std::to_string(id) + " is not float16 row by row"};
    const auto h = static_cast<size_t>(size_);
    const size_t of_h = static_cast<size_t>(id) / 3;
    const size_t gate = kGate[id % 3];
    check_cuda(cudaMemcpy(matrix_at, &weights.matrices[of_h][gate * h * h], 2 * h * h, cudaMemcpyHostToDevice), "W, R");
    check_cuda(cudaMemcpy(bias_at, &weights.biases[of_h][gate * h], 2 * h, cudaMemcpyHostToDevice), "bw, br");
    return {};
  }

  const Handle& handle_;
  const Way& way_;
  int size_;
  int batch_;
  Dropout dropout_;
  Rnn rnn_;
  RnnData x_;
  RnnData y_;
  Tensor state_;
  double plan_seconds_ = 0;
  size_t weight_bytes_ = 0;
  size_t stride_ = 0;
  size_t copies_ = 1;
  size_t workspace_bytes_ = 0;
  DeviceMemory weights_;
  DeviceMemory workspace_;
};

Status check_close(const std::vector<float>& actual, const std::vector<float>& expected, const std::string& what,
                   float& difference) {
  difference = largest_difference(actual, expected);
  if (difference <= kTolerance) return {};
  return {isobit::StatusCode::kFailedPrecondition, "its result differs from " + what + " by " +
                                                       std::to_string(difference) + ", must by at most " +
                                                       std::to_string(kTolerance)};
}

void print(const Json& line) {
  // What cuDNN says of an error need not be UTF-8.
  std::printf("%s\n", line.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

class Bench {
 public:
  Bench(const Options& options, const Handle& handle) : options_(options), handle_(handle) {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, 0), "device");
    const size_t version = cudnnGetVersion();
    head_ = {{"device", properties.name},
             {"cudnn", std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
                           std::to_string(version % 100)}};
  }

  /// Is every way a GRU: whole sequences and steps of a small layer beside isobit's float GRU. Ends the program if not.
  void check() const {
    constexpr int kSize = 64, kBatch = 2, kSteps = 3;
    const Weights weights(kSize);
    const Data data(kSize, kBatch, kSteps);
    const std::vector<float> x = to_float(data.x_codes);
    std::vector<float> expected(x.size());
    isobit::GruWeights float_weights;
    float_weights.name = "bench";
    float_weights.layers.push_back({kSize, kSize, to_float(weights.matrices[0]), to_float(weights.matrices[1]),
                                    to_float(weights.biases[0]), to_float(weights.biases[1])});
    required(isobit::gru_forward_float(float_weights, {.steps = kSteps, .batch = kBatch, .x = x, .y = expected}));
    for (const Way& way : kWays) {
      if (!chosen(way)) continue;
      Gru gru(handle_, way, kSize, kBatch);
      const Status created = gru.create(weights, false);
      for (const int steps : {kSteps, 1}) {
        Json line = line_of(way, kSize, kBatch, steps, kSteps / steps);
        Status status = created;
        if (status.ok()) status = gru.prepare(steps);
        data.forget_results();
        if (status.ok()) status = gru.run(data, steps, static_cast<size_t>(kSteps / steps), 1, nullptr);
        if (status.ok()) {
          check_cuda(cudaDeviceSynchronize(), way.name);
          float difference = 0;
          const Status close = check_close(read(data.y.get(), x.size()), expected, "a float GRU's", difference);
          if (!close.ok()) {
            std::fprintf(stderr, "cuDNN %s, %s, T = %d: %s\n", way.name, way.layout, steps, close.message().c_str());
            std::exit(1);
          }
          line["difference_from_float"] = difference;
        } else {
          line["refused"] = status.message();
        }
        print(line);
      }
    }
  }

  void time(const Weights& weights, int batch) const {
    const Data data(weights.size, batch, options_.steps);
    std::vector<float> expected;  // the last state, as the first way computes it
    for (const Way& way : kWays) {
      if (!chosen(way)) continue;
      Gru gru(handle_, way, weights.size, batch);
      const Status created = gru.create(weights, !options_.same_weights);
      for (const int steps : {options_.steps, 1}) {
        if (steps == 1 ? options_.sequences_only : options_.calls_only) continue;
        Status prepared = created;
        if (prepared.ok()) prepared = gru.prepare(steps);
        for (const bool rotating : {false, true}) {
          if (rotating && (steps != 1 || options_.same_weights)) continue;
          const size_t copies = rotating ? gru.copies() : 1;
          const size_t calls = std::max(data.steps / static_cast<size_t>(steps), copies);
          Json line = line_of(way, weights.size, batch, steps, calls);
          line["weights"] = rotating ? "rotating" : "same";
          if (way.algorithm == CUDNN_RNN_ALGO_PERSIST_DYNAMIC) line["plan_seconds"] = gru.plan_seconds();
          const Status status = prepared.ok() ? time(gru, data, steps, calls, copies, expected, line) : prepared;
          if (!status.ok()) line["refused"] = status.message();
          print(line);
        }
      }
    }
  }

 private:
  [[nodiscard]] bool chosen(const Way& way) const {
    return options_.algorithms.empty() ||
           std::find(options_.algorithms.begin(), options_.algorithms.end(), way.name) != options_.algorithms.end();
  }
  [[nodiscard]] Json line_of(const Way& way, int size, int batch, int steps, size_t calls) const {
    Json line = head_;
    line.update({{"H", size}, {"N", batch}, {"T", steps}, {"calls", calls}});
    line.update({{"algorithm", way.name}, {"layout", way.layout}});
    return line;
  }

  /// Adds us_per_step to `line`. First a run without a graph, and a capture of its own: what cuDNN refuses must not end
  /// the program.
  Status time(const Gru& gru, const Data& data, int steps, size_t calls, size_t copies, std::vector<float>& expected,
              Json& line) const {
    data.forget_results();
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    Status status = gru.run(data, steps, calls, copies, stream);
    check_cuda(cudaStreamSynchronize(stream), gru.way().name);
    if (status.ok()) {
      check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
      status = gru.run(data, steps, calls, copies, stream);
      cudaGraph_t graph = nullptr;
      const cudaError_t error = cudaStreamEndCapture(stream, &graph);
      cudaGetLastError();  // it would be taken for that of the next call
      if (graph != nullptr) cudaGraphDestroy(graph);
      if (error != cudaSuccess)
        status = {isobit::StatusCode::kUnsupported,
                  std::string("in a graph: ") + (status.ok() ? cudaGetErrorString(error) : status.message())};
    }
    gru.release_stream();
    check_cuda(cudaStreamDestroy(stream), "stream");
    ISOBIT_RETURN_IF_ERROR(status);
    const double us = isobit::testing::median_microseconds(
        [&](cudaStream_t timed) { required(gru.run(data, steps, calls, copies, timed)); }, options_.repeats);
    gru.release_stream();
    if (calls * static_cast<size_t>(steps) == data.steps) {
      const size_t last = (data.steps - 1) * data.step_bytes;
      std::vector<float> state = read(data.y.get() + last, data.step_bytes / 2);
      if (expected.empty())
        expected = std::move(state);
      else {
        float difference = 0;
        ISOBIT_RETURN_IF_ERROR(check_close(state, expected, "that of the first way", difference));
      }
    }
    line["us_per_step"] = us / static_cast<double>(calls * static_cast<size_t>(steps));
    return {};
  }

  const Options& options_;
  const Handle& handle_;
  Json head_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Times cuDNN's float16 GRU on the current CUDA device, C = H, by algorithm: whole sequences and one-step calls.");
  Options options;
  app.add_option("--hidden", options.hidden, "hidden units")->delimiter(',')->check(CLI::PositiveNumber)->required();
  app.add_option("--batch", options.batch, "sequences")->delimiter(',')->check(CLI::PositiveNumber)->required();
  app.add_option("--algorithm", options.algorithms, "cuDNN's algorithms; default: all")
      ->delimiter(',')
      ->check(CLI::IsMember({"STANDARD", "PERSIST_STATIC", "PERSIST_STATIC_SMALL_H", "PERSIST_DYNAMIC"}));
  app.add_option("--steps", options.steps, "of a sequence, and one-step calls in a graph")->check(CLI::Range(2, 65536));
  auto* const sequences = app.add_flag("--sequences-only", options.sequences_only, "no one-step calls");
  app.add_flag("--calls-only", options.calls_only, "one-step calls only")->excludes(sequences);
  app.add_flag("--same-weights", options.same_weights, "no one-step calls of copies of the weights in turn");
  app.add_option("--repeats", options.repeats, "replays; the figure is their median")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  check_cuda(cudaSetDevice(0), "device");
  const Handle handle;
  const Bench bench(options, handle);
  bench.check();
  for (const int size : options.hidden) {
    const Weights weights(size);
    for (const int batch : options.batch) bench.time(weights, batch);
  }
  return 0;
}
