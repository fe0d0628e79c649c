# SPDX-License-Identifier: Apache-2.0
"""A .tflite file of 8-bit codes: its tensors and operators, isobit's layers of them, and LiteRT beside."""
import dataclasses
import pathlib
from fractions import Fraction

import flatbuffers
import isobit
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

OPERATORS = {number: name for name, number in vars(schema.BuiltinOperator).items() if isinstance(number, int)}
CLAMPS = {schema.ActivationFunctionType.NONE: None, schema.ActivationFunctionType.RELU: (0.0, float("inf")),
          schema.ActivationFunctionType.RELU6: (0.0, 6.0), schema.ActivationFunctionType.RELU_N1_TO_1: (-1.0, 1.0)}
TYPES = {schema.TensorType.INT8: "i1", schema.TensorType.INT32: "i4"}
# LiteRT as it comes, with XNNPACK, whose rescales round once; and its own kernels, which round twice.
RUNNERS = {"xnnpack": OpResolverType.AUTO, "own kernels": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES}


@dataclasses.dataclass
class Tensor:
    """shape as in the file, whose batch is 1; data: of a constant."""

    shape: tuple[int, ...]
    scales: np.ndarray
    zero_points: np.ndarray
    data: np.ndarray | None

    def grid(self):
        """As isobit takes it."""
        if len(self.scales) != 1:
            raise ValueError("a tensor of %s has %d scales, must have 1" % (list(self.shape), len(self.scales)))
        return {"bits": 8, "signed": True, "scale": float(self.scales[0]), "zero_point": int(self.zero_points[0])}


@dataclasses.dataclass
class Operator:
    """inputs, outputs: numbers of tensors; an input that is left out is -1."""

    number: int
    kind: str
    inputs: list[int]
    outputs: list[int]
    options: object

    @property
    def name(self):
        return "%02d_%s" % (self.number, self.kind.lower())


class Graph:
    """The main graph of a file."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.model = schema.ModelT.InitFromPackedBuf(self.path.read_bytes(), 0)
        graph = self.model.subgraphs[0]
        self.tensors = [self._tensor(tensor) for tensor in graph.tensors]
        self.operators = []
        for number, operator in enumerate(graph.operators):
            code = self.model.operatorCodes[operator.opcodeIndex]
            kind = OPERATORS[max(code.builtinCode, code.deprecatedBuiltinCode)]
            inputs, outputs = (list(map(int, () if numbers is None else numbers))
                               for numbers in (operator.inputs, operator.outputs))
            self.operators.append(Operator(number, kind, inputs, outputs, operator.builtinOptions))

    def _tensor(self, tensor):
        shape = () if tensor.shape is None else tuple(map(int, tensor.shape))
        content, data = self.model.buffers[tensor.buffer].data, None
        if content is not None and len(content) > 0 and tensor.type in TYPES:
            data = np.frombuffer(bytes(content), TYPES[tensor.type]).reshape(shape)
        quantization = tensor.quantization
        if quantization is None or quantization.scale is None:
            return Tensor(shape, np.empty(0, np.float32), np.empty(0, np.int64), data)
        return Tensor(shape, np.float32(quantization.scale), np.int64(quantization.zeroPoint), data)

    def clamp(self, operator):
        """What the operator does at its end."""
        activation = operator.options.fusedActivationFunction
        if activation not in CLAMPS:
            raise ValueError("%s: %s has activation %d, which isobit has not" % (self.path, operator.name, activation))
        return CLAMPS[activation]

    def padding(self, operator, kernel, dilation=(1, 1)):
        """((top, bottom), (left, right)): of SAME, the smaller half comes first."""
        options = operator.options
        if options.padding == schema.Padding.VALID:
            return ((0, 0), (0, 0))
        pads = []
        for size, taps, stride, step in zip(self.tensors[operator.inputs[0]].shape[1:3], kernel,
                                            (options.strideH, options.strideW), dilation):
            total = max(0, (-(-size // stride) - 1) * stride + step * (taps - 1) + 1 - size)
            pads.append((total // 2, total - total // 2))
        return tuple(pads)

    def weights(self, operator):
        """Weights [O, R, S, C / groups], their scales [O] and the bias [O]."""
        tensor = self.tensors[operator.inputs[1]]
        if np.any(tensor.zero_points != 0):
            raise ValueError("%s: weights of %s have zero points, must have none" % (self.path, operator.name))
        weights = tensor.data
        if operator.kind == "DEPTHWISE_CONV_2D":
            weights = weights.transpose(3, 1, 2, 0)
        elif operator.kind == "FULLY_CONNECTED":
            weights = weights[:, None, None]
        bias = self.tensors[operator.inputs[2]].data if len(operator.inputs) > 2 and operator.inputs[2] >= 0 else None
        return weights, np.resize(tensor.scales, len(weights)), bias

    def convolution(self, operator, added=None):
        """A StaticConv of CONV_2D, DEPTHWISE_CONV_2D or FULLY_CONNECTED, whose x is an image of one pixel.

        added: an ADD of its result and of another tensor, which becomes the residual; the layer gives what ADD does.
        """
        last = added or operator
        common = {"input_grid": self.tensors[operator.inputs[0]].grid(),
                  "output_grid": self.tensors[last.outputs[0]].grid(), "clamp": self.clamp(last), "name": last.name}
        if added:
            (other,) = set(added.inputs) - set(operator.outputs)
            common["residual_grid"] = self.tensors[other].grid()
        weights, scales, bias = self.weights(operator)
        if operator.kind == "FULLY_CONNECTED":
            return isobit.StaticConv.from_codes(weights, scales, bias=bias, **common)
        options = operator.options
        dilation = options.dilationHFactor, options.dilationWFactor
        groups = self.tensors[operator.inputs[0]].shape[-1] // weights.shape[-1]
        return isobit.StaticConv.from_codes(weights, scales, bias=bias, stride=(options.strideH, options.strideW),
                                            dilation=dilation,
                                            padding=self.padding(operator, weights.shape[1:3], dilation),
                                            groups=groups, **common)

    def addition(self, operator):
        """A StaticConv of ADD on what addends() gives: both inputs in one product, which is rounded once.

        With a and b the inputs without their zero points, y = S_a * (a + b * S_b / S_a) / S_y. The ratio of scales is
        that of two integers below 2^14, and each of them the sum of two weights, of which one counts 128 times.
        """
        first, second = (self.tensors[number].grid() for number in operator.inputs)
        most = 127 * 128 + 127
        ratio = Fraction(first["scale"]) / Fraction(second["scale"])
        ratio = ratio.limit_denominator(most) if ratio < 1 else 1 / (1 / ratio).limit_denominator(most)
        weights = np.array([ratio.numerator % 128, ratio.numerator // 128, ratio.denominator % 128,
                            ratio.denominator // 128], np.int8)
        channels = self.tensors[operator.outputs[0]].shape[-1]
        return isobit.StaticConv.from_codes(np.tile(weights, (channels, 1, 1, 1)),
                                            np.full(channels, 1 / ratio.numerator, np.float32), groups=channels,
                                            input_grid={"bits": 16, "scale": first["scale"]},
                                            output_grid=self.tensors[operator.outputs[0]].grid(),
                                            clamp=self.clamp(operator), name=operator.name)

    def addends(self, operator, first, second):
        """Codes of ADD's inputs [B, H, W, C] to [B, H, W, 4 C] of 16 bits: a, 128 a, b and 128 b of each channel."""
        a, b = (codes.astype(np.int16) - self.tensors[number].grid()["zero_point"]
                for codes, number in zip((first, second), operator.inputs))
        return np.stack([a, 128 * a, b, 128 * b], axis=-1).reshape(*a.shape[:-1], -1)

    def pool(self, operator):
        """A StaticPool of AVERAGE_POOL_2D or MAX_POOL_2D."""
        if self.clamp(operator) is not None:
            raise ValueError("%s: %s has an activation, which isobit's pools have not" % (self.path, operator.name))
        options = operator.options
        window = options.filterHeight, options.filterWidth
        return isobit.StaticPool("max" if operator.kind == "MAX_POOL_2D" else "average", window,
                                 stride=(options.strideH, options.strideW), padding=self.padding(operator, window),
                                 input_grid=self.tensors[operator.inputs[0]].grid(),
                                 output_grid=self.tensors[operator.outputs[0]].grid(), name=operator.name)

    def litert(self, runner, numbers):
        """A function that runs the graph in LiteRT, from its input to these tensors."""
        graph = self.model.subgraphs[0]
        own_outputs, signatures = graph.outputs, self.model.signatureDefs
        graph.outputs, self.model.signatureDefs = list(numbers), None  # signatures name outputs that are no more
        builder = flatbuffers.Builder()
        builder.Finish(self.model.Pack(builder), b"TFL3")
        graph.outputs, self.model.signatureDefs = own_outputs, signatures
        interpreter = Interpreter(model_content=bytes(builder.Output()), experimental_op_resolver_type=RUNNERS[runner])
        interpreter.allocate_tensors()
        (entry,) = interpreter.get_input_details()
        ends = [detail["index"] for detail in interpreter.get_output_details()]

        def run(x):
            interpreter.set_tensor(entry["index"], x.astype(entry["dtype"]))
            interpreter.invoke()
            return {number: interpreter.get_tensor(end) for number, end in zip(numbers, ends)}

        return run
