// SPDX-License-Identifier: Apache-2.0
// CUDA devices, through libisobit_cuda.so, which is looked for when the first array on a device comes.
#ifndef ISOBIT_PYTHON_CUDA_H_
#define ISOBIT_PYTHON_CUDA_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/functions.h"
#include "errors.h"

namespace isobit::python {

/// cuda::library_functions().
const isobit_cuda_functions& cuda_functions();

/// What a function of the library returned, as an exception where it is an error.
void check_cuda(int32_t code);

/// An argument that is for the host alone.
inline void refuse_on_device(const char* name, bool given) {
  if (given) refuse(std::string(name) + " is given, which is for x on the host; x is on a CUDA device: leave it out");
}

/// torch's current stream on the device of a tensor.
struct Stream {
  explicit Stream(nanobind::handle tensor);
  nanobind::object object;
  void* handle = nullptr;
};

/// An object of the library on each device that has asked for it. Copies share them.
template <typename Object>
class OnDevices {
 public:
  /// make(Object**) makes it, once, and returns a status. The GIL is not held while it does.
  template <typename Make>
  const Object* get(int device, void (*destroy)(Object*), Make make) const {
    const nanobind::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    std::shared_ptr<Object>& object = shared_->objects[device];
    if (object == nullptr) {
      Object* made = nullptr;
      check_cuda(make(&made));
      object.reset(made, destroy);
    }
    return object.get();
  }
  /// The same of a model, of the bytes of its file.
  template <typename Model, typename Create, typename Destroy>
  const Object* get(int device, const Model& model, Create isobit_cuda_functions::*create,
                    Destroy isobit_cuda_functions::*destroy) const {
    const isobit_cuda_functions& functions = cuda_functions();
    return get(device, functions.*destroy, [&](Object** made) {
      const std::vector<std::byte> saved = take(model.saved_bytes());
      return (functions.*create)(saved.data(), static_cast<int64_t>(saved.size()), device, made);
    });
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::map<int, std::shared_ptr<Object>> objects;
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace isobit::python

#endif  // ISOBIT_PYTHON_CUDA_H_
