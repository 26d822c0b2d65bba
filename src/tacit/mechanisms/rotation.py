"""A public random rotation, after which no coordinate of a vector is much larger than another.

Signs at random, then an orthogonal transform all of whose entries are small: the Walsh-Hadamard
transform of a power of two, beside a Hartley transform of a small factor, so that a vector is
padded by a sixteenth at most and not to the next power of two.  Both are their own inverse.

No guarantee rests on it.  The bound on a client's vector is checked after the rotation, in integers
(`tacit.mechanisms.distributed_noise`); a poor rotation would only cost accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.privacy import checks
from tacit.privacy.stream import Stream

Floats = NDArray[np.float64]

_LEAST_FACTOR = 16


@dataclass(frozen=True)
class Rotation:
    """The rotation of vectors of `size` values: `factor` rows of 2^`doublings` values."""

    size: int

    def __post_init__(self) -> None:
        checks.whole("size", self.size, at_least=1)

    @property
    def doublings(self) -> int:
        """The most for which the rows are at least 16."""
        return max(0, (self.size // _LEAST_FACTOR).bit_length() - 1)

    @property
    def factor(self) -> int:
        return -(-self.size >> self.doublings)

    @property
    def padded(self) -> int:
        """How many values a rotated vector has."""
        return self.factor << self.doublings

    def rotate(self, values: NDArray[np.floating], stream: Stream) -> Floats:
        """The rotated vector; `stream` is public, and the same for all vectors of a sum."""
        if values.shape != (self.size,):
            raise ValueError(f"values must be {self.size}, got {values.shape}")
        padded = np.zeros(self.padded)
        padded[: self.size] = values
        padded *= self._signs(stream)
        return self._transform(padded)

    def restore(self, rotated: NDArray[np.floating], stream: Stream) -> Floats:
        """The vector whose rotation this is, by a fresh stream of the same key."""
        if rotated.shape != (self.padded,):
            raise ValueError(f"rotated must be {self.padded} values, got {rotated.shape}")
        values: Floats = self._transform(rotated.astype(np.float64)) * self._signs(stream)
        return values[: self.size]

    def _signs(self, stream: Stream) -> Floats:
        words = stream.words(-(-self.padded // 64))
        bits = np.unpackbits(
            words.astype("<u8").view(np.uint8), count=self.padded, bitorder="little"
        )
        return 1.0 - 2.0 * bits.astype(np.float64)

    def _transform(self, values: Floats) -> Floats:
        """Orthogonal and symmetric; the values are used up."""
        turns = np.arange(self.factor)
        angles = np.outer(turns, turns) * (2 * np.pi / self.factor)
        hartley = (np.cos(angles) + np.sin(angles)) / math.sqrt(self.padded)
        # Not `@`, whose last bits may depend on the number of threads.
        rows: NDArray[Any] = np.einsum("ij,jk->ik", hartley, values.reshape(self.factor, -1))
        half = rows.shape[1] // 2
        while half:
            pairs = rows.reshape(-1, 2, half)
            rows = np.empty_like(pairs)
            np.add(pairs[:, 0], pairs[:, 1], out=rows[:, 0])
            np.subtract(pairs[:, 0], pairs[:, 1], out=rows[:, 1])
            half //= 2
        return rows.reshape(-1)
