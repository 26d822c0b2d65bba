"""A client of one secure sum: five verbs, in their order, each once.

Whatever the server says is checked before anything is answered, and what is refused changes
nothing: the right message may still come.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from tacit.secure_sum import keys, shamir
from tacit.secure_sum.masks import add_masks_, to_bytes, to_words
from tacit.secure_sum.messages import (
    KEY_SIZE,
    SERVER,
    SHARE_SIZE,
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
from tacit.secure_sum.rules import Session, SessionLog, SumRules


class SumClient:
    """One client in one session.

    `roster` has the enrolled Ed25519 public key of every client that may take part, itself
    included: it has to come from where the server cannot change it.

    Guarantee: against a server that follows the protocol, and against one that does not, as long
    as at most `rules.colluding` clients are its own: all that is ever told about the vector is its
    sum, modulo 2^width, with the vectors of at least `rules.survivors` - 1 other enrolled clients.
    For each peer a share of its seed or of its key is revealed, never of both.
    """

    def __init__(
        self,
        identity: int,
        signing_key: Ed25519PrivateKey,
        roster: Mapping[int, bytes],
        session: Session,
        rules: SumRules,
        log: SessionLog,
    ) -> None:
        if roster.get(identity) != signing_key.public_key().public_bytes_raw():
            raise ValueError(f"client {identity} is not in the roster with its own key")
        self._id = identity
        self._signing_key = signing_key
        self._roster = dict(roster)
        self._session = session
        self._rules = rules
        self._log = log
        self._context = session.context(rules)
        self._next: Kind | None = Kind.ADVERT
        self._exchange_key = secrets.token_bytes(KEY_SIZE)
        self._masking_key = secrets.token_bytes(KEY_SIZE)
        self._seed = secrets.token_bytes(KEY_SIZE)
        self._adverts: dict[int, Advert] = {}
        self._sealings: dict[int, keys.Sealing] = {}
        # Per peer the shares of its seed and of its key; of a peer that sent none, nothing.
        self._shares: dict[int, dict[ShareOf, bytes]] = {}
        self._sharing: list[int] = []  # who has shared, itself included
        self._survivors: list[int] = []  # whose inputs are in the sum

    @property
    def survivors(self) -> tuple[int, ...]:
        """Whose inputs are in the sum, as this client confirmed it; nobody before that."""
        return tuple(self._survivors)

    def advertise(self) -> bytes:
        """Join the session: the public keys, signed."""
        self._expect(Kind.ADVERT)
        self._log.join(self._session)
        unsigned = Advert(
            self._id,
            keys.public_key(self._exchange_key),
            keys.public_key(self._masking_key),
            keys.commitment(self._seed, self._id, self._context),
            bytes(SIGNATURE_SIZE),
        )
        signature = self._signing_key.sign(unsigned.signed(self._context))
        own = Advert.from_bytes(unsigned.to_bytes()[:-SIGNATURE_SIZE] + signature)
        self._adverts = {self._id: own}
        return self._answer(Kind.ADVERT, own.to_bytes())

    def share(self, adverts: bytes) -> bytes:
        """Shares of the two secrets for every client in `adverts`, each encrypted to its holder."""
        self._expect(Kind.SHARES)
        entries = split(self._body(adverts, Kind.ADVERTS), Advert.SIZE)
        everybody = {advert.sender: advert for advert in map(Advert.from_bytes, entries)}
        self._check_adverts(everybody, len(entries))
        ids, threshold = list(everybody), self._rules.threshold
        seeds = shamir.split(self._seed, threshold, ids)
        masking_keys = shamir.split(self._masking_key, threshold, ids)
        sealings = {
            one: keys.Sealing(self._exchange_key, self._id, one, advert.exchange)
            for one, advert in everybody.items()
            if one != self._id
        }
        self._adverts, self._sealings = everybody, sealings
        self._shares[self._id] = {ShareOf.SEED: seeds[self._id]}  # its own key it never reveals
        return self._answer(
            Kind.SHARES,
            *(
                SealedShares(
                    one, sealing.seal(seeds[one] + masking_keys[one], self._context)
                ).to_bytes()
                for one, sealing in sealings.items()
            ),
        )

    def mask(self, shares: bytes, vector: NDArray[np.int64]) -> bytes:
        """The vector under the masks of all who have shared, and its own."""
        self._expect(Kind.MASKED)
        entries = split(self._body(shares, Kind.SHARES_FOR_YOU), SealedShares.SIZE)
        received = [SealedShares.from_bytes(entry) for entry in entries]
        senders = ascending([one.peer for one in received])
        if strangers := set(senders) - set(self._sealings):
            raise RefusedError(f"shares came from {sorted(strangers)}, who did not advertise keys")
        self._check_count("clients that have shared", len(senders) + 1)
        self._check_vector(vector)
        for one in received:
            opened = self._sealings[one.peer].open(one.sealed, self._context)
            if opened is not None:  # else its sender, or the server, has spoilt that share
                pair = {ShareOf.SEED: opened[:SHARE_SIZE], ShareOf.KEY: opened[SHARE_SIZE:]}
                self._shares[one.peer] = pair
        self._sharing = sorted([*senders, self._id])
        words = to_words(vector, self._rules.width)
        add_masks_(words, self._masks(senders))
        return self._answer(Kind.MASKED, to_bytes(words, self._rules.width))

    def confirm(self, survivors: bytes) -> bytes:
        """A signature on who is there, for the others to see."""
        self._expect(Kind.CONFIRMATION)
        entries = split(self._body(survivors, Kind.SURVIVORS), 8)
        listed = ascending([int.from_bytes(entry, "big") for entry in entries])
        if strangers := set(listed) - set(self._sharing):
            raise RefusedError(f"survivors must have shared their keys, got {sorted(strangers)}")
        if self._id not in listed:
            raise RefusedError(f"client {self._id} is not among the survivors")
        self._check_count("survivors", len(listed))
        self._survivors = listed
        return self._answer(Kind.CONFIRMATION, self._signing_key.sign(self._who_is_there()))

    def reveal(self, confirmations: bytes) -> bytes:
        """Shares of the seeds of survivors and of the keys of all others, once enough confirmed."""
        self._expect(Kind.REVEALED)
        entries = split(self._body(confirmations, Kind.CONFIRMATIONS), Confirmation.SIZE)
        confirmed = [Confirmation.from_bytes(entry) for entry in entries]
        senders = ascending([one.sender for one in confirmed])
        if strangers := set(senders) - set(self._survivors):
            raise RefusedError(f"{sorted(strangers)} confirmed without being survivors")
        if len(senders) < self._rules.threshold:
            raise RefusedError(
                f"at least {self._rules.threshold} survivors must confirm who is there before a"
                f" share is revealed, got {len(senders)}"
            )
        statement = self._who_is_there()
        for one in confirmed:
            if not keys.is_signed(one.signature, statement, self._roster[one.sender]):
                raise RefusedError(f"client {one.sender} was told that others are there than we")
        self._log.reveal(self._session)
        survivors, revealed = set(self._survivors), []
        for peer in self._sharing:
            of = ShareOf.SEED if peer in survivors else ShareOf.KEY
            if of in self._shares.get(peer, {}):
                revealed.append(RevealedShare(peer, of, self._shares[peer][of]).to_bytes())
        message = self._answer(Kind.REVEALED, *revealed)
        self._forget()
        return message

    def _check_adverts(self, adverts: dict[int, Advert], entries: int) -> None:
        """Each is signed by an enrolled client, all differ, and the own one is among them."""
        ascending(list(adverts))
        if len(adverts) != entries:
            raise RefusedError("a client's keys are listed more than once")
        if adverts.get(self._id) != self._adverts[self._id]:
            raise RefusedError(f"the keys of client {self._id} are not its own")
        self._check_count("clients that have advertised keys", entries)
        if len({a.exchange for a in adverts.values()} | {a.masking for a in adverts.values()}) != (
            2 * entries
        ):
            raise RefusedError("two clients have advertised the same key")
        for one, advert in adverts.items():
            enrolled = self._roster.get(one)
            if enrolled is None:
                raise RefusedError(f"client {one} is not enrolled")
            if not keys.is_signed(advert.signature, advert.signed(self._context), enrolled):
                raise RefusedError(f"the keys of client {one} are not signed by it")

    def _check_count(self, who: str, count: int) -> None:
        least, most = self._rules.survivors, self._rules.clients
        if not least <= count <= most:
            raise RefusedError(f"{who} must be from {least} to {most}, got {count}")

    def _check_vector(self, vector: NDArray[np.int64]) -> None:
        size, limit = self._rules.size, self._rules.limit
        if vector.shape != (size,) or vector.dtype != np.int64:
            raise ValueError(
                f"vector must be {size} values of int64, got {vector.dtype} of {vector.shape}"
            )
        if limit is not None:
            largest = max(int(vector.max()), -int(vector.min()))
            if largest > limit:
                raise ValueError(f"vector must be within {limit} in magnitude, got {largest}")

    def _masks(self, peers: list[int]) -> list[tuple[bytes, bool]]:
        """The key of each mask and whether it is added: of two clients one adds, one takes away."""
        own = (keys.self_mask_key(self._seed, self._id, self._context), True)
        pairs = [
            (
                keys.mask_key(
                    self._masking_key, self._id, peer, self._adverts[peer].masking, self._context
                ),
                self._id < peer,
            )
            for peer in peers
        ]
        return [own, *pairs]

    def _who_is_there(self) -> bytes:
        everybody = self._adverts.values()
        return who_is_there(self._context, everybody, self._sharing, self._survivors)

    def _expect(self, kind: Kind) -> None:
        if self._next != kind:
            left = f"its next is {str(self._next)!r}" if self._next else "it has sent its last"
            raise RefusedError(
                f"client {self._id} sends each message once and in order: {left}, not {str(kind)!r}"
            )

    def _body(self, message: bytes, kind: Kind) -> memoryview:
        sender, body = unpack(message, kind, self._context)
        if sender != SERVER:
            raise RefusedError(f"expected a message of the server, got one of client {sender}")
        return body

    def _answer(self, kind: Kind, *entries: bytes) -> bytes:
        self._next = Kind(kind + 2) if kind < Kind.REVEALED else None
        return pack(kind, self._context, self._id, entries)

    def _forget(self) -> None:
        self._seed = self._masking_key = self._exchange_key = b""
        self._shares, self._sealings = {}, {}
