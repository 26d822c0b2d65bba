"""What everybody agrees on before a sum begins: the group's rules, and which sum it is.

Both are public, and every key, mask, signature and message of the protocol is bound to their hash
(`Session.context`), so that nothing made under other rules or for another sum is ever accepted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Protocol, Self

from tacit.mechanisms.distributed_noise import WIDTHS
from tacit.privacy import records
from tacit.privacy.records import Count, Record, Text, at_least
from tacit.secure_sum.messages import RefusedError, digest

LARGEST_GROUP = 10_000


class RoundFailedError(RuntimeError):
    """Too few clients are left: the sum cannot be had, and nothing about anybody's input is."""


@dataclass(frozen=True, kw_only=True)
class SumRules(Record):
    """Who has to be there for a sum, and the numbers that are summed.

    At most `clients` take part.  Any `threshold` of them can unmask, so it takes that many to end a
    sum.  At least `survivors` inputs are in every sum that is unmasked: this is what hides one
    among others, and what noise that the clients share is sized for.  At most `colluding` of them
    tell a server that lies all they know.

    `size` coordinates are summed modulo 2^`width`.  No input exceeds `limit` in magnitude, so that
    the sum cannot wrap; None stands for inputs that carry their own noise and may wrap.

    Guarantee: 2 * threshold > clients + colluding.  Two sets of `threshold` clients then have more
    than `colluding` in common, so an honest one; and an honest client confirms one set of survivors
    only.  So no two different sets can both be confirmed, and a server cannot make half of the
    clients give up the self mask of one whose key it has from the other half.  Without colluding
    clients that is threshold > clients / 2; threshold > 2/3 clients allows for a third of them.
    """

    clients: Annotated[int, at_least(2)]
    threshold: Annotated[int, at_least(2)]
    survivors: Annotated[int, at_least(2)]
    colluding: Count = 0
    size: Annotated[int, at_least(1)]
    width: Annotated[int, at_least(1)]
    limit: Annotated[int, at_least(1)] | None
    title = "rules of a secure sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clients > LARGEST_GROUP:
            raise ValueError(f"clients must be at most {LARGEST_GROUP:,}, got {self.clients:,}")
        if not 2 * self.threshold > self.clients + self.colluding:
            raise ValueError(
                f"threshold must be above {(self.clients + self.colluding) / 2:g}, half of the"
                f" {self.clients} clients and {self.colluding} colluding ones, so that a server"
                f" cannot split the group; got {self.threshold}"
            )
        if not self.threshold <= self.clients - self.colluding:
            raise ValueError(
                f"threshold must be at most {self.clients - self.colluding}, so that the honest"
                f" clients can finish by themselves, got {self.threshold}"
            )
        if not self.threshold <= self.survivors <= self.clients:
            raise ValueError(
                f"survivors must be between the threshold of {self.threshold} and the"
                f" {self.clients} clients, got {self.survivors}"
            )
        if self.width not in WIDTHS:
            raise ValueError(f"width must be a multiple of 8 from 16 to 64, got {self.width}")
        if self.limit is not None and not self.clients * self.limit < 1 << (self.width - 1):
            raise ValueError(
                f"width must be above {(self.clients * self.limit).bit_length()} bits so that the"
                f" sum of {self.clients} inputs of at most {self.limit} cannot wrap, got"
                f" {self.width}"
            )

    @classmethod
    def against_a_lying_server(
        cls,
        clients: int,
        size: int,
        limit: int | None,
        *,
        survivors: int = 0,
        width: int | None = None,
    ) -> Self:
        """The rules for a third of the clients colluding, with the fewest bits that hold the sum.

        `limit` is a bound on every input's coordinates that is known without looking at them;
        inputs without one have a `width` that is agreed on.  There are as many survivors as the
        threshold at least, or `survivors` if that is more.
        """
        threshold = 2 * clients // 3 + 1
        if width is None:
            assert limit is not None, "without a limit nothing says how wide a sum is"
            width = width_for(clients, limit)
        return cls(
            clients=clients,
            threshold=threshold,
            survivors=max(threshold, survivors),
            colluding=min(2 * threshold - clients - 1, clients - threshold),
            size=size,
            width=width,
            limit=limit,
        )


def width_for(clients: int, limit: int) -> int:
    """The least width in bits that a sum of so many inputs of at most `limit` cannot wrap in."""
    for width in WIDTHS:
        if clients * limit < 1 << (width - 1):
            return width
    raise ValueError(
        f"limit must be below {2**63 // clients:,} so that a sum of {clients} inputs fits in 64"
        f" bits, got {limit:,}"
    )


@dataclass(frozen=True)
class Session(Record):
    """Which sum: a run that never has two sums of one round and attempt."""

    run: Text
    round: Count
    attempt: Count
    title = "a session of a secure sum"

    def context(self, rules: SumRules) -> bytes:
        """32 bytes that stand for the session and its rules; everything is bound to them."""
        facts = (self.to_json(), rules.to_json())
        return digest("context", *(records.canonical_json(each).encode() for each in facts))

    def __str__(self) -> str:
        return f"run {self.run}, round {self.round}, attempt {self.attempt}"


class SessionLog(Protocol):
    """What a client remembers of the sums it was in; kept by whoever runs the client.

    Each verb has to be durable before it returns, and raises `RefusedError` if the client must not.
    """

    def join(self, session: Session) -> None:
        """The client is about to take part; a session that it was in before is refused."""

    def reveal(self, session: Session) -> None:
        """The client is about to help unmask, after which the server may know the sum."""


class SessionMemory:
    """A log in memory, and the rules that every log has to follow.

    Two sums of one round with different people in them give away their difference.  So a client
    helps unmask at most `sums_per_round` attempts of a round: 1 unless somebody decides otherwise.
    """

    def __init__(self, sums_per_round: int = 1) -> None:
        self._sums_per_round = sums_per_round
        self._joined: set[Session] = set()
        self._revealed: Counter[tuple[str, int]] = Counter()

    def join(self, session: Session) -> None:
        """Refuse a session twice, and a round whose sums were all unmasked."""
        if session in self._joined:
            raise RefusedError(f"this client was in the session before ({session})")
        self._check(session)
        self._joined.add(session)

    def reveal(self, session: Session) -> None:
        """Refuse a session not joined, and one sum too many of the same round."""
        if session not in self._joined:
            raise RefusedError(f"this client has not joined the session ({session})")
        self._check(session)
        self._revealed[session.run, session.round] += 1

    def _check(self, session: Session) -> None:
        if self._revealed[session.run, session.round] >= self._sums_per_round:
            raise RefusedError(
                f"this client has helped unmask {self._sums_per_round} sum(s) of round"
                f" {session.round} already, and another would show the difference"
            )
