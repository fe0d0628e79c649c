# SPDX-License-Identifier: Apache-2.0
"""Inputs cut from photographs."""
import numpy as np
from PIL import Image


def crops(paths, count, size, seed):
    """Bytes [count, size, size, 3]: squares from each picture in turn, with sides of 32 pixels up to the whole."""
    random = np.random.default_rng(seed)
    pictures = [Image.open(path).convert("RGB") for path in paths]
    cut = []
    for i in range(count):
        picture = pictures[i % len(pictures)]
        # Small squares are as likely as large ones: the side is even on a logarithmic scale.
        side = int(round(np.exp(random.uniform(np.log(32), np.log(min(picture.size))))))
        left, top = (int(random.integers(0, extent - side + 1)) for extent in picture.size)
        square = picture.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BOX)
        cut.append(np.asarray(square))
    return np.stack(cut)
