# SPDX-License-Identifier: Apache-2.0
"""The test vectors: deterministic, every file a function of nothing."""
import json
import math
from fractions import Fraction

from . import calibrate
from .build import FUNCTION, build_unit, output_grid, overflows
from .floats import READERS, bits32, bits64, div32, f32, from_bits32, from_bits64, is_normal32
from .grid import Grid, code_range, default_steps, range_to_grid, rows_to_grids
from .gru import GATES, Unit, run_model
from .rounding import (INT64_MAX, INT64_MIN, MODES, Refused, Rescale, encode_ratio, power_rescale,
                       rint, round_shift)
from .tables import (Direct, Interpolated, Segments, digest, direct_entry, direct_outputs,
                     output_bounds)


class Rng:
    """splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def u64(self):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    def int(self, lo, hi):
        """Uniform enough in lo..hi, both included."""
        return lo + self.u64() % (hi - lo + 1)

    def pick(self, items):
        return items[self.int(0, len(items) - 1)]

    def unit(self):
        """Fraction in [0, 1)."""
        return Fraction(self.u64() >> 11, 1 << 53)

    def real(self, lo, hi):
        """float32 in [lo, hi)."""
        return f32(Fraction(lo) + (Fraction(hi) - Fraction(lo)) * self.unit())

    def bell(self, width):
        """float32, roughly normal with standard deviation `width`."""
        return f32((sum(self.unit() for _ in range(12)) - 6) * Fraction(width))

    def bits(self, n):
        """Integer whose magnitude is spread over 1..n bits, either sign."""
        v = self.u64() >> (64 - self.int(1, n))
        return v if self.int(0, 1) else -v


def render(data):
    """Compact JSON, one case a line."""
    lines = [json.dumps(c, separators=(",", ":"), sort_keys=False) for c in data["cases"]]
    return "{\"description\":%s,\"cases\":[\n%s\n]}\n" % (
        json.dumps(data["description"]), ",\n".join(lines))


# ---------------------------------------------------------------- sections 1 and 2

def make_round_shift():
    rng, cases = Rng(1), []

    def add(x, n):
        if n < 0 and not INT64_MIN <= x << -n <= INT64_MAX:
            return
        cases.append({"x": x, "n": n, "y": [round_shift(x, n, m) for m in MODES]})

    for x in range(-9, 10):
        for n in (0, 1, 2, 3):
            add(x, n)
    for n in (4, 8, 31, 32, 61, 62, 63):
        half = 1 << (n - 1)
        for k in (-3, -2, -1, 0, 1, 2):
            for d in (-1, 0, 1):
                x = (2 * k + 1) * half + d
                if INT64_MIN <= x <= INT64_MAX:
                    add(x, n)
    for x in (INT64_MIN, INT64_MIN + 1, -(1 << 62), -(1 << 62) - 1, -(1 << 62) + 1, -1, 0, 1,
              (1 << 62) - 1, 1 << 62, (1 << 62) + 1, INT64_MAX - 1, INT64_MAX):
        for n in (0, 1, 2, 61, 62, 63, 64, 65, 66, 100, 126, 127, -1):
            add(x, n)
    for n in range(-62, 0):
        for x in (-2, -1, 0, 1):
            add(x, n)
        add(rng.bits(63) >> -n, n)
    for _ in range(300):
        add(rng.bits(63), rng.int(0, 70))
    return {"description": "round_shift(x, n, mode); y in the order " + ", ".join(MODES),
            "cases": cases}


def make_rescale():
    rng, cases = Rng(2), []
    while len(cases) < 200:
        m = 1 if rng.int(0, 4) == 0 else rng.int(1, (1 << rng.int(2, 31)) - 1)
        x, n = rng.bits(63 - m.bit_length()), rng.int(-8, 75)
        if n < 0 and not INT64_MIN <= (x * m) << -n <= INT64_MAX:
            continue
        cases.append({"op": "apply", "x": x, "m": m, "n": n,
                      "y": [Rescale(m, n)(x, mode) for mode in MODES]})

    def encode(rho, bound):
        case = {"op": "encode", "rho": bits64(rho), "bound": bound}
        try:
            case.update(encode_ratio(rho, bound).json())
        except Refused as error:
            case["refused"] = str(error)
        cases.append(case)

    bounds = [0, 1, 255, 32767, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, (1 << 33) - 1, 1 << 40,
              (1 << 61) - 1, 1 << 61, (1 << 62) - 1, 1 << 62]
    for rho in (1.0, 0.5, 2.0, 1.0 / 3, 0.75, math.nextafter(1.0, 0), math.nextafter(1.0, 2),
                math.nextafter(2.0 ** -7, 0), 1.0 + 2.0 ** -30, 1.0 + 2.0 ** -31,
                1.0 + 3 * 2.0 ** -31, 1.0 + 2.0 ** -31 + 2.0 ** -52, 1e-3, 12345.678):
        for bound in bounds:
            encode(rho, bound)
    for e in (-200, -100, -98, -97, -96, -95, -90, -40, 0, 40, 60, 90, 92, 93, 94, 95, 120):
        for f in (0.5, 0.75, math.nextafter(1.0, 0)):
            for bound in (0, 1, 1000, 1 << 45):
                encode(math.ldexp(f, e), bound)
    for _ in range(80):
        encode(math.ldexp(float(Fraction(1, 2) + rng.unit() / 2), rng.int(-40, 20)),
               rng.pick(bounds))
    for _ in range(40):
        over = [rng.real(1, 2) * 2.0 ** rng.int(-20, 3) for _ in range(rng.int(1, 2))]
        under = [rng.real(1, 2) * 2.0 ** rng.int(-20, 3) for _ in range(rng.int(1, 2))]
        rho, bound = math.prod(over) / math.prod(under), rng.pick(bounds[1:9])
        cases.append({"op": "ratio", "over": [bits32(v) for v in over],
                      "under": [bits32(v) for v in under], "bound": bound, "rho": bits64(rho),
                      **encode_ratio(rho, bound).json()})
    for n in (-100, -63, -62, -1, 0, 1, 126, 127, 128, 156):
        for bound in (0, 1):
            case = {"op": "shift", "derived_n": n, "bound": bound}
            try:
                case.update(power_rescale(n, bound).json())
            except Refused as error:
                case["refused"] = str(error)
            cases.append(case)
    return {"description": "Rescale: apply (y in the order of round_shift.json), encode of a "
            "float64 ratio, ratios of float32 scales, stored shifts", "cases": cases}


# ---------------------------------------------------------------- sections 3 and 4

def some_grids(rng):
    out = []
    for bits in (1, 2, 3, 4, 7, 8, 12, 16, 24, 31, 32):
        for signed in (True, False):
            qmin, qmax = code_range(bits, signed)
            for z in sorted({0, qmin, qmax, rng.int(qmin, qmax)}):
                if rng.int(0, 1):
                    out.append(Grid(bits, signed, z, shift=rng.int(-4, bits + 2)))
                else:
                    out.append(Grid(bits, signed, z,
                                    scale=rng.real(1, 2) * 2.0 ** rng.int(-bits - 1, 3)))
    for s in (-32, -20, 38, 62):
        out.append(Grid(8, True, 3, shift=s))
    out.append(Grid(32, True, 0, shift=62))
    out.append(Grid(32, False, (1 << 32) - 1, shift=-32))
    for scale in (2.0 ** -126, f32(3 * 2.0 ** -126), f32(1.7e38), f32(3e38), 1.0,
                  f32(Fraction(1, 3)), f32(Fraction(1, 255))):
        out.append(Grid(8, True, -5, scale=scale))
    return out


def make_quantize():
    rng, cases = Rng(3), []
    special = ["00000000", "80000000", "00000001", "80000001", "007fffff", "00800000", "7f7fffff",
               "ff7fffff", "7f800000", "ff800000", "3f000000", "bf000000", "3f7fffff"]
    for grid in some_grids(rng):
        S, xs = grid.S, list(special)
        for _ in range(10):  # near and on ties
            k = rng.int(grid.qmin - grid.z - 2, grid.qmax - grid.z + 2)
            v = f32((k + Fraction(1, 2)) * S)
            for t in (v, math.nextafter(v, math.inf), f32(k * S)):
                t = f32(t)
                if math.isfinite(t):
                    xs.append(bits32(t))
        for _ in range(6):
            xs.append(bits32(f32(rng.bits(40) * S / 256)))
        xs = list(dict.fromkeys(xs))
        cases.append({"op": "quantize", "grid": grid.json(), "type": "f32", "x": xs,
                      "q": [grid.quantize(from_bits32(x)) for x in xs],
                      "nan": "7fc00000", "unchecked_nan_code": grid.quantize(math.nan)})
        qs = [grid.qmin, grid.qmax, grid.z]
        qs += [rng.int(grid.qmin, grid.qmax) for _ in range(8)]
        qs = list(dict.fromkeys(qs))
        cases.append({"op": "dequantize", "grid": grid.json(), "q": qs,
                      "x": [bits32(grid.dequantize(q)) for q in qs]})
    for kind, digits in (("f16", 4), ("bf16", 4), ("f64", 16)):
        for grid in (Grid(8, True, 0, shift=5), Grid(8, False, 100, scale=f32(Fraction(1, 77))),
                     Grid(16, True, -7, shift=11)):
            xs = []
            while len(xs) < 24:
                if kind == "f64":  # near float32 rounding boundaries and near code ties
                    v = float((rng.int(-140, 140) + Fraction(1, 2)) * grid.S)
                    v += rng.pick([0.0, 1, -1, 3, -3]) * 2.0 ** -rng.int(20, 50)
                    text = bits64(v)
                else:
                    text = "%04x" % rng.int(0, 65535)
                    if math.isnan(READERS[kind](text)):
                        continue
                xs.append(text)
            xs += {"f16": ["7c00", "fc00", "0001", "7bff"], "bf16": ["7f80", "ff80", "0001", "7f7f"],
                   "f64": [bits64(1e300), bits64(-1e300), bits64(1e-300), bits64(math.inf)]}[kind]
            cases.append({"op": "quantize", "grid": grid.json(), "type": kind, "x": xs,
                          "q": [grid.quantize(READERS[kind](x)) for x in xs]})
    return {"description": "float to code (quantize) and code to float32 (dequantize)",
            "cases": cases}


def grid_or_refusal(case, make):
    try:
        g = make()
        case.update({k: v for k, v in g.json().items() if k in ("shift", "scale", "zero_point")})
    except Refused as error:
        case["refused"] = str(error)
    return case


def make_grid():
    rng, cases = Rng(4), []

    def add(lo, hi, bits, signed, symmetric, power, steps):
        case = {"min": bits32(lo), "max": bits32(hi), "bits": bits, "signed": signed,
                "symmetric": symmetric, "power_of_two": power, "steps": steps}
        cases.append(grid_or_refusal(case, lambda: range_to_grid(
            lo, hi, bits, signed, symmetric, power, steps)))

    ranges = [(0.0, 1.0), (-1.0, 1.0), (-1.0, 0.0), (0.0, 0.0), (0.5, 2.0), (-3.0, -1.0),
              (f32(-0.1), f32(0.3)), (-127.0, 128.0), (-128.0, 127.0), (f32(-1e-6), f32(2e-6)),
              (f32(-1e-30), f32(1e-30)), (0.0, 2.0 ** -149), (-1e6, f32(3e7)),
              (f32(-5.5e9), f32(2.1e9)), (f32(-3e38), f32(3e38))]
    for lo, hi in ranges:
        for bits in (1, 2, 8, 16, 32):
            for signed in (True, False):
                for symmetric in (True, False):
                    for power in (True, False):
                        if bits in (2, 16) and rng.int(0, 2):
                            continue
                        add(lo, hi, bits, signed, symmetric, power,
                            default_steps(bits, rng.pick(["activation", "output"])))
    for _ in range(260):
        bits = rng.int(1, 32)
        lo, hi = sorted([rng.bell(2.0 ** rng.int(-12, 8)), rng.bell(2.0 ** rng.int(-12, 8))])
        kind = rng.int(0, 5)
        steps = rng.int(1, 1 << bits) if kind == 0 else (1 << bits) - (kind & 1)
        add(lo, hi, bits, bool(rng.int(0, 1)), bool(rng.int(0, 1)), bool(rng.int(0, 1)), steps)
    for bits, k in ((8, -5), (8, 3), (4, 0), (16, 7)):  # raw exactly a power of two, and neighbours
        for steps in ((1 << bits) - 1, 1 << bits):
            top = f32(steps * 2.0 ** -k)
            for hi in (math.nextafter(top, 0), top, f32(top * (1 + 2.0 ** -23))):
                add(0.0, f32(hi), bits, False, False, True, steps)
                add(f32(-hi), f32(hi), bits, True, True, True, steps)
    return {"description": "range to grid parameters (section 4)", "cases": cases}


def make_per_channel():
    rng, cases = Rng(5), []

    def add(rows, bits, power, rule):
        grids = rows_to_grids(rows, bits, True, power, all_zero_rule=rule)
        key = "shift" if power else "scale"
        cases.append({"bits": bits, "signed": True, "steps": 1 << bits, "power_of_two": power,
                      "all_zero_rule": rule,
                      "rows": [[bits32(v) for v in row] for row in rows],
                      key: [g.json()[key] for g in grids],
                      "codes": [[g.quantize(v) for v in row] for row, g in zip(rows, grids)]})
        return cases[-1]

    for index in range(36):
        bits = (8, 4, 2, 1, 16, 8, 12, 8, 32)[index % 9]
        power = index % 2 == 0
        rows = []
        for r in range(rng.int(1, 6)):
            n = 1 if index % 6 == 5 else 5
            width = 2.0 ** rng.int(-9, 3)
            rows.append([rng.bell(width) for _ in range(n)])
            if n == 1:
                rows[-1] = [rng.pick([0.5, -0.5, 1.0, -2.0, rng.bell(width)])]
        n = len(rows[0])
        if index % 4 in (0, 3):
            rows.insert(rng.int(0, len(rows)), [0.0] * n)
        if index == 14 or index == 17:
            rows = [[0.0] * n, [-0.0] * n]
        if index == 20:
            rows[0] = [0.0, 1.0, -1.0, 0.25, 0.5]
        add(rows, bits, power, index % 6 != 5)
    # rows too small for a normal general scale; powers of two have no such limit
    rng = Rng(51)
    lowest = 2.0 ** -149

    def by(factors):
        return [[f32(Fraction(rng.bell(0.5)) * Fraction(f)) for _ in range(5)] for f in factors]

    for bits in (8, 16):
        half = 1 << (bits - 1)
        least = half * 2.0 ** -126                     # raw is 2^-126
        up, under = least * (1 - 2.0 ** -24), least * (1 - 2.0 ** -23)  # 2^-126 once rounded, and not
        subnormal = [1234 * lowest, -lowest, 0.0, -0.0, -(2.0 ** -126 - lowest)]
        beside = by([1, 1e-38, 0.25]) + [subnormal, [0.0] * 5]
        add(beside, bits, False, True)
        add(beside, bits, True, True)
        add([[0.0, lowest], [-lowest, 0.0], [f32(1e-40), f32(-1e-39)], [0.0, 0.0]], bits, False, True)
        edge = [[under, -under / 2], [0.75, -0.5], [up, 0.0], [0.0, -up], [0.0, -under], [lowest, 0.0],
                [0.0, least / half]]
        # on the smallest scale, 2^-126, rows that are too small keep their codes
        case = add(edge, bits, False, True)
        assert case["scale"].count(bits32(2.0 ** -126)) == 6
        assert [max(map(abs, row)) for row in case["codes"]] == [half - 1] * 3 + [half] * 2 + [0, 1]
        add([edge[0], edge[4], edge[5]], bits, False, True)  # without a scale to follow: 1
        add(edge, bits, True, True)
        biases = [f32(1e-40), 0.25, f32(-1e-38), lowest, up, -up, under, -under, 0.0, 2 * least]
        add([[v] for v in biases], bits, False, False)
        add([[v] for v in biases], bits, True, False)
    return {"description": "symmetric grids per row, with the rule for rows of zeros and of numbers "
            "too small; rows of one number are biases, for which the rule does not hold", "cases": cases}


# ---------------------------------------------------------------- section 5

def make_calibrate():
    rng, cases = Rng(6), []
    configs = [  # bits, signed, symmetric, power of two
        (8, True, False, True), (8, False, False, False), (8, True, True, True),
        (4, False, False, True), (4, True, False, False), (5, True, True, False),
        (8, False, True, True), (16, True, False, True), (3, False, False, False),
        (6, False, True, False), (2, True, False, True), (1, False, False, True)]

    def samples(kind):
        S, T, F = rng.int(1, 3), rng.int(2, 12), rng.int(1, 6)
        if kind == "one far out":
            S, T, F = 1, 16, 10
        scale = 2.0 ** rng.int(-8, 5)

        def one(s, t):
            if kind == "growing":
                return rng.bell(scale * 2.0 ** (s + t))
            if kind == "zeros":
                return 0.0
            if kind == "positive":
                return abs(rng.bell(scale))
            if kind == "zeros first":
                return 0.0 if t == 0 else rng.bell(scale)
            if kind == "outliers" and rng.int(0, 24) == 0:
                return f32(rng.bell(scale) * rng.int(2, 6))
            if kind == "one far out" and t == T - 1 and rng.int(0, 9) == 0:
                return f32(scale * rng.int(4, 9))
            if kind == "skewed":
                return f32(rng.bell(scale) + Fraction(scale) * 2)
            if kind == "powers":
                return rng.pick([1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 0.0, 1.5])
            return rng.bell(scale)

        return [[[one(s, t) for _ in range(F)] for t in range(T)] for s in range(S)]

    kinds = ["outliers", "growing", "plain", "skewed", "positive", "zeros first", "powers"]
    index = 0
    general = [(b, s, y, False) for b in (4, 3, 5) for s, y in ((False, False), (True, True),
                                                              (True, False), (False, True))]

    def add(data, config, check, percentiles):
        """check(grid, j, i, margin, again) or None: no sqnr; returns whether to keep the case."""
        st = calibrate.Statistics()
        for seq in data:
            for step in seq:
                for x in step:
                    st.add(x)
        bits, signed, symmetric, power = config
        steps = default_steps(bits, "activation")
        results = []

        def ranged(entry, lohi, make=None):
            try:
                entry.update({"lo": bits64(lohi[0]), "hi": bits64(lohi[1])})
                grid = make() if make else range_to_grid(lohi[0], lohi[1], *config, steps)
                results.append({**entry, "grid": grid.json()})
            except Refused:
                pass

        ranged({"method": "minmax"}, calibrate.minmax(st))
        for p in percentiles:
            ranged({"method": "percentile", "p": p}, calibrate.percentile(st, p),
                   lambda: calibrate.percentile_grid(st, p, *config, steps))
        ranged({"method": "ema", "reverse": False}, calibrate.ema(data))
        ranged({"method": "ema", "reverse": True}, calibrate.ema(data, True))
        if check:
            grid, j, i, margin = calibrate.sqnr(st, *config, steps)

            def again(**kw):
                other = calibrate.sqnr(st, *config, steps, **kw)[0]
                return other.S, other.z

            if not check(grid, j, i, margin, again):
                return
            results.append({"method": "sqnr", "j": j, "i": i, "grid": grid.json()})
        cases.append({
            "sequences": [[[bits32(x) for x in step] for step in seq] for seq in data],
            "bits": bits, "signed": signed, "symmetric": symmetric, "power_of_two": power,
            "steps": steps, "count": st.count, "min": bits32(st.lo), "max": bits32(st.hi),
            "E": st.E, "bins": [[i, st.bins[i]] for i in sorted(st.bins)], "results": results})

    def clear(grid, j, i, margin, again):
        # not too close to call, and another end of the zero points would not matter
        return margin >= 1e-6 and again(clamp_ends=False) == (grid.S, grid.z)

    while len(cases) < 48:
        if len(cases) == 35:
            data, config = samples("zeros"), configs[0]
        elif len(cases) >= 36:
            data, config = samples("one far out"), general[len(cases) - 36]
        else:
            data, config = samples(kinds[index % len(kinds)]), configs[len(cases) % len(configs)]
        index += 1
        bits, signed, symmetric, power = config
        if symmetric and signed and bits == 1:
            continue
        add(data, config, clear if bits <= 8 or len(cases) % 2 else None,
            ("100", "99.9", "99", "97.5", "90", "60.25"))

    # the float32 1/S: grids so wide that its error is worth whole codes, samples at the centres
    # of their bins, where it decides which zero point clips least
    def by_product(grid, j, i, margin, again):
        tie = i == 0 and margin == 0.0  # of errors that are sums of the same numbers
        assert (margin >= 1e-6 or tie) and again(steps_of="quotient") != (grid.S, grid.z)
        return True

    for bits, signed, seed in ((24, True, 4066), (24, False, 3013), (28, False, 3046),
                               (28, True, 1027), (32, False, 3004)):
        own = Rng(seed)
        E = own.int(-3, 3)
        values = [(2 * own.int(-2048, 2047) + 1) * 2.0 ** (E - 12) for _ in range(8)]
        add([[values[2 * t:2 * t + 2] for t in range(4)]], (bits, signed, False, False), by_product,
            ("60.25",))
    # the search ends at the first scale that is not normal
    def at_the_end(grid, j, i, margin, again):
        assert again(steps_of="quotient", normal_only=False) != (grid.S, grid.z)
        return clear(grid, j, i, margin, again)

    smallest = 2.0 ** -126  # S_0 is 1.25 of it, S_2 would be 0.88 of it and hit nearly all samples
    values = [f32(Fraction(7, 4) * Fraction(smallest) + own.unit() * Fraction(smallest) / 32)
              for _ in range(15)] + [3.75 * smallest]
    add([[values[4 * t:4 * t + 4] for t in range(4)]], (2, False, False, False), at_the_end, ())
    assert len(cases) == 48 + 5 + 1
    cases += percentile_cases() + far_sqnr_cases()
    return {"description": "statistics and calibration methods (section 5)", "cases": cases}


def gathered(sequences, copies=None):
    """Statistics of sequences, sequence s seen copies[s] times."""
    st = calibrate.Statistics()
    for seq, n in zip(sequences, copies or [1] * len(sequences)):
        part = calibrate.Statistics()
        for step in seq:
            for x in step:
                part.add(x)
        for _ in range(n):
            st.merge(part)
    return st


def outlier_case(name, sequences, config, copies=None, merge=None, percentiles=(), sqnr=False,
                 steps=None, **expect):
    """A case with the second histogram. merge: an order of the sequences in which statistics made
    of each alone are merged. expect: of sqnr, j: the least winning j; of percentiles, refused:
    how many grids are refused; last: whether the next scale would win if it were tried."""
    st = gathered(sequences, copies)
    steps = default_steps(config[0], "activation") if steps is None else steps
    case = {"name": name, "sequences": [[[bits32(x) for x in step] for step in seq]
                                        for seq in sequences]}
    if copies:
        case["copies"] = copies
    if merge:
        case["merge"] = merge
        again = gathered([sequences[s] for s in merge])
        assert sorted(merge) == list(range(len(sequences))) and vars(again) == vars(st)
    case.update(zip(("bits", "signed", "symmetric", "power_of_two"), config))
    case.update({"steps": steps, "count": st.count, "min": bits32(st.lo), "max": bits32(st.hi),
                 "E": st.E, "bins": [[i, st.bins[i]] for i in sorted(st.bins)],
                 "bins16": [[b, st.bins16[b]] for b in calibrate.in_order(st.bins16)]})
    results, refused = [], 0
    for p in percentiles:
        lo, hi = calibrate.percentile(st, p)
        entry = {"method": "percentile", "p": p, "lo": bits64(lo), "hi": bits64(hi)}
        try:
            entry["grid"] = calibrate.percentile_grid(st, p, *config, steps).json()
        except Refused as error:
            entry["refused"] = str(error)
            refused += 1
        results.append(entry)
    assert refused == expect.get("refused", 0), (name, refused)
    if sqnr:
        grid, j, i, margin = calibrate.sqnr(st, *config, steps)
        assert (margin >= 1e-6 or margin == 0.0) and j >= expect.get("j", 0), (name, margin, j)
        if "last" in expect:
            assert calibrate.sqnr(st, *config, steps, beyond=1)[1] == j + 1, name
        results.append({"method": "sqnr", "j": j, "i": i, "grid": grid.json()})
    case["results"] = results
    return case


def percentile_cases():
    rng, cases = Rng(61), []
    signed8, unsigned8 = (8, True, False), (8, False, False)

    def rows(values, features=5):
        return [list(values[i:i + features]) for i in range(0, len(values), features)]

    def add(name, *args, **kw):
        cases.append(outlier_case(name, *args, **kw))

    usual = ("100", "99.99", "99.9", "99.8", "99.5", "99", "98", "90")
    bulk = [rng.bell(1.0) for _ in range(25)]
    for factor in (1e4, 1e6):
        far = [[f32(factor), f32(-0.75 * factor)]]
        for power in (True, False):
            add("outliers of %g" % factor, [rows(bulk), far], signed8 + (power,), [40, 1],
                percentiles=usual)
        add("an outlier of %g above" % factor, [rows(bulk), far[:1]], unsigned8 + (False,), [20, 3],
            percentiles=usual)
        add("positive only, an outlier of %g" % factor,
            [rows([abs(v) for v in bulk]), [[f32(factor)]]], unsigned8 + (False,), [20, 1],
            percentiles=usual)
        add("negative only, an outlier of %g" % factor,
            [rows([-abs(v) for v in bulk]), [[f32(-factor)]]], signed8 + (True,), [20, 1],
            percentiles=usual)
    add("symmetric, outliers", [rows(bulk), [[1000.0], [f32(-1e5)]]], (8, True, True, False), [12, 1],
        percentiles=usual)
    add("small shares of 25 samples", [rows(bulk)], signed8 + (True,), percentiles=(
        "50", "20", "8.000000001", "8", "4", "0.000000001"))
    # zeros
    small = [f32(0.01), f32(-0.02), f32(0.03), f32(0.05), f32(0.7)]
    add("zeros and -0, few other numbers", [rows([0.0, -0.0, 0.0, -0.0, -0.0]), rows(small)],
        signed8 + (True,), [8, 1], percentiles=("99", "80", "60"), refused=2)
    add("nearly all zeros: the range ends at 0 on one side, or on both", [rows([0.0, -0.0]), rows(small)],
        signed8 + (False,), [200, 1], percentiles=("100", "99.5", "99", "97", "50"), refused=2)
    add("zeros only", [rows([0.0, -0.0, 0.0])], signed8 + (False,), percentiles=("100", "50"))
    add("-0 only", [rows([-0.0, -0.0])], unsigned8 + (True,), percentiles=("99",))
    add("zeros and positive numbers", [rows([0.0, -0.0, 0.25, 1.5])], unsigned8 + (False,),
        percentiles=("100", "60", "40"))
    add("zeros and negative numbers", [rows([0.0, -0.0, -0.25, -1.5])], unsigned8 + (False,),
        percentiles=("100", "60", "40"))
    # subnormal numbers: bins 0000..007f and 8000..807f
    tiny = [from_bits32(b) for b in ("00000001", "0000ffff", "00010000", "007fffff", "00800000",
                                     "80000001", "8000ffff", "80010000", "807fffff", "80800000")]
    ends = ("100", "80", "70", "60", "40", "20", "10")
    add("subnormal numbers of either sign", [rows(tiny)], signed8 + (True,), percentiles=ends)
    add("subnormal numbers of either sign and zeros", [rows(tiny + [0.0, -0.0])], signed8 + (True,),
        percentiles=ends, refused=1)
    add("subnormal numbers, general scale", [rows(tiny)], signed8 + (False,), percentiles=("100",
        "40"), refused=2)
    add("subnormal and large numbers", [rows(tiny + [1.0, -1.0, 3e4, f32(-1e5)])], signed8 + (True,),
        percentiles=ends)
    # the ends of bins: the last number of one, the first of the next
    edges = [from_bits32(b) for b in ("3f80ffff", "3f810000", "3f810001", "3f80fffe", "3f7fffff",
                                      "3f800000", "bf80ffff", "bf810000", "bf7fffff", "bf800000")]
    for power in (True, False):
        add("ends of bins", [rows(edges), rows([5.0, -5.0])], signed8 + (power,), [3, 1],
            percentiles=("100", "94", "93", "80", "75", "60", "55", "50", "45", "40", "30"))
    add("ends of bins, positive only", [rows([v for v in edges if v > 0])], unsigned8 + (True,),
        percentiles=("100", "67", "66", "50", "33"))
    add("ends of bins, negative only", [rows([v for v in edges if v < 0])], signed8 + (True,),
        percentiles=("100", "67", "66", "50", "49"))
    add("ties: m samples and one more", [rows([1.0] * 5 + [2.0] * 5 + [3.0] * 5 + [-1.0] * 5)],
        signed8 + (False,), percentiles=("50.1", "50", "49.999999999", "10"))
    add("the largest numbers", [[[from_bits32("7f7fffff"), from_bits32("ff7fffff")],
                                 [from_bits32("7f7f0000"), from_bits32("ff7effff")]]],
        signed8 + (False,), percentiles=("100", "40"))
    # parts
    parts = [rows([0.0, -0.0, 0.0]), rows([f32(1e-30), f32(-3e-31), 1.0]),
             rows([f32(7e8), f32(-1.5), f32(2.0 ** -140)]), rows(bulk[:10]),
             rows([f32(-1e-44), f32(1e-44)]), rows([-4096.0, 4095.9])]
    parts = [[[f32(v) for v in step] for step in part] for part in parts]
    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [2, 0, 4, 5, 1, 3]):
        add("parts", parts, signed8 + (True,), merge=order, percentiles=("100", "90", "60"))
    # ranges that end at zero
    few = rows([f32(-0.3), f32(0.01), f32(0.7), f32(0.02)])
    for config in (signed8, (8, False, True)):
        for power in (True, False):
            # 1 of 404 is negative, 3 are positive: m is 0, 1, 2, 3 and so on
            add("[0, 0] is refused for its zeros", [rows([0.0, -0.0]), few], config + (power,),
                [200, 1], percentiles=("100", "99.5", "99", "98.5", "98", "50"), refused=3)
            add("the range ends at 0 above only", [rows([0.0, -0.0, -0.5, -0.25, -0.5, -1.5]), few],
                config + (power,), [20, 1], percentiles=("95", "60", "40"))
            add("the range ends at 0 below only", [rows([0.0, -0.0, 0.5, 0.25, 0.5, 1.5]), few],
                config + (power,), [20, 1], percentiles=("95", "60", "40"))
    for power in (True, False):
        add("bin 0000 without zeros", [rows(tiny[:2])], signed8 + (power,), percentiles=("100", "50"),
            refused=2)
        add("bin 0000 and a positive number", [rows(tiny[:2] + [0.5])], signed8 + (power,),
            percentiles=("100", "30"), refused=1)
    return cases


def far_sqnr_cases():
    """Searches with outliers; where j is asked for, a winner beyond the first 4 shifts or 13
    scales, which takes few codes and an outlier that is rare enough."""
    rng, cases = Rng(62), []

    def rows(values, features=5):
        return [list(values[i:i + features]) for i in range(0, len(values), features)]

    def near(v, n=15):
        return [f32(v * (1 + Fraction(rng.int(-40, 40), 1000))) for _ in range(n)]

    def add(name, *args, **kw):
        cases.append(outlier_case(name, *args, sqnr=True, percentiles=("99",), **kw))

    def codes(*steps):  # a little below each number of steps, so that a scale of 1 covers them
        return rows(sum((near(Fraction(47 * k, 50), 5) for k in steps), []))

    for power in (True, False):
        least = 4 if power else 13
        for bits, signed in ((1, False), (1, True), (2, False), (2, True)):
            n = (1 << bits) - 1
            add("asymmetric, %d bit, an outlier above" % bits,
                [codes(*range(1, n + 1)), [[15.25 * n]]], (bits, signed, False, power), [250, 1], j=least)
        add("asymmetric, 1 bit, an outlier below", [codes(-1), [[-15.5]]],
            (1, True, False, power), [100, 1], j=least)
        add("asymmetric, 2 bits, an outlier on either side",
            [codes(1, -1, -2), [[14.0, -29.0]]], (2, False, False, power), [200, 1], j=least)
        add("symmetric, 2 bits, outliers", [codes(1, -2, -1), [[-29.0, 1.0]]],
            (2, True, True, power), [150, 1], j=least)
        add("symmetric, 3 bits, outliers", [codes(3, -3, 1, -2), [[47.0, -30.0]]],
            (3, True, True, power), [250, 1], j=least)
        add("symmetric unsigned, 1 bit, an outlier", [codes(1), [[15.5]]],
            (1, False, True, power), [100, 1], j=least)
        for symmetric, side in ((False, 1), (False, -1), (True, 1)):
            add("the search ends at percentile:99", [rows([side * v for v in near(1.125, 19) + [1.875]]),
                                                     [[31.0 * side]]],
                (1, False, symmetric, power), [150, 1], j=least, last=True)
        for factor in (1e4, 1e6):
            bulk = [rng.bell(1.0) for _ in range(20)]
            for signed, symmetric in ((True, False), (True, True), (False, False)):
                add("8 bits, outliers of %g" % factor, [rows(bulk), [[f32(factor)], [f32(-0.6 * factor)]]],
                    (8, signed, symmetric, power), [30, 1])
        # where percentile:99 is no guide: it is refused for its zeros; a cap of shifts
        add("percentile:99 is refused for its zeros, negative numbers",
            [rows([0.0] * 5), [[-0.5], [-0.25], [-2.5]]], (4, True, False, power), [200, 1], refused=1)
        add("percentile:99 is refused for its zeros", [rows([0.0] * 5), [[0.5], [-0.25], [2.5]]],
            (4, True, False, power), [200, 1], refused=1)
        add("percentile:99 at the cap of shifts", [rows([f32(1e-37), f32(-1e-37)]),
                                                   [[0.5], [0.25], [-2.5]]],
            (4, True, False, power), [500, 1])
        add("outliers of 12 times, 4 bits", [rows([rng.bell(1.0) for _ in range(20)]), [[11.5, -12.5]]],
            (4, False, False, power), [40, 1])
    # the search ends at j = 3 (12), though the next scale would win
    for power in (True, False):
        last = 3 if power else 12
        for symmetric in (False, True):
            add("the search ends early: percentile:99 is refused for its zeros", [
                rows([0.0] * 20), rows([f32(2.8)] * 8), [[31.0]]], (1, False, symmetric, power),
                [1650, 20, 1], j=last, last=True, refused=1)
        add("the search ends early: percentile:99 has the real step 0", [
            rows([0.0] * 10 + [-2.0 ** -10] * 10), rows([f32(2.8)] * 8), [[31.0]]],
            (1, False, True, power), [1650, 20, 1], j=last, last=True)
    return cases


# ---------------------------------------------------------------- section 6

def gate_input(rng, bits, signed, power, exponent=3, z=None):
    qmin, qmax = code_range(bits, signed)
    if z is None:
        mid = 0 if signed else 1 << (bits - 1)
        z = min(max(mid + rng.int(-(1 << bits) // 10, (1 << bits) // 10), qmin), qmax)
    if power:
        return Grid(bits, signed, z, shift=bits - 1 - exponent)
    return Grid(bits, signed, z, scale=rng.real(0.75, 1.25) * 2.0 ** (exponent + 1 - bits))


def bounds_differ(gout):
    """Whether the code of 1 would be another with the float32 1/S of section 3."""
    return rint(div32(1.0, gout.scale)) != rint(1 / gout.S)


def make_table():
    rng, cases = Rng(7), []

    def add_direct(table):
        cases.append({**table.json(grids=True), "outputs_fnv1a64": table.digests()})

    def out_grid(function, bits, signed, power):
        return output_grid(function, bits, signed, False, power, 1 << bits)

    for function in ("sigmoid", "tanh"):
        for index in range(20):
            bits_in = (8, 8, 8, 8, 8, 7, 6, 5, 4, 3, 2, 1, 8, 8, 8, 8, 8, 8, 8, 8)[index]
            bits_out = (8, 8, 8, 8, 4, 8, 16, 2, 8, 12, 8, 1, 16, 16, 1, 3, 8, 8, 8, 8)[index]
            power = index % 4 in (0, 3)
            gin = gate_input(rng, bits_in, bool(index % 2), power, 6 if index == 19 else 3)
            steps = (1 << bits_out) - (1 if index % 5 == 4 and bits_out > 1 else 0)
            gout = output_grid(function, bits_out, bool(index // 2 % 2), index % 7 == 6, power, steps)
            if index == 16:  # finer than needed: the upper bound of f has no code
                gout = Grid(8, True, -20, shift=9)
            if index == 17:  # coarse, halves everywhere
                gout = Grid(8, False, 7, shift=0)
            if index == 18:
                gout = Grid(8, True, -3, scale=f32(Fraction(2, 7)))
            add_direct(Direct(function, gin, gout))
        for index in range(8):
            bits_in = (12, 16, 9, 16)[index % 4]
            power = index < 4
            gin = gate_input(rng, bits_in, bool(index % 2), power)
            gout = out_grid(function, (8, 16, 12, 8)[index % 4], index % 3 == 0, power)
            lo, hi = output_bounds(function, gout)
            qs = [gin.qmin, gin.qmin + 1, gin.z - 1, gin.z, gin.z + 1, gin.qmax - 1, gin.qmax]
            qs = sorted(set(qs + [rng.int(gin.qmin, gin.qmax) for _ in range(120)]))
            cases.append({"kind": "direct_sampled", "function": function, "lo": lo, "hi": hi,
                          "in": gin.json(), "out": gout.json(), "q": qs,
                          "y": [direct_entry(function, gin, gout, q) for q in qs],
                          "outputs_fnv1a64": digest(direct_outputs(function, gin, gout))})

    def evaluated(table, outside=False):
        gin = table.gin
        if outside:
            qs = [gin.qmin - 1000, gin.qmin - 1, gin.qmax + 1, gin.qmax + 1000,
                  -(1 << 31), (1 << 31) - 1]
        else:
            qs = {gin.qmin, gin.qmin + 1, gin.qmax - 1, gin.qmax, gin.z}
            if gin.bits <= 6:
                qs |= set(range(gin.qmin, gin.qmax + 1))
            else:
                qs |= {rng.int(gin.qmin, gin.qmax) for _ in range(40)}
                edges = table.t if table.kind == "segments" else [
                    table.q0 + (i << table.F) for i in (0, 1, 1 << (table.k - 1), 1 << table.k)]
                qs |= {gin.clamp(e + d) for e in edges[:12] for d in (-1, 0, 1)}
            qs = sorted(qs)
        case = table.json(grids=True)
        case.update({"outside": outside, "q": qs,
                     "y": {m: [table(q, m) for q in qs] for m in MODES},
                     "outputs_fnv1a64": cases[-1]["outputs_fnv1a64"] if outside
                     else table.digests()})
        cases.append(case)

    for index in range(18):
        function = ("sigmoid", "tanh")[index % 2]
        bits_in = (16, 12, 10, 9, 16, 14, 8, 6, 16)[index % 9]
        gin = gate_input(rng, bits_in, bool(index % 3), index % 4 < 2)
        gout = out_grid(function, (8, 16, 12, 16, 10, 8, 8, 4, 16)[index % 9],
                        bool(index // 2 % 2), index % 4 < 2)
        k = min(rng.int(2, 6), bits_in)
        table = Interpolated.chords(function, gin, gout, k, G=(4, 0, 8, 4, 1)[index % 5])
        evaluated(table)
        if index % 4 == 0:
            evaluated(table, outside=True)
    for index in range(10):  # anchors out of thin air: slopes of both signs, clamps on both sides
        gin = gate_input(rng, (8, 12, 6, 16)[index % 4], bool(index % 2), True)
        gout = out_grid(("sigmoid", "tanh")[index // 5], 8, index % 2 == 0, True)
        k, G = rng.int(1, 4), rng.int(0, 6)
        F = gin.bits - k - (index % 3)
        q0 = gin.qmin if index % 3 == 0 else rng.int(gin.qmin, gin.qmin + (1 << (gin.bits - 2)))
        reach = (1 << (9 + G)) if index < 8 else 1 << (60 - F)
        evaluated(Interpolated(("sigmoid", "tanh")[index // 5], gin, gout, q0, k, F, G,
                               [rng.int(-reach, reach) for _ in range((1 << k) + 1)]))
    for index in range(14):
        function = ("sigmoid", "tanh")[index % 2]
        gin = gate_input(rng, (8, 16, 10, 6, 12, 9, 16)[index % 7], bool(index % 3), index % 4 < 2)
        gout = out_grid(function, (8, 8, 16, 4, 12, 8, 16)[index % 7], bool(index // 2 % 2),
                        index % 4 < 2)
        table = Segments.chords(function, gin, gout, rng.int(2, 12), rng.int(8, 16))
        evaluated(table)
        if index % 4 == 0:
            evaluated(table, outside=True)
    for index in range(10):
        gin = gate_input(rng, (8, 16, 6, 12)[index % 4], bool(index % 2), True)
        gout = out_grid("tanh", 8, index % 2 == 0, True)
        n = 1 if index == 0 else rng.int(2, 9)
        shift = (0, 31, 3, 1, 16)[index % 5]
        t = sorted({rng.int(gin.qmin, gin.qmax) for _ in range(n - 1)})
        b = [rng.bits(min(31, 8 + shift)) for _ in range(len(t) + 1)]
        c = [rng.bits(8 + shift) for _ in b]
        if index == 9:
            b[0], c[-1] = -(1 << 31), -(1 << 55)
        evaluated(Segments("tanh", gin, gout, t, b, c, shift))
    # f's bounds have codes that hang on 1/S being exact: 1/S is near a half, and the float32 1/S
    # is that half
    rng = Rng(71)
    for steps in (233, 251):  # the exact 1/S rounds up (116.5, to 117), and down (125.5, to 125)
        gout = output_grid("tanh", 8, True, False, False, steps)
        assert bounds_differ(gout)
        add_direct(Direct("tanh", gate_input(rng, 6, True, False, 4), gout))
        shape = dict(gin=gate_input(rng, 7, True, True, 4), gout=gout)
        for table in (
                Interpolated("tanh", q0=-64, k=3, F=4, G=2, anchors=[
                    4 * a for a in (-200, -140, -60, 0, 60, 140, 200, -200, 200)], **shape),
                Segments("tanh", t=[-10, 10, 40], b=[9, 5, 6, -9], c=[-20, 3, -5, 700], shift=1,
                         **shape)):
            evaluated(table)
            for y in cases[-1]["y"].values():
                assert table.lo in y and table.hi in y
        for signed in (False, True):
            add_direct(Direct("sigmoid", gate_input(rng, 5, True, False, 5),
                              Grid(8, signed, -20 if signed else 1, scale=gout.scale)))
    return {"description": "activation tables (section 6)", "cases": cases}


# ---------------------------------------------------------------- section 7

EXPONENT = {"x": 1, "h": 0, "ih": 2, "hh": 2, "u_in": 3, "r_in": 3, "n_in": 2}


def tensor_grid(rng, name, bits, signed, power, exponent, zero):
    """A grid that covers about +-2^exponent. zero: 'sym', 'any' or an int."""
    qmin, qmax = code_range(bits, signed)
    if zero == "sym":
        z = 0
    elif zero == "any":
        mid = 0 if signed else 1 << (bits - 1)
        z = min(max(mid + rng.int(-(1 << bits) // 8, (1 << bits) // 8), qmin), qmax)
    else:
        z = min(max(zero, qmin), qmax)
    if power:
        return Grid(bits, signed, z, shift=min(bits - 1 - exponent, 62, bits + 30))
    return Grid(bits, signed, z, scale=rng.real(0.7, 1.3) * 2.0 ** (exponent + 1 - bits))


def make_tables(rng, grids, kind):
    tables = {}
    for gate in GATES:
        gin, gout, f = grids[gate + "_in"], grids[gate], FUNCTION[gate]
        choice = kind if gin.bits > 6 and kind else ("direct" if gin.bits <= 8 else "interpolated")
        if choice == "direct":
            tables[gate] = Direct(f, gin, gout)
        elif choice == "interpolated":
            tables[gate] = Interpolated.chords(f, gin, gout, 6)
        else:
            tables[gate] = Segments.chords(f, gin, gout, rng.int(5, 16), rng.int(9, 15))
    return tables


def random_unit(rng, mode, power, C, H, bits=None, signed=None, zero="any", exponent=None,
                steps=0, table=None, x_grid=None, h_grid=None, sparse=False, fixed=None,
                symmetric_out=False, zero_bias=False):
    """bits: name -> width ('*' default); signed likewise; fixed: name -> Grid; steps: what N of u, r
    and n is below 2^b, or None: the defaults of section 4."""
    bits, signed, exponent = bits or {}, signed or {}, exponent or {}
    width = lambda n: bits.get(n, bits.get("*", 8))
    is_signed = lambda n: signed.get(n, signed.get("*", n not in ("u", "r")))
    for _ in range(400):
        grids = {}
        for name in EXPONENT:
            grids[name] = tensor_grid(rng, name, width(name), is_signed(name), power,
                                      exponent.get(name, EXPONENT[name]), zero)
        for name in GATES:
            st = None if steps is None else (1 << width(name)) - steps
            grids[name] = output_grid(FUNCTION[name], width(name), is_signed(name),
                                      symmetric_out, power, st)
        grids.update(fixed or {})
        if x_grid is not None:
            grids["x"] = x_grid
        if h_grid is not None:
            grids["h"] = h_grid
        rows, codes = {}, {}
        for name, cols in (("W", C), ("R", H), ("bw", 1), ("br", 1)):
            b = width(name)
            rows[name], codes[name] = [], []
            for c in range(3 * H):
                e = exponent.get(name, 0)
                if power:
                    g = Grid(b, True, 0, shift=min(b - 1 - e + rng.int(-1, 2), 62, b + 30))
                else:
                    g = Grid(b, True, 0, scale=rng.real(0.5, 1.5) * 2.0 ** (e + 1 - b))
                rows[name].append(g)
                row = [rng.int(g.qmin, g.qmax) for _ in range(cols)]
                if sparse and rng.int(0, 1) and name in ("W", "R"):
                    row = [0] * cols
                if zero_bias and name in ("bw", "br"):
                    row = [0]
                    rows[name][-1] = Grid(b, True, 0, **({"shift": 0} if power else {"scale": 1.0}))
                codes[name].append(row)
        try:
            unit = Unit(grids, rows, codes["W"], codes["R"], [r[0] for r in codes["bw"]],
                        [r[0] for r in codes["br"]], make_tables(rng, grids, table), mode, margin=4)
        except Refused:
            continue
        if unit.largest < 1 << 61:
            return unit
    raise AssertionError("no unit found")


def trace_json(traces, keep):
    if not keep:
        return None
    names = ("ih", "hh", "u_in", "r_in", "n_in", "u", "r", "n", "h")
    return [[[None if o is None else {k: o[k] for k in names} for o in step] for step in tr]
            for tr in traces]


def gru_case(rng, name, layers, T, N, lengths=None, h0=False, masks=None, chunks=None,
             trace=False, extreme_x=False, counts=None):
    first = layers[0][0]
    gx, mode = first.grids["x"], first.mode

    def code(g):
        return rng.pick([g.qmin, g.qmax]) if extreme_x else rng.int(g.qmin, g.qmax)

    x = [[[code(gx) for _ in range(first.C)] for _ in range(N)] for _ in range(T)]
    units = [u for layer in layers for u in layer]
    state = [[[code(u.grids["h"]) for _ in range(u.H)] for _ in range(N)] for u in units] \
        if h0 else None
    mask = None
    if masks is not None:
        mask = [[[[1 if rng.int(1, 100) <= masks else 0 for _ in range(u.H)] for _ in range(N)]
                 for _ in range(T)] for u in units]
    y, last, traces = run_model(layers, x, lengths, state, mask)
    if chunks:
        assert sum(chunks) == T and len(layers[0]) == 1
        t, carry, parts = 0, state, []
        for n in chunks:
            part, carry, _ = run_model(layers, x[t:t + n], None, carry,
                                       None if mask is None else [m[t:t + n] for m in mask])
            parts += part
            t += n
        assert parts == y and carry == last
    if counts is not None:
        for u, tr in zip(units, traces):
            for o in (o for step in tr for o in step if o is not None):
                for k in ("ih", "hh", "u_in", "r_in", "n_in", "u", "r", "n", "h"):
                    g = u.tables[k] if k in GATES else u.grids[k]
                    ends = (g.lo, g.hi) if k in GATES else (g.qmin, g.qmax)
                    for end in (0, 1):
                        counts[k, end] = counts.get((k, end), 0) + o[k].count(ends[end])
    return {"name": name, "mode": mode, "power_of_two": first.power, "T": T, "N": N,
            "directions": len(layers[0]), "layers": [[u.json() for u in layer] for layer in layers],
            "x": x, "lengths": lengths, "h0": state, "masks": mask, "chunks": chunks,
            "y": y, "h_last": last, "trace": trace_json(traces, trace)}


def stack(rng, mode, power, C, H, layers, directions, **kw):
    """Layers of random units that share grids as the section demands."""
    out, width, grid = [], C, None
    hs = H if isinstance(H, list) else [H] * layers
    hbits = kw.pop("h_bits", None)
    for li in range(layers):
        row = []
        for d in range(directions):
            args = dict(kw)
            if hbits:
                args["bits"] = dict(kw.get("bits") or {}, h=hbits[li])
            row.append(random_unit(rng, mode, power, width, hs[li], x_grid=row[0].grids["x"] if row
                                   else grid, h_grid=row[0].grids["h"] if row else None, **args))
        grid, width = row[0].grids["h"], hs[li] * directions
        out.append(row)
    return out


def make_gru():
    rng, cases, counts = Rng(8), [], {}
    EVEN = "nearest_even"

    def one(name, mode, power, C, H, T, N, run=None, **kw):
        unit = random_unit(rng, mode, power, C, H, **kw)
        cases.append(gru_case(rng, name, [[unit]], T, N, **(run or {})))

    for power in (True, False):
        kind = "power of two" if power else "general"
        for mode in MODES:
            one("8 bits, %s, %s" % (kind, mode), mode, power, 5, 4, 4, 2, {"trace": True})
    one("one of everything", EVEN, True, 1, 1, 1, 1, {"trace": True}, zero="sym")
    one("symmetric signed, asymmetric u8 gates", EVEN, True, 8, 9, 5, 2, zero="sym")
    for power in (True, False):
        one("all unsigned", "floor" if power else "nearest_up", power, 6, 3, 4, 2,
            {"trace": True}, signed={"*": False})
        one("all signed, gates too", "nearest_away", power, 3, 5, 4, 2, signed={"*": True})
        one("zero points at the ends", EVEN, power, 4, 3, 4, 2, zero=-(1 << 40))
        one("zero points at the other ends", EVEN, power, 4, 3, 4, 2, zero=1 << 40)
        one("symmetric gate outputs", EVEN, power, 4, 3, 4, 2, symmetric_out=True,
            signed={"*": True})
        one("gate outputs of 2^b - 1 steps", EVEN, power, 4, 3, 4, 2, {"trace": True}, steps=1)
        for b in (1, 2, 4):
            one("every tensor %d bits" % b, EVEN, power, 5, 4, 4, 2, {"trace": b == 1},
                bits={"*": b}, signed={"u": False, "r": False, "*": bool(b & 1) or power})
        one("16-bit state and input, 8-bit weights", "nearest_up", power, 6, 4, 4, 2,
            bits={"x": 16, "h": 16})
        one("32-bit ih and hh", EVEN, power, 6, 4, 4, 2, {"trace": True}, bits={"ih": 32, "hh": 32})
        one("16-bit weights, 32-bit biases, 24-bit state", "nearest_away", power, 6, 4, 4, 2,
            bits={"W": 16, "R": 16, "bw": 32, "br": 32, "h": 24, "x": 20})
        one("32-bit state", EVEN, power, 3, 3, 5, 1, {"h0": True}, bits={"h": 32, "x": 32, "ih": 32},
            signed={"x": False})
        one("12-bit gate inputs, interpolated", EVEN, power, 5, 4, 4, 2, {"trace": True},
            bits={"u_in": 12, "r_in": 12, "n_in": 12})
        one("16-bit gates, interpolated", "floor", power, 5, 4, 4, 2, {"trace": True},
            bits={"u_in": 16, "r_in": 16, "n_in": 16, "u": 16, "r": 16, "n": 16, "ih": 16, "hh": 16})
        one("16-bit gate inputs, segments", "nearest_up", power, 5, 4, 4, 2, {"trace": True},
            bits={"u_in": 16, "r_in": 16, "n_in": 16}, table="segments")
        one("10-bit gate inputs, segments", EVEN, power, 5, 4, 4, 2,
            bits={"u_in": 10, "r_in": 9, "n_in": 11, "n": 12}, table="segments")
    for index in range(10):
        names = {n: rng.int(1, 32) for n in ("x", "h", "ih", "hh", "W", "R", "bw", "br")}
        while names["x"] + names["W"] > 52 or names["h"] + names["R"] > 52:
            names["x"], names["W"], names["h"], names["R"] = (rng.int(1, 32) for _ in range(4))
        names.update({n: rng.int(1, 16) for n in ("u_in", "r_in", "n_in", "u", "r", "n")})
        sign = {n: bool(rng.int(0, 1)) for n in list(EXPONENT) + list(GATES)}
        if names["h"] + names["u"] > 44:
            names["u"] = 8
        one("random widths %d" % index, MODES[index % 4], index % 2 == 0, rng.int(1, 9),
            rng.int(1, 9), rng.int(2, 5), rng.int(1, 3), {"trace": index < 4, "h0": index % 3 == 0},
            bits=names, signed=sign, table="segments" if index % 5 == 4 else None)
    one("rows of zeros in W and R", EVEN, True, 4, 4, 3, 2, {"trace": True}, sparse=True)
    one("zero biases", "floor", False, 4, 4, 3, 2, {"trace": True}, zero_bias=True)
    one("shift stored as 127, zero bias with n stored as 0", "floor", True, 3, 3, 3, 2,
        {"trace": True}, zero_bias=True, bits={"x": 32}, exponent={"W": -29},
        fixed={"x": Grid(32, True, -5, shift=62), "ih": Grid(8, True, 1, shift=-32)})
    # sequences
    one("lengths", EVEN, True, 4, 3, 6, 3, {"lengths": [6, 1, 4]})
    one("lengths, initial state", "floor", False, 4, 3, 6, 3, {"lengths": [2, 6, 3], "h0": True})
    one("a length of zero", EVEN, True, 4, 3, 4, 3, {"lengths": [4, 0, 2], "h0": True})
    one("initial state", EVEN, True, 4, 3, 3, 2, {"h0": True, "trace": True})
    one("zoneout", EVEN, True, 4, 5, 6, 2, {"masks": 70, "trace": True})
    one("zoneout keeps everything", "nearest_up", False, 4, 5, 3, 2, {"masks": 0, "h0": True})
    one("zoneout, lengths, initial state", "nearest_away", False, 4, 5, 6, 3,
        {"masks": 50, "lengths": [3, 6, 5], "h0": True})
    one("chunks", EVEN, True, 4, 5, 6, 2, {"chunks": [2, 3, 1]})
    one("chunks, initial state, zoneout", "floor", False, 4, 5, 6, 2,
        {"chunks": [1, 1, 4], "h0": True, "masks": 60})
    for power in (True, False):
        many = lambda name, mode, L, D, run, T=4, N=2, C=4, H=3, **kw: cases.append(gru_case(
            rng, name, stack(rng, mode, power, C, H, L, D, **kw), T, N, **run))
        small = {"u_in": 6, "r_in": 6, "n_in": 6}
        many("two layers", EVEN, 2, 1, {"trace": True}, H=[3, 4])
        many("three layers, other widths of h", "nearest_up", 3, 1, {"h0": True}, H=[4, 2, 3],
             h_bits=[8, 12, 6], bits=small)
        many("two layers in chunks", EVEN, 2, 1, {"chunks": [3, 1, 2]}, T=6, bits=small)
        many("bidirectional", EVEN, 1, 2, {"trace": True}, T=5)
        many("bidirectional, lengths, initial state", "floor", 1, 2,
             {"lengths": [5, 2, 4], "h0": True}, T=5, N=3)
        many("bidirectional, zoneout, lengths", "nearest_away", 1, 2,
             {"lengths": [3, 5], "masks": 60, "h0": True}, T=5)
        many("two layers, bidirectional, lengths", EVEN, 2, 2, {"lengths": [4, 2]}, bits=small,
             signed={"*": False})
        many("two layers, bidirectional, zoneout, lengths, initial state", EVEN, 2, 2,
             {"lengths": [4, 3], "masks": 50, "h0": True}, bits=small)
    # clamps: grids far too fine for what arrives
    fine = {"ih": -3, "hh": -4, "u_in": -2, "r_in": -2, "n_in": -3, "h": -2}
    for power in (True, False):
        for mode in (EVEN, "floor"):
            one("every clamp, " + mode, mode, power, 6, 5, 6, 3,
                {"trace": True, "extreme_x": True, "h0": True, "counts": counts}, exponent=fine)
        one("table clamps", EVEN, power, 6, 5, 6, 3,
            {"trace": True, "extreme_x": True, "h0": True, "counts": counts},
            exponent={"u_in": 5, "r_in": 5, "n_in": 5, "ih": 5, "hh": 5, "W": 2, "R": 2})
    for k in ("ih", "hh", "u_in", "r_in", "n_in", "u", "r", "n", "h"):
        for end in (0, 1):
            assert counts[k, end] > 0, (k, end)
    # general scales with the steps of section 4: u and r in 2^b - 1, n in 2^b
    rng = Rng(81)
    own = dict(steps=None)
    one("u and r of 2^b - 1 steps", EVEN, False, 4, 3, 4, 2, {"trace": True, "h0": True}, **own)
    one("u and r of 2^b - 1 steps, signed", "nearest_up", False, 4, 3, 4, 2, {"trace": True},
        signed={"*": True}, **own)
    one("u and r of 2^b - 1 steps, symmetric outputs", "floor", False, 4, 3, 4, 2, {"h0": True},
        signed={"*": True}, symmetric_out=True, **own)
    one("u and r of 2^b - 1 steps, 16 bits, interpolated", "nearest_away", False, 3, 3, 4, 2,
        {"h0": True}, bits={"u_in": 16, "r_in": 16, "n_in": 16, "u": 16, "r": 16, "n": 16, "ih": 16,
                            "hh": 16, "h": 16}, **own)
    one("u and r of 2^b - 1 steps, 1 and 2 bits", EVEN, False, 3, 3, 5, 2, {"h0": True, "trace": True},
        bits={"u_in": 6, "r_in": 6, "n_in": 6, "u": 1, "r": 2, "n": 4}, **own)
    one("u and r of 2^b - 1 steps, zoneout, chunks", EVEN, False, 3, 3, 6, 2,
        {"h0": True, "masks": 60, "chunks": [2, 3, 1]}, bits={"u_in": 6, "r_in": 6, "n_in": 6}, **own)
    cases.append(gru_case(rng, "u and r of 2^b - 1 steps, bidirectional, lengths", stack(
        rng, EVEN, False, 3, 3, 1, 2, bits={"u_in": 6, "r_in": 6, "n_in": 6}, **own), 5, 3,
        lengths=[5, 2, 4], h0=True))
    # u = 1 has a code: where the gate is open to its end, a state stays for good
    top = random_unit(rng, EVEN, False, 2, 3, signed={"u": False}, fixed={
        "u_in": Grid(8, True, -120, scale=0.0625), "ih": Grid(8, True, -120, scale=0.125)},
        exponent={"W": -6, "R": -6, "bw": 4, "br": -6}, **own)
    top.bw[:3] = [127] * 3
    top.derive()
    cases.append(gru_case(rng, "u and r of 2^b - 1 steps, u of 1 holds the state", [[top]], 5, 2,
                          h0=True, trace=True))
    held = cases[-1]
    assert top.one == 255 and all(step == held["h0"][0] for step in held["y"])
    for case in cases[-8:]:
        for unit in sum(case["layers"], []):
            u = unit["grids"]["u"]
            n = (1 << u["bits"]) - 1
            assert unit["one"] - u["zero_point"] == (
                n // 2 if u["signed"] and u["zero_point"] == 0 else n)
    return {"description": "the GRU in integers (section 7)", "cases": cases}


def make_gru_float():
    rng, cases = Rng(9), []
    special = {12: "float model 12, n in 233 steps: the codes of -1 and 1",
               13: "float model 13, few steps for wide biases: their bound",
               14: "float model 14, h of 24 bits: the bound of u -> 1"}
    for index in range(15):
        power, mode = index % 2 == 0 and index < 12, MODES[(index // 2) % 4]
        C, H, T, N = rng.int(1, 5), rng.int(1, 4), 4, 2
        rows = {k: {"bits": 8, "signed": True, "steps": None} for k in ("W", "R", "bw", "br")}
        if index >= 6:
            rows["W"]["bits"] = rng.pick([4, 8, 6])
            rows["R"]["bits"] = rng.pick([4, 8, 12])
        tensors = {}
        for name in ("x", "h", "ih", "hh", "u_in", "r_in", "n_in", "u", "r", "n"):
            t = {"bits": 8, "signed": name not in ("u", "r"), "symmetric": False, "steps": None}
            if index >= 4:
                t["signed"] = bool(rng.int(0, 1))
                t["symmetric"] = t["signed"] and rng.int(0, 2) == 0
            if index >= 6 and name in ("x", "h", "ih", "hh"):
                t["bits"] = rng.pick([6, 8, 10, 12, 16])
            if index >= 8 and name in ("u_in", "r_in", "n_in"):
                t["bits"] = rng.pick([5, 7, 8])
            if index >= 10 and name in ("u", "r", "n"):
                t["steps"] = (1 << t["bits"]) - 1
            if name not in GATES:
                top = 2.0 ** EXPONENT[name]
                t["min"], t["max"] = rng.real(-top, -top / 2), rng.real(top / 2, top)
                if name == "h" and index % 3 == 0:
                    t["min"], t["max"] = -1.0, 1.0
            tensors[name] = t
        if index in special:
            C, H = 2, 2
            rows["W"]["bits"] = rows["R"]["bits"] = 8
            for name, t in tensors.items():
                t.update({"signed": name not in ("u", "r"), "symmetric": False, "steps": None,
                          "bits": 5 if name.endswith("_in") else 8})
        if index == 12:
            tensors["n"]["steps"] = 233
            tensors["n_in"].update({"bits": 7, "min": -16.0, "max": 16.0})
        if index == 13:
            rows["bw"].update({"bits": 32, "steps": 2})
            rows["br"].update({"bits": 24, "steps": 6})
        if index == 14:
            tensors["h"].update({"bits": 24, "min": -1.0, "max": 1.0})
            tensors["u"]["steps"] = 255
        W = [[rng.bell(0.5) for _ in range(C)] for _ in range(3 * H)]
        R = [[rng.bell(0.5) for _ in range(H)] for _ in range(3 * H)]
        bw = [rng.bell(0.25) for _ in range(3 * H)]
        br = [rng.bell(0.25) for _ in range(3 * H)]
        if index == 12:
            W[2 * H] = [f32(12.0), f32(-11.0)]  # n_in to both ends
        if index in (2, 3, 5, 13):
            W[1], R[2], bw[0], br[1] = [0.0] * C, [0.0] * H, 0.0, -0.0
        unit = build_unit(W, R, bw, br, tensors, rows, power, mode)
        assert unit.largest < 1 << (63 if index > 12 else 61)
        # what tells a float32 1/S, and tighter operand bounds, from section 6 and section 2
        if index == 12:
            assert bounds_differ(unit.grids["n"])
        if index == 13:
            for mat, name, bias, rescales in ((unit.W, "x", unit.bw, "acc_to_ih"),
                                              (unit.R, "h", unit.br, "acc_to_hh")):
                for row, b, r, a in zip(mat, bias, unit.rs["bw_to_acc" if name == "x" else "br_to_acc"],
                                        unit.rs[rescales]):
                    used = sum(map(abs, row)) * unit.grids[name].reach + abs(r(b, mode))
                    assert used < 1 << 32 and (a.m < 1 << 30) == (b != 0)
        if index == 14:
            u, h = unit.grids["u"], unit.grids["h"]
            away = max(abs(unit.one - u.qmin), abs(unit.one - u.qmax))
            np = unit.rs["n_to_h"]
            used = u.reach * h.reach + away * ((unit.grids["n"].reach * np.m >> np.n) + 1)
            assert used < 1 << 32 and unit.rs["u_to_1"].m < 1 << 30
        # every operand below 2^32: the encoder's multiplier has 31 bits whatever the proof's detail
        if not power and index < 13:
            for r in [unit.rs[k] for k in ("ih_to_u", "rhh_to_n", "n_to_h", "u_to_1")] + \
                    sum((unit.rs[k] for k in ("bw_to_acc", "acc_to_ih", "br_to_acc", "acc_to_hh")), []):
                assert r.m >= 1 << 30
        xf = [[[rng.bell(1.0) for _ in range(C)] for _ in range(N)] for _ in range(T)]
        cases.append(float_case(special.get(index, "float model %d" % index), power, mode, tensors, rows,
                                (W, R, bw, br), xf, unit))
    return {"description": "float weights and ranges to the integer model, and its outputs",
            "cases": cases + dead_row_cases()}


def float_case(name, power, mode, tensors, rows, weights, xf, unit):
    W, R, bw, br = weights
    config = {}
    for key, t in tensors.items():
        config[key] = dict(t)
        if key not in GATES:
            config[key].update({"min": bits32(t["min"]), "max": bits32(t["max"])})
    case = {
        "name": name, "power_of_two": power, "mode": mode, "C": len(W[0]), "H": len(R[0]),
        "T": len(xf), "N": len(xf[0]), "tensors": config, "rows": rows,
        "W": [[bits32(v) for v in r] for r in W], "R": [[bits32(v) for v in r] for r in R],
        "bw": [bits32(v) for v in bw], "br": [bits32(v) for v in br]}
    if isinstance(unit, Refused):
        case["refused"] = str(unit)
        return case
    gx, gh = unit.grids["x"], unit.grids["h"]
    xq = [[[gx.quantize(v) for v in row] for row in step] for step in xf]
    y, last, _ = run_model([[unit]], xq)
    case.update({
        "unit": unit.json(), "x": [[[bits32(v) for v in r] for r in s] for s in xf],
        "x_codes": xq, "y_codes": y, "h_last_codes": last[0],
        "y": [[[bits32(gh.dequantize(q)) for q in r] for r in s] for s in y]})
    return case


def dead_row_cases():
    """Float models with rows of W and R that are nearly dead, and one of the steps of u."""
    rng, cases = Rng(91), []
    C, H, T, N = 3, 2, 3, 2
    ones = [1.0] * (3 * H)

    def add(name, power, w=ones, r=ones, bits=None, ranges=None, biases=None, bias=0.25, dead=None,
            refused=False, revives=True, weights=None, x=None, cols=C, steps=None, tells=False):
        """w, r: factors of the rows of W and R; bits, ranges: name -> width, largest magnitude;
        biases: (bw, br), None: drawn from a bell of width `bias`; dead: the rows whose scale
        changes; revives: whether the model would be refused without the rule; tells: a rule that
        does not ask whether the bias alone is at fault would change rows and accept the model."""
        bits, ranges = bits or {}, ranges or {}
        mode = MODES[len(cases) % 4]
        rows = {k: {"bits": bits.get(k, 8), "signed": True, "steps": None}
                for k in ("W", "R", "bw", "br")}
        tensors = {}
        for t in ("x", "h", "ih", "hh", "u_in", "r_in", "n_in", "u", "r", "n"):
            signed = t not in ("u", "r") and bool(rng.int(0, 3))
            tensors[t] = {"bits": bits.get(t, 5 if t.endswith("_in") else 8), "signed": signed,
                          "symmetric": signed and t != "n" and rng.int(0, 2) == 0,
                          "steps": (steps or {}).get(t)}
            if t not in GATES:
                top = ranges.get(t, 2.0 ** EXPONENT[t])
                tensors[t]["min"] = f32(-top * rng.real(0.75, 1))
                tensors[t]["max"] = f32(top * rng.real(0.75, 1))
        W = [[f32(Fraction(rng.bell(0.5)) * Fraction(f)) for _ in range(cols)] for f in w]
        R = [[f32(Fraction(rng.bell(0.5)) * Fraction(f)) for _ in range(H)] for f in r]
        bw, br = ([rng.bell(bias) for _ in range(3 * H)] for _ in "xh")
        bw, br = biases or (bw, br)
        W, R = weights or (W, R)
        xf = x or [[[f32(rng.bell(0.5) * ranges.get("x", 2.0)) for _ in range(cols)] for _ in range(N)]
                   for _ in range(T)]
        args = W, R, bw, br, tensors, rows, power, mode
        plain = None
        try:
            plain = build_unit(*args, dead=None)
        except Refused:
            pass
        try:
            unit = build_unit(*args)
        except Refused as error:
            unit = error
        assert isinstance(unit, Refused) == refused, (name, unit)
        assert (plain is None) == revives, name
        assert not tells or sum(build_unit(*args, dead=overflows).dead.values(), [])
        case = float_case(name, power, mode, tensors, rows, (W, R, bw, br), xf, unit)
        if not refused:
            assert dead is None or unit.dead == dict(zip("WR", dead)), (name, unit.dead)
            case["dead"] = unit.dead
        cases.append(case)
        return unit

    some = ([1, 1e-18, 1, 1e-22, 1, 1e-26], [1e-30, 1, 1e-24, 1, 1e-20, 1])
    rows_of = ([1, 3, 5], [0, 2, 4])
    wide = {"bw": 16, "br": 16}
    add("dead rows, biases of 8 bits", False, *some, dead=rows_of)
    add("dead rows, biases of 16 bits", False, *some, bits=wide, dead=rows_of)
    add("dead rows, biases of 32 bits", False, *some, bits={"bw": 32, "br": 32}, dead=rows_of)
    add("all rows are dead", False, [1e-18] * 6, [1e-25] * 6, bits={"bw": 8, "br": 16},
        dead=(list(range(6)),) * 2)
    add("dead rows of R only, of 16 bits, wide x and h", False, ones, some[1],
        bits={"x": 16, "h": 16, "W": 12, "R": 16, **wide}, dead=([], rows_of[1]))
    b = [0.25, f32(-0.3), 0.0, f32(0.4), f32(-0.2), -0.0]
    add("rows of zeros beside dead rows, zero biases", False, [0, 1e-20, 0, 1, 1e-27, 1e-27],
        [1e-19, 0, 0, 1e-29, 1, 1e-22], biases=(b, b), dead=([0, 1, 4], [0, 1, 3]))
    add("rows of zeros only beside zeros", False, [0] * 6, [0, 0, 1e-30, 0, 0, 0], biases=(b, b),
        dead=([], [0, 1, 3, 4]))
    # the last factors of two at which a row is not dead, and the first at which it is
    edge = [2.0 ** -k for k in (45, 46, 47, 48, 49, 50)]
    one, half = [[1.0, 0.5, 0.25]] * 6, [[1.0, 0.5]] * 6
    scaled = lambda rows, by: [[f32(v * f) for v in row] for row, f in zip(rows, by)]
    found = add("rows near the edge", False, weights=(scaled(one, edge), scaled(half, edge)),
                biases=([1.0] * 6,) * 2)
    for k in "WR":
        assert 0 < len(found.dead[k]) < 6, found.dead
    found = add("rows near the edge, biases of 16 bits", False, bits=wide,
                weights=(scaled(one, edge), scaled(half, edge)), biases=([1.0] * 6,) * 2)
    for k in "WR":
        assert 0 < len(found.dead[k]) < 6, found.dead
    # dot products of almost 2^62 fit without the bias, so it is at fault; the weights keep many digits
    small = [2.0 ** -k for k in (34, 34, 35, 35, 36, 36)], [0.0] * 6
    found = add("dead rows of 32 bits that keep their codes", False, bits={"W": 32, "x": 31, "bw": 32},
                weights=([[2.0 ** -8, 2.0 ** -8], [2.0 ** -8, 0.0]] * 3, half), cols=2, biases=small)
    assert found.dead == {"W": [0, 2, 4], "R": []} and min(map(max, found.W)) > 1 << 20
    # refused
    big = [f32(1e38)] * 6
    add("refused: no scale will do", False, *some, biases=(big, big), ranges={"x": f32(1e-30)},
        refused=True)
    add("a row too small for a normal scale", False, [1, 1, 1e-37, 1, 1, 1], dead=([], []), revives=False)
    add("refused: an accumulator too wide without its bias", False, bits={"W": 32, "x": 32},
        biases=([0.0] * 6,) * 2, refused=True)
    # powers of two
    hundred = [100.0, f32(-90.5), 70.0, f32(120.3), -64.0, 99.0]
    loud = {"ih": 128.0, "hh": 128.0, "u_in": 16.0}
    add("dead rows, 16 bits, large biases", True, *some, bits={"x": 16, "h": 16, "W": 16, "R": 16},
        biases=(hundred, hundred), ranges=loud, dead=rows_of)
    add("dead rows, 8 bits, a tiny x", True, some[0], ones, ranges={"x": f32(2e-9)}, dead=(rows_of[0], []))
    add("dead rows, biases of 16 bits", True, *some, dead=rows_of,
        bits={"x": 16, "h": 16, "W": 24, "R": 24, **wide})
    add("dead rows, biases of 32 bits", True, *some, dead=rows_of,
        bits={"x": 16, "h": 16, "W": 20, "R": 32, "bw": 32, "br": 24},
        biases=(hundred, hundred), ranges=loud)
    add("rows of zeros beside dead rows, zero biases", True, [0, 1e-20, 0, 1, 1e-27, 1e-27],
        [1e-19, 0, 0, 1e-29, 1, 1e-22], biases=(b, b), bits={"x": 16, "h": 16, "W": 24, "R": 32},
        dead=([0, 1, 4], [0, 1, 3]))
    add("tiny rows that are not dead", True, *some, dead=([], []), revives=False)
    edge = [2.0 ** -k for k in (17, 18, 19, 20, 21, 22)]
    found = add("rows near the edge", True, weights=(scaled(one, edge), scaled(half, edge)),
                bits={"x": 16, "h": 16, "W": 24, "R": 24}, biases=([64.0] * 6,) * 2, ranges=loud)
    for k in "WR":
        assert 0 < len(found.dead[k]) < 6, found.dead
    add("refused: no shift will do", True, some[0], ones, biases=([2.0 ** 37] * 6, hundred),
        ranges={"x": f32(1e-11)}, refused=True)
    # u in 2^b - 1 steps: 1 has a code and holds the state, from the second step on
    hold = [[10.0, 0.0, 0.0]] * H + [[0.5, 1.0, -1.0]] * H + [[0.0, 1.0, 0.5], [0.25, -0.5, 1.0]]
    go = [[[1.0 if t else -1.0, rng.bell(1.0), rng.bell(1.0)] for _ in range(N)] for t in range(4)]
    found = add("u of 1 holds the state", False, weights=(hold, half), biases=([0.0] * 6,) * 2, x=go,
                bits={"u_in": 7}, ranges={"ih": 16.0, "u_in": 16.0}, dead=([], []), revives=False)
    y = cases[-1]["y_codes"]
    assert found.one == found.grids["u"].qmax and y[0] == y[1] == y[2] == y[3]
    assert all(q != found.grids["h"].z for row in y[0] for q in row)
    # dot products alone overflow, so the rows are not dead
    add("refused: rows of 32 bits are too wide without their biases", False,
        bits={"W": 32, "x": 31, "bw": 32}, biases=small, refused=True, tells=True,
        weights=([[2.0 ** -8] * 3, [2.0 ** -8, 0.0, 0.0]] * 3, half))
    add("refused: rows of 32 bits are too wide without their biases", True, bits={"W": 32, "x": 32},
        weights=([[1.0, -1.0, 1.0]] * 6, half), biases=([0.25] * 6, [0.0] * 6), refused=True,
        tells=True)
    # rows and biases too small for a normal scale; they follow the smallest one, which may be that of
    # a dead row
    w, r = [1, 1e-38, 1, 1e-45, 0.5, 0], [1e-40, 0.5, 1, 1e-38, 0, 0.25]
    tiny = [f32(1e-40), 0.25, f32(-1e-38), f32(0.4), -0.25, 2.0 ** -149]
    wider = {"W": 16, "R": 16, **wide}
    for bits in ({}, wider):
        text = ", 16 bits" if bits else ", 8 bits"
        add("rows and biases too small for a normal scale" + text, False, w, r, bits=bits,
            biases=(tiny, tiny[::-1]), dead=([], []), revives=False)
        found = add("all rows and biases too small for a normal scale" + text, False, [1e-39] * 6,
                    [1e-38] * 6, bits=bits, biases=([f32(1e-40)] * 6,) * 2, dead=([], []), revives=False)
        for k in ("W", "R", "bw", "br"):
            assert {g.scale for g in found.row_grids[k]} == {1.0}
        add("all rows too small for a normal scale" + text, False, [1e-39] * 6, [1e-38] * 6, bits=bits,
            dead=([], []), revives=False)
        add("rows too small for a normal scale beside dead rows" + text, False,
            [1, 1e-38, 1, 1e-22, 1, 1e-40], [1e-30, 1, 1e-38, 1, 1e-45, 1], bits=bits,
            biases=([0.25, f32(-0.3), tiny[0], f32(0.4), f32(-0.2), 0.5],
                    [0.25, f32(-0.3), f32(0.4), tiny[2], tiny[0], 0.5]), dead=([1, 3, 5], [0, 2]))
    # raw rounds up to 2^-126, which is normal; rows that are a little less follow it with codes not 0
    for bits, half in (({}, 128), (wider, 1 << 15)):
        up, under = half * 2.0 ** -126 * (1 - 2.0 ** -24), half * 2.0 ** -126 * (1 - 2.0 ** -23)
        found = add("rows at the smallest normal scale, %d bits" % half.bit_length(), False, bits=bits,
                    weights=([[1.0, -0.5], [up, -up / 2], [under, -under], [0.25, 0.5], [0.0, -under],
                              [0.0, 0.0]], [[0.5, -1.0], [0.0, under], [1.0, 0.25], [-up, 0.0],
                                            [2.0 ** -149, 2.0 ** -126], [0.5, 0.5]]), cols=2,
                    biases=([0.25, 0.0, up, f32(-0.5), under, -0.0], [f32(0.3), up, 0.5, 0.0, 0.0, -under]),
                    revives=False)
        assert [g.scale == 2.0 ** -126 for g in found.row_grids["W"]] == [0, 1, 1, 0, 1, 1]
        assert [found.W[1][0], found.W[2], found.R[4]] == [half - 1, [half - 1, -half], [0, 1]]
    add("refused: x too small for a normal scale", False, ranges={"x": f32(1e-38)}, refused=True)
    return cases


def make_handover():
    rng, cases = Rng(10), []
    widths = [(8, 8), (8, 16), (16, 8), (4, 8), (8, 4), (1, 8), (8, 1), (32, 8), (8, 32), (32, 32),
              (12, 24), (24, 12)]
    for index, (a, b) in enumerate(widths * 4):
        power = index % 2 == (index // 12) % 2
        sa, sb = bool(rng.int(0, 1)), bool(rng.int(0, 1))
        src = tensor_grid(rng, "h", a, sa, power, rng.int(-1, 1), rng.pick(["sym", "any", "any"]))
        dst = tensor_grid(rng, "h", b, sb, power, rng.int(-1, 1), rng.pick(["sym", "any", "any"]))
        if power:
            rs = power_rescale(src.shift - dst.shift, src.reach)
        else:
            rs = encode_ratio(src.scale / dst.scale, src.reach)
        qs = sorted({src.qmin, src.qmax, src.z} | {rng.int(src.qmin, src.qmax) for _ in range(16)})
        cases.append({"from": src.json(), "to": dst.json(), "rescale": rs.json(), "q": qs,
                      "y": {m: [dst.clamp(rs(q - src.z, m) + dst.z) for q in qs] for m in MODES}})
    return {"description": "a state handed to a model with another h grid (section 7)",
            "cases": cases}


FILES = {
    "round_shift.json": make_round_shift, "rescale.json": make_rescale,
    "quantize.json": make_quantize, "grid.json": make_grid,
    "per_channel.json": make_per_channel, "calibrate.json": make_calibrate,
    "table.json": make_table, "gru.json": make_gru, "gru_float.json": make_gru_float,
    "handover.json": make_handover,
}
