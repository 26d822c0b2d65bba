"""`tacit ledger`: what a run has released from people's text, and what that costs."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.options import AsJson
from tacit.privacy.claims import format_delta, format_epsilon

if TYPE_CHECKING:
    from tacit.privacy.guarantee import Guarantee
    from tacit.privacy.ledger import Ledger

EXAMPLES = """
Examples:

`tacit ledger runs/first`

`tacit ledger runs/first --json`

`tacit ledger runs/first --plot epsilon.png`
"""


def ledger(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run directory or an exported bundle.", show_default=False
        ),
    ],
    as_json: AsJson = False,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Draw epsilon over releases: .png, .svg or .pdf."),
    ] = None,
) -> None:
    """Verify a run's ledger and say what the run costs, in figures and in words.

    A ledger that was changed, or is shorter than the last checkpoint says, is refused.
    """
    from tacit.cli import plotting
    from tacit.privacy.ledger import LedgerError

    if plot is not None:
        plotting.check_target(plot)
    try:
        book = _opened(run)
    except LedgerError as fault:
        if as_json:
            json.dump({"run": str(run), "intact": False, "why": str(fault)}, sys.stdout, indent=2)
            print()
        raise
    if plot is not None:
        from tacit.cli.ledger_plot import epsilon_over_releases

        epsilon_over_releases(book.ledger, plot)
    row = _as_row(run, book)
    if as_json:
        json.dump(row, sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        _print(row)


@dataclass(frozen=True)
class _Book:
    """A verified ledger and what may be claimed with it."""

    ledger: Ledger
    guarantee: Guarantee
    checked_against: str  # what says how long it has to be
    is_complete: bool | None


def _opened(path: Path) -> _Book:
    """The ledger of a run, of either kind, or of a bundle."""
    from tacit.runs.open_release import open_release

    release = open_release(path)
    return _Book(release.ledger, release.guarantee(), release.checked_against, release.is_complete)


def _as_row(path: Path, book: _Book) -> dict[str, Any]:
    entries, header = book.ledger.entries, book.ledger.header
    attempts = Counter((e.branch, e.round) for e in entries if e.kind == "round")
    parent = header.parent
    row = {"run": str(path), "run_id": header.run_id, "intact": True}
    row |= book.guarantee.as_row()
    return row | {
        "unit": header.unit,
        "adjacency": header.adjacency,
        "view": header.view,
        "counted": header.counted,
        "public_inputs": [asdict(one) for one in header.public_inputs],
        "population": header.population,
        "entries": dict(Counter(entry.kind for entry in entries)),
        "charged_again": [
            {"round": round, "attempts": count}
            for (_, round), count in sorted(attempts.items())
            if count > 1
        ],
        "budget": _budget(book.ledger),
        "parent": {"run_id": parent.run_id, "entries": parent.head.entries} if parent else None,
        "branch": header.branch,
        "head": book.ledger.head.to_json(),
        "checked_against": book.checked_against,
        "simulation": header.simulation,
        "complete": book.is_complete,
    }


def _budget(book: Ledger) -> dict[str, Any] | None:
    """What was declared, spent and is left, by the accountant that the budget names."""
    from tacit.privacy.accountants import accountant_named

    budget, composition = book.header.budget, book.composition()
    if budget is None:
        return None
    spent = math.inf
    if not composition.costly():
        spent = 0.0
    elif composition.is_private:
        spent = accountant_named(budget.accountant).epsilon(composition, budget.delta)
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "accountant": budget.accountant,
        "spent": spent if math.isfinite(spent) else None,
        "left": max(budget.epsilon - spent, 0.0),
    }


def _print(row: dict[str, Any]) -> None:
    console = Console(highlight=False, markup=False)
    table = Table(title=f"the ledger of {row['run']}", show_header=False)
    table.add_column("what")
    table.add_column("value")
    against = row["checked_against"]
    table.add_row("intact", f"yes, as long as {against} says")
    table.add_row(f"{row['counted']} charged", f"{row['rounds']:,}")
    for kind, count in row["entries"].items():
        if kind != "round":
            table.add_row(f"other entries: {kind}", f"{count:,}")
    for name, epsilon in row["epsilon"].items():
        shown = format_epsilon(math.inf if epsilon is None else epsilon)
        table.add_row(
            f"epsilon by {name}", shown, style="bold" if name == row["accountant"] else ""
        )
    table.add_row("delta", format_delta(row["delta"]))
    table.add_row("population", f"{row['population']:,} {row['unit']}s, declared public")
    if again := row["charged_again"]:
        rounds = ", ".join(f"{one['round']} ({one['attempts']} times)" for one in again)
        table.add_row("charged again", f"round {rounds}")
    if budget := row["budget"]:
        table.add_row(
            "budget",
            f"epsilon {budget['epsilon']:g} by {budget['accountant']}, of which"
            f" {budget['left']:.4g} is left",
        )
    if parent := row["parent"]:
        table.add_row(
            "branch of", f"run {parent['run_id']}, with its first {parent['entries']:,} entries"
        )
    if row["complete"] is not None:
        table.add_row("training", "complete" if row["complete"] else "not finished")
    console.print(table)
    console.print(row["claim"])
    if row["other_runs"]:
        console.print(row["other_runs"])
