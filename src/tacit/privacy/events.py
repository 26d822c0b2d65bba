"""What was done to people's data, as plain data that an accountant can read.

An event describes one release.  It is derived from the plan that ran it (see
`tacit.mechanisms.plan`), written to the ledger as JSON, and interpreted by the
accountants.  Events never carry anything that depends on the users.

A Gaussian's `noise_multiplier` here is always the standard deviation of the noise over
the sensitivity *under the event's own adjacency*.  So a mechanism whose noise has the
standard deviation z*S enters with z under add/remove, but with z/2 under replace-one,
where one user's change moves the sum by up to 2S.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

from tacit.privacy import checks, discrete_sums
from tacit.privacy.records import (
    NonNegative,
    OpenUnit,
    Positive,
    Probability,
    Record,
    Text,
    at_least,
)


class Adjacency(enum.StrEnum):
    """Which two datasets a guarantee makes hard to tell apart."""

    ADD_REMOVE = "add/remove-one"
    REPLACE = "replace-one"
    # Somebody's data is there or is not, and that they take part is known either way.
    ZERO_OUT = "zero-out-one"


@dataclass(frozen=True)
class Event(Record):
    """A release, or something that costs nothing and is recorded all the same.

    Events are values: equal events are the same release made again.  Their fields are public
    numbers, and `kind` is their name in a ledger.
    """

    kind: ClassVar[str]
    _adjacency: ClassVar[Adjacency | None] = None

    def __init_subclass__(cls) -> None:
        cls.title = f"privacy event {cls.kind!r}"

    @property
    def adjacency(self) -> Adjacency | None:
        """The adjacency the event is stated for; None where any would do."""
        stated: Adjacency | None = getattr(self, "stated_for", self._adjacency)
        return stated

    @property
    def sampling(self) -> str:
        """Who took part, in words; empty where that says nothing."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """The event as JSON types only."""
        return {"kind": self.kind} | super().to_json()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The event that `to_json` wrote.  An unknown kind fails closed and is named."""
        if not isinstance(data, Mapping):
            raise ValueError(f"event must be a JSON object, got {data!r}")
        fields = dict(data)
        kind = fields.pop("kind", None)
        if kind not in _KINDS:
            known = ", ".join(sorted(_KINDS))
            raise ValueError(f"unknown privacy event {kind!r}; known are {known}")
        event = super(Event, _KINDS[kind]).from_json(fields)
        assert isinstance(event, cls)
        return event


@dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian noise on a sum that everybody is in."""

    noise_multiplier: Positive
    stated_for: Adjacency = Adjacency.ADD_REMOVE
    kind: ClassVar[str] = "gaussian"

    @property
    def sampling(self) -> str:
        return "no sampling (everybody in every round)"


@dataclass(frozen=True)
class PoissonGaussian(Event):
    """Gaussian noise on a cohort that every user joins independently (add/remove-one)."""

    sampling_prob: Probability
    noise_multiplier: Positive
    kind: ClassVar[str] = "poisson-gaussian"
    _adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE

    @property
    def sampling(self) -> str:
        return f"Poisson sampling with probability {self.sampling_prob:.6g}"


@dataclass(frozen=True)
class TruncatedPoissonGaussian(Event):
    """A Poisson cohort cut down to `max_cohort` users, the rest dropped uniformly."""

    population: Annotated[int, at_least(1)]
    sampling_prob: Probability
    max_cohort: Annotated[int, at_least(1)]
    noise_multiplier: Positive
    kind: ClassVar[str] = "truncated-poisson-gaussian"
    _adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE

    @property
    def sampling(self) -> str:
        return (
            f"Poisson sampling with probability {self.sampling_prob:.6g}, cut to"
            f" {self.max_cohort:,} a round"
        )


@dataclass(frozen=True)
class FixedSizeGaussian(Event):
    """Gaussian noise on a cohort of exact size, drawn without replacement (replace-one)."""

    population: Annotated[int, at_least(1)]
    cohort: Annotated[int, at_least(1)]
    noise_multiplier: Positive
    kind: ClassVar[str] = "fixed-size-gaussian"
    _adjacency: ClassVar[Adjacency] = Adjacency.REPLACE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cohort > self.population:
            raise ValueError(
                f"cohort must be at most the population of {self.population}, got {self.cohort}"
            )

    @property
    def sampling(self) -> str:
        return f"fixed-size sampling of {self.cohort:,} a round without replacement"


@dataclass(frozen=True)
class DistributedGaussian(Event):
    """A sum to which its own contributors add the noise, each a share of it.

    At least `shares` of them are honest and add discrete Gaussian noise of `share_stddev` to each
    of `coordinates` integers, which one user moves by at most `sensitivity` in Euclidean norm.
    More shares than that are post-processing.  Shares come with people, so who takes part is no
    secret, and add/remove-one adjacency has no meaning here.

    The sum of discrete Gaussians is not one: see `privacy.discrete_sums` for what it costs.
    """

    shares: Annotated[int, at_least(1)]
    share_stddev: Positive
    sensitivity: Positive
    coordinates: Annotated[int, at_least(1)]
    stated_for: Adjacency = Adjacency.ZERO_OUT
    kind: ClassVar[str] = "distributed-gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        discrete_sums.check(self.share_stddev, self.shares)
        if self.stated_for is Adjacency.ADD_REMOVE:
            raise ValueError(
                "noise that contributors add cannot be stated for add/remove-one adjacency, because"
                " whoever leaves takes a share of the noise along"
            )

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of the shares' sum over the sensitivity."""
        return math.sqrt(self.shares) * self.share_stddev / self.sensitivity

    @property
    def excess(self) -> float:
        """What every Renyi divergence can exceed that of a Gaussian by."""
        return self.coordinates * discrete_sums.excess(self.share_stddev, self.shares)

    @property
    def sampling(self) -> str:
        adding = f"at least {self.shares:,} honest ones add noise"
        return f"no sampling (everybody in every round, {adding})"


@dataclass(frozen=True)
class Horizon(Event):
    """All rounds of a horizon so far, as one release.

    A horizon is a stretch of rounds in which users take turns, nobody again within `separation`
    rounds, and whose noise may be correlated.  Its rounds have no cost each of their own.  So every
    charge states what all of them have cost, up to and with its own round: of several charges of
    one horizon only that of the most rounds counts (`tally`), and it is accounted as what it
    `amounts_to`.

    `horizon` is its name in a ledger; two charges of one name and number of rounds would be two
    releases for the price of one, and a ledger refuses them.
    """

    kind: ClassVar[str] = "horizon"

    horizon: Text
    rounds: Annotated[int, at_least(1)]
    separation: Annotated[int, at_least(1)]
    noise: Text  # how it is correlated
    noise_multiplier: Positive

    @property
    def times(self) -> int:
        """How often a user takes part at most."""
        return math.ceil(self.rounds / self.separation)

    @property
    def turns(self) -> str:
        """How often a user takes part, in words."""
        often = f"each user at most {_times(self.times)}"
        if self.times == 1 or self.separation == 1:
            return often
        return f"{often}, at least {self.separation:,} rounds apart"

    def includes(self, before: Horizon) -> bool:
        """Whether this can be a later charge of the same horizon, which pays for that one too.

        Turns and noise stay the same, and more rounds never cost less.
        """
        like = replace(self, rounds=before.rounds, noise_multiplier=before.noise_multiplier)
        return (
            like == before
            and self.rounds >= before.rounds
            and self.noise_multiplier <= before.noise_multiplier
        )

    def amounts_to(self) -> tuple[Event, int]:
        """A release that accountants know, and how often, that costs the same."""
        raise NotImplementedError


@dataclass(frozen=True)
class TurnsGaussian(Horizon):
    """Correlated Gaussian noise on sums that nobody is in again within the separation.

    One Gaussian for the whole horizon: `noise_multiplier` is the noise over the sensitivity of all
    its rounds together.  No sampling is claimed.
    """

    stated_for: Adjacency = Adjacency.ADD_REMOVE
    kind: ClassVar[str] = "turns-gaussian"

    @property
    def sampling(self) -> str:
        return f"no sampling assumed ({self.turns})"

    def amounts_to(self) -> tuple[Event, int]:
        return Gaussian(self.noise_multiplier, self.stated_for), 1


@dataclass(frozen=True)
class CyclicPoissonGaussian(Horizon):
    """Banded Gaussian noise where each user joins, in each turn of theirs, independently.

    What a round adds is taken back within `separation` rounds, so every turn of a user costs as
    much as one round of Poisson sampling (Choquette-Choo et al. 2023): `noise_multiplier` is the
    noise over the sensitivity of one turn.
    """

    sampling_prob: Probability
    kind: ClassVar[str] = "cyclic-poisson-gaussian"
    _adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE

    @property
    def sampling(self) -> str:
        return (
            f"cyclic Poisson sampling with probability {self.sampling_prob:.6g} in each turn"
            f" ({self.turns})"
        )

    def amounts_to(self) -> tuple[Event, int]:
        return PoissonGaussian(self.sampling_prob, self.noise_multiplier), self.times


@dataclass(frozen=True)
class TurnsDistributedGaussian(Horizon):
    """Noise that contributors add, independent in each round, where users take turns.

    Every turn of a user is one release `each`; no sampling is claimed.
    """

    each: DistributedGaussian
    kind: ClassVar[str] = "turns-distributed-gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_multiplier != self.each.noise_multiplier:
            raise ValueError(
                f"noise_multiplier must be that of each turn, {self.each.noise_multiplier}, got"
                f" {self.noise_multiplier}"
            )

    @property
    def adjacency(self) -> Adjacency | None:
        return self.each.adjacency

    @property
    def sampling(self) -> str:
        return (
            f"no sampling assumed (each user at most {_times(self.times)}, at least"
            f" {self.separation:,} rounds apart, at least {self.each.shares:,} honest ones a round"
            " add noise)"
        )

    def amounts_to(self) -> tuple[Event, int]:
        return self.each, self.times


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


@dataclass(frozen=True)
class PureDP(Event):
    """Any release that is epsilon-DP by itself, such as local randomisers."""

    epsilon: NonNegative
    stated_for: Adjacency = Adjacency.ADD_REMOVE
    kind: ClassVar[str] = "pure-dp"


@dataclass(frozen=True)
class Lapse(Event):
    """With at most this probability the release may give anything away: (0, probability)-DP.

    It stands beside the event that holds otherwise.  Such a release is dominated by the other
    event's pair (P, Q) and, with this probability, by certainty: its delta at each epsilon is
    (1 - probability) delta(epsilon) + probability.  Lapses are charged at their plain sum, which is
    never below that.
    """

    probability: OpenUnit
    kind: ClassVar[str] = "lapse"


@dataclass(frozen=True)
class NonPrivate(Event):
    """A release with no noise: it accounts to infinity."""

    reason: str
    kind: ClassVar[str] = "non-private"


@dataclass(frozen=True)
class PostProcessing(Event):
    """Something computed from earlier releases alone: it costs nothing, and says why."""

    reason: str
    kind: ClassVar[str] = "post-processing"


_KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (*Event.__subclasses__(), *Horizon.__subclasses__())
    if cls is not Horizon
}


def tally(counts: dict[Event, int], event: Event, count: int = 1) -> None:
    """Count an event among others of the same ledger; of one horizon only the most rounds stay."""
    if not isinstance(event, Horizon):
        counts[event] = counts.get(event, 0) + count
        return
    for other in counts:
        if isinstance(other, Horizon) and other.horizon == event.horizon:
            if other.rounds < event.rounds:
                del counts[other]
                counts[event] = 1
            return
    counts[event] = 1


@dataclass(frozen=True)
class Composition:
    """Events with how often each happened.  The order is kept for reading; no accountant needs it.

    Equal events are merged, so 5,000 equal rounds are one entry with count 5,000.  Horizons are
    here as what they amount to, so that what two ledgers hold can be added up.
    """

    counts: tuple[tuple[Event, int], ...] = ()

    @classmethod
    def of(cls, events: Iterable[Event | tuple[Event, int]]) -> Composition:
        """The composition of events of one ledger, each alone or with how often it happened."""
        tallied: dict[Event, int] = {}
        for item in events:
            event, count = item if isinstance(item, tuple) else (item, 1)
            checks.whole("count", count)
            if count:
                tally(tallied, event, count)
        merged: dict[Event, int] = {}
        for event, count in tallied.items():
            same, times = event.amounts_to() if isinstance(event, Horizon) else (event, count)
            merged[same] = merged.get(same, 0) + times
        return cls(tuple(merged.items()))

    def to_json(self) -> list[list[Any]]:
        """Each event with its count; `from_json` is the inverse."""
        return [[event.to_json(), count] for event, count in self.counts]

    @classmethod
    def from_json(cls, data: Iterable[tuple[Mapping[str, Any], int]]) -> Composition:
        """The composition that `to_json` wrote."""
        return cls.of([(Event.from_json(event), count) for event, count in data])

    def followed_by(self, later: Composition) -> Composition:
        """Both, one after the other."""
        return Composition.of([*self.counts, *later.counts])

    @property
    def adjacency(self) -> Adjacency | None:
        """The one adjacency of all events.  Mixing two has no single meaning, so it raises."""
        stated = {e.adjacency for e, _ in self.counts} - {None}
        if len(stated) > 1:
            raise ValueError(
                "the events mix add/remove-one and replace-one adjacency, and an epsilon for one is"
                " not an epsilon for the other; run all phases with one sampler"
            )
        return next(iter(stated), None)

    @property
    def is_private(self) -> bool:
        """Whether every release had some protection, so that accountants can give a figure."""
        return not any(isinstance(e, NonPrivate) for e, _ in self.counts)

    def costly(self) -> tuple[tuple[Event, int], ...]:
        """The entries that cost something."""
        return tuple((e, n) for e, n in self.counts if not isinstance(e, PostProcessing))
