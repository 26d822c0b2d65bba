"""Messages as bytes: a header that binds each to its session, phase and sender, and a body.

A body is a list of entries of one size, or the words of a masked vector.  All numbers but those
words are big-endian.  Nothing here is secret or random.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Self

SERVER = 0
LARGEST_ID = 2**63 - 1

KEY_SIZE = 32
SIGNATURE_SIZE = 64
SHARE_SIZE = 33

_HEADER = struct.Struct(">4sBB2x32sQ")
HEADER_SIZE = _HEADER.size
_MAGIC, _VERSION = b"tsum", 1


class RefusedError(ValueError):
    """A message, or a request, that the protocol does not allow; nothing was changed by it."""


class Kind(enum.IntEnum):
    """What a message is; odd ones come from clients, and each even one is the server's answer."""

    ADVERT = 1
    ADVERTS = 2
    SHARES = 3
    SHARES_FOR_YOU = 4
    MASKED = 5
    SURVIVORS = 6
    CONFIRMATION = 7
    CONFIRMATIONS = 8
    REVEALED = 9

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


def digest(label: str, *parts: bytes) -> bytes:
    """SHA-256 of an injective encoding of the labelled list."""
    return hashlib.sha256(encode(label, *parts)).digest()


def encode(label: str, *parts: bytes) -> bytes:
    """A list of byte strings, each with its length, so that no two lists are encoded alike."""
    labelled = (f"tacit secure sum, 1: {label}".encode(), *parts)
    return b"".join(len(part).to_bytes(8, "big") + part for part in labelled)


def pack(kind: Kind, context: bytes, sender: int, entries: Iterable[bytes] = ()) -> bytes:
    """A message of these entries."""
    return b"".join([_HEADER.pack(_MAGIC, _VERSION, kind, context, sender), *entries])


def unpack(message: bytes, kind: Kind, context: bytes) -> tuple[int, memoryview]:
    """The sender and the body; anything but such a message is refused in one sentence."""
    view = memoryview(message)
    if len(view) < HEADER_SIZE:
        raise RefusedError(f"a message must have at least {HEADER_SIZE} bytes, got {len(view)}")
    magic, version, its_kind, its_context, sender = _HEADER.unpack(view[:HEADER_SIZE])
    if magic != _MAGIC or version != _VERSION:
        raise RefusedError(f"not a message of a secure sum of version {_VERSION}")
    if its_context != context:
        raise RefusedError("the message is of another session, round, attempt or set of rules")
    if its_kind != kind:
        name = str(Kind(its_kind)) if its_kind in set(Kind) else str(its_kind)
        raise RefusedError(f"expected a message of kind {str(kind)!r}, got {name!r}")
    return sender, view[HEADER_SIZE:]


def split(body: memoryview, size: int) -> list[bytes]:
    """The entries of a body, each of `size` bytes."""
    if len(body) % size:
        raise RefusedError(f"a body must be a multiple of {size} bytes, got {len(body)}")
    return [bytes(body[start : start + size]) for start in range(0, len(body), size)]


def ascending(ids: list[int]) -> list[int]:
    """The ids themselves; out of range, out of order or twice, they are refused."""
    if any(not 0 < one <= LARGEST_ID for one in ids):
        raise RefusedError(f"ids must be from 1 to {LARGEST_ID}, got {ids}")
    if any(one >= other for one, other in pairwise(ids)):
        raise RefusedError(f"ids must be ascending, each once, got {ids}")
    return ids


@dataclass(frozen=True)
class Advert:
    """A client's public keys for one session, signed with the key that it enrolled.

    `exchange` encrypts shares, `masking` makes masks.  `commitment` is a hash of the seed of the
    self mask, by which the server tells right shares from wrong ones.
    """

    sender: int
    exchange: bytes
    masking: bytes
    commitment: bytes
    signature: bytes
    SIZE: ClassVar[int] = 8 + 3 * KEY_SIZE + SIGNATURE_SIZE
    _FORM: ClassVar[struct.Struct] = struct.Struct(">Q32s32s32s64s")

    def to_bytes(self) -> bytes:
        return self._FORM.pack(
            self.sender, self.exchange, self.masking, self.commitment, self.signature
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        if len(data) != cls.SIZE:
            raise RefusedError(f"an advert must have {cls.SIZE} bytes, got {len(data)}")
        return cls(*cls._FORM.unpack(data))

    def signed(self, context: bytes) -> bytes:
        """What the signature is over."""
        return encode("advert", context, self.to_bytes()[:-SIGNATURE_SIZE])


@dataclass(frozen=True)
class SealedShares:
    """Encrypted shares, and whom they are for, or from whom they are once the server has sorted."""

    peer: int
    sealed: bytes
    SIZE: ClassVar[int] = 8 + 2 * SHARE_SIZE + 16

    def to_bytes(self) -> bytes:
        return self.peer.to_bytes(8, "big") + self.sealed

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(int.from_bytes(data[:8], "big"), data[8:])


@dataclass(frozen=True)
class Confirmation:
    """A client's signature on who is there."""

    sender: int
    signature: bytes
    SIZE: ClassVar[int] = 8 + SIGNATURE_SIZE

    def to_bytes(self) -> bytes:
        return self.sender.to_bytes(8, "big") + self.signature

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(int.from_bytes(data[:8], "big"), data[8:])


class ShareOf(enum.IntEnum):
    """Which of a client's two secrets a share is of; never both are revealed."""

    SEED = 1  # of one whose input is in the sum
    KEY = 2  # of one who dropped out


@dataclass(frozen=True)
class RevealedShare:
    """A share in clear."""

    peer: int
    of: int
    share: bytes
    SIZE: ClassVar[int] = 8 + 1 + SHARE_SIZE
    _FORM: ClassVar[struct.Struct] = struct.Struct(">QB33s")

    def to_bytes(self) -> bytes:
        return self._FORM.pack(self.peer, self.of, self.share)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(*cls._FORM.unpack(data))


def who_is_there(
    context: bytes, adverts: Iterable[Advert], sharing: Iterable[int], survivors: Iterable[int]
) -> bytes:
    """What a confirmation signs: all that a client was told about who takes part, hashed."""

    def listed(ids: Iterable[int]) -> bytes:
        return b"".join(one.to_bytes(8, "big") for one in ids)

    keys = b"".join(advert.to_bytes()[:-SIGNATURE_SIZE] for advert in adverts)
    facts = digest("who is there", context, keys, listed(sharing), listed(survivors))
    return encode("confirmation", facts)
