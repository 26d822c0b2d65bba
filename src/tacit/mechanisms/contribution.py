"""What a user adds to a round's sum, and what the round releases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.fixed_point import Integers
from tacit.mechanisms.noise import NoiseState
from tacit.mechanisms.schedules import ClipState


@dataclass
class Contribution:
    """Integers of one user or of many: private until released.

    `update` is in steps of the round's grid, `weight` in units of 2^-30, `bits` in units of 2^-4.
    Adding is exact, so that any order and any partition give the same sum.
    """

    update: Integers
    weight: int
    bits: Integers

    @classmethod
    def zero(cls, size: int, bits: int = 0) -> Self:
        """Of nobody: what an empty cohort sums to, and where every sum starts."""
        return cls(np.zeros(size, np.int64), 0, np.zeros(bits, np.int64))

    def __add__(self, other: Contribution) -> Contribution:
        self._check(other)
        return Contribution(
            self.update + other.update, self.weight + other.weight, self.bits + other.bits
        )

    def __iadd__(self, other: Contribution) -> Self:
        self._check(other)
        self.update += other.update
        self.weight += other.weight
        self.bits += other.bits
        return self

    def _check(self, other: Contribution) -> None:
        """NumPy would stretch a vector of one value to any size."""
        mine = (self.update.shape, self.bits.shape)
        if (other.update.shape, other.bits.shape) != mine:
            raise ValueError(
                f"contributions must have the same sizes of update and bits, {mine}, got"
                f" {(other.update.shape, other.bits.shape)}"
            )


@dataclass(frozen=True)
class Release:
    """What a round makes public, the average update and the next clip norms; and a secret.

    `noise_state` is what the next round's noise depends on.  It is empty for independent noise; any
    other is to be kept like the run's key.
    """

    average: NDArray[np.float64]
    clip_state: ClipState
    noise_state: NoiseState = field(default=(), repr=False)
