"""What may be claimed: one typed value, made by one constructor, from a ledger and nothing else.

    Guarantee.of(ledger).claim

It serves a run and an exported bundle, language models and intent models, actual and projected
figures alike.  The words are made in `privacy.claims`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tacit.privacy.accountants import sound_accountants
from tacit.privacy.claims import (
    COUNTED,
    LARGE_DELTA,
    LARGEST_MEANINGFUL_EPSILON,
    claim,
    excluded_by,
)
from tacit.privacy.events import (
    Adjacency,
    Composition,
    Event,
    Gaussian,
    Horizon,
    Lapse,
    NonPrivate,
    PoissonGaussian,
    PostProcessing,
    PureDP,
)
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, Header, PriorCost
from tacit.privacy.projection import Projection

_FIXED_DENOMINATOR = "fixed-denominator"  # the only estimator whose noise can be projected


@dataclass(frozen=True)
class ReleaseGroup:
    """Equal releases: their kind, the event of each, and how often they were made."""

    kind: str
    event: Event
    count: int
    estimator: str | None = None


def grouped(charges: Iterable[Charge | ReleaseGroup]) -> list[ReleaseGroup]:
    """Charges with equal ones counted, in the order in which each first happened.

    The rounds of a horizon are one group, whose event is that of the last of them.
    """
    groups: dict[tuple[str, Event | str, str | None], tuple[Event, int]] = {}
    for one in charges:
        event = one.event
        key = (one.kind, event.horizon if isinstance(event, Horizon) else event, one.estimator)
        count = one.count if isinstance(one, ReleaseGroup) else 1
        before, counted = groups.get(key, (event, 0))
        if isinstance(event, Horizon) and isinstance(before, Horizon):
            event = max(before, event, key=lambda each: each.rounds)
        groups[key] = event, counted + count
    return [ReleaseGroup(kind, event, n, how) for (kind, _, how), (event, n) in groups.items()]


@dataclass(frozen=True)
class Guarantee:
    """Everything that may be said about the privacy of a run."""

    header: Header
    parts: tuple[ReleaseGroup, ...]  # those that cost something, in the order they first happened
    epsilon: dict[str, float]  # by accountant; infinite where there is no guarantee
    accountant: str  # whose figure is claimed
    is_projected: bool = False
    others: str = field(default="", compare=False)  # about other runs on the same people's text

    @classmethod
    def of(cls, ledger: Ledger) -> Guarantee:
        """The guarantee of all that a ledger holds."""
        return cls.for_releases(ledger.header, grouped(ledger.entries))

    @classmethod
    def for_releases(
        cls, header: Header, releases: Sequence[ReleaseGroup], *, is_projected: bool = False
    ) -> Guarantee:
        """The guarantee of releases on a header's terms."""
        parts = tuple(
            part
            for part in grouped(releases)
            if part.count and not isinstance(part.event, PostProcessing)
        )
        composition = Composition.of((part.event, part.count) for part in parts)
        epsilon = figures(composition, header.delta, header.accountant)
        for cost in header.prior_costs:
            if cost.whom == "beside":  # parallel composition: the larger epsilon holds for all
                assert cost.releases is not None
                paid = figures(cost.releases, header.delta, header.accountant)
                least = min(paid.values())
                epsilon = {by: max(own, paid.get(by, least)) for by, own in epsilon.items()}
        return cls(header, parts, epsilon, _claimed(epsilon, header.accountant), is_projected)

    @property
    def value(self) -> float:
        """The epsilon that is claimed."""
        return self.epsilon[self.accountant]

    @property
    def is_meaningful(self) -> bool:
        """Whether the epsilon limits anything that matters; an infinite one does not."""
        return self.value <= LARGEST_MEANINGFUL_EPSILON

    @property
    def delta(self) -> float:
        """The delta that is claimed."""
        return self.header.delta

    @property
    def adjacency(self) -> Adjacency | None:
        """The adjacency that the ledger declares, else that of its releases."""
        return self.header.adjacency or Composition.of(part.event for part in self.parts).adjacency

    @property
    def rounds(self) -> int:
        """How many rounds (or steps, or epochs) were charged; a repeated one counts again."""
        return sum(part.count for part in self.parts if part.kind == "round")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why there is no differential privacy; empty where there is."""
        events = (part.event for part in self.parts)
        return tuple(sorted({e.reason for e in events if isinstance(e, NonPrivate)}))

    @property
    def excluded(self) -> tuple[str, ...]:
        """What the claim leaves out."""
        header = self.header
        more = [COUNTED.format(unit=header.unit)] if header.population_is_counted else []
        if not self.delta < 1 / header.population:
            more.append(LARGE_DELTA.format(unit=header.unit, population=header.population))
        return tuple(dict.fromkeys([*header.excluded, *more, *excluded_by(header.prior_costs)]))

    @property
    def claim(self) -> str:
        """All of it in words."""
        return claim(self)

    @property
    def why_not_for_release(self) -> str | None:
        """Why the model must not be given away, or None if it may."""
        header = self.header
        if header.simulation:
            return "this is a simulation, whose noise follows from a seed"
        if not math.isfinite(self.value):
            return "the run has no privacy guarantee"
        if header.audit:
            return "this is an audit run, with made-up text or users in its training"
        if header.view == "iid":
            return "its users were mixed from people's texts: it has no guarantee for people"
        return None

    def cost_of(self, cost: PriorCost) -> float:
        """What others have paid, by the accountant of the claim where it is sound for that."""
        assert cost.releases is not None
        paid = figures(cost.releases, self.header.delta, self.header.accountant)
        return paid.get(self.accountant, min(paid.values()))

    def beside(self, others: str) -> Guarantee:
        """The same guarantee with a remark about other runs on the same people's text."""
        return replace(self, others=others)

    def projected(self, to: Projection) -> Guarantee:
        """What the same noise on the average would be worth where more people take part.

        Each round's event is enlarged to the projected cohort (see `privacy.projection`); releases
        from everybody cost what they cost.  All that the claim says besides, and all that it leaves
        out, stays; at the run's own (largest) cohort, population and delta the figures are the
        actual ones.

        Raises `ValueError` for rounds whose noise cannot be projected.
        """
        header = self.header
        parts = [replace(part, event=self._enlarged(part, to)) for part in self.parts]
        if to.rounds is not None:
            if sum(part.kind == "round" for part in parts) > 1:
                raise ValueError(
                    f"a projection to {to.rounds:,} rounds needs rounds that are all alike, and"
                    " those of this run differ in their noise or sampling"
                )
            parts = [
                replace(part, count=to.rounds) if part.kind == "round" else part for part in parts
            ]
        is_own = to.population == header.population
        larger = replace(
            header,
            population=to.population,
            population_is_counted=header.population_is_counted and is_own,
            delta=to.delta or (header.delta if is_own else default_delta(to.population)),
            budget=None,
        )
        return Guarantee.for_releases(larger, parts, is_projected=True)

    def _enlarged(self, part: ReleaseGroup, to: Projection) -> Event:
        if isinstance(part.event, Gaussian | PureDP | Lapse) and part.kind != "round":
            return part.event
        if not isinstance(part.event, PoissonGaussian) or part.estimator != _FIXED_DENOMINATOR:
            raise ValueError(
                "a projection needs noisy rounds with Poisson sampling, the fixed denominator and"
                " a clip norm that does not adapt"
            )
        events = (one.event for one in self.parts)
        largest = max(event.sampling_prob for event in events if isinstance(event, PoissonGaussian))
        population = self.header.population
        return to.enlarge(part.event, largest * population, population)

    def as_row(self) -> dict[str, object]:
        """Under the names that scripts rely on; an infinite epsilon is null."""
        return {
            "rounds": self.rounds,
            "delta": self.delta,
            "epsilon": {name: finite(value) for name, value in self.epsilon.items()},
            "accountant": self.accountant,
            "claim": self.claim,
            "excluded": list(self.excluded),
            "other_runs": self.others or None,
        }


def figures(composition: Composition, delta: float, asked: str | None = None) -> dict[str, float]:
    """Epsilon by every accountant that is sound for the composition, the one asked for first.

    One that was asked for and is not sound for it is left out: its figure would be no bound.
    """
    name = asked or "pld"
    if not composition.is_private:
        return {name: math.inf}
    if not composition.costly():
        return {name: 0.0}
    sound, _ = sound_accountants(composition)
    sound.sort(key=lambda accountant: accountant.name != asked)
    return {accountant.name: accountant.epsilon(composition, delta) for accountant in sound}


def _claimed(epsilon: dict[str, float], asked: str | None) -> str:
    """The accountant asked for; without one, or beyond its reach, the one with the least epsilon.

    Every figure is an upper bound, and so is the least of them.
    """
    if asked is not None and math.isfinite(epsilon.get(asked, math.inf)):
        return asked
    return min(epsilon, key=lambda name: epsilon[name])


def default_delta(population: int) -> float:
    """The papers' K^-1.1 for a population of K."""
    return math.pow(population, -1.1)


def finite(value: float) -> float | None:
    """The value, or None where it is infinite: JSON has no infinity."""
    return value if math.isfinite(value) else None
