"""Noise that the clients share: the distributed discrete Gaussian (Kairouz, Liu and Steinke 2021).

A client clips its update to S, rotates it, divides it by a public step, rounds it to integers, and
adds discrete Gaussian noise of a share of the variance.  The server gets the sum modulo 2^width,
which is noisy before it is known to anybody; it undoes step and rotation.

Guarantee: the integers of a client have a squared norm of at most `squared_bound` before noise,
however they came about: it is the last thing that is checked, in exact arithmetic.  So the sum over
the integers is one release of `event()`, as long as at least `survivors` inputs are in it, of which
at most `colluding` know and subtract their own noise; more noise is post-processing.  The sum
modulo 2^width is post-processing, too, so wrapping costs accuracy and no privacy; and so is all
that the server makes of it.

Rounding up and down at random makes the mean right and the norm larger.  As in the paper's
section on conditional rounding, |x| <= s in steps becomes

    |rounded|^2 <= s^2 + d/4 + sqrt(2 log(1/b)) (s + sqrt(d)/2)

in d dimensions with probability at least 1 - b, here e^{-1/2}.  The right side, or (s + sqrt(d))^2
which always holds, is the bound, and a rounding beyond it is drawn again.  This shifts the mean by
a little and the guarantee by nothing, since it rests on the check and not on the probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.clipping import ClipState
from tacit.mechanisms.estimators import FixedDenominator
from tacit.mechanisms.plan import RoundPlan
from tacit.privacy.events import Adjacency, DistributedGaussian
from tacit.privacy.records import Count, Positive, Record, at_least
from tacit.privacy.stream import Stream
from tacit.secure_sum.discrete_gaussian import discrete_gaussian
from tacit.secure_sum.rotation import Rotation
from tacit.secure_sum.rules import SumRules

# A coordinate of the sum wraps if it is further than so many standard deviations from zero: one in
# two million, each of which costs the square of ten deviations.
_DEVIATIONS = 5.0
# Rounding must not make the bound, and so the noise, larger than this many times.
_MOST_INFLATION = 1.5
_LARGEST_STEPS = 2**30
_LOG_FAILURE = 0.5  # log(1/b) of the bound on a rounded vector's norm
_TRIES = 40


@dataclass(frozen=True, kw_only=True)
class DistributedNoise(Record):
    """The public numbers of a sum of `clients` updates of at most `clip_norm`, noise included.

    `noise_multiplier` is the noise of the honest survivors over the sensitivity.  The step is the
    finest for which the sum of all clients and its noise have room in `width` bits.
    """

    clip_norm: Positive
    noise_multiplier: Positive
    size: Annotated[int, at_least(1)]
    clients: Annotated[int, at_least(2)]
    survivors: Annotated[int, at_least(2)]
    colluding: Count = 0
    width: Annotated[int, at_least(1)] = 16
    title = "distributed noise"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.colluding < self.survivors <= self.clients:
            raise ValueError(
                f"survivors must be more than the {self.colluding} colluding and at most all"
                f" {self.clients} clients, got {self.survivors}"
            )
        self.event()  # refuses shares that are too small
        inflation = math.sqrt(self.squared_bound) / self.steps
        if not inflation <= _MOST_INFLATION:
            raise ValueError(
                f"width must be above {self.width} bits for {self.clients} clients and a"
                f" noise_multiplier of {self.noise_multiplier:g}: rounding would make the noise"
                f" {inflation:.3g} times as large"
            )

    @classmethod
    def for_plan(
        cls, plan: RoundPlan, clip_state: ClipState, size: int, rules: SumRules, width: int = 16
    ) -> Self:
        """For the updates of a plan's round, under the rules that its sums are made by.

        The sum of weights is not noised, so the plan has to do without: a fixed denominator and no
        clip bits.
        """
        if not plan.is_private or plan.bits or not isinstance(plan.estimator, FixedDenominator):
            raise ValueError(
                "noise that clients share needs a plan with noise, the fixed denominator and a clip"
                " norm that does not adapt, because weights and clip bits would have no noise"
            )
        return cls(
            clip_norm=clip_state.total_norm,
            noise_multiplier=plan.update_noise_multiplier,
            size=size,
            clients=rules.clients,
            survivors=rules.survivors,
            colluding=rules.colluding,
            width=width,
        )

    # What follows from the fields.

    @cached_property
    def rotation(self) -> Rotation:
        return Rotation(self.size)

    @cached_property
    def steps(self) -> int:
        """The clip norm in steps: the most for which a coordinate of the sum has room."""
        low, high = 1, _LARGEST_STEPS
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._has_room(middle) else (low, middle - 1)
        return low

    @property
    def step(self) -> float:
        """What an integer stands for, in the unit of an update's coordinates."""
        return self.clip_norm / self.steps

    @cached_property
    def squared_bound(self) -> int:
        """The most that the squared norm of a client's integers is, before noise."""
        return _squared_bound(self.steps, self.rotation.padded)

    @property
    def shares(self) -> int:
        """How many honest clients' noise is in every sum."""
        return self.survivors - self.colluding

    @property
    def share_stddev(self) -> float:
        """The parameter of each client's noise, in steps."""
        return self.noise_multiplier * math.sqrt(self.squared_bound / self.shares)

    def noise_stddev(self, survivors: int) -> float:
        """The standard deviation of the noise on a sum of so many, in the unit of the updates."""
        return self.step * self.share_stddev * math.sqrt(survivors)

    def event(self, adjacency: Adjacency = Adjacency.ZERO_OUT) -> DistributedGaussian:
        """What a sum costs: somebody's vector against none, or against any other."""
        times = 2 if adjacency is Adjacency.REPLACE else 1
        return DistributedGaussian(
            shares=self.shares,
            share_stddev=self.share_stddev,
            sensitivity=times * math.sqrt(self.squared_bound),
            coordinates=self.rotation.padded,
            stated_for=adjacency,
        )

    def rules(self, threshold: int) -> SumRules:
        """The rules of the secure sum that such vectors are added up by."""
        return SumRules(
            clients=self.clients,
            threshold=threshold,
            survivors=self.survivors,
            colluding=self.colluding,
            size=self.rotation.padded,
            width=self.width,
            limit=None,
        )

    # A round.

    def contribution(
        self, update: NDArray[np.floating], rotation: Stream, own: Stream
    ) -> NDArray[np.int64]:
        """A client's vector for the sum, its noise included.

        `rotation` is public and the same for all clients of a sum; `own` is the client's secret,
        from its operating system, and is never used for another vector.
        """
        vector = self.rounded(update, rotation, own)
        vector += discrete_gaussian(self.share_stddev, vector.size, own)
        return vector

    def rounded(
        self, update: NDArray[np.floating], rotation: Stream, own: Stream
    ) -> NDArray[np.int64]:
        """The rotated update in whole steps, before noise; secret.

        One that is longer than the clip norm is scaled down to it, and one with a NaN or an
        infinity becomes zero.
        """
        exact = self.rotation.rotate(update.astype(np.float64), rotation)
        norm = float(np.linalg.norm(exact))
        if not math.isfinite(norm):
            return np.zeros(exact.shape, np.int64)
        exact *= self.steps / max(norm, self.clip_norm)
        below = np.floor(exact)
        exact -= below
        whole = below.astype(np.int64)
        for _ in range(_TRIES):
            rounded = whole + (own.uniform(exact.size) < exact)
            if self._is_bounded(rounded):
                return rounded
        toward_zero = np.trunc(below + exact).astype(np.int64)
        return toward_zero if self._is_bounded(toward_zero) else np.zeros_like(whole)

    def total(self, summed: NDArray[np.int64], rotation: Stream) -> NDArray[np.float64]:
        """The noisy sum of the updates, from the sum of the contributions modulo 2^width."""
        return self.rotation.restore(summed * self.step, rotation)

    def _is_bounded(self, vector: NDArray[np.int64]) -> bool:
        """Exactly: no square of an int64 sum wraps, for coordinates of at most steps + 1."""
        return int(np.vdot(vector, vector)) <= self.squared_bound

    def _has_room(self, steps: int) -> bool:
        """Whether the sum of all clients' integers is within 2^(width - 1), but for rare tails."""
        noise: float = self.noise_multiplier**2 * _squared_bound(steps, self.rotation.padded)
        noise *= self.clients / self.shares  # if nobody drops out
        spread: float = min(1.0, _DEVIATIONS / math.sqrt(self.rotation.padded))
        signal = self.clients * steps * spread
        rounding = self.clients / 4
        return _DEVIATIONS * math.sqrt(noise + rounding) + signal <= 1 << (self.width - 1)


def _squared_bound(steps: int, coordinates: int) -> int:
    """The bound of the module's formula, rounded down: squared norms are whole."""
    root = math.sqrt(coordinates)
    likely = math.sqrt(2 * _LOG_FAILURE) * (steps + root / 2)
    return math.floor(min(steps**2 + coordinates / 4 + likely, (steps + root) ** 2))
