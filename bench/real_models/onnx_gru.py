# SPDX-License-Identifier: Apache-2.0
"""GRUs of ONNX networks: their weights under PyTorch's names, and what they see when the network runs."""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

LIMIT = 1e-4  # of the largest difference between a GRU's output in onnxruntime and by the formula

Layers = list[tuple[np.ndarray, np.ndarray]]  # x [T, C] and y [T, D * H] of every GRU, in the network's order


class Network:
    """A network whose GRUs, reset after the product, follow each other as the layers of one."""

    def __init__(self, path: pathlib.Path):
        model = onnx.load(path)
        values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                values[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        self.path = path
        self.layers = []
        watched = []
        for node in model.graph.node:
            if node.op_type != "GRU":
                continue
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            if attributes.get("linear_before_reset", 0) != 1:
                sys.exit(f"error: {path}: GRU '{node.name}' applies the reset before the matrix product")
            self.layers.append([values[name] for name in node.input[1:4]])
            watched += [node.input[0], node.output[0]]
        self.outputs = [output.name for output in model.graph.output]
        self.watched = watched
        model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in watched)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                                    providers=["CPUExecutionProvider"])

    def arrays(self) -> dict[str, np.ndarray]:
        """gru.weight_ih_l0 and so on, in ONNX's order of gates: update, reset, new."""
        out = {}
        for layer, (w, r, b) in enumerate(self.layers):
            for direction, suffix in enumerate(("", "_reverse")[: len(w)]):
                for name, array in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"),
                                       (w[direction], r[direction], *np.split(b[direction], 2))):
                    out[f"gru.{name}_l{layer}{suffix}"] = np.ascontiguousarray(array, dtype=np.float32)
        return out

    def run(self, inputs: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], Layers]:
        """The outputs by name, and what the GRUs saw and said, for one sequence."""
        values = self.session.run(self.outputs + self.watched, inputs)
        seen = values[len(self.outputs) :]
        layers = [(x[:, 0], y[:, :, 0].reshape(len(y), -1)) for x, y in zip(seen[::2], seen[1::2])]
        return dict(zip(self.outputs, values)), layers


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


def forward(layer: list[np.ndarray], x: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """A GRU of float32, written from the formula: [T, C] -> [T, D * H]. Starts from `start` [H] or zeros."""
    out = []
    for direction, (w, r, b) in enumerate(zip(*layer)):
        bw, br = np.split(b, 2)
        h = np.zeros(r.shape[1], dtype=np.float32) if start is None else start
        y = np.empty((len(x), len(h)), dtype=np.float32)
        ih = x @ w.T + bw
        for t in range(len(x))[:: -1 if direction else 1]:
            ih_u, ih_r, ih_n = np.split(ih[t], 3)
            hh_u, hh_r, hh_n = np.split(r @ h + br, 3)
            u = sigmoid(ih_u + hh_u)
            h = (1 - u) * np.tanh(ih_n + sigmoid(ih_r + hh_r) * hh_n) + u * h
            y[t] = h
        out.append(y)
    return np.concatenate(out, axis=1)


class Recorder:
    """Collects the input of a network's first GRU, checks its GRUs on the way, and writes both as files of isobit."""

    def __init__(self, network: Network, out: pathlib.Path):
        self.network = network
        self.out = out
        self.worst = 0.0
        self.checked = 0
        self.sequences: dict[str, list[np.ndarray]] = {}

    def add(self, part: str, layers: Layers) -> None:
        sequences = self.sequences.setdefault(part, [])
        if len(sequences) < 2:  # the formula is slow: two sequences of each part are enough to know the gates
            for layer, (x, y) in zip(self.network.layers, layers):
                self.worst = max(self.worst, float(np.max(np.abs(forward(layer, x) - y))))
            self.checked += 1
        for (_, y), (x, _) in zip(layers, layers[1:]):
            if not np.array_equal(x, y):
                sys.exit(f"error: {self.network.path}: a GRU does not read the output of the one before it")
        sequences.append(layers[0][0])

    def write(self) -> None:
        if not self.worst <= LIMIT:
            sys.exit(f"error: {self.network.path}: the formula's outputs differ from onnxruntime's by {self.worst}, "
                     f"more than {LIMIT}: its GRUs were misread")
        save(self.out, self.network.arrays(), self.sequences)
        print(f"  formula and onnxruntime differ by at most {self.worst:.1e} in {self.checked} sequences")


def save(out: pathlib.Path, weights: dict[str, np.ndarray], sequences: dict[str, list[np.ndarray]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    np.savez(out / "weights.npz", **weights)
    for part, arrays in sequences.items():
        np.savez(out / f"{part}.npz", **{f"s{i:04}": x.astype(np.float32) for i, x in enumerate(arrays)})
    steps = ", ".join(f"{part} {len(a)} ({sum(map(len, a))} steps)" for part, a in sequences.items())
    print(f"{out.name}: sequences: {steps}")
