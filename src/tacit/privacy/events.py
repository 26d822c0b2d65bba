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

import dataclasses
import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tacit.privacy import checks


class Adjacency(enum.StrEnum):
    """Which two datasets a guarantee makes hard to tell apart."""

    ADD_REMOVE = "add/remove-one"
    REPLACE = "replace-one"


@dataclass(frozen=True)
class Event:
    """A release, or something that costs nothing and is recorded all the same.

    Events are values: equal events are the same release made again.  Their fields are public
    numbers, and `kind` is their name in a ledger.
    """

    kind: ClassVar[str]
    _adjacency: ClassVar[Adjacency | None] = None

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
        """The event as JSON types only; `event_from_json` is its inverse."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"kind": self.kind} | {
            name: value.value if isinstance(value, enum.Enum) else value
            for name, value in fields.items()
        }


@dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian noise on a sum that everybody is in."""

    noise_multiplier: float
    stated_for: Adjacency = Adjacency.ADD_REMOVE
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        checks.positive("noise_multiplier", self.noise_multiplier)

    @property
    def sampling(self) -> str:
        return "no sampling (everybody in every round)"


@dataclass(frozen=True)
class PoissonGaussian(Event):
    """Gaussian noise on a cohort that every user joins independently (add/remove-one)."""

    sampling_prob: float
    noise_multiplier: float
    kind: ClassVar[str] = "poisson-gaussian"
    _adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE

    def __post_init__(self) -> None:
        checks.probability("sampling_prob", self.sampling_prob)
        checks.positive("noise_multiplier", self.noise_multiplier)

    @property
    def sampling(self) -> str:
        return f"Poisson sampling with probability {self.sampling_prob:.6g}"


@dataclass(frozen=True)
class TruncatedPoissonGaussian(Event):
    """A Poisson cohort cut down to `max_cohort` users, the rest dropped uniformly."""

    population: int
    sampling_prob: float
    max_cohort: int
    noise_multiplier: float
    kind: ClassVar[str] = "truncated-poisson-gaussian"
    _adjacency: ClassVar[Adjacency] = Adjacency.ADD_REMOVE

    def __post_init__(self) -> None:
        checks.whole("population", self.population, at_least=1)
        checks.probability("sampling_prob", self.sampling_prob)
        checks.whole("max_cohort", self.max_cohort, at_least=1)
        checks.positive("noise_multiplier", self.noise_multiplier)

    @property
    def sampling(self) -> str:
        return (
            f"Poisson sampling with probability {self.sampling_prob:.6g}, cut to"
            f" {self.max_cohort:,} a round"
        )


@dataclass(frozen=True)
class FixedSizeGaussian(Event):
    """Gaussian noise on a cohort of exact size, drawn without replacement (replace-one)."""

    population: int
    cohort: int
    noise_multiplier: float
    kind: ClassVar[str] = "fixed-size-gaussian"
    _adjacency: ClassVar[Adjacency] = Adjacency.REPLACE

    def __post_init__(self) -> None:
        checks.whole("population", self.population, at_least=1)
        checks.whole("cohort", self.cohort, at_least=1)
        checks.positive("noise_multiplier", self.noise_multiplier)
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

    epsilon: float
    stated_for: Adjacency = Adjacency.ADD_REMOVE
    kind: ClassVar[str] = "pure-dp"

    def __post_init__(self) -> None:
        checks.non_negative("epsilon", self.epsilon)


@dataclass(frozen=True)
class Lapse(Event):
    """With at most this probability the release may give anything away: (0, probability)-DP.

    It stands beside the event that holds otherwise.  Such a release is dominated by the other
    event's pair (P, Q) and, with this probability, by certainty: its delta at each epsilon is
    (1 - probability) delta(epsilon) + probability.  Lapses are charged at their plain sum, which is
    never below that.
    """

    probability: float
    kind: ClassVar[str] = "lapse"

    def __post_init__(self) -> None:
        checks.open_unit("probability", self.probability)


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


def event_from_json(data: Mapping[str, Any]) -> Event:
    """The event that `Event.to_json` wrote.  An unknown kind fails closed and is named."""
    kind = data.get("kind")
    if kind not in _KINDS:
        raise ValueError(f"unknown privacy event {kind!r}; known are {', '.join(sorted(_KINDS))}")
    fields = {name: value for name, value in data.items() if name != "kind"}
    expected = {f.name for f in dataclasses.fields(_KINDS[kind])}
    if set(fields) != expected:
        raise ValueError(
            f"privacy event {kind!r} needs the fields {sorted(expected)}, got {sorted(fields)}"
        )
    if "stated_for" in fields:
        fields["stated_for"] = Adjacency(fields["stated_for"])
    return _KINDS[kind](**fields)


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

    def then(self, event: Event, count: int = 1) -> Composition:
        """This composition, followed by `count` times `event`."""
        return Composition.of([*self.counts, (event, count)])

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


def canonical_json(data: Any) -> str:
    """One spelling per value, so that equal data have equal hashes; NaN is refused."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
