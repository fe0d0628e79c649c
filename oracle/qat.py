# SPDX-License-Identifier: Apache-2.0
"""Section 14, quantisation-aware training: section 7's forward with the pass bits of its clamps, and the backward
in float32 on the numbers that the codes stand for. One direction of one layer."""
from fractions import Fraction

from .floats import F32, div32, f32, mul32, round_fraction
from .gru import GATES
from .rounding import rint
from .training import Direction, Run, chain, fma, minus, plus, times

CODES = ("u", "r", "n", "hh_n")
# the bits of `passes`; those of gate k are IH + k, HH + k, IN + k
IH, HH, IN, STATE = 0, 3, 6, 9


def passes(grid, values):
    """Whether section 3 quantises each float without its clamp to the grid; rounding comes first. No NaN."""
    inv = 2.0 ** grid.shift if grid.scale is None else div32(1.0, grid.scale)
    out = []
    for x in values:
        v = mul32(f32(x), inv)
        # beyond 2^33 a code is outside with every zero point
        out.append(int(abs(v) <= 2.0 ** 33 and grid.qmin <= rint(Fraction(v)) + grid.z <= grid.qmax))
    return out


def rest(rescale, v, mode):
    """What the rounding of a rescale added, rounded once to float32."""
    if rescale.n <= 0:
        return 0.0
    return round_fraction(rescale(v, mode) - Fraction(v * rescale.m, 1 << rescale.n), F32)


def numbers(grid, codes):
    """The numbers of codes, in nested lists."""
    if codes and isinstance(codes[0], list):
        return [numbers(grid, part) for part in codes]
    each = {q: grid.dequantize(q) for q in set(codes)}  # long rows have few codes
    return [each[q] for q in codes]


class IntegerRun(Run):
    """A Run of the numbers, with `codes`: u, r, n, hh_n [T][N] of H codes (None past the length), y [T][N][H] (z_h
    past it), h_last [N][H]; and `passes` [T][N] of H integers of ten bits (None past the length). For learned grids, in
    the order of these bits, [T][N][H] of ten each (None past the length): `sides`, -1 where the number before the clamp
    was below the grid, 1 where it was above; `rests`; and after a backward `G`, the gradients of those numbers."""

    def __init__(self, unit, x, h0, lengths, mask):
        g = unit.grids
        if h0 is None:
            h0 = [[g["h"].z] * unit.H for _ in x[0]]
        super().__init__(numbers(g["x"], x), numbers(g["h"], h0), lengths, mask, unit.H)
        empty = lambda: [[None] * self.N for _ in range(self.T)]
        self.passes, self.sides, self.rests, self.G = (empty() for _ in range(4))
        self.codes = {"x": x, "h0": h0, "h_last": [None] * self.N, **{k: empty() for k in CODES}}
        self.codes["y"] = [[[g["h"].z] * unit.H for _ in range(self.N)] for _ in range(self.T)]


class IntegerDirection(Direction):
    """A gru.Unit; its weights as numbers are W, R, bw, br."""

    def __init__(self, unit, reverse=False):
        rows = unit.row_grids
        W, R = ([numbers(g, row) for g, row in zip(rows[k], getattr(unit, k))] for k in ("W", "R"))
        bw, br = ([g.dequantize(q) for g, q in zip(rows[k], getattr(unit, k))] for k in ("bw", "br"))
        super().__init__(W, R, bw, br, reverse)
        self.unit = unit

    def forward(self, x, h0=None, lengths=None, mask=None):
        """x [T][N][C] and h0 [N][H] are codes."""
        run, g = IntegerRun(self.unit, x, h0, lengths, mask), self.unit.grids
        for b in range(run.N):
            h = list(run.codes["h0"][b])
            for t in self.order(run.lengths[b]):
                o, new, sides, run.rests[t][b] = self.codes_of_step(x[t][b], h)
                run.sides[t][b] = sides
                run.passes[t][b] = [sum(1 << bit for bit, side in enumerate(s) if side == 0) for s in sides]
                h = [h[i] if run.keeps(t, b, i) else new[i] for i in range(self.H)]
                for k, to, grid in zip(CODES, (run.u, run.r, run.n, run.q), ("u", "r", "n", "hh")):
                    run.codes[k][t][b], to[t][b] = o[k], numbers(g[grid], o[k])
                run.codes["y"][t][b], run.y[t][b] = h, numbers(g["h"], h)
            run.codes["h_last"][b], run.h_last[b] = h, numbers(g["h"], h)
        return run

    def codes_of_step(self, x, h):
        """-> u, r, n, hh_n; h' before the mask; sides and rests [H] of ten"""
        unit, H, g, rs, mode = self.unit, self.H, self.unit.grids, self.unit.rs, self.unit.mode
        sides, rests = ([[None] * 10 for _ in range(H)] for _ in range(2))

        def clamp(name, i, bit, *rescaled):
            """The code on a grid; rescaled: one or two of (rescale, its operand)."""
            v = sum(rescale(operand, mode) for rescale, operand in rescaled) + g[name].z
            sides[i][bit] = (v > g[name].qmax) - (v < g[name].qmin)
            each = [rest(rescale, operand, mode) for rescale, operand in rescaled]
            rests[i][bit] = 0.0 if sides[i][bit] else each[0] if len(each) == 1 else plus(*each)
            return g[name].clamp(v)

        def linear(matrix, bias, codes, z, to_acc, from_acc, name, bit):
            out = []
            for c, row in enumerate(matrix):
                acc = sum(w * q for w, q in zip(row, codes)) - z * sum(row) + rs[to_acc][c](bias[c], mode)
                out.append(clamp(name, c % H, bit + c // H, (rs[from_acc][c], acc)))
            return out

        ih = linear(unit.W, unit.bw, x, g["x"].z, "bw_to_acc", "acc_to_ih", "ih", IH)
        hh = linear(unit.R, unit.br, h, g["h"].z, "br_to_acc", "acc_to_hh", "hh", HH)
        o = {"hh_n": hh[2 * H:]}
        for k, gate in enumerate(GATES):
            a, codes = gate + "_in", []
            for i in range(H):
                part = hh[k * H + i] - g["hh"].z
                if gate == "n":
                    second = rs["rhh_to_n"], (o["r"][i] - g["r"].z) * part
                else:
                    second = rs["hh_to_" + gate], part
                first = rs["ih_to_" + gate], ih[k * H + i] - g["ih"].z
                codes.append(unit.tables[gate](clamp(a, i, IN + k, first, second), mode))
            o[gate] = codes
        new = []
        for i in range(H):
            u, n = o["u"][i], rs["n_to_h"](o["n"][i] - g["n"].z, mode)
            mixture = (u - g["u"].z) * (h[i] - g["h"].z) + (unit.one - u) * n
            new.append(clamp("h", i, STATE, (rs["u_to_1"], mixture)))
        return o, new, sides, rests

    def step_back(self, run, t, b, dy, g, columns):
        """-> Gx, Gh [3H] and the next g"""
        H, h = self.H, self.before(run, t, b)
        Gx, Gh, back = [0.0] * (3 * H), [0.0] * (3 * H), []
        G = run.G[t][b] = [[0.0] * 10 for _ in range(H)]
        for i in range(H):
            u, r, n, q = run.u[t][b][i], run.r[t][b][i], run.n[t][b][i], run.q[t][b][i]
            kept = run.keeps(t, b, i)

            def through(bit, v):
                """The gradient v of the number before a clamp, or +0 where that did not pass."""
                G[i][bit] = v
                return v if run.passes[t][b][i] >> bit & 1 else 0.0

            d = plus(dy[i], g[i])
            e = through(STATE, 0.0 if kept else d)
            da = through(IN + 2, times(fma(-n, n, 1.0), times(minus(1.0, u), e)))
            dq = times(r, da)
            dr = through(IN + 1, times(times(r, minus(1.0, r)), times(q, da)))
            du = through(IN, times(times(u, minus(1.0, u)), times(minus(h[i], n), e)))
            for k, (dx, dh) in enumerate(((du, du), (dr, dr), (da, dq))):
                Gx[k * H + i] = through(IH + k, dx)
                Gh[k * H + i] = through(HH + k, dh)
            back.append(d if kept else times(u, e))
        return Gx, Gh, [plus(back[k], chain(Gh, columns[k])) for k in range(H)]
