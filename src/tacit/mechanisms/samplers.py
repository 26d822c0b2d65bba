"""Who takes part in a round.

Each sampler is a law for the size of the cohort and then a uniform subset of that size.  For
Poisson sampling the law is binomial, and the two steps together are exactly "every user joins
independently with probability q", at the cost of the cohort rather than of the population.

A sampler that lets users take *turns* draws from those whose turn it is (`turns.Turns`).

A sampler with a declared population draws from that many *slots*.  Actual users fill the first of
them; a slot without a user contributes nothing.  So a user who leaves an empty slot behind moves
nobody else, and the size law does not depend on how many users there really are.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from tacit.mechanisms.participation import Participation
from tacit.mechanisms.parts import PlanPart
from tacit.mechanisms.strategies import INDEPENDENT, Strategy
from tacit.mechanisms.turns import FIRST, Position
from tacit.privacy import checks, events
from tacit.privacy.events import Adjacency, Event, Horizon
from tacit.privacy.records import Probability, at_least
from tacit.privacy.stream import Stream

Cohort = NDArray[np.int64]


@dataclass(frozen=True)
class Sampler(PlanPart, abc.ABC):
    """Draws a cohort, and knows the event that makes of Gaussian noise."""

    if TYPE_CHECKING:  # a field of some samplers and derived in others, so it cannot be abstract

        @property
        def adjacency(self) -> Adjacency:
            """Which two datasets its events are stated for."""

        @property
        def sampling_prob(self) -> float:
            """q, the declared chance of each user to be in a cohort."""

    @abc.abstractmethod
    def draw(self, users: int, stream: Stream) -> Cohort:
        """Sorted indices of the users of one round, out of `users` actual ones."""

    @abc.abstractmethod
    def event(self, noise_multiplier: float) -> Event:
        """The event of one round whose noise stddev / sensitivity is `noise_multiplier`."""

    def describe(self) -> str:
        """The sampler in a few words, as the claim names it."""
        return self.event(1.0).sampling

    @abc.abstractmethod
    def largest_cohort(self, population: int) -> int:
        """No cohort of a population of this size is larger."""


@dataclass(frozen=True)
class PoissonSampler(Sampler):
    """Every user joins every round independently with probability q.

    Guarantee: add/remove-one, amplified by q.  With q = 1 everybody takes part and the event is the
    plain Gaussian mechanism.
    """

    sampling_prob: Probability
    kind: ClassVar[str] = "poisson"
    adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE

    def draw(self, users: int, stream: Stream) -> Cohort:
        """A binomial size, then a uniform subset of that size: every user joins independently."""
        if users == 0:
            return np.empty(0, np.int64)
        return stream.subset(users, stream.binomial(users, self.sampling_prob))

    def event(self, noise_multiplier: float) -> Event:
        """The Poisson-sampled Gaussian, or the plain one if everybody joins."""
        if self.sampling_prob == 1:
            return events.Gaussian(noise_multiplier, self.adjacency)
        return events.PoissonGaussian(self.sampling_prob, noise_multiplier)

    def largest_cohort(self, population: int) -> int:
        return population


@dataclass(frozen=True)
class TurnSampler(Sampler):
    """Users take turns: in groups by a hash of their own ids, nobody again within `separation`.

    Of the group whose turn it is, every user joins independently with the probability `share`.
    What rounds cost depends on how their noise is correlated, and on all rounds of a horizon.
    """

    separation: Annotated[int, at_least(1)]
    share: Probability

    @property
    def sampling_prob(self) -> float:
        """q, the chance of each user to be in a cohort, if groups are of equal size."""
        return self.share / self.separation

    def draw(self, users: int, stream: Stream) -> Cohort:
        """A binomial size, then a uniform subset of that size, of those whose turn it is."""
        if users == 0:
            return np.empty(0, np.int64)
        return stream.subset(users, stream.binomial(users, self.share))

    def event(self, noise_multiplier: float) -> Event:
        """That of a single round: with one, there is nothing to be correlated with."""
        return self.horizon_event(noise_multiplier, INDEPENDENT, FIRST)

    @abc.abstractmethod
    def horizon_event(self, noise_multiplier: float, strategy: Strategy, at: Position) -> Horizon:
        """The event of all rounds of a horizon so far.

        `noise_multiplier` is that of a single round: the deviation of fresh noise over the
        sensitivity to one contribution.
        """

    def describe(self) -> str:
        """In words that, unlike those of an event, do not depend on the number of rounds."""
        joins = "" if self.share == 1 else f", of whom each joins with probability {self.share:.6g}"
        return f"users take turns, nobody again within {self.separation:,} rounds{joins}"

    def largest_cohort(self, population: int) -> int:
        return population


@dataclass(frozen=True)
class MinSeparationSampler(TurnSampler):
    """Turns without any claim of sampling: who takes part may be known to everybody.

    Guarantee: one Gaussian for all rounds, by the sensitivity to the worst pattern of
    participations that turns allow (docs/privacy/correlated-noise.md).
    """

    replace_one: bool = False
    kind: ClassVar[str] = "min-separation"

    @property
    def adjacency(self) -> Adjacency:
        """Add/remove-one, or replace-one, which moves what is released by twice as much."""
        return Adjacency.REPLACE if self.replace_one else Adjacency.ADD_REMOVE

    def horizon_event(self, noise_multiplier: float, strategy: Strategy, at: Position) -> Horizon:
        sensitivity = strategy.sensitivity(Participation(self.separation), at.rounds)
        return events.TurnsGaussian(
            horizon=at.horizon,
            rounds=at.rounds,
            separation=self.separation,
            noise=strategy.name,
            noise_multiplier=noise_multiplier / sensitivity,
            stated_for=self.adjacency,
        )


@dataclass(frozen=True)
class CyclicPoissonSampler(TurnSampler):
    """Turns in which who joins is hidden: every turn is amplified as a round of Poisson sampling.

    Guarantee: if noise is taken back within the separation, as many rounds of Poisson sampling with
    probability `share` as a user has turns (Choquette-Choo et al. 2023, "(Amplified) banded matrix
    factorization").
    """

    kind: ClassVar[str] = "cyclic-poisson"
    adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE

    def horizon_event(self, noise_multiplier: float, strategy: Strategy, at: Position) -> Horizon:
        if not strategy.fits_in(self.separation):
            raise ValueError(
                f"plan.noise must be banded with at most plan.separation = {self.separation} bands"
                f" for cyclic Poisson sampling, got {strategy.name}: a user's turns may not share"
                " noise"
            )
        return events.CyclicPoissonGaussian(
            horizon=at.horizon,
            rounds=at.rounds,
            separation=self.separation,
            noise=strategy.name,
            noise_multiplier=noise_multiplier / strategy.largest_column(at.rounds),
            sampling_prob=self.share,
        )


@dataclass(frozen=True)
class _SlotSampler(Sampler):
    """A sampler over a declared number of slots, of which actual users fill the first."""

    population: Annotated[int, at_least(1)]

    def _occupied(self, users: int, size: int, stream: Stream) -> Cohort:
        """The actual users among `size` slots, which are drawn uniformly."""
        if users > self.population:
            raise ValueError(
                f"population must be at least the number of users, {users}, got {self.population};"
                " declare a population that the users cannot exceed"
            )
        slots = stream.subset(self.population, size)
        return slots[slots < users]


@dataclass(frozen=True)
class TruncatedPoissonSampler(_SlotSampler):
    """Poisson sampling whose cohort never exceeds `max_cohort`: the rest is dropped uniformly.

    Guarantee: add/remove-one over the declared slots, with an event of its own, because a user's
    chance given the others' is no longer q once the cap binds.  Where it cannot bind this is
    `PoissonSampler`.
    """

    sampling_prob: Probability
    max_cohort: Annotated[int, at_least(1)]
    kind: ClassVar[str] = "truncated-poisson"
    adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE

    @classmethod
    def with_default_cap(
        cls, population: int, sampling_prob: float, *, delta: float, rounds: int
    ) -> Self:
        """The smallest cap that one round exceeds with probability below delta / (10 rounds)."""
        checks.open_unit("delta", delta)
        checks.whole("rounds", rounds, at_least=1)
        allowed = delta / (10 * rounds)
        low, high = 1, population  # nothing exceeds the population itself
        while low < high:
            middle = (low + high) // 2
            if _probability_above(middle, population, sampling_prob) < allowed:
                high = middle
            else:
                low = middle + 1
        return cls(population, sampling_prob, low)

    def draw(self, users: int, stream: Stream) -> Cohort:
        """A binomial number of slots, cut to the cap, and the users in them."""
        size = min(stream.binomial(self.population, self.sampling_prob), self.max_cohort)
        return self._occupied(users, size, stream)

    def event(self, noise_multiplier: float) -> Event:
        """An event of its own, or that of Poisson sampling where the cap cannot bind."""
        if self.max_cohort >= self.population:
            return PoissonSampler(self.sampling_prob).event(noise_multiplier)
        return events.TruncatedPoissonGaussian(
            self.population, self.sampling_prob, self.max_cohort, noise_multiplier
        )

    def largest_cohort(self, population: int) -> int:
        return min(self.max_cohort, population)


@dataclass(frozen=True)
class FixedSizeSampler(_SlotSampler):
    """Exactly C = `cohort` of the slots, without replacement, so q = C / K.

    Guarantee: replace-one, where a user may also be replaced by an empty slot.  With everybody in
    the cohort there is no amplification and the event is the plain Gaussian mechanism.
    """

    cohort: Annotated[int, at_least(1)]
    kind: ClassVar[str] = "fixed-size"
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cohort > self.population:
            raise ValueError(
                f"cohort must be at most the population of {self.population}, got {self.cohort}"
            )

    @property
    def sampling_prob(self) -> float:
        """q = C / K."""
        return self.cohort / self.population

    def draw(self, users: int, stream: Stream) -> Cohort:
        """The users among `cohort` slots; fewer than that if there are empty slots."""
        return self._occupied(users, self.cohort, stream)

    def event(self, noise_multiplier: float) -> Event:
        """Sampling without replacement, or the plain Gaussian if everybody takes part."""
        if self.cohort == self.population:
            return events.Gaussian(noise_multiplier, self.adjacency)
        return events.FixedSizeGaussian(self.population, self.cohort, noise_multiplier)

    def largest_cohort(self, population: int) -> int:
        return self.cohort


def _probability_above(size: int, trials: int, prob: float) -> float:
    """P(Binomial(trials, prob) > size), accurate far into the tail."""
    if size >= trials:
        return 0.0
    return float(betainc(size + 1, trials - size, prob))
