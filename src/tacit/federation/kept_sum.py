"""The last secure sum, in `private/`, until its round is over: a killed server needs no other.

    secure-sums.jsonl   whose sum is about to be unmasked, before it is
    secure-sum.npz      the sum, once it is known and before anything of it is charged

Clients help to unmask one sum of a round, so the server must be able to go on with the one it had.
The sum is as private as the run key beside it, with which it follows from what is released.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import TypedDict

import numpy as np

from tacit.federation.orders import Order
from tacit.federation.sum_terms import digest_of
from tacit.mechanisms.fixed_point import Contribution
from tacit.privacy import documents, durable

_BEGUN, _SUM = "secure-sums.jsonl", "secure-sum.npz"


class _Row(TypedDict):
    round: int
    attempt: int
    order: str  # a digest of what all clients' orders have in common
    clients: list[str]


class KeptSum:
    """What a server knows of the sums of one run, in the run's private folder."""

    def __init__(self, private: Path) -> None:
        self._begun, self._sum = private / _BEGUN, private / _SUM
        self._rows = documents.read_lines(self._begun, _Row)

    def begin(self, order: Order, clients: list[str]) -> None:
        """Remember whose sum is about to be unmasked; on the disk when it returns."""
        row = _row(order, clients)
        durable.append_line(self._begun, row)
        self._rows.append(row)

    def unmasked(self, order: Order) -> list[str] | None:
        """Whose sum of this order may have been unmasked, the last time; None if nobody's was."""
        same = (row for row in reversed(self._rows) if _is_of(row, order))
        return next((row["clients"] for row in same), None)

    def write(self, order: Order, total: Contribution, clients: list[str]) -> None:
        """Keep the sum; the one before it is gone."""
        data = io.BytesIO()
        weight = np.array([total.weight], np.int64)
        row = np.frombuffer(json.dumps(_row(order, clients)).encode(), np.uint8)
        np.savez(data, row=row, update=total.update, weight=weight, bits=total.bits)
        durable.write_whole(self._sum, data.getvalue())

    def read(self, order: Order) -> tuple[Contribution, list[str]] | None:
        """The sum of this very order and whose it is, if it is the last one."""
        if not self._sum.is_file():
            return None
        try:
            with np.load(io.BytesIO(self._sum.read_bytes()), allow_pickle=False) as arrays:
                row = documents.fitted(
                    documents.parse_json(arrays["row"].tobytes(), self._sum), _Row, self._sum
                )
                total = Contribution(arrays["update"], int(arrays["weight"][0]), arrays["bits"])
        except (OSError, KeyError, EOFError, zipfile.BadZipFile) as problem:
            raise documents.DamagedFile(self._sum, str(problem)) from None
        return (total, row["clients"]) if _is_of(row, order) else None

    def forget(self) -> None:
        """Remove the sum, when the training is over."""
        self._sum.unlink(missing_ok=True)


def _row(order: Order, clients: list[str]) -> _Row:
    return _Row(round=order.round, attempt=order.attempt, order=digest_of(order), clients=clients)


def _is_of(row: _Row, order: Order) -> bool:
    own = (order.round, order.attempt, digest_of(order))
    return (row["round"], row["attempt"], row["order"]) == own
