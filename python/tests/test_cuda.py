# SPDX-License-Identifier: Apache-2.0
"""torch tensors on a CUDA device: the bytes of the CPU, in place and in the order of the current stream.

Skipped without a device; ISOBIT_REQUIRE=cuda makes that a failure. ISOBIT_CUDA_LIBRARY names libisobit_cuda.so. pytest
runs it, or `python test_cuda.py` where there is none.
"""
import copy
import gc
import itertools
import json
import os
import sys
import threading

import numpy as np
from device_script import LONG, main, mark, refused, still_running, torch

import isobit

pytestmark = mark()

BITS = ("8", "16", "8,linear=16,gate_in=12,h=16", "4,linear=8")
C, T = 16, 24


def make(hidden, layers=1, directions=1, bits="8", seed=1, channels=C):
    random = np.random.default_rng(seed)
    arrays = []
    for layer, _ in itertools.product(range(layers), range(directions)):
        width = channels if layer == 0 else hidden * directions
        arrays.append([random.normal(0, scale, shape).astype("f4") for scale, shape in (
            (1 / width ** 0.5, (3 * hidden, width)), (1 / hidden ** 0.5, (3 * hidden, hidden)),
            (0.1, 3 * hidden), (0.1, 3 * hidden))])
    weights = isobit.gru_weights(arrays, directions=directions)
    return isobit.quantize(weights, random.normal(0, 1, (30, 4, channels)).astype("f4"), bits=bits)


def normal(*shape, seed=2):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1, shape).astype("f4"))


def codes_of(layer, *shape, seed=3):
    return codes_on(layer.input_grid, *shape, seed=seed)


def codes_on(grid, *shape, seed=3):
    low = -(1 << (grid["bits"] - 1)) if grid["signed"] else 0
    dtype = {"s8": "i1", "u8": "u1", "s16": "i2", "u16": "u2"}[grid["dtype"]]
    values = np.random.default_rng(seed).integers(low, low + (1 << grid["bits"]), shape)
    return torch.from_numpy(values.astype(dtype))


def same(on_device, on_host):
    assert on_device.device.type == "cuda" and on_host.device.type == "cpu"
    assert on_device.dtype == on_host.dtype and on_device.shape == on_host.shape
    assert on_device.cpu().numpy().tobytes() == on_host.numpy().tobytes()


def test_bytes_of_the_cpu():
    for bits, (layers, directions), (hidden, batch) in itertools.product(
            BITS, ((1, 1), (2, 1), (1, 2), (2, 2)), ((12, 3), (64, 1), (128, 33))):
        gru = make(hidden, layers, directions, bits)
        x = normal(T, batch, C)
        y = gru(x)
        same(gru(x.cuda()), y)
        codes = codes_of(gru, T, batch, C)
        same(gru.run_codes(codes.cuda()), gru.run_codes(codes))
        lengths = [(7 * n) % (T + 1) for n in range(batch)]
        expected = gru(x, lengths=lengths)
        for given in (lengths, torch.tensor(lengths), torch.tensor(lengths, device="cuda")):
            same(gru(x.cuda(), lengths=given), expected)
        first = x.swapaxes(0, 1).contiguous()
        same(gru(first.cuda(), batch_first=True), gru(first, batch_first=True))
        same(gru(first.cuda(), batch_first=True, lengths=lengths), gru(first, batch_first=True, lengths=lengths))


def test_forms_of_x():
    gru = make(20, 2)
    x = normal(T, 3, C)
    y = gru(x)
    device = x.cuda()
    same(gru(device[:, 1]), y[:, 1].contiguous())  # [T, C], not contiguous
    same(gru(device.swapaxes(0, 1), batch_first=True).swapaxes(0, 1).contiguous(), y)
    same(gru(device[:, :, :C]), y)
    same(gru(torch.cat([device, device], 2)[:, :, :C]), y)
    same(gru(device[:0]), y[:0])
    same(gru(device[:, :0]), y[:, :0].contiguous())
    assert gru.initial_state(0, like=device).values(device).shape == (2, 0, 20)
    with torch.inference_mode():
        same(gru(x.cuda()), y)


def test_states():
    for bits, layers in itertools.product(BITS, (1, 2)):
        gru = make(40, layers, bits=bits)
        x = normal(T, 5, C)
        device = x.cuda()
        host_state, state = gru.initial_state(5), gru.initial_state(5, like=device)
        assert host_state.device is None and state.device == 0 and state.batch == 5
        for begin, end in ((0, 1), (1, 11), (11, 12), (12, T)):
            same(gru(device[begin:end], state), gru(x[begin:end], host_state))
            same(state.values(device), host_state.values(x))
        kept, host_kept = state.copy(), host_state.copy()
        same(gru(device, state), gru(x, host_state))
        same(gru(device, kept), gru(x, host_kept))  # of its own
        h = normal(layers, 5, 40, seed=4) * 0.7
        h[0, 0, :4] = torch.tensor([float("inf"), -float("inf"), 1e-42, -0.0])
        state, host_state = gru.initial_state(5, h.cuda()), gru.initial_state(5, h)
        same(state.values(device), host_state.values(x))
        codes = codes_of(gru, T, 5, C)
        same(gru.run_codes(codes.cuda(), state), gru.run_codes(codes, host_state))
        same(state.values(device), host_state.values(x))
    both = make(24, 1, 2)
    state, host_state = both.initial_state(5, like=device), both.initial_state(5)
    same(both(device, state, whole_sequence=True), both(x, host_state, whole_sequence=True))
    same(state.values(device), host_state.values(x))
    refused(lambda: both(device, state), isobit.InvalidArgumentError, "whole_sequence")


def test_in_place_and_asynchronous():
    """The call returns while work before it runs, and sees what that work writes: nothing was copied on the host."""
    gru = make(64)
    x, other = normal(T, 8, C), normal(T, 8, C, seed=9)
    device, new = x.cuda(), other.cuda()
    out = torch.empty(T, 8, 64, device="cuda")
    lengths = [T - n for n in range(8)]
    state = gru.initial_state(8, like=device)
    gru(device, state, out=out, lengths=lengths)  # code is loaded, memory is there
    state.values(device)
    state.copy()
    where = device.data_ptr(), out.data_ptr()
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    device.copy_(new)
    state = gru.initial_state(8, like=device)
    assert gru(device, state, out=out, lengths=lengths) is out
    last = state.values(device)
    copied = state.copy()
    assert still_running(), "a call waited"
    host_state = gru.initial_state(8)
    same(out, gru(other, host_state, lengths=lengths))
    same(last, host_state.values(x))
    same(copied.values(device), last.cpu())
    assert (device.data_ptr(), out.data_ptr()) == where
    used = torch.cuda.memory_allocated()
    for _ in range(20):
        gru(device)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == used


def test_other_streams():
    """x and the state come from a slow kernel on a side stream, and the result is read there."""
    gru = make(32, 2, 2)
    x = normal(T, 4, C)
    device = x.cuda()
    expected = gru(x * 2)
    same(gru(device * 2), expected)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        gru(device * 2) + 0.0  # torch has memory for this stream
        side.synchronize()
        torch.cuda._sleep(LONG)
        y = gru(device * 2) + 0.0
        assert still_running(), "a call waited"
    side.synchronize()
    same(y, expected + 0.0)
    # A state that is made on one stream, used on another, and given up while that one still runs.
    one = make(32)
    y_host = one(x)
    for _ in range(3):
        state = one.initial_state(4, like=device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG // 4)
            y = one(device, state)
        del state
        torch.full((1 << 20,), 7, dtype=torch.uint8, device="cuda")  # would take its memory
        [torch.full((512,), 7, dtype=torch.uint8, device="cuda") for _ in range(16)]
        side.synchronize()
        same(y, y_host)


def test_graphs():
    """A call is captured once and replayed on other values."""
    gru = make(48, 1, 2)
    x = normal(T, 3, C)
    device, lengths = x.cuda(), torch.tensor([T, 3, 9], device="cuda")
    gru(device, lengths=lengths)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = gru(device, lengths=lengths)
    for seed in (5, 6):
        other = normal(T, 3, C, seed=seed)
        device.copy_(other)
        graph.replay()
        same(y, gru(other, lengths=[T, 3, 9]))


def test_nan():
    gru = make(16)
    x = normal(T, 3, C)
    zero = x.clone()
    x[2, 1, 5], zero[2, 1, 5] = float("nan"), 0
    state = gru.initial_state(3, like=x.cuda())
    state.check_input()  # no call yet
    same(gru(x.cuda(), state), gru(zero))
    refused(state.check_input, isobit.InvalidArgumentError, f"x[{(2 * 3 + 1) * C + 5}] is NaN")
    side = torch.cuda.Stream()
    device = x.cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG // 4)
        gru(device, state)
    refused(state.check_input, isobit.InvalidArgumentError, "is NaN")
    gru(zero.cuda(), state)
    state.check_input()
    gru.run_codes(codes_of(gru, T, 3, C).cuda(), state)
    state.check_input()


def test_refusals():
    gru = make(16)
    x = normal(T, 3, C)
    device = x.cuda()
    state = gru.initial_state(3, like=device)
    y = gru(device)
    other = make(16, seed=8)
    for call, error, *parts in (
            (lambda: gru(device, gru.initial_state(3)), TypeError,
             "state is on the host, must be on CUDA device 0, as x"),
            (lambda: gru(x, state), TypeError, "state is on CUDA device 0, must be on the host, as x"),
            (lambda: gru(device, other.initial_state(3, like=device)), ValueError, "state was made by another model"),
            (lambda: gru(device[:, :2], state), ValueError, "state has 3 sequences, x has 2"),
            (lambda: gru(device, state=3), TypeError, "state is int"),
            (lambda: gru(device, out=x), TypeError, "out is on the host, must be on CUDA device 0, as x"),
            (lambda: gru(x, out=y), TypeError, "out is on CUDA device 0, must be on the host, as x"),
            (lambda: gru(device, out=y[1:]), ValueError, "out has shape [23, 3, 16], must be [24, 3, 16]"),
            (lambda: gru(device, out=y.swapaxes(0, 1).contiguous().swapaxes(0, 1)), ValueError,
             "out is not contiguous"),
            (lambda: gru(device, out=y.half()), TypeError, "out is f16, must be f32"),
            (lambda: gru(device, out=device), ValueError, "overlaps"),
            (lambda: gru(device.double()), TypeError, "x is f64, must be f32"),
            (lambda: gru(device.clone().requires_grad_()), TypeError, "x requires gradients"),
            (lambda: gru(device[..., 1:]), ValueError, "x has shape [24, 3, 15], must be [T, N, 16]"),
            (lambda: gru(device, lengths=[1, 2]), ValueError, "lengths has 2 values, must have 3"),
            (lambda: gru(device, lengths=[1, 2, 25]), ValueError, "lengths[2] is 25, must be 0..24"),
            (lambda: gru(device, lengths=torch.zeros(2, dtype=torch.int64, device="cuda")), ValueError,
             "lengths has 2 values, must have 3"),
            (lambda: gru(device, lengths=torch.zeros(3, device="cuda")), TypeError, "lengths is f32, must be s64"),
            (lambda: gru(device, path="avx2"), ValueError, "path is given, which is for x on the host"),
            (lambda: gru(device, pool=isobit.ThreadPool(1)), ValueError, "pool is given"),
            (lambda: gru.run_codes(device), TypeError, "x is f32, must be s8"),
            (lambda: gru.initial_state(3, torch.zeros(1, 2, 16, device="cuda")), ValueError, "h has shape"),
            (lambda: gru.initial_state(3, torch.zeros(1, 3, 16), like=device), TypeError, "h is on the host"),
            (lambda: state.values(x), TypeError, "like is on the host, must be on CUDA device 0, as the state"),
            (lambda: other.state_from(gru, state), isobit.NotSupportedError, "state is on CUDA device 0"),
            (lambda: isobit.quantize_static(x[0], x)(device), isobit.NotSupportedError,
             "x is on CUDA device 0, must be on the host: a device runs", "StaticLinear.run_codes()")):
        refused(call, error, *parts)
    same(gru(device, state), gru(x))  # what was refused has changed nothing


def test_threads():
    """One model in many threads, each on a stream of its own; and one state, which they take in turns."""
    gru = make(48, 2)
    x = normal(T, 6, C)
    device = x.cuda()
    shared = gru.initial_state(6, like=device)
    y, wrong = gru(x), []
    torch.cuda.synchronize()

    def work():
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(30):
                    results = gru(device), gru(device, gru.initial_state(6, like=device))
                    stream.synchronize()
                    for result in results:
                        same(result, y)
                    shared.values(device)
                    shared.copy()
        except BaseException as error:  # pylint: disable=broad-except
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong

    counted = []
    host_state = gru.initial_state(6)
    for _ in range(8 * 10):
        gru(x, host_state)

    def advance():  # on one stream, as one state is
        for _ in range(10):
            gru(device, shared)
        counted.append(1)

    shared = gru.initial_state(6, like=device)
    threads = [threading.Thread(target=advance) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counted) == 8
    same(shared.values(device), host_state.values(x))


def test_quant_gru():
    import isobit.torch as it

    for bidirectional, batch_first, layers in ((False, False, 1), (True, True, 2)):
        torch.manual_seed(3)
        module = torch.nn.GRU(C, 24, layers, bidirectional=bidirectional, batch_first=batch_first).eval()
        x = torch.randn((4, T, C) if batch_first else (T, 4, C))
        h0 = torch.rand(layers * (1 + bidirectional), 4, 24) - 0.5
        quant = it.QuantGRU.from_float(module).cuda()
        with it.calibrating(quant):
            y, last = quant(x.cuda(), h0.cuda())
        assert y.device.type == last.device.type == "cuda"
        quant.freeze(bits="8,linear=16,gate_in=12,h=16")
        host = copy.deepcopy(quant).cpu()
        for first in (None, h0):
            y, last = quant(x.cuda(), None if first is None else first.cuda())
            expected, expected_last = host(x, first)
            same(y, expected)
            same(last, expected_last)
            one = x[1] if batch_first else x[:, 1]
            state = None if first is None else first[:, 1]
            y, last = quant(one.cuda(), None if state is None else state.cuda())
            expected, expected_last = host(one, state)
            same(y, expected)
            same(last, expected_last)
        for counts in ([T, 13, 7, 1], [3, T, 1, 8]):
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, counts, batch_first=batch_first, enforce_sorted=False)
            y, last = quant(packed.to("cuda"))
            expected, expected_last = host(packed)
            same(y.data, expected.data)
            same(last, expected_last)
            assert torch.equal(y.batch_sizes, expected.batch_sizes)


def test_tables():
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    dtypes = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
    for function in ("silu", "tanh"):
        table = isobit.Table(function)
        for name, (out_name, out_dtype) in itertools.product(dtypes, dtypes.items()):
            values = x.to(dtypes[name])
            expected, y = table(values, dtype=out_name), table(values.cuda(), dtype=out_name)
            assert y.dtype == out_dtype and y.device.type == "cuda"
            assert torch.equal(y.cpu().view(torch.uint8), expected.view(torch.uint8))
        turned = x.view(256, 256).t()
        same(table(x.view(256, 256).cuda().t()).view(torch.int16), table(turned.contiguous()).view(torch.int16))
        refused(lambda: table(x.cuda(), kernel="avx2"), ValueError, "kernel is given")
        out = torch.empty_like(x, device="cuda")
        assert table(x.cuda(), out=out) is out
        same(out.view(torch.int16), table(x).view(torch.int16))


def matrix(n, k, kind="symmetric", bits=4, group=32):
    return isobit.LowBit.quantize(normal(n, k, seed=n * k), bits=bits, group=group, kind=kind,
                                  method="absmax" if kind == "symmetric" else "minmax")


def test_linear():
    """Bytes of the CPU with x quantised in the call; float activations within the rounding of their sums."""
    for kind, bits, (n, k, group) in itertools.product(
            ("symmetric", "zero_point", "offset"), (1, 2, 4, 8), ((70, 200, 64), (129, 96, 32), (20, 40, None))):
        weights = matrix(n, k, kind, bits, group)
        bias = normal(n, seed=5)
        for activations, dtype, rows in (("int8", torch.float32, (3, 5)), ("int8_asymmetric", torch.float16, (1,)),
                                         ("int8", torch.bfloat16, (33,))):
            layer = isobit.Linear(weights, activations=activations, bias=bias, clamp=(-4, 5))
            x = normal(*rows, k).to(dtype)
            same(layer(x.cuda()).view(torch.uint8), layer(x).view(torch.uint8))
        layer = isobit.Linear(weights, activations="float", bias=bias)
        for dtype, limit in ((torch.float32, 1e-6 * k ** 0.5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)):
            x = normal(17, k).to(dtype)
            y, expected = layer(x.cuda()).cpu().double(), x.double() @ weights.dequantize(x).double().T + bias.double()
            assert ((y - expected).norm(dim=1) < 4 * limit * expected.norm(dim=1)).all()
            for row in range(17):  # whatever else is in the batch
                assert torch.equal(layer(x[row:row + 1].cuda()).cpu().double()[0], y[row])


def test_linear_forms():
    layer = isobit.Linear(matrix(24, 64))
    x = normal(6, 5, 64)
    device, y = x.cuda(), layer(x)
    out = torch.empty(6, 5, 24, device="cuda")
    assert layer(device, out=out) is out
    same(out, y)
    same(layer(device[:, 1]), y[:, 1].contiguous())
    same(layer(device.swapaxes(0, 1)), y.swapaxes(0, 1).contiguous())
    same(layer(device[:0]), y[:0])
    same(layer(device[0, 0]), y[0, 0])
    x[2, 3, 7] = float("inf")
    refused(lambda: layer(x), ValueError, "x[13]")
    spoilt = layer(x.cuda()).cpu()
    assert spoilt[2, 3].isnan().all() and not spoilt.view(30, 24)[:13].isnan().any()
    for call, error, *parts in (
            (lambda: layer(device, out=x), TypeError, "out is on the host, must be on CUDA device 0, as x"),
            (lambda: layer(device, out=out[1:]), ValueError, "out has shape [5, 5, 24], must be [6, 5, 24]"),
            (lambda: layer(device[..., 1:]), ValueError, "x has shape [6, 5, 63], must be [..., 64]"),
            (lambda: layer(device.double()), TypeError, "x is f64, must be one of f32, f16, bf16"),
            (lambda: layer(device, pool=isobit.ThreadPool(1)), ValueError, "pool is given"),
            (lambda: isobit.Linear(matrix(24, 64), path="reference")(device), ValueError, "path is given")):
        refused(call, error, *parts)
    same(layer(device), y)


def test_linear_with_another_order_of_columns():
    """GPTQ's order of activations: the file says which column of x belongs to which of W."""
    import tempfile

    order = np.random.default_rng(3).permutation(64).astype("i4")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ordered.safetensors")
        save_ordered(path, matrix(24, 64), order)
        layer = isobit.Linear(isobit.LowBit.load(path))
    x = normal(9, 64)
    plain = isobit.Linear(matrix(24, 64))
    expected = plain(x[:, torch.from_numpy(order).long()].contiguous())
    assert layer(x).numpy().tobytes() == expected.numpy().tobytes()
    device = x.cuda()
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            y = layer(device)
        stream.synchronize()
        same(y, expected)


def save_ordered(path, weights, order):
    """The file of a matrix, with an order of its columns."""
    weights.save(path)
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header, content = json.loads(file.read(size)), file.read()
    said = json.loads(header["__metadata__"]["isobit"])
    said["arrays"].append("weight.permutation")
    header["__metadata__"]["isobit"] = json.dumps(said)
    header["weight.permutation"] = {"dtype": "I32", "shape": [len(order)],
                                    "data_offsets": [len(content), len(content) + order.nbytes]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + content + order.tobytes())


def test_static_linear():
    for x_bits, y_bits, weight_bits in ((8, 8, 8), (8, 16, 4), (12, 8, 2), (16, 16, 8), (8, 8, 1)):
        data = normal(40, 96)
        static = isobit.quantize_static(normal(70, 96, seed=7), data, x_bits=x_bits, y_bits=y_bits,
                                        weight_bits=weight_bits)
        for shape in ((1, 96), (3, 7, 96), (0, 96)):
            codes = codes_of(static, *shape)
            same(static.run_codes(codes.cuda()), static.run_codes(codes))
        out = torch.empty(33, 70, dtype=static.run_codes(codes).dtype, device="cuda")
        codes = codes_of(static, 33, 96)
        assert static.run_codes(codes.cuda(), out=out) is out
        same(out, static.run_codes(codes))
        refused(lambda: static.run_codes(codes.cuda(), pool=isobit.ThreadPool(1)), ValueError, "pool is given")
        refused(lambda: static.run_codes(data.cuda()), TypeError, "x is f32")
    gru = make(64, bits="8,h=16")  # its codes go on to a layer without leaving the device
    x = normal(T, 3, C)
    static = isobit.quantize_static(normal(20, 64), gru(x).reshape(-1, 64), after=gru)
    codes = codes_of(gru, T, 3, C)
    same(static.run_codes(gru.run_codes(codes.cuda())), static.run_codes(gru.run_codes(codes)))


def float_conv(channels=16, outputs=24, kernel=(3, 3), **options):
    weights = np.random.default_rng(channels).normal(0, 0.2, (outputs, *kernel, channels // options.get("groups", 1)))
    return isobit.Conv.quantize(weights.astype("f4"), bias=np.linspace(-1, 1, outputs, dtype="f4"), **options)


# Kernels of the device: tile, product, depthwise, and direct for other groups of few channels; with one scale an image
# sums.
FLOAT_CONVS = ({"padding": 1, "channels": 32, "group": 16, "bits": 4, "clamp": (-4, 5)},
               {"channels": 3, "stride": 2, "padding": ((0, 1), (1, 2))},
               {"channels": 32, "outputs": 32, "groups": 32, "padding": 1},
               {"channels": 40, "outputs": 6, "groups": 2, "kernel": (1, 3), "dilation": 2, "bits": 2},
               {"channels": 16, "transposed": True, "stride": 2, "output_padding": 1})


def test_conv():
    """Bytes of the CPU with x quantised in the call; float activations within the rounding of their sums."""
    for made in FLOAT_CONVS:
        channels = made.get("channels", 16)
        for activations, dtype in (("int8", torch.float32), ("int8", torch.bfloat16), ("int8_asymmetric", torch.float16),
                                   ("int8_per_image", torch.float32)):
            shared = {"group": None} if activations == "int8_per_image" else {}
            layer = float_conv(**{**made, **shared}, activations=activations)
            for batch in (2, 0):
                x = normal(batch, 9, 11, channels).to(dtype)
                same(layer(x.cuda()).view(torch.uint8), layer(x).view(torch.uint8))
        layer = float_conv(**made, activations="float")
        for dtype, limit in ((torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)):
            x = normal(3, 9, 11, channels).to(dtype)
            y, expected = layer(x.cuda()), layer(x.float()).double()
            assert y.dtype == dtype
            assert (y.cpu().double() - expected).norm() < 4 * limit * expected.norm()
            for image in range(3):  # whatever else is in the batch
                assert torch.equal(layer(x[image:image + 1].cuda())[0], y[image])


def test_conv_forms():
    layer = float_conv(kernel=(1, 3), padding=((0, 0), (2, 0)))
    x = normal(4, 30, 16)  # one row
    device, y = x.cuda(), layer(x)
    same(layer(device), y)
    same(layer(device[:, None]), y[:, None])
    same(layer(device.swapaxes(0, 1).contiguous().swapaxes(0, 1)), y)
    same(layer(device[1:]), y[1:])
    out = torch.empty(4, 30, 24, device="cuda")
    assert layer(device, out=out) is out
    same(out, y)
    for call, error, *parts in (
            (lambda: layer(device, out=y), TypeError, "out is on the host, must be on CUDA device 0"),
            (lambda: layer(device, out=out[1:]), ValueError, "out has shape [3, 30, 24], must be [4, 30, 24]"),
            (lambda: layer(device[..., 1:]), ValueError, "x has shape [4, 30, 15], must be [B, H, W, 16]"),
            (lambda: layer(device.double()), TypeError, "x is f64, must be one of f32, f16, bf16"),
            (lambda: layer(device, pool=isobit.ThreadPool(1)), ValueError, "pool is given"),
            (lambda: float_conv(kernel=(1, 3), path="reference")(device), ValueError, "path is given")):
        refused(call, error, *parts)
    same(layer(device), y)
    x[2, 9, 7] = float("inf")
    refused(lambda: layer(x), ValueError, "x[2, 0, 9]")
    spoilt = layer(x.cuda()).cpu().isnan()
    assert spoilt[2, 9:12].all() and spoilt.sum() == 3 * 24
    x = normal(3, 9, 11, 16)
    x[1, 4, 4, 4] = float("nan")
    layer = float_conv(activations="int8_per_image")
    refused(lambda: layer(x), ValueError, "x[1]")
    spoilt = layer(x.cuda()).cpu().isnan()
    assert spoilt[1].all() and not spoilt[0].any() and not spoilt[2].any()


def conv(x_bits=8, y_bits=8, weight_bits=8, channels=16, outputs=24, kernel=(3, 3), residual_bits=None, **options):
    """No y_bits: y is the accumulators."""
    weights = np.random.default_rng(channels).normal(0, 0.2, (outputs, *kernel, channels // options.get("groups", 1)))
    x, y, residual = [bits and {"bits": bits, "scale": 12 / 2 ** bits, "zero_point": 3}
                      for bits in (x_bits, y_bits, residual_bits)]
    return isobit.StaticConv.quantize(weights.astype("f4"), input_grid=x, output_grid=y, residual_grid=residual,
                                      weight_bits=weight_bits, **options)


def test_static_conv():
    """Each kernel of the device has a layer here: tile, the same on copied rows, depthwise, product, direct."""
    for made in ({"padding": 1}, {"channels": 3, "stride": 2, "padding": ((0, 1), (1, 2)), "weight_bits": 4},
                 {"channels": 32, "outputs": 32, "groups": 32, "padding": 1, "y_bits": 16},
                 {"x_bits": 12, "channels": 64, "outputs": 128, "padding": 2, "dilation": 2},
                 {"channels": 6, "groups": 3, "x_bits": 16},
                 {"channels": 5, "transposed": True, "stride": 2, "output_padding": 1, "weight_bits": 2}):
        for residual_bits, changed in ((None, {}), (8, {}), (12, {}), (None, {"y_bits": None})):
            layer = conv(residual_bits=residual_bits, **{**made, **changed})
            for batch in (2, 0):
                x = codes_of(layer, batch, 9, 11, made.get("channels", 16))
                y_shape = (batch, *layer.output_shape((9, 11)), made.get("outputs", 24))
                residual = [codes_on(layer.residual_grid, *y_shape, seed=4)] if residual_bits else []
                same(layer.run_codes(x.cuda(), *(codes.cuda() for codes in residual)), layer.run_codes(x, *residual))


def test_static_conv_forms():
    layer = conv(kernel=(1, 3), padding=((0, 0), (2, 0)), residual_bits=8)
    x = codes_of(layer, 4, 30, 16)  # one row
    residual = codes_on(layer.residual_grid, 4, 30, 24, seed=4)
    device, added, y = x.cuda(), residual.cuda(), layer.run_codes(x, residual)
    same(layer.run_codes(device, added), y)
    same(layer.run_codes(device[:, None], added[:, None]), y[:, None])
    same(layer.run_codes(device.swapaxes(0, 1).contiguous().swapaxes(0, 1), added), y)
    same(layer.run_codes(device[1:], added[1:]), y[1:])
    out = torch.empty_like(added)
    assert layer.run_codes(device, added, out=out) is out
    same(out, y)
    assert layer.run_codes(device, added, out=added) is added  # in its place
    same(added, y)
    added = residual.cuda()
    for call, error, *parts in (
            (lambda: layer.run_codes(device, residual), TypeError, "residual is on the host, must be on CUDA device 0"),
            (lambda: layer.run_codes(x, added), TypeError, "residual is on CUDA device 0, must be on the host, as x"),
            (lambda: layer.run_codes(device, added[1:]), ValueError, "residual has shape [3, 30, 24], must be"),
            (lambda: layer.run_codes(device), ValueError, "residual is None, must be given"),
            (lambda: layer.run_codes(device, added, out=y), TypeError, "out is on the host, must be on CUDA device 0"),
            (lambda: layer.run_codes(device, added, pool=isobit.ThreadPool(1)), ValueError, "pool is given"),
            (lambda: conv(path="reference", padding=1).run_codes(device[:, None]), ValueError, "path is given"),
            (lambda: layer(device.float(), added.float()), isobit.NotSupportedError, "x is on CUDA device 0",
             "StaticConv.run_codes()")):
        refused(call, error, *parts)
    same(layer.run_codes(device, added), y)

    layer = conv(x_bits=12)
    x = codes_of(layer, 2, 9, 11, 16)
    x[1, 4, 5, 6], x[0, 3, 3, 3] = 5000, -5000
    refused(lambda: layer.run_codes(x), ValueError, "x[")
    same(layer.run_codes(x.cuda()), layer.run_codes(x.clamp(-2048, 2047)))


def test_streams_and_graphs_of_layers():
    """The call returns while work before it runs; captured once, it is replayed on other values."""
    layer = conv(padding=1)
    calls = [(isobit.Linear(matrix(128, 256), activations=activations), normal(9, 256), normal(9, 256, seed=8))
             for activations in ("int8", "float")]
    calls.append((layer.run_codes, codes_of(layer, 2, 9, 11, 16), codes_of(layer, 2, 9, 11, 16, seed=8)))
    calls += [(float_conv(activations=activations), normal(2, 9, 11, 16), normal(2, 9, 11, 16, seed=8))
              for activations in ("int8", "int8_per_image", "float")]
    for call, x, other in calls:
        device, new = x.cuda(), other.cuda()
        expected = call(new).cpu()
        torch.cuda.synchronize()
        torch.cuda._sleep(LONG)
        device.copy_(new)
        y = call(device)
        assert still_running(), "a call waited"
        same(y, expected)
        device.copy_(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = call(device)
        device.copy_(new)
        graph.replay()
        same(y, expected)


def test_other_devices():
    """A tensor decides where its call runs; the current device stays."""
    if torch.cuda.device_count() < 2:
        return
    gru = make(32, 1, 2)
    x = normal(T, 3, C)
    layer = isobit.Linear(matrix(24, C, group=None))
    static = isobit.quantize_static(normal(24, C), x.reshape(-1, C))
    codes = codes_of(static, T, C)
    convolution = conv()
    images = codes_of(convolution, 2, 9, 11, 16)
    of_floats = float_conv()
    pictures = normal(2, 9, 11, 16)
    with torch.cuda.device(0):
        for index in (1, 0, 1):
            device = x.to(f"cuda:{index}")
            same(layer(device), layer(x))
            same(static.run_codes(codes.to(device.device)), static.run_codes(codes))
            same(convolution.run_codes(images.to(device.device)), convolution.run_codes(images))
            same(of_floats(pictures.to(device.device)), of_floats(pictures))
            assert torch.cuda.current_device() == 0
            state = gru.initial_state(3, like=device)
            y = gru(device, state, lengths=[T, 2, 9], whole_sequence=True)
            assert y.device.index == index == state.device and torch.cuda.current_device() == 0
            host_state = gru.initial_state(3)
            same(y, gru(x, host_state, lengths=[T, 2, 9], whole_sequence=True))
            same(state.values(device), host_state.values(x))
        refused(lambda: gru(x.to("cuda:0"), state, whole_sequence=True), TypeError,
                "state is on CUDA device 1, must be on CUDA device 0")
        refused(lambda: gru(x.to("cuda:0"), out=y), TypeError, "out is on CUDA device 1, must be on CUDA device 0")
        refused(lambda: layer(x.to("cuda:0"), out=layer(device)), TypeError,
                "out is on CUDA device 1, must be on CUDA device 0")


def test_nothing_is_left():
    """What was copied to a device goes with the model."""
    for made in (lambda: make(1024, channels=1024), lambda: isobit.Linear(matrix(4096, 1024, bits=8)),
                 lambda: float_conv(1024, 4096, (1, 1))):
        model = made()
        model(normal(2, 1, 1024).cuda())
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.mem_get_info()[0]
        del model
        gc.collect()
        assert torch.cuda.mem_get_info()[0] > before


if __name__ == "__main__":
    sys.exit(main(globals()))
