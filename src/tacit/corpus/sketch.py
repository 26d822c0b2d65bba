"""A small, keyed summary of a large set, by which two sets are compared.

Each member is hashed under a key; the `size` smallest hashes are kept, with the count of all.  The
hashes are uniform, so the members kept are a random sample of the set, and the same member is kept
or left out in every set alike.  Whoever does not know the key cannot tell who is in it.

Let t be the least of the two largest hashes kept (infinite for a set that is kept whole).  Below t
both sketches are complete: of the smaller set's members there, those that the other has too are a
fraction that estimates the share of the smaller set that is in the other.  With n members below t
its standard error is at most 1 / (2 sqrt(n)); a subset gives exactly 1 and a disjoint set exactly
0, whatever n.  If both sets are kept whole, the share is exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SIZE = 1024
_PENDING = 1 << 16
Values = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Sketch:
    """The smallest keyed hashes of a set, ascending, and how many members the set has."""

    values: Values
    count: int
    size: int = SIZE

    @classmethod
    def of(cls, members: Iterable[bytes], key: bytes, size: int = SIZE) -> Sketch:
        """The sketch of a set; a member that comes twice counts once."""
        maker = SketchMaker(key, size)
        maker.add(members)
        return maker.finish()

    @property
    def is_whole(self) -> bool:
        """Whether every member of the set is kept."""
        return self.count <= self.size

    def as_json(self) -> dict[str, Any]:
        """As data for JSON."""
        values = self.values.astype(">u8").tobytes().hex()
        return {"size": self.size, "count": self.count, "values": values}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sketch:
        """From what `as_json` gave; anything else is refused."""
        try:
            size, count = data["size"], data["count"]
            values = np.frombuffer(bytes.fromhex(data["values"]), ">u8").astype(np.uint64)
        except (KeyError, TypeError, ValueError):
            raise ValueError("a sketch is damaged") from None
        if not (
            type(size) is type(count) is int
            and len(values) == min(size, count)
            and bool((values[1:] > values[:-1]).all())
        ):
            raise ValueError("a sketch is damaged")
        return cls(values, count, size)


class SketchMaker:
    """Makes a sketch of members that come bit by bit; 8 bytes of memory for each of them."""

    def __init__(self, key: bytes, size: int = SIZE) -> None:
        if not size >= 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self._key, self._size = key, size
        self._parts: list[Values] = []

    def add(self, members: Iterable[bytes]) -> None:
        """Take some members."""
        blake, key, pending = hashlib.blake2b, self._key, bytearray()
        for member in members:
            pending += blake(member, digest_size=8, key=key).digest()
            if len(pending) >= 8 * _PENDING:
                self._keep(pending)
                pending = bytearray()
        self._keep(pending)

    def finish(self) -> Sketch:
        """The sketch of all that came."""
        values = np.unique(np.concatenate([np.zeros(0, np.uint64), *self._parts]))
        return Sketch(values[: self._size].copy(), len(values), self._size)

    def _keep(self, hashes: bytearray) -> None:
        if hashes:
            self._parts.append(np.frombuffer(bytes(hashes), ">u8").astype(np.uint64))


def shared(one: Sketch, other: Sketch) -> float:
    """The estimated share of the smaller set that is in the other as well.

    Nothing is shared with an empty set, or as far as can be seen if no member of the smaller set
    is below the bound: that happens if the sets' counts differ by more than a factor of `size`.
    """
    small, large = sorted((one, other), key=lambda sketch: sketch.count)
    bound = min((s.values[-1] for s in (small, large) if not s.is_whole), default=None)
    seen = small.values if bound is None else small.values[small.values <= bound]
    if not len(seen):
        return 0.0
    return float(np.isin(seen, large.values, assume_unique=True).mean())
