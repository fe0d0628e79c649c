// SPDX-License-Identifier: Apache-2.0
// Arrays of any library that speaks DLPack: numpy, torch, jax, cupy.
#ifndef ISOBIT_PYTHON_ARRAYS_H_
#define ISOBIT_PYTHON_ARRAYS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isobit/arrays.h"
#include "isobit/dtype.h"

namespace isobit::python {

/// The CUDA device with this number; empty: the host.
using Device = std::optional<int>;
/// "on CUDA device 0", "on the host".
std::string place_text(Device device);
/// Where an array of any library lies; an error that names `name` where that is neither.
Device device_of(nanobind::handle object, const char* name);

/// Of arrays on a device isobit knows those of torch, whose stream and memory it uses: kUnsupported for others.
void check_tensor(nanobind::handle object, const char* name, Device device);

/// Where an argument may lie.
enum class Places { kHost, kHostOrDevice };

/// An argument that is read. Contiguous, or copied to be. Keeps what it views alive. On a device it is a torch.Tensor.
class Input {
 public:
  /// TypeError, which names `name`, where `object` is no array, is of none of the types or in other memory, or is a
  /// tensor that wants gradients; kUnsupported where it is on a device and must not be.
  Input(nanobind::handle object, const char* name, std::initializer_list<Dtype> dtypes, Places places = Places::kHost);
  Input(nanobind::handle object, const char* name, Dtype dtype, Places places = Places::kHost)
      : Input(object, name, {dtype}, places) {}

  [[nodiscard]] Dtype dtype() const { return dtype_; }
  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] const std::vector<int64_t>& shape() const { return shape_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  template <typename T>
  [[nodiscard]] std::span<const T> values() const {
    return {reinterpret_cast<const T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

 private:
  nanobind::ndarray<nanobind::ro> array_;
  Dtype dtype_ = Dtype::kF32;
  Device device_;
  std::vector<std::byte> copy_;
  std::vector<int64_t> shape_;
  std::span<const std::byte> bytes_;
};

/// An argument that is written: contiguous, writable, of this shape, on this device; else an error that names it.
class Output {
 public:
  Output(nanobind::handle object, const char* name, Dtype dtype, std::span<const int64_t> shape, Device device);
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  nanobind::ndarray<> array_;
  std::span<std::byte> bytes_;
};

/// A new array of the library that `like` belongs to, where `like` lies, and its memory. On a device torch allocates
/// it, on the current stream.
struct NewArray {
  nanobind::object array;
  std::span<std::byte> bytes;
};
NewArray new_array(nanobind::handle like, Dtype dtype, const std::vector<int64_t>& shape, Device device = {});

/// The array that a call returns: `out`, where it is given, or a new one of the library of `like`.
class Returned {
 public:
  Returned(nanobind::handle like, const nanobind::object& out, Dtype dtype, const std::vector<int64_t>& shape,
           Device device = {});
  [[nodiscard]] const nanobind::object& array() const { return array_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  nanobind::object array_;
  std::optional<Output> given_;
  std::span<std::byte> bytes_;
};

/// A copy as isobit holds arrays.
Array array_of(const Input& input);

/// "f32"; f16, bf16 and f32 are what rows of floats may be.
Dtype dtype_named(const char* argument, const std::string& text, std::initializer_list<Dtype> dtypes);

/// "[4, 2, 3]".
std::string shape_text(std::span<const int64_t> shape);

}  // namespace isobit::python

#endif  // ISOBIT_PYTHON_ARRAYS_H_
