"""Digests that decide: a user's place, split and public id, and which texts are held out.

Two kinds, never mixed.  The *key* of a user is a labelled SHA-256 of the raw id, without salt:
order and split follow from it, so the same people get the same split in every corpus made from
them, and one user never moves another.  It would let anybody who guesses a raw id confirm it,
so it is used while a corpus is made and not stored.  The *hashed id* is HMAC-SHA256 under the
corpus's salt, and is all that is left of the raw id afterwards.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Sequence

USER_LABEL = b"tacit corpus user\0"
TEXTS_LABEL = b"tacit corpus texts\0"
HELD_OUT_LABEL = b"tacit corpus held-out\0"
KEY_BYTES = 16
SALT_BYTES = 16


def user_key(raw_id: str) -> bytes:
    """The first 128 bits of SHA-256(label, raw id); users are in ascending order of it."""
    return hashlib.sha256(USER_LABEL + raw_id.encode()).digest()[:KEY_BYTES]


def hashed_id(salt: bytes, raw_id: str) -> bytes:
    """HMAC-SHA256(salt, raw id), cut to 128 bits."""
    return hmac.digest(salt, raw_id.encode(), "sha256")[:16]


def folded(raw_id: str) -> bytes:
    """8 bytes that are the same for ids that differ in case or in blanks only."""
    same = "".join(raw_id.split()).casefold()
    return hashlib.blake2b(same.encode(), digest_size=8).digest()


def threshold(fraction: float) -> int:
    """64-bit draws below this number are the given fraction of all."""
    return min(math.ceil(fraction * 2**64), 2**64)


def is_test(key: bytes, fraction: float) -> bool:
    """Whether a user is a test user.

    The draw is the head of the key, by which users are ordered: test users come first.
    """
    return int.from_bytes(key[:8], "big") < threshold(fraction)


def place(key: bytes, texts: Sequence[bytes]) -> int:
    """Where a record of a user goes among that user's records: a 64-bit draw from its content.

    Records come in no order of their own, and an order by alphabet would make "the first n" of a
    cap a biased choice; this order depends on nothing but the user and the record.
    """
    sized = [part for text in texts for part in (len(text).to_bytes(8, "big"), text)]
    digest = hashlib.sha256(b"".join([TEXTS_LABEL, key, *sized])).digest()
    return int.from_bytes(digest[:8], "big")


def held_out_draw(key: bytes, text: bytes) -> int:
    """64 bits from (user, text): equal texts of a user are held out together or not at all."""
    return int.from_bytes(hashlib.sha256(HELD_OUT_LABEL + key + text).digest()[:8], "big")


def role_draw(purpose: str, unit: str) -> float:
    """A number in [0, 1) that depends on the purpose and this unit (a user, a text) alone.

    By it audits divide test users into roles, so that adding one user moves no other.
    """
    digest = hashlib.sha256(f"tacit audit {purpose}\0{unit}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def derived(label: str, *parts: object) -> str:
    """The fingerprint of something made from other things."""
    digest = hashlib.sha256(f"tacit {label}".encode())
    for part in parts:
        data = str(part).encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()
