"""A stratified sample of a stream of costs that is too long to be kept.

Entries come in blocks; those above the limit are left out.  The strata are equal intervals of the
cost.  Every entry gets a random number, and a stratum keeps those with the smallest: a simple
random sample without replacement, of whatever size is asked for in the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.audit.partial_texts import IntArray
from tacit.audit.suffix_scores import FloatArray

_LEAST = 8  # drawn from a stratum: a variance of fewer would mean nothing
_POOL = 1_000_000  # entries kept before the pool is cut down to those that can still be drawn


@dataclass(frozen=True)
class Drawn:
    """Entries of a stream: their places, their costs, and how many each stands for."""

    rows: IntArray
    words: IntArray
    costs: FloatArray
    weights: FloatArray
    strata: IntArray
    sizes: IntArray  # of all strata, drawn or not

    def standard_error(self, values: FloatArray, *, finite: bool) -> float:
        """Of the sum of weights * values; `finite` where a value that was drawn has no error."""
        variance = 0.0
        for stratum in np.unique(self.strata):
            mine = values[self.strata == stratum]
            size = int(self.sizes[stratum])
            if len(mine) < 2:
                continue
            left_out = 1 - len(mine) / size if finite else 1.0
            variance += size**2 * left_out * float(mine.var(ddof=1)) / len(mine)
        return float(np.sqrt(variance))


class Strata:
    """A stream of entries with costs from 0 to `limit`, of which at most `most` will be drawn."""

    COUNT: ClassVar[int] = 64

    def __init__(self, limit: float, most: int, rng: np.random.Generator) -> None:
        self.limit, self.most, self.rng = limit, max(most, _LEAST), rng
        self.sizes = np.zeros(self.COUNT, np.int64)
        self._highest = np.ones(self.COUNT, np.float32)  # numbers above it are not kept
        none = np.zeros(0, np.int64)
        self._kept: list[tuple[NDArray[Any], ...]] = [
            (np.zeros(0, np.float32), none, none, none, np.zeros(0))
        ]
        self._pool = 0

    @property
    def total(self) -> int:
        return int(self.sizes.sum())

    def add(self, first_row: int, costs: FloatArray) -> None:
        """A block of entries [rows, words]."""
        rows, words = np.nonzero(costs <= self.limit)
        found = costs[rows, words]
        strata = np.minimum(found * (self.COUNT / self.limit), self.COUNT - 1).astype(np.int64)
        self.sizes += np.bincount(strata, minlength=self.COUNT)
        numbers = self.rng.random(len(rows), np.float32)
        kept = np.flatnonzero(numbers <= self._highest[strata])
        self._kept.append(
            (numbers[kept], strata[kept], first_row + rows[kept], words[kept], found[kept])
        )
        self._pool += len(kept)
        if self._pool > _POOL:
            self._cut()

    def everything(self) -> Drawn:
        """All entries, in the order they came; each stands for itself."""
        assert self.total <= self.most
        _, strata, rows, words, costs = self._columns()
        return Drawn(rows, words, costs, np.ones(len(rows)), strata, self.sizes)

    def draw(self, count: int, spread: FloatArray) -> Drawn:
        """About `count` entries: from each stratum in proportion to its size times its spread."""
        shares = self.sizes * (spread + 1e-9)
        wanted = np.ceil(count * shares / shares.sum()).astype(np.int64)
        wanted = np.minimum(np.clip(wanted, _LEAST, self.most), self.sizes)
        numbers, strata, rows, words, costs = self._columns()
        chosen = _smallest(numbers, strata, wanted)
        strata = strata[chosen]
        weights = (self.sizes / np.maximum(wanted, 1))[strata]
        return Drawn(rows[chosen], words[chosen], costs[chosen], weights, strata, self.sizes)

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return tuple(np.concatenate(column) for column in zip(*self._kept, strict=True))

    def _cut(self) -> None:
        """Keep what can still be drawn: the `most` smallest numbers of each stratum."""
        columns = self._columns()
        numbers, strata = columns[:2]
        chosen = _smallest(numbers, strata, np.full(self.COUNT, self.most))
        self._kept = [tuple(column[chosen] for column in columns)]
        self._pool = len(chosen)
        numbers, strata = self._kept[0][:2]
        full = np.bincount(strata, minlength=self.COUNT) >= self.most
        highest = np.zeros(self.COUNT, np.float32)
        np.maximum.at(highest, strata, numbers)
        self._highest = np.where(full, highest, np.float32(1))


def _smallest(numbers: NDArray[np.float32], strata: IntArray, wanted: IntArray) -> IntArray:
    """Places of the `wanted` smallest numbers of each stratum."""
    order = np.lexsort((numbers, strata))
    counts = np.bincount(strata, minlength=len(wanted))
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[place < wanted[strata[order]]])
