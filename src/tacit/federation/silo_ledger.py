"""What each person of a silo has given, by the silo's own record on its own disk.

A row is on the disk before an answer is made, and says who is in it.  Whoever is drawn and has
given enough, or gave too recently, is left out, which concerns nobody else: a limit is about the
rounds of one person alone.  The same order again has the same people again, however they were
drawn, so that no server sees two samples of one round.

It is as private as the people's text: whoever knows it knows whom the silo drew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypedDict

from tacit.federation.orders import Order
from tacit.federation.own_ledger import Consent, Refused, agreed
from tacit.privacy import documents, durable


class _Row(TypedDict):
    run: str
    round: int
    attempt: int
    separation: int
    order: str  # its digest
    people: list[str]


class SiloLedger:
    """All sums that a silo has given so far, over all runs, and of whom each is.

    `consent` is that of each person: `most` and `separation` are counted for everybody alone.
    """

    def __init__(self, path: Path, consent: Consent) -> None:
        self._path, self._consent = path, consent
        self._given: Counter[str] = Counter()
        self._last: dict[tuple[str, str], _Row] = {}  # by run and person
        self._rows: dict[str, list[_Row]] = {}  # by run
        for row in documents.each_line(path, _Row):
            self._remember(row)

    def __len__(self) -> int:
        """How many contributions of a person were given."""
        return self._given.total()

    def give(self, order: Order, draw: Callable[[], Iterable[str]]) -> list[str]:
        """Whose contributions the answer is the sum of; or `Refused`.  On the disk when it returns.

        `draw` is asked for those whom the sampler takes, if this order was not answered before.
        """
        separation = agreed(order, self._consent)
        rows = self._rows.get(order.run, [])
        for row in rows:
            if (row["round"], row["attempt"]) == (order.round, order.attempt):
                if row["order"] != order.digest:
                    raise Refused(
                        f"round {order.round}, attempt {order.attempt} was answered before, to"
                        " another order"
                    )
                return row["people"]
        if rows and (order.round, order.attempt) < (rows[-1]["round"], rows[-1]["attempt"]):
            raise Refused(f"round {order.round} is over: the last was {rows[-1]['round']}")
        row = _Row(
            run=order.run,
            round=order.round,
            attempt=order.attempt,
            separation=separation,
            order=order.digest,
            people=sorted(one for one in draw() if self._may_give(one, order, separation)),
        )
        durable.append_line(self._path, row)
        self._remember(row)
        return row["people"]

    def _may_give(self, person: str, order: Order, separation: int) -> bool:
        """Whether a person has not given all, and not in one of the last rounds before this one."""
        if self._consent.most is not None and not self._given[person] < self._consent.most:
            return False
        last = self._last.get((order.run, person))
        if last is None or last["round"] == order.round:
            return True
        return order.round >= last["round"] + max(separation, last["separation"])

    def _remember(self, row: _Row) -> None:
        self._rows.setdefault(row["run"], []).append(row)
        for person in row["people"]:
            self._given[person] += 1
            self._last[row["run"], person] = row
