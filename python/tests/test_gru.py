# SPDX-License-Identifier: Apache-2.0
"""GRUs from Python: the bytes of the command line, and what is refused."""
import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from conftest import C, H, make_checkpoint

import isobit

BITS = "8,linear=16,gate_in=12,h=16"


@pytest.fixture(scope="module")
def gru(files):
    folder, _, x, *_ = files
    return isobit.quantize(isobit.load_gru(folder / "float.npz"), x, bits=BITS, method="minmax,x=sqnr")


def test_the_float_forward(files):
    folder, _, x, layers, directions = files
    weights = isobit.load_gru(folder / "float.npz", reset="after")
    y, last = weights.forward(x)
    assert type(y) is np.ndarray and y.shape == (40, 3, directions * H) and last.shape == (layers * directions, 3, H)
    single, single_last = weights.forward(x[:, 1])
    assert np.array_equal(single, y[:, 1]) and np.array_equal(single_last[:, 0], last[:, 1])
    short, _ = weights.forward(x, lengths=[40, 7, 0])
    assert np.array_equal(short[:, 0], y[:, 0]) and not short[7:, 1].any() and not short[:, 2].any()
    if directions == 1:
        first, state = weights.forward(x[:15])
        rest, end = weights.forward(x[15:], state)
        assert np.array_equal(np.concatenate([first, rest]), y) and np.array_equal(end, last)
    close = isobit.quantize(weights, x, bits="16,biases=16")(x)
    assert np.abs(close - y).max() < 0.01
    for wrong in (x[..., :-1], x[0, 0]):
        with pytest.raises(isobit.InvalidArgumentError, match="x has shape"):
            weights.forward(wrong)
    with pytest.raises(isobit.InvalidArgumentError, match="h0 has shape"):
        weights.forward(x, last[:, :2])
    with pytest.raises(isobit.InvalidArgumentError, match="lengths"):
        weights.forward(x, lengths=[41, 1, 1])
    with pytest.raises(TypeError, match="x is"):
        weights.forward(x.astype("f8"))
    with pytest.raises(isobit.InvalidArgumentError, match="reset is 'now'"):
        isobit.load_gru(folder / "float.npz", reset="now")
    with pytest.raises(isobit.NotSupportedError, match="reset"):
        isobit.load_gru(folder / "float.npz", reset="before")


def test_saved_bytes_are_the_commands(files, gru, command, tmp_path):
    folder, *_ = files
    gru.save(tmp_path / "python.safetensors")
    command("quantize", folder / "float.npz", "--calibrate", folder / "data.npy", "--bits", BITS, "--method",
            "minmax,x=sqnr", "-o", tmp_path / "command.safetensors")
    assert (tmp_path / "python.safetensors").read_bytes() == (tmp_path / "command.safetensors").read_bytes()
    again = isobit.load(tmp_path / "python.safetensors")
    assert again.bits == gru.bits and again.notes == gru.notes


def test_outputs_are_the_commands(files, gru, command, tmp_path):
    folder, _, x, *_ = files
    gru.save(tmp_path / "m.safetensors")
    command("run", tmp_path / "m.safetensors", folder / "data.npy", "-o", tmp_path / "y.npy")
    y = gru(x)
    assert type(y) is np.ndarray and y.dtype == np.float32 and y.flags.writeable
    assert y.tobytes() == np.load(tmp_path / "y.npy").tobytes()
    codes = np.random.default_rng(3).integers(-128, 128, x.shape).astype("i1")
    np.save(tmp_path / "codes.npy", codes)
    command("run", tmp_path / "m.safetensors", tmp_path / "codes.npy", "--integer", "-o", tmp_path / "y_codes.npy")
    assert gru.run_codes(codes).tobytes() == np.load(tmp_path / "y_codes.npy").tobytes()


def test_forms_of_x(gru, files):
    _, _, x, _, directions = files
    y = gru(x)
    assert y.shape == (40, 3, directions * H)
    assert np.array_equal(gru(np.ascontiguousarray(x.swapaxes(0, 1)), batch_first=True).swapaxes(0, 1), y)
    assert np.array_equal(gru(x.swapaxes(0, 1), batch_first=True).swapaxes(0, 1), y)  # strides are read
    assert np.array_equal(gru(x[:, 1]), y[:, 1])
    assert np.array_equal(gru(x[::-1, ::-1][::-1, ::-1]), y)
    frozen = x.copy()
    frozen.flags.writeable = False
    assert np.array_equal(gru(frozen), y)
    assert gru(x[:0]).shape == (0, 3, directions * H) and gru(x[:, :0]).shape == (40, 0, directions * H)
    out = np.full(y.shape, 7, "f4")
    assert gru(x, out=out) is out and np.array_equal(out, y)
    for threads in (1, 3):
        assert np.array_equal(gru(x, pool=isobit.ThreadPool(threads)), y)
    for path in ("reference", "scalar"):
        assert np.array_equal(gru(x, path=path), y)


def test_lengths(gru, files):
    _, _, x, _, directions = files
    y = gru(x, lengths=[40, 5, 0])
    assert np.array_equal(y[:5, 1], gru(x[:5, 1])) and not y[5:, 1].any() and not y[:, 2].any()


def test_state(gru, files):
    _, _, x, layers, directions = files
    state = gru.initial_state(3)
    if directions == 2:
        with pytest.raises(isobit.InvalidArgumentError, match="whole_sequence"):
            gru(x, state)
        gru(x, state, whole_sequence=True)
        return
    y = gru(x)
    first = gru(x[:11], state)
    kept = state.copy()
    assert np.array_equal(np.concatenate([first, gru(x[11:], state)]), y)
    assert np.array_equal(gru(x[11:], kept), y[11:])
    values = state.values(x)
    assert values.shape == (layers * directions, 3, H)
    assert np.array_equal(gru.initial_state(3, values).values(x), values)
    assert np.array_equal(gru.state_from(gru, state).values(x), values)


def test_weights_from_arrays(files):
    folder, arrays, x, layers, directions = files
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ends = [f"_l{layer}" + end for layer in range(layers) for end in ("", "_reverse")[:directions]]
    weights = isobit.gru_weights([tuple(arrays["enc." + name + end] for name in names) for end in ends],
                                 directions=directions)
    loaded = isobit.load_gru(folder / "float.npz", "enc")
    assert np.array_equal(isobit.quantize(weights, x)(x), isobit.quantize(loaded, x)(x))
    assert (weights.input_size, weights.hidden_size, weights.output_size) == (C, H, directions * H)


def test_parts_of_calibration_are_merged(files):
    folder, _, x, *_ = files
    weights = isobit.load_gru(folder / "float.npz")
    whole, left, right = (isobit.Calibrator(weights) for _ in range(3))
    whole.observe(x)
    left.observe(np.ascontiguousarray(x[:, :1]))
    right.observe(x[:, 1:].swapaxes(0, 1), batch_first=True)
    left.merge(right)
    assert np.array_equal(whole.finish(bits=BITS)(x), left.finish(bits=BITS)(x))


def test_compare_and_verify(files, gru):
    folder, _, x, *_ = files
    comparison = isobit.compare(isobit.load_gru(folder / "float.npz"), gru, [x, (x, [40, 9, 1])])
    assert "SQNR" in str(comparison) and comparison.data["sequences"] == 6
    with pytest.raises(isobit.FailedPreconditionError, match="no time step"):
        isobit.compare(isobit.load_gru(folder / "float.npz"), gru, [])
    verification = isobit.verify(gru, outputs=20_000)
    assert verification.ok and not verification.failure
    assert all(kernel["different"] == 0 for kernel in verification.data["kernels"])
    assert not isobit.verify(gru, outputs=1000, required=["cuda"]).ok


def test_checks_of_the_machine():
    assert set(isobit.fingerprint()) >= {"gru", "linear_static", "linear_static_16"}
    assert "gru" in str(isobit.supported()) and isobit.supported().data


def test_threads_share_a_model(gru, files):
    _, _, x, *_ = files
    y = gru(x)
    pool, wrong = isobit.ThreadPool(2), []

    def work():
        for _ in range(20):
            if not np.array_equal(gru(x, pool=pool), y) or not np.array_equal(gru(x), y):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("error, call, message", [
    (TypeError, lambda gru, x: gru(x.astype("f8")), "x is f64, must be f32"),
    (TypeError, lambda gru, x: gru("sound"), "x is str, must be an array"),
    (ValueError, lambda gru, x: gru(x[..., 1:]), r"x has shape \[40, 3, 6\], must be \[T, N, 7\] or \[T, 7\]"),
    (ValueError, lambda gru, x: gru(x[0, 0]), r"x has shape \[7\], must be"),
    (ValueError, lambda gru, x: gru(x, lengths=[1, 2]), "lengths has 2 values, must have 3"),
    (ValueError, lambda gru, x: gru(x, lengths=[1, 2, 41]), r"lengths\[2\] is 41, must be 0..40"),
    (ValueError, lambda gru, x: gru(np.where(x == x[3, 1, 2], np.float32("nan"), x)), r"x\[72\] is NaN"),
    (TypeError, lambda gru, x: gru(x, state=3), "state is int, must be what initial_state"),
    (ValueError, lambda gru, x: gru(x, gru.initial_state(2), whole_sequence=True), "state has 2 sequences, x has 3"),
    (ValueError, lambda gru, x: gru(x, out=np.zeros((40, 3, 1), "f4")), r"out has shape \[40, 3, 1\], must be"),
    (TypeError, lambda gru, x: gru(x, out=gru(x).astype("f8")), "out is f64, must be f32"),
    (ValueError, lambda gru, x: gru(x, out=gru(x)[::-1]), "out is not contiguous"),
    (ValueError, lambda gru, x: gru(x, path="sse"), "path is 'sse', must be one of"),
    (TypeError, lambda gru, x: gru.run_codes(x), "x is f32, must be s8"),
    (ValueError, lambda gru, x: gru.initial_state(-1), "batch is -1"),
    (ValueError, lambda gru, x: gru.initial_state(2, x), r"h has shape \[40, 3, 7\], must be"),
    (ValueError, lambda gru, x: isobit.ThreadPool(2000), "threads is 2000, must be 0..1024"),
    (FileNotFoundError.__base__, lambda gru, x: isobit.load("/nowhere.safetensors"), "/nowhere.safetensors"),
])
def test_refusals(files, gru, error, call, message):
    with pytest.raises(error, match=message):
        call(gru, files[2])


def test_read_only_output_is_refused(gru, files):
    out = gru(files[2])
    out.flags.writeable = False
    with pytest.raises(TypeError, match="out"):
        gru(files[2], out=out)


def test_state_of_another_model_is_refused(gru, files, tmp_path):
    make_checkpoint(tmp_path / "other.npz", seed=9)
    other = isobit.quantize(isobit.load_gru(tmp_path / "other.npz"), files[2])
    with pytest.raises(isobit.InvalidArgumentError, match="state was made by another model"):
        gru(files[2], other.initial_state(3), whole_sequence=True)


def test_kinds_of_exceptions(files, tmp_path):
    folder, _, x, *_ = files
    weights = isobit.load_gru(folder / "float.npz")
    with pytest.raises(isobit.FailedPreconditionError):
        isobit.Calibrator(weights).finish()
    with pytest.raises(isobit.InvalidArgumentError, match="bits"):
        isobit.quantize(weights, x, bits="eight")
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(isobit.InvalidFileError, match="cut.safetensors"):
        isobit.load(tmp_path / "cut.safetensors")
    for name in ("InvalidArgumentError", "InvalidFileError", "IoError", "NotSupportedError", "OverflowError",
                 "FailedPreconditionError"):
        assert issubclass(getattr(isobit, name), isobit.Error)
    assert issubclass(isobit.OverflowError, OverflowError) and issubclass(isobit.IoError, OSError)


def test_nothing_keeps_arrays_alive(gru, files):
    x = files[2].copy()
    y = gru(x)
    for array in (x, y):
        gone = weakref.ref(array)
        del array
        x = y = None
        gc.collect()
    assert gone() is None


def test_what_comes_later_is_refused_by_name(gru):
    with pytest.raises(isobit.NotSupportedError, match="export_onnx"):
        gru.export_onnx("out", name="enc")


def test_becomes_c(gru, tmp_path):
    folder = tmp_path / "c"
    facts = gru.export_c(folder, name="enc", target="cortex-m55", float_entry=gru.directions == 1)
    assert sorted(file.name for file in folder.iterdir()) == ["enc.c", "enc.cmake", "enc.h", "enc_data.c"]
    assert facts["target"] == "cortex-m55" and facts["measured"] is None
    assert "float" in (folder / "enc.h").read_text() or gru.directions == 2
    bytes_of_a_code = 1 if gru.output_grid["bits"] <= 8 else 2
    assert facts["ram"]["state_bytes"] == gru.layers * gru.output_size * bytes_of_a_code
    with pytest.raises(isobit.InvalidArgumentError, match="not empty"):
        gru.export_c(folder, name="enc")
    gru.export_c(folder, name="enc", force=True)
    for argument, value in (("name", "2fast"), ("target", "z80"), ("selftest_steps", 0)):
        with pytest.raises(isobit.InvalidArgumentError, match=argument):
            gru.export_c(tmp_path / "other", **{argument: value})
    assert not (tmp_path / "other").exists()


def test_nothing_is_left_at_the_end(files):
    """nanobind says at exit which of its objects nobody gave back."""
    folder, *_ = files
    program = """
import numpy as np, isobit
weights = isobit.load_gru("float.npz")
x = np.load("data.npy")
gru = isobit.quantize(weights, x)
state = gru.initial_state(x.shape[1])
y = gru(x, state, whole_sequence=True)
isobit.compare(weights, gru, x)
isobit.tune(weights, x, x, target=20, metric=lambda gru: 20.0, progress=lambda *now: True)
try:
    gru(x, out=y[:1])
except isobit.Error as error:
    kept = error
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
