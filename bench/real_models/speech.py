# SPDX-License-Identifier: Apache-2.0
"""Noisy speech that is the same on every run: sentences of espeak-ng, and noise from seeded generators.

usage: speech.py RATE FOLDER   writes it as FOLDER/SET/NUMBER_NOISE_SNR.wav, 16 bits
"""

import dataclasses
import io
import pathlib
import subprocess
import sys
import wave

import numpy as np

SETS = {
    "calibration": (
        "The quick brown fox jumps over the lazy dog near the river bank.",
        "Please call me back tomorrow morning at half past nine.",
        "She sells fresh oranges, apples and pears in the market square.",
        "Our train to the north leaves from platform number seven.",
        "A heavy storm is expected over the western islands tonight.",
        "He opened the window, looked outside and closed it again.",
        "Could you turn the music down a little, I am on the phone.",
        "The museum shows paintings, maps and very old clocks.",
        "Twelve students walked slowly through the empty hall.",
        "Nothing is as good as warm bread on a cold winter day.",
    ),
    "validation": (
        "The committee will meet again on Thursday the fifteenth.",
        "Why did the kitchen light stay on the whole night?",
        "Put the blue boxes under the table and lock the door.",
        "Their garden is full of roses, bees and noisy children.",
        "It takes about forty minutes to get to the airport.",
    ),
    "test": (
        "Fishing boats came back to the harbour just before sunrise.",
        "I would rather have tea with milk than another coffee.",
        "Engineers measured the bridge twice and found no crack.",
        "Where can we buy two tickets for the evening show?",
        "Yesterday's newspaper was lying wet in front of the house.",
    ),
}

VOICES = ("en-us", "en-gb", "en-us+f3", "en-gb+m3", "en-us+f1", "en-gb-scotland+m7", "en-us+m2", "en-gb+f4")
SPEEDS = (160, 140, 185, 200, 150, 170)  # words a minute
NOISES = ("white", "pink", "brown", "babble", "hum", "clicks")
SNRS_DB = (5, 15, 0, 20, 10)
LEVELS_DB = (-26, -20, -32, -16)  # of the speech's power, against full scale
SILENCE_S = 0.4  # noise alone before and after the speech


@dataclasses.dataclass(frozen=True)
class Take:
    """One sentence: how it is said, and what it is mixed with."""

    text: str
    voice: str
    speed: int
    noise: str
    snr_db: int
    level_db: int
    seed: int


def takes(name: str) -> list[Take]:
    """The sentences of a set. Each set begins elsewhere in every list, so that no pairing of one occurs in another."""
    start = {"calibration": 0, "validation": 3, "test": 5}[name]
    return [
        Take(text, VOICES[(i + start) % len(VOICES)], SPEEDS[(i + start) % len(SPEEDS)],
             NOISES[(i + 2 * start) % len(NOISES)], SNRS_DB[(i + start) % len(SNRS_DB)],
             LEVELS_DB[(i + start) % len(LEVELS_DB)], 1000 * start + i)
        for i, text in enumerate(SETS[name])
    ]


def say(text: str, voice: str, speed: int, rate: int) -> np.ndarray:
    """Speech in [-1, 1] at `rate` samples a second."""
    done = subprocess.run(["espeak-ng", "-v", voice, "-s", str(speed), "--stdout", text], check=True,
                          stdout=subprocess.PIPE)
    # The header of a stream has no true length: everything behind it is samples, mono, 16 bits.
    with wave.open(io.BytesIO(done.stdout)) as file:
        own_rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(np.float64) / 32768
    return resample(samples, own_rate, rate)


def resample(x: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """By a whole spectrum: exact for what is below both Nyquist frequencies."""
    length = round(len(x) * wanted / rate)
    return np.fft.irfft(np.fft.rfft(x)[: length // 2 + 1], n=length) * (length / len(x))


def coloured(rng: np.random.Generator, length: int, slope: float) -> np.ndarray:
    """Gaussian noise whose amplitude falls with frequency^slope."""
    spectrum = np.fft.rfft(rng.standard_normal(length))
    return np.fft.irfft(spectrum / np.maximum(np.arange(len(spectrum)), 20) ** slope, n=length)


def noise(kind: str, rng: np.random.Generator, length: int, rate: int) -> np.ndarray:
    time = np.arange(length) / rate
    if kind == "white":
        return rng.standard_normal(length)
    if kind == "pink":
        return coloured(rng, length, 0.5)
    if kind == "brown":
        return coloured(rng, length, 1.0)
    if kind == "hum":
        tones = sum(np.sin(2 * np.pi * 50 * k * time + rng.uniform(0, 6)) / k for k in range(1, 16))
        return tones + 0.1 * rng.standard_normal(length)
    if kind == "clicks":
        out = 0.05 * rng.standard_normal(length)
        for at in rng.integers(0, length, size=max(1, length * 6 // rate)):
            tail = out[at : at + rate // 50]
            tail += rng.uniform(0.5, 2) * rng.standard_normal(len(tail)) * np.exp(-np.arange(len(tail)) / (rate / 400))
        return out
    assert kind == "babble"
    others = np.zeros(length)
    for i, text in enumerate(("Seven people are talking at the same time in a room.", "And nobody listens to another.",
                              "The waiter brings soup and bread.", "What did you say about the weather?")):
        voice = say(text, VOICES[(3 * i + 1) % len(VOICES)], SPEEDS[i], rate)
        others += np.roll(np.resize(voice, length), int(rng.integers(0, length)))
    return others


def record(take: Take, rate: int) -> np.ndarray:
    """The sentence with its noise, as a microphone of 16 bits would have it."""
    rng = np.random.default_rng(take.seed)
    speech = say(take.text, take.voice, take.speed, rate)
    speech *= 10 ** (take.level_db / 20) / np.sqrt(np.mean(speech**2))
    silence = np.zeros(int(SILENCE_S * rate))
    speech = np.concatenate([silence, speech, silence])
    added = noise(take.noise, rng, len(speech), rate)
    added *= 10 ** ((take.level_db - take.snr_db) / 20) / np.sqrt(np.mean(added**2))
    return np.round(np.clip(speech + added, -1, 1 - 2**-15) * 32768) / 32768


def main(rate: int, folder: pathlib.Path) -> None:
    for part in SETS:
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number, take in enumerate(takes(part)):
            with wave.open(str(folder / part / f"{number}_{take.noise}_{take.snr_db}dB.wav"), "wb") as file:
                file.setparams((1, 2, rate, 0, "NONE", ""))
                file.writeframes((record(take, rate) * 32768).astype("<i2").tobytes())


if __name__ == "__main__":
    main(int(sys.argv[1]), pathlib.Path(sys.argv[2]))
