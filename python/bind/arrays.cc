// SPDX-License-Identifier: Apache-2.0
#include "arrays.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "errors.h"

namespace isobit::python {
namespace nb = nanobind;
namespace {

using Code = nb::dlpack::dtype_code;

nb::dlpack::dtype dlpack_of(Dtype dtype) {
  const auto bits = static_cast<uint8_t>(8 * size_in_bytes(dtype));
  const Code code = dtype == Dtype::kBF16                                                 ? Code::Bfloat
                    : is_float(dtype)                                                     ? Code::Float
                    : dtype == Dtype::kU8 || dtype == Dtype::kU16 || dtype == Dtype::kU32 ? Code::UInt
                                                                                          : Code::Int;
  return {static_cast<uint8_t>(code), bits, 1};
}

std::string type_text(const nb::dlpack::dtype& dtype) {
  const char* const kind = dtype.code == static_cast<uint8_t>(Code::Float)    ? "f"
                           : dtype.code == static_cast<uint8_t>(Code::Bfloat) ? "bf"
                           : dtype.code == static_cast<uint8_t>(Code::UInt)   ? "u"
                           : dtype.code == static_cast<uint8_t>(Code::Int)    ? "s"
                           : dtype.code == static_cast<uint8_t>(Code::Bool)   ? "bool"
                                                                              : "another type of ";
  return kind + std::to_string(dtype.bits);
}

/// numpy.ndarray where numpy has been imported, else null. Arrays of it are the frequent and quick case.
bool is_numpy(nb::handle object) {
  static PyObject* type = nullptr;
  if (type == nullptr) {
    const nb::handle numpy = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy");
    if (!numpy.is_valid()) return false;
    type = nb::object(numpy.attr("ndarray")).release().ptr();
  }
  return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) == type;
}

std::string names_of(std::initializer_list<Dtype> dtypes) {
  std::string names;
  for (const Dtype dtype : dtypes) names += (names.empty() ? "" : ", ") + std::string(to_string(dtype));
  return (dtypes.size() > 1 ? "one of " : "") + names;
}

Device device_of(int32_t type, int32_t number, const char* name) {
  if (type == nb::device::cpu::value) return std::nullopt;
  if (type == nb::device::cuda::value) return number;
  refuse_type(std::string(name) + " is on DLPack device " + std::to_string(type) +
              ", must be on the host or on a CUDA device; copy it there");
}

nb::object arrays_module() { return nb::module_::import_("isobit._arrays"); }

/// What both kinds of arguments must be; which of the types it is.
template <typename Tensor>
Dtype check_array(const Tensor& array, nb::handle object, const char* name, std::initializer_list<Dtype> dtypes) {
  const std::string text = name;
  if (!is_numpy(object) && nb::hasattr(object, "requires_grad") && nb::cast<bool>(object.attr("requires_grad")))
    refuse_type(text + " requires gradients, which integers do not have; pass " + text + ".detach()");
  for (const Dtype dtype : dtypes)
    if (array.dtype() == dlpack_of(dtype)) return dtype;
  refuse_type(text + " is " + type_text(array.dtype()) + ", must be " + names_of(dtypes));
}

template <typename Tensor>
std::vector<int64_t> shape_of(const Tensor& array) {
  std::vector<int64_t> shape(array.ndim());
  for (size_t i = 0; i < shape.size(); ++i) shape[i] = static_cast<int64_t>(array.shape(i));
  return shape;
}

template <typename Tensor>
bool is_contiguous(const Tensor& array, std::span<const int64_t> shape) {
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && array.stride(i) != stride) return false;
    stride *= shape[i];
  }
  return true;
}

int64_t product(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

template <typename Tensor>
Tensor cast_array(nb::handle object, const char* name, const char* what) {
  Tensor array;
  if (!nb::try_cast(object, array))
    refuse_type(std::string(name) + " is " + std::string(nb::str(object.type().attr("__name__")).c_str()) +
                ", must be " + what + " (numpy, torch, or another library with DLPack)");
  return array;
}

}  // namespace

std::string place_text(Device device) { return device ? "on CUDA device " + std::to_string(*device) : "on the host"; }

Device device_of(nb::handle object, const char* name) {
  if (is_numpy(object)) return std::nullopt;
  if (!nb::hasattr(object, "__dlpack_device__"))
    refuse_type(std::string(name) + " is " + std::string(nb::str(object.type().attr("__name__")).c_str()) +
                ", must be an array (numpy, torch, or another library with DLPack)");
  const auto [type, number] = nb::cast<std::pair<int32_t, int32_t>>(object.attr("__dlpack_device__")());
  return device_of(type, number, name);
}

void check_tensor(nb::handle object, const char* name, Device device) {
  if (nb::cast<bool>(arrays_module().attr("is_tensor")(object))) return;
  refuse_unsupported(std::string(name) + " is " + place_text(device) + " and of type " +
                     std::string(nb::str(object.type().attr("__name__")).c_str()) + ", must be a torch.Tensor there");
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Array array_of(const Input& input) {
  Array array = Array::zeros(input.dtype(), input.shape());
  std::copy(input.bytes().begin(), input.bytes().end(), array.bytes.begin());
  return array;
}

Dtype dtype_named(const char* argument, const std::string& text, std::initializer_list<Dtype> dtypes) {
  for (const Dtype dtype : dtypes)
    if (text == to_string(dtype)) return dtype;
  refuse(std::string(argument) + " is '" + text + "', must be " + names_of(dtypes));
}

Input::Input(nb::handle object, const char* name, std::initializer_list<Dtype> dtypes, Places places)
    : array_(cast_array<nb::ndarray<nb::ro>>(object, name, "an array")),
      device_(device_of(array_.device_type(), array_.device_id(), name)) {
  if (device_ && places == Places::kHost)
    refuse_unsupported(std::string(name) + " is " + place_text(device_) +
                       ", must be on the host: a device runs calls of Gru, Linear, Conv and Table, "
                       "StaticLinear.run_codes() and StaticConv.run_codes()");
  dtype_ = check_array(array_, object, name, dtypes);
  if (device_) check_tensor(object, name, device_);
  shape_ = shape_of(array_);
  if (device_ && !is_contiguous(array_, shape_))
    array_ = cast_array<nb::ndarray<nb::ro>>(object.attr("contiguous")(), name, "an array");
  const size_t size = size_in_bytes(dtype_);
  const auto count = static_cast<size_t>(product(shape_));
  const auto* const data = static_cast<const std::byte*>(array_.data());
  if (is_contiguous(array_, shape_) || count == 0) {
    bytes_ = {data, count * size};
    return;
  }
  copy_.resize(count * size);
  std::vector<int64_t> at(shape_.size(), 0);
  for (size_t i = 0; i < count; ++i) {
    int64_t offset = 0;
    for (size_t d = 0; d < at.size(); ++d) offset += at[d] * array_.stride(d);
    std::memcpy(copy_.data() + i * size, data + offset * static_cast<int64_t>(size), size);
    for (size_t d = at.size(); d-- > 0 && ++at[d] == shape_[d];) at[d] = 0;
  }
  bytes_ = copy_;
}

Output::Output(nb::handle object, const char* name, Dtype dtype, std::span<const int64_t> shape, Device device)
    : array_(cast_array<nb::ndarray<>>(object, name, "a writable array")) {
  if (const Device has = device_of(array_.device_type(), array_.device_id(), name); has != device)
    refuse_type(std::string(name) + " is " + place_text(has) + ", must be " + place_text(device) + ", as x");
  check_array(array_, object, name, {dtype});
  const std::vector<int64_t> has = shape_of(array_);
  if (!std::equal(has.begin(), has.end(), shape.begin(), shape.end()))
    refuse(std::string(name) + " has shape " + shape_text(has) + ", must be " + shape_text(shape));
  const auto count = static_cast<size_t>(product(has));
  if (!is_contiguous(array_, has) && count > 0) refuse(std::string(name) + " is not contiguous, must be");
  bytes_ = {static_cast<std::byte*>(array_.data()), count * size_in_bytes(dtype)};
}

NewArray new_array(nb::handle like, Dtype dtype, const std::vector<int64_t>& shape, Device device) {
  const auto bytes = static_cast<size_t>(product(shape)) * size_in_bytes(dtype);
  if (device) {
    nb::object tensor = arrays_module().attr("empty")(like, std::string(to_string(dtype)).c_str(), shape);
    const auto data = nb::cast<uintptr_t>(tensor.attr("data_ptr")());
    return {std::move(tensor), {reinterpret_cast<std::byte*>(data), bytes}};
  }
  auto* const memory = new std::byte[std::max<size_t>(bytes, 1)];
  const nb::capsule owner(memory, [](void* p) noexcept { delete[] static_cast<std::byte*>(p); });
  std::vector<size_t> extents(shape.begin(), shape.end());
  const std::span<std::byte> content(memory, bytes);
  if (is_numpy(like)) {
    const nb::ndarray<nb::numpy> array(memory, extents.size(), extents.data(), owner, nullptr, dlpack_of(dtype));
    return {nb::cast(array), content};
  }
  const nb::ndarray<nb::array_api> array(memory, extents.size(), extents.data(), owner, nullptr, dlpack_of(dtype));
  return {nb::module_::import_("isobit._arrays").attr("like")(like, nb::cast(array)), content};
}

Returned::Returned(nb::handle like, const nb::object& out, Dtype dtype, const std::vector<int64_t>& shape,
                   Device device)
    : array_(out) {
  if (out.is_none()) {
    NewArray made = new_array(like, dtype, shape, device);
    array_ = std::move(made.array);
    bytes_ = made.bytes;
  } else {
    bytes_ = given_.emplace(out, "out", dtype, shape, device).bytes();
  }
}

}  // namespace isobit::python
