# SPDX-License-Identifier: Apache-2.0
"""What bench/conv_cuda.py and bench/render.py say of convolutions on a device beside cuDNN."""
import textwrap

from linear_cuda_report import Target, markdown, reached

HALF, INT8 = "cuDNN float16", "cuDNN int8"
# Floats in and out: bits of weights.
FLOAT_LAYERS = ("float16:8", "float16:4", "int8:8", "int8:4")
STEP_LAYERS = ("static", "float16:8", "int8:8")  # with strides and dilations
FREE_US = 2.0  # of a run with a stride
# In the order in which conv_cudnn times them.
LAYOUTS = {"nhwc": "NHWC", "nhwc_16": "NHWC, channels filled up to 16", "c32": "vectors of 32 channels"}
MOST_WORDS = 300  # of what cuDNN says


def int8_times(case):
    """Microseconds by layout, of what conv_cudnn timed."""
    return {line["layout"]: line["us"] for line in case.get("cudnn_int8", ()) if "us" in line}


def int8_us(case):
    """Of the fastest layout, or None."""
    return min(int8_times(case).values(), default=None)


def rivals(case):
    """Microseconds by name."""
    times = {HALF: case.get("cudnn_f16_us"), INT8: int8_us(case)}
    return {name: us for name, us in times.items() if us is not None}


def limit_us(case):
    return max(case["operations_us"], case["memory_us"])


def name(case):
    return "%d, %d x %d, %d -> %d, %d x %d, %d, %d" % (case["images"], case["H"], case["W"], case["C"], case["O"],
                                                      case["R"], case["R"], case["stride"], case["groups"])


WHERE = "N, H x W, C -> O, kernel, stride, groups"


def refusals(cases):
    """Why cuDNN's int8 was not timed, in its words, and where: of convolutions that it took in no layout."""
    found = {}
    for case in cases:
        if int8_us(case) is None:
            for line in case.get("cudnn_int8", ()):
                words = textwrap.shorten(line["refused"], MOST_WORDS, placeholder=" ...")
                found.setdefault((line["layout"], words), []).append(name(case))
    return ["%s, %s: %s (%s)" % (INT8, LAYOUTS.get(layout, layout), words, "; ".join(names))
            for (layout, words), names in found.items()]


def targets(case):
    """A ratio of None was not timed."""
    def against(what, wanted):
        us = rivals(case).get(what)
        return Target("%s / time%s" % (what, "" if what == INT8 else ", N = %d" % case["images"]), wanted,
                      us and us / case["us"], at_most=False)

    yield against(HALF, 1.5 if case["images"] > 1 else 1)
    yield against(INT8, 1)


def float_targets(case):
    """Of floats in and out."""
    if case["C"] >= 64 and case["groups"] == 1:
        us, kind = case.get("cudnn_f16_us"), "1 x 1" if case["R"] == 1 else "larger kernels"
        yield Target("%s / time, %s, %s" % (HALF, case["layer"].replace(":", " "), kind), 0.9 if case["R"] == 1 else 1,
                     us and us / case["us"], at_most=False)


def float_cell(case):
    us = case.get("cudnn_f16_us")
    return "%.3g (%.2f, %s)" % (case["us"], case["us"] / limit_us(case), "%.2f" % (us / case["us"]) if us else "–")


def float_table(cases):
    """µs (times the limit, times as fast as cuDNN's float16), a line for each convolution."""
    lines = {}
    for case in cases:
        lines.setdefault(name(case), {"cudnn": case.get("cudnn_f16_us")})[case["layer"]] = case
    cells = [[what, "–" if line["cudnn"] is None else "%.3g" % line["cudnn"],
              *(float_cell(line[layer]) for layer in FLOAT_LAYERS)] for what, line in lines.items()]
    return markdown([WHERE, HALF + ", µs", *(layer.replace(":", " ") for layer in FLOAT_LAYERS)], cells)


def target_table(cases, float_cases):
    return reached([(target, name(case)) for case in cases for target in targets(case)] +
                   [(target, name(case)) for case in float_cases for target in float_targets(case)], "convolutions", WHERE)
