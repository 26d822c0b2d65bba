"""The one interface of all accountants: a composition of events in, epsilon or delta out.

Which accountant may read which event is decided here once and for all (`refusal`), because an
unsound pair gives a number that looks like any other.

What happens with a small probability only (`Lapse`) is charged here too, the same for all of them:
if the rest is (epsilon, delta)-DP, the whole is (epsilon, delta + sum of the probabilities)-DP.
"""

from __future__ import annotations

import abc
import math
from fractions import Fraction
from typing import ClassVar

from tacit.privacy import checks
from tacit.privacy.events import (
    Composition,
    Event,
    FixedSizeGaussian,
    Lapse,
    NonPrivate,
    PoissonGaussian,
    TruncatedPoissonGaussian,
)


class UnsoundAccounting(ValueError):
    """An accountant was asked about an event for which its figure would not be a bound."""


class Accountant(abc.ABC):
    """Turns events into epsilon.  Accountants have no state: the events are the ledger's."""

    name: ClassVar[str]
    title: ClassVar[str]
    limit: ClassVar[str]  # what it says of an event that it must not account
    accounts: ClassVar[tuple[type[Event], ...]]

    def refusal(self, event: Event) -> str | None:
        """Why this accountant must not account `event`, and what may; None if it may."""
        if isinstance(event, (*self.accounts, Lapse)):
            return None
        what, instead = _SAMPLING.get(type(event), (f"events of kind {event.kind!r}", None))
        hint = f"; use the {instead} accountant" if instead else ""
        return f"the {self.name} accountant {self.limit.format(what=what)}{hint}"

    def epsilon(self, composition: Composition, delta: float) -> float:
        """The epsilon for which the composition is (epsilon, delta)-DP: an upper bound."""
        checks.open_unit("delta", delta)
        costly = self._checked(composition)
        if not composition.is_private:
            return math.inf
        rest, lapses = _without_lapses(costly)
        left = Fraction(delta) - lapses
        if not rest.counts:
            return 0.0 if left >= 0 else math.inf
        return self._epsilon(rest, float(left)) if left > 0 else math.inf

    def delta(self, composition: Composition, epsilon: float) -> float:
        """The delta for which the composition is (epsilon, delta)-DP: an upper bound."""
        checks.non_negative("epsilon", epsilon)
        costly = self._checked(composition)
        if not composition.is_private:
            return 1.0
        rest, lapses = _without_lapses(costly)
        delta = self._delta(rest, epsilon) if rest.counts else 0.0
        return min(1.0, float(Fraction(delta) + lapses))

    def rough(self) -> Accountant:
        """A cheaper accountant whose epsilon is never below this one's, for use in searches."""
        return self

    def _checked(self, composition: Composition) -> Composition:
        composition.adjacency  # noqa: B018  (raises when adjacencies are mixed)
        costly = Composition(composition.costly())
        for event, _ in costly.counts:
            if not isinstance(event, NonPrivate) and (reason := self.refusal(event)):
                raise UnsoundAccounting(reason)
        return costly

    @abc.abstractmethod
    def _epsilon(self, composition: Composition, delta: float) -> float: ...

    @abc.abstractmethod
    def _delta(self, composition: Composition, epsilon: float) -> float: ...


def _without_lapses(composition: Composition) -> tuple[Composition, Fraction]:
    """All other events, and the sum of the lapses' probabilities, exactly."""
    rest = [(event, count) for event, count in composition.counts if not isinstance(event, Lapse)]
    lapses = [
        count * Fraction(event.probability)
        for event, count in composition.counts
        if isinstance(event, Lapse)
    ]
    return Composition(tuple(rest)), sum(lapses, Fraction(0))


# What each sampling is called, and the tightest accountant that is sound for it (design rule 1).
_SAMPLING: dict[type[Event], tuple[str, str]] = {
    PoissonGaussian: ("Poisson sampling", "pld"),
    TruncatedPoissonGaussian: ("truncated Poisson sampling", "pld"),
    FixedSizeGaussian: ("fixed-size sampling without replacement", "rdp"),
}
