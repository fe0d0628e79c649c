# SPDX-License-Identifier: Apache-2.0
"""NSNet2's two GRUs, 16 and 48 kHz, and what they hear in noisy speech.

The features are those of the package (featurelib.py for 16 kHz, enhance_onnx.py for 48 kHz): log10 of the power
spectrum of windows of 20 ms. The network has a fully connected layer before the GRUs and three behind them.
"""

import pathlib
import sys

import numpy as np

import onnx_gru
import speech


def log_power(x: np.ndarray, window: np.ndarray, hop: int, size: int) -> np.ndarray:
    frames = np.lib.stride_tricks.sliding_window_view(x, len(window))[::hop] * window
    return np.log10(np.maximum(np.abs(np.fft.rfft(frames, size)) ** 2, 1e-12)).astype(np.float32)


def features_16k(x: np.ndarray) -> np.ndarray:
    """[T, 161]"""
    hops = -(-len(x) // 160) + 1
    return log_power(np.concatenate([x, np.zeros(hops * 160 - len(x))]), np.sqrt(np.hanning(320)), 160, 320)


def features_48k(x: np.ndarray) -> np.ndarray:
    """[T, 513]"""
    return log_power(x, np.sqrt(np.hanning(961)[:960]), 512, 1024)


def main(package: pathlib.Path, out: pathlib.Path) -> None:
    for name, file, rate, features in (("nsnet2_16k", "nsnet2-20ms-baseline.onnx", 16000, features_16k),
                                       ("nsnet2_48k", "nsnet2-20ms-48k-baseline.onnx", 48000, features_48k)):
        recorder = onnx_gru.Recorder(onnx_gru.Network(package / file), out / name)
        for part in speech.SETS:
            for take in speech.takes(part):
                # The two files name their input alike.
                recorder.add(part, recorder.network.run({"input": features(speech.record(take, rate))[None]})[1])
        recorder.write()


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
