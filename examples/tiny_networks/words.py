# SPDX-License-Identifier: Apache-2.0
"""Sounds for wake_words.py: espeak-ng says each wake word and a sentence.

usage: python words.py FOLDER
"""
import pathlib
import subprocess
import sys
import wave

import numpy as np

RATE = 16000
WORDS = {"alexa": "alexa", "hey_jarvis": "hey jarvis", "hey_mycroft": "hey mycroft", "okay_nabu": "okay nabu"}
VOICES = (("en-us", 150), ("en-gb+f4", 160), ("en-gb-scotland+m7", 140))  # and words a minute
SENTENCE = "Turn the music down, please."


def say(text, voice, speed, path):
    """A WAV file of RATE samples a second: a second of silence, the text, half a second of silence."""
    subprocess.run(["espeak-ng", "-v", voice, "-s", str(speed), "-w", str(path), text], check=True)
    with wave.open(str(path), "rb") as file:
        own_rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
    times = np.arange(int(len(samples) / own_rate * RATE)) / RATE
    samples = np.interp(times, np.arange(len(samples)) / own_rate, samples)
    samples = np.concatenate([np.zeros(RATE), 0.5 * samples / np.abs(samples).max(), np.zeros(RATE // 2)])
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(np.rint(32767 * samples).astype("<i2").tobytes())


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, word in WORDS.items():
        for i, (voice, speed) in enumerate(VOICES):
            say("%s. %s" % (word, SENTENCE), voice, speed, folder / ("%s_%d.wav" % (name, i)))


if __name__ == "__main__":
    main()
