"""A client whose updates are summed securely: no server ever sees one of them.

It computes its contribution as any client does, and before it says anything: whoever is lost while
it computes is lost before masks are shared.  What the sum is of follows from the order and the
roster that its owner confirmed (`sum_terms`).  An order in the clear is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tacit.federation.client import Answering, Tell
from tacit.federation.flower import ClientApp, ConfigRecord, Context, Message, RecordDict
from tacit.federation.keys import ClientKey
from tacit.federation.orders import Order
from tacit.federation.own_ledger import Refused
from tacit.federation.roster import Roster
from tacit.federation.sum_ledger import RoundLog, SumLedger
from tacit.federation.sum_terms import (
    SMALLEST_GROUP,
    SumTerms,
    message_in,
    name_in,
    to_answer,
)
from tacit.secure_sum import SumClient

_Verb = Callable[[bytes], bytes]


@dataclass
class _Sum:
    """A sum that this client is in: what it does next, and what it has answered last."""

    name: bytes
    verbs: list[_Verb]  # that are left
    last: tuple[bytes, RecordDict]  # a message, and the answer to it


@dataclass
class SumMember:
    """Takes part in secure sums, one after the other; what is under way is in memory only."""

    trainer: Answering
    key: ClientKey
    roster: Roster
    ledger: SumLedger
    fewest: int = SMALLEST_GROUP
    _sum: _Sum | None = field(default=None, init=False)

    def answer(self, content: RecordDict) -> RecordDict:
        """The next message of a sum, or `ValueError`; the same again to the same message."""
        if "sum" not in content:
            raise Refused("the order is in the clear, and this client takes part in secure sums")
        name = name_in(content)
        message = b"" if "order" in content else message_in(content)
        if self._sum is not None and self._sum.name == name and self._sum.last[0] == message:
            return self._sum.last[1]
        if "order" in content:
            self._sum = None
            self._sum = self._begun(name, content)
        else:
            self._go_on(name, message)
        assert self._sum is not None
        return self._sum.last[1]

    def _begun(self, name: bytes, content: RecordDict) -> _Sum:
        """Compute the contribution, and say that this client is there."""
        invitation = content["sum"]
        assert isinstance(invitation, ConfigRecord)
        if invitation.get("roster") != self.roster.digest:
            raise Refused("the server's roster is not the one that this client's owner confirmed")
        order = Order.read(RecordDict({k: v for k, v in content.items() if k != "sum"}))
        terms = SumTerms.of(order, self.roster, name)
        own = terms.numbers.get(self.key.id)
        if own is None:
            raise Refused(f"it is not this client's turn in round {order.round}")
        if terms.rules.survivors < self.fewest:
            raise Refused(
                f"{terms.rules.survivors} clients may be enough for a sum of round {order.round},"
                f" and this client hides among {self.fewest} at least"
            )
        if order.plan.shared_noise is not None and self.ledger.sums_per_round > 1:
            raise Refused(
                "the difference of two sums with the same noise shows an update with a share of it"
                " alone: leave --sums-per-round out"
            )
        vector = terms.layout.to_vector(self.trainer.answer(order).contribution)
        log = RoundLog(self.ledger, order, lambda: terms.ids(client.survivors))
        client = SumClient(own, self.key.signing, terms.roster, terms.session, terms.rules, log)
        answer = to_answer(client.advertise())
        mask = lambda shares: client.mask(shares, vector)  # noqa: E731
        return _Sum(name, [client.share, mask, client.confirm, client.reveal], (b"", answer))

    def _go_on(self, name: bytes, message: bytes) -> None:
        """The next phase; what is refused changes nothing."""
        under_way = self._sum
        if under_way is None or under_way.name != name or not under_way.verbs:
            raise Refused("this client is not in that sum (any more)")
        under_way.last = message, to_answer(under_way.verbs[0](message))
        del under_way.verbs[0]


def member_app(member: SumMember, tell: Tell) -> ClientApp:
    """The app that takes part in sums; what is refused has an answer without content."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        try:
            content = member.answer(message.content)
        except ValueError as refusal:
            tell(f"refused: {refusal}")
            return Message(RecordDict(), reply_to=message)
        if "order" in message.content:
            tell("an update is computed, to be summed with others")
        return Message(content, reply_to=message)

    return app


def ledger_beside(given: Path) -> Path:
    """Where a client keeps its record of sums: beside that of what it has given."""
    return given.with_name(f"{given.name.removesuffix('.given.jsonl')}.sums.jsonl")
