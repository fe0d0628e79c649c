# SPDX-License-Identifier: Apache-2.0
"""How libisobit_cuda.so is found and refused, and what is refused before anything computes; without a device."""
import functools
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys

import fake_torch
import numpy as np
import pytest
from conftest import C, make_checkpoint

import isobit

ROOT = pathlib.Path(__file__).parents[2]
RELEASE = importlib.metadata.version("isobit")
HEADER = ROOT / "src" / "cuda" / "functions.h"
VERSION = re.search(r"#define ISOBIT_CUDA_FUNCTIONS_VERSION (\d+)", HEADER.read_text(encoding="utf-8"))[1]
# The first fields of isobit_cuda_functions.
TABLE = """
struct functions { int version; const char* release; };
static const struct functions table = {VERSION, RELEASE};
const struct functions* isobit_cuda_table(int version) { return &table; }
"""


@pytest.fixture()
def torch(monkeypatch):
    """No library is set or beside the package; arrays on devices are fake_torch.Tensor."""
    monkeypatch.delenv("ISOBIT_CUDA_LIBRARY", raising=False)
    made = fake_torch.module()
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


@pytest.fixture(scope="module")
def gru(tmp_path_factory):
    path = tmp_path_factory.mktemp("cuda") / "float.npz"
    make_checkpoint(path)
    return isobit.quantize(isobit.load_gru(path), np.random.default_rng(1).normal(0, 1, (20, 3, C)).astype("f4"))


def x_of(index=0):
    return fake_torch.Tensor(np.zeros((5, 3, C), "f4"), index)


def linear(**options):
    return isobit.Linear(isobit.LowBit.quantize(np.ones((4, C), "f4"), bits=4, group=None), **options)


def static():
    return isobit.quantize_static(np.ones((4, C), "f4"), np.ones((5, C), "f4"))


def conv(**options):
    grid = {"bits": 8, "scale": 0.1}
    return isobit.StaticConv.from_codes(np.ones((4, 3, 3, C), "i1"), np.ones(4, "f4"), input_grid=grid,
                                        output_grid={"bits": 8, "signed": False, "scale": 9}, padding=1, **options)


def float_conv(**options):
    return isobit.Conv.quantize(np.ones((4, 3, 3, C), "f4"), padding=1, **options)


ADDS = {"residual_grid": {"bits": 12, "scale": 0.5}}


def tensor(*shape, index=0, dtype="f4"):
    return fake_torch.Tensor(np.zeros(shape, dtype), index)


def train(**changed):
    """A forward on a device, of one layer."""
    steps, batch, hidden = 5, 3, 8
    given = {"x": tensor(steps, batch, C), "first": None, "directions": 1, "lengths": None, "mask": None,
             "weights": [tensor(3 * hidden, C), tensor(3 * hidden, hidden), tensor(3 * hidden), tensor(3 * hidden)],
             "y": tensor(steps, batch, hidden), "last": tensor(1, batch, hidden),
             "saved": tensor(steps * batch * hidden * 4)}
    isobit._isobit.gru_device_forward(**{**given, **changed})


@functools.cache
def qat(layers=1, directions=1, **options):
    """Of 8 units, in 8 bits."""
    hidden = 8
    made = np.random.default_rng(3).normal
    weights = [[made(0, 0.3, shape).astype("f4") for shape in ((3 * hidden, directions * hidden if layer else C),
                                                              (3 * hidden, hidden), (3 * hidden,), (3 * hidden,))]
               for layer in range(layers) for _ in range(directions)]
    calibrator = isobit.Calibrator(isobit.gru_weights(weights, directions=directions), method="minmax")
    calibrator.observe(made(0, 1, (20, 3, C)).astype("f4"))
    core = isobit._isobit.GruQat(calibrator, **{"bits": "8", "method": None, "scale": "pow2",
                                                "rounding": "nearest_even", "table": "default", **options})
    return core, [array for of in weights for array in of]


def train_integers(**changed):
    """The same for integers."""
    steps, batch, hidden = 5, 3, 8
    given = {"qat": qat()[0], "x": tensor(steps, batch, C), "first": None, "lengths": None, "mask": None,
             "weights": [tensor(3 * hidden, C), tensor(3 * hidden, hidden), tensor(3 * hidden), tensor(3 * hidden)],
             "y": tensor(steps, batch, hidden), "last": tensor(1, batch, hidden), "saved": tensor(9, dtype="u1")}
    isobit._isobit.gru_qat_device_forward(**{**given, **changed})


def gradients_of_integers(**changed):
    steps, batch, hidden = 5, 3, 8
    given = {"qat": qat()[0], "dy": tensor(steps, batch, hidden), "last_gradient": tensor(1, batch, hidden),
             "lengths": None, "mask": None, "saved": tensor(9, dtype="u1"), "dx": None,
             "first_gradient": tensor(1, batch, hidden),
             "gradients": [tensor(3 * hidden, C), tensor(3 * hidden, hidden), tensor(3 * hidden), tensor(3 * hidden)]}
    isobit._isobit.gru_qat_device_backward(**{**given, **changed})


def images(dtype="i1", channels=C, index=0):
    return fake_torch.Tensor(np.zeros((2, 5, 6, channels), dtype), index)


def library(folder, version, release):
    source = folder / "table.c"
    source.write_text(TABLE, encoding="utf-8")
    made = folder / "library.so"
    subprocess.run([shutil.which("cc"), "-shared", "-fPIC", f"-DVERSION={version}", f'-DRELEASE="{release}"',
                    str(source), "-o", str(made)], check=True)
    return made


def refused(call, *parts):
    with pytest.raises(isobit.NotSupportedError) as error:
        call()
    for part in parts:
        assert part in str(error.value)


def test_no_library(torch, gru, monkeypatch, tmp_path):
    build = "Build it with nvcc (docs/install.md) and set ISOBIT_CUDA_LIBRARY to its full path"
    name = "libisobit_cuda.so." + RELEASE.rpartition(".")[0]
    refused(lambda: gru(x_of()), "a CUDA device needs libisobit_cuda.so", name, build)
    refused(lambda: gru.run_codes(fake_torch.Tensor(np.zeros((5, C), "i1"))), name, build)
    refused(lambda: gru.initial_state(3, like=x_of()), name, build)
    refused(lambda: isobit.Table("silu")(x_of()), name, build)
    refused(lambda: linear()(x_of()), name, build)
    refused(lambda: static().run_codes(fake_torch.Tensor(np.zeros((5, C), "i1"))), name, build)
    refused(lambda: conv().run_codes(images()), name, build)
    refused(lambda: float_conv()(images("f4")), name, build)
    for call in (train, train_integers, gradients_of_integers,
                 lambda: isobit._isobit.gru_qat_device_check(qat()[0], 5, 3, tensor(9, dtype="u1")),
                 lambda: isobit._isobit.gru_qat_device_saved_bytes(qat()[0], 0, 5, 3)):
        refused(call, "a CUDA device needs libisobit_cuda.so", name, build)
    missing = tmp_path / "nothing.so"
    monkeypatch.setenv("ISOBIT_CUDA_LIBRARY", str(missing))
    refused(lambda: gru(x_of()), f"which ISOBIT_CUDA_LIBRARY names: {missing}: cannot open", build)


def test_other_libraries(torch, gru, monkeypatch, tmp_path):
    for version, of in ((99, RELEASE), (VERSION, "0.1.7")):
        monkeypatch.setenv("ISOBIT_CUDA_LIBRARY", str(library(tmp_path, version, of)))
        refused(lambda v=version, of=of: gru(x_of()), f"is of isobit {of} with functions of version {version}",
                f"must be of {RELEASE} with functions of version {VERSION}")
    source = tmp_path / "empty.c"
    source.write_text("int nothing;", encoding="utf-8")
    empty = tmp_path / "empty.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(empty)], check=True)
    monkeypatch.setenv("ISOBIT_CUDA_LIBRARY", str(empty))
    refused(lambda: gru(x_of()), "empty.so is not libisobit_cuda.so", "isobit_cuda_table")


def test_beside_the_package(gru, tmp_path):
    """A copy of the package with a library beside the extension module, which comes before the loader's search."""
    folder = pathlib.Path(isobit.__file__).parent
    shutil.copytree(folder, tmp_path / "isobit")
    shutil.move(library(tmp_path, 99, RELEASE), tmp_path / "isobit" / "libisobit_cuda.so")
    program = ("import sys, numpy, fake_torch, isobit\n"
               "sys.modules['torch'] = fake_torch.module()\n"
               "assert isobit.__file__.startswith(sys.argv[1])\n"
               "try: isobit.Table('silu')(fake_torch.Tensor(numpy.zeros(4, 'f4')))\n"
               "except isobit.NotSupportedError as error: print(error)\n")
    environment = {name: value for name, value in os.environ.items() if name != "ISOBIT_CUDA_LIBRARY"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(pathlib.Path(__file__).parent)])
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True,
                          text=True, check=True)
    assert f"{tmp_path}/isobit/libisobit_cuda.so is of isobit {RELEASE} with functions of version 99" in done.stdout


def test_what_is_for_the_host(torch, gru):
    weights = np.zeros((4, 8), "f4")
    on_device = fake_torch.Tensor(np.zeros((3, 8), "f4"))
    for call, name in [
        (lambda: static()(x_of()), "x"),
        (lambda: conv()(images("f4")), "x"),
        (lambda: isobit.StaticPool("max", 2, input_grid={"bits": 8, "scale": 1}).run_codes(images()), "x"),
        (lambda: isobit.StaticConv.from_codes(images(), np.ones(2, "f4"), input_grid={"bits": 8, "scale": 1}),
         "weights"),
        (lambda: isobit.LowBit.quantize(on_device, bits=4, group=8), "weights"),
        (lambda: isobit.Calibrator(isobit.gru_weights([[np.zeros((3, 1), "f4"), np.zeros((3, 1), "f4"),
                                                        np.zeros(3, "f4"), np.zeros(3, "f4")]])).observe(on_device),
         "x"),
    ]:
        refused(call, f"{name} is on CUDA device 0, must be on the host: a device runs calls of Gru, Linear, Conv and "
                "Table")


def test_places_of_arguments(torch, gru):
    x = np.zeros((5, 3, C), "f4")
    with pytest.raises(TypeError, match="out is on CUDA device 1, must be on the host, as x"):
        gru(x, out=x_of(1))
    with pytest.raises(TypeError, match="h is on the host, must be on CUDA device 0, as like"):
        gru.initial_state(3, np.zeros((1, 3, 12), "f4"), like=x_of())
    with pytest.raises(TypeError, match="like is on CUDA device 0, must be on the host, as the state"):
        gru.initial_state(3).values(x_of())
    with pytest.raises(TypeError, match="like is str, must be an array"):
        gru.initial_state(3, like="cuda")
    with pytest.raises(isobit.InvalidArgumentError, match="path is given, which is for x on the host"):
        gru(x_of(), path="avx2")
    with pytest.raises(isobit.InvalidArgumentError, match="pool is given, which is for x on the host"):
        gru(x_of(), pool=isobit.ThreadPool(1))
    with pytest.raises(TypeError, match="x is f64, must be f32"):
        gru(fake_torch.Tensor(np.zeros((5, 3, C))))
    with pytest.raises(isobit.InvalidArgumentError, match=r"x has shape \[5, 3, 7, 1\], must be"):
        gru(fake_torch.Tensor(np.zeros((5, 3, C, 1), "f4")))

    with pytest.raises(TypeError, match="out is on CUDA device 1, must be on the host, as x"):
        linear()(x, out=fake_torch.Tensor(np.zeros((5, 3, 4), "f4"), 1))
    with pytest.raises(TypeError, match="out is on the host, must be on CUDA device 0, as x"):
        linear()(x_of(), out=np.zeros((5, 3, 4), "f4"))
    with pytest.raises(TypeError, match="x is f64, must be one of f32, f16, bf16"):
        linear()(fake_torch.Tensor(np.zeros((5, 3, C))))
    with pytest.raises(isobit.InvalidArgumentError, match=r"x has shape \[5, 1\], must be \[..., "):
        linear()(fake_torch.Tensor(np.zeros((5, 1), "f4")))
    with pytest.raises(isobit.InvalidArgumentError, match="path is given, which is for x on the host"):
        linear(path="reference")(x_of())
    with pytest.raises(isobit.InvalidArgumentError, match="pool is given, which is for x on the host"):
        linear()(x_of(), pool=isobit.ThreadPool(1))

    with pytest.raises(TypeError, match="out is on the host, must be on CUDA device 0, as x"):
        static().run_codes(fake_torch.Tensor(np.zeros((5, C), "i1")), out=np.zeros((5, 4), "i1"))
    with pytest.raises(isobit.InvalidArgumentError, match="pool is given, which is for x on the host"):
        static().run_codes(fake_torch.Tensor(np.zeros((5, C), "i1")), pool=isobit.ThreadPool(1))

    with pytest.raises(TypeError, match="out is on the host, must be on CUDA device 0, as x"):
        conv().run_codes(images(), out=np.zeros((2, 5, 6, 4), "u1"))
    with pytest.raises(TypeError, match="out is on CUDA device 1, must be on the host, as x"):
        conv().run_codes(np.zeros((2, 5, 6, C), "i1"), out=images("u1", 4, 1))
    with pytest.raises(TypeError, match="residual is on the host, must be on CUDA device 1, as x"):
        conv(**ADDS).run_codes(images(index=1), np.zeros((2, 5, 6, 4), "i2"))
    with pytest.raises(TypeError, match="residual is on CUDA device 0, must be on the host, as x"):
        conv(**ADDS).run_codes(np.zeros((2, 5, 6, C), "i1"), images("i2", 4))
    with pytest.raises(TypeError, match="residual is on CUDA device 0, must be on the host, as x"):
        conv(**ADDS)(np.zeros((2, 5, 6, C), "f4"), images("f4", 4))
    with pytest.raises(isobit.InvalidArgumentError, match="residual is None, must be given"):
        conv(**ADDS).run_codes(images())
    with pytest.raises(TypeError, match="x is f32, must be s8"):
        conv().run_codes(images("f4"))
    with pytest.raises(isobit.InvalidArgumentError, match=r"x has shape \[2, 5, 6, 1\], must be \[B, H, W, "):
        conv().run_codes(images(channels=1))
    with pytest.raises(isobit.InvalidArgumentError, match="path is given, which is for x on the host"):
        conv(path="reference").run_codes(images())
    with pytest.raises(isobit.InvalidArgumentError, match="pool is given, which is for x on the host"):
        conv().run_codes(images(), pool=isobit.ThreadPool(1))

    with pytest.raises(TypeError, match="out is on the host, must be on CUDA device 0, as x"):
        float_conv()(images("f4"), out=np.zeros((2, 5, 6, 4), "f4"))
    with pytest.raises(TypeError, match="out is on CUDA device 1, must be on the host, as x"):
        float_conv()(np.zeros((2, 5, 6, C), "f4"), out=images("f4", 4, 1))
    with pytest.raises(TypeError, match="x is s8, must be one of f32, f16, bf16"):
        float_conv()(images())
    with pytest.raises(isobit.InvalidArgumentError, match=r"x has shape \[2, 5, 6, 1\], must be \[B, H, W, "):
        float_conv()(images("f4", 1))
    with pytest.raises(isobit.InvalidArgumentError, match="path is given, which is for x on the host"):
        float_conv(path="reference")(images("f4"))
    with pytest.raises(isobit.InvalidArgumentError, match="pool is given, which is for x on the host"):
        float_conv()(images("f4"), pool=isobit.ThreadPool(1))

    for changed, name in (({"x": x}, "x is on the host, must be on a CUDA device"),
                          ({"first": np.zeros((1, 3, 8), "f4")}, "h_0 is on the host, must be on CUDA device 0, as x"),
                          ({"y": tensor(5, 3, 8, index=1)}, "y is on CUDA device 1, must be on CUDA device 0, as x"),
                          ({"lengths": tensor(3, index=1, dtype="i8")}, "lengths is on CUDA device 1"),
                          ({"mask": tensor(1, 5, 3, 8)}, "zoneout is f32, must be u8"),
                          ({"weights": [np.zeros((24, C), "f4")] * 4}, "weights is on the host, must be on CUDA")):
        with pytest.raises(TypeError, match=name):
            train(**changed)
    with pytest.raises(isobit.InvalidArgumentError, match="weights has 5 arrays, must have 4 . layers . directions"):
        train(weights=[tensor(24, C)] * 5)
    with pytest.raises(isobit.InvalidArgumentError, match=r"x has shape \[5, 3\], must be \[T, N, C\]"):
        train(x=tensor(5, 3))

    for call, changed, name in (
            (train_integers, {"x": x}, "x is on the host, must be on a CUDA device"),
            (train_integers, {"first": tensor(1, 3, 8, index=1)}, "h_0 is on CUDA device 1, must be on CUDA device 0"),
            (train_integers, {"saved": tensor(9)}, "saved is f32, must be u8"),
            (train_integers, {"saved": tensor(9, index=1, dtype="u1")}, "saved is on CUDA device 1, must be on CUDA"),
            (gradients_of_integers, {"dy": np.zeros((5, 3, 8), "f4")}, "dy is on the host, must be on a CUDA device"),
            (gradients_of_integers, {"last_gradient": np.zeros((1, 3, 8), "f4")},
             "the gradient of h_n is on the host, must be on CUDA device 0, as dy"),
            (gradients_of_integers, {"mask": tensor(1, 5, 3, 8, index=1, dtype="u1")},
             "zoneout is on CUDA device 1, must be on CUDA device 0, as dy"),
            (gradients_of_integers, {"saved": np.zeros(9, "u1")}, "saved is on the host, must be on CUDA device 0, as"),
            (lambda saved: isobit._isobit.gru_qat_device_check(qat()[0], 5, 3, saved), {"saved": np.zeros(9, "u1")},
             "saved is on the host, must be on a CUDA device")):
        with pytest.raises(TypeError, match=name):
            call(**changed)
    with pytest.raises(isobit.InvalidArgumentError, match="weights has 5 arrays, must have 4 . layers . directions"):
        train_integers(weights=[tensor(24, C)] * 5)
    with pytest.raises(isobit.InvalidArgumentError, match=r"dy has shape \[5, 3\], must be \[T, N, directions . H\]"):
        gradients_of_integers(dy=tensor(5, 3))

    class Cupy(fake_torch.Tensor):
        pass

    torch.Tensor = dict  # the array is of another library
    refused(lambda: gru(Cupy(x)), "x is on CUDA device 0 and of type Cupy, must be a torch.Tensor there")
    refused(lambda: conv().run_codes(Cupy(np.zeros((2, 5, 6, C), "i1"))),
            "x is on CUDA device 0 and of type Cupy, must be a torch.Tensor there")
    refused(lambda: float_conv()(Cupy(np.zeros((2, 5, 6, C), "f4"))),
            "x is on CUDA device 0 and of type Cupy, must be a torch.Tensor there")
    refused(lambda: gru.initial_state(3, like=Cupy(x)), "like is on CUDA device 0 and of type Cupy")


def test_what_the_library_gets(tmp_path):
    made = tmp_path / "recorder.so"
    source = ROOT / "src" / "cuda"
    subprocess.run([shutil.which("c++"), "-std=c++20", "-shared", "-fPIC", f"-I{source.parent}",
                    f'-DISOBIT_VERSION="{RELEASE}"', str(source / "recorder.cc"), "-o", str(made)], check=True)
    # In a process of its own: the package keeps the library that it has found.
    done = subprocess.run([sys.executable, str(pathlib.Path(__file__).parent / "cuda_calls.py")], check=False,
                          env={**os.environ, "ISOBIT_CUDA_LIBRARY": str(made)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "as expected\n"), done.stderr
