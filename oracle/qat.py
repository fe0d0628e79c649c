# SPDX-License-Identifier: Apache-2.0
"""Section 14, quantisation-aware training: section 7's forward with the pass bits of its clamps, and the backward
in float32 on the numbers that the codes stand for. One direction of one layer."""
from fractions import Fraction

from .floats import div32, f32, mul32
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


def numbers(grid, codes):
    """The numbers of codes, in nested lists."""
    return [numbers(grid, q) if isinstance(q, list) else grid.dequantize(q) for q in codes]


class IntegerRun(Run):
    """A Run of the numbers, with `codes`: u, r, n, hh_n [T][N] of H codes (None past the length), y [T][N][H] (z_h
    past it), h_last [N][H]; and `passes` [T][N] of H integers of ten bits (None past the length)."""

    def __init__(self, unit, x, h0, lengths, mask):
        g = unit.grids
        if h0 is None:
            h0 = [[g["h"].z] * unit.H for _ in x[0]]
        super().__init__(numbers(g["x"], x), numbers(g["h"], h0), lengths, mask, unit.H)
        empty = lambda: [[None] * self.N for _ in range(self.T)]
        self.passes = empty()
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
                o, new, run.passes[t][b] = self.codes_of_step(x[t][b], h)
                h = [h[i] if run.keeps(t, b, i) else new[i] for i in range(self.H)]
                for k, to, grid in zip(CODES, (run.u, run.r, run.n, run.q), ("u", "r", "n", "hh")):
                    run.codes[k][t][b], to[t][b] = o[k], numbers(g[grid], o[k])
                run.codes["y"][t][b], run.y[t][b] = h, numbers(g["h"], h)
            run.codes["h_last"][b], run.h_last[b] = h, numbers(g["h"], h)
        return run

    def codes_of_step(self, x, h):
        """-> u, r, n, hh_n; h' before the mask; the pass bits"""
        unit, H, g, rs, mode = self.unit, self.H, self.unit.grids, self.unit.rs, self.unit.mode
        bits = [0] * H

        def clamp(name, i, bit, v):
            bits[i] |= int(g[name].qmin <= v <= g[name].qmax) << bit
            return min(max(v, g[name].qmin), g[name].qmax)

        def linear(matrix, bias, codes, z, to_acc, from_acc, name, bit):
            out = []
            for c, row in enumerate(matrix):
                acc = sum(w * q for w, q in zip(row, codes)) - z * sum(row) + rs[to_acc][c](bias[c], mode)
                out.append(clamp(name, c % H, bit + c // H, rs[from_acc][c](acc, mode) + g[name].z))
            return out

        ih = linear(unit.W, unit.bw, x, g["x"].z, "bw_to_acc", "acc_to_ih", "ih", IH)
        hh = linear(unit.R, unit.br, h, g["h"].z, "br_to_acc", "acc_to_hh", "hh", HH)
        o = {"hh_n": hh[2 * H:]}
        for k, gate in enumerate(GATES):
            a, codes = gate + "_in", []
            for i in range(H):
                part = hh[k * H + i] - g["hh"].z
                if gate == "n":
                    part = rs["rhh_to_n"]((o["r"][i] - g["r"].z) * part, mode)
                else:
                    part = rs["hh_to_" + gate](part, mode)
                v = rs["ih_to_" + gate](ih[k * H + i] - g["ih"].z, mode) + part + g[a].z
                codes.append(unit.tables[gate](clamp(a, i, IN + k, v), mode))
            o[gate] = codes
        new = []
        for i in range(H):
            u, n = o["u"][i], rs["n_to_h"](o["n"][i] - g["n"].z, mode)
            v = rs["u_to_1"]((u - g["u"].z) * (h[i] - g["h"].z) + (unit.one - u) * n, mode) + g["h"].z
            new.append(clamp("h", i, STATE, v))
        return o, new, bits

    def step_back(self, run, t, b, dy, g, columns):
        """-> Gx, Gh [3H] and the next g"""
        H, h = self.H, self.before(run, t, b)
        Gx, Gh, back = [0.0] * (3 * H), [0.0] * (3 * H), []
        for i in range(H):
            u, r, n, q = run.u[t][b][i], run.r[t][b][i], run.n[t][b][i], run.q[t][b][i]
            kept = run.keeps(t, b, i)

            def passed(bit):
                return run.passes[t][b][i] >> bit & 1

            d = plus(dy[i], g[i])
            e = d if passed(STATE) and not kept else 0.0
            da = times(fma(-n, n, 1.0), times(minus(1.0, u), e)) if passed(IN + 2) else 0.0
            dq = times(r, da)
            dr = times(times(r, minus(1.0, r)), times(q, da)) if passed(IN + 1) else 0.0
            du = times(times(u, minus(1.0, u)), times(minus(h[i], n), e)) if passed(IN) else 0.0
            for k, (dx, dh) in enumerate(((du, du), (dr, dr), (da, dq))):
                if passed(IH + k):
                    Gx[k * H + i] = dx
                if passed(HH + k):
                    Gh[k * H + i] = dh
            back.append(d if kept else times(u, e))
        return Gx, Gh, [plus(back[k], chain(Gh, columns[k])) for k in range(H)]
