# SPDX-License-Identifier: Apache-2.0
"""Pages in HTML: those of the command, and what notebooks show."""
import os
import subprocess
import sys
import xml.etree.ElementTree

import numpy as np
import pytest
from conftest import C, make_checkpoint

import isobit

TITLE = "a<b>&\"'"


def text_of(html):
    """All of its text; the page must be well-formed."""
    return "".join(xml.etree.ElementTree.fromstring(html).itertext())


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    make_checkpoint(folder / "float.npz")
    random = np.random.default_rng(8)
    x, other = (random.normal(0, 1, (25, 9, C)).astype("f4") for _ in range(2))
    np.save(folder / "data.npy", x)
    weights = isobit.load_gru(folder / "float.npz")
    return folder, weights, isobit.quantize(weights, x), x, other


def test_comparison(case, tmp_path):
    _, weights, gru, x, _ = case
    comparison = isobit.compare(weights, gru, [x, np.ascontiguousarray(x[:, 0])])
    comparison.save_html(tmp_path / "page.html", title=TITLE)
    content = (tmp_path / "page.html").read_bytes()
    assert len(content) < 1_000_000 and b"<script" not in content and b"http" not in content
    text = text_of(content)
    assert TITLE in text and comparison.data["worst_sequence"]["sequence"] in text and "Error over time" in text
    for tensor in comparison.data["tensors"]:
        assert tensor["sqnr_db"] is None or f"{tensor['sqnr_db']:.1f}" in text
    comparison.save_html(tmp_path / "again.html", title=TITLE)
    assert (tmp_path / "again.html").read_bytes() == content
    shown = comparison._repr_html_()
    assert "Tensors, in the order" in text_of(shown) and len(shown) < len(content)
    with pytest.raises(isobit.IoError):
        comparison.save_html(tmp_path / "none" / "page.html")
    with pytest.raises(TypeError):
        comparison.save_html(tmp_path / "page.html", title=None)
    assert (tmp_path / "page.html").read_bytes() == content, "as it was"


def test_the_page_is_the_commands(case, command, tmp_path):
    folder, weights, gru, x, _ = case
    gru.save(tmp_path / "gru.safetensors")
    command("compare", folder / "float.npz", tmp_path / "gru.safetensors", "--data", folder / "data.npy", "--ablate",
            "--html", tmp_path / "command.html")
    comparison = isobit.compare(weights, gru, x, ablate=True)
    found = comparison.data["ablation"]
    assert found["sentence"] in str(comparison)
    comparison.save_html(tmp_path / "python.html", title=f"{folder / 'float.npz'} and {tmp_path / 'gru.safetensors'}")
    ours, theirs = (text_of((tmp_path / name).read_bytes()) for name in ("python.html", "command.html"))
    assert found["sentence"] in ours
    # Sequences have other names; everything else is the same.
    for n in range(x.shape[1]):
        ours = ours.replace(f"data[0][{n}]", f"data.npy, sequence {n}")
    assert ours == theirs


def test_tuning_and_model(case, tmp_path):
    _, weights, gru, x, other = case
    found = isobit.tune(weights, x, other, target=30)
    found.save_html(tmp_path / "front.html", title=TITLE)
    text = text_of((tmp_path / "front.html").read_bytes())
    assert TITLE in text and all(f"{point['bytes']:,}" in text for point in found.front)
    assert "What each size can reach" in text_of(found._repr_html_())
    comparison = isobit.compare(weights, found.model, other)
    comparison.save_html(tmp_path / "both.html", tuning=found)
    both = text_of((tmp_path / "both.html").read_bytes())
    assert "What each size can reach" in both and "Values on their grids" in both
    assert f"{gru.size_bytes:,} bytes" in text_of(gru._repr_html_())
    nothing = isobit.tune(weights, x, other, progress=lambda *now: False)
    assert nothing.interrupted and "interrupted" in text_of(nothing._repr_html_())


def test_numbers_do_not_follow_the_locale(case, tmp_path):
    """A program may have set a locale whose decimal sign is a comma."""
    _, weights, gru, x, _ = case
    isobit.compare(weights, gru, x).save_html(tmp_path / "page.html")
    gru.save(tmp_path / "gru.safetensors")
    made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", tmp_path / "de_DE.UTF-8"], check=False,
                          stderr=subprocess.DEVNULL)
    if made.returncode:
        pytest.skip("needs the package locales")
    program = f"""
import locale, numpy, isobit
locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
assert locale.str(0.5) == "0,5"
weights, gru = isobit.load_gru({str(case[0] / "float.npz")!r}), isobit.load({str(tmp_path / "gru.safetensors")!r})
isobit.compare(weights, gru, numpy.load({str(case[0] / "data.npy")!r})).save_html({str(tmp_path / "german.html")!r})
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "LOCPATH": str(tmp_path)})
    assert (tmp_path / "german.html").read_bytes() == (tmp_path / "page.html").read_bytes()
