"""The server of one secure sum: it takes messages as they come, and ends a phase when told to.

`receive` checks and keeps one client's message; `advance` ends the phase and gives each client that
is still there what it is to answer.  Masked inputs are added up as they come in, so that memory
does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from tacit.secure_sum import keys, shamir
from tacit.secure_sum.masks import Mask, add_masks_, from_bytes, to_integers, words_type
from tacit.secure_sum.messages import (
    SERVER,
    SIGNATURE_SIZE,
    Advert,
    Confirmation,
    Kind,
    RefusedError,
    RevealedShare,
    SealedShares,
    ShareOf,
    ascending,
    pack,
    split,
    unpack,
    who_is_there,
)
from tacit.secure_sum.rules import RoundFailedError, Session, SumRules


class SumServer:
    """One session's server.

    The phases are those of `Kind`: adverts, shares, masked inputs, confirmations, revealed shares.
    After the last `advance` the sum is in `total`.  A client that does not answer in time is simply
    not waited for; its message is refused once the phase is over.
    """

    def __init__(self, session: Session, rules: SumRules, roster: Mapping[int, bytes]) -> None:
        self._rules = rules
        self._roster = dict(roster)
        self._context = session.context(rules)
        self._phase: Kind | None = Kind.ADVERT
        self._adverts: dict[int, Advert] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}  # by sender, then by receiver
        self._sum = np.zeros(rules.size, words_type(rules.width))
        self._survivors: set[int] = set()
        self._confirmations: dict[int, Confirmation] = {}
        self._revealed: dict[int, dict[int, bytes]] = {}  # by owner, then by holder
        self._answered: set[int] = set()  # in this phase

    @property
    def answered(self) -> frozenset[int]:
        """Whose messages of this phase were taken."""
        return frozenset(self._answered)

    @property
    def expected(self) -> frozenset[int]:
        """Who may still answer in this phase."""
        return frozenset(self._invited()) - self._answered

    @property
    def survivors(self) -> frozenset[int]:
        """Whose inputs are in the sum."""
        return frozenset(self._survivors)

    @property
    def total(self) -> NDArray[np.int64]:
        """The sum of the survivors' vectors: the value of least magnitude modulo 2^width."""
        if self._phase is not None:
            raise RefusedError("the sum is not known before all phases are over")
        return to_integers(self._sum, self._rules.width)

    def receive(self, message: bytes, whose: int | None = None) -> int:
        """Take one client's message of the current phase; returns the client.

        `whose` it has to be, where the connection says so: not all messages are signed.  What is
        refused changes nothing, and costs only whoever sent it.
        """
        if self._phase is None:
            raise RefusedError("the sum is complete, and no more messages are taken")
        sender, body = unpack(message, self._phase, self._context)
        if whose not in (None, sender):
            raise RefusedError(f"client {whose} sent a message in the name of client {sender}")
        if sender in self._answered:
            raise RefusedError(f"client {sender} has answered in this phase before")
        if sender not in self._invited():
            raise RefusedError(f"client {sender} is not in this phase of the session")
        take: dict[Kind, Callable[[int, memoryview], None]] = {
            Kind.ADVERT: self._take_advert,
            Kind.SHARES: self._take_shares,
            Kind.MASKED: self._take_masked,
            Kind.CONFIRMATION: self._take_confirmation,
            Kind.REVEALED: self._take_revealed,
        }
        take[self._phase](sender, body)
        self._answered.add(sender)
        return sender

    def advance(self) -> dict[int, bytes]:
        """End the phase: a message for each client that takes part in the next one.

        Raises `RoundFailedError` where too few have answered.  Then the phase goes on: the caller
        may wait for more, or give up, and no mask can be taken off.
        """
        phase = self._phase
        if phase is None:
            raise RefusedError("the sum is complete, and no phase is left to end")
        self._check_enough(phase)
        if phase is Kind.REVEALED:
            self._unmask()
            self._phase = None
            return {}
        answered, self._answered = sorted(self._answered), set()
        self._phase = Kind(phase + 2)
        if phase is Kind.SHARES:
            return {one: self._shares_for(one, answered) for one in answered}
        if phase is Kind.ADVERT:
            entries = [self._adverts[one].to_bytes() for one in answered]
        elif phase is Kind.MASKED:
            self._survivors = set(answered)
            entries = [one.to_bytes(8, "big") for one in answered]
        else:
            entries = [self._confirmations[one].to_bytes() for one in answered]
        return dict.fromkeys(answered, pack(Kind(phase + 1), self._context, SERVER, entries))

    def _check_enough(self, phase: Kind) -> None:
        """Enough inputs to hide among, and enough clients to unmask their sum."""
        is_unmasking = phase in (Kind.CONFIRMATION, Kind.REVEALED)
        least = self._rules.threshold if is_unmasking else self._rules.survivors
        if len(self._answered) < least:
            raise RoundFailedError(
                f"at least {least} clients must have sent their {phase}, got"
                f" {len(self._answered)}: the round has no sum"
            )

    def _invited(self) -> Collection[int]:
        """Who may send a message in this phase."""
        match self._phase:
            case Kind.ADVERT:
                return self._roster
            case Kind.SHARES:
                return self._adverts
            case Kind.MASKED:
                return self._sealed
            case Kind.CONFIRMATION | Kind.REVEALED:
                return self._survivors
        return ()

    def _take_advert(self, sender: int, body: memoryview) -> None:
        advert = Advert.from_bytes(bytes(body))
        ascending([advert.sender])
        if advert.sender != sender:
            raise RefusedError(f"client {sender} sent the keys of client {advert.sender}")
        if not keys.is_signed(advert.signature, advert.signed(self._context), self._roster[sender]):
            raise RefusedError(f"the keys of client {sender} are not signed by it")
        others = [key for one in self._adverts.values() for key in (one.exchange, one.masking)]
        if len({advert.exchange, advert.masking, *others}) != len(others) + 2:
            raise RefusedError(f"client {sender} has sent a key that is in use")
        for key in (advert.exchange, advert.masking):
            keys.check_public_key(sender, key)
        if len(self._adverts) == self._rules.clients:
            raise RefusedError(f"the session has its {self._rules.clients} clients already")
        self._adverts[sender] = advert

    def _take_shares(self, sender: int, body: memoryview) -> None:
        shares = [SealedShares.from_bytes(each) for each in split(body, SealedShares.SIZE)]
        if [one.peer for one in shares] != sorted(set(self._adverts) - {sender}):
            raise RefusedError(f"client {sender} has not sent a share for each other client")
        self._sealed[sender] = {one.peer: one.sealed for one in shares}

    def _take_masked(self, sender: int, body: memoryview) -> None:
        size = self._rules.size * self._rules.width // 8
        if len(body) != size:
            raise RefusedError(
                f"a masked input must be {size} bytes long, got {len(body)} from client {sender}"
            )
        self._sum += from_bytes(body, self._rules.width)

    def _take_confirmation(self, sender: int, body: memoryview) -> None:
        statement = who_is_there(
            self._context,
            [self._adverts[one] for one in sorted(self._adverts)],
            sorted(self._sealed),
            sorted(self._survivors),
        )
        signature = bytes(body)
        if len(signature) != SIGNATURE_SIZE or not keys.is_signed(
            signature, statement, self._roster[sender]
        ):
            raise RefusedError(f"client {sender} has not signed who is there")
        self._confirmations[sender] = Confirmation(sender, signature)

    def _take_revealed(self, sender: int, body: memoryview) -> None:
        revealed = [RevealedShare.from_bytes(each) for each in split(body, RevealedShare.SIZE)]
        for peer in ascending([one.peer for one in revealed]):
            if peer not in self._sealed:
                raise RefusedError(f"client {sender} revealed a share of {peer}, who shared none")
        for one in revealed:
            if one.of != (ShareOf.SEED if one.peer in self._survivors else ShareOf.KEY):
                raise RefusedError(f"client {sender} revealed the wrong share of {one.peer}")
        for one in revealed:
            self._revealed.setdefault(one.peer, {})[sender] = one.share

    def _shares_for(self, receiver: int, sharing: list[int]) -> bytes:
        entries = [
            SealedShares(sender, self._sealed[sender][receiver]).to_bytes()
            for sender in sharing
            if sender != receiver
        ]
        return pack(Kind.SHARES_FOR_YOU, self._context, SERVER, entries)

    def _unmask(self) -> None:
        """Take off the own masks of survivors, and the halves of pair masks that dropouts left."""
        survivors = sorted(self._survivors)
        masks: list[Mask] = []
        for one in survivors:
            seed = self._secret(one, ShareOf.SEED)
            masks.append((keys.self_mask_key(seed, one, self._context), False))
        for gone in sorted(set(self._sealed) - self._survivors):
            private = self._secret(gone, ShareOf.KEY)
            for one in survivors:
                public = self._adverts[one].masking
                key = keys.mask_key(private, gone, one, public, self._context)
                masks.append((key, gone < one))  # the survivor has taken what the other would add
        add_masks_(self._sum, masks)

    def _secret(self, owner: int, of: ShareOf) -> bytes:
        """A client's seed or masking key, from the shares that were revealed."""
        advert = self._adverts[owner]

        def is_right(secret: bytes) -> bool:
            if of is ShareOf.SEED:
                return keys.commitment(secret, owner, self._context) == advert.commitment
            return keys.public_key(secret) == advert.masking

        try:
            return shamir.recover(self._revealed.get(owner, {}), self._rules.threshold, is_right)
        except ValueError as error:
            raise RoundFailedError(
                f"the {of.name.lower()} of client {owner} cannot be recovered, because {error}: the"
                " round has no sum"
            ) from error
