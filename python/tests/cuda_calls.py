# SPDX-License-Identifier: Apache-2.0
"""What a Conv, a StaticConv and the training of a GRU hand on to libisobit_cuda.so, whose place src/cuda/recorder.cc
takes; no device is needed. test_cuda_library.py runs it."""
import ctypes
import os
import sys

import fake_torch
import numpy as np
from test_cuda_library import ADDS, C, conv, float_conv, images, qat, tensor

from isobit import _isobit

library = ctypes.CDLL(os.environ["ISOBIT_CUDA_LIBRARY"])
library.isobit_cuda_told.restype = ctypes.c_char_p
torch = sys.modules["torch"] = fake_torch.module()


def told(*lines):
    said = library.isobit_cuda_told().decode()
    expected = "".join(" ".join(map(str, line)) + "\n" for line in lines)
    assert said == expected, (said, expected)


def run(call, x, *residual, **options):
    kept = []  # tensors that the call makes, and so their memory
    empty = fake_torch._empty
    torch.empty = lambda *arguments, **named: kept.append(empty(*arguments, **named)) or kept[-1]
    y = call(x, *residual, **options)
    workspace = kept[-1]
    assert workspace.shape == (768,) and workspace.device.index == x.device.index
    return y, workspace


def bits(number):
    return np.float32(number).view("i4")


stream = torch.stream.cuda_stream
F32, F16, S8, U8 = 9, 7, 0, 1  # of isobit::Dtype
plain = conv()
x = images()
y, workspace = run(plain.run_codes, x)
assert y.shape == (2, 5, 6, 4) and y.array.dtype == np.uint8 and y.device.index == 0
told(("conv_create_static", 1, 0), ("conv_workspace_bytes", 0, 2, 5, 6),
     ("conv_run", 0, x.data_ptr(), 60 * C, y.data_ptr(), 240, 0, 0, workspace.data_ptr(), 768, 2, 5, 6, 0, 0, stream,
      S8, U8))
row = fake_torch.Tensor(np.zeros((3, 7, C), "i1"), 1)  # of another device, which gets a layer of its own
y, workspace = run(plain.run_codes, row)
assert y.shape == (3, 7, 4) and y.device.index == 1
told(("conv_create_static", 1, 1), ("conv_workspace_bytes", 1, 3, 1, 7),
     ("conv_run", 1, row.data_ptr(), 21 * C, y.data_ptr(), 84, 0, 0, workspace.data_ptr(), 768, 3, 1, 7, 0, 0, stream,
      S8, U8))

adds = conv(**ADDS)
residual, out = images("i2", 4), images("u1", 4)
y, workspace = run(adds.run_codes, x, residual, out=out)
assert y is out
told(("conv_create_static", 1, 0), ("conv_workspace_bytes", 0, 2, 5, 6),
     ("conv_run", 0, x.data_ptr(), 60 * C, out.data_ptr(), 240, residual.data_ptr(), 480, workspace.data_ptr(), 768, 2,
      5, 6, 0, 0, stream, S8, U8))
turned = fake_torch.Tensor(np.zeros((5, 2, 6, C), "i1").swapaxes(0, 1))  # is copied
copies = []
turned.contiguous = lambda: copies.append(fake_torch.Tensor.contiguous(turned)) or copies[-1]
y, workspace = run(adds.run_codes, turned, residual)
told(("conv_workspace_bytes", 0, 2, 5, 6),
     ("conv_run", 0, copies[0].data_ptr(), 60 * C, y.data_ptr(), 240, residual.data_ptr(), 480, workspace.data_ptr(),
      768, 2, 5, 6, 0, 0, stream, S8, U8))
none = fake_torch.Tensor(np.zeros((0, 5, 6, C), "i1"))
assert run(plain.run_codes, none)[0].shape == (0, 5, 6, 4)
library.isobit_cuda_told()

bias = np.arange(4, dtype="f4")
floats = float_conv(bias=bias, clamp=(-1.5, 6), activations="int8_asymmetric", stride=(1, 2), name="stem")
bias[:] = 9  # the layer has its own
del bias
x = images("f4")
y, workspace = run(floats, x)
assert y.shape == (2, 5, 3, 4) and y.array.dtype == np.float32 and y.device.index == 0
axes = ("axis", 3, 1, 1, 1, 1, 0), ("axis", 3, 2, 1, 1, 1, 0)
how = "options", 2, bits(-1.5), bits(6), 4, bits(3)
told(("conv_create stem", 1, 0, C, 4, 1, 0), *axes, how, ("conv_workspace_bytes", 0, 2, 5, 6),
     ("conv_run", 0, x.data_ptr(), 240 * C, y.data_ptr(), 480, 0, 0, workspace.data_ptr(), 768, 2, 5, 6, 0, 0, stream,
      F32, F32))
x, out = images("f2", index=1), fake_torch.Tensor(np.zeros((2, 5, 3, 4), "f2"), 1)
y, workspace = run(floats, x, out=out)
assert y is out
told(("conv_create stem", 1, 1, C, 4, 1, 0), *axes, how, ("conv_workspace_bytes", 1, 2, 5, 6),
     ("conv_run", 1, x.data_ptr(), 120 * C, out.data_ptr(), 240, 0, 0, workspace.data_ptr(), 768, 2, 5, 6, 0, 0, stream,
      F16, F16))
grouped = float_conv(groups=2, transposed=True, output_padding=(0, 1), dilation=2, activations="float")
row = fake_torch.Tensor(np.zeros((3, 7, 2 * C), "f4"))
try:
    grouped(row)
except ValueError as error:
    assert "pass x as [B, 1, W, C]" in str(error), error
told()
x = fake_torch.Tensor(np.zeros((3, 1, 7, 2 * C), "f4"))
y, workspace = run(grouped, x)
assert y.shape == (3, 3, 10, 4)
told(("conv_create layer", 1, 0, 2 * C, 4, 2, 1), ("axis", 3, 1, 2, 1, 1, 0), ("axis", 3, 1, 2, 1, 1, 1),
     ("options", 0, bits(-np.inf), bits(np.inf), 0, 0), ("conv_workspace_bytes", 0, 3, 1, 7),
     ("conv_run", 0, x.data_ptr(), 168 * C, y.data_ptr(), 1440, 0, 0, workspace.data_ptr(), 768, 3, 1, 7, 0, 0, stream,
      F32, F32))
del plain, adds, floats, grouped
destroyed = library.isobit_cuda_told().decode().splitlines()
assert sorted(destroyed) == 4 * ["conv_destroy 0"] + 2 * ["conv_destroy 1"], destroyed


def floats(name, *arrays):
    return [(name, 0, 0) if array is None else (name, array.data_ptr(), array.array.size) for array in arrays]


def train(steps, batch, first=None, lengths=None, mask=None, index=0, wants_dx=True, layers=2, core=None):
    """A forward and a backward of two directions, of floats or of a GruQat; what the library must have been told of
    making what computes them, of the sizes that were asked for, and of both calls."""
    H = 8
    weights, gradients = [[tensor(*shape, index=index) for layer in range(layers) for _ in range(2)
                           for shape in ((3 * H, 2 * H if layer else C), (3 * H, H), (3 * H,), (3 * H,))]
                          for _ in range(2)]
    x, dx = (tensor(steps, batch, C, index=index) for _ in range(2))
    y, dy = (tensor(steps, batch, 2 * H, index=index) for _ in range(2))
    last, dlast, dfirst = (tensor(2 * layers, batch, H, index=index) for _ in range(3))
    dx = dx if wants_dx else None
    if core is None:
        kind, saved = "gru_training", tensor(steps * batch * 2 * H * (5 * layers - 1), index=index)
        given = x, first, weights, 2, lengths, mask
        _, forward_space = run(lambda x: _isobit.gru_device_forward(*given, y, last, saved), x)
        _, backward_space = run(
            lambda x: _isobit.gru_device_backward(*given, y, saved, dy, dlast, dx, dfirst, gradients), x)
        made = [("gru_training_create training", index, steps, batch, C, H, layers, 2)]
        forward, backward = (x, first, y, saved, last), (x, first, y, saved, None, dy, dlast, dx, dfirst)
    else:
        kind, saved = "gru_qat", tensor(256 * steps * batch, index=index, dtype="u1")
        assert _isobit.gru_qat_device_saved_bytes(core, index, steps, batch) == saved.array.size
        _, forward_space = run(
            lambda x: _isobit.gru_qat_device_forward(core, x, first, weights, lengths, mask, y, last, saved), x)
        _, backward_space = run(
            lambda dy: _isobit.gru_qat_device_backward(core, dy, dlast, lengths, mask, saved, dx, dfirst, gradients),
            dy)
        made = [("gru_qat_saved_bytes", index, steps, batch)]
        forward, backward = (x, first, y, None, last), (None, None, None, None, None, dy, dlast, dx, dfirst)
    sizes = () if core is None else (steps, batch)
    lines = []
    for name, space, of, has_weights in (("forward", forward_space, (*forward, None, None, None, None), True),
                                         ("backward", backward_space, backward, core is None)):
        lines += [(f"{kind}_workspace_bytes", index, *sizes),
                  (f"{kind}_{name}", index, space.data_ptr(), 768,
                   *(number for array in (lengths, mask) for number in floats("", array)[0][1:]), stream),
                  *(floats("weights", *weights) if has_weights else []), *floats("floats", *of),
                  *(floats("gradients", *gradients) if name == "backward" else []),
                  *([] if core is None else [("saved", saved.data_ptr(), saved.array.size, *sizes)])]
    return made, lines


made, calls = train(5, 3, tensor(4, 3, 8), tensor(3, dtype="i8"), tensor(2, 5, 3, 16, dtype="u1"))
told(*made, *calls)
told(*train(5, 3, wants_dx=False)[1])  # of the same sizes nothing is made
made, calls = train(5, 3, index=1)
told(*made, *calls)
for steps in range(6, 68):  # as many more as are remembered
    train(steps, 3)
library.isobit_cuda_told()
told(*train(5, 3, index=1)[1])  # still there
made, calls = train(68, 3)
told(*made, ("gru_training_destroy", 0), *calls)  # in the place of the one that was used before all others
made, calls = train(5, 3)
told(*made, ("gru_training_destroy", 0), *calls)

core, weights = qat(2, 2, bits="8,l1.W=6,biases=12")
ROWS = [("rows", bits, 1, 1, -1) for bits in (8, 8, 12, 12, 6, 8, 12, 12)]
given = tensor(4, 3, 8), tensor(3, dtype="i8"), tensor(2, 5, 3, 16, dtype="u1")
made, calls = train(5, 3, *given, core=core)
told(("gru_qat_create training", 1, 0, 0, 8), *ROWS, *made, *calls)
made, calls = train(6, 3, wants_dx=False, core=core)
told(*made, *calls)  # of other sizes nothing is made
held = core.with_rows_kept(weights, None)
made, calls = train(5, 3, index=1, core=held)
told(("gru_qat_create training", 1, 1, 1, 8), *ROWS, *made, *calls)
saved = tensor(9, index=1, dtype="u1")
assert _isobit.gru_qat_device_check(held, 5, 3, saved) == [i / 16 for i in range(25)]
told(("gru_qat_check", 1, 5, 3, saved.data_ptr(), 9, stream, 25))
try:
    _isobit.gru_qat_device_check(held, 1, 3, saved)
except ValueError as error:
    assert "refused by the recorder" in str(error), error
del held
assert library.isobit_cuda_told().decode().splitlines()[-1] == "gru_qat_destroy 1"
print("as expected")
