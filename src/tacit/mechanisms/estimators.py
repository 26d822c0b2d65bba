"""How much a user counts, and the average of a cohort (McMahan et al. 2018, section 2).

A user with n_k examples has weight w_k = min(n_k / w-hat, 1), by a public cap w-hat.

Every estimator is written as a public multiple of a *statistic* in units of the sum of weighted
updates, so that the noise is added on the grid of the integer sum: average = statistic /
denominator, where the denominator is a public constant and never the realised sum of weights.

Guarantee (users with |update| <= S and weights in [0, 1]): `sensitivity` bounds how far one user
moves the average.

| estimator | statistic | denominator | add/remove-one | replace-one |
|---|---|---|---|---|
| fixed denominator | sum | qW | S / qW | 2S / qW |
| clipped denominator | sum * qW_min / max(qW_min, weights) | qW_min | 2S / qW_min | 3S / qW_min |

Lemma 1 asks for |w_k update_k| <= S only.  For the clipped denominator that is not enough: its
proof uses |average| <= S, which needs |update_k| <= S itself.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.fixed_point import WHOLE_WEIGHT, Integers
from tacit.mechanisms.parts import PlanPart
from tacit.privacy import checks
from tacit.privacy.events import Adjacency
from tacit.privacy.records import Positive


@dataclass(frozen=True)
class Estimator(PlanPart, abc.ABC):
    """Turns a cohort's sum into an average."""

    @abc.abstractmethod
    def statistic(
        self, update_sum: Integers, weight_sum: float, sampling_prob: float
    ) -> NDArray[Any]:
        """What the noise is added to, in units of the sum; int64 where it is the sum itself."""

    @abc.abstractmethod
    def denominator(self, sampling_prob: float) -> float:
        """The public constant between the statistic and the average."""

    @abc.abstractmethod
    def relative_sensitivity(self, adjacency: Adjacency) -> float:
        """The sensitivity of the statistic in multiples of S."""

    def sensitivity(self, clip_norm: float, sampling_prob: float, adjacency: Adjacency) -> float:
        """The sensitivity of the average."""
        return self.relative_sensitivity(adjacency) * clip_norm / self.denominator(sampling_prob)


@dataclass(frozen=True)
class TrueAverage(Estimator):
    """sum / weights, and zero for an empty cohort.  Not for privacy: no bound on sensitivity."""

    kind: ClassVar[str] = "true-average"

    def statistic(
        self, update_sum: Integers, weight_sum: float, sampling_prob: float
    ) -> NDArray[np.float64]:
        """sum / weights: the realised weights, which no guarantee survives."""
        if weight_sum == 0:
            return np.zeros(update_sum.shape)
        return update_sum / weight_sum

    def denominator(self, sampling_prob: float) -> float:
        return 1.0

    def relative_sensitivity(self, adjacency: Adjacency) -> float:
        return math.inf


@dataclass(frozen=True)
class FixedDenominator(Estimator):
    """sum / qW, with the declared total weight W of all users."""

    total_weight: Positive
    kind: ClassVar[str] = "fixed-denominator"

    def statistic(self, update_sum: Integers, weight_sum: float, sampling_prob: float) -> Integers:
        """The integer sum itself."""
        return update_sum

    def denominator(self, sampling_prob: float) -> float:
        return sampling_prob * self.total_weight

    def relative_sensitivity(self, adjacency: Adjacency) -> float:
        """1: a user's weighted update appears or disappears; 2: one is replaced by another."""
        return 2.0 if adjacency is Adjacency.REPLACE else 1.0


@dataclass(frozen=True)
class ClippedDenominator(Estimator):
    """sum / max(qW_min, weights), with the declared lower bound W_min on the total weight.

    Write m = qW_min.  Under add/remove-one the supremum is 2S / (m + 1), so that the bound of
    2S / m has room for the rounding of this float64 statistic, whose norm is at most mS, for any m
    below 10^7.

    Under replace-one, 3S / m bounds Lemma 1's terms one by one.  2S / m can be proved as well: with
    w >= w', so D >= D' >= m, and s <= D' for the others' weights,

        |difference| <= sS (1/D' - 1/D) + wS/D + w'S/D' <= S ((w - w')/D + w/D + w'/D') <= 2wS / m.

    The larger constant is the one that is charged for.
    """

    min_weight: Positive
    kind: ClassVar[str] = "clipped-denominator"

    def statistic(
        self, update_sum: Integers, weight_sum: float, sampling_prob: float
    ) -> NDArray[np.float64]:
        """sum * qW_min / max(qW_min, weights)."""
        least = self.denominator(sampling_prob)
        share = least / max(least, weight_sum)
        return np.multiply(update_sum, share, dtype=np.float64)

    def denominator(self, sampling_prob: float) -> float:
        return sampling_prob * self.min_weight

    def relative_sensitivity(self, adjacency: Adjacency) -> float:
        """2 and 3 times S: see the class and Lemma 1 of the paper."""
        return 3.0 if adjacency is Adjacency.REPLACE else 2.0


@dataclass(frozen=True)
class UserWeighting(PlanPart):
    """w_k = min(n_k / w-hat, 1) by a public cap w-hat; without a cap every user has weight 1."""

    user_weight_cap: Positive | None = None
    kind: ClassVar[str] = "user-weighting"

    def weigh(self, examples: int) -> int:
        """w_k of a user with `examples` examples, rounded down to whole units of 2^-30."""
        checks.whole("examples", examples)
        if self.user_weight_cap is None:
            return WHOLE_WEIGHT
        return math.floor(min(examples / self.user_weight_cap, 1.0) * WHOLE_WEIGHT)
