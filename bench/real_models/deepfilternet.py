# SPDX-License-Identifier: Apache-2.0
"""DeepFilterNet3's GRUs, and what they hear in noisy speech of 48 kHz.

The encoder has one, its two decoders have two each. Features are those of libDF: band energies in dB less a running
mean, and the lowest 96 bins of the spectrum divided by the root of a running mean of their magnitude.
"""

import pathlib
import sys

import numpy as np

import onnx_gru
import speech

RATE, SIZE, HOP, BANDS, BINS, LOOKAHEAD = 48000, 960, 480, 32, 96, 2
KEEP = np.float32(0.99)  # of a running mean, a step: exp(-HOP / RATE), rounded as libDF rounds it


def band_widths() -> list[int]:
    """Bins of each band: equally wide on the ERB scale, at least two bins."""
    scale = 24.7 * 9.265
    top = np.log1p(RATE / 2 / scale)
    widths, before, borrowed = [], 0, 0
    for band in range(1, BANDS + 1):
        edge = round(scale * np.expm1(top * band / BANDS) / (RATE / SIZE))
        width = edge - before - borrowed
        borrowed = max(0, 2 - width)
        widths.append(max(width, 2))
        before = edge
    widths[-1] += SIZE // 2 + 1 - sum(widths)
    return widths


def running_mean(x: np.ndarray, start: np.ndarray) -> np.ndarray:
    out, state = np.empty_like(x), start.astype(np.float32)
    for t, row in enumerate(x):
        state = row * (1 - KEEP) + state * KEEP
        out[t] = state
    return out


def features(x: np.ndarray) -> dict[str, np.ndarray]:
    """feat_erb [1, 1, T, 32] and feat_spec [1, 2, T, 96]"""
    phase = (np.arange(SIZE) + 0.5) / (SIZE // 2)
    window = np.sin(0.5 * np.pi * np.sin(0.5 * np.pi * phase) ** 2)
    x = np.concatenate([np.zeros(HOP), x])
    frames = np.lib.stride_tricks.sliding_window_view(x, SIZE)[::HOP] * window
    spectrum = (np.fft.rfft(frames) / SIZE).astype(np.complex64)
    starts = np.cumsum([0] + band_widths()[:-1])
    energy = np.add.reduceat(np.abs(spectrum) ** 2, starts, axis=1) / np.array(band_widths())
    level = (10 * np.log10(energy + 1e-10)).astype(np.float32)
    bands = (level - running_mean(level, np.linspace(-60, -90, BANDS))) / 40
    low = spectrum[:, :BINS]
    low = low / np.sqrt(running_mean(np.abs(low), np.linspace(1e-3, 1e-4, BINS)))
    both = (bands[None], np.stack([low.real, low.imag]))
    # The network sees LOOKAHEAD steps of the future.
    bands, low = (np.pad(v[:, LOOKAHEAD:], ((0, 0), (0, LOOKAHEAD), (0, 0)))[None].astype(np.float32) for v in both)
    return {"feat_erb": bands, "feat_spec": low}


def main(package: pathlib.Path, out: pathlib.Path) -> None:
    recorders = {name: onnx_gru.Recorder(onnx_gru.Network(package / f"{name}.onnx"), out / f"dfn3_{name}")
                 for name in ("enc", "erb_dec", "df_dec")}
    for part in speech.SETS:
        for take in speech.takes(part):
            values, layers = recorders["enc"].network.run(features(speech.record(take, RATE)))
            recorders["enc"].add(part, layers)
            for name, inputs in (("erb_dec", ("emb", "e3", "e2", "e1", "e0")), ("df_dec", ("emb", "c0"))):
                recorders[name].add(part, recorders[name].network.run({i: values[i] for i in inputs})[1])
    for recorder in recorders.values():
        recorder.write()


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
