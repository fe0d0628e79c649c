# SPDX-License-Identifier: Apache-2.0
"""testdata/fp16.json: digests of section 13 over all float16 codes. README.md has the format."""
import math
import struct

from .floats import F16, bits64, to_format
from .fp16_functions import FUNCTIONS, exact16, value16
from .fp16_softmax import Softmax
from .fp16_tables import (MODELS, REDUCTIONS, STEPS_259, Pieces, Table, bfloat16_to_float16,
                          float16_to_bfloat16, float32_to_float16, sampled_values)
from .tables import fnv1a64
from .vectors import Rng

ALL = range(65536)
PART = [256 * a + 17 * b for a in range(256) for b in range(16)]
PROBES = (0x0001, 0x2E66, 0x3C01, 0x4248, 0x8001, 0xB555, 0xC2F0, 0xFBFF)
GEOMETRIES = {"259": STEPS_259, "35": [1] + [4] * 8 + [1], "16x16": [16] * 16,
              "mixed": [5, 1, 300, 2, 77, 4096]}
SILU_CUTS = [-20.359375, -17.109375, -8.3671875, -1.9755859375, -0.255615234375,
             -0.007244110107421875, 0.0072174072265625, 0.228515625, 1.58203125, 10.46875, 65504.0]


def digest16(codes):
    """fnv1a64 of codes as little-endian uint16."""
    return fnv1a64(struct.pack("<%dH" % len(codes), *codes))


def ordered(o):
    """The o-th float16 number after 0, or before it for o < 0."""
    return value16(o if o >= 0 else 0x8000 | -o)


def synthetic_cuts(rng, n, cuts):
    if cuts == "silu":
        out = list(SILU_CUTS)
    elif cuts == "codes":
        out = sorted(ordered(rng.u64() % 63487 - 31743) for _ in range(n + 1))
        out[n // 2 + 1] = out[n // 2]                    # an interval without width
    else:
        a, b, shift, jitter = cuts
        inner = [a + (b - a) * (64 * i + rng.u64() % (2 * jitter + 1) - jitter) // (64 * n)
                 for i in range(1, n)]
        out = [math.ldexp(v, -shift) for v in [a] + inner + [b]]
    return out


def synthetic_value(rng, half):
    u = rng.u64()
    if u >> 5 & 31 == 0:
        return -0.0
    v = math.ldexp((u >> 40) - (1 << 23), -7 - (u & 31))
    return max(min(to_format(v, F16), 65504.0), -65504.0) if half else v


def table_of(case, model):
    steps, half, reduction = GEOMETRIES[case["steps"]], case["half"], case.get("reduction")
    if case.get("sampled"):
        values = sampled_values("silu", steps, SILU_CUTS, half, 0.0)
        return Table([Pieces(steps, SILU_CUTS, values, model)])
    rng, pieces = Rng(case["seed"]), []
    for _ in range(2 if reduction in ("sin", "cos") else 1):
        cuts = synthetic_cuts(rng, len(steps), case["cuts"])
        pieces.append(Pieces(steps, cuts, [synthetic_value(rng, half) for _ in range(sum(steps) + 1)],
                             model))
    return Table(pieces, reduction)


def table_cases():
    even = {"259": [-2047, 1900, 6, 16], "35": [-300, 2047, 6, 16], "16x16": [-1000, 1000, 6, 0],
            "mixed": [0, 2047, 5, 16]}
    cases, seed = [], 0
    for half in (False, True):
        for steps, cuts in even.items():
            seed += 1
            cases.append({"steps": steps, "cuts": cuts, "seed": seed, "half": half})
    for steps, cuts, models in (("259", "silu", 3), ("259", "codes", 1), ("mixed", "codes", 1)):
        seed += 1
        cases.append({"steps": steps, "cuts": cuts, "seed": seed, "half": False, "models": models})
    ranges = {"sin": (-823549, 823549), "cos": (-823549, 823549), "exp": (-363408, 363408),
              "log": (741456, 1482910), "reciprocal": (1 << 20, 1 << 21),
              "rsqrt": (1 << 20, 1 << 22), "sqrt": (1 << 20, 1 << 22)}  # in units of 2^-20
    for name in REDUCTIONS:
        seed += 1
        cases.append({"reduction": name, "steps": "259", "cuts": list(ranges[name]) + [20, 16],
                      "seed": seed, "half": False})
    cases += [{"sampled": "silu", "steps": "259", "half": half} for half in (False, True)]
    return cases


# in units of 2^-12: float16 numbers, and every step is a float64 number
SOFTMAX_CUTS = {"exp": [-1420, -1380, -1130, -780, -390, 0, 390, 780, 1130, 1380, 1420],
                "reciprocal": [4096, 4100, 4492, 4884, 5352, 5860, 6444, 7032, 7616, 8188, 8192]}
SOFTMAX_ROWS = ("3c00", "fc00", "0000 8000", "3c00 fc00 3800", "fbff 7bff 7bfe", "4248 fe01 0000",
                "7c00 3c00 fc00", "fc00 fc00", "3555 3e2a b800 4170 c4d3 0001")


def softmax_of(model, half):
    pieces = []
    for name in ("exp", "reciprocal"):
        cuts = [math.ldexp(c, -12) for c in SOFTMAX_CUTS[name]]
        values = sampled_values(name, STEPS_259, cuts, half, 1.0)
        pieces.append(Table([Pieces(STEPS_259, cuts, values, model)], name))
    return Softmax(*pieces)


def steep_softmax(model):
    """Values without order, so that the last bits of an argument are seen in the result."""
    rng, pieces = Rng(78), []
    for name in ("exp", "reciprocal"):
        cuts = [math.ldexp(SOFTMAX_CUTS[name][i], -12) for i in (0, -1)]
        values = [0.5 + math.ldexp(rng.u64() >> 41, -23) for _ in range(4097)]
        pieces.append(Table([Pieces([4096], cuts, values, model)], name))
    return Softmax(*pieces)


def softmax_rows():
    """Rows of 1..40 and 1000 elements: sign and fraction of u, one of eight binades. Then two rows of a
    0 and 999 numbers in (-12, -8] and near -21.3, where E is rounded."""
    rng = Rng(77)
    for n in list(range(1, 41)) + [1000]:
        low = 8 + n % 13
        row = []
        for _ in range(n):
            u = rng.u64()
            row.append(u & 0x83FF | low + (u >> 32) % 8 << 10)
        yield row
    for base, mask in ((0xC800, 0x1FF), (0xCD50, 7)):
        yield [0] + [base | rng.u64() & mask for _ in range(999)]


def softmax_cases():
    """One case gives the tables, one each model and kind of values a digest, one each row its results."""
    kinds = [(softmax_of(model, half), model, half) for half in (False, True) for model in MODELS]
    steep = [(steep_softmax(model), model, "steep") for model in MODELS]
    cases = [{"softmax": "tables", **SOFTMAX_CUTS}]
    for softmax, model, half in kinds + steep:
        results = [code for row in softmax_rows() for code in softmax(row)]
        cases.append({"softmax": "digest", "model": model, "values": {False: "f32", True: "f16"}.get(half, half),
                      "digest": digest16(results)})
    for text in SOFTMAX_ROWS:
        row = [int(code, 16) for code in text.split()]
        cases.append({"softmax": "row", "row": text,
                      "y": [" ".join("%04x" % code for code in softmax(row)) for softmax, _, _ in kinds]})
    return cases


def make_fp16(given=None):
    """All cases. With `given`, the cases of a file that exists, what only the full digests tell is
    taken from there, and only the part digests are computed."""
    cases = []

    def add(case, whole, part):
        old = given[len(cases)] if given and len(cases) < len(given) else {}
        if given is None:
            case.update(whole())
        else:
            case.update({k: old.get(k) for k in ("all", "differ") if k in old})
        case.update(part())
        cases.append(case)

    def always(case):
        add(case, dict, dict)

    rng = Rng(1)
    for name, results in (
            ("float32_to_float16", [float32_to_float16(rng.u64() >> 32) for _ in ALL]),
            ("bfloat16_to_float16", [bfloat16_to_float16(c) for c in ALL]),
            ("float16_to_bfloat16", [float16_to_bfloat16(c) for c in ALL])):
        always({"conversion": name, "digest": digest16(results)})
    always({"x": ["%04x" % c for c in PROBES]})
    for name, beta in [(name, 1.0) for name in FUNCTIONS] + [("swish", 1.5), ("swish", 0.7)]:
        if name == "swish" and beta == 1.0:
            continue
        case = {"function": name}
        if name == "swish":
            case["beta"] = bits64(beta)
        add(case, lambda: {"all": digest16([exact16(name, c, beta) for c in ALL])},
            lambda: {"part": digest16([exact16(name, c, beta) for c in PART]),
                     "y": " ".join("%04x" % exact16(name, c, beta) for c in PROBES)})
    for case in table_cases():
        tables = [table_of(case, model) for model in MODELS[:case.pop("models", 3)]]

        def whole():
            results = [[table(c) for c in ALL] for table in tables]
            out = {"all": [digest16(r) for r in results]}
            if case.get("sampled"):
                out["differ"] = sum(a != b for c, a, b in zip(ALL, results[1], results[2])
                                    if math.isfinite(value16(c)))
            return out

        add(case, whole, lambda: {"part": digest16([table(c) for table in tables for c in PART])})
    for case in softmax_cases():
        always(case)
    return {"description": "FP16 tables (section 13): digests over all float16 codes", "cases": cases}
