"""The noise of a round, as a part of its plan.

The plan works out how large the noise has to be (z times the sensitivity, in steps of the round's
grid).  A `RoundNoise` decides what is drawn, and what a number of rounds with it release.  Noise
that is correlated over the rounds needs what it drew before; that is its state, which is as secret
as the run's key, because it would allow the noise to be subtracted again.  Another kind of noise is
one more subclass, and one more line in `NOISES` (docs/contributing/noise.md).  Noise that the users
add themselves, each a share, is in `distributed_noise`.

Guarantee: what is released is a function of (statistic + Gaussian noise of the stated standard
deviation), so it is as private as that sum.  For an integer statistic, sum + round(noise) equals
round(sum + noise).  On the grid no low-order bits of a float can betray the statistic.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.mechanisms.fixed_point import LARGEST_NOISE, IntegerGrid, Integers
from tacit.mechanisms.parts import PlanPart
from tacit.mechanisms.samplers import Sampler, TurnSampler
from tacit.mechanisms.strategies import INDEPENDENT, State, Strategy, running_sum_errors
from tacit.mechanisms.turns import FIRST, Position
from tacit.privacy import checks
from tacit.privacy.events import Adjacency, Composition, Event
from tacit.privacy.records import Positive
from tacit.privacy.stream import LARGEST_NORMAL, Stream

# What a noise keeps of earlier rounds; empty before the first round.
NoiseState = State

# How many times as large as fresh noise that of a round may be.  A good strategy stays below 2; one
# whose inverse grows leaves the grid after some dozens of rounds, and beyond 2^53 steps the
# low-order bits of a float64 are no noise: the sum shows below them.
_LARGEST_ROW = 16.0


@dataclass(frozen=True)
class RoundNoise(PlanPart, abc.ABC):
    """Gaussian noise of z times the sensitivity under add/remove-one; z is `noise_multiplier`."""

    noise_multiplier: Positive

    @abc.abstractmethod
    def add(
        self, statistic: NDArray[Any], stddev: float, state: NoiseState, stream: Stream
    ) -> tuple[Integers, NoiseState]:
        """The noisy statistic, rounded to the grid, and the state for the next round.

        `stddev` is the standard deviation on every coordinate, in steps of the grid.
        """

    @abc.abstractmethod
    def event(self, sampler: Sampler, multiplier: float, at: Position) -> Event:
        """What a round costs whose noise stddev / sensitivity is `multiplier`.

        Where users take turns it is what all rounds of the horizon up to this one have cost.
        """

    def adjacency(self, sampler: Sampler) -> Adjacency:
        """What two neighbouring datasets differ in."""
        return sampler.adjacency

    def releases(self, sampler: Sampler, multiplier: float, rounds: int) -> Composition:
        """What `rounds` rounds cost, from the first one of a horizon on."""
        if rounds == 0:
            return Composition()
        return Composition.of(
            [(self.event(sampler, multiplier, replace(FIRST, rounds=rounds)), rounds)]
        )

    def vectors(self, rounds: int) -> int:
        """How many vectors of the model's size (8 bytes a number) its state has at most."""
        return 0

    def relative_error(self, rounds: int) -> float:
        """The error of the running sum, beside that of independent noise as large as the fresh one.

        The error is the standard deviation, as a root mean square over the rounds.
        """
        return 1.0


@dataclass(frozen=True)
class IndependentNoise(RoundNoise):
    """Fresh noise in every round (McMahan et al. 2018, Algorithm 1).

    Guarantee: every round is one release of the sampler's event, independent of all others; or,
    where users take turns, a release for everybody who had theirs.
    """

    kind: ClassVar[str] = "independent"

    def add(
        self, statistic: NDArray[Any], stddev: float, state: NoiseState, stream: Stream
    ) -> tuple[Integers, NoiseState]:
        """The statistic with noise of this round's stream alone; the state stays empty."""
        return add_gaussian(statistic, stddev, stream), ()

    def event(self, sampler: Sampler, multiplier: float, at: Position) -> Event:
        """The sampler's own."""
        if isinstance(sampler, TurnSampler):
            return sampler.horizon_event(multiplier, INDEPENDENT, at)
        return sampler.event(multiplier)


@dataclass(frozen=True)
class CorrelatedNoise(RoundNoise):
    """Noise that is partly taken back in later rounds (Denisov et al. 2022), for sums of rounds.

    What is added in the rounds x_1, x_2, ... is C^-1 z, of fresh noise z and the strategy's matrix
    C, so that all rounds together release C^-1 (C x + z).

    Guarantee: a function of C x + z, so the Gaussian mechanism on C x: as private as `stddev` over
    the sensitivity of C to all contributions of one user, if users take turns.  It holds for every
    number of rounds, since C is triangular.
    """

    strategy: Strategy
    kind: ClassVar[str] = "correlated"

    def add(
        self, statistic: NDArray[Any], stddev: float, state: NoiseState, stream: Stream
    ) -> tuple[Integers, NoiseState]:
        """The statistic with what the fresh noise of this stream and the state make of each other.

        The state that is given is used up.
        """
        noise, state = self.next(statistic.size, stddev, state, stream)
        largest = max(noise.max(initial=0.0), -noise.min(initial=0.0))
        if not largest <= _LARGEST_ROW * LARGEST_NORMAL * LARGEST_NOISE:
            raise ValueError(
                f"plan.strategy must take back what it adds, got noise of {largest:.3g} steps of"
                " the grid, which float64 cannot hold: its coefficients make noise that grows"
            )
        return rounded_sum(statistic, noise), state

    def next(
        self, size: int, stddev: float, state: NoiseState, stream: Stream
    ) -> tuple[NDArray[np.float64], NoiseState]:
        """The noise of a round, and the state after it; all there is to do to repeat a round's."""
        return self.strategy.step(fresh(size, stddev, stream), state)

    def event(self, sampler: Sampler, multiplier: float, at: Position) -> Event:
        """One release of all rounds so far, which the sampler's turns bound."""
        assert isinstance(sampler, TurnSampler), "refused when the plan is made"
        largest = self.strategy.largest_row(at.rounds)
        if not largest <= _LARGEST_ROW:
            raise ValueError(
                f"plan.strategy must make noise of a round that is at most {_LARGEST_ROW:g}"
                f" times as large as fresh noise, got {largest:.3g} times after"
                f" {at.rounds:,} rounds: what it takes back makes it grow"
            )
        return sampler.horizon_event(multiplier, self.strategy, at)

    def vectors(self, rounds: int) -> int:
        return self.strategy.vectors(rounds)

    def relative_error(self, rounds: int) -> float:
        errors = (running_sum_errors(one, rounds)[0] for one in (self.strategy, INDEPENDENT))
        return next(errors) / next(errors)


# What `[plan] noise` of an experiment may say.
NOISES: dict[str, type[RoundNoise]] = {
    IndependentNoise.kind: IndependentNoise,
}


def add_gaussian(statistic: NDArray[Any], stddev: float, stream: Stream) -> Integers:
    """The statistic with independent noise on every coordinate, rounded to the grid."""
    return rounded_sum(statistic, fresh(statistic.size, stddev, stream))


def fresh(size: int, stddev: float, stream: Stream) -> NDArray[np.float64]:
    """Independent noise, in steps of the grid."""
    checks.positive("noise stddev on the grid", stddev)
    if not stddev <= LARGEST_NOISE:
        raise ValueError(
            f"noise stddev on the grid must be at most {LARGEST_NOISE:.3g} steps, so that"
            f" float64 noise has the right law on it, got {stddev:.3g}"
        )
    noise = stream.normal(size)
    noise *= stddev
    return noise


def rounded_sum(statistic: NDArray[Any], noise: NDArray[np.float64]) -> Integers:
    """Statistic and noise, rounded to the grid; the noise is used up."""
    if statistic.dtype == np.int64:
        return statistic + np.rint(noise, out=noise).astype(np.int64)
    noise += statistic
    return np.rint(noise, out=noise).astype(np.int64)


# Noise that several workers add to their shares of a sum (DP-SGD and eDP-SGD).

# In clip norms: the grid is not made finer for less noise than this.
_FINEST_NOISE = 1e-6

# How many noise values are drawn at once.  With a worker for every core: few enough for the cache
# and for one thread.  With a single worker: enough for its stream to use all cores.
_AT_ONCE = 1 << 16
_ALONE_AT_ONCE = 1 << 20


def add_own_noise_(
    share: NDArray[Any], stddev: float, worker: int, workers: int, stream: Stream
) -> NDArray[Any]:
    """Add this worker's part of the noise on the sum of all shares to its share, in place.

    `stddev` is in the unit of the share; to one of integers round(noise) is added.
    Each coordinate has its noise from one worker, the one whose piece of the vector it is in.  So
    the sum has independent noise of `stddev` everywhere, for one draw per coordinate instead of one
    per coordinate and worker: drawing is most of what a private step costs more than another.
    Pieces are of about the same size: noise is drawn once all shares are known, by all at once.
    """
    if not stddev > 0:
        return share  # nothing is drawn
    piece = share[share.size * worker // workers : share.size * (worker + 1) // workers]
    at_once = _AT_ONCE if workers > 1 else _ALONE_AT_ONCE
    for start in range(0, piece.size, at_once):
        part = piece[start : start + at_once]
        noise = stream.normal(part.size)
        noise *= stddev
        if part.dtype.kind == "i":
            part += np.rint(noise, out=noise).astype(part.dtype)
        else:
            part += noise
    return share


def on_grid_(total: NDArray[Any], clip_norm: float, vectors: int, z: float) -> NDArray[Any]:
    """Round a noisy sum of at most `vectors` clipped vectors to a public grid, in place.

    `z` is the noise in clip norms; without noise the sum stays as it is.  The low-order bits of a
    float sum could betray what was summed.
    """
    if z > 0:
        grid = IntegerGrid.for_clip(clip_norm, vectors, max(z, _FINEST_NOISE)).step
        total /= grid
        np.rint(total, out=total)
        total *= grid
    return total
