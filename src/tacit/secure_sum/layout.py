"""A round's `Contribution` as one vector of integers, and a sum of such vectors as a contribution.

The update is in the vector as it is.  The weight can be larger than a coordinate may be, so it is
written in several digits, each of which is summed by itself; clip bits fit as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.fixed_point import (
    HALF_CLIP_BIT,
    WHOLE_WEIGHT,
    Contribution,
    IntegerGrid,
)
from tacit.privacy.records import Count, Record, at_least


class Layout(Protocol):
    """How contributions are vectors of `size` integers."""

    @property
    def size(self) -> int: ...

    def to_vector(self, contribution: Contribution) -> NDArray[np.int64]:
        """The vector; a contribution of other sizes is refused."""

    def from_vector(self, total: NDArray[np.int64]) -> Contribution:
        """The sum of the contributions whose vectors add up to this one."""


@dataclass(frozen=True)
class NoisyLayout:
    """Of contributions with a share of the noise: the update alone, since no weight has noise."""

    size: int

    def to_vector(self, contribution: Contribution) -> NDArray[np.int64]:
        if (
            contribution.update.shape != (self.size,)
            or contribution.weight
            or contribution.bits.size
        ):
            raise ValueError(
                f"a contribution with noise must have {self.size} values and nothing else, got"
                f" {contribution.update.shape}"
            )
        return contribution.update

    def from_vector(self, total: NDArray[np.int64]) -> Contribution:
        if total.shape != (self.size,):
            raise ValueError(f"a sum must have {self.size} values, got {total.shape}")
        return Contribution(total, 0, np.zeros(0, np.int64))


@dataclass(frozen=True, kw_only=True)
class ContributionLayout(Record):
    """The sizes of a contribution of at most `people` people, whose coordinates are bounded.

    `limit` bounds every coordinate of the vector, by what is public alone.
    """

    updates: Annotated[int, at_least(1)]
    bits: Count
    people: Annotated[int, at_least(1)]
    limit: Annotated[int, at_least(WHOLE_WEIGHT >> 22)]
    title = "the layout of a contribution"

    @classmethod
    def for_grid(cls, grid: IntegerGrid, updates: int, bits: int = 0, people: int = 1) -> Self:
        """For updates on the grid, from a client that sums those of at most `people` people."""
        return cls(updates=updates, bits=bits, people=people, limit=grid.limit * people)

    @property
    def size(self) -> int:
        """How many integers the vector has."""
        return self.updates + self._digits + self.bits

    @property
    def _digit_bits(self) -> int:
        return self.limit.bit_length() - 1

    @property
    def _digits(self) -> int:
        return -(-(self.people * WHOLE_WEIGHT).bit_length() // self._digit_bits)

    def to_vector(self, contribution: Contribution) -> NDArray[np.int64]:
        """The vector; a contribution of other sizes, or of more people, is refused."""
        update, bits, weight = contribution.update, contribution.bits, contribution.weight
        if update.shape != (self.updates,) or bits.shape != (self.bits,):
            raise ValueError(
                f"a contribution must have {self.updates} values and {self.bits} clip bits, got"
                f" {update.shape} and {bits.shape}"
            )
        if not 0 <= weight <= self.people * WHOLE_WEIGHT:
            raise ValueError(
                f"weight must be that of at most {self.people} people, got"
                f" {weight / WHOLE_WEIGHT:g}"
            )
        if bits.size and int(np.abs(bits).max()) > self.people * HALF_CLIP_BIT:
            raise ValueError(f"clip bits must be those of at most {self.people} people")
        mask = (1 << self._digit_bits) - 1
        digits = [(weight >> (self._digit_bits * at)) & mask for at in range(self._digits)]
        return np.concatenate([update, np.array(digits, np.int64), bits])

    def from_vector(self, total: NDArray[np.int64]) -> Contribution:
        """The sum of the contributions whose vectors add up to this one."""
        if total.shape != (self.size,):
            raise ValueError(f"a sum must have {self.size} values, got {total.shape}")
        update, digits, bits = np.split(total, [self.updates, self.updates + self._digits])
        weight = sum(int(digit) << (self._digit_bits * at) for at, digit in enumerate(digits))
        return Contribution(update, weight, bits)
