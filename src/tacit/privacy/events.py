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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from tacit.privacy import checks
from tacit.privacy.records import (
    NonNegative,
    OpenUnit,
    Positive,
    Probability,
    Record,
    at_least,
)


class Adjacency(enum.StrEnum):
    """Which two datasets a guarantee makes hard to tell apart."""

    ADD_REMOVE = "add/remove-one"
    REPLACE = "replace-one"


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


_KINDS: dict[str, type[Event]] = {cls.kind: cls for cls in Event.__subclasses__()}


@dataclass(frozen=True)
class Composition:
    """Events with how often each happened.  The order is kept for reading; no accountant needs it.

    Equal events are merged, so 5,000 equal rounds are one entry with count 5,000.
    """

    counts: tuple[tuple[Event, int], ...] = ()

    @classmethod
    def of(cls, events: Iterable[Event | tuple[Event, int]]) -> Composition:
        """The composition of events, each alone or with how often it happened."""
        merged: dict[Event, int] = {}
        for item in events:
            event, count = item if isinstance(item, tuple) else (item, 1)
            checks.whole("count", count)
            if count:
                merged[event] = merged.get(event, 0) + count
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
