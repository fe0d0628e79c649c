# SPDX-License-Identifier: Apache-2.0
"""Section 7: the GRU. Gate order u, r, n; rows of W, R, bw, br are [u rows, r rows, n rows]."""
from .rounding import INT64_MAX, Refused, encode_ratio, power_rescale, rint

GATES = ("u", "r", "n")
GRIDS = ("x", "h", "ih", "hh", "u_in", "r_in", "n_in", "u", "r", "n")
SCALAR_RESCALES = ("ih_to_u", "ih_to_r", "ih_to_n", "hh_to_u", "hh_to_r", "rhh_to_n",
                   "n_to_h", "u_to_1")
ROW_RESCALES = ("bw_to_acc", "acc_to_ih", "br_to_acc", "acc_to_hh")


def rescale_of(over, under, bound):
    """Rescale of the ratio prod(over) / prod(under) of the scales of grids, for an operand of
    magnitude at most `bound` (section 2)."""
    if (over + under)[0].scale is None:
        return power_rescale(sum(g.shift for g in over) - sum(g.shift for g in under), bound)
    a = b = 1.0
    for g in over:
        a *= g.scale
    for g in under:
        b *= g.scale
    return encode_ratio(a / b, bound)


def rescaled_bound(r, bound):
    """Of an operand of magnitude at most `bound` after the rescale r (section 2)."""
    if bound == 0:
        return 0
    return bound * r.m << -r.n if r.n <= 0 else (bound * r.m >> r.n) + 1


def bias_operand(code, grid):
    """X of a bias with this code."""
    return 0 if code == 0 else max(-grid.qmin, grid.qmax)


class Unit:
    """One layer in one direction. grids: dict of Grid; W, R, bw, br: codes; row_grids:
    dict W, R, bw, br -> list of 3H Grid (symmetric); tables: dict u, r, n."""

    def __init__(self, grids, row_grids, W, R, bw, br, tables, mode, margin=1):
        self.grids, self.row_grids, self.mode = grids, row_grids, mode
        self.W, self.R, self.bw, self.br, self.tables = W, R, bw, br, tables
        self.H, self.C = len(R[0]), len(W[0])
        assert len(W) == len(R) == len(bw) == len(br) == 3 * self.H
        self.power = grids["x"].scale is None
        self.margin = margin  # operand bounds are multiplied by this before encoding
        for name in ("u_in", "r_in", "n_in", "u", "r", "n"):
            if grids[name].bits > 16:
                raise Refused(name + " is wider than 16 bits")
        u = grids["u"]
        self.one = rint(1 / u.S) + u.z
        if self.one - u.z < 1:
            raise Refused("one - z_u below 1")
        self.derive()

    def ratio(self, over, under, bound):
        return rescale_of(over, under, bound if self.power else bound * self.margin)

    def derive(self):
        """All rescales with the operand bounds of section 2, and the worst magnitude of every
        intermediate (section 8)."""
        g, rows, mode, rs = self.grids, self.row_grids, self.mode, {}
        self.largest = 0  # of any int64 intermediate, with room for naive implementations

        def note(v):
            self.largest = max(self.largest, v)

        def after(r, bound):
            """Bound of a rescaled value."""
            if bound:
                note(bound * r.m)
            out = rescaled_bound(r, bound)
            note(out)
            return out

        for mat, bias, grid, to, b_name, a_name in (
                (self.W, self.bw, "x", "ih", "bw_to_acc", "acc_to_ih"),
                (self.R, self.br, "h", "hh", "br_to_acc", "acc_to_hh")):
            mname, bname = ("W", "bw") if to == "ih" else ("R", "br")
            rs[b_name], rs[a_name] = [], []
            for c, row in enumerate(mat):
                sm, sb = rows[mname][c], rows[bname][c]
                total = sum(abs(w) for w in row)
                largest_code = bias_operand(bias[c], sb)
                rb = self.ratio([sb], [sm, g[grid]], largest_code)
                added = after(rb, largest_code)
                assert added > INT64_MAX or abs(rb(bias[c], mode)) <= added
                acc = total * g[grid].reach + added
                note(total * max(abs(g[grid].qmin), g[grid].qmax)
                     + abs(g[grid].z * sum(row)) + added + 1)
                ra = self.ratio([sm, g[grid]], [g[to]], acc)
                note(after(ra, acc) + abs(g[to].z))
                rs[b_name].append(rb)
                rs[a_name].append(ra)
        for gate in GATES:
            a = g[gate + "_in"]
            rs["ih_to_" + gate] = self.ratio([g["ih"]], [a], g["ih"].reach)
            bound = after(rs["ih_to_" + gate], g["ih"].reach)
            if gate == "n":
                prod = g["r"].reach * g["hh"].reach
                rs["rhh_to_n"] = self.ratio([g["r"], g["hh"]], [a], prod)
                bound += after(rs["rhh_to_n"], prod)
            else:
                rs["hh_to_" + gate] = self.ratio([g["hh"]], [a], g["hh"].reach)
                bound += after(rs["hh_to_" + gate], g["hh"].reach)
            note(bound + abs(a.z))
        u, h, n = g["u"], g["h"], g["n"]
        rs["n_to_h"] = self.ratio([n], [h], n.reach)
        np = after(rs["n_to_h"], n.reach)
        bound = u.reach * h.reach + (u.reach + self.one - u.z) * np
        if self.power:
            rs["u_to_1"] = power_rescale(u.shift, bound)
        else:
            rs["u_to_1"] = encode_ratio(1.0 / float(self.one - u.z), bound * self.margin)
        note(after(rs["u_to_1"], bound) + abs(h.z))
        note(bound)
        self.rs = rs
        if self.largest > INT64_MAX:
            raise Refused("an intermediate does not fit int64")

    def linear(self, mat, bias, v, gin, gout, b_rs, a_rs):
        out = []
        for c, row in enumerate(mat):
            acc = sum(w * q for w, q in zip(row, v)) - gin.z * sum(row) + b_rs[c](bias[c], self.mode)
            out.append(gout.clamp(a_rs[c](acc, self.mode) + gout.z))
        return out

    def step(self, x, h, mask=None):
        """One time step of one batch element -> dict of all intermediates; 'h' is the new state."""
        g, rs, mode, H = self.grids, self.rs, self.mode, self.H
        ih = self.linear(self.W, self.bw, x, g["x"], g["ih"], rs["bw_to_acc"], rs["acc_to_ih"])
        hh = self.linear(self.R, self.br, h, g["h"], g["hh"], rs["br_to_acc"], rs["acc_to_hh"])
        o = {"ih": ih, "hh": hh}
        for gi, gate in enumerate(("u", "r")):
            a = g[gate + "_in"]
            o[gate + "_in"] = [
                a.clamp(rs["ih_to_" + gate](ih[gi * H + c] - g["ih"].z, mode)
                        + rs["hh_to_" + gate](hh[gi * H + c] - g["hh"].z, mode) + a.z)
                for c in range(H)]
            o[gate] = [self.tables[gate](q, mode) for q in o[gate + "_in"]]
        a = g["n_in"]
        o["n_in"] = [
            a.clamp(rs["ih_to_n"](ih[2 * H + c] - g["ih"].z, mode)
                    + rs["rhh_to_n"]((o["r"][c] - g["r"].z) * (hh[2 * H + c] - g["hh"].z), mode)
                    + a.z)
            for c in range(H)]
        o["n"] = [self.tables["n"](q, mode) for q in o["n_in"]]
        o["h"] = []
        for c in range(H):
            np = rs["n_to_h"](o["n"][c] - g["n"].z, mode)
            s = (o["u"][c] - g["u"].z) * (h[c] - g["h"].z) + (self.one - o["u"][c]) * np
            new = g["h"].clamp(rs["u_to_1"](s, mode) + g["h"].z)
            o["h"].append(h[c] if mask is not None and mask[c] == 0 else new)
        return o

    def run(self, x, lengths, h0, mask, reverse):
        """x[T][N][C] -> y[T][N][H], last state [N][H], trace[T][N] (None past the length)."""
        T, N, zh = len(x), len(h0), self.grids["h"].z
        y = [[[zh] * self.H for _ in range(N)] for _ in range(T)]
        trace = [[None] * N for _ in range(T)]
        last = []
        for b in range(N):
            h = list(h0[b])
            order = range(lengths[b])
            for t in (reversed(order) if reverse else order):
                o = self.step(x[t][b], h, None if mask is None else mask[t][b])
                h = o["h"]
                y[t][b] = list(h)
                trace[t][b] = o
            last.append(h)
        return y, last, trace

    def json(self):
        def rows(name):
            gs = self.row_grids[name]
            out = {"bits": gs[0].bits, "signed": gs[0].signed}
            key = "shift" if self.power else "scale"
            out[key] = [g.json()[key] for g in gs]
            return out
        rescale = {k: [r.json() for r in self.rs[k]] for k in ROW_RESCALES}
        rescale.update({k: self.rs[k].json() for k in SCALAR_RESCALES})
        return {"C": self.C, "H": self.H,
                "grids": {k: self.grids[k].json() for k in GRIDS},
                "row_grids": {k: rows(k) for k in ("W", "R", "bw", "br")},
                "W": self.W, "R": self.R, "bw": self.bw, "br": self.br,
                "rescale": rescale, "one": self.one,
                "tables": {k: self.tables[k].json() for k in GATES}}


def run_model(layers, x, lengths=None, h0=None, masks=None):
    """layers: list of lists of Unit (one: forward; two: forward, backward). h0 and masks are
    indexed by layer * directions + direction. Returns y, last states, traces."""
    T, N, D = len(x), len(x[0]), len(layers[0])
    lengths = [T] * N if lengths is None else lengths
    lasts, traces = [], []
    for li, layer in enumerate(layers):
        ys = []
        for d, unit in enumerate(layer):
            k = li * D + d
            start = [[unit.grids["h"].z] * unit.H for _ in range(N)] if h0 is None else h0[k]
            y, last, trace = unit.run(x, lengths, start, None if masks is None else masks[k], d == 1)
            ys.append(y)
            lasts.append(last)
            traces.append(trace)
        x = [[sum((y[t][b] for y in ys), []) for b in range(N)] for t in range(T)]
    return x, lasts, traces
