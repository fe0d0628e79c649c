# SPDX-License-Identifier: Apache-2.0
"""Wake words found in integers while the sound comes in, chunk by chunk, beside LiteRT.

usage: python wake_words.py MODEL.tflite... SPEECH OUT

MODEL.tflite is of the Python package pymicro-wakeword. SPEECH is a folder of WAV files of 16 kHz, mono, 16 bits; OUT
gets MODEL.safetensors, isobit's file, and wake_words.json. README.md says more.
"""
import dataclasses
import json
import pathlib
import sys
import wave

import isobit
import numpy as np
from pymicro_features import MicroFrontend

from tflite_graph import RUNNERS, Graph

MOST_DIFFERENCE = 1  # of codes of a layer, which both get the same codes
SAMPLES = 160  # that give one column of features
MOST_STEPS = 7  # of the network in a chunk


@dataclasses.dataclass
class Columns:
    """Where the codes of a tensor come from: the columns of tensor `number` that are new in a step, some channels."""

    number: int
    first: int
    channels: int


class Network:
    """A graph that keeps its own states: each of its convolutions becomes a stream, which has one."""

    def __init__(self, graph):
        self.graph = graph
        self.convolutions, self.steps = [], []
        states, sources = set(), {}
        for operator in graph.operators:
            inputs, outputs = operator.inputs, operator.outputs
            source = sources.get(inputs[0]) if inputs else None
            if operator.kind == "READ_VARIABLE":
                states.add(outputs[0])
            elif operator.kind == "CONCATENATION" and inputs[0] in states:  # what was seen, then what is new
                sources[outputs[0]] = sources[inputs[1]]
            elif operator.kind == "CONCATENATION":  # of channels
                self.steps.append((operator, [sources[number] for number in inputs], None))
                sources[outputs[0]] = Columns(outputs[0], 0, graph.tensors[outputs[0]].shape[-1])
            elif operator.kind == "SPLIT_V":
                first = source.first
                for number in outputs:
                    sources[number] = Columns(source.number, first, graph.tensors[number].shape[-1])
                    first += sources[number].channels
            elif operator.kind == "RESHAPE" and source is None:  # the input, [1, columns, C] to [1, columns, 1, C]
                self.input = outputs[0]
                sources[outputs[0]] = Columns(outputs[0], 0, graph.tensors[outputs[0]].shape[-1])
                self.columns = graph.tensors[outputs[0]].shape[1]
            elif operator.kind in ("STRIDED_SLICE", "RESHAPE"):  # the last columns; or all of them as one row
                sources[outputs[0]] = source
            elif operator.kind in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
                self.convolutions.append(self.convolution(operator, source.channels))
                self.steps.append((operator, [source], operator.name))
                sources[outputs[0]] = Columns(outputs[0], 0, graph.tensors[outputs[0]].shape[-1])
            elif operator.kind == "LOGISTIC":
                self.logits = inputs[0]
            elif operator.kind not in ("CALL_ONCE", "VAR_HANDLE", "ASSIGN_VARIABLE", "QUANTIZE"):
                raise ValueError("%s: %s, which this example does not know" % (graph.path, operator.name))
        self.streams = {}

    def convolution(self, operator, channels):
        """Over time, which is the columns of isobit and the rows of the file. A chunk sees `columns - stride` columns
        of those before it."""
        weights, scales, bias = self.graph.weights(operator)
        fully = operator.kind == "FULLY_CONNECTED"
        weights = weights.reshape(len(weights), -1, channels) if fully else weights[:, :, 0]  # [O, columns, C / groups]
        stride = 1 if fully else operator.options.strideH
        return isobit.StaticConv.from_codes(
            np.ascontiguousarray(weights[:, None]), scales, bias=bias, stride=(1, stride),
            padding=((0, 0), (weights.shape[1] - stride, 0)), groups=channels // weights.shape[-1],
            input_grid=self.graph.tensors[operator.inputs[0]].grid(),
            output_grid=self.graph.tensors[operator.outputs[0]].grid(), clamp=self.graph.clamp(operator),
            name=operator.name)

    def load(self, path):
        """The streams of a file that save_all() wrote."""
        self.streams = {layer.name: isobit.StaticConvStream(layer) for layer in isobit.StaticConv.load_all(path)}

    def states(self, columns):
        """Before the first chunk. columns: the most of a chunk of the input."""
        return {name: stream.state(1, columns) for name, stream in self.streams.items()}

    def run_step(self, step, tensors, states):
        """The new columns of the output of a step."""
        _, sources, name = step
        parts = [tensors[s.number][..., s.first:s.first + s.channels] for s in sources]
        if name is None:
            return np.concatenate(parts, axis=-1)
        return self.streams[name].run_codes(parts[0], states[name])

    def run(self, x, states):
        """Logits [steps] of a chunk of codes [1, columns, C]; the states hold what comes next."""
        tensors = {self.input: x}
        for step in self.steps:
            tensors[step[0].outputs[0]] = self.run_step(step, tensors, states)
        return tensors[self.logits][0, :, 0]


def features_of(path):
    """[columns, 40] numbers of a WAV file, one column each 10 ms, as pymicro-wakeword computes them."""
    with wave.open(str(path), "rb") as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (16000, 1, 2):
            raise ValueError("%s must have 16000 samples a second, 1 channel and 16 bits" % path)
        samples = file.readframes(file.getnframes())
    frontend, at, columns = MicroFrontend(), 0, []
    while at + 2 * SAMPLES <= len(samples):
        got = frontend.process_samples(samples[at:at + 2 * SAMPLES])
        at += 2 * got.samples_read
        if got.features:
            columns.append(got.features)
    return np.array(columns, np.float32)


def run_litert(network, runner, x):
    """The new columns [1, steps * columns, C] of every tensor that a layer reads or gives, step by step."""
    numbers = [step[0].outputs[0] for step in network.steps]
    run = network.graph.litert(runner, numbers)
    parts = [run(x[:, begin:begin + network.columns]) for begin in range(0, x.shape[1], network.columns)]
    return {network.input: x} | {number: np.concatenate([part[number].reshape(1, -1, part[number].shape[-1])
                                                         for part in parts], axis=1) for number in numbers}


def found(logits, grid, settings):
    """In how many steps the word is there: the mean of some probabilities is above a cutoff, as in pymicro-wakeword."""
    probabilities = 1 / (1 + np.exp(-(logits.astype(np.float64) - grid["zero_point"]) * grid["scale"]))
    window = settings["sliding_window_size"]
    means = np.convolve(probabilities, np.full(window, 1 / window), mode="valid")
    return int(np.count_nonzero(means > settings["probability_cutoff"]))


def compare_layers(network, tensors, layers):
    """Adds to what is known of each layer: its stream sees what LiteRT's layer saw."""
    states = network.states(tensors[network.input].shape[1])
    for step in network.steps:
        if step[2] is None:
            continue
        ours, theirs = network.run_step(step, tensors, states), tensors[step[0].outputs[0]]
        layer = layers.setdefault(step[2], {"name": step[2], "codes": 0, "different": 0, "most": 0})
        layer["codes"] += int(ours.size)
        layer["different"] += int(np.count_nonzero(ours != theirs))
        layer["most"] = max(layer["most"], most(ours, theirs))


def run_chunks(network, x, random):
    """Logits of the whole network in chunks of 1 to 7 steps, as a microphone gives them."""
    states, logits, at = network.states(MOST_STEPS * network.columns), [], 0
    while at < x.shape[1]:
        columns = int(random.integers(1, MOST_STEPS + 1)) * network.columns
        logits.append(network.run(x[:, at:at + columns], states))
        at += columns
    return np.concatenate(logits)


def most(ours, theirs):
    """The largest difference of codes."""
    return int(np.abs(ours.astype(np.int16) - theirs).max())


def compare(path, files, out):
    """What isobit and LiteRT make of one network."""
    network = Network(Graph(path))
    file = out / (path.stem + ".safetensors")
    isobit.StaticConv.save_all(file, network.convolutions)
    network.load(file)
    settings = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["micro"]
    grid, output = (network.graph.tensors[number].grid() for number in (network.input, network.logits))
    random = np.random.default_rng(1)
    layers, sounds = {runner: {} for runner in RUNNERS}, []
    for sound in files:
        codes = np.rint(features_of(sound) / np.float32(grid["scale"]) + grid["zero_point"])
        steps = len(codes) // network.columns
        x = np.clip(codes, -128, 127).astype(np.int8)[None, :steps * network.columns]
        logits = run_chunks(network, x, random)
        whole = network.run(x, network.states(x.shape[1]))
        sounds.append({"file": sound.name, "steps": steps, "same_as_whole": bool(np.array_equal(logits, whole)),
                       "found": found(logits, output, settings), "runners": {}})
        for runner in RUNNERS:
            tensors = run_litert(network, runner, x)
            compare_layers(network, tensors, layers[runner])
            theirs = tensors[network.logits][0, :, 0]
            sounds[-1]["runners"][runner] = {"most_logit_difference": most(logits, theirs),
                                             "found": found(theirs, output, settings)}
    result = {"model": path.name, "file_bytes": file.stat().st_size, "sounds": sounds,
              "layers": {runner: list(rows.values()) for runner, rows in layers.items()}}
    print("\n%s: %d sounds" % (path.name, len(sounds)))
    for runner, rows in result["layers"].items():
        for layer in rows:
            print("  %-12s %-24s %6d of %8d codes differ, by at most %d" % (
                runner, layer["name"], layer["different"], layer["codes"], layer["most"]))
        print("  %-12s the whole in chunks: logits differ by at most %d; the word is found in %s, in LiteRT in %s" % (
            runner, max(sound["runners"][runner]["most_logit_difference"] for sound in sounds),
            [sound["file"] for sound in sounds if sound["found"]],
            [sound["file"] for sound in sounds if sound["runners"][runner]["found"]]))
    return result


def failures(result):
    """What is not as it must be."""
    for runner, rows in result["layers"].items():
        for layer in rows:
            if layer["most"] > MOST_DIFFERENCE:
                yield "%s, %s: codes of %s differ by %d, must by at most %d" % (
                    result["model"], runner, layer["name"], layer["most"], MOST_DIFFERENCE)
    if not any(sound["found"] for sound in result["sounds"]):
        yield "%s: the word is found in no sound, must be in one at least; give others" % result["model"]
    for sound in result["sounds"]:
        if not sound["same_as_whole"]:
            yield "%s: the chunks of %s give other logits than the whole" % (result["model"], sound["file"])
        for runner, other in sound["runners"].items():
            if (sound["found"] > 0) != (other["found"] > 0):
                yield "%s, %s: only one of both finds the word in %s" % (result["model"], runner, sound["file"])


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    *models, speech, out = map(pathlib.Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    files = sorted(speech.glob("*.wav"))
    if not files:
        sys.exit("error: %s has no .wav file" % speech)
    results = [compare(model, files, out) for model in models]
    (out / "wake_words.json").write_text(json.dumps({"networks": results}, indent=1) + "\n", encoding="utf-8")
    wrong = [text for result in results for text in failures(result)]
    sys.exit("\n".join("error: " + text for text in wrong) if wrong else 0)


if __name__ == "__main__":
    main()
