"""A declared budget is a hard stop: the release that would exceed it never happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Composition, Event
from tacit.privacy.records import OpenUnit, Positive, Record, Text

_Counts = Mapping[Event, int]  # how often each event happened


class BudgetExceeded(ValueError):
    """The next release would cost more than was declared."""


@dataclass(frozen=True)
class Budget(Record):
    """The most that a run may cost, and the accountant that measures it."""

    epsilon: Positive
    delta: OpenUnit
    accountant: Text
    title: ClassVar[str] = "a budget"
    prefix: ClassVar[str] = "the budget's "

    def spent_by(self, composition: Composition) -> float:
        """The epsilon of a composition at the budget's delta, by the budget's accountant."""
        return accountant_named(self.accountant).epsilon(composition, self.delta)


class Cover:
    """What fits into a budget, decided with few calls of the accountant.

    Charges may be of several kinds, in any order and by several runs.  The cover is one composition
    that was accounted within the budget; everything contained in it is admitted.  Beyond it a
    larger one is tried: of every kind that was charged since the start as many again, and less and
    less where that is too much.  So n charges take some log n calls: 5,000 equal rounds about 13,
    and 12 more where the budget ends.

    Guarantee: a charge is admitted only if a composition that contains it, and everything before
    it, was itself accounted within the budget.  Releasing less than that cannot cost more, so this
    holds even where an accountant's own figures are not quite monotone.

    Args:
        fits: whether a composition is within the budget.
        spent: what was charged before the cover was made.
    """

    def __init__(self, fits: Callable[[Composition], bool], spent: _Counts) -> None:
        self._fits = fits
        self._start = dict(spent)
        self._cover: _Counts = {}
        self._too_much: _Counts | None = None  # tried, and did not fit

    def admits(self, total: _Counts) -> bool:
        """Whether `total`, which counts all events from the first on, is within the budget.

        Where it is not, the last composition that was tried is `total` itself.
        """
        if _contains(self._cover, total):
            return True
        grown = {event: n - self._start.get(event, 0) for event, n in total.items()}
        share = 1
        while share:
            ahead = {event: max(n, 0) // share for event, n in grown.items()}
            share = 2 * share if any(ahead.values()) else 0
            trial = {event: n + ahead[event] for event, n in total.items()}
            if share and self._too_much is not None and _contains(trial, self._too_much):
                continue  # less than this was too much already
            if self._fits(Composition(tuple(trial.items()))):
                self._cover = trial
                return True
            self._too_much = trial
        return False


def _contains(larger: _Counts, smaller: _Counts) -> bool:
    return all(larger.get(event, 0) >= n for event, n in smaller.items())
