# SPDX-License-Identifier: Apache-2.0
"""What denoiser.py knows of sound: WAV files, short-time spectra as NSNet2 was trained on, and SI-SDR.

A signal is an array of float64 in [-1, 1). A spectrum is [T, 161] complex: T windows, 161 frequencies of 0 to 8 kHz.
"""
import wave

import numpy as np

RATE = 16000  # samples a second
WINDOW, HOP = 320, 160  # samples: a window of 20 ms begins every 10 ms
# Applied before the spectrum and after it. Its squares, two at a time, add up to 1 within half a percent.
TAPER = np.sqrt(np.hanning(WINDOW))


def read_wav(path):
    with wave.open(str(path)) as file:
        found = (file.getframerate(), file.getnchannels(), 8 * file.getsampwidth())
        if found != (RATE, 1, 16):
            raise ValueError("%s has %d samples a second, %d channels and %d bits, must have %d, 1 and 16; convert it" %
                             (path, *found, RATE))
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768


def write_wav(path, signal):
    with wave.open(str(path), "wb") as file:
        file.setframerate(RATE)
        file.setnchannels(1)
        file.setsampwidth(2)
        file.writeframes(np.round(np.clip(signal * 32768, -32768, 32767)).astype("<i2").tobytes())


def spectrum_of(signal):
    """Zeros fill the last windows."""
    windows = -(-len(signal) // HOP)
    padded = np.concatenate([signal, np.zeros((windows + 1) * HOP - len(signal))])
    return np.fft.rfft(np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP] * TAPER)


def signal_of(spectrum, length):
    """The inverse: every sample is the sum of the two windows that overlap there."""
    windows = np.fft.irfft(spectrum, WINDOW) * TAPER
    signal = np.zeros((len(windows) + 1) * HOP)
    signal[:-HOP] += windows[:, :HOP].ravel()
    signal[HOP:] += windows[:, HOP:].ravel()
    return signal[:length]


def log_power(spectrum):
    """What the network sees, [T, 161] float32."""
    return np.log10(np.maximum(np.abs(spectrum) ** 2, 1e-12)).astype("float32")


def si_sdr_db(reference, signal):
    """The scale-invariant ratio of signal to distortion, in dB: how much louder than the rest of `signal` is the part
    of it that is the reference, whatever its volume."""
    same = reference * (np.dot(reference, signal) / np.dot(reference, reference))
    return 10 * np.log10(np.sum(same**2) / np.sum((signal - same) ** 2))
