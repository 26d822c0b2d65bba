"""Which secure sums a client was in, by its own record on its own disk.

A session is joined once.  Two sums of one round with different people in them give away their
difference, which may be one person's update.  So a client helps to unmask one sum of a round: as
often as it is asked, if it is the same one (the same order and the same survivors, which make the
same sum: a server that was killed before it had it written down asks again), and no other unless
its owner has said so.  Every row is on the disk before the message is made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypedDict

from tacit.corpus.hashing import derived
from tacit.federation.orders import Order
from tacit.federation.sum_terms import digest_of
from tacit.privacy import documents, durable
from tacit.secure_sum import RefusedError, Session


class _Row(TypedDict):
    run: str
    round: int
    act: Literal["join", "reveal"]
    of: str  # joined: the session's own name; revealed: a digest of order and survivors


class SumLedger:
    """All sums that a client joined or helped to unmask, over all runs."""

    def __init__(self, path: Path, sums_per_round: int = 1) -> None:
        if not sums_per_round >= 1:
            raise ValueError(f"sums_per_round must be at least 1, got {sums_per_round}")
        self._path, self.sums_per_round = path, sums_per_round
        self._rows = documents.read_lines(path, _Row)
        self._joined = {row["of"] for row in self._rows if row["act"] == "join"}

    def join(self, order: Order, session: Session) -> None:
        """Put it on record, or raise `RefusedError` if the client was in the session before."""
        if session.run in self._joined:
            raise RefusedError(f"this client was in this sum of round {order.round} before")
        self._append(order, "join", session.run)
        self._joined.add(session.run)

    def reveal(self, order: Order, survivors: list[str]) -> None:
        """Put it on record that this sum may be known, or raise `RefusedError`."""
        which = derived("a sum", str(order.attempt), digest_of(order), *survivors)
        known = {
            row["of"]
            for row in self._rows
            if row["act"] == "reveal" and (row["run"], row["round"]) == (order.run, order.round)
        }
        if which in known:
            return
        if len(known) >= self.sums_per_round:
            raise RefusedError(
                f"this client has helped to unmask {len(known)} sum(s) of round {order.round}, and"
                " another one, of other survivors, would show the difference; its owner can allow"
                " it with --sums-per-round"
            )
        self._append(order, "reveal", which)

    def _append(self, order: Order, act: Literal["join", "reveal"], of: str) -> None:
        row = _Row(run=order.run, round=order.round, act=act, of=of)
        durable.append_line(self._path, row)
        self._rows.append(row)


class RoundLog:
    """The ledger as one order's client sees it (`tacit.secure_sum.SessionLog`)."""

    def __init__(self, ledger: SumLedger, order: Order, survivors: Callable[[], list[str]]) -> None:
        self._ledger, self._order, self._survivors = ledger, order, survivors

    def join(self, session: Session) -> None:
        """A session that the client was in before is refused."""
        self._ledger.join(self._order, session)

    def reveal(self, session: Session) -> None:
        """Another sum of the same round is refused."""
        self._ledger.reveal(self._order, self._survivors())
