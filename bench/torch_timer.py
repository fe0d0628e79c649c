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
    """Median microseconds of one call(*copy), copies in turn, with the constants of src/testing/cuda_timer.h."""
    def time(rounds, repeats):
        def work():
            for _ in range(rounds):
                for copy in copies:
                    call(*copy)
        return median_microseconds(torch, work, repeats)
    once = time(1, 1)
    rounds = max(1, min(int(4e3 / once) + 1, -(-100 // len(copies))))
    repeats = int(max(5, min(2e5 / (once * rounds), REPEATS)))
    return time(rounds, repeats) / (rounds * len(copies))
