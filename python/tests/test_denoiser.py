# SPDX-License-Identifier: Apache-2.0
"""The sound of examples/denoiser. The whole example needs a network of PyPI: scripts/denoiser.sh."""
import importlib.util
import pathlib
import wave

import numpy as np
import pytest

PATH = pathlib.Path(__file__).resolve().parents[2] / "examples" / "denoiser" / "sound.py"
spec = importlib.util.spec_from_file_location("sound", PATH)
sound = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sound)


@pytest.mark.parametrize("length", [1, 160, 161, 1600, 4801])
def test_a_spectrum_gives_its_signal_back(length):
    signal = np.random.default_rng(length).normal(0, 0.1, length)
    spectrum = sound.spectrum_of(signal)
    assert spectrum.shape == (-(-length // 160), 161)
    back = sound.signal_of(spectrum, length)
    assert back.shape == signal.shape
    # The first samples are in one window only.
    squares = sound.TAPER**2
    assert np.abs(back[:160] - (signal * np.resize(squares, length))[:160]).max() < 1e-12
    assert np.all(np.abs(back[160:] - signal[160:]) <= 0.005 * np.abs(signal[160:]) + 1e-12)


def test_log_power_of_a_tone_and_of_silence():
    tone = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(1600) / sound.RATE)  # 20 of 161 frequencies
    power = sound.log_power(sound.spectrum_of(tone))
    assert power.dtype == np.float32 and np.all(power[:-1].argmax(axis=1) == 20)
    assert np.all(sound.log_power(sound.spectrum_of(np.zeros(800))) == -12)


def test_si_sdr():
    random = np.random.default_rng(1)
    reference, other = random.normal(size=(2, 1000))
    other -= reference * np.dot(reference, other) / np.dot(reference, reference)
    other *= np.linalg.norm(reference) / np.linalg.norm(other)
    for factor in (1, 3, -0.2):  # of volume
        assert sound.si_sdr_db(reference, factor * (reference + 0.1 * other)) == pytest.approx(20)
    assert sound.si_sdr_db(reference, reference + other) == pytest.approx(0)


def test_wav(tmp_path):
    codes = np.array([-32768, -1, 0, 1, 32767], "i2")
    sound.write_wav(tmp_path / "a.wav", codes / 32768)
    assert np.array_equal(sound.read_wav(tmp_path / "a.wav") * 32768, codes)
    sound.write_wav(tmp_path / "loud.wav", np.array([-2.0, 2.0]))
    assert np.array_equal(sound.read_wav(tmp_path / "loud.wav") * 32768, [-32768, 32767])
    with wave.open(str(tmp_path / "stereo.wav"), "wb") as file:
        file.setparams((2, 2, 48000, 0, "NONE", ""))
    with pytest.raises(ValueError, match="stereo.wav has 48000 samples a second, 2 channels and 16 bits"):
        sound.read_wav(tmp_path / "stereo.wav")
