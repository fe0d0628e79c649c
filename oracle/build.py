# SPDX-License-Identifier: Apache-2.0
"""From float weights, ranges and a configuration to an integer unit (sections 4, 6, 7)."""
from .grid import default_steps, range_to_grid, rows_to_grids
from .gru import GATES, Unit
from .tables import BOUNDS, Direct

FUNCTION = {"u": "sigmoid", "r": "sigmoid", "n": "tanh"}


def output_grid(function, bits, signed, symmetric, power_of_two, steps=None):
    lo, hi = map(float, BOUNDS[function])
    if steps is None:
        steps = default_steps(bits, "output" if function == "tanh" else "gate", power_of_two)
    return range_to_grid(lo, hi, bits, signed, symmetric, power_of_two, steps)


def quantize_rows(rows, grids):
    return [[g.quantize(v) for v in row] for row, g in zip(rows, grids)]


def build_unit(W, R, bw, br, tensors, rows, power_of_two, mode):
    """W, R: rows of floats; bw, br: floats. tensors: name -> dict bits, signed, symmetric,
    steps (None: the default), and min, max for the calibrated ones. rows: W, R, bw, br ->
    dict bits, signed, steps."""
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
    tables = {g: Direct(FUNCTION[g], grids[g + "_in"], grids[g]) for g in GATES}
    return Unit(grids, row_grids, codes["W"], codes["R"], [c[0] for c in codes["bw"]],
                [c[0] for c in codes["br"]], tables, mode)
