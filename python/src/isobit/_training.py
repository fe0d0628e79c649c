# SPDX-License-Identifier: Apache-2.0
"""The operators of PyTorch behind isobit.torch.QuantGRU: isobit::gru_*, without state, for autograd and torch.compile.

x [T, N, C], h [layers * directions, N, H], weights: weight_ih, weight_hh, bias_ih and bias_hh of each direction of each
layer; float32 on the CPU or, but for gru_hand_over, on a CUDA device. What backward needs is a tensor, so that hooks on
saved tensors, checkpoints and graphs that are kept see nothing unusual. A `key` names an object of _registered, as an
operator takes no other objects.
"""
from __future__ import annotations

import itertools
import os
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch

import isobit

from . import _arrays, _isobit
from ._errors import FailedPreconditionError, InvalidArgumentError, NotSupportedError

# The share of a tensor's numbers that may clip, and how much longer the gradient of the weights may be than that of the
# results, before a QuantizationWarning says so.
CLIP_LIMIT = 0.1
GRADIENT_LIMIT = 1e4

# Tensors with a clamp, in the order in which GruQat.forward gives their shares.
CLAMPED = ("h", "ih", "hh", "u_in", "r_in", "n_in")


class QuantizationWarning(UserWarning):
    """Quantisation-aware training that is likely to go wrong: numbers clip, or gradients explode."""


# ---- What operators find by a key

_keys = itertools.count(1)
_registered: weakref.WeakValueDictionary[int, Registered] = weakref.WeakValueDictionary()


class Registered:
    """An immutable object of isobit, a GruQat or a Gru, with a number that finds it while it is there."""

    def __init__(self, core: Any) -> None:
        self.core, self.key = core, next(_keys)
        _registered[self.key] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> Registered:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Registered, (self.core,)


def found(key: int) -> Any:
    try:
        return _registered[int(key)].core  # an integer also where torch.compile made a symbol of it
    except KeyError:
        raise FailedPreconditionError("the QuantGRU whose grids this call needs is no longer there; keep it") from None


# ---- Threads

_pools: dict[tuple[int, int], isobit.ThreadPool] = {}


def _pool() -> isobit.ThreadPool | None:
    """As many threads as torch.get_num_threads() says. A process that was forked has none of its parent's."""
    key = os.getpid(), torch.get_num_threads()
    if key[1] == 1:
        return None
    if key not in _pools:
        _pools[key] = isobit.ThreadPool(key[1])
    return _pools[key]


# ---- Checks

def _contiguous(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().contiguous()


def _refuse_lengths(lengths: Any, steps: int) -> None:
    if lengths is None:
        return
    for n, length in enumerate(lengths.tolist()):
        if not 0 <= length <= steps:
            raise InvalidArgumentError(f"lengths[{n}] is {length}, must be 0..{steps} (the steps)")


def _refuse_not_finite(gradient: Any, name: str) -> None:
    finite = torch.isfinite(gradient)
    if bool(finite.all()):
        return
    at = (~finite).nonzero()[0].tolist()
    raise InvalidArgumentError(
        f"the gradient of {name}{at} is {gradient[tuple(at)].item()}, must be finite: the loss is not, or its gradient "
        "overflows. No gradient of this layer was written; skip the step, or set check_finite to False where a "
        "GradScaler looks for it")


def _warn_of_clipping(shares: Sequence[float], directions: int) -> None:
    for i, share in enumerate(shares):
        if share <= CLIP_LIMIT:
            continue
        layer, tensor = divmod(i, len(CLAMPED))
        name = "x" if i == len(shares) - 1 else CLAMPED[tensor]
        if name != "x":
            name += f" of layer {layer // directions}" + (", reverse" if layer % directions else "")
        percent = 10 * int(10 * share)  # few texts: no warning in each step
        warnings.warn(f"more than {percent} % of {name} clip, where gradients stop; calibrate with data like this, "
                      "with method='sqnr', or use more bits", QuantizationWarning, stacklevel=2)


def _warn_of_explosion(given: Sequence[Any], gradients: Sequence[Any]) -> None:
    norms = [torch.linalg.vector_norm(tensor).item() for tensor in given if tensor.numel()]
    source = sum(norm * norm for norm in norms) ** 0.5
    largest = max(torch.linalg.vector_norm(gradient).item() for gradient in gradients)
    if largest > GRADIENT_LIMIT * source:
        warnings.warn(f"the gradient of a weight is more than {GRADIENT_LIMIT:g} times as long as that of the results: it "
                      "explodes through time. Calibrate with method='sqnr', or clip gradients",
                      QuantizationWarning, stacklevel=2)


# ---- Shapes

def _sizes(x: Any, weights: Sequence[Any], directions: int) -> tuple[Any, Any, Any, Any, Any]:
    """T, N, C, H and the number of layers."""
    return *x.shape, weights[1].shape[1], len(weights) // 4 // directions


def _results(x: Any, weights: Sequence[Any], directions: int) -> tuple[Any, Any]:
    """y and h_n, not filled."""
    steps, batch, _, hidden, layers = _sizes(x, weights, directions)
    return x.new_empty((steps, batch, directions * hidden)), x.new_empty((layers * directions, batch, hidden))


def _gradients(dy: Any, dlast: Any, weights: Sequence[Any], wants_dx: bool) -> list[Any]:
    """Of x, h_0 and the weights, not filled. That of x is empty where it is not wanted."""
    shape = (dy.shape[0], dy.shape[1], weights[0].shape[1]) if wants_dx else (0,)
    return [dy.new_empty(shape), torch.empty_like(dlast, memory_format=torch.contiguous_format)] + [
        torch.empty_like(weight, memory_format=torch.contiguous_format) for weight in weights]


# ---- Floats

def _float_forward(x: Any, h0: Any, weights: Sequence[Any], lengths: Any, zoneout: Any, directions: int,
                   check: bool) -> tuple[Any, Any, Any]:
    _refuse_lengths(lengths, x.shape[0])
    y, last, saved = _float_results(x, h0, weights, lengths, zoneout, directions, check)
    if lengths is not None:
        saved.zero_()  # of steps past a length nothing is written
    _isobit.gru_float_forward(_contiguous(x), _contiguous(h0), [_contiguous(w) for w in weights], directions,
                              _contiguous(lengths), _contiguous(zoneout), y, last, saved, _pool())
    return y, last, saved


def _float_results(x: Any, h0: Any, weights: Sequence[Any], lengths: Any, zoneout: Any, directions: int,
                   check: bool) -> tuple[Any, Any, Any]:
    steps, batch, _, hidden, layers = _sizes(x, weights, directions)
    saved = steps * batch * directions * hidden * (5 * layers - 1)  # GruTraining::saved_size()
    return *_results(x, weights, directions), x.new_empty((saved,))


def _float_backward(dy: Any, dlast: Any, x: Any, h0: Any, weights: Sequence[Any], lengths: Any, zoneout: Any, y: Any,
                    saved: Any, directions: int, wants_dx: bool, check: bool) -> list[Any]:
    if check:
        _refuse_not_finite(dy, "y")
        _refuse_not_finite(dlast, "h_n")
    made = _gradients(dy, dlast, weights, wants_dx)
    _isobit.gru_float_backward(_contiguous(x), _contiguous(h0), [_contiguous(w) for w in weights], directions,
                               _contiguous(lengths), _contiguous(zoneout), _contiguous(y), _contiguous(saved),
                               _contiguous(dy), _contiguous(dlast), made[0] if wants_dx else None, made[1], made[2:],
                               _pool())
    return made


def _float_backward_results(dy: Any, dlast: Any, x: Any, h0: Any, weights: Sequence[Any], lengths: Any, zoneout: Any,
                            y: Any, saved: Any, directions: int, wants_dx: bool, check: bool) -> list[Any]:
    return _gradients(dy, dlast, weights, wants_dx)


# ---- On a CUDA device, on torch's current stream. Nothing waits but what `check` asks for.

def _on_its_device(tensor: Any, name: str = "x") -> Any:
    """The context of a call: an array is exported on the current device only."""
    if tensor.device.type != "cuda":
        raise TypeError(f"{name} is on {tensor.device}, must be on a CUDA device, as other tensors of the call are")
    return torch.cuda.device(tensor.device)


def _may_look(check: bool) -> bool:
    """What is captured runs later, so that there is nothing to look at yet."""
    return check and not torch.cuda.is_current_stream_capturing()


def _refuse_not_finite_on_device(dy: Any, dlast: Any) -> None:
    """Waits once."""
    if not bool(torch.isfinite(dy).all() & torch.isfinite(dlast).all()):
        _refuse_not_finite(dy, "y")
        _refuse_not_finite(dlast, "h_n")


def _swapped(tensors: Sequence[Any]) -> list[Any]:
    """Copies whose first two blocks of three changed places: PyTorch's r, z, n to isobit's u, r, n, or back."""
    made = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]
    to: list[Any] = []
    of: list[Any] = []
    for new, old in zip(made, tensors):
        first, second, third = old.detach().chunk(3)
        to += new.chunk(3)
        of += second, first, third
    torch._foreach_copy_(to, of)  # one kernel for all
    return made


def _lengths_on_device(lengths: Any, x: Any) -> Any:
    """Lengths where x is. Of a tensor that is there nothing is checked, which would wait."""
    if lengths is None or lengths.device != torch.device("cpu"):
        return _contiguous(lengths)
    if torch.cuda.is_current_stream_capturing():
        raise FailedPreconditionError(f"lengths is on the CPU while a CUDA graph is captured, must be on {x.device}: "
                                      "the graph would keep those of the capture")
    _refuse_lengths(lengths, x.shape[0])
    return _arrays.on_device(x, lengths.tolist())


# ---- Floats on a CUDA device

def _float_forward_on_device(x: Any, h0: Any, weights: Sequence[Any], lengths: Any, zoneout: Any, directions: int,
                             check: bool) -> tuple[Any, Any, Any]:
    with _on_its_device(x):
        counts = _lengths_on_device(lengths, x)
        y, last, saved = _float_results(x, h0, weights, lengths, zoneout, directions, check)
        if lengths is not None:
            saved.zero_()
        _isobit.gru_device_forward(_contiguous(x), _contiguous(h0), _swapped(weights), directions, counts,
                                   _contiguous(zoneout), y, last, saved)
    return y, last, saved


def _float_backward_on_device(dy: Any, dlast: Any, x: Any, h0: Any, weights: Sequence[Any], lengths: Any, zoneout: Any,
                              y: Any, saved: Any, directions: int, wants_dx: bool, check: bool) -> list[Any]:
    with _on_its_device(x):
        if _may_look(check):
            _refuse_not_finite_on_device(dy, dlast)
        made = _gradients(dy, dlast, weights, wants_dx)
        _isobit.gru_device_backward(_contiguous(x), _contiguous(h0), _swapped(weights), directions,
                                    _lengths_on_device(lengths, x), _contiguous(zoneout), _contiguous(y),
                                    _contiguous(saved), _contiguous(dy), _contiguous(dlast),
                                    made[0] if wants_dx else None, made[1], made[2:])
        return made[:2] + _swapped(made[2:])


# ---- Integers
# learned: of all grids that can be learned log2 of the step, [K], which the forward takes; or the range, [K, 2], which it
# does not; or None. learn: whether what their gradients need is kept. Backward reads `lengths`, `zoneout` and `key` on
# a device only: on the CPU `saved` has all.

def _saved_size(x: Any, h0: Any, weights: Sequence[Any], lengths: Any, zoneout: Any, directions: int,
                learn: bool) -> Any:
    """GruQatRun::saved_size()."""
    steps, batch, inputs, hidden, layers = _sizes(x, weights, directions)
    units = layers * directions * hidden
    of_unit = 22 + (42 if learn else 0) + (0 if zoneout is None else 1)
    size = 64 + steps * batch * (inputs * (12 if learn else 6) + units * of_unit)
    size += sum(4 * weight.shape[0] * weight.shape[1] for weight in weights if weight.dim() == 2)
    return size + (0 if lengths is None else 8 * batch) + (0 if h0 is None else 6 * units * batch)


def _steps(learned: Any) -> list[float] | None:
    return None if learned is None or learned.dim() != 1 else learned.tolist()


def _qat_forward(x: Any, h0: Any, weights: Sequence[Any], lengths: Any, zoneout: Any, learned: Any, key: int,
                 directions: int, learn: bool, keep: bool, check: bool) -> tuple[Any, Any, Any, Any]:
    _refuse_lengths(lengths, x.shape[0])
    y, last, saved, _ = _qat_results(x, h0, weights, lengths, zoneout, learned, key, directions, learn, keep, check)
    shares, grids = found(key).forward(_contiguous(x), _contiguous(h0), [_contiguous(w) for w in weights],
                                        _steps(learned), learn, _contiguous(lengths), _contiguous(zoneout), y, last,
                                        saved if keep else None, _pool())
    if keep:
        _warn_of_clipping(shares, directions)
    return y, last, saved, torch.tensor(grids if learn else [], dtype=torch.float64)


def _qat_results(x: Any, h0: Any, weights: Sequence[Any], lengths: Any, zoneout: Any, learned: Any, key: int,
                 directions: int, learn: bool, keep: bool, check: bool) -> tuple[Any, Any, Any, Any]:
    if not keep:
        size = 0
    elif x.device.type == "cuda":
        size = _saved_size_on_device(key, x)
    else:
        size = _saved_size(x, h0, weights, lengths, zoneout, directions, learn)
    grids = x.new_empty((learned.shape[0], 6) if learn else (0,), dtype=torch.float64)
    return *_results(x, weights, directions), x.new_empty((size,), dtype=torch.uint8), grids


def _qat_backward(dy: Any, dlast: Any, weights: Sequence[Any], lengths: Any, zoneout: Any, saved: Any, grids: Any,
                  key: int, of_steps: bool, directions: int, wants_dx: bool, check: bool) -> list[Any]:
    if check:
        _refuse_not_finite(dy, "y")
        _refuse_not_finite(dlast, "h_n")
    made = _qat_gradients_of(dy, dlast, weights, lengths, zoneout, saved, grids, key, of_steps, directions, wants_dx,
                             check)
    _isobit.gru_qat_backward(_contiguous(saved), _contiguous(dy), _contiguous(dlast), made[1] if wants_dx else None,
                             made[2], made[3:], None if grids is None else grids.tolist(),
                             None if grids is None else made[0], directions, _pool())
    _warn_of_explosion((dy, dlast), made[3:])
    return made


def _qat_gradients_of(dy: Any, dlast: Any, weights: Sequence[Any], lengths: Any, zoneout: Any, saved: Any, grids: Any,
                      key: int, of_steps: bool, directions: int, wants_dx: bool, check: bool) -> list[Any]:
    shape = (0,) if grids is None else (grids.shape[0],) if of_steps else (grids.shape[0], 2)
    return [dy.new_empty(shape), *_gradients(dy, dlast, weights, wants_dx)]


# ---- Integers on a CUDA device. What only the numbers tell, a NaN of x or weights without a grid, backward
# says; where there is none, forward.

def refuse_learned(name: str, place: Any) -> None:
    raise NotSupportedError(f"{name} is on {place}, must be on the CPU: learned grids train on the CPU; call "
                            "quantize() without learn, or move the module")


def _saved_size_on_device(key: int, x: Any) -> int:
    """Where shapes are symbols, it depends on their numbers."""
    size: int = _isobit.gru_qat_device_saved_bytes(found(key), x.device.index, int(x.shape[0]), int(x.shape[1]))
    return size


def _aligned(saved: Any) -> Any:
    """A hook on saved tensors may have put it anywhere."""
    saved = _contiguous(saved)
    return saved if saved.data_ptr() % 256 == 0 else saved.clone()


def _qat_forward_on_device(x: Any, h0: Any, weights: Sequence[Any], lengths: Any, zoneout: Any, learned: Any, key: int,
                           directions: int, learn: bool, keep: bool, check: bool) -> tuple[Any, Any, Any, Any]:
    if learned is not None:
        refuse_learned("x", x.device)
    with _on_its_device(x):
        counts = _lengths_on_device(lengths, x)
        y, last, saved, grids = _qat_results(x, h0, weights, lengths, zoneout, None, key, directions, False, True,
                                             check)
        _isobit.gru_qat_device_forward(found(key), _contiguous(x), _contiguous(h0), _swapped(weights), counts,
                                       _contiguous(zoneout), y, last, saved)
        if not keep and _may_look(check):  # there is no backward that could
            _isobit.gru_qat_device_check(found(key), x.shape[0], x.shape[1], saved)
        return y, last, saved if keep else saved.new_empty((0,)), grids


def _qat_backward_on_device(dy: Any, dlast: Any, weights: Sequence[Any], lengths: Any, zoneout: Any, saved: Any,
                            grids: Any, key: int, of_steps: bool, directions: int, wants_dx: bool,
                            check: bool) -> list[Any]:
    with _on_its_device(dy, "dy"):
        core, kept, looks = found(key), _aligned(saved), _may_look(check)
        if looks:  # clamps are counted in a part of `saved` that nothing else reads
            _warn_of_clipping(_isobit.gru_qat_device_check(core, dy.shape[0], dy.shape[1], kept), directions)
            _refuse_not_finite_on_device(dy, dlast)
        made = _qat_gradients_of(dy, dlast, weights, lengths, zoneout, saved, None, key, of_steps, directions, wants_dx,
                                 check)
        _isobit.gru_qat_device_backward(core, _contiguous(dy), _contiguous(dlast), _lengths_on_device(lengths, dy),
                                        _contiguous(zoneout), kept, made[1] if wants_dx else None, made[2], made[3:])
        made[3:] = _swapped(made[3:])
        if looks:
            _warn_of_explosion((dy, dlast), made[3:])
        return made


def _hand_over(h: Any, from_weights: Sequence[Any], to_weights: Sequence[Any], from_learned: Any, to_learned: Any,
               from_key: int, to_key: int) -> tuple[Any, Any]:
    models = []
    for key, weights, learned in ((from_key, from_weights, from_learned), (to_key, to_weights, to_learned)):
        core = found(key)
        if isinstance(core, _isobit.GruQat):  # grids are those of weights at any time, but for steps that are learned
            steps = _steps(learned)
            core = core.base if steps is None else core.model([_contiguous(w) for w in weights], steps)
        models.append(core)
    out, passed = h.new_empty(h.shape), h.new_empty(h.shape, dtype=torch.uint8)
    _isobit.gru_hand_over(models[0], models[1], _contiguous(h), out, passed)
    return out, passed


def _hand_over_results(h: Any, from_weights: Sequence[Any], to_weights: Sequence[Any], from_learned: Any,
                       to_learned: Any, from_key: int, to_key: int) -> tuple[Any, Any]:
    return h.new_empty(h.shape), h.new_empty(h.shape, dtype=torch.uint8)


def _run(x: Any, h0: Any, lengths: Any, key: int, batch_first: bool) -> tuple[Any, Any]:
    """A frozen model on x [T, N, C], or [N, T, C] with batch_first, on any device."""
    model = found(key)
    state = model.initial_state(x.shape[0 if batch_first else 1], h0, like=x)
    y = model(x, state, lengths=lengths, batch_first=batch_first, whole_sequence=True)
    return y, state.values(x)


def _run_results(x: Any, h0: Any, lengths: Any, key: int, batch_first: bool) -> tuple[Any, Any]:
    model = found(key)
    batch = x.shape[0 if batch_first else 1]
    return (x.new_empty((*x.shape[:2], model.output_size)),
            x.new_empty((model.layers * model.directions, batch, model.hidden_size)))


# ---- Registration

_WEIGHTS = "Tensor x, Tensor? h0, Tensor[] weights, Tensor? lengths, Tensor? zoneout, "


def _operator(name: str, schema: str, run: Any, results: Any, device: str | None = "cpu") -> Any:
    made = torch.library.custom_op(f"isobit::{name}", run, mutates_args=(), device_types=device, schema=schema)
    made.register_fake(results)
    return made


def _never(ctx: Any, *gradients: Any) -> Any:
    raise NotSupportedError("double backward: QuantGRU has no gradient of its gradients; leave create_graph out")


def _refuse_gradients(ctx: Any, *gradients: Any) -> Any:
    raise NotSupportedError("x requires gradients, which integers do not have; pass x.detach()")


float_forward = _operator("gru_float_forward", f"({_WEIGHTS}int directions, bool check) -> (Tensor, Tensor, Tensor)",
                          _float_forward, _float_results)
float_backward = _operator(
    "gru_float_backward",
    f"(Tensor dy, Tensor dlast, {_WEIGHTS}Tensor y, Tensor saved, int directions, bool wants_dx, bool check) -> "
    "Tensor[]", _float_backward, _float_backward_results)
float_forward.register_kernel("cuda")(_float_forward_on_device)
float_backward.register_kernel("cuda")(_float_backward_on_device)
qat_forward = _operator(
    "gru_qat_forward",
    f"({_WEIGHTS}Tensor? learned, int key, int directions, bool learn, bool keep, bool check) -> "
    "(Tensor, Tensor, Tensor, Tensor)", _qat_forward, _qat_results)
qat_backward = _operator(
    "gru_qat_backward",
    "(Tensor dy, Tensor dlast, Tensor[] weights, Tensor? lengths, Tensor? zoneout, Tensor saved, Tensor? grids, "
    "int key, bool of_steps, int directions, bool wants_dx, bool check) -> Tensor[]", _qat_backward, _qat_gradients_of)
qat_forward.register_kernel("cuda")(_qat_forward_on_device)
qat_backward.register_kernel("cuda")(_qat_backward_on_device)
hand_over = _operator(
    "gru_hand_over",
    "(Tensor h, Tensor[] from_weights, Tensor[] to_weights, Tensor? from_learned, Tensor? to_learned, int from_key, "
    "int to_key) -> (Tensor, Tensor)", _hand_over, _hand_over_results)
run = _operator("gru_run", "(Tensor x, Tensor? h0, Tensor? lengths, int key, bool batch_first) -> (Tensor, Tensor)",
                _run, _run_results, device=None)


# ---- Autograd

def _given(gradient: Any, shape: tuple[Any, ...], like: Any) -> Any:
    """The gradient of a result, zeros where nothing depended on it."""
    return like.new_zeros(shape) if gradient is None else gradient


def _keep(ctx: Any, x: Any, h0: Any, weights: Sequence[Any], directions: int, check: bool) -> None:
    steps, batch, _, hidden, layers = _sizes(x, weights, directions)
    ctx.set_materialize_grads(False)
    ctx.y_shape = steps, batch, directions * hidden
    ctx.last_shape = layers * directions, batch, hidden
    ctx.directions, ctx.check, ctx.has_first = directions, check, h0 is not None


def _float_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    x, h0, weights, lengths, zoneout, directions, check = inputs
    y, _, saved = output
    _keep(ctx, x, h0, weights, directions, check)
    ctx.mark_non_differentiable(saved)
    ctx.save_for_backward(x, h0, lengths, zoneout, y, saved, *weights)


def _float_gradients(ctx: Any, dy: Any, dlast: Any, _: Any) -> tuple[Any, ...]:
    x, h0, lengths, zoneout, y, saved, *weights = ctx.saved_tensors
    dx, dh0, *dweights = float_backward(_given(dy, ctx.y_shape, y), _given(dlast, ctx.last_shape, y), x, h0, weights,
                                        lengths, zoneout, y, saved, ctx.directions, ctx.needs_input_grad[0], ctx.check)
    return (dx if ctx.needs_input_grad[0] else None, dh0 if ctx.has_first else None, dweights, *[None] * 4)


def _qat_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    x, h0, weights, lengths, zoneout, learned, key, directions, learn, keep, check = inputs
    if not keep:
        raise FailedPreconditionError("gru_qat_forward: keep is False, must be True where gradients are wanted")
    _keep(ctx, x, h0, weights, directions, check)
    _, _, saved, grids = output
    ctx.learn, ctx.of_steps, ctx.key = learn, learn and learned.dim() == 1, key
    ctx.mark_non_differentiable(saved, grids)
    if x.device.type == "cuda":
        ctx.owner = _registered.get(int(key))  # backward needs its grids, also where the module has got others
    else:
        lengths = zoneout = None
    ctx.save_for_backward(lengths, zoneout, saved, grids, *weights)


def _qat_gradients(ctx: Any, dy: Any, dlast: Any, *_: Any) -> tuple[Any, ...]:
    lengths, zoneout, saved, grids, *weights = ctx.saved_tensors
    like = weights[0]
    dlearned, dx, dh0, *dweights = qat_backward(
        _given(dy, ctx.y_shape, like), _given(dlast, ctx.last_shape, like), weights, lengths, zoneout, saved,
        grids if ctx.learn else None, ctx.key, ctx.of_steps, ctx.directions, ctx.needs_input_grad[0], ctx.check)
    return (dx if ctx.needs_input_grad[0] else None, dh0 if ctx.has_first else None, dweights, None, None,
            dlearned if ctx.learn else None, *[None] * 5)


def _hand_over_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    ctx.counts = len(inputs[1]), len(inputs[2])
    ctx.save_for_backward(output[1])


def _hand_over_gradients(ctx: Any, gradient: Any, _: Any) -> tuple[Any, ...]:
    passed, = ctx.saved_tensors
    first, second = ctx.counts
    return (gradient * passed, [None] * first, [None] * second, *[None] * 4)


float_forward.register_autograd(_float_gradients, setup_context=_float_setup)
qat_forward.register_autograd(_qat_gradients, setup_context=_qat_setup)
hand_over.register_autograd(_hand_over_gradients, setup_context=_hand_over_setup)
for _backward in (float_backward, qat_backward):
    _backward.register_autograd(_never)
run.register_autograd(_refuse_gradients)
