# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch on a CUDA device as our programs are timed: captured in a graph once and replayed, the median."""
import statistics

REPEATS = 21


def median_microseconds(torch, call, repeats=REPEATS):
    """Median microseconds of call(), which only enqueues work."""
    stream = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(3):
            call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call()
        samples = []
        for repeat in range(-3, repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            if repeat >= 0:
                samples.append(1000 * begin.elapsed_time(end))
    return statistics.median(samples)


def microseconds_in_turn(torch, copies, call):
    """Median microseconds of one call(*copy), copies in turn: microseconds_in_turn of src/testing/cuda_timer.h."""
    def time(launches, different, repeats):
        def work():
            for i in range(launches):
                call(*copies[i % different])
        return median_microseconds(torch, work, repeats) / launches
    few = min(len(copies), 8)
    each = time(few, few, 1)
    different = max(2, min(int(2e4 / each), len(copies)))
    wanted = max(1, min(int(4e3 / each), 100))
    launches = -(-wanted // different) * different
    return time(launches, different, int(max(5, min(1e5 / (each * launches), REPEATS))))
