# SPDX-License-Identifier: Apache-2.0
"""Progress of long calls: a callback, or a bar of tqdm."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ._errors import FailedPreconditionError

# What a caller passes: a callable of its own, True for a bar of tqdm, None or False for nothing.
Progress = Callable[..., Any] | bool | None


@contextlib.contextmanager
def shown(progress: Progress, what: str) -> Iterator[Callable[..., Any] | None]:
    """The callable that a call reports to; its first argument is the share done."""
    if progress is None or progress is False:
        yield None
        return
    if progress is not True:
        yield progress
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise FailedPreconditionError("progress is True, which needs tqdm; pip install tqdm, or pass a callable") from None
    with tqdm(total=100, desc=what, unit="%", bar_format="{desc}: {percentage:3.0f}%|{bar}| {postfix}") as bar:

        def report(share: float, tried: int | None = None, best: float | None = None) -> None:
            bar.update(100 * share - bar.n)
            if tried is not None:
                bar.set_postfix_str(f"{tried} models" + ("" if best is None else f", best {best:.4g}"))

        yield report
        report(1.0)  # a search may end before its last estimate
