// SPDX-License-Identifier: Apache-2.0
// Times of cuDNN's convolutions of int8 codes, sums in int32, beside src/conv/cuda/conv_bench.cc: in NHWC and in
// vectors of 32 channels, every engine that its heuristics propose and every algorithm of its older calls, of which the
// fastest counts. Images are in no cache: copies of x and y in turn, as there. What gives wrong results is not timed.
// One JSON object a line; what cuDNN refuses is a line that says why.
#include <cudnn.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/conv_cudnn_layer.h"
#include "bench/cudnn_graph.h"

namespace {

using isobit::Result;
using isobit::Status;
using isobit::bench::ConvCudnnLayer;
using isobit::bench::ConvLayout;
using isobit::bench::ConvProblem;
using isobit::bench::ConvSizes;
using isobit::bench::cudnn_status;
using isobit::bench::CudnnDescriptor;
using isobit::bench::CudnnObject;
using isobit::bench::CudnnProposal;
using isobit::testing::check_cuda;
using isobit::testing::device_memory;
using isobit::testing::DeviceMemory;
using isobit::testing::required;
using Handle = isobit::bench::CudnnHandle;
using Tensor = isobit::bench::CudnnTensor;
using Filter = CudnnObject<cudnnFilterStruct, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using Convolution =
    CudnnObject<cudnnConvolutionStruct, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;
using Activation =
    CudnnObject<cudnnActivationStruct, cudnnCreateActivationDescriptor, cudnnDestroyActivationDescriptor>;
using Json = nlohmann::ordered_json;

constexpr size_t kMostWorkspace = size_t{4} << 30;

struct Options {
  size_t most = 16;    // plans of a way to compute a layer
  double seconds = 2;  // of a way, after which no further plan is made
};

/// Something that computes a layer.
struct Plan {
  std::string name;
  std::function<Status(int64_t copy)> run{};  // on the handle's stream
  double us = 0;
  double difference = 0;
};

/// Plans, and why there are no more.
class Plans {
 public:
  Plans(const Handle& handle, const ConvCudnnLayer& layer) : handle_(handle), layer_(layer) {}

  /// Of the way to compute that is named; what fails leaves its first reason.
  void refuse(const std::string& way, const Status& why) {
    if (refused_.insert(way).second) ways_[why.message()].push_back(way);
  }
  /// If it runs, in a graph too, and its results are right.
  void add(const std::string& way, Plan plan) {
    if (const Status status = check(plan); !status.ok()) {
      if (status.code() == isobit::StatusCode::kFailedPrecondition) ++wrong_;
      refuse(way, {status.code(), plan.name + ": " + status.message()});
      return;
    }
    plan.name = way + ", " + plan.name;
    plans_.push_back(std::move(plan));
  }
  void leave_out(size_t count) { untried_ += count; }

  /// The time of the fastest, or why there is none: adds them to `line`. Only those that seem fastest are timed well.
  void time(Json& line) {
    constexpr size_t kTimedWell = 3;
    line["plans"] = plans_.size();
    if (wrong_ > 0) line["wrong"] = wrong_;
    if (untried_ > 0) line["untried"] = untried_;
    if (plans_.empty()) {
      std::string words;
      for (const auto& [why, ways] : ways_) {
        words += words.empty() ? "" : "; ";
        for (const std::string& way : ways) words += way + (&way == &ways.back() ? ": " : ", ");
        words += why;
      }
      line["refused"] = words;
      return;
    }
    const auto launch_of = [this](const Plan& plan) {
      return [this, &plan](int64_t copy, cudaStream_t stream) { required(run(plan, copy, stream)); };
    };
    const auto by_time = [](const Plan& a, const Plan& b) { return a.us < b.us; };
    for (Plan& plan : plans_) plan.us = isobit::testing::estimate_in_turn(layer_.copies(), launch_of(plan));
    std::sort(plans_.begin(), plans_.end(), by_time);
    plans_.resize(std::min(plans_.size(), kTimedWell));
    for (Plan& plan : plans_) plan.us = isobit::testing::microseconds_in_turn(layer_.copies(), launch_of(plan));
    release_stream();
    const Plan& best = *std::min_element(plans_.begin(), plans_.end(), by_time);
    line["us"] = best.us;
    line["plan"] = best.name;
    line["copies"] = layer_.copies();
    line["difference"] = best.difference;
  }

 private:
  [[nodiscard]] Status run(const Plan& plan, int64_t copy, cudaStream_t stream) const {
    ISOBIT_RETURN_IF_ERROR(cudnn_status(cudnnSetStream(handle_.get(), stream), "cudnnSetStream"));
    return plan.run(copy);
  }
  /// Forgets a stream that is gone or about to go.
  void release_stream() const { required(cudnn_status(cudnnSetStream(handle_.get(), nullptr), "cudnnSetStream")); }

  /// First without a graph, then a capture of its own: what cuDNN refuses must not end the program.
  [[nodiscard]] Status check(Plan& plan) const {
    layer_.forget_results();
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    Status status = run(plan, 0, stream);
    const cudaError_t ran = cudaStreamSynchronize(stream);
    if (status.ok() && ran != cudaSuccess) status = {isobit::StatusCode::kUnsupported, cudaGetErrorString(ran)};
    if (status.ok()) status = layer_.check(plan.difference);
    if (status.ok()) {
      check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
      const Status captured = run(plan, 0, stream);
      cudaGraph_t graph = nullptr;
      const cudaError_t error = cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      if (!captured.ok() || error != cudaSuccess)
        status = {isobit::StatusCode::kUnsupported,
                  "in a CUDA graph: " + (captured.ok() ? cudaGetErrorString(error) : captured.message())};
    }
    cudaGetLastError();  // it would be taken for that of the next call
    release_stream();
    check_cuda(cudaStreamDestroy(stream), "stream");
    return status;
  }

  const Handle& handle_;
  const ConvCudnnLayer& layer_;
  std::vector<Plan> plans_;
  std::set<std::string> refused_;
  std::map<std::string, std::vector<std::string>> ways_;  // by reason
  size_t wrong_ = 0, untried_ = 0;
};

Result<DeviceMemory> workspace(size_t bytes) {
  if (bytes > kMostWorkspace)
    return Status(isobit::StatusCode::kUnsupported, "its workspace has " + std::to_string(bytes) +
                                                        " bytes, must have at most " + std::to_string(kMostWorkspace));
  return device_memory(bytes);
}

/// Numbers of tensors in a graph.
enum Id : int64_t { kX = 1, kW, kY, kScales, kSums };

/// Dimensions and strides count vectors where the layout has them.
CudnnDescriptor tensor(Id id, cudnnDataType_t type, const ConvSizes& sizes, const ConvLayout& layout) {
  static constexpr int64_t kAlignment = 16;
  const int64_t vector = std::max<int64_t>(layout.vector, 1);
  const int64_t c = sizes.c / vector, area = sizes.h * sizes.w;
  using Sizes = std::vector<int64_t>;
  CudnnDescriptor result(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor " + std::to_string(id));
  result.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, Sizes{sizes.n, c, sizes.h, sizes.w})
      .set(CUDNN_ATTR_TENSOR_STRIDES,
           vector > 1 ? Sizes{c * area, area, sizes.w, 1} : Sizes{c * area, 1, sizes.w * c, c})
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, static_cast<int64_t>(id))
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment);
  if (vector > 1)
    result.set(CUDNN_ATTR_TENSOR_VECTOR_COUNT, vector).set(CUDNN_ATTR_TENSOR_VECTORIZED_DIMENSION, int64_t{1});
  return result;
}

/// Of one node, whose alpha is the scale; or of two, of which the other multiplies by the scale of an output.
Result<std::vector<CudnnDescriptor>> graph_of(const Handle& handle, const ConvCudnnLayer& layer, bool two_nodes,
                                              bool reordered) {
  const ConvLayout& layout = layer.layout();
  CudnnDescriptor x = tensor(kX, CUDNN_DATA_INT8, layer.x_sizes(), layout);
  CudnnDescriptor w = tensor(kW, CUDNN_DATA_INT8, layer.w_sizes(), layout);
  CudnnDescriptor y = tensor(kY, CUDNN_DATA_INT8, layer.y_sizes(), layout);
  if (reordered) w.set(CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TENSOR_REORDERING_INT8x32);
  for (CudnnDescriptor* descriptor : {&x, &w, &y}) ISOBIT_RETURN_IF_ERROR(descriptor->finalize());
  std::vector<CudnnDescriptor> parts = {x, w, y};
  CudnnDescriptor sums = y;
  if (two_nodes) {
    sums = tensor(kSums, CUDNN_DATA_INT32, layer.y_sizes(), layout);
    ISOBIT_RETURN_IF_ERROR(sums.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true).finalize());
    parts.push_back(sums);
  }

  using Sizes = std::vector<int64_t>;
  const isobit::ConvAxis &rows = layer.shape().rows, &columns = layer.shape().columns;
  CudnnDescriptor convolution(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "the convolution");
  convolution.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_INT32)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t{2})
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, Sizes{rows.pad_before, columns.pad_before})
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, Sizes{rows.pad_after, columns.pad_after})
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, Sizes{rows.stride, columns.stride})
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, Sizes{rows.dilation, columns.dilation});
  ISOBIT_RETURN_IF_ERROR(convolution.finalize());
  CudnnDescriptor forward(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, "the operation");
  forward.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, sums)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, convolution)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, two_nodes ? 1.0f : layer.scale())
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, 0.0f);
  ISOBIT_RETURN_IF_ERROR(forward.finalize());
  parts.push_back(convolution);
  std::vector<CudnnDescriptor> operations = {forward};

  if (two_nodes) {
    const ConvSizes one_each(1, layer.shape().outputs, 1, 1, layout);
    CudnnDescriptor scales = tensor(kScales, CUDNN_DATA_FLOAT, one_each, layout);
    ISOBIT_RETURN_IF_ERROR(scales.finalize());
    CudnnDescriptor product(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "the product");
    product.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_MUL).set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
    ISOBIT_RETURN_IF_ERROR(product.finalize());
    CudnnDescriptor scaling(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "the scaling");
    scaling.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, product)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, sums)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, scales)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    ISOBIT_RETURN_IF_ERROR(scaling.finalize());
    operations.push_back(scaling);
    parts.insert(parts.end(), {scales, product});
  }
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the graph");
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle.get()).set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations);
  ISOBIT_RETURN_IF_ERROR(graph.finalize());
  parts.insert(parts.end(), operations.begin(), operations.end());
  parts.push_back(graph);
  return parts;
}

/// Runs a graph. The plan keeps what it is made of.
Result<Plan> graph_plan(const Handle& handle, const ConvCudnnLayer& layer, const std::vector<CudnnDescriptor>& graph,
                        const CudnnProposal& proposal, bool two_nodes, bool reordered) {
  size_t bytes = 0;
  ISOBIT_ASSIGN_OR_RETURN(const CudnnDescriptor plan,
                          isobit::bench::cudnn_plan(handle.get(), proposal.configuration, bytes));
  ISOBIT_ASSIGN_OR_RETURN(const DeviceMemory memory, workspace(bytes));
  ISOBIT_ASSIGN_OR_RETURN(std::byte* const w, layer.w(reordered || proposal.filter_reordered));
  std::vector<int64_t> ids = {kX, kW, kY};
  if (two_nodes) ids.push_back(kScales);
  std::vector<CudnnDescriptor> packs;
  for (int64_t copy = 0; copy < layer.copies(); ++copy) {
    std::vector<void*> pointers = {layer.x(copy), w, layer.y(copy)};
    if (two_nodes) pointers.push_back(layer.scales());
    packs.emplace_back(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "arguments");
    packs.back()
        .set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids)
        .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointers)
        .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, static_cast<void*>(memory.get()));
    ISOBIT_RETURN_IF_ERROR(packs.back().finalize());
  }
  return Plan{.name = proposal.name, .run = [&handle, graph, plan, memory, packs](int64_t copy) {
                return cudnn_status(
                    cudnnBackendExecute(handle.get(), plan.raw(), packs[static_cast<size_t>(copy)].raw()),
                    "cudnnBackendExecute");
              }};
}

void add_graphs(const Handle& handle, const ConvCudnnLayer& layer, bool two_nodes, const Options& options,
                Plans& plans) {
  using Clock = std::chrono::steady_clock;
  for (const bool reordered : {true, false}) {
    if (reordered && layer.layout().vector == 0) continue;
    const std::string way = std::string(two_nodes ? "graph of a convolution and scales" : "graph of a convolution") +
                            (reordered ? " (reordered weights)" : "");
    const auto begin = Clock::now();
    const Result<std::vector<CudnnDescriptor>> graph = graph_of(handle, layer, two_nodes, reordered);
    if (!graph.ok()) {
      plans.refuse(way, graph.status());
      continue;
    }
    const Result<std::vector<CudnnProposal>> proposals = isobit::bench::cudnn_proposals(graph->back());
    if (!proposals.ok()) {
      plans.refuse(way, proposals.status());
      continue;
    }
    size_t tried = 0;
    for (const CudnnProposal& proposal : *proposals) {
      if (tried == options.most || std::chrono::duration<double>(Clock::now() - begin).count() > options.seconds) break;
      ++tried;
      Result<Plan> plan = graph_plan(handle, layer, *graph, proposal, two_nodes, reordered);
      if (plan.ok())
        plans.add(way, *std::move(plan));
      else
        plans.refuse(way, {plan.status().code(), proposal.name + ": " + plan.status().message()});
    }
    plans.leave_out(proposals->size() - tried);
  }
}

/// What cuDNN's older calls take.
struct Call {
  Tensor x, y, bias;
  Filter w;
  Convolution convolution;
  Activation none;

  /// no_reorder: the weights are reordered already.
  Status describe(const ConvCudnnLayer& layer, bool no_reorder) {
    const bool vectors = layer.layout().vector != 0;
    const cudnnTensorFormat_t format = vectors ? CUDNN_TENSOR_NCHW_VECT_C : CUDNN_TENSOR_NHWC;
    const cudnnDataType_t type = vectors ? CUDNN_DATA_INT8x32 : CUDNN_DATA_INT8;
    for (const auto& [described, sizes] : {std::pair(&x, &layer.x_sizes()), std::pair(&y, &layer.y_sizes())})
      ISOBIT_RETURN_IF_ERROR(
          cudnn_status(cudnnSetTensor4dDescriptor(described->get(), format, type, static_cast<int>(sizes->n),
                                                  static_cast<int>(sizes->c), static_cast<int>(sizes->h),
                                                  static_cast<int>(sizes->w)),
                       "cudnnSetTensor4dDescriptor"));
    const ConvSizes& sizes = layer.w_sizes();
    ISOBIT_RETURN_IF_ERROR(cudnn_status(
        cudnnSetFilter4dDescriptor(w.get(), type, format, static_cast<int>(sizes.n), static_cast<int>(sizes.c),
                                   static_cast<int>(sizes.h), static_cast<int>(sizes.w)),
        "cudnnSetFilter4dDescriptor"));
    ISOBIT_RETURN_IF_ERROR(cudnn_status(
        cudnnSetTensor4dDescriptor(bias.get(), CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, static_cast<int>(sizes.n), 1, 1),
        "cudnnSetTensor4dDescriptor"));
    const isobit::ConvAxis &rows = layer.shape().rows, &columns = layer.shape().columns;
    ISOBIT_RETURN_IF_ERROR(cudnn_status(
        cudnnSetConvolution2dDescriptor(convolution.get(), static_cast<int>(rows.pad_before),
                                        static_cast<int>(columns.pad_before), static_cast<int>(rows.stride),
                                        static_cast<int>(columns.stride), static_cast<int>(rows.dilation),
                                        static_cast<int>(columns.dilation), CUDNN_CROSS_CORRELATION, CUDNN_DATA_INT32),
        "cudnnSetConvolution2dDescriptor"));
    ISOBIT_RETURN_IF_ERROR(
        cudnn_status(cudnnSetConvolutionGroupCount(convolution.get(), static_cast<int>(layer.shape().groups)),
                     "cudnnSetConvolutionGroupCount"));
    ISOBIT_RETURN_IF_ERROR(cudnn_status(cudnnSetConvolutionMathType(convolution.get(), CUDNN_TENSOR_OP_MATH),
                                        "cudnnSetConvolutionMathType"));
    if (no_reorder)
      ISOBIT_RETURN_IF_ERROR(cudnn_status(cudnnSetConvolutionReorderType(convolution.get(), CUDNN_NO_REORDER),
                                          "cudnnSetConvolutionReorderType"));
    return cudnn_status(cudnnSetActivationDescriptor(none.get(), CUDNN_ACTIVATION_IDENTITY, CUDNN_NOT_PROPAGATE_NAN, 0),
                        "cudnnSetActivationDescriptor");
  }
};

/// with_bias: zeros, and no activation.
Result<Plan> call_plan(const Handle& handle, const ConvCudnnLayer& layer, const std::shared_ptr<const Call>& call,
                       cudnnConvolutionFwdAlgo_t algorithm, bool with_bias, bool reordered) {
  size_t bytes = 0;
  ISOBIT_RETURN_IF_ERROR(
      cudnn_status(cudnnGetConvolutionForwardWorkspaceSize(handle.get(), call->x.get(), call->w.get(),
                                                           call->convolution.get(), call->y.get(), algorithm, &bytes),
                   "cudnnGetConvolutionForwardWorkspaceSize"));
  ISOBIT_ASSIGN_OR_RETURN(const DeviceMemory memory, workspace(bytes));
  ISOBIT_ASSIGN_OR_RETURN(std::byte* const w, layer.w(reordered));
  const auto run = [&handle, &layer, call, algorithm, with_bias, memory, bytes, w](int64_t copy) {
    const float scale = layer.scale(), zero = 0;
    const Call& c = *call;
    if (!with_bias)
      return cudnn_status(
          cudnnConvolutionForward(handle.get(), &scale, c.x.get(), layer.x(copy), c.w.get(), w, c.convolution.get(),
                                  algorithm, memory.get(), bytes, &zero, c.y.get(), layer.y(copy)),
          "cudnnConvolutionForward");
    return cudnn_status(cudnnConvolutionBiasActivationForward(handle.get(), &scale, c.x.get(), layer.x(copy), c.w.get(),
                                                              w, c.convolution.get(), algorithm, memory.get(), bytes,
                                                              &zero, c.y.get(), layer.y(copy), c.bias.get(),
                                                              layer.zeros(), c.none.get(), c.y.get(), layer.y(copy)),
                        "cudnnConvolutionBiasActivationForward");
  };
  return Plan{.name = "algorithm " + std::to_string(static_cast<int>(algorithm)), .run = run};
}

void add_calls(const Handle& handle, const ConvCudnnLayer& layer, bool with_bias, Plans& plans) {
  // The first: of those that cuDNN documents for int8. Its reasons are kept.
  std::vector<cudnnConvolutionFwdAlgo_t> algorithms = {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM};
  for (int i = 0; i < CUDNN_CONVOLUTION_FWD_ALGO_COUNT; ++i)
    if (i != algorithms[0]) algorithms.push_back(static_cast<cudnnConvolutionFwdAlgo_t>(i));
  for (const bool reordered : {true, false}) {
    if (reordered && layer.layout().vector == 0) continue;
    const std::string way =
        std::string(with_bias ? "call with a bias" : "call") + (reordered ? " (reordered weights)" : "");
    const auto call = std::make_shared<Call>();
    if (const Status status = call->describe(layer, reordered); !status.ok()) {
      plans.refuse(way, status);
      continue;
    }
    for (const cudnnConvolutionFwdAlgo_t algorithm : algorithms) {
      Result<Plan> plan = call_plan(handle, layer, call, algorithm, with_bias, reordered);
      if (plan.ok())
        plans.add(way, *std::move(plan));
      else
        plans.refuse(way, plan.status());
    }
  }
}

void time(const Handle& handle, const ConvProblem& problem, const ConvLayout& layout, const Options& options,
          Json& line) {
  const ConvCudnnLayer layer(handle, problem, layout);
  line.update({{"C", layer.shape().channels}, {"O", layer.shape().outputs}});
  Plans plans(handle, layer);
  for (const bool second : {false, true}) add_calls(handle, layer, second, plans);
  for (const bool second : {false, true}) add_graphs(handle, layer, second, options, plans);
  plans.time(line);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times cuDNN's convolutions of int8 codes on the current CUDA device, all that it proposes.");
  std::vector<std::string> shapes;
  std::vector<int64_t> batches;
  Options options;
  app.add_option("--conv", shapes, "HxWxC:O:R[:STRIDE[:GROUPS[:DILATION]]], DILATION * floor(R / 2) pads on every side")
      ->required();
  app.add_option("--batch", batches, "images of a run")->delimiter(',')->required();
  app.add_option("--plans", options.most, "of each way to compute a layer, at most");
  app.add_option("--seconds", options.seconds, "of each way to compute a layer; then no further plan is made");
  CLI11_PARSE(app, argc, argv);
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "device");
  const Handle handle;
  for (const std::string& text : shapes)
    for (const int64_t images : batches) {
      const ConvProblem problem = required(ConvProblem::parse(text, images));
      for (const ConvLayout& layout : isobit::bench::kConvLayouts) {
        // What is filled up only is a layout of its own where something is.
        if (layout.multiple > 1 && layout.vector == 0 && !ConvCudnnLayer::fills(problem, layout)) continue;
        Json line = {{"device", properties.name},
                     {"cudnn", cudnnGetVersion()},
                     {"conv", text},
                     {"images", images},
                     {"layout", layout.name}};
        time(handle, problem, layout, options, line);
        // What cuDNN says of an error need not be UTF-8.
        std::printf("%s\n", line.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
        std::fflush(stdout);
      }
    }
  return 0;
}
