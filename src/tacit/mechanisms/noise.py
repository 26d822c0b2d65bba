"""The noise of a round, as a part of its plan.

The plan works out how large the noise has to be (z times the sensitivity, in steps of the round's
grid).  A `Noise` decides what is drawn, and what a number of rounds with it release.  Noise that is
correlated over the rounds needs what it drew before; that is its state, which is as secret as the
run's key: whoever holds it can take the noise off again.

Guarantee: what is released is a function of (statistic + Gaussian noise of the stated standard
deviation), so it is as private as that sum.  For an integer statistic, sum + round(noise) equals
round(sum + noise).  On the grid no low-order bits of a float can betray the statistic.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.fixed_point import LARGEST_NOISE, Integers
from tacit.mechanisms.parts import Part
from tacit.mechanisms.samplers import Sampler
from tacit.privacy import checks
from tacit.privacy.events import Composition
from tacit.privacy.randomness import Stream

# What a noise keeps of earlier rounds; empty before the first round.
NoiseState = tuple[NDArray[np.float64], ...]


@dataclass(frozen=True)
class Noise(Part, abc.ABC):
    """Gaussian noise of z times the sensitivity under add/remove-one; z is `noise_multiplier`."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        checks.positive("noise_multiplier", self.noise_multiplier)

    @abc.abstractmethod
    def add(
        self, statistic: NDArray[Any], stddev: float, state: NoiseState, stream: Stream
    ) -> tuple[Integers, NoiseState]:
        """The noisy statistic, rounded to the grid, and the state for the next round.

        `stddev` is the standard deviation on every coordinate, in steps of the grid.
        """

    @abc.abstractmethod
    def releases(self, sampler: Sampler, multiplier: float, rounds: int) -> Composition:
        """What `rounds` rounds cost whose noise stddev / sensitivity is `multiplier`."""


@dataclass(frozen=True)
class IndependentNoise(Noise):
    """Fresh noise in every round (McMahan et al. 2018, Algorithm 1).

    Guarantee: every round is one release of the sampler's event, independent of all others.
    """

    kind: ClassVar[str] = "independent"

    def add(
        self, statistic: NDArray[Any], stddev: float, state: NoiseState, stream: Stream
    ) -> tuple[Integers, NoiseState]:
        return add_gaussian(statistic, stddev, stream), ()

    def releases(self, sampler: Sampler, multiplier: float, rounds: int) -> Composition:
        return Composition.of([(sampler.event(multiplier), rounds)])


def add_gaussian(statistic: NDArray[Any], stddev: float, stream: Stream) -> Integers:
    """The statistic with independent noise on every coordinate, rounded to the grid."""
    checks.positive("noise stddev on the grid", stddev)
    if not stddev <= LARGEST_NOISE:
        raise ValueError(
            f"noise stddev on the grid must be at most {LARGEST_NOISE:.3g} steps, so that"
            f" float64 noise has the right law on it, got {stddev:.3g}"
        )
    noise = stream.normal(statistic.size)
    noise *= stddev
    if statistic.dtype == np.int64:
        return statistic + np.rint(noise, out=noise).astype(np.int64)
    noise += statistic
    return np.rint(noise, out=noise).astype(np.int64)
