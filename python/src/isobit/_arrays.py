# SPDX-License-Identifier: Apache-2.0
"""Arrays of the library that the caller uses."""
import sys
from collections.abc import Sequence
from typing import Any

_TORCH_TYPES = {"s8": "int8", "u8": "uint8", "s16": "int16", "u16": "uint16", "s32": "int32", "u32": "uint32",
                "f16": "float16", "bf16": "bfloat16", "f32": "float32"}


def like(array: Any, exporter: Any) -> Any:
    """`exporter`, which speaks DLPack, as an array of the library that `array` belongs to; without a copy."""
    library = sys.modules[type(array).__module__.partition(".")[0]]
    from_dlpack = getattr(library, "from_dlpack", None)
    if from_dlpack is None:  # jax has it in jax.dlpack and by the array API
        from_dlpack = array.__array_namespace__().from_dlpack
    return from_dlpack(exporter)


# ---- Tensors of torch on a CUDA device. DLPack says neither which stream their work is in nor how to make more of
# them; torch does, and whoever has a tensor has imported it.


def is_tensor(array: Any) -> bool:
    """Whether it is a torch.Tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def stream(tensor: Any) -> tuple[Any, int]:
    """torch's current stream on the tensor's device, and the cudaStream_t behind it."""
    current = sys.modules["torch"].cuda.current_stream(tensor.device)
    return current, current.cuda_stream


def empty(tensor: Any, dtype: str, shape: Sequence[int]) -> Any:
    """A new tensor on the same device, from the current stream's memory."""
    torch = sys.modules["torch"]
    return torch.empty(shape, dtype=getattr(torch, _TORCH_TYPES[dtype]), device=tensor.device)


def on_device(tensor: Any, numbers: Sequence[int]) -> Any:
    """The numbers in 64 bits on the tensor's device, copied in the order of the current stream: nothing waits."""
    torch = sys.modules["torch"]
    return torch.tensor(numbers, dtype=torch.int64, device="cpu").pin_memory().to(tensor.device, non_blocking=True)


def order(tensor: Any, numbers: Sequence[int]) -> Any:
    """The same, there when this returns: for calls on any stream."""
    torch = sys.modules["torch"]
    return torch.tensor(numbers, dtype=torch.int64, device=tensor.device)


def permuted(tensor: Any, columns: Any) -> Any:
    """Column j becomes column columns[j] of the tensor; in the order of the current stream."""
    return tensor.index_select(-1, columns)
