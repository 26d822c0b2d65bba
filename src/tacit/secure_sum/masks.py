"""Masks: the ChaCha20 keystream of a key, as words, added to a vector or taken from it.

Words wrap modulo 2^16, 2^32 or 2^64, and the keystream of a fresh key is uniform on them up to what
tells ChaCha20 from a random function, so a vector with one mask that nobody else knows is uniform,
whatever the vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

# Bytes of a vector at a time: they stay in the cache while all masks are added to them.
_CHUNK = 1 << 18
_ZEROS = memoryview(bytes(_CHUNK))

Words = NDArray[Any]  # uint16, uint32 or uint64
Mask = tuple[bytes, bool]  # a key, and whether the mask is added rather than taken away


def words_type(width: int) -> np.dtype[Any]:
    """The unsigned type of words of `width` bits, as they are in a message."""
    return np.dtype(f"<u{width // 8}")


def add_masks_(words: Words, masks: Sequence[Mask]) -> None:
    """Add or take away each mask, in place."""
    ciphers = [(_keystream(key), is_added) for key, is_added in masks]
    stream = np.empty(_CHUNK // words.itemsize, words.dtype)
    room = stream.data.cast("B")
    for start in range(0, len(words), len(stream)):
        part = words[start : start + len(stream)]
        for cipher, is_added in ciphers:
            cipher.update_into(_ZEROS[: part.nbytes], room)
            (np.add if is_added else np.subtract)(part, stream[: len(part)], out=part)


def _keystream(key: bytes) -> Any:
    """The keystream from block 0 on; a key is used for one mask, so its nonce is zero."""
    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()


def to_words(vector: NDArray[np.int64], width: int, out: Words) -> None:
    """Integers modulo 2^width."""
    out[...] = vector.view(np.uint64).astype(words_type(width), copy=False)


def to_integers(words: Words) -> NDArray[np.int64]:
    """The integers of least magnitude that are equal to the words modulo 2^width."""
    return words.view(f"<i{words.itemsize}").astype(np.int64)
