# SPDX-License-Identifier: Apache-2.0
"""What functions find out: text for people, data for programs."""
from __future__ import annotations

import json
from os import PathLike
from typing import Any

from . import _isobit
from ._isobit import Gru, GruComparison, GruTuneResult

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
    """An integer GRU beside its float model, tensor by tensor: SQNR, error that arises there, clipping.

    A notebook shows it as a table; save_html() writes all of it as a page.
    """

    def __init__(self, compared: GruComparison) -> None:
        super().__init__(compared.finish())
        self._compared = compared
        if compared.ablation is not None:
            self._text += "\n" + compared.ablation[0]

    @property
    def data(self) -> Any:
        found = super().data
        if self._compared.ablation is not None:
            found["ablation"] = json.loads(self._compared.ablation[1])
        return found

    def save_html(self, path: str | PathLike[str], *, title: str = "", tuning: Tuning | None = None) -> None:
        """One HTML file below 1 MB without scripts: figures, tensors, histograms, errors over time, tables.

        title: any text. tuning: a search whose front is to be shown, too. The file appears whole or not at all.
        """
        search = None if tuning is None else tuning._search
        _isobit.save_text(path, _isobit.page(self._compared, search, title, True))

    def _repr_html_(self) -> str:
        return _isobit.page(self._compared, None, "", False)


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
                 front: list[dict[str, Any]], failure: str, said: Said, search: GruTuneResult) -> None:
        super().__init__(said)
        self._search = search
        self.model, self.reached, self.interrupted = model, reached, interrupted
        self.chosen, self.front, self.failure = chosen, front, failure

    def save_html(self, path: str | PathLike[str], *, title: str = "") -> None:
        """One HTML file without scripts: the front, what was chosen. It appears whole or not at all."""
        _isobit.save_text(path, _isobit.page(None, self._search, title, True))

    def _repr_html_(self) -> str:
        return _isobit.page(None, self._search, "", False)
