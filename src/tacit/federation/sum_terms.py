"""What a secure sum is of, by what server and clients both know.

The group is whose turn it is in the order's round, by the roster, or all silos.  Up to a third of
it may drop out; fewer where the plan's noise is that of more clients, and nobody where it claims
that silos sample.  The session's name has a digest of the whole order (model and plan included) and
of the roster, so clients that were sent different models, or have different rosters, have no mask
in common: a server that sends one client a model on which all others' updates vanish gets no sum.

The messages of a sum, all in one record each:

    first     an order, and `sum`: a name that the server drew at random, the roster's digest
    later     `sum`: the name again; `message`: the bytes of the server's state machine
    answers   `message`: the bytes of the client's
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from tacit.federation.flower import ConfigRecord, RecordDict
from tacit.federation.orders import Order, from_record, to_record
from tacit.federation.roster import Roster
from tacit.mechanisms.samplers import MinSeparationSampler
from tacit.secure_sum import ContributionLayout, Layout, NoisyLayout, Session, SumRules

SMALLEST_GROUP = 3  # of two, each could tell the other's update from the sum
NAME_SIZE = 16  # bytes


@dataclass(frozen=True)
class SumTerms:
    """One attempt at one round's sum: which, of whom, and of what numbers."""

    session: Session
    rules: SumRules
    layout: Layout
    roster: Mapping[int, bytes]  # the group's signing keys, by number
    numbers: Mapping[str, int]  # the group's

    @classmethod
    def of(cls, order: Order, roster: Roster, name: bytes) -> Self:
        """The terms that follow from an order; `ValueError` if it cannot be summed securely."""
        group = _silos(order, roster) if roster.silos else _turn(order, roster)
        layout, rules = _layout_and_rules(order, roster, len(group))
        facts = hashlib.sha256(f"{digest_of(order)} {roster.digest} {name.hex()}".encode())
        return cls(
            session=Session(f"{order.run} {facts.hexdigest()}", order.round, order.attempt),
            rules=rules,
            layout=layout,
            roster={roster.numbers[one]: roster.keys[one] for one in group},
            numbers={one: roster.numbers[one] for one in group},
        )

    def ids(self, numbers: Iterable[int]) -> list[str]:
        """The ids of some of the group, sorted."""
        names = {number: one for one, number in self.numbers.items()}
        return sorted(names[number] for number in numbers)


def _turn(order: Order, roster: Roster) -> list[str]:
    """Whose turn it is in the order's round: all of them are in its sum."""
    sampler = order.plan.sampler
    if not isinstance(sampler, MinSeparationSampler) or sampler.share != 1:
        raise ValueError(
            "a secure sum needs everybody whose turn it is: plan.cohort must be"
            " plan.population / plan.separation, and the population those who are enrolled;"
            f" got {sampler.describe()}"
        )
    groups = roster.groups(sampler.separation)
    if (fewest := min(map(len, groups))) < SMALLEST_GROUP:
        raise ValueError(
            f"a secure sum needs at least {SMALLEST_GROUP} clients, and of {len(roster.keys)}"
            f" in {sampler.separation} groups there are {fewest} in the smallest: enrol more,"
            " or lower --min-separation"
        )
    return groups[order.round % sampler.separation]


def _silos(order: Order, roster: Roster) -> list[str]:
    """All silos: each draws its own people, in every round."""
    if order.plan.shared_noise is not None:
        raise ValueError("silos share no noise, whose shares are of one person each")
    if order.plan.population != roster.people:
        raise ValueError(
            f"the plan's population of {order.plan.population:,} is not that of all silos in the"
            f" roster, {roster.people:,}"
        )
    if len(roster.keys) < SMALLEST_GROUP:
        raise ValueError(
            f"a secure sum needs at least {SMALLEST_GROUP} silos, and {len(roster.keys)} are"
            " enrolled"
        )
    return list(roster.keys)


def _layout_and_rules(order: Order, roster: Roster, clients: int) -> tuple[Layout, SumRules]:
    """What is summed, and how many have to be in it.

    As many as the plan's noise is made for; and where silos' sampling is claimed, all of them.
    """
    noise, plan = order.plan.shared_noise, order.plan
    if noise is None:
        most = max(roster.silos.values(), default=1)
        grid = plan.grid(order.clip_state)
        bounded = ContributionLayout.for_grid(grid, len(order.weights), plan.bits, most)
        every = 0 if isinstance(plan.sampler, MinSeparationSampler) else clients
        return bounded, SumRules.against_a_lying_server(
            clients, bounded.size, bounded.limit, survivors=every
        )
    plan.refuse_few(clients, order.round)
    noisy = NoisyLayout(noise.rotation.padded)
    return noisy, SumRules.against_a_lying_server(
        clients, noisy.size, None, survivors=noise.survivors, width=noise.width
    )


def digest_of(order: Order) -> str:
    """Of all that everybody's order has in common."""
    return replace(order, seed=b"").digest


# On the way.


def first_message(order: RecordDict, name: bytes, roster: Roster) -> RecordDict:
    """An order whose answer is to be summed securely."""
    return RecordDict({**order, "sum": ConfigRecord({"name": name, "roster": roster.digest})})


def later_message(name: bytes, message: bytes) -> RecordDict:
    """What a client of a sum is told in the next phase."""
    return RecordDict({"sum": ConfigRecord({"name": name}), "message": to_record(message)})


def name_in(content: RecordDict) -> bytes:
    """Which sum a message is about; `ValueError` if it is about none."""
    record = content.get("sum")
    name = record.get("name") if isinstance(record, ConfigRecord) else None
    if not isinstance(name, bytes) or len(name) != NAME_SIZE:
        raise ValueError("the message is not about a secure sum")
    return name


def to_answer(message: bytes) -> RecordDict:
    """What a client of a sum says."""
    return RecordDict({"message": to_record(message)})


def message_in(content: RecordDict) -> bytes:
    """The bytes of a state machine in a message."""
    if "message" not in content:
        raise ValueError("the message is empty: it was refused")
    return from_record(content, "message")
