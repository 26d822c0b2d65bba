"""What several runs on the same people cost together, and the budget for all of them.

Epsilons compose only if they mean the same: the same unit and the same adjacency, for people.  A
run without that is named, with the reason, and is in no sum.  Everything here is a pure function of
runs and budgets; the file that remembers them is `corpus.people_ledger`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from tacit.privacy.accountants import sound_accountants
from tacit.privacy.claims import format_delta, format_epsilon
from tacit.privacy.events import Adjacency, Composition, Event, tally
from tacit.privacy.guarantee import figures, finite
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Header, PriorCost, Unit
from tacit.privacy.records import OpenUnit, Positive, Record

# Unit and adjacency: what an epsilon is relative to.  Only runs with equal terms can be composed.
Terms = tuple[str, Adjacency | None]


@dataclass
class KnownRun:
    """A run as the people's ledger knows it: its header, and all events in their order."""

    header: Header
    hashes: list[str]  # of the header, then of each entry
    events: list[Event] = field(default_factory=list)
    counts: Counter[Event] = field(default_factory=Counter)
    inherited: Counter[Event] = field(default_factory=Counter)  # of a branch: from the run it left

    @classmethod
    def of(cls, ledger: Ledger) -> KnownRun:
        """A run's own ledger, in the same form."""
        run = cls(ledger.header, [ledger.hashes[0]])
        for entry, line_hash in zip(ledger.entries, ledger.hashes[1:], strict=True):
            run.add(entry.event, line_hash)
        return run

    def add(self, event: Event, line_hash: str) -> None:
        """Take one more entry."""
        if self.header.parent and len(self.events) < self.header.parent.head.entries:
            tally(self.inherited, event)
        tally(self.counts, event)
        self.events.append(event)
        self.hashes.append(line_hash)

    def charged_with(self, events: Iterable[Event]) -> KnownRun:
        """The run as it would be after these releases."""
        after = replace(self, counts=Counter(self.counts))
        for event in events:
            tally(after.counts, event)
        return after

    def had_head(self, entries: int, line_hash: str) -> bool:
        """Whether this was the head of its ledger at some time."""
        return len(self.hashes) > entries and self.hashes[entries] == line_hash

    @property
    def composition(self) -> Composition:
        """All releases that the run has charged, as the accountants take them."""
        return Composition.of(self.counts.items())

    @property
    def beside(self) -> tuple[PriorCost, ...]:
        """What others of the same people have paid for it, such as for its tokenizer."""
        return tuple(cost for cost in self.header.prior_costs if cost.whom == "beside")

    @property
    def whole(self) -> Composition:
        """All that it has cost anybody among these people, added up."""
        return Composition.of([*self.composition.counts, *_releases(self.beside)])

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
        """What the run's epsilon is relative to."""
        return self.header.unit, self.header.adjacency


def _releases(costs: Iterable[PriorCost]) -> Iterable[tuple[Event, int]]:
    return (pair for cost in costs if cost.releases is not None for pair in cost.releases.counts)


def compose(counted: Iterable[KnownRun], runs: Sequence[KnownRun]) -> Composition:
    """All releases of the counted runs that cost something, each once.

    What a branch inherited is that of the run it left, if that one is counted.  What others of the
    same people have paid for a tokenizer is added, unless a run among `runs` has charged it.
    """
    counted = list(counted)
    by_id: dict[str, list[KnownRun]] = {}
    for run in counted:
        by_id.setdefault(run.header.run_id, []).append(run)
    total: Counter[Event] = Counter()
    beside: dict[str, PriorCost] = {}
    for run in counted:
        total += Counter(dict(run.composition.counts))
        if parent := run.header.parent:
            head = parent.head
            parents = by_id.get(parent.run_id, [])
            if any(other.had_head(head.entries, head.hash) for other in parents):
                total -= Counter(dict(Composition.of(run.inherited.items()).counts))
        for cost in run.beside:
            if cost.head is None:
                beside[f"{run.header.run_id} {cost.what}"] = cost
            elif not any(other.had_head(cost.head.entries, cost.head.hash) for other in runs):
                beside[cost.head.hash] = cost
    everything = Composition.of([*total.items(), *_releases(beside.values())])
    return Composition(everything.costly())


def spent_on(terms: Terms, runs: Iterable[KnownRun]) -> Composition:
    """All counted releases on these terms."""
    runs = list(runs)
    return compose(
        (run for run in runs if run.terms == terms and run.why_not_counted is None), runs
    )


def least_epsilon(composition: Composition, delta: float) -> float:
    """The least epsilon that a sound accountant gives; infinite where there is none."""
    return min(figures(composition, delta).values(), default=math.inf)


@dataclass(frozen=True)
class PeoplesBudget(Record):
    """The most that all runs on these people may cost together.

    Guarantee: as long as it stands, all counted releases on these people together satisfy
    (epsilon, delta)-differential privacy for its unit and adjacency.  Runs that cannot be counted
    on these terms (seeded, without noise, on mixed texts, of another unit) are not allowed at all.
    """

    epsilon: Positive
    delta: OpenUnit
    unit: Unit = "user"
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    title: ClassVar[str] = "a budget"

    @property
    def terms(self) -> Terms:
        """What its epsilon is relative to: only runs on the same terms can be counted."""
        return self.unit, self.adjacency

    def covers(self, composition: Composition) -> bool:
        """Whether some sound accountant gives at most this epsilon."""
        if not composition.costly():
            return True
        if not composition.is_private:
            return False
        sound, _ = sound_accountants(composition)
        quickest_first = reversed(sound)  # the composition is covered as soon as one says so
        return any(one.epsilon(composition, self.delta) <= self.epsilon for one in quickest_first)

    def stricter(self, other: PeoplesBudget) -> PeoplesBudget:
        """The lower epsilon and delta of both.

        Where their terms differ, it is user-level under add/remove-one adjacency: runs on other
        terms then stop until a budget for them is declared.
        """
        return PeoplesBudget(
            min(self.epsilon, other.epsilon),
            min(self.delta, other.delta),
            "user" if "user" in (self.unit, other.unit) else self.unit,
            self.adjacency if self.adjacency == other.adjacency else Adjacency.ADD_REMOVE,
        )

    def __str__(self) -> str:
        return (
            f"epsilon {self.epsilon:g} at delta {self.delta:g}, {self.unit}-level under"
            f" {self.adjacency} adjacency"
        )


@dataclass(frozen=True)
class _RunAccount:
    """What one run among others has cost."""

    run_id: str
    unit: str
    adjacency: Adjacency | None
    releases: int  # those that cost something
    epsilon: float
    delta: float  # the budget's where there is one, else its own
    not_counted: str | None  # why it is in no sum


@dataclass(frozen=True)
class Account:
    """All runs on some people, and the budget for all of them together."""

    people: str
    budget: PeoplesBudget | None
    spent: float | None  # at the budget's delta and on its terms
    declared: tuple[PeoplesBudget, ...]  # every budget there was, in its order
    runs: tuple[_RunAccount, ...]

    @classmethod
    def of(
        cls,
        people: str,
        runs: Mapping[str, KnownRun],
        budgets: Sequence[PeoplesBudget],
        spent: Composition,
    ) -> Account:
        """The account of runs under the last of the budgets, on whose terms `spent` was spent."""
        budget = budgets[-1] if budgets else None
        accounts = []
        for name, run in runs.items():
            why = run.why_not_counted
            if why is None and budget and run.terms != budget.terms:
                why = "on other terms than the budget"
            delta = budget.delta if budget else run.header.delta
            releases = sum(count for _, count in run.composition.costly())
            epsilon = least_epsilon(run.composition, delta)
            accounts.append(_RunAccount(name, *run.terms, releases, epsilon, delta, why))
        total = least_epsilon(spent, budget.delta) if budget else None
        return cls(people, budget, total, tuple(budgets), tuple(accounts))

    @property
    def left(self) -> float | None:
        """What is not spent; the next release may cost more or less than its share of it."""
        if self.budget is None or self.spent is None:
            return None
        return max(self.budget.epsilon - self.spent, 0.0)

    def as_row(self) -> dict[str, Any]:
        """Under the names that scripts rely on; an infinite epsilon is null."""
        return {
            "people": self.people,
            "budget": self.budget.to_json() if self.budget else None,
            "spent": finite(self.spent) if self.spent is not None else None,
            "left": self.left,
            "declared": [budget.to_json() for budget in self.declared],
            "runs": [{**vars(run), "epsilon": finite(run.epsilon)} for run in self.runs],
        }


@dataclass(frozen=True)
class Joint:
    """What one run costs together with all others on the same people's text.

    It is a remark beside a run's own guarantee, never a part of it: other runs may be released by
    others, later, or not at all.
    """

    counted: int  # runs in the figure, this one included if it is of their kind
    epsilon: float | None  # None where there is no joint figure
    remark: str  # all of it in sentences

    @classmethod
    def of(cls, own: str, runs: Mapping[str, KnownRun], delta: float) -> Joint:
        """The joint figure of all runs on the terms of the run `own`, or why there is none.

        If `own` is in no sum, the figure is that of all others, where they are on the same terms.
        Nothing here raises: a remark must not stop anything.
        """
        private = {name: run for name, run in runs.items() if run.why_not_counted is None}
        kinds = list(dict.fromkeys(run.terms for run in private.values()))
        terms = private[own].terms if own in private else kinds[0] if len(kinds) == 1 else None
        counted = {name: run for name, run in private.items() if run.terms == terms}
        others = len(runs) - 1
        said = [f"This corpus has {others} other run{'s' if others > 1 else ''} on record."]
        epsilon = None
        if len(counted) > 1:
            try:
                epsilon, by = _joint_epsilon(list(counted.values()), list(runs.values()), delta)
                said.append(
                    f"All {len(counted)} private ones together: epsilon {format_epsilon(epsilon)}"
                    f" at delta {format_delta(delta)}, by {by}."
                )
            except ValueError as error:
                said.append(f"No joint figure, because {error}.")
        elif len(kinds) > 1:
            said.append(f"No joint figure, because {_why_not_added(kinds)}.")
        reasons = Counter(
            run.why_not_counted
            or f"{run.header.unit}-level under {run.header.adjacency} adjacency, which does not add"
            " to the others"
            for name, run in runs.items()
            if name != own and name not in counted
        )
        said += [f"Not counted: {count} {reason}." for reason, count in reasons.items()]
        return cls(len(counted), epsilon, " ".join(said))


def _why_not_added(kinds: Sequence[Terms]) -> str:
    """Why epsilons on different terms have no sum."""
    units = sorted({unit for unit, _ in kinds}, reverse=True)
    if len(units) > 1:
        return f"a {units[1]}-level epsilon does not add to a {units[0]}-level one"
    named = sorted({str(adjacency) for _, adjacency in kinds})
    return f"an epsilon under {named[-1]} adjacency does not add to one under {named[0]}"


def _joint_epsilon(
    counted: Sequence[KnownRun], runs: Sequence[KnownRun], delta: float
) -> tuple[float, str]:
    """The least sound figure, and the accountant that gives it.

    An accountant's grid may make a sum look cheaper than one of its parts, so no joint figure is
    taken to be below any of them.
    """
    whole = figures(compose(counted, runs), delta)
    if not whole:
        raise ValueError("no accountant is sound for all of them")
    by = min(whole, key=lambda name: whole[name])
    beside = [cost.releases for run in counted for cost in run.beside if cost.releases is not None]
    parts = [*(run.composition for run in counted), *beside]
    return max(whole[by], *(min(figures(part, delta).values()) for part in parts)), by
