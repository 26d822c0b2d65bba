"""`tacit ledger`: what a run has released from people's text, and what that costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tacit.cli.options import AsJson, argument, text
from tacit.cli.output import emit, epsilon, table
from tacit.privacy.claims import format_delta

if TYPE_CHECKING:
    from tacit.privacy.ledger import Ledger
    from tacit.runs.bundle import Bundle
    from tacit.runs.run import Run


def ledger(
    run: Path = argument(..., "RUN", "A run directory or an exported bundle."),
    as_json: AsJson = False,
    plot: Path | None = text(None, "FILE", "Draw epsilon over releases: .png, .svg or .pdf."),
) -> None:
    """Verify a run's ledger and say what the run costs, in figures and in words.

    A ledger that was changed, or is shorter than the last checkpoint says, is refused.

    Examples:

    `tacit ledger runs/first`

    `tacit ledger runs/first --json`

    `tacit ledger runs/first --plot epsilon.png`
    """
    from tacit.cli import plots
    from tacit.privacy.ledger_lines import LedgerError
    from tacit.runs.bundle import open_release

    if plot is not None:
        plots.check_target(plot)
    try:
        release = open_release(run)
    except LedgerError as fault:
        emit({"run": str(run), "intact": False, "why": str(fault)}, as_json, lambda console: None)
        raise
    row = _as_row(run, release)
    if plot is not None:  # last: a run that is refused leaves no plot
        _plot(release, plot)
    emit(row, as_json, lambda console: _print(console, row))


def _plot(release: Run | Bundle, path: Path) -> None:
    """Draw epsilon as releases were charged, from 0 on, and the budget as a level."""
    from tacit.cli import plots
    from tacit.report.claim import epsilon_over_releases
    from tacit.runs.progress import bar

    book = release.ledger
    with bar("epsilon over releases"):
        facts = epsilon_over_releases(release.guarantee(), book)
    if facts is None:
        raise ValueError(f"--plot has nothing to draw: {book.path} has no epsilon above 0")
    curves = {
        curve["title"]: [(0, 0.0), *zip(facts["after"], curve["epsilon"], strict=True)]
        for curve in facts["curves"]
    }
    budget = book.header.budget
    levels = {} if budget is None else {"budget": budget.epsilon}
    label = f"epsilon at delta = {facts['delta']:g}"
    plots.draw(path, plots.Panel(facts["counted"], label, curves, levels))


def _as_row(path: Path, release: Run | Bundle) -> dict[str, Any]:
    """The ledger's header, what follows from it, and how it was checked."""
    book, header = release.ledger, release.ledger.header
    attempts = Counter((e.branch, e.round) for e in book.entries if e.kind == "round")
    parent = header.parent
    return {
        "run": str(path),
        "intact": True,
        **header.to_json(),
        **release.guarantee().as_row(),
        "entries": dict(Counter(entry.kind for entry in book.entries)),
        "charged_again": [
            {"round": round, "attempts": count}
            for (_, round), count in sorted(attempts.items())
            if count > 1
        ],
        "budget": _budget(book),
        "parent": {"run_id": parent.run_id, "entries": parent.head.entries} if parent else None,
        "head": book.head.to_json(),
        "checked_against": release.checked_against,
        "complete": release.is_complete,
    }


def _budget(book: Ledger) -> dict[str, Any] | None:
    """What was declared, what is spent and what is left, by the accountant of the budget."""
    from tacit.privacy.guarantee import figures, finite

    budget = book.header.budget
    if budget is None:
        return None
    spent = figures(book.composition(), budget.delta, budget.accountant)[budget.accountant]
    return asdict(budget) | {"spent": finite(spent), "left": max(budget.epsilon - spent, 0.0)}


def _print(console: Console, row: dict[str, Any]) -> None:
    """A table of what was charged and what that costs, and the claim in words below it."""
    facts = table("", "", title=f"the ledger of {row['run']}")
    facts.add_row("intact", f"yes, as long as {row['checked_against']} says")
    facts.add_row(f"{row['counted']} charged", f"{row['rounds']:,}")
    for kind, count in row["entries"].items():
        if kind != "round":
            facts.add_row(f"other entries: {kind}", f"{count:,}")
    for name, value in row["epsilon"].items():
        is_claimed = name == row["accountant"]
        facts.add_row(f"epsilon by {name}", epsilon(value), style="bold" if is_claimed else "")
    facts.add_row("delta", format_delta(row["delta"]))
    facts.add_row("population", f"{row['population']:,} {row['unit']}s, declared public")
    if again := row["charged_again"]:
        rounds = ", ".join(f"{one['round']} ({one['attempts']} times)" for one in again)
        facts.add_row("charged again", f"round {rounds}")
    if budget := row["budget"]:
        left = f"of which {budget['left']:.4g} is left"
        facts.add_row("budget", f"epsilon {budget['epsilon']:g} by {budget['accountant']}, {left}")
    if parent := row["parent"]:
        inherited = f"with its first {parent['entries']:,} entries"
        facts.add_row("branch of", f"run {parent['run_id']}, {inherited}")
    if row["complete"] is not None:
        facts.add_row("training", "complete" if row["complete"] else "not finished")
    console.print(facts)
    console.print(row["claim"])
    if row["other_runs"]:
        console.print(row["other_runs"])
