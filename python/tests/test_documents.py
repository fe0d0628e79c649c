# SPDX-License-Identifier: Apache-2.0
"""The Python of the documents runs."""
import pathlib
import re

import numpy as np
import pytest
from conftest import C, make_checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("document", ["README.md", "docs/python.md", "python/README.md"])
def test_lines_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_checkpoint(tmp_path / "checkpoint.npz", directions=1, hidden=24)
    random = np.random.default_rng(6)
    for name in ("data", "other"):
        np.save(tmp_path / f"{name}.npy", random.normal(0, 1, (40, 3, C)).astype("f4"))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    names = {"data": np.load("data.npy"), "x": np.load("other.npy")}
    for block in blocks:
        exec(compile(block, document, "exec"), names)  # pylint: disable=exec-used
    assert list(tmp_path.glob("*.safetensors"))
