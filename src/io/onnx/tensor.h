// SPDX-License-Identifier: Apache-2.0
// Tensors of ONNX models as arrays.
#ifndef ISOBIT_IO_ONNX_TENSOR_H_
#define ISOBIT_IO_ONNX_TENSOR_H_

#include <string>

#include "io/container.h"
#include "io/onnx/messages.h"

namespace isobit::onnx {

/// "FLOAT", "INT64"; the number of a type that has no name here.
std::string type_name(int64_t type);

/// The elements: in the message, or in a file in the folder of the model at `model_path`, nothing of which is trusted
/// (empty: the model is in memory, and has no folder). `what` names the tensor in messages.
Result<Array> read_tensor(const Tensor& tensor, const std::string& model_path, const std::string& what);

/// The file that an external tensor names: a regular one in the model's folder, links resolved.
Result<std::string> external_path(const Tensor& tensor, const std::string& model_path, const std::string& what);

}  // namespace isobit::onnx

#endif  // ISOBIT_IO_ONNX_TENSOR_H_
