"""What several runs on the same people cost together, as far as that can be said at all.

Epsilons compose only if they mean the same: the same unit and the same adjacency, for people.  A
run without that is named, with the reason, and is in no sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tacit.privacy.accountants import sound_accountants
from tacit.privacy.claims import format_delta, format_epsilon
from tacit.privacy.events import Adjacency, Composition, Event
from tacit.privacy.guarantee import figures
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Header, PriorCost

# Unit and adjacency: what an epsilon is relative to.  Only runs with equal terms can be composed.
Terms = tuple[str, Adjacency | None]

# Cheapest first: a composition is within a budget as soon as one of them says so.
_CHEAPEST_FIRST = ("zcdp", "rdp", "moments", "pld")


@dataclass
class Known:
    """A run as the people's ledger knows it: its header, and all events in their order."""

    header: Header
    hashes: list[str]  # of the header, then of each entry
    events: list[Event] = field(default_factory=list)
    counts: dict[Event, int] = field(default_factory=dict)
    _first: dict[int, dict[Event, int]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, ledger: Ledger) -> Known:
        """A run's own ledger, in the same form."""
        known = cls(ledger.header, [ledger.hashes[0]])
        for entry, line_hash in zip(ledger.entries, ledger.hashes[1:], strict=True):
            known.add(entry.event, line_hash)
        return known

    def add(self, event: Event, line_hash: str) -> None:
        """One more entry."""
        self.events.append(event)
        self.hashes.append(line_hash)
        self.counts[event] = self.counts.get(event, 0) + 1

    def has(self, entries: int, line_hash: str) -> bool:
        """Whether this was its head at some time."""
        return len(self.hashes) > entries and self.hashes[entries] == line_hash

    def first(self, entries: int) -> dict[Event, int]:
        """How often each event is among the first entries."""
        if entries not in self._first:
            self._first[entries] = dict(Counter(self.events[:entries]))
        return self._first[entries]

    @property
    def composition(self) -> Composition:
        return Composition(tuple(self.counts.items()))

    @property
    def beside(self) -> tuple[PriorCost, ...]:
        """What others of the same people have paid for it."""
        return tuple(cost for cost in self.header.prior_costs if cost.whom == "beside")

    @property
    def whole(self) -> Composition:
        """All that it has cost anybody among these people, added up."""
        theirs = [cost.releases.counts for cost in self.beside if cost.releases is not None]
        return Composition.of([*self.counts.items(), *(one for counts in theirs for one in counts)])

    @property
    def why_not_counted(self) -> str | None:
        """Why its cost is in no sum, in words that go with a number of runs."""
        if self.header.view == "iid":
            return "on texts mixed among users, which protects nobody"
        if self.header.view == "synthetic":
            return "on made-up text"
        if self.header.simulation:
            return "with a seed, which must not be released"
        if not self.whole.is_private:
            return "without privacy, which must not be released"
        if not self.whole.costly():
            return "with nothing released yet"
        return None

    @property
    def terms(self) -> Terms:
        return self.header.unit, self.header.adjacency

    def counts_for(self, terms: Terms) -> bool:
        return self.terms == terms and self.why_not_counted is None


@dataclass(frozen=True)
class Joint:
    """What is known of all runs on the same people's text."""

    others: int
    counted: int  # runs in the figure, this one included if it is of their kind
    epsilon: float | None
    delta: float
    accountant: str
    why_none: str  # why there is no figure
    not_counted: tuple[tuple[str, int], ...]  # the reason, and how many other runs it holds for

    @classmethod
    def of(cls, own: str, runs: Mapping[str, Known], delta: float) -> Joint:
        """The joint figure of all runs of the kind of one's own, or why there is none.

        If one's own is of none of the kinds that count, it is that of all others, where they are of
        one kind.  Nothing here raises: a remark must not stop anything.
        """
        private = {name: run for name, run in runs.items() if run.why_not_counted is None}
        kinds = list(dict.fromkeys(run.terms for run in private.values()))
        terms = private[own].terms if own in private else kinds[0] if len(kinds) == 1 else None
        counted = [run for run in private.values() if run.terms == terms]
        reasons: dict[str, int] = {}
        for name, run in runs.items():
            reason = run.why_not_counted
            if reason is None and run.terms != terms:
                reason = _other_kind(run.terms)
            if reason is not None and name != own:
                reasons[reason] = reasons.get(reason, 0) + 1
        epsilon, by, why_none = None, "", ""
        if len(counted) > 1:
            try:
                epsilon, by = _joint_epsilon(counted, list(runs.values()), delta)
            except ValueError as error:
                why_none = str(error)
        elif len(kinds) > 1:
            why_none = _why_not_added(kinds)
        return cls(
            len(runs) - 1, len(counted), epsilon, delta, by, why_none, tuple(reasons.items())
        )

    @property
    def remark(self) -> str:
        """As sentences."""
        said = [
            f"This corpus has {self.others} other run{'s' if self.others > 1 else ''} on record."
        ]
        if self.epsilon is not None:
            said.append(
                f"All {self.counted} private ones together: epsilon"
                f" {format_epsilon(self.epsilon)} at delta {format_delta(self.delta)}, by"
                f" {self.accountant}."
            )
        elif self.why_none:
            said.append(f"No joint figure, because {self.why_none}.")
        said += [f"Not counted: {count} {reason}." for reason, count in self.not_counted]
        return " ".join(said)


def _other_kind(terms: Terms) -> str:
    unit, adjacency = terms
    return f"{unit}-level under {adjacency} adjacency, which does not add to the others"


def _why_not_added(kinds: Sequence[Terms]) -> str:
    units = sorted({unit for unit, _ in kinds}, reverse=True)
    if len(units) > 1:
        return f"a {units[1]}-level epsilon does not add to a {units[0]}-level one"
    named = sorted({str(adjacency) for _, adjacency in kinds})
    return f"an epsilon under {named[-1]} adjacency does not add to one under {named[0]}"


def _joint_epsilon(
    counted: Sequence[Known], runs: Sequence[Known], delta: float
) -> tuple[float, str]:
    """The least sound figure, and whose it is.

    An accountant's grid may make a sum look cheaper than one of its parts, so that no joint figure
    is taken to be below any of them.
    """
    whole = figures(together(counted, runs), delta)
    if not whole:
        raise ValueError("no accountant is sound for all of them")
    by = min(whole, key=lambda name: whole[name])
    parts = [min(figures(run.composition, delta).values()) for run in counted]
    beside = [
        min(figures(cost.releases, delta).values())
        for run in counted
        for cost in run.beside
        if cost.releases is not None
    ]
    return max(whole[by], *parts, *beside), by


def together(counted: Iterable[Known], runs: Sequence[Known]) -> Composition:
    """All releases of the counted runs that cost something, each once.

    What a branch inherited is that of the run it left, if that one is counted.  What others of the
    same people have paid for a tokenizer is added, unless a run among `runs` has charged it.
    """
    counted = list(counted)
    by_id: dict[str, list[Known]] = {}
    for run in counted:
        by_id.setdefault(run.header.run_id, []).append(run)
    total: dict[Event, int] = {}
    beside: dict[str, PriorCost] = {}
    for run in counted:
        inherited: dict[Event, int] = {}
        if parent := run.header.parent:
            head = parent.head
            if any(one.has(head.entries, head.hash) for one in by_id.get(parent.run_id, [])):
                inherited = run.first(head.entries)
        for event, count in run.counts.items():
            total[event] = total.get(event, 0) + count - inherited.get(event, 0)
        for cost in run.beside:
            head_of = cost.head
            if head_of and any(one.has(head_of.entries, head_of.hash) for one in runs):
                continue
            beside[head_of.hash if head_of else f"{run.header.run_id} {cost.what}"] = cost
    more = [cost.releases.counts for cost in beside.values() if cost.releases is not None]
    all_of_it = Composition.of([*total.items(), *(one for counts in more for one in counts)])
    return Composition(all_of_it.costly())


def epsilon_of(composition: Composition, delta: float) -> float:
    """The least epsilon that a sound accountant gives; infinite where there is none."""
    return min(figures(composition, delta).values(), default=math.inf)


def fits(composition: Composition, epsilon: float, delta: float) -> bool:
    """Whether some sound accountant gives at most this epsilon."""
    if not composition.costly():
        return True
    if not composition.is_private:
        return False
    sound = {one.name: one for one in sound_accountants(composition)[0]}
    names = [name for name in _CHEAPEST_FIRST if name in sound]
    return any(sound[name].epsilon(composition, delta) <= epsilon for name in names)
