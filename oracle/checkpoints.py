# SPDX-License-Identifier: Apache-2.0
"""GPTQ and AWQ checkpoints, written from the description of their layouts in docs/formats.md, with the weights that
they stand for. A matrix is codes [K][N], zero points and scales [G][N] and the group of each k, in plain lists; a word
is 32 bits of one long integer."""
import json
import struct
from fractions import Fraction

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each 4-bit place of a word, lowest first
DTYPES = {"I32": "<%di", "F16": "<%de", "F32": "<%df", "I64": "<%dq"}


def words_of(values, bits):
    """Values of `bits` bits, low bits first, as signed words of 32 bits."""
    number = sum(value << (bits * i) for i, value in enumerate(values))
    count = len(values) * bits // 32
    assert count * 32 == len(values) * bits and all(0 <= value < 1 << bits for value in values)
    return list(struct.unpack("<%di" % count, number.to_bytes(4 * count, "little")))


def tensor(dtype, shape, values):
    return dtype, list(shape), struct.pack(DTYPES[dtype] % len(values), *values)


def flat(rows):
    return [value for row in rows for value in row]


def gptq(name, bits, codes, zeros, scales, group_of, v2=False):
    """{tensor name: tensor}; v1 stores zero points minus one."""
    K, N, G = len(codes), len(codes[0]), len(zeros)
    columns = [words_of([codes[k][n] for k in range(K)], bits) for n in range(N)]
    return {name + ".qweight": tensor("I32", (K * bits // 32, N), flat(zip(*columns))),
            name + ".qzeros": tensor("I32", (G, N * bits // 32),
                                     flat(words_of([z - (not v2) for z in row], bits) for row in zeros)),
            name + ".scales": tensor("F16", (G, N), flat(scales)),
            name + ".g_idx": tensor("I32", (K,), group_of)}


def awq(name, codes, zeros, scales):
    def shuffled(row):
        return words_of([row[i + place] for i in range(0, len(row), 8) for place in AWQ_ORDER], 4)

    K, N, G = len(codes), len(codes[0]), len(zeros)
    return {name + ".qweight": tensor("I32", (K, N // 8), flat(map(shuffled, codes))),
            name + ".qzeros": tensor("I32", (G, N // 8), flat(map(shuffled, zeros))),
            name + ".scales": tensor("F16", (G, N), flat(scales))}


def weights(codes, zeros, scales, group_of):
    """The bytes of W [N][K], float32. Every one is exact: 11 bits times 9."""
    out = b""
    for n in range(len(codes[0])):
        for k, g in enumerate(group_of):
            exact = Fraction(scales[g][n]) * (codes[k][n] - zeros[g][n])
            rounded = struct.pack("<f", exact)
            assert Fraction(struct.unpack("<f", rounded)[0]) == exact
            out += rounded
    return out


def safetensors(tensors, metadata=None):
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
