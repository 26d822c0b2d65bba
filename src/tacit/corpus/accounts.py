"""What a group of people's budget is, what was spent of it, and by which runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tacit.corpus.joint import Known, epsilon_of
from tacit.corpus.people_ledger import PeopleLedger, PeoplesBudget
from tacit.privacy.events import Adjacency
from tacit.privacy.guarantee import finite


@dataclass(frozen=True)
class RunAccount:
    """One run among others."""

    run_id: str
    unit: str
    adjacency: Adjacency | None
    releases: int  # those that cost something
    epsilon: float
    delta: float  # the budget's where there is one, else its own
    not_counted: str | None  # why it is in no sum

    @classmethod
    def of(cls, run_id: str, run: Known, budget: PeoplesBudget | None) -> RunAccount:
        delta = budget.delta if budget else run.header.delta
        why = run.why_not_counted
        if why is None and budget and run.terms != budget.terms:
            why = "on other terms than the budget"
        costly = run.composition.costly()
        return cls(
            run_id,
            run.header.unit,
            run.header.adjacency,
            sum(count for _, count in costly),
            epsilon_of(run.composition, delta),
            delta,
            why,
        )

    def as_row(self) -> dict[str, Any]:
        return {**vars(self), "epsilon": finite(self.epsilon)}


@dataclass(frozen=True)
class Account:
    """All runs on these people, and the budget for all of them together."""

    people: str
    budget: PeoplesBudget | None
    spent: float | None  # at the budget's delta and on its terms
    declared: tuple[PeoplesBudget, ...]  # every budget there was, in its order
    runs: tuple[RunAccount, ...]

    @property
    def left(self) -> float | None:
        """What is not spent; the next release may cost more or less than its share of it."""
        if self.budget is None or self.spent is None:
            return None
        return max(self.budget.epsilon - self.spent, 0.0)

    def as_row(self) -> dict[str, Any]:
        """Under the names that scripts rely on."""
        return {
            "people": self.people,
            "budget": self.budget.to_json() if self.budget else None,
            "spent": finite(self.spent) if self.spent is not None else None,
            "left": self.left,
            "declared": [budget.to_json() for budget in self.declared],
            "runs": [run.as_row() for run in self.runs],
        }


def account_of(ledger: PeopleLedger) -> Account:
    """The account of a group of people."""
    declared, runs = ledger.budgets, ledger.runs()
    budget = declared[-1] if declared else None
    spent = epsilon_of(ledger.spent(budget.terms), budget.delta) if budget else None
    return Account(
        ledger.path.parent.name,
        budget,
        spent,
        declared,
        tuple(RunAccount.of(run_id, run, budget) for run_id, run in runs.items()),
    )
