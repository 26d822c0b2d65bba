"""The server's side of secure sums: it sees masked contributions, and what they add up to.

Guarantee: the sum is the one that `InTheClear` has over the same clients, bit for bit, since it is
over integers, modulo more than any sum of that group can be.  Whoever is lost in a phase is left
out, as long as enough are left to take masks off (more than two thirds of the group); with fewer
there is no sum, and so nothing to be charged or released.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping

import numpy as np

from tacit.federated.cohort import Progress
from tacit.federation.engine import Clients, Told
from tacit.federation.flower import RecordDict
from tacit.federation.kept_sum import KeptSum
from tacit.federation.orders import Order, addressed
from tacit.federation.roster import Roster
from tacit.federation.sum_terms import (
    NAME_SIZE,
    SumTerms,
    first_message,
    later_message,
    message_in,
)
from tacit.mechanisms.fixed_point import HALF_CLIP_BIT, WHOLE_WEIGHT, Contribution
from tacit.secure_sum import RoundFailedError, SumServer

_TRIES = 3  # sums that are begun before a round is given up for now


class NoSum(ValueError):
    """A round that too few clients were left in: nothing of it is known, charged or released."""


class Masked:
    """A `Gathering` that sees sums alone."""

    def __init__(
        self, clients: Clients, roster: Roster, kept: KeptSum, told: Told = lambda what: None
    ) -> None:
        self._clients, self._roster, self._kept, self._told = clients, roster, kept, told

    def gather(
        self, order: Order, seeds: Mapping[str, bytes], progress: Progress
    ) -> tuple[Contribution, list[str]]:
        """The sum, and whose contributions are in it; `NoSum` if too few are left, again and again.

        A sum that this server had when it was stopped is not asked for again.  If it may have been
        known to it, the same clients are asked first: they help to unmask no other sum.
        """
        if (known := self._kept.read(order)) is not None:
            return known
        problem = None
        for number in range(_TRIES):
            before = self._kept.unmasked(order) if number < _TRIES - 1 else None
            invited = seeds if before is None else {one: seeds[one] for one in before}
            try:
                return self._gathered(order, invited, progress)
            except RoundFailedError as failure:
                problem = failure
                self._told(f"round {order.round}: {failure}; nothing of it was charged")
        raise NoSum(
            f"round {order.round} has no sum after {_TRIES} tries: {problem}; nothing of it was"
            " charged or released; go on with --resume when more clients are there"
        )

    def _gathered(
        self, order: Order, seeds: Mapping[str, bytes], progress: Progress
    ) -> tuple[Contribution, list[str]]:
        """One sum, by five trips to the clients."""
        name = secrets.token_bytes(NAME_SIZE)
        terms = SumTerms.of(order, self._roster, name)
        if not seeds.keys() <= terms.numbers.keys():
            raise ValueError("whose turn it is by the roster are not those who are to be asked")
        rules, shared = terms.rules, order.shared()
        invited = {terms.numbers[one]: terms.roster[terms.numbers[one]] for one in seeds}
        server = SumServer(terms.session, rules, invited)
        orders = ((one, addressed(shared, seed)) for one, seed in seeds.items())
        contents: Iterator[tuple[str, RecordDict]] = (
            (one, first_message(content, name, self._roster)) for one, content in orders
        )
        masked = rules.size * rules.width // 8
        largest = [0, 100 * rules.clients, masked, 0, 50 * rules.clients]
        for phase, size in enumerate(largest):
            told = progress if phase == 2 else None  # the one of their contributions
            self._trip(server, terms, order, contents, size, told)
            inbox = server.advance()
            if phase == 3:  # what comes next unmasks
                self._kept.begin(order, terms.ids(server.survivors))
            contents = _addressed(terms, name, inbox)
        total, survivors = terms.layout.from_vector(server.total), terms.ids(server.survivors)
        self._check(total, order, terms, self._roster.people_of(survivors))
        self._kept.write(order, total, survivors)
        return total, survivors

    def _trip(
        self,
        server: SumServer,
        terms: SumTerms,
        order: Order,
        contents: Iterator[tuple[str, RecordDict]],
        size: int,
        progress: Progress,
    ) -> None:
        """Send each client its message, and hand what comes back to the state machine."""
        for done, (client, content) in enumerate(self._clients.ask(contents, size + 4096), 1):
            try:
                server.receive(message_in(content), terms.numbers[client])
            except ValueError as mistake:
                self._told(f"round {order.round}: client {client} is left out: {mistake}")
            if progress is not None:
                progress(done)

    def _check(self, total: Contribution, order: Order, terms: SumTerms, people: int) -> None:
        """Raise if no honest contributions add up to this; whose is wrong cannot be seen.

        Of contributions with noise of their own, anything may be the sum.
        """
        if terms.rules.limit is None:
            return
        update, most = total.update, people * order.plan.grid(order.clip_state).limit
        bits = people * HALF_CLIP_BIT
        is_right = (
            max(int(update.max()), -int(update.min())) < most
            and 0 <= total.weight <= people * WHOLE_WEIGHT
            and bool((np.abs(total.bits) <= bits).all())
        )
        if not is_right:
            raise RoundFailedError(
                f"the sum of {people} contributions is beyond what they can add up to, so that one"
                " of them at least was not honest"
            )


def _addressed(
    terms: SumTerms, name: bytes, inbox: Mapping[int, bytes]
) -> Iterator[tuple[str, RecordDict]]:
    ids = {number: one for one, number in terms.numbers.items()}
    return ((ids[number], later_message(name, message)) for number, message in inbox.items())
