# SPDX-License-Identifier: Apache-2.0
"""The Free Spoken Digit Dataset as features: 20 logarithms of mel energies each 16 ms."""
import hashlib
import re
import wave

import numpy as np
import torch

RATE = 8000
WINDOW, HOP, BANDS = 256, 128, 20  # of a spectrum: samples, samples, energies
SPEAKERS = ("george", "jackson", "lucas", "nicolas")
DIGITS = 10


def mel_filters():
    """[WINDOW / 2 + 1, BANDS] triangles, which stand at equal distances on the mel scale."""
    def mel(hertz):
        return 1127 * np.log1p(hertz / 700)
    corners = np.linspace(0, mel(RATE / 2), BANDS + 2)
    at = mel(np.linspace(0, RATE / 2, WINDOW // 2 + 1))[:, None]
    rising = (at - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - at) / (corners[2:] - corners[1:-1])
    return torch.tensor(np.maximum(0, np.minimum(rising, falling)), dtype=torch.float32)


def read_wav(data, name):
    """Samples in -1..1 of the bytes of a WAV file."""
    with wave.open(data) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            raise ValueError("%s must have %d samples a second, 1 channel and 16 bits" % (name, RATE))
        return torch.tensor(np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768, dtype=torch.float32)


def features_of(samples):
    """[T, BANDS]."""
    window = torch.hann_window(WINDOW)
    spectrum = torch.stft(samples, WINDOW, HOP, window=window, pad_mode="constant", return_complex=True)
    return (spectrum.abs().square().T @ mel_filters() + 1e-6).log()


class Words:
    """Recordings: features [N, T, BANDS], zeros past a length; lengths [N]; digits [N]."""

    def __init__(self, features, lengths, digits):
        self.features, self.lengths, self.digits = features, lengths, digits

    def __len__(self):
        return len(self.digits)

    def batch(self, which):
        """Those of these numbers, no longer than the longest of them."""
        lengths = self.lengths[which]
        return self.features[which, :lengths.max()], lengths, self.digits[which]

    def normalized(self, mean, deviation):
        inside = torch.arange(self.features.shape[1]) < self.lengths[:, None]
        return Words((self.features - mean) / deviation * inside[..., None], self.lengths, self.digits)

    def frames(self):
        """Those of all words, [frames, BANDS]."""
        return self.features[torch.arange(self.features.shape[1]) < self.lengths[:, None]]


def load(folder, takes):
    """The recordings DIGIT_SPEAKER_TAKE.wav with these takes, and the SHA-256 sum of their names and bytes."""
    found, digest = [], hashlib.sha256()
    for path in sorted(folder.glob("*.wav")):
        match = re.fullmatch(r"(\d)_([a-z]+)_(\d+)", path.stem)
        if match and match[2] in SPEAKERS and int(match[3]) in takes:
            with open(path, "rb") as file:
                found.append((features_of(read_wav(file, path)), int(match[1])))
            digest.update(path.name.encode() + path.read_bytes())
    if not found:
        raise ValueError("%s has no DIGIT_SPEAKER_TAKE.wav of %s with a take of %d to %d" % (
            folder, ", ".join(SPEAKERS), takes[0], takes[-1]))
    lengths = torch.tensor([len(features) for features, _ in found])
    return Words(torch.nn.utils.rnn.pad_sequence([features for features, _ in found], batch_first=True), lengths,
                 torch.tensor([digit for _, digit in found])), digest.hexdigest()
