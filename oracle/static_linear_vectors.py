# SPDX-License-Identifier: Apache-2.0
"""static_linear.json: section 12 at every width, its calibration, and a layer after a GRU. README.md has the
format."""
import math

from . import calibrate
from .floats import FORMATS, bits32, to_format
from .grid import Grid, default_steps
from .gru import run_model
from .low_bit import RELU, RELU6, Weights
from .rounding import MODES, Refused
from .static_linear import INT32_MAX, StaticLinear, calibrated, channel_weights
from .vectors import Rng, random_unit

WIDTHS = (2, 3, 4, 7, 8, 9, 12, 15, 16)


def texts(values):
    return [bits32(v) for v in values]


def act_json(act):
    return None if act is None else texts(act)


def bell_rows(rng, N, K, width):
    return [[rng.bell(width) for _ in range(K)] for _ in range(N)]


def some_grid(rng, bits, power, S):
    """Signed or not, with a zero point anywhere, mostly not at an end."""
    g = Grid(bits, bool(rng.int(0, 1)), 0, shift=0)
    z = rng.int(g.qmin, g.qmax) if rng.int(0, 3) else rng.pick([g.qmin, g.qmax, 0])
    if power:
        return Grid(bits, g.signed, z, shift=-(math.frexp(S)[1] - 1))
    return Grid(bits, g.signed, z, scale=S)


def layer_json(layer):
    return {"bias_s32": layer.bias, "bounds": layer.bounds,
            "rescales": None if layer.y is None else [r.json() for r in layer.rescales]}


def given_case(w, x, y, bias, act, mode, inputs, **more):
    """inputs: rows of codes."""
    case = {"op": "static", **more, "mode": mode, "weights": w.json(), "x_grid": x.json(), "y_grid": y and y.json(),
            "bias": bias and texts(bias), "act": act_json(act)}
    try:
        layer = StaticLinear(w, x, y, bias, act, mode)
    except Refused as error:
        return {**case, "refused": str(error)}
    return {**case, **layer_json(layer), "x": inputs, "y": [layer(row) for row in inputs]}


def given_cases(rng):
    cases = []

    def add(x_bits, y_bits, bits, K, mode, act):
        """y_bits None: accumulators."""
        rows = bell_rows(rng, 5, K, 0.3)
        if K % 2:
            rows[rng.int(0, 4)] = [0.0] * K
        w = channel_weights(rows, K % 3 == 0, bits)
        power = bool(rng.int(0, 1))
        x = some_grid(rng, x_bits, power, rng.real(4, 8) * 2.0 ** -x_bits)
        reach = float(x.S) * x.reach * 0.3 * K ** 0.5
        y = None if y_bits is None else some_grid(rng, y_bits, power, to_format(
            rng.real(0.5, 2.0) * reach * 2.0 ** (2 - y_bits), FORMATS["f32"]))
        bias = rng.pick([None, [rng.real(-3, 3) for _ in range(5)]])
        inputs = [[rng.int(x.qmin, x.qmax) for _ in range(K)] for _ in range(3)]
        inputs += [[x.qmax if v >= 0 else x.qmin for v in rows[1]], [x.qmin if v >= 0 else x.qmax for v in rows[2]],
                   [x.z] * K]
        cases.append(given_case(w, x, y, bias, act, mode, inputs, rows=[texts(row) for row in rows],
                                method="mse" if K % 3 == 0 else "absmax"))

    for x_bits in WIDTHS:
        for y_bits in WIDTHS + (None,):
            act = None if y_bits is None else rng.pick([None, None, RELU, RELU6, (-1.0, 2.0)])
            add(x_bits, y_bits, rng.pick([2, 4, 8, 8]), rng.int(1, 24), rng.pick(MODES), act)
    # sums that need int64, and those that just do not
    for index, mode in enumerate(MODES):
        for K in (258, 259):
            w = Weights(8, K, "symmetric", "f32", [[255] * K, [1] * K, [rng.int(0, 255) for _ in range(K)]],
                        [[0.5], [1.0], [1.5]])
            x = Grid(16, index % 2 == 0, 0, shift=15)
            x = Grid(16, x.signed, rng.pick([x.qmin, x.qmax]), shift=15)
            y = Grid((16, 8, 12, 16)[index], True, 3, scale=rng.real(0.5, 1.0) * 2.0 ** (-6, 2, -2, -6)[index])
            inputs = [[x.qmin + x.qmax - x.z] * K, [rng.int(x.qmin, x.qmax) for _ in range(K)]]
            cases.append(given_case(w, x, y, None, None, mode, inputs))
            assert (max(cases[-1]["bounds"]) > INT32_MAX) == (K == 259)
    # ties of every sign, and ratios from tiny to large
    w = Weights(8, 1, "symmetric", "f32", [[v + 128] for v in (1, -1, 3, -128, 127)], [[1.0]] * 5)
    x = Grid(16, True, 0, shift=0)
    codes = [[v] for v in (-32768, -8191, -5, -3, -2, -1, 0, 1, 2, 3, 5, 8191, 32767)]
    for mode in MODES:
        for scale in (2.0, 4.0, 0.5, 3.0, 2.0 ** 10, 2.0 ** 60, 2.0 ** 120):
            cases.append(given_case(w, x, Grid(16, True, 5, scale=scale), None, None, mode, codes))
        for shift in (1, -1, -2, -32, 62):
            cases.append(given_case(w, x, Grid(16, False, 77, shift=shift), None, None, mode, codes))
        small = Grid(2, True, -1, shift=0)
        cases.append(given_case(w, small, Grid(2, False, 1, shift=-1), None, None, mode, [[-2], [-1], [0], [1]]))
    # zero points at the ends
    for bits, signed in ((16, True), (16, False), (2, True), (9, False)):
        for low in (True, False):
            g = Grid(bits, signed, 0, shift=0)
            g = Grid(bits, signed, g.qmin if low else g.qmax, shift=0)
            cases.append(given_case(w, g, Grid(16, signed, 0, shift=-1), None, None, MODES[0],
                                    [[g.qmin], [g.qmax], [(g.qmin + g.qmax) // 2]]))
    # refused
    eight = Grid(8, True, 0, shift=0)
    cases.append(given_case(w, Grid(16, True, 0, scale=1.0), Grid(16, True, 0, scale=2.0 ** -110), [0.0] * 5, None,
                            MODES[0], [[1]]))
    cases.append(given_case(w, x, None, [0.0, 2147483520.0, 0.0, 0.0, 0.0], None, MODES[0], [[1]]))
    cases.append(given_case(w, eight, eight, [0.0, math.inf, 0.0, 0.0, 0.0], None, MODES[0], [[1]]))
    for bits in (1, 17, 32):
        cases.append(given_case(w, Grid(bits, False, 0, shift=0), eight, None, None, MODES[0], [[1]]))
        cases.append(given_case(w, eight, Grid(bits, False, 0, shift=0), None, None, MODES[0], [[1]]))
    # a bias that is clamped
    huge = [to_format(v, FORMATS["f32"]) for v in (3e38, -3e38, 1e10, 2147483520.0, -0.5)]
    cases.append(given_case(w, x, Grid(16, True, -3, scale=2.0 ** 16), huge, None, MODES[0], [[100], [-100]]))
    return cases


def calibrated_case(rows, bias, act, sequences, x, y, power, method, bits, mse, mode, dead=None):
    """dead: the rows that must be dead."""
    case = {"op": "calibrated", "rows": [texts(row) for row in rows], "bias": bias and texts(bias),
            "act": act_json(act), "sequences": [[texts(step) for step in seq] for seq in sequences],
            "x": x if isinstance(x, dict) else None, "given_x": None if isinstance(x, dict) else x.json(),
            "y": y, "power_of_two": power, "method": method, "weight_bits": bits,
            "weight_method": "mse" if mse else "absmax", "mode": mode}
    try:
        layer, found = calibrated(rows, bias, act, sequences, x, y, power, method, bits, mse, mode)
    except Refused as error:
        return {**case, "refused": str(error)}
    assert dead is None or found == dead, (found, dead)
    return {**case, "x_grid": layer.x.json(), "y_grid": layer.y and layer.y.json(), "v": layer.v,
            "S_w": texts(row[0] for row in layer.weights.S), "dead": found, **layer_json(layer)}


def clear(sequences, tensor, power):
    """Whether an sqnr search has one winner."""
    st = calibrate.Statistics()
    for seq in sequences:
        for step in seq:
            for v in step:
                st.add(v)
    return calibrate.sqnr(st, tensor["bits"], tensor["signed"], tensor["symmetric"], power,
                          default_steps(tensor["bits"], "activation"))[3] > 1e-6


def calibrated_cases(rng):
    cases = []

    def tensor(bits, signed=True, symmetric=False):
        return {"bits": bits, "signed": signed, "symmetric": symmetric}

    def data(K, width=1.0, sequences=2, steps=5):
        return [bell_rows(rng, steps, K, width) for _ in range(sequences)]

    index = 0
    for method in ("minmax", "99", "97.5", "ema", "sqnr"):
        for power in (True, False):
            for x_bits, y_bits in ((16, 16), (8, 12), (2, 5), (12, None)):
                index += 1
                K = rng.int(3, 17)
                rows = bell_rows(rng, 4, K, 0.3)
                if index % 3 == 0:
                    rows[1] = [0.0] * K
                bias = [rng.real(-1, 1) for _ in range(4)] if index % 2 else None
                act = None if y_bits is None else (None, RELU, RELU6, (-1.0, 1.5))[index % 4]
                y = y_bits and tensor(y_bits, bool(rng.int(0, 1)), bool(rng.int(0, 1)))
                x = tensor(x_bits, bool(rng.int(0, 1)), method == "sqnr" and x_bits == 12)
                while True:
                    seq = data(K)
                    if method != "sqnr" or clear(seq, x, power):
                        break
                cases.append(calibrated_case(rows, bias, act, seq, x, y, power, method, rng.pick([2, 4, 8]),
                                             bool(index % 2), MODES[index % 4]))
    # the grid of x is given
    for given in (Grid(16, True, 0, shift=15), Grid(16, False, 40000, scale=rng.real(2e-5, 4e-5)),
                  Grid(5, True, -3, shift=3)):
        cases.append(calibrated_case(bell_rows(rng, 3, 6, 0.4), [0.5, -0.25, 0.125], None, data(6, 0.5), given,
                                     tensor(16), True, "minmax", 8, False, MODES[0]))
    # nearly dead rows
    rows = bell_rows(rng, 4, 6, 0.4)
    tiny = [to_format(v * 2.0 ** -60, FORMATS["f32"]) for v in rows[1]]
    for power in (True, False):
        for bits in (2, 4, 8):
            for y in (tensor(16), None):
                cases.append(calibrated_case([rows[0], tiny, rows[2], [0.0] * 6], [0.5, 2.5, -0.5, 1.0], None, data(6),
                                             tensor(16), y, power, "minmax", bits, False, MODES[0], dead=[1, 3]))
    # the bias of row 1 has less than 2^31 but more than accumulators have room for
    one, seq = [1.0] * 4, [[[1.0, -1.0, 0.5, 0.0]]]
    S = channel_weights([one]).S[0][0]
    most = to_format(INT32_MAX * S * 2.0 ** -14 - 4.0, FORMATS["f32"])
    given = Grid(16, True, 0, shift=14)
    cases.append(calibrated_case([one, one], [0.0, most], None, seq, given, None, True, "minmax", 8, False, MODES[0],
                                 dead=[1]))
    cases.append(calibrated_case([one, one], [0.0, most], None, seq, given, tensor(16), True, "minmax", 8, False,
                                 MODES[0], dead=[]))
    # refused: y is not finite, no scale will do, sums that are too large whatever the bias, a range of nothing
    large = to_format(3e38, FORMATS["f32"])
    cases.append(calibrated_case([[large]], None, None, [[[8.0]]], tensor(8), tensor(8), True, "minmax", 8, False,
                                 MODES[0]))
    cases.append(calibrated_case([[1.0]], [large], None, [[[2.0 ** -40]]], Grid(16, True, 0, shift=46), tensor(8),
                                 False, "minmax", 8, False, MODES[0]))
    cases.append(calibrated_case([[1.0] * 600], [1.0], None, [[[1.0] * 600]], tensor(16), None, True, "minmax", 8,
                                 False, MODES[0]))
    cases.append(calibrated_case(rows, None, None, [[[0.0] * 6] * 300 + [[1.0] + [0.0] * 5]], tensor(8), tensor(8),
                                 False, "99", 8, False, MODES[0]))
    assert all("refused" in c for c in cases[-4:])
    # nothing but zeros
    cases.append(calibrated_case([[0.0] * 3] * 2, None, None, [[[0.0] * 3]], tensor(16), tensor(16), True, "sqnr", 8,
                                 False, MODES[0]))
    return cases


def gru_cases(rng):
    """A GRU with a state of 16 bits, and a layer on its grid of h."""
    cases = []
    for power in (True, False):
        for index, (y_bits, h_bits) in enumerate(((16, 16), (8, 16), (None, 16), (12, 11))):
            mode = MODES[index]
            unit = random_unit(rng, mode, power, 5, 6, bits={"h": h_bits, "x": 8}, signed={"h": index != 1, "u": False,
                                                                                            "r": False, "*": True})
            x = [[[rng.int(-128, 127) for _ in range(5)] for _ in range(2)] for _ in range(4)]
            h, _, _ = run_model([[unit]], x)
            grid = unit.grids["h"]
            w = channel_weights(bell_rows(rng, 7, 6, 0.4))
            y = None if y_bits is None else some_grid(rng, y_bits, power, rng.real(2, 6) * 2.0 ** -y_bits)
            bias = [rng.real(-0.5, 0.5) for _ in range(7)]
            act = RELU if index == 1 else None
            layer = StaticLinear(w, grid, y, bias, act, mode)
            cases.append({"op": "after_gru", "mode": mode, "gru": unit.json(), "x": x, "h": h, "weights": w.json(),
                          "y_grid": y and y.json(), "bias": texts(bias), "act": act_json(act), **layer_json(layer),
                          "y": [[layer(row) for row in step] for step in h]})
    return cases


def sign_cases(rng):
    """Weights of 1 bit."""
    cases = []
    for x_bits in (2, 8, 11, 16):
        for y_bits in (5, 8, 16, None):
            K, mode = rng.int(1, 24), rng.pick(MODES)
            rows = bell_rows(rng, 5, K, 0.3)
            w = channel_weights(rows, False, 1)
            x = some_grid(rng, x_bits, False, rng.real(4, 8) * 2.0 ** -x_bits)
            reach = float(x.S) * x.reach * 0.3 * K ** 0.5
            y = None if y_bits is None else some_grid(rng, y_bits, False, to_format(
                rng.real(0.5, 2.0) * reach * 2.0 ** (2 - y_bits), FORMATS["f32"]))
            bias = [rng.real(-1, 1) for _ in range(5)]
            inputs = [[rng.int(x.qmin, x.qmax) for _ in range(K)] for _ in range(3)]
            inputs += [[x.qmax if v >= 0 else x.qmin for v in rows[1]], [x.z] * K]
            cases.append(given_case(w, x, y, bias, None, mode, inputs, rows=[texts(row) for row in rows],
                                    method="absmax"))
    eight, tensor = Grid(8, True, 0, shift=3), {"bits": 8, "signed": True, "symmetric": False}
    zeros = Weights(1, 3, "symmetric", "f32", [[1, 0, 1], [1, 1, 1]], [[0.5], [0.0]])
    cases.append(given_case(zeros, eight, eight, None, None, MODES[0], [[1, 2, 3]]))
    assert "refused" in cases[-1]
    seq = [bell_rows(rng, 5, 6, 1.0)]
    rows = bell_rows(rng, 3, 6, 0.4)
    for mode, y in zip(MODES, (tensor, None, tensor, tensor)):
        cases.append(calibrated_case(rows, [0.5, -0.25, 0.0], None, seq, tensor, y, False, "minmax", 1, True, mode,
                                     dead=[]))
    # a row of zeros, and a dead one
    tiny = [to_format(v * 2.0 ** -60, FORMATS["f32"]) for v in rows[1]]
    for row in ([0.0] * 6, tiny):
        cases.append(calibrated_case([rows[0], row], [0.5, 2.5], None, seq, tensor, tensor, False, "minmax", 1, False,
                                     MODES[0]))
        assert "refused" in cases[-1]
    return cases


def make_static_linear():
    return {"description": "linear layers of static codes (section 12)",
            "cases": given_cases(Rng(41)) + calibrated_cases(Rng(42)) + gru_cases(Rng(43)) + sign_cases(Rng(44))}
