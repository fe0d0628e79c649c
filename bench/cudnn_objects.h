// SPDX-License-Identifier: Apache-2.0
// What the programs that time cuDNN have in common: its errors as a Status, its objects.
#ifndef ISOBIT_BENCH_CUDNN_OBJECTS_H_
#define ISOBIT_BENCH_CUDNN_OBJECTS_H_

#include <cudnn.h>

#include <string>
#include <string_view>

#include "isobit/status.h"
#include "testing/cuda_timer.h"

namespace isobit::bench {

/// In cuDNN's own words.
inline Status cudnn_status(cudnnStatus_t status, const std::string& what) {
  if (status == CUDNN_STATUS_SUCCESS) return {};
  char detail[1024] = {};
  cudnnGetLastErrorString(detail, sizeof detail);
  std::string message = what + ": " + cudnnGetErrorString(status);
  const std::string line = std::string(detail).substr(0, std::string_view(detail).find('\n'));
  if (!line.empty()) message += " (" + line + ")";
  return {StatusCode::kUnsupported, message};
}

template <typename T, cudnnStatus_t (*create)(T**), cudnnStatus_t (*destroy)(T*)>
class CudnnObject {
 public:
  CudnnObject() { testing::required(cudnn_status(create(&object_), "creating an object of cuDNN")); }
  ~CudnnObject() { destroy(object_); }
  CudnnObject(const CudnnObject&) = delete;
  CudnnObject& operator=(const CudnnObject&) = delete;
  T* get() const { return object_; }

 private:
  T* object_ = nullptr;
};
using CudnnHandle = CudnnObject<cudnnContext, cudnnCreate, cudnnDestroy>;
using CudnnTensor = CudnnObject<cudnnTensorStruct, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;

}  // namespace isobit::bench

#endif  // ISOBIT_BENCH_CUDNN_OBJECTS_H_
