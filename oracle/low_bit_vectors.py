# SPDX-License-Identifier: Apache-2.0
"""low_bit.json: sections 9 to 12. README.md has the format."""
import math

from .convolution import (Geometry, Transposed, average_pool, exact_convolution, max_pool, on_the_fly_convolution,
                          per_image_convolution, quantise_shared, static_convolution)
from .floats import FORMATS, bits32, bits64, bits_of, to_format
from .grid import Grid
from .low_bit import (KINDS, RELU, RELU6, Weights, exact_linear, groups_of, on_the_fly, pack, quantise,
                      quantise_activations)
from .rounding import MODES, Refused
from .static_linear import StaticLinear, channel_weights
from .vectors import Rng

BITS = (1, 2, 4, 8)


def random_rows(rng, N, K, width):
    return [[rng.bell(width) for _ in range(K)] for _ in range(N)]


def act_json(act):
    return None if act is None else [bits32(v) for v in act]


def some_act(rng):
    return rng.pick([None, None, RELU, RELU6, (-0.5, 0.75)])


def texts(values, kind="f32"):
    return [bits_of(v, kind) for v in values]


def decoded_texts(w):
    return [texts([w.decode(n, k) for k in range(w.K)]) for n in range(w.N)]


def quantise_case(rows, bits, group, kind, store, mse):
    case = {"op": "quantize", "rows": [texts(row) for row in rows], "method": "mse" if mse else
            "absmax" if kind == "symmetric" else "minmax"}
    try:
        w = quantise(rows, bits, group, kind, store, mse)
    except Refused as error:
        return {**case, "weights": {"bits": bits, "group": group, "kind": kind, "store": store,
                                    "K": len(rows[0])}, "refused": str(error)}
    return {**case, "weights": w.json(), "decoded": decoded_texts(w)}


def quantise_cases(rng):
    cases = []
    for bits in BITS:
        for kind in KINDS:
            for mse in (False, True):
                store = rng.pick(sorted(FORMATS))
                K, group = rng.pick([(24, 16), (20, 8), (33, 32), (7, 7), (40, 16)])
                rows = random_rows(rng, 2, K, 2.0 ** rng.int(-6, 3))
                rows[0][rng.int(0, K - 1)] *= 8
                cases.append(quantise_case(rows, bits, group, kind, store, mse))
    # next to ties: multiples of half a step of a scale that float32 holds
    for bits, kind in ((4, "symmetric"), (8, "symmetric"), (4, "zero_point"), (8, "offset")):
        top = {"symmetric": 2 ** (bits - 1) - 1, "zero_point": 2 ** bits - 1, "offset": 2 ** bits - 1}[kind]
        low = -top if kind == "symmetric" else -3 if kind == "zero_point" else 0
        row = [float(low), float(top + min(low, 0) if kind != "symmetric" else top)]
        row += [rng.int(2 * low, 2 * top + 2 * low) / 2 for _ in range(22)]
        cases.append(quantise_case([row, [v / 4 for v in row]], bits, 24, kind, "f32", False))
    for bits, kind in ((4, "symmetric"), (8, "symmetric"), (8, "zero_point"), (8, "offset")):
        for store in sorted(FORMATS):
            half, ends = 1 << (bits - 1), [-rng.real(0.5, 1), rng.real(1, 2)]
            w = quantise([ends], bits, 2, kind, store)
            S, O = w.S[0][0], w.O[0][0] if w.O else 0.0
            steps = [rng.int(*((-half + 2, half - 2) if kind == "symmetric" else
                               (-half // 2, half) if kind == "zero_point" else (0, 2 * half - 2))) for _ in range(38)]
            row = ends + [to_format(O + (k + 0.5) * S, FORMATS["f32"]) for k in steps]
            cases.append(quantise_case([row], bits, 40, kind, store, False))
    zeros, tiny, constant = [0.0, -0.0] * 4, [2.0 ** -149, 0.0] * 4, [to_format(0.1, FORMATS["f32"])] * 8
    for store in ("f32", "f16", "bf16"):
        for kind in KINDS:
            for bits in (1, 4):
                for mse in (False, True):
                    cases.append(quantise_case([zeros, constant], bits, 8, kind, store, mse))
                cases.append(quantise_case([tiny], bits, 8, kind, store, False))
    ones = [1.0, -1.0, 0.5, 0.25] * 2
    for scale in (2.0 ** -14 * 7, 2.0 ** -14 * 7 * (1 - 2.0 ** -13), 2.0 ** -14 * 6.9, 7e4, 6e5):
        row = [to_format(v * scale, FORMATS["f32"]) for v in ones]
        cases.append(quantise_case([row], 4, 8, "symmetric", "f16", scale == 2.0 ** -14 * 7))
        cases.append(quantise_case([row], 4, 8, "offset", "f16", False))
    for store in sorted(FORMATS):  # a scale that must not be rounded twice
        cases.append(quantise_case([[4.0, 2.0 ** -9, 2.0 ** -40, 0.0]], 1, 4, "symmetric", store, False))
        cases.append(quantise_case([[15 + 15 * 2.0 ** -11, -(2.0 ** -40), 1.0, 7.5]], 4, 4, "offset", store, False))
    for low in (-255.99609375, -255.5, -254.5):
        cases.append(quantise_case([[low, 0.0, -1.0, -128.0]], 8, 4, "zero_point", "bf16", False))
    big = to_format(3e38, FORMATS["f32"])
    cases.append(quantise_case([[-big, big]], 1, 2, "offset", "f32", False))
    for mse in (False, True):  # code 0 is -8/7 of the largest weight, beyond float32 without a factor
        cases.append(quantise_case([[big, -1.0, big / 2 ** 10]], 4, 3, "symmetric", "f32", mse))
    for bad in (math.nan, math.inf):
        cases.append(quantise_case([[1.0, bad]], 4, 2, "symmetric", "f32", False))
    return cases


def given_weights(rng, bits, kind, store, N, K, group, wild=False):
    """Weights as a file may hold them: scales of either sign, any zero point, both z of the offset kind."""
    G, half = -(-K // group), 1 << (bits - 1)

    def numbers(width):
        return [[to_format(rng.bell(width) * (2.0 ** rng.int(-8, 8) if wild else 1), FORMATS[store])
                 for _ in range(G)] for _ in range(N)]

    codes = [[rng.int(0, 2 * half - 1) for _ in range(K)] for _ in range(N)]
    z = {"symmetric": None, "offset": rng.pick([0, half]),
         "zero_point": [[rng.int(0, 2 * half) for _ in range(G)] for _ in range(N)]}[kind]
    return Weights(bits, group, kind, store, codes, numbers(1.0), z, numbers(1.0) if kind == "offset" else None)


def float_cases(rng):
    cases = []
    for bits in BITS:
        for kind in KINDS:
            K, group = rng.pick([(24, 16), (70, 32), (13, 13), (96, 64)])
            w = given_weights(rng, bits, kind, rng.pick(sorted(FORMATS)), 5, K, group)
            x_type = rng.pick(sorted(FORMATS))
            x = [[to_format(v, FORMATS[x_type]) for v in row] for row in random_rows(rng, 2, K, 1.0)]
            bias = rng.pick([None, random_rows(rng, 1, 5, 1.0)[0]])
            cases.append({"op": "float", "weights": w.json(), "decoded": decoded_texts(w), "x_type": x_type,
                          "x": [texts(r, x_type) for r in x], "bias": bias and texts(bias),
                          "y": [[bits64(float(v)) for v in exact_linear(w, row, bias)] for row in x]})
    return cases


def fly_case(w, x_type, x, asymmetric, y_type, bias, act):
    def group(one):
        return one and {"a": one.a, "Sa": bits32(one.Sa), "Oa": bits32(one.Oa)}

    return {"op": "on_the_fly", "asymmetric": asymmetric, "weights": w.json(), "x_type": x_type,
            "x": [texts(row, x_type) for row in x], "bias": bias and texts(bias), "act": act_json(act),
            "groups": [[group(one) for one in groups_of(w, row, asymmetric)] for row in x],
            "y_type": y_type, "y": [on_the_fly(w, row, asymmetric, bias, act, y_type) for row in x]}


def fly_cases(rng):
    cases = []

    def add(bits, kind, asymmetric, N, K, group, **kw):
        store = rng.pick(sorted(FORMATS))
        w = given_weights(rng, bits, kind, store, N, K, group, kw.get("wild", False))
        x_type, y_type = rng.pick(["f32", "f16", "bf16", "f64"]), rng.pick(["f32", "f32", "f16", "bf16"])
        x = random_rows(rng, 2, K, 1.0)
        if kw.get("wild"):
            x = [[v * 2.0 ** rng.int(-20, 20) for v in row] for row in x]
        if x_type == "f64":
            x = [[v * (1 + rng.int(-9, 9) * 2.0 ** -28) for v in row] for row in x]
        else:
            x = [[to_format(v, FORMATS[x_type]) for v in row] for row in x]
        bias = rng.pick([None, random_rows(rng, 1, N, 1.0)[0]])
        cases.append(fly_case(w, x_type, x, asymmetric, y_type, bias, some_act(rng)))

    for bits in BITS:
        for kind in KINDS:
            for asymmetric in (False, True):
                add(bits, kind, asymmetric, 5, *rng.pick([(64, 16), (70, 32), (13, 13), (96, 64), (41, 8)]))
                add(bits, kind, asymmetric, 2, *rng.pick([(300, 16), (128 * 3 + 4, 8), (280, 16)]), wild=bits > 2)
    for group, K in ((24, 50), (128, 300), (256, 257), (272, 272), (8, 8), (8, 136), (8, 129), (1, 1)):
        for asymmetric in (False, True):
            add(4, "offset", asymmetric, 2, K, group)
    # activations at every edge, one group each
    big, small = 3.4e38, 2.0 ** -118
    edges = [[127.0, -127.0, 63.5, 0.5, 1.5, -2.5, 0.0, -0.0], [0.0, 255.0, 128.0, 0.5, 1.5, 254.0, 127.5, 126.5],
             [5.0] * 8, [-0.0] * 8, [0.0, -0.0] * 4, [small] * 8, [small * (1 - 2.0 ** -24)] * 8, [0.0, small] * 4,
             [0.0, small * (1 - 2.0 ** -24)] * 4, [2.0 ** -149, -(2.0 ** -149)] * 4, [big, -big] * 4, [big, 0.0] * 4,
             [-big] * 8, [math.inf] + [0.0] * 7, [math.nan] + [0.0] * 7, [-math.inf, math.inf] * 4,
             [1.0, 1.0 + 2.0 ** -23] * 4, [10.0, 265.0] * 4]
    x = [[to_format(v, FORMATS["f32"]) for v in row] for row in edges]
    for kind in KINDS:
        for asymmetric in (False, True):
            w = given_weights(rng, 4, kind, "f32", 2, 8, 8)
            cases.append(fly_case(w, "f32", x, asymmetric, "f32", None, None))
            cases.append(fly_case(w, "f32", x, asymmetric, "f16", [0.5, -0.5], RELU6))
    # next to ties of the codes, where the order of operations shows
    for asymmetric in (False, True):
        x = []
        for _ in range(4):
            ends = [rng.real(1, 2), -rng.real(0.5, 1)]
            one = quantise_activations(ends, asymmetric)
            low, high = (-128, 126) if asymmetric else (-60, 126)
            x.append(ends + [to_format(one.Oa + (rng.int(low, high) + 0.5) * one.Sa, FORMATS["f32"])
                             for _ in range(62)])
        w = given_weights(rng, 8, "offset", "f32", 2, 64, 64)
        cases.append(fly_case(w, "f32", x, asymmetric, "f32", None, None))
    # results that are subnormal, infinite, or of no order at all
    for store, scale in (("f32", 2.0 ** -140), ("f32", 2.0 ** 120), ("bf16", 2.0 ** -133), ("f16", 2.0 ** -24)):
        w = Weights(8, 8, "symmetric", store, [[255 - 3 * k for k in range(24)], [k * 9 for k in range(24)]],
                    [[scale, -scale, scale]] * 2)
        x = [[127.0, 64.0, 1.0, -5.0] * 6, [1e9, 3.0, -2e9, 0.125] * 6, [1e-9, -3e-9, 2e-9, 1e-12] * 6]
        x = [[to_format(v, FORMATS["f32"]) for v in row] for row in x]
        for asymmetric in (False, True):
            for y_type in ("f32", "f16"):
                cases.append(fly_case(w, "f32", x, asymmetric, y_type, None, None))
    return cases


def static_case(w, x, y, bias, act, mode, inputs, **more):
    case = {"op": "static", **more, "mode": mode, "weights": w.json(), "x_grid": x.json(),
            "y_grid": y and y.json(), "bias": bias and texts(bias), "act": act_json(act)}
    try:
        layer = StaticLinear(w, x, y, bias, act, mode)
    except Refused as error:
        return {**case, "refused": str(error)}
    return {**case, "bias_s32": layer.bias, "bounds": layer.bounds,
            "rescales": y and [r.json() for r in layer.rescales], "x": inputs, "y": [layer(row) for row in inputs]}


def static_cases(rng):
    cases = []

    def add(K, mode, act, int32, reach):
        floats = random_rows(rng, 5, K, 0.3)
        if K % 2:
            floats[rng.int(0, 4)] = [0.0] * K
        w = channel_weights(floats, K % 3 == 0)
        x = Grid(8, bool(rng.int(0, 2)), rng.int(0, 100), scale=rng.real(0.01, 0.1))
        signed = bool(rng.int(0, 1))
        y = None if int32 else Grid(8, signed, rng.int(-60, 60) if signed else rng.int(0, 200),
                                    scale=rng.real(reach / 100, reach / 20))
        bias = rng.pick([None, [rng.real(-3, 3) for _ in range(5)]])
        rows = [[rng.int(x.qmin, x.qmax) for _ in range(K)] for _ in range(3)]
        rows += [[x.qmax if v >= 0 else x.qmin for v in floats[1]], [x.z] * K]
        cases.append(static_case(w, x, y, bias, act, mode, rows, rows=[texts(row) for row in floats],
                                 method="mse" if K % 3 == 0 else "absmax"))

    for mode in MODES:
        for act in (None, RELU, RELU6, (-1.0, 2.0)):
            K = rng.int(1, 40)
            add(K, mode, act, False, K ** 0.5)
        add(rng.int(1, 40), mode, None, True, 1.0)
    # ties of every sign, and ratios from tiny to large
    x = Grid(8, True, 0, scale=1.0)
    w = Weights(8, 1, "symmetric", "f32", [[v + 128] for v in (1, -1, 3, -128, 127)], [[1.0]] * 5)
    for mode in MODES:
        for scale in (2.0, 4.0, 0.5, 3.0, 2.0 ** 60, 2.0 ** 120):
            cases.append(static_case(w, x, Grid(8, True, 5, scale=scale), None, None, mode,
                                     [[v] for v in (-128, -3, -2, -1, 0, 1, 2, 3, 5, 127)]))
    cases.append(static_case(w, x, Grid(8, True, 0, scale=2.0 ** -110), [0.0] * 5, None, MODES[0], [[1]]))
    huge = [to_format(v, FORMATS["f32"]) for v in (3e38, -3e38, 1e10, 2147483520.0, -0.5)]
    for y in (Grid(8, True, -3, scale=2.0 ** 24), None):
        cases.append(static_case(w, x, y, huge, None, MODES[0], [[100], [-100]]))
    cases.append(static_case(w, x, None, [0.5, 1.5, -0.5, -1.5, 2.5], None, MODES[1], [[7]]))
    cases.append(static_case(w, x, Grid(8, True, 0, scale=1.0), [math.inf] + [0.0] * 4, None, MODES[0], [[7]]))
    return cases


def nested(f, values):
    return [nested(f, v) if isinstance(v, list) else f(v) for v in values]


def json_of(geometry):
    out = {"kernel": geometry.kernel, "stride": geometry.stride, "pad": geometry.pad, "dilation": geometry.dilation,
           "groups": geometry.groups}
    return {**out, "more": geometry.more} if isinstance(geometry, Transposed) else out


def convolution_cases(rng):
    """x and results as in convolution.py; "kernels" [O][R * S][C / groups]."""
    none = ((0, 0), (0, 0))
    cases = []
    for index, (B, C, image, O, geometry) in enumerate((
            (1, 5, (3, 4), 2, Geometry((1, 1))), (2, 9, (4, 3), 2, Geometry((2, 2))),
            (1, 17, (5, 4), 2, Geometry((3, 3), (2, 1), ((1, 1), (1, 1)))),
            (1, 12, (5, 6), 2, Geometry((2, 3), (1, 2), ((0, 1), (2, 1)), (2, 1))),
            (2, 8, (1, 1), 3, Geometry((3, 3), (1, 1), ((1, 1), (1, 1)))),
            (1, 3, (2, 7), 2, Geometry((1, 4), (1, 3), ((2, 0), (0, 1)), (1, 2))),
            (1, 18, (3, 3), 4, Geometry((2, 2), (1, 1), ((0, 1), (0, 1)), groups=2)),
            (2, 3, (4, 4), 6, Geometry((3, 3), (2, 2), ((0, 1), (0, 1)), groups=3)),
            (1, 4, (1, 9), 2, Geometry((1, 3), (1, 1), ((0, 0), (4, 0)), (1, 2))),
            (1, 9, (2, 3), 2, Transposed((2, 2), (2, 2), none)),
            (1, 6, (3, 2), 2, Transposed((3, 2), (2, 1), ((1, 0), (0, 1)), (1, 2), 2, (1, 1))))):
        taps, channels = geometry.kernel[0] * geometry.kernel[1], C // geometry.groups
        group = min(8, channels) if index != 2 else 16
        shape = json_of(geometry)
        bias = [rng.real(-1, 1) for _ in range(O)]
        x = [[random_rows(rng, image[1], C, 1.0) for _ in range(image[0])] for _ in range(B)]
        kernels = [random_rows(rng, taps, channels, 0.3) for _ in range(O)]
        for asymmetric in (False, True):
            bits, kind, store = rng.pick(BITS), rng.pick(KINDS), rng.pick(sorted(FORMATS))
            shared = quantise_shared(kernels, bits, group, kind, store)
            own = [given_weights(rng, 4, "zero_point", "f32", O, channels, group) for _ in range(taps)]
            for weights in (shared, own):
                act, y_type = some_act(rng), rng.pick(sorted(FORMATS))
                case = {"op": "convolution", **shape, "asymmetric": asymmetric, "weights": [w.json() for w in weights]}
                if weights is shared:
                    case["kernels"] = nested(bits32, kernels)
                cases.append({
                    **case, "x": nested(bits32, x), "bias": texts(bias), "act": act_json(act),
                    "exact": nested(lambda v: bits64(float(v)), exact_convolution(weights, x, geometry, bias)),
                    "y_type": y_type,
                    "y": on_the_fly_convolution(weights, x, geometry, asymmetric, bias, act, y_type)})
        w = channel_weights([[v for tap in one for v in tap] for one in kernels])
        act, y_type = some_act(rng), rng.pick(sorted(FORMATS))
        cases.append({"op": "per_image_convolution", **shape, "weights": w.json(), "x": nested(bits32, x),
                      "bias": texts(bias), "act": act_json(act), "y_type": y_type,
                      "y": per_image_convolution(w, x, geometry, bias, act, y_type)})
        grid = Grid(8, True, rng.int(-90, 90), scale=rng.real(0.02, 0.04))
        out = Grid(8, index % 2 == 0, rng.int(0, 50), scale=rng.real(0.03, 0.1))
        added = Grid(8, True, rng.int(-20, 20), scale=rng.real(0.01, 0.1)) if index % 3 == 1 else None
        act, mode = some_act(rng), rng.pick(MODES)
        codes = nested(grid.quantize, x)
        layer = StaticLinear(w, grid, out, bias, act, mode, added)
        case = {"op": "static_convolution", **shape, "mode": mode, "weights": w.json(), "x_grid": grid.json(),
                "y_grid": out.json(), "bias": texts(bias), "act": act_json(act), "x": codes}
        residual = None
        if added:
            P, Q = geometry.size(image)
            residual = [[[[rng.int(-128, 127) for _ in range(O)] for _ in range(Q)] for _ in range(P)] for _ in x]
            case.update(residual_grid=added.json(), residual=residual)
        cases.append({**case, "y": static_convolution(layer, codes, geometry, residual)})
    for geometry in (Geometry((2, 2), (2, 2)), Geometry((3, 3), (2, 1), ((1, 0), (1, 1))),
                     Geometry((2, 3), (1, 2), ((0, 1), (2, 0)), (2, 1))):
        grid, out, mode = Grid(8, True, rng.int(-9, 9), scale=0.125), Grid(8, False, 7, scale=0.09375), rng.pick(MODES)
        codes = [[[[rng.int(-128, 127) for _ in range(3)] for _ in range(5)] for _ in range(4)] for _ in range(2)]
        cases.append({"op": "pool", **json_of(geometry), "mode": mode, "x_grid": grid.json(), "y_grid": out.json(),
                      "x": codes, "max": max_pool(codes, geometry),
                      "average": average_pool(codes, geometry, grid, out, mode, False),
                      "average_of_window": average_pool(codes, geometry, grid, out, mode, True)})
    return cases


def make_low_bit():
    rng = Rng(12)
    cases = [{"op": "pack", "bits": bits, "codes": codes, "packed": pack(codes, bits).hex()} for bits in BITS
             for codes in [[rng.int(0, (1 << bits) - 1) for _ in range(K)] for K in (1, 9, 32, 37)]]
    cases += quantise_cases(rng) + float_cases(rng) + fly_cases(rng) + static_cases(rng) + convolution_cases(rng)
    return {"description": "low-bit weights and linear layers (sections 9 to 12)", "cases": cases}
