"""A group of clients and a server in one process, with people who drop out when told to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from tacit.secure_sum import Session, SessionMemory, SumClient, SumRules, SumServer

SESSION = Session("run", 3, 0)
SIZE = 40
LIMIT = 2**40

Vectors = dict[int, NDArray[np.int64]]
KEYS = {one: Ed25519PrivateKey.generate() for one in range(1, 41)}


def rules_for(clients: int, **changed: object) -> SumRules:
    values = {
        "clients": clients,
        "threshold": 2 * clients // 3 + 1,
        "survivors": 2 * clients // 3 + 1,
        "size": SIZE,
        "width": 64,
        "limit": LIMIT,
    }
    return SumRules(**(values | changed))  # type: ignore[arg-type]


def roster_of(ids: Iterable[int]) -> dict[int, bytes]:
    return {one: KEYS[one].public_key().public_bytes_raw() for one in ids}


def vectors_for(rules: SumRules, ids: Iterable[int], seed: int = 0) -> Vectors:
    random = np.random.default_rng(seed)
    limit = LIMIT if rules.limit is None else rules.limit
    return {one: random.integers(-limit, limit + 1, rules.size) for one in ids}


@dataclass
class Group:
    """Everybody of one session; each phase is a method, and says who does not answer in it."""

    rules: SumRules
    session: Session = SESSION
    ids: tuple[int, ...] = ()
    sent: dict[int, bytes] = field(default_factory=dict)  # masked inputs, as the server saw them

    def __post_init__(self) -> None:
        self.ids = self.ids or tuple(range(1, self.rules.clients + 1))
        self.roster = roster_of(self.ids)
        self.server = SumServer(self.session, self.rules, self.roster)
        self.clients = {one: self.client(one) for one in self.ids}
        self.vectors = vectors_for(self.rules, self.ids)

    def client(self, one: int, rules: SumRules | None = None, log: object = None) -> SumClient:
        memory = SessionMemory() if log is None else log
        return SumClient(
            one,
            KEYS[one],
            self.roster,
            self.session,
            rules or self.rules,
            memory,  # type: ignore[arg-type]
        )

    def advertise(self, gone: Collection[int] = ()) -> dict[int, bytes]:
        return self._phase({one: b"" for one in self.ids}, gone, lambda c, _: c.advertise())

    def share(self, inbox: dict[int, bytes], gone: Collection[int] = ()) -> dict[int, bytes]:
        return self._phase(inbox, gone, SumClient.share)

    def mask(self, inbox: dict[int, bytes], gone: Collection[int] = ()) -> dict[int, bytes]:
        """Those who are gone have computed their input, which comes too late."""
        for one, message in inbox.items():
            self.sent[one] = self.clients[one].mask(message, self.vectors[one])
            if one not in gone:
                self.server.receive(self.sent[one])
        return self.server.advance()

    def confirm(self, inbox: dict[int, bytes], gone: Collection[int] = ()) -> dict[int, bytes]:
        return self._phase(inbox, gone, SumClient.confirm)

    def reveal(self, inbox: dict[int, bytes], gone: Collection[int] = ()) -> None:
        self._phase(inbox, gone, SumClient.reveal)

    def run(self, *gone: Collection[int]) -> NDArray[np.int64]:
        """All phases, with who is gone from each on."""
        away = [*gone, *[()] * (5 - len(gone))]
        inbox = self.advertise(away[0])
        inbox = self.share(inbox, away[1])
        inbox = self.mask(inbox, away[2])
        inbox = self.confirm(inbox, away[3])
        self.reveal(inbox, away[4])
        return self.server.total

    def sum_of(self, ids: Iterable[int]) -> NDArray[np.int64]:
        return np.sum([self.vectors[one] for one in ids], axis=0)

    def _phase(
        self,
        inbox: dict[int, bytes],
        gone: Collection[int],
        act: Callable[[SumClient, bytes], bytes],
    ) -> dict[int, bytes]:
        for one, message in inbox.items():
            if one not in gone:
                self.server.receive(act(self.clients[one], message))
        return self.server.advance()
