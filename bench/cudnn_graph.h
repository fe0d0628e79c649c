// SPDX-License-Identifier: Apache-2.0
// cuDNN's graph interface in C: descriptors of its backend, and the engines that it proposes for a graph.
#ifndef ISOBIT_BENCH_CUDNN_GRAPH_H_
#define ISOBIT_BENCH_CUDNN_GRAPH_H_

#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "isobit/status.h"

namespace isobit::bench {

/// Shared by its copies. The first error of `set` is that of `finalize`.
class CudnnDescriptor {
 public:
  /// name: for errors.
  CudnnDescriptor(cudnnBackendDescriptorType_t type, std::string name);

  template <typename T>
  CudnnDescriptor& set(cudnnBackendAttributeName_t attribute, const T& value) {
    return set(attribute, type_of<T>(), 1, &value);
  }
  template <typename T>
  CudnnDescriptor& set(cudnnBackendAttributeName_t attribute, const std::vector<T>& values) {
    return set(attribute, type_of<T>(), static_cast<int64_t>(values.size()), values.data());
  }
  CudnnDescriptor& set(cudnnBackendAttributeName_t attribute, const CudnnDescriptor& value);
  CudnnDescriptor& set(cudnnBackendAttributeName_t attribute, const std::vector<CudnnDescriptor>& values);
  Status finalize();

  /// As many as `values` can hold; it then has as many as there are.
  template <typename T>
  Status get(cudnnBackendAttributeName_t attribute, std::vector<T>& values) const {
    int64_t count = 0;
    ISOBIT_RETURN_IF_ERROR(get(attribute, type_of<T>(), static_cast<int64_t>(values.size()), &count, values.data()));
    if (count < static_cast<int64_t>(values.size())) values.resize(static_cast<size_t>(count));
    return {};
  }
  Status get(cudnnBackendAttributeName_t attribute, std::vector<CudnnDescriptor>& values) const;
  [[nodiscard]] Result<int64_t> count(cudnnBackendAttributeName_t attribute) const;
  [[nodiscard]] cudnnBackendDescriptor_t raw() const { return object_.get(); }

 private:
  template <typename T>
  static constexpr cudnnBackendAttributeType_t type_of() {
    if constexpr (std::is_same_v<T, int64_t>)
      return CUDNN_TYPE_INT64;
    else if constexpr (std::is_same_v<T, float>)
      return CUDNN_TYPE_FLOAT;
    else if constexpr (std::is_same_v<T, bool>)
      return CUDNN_TYPE_BOOLEAN;
    else if constexpr (std::is_same_v<T, void*>)
      return CUDNN_TYPE_VOID_PTR;
    else if constexpr (std::is_same_v<T, cudnnHandle_t>)
      return CUDNN_TYPE_HANDLE;
    else if constexpr (std::is_same_v<T, cudnnDataType_t>)
      return CUDNN_TYPE_DATA_TYPE;
    else if constexpr (std::is_same_v<T, cudnnConvolutionMode_t>)
      return CUDNN_TYPE_CONVOLUTION_MODE;
    else if constexpr (std::is_same_v<T, cudnnPointwiseMode_t>)
      return CUDNN_TYPE_POINTWISE_MODE;
    else if constexpr (std::is_same_v<T, cudnnBackendHeurMode_t>)
      return CUDNN_TYPE_HEUR_MODE;
    else if constexpr (std::is_same_v<T, cudnnBackendKnobType_t>)
      return CUDNN_TYPE_KNOB_TYPE;
    else if constexpr (std::is_same_v<T, cudnnBackendBehaviorNote_t>)
      return CUDNN_TYPE_BEHAVIOR_NOTE;
    else {
      static_assert(std::is_same_v<T, cudnnBackendTensorReordering_t>);
      return CUDNN_TYPE_TENSOR_REORDERING_MODE;
    }
  }
  CudnnDescriptor& set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, int64_t count,
                       const void* values);
  Status get(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, int64_t most, int64_t* count,
             void* values) const;

  std::string name_;
  Status status_;
  std::shared_ptr<void> object_;
};

/// An engine and its settings.
struct CudnnProposal {
  std::string name;
  CudnnDescriptor configuration;
  bool filter_reordered;  // by cudnnReorderFilterAndBias
};

/// What cuDNN's heuristics propose for a graph, each once, the best of each heuristic first. Errors: of the first
/// heuristic, where none proposes anything.
Result<std::vector<CudnnProposal>> cudnn_proposals(const CudnnDescriptor& graph);

/// May compile a kernel.
Result<CudnnDescriptor> cudnn_plan(cudnnHandle_t handle, const CudnnDescriptor& configuration, size_t& workspace_bytes);

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_CUDNN_GRAPH_H_
