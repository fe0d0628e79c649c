# SPDX-License-Identifier: Apache-2.0
"""What a StaticConv hands on to libisobit_cuda.so, whose place src/cuda/recorder.cc takes; no device is needed.
test_cuda_library.py runs it."""
import ctypes
import os
import sys

import fake_torch
import numpy as np
from test_cuda_library import ADDS, C, conv, images

library = ctypes.CDLL(os.environ["ISOBIT_CUDA_LIBRARY"])
library.isobit_cuda_told.restype = ctypes.c_char_p
torch = sys.modules["torch"] = fake_torch.module()


def told(*lines):
    said = library.isobit_cuda_told().decode()
    expected = "".join(" ".join(map(str, line)) + "\n" for line in lines)
    assert said == expected, (said, expected)


def run(layer, x, *residual, **options):
    kept = []  # tensors that the call makes, and so their memory
    empty = fake_torch._empty
    torch.empty = lambda *arguments, **named: kept.append(empty(*arguments, **named)) or kept[-1]
    y = layer.run_codes(x, *residual, **options)
    workspace = kept[-1]
    assert workspace.shape == (768,) and workspace.device.index == x.device.index
    return y, workspace


stream = torch.stream.cuda_stream
plain = conv()
x = images()
y, workspace = run(plain, x)
assert y.shape == (2, 5, 6, 4) and y.array.dtype == np.uint8 and y.device.index == 0
told(("conv_create", 1, 0), ("conv_workspace_bytes", 0, 2, 5, 6),
     ("conv_run", 0, x.data_ptr(), 60 * C, y.data_ptr(), 240, 0, 0, workspace.data_ptr(), 768, 2, 5, 6, 0, 0, stream))
row = fake_torch.Tensor(np.zeros((3, 7, C), "i1"), 1)  # of another device, which gets a layer of its own
y, workspace = run(plain, row)
assert y.shape == (3, 7, 4) and y.device.index == 1
told(("conv_create", 1, 1), ("conv_workspace_bytes", 1, 3, 1, 7),
     ("conv_run", 1, row.data_ptr(), 21 * C, y.data_ptr(), 84, 0, 0, workspace.data_ptr(), 768, 3, 1, 7, 0, 0, stream))

adds = conv(**ADDS)
residual, out = images("i2", 4), images("u1", 4)
y, workspace = run(adds, x, residual, out=out)
assert y is out
told(("conv_create", 1, 0), ("conv_workspace_bytes", 0, 2, 5, 6),
     ("conv_run", 0, x.data_ptr(), 60 * C, out.data_ptr(), 240, residual.data_ptr(), 480, workspace.data_ptr(), 768, 2,
      5, 6, 0, 0, stream))
turned = fake_torch.Tensor(np.zeros((5, 2, 6, C), "i1").swapaxes(0, 1))  # is copied
copies = []
turned.contiguous = lambda: copies.append(fake_torch.Tensor.contiguous(turned)) or copies[-1]
y, workspace = run(adds, turned, residual)
told(("conv_workspace_bytes", 0, 2, 5, 6),
     ("conv_run", 0, copies[0].data_ptr(), 60 * C, y.data_ptr(), 240, residual.data_ptr(), 480, workspace.data_ptr(),
      768, 2, 5, 6, 0, 0, stream))
none = fake_torch.Tensor(np.zeros((0, 5, 6, C), "i1"))
assert run(plain, none)[0].shape == (0, 5, 6, 4)
library.isobit_cuda_told()
del plain, adds
destroyed = library.isobit_cuda_told().decode().splitlines()
assert sorted(destroyed) == ["conv_destroy 0", "conv_destroy 0", "conv_destroy 1"], destroyed
print("as expected")
