# SPDX-License-Identifier: Apache-2.0
"""FP16 tables from Python: the bytes of the command line."""
import numpy as np
import pytest

import isobit

X = np.linspace(-9, 9, 1001).astype("f4").reshape(7, 143)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_results_are_the_commands(command, tmp_path, dtype):
    x = X.astype(dtype)
    np.save(tmp_path / "x.npy", x)
    command("table", "run", "gelu", tmp_path / "x.npy", "-o", tmp_path / "y.npy")
    table = isobit.Table("gelu")
    y = table(x)
    assert y.dtype == x.dtype and y.tobytes() == np.load(tmp_path / "y.npy").tobytes()
    out = np.empty_like(x)
    assert table(x, out=out, pool=isobit.ThreadPool(2)) is out and out.tobytes() == y.tobytes()
    assert table(x, kernel="reference").tobytes() == y.tobytes()
    assert np.array_equal(table(x, dtype="f32"), table(x.astype("f2")).astype("f4"))
    table.save(tmp_path / "t.safetensors")
    assert isobit.Table.load(tmp_path / "t.safetensors")(x).tobytes() == y.tobytes()


def test_fitted_tables():
    codes = np.arange(65536, dtype="u2").view("f2").astype("f8")
    with np.errstate(invalid="ignore"):
        values = np.clip(codes, -1, 1)
    table = isobit.Table.fit(values, model="nli_gpu", half_values=True)
    assert table.function == "custom" and table.certificate["max_ulp"] <= 1
    assert np.array_equal(table(X), np.clip(X.astype("f2"), -1, 1).astype("f4"))


def test_what_there_is():
    assert {"silu", "gelu", "tanh"} <= set(isobit.Table.functions())
    assert isobit.Table("silu").certificate["max_ulp"] > 0 and "silu" in repr(isobit.Table("silu"))
    for call, error, message in [(lambda: isobit.Table("sillu"), ValueError, "sillu"),
                                 (lambda: isobit.Table("silu", model="f64"), ValueError, "model is 'f64'"),
                                 (lambda: isobit.Table("silu")(X.astype("i4")), TypeError, "x is s32, must be one of"),
                                 (lambda: isobit.Table("silu")(X, dtype="s8"), ValueError, "dtype is 's8'"),
                                 (lambda: isobit.Table("silu")(X, kernel="sse"), ValueError, "kernel is 'sse'")]:
        with pytest.raises(error, match=message):
            call()
