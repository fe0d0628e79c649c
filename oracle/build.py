# SPDX-License-Identifier: Apache-2.0
"""From float weights, ranges and a configuration to an integer unit (sections 4, 6, 7)."""
from .floats import bits32, from_bits32
from .grid import Grid, default_steps, range_to_grid, rows_to_grids
from .gru import GATES, Unit, bias_operand, rescale_of, rescaled_bound
from .rounding import INT64_MAX, Refused
from .tables import BOUNDS, Direct

FUNCTION = {"u": "sigmoid", "r": "sigmoid", "n": "tanh"}


def output_grid(function, bits, signed, symmetric, power_of_two, steps=None):
    lo, hi = map(float, BOUNDS[function])
    if steps is None:
        steps = default_steps(bits, "output" if function == "tanh" else "gate", power_of_two)
    return range_to_grid(lo, hi, bits, signed, symmetric, power_of_two, steps)


def quantize_rows(rows, grids):
    return [[g.quantize(v) for v in row] for row, g in zip(rows, grids)]


def bias_bound(weight, bias, bias_code, gin):
    """The bound of a row's rescaled bias; None where section 2 refuses the rescale. weight, bias:
    grids of the row; gin: the grid of x or h."""
    X = bias_operand(bias_code, bias)
    try:
        return rescaled_bound(rescale_of([bias], [weight, gin], X), X)
    except Refused:
        return None


def overflows(codes, weight, bias, bias_code, gin, gout):
    """Whether section 2 refuses a rescale of the row, or a bound of section 8 with the bias in it
    is too large; codes: those of the row; gout: the grid of ih or hh."""
    added, X = bias_bound(weight, bias, bias_code, gin), bias_operand(bias_code, bias)
    if added is None:
        return True
    acc = sum(abs(w) for w in codes) * gin.reach + added
    try:
        m = rescale_of([weight, gin], [gout], acc).m
    except Refused:
        return True
    return max(X * rescale_of([bias], [weight, gin], X).m, added, acc, acc * m) > INT64_MAX


def is_dead(codes, weight, bias, bias_code, gin, gout):
    """Section 4, nearly dead rows: the row overflows, and by its bias alone."""
    return (overflows(codes, weight, bias, bias_code, gin, gout)
            and not overflows(codes, weight, bias, 0, gin, gout))


def revived(weight, bias, bias_code, gin):
    """The grid of a dead row: the finest one, not finer than `weight`, with a bound of the bias
    of at most 2^30."""
    def fits(g):
        b = bias_bound(g, bias, bias_code, gin)
        return b is not None and b <= 1 << 30

    if weight.scale is None:
        for s in range(weight.shift, -33, -1):
            g = Grid(weight.bits, weight.signed, 0, shift=s)
            if fits(g):
                return g
        raise Refused("no shift keeps the bias of a dead row within its accumulator")

    def of(pattern):
        return Grid(weight.bits, weight.signed, 0, scale=from_bits32("%08x" % pattern))

    # bit patterns of positive numbers ascend with them, and the bound does not ascend with S
    low, high = int(bits32(weight.scale), 16), 0x7F7FFFFF
    if not fits(of(high)):
        raise Refused("no scale keeps the bias of a dead row within its accumulator")
    while low < high:
        mid = (low + high) // 2
        low, high = (low, mid) if fits(of(mid)) else (mid + 1, high)
    return of(low)


def build_unit(W, R, bw, br, tensors, rows, power_of_two, mode, dead=is_dead):
    """W, R: rows of floats; bw, br: floats. tensors: name -> dict bits, signed, symmetric,
    steps (None: the default), and min, max for the calibrated ones. rows: W, R, bw, br ->
    dict bits, signed, steps. dead: which rows are dead; another rule than is_dead, or None for
    no row, to make vectors that tell. The unit has `dead`: W, R -> the dead rows whose scale was
    changed."""
    grids = {}
    for name, t in tensors.items():
        if name in GATES:
            grids[name] = output_grid(FUNCTION[name], t["bits"], t["signed"], t["symmetric"],
                                      power_of_two, t["steps"])
        else:
            steps = default_steps(t["bits"], "activation") if t["steps"] is None else t["steps"]
            grids[name] = range_to_grid(t["min"], t["max"], t["bits"], t["signed"],
                                        t["symmetric"], power_of_two, steps)
    values = {"W": W, "R": R, "bw": [[v] for v in bw], "br": [[v] for v in br]}
    row_grids = {k: rows_to_grids(v, rows[k]["bits"], rows[k]["signed"], power_of_two,
                                  rows[k]["steps"], all_zero_rule=k in ("W", "R"))
                 for k, v in values.items()}
    codes = {k: quantize_rows(v, row_grids[k]) for k, v in values.items()}
    changed = {"W": [], "R": []}
    for name, bias, gin, gout in (("W", "bw", "x", "ih"), ("R", "br", "h", "hh")):
        for c, row in enumerate(values[name] if dead else []):
            old = row_grids[name][c], row_grids[bias][c], codes[bias][c][0], grids[gin]
            if dead(codes[name][c], *old, grids[gout]):
                new = revived(*old)
                if new.S != old[0].S:
                    changed[name].append(c)
                row_grids[name][c], codes[name][c] = new, quantize_rows([row], [new])[0]
    tables = {g: Direct(FUNCTION[g], grids[g + "_in"], grids[g]) for g in GATES}
    unit = Unit(grids, row_grids, codes["W"], codes["R"], [c[0] for c in codes["bw"]],
                [c[0] for c in codes["br"]], tables, mode)
    unit.dead = changed
    return unit
