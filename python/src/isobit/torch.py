# SPDX-License-Identifier: Apache-2.0
"""From PyTorch: modules to integer layers, and an inference drop-in for torch.nn.GRU.

    gru = isobit.torch.from_torch(model.gru, loader, bits="8,linear=16,h=16")  # an isobit.Gru

    model.gru = isobit.torch.QuantGRU.from_float(model.gru)
    with isobit.torch.calibrating(model):                                      # the float forward, observed
        for batch in loader:
            model(batch)
    model.gru.freeze(bits="8,linear=16,h=16")                                  # from here on the integer model

Tensors are in float32, on the CPU or, for the integer models of GRUs, on a CUDA device. Training is refused by name
until it exists.
"""
from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import isobit

__all__ = ["QuantGRU", "calibrating", "from_torch", "gru_weights", "load_gru"]


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(device="cpu", dtype=torch.float32).contiguous()


def _weights(state: Mapping[str, torch.Tensor], prefix: str, layers: int, directions: int) -> isobit.GruWeights:
    arrays = []
    for layer in range(layers):
        for end in (f"_l{layer}", f"_l{layer}_reverse")[:directions]:
            w, r = (_host(state[f"{prefix}weight_{kind}{end}"]) for kind in ("ih", "hh"))
            biases = (state.get(f"{prefix}bias_{kind}{end}") for kind in ("ih", "hh"))
            arrays.append([w, r, *(torch.zeros(len(w)) if bias is None else _host(bias) for bias in biases)])
    return isobit.gru_weights(arrays, directions=directions, name=prefix.rstrip("."))


def gru_weights(module: torch.nn.GRU) -> isobit.GruWeights:
    """The float weights of a torch.nn.GRU. Raises NotSupportedError for proj_size, which a GRU has not."""
    if module.proj_size:
        raise isobit.NotSupportedError(f"proj_size is {module.proj_size}: projections are for LSTMs, must be 0")
    return _weights(dict(module.named_parameters()), "", module.num_layers, 1 + module.bidirectional)


def load_gru(path: str | os.PathLike[str], prefix: str | None = None) -> isobit.GruWeights:
    """The float weights of a GRU in a .pt file that torch.save() wrote of a state_dict.

    The file is read with weights_only=True, so no code of it runs. prefix: "encoder.gru", where it has several.
    """
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, Mapping):
        raise isobit.InvalidFileError(f"{os.fspath(path)}: holds a {type(state).__name__}, must hold a state_dict")
    found: dict[str, list[str]] = {}
    for name in state:
        if match := re.fullmatch(r"(.*?)weight_ih(_l\d+(?:_reverse)?)", str(name)):
            found.setdefault(match[1], []).append(match[2])
    # An LSTM has four gates: 4H rows.
    grus = {start.rstrip("."): start for start in found
            if len(state[f"{start}weight_ih_l0"]) == 3 * state[f"{start}weight_hh_l0"].shape[1]}
    if prefix is None and len(grus) == 1:
        prefix = next(iter(grus))
    if prefix not in grus:
        there = ", ".join(repr(name) for name in sorted(grus)) or "none"
        raise isobit.InvalidArgumentError(f"{os.fspath(path)}: prefix is {prefix!r}, must be that of a GRU: {there}")
    ends = found[grus[prefix]]
    directions = 1 + any(end.endswith("_reverse") for end in ends)
    return _weights(state, grus[prefix], len(ends) // directions, directions)


def from_torch(module: torch.nn.Module, loader: Iterable[Any], *, bits: str | int = 8,
               **options: Any) -> isobit.Gru | isobit.StaticLinear:
    """The integer layer of a torch.nn.GRU (isobit.quantize) or torch.nn.Linear (isobit.quantize_static).

    loader: the module's inputs, a tensor each, or a tuple whose first item is one. bits: of a GRU as in quantize(); of
    a linear layer the number of bits of its weights, 1, 2, 4 or 8. options: those of the two functions.
    """
    inputs = (_host(item[0] if isinstance(item, (tuple, list)) else item) for item in loader)
    if isinstance(module, torch.nn.GRU):
        return isobit.quantize(gru_weights(module), inputs, bits=str(bits), batch_first=module.batch_first, **options)
    if isinstance(module, torch.nn.Linear):
        bias = None if module.bias is None else _host(module.bias)
        return isobit.quantize_static(_host(module.weight), inputs, bias=bias, weight_bits=int(bits), **options)
    raise isobit.NotSupportedError(f"module is a {type(module).__name__}, must be a torch.nn.GRU or torch.nn.Linear")


class QuantGRU(torch.nn.GRU):
    """torch.nn.GRU whose forward is an integer GRU: the same constructor, state_dict and results (y, h_n).

    It calibrates within calibrating(), and computes in integers once freeze() was called. Loading other float weights
    takes the integer model away. copy.deepcopy and pickle keep it.
    """

    integer: isobit.Gru | None
    _calibrator: isobit.Calibrator | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.integer = None
        self._calibrator = None
        self.eval()

    @classmethod
    def from_float(cls, module: torch.nn.GRU) -> QuantGRU:
        """A copy of a torch.nn.GRU, its weights included."""
        made = cls(module.input_size, module.hidden_size, num_layers=module.num_layers, bias=module.bias,
                   batch_first=module.batch_first, dropout=module.dropout, bidirectional=module.bidirectional)
        made.load_state_dict(module.state_dict())
        return made

    def calibrate(self, method: str = "minmax") -> None:
        """From here to freeze(), forward is the float one, whose statistics are kept. calibrating() calls it."""
        self.integer = None
        self._calibrator = isobit.Calibrator(gru_weights(self), method=method)

    def freeze(self, **options: Any) -> isobit.Gru:
        """The integer model of what was observed; forward is it from here on. options: of Calibrator.finish()."""
        if self._calibrator is None:
            raise isobit.FailedPreconditionError("freeze() before calibrate(): run data within calibrating(model)")
        self.integer = self._calibrator.finish(**options)
        self._calibrator = None
        return self.integer

    def to_integer(self) -> isobit.Gru:
        """The integer model, whose bytes are those of forward."""
        if self.integer is None:
            raise isobit.FailedPreconditionError("there is no integer model yet: calibrate, then freeze()")
        return self.integer

    def train(self, mode: bool = True) -> QuantGRU:
        if mode:
            raise isobit.NotSupportedError("QuantGRU is for inference; train a torch.nn.GRU, then use from_float()")
        super().train(False)
        return self

    def forward(self, input: Any, hx: torch.Tensor | None = None) -> Any:  # pylint: disable=redefined-builtin
        if self._calibrator is None and self.integer is None:
            raise isobit.FailedPreconditionError("forward() before freeze(): run data within calibrating(model) first")
        packed = input if isinstance(input, PackedSequence) else None
        if packed is None:
            x, lengths = input, None
        else:
            x, counts = pad_packed_sequence(packed)
            lengths = counts.tolist()
        batch_first = self.batch_first and packed is None and x.dim() == 3
        if self._calibrator is not None:
            first = None if hx is None else hx if hx.dim() == 3 else hx[:, None]
            self._calibrator.observe(_host(x), lengths, batch_first=batch_first,
                                     h0=None if first is None else _host(first))
            with torch.no_grad():
                return super().forward(input, hx)
        model = self.to_integer()
        batch = 1 if x.dim() == 2 else x.shape[0 if batch_first else 1]
        single = x.dim() == 2
        state = model.initial_state(batch, None if hx is None else hx[:, None].contiguous() if single else hx, like=x)
        y = model(x, state, lengths=lengths, batch_first=batch_first, whole_sequence=True)
        last = state.values(x)
        if single:
            last = last[:, 0]
        if packed is not None:
            y = pack_padded_sequence(y, counts, enforce_sorted=packed.sorted_indices is None)
        return y, last

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.integer = self._calibrator = None
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        if self._calibrator is not None:
            raise isobit.FailedPreconditionError("a QuantGRU that calibrates cannot be copied; freeze() it first")
        state: dict[str, Any] = dict(super().__getstate__())
        if self.integer is not None:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "integer")
                self.integer.save(path)
                with open(path, "rb") as file:
                    state["integer"] = file.read()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.get("integer")
        super().__setstate__({**state, "integer": None})
        if saved is not None:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "integer")
                with open(path, "wb") as file:
                    file.write(saved)
                self.integer = isobit.load(path)


@contextlib.contextmanager
def calibrating(model: torch.nn.Module, method: str = "minmax") -> Iterator[None]:
    """Within it every QuantGRU of the model runs in float and observes: freeze() each of them afterwards."""
    layers = [module for module in model.modules() if isinstance(module, QuantGRU)]
    if not layers:
        raise isobit.InvalidArgumentError("model has no QuantGRU; QuantGRU.from_float() makes one of a torch.nn.GRU")
    for layer in layers:
        layer.calibrate(method)
    yield
