"""What a client's contribution must be, checked on arrival: a client may send anything.

Guarantee: a contribution that passes moves the sum by no more than the plan's sensitivity, whoever
made it.  With w the weight in units of 2^-30 and S the clip norm, in exact arithmetic,

    |update| <= w S / step       (S / step if the plan clips the weighted update)

layer by layer where the plan clips so.  Everything is an integer, so there is no NaN to pass by.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.clipping import ClipState
from tacit.mechanisms.fixed_point import HALF_CLIP_BIT, WHOLE_WEIGHT, Contribution, IntegerGrid
from tacit.mechanisms.plan import RoundPlan

_HALF = (
    18  # bits: a coordinate below 2^36 is split into two of these, whose squares add up in int64
)
_MOST_VALUES = 1 << 24  # squares of 2^38, of which so many stay below 2^62


@dataclass(frozen=True)
class Bound:
    """The bound on each contribution to a round, by public values alone."""

    plan: RoundPlan
    clip_state: ClipState
    size: int

    @property
    def grid(self) -> IntegerGrid:
        """The grid that contributions are on."""
        return self.plan.grid(self.clip_state)

    def check(self, contribution: Contribution) -> None:
        """Raise `ValueError` for a contribution that no honest client could have made."""
        update, weight, bits = contribution.update, contribution.weight, contribution.bits
        for name, values, size in (("update", update, self.size), ("bits", bits, self.plan.bits)):
            if values.dtype != np.int64 or values.shape != (size,):
                raise ValueError(
                    f"{name} must be {size} values of int64, got {values.dtype} of shape"
                    f" {values.shape}"
                )
        self._check_weight(weight)
        if not np.isin(bits, (-HALF_CLIP_BIT, HALF_CLIP_BIT)).all():
            raise ValueError(f"clip bits must be +-{HALF_CLIP_BIT}, got others")
        limit = self.grid.limit
        if update.size and not max(-int(update.min()), int(update.max())) < limit:
            raise ValueError(
                f"a coordinate must be within {limit} steps of the grid, got one beyond"
            )
        share = Fraction(1) if self.plan.weight_aware else Fraction(weight, WHOLE_WEIGHT)
        for block, norm in self._blocks(update):
            bound = share * Fraction(norm) / Fraction(self.grid.step)
            if not square(block) <= bound * bound:
                raise ValueError(
                    f"the norm of an update must be at most {float(bound):.6g} steps of the grid,"
                    f" got {float(square(block)) ** 0.5:.6g}"
                )

    def _check_weight(self, weight: int) -> None:
        if self.plan.weighting.user_weight_cap is None and weight != WHOLE_WEIGHT:
            raise ValueError(f"the weight must be {WHOLE_WEIGHT}, got {weight}")
        if not 0 <= weight <= WHOLE_WEIGHT:
            raise ValueError(f"the weight must be from 0 to {WHOLE_WEIGHT}, got {weight}")

    def _blocks(self, update: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], float]]:
        """The parts of an update that have a bound each, with their clip norms."""
        norms = self.clip_state.norms
        if len(norms) <= 1:
            return [(update, norm) for norm in norms]
        assert self.plan.layers is not None
        cuts = np.cumsum(self.plan.layers)[:-1]
        return list(zip(np.split(update, cuts), norms, strict=True))


def square(values: NDArray[np.int64]) -> int:
    """The exact sum of squares of values within 2^36, in integers."""
    total = 0
    for first in range(0, len(values), _MOST_VALUES):
        part = values[first : first + _MOST_VALUES]
        high = part >> _HALF
        low = part - (high << _HALF)
        total += int(high @ high) << (2 * _HALF)
        total += int(high @ low) << (_HALF + 1)
        total += int(low @ low)
    return total
