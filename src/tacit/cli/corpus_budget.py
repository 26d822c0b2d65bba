"""Whose budget it is, and how it is printed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tacit.privacy.claims import format_delta, format_epsilon

if TYPE_CHECKING:
    from tacit.corpus.accounts import Account
    from tacit.corpus.people_ledger import PeoplesBudget


def declare(corpus: str, wanted: PeoplesBudget | None) -> Account:
    """The account of the people of a corpus, or of those who said the utterances of a set.

    With a budget it is declared first, and a corpus carries it along.
    """
    from tacit.corpus.accounts import account_of
    from tacit.corpus.builtin import is_builtin, load_corpus
    from tacit.corpus.layout import META
    from tacit.corpus.people_ledger import PeopleLedger, leave_copy

    path, found = Path(corpus), None
    if is_builtin(corpus) or not path.exists() or (path / META).exists():
        found = load_corpus(corpus)
        if not found.about_people:
            raise ValueError(f"{corpus} holds made-up text, which nobody needs a budget for")
        ledger = PeopleLedger.of_corpus(found)
    else:
        from tacit.tasks.nlu.layouts import load_nlu
        from tacit.tasks.nlu.utterances import recognise

        ledger = PeopleLedger.open(recognise(load_nlu(corpus, unseen_intents="keep")))
    if wanted is not None:
        ledger.declare(wanted)
        if found is not None:
            with suppress(OSError):  # a corpus that cannot be written to
                leave_copy(found)
    return account_of(ledger)


def print_account(account: Account) -> None:
    """The budget, and a table of the runs."""
    console = Console()
    if account.budget is None:
        console.print("No budget is declared for these people.")
    else:
        assert account.spent is not None
        assert account.left is not None
        budget = account.budget
        console.print(
            f"Budget: epsilon {budget.epsilon:g} at delta {budget.delta:g}, {budget.unit}-level"
            f" under {budget.adjacency} adjacency; spent {format_epsilon(account.spent)}, left"
            f" {account.left:.4g}.",
            highlight=False,
        )
    if not account.runs:
        console.print("Nothing was released about them yet.")
        return
    table = Table("run", "kind", "releases", "epsilon", "at delta", "counted")
    for run in account.runs:
        table.add_row(
            run.run_id,
            f"{run.unit}-level, {run.adjacency or 'no noise'}",
            f"{run.releases:,}",
            format_epsilon(run.epsilon),
            format_delta(run.delta),
            f"no: {run.not_counted}" if run.not_counted else "yes",
        )
    console.print(table)
