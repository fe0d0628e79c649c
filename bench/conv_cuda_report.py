# SPDX-License-Identifier: Apache-2.0
"""What bench/conv_cuda.py and bench/render.py say of convolutions on a device beside cuDNN."""
import textwrap

from linear_cuda_report import Target, reached

HALF, INT8 = "cuDNN float16", "cuDNN int8"
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


def target_table(cases):
    return reached([(target, name(case)) for case in cases for target in targets(case)], "convolutions", WHERE)
