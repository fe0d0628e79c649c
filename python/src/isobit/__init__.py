# SPDX-License-Identifier: Apache-2.0
"""Trained GRUs as integers, with the same bytes on every machine.

    weights = isobit.load_gru("checkpoint.npz")
    gru = isobit.quantize(weights, data, bits="8,linear=16,h=16")  # data: arrays [T, N, C]
    y = gru(x)                                                      # the array library of x
    gru.save("gru.safetensors")

Arrays are those of any library that speaks DLPack: numpy, torch, jax. docs/python.md says more.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from typing import Any

from . import _errors, _isobit
from ._errors import (
    Error,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidFileError,
    IoError,
    NotSupportedError,
    OverflowError,
)
from ._isobit import (
    Calibrator,
    Conv,
    Gru,
    GruState,
    GruWeights,
    Linear,
    LowBit,
    StaticConv,
    StaticConvState,
    StaticConvStream,
    StaticLinear,
    StaticLinearCalibrator,
    StaticPool,
    Table,
    ThreadPool,
    gru_weights,
    load,
    load_gru,
)
from ._progress import Progress, shown
from ._reports import Comparison, Report, Tuning, Verification

__all__ = [
    "Calibrator",
    "Comparison",
    "Conv",
    "Error",
    "FailedPreconditionError",
    "Gru",
    "GruState",
    "GruWeights",
    "InvalidArgumentError",
    "InvalidFileError",
    "IoError",
    "Linear",
    "LowBit",
    "NotSupportedError",
    "OverflowError",
    "Report",
    "StaticConv",
    "StaticConvState",
    "StaticConvStream",
    "StaticLinear",
    "StaticLinearCalibrator",
    "StaticPool",
    "Table",
    "ThreadPool",
    "Tuning",
    "Verification",
    "compare",
    "fingerprint",
    "gru_weights",
    "load",
    "load_gru",
    "pack",
    "quantize",
    "quantize_static",
    "supported",
    "tune",
    "verify",
]


_isobit.set_exceptions(_errors.BY_CODE)

# An array of any library that speaks DLPack.
Array = Any
# An array, an iterable of arrays, or of pairs of an array and its lengths.
Data = Any


def _sequences(data: Data) -> Iterator[tuple[Array, Sequence[int] | None]]:
    """Pairs of an array and its lengths: of one array, an iterable of arrays, or of such pairs."""
    if hasattr(data, "__dlpack__"):
        data = (data,)
    for item in data:
        yield item if isinstance(item, tuple) else (item, None)


def quantize(weights: GruWeights, data: Data, *, bits: str = "8", method: str = "minmax", scale: str = "pow2",
             rounding: str = "nearest_even", table: str = "default", batch_first: bool = False,
             pool: ThreadPool | None = None) -> Gru:
    """Calibrator.observe() for all of `data`, then finish(): an integer GRU of float weights.

    data: an array [T, N, C] or [T, C] of float32, or an iterable of arrays, or of pairs (array, lengths). The other
    arguments are those of Calibrator and finish().
    """
    calibrator = Calibrator(weights, method=method)
    for x, lengths in _sequences(data):
        calibrator.observe(x, lengths, batch_first=batch_first, pool=pool)
    return calibrator.finish(bits=bits, scale=scale, rounding=rounding, table=table)


def _placed(weights: GruWeights, data: Data,
            batch_first: bool) -> Iterator[tuple[Array, int, int, bool, list[int], str]]:
    """x, steps, batch, whether they are swapped, lengths and a name, for each of _sequences(data)."""
    for index, (x, lengths) in enumerate(_sequences(data)):
        shape, name = tuple(x.shape), f"data[{index}]"
        if len(shape) not in (2, 3) or shape[-1] != weights.input_size:
            raise InvalidArgumentError(f"{name} has shape {list(shape)}, must be [T, N, {weights.input_size}] or "
                                       f"[T, {weights.input_size}]")
        swapped = batch_first and len(shape) == 3
        steps, batch = (shape[0], 1) if len(shape) == 2 else (shape[1], shape[0]) if swapped else shape[:2]
        yield x, steps, batch, swapped, [] if lengths is None else list(lengths), name


def compare(weights: GruWeights, model: Gru, data: Data, *, batch_first: bool = False, part_codes: float = 1.0,
            zoneout: float = 0.0, ablate: bool = False) -> Comparison:
    """The integer GRU `model` beside its float `weights` on `data` (as in quantize()): a Comparison.

    part_codes: a tensor has parted where float and integer differ by more than so many of its steps. ablate: also
    which tensors to widen, and what each tensor alone costs the output; measures dozens of models.
    """
    comparison = _isobit.GruComparison(weights, model, part_codes, zoneout, ablate)
    for x, steps, batch, swapped, lengths, name in _placed(weights, data, batch_first):
        comparison.add(x, steps, batch, swapped, lengths, name)
    return Comparison(comparison)


def tune(weights: GruWeights, data: Data, validate: Data, *, target: float | None = None, max_bytes: int | None = None,
         like: str | None = None, scale: str | None = None, method: str | None = None, table: str | None = None,
         rounding: str = "nearest_even", metric: Callable[[Gru], float] | None = None, batch_first: bool = False,
         progress: Progress = None, pool: ThreadPool | None = None) -> Tuning:
    """Searches bit widths, methods, scales and tables for a goal: a Tuning.

    data: to calibrate on, validate: to measure quality on, both as in quantize(). At most one goal: target, the least
    quality in dB (default 35), at the fewest bytes; max_bytes, the most bytes, at the best quality; like, a list of
    widths whose bytes and quality are to be matched. scale, method, table: the only ones to try. metric: a callable
    that gets a Gru and returns its quality, higher is better; target is in its units. progress: True for a bar of tqdm,
    or a callable that gets the share done, the number of models tried and the best quality so far, or None; where it
    returns False, the search ends.
    """
    if metric is not None and target is None:
        raise InvalidArgumentError("metric is given without target, the least number that will do; give it, too")
    calibrator = Calibrator(weights, method=method or "minmax")
    for x, lengths in _sequences(data):
        calibrator.observe(x, lengths, batch_first=batch_first, pool=pool)
    validation = _isobit.GruValidation(weights)
    for x, steps, batch, swapped, lengths, _ in _placed(weights, validate, batch_first):
        validation.add(x, steps, batch, swapped, lengths)

    with shown(progress, "tune") as report:

        def go_on(share: float, tried: int, best: float | None) -> bool:
            return report is None or report(share, tried, best) is not False

        return Tuning(*_isobit.tune(calibrator, validation, target, max_bytes, like, scale, method, table, rounding,
                                    metric, go_on, pool))


def quantize_static(weights: Array, data: Array | Iterable[Array], *, bias: Array | None = None,
                    clamp: tuple[float, float] | None = None, name: str = "layer", x_bits: int = 8, y_bits: int = 8,
                    weight_bits: int = 8, method: str = "minmax", scale: str = "pow2", rounding: str = "nearest_even",
                    after: Gru | None = None, pool: ThreadPool | None = None) -> StaticLinear:
    """StaticLinearCalibrator.observe() for all of `data`, then finish(): a StaticLinear of weights [N, K].

    data: an array [..., K] of float32, or an iterable of such.
    """
    calibrator = StaticLinearCalibrator(weights, bias, clamp=clamp, name=name)
    for x in (data,) if hasattr(data, "__dlpack__") else data:
        calibrator.observe(x, pool=pool)
    return calibrator.finish(x_bits=x_bits, y_bits=y_bits, weight_bits=weight_bits, method=method, scale=scale,
                             rounding=rounding, after=after)


def pack(model: str | PathLike[str], output: str | PathLike[str], *, bits: int | None = None, group: int | None = None,
         kind: str | None = None, method: str | None = None, scales: str | None = None, include: Sequence[str] = (),
         exclude: Sequence[str] = (), checkpoint_format: str | None = None, requantize: bool = False,
         weight_layout: str | None = None, groups: int | None = None, progress: Progress = None,
         pool: ThreadPool | None = None) -> Report:
    """Packs a model's matrices into low bits, or imports those of GPTQ, AWQ and GGUF: a Report of what became of each.

    model: npz, safetensors, GGUF or a directory. Defaults: bits 4, group 64 (0: a row), kind 'symmetric', scales 'f32'.
    include, exclude: patterns of names, as in a shell. weight_layout: 'oihw', 'ohwi' or 'iohw', of floats of 4
    dimensions that are weights of convolutions; None: they stay as they are. groups: of 'iohw'; None: 1. progress: True
    for a bar of tqdm, or a callable that gets the share done.
    """
    with shown(progress, "pack") as report:
        return Report(_isobit.pack(model, output, bits, group, kind, method, scales, list(include), list(exclude),
                                   checkpoint_format, requantize, weight_layout, groups, pool, report))


def verify(model: Gru | None = None, *, operation: str = "", outputs: int = 10_000_000, seed: int = 1,
           required: Sequence[str] = ()) -> Verification:
    """Every kernel that this machine can run against the reference, byte for byte: a Verification.

    model: a Gru; None: random layers of `operation` ('gru', 'linear', 'fp16_table'; empty: all). outputs: the least
    number that each kernel gives. required: paths that must be compared, 'avx2'.
    """
    return Verification(*_isobit.verify(model, operation, outputs, seed, list(required)))


def fingerprint() -> dict[str, str]:
    """A hash of each operation's results over a fixed corpus, by name: the same on every machine."""
    return dict(_isobit.fingerprint())


def supported() -> Report:
    """Operations, dtypes and kernels of this build, and which of them run here: a Report."""
    return Report(_isobit.supported())
