"""Masks: the ChaCha20 keystream of a key, as words, added to a vector or taken from it.

Words are machine words, so that masks are added at the speed of memory, and a message has the
lowest bytes of each: what is right modulo 2^64 is right modulo 2^40.  The keystream of a fresh key
is uniform on them up to what tells ChaCha20 from a random function, so a vector with one mask that
nobody else knows is uniform, whatever the vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

# Bytes of a vector at a time: they stay in the cache while all masks are added to them.
_CHUNK = 1 << 18
_MASKS = 1024  # at a time: a server that lost many clients has a hundred thousand
_ZEROS = memoryview(bytes(_CHUNK))

Words = NDArray[Any]  # uint16, uint32 or uint64
Mask = tuple[bytes, bool]  # a key, and whether the mask is added rather than taken away


def words_type(width: int) -> np.dtype[Any]:
    """The least unsigned type that has `width` bits."""
    return np.dtype("<u2" if width <= 16 else "<u4" if width <= 32 else "<u8")


def add_masks_(words: Words, masks: Sequence[Mask]) -> None:
    """Add or take away each mask, in place."""
    for first in range(0, len(masks), _MASKS):
        _add_some_(words, masks[first : first + _MASKS])


def _add_some_(words: Words, masks: Sequence[Mask]) -> None:
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


def to_words(vector: NDArray[np.int64], width: int) -> Words:
    """A copy of the integers as words."""
    return vector.view(np.uint64).astype(words_type(width))


def to_bytes(words: Words, width: int) -> bytes:
    """The words modulo 2^width: the lowest bytes of each."""
    return _bytes_of(words)[:, : width // 8].tobytes()


def from_bytes(data: memoryview, width: int) -> Words:
    """The words below 2^width that are written in the bytes."""
    lowest = np.frombuffer(data, np.uint8).reshape(-1, width // 8)
    words = np.zeros(len(lowest), words_type(width))
    _bytes_of(words)[:, : width // 8] = lowest
    return words


def to_integers(words: Words, width: int) -> NDArray[np.int64]:
    """The integers of least magnitude that are equal to the words modulo 2^width."""
    unused = 8 * words.itemsize - width
    signed = (words << unused).view(f"<i{words.itemsize}")
    integers: NDArray[np.int64] = (signed >> unused).astype(np.int64)
    return integers


def _bytes_of(words: Words) -> NDArray[np.uint8]:
    return words.view(np.uint8).reshape(-1, words.itemsize)
