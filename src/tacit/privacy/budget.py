"""A declared budget is a hard stop: the release that would exceed it never happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tacit.privacy import checks
from tacit.privacy.events import Composition, Event

EpsilonOf = Callable[[Composition, float], float]
"""What a composition costs: its epsilon at a delta, by the accountant the budget names."""

Counts = Mapping[Event, int]
"""How often each event happened."""


class BudgetExceeded(ValueError):
    """The next release would cost more than was declared."""


@dataclass(frozen=True)
class Budget:
    """The most that a run may cost, and the accountant that says so."""

    epsilon: float
    delta: float
    accountant: str

    def __post_init__(self) -> None:
        checks.positive("the budget's epsilon", self.epsilon)
        checks.open_unit("the budget's delta", self.delta)
        if not isinstance(self.accountant, str) or not self.accountant:
            raise ValueError(f"the budget's accountant must be named, got {self.accountant!r}")


class Allowance:
    """How many more times one event fits into a budget, found with few calls of the accountant.

    Repetitions are tried ahead by doubling, then by bisection, and only as they are asked for:
    5,000 equal rounds take some 13 calls, and 12 more where the budget ends.

    Guarantee: a repetition is admitted only if a composition that contains it, and everything
    before it, was itself accounted within the budget.  Releasing less than that cannot cost more,
    so this holds even where an accountant's own figures are not quite monotone.
    """

    def __init__(
        self, budget: Budget, epsilon_of: EpsilonOf, spent: Composition, event: Event
    ) -> None:
        self.event = event
        self._budget = budget
        self._epsilon_of = epsilon_of
        self._spent = spent
        self._admitted = 0
        self._fits = 0  # so many repetitions are known to fit
        self._exceeds: int | None = None  # so many are known not to
        self._excess = 0.0  # and cost this much

    def admits(self, count: int = 1) -> bool:
        """Whether so many repetitions more than were admitted so far fit."""
        wanted = self._admitted + count
        while self._fits < wanted:
            if self._exceeds is None:
                trial = max(wanted, 2 * self._fits)
            elif self._exceeds <= wanted:
                return False
            else:
                trial = max(wanted, (self._fits + self._exceeds) // 2)
            epsilon = self._epsilon_of(self._spent.then(self.event, trial), self._budget.delta)
            if epsilon <= self._budget.epsilon:
                self._fits = trial
            else:  # NaN too
                self._exceeds, self._excess = trial, epsilon
        return True

    def admit(self, count: int = 1) -> None:
        """Count repetitions that were released."""
        self._admitted += count

    @property
    def excess(self) -> float:
        """The epsilon that the fewest repetitions known not to fit would reach."""
        assert self._exceeds is not None
        return self._excess


class Cover:
    """What fits into a budget where several runs charge events of several kinds, in any order.

    It remembers one composition that was accounted within the budget, the cover, and admits all
    that is contained in it.  Beyond that it tries a larger one: of every kind that was charged
    since it was made as many again, and less and less where that is too much.  So n charges take
    some log n calls of the accountant, whoever makes them.

    Guarantee: as for `Allowance`, what is admitted is contained in a composition that was itself
    accounted within the budget.
    """

    def __init__(self, fits: Callable[[Composition], bool], spent: Counts) -> None:
        self._fits = fits
        self._start = dict(spent)
        self._cover: Counts = {}
        self._too_much: Counts | None = None  # tried, and found not to fit

    def admits(self, wanted: Counts) -> bool:
        """Whether so many of each event fit, in all."""
        if _contains(self._cover, wanted):
            return True
        grown = {event: n - self._start.get(event, 0) for event, n in wanted.items()}
        share = 1
        while share:
            ahead = {event: max(n, 0) // share for event, n in grown.items()}
            share = 2 * share if any(ahead.values()) else 0
            trial = {event: n + ahead[event] for event, n in wanted.items()}
            if share and self._too_much is not None and _contains(trial, self._too_much):
                continue  # less than this was too much already
            if self._fits(Composition(tuple(trial.items()))):
                self._cover = trial
                return True
            self._too_much = trial
        return False


def _contains(larger: Counts, smaller: Counts) -> bool:
    return all(larger.get(event, 0) >= n for event, n in smaller.items())
