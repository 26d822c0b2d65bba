"""Who took part in which round, by the server's own record: `private/participations.jsonl`.

A row is on the disk before the round's sum leaves the engine, and so before its release is charged.
A guarantee by minimum separation holds only if nobody's contribution is in two rounds that are
closer than that, so the record is asked before anybody is: whatever happened to the run's other
files, nobody takes part too early.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TypedDict

from tacit.privacy import documents, durable
from tacit.privacy.ledger import Ledger

FILE = "participations.jsonl"


class _Row(TypedDict):
    round: int
    attempt: int
    clients: list[str]


class Participations:
    """The record, row by row; a round that was computed again has a row for each time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = documents.read_lines(path, _Row)

    def of(self, round: int, attempt: int) -> list[str]:
        """Who took part in an attempt, the last time; nobody in one that is not on record."""
        own = (
            row
            for row in reversed(self._rows)
            if (row["round"], row["attempt"]) == (round, attempt)
        )
        return next((row["clients"] for row in own), [])

    def refuse_early(self, round: int, clients: Iterable[str], separation: int) -> None:
        """Raise if one of the clients took part less than `separation` rounds before `round`."""
        asked = set(clients)
        for row in self._rows:
            if round - separation < row["round"] < round and asked.intersection(row["clients"]):
                raise ValueError(
                    f"a client of round {round} took part in round {row['round']}, and nobody may"
                    f" again within {separation} rounds: the record {self._path} and the plan"
                    " contradict each other"
                )

    def record(self, round: int, attempt: int, clients: Collection[str]) -> None:
        """Remember who is in a sum; on the disk when it returns."""
        row: _Row = {"round": round, "attempt": attempt, "clients": sorted(clients)}
        durable.append_line(self._path, row)
        self._rows.append(row)

    def refuse_behind(self, ledger: Ledger) -> None:
        """Raise if a round was charged of which it is not on record who took part."""
        known = {(row["round"], row["attempt"]) for row in self._rows}
        for entry in ledger.entries:
            is_own = entry.kind == "round" and entry.branch == ledger.header.branch
            if is_own and (entry.round, entry.attempt) not in known:
                raise ValueError(
                    f"{self._path} lacks round {entry.round}, attempt {entry.attempt}, which the"
                    " ledger has: without it nobody knows who may take part again"
                )
