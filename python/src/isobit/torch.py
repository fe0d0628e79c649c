# SPDX-License-Identifier: Apache-2.0
"""From PyTorch: modules to integer layers, and a drop-in for torch.nn.GRU that trains for integers.

    gru = isobit.torch.from_torch(model.gru, loader, bits="8,linear=16,h=16")  # an isobit.Gru

    model.gru = isobit.torch.QuantGRU.from_float(model.gru)
    with isobit.torch.calibrating(model):                                      # the float forward, observed
        for batch in loader:
            model(batch)
    model.gru.quantize(bits="4")                                               # quantisation-aware: train on
    ...
    model.gru.freeze().save("gru.safetensors")                                 # the integer model that was trained

Tensors are in float32, on the CPU or, for the integer models of GRUs and their training, on a CUDA device. Grids are
learned on the CPU.
"""
from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import isobit

from . import _isobit, _training
from ._training import QuantizationWarning

__all__ = ["QuantGRU", "QuantizationWarning", "calibrating", "from_torch", "gru_weights", "hand_over", "load_gru"]

_HALVES = (torch.float16, torch.bfloat16)


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


def gru_weights(module: torch.nn.GRU | QuantGRU) -> isobit.GruWeights:
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


class QuantGRU(torch.nn.RNNBase):
    """torch.nn.GRU that becomes an integer GRU: the same constructor, weights, state_dict and results (y, h_n).

    What forward computes is told by `phase`:

    "float"        the float GRU, trained by isobit's kernels, with the same bytes in every run on a machine; on the CPU
                   they do not depend on the number of threads
    "calibrating"  the float GRU, whose statistics are kept: from calibrating(model), without gradients
    "quantized"    the integer GRU that the weights become in each call: from quantize()
    "frozen"       the integer GRU of freeze(), for inference: to_integer()

        r = sigmoid(W_ir x + b_ir + W_hr h + b_hr)      z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
        n = tanh(W_in x + b_in + r * (W_hn h + b_hn))   h' = (1 - z) * n + z * h

    In "quantized" gradients go straight through roundings, and are 0 where a clamp changed a number (docs/numerics.md,
    section 14). Its results are those of the model that freeze() makes, byte for byte.

    forward(input, hx=None, *, lengths=None, zoneout=None):
    input: [T, N, C], [N, T, C] with batch_first, [T, C] of one sequence, or a PackedSequence; float32. In float16 and
    bfloat16 under torch.autocast it is computed in float32, and results are in the type of the input.
    hx: [layers * directions, N, H], or [layers * directions, H] of one sequence.
    lengths: N integers in 0..T; past its length a sequence's state stays and y is 0.
    zoneout: masks of bool or uint8 in the shape of y, one a layer, where 0 keeps the state of the step before; None of
    a layer: no mask.

    It trains on the CPU, on torch.get_num_threads() threads, and on a CUDA device, where the module and all tensors
    must be; `lengths` may stay on the CPU. Learned grids train on the CPU only. `dropout` between layers and tensors on
    other devices are refused by name when it trains, gradients of gradients when they are asked for. Backward refuses a
    gradient that is not finite, before it writes any; with `check_finite` set to False it computes on, for a
    GradScaler. A QuantizationWarning says where more than a tenth of a tensor's numbers clip, and where the gradient of
    a weight is more than 10,000 times as long as that of the results.

    On a CUDA device that check waits for the gradient, nothing else does; while a CUDA graph is captured it is left
    out. In "quantized" it also raises what the forward could not wait to say, a NaN of the input or weights that have
    no grid, and gives the warnings. Without gradients the forward waits and raises.

    It is no subclass of torch.nn.GRU, in which torch.compile does not look.

    Loading other float weights takes a frozen integer model away: the phase is "float" again. In "quantized" the grids
    stay. A state_dict holds no grids: copy.deepcopy and pickle (torch.save of the module) keep everything.
    """

    check_finite: bool
    _calibrator: isobit.Calibrator | None
    _grids: _training.Registered | None  # of an _isobit.GruQat
    _model: _training.Registered | None  # of an isobit.Gru
    log2_steps: torch.nn.Parameter | None
    ranges: torch.nn.Parameter | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("proj_size"):
            raise isobit.NotSupportedError(f"proj_size is {kwargs['proj_size']}: projections are for LSTMs, must be 0")
        super().__init__("GRU", *args, **kwargs)
        self.check_finite = True
        self._calibrator = self._grids = self._model = None
        self.register_parameter("log2_steps", None)
        self.register_parameter("ranges", None)

    @classmethod
    def from_float(cls, module: torch.nn.GRU) -> QuantGRU:
        """A copy of a torch.nn.GRU, its weights included."""
        made = cls(module.input_size, module.hidden_size, num_layers=module.num_layers, bias=module.bias,
                   batch_first=module.batch_first, dropout=module.dropout, bidirectional=module.bidirectional)
        made.load_state_dict(module.state_dict())
        made.train(module.training)
        return made

    @property
    def integer(self) -> isobit.Gru | None:
        """The frozen integer model; None in other phases."""
        return None if self._model is None else self._model.core

    @property
    def phase(self) -> str:
        """"float", "calibrating", "quantized" or "frozen"."""
        if self._calibrator is not None:
            return "calibrating"
        return "frozen" if self._model is not None else "float" if self._grids is None else "quantized"

    def calibrate(self, method: str = "minmax") -> None:
        """From here to quantize() or freeze(), forward is the float one, whose statistics are kept.

        calibrating() calls it. Grids that were there are gone; weights stay.
        """
        self._model = self._grids = self.log2_steps = self.ranges = None
        self._calibrator = isobit.Calibrator(gru_weights(self), method=method)

    def quantize(self, *, bits: str = "8", method: str | None = "sqnr", scale: str = "pow2",
                 rounding: str = "nearest_even", table: str = "default", learn: str | None = None) -> None:
        """From here to freeze(), forward is the integer GRU of the current weights, on grids of what was observed.

        method: how the ranges of activations are chosen; None: that of calibrating(). learn: how they change then.

        None      not at all
        "steps"   the parameter `log2_steps` [K] has log2 of the step of each grid, and every call takes 2^round(l)
                  (with real scales 2^l). Bits and zero points stay. Its gradient goes straight through the rounding.
        "ranges"  the parameter `ranges` [K, 2] has the ends of each grid, whose gradients are those of the numbers that
                  clip there. update_grids() takes them, at the end of an epoch, say.

        K grids are learned, on the CPU, by the names in grid_names(); give grid_parameters() to an optimiser, at a rate
        of 0.01 or so, before a DistributedDataParallel is made. The other arguments: as in Calibrator.finish(). Raises
        FailedPreconditionError before anything was observed, and OverflowError, which names the tensor that does not
        fit.
        """
        if learn not in (None, "steps", "ranges"):
            raise isobit.InvalidArgumentError(f"learn is {learn!r}, must be None, 'steps' or 'ranges'")
        if self._calibrator is None:
            raise isobit.FailedPreconditionError("quantize() before calibrate(): run data within calibrating(model)")
        core = _isobit.GruQat(self._calibrator, bits, method, scale, rounding, table)
        if learn == "steps":
            self.log2_steps = torch.nn.Parameter(torch.tensor(core.log2_steps, dtype=torch.float32))
        elif learn == "ranges":
            self.ranges = torch.nn.Parameter(torch.tensor(core.ranges, dtype=torch.float32))
        self._grids = _training.Registered(core)
        self._calibrator = None

    def grid_names(self) -> list[str]:
        """What each element of grid_parameters() is of: "l0.x", "l0.h", "l0.ih", ..., "l0.reverse.ih"."""
        return [] if self._grids is None else list(self._grids.core.learned)

    def grid_parameters(self) -> list[torch.nn.Parameter]:
        """The parameters of quantize(learn=...), for an optimiser; none where grids are fixed."""
        return [parameter for parameter in (self.log2_steps, self.ranges) if parameter is not None]

    def update_grids(self) -> None:
        """Takes `ranges`, of quantize(learn="ranges"): grids and tables are derived anew for them.

        Raises InvalidArgumentError, which names the tensor, for a range that has no grid; grids stay as they are then.
        """
        if self._grids is None or self.ranges is None:
            raise isobit.FailedPreconditionError("update_grids() is for quantize(learn='ranges'); there are no ranges")
        self._grids = _training.Registered(self._grids.core.with_ranges(self.ranges.tolist(), self._on_host()))

    def hold_weight_grids(self) -> None:
        """From here on each row of W and R keeps the grid that the current weights give it.

        For the last part of a training in "quantized": a row's power-of-two step that flips is a factor of 2 of all its
        weights. Weights outside clip; their gradients are not stopped. What freeze() makes has these rows. A second
        call changes nothing; quantize() takes rows of the weights of each call again.
        """
        if self._grids is None:
            raise isobit.FailedPreconditionError(f"hold_weight_grids() in phase {self.phase!r}, must be in "
                                                 "'quantized': call quantize() first")
        if not self._grids.core.rows_kept:
            self._grids = _training.Registered(self._grids.core.with_rows_kept(self._on_host(), self._steps()))

    def freeze(self, **options: Any) -> isobit.Gru:
        """The integer model: of the weights and grids that were trained, or of what was observed. forward is it then.

        Steps that are learned are taken as forward does; ranges are those of the last update_grids(). options: of
        Calibrator.finish(), where quantize() was not called.
        """
        if self._grids is not None:
            if options:
                raise isobit.InvalidArgumentError(f"freeze() after quantize() is given {', '.join(sorted(options))}; "
                                                  "must be without options, which quantize() had")
            model: isobit.Gru = self._grids.core.model(self._on_host(), self._steps())
        elif self._calibrator is not None:
            model = self._calibrator.finish(**options)
        else:
            raise isobit.FailedPreconditionError("freeze() before calibrate(): run data within calibrating(model)")
        self._calibrator = self._grids = self.log2_steps = self.ranges = None
        self._model = _training.Registered(model)
        return model

    def to_integer(self) -> isobit.Gru:
        """The integer model of freeze(), whose bytes are those of forward."""
        if self._grids is not None:
            raise isobit.FailedPreconditionError("grids are not frozen, as training goes on: freeze() first, or export "
                                                 "a copy, copy.deepcopy(module).freeze()")
        if self._model is None:
            raise isobit.FailedPreconditionError("there is no integer model yet: calibrate, then freeze()")
        model: isobit.Gru = self._model.core
        return model

    def forward(self, input: Any, hx: torch.Tensor | None = None, *,  # pylint: disable=redefined-builtin
                lengths: Sequence[int] | torch.Tensor | None = None,
                zoneout: Sequence[torch.Tensor | None] | torch.Tensor | None = None) -> Any:
        packed = input if isinstance(input, PackedSequence) else None
        if packed is None:
            x, counts = input, lengths
        else:
            if lengths is not None:
                raise isobit.InvalidArgumentError("lengths are given with a PackedSequence, which has its own; leave "
                                                  "them out")
            x, counts = pad_packed_sequence(packed)
        batch_first = self.batch_first and packed is None and x.dim() == 3
        dtype = x.dtype
        if dtype in _HALVES and torch.is_autocast_enabled(x.device.type):
            x, hx = x.float(), None if hx is None else hx.float()
        if self._model is not None:
            y, last = self._infer(self._model, x, hx, counts, zoneout, batch_first)
        else:
            y, last = self._train(x, hx, counts, zoneout, batch_first)
        y, last = y.to(dtype), last.to(dtype)
        if packed is not None:
            y = pack_padded_sequence(y, counts, enforce_sorted=packed.sorted_indices is None)
        return y, last

    @staticmethod
    def _infer(integer: _training.Registered, x: torch.Tensor, hx: torch.Tensor | None, counts: Any, zoneout: Any,
               batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
        if zoneout is not None:
            raise isobit.NotSupportedError("zoneout is given to a frozen QuantGRU, must be None: it is for training")
        single = x.dim() == 2
        first = None if hx is None else hx[:, None].contiguous() if single else hx
        if torch.compiler.is_compiling():
            lengths = None if counts is None else torch.as_tensor(counts, dtype=torch.int64)
            y, last = _training.run(x[:, None] if single else x, first, lengths, integer.key, batch_first)
            return (y[:, 0], last[:, 0]) if single else (y, last)
        model = integer.core
        state = model.initial_state(1 if single else x.shape[0 if batch_first else 1], first, like=x)
        y = model(x, state, lengths=counts.tolist() if isinstance(counts, torch.Tensor) else counts,
                  batch_first=batch_first, whole_sequence=True)
        last = state.values(x)
        return y, last[:, 0] if single else last

    def _train(self, x: torch.Tensor, hx: torch.Tensor | None, counts: Any, zoneout: Any,
               batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """The forward with gradients, of floats or integers; observed, without."""
        single = x.dim() == 2
        if self._calibrator is not None and x.device.type != "cpu" and zoneout is None:
            return self._observe_elsewhere(self._calibrator, x, hx, counts, batch_first)
        self._check(x, hx, batch_first)
        if single:
            x, hx = x[:, None], None if hx is None else hx[:, None]
        elif batch_first:
            x = x.transpose(0, 1)
        if counts is not None:
            place = counts.device if isinstance(counts, torch.Tensor) else "cpu"  # whatever torch's default device is
            counts = torch.as_tensor(counts, dtype=torch.int64, device=place)
            if counts.device.type != "cpu" and counts.device != x.device:
                raise TypeError(f"lengths is on {counts.device}, must be on {x.device}, as input, or on the CPU")
            if counts.shape != (x.shape[1],):
                raise isobit.InvalidArgumentError(f"lengths has shape {list(counts.shape)}, must be [{x.shape[1]}] "
                                                  "(the batch)")
        masks = None if zoneout is None else self._masks(zoneout, x, single, batch_first)
        directions = 1 + self.bidirectional
        arguments = x, hx, self._flat(), counts, masks
        if self._calibrator is not None:
            if masks is not None:
                raise isobit.NotSupportedError("zoneout is given while calibrating, must be None: statistics are those "
                                               "of inference")
            self._calibrator.observe(_host(x), None if counts is None else counts.tolist(),
                                     h0=None if hx is None else _host(hx))
            with torch.no_grad():
                y, last, _ = _training.float_forward(*arguments, directions, self.check_finite)
        elif self._grids is not None:
            keep, learned = torch.is_grad_enabled(), self._learned()
            y, last, *_ = _training.qat_forward(*arguments, learned, self._grids.key, directions,
                                                keep and learned is not None and learned.requires_grad, keep,
                                                self.check_finite)
        else:
            y, last, _ = _training.float_forward(*arguments, directions, self.check_finite)
        if single:
            y, last = y[:, 0], last[:, 0]
        elif batch_first:
            y = y.transpose(0, 1)
        return y, last

    def _observe_elsewhere(self, calibrator: isobit.Calibrator, x: torch.Tensor, hx: torch.Tensor | None, counts: Any,
                           batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """The float forward of a module on another device, which is torch's; statistics are made on the host."""
        first = None if hx is None else _host(hx if hx.dim() == 3 else hx[:, None])
        lengths = None if counts is None else torch.as_tensor(counts, dtype=torch.int64, device="cpu")
        calibrator.observe(_host(x), None if lengths is None else lengths.tolist(), batch_first=batch_first, h0=first)
        with torch.no_grad():
            if lengths is None:
                y, last = torch.nn.GRU.forward(self, x, hx)
                return y, last
            packed = pack_padded_sequence(x, lengths, batch_first=batch_first, enforce_sorted=False)
            y, last = torch.nn.GRU.forward(self, packed, hx)
            return pad_packed_sequence(y, batch_first, total_length=x.shape[1 if batch_first else 0])[0], last

    def _check(self, x: torch.Tensor, hx: torch.Tensor | None, batch_first: bool) -> None:
        """Refuses what training cannot take."""
        if self.training and self._calibrator is None and self.dropout > 0 and self.num_layers > 1:
            raise isobit.NotSupportedError(f"dropout is {self.dropout} between layers, must be 0 to train; zoneout "
                                           "masks regularise a GRU, too")
        form = "[N, T, C]" if batch_first else "[T, N, C]"
        for name, tensor in (("input", x), ("hx", hx), ("weight_ih_l0", self.weight_ih_l0)):
            if tensor is None:
                continue
            if tensor.device.type not in ("cpu", "cuda"):
                raise isobit.NotSupportedError(f"{name} is on {tensor.device}, must be on the CPU or a CUDA device")
            if tensor.device.type != "cpu" and self._learned() is not None:
                _training.refuse_learned(name, tensor.device)
            if tensor.device != x.device:
                raise TypeError(f"{name} is on {tensor.device}, must be on {x.device}, as input")
            if tensor.dtype != torch.float32:
                raise TypeError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}, must be float32 (float16 and "
                                "bfloat16 are taken under torch.autocast)")
        if x.dim() not in (2, 3) or x.shape[-1] != self.input_size:
            raise isobit.InvalidArgumentError(f"input has shape {list(x.shape)}, must be {form} or [T, C], C = "
                                              f"{self.input_size}")
        batch = [] if x.dim() == 2 else [x.shape[0 if batch_first else 1]]
        wanted = [self.num_layers * (1 + self.bidirectional), *batch, self.hidden_size]
        if hx is not None and list(hx.shape) != wanted:
            raise isobit.InvalidArgumentError(f"hx has shape {list(hx.shape)}, must be {wanted}: layers * directions, N, "
                                              "H")

    def _masks(self, zoneout: Any, x: torch.Tensor, single: bool, batch_first: bool) -> torch.Tensor:
        """[layers, T, N, directions * H] in uint8."""
        if len(zoneout) != self.num_layers:
            raise isobit.InvalidArgumentError(f"zoneout has {len(zoneout)} masks, must have {self.num_layers}, one a "
                                              "layer")
        steps, batch, width = x.shape[0], x.shape[1], (1 + self.bidirectional) * self.hidden_size
        wanted = [steps, width] if single else [batch, steps, width] if batch_first else [steps, batch, width]
        masks = []
        for layer, mask in enumerate(zoneout):
            if mask is None:
                masks.append(torch.ones((steps, batch, width), dtype=torch.uint8, device=x.device))
                continue
            if mask.device != x.device:
                raise TypeError(f"zoneout[{layer}] is on {mask.device}, must be on {x.device}, as input")
            if list(mask.shape) != wanted:
                raise isobit.InvalidArgumentError(f"zoneout[{layer}] has shape {list(mask.shape)}, must be {wanted}, as "
                                                  "y")
            if mask.dtype not in (torch.bool, torch.uint8):
                raise TypeError(f"zoneout[{layer}] is {str(mask.dtype).removeprefix('torch.')}, must be bool or uint8")
            mask = mask.ne(0).to(torch.uint8)
            masks.append(mask[:, None] if single else mask.transpose(0, 1) if batch_first else mask)
        return torch.stack(masks)

    def _learned(self) -> torch.Tensor | None:
        return self.ranges if self.log2_steps is None else self.log2_steps

    def _steps(self) -> list[float] | None:
        return None if self.log2_steps is None else self.log2_steps.tolist()

    def _on_host(self) -> list[torch.Tensor]:
        return [_host(weight) for weight in self._flat()]

    def _flat(self) -> list[torch.Tensor]:
        """weight_ih, weight_hh, bias_ih and bias_hh of each direction of each layer; zeros for absent biases."""
        flat: list[torch.Tensor] = []
        for layer in range(self.num_layers):
            for end in (f"_l{layer}", f"_l{layer}_reverse")[:1 + self.bidirectional]:
                matrices = getattr(self, "weight_ih" + end), getattr(self, "weight_hh" + end)
                flat += matrices
                if self.bias:
                    flat += getattr(self, "bias_ih" + end), getattr(self, "bias_hh" + end)
                else:
                    flat += matrices[0].new_zeros(3 * self.hidden_size), matrices[0].new_zeros(3 * self.hidden_size)
        return flat

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._model = self._calibrator = None
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        if self._calibrator is not None:
            raise isobit.FailedPreconditionError("a QuantGRU that calibrates cannot be copied; freeze() it first")
        return dict(super().__getstate__())

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, phase={self.phase!r}"


def hand_over(h: torch.Tensor, from_gru: QuantGRU, to_gru: QuantGRU) -> torch.Tensor:
    """h, the last state of `from_gru`, [layers * directions, N, H], as the first state of `to_gru`.

    Where both are quantized or frozen, h is requantised to the grids of `to_gru`, as Gru.state_from() does: the values
    are those of its codes, the gradient goes straight through, and is 0 where a clamp changed the number. Where both
    are in floats, it is h. Raises FailedPreconditionError where only one is.
    """
    keys, weights, learned = [], [], []
    for gru in (from_gru, to_gru):
        integer = gru._model or gru._grids
        if integer is None:
            continue
        keys.append(integer.key)
        weights.append([] if gru.log2_steps is None else gru._on_host())
        learned.append(None if gru.log2_steps is None else gru.log2_steps.detach().cpu())
    if not keys:
        return h
    if len(keys) == 1:
        raise isobit.FailedPreconditionError(f"from_gru is in phase {from_gru.phase!r}, to_gru in {to_gru.phase!r}; "
                                             "both must be in floats, or neither")
    if h.device.type != "cpu":
        raise isobit.NotSupportedError(f"h is on {h.device}, must be on the CPU: states of integer GRUs are handed "
                                       "over there; pass h.cpu(), and move the result")
    handed: torch.Tensor = _training.hand_over(h[:, None] if h.dim() == 2 else h, *weights, *learned, *keys)[0]
    return handed[:, 0] if h.dim() == 2 else handed


@contextlib.contextmanager
def calibrating(model: torch.nn.Module, method: str = "minmax") -> Iterator[None]:
    """Within it every QuantGRU of the model runs in floats and observes: quantize() or freeze() each of them then."""
    layers = [module for module in model.modules() if isinstance(module, QuantGRU)]
    if not layers:
        raise isobit.InvalidArgumentError("model has no QuantGRU; QuantGRU.from_float() makes one of a torch.nn.GRU")
    for layer in layers:
        layer.calibrate(method)
    yield
