# SPDX-License-Identifier: Apache-2.0
"""What functions find out: text for people, data for programs."""
from __future__ import annotations

import json
from typing import Any

from ._isobit import Gru

Said = tuple[str, str, list[str]]


class Report:
    """What was found: str() is the text for people, `data` the same as dict and list, `warnings` what to look at."""

    def __init__(self, said: Said) -> None:
        self._text, self._json, self.warnings = said

    @property
    def data(self) -> Any:
        return json.loads(self._json)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<isobit.{type(self).__name__}>\n{self._text}"


class Comparison(Report):
    """An integer GRU beside its float model, tensor by tensor: SQNR, error that arises there, clipping."""


class Verification(Report):
    """What verify() compared. `ok`: nothing differs, nothing that was required is missing; else `failure` says why."""

    def __init__(self, failure: str, said: Said) -> None:
        super().__init__(said)
        self.failure = failure

    @property
    def ok(self) -> bool:
        return not self.failure


class Tuning(Report):
    """What tune() found. `model`: the chosen Gru, or None. `reached`: it meets the goal; else `failure` says why.

    `chosen` and the entries of `front`, by descending quality, are dicts: bits, method, table and scale as quantize()
    takes them, quality in dB (or the metric's number), bytes of the saved model. `interrupted`: progress ended it.
    """

    def __init__(self, model: Gru | None, reached: bool, interrupted: bool, chosen: dict[str, Any],
                 front: list[dict[str, Any]], failure: str, said: Said) -> None:
        super().__init__(said)
        self.model, self.reached, self.interrupted = model, reached, interrupted
        self.chosen, self.front, self.failure = chosen, front, failure
