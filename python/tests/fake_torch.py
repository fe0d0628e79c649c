# SPDX-License-Identifier: Apache-2.0
"""As much of torch as isobit asks for tensors on a CUDA device, over numpy: what needs no device is tested without."""
import ctypes
import types

import numpy as np


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _DLManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]
_exported = {}  # what was exported and not yet given back, by address
_delete = _Deleter(lambda managed: _exported.pop(ctypes.addressof(managed.contents), None) and None)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Tensor:
    """A numpy array that says that it is on CUDA device `index`."""

    requires_grad = False

    def __init__(self, array, index=0):
        self.array, self.device, self.shape = array, types.SimpleNamespace(type="cuda", index=index), array.shape

    def __dlpack_device__(self):
        return 2, self.device.index

    def __dlpack__(self, **_):
        extents = (ctypes.c_int64 * self.array.ndim)
        shape = extents(*self.array.shape)
        strides = extents(*(stride // self.array.itemsize for stride in self.array.strides))
        code = {"i": 0, "u": 1, "f": 2}[self.array.dtype.kind]
        tensor = _DLTensor(self.array.ctypes.data, 2, self.device.index, self.array.ndim, code,
                           8 * self.array.itemsize, 1, shape, strides, 0)
        managed = _DLManagedTensor(tensor, None, _delete)
        _exported[ctypes.addressof(managed)] = managed, shape, strides, self.array
        return _new_capsule(ctypes.addressof(managed), b"dltensor", None)

    def data_ptr(self):
        return self.array.ctypes.data

    def contiguous(self):
        return Tensor(np.ascontiguousarray(self.array), self.device.index)

    def copy_(self, other):
        self.array[...] = other.array

    def record_stream(self, stream):
        stream.recorded.append(self)


class _OnHost:
    def __init__(self, numbers):
        self.numbers = numbers

    def pin_memory(self):
        return self

    def to(self, device, non_blocking):
        assert non_blocking
        return Tensor(np.array(self.numbers, "i8"), device.index)


def _empty(shape, dtype, device):
    """Garbage, as torch's; states and workspaces are aligned to 256 bytes."""
    bytes_ = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full(bytes_ + 256, 0xA5, "u1")
    first = -memory.ctypes.data % 256
    return Tensor(memory[first:first + bytes_].view(dtype).reshape(shape), device.index)


def module():
    """The module; stream.recorded lists the tensors whose memory it keeps."""
    stream = types.SimpleNamespace(cuda_stream=0x57, recorded=[])
    made = types.ModuleType("torch")
    made.Tensor = Tensor
    made.empty = _empty
    made.tensor = lambda numbers, dtype, device: _OnHost(numbers)
    made.cuda = types.SimpleNamespace(current_stream=lambda device: stream)
    made.stream = stream
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float16", "float32"):
        setattr(made, name, name)
    return made
