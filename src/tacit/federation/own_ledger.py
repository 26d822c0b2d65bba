"""What a client has given, by its own record on its own disk, which it trusts more than a server.

A row is on the disk before an answer is made.  The same order again gets the same answer again,
which tells nobody anything new; another order for the same attempt, for an earlier round, or too
soon, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from tacit.federation.orders import Order
from tacit.mechanisms.samplers import TurnSampler
from tacit.privacy import documents, durable


class Refused(ValueError):
    """An order that a client does not carry out, and why."""


class _Row(TypedDict):
    run: str
    round: int
    attempt: int
    separation: int
    order: str  # its digest


@dataclass(frozen=True)
class Consent:
    """What a client agrees to: how often in all, how rarely at least, and whether without noise."""

    most: int | None = None  # contributions over all runs, repeated attempts among them
    separation: int = 1
    without_noise: bool = False


class OwnLedger:
    """All contributions of a client so far, over all runs."""

    def __init__(self, path: Path, consent: Consent) -> None:
        self._path, self._consent = path, consent
        self._rows = documents.read_lines(path, _Row)

    def __len__(self) -> int:
        return len(self._rows)

    def give(self, order: Order) -> None:
        """Put a contribution on record, or raise `Refused`; on the disk when it returns.

        Another attempt at the last round counts as one more contribution: the server has to charge
        it as one.
        """
        separation = agreed(order, self._consent)
        rows = [row for row in self._rows if row["run"] == order.run]
        for row in rows:
            if (row["round"], row["attempt"]) == (order.round, order.attempt):
                if row["order"] != order.digest:
                    raise Refused(
                        f"round {order.round}, attempt {order.attempt} was answered before, to"
                        " another order"
                    )
                return
        if rows:
            last = rows[-1]
            if (order.round, order.attempt) < (last["round"], last["attempt"]):
                raise Refused(f"round {order.round} is over: the last was {last['round']}")
            needed = max(separation, last["separation"])
            if last["round"] < order.round < last["round"] + needed:
                raise Refused(
                    f"round {order.round} comes too soon: the last was {last['round']}, and"
                    f" {needed} rounds have to lie between"
                )
        if self._consent.most is not None and not len(self._rows) < self._consent.most:
            raise Refused(f"this client has given all {self._consent.most} contributions it gives")
        row = _Row(
            run=order.run,
            round=order.round,
            attempt=order.attempt,
            separation=separation,
            order=order.digest,
        )
        durable.append_line(self._path, row)
        self._rows.append(row)


def agreed(order: Order, consent: Consent) -> int:
    """The plan's separation, if the plan is one that a client takes part in; or `Refused`."""
    plan = order.plan
    if plan.unit != "user":
        raise Refused(f"the plan must protect users, and protects a {plan.unit}")
    if not plan.is_private and not consent.without_noise:
        raise Refused("the plan adds no noise; --without-noise takes part nevertheless")
    separation = plan.sampler.separation if isinstance(plan.sampler, TurnSampler) else 1
    if separation < consent.separation:
        raise Refused(
            f"the plan asks the same people after {separation} rounds, and this client answers"
            f" after {consent.separation} at the earliest"
        )
    return separation
