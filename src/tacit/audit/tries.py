"""How often a run was audited, so that trying again makes no evidence.

A bound that holds with a confidence of 95% is wrong once in twenty times, so auditing twenty times
with other settings and showing the bound that suits shows nothing.  Therefore every try is
written down and synced before anything is looked at, and the allowed error alpha = 1 - confidence
is spent over the tries: the n-th distinct one may err with a probability of alpha / 2^n.

Guarantee: if the tries' settings do not depend on the coins, all bounds of a run hold together with
the least confidence that was asked for, however many there are, since alpha/2 + alpha/4 + ... <=
alpha.  For tries that look at the same model this is so even if each is chosen by the results
before it.  The guesses do not depend on the confidence (see `tacit.audit.language`), so all of
these bounds follow from one count of right guesses: if any of them errs, the one with the least
confidence does.

An exact repetition is the same try and has the same result.

A gate must not be passed by a later, weaker try either.  The bounds that were found are written
down too, and `highest` is the largest of them: what an earlier try has shown remains shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from tacit.privacy import checks, documents, durable

TRIES_FILE = "audits.jsonl"  # in the private folder of a run

_Row = TypedDict(  # a try that begins, or what it has shown
    "_Row",
    {
        "try": int,
        "asked": float,
        "confidence": float,
        "settings": dict[str, Any],
        "lower_bound": float,
    },
    total=False,
)


@dataclass(frozen=True)
class _Try:
    """The n-th distinct try, and the confidence that its bound is computed with."""

    number: int
    asked: float

    @property
    def confidence(self) -> float:
        return _spent(self.asked, self.number)


def _spent(confidence: float, number: int) -> float:
    """1 - (1 - confidence) / 2^number: what the try of this number must hold with."""
    checks.open_unit("confidence", confidence)
    checks.whole("number", number, at_least=1)
    left = 1 - (1 - confidence) * 0.5**number
    if not left < 1:
        raise ValueError(
            f"number must be a try that can still show something, got {number}: the confidence of"
            f" {confidence:g} is spent on the tries before it"
        )
    return left


class Tries:
    """The tries of one run, in a file of its private folder that only ever grows."""

    def __init__(self, path: Path, at_least: int = 0) -> None:
        """A file with fewer than `at_least` tries, as a published audit states, is refused."""
        self._path, self._at_least = path, at_least

    def next(self, settings: Mapping[str, Any], confidence: float) -> _Try:
        """What `begin` would make of these settings; nothing is recorded."""
        return self._try(self._rows(), settings, confidence)

    def begin(self, settings: Mapping[str, Any], confidence: float) -> _Try:
        """Record a try with these settings, synced, unless it is a repetition."""
        checks.open_unit("confidence", confidence)
        with self._locked():
            rows = self._rows()
            own = self._try(rows, settings, confidence)
            if own.number > _count(rows):
                row = {"try": own.number, "asked": confidence, "settings": dict(settings)}
                row["confidence"] = own.confidence
                durable.append_line(self._path, row)
        return own

    def finish(self, done: _Try, lower_bound: float) -> None:
        """Record what a try has shown, synced; once."""
        checks.non_negative("lower_bound", lower_bound)
        row = {"try": done.number, "lower_bound": lower_bound}
        with self._locked():
            if row not in self._rows():
                durable.append_line(self._path, row)

    def highest(self) -> float:
        """The largest bound that any try has shown; 0 before the first."""
        return max((row.get("lower_bound", 0.0) for row in self._rows()), default=0.0)

    def _try(self, rows: list[_Row], settings: Mapping[str, Any], confidence: float) -> _Try:
        """The recorded try with these settings, or else the next one."""
        count = _count(rows)
        if count < self._at_least:
            raise ValueError(
                f"{self._path} has {count} tries, and the run's audit.json speaks of try"
                f" {self._at_least}: tries were removed, so no confidence can be stated any more"
            )
        # By way of JSON, as the file has been.
        asked = json.loads(json.dumps(dict(settings), allow_nan=False))
        for row in rows:
            if row.get("settings") == asked and row["asked"] == confidence:
                return _Try(row["try"], confidence)
        return _Try(count + 1, confidence)

    def _rows(self) -> list[_Row]:
        rows = documents.read_lines(self._path, _Row)
        numbers = [row.get("try") for row in rows if "settings" in row]
        known = all("lower_bound" in row or "asked" in row for row in rows)
        if not known or numbers != list(range(1, len(numbers) + 1)):
            raise ValueError(f"{self._path} is damaged: it does not number its tries from 1 on")
        return rows

    def _locked(self) -> AbstractContextManager[int]:
        """Two audits at once are two tries."""
        return durable.locked(self._path.with_name(f".{self._path.name}.lock"))


def _count(rows: list[_Row]) -> int:
    return sum("settings" in row for row in rows)
