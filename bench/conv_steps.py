# SPDX-License-Identifier: Apache-2.0
"""What strides and dilations cost: a convolution of bench/shapes/conv_steps.txt as it is, with a stride of 2, with a
dilation of 2. Pads keep the size, so that a dilation changes no number of outputs."""
import os

import report
from linear_cuda_report import Target, markdown, reached

KEYS = ("H", "W", "C", "O", "R", "groups")
MOST_TIMES = 1.1
WHERE = "N, H x W, C -> O, kernel, groups"


def shapes():
    """Shapes of a benchmark, three a line of the file but for 1 x 1, which has no dilation."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shapes", "conv_steps.txt")
    found = []
    for row in report.read_shapes(path):
        shape = dict(zip(KEYS, row))
        for stride, dilation in ((1, 1), (2, 1), (1, 2)):
            if dilation == 1 or shape["R"] > 1:
                found.append({**shape, "stride": stride, "dilation": dilation, "pad": dilation * (shape["R"] // 2)})
    return found


def name(case):
    return "%d, %d x %d, %d -> %d, %d x %d, %d" % (case["images"], case["H"], case["W"], case["C"], case["O"],
                                                  case["R"], case["R"], case["groups"])


def outputs(case):
    return -(-case["H"] // case["stride"]) * -(-case["W"] // case["stride"])


def lines(cases):
    """Of each convolution (and layer, where there are several): as it is, with the stride, with the dilation or None."""
    found = {}
    for case in cases:
        found.setdefault((name(case), case.get("layer")), {})[case["stride"], case["dilation"]] = case
    return [(one[1, 1], one[2, 1], one.get((1, 2))) for one in found.values()]


def ratios(line, free_us=0.0):
    """(of the stride, of the dilation or None): time beside that without, for as many outputs. free_us: of a stride,
    that are not counted."""
    plain, stride, dilation = line
    share = outputs(stride) / outputs(plain)
    return (stride["us"] - free_us) / (plain["us"] * share), dilation and dilation["us"] / plain["us"]


def target_table(cases, free_us=0.0):
    found = []
    free = ", less %g µs" % free_us if free_us else ""
    for line in lines(cases):
        layer = " ".join(["", *(line[0].get("layer") or "").split(":")]).rstrip()
        for what, figure in zip(("stride 2 / its share of stride 1" + free, "dilation 2 / none"), ratios(line, free_us)):
            if figure is not None:
                found.append((Target(what + ("," + layer if layer else ""), MOST_TIMES, figure), name(line[0])))
    return reached(found, "convolutions", WHERE)


def table(cases, free_us=0.0):
    """µs of each, and the ratios."""
    cells = []
    for line in lines(cases):
        of_stride, of_dilation = ratios(line, free_us)
        layer = line[0].get("layer")
        cells.append([name(line[0]), *([layer.replace(":", " ")] if layer else []), "%.4g" % line[0]["us"],
                      "%.4g (%.2f)" % (line[1]["us"], of_stride),
                      "%.4g (%.2f)" % (line[2]["us"], of_dilation) if line[2] else "–"])
    heads = [WHERE, *(["layer"] if "layer" in cases[0] else []), "µs", "stride 2, µs (times its share)",
             "dilation 2, µs (times)"]
    return markdown(heads, cells)
