"""What a client's contribution must be, checked on arrival: a client may send anything.

Guarantee: a contribution that passes moves the sum by no more than the plan's sensitivity, whoever
made it.  With w the weight in units of 2^-30 and S the clip norm, in exact arithmetic,

    |update| <= w S / step       (S / step if the plan clips the weighted update)

layer by layer where the plan clips so.  Everything is an integer, so there is no NaN to pass by.

A silo sends the sum of at most n people.  Of norms that are within their bounds the sum is within
the sum of the bounds, so w is the sum of their weights, and S stands n times where w does not.
Then a sum that passes moves the total by no more than n people could.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.clipping import ClipState
from tacit.mechanisms.fixed_point import HALF_CLIP_BIT, WHOLE_WEIGHT, Contribution, IntegerGrid
from tacit.mechanisms.plan import RoundPlan

_LIMB = 18  # bits: coordinates are split into so many at a time, whose products add up in int64
_MOST_VALUES = 1 << 24  # squares of 2^38, of which so many stay below 2^62


@dataclass(frozen=True)
class Bound:
    """The bound on each contribution to a round, by public values alone.

    `people` is how many the contribution may be of: more than one in the sum of a silo.
    """

    plan: RoundPlan
    clip_state: ClipState
    size: int
    people: int = 1

    @property
    def grid(self) -> IntegerGrid:
        """The grid that contributions are on."""
        return self.plan.grid(self.clip_state)

    @property
    def limit(self) -> int:
        """Every coordinate is below so many steps of the grid."""
        return self.people * self.grid.limit

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
        self._check_bits(bits)
        if update.size and not max(-int(update.min()), int(update.max())) < self.limit:
            raise ValueError(
                f"a coordinate must be within {self.limit} steps of the grid, got one beyond"
            )
        weights = Fraction(weight, WHOLE_WEIGHT)
        share = Fraction(self.people) if self.plan.weight_aware else weights
        for block, norm in self._blocks(update):
            bound = share * Fraction(norm) / Fraction(self.grid.step)
            if not square(block) <= bound * bound:
                raise ValueError(
                    f"the norm of an update must be at most {float(bound):.6g} steps of the grid,"
                    f" got {float(square(block)) ** 0.5:.6g}"
                )

    def _check_weight(self, weight: int) -> None:
        is_equal = self.plan.weighting.user_weight_cap is None
        if is_equal and self.people == 1 and weight != WHOLE_WEIGHT:
            raise ValueError(f"the weight must be {WHOLE_WEIGHT}, got {weight}")
        if is_equal and weight % WHOLE_WEIGHT:
            raise ValueError(f"the weight must be a multiple of {WHOLE_WEIGHT}, got {weight}")
        most = self.people * WHOLE_WEIGHT
        if not 0 <= weight <= most:
            raise ValueError(f"the weight must be from 0 to {most}, got {weight}")

    def _check_bits(self, bits: NDArray[np.int64]) -> None:
        if self.people == 1:
            if not np.isin(bits, (-HALF_CLIP_BIT, HALF_CLIP_BIT)).all():
                raise ValueError(f"clip bits must be +-{HALF_CLIP_BIT}, got others")
            return
        most = self.people * HALF_CLIP_BIT
        if not all(-most <= int(bit) <= most and bit % HALF_CLIP_BIT == 0 for bit in bits):
            raise ValueError(
                f"clip bits must be multiples of {HALF_CLIP_BIT} from -{most} to {most}, got others"
            )

    def _blocks(self, update: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], float]]:
        """The parts of an update that have a bound each, with their clip norms."""
        norms = self.clip_state.norms
        if len(norms) <= 1:
            return [(update, norm) for norm in norms]
        assert self.plan.layers is not None
        cuts = np.cumsum(self.plan.layers)[:-1]
        return list(zip(np.split(update, cuts), norms, strict=True))


def square(values: NDArray[np.int64]) -> int:
    """The exact sum of squares, in integers, of values within 2^62."""
    total = 0
    for first in range(0, len(values), _MOST_VALUES):
        limbs = _limbs(values[first : first + _MOST_VALUES])
        for place, one in enumerate(limbs):
            total += int(one @ one) << (2 * _LIMB * place)
            for other_place, other in enumerate(limbs[:place]):
                total += int(one @ other) << (_LIMB * (place + other_place) + 1)
    return total


def _limbs(values: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The values as sums of limbs times 2^(18 i); each is below 2^18, and the last has the sign."""
    limbs, rest = [], values
    while rest.size and max(int(rest.max()), -int(rest.min())) > 1 << _LIMB:
        higher = rest >> _LIMB
        limbs.append(rest - (higher << _LIMB))
        rest = higher
    return [*limbs, rest]
