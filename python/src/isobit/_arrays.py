# SPDX-License-Identifier: Apache-2.0
"""Arrays of the library that the caller uses."""
import sys
from typing import Any


def like(array: Any, exporter: Any) -> Any:
    """`exporter`, which speaks DLPack, as an array of the library that `array` belongs to; without a copy."""
    library = sys.modules[type(array).__module__.partition(".")[0]]
    from_dlpack = getattr(library, "from_dlpack", None)
    if from_dlpack is None:  # jax has it in jax.dlpack and by the array API
        from_dlpack = array.__array_namespace__().from_dlpack
    return from_dlpack(exporter)
