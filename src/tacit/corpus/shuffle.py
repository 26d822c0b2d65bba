"""A random order of 0..n-1 that is computed where it is asked for, and never stored.

A Feistel network permutes the 2^(2h) numbers of 2h bits, h as small as covers n: in each round
(left, right) becomes (right, left XOR f(right)), which can be undone whatever f is.  A number
that lands at n or above is permuted again until it lands below ("cycle walking"): what is left is
a permutation of 0..n-1.  Not a cipher: good enough to shuffle, and the same on every machine.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_ROUNDS = 8
Words = npt.NDArray[np.uint64]


def mixed(values: Words) -> Words:
    """The finaliser of splitmix64: each output bit depends on every input bit."""
    x = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Permutation:
    """A seeded permutation of 0..size-1, in constant memory."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
        self._half = np.uint64(half)
        self._mask = np.uint64((1 << half) - 1)
        digest = hashlib.shake_256(f"tacit permutation {size} {seed}".encode()).digest(8 * _ROUNDS)
        self._keys = np.frombuffer(digest, "<u8")

    def __call__(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where each of the places goes."""
        out = places.astype(np.uint64)
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
