# SPDX-License-Identifier: Apache-2.0
"""Networks on pictures run in integers, beside LiteRT: layer by layer, and as a whole.

usage: python pictures.py MODEL.tflite... PHOTOGRAPHS OUT

PHOTOGRAPHS is a folder of pictures, OUT gets MODEL.safetensors, isobit's file, and pictures.json. README.md says more.
"""
import json
import pathlib
import sys

import isobit
import numpy as np

import crops
from tflite_graph import RUNNERS, Graph

INPUTS = 1000
MOST_DIFFERENCE = 1  # of codes of a layer, which both get the same codes
LEAST_SAME_CLASS = 0.99  # as LiteRT with XNNPACK
LEAST_OF_A_CLASS = 20  # inputs, in at least 5 classes, or all that there are
CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
POOLS = ("AVERAGE_POOL_2D", "MAX_POOL_2D")


class Network:
    """The layers of a graph, from its codes of the input to the logits; SOFTMAX behind them is for floats."""

    def __init__(self, graph, convolutions, residuals=None):
        """convolutions: StaticConv of a file of save(); residuals: what residuals_of() gave, where save() had it."""
        self.graph = graph
        self.layers = {layer.name: layer for layer in convolutions}
        self.residuals = residuals or {}
        self.input = self.logits = None
        self.steps = []
        before = {operator.number for operator in self.residuals.values()}
        for operator in graph.operators:
            if operator.kind == "QUANTIZE":  # numbers to the codes of the input
                self.input = operator.outputs[0]
            elif operator.kind in POOLS:
                self.layers[operator.name] = graph.pool(operator)
                self.steps.append(operator)
            elif operator.kind in (*CONVOLUTIONS, "ADD", "RESHAPE"):
                if operator.number not in before:
                    self.steps.append(operator)
            elif operator.kind == "SOFTMAX":
                self.logits = operator.inputs[0]
            elif operator.kind != "DEQUANTIZE":
                raise ValueError("%s: %s, which this example does not know" % (graph.path, operator.name))
        if self.input is None:
            self.input = self.steps[0].inputs[0]

    @staticmethod
    def residuals_of(graph):
        """For each ADD the convolution before it that nothing else reads and that does not clamp, by ADD's number."""
        found = {}
        for add in graph.operators:
            for operator in graph.operators if add.kind == "ADD" else ():
                readers = [other for other in graph.operators if set(other.inputs) & set(operator.outputs)]
                if operator.kind in CONVOLUTIONS and readers == [add] and graph.clamp(operator) is None:
                    found[add.number] = operator
        return found

    @staticmethod
    def save(graph, path, residuals=None):
        """The convolutions of a graph in one file of isobit."""
        residuals = residuals or {}
        before = {operator.number for operator in residuals.values()}
        layers = []
        for operator in graph.operators:
            if operator.number in residuals:
                layers.append(graph.convolution(residuals[operator.number], operator))
            elif operator.kind == "ADD":
                layers.append(graph.addition(operator))
            elif operator.kind in CONVOLUTIONS and operator.number not in before:
                layers.append(graph.convolution(operator))
        isobit.StaticConv.save_all(path, layers)

    def run_step(self, step, tensors, pool=None):
        """The codes of the output of a step, from those of its inputs; all [B, ...]."""
        if step.number in self.residuals:
            convolution = self.residuals[step.number]
            (other,) = set(step.inputs) - set(convolution.outputs)
            return self.layers[step.name].run_codes(tensors[convolution.inputs[0]], tensors[other], pool=pool)
        x = tensors[step.inputs[0]]
        shape = (len(x), *self.graph.tensors[step.outputs[0]].shape[1:])
        if step.kind == "RESHAPE":
            return x.reshape(shape)
        if step.kind == "ADD":
            x = self.graph.addends(step, x, tensors[step.inputs[1]])
        elif step.kind == "FULLY_CONNECTED":  # an image of one pixel
            x = x.reshape(len(x), 1, 1, -1)
        return self.layers[step.name].run_codes(x, pool=pool).reshape(shape)

    def run(self, x, pool=None):
        """Logits of codes [B, H, W, C]."""
        tensors = {self.input: x}
        for step in self.steps:
            tensors[step.outputs[0]] = self.run_step(step, tensors, pool)
        return tensors[self.logits]


def run_litert(network, runner, pixels):
    """The codes of every layer [B, ...], one image at a time."""
    numbers = [step.outputs[0] for step in network.steps]
    run = network.graph.litert(runner, numbers)
    floats = network.graph.operators[0].kind == "QUANTIZE"
    parts = [run((image if floats else codes_of(image))[None]) for image in pixels]
    tensors = {number: np.concatenate([part[number] for part in parts]) for number in numbers}
    return tensors | {network.input: codes_of(pixels)}


def codes_of(pixels):
    """Of both networks: x is (byte - 128) / 128 with S = 1 / 128 and z = 0, or the byte with S = 1 and z = -128."""
    return (pixels.astype(np.int16) - 128).astype(np.int8)


def most(ours, theirs):
    """The largest difference of codes."""
    return int(np.abs(ours.astype(np.int16) - theirs).max())


def compare(path, photographs, out):
    """What isobit and LiteRT make of one network."""
    graph = Graph(path)
    file = out / (path.stem + ".safetensors")
    Network.save(graph, file)
    network = Network(graph, isobit.StaticConv.load_all(file))
    pixels = crops.crops(photographs, INPUTS, graph.tensors[network.input].shape[1], seed=1)
    pool = isobit.ThreadPool(2)
    logits = network.run(codes_of(pixels), pool)
    classes = logits.argmax(axis=-1)
    print("\n%s: %d inputs" % (path.name, INPUTS))
    result = {"model": path.name, "inputs": INPUTS, "file_bytes": file.stat().st_size, "runners": {}}
    wanted = {}
    for runner in RUNNERS:
        tensors = run_litert(network, runner, pixels)
        layers = []
        for step in network.steps:
            if step.kind == "RESHAPE":
                continue
            ours, theirs = network.run_step(step, tensors, pool), tensors[step.outputs[0]]
            layers.append({"name": step.name, "codes": int(ours.size),
                           "different": int(np.count_nonzero(ours != theirs)), "most": most(ours, theirs)})
            print("  %-12s %-24s %8d of %9d codes differ, by at most %d" % (
                runner, step.name, layers[-1]["different"], ours.size, layers[-1]["most"]))
        theirs = tensors[network.logits]
        wanted[runner] = theirs.argmax(axis=-1)
        result["runners"][runner] = {
            "layers": layers, "same_class": int(np.count_nonzero(classes == wanted[runner])),
            "inputs_of_class": np.bincount(wanted[runner], minlength=logits.shape[-1]).tolist(),
            "most_logit_difference": most(logits, theirs)}
        print("  %-12s the whole: logits differ by at most %d codes, %d inputs have the same class; of each class: %s" %
              (runner, result["runners"][runner]["most_logit_difference"], result["runners"][runner]["same_class"],
               result["runners"][runner]["inputs_of_class"]))
    first, second = wanted.values()
    result["runners_same_class"] = int(np.count_nonzero(first == second))
    print("  both runners have the same class for %d inputs" % result["runners_same_class"])
    residuals = Network.residuals_of(graph)
    if residuals:
        file = out / (path.stem + "_residuals.safetensors")
        Network.save(graph, file, residuals)
        fused = Network(graph, isobit.StaticConv.load_all(file), residuals).run(codes_of(pixels), pool).argmax(axis=-1)
        result["residuals"] = {"count": len(residuals), "file_bytes": file.stat().st_size,
                               "same_class": {name: int(np.count_nonzero(fused == other))
                                              for name, other in wanted.items()}}
        print("  with %(count)d residuals in place of sums: %(same_class)s inputs" % result["residuals"])
    return result


def failures(result):
    """What is not as it must be."""
    for runner, found in result["runners"].items():
        for layer in found["layers"]:
            if layer["most"] > MOST_DIFFERENCE:
                yield "%s, %s: codes of %s differ by %d, must by at most %d" % (
                    result["model"], runner, layer["name"], layer["most"], MOST_DIFFERENCE)
    found = result["runners"]["xnnpack"]
    if found["same_class"] < LEAST_SAME_CLASS * result["inputs"]:
        yield "%s: %d of %d inputs have the same class, must be %g %%" % (result["model"], found["same_class"],
                                                                          result["inputs"], 100 * LEAST_SAME_CLASS)
    often = sum(count >= LEAST_OF_A_CLASS for count in found["inputs_of_class"])
    if often < min(5, len(found["inputs_of_class"])):
        yield "%s: %d classes have %d inputs or more, must be 5; give other photographs" % (result["model"], often,
                                                                                            LEAST_OF_A_CLASS)


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    *models, photographs, out = map(pathlib.Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    paths = sorted(path for path in photographs.iterdir() if path.suffix in (".jpg", ".png"))
    if not paths:
        sys.exit("error: %s has no .jpg or .png" % photographs)
    results = [compare(model, paths, out) for model in models]
    (out / "pictures.json").write_text(json.dumps({"photographs": [path.name for path in paths], "networks": results},
                                                  indent=1) + "\n", encoding="utf-8")
    wrong = [text for result in results for text in failures(result)]
    sys.exit("\n".join("error: " + text for text in wrong) if wrong else 0)


if __name__ == "__main__":
    main()
