"""Digests that decide: a user's rank, split and public id, which texts are held out, what is first.

Two kinds, never mixed.  The *key* of a user is a labelled SHA-256 of the raw id, without salt:
order and split follow from it, so the same people get the same split in every corpus made from
them, and one user never moves another.  It would let anybody who guesses a raw id confirm it,
so it is used while a corpus is made and not stored.  The *hashed id* is HMAC-SHA256 under the
corpus's salt, and is all that is left of the raw id afterwards.

Guarantee: each of these digests is a function of one user (and text) and of public labels alone.
A user's split, rank and held-out texts therefore do not depend on who else is in the corpus, which
user-level adjacency by adding or removing one user needs.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

KEY_BYTES = 16
SALT_BYTES = 16
_FEISTEL_ROUNDS = 8

Words = npt.NDArray[np.uint64]


def user_key(raw_id: str) -> bytes:
    """The first 128 bits of SHA-256(label, raw id); users are in ascending order of it."""
    return hashlib.sha256(b"tacit corpus user\0" + raw_id.encode()).digest()[:KEY_BYTES]


def threshold(fraction: float) -> int:
    """The bound below which this fraction of all 64-bit draws lies."""
    return min(math.ceil(fraction * 2**64), 2**64)


def is_test(key: bytes, fraction: float) -> bool:
    """Whether a user is a test user.

    The draw is the head of the key, by which users are ordered: test users come first.
    """
    return int.from_bytes(key[:8], "big") < threshold(fraction)


def held_out_draw(key: bytes, text: bytes) -> int:
    """64 bits from (user, text): equal texts of a user are held out together or not at all."""
    digest = hashlib.sha256(b"tacit corpus held-out\0" + key + text).digest()
    return int.from_bytes(digest[:8], "big")


def role_draw(purpose: str, unit: str) -> float:
    """A number in [0, 1) that depends on the purpose and this unit (a user, a text) alone.

    By it audits divide test users into roles, so that adding one user moves no other.
    """
    digest = hashlib.sha256(f"tacit audit {purpose}\0{unit}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def derived(label: str, *parts: object) -> str:
    """The fingerprint of something made from other things: SHA-256 of a label and the parts."""
    digest = hashlib.sha256(f"tacit {label}".encode())
    for part in parts:
        data = str(part).encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


def mixed(values: Words) -> Words:
    """The finaliser of splitmix64: each output bit depends on every input bit."""
    x = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Permutation:
    """A seeded permutation of 0..size-1 that is computed where it is asked for, never stored.

    A Feistel network permutes the 2^(2h) numbers of 2h bits, h as small as covers n: in each round
    (left, right) becomes (right, left XOR f(right)), which can be undone whatever f is.  A number
    that lands at n or above is permuted again until it lands below ("cycle walking"): what is left
    is a permutation of 0..n-1.  It is no cipher, but good enough to shuffle, and the same on every
    machine.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
        self._half = np.uint64(half)
        self._mask = np.uint64((1 << half) - 1)
        label = f"tacit permutation {size} {seed}"
        digest = hashlib.shake_256(label.encode()).digest(8 * _FEISTEL_ROUNDS)
        self._keys = np.frombuffer(digest, "<u8")

    def __call__(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What each of the values becomes."""
        out = values.astype(np.uint64)
        todo = np.arange(len(out))
        while len(todo):
            out[todo] = self._network(out[todo])
            todo = todo[out[todo] >= self.size]
        return out.astype(np.int64)

    def _network(self, values: Words) -> Words:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (mixed(right ^ key) & self._mask)
        return (left << self._half) | right
